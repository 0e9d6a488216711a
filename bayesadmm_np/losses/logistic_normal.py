"""Expectations of the softplus and of its derivatives under a normal distribution, to float64 accuracy.

Write σ(f) = 1/(1+e⁻ᶠ) and f ~ N(m, v) with s = √v. Four facts carry the whole file.

* **Reflection.** softplus(f) = f + softplus(−f), so only m <= 0 is ever integrated. There *relative* accuracy counts.
* **Tilting.** E h(f) = e^{m+v/2} · E h(f')e^{−f'} with f' ~ N(m+v, v). Each of the five functions behaves as eᶠ on the
  far left, so that the tilted expectation is of order one however deep the tail.
* **Narrow rows.** With a = v/2, E h(f) = Σ_k aᵏ/k! h⁽²ᵏ⁾(m) (the heat equation). Every derivative of σ is σ' times a
  polynomial in σ' (times 1 − 2σ where the order is even): one exponential and one logarithm a row.
* **Two rules for the rest.** For s <= 2 the integrand, as a function of z = (f−m)/s, is analytic in the strip
  |Im z| < π/s, so that a trapezoidal rule of step h errs by about e^{−2π²/(hs)}. For s > 2 softplus(f) = max(f, 0) +
  softplus(−|f|): The first term has a closed form. The second decays as e^{−|f|} against a density that is smooth on
  the scale of s, and one trapezoidal rule on the half line serves every s.
"""

from __future__ import annotations

from math import factorial
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr

from .._errors import ArgumentError
from .._validation import Array, as_float_array

# Entries of one temporary array, 256 kB: about six of them are alive at once and stay in cache.
_ENTRIES = 2**15

# Rows that are worked through at once, by one rule where all are narrow: every array of theirs stays in cache.
_BLOCK = 2**12

# Beyond 38.6 standard deviations exp(−t²/2) is zero in float64; clipping t here changes no value
# and keeps t² from overflowing.
_FAR = 1e3


class LogisticNormalMoments(NamedTuple):
    """Expectations under f ~ N(mean, variance), each of the broadcast shape of the arguments."""

    softplus: Array  # E log(1 + eᶠ)
    sigmoid: Array  # E σ(f), the derivative of `softplus` in the mean
    slope: Array  # E σ'(f), the derivative of `sigmoid` in the mean and twice that of `softplus` in the variance
    skew: Array | None = None  # E σ''(f), or None for ``order=2``
    jerk: Array | None = None  # E σ'''(f), or None for ``order=2``


