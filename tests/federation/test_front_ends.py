"""An estimator, `bayesadmm fit` and a run by files or over Flower: one table, field by field, and one way to refuse."""

import json
import tomllib
import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")

from bayesadmm_np import RunError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM, contrast  # noqa: E402
from bayesadmm_np.estimators.summary import as_dict  # noqa: E402
from bayesadmm_np.estimators.term_tests import wald_tests  # noqa: E402
from bayesadmm_np.federation import Message, load_server  # noqa: E402
from bayesadmm_np.federation.messages import read_hellos  # noqa: E402
from oracles.by_files import SITES, differences, introduce, run, write_tables  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402

APART = {"rounds", "floats", "agreed", "method", "certificate", "model", "dropped_rows", "objective"}
"""How the fit was made, and what one of them alone has to say."""
FILES = " ".join(f"{name}.csv" for name in SITES)


def by_files(call, site, server="", covariance="model", tests="wald", same=lambda table: table):
    """The table of a run by files: of its model file, once it is the server's own."""
    code, told, err = run(call, site, f"{server} --tests {tests}")
    assert code == 0, err
    assert call("server status run --out m.npz")[0] == 0
    table = json.loads(call(f"summary m.npz --json --tests {tests}")[1])
    assert differences(same(told["table"]), same(table), APART, 0.0) == []
    return json.loads(call(f"summary m.npz --json --covariance {covariance} --tests {tests}")[1])


CASES = {
    "analytic weights": ("logistic", "died", "--weights w", "--weight-meaning analytic", "HC3"),
    "least squares with analytic weights": ("linear", "pressure", "--weights w", "--weight-meaning analytic", "HC2"),
    "quasi-likelihood": ("poisson", "visits", "", "", "quasi"),
    "clusters of a fit with weights": ("linear", "pressure", "--cluster ward --weights w", "", "cluster"),
}


@pytest.mark.parametrize("case", CASES)
def test_three_front_ends_have_one_table(call, case):
    """Two digits fewer than the 1e-9 of the coefficients are left to the tails of the normal."""
    kind, target, site, server, covariance = CASES[case]
    rows = write_tables()
    own = by_files(call, f"--target {target} --loss {kind} --features age,dose {site}", server, covariance)
    fit = f"fit {FILES} --target {target} --loss {kind} --features age,dose {site} {server} --covariance {covariance}"
    code, out, err = call(f"{fit} --tests wald --no-progress --json")
    assert code == 0, err
    assert differences(own, json.loads(out), APART, 1e-7) == []
    meaning = {"weight_meaning": "analytic"} if server else {}
    weights = rows["w"] if "--weights" in site else None
    model = FederatedGLM(kind, **meaning).fit(
        rows[["age", "dose"]], rows[target], client=rows["site"], sample_weight=weights
    )
    clusters = None
    if covariance == "cluster":
        clusters = {name: [name + ward for ward in part] for name, part in rows.groupby("site")["ward"]}
    robust = covariance.replace("HC1", "HC0")
    fitted = model.fitted_ if covariance == "quasi" else model.with_robust((robust,), clusters)
    table = as_dict(fitted, covariance=covariance, tests=wald_tests(fitted, None, covariance))
    table = json.loads(json.dumps({**table, "target": target}))
    assert differences(own, table, APART, 1e-7) == []
    assert [row["name"] for row in own["tests"]] == ["age", "dose"]
    assert own["heterogeneity"]["test"]["df"] == 6
    # broken twins: weights of the other meaning, each site as a cluster, the model's covariance
    twin = json.loads(
        call(f"summary m.npz --json --tests wald --covariance {'HC1' if covariance == 'cluster' else 'model'}")[1]
    )
    if covariance == "quasi":  # which alone has no likelihood ratio
        assert own["goodness"]["test"] is None is not twin["goodness"]["test"]
    else:
        assert differences(own, twin, APART, 1e-7) != []
    if server:
        other = json.loads(call(f"{fit.replace(server, '')} --tests wald --no-progress --json")[1])
        assert differences(own, other, APART, 1e-7) != []


def test_a_site_that_refuses_the_question_is_left_out_of_heterogeneity_by_name(call):
    write_tables()
    options = "--target died --loss logistic --features age,dose"
    for name in SITES:
        refuses = " --refuse own_fit" * (name == "north")
        assert call(f"site init {name} --data {name}.csv --name {name} {OPTIONS} {options}{refuses}")[0] == 0
    code, out, err = call(f"server run run {' '.join(SITES)} --no-progress --json")
    assert code == 0, err
    told = json.loads(out)
    assert ["'own_fit' (site north: it refuses this question)" in line for line in told["missing"]] == [True]
    (left_out,) = told["table"]["heterogeneity"]["left_out"]
    assert left_out["site"] == "north"
    assert [*told["table"]["heterogeneity"]["coefficients"][0]["sites"]] == ["east", "west"]


