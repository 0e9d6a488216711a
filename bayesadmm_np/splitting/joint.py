"""Newton's step of a posterior in mean and Cholesky factor, for every Gaussian family.

At q_A = N(m, S⁻¹), S = LLᵀ, every q of the family is the law of θ = m + L⁻ᵀ(a + Tu) for u standard normal. T is upper
triangular and positive on the diagonal. A family with blocks has the entries of the blocks alone, a diagonal family a
diagonal T, and a fixed precision no T. Where the losses are convex, the pooled objective is convex in (a, T): E
ℓ(x_iᵀθ) is the mean of a convex function of an affine one, the prior adds a quadratic, and the entropy −Σ_j log T_jj.
With z_i = L⁻¹x_i its derivatives at a = 0, T = I follow from those of the sites: the gradient g, P = L⁻¹(P_0 +
Σ_kH_k)L⁻ᵀ with the dense curvatures H_k, and the tensors T³ and T⁴ of `losses/tensors.py`, summed over the sites. In
the order a, T_jk with j ≤ k, and without the entropy,

    gradient   [L⁻¹(P_0(m − m_0) + Σ_kg_k)]_j,   P_jk
    Hessian    P_jl for (a_j, a_l),   T³_jlm for (a_j, T_lm),   T⁴_jklm + δ_km P_jl for (T_jk, T_lm)

The entropy is kept as it is: the server minimises the quadratic model with −Σ_j log T_jj, at no exchange. For least
squares the model is exact. Without tensors the model separates, with a minimiser in closed form. A BFGS update of Q
uses the gradients at two points and needs no further number from any site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from .._validation import Array
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision, Precision
from ..losses.tensors import JointSums, block_sizes, entries, pairs, unpack_tensors

MOST_STEPS = 100  # Newton steps that the server takes on its model
LAST = 1e-26  # squared length of the last of these steps, in the metric of the model
PRECISE = 1e-12  # rounding of the model, relative to its value
MOST_SHORTENED = 12  # times that a step of no distribution is shortened, each by ten
INSIDE = 0.9  # part of the way to a zero on the diagonal of T that a step may go
MOST_COORDINATES = 1000  # most entries of T for which Q is formed without tensors: 8 MB, and 40 ms for the minimum
FLAT = 1e-8  # cosine between s and y below which rounding may have made it


@dataclass(frozen=True)
class Model:
    """bᵀx + ½xᵀQx − Σ_j log x_jj in the coordinates x = (a, T) of `at`; T itself, because it may be tiny."""

    linear: Array  # shape (n,): b
    hessian: Array  # shape (n, n): Q
    diagonal: NDArray[np.intp]  # places of the T_jj

    @cached_property
    def origin(self) -> Array:
        """Coordinates of q itself: a = 0, T = I."""
        start = np.zeros_like(self.linear)
        start[self.diagonal] = 1.0
        return start

    def value(self, x: Array) -> float:
        """Return the model; ∞ where T has no positive diagonal."""
        lengths = x[self.diagonal]
        if not (lengths > 0).all():
            return float("inf")
        return float(self.linear @ x + 0.5 * (x @ (self.hessian @ x)) - np.log(lengths).sum())

    def minimum(self) -> Array | None:
        """Return the minimiser, None where Q and the entropy do not add up to a positive definite matrix."""
        x, diagonal = self.origin, self.diagonal
        value, last = self.value(x), np.inf
        for _ in range(MOST_STEPS):
            lengths = x[diagonal]
            gradient, hessian = self.linear + self.hessian @ x, self.hessian.copy()
            gradient[diagonal] -= 1.0 / lengths
            hessian[diagonal, diagonal] += lengths**-2.0
            try:
                step = -cho_solve(cho_factor(hessian, lower=True), gradient)
            except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
                return None
            decrement = -float(gradient @ step)
            shortest = float((step[diagonal] / lengths).min(initial=0.0))
            size = 1.0 if shortest > -INSIDE else -INSIDE / shortest
            while size > 1e-9 and self.value(x + size * step) > value - 1e-4 * size * decrement + 1e-12 * abs(value):
                size *= 0.5
            x = x + size * step
            value = self.value(x)
            is_rounding = decrement <= PRECISE * (1.0 + abs(value)) and decrement > 0.5 * last
            if decrement <= LAST or is_rounding:
                break
            last = decrement
        return x


def joint_step(prior: Gaussian, q: Gaussian, sums: Sequence[JointSums], n_outputs: int = 1) -> Gaussian | None:
    """Return the model's minimiser in q's family, or `curvature_step` where rounding leaves it none."""
    tensors = [own.tensors for own in sums if own.tensors is not None]
    if q.learns_precision and tensors:
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow leaves no minimum
            gradient, curvature = pooled_sums(prior, q, sums)
            model = joint_model(q, gradient, curvature, unpack_tensors(np.add.reduce(tensors), q, n_outputs))
            x = model.minimum()
        found = None if x is None else _member(q, model, x)
        if found is not None:
            return found
    return curvature_step(prior, q, sums)


def _member(q: Gaussian, model: Model, x: Array) -> Gaussian | None:
    """Return a point of the model, or the first of those ever nearer to q that is a distribution to rounding."""
    for _ in range(MOST_SHORTENED):
        found = at(q, x)
        if found is not None:
            return found
        x = model.origin + 0.1 * (x - model.origin)
    return None


def curvature_step(prior: Gaussian, q: Gaussian, sums: Sequence[JointSums]) -> Gaussian | None:
    """Return the minimiser of the model without tensors; None where it is no distribution.

    The mean is m − (P_0 + Σ_kH_k)⁻¹∇F, with the family's part of H_k where rounding leaves the dense sum indefinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is no distribution
        gradient, curvature = pooled_sums(prior, q, sums)
        own = q.factor.like(q.factor.repeated_block(curvature, 1))
        factor = own if q.learns_precision else q.factor
        for metric in (DensePrecision(curvature), own):
            if metric.is_positive_definite():
                end = member(q, q.mean - metric.solve(gradient), factor)
                if end is not None:
                    return end
    return None


