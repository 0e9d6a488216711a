"""Client losses in three layers: pointwise in the predictor, linear model, expected under q."""

from .base import LOSSES, Expected, GaussianExpected, Loss
from .expectations import RULES, Auto, Delta, Exact, GaussHermite, MonteCarlo, QuasiMonteCarlo, Rule
from .least_squares import LeastSquares
from .linear_in_statistics import LinearInStatistics
from .logistic import Logistic
from .logistic_normal import logistic_normal_moments
from .poisson import Poisson
from .softmax import ReferenceSoftmax, Softmax
from .total import Total

__all__ = [
    "LOSSES",
    "RULES",
    "Auto",
    "Delta",
    "Exact",
    "Expected",
    "GaussHermite",
    "GaussianExpected",
    "LeastSquares",
    "LinearInStatistics",
    "Logistic",
    "Loss",
    "MonteCarlo",
    "Poisson",
    "QuasiMonteCarlo",
    "ReferenceSoftmax",
    "Rule",
    "Softmax",
    "Total",
    "logistic_normal_moments",
]
