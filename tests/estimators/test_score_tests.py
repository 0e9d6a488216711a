"""Rao's score tests of terms: R's numbers of published data, and UᵀI⁻¹U of statsmodels' slope and information."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

pd = pytest.importorskip("pandas")
sm = pytest.importorskip("statsmodels.api")

from bayesadmm_np.design.agreement import design  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM  # noqa: E402
from bayesadmm_np.glm import fit, hypotheses  # noqa: E402

FITS = json.loads((Path(__file__).parents[1] / "oracles" / "published.json").read_text())
RAO = [name for name, one in FITS.items() if "rao" in one]


def published(name):
    found = FITS[name]
    data = pd.DataFrame(found["data"])
    words = [column for column, cells in found["data"].items() if isinstance(cells[0], str)]
    words = [column for column in words if column in found["formula"]]
    options = {"weights": found["weights"], "kind": found["kind"], "as_written": words}
    sites = [f"s{k}" for k in np.arange(len(data)) * 3 // len(data)]
    return FederatedGLM.from_formula(found["formula"], data.assign(site=sites), client="site", **options)


@pytest.mark.parametrize("name", RAO)
def test_scores_are_rs(name):
    """anova(small, big, test = "Rao") of type II; both fits end at a deviance that is good to some twelve digits."""
    found = published(name).test_terms(how="score")
    assert [test.statistic for test in found] == pytest.approx(FITS[name]["rao"], rel=1e-7)
    assert {test.how for test in found} == {"score"}
    for test in found:
        assert test.p_value == pytest.approx(stats.chi2(test.df).sf(test.statistic), rel=1e-9)


def test_a_score_at_the_whole_fit_is_found(monkeypatch):
    """The broken twin: slope and information are those at the estimates, where the slope is zero."""

    def at_the_estimates(asked, fit, flat, full, noise, *_):
        return (yield from hypotheses.score_tests(asked, lambda _: fit(np.ones(len(flat), bool)), flat, full, noise))

    model = published("Pima.tr")
    monkeypatch.setitem(fit.REFITS, "score", at_the_estimates)
    found = [test.statistic for test in model.test_terms(how="score")]
    assert found == pytest.approx([0.0] * 7, abs=1e-6)


def rows():
    rng, n = np.random.default_rng(4), 210
    table = pd.DataFrame({"x": rng.normal(size=n).round(3), "z": rng.normal(size=n).round(3)})
    table["g"], table["site"] = rng.choice(["a", "b", "c"], n), rng.choice(["s", "t", "u"], n)
    table["days"] = rng.integers(1, 9, n)
    f = 0.5 * table["x"] - 0.4 * table["z"] * (table["g"] == "b") + 0.3 * (table["g"] == "c")
    table["died"] = (rng.random(n) < 1.0 / (1.0 + np.exp(-f))).astype(int)
    table["visits"] = rng.poisson(table["days"] * np.exp(f - 1.0))
    table["pressure"] = f + rng.normal(size=n)
    table["ward"] = np.array(["k", "l", "m"])[rng.binomial(2, 1.0 / (1.0 + np.exp(-f)))]
    return table


KINDS = {"logistic": "died", "poisson": "visits", "multinomial": "ward"}


def by_hand(kind, table, model, type_):
    """Return UᵀI⁻¹U by term, of statsmodels' slope and information at its fit of the smaller model."""
    y, X = table[KINDS[kind]], np.column_stack([design(table, model.agreement_).matrix, np.ones(len(table))])
    terms = model.agreement_.terms

    def make(columns):
        if kind == "multinomial":
            return sm.MNLogit(y.astype("category").cat.codes, X[:, columns])
        family = sm.families.Binomial() if kind == "logistic" else sm.families.Poisson()
        return sm.GLM(y, X[:, columns], family, exposure=table["days"] if kind == "poisson" else None)

    for term in terms:
        above = {j for one in terms if type_ == "II" and term.factors < one.factors for j in one.columns}
        big = [j for j in range(X.shape[1]) if j not in above]
        small = [j for j in big if j not in term.columns]
        if kind == "multinomial":
            fitted = np.asarray(make(small).fit(method="newton", disp=False, tol=1e-12, maxiter=100).params)
            at = np.zeros((len(big), fitted.shape[1]))
            at[[big.index(j) for j in small]] = fitted
            slope, information = make(big).score(at.ravel(order="F")), -make(big).hessian(at.ravel(order="F"))
        else:
            at = np.zeros(len(big))
            at[[big.index(j) for j in small]] = make(small).fit(tol=1e-14, maxiter=100).params
            slope, information = make(big).score(at, scale=1.0), -make(big).hessian(at, scale=1.0)
        yield float(slope @ np.linalg.solve(information, slope))


