"""Models with a random intercept are lme4's: REML, maximum likelihood, Laplace and quadrature, by every door."""

import json
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM  # noqa: E402
from bayesadmm_np.estimators.check_kind import check_kind  # noqa: E402
from bayesadmm_np.glm.kinds import read_kind  # noqa: E402
from oracles.by_files import SITES  # noqa: E402
from oracles.doors import OTHERS, by_estimator, differing  # noqa: E402

ORACLE = json.loads((Path(__file__).parents[1] / "oracles" / "menu_mixed.json").read_text())
FITS = ORACLE["fits"]
MOST = 12
"""Exchanges of a fit, with those for its certificate; more where Newton's method crosses τ = 0 to and fro."""


def kind_of(fit):
    if fit["kind"] == "linear":
        return "mixed_linear" if fit["reml"] else "mixed_linear(reml=0)"
    return f"mixed_logistic(nodes={fit['nodes']})"


def table_of(fit):
    """Return a table of whole groups at four unequal sites, with a share and a weight in place of events and trials."""
    table = pd.DataFrame(ORACLE["tables"][fit["data"]])
    codes = pd.factorize(table[fit["group"]])[0]
    turned = np.random.default_rng(5).permutation(codes.max() + 1)[codes]
    table["at"] = np.array(list("ABCD"))[np.searchsorted([0.1, 0.3, 0.6], (turned + 0.5) / (codes.max() + 1))]
    if fit.get("events"):
        table["period"] = "p" + table["period"]
        table[fit["events"]] = table[fit["events"]] / table[fit["trials"]]
    return table


def fitted(fit, kind=None):
    formula = f"{fit['formula']} + (1 | {fit['group']})"
    weights = fit["trials"] if fit.get("events") else None
    return FederatedGLM.from_formula(formula, table_of(fit), client="at", kind=kind or kind_of(fit), weights=weights)


def numbers(model):
    """Return coefficients and standard errors in R's order, the intercept first."""
    fit = model.fitted_
    places = [fit.layout.dim - 1, *range(fit.columns.n_auxiliary, fit.layout.dim - 1)]
    return np.r_[model.intercept_, model.coef_.ravel()], np.sqrt(np.diagonal(model.covariance_))[places]


def spreads(model):
    """Return the standard deviations of groups and residuals."""
    own = [*model.auxiliary_.values()]
    return (own[0],) if len(own) == 1 else (own[0] * np.exp(own[1]), np.exp(own[1]))


@pytest.mark.filterwarnings("ignore:.*singular")
@pytest.mark.parametrize("name", FITS)
def test_a_fit_is_lme4s(name):
    """Coefficients to 1e-7 standard errors, and these to the digits of the reference.

    Of lmer 1e-9. Of glmer R's Richardson differences agree to 2e-7 for two step lengths. With one node its determinant
    is that before the last step to the modes, so that standard errors move by 2e-4 where that tolerance is 1e-10.
    """
    fit = FITS[name]
    model = fitted(fit)
    coef, errors = numbers(model)
    assert model.fitted_.holds
    assert model.fitted_.record.rounds <= MOST + 4 * (name in ("singular 1", "singular 10"))
    assert (np.abs(coef - fit["coef"]) / fit["std_err"]).max() < 1e-7
    assert np.abs(errors / fit["std_err"] - 1.0).max() < {None: 1e-9, 1: 1e-6, 10: 2e-7}[fit.get("nodes")]
    assert spreads(model)[0] == pytest.approx(fit["sd_group"], rel=1e-7, abs=1e-6)
    if fit["kind"] == "linear":
        assert spreads(model)[1] == pytest.approx(fit["sigma"], rel=1e-8)
    whole = model.fitted_.goodness()
    if not fit.get("events"):  # R has the numbers of ways to choose the events, and with nodes another constant
        assert whole.log_likelihood == pytest.approx(fit["log_likelihood"], abs=1e-7)
        assert whole.deviance == pytest.approx(-2.0 * fit["log_likelihood"], abs=2e-7)
        assert whole.n_parameters == len(coef) + len(spreads(model))


