"""Federated ADMM and variational Bayes as one algorithm.

`run(method, clients, prior)` lets clients and a server agree on a distribution; choose the family of the prior and you
have chosen the method. See `families`, `losses`, `clients` (solvers) and `methods` (the table).
"""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import clients, families, losses
from ._version import __version__
from .splitting import methods
from .splitting.accelerated import Accelerated
from .splitting.guarded import Guarded
from .splitting.loop import run
from .splitting.privacy import GaussianMechanism
from .splitting.result import Result, RunError
from .splitting.sketched import Sketched
from .splitting.status import Status

if _TYPE_CHECKING:
    from .splitting.pooled import solve_pooled
    from .splitting.rates import local_rates

_LATER = {
    "local_rates": "rates",
    "solve_pooled": "pooled",
}
"""Names that a run does not need, with the modules of splitting/ that are loaded when they are asked for."""

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
    "clients",
    "families",
    "local_rates",
    "losses",
    "methods",
    "run",
    "solve_pooled",
]


def __getattr__(name: str) -> _Any:
    """Import a name that a run does not need when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f".splitting.{_LATER[name]}", __name__), name)


def __dir__() -> list[str]:
    """List the names above, imported or not."""
    return sorted({*globals(), *_LATER})
