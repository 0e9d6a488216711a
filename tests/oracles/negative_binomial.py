"""A user's own package, whole: negative binomial regression for estimators, commands, files, Flower and predictions."""

import numpy as np
from scipy.special import expit, gammaln

from bayesadmm_np.estimators import Kind
from bayesadmm_np.estimators.base import FederatedModel
from bayesadmm_np.glm.kinds import COUNTS, LOG
from bayesadmm_np.losses import logistic_normal_moments
from bayesadmm_np.losses.pointwise import Pointwise, RowMoments


class NB2(Pointwise):
    """ℓ(f, y) = (y + r) log(1 + exp(f − log r)) − y f: counts of mean exp f and variance μ + μ²/r."""

    concordance = 1.0

    def __init__(self, size):
        self.size = size

    def expected_derivatives(self, predictors, weights, y):
        shifted, total = predictors - np.log(self.size), y + self.size
        p = expit(shifted)
        return RowMoments(
            total * (np.logaddexp(0.0, shifted) @ weights) - y * (predictors @ weights),
            total * (p @ weights) - y,
            total * ((p * (1.0 - p)) @ weights),
        )

    def exact(self, mean, variance, y):
        found, total = logistic_normal_moments(mean - np.log(self.size), variance), y + self.size
        return RowMoments(total * found.softplus - y * mean, total * found.sigmoid - y, total * found.slope)


def counts_of_size(size=1.0):
    """Counts whose variance is μ + μ²/size."""
    return Kind(
        "counts_of_size",
        "negative binomial regression",
        COUNTS,
        LOG,
        NB2(size),
        variance=lambda mean, square: mean + square / size,
        constant=lambda y: y * np.log(size) + gammaln(size) + gammaln(y + 1.0) - gammaln(y + size),
        ratio="rate ratio",
        options=(("size", size),),
    )


class FederatedNegativeBinomial(FederatedModel):
    """A subclass of four lines."""

    kind = "counts_of_size(size=2)"
