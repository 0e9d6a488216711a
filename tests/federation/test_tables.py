"""Sites with tables of raw columns: one run with formulaic's design of the pooled table, bit for bit, or a refusal.

The oracle (`oracles.hospitals`) makes the pooled table first, and formulaic's design of it. Sites get its rows in their
own writing: other orders of columns and levels, blanks, numbers as text, missing cells.
"""

import formulaic
import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.design.levels import TableError
from bayesadmm_np.design.terms import formula_of_columns
from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTable,
    GLMTask,
    MessageError,
    Site,
)
from bayesadmm_np.splitting.guarded import Guarded
from bayesadmm_np.splitting.methods import Newton
from oracles.couriers import carried, differences, drive_sites, started, until
from oracles.hospitals import WARDS, pooled_losses, tables_of, truth

CASES = {
    "text": ("died ~ age + ward", "logistic", {}),
    "linear": ("cost ~ age*dose + ward", "linear", {}),
    "interactions": ("died ~ dose*ward + I(age/10)", "logistic", {}),
    "knots": ("died ~ bs(age, knots=[40, 60], lower_bound=10, upper_bound=100) + ward", "logistic", {}),
    "offset": ("stays ~ dose + ward + offset(log(days))", "poisson", {}),
    "weights": ("died ~ age + ward", "logistic", {"weights": "w"}),
    "codings": ("cost ~ np.tanh(dose) + C(ward, Sum) + poly(age, 2, raw=True)", "linear", {}),
    "classes": ("stage ~ dose + ward", "multinomial", {}),
}


def full(d):
    return ba.families.FullGaussian(np.zeros(d), 0.5)


def run_case(case, method, table=GLMTable):
    """The run over formulaic's losses, and the run of sites with tables."""
    formula, kind, options = CASES[case]
    whole = truth()
    classes = ("I", "II", "III") if kind == "multinomial" else ()
    offset = np.log(whole.days) if "offset" in formula else None
    names, losses = pooled_losses(
        whole, formula.replace(" + offset(log(days))", ""), kind, classes, options.get("weights"), offset
    )
    prior = full(losses["Basel"].dim)
    result = ba.run(method, list(losses.values()), prior, rounds=30, tol=1e-8, seed=0)
    sites = [Site(name, table(part, formula, kind, **options)) for name, part in tables_of(whole).items()]
    server, after = drive_sites(sites, GLMTask(method, full, rounds=30, tol=1e-8))
    return names, result, server, after


@pytest.mark.parametrize("case", CASES)
def test_sites_with_tables_run_as_formulaics_design_of_the_pooled_table(case):
    method = ba.methods.PVI(1 / 3) if case == "text" else Guarded(Newton())
    names, result, server, sites = run_case(case, method)
    assert server.spec.features == names
    assert differences(result, server, sites) == []


def test_means_of_transforms_are_those_of_the_pooled_rows():
    """Rows without a ward count for the means, as in R, and are dropped afterwards.

    formulaic's means are of one sum over all rows, ours of one a site: n·u apart relative to the values.
    """
    formula = "died ~ scale(age) + center(dose):ward"
    whole = truth()
    whole.loc[[40, 41, 80], "ward"] = None
    made = formulaic.model_matrix(formula, whole).rhs.drop(columns="Intercept")
    sites = sites_of(formula, tables=tables_of(whole, holes=False))
    server = started(sites, TASK)
    assert server.spec.features == (*made, "intercept")
    for site in sites:
        found = site.data.join(server.spec, site.name, None).worker.loss.X[:, :-1]
        np.testing.assert_allclose(found, made[whole.site[made.index] == site.name], rtol=1e-13, atol=1e-13)


class OwnLevels(GLMTable):
    """Broken twin: a site that codes the levels of the ward in the order in which it meets them."""

    def _agreed(self, spec, agreement, name):
        own = agreement.columns["ward"]
        met = tuple(dict.fromkeys(cell.strip() for cell in self.table["ward"] if isinstance(cell, str)))
        other = type(own)("factor", (*met, *(level for level in own.levels if level not in met)))
        changed = type(agreement)(
            agreement.formula, {**agreement.columns, "ward": other}, agreement.learned, agreement.weights
        )
        object.__setattr__(changed, "structure", agreement.structure)
        return super()._agreed(spec, changed, name)


def test_the_check_catches_levels_in_each_sites_own_order():
    _, result, server, sites = run_case("text", Guarded(Newton()), OwnLevels)
    assert "posterior" in differences(result, server, sites)


