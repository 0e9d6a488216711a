"""A formula over sites: what may stand in it, what is agreed, and that no site computes anything of its own."""

import json
import re
from dataclasses import asdict, replace
from functools import partial

import formulaic
import numpy as np
import pandas as pd
import pytest

from bayesadmm_np._archive import ArchiveError, read_as
from bayesadmm_np._errors import ArgumentError, worded
from bayesadmm_np.design.agreement import Agreement, design
from bayesadmm_np.design.formula import SiteColumns, agree, describe_columns
from bayesadmm_np.design.levels import TableError, are_named
from bayesadmm_np.design.terms import parse
from bayesadmm_np.estimators import FederatedLinearRegression
from bayesadmm_np.estimators.formula_fit import make_designs

EPS = np.finfo(float).eps


@pytest.fixture
def rows(rng):
    n = 90
    return pd.DataFrame(
        {
            "hospital": rng.choice(["Basel", "Bern", "Chur"], n),
            "died": rng.integers(0, 2, n),
            "age": rng.integers(18, 99, n).astype(float),
            "days": rng.gamma(2.0, 3.0, n) + 0.1,
            "ward": rng.choice(["medical", "surgical", "icu"], n),
            "blood pressure": rng.normal(130, 15, n),
        }
    )


def parts_of(rows):
    return dict(list(rows.groupby("hospital")))


def agreed(rows, formula, **options):
    parts = parts_of(rows)
    said = {site: describe_columns(part, formula, weights=options.get("weights")) for site, part in parts.items()}
    return agree(said, formula, **options)


def stacked(rows, agreement):
    """The sites' designs, in the order of the rows."""
    made = {site: design(part, agreement, site) for site, part in parts_of(rows).items()}
    frames = [
        pd.DataFrame(found.matrix, columns=found.names, index=rows.index[rows.hospital == site][found.kept])
        for site, found in made.items()
    ]
    return pd.concat(frames).sort_index(), made


# ----------------------------------------------------------------------------------------------------
# What may stand in a formula
# ----------------------------------------------------------------------------------------------------


REFUSED = {
    "must": ["y ~ __import__('os').system('true')", "y ~ I((lambda: x)())", "y ~ I(" + "-" * 5000 + "x)"],
    "not 'x.__class__'": ["y ~ I(x.__class__)"],
    "must hold columns": ["y ~ I([z for z in x])", "y ~ I(x if x else x)"],
    "must not call np.load": ["y ~ np.load('f')"],
    "must not call open": ["y ~ open('f')"],
    "a constant": ["y ~ I(x**10**10)"],
    "powers of columns": ["y ~ I(9**9 + x)"],
    "must not call lag": ["y ~ lag(x)"],
    "backticks": ["y ~ Q('x')"],
    "raw=True": ["y ~ poly(x, 2, 3, 4)", "y ~ poly(x, 2, simple=True)"],
    "degree from 1 to 10": ["y ~ poly(x, 11)", "y ~ poly(x, 0)", "y ~ poly(x, 2.5)"],
    "poly(…) as a term of its own": ["y ~ log(poly(x, 2))", "y ~ I(poly(x, 2)**2)"],
    "one of df and knots": ["y ~ bs(x)", "y ~ ns(x)"],
    "arguments among": ["y ~ bs(x, 4, nots=[1])", "y ~ ns(x, 4, degree=2)"],
    "inside another": ["y ~ bs(center(x), 4)"],
    "a term of its own": ["y ~ bs(x, 4) + I(bs(x, 4)**2)"],
    "cut off": ["y ~ bs(x, 4, lower_bound=0, upper_bound=9, extrapolation='clip')"],
    "one argument": ["y ~ scale(x, 3)", "y ~ log(x, out=y)"],
    "nothing from data": ["scale(y) ~ x", "poly(y, 2) ~ x", "y ~ x + offset(center(t))"],
    "multiply an offset": ["y ~ x:offset(t)"],
    "at most a coding": ["y ~ C(x, levels=['a', 'b'])"],
    "a coding": ["y ~ C(x, {'a': [1, 2]})"],
    "a coding that exists": ["y ~ C(x, Treatment(['a']))"],
    "one column in C": ["y ~ C(x + 1)"],
    "with C(…) and without": ["y ~ x + C(x)"],
    "as a number and as a factor": ["y ~ log(x) + C(x)"],
    "among the predictors": ["y ~ y + x"],
    "on the left": ["y + z ~ x"],
    "a target": ["x"],
    "random effect": ["y ~ x | z", "y ~ x + (z|h)"],
    "name the columns": ["y ~ .", "y~.-z"],
    "C(x)": ["y ~ factor(x)", "y ~ as.factor(x)"],
    "Treatment('level')": ["y ~ relevel(x, ref='a')"],
    "trials": ["cbind(k, n - k) ~ x"],
    "whole df >= 1": ["y ~ ns(x, 0)"],
    "x**2": ["y ~ I(x^2)"],
    "a:b": ["y ~ a %in% b"],
    "a formula": ["y ~ x y"],
    "a term between its signs": ["y ~ x +", "y ~  + x", "y ~ x + + z", "y ~ x*", "y ~ "],
    "single quotes": ["y ~ ", "y ~ x + Age [y]", "y ~ x + Diabetes?"],
    "numbers for constants": ["y ~ log('x')"],
    "at most 10000": ["y ~ " + "x" * 10_000],
}