@pytest.mark.parametrize("type_", ["II", "III"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_slope_and_information_of_statsmodels(kind, type_):
    """With a factor, an interaction, and counts of an exposure; of the other type the main effects differ."""
    table = rows()
    options = {"exposure": "days"} if kind == "poisson" else {}
    model = FederatedGLM.from_formula(f"{KINDS[kind]} ~ x + z*g", table, "site", kind=kind, **options)
    found = [test.statistic for test in model.test_terms(how="score", type=type_)]
    assert found == pytest.approx([*by_hand(kind, table, model, type_)], rel=1e-6)
    other = [test.statistic for test in model.test_terms(how="score", type={"II": "III", "III": "II"}[type_])]
    assert found[1:3] != pytest.approx(other[1:3], rel=1e-3)
    assert [found[0], found[3]] == pytest.approx([other[0], other[3]], rel=1e-8)


@pytest.mark.parametrize("type_", ["II", "III"])
def test_of_least_squares_the_score_is_walds_f(type_):
    model = FederatedGLM.from_formula("pressure ~ x + z*g", rows(), "site", kind="linear")
    wald, score = (model.test_terms(how=how, type=type_) for how in ("wald", "score"))
    for one, other in zip(wald, score, strict=True):
        assert (other.df, other.df_residual) == (one.df, one.df_residual)
        assert [other.statistic, other.p_value] == pytest.approx([one.statistic, one.p_value], rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_superfluous_columns_change_no_score(kind):
    """A term that others make up has no test; the others have that of the formula without it."""
    table = rows().assign(twice=lambda t: 1.0 - 2.0 * t["x"], one=3.0)
    plain, more = (
        FederatedGLM.from_formula(f"{KINDS[kind]} ~ z + g + x{rest}", table, "site", kind=kind).test_terms(how="score")
        for rest in ("", " + twice + one")
    )
    assert [test.statistic for test in more[:2]] == pytest.approx([test.statistic for test in plain[:2]], rel=1e-7)
    for test in more[2:]:
        assert (test.statistic, test.df, test.how) == (None, 0, "score")
        assert test.why


@pytest.mark.filterwarnings("ignore")
def test_a_separated_model_has_scores_where_the_smaller_one_has_a_maximum():
    """Nobody died in ward c: of the ward the score is that by hand, and Wald's test has no value."""
    table = rows()
    table.loc[table["g"] == "c", "died"] = 0
    model = FederatedGLM.from_formula("died ~ x + g", table, "site", kind="logistic")
    x, g = model.test_terms(how="score")
    _, by_ward = by_hand("logistic", table, model, "III")
    assert g.statistic == pytest.approx(by_ward, rel=1e-7)
    assert model.test_terms()[1].statistic is None
    # without x the smaller model is separated too: the score is that of the rows left, or there is a reason
    left = table[table["g"] != "c"]
    other = FederatedGLM.from_formula("died ~ x + g", left, "site", kind="logistic").test_terms(how="score")[0]
    assert x.statistic == pytest.approx(other.statistic, rel=1e-5)