# ----------------------------------------------------------------------------------------------------
# Before the first round
# ----------------------------------------------------------------------------------------------------

TASK = GLMTask(Guarded(Newton()), full)


def sites_of(formula, kind="logistic", tables=None, **options):
    tables = tables_of(truth()) if tables is None else tables
    return [Site(name, GLMTable(table, formula, kind, **options)) for name, table in tables.items()]


def test_a_spline_without_knots_is_refused_at_the_site():
    """Quantiles are values of rows. Twin: the formula that has them, among `CASES`."""
    for formula in ("died ~ bs(age, 5)", "died ~ bs(age, knots=[40], upper_bound=100)"):
        with pytest.raises(ArgumentError, match="lower_bound="):
            sites_of(formula)


def test_a_hello_says_levels_and_counts_and_nothing_of_numbers():
    """What docs/security.md lists; a value of the column of numbers stands nowhere in the message."""
    site = sites_of("died ~ dose + ward")[0]
    hello = site.hello()
    said = hello.header["table"]["described"]
    assert said["columns"]["ward"]["levels"].keys() == set(WARDS)
    assert (said["columns"]["dose"]["levels"], said["columns"]["dose"]["kind"]) == (None, "number")
    assert (said["n_rows"], said["n_complete"]) == (32, 30)
    assert hello.arrays == {}
    written = hello.to_bytes().decode("latin-1")
    assert not any(f"{value:.6f}"[:8] in written for value in site.data.table["dose"])


def test_sites_must_want_the_same_regression():
    tables = tables_of(truth())
    hellos = [site.hello() for site in sites_of("died ~ age + ward", tables=tables)]
    for name, *others in (
        ("formula", "died ~ age"),
        ("kind", "died ~ age + ward", "poisson"),
        ("weights", "died ~ age + ward", "logistic", "w"),
    ):
        hellos[1] = Site("Bern", GLMTable(tables["Bern"], *others)).hello()
        with pytest.raises(MessageError, match=f"{name} must be that of site Basel"):
            Coordinator.start(hellos, TASK)


def test_a_table_and_a_design_do_not_mix():
    tables = tables_of(truth())
    hello = Site("Bern", GLMData(ba.losses.Logistic(np.ones((3, 2)), np.ones(3)))).hello()
    hellos = [site.hello() for site in sites_of("died ~ age + ward", tables=tables)]
    with pytest.raises(MessageError, match="numbers alone at Bern"):
        Coordinator.start([hellos[0], hello, hellos[2]], TASK)


def test_a_run_that_leaves_rows_out_still_needs_the_rows_of_the_hello():
    rows = {"died": [0, 1, 1, 0, 1], "ward": ["a", "a", "b", "b", "rare"]}
    table = GLMTable(rows, "died ~ ward", minimum_count=2)
    task = GLMTask(ba.methods.PVI(), full, choices={"drop_withheld": True})
    spec = Coordinator.start([Site(name, table).hello() for name in "AB"], task).spec
    table.join(spec, "A", None)
    fewer = GLMTable({name: column[:3] for name, column in rows.items()}, "died ~ ward")
    with pytest.raises(MessageError) as refused:
        fewer.join(spec, "A", None)
    assert refused.value.name == "weights"


def test_choices_of_the_server():
    tables = tables_of(truth())
    tables["Basel"]["ward"] = tables["Basel"].ward.str.upper()
    task = GLMTask(
        Guarded(Newton()),
        full,
        choices={"ignore_case": True, "reference": {"ward": "ICU"}, "site_intercepts": True, "reference_site": "Bern"},
    )
    server = started(sites_of("died ~ age + ward", tables=tables), task)
    names = ("age", "ward[T.10]", "ward[T.9]", "ward[T.ÉTAT]", "site[T.Basel]", "site[T.Chur]", "intercept")
    assert server.spec.features == names
    site = sites_of("died ~ age + ward", tables=tables)[0]
    assert site.step(carried(server.broadcast()))[1] is not None
    hello = Site("Bern", GLMData(ba.losses.Logistic(np.ones((3, 2)), np.ones(3)))).hello()
    with pytest.raises(ValueError, match="ignore_case must be left out where sites describe no tables"):
        Coordinator.start([hello], task)


# ----------------------------------------------------------------------------------------------------
# Lists of columns
# ----------------------------------------------------------------------------------------------------


