"""Formulas as one line of text, or as LaTeX, in the notation of the papers."""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

GREEK = {"lambda": "λ", "mu": "μ", "eta": "η", "rho": "ρ", "alpha": "α", "theta": "θ", "gamma": "γ"}


def text(expression: Any) -> str:
    """Write an expression as one line."""
    return str(_Text().doprint(expression))


def latex(expression: Any) -> str:
    """Write an expression as LaTeX, without dollar signs."""
    return str(_Latex().doprint(expression))


class _Ordered:
    """Positive terms first, client before server: m_k − m_g, not −m_g + m_k."""

    def _as_ordered_terms(self, expr: sp.Expr, order: Any = None) -> list[sp.Expr]:
        terms = list(sp.Add.make_args(expr)) if expr.is_Add else [expr]
        return sorted(terms, key=lambda term: (_is_negative(term), _rank(term), sp.default_sort_key(term)))


class _Text(_Ordered, StrPrinter):
    def _print_Symbol(self, expr: sp.Symbol) -> str:
        head, _, tail = expr.name.partition("_")
        return GREEK.get(head, head) + (f"_{tail}" if tail else "")

    def _print_polygamma(self, expr: sp.Expr) -> str:
        order, argument = expr.args
        ticks = "'" * int(order) if order.is_Integer else f"^({order})"
        return f"ψ{ticks}({self._print(argument)})"

    def _print_loggamma(self, expr: sp.Expr) -> str:
        return f"log Γ({self._print(expr.args[0])})"

    def _print_Derivative(self, expr: sp.Expr) -> str:
        return f"∂{expr.expr.func.__name__}/∂{self._print(expr.variables[0])}"

    def _print_Pow(self, expr: sp.Expr, rational: bool = False) -> str:
        return str(super()._print_Pow(expr, rational)).replace("**", "^")

    def _print_Relational(self, expr: sp.Expr) -> str:
        sign = {"==": "=", "<=": "≤", ">=": "≥"}.get(expr.rel_op, expr.rel_op)
        return f"{self._print(expr.lhs)} {sign} {self._print(expr.rhs)}"


class _Latex(_Ordered, LatexPrinter):
    def _print_Derivative(self, expr: sp.Expr) -> str:
        return rf"\frac{{\partial {expr.expr.func.__name__}}}{{\partial {self._print(expr.variables[0])}}}"

    def _print_loggamma(self, expr: sp.Expr, exp: Any = None) -> str:
        return rf"\log\Gamma\left({self._print(expr.args[0])}\right)"


def _is_negative(term: sp.Expr) -> bool:
    return bool(term.as_coeff_Mul()[0].is_negative)


def _rank(term: sp.Expr) -> int:
    """Means first, then clients, server, prior."""
    names = " ".join(symbol.name for symbol in term.free_symbols)
    if term.has(sp.Function("Mean")):
        return 0
    return 1 + next((n for n, index in enumerate("kg0") if f"_{index}" in names or f",{index}" in names), 3)
