"""Steps in processes of their own that are killed at random moments, or have no room, and runs that repeat them."""

import json
import os
import signal
import time
import warnings
from dataclasses import asdict
from pathlib import Path

from bayesadmm_np.federation import GLMData, Site
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Answer
from bayesadmm_np.federation.refusals import Refusal
from oracles.couriers import own_key
from oracles.overrides import ALLOWED


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


class Processes:
    """A transport whose sites answer in processes of their own, some of which are killed."""

    def __init__(self, losses, folder, killer):
        self.losses, self.folder, self.killer = dict(enumerate(losses, start=1)), Path(folder), killer
        self.open, self.count = {}, 0

    def nodes(self):
        return set(self.losses)

    def push(self, requests, seconds):
        tickets = {}
        for node, request in requests.items():
            self.count += 1
            ticket, home = f"{os.getpid()}-{self.count}", self.folder / f"s{node - 1}"
            home.mkdir(exist_ok=True)
            self.open[ticket] = forked(lambda n=node, r=request, h=home, t=ticket: self.say(n, r, h, t))
            tickets[ticket] = node
            if self.killer.left > 0 and self.killer.rng.random() < 0.3:
                self.killer.left -= 1
                time.sleep(self.killer.rng.uniform(0.0, 0.03))
                os.kill(self.open[ticket], signal.SIGKILL)
        return tickets

    def say(self, node, request, home, ticket):
        site = Site(home.name, GLMData(self.losses[node]), key=own_key(home), rules=ALLOWED)
        said = answer(request, home, lambda spec: (site, site.hello()))
        path = self.folder / ticket
        path.with_suffix(".part").write_bytes(
            json.dumps(said.said and asdict(said.said)).encode() + b"\0" + (said.message or b"")
        )
        path.with_suffix(".part").rename(path)

    def pull(self, tickets):
        found = {}
        for ticket in sorted(tickets & set(self.open)):
            process, status = os.waitpid(self.open[ticket], os.WNOHANG)
            if not process:
                continue
            del self.open[ticket]
            path = self.folder / ticket
            if os.WIFSIGNALED(status):
                (self.folder / f"{ticket}.killed").touch()
            if not path.exists():
                found[ticket] = "went away"
                continue
            plain, _, message = path.read_bytes().partition(b"\0")
            said = json.loads(plain)
            found[ticket] = Answer(message or None, said and Refusal(**{k: tuple(v) for k, v in said.items()}))
        return found
