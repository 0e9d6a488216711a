"""Deterministic variational Bayes (and, with the delta method, MAP): Newton in the mean, fixed point in the precision.

One step from q = N(m, S⁻¹) is

    S⁺ = S_g + (E_q[∇²ℓ] − V)/ρ           restricted to the family's structure
    m⁺ = m − N⁻¹ (E_q[∇ℓ] + v − Vm + ρS_g(m − m_g)),   N = E_q[∇²ℓ] − V + ρS_g

which for a full covariance is VON with unit step and exact expectations (Khan & Rue, Eq. 12): N = ρS⁺. Iterates are
mixed (Anderson), and a step is shortened until merit or residual is below those of all earlier iterates. Where the
subproblem is not convex, mixing waits for the neighbourhood of a solution, the merit must fall, steps stay in a KL
trust region, and an escape is reported. Where it is convex and the map stalls, `descent` finishes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._numerics import ARMIJO, conjugate_gradients, halvings
from .._threads import one_thread_where_small
from .._validation import Array, as_count, as_positive
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected
from ..losses.expectations import Delta
from .anderson import Mixer
from .descent import descend
from .problem import SOLVERS, ClientStatus, Iterate, Solution, Solver, Subproblem

SHORTEST_STEP = 2.0**-30
TRUST_RADIUS = 1.0
"""Largest KL between successive iterates where the subproblem is not convex."""
FAR = 1e3
"""Residual above which another start is sought: under a wide q, E exp f is orders of magnitude beyond any step."""
REMOTE = 1e30
"""Residual from which a start under a fixed precision is followed there: a Newton step divides E exp f by e alone."""
NARROW, NARROWEST = 11, 40
"""Factors of ten by which a start is narrowed, and the most where none is finite: predictors of variance 1e18."""
ESCAPED = 100.0
"""KL to the server, per parameter of the mean, beyond which the objective counts as unbounded below."""
PATIENCE = 100
"""Iterations of the fixed-point map before the descent takes over; well-behaved problems need some twenty."""
COUPLED = 0.1
"""Accuracy of a step with sketched sites, relative to the forcing term; otherwise 1e-3."""
NEAR = 1e-3
"""Residual below which an iterate of a nonconvex subproblem counts as near a stationary point."""


@SOLVERS.register
@dataclass(frozen=True)
class VariationalNewton(Solver):
    """Solve Eq. 15 for any smooth loss and any Gaussian family to a certified natural-gradient residual.

    Parameters
    ----------
    tol : float, default 1e-8
        Bound on the residual: the Fisher length per parameter of λ − [λ_g − (η + ∇_μE_q[ℓ])/ρ]. Its mean part is
        the Newton decrement in the metric of S, its precision part is relative.
    max_iter : int, default 300
    memory : int, default 6
        Number of iterates in the Anderson mixing; 0 switches it off.

    Raises
    ------
    ValueError
        When a parameter is out of range; before round 0, when the family is not Gaussian (use `ClosedForm`).

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    >>> loss = ba.losses.Logistic([[1.0], [2.0]], [1, 1])
    >>> problem = ba.clients.Subproblem(loss, ba.losses.Exact(), prior, prior.natural.zeros(), rho=1.0)
    >>> solution = ba.clients.VariationalNewton().solve(problem, prior, np.random.default_rng(0))
    >>> solution.status.name, solution.residual < 1e-8
    ('CONVERGED', True)
    """

    tol: float = 1e-8
    max_iter: int = 300
    memory: int = 6
    needs_gaussian = True

    def __post_init__(self) -> None:
        as_positive(self.tol, "tol")
        as_count(self.max_iter, "max_iter")
        as_count(self.memory, "memory", minimum=0)

    @one_thread_where_small(lambda self, problem, *_, **__: getattr(problem.anchor, "dim", 0))
    @np.errstate(over="ignore", invalid="ignore")  # the status says it
    def solve(
        self, problem: Subproblem, start: ExponentialFamily, rng: np.random.Generator, expected: Expected | None = None
    ) -> Solution:
        """Iterate from `start` to a stationary point; the status of the solution gives the reason if there is none."""
        assert isinstance(start, Gaussian)
        assert isinstance(problem.anchor, Gaussian)
        current = Iterate.at(problem, start, expected)
        # where the problem is not convex only the neighbourhood of the start counts, however steep it is there
        if problem.is_well_posed and not current.residual < FAR and start.mean.any():
            # with mean zero predictors are the offsets
            origin = Iterate.at(problem, start.at(np.zeros(start.dim), start.factor.parts))
            current = origin if origin.is_finite and not origin.merit >= current.merit else current
        elsewhere = problem.is_well_posed or not current.is_finite
        if elsewhere and not current.residual < FAR and not problem.rule.is_delta:
            current = _nearer_start(problem, current, rng)
        if not current.is_finite:
            return current.solution(0, ClientStatus.NOT_FINITE)
        # with a fixed precision, or under the delta method, the map is Newton's and mixing would only slow it down
        feeds_back = start.learns_precision and not problem.rule.is_delta
        mixer = Mixer(self.memory if feeds_back else 0)
        past = _Filter(current)
        begin, merit = current.q, current.merit
        patience = min(self.max_iter, PATIENCE) if problem.is_well_posed else self.max_iter
        done = 0
        while done < patience and not current.residual <= self.tol:
            step, mixed = _propose(problem, current, mixer)
            following = _advance(problem, current, step, mixed, mixer, past)
            if following is None:
                break
            current, done = following, done + 1
            if not problem.is_well_posed and current.q.kl(problem.anchor) > ESCAPED * (10.0 + problem.anchor.dim):
                return current.solution(done, ClientStatus.ILL_POSED)
        if problem.is_well_posed:
            if not (current.residual <= self.tol or current.merit <= merit):
                current = Iterate.at(problem, begin)
            return descend(problem, current, done, self.max_iter, self.tol)
        status = ClientStatus.CONVERGED if current.residual <= self.tol else ClientStatus.ILL_POSED
        return current.solution(done, status)


class _Filter:
    """(Merit, residual) of all iterates; a candidate must beat each of them in one of the two.

    Under sampled rules the solver needs both measures; with the last iterate alone it can cycle.
    """

    def __init__(self, first: Iterate) -> None:
        self._passed = [(first.merit, first.residual)]

    def admits(self, candidate: Iterate, decrease: float) -> bool:
        return all(m - candidate.merit > decrease or candidate.residual < 0.95 * r for m, r in self._passed)

    def add(self, accepted: Iterate) -> None:
        self._passed.append((accepted.merit, accepted.residual))


def _propose(problem: Subproblem, current: Iterate, mixer: Mixer) -> tuple[Natural, Natural | None]:
    """Return the Newton step, and its mix with earlier steps, if any."""
    step = _newton_step(problem, current)
    if not problem.is_well_posed and current.residual >= NEAR:
        return step, None
    residual = current.whitened if step is current.target else current.q.whiten(step - current.q.natural)
    return step, mixer.propose(step, residual)


def _advance(
    problem: Subproblem, current: Iterate, step: Natural, mixed: Natural | None, mixer: Mixer, past: _Filter
) -> Iterate | None:
    """Try the mixed step, the Newton step, then ever shorter steps; None when all fail."""
    for whole in (mixed, step):
        accepted = None if whole is None else _try(problem, current, whole, past)
        if accepted is not None:
            return accepted
    mixer.restart()
    shift = _mean_shift(problem, current, step)
    shorter = (_try(problem, current, _shortened(current, shift, t), past) for t in halvings(0.5, SHORTEST_STEP))
    return next((accepted for accepted in shorter if accepted is not None), None)


def _try(problem: Subproblem, current: Iterate, natural: Natural, past: _Filter) -> Iterate | None:
    """Evaluate a candidate and return it when it is an improvement."""
    try:
        q = current.q.with_natural(natural)
    except ValueError:  # outside the domain; asking first would factorise twice
        return None
    if not problem.is_well_posed and q.kl(current.q) > TRUST_RADIUS:
        return None
    candidate = Iterate.at(problem, q)
    if not candidate.is_finite:
        return None
    # Armijo on the mean, whose first-order decrease is known for any step; the precision only has to help
    predicted = float(current.gradient @ (current.q.mean - q.mean))
    decrease = ARMIJO * max(predicted, 0.0) + 1e-15 * abs(current.merit)
    if not problem.is_well_posed and current.residual >= NEAR:
        improves = current.merit - candidate.merit > decrease
    else:
        improves = past.admits(candidate, decrease)
    if not improves:
        return None
    past.add(candidate)
    return candidate


def _mean_shift(problem: Subproblem, current: Iterate, step: Natural) -> Array:
    """Newton's step in the mean, or the natural gradient where the Newton step is not a distribution."""
    q = current.q
    try:
        return q.with_natural(step).mean - q.mean
    except ValueError:
        return -q.factor.solve(current.gradient) / problem.rho


