"""A separated fit is the fit of what is finite, at every door: R's and statsmodels' numbers of the rows left."""

import numpy as np
import pytest
import statsmodels.api as sm

pd = pytest.importorskip("pandas", reason="tables of sites")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM, SeparationWarning, load_model, save_model  # noqa: E402
from bayesadmm_np.estimators.from_run import fitted_run  # noqa: E402
from bayesadmm_np.federation import Coordinator, DisclosureRules, GLMTable, GLMTask, Site, final_result  # noqa: E402
from bayesadmm_np.federation.ledger import Ledger  # noqa: E402
from bayesadmm_np.glm.diagnosis import Undecided  # noqa: E402
from bayesadmm_np.splitting.status import Status  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402

CLOSE = 1e-7
"""Of a standard error and of a nat: what statsmodels' last step leaves."""

KINDS = ("logistic", "poisson", "multinomial")
SITES = "ABCDE"


def cohort(seed):
    """Return a table and its options: one or two levels that separate, offsets, weights, a collinear column, 1-5 sites.

    In levels c and d every row is an event, has no event, or lacks the last class.
    """
    rng = np.random.default_rng(seed)
    n, kind = 240, KINDS[seed % 3]
    table = pd.DataFrame({"z": rng.normal(size=n).round(3), "k": rng.choice(list("abcd"), n, p=[0.4, 0.3, 0.15, 0.15])})
    table["site"] = rng.choice(list(SITES[: 1 + seed % 5]), n)
    table["o"] = rng.normal(0.0, 10.0 if seed % 6 == 1 else 0.5, n).round(3)
    table["w"] = rng.integers(1, 4, n)
    table["twice"] = 1.0 + 2.0 * table["z"]
    lost = table["k"].isin(["c", "d"][: 1 + seed % 2])
    f = 0.4 * table["z"] + 0.2 + (0.0 if kind == "multinomial" else table["o"])
    if kind == "poisson":
        table["y"] = np.where(lost, 0, rng.poisson(np.exp(np.clip(f, None, 9.0))))
    elif kind == "logistic":
        table["y"] = np.where(lost, 1, rng.random(n) < 1.0 / (1.0 + np.exp(-f))).astype(int)
    else:
        table["y"] = np.where(lost, rng.integers(0, 2, n), rng.integers(0, 3, n))
    formula = "y ~ z + C(k)" + " + twice" * (seed % 4 == 2) + " + offset(o)" * (kind != "multinomial")
    return table, kind, formula, "w" if seed % 7 == 3 else None, lost


def in_process(table, kind, formula, weights):
    with pytest.warns(SeparationWarning):
        return FederatedGLM.from_formula(formula, table, "site", kind=kind, weights=weights).fitted_


def between_sites(table, kind, formula, weights, rules=ALLOWED, **options):
    """Return the model of a run by messages."""
    sites = [
        Site(name, GLMTable(part.drop(columns="site"), formula, kind, weights=weights), rules=rules)
        for name, part in table.groupby("site")
    ]
    task = GLMTask(
        ba.Guarded(ba.methods.Newton()),
        lambda d: ba.families.FullGaussian(np.zeros(d), 0.0),
        tol=1e-8,
        asks=True,
        **options,
    )
    server = Coordinator.start([site.hello() for site in sites], task)
    while server.outcome is None:
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        server = server.step([site.cleared(reply, Ledger())[0] for site, reply in zip(sites, replies, strict=True)])
    result = final_result(server.broadcast(), server)
    return fitted_run(result.spec, result, dict(zip(server.spec.sites, server.rows, strict=True)), server.state.history)


def oracle(table, kind, weights, lost):
    """Return statsmodels' fit of the rows that do not separate, and its loss of the null model of all rows."""
    rows = table[~lost]
    family = sm.families.Poisson() if kind == "poisson" else sm.families.Binomial()
    X = np.column_stack([rows["z"], *((rows["k"] == k) for k in "bcd" if (rows["k"] == k).any()), np.ones(len(rows))])
    w = np.ones(len(table)) if weights is None else table[weights]

    def fit(X, rows):
        model = sm.GLM(rows["y"], X.astype(float), family=family, offset=rows["o"], freq_weights=w[rows.index])
        return model.fit(tol=1e-14, maxiter=300)

    return fit(X, rows), fit(np.ones((len(table), 1)), table)