@pytest.mark.parametrize("target", ["visits", "pressure"])
@pytest.mark.parametrize("type_", ["II", "III"])
def test_likelihood_ratios_of_terms_are_those_of_the_estimator(call, type_, target):
    """With an interaction, and a column that another makes up; the broken twin is the other type."""
    rows, kind = write_tables(), {"visits": "poisson", "pressure": "linear"}[target]
    formula, asked = f"{target}~age*C(ward)+dose+I(2*dose+1)", f"lr --test-type {type_}"
    # a model file keeps the covariance of columns that depend to rounding alone
    same = lambda table: table["tests"]  # noqa: E731
    own = by_files(call, f"--loss {kind} --formula {formula}", tests=asked, same=same)
    code, out, err = call(f"fit {FILES} --loss {kind} --formula {formula} --tests {asked} --no-progress --json")
    assert code == 0, err
    assert differences(own["tests"], json.loads(out)["tests"], APART, 1e-7) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the column that another makes up
        model = FederatedGLM.from_formula(formula, rows, "site", kind=kind)
    for row, test in zip(own["tests"], model.test_terms(how="lr", type=type_), strict=True):
        assert (row["name"], row["df"], row["type"], row["why"]) == (test.name, test.df, type_, test.why)
        assert row["statistic"] == (test.statistic and pytest.approx(test.statistic, rel=1e-7, abs=1e-9))
        assert row["p_value"] == (test.p_value and pytest.approx(test.p_value, rel=1e-6))
    assert [row["df"] for row in own["tests"]] == [1, 2, 0, 0, 2]
    other = {"II": "III", "III": "II"}[type_]
    assert call(f"summary m.npz --tests lr --test-type {other}")[0] == 2
    (twin,) = model.test_terms({"age": ["age"]}, how="lr")
    assert (twin.statistic == pytest.approx(own["tests"][0]["statistic"], rel=1e-3)) is (type_ == "III")


@pytest.mark.parametrize("how", ["lr", "wald"])
def test_terms_of_a_separated_model_have_likelihood_ratios_at_every_door(call, how):
    """Nobody dies in ward c: χ² at the supremum, of which the estimator's test has R's value."""
    rows = write_tables()
    rows.loc[rows["ward"] == "c", "died"] = "no"
    for name, part in rows.groupby("site"):
        part.drop(columns="site").to_csv(f"{name}.csv", index=False)
    formula = "--loss logistic --formula died~age+C(ward)"
    code, told, err = run(call, formula, f"--tests {how}")
    assert code == 4, err
    code, out, _ = call(f"fit {FILES} {formula} --tests {how} --no-progress --json --out fit.npz")
    assert code == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FederatedGLM.from_formula("died~age+C(ward)", rows, "site", kind="logistic")
    kept = json.loads(call(f"summary fit.npz --tests {how} --json")[1])["tests"] if how == "lr" else []
    for found in filter(None, (told["table"]["tests"], json.loads(out)["tests"], kept)):
        for row, test in zip(found, model.test_terms(how=how), strict=True):
            assert (row["name"], row["df"], row["why"]) == (test.name, test.df, test.why)
            assert row["statistic"] == (test.statistic and pytest.approx(test.statistic, rel=1e-6))
    assert [bool(test.why) for test in model.test_terms(how=how)] == [False, how == "wald"]


def test_contrasts_of_a_model_file_are_those_of_the_estimator(call):
    """The broken twin refits without one level of a factor."""
    rows, kind, formula = write_tables(), "poisson", "visits~age+C(ward)+dose"
    own = by_files(call, f"--loss {kind} --formula {formula}", tests="lr")
    model = FederatedGLM.from_formula(formula, rows, "site", kind=kind)
    told = json.loads(call("summary m.npz --json --contrast C(ward)[T.b]=1,C(ward)[T.c]=-1")[1])
    (row,), one = told["contrasts"], contrast(model.fitted_, {"C(ward)[T.b]": 1.0, "C(ward)[T.c]": -1.0})
    assert [row["coef"], row["std_err"]] == pytest.approx([one.coef, one.std_err], rel=1e-7)
    for wrong in ("age", "size=1"):
        code, _, err = call(f"summary m.npz --contrast {wrong}")
        assert (code, "--contrast" in err) == (2, True), err
    (twin,) = model.test_terms({"one level": ["C(ward)[T.b]"]}, how="lr")
    assert twin.statistic != pytest.approx(own["tests"][1]["statistic"], rel=1e-3)
    assert call("fit east.csv --target visits --features age --loss poisson --out plain.npz --no-progress")[0] == 0
    assert call("summary plain.npz --tests lr")[0] == 2


