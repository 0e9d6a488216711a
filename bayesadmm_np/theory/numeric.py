"""From a symbolic one-dimensional family to a numeric one that `bayesadmm_np.run` accepts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import sympy as sp
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from .._validation import Array, as_float_array
from ..families.base import ExponentialFamily
from ..families.conjugate import as_points, require_vectors
from ..families.coordinates import Expectation, Natural
from .family import NumericMaps, SymbolicFamily

Sampler = Callable[..., Array]
STEPS = 200


@dataclass(frozen=True)
class _Rules:
    """What a numeric family's class knows."""

    symbolic: SymbolicFamily
    maps: NumericMaps
    names: tuple[str, ...]
    naturals: Any
    parameters: Any
    bounds: tuple[float, float]
    log_density: Any
    sample: Sampler | None


class NumericFamily(ExponentialFamily):
    """d independent copies of a one-dimensional family that was given symbolically; made by `numeric_family`.

    Parameters
    ----------
    **parameters : float or array_like, shape (d,)
        The family's ordinary parameters by name (λ's own symbols when it has no others).

    Raises
    ------
    ValueError
        When a parameter is missing, unknown or outside the domain.

    Examples
    --------
    >>> from bayesadmm_np.theory import builtin, numeric_family
    >>> Poisson = numeric_family(builtin.poisson())
    >>> q = Poisson(r=[1.0, 4.0])
    >>> q.expectation.mean
    array([1., 4.])
    """

    rules: ClassVar[_Rules]

    def __init__(self, **parameters: ArrayLike) -> None:
        names = self.rules.names
        if set(parameters) != set(names):
            raise ValueError(
                f"{type(self).__name__} needs the parameters {', '.join(names)}, got {sorted(parameters)}."
            )
        values = [as_float_array(parameters[name], name, ndim=(0, 1)) for name in names]
        lengths = {value.size for value in values if value.ndim}
        if len(lengths) > 1:
            raise ValueError(f"{', '.join(names)} must have one length, got {sorted(lengths)}.")
        shape = (lengths.pop() if lengths else 1,)
        with np.errstate(all="ignore"):
            parts = self.rules.naturals(*(np.broadcast_to(value, shape) for value in values))
        natural = Natural(*parts)
        if not _inside(self.rules, natural):
            raise ValueError(f"the parameters of {type(self).__name__} lie outside its domain: {parameters}.")
        self._natural = natural

    @classmethod
    def _make(cls, natural: Natural) -> Self:
        member = cls.__new__(cls)
        member._natural = natural
        return member

    @classmethod
    def from_natural(cls, natural: Natural) -> Self:
        """Return the member with natural parameter λ.

        Raises
        ------
        ValueError
            When λ is outside the domain.
        """
        require_vectors(natural, Natural, len(cls.rules.symbolic.natural))
        if not _inside(cls.rules, natural):
            conditions = " and ".join(map(str, cls.rules.symbolic.domain)) or "finite"
            raise ValueError(f"natural parameter outside the domain of {cls.__name__} ({conditions}).")
        return cls._make(natural)

    def with_natural(self, natural: Natural) -> Self:
        """Return the member with natural parameter λ."""
        self._require(natural, Natural)
        return type(self).from_natural(natural)

    def with_expectation(self, expectation: Expectation) -> Self:
        """Return the member with moments μ: in closed form where there is one, else by Newton from this member.

        Raises
        ------
        ValueError
            When no λ has these moments.
        """
        self._require(expectation, Expectation)
        if not expectation.is_finite():
            raise ValueError("impossible moments: they must be finite.")
        maps = self.rules.maps
        if maps.inverse is not None:
            with np.errstate(all="ignore"):
                natural = Natural(*maps.inverse(*expectation.parts))
            if not _inside(self.rules, natural) or not _returns(maps, natural, expectation):
                raise ValueError(f"impossible moments for {type(self).__name__}: {expectation}.")
            return self._make(natural)
        starts, targets = np.stack(self.natural.parts, axis=1), np.stack(expectation.parts, axis=1)
        solve = _bracketed if starts.shape[1] == 1 else _damped_newton
        rows = [solve(self.rules, start, target) for start, target in zip(starts, targets, strict=True)]
        return self._make(Natural(*np.array(rows).T.copy()))

    def contains(self, natural: Natural) -> bool:
        """Whether λ is finite, satisfies the domain's conditions and has a finite A."""
        self._require(natural, Natural)
        return _inside(self.rules, natural)

    @property
    def dim(self) -> int:
        """Number of copies d."""
        return self._natural.parts[0].size

    @property
    def natural(self) -> Natural:
        """The natural parameter λ; one part of shape (d,) for each component."""
        return self._natural

    @cached_property
    def expectation(self) -> Expectation:
        """μ = ∇A(λ)."""
        return Expectation(*self.rules.maps.expectation(*self.natural.parts))

    @cached_property
    def log_partition(self) -> float:
        """A(λ), summed over the copies."""
        return float(self.rules.maps.log_partition(*self.natural.parts)[0].sum())

    @property
    def parameters(self) -> dict[str, Array]:
        """The ordinary parameters by name."""
        return dict(zip(self.rules.names, self.rules.parameters(*self.natural.parts), strict=True))

    @property
    def entropy(self) -> float:
        """−E_q[log q], where the base measure is constant.

        Raises
        ------
        NotImplementedError
            When h depends on θ: then E_q[log h] would be needed.
        """
        base = self.rules.symbolic.log_base_measure
        if base.free_symbols:
            raise NotImplementedError(f"{type(self).__name__}: the entropy needs E[log h], and log h = {base}.")
        return -self.conjugate - self.dim * float(base)

    def whiten(self, difference: Natural) -> Array:
        """Lᵀδ for each copy, with F = LLᵀ."""
        self._require(difference, Natural)
        factors = np.linalg.cholesky(_fisher(self.rules.maps, *self.natural.parts))
        return np.einsum("nij,ni->nj", factors, np.stack(difference.parts, axis=1)).ravel()

    def log_density(self, theta: ArrayLike) -> Array:
        """Log-density at points of shape (..., d); −inf off the support."""
        points = as_points(theta, self.dim)
        inside = _on_support(self.rules.symbolic.support, points)
        safe = np.where(inside, points, _some_point(self.rules.symbolic.support))
        with np.errstate(all="ignore"):
            terms = self.rules.log_density(safe, *(np.broadcast_to(p, points.shape) for p in self.natural.parts))
        return np.asarray(np.where(inside.all(axis=-1), np.sum(terms, axis=-1), -np.inf))

    def sample(self, rng: np.random.Generator, size: int = 1) -> Array:
        """Draw `size` points, shape (size, d), with the sampler that was given to `numeric_family`.

        Raises
        ------
        NotImplementedError
            When none was given.
        """
        if self.rules.sample is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no sampler: T and A do not provide one. Give numeric_family(..., "
                f"sample=lambda rng, size, {', '.join(self.rules.names)}: ...), returning an array of shape size."
            )
        drawn = np.asarray(self.rules.sample(rng, (size, self.dim), **self.parameters), dtype=np.float64)
        if drawn.shape != (size, self.dim):
            raise ValueError(f"sample must return shape {(size, self.dim)}, got {drawn.shape}.")
        return drawn

    def __repr__(self) -> str:
        with np.printoptions(precision=4, threshold=12):
            return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.parameters.items())})"


