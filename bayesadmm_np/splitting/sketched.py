"""Sites that keep more of their curvature than the diagonal that the posterior has.

Site k is the factor exp(v_kᵀθ − ½θᵀV_kθ) with V_k = D^{1/2}RD^{1/2}, D = diag E_{q_k}[∇²ℓ_k] exactly and a sketch R
(`losses/sketches.py`). The server's distribution is the diagonal q nearest to the prior times all factors,

    m_g = S⁻¹(P_0m_0 + Σ_kv_k),    diagonal precision diag S,    S = P_0 + Σ_kV_k,

and a site answers with its q_k under the cavity S − V_k (`clients/coupled.py`), v_k = V_km_k − E_{q_k}[∇ℓ_k]. In a
fixed point all q_k are q_g, Σ_kE[∇ℓ_k] + P_0(m_g − m_0) = 0, and diag S = P_0 + Σ_k diag E[∇²ℓ_k]: R does not enter.
It enters the rate, through E[∇²ℓ_k] − V_k in the place of E[∇²ℓ_k] − D.

A site keeps λ_k = (s_km_k, s_k), η_k = (Dm_k − E[∇ℓ_k], D) and R: v_k = η_k + (V_k − D)m_k in the first part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..clients.coupled import Coupled, loosened
from ..clients.problem import Solution, Subproblem
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.gaussians import DiagonalGaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Rule
from ..losses.sketches import Full, Sketch
from .average import Average, as_distribution, merged
from .duals import AlongNatural
from .messages import Ask, Reply
from .status import Failure
from .step import STEPS, Gathered, Own, Start, Step, Work
from .wrapper import Wrapper

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

MOST_PARAMETERS = 4096  # the server solves with a dense matrix, 128 MiB and some 2 s at this size


@STEPS.register
@dataclass(frozen=True)
class Sketched(Wrapper):
    """Sites that keep a sketch of their curvature beside its exact diagonal, for a diagonal posterior.

    The fixed point is that of the method without sketches, the pooled optimum; the rate is nearly that of a full
    covariance.

    Parameters
    ----------
    method : Method
        `PVI()` or `FedLapCov()`, undamped, or `BLR(1.0)`.
    sites : Sketch or str, default 'full'
        `Kronecker(C)` for softmax and for least squares with C outputs, `LowRank(r)` for many parameters, "full" (or
        `Full()`) for all d(d − 1)/2 correlations.

    Raises
    ------
    ValueError
        When `sites` is none of these, or the method does not allow sketches.

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

    sites: Sketch | Literal["full"] = "full"

    def __post_init__(self) -> None:
        if isinstance(self.sites, str) and self.sites == "full":
            object.__setattr__(self, "sites", Full())
        if not isinstance(self.sites, Sketch):
            raise ArgumentError("sites", "must be 'full', Kronecker(C) or LowRank(r)", repr(self.sites))
        if reason := self._no_sketches:
            raise ArgumentError("method", "must be a method that allows sketches", f"{self.inner.name}: {reason}")

    @property
    def _no_sketches(self) -> str:
        """Reason why the sites of this method cannot keep sketches; '' if they can."""
        row, inner = self.row, self.inner
        whole = row.rho == row.dual_step == 1.0 and row.client_share == "equal"
        if not row.adds_sites:
            return "its server does not add duals to the prior"
        if not isinstance(inner, Average):
            return "it is not a plain method"
        if row.alpha != 1.0:
            return "its server takes a mean of the sites' posteriors, which are diagonal"
        if not (whole and isinstance(row.dual_rule, AlongNatural) and row.schedule is None):
            return "a mixture of two sketches is no sketch; use rho = gamma = 1, as in PVI()"
        return "its sites begin with their own fits" if inner.begins == "sites" else ""

    @property
    def name(self) -> str:
        return f"{self.inner.name} with {type(self.sites).__name__} sites"

    def starting(self, start: Start) -> Step:
        return self

    @property
    def sketch(self) -> Sketch:
        assert isinstance(self.sites, Sketch)
        return self.sites

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        if not isinstance(prior, DiagonalGaussian):
            reason = "sketches are for diagonal posteriors"
            raise ArgumentError("prior", f"must be a DiagonalGaussian for {self.name}: {reason}", type(prior).__name__)
        if prior.dim > MOST_PARAMETERS:
            raise ArgumentError("prior", f"must have at most {MOST_PARAMETERS} parameters for {self.name}", prior.dim)
        if not rule.carries_curvature:
            raise ArgumentError("expectation", f"must carry the curvature for {self.name}", repr(rule))
        if not loss.is_convex:
            raise ValueError(f"{self.name} needs convex losses, and {loss.name} is not.")
        self.sketch.check(loss.dim, int(getattr(loss, "n_outputs", 1)))

    def init(self, server: Server) -> tuple[Array, ...]:
        return (np.zeros(self.sketch.size(server.prior.natural.linear.size)),) * len(server.shares)

    @property
    def has_context(self) -> bool:
        """Return whether sites get each other's sketches: who only evaluates at λ_g has no use for them."""
        return self.row.client == "proximal"

    def context(self, state: State) -> Cavity | None:
        if not self.has_context:
            return None
        return Cavity.around(state.q_g, coupling_of(self.sketch, state.sites, state.memory))

    def context_floats(self, state: State) -> int:
        dim = state.q_g.natural.linear.size
        return context_floats(self.sketch, dim, len(state.sites)) if self.has_context else 0

    def sketches(self, state: State) -> tuple[Array, ...]:
        return tuple(state.memory)

    def work(self, worker: Worker, q_g: ExponentialFamily, own: Own, at_server: Expected, context: Any) -> Work:
        if context is None or own.sketch is None:
            return super().work(worker, q_g, own, at_server, context)
        problem = subproblem(self.sketch, own, worker.loss, worker.rule, q_g, context)
        at_server = problem.loss.around(at_server, q_g, worker.rule)  # type: ignore[attr-defined]
        return Work(problem, loosened(worker.solver, problem, q_g, at_server), at_server)

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        return {"sketch": sketch_of(self.sketch, solution.expected)}

    def is_natural_gradient(self, asked: Ask) -> bool:
        return True

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        found = merged(self, server, state, replies)
        if isinstance(found, Failure) or not any(reply is not None for reply in replies):
            return found
        sketches = tuple(
            old if reply is None or reply.sketch is None else reply.sketch
            for old, reply in zip(state.memory, replies, strict=True)
        )
        natural = gathered(server.prior, self.sketch, found.sites, found.naturals, sketches)
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g, memory=sketches)


