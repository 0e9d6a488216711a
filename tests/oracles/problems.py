"""Small problems that the tests of the splitting methods share; every one is a function of its seed."""

import itertools

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.families.coordinates import Coordinates

EPS = np.finfo(float).eps


# --- Losses and priors by name

FEATURES = {"logistic": 3, "poisson": 3, "squares": 3, "softmax": 2, "softmax2": 2}
DIM = {"logistic": 3, "poisson": 3, "squares": 3, "softmax": 6, "softmax2": 4}


def rows(name, rng, n):
    """Return a design with an intercept column, and labels that no plane separates."""
    X = 0.7 * rng.standard_normal((n, FEATURES[name]))
    X[:, 0] = 1.0
    f = X @ rng.standard_normal(FEATURES[name])
    y = {
        "logistic": lambda: rng.random(n) < 1 / (1 + np.exp(-f)),
        "poisson": lambda: rng.poisson(np.exp(0.5 * f)),
        "squares": lambda: f + 0.3 * rng.standard_normal(n),
        "softmax": lambda: rng.integers(0, 3, n),
        "softmax2": lambda: rng.integers(0, 2, n),
    }[name]()
    return X, np.asarray(y, dtype=float)


def loss(name, X, y, weights=None):
    if name.startswith("softmax"):
        return ba.losses.Softmax(X, y, n_classes=2 if name == "softmax2" else 3, weights=weights)
    made = {"logistic": ba.losses.Logistic, "poisson": ba.losses.Poisson, "squares": ba.losses.LeastSquares}
    return made[name](X, y, weights=weights)


