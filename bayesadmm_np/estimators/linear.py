"""Linear regression: least squares with the table that statisticians know."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from sklearn.base import MultiOutputMixin

from .base import FederatedModel


@dataclass(eq=False, repr=False)
class FederatedLinearRegression(MultiOutputMixin, FederatedModel):
    """Linear regression on rows that stay at their sites: y = xᵀw + b + noise of variance σ².

    Minimises Σ_i w_i (y_i − f_i)² over the rows of all sites in one exchange. Each site sends the triangular factor R
    of a QR of its rows, not the sums RᵀR, which lose half of the digits; the server stacks the factors and solves.
    Coefficients, standard errors and residual variance RSS/(n − p − 1) are those of `lm` on the pooled rows, with as
    many right digits.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    inference : {'auto', 'likelihood', 'posterior'}
        "likelihood" is least squares, penalised where there is a prior. "posterior" is the exact posterior of a given
        or of the most probable σ². "auto" is the first unless another argument asks for what a posterior alone has.
    noise_variance : float, "auto", "unbiased" or "evidence", default 'auto'
        σ². "unbiased" is RSS/(n − p − 1), with a prior n minus the effective number of coefficients; "evidence" as in
        `FederatedGLM`. Several outputs share it.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedLinearRegression
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = FederatedLinearRegression().fit(X, [1.0, 3.5, 4.5, 7.0], client=["a", "a", "b", "b"])
    >>> model.coef_.round(4), round(model.intercept_, 4), model.n_rounds_
    (array([1.9]), 1.15, 1)
    >>> np.sqrt(np.diag(model.covariance_)).round(4)  # standard errors
    array([0.2121, 0.3969])
    """

    kind = "linear"
    _: KW_ONLY
    noise_variance: Any = "auto"
    penalty: Any = field(default=None, init=False)
