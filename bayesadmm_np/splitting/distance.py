"""Bound on the distance from the reported mean to that of the pooled fit, from sums over clients alone.

The theorem is in docs/certificate.md, whose names are used here, and its proof in docs/paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from .._errors import ArgumentError
from .._numerics import rounding_unit
from .._validation import Array
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision, Precision
from ..losses.base import GaussianExpected

__all__ = [
    "ClientSums",
    "Distance",
    "client_sums",
    "distance_bound",
    "largest_third_derivative",
    "least_curvature",
]

NEWTON = "the residual is small, and so is the change of curvature around it"
PRIOR = "the residual is too large for a close bound, and the prior alone gives a loose one"
FLAT = "the residual is too large for a close bound, and a flat prior gives none"
ESTIMATE = "a first-order estimate; no bound is known for this loss and rule"
NOTHING = "the pooled curvature is not finite and positive definite beyond rounding"

NAMED = 1e-6  # relative error of standard errors above which a bound names it
UNRESOLVED = 0.5  # relative rounding error from which on the curvature is not trusted
FURTHEST = 1e3  # reach above which μ²/T is below 1e-20, and no residual that can be computed is small enough


@dataclass(frozen=True)
class ClientSums:
    """Message of a client for the bound at q_g: sums and maxima over its rows (`bayesadmm_np.losses.base.Margins`)."""

    gradient: Array  # shape (d,): E_{q_g}[∇ℓ_k]
    curvature: Array  # shape (d, d): E_{q_g}[∇²ℓ_k], dense whatever the family
    reach: float | None  # None lets the server give an estimate only
    gradient_error: Array
    curvature_error: float
    at_mean: bool  # whether the gradient is ∇ℓ_k(m), and m stands for a point estimate


@dataclass(frozen=True)
class Distance:
    """A bound on the distance from the reported mean m to that of the pooled fit, m*.

    Attributes
    ----------
    mahalanobis : float
        Bound on ‖m − m*‖ in the metric of the reported precision; of the pooled curvature Λ_0 + Σ_k H_k where the
        family's precision is fixed.
    sd_units : float
        Bound on max_j |m_j − m*_j| / sd_j, with the standard deviations of the same matrix.
    per_coefficient : ndarray, shape (d,)
        Bound on |m_j − m*_j|, in the coefficient's own units.
    rigorous : bool
        False for a first-order estimate.
    reason : str
        Argument that gave the bound, in words.
    errors : float or None
        For a mode, bound on |s_j/s*_j − 1| and |s*_j/s_j − 1|: standard errors s here, s* at the pooled mode, without
        rounding. None for a posterior mean, and where no bound is known.
    """

    mahalanobis: float
    sd_units: float
    per_coefficient: Array = field(compare=False, repr=False)
    rigorous: bool
    reason: str
    errors: float | None = None
    is_rounding: bool = field(default=True, compare=False, repr=False)
    """True where the gradient is within its rounding, so that another step would not improve `errors`."""

    def __post_init__(self) -> None:
        if not (self.mahalanobis >= 0.0 and self.sd_units >= 0.0 and (self.per_coefficient >= 0.0).all()):
            smallest = min(self.mahalanobis, self.sd_units, *self.per_coefficient)
            raise ArgumentError("distance", "must have bounds >= 0", smallest)

    @classmethod
    def unknown(cls, dim: int, reason: str) -> Distance:
        """Return an infinite bound, and the reason."""
        return cls(np.inf, np.inf, np.full(dim, np.inf), True, reason)

    def __str__(self) -> str:
        if not np.isfinite(self.sd_units):
            return f"no bound on the distance to the pooled fit: {self.reason}"
        word = "within {} standard errors of" if self.rigorous else "about {} standard errors from"
        how = "guaranteed" if self.rigorous else "not guaranteed"
        how += "" if self.reason == NEWTON else f": {self.reason}"
        said = f"every coefficient is {word.format(f'{self.sd_units:.1e}')} the pooled fit ({how})"
        if self.errors is not None and self.errors > NAMED:
            said += f"; standard errors are known to a relative error of {self.errors:.0e}"
        return said


def client_sums(expected: GaussianExpected) -> ClientSums:
    """Return a client's message for `distance_bound` from `loss.expect(q_g, rule)`."""
    return ClientSums(expected.gradient, expected.curvature.dense(), *expected.margins, at_mean=expected.is_at_mean)


