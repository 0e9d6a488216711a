"""Partial likelihoods and piecewise constant hazards: plain sums over risk sets, derivatives, what changes nothing.

Bounds are 1e-10 or so of the size where both sides are sums of some hundred terms of size one.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.families import FullGaussian
from bayesadmm_np.losses import Poisson
from bayesadmm_np.losses.expectations import Delta
from bayesadmm_np.losses.survival import CoxPartialLikelihood, PiecewiseExponential
from bayesadmm_np.splitting.distance import client_sums, distance_bound
from oracles.refusals import assert_refused

TIES = ("efron", "breslow")
both_ties = pytest.mark.parametrize("ties", TIES)
CUTS = (1.5, 3.0, 5.0)


class Drawn:
    """Rows with ties, late entries, weights and offsets, and three columns; predictors have a range of some units."""

    def __init__(self, seed=0, n=60, entries=True, tied=True):
        rng = np.random.default_rng(seed)
        self.X = rng.normal(size=(n, 3)) * [1.0, 0.3, 4.0] + [0.0, 2.0, 60.0]
        time = rng.exponential(3.0, n) + 0.5
        self.time = np.ceil(time) if tied else time
        self.entry = np.where(rng.random(n) < 0.5, self.time * rng.random(n), 0.0) if entries else np.zeros(n)
        self.status = (rng.random(n) < 0.6).astype(float)
        self.w, self.offset = rng.uniform(0.3, 2.0, n), rng.normal(size=n)
        self.theta = np.array([0.4, -0.7, 0.1])
        self.has_entries = entries

    @property
    def y(self):
        return np.column_stack([*[self.entry] * self.has_entries, self.time, self.status])

    def cox(self, rows=slice(None), **changed):
        given = {"weights": self.w[rows], "offset": self.offset[rows], **changed}
        return CoxPartialLikelihood(self.X[rows], self.y[rows], **given)

    def pieces(self, **changed):
        X = np.pad(self.X / [1.0, 1.0, 60.0], ((0, 0), (len(CUTS) + 1, 0)))
        given = {"weights": self.w, "offset": self.offset, "n_auxiliary": len(CUTS) + 1, "cuts": CUTS, **changed}
        return PiecewiseExponential(X, self.y, **given)


def plain(case, theta, ties="efron", out=0.0):
    """−log partial likelihood as it is written: for each time a sum over rows. θ may be complex."""
    f = case.X @ theta + case.offset
    total = 0.0
    for time in np.unique(case.time[case.status == 1]):
        dead = (case.time == time) & (case.status == 1)
        at_risk = (case.entry < time) & (time <= case.time)
        m, own = dead.sum(), np.sum((case.w * np.exp(f - out))[dead])
        total -= np.sum((case.w * f)[dead])
        for k in range(m):
            share = k / m if ties == "efron" else 0.0
            rates = np.sum((case.w * np.exp(f - out))[at_risk]) - share * own
            total += case.w[dead].sum() / m * (np.log(rates) + out)
    return total


def slope(case, theta, ties):
    """Gradient by complex steps, which lose no digits."""
    return np.array([plain(case, theta + 1e-20j * e, ties, 12.0).imag / 1e-20 for e in np.eye(theta.size)])


def close(found, wanted, rel=1e-10):
    assert_allclose(found, wanted, rtol=0, atol=rel * max(1.0, np.abs(wanted).max()))


# ----------------------------------------------------------------------------------------------------
# Cox: value and derivatives
# ----------------------------------------------------------------------------------------------------


@both_ties
@pytest.mark.parametrize("entries", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_value_and_derivatives_are_those_of_the_plain_sum(ties, entries, seed):
    case = Drawn(seed, entries=entries)
    loss, theta = case.cox(ties=ties), case.theta
    close(loss.value(theta), plain(case, theta, ties), 1e-12)
    close(loss.gradient(theta), slope(case, theta, ties), 1e-11)
    ways = 1e-5 * np.eye(3)
    rows = [(slope(case, theta + way, ties) - slope(case, theta - way, ties)) / 2e-5 for way in ways]
    close(loss.hessian(theta), np.array(rows), 1e-8)


def test_ties_matter_only_where_there_are_some():
    tied, apart = Drawn(1), Drawn(1, tied=False)
    efron, breslow = (apart.cox(ties=ties).value(apart.theta) for ties in TIES)
    assert efron == pytest.approx(breslow, rel=1e-14)
    efron, breslow = (tied.cox(ties=ties).value(tied.theta) for ties in TIES)
    assert efron < breslow - 0.1


@both_ties
def test_what_changes_nothing(ties):
    """The order of rows, a shift of the offset or a column, a scale of time, and a row in two parts."""
    case = Drawn(2)
    loss, theta = case.cox(ties=ties), case.theta
    value, gradient, hessian = loss.at(theta)

    def same(other, rel=1e-11):
        close(other.value(theta), value, rel)
        close(other.gradient(theta), gradient, rel)
        close(other.hessian(theta), hessian, rel)

    order = np.random.default_rng(0).permutation(len(case.w))
    same(case.cox(order, ties=ties))
    same(case.cox(offset=case.offset + 5.0, ties=ties))
    y = case.y
    same(CoxPartialLikelihood(case.X + np.array([7.0, -3.0, 40.0]), y, case.w, case.offset, ties=ties), 1e-10)
    y[:, :2] = np.sqrt(y[:, :2])
    same(CoxPartialLikelihood(case.X, y, case.w, case.offset, ties=ties))

    def split(gap):
        late = case.entry + 0.5 * (case.time - case.entry)
        first = np.column_stack([case.entry, late - gap, np.zeros_like(late)])
        second = np.column_stack([late, case.time, case.status])
        twice = [np.concatenate([part, part]) for part in (case.X, case.w, case.offset)]
        return CoxPartialLikelihood(twice[0], np.vstack([first, second]), *twice[1:], ties=ties)

    same(split(0.0))
    assert abs(split(0.4 * (case.time - case.entry)).value(theta) - value) > 1e-3  # a row that was away for a while


def test_weights_of_breslow_are_copies_of_rows():
    """Efron's are not: copies are ties, and weights are none."""
    case = Drawn(3)
    copies = np.random.default_rng(0).integers(0, 4, len(case.w))
    rows = np.repeat(np.arange(len(copies)), copies)
    for ties in TIES:
        few = case.cox(weights=copies, ties=ties)
        many = case.cox(rows, weights=None, ties=ties)
        if ties == "breslow":
            close(few.value(case.theta), many.value(case.theta))
            close(few.hessian(case.theta), many.hessian(case.theta))
        else:
            assert few.value(case.theta) > many.value(case.theta) + 0.1


