"""Poisson regression with log link."""

from __future__ import annotations

from .base import FederatedModel


class FederatedPoissonRegressor(FederatedModel):
    """Poisson regression on rows that stay at their sites: counts of mean exp(xᵀw + b).

    Maximum likelihood with model standard errors, as `glm` has them on the pooled rows. With `inference="posterior"`
    minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k = Σ_i w_i (exp f_i − y_i f_i) summed over the rows of site k, with
    expectations in closed form. For rates, give `fit` and `predict` the `exposure`.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of a Gaussian prior on the coefficients, 0 for none. scikit-learn's `PoissonRegressor` takes a mean
        over rows, so that this is its alpha × Σ sample_weight. See `FederatedGLM`.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedPoissonRegressor
    >>> X = np.array([[-1.0], [-1.0], [1.0], [1.0]])
    >>> model = FederatedPoissonRegressor(1e-6).fit(X, [9.0, 11.0, 38.0, 42.0], client=[1, 2, 1, 2])
    >>> model.coef_.round(1)  # ½ log(40/10)
    array([0.7])
    >>> model.certificate_.holds
    True
    """

    kind = "poisson"
