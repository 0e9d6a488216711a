"""Values that belong to rows: a Series has the index of the frame, clusters are aligned by it; the order of classes."""

import json
import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
sm = pytest.importorskip("statsmodels.api")

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.estimators import (  # noqa: E402
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    describe,
    evaluate,
    load_model,
    save_model,
)
from bayesadmm_np.estimators.caveats import Caveat  # noqa: E402
from bayesadmm_np.families import FullGaussian  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMTable, GLMTask, Site  # noqa: E402
from bayesadmm_np.glm.diagnosis import SameRows, find_same_rows  # noqa: E402
from oracles.overrides import ALLOWED, OPTIONS  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402


def wards(seed=0, n=120):
    """Rows at three sites with clusters, in no order, whose index names them."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"site": rng.choice(list("ABC"), n), "x": rng.normal(size=n), "days": rng.uniform(1, 30, n)})
    table["ward"] = table["site"] + rng.integers(0, 6, n).astype(str)
    effect = table["ward"].map({ward: rng.normal() for ward in sorted(set(table["ward"]))})
    table["died"] = (rng.random(n) < 1 / (1 + np.exp(-table["x"] - effect))).astype(int)
    table["falls"] = rng.poisson(0.2 * table["days"])
    table["length"] = table["x"] + effect + rng.normal(size=n)
    table["w"] = rng.integers(0, 3, n)
    return table.set_index(pd.Index([f"r{i}" for i in range(n)])).sample(frac=1.0, random_state=seed)


KINDS = {"logistic": ("died", sm.families.Binomial), "poisson": ("falls", sm.families.Poisson)}
KINDS["linear"] = ("length", sm.families.Gaussian)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["formula", "tables", "frame"])
def test_clusters_are_aligned_by_their_index(kind, how):
    """In any order, with rows beside that the fit left out; the broken twin takes them by position."""
    table, (target, family) = wards(), KINDS[kind]
    table.loc[table.index[:4], "x"] = np.nan
    used = table.dropna()
    if how == "frame":
        model = FederatedGLM(kind).fit(used[["x"]], used[target], used["site"])
    else:
        data = dict(list(table.groupby("site"))) if how == "tables" else table
        model = FederatedGLM.from_formula(f"{target} ~ x", data, "site" if how == "formula" else None, kind=kind)
    oracle = sm.GLM(used[target], sm.add_constant(used[["x"]], prepend=False), family()).fit(
        cov_type="cluster", cov_kwds={"groups": pd.factorize(used["ward"])[0]}, tol=1e-14
    )
    for seed in range(3):
        shuffled = table["ward"].sample(frac=1.0, random_state=seed)
        labels = {site: shuffled[table["site"] == site] for site in "ABC"}
        found = [row.std_err for row in model.summary(covariance="cluster", clusters=labels).rows]
        np.testing.assert_allclose(found, oracle.bse, rtol=1e-6)
        twin = {
            site: own[used.index[used["site"] == site]].sample(frac=1.0, random_state=1).tolist()
            for site, own in labels.items()
        }
        other = [row.std_err for row in model.summary(covariance="cluster", clusters=twin).rows]
        assert not np.allclose(other, oracle.bse, rtol=1e-3)


def test_clusters_of_another_index_or_beside_another_covariance_are_refused():
    table = wards()
    model = FederatedLogisticRegression.from_formula("died ~ x", table, "site")
    labels = dict(list(table.groupby("site")["ward"]))
    with pytest.raises(ValueError, match=r"clusters\['A'\] must have the index"):
        model.summary(covariance="cluster", clusters={s: own.reset_index(drop=True) for s, own in labels.items()})
    calls = [lambda name=name: model.summary(covariance=name, clusters=labels) for name in ("model", "HC1")]
    calls += [lambda: model.test_terms(clusters=labels), lambda: model.with_robust(["cluster"], {"A": labels["A"]})]
    assert_refused([(call, "clusters") for call in calls])
    # rows of an array have a position alone
    bare = FederatedLogisticRegression().fit(
        table[["x"]].to_numpy(), table["died"].to_numpy(), table["site"].to_numpy()
    )
    by_place = {site: own.reset_index(drop=True) for site, own in labels.items()}
    assert bare.summary(covariance="cluster", clusters=by_place).rows[0].std_err == pytest.approx(
        model.summary(covariance="cluster", clusters=labels).rows[0].std_err, rel=1e-6
    )


ROWS = ("y", "client", "sample_weight", "offset", "exposure")


@pytest.mark.parametrize("name", ROWS)
def test_a_series_beside_a_frame_has_its_index_in_its_order(name):
    """Its own values by position are another fit, in silence."""
    table = wards()
    given = {"y": table["falls"], "client": table["site"], "sample_weight": table["w"] + 1.0}
    given |= {"offset": table["x"], "exposure": table["days"]}
    X, right = table[["x"]], FederatedPoissonRegressor().fit(table[["x"]], **given)
    other = given[name].sample(frac=1.0, random_state=1)
    calls = [
        (lambda own=own: FederatedPoissonRegressor().fit(X, **{**given, name: own}), name)
        for own in (other, given[name].reset_index(drop=True), other.rename(str.upper))
    ]
    assert_refused(calls)
    again = FederatedPoissonRegressor().fit(X, **{**given, name: other.loc[X.index]})
    assert again.coef_ == right.coef_
    plain = FederatedPoissonRegressor().fit(X, **{**given, name: given[name].to_numpy()})
    assert plain.coef_ == right.coef_
    if name in ("offset", "exposure"):
        assert_refused([(lambda: right.predict(X, **{name: other}), name)])


def test_a_series_beside_others_has_their_index_too():
    table = wards()
    model = FederatedLogisticRegression().fit(table[["x"]], table["died"], table["site"])
    chances, other = model.predict_proba(table[["x"]]), table.sort_index()
    evaluate(chances, table["died"], table["site"])
    describe(table, table["site"])
    assert_refused(
        [
            (lambda: evaluate(chances, table["died"], other["site"]), "client"),
            (lambda: describe(table, other["site"]), "client"),
            (lambda: model.score(table[["x"]], other["died"]), "y"),
            (lambda: model.score(table[["x"]], table["died"], other["w"]), "sample_weight"),
        ]
    )


def test_an_exposure_is_for_a_log_link():
    table = wards()
    X, days = table[["x"]], table["days"]
    assert_refused(
        [
            (lambda: FederatedLogisticRegression().fit(X, table["died"], exposure=days), "exposure"),
            (lambda: FederatedLinearRegression().fit(X, table["length"], exposure=days), "exposure"),
            (lambda: FederatedLogisticRegression.from_formula("died ~ x", table, "site", exposure="days"), "exposure"),
            (
                lambda: FederatedPoissonRegressor.from_formula("falls ~ offset(x)+days", table, exposure="days"),
                "exposure",
            ),
        ]
    )


def test_a_forgotten_exposure_is_told_by_whoever_predicts(tmp_path):
    table = wards()
    model = FederatedPoissonRegressor().fit(table[["x"]], table["falls"], table["site"], exposure=table["days"])
    with pytest.warns(UserWarning, match="fitted with days: give the exposure"):
        rates = model.predict(table[["x"]])
    np.testing.assert_allclose(model.predict(table[["x"]], exposure=table["days"]), rates * table["days"], rtol=1e-12)
    model.forget_site("A")
    save_model(tmp_path / "m.npz", model.fitted_)
    assert load_model(tmp_path / "m.npz").columns.exposure == "days"
    formula = FederatedPoissonRegressor.from_formula("falls ~ x", table, "site", exposure="days")
    oracle = sm.GLM(table["falls"], sm.add_constant(table[["x"]]), sm.families.Poisson(), exposure=table["days"])
    np.testing.assert_allclose(formula.coef_, oracle.fit(tol=1e-14).params["x"], rtol=1e-7)
    with pytest.raises(ValueError, match="days"):
        formula.predict(table.drop(columns="days"))


# ----------------------------------------------------------------------------------------------------
# Classes in order
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("labels", [["well", "died"], ["b", "a", "c"], [2, 1], [3, 10, 2]], ids=str)
def test_classes_have_the_order_of_their_categories(labels, ordered):
    """R's glm of a factor: the first level is the reference. Text without an order is in that of the alphabet."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": rng.choice(list("AB"), 150), "x": rng.normal(size=150)})
    cells = np.array(labels)[rng.integers(0, len(labels), 150)]
    table["out"] = pd.Categorical(cells, [*labels, "never"] if isinstance(labels[0], str) else [*labels, 99], ordered)
    texts = [str(label) for label in labels]
    by_formula = FederatedLogisticRegression.from_formula("out ~ x", table, "site")
    assert list(by_formula.classes_) == texts
    by_matrix = FederatedLogisticRegression().fit(table[["x"]], table["out"], table["site"])
    assert by_matrix.classes_.tolist() == labels
    np.testing.assert_allclose(by_matrix.coef_, by_formula.coef_, rtol=1e-9)
    # as numbers in this order, which are classes in the order of their size
    codes = FederatedLogisticRegression().fit(table[["x"]], table["out"].cat.codes, table["site"])
    np.testing.assert_allclose(by_matrix.coef_, codes.coef_, rtol=1e-9)
    assert (by_matrix.predict(table[["x"]]) == np.array(labels)[codes.predict(table[["x"]])]).all()
    parts = {name: GLMTable(part, "out ~ x", codes.fitted_.kind.name) for name, part in table.groupby("site")}
    hellos = [Site(name, part, rules=ALLOWED).hello() for name, part in parts.items()]
    task = GLMTask(methods.PVI(), lambda d: FullGaussian(np.zeros(d), 1.0))
    assert list(Coordinator.start(hellos, task).spec.classes) == texts
    plain = FederatedLogisticRegression().fit(table[["x"]], table["out"].astype(type(labels[0])), table["site"])
    assert plain.classes_.tolist() == sorted(labels)