def test_rows_without_a_part():
    """Rows of weight zero, and those censored before the first event or entering after the last."""
    case = Drawn(4)
    w = np.where(np.arange(len(case.w)) % 3 == 0, 0.0, case.w)
    whole, kept = case.cox(weights=w), case.cox(w > 0, weights=w[w > 0])
    assert whole.at(case.theta).value == kept.at(case.theta).value
    X = np.vstack([case.X, 1e6 * np.ones((2, 3))])
    y = np.vstack([case.y, [[0.0, 0.4, 0.0], [900.0, 901.0, 0.0]]])
    more = CoxPartialLikelihood(X, y, np.append(case.w, [1, 1]), np.append(case.offset, [0, 0]))
    assert_allclose(more.hessian(case.theta), case.cox().hessian(case.theta), rtol=1e-14)


def test_a_site_without_events_has_no_information():
    loss = CoxPartialLikelihood([[1.0, 0.0], [2.0, 5.0]], [[3.0, 0], [4.0, 0]])
    assert loss.value([1.0, 2.0]) == 0.0
    assert not loss.gradient([1.0, 2.0]).any()
    assert not loss.hessian([1.0, 2.0]).any()
    q = FullGaussian(np.zeros(2), 1.0)
    assert loss.expect(q, Delta(2)).margins.reach == 0.0
    assert loss.baseline_hazard([1.0, 2.0])[0].size == 0