def test_a_fit_with_a_prior_has_no_likelihood_ratios(call):
    write_tables()
    alone = "--target died --loss logistic --features age --minimum-sites 1 --budget 9"
    assert call(f"site init alone --data east.csv --name east {alone}")[0] == 0
    told = json.loads(call("server run other alone --tests lr --prior-precision 1 --no-progress --json")[1])
    assert "the fit is not by maximum likelihood" in told["missing"][0]


def test_an_app_of_flower_makes_the_run_of_server_init(call):
    """From there files and Flower carry the same bytes; the broken twin has another meaning of weights."""
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from bayesadmm_np.cli.flower import read_plan

    write_tables()
    options = "--target died --loss logistic --features age,dose --weights w --cluster ward --budget 100"
    assert call(f"flower new trial --sites {len(SITES)}")[0] == 0
    paths = introduce(call, options)
    hellos = read_hellos([Message.read(path) for path in paths.split()])
    assert call(f"server init run {paths} --weight-meaning analytic --seed 0")[0] == 0
    with open("trial/app/pyproject.toml", "rb") as file:
        config = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    runs = [read_plan({**config, "weight-meaning": name}).task.spec(hellos).run for name in ("analytic", "frequency")]
    assert load_server("run").origin.spec.run == runs[0] != runs[1]
    with pytest.raises(ValueError, match="weight"):
        read_plan({**config, "weight-meaning": "reliability"})


# ----------------------------------------------------------------------------------------------------
# Bad input
# ----------------------------------------------------------------------------------------------------


ENDED = {0: "fitted", 1: "failed", 2: "refused", 3: "refused", 4: "no maximum"}


