"""Steps in processes of their own that are killed at random moments, or have no room."""

import os
import signal
import time
import warnings


def forked(act):
    """Start `act` in a process of its own; return its id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the tests have none of
        process = os.fork()
    if process:
        return process
    code = 1
    try:
        act()
        code = 0
    finally:
        os._exit(code)


def ended(process, seconds=None):
    """Wait for a process, at most so long; return whether it did its work, None where it was killed."""
    if seconds is not None:
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) == 0


class Killer:
    """Kills a process at a random moment of the time that it needs, and counts."""

    def __init__(self, rng, wanted):
        self.rng, self.left, self.kills = rng, wanted, 0
        self.longest = 0.05

    def persist(self, act):
        """Do a step, however often it is killed."""
        while self.left > 0 and self.rng.random() < 0.8:
            self.left -= 1
            if ended(forked(act), self.rng.uniform(0.0, 1.2 * self.longest)) is None:
                self.kills += 1
        began = time.monotonic()
        assert ended(forked(act))
        self.longest = 0.5 * (self.longest + time.monotonic() - began)