def distance_bound(prior: Gaussian, q_g: Gaussian, sums: Sequence[ClientSums]) -> Distance:
    """Bound the distance from q_g's mean to the mean of the pooled fit, for convex losses.

    With g = Λ_0(m − m_0) + Σ_k E_{q_g}[∇ℓ_k] and H = Λ_0 + Σ_k E_{q_g}[∇²ℓ_k] the bound on |m_j − m*_j| is |(H⁻¹g)_j| +
    √(H⁻¹)_jj · slack (docs/certificate.md). The bound holds for logistic, Poisson and two-class softmax regression
    under exact expectations. Under the delta method or a fixed precision it holds for every softmax, too; for least
    squares it is relative to the run's rule. Otherwise the first term alone is an estimate.

    Parameters
    ----------
    prior : Gaussian
    q_g : Gaussian
        Member of the prior's family.
    sums : sequence of ClientSums
        Messages of the clients, one each, at q_g.

    Raises
    ------
    ValueError
        When there are no clients, or a client's arrays do not have the shapes of q_g.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.splitting.distance import client_sums, distance_bound
    >>> prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    >>> q = ba.families.FullGaussian(np.array([0.5]), 4.0)  # the pooled fit is 0.8
    >>> sums = [client_sums(ba.losses.LeastSquares([[2.0]], [2.0]).expect(q, ba.losses.Exact()))]
    >>> distance_bound(prior, q, sums).per_coefficient.round(9)
    array([0.3])
    """
    _check(q_g, sums)
    with np.errstate(over="ignore", invalid="ignore"):  # a sum that is not finite is answered in words
        local = Local.at(prior, q_g, sums)
    point = not q_g.learns_precision or all(client.at_mean for client in sums)
    if local is None or (local.fuzz >= UNRESOLVED and not point):
        return Distance.unknown(q_g.dim, NOTHING)
    reaches = [client.reach for client in sums]
    known = [reach for reach in reaches if reach is not None]
    if len(known) < len(reaches):
        return local.distance(np.abs(local.step), local.reported_step, False, ESTIMATE)
    ball = local.point_ball(max(known)) if point else local.variational_ball(max(known))
    is_rounding = local.fuzz >= UNRESOLVED or local.step_length <= local.noise
    if ball is None:
        return replace(local.from_prior(prior, point), is_rounding=is_rounding)
    radius, slack, turn = ball
    each = np.minimum(np.abs(local.step) + local.errors * slack, local.errors * radius)
    scale = 1.0 / float(np.sqrt(local.smallest)) if q_g.learns_precision else 1.0
    found = local.distance(each, min(local.reported_step + slack * scale, radius * scale), True, NEWTON)
    # every row's ℓ'' at the pooled mode is within a factor e^±turn of that here, and so is the information
    return replace(found, errors=float(np.expm1(0.5 * turn)), is_rounding=is_rounding) if point else found


