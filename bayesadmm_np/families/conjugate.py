"""Families with conjugate likelihoods: Gamma, Beta and Dirichlet, whose ordinary parameters are positive vectors.

Both sides of ∇A are closed forms of ψ, in which large terms cancel: here they are evaluated without that loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaln, digamma, gammaln, logsumexp, polygamma, xlog1py, xlogy

from .._errors import ArgumentError
from .._validation import Array, as_float_array, frozen
from .base import FAMILIES, ExponentialFamily
from .coordinates import Expectation, Natural

# log x − ψ(x) ~ 1/(2x) + Σ_k B_2k / (2k x^2k); from x = 10 on, these seven terms reach rounding error
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_ASYMPTOTIC_FROM = 10.0


class ConjugateFamily(ExponentialFamily):
    """A family whose ordinary parameters are the vectors `arguments`, of one length; λ ∈ Ω iff they are positive."""

    @staticmethod
    @abstractmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        """Return the ordinary parameters of λ, in the order of `arguments`."""

    @staticmethod
    @abstractmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        """Return the ordinary parameters of μ; raises ValueError for impossible moments."""

    @classmethod
    def _make(cls, parameters: Sequence[Array]) -> Self:
        member = cls.__new__(cls)
        for name, value in zip(cls.arguments, parameters, strict=True):
            setattr(member, name, frozen(value))
        return member

    def with_natural(self, natural: Natural) -> Self:
        self._require(natural, Natural)
        parameters = self._inside(natural)
        if parameters is None:
            names = " and ".join(self.arguments)
            raise ValueError(f"natural parameter outside the domain: every {names} must be positive.")
        member = self._make(parameters)
        # keep λ as given: 1 is added and subtracted at the cost of a small parameter's last digits
        member.__dict__["natural"] = natural
        return member

    def with_expectation(self, expectation: Expectation) -> Self:
        self._require(expectation, Expectation)
        return self._make(self._from_moments(expectation))

    def contains(self, natural: Natural) -> bool:
        self._require(natural, Natural)
        return self._inside(natural) is not None

    @classmethod
    def _inside(cls, natural: Natural) -> tuple[Array, ...] | None:
        """Return the ordinary parameters of λ, or None when λ is outside the domain."""
        if not natural.is_finite():
            return None
        parameters = cls._from_parts(natural.parts)
        # adding 1 to a number next to −1 is exact, so the sign says on which side of the edge λ lies
        return parameters if all(bool((value > 0.0).all()) for value in parameters) else None

    @property
    def dim(self) -> int:
        """Number of variables d, or of coordinates K."""
        return self.natural.parts[0].size


@FAMILIES.register
class Gamma(ConjugateFamily):
    """d independent Gammas with density ∝ θ^(shape − 1) exp(−rate · θ) on θ > 0.

    λ = (shape − 1, −rate), T(θ) = (log θ, θ), h = 1, μ = (ψ(shape) − log rate, shape/rate).

    Parameters
    ----------
    shape, rate : float or array_like, shape (d,)
        All entries positive; a number is repeated to match the other argument.

    Raises
    ------
    ValueError
        When an entry is not positive and finite, or the lengths differ.

    Notes
    -----
    μ of doubles gives (shape, rate) back to a few times shape · (1 + |E log θ|) · 10⁻¹⁶.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Gamma(shape=[1.0, 3.0], rate=2.0)
    >>> q.mean, q.variance
    (array([0.5, 1.5]), array([0.25, 0.75]))
    >>> np.round(q.with_expectation(q.expectation).shape, 12)
    array([1., 3.])
    """

    arguments = ("shape", "rate")

    shape: Array
    rate: Array

    def __init__(self, shape: ArrayLike, rate: ArrayLike) -> None:
        self.shape, self.rate = positive_vectors(("shape", shape), ("rate", rate))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return parts[0] + 1.0, -parts[1]

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        log_mean, mean = expectation.parts
        if not expectation.is_finite() or not (mean > 0).all() or not (log_mean < np.log(mean)).all():
            raise ValueError("impossible moments: they must be finite with E[θ] > 0, E[log θ] < log E[θ].")
        shape = _inverse_log_minus_digamma(np.log(mean) - log_mean)
        return shape, shape / mean

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.shape - 1.0, -self.rate)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(np.log(self.mean) - log_minus_digamma(self.shape), self.mean)

    @cached_property
    def log_partition(self) -> float:
        return float((gammaln(self.shape) - self.shape * np.log(self.rate)).sum())

    @property
    def mean(self) -> Array:
        """E[θ] = shape/rate, shape (d,)."""
        return self.shape / self.rate

    @property
    def variance(self) -> Array:
        """Var[θ] = shape/rate², shape (d,)."""
        return self.shape / self.rate**2

    def whiten(self, difference: Natural) -> Array:
        """Apply Cholesky factors, rate first, of the 2 × 2 blocks [[ψ'(shape), 1/rate], [1/rate, shape/rate²]]."""
        self._require(difference, Natural)
        first, second = difference.parts
        mean_part = (second + first / self.mean) * np.sqrt(self.shape) / self.rate
        return np.concatenate([np.sqrt(trigamma_excess(self.shape)) * first, mean_part])

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., d); −inf where a coordinate is negative."""
        points = as_points(theta, self.dim)
        terms = xlogy(self.shape - 1.0, np.where(points < 0, np.nan, points)) - self.rate * points
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, points >= 0)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d); below a shape of about 0.01 some of them underflow to 0."""
        return rng.standard_gamma(self.shape, (size, self.dim)) / self.rate


@FAMILIES.register
class Dirichlet(ConjugateFamily):
    """Density ∝ Π θ_j^(α_j − 1) on the simplex {θ > 0, Σθ = 1} of K ≥ 2 coordinates; α is the concentration.

    λ = α − 1, T(θ) = log θ, h = 1 (with respect to the first K − 1 coordinates), μ_j = ψ(α_j) − ψ(Σα).

    Parameters
    ----------
    concentration : array_like, shape (K,)
        α, all entries positive.

    Raises
    ------
    ValueError
        When there are fewer than two entries, or one is not positive and finite.

    Notes
    -----
    μ of doubles gives α back to a few times Σα · (1 + |μ|) · 10⁻¹⁶.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Dirichlet(concentration=[1.0, 2.0, 5.0])
    >>> q.mean
    array([0.125, 0.25 , 0.625])
    >>> np.round(q.with_expectation(q.expectation).concentration, 12)
    array([1., 2., 5.])
    """

    arguments = ("concentration",)

    concentration: Array

    def __init__(self, concentration: ArrayLike) -> None:
        if as_float_array(concentration, "concentration", ndim=1).size < 2:
            raise ArgumentError("concentration", "must have at least 2 entries", "1")
        (self.concentration,) = positive_vectors(("concentration", concentration))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return (parts[0] + 1.0,)

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        return (inverse_digamma_differences(expectation.parts[0][None, :])[0],)

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.concentration - 1.0)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(digamma_differences(self.concentration[None, :])[0])

    @cached_property
    def log_partition(self) -> float:
        return float(gammaln(self.concentration).sum() - gammaln(self.concentration.sum()))

    @property
    def mean(self) -> Array:
        """E[θ] = α/Σα, shape (K,)."""
        return self.concentration / self.concentration.sum()

    @property
    def variance(self) -> Array:
        """Var[θ_j] = p_j(1 − p_j)/(1 + Σα) with p the mean, shape (K,)."""
        return self.mean * (1.0 - self.mean) / (1.0 + self.concentration.sum())

    def whiten(self, difference: Natural) -> Array:
        """Symmetric root of diag(ψ'(α)) − ψ'(Σα) 11ᵀ, in closed form: it is diagonal plus rank one."""
        self._require(difference, Natural)
        return whiten_rows(self.concentration[None, :], difference.parts[0][None, :])[0]

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., K); −inf off the simplex (its sum may be off by rounding)."""
        points = as_points(theta, self.dim)
        inside = (points >= 0) & (np.abs(points.sum(axis=-1, keepdims=True) - 1.0) < 1e-9)
        terms = xlogy(self.concentration - 1.0, np.where(inside, points, 1.0))
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, inside)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, K); below α of about 0.01 coordinates underflow to 0."""
        return rng.dirichlet(self.concentration, size)


