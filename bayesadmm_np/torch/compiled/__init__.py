"""The door to compiled code: clients with plain networks on a CPU, and the normals of IVON on a CPU.

No other module of this package imports Numba, which the extra `compiled` brings. The functions below import it when
they first have work for it. Without it they return False, and torch does the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..likelihoods import Categorical
from ..network import Network, Rows
from ..problem import AdamSteps, IVONSteps, LocalProblem, Solver
from ..stream import Stream

if TYPE_CHECKING:
    from .client import Client

__all__ = ["client_of", "does", "kernel_of", "one_blas_thread"]

NEEDED = ("numba", "threadpoolctl")


@cache
def _client_module() -> ModuleType | None:
    """Return the module that imports Numba, or None where that is not possible."""
    try:
        from . import client
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        return None
    except ImportError as error:  # Numba's own, where it does not fit the NumPy that is installed
        warnings.warn(f"the extra `compiled` cannot be used, torch does its work: {error}", stacklevel=2)
        return None
    return client


def does(network: Network, data: Sequence[Rows | Stream], problem: LocalProblem, solver: Solver) -> bool:
    """Whether compiled code can do these clients' work: a plain network of classes on a CPU, one IVON sample a step."""
    return (
        (
            isinstance(solver, AdamSteps)
            or (isinstance(solver, IVONSteps) and solver.samples == 1 and solver.hess_approx == "price")
        )
        and isinstance(network.likelihood, Categorical)
        and problem.start.device.type == "cpu"
        and all(isinstance(rows, Rows) and network.is_pure(rows.X) for rows in data)
        and _client_module() is not None
    )


def client_of(network: Network, rows: Rows | Stream, problem: LocalProblem, solver: Solver, seed: int) -> Client:
    """Return one client's work, for which `does` is true; `problem` is this client's alone."""
    from .client import AdamClient, IVONClient

    assert isinstance(rows, Rows)
    if isinstance(solver, IVONSteps):
        return IVONClient(network, rows, problem, solver, seed)
    assert isinstance(solver, AdamSteps)
    return AdamClient(network, rows, problem, solver)


def kernel_of(name: str) -> Callable[..., None] | None:
    """Return a function of `kernels`, "normals", or "sample" and "update" of IVON; None without Numba."""
    module = _client_module()
    return None if module is None else getattr(module.kernels, name)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let compiled matrix products have one thread, in the caller's thread and in those that work.

    The products of a batch are too small to share: threads that wait for each other make a step two to three times
    slower. A limit on OpenBLAS holds for the process, or with OpenMP for the thread that sets it; so both set it.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> Any:
    """Return the process's BLAS libraries; to find them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
