"""Federated ADMM and variational Bayes as one algorithm.

`run(method, clients, prior)` lets clients and a server agree on a distribution; choose the family of the prior and you
have chosen the method. See `families`, `losses`, `clients` (solvers) and `methods` (the table).
"""

import sys as _sys

from . import clients, families, losses
from ._version import __version__
from .splitting import methods
from .splitting.accelerated import Accelerated
from .splitting.choice import recommended as _recommended
from .splitting.graph import best_graph_rho, graph_factor, run_on_graph
from .splitting.guarded import Guarded
from .splitting.loop import run
from .splitting.pooled import solve_pooled
from .splitting.privacy import GaussianMechanism
from .splitting.rates import local_rates
from .splitting.result import Result, RunError
from .splitting.sketched import Sketched
from .splitting.status import Status

methods.recommended = _recommended
_sys.modules[f"{__name__}.methods"] = methods  # `import bayesadmm_np.methods` is the same module

__all__ = [
    "Accelerated",
    "GaussianMechanism",
    "Guarded",
    "Result",
    "RunError",
    "Sketched",
    "Status",
    "__version__",
    "best_graph_rho",
    "clients",
    "families",
    "graph_factor",
    "local_rates",
    "losses",
    "methods",
    "run",
    "run_on_graph",
    "solve_pooled",
]
