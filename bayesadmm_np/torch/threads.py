"""Independent parts of a round on a CPU, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import TypeVar

import torch

T = TypeVar("T")


def in_threads(tasks: Sequence[Callable[[Event], T]]) -> list[T]:
    """Run tasks side by side, with torch's intra-op threads divided among them, and return what they return.

    A single task runs in the caller's thread with all of its threads. Every task gets an event, which is set when
    another one has failed or the caller was interrupted. A task looks at it now and then and ends soon; its result is
    dropped. The exception reaches the caller as itself.
    """
    halt = Event()
    if len(tasks) == 1:
        return [tasks[0](halt)]
    total = torch.get_num_threads()

    def run(task: Callable[[Event], T]) -> T:
        # the number is the thread's own, but setting it sets the default of threads to come as well, which each reads
        # once, in its first operation: so this one reads it before it is set, and puts it back in the end
        torch.get_num_threads()
        torch.set_num_threads(max(total // len(tasks), 1))
        try:
            return task(halt)
        finally:
            torch.set_num_threads(total)

    with ThreadPoolExecutor(len(tasks)) as pool:
        try:
            futures = [pool.submit(run, task) for task in tasks]
            waiting = {*futures}
            while waiting:  # not for good, which Ctrl-C would not end everywhere
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
        finally:
            halt.set()
    return [future.result() for future in futures]
