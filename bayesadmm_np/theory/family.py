"""An exponential family from T(θ) and A(λ) alone: the dual map, A*, KL, Fisher and the natural gradient, derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy as sp

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
        put("parameters", dict(self.parameters) or {lam: lam for lam in self.natural})
        put("sites", None if self.sites is None else tuple(self.sites))
        put("title", self.title or self.name)
        self._check()

    def _check(self) -> None:
        size = len(self.natural)
        for key in ("statistic", "parameters", "sites"):
            if getattr(self, key) is not None and len(getattr(self, key)) != size:
                raise ValueError(f"{self.name}: {key} must have {size} entries, one for each natural coordinate.")
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
        """Rewrite an expression in λ through the ordinary parameters, with an index k, g or 0 if one is given."""
        if self.natural_of_parameters is None:
            raise ValueError(f"{self.name}: λ has no closed form in {list(map(str, self.parameters))}.")
        written = expression.subs(dict(zip(self.natural, self.natural_of_parameters, strict=True)), simultaneous=True)
        if index is not None:
            written = written.subs({p: indexed(p, index) for p in self.parameters}, simultaneous=True)
        return tidy(written)

    def naturals(self, index: str) -> tuple[sp.Symbol, ...]:
        """λ of another member: λ_k, λ_g or λ_0."""
        return tuple(indexed(lam, index) for lam in self.natural)

    def kl(self, other: Sequence[sp.Expr]) -> sp.Expr:
        """KL(q_λ‖q_other) = A(other) − A(λ) − ⟨other − λ, ∇A(λ)⟩: the Bregman divergence of A from λ to other."""
        at_other = self.log_partition.subs(dict(zip(self.natural, other, strict=True)), simultaneous=True)
        change = [o - lam for o, lam in zip(other, self.natural, strict=True)]
        return at_other - self.log_partition - sp.expand(_dot(change, self.expectation))

    def natural_gradient(self, function: sp.Expr) -> tuple[sp.Expr, ...]:
        """F(λ)⁻¹ ∇_λ of a function of λ, which is its gradient with respect to μ (Eq. 11)."""
        slope = sp.Matrix([sp.diff(function, lam) for lam in self.natural])
        return tuple(tidy(entry) for entry in self.fisher_inverse * slope)

    def with_statistic(self, scale: Sequence[sp.Expr | int]) -> SymbolicFamily:
        """Return the same family of distributions for the statistic scale∘T, so that λ becomes λ/scale."""
        factors = tuple(sp.sympify(factor) for factor in scale)
        if len(factors) != len(self.natural) or any(factor == 0 for factor in factors):
            raise ValueError(f"{self.name}: scale must be {len(self.natural)} numbers that are not zero.")
        natural = tuple(_rescaled(lam, f) for lam, f in zip(self.natural, factors, strict=True))
        old = {lam: f * new for lam, f, new in zip(self.natural, factors, natural, strict=True)}
        old |= {mu: mu / f for mu, f in zip(self.moments, factors, strict=True)}
        return replace(
            self,
            natural=natural,
            statistic=tuple(sp.expand(f * t) for f, t in zip(factors, self.statistic, strict=True)),
            log_partition=self.log_partition.subs(old, simultaneous=True),
            domain=tuple(sp.sympify(condition.subs(old, simultaneous=True)) for condition in self.domain),
            parameters={p: value.subs(old, simultaneous=True) for p, value in self.parameters.items()},
        )


def moment_symbols(count: int) -> tuple[sp.Symbol, ...]:
    """Return μ_1 … μ_count, the symbols in which `parameters` may be given."""
    return tuple(sp.Symbol(f"mu_{i + 1}", real=True) for i in range(count))


def _dot(left: Sequence[sp.Expr], right: Sequence[sp.Expr]) -> sp.Expr:
    return sp.Add(*(a * b for a, b in zip(left, right, strict=True)))


def _rescaled(symbol: sp.Symbol, factor: sp.Expr) -> sp.Symbol:
    if symbol.is_positive or symbol.is_negative:
        negative = bool(symbol.is_negative) != bool(factor.is_negative)
        return sp.Symbol(symbol.name, negative=True) if negative else sp.Symbol(symbol.name, positive=True)
    return sp.Symbol(symbol.name, real=True)