def data(name, seed=0, sizes=(5, 8)):
    """Return (X, y) of each client."""
    rng = np.random.default_rng(seed)
    X, y = rows(name, rng, sum(sizes))
    edges = np.cumsum([0, *sizes])
    return [(X[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]


def team(name, seed=0, sizes=(5, 8)):
    """Return one loss a client."""
    return [loss(name, X, y) for X, y in data(name, seed, sizes)]


def spd(rng, d):
    root = rng.standard_normal((d, d + 2))
    return root @ root.T / (d + 2) + 0.5 * np.eye(d)


def blocks_of(d):
    return [d - d // 2, d // 2]


PRIORS = {
    "full": lambda mean, rng: ba.families.FullGaussian(mean, spd(rng, mean.size)),
    "diagonal": lambda mean, rng: ba.families.DiagonalGaussian(mean, rng.uniform(0.5, 2.0, mean.size)),
    "block": lambda mean, rng: ba.families.BlockDiagonalGaussian(mean, [spd(rng, n) for n in blocks_of(mean.size)]),
    "fixed": lambda mean, rng: ba.families.FixedPrecisionGaussian(mean, spd(rng, mean.size)),
    "isotropic": lambda mean, rng: ba.families.IsotropicGaussian(mean, 0.7),
}
LEARNED = ("full", "diagonal", "block")


def prior(family, dim, seed=1):
    """Return a prior whose mean is not zero and whose precision is not one."""
    rng = np.random.default_rng(seed)
    return PRIORS[family](0.4 * rng.standard_normal(dim), rng)


def skewed_logistic(seed, n_clients=3, d=2, rows_each=12, shift=1.5):
    """Return clients whose labels are nearly one class each: the hard case for duals (ρS_g − V_k leaves the cone)."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(n_clients):
        X = rng.standard_normal((rows_each, d)) + shift * rng.standard_normal(d)
        y = (rng.random(rows_each) < (0.1 if k % 2 else 0.9)).astype(float)
        clients.append(ba.losses.Logistic(X, y))
    return clients


def overshooting(seed):
    """Three sites' losses on which a full step overshoots, and a far mean, of a largest predictor of one.

    Columns are heavy, and counts (of odd seeds) large.
    """
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_t(2, size=(60, 2)), np.ones(60)])
    if seed % 2:
        y, make = rng.poisson(np.exp(np.clip(4 + X[:, 0], -10, 10))).astype(float), ba.losses.Poisson
    else:
        y, make = (rng.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(float), ba.losses.Logistic
    far = rng.standard_normal(3)
    return [make(X[k::3], y[k::3]) for k in range(3)], far / np.abs(X @ far).max()


def counts_of_far_columns():
    """Six sites' losses of counts, whose own fits may add up to a point where the loss is astronomical."""
    rng = np.random.default_rng(592)
    X = np.column_stack([rng.standard_t(1.5, size=(120, 3)), np.ones(120)])
    y = rng.poisson(np.exp(np.clip(X @ [0.3, 1.0, -0.5, -2.0], -10, 3))).astype(float)
    return [ba.losses.Poisson(X[k::6], y[k::6]) for k in range(6)]


# --- Distances


def vector(natural):
    """All entries of a natural parameter (matrices in full)."""
    return np.concatenate([np.ravel(part) for part in natural.parts])


def distance(a, b):
    """Largest entry of the difference, relative to the largest entry of either."""
    a, b = (vector(x) if isinstance(x, Coordinates) else np.ravel(x) for x in (a, b))
    return np.abs(a - b).max() / max(1.0, np.abs(a).max(), np.abs(b).max())


def assert_close(a, b, tol, what=""):
    error = distance(a, b)
    assert error <= tol, f"{what} differ by {error:.2e}, allowed {tol:.2e}"


def same_bits(a, b):
    return len(a.parts) == len(b.parts) and all(np.array_equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))


def iterates(method, clients, prior, rounds, **options):
    """Return the results after 1, 2, … rounds (a run is a deterministic function of its arguments)."""
    options = {"tol": 1e-300, "raise_on_failure": False, **options}
    results = [ba.run(method, clients, prior, rounds=t, **options) for t in range(1, rounds + 1)]
    assert not results[-1].status.is_failure, results[-1].message
    return results


# --- An oracle for expectations that shares nothing with the library: plain trapezoidal sums over z

Z = np.linspace(-12.0, 12.0, 801)
# the trapezoidal rule for f(m + sz)φ(z) errs by exp(−2π·(π/s)/h), h = 0.03: below rounding for s <= 15
PHI = np.exp(-0.5 * Z**2) / np.sqrt(2 * np.pi) * (Z[1] - Z[0])


def glm_moments(name, mean, sd, y):
    """E ℓ, E ℓ', E ℓ'' of each row under f ~ N(mean, sd²) for the logistic and Poisson losses."""
    f = mean[:, None] + sd[:, None] * Z
    if name == "poisson":
        rate = np.exp(mean + 0.5 * sd**2)
        return rate - y * mean, rate - y, rate
    if name == "squares":
        return 0.5 * ((mean - y) ** 2 + sd**2), mean - y, np.ones_like(mean)
    p = np.where(f > 0, 1 / (1 + np.exp(-np.abs(f))), np.exp(-np.abs(f)) / (1 + np.exp(-np.abs(f))))
    value = np.maximum(f, 0) + np.log1p(np.exp(-np.abs(f)))
    return value @ PHI - y * mean, p @ PHI - y, (p * (1 - p)) @ PHI


def expected_derivatives(name, X, y, m, covariance):
    """E_q[ℓ], E_q[∇ℓ], E_q[∇²ℓ] under N(m, covariance)."""
    sd = np.sqrt(np.einsum("ij,jk,ik->i", X, covariance, X))
    value, slope, curvature = glm_moments(name, X @ m, sd, y)
    return value.sum(), X.T @ slope, X.T @ (curvature[:, None] * X)


def point_derivatives(name, X, y, theta):
    """∇ℓ(θ), ∇²ℓ(θ)."""
    f = X @ theta
    if name == "squares":
        return X.T @ (f - y), X.T @ X
    rate = np.exp(f) if name == "poisson" else 1 / (1 + np.exp(-f))
    slope = rate if name == "poisson" else rate * (1 - rate)
    return X.T @ (rate - y), X.T @ (slope[:, None] * X)
