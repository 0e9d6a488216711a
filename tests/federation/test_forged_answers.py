"""Answers that no rows have: refused with site, question and field, and the run of the others goes on."""

import json
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    GLMData,
    GLMTask,
    Message,
    MessageError,
    Site,
    glm_questions,
    questions,
    start_server,
    step_server,
)
from bayesadmm_np.federation.folders import arrivals
from bayesadmm_np.glm.questions import QUESTIONS
from bayesadmm_np.losses.survival import CoxPartialLikelihood
from oracles.couriers import edited, started, until

COLUMNS = ("age", "dose", "intercept")


def rows(kind):
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)])
    eta = X @ [1.0, -1.0, 0.3]
    if kind == "linear":
        return X, eta + rng.normal(size=60)
    if kind == "separated":
        return X, (X[:, 0] > 0.1).astype(float)
    return X, (rng.random(60) < 1.0 / (1.0 + np.exp(-eta))).astype(float)


def begin(kind, **options):
    X, y = rows(kind)
    losses = []
    for part in (slice(0, 25), slice(25, 60)):
        if kind == "linear":
            losses.append(ba.losses.LeastSquares(X[part], y[part]))
        else:
            offset = 0.1 * X[part, 0] if kind == "offset" else None
            losses.append(ba.losses.Logistic(X[part], y[part], offset=offset))
    sites = [Site(name, GLMData(loss, COLUMNS)) for name, loss in zip("AB", losses, strict=True)]
    row, prior = ba.Guarded(ba.methods.Newton()), ba.families.FullGaussian(np.zeros(3), 0.0)
    task = GLMTask(row, prior, tol=1e-8, asks=True, **options)
    return started(sites, task), sites


WHERE = {
    "design": ("logistic", {}),
    "least_squares": ("linear", {}),
    "rows": ("separated", {}),
    "separation": ("separated", {}),
    "derivatives": ("offset", {}),
    "sums": ("linear", {}),
    "statistics": ("logistic", {}),
    "own_fit": ("logistic", {}),
    "firth": ("logistic", {"penalty": "firth"}),
}
"""By question, the rows and settings of a run that asks it."""


@pytest.fixture(scope="module")
def asked():
    """By question, the server that asks it, and the honest answers."""
    found = {}
    for name, (kind, options) in WHERE.items():
        server, sites = until(
            *begin(kind, **options),
            lambda server, name=name: server.question is not None and server.question.name == name,
        )
        found[name] = server, [site.step(server.broadcast())[1] for site in sites]
    return found


# ----------------------------------------------------------------------------------------------------
# Forgeries, by the type of a field
# ----------------------------------------------------------------------------------------------------

NUMBERS = {
    "NaN": lambda value: float("nan"),
    "∞": lambda value: float("inf"),
    "−∞": lambda value: float("-inf"),
    "negative": lambda value: -abs(value) - 1.0,
    "huge": lambda value: 1e300,
    "off by one": lambda value: value + 1.0,
    "text": lambda value: "1.0",
}
COUNTS = {
    "negative": lambda value: -1,
    "huge": lambda value: 1 << 60,
    "off by one": lambda value: value + 1,
    "a fraction": lambda value: value + 0.5,
}
TRUTHS = {"a number": int, "other": lambda value: not value}


def _entry(array, value):
    changed = np.array(array)
    changed.flat[0] = value
    return changed


def _asymmetric(array):
    changed = np.array(array)
    changed[0, -1] += 1.0
    return changed


ARRAYS = {
    "NaN": lambda array: _entry(array, np.nan),
    "∞": lambda array: _entry(array, np.inf),
    "negative": lambda array: -array - np.eye(*array.shape) if array.ndim == 2 else -array - 1.0,
    "huge": lambda array: np.full_like(array, 1e200),
    "a row more": lambda array: np.concatenate([array, array[:1]]),
    "flat": lambda array: array.reshape(1, -1) if array.ndim == 1 else array.ravel(),
    "of float32": lambda array: array.astype(np.float32),
    "missing": lambda array: None,
}
SQUARE = {"asymmetric": _asymmetric}


