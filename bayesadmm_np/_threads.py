"""One BLAS thread for small matrices.

Threads that wait for each other cost more than a small matrix: on two cores beside other processes, two rounds of PVI
at 200 columns took 49 s with two threads and .80 s with one; on idle cores 1.5 and .74 s at 500, 4.7 and 3.5 s at 1000.
`benchmarks/blas_threads.py` measures this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 512
"""Parameters up to which one thread computes."""

_lock = threading.Lock()
_within: list[object] = []  # one mark of each block that runs, of all threads
_before: list[int] = []


@contextmanager
def one_thread_if_small(parameters: int) -> Iterator[None]:
    """Let BLAS compute with one thread where there are at most `SMALL` parameters; needs threadpoolctl.

    The number belongs to the process: the first of several threads lowers it, and the last restores it. With OpenMP it
    belongs to each thread, so that all set it. Without threadpoolctl, which scikit-learn brings, nothing changes.
    """
    libraries, mark = _libraries() if parameters <= SMALL else [], object()
    try:
        with _lock:
            if libraries and not _within:
                _before[:] = [library.get_num_threads() for library in libraries]
            _within.extend([mark] if libraries else [])
            for library in libraries:
                library.set_num_threads(1)
        yield
    finally:
        with _lock:
            if _within == [mark]:
                for library, number in zip(libraries, _before, strict=True):
                    library.set_num_threads(number)
            if mark in _within:
                _within.remove(mark)


def one_thread_where_small(parameters: Callable[..., int]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to run under `one_thread_if_small`; `parameters` gets its arguments."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                dim = parameters(*args, **kwargs)
            except TypeError:  # an argument is missing: the function says which
                return function(*args, **kwargs)
            with one_thread_if_small(dim):
                return function(*args, **kwargs)

        return limited

    return decorated


@cache
def _libraries() -> list[Any]:
    """Return the process's BLAS libraries; to find them takes milliseconds."""
    try:
        from threadpoolctl import ThreadpoolController
    except ModuleNotFoundError:
        return []
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
