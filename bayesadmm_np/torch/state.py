"""The explicit state of a federated run on networks, and its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from .._archive import Archive, content_of, refusal
from ..splitting.state import read_checkpoint
from ..splitting.status import Edges
from .functional import Memory
from .metrics import AnyScores, scores_of
from .problem import Moments


@dataclass(frozen=True)
class RoundRecord:
    """One round.

    Attributes
    ----------
    round : int
        Number of the round, from 1.
    objective : float
        Σ_k E_{q_g}[ℓ_k]/τ + KL(q_g‖prior) after the round; from one antithetic pair of samples, with the same noise
        in every round, where the precision is learned. Clients that were dropped, or whose loss is not finite, are
        left out. NaN where `objective_every` left it out.
    alpha : float
        The server's step.
    edges : Edges
        Edges of the duality circuit (Eq. 13) after the round, as in the core; that of natural gradients is infinite,
        because estimating it is left to `Result.certificate`. NaN in rounds without an objective. A method that
        keeps no answers of absent clients (no dual, mean over those present) has the broadcast edge of the last ones.
    present, dropped : tuple of int
        Clients that took part, and the clients among them whose answer was not finite.
    bytes_down, bytes_up : int
        Sent to, and by, the clients that took part.
    seconds : float
        Duration of the round, without objective, edges and scores.
    at_mean, ensemble : Scores, RegressionScores or LossScores, or None
        Scores on the evaluation rows: at the server's mean, and averaged over samples of its posterior.
    precision_median : float
        Median of s_g after the round: where it rises without end, steps and samples shrink.
    """

    round: int
    objective: float
    alpha: float
    edges: Edges
    present: tuple[int, ...]
    dropped: tuple[int, ...]
    bytes_down: int
    bytes_up: int
    seconds: float
    at_mean: AnyScores | None
    ensemble: AnyScores | None
    precision_median: float = float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and lists (for JSON)."""
        scores = {"at_mean": self.at_mean, "ensemble": self.ensemble}
        plain = {name: value and {**vars(value)} for name, value in scores.items()}
        return {**vars(self), **plain, "edges": {**vars(self.edges)}}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RoundRecord:
        """Inverse of `to_dict`, also after JSON."""
        scores = {name: plain[name] and scores_of(plain[name]) for name in ("at_mean", "ensemble")}
        lists = {name: tuple(plain[name]) for name in ("present", "dropped")}
        for one in (plain, plain["edges"]):
            for item in fields(Edges if one is plain["edges"] else cls):
                require_number(item.name, one.get(item.name, item.default), item.type)
        return cls(**{**plain, **scores, **lists, "edges": Edges(**plain["edges"])})


@dataclass(frozen=True)
class Broadcast:
    """Message of the server to a client: m_g, shape (P,), s_g, shape (P,) or (1,), statistics and shared points."""

    mean: Tensor
    precision: Tensor
    buffers: dict[str, Tensor]
    memory: Memory | None = None


@dataclass(frozen=True)
class Duals:
    """Duals η_k = (v_k, V_k) of some clients, one row a client, or of shape (1, 1); and moments where they are kept."""

    linear: Tensor
    precision: Tensor
    moments: Moments | None = None


@dataclass(frozen=True)
class State:
    """Data of the next round, and the history.

    m_g and s_g have shape (P,), the duals η_k = (v_k, u_k) and the last answers λ_k = (s_km_k, s_k) shape (K, P); a
    precision that is not learned is one number. Without a dual and with a mean over the clients present, λ_k are those
    of `answered` alone. `buffers` are the network's statistics, averaged over clients.
    """

    mean: Tensor
    precision: Tensor
    site_linear: Tensor
    site_precision: Tensor
    client_linear: Tensor
    client_precision: Tensor
    buffers: dict[str, Tensor]
    start_objective: float
    history: tuple[RoundRecord, ...]
    memory: Memory | None = None
    moments: Moments | None = None

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.history)

    @property
    def answered(self) -> tuple[int, ...]:
        """Clients of the last round that had an answer."""
        each = (tuple(k for k in record.present if k not in record.dropped) for record in reversed(self.history))
        return next(filter(None, each), ())

    @property
    def broadcast(self) -> Broadcast:
        """Message of the next round."""
        return Broadcast(self.mean, self.precision, self.buffers, self.memory)

    def duals(self, clients: Sequence[int]) -> Duals:
        """Return η_k of some clients; where they are all clients, this state's own tensors and no copy."""
        chosen = list(clients)
        sites = self.site_linear, self.site_precision
        v, V = (site if len(site) == 1 or chosen == list(range(len(site))) else site[chosen] for site in sites)
        return Duals(v, V, None if self.moments is None else self.moments.of(chosen))

    def with_answers(self, count: int) -> State:
        """Return a start with its one λ_k repeated for so many clients; a start with λ_k of all K stays as it is."""
        if count < 2 or len(self.client_linear) > 1:
            return self
        own = self.client_precision
        own = own.expand(count, -1) if own.shape[1] > 1 else own
        return replace(self, client_linear=self.client_linear.expand(count, -1), client_precision=own)


