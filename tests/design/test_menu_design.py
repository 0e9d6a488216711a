"""Natural splines, orthogonal polynomials and null models over four unequal sites, against R's pooled model.matrix."""

import json
from dataclasses import asdict

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np._archive import ArchiveError, read_as  # noqa: E402
from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.design import bases, formula  # noqa: E402
from bayesadmm_np.design.levels import TableError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM  # noqa: E402
from bayesadmm_np.estimators.formula_fit import make_designs, split_table  # noqa: E402
from bayesadmm_np.federation import DisclosureError, GLMTable, Site  # noqa: E402
from bayesadmm_np.federation.folders import sent  # noqa: E402
from oracles.menu import apart, read  # noqa: E402
from oracles.overrides import roomy  # noqa: E402

CASES = read("design")
CURVES = [name for name, case in CASES.items() if case["columns"]]


def columns_of(case):
    """Return the design of all sites, in R's order of rows and columns, and R's own."""
    rows = pd.DataFrame(case["data"])
    agreement, made = make_designs(split_table(rows, "site"), case["formula"])
    order = [rows.index[rows.site == site][part.kept] for site, part in made.items()]
    stacked = np.concatenate([part.matrix for part in made.values()])[np.argsort(np.concatenate(order))]
    return agreement, stacked, np.array(case["columns"]).T


@pytest.mark.parametrize("name", CURVES)
def test_columns_are_those_of_r(name):
    agreement, found, right = columns_of(CASES[name])
    assert found.shape == right.shape == (len(right), agreement.n_columns)
    assert np.abs(found - right).max() <= 1e-10 * np.abs(right).max()


@pytest.mark.parametrize("name", CASES)
def test_fits_and_predictions_are_those_of_r(name):
    case = CASES[name]
    rows = pd.DataFrame(case["data"])
    model = FederatedGLM.from_formula(case["formula"], rows, "site", kind=case["kind"])
    found = sorted(model.summary().rows, key=lambda row: not row.is_intercept)
    case = {**case, "coef": np.atleast_1d(case["coef"]), "std_err": np.atleast_1d(case["std_err"])}
    far, wide = apart([row.coef for row in found], case, [row.std_err for row in found])
    assert far < 1e-6
    assert wide < 1e-6
    assert model.log_likelihood_ == pytest.approx(case["log_likelihood"], rel=1e-9)
    new = rows.dropna().head(5)
    means = model.predict_proba(new)[:, 1] if case["kind"] == "logistic" else model.predict(new)
    np.testing.assert_allclose(means, case["fitted"], rtol=1e-7)


