"""A site that trains a network: its rows stay here, and so does its dual; broadcasts come in, replies go out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ..._validation import Array
from ...exchange.ledger import Ledger, counted_by, require_state
from ...exchange.message import Message, content_of
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
class DeepSiteAnswer:
    """η_k after the answer to the broadcast of a round; 0 before the first."""

    round: int
    duals: Duals

    @property
    def numbers(self) -> list[Any]:
        """Those that are kept."""
        return [self.round]

    @property
    def vectors(self) -> dict[str, Array]:
        """Those that are kept."""
        return {"linear": vector(self.duals.linear), "precision": vector(self.duals.precision)}


@dataclass(frozen=True)
class DeepSiteState:
    """What a site remembers between rounds."""

    terms: DeepTerms
    ledger: Ledger[DeepSiteAnswer]


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
        if self.rows.weights is not None:
            raise ValueError("rows must have no weights here: what sites tell each other are numbers of rows.")
        object.__setattr__(self, "network", read_network(self.model, read_device(self.device)))

    @property
    def factor(self) -> Duals | None:
        """η_k as the server counts it; None before the first broadcast."""
        return None if self.kept is None else self.kept.ledger.counted.duals

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
        served = read_deep_served(broadcast, terms, terms.start_of_one(self.network).broadcast)
        start = terms.start_of_one(self.network, served.q_g.mean)
        kept = self.kept or DeepSiteState(terms, Ledger(DeepSiteAnswer(0, start.duals([0]))))
        if terms.run != kept.terms.run:
            raise broadcast.refusal("run", f"{kept.terms.run}, which this site takes part in", terms.run)
        kept = replace(kept, ledger=kept.ledger.settled(broadcast, served.counted[k]))
        # also a final message: what is kept would begin at the mean of its round, and not at that of the first
        if self.kept is None and served.round > 1 and team.method.dual_step:
            raise broadcast.refusal(
                "round", "1, or a copy of the dual must come along, where a site begins", served.round
            )
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
        ledger, arrays = kept.ledger.spoken()
        return Message("site", {"site": self.name, "data": self._data, "terms": kept.terms.spoken(), **ledger}, arrays)

    def restore(self, message: Message) -> DeepSite:
        """Return this site with the state of `save`.

        Raises
        ------
        MessageError
            When the file is not the state of this site with these rows.
        """
        require_state(message, self.name, self._data)
        with content_of(message, "the state of a site"):
            terms = DeepTerms.read(message)
            self._joined(message, terms)
            like = terms.start_of_one(self.network).duals([0])

            def answer(name: str, numbers: list[Any]) -> DeepSiteAnswer:
                [number] = numbers
                number = as_integer(message, f"answers.{name}", number, 0)
                return DeepSiteAnswer(number, _read_duals(message, f"{name}/", like))

            return replace(self, kept=DeepSiteState(terms, Ledger.read(message, answer)))

    def adopt(self, terms: DeepTerms, copy: Message) -> DeepSite:
        """Return the site as the server knows it, from the server's copy of its dual.

        Raises
        ------
        MessageError
            When the copy is of another run or site.
        """
        counted = counted_by(copy, COPY, {"linear", "precision"}, terms.run, self.name)
        self._joined(copy, terms)
        duals = _read_duals(copy, "", terms.start_of_one(self.network).duals([0]))
        return replace(self, kept=DeepSiteState(terms, Ledger(DeepSiteAnswer(counted, duals))))

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


def _trained(kept: DeepSiteState, team: Team, served: DeepServed, k: int) -> tuple[DeepSiteState, dict[str, Array]]:
    """Train, and return what is kept and λ_k; nothing to send where it is no distribution."""
    duals = kept.ledger.counted.duals
    replies = answer(team, served.q_g, duals, [k], served.round, kept.terms.seed)
    statistics = {name: stack[0] for name, stack in replies.buffers.items()}
    if not bool(is_usable(replies, served.q_g.buffers)):
        return kept, {}
    arrays = {"linear": vector(replies.linear), **packed(statistics)}
    if team.learns_precision:
        arrays["precision"] = vector(replies.precision)
    answered = DeepSiteAnswer(served.round, moved(team.at(served.round), served.q_g, duals, replies))
    return replace(kept, ledger=replace(kept.ledger, pending=answered)), arrays


def _read_duals(message: Message, prefix: str, like: Duals) -> Duals:
    return Duals(
        read_tensor(message, f"{prefix}linear", like.linear), read_tensor(message, f"{prefix}precision", like.precision)
    )
