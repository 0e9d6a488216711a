"""What the property tests draw: sizes, conditioning, skew and a seed. Families and losses make the valid values.

The pattern is that of scipy's stats tests: Hypothesis never draws an array. It draws a `Case`, and the functions below
turn the case into priors, conjugate coefficients and data sets that are valid by construction.
"""

import itertools
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

import bayesadmm_np as ba
from bayesadmm_np.families import Natural
from bayesadmm_np.losses import Delta, Exact, LinearInStatistics
from oracles.geometry import composition
from oracles.problems import EPS, PHI, Z, loss
from oracles.textbook import crew, replied

INNER = 1e-11
"""Tolerance of the clients' solver: far above the rounding error of the drawn problems, far below every bound."""
SOLVER = ba.clients.VariationalNewton(tol=INNER)

GAUSSIANS = ("full", "diagonal", "block", "fixed", "isotropic")
LEARNED = ("full", "diagonal", "block")
CONJUGATE = (*GAUSSIANS, "gamma", "beta", "dirichlet")


# ----------------------------------------------------------------------------------------------------
# Budgets, cases, broken twins
# ----------------------------------------------------------------------------------------------------


def budget(share):
    """Settings with a share of the profile's examples: 25 in the default profile, 500 in the wide one."""
    return settings(max_examples=max(2, round(share * settings().max_examples)))


@dataclass(frozen=True)
class Case:
    """Sizes, shape and seed of a problem.

    `decades` is log10 of the condition number of every precision; `skew` goes from 0 (rows dealt at random, even
    shares) to 1 (rows sorted by label, shares that differ by orders of magnitude).
    """

    d: int
    n_clients: int
    rows: int
    decades: float
    skew: float
    seed: int

    @property
    def rng(self):
        return np.random.default_rng(self.seed)

    def other(self, step=1):
        """The same sizes with another seed."""
        return replace(self, seed=self.seed + step)


def cases(max_d=6, max_clients=6, max_rows=8, max_decades=2.0):
    return st.builds(
        Case,
        d=st.integers(1, max_d),
        n_clients=st.integers(1, max_clients),
        rows=st.integers(1, max_rows),
        decades=st.floats(0, max_decades),
        skew=st.floats(0, 1),
        seed=st.integers(0, 2**31),
    )


def log_uniform(low, high):
    return st.floats(np.log10(low), np.log10(high)).map(lambda x: float(10**x))


def assert_some_fail(check, *strategies, examples=50):
    """Assert that drawn cases hold a counterexample to `check`; for twins that are right now and then."""

    def is_refuted(drawn):
        try:
            check(*drawn)
        except AssertionError:
            return True
        return False

    looking = settings(max_examples=examples, database=None, phases=[Phase.generate])
    find(st.tuples(*strategies), is_refuted, settings=looking, random=Random(0))


# ----------------------------------------------------------------------------------------------------
# Members of families
# ----------------------------------------------------------------------------------------------------


def spectrum(rng, d, decades):
    """Eigenvalues around one whose ratio is at most 10^decades (equal to it for d >= 2)."""
    exponents = rng.uniform(-0.5, 0.5, d)
    if d > 1:
        exponents[:2] = -0.5, 0.5
    return 10.0 ** (decades * exponents)


def spd(rng, d, decades):
    """A random symmetric positive definite matrix."""
    basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
    matrix = (basis * spectrum(rng, d, decades)) @ basis.T
    return 0.5 * (matrix + matrix.T)


def member(family, case, dim=None, delta=None):
    """A member, usable as a prior: its mean is not zero, its precision not one."""
    rng, d = case.rng, dim or case.d
    mean = 0.5 * rng.standard_normal(d)
    if family == "full":
        return ba.families.FullGaussian(mean, spd(rng, d, case.decades))
    if family == "diagonal":
        return ba.families.DiagonalGaussian(mean, spectrum(rng, d, case.decades))
    if family == "block":
        sizes = composition(np.random.default_rng(d), d)  # of the size only, so that two members fit each other
        return ba.families.BlockDiagonalGaussian(mean, [spd(rng, n, case.decades) for n in sizes])
    if family == "fixed":
        return ba.families.FixedPrecisionGaussian(mean, spd(rng, d, case.decades))
    if family == "isotropic":
        return ba.families.IsotropicGaussian(mean, 10 ** rng.uniform(-0.5, 0.5) if delta is None else delta)
    high = 10 ** (0.5 * case.decades)
    if family == "gamma":
        return ba.families.Gamma(rng.uniform(0.4, 1 + high, d), rng.uniform(0.3, 1 + high, d))
    if family == "beta":
        return ba.families.Beta(rng.uniform(0.4, 1 + high, d), rng.uniform(0.4, 1 + high, d))
    return ba.families.Dirichlet(rng.uniform(0.4, 1 + high, d + 1))


