"""Natural splines, orthogonal polynomials and null models over four unequal sites, against R's pooled model.matrix."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.design import bases, formula  # noqa: E402
from bayesadmm_np.design.levels import TableError  # noqa: E402
from bayesadmm_np.estimators import FederatedGLM  # noqa: E402
from bayesadmm_np.estimators.formula_fit import make_designs, split_table  # noqa: E402
from oracles.menu import apart, read  # noqa: E402

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