def sites_of(x):
    """Four unequal sites: the first has two values, another a tenth of the range."""
    x = np.sort(x)
    parts = np.split(x, [len(x) // 10, 3 * len(x) // 10, 6 * len(x) // 10])
    parts[0] = np.repeat(x[[0, len(x) // 2]], [5, len(parts[0]) - 5])
    return {f"s{k}": pd.DataFrame({"y": np.arange(len(own)) % 2.0, "x": own}) for k, own in enumerate(parts)}


def pooled_polynomials(tables, degree):
    """Return the columns of R's definition: the orthogonal factor of powers of the pooled rows, its signs R's."""
    x = np.concatenate([table["x"] for table in tables.values()])  # at 1e5 standard deviations rounding is 1e-11
    z = (x - x.mean()) / x.std()
    q, r = np.linalg.qr(np.polynomial.legendre.legvander(z / np.abs(z).max(), degree))
    return (q * np.sign(np.diag(r)))[:, 1:]


@pytest.mark.parametrize("degree", [1, 3, 5])
@pytest.mark.parametrize("place", [0.0, 1e5])
def test_polynomials_keep_their_digits(rng, degree, place):
    """Against a recurrence of 60 digits over 300 rows the columns are within 1e-14, of degree 10 within 4e-12."""
    tables = sites_of(place + rng.gamma(2.0, 1.0, 2000))
    _, made = make_designs(tables, f"y ~ poly(x, {degree})")
    found = np.concatenate([part.matrix for part in made.values()])
    right = pooled_polynomials(tables, degree)
    assert np.abs(found - right).max() < (1e-11 if not place else 1e-9) * np.abs(right).max()


def test_arecurrence_of_one_site_is_another(monkeypatch):
    """The broken twin has the α of the last site in place of the pooled one: columns are no longer R's."""
    pooled = formula.recurrence_of

    def own(call, sites):
        last = list(sites.values())[-1].moments[call.argument]
        return {**pooled(call, sites), "alpha": list(last.alpha[: call.options["degree"]])}

    monkeypatch.setattr(formula, "recurrence_of", own)
    _, found, right = columns_of(CASES["fifth"])
    assert np.abs(found - right).max() > 1e-2 * np.abs(right).max()


def test_a_spline_that_bends_beyond_its_bounds_is_another(monkeypatch):
    """The broken twin takes the cubic of the last interval, as bs(…, extrapolation='extend') does."""
    monkeypatch.setattr(bases.np, "clip", lambda values, low, high: values)
    _, found, right = columns_of(CASES["beyond"])
    assert np.abs(found - right).max() > 1e-2


def test_rows_without_another_column_count_as_in_r():
    """Ozone lacks 37 of 153 values; poly(Temp, 3) is orthogonal over all rows, and over no site's."""
    agreement, found, _ = columns_of(CASES["missing"])
    recurrence = agreement.learned["poly(Temp, 3)"]
    x = np.array(CASES["missing"]["data"]["Temp"], float)
    whole = bases.orthogonal_polynomials(x, **recurrence)
    assert len(found) == 116
    assert recurrence["beta"][0] == pytest.approx(153.0)
    np.testing.assert_allclose(whole.T @ whole, np.eye(3), atol=1e-12)
    assert np.abs(found[:, :3].T @ found[:, :3] - np.eye(3)).max() > 0.1


def test_arecurrence_of_a_stranger_has_its_form(rng):
    agreement, _ = make_designs(sites_of(rng.gamma(2.0, 1.0, 200)), "y ~ poly(x, 2)")
    with pytest.raises(ValueError, match="recurrence"):
        formula.Moments(40, 0.0, 1.0, (1.0,) * 11, (1.0,) * 11)  # a server would work for an hour at ten thousand
    for found in (
        {"alpha": [2.0, np.nan], "beta": [60.0, 1.0, 1.0]},
        {"alpha": [2.0, 2.0], "beta": [60.0, -1.0, 1.0]},
        {"alpha": [2.0], "beta": [60.0, 1.0]},
        {"alpha": 2.0, "beta": 1.0},
        {"alpha": None, "beta": [60.0, 1.0, 1.0]},
        {"center": 2.0, "scale": 1.0},
    ):
        plain = asdict(agreement) | {"learned": {"poly(x, 2)": found}}
        with pytest.raises(ArchiveError):
            read_as(type(agreement), json.loads(json.dumps(plain)), "message")


@pytest.mark.parametrize(("count", "degree"), [(1, 2), (2, 3), (1, 1)])
def test_a_site_keeps_back_a_polynomial_that_tells_a_row(tmp_path, count, degree):
    """Of no more values than the degree the recurrence tells each, and its rows; of one or two rows it stays."""
    for rows, is_kept in ((count, True), (5, False)):
        table = {"y": np.arange(40) % 2, "x": np.repeat([1.0, 2.0], [40 - rows, rows])}
        site = Site("a", GLMTable(table, f"y ~ poly(x, {degree})"), rules=roomy())
        if is_kept:
            with pytest.raises(DisclosureError, match="minimum-count"):
                sent(site, tmp_path, site.hello())
        else:
            sent(site, tmp_path, site.hello())


def test_bad_splines_and_polynomials_are_refused_in_words(rng):
    tables = sites_of(rng.gamma(2.0, 1.0, 200))
    few = {name: table.assign(b=np.arange(len(table)) % 2) for name, table in tables.items()}
    for text, error, says in (
        ("ns(x, knots=(1, 1), lower_bound=0, upper_bound=9)", ArgumentError, "rising knots"),
        ("ns(x, knots=(9,), lower_bound=9, upper_bound=0)", ArgumentError, "between its bounds"),
        ("ns(b, df=3)", ArgumentError, "they are at 0, 1, between 0 and 1"),
        ("ns(x, df=3, lower_bound=50, upper_bound=60)", TableError, "no value between the bounds 50 and 60"),
        ("poly(b, 2)", TableError, "too few values for poly(b, 2)"),
        ("poly(log(b), 2)", TableError, "site 's0': poly(log(b), 2) has no finite polynomials"),
    ):
        with pytest.raises(error) as raised:
            make_designs(few, f"y ~ {text}")
        assert says in str(raised.value)
