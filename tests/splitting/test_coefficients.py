"""Scalars of a round against Eq. 15, 16 and 54 as they are written, for every row of the table."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.splitting.average import as_step
from bayesadmm_np.splitting.method import circuit_weights, client_coefficients, gather_weights

ROWS = {name: as_step(make()).row for name, make in ba.methods.TABLE.items()}
ROWS["FedLap, by rows"] = ba.methods.FedLap(gamma="rows")
ROWS["FedAvg, plain mean"] = ba.methods.FedAvg(shares="equal")
ROWS["FedDyn, plain mean"] = ba.methods.FedDyn(shares="equal")
ROWS["BayesADMM, damped"] = ba.methods.BayesADMM(rho=0.3, gamma=0.5)
SHARES = (0.5, 0.2, 0.3)
EXACT = 4 * np.finfo(float).eps
"""At most four roundings lie between the table's numbers and a coefficient."""


def written(row, share):
    """(ρ_k, γ_k, π_k) as the table says them."""
    K = len(SHARES)
    rho = row.rho * K * share if row.client_share == "rows" else row.rho
    step = {"equal": row.dual_step, "rows": row.dual_step * K * share, "dual": row.dual_step * share}[row.client_share]
    return rho, step, share if row.prior_at == "clients" else 0.0


def test_a_client_has_the_numbers_of_the_table():
    for name, row in ROWS.items():
        for share in SHARES:
            found = tuple(client_coefficients(row, share, len(SHARES)))
            np.testing.assert_allclose(found, written(row, share), rtol=EXACT, atol=0, err_msg=name)
            assert all(type(number) is float for number in found)


CASES = [(1.0, None, None), (0.25, 0.7, None), (1.0, 1.0, (True, False, True)), (0.25, 0.0, (False, False, True))]
"""Weight of the family's prior, α where it is not the table's, and who is present."""


@pytest.mark.parametrize(("w", "alpha", "present"), CASES)
def test_the_server_has_the_weights_of_equation_54(w, alpha, present):
    for name, row in ROWS.items():
        given = 0.9 if row.prior_at == "clients" and alpha == 1.0 else alpha  # the divisor is 1 − α there
        found = gather_weights(row, SHARES, alpha=given, prior_weight=w, present=present)
        a = row.server_alpha(3) if given is None else given
        mean = np.array(SHARES if row.server_share == "rows" else [1 / 3] * 3)
        if row.mean_over == "present" and present is not None:
            mean = mean * present / mean[list(present)].sum()
        at_server = row.prior_at == "server"
        divisor = 1 - a + a * w * at_server
        expected = (*(1 - a) * mean / divisor, a / divisor, a / divisor * at_server)
        numbers = (*found.naturals, found.sites, found.prior)
        np.testing.assert_allclose(numbers, expected, rtol=3 * EXACT, atol=0, err_msg=name)
        assert all(type(number) is float for number in numbers)


def test_the_weights_keep_a_fixed_point():
    """λ_k = λ_g and wλ_g = η_0 + Ση_k (none at the clients: ρΣ_kη_k = 0): Eq. 54 answers λ_g, for whatever α."""
    for name, row in ROWS.items():
        for alpha in (None, 0.3):
            found = gather_weights(row, SHARES, alpha=alpha, prior_weight=0.25)
            served, prior = 1.7, 0.4
            sites = 0.25 * served - prior if row.prior_at == "server" else 0.0
            again = sum(found.naturals) * served + found.sites * sites + found.prior * prior
            assert abs(again - served) < 20 * np.finfo(float).eps, name


def test_a_closed_circuit_is_the_fixed_point_of_eq_54_with_alpha_one():
    """wλ_g = c_0η_0 + Σ_kη_k; a twin without the prior is not within the tolerance."""
    served, prior = 1.7, 0.4
    for name, row in ROWS.items():
        weight, share = circuit_weights(row, 0.25)
        assert (weight, share) == ((0.25, 1.0) if row.prior_at == "server" else (0.0, 0.0)), name
        if weight:
            found = gather_weights(row, SHARES, alpha=1.0, prior_weight=0.25)
            closed = found.sites * (weight * served - share * prior) + found.prior * prior
            assert closed == pytest.approx(served, rel=EXACT), name
            assert found.sites * (weight * served) + found.prior * prior != pytest.approx(served, rel=1e-3), name


@pytest.mark.parametrize(("shares", "mean", "rho"), [("rows", SHARES, 3.0), ("equal", (1 / 3,) * 3, 2.0)])
def test_shares_are_of_rows_or_equal(shares, mean, rho):
    """FedAvg's mean, and FedDyn's with ρ_k of the client that has half of the rows: ρKN_k/N = 3, or ρ = 2."""
    assert gather_weights(ba.methods.FedAvg(shares), SHARES).naturals == pytest.approx(mean, rel=EXACT)
    row = ba.methods.FedDyn(2.0, shares)
    naturals = np.array(gather_weights(row, SHARES).naturals)
    np.testing.assert_allclose(naturals / naturals.sum(), mean, rtol=3 * EXACT)
    found = client_coefficients(row, 0.5, 3)
    assert (found.rho, found.step) == pytest.approx((rho, rho), rel=EXACT)
    for make in (ba.methods.FedAvg, ba.methods.FedDyn):
        with pytest.raises(ValueError, match=r"^shares must be 'rows' or 'equal', got 'row'\."):
            make(shares="row")
