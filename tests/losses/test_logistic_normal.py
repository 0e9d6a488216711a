"""The expected softplus and its derivatives, against an mpmath table and against each other.

Tolerances. With L = |log of the reference|, rounding the exponent alone costs (1 + L) ulp, so that
errors are stated in units of EPS·(1 + L). The worst measured over the table is 5.1 for the
softplus, 1.5 for the sigmoid, 1.9 for the slope, 5.5 for the skew and 18 for the jerk, the last
two relative to slope/max(1, s) and slope/max(1, v) where the value itself is smaller, because
both change sign; the limits below are about twice that.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

from bayesadmm_np.losses import logistic_normal
from bayesadmm_np.losses.logistic_normal import logistic_normal_moments

EPS = np.finfo(float).eps
TINY = np.finfo(float).tiny
LIMITS = np.array([10, 4, 4, 12, 36])  # in EPS·(1 + L), one for each quantity

NARROW = (1e-8, 1e-4, 0.002, 0.01, 0.0135, 0.024, 0.032, 0.043, 0.0555, 0.1, 0.12, 0.25)
SIGMAS = (0, *NARROW, 0.5, 1, 2, 4, 4.000001, 8, 20, 100, 1000)
MEANS = (0, -0.3, -3, -10, -40, -200, -1000)
# Either side of every place where the rule changes: in sigma, and at m = −v/2.
SEAMS = (
    *((m, s) for s in (0.5000001, 1.000001, 2.000001) for m in (-0.3, -3)),
    *((-0.49 * s * s, s) for s in (1.5, 2.5, 8, 30)),
    *((-0.51 * s * s, s) for s in (1.5, 2.5, 8, 30)),
    *((-s * s, s) for s in (2.5, 6, 12)),
)
CASES = tuple((m, s) for s in SIGMAS for m in MEANS) + SEAMS


def reference_integrands(f):
    from mpmath import mp

    e = mp.exp(-abs(f))
    small, large = e / (1 + e), 1 / (1 + e)
    sigmoid, slope = (large if f >= 0 else small), small * large
    return (
        max(f, mp.zero) + mp.log1p(e),
        sigmoid,
        slope,
        slope * (1 - 2 * sigmoid),
        slope * (1 - 6 * slope),
    )


def reference(mean, sigma):
    """Return the five expectations by mpmath at 30 digits, split where the integrand bends."""
    from mpmath import mp

    with mp.workdps(34):
        m, v = mp.mpf(mean), mp.mpf(sigma * sigma)  # the float64 variance that the code is given
        if v == 0:
            return [float(h) for h in reference_integrands(m)]
        s = mp.sqrt(v)
        low, high = m - 14 * s, m + v + 14 * s
        bends = [c + k * s for c in (m, m + v) for k in (-14, -9, -5, -2, 0, 2, 5, 9, 14)]
        bends += [sign * x for sign in (-1, 1) for x in (0, 1, 3, 6, 12, 24, 48, 96)]
        points = sorted({mp.mpf(b) for b in bends if low <= b <= high})
        seen = {}

        def integrand(f, k):
            if f not in seen:
                density = mp.exp(-((f - m) ** 2) / (2 * v)) / (s * mp.sqrt(2 * mp.pi))
                seen[f] = [density * h for h in reference_integrands(f)]
            return seen[f][k]

        # mp.quad stops at an absolute error, so the integrands are scaled to a peak near one.
        peak = max(integrand(p, 0) for p in points)
        values = [mp.quad(lambda f, k=k: integrand(f, k) / peak, points, method="gauss-legendre") for k in range(5)]
        if mean == 0:
            values[3] = mp.zero  # by symmetry; the quadrature leaves 1e-35
        return [float(value * peak) for value in values]


# Written by `write_table`; test_table_is_what_mpmath_says recomputes it.
FILE = Path(__file__).with_name("logistic_normal.csv")
TABLE = np.loadtxt(FILE, delimiter=",", skiprows=1)


def write_table():
    header = "mean,sigma,softplus,sigmoid,slope,skew,jerk"
    rows = [(mean, sigma, *reference(mean, sigma)) for mean, sigma in CASES]
    np.savetxt(FILE, rows, "%.17g", ",", header=header, comments="")


def errors(moments, mean, sigma, expected):
    """Return the errors of the five moments in units of EPS·(1 + L); arrays of shape (5, n)."""
    scale = np.abs(expected)
    scale[0] = np.maximum(scale[0], np.maximum(mean, 0))
    scale[3] = np.maximum(scale[3], scale[2] / np.maximum(1, sigma))
    scale[4] = np.maximum(scale[4], scale[2] / np.maximum(1, sigma**2))
    unit = EPS * (scale * (1 + np.abs(np.log(np.maximum(scale, TINY)))))
    # Below TINY float64 itself has only absolute accuracy.
    return np.abs(moments - expected) / np.maximum(unit, EPS * TINY)


def check_against_table(moments_of, keep):
    mean, sigma, *expected = TABLE[keep].T
    expected = np.array(expected)
    worst = errors(np.array(moments_of(mean, sigma**2)), mean, sigma, expected).max(axis=1)
    assert (worst <= LIMITS).all(), worst


def order_4(mean, variance):
    return logistic_normal_moments(mean, variance, order=4)


def gauss_hermite_32(mean, variance):
    z, weights = np.polynomial.hermite_e.hermegauss(32)
    weights = weights / weights.sum()
    f = mean[:, None] + np.sqrt(variance)[:, None] * z
    p, slope = expit(f), expit(f) * expit(-f)
    values = np.logaddexp(0, f), p, slope, slope * (1 - 2 * p), slope * (1 - 6 * slope)
    return [h @ weights for h in values]


def test_table_covers_every_case():
    assert_array_equal(TABLE[:, :2], CASES)


@pytest.mark.slow
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]:g}-{row[1]:g}")
def test_table_is_what_mpmath_says(row):
    mean, sigma, *expected = row
    assert_allclose(reference(mean, sigma), expected, rtol=2 * EPS)


@pytest.mark.parametrize("sigma", np.unique(TABLE[:, 1]))
def test_matches_table(sigma):
    check_against_table(order_4, TABLE[:, 1] == sigma)


@pytest.mark.parametrize("sigma", np.unique(TABLE[:, 1]))
def test_matches_table_at_positive_means(sigma):
    mean, sigma, *left = TABLE[TABLE[:, 1] == sigma].T
    softplus, sigmoid, slope, skew, jerk = left
    expected = np.array([softplus - mean, 1 - sigmoid, slope, -skew, jerk])
    got = np.array(order_4(-mean, sigma**2))
    assert (errors(got, -mean, sigma, expected).max(axis=1) <= LIMITS).all()


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("sigma", NARROW)
def test_narrow_rows_are_exact_to_rounding(sigma, order):
    """The worst measured is 1.2 EPS·(1 + L)."""
    mean, deviation, *expected = TABLE[TABLE[:, 1] == sigma].T
    expected = np.array(expected)
    got = np.stack(logistic_normal_moments(mean, deviation**2, order)[: order + 1])
    kept = np.concatenate([got, expected[order + 1 :]])
    assert errors(kept, mean, deviation, expected).max() <= 2.4


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("terms", [2, 3, 4, 5, 6])
def test_each_term_of_the_series_is_needed(order, terms, monkeypatch):
    """At the end of the range of so many terms; what is left out there is 2⁻⁵³, and of the twin far more."""
    limit = logistic_normal.SERIES[order][terms - 1].limit
    mean = np.linspace(-40, 0, 401)
    whole = np.stack(logistic_normal_moments(mean, np.full(401, limit), order)[: order + 1])
    cut = [own._replace(coefficients=own.coefficients[:-1]) for own in logistic_normal.SERIES[order]]
    longer = logistic_normal.series_of(order, terms + 1)[terms]
    for series, low, high in ((cut, 20.0, np.inf), ([longer._replace(limit=limit)], 0.0, 3.0)):
        monkeypatch.setitem(logistic_normal.SERIES, order, series)
        other = np.stack(logistic_normal_moments(mean, np.full(401, limit), order)[: order + 1])
        scale = np.maximum(np.abs(whole), whole[2]) * EPS
        assert low <= (np.abs(other - whole) / scale).max() <= high


def test_one_wide_row_leaves_the_narrow_ones_as_they_are(rng):
    """Rows of a block are integrated by one rule, or each by its own: the same to rounding."""
    mean, variance = rng.normal(scale=3, size=500), rng.uniform(1e-6, 1e-3, 500)
    alone = np.array(order_4(mean, variance))
    variance[77] = 9.0
    together = np.array(order_4(mean, variance))
    assert_array_equal(together[:, 77], np.ravel(order_4(mean[77:78], 9.0)))
    others = np.arange(500) != 77
    assert errors(together[:, others], mean[others], np.sqrt(variance[others]), alone[:, others]).max() <= 3.0


@pytest.mark.parametrize("sigma", [4, 4.000001, 8, 20, 100, 1000])
def test_gauss_hermite_fails_the_table(sigma):
    """The table tells a rule that is not exact from one that is."""
    with pytest.raises(AssertionError):
        check_against_table(gauss_hermite_32, TABLE[:, 1] == sigma)


def test_gauss_hermite_passes_where_it_is_exact():
    """So that the failures above are those of the rule and not of its code."""
    check_against_table(gauss_hermite_32, (TABLE[:, 1] == 0.1) & (TABLE[:, 0] >= -10))


moments_at = st.tuples(st.floats(-60, 60), st.floats(0, 40))


@given(moments_at)
def test_reflection(case):
    mean, sigma = case
    right, left = order_4(mean, sigma**2), order_4(-mean, sigma**2)
    assert_allclose(right.softplus - left.softplus, mean, rtol=1e-15, atol=4e-15 * (1 + sigma))
    assert_allclose(right.sigmoid + left.sigmoid, 1, rtol=2e-15)
    assert right.slope == left.slope
    assert right.skew == -left.skew
    assert right.jerk == left.jerk


@given(moments_at)
def test_each_moment_is_the_derivative_of_the_one_before(case):
    mean, sigma = case
    step = 1e-3 * max(1, sigma)
    ahead, behind = (np.array(order_4(mean + h, sigma**2)) for h in (step, -step))
    far_ahead, far_behind = (np.array(order_4(mean + h, sigma**2)) for h in (2 * step, -2 * step))
    slopes = (8 * (ahead - behind) - (far_ahead - far_behind)) / (12 * step)
    here = np.array(order_4(mean, sigma**2))
    assert_allclose(slopes[:-1], here[1:], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("sigma", [0, 1e-8, 1, 2, 4, 30, 1e3])
@pytest.mark.parametrize("mean", [1e3, 1e20, 1e300])
def test_far_margins(mean, sigma):
    """Warnings are errors in this suite, so that none is given either."""
    with np.errstate(all="raise"):
        right, left = order_4(mean, sigma**2), order_4(-mean, sigma**2)
    if mean > 1e3 or sigma < 100:
        assert right[:3] == (mean, 1.0, left.slope)
    if mean > 1e3:
        assert_array_equal(left, 0)
        assert_array_equal(right[2:], 0)


@pytest.mark.parametrize("variance", [1e12, 1e100, 1e308])
@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.0])
def test_huge_variance_is_a_probit(variance, ratio):
    """Softplus is max(f, 0) on that scale."""
    from scipy.special import ndtr

    sigma = np.sqrt(variance)
    density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
    with np.errstate(all="raise", under="ignore"):
        moments = order_4(ratio * sigma, variance)
    assert_allclose(moments.softplus, sigma * (ratio * ndtr(ratio) + density), rtol=1e-11)
    assert_allclose(moments.sigmoid, ndtr(ratio), rtol=1e-11)
    assert_allclose(moments.slope, density / sigma, rtol=1e-11)
    assert_allclose(moments.skew * sigma, -ratio * density / sigma, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_floats_give_finite_moments(sign):
    largest = np.finfo(float).max
    with np.errstate(all="raise"):
        moments = order_4(sign * largest, [0.0, 5e-324, 1.0, 1e6, largest])
    assert np.isfinite(moments).all()


def test_broadcasts_and_keeps_the_shape():
    mean, variance = np.linspace(-3, 3, 5)[:, None], np.array([0.0, 0.2, 0.9, 3, 30])
    together = order_4(mean, variance)
    assert together.slope.shape == (5, 5)
    for i, j in np.ndindex(5, 5):
        alone = order_4(mean[i, 0], variance[j])
        assert alone.slope.shape == ()
        assert_allclose(alone, [x[i, j] for x in together], rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("sigma", [0.3, 0.9, 1.9, 7.0])
def test_many_rows_equal_few(sigma, rng):
    """Rows are worked through in blocks; no row is lost or misplaced at their edges."""
    mean = rng.normal(scale=20, size=3001)
    whole = np.array(order_4(mean, sigma**2))
    parts = [np.array(order_4(part, sigma**2)) for part in np.split(mean, [1, 700, 701])]
    assert_allclose(whole, np.concatenate(parts, axis=1), rtol=1e-13)


def test_order_2_is_the_beginning_of_order_4(rng):
    mean, variance = rng.normal(scale=5, size=300), rng.exponential(scale=5, size=300)
    low, high = logistic_normal_moments(mean, variance), order_4(mean, variance)
    assert low.skew is None
    assert low.jerk is None
    for a, b in zip(low[:3], high[:3], strict=True):
        assert_allclose(a, b, rtol=1e-14)


def test_arguments_are_not_written_to():
    mean, variance = np.array([-1.0, 2.0]), np.array([0.5, 9.0])
    mean.flags.writeable = variance.flags.writeable = False
    order_4(mean, variance)


def test_memory_is_a_few_numbers_per_row():
    import tracemalloc

    mean, variance = np.zeros(200_000), np.full(200_000, 9.0)
    tracemalloc.start()
    order_4(mean, variance)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 * mean.nbytes + 3e6


@pytest.mark.parametrize(
    ("mean", "variance", "order", "message"),
    [
        (np.nan, 1.0, 2, "mean must be finite"),
        ([0.0, np.inf], 1.0, 2, "mean must be finite"),
        (0.0, np.nan, 2, "variance must be finite"),
        (0.0, np.inf, 2, "variance must be finite"),
        (0.0, [1.0, -1e-9], 2, "variance must be >= 0, got -1e-09"),
        ([], 1.0, 2, "mean must not be empty"),
        (np.zeros(2), np.ones(3), 2, r"must broadcast, got shapes \(2,\) and \(3,\)"),
        (0.0, 1.0, 3, "order must be 2 or 4, got 3"),
    ],
)
def test_bad_input(mean, variance, order, message):
    with pytest.raises(ValueError, match=message):
        logistic_normal_moments(mean, variance, order)