class Cavity(NamedTuple):
    """S without its diagonal, and S⁻¹; sent to a site with λ_g."""

    coupling: Array  # shape (d, d): Σ_kV_k without the diagonal
    precondition: Callable[[Array], Array] | None  # product with S⁻¹; None where rounding leaves S indefinite

    @classmethod
    def around(cls, q_g: ExponentialFamily, coupling: Array) -> Cavity:
        """Return the cavity at q_g."""
        assert isinstance(q_g, DiagonalGaussian)
        whole = _whole(coupling, q_g.precision)
        if not whole.is_positive_definite():
            return cls(coupling, None)
        # the inverse itself: a product takes a sixth of the time of two triangular solves, and need not be precise
        return cls(coupling, DensePrecision(whole.covariance_parts[0]).multiply)


def subproblem(kind: Sketch, own: Own, loss: Loss, rule: Rule, q_g: ExponentialFamily, cavity: Cavity) -> Subproblem:
    """Return Eq. 15 under the cavity, with the factor's linear part about m_g: v_k − (V_k − D)m_g."""
    assert isinstance(q_g, Gaussian)
    coupling, mean = _coupling(kind, own)
    pulled = own.site.linear + coupling @ (mean - q_g.mean)
    coupled = Coupled(loss, cavity.coupling - coupling, q_g.mean)
    return Subproblem(coupled, rule, q_g, Natural(pulled, own.site.parts[1]), 1.0, cavity.precondition)


def _coupling(kind: Sketch, own: Own) -> tuple[Array, Array]:
    """Return V_k without its diagonal, and m_k."""
    assert own.sketch is not None
    return kind.coupling(own.sketch, own.site.parts[1]), own.natural.linear / own.natural.parts[1]


def context_floats(kind: Sketch, dim: int, n_sites: int) -> int:
    """Return how many numbers a site gets beside λ_g: D_k and the sketch of each site, or their sum if shorter."""
    return min(n_sites * (dim + kind.size(dim)), dim * (dim - 1) // 2)


def pack_cavity(kind: Sketch, sites: Sequence[Natural], sketches: Sequence[Array]) -> Array:
    """Return the numbers that a site gets beside λ_g."""
    dim = sites[0].linear.size
    if len(sites) * (dim + kind.size(dim)) <= dim * (dim - 1) // 2:
        pairs = zip(sites, sketches, strict=True)
        return np.concatenate([part for site, numbers in pairs for part in (site.parts[1], numbers)])
    return np.asarray(coupling_of(kind, sites, sketches)[np.triu_indices(dim, 1)])


def unpack_cavity(kind: Sketch, q_g: ExponentialFamily, n_sites: int, numbers: Array) -> Cavity:
    """Inverse of `pack_cavity`, at q_g; raises a ValueError for an invalid sketch."""
    dim = q_g.natural.linear.size
    size = kind.size(dim)
    if n_sites * (dim + size) <= dim * (dim - 1) // 2:
        pieces = [np.split(own, [dim]) for own in np.split(numbers, n_sites)]
        sites = [Natural(np.zeros(dim), diagonal) for diagonal, _ in pieces]
        if not all((own >= 0).all() and is_sketch(kind, sketch, dim) for own, sketch in pieces):
            raise ValueError("every site's sketched curvature must be positive semidefinite, and one is not.")
        return Cavity.around(q_g, coupling_of(kind, sites, [sketch for _, sketch in pieces]))
    total = np.zeros((dim, dim))
    total[np.triu_indices(dim, 1)] = numbers
    return Cavity.around(q_g, total + total.T)


def is_sketch(kind: Sketch, numbers: Array, dim: int) -> bool:
    """Return whether numbers are a sketch, of a positive semidefinite V, or none yet."""
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
        coupling, mean = _coupling(kind, Own(natural, site, numbers))
        linear += coupling @ mean
        total += coupling
    whole = _whole(total, plain.parts[1])
    if not whole.is_positive_definite():
        return plain
    return prior.natural_from(plain.parts[1] * whole.solve(linear), (plain.parts[1],))


def _whole(coupling: Array, diagonal: Array) -> DensePrecision:
    matrix = coupling.copy()
    np.fill_diagonal(matrix, diagonal)
    return DensePrecision(matrix)