def listed(names, **options):
    return formula_of_columns("died", names, **options)


def test_lists_in_another_order_are_the_first_sites():
    tables = tables_of(truth(), holes=False)
    orders = (["age", "ward", "dose"], ["dose", "age", "ward"], ["ward", "dose", "age"])
    sites = [
        Site(name, GLMTable(table, listed(order), is_list=True))
        for (name, table), order in zip(tables.items(), orders, strict=True)
    ]
    server = started(sites, TASK)
    assert [name.split("[")[0] for name in server.spec.features] == ["age", *["ward"] * 3, "dose", "intercept"]
    for site in sites:
        assert site.step(carried(server.broadcast()))[1] is not None


@pytest.mark.parametrize(("order", "words"), [(["age"], "used at site 'Basel'"), (["age", "ward", "w"], "is not used")])
def test_lists_of_other_columns_are_refused(order, words):
    tables = tables_of(truth(), holes=False)
    hellos = [
        Site(name, GLMTable(tables[name], listed(columns), is_list=True)).hello()
        for name, columns in (("Basel", ["age", "ward"]), ("Bern", order))
    ]
    with pytest.raises(TableError, match=words) as caught:
        Coordinator.start(hellos, TASK)
    assert caught.value.site == "Bern"


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ({"died": [0, 1], "age": [None, None]}, {}, "no row is complete"),
        ({"died": [0, 1]}, {}, "'age'"),
        ({"died": [0, 1], "age": [1, 2], "w": [0, 0]}, {"weights": "w"}, "not all zero"),
        ({"died": [0, 1], "age": [1, 2], "w": [1, -1]}, {"weights": "w"}, "weights >= 0"),
        ({"died": [0, 1], "age": [1, 2]}, {"noise_variance": 0.0}, "noise_variance must be"),
    ],
)
def test_a_table_that_is_of_no_use_is_refused_at_the_site(table, options, words):
    with pytest.raises(ValueError, match=words):
        GLMTable(table, "died ~ age", **options)


def test_numbers_that_are_hardly_classes_are_not_named():
    table = {"died": list(range(60)), "age": list(range(60))}
    for kind, most in (("logistic", 2), ("multinomial", 50)):
        with pytest.raises(TableError, match=f"at most {most} classes"):
            GLMTable(table, "died ~ age", kind)


def test_a_target_that_is_no_class_is_refused_by_name():
    tables = {name: part.assign(died=part.died * 2) for name, part in tables_of(truth(), holes=False).items()}
    tables["Chur"]["died"] = tables["Chur"].died / 2
    with pytest.raises(TableError, match="'died' holds 3 classes"):
        started(sites_of("died ~ age", tables=tables), TASK)
    with pytest.raises(TableError, match="stays must hold counts or rates >= 0"):  # before a hello is made
        sites_of("stays ~ age", "poisson", tables={k: t.assign(stays=-1) for k, t in tables.items()})


def test_a_row_of_weight_zero_is_no_row():
    """As in the estimators; the broken twin gives these rows weight one."""
    rng = np.random.default_rng(0)
    table = {"died": rng.integers(0, 2, 40), "age": rng.normal(size=40), "w": rng.integers(0, 3, 40)}
    kept = {name: values[table["w"] > 0] for name, values in table.items()}
    told = [GLMTable(one, "died ~ age", weights="w").introduction() for one in (table, kept)]
    assert [one["rows"] for one in told] == [len(kept["w"])] * 2 != [40] * 2
    ends = []
    for one in (table, kept, {**table, "w": np.maximum(table["w"], 1)}):
        site = Site("A", GLMTable(one, "died ~ age", weights="w"))
        ends.append(until(started([site], TASK), [site])[0].state.q_g.mean)
    assert np.array_equal(ends[0], ends[1])
    assert not np.allclose(ends[0], ends[2])


@pytest.mark.parametrize("minimum_count", [0, 100])
def test_a_site_refuses_what_names_no_level_before_levels_are_told(minimum_count):
    """Also of levels that are of too few rows to be told, which the agreement of the sites would not see."""
    table = {"died": [0, 1] * 10, "chol": ["233", "?"] * 10}
    with pytest.raises(TableError, match="missing") as refused:
        GLMTable(table, "died ~ chol", minimum_count=minimum_count)
    assert refused.value.column == "chol"
    GLMTable({**table, "chol": ["233", "20.4"] * 10}, "died ~ chol", minimum_count=minimum_count // 10)