def secant_step(
    prior: Gaussian, q: Gaussian, sums: Sequence[JointSums], last: Gaussian, earlier: Sequence[JointSums]
) -> Gaussian | None:
    """Return the minimiser of `secant_model`; `curvature_step` where Q is too large or there is no minimum."""
    found = None
    if 0 < entries(q)[0].size <= MOST_COORDINATES:
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow leaves no minimum
            model = secant_model(prior, q, sums, last, earlier)
            x = model.minimum()
        found = None if x is None else _member(q, model, x)
    return curvature_step(prior, q, sums) if found is None else found


def secant_model(
    prior: Gaussian, q: Gaussian, sums: Sequence[JointSums], last: Gaussian, earlier: Sequence[JointSums]
) -> Model:
    """Return the model without tensors; Q has a BFGS update by the change of the gradient since another point.

        Q ← Q − Qs(Qs)ᵀ/sᵀQs + yyᵀ/yᵀs,    so that Qs = y,

    for the way s from `last`, where the sites' sums were `earlier`, to q, and the change y of the gradient of all but
    the entropy; yᵀs > 0 for convex losses and a proper prior. Where rounding hides y, Q stays as it is.
    """
    rows, columns = entries(q)
    model = joint_model(
        q, *pooled_sums(prior, q, sums), (np.zeros((q.dim, rows.size)), np.zeros((rows.size, rows.size)))
    )
    gradient, curvature = pooled_sums(prior, last, earlier)
    stretch = np.zeros((q.dim, q.dim))
    stretch[rows, columns] = np.concatenate(
        [own if own.ndim == 1 else own[pairs(len(own))] for own in q.factor.stretch_to(last.factor)]
    )
    bent = _whitened(q, curvature) @ stretch
    mean = q.factor.half_solve(q.factor.multiply(last.mean - q.mean))
    here, Q = model.linear + model.hessian @ model.origin, model.hessian
    s = model.origin - np.concatenate([mean, stretch[rows, columns]])
    y = here - np.concatenate([q.factor.half_solve(gradient), bent[rows, columns]])
    turned, energy = Q @ s, float(s @ y)
    if energy > FLAT * float(np.linalg.norm(s) * np.linalg.norm(y)):
        Q = Q - np.outer(turned, turned) / (s @ turned) + np.outer(y, y) / energy
    return Model(here - Q @ model.origin, Q, model.diagonal)


def member(q: Gaussian, mean: Array, factor: Precision) -> Gaussian | None:
    """Return the member of q's family with a mean to the last bit, and a precision; None where there is none."""
    try:
        if isinstance(q, LearnedPrecisionGaussian):
            return q.at(mean, factor.parts)
        return q.with_natural(q.natural_from(factor.multiply(mean), factor.parts))
    except ValueError:
        return None


@dataclass(frozen=True)
class Slope:
    """The objective along a line to another distribution, in mean and root of the covariance."""

    value: float  # derivative at zero: gᵀΔm + tr[R(T − I)] − tr(T − I), R = L⁻¹(P_0 + Σ_kH_k)L⁻ᵀ in the family
    change: float  # change of the lower model gᵀΔm + tr[R(T − I)] − log det T, whose entropy is kept as it is
    size: float  # size of the terms of `value`


def promised_fall(
    prior: Gaussian, q: Gaussian, sums: Sequence[tuple[Array, Sequence[Array]]], target: Gaussian
) -> Slope:
    """Return slope and change of the lower model from q to another distribution.

    `sums` are the sites' E_q[∇ℓ_k], and E_q[∇²ℓ_k] in the family's shape. No sum here cancels where T is huge.
    """
    move = target.mean - q.mean
    terms = [prior.factor.multiply(q.mean - prior.mean), *(gradient for gradient, _ in sums)]
    change, size = float(np.add.reduce(terms) @ move), float(sum(np.abs(term) for term in terms) @ np.abs(move))
    value = change
    if q.learns_precision:
        whole = [np.add.reduce(own) for own in zip(prior.factor.parts, *(parts for _, parts in sums), strict=True)]
        for own, stretch in zip(q.factor.relative(whole), q.factor.stretch_to(target.factor), strict=True):
            bent = own * (stretch - _one(stretch))
            lengths = stretch if stretch.ndim == 1 else np.diagonal(stretch)
            change += float(bent.sum() - np.log(lengths).sum())
            value += float(bent.sum() - (lengths - 1.0).sum())
            size += float(np.abs(bent).sum() + np.abs(lengths - 1.0).sum())
    return Slope(value, change, size)