def test_what_is_not_on_the_list_is_refused_before_anything_is_evaluated():
    for says, formulas in REFUSED.items():
        for formula in formulas:
            with pytest.raises(ArgumentError, match=re.escape(says)):
                parse(formula)


def test_a_stranger_cannot_bring_python_in_an_agreement(rows):
    plain = asdict(agreed(rows, "died ~ log(age)"))
    assert read_as(Agreement, json.loads(json.dumps(plain)), "message").names == ("log(age)",)
    with pytest.raises(ArchiveError, match="must not call exec"):
        read_as(Agreement, {**plain, "formula": "died ~ exec(age)"}, "message")
    with pytest.raises(ArchiveError, match="columns must be"):
        read_as(Agreement, {**plain, "formula": "died ~ log(days)"}, "message")
    with pytest.raises(ArchiveError, match="learned must be"):
        read_as(Agreement, {**plain, "formula": "died ~ center(age)"}, "message")


def test_names_in_backticks_and_names_like_functions(rows):
    formula = "died ~ `blood pressure` + I(`blood pressure` * `blood pressure`) + center(`blood pressure`):age"
    agreement = agreed(rows, formula)
    found, _ = stacked(rows, agreement)
    right = formulaic.model_matrix(formula, rows).rhs.drop(columns="Intercept")
    assert list(found) == list(right)
    np.testing.assert_allclose(found, right, rtol=1e-12)
    with pytest.raises(ArgumentError, match="no column"):
        parse("y ~ I(log + 1)")
    named = rows.rename(columns={"age": "log"})
    assert agreed(named, "died ~ log").names == ("log",)


def test_terms_are_those_of_the_formula_whatever_brackets_names_have(rows):
    table = rows.assign(**{"age[years]": rows.days, "ward": rows.ward.replace("icu", "icu [a]")})
    formula = "died ~ age + `age[years]` + ward + bs(age, knots=[40], lower_bound=0, upper_bound=110, degree=1)"
    terms = agreed(table, formula).terms
    assert [term.columns for term in terms] == [(0,), (1,), (2, 3), (4, 5)]
    assert [term.name for term in terms][1:3] == ["age[years]", "ward"]
    assert terms[1].factors == {"age[years]"}


def test_two_columns_of_one_name_are_refused(rows):
    with pytest.raises(ArgumentError, match="'age:days'"):
        agreed(rows.assign(**{"age:days": 1.0}), "died ~ age:days + `age:days`").names  # noqa: B018


# ----------------------------------------------------------------------------------------------------
# What transforms learn
# ----------------------------------------------------------------------------------------------------


def test_means_and_scales_are_those_of_all_sites(rows):
    formula = "died ~ center(age) + scale(log(days)) + standardize(age):ward"
    right = formulaic.model_matrix(formula, rows).rhs.drop(columns="Intercept")
    agreement = agreed(rows, formula)
    found, _ = stacked(rows, agreement)
    assert list(found) == list(right)
    # means and squares are sums of 90 terms: each is within 90 eps of its value, relative to the largest term
    np.testing.assert_allclose(found, right, rtol=0, atol=4 * 90 * EPS * 99)
    assert any(line.startswith("center(age): mean") for line in agreement.lines)

    # broken twin: a site centres by its own mean
    part = parts_of(rows)["Basel"]
    own = replace(agreement, learned={**agreement.learned, "center(age)": {"center": part.age.mean(), "scale": None}})
    assert abs(design(part, own).matrix[:, 0] - design(part, agreement).matrix[:, 0]).max() > 0.1