# ----------------------------------------------------------------------------------------------------
# The same rows twice
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"prior_precision": 1.0, "inference": "posterior"}], ids=str)
def test_the_same_rows_at_two_sites_are_named(kind, options):
    """The broken twin: one cell of one row is another."""
    table, target = wards(), KINDS[kind][0]
    parts = dict(list(table.groupby("site")))
    for change, expected in ((0.0, [("A", "D")]), (1e-9, [])):
        twin = parts["A"].assign(site="D")
        twin.iloc[0, twin.columns.get_loc("x")] += change
        whole = pd.concat([table, twin])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = FederatedGLM(kind, **options).fit(whole[["x"]], whole[target], whole["site"])
        assert [one.sites for one in model.fitted_.findings if isinstance(one, SameRows)] == expected
        assert [one.message.findings[0].sites for one in said if isinstance(one.message, Caveat)] == expected


def test_few_rows_and_sums_of_nothing_are_no_sign_of_the_same_rows():
    ones = np.ones(3)
    assert find_same_rows({"a": (9, ones), "b": (9, ones)}) == ()
    assert find_same_rows({"a": (10, 0 * ones), "b": (10, 0 * ones)}) == ()
    assert find_same_rows({"a": (10, ones), "b": (11, ones), "c": (10, ones)}) == (SameRows(("a", "c")),)


