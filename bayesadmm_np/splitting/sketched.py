"""Sites that keep more of their curvature than the diagonal that the posterior has.

Site k is the factor exp(v_kᵀθ − ½θᵀV_kθ) with V_k = D^{1/2}RD^{1/2}, D = diag E_{q_k}[∇²ℓ_k] exactly and a sketch R
(`losses/sketches.py`). The server's distribution is the diagonal q nearest to the prior times all factors,

    m_g = S⁻¹(P_0m_0 + Σ_kv_k),    diagonal precision diag S,    S = P_0 + Σ_kV_k,

and a site answers with its q_k under the cavity S − V_k (`clients/coupled.py`), v_k = V_km_k − E_{q_k}[∇ℓ_k]. In a
fixed point all q_k are q_g, Σ_kE[∇ℓ_k] + P_0(m_g − m_0) = 0, and diag S = P_0 + Σ_k diag E[∇²ℓ_k]: R does not enter.
It enters the rate, through E[∇²ℓ_k] − V_k in the place of E[∇²ℓ_k] − D.

What is kept is λ_k = (s_km_k, s_k), the natural gradient η_k = (Dm_k − E[∇ℓ_k], D) of the diagonal family, and R:
v_k = η_k + (V_k − D)m_k in the first part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..clients.coupled import Coupled
from ..clients.problem import Subproblem
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.diagonal import DiagonalGaussian
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from ..losses.sketches import Full, Sketch
from .methods import Method

MOST_PARAMETERS = 4096
"""Most parameters: the server solves with a dense matrix, 128 MiB and some 2 s at this size."""


def Sketched(method: Method, sites: Sketch | str) -> Method:
    """Return the row with sites that keep a sketch of their curvature beside its exact diagonal.

    For a diagonal posterior. The fixed point is that of the row without sketches, the pooled optimum; the rate is
    nearly that of a full covariance.

    Parameters
    ----------
    method : Method
        `PVI()` or `FedLapCov()`, undamped, or `BLR(1.0)`.
    sites : Sketch or str
        `Kronecker(C)` for softmax and for least squares with C outputs, `LowRank(r)` for many parameters, "full" (or
        `Full()`) for all d(d − 1)/2 correlations, or "family" for sites of the posterior's own structure: `method`.

    Raises
    ------
    ValueError
        When `sites` is none of these, or the row cannot keep them.

    Examples
    --------
    Ten rounds of PVI diverge where three with full sites are exact.

    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> X = np.random.default_rng(0).standard_normal((60, 4)) + 2.0
    >>> clients = [ba.losses.LeastSquares(part, part.sum(axis=1)) for part in np.split(X, 3)]
    >>> prior = ba.families.DiagonalGaussian(np.zeros(4), 1.0)
    >>> ba.run(ba.Sketched(ba.methods.PVI(), "full"), clients, prior).rounds
    2
    """
    row = Method.read(method)
    if isinstance(sites, str):
        if sites == "family":
            return row
        sites = Full() if sites == "full" else sites
    if not isinstance(sites, Sketch):
        raise ArgumentError("sites", "must be 'family', 'full', Kronecker(C) or LowRank(r)", repr(sites))
    return replace(row, name=f"{row.name} with {type(sites).__name__} sites", sites=sites)


def require_sketch(row: Method, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
    """Raise a ValueError where a loss, a family or a rule has no curvature that a site could keep."""
    sites = row.sites
    assert sites is not None
    if not isinstance(prior, DiagonalGaussian):
        reason = "it has no diagonal posterior for which the sites could keep more"
        raise ArgumentError("prior", f"must be a DiagonalGaussian for {row.name}: {reason}", type(prior).__name__)
    if prior.dim > MOST_PARAMETERS:
        raise ArgumentError("prior", f"must have at most {MOST_PARAMETERS} parameters for {row.name}", prior.dim)
    if not rule.carries_curvature:
        raise ArgumentError("expectation", f"must carry the curvature for {row.name}", repr(rule))
    if not loss.is_convex:
        raise ValueError(f"{row.name} needs convex losses, whose curvature is positive semidefinite, not {loss.name}.")
    sites.check(loss.dim, int(getattr(loss, "n_outputs", 1)))


def no_sketches(row: Method, dim: int, n_clients: int) -> tuple[Array, ...]:
    """Return the sketches of d = `dim` parameters before the first round."""
    return () if row.sites is None else (np.zeros(row.sites.size(dim)),) * n_clients


class Cavity(NamedTuple):
    """What a site is told beside λ_g: S without its diagonal, and S⁻¹."""

    coupling: Array  # shape (d, d): Σ_kV_k without the diagonal
    precondition: Callable[[Array], Array] | None  # product with S⁻¹; None where rounding leaves S indefinite

    @classmethod
    def around(cls, q_g: ExponentialFamily, coupling: Array) -> Cavity:
        """Return it at q_g."""
        assert isinstance(q_g, DiagonalGaussian)
        whole = _whole(coupling, q_g.precision)
        if not whole.is_positive_definite():
            return cls(coupling, None)
        # the inverse itself: a product takes a sixth of the time of two triangular solves, and need not be precise
        return cls(coupling, DensePrecision(whole.covariance_parts[0]).multiply)

    @classmethod
    def of(cls, kind: Sketch, q_g: ExponentialFamily, sites: Sequence[Natural], sketches: Sequence[Array]) -> Cavity:
        """Return it for the sites of a round."""
        return cls.around(q_g, coupling_of(kind, sites, sketches))


class Own(NamedTuple):
    """What a site keeps: λ_k, η_k and the numbers of its sketch."""

    natural: Natural
    site: Natural
    sketch: Array

    def coupling(self, kind: Sketch) -> Array:
        """V_k without its diagonal."""
        return kind.coupling(self.sketch, self.site.parts[1])

    @property
    def mean(self) -> Array:
        """m_k."""
        return self.natural.linear / self.natural.parts[1]

    def subproblem(self, kind: Sketch, loss: Loss, rule: Rule, q_g: ExponentialFamily, cavity: Cavity) -> Subproblem:
        """Eq. 15 under the cavity, with the factor's linear part about m_g: v_k − (V_k − D)m_g."""
        assert isinstance(q_g, Gaussian)
        own = self.coupling(kind)
        pulled = self.site.linear + own @ (self.mean - q_g.mean)
        coupled = Coupled(loss, cavity.coupling - own, q_g.mean)
        return Subproblem(coupled, rule, q_g, Natural(pulled, self.site.parts[1]), 1.0, cavity.precondition)