def test_splines_in_one_process_have_the_pooled_knots_to_the_last_bit(rows):
    formula = "died ~ bs(age, 5) + bs(log(days), df=4, degree=2)"
    right = formulaic.model_matrix(formula, rows).rhs.drop(columns="Intercept")
    agreement, _ = make_designs(parts_of(rows), formula)
    found, _ = stacked(rows, agreement)
    assert list(found) == list(right)
    np.testing.assert_array_equal(found, right)
    assert agreement.learned["bs(age, 5)"]["knots"] == np.quantile(rows.age, [1 / 3, 2 / 3]).tolist()
    again = read_as(Agreement, json.loads(json.dumps(asdict(agreement))), "message")
    np.testing.assert_array_equal(stacked(rows, again)[0], right)


def test_splines_of_tables_that_stay_apart_need_their_knots_in_the_formula(rows):
    with pytest.raises(ArgumentError, match=r"bs\(age, 4\).*knots="):
        agreed(rows, "died ~ bs(age, 4)")
    formula = "died ~ bs(age, knots=[40, 60], lower_bound=0, upper_bound=110)"
    right = formulaic.model_matrix(formula, rows).rhs.drop(columns="Intercept")
    np.testing.assert_array_equal(stacked(rows, agreed(rows, formula))[0], right)
    narrow = agreed(rows, "died ~ bs(age, knots=[40, 60], lower_bound=30, upper_bound=70)")
    with pytest.raises(TableError, match=r"site 'Basel': bs.*outside of its bounds"):
        stacked(rows, narrow)
    for knots in ("[60, 40]", "[200]", "'a'", "3"):
        with pytest.raises(ValueError, match=r"rising knots|numbers for knots"):
            agreed(rows, f"died ~ bs(age, knots={knots}, lower_bound=0, upper_bound=110)")


# ----------------------------------------------------------------------------------------------------
# What sites agree on
# ----------------------------------------------------------------------------------------------------


def describe(formula, /, **columns):
    return describe_columns(columns, formula)


def refusal(tables, formula, **options):
    with pytest.raises(TableError) as caught:
        agree({site: describe_columns(table, formula) for site, table in tables.items()}, formula, **options)
    return caught.value


def test_each_refusal_names_site_and_column():
    fine = {"y": [0, 1, 1], "x": [1.0, 2.0, 3.0], "w": ["a", "b", "c"]}
    wrong = {
        "is not in the table; its own name for it is 'X'": ({**fine, "X": fine["x"]}, ("x",)),
        "holds dates": ({**fine, "x": np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "M8[D]")}, ()),
        "holds text ('old') where site 'A' has numbers": ({**fine, "x": ["1", "2", "old"]}, ()),
        "holds 1 infinite": ({**fine, "x": [1.0, np.inf, 2.0]}, ()),
        "mixes numbers, text": ({**fine, "x": [1, "b", 2]}, ()),
        "is missing in 3 of 3 rows": ({**fine, "x": [None, None, None]}, ()),
    }
    for says, (table, without) in wrong.items():
        table = {name: column for name, column in table.items() if name not in without}
        error = refusal({"A": fine, "B": table}, "y ~ x + w")
        assert says in str(error)
        assert (error.site, error.column) == ("B", "x")
    error = refusal({"A": fine, "B": {**fine, "w": ["a", "B", "c"]}}, "y ~ x + w")
    assert "differ in case" in str(error)
    assert error.column == "w"