def estimates(model):
    """Return the coefficients that the rows determine, by name, with their standard errors, in the columns' units."""
    known = model.determines(model.layout.homeward)
    numbers = zip(model.mean(), np.sqrt(np.diagonal(model.covariance())), strict=True)
    named = zip(model.coefficient_names, numbers, known, strict=True)
    return {name: pair for name, pair, is_known in named if is_known}


@pytest.mark.parametrize("seed", range(12))
def test_a_separated_fit_is_that_of_the_rows_that_are_left_at_both_doors(seed, tmp_path):
    table, kind, formula, weights, lost = cohort(seed)
    one, other = in_process(table, kind, formula, weights), between_sites(table, kind, formula, weights)
    save_model(tmp_path / "model.npz", other)
    for model in (one, other, load_model(tmp_path / "model.npz")):
        assert model.record.status is Status.NO_MAXIMUM
        assert not model.holds
        assert [finding.code for finding in model.findings if finding.code != "digits"] == (
            ["collinear"] * ("twice" in formula) + ["separation"]
        )
    own, theirs = estimates(one), estimates(other)
    assert own.keys() == theirs.keys()
    for name, (coef, error) in own.items():
        assert theirs[name] == pytest.approx((coef, error), rel=1e-9, abs=1e-9 * error)
    again = estimates(load_model(tmp_path / "model.npz"))
    assert again.keys() == theirs.keys()
    assert all(again[name] == pytest.approx(theirs[name], rel=1e-9) for name in theirs)
    whole, again = one.goodness(), other.goodness()
    fields = ("deviance", "null_deviance", "log_likelihood", "aic", "bic", "n_parameters", "df_residual")
    for name in fields:
        assert getattr(again, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-9)
    n_levels = len(set(table["k"]))
    assert whole.n_parameters == (1 + n_levels) * (2 if kind == "multinomial" else 1)  # R counts what is infinite
    if kind == "multinomial":
        return
    left, null = oracle(table, kind, weights, lost)
    gone = ["c", "d"][: 1 + seed % 2]
    kept = [f"C(k)[T.{k}]" for k in "bcd" if k not in gone]
    names = [*([] if "twice" in formula else ["z"]), *kept, "(intercept)"]
    if "twice" in formula:  # z and the intercept are not determined beside it
        assert set(own) == set(kept)
    else:
        assert set(own) == set(names)
    order = ["z", *kept, "(intercept)"]
    for name, coef, error in zip(order, left.params, left.bse, strict=True):
        if name in own:
            assert abs(own[name][0] - coef) < CLOSE * error
            assert own[name][1] == pytest.approx(error, rel=1e-6)
    assert whole.deviance == pytest.approx(left.deviance, rel=1e-9, abs=1e-8)
    assert whole.null_deviance == pytest.approx(null.deviance, rel=1e-9)
    # the rows that separate lose nothing, but have a constant of their own: log y! of a count of 0 is 0
    assert whole.log_likelihood == pytest.approx(left.llf, rel=1e-9)


R = {
    "logistic": (
        (254.527942318, 326.668585392, 264.527942318, 281.931136935),
        {"z": (0.492521787452, 0.155036619401), "(intercept)": (-0.328734261159, 0.22401214254)},
    ),
    "poisson": (
        (2786686.73038, 6032016.60746, 2787357.80477, 2787375.20796),
        {"z": (-2.42690807411, 0.00215002035367), "(intercept)": (-9.56341735281, 0.00332764548428)},
    ),
}
"""glm(y ~ z + k, binomial) of cohort(0), glm(y ~ z + k + offset(o), poisson) of cohort(1), epsilon 1e-14, maxit 200.

Deviance, null deviance, AIC, BIC, and two rows of coef(summary()). Offsets of the second have a standard deviation of
10: rounds stop far from its limit.
"""


@pytest.mark.parametrize("kind", R)
def test_r_prints_the_same(kind):
    table, *_ = cohort(list(R).index(kind))
    model = in_process(table, kind, "y ~ z + C(k)" + " + offset(o)" * (kind == "poisson"), None)
    whole, found = model.goodness(), estimates(model)
    facts, rows = R[kind]
    assert (whole.deviance, whole.null_deviance, whole.aic, whole.bic) == pytest.approx(facts, rel=1e-10)
    for name, row in rows.items():
        assert found[name] == pytest.approx(row, rel=1e-8)


