"""Checks for your own losses, families and methods: a check finds a fault and names it.

Each check tests the identities that the package relies on, at a few points that follow from a seed. A derivative is a
difference quotient; its tolerance is the difference between two widths, plus the rounding of what is subtracted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.integrate import quad

from ._numerics import EPS
from ._validation import Array
from .clients import ClientStatus, Solution, VariationalNewton
from .families import DiagonalGaussian, ExponentialFamily, FixedPrecisionGaussian, FullGaussian, IsotropicGaussian
from .families.base import FAMILIES
from .families.coordinates import Natural, pairing
from .families.gaussian import Gaussian
from .families.gaussians import BlockDiagonalGaussian
from .losses import Auto, GaussHermite, Logistic, Loss, QuasiMonteCarlo, Rule
from .losses.base import GaussianExpected
from .losses.linear_model import LinearModelLoss
from .losses.pointwise import RowMoments
from .splitting.average import as_step
from .splitting.method import Method, client_coefficients
from .splitting.pooled import solve_pooled
from .splitting.round import Round, Success, begin
from .splitting.state import State, pack_state, unpack_state
from .splitting.step import Step
from .splitting.team import Team, assemble, require_family

__all__ = ["CheckError", "check_family", "check_loss", "check_method", "check_step"]

WIDTH = 1e-3
"""Width of the wider difference. The extrapolated one has truncation error of order WIDTH⁴, rounding EPS/WIDTH."""

ROUNDING = 1e3 * EPS
"""Relative error that the code under a check may make: sums over a few hundred rows, integrals and exponentials."""


class CheckError(AssertionError):
    """An identity does not hold.

    Parameters
    ----------
    identity, where : str
    difference, tolerance : float
        Difference found, and the difference that rounding and truncation explain.
    got : str, default ''
        Finding, where no number says how far off it is.

    Examples
    --------
    >>> from bayesadmm_np.testing import CheckError
    >>> print(CheckError("KL ≥ 0", "q = N(0, 1)", 0.25, 1e-13))
    KL ≥ 0 does not hold at q = N(0, 1): off by 0.25, where rounding and truncation allow 1e-13.
    """

    def __init__(self, identity: str, where: str, difference: float, tolerance: float, got: str = "") -> None:
        super().__init__(identity, where, difference, tolerance, got)
        self.identity, self.where, self.difference, self.tolerance = identity, where, difference, tolerance
        self.got = got

    def __str__(self) -> str:
        if self.got:
            return f"{self.identity}, got {self.got}, at {self.where}."
        found = f"off by {self.difference:.3g}, where rounding and truncation allow {self.tolerance:.1g}"
        return f"{self.identity} does not hold at {self.where}: {found}."


def _require(identity: str, where: str, difference: Any, tolerance: float) -> None:
    largest = float(np.max(np.abs(difference)))
    if not largest <= tolerance:  # NaN fails
        raise CheckError(identity, where, largest, tolerance)


def _derivative(
    function: Callable[[Any], Any], start: Any, step: Any, what: str, where: str, scale: float = 0.0
) -> tuple[Array, float]:
    """Return d/dt f(start + t·step) at 0 and its error; `scale` is the size of what cancels inside the function."""
    widths = (-WIDTH, -0.5 * WIDTH, 0.5 * WIDTH, WIDTH)
    at = {t: np.asarray(function(start + t * step), dtype=float) for t in widths}
    wide, narrow = ((at[h] - at[-h]) / (2.0 * h) for h in (WIDTH, 0.5 * WIDTH))
    disagreement = float(np.max(np.abs(wide - narrow)))
    size = max(float(np.max(np.abs(value))) for value in at.values())
    found = (4.0 * narrow - wide) / 3.0
    if not disagreement <= 0.1 * (float(np.max(np.abs(found))) + np.sqrt(EPS) * (1.0 + size + scale)):
        raise CheckError(f"differentiability of {what}", where, disagreement, 0.1 * float(np.max(np.abs(found))))
    # the extrapolation removes the quadratic term, so that a hundredth of the disagreement bounds what is left
    return found, 1e-2 * disagreement + ROUNDING * (1.0 + size + scale) / WIDTH


def _named(value: Array) -> str:
    return np.array2string(np.asarray(value), precision=3, threshold=6)


def check_loss(loss: Loss, prior: ExponentialFamily | None = None, *, seed: int = 0) -> None:
    """Check a loss: gradient, Hessian, what it claims to be, and its expectation under q.

    Parameters
    ----------
    loss : Loss
        Loss of a few rows; the check takes entries of θ of size one.
    prior : ExponentialFamily, optional
        Prior of a family that the loss is defined for; default: one of every Gaussian family.
    seed : int, default 0

    Raises
    ------
    CheckError
        For the first identity that does not hold.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.testing import check_loss
    >>> check_loss(ba.losses.Logistic([[1.0, 0.5], [-2.0, 1.0]], [1, 0]))
    """
    rng = np.random.default_rng(seed)
    if isinstance(loss, LinearModelLoss):
        _check_shapes(loss)
    if prior is None or isinstance(prior, Gaussian):
        _check_points(loss, rng)
    priors = _gaussians(loss.dim) if prior is None else [prior]
    for one in priors:
        rule = _rule(loss, one)
        if loss.is_quadratic or loss.is_linear_in_statistics or not isinstance(rule, QuasiMonteCarlo):
            _check_expectation(loss, one, rule, rng)
        else:
            _check_sampled_expectation(loss, one, rule, rng)


def _gaussians(dim: int) -> list[Gaussian]:
    mean = np.zeros(dim)
    blocks = [dim // 2, dim - dim // 2] if dim > 1 else [1]
    return [
        FullGaussian(mean, 2.0),
        DiagonalGaussian(mean, 2.0),
        BlockDiagonalGaussian(mean, 2.0, blocks=blocks),
        FixedPrecisionGaussian(mean, 2.0),
        IsotropicGaussian(mean),
    ]


def _rule(loss: Loss, prior: ExponentialFamily) -> Rule:
    """The exact rule, else quadrature, where both are differentiable as what they stand for; else sampled points."""
    rule = loss.check(prior, Auto())
    if isinstance(rule, QuasiMonteCarlo):
        try:
            return loss.check(prior, GaussHermite(64))
        except ValueError:  # several predictors a row
            pass
    return rule


def _check_shapes(loss: LinearModelLoss) -> None:
    """Two points a row, so that a mean over them is told from a value at each."""
    outputs = () if loss.n_outputs == 1 else (loss.n_outputs,)
    predictors = np.zeros((loss.n_rows, 2, *outputs))
    found = loss.pointwise.expected_derivatives(predictors, np.full(2, 0.5), loss.y)
    where = f"{type(loss.pointwise).__name__}.expected_derivatives with n = {loss.n_rows}"
    for name, part, rest in zip(RowMoments._fields, found, ((), outputs, 2 * outputs), strict=True):
        expected = f"({', '.join(['n', *map(str, rest)])}{'' if rest else ','})"
        if np.shape(part) != (loss.n_rows, *rest):
            raise CheckError(f"{name} must have shape {expected}", where, np.inf, 0.0, str(np.shape(part)))


def _check_points(loss: Loss, rng: np.random.Generator) -> None:
    try:
        loss.value(np.zeros(loss.dim))
    except NotImplementedError:  # it is known by its expectation alone
        return
    first: Array | None = None
    for _ in range(3):
        theta, direction = rng.standard_normal(loss.dim), rng.standard_normal(loss.dim)
        where = f"θ = {_named(theta)}"
        gradient, hessian = loss.gradient(theta), loss.hessian(theta)
        _require("shape (d,) of the gradient", where, float(gradient.shape != (loss.dim,)), 0.0)
        _require("shape (d, d) of the Hessian", where, float(hessian.shape != (loss.dim,) * 2), 0.0)
        reach = float(np.abs(gradient) @ np.abs(theta) + np.abs(direction) @ np.abs(hessian) @ np.abs(theta))
        slope, error = _derivative(loss.value, theta, direction, "the value", where, reach)
        _require("gradient = derivative of value", where, slope - gradient @ direction, error)
        turn, error = _derivative(loss.gradient, theta, direction, "the gradient", where, reach)
        _require("Hessian = derivative of gradient", where, turn - hessian @ direction, error)
        size = ROUNDING * loss.dim * float(np.abs(hessian).max())
        _require("symmetry of the Hessian", where, hessian - hessian.T, size)
        if loss.is_convex:
            lowest = float(np.linalg.eigvalsh(0.5 * (hessian + hessian.T))[0])
            _require("convexity, which is_convex claims", where, min(lowest, 0.0), size)
        if loss.is_quadratic and first is not None:
            _require("constant Hessian, which is_quadratic claims", where, hessian - first, size)
        first = hessian if first is None else first


def _members(q: ExponentialFamily, rng: np.random.Generator, count: int) -> list[ExponentialFamily]:
    """Members at a quarter of a Fisher length per parameter from q, or nearer where the domain ends."""
    return [q.with_natural(q.natural + 0.25 * _inner(q, rng)) for _ in range(count)]


def _direction(q: ExponentialFamily, rng: np.random.Generator) -> Natural:
    """A direction of Fisher length one per parameter."""
    step = q.natural.from_vector(rng.standard_normal(q.natural.size))
    return (1.0 / q.fisher_norm(step)) * step


def _inner(q: ExponentialFamily, rng: np.random.Generator) -> Natural:
    """A direction of at most Fisher length one per parameter, in which λ may move both ways by one and stay inside."""
    step = _direction(q, rng)
    for _ in range(100):
        if q.contains(q.natural + step) and q.contains(q.natural - step):
            return step
        step = 0.5 * step
    raise CheckError("contains(λ) around a member, whose λ is in the interior of the domain", f"q = {q!r}", 1.0, 0.0)


def _check_expectation(loss: Loss, prior: ExponentialFamily, rule: Rule, rng: np.random.Generator) -> None:
    """∇_μ E_q[ℓ] against differences of E_q[ℓ] along λ: dE/dt = ⟨∇_μ E, dμ/dt⟩."""
    constant: Natural | None = None
    for q in _members(prior.start(), rng, 3):
        where, step = f"q = {q!r}", _direction(q, rng)
        expected = loss.expect(q, rule)
        gradient = expected.natural_gradient
        value, moments = partial(_expected_value, loss, rule, q), partial(_moments, q)
        slope, error = _derivative(value, q.natural, step, "E_q[ℓ]", where)
        motion, of_motion = _derivative(moments, q.natural, step, "μ(λ)", where)
        size = float(np.abs(gradient.to_vector()).sum())
        identity = f"∇_μ E_q[ℓ] = derivative of E_q[ℓ] ({type(q).__name__}, {rule})"
        found = pairing(gradient, q.expectation.from_vector(motion))
        allowed = error + 2.0 * of_motion * size
        if isinstance(rule, GaussHermite):
            # quadrature of each side errs on its own: by what twice the nodes change, to leading order
            finer = GaussHermite(2 * rule.points)
            other, _ = _derivative(partial(_expected_value, loss, finer, q), q.natural, step, "E_q[ℓ]", where)
            differing = gradient - loss.expect(q, finer).natural_gradient
            moved = pairing(differing, q.expectation.from_vector(motion))
            allowed += 2.0 * (float(np.max(np.abs(slope - other))) + abs(moved))
        _require(identity, where, slope - found, allowed)
        if isinstance(expected, GaussianExpected):
            vector = rng.standard_normal(q.natural.linear.size)
            dense, product = expected.curvature.dense(), expected.curvature.multiply(vector)
            allowed = ROUNDING * vector.size * float(np.abs(dense).max() + 1.0)
            _require("curvature.multiply = curvature.dense", where, product - dense @ vector, allowed)
        if loss.is_linear_in_statistics:
            known = constant or gradient
            change = (gradient - known).to_vector()
            identity = "constant ∇_μ E_q[ℓ], which is_linear_in_statistics claims"
            _require(identity, where, change, ROUNDING * (1.0 + size))
            constant = known


def _expected_value(loss: Loss, rule: Rule, q: ExponentialFamily, natural: Natural) -> float:
    return loss.expect(q.with_natural(natural), rule).value


def _moments(q: ExponentialFamily, natural: Natural) -> Array:
    return q.with_natural(natural).expectation.to_vector()


def _check_sampled_expectation(loss: Loss, prior: ExponentialFamily, rule: Rule, rng: np.random.Generator) -> None:
    """E_q[∇ℓ] and E_q[∇²ℓ] of sampled points against derivatives at points: another seed says how far they are off."""
    assert isinstance(prior, Gaussian)
    for q in _members(prior.start(), rng, 2):
        assert isinstance(q, Gaussian)
        where = f"q = {q!r}"
        points = q.sample(rng, 1000)
        seen = [np.concatenate([loss.gradient(x), loss.hessian(x).ravel()]) for x in points]
        mean, spread = np.mean(seen, axis=0), np.std(seen, axis=0) / np.sqrt(len(seen))
        expected = loss.expect(q, rule)
        assert isinstance(expected, GaussianExpected)
        other = loss.expect(q, dataclasses.replace(rule, seed=1))  # type: ignore[type-var]
        assert isinstance(other, GaussianExpected)
        own, again = (np.concatenate([e.gradient, e.curvature.dense().ravel()]) for e in (expected, other))
        # six standard errors of the independent points, and eight times what another seed changes
        allowed = 6.0 * spread + 8.0 * np.abs(own - again) + 1e-3 * (np.abs(own).max() + 1e-12)
        worst = int(np.argmax(np.abs(own - mean) - allowed))
        identity = f"E_q of gradient and Hessian ({type(q).__name__}, {rule})"
        _require(identity, where, own[worst] - mean[worst], float(allowed[worst]))


def check_family(member: ExponentialFamily, *, seed: int = 0) -> None:
    """Check a family at one member and near it: μ = ∇A, the Fisher metric, both maps, KL, density and samples.

    Parameters
    ----------
    member : ExponentialFamily
    seed : int, default 0

    Raises
    ------
    CheckError
        For the first identity that does not hold.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.testing import check_family
    >>> check_family(ba.families.Gamma(shape=[2.0, 3.0], rate=1.5))
    """
    rng = np.random.default_rng(seed)
    _check_arguments(member)
    prior, member = member, member.start()  # a prior may lie outside its family
    _require("contains(λ) for a member", f"q = {member!r}", float(not member.contains(member.natural)), 0.0)
    _check_prior(prior, *_members(member, rng, 2))
    for q in [member, *_members(member, rng, 2)]:
        where = f"q = {q!r}"
        again = (q.with_natural(q.natural).natural - q.natural).to_vector()
        allowed = ROUNDING * (1.0 + float(np.abs(q.natural.to_vector()).max()))
        _require("with_natural(λ) has natural λ", where, again, allowed)
        _check_derivatives(q, _direction(q, rng), where)  # before the maps, which would be blamed for a wrong μ
        _check_maps(q, where)
        _check_domain(q, _direction(q, rng), where)
        _check_divergence(q, q.with_natural(q.natural + 0.2 * _inner(q, rng)), where)
        _check_density(q, _inner(q, rng), rng, where)


def _check_arguments(q: ExponentialFamily) -> None:
    """Messages carry `arguments`; Gaussians have a form of their own there."""
    kind, where = type(q), f"λ = {q.natural!r}"
    if isinstance(q, Gaussian) or (not kind.arguments and FAMILIES.name_of(kind) is None):
        return
    try:
        again = kind(*(getattr(q, name) for name in kind.arguments)).natural - q.natural
    except (AttributeError, TypeError, ValueError):
        raise CheckError(f"{kind.__name__}(*arguments) is the member", where, np.inf, 0.0) from None
    allowed = ROUNDING * (1.0 + float(np.abs(q.natural.to_vector()).max()))
    _require(f"{kind.__name__}(*arguments) is the member", where, again.to_vector(), allowed)


def _check_prior(prior: ExponentialFamily, q: ExponentialFamily, p: ExponentialFamily) -> None:
    """KL(q‖π₀) = w KL(q‖start) + const, and so η_0 = wλ of the start."""
    where, w, start = f"prior = {prior!r}", prior.prior_weight, prior.start()
    lengths = [q.kl(prior), p.kl(prior), w * q.kl(start), w * p.kl(start)]
    allowed = ROUNDING * (1.0 + abs(prior.log_partition) + float(np.abs(lengths).sum()))
    difference = lengths[0] - lengths[1] - lengths[2] + lengths[3]
    _require("KL(q‖prior) = prior_weight · KL(q‖start) + const", where, difference, allowed)
    missing = (prior.natural - w * start.natural).to_vector()
    size = 1.0 + float(np.abs(prior.natural.to_vector()).max())
    _require("natural of the prior = prior_weight · natural of its start", where, missing, ROUNDING * size)


def _check_maps(q: ExponentialFamily, where: str) -> None:
    back = q.with_expectation(q.expectation)
    # rounding μ by ε moves λ by F⁻¹ε|μ|: a Fisher length of ε|μ| over the root of the smallest eigenvalue of F
    basis = np.stack([q.whiten(q.natural.from_vector(e)) for e in np.eye(q.natural.size)], axis=1)
    weakest = float(np.linalg.svd(basis, compute_uv=False)[-1])
    moments = float(np.linalg.norm(q.expectation.to_vector()))
    allowed = ROUNDING * (1.0 + moments) / max(weakest, EPS)
    _require("∇A* inverts ∇A", where, q.fisher_norm(back.natural - q.natural), allowed)
    again_mu = (back.expectation - q.expectation).to_vector()
    # and the way back loses the condition once more
    _require("∇A inverts ∇A*", where, again_mu, ROUNDING * (1.0 + moments) / min(1.0, max(weakest, EPS)) ** 2)


def _check_derivatives(q: ExponentialFamily, step: Natural, where: str) -> None:
    def log_partition(natural: Natural) -> float:
        return q.with_natural(natural).log_partition

    def moment(natural: Natural) -> float:
        return pairing(step, q.with_natural(natural).expectation)

    slope, error = _derivative(log_partition, q.natural, step, "A(λ)", where)
    _require("expectation = ∇A, the derivative of log_partition", where, slope - pairing(step, q.expectation), error)
    bend, error = _derivative(moment, q.natural, step, "⟨δ, μ(λ)⟩", where)
    whitened = q.whiten(step)
    _require("whiten = root of the Fisher metric ∇²A", where, bend - whitened @ whitened, error)
    conjugate = pairing(q.natural, q.expectation) - q.log_partition
    allowed = ROUNDING * (1.0 + abs(q.log_partition) + abs(q.conjugate))
    _require("conjugate = ⟨λ, μ⟩ − A", where, q.conjugate - conjugate, allowed)


def _check_domain(q: ExponentialFamily, step: Natural, where: str) -> None:
    """Check that with_natural refuses what contains() does along a line that may leave the domain."""
    for length in (-1e3, -1e2, -10.0, 10.0, 1e2, 1e3):
        natural = q.natural + length * step
        inside = q.contains(natural)
        try:
            with np.errstate(invalid="ignore"):  # which the check is about
                made = bool(np.isfinite(q.with_natural(natural).log_partition))
        except ValueError:
            made = False
        identity = "with_natural gives a finite A(λ) inside contains(), and a ValueError outside"
        _require(identity, f"λ = {natural!r}", float(made != inside), 0.0)


def _check_divergence(q: ExponentialFamily, p: ExponentialFamily, where: str) -> None:
    where = f"{where}, p = {p!r}"
    _require("KL(q‖q) = 0", where, q.kl(q), ROUNDING * (1.0 + abs(q.log_partition)))
    pieces = [p.log_partition, q.log_partition, pairing(p.natural, q.expectation), pairing(q.natural, q.expectation)]
    bregman = pieces[0] - pieces[1] - pieces[2] + pieces[3]
    allowed = ROUNDING * (1.0 + float(np.abs(pieces).sum()))
    _require("KL = Bregman divergence of A", where, q.kl(p) - bregman, allowed)
    _require("KL ≥ 0", where, min(q.kl(p), 0.0), allowed)


def _check_density(q: ExponentialFamily, step: Natural, rng: np.random.Generator, where: str) -> None:
    """Log q is affine in λ but for A; q integrates p/q to one and log q/p to KL, over its own samples."""
    theta = q.sample(rng, 4000)
    _require("sample returns (size, d)", where, float(np.ndim(theta) != 2 or len(theta) != 4000), 0.0)
    _check_mass(q, theta, where)
    low, high = (q.with_natural(q.natural + sign * 0.1 * step) for sign in (-1.0, 1.0))
    logs = [member.log_density(theta) for member in (low, q, high)]
    _require("log_density is finite at samples", where, float(not np.isfinite(logs).all()), 0.0)
    bent = logs[1] - 0.5 * (logs[0] + logs[2])
    constant = 0.5 * (low.log_partition + high.log_partition) - q.log_partition
    allowed = ROUNDING * (1.0 + float(np.abs(logs).max()) + abs(q.log_partition))
    _require("log_density = ⟨λ, T⟩ + log h − log_partition", where, bent - constant, allowed)
    for p in (low, high):
        ratio = p.log_density(theta) - logs[1]
        for identity, seen, wanted in (
            ("samples and density agree (E_q[p/q] = 1)", np.exp(ratio), 1.0),
            ("samples, density and KL agree (E_q[log q/p] = KL)", -ratio, q.kl(p)),
        ):
            # six standard errors
            error = 6.0 * float(np.std(seen)) / np.sqrt(len(seen)) + allowed
            _require(identity, where, float(np.mean(seen)) - wanted, error)


def _check_mass(q: ExponentialFamily, theta: Array, where: str) -> None:
    """The density of one dimension integrates to one; the samples say where, as it need not be zero elsewhere."""
    if theta.shape[1] != 1:  # several dimensions have no cheap integral
        return
    knots = np.quantile(theta, [0.0, 0.1, 0.5, 0.9, 1.0])
    pieces = [
        quad(lambda x: float(np.exp(q.log_density(np.array([[x]]))[0])), low, high)[0] for low, high in pairwise(knots)
    ]
    # of n independent samples, more than 20/n of the mass is outside with a probability of 21·exp(−20)
    _require("log_density is normalised (∫ q = 1)", where, sum(pieces) - 1.0, 20.0 / len(theta))


SOLVED = 1e-10
"""Residual of the exact solves of `check_step`, a Fisher length per parameter."""


def check_step(
    method: Method | Step, prior: ExponentialFamily | None = None, clients: Sequence[Loss] | None = None
) -> None:
    """Check a step or a row: its rule and schedule, Eq. 33 where the rule claims it, the pooled solution, and the step.

    A row with a dual claims that the pooled solution is a fixed point, and without `max_rounds` that rounds near it
    come back to it. A rule with `is_natural_gradient` claims η_k = −∇_μ E_{q_k}[ℓ_k] after rounds in which γ_k = ρ_k
    and the prior is at the server. A step is a frozen dataclass, a round a function of state and replies alone, and a
    state the same after `pack_state` and `unpack_state`.

    Parameters
    ----------
    method : Method or Step
    prior : ExponentialFamily, optional
        Prior to start from; default: each Gaussian family that the row is defined for, of dimension two.
    clients : sequence of Loss, optional
        Losses of the clients; default: three logistic regressions, of 4, 6 and 8 rows.

    Raises
    ------
    CheckError
        For the first identity that does not hold.
    ValueError
        When the step, prior and clients do not fit.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.testing import check_step
    >>> check_step(ba.methods.BayesADMM(rho=2.0))
    >>> check_step(ba.Accelerated(ba.methods.PVI(0.4)))
    """
    step = as_step(method).starting("prior")  # the sites' own fits are no round of the map
    # of its own: else a field of the subclass would be none of the settings that a checkpoint compares
    is_frozen = getattr(vars(type(step)).get("__dataclass_params__"), "frozen", False)
    _require("a step is a frozen dataclass", repr(step), float(not is_frozen), 0.0)
    row = step.row
    for thing in (row.dual_rule, row.schedule):
        frozen = thing is None or (dataclasses.is_dataclass(thing) and thing.__dataclass_params__.frozen)
        _require("rule and schedule are frozen dataclasses", repr(thing), float(not frozen), 0.0)
    losses = _small_team() if clients is None else list(clients)
    usable = [one for one in _gaussians(2) if _accepts(require_family, row, one)]
    usable = [one for one in usable if _accepts(assemble, step, losses, one, None, None, SOLVED)]
    for one in usable if prior is None else [prior]:
        team = assemble(step, losses, one, None, VariationalNewton(tol=1e-12) if clients is None else None, SOLVED)
        for t in (1, 2, 7):
            _check_weights(team, t)
        pooled = solve_pooled(losses, one, expectation=row.expectation, tol=SOLVED)
        _check_state(team)
        if row.client == "proximal" and row.dual_step:
            _check_rule(team, pooled.posterior)
            _check_natural_gradients(team)
        if row.dual_step:
            start = _check_fixed_point(team, pooled.posterior)
            if row.max_rounds is None:  # a row of few rounds claims no convergence
                _check_return(team, start)


check_method = check_step
"""The check of a row: that of its step."""


def _accepts(check: Callable[..., object], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return False
    return True


def _check_state(team: Team) -> None:
    """Two rounds from one state are equal, and the state goes through `pack` and back."""
    first = state = dataclasses.replace(begin(team), start_objective=0.0)
    for number in (1, 2, 3):
        where = f"round {number} of {team.step.name}"
        once = _next(team, state).state
        written = _written(team.step, once, where)
        header, arrays = written
        _require_same(PURE, where, _written(team.step, _next(team, state).state, where), written)
        _require_same(PURE, where, _written(team.step, once, where), written)
        like = dataclasses.replace(first, history=once.history)
        read = unpack_state(header, {name: array.copy() for name, array in arrays.items()}, like)
        _require_same(READ, where, _written(team.step, read, where), written)
        state = once


PURE = "a round is a function of state and replies"
READ = "the state of a step is made of registered classes, tuples, arrays of float64 and plain values"
_Written = tuple[dict[str, Any], dict[str, Array]]


def _written(step: Step, state: State, where: str) -> _Written:
    try:
        header, arrays = pack_state(state, step.keeps_mean(state))
    except ValueError as error:
        raise CheckError(READ, where, np.inf, 0.0, str(error).rstrip(".")) from error
    return header, {name: array.copy() for name, array in arrays.items()}


def _require_same(identity: str, where: str, one: _Written, other: _Written) -> None:
    (header, arrays), (wanted, others) = one, other
    same = header == wanted and all(np.array_equal(arrays[name], others[name], equal_nan=True) for name in others)
    _require(identity, where, float(not same), 0.0)


def _small_team() -> list[Loss]:
    rng = np.random.default_rng(0)
    made: list[Loss] = []
    for n in (4, 6, 8):
        X = rng.standard_normal((n, 2))
        made.append(Logistic(X, (X @ [1.0, -0.5] + rng.standard_normal(n) > 0).astype(float)))
    return made


def _check_weights(team: Team, round: int) -> None:
    """Eq. 54 keeps λ_g where λ_k = λ_g and the sites add up to it."""
    row, where = team.step.row.at(round), f"round {round}"
    alpha = row.server_alpha(len(team.workers))
    _require("0 ≤ α ≤ 1", where, max(0.0, -alpha, alpha - 1.0), 0.0)
    for worker in team.workers:
        found = client_coefficients(row, worker.share, worker.n_clients)
        _require("ρ_k ≥ 0 and γ_k ≥ 0", where, min(found.rho, found.step, 0.0), 0.0)


def _check_rule(team: Team, q: ExponentialFamily) -> None:
    """A client that agrees with the server keeps its dual."""
    rule, site = team.step.row.dual_rule, 0.3 * q.natural
    own = q.natural if rule.reads_natural else q
    moved = rule(site, own, own, 0.7)
    size = ROUNDING * (1.0 + float(np.abs(q.natural.to_vector()).max()))
    identity = f"{type(rule).__name__} leaves η_k as it is where λ_k = λ_g"
    _require(identity, f"λ_g = {q.natural!r}", (moved - site).to_vector(), size)


def _next(team: Team, state: State) -> Success:
    def each(function: Callable[[Any], Any], items: Any) -> list[Any]:
        return [function(item) for item in items]

    found = Round(team, each, 0, False, 1.0)(state, team.expect_all(state, each))
    if not isinstance(found, Success):
        identity = f"a usable round of {team.step.name} ({found.message})"
        raise CheckError(identity, f"λ_g = {state.q_g.natural!r}", np.inf, 0.0)
    return found


def _check_natural_gradients(team: Team) -> None:
    """Eq. 33, after the first and the second round."""
    row = team.step.row
    if not row.dual_rule.is_natural_gradient or row.prior_at != "server":
        return
    state = begin(team)
    for number in (1, 2):
        found = [client_coefficients(row.at(number), worker.share, worker.n_clients) for worker in team.workers]
        state = _next(team, state).state
        clients = zip(state.history[-1].clients, found, strict=True)
        edges = [client.natural_gradient for client, own in clients if own.step == own.rho]
        identity = f"η_k = −∇_μ E_q[ℓ_k] (Eq. 33), which {type(row.dual_rule).__name__} claims"
        where = f"round {number} ({type(team.prior).__name__})"
        # the client's residual over ρ_k is a length of λ_k; the edge is ρ_k times it
        allowed = 1e2 * SOLVED * max([1.0, *(own.rho for own in found)])
        _require(identity, where, max(edges, default=0.0), allowed)


def _check_fixed_point(team: Team, pooled: ExponentialFamily) -> State:
    """Check that a round moves nothing from λ_g = λ_k = λ* and η_k = −∇_μ E_{q*}[ℓ_k] (less the part of the prior)."""
    zero = pooled.natural.zeros()
    solutions = [Solution(pooled, worker.expect(pooled), 0.0, 0, ClientStatus.CONVERGED) for worker in team.workers]
    sites = tuple(
        -worker.gap(solution.posterior, solution.expected, zero)
        for worker, solution in zip(team.workers, solutions, strict=True)
    )
    state = State(pooled, sites, (pooled.natural,) * len(sites), team.step.init(team.server), float("nan"), ())
    after = _next(team, state).state
    moved = pooled.fisher_norm(after.q_g.natural - pooled.natural)
    identity = f"the pooled solution is a fixed point of {team.step.name}"
    # every solve ends within SOLVED, and the sums are over the clients
    _require(identity, f"q* = {pooled!r}", moved, 1e3 * SOLVED * len(sites))
    return state


NEAR = 0.05
"""Fisher length per parameter by which each η_k is moved away from the pooled solution."""
ROUNDS_BACK = 100


def _check_return(team: Team, start: State) -> None:
    """Check that duals that are all off by the same step come half of the way back or nearer."""
    q, state = start.q_g, start
    step = NEAR / len(start.sites) * _inner(q, np.random.default_rng(0))
    state = dataclasses.replace(start, sites=tuple(site + step for site in start.sites))
    first = left = _distance(state, start)
    for _ in range(ROUNDS_BACK):
        try:
            state = _next(team, state).state
        except CheckError:  # it has left the domain
            left = np.inf
            break
        left = _distance(state, start)
        if not 0.5 * first < left < 10.0 * first:
            break
    identity = f"rounds near the pooled solution come back to it ({team.step.name})"
    _require(identity, f"q* = {q!r} with η_k off by {first:.1g}", left, 0.5 * first)


def _distance(state: State, pooled: State) -> float:
    """The largest Fisher length of λ_g and of the duals from those of the pooled solution."""
    changes = [site - own for site, own in zip(state.sites, pooled.sites, strict=True)]
    changes.append(state.q_g.natural - pooled.q_g.natural)
    return max(pooled.q_g.fisher_norm(change) for change in changes)