@FAMILIES.register
class Beta(ConjugateFamily):
    """d independent Betas with density ∝ θ^(a − 1) (1 − θ)^(b − 1) on (0, 1).

    λ = (a − 1, b − 1), T(θ) = (log θ, log(1 − θ)), h = 1, μ = (ψ(a) − ψ(a + b), ψ(b) − ψ(a + b)).
    Each coordinate is a Dirichlet on two outcomes, and is computed as one.

    Parameters
    ----------
    a, b : float or array_like, shape (d,)
        All entries positive; a number is repeated to match the other argument.

    Raises
    ------
    ValueError
        When an entry is not positive and finite, or the lengths differ.

    Notes
    -----
    μ of doubles gives (a, b) back to a few times (a + b) · (1 + |μ|) · 10⁻¹⁶.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> q = ba.families.Beta(a=[1.0, 3.0], b=1.0)
    >>> q.mean
    array([0.5 , 0.75])
    >>> np.round(q.with_expectation(q.expectation).a, 12)
    array([1., 3.])
    """

    arguments = ("a", "b")

    a: Array
    b: Array

    def __init__(self, a: ArrayLike, b: ArrayLike) -> None:
        self.a, self.b = positive_vectors(("a", a), ("b", b))

    @staticmethod
    def _from_parts(parts: Sequence[Array]) -> tuple[Array, ...]:
        return parts[0] + 1.0, parts[1] + 1.0

    @staticmethod
    def _from_moments(expectation: Expectation) -> tuple[Array, ...]:
        pairs = inverse_digamma_differences(np.stack(expectation.parts, axis=1))
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    @property
    def _pairs(self) -> Array:
        return np.stack([self.a, self.b], axis=1)

    @cached_property
    def natural(self) -> Natural:
        return Natural(self.a - 1.0, self.b - 1.0)

    @cached_property
    def expectation(self) -> Expectation:
        return Expectation(*digamma_differences(self._pairs).T)

    @cached_property
    def log_partition(self) -> float:
        return float(betaln(self.a, self.b).sum())

    @property
    def mean(self) -> Array:
        """E[θ] = a/(a + b), shape (d,)."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> Array:
        """Var[θ] = ab/((a + b)²(a + b + 1)), shape (d,)."""
        total = self.a + self.b
        return self.a / total * (self.b / total) / (total + 1.0)

    def whiten(self, difference: Natural) -> Array:
        """Symmetric roots of the 2 × 2 blocks diag(ψ'(a), ψ'(b)) − ψ'(a + b) 11ᵀ, in closed form."""
        self._require(difference, Natural)
        return whiten_rows(self._pairs, np.stack(difference.parts, axis=1)).ravel()

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., d); −inf outside [0, 1]."""
        points = as_points(theta, self.dim)
        inside = (points >= 0) & (points <= 1)
        safe = np.where(inside, points, 0.5)
        terms = xlogy(self.a - 1.0, safe) + xlog1py(self.b - 1.0, -safe)
        return outside_is_impossible(terms.sum(axis=-1) - self.log_partition, inside)

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d); parameters below about 0.01 let some round to 0 or 1."""
        return rng.beta(self.a, self.b, (size, self.dim))


