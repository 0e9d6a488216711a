"""Symbolic helpers: tidy expressions, decide whether they are zero, solve systems one unknown at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import sympy as sp
from sympy.polys.fields import FracField
from sympy.polys.matrices import DomainMatrix

SPECIAL = (sp.polygamma, sp.loggamma, sp.gamma, sp.digamma)
"""Functions whose inverses are not elementary: systems that hold them are not handed to sympy's solver."""


def tidy(expression: sp.Expr) -> sp.Expr:
    """Write an expression compactly: rational ones factored, others collected by their logarithms, log Γ and ψ."""
    expression = sp.sympify(expression)
    if expression.is_rational_function():
        return _rational(expression)
    collected = _collect(sp.expand_log(expression))
    if collected is not None:
        return collected
    simple = sp.simplify(sp.expand_log(sp.expand(expression)))
    short = sp.expand(simple)
    return short if short.count_ops() <= simple.count_ops() else simple


def is_zero(expression: sp.Expr) -> bool:
    """Return whether an expression is shown to vanish identically by rewriting it.

    False means "not shown": to refute an identity, exhibit a point at which it fails.
    """
    expression = sp.sympify(expression)
    if expression.is_rational_function():
        return bool(_rational(expression) == 0)
    ways: tuple[Callable[[sp.Expr], sp.Expr], ...] = (
        sp.expand,
        lambda e: sp.simplify(sp.expand_log(sp.expand_func(e))),
        lambda e: sp.simplify(sp.expand_log(sp.logcombine(e, force=True), force=True)),
    )
    return any(way(expression) == 0 for way in ways)


def field_inverse(matrix: sp.Matrix) -> sp.Matrix:
    """Invert a matrix over the field of rational functions of whatever its entries are made of.

    Gaussian elimination on sympy expressions lets them swell (minutes for a 5 × 5 Fisher matrix); over a field every
    intermediate entry is kept in lowest terms (milliseconds).
    """
    return DomainMatrix.from_Matrix(matrix).to_field().inv().to_Matrix().applyfunc(sp.factor)


def solve_stepwise(equations: Iterable[sp.Expr], unknowns: Sequence[sp.Symbol]) -> Mapping[sp.Symbol, sp.Expr] | None:
    """Solve equations = 0, those with a single unknown left first; None when no single closed form is found."""
    found: dict[sp.Symbol, sp.Expr] = {}
    left = [sp.sympify(equation) for equation in equations]
    while left:
        missing = [u for u in unknowns if u not in found]
        single = [e for e in left if len(e.free_symbols & set(missing)) == 1]
        batch = single[:1] or left
        if any(e.has(*SPECIAL) for e in batch):
            return None
        targets = [u for u in missing if any(e.has(u) for e in batch)]
        try:
            solutions = sp.solve(batch, targets, dict=True)
        except NotImplementedError:
            return None
        if len(solutions) != 1 or set(solutions[0]) != set(targets):
            return None
        found.update({u: tidy(value) for u, value in solutions[0].items()})
        left = [e for e in (tidy(e.subs(found)) for e in left if e not in batch) if e != 0]
    return found if len(found) == len(unknowns) else None


def indexed(symbol: sp.Symbol, index: str) -> sp.Symbol:
    """Return the same symbol, with the same assumptions, for another distribution (k, g or 0)."""
    separator = "," if "_" in symbol.name else "_"
    return sp.Symbol(f"{symbol.name}{separator}{index}", **symbol.assumptions0)


def _collect(expression: sp.Expr) -> sp.Expr | None:
    """Write rational + Σ rational · log, log Γ or ψ; None when it is not of that form."""
    generators = sorted(expression.atoms(sp.log, *SPECIAL), key=sp.default_sort_key)
    tidied = {g: _tidy_call(g) for g in generators}
    calls = {call for value in tidied.values() for call in value.atoms(sp.log, *SPECIAL)}
    names = {call: sp.Dummy() for call in sorted(calls, key=sp.default_sort_key)}
    linear = expression.subs({g: value.subs(names) for g, value in tidied.items()}, simultaneous=True)
    symbols = list(names.values())
    if not symbols or not linear.is_rational_function() or linear.has(*SPECIAL, sp.log):
        return None
    back = {symbol: g for g, symbol in names.items()}
    slopes = [_rational(sp.diff(linear, symbol)) for symbol in symbols]
    if any(slope.free_symbols & set(symbols) for slope in slopes):
        return _rational(linear).subs(back, simultaneous=True)
    constant = _rational(linear - sp.Add(*(slope * symbol for slope, symbol in zip(slopes, symbols, strict=True))))
    return sp.Add(constant, *(slope * back[symbol] for slope, symbol in zip(slopes, symbols, strict=True)))


def _tidy_call(call: sp.Expr) -> sp.Expr:
    """Tidy the arguments, and write log(2/x) as log 2 − log x (arguments are positive here)."""
    arguments = [_rational(a) if a.is_rational_function() else a for a in call.args]
    if isinstance(call, sp.log):
        top, bottom = arguments[0].as_numer_denom()
        if top.is_Rational and top.is_positive and bottom != 1:
            return sp.log(top) - sp.log(bottom)
    return call.func(*arguments)


def _rational(expression: sp.Expr) -> sp.Expr:
    """Lowest terms, factored; the arithmetic is done in the field of fractions, where nothing swells."""
    symbols = sorted(expression.free_symbols, key=lambda symbol: symbol.name)
    if not symbols or not all(number.is_Rational for number in expression.atoms(sp.Number, sp.NumberSymbol)):
        return sp.factor(expression)
    element = FracField(symbols, sp.QQ).from_expr(expression)
    return _plain_signs(sp.factor(element.as_expr()))


def _plain_signs(expression: sp.Expr) -> sp.Expr:
    """Write −p/(p − 1) as p/(1 − p)."""
    coefficient, rest = expression.as_coeff_Mul()
    if not coefficient.is_negative:
        return expression
    factors = list(sp.Mul.make_args(rest))
    for n, factor in enumerate(factors):
        base, power = factor.as_base_exp()
        if (
            base.is_Add
            and power.is_Integer
            and power % 2
            and any(term.could_extract_minus_sign() for term in base.args)
        ):
            factors[n] = (-base) ** power
            return -coefficient * sp.Mul(*factors)
    return expression