def test_a_misspelt_column_has_the_name_that_was_meant():
    fine = {"died": [0, 1], "age": [1.0, 2.0], "lab1": [1.0, 2.0], "lab2": [0.0, 1.0]}
    without = {name: column for name, column in fine.items() if name != "lab2"}
    for formula, tables, column, site, meant in [
        ("died ~ agee", (fine, fine), "agee", None, "'age'"),
        ("died ~ Age", (fine, fine), "Age", None, "'age'"),
        ("died ~ zzz", (fine, fine), "zzz", None, "leave it out"),
        ("outcome ~ age", (fine, fine), "outcome", None, ""),
        ("died ~ agee", (fine,), "agee", "A", "'age'"),
        # lab1 is in the formula already, and so is not what lab2 was meant to be
        ("died ~ lab1 + lab2", (fine, without), "lab2", "B", "leave it out"),
        ("died ~ lab2", (fine, without), "lab2", "B", "'lab1'"),
        ("died ~ lab2", (without, without), "lab2", None, "'lab1'"),
    ]:
        error = refusal(dict(zip("AB", tables, strict=False)), formula)
        assert (error.column, error.site) == (column, site)
        assert meant in error.remedy
        assert meant or not error.remedy


def test_a_reference_is_a_level_of_some_site():
    tables = {"A": {"y": [0, 1], "w": ["a", "b"]}, "B": {"y": [0, 1], "w": ["b", "c"]}}
    said = {site: describe_columns(table, "y ~ w") for site, table in tables.items()}
    assert agree(said, "y ~ w", reference={"w": "c"}).names == ("w[T.a]", "w[T.b]")
    assert "did you mean 'c'" in str(refusal(tables, "y ~ w", reference={"w": "C"}))
    assert "no level 'd'" in str(refusal(tables, "y ~ C(w, Treatment('d'))"))
    for options in ({"reference": {"z": "a"}}, {"reference_site": "A"}, {"site_intercepts": True, "client": "w"}):
        with pytest.raises(ArgumentError, match=next(iter(options)).replace("site_intercepts", "client")):
            agree(said, "y ~ w", **options)
    assert refusal(tables, "y ~ w", reference={"y": "1"}).column == "y"


def test_codes_are_levels_whether_they_are_read_as_numbers_or_as_text():
    tables = {"A": {"y": [0, 1], "code": [1, 2.0]}, "B": {"y": [0, 1], "code": ["2", " 10"]}}
    formula = "y ~ C(code, Treatment(2))"
    agreement = agree({site: describe_columns(table, formula) for site, table in tables.items()}, formula)
    assert agreement.columns["code"].levels == ("1", "2", "10")
    assert agreement.names == (f"{formula[4:]}[T.1]", f"{formula[4:]}[T.10]")
    np.testing.assert_array_equal(design(tables["B"], agreement).matrix, [[0.0, 0.0], [0.0, 1.0]])
    assert "code: numbers at 'A' were read as levels of text" in agreement.lines
    for twin in ("01", "2.0"):
        error = refusal({**tables, "C": {"y": [0, 1], "code": [twin, "10"]}}, formula)
        assert (error.column, repr(twin) in error.fact) == ("code", True)
    texts = {site: {"y": [0, 1], "code": codes} for site, codes in {"A": ["1", "b"], "B": ["b", "01"]}.items()}
    assert "zeros alone" in str(refusal(texts, "y ~ code", ignore_case=True))
    said = {site: describe_columns(table, "y ~ code") for site, table in texts.items()}
    assert agree(said, "y ~ code", as_written="code").columns["code"].levels == ("01", "1", "b")


def test_a_declared_factor_is_one_even_where_its_levels_are_numbers():
    tables = {
        "A": pd.DataFrame({"y": [0, 1, 1], "code": pd.Categorical([3, 1, 3], categories=[3, 1])}),
        "B": pd.DataFrame({"y": [0, 1], "code": pd.Categorical(["1", "3"])}),
    }
    agreement = agree({site: describe_columns(table, "y ~ code") for site, table in tables.items()}, "y ~ code")
    assert agreement.columns["code"].levels == ("1", "3")
    alone = agree({"A": describe_columns(tables["A"], "y ~ code")}, "y ~ code")
    assert alone.names == ("code[T.1]",)
    np.testing.assert_array_equal(design(tables["A"], alone).matrix, [[0.0], [1.0], [0.0]])
    error = refusal({**tables, "C": {"y": [0, 1], "code": [1, 3]}}, "y ~ code")
    assert (error.site, error.column) == ("A", "code")
    # text at one site that looks like numbers: C(…) says what is meant
    tables = {"A": {"y": [0, 1], "w": ["a", "10"]}, "B": {"y": [0, 1], "w": ["10", "10"]}}
    error = refusal(tables, "y ~ w")
    assert (error.site, error.column) == ("A", "w")
    assert "write C(w)" in str(error)
    said = {site: describe_columns(table, "y ~ C(w)") for site, table in tables.items()}
    assert agree(said, "y ~ C(w)").names == ("C(w)[T.a]",)


