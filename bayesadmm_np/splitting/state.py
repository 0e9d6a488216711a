"""The explicit state of a run, and its checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Coordinates, Displacement, Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..losses.base import Loss
from .history import RoundRecord
from .methods import Method

if TYPE_CHECKING:
    from .._archive import Archive


class Memory(NamedTuple):
    """One remembered round: the sites and λ_g after it, and the displacement of each, read at its own server."""

    sites: tuple[Natural, ...]
    natural: Natural
    moves: tuple[Displacement, ...]


class Step(NamedTuple):
    """The step from the last accepted mean, neither of which passes through λ."""

    mean: Array  # shape (d,): m of the point that the counted answers are from
    move: Array  # shape (d,): −(P_0 + Σ_kH_k)⁻¹g, which a guarded row bends
    gradient: Array | None = None  # shape (d,): g = P_0(m − m_0) + Σ_kg_k; None where the answers were not at m


@dataclass(frozen=True)
class State:
    """Everything that the next round depends on, and the history."""

    q_g: ExponentialFamily
    sites: tuple[Natural, ...]  # η_k
    naturals: tuple[Natural, ...]  # λ_k of the last round (λ_g before the first)
    memory: tuple[Memory, ...]  # rounds remembered by an accelerated method
    start_objective: float
    history: tuple[RoundRecord, ...]
    step: Step | None = None  # of a Newton row, from round 1 on
    sketches: tuple[Array, ...] = ()  # the numbers of the sites' sketches; empty where sites keep none

    @property
    def round(self) -> int:
        """Rounds done."""
        return len(self.history)


def describe_method(row: Method) -> dict[str, Any]:
    """Return a row's settings as plain values; those that are objects as they are written."""
    return {
        item.name: value if isinstance(value := getattr(row, item.name), str | float | int | None) else repr(value)
        for item in dataclasses.fields(row)
        if item.name not in ("families", "knobs")
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
    """Write a checkpoint atomically: a crash leaves the old file or the new one, never half of one."""
    naturals: dict[str, Coordinates] = {"server": state.q_g.natural}
    for k, (site, posterior) in enumerate(zip(state.sites, state.naturals, strict=True)):
        naturals[f"site{k}"] = site
        naturals[f"posterior{k}"] = posterior
    for i, item in enumerate(state.memory):
        naturals[f"memory{i}/server"] = item.natural
        naturals.update({f"memory{i}/site{k}": site for k, site in enumerate(item.sites)})
        naturals.update({f"memory{i}/move{k}": move for k, move in enumerate(item.moves)})
    arrays = {f"{name}/part{j}": part for name, natural in naturals.items() for j, part in enumerate(natural.parts)}
    if state.step is not None:
        assert isinstance(state.q_g, Gaussian)
        arrays |= {"mean": state.q_g.mean}
        arrays |= {f"step/{name}": value for name, value in state.step._asdict().items() if value is not None}
    arrays |= {f"sketch{k}": numbers for k, numbers in enumerate(state.sketches)}
    header = {
        "run": description,
        "start_objective": state.start_objective,
        "n_memory": len(state.memory),
        "has_step": state.step is not None,
        "sketches": [numbers.size for numbers in state.sketches],
        "history": [record.to_dict() for record in state.history],
    }
    from .._archive import Archive  # loaded by runs that keep checkpoints

    Archive("checkpoint", header, arrays).write(path, limit=None)


def load_state(path: str | os.PathLike[str], prior: ExponentialFamily, description: dict[str, Any]) -> State:
    """Read a checkpoint and check that it belongs to this run."""
    from .._archive import content_of

    archive = read_checkpoint(path, "checkpoint", description)
    with content_of(archive, "the state of a run"):
        return _rebuild(archive, prior)


def read_checkpoint(path: str | os.PathLike[str], kind: str, description: dict[str, Any]) -> Archive:
    """Return the archive of a checkpoint whose run has this description."""
    from .._archive import Archive, ArchiveError

    archive = Archive.read(path, limit=None, source=f"resume={os.fspath(path)!r}")
    if archive.kind != kind:
        raise archive.refusal("kind", repr(kind), archive.kind)
    run = archive.header.get("run")
    found = run if isinstance(run, dict) else {}
    for key, value in json.loads(json.dumps(description)).items():
        if found.get(key) != value:
            raise ArchiveError(
                f"file is of another run: its {key} is {found.get(key)!r}, expected {value!r}.", archive.source
            )
    return archive


def _rebuild(archive: Archive, prior: ExponentialFamily) -> State:
    shapes = prior.natural.shapes

    def natural(name: str) -> Natural:
        return Natural(*(archive.array(f"{name}/part{j}", shape) for j, shape in enumerate(shapes)))

    header = archive.header
    clients = range(header["run"]["n_clients"])
    q_g, step = prior.with_natural(natural("server")), None
    if header["has_step"]:
        assert isinstance(q_g, LearnedPrecisionGaussian)
        shape = (q_g.dim,)
        q_g = q_g.at(archive.array("mean", shape), q_g.factor.parts)
        names = ("mean", "move", "gradient") if "step/gradient" in archive.arrays else ("mean", "move")
        step = Step(*(archive.array(f"step/{name}", shape) for name in names))
    return State(
        q_g=q_g,
        sites=tuple(natural(f"site{k}") for k in clients),
        naturals=tuple(natural(f"posterior{k}") for k in clients),
        memory=tuple(
            Memory(
                tuple(natural(f"memory{i}/site{k}") for k in clients),
                natural(f"memory{i}/server"),
                tuple(Displacement(*natural(f"memory{i}/move{k}").parts) for k in range(len(clients) + 1)),
            )
            for i in range(header["n_memory"])
        ),
        start_objective=float(header["start_objective"]),
        history=tuple(RoundRecord.from_dict(plain) for plain in header["history"]),
        step=step,
        sketches=tuple(archive.array(f"sketch{k}", (size,)) for k, size in enumerate(header["sketches"])),
    )