class Local(NamedTuple):
    """The pooled objective to second order around q_g, in the metric of H; q_g's covariance is LLᵀ."""

    q: Gaussian
    gradient: Array  # g
    newton: DensePrecision  # H
    whitener: Array  # W with H⁻¹ = WᵀW
    step: Array  # H⁻¹g
    noise: float  # bound on the length of H⁻¹ times the error of the gradient
    fuzz: float  # bound on the error of H relative to itself
    excess: float  # Frobenius length of LᵀHL − I in the family's structure, rounding included
    smallest: float  # lower bound on the eigenvalues of LᵀHL

    @classmethod
    def at(cls, prior: Gaussian, q: Gaussian, sums: Sequence[ClientSums]) -> Local | None:
        """Add up; None where the curvature is not positive definite beyond rounding."""
        identity = np.eye(q.dim)
        unit = rounding_unit(len(sums), q.dim)
        deviation = q.mean - prior.mean
        gradient = prior.factor.multiply(deviation) + np.sum([client.gradient for client in sums], axis=0)
        sizes = prior.factor.like([np.abs(part) for part in prior.factor.parts])
        rounding = unit * sizes.multiply(np.abs(q.mean) + np.abs(prior.mean))
        rounding = rounding + np.sum([client.gradient_error for client in sums], axis=0)
        curvature = prior.factor.multiply(identity) + np.sum([client.curvature for client in sums], axis=0)
        newton = DensePrecision(curvature)
        if not (newton.is_positive_definite() and np.isfinite(gradient).all() and np.isfinite(rounding).all()):
            return None
        relative = unit + max(client.curvature_error for client in sums)
        diagonal = np.sqrt(np.diagonal(curvature))
        whitener = newton.half_solve(identity)
        fuzz = relative * float(np.sum((np.abs(whitener) @ diagonal) ** 2))
        root = q.factor.colour(identity)
        blur = relative * float(np.sum((np.abs(root.T) @ diagonal) ** 2))
        relation = root.T @ curvature @ root
        off = float(np.linalg.norm(relation - identity)) + blur
        smallest = 1.0 - off if off < 0.5 else (1.0 - min(fuzz, UNRESOLVED)) * _smallest(whitener, q.factor)
        excess = 0.0
        if q.learns_precision:
            restricted = q.factor.repeated_block(curvature, 1)
            parts = [own - part for own, part in zip(restricted, q.factor.parts, strict=True)]
            excess = float(np.linalg.norm(q.factor.whiten(parts))) + blur
        # an error of row variances changes E[ℓ'] by half of it times E[ℓ'']
        reach = max((client.reach or 0.0 for client in sums if not client.at_mean), default=0.0)
        noise = float(np.linalg.norm(np.abs(whitener) @ rounding)) + 0.5 * fuzz * reach * float(np.sqrt(q.dim))
        return cls(q, gradient, newton, whitener, newton.solve(gradient), noise, fuzz, excess, smallest)

    @property
    def step_length(self) -> float:
        """The Newton decrement √(gᵀH⁻¹g)."""
        return float(np.linalg.norm(self.whitener @ self.gradient))

    @property
    def reported_step(self) -> float:
        """The length of the Newton step in the metric of `Distance.mahalanobis`."""
        if not self.q.learns_precision:
            return self.step_length
        return float(np.sqrt(self.step @ self.q.factor.multiply(self.step)))

    @property
    def errors(self) -> Array:
        """Standard errors √(H⁻¹)_jj."""
        return np.asarray(np.linalg.norm(self.whitener, axis=0))

    def point_ball(self, reach: float) -> tuple[float, float, float] | None:
        """Return radius around m, slack around m − H⁻¹g, largest change of log ℓ'' of a row, for a function of m."""
        steep = reach / np.sqrt(self.smallest)
        least = (self.step_length + self.noise) / (1.0 - min(self.fuzz, UNRESOLVED))
        if self.fuzz >= UNRESOLVED or not steep * least < 1.0:
            return None
        radius = least if steep == 0.0 else -float(np.log1p(-steep * least)) / steep
        turn = steep * radius
        growth = float(np.expm1(turn)) / turn if turn > 0.0 else 1.0
        return radius, radius * ((1.0 + self.fuzz) * growth - 1.0) + self.noise, turn

    def variational_ball(self, reach: float) -> tuple[float, float, float] | None:
        """Return the same three for a function of mean and covariance."""
        if not reach <= FURTHEST:
            return None
        length = float(np.hypot(self.step_length + self.noise, self.excess))
        largest = 1.0 + self.excess
        cross = reach * float(np.sqrt(largest))
        floor = (1.0 - self.fuzz) * least_curvature(cross)
        steep = reach * max(1.0, 1.0 / float(np.sqrt(self.smallest)))
        data = (1.0 + self.fuzz) * largest_third_derivative(reach, steep, largest, 2.0 * length / floor)
        bend = data + ENTROPY_BEND
        if 2.0 * bend * length > floor**2:
            return None
        radius = 2.0 * length / (floor + float(np.sqrt(floor**2 - 2.0 * bend * length)))
        turned = cross * (1.0 + self.fuzz) + self.fuzz
        return radius, radius * turned + 0.5 * data * radius**2 + self.noise, cross * radius

    def from_prior(self, prior: Gaussian, point: bool) -> Distance:
        """Return the bound that the prior's strong convexity gives, whatever the residual."""
        if not prior.is_proper:
            return Distance.unknown(self.q.dim, FLAT)
        identity = np.eye(self.q.dim)
        own = prior.factor.half_solve(identity)
        length = float(np.linalg.norm(own @ self.gradient)) + self.noise / float(np.sqrt(_smallest(own, self.newton)))
        if not point:
            length = float(np.hypot(length, self.excess / np.sqrt(_smallest(own, self.q.factor))))
        reported = self.q.factor if self.q.learns_precision else self.newton
        whole = length / float(np.sqrt(_smallest(own, reported)))
        return self.distance(length * np.sqrt(prior.variance), whole, True, PRIOR)

    def distance(self, each: Array, whole: float, rigorous: bool, reason: str) -> Distance:
        """Return the bounds on each coefficient and on the whole, with that in standard deviations."""
        deviations = np.sqrt(self.q.variance) if self.q.learns_precision else self.errors
        widest = float((each / deviations).max())
        if not np.isfinite(widest + whole):  # it overflowed
            return Distance.unknown(self.q.dim, reason)
        return Distance(float(whole), widest, each, rigorous, reason)


