"""The explicit state of a run, and its checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Coordinates, Natural
from ..families.gaussian import LearnedPrecisionGaussian
from ..losses.base import Loss
from .status import RoundRecord
from .tree import pack, require_like, unpack

if TYPE_CHECKING:
    from .._archive import Archive


@dataclass(frozen=True)
class State:
    """Everything that the next round depends on, and the history."""

    q_g: ExponentialFamily
    sites: tuple[Natural, ...]  # η_k
    naturals: tuple[Natural, ...]  # λ_k of the last round (λ_g before the first)
    memory: Any  # of the step: rounds to mix, sketches, the search of a guard; None for nothing
    start_objective: float
    history: tuple[RoundRecord, ...]
    told: Any = None  # between sites, a `Point`: what all told of the last q_g that their answers were counted at

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.history)


def describe_method(method: Any) -> Any:
    """Return the settings of a step, a method or a rule as plain values, with the name of each class."""
    if dataclasses.is_dataclass(method) and not isinstance(method, type):
        fields = [
            item.name for item in dataclasses.fields(method) if item.compare and item.name not in ("families", "knobs")
        ]
        return {"type": type(method).__name__, **{name: describe_method(getattr(method, name)) for name in fields}}
    return method if isinstance(method, str | float | int | None) else repr(method)


def digest(thing: object) -> str:
    """Hash the arrays that an object holds."""
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


def save_state(path: str | os.PathLike[str], state: State, description: dict[str, Any], at_mean: bool = False) -> None:
    """Write a checkpoint atomically: a crash leaves the old file or the new one, never half of one."""
    from .._archive import Archive  # loaded by runs that keep checkpoints

    header, arrays = pack_state(state, at_mean)
    header |= {"run": description, "history": [record.to_dict() for record in state.history]}
    Archive("checkpoint", header | {"start_objective": state.start_objective}, arrays).write(path, limit=None)


def pack_state(state: State, at_mean: bool) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a state without its history as a tree of plain values and arrays; see `Step.at_mean`."""
    arrays: dict[str, Array] = {}
    q_g: Any = state.q_g
    # a fixed precision is no part of λ: its members are made of λ, and are the same when they are made again
    is_kept = at_mean and isinstance(q_g, LearnedPrecisionGaussian)
    server = (q_g.mean, q_g.factor.parts) if is_kept else None
    whole = (q_g.natural, server, state.sites, state.naturals, state.memory, state.told)
    return {"state": pack(whole, arrays)}, arrays


def unpack_state(header: Any, arrays: Mapping[str, Array], like: State) -> State:
    """Inverse of `pack_state`, with family and history of `like`; an error where the state is of another run."""
    natural, server, sites, naturals, memory, told = unpack(header["state"], arrays)
    shapes = like.q_g.natural.shapes
    for one in (natural, *sites, *naturals):
        if not (isinstance(one, Natural) and one.shapes == shapes and one.is_finite()):
            raise ValueError(f"parameters must be finite, of the shapes {shapes}")
    if not len(sites) == len(naturals) == len(like.sites):
        raise ValueError(f"there must be {len(like.sites)} sites")
    require_like(memory, like.memory, shapes)
    require_like(told, like.told, shapes, "told")
    q_g: Any = like.q_g.with_natural(natural)
    if server is not None:
        q_g = q_g.at(*server)
    return replace(like, q_g=q_g, sites=sites, naturals=naturals, memory=memory, told=told)


def load_state(path: str | os.PathLike[str], like: State, description: dict[str, Any]) -> State:
    """Read a checkpoint and check that it belongs to this run, which begins at `like`."""
    from .._archive import content_of

    archive = read_checkpoint(path, "checkpoint", description)
    with content_of(archive, "the state of a run"):
        header = archive.header
        history = tuple(RoundRecord.from_dict(plain) for plain in header["history"])
        begun = replace(like, start_objective=float(header["start_objective"]), history=history)
        return unpack_state(header, archive.arrays, begun)


def read_checkpoint(path: str | os.PathLike[str], kind: str, description: dict[str, Any]) -> Archive:
    """Return the archive of a checkpoint whose run has this description."""
    from .._archive import Archive, ArchiveError

    archive = Archive.read(path, limit=None, source=f"resume={os.fspath(path)!r}")
    archive.require(kind)
    run = archive.header.get("run")
    found = run if isinstance(run, dict) else {}
    for key, value in json.loads(json.dumps(description)).items():
        if found.get(key) != value:
            own = f" (written by bayesadmm_np {archive.version})" if key == "schema" else ""
            raise ArchiveError(
                f"file is of another run: its {key} is {found.get(key)!r}{own}, expected {value!r}.", archive.source
            )
    return archive
