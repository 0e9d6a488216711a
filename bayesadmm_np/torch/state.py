"""The explicit state of a federated run on networks, and its file: one npz with a JSON text, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..splitting.history import Edges
from .functional import Memory
from .metrics import Scores

__all__ = ["Broadcast", "Duals", "RoundRecord", "State", "digest", "load_state", "parts", "save_state"]


@dataclass(frozen=True)
class RoundRecord:
    """One round.

    Attributes
    ----------
    round : int
        From 1.
    objective : float
        Σ_k E_{q_g}[ℓ_k]/τ + KL(q_g‖prior) after the round; from one antithetic pair of samples, with the same noise
        in every round, where the precision is learned. Clients that were dropped, or whose loss is not finite, are
        left out.
    alpha : float
        The server's step.
    edges : Edges
        Of the duality circuit (Eq. 13) after the round, as in the core; that of the natural gradients is infinite,
        because estimating it is left to `Result.certificate`.
    present, dropped : tuple of int
        Clients that took part, and of these the ones whose answer was not finite.
    bytes_down, bytes_up : int
        Sent to, and by, the clients that took part.
    seconds : float
        Of the round, without objective, edges and scores.
    at_mean, ensemble : Scores or None
        Of the evaluation rows: at the server's mean, and averaged over samples of its posterior.
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
    at_mean: Scores | None
    ensemble: Scores | None

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RoundRecord:
        """Inverse of `dataclasses.asdict`, also after JSON."""
        scores = {name: plain[name] and Scores(**plain[name]) for name in ("at_mean", "ensemble")}
        lists = {name: tuple(plain[name]) for name in ("present", "dropped")}
        return cls(**{**plain, **scores, **lists, "edges": Edges(**plain["edges"])})


@dataclass(frozen=True)
class Broadcast:
    """What a client gets of the server: m_g of shape (P,), s_g of shape (P,) or (1,), and the network's statistics.

    With FedLap-Func also the shared points.
    """

    mean: Tensor
    precision: Tensor
    buffers: dict[str, Tensor]
    memory: Memory | None = None


@dataclass(frozen=True)
class Duals:
    """η_k = (v_k, V_k) of some clients, one row a client; of shape (1, 1) where the method has none."""

    linear: Tensor
    precision: Tensor


@dataclass(frozen=True)
class State:
    """Everything that the next round depends on, and the history.

    Attributes
    ----------
    mean : Tensor, shape (P,)
        m_g.
    precision : Tensor, shape (P,) or (1,)
        s_g; one number where the family does not learn it.
    site_linear, site_precision : Tensor, shape (K, P), and (K, P) or (1, 1)
        η_k = (v_k, u_k).
    client_linear, client_precision : Tensor
        λ_k = (s_km_k, s_k) as last reported, of the same shapes.
    buffers : dict
        Running statistics of the network, averaged over clients.
    start_objective : float
        Before the first round.
    history : tuple of RoundRecord
    memory : Memory or None
        Shared inputs and soft labels; only FedLap-Func has them, after the first answer.
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

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.history)

    @property
    def broadcast(self) -> Broadcast:
        """What the clients get in the next round."""
        return Broadcast(self.mean, self.precision, self.buffers, self.memory)

    def duals(self, clients: Sequence[int]) -> Duals:
        """Return η_k of some clients; of all these themselves, which are large, and no copy."""
        chosen = list(clients)
        sites = self.site_linear, self.site_precision
        return Duals(*(site if len(site) == 1 or chosen == list(range(len(site))) else site[chosen] for site in sites))


AT_ONCE = 2**19
"""Numbers of the clients that are looked at together."""


def parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Some clients' rows at a time: what is made of those of all would be the peak of a round's memory."""
    return rows.split(max(AT_ONCE // rows.shape[1], 1))


MEMORY = tuple(field.name for field in fields(Memory))
TENSORS = ("mean", "precision", "site_linear", "site_precision", "client_linear", "client_precision")


def digest(tensors: list[Tensor]) -> str:
    """Hash tensors, so that a run is not resumed with other data or another network."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def save_state(path: str | os.PathLike[str], state: State, description: dict[str, Any]) -> None:
    """Write the state atomically: a crash leaves the old file or the new one, never half of one."""
    arrays = {name: getattr(state, name).cpu().numpy() for name in TENSORS}
    arrays.update({f"buffer/{name}": value.cpu().numpy() for name, value in state.buffers.items()})
    if state.memory is not None:
        arrays.update({f"memory/{name}": getattr(state.memory, name).cpu().numpy() for name in MEMORY})
    meta = {
        **description,
        "start_objective": state.start_objective,
        "history": [asdict(record) for record in state.history],
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent or ".", suffix=".npz.part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_state(path: str | os.PathLike[str], like: State, description: dict[str, Any]) -> State:
    """Read a state and check that it belongs to this run.

    Raises
    ------
    ValueError
        When the file is damaged or of another run; the message names what differs.
    FileNotFoundError
        When there is no such file.
    """
    where = f"resume={os.fspath(path)!r}"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = dict(json.loads(arrays.pop("meta").tobytes()))
        start_objective = float(meta.pop("start_objective"))
        history = tuple(RoundRecord.from_dict(plain) for plain in meta.pop("history"))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where}: there is no such file.") from error
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{where} is not a readable checkpoint.") from error
    for key, value in json.loads(json.dumps(description)).items():
        if meta.get(key) != value:
            raise ValueError(f"{where} is of another run: its {key} is {meta.get(key)!r}, expected {value!r}.")

    def read(name: str, template: Tensor) -> Tensor:
        array = arrays.get(name)
        if array is None or array.shape != tuple(template.shape):
            raise ValueError(f"{where} is damaged: {name} is missing or misshapen.")
        return torch.from_numpy(array).to(device=template.device, dtype=template.dtype)

    tensors = {name: read(name, getattr(like, name)) for name in TENSORS}
    buffers = {name: read(f"buffer/{name}", value) for name, value in like.buffers.items()}
    memory = _read_memory(arrays, like.mean, where) if any(name.startswith("memory/") for name in arrays) else None
    return State(**tensors, buffers=buffers, start_objective=start_objective, history=history, memory=memory)


def _read_memory(arrays: dict[str, Any], like: Tensor, where: str) -> Memory:
    """The shared points, which grow as clients join, so that no template has their shape."""
    try:
        memory = Memory(*(torch.from_numpy(arrays[f"memory/{name}"]).to(like.device) for name in MEMORY))
    except KeyError as error:
        raise ValueError(f"{where} is damaged: {error.args[0]} is missing.") from error
    if len({len(getattr(memory, name)) for name in MEMORY}) > 1:
        raise ValueError(f"{where} is damaged: the shared points are misshapen.")
    return memory