@pytest.mark.parametrize(
    ("seed", "kind", "more", "said"),
    [
        (0, "logistic", "", (10.91712374, 64.11773434)),
        (1, "poisson", " + offset(o)", (978081.0508, 96437.6565)),
    ],
)
def test_likelihood_ratios_are_those_of_r(seed, kind, more, said):
    """drop1(glm(...), test = "LRT"): the model without the factor has a maximum, that without z has none."""
    table, *_ = cohort(seed)
    formula = f"y ~ z + C(k){more}"
    with pytest.warns(SeparationWarning):
        fit = FederatedGLM.from_formula(formula, table, "site", kind=kind)
    ours = {test.name: test for test in fit.test_terms(how="lr")}
    theirs = {test.name: test for test in between_sites(table, kind, formula, None, tests="lr").totals.ratio_tests}
    for name, df, statistic in zip(("z", "C(k)"), (1, 3), said, strict=True):
        for test in (ours[name], theirs[name]):
            assert test.df == df
            assert test.statistic == pytest.approx(statistic, rel=1e-9)


def test_counts_that_are_all_zero_have_a_null_model():
    """R: null deviance 0, AIC 2p; every coefficient is infinite."""
    table, *_ = cohort(1)
    for formula in ("y ~ z", "y ~ z + offset(o)"):
        for door in (in_process, between_sites):
            model = door(table.assign(y=0), "poisson", formula, None)
            whole = model.goodness()
            assert (whole.null_deviance, whole.deviance) == pytest.approx((0.0, 0.0), abs=1e-9)
            assert whole.aic == pytest.approx(4.0, abs=1e-9)
            assert whole.r_squared is None
            assert not model.determines(np.eye(2)).any()


@pytest.mark.parametrize("seed", [0, 4, 5])
def test_the_usual_rules_of_sites_allow_the_limit_of_a_quasi_complete_separation(seed):
    table, kind, formula, weights, _ = cohort(seed)
    table["site"] = np.resize(list("ABC"), len(table))
    usual, free = (between_sites(table, kind, formula, weights, rules) for rules in (DisclosureRules(), ALLOWED))
    assert usual.goodness() == free.goodness()
    assert estimates(usual) == estimates(free)


def test_collinear_least_squares_has_its_relation_at_both_doors():
    """The broken twin is the covariance, which has a number for each coefficient that no row determines."""
    table, *_ = cohort(0)
    formula = "o ~ z + twice + w"
    with pytest.warns(UserWarning, match="twice = 1 \\+ 2·z"):
        one = FederatedGLM.from_formula(formula, table, "site", kind="linear").fitted_
    other = between_sites(table, "linear", formula, None)
    assert [str(finding) for finding in one.findings] == [str(finding) for finding in other.findings] != []
    for model in (one, other):
        L = model.layout.homeward
        assert model.determines(L).tolist() == [False, False, True, False]
        # at z = 1 a prediction is determined where twice = 3
        assert model.determines(np.array([[1.0, 3.0, 0.0, 1.0], [1.0, 2.0, 0.0, 1.0]]) @ L).tolist() == [True, False]
        assert np.isfinite(model.spread).all()


def test_a_limit_that_is_not_reached_has_no_numbers(monkeypatch):
    from bayesadmm_np.glm import limit

    monkeypatch.setattr(limit, "MOST_STEPS", 1)
    table, kind, formula, *_ = cohort(0)
    for door in (in_process, between_sites):
        model = door(table, kind, formula, None)
        assert isinstance(model.findings[-1], Undecided)
        assert not model.determines(np.eye(model.layout.dim)).any()
        assert model.goodness() is None


def test_directions_go_with_the_intercepts_origin():
    """`uncentred` has its intercept where columns are zero; the broken twin keeps the directions of the centred θ."""
    table, kind, formula, weights, _ = cohort(0)
    model = in_process(table, kind, formula, weights)
    assert model.layout.centre is not None
    L = model.layout.homeward
    home = model.uncentred
    assert home.determines(np.eye(model.layout.dim)).tolist() == model.determines(L).tolist()
    twin = model.determines(np.eye(model.layout.dim))
    assert twin.tolist() != model.determines(L).tolist()
