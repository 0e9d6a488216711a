"""No number where there is none: a walk over everything that a fitted model answers.

θ is moved along the directions that the rows leave open, by any amount, and with it the precision on the coefficients
there. Every answer must stay as it was, or be blank in both: an answer that changes is a number where there is none.
The walk knows no list of answers: it goes through `dir` of what a user holds, and a method whose argument it does not
know fails it.
"""

import dataclasses
import importlib
import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from bayesadmm_np.cli import COMMANDS
from bayesadmm_np.estimators import (
    FederatedGLM,
    contrast,
    load_model,
    save_model,
)
from bayesadmm_np.estimators.answers import FittedEstimator
from bayesadmm_np.estimators.fitted import FittedGLM, predictor_mean
from bayesadmm_np.estimators.summary import as_dict
from bayesadmm_np.families import FullGaussian
from bayesadmm_np.glm.columns import HOLD
from bayesadmm_np.glm.diagnosis import Undecided
from oracles.by_files import play, write_tables
from oracles.overrides import OPTIONS

pytestmark = pytest.mark.filterwarnings("ignore")

ARGUMENTS = {
    "covariance": ["model", "HC1"],
    "reference": [None, 1],
    "tests": ["none", "wald"],
    "intervals": ["wald", "profile"],
    "ratios": [False, True],
    "return_std": [False, True],
    "how": ["wald", "lr"],
}
"""Values of optional arguments, each beside the defaults of the others; other optional arguments keep their default."""

NUMBER = r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)"

STATE = {
    "posterior": "the run's state in its own coordinates",
    "kept": "the same state without held columns",
    "uncentred": "the same model in other coordinates",
    "check": "the residual at that state, against rows",
    "certify": "prints that residual",
    "make_loss": "a function of θ",
    "losses": "functions of θ",
    "with_robust": "a fitted model",
    "fit": "another fit",
    "partial_fit_site": "another fit",
    "forget_site": "another fit",
    "from_formula": "another fit",
    "set_params": "no answer",
}
"""What is no answer of the fit, and why."""


# ----------------------------------------------------------------------------------------------------
# Fits that leave something open
# ----------------------------------------------------------------------------------------------------


def patients(rng, n=90):
    x, z, site = rng.normal(size=n), rng.normal(size=n), rng.choice(list("ABC"), n)
    f = 0.7 * x - 0.4
    return pd.DataFrame(
        {
            "x": x,
            "z": z,
            "h": (np.arange(n) % 7 == 0).astype(float),
            "k": (np.arange(n) % 5 == 0).astype(float),
            "g": rng.choice(["p", "q", "r"], n),
            "logistic": (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int),
            "poisson": rng.poisson(np.exp(f)),
            "linear": f + rng.normal(size=n),
            "multinomial": rng.integers(0, 3, n),
            "site": site,
        }
    )


def fitted(kind, formula, rng, levels="", table=None, **more):
    """A fit with columns more; in levels h and k there is one outcome, or one fewer."""
    table = (patients(rng) if table is None else table).assign(**more)
    for level in levels:
        there = table[level] == 1
        table.loc[there, kind] = {"logistic": 1, "poisson": 0, "multinomial": 1 + table.index[there] % 2}[kind]
    return FederatedGLM.from_formula(f"{kind} ~ {formula}", table, client="site", kind=kind), table


def twice(table):
    return 1.0 + 2.0 * table["x"]


def wide(rng):
    names = [f"x{j}" for j in range(11)]
    X = rng.normal(size=(8, 11))
    table = pd.DataFrame(X, columns=names).assign(site=list("AABBBCCC"), linear=rng.normal(size=8))
    return fitted("linear", " + ".join(names), rng, table=table)


def aliased(kind):
    return lambda rng: fitted(kind, "C(g) + C(g2) + x", rng, g2=lambda t: t["g"].map({"p": "u", "q": "v", "r": "w"}))


def dependent(kind):
    return lambda rng: fitted(kind, "x + twice + z", rng, twice=twice)


CASES = {
    **{f"a level without maximum, {kind}": lambda rng, kind=kind: fitted(kind, "x + h + z", rng, "h")
       for kind in ("logistic", "poisson", "multinomial")},
    "complete": lambda rng: fitted("logistic", "x + z", rng, logistic=lambda t: (t["x"] > 0).astype(int)),
    **{f"two levels, {kind}": lambda rng, kind=kind: fitted(kind, "x + h + k", rng, "hk")
       for kind in ("logistic", "poisson")},
    "one class at a site": lambda rng: fitted(
        "logistic", "x + C(site)", rng, logistic=lambda t: t["logistic"].where(t["site"] != "B", 0)),
    "a level, and a dependent column": lambda rng: fitted("logistic", "x + twice + h", rng, "h", twice=twice),
    **{f"dependent, {kind}": dependent(kind) for kind in ("logistic", "poisson", "linear", "multinomial")},
    "more columns than rows": wide,
    "aliased factors, logistic": aliased("logistic"),
    "aliased factors, multinomial": aliased("multinomial"),
    "constant, poisson": lambda rng: fitted("poisson", "x + one", rng, one=3.0),
}  # fmt: skip


