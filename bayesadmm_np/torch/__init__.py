"""The deep-learning path: the same loop and table for neural networks; needs `pip install 'bayesadmm-np[torch]'`.

With `pip install 'bayesadmm-np[compiled]'` IVON trains faster on a CPU.

`run(method, clients, model)` is the counterpart of the core's; NumPy's side of the package never imports this one.
"""

try:
    from torch import nn as _nn  # noqa: F401
except ImportError as error:
    raise ImportError("bayesadmm_np.torch needs PyTorch: pip install 'bayesadmm-np[torch]'.") from error

from .certificate import SampledCertificate
from .federated import NetworkData, NetworkTask, final_model
from .ivon import IVON
from .likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, OwnLoss
from .loop import Result, run
from .methods import IVONADMM, IVONPVI, FedLapFunc, FedLaplace
from .metrics import LossScores, RegressionScores, Scores, auroc, reliability, score
from .models import MLP, AcarCNN, FilterResponseNorm, LeNet, ResNet20, ZenkeCNN
from .network import Rows, merge
from .personal import BayesSteps, MoreauSteps, PFedBayes, PFedMe, PFedVEM, VEMSteps
from .posterior import NetworkPosterior
from .problem import AdamSteps, IVONSteps, SGDSteps
from .state import RoundRecord

__all__ = [
    "IVON",
    "IVONADMM",
    "IVONPVI",
    "MLP",
    "AcarCNN",
    "AdamSteps",
    "BayesSteps",
    "Bernoulli",
    "Categorical",
    "FedLapFunc",
    "FedLaplace",
    "FilterResponseNorm",
    "Gaussian",
    "IVONSteps",
    "LeNet",
    "Likelihood",
    "LossScores",
    "MoreauSteps",
    "NetworkData",
    "NetworkPosterior",
    "NetworkTask",
    "OwnLoss",
    "PFedBayes",
    "PFedMe",
    "PFedVEM",
    "RegressionScores",
    "ResNet20",
    "Result",
    "RoundRecord",
    "Rows",
    "SGDSteps",
    "SampledCertificate",
    "Scores",
    "VEMSteps",
    "ZenkeCNN",
    "auroc",
    "final_model",
    "merge",
    "reliability",
    "run",
    "score",
]
