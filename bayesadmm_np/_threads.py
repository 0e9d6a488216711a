"""One BLAS thread for small matrices.

Threads that wait for each other cost more than a small matrix. On two cores beside other processes, two rounds of PVI
at 5 columns took 2.4 s with two threads and .21 s with one, and 49 s and .80 s at 200; on two idle cores .81 and .19 s
at 200, 1.5 and .74 s at 500, 4.7 and 3.5 s at 1000. A QR of 1000 rows alone gains from two: 6.4 and 7.9 ms at 500.
`benchmarks/blas_threads.py` measures this.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SMALL = 512
"""Parameters up to which one thread computes."""


class one_thread_if_small:
    """Let BLAS compute with one thread where there are at most `SMALL` parameters; needs threadpoolctl.

    Without threadpoolctl, which scikit-learn brings, nothing changes. The number belongs to the process: the first of
    several threads lowers it, and the last one restores it. With OpenMP it belongs to each thread, so that all set it.
    An interrupt between the lines below leaves an object without references, which restores the number as it goes.
    """

    _lock = threading.RLock()
    _within: set[int] = set()  # noqa: RUF012  # of the process
    _before: list[int] = []  # noqa: RUF012

    def __init__(self, parameters: int) -> None:
        self._libraries = _libraries() if parameters <= SMALL else []

    def __enter__(self) -> None:
        if self._libraries:
            kind = one_thread_if_small
            with kind._lock:
                if not kind._within:
                    kind._before = [library.get_num_threads() for library in self._libraries]
                kind._within.add(id(self))
                for library in self._libraries:
                    library.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._libraries:
            with self._lock:
                if self._within == {id(self)}:
                    _set(self._libraries, self._before)
                self._within.discard(id(self))

    def __del__(self) -> None:
        if id(self) in self._within:
            self.__exit__()


def _set(libraries: list[Any], numbers: list[int]) -> None:
    for library, number in zip(libraries, numbers, strict=True):
        library.set_num_threads(number)


def _after_fork() -> None:
    """Begin anew in a child: threads of the parent that held the lock, or were within, are not there."""
    kind = one_thread_if_small
    kind._lock = threading.RLock()
    if kind._within:
        _set(_libraries(), kind._before)
        kind._within.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def one_thread_where_small(parameters: Callable[..., int]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function to run under `one_thread_if_small`; `parameters` gets its arguments."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with one_thread_if_small(parameters(*args, **kwargs)):
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
