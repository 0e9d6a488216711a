"""The families of the project, each given by T, h and A(λ); everything else is derived.

Gaussians come in the papers' statistic T = (θ, θθᵀ); `in_code` rescales it to that of `bayesadmm_np.families`.
Families are immutable and made once, so that what was derived for one is not derived again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import sympy as sp

from .._errors import ArgumentError
from .family import SymbolicFamily, moment_symbols

HALF = sp.Rational(1, 2)
Structure = Literal["unit", "fixed", "diagonal", "full"]


@cache
def gaussian(structure: Structure = "diagonal", dim: int = 1) -> SymbolicFamily:
    """Gaussians of Table 3: covariance I, fixed precision S, S = diag(s), or any S.

    Parameters
    ----------
    structure : {"unit", "fixed", "diagonal", "full"}, default "diagonal"
    dim : int, default 1

    Raises
    ------
    ValueError
        When the structure is unknown.

    Examples
    --------
    >>> gaussian("diagonal").natural_of_parameters, in_code(gaussian("diagonal")).natural_of_parameters
    ((m*s, -s/2), (m*s, s))
    """
    builders = {"unit": _unit, "fixed": _fixed, "diagonal": _diagonal, "full": _full}
    if structure not in builders:
        raise ValueError(f"structure must be one of {', '.join(builders)}, got {structure!r}.")
    return builders[structure](dim)


def in_code(family: SymbolicFamily) -> SymbolicFamily:
    """Return a Gaussian in the information form T = (θ, −½θθᵀ) of `bayesadmm_np.families`."""
    dim = len(family.theta)
    return family.with_statistic([1] * dim + [-HALF] * (len(family.natural) - dim))


def _unit(dim: int) -> SymbolicFamily:
    theta, lam, m = _vector("theta", dim), _vector("lambda", dim, always=True), _vector("m", dim)
    return SymbolicFamily(
        name="gaussian-unit",
        theta=theta,
        natural=lam,
        statistic=theta,
        log_partition=sum(x**2 for x in lam) / 2,
        log_base_measure=-sum(x**2 for x in theta) / 2 - dim * sp.log(2 * sp.pi) / 2,
        parameters=dict(zip(m, moment_symbols(dim), strict=True)),
        sites=_names("v", dim),
        title="Gaussian with unit covariance, N(m, I)",
    )


def _fixed(dim: int) -> SymbolicFamily:
    theta, lam, m = _vector("theta", dim), _vector("lambda", dim, always=True), _vector("m", dim)
    S = _symmetric("S", dim)
    point, row = sp.Matrix(theta), sp.Matrix(lam)
    return SymbolicFamily(
        name="gaussian-fixed",
        theta=theta,
        natural=lam,
        statistic=theta,
        log_partition=sp.factor((row.T * S.inv() * row)[0]) / 2,
        log_base_measure=-sp.expand((point.T * S * point)[0]) / 2 + sp.log(S.det()) / 2 - dim * sp.log(2 * sp.pi) / 2,
        parameters=dict(zip(m, moment_symbols(dim), strict=True)),
        constants=_upper(S),
        sites=_names("v", dim),
        title="Gaussian of fixed precision, N(m, S⁻¹)",
    )


def _diagonal(dim: int) -> SymbolicFamily:
    theta, m, s = _vector("theta", dim), _vector("m", dim), _vector("s", dim, positive=True)
    linear = [sp.Symbol(f"lambda_{i + 1}", real=True) for i in range(dim)]
    square = [sp.Symbol(f"lambda_{dim + i + 1}", negative=True) for i in range(dim)]
    mu = moment_symbols(2 * dim)
    A = sum(-(a**2) / (4 * b) - sp.log(-2 * b) / 2 + sp.log(2 * sp.pi) / 2 for a, b in zip(linear, square, strict=True))
    means = dict(zip(m, mu[:dim], strict=True))
    precisions = {s[i]: 1 / (mu[dim + i] - mu[i] ** 2) for i in range(dim)}
    return SymbolicFamily(
        name="gaussian",
        theta=theta,
        natural=[*linear, *square],
        statistic=[*theta, *(x**2 for x in theta)],
        log_partition=A,
        domain=[b < 0 for b in square],
        parameters=means | precisions,
        sites=(*_names("v", dim), *_names("u", dim)),
        title="Gaussian, mean and precision learned" + (", diagonal" if dim > 1 else " (one coordinate of Alg. 1)"),
    )


def _full(dim: int) -> SymbolicFamily:
    theta, m = _vector("theta", dim), _vector("m", dim)
    lam = [sp.Symbol(f"lambda_{i + 1}", real=True) for i in range(dim)]
    pairs = [(i, j) for i in range(dim) for j in range(i, dim)]
    packed = [
        sp.Symbol(f"lambda_{dim + n + 1}", **({"negative": True} if i == j else {"real": True}))
        for n, (i, j) in enumerate(pairs)
    ]
    L = _unpack(packed, dim)
    row, mu = sp.Matrix(lam), moment_symbols(dim + len(pairs))
    # ⟨L, θθᵀ⟩ counts an off-diagonal entry twice: its packed statistic is 2θ_iθ_j, and the moment with it
    seconds = _unpack(
        [mu[dim + n] / (1 if i == j else 2) for n, (i, j) in enumerate(pairs)],
        dim,
    )
    first = sp.Matrix(mu[:dim])
    precision = (seconds - first * first.T).inv().applyfunc(sp.factor)
    S = _symmetric("S", dim)
    A = -sp.factor((row.T * L.inv() * row)[0]) / 4 - sp.log((-2 * L).det()) / 2 + dim * sp.log(2 * sp.pi) / 2
    return SymbolicFamily(
        name="gaussian-full",
        theta=theta,
        natural=[*lam, *packed],
        statistic=[*theta, *((1 if i == j else 2) * theta[i] * theta[j] for i, j in pairs)],
        log_partition=A,
        domain=[(-2 * L)[:n, :n].det() > 0 for n in range(1, dim + 1)],
        parameters=dict(zip(m, mu[:dim], strict=True)) | {S[i, j]: precision[i, j] for i, j in pairs},
        sites=(*_names("v", dim), *(entry.name.replace("S", "V") for entry in _upper(S))),
        title="Gaussian, mean and full precision learned",
    )


@cache
def gamma() -> SymbolicFamily:
    """Gamma(shape a, rate b), T = (log θ, θ)."""
    theta = sp.Symbol("theta", positive=True)
    first, second = sp.Symbol("lambda_1", real=True), sp.Symbol("lambda_2", negative=True)
    a, b = sp.symbols("a b", positive=True)
    return SymbolicFamily(
        name="gamma",
        theta=[theta],
        natural=[first, second],
        statistic=[sp.log(theta), theta],
        log_partition=sp.loggamma(first + 1) - (first + 1) * sp.log(-second),
        domain=[first > -1, second < 0],
        support=sp.Interval.open(0, sp.oo),
        parameters={a: first + 1, b: -second},
        sites=("s", "n"),
        title="Gamma, shape a and rate b",
    )


@cache
def beta() -> SymbolicFamily:
    """Beta(a, b), T = (log θ, log(1 − θ))."""
    theta = sp.Symbol("theta", positive=True)
    first, second = sp.symbols("lambda_1 lambda_2", real=True)
    a, b = sp.symbols("a b", positive=True)
    return SymbolicFamily(
        name="beta",
        theta=[theta],
        natural=[first, second],
        statistic=[sp.log(theta), sp.log(1 - theta)],
        log_partition=sp.loggamma(first + 1) + sp.loggamma(second + 1) - sp.loggamma(first + second + 2),
        domain=[first > -1, second > -1],
        support=sp.Interval.open(0, 1),
        parameters={a: first + 1, b: second + 1},
        sites=("s", "f"),
        title="Beta(a, b)",
    )


@cache
def dirichlet(dim: int = 3) -> SymbolicFamily:
    """Dirichlet(α_1 … α_K) on the simplex, K = `dim`, T = log θ."""
    theta = [sp.Symbol(f"theta_{i + 1}", positive=True) for i in range(dim)]
    lam = [sp.Symbol(f"lambda_{i + 1}", real=True) for i in range(dim)]
    a = [sp.Symbol(f"a_{i + 1}", positive=True) for i in range(dim)]
    return SymbolicFamily(
        name="dirichlet",
        theta=theta,
        natural=lam,
        statistic=[sp.log(x) for x in theta],
        log_partition=sum(sp.loggamma(x + 1) for x in lam) - sp.loggamma(sum(lam) + dim),
        domain=[x > -1 for x in lam],
        support=sp.Interval.open(0, 1),
        parameters={p: x + 1 for p, x in zip(a, lam, strict=True)},
        sites=_names("n", dim),
        title=f"Dirichlet on {dim} outcomes, concentrations a",
    )


@cache
def poisson() -> SymbolicFamily:
    """Poisson(rate r), T = θ, h = 1/θ!."""
    theta, lam = sp.Symbol("theta", nonnegative=True), sp.Symbol("lambda_1", real=True)
    return SymbolicFamily(
        name="poisson",
        theta=[theta],
        natural=[lam],
        statistic=[theta],
        log_partition=sp.exp(lam),
        log_base_measure=-sp.loggamma(theta + 1),
        support=sp.S.Naturals0,
        parameters={sp.Symbol("r", positive=True): moment_symbols(1)[0]},
        sites=("v",),
        title="Poisson of rate r",
    )


@cache
def bernoulli() -> SymbolicFamily:
    """Bernoulli(p) on {0, 1}, T = θ, λ = log p/(1 − p)."""
    theta, lam = sp.Symbol("theta", nonnegative=True), sp.Symbol("lambda_1", real=True)
    return SymbolicFamily(
        name="bernoulli",
        theta=[theta],
        natural=[lam],
        statistic=[theta],
        log_partition=sp.log(1 + sp.exp(lam)),
        support=sp.FiniteSet(0, 1),
        parameters={sp.Symbol("p", positive=True): moment_symbols(1)[0]},
        sites=("v",),
        title="Bernoulli of success probability p",
    )


@cache
def inverse_gaussian() -> SymbolicFamily:
    """Inverse Gaussian of mean m and shape c, T = (θ, 1/θ)."""
    theta = sp.Symbol("theta", positive=True)
    first, second = sp.symbols("lambda_1 lambda_2", negative=True)
    mu = moment_symbols(2)
    m, c = sp.symbols("m c", positive=True)
    return SymbolicFamily(
        name="inverse-gaussian",
        theta=[theta],
        natural=[first, second],
        statistic=[theta, 1 / theta],
        log_partition=-2 * sp.sqrt(-first) * sp.sqrt(-second) - sp.log(-2 * second) / 2,
        log_base_measure=-sp.log(2 * sp.pi) / 2 - 3 * sp.log(theta) / 2,
        domain=[first < 0, second < 0],
        support=sp.Interval.open(0, sp.oo),
        parameters={m: mu[0], c: 1 / (mu[1] - 1 / mu[0])},
        title="Inverse Gaussian of mean m and shape c",
    )


FAMILIES: dict[str, Callable[[], SymbolicFamily]] = {
    "gaussian-unit": lambda: gaussian("unit"),
    "gaussian-fixed": lambda: gaussian("fixed"),
    "gaussian": lambda: gaussian("diagonal"),
    "gaussian-full": lambda: gaussian("full", 2),
    "gamma": gamma,
    "beta": beta,
    "dirichlet": dirichlet,
    "poisson": poisson,
    "bernoulli": bernoulli,
    "inverse-gaussian": inverse_gaussian,
}
"""Name → function that makes the family; add one line to add a family to `bayesadmm derive`."""


SHORT = {"isotropic": "gaussian-unit", "fixed": "gaussian-fixed", "diagonal": "gaussian", "full": "gaussian-full"}
"""Names that the options of commands have for Gaussians."""


def by_name(name: str) -> SymbolicFamily:
    """Return a built-in family; case and "_" in its name do not matter, and Gaussians have short names."""
    key = str(name).strip().lower().replace("_", "-")
    if SHORT.get(key, key) not in FAMILIES:
        raise ArgumentError("family", f"must be one of {', '.join((*FAMILIES, *SHORT))}", repr(name))
    return FAMILIES[SHORT.get(key, key)]()


def _names(letter: str, dim: int) -> tuple[str, ...]:
    return (letter,) if dim == 1 else tuple(f"{letter}_{i + 1}" for i in range(dim))


def _vector(letter: str, dim: int, always: bool = False, **assumptions: bool) -> list[sp.Symbol]:
    names = _names(letter, dim) if not always else [f"{letter}_{i + 1}" for i in range(dim)]
    return [sp.Symbol(name, **(assumptions or {"real": True})) for name in names]


def _symmetric(letter: str, dim: int) -> sp.Matrix:
    if dim == 1:
        return sp.Matrix([[sp.Symbol(letter, positive=True)]])
    entry = lambda i, j: sp.Symbol(  # noqa: E731
        f"{letter}_{min(i, j) + 1}{max(i, j) + 1}", **({"positive": True} if i == j else {"real": True})
    )
    return sp.Matrix(dim, dim, entry)


def _upper(matrix: sp.Matrix) -> tuple[sp.Symbol, ...]:
    return tuple(matrix[i, j] for i in range(matrix.rows) for j in range(i, matrix.cols))


def _unpack(packed: list[sp.Expr], dim: int) -> sp.Matrix:
    entries = iter(packed)
    matrix = sp.zeros(dim, dim)
    for i in range(dim):
        for j in range(i, dim):
            matrix[i, j] = matrix[j, i] = next(entries)
    return matrix