def moved(model, rng):
    """The model with θ elsewhere along the open directions, and another precision where they begin."""
    parts = model.unidentified.flat, model.unidentified.receding
    ways = np.column_stack([part for part in parts if part is not None])
    assert ways.shape[1]
    units = ways / np.linalg.norm(ways, axis=0)
    precision = model.posterior.precision.copy()
    j = np.flatnonzero(model.pinned)
    precision[j, j] *= 3.0 / HOLD
    mean = model.posterior.mean + units @ (
        rng.choice([-1.0, 1.0], ways.shape[1]) * rng.uniform(2.0, 4.0, ways.shape[1])
    )
    return replace(model, posterior=FullGaussian(mean, precision))


# ----------------------------------------------------------------------------------------------------
# The walk
# ----------------------------------------------------------------------------------------------------


def calls(method, known):
    """Ways to call a method: the defaults, and each value of each option beside them."""
    parameters = inspect.signature(method).parameters.values()
    needed, options = {}, {}
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        if one.default is one.empty:
            assert one.name in known, f"{method.__qualname__} takes {one.name!r}, which the walk does not know"
            needed[one.name] = known[one.name]
        elif one.name in ARGUMENTS:
            options[one.name] = ARGUMENTS[one.name]
    yield needed
    yield from ({**needed, name: value} for name, values in options.items() for value in values)


def answers(thing, known):
    """Yield the path and the value of everything public of a thing; a refusal is a value."""
    for name in dir(thing):
        if name.startswith("_") or name in STATE or name in dir(BaseEstimator) or name.endswith("_request"):
            continue
        try:
            found = getattr(thing, name)
        except (AttributeError, ValueError) as error:
            yield name, type(error).__name__
            continue
        if not inspect.isroutine(found):
            yield name, found
            continue
        for arguments in calls(found, known):
            shown = {key: value for key, value in arguments.items() if key in ARGUMENTS}
            try:
                yield f"{name}({shown})", found(**arguments)
            except (ValueError, AssertionError) as error:
                yield f"{name}({shown})", type(error).__name__


def leaves(value, path=""):
    """Yield numbers and words of a value with their paths."""
    if isinstance(value, FittedGLM | FullGaussian) or callable(value):
        return
    if isinstance(value, pd.DataFrame):
        value = {str(column): value[column].tolist() for column in value}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if dataclasses.is_dataclass(value):
        yield from leaves(str(value), f"{path}.str")
        if hasattr(value, "to_frame"):
            yield from leaves(value.to_frame(), f"{path}.frame")
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, str):
        # every second part is a number, and the blanks of a table are as wide as its numbers
        for k, part in enumerate(re.split(NUMBER, value.replace("−", "-"))):
            yield f"{path}.str[{k}]", float(part) if k % 2 else re.sub(r"[\s=-]+", " ", part)
        return
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for k, each in enumerate(value):
            yield from leaves(each, f"{path}[{k}]")
    else:
        yield path, value


def differences(one, other):
    """Paths at which two walks differ by more than rounding; a text shows four digits after the point."""
    found = []
    for (path, before), (same, after) in zip(one, other, strict=True):
        assert path == same
        a, b = list(leaves(before, path)), list(leaves(after, path))
        if [p for p, _ in a] != [p for p, _ in b]:
            found.append((path, "another shape"))
        for (place, x), (_, y) in zip(a, b, strict=False):
            if isinstance(x, float | int | np.number) and isinstance(y, float | int | np.number):
                close = 2.1e-3 if ".str" in place or "command" in place else 1e-5
                if not (x != x and y != y) and x != y and not abs(x - y) <= close * (1.0 + abs(x)):
                    found.append((place, x, y))
            elif str(x) != str(y):
                found.append((place, x, y))
    return found


def known_to(model, table):
    rows = table.drop(columns=[model.columns.target])
    off = rows.copy()
    numbers = off.select_dtypes("number").columns
    off[numbers] = off[numbers] + np.random.default_rng(1).normal(size=off[numbers].shape)
    both = pd.concat([rows.head(12), off.head(12)])
    L = np.random.default_rng(2).normal(size=(3, model.layout.dim))
    blank = np.ones(len(both), dtype=bool)
    return {"X": both, "y": pd.concat([table[model.columns.target].head(12)] * 2), "table": both, "L": L,
            "blank": blank, "argument": "L", "what": "L"}  # fmt: skip