def positive_vectors(*arguments: tuple[str, ArrayLike]) -> list[Array]:
    """Check named arguments to be positive vectors (or numbers, which are repeated) of one length."""
    arrays = [as_float_array(value, name, ndim=(0, 1)) for name, value in arguments]
    lengths = [array.size for array in arrays if array.ndim]
    dim = lengths[0] if lengths else 1
    for (name, _), array in zip(arguments, arrays, strict=True):
        if array.ndim and array.size != dim:
            raise ArgumentError(name, f"must have shape ({dim},) to match the others", array.shape)
        if not (array > 0).all():
            raise ArgumentError(name, "must be positive in every entry", f"{array.min():g}")
    return [frozen(np.array(np.broadcast_to(array, (dim,)))) for array in arrays]


def as_points(theta: ArrayLike, dim: int) -> Array:
    """Return θ as an array of shape (..., dim)."""
    points = np.asarray(theta, dtype=np.float64)
    if points.shape[-1:] != (dim,):
        raise ArgumentError("theta", f"must have last dimension {dim}", f"shape {points.shape}")
    return points


def outside_is_impossible(values: Array, inside: NDArray[np.bool_]) -> Array:
    """Put −inf where a coordinate of the point left the support."""
    return np.asarray(np.where(inside.all(axis=-1), values, -np.inf))


def log_minus_digamma(x: Array) -> Array:
    """Return log x − ψ(x) for x > 0 to full relative accuracy: it tends to 1/(2x), its terms to log x."""
    z = 1.0 / np.maximum(x, _ASYMPTOTIC_FROM)
    series = 0.5 * z + z * z * np.polynomial.polynomial.polyval(z * z, _BERNOULLI)
    return np.where(x >= _ASYMPTOTIC_FROM, series, np.log(x) - digamma(x))


def trigamma_excess(x: Array) -> Array:
    """Return ψ'(x) − 1/x for x > 0 to full relative accuracy: it tends to 1/(2x²), its terms to 1/x."""
    z = 1.0 / np.maximum(x, _ASYMPTOTIC_FROM)
    slopes = [2 * k * term for k, term in enumerate(_BERNOULLI, start=1)]
    series = 0.5 * z * z + z**3 * np.polynomial.polynomial.polyval(z * z, slopes)
    return np.where(x >= _ASYMPTOTIC_FROM, series, polygamma(1, x) - 1.0 / x)


def _inverse_log_minus_digamma(target: Array) -> Array:
    """Solve log a − ψ(a) = target > 0: Newton in 1/a, in which the left-hand side is nearly linear."""
    # the start interpolates between a ≈ 1/(2 target) and a ≈ 1/target within 1.5 %, without cancellation
    root = np.sqrt(target * target + 18.0 * target + 9.0)
    a = np.where(target < 3.0, (3.0 - target + root) / (12.0 * target), 2.0 / (root + target - 3.0))
    for _ in range(20):
        gap = log_minus_digamma(a) - target
        change = gap / (a * trigamma_excess(a))
        a = a / (1.0 - change)
        if (np.abs(change) < 1e-9).all():  # convergence is quadratic: this step was the last that matters
            break
    return a