def is_told(row: Method) -> bool:
    """Whether sites are told each other's sketches: who only evaluates at λ_g has no use for them."""
    return row.sites is not None and row.client == "proximal"


def floats_beside(row: Method, dim: int, n_sites: int) -> int:
    """Return how many numbers a site is told beside λ_g: D_k and the sketch of each site, or their sum if shorter."""
    if not is_told(row):
        return 0
    assert row.sites is not None
    return min(n_sites * (dim + row.sites.size(dim)), dim * (dim - 1) // 2)


def pack_cavity(row: Method, sites: Sequence[Natural], sketches: Sequence[Array]) -> Array:
    """Return these numbers."""
    assert row.sites is not None
    dim, kind = sites[0].linear.size, row.sites
    if len(sites) * (dim + kind.size(dim)) <= dim * (dim - 1) // 2:
        pairs = zip(sites, sketches, strict=True)
        return np.concatenate([part for site, numbers in pairs for part in (site.parts[1], numbers)])
    return np.asarray(coupling_of(kind, sites, sketches)[np.triu_indices(dim, 1)])


def unpack_cavity(row: Method, q_g: ExponentialFamily, n_sites: int, numbers: Array) -> Cavity:
    """Inverse of `pack_cavity`, at q_g; a ValueError where a sketch is none."""
    kind, dim = row.sites, q_g.natural.linear.size
    assert kind is not None
    size = kind.size(dim)
    if n_sites * (dim + size) <= dim * (dim - 1) // 2:
        pieces = [np.split(own, [dim]) for own in np.split(numbers, n_sites)]
        sites = [Natural(np.zeros(dim), diagonal) for diagonal, _ in pieces]
        if not all((own >= 0).all() and is_sketch(kind, sketch, dim) for own, sketch in pieces):
            raise ValueError("the sketches of all sites must be of positive semidefinite curvatures, and one is not.")
        return Cavity.around(q_g, coupling_of(kind, sites, [sketch for _, sketch in pieces]))
    total = np.zeros((dim, dim))
    total[np.triu_indices(dim, 1)] = numbers
    return Cavity.around(q_g, total + total.T)


def is_sketch(kind: Sketch, numbers: Array, dim: int) -> bool:
    """Whether numbers are a sketch, of a positive semidefinite V, or none yet."""
    return not numbers.any() or kind.is_valid(numbers, dim)


def sketch_of(kind: Sketch, expected: Expected) -> Array:
    """Return the numbers of the sketch of E_q[∇²ℓ]; zeros where it is not finite, and the answer of no use."""
    assert isinstance(expected, GaussianExpected)
    (diagonal,) = expected.projected
    if not np.isfinite(diagonal).all():
        return np.zeros(kind.size(diagonal.size))
    return kind.of(expected.curvature, diagonal)


def coupling_of(kind: Sketch, sites: Sequence[Natural], sketches: Sequence[Array]) -> Array:
    """Return Σ_kV_k without its diagonal, always added in the same order."""
    dim = sites[0].linear.size
    total = np.zeros((dim, dim))
    for site, numbers in zip(sites, sketches, strict=True):
        total += kind.coupling(numbers, site.parts[1])
    return total


def gathered(
    prior: ExponentialFamily,
    kind: Sketch,
    sites: Sequence[Natural],
    naturals: Sequence[Natural],
    sketches: Sequence[Array],
) -> Natural:
    """Return λ_g of m_g and diag S; where S is not positive definite, that of the diagonal factors."""
    assert isinstance(prior, DiagonalGaussian)
    plain = prior.natural.combine([1.0] * (1 + len(sites)), [prior.natural, *sites])
    linear, total = plain.linear.copy(), np.zeros((prior.dim, prior.dim))
    for site, natural, numbers in zip(sites, naturals, sketches, strict=True):
        own = Own(natural, site, numbers)
        coupling = own.coupling(kind)
        linear += coupling @ own.mean
        total += coupling
    whole = _whole(total, plain.parts[1])
    if not whole.is_positive_definite():
        return plain
    return prior.natural_from(plain.parts[1] * whole.solve(linear), (plain.parts[1],))


def _whole(coupling: Array, diagonal: Array) -> DensePrecision:
    matrix = coupling.copy()
    np.fill_diagonal(matrix, diagonal)
    return DensePrecision(matrix)
