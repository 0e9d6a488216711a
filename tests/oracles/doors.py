"""One fit by every door: estimator, `bayesadmm fit`, a run by files and one on Flower; and where models differ."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from bayesadmm_np.cli._results import ended_model
from bayesadmm_np.cli.flower import keys, read_plan
from bayesadmm_np.estimators import FederatedGLM, load_model
from bayesadmm_np.federation import GLMTable, Site, final_result
from oracles.by_files import SITES
from oracles.couriers import drive_sites
from oracles.overrides import ALLOWED

APART = {".record.rounds", ".record.floats", ".record.objective"}
"""Reports of messages: a server asks a question more at the end, and has no value of the loss where it did not ask."""


def by_estimator(call, tables, formula, kind, weights, tests):
    model = FederatedGLM.from_formula(formula, tables, kind=kind, weights=weights)
    fitted = model.with_robust()
    if tests in ("none", "wald"):  # of which a model keeps nothing
        return fitted
    return replace(fitted, totals=replace(fitted.totals, ratio_tests=model.test_terms(how=tests)))


def by_fit(call, tables, formula, kind, weights, tests):
    for name, table in tables.items():
        table.to_csv(f"{name}.csv", index=False)
    given = f"--formula {formula} --loss {kind} --tests {tests}" + (f" --weights {weights}" if weights else "")
    code, _, err = call(f"fit {' '.join(f'{name}.csv' for name in tables)} {given} --out fit.npz --no-progress")
    assert code in (0, 1, 4), err
    return load_model("fit.npz")


def plan(tests):
    """Return the plan of an app of Flower, whose task is that of `server init`."""
    config = {key: default for key, (default, _) in keys(len(SITES)).items()}
    return read_plan({**config, "tests": tests})


def by_files(call, tables, formula, kind, weights, tests):
    """Carry bytes: every message is written and read, and so is the server's checkpoint."""
    data = {name: GLMTable(table, formula, kind, weights=weights) for name, table in tables.items()}
    sites = [Site(name, one, rules=ALLOWED) for name, one in data.items()]
    server, _ = drive_sites(sites, plan(tests).task)
    return ended_model(final_result(server.broadcast(), server), server)


def on_flower(call, tables, formula, kind, weights, tests):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from oracles.loopback import federation, finished, plan_of

    data = [GLMTable(table, formula, kind, weights=weights) for table in tables.values()]
    folder = Path(f"flower-{tests}").absolute()
    folder.mkdir()
    server = finished(plan_of(folder, plan(tests).task), federation(folder, data, names=tuple(tables)))
    return ended_model(final_result(server.broadcast(), server), server)


OTHERS = (by_fit, by_files, on_flower)
"""The doors but the estimator's."""


def all_fields(thing, place=""):
    """Yield every value of a model with its place."""
    if hasattr(thing, "natural"):
        yield f"{place}.mean", thing.mean
        yield f"{place}.precision", thing.precision
    elif hasattr(thing, "to_vector"):
        yield place, thing.to_vector()
    elif is_dataclass(thing) and place != ".kind":
        for one in fields(thing):
            yield from all_fields(getattr(thing, one.name), f"{place}.{one.name}")
    elif isinstance(thing, tuple | list) or hasattr(thing, "items"):
        pairs = [*(thing.items() if hasattr(thing, "items") else enumerate(thing))]
        yield f"{place}()", {key for key, _ in pairs}
        for key, value in pairs:
            yield from all_fields(value, f"{place}.{key}")
    else:
        yield place, thing


def differing(one, other):
    """Return the places at which two models are not the same, bit for bit, but for reports of messages.

    Bounds of a certificate may be wider in the second: sites send the reach of their rows, and the error of a
    curvature, rounded up to powers of two, of which a bound is the product at most.
    """
    a, b = dict(all_fields(one)), dict(all_fields(other))

    def same(x, y, wider):
        if wider and np.asarray(x).dtype.kind == np.asarray(y).dtype.kind == "f":
            x, y = np.asarray(x), np.asarray(y)
            return bool(((x * (1 - 1e-9) <= y) & (y <= 4 * x) | (x == y) | (np.isnan(x) & np.isnan(y))).all())
        if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
            return type(x) is type(y) and np.array_equal(x, y, equal_nan=True)
        return x == y or (x != x and y != y)

    both = {key for key in a.keys() | b.keys() if key not in APART}
    return {
        key for key in both if key not in a or key not in b or not same(a[key], b[key], "certificate.distance." in key)
    }