@pytest.mark.parametrize(("held", "written"), [("A", str), ("B", float), ("C", str)])
def test_the_site_that_holds_the_words_is_named_however_the_others_write_their_numbers(held, written):
    """In one file a word makes texts of all sites' numbers. Twin: without the word nobody is accused of it."""
    tables = {site: {"y": [0, 1], "age": list(map(written, (61, 54)))} for site in "ABC"}
    agree({site: describe_columns(table, "y ~ log(age)") for site, table in tables.items()}, "y ~ log(age)")
    if written is str:
        assert "holds numbers written as text at every site" in str(refusal(tables, "y ~ age"))
    tables[held]["age"] = ["61", "unknown"]
    error = refusal(tables, "y ~ age")
    other = next(site for site in tables if site != held)
    assert (error.site, error.column) == (held, "age")
    assert error.fact == f"holds text ('unknown') where site {other!r} has numbers"
    assert "if 'unknown' stands for a missing value, write NaN there" in str(error)
    in_options = worded(error, missing=lambda words: f"add --na {words[0]}")
    assert "if 'unknown' stands for a missing value, add --na unknown" in in_options
    assert ("write C(age)" in str(error)) == (written is str)


def test_levels_of_few_rows_are_not_named_and_their_rows_are_refused_or_dropped():
    formula = "y ~ w"
    tables = {
        "A": {"y": [0, 1, 1, 0, 1], "w": ["a", "a", "b", "b", "rare"]},
        "B": {"y": [0, 1, 1, 0, 1], "w": ["a", "a", "a", "b", "b"]},
    }
    said = {site: describe_columns(table, formula, minimum_count=2) for site, table in tables.items()}
    assert "rare" not in json.dumps(asdict(said["A"]))
    with pytest.raises(TableError, match="site 'A': column 'w' has 1 level"):
        agree(said, formula)
    agreement = agree(said, formula, drop_withheld=True)
    kept = are_named(tables["A"]["w"], said["A"].columns["w"])
    assert kept.tolist() == [True] * 4 + [False]
    assert said["A"].n_complete == len(design(tables["B"], agreement, "B").y) - 1 == kept.sum()
    with pytest.raises(TableError, match="the level 'rare'"):
        design(tables["A"], agreement, "A")


def test_no_value_of_a_row_is_sent_for_numbers():
    table = {"y": [0, 1, 1], "x": ["61", "54", "38"], "z": [61, 54, 38]}
    said = json.dumps(asdict(describe_columns(table, "y ~ x + log(z)")))
    assert not any(value in said for value in ("61", "54", "38"))


def test_sites_may_have_intercepts(rows):
    formula = "died ~ age + ward"
    agreement = agreed(rows, formula, site_intercepts=True, client="hospital", reference_site="Bern")
    assert agreement.names[-2:] == ("hospital[T.Basel]", "hospital[T.Chur]")
    without = {site: part.drop(columns="hospital") for site, part in parts_of(rows).items()}
    for site, part in without.items():
        found = design(part, agreement, site).matrix[:, -2:]
        np.testing.assert_array_equal(found, np.tile([float(site == "Basel"), float(site == "Chur")], (len(part), 1)))
        np.testing.assert_array_equal(found, design(rows[rows.hospital == site], agreement).matrix[:, -2:])
    with pytest.raises(TableError, match="'hospital' is not in the table"):
        design(without["Bern"], agreement)
    with pytest.raises(TableError, match="'Genf', which is not among those agreed"):
        design(without["Bern"], agreement, "Genf")


