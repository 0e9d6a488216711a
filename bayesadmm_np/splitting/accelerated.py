"""Safeguarded Anderson mixing of the site map, around any method with a dual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._errors import ArgumentError
from .._numerics import halvings
from .._validation import Array, as_count
from ..clients.anderson import mixing_weights
from ..families.base import ExponentialFamily
from ..families.coordinates import Displacement, Natural
from .average import Average, as_distribution
from .messages import Reply
from .status import Failure
from .step import STEPS, Gathered
from .tree import MEMORIES
from .wrapper import Wrapper

if TYPE_CHECKING:
    from .server import Server
    from .state import State


@MEMORIES.register
class Memory(NamedTuple):
    """One remembered round: the sites and λ_g after it, and the displacement of each, read at its own server."""

    sites: tuple[Natural, ...]
    natural: Natural
    moves: tuple[Displacement, ...]


@STEPS.register
@dataclass(frozen=True)
class Accelerated(Wrapper):
    """Mix the last rounds of a method (Anderson, type II) before the next broadcast.

    One round is a fixed-point map on the sites (η_1 … η_K), and on λ_g where α < 1. The weights minimise the mixed
    residual: what each round did to mean and covariance, in the newest server's Fisher metric. The server broadcasts
    these few numbers, and every client mixes its own stored sites. A mix is taken only if λ_g and every λ_g − η_k/ρ
    stay in the domain, else halved towards the plain step, else dropped. Fixed points are unchanged.

    Parameters
    ----------
    method : Method
        A method with a dual; damped PVI is the recommended base.
    memory : int, default 5
        Number of rounds remembered, >= 1.

    Raises
    ------
    ValueError
        When `method` is not a plain method, or has no dual to mix, or `memory` < 1.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.Accelerated(ba.methods.PVI(gamma=0.4), memory=5).name
    'accelerated damped PVI'
    """

    memory: int = 5

    def __post_init__(self) -> None:
        inner = self.inner
        as_count(self.memory, "memory")
        if inner.row.dual_step == 0.0:
            raise ArgumentError("method", "must have a dual: otherwise there is nothing to mix", inner.name)
        if not isinstance(inner, Average):
            raise ArgumentError("method", "must be a plain method, such as PVI(), whose duals can be mixed", inner.name)

    @property
    def name(self) -> str:
        return f"accelerated {self.inner.name}"

    @property
    def remembers(self) -> int:
        return self.memory

    def init(self, server: Server) -> tuple[Memory, ...]:
        return ()

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        """Take the inner step, and mix it with those before; the memory starts anew where a client is absent."""
        found = super().step(server, state, replies)
        if isinstance(found, Failure):
            return found
        if not all(reply is not None for reply in replies):
            return found._replace(memory=())
        before, after = (state.sites, state.q_g.natural), (found.sites, found.q_g.natural)
        memory = remember(state.memory, self.memory, found.q_g, before, after)
        mixed = mix(server, found.q_g, memory, found.alpha)
        if mixed is None:
            return found._replace(memory=memory)
        sites, natural, weights = mixed
        q_g = as_distribution(self, server, state, natural)
        return q_g if isinstance(q_g, Failure) else found._replace(q_g=q_g, sites=sites, memory=memory, weights=weights)


def remember(
    past: Sequence[Memory],
    limit: int,
    q_g: ExponentialFamily,
    before: tuple[Sequence[Natural], Natural],
    after: tuple[Sequence[Natural], Natural],
) -> tuple[Memory, ...]:
    """Append the round from `before` to `after` (sites and λ_g); empty after a move that is too large for a float."""
    pairs = [*zip(before[0], after[0], strict=True), (before[1], after[1])]
    moves = tuple(q_g.displacement(new - old) for old, new in pairs)
    if not all(np.isfinite(part).all() for move in moves for part in move.parts):
        return ()
    return (*past, Memory(tuple(after[0]), after[1], moves))[-(limit + 1) :]


def mix(
    server: Server, q_g: ExponentialFamily, memory: Sequence[Memory], alpha: float
) -> tuple[tuple[Natural, ...], Natural, tuple[float, ...]] | None:
    """Return mixed sites, λ_g and the weights, or None where the plain step must be taken; lengths are those at q_g."""
    if len(memory) < 2:
        return None
    # all are measured at the newest server: the precision may have grown a thousandfold since the oldest
    lengths = [np.concatenate([q_g.whiten_displacement(move) for move in item.moves]) for item in memory]
    weights = mixing_weights(lengths)
    if weights is None:
        return None
    plain = np.zeros(len(memory))
    plain[-1] = 1.0
    for shortening in halvings(1.0, 0.1):
        blend = shortening * weights + (1.0 - shortening) * plain
        sites = tuple(combine(blend, column) for column in zip(*(item.sites for item in memory), strict=True))
        # with α = 1 the sites alone determine the server; otherwise its memory is mixed with the same weights
        natural = (
            server.gather(sites, sites, 1.0) if alpha == 1.0 else combine(blend, [item.natural for item in memory])
        )
        if server.is_well_posed(natural, sites):
            return sites, natural, tuple(blend.tolist())
    return None


def combine(weights: Array, naturals: Sequence[Natural]) -> Natural:
    """Mix the sites that one client remembers; server and client compute it alike, to the bit."""
    return naturals[0].combine(weights.tolist(), naturals)