def numeric_family(
    symbolic: SymbolicFamily, *, sample: Sampler | None = None, check_at: ArrayLike | None = None
) -> type[NumericFamily]:
    """Turn a symbolic family of one variable into a class whose members can be priors of `bayesadmm_np.run`.

    Moments, Fisher matrix, KL and density come from T, h and A; ∇A* is the closed form where one was derived, else
    Newton's method: bracketed by bisection for one natural coordinate, damped so that it stays in the domain for more.

    Parameters
    ----------
    symbolic : SymbolicFamily
        Family with one θ and no constants left (see `SymbolicFamily.fixed`).
    sample : callable, optional
        Function sample(rng, size, **parameters) that returns an array of shape `size` = (n, d).
    check_at : array_like, optional
        A natural parameter at which A is checked against T, h and the support by integration.

    Returns
    -------
    type
        A subclass of `NumericFamily`. Each call makes a new class, and members of different classes do not mix.

    Raises
    ------
    ValueError
        When the family is not one-dimensional, has constants left, or A fails the check.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.theory import builtin, numeric_family
    >>> Poisson = numeric_family(builtin.poisson(), check_at=[0.5])
    >>> clients = [ba.losses.LinearInStatistics(ba.families.Natural(np.array([c]))) for c in (0.5, -0.2)]
    >>> result = ba.run(ba.methods.BayesADMM(rho=1 / 2), clients, Poisson(r=2.0), rounds=2)
    >>> np.allclose(result.posterior.natural.linear, np.log(2.0) + 0.3)  # one round (Prop. D.1)
    True
    """
    if not isinstance(symbolic, SymbolicFamily):
        raise ValueError(f"symbolic must be a SymbolicFamily, got {type(symbolic).__name__}.")
    if len(symbolic.theta) != 1:
        raise ValueError(f"{symbolic.name} has {len(symbolic.theta)} variables; numeric_family is for one.")
    if symbolic.constants:
        raise ValueError(f"{symbolic.name} has constants {list(map(str, symbolic.constants))}: set them with fixed().")
    if symbolic.natural_of_parameters is None:
        raise ValueError(f"{symbolic.name}: λ has no closed form in its parameters; leave `parameters` out.")
    if check_at is not None:
        errors = symbolic.quadrature_errors([float(x) for x in np.ravel(as_float_array(check_at, "check_at"))])
        if not max(errors) < 1e-6:
            raise ValueError(
                f"{symbolic.name}: A(λ) does not fit T, h and the support: total probability is off by "
                f"{errors[0]:.1e} and E[T] from the gradient of A by {errors[1]:.1e}."
            )
    from .family import _function

    own = tuple(symbolic.parameters)
    density = sp.lambdify((*symbolic.theta, *symbolic.natural), symbolic.log_density(), modules=["scipy", "numpy"])
    rules = _Rules(
        symbolic=symbolic,
        maps=symbolic.lambdify(),
        names=tuple(p.name for p in own),
        naturals=_function(own, symbolic.natural_of_parameters),
        parameters=_function(symbolic.natural, tuple(symbolic.parameters_of_natural.values())),
        bounds=_bounds(symbolic),
        log_density=density,
        sample=sample,
    )
    words = "".join(word.capitalize() for word in re.split(r"\W+|_", symbolic.name))
    doc = f"{symbolic.title}, generated from T = {symbolic.statistic} and A = {symbolic.log_partition}."
    return type(words, (NumericFamily,), {"rules": rules, "__doc__": doc})