def tangent_to(q: Gaussian, slope: Array, parts: Sequence[Array], target: Gaussian) -> tuple[float, float, float]:
    """Return gᵀΔm + tr[R(T − I)], R = L⁻¹HL⁻ᵀ, of one site on the way to another distribution, and both terms' size."""
    move, shape = target.mean - q.mean, 0.0
    change, size = float(slope @ move), float(np.abs(slope) @ np.abs(move))
    if q.learns_precision and parts:
        for own, stretch in zip(q.factor.relative(parts), q.factor.stretch_to(target.factor), strict=True):
            bent = own * (stretch - _one(stretch))
            change, shape = change + float(bent.sum()), shape + float(np.abs(bent).sum())
    return change, size, shape


def sums_of(q: Gaussian, site: Natural) -> tuple[Array, tuple[Array, ...]]:
    """Return E_q[∇ℓ] and E_q[∇²ℓ] in the family's shape from −∇_μE_q[ℓ]."""
    parts = site.parts[1:]
    return (q.factor.like(parts).multiply(q.mean) if parts else 0.0) - site.linear, parts


def slope_to(prior: Gaussian, q: Gaussian, sites: Sequence[Natural], other: Gaussian) -> Slope:
    """Return the slope at q, from the sites there, on the way to another one."""
    return promised_fall(prior, q, [sums_of(q, site) for site in sites], other)


def stretched(q: Gaussian, mean: Array, stretch: Sequence[Array]) -> Gaussian | None:
    """Return the law of mean + L⁻ᵀTu, for T = `stretch`; None where it is none."""
    return member(q, mean, q.factor.stretched(stretch) if q.learns_precision else q.factor)


def along(accepted: Gaussian, q: Gaussian, share: float) -> Gaussian | None:
    """Return the point between two, in mean and root of the covariance."""
    mean = accepted.mean + share * (q.mean - accepted.mean)
    if not q.learns_precision:
        return stretched(accepted, mean, ())
    whole = accepted.factor.stretch_to(q.factor)
    return stretched(accepted, mean, [_one(own) + share * (own - _one(own)) for own in whole])


def at(q: Gaussian, x: Array) -> Gaussian | None:
    """Return the member with the coordinates x = (a, T) around q; None where there is none."""
    a, stretch = np.split(x, [q.dim])
    return stretched(q, q.mean + q.factor.colour(a), _unpacked(q, stretch))


def joint_model(q: Gaussian, gradient: Array, curvature: Array, tensors: tuple[Array, Array]) -> Model:
    """Return the model at q, from the pooled gradient and dense curvature there and the sum of the tensors."""
    (rows, columns), (third, fourth) = entries(q), tensors
    information = _whitened(q, curvature)
    same = columns[:, None] == columns[None, :]
    shape = np.where(same, information[rows[:, None], rows[None, :]], 0.0) + fourth
    hessian = np.block([[information, third], [third.T, shape]])
    diagonal = np.flatnonzero(rows == columns)
    linear = np.concatenate([q.factor.half_solve(gradient) - third[:, diagonal].sum(1), -fourth[:, diagonal].sum(1)])
    return Model(linear, hessian, q.dim + diagonal)


def pooled_sums(prior: Gaussian, q: Gaussian, sums: Sequence[JointSums]) -> tuple[Array, Array]:
    """Gradient in the mean, and dense curvature, of the pooled objective."""
    gradient = prior.factor.multiply(q.mean - prior.mean) + np.add.reduce([own.gradient for own in sums])
    return gradient, prior.factor.multiply(np.eye(q.dim)) + np.add.reduce([own.curvature for own in sums])


def _whitened(q: Gaussian, matrix: Array) -> Array:
    """L⁻¹ M L⁻ᵀ, dense in every family."""
    return q.factor.half_solve(q.factor.half_solve(matrix).T)


def _one(stretch: Array) -> Array:
    """The T that changes nothing."""
    return np.eye(len(stretch)) if stretch.ndim == 2 else np.ones_like(stretch)


def _unpacked(q: Gaussian, packed: Array) -> list[Array]:
    """Return T in the shape of q's precision, from its entries."""
    found, start = [], 0
    if q.learns_precision and q.factor.parts[0].ndim == 1:
        return [packed]
    for size in block_sizes(q):
        upper, end = np.zeros((size, size)), start + size * (size + 1) // 2
        upper[pairs(size)] = packed[start:end]
        found.append(upper)
        start = end
    return found