def forgeries(name, answer):
    """Yield (field, what is wrong, forged message) for every field of an answer."""
    header = json.loads(json.dumps(answer.header))
    for field, value in header["content"].items():
        kinds = TRUTHS if isinstance(value, bool) else COUNTS if isinstance(value, int) else NUMBERS
        if isinstance(value, list):
            continue  # names of arrays, which stand below
        for wrong, forge in kinds.items():
            content = {**header["content"], field: forge(1.0 if value is None else value)}
            yield field, wrong, Message("answer", {**header, "content": content}, answer.arrays, "answer-A.npz")
    for path, array in answer.arrays.items():
        field = path.removeprefix("a/")
        is_square = array.ndim == 2 and array.shape[0] == array.shape[1] and field != "root"
        for wrong, forge in {**ARRAYS, **(SQUARE if is_square else {})}.items():
            forged = {**answer.arrays, path: forge(array)}
            arrays = {key: value for key, value in forged.items() if value is not None}
            yield field, wrong, Message("answer", header, arrays, "answer-A.npz")


def taken(server, message):
    """Return None where the server takes an answer in, else the words of the refusal."""
    try:
        server.read([Message.from_bytes(message.to_bytes(), message.source)])
    except MessageError as error:
        return str(error)
    return None


def outcomes(asked, name):
    """Return {(field, what is wrong): words of the refusal, None where there is none}."""
    server, (answer, _) = asked[name]
    return {(field, wrong): taken(server, message) for field, wrong, message in forgeries(name, answer)}


OVERFLOWS = {
    *((field, wrong) for field in ("value", "gradient", "hessian") for wrong in ("NaN", "∞", "huge")),
    ("value", "off by one"),
    ("gradient", "negative"),
}
"""A search goes too far at honest sites as well: it takes such sums for infinite, and makes its step shorter."""

PLAUSIBLE = {
    "design": {("offset", "negative"), ("offset", "off by one"), ("moves", "other")},
    "least_squares": {
        *(("log_weight", wrong) for wrong in ("negative", "off by one")),  # weights below 1 have such logarithms
        ("shift", "negative"),  # means of columns
        ("moves", "other"),
    },
    "rows": {("root", "negative"), ("has_walls", "other")},
    "separation": {("gradient", "negative"), *((field, "off by one") for field in ("value", "moves", "opposes"))},
    "derivatives": OVERFLOWS,
    "sums": {("gradient", "negative"), *((field, "off by one") for field in ("value", "curvature_error"))},
    "statistics": {
        *((field, "off by one") for field in ("loss", "null_loss", "pearson", "log_weight", "constant", "n_clusters")),
        *((field, "negative") for field in ("log_weight", "constant")),
    },
    "own_fit": {
        *((field, "negative") for field in ("mean", "root", "span")),
        *((field, "off by one") for field in ("dispersion", "df_residual")),
        ("span", "a row more"),
    },
    "firth": OVERFLOWS | {("pull", "NaN"), ("pull", "∞")},
}
"""What no check can tell from an honest answer: other rows, of the same number and weight, could have made it."""

BESIDE = {("noise_variance", "off by one"): "weight"}
"""Where another field is named: a noise variance that was not told makes of the weight one of other rows."""


@pytest.mark.parametrize("name", WHERE)
def test_every_field_of_every_answer_is_checked(asked, name):
    server, (answer, _) = asked[name]
    assert taken(server, answer) is None
    found = outcomes(asked, name)
    assert {key for key, words in found.items() if words is None} == PLAUSIBLE[name]
    for (field, wrong), words in found.items():
        if words is not None:
            assert words.startswith(f"answer-A.npz: site A, question {name!r}: "), (field, wrong, words)
            assert BESIDE.get((field, wrong), field.partition("/")[0]) in words, (field, wrong, words)


def test_every_field_of_an_answer_has_a_row_in_the_table():
    for name, entry in QUESTIONS.items():
        kind = entry.answer
        named = {item.name for item in fields(kind)} if is_dataclass(kind) else set(kind._fields)
        assert set(entry.said) == named, name


LET_THROUGH = dict.fromkeys(WHERE, 3) | {"rows": 1, "design": 8, "statistics": 15, "separation": 4, "least_squares": 6}


@pytest.mark.parametrize("name", WHERE)
def test_without_conditions_forged_answers_are_taken_in(asked, name, monkeypatch):
    """The twin: a table of shapes alone."""
    before = {key for key, words in outcomes(asked, name).items() if words is None}
    bare = {
        question: entry._replace(said={field: replace(one, conditions=()) for field, one in entry.said.items()})
        for question, entry in QUESTIONS.items()
    }
    monkeypatch.setattr(glm_questions, "QUESTIONS", bare)
    after = {key for key, words in outcomes(asked, name).items() if words is None}
    assert before < after
    assert len(after - before) >= LET_THROUGH[name], (name, len(after - before))