def other_member(q, case):
    """Another member of q's family (the same precision where that is fixed)."""
    if isinstance(q, ba.families.FixedPrecisionGaussian | ba.families.IsotropicGaussian):
        return q.start().with_expectation(ba.families.Expectation(case.other().rng.standard_normal(q.dim)))
    names = {"FullGaussian": "full", "DiagonalGaussian": "diagonal", "BlockDiagonalGaussian": "block"}
    name = type(q).__name__
    return member(names.get(name, name.lower()), case.other(), dim=None if name == "Dirichlet" else q.dim)


def shares(case, rng):
    """How much each client has, of mean one: even without skew, spread over orders of magnitude with it."""
    return np.maximum(case.n_clients * rng.dirichlet(np.full(case.n_clients, 10 ** (1 - 2 * case.skew))), 1e-3)


# ----------------------------------------------------------------------------------------------------
# Conjugate problems: ℓ_k = −⟨c_k, T⟩ with c_k in the cone of directions that never leave the domain
# ----------------------------------------------------------------------------------------------------


def evidence(family, prior, case, size, rng):
    """Coefficients of some data of this size."""
    d = prior.dim
    if family in GAUSSIANS:
        linear = size * rng.standard_normal(d)
        parts = {
            "full": lambda: [spd(rng, d, case.decades)],
            "diagonal": lambda: [spectrum(rng, d, case.decades)],
            "block": lambda: [spd(rng, part.shape[0], case.decades) for part in prior.factor.parts],
        }.get(family, list)()
        return Natural(linear, *(size * part for part in parts))
    counts = [size * rng.uniform(0.1, 1.0, d) for _ in prior.natural.parts]
    if family == "gamma":
        counts[1] = -counts[1]
    return Natural(*counts)


def conjugate(family, case, delta=None):
    """A prior, its clients, and two halves of every client's coefficients (c_k is their sum)."""
    prior, rng = member(family, case, delta=delta), case.other(7).rng
    halves = [
        (evidence(family, prior, case, share, rng), evidence(family, prior, case, share, rng))
        for share in shares(case, rng)
    ]
    return prior, [LinearInStatistics(a + b, n_rows=k + 1) for k, (a, b) in enumerate(halves)], halves


def ridge(case):
    """The same with least squares, the conjugate loss of the full Gaussian that is not written as ⟨c, T⟩."""
    prior, rng = member("full", case), case.other(7).rng
    clients, halves = [], []
    for share in shares(case, rng):
        X = np.sqrt(share) * rng.standard_normal((2 * case.rows, case.d))
        y = rng.standard_normal(2 * case.rows)
        clients.append(ba.losses.LeastSquares(X, y))
        pieces = ((X[: case.rows], y[: case.rows]), (X[case.rows :], y[case.rows :]))
        halves.append(tuple(Natural(A.T @ b, A.T @ A) for A, b in pieces))
    return prior, clients, halves


# ----------------------------------------------------------------------------------------------------
# Data: rows dealt to clients with skew
# ----------------------------------------------------------------------------------------------------

CLASSES = {"softmax": 3, "softmax2": 2}


def n_parameters(name, case):
    return CLASSES[name] * min(case.d, 2) if name in CLASSES else case.d


def data(name, case):
    """Return (X, y) of each client; every client has a row at least."""
    rng = case.other(11).rng
    p = min(case.d, 2) if name in CLASSES else case.d
    n = case.n_clients * case.rows
    # columns of different scale, within a factor of three each way, of 1.4 where exp(f) would explode
    spread = min(case.decades, 0.3 if name == "poisson" else 1.0)
    X = 0.7 * rng.standard_normal((n, p)) * 10 ** (spread * rng.uniform(-0.5, 0.5, p))
    X[:, 0] = 1.0
    f = X @ rng.standard_normal(p)
    y = {
        "logistic": lambda: rng.random(n) < expit(f),
        "poisson": lambda: rng.poisson(np.exp(np.clip(0.5 * f, -3, 1.5))),
        "squares": lambda: f + 0.3 * rng.standard_normal(n),
        "softmax": lambda: rng.integers(0, 3, n),
        "softmax2": lambda: rng.integers(0, 2, n),
    }[name]().astype(float)
    spread = (y - y.mean()) / (y.std() + 1e-9)
    order = np.argsort(case.skew * spread + (1 - case.skew) * rng.standard_normal(n))
    weights = shares(case, rng)
    sizes = 1 + rng.multinomial(n - case.n_clients, weights / weights.sum())
    edges = np.cumsum([0, *sizes])
    return [(X[order[a:b]], y[order[a:b]]) for a, b in itertools.pairwise(edges)]


def team(name, parts):
    return [loss(name, X, y) for X, y in parts]


# ----------------------------------------------------------------------------------------------------
# Rounds from any state
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """The server's posterior, the sites and the clients' posteriors after a round."""

    q_g: ba.families.ExponentialFamily
    sites: tuple
    posteriors: tuple = ()