AT_ONCE = 2**19
"""Most numbers in a group of clients whose rows are looked at together."""


def parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Split rows into groups of a few clients: a temporary of all clients' size would be a round's peak of memory."""
    return rows.split(max(AT_ONCE // rows.shape[1], 1))


KIND = "checkpoint of networks"
MEMORY = tuple(field.name for field in fields(Memory))
TENSORS = ("mean", "precision", "site_linear", "site_precision", "client_linear", "client_precision")


def save_state(path: str | os.PathLike[str], state: State, description: dict[str, Any]) -> None:
    """Write a checkpoint atomically: a crash leaves the old file or the new one, never half of one."""
    tensors = {name: getattr(state, name) for name in TENSORS}
    tensors.update({f"buffer/{name}": value for name, value in state.buffers.items()})
    if state.memory is not None:
        tensors.update({f"memory/{name}": getattr(state.memory, name) for name in MEMORY})
    if state.moments is not None:
        tensors["moments"] = state.moments.vectors
        tensors["moment_steps"] = torch.tensor(state.moments.steps)
    header = {
        "run": description,
        "start_objective": state.start_objective,
        "history": [record.to_dict() for record in state.history],
    }
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    Archive(KIND, header, arrays).write(path, limit=None)


def load_state(path: str | os.PathLike[str], like: State, description: dict[str, Any]) -> State:
    """Read a checkpoint; one that is damaged or of another run is an `ArchiveError`, which names what differs."""
    archive = read_checkpoint(path, KIND, description)
    with content_of(archive, "the state of a run"):
        start, plain = archive.header["start_objective"], archive.header["history"]
        require_number("start_objective", start, "float")
        like = replace(like, history=tuple(RoundRecord.from_dict(record) for record in plain))
        numbers = [record.round for record in like.history]
        if numbers != list(range(1, len(numbers) + 1)):
            raise archive.refusal("round", "1, 2, 3, ... in the history", numbers)
        like = like.with_answers(len(like.answered))
        tensors = {name: read_tensor(archive, name, getattr(like, name)) for name in TENSORS}
        moments = like.moments
        if moments is not None:
            counts = read_tensor(archive, "moment_steps", torch.tensor(moments.steps))
            moments = Moments(read_tensor(archive, "moments", moments.vectors), tuple(counts.tolist()))
        return State(
            **tensors,
            buffers={name: read_tensor(archive, f"buffer/{name}", value) for name, value in like.buffers.items()},
            start_objective=start,
            history=like.history,
            memory=_read_memory(archive, like.mean),
            moments=moments,
        )


def require_number(name: str, value: object, kind: object) -> None:
    """Raise an ArchiveError unless a value is of the field's kind, where that is 'int' or 'float'."""
    if kind in ("int", "float") and type(value) not in ((int,) if kind == "int" else (int, float)):
        raise refusal(name, f"a number, {kind}", value)


def read_tensor(archive: Archive, name: str, like: Tensor) -> Tensor:
    """Return an array as a tensor like this one, or refuse it; a precision is positive, and a mask may be infinite."""
    found = _tensor(archive, name, ~torch.isfinite(like.cpu()))
    if found.shape != like.shape or found.dtype != like.dtype:
        raise archive.refusal(name, f"{like.dtype} of shape {tuple(like.shape)}", f"{found.dtype} {tuple(found.shape)}")
    if name in ("precision", "client_precision") and not bool((found > 0).all()):
        raise archive.refusal(name, "a distribution's: positive", f"{float(found.min()):g}")
    return found.to(like.device)


def _tensor(archive: Archive, name: str, is_mask: Tensor | None = None) -> Tensor:
    """Return a finite array as a tensor over the same memory: the archive is read for this alone."""
    if name not in archive.arrays:
        raise archive.refusal(name, "an array", "nothing")
    array = archive.arrays[name]
    array.flags.writeable = True
    found = torch.from_numpy(array)
    wrong = ~torch.isfinite(found)
    if is_mask is not None and is_mask.shape == wrong.shape:
        wrong &= ~is_mask
    if bool(wrong.any()):
        raise archive.refusal(name, "finite", f"{int(wrong.sum())} NaN or infinite numbers")
    return found


def _read_memory(archive: Archive, like: Tensor) -> Memory | None:
    """The shared points, if there are any; they grow as clients join, so that no template has their shape."""
    if not any(name.startswith("memory/") for name in archive.arrays):
        return None
    memory = Memory(*(_tensor(archive, f"memory/{name}").to(like.device) for name in MEMORY))
    lengths = {name: len(getattr(memory, name)) for name in MEMORY}
    if len(set(lengths.values())) > 1:
        raise archive.refusal("memory", "as many inputs as labels", lengths)
    return memory