def test_offsets_weights_and_missing_rows(rows):
    gaps = rows.assign(age=rows.age.where(rows.index % 7 != 0), weight=1.0 + rows.index % 3)
    formula = "died ~ age + offset(log(days)) + offset(days/10)"
    agreement = agreed(gaps, formula, weights="weight")
    found, made = stacked(gaps, agreement)
    complete = gaps.dropna()
    np.testing.assert_array_equal(found.index, complete.index)
    for site, part in parts_of(gaps).items():
        here = complete[complete.hospital == site]
        np.testing.assert_array_equal(made[site].offset, np.log(here.days) + here.days / 10)
        np.testing.assert_array_equal(made[site].weights, here.weight)
        assert made[site].missing == {"age": len(part) - len(here)}
        assert any(f"{site!r}: {len(part) - len(here)} of {len(part)} rows" in line for line in agreement.lines)
    wrong = rows.assign(days=rows.days.where(rows.hospital != "Chur", 0.0))
    with pytest.raises(TableError, match=r"site 'Chur': log\(days\) is not finite in \d+ row"):
        stacked(wrong, agreed(wrong, "died ~ log(days)"))
    with pytest.raises(TableError, match=r"site 'Chur': log\(days\) is not finite"):
        stacked(wrong, agreed(wrong, "died ~ age + offset(log(days))"))


def test_predictions_need_no_target_and_refuse_what_they_do_not_know(rows):
    agreement = agreed(rows, "died ~ age*ward")
    new = {"ward": ["icu", "medical"], "age": [50, 60]}
    found = design(new, agreement, for_prediction=True)
    assert found.y is None
    np.testing.assert_array_equal(found.matrix, [[50, 0, 0, 0, 0], [60, 1, 0, 60, 0]])
    with pytest.raises(TableError, match="'dental', which is not among those agreed"):
        design({**new, "ward": ["icu", "dental"]}, agreement, for_prediction=True)
    with pytest.raises(TableError, match="'age' is missing in 1 row"):
        design({**new, "age": [50, None]}, agreement, for_prediction=True)
    alone = agreed(rows, "died ~ 1")
    assert alone.names == ()
    assert design(new, alone, for_prediction=True).matrix.shape == (2, 0)


def test_descriptions_are_checked_when_they_come_from_elsewhere():
    plain = asdict(describe("y ~ w", y=[0, 1], w=["a", "b"]))
    assert read_as(SiteColumns, json.loads(json.dumps(plain)), "message") == SiteColumns(
        **{**plain, "columns": describe("y ~ w", y=[0, 1], w=["a", "b"]).columns}
    )
    for wrong in (
        {"n_complete": 3},
        {"n_rows": -1},
        {"columns": {"w": {"kind": "number", "missing": -1}}},
        {"columns": {"w": {"kind": "text", "levels": {" a": 1}}}},
        {"columns": {"w": {"kind": "what"}}},
    ):
        with pytest.raises(ArchiveError):
            read_as(SiteColumns, {**json.loads(json.dumps(plain)), **wrong}, "message")
    with pytest.raises(TableError, match="described its table for the formula"):
        agree({"A": read_as(SiteColumns, json.loads(json.dumps(plain)), "message")}, "y ~ C(w)")
    with pytest.raises(TableError, match="stands in the table twice"):
        describe("y ~ w", **{"y": [0], "w": ["a"], " w": ["b"]})
    with pytest.raises(TableError, match="2 rows as the table has, got 1"):
        describe("y ~ w", y=[0, 1], w=["a"])
    with pytest.raises(ArgumentError, match="at least"):
        agree({}, "y ~ w")


@pytest.mark.parametrize("coding", ["Treatment('b')", "Sum", "Poly"])
def test_a_coding_of_the_formula_has_its_own_reference(coding):
    """The lines name none, and another one is refused. Twin: without a coding both are there."""
    rows = pd.DataFrame({"g": list("abc") * 8, "y": np.arange(24.0) % 5, "s": list("pq") * 12})
    fit = partial(FederatedLinearRegression.from_formula, data=rows, client="s")
    assert not any("reference" in line for line in fit(f"y ~ C(g, {coding})").agreement_.lines)
    assert "reference 'a'" in fit("y ~ C(g)").agreement_.lines[-1]
    with pytest.raises(ArgumentError) as refused:
        fit(f"y ~ C(g, {coding})", reference={"g": "c"})
    assert refused.value.argument == "reference"
    assert "reference 'c'" in fit("y ~ C(g)", reference={"g": "c"}).agreement_.lines[-1]