def digamma_differences(alpha: Array) -> Array:
    """Return ψ(α_j) − ψ(Σα) for each row of α, shape (n, K), without cancellation at large or unequal α."""
    total = alpha.sum(axis=1, keepdims=True)
    share = alpha / total
    # log of a share near one: through the sum of the others (at most one share exceeds a half)
    largest = np.arange(alpha.shape[1]) == alpha.argmax(axis=1)[:, None]
    others = np.where(largest, 0.0, alpha).sum(axis=1, keepdims=True) / total
    near_one = largest & (others < 0.5)
    log_share = np.where(near_one, np.log1p(-np.minimum(others, 0.5)), np.log(share))
    return log_share - log_minus_digamma(alpha) + log_minus_digamma(total)


def whiten_rows(alpha: Array, difference: Array) -> Array:
    """Return F^½ δ row by row, with F = diag(ψ'(α)) − ψ'(Σα) 11ᵀ; all of shape (n, K)."""
    trigammas, top, gap = _fisher_pieces(alpha)
    weights = 1.0 / np.sqrt(trigammas)
    direction = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    scaled = np.sqrt(trigammas) * difference
    # in these coordinates F is I − c vvᵀ with 1 − c = ψ'(Σα) · gap
    removed = 1.0 - np.sqrt(top * gap)
    return scaled - removed * direction * (direction * scaled).sum(axis=1, keepdims=True)


def inverse_digamma_differences(target: Array) -> Array:
    """Solve ψ(α_j) − ψ(Σα) = target_j row by row, shape (n, K), by damped Newton steps (Minka 2000)."""
    # Σ exp μ_j < 1 is exactly the set of possible moments: the interior of the hull of {log θ}
    deficit = -logsumexp(target, axis=1, keepdims=True) if np.isfinite(target).all() else np.zeros(1)
    if not (deficit > 0).all():
        raise ValueError("impossible moments: Σ exp E[log θ_j] must be < 1, and every E[log θ_j] finite.")
    # the total for large concentrations, of the right order for small ones; then one fixed-point step
    alpha = _rough_inverse_digamma(target + digamma(0.5 * (target.shape[1] - 1) / deficit))
    settled = False
    for _ in range(200):
        trigammas, _, gap = _fisher_pieces(alpha)
        residual = target - digamma_differences(alpha)
        scaled = residual / trigammas
        step = scaled + scaled.sum(axis=1, keepdims=True) / (trigammas * gap)
        decrement = (residual * step).sum(axis=1, keepdims=True)
        alpha = alpha + _step_length(alpha, step, decrement, target) * step
        if settled:
            return alpha
        # the error is now about 1e-12 (convergence is quadratic), and one more step takes it to rounding
        settled = bool((decrement < 1e-12).all())
    # beyond a total of about 1e12, rounding in the moments keeps the decrement from getting this small
    if not (decrement < 1e-2).all():
        raise ValueError("impossible moments: too close to the boundary to be inverted in double precision.")
    return alpha


def _fisher_pieces(alpha: Array) -> tuple[Array, Array, Array]:
    """Return ψ'(α), ψ'(Σα) and 1/ψ'(Σα) − Σ 1/ψ'(α_j) > 0, the last through x − 1/ψ'(x) ≤ ½."""
    total = alpha.sum(axis=1, keepdims=True)
    trigammas, top = polygamma(1, alpha), polygamma(1, total)
    shortfalls = alpha * trigamma_excess(alpha) / trigammas
    gap = shortfalls.sum(axis=1, keepdims=True) - total * trigamma_excess(total) / top
    return trigammas, top, gap


def _step_length(alpha: Array, step: Array, decrement: Array, target: Array) -> Array:
    shrinking = np.where(step < 0, -step / alpha, 0.0).max(axis=1, keepdims=True)
    length = np.minimum(1.0, 0.9 / np.maximum(shrinking, 0.9))
    for _ in range(60):
        trial = target - digamma_differences(alpha + length * step)
        too_long = (decrement > 0.1) & ((trial * step).sum(axis=1, keepdims=True) < 0)
        if not too_long.any():
            break
        length = np.where(too_long, 0.5 * length, length)
    return length


def _rough_inverse_digamma(value: Array) -> Array:
    """Minka's starting value for ψ⁻¹: exp(y) + ½ for large y and −1/(y − ψ(1)) for small y."""
    small = value < -2.22
    at_small = -1.0 / (np.minimum(value, -2.22) - digamma(1.0))
    return np.where(small, at_small, np.exp(np.maximum(value, -2.22)) + 0.5)
