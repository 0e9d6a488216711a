"""The server of a run of a network: hellos make a run, replies make the next broadcast, and no rows are ever here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from ...exchange.coordinator import Outcome, by_site, digests_of, read_hellos, require_running
from ...exchange.message import LIMIT, Message, content_of
from ...splitting.methods import Method
from ...splitting.status import Status
from ...torch import AdamSteps, IVONSteps, RoundRecord
from ...torch.certificate import pooled_objective
from ...torch.client import Replies
from ...torch.network import Network
from ...torch.server import Failure, completed, gathered
from ...torch.state import TENSORS, State
from ...torch.team import Team, build, read_device, read_network
from .terms import DeepTerms, packed, read_q, read_tensor, signature, spoken_q, unpacked, vector
from .wire import FINAL, DeepAnswered, DeepSent, DeepServed, read_answered, size_of

__all__ = ["DeepCoordinator", "final_model", "terms_of"]


@dataclass(frozen=True)
class _Open:
    """A round that was gathered and waits for the sites' losses at its q_g."""

    state: State
    present: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DeepCoordinator:
    """The server of a run as an explicit state with a pure step: (server, replies) → server.

    A round needs one exchange. The reply to the broadcast of q_g(t) holds ℓ_k at the points that stand for E_{q_g(t)},
    which complete the record of round t, and λ_k of round t + 1. After the last round sites are asked for ℓ_k alone.

    Made by `start`, `step` and `restore`. Wall times are not recorded: the same messages make the same state.

    Parameters
    ----------
    terms : DeepTerms
    network : Network
        Of the server's model; on the CPU.
    state : State
        After the last round whose record is complete.
    gathered : object or None
        The round that waits for its reports.
    counted : tuple of int
        Round of each site's last answer in the sum; 0 before the first.
    taken : tuple of str
        Digests of the replies of the last step, by which a repeated step is known.
    outcome : Outcome or None
        None while the run goes on.

    Examples
    --------
    See `DeepPlan` for a whole run.

    >>> import torch
    >>> from bayesadmm_np.flower.deep import DeepCoordinator, DeepSite
    >>> from bayesadmm_np.torch import IVONADMM, MLP, Rows
    >>> model = MLP((2, 2))
    >>> site = DeepSite("A", Rows(torch.zeros(3, 2), torch.tensor([0, 1, 1])), model)
    >>> server = DeepCoordinator.start([site.hello()], IVONADMM(), model)
    >>> server.broadcast().kind, server.number
    ('broadcast', 1)
    """

    terms: DeepTerms
    network: Network
    state: State
    gathered: _Open | None
    counted: tuple[int, ...]
    taken: tuple[str, ...]
    outcome: Outcome | None

    @classmethod
    def start(
        cls,
        hellos: Sequence[Message],
        method: Method,
        model: nn.Module,
        prior_precision: float = 1.0,
        *,
        solver: AdamSteps | IVONSteps | None = None,
        temperature: float = 1.0,
        rounds: int = 10,
        seed: int = 0,
    ) -> DeepCoordinator:
        """Make a run of the sites that said hello; it starts at the model's own parameters.

        Parameters
        ----------
        hellos : sequence of Message
            One a site; the sites' order is that of their names.
        method, model, prior_precision, solver, temperature, rounds, seed
            As in `bayesadmm_np.torch.run`.

        Raises
        ------
        MessageError
            When a hello is damaged, or a site's model has other layers.
        ValueError
            When an argument is out of range, or things do not fit each other.
        """
        read = read_hellos(hellos)
        network = read_network(model, read_device("cpu"))
        for hello in read:
            for field, expected in _introduction(signature(network), len(network.start)).items():
                if hello.header[field] != expected:
                    raise hello.refusal(field, f"that of the server's model, {expected!r}", hello.header[field])
        options: dict[str, Any] = {"solver": solver, "temperature": temperature, "rounds": rounds, "seed": seed}
        sites = {hello.header["site"]: hello.header["rows"] for hello in read}
        terms = terms_of(network, sites, method, prior_precision, **options)
        state = terms.team(network, {}).start()
        size = 2 * sum(8 * getattr(state, part).numel() for part in TENSORS)
        if size > LIMIT:
            raise ValueError(f"sites times parameters must make a checkpoint of at most {LIMIT} bytes, got {size}.")
        return cls(terms, network, state, None, (0,) * len(read), (), None)

    @cached_property
    def team(self) -> Team:
        """What a round is computed with."""
        return self.terms.team(self.network, {})

    @property
    def number(self) -> int:
        """Round of the broadcast that waits for replies (of the final message: one more than the last)."""
        if self.outcome is not None:
            return self.outcome.round
        return self.held.round + (self.gathered is not None) + 1

    @property
    def held(self) -> State:
        """The sites' factors as they are counted."""
        return self.state if self.gathered is None else self.gathered.state

    @cached_property
    def served(self) -> DeepServed:
        """What the outstanding broadcast says."""
        solve = self.outcome is None and self.number <= self.terms.rounds
        return DeepServed(self.number, self.held.broadcast, solve, self.counted)

    def broadcast(self) -> Message:
        """Return the message to the sites: q_g, or when the run has ended the final one."""
        served = self.served
        header: dict[str, Any] = {
            "run": self.terms.run,
            "round": served.round,
            "counted": list(served.counted),
            "terms": self.terms.spoken(),
        }
        arrays = spoken_q(served.q_g)
        if self.outcome is None:
            return Message("broadcast", {**header, "solve": served.solve}, arrays, f"broadcast {served.round}")
        header |= {
            "status": self.outcome.status.name,
            "message": self.outcome.message,
            "objective": [self.state.start_objective, *(record.objective for record in self.state.history)],
        }
        return Message("final", header, arrays, "final message")

    def step(self, replies: Sequence[Message]) -> DeepCoordinator:
        """Take in the replies to the outstanding broadcast, of all sites or of those that came.

        A site without a reply keeps its η_k and λ_k in the sum, and so does one that says that its λ_k is no
        distribution. The objective of a round at which a site did not report is NaN. The same replies again change
        nothing.

        Parameters
        ----------
        replies : sequence of Message
            At least one.

        Returns
        -------
        DeepCoordinator

        Raises
        ------
        MessageError
            When a reply is damaged, or belongs to another run, round, site or broadcast.
        ValueError
            When there are no replies, or the run has ended.
        """
        taken = digests_of(replies)
        if taken == self.taken:
            return self
        require_running(self.outcome)
        found = {
            k: read_answered(message, self.terms, self.team, self.sent)
            for k, message in by_site(replies, self.terms.sites).items()
        }
        return replace(self._advanced(found), taken=taken)

    def model(self) -> nn.Module:
        """Return a copy of the model with its parameters set to m_g and its statistics to the sites' mean."""
        return self.network.module_at(self.state.mean, self.state.buffers)

    def save(self) -> Message:
        """Return the whole state as a message of kind "server"."""
        waiting, outcome = self.gathered, self.outcome
        header: dict[str, Any] = {
            "terms": self.terms.spoken(),
            "counted": list(self.counted),
            "taken": list(self.taken),
            "start_objective": self.state.start_objective,
            "history": [asdict(record) for record in self.state.history],
            "waiting": None if waiting is None else [list(waiting.present), list(waiting.dropped)],
            "outcome": None if outcome is None else [outcome.status.name, outcome.message, outcome.round],
        }
        arrays = _spoken_state("state", self.state)
        if waiting is not None:
            arrays |= _spoken_state("waiting", waiting.state)
        return Message("server", header, arrays)

    @classmethod
    def restore(cls, message: Message, model: nn.Module) -> DeepCoordinator:
        """Return the server of a `save`.

        Raises
        ------
        MessageError
            When the file is not the state of a server, or that of one with another model.
        """
        if message.kind != "server":
            raise message.refusal("kind", "'server'", message.kind)
        terms, header = DeepTerms.read(message), message.header
        network = read_network(model, read_device("cpu"))
        if terms.model != signature(network):
            raise message.refusal("model", f"the signature of this model, {signature(network)}", terms.model)
        with content_of(message, "the state of a server"):
            like = terms.team(network, {}).start()
            history = tuple(RoundRecord.from_dict(plain) for plain in header["history"])
            like = replace(like, start_objective=float(header["start_objective"]), history=history)
            waiting, outcome = header["waiting"], header["outcome"]
            if waiting is not None:
                present, dropped = (tuple(sites) for sites in waiting)
                waiting = _Open(_read_state(message, "waiting", like), present, dropped)
            if outcome is not None:
                outcome = Outcome(Status[outcome[0]], outcome[1], outcome[2], None)
            return cls(
                terms=terms,
                network=network,
                state=_read_state(message, "state", like),
                gathered=waiting,
                counted=tuple(header["counted"]),
                taken=tuple(header["taken"]),
                outcome=outcome,
            )

    # ------------------------------------------------------------------------------------------------
    # What `conduct` asks of a server beside its steps
    # ------------------------------------------------------------------------------------------------

    @cached_property
    def sent(self) -> DeepSent:
        """The outstanding broadcast: what it says, and its digest."""
        return DeepSent(self.served, self.broadcast().digest)

    @property
    def reply_size(self) -> int:
        """Numbers that a reply holds at most."""
        return size_of(self.team)

    def check(self, reply: Message, sent: DeepSent) -> None:
        """Raise MessageError unless the reply answers this broadcast, and holds what `step` can take in."""
        read_answered(reply, self.terms, self.team, sent)

    def without_value(self, replies: Mapping[str, Message]) -> list[str]:
        """Return no site: a loss that is not finite is left out of the objective, and its λ_k counts all the same."""
        return []

    def copy_of(self, name: str) -> Message:
        """Return η_k as the server counts it."""
        k = self.terms.sites.index(name)
        duals = self.held.duals([k])
        header = {"run": self.terms.run, "site": name, "counted": self.counted[k]}
        arrays = {"linear": vector(duals.linear), "precision": vector(duals.precision)}
        return Message("copy", header, arrays, f"copy for {name}")

    def introduction(self, name: str) -> dict[str, Any]:
        """Return what the site said of itself when the run began."""
        rows = self.terms.sizes[self.terms.sites.index(name)]
        return {**_introduction(self.terms.model, self.terms.dim), "rows": rows, "weight": float(rows)}

    # ------------------------------------------------------------------------------------------------

    def _advanced(self, heard: dict[int, DeepAnswered]) -> DeepCoordinator:
        """The loop's decisions in the loop's order: complete round t, end or not, gather round t + 1."""
        state = self._measured(heard)
        if isinstance(state, Failure):
            return self._ended(self.state, state.status, state.message)
        number = self.number
        if number > self.terms.rounds:
            return self._ended(state, Status.ROUND_LIMIT, "all rounds done.")
        good = tuple(k for k, one in heard.items() if one.linear is not None)
        after = gathered(self.team, state, self._replies(state, {k: heard[k] for k in good}))
        if isinstance(after, Failure):
            return self._ended(state, after.status, after.message)
        if not all(bool(torch.isfinite(getattr(after, part)).all()) for part in TENSORS):
            # no site, and no reader of the checkpoint, would take it; one process ends on the objective there
            lost = completed(self.team, state, after, float("nan"), tuple(heard), (), 0.0)
            assert isinstance(lost, Failure)
            return self._ended(state, lost.status, lost.message)
        waiting = _Open(after, tuple(heard), tuple(k for k in heard if k not in good))
        counted = tuple(number if k in good else old for k, old in enumerate(self.counted))
        return replace(self, state=state, gathered=waiting, counted=counted)

    def _measured(self, heard: dict[int, DeepAnswered]) -> State | Failure:
        """Complete the record of the round that waits, by what the sites report at its q_g."""
        waiting, held = self.gathered, self.held
        dropped = () if waiting is None else waiting.dropped
        asked = [k for k in range(len(self.terms.sites)) if k not in dropped]
        is_whole = all(k in heard for k in asked)
        reached = pooled_objective(self.team, held, [heard[k].value for k in asked]) if is_whole else float("nan")
        if waiting is None:
            return replace(held, start_objective=reached)
        return completed(self.team, self.state, held, reached, waiting.present, dropped, 0.0, is_whole)

    def _replies(self, state: State, heard: dict[int, DeepAnswered]) -> Replies:
        """The usable replies, stacked as one process has them."""
        linear = [one.linear for one in heard.values() if one.linear is not None]
        precision = [one.precision for one in heard.values() if one.precision is not None]
        return Replies(
            tuple(heard),
            torch.stack(linear) if linear else state.client_linear[:0],
            torch.stack(precision) if precision else state.precision[None],
            {name: torch.stack([one.buffers[name] for one in heard.values()]) for name in state.buffers if heard},
        )

    def _ended(self, state: State, status: Status, message: str) -> DeepCoordinator:
        return replace(self, state=state, gathered=None, outcome=Outcome(status, message, self.number + 1, None))


