"""Asynchronous rounds: each site's factor is folded in when it arrives, with a bound on how old its λ_g may be.

A site that answers the λ_g of version s moves its factor by

    Δη_k = γρ (λ_k − λ_g^{(s)}),        λ_g ← λ_g + Δη_k / w,

in rows whose server is λ_g = (η_0 + Σ_k η_k)/w. At a stationary point of Eq. 15 that is

    η_k ← (1 − γ) η_k − γ ∇_μ E_{q_k}[ℓ_k],

a mixture of natural gradients whatever s is: for convex losses every precision V_k stays ⪰ 0 and the server positive
definite, and the fixed points are those of the rounds. A site has one broadcast to answer at a time, so that its own
factor in λ_g^{(s)} is never old; only those of the others are. Hence γ is the row's own at every staleness.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..messages import Message, Sent
from .envelope import Answer, Request
from .run import Run

__all__ = ["AsyncRounds"]


@dataclass
class AsyncRounds(Run):
    """Every step takes the answers that have come, each to the broadcast that its site was sent.

    A version is what one step makes. An answer to version s is folded into version t only with t − s at most
    `plan.max_staleness`: the server waits with the answers of others for a site that would fall further behind, until
    that site's deadline. Sites are asked while their own residuals are above tol; when those of all are below, all get
    the same λ_g for the certificate, and the server waits for all.
    """

    asked: dict[str, tuple[Sent, int]] = field(default_factory=dict)
    """The broadcast that each site was sent last, and the node."""
    came: dict[str, tuple[Message, Sent]] = field(default_factory=dict)

    def advance(self) -> None:
        """Fold in what has come, as soon as the bound allows it."""
        plan, server, began = self.plan, self.server, time.monotonic()
        sent = server.sent
        request = Request(self.clients.label, server.broadcast().to_bytes())

        def request_for(name: str) -> Request | None:
            key = (sent, self.clients.node_of[name])
            if name in self.came or self.asked.get(name) == key or self.clients.rests(name):
                return None
            if not self._is_wanted(name, sent):
                return None
            self.asked[name] = key
            return request

        while not (ready := self._ready()):
            self.clients.send(request_for, plan.deadline)
            if not self.clients.opened:  # who failed is asked again, after a while
                # not before: who works within the deadline is not silent, however short the patience
                if time.monotonic() - began > plan.patience:
                    who = f"only {', '.join(sorted(self.came))}" if self.came else "no site"
                    raise self._too_few(who, self._unheard())
                self.asked.clear()
                self.clients.pause()
                continue
            self.clients.receive(self._hear, plan.deadline)
            self.clients.give_up(time.monotonic(), plan.deadline)
        earlier = {name: base for name, (_, base) in ready.items() if base.served.round < server.number}
        bases = {name: base.served.round for name, (_, base) in ready.items()}
        self._commit(server.step([reply for reply, _ in ready.values()], earlier), list(ready), {"bases": bases})

    def _unheard(self) -> set[str]:
        """Return the sites that have something to say, and have not said it."""
        return {
            name for name in self.server.spec.sites if name not in self.came and self._is_wanted(name, self.server.sent)
        }

    def _is_wanted(self, name: str, sent: Sent) -> bool:
        """Whether there is something to learn from the site: its residuals, or at the end the certificate of all."""
        if sent.served.certify:
            return all(self.asked[other][0] == sent for other in self.clients.opened)
        unsettled = self.server.unsettled
        return not unsettled or name in unsettled

    def _hear(self, name: str, request: Request, said: Answer) -> Request | None:
        if said.refused:
            return self._with_copy(name, request, said)
        base, _ = self.asked[name]
        reply = self._checked(name, said, base)
        self._note(name, said)
        # after the last round only reports at the last λ_g are of use
        if self.server.served.solve or base.served.round == self.server.number:
            self.came[name] = (reply, base)
        return None

    def _ready(self) -> dict[str, tuple[Message, Sent]]:
        """Take the answers to be folded in now, in the order of the sites: none while somebody is waited for."""
        served, sent = self.server.served, self.server.sent
        bound = 0 if served.certify else self.plan.max_staleness
        following = self.server.number + 1
        if any(following - self.asked[name][0].served.round > bound for name in self.clients.opened):
            return {}
        lost = self.server.without_value({name: reply for name, (reply, _) in self.came.items()})
        if len(lost) < len(self.server.spec.sites):  # where no site has a value it is the method that diverges
            if len(lost) == len(self.came) and self.clients.opened:
                return {}
            for name in lost:
                self._leave_out(name, self.came.pop(name)[0])
        # what is asked for the certificate alone is of use from all together: a part of it would use up versions
        is_last = served.certify and served.solve and all(base is sent for _, base in self.came.values())
        if is_last and len(self.came) < len(self.server.spec.sites):
            return {}
        ready = {name: self.came[name] for name in sorted(self.came)}
        self.came.clear()
        return ready