def _inside(rules: _Rules, natural: Natural) -> bool:
    if not natural.is_finite():
        return False
    with np.errstate(all="ignore"):
        conditions = rules.maps.contains(*natural.parts)
        values = rules.maps.log_partition(*natural.parts)[0]
    return all(bool(np.all(condition)) for condition in conditions) and bool(np.isfinite(values).all())


def _returns(maps: NumericMaps, natural: Natural, expectation: Expectation) -> bool:
    """Whether ∇A of a closed-form inverse gives the moments back: it does not for impossible moments."""
    with np.errstate(all="ignore"):
        back = maps.expectation(*natural.parts)
    return all(np.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in zip(back, expectation.parts, strict=True))


def _fisher(maps: NumericMaps, *parts: Array) -> Array:
    entries = np.stack(maps.fisher(*parts), axis=-1)
    size = len(parts)
    return entries.reshape(*entries.shape[:-1], size, size)


def _bounds(symbolic: SymbolicFamily) -> tuple[float, float]:
    """The ends of Ω when λ is one number."""
    if len(symbolic.natural) > 1 or not symbolic.domain:
        return -np.inf, np.inf
    line = sp.Symbol("t", real=True)
    region = sp.And(*(condition.subs(symbolic.natural[0], line) for condition in symbolic.domain)).as_set()
    return float(region.inf), float(region.sup)


