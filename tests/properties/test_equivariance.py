"""λ-space arithmetic does not depend on coordinates: an invertible change of parameters maps iterates onto each other.

Examples a test: two fifths of the profile's (10 by default, 200 in the wide profile); broken twins run on every
example, except those marked "some" (50 cases at most are searched).

θ = Aθ' + b turns X into XA with offset Xb, N(m, S⁻¹) into N(A⁻¹(m − b), (AᵀSA)⁻¹) and a site (v, V) into
(Aᵀ(v − Vb), AᵀVA). Fisher lengths do not change, so that differences are measured in them.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from oracles.draws import (
    CLASSES,
    SOLVER,
    Case,
    assert_some_fail,
    budget,
    cases,
    data,
    fisher,
    member,
    size,
    spd,
)
from oracles.problems import EPS

M = ba.methods
fails = pytest.raises(AssertionError)

ROWS = {
    "BayesADMM": M.BayesADMM(1.0),
    "damped BayesADMM": M.BayesADMM(1.5, 0.5),
    "PVI": M.PVI(),
    "damped PVI": M.PVI(0.4),
    "AMA": M.AMA(2.0),
    "FedLapCov": M.FedLapCov(0.7),
    "BLR": M.BLR(0.3),
}
MADE = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson, "squares": ba.losses.LeastSquares}
assert not set(MADE) & set(CLASSES)

losses = st.sampled_from(list(MADE))
small = cases(max_d=4, max_clients=3, max_rows=6, max_decades=1.0)
ROUNDS = 3


class Change:
    """θ = Aθ' + b, drawn with condition number up to 30 and not symmetric."""

    def __init__(self, case, translates=True):
        rng, d = case.other(21).rng, case.d
        basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
        self.A = basis @ spd(rng, d, 1.5)
        self.b = rng.standard_normal(d) if translates else np.zeros(d)

    def clients(self, name, parts):
        return [MADE[name](X @ self.A, y, offset=X @ self.b) for X, y in parts]

    def prior(self, q):
        mean, precision = np.linalg.solve(self.A, q.mean - self.b), self.A.T @ np.asarray(q.precision) @ self.A
        return type(q)(mean, 0.5 * (precision + precision.T))

    def natural(self, natural, *, transpose=True):
        """`transpose=False` is the broken twin that moves a covector like a vector."""
        A = self.A if transpose else np.linalg.inv(self.A).T
        if len(natural.parts) == 1:
            return Natural(A.T @ natural.linear)
        precision = A.T @ natural.precision @ A
        return Natural(A.T @ (natural.linear - natural.precision @ self.b), 0.5 * (precision + precision.T))


def allowed(change, prior, rho, *naturals):
    """Fisher length by which two runs may differ.

    Every client solve ends within 1e-11 √n of its answer (over a modulus of one: the dual and the KL term of these
    rows are together a proper distribution), and sums over K clients and ROUNDS rounds amplify it by
    (1 + ρ + 1/ρ)K a round at most, in practice by less than the factor of 100 taken here. Rounding of AᵀSA costs
    κ(A)²κ(S) ε.
    """
    kappa = np.linalg.cond(change.A) ** 2 * np.linalg.cond(prior.covariance_matrix)
    return 100 * 1e-11 * np.sqrt(prior.natural.size) + 100 * kappa * EPS * max(1.0, *(size(n) for n in naturals))


def run(row, clients, prior, rounds):
    options = {"rounds": rounds, "tol": 1e-300, "raise_on_failure": False, "solver": SOLVER}
    if isinstance(row, M.Method) and row.client == "gradient":
        del options["solver"]
    return ba.run(row, clients, prior, **options)


def check(row, name, case, *, family="full", translates=True, transpose=True, rounds=ROUNDS):
    parts, prior, change = data(name, case), member(family, case), Change(case, translates)
    plain = Change(case)
    plain.A, plain.b = np.eye(case.d), np.zeros(case.d)
    moved_prior = change.prior(prior)
    for t in range(1, rounds + 1):
        a = run(row, plain.clients(name, parts), prior, t)
        b = run(row, change.clients(name, parts), moved_prior, t)
        if a.status.is_failure or b.status.is_failure:  # then both failed, at the same round
            assert (a.status, a.rounds) == (b.status, b.rounds)
            return
        q = b.posterior
        bound = allowed(change, prior, 1.0, a.posterior.natural, *a.sites)
        carried = change.natural(a.posterior.natural, transpose=transpose)
        assert fisher(q, carried - q.natural) <= bound, (t, fisher(q, carried - q.natural), bound)
        for x, y in zip(a.sites, b.sites, strict=True):
            carried = change.natural(x, transpose=transpose)
            assert fisher(q, carried - y) <= bound, (t, fisher(q, carried - y), bound)


@pytest.mark.parametrize("row", ROWS)
@given(name=losses, case=small)
@budget(0.4)
def test_iterates_of_natural_duals_are_mapped_onto_each_other(row, name, case):
    check(ROWS[row], name, case)
    with fails:
        check(ROWS[row], name, case, transpose=False)


@pytest.mark.parametrize("seed", range(3))
def test_so_are_those_of_an_accelerated_row(seed):
    """Three fixed cases: the search for a smallest failing one would cost a minute."""
    check(ba.Accelerated(M.PVI(0.5)), "logistic", Case(d=3, n_clients=2, rows=5, decades=1.0, skew=0.3, seed=seed))


@given(name=losses, case=small, gamma=st.floats(0.2, 1.0))
@budget(0.4)
def test_so_are_those_of_a_fixed_precision_that_is_carried_along(name, case, gamma):
    """Preconditioned ADMM and FedLap under a linear change (a translation would change the base measure h)."""
    for row in (M.PreconditionedADMM(1.0), M.FedLap(gamma)):
        check(row, name, case, family="fixed", translates=False)
        with fails:
            check(row, name, case, family="fixed", translates=False, transpose=False)


def test_other_methods_are_not_equivariant():
    """Some: duals along μ, whatever the statistic's scale (in one dimension too)."""
    for scale in (1.0, 2.0):
        row = M.BregmanADMM(1.0, 0.05, scale)
        assert_some_fail(lambda name, case, row=row: check(row, name, case, translates=False), losses, small)
