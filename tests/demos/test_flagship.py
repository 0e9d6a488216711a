"""The demonstrations on real tables, at small scale; their page; and the pieces that need no data."""

import copy
import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demos need the extra `demos`")
pytest.importorskip("tqdm", reason="the demos need the extra `demos`")

import bayesadmm_np as ba
from bayesadmm_np.data import DataUnavailableError, load_heart_disease
from bayesadmm_np.demos import credit_approval, heart_disease, reproduce, shared, tabular

ROOT = Path(__file__).parents[2]
DEMOS = {"heart": heart_disease, "credit": credit_approval}
SMALL = {
    # split 1 is the one with a single-class hospital
    "heart": {"seeds": (1,), "deltas": (1.0, 10.0)},
    # undamped PVI needs 16 rounds to 1e-6; one epoch of Adam is enough to run it
    "credit": {"seeds": (0,), "rounds": 18, "epochs": 1, "draws": 2},
}


@pytest.fixture
def small(results):
    """Compute each small demonstration once, for a test to doctor; skip where the tables are not."""

    def get(name):
        folder = os.environ.get("BAYESADMM_DATA")
        file = {"heart": "processed.cleveland.data", "credit": "cr*"}[name]
        if not folder or not any(Path(folder).glob(file)):
            pytest.skip(f"BAYESADMM_DATA does not name a folder with {file}: the {name} demonstration is not run")
        if name not in results:
            demo = DEMOS[name].DEMO
            results[name] = demo.accuracy.stated(demo.compute(**SMALL[name]))
        return copy.deepcopy(results[name])

    return get


def failing(demo, numbers):
    return [text for text, holds, _ in demo.claims(numbers) if not holds]


# With the tables -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEMOS)
def test_the_claims_hold(small, name):
    numbers = small(name)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    claims = DEMOS[name].claims(numbers)
    assert claims
    assert [f"{text}: {measured}" for text, holds, measured in claims if not holds] == []


@pytest.mark.parametrize("name", DEMOS)
def test_the_results_file_is_the_demonstrations_own(small, name, monkeypatch, tmp_path):
    numbers, demo = small(name), DEMOS[name].DEMO
    monkeypatch.setattr(DEMOS[name], "DEMO", replace(demo, compute=lambda track: numbers))
    assert reproduce.reproduce([name], out=tmp_path, progress=False, echo=lambda _: None)
    stem = demo.name
    assert {path.name for path in tmp_path.iterdir()} == {f"{stem}.svg", f"{stem}.png", f"{stem}.json"}
    read = shared.read_results(tmp_path / f"{stem}.json")[name]["numbers"]
    assert DEMOS[name].tables(read) == DEMOS[name].tables(numbers)


def test_heart_claims_fail_on_doctored_results(small):
    def doctored(key, label, **changes):
        numbers = small("heart")
        heart_disease.by_label(numbers[key])[label] |= changes
        return failing(heart_disease, numbers)

    for label in (tabular.PVI, heart_disease.OWN, tabular.BAYESADMM, tabular.ACCELERATED, tabular.COV_FULL):
        for changes in ({"distance": 2e-6}, {"spread": 2e-6}):
            assert [text.startswith(f"{label} is the pooled") for text in doctored("summaries", label, **changes)] == [
                True
            ]
    assert len(doctored("curves", tabular.FEDAVG, distance=[1.0, 0.01])) == 1
    assert len(doctored("summaries", tabular.FEDLAP, failures=1)) == 1
    numbers = small("heart")
    for hospital in numbers["hospitals"]:
        hospital["classes"] = 2
    assert len(failing(heart_disease, numbers)) == 1
    numbers = small("heart")
    for evidence in numbers["evidence"]:
        evidence["one"], evidence["four"] = evidence["four"], evidence["one"]
    assert len(failing(heart_disease, numbers)) == 1


def test_credit_claims_fail_on_doctored_results(small):
    def doctored(label, **changes):
        numbers = small("credit")
        credit_approval.by_label(numbers["unequal"])[label, credit_approval.EXACT] |= changes
        return failing(credit_approval, numbers)

    assert len(doctored(tabular.PVI, distance=[1.0, 2e-6])) == 1
    assert len(doctored(tabular.ACCELERATED, spread=2e-6)) == 1
    assert len(doctored(tabular.FEDAVG, distance=[1.0, 0.01])) == 1
    assert len(doctored(tabular.COV, distance=[1.0, 0.0])) == 1