def test_the_reference_is_finer_than_lme4s_own_errors():
    """Standard errors that lme4 prints are of coarser differences, and would fail the test above."""
    apart = [np.abs(np.divide(fit["lme4_std_err"], fit["std_err"]) - 1.0).max() for fit in FITS.values()]
    assert max(apart) < 1e-5
    assert sum(one > 1e-7 for one in apart) >= 4


def test_reml_and_nodes_are_other_numbers():
    """The twin: each option's numbers are off from the other's reference by far more than the tolerance."""
    for first, second, least in (("sleepstudy REML", "sleepstudy ML", 1e-3), ("bacteria 1", "bacteria 10", 1e-3)):
        errors = numbers(fitted(FITS[first]))[1]
        assert np.abs(errors / FITS[second]["std_err"] - 1.0).max() > least


@pytest.mark.parametrize("name", [name for name, fit in FITS.items() if fit["lr"] and not fit.get("events")])
@pytest.mark.filterwarnings("ignore:.*singular")
def test_likelihood_ratios_of_terms(name):
    found = {test.name: test.statistic for test in fitted(FITS[name]).test_terms(how="lr")}
    assert found == pytest.approx(FITS[name]["lr"], rel=1e-6)


@pytest.mark.parametrize("name", ["sleepstudy REML", "Pastes ML", "bacteria 1", "cbpp 10"])
def test_modes_of_groups_are_at_the_sites(name):
    fit = FITS[name]
    model, table = fitted(fit), table_of(fit)
    found = {}
    for site, loss in zip("ABCD", model.losses(), strict=True):
        labels = np.unique(table[fit["group"]][table["at"] == site].astype(str))
        found |= dict(zip(labels, loss.modes(model.fitted_.posterior.mean), strict=True))
    expected = dict(zip(fit["groups"], fit["modes"], strict=True))
    assert found == pytest.approx(expected, abs=1e-5 * fit["sd_group"])


@pytest.mark.parametrize("name", ["Dyestuff2 REML", "Dyestuff2 ML", "singular 1", "singular 10"])
def test_a_singular_fit_is_said(name):
    with pytest.warns(UserWarning, match="The fit is singular: groups differ no more"):
        model = fitted(FITS[name])
    assert model.fitted_.holds
    assert spreads(model)[0] < 1e-6


def test_the_report_has_what_lme4_has():
    text = str(fitted(FITS["sleepstudy REML"]).summary())
    for said in (
        "REML criterion:",
        "1786.47",
        "Groups:",
        " 18\n",
        "Sd of groups:",
        "37.1238",
        "30.9912",
        "ICC:",
        "0.5893",
    ):
        assert said in text
    assert "restricted maximum likelihood" in text
    assert "Deviance" not in text
    tau = FITS["bacteria 1"]["sd_group"]
    assert f"{tau**2 / (tau**2 + np.pi**2 / 3):.6g}" in str(fitted(FITS["bacteria 1"]).summary())
    other = str(fitted(FITS["sleepstudy ML"]).summary())
    assert "1794.08" in other
    assert "LR χ², P:" in other
    assert "REML" not in other


def test_fits_by_reml_do_not_compare():
    model = fitted(FITS["sleepstudy REML"])
    for how in ("lr", "score"):
        with pytest.raises(ValueError, match="fits by REML do not compare"):
            model.test_terms(how=how)
    with pytest.raises(ValueError, match="unless the fit is by maximum likelihood"):
        model.summary(intervals="profile")
    assert model.test_terms()[0].statistic == pytest.approx(numbers(model)[0][1] ** 2 / numbers(model)[1][1] ** 2)


def test_options_are_part_of_the_name():
    assert str(read_kind("mixed_linear(reml=1)")) == "mixed_linear"
    assert str(read_kind("mixed_logistic(nodes=7)")) == "mixed_logistic(nodes=7.0)"


def test_columns_far_from_zero():
    """Columns are measured at their means: one at 10⁶ with a deviation of 10⁻³ costs no digit that its rounding has."""
    table = table_of(FITS["sleepstudy REML"])
    table["Days"] = 1e6 + 1e-3 * table["Days"]
    moved = FederatedGLM.from_formula("Reaction ~ Days + (1 | Subject)", table, client="at", kind="mixed_linear")
    model = fitted(FITS["sleepstudy REML"])
    assert moved.fitted_.record.rounds == model.fitted_.record.rounds
    assert 1e-3 * moved.coef_[0] == pytest.approx(model.coef_[0], rel=1e-7)
    assert [*moved.auxiliary_.values()] == pytest.approx([*model.auxiliary_.values()], rel=1e-7)


