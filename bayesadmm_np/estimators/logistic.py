"""Logistic regression, binary and multinomial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from .._validation import Array, as_positive
from .base import FederatedModel
from .settings import read_choice

BINARY = ("exact", "gauss-hermite", "probit", "plug-in")
MULTINOMIAL = ("quasi-monte-carlo", "plug-in")


@dataclass(eq=False, repr=False)
class FederatedLogisticRegression(FederatedModel):
    """Logistic regression on rows that stay at their sites: p(y = 1) = σ(xᵀw + b), or softmax for three classes on.

    Maximum likelihood with model standard errors, as `glm` has them on the pooled rows; `certificate_` says how nearly.
    With `inference="posterior"` minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9), ℓ_k the sum of −log p over the rows of
    site k; two classes are integrated exactly, more by moment-matched quasi-Monte-Carlo points. A likelihood of three
    classes on is relative to the first class; a posterior has one row of coefficients per class, which the prior makes
    identifiable, and unpenalised intercepts sum to zero.

    Other parameters and attributes are those of `FederatedGLM`.

    Parameters
    ----------
    prior_precision : float, array_like or "evidence", default 0.0
        Precision of a Gaussian prior on the coefficients, 0 for none; scikit-learn's 1/C. See `FederatedGLM`.
    method : str, Method or Step, default 'auto'
        See `FederatedGLM`. Where the points of a posterior of three classes on do not suffice (separable classes under
        a weak prior) "auto" takes FedLapCov, the Laplace approximation, and warns.
    class_weight : dict or "balanced", optional
        Factors of the row weights; "balanced" is n/(classes × rows of the class), from counts that sites send as sums.
    integrate : {'auto', 'exact', 'gauss-hermite', 'probit', 'quasi-monte-carlo', 'plug-in'}
        Rule by which `predict_proba` averages over the posterior: "exact", "gauss-hermite" (32 nodes) and "probit"
        (MacKay's approximation) are for two classes, "quasi-monte-carlo" for more; "plug-in" takes the posterior mean.
        "auto" is exact where there are two classes, and for a likelihood "plug-in".

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedLogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0], [3.0]])
    >>> y = np.array(["ill", "well", "ill", "well", "ill", "well"])
    >>> hospital = ["north", "north", "north", "south", "south", "south"]
    >>> model = FederatedLogisticRegression().fit(X, y, client=hospital)
    >>> model.certificate_.holds, model.sites_
    (True, ['north', 'south'])
    >>> model.predict_proba([[0.5]]).round(6)  # half way: the data are symmetric about 0.5
    array([[0.5, 0.5]])
    """

    kind = "softmax"
    _: KW_ONLY
    class_weight: Any = None
    integrate: str = "auto"

    def _class_factors(self, classes: Array, counts: Array) -> Array:
        """The factor of each class, from the sites' summed counts."""
        given = self.class_weight
        if given is None:
            return np.ones(classes.size)
        if isinstance(given, str) and given == "balanced":
            return np.asarray(counts.sum() / (classes.size * counts))
        if not isinstance(given, Mapping):
            raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {given!r}.")
        known = classes.tolist()
        left, unknown = [label for label in known if label not in given], [key for key in given if key not in known]
        if left and unknown:  # as in scikit-learn: a weight too many is none, one for another class is a mistake
            listed = ", ".join(map(repr, known))
            raise ValueError(f"class_weight names the class {unknown[0]!r} and not {left[0]!r}; y holds {listed}.")
        return np.array([as_positive(given.get(label, 1.0), f"class_weight[{label!r}]") for label in known])

    def _integration(self, n_classes: int, averages: bool) -> str:
        """Resolve "auto" and refuse what does not fit."""
        how = read_choice(self.integrate, "integrate", ("auto", *BINARY[:3], *MULTINOMIAL))
        fitting = BINARY if n_classes == 2 else MULTINOMIAL
        if how == "auto":
            return fitting[0] if averages else "plug-in"
        if how not in fitting:
            allowed = ", ".join(map(repr, ("auto", *fitting)))
            raise ValueError(f"integrate must be one of {allowed} with {n_classes} classes, got {how!r}.")
        if how != "plug-in" and not averages:
            raise ValueError(
                f"integrate={how!r} needs inference='posterior' and a family that learns a covariance; use 'auto' or "
                "'plug-in'."
            )
        return how
