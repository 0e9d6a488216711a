"""A kind of GLM from a user's own package: registered, it is fitted by estimator, command, model file and files."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln
from scipy.stats import nbinom
from sklearn.base import is_regressor

from bayesadmm_np.estimators import KINDS, FederatedGLM, heterogeneity, load_model, save_model
from bayesadmm_np.estimators.check_kind import check_kind
from bayesadmm_np.estimators.summary import as_dict
from bayesadmm_np.estimators.term_tests import wald_tests
from bayesadmm_np.glm.kinds import COUNTS, LOG, Link, Target, read_kind
from bayesadmm_np.losses import Loss, Poisson
from oracles.cohorts import cohort
from oracles.negative_binomial import NB2, FederatedNegativeBinomial, counts_of_size
from oracles.overrides import OPTIONS

SIZE = 2.0
NAME = "counts_of_size(size=2)"


@pytest.fixture
def registered(registries):
    return KINDS.register(counts_of_size)


@pytest.fixture
def counts():
    X, _, sites = cohort("poisson", sizes=(30, 25, 35))
    mean = np.exp(X @ [0.5, -0.3] + 0.4)
    y = np.random.default_rng(1).negative_binomial(SIZE, SIZE / (SIZE + mean)).astype(float)
    return X, y, sites


def pooled(X, y):
    """Maximum likelihood of the pooled rows by scipy's own density, and the inverse Hessian of statsmodels' form."""
    A = np.column_stack([X, np.ones(len(X))])

    def surprise(theta):
        mean = np.exp(A @ theta)
        return -nbinom.logpmf(y, SIZE, SIZE / (SIZE + mean)).sum()

    def slope(theta):
        mean = np.exp(A @ theta)
        return A.T @ ((mean - y) * SIZE / (SIZE + mean))

    found = minimize(surprise, np.zeros(3), jac=slope, method="BFGS", options={"gtol": 1e-9})
    mean = np.exp(A @ found.x)
    curvature = A.T @ (A * ((y + SIZE) * SIZE * mean / (SIZE + mean) ** 2)[:, None])
    return found.x, np.sqrt(np.diag(np.linalg.inv(curvature))), -found.fun


def test_the_estimators_give_the_pooled_fit(registered, counts):
    """Laplace at a prior of 1e-8, which moves nothing by 1e-6 standard errors; scipy's gradient is below 1e-6."""
    X, y, sites = counts
    theta, errors, likelihood = pooled(X, y)
    for model in (
        FederatedGLM(NAME),
        FederatedGLM(NAME, 1e-8, method="FedLapCov"),
        FederatedGLM(counts_of_size(SIZE), 1e-8, method="FedLapCov"),
        FederatedNegativeBinomial(1e-8, method="FedLapCov"),
    ):
        model.fit(X, y, client=sites)
        assert model.certificate_.holds
        found = np.append(model.coef_, model.intercept_)
        assert np.abs((found - theta) / errors).max() < 1e-5
        assert np.allclose(np.sqrt(np.diag(model.covariance_)), errors, rtol=1e-5)
        assert model.log_likelihood_ == pytest.approx(likelihood, rel=1e-10)
        assert is_regressor(model)
        assert 0.0 < model.score(X, y) < 1.0
    poisson = FederatedGLM("poisson", 1e-8, method="FedLapCov").fit(X, y, client=sites)
    assert np.abs((np.append(poisson.coef_, poisson.intercept_) - theta) / errors).max() > 1e-2  # the twin


def test_predictions_are_moments_of_the_mixture(registered, counts):
    """A mean of 4e5 counts drawn from rates drawn from the posterior, within five standard errors."""
    X, y, sites = counts
    model = FederatedGLM(NAME, 1.0, inference="posterior").fit(X, y, client=sites)
    mean, sd = model.predict(X[:1], return_std=True)
    rng = np.random.default_rng(1)
    rate = np.exp(model.posterior_.sample(rng, 400_000) @ [*X[0], 1.0])
    drawn = rng.negative_binomial(SIZE, SIZE / (SIZE + rate))
    assert abs(drawn.mean() - mean[0]) < 5 * sd[0] / np.sqrt(drawn.size)
    fourth = ((drawn - drawn.mean()) ** 4).mean()
    assert abs(drawn.var() - sd[0] ** 2) < 5 * np.sqrt(fourth / drawn.size)


