"""Bayesian-ADMM for one family: client (Eq. 32), dual (Eq. 16, 33) and server (Eq. 54) in the family's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import sympy as sp

from .algebra import field_inverse, indexed, is_zero, tidy
from .family import SymbolicFamily

RHO, ALPHA = sp.Symbol("rho", positive=True), sp.Symbol("alpha", positive=True)
MEAN, SUM = sp.Function("Mean"), sp.Function("Sum")
LARGEST = 150
"""Natural gradients with more operations than this are left as a linear system."""


@dataclass(frozen=True)
class Updates:
    """The method that a family makes, as equations; k marks the client, g the server, 0 the prior.

    Examples
    --------
    >>> from bayesadmm_np.theory import builtin, updates
    >>> for equation in updates(builtin.gamma()).server:
    ...     print(equation.lhs, "=", equation.rhs)
    a_g = alpha*(a_0 + Sum(s_k)) + (1 - alpha)*Mean(a_k)
    b_g = alpha*(b_0 + Sum(n_k)) + (1 - alpha)*Mean(b_k)
    """

    kl: sp.Expr  # KL(q_k‖q_g) in the ordinary parameters
    # ∇_μ L through the partial derivatives of L in the ordinary parameters; None when it would fill a page
    natural_gradient: tuple[sp.Expr, ...] | None
    optimality: tuple[sp.Equality, ...]  # Eq. 32, coordinate by coordinate; G_i are the components of ∇_μ L at q_k
    site: tuple[sp.Equality, ...]  # η_k in the dual's own coordinates, e.g. η = (v, −½V)
    dual: tuple[sp.Equality, ...]  # Eq. 16 in those coordinates; the right-hand side holds the old values
    server: tuple[sp.Equality, ...]  # Eq. 54 solved for the server's parameters; Mean and Sum run over the clients


@cache
def updates(family: SymbolicFamily) -> Updates:
    """Derive Bayesian-ADMM's three updates for a family.

    Nothing is copied from the paper: the client's objective L(μ) + ⟨η, μ⟩ + ρ KL is differentiated with respect to λ
    and multiplied by F⁻¹, and the server's stationarity condition is solved for the server's parameters.

    Raises
    ------
    ValueError
        When λ has no closed form in the family's parameters.
    ArithmeticError
        When the derived optimality condition cannot be shown to be Eq. 32: sympy cannot simplify this A.

    Examples
    --------
    >>> from bayesadmm_np.theory import builtin
    >>> for equation in updates(builtin.gaussian()).dual:
    ...     print(equation.lhs, "<-", equation.rhs)
    v_k <- rho*(-m_g*s_g + m_k*s_k) + v_k
    u_k <- rho*(-s_g + s_k) + u_k
    """
    scales, sites = _sites(family)
    at = {index: [family.in_parameters(lam, index) for lam in family.natural] for index in "kg0"}
    change = [k - g for k, g in zip(at["k"], at["g"], strict=True)]
    dual = tuple(
        sp.Eq(site, site + RHO * tidy(difference / scale), evaluate=False)
        for site, scale, difference in zip(sites, scales, change, strict=True)
    )
    return Updates(
        kl=_kl(family, at["g"]),
        natural_gradient=_natural_gradient(family),
        optimality=_optimality(family, change),
        site=tuple(
            sp.Eq(eta, scale * site, evaluate=False)
            for eta, scale, site in zip(_components("eta", len(sites)), scales, sites, strict=True)
        ),
        dual=dual,
        server=_server(family, at, scales, sites),
    )


def mean_over_clients(expression: sp.Expr, clients: set[sp.Symbol]) -> sp.Expr:
    """Write the mean over clients of an expression through means of what differs between clients."""
    terms = []
    for term in sp.Add.make_args(sp.expand(expression)):
        same, differs = term.as_independent(*clients, as_Add=False)
        terms.append(same if differs == 1 else same * MEAN(differs))
    return sp.Add(*terms)


def _components(letter: str, count: int) -> tuple[sp.Symbol, ...]:
    return tuple(sp.Symbol(f"{letter}_{i + 1},k", real=True) for i in range(count))


def _sites(family: SymbolicFamily) -> tuple[list[sp.Expr], list[sp.Symbol]]:
    """Units and symbols of a site's own coordinates."""
    if family.sites is None:
        return [sp.S.One] * len(family.natural), list(_components("eta", len(family.natural)))
    assert family.natural_of_parameters is not None
    scales = []
    for value in family.natural_of_parameters:
        own = value.free_symbols & set(family.parameters)
        slope = sp.diff(value, next(iter(own))) if len(own) == 1 else sp.S.One
        scales.append(slope if slope.is_Rational else sp.S.One)
    return scales, [indexed(sp.Symbol(name, real=True), "k") for name in family.sites]


