"""The deep-learning path: the same loop and table for neural networks; needs the extra `torch`.

With the extra `compiled` IVON trains faster on a CPU.

`run(method, clients, model)` is the counterpart of the core's; NumPy's side of the package never imports this one.
"""

from .._errors import needed_by as _needed_by

with _needed_by("bayesadmm_np.torch needs PyTorch", "torch"):
    from torch import nn as _nn  # noqa: F401

from .certificate import SampledCertificate
from .dense import MLP
from .federated import NetworkData, NetworkTask, final_model
from .frozen import FrozenBody, LastLayer, last_layer
from .ivon import IVON
from .likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, OwnLoss
from .loop import Result, run
from .methods import IVONADMM, IVONPVI, FedLapFunc, FedLaplace
from .metrics import LossScores, RegressionScores, Scores, score
from .network import Rows, merge
from .posterior import NetworkPosterior
from .problem import AdamSteps, IVONSteps, SGDSteps
from .state import RoundRecord

__all__ = [
    "IVON",
    "IVONADMM",
    "IVONPVI",
    "MLP",
    "AdamSteps",
    "Bernoulli",
    "Categorical",
    "FedLapFunc",
    "FedLaplace",
    "FrozenBody",
    "Gaussian",
    "IVONSteps",
    "LastLayer",
    "Likelihood",
    "LossScores",
    "NetworkData",
    "NetworkPosterior",
    "NetworkTask",
    "OwnLoss",
    "RegressionScores",
    "Result",
    "RoundRecord",
    "Rows",
    "SGDSteps",
    "SampledCertificate",
    "Scores",
    "final_model",
    "last_layer",
    "merge",
    "run",
    "score",
]
