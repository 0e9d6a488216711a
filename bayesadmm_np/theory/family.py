"""An exponential family from T(θ) and A(λ) alone: the dual map, A*, KL, Fisher and the natural gradient, derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import mpmath
import numpy as np
import sympy as sp

from .._validation import Array
from .algebra import field_inverse, indexed, is_zero, solve_stepwise, tidy


@dataclass(frozen=True, eq=False)
class SymbolicFamily:
    """q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)) (Eq. 10), given symbolically.

    Only T, h and A are put in. The moments are μ = ∇A(λ), the conjugate A*(μ) = ⟨λ, μ⟩ − A(λ), the KL divergence is
    the Bregman divergence of A, and the Fisher matrix is ∇²A. The inverse map ∇A* is found in closed form where one
    exists: through `parameters` when these are given as functions of the moments, else by solving ∇A(λ) = μ; and it
    is kept only if ∇A*(∇A(λ)) = λ can be shown. Where ∇A holds ψ or log Γ (Gamma, Beta, Dirichlet) there is no
    closed form: `inverse` is None, A* is available as a function of λ, and numbers come from Newton's method.

    Parameters
    ----------
    name : str
        Short name, as in `bayesadmm derive NAME`.
    theta : sequence of Symbol
        The variable θ.
    natural : sequence of Symbol
        λ. A symmetric matrix contributes its upper triangle, row by row.
    statistic : sequence of Expr
        T(θ), one for each natural coordinate.
    log_partition : Expr
        A(λ).
    log_base_measure : Expr, default 0
        log h(θ).
    domain : sequence of relational, default ()
        Conditions on λ that hold inside Ω, e.g. λ₁ + λ₂ > 0. Symbols that are assumed positive or negative count as
        conditions by themselves.
    support : sympy set, default Reals
        Values of θ (or of each coordinate) at which h is positive; a set of integers means a counting measure.
    parameters : mapping of Symbol to Expr, optional
        The ordinary parameters (mean, precision, rate …) as functions of λ, of the moments μ_1, μ_2 …, or of both.
    constants : sequence of Symbol, default ()
        Fixed quantities that are no parameters, e.g. a fixed precision.
    shapes : sequence of tuple of int, optional
        Shapes of the vectors (d,) and symmetric matrices (d, d) that make up λ; by default (1,) each.
    sites : sequence of str, optional
        Names for a site's own coordinates, one for each natural coordinate, e.g. v and V: where λ_i is affine in one
        parameter, the site is measured in that parameter's units (η = −½V when λ = −½S). By default η itself.
    title : str, optional
        Name in full, for headings.

    Raises
    ------
    ValueError
        When lengths do not match, A depends on unknown symbols, or T on λ.

    Examples
    --------
    >>> import sympy as sp
    >>> from bayesadmm_np.theory import SymbolicFamily
    >>> x, lam = sp.symbols("x lambda", real=True)
    >>> poisson = SymbolicFamily("poisson", [x], [lam], [x], sp.exp(lam), -sp.loggamma(x + 1), support=sp.S.Naturals0)
    >>> poisson.expectation, poisson.inverse, poisson.fisher
    ((exp(lambda),), (log(mu_1),), Matrix([[exp(lambda)]]))
    >>> poisson.conjugate_of_moments
    mu_1*log(mu_1) - mu_1
    """

    name: str
    theta: Sequence[sp.Symbol]
    natural: Sequence[sp.Symbol]
    statistic: Sequence[sp.Expr]
    log_partition: sp.Expr
    log_base_measure: sp.Expr = sp.S.Zero
    domain: Sequence[Any] = ()
    support: sp.Set = sp.S.Reals
    parameters: Mapping[sp.Symbol, sp.Expr] = field(default_factory=dict)
    constants: Sequence[sp.Symbol] = ()
    shapes: Sequence[tuple[int, ...]] | None = None
    sites: Sequence[str] | None = None
    title: str = ""

    def __post_init__(self) -> None:
        put = lambda key, value: object.__setattr__(self, key, value)  # noqa: E731
        for key in ("theta", "natural", "statistic", "domain", "constants"):
            put(key, tuple(sp.sympify(item) for item in getattr(self, key)))
        # sympy evaluates x < 0 to True for an x that is assumed negative: numbers must be asked again
        signs = [sp.Lt(x, 0, evaluate=False) for x in self.natural if x.is_negative]
        signs += [sp.Gt(x, 0, evaluate=False) for x in self.natural if x.is_positive]
        put("domain", (*(c for c in self.domain if c is not sp.true and c not in signs), *signs))
        put("log_partition", sp.sympify(self.log_partition))
        put("log_base_measure", sp.sympify(self.log_base_measure))
        put("shapes", tuple(self.shapes) if self.shapes is not None else ((1,),) * len(self.natural))
        put("parameters", dict(self.parameters) or {lam: lam for lam in self.natural})
        put("sites", None if self.sites is None else tuple(self.sites))
        put("title", self.title or self.name)
        self._check()

    def _check(self) -> None:
        size = len(self.natural)
        for key in ("statistic", "parameters", "sites"):
            if getattr(self, key) is not None and len(getattr(self, key)) != size:
                raise ValueError(f"{self.name}: {key} must have {size} entries, one for each natural coordinate.")
        assert self.shapes is not None
        if sum(_packed(shape) for shape in self.shapes) != size:
            raise ValueError(f"{self.name}: the shapes {self.shapes} do not hold {size} natural coordinates.")
        known = set(self.natural) | set(self.constants)
        unknown = self.log_partition.free_symbols - known
        if unknown:
            raise ValueError(f"{self.name}: A(λ) holds {sorted(map(str, unknown))}, neither natural nor constant.")
        wrong = set().union(*(entry.free_symbols for entry in (*self.statistic, self.log_base_measure)))
        wrong -= set(self.theta) | set(self.constants)
        if wrong:
            raise ValueError(f"{self.name}: T(θ) and h(θ) hold {sorted(map(str, wrong))}, which are not θ.")

    @cached_property
    def moments(self) -> tuple[sp.Symbol, ...]:
        """Symbols μ_1, μ_2 … for the expectation parameter."""
        return moment_symbols(len(self.natural))

    @cached_property
    def multiplicity(self) -> tuple[int, ...]:
        """1, and 2 for the off-diagonal entries of symmetric matrices, which ⟨λ, T⟩ counts twice."""
        assert self.shapes is not None
        counts: list[int] = []
        for shape in self.shapes:
            if len(shape) == 1:
                counts += [1] * shape[0]
            else:
                counts += [1 if i == j else 2 for i in range(shape[0]) for j in range(i, shape[0])]
        return tuple(counts)

    @cached_property
    def expectation(self) -> tuple[sp.Expr, ...]:
        """μ = ∇A(λ)."""
        return tuple(tidy(sp.diff(self.log_partition, lam)) for lam in self.natural)

    @cached_property
    def fisher(self) -> sp.Matrix:
        """F(λ) = ∇²A(λ)."""
        rows = [[tidy(sp.diff(mean, lam)) for lam in self.natural] for mean in self.expectation]
        return sp.Matrix(rows)

    @cached_property
    def fisher_inverse(self) -> sp.Matrix:
        """F(λ)⁻¹."""
        return field_inverse(self.fisher)

    @cached_property
    def conjugate(self) -> sp.Expr:
        """A* as a function of λ: ⟨λ, ∇A(λ)⟩ − A(λ)."""
        return tidy(_dot(self.natural, self.expectation) - self.log_partition)

    @cached_property
    def inverse(self) -> tuple[sp.Expr, ...] | None:
        """λ = ∇A*(μ) in the symbols `moments`, shown to undo ∇A; None where no closed form was found."""
        candidate = self._candidate_inverse()
        if candidate is None:
            return None
        # ∇A is injective (A is strictly convex), so that a left inverse on Ω is the inverse on its image
        there = dict(zip(self.moments, self.expectation, strict=True))
        for lam, value in zip(self.natural, candidate, strict=True):
            if not is_zero(value.subs(there, simultaneous=True) - lam):
                return None
        return candidate

    def _candidate_inverse(self) -> tuple[sp.Expr, ...] | None:
        own = self.parameters.values()
        through_parameters = not any(set(self.natural) & p.free_symbols for p in own)
        if through_parameters and self.natural_of_parameters is not None:
            values = [lam.subs(self.parameters, simultaneous=True) for lam in self.natural_of_parameters]
            return tuple(tidy(value) for value in values)
        equations = [mean - moment for mean, moment in zip(self.expectation, self.moments, strict=True)]
        found = solve_stepwise(equations, self.natural)
        return None if found is None else tuple(found[lam] for lam in self.natural)

    @cached_property
    def conjugate_of_moments(self) -> sp.Expr | None:
        """A*(μ) in the symbols `moments`; None where ∇A* has no closed form."""
        if self.inverse is None:
            return None
        there = dict(zip(self.natural, self.inverse, strict=True))
        straight = tidy(_dot(self.inverse, self.moments) - self.log_partition.subs(there, simultaneous=True))
        through = tidy(self.conjugate.subs(there, simultaneous=True))
        return min(straight, through, key=lambda value: value.count_ops())

    @cached_property
    def parameters_of_natural(self) -> dict[sp.Symbol, sp.Expr]:
        """The ordinary parameters as functions of λ."""
        means = dict(zip(self.moments, self.expectation, strict=True))
        return {p: tidy(value.subs(means, simultaneous=True)) for p, value in self.parameters.items()}

    @cached_property
    def natural_of_parameters(self) -> tuple[sp.Expr, ...] | None:
        """λ as a function of the ordinary parameters, found by solving for it."""
        if tuple(self.parameters.values()) == tuple(self.natural):
            return tuple(self.parameters)
        equations = [value - p for p, value in self.parameters_of_natural.items()]
        found = solve_stepwise(equations, self.natural)
        return None if found is None else tuple(found[lam] for lam in self.natural)

    def in_parameters(self, expression: sp.Expr, index: str | None = None) -> sp.Expr:
        """Rewrite an expression in λ through the ordinary parameters, with an index k, g or 0 if one is given.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import gaussian
        >>> q = gaussian("diagonal")
        >>> q.in_parameters(q.expectation[1])
        (m**2*s + 1)/s
        """
        if self.natural_of_parameters is None:
            raise ValueError(f"{self.name}: λ has no closed form in {list(map(str, self.parameters))}.")
        written = expression.subs(dict(zip(self.natural, self.natural_of_parameters, strict=True)), simultaneous=True)
        if index is not None:
            written = written.subs({p: indexed(p, index) for p in self.parameters}, simultaneous=True)
        return tidy(written)

    def naturals(self, index: str) -> tuple[sp.Symbol, ...]:
        """λ of another member: λ_k, λ_g or λ_0.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import poisson
        >>> poisson().naturals("g")
        (lambda_1,g,)
        """
        return tuple(indexed(lam, index) for lam in self.natural)

    def kl(self, other: Sequence[sp.Expr]) -> sp.Expr:
        """KL(q_λ‖q_other) = A(other) − A(λ) − ⟨other − λ, ∇A(λ)⟩: the Bregman divergence of A from λ to other.

        Parameters
        ----------
        other : sequence of Expr
            Natural parameter of the second distribution.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import poisson
        >>> q = poisson()
        >>> q.kl(q.naturals("g"))
        lambda_1*exp(lambda_1) - lambda_1,g*exp(lambda_1) - exp(lambda_1) + exp(lambda_1,g)
        """
        at_other = self.log_partition.subs(dict(zip(self.natural, other, strict=True)), simultaneous=True)
        change = [o - lam for o, lam in zip(other, self.natural, strict=True)]
        return at_other - self.log_partition - sp.expand(_dot(change, self.expectation))

    def expected_log_ratio(self, other: Sequence[sp.Expr]) -> sp.Expr:
        """E_q[log q_λ − log q_other] from the densities: T is replaced by its mean, h cancels.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import poisson
        >>> q = poisson()
        >>> q.expected_log_ratio(q.naturals("g")) - q.kl(q.naturals("g"))
        0
        """
        means = [sp.Dummy() for _ in self.statistic]
        there = self.log_partition.subs(dict(zip(self.natural, other, strict=True)), simultaneous=True)
        ratio = (_dot(self.natural, means) - self.log_partition) - (_dot(other, means) - there)
        return sp.expand(ratio.subs(dict(zip(means, self.expectation, strict=True))))

    def natural_gradient(self, function: sp.Expr) -> tuple[sp.Expr, ...]:
        """F(λ)⁻¹ ∇_λ of a function of λ, which is its gradient with respect to μ (Eq. 11).

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import gamma
        >>> q = gamma()
        >>> q.natural_gradient(q.expectation[0])  # the gradient of μ_1 with respect to μ
        (1, 0)
        """
        slope = sp.Matrix([sp.diff(function, lam) for lam in self.natural])
        return tuple(tidy(entry) for entry in self.fisher_inverse * slope)

    def log_density(self) -> sp.Expr:
        """Log q(θ) in λ and θ.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import bernoulli
        >>> bernoulli().log_density()
        lambda_1*theta - log(exp(lambda_1) + 1)
        """
        return self.log_base_measure + _dot(self.natural, self.statistic) - self.log_partition

    def with_statistic(self, scale: Sequence[sp.Expr | int], suffix: str = "") -> SymbolicFamily:
        """Return the same family of distributions for the statistic scale∘T, so that λ becomes λ/scale.

        Parameters
        ----------
        scale : sequence of Expr
            One non-zero number for each natural coordinate.
        suffix : str, default ""
            Text added to the name.

        Examples
        --------
        >>> import sympy as sp
        >>> from bayesadmm_np.theory.builtin import gaussian
        >>> q = gaussian("diagonal").with_statistic([1, -sp.Rational(1, 2)])
        >>> q.statistic, q.natural_of_parameters
        ((theta, -theta**2/2), (m*s, s))
        """
        factors = tuple(sp.sympify(factor) for factor in scale)
        if len(factors) != len(self.natural) or any(factor == 0 for factor in factors):
            raise ValueError(f"{self.name}: scale must be {len(self.natural)} numbers that are not zero.")
        natural = tuple(_rescaled(lam, f) for lam, f in zip(self.natural, factors, strict=True))
        old = {lam: f * new for lam, f, new in zip(self.natural, factors, natural, strict=True)}
        old |= {mu: mu / f for mu, f in zip(self.moments, factors, strict=True)}
        return replace(
            self,
            name=self.name + suffix,
            natural=natural,
            statistic=tuple(sp.expand(f * t) for f, t in zip(factors, self.statistic, strict=True)),
            log_partition=self.log_partition.subs(old, simultaneous=True),
            domain=tuple(sp.sympify(condition.subs(old, simultaneous=True)) for condition in self.domain),
            parameters={p: value.subs(old, simultaneous=True) for p, value in self.parameters.items()},
        )

    def fixed(self, values: Mapping[sp.Symbol, Any]) -> SymbolicFamily:
        """Return the family with numbers in place of `constants`.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import gaussian
        >>> q = gaussian("fixed")
        >>> q.fixed({q.constants[0]: 4}).log_partition
        lambda_1**2/8
        """
        numbers = {key: sp.sympify(value) for key, value in values.items()}
        return replace(
            self,
            statistic=tuple(t.subs(numbers) for t in self.statistic),
            log_partition=self.log_partition.subs(numbers),
            log_base_measure=self.log_base_measure.subs(numbers),
            domain=tuple(condition.subs(numbers) for condition in self.domain),
            parameters={p: value.subs(numbers) for p, value in self.parameters.items()},
            constants=tuple(c for c in self.constants if c not in numbers),
        )

    def lambdify(self) -> NumericMaps:
        """Return the derived maps as NumPy functions of the natural coordinates (and then the constants).

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import gamma
        >>> gamma().lambdify().expectation(1.0, -2.0)[1]  # shape 2, rate 2
        array(1.)
        """
        arguments = (*self.natural, *self.constants)
        inverse = None
        if self.inverse is not None:
            inverse = _function((*self.moments, *self.constants), self.inverse)
        return NumericMaps(
            log_partition=_function(arguments, (self.log_partition,)),
            expectation=_function(arguments, self.expectation),
            conjugate=_function(arguments, (self.conjugate,)),
            fisher=_function(arguments, tuple(self.fisher)),
            inverse=inverse,
            contains=_function(arguments, tuple(self.domain)),
        )

    def quadrature_errors(self, natural: Sequence[float]) -> tuple[float, float]:
        """Check A against T and h at one λ by integration: |∫q − 1| and the largest |E_q[T] − ∇A(λ)|.

        Only for one-dimensional θ with a stated support and no constants left; a wrong A shows here.

        Raises
        ------
        ValueError
            When θ is not one-dimensional, or the support is neither an interval nor a set of integers.

        Examples
        --------
        >>> from bayesadmm_np.theory.builtin import gamma
        >>> max(gamma().quadrature_errors([0.5, -2.0])) < 1e-8
        True
        """
        if len(self.theta) != 1 or self.constants:
            raise ValueError(f"{self.name}: integration needs one-dimensional θ and no constants.")
        values = dict(zip(self.natural, map(float, natural), strict=True))
        density = sp.lambdify(self.theta[0], sp.exp(self.log_density().subs(values)), "mpmath")
        statistics = [sp.lambdify(self.theta[0], t, "mpmath") for t in self.statistic]
        means = [float(mean.subs(values)) for mean in self.expectation]
        total = float(_integrate(density, self.support, self.name))
        errors = [
            abs(float(_integrate(lambda x, t=t: t(x) * density(x), self.support, self.name)) - mean)
            for t, mean in zip(statistics, means, strict=True)
        ]
        return abs(total - 1.0), max(errors)


@dataclass(frozen=True)
class NumericMaps:
    """The derived maps as functions of numbers; every one returns a tuple of arrays, one for each component.

    Attributes
    ----------
    log_partition, expectation, conjugate, fisher : callable
        Functions of the natural coordinates, then the constants; `fisher` returns its entries row by row.
    inverse : callable or None
        Function of the moments, then the constants; None without a closed form.
    contains : callable
        Truth of each domain condition.

    Examples
    --------
    >>> from bayesadmm_np.theory.builtin import poisson
    >>> maps = poisson().lambdify()
    >>> maps.inverse(*maps.expectation(0.0))
    (array(0.),)
    """

    log_partition: Any
    expectation: Any
    conjugate: Any
    fisher: Any
    inverse: Any
    contains: Any


def moment_symbols(count: int) -> tuple[sp.Symbol, ...]:
    """Return μ_1 … μ_count, the symbols in which `parameters` may be given.

    Examples
    --------
    >>> moment_symbols(2)
    (mu_1, mu_2)
    """
    return tuple(sp.Symbol(f"mu_{i + 1}", real=True) for i in range(count))


def _dot(left: Sequence[sp.Expr], right: Sequence[sp.Expr]) -> sp.Expr:
    return sp.Add(*(a * b for a, b in zip(left, right, strict=True)))


def _packed(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 1 else shape[0] * (shape[0] + 1) // 2


def _rescaled(symbol: sp.Symbol, factor: sp.Expr) -> sp.Symbol:
    if symbol.is_positive or symbol.is_negative:
        negative = bool(symbol.is_negative) != bool(factor.is_negative)
        return sp.Symbol(symbol.name, negative=True) if negative else sp.Symbol(symbol.name, positive=True)
    return sp.Symbol(symbol.name, real=True)


def _function(arguments: Sequence[sp.Symbol], outputs: Sequence[Any]) -> Any:
    compiled = sp.lambdify(arguments, list(outputs), modules=["scipy", "numpy"])

    def call(*values: Any) -> tuple[Array, ...]:
        arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
        return tuple(np.array(np.broadcast_to(result, arrays[0].shape)) for result in compiled(*arrays))

    return call


def _integrate(function: Any, support: sp.Set, name: str) -> Any:
    if isinstance(support, sp.FiniteSet):
        return sum(function(mpmath.mpf(int(x))) for x in support)
    if support.is_subset(sp.S.Integers):
        return mpmath.nsum(function, [int(support.inf), mpmath.inf if support.sup is sp.oo else int(support.sup)])
    if support != sp.S.Reals and not isinstance(support, sp.Interval):
        raise ValueError(f"{name}: support must be an interval or a set of integers, got {support}.")
    low, high = (mpmath.mpf(str(end)) if end.is_finite else mpmath.inf * int(sp.sign(end)) for end in _ends(support))
    middle = (low + high) / 2 if mpmath.isfinite(low + high) else (low + 1 if mpmath.isfinite(low) else mpmath.mpf(0))
    return mpmath.quad(function, [low, middle, high])


def _ends(support: sp.Set) -> tuple[sp.Expr, sp.Expr]:
    return support.inf, support.sup