def test_breslow_is_a_poisson_regression_with_an_intercept_for_each_event_time():
    """At the best intercepts, which have a closed form; what the profile adds is Σ d − d log d."""
    case = Drawn(5)
    rows, y, offsets, w = [], [], [], []
    constant = 0.0
    f = case.X @ case.theta + case.offset
    for time in np.unique(case.time[case.status == 1]):
        at_risk = (case.entry < time) & (time <= case.time)
        dead = (case.time == time) & (case.status == 1)
        d = case.w[dead].sum()
        intercept = np.log(d / np.sum((case.w * np.exp(f))[at_risk]))
        rows.append(case.X[at_risk])
        y.append(dead[at_risk].astype(float))
        offsets.append(case.offset[at_risk] + intercept)
        w.append(case.w[at_risk])
        constant += d - d * np.log(d)
    poisson = Poisson(np.vstack(rows), *map(np.concatenate, (y, w, offsets)))
    loss = case.cox(ties="breslow")
    close(loss.value(case.theta), poisson.value(case.theta) - constant)
    close(loss.gradient(case.theta), poisson.gradient(case.theta), 1e-9)
    efron = case.cox(ties="efron")
    assert abs(efron.value(case.theta) - poisson.value(case.theta) + constant) > 0.1


# ----------------------------------------------------------------------------------------------------
# Cox: predictors far apart
# ----------------------------------------------------------------------------------------------------


def test_large_predictors_overflow_nothing():
    case = Drawn(6)
    loss = case.cox()
    far = case.cox(offset=case.offset + 1e5)
    close(far.value(case.theta), loss.value(case.theta), 1e-9)
    spread = case.cox(offset=100.0 * case.offset)  # a range of some 500
    assert np.isfinite(spread.value(case.theta))
    assert np.linalg.eigvalsh(spread.hessian(case.theta))[0] > -1e-9 * np.trace(spread.hessian(case.theta))
    beyond = case.cox(offset=1e4 * case.offset)
    assert beyond.value(case.theta) == np.inf  # a search goes back


def test_rows_that_enter_late_cost_no_digits():
    """Rows at risk of size 1, before others of size exp(40): as a difference of sums all digits were lost."""
    rng = np.random.default_rng(7)
    time = np.concatenate([np.arange(1.0, 11.0), np.arange(21.0, 31.0)])
    entry = np.repeat([0.0, 15.0], 10)
    X, offset = rng.normal(size=(20, 2)), np.repeat([0.0, 40.0], 10)
    loss = CoxPartialLikelihood(X, np.column_stack([entry, time, np.ones(20)]), offset=offset)
    parts = [CoxPartialLikelihood(X[s], np.column_stack([time, np.ones(20)])[s]) for s in (slice(10), slice(10, 20))]
    theta = np.array([0.5, -1.0])
    close(loss.value(theta), sum(part.value(theta) for part in parts), 1e-13)
    close(loss.hessian(theta), sum(part.hessian(theta) for part in parts), 1e-12)
    rates = np.exp(X @ theta + offset)  # the broken twin, at the time of the first event
    lost = np.sum(rates[time >= 1.0]) - np.sum(rates[entry >= 1.0])
    assert abs(lost / np.sum(rates[:10]) - 1.0) > 1e-3


# ----------------------------------------------------------------------------------------------------
# Cox: reach and margins
# ----------------------------------------------------------------------------------------------------


def test_third_derivatives_are_within_the_range_of_a_risk_set():
    """|D³ℓ[u, u, v]| ≤ max |v·(x_i − x_j)| D²ℓ[u, u]; two rows of odds 1 to e^6 have 0.99 of it."""
    rng = np.random.default_rng(8)
    for seed in range(20):
        case = Drawn(seed)
        loss = case.cox()
        u, v = rng.normal(size=(2, 3)) / [1.0, 1.0, 5.0]
        third = (u @ loss.hessian(case.theta + 1e-5 * v) @ u - u @ loss.hessian(case.theta - 1e-5 * v) @ u) / 2e-5
        assert abs(third) <= np.ptp(case.X @ v) * (u @ loss.hessian(case.theta) @ u)
    two = CoxPartialLikelihood([[0.0], [1.0]], [[1.0, 1.0], [1.0, 0.0]])
    third = (two.hessian([6.0 + 1e-5]) - two.hessian([6.0 - 1e-5])) / 2e-5
    assert 0.99 < abs(third[0, 0] / two.hessian([6.0])[0, 0]) <= 1.0  # a smaller multiple of the range would not do


