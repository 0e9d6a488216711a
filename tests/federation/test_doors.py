"""A fit is told once: estimator, `bayesadmm fit`, a run by files and one on Flower have one model, bit for bit."""

from itertools import product

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np.glm import fit  # noqa: E402
from oracles.by_files import SITES  # noqa: E402
from oracles.doors import OTHERS, by_estimator, by_files, differing  # noqa: E402

TARGETS = {"logistic": "died", "poisson": "visits", "linear": "pressure", "multinomial": "ward"}
NOTHING = {"died": "yes", "visits": 0, "pressure": 1.0, "ward": "k"}
"""A target that separates a level of a factor, but for least squares."""


def rows(trouble, target):
    """Return three sites' rows; `a` has its mean five standard deviations from zero."""
    rng, n = np.random.default_rng(0), 90
    table = pd.DataFrame({"a": rng.normal(50.0, 10.0, n).round(2), "b": rng.normal(size=n).round(3)})
    table["g"], table["site"] = rng.choice(["u", "v", "w"], n), rng.choice(SITES, n)
    table["known"], table["days"] = rng.normal(0.0, 0.5, n).round(3), rng.uniform(0.5, 9.0, n).round(2)
    table["n"] = rng.integers(1, 4, n)
    f = 0.05 * (table["a"] - 50.0) - 0.5 * table["b"]
    table["died"] = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-f)), "yes", "no")
    table["visits"], table["pressure"] = rng.poisson(np.exp(f)), (120.0 + f + rng.normal(size=n)).round(3)
    table["ward"] = np.array(["k", "l", "m"])[rng.binomial(2, 1.0 / (1.0 + np.exp(-f)))]
    if trouble == "quasi":
        table.loc[table["g"] == "w", target] = NOTHING[target]
    elif trouble == "complete":
        table["b"] = table[target].astype("category").cat.codes if target in ("died", "ward") else table[target]
        table[target] = 0 if target == "visits" else table[target]
    table["c"] = {"collinear": 1.0 + 2.0 * table["b"] + 0.5 * table["a"], "duplicated": table["b"]}.get(trouble, 3.0)
    return {name: part.drop(columns="site").reset_index(drop=True) for name, part in table.groupby("site")}


def formula_of(trouble, kind, known):
    superfluous = "+c" * (trouble in ("collinear", "constant", "duplicated"))
    return f"{TARGETS[kind]}~a+b+g{superfluous}" + (f"+offset({known})" if known else "")


CASES = list(product(TARGETS, ("ordinary", "quasi", "complete", "collinear", "constant", "duplicated")))


def settings_of(number, turned):
    """Return column of the offset, weights and tests of a case; those of `turned` are the others."""
    kind, trouble = CASES[number]
    is_plain = (number % 2 == 0) ^ turned
    known = None if is_plain or kind == "multinomial" else "log(days)" if kind == "poisson" else "known"
    is_slow = trouble in ("quasi", "complete") and kind != "linear"  # a search for each smaller model
    tests = ("lr" if turned else "none") if is_slow else ("lr" if is_plain else "score")
    return known, None if is_plain else "n", tests


@pytest.mark.parametrize("turned", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "turned"])
@pytest.mark.parametrize("number", range(len(CASES)), ids=["-".join(case) for case in CASES])
@pytest.mark.filterwarnings("ignore")
def test_every_door_has_one_model(call, number, turned):
    (kind, trouble), (known, weights, tests) = CASES[number], settings_of(number, turned)
    given = (call, rows(trouble, TARGETS[kind]), formula_of(trouble, kind, known), kind, weights, tests)
    first = by_estimator(*given)
    assert first.has_maximum == (trouble not in ("quasi", "complete") or kind == "linear")
    # Flower carries the messages of a run by files
    for door in OTHERS if turned or number % 5 == 0 else OTHERS[:2]:
        assert differing(first, door(*given)) == set(), door.__name__


def test_a_door_that_does_not_measure_columns_at_their_means_is_found(call, monkeypatch):
    """The broken twin of the comparison: the coefficients agree to rounding all the same."""
    given = (call, rows("ordinary", "died"), formula_of("ordinary", "logistic", None), "logistic", None, "lr")
    first = by_estimator(*given)
    monkeypatch.setattr(fit, "_about_the_means", lambda found: found)
    twin = by_files(*given)
    np.testing.assert_allclose(twin.mean(), first.mean(), rtol=1e-7)
    assert {".layout.centre", ".posterior.mean", ".totals.ratio_tests.0.statistic"} <= differing(first, twin)
