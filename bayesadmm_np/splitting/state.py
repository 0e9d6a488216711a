"""The explicit state of a run, and its file: one npz with the arrays and a JSON text, never a pickle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Coordinates, Displacement, Natural
from ..losses.base import Loss
from ..losses.expectations import Rule
from .accelerated import Accelerated, Memory
from .history import RoundRecord
from .methods import Method

__all__ = ["State", "describe", "digest", "load_state", "replace_atomically", "save_state"]

SCHEMA = 2


@dataclass(frozen=True)
class State:
    """Everything that the next round depends on, and the history.

    Attributes
    ----------
    q_g : ExponentialFamily
    sites : tuple of Natural
        η_k.
    naturals : tuple of Natural
        λ_k of the last round (λ_g before the first).
    memory : tuple of Memory
        Of an accelerated method.
    start_objective : float
    history : tuple of RoundRecord
    """

    q_g: ExponentialFamily
    sites: tuple[Natural, ...]
    naturals: tuple[Natural, ...]
    memory: tuple[Memory, ...]
    start_objective: float
    history: tuple[RoundRecord, ...]

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.history)


def describe(
    method: Method | Accelerated,
    prior: ExponentialFamily,
    clients: Sequence[tuple[Loss, Rule]],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Return what a checkpoint must agree on with the run that resumes it."""
    row = method.method if isinstance(method, Accelerated) else method
    plain = {k: v for k, v in dataclasses.asdict(row).items() if k not in ("expectation", "families", "knobs")}
    return {
        "schema": SCHEMA,
        "method": {**plain, "expectation": repr(row.expectation)},
        "memory": int(method.memory) if isinstance(method, Accelerated) else 0,
        "family": type(prior).__name__,
        "shapes": [list(shape) for shape in prior.natural.shapes],
        "n_clients": len(clients),
        "clients": [[type(loss).__name__, loss.n_rows, loss.dim, repr(rule)] for loss, rule in clients],
        "prior": digest([prior.natural, prior.start().natural]),
        "data": [digest(loss) for loss, _ in clients],
        **settings,
    }


def digest(thing: object) -> str:
    """Hash the arrays that an object holds, so that a run is not resumed with other data or another prior."""
    found = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, np.ndarray):
            found.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Coordinates):
            feed(value.parts)
        elif isinstance(value, list | tuple):
            for part in value:
                feed(part)
        elif isinstance(value, Loss):
            feed([vars(value)[name] for name in sorted(vars(value))])

    feed(thing)
    return found.hexdigest()[:16]


def save_state(path: str | os.PathLike[str], state: State, description: dict[str, Any]) -> None:
    """Write the state atomically: a crash leaves the old file or the new one, never half of one."""
    naturals: dict[str, Coordinates] = {"server": state.q_g.natural}
    for k, (site, posterior) in enumerate(zip(state.sites, state.naturals, strict=True)):
        naturals[f"site{k}"] = site
        naturals[f"posterior{k}"] = posterior
    arrays: dict[str, Any] = {}
    for i, item in enumerate(state.memory):
        naturals[f"memory{i}/server"] = item.natural
        naturals.update({f"memory{i}/site{k}": site for k, site in enumerate(item.sites)})
        naturals.update({f"memory{i}/move{k}": move for k, move in enumerate(item.moves)})
    for name, natural in naturals.items():
        arrays.update({f"{name}/part{j}": part for j, part in enumerate(natural.parts)})
    meta = {
        **description,
        "start_objective": state.start_objective,
        "n_memory": len(state.memory),
        "history": [record.to_dict() for record in state.history],
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    replace_atomically(Path(path), lambda file: np.savez(file, **arrays))


def load_state(path: str | os.PathLike[str], prior: ExponentialFamily, description: dict[str, Any]) -> State:
    """Read a state and check that it belongs to this run.

    Raises
    ------
    ValueError
        When the file is damaged, of another schema, or of another run; the message names what differs.
    FileNotFoundError
        When there is no such file.
    """
    where = f"resume={os.fspath(path)!r}"
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = dict(json.loads(arrays.pop("meta").tobytes()))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where}: there is no such file.") from error
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"{where} is not a readable checkpoint.") from error
    for key, value in description.items():
        if meta.get(key) != json.loads(json.dumps(value)):
            raise ValueError(f"{where} is of another run: its {key} is {meta.get(key)!r}, expected {value!r}.")
    try:
        return _rebuild(arrays, meta, prior)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where} is damaged: {error}.") from error


def _rebuild(arrays: dict[str, Array], meta: dict[str, Any], prior: ExponentialFamily) -> State:
    def natural(name: str) -> Natural:
        parts = (arrays.get(f"{name}/part{j}", np.empty(0)) for j in range(len(prior.natural.parts)))
        read = Natural(*parts)
        if read.shapes != prior.natural.shapes or not read.is_finite():
            raise ValueError(f"{name} is missing, misshapen or not finite")
        return read

    clients = range(meta["n_clients"])
    return State(
        q_g=prior.with_natural(natural("server")),
        sites=tuple(natural(f"site{k}") for k in clients),
        naturals=tuple(natural(f"posterior{k}") for k in clients),
        memory=tuple(
            Memory(
                tuple(natural(f"memory{i}/site{k}") for k in clients),
                natural(f"memory{i}/server"),
                tuple(Displacement(*natural(f"memory{i}/move{k}").parts) for k in range(len(clients) + 1)),
            )
            for i in range(meta["n_memory"])
        ),
        start_objective=meta["start_objective"],
        history=tuple(RoundRecord.from_dict(plain) for plain in meta["history"]),
    )


def replace_atomically(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """Let `fill` write a file beside `path` and move it there when it is whole and on the disk."""
    handle, temporary = tempfile.mkstemp(dir=path.parent or ".", suffix=".npz.part")
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
