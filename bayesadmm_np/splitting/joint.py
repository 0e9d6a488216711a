"""The joint Newton step of a posterior, in mean and Cholesky factor.

At q_A = N(m, S⁻¹), S = LLᵀ, every q is the law of θ = m + L⁻ᵀ(a + Tu) for u standard normal, with T upper triangular
and positive on the diagonal. Where the losses are convex, the pooled objective is convex in (a, T): E ℓ(x_iᵀθ) is the
mean of a convex function of an affine one, the prior adds a quadratic, and the entropy −Σ_j log T_jj. With z_i = L⁻¹x_i
its derivatives at a = 0, T = I follow from those of the sites, P = L⁻¹(P_0 + Σ_kH_k)L⁻ᵀ and the tensors T³ and T⁴ of
`losses/tensors.py`, summed over the sites. In the order a, T_jk with j ≤ k, and without the entropy,

    gradient   [L⁻¹(P_0(m − m_0) + Σ_kg_k)]_j,   P_jk
    Hessian    P_jl for (a_j, a_l),   T³_jlm for (a_j, T_lm),   T⁴_jklm + δ_km P_jl for (T_jk, T_lm)

The entropy is kept as it is: the server minimises the quadratic model with −Σ_j log T_jj, at no exchange. For least
squares the model is exact.
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
from ..families.gaussian import Gaussian
from ..losses.tensors import pairs, unpack_tensors

MOST_STEPS = 100
"""Newton steps that the server takes on its model."""

PRECISE = 1e-26
"""Squared length of the last of these steps, in the metric of the model."""

MOST_SHORTENED = 12
"""Times that a step of no distribution is shortened, each by ten."""

INSIDE = 0.9
"""Part of the way to a zero on the diagonal of T that a step may go."""


@dataclass(frozen=True)
class Model:
    """cᵀx + ½xᵀQx − Σ_j log(1 + x_jj) in x = (a, T − I), where only the upper triangle of T counts."""

    gradient: Array  # shape (d + d(d+1)/2,): c
    hessian: Array  # shape (d + d(d+1)/2,) * 2: Q
    dim: int  # d

    @cached_property
    def _diagonal(self) -> NDArray[np.intp]:
        rows, columns = pairs(self.dim)
        return self.dim + np.flatnonzero(rows == columns)

    def value(self, x: Array) -> float:
        """Return the model, without its value at zero; ∞ where T has no positive diagonal."""
        lengths = 1.0 + x[self._diagonal]
        if not (lengths > 0).all():
            return float("inf")
        return float(self.gradient @ x + 0.5 * (x @ (self.hessian @ x)) - np.log(lengths).sum())

    def slope(self, x: Array) -> float:
        """Return the derivative of the objective at zero along x."""
        return float(self.gradient @ x - x[self._diagonal].sum())

    def minimum(self) -> Array | None:
        """Return the minimiser, None where Q and the entropy do not add up to a positive definite matrix."""
        x, diagonal = np.zeros_like(self.gradient), self._diagonal
        value = 0.0
        for _ in range(MOST_STEPS):
            lengths = 1.0 + x[diagonal]
            gradient, hessian = self.gradient + self.hessian @ x, self.hessian.copy()
            gradient[diagonal] -= 1.0 / lengths
            hessian[diagonal, diagonal] += lengths**-2.0
            try:
                step = -cho_solve(cho_factor(hessian, lower=True), gradient)
            except (np.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
                return None
            decrement = -float(gradient @ step)
            shortest = float((step[diagonal] / lengths).min())
            size = 1.0 if shortest > -INSIDE else -INSIDE / shortest
            while size > 1e-9 and self.value(x + size * step) > value - 1e-4 * size * decrement + 1e-12 * abs(value):
                size *= 0.5
            x = x + size * step
            value = self.value(x)
            if decrement <= PRECISE:
                break
        return x


def joint_step(
    prior: Gaussian, q: Gaussian, sites: Sequence[Natural], tensors: Sequence[Array], n_outputs: int
) -> Natural | None:
    """Return λ of the model's minimiser, from what all sites sent at q; None where there is none.

    Where rounding leaves the model without a minimum, the tensors are left out: what remains is positive definite, and
    its minimiser a descent direction as well. A step to a covariance singular to rounding is shortened.
    """
    whole = prior.natural.combine([1.0] * (1 + len(sites)), [prior.natural, *sites])
    bends = unpack_tensors(np.add.reduce(tensors), q, n_outputs)
    for model in (joint_model(q, whole, bends), joint_model(q, whole, None)):
        x = model.minimum()
        if x is not None and model.slope(x) <= 0.0:
            for _ in range(MOST_SHORTENED):  # so far a step that S would be singular to rounding
                mean, stretch = q.mean + q.factor.colour(x[: q.dim]), [np.eye(q.dim) + _triangle(x[q.dim :], q.dim)]
                natural = stretched(q, mean, stretch)
                if prior.contains(natural):
                    return natural
                x = 0.1 * x
    return None


@dataclass(frozen=True)
class Slope:
    """The derivative of the objective along a line to another distribution, in mean and root of the covariance."""

    # gᵀ(m' − m) + tr[R(T − I)] − tr(T − I), with g and R = CᵀHC of the pooled gradient and curvature H, C' = CT
    value: float
    entropy: float  # what the entropy at the other end is above its tangent, tr(T − I) − log det T >= 0
    size: float  # size of the terms of `value`

    @property
    def change(self) -> float:
        """Change of the tangent of all but the entropy, which is kept as it is."""
        return self.value + self.entropy


def slope_to(prior: Gaussian, q: Gaussian, sites: Sequence[Natural], other: Gaussian) -> Slope:
    """Return the slope at q, from the sites there, on the way to another one."""
    move, kept = other.mean - q.mean, q.factor if q.learns_precision else None
    pulls = [
        site.linear if kept is None else site.linear - kept.like(site.parts[1:]).multiply(q.mean) for site in sites
    ]
    terms = [prior.factor.multiply(q.mean - prior.mean), *(-pull for pull in pulls)]
    value, size = float(np.add.reduce(terms) @ move), float(sum(np.abs(term) for term in terms) @ np.abs(move))
    if kept is None:
        return Slope(value, 0.0, size)
    whole = [np.add.reduce(own) for own in zip(prior.factor.parts, *(site.parts[1:] for site in sites), strict=True)]
    entropy = 0.0
    for own, stretch in zip(kept.relative(whole), kept.stretch_to(other.factor), strict=True):
        bent = own * (stretch - _one(stretch))
        lengths = stretch if stretch.ndim == 1 else np.diagonal(stretch)
        value += float(bent.sum() - (lengths - 1.0).sum())
        size += float(np.abs(bent).sum() + np.abs(lengths - 1.0).sum())
        entropy += float((lengths - 1.0 - np.log(lengths)).sum())
    return Slope(value, entropy, size)


def stretched(q: Gaussian, mean: Array, stretch: Sequence[Array]) -> Natural:
    """Return λ of the law of mean + L⁻ᵀTu, for T = `stretch`."""
    factor = q.factor.stretched(stretch) if q.learns_precision else q.factor
    return q.natural_from(factor.multiply(mean), factor.parts)


def along(accepted: Gaussian, q: Gaussian, share: float) -> Natural:
    """Return λ of the point between two, in mean and root of the covariance."""
    mean = accepted.mean + share * (q.mean - accepted.mean)
    if not q.learns_precision:
        return stretched(accepted, mean, ())
    whole = accepted.factor.stretch_to(q.factor)
    return stretched(accepted, mean, [_one(own) + share * (own - _one(own)) for own in whole])


def _one(stretch: Array) -> Array:
    """The T that changes nothing."""
    return np.eye(len(stretch)) if stretch.ndim == 2 else np.ones_like(stretch)


def joint_model(q: Gaussian, whole: Natural, tensors: tuple[Array, Array] | None) -> Model:
    """Return the model at q, from η_0 + Σ_kη_k there; without the tensors, where they are None."""
    dim = q.dim
    rows, columns = pairs(dim)
    precision = q.factor.like(whole.parts[1:])
    (information,) = q.factor.relative(precision.parts)
    gradient = q.factor.half_solve(precision.multiply(q.mean) - whole.linear)
    hessian = np.zeros((dim + rows.size,) * 2)
    hessian[:dim, :dim] = information
    same = columns[:, None] == columns[None, :]
    hessian[dim:, dim:] = np.where(same, information[rows[:, None], rows[None, :]], 0.0)
    if tensors is not None:
        third, fourth = tensors
        hessian[:dim, dim:] = third
        hessian[dim:, :dim] = third.T
        hessian[dim:, dim:] += fourth
    return Model(np.concatenate([gradient, information[rows, columns]]), hessian, dim)


def _triangle(packed: Array, dim: int) -> Array:
    upper = np.zeros((dim, dim))
    upper[pairs(dim)] = packed
    return upper