def logistic_normal_moments(mean: ArrayLike, variance: ArrayLike, order: int = 2) -> LogisticNormalMoments:
    r"""Return the expected softplus and its expected derivatives under N(mean, variance).

    .. math::

        E \log(1 + e^f), \quad E\sigma(f), \quad E\sigma'(f), \quad E\sigma''(f), \quad
        E\sigma'''(f), \qquad f \sim N(m, v), \quad \sigma' = \sigma(1 - \sigma),

    for every finite m and every finite v >= 0; v = 0 gives the functions themselves at m.

    Parameters
    ----------
    mean : array_like
        The means m, of any shape.
    variance : array_like
        The variances v >= 0, of a shape that broadcasts with that of `mean`.
    order : {2, 4}
        The highest derivative of the softplus that is wanted: 2 stops at `slope`, 4 adds `skew`
        and `jerk`.

    Raises
    ------
    ValueError
        If an argument is not finite or is empty, a variance is negative, the shapes do not
        broadcast, or `order` is neither 2 nor 4.

    Notes
    -----
    An expectation of size e^{−L} has a relative error of a few ulp times 1 + L, what rounding its exponent costs. Near
    roots of `skew` and `jerk` the error is relative to `slope`/max(1, s) and `slope`/max(1, v).

    Examples
    --------
    >>> import numpy as np
    >>> moments = logistic_normal_moments([0.0, -3.0], [4.0, 0.0])
    >>> np.round(moments.softplus, 6)
    array([1.067714, 0.048587])
    >>> np.round(moments.sigmoid, 6)
    array([0.5     , 0.047426])
    >>> moments.skew is None
    True
    """
    m, v = _checked(mean, variance, order)
    shape, m, v = m.shape, m.ravel(), v.ravel()
    moments = np.empty((order + 1, m.size))
    with np.errstate(under="ignore"):  # a caller may have asked NumPy to raise on underflow
        for first in range(0, m.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            _block_moments(m[block], v[block], moments[:, block])
    return LogisticNormalMoments(*(row.reshape(shape) for row in moments))


def _checked(mean: ArrayLike, variance: ArrayLike, order: int) -> tuple[Array, Array]:
    m, v = as_float_array(mean, "mean"), as_float_array(variance, "variance")
    if v.min() < 0:
        raise ArgumentError("variance", "must be >= 0", f"{v.min():g}")
    if order not in (2, 4):
        raise ArgumentError("order", "must be 2 or 4", repr(order))
    if m.shape == v.shape:
        return m, v
    try:
        m, v = np.broadcast_arrays(m, v)
    except ValueError as error:
        raise ValueError(f"mean and variance must broadcast, got shapes {m.shape} and {v.shape}.") from error
    return m, v


def _block_moments(m: Array, v: Array, out: Array) -> None:
    """Write the moments of some rows: by one rule where all are narrow, else by the rule of each."""
    order, left, widest = len(out) - 1, -np.abs(m), float(v.max())
    if widest <= SERIES[order][-1].limit:
        terms = next(series for series in SERIES[order] if widest <= series.limit)
        _narrow(left, v, terms.coefficients, out)
    else:
        sigma = np.sqrt(v)
        rule = np.searchsorted(_SIGMA_LIMITS, sigma)
        # The two half-line forms decay as e^{−x/2} or faster on their own side of m = −v/2.
        rule[(rule == _DIRECT) & (left < -v / 2)] = _TILTED
        for r in np.bincount(rule).nonzero()[0].tolist():
            chosen = (rule == r).nonzero()[0]
            for first in range(0, chosen.size, _ROWS[r]):
                rows = chosen[first : first + _ROWS[r]]
                args = left[rows], v[rows], sigma[rows], order
                if r == _DIRECT:
                    out[:, rows] = _half_line_direct(*args)
                elif r == _TILTED:
                    out[:, rows] = _half_line_tilted(*args)
                else:
                    out[:, rows] = _at_nodes(*args, *_NODES[r])
    _reflect(out, m)


def _reflect(moments: Array, mean: Array) -> None:
    """Turn the moments at −|mean| into those at `mean`, in place."""
    positive = (mean > 0).astype(np.float64)
    moments[0] += np.maximum(mean, 0.0)
    moments[1] *= 1.0 - 2.0 * positive
    moments[1] += positive
    if len(moments) > 3:
        moments[3] *= np.sign(-mean)  # odd, and exactly zero at zero


# --- narrow rows: the heat series, one exponential and one logarithm a row ------------------------


class _Series(NamedTuple):
    limit: float  # the largest variance that it serves
    coefficients: Array  # shape (terms, moments, powers): of σ'ʲ in the factor of aᵏ in each moment


def _derivatives(count: int) -> tuple[list[Polynomial], list[Polynomial]]:
    """Return P_k and Q_k with σ⁽²ᵏ⁺¹⁾ = σ' P_k(σ') and σ⁽²ᵏ⁺²⁾ = σ' (1 − 2σ) Q_k(σ'); (1 − 2σ)² = 1 − 4σ'."""
    x, odd, even = Polynomial([0.0, 1.0]), [Polynomial([1.0])], []
    for _ in range(count):
        even.append(odd[-1] + x * odd[-1].deriv())
        odd.append((1.0 - 4.0 * x) * (even[-1] + x * even[-1].deriv()) - 2.0 * x * even[-1])
    return odd, even


def series_of(order: int, most: int = 6) -> list[_Series]:
    """Return the series of ever more terms, each with the variance up to which 2⁻⁵³ bounds what it leaves out.

    With a = v/2, and c the largest |P| of the next term over 0 <= σ' <= ¼, K terms leave less than
    c aᴷ/K! max_u E σ' of the last moment, u <= v, and of the others less; E σ' <= e^{u/2} σ'(m), since |σ‴| <= σ'.
    """
    odd, even = _derivatives(most + 2)
    grid, found = np.linspace(0.0, 0.25, 1001), []
    for terms in range(1, most + 1):
        coefficients = np.zeros((terms, order + 1, terms + order // 2 - 1))
        for k in range(terms):
            parts = [odd[k] / (k + 1), even[k] / (k + 1), odd[k], even[k], odd[k + 1]]
            for own, part in zip(coefficients[k], parts, strict=False):
                own[: part.coef.size] = np.asarray(part.coef, dtype=np.float64) / factorial(k)
        bound = np.abs(odd[terms + order // 2 - 1](grid)).max() / factorial(terms)
        found.append(_Series(2.0 * float((2.0**-53 / bound) ** (1.0 / terms)), coefficients))
    return found


SERIES = {order: series_of(order) for order in (2, 4)}


def _narrow(m: Array, v: Array, coefficients: Array, out: Array) -> None:
    """Write the moments at m <= 0 of rows of small variance."""
    e = np.exp(m)
    softplus, q = softplus_and_complement(e)
    softplus *= e
    p = e * q
    slope = p * q
    half = 0.5 * v
    powers = np.empty((coefficients.shape[2], m.size))
    powers[0] = 1.0
    for j in range(1, len(powers)):
        np.multiply(powers[j - 1], slope, out=powers[j])
    terms = (coefficients.reshape(-1, len(powers)) @ powers).reshape(*coefficients.shape[:2], m.size)
    total = terms[-1]
    for term in terms[-2::-1]:
        total *= half
        total += term
    total *= slope
    total[:2] *= half
    turn = q - p  # 1 − 2σ
    total[1::2] *= turn
    np.add(softplus, total[0], out=out[0])
    np.add(p, total[1], out=out[1])
    out[2:] = total[2:]


def softplus_and_complement(e: Array) -> tuple[Array, Array]:
    """Return log1p(e)/e, from the rounded 1 + e whose error cancels in the quotient, and 1/(1 + e)."""
    one_plus_e = 1.0 + e
    q = 1.0 / one_plus_e
    np.maximum(one_plus_e, np.nextafter(1.0, 2.0), out=one_plus_e)
    softplus = np.log(one_plus_e)
    one_plus_e -= 1.0
    softplus /= one_plus_e
    return softplus, q


# --- s <= 2: Gauss–Hermite nodes or the trapezoidal rule in z, always tilted ----------------------


def _gauss_hermite_rule(count: int) -> tuple[Array, Array]:
    z, weights = np.polynomial.hermite_e.hermegauss(count)
    return z, weights / weights.sum()


def _trapezoid_rule(step: float) -> tuple[Array, Array]:
    """Return the nodes z and weights of the trapezoidal rule for E g(z), z ~ N(0, 1)."""
    last = np.ceil(8.8 / step)  # the mass beyond 8.8 standard deviations is 1e-18
    z = step * np.arange(-last, last + 1)
    weights = np.exp(-(z**2) / 2)
    return z, weights / weights.sum()


# Up to each sigma the nodes leave less than rounding: 9 and 13 of Gauss and Hermite, by measurement; 31, 45 and 81 of
# trapezoids, whose step leaves e^{−2π²/(hs)} under 1e-19 (for the smaller sigmas, where the Gaussian grows first:
# e^{d²/2 − 2πd/h} at a d < π/s).
_SIGMA_LIMITS = np.array([0.12, 0.25, 0.5, 1.0, 2.0])
_NODES = [_gauss_hermite_rule(9), _gauss_hermite_rule(13), *map(_trapezoid_rule, (0.6, 0.4, 0.22))]


def _at_nodes(m: Array, v: Array, sigma: Array, order: int, z: Array, weights: Array) -> list[Array]:
    """Return the moments at m <= 0 as e^{m+v/2} E h(f)e^{−f}, f ~ N(m+v, v)."""
    e = np.multiply.outer(z, sigma)
    e += m + v
    np.exp(e, out=e)
    softplus, q = softplus_and_complement(e)  # σ(−f) = σ(f)e^{−f}
    q2 = q * q
    moments = [weights @ softplus, weights @ q, weights @ q2]
    if order == 4:
        moments += [weights @ (q2 * (2.0 * q - 1.0)), weights @ (q2 * (1.0 - 6.0 * e * q2))]
    scale = np.exp(m + v / 2)
    return [scale * moment for moment in moments]


# --- s > 2: a closed form for the step, a trapezoidal rule on the half line for the rest -----------


def _half_line_rule(step: float) -> tuple[Array, Array]:
    """Return nodes and weights on [0, 80] of the trapezoidal rule in y, x = exp(y − e^{−y}); e^{−40} is beyond."""
    y = np.arange(-3.6, 4.45, step)
    x = np.exp(y - np.exp(-y))
    return x, step * x * (1.0 + np.exp(-y))


# 81 nodes. The step is set by s = 2 at m = −25, where the density is least smooth and its peak lies
# among the sparser nodes: 0.12 would err there by 1e-13, 0.1 errs by 2e-15.
_X, _X_WEIGHTS = _half_line_rule(0.1)
_DIRECT, _TILTED = len(_NODES), len(_NODES) + 1
_ROWS = [_ENTRIES // z.size for z, _ in _NODES] + 2 * [_ENTRIES // _X.size]


def _direct_weights() -> tuple[Array, Array]:
    """Return weights on the density at ±x: of softplus(f) − max(f, 0), σ(f) − [f > 0], and σ'(f) times 1, f and f²."""
    e = np.exp(-_X)
    q = 1.0 / (1.0 + e)
    slope = e * q * q
    even = [np.log1p(e), slope, _X**2 * slope]
    odd = [e * q, _X * slope]
    at_x = np.stack([even[0], -odd[0], even[1], odd[1], even[2]], axis=1)
    at_minus_x = np.stack([even[0], odd[0], even[1], -odd[1], even[2]], axis=1)
    return at_x * _X_WEIGHTS[:, None], at_minus_x * _X_WEIGHTS[:, None]


def _tilted_weights() -> tuple[Array, Array]:
    """Return weights on the tilted density at ±x: of h(f)e^{−f} − [f < 0] for the five functions h."""
    e = np.exp(-_X)
    q = 1.0 / (1.0 + e)  # σ(x)
    p = e * q  # σ(−x)
    at_x = np.stack([e * (_X + np.log1p(e)), p, p**2, p**2 * (2 * p - 1), p**2 * (1 - 6 * p * q)], axis=1)
    at_minus_x = np.stack([np.log1p(e) / e, q, q**2, q**2 * (2 * q - 1), q**2 * (1 - 6 * p * q)], axis=1)
    return at_x * _X_WEIGHTS[:, None], (at_minus_x - 1.0) * _X_WEIGHTS[:, None]


_DIRECT_AT_X, _DIRECT_AT_MINUS_X = _direct_weights()
_TILTED_AT_X, _TILTED_AT_MINUS_X = _tilted_weights()


def _half_line_direct(m: Array, v: Array, sigma: Array, order: int) -> list[Array]:
    """Return the moments at −v/2 <= m <= 0."""
    t = np.maximum(m / sigma, -_FAR)
    integrals = _half_line(t, sigma, _DIRECT_AT_X[:, : order + 1], _DIRECT_AT_MINUS_X[:, : order + 1])
    density = np.exp(-0.5 * t * t) / np.sqrt(2 * np.pi)
    # Φ(t)/φ(t); with a separately rounded Φ the sum in E max(f, 0) would lose t⁴ ulp, not t².
    ratio = np.sqrt(np.pi / 2) * erfcx(-t / np.sqrt(2))
    slope = integrals[2]
    moments = [sigma * density * (1.0 + t * ratio) + integrals[0], density * ratio + integrals[1], slope]
    if order == 4:
        # of the density's derivatives in m: with u = (f−m)/s they are E σ'·u/s and E σ'·(u²−1)/v
        first, second = integrals[3] / sigma, integrals[4] / v
        moments += [(first - t * slope) / sigma, ((t * t - 1.0) * slope - 2.0 * t * first + second) / v]
    return moments


def _half_line_tilted(m: Array, v: Array, sigma: Array, order: int) -> list[Array]:
    """Return the moments at m < −v/2 as e^{m+v/2} E h(f)e^{−f}, f ~ N(m+v, v)."""
    t = np.clip((m + v) / sigma, -_FAR, _FAR)
    integrals = _half_line(t, sigma, _TILTED_AT_X[:, : order + 1], _TILTED_AT_MINUS_X[:, : order + 1])
    scale, step = np.exp(m + v / 2), ndtr(-t)
    return [scale * (step + integral) for integral in integrals]


def _half_line(t: Array, sigma: Array, at_x: Array, at_minus_x: Array) -> Array:
    """Return the integrals of `at_x` and `at_minus_x` against the density of N(t·sigma, sigma²), a row a column."""
    x = np.multiply.outer(1.0 / sigma, _X)
    density = x - t[:, None]
    integrals = _standard_density(density) @ at_x
    integrals += _standard_density(np.add(x, t[:, None], out=x)) @ at_minus_x
    integrals *= (1.0 / (np.sqrt(2 * np.pi) * sigma))[:, None]
    return integrals.T


def _standard_density(u: Array) -> Array:
    """Return exp(−u²/2), overwriting `u`."""
    u *= u
    u *= -0.5
    return np.exp(u, out=u)
