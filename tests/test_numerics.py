"""Rounding, line searches and conjugate gradients by themselves; their use is tested where they are used."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesadmm_np._numerics import (
    ARMIJO,
    EPS,
    LONGEST,
    MOST_TRIALS,
    SHORTEST,
    Trial,
    conjugate_gradients,
    driven,
    falls,
    halvings,
    line_search,
    nested,
    parabola_share,
    rounding_unit,
)

WIDE = st.floats(min_value=1e-3, max_value=1e3)


@pytest.mark.parametrize("count", [3, 1000, 100_000])
def test_a_sum_is_within_its_rounding_in_any_order(count, rng):
    """The twin sums in single precision, whose ε is 5e8 times as large: at least one of ten such sums is outside."""
    outside = []
    for _ in range(10):
        terms = rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)
        exact, room = math.fsum(terms), rounding_unit(count) * np.abs(terms).sum()
        for order in (terms, terms[::-1], np.sort(terms)):
            assert abs(np.cumsum(order)[-1] - exact) <= room
        outside.append(abs(float(np.cumsum(terms.astype(np.float32))[-1]) - exact) > room)
    assert any(outside)


def test_the_rounding_unit_adds_its_counts():
    assert rounding_unit() == 1000 * EPS
    assert rounding_unit(3, 4) == 1007 * EPS


def test_a_fall_is_a_part_of_the_promise():
    assert falls(1.0, 1.0 - 2.0 * ARMIJO, 1.0)
    assert not falls(1.0, 1.0 - 0.5 * ARMIJO, 1.0)
    assert not falls(1.0, 1.0 + 1e-9, 0.0)
    assert falls(1.0, 1.0 + 1e-9, 0.0, rounding=2e-9)
    assert falls(1.0, 1.0, 1.0, rounding=ARMIJO)
    assert falls(np.inf, 1.0, 1.0)
    for bad in (np.inf, np.nan):
        assert not falls(1.0, bad, 1.0)
        assert not falls(np.inf, bad, 1.0)


@given(bend=WIDE, place=st.floats(min_value=SHORTEST, max_value=LONGEST))
def test_the_share_is_the_minimum_of_the_parabola(bend, place):
    """½bt² − b·place·t has its minimum at `place`; two roundings of numbers of the size of b."""
    tangent = bend * place
    assert parabola_share(tangent, slope=bend - tangent) == pytest.approx(place, rel=1e-12)
    assert parabola_share(tangent, rise=0.5 * bend - tangent) == pytest.approx(place, rel=1e-12)
    assert parabola_share(tangent, slope=bend - tangent, rise=1e9) == pytest.approx(place, rel=1e-12)  # slopes decide


def test_the_share_stays_within_its_range():
    assert parabola_share(1.0, slope=1e9) == parabola_share(1.0, rise=1e9) == SHORTEST
    assert parabola_share(1.0, slope=0.1) == LONGEST
    assert parabola_share(1.0, slope=-2.0) == parabola_share(1.0, rise=-2.0) == LONGEST  # no minimum
    assert parabola_share(1.0) == parabola_share(np.nan, 1.0, 1.0) == parabola_share(1.0, rise=np.inf) == SHORTEST


def test_halvings_end_above_the_shortest():
    assert list(halvings(1.0, 0.2)) == [1.0, 0.5, 0.25]
    assert list(halvings(1.0, 0.25)) == [1.0, 0.5]
    assert list(halvings(0.1, 0.2)) == []


CONVEX = {
    "a parabola with its minimum at": (lambda t, a: (t - a) ** 2, lambda t, a: 2.0 * (t - a)),
    "a quartic": (lambda t, a: (t / a - 1.0) ** 4, lambda t, a: 4.0 / a * (t / a - 1.0) ** 3),
    "exp": (lambda t, a: np.exp(t / a) - 3.0 * t / a, lambda t, a: (np.exp(t / a) - 3.0) / a),
    "a barrier": (
        lambda t, a: t - a * np.log(2.0 * a - t) - 2.0 * t if t < 2.0 * a else np.inf,
        lambda t, a: a / (2.0 * a - t) - 1.0,
    ),
}


def searched(value, slope, rounding=0.0, most=MOST_TRIALS, knows_slopes=True):
    """Return what a search finds, with the steps it tried."""
    tried = []

    def at(t):
        tried.append(t)
        with np.errstate(over="ignore"):
            return Trial(float(value(t)), float(slope(t)) if knows_slopes and np.isfinite(value(t)) else np.nan, t)

    return *driven(line_search(float(value(0.0)), float(slope(0.0)), rounding, most), at), tried


@pytest.mark.parametrize(
    ("place", "steps", "taken"),
    [
        (1.7, [1.0], 1.0),
        (0.4, [1.0, 0.5], 0.5),
        (3.0, [1.0, 4.0], 4.0),  # flat is from half the way to the minimum to one and a half
        (9.5, [1.0, 4.0, 16.0], 4.0),  # a bracket beyond 1 is short enough
        (0.03, [1.0, 0.5, 0.25, 0.125, 0.0125, 0.0125 * 10.0**0.5], 0.0125 * 10.0**0.5),
    ],
)
def test_the_steps_along_a_parabola(place, steps, taken):
    trial, t, tried = searched(lambda t: (t - place) ** 2, lambda t: 2.0 * (t - place))
    assert tried == pytest.approx(steps, rel=1e-14)
    assert t == trial.point == pytest.approx(taken, rel=1e-14)


def test_a_line_that_falls_for_ever_is_left_after_half_of_the_trials():
    _, t, tried = searched(lambda t: -t, lambda t: -1.0, most=20)
    assert len(tried) == 12
    assert t == tried[-1] == 4.0**11


@pytest.mark.parametrize("slope", [-0.1, -1.0, -10.0])
def test_a_fall_of_less_than_armijos_part_is_refused(slope):
    for part, knows in itertools.product((0.5, 2.0), (True, False)):
        fall = part * ARMIJO * slope
        trial, _, _ = searched(lambda t, fall=fall: fall * t, lambda t: slope if t == 0.0 else 0.0, 0.0, 5, knows)
        assert (trial is not None) is (part > 1.0)


@pytest.mark.parametrize("place", [1e-4, 0.03, 0.4, 1.0, 1.7, 30.0, 1e4])
@pytest.mark.parametrize("kind", CONVEX)
def test_a_search_along_a_convex_line_ends_where_it_falls_and_is_flat(kind, place):
    """An Armijo fall, and a flat end or a bracket of the minimum around t."""
    value, slope = (lambda t, f=f: f(t, place) for f in CONVEX[kind])
    minimum = place * (np.log(3.0) if kind == "exp" else 1.0)
    trial, t, tried = searched(value, slope)
    assert trial.point == t
    assert value(t) <= value(0.0) + ARMIJO * t * slope(0.0)
    assert abs(slope(t)) <= -slope(0.0) / 2.0 or minimum / 4.0 <= t <= 4.0 * minimum
    assert len(tried) <= 20


@pytest.mark.parametrize("kind", CONVEX)
def test_without_slopes_the_first_fall_is_taken(kind):
    value, slope = (lambda t, f=f: f(t, 0.03) for f in CONVEX[kind])
    trial, t, tried = searched(value, slope, knows_slopes=False)
    assert trial.value == value(t) < value(0.0)
    assert t == tried[-1]
    assert tried == [1.0, 0.5, 0.25, 0.125, 0.0125][: len(tried)]
    assert not any(falls(value(0.0), value(other), -other * slope(0.0)) for other in tried[:-1])


def test_a_search_in_a_wrong_direction_finds_nothing():
    trial, t, tried = searched(lambda t: t, lambda t: -1.0 if t == 0.0 else 1.0)
    assert trial is None
    assert t == 0.0
    assert len(tried) == MOST_TRIALS
    assert len(searched(lambda t: t, lambda t: -1.0, most=7)[2]) == 7
    assert searched(lambda t: -t, lambda t: -1.0, most=0) == (None, 0.0, [])


def test_where_rounding_hides_the_values_the_slope_decides():
    """Values are noise of 1e-9; the slope is that of (t − 0.3)². Twin: with no rounding the noise is refused."""
    noise = {0.0: 0.0}

    def value(t):
        return noise.setdefault(t, 1e-9)

    trial, t, tried = searched(value, lambda t: 2.0 * (t - 0.3), rounding=2e-9)
    assert trial.value == 1e-9
    assert abs(t - 0.3) <= 0.15
    assert len(tried) > 1  # at t = 1 the slope is too large, and rounding hides the rise
    assert searched(value, lambda t: 2.0 * (t - 0.3))[0] is None


def test_the_lowest_point_is_returned_where_no_slope_is_flat():
    """|t − 0.3| has a slope of one everywhere: the search ends once its bracket is short."""
    trial, t, tried = searched(lambda t: abs(t - 0.3), lambda t: np.sign(t - 0.3))
    assert tried == [1.0, 0.5, 0.25]
    assert trial.value == pytest.approx(0.05)
    assert t == 0.25


def test_nested_and_driven_answer_alike():
    def questions():
        first = yield 1
        second = yield first + 1
        return first, second

    def twice(question):
        return (yield question) + (yield -question)

    assert driven(questions(), lambda question: 10 * question) == (10, 110)
    assert driven(nested(questions(), twice), lambda question: question**2) == (2, 18)


def spd(rng, size):
    root = rng.standard_normal((size, size + 2))
    return root @ root.T


def test_conjugate_gradients_need_as_many_products_as_there_are_eigenvalues(rng):
    basis, _ = np.linalg.qr(rng.standard_normal((8, 8)))
    matrix, products, right = (basis * np.repeat([1.0, 5.0, 30.0], [3, 3, 2])) @ basis.T, [], rng.standard_normal(8)

    def product(vector):
        products.append(vector)
        return matrix @ vector

    found, is_curved = conjugate_gradients(product, lambda v: v, right, 1e-10, 50)
    assert is_curved
    assert len(products) == 3
    np.testing.assert_allclose(found, np.linalg.solve(matrix, right), rtol=1e-9)


def test_conjugate_gradients_end_at_the_forcing_term_in_the_preconditioners_metric(rng):
    matrix, right = spd(rng, 9), rng.standard_normal(9)
    scale = 1.0 / np.diagonal(matrix)

    def length(vector):
        return np.sqrt(vector @ (scale * vector))

    solved = [conjugate_gradients(lambda v: matrix @ v, lambda v: scale * v, right, 0.1, most)[0] for most in range(10)]
    lengths = [length(right - matrix @ x) for x in solved]
    first = next(k for k, one in enumerate(lengths) if one <= 0.1 * length(right))
    assert 0 < first < 9
    assert np.array_equal(solved[first], solved[-1])
    assert not np.array_equal(solved[first - 1], solved[first])


def test_an_exact_preconditioner_takes_one_product(rng):
    matrix, right = spd(rng, 5), rng.standard_normal(5)
    found, _ = conjugate_gradients(lambda v: matrix @ v, lambda v: np.linalg.solve(matrix, v), right, 1e-6, 1)
    np.testing.assert_allclose(matrix @ found, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan, np.inf])
def test_a_direction_without_positive_curvature_ends_conjugate_gradients(bad, rng):
    right = np.array([1.0, 2.0, 0.0])
    with np.errstate(invalid="ignore"):
        found, is_curved = conjugate_gradients(lambda v: bad * v, lambda v: v, right, 1e-12, 50)
    assert not is_curved
    assert np.array_equal(found, right)
    # the second direction is the first one of no curvature: the iterate before is kept
    diagonal = np.array([1.0, 1.0, -9.0])
    found, is_curved = conjugate_gradients(lambda v: diagonal * v, lambda v: v, np.array([2.0, 1.0, 0.3]), 1e-12, 50)
    assert not is_curved
    assert np.isfinite(found).all()
    assert found.any()