def test_an_offset_is_taken_off_the_target():
    whole = {name: table.assign(z=np.linspace(0, 5, len(table))) for name, table in tables(False).items()}
    moved = {name: table.assign(y=table["y"] + table["z"]) for name, table in whole.items()}
    first = FederatedGLM.from_formula("y ~ age + (1 | ward)", whole, kind="mixed_linear")
    second = FederatedGLM.from_formula("y ~ age + offset(z) + (1 | ward)", moved, kind="mixed_linear")
    assert numbers(second)[0] == pytest.approx(numbers(first)[0], rel=1e-10)
    assert spreads(second) == pytest.approx(spreads(first), rel=1e-10)


def test_the_site_may_be_the_group():
    """A column `site` that no table has is the site itself: each site is a group."""
    parts = tables(True)
    named = pd.concat([table.assign(at=name) for name, table in parts.items()])
    by_site = FederatedGLM.from_formula("y ~ sex + (1 | site)", parts, kind="mixed_logistic")
    by_column = FederatedGLM.from_formula("y ~ sex + (1 | at)", named, kind="mixed_logistic")
    assert numbers(by_site)[0] == pytest.approx(numbers(by_column)[0], rel=1e-7)
    assert "Groups:" in str(by_site.summary())


@pytest.mark.parametrize("kind", ["mixed_linear", "mixed_logistic"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.assign(g=np.arange(len(table)) % 7), "must lie in one site each"),
        (lambda table: table.assign(g="one", at="A"), "two groups at least"),
        (lambda table: table.assign(g=None), "names no group"),
        (lambda table: table.assign(x2=2 * table["x"]), "X must"),
    ],
)
def test_what_is_refused(kind, change, says):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"x": rng.normal(size=60), "g": np.arange(60) // 4, "at": np.array(list("AB"))[np.arange(60) // 32]}
    )
    table["y"] = rng.integers(0, 2, 60)
    table = change(table)
    formula = "y ~ x + x2 + (1 | g)" if "x2" in table else "y ~ x + (1 | g)"
    with pytest.raises(ValueError, match=says):
        FederatedGLM.from_formula(formula, table, client="at", kind=kind)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.assign(g=np.arange(60)), "must have groups of several rows"),
        (lambda table: table.assign(y=3.0 + 2.0 * table["x"]), "must leave residuals"),
        (lambda table: table.assign(y=table["g"] % 3 + table["x"]), "must leave residuals"),
        (lambda table: table.assign(w=2.0), "weights must be left out"),
    ],
)
def test_what_the_linear_one_refuses(change, says):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=60), "g": np.arange(60) // 4, "y": rng.normal(size=60)})
    table = change(table)
    with pytest.raises(ValueError, match=says):
        FederatedGLM.from_formula("y ~ x + (1 | g)", table, kind="mixed_linear", weights="w" if "w" in table else None)