# ----------------------------------------------------------------------------------------------------
# Commands
# ----------------------------------------------------------------------------------------------------


@pytest.fixture
def call(bayesadmm, tmp_path, monkeypatch):
    pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    table = wards()
    table.to_csv("all.csv", index=False)
    for site, part in table.groupby("site"):
        part.to_csv(f"{site}.csv", index=False)
    return lambda text: bayesadmm(*text.split())


def by_files(call, options):
    for site in "ABC":
        code, _, err = call(f"site init {site} --data {site}.csv --name {site} {options} {OPTIONS}")
        if code:
            return code, err
    code, out, err = call("server run run A B C --no-progress --json")
    return code, json.loads(out)["table"] if out else err


def test_exposure_and_offset_join_a_formula_that_has_none(call):
    """A sentence said that the formula has it, and who obeyed fitted without."""
    model = FederatedPoissonRegressor.from_formula("falls ~ x + offset(log(days))", wards(), "site")
    options = "--loss poisson --formula falls~x --exposure days"
    code, out, err = call(f"fit all.csv --client site {options} --json --no-progress --out m.npz")
    assert code == 0, err
    here = json.loads(out)["coefficients"]
    code, there = by_files(call, options)
    assert code == 0, there
    for rows in (here, there["coefficients"]):
        np.testing.assert_allclose([rows[0]["coef"], rows[-1]["coef"]], [model.coef_[0], model.intercept_], rtol=1e-6)
    pd.read_csv("all.csv").drop(columns="days").to_csv("new.csv", index=False)
    code, _, err = call("predict m.npz new.csv")
    assert (code, "'days'" in err) == (2, True), err


@pytest.mark.parametrize("door", ["fit all.csv --client site", "site init A --data A.csv --name A"])
def test_what_an_exposure_does_not_fit_is_refused(call, door):
    for options, word in (
        ("--loss logistic --formula died~x --exposure days", "--exposure"),
        ("--loss linear --target length --features x --exposure days", "--exposure"),
        ("--loss poisson --formula falls~x+offset(w) --exposure days", "--exposure"),
        ("--loss poisson --formula falls~x+offset(w) --offset days", "--offset"),
        ("--loss poisson --formula falls~x --target falls --offset days", "--target"),
    ):
        code, out, err = call(f"{door} {options}")
        assert (code, out, word in err) == (2, "", True), (options, err)


def test_reference_is_a_level_of_a_factor_at_every_door(call):
    model = FederatedLogisticRegression.from_formula("died ~ site + x", wards(), "site", reference={"site": "B"})
    code, out, err = call("fit all.csv --client site --formula died~site+x --reference site=B --json --no-progress")
    assert code == 0, err
    assert [row["name"] for row in json.loads(out)["coefficients"]][:2] == ["site[T.A]", "site[T.C]"]
    assert list(model.feature_names_in_[:2]) == ["site[T.A]", "site[T.C]"]
    code, _, err = call("fit all.csv --client site --formula died~x --reference 1")
    assert (code, "--reference-class" in err) == (2, True), err
    code, out, err = call("fit all.csv --client site --formula died~x --reference-class 1 --no-progress")
    assert (code, "0 vs 1: x" in out) == (0, True), err