def _kl(family: SymbolicFamily, other: list[sp.Expr]) -> sp.Expr:
    kl = family.kl(other)
    index = {p: indexed(p, "k") for p in family.parameters}
    assert family.natural_of_parameters is not None
    here = dict(zip(family.natural, family.natural_of_parameters, strict=True))
    return tidy(tidy(kl.subs(here, simultaneous=True)).subs(index, simultaneous=True))


def _natural_gradient(family: SymbolicFamily) -> tuple[sp.Expr, ...] | None:
    """(∂μ/∂p)⁻ᵀ ∂L/∂p."""
    parameters = list(family.parameters)
    means = sp.Matrix([family.in_parameters(mean) for mean in family.expectation])
    loss = sp.Function("L")(*parameters)
    slopes = [sp.Dummy() for _ in parameters]
    jacobian = means.jacobian(parameters)
    solved = field_inverse(jacobian).T * sp.Matrix(slopes)
    there = {s: sp.Derivative(loss, p) for s, p in zip(slopes, parameters, strict=True)}
    gradient = tuple(tidy(entry).subs(there) for entry in solved)
    return gradient if sum(entry.count_ops() for entry in gradient) <= LARGEST else None


def _optimality(family: SymbolicFamily, change: list[sp.Expr]) -> tuple[sp.Equality, ...]:
    """F⁻¹ ∇_λ of the client's objective, which has to come out as Eq. 32."""
    size = len(family.natural)
    slopes, eta, server = _components("G", size), _components("eta", size), family.naturals("g")
    kl_slope = family.natural_gradient(family.kl(server))
    for entry, lam, lam_g in zip(kl_slope, family.natural, server, strict=True):
        if not is_zero(entry - (lam - lam_g)):
            raise ArithmeticError(f"{family.name}: the natural gradient of KL is {entry}, not {lam - lam_g}.")
    return tuple(
        sp.Eq(g + e + RHO * tidy(difference), 0, evaluate=False)
        for g, e, difference in zip(slopes, eta, change, strict=True)
    )


def _server(
    family: SymbolicFamily, at: dict[str, list[sp.Expr]], scales: list[sp.Expr], sites: list[sp.Symbol]
) -> tuple[sp.Equality, ...]:
    clients = {indexed(p, "k") for p in family.parameters}
    gathered = [
        (1 - ALPHA) * mean_over_clients(k, clients) + ALPHA * (prior + scale * SUM(site))
        for k, prior, scale, site in zip(at["k"], at["0"], scales, sites, strict=True)
    ]
    right = dict(zip(family.natural, gathered, strict=True))
    server: dict[sp.Symbol, sp.Expr] = {}
    for p, value in family.parameters_of_natural.items():
        own = value.free_symbols & set(family.natural)
        if len(own) == 1 and value.is_polynomial(*own) and not sp.diff(value, *own).free_symbols & own:
            server[p] = _by_means(value.subs(right))
    known = {
        lam: family.in_parameters(lam, "g")
        for lam, own in zip(family.natural, family.natural_of_parameters or (), strict=True)
        if own.free_symbols & set(family.parameters) <= set(server)
    }
    for p, value in family.parameters_of_natural.items():
        if p not in server:
            names = {lam: sp.Dummy(positive=lam.is_positive, real=True) for lam in family.natural if lam not in known}
            written = tidy(value.subs(known | names, simultaneous=True))
            server[p] = written.subs({names[lam]: _by_means(right[lam]) for lam in names}, simultaneous=True)
    return tuple(sp.Eq(indexed(p, "g"), server[p], evaluate=False) for p in family.parameters)


def _by_means(expression: sp.Expr) -> sp.Expr:
    """Collect the means over clients; what is left is α times prior and sites."""
    expanded = sp.expand(expression)
    means = sorted(expanded.atoms(MEAN), key=sp.default_sort_key)
    rest = expanded.subs(dict.fromkeys(means, 0))
    collected = [sp.factor(expanded.coeff(mean)) * mean for mean in means]
    return sp.Add(*collected, sp.factor(rest))