def walk(thing, known):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(answers(thing, known))


def beside(value, blank, path=""):
    """Paths of numbers beside the name of a coefficient that has none."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return
    is_blank = "coef" in value and value["name"] in blank  # a term may have a test of likelihoods
    for key, each in value.items():
        if is_blank and isinstance(each, float) and each == each:
            yield f"{path}.{key}"
        yield from beside(each, blank, f"{path}.{key}")


def walked(model, known):
    """A fitted GLM's answers, with those of functions of it."""
    found = walk(model, known)
    found.append(("as_dict", as_dict(model)))
    names = model.coefficient_names
    for k in range(len(names)):
        for weights in ({names[k]: 1.0}, {names[k]: 1.0, names[k - 1]: -1.0}):
            try:
                value = contrast(model, weights)
            except ValueError as error:
                value = type(error).__name__
            found.append((f"contrast {weights}", value))
    return found


@pytest.mark.parametrize("case", CASES)
def test_nothing_that_a_fit_answers_moves_with_what_its_rows_leave_open(case, tmp_path):
    rng = np.random.default_rng(0)
    estimator, table = CASES[case](rng)
    model = estimator.fitted_
    known = known_to(model, table)
    before = walk(estimator, known)
    blank = np.array(model.coefficient_names)[np.isnan(model.mean())].tolist()
    assert blank
    save_model(tmp_path / "model.npz", model)
    loaded = load_model(tmp_path / "model.npz")
    first = walked(loaded, known)
    assert not [each for path, value in before + first for each in beside(value, blank, path)]
    elsewhere = moved(loaded, rng)
    assert not differences(first, walked(elsewhere, known))
    estimator.fitted_ = moved(model, rng)
    assert not differences(before, walk(estimator, known))


@pytest.mark.parametrize("case", ["a level without maximum, logistic", "dependent, logistic"])
def test_a_door_that_shows_what_is_open_is_found(case, monkeypatch):
    """Broken twins: the state itself, the error of a held coefficient, a prediction of any row, and a new argument."""
    rng = np.random.default_rng(0)
    estimator, table = CASES[case](rng)
    known = known_to(estimator.fitted_, table)
    doors = {
        "raw_": property(lambda self: self.fitted_.layout.homeward @ self.fitted_.posterior.mean),
        "error_": property(lambda self: np.sqrt(np.diag(self.fitted_.posterior.covariance_matrix))),
        "mean_of": lambda self, X: self.fitted_.design(self._rows_to_predict(X)[0]) @ self.fitted_.posterior.mean,
    }
    for name, door in doors.items():
        monkeypatch.setattr(FittedEstimator, name, door, raising=False)
    before = walk(estimator, known)
    estimator.fitted_ = moved(estimator.fitted_, rng)
    found = {place.split("[")[0].split("(")[0] for place, *_ in differences(before, walk(estimator, known))}
    assert found == {*doors}
    row = {"name": estimator.fitted_.coefficient_names[1], "coef": 0.0}
    assert list(beside([row], [row["name"]])) == [".0.coef"]
    monkeypatch.setattr(FittedEstimator, "odds", lambda self, patient: 1.0, raising=False)
    with pytest.raises(AssertionError, match="'patient', which the walk does not know"):
        walk(estimator, known)


