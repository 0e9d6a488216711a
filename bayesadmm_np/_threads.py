"""One BLAS thread for small matrices.

Threads that wait for each other on a busy machine cost far more than a small matrix. On two cores beside other
processes, two rounds of PVI at 5 columns took 2.4 s with two threads and .21 s with one, and 49 s and .80 s at 200.
`benchmarks/blas_threads.py` measures this, and what two idle cores gain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 256
"""Columns up to which one thread computes."""

_lock = threading.Lock()
_within = 0
_before: list[int] = []


@contextmanager
def one_thread_if_small(columns: int) -> Iterator[None]:
    """Let BLAS compute with one thread where matrices have at most `SMALL` columns; needs threadpoolctl.

    Without threadpoolctl, which scikit-learn brings, nothing changes. The number belongs to the process: the first of
    several threads lowers it, and the last one restores it. With OpenMP it belongs to each thread, so that all set it.
    """
    global _within, _before
    if columns > SMALL or not (libraries := _libraries()):
        yield
        return
    with _lock:
        if _within == 0:
            _before = [library.get_num_threads() for library in libraries]
        _within += 1
        for library in libraries:
            library.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0:
                for library, number in zip(libraries, _before, strict=True):
                    library.set_num_threads(number)


def one_thread_where_small(columns: Callable[..., int]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to run under `one_thread_if_small`; `columns` gets its arguments."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with one_thread_if_small(columns(*args, **kwargs)):
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