def pooled(losses, theta):
    for _ in range(30):
        theta = theta - np.linalg.solve(
            sum(one.hessian(theta) for one in losses), sum(one.gradient(theta) for one in losses)
        )
    return theta


def bound_at(losses, theta, reach=lambda known: known):
    prior = FullGaussian(np.zeros(theta.size), np.zeros((theta.size, theta.size)))
    q = FullGaussian(theta, sum(one.hessian(theta) for one in losses))
    sums = [client_sums(one.expect(q, Delta(2))) for one in losses]
    return distance_bound(prior, q, [replace(one, reach=reach(one.reach)) for one in sums])


def test_the_reach_is_that_of_two_rows():
    case = Drawn(9)
    q = FullGaussian(case.theta, case.cox().hessian(case.theta))
    reach = case.cox().expect(q, Delta(2)).margins.reach
    differences = (case.X[:, None] - case.X[None]).reshape(-1, 3)
    largest = np.sqrt(q.factor.row_variances(differences).max())
    assert largest <= reach <= 2.0 * largest
    rows = (case.X - case.X.mean(axis=0)) @ np.linalg.cholesky(q.covariance_matrix)
    assert np.linalg.norm(rows, axis=1).max() < largest  # the standard deviation of one row would not do


@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_bounds_the_distance_to_the_maximum(seed):
    """Every coefficient is within its bound; that of a quadratic, the broken twin, is too small somewhere."""
    losses = [Drawn(10 * seed + k, n=40 + 20 * k).cox() for k in range(3)]
    best = pooled(losses, np.zeros(3))
    spread = np.linalg.cholesky(np.linalg.inv(sum(one.hessian(best) for one in losses)))
    rng, broken = np.random.default_rng(seed), 0
    for size in (1e-8, 1e-5, 1e-3, 1e-2, 0.05):
        away = rng.normal(size=3)
        theta = best + size * spread @ (away / np.linalg.norm(away))
        found = bound_at(losses, theta)
        assert found.rigorous
        assert (np.abs(theta - best) <= found.per_coefficient).all()
        if size <= 1e-2:
            assert found.sd_units <= 1.5 * size
        without = bound_at(losses, theta, lambda reach: 0.0)
        broken += not (np.abs(theta - best) <= without.per_coefficient).all()
    assert broken


def test_margins_bound_the_rounding():
    """The same sums over rows in another order and other units of time differ by less than the margins say."""
    case = Drawn(11, n=400)
    q = FullGaussian(case.theta, case.cox().hessian(case.theta))
    order = np.argsort(case.X[:, 0])
    one, two = case.cox(), case.cox(order)
    margins = one.expect(q, Delta(2)).margins
    change = np.abs(one.gradient(case.theta) - two.gradient(case.theta))
    assert (change <= margins.gradient_error).all()
    assert (margins.gradient_error < 1e-6).all()
    H = one.hessian(case.theta)
    scale = np.sqrt(np.outer(np.diag(H), np.diag(H)))
    assert (np.abs(H - two.hessian(case.theta)) <= margins.curvature_error * scale).all()
    assert margins.curvature_error < 1e-8


# ----------------------------------------------------------------------------------------------------
# A hazard that is constant between cuts
# ----------------------------------------------------------------------------------------------------


