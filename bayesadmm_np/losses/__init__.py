"""Client losses in three layers: pointwise in the predictor, linear model, expected under q."""

from .base import LOSSES, Expected, GaussianExpected, Loss
from .expectations import RULES, Auto, Delta, Exact, GaussHermite, MonteCarlo, QuasiMonteCarlo, Rule
from .least_squares import LeastSquares
from .linear_in_statistics import LinearInStatistics
from .logistic import Binomial, Logistic
from .logistic_normal import logistic_normal_moments
from .poisson import Poisson
from .sketches import SKETCHES, Full, Kronecker, LowRank, Sketch
from .softmax import ReferenceSoftmax, Softmax
from .total import Total

__all__ = [
    "LOSSES",
    "RULES",
    "SKETCHES",
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
    "MonteCarlo",
    "Poisson",
    "QuasiMonteCarlo",
    "ReferenceSoftmax",
    "Rule",
    "Sketch",
    "Softmax",
    "Total",
    "logistic_normal_moments",
]
