"""A site that trains a network: its rows stay here, and so does its dual; broadcasts come in, replies go out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..._validation import Array
from ...exchange.message import Message, MessageError, content_of
from ...exchange.terms import as_site_name
from ...exchange.wire import as_integer
from ...torch import Rows
from ...torch.certificate import losses
from ...torch.client import answer, is_usable
from ...torch.network import Network
from ...torch.server import moved
from ...torch.state import Duals, digest
from ...torch.team import Team, fit, read_device, read_network
from .terms import DeepTerms, packed, read_tensor, signature, vector
from .wire import DeepServed, read_deep_served

__all__ = ["DeepSite", "DeepSiteState"]

COPY = ("run", "site", "counted")


@dataclass(frozen=True)
class DeepSiteState:
    """What a site remembers between rounds.

    Attributes
    ----------
    terms : DeepTerms
    counted : tuple of (int, Duals)
        η_k as the server counts it, and the round of the answer that it is from; 0 before the first.
    pending : tuple of (int, Duals) or None
        η_k after an answer of which the site does not know yet whether it was counted.
    heard : tuple of (int, str)
        Round and digest of the last broadcast that was answered.
    """

    terms: DeepTerms
    counted: tuple[int, Duals]
    pending: tuple[int, Duals] | None
    heard: tuple[int, str]


@dataclass(frozen=True, eq=False)
class DeepSite:
    """One site as an explicit state with a pure step: (site, broadcast) → (site, reply).

    Parameters
    ----------
    name : str
    rows : Rows
    model : Module
        With the layers of the server's; its own parameters are not used.
    device : str or device, default 'cpu'
    kept : DeepSiteState, optional
        What an earlier step left; made by `step`, `restore` and `adopt`.

    Raises
    ------
    ValueError
        When name, rows and model are not what they should be.

    Examples
    --------
    See `DeepPlan` for a whole run.

    >>> import torch
    >>> from bayesadmm_np.flower.deep import DeepSite
    >>> from bayesadmm_np.torch import MLP, Rows
    >>> site = DeepSite("A", Rows(torch.zeros(3, 2), torch.tensor([0, 1, 1])), MLP((2, 2)))
    >>> site.hello().header["dim"], site.hello().header["rows"]
    (6, 3)
    """

    name: str
    rows: Rows
    model: nn.Module
    device: str | torch.device = "cpu"
    kept: DeepSiteState | None = None
    network: Network = field(init=False, repr=False)
    """The model as a function of a flat vector."""

    def __post_init__(self) -> None:
        as_site_name(self.name)
        if not isinstance(self.rows, Rows):
            raise ValueError(f"rows must be Rows(X, y), got {type(self.rows).__name__}.")
        object.__setattr__(self, "network", read_network(self.model, read_device(self.device)))

    @property
    def factor(self) -> Duals | None:
        """η_k as the server counts it; None before the first broadcast."""
        return None if self.kept is None else self.kept.counted[1]

    def hello(self) -> Message:
        """Return the message that a run is made from: counts and the model's signature, no rows."""
        header = {
            "site": self.name,
            "loss": f"cross entropy of the network {signature(self.network)}",
            "dim": len(self.network.start),
            "rows": len(self.rows),
            "weight": float(len(self.rows)),
            "features": [],
            "classes": [],
        }
        return Message("hello", header, {})

    def step(self, broadcast: Message) -> tuple[DeepSite, Message | None]:
        """Answer a broadcast. The same broadcast again gives the same reply; a final message gives None.

        Parameters
        ----------
        broadcast : Message
            Of kind "broadcast" or "final".

        Returns
        -------
        site : DeepSite
            To be kept for the next round.
        reply : Message or None

        Raises
        ------
        MessageError
            When the broadcast is not one that this site can answer; the site is unchanged.
        ValueError
            When the rows do not fit the model.
        """
        terms = DeepTerms.read(broadcast)
        k, team = self._joined(broadcast, terms)
        start = terms.start_of_one(self.network)
        served = read_deep_served(broadcast, terms, start.broadcast)
        kept = self.kept or DeepSiteState(terms, (0, start.duals([0])), None, (0, ""))
        if terms.run != kept.terms.run:
            raise broadcast.refusal("run", f"{kept.terms.run}, which this site takes part in", terms.run)
        kept = replace(_settled(kept, broadcast, served.counted[k]), heard=(served.round, broadcast.digest))
        if broadcast.kind == "final":
            return replace(self, kept=kept), None
        header: dict[str, Any] = {
            "run": terms.run,
            "round": served.round,
            "site": self.name,
            "answers": broadcast.digest,
            "value": list(losses(team, served.q_g, terms.seed, [k])[0]),
            "solved": None,
        }
        arrays: dict[str, Array] = {}
        if served.solve:
            kept, arrays = _trained(kept, team, served, k)
            header["solved"] = bool(arrays)
        return replace(self, kept=kept), Message("reply", header, arrays, f"reply of {self.name}")

    def save(self) -> Message:
        """Return the state as a message of kind "site", without rows.

        Raises
        ------
        ValueError
            When the site has not heard a broadcast yet: there is nothing to keep.
        """
        if self.kept is None:
            raise ValueError(f"site {self.name!r} has not heard a broadcast yet: there is nothing to keep.")
        kept = self.kept
        answers = {"counted": kept.counted} | ({} if kept.pending is None else {"pending": kept.pending})
        header = {
            "site": self.name,
            "data": self._data,
            "terms": kept.terms.spoken(),
            "heard": list(kept.heard),
            "answers": {name: [number] for name, (number, _) in answers.items()},
        }
        arrays: dict[str, Array] = {}
        for name, (_, duals) in answers.items():
            arrays |= {f"{name}/linear": vector(duals.linear), f"{name}/precision": vector(duals.precision)}
        return Message("site", header, arrays)

    def restore(self, message: Message) -> DeepSite:
        """Return this site with the state of `save`.

        Raises
        ------
        MessageError
            When the file is not the state of this site with these rows.
        """
        if message.kind != "site" or message.header.get("site") != self.name:
            raise message.refusal("file", f"the state of site {self.name!r}", message.kind)
        with content_of(message, "the state of a site"):
            if message.header["data"] != self._data:
                raise MessageError(
                    f"{message.source}: the rows of site {self.name!r} must be those of the rounds before, and they "
                    "have changed since; put the old ones back, or start a new run."
                )
            terms = DeepTerms.read(message)
            self._joined(message, terms)
            like = terms.start_of_one(self.network).duals([0])
            answers = {
                name: (int(number), _read_duals(message, f"{name}/", like))
                for name, [number] in message.header["answers"].items()
            }
            number, heard = message.header["heard"]
            kept = DeepSiteState(terms, answers["counted"], answers.get("pending"), (number, heard))
        return replace(self, kept=kept)

    def adopt(self, terms: DeepTerms, copy: Message) -> DeepSite:
        """Return the site as the server knows it, from the server's copy of its dual.

        Raises
        ------
        MessageError
            When the copy is of another run or site.
        """
        copy.require("copy", COPY, {"linear", "precision"})
        for name, expected in (("run", terms.run), ("site", self.name)):
            if copy.header[name] != expected:
                raise copy.refusal(name, expected, copy.header[name])
        counted = as_integer(copy, "counted", copy.header["counted"], 0)
        self._joined(copy, terms)
        duals = _read_duals(copy, "", terms.start_of_one(self.network).duals([0]))
        return replace(self, kept=DeepSiteState(terms, (counted, duals), None, (0, "")))

    @cached_property
    def _data(self) -> str:
        return digest([self.rows.X, self.rows.y])

    def _joined(self, message: Message, terms: DeepTerms) -> tuple[int, Team]:
        """The number of this site in the run, and its part of the team."""
        if self.name not in terms.sites:
            raise message.refusal("sites", f"names with {self.name!r} among them", list(terms.sites))
        k, own = terms.sites.index(self.name), signature(self.network)
        for name, expected, told in (("model", own, terms.model), ("sizes", len(self.rows), terms.sizes[k])):
            if told != expected:
                raise message.refusal(name, f"that of this site, {expected}", told)
        rows = fit(self.rows, f"site {self.name}", self.network, self.network.start.device)
        return k, terms.team(self.network, {k: rows})