ENTROPY_BEND = 2.0  # 1/(1 + r)² ≥ 1 − 2r bounds the fall of the entropy's curvature along a ray from B = I


def _chi(x: float) -> float:
    """Return the largest singular value of [[1, x], [0, 1]]."""
    return 0.5 * (x + float(np.hypot(x, 2.0)))


def least_curvature(cross: float) -> float:
    """Return the lower bound μ on the curvature of the pooled objective in mean and covariance, at q_g."""
    return _chi(cross) ** -2


def largest_third_derivative(reach: float, steep: float, largest: float, radius: float) -> float:
    """Return the bound T on the third derivative of the data part within a radius of q_g; ∞ where it overflows."""
    spread = _chi(reach * (1.0 + radius))
    exponent = spread * steep * radius
    return float(np.sqrt(3.0)) * spread**3 * steep * largest * float(np.exp(exponent)) if exponent < 700.0 else np.inf


def _smallest(whitener: Array, unit: Precision) -> float:
    """Return the smallest eigenvalue of M relative to another precision, where M⁻¹ = WᵀW."""
    # through the inverse, whose largest eigenvalue is found with full accuracy
    inverse_root = unit.multiply(unit.colour(np.eye(unit.dim)))
    return float(np.linalg.norm(whitener @ inverse_root, 2)) ** -2


def _check(q: Gaussian, sums: Sequence[ClientSums]) -> None:
    if not sums:
        raise ArgumentError("sums", "must contain the message of at least one client", "none")
    for k, client in enumerate(sums):
        shapes = client.gradient.shape, client.curvature.shape, client.gradient_error.shape
        wanted = (q.dim,), (q.dim, q.dim), (q.dim,)
        if shapes != wanted:
            names = "gradient, curvature and gradient_error"
            raise ValueError(f"client {k}: {names} must be of shapes {wanted}, got {shapes}.")