def one_round(row, clients, prior, turn, *, solver=SOLVER, rule=None):
    """One round of a row from any state: `run` starts at the prior only."""
    workers, server = crew(row, clients, prior, rule)
    closed = all(c.is_quadratic or c.is_linear_in_statistics for c in clients)
    workers = [replace(worker, solver=ba.clients.ClosedForm() if closed else solver) for worker in workers]
    replies = [
        replied(worker, turn.q_g, site, worker.expect(turn.q_g), k)
        for k, (worker, site) in enumerate(zip(workers, turn.sites, strict=True))
    ]
    assert all(reply.status.is_usable for reply in replies), [reply.status for reply in replies]
    sites, naturals = ([getattr(reply, name) for reply in replies] for name in ("site", "natural"))
    natural = server.gather(sites, naturals, row.server_alpha(len(clients)))
    q_g = turn.q_g.with_natural(natural)
    return Turn(q_g, tuple(sites), tuple(q_g.with_natural(n) for n in naturals))


def largest(*naturals):
    """Largest entry, at least one."""
    return max(1.0, *(float(np.abs(part).max()) for natural in naturals for part in natural.parts))


def size(natural):
    """Largest entry."""
    return max(float(np.abs(part).max()) for part in natural.parts)


def total(naturals):
    result = naturals[0].zeros()
    for natural in naturals:
        result = result + natural
    return result


# ----------------------------------------------------------------------------------------------------
# Natural gradients by plain sums over points, sharing nothing with the library
# ----------------------------------------------------------------------------------------------------


def slopes(name, f, y):
    """ℓ' (n, M, C) and ℓ'' (n, M, C, C) of the predictors f (n, M, C)."""
    if name in CLASSES:
        p = softmax(f, axis=2)
        own = np.eye(f.shape[2])[y.astype(int)][:, None, :]
        return p - own, p[..., :, None] * (np.eye(f.shape[2]) - p[..., None, :])
    y = y[:, None, None]
    if name == "logistic":
        return expit(f) - y, (expit(f) * expit(-f))[..., None]
    if name == "poisson":
        return np.exp(f) - y, np.exp(f)[..., None]
    return f - y, np.ones_like(f)[..., None]


def predictors(name, X, q, rule):
    """Predictors (n, M, C) at the points of a rule, and their weights (M,)."""
    outputs = CLASSES.get(name, 1)
    lifted = np.stack([np.kron(np.eye(outputs), x) for x in X])
    mean = lifted @ q.mean
    if rule.is_delta:
        return mean[:, None, :], np.ones(1)
    covariance = lifted @ q.covariance_matrix @ lifted.transpose(0, 2, 1)
    if isinstance(rule, Exact) and outputs == 2:  # only the difference of the two predictors matters
        contrast = np.array([-1.0, 1.0])
        spread = np.sqrt(contrast @ covariance @ contrast)
        difference = (mean @ contrast)[:, None] + spread[:, None] * Z
        return np.stack([np.zeros_like(difference), difference], axis=2), PHI
    if isinstance(rule, Exact) and name == "poisson":  # E exp(f) = exp(mean + ½ variance): evaluation at one point
        return (mean + 0.5 * covariance[:, :, 0])[:, None, :], np.ones(1)
    points, weights = (Z[:, None], PHI) if isinstance(rule, Exact) else rule.nodes(outputs)
    return mean[:, None, :] + points @ np.linalg.cholesky(covariance).transpose(0, 2, 1), weights


def pulled_back(X, slope, curvature):
    """∇ℓ (d,) and ∇²ℓ (d, d) from the rows' slopes (n, C) and curvatures (n, C, C)."""
    d = slope.shape[1] * X.shape[1]
    hessian = sum(np.kron(c, np.outer(x, x)) for c, x in zip(curvature, X, strict=True))
    return (slope.T @ X).ravel(), hessian.reshape(d, d)


def natural_gradient(q, gradient, hessian, *, half=1.0):
    """(g − Hm, −H) in the family's structure (Eq. 48 and 60), or g (Eq. 21); `half` breaks it."""
    if not q.learns_precision:
        return Natural(gradient)
    if isinstance(q, ba.families.FullGaussian):
        parts = [hessian]
    elif isinstance(q, ba.families.DiagonalGaussian):
        parts = [np.diag(hessian)]
    else:
        parts = [hessian[rows, rows] for rows in q.factor.slices]
    edges = np.cumsum([0, *(len(part) for part in parts)])
    pieces = [q.mean[a:b] for a, b in itertools.pairwise(edges)]
    bent = [part @ m if part.ndim == 2 else part * m for part, m in zip(parts, pieces, strict=True)]
    return Natural(gradient - half * np.concatenate(bent), *(-half * part for part in parts))


def own_natural_gradient(name, part, q, rule, **twin):
    """∇_μ E_q[ℓ] by the sums above."""
    X, y = part
    f, weights = predictors(name, X, q, rule)
    slope, curvature = slopes(name, f, y)
    means = np.einsum("nmc,m->nc", slope, weights), np.einsum("nmce,m->nce", curvature, weights)
    gradient, hessian = pulled_back(X, *means)
    return natural_gradient(q, gradient, hessian if rule != Delta(1) else 0.0 * hessian, **twin)


def fisher(q, difference):
    """Fisher length of a natural difference at q, not divided by the number of parameters."""
    return float(np.linalg.norm(q.whiten(difference)))


def rounding(count, *naturals):
    """`count` roundings of numbers as large as these."""
    return count * EPS * largest(*naturals)