def _shortened(current: Iterate, shift: Array, t: float) -> Natural:
    """Move mean and precision a fraction t of the way each; λ + t(target − λ) damps nothing where S jumps."""
    q = current.q
    own = q.factor.parts if q.learns_precision else ()
    parts = [(1.0 - t) * a + t * b for a, b in zip(own, current.target.parts[1:], strict=True)]
    factor = q.factor.like(parts) if q.learns_precision else q.factor
    return q.natural_from(factor.multiply(q.mean + t * shift), factor.parts)


def _newton_step(problem: Subproblem, current: Iterate) -> Natural:
    """The precision's fixed point with Newton's step in the mean; the plain target when N is not positive."""
    q, expected, target = current.q, current.expected, current.target
    is_von = isinstance(q.factor, DensePrecision) and q.learns_precision and problem.rule.carries_curvature
    if is_von:
        return target
    factor = q.factor.like(target.parts[1:]) if q.learns_precision else q.factor
    if not factor.is_positive_definite():
        return target
    shift = _newton_direction(problem, q, expected, current.gradient, forcing=min(0.1, current.residual))
    if shift is None:
        return target
    return q.natural_from(factor.multiply(q.mean - shift), factor.parts)


def _newton_direction(
    problem: Subproblem, q: Gaussian, expected: GaussianExpected, gradient: Array, forcing: float
) -> Array | None:
    """Solve N x = gradient by conjugate gradients without forming N; None at negative curvature."""
    anchor = problem.anchor
    assert isinstance(anchor, Gaussian)
    dual_precision = problem.dual_precision

    def product(vector: Array) -> Array:
        result = expected.curvature.multiply(vector) + problem.rho * anchor.factor.multiply(vector)
        return result if dual_precision is None else result - dual_precision.multiply(vector)

    accuracy = (1e-3 if problem.precondition is None else COUPLED) * forcing
    precondition = problem.precondition or anchor.factor.solve
    solution, is_curved = conjugate_gradients(product, precondition, gradient, accuracy, 4 * q.dim)
    return solution if is_curved else None


