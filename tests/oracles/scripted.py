"""Sites in one process whose answers take a scripted time, and a clock that moves only when the server waits."""

import heapq
import itertools
import os

from bayesadmm_np.federation import GLMData, Message, Site
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch import client_manager as manager_module
from bayesadmm_np.federation.dispatch import rounds as rounds_module
from oracles.couriers import own_key
from oracles.overrides import ALLOWED


class Clock:
    """Stands in for the module `time` where the server looks at it."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in (manager_module, rounds_module):
            monkeypatch.setattr(module, "time", self)
        # whole units of time: no rounding, and every look is at an instant when something may come
        monkeypatch.setattr(manager_module, "POLL", 1.0)
        monkeypatch.setattr(manager_module, "REFRESH", 0.0)
        # no machine crashes here, and waiting for a disk is not what is scripted
        monkeypatch.setattr(os, "fsync", lambda handle: None)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Scripted:
    """A transport. `takes(name, number)` is how long a site works on its message of this number, from 1; hellos,
    refusals and the final message take no time. A site works on one message after another, also on those that nobody
    waits for. `fault(name, number, call)` may stand in for an answer: another one, or None for silence; `call()` is
    the honest one.
    """

    def __init__(self, clock, folder, losses, takes, fault=None):
        self.clock, self.folder, self.losses, self.takes = clock, folder, losses, takes
        self.fault = fault or (lambda name, number, call: call())
        self.members = dict(enumerate(losses, start=1))
        self.numbers, self.free, self.jobs, self.mail = {}, {}, [], {}
        self.ids = itertools.count()

    def nodes(self):
        return set(self.members)

    def push(self, requests, seconds):
        tickets = {}
        for node, request in sorted(requests.items()):
            name, ticket = self.members[node], f"m{next(self.ids)}"
            kind = None if request.message is None else Message.from_bytes(request.message)
            number = self.numbers.get(name, 0)
            if kind is not None and request.copy is None:
                number += 1
                self.numbers[name] = number
            is_quick = kind is None or kind.kind == "final" or request.copy is not None
            begins = max(self.clock.now, self.free.get(name, 0.0))
            self.free[name] = begins + (0.0 if is_quick else self.takes(name, number))
            heapq.heappush(self.jobs, (self.free[name], int(ticket[1:]), name, number if kind else 0, request))
            tickets[ticket] = node
        return tickets

    def pull(self, tickets):
        while self.jobs and self.jobs[0][0] <= self.clock.now:
            _, number, name, count, request = heapq.heappop(self.jobs)
            said = self.fault(name, count, lambda name=name, request=request: self.honest(name, request))
            if said is not None:
                self.mail[f"m{number}"] = said
        return {ticket: self.mail.pop(ticket) for ticket in sorted(tickets) if ticket in self.mail}

    def honest(self, name, request):
        (self.folder / name).mkdir(exist_ok=True)
        site = Site(name, GLMData(self.losses[name]), key=own_key(self.folder / name), rules=ALLOWED)
        return answer(request, self.folder / name, lambda spec: (site, site.hello()))
