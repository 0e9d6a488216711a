"""Kaplan-Meier curves and log-rank tests from counts of four unequal sites, against survfit and survdiff of R."""

import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np.estimators import kaplan_meier, survival_table  # noqa: E402
from bayesadmm_np.estimators.kaplan_meier import LogRank  # noqa: E402
from oracles.menu import read  # noqa: E402

CASES = read("tables")
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def rows_of(case):
    rows = pd.DataFrame(case["data"])
    grid = case["grid"] or f"0:{rows['time'].max()}:{case['step']}"
    return rows, {"grid": grid, "minimum_count": 1}


def numbers(values):
    return np.array([np.nan if value is None else value for value in np.atleast_1d(values)], dtype=float)


def assert_curve(curve, grid, right):
    """R has the times at which some row ends alone; between them a curve stays as it is."""
    at = np.searchsorted(grid, np.atleast_1d(right["time"]))
    np.testing.assert_array_equal(grid[at], np.atleast_1d(right["time"]))
    for name in ("at_risk", "events", "censored", "survival", "lower", "upper"):
        np.testing.assert_allclose(getattr(curve, name)[at], numbers(right[name]), **CLOSE, err_msg=name)
    survives = curve.survival[at] > 0  # R has an infinite error of log 0
    errors = curve.survival[at] * np.nan_to_num(numbers(right["greenwood"]), posinf=0.0)
    np.testing.assert_allclose(curve.std_err[at][survives], errors[survives], **CLOSE)
    np.testing.assert_allclose(curve.median, numbers(right["median"]), **CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_curves_and_tests_are_those_of_r(name):
    case = CASES[name]
    rows, given = rows_of(case)
    found = survival_table(rows, "time", "status", "group", "site", **given)
    assert list(found.curves) == list(case["curves"])
    for group, right in case["curves"].items():
        assert_curve(found.curves[group], found.grid, right)
    whole = survival_table(rows, "time", "status", client="site", **given)
    assert_curve(whole.curves["all"], whole.grid, case["whole"])
    assert not whole.tests
    for kind, right in case["tests"].items():
        test = found.tests[kind]
        assert test.df == right["df"]
        for field in ("observed", "expected", "statistic", "p_value"):
            np.testing.assert_allclose(getattr(test, field), right[field], **CLOSE, err_msg=f"{kind} {field}")


def test_rows_that_are_censored_at_an_event_are_at_risk_of_it(monkeypatch):
    """The broken twin counts them one point earlier, and has another curve."""
    counts = kaplan_meier.counts_on_grid

    def early(*given):
        found = counts(*given)
        found[:, 1] = np.roll(found[:, 1], -1, axis=-1)
        return found

    monkeypatch.setattr(kaplan_meier, "counts_on_grid", early)
    rows, given = rows_of(CASES["lung"])
    found = survival_table(rows, "time", "status", "group", "site", **given).curves["1"]
    right = CASES["lung"]["curves"]["1"]
    at = np.searchsorted(np.arange(0, 1051, 30), right["time"])
    assert np.abs(found.survival[at] - numbers(right["survival"])).max() > 1e-3


def test_sites_are_strata_and_no_more(monkeypatch):
    """The broken twin adds the sites' own tests of the pooled kind; and a site of one group adds nothing."""
    case = CASES["veteran"]
    rows, given = rows_of(case)
    found = survival_table(rows, "time", "status", "group", "site", **given)
    assert abs(found.tests["pooled"].statistic - case["tests"]["stratified by site"]["statistic"]) > 0.1
    alone = pd.DataFrame({"time": [5.0, 6, 7], "status": [1, 0, 1], "group": "large", "site": "alone"})
    more = survival_table(pd.concat([rows, alone]), "time", "status", "group", "site", **given)
    assert more.tests["stratified by site"].statistic == pytest.approx(found.tests["stratified by site"].statistic)
    apart = survival_table(
        pd.DataFrame({"t": [1, 2, 3, 4], "s": [1, 1, 1, 1], "g": list("aabb"), "site": list("xxyy")}),
        *("t", "s", "g", "site"), grid=[1, 2, 3, 4], minimum_count=1,
    )  # fmt: skip
    assert (apart.tests["stratified by site"].df, apart.tests["stratified by site"].p_value) == (0, 1.0)
    assert apart.tests["pooled"].df == 1
    assert isinstance(apart.tests["pooled"], LogRank)


def test_forms_of_tables_and_of_columns():
    """Tables by site, names with blanks, expressions, text as groups, and rows that lack a value."""
    case = CASES["lung"]
    rows, given = rows_of(case)
    first = survival_table(rows, "time", "status", "group", "site", **given)
    named = rows.assign(code=rows.status + 1, group=rows.group.map({"1": "men", "2": "women"}))
    named = named.rename(columns={"time": "days alive"})
    gap = named.iloc[:2].assign(group=[None, "men"], code=[1.0, None])
    tables = dict(list(pd.concat([named, gap]).groupby("site")))
    second = survival_table(tables, "days alive", "code == 2", "group", **given)
    assert list(second.curves) == ["men", "women"]
    np.testing.assert_array_equal(second.curves["men"].survival, first.curves["1"].survival)
    assert second.sites == first.sites
    assert sum(second.missing.values()) == 2
    shown = str(second)
    assert "Log-rank test, stratified by site: χ²" in shown
    assert "left out, since a value is missing: " in shown
    assert json.loads(json.dumps(second.to_dict(), default=list))["by"] == "group"


TABLE = {"time": [1.0, 2, 3, 4], "status": [1, 0, 1, 1], "g": list("abab"), "site": list("xxyy")}


@pytest.mark.parametrize(
    ("changed", "grid", "least", "says"),
    [
        ({"time": [1, -2, 3, 4]}, [5], 1, "site 'x': has 1 negative time(s)"),
        ({"status": [1, 2, 1, 2]}, [5], 1, "status 2, which is neither 0 nor 1; write 1 for an event"),
        ({"status": ["dead", "no", "no", "no"]}, [5], 1, "'status'"),
        ({}, [2, 1, 5], 1, "grid must rise"),
        ({}, [], 1, "grid must rise"),
        ({}, "0:5", 1, "grid must be times, or from:to:step"),
        ({}, "0:5:0", 1, "grid must be times, or from:to:step"),
        ({}, "5:0:1", 1, "grid must rise"),
        ({}, "0:inf:1", 1, "grid must be times, or from:to:step"),
        ({}, "0:3:1", 1, "1 of site 'y' lie beyond 3"),
        ({}, "0:4:1", 3, "site 'x': has fewer than 3 events, or censored rows, of a group at 2 points"),
    ],
)
def test_bad_input_is_refused_in_words(changed, grid, least, says):
    with pytest.raises(ValueError, match=r".") as raised:
        survival_table({**TABLE, **changed}, "time", "status", "g", "site", grid=grid, minimum_count=least)
    assert says in str(raised.value)


def test_the_command_prints_curves(call):
    rows, _ = rows_of(CASES["lung"])
    rows.to_csv("lung.csv", index=False)
    given = "describe lung.csv --client site --time time --status status --by group --grid 0:1022:30"
    code, _, err = call(given)
    assert code == 2
    assert "fewer than 3 events" in err
    code, out, err = call(f"{given} --minimum-count 1")
    assert code == 0, err
    assert "Log-rank test, pooled: χ²" in out
    code, out, err = call(f"{given} --minimum-count 1 --json")
    assert code == 0, err
    test = json.loads(out)["tests"]["stratified by site"]
    assert test["statistic"] == pytest.approx(CASES["lung"]["tests"]["stratified by site"]["statistic"], rel=1e-10)
    code, _, err = call("describe lung.csv --client site --time time --status status")
    assert code == 2
    assert "--grid" in err


def test_a_plot_has_a_curve_and_a_band_for_each_group():
    figures = pytest.importorskip("matplotlib.figure", reason="needs the extra `plot`")
    rows, given = rows_of(CASES["veteran"])
    figure = figures.Figure()
    survival_table(rows, "time", "status", "group", "site", **given).plot(figure)
    (axes,) = figure.axes
    assert len(axes.lines) == len(axes.collections) == 4
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["adeno", "large", "smallcell", "squamous"]
