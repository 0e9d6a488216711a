"""Small cohorts at three hospitals whose patients differ, and fits of the pooled rows that share no code with ours."""

import numpy as np
from scipy.special import expit

import bayesadmm_np as ba
from bayesadmm_np.estimators import FederatedLinearRegression, FederatedLogisticRegression, FederatedPoissonRegressor

KINDS = ("logistic", "softmax", "ridge", "poisson")
SITES = ("north", "south", "west")


def cohort(kind, seed=0, sizes=(10, 8, 14)):
    """Return X (n, 2), y and the site of each row; the sites differ in the features, and so in the outcomes."""
    rng = np.random.default_rng(seed)
    sites = np.repeat(SITES, sizes)
    X = rng.standard_normal((sites.size, 2)) + np.repeat(rng.standard_normal((3, 2)), sizes, axis=0)
    f = X @ [1.0, -0.6]
    y = {
        "logistic": lambda: (rng.random(f.size) < expit(f)).astype(int),
        "softmax": lambda: np.argmax(f[:, None] * [1.0, 0.0, -1.0] + rng.gumbel(size=(f.size, 3)), axis=1),
        "ridge": lambda: f + 0.5 + 0.4 * rng.standard_normal(f.size),
        "poisson": lambda: rng.poisson(np.exp(0.5 * f + 0.3)),
    }[kind]()
    return X, y, sites


def estimator(kind, **arguments):
    """Return the estimator of a kind's posterior; ridge regression with a known noise variance."""
    arguments = {"prior_precision": 1.0, **arguments}
    if kind == "ridge":
        return posterior_ridge(**{"noise_variance": 0.25, **arguments})
    arguments = {"inference": "posterior", **arguments}
    made = FederatedPoissonRegressor if kind == "poisson" else FederatedLogisticRegression
    return made(**arguments)


def posterior_ridge(prior_precision=1.0, **arguments):
    """Return linear regression under a Gaussian prior, by the rows of the table."""
    return FederatedLinearRegression(prior_precision, **{"inference": "posterior", **arguments})


def parameter(model):
    """θ in the order of `covariance_`."""
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    return np.column_stack([coef, intercept]).ravel() if model.fit_intercept else coef.ravel()


def losses(kind, X, y, sites, noise=0.25):
    """One loss a site, with a column of ones."""
    A = np.column_stack([X, np.ones(len(X))])
    make = {
        "logistic": ba.losses.Logistic,
        "softmax": lambda X, y: ba.losses.Softmax(X, y, 3),
        "ridge": lambda X, y: ba.losses.LeastSquares(X, y, np.full(len(X), 1 / noise)),
        "poisson": ba.losses.Poisson,
    }[kind]
    return [make(A[sites == name], y[sites == name]) for name in dict.fromkeys(sites.tolist())]


def point_fit(kind, X, y, precision, noise=0.25):
    """Newton's method for −log p(y | θ) + ½ θᵀPθ on the pooled rows; returns θ and the inverse Hessian.

    `precision` is the matrix P, all zero for maximum likelihood.
    """
    A = np.column_stack([X, np.ones(len(X))])
    n_outputs = 3 if kind == "softmax" else 1
    B = np.eye(n_outputs)[:, None, :, None] * A[None, :, None, :]  # predictor of output c in row i: B[c, i] · θ
    B = B.reshape(n_outputs, len(A), -1)
    theta = np.zeros(B.shape[2])
    for _ in range(200):
        f = B @ theta
        if kind == "softmax":
            p = np.exp(f - f.max(axis=0))
            p /= p.sum(axis=0)
            slope = p - (np.arange(3)[:, None] == y)
            weight = p[:, None] * np.eye(3)[:, :, None] - p[:, None] * p[None]
        elif kind == "logistic":
            p = expit(f)
            slope, weight = p - y, (p * expit(-f))[:, None]
        elif kind == "poisson":
            slope, weight = np.exp(f) - y, np.exp(f)[:, None]
        else:
            slope, weight = (f - y) / noise, np.full((1, *f.shape), 1 / noise)
        gradient = np.einsum("ci,cid->d", slope, B) + precision @ theta
        hessian = np.einsum("cid,cei,eif->df", B, weight, B) + precision
        step = np.linalg.solve(hessian, gradient)
        theta = theta - step / max(1.0, np.abs(step).max())
        if np.sqrt(step @ hessian @ step) < 1e-12:
            return theta, np.linalg.solve(hessian, np.eye(theta.size))
    raise RuntimeError("Newton's method did not converge")