# ----------------------------------------------------------------------------------------------------
# The run of the others
# ----------------------------------------------------------------------------------------------------


def test_a_refused_answer_leaves_those_of_others_and_the_run(asked, tmp_path):
    server, (answer, other) = asked["statistics"]
    (tmp_path / "run").mkdir()
    start_server(tmp_path / "run", server)
    edited(answer, {"content.null_loss": -1e9}).write(tmp_path / "forged.npz")
    other.write(tmp_path / "other.npz")
    answer.write(tmp_path / "honest.npz")
    with pytest.raises(MessageError, match=r"site A, question 'statistics': null_loss must be .* B answered"):
        step_server(tmp_path / "run", [tmp_path / "forged.npz", tmp_path / "other.npz"])
    now, _ = step_server(tmp_path / "run", [])
    assert set(now.spec.sites) - set(arrivals(tmp_path / "run", now)[0]) == {"A"}
    after, _ = step_server(tmp_path / "run", [tmp_path / "honest.npz"])
    assert after.question.name == "own_fit"


def lying(server, sites, value=None):
    """Do a run in which the first site forges the value of its answers to Firth's questions; count these."""
    exchanges = 0
    while server.outcome is None:
        answers = [site.step(server.broadcast())[1] for site in sites]
        if server.question is not None and server.question.name == "firth":
            exchanges += 1
            answers[0] = edited(answers[0], {} if value is None else {"content.value": value()})
        try:
            server = server.step(answers)
        except ValueError as error:
            return exchanges, str(error)
    return exchanges, ""


def test_a_site_that_lies_in_every_answer_cannot_keep_a_search_going(monkeypatch):
    """Answers that pass every check, and that no rows have together: an honest fit takes some 30 exchanges."""
    monkeypatch.setattr(questions, "MOST_EXCHANGES", 60)  # of 1000, for the time that it takes
    honest, words = lying(*begin("logistic", penalty="firth"))
    assert (honest < 50, words) == (True, "")
    rng = np.random.default_rng(0)
    exchanges, words = lying(*begin("logistic", penalty="firth"), lambda: float(rng.exponential(100.0)))
    assert honest < exchanges <= 60
    assert "'firth'" in words


def test_sites_that_were_told_different_noise_variances_are_named():
    X, y = rows("linear")
    sites = [
        Site(
            name,
            GLMData(
                ba.losses.LeastSquares(X[part], y[part], weights=np.full(len(y[part]), 1 / noise)), COLUMNS, (), noise
            ),
        )
        for name, part, noise in (("A", slice(0, 25), 1.0), ("B", slice(25, 60), 2.0))
    ]
    row, prior = ba.Guarded(ba.methods.Newton()), ba.families.FullGaussian(np.zeros(3), 0.0)
    server = started(sites, GLMTask(row, prior, asks=True))
    answers = [site.step(server.broadcast())[1] for site in sites]
    with pytest.raises(ValueError, match=r"noise_variance must be the same at all sites, got 1.0 at site A, 2.0 at"):
        server.step(answers)


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_an_own_fit_that_is_a_lie_does_not_end_the_run(factor):
    """Where the fit begins far away, sums overflow: it begins again without the sites' own fits."""
    rng = np.random.default_rng(1)
    Z, y = rng.normal(size=(90, 2)), np.column_stack([rng.exponential(size=90), rng.random(90) < 0.6])
    sites = []
    for name, part in (("A", slice(0, 30)), ("B", slice(30, 90))):
        loss = CoxPartialLikelihood(Z[part], y[part])
        loss.kind_name = "cox"
        sites.append(Site(name, GLMData(loss, COLUMNS[:2])))
    row, prior = ba.Guarded(ba.methods.Newton()), ba.families.FullGaussian(np.zeros(2), 0.0)
    server = started(sites, GLMTask(row, prior, tol=1e-8, asks=True))
    while server.outcome is None:
        answers = [site.step(server.broadcast())[1] for site in sites]
        if server.question is not None and server.question.name == "own_fit":
            lies = {path: factor * array for path, array in answers[0].arrays.items()}
            answers[0] = edited(answers[0], {}, lies)
        server = server.step(answers)
    assert server.outcome.status is ba.Status.CONVERGED
