"""Client losses in three layers: pointwise in the predictor, linear model, expected under q."""

from .base import LOSSES, Expected, GaussianExpected, Loss
from .expectations import RULES, Auto, Delta, Exact, GaussHermite, QuasiMonteCarlo, Rule
from .least_squares import LeastSquares
from .linear_in_statistics import LinearInStatistics
from .logistic_normal import logistic_normal_moments
from .regression import Binomial, Logistic, Poisson, ReferenceSoftmax, Softmax
from .sketches import Full, Kronecker, LowRank
from .total import Total

__all__ = [
    "LOSSES",
    "RULES",
    "Auto",
    "Binomial",
    "Delta",
    "Exact",
    "Expected",
    "Full",
    "GaussHermite",
    "GaussianExpected",
    "Kronecker",
    "LeastSquares",
    "LinearInStatistics",
    "Logistic",
    "Loss",
    "LowRank",
    "Poisson",
    "QuasiMonteCarlo",
    "ReferenceSoftmax",
    "Rule",
    "Softmax",
    "Total",
    "logistic_normal_moments",
]