def _bracketed(rules: _Rules, start: Array, target: Array) -> Array:
    """Solve A'(λ) = μ, A' increasing: walk to a bracket, then Brent's method."""
    maps, (low, high), goal = rules.maps, rules.bounds, float(target[0])
    gap = lambda x: float(maps.expectation(x)[0]) - goal  # noqa: E731
    x = float(start[0])
    with np.errstate(all="ignore"):
        here = gap(x)
        end, step = (high, 1.0) if here < 0 else (low, -1.0)
        near, far = x, x
        for _ in range(STEPS):
            value = gap(far)
            if value * here <= 0:
                break
            near = far
            far = far + step if np.isinf(end) else 0.5 * (far + end)
            step *= 2.0
            if not np.isfinite(gap(far)) or far in (near, end):
                raise ValueError(f"impossible moment {goal:g} for {rules.symbolic.name}.")
        else:
            raise ValueError(f"impossible moment {goal:g} for {rules.symbolic.name}.")
        x = x if here == 0 else brentq(gap, near, far, xtol=4e-16, rtol=4.0 * np.finfo(float).eps)
    return np.array([x])


def _damped_newton(rules: _Rules, start: Array, target: Array) -> Array:
    """Minimise A(λ) − ⟨λ, μ⟩, which is convex: Newton with steps halved until they stay in Ω and descend."""
    maps = rules.maps
    potential = lambda lam: float(maps.log_partition(*lam)[0]) - float(lam @ target)  # noqa: E731
    x, settled = np.array(start), False
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            slope = np.array([float(entry) for entry in maps.expectation(*x)]) - target
            try:
                step = -np.linalg.solve(_fisher(maps, *map(np.asarray, x)), slope)
            except np.linalg.LinAlgError:
                break
            decrement = float(-slope @ step)
            length = 1.0
            while length > 1e-12:
                trial = x + length * step
                inside = _inside(rules, Natural(*(np.array([entry]) for entry in trial)))
                # once the decrement is tiny the potential cannot resolve it, and full steps are right
                if inside and (decrement < 1e-8 or potential(trial) <= potential(x) - 1e-4 * length * decrement):
                    break
                length *= 0.5
            else:
                break
            x = trial
            if settled:
                return x
            settled = 0 <= decrement < 1e-14
    raise ValueError(f"impossible moments for {rules.symbolic.name}: Newton found no λ with ∇A(λ) = {target}.")


def _on_support(support: sp.Set, points: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if isinstance(support, sp.FiniteSet):
        return np.isin(points, [float(x) for x in support])
    low, high = float(support.inf), float(support.sup)
    above = points > low if support.inf.is_finite and not bool(support.contains(support.inf)) else points >= low
    below = points < high if support.sup.is_finite and not bool(support.contains(support.sup)) else points <= high
    inside = above & below
    return inside & (points == np.floor(points)) if support.is_subset(sp.S.Integers) else inside


def _some_point(support: sp.Set) -> float:
    if isinstance(support, sp.FiniteSet):
        return float(support.args[0])
    low, high = float(support.inf), float(support.sup)
    if np.isfinite(low) and np.isfinite(high):
        return 0.5 * (low + high)
    return low + 1.0 if np.isfinite(low) else (high - 1.0 if np.isfinite(high) else 0.0)