@dataclass(frozen=True)
class _Narrowed(Subproblem):
    """A subproblem with E_q[ℓ] under a share of the covariance."""

    share: float = 1.0

    def expect(self, q: ExponentialFamily) -> Expected:
        assert isinstance(q, Gaussian)
        return self.loss.expect(q.at(q.mean, [part / self.share for part in q.factor.parts]), self.rule)


def _nearer_start(problem: Subproblem, first: Iterate, rng: np.random.Generator) -> Iterate:
    """Find a start where q_g is too wide (Poisson): mode and curvature there, narrowed until E_q[ℓ] is finite."""
    assert isinstance(problem.anchor, Gaussian)
    point = Subproblem(problem.loss, Delta(2), problem.anchor, problem.site, problem.rho)
    laplace = VariationalNewton(tol=1e-3).solve(point, first.q, rng).posterior
    assert isinstance(laplace, Gaussian)
    best = first
    for narrowing in range(NARROWEST):
        q = laplace
        if q.learns_precision:
            parts = [10.0**narrowing * part for part in q.factor.parts]
            try:
                q = q.with_natural(q.natural_from(10.0**narrowing * q.natural.linear, parts))
            except ValueError:  # the curvature overflows: there is no better start
                break
        candidate = Iterate.at(problem, q)
        if candidate.is_finite and not candidate.residual >= best.residual:
            best = candidate
        if best.residual < FAR or not q.learns_precision or (best.is_finite and narrowing >= NARROW):
            break
    return best if best.residual < REMOTE or best.q.learns_precision else _widened(problem, best, laplace)


def _widened(problem: Subproblem, first: Iterate, mode: Gaussian) -> Iterate:
    """Follow the solution from the mode while the covariance in E_q[ℓ] grows to the fixed one; `first` where it cannot.

    It moves nearly linearly in the share t of the covariance: it keeps xᵀm + ½t xᵀΣx of the steep rows.
    """
    share, mean, slope, stride = 0.0, mode.mean, np.zeros(mode.dim), 1.0
    for _ in range(PATIENCE):
        following = min(share + stride, 1.0)
        if following == share:
            break
        stage = _Narrowed(problem.loss, problem.rule, problem.anchor, problem.site, problem.rho, share=following)
        begin = Iterate.at(stage, mode.at(mean + (following - share) * slope, mode.factor.parts))
        if not begin.residual < REMOTE:
            stride *= 0.1
            continue
        if following == 1.0:
            return begin
        found = descend(stage, begin, 0, PATIENCE, 1e-3)
        if found.status is ClientStatus.ROUNDED and not found.residual < FAR:  # the minimum grows with the covariance
            break
        assert isinstance(found.posterior, Gaussian)
        slope = (found.posterior.mean - mean) / (following - share)
        share, mean, stride = following, found.posterior.mean, 4.0 * stride
    return first