def expanded(case, theta):
    """The Poisson regression of split rows, and the constant that it has more."""
    X, y, w, offset, constant = [], [], [], [], 0.0
    edges = [0.0, *CUTS, np.inf]
    for j, (low, high) in enumerate(pairwise(edges)):
        risk = np.minimum(case.time, high) - np.maximum(case.entry, low)
        own = risk > 0
        event = ((case.status == 1) & (low < case.time) & (case.time <= high))[own]
        X.append(np.column_stack([np.eye(len(edges) - 1)[np.full(own.sum(), j)], case.X[own] / [1.0, 1.0, 60.0]]))
        y.append(event.astype(float))
        w.append(case.w[own])
        offset.append(case.offset[own] + np.log(risk[own]))
        constant += np.sum((case.w[own] * np.log(risk[own]))[event])
    return Poisson(np.vstack(X), *map(np.concatenate, (y, w, offset))), constant


@pytest.mark.parametrize("entries", [False, True])
def test_pieces_are_a_poisson_regression_of_split_rows(entries):
    case = Drawn(12, entries=entries)
    case.time[:3] = CUTS  # an event at a cut is the interval's before it
    case.status[:3], case.entry[:3] = 1.0, 0.0
    theta = np.array([-1.0, -0.5, 0.2, 0.1, 0.4, -0.7, 0.5])
    poisson, constant = expanded(case, theta)
    loss = case.pieces()
    close(loss.value(theta), poisson.value(theta) + constant)
    close(loss.gradient(theta), poisson.gradient(theta))
    close(loss.hessian(theta), poisson.hessian(theta))
    assert case.pieces().value(np.full(7, 900.0)) == np.inf
    moved = case.pieces(cuts=(1.5, 3.0, 5.1))
    assert abs(moved.value(theta) - loss.value(theta)) > 1e-3


def test_one_piece_is_an_exponential_regression():
    """Without columns the hazard is events over time at risk."""
    case = Drawn(13)
    loss = PiecewiseExponential(np.zeros((60, 1)), case.y, case.w, n_auxiliary=1)
    rate = np.log(np.sum(case.w * case.status) / np.sum(case.w * (case.time - case.entry)))
    assert abs(loss.gradient([rate])[0]) < 1e-12


# ----------------------------------------------------------------------------------------------------
# Bad input
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [CoxPartialLikelihood, PiecewiseExponential])
def test_bad_input_is_refused_with_the_name_of_the_argument(cls):
    good = {"X": [[0.0, 2.0], [0.0, 4.0]], "y": [[1.0, 0.0], [2.0, 1.0]]}
    cls(**good)
    bad = [
        *(("y", y) for y in ([1.0, 2.0], [[1.0], [2.0]], [[1.0, 0.0]], [[1.0, 0.0], [np.nan, 1.0]], None)),
        *(("y", y) for y in ([[-1.0, 0.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, 2.0]], [[1.0, 0.5], [2.0, 1.0]])),
        *(("y", y) for y in ([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]], [[-1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])),
        ("y", np.zeros((2, 4))),
        *(("X", X) for X in (None, [1.0, 2.0], [[np.nan, 1.0], [1.0, 2.0]])),
        *(("weights", w) for w in ([1.0], [1.0, -1.0])),
        ("offset", [0.0]),
    ]
    assert_refused((lambda a=argument, b=value: cls(**{**good, a: b}), argument) for argument, value in bad)
    with pytest.raises(ValueError, match=r"status of 0 or 1, got 2; write 1 for an event and 0 for none, as in Surv"):
        cls(good["X"], [[1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match=r"every entry before the time, got an entry at 3 and a time of 2"):
        cls(good["X"], [[0.0, 1.0, 1.0], [3.0, 2.0, 1.0]])


def test_bad_choices():
    X, y = [[0.0], [0.0]], [[1.0, 0.0], [2.0, 1.0]]
    assert_refused(
        [
            (lambda: CoxPartialLikelihood(X, y, ties="exact"), "ties"),
            (lambda: PiecewiseExponential(X, y, n_auxiliary=2), "n_auxiliary"),
            (lambda: PiecewiseExponential(X, y, n_auxiliary=3, cuts=(2.0, 1.0)), "cuts"),
            (lambda: PiecewiseExponential(X, y, n_auxiliary=2, cuts=(0.0,)), "cuts"),
            (lambda: PiecewiseExponential(X, [[0.0, 0.0], [2.0, 1.0]], n_auxiliary=1), "y"),
        ]
    )