def terms_of(
    network: Network,
    sites: Mapping[str, int],
    method: Method,
    prior_precision: float = 1.0,
    *,
    solver: AdamSteps | IVONSteps | None = None,
    temperature: float = 1.0,
    rounds: int = 10,
    seed: int = 0,
) -> DeepTerms:
    """Return the terms of a run whose sites have so many rows; a ValueError says what is wrong with an argument."""
    names, sizes = tuple(sites), tuple(sites.values())
    team = build(method, network, sizes, {}, prior_precision, temperature, solver, batched=False)
    numbers = team.delta, team.temperature, rounds, seed
    return DeepTerms(method, team.solver, names, sizes, signature(network), len(network.start), *numbers)


def final_model(message: Message, model: nn.Module) -> nn.Module:
    """Return a copy of a model with the parameters m_g and the statistics of a final message.

    Parameters
    ----------
    message : Message
        Of kind "final"; its vector "precision" is s_g.
    model : Module
        With the layers of the run's.

    Raises
    ------
    MessageError
        When the message is not a final one, or of another model.

    Examples
    --------
    See `DeepPlan` for a whole run.

    >>> import torch
    >>> from bayesadmm_np.exchange import Message
    >>> from bayesadmm_np.flower.deep import final_model
    >>> try:
    ...     final_model(Message("hello", {}, {}), torch.nn.Linear(1, 2))
    ... except ValueError as error:
    ...     print(error)
    message: kind must be 'final', got hello.
    """
    message.require("final", FINAL, set(message.arrays))
    terms, network = DeepTerms.read(message), read_network(model, read_device("cpu"))
    if terms.model != signature(network):
        raise message.refusal("model", f"the signature of this model, {signature(network)}", terms.model)
    with content_of(message, "the result of a run"):
        q_g = read_q(message, terms.start_of_one(network).broadcast)
    return network.module_at(q_g.mean, q_g.buffers)


def _introduction(model: str, dim: int) -> dict[str, Any]:
    return {"loss": f"cross entropy of the network {model}", "dim": dim, "features": [], "classes": []}


def _spoken_state(name: str, state: State) -> dict[str, Any]:
    arrays = {f"{name}/{part}": vector(getattr(state, part)) for part in TENSORS}
    return arrays | {f"{name}/{part}": values for part, values in packed(state.buffers).items()}


def _read_state(message: Message, name: str, like: State) -> State:
    tensors: dict[str, Any] = {part: read_tensor(message, f"{name}/{part}", getattr(like, part)) for part in TENSORS}
    return replace(like, **tensors, buffers=unpacked(message, f"{name}/statistics", like.buffers))