def test_the_commands_the_model_file_and_a_run_by_files_know_it(registered, counts, tmp_path, bayesadmm, monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    X, y, sites = counts
    frame = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1], "stays": y, "site": sites})
    frame.to_csv("all.csv", index=False)
    options = "--prior-precision 1e-8 --method FedLapCov --no-progress --json"
    code, out, err = bayesadmm(
        "fit", "all.csv", "--target", "stays", "--client", "site", "--loss", NAME, "--out", "m.npz", *options.split()
    )
    assert code == 0, err
    theta, errors, _ = pooled(X, y)
    rows = json.loads(out)["coefficients"]
    assert np.abs((np.array([row["coef"] for row in rows]) - theta) / errors).max() < 1e-5
    model = load_model("m.npz")
    assert str(model.kind) == "counts_of_size(size=2.0)"
    assert "size 2" in bayesadmm("summary", "m.npz")[1]
    frame.head(3).drop(columns="stays").to_csv("new.csv", index=False)
    predicted = json.loads(bayesadmm("predict", "m.npz", "new.csv", "--json")[1])["predictions"]
    assert [row["mean"] for row in predicted] == pytest.approx(model.mean_and_sd(X[:3])[0].tolist(), rel=1e-12)
    assert bayesadmm("certify", "m.npz", "all.csv")[0] == 0

    for name in ("north", "south"):
        frame[frame["site"] == name].drop(columns="site").to_csv(f"{name}.csv", index=False)
        given = ("--data", f"{name}.csv", "--target", "stays", "--name", name, "--loss", NAME, *OPTIONS.split())
        assert bayesadmm("site", "init", name, *given)[0] == 0
    code, _, err = bayesadmm(
        *["server", "run", "run", "north", "south", "--method", "PVI", "--tol", "1e-9", "--no-progress"]
    )
    assert code == 0, err
    assert bayesadmm("server", "status", "run", "--target", "stays", "--out", "r.npz")[0] == 0
    two = frame[frame["site"] != "west"]
    alone = FederatedGLM(NAME, inference="posterior").fit(two[["age", "dose"]], two["stays"])
    exported = load_model("r.npz")
    assert exported.kind == alone.fitted_.kind
    sd = np.sqrt(np.diag(alone.covariance_))
    assert np.abs((exported.mean() - alone.fitted_.mean()) / sd).max() < 1e-6


@pytest.fixture
def in_a_folder(tmp_path, bayesadmm, monkeypatch):
    """Type a command in a folder of the test's own, for tables of pandas."""
    pytest.importorskip("pandas")
    pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    return lambda text: bayesadmm(*text.split())


def tables_of(counts):
    import pandas as pd

    X, y, sites = counts
    frame = pd.DataFrame({"age": X[:, 0], "dose": X[:, 1], "stays": y, "site": sites})
    frame["ward"] = np.resize(["a", "b", "c"], len(frame))
    return {name: part.drop(columns="site").reset_index(drop=True) for name, part in frame.groupby("site")}


@pytest.mark.parametrize("tests", ["lr", "score"])
def test_every_door_has_its_tests_robust_covariances_and_heterogeneity(registered, counts, in_a_folder, tests):
    """Bit for bit; of the tests the twin is a Poisson regression."""
    from oracles.doors import OTHERS, by_estimator, differing

    tables, formula = tables_of(counts), "stays~age+C(ward)"
    given = (in_a_folder, tables, formula, NAME, None, tests)
    first = by_estimator(*given)
    wald, apart = wald_tests(first), heterogeneity(first)
    assert [test.df for test in wald] == [test.df for test in first.totals.ratio_tests] == [1, 2]
    for test, other in zip(wald, first.totals.ratio_tests, strict=True):
        assert test.statistic == pytest.approx(other.statistic, rel=0.5)
    assert next(row.name for row in apart.coefficients) == "age"
    for door in OTHERS:
        model = door(*given)
        assert differing(first, model) == set(), door.__name__
        assert wald_tests(model) == wald
        assert str(heterogeneity(model)) == str(apart)
        for covariance in ("quasi", "HC0", "HC3"):  # clusters are too few
            table, own = (as_dict(one, covariance=covariance)["coefficients"] for one in (model, first))
            assert table == own
    poisson = by_estimator(in_a_folder, tables, formula, "poisson", None, tests)
    ratio = poisson.totals.ratio_tests[0].statistic / first.totals.ratio_tests[0].statistic
    assert abs(ratio - 1.0) > 1e-2


class Opaque(Poisson):
    """A loss that does not tell its rows apart."""

    rows = Loss.rows