def _settled(kept: DeepSiteState, broadcast: Message, counted: int) -> DeepSiteState:
    """Learn whether the last answer was counted."""
    number, answered = kept.heard
    served = broadcast.header["round"]
    if served < number:
        raise broadcast.refusal("round", f"{number} or later: this site has answered that round", served)
    if served == number:
        if broadcast.digest != answered:
            raise broadcast.refusal("digest", f"that of the broadcast of round {number} answered before", "another")
        return replace(kept, pending=None)  # the same step again, from the same state
    if counted == kept.counted[0]:
        return replace(kept, pending=None)
    if kept.pending is None or counted != kept.pending[0]:
        known = [kept.counted[0]] + ([] if kept.pending is None else [kept.pending[0]])
        raise broadcast.refusal(
            "counted", f"a round that this site remembers, {known} (was its state file put back?)", counted
        )
    return replace(kept, counted=kept.pending, pending=None)


def _trained(kept: DeepSiteState, team: Team, served: DeepServed, k: int) -> tuple[DeepSiteState, dict[str, Array]]:
    """Train, and return what is kept and λ_k; nothing to send where it is no distribution."""
    duals = kept.counted[1]
    replies = answer(team, served.q_g, duals, [k], served.round, kept.terms.seed)
    statistics = {name: stack[0] for name, stack in replies.buffers.items()}
    finite = all(bool(torch.isfinite(value).all()) for value in statistics.values())
    if not finite or not bool(is_usable(replies)):
        return replace(kept, pending=None), {}
    arrays = {"linear": vector(replies.linear), **packed(statistics)}
    if team.learns_precision:
        arrays["precision"] = vector(replies.precision)
    return replace(kept, pending=(served.round, moved(team, served.q_g, duals, replies))), arrays


def _read_duals(message: Message, prefix: str, like: Duals) -> Duals:
    return Duals(
        read_tensor(message, f"{prefix}linear", like.linear), read_tensor(message, f"{prefix}precision", like.precision)
    )