def outcomes(call, tables, formula, kind="logistic", weights=None):
    """Return how an estimator, `fit` and a run by files end, and what they say."""
    for name, table in tables.items():
        table.to_csv(f"{name}.csv", index=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = FederatedGLM.from_formula(formula, tables, kind=kind, weights=weights)
            own = ("fitted" if model.fitted_.has_maximum else "no maximum"), ""
        except RunError as error:
            own = "failed", str(error)
        except ValueError as error:
            own = "refused", str(error)
    site = f"--loss {kind} --formula {formula}" + (f" --weights {weights}" if weights else "")
    code, _, err = call(f"fit {' '.join(f'{name}.csv' for name in tables)} {site} --no-progress --json")
    by_files, _, said = run(call, site, names=tuple(tables))
    return own, (ENDED[code], err), (ENDED[by_files], said)


def hospitals(n_sites=3, n=30, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(n_sites):
        age, dose = rng.normal(size=(2, n))
        died = (rng.random(n) < 1.0 / (1.0 + np.exp(dose - age))).astype(int)
        found[f"h{k:02d}"] = pd.DataFrame({"age": age, "dose": dose, "died": died, "w": 1.0, "known": 0.1})
    return found


def lacking(tables):
    tables["h01"] = tables["h01"].drop(columns="dose")


def changed(column, value):
    def change(tables):
        tables["h01"].loc[3, column] = value

    return change


def everywhere(column, value):
    """R fits these, and warns: the estimator refused them, and a run by files did not."""

    def change(tables):
        for name, one in tables.items():
            tables[name] = one.assign(**{column: one.get(value, value)})

    return change


WHOLE = "died~age+dose+offset(known)"
BAD = {
    "a column that a site lacks": (lacking, WHOLE, "logistic", "refused", "column 'dose'"),
    "a weight that is missing": (changed("w", np.nan), WHOLE, "logistic", "fitted", ""),
    "an offset that overflows": (changed("known", 1e308), WHOLE, "logistic", "refused", "exponentials"),
    "counts of zero": (everywhere("died", 0.0), "died~age", "poisson", "no maximum", ""),
    "one class in all weight": (everywhere("w", "died"), "died~age", "logistic", "no maximum", ""),
    "too few rows": (None, "died~age+dose", "logistic", "no maximum", ""),
}
"""What is done to the sites' tables, what is fitted, how all front ends end, and a word that they all say."""


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_way(call, case):
    change, formula, kind, expected, words = BAD[case]
    tables = hospitals() if change else hospitals(2, 1)
    if change:
        change(tables)
    found = outcomes(call, tables, formula, kind, weights="w" if change else None)
    assert [one[0] for one in found] == [expected] * 3, found
    assert all(words in one[1] for one in found), found


# ----------------------------------------------------------------------------------------------------
# A site that is gone, a folder that is lost: the sentence says what works, and it works
# ----------------------------------------------------------------------------------------------------


def stepped(call, path, names):
    """The files of the replies of these sites to a message."""
    return [json.loads(call(f"site step {name} {path} --json")[1])["written"] for name in names]


def begun(call, options=""):
    hellos = introduce(call, f"--target died --loss logistic --features age,dose {OPTIONS}")
    return json.loads(call(f"server init run {hellos} {options} --json")[1])["written"]


@pytest.mark.parametrize("options", ["", "--method PVI --prior-precision 1"])
def test_a_round_without_a_site_that_its_step_needs_says_so_at_once_and_what_works(call, options):
    """PVI goes on without the site: nothing is to be said there."""
    write_tables()
    path = begun(call, options)
    while "broadcast" not in path:
        path = json.loads(call(f"server step run {' '.join(stepped(call, path, SITES))} --json")[1])["written"]
    here = stepped(call, path, SITES[:2])
    call(f"server step run {' '.join(here)}")  # west may come yet
    err = call("server step run --without west")[2]
    needs_all = "PVI" not in options
    assert ("west did not answer" in err) == needs_all
    assert bool(json.loads(call("server status run --json")[1]).get("warnings")) == needs_all
    if needs_all:  # what it says works: a new run without the site
        for name in SITES[:2]:
            site = f"--data {name}.csv --name {name} --target died --loss logistic --features age,dose {OPTIONS}"
            assert call(f"site init {name}2 {site}")[0] == 0
        code, out, _ = call("server run again east2 north2 --no-progress --json")
        assert (code, list(json.loads(out)["sites"])) == (0, ["east", "north"])


# One order of sites; a run's folder as a model
# ----------------------------------------------------------------------------------------------------


def test_sites_stand_in_the_order_of_their_names_in_every_front_end(call):
    table = write_tables().iloc[::-1].reset_index(drop=True)  # west, north, east by appearance
    table.to_csv("all.csv", index=False)
    formula = ["--formula", "died~age+dose"]
    backwards = " ".join(f"{name}.csv" for name in SITES[::-1])
    found = {
        "column": call(f"fit all.csv --client site {' '.join(formula)} --no-progress --json")[1],
        "files": call(f"fit {backwards} {' '.join(formula)} --no-progress --json")[1],
        "list": call("fit all.csv --client site --target died --features age,dose --no-progress --json")[1],
    }
    _, by_run, _ = run(call, f"{' '.join(formula)} --loss logistic", names=SITES[::-1])
    sites = {name: list(json.loads(out)["sites"]) for name, out in found.items()} | {"run": list(by_run["sites"])}
    model = FederatedGLM("logistic").fit(table[["age", "dose"]], table["died"], client=table["site"])
    by_formula = FederatedGLM.from_formula("died ~ age + dose", table, client="site", kind="logistic")
    sites |= {"python": list(model.fitted_.sites), "python, formula": list(by_formula.fitted_.sites)}
    assert sites == {key: list(SITES) for key in sites}
    described = call("describe all.csv --client site")[1].splitlines()
    assert next(line for line in described if "east" in line).split()[2::2] == list(SITES)  # all (80) east (40) …


@pytest.fixture
def ended(call):
    write_tables()
    for name in SITES:
        options = f"--target died --loss logistic --categorical ward --features age,ward {OPTIONS}"
        assert call(f"site init {name} --data {name}.csv --name hospital-{name} {options}")[0] == 0
    assert call("server run run east north west --no-progress")[0] == 0
    assert call("server status run --out model.npz")[0] == 0
    return call


def test_a_runs_folder_is_a_model_and_its_sites_are_named_beside_their_files(ended):
    model = "run"
    files = " ".join(f"hospital-{name}={name}.csv" for name in SITES)
    code, out, err = ended(f"certify {model} {files} --json")
    assert (code, json.loads(out)["holds"]) == (0, True), err
    code, _, err = ended(f"certify {model} {FILES}")
    assert (code, "hospital-north=" in err) == (2, True)
    table = json.loads(ended(f"summary {model} --tests wald --json")[1])
    assert [test["name"] for test in table["tests"]] == ["age", "C(ward)"]
    assert table == json.loads(ended("summary model.npz --tests wald --json")[1])
    assert ended(f"predict {model} east.csv")[1] == ended("predict model.npz east.csv")[1]
    assert ended(f"evaluate {model} {FILES} --json")[1] == ended(f"evaluate model.npz {FILES} --json")[1]


def test_a_run_that_goes_on_is_no_model(call):
    write_tables()
    begun(call)
    code, _, err = call("summary run")
    assert (code, "the run in run has not ended" in err) == (2, True)
    assert call("summary east")[0] == 2