@pytest.mark.filterwarnings("ignore")
def test_every_door_says_that_a_loss_does_not_tell_its_rows_apart(registries, counts, in_a_folder):
    """It has a fit, and no totals. Twin: a Poisson regression has them."""
    from oracles.doors import OTHERS, by_estimator

    KINDS.register(opaque)
    tables = tables_of(counts)
    models = {door: door(in_a_folder, tables, "stays~age", "opaque", None, "none") for door in (by_estimator, *OTHERS)}
    for door, model in models.items():
        assert model.totals.statistics is None, door.__name__
        np.testing.assert_array_equal(model.mean(), models[by_estimator].mean(), err_msg=door.__name__)
    assert by_estimator(in_a_folder, tables, "stays~age", "poisson", None, "none").totals.statistics is not None
    _, _, err = in_a_folder("fit north.csv south.csv --formula stays~age --loss opaque --no-progress")
    assert "does not tell its rows apart" in err


def opaque():
    """Poisson regression with the loss `Opaque`."""
    return replace(read_kind("poisson"), name="opaque", loss=Opaque)


def test_sites_of_different_options_are_refused(registered, counts, tmp_path, bayesadmm, monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"age": counts[0][:, 0], "stays": counts[1]}).to_csv("a.csv", index=False)
    for name, size in (("north", 2), ("south", 3)):
        given = ("--data", "a.csv", "--target", "stays", "--name", name, "--loss", f"counts_of_size(size={size})")
        assert bayesadmm("site", "init", name, *given)[0] == 0
    code, _, err = bayesadmm("server", "init", "run", "north/hello.npz", "south/hello.npz")
    assert code in (2, 3)
    assert "counts_of_size(size=3.0)" in err


def test_names_and_options_that_are_not_there_are_refused(registered, counts):
    X, y, sites = counts
    with pytest.raises(ValueError, match="did you mean 'negative_binomial'"):
        FederatedGLM("negative_binomal").fit(X, y, client=sites)
    with pytest.raises(ValueError, match=r"^kind .*'r'"):
        FederatedGLM("counts_of_size(r=2)").fit(X, y, client=sites)
    with pytest.raises(ValueError, match=r"^y .* -1"):
        FederatedGLM(NAME).fit(X, y - y.max() - 1, client=sites)


def test_a_model_of_a_package_that_is_not_there_is_refused(registered, counts, tmp_path):
    X, y, sites = counts
    save_model(tmp_path / "m.npz", FederatedGLM(NAME).fit(X, y, client=sites).fitted_)
    code = f"from bayesadmm_np.estimators import load_model; load_model({str(tmp_path / 'm.npz')!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "'counts_of_size'" in ran.stderr


@pytest.mark.parametrize("kind", ["logistic", "softmax", "ridge", "poisson"])
def test_every_kind_passes_the_checks(kind):
    check_kind(kind)


class WrongSlope(NB2):
    def expected_derivatives(self, predictors, weights, y):
        return super().expected_derivatives(predictors, weights, y)._replace(slope=y * 0.0)


class WrongIntegral(NB2):
    def exact(self, mean, variance, y):
        return super().exact(mean, variance, y)._replace(slope=super().exact(mean, 0 * mean, y).slope)


SOFTPLUS = Link("softplus", lambda mean: np.log(np.expm1(mean)), lambda f: np.logaddexp(0.0, f))
WRONG = {
    "gradient": {"pointwise": WrongSlope(SIZE)},
    "∇_μ E_q": {"pointwise": WrongIntegral(SIZE)},
    "link: the loss is not least": {"link": SOFTPLUS},
    "link: forward is not": {"link": replace(LOG, forward=np.sqrt)},
    "link: the mean of its moments": {"link": replace(LOG, moments=lambda m, v: (np.exp(m), v))},
    "variance: the curvature": {"variance": lambda mean, square: mean},
    "constant: the probabilities": {"constant": lambda y: gammaln(y + 1.0)},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kind_fails_the_check_by_name(what):
    check_kind(counts_of_size(SIZE))
    with pytest.raises(AssertionError, match=what):
        check_kind(replace(counts_of_size(SIZE), **WRONG[what]))


def test_a_constant_of_counts_that_was_forgotten_is_named():
    """Two targets: our own, and one in a user's words."""
    for target in (COUNTS, Target("counts >= 0", allows=lambda y: y >= 0)):
        check_kind(replace(counts_of_size(SIZE), target=target))
        with pytest.raises(AssertionError, match="constant"):
            check_kind(replace(counts_of_size(SIZE), target=target, constant=None))


def test_a_kind_is_pickled_by_its_name(registered):
    import pickle

    assert pickle.loads(pickle.dumps(read_kind(NAME))) == counts_of_size(SIZE)