def test_the_pooled_mode_is_that_of_scikit_learn(small):
    """An independent library at the same penalty: the intercept is a column, and penalised like the others."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    small("heart")
    pooled = load_heart_disease(seed=1).pooled()
    X = shared.with_ones(pooled.X)
    delta = 10.0
    mode = tabular.pooled([ba.losses.Logistic(X, pooled.y)], ba.families.FullGaussian(np.zeros(14), delta)).laplace
    peer = linear_model.LogisticRegression(C=1 / delta, fit_intercept=False, tol=1e-10, max_iter=1000)
    found = peer.fit(X, pooled.y).coef_[0]
    # lbfgs stops at a gradient of 1e-10, and the curvature is at least δ
    np.testing.assert_allclose(mode.mean, found, rtol=0, atol=1e-6)
    other = linear_model.LogisticRegression(C=delta, fit_intercept=False, tol=1e-10, max_iter=1000)
    assert np.abs(mode.mean - other.fit(X, pooled.y).coef_[0]).max() > 1e-2


# The page ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("flagship_page", ROOT / "docs" / "flagship.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_page_are_those_of_the_results(page):
    text = page.PAGE.read_text(encoding="utf-8")
    known = page.tables()
    assert {name for _, name, *_ in page.TABLE.findall(text)} == set(known)
    assert page.filled(text, known) == text, "run python docs/flagship.py"
    for name, table in known.items():
        altered = known | {name: table.replace("0", "1", 1)}
        assert page.filled(text, altered) != text


def committed(name):
    return shared.read_results(ROOT / "figures" / f"{DEMOS[name].DEMO.name}.json")[name]["numbers"]


def test_the_numbers_in_the_prose_are_those_of_the_results(page):
    text = " ".join(page.PAGE.read_text(encoding="utf-8").split())
    heart, credit = committed("heart"), committed("credit")
    gain = min(max(evidence["four"]) - max(evidence["one"]) for evidence in heart["evidence"])
    assert f"rises by at least {gain:.1f} nats" in text
    own = np.min([heart["intervals"][hospital["name"]]["sd"][:13] for hospital in heart["hospitals"]], axis=0)
    narrowing = np.median(np.array(heart["intervals"]["federated"]["sd"][:13]) / own)
    assert f"has {narrowing:.2f} times the standard error" in text
    one = {summary["label"]: summary["scores"]["all"]["accuracy"][0] for summary in heart["summaries"]}
    assert f"the pooled mode itself has {100 * one['pooled mode']:.0f} % on these splits" in text
    floats = {curve["label"]: curve["floats_per_round"] for curve in heart["curves"]}
    assert f"sends {floats['PVI'] / floats['FedAvg']:.1f} times the numbers" in text
    mode, mean = credit["pooled"]["pooled mode"], 100 * np.array(credit["draws"]["accuracy"])
    assert f"has a test NLL of {mode['nll']:.3f}" in text
    assert f"the pooled mode has {100 * mode['accuracy']:.1f} % there" in text
    assert f"draws of the test rows {mean[0]:.1f} ({mean[1]:.1f}) %, at most {mean[3]:.1f} %" in text


# Without the tables --------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEMOS)
def test_missing_tables_are_named_before_anything_is_written(name, monkeypatch, tmp_path):
    pooch = pytest.importorskip("pooch")

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))
    file = {"heart": r"processed\.cleveland\.data", "credit": r"crx\.data"}[name]
    with pytest.raises(DataUnavailableError, match=file):
        reproduce.reproduce([name], out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_scores_by_hand():
    found = tabular.scores(np.array([0.8, 0.4, 0.1]), np.array([1, 1, 0]))
    assert found["rows"] == 3
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx(-np.log([0.8, 0.4, 0.9]).mean())
    assert found["brier"] == pytest.approx((0.04 + 0.36 + 0.01) / 3)


def test_the_calibration_error_by_hand():
    p = np.array([0.05, 0.05, 0.95, 1.0])
    site = SimpleNamespace(y_test=np.array([0, 1, 1, 1]))
    found = heart_disease.reliability("a", [{"predictions": {"a": [p]}, "sites": [site]}])
    assert found["rows"] == [2, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert found["observed"][0] == 0.5
    assert found["observed"][1] is None
    assert found["ece"] == pytest.approx((2 * 0.45 + 2 * 0.025) / 4)


def subproblem(family, rule, dim=3):
    """A client in the middle of a run: server and dual are not at their starting values."""
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(3):
        X = rng.normal(size=(12, dim))
        losses.append(ba.losses.Logistic(X, (X @ [1.0, -1.0, 0.5] + rng.normal(size=12) > 0).astype(int)))
    method = ba.methods.FedLapCov(0.5) if family is ba.families.FullGaussian else ba.methods.FedLap(0.5)
    result = ba.run(method, losses, family(np.zeros(dim), 2.0), rounds=2)
    return ba.clients.Subproblem(losses[0], rule, result.posterior, result.sites[0], 1.0)


FAMILIES = [
    (ba.families.FullGaussian, ba.losses.Delta(2)),
    (ba.families.FixedPrecisionGaussian, ba.losses.Delta(1)),
]


@pytest.mark.parametrize(("family", "rule"), FAMILIES)
def test_local_adam_with_many_small_steps_is_the_exact_solve(family, rule):
    problem = subproblem(family, rule)
    rng = np.random.default_rng(0)
    exact = ba.clients.VariationalNewton(1e-10).solve(problem, problem.anchor, rng).posterior
    adam = tabular.LocalAdam(epochs=3000, batch=12)
    found = adam.solve(problem, problem.anchor, rng)
    # full batches: Adam ends by swinging about the minimum with an amplitude below its step of 1e-3
    np.testing.assert_allclose(found.posterior.mean, exact.mean, rtol=0, atol=1e-3)
    assert np.abs(problem.anchor.mean - exact.mean).max() > 1e-2
    short = tabular.LocalAdam(epochs=1, batch=4).solve(problem, problem.anchor, rng).posterior
    # 3 steps of at most about 1e-3 each
    assert np.abs(short.mean - problem.anchor.mean).max() < 5e-3
    if family is ba.families.FullGaussian:
        hessian = problem.loss.hessian(found.posterior.mean)
        (curvature,) = problem.site.parts[1:]
        wanted = problem.anchor.precision + hessian - curvature
        np.testing.assert_allclose(found.posterior.precision, wanted, rtol=0, atol=1e-10)