def test_the_response_is_checked():
    X = np.arange(8.0)[:, None]
    y = np.column_stack([np.arange(8) % 3, np.arange(8) // 2])
    with pytest.raises(ValueError, match="1 for an event, else 0"):
        FederatedGLM("mixed_logistic").fit(X, y)
    with pytest.raises(ArgumentError, match="must have 2 columns"):
        FederatedGLM("mixed_logistic").fit(X, y[:, :1])


def test_predictions_are_of_a_new_group():
    """Means are those where the intercept of a group is zero; a new row varies by its group, its noise and the fit."""
    fit = FITS["sleepstudy REML"]
    model = fitted(fit)
    coef, _ = numbers(model)
    days = np.array([0.0, 4.0])
    mean, sd = model.fitted_.mean_and_sd({"Days": days})
    assert mean == pytest.approx(coef[0] + coef[1] * days, rel=1e-12)
    rows = np.column_stack([days, np.ones(2)])
    of_mean = np.einsum("ij,jk,ik->i", rows, model.covariance_[2:, 2:], rows)
    assert sd**2 == pytest.approx(fit["sd_group"] ** 2 + fit["sigma"] ** 2 + of_mean, rel=1e-8)
    events = fitted(FITS["bacteria 10"])
    table = table_of(FITS["bacteria 10"]).drop(columns=["y", "ID", "at"])
    assert events.fitted_.expected(table).mean() == pytest.approx(0.83, abs=0.02)


@pytest.mark.parametrize("name", ["sleepstudy ML", "InstEval ML", "bacteria 1"])
def test_rows_certify_a_fit(name):
    model = fitted(FITS[name])
    check = model.fitted_.check(dict(zip("ABCD", model.losses(), strict=True)))
    assert check.pooled < 1e-8
    assert max(check.apart.values()) < 1e-8


def test_sites_have_no_fits_of_their_own():
    assert all(site.own is None for site in fitted(FITS["bacteria 1"]).fitted_.sites.values())


@pytest.mark.parametrize("name", ["mixed_linear", "mixed_linear(reml=0)", "mixed_logistic", "mixed_logistic(nodes=4)"])
def test_the_kinds_are_kinds(name):
    check_kind(name)


def test_a_separated_outcome_has_no_number():
    """A column that is the outcome has no finite coefficient; groups of one outcome have an estimate, as in lme4."""
    table = pd.DataFrame({"g": np.arange(80) // 8}).assign(y=lambda rows: rows["g"] % 2, x=lambda rows: 1.0 * rows["y"])
    with pytest.warns(UserWarning, match="no maximum.*standard deviation of groups grows without end"):
        model = FederatedGLM.from_formula("y ~ x + (1 | g)", table, kind="mixed_logistic")
    assert np.isnan(model.coef_).all()
    table["x"] = np.random.default_rng(0).normal(size=80)
    found = FederatedGLM.from_formula("y ~ x + (1 | g)", table, kind="mixed_logistic(nodes=9)")
    assert found.auxiliary_["sd of groups"] == pytest.approx(209.481, abs=1e-3)  # lme4's


# ----------------------------------------------------------------------------------------------------
# Doors
# ----------------------------------------------------------------------------------------------------


def tables(is_event):
    rng = np.random.default_rng(1)
    n = 240
    table = pd.DataFrame({"age": rng.normal(60, 9, n).round(1), "sex": rng.choice(["f", "m"], n)})
    codes = np.sort(rng.integers(0, 40, n))
    table["ward"] = [f"w{code}" for code in codes]
    mean = 0.05 * (table["age"] - 60) + rng.normal(size=40)[codes] + 0.5 * (table["sex"] == "m")
    noise = rng.logistic(size=n)
    table["y"] = (mean + noise > 0).astype(int) if is_event else (mean + noise).round(3)
    ends = [0, *np.searchsorted(codes, [8, 20]), n]
    return {name: table[ends[k] : ends[k + 1]].reset_index(drop=True) for k, name in enumerate(SITES)}


@pytest.mark.parametrize("door", OTHERS, ids=lambda door: door.__name__)
@pytest.mark.parametrize(
    ("kind", "tests"), [("mixed_linear", "none"), ("mixed_linear(reml=0)", "lr"), ("mixed_logistic(nodes=3)", "none")]
)
def test_every_door_has_one_model(call, door, kind, tests):
    given = (call, tables("logistic" in kind), "y~age+sex+(1|ward)", kind, None, tests)
    first = by_estimator(*given)
    assert first.holds
    assert first.record.rounds <= MOST
    assert differing(first, door(*given)) == set()


@pytest.mark.parametrize(("loss", "kind"), [("auto", "mixed_linear"), ("linear", "mixed_linear")])
def test_a_formula_with_groups_chooses_the_kind(call, loss, kind):
    whole = pd.concat(tables(False), names=["at"]).reset_index("at")
    whole.to_csv("rows.csv", index=False)
    code, out, err = call(f"fit rows.csv --client at --formula y~age+(1|ward) --loss {loss} --no-progress")
    assert code == 0
    assert "linear regression with a random intercept" in out
    assert kind in err