def test_a_walk_sees_numbers_beside_the_blanks():
    """Rows of the fit have predictions, rows off the dependence have none, and twenty answers hold numbers."""
    estimator, table = CASES["dependent, linear"](np.random.default_rng(0))
    known = known_to(estimator.fitted_, table)
    answered = dict(walk(estimator, known))
    predicted = answered["predict({})"]
    assert np.isfinite(predicted[:12]).all()
    assert np.isnan(predicted[12:]).all()
    numbers = [path for path, value in answered.items() if any(isinstance(x, float) for _, x in leaves(value))]
    assert len(numbers) > 20


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(("dep", "more", "alias", "const"))])
def test_predictions_of_the_rows_of_a_fit_are_the_limits(case):
    """The stored θ lies so far out that the loss is the infimum to 1e-10, and each row's probability to 1e-5."""
    estimator, table = CASES[case](np.random.default_rng(0))
    model = estimator.fitted_
    design = model.design(model.columns.design(table))
    raw = predictor_mean(model.posterior, design, model.layout.n_outputs)
    if not model.columns.classes:
        found = estimator.predict(table)
        known = model.unidentified.receding.shape[1] == 1
        there = np.zeros(len(raw), dtype=bool) if known else ~np.isfinite(found)
        assert np.allclose(found[~there], np.exp(raw)[~there], atol=1e-5)
        assert there.sum() == (0 if known else (table[["h", "k"]] == 1).any(axis=1).sum())
        return
    chances = model.kind.class_probabilities(raw, np.zeros((*raw.shape, raw.shape[-1])[: 2 * raw.ndim - 1]), "plug-in")
    found = estimator.predict_proba(table)
    blank = np.isnan(found).any(axis=1)
    assert np.allclose(found[~blank], chances[~blank], atol=1e-5)
    assert blank.any() == (model.unidentified.receding.shape[1] > 1)
    assert (estimator.predict(table) == np.array(model.columns.classes)[chances.argmax(axis=1)]).all()
    decided = estimator.decision_function(table)
    best = (decided > 0) if decided.ndim == 1 else decided.argmax(axis=1)
    assert (best == chances.argmax(axis=1)).all()
    # where nobody knows the direction there is no class either
    lost = replace(model, findings=(*model.findings, Undecided(model.coefficient_names)))
    assert (lost.labels(model.columns.design(table)) < 0).any()


# ----------------------------------------------------------------------------------------------------
# Commands, and runs by files
# ----------------------------------------------------------------------------------------------------

OPTIONS_OF_COMMANDS = {
    "tests": ["--tests wald"],
    "ratios": ["--ratios"],
    "reference": ["--reference 1"],
    "contrasts": ["--contrast x=1", "--contrast h=1", "--contrast twice=1", "--contrast x=1,twice=2"],
    "json": ["--json"],
}


def readers():
    """Commands that take a model, by their words, with the names of their parameters."""
    for name in COMMANDS:
        module = importlib.import_module(f"bayesadmm_np.cli.{name}")
        group = [name] if hasattr(module, name) else module.__all__
        for each in group:
            parameters = inspect.signature(getattr(module, each)).parameters
            if any(one.annotation == "ModelFile" for one in parameters.values()):
                yield name if each == name else f"{name} {each}", parameters


def typed(model, known):
    """All ways to type the commands that take a model."""
    for words, parameters in readers():
        if words in STATE:
            continue
        needed = [one for one in parameters.values() if one.default is one.empty]
        text = " ".join([words, *(str(known[one.name]) for one in needed)]).replace("MODEL", str(model))
        yield text
        yield from (f"{text} {way}" for name in parameters for way in OPTIONS_OF_COMMANDS.get(name, []))


def said(call, model, known):
    found = []
    for text in typed(model, known):
        code, out, err = call(text)
        found.append((f"command {text.split()[0]}", [code, out, err.replace(str(model), "MODEL")]))
    return found


@pytest.fixture
def call(bayesadmm, tmp_path, monkeypatch):
    pytest.importorskip("cyclopts")
    monkeypatch.chdir(tmp_path)
    return lambda text: bayesadmm(*text.split())


def test_commands_that_take_a_model_are_found():
    assert {"summary", "predict", "evaluate", "certify", "site evaluate"} <= {words for words, _ in readers()}


@pytest.mark.parametrize("case", ["a level without maximum, logistic", "a level, and a dependent column", "complete"])
def test_no_command_prints_what_moves(case, call):
    rng = np.random.default_rng(0)
    estimator, table = CASES[case](rng)
    table.to_csv("rows.csv", index=False)
    columns = ",".join(estimator.fitted_.columns.names)
    assert (
        call(f"site init a --data rows.csv --name A --target logistic --features {columns} --loss logistic {OPTIONS}")[
            0
        ]
        == 0
    )
    known = {"model": "MODEL", "data": "rows.csv", "folder": "a"}
    model = replace(estimator.fitted_, columns=replace(estimator.fitted_.columns, client="site"))
    save_model("one.npz", model)
    save_model("other.npz", moved(model, rng))
    first, second = (said(call, name, known) for name in ("one.npz", "other.npz"))
    assert not differences(first, second)


@pytest.mark.parametrize(
    "options",
    ["--target died --loss logistic --features age,marker", "--target visits --loss poisson --features dose,twice"],
)
def test_a_run_by_files_shows_nothing_that_moves(options, call):
    rows = write_tables().rename(columns={"died": "logistic"})
    play(call, options)
    assert call("server status run --out model.npz")[0] in (0, 4)
    model = load_model("model.npz")
    known = known_to(replace(model, columns=replace(model.columns, target="visits")), rows)
    first = walked(model, known)
    assert not differences(first, walked(moved(model, np.random.default_rng(0)), known))
