"""An experiment file: one data set and its split, one network, and methods that are run with every seed."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesadmm_np import data, methods
from bayesadmm_np.families import DiagonalGaussian
from bayesadmm_np.torch import IVONADMM, IVONPVI, MLP, AdamSteps, FedLapFunc, FedLaplace, IVONSteps
from bayesadmm_np.torch.methods import PersonalMethod, family_of

from . import splits
from .cifar10 import load_cifar10, load_cifar100
from .networks import AcarCNN, LeNet, ResNet20, ZenkeCNN
from .personal import PFedBayes, PFedMe, PFedVEM

NETWORK_ROWS = (IVONADMM, IVONPVI, FedLapFunc, FedLaplace, PFedMe, PFedBayes, PFedVEM)
ROWS: dict[str, Callable[..., Any]] = {**methods.TABLE, **{row.__name__: row for row in NETWORK_ROWS}}
LOADERS = {"mnist": data.load_mnist, "fashion": data.load_fashion_mnist, "cifar10": load_cifar10}
LOADERS["cifar100"] = load_cifar100
NETWORKS = {"ZenkeCNN": ZenkeCNN, "AcarCNN": AcarCNN, "LeNet": LeNet, "ResNet20": ResNet20}
DRIFT = ((0, 6), (2, 4), (1, 3), (5, 7), (8, 9))
"""The superclasses of concept_drift, which are made for Fashion-MNIST: tops, pullovers and coats, and so on."""
SOLVER = "solver."
OWN = ("prior_precision", "temperature")
"""Keys of [training] that a method may have too."""
Point = dict[str, Any]
"""One value for each key of a grid; a field of the solver is `solver.NAME`."""


@dataclass(frozen=True)
class Split:
    """The table [data]: rows, and how they are divided by a function of `bayesadmm_np.data.partition` or `splits`."""

    name: str
    clients: int
    split: str = "iid"
    train: int | None = None
    """Rows to train on, drawn anew by every seed; default all."""
    test: int | None = None
    """Rows to test on, the same with every seed: the first, default all; of the digits a choice, default a fifth."""
    scale: str | float = "unit"
    """Largest value of a pixel: 'unit' is 1, 'raw' what the files hold, or a number."""
    per_client: int = 2
    """Parameter of shards."""
    outside: str | None = None
    """Images of another kind: how well the entropy of predictions tells them from test rows, after the last round."""

    def load(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Images and labels that may be trained on, and those to test on."""
        if self.name == "digits":
            raw = data.load_digits()
            order = np.random.default_rng(0).permutation(len(raw.y))  # the same rows are tested on with every seed
            test, train = np.split(order, [self.test or len(raw.y) // 5])
            (X, y), (X_test, y_test) = (raw.X[train], raw.y[train]), (raw.X[test], raw.y[test])
        else:  # in single precision, as they are trained on: colour images take a gigabyte in double precision
            raw = LOADERS[self.name]()
            X, X_test = raw.X.astype(np.float32), raw.X_test[: self.test].astype(np.float32)
            y, y_test = raw.y, raw.y_test[: self.test]
        largest = {"unit": 1.0, "raw": 255.0}[self.scale] if isinstance(self.scale, str) else self.scale
        return (X * X.dtype.type(largest), y), (X_test * X_test.dtype.type(largest), y_test)

    @property
    def classes(self) -> int:
        return len(DRIFT) if self.split == "concept_drift" else 100 if self.name == "cifar100" else 10

    def targets(self, y: Any) -> Any:
        """What is predicted for these classes."""
        if self.split != "concept_drift":
            return y
        of = np.empty(10, dtype=np.int64)
        for target, pair in enumerate(DRIFT):
            of[list(pair)] = target
        return of[np.asarray(y)]

    def others(self) -> Any:
        """Test images of the kind `outside`."""
        assert self.outside is not None
        return replace(self, name=self.outside, split="iid", train=None, outside=None).load()[1][0]

    def subset(self, available: int, seed: int) -> Any:
        """The numbers of the rows that a seed trains on, of so many."""
        if self.train is None:
            return np.arange(available)
        return np.random.default_rng([seed, 2]).permutation(available)[: self.train]

    def parts(self, y: Any, seed: int) -> list[Any]:
        """The row numbers of every client."""
        rng, first = np.random.default_rng([seed, 1]), len(y) if self.split == "iid" else y
        more = {"concept_drift": (DRIFT, rng), "shards": (self.per_client, rng), "two_dirichlet": (1.0, 0.5, rng)}
        home = splits if hasattr(splits, self.split) else data.partition
        return list(getattr(home, self.split)(first, self.clients, *more.get(self.split, (rng,))))


@dataclass(frozen=True)
class Training:
    """The table [training]: what all methods share; each is an argument of `run`, but for the last."""

    prior_precision: float = 1.0
    temperature: float = 1.0
    participation: float = 1.0
    device: str = "cpu"
    ensemble: int = 32
    evaluate_every: int = 1
    checkpoint_every: int = 1
    personal: bool = False
    """Whether every client's own model is scored in the end, on the test rows of its classes."""


@dataclass(frozen=True)
class Sweep:
    """The table [sweep]: how every method's grid is searched, without a look at the test rows."""

    budget: int
    """Trials a method, at most."""
    validation: float = 0.1
    """Share of the rows to train on that is held out, before the others are divided among the clients."""
    rounds: int | None = None
    """Of a trial; default those of the experiment."""
    seed: int = 100
    """Of rows, split, start and noise of the trials; no seed of the experiment."""


@dataclass(frozen=True)
class Entry:
    """One [[method]]: a row of the table with its arguments, which the file has beside `row`, and its local work."""

    row: str
    label: str = ""
    """Name in table and plot; default the row's name."""
    steps: dict[str, Any] = field(default_factory=dict)
    solver: dict[str, Any] = field(default_factory=dict)
    prior_precision: float | None = None
    temperature: float | None = None
    """With the one before, in place of those of [training]."""
    pooled: bool = False
    """Train on all rows as one client."""
    local: bool = False
    """Every client trains alone; for rows without duals."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Values to try, by key: a step, prior_precision, temperature, or `solver.NAME` for a field of the solver."""

    @classmethod
    def of(cls, table: dict[str, Any]) -> Entry:
        own = {item.name for item in fields(cls)}
        steps = {key: value for key, value in table.items() if key not in own}
        return cls(**{"label": table["row"], **{k: v for k, v in table.items() if k in own}, "steps": steps})

    def points(self) -> list[Point]:
        """The points of the grid, the last key running fastest; without a grid one that is empty."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def at(self, point: Point, label: str = "") -> Entry:
        """The method at one point of its grid, as if it were written so."""
        own = {key: value for key, value in point.items() if key in OWN}
        solver = {key.removeprefix(SOLVER): value for key, value in point.items() if key.startswith(SOLVER)}
        steps = {key: value for key, value in point.items() if key not in own and not key.startswith(SOLVER)}
        merged: dict[str, Any] = {"steps": self.steps | steps, "solver": self.solver | solver, "grid": {}}
        return replace(self, label=label or self.label, **merged, **own)

    def method(self) -> Any:
        return ROWS[self.row](**self.steps)

    def local_work(self) -> Any:
        """The solver that the row needs."""
        method = self.method()
        if isinstance(method, PersonalMethod):
            return method.work(**self.solver)
        is_variational = family_of(method) is DiagonalGaussian and method.expectation is None
        return (IVONSteps if is_variational else AdamSteps)(**self.solver)


@dataclass(frozen=True)
class Experiment:
    """A whole file."""

    name: str
    rounds: int
    seeds: list[int]
    report: list[int]
    """Rounds in the table."""
    data: Split
    model: dict[str, Any]
    """`name` of a network of this package, and its arguments; `hidden` are the inner widths of an MLP."""
    training: Training
    methods: list[Entry]
    sweep: Sweep | None = None
    """Where it is None, every point of a grid is a method of its own."""

    def __post_init__(self) -> None:
        every, labels = self.training.evaluate_every, [entry.label for entry in self.expanded()]
        if any(n > self.rounds or (n % every and n != self.rounds) for n in self.report):
            raise ValueError(f"every round of report={self.report} must be scored within {self.rounds} rounds.")
        if len(set(labels)) < len(labels):
            raise ValueError(f"labels must differ, got {', '.join(labels)}.")
        if self.sweep and self.sweep.seed in self.seeds:
            raise ValueError(f"the sweep's seed must be none of seeds, got {self.sweep.seed}.")
        if self.sweep and max(len(entry.points()) for entry in self.methods) > self.sweep.budget:
            raise ValueError(f"no grid may have more points than the sweep's budget of {self.sweep.budget} trials.")

    @classmethod
    def read(cls, path: Path, changes: Sequence[str] = ()) -> Experiment:
        """Read a file, with KEY=VALUE as if they stood in it, a dot between table and key."""
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
        for change in changes:
            key, _, text = change.partition("=")
            *tables, last = key.split(".")
            place = plain
            for table in tables:
                place = place.setdefault(table, {})
            place[last] = _value(text)
        plain.pop("version", None)
        tables = {"data": Split(**plain.pop("data")), "training": Training(**plain.pop("training", {}))}
        sweep = Sweep(**plain.pop("sweep")) if "sweep" in plain else None
        entries = [Entry.of(table) for table in plain.pop("method")]
        defaults = {"name": path.stem, "seeds": [0], "report": [plain["rounds"]]}
        return cls(**{**defaults, **plain}, **tables, methods=entries, sweep=sweep)

    def expanded(self) -> list[Entry]:
        """The methods; without a sweep every point of a grid is one of its own, with the point in its label."""
        if self.sweep is not None:
            return list(self.methods)
        return [
            entry.at(point, f"{entry.label} {written(point)}") if point else entry
            for entry in self.methods
            for point in entry.points()
        ]

    def network(self, pixels: int) -> torch.nn.Module:
        """The network for rows of so many pixels; initial parameters from torch's global generator."""
        settings = dict(self.model)
        name = settings.pop("name")
        if name != "MLP":
            return NETWORKS[name](n_classes=self.data.classes, **settings)
        widths = (pixels, *settings.get("hidden", (200, 100)), self.data.classes)
        return MLP(widths, settings.get("activation", "sigmoid"))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: what a folder of results must agree on."""
        return dict(json.loads(json.dumps(asdict(self))))


def _value(text: str) -> Any:
    """What KEY=text would be in a file; a text where that is no value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def written(point: Point) -> str:
    """A point in words: 'rho=0.5 solver.epochs=10'."""
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in point.items()
    )
