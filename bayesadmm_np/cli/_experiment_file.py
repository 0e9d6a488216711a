"""Experiments as files: what is run is written down, checked to the last key, and continued after a kill.

One file holds one data set and split, one network, and any number of methods; every method is run with every seed,
which fixes rows, split, start and noise. This module reads the file, and `_experiment_run` does what it says.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from .. import data, methods
from .._validation import as_count, as_fraction, as_number, as_positive
from ..families import DiagonalGaussian
from ..splitting.methods import Method
from ..torch import (
    IVONADMM,
    IVONPVI,
    MLP,
    AcarCNN,
    AdamSteps,
    FedLapFunc,
    FedLaplace,
    IVONSteps,
    LeNet,
    PFedBayes,
    PFedMe,
    PFedVEM,
    ResNet20,
    SGDSteps,
    ZenkeCNN,
)
from ..torch.methods import family_of
from ..torch.personal import PersonalMethod
from ..torch.problem import Solver
from ._options import make_settings, read_toml, require_keys, toml_value
from ._terminal import missing_name

VERSION = 1
FILE_KEYS = ("version", "name", "rounds", "seeds", "report", "data", "model", "training", "sweep", "method")
Point = Mapping[str, Any]
"""One value for each key of a grid; a field of the solver is `solver.NAME`."""
NETWORK_ROWS = {row.__name__: row for row in (IVONADMM, IVONPVI, FedLapFunc, FedLaplace, PFedMe, PFedBayes, PFedVEM)}
ROWS: Mapping[str, Callable[..., Method]] = ChainMap(methods.TABLE, NETWORK_ROWS)  # type: ignore[arg-type]
LOADERS: dict[str, Callable[..., data.Dataset]] = {
    "mnist": data.load_mnist,
    "fashion": data.load_fashion_mnist,
    "cifar10": data.load_cifar10,
}
SPLITS = ("iid", "two_dirichlet", "two_classes", "shards", "label_pairs", "label_skew", "concept_drift")
DRIFT = ((0, 6), (2, 4), (1, 3), (5, 7), (8, 9))
"""The superclasses of concept_drift, which are made for Fashion-MNIST: tops, pullovers and coats, and so on."""
SCALES = {"unit": 1.0, "raw": 255.0}
"""Largest value of a pixel, by name; the digits' raw pixels end at 16."""
SOLVER = "solver."
OWN = ("prior_precision", "temperature")
"""Keys of [training] that a method may have too."""
NETWORKS: dict[str, Callable[..., torch.nn.Module]] = {
    "MLP": MLP,
    "ZenkeCNN": ZenkeCNN,
    "AcarCNN": AcarCNN,
    "LeNet": LeNet,
    "ResNet20": ResNet20,
}


def _require_name(what: str, name: object, known: Iterable[str], where: str = "") -> str:
    """Return a name that is known, or say which is nearest."""
    names = list(known)
    if not isinstance(name, str) or name not in names:
        raise ValueError(f"{where}{missing_name(f'there is no {what}', str(name), names)}")
    return name


def _one_of(what: str, known: Iterable[str]) -> Callable[[object, str], str]:
    return lambda name, _: _require_name(what, name, known)


def _as_seed(value: object, name: str) -> int:
    return as_count(value, name, minimum=0)


def _as_scale(value: object, name: str) -> str | float:
    return _require_name(name, value, SCALES) if isinstance(value, str) else as_positive(value, name)


# types of values; `make_settings` calls the check with the value and its key
Count = Annotated[int, as_count]
Seed = Annotated[int, _as_seed]
Positive = Annotated[float, as_positive]
Scale = Annotated[str | float, _as_scale]


@dataclass(frozen=True)
class Split:
    """The table [data]: rows, and how they are divided by a function of `bayesadmm_np.data.partition`."""

    name: Annotated[str, _one_of("data set", ("digits", *LOADERS))]
    clients: Count
    split: Annotated[str, _one_of("split", SPLITS)] = "iid"
    train: Count | None = None
    """Rows to train on, drawn anew by every seed; default all."""
    test: Count | None = None
    """Rows to test on, the same with every seed: the first, default all; of the digits a choice, default a fifth."""
    size: Count | None = None
    """Pixels along a side, as the loader has them; default the original. Digits have 8 only."""
    scale: Scale = "unit"
    """Largest value of a pixel: 'unit' is 1, 'raw' what the files hold, or a number."""
    size_concentration: Positive = 1.0
    class_concentration: Positive = 0.5
    """With the one before, parameters of two_dirichlet."""
    per_client: Count = 2
    """Parameter of shards."""
    outside: Annotated[str, _one_of("data set", LOADERS)] | None = None
    """Images of another kind: how well the entropy of predictions tells them from test rows, after the last round."""

    def __post_init__(self) -> None:
        if self.split == "concept_drift" and self.name != "fashion":
            raise ValueError(f"split concept_drift is made for fashion, got {self.name}.")
        if self.name == "digits" and self.size not in (None, 8):
            raise ValueError(f"size must be 8 for the digits, got {self.size}.")

    def load(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return images and labels that may be trained on, and those to test on."""
        (X, y), (X_test, y_test) = self._unit()
        largest: float = SCALES[self.scale] if isinstance(self.scale, str) else self.scale
        if (self.name, self.scale) == ("digits", "raw"):
            largest = 16.0
        # in single precision, as they are trained on: the colour images take a gigabyte in double precision
        return (X * X.dtype.type(largest), y), (X_test * X_test.dtype.type(largest), y_test)

    @property
    def classes(self) -> int:
        """Number of targets."""
        return len(DRIFT) if self.split == "concept_drift" else 10

    def targets(self, y: Any) -> Any:
        """Return what is predicted for these classes."""
        if self.split != "concept_drift":
            return y
        of = np.empty(10, dtype=np.int64)
        for target, pair in enumerate(DRIFT):
            of[list(pair)] = target
        return of[np.asarray(y)]

    def others(self) -> Any:
        """Return test images of the kind `outside`, as `load` has its own."""
        assert self.outside is not None
        return replace(self, name=self.outside, split="iid", train=None, outside=None).load()[1][0]

    def _unit(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return what `load` does, with pixels in [0, 1]."""
        if self.name == "digits":
            raw = data.load_digits()
            order = np.random.default_rng(0).permutation(len(raw.y))  # the same rows are tested on with every seed
            held = self.test or len(raw.y) // 5
            if held + (self.train or 1) > len(raw.y):
                raise ValueError(f"[data] train and test together exceed the {len(raw.y)} digits.")
            test, train = order[:held], order[held:]
            return (raw.X[train], raw.y[train]), (raw.X[test], raw.y[test])
        raw = LOADERS[self.name](**({} if self.size is None else {"size": self.size}))
        if raw.X_test is None or raw.y_test is None:
            raise ValueError(f"[data] {self.name} came without test rows.")
        for key, wanted, found in (("train", self.train, len(raw.y)), ("test", self.test, len(raw.y_test))):
            if (wanted or 0) > found:
                raise ValueError(f"[data] {key} must be at most {found}, the rows of {self.name}, got {wanted}.")
        images, tests = raw.X.astype(np.float32), raw.X_test[: self.test].astype(np.float32)
        return (images, raw.y), (tests, raw.y_test[: self.test])

    def subset(self, available: int, seed: int) -> Any:
        """Return the numbers of the rows that a seed trains on, of so many."""
        if self.train is None:
            return np.arange(available)
        return np.random.default_rng([seed, 2]).permutation(available)[: self.train]

    def parts(self, y: Any, seed: int) -> list[Any]:
        """Return the row numbers of every client."""
        rng, first = np.random.default_rng([seed, 1]), len(y) if self.split == "iid" else y
        more: dict[str, tuple[Any, ...]] = {
            "iid": (rng,),
            "concept_drift": (DRIFT, rng),
            "label_pairs": (),
            "label_skew": (rng,),
            "shards": (self.per_client, rng),
            "two_classes": (rng,),
            "two_dirichlet": (self.size_concentration, self.class_concentration, rng),
        }
        return list(getattr(data.partition, self.split)(first, self.clients, *more[self.split]))


@dataclass(frozen=True)
class Hidden:
    """The inner widths of an MLP, and what stands between them."""

    hidden: tuple[Count, ...] = (200, 100)
    activation: Annotated[str, _one_of("activation", ("sigmoid", "relu"))] = "sigmoid"


@dataclass(frozen=True)
class Training:
    """The table [training]: what all methods share; each is an argument of `run`."""

    prior_precision: Positive = 1.0
    temperature: Positive = 1.0
    participation: Annotated[float, as_fraction] = 1.0
    batched: bool = True
    device: str = "cpu"
    ensemble: Count = 32
    evaluate_every: Count = 1
    checkpoint_every: Count = 1
    personal: bool = False
    """Whether every client's own model is scored in the end, on the test rows of its classes."""


@dataclass(frozen=True)
class Sweep:
    """The table [sweep]: how every method's grid is searched, without a look at the test rows."""

    budget: Count
    """Trials a method, at most."""
    validation: float = 0.1
    """Share of the rows to train on that is held out, before the others are divided among the clients."""
    rounds: Count | None = None
    """Of a trial; default those of the experiment."""
    seed: Seed = 100
    """Of rows, split, start and noise of the trials; no seed of the experiment."""

    def __post_init__(self) -> None:
        if not 0 < as_number(self.validation, "validation") < 1:
            raise ValueError(f"validation must lie in (0, 1), got {self.validation!r}.")


@dataclass(frozen=True)
class Entry:
    """One [[method]]: a row of the table, its step sizes, and its local work."""

    row: str
    label: str = ""
    """Name in table and plot; default the row's name."""
    steps: dict[str, Any] = field(default_factory=dict)
    """The row's own arguments, such as rho and gamma; they stand beside `row` in the file."""
    solver: dict[str, Any] = field(default_factory=dict)
    """Fields of IVONSteps or AdamSteps, in [method.solver]; with `name = "sgd"` those of SGDSteps."""
    prior_precision: float | None = None
    temperature: float | None = None
    """With the one before, in place of those of [training]."""
    pooled: bool = False
    """Train on all rows as one client."""
    local: bool = False
    """Every client trains alone; only for rows without duals."""
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values to try, by key: a step, prior_precision, temperature, or `solver.NAME` for a field of the solver."""

    def __post_init__(self) -> None:
        if self.pooled and self.local:
            raise ValueError("pooled and local exclude each other.")
        for name in OWN:
            if getattr(self, name) is not None:
                as_positive(getattr(self, name), name)
        for point in self.points():
            at = self.at(point) if point else self  # the table may lack what its grid has
            method = at.method()
            at.local_work(method)
            if at.local and method.dual_step:
                raise ValueError(f"local needs a row without duals, such as FedAvg; {self.row} has them.")

    def points(self) -> list[Point]:
        """Return the points of the grid, the last key running fastest; without a grid one that is empty."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def at(self, point: Point, label: str = "") -> Entry:
        """Return the method at one point of its grid, as if it were written so."""
        own = {key: value for key, value in point.items() if key in OWN}
        solver = {key.removeprefix(SOLVER): value for key, value in point.items() if key.startswith(SOLVER)}
        steps = {key: value for key, value in point.items() if key not in own and not key.startswith(SOLVER)}
        merged: dict[str, Any] = {"steps": self.steps | steps, "solver": self.solver | solver, "grid": {}}
        return replace(self, label=label or self.label, **merged, **own)

    def expanded(self) -> tuple[Entry, ...]:
        """Return every point of the grid as a method of its own, with the point in its label."""
        return tuple(self.at(point, f"{self.label} {written(point)}") if point else self for point in self.points())

    def method(self) -> Method:
        """Return the row."""
        return ROWS[self.row](**self.steps)

    def local_work(self, method: Method) -> Solver:
        """Return the solver that the row needs."""
        if isinstance(method, PersonalMethod):
            return make_settings(method.work, dict(self.solver), "[solver] ")
        variational = family_of(method) is DiagonalGaussian and method.expectation is None
        settings = dict(self.solver)
        there = ("ivon",) if variational else ("adam", "sgd")
        name = _require_name("solver of this method", settings.pop("name", there[0]), there, "[solver] ")
        kinds: dict[str, Callable[..., Solver]] = {"ivon": IVONSteps, "adam": AdamSteps, "sgd": SGDSteps}
        return make_settings(kinds[name], settings, "[solver] ")


@dataclass(frozen=True)
class Experiment:
    """A whole file."""

    name: str
    rounds: Count
    seeds: tuple[Seed, ...]
    report: tuple[Count, ...]
    """Rounds in the table."""
    data: Split
    model: dict[str, Any]
    """`name` of a network of this package, and its arguments; `hidden` are the inner widths of an MLP."""
    training: Training
    methods: tuple[Entry, ...]
    sweep: Sweep | None = None
    """Where it is None, every point of a grid is a method of its own."""

    def __post_init__(self) -> None:
        for name in ("seeds", "report"):
            numbers = getattr(self, name)
            if not numbers or len(set(numbers)) < len(numbers):
                raise ValueError(f"{name} must hold different numbers, got {list(numbers)!r}.")
        every = self.training.evaluate_every
        unscored = [n for n in self.report if n > self.rounds or (n % every and n != self.rounds)]
        if unscored:
            raise ValueError(f"report: round {unscored[0]} is not scored within {self.rounds} rounds.")
        if self.sweep is not None:
            _check_sweep(self.sweep, self.seeds, self.methods)
        labels = [entry.label for entry in (self.methods if self.sweep else self.expanded())]
        if not labels or not all(labels) or len(set(labels)) < len(labels):
            raise ValueError(f"[[method]]: labels must be there and differ, got {', '.join(labels) or 'none'}.")
        self.network(1, 1)  # of no data yet: only the keys are checked

    @classmethod
    def read(cls, path: str | os.PathLike[str], changes: Iterable[str] = ()) -> Experiment:
        """Read a TOML file, with changes as if they stood in it; a key or value that is not understood is named."""
        plain = read_toml(Path(path))
        try:
            return cls._of(changed(plain, changes), Path(path).stem)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    @classmethod
    def _of(cls, plain: dict[str, Any], stem: str) -> Experiment:
        require_keys(plain, FILE_KEYS, "")
        for key in ("version", "rounds", "data", "model", "method"):
            if key not in plain:
                raise ValueError(f"{key} is missing.")
        version = plain.pop("version")
        if version != VERSION or isinstance(version, bool):
            raise ValueError(f"version must be {VERSION}, got {version!r}.")
        entries = plain.pop("method")
        if not isinstance(entries, list):
            raise ValueError("method must be written as [[method]].")
        methods = tuple(_entry(item, number) for number, item in enumerate(entries, 1))
        defaults = {"name": stem, "seeds": [0], "report": [plain["rounds"]], "training": {}}
        return make_settings(cls, {**defaults, **plain, "methods": methods}, "")

    def expanded(self) -> tuple[Entry, ...]:
        """Return the methods, every point of a grid as one of its own."""
        return tuple(at for entry in self.methods for at in entry.expanded())

    def network(self, pixels: int, classes: int) -> torch.nn.Module:
        """Return the network for rows of so many pixels; initial parameters from torch's global generator."""
        settings = dict(self.model)
        if "name" not in settings:
            raise ValueError(f"[model] name is missing; there is {', '.join(NETWORKS)}.")
        make = NETWORKS[_require_name("network", settings.pop("name"), NETWORKS, "[model] ")]
        if make is MLP:
            inner = make_settings(Hidden, settings, "[model] ")
            return MLP((pixels, *inner.hidden, classes), inner.activation)  # type: ignore[arg-type]
        require_keys(settings, [name for name in inspect.signature(make).parameters if name != "n_classes"], "[model] ")
        return make(n_classes=classes, **settings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON: what a folder of results must agree on."""
        return dict(json.loads(json.dumps(asdict(self))))


def _check_sweep(sweep: Sweep, seeds: tuple[int, ...], entries: Iterable[Entry]) -> None:
    if sweep.seed in seeds:
        raise ValueError(f"[sweep] seed must not be one of seeds, got {sweep.seed}.")
    for entry in entries:
        if len(entry.points()) > sweep.budget:
            raise ValueError(
                f"[sweep] budget is {sweep.budget} trials for every method; "
                f"the grid of {entry.label} has {len(entry.points())} points."
            )


def changed(plain: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return a file's content with other values: KEY=VALUE, with a dot between table and key.

    `method.KEY` is of every method, and `method.LABEL.KEY` of one. What is no TOML value is a text.

    Examples
    --------
    >>> from bayesadmm_np.cli._experiment_file import changed
    >>> changed({"rounds": 50, "method": [{"row": "FedAvg"}]}, ["rounds=2", "method.solver.lr=0.1"])
    {'rounds': 2, 'method': [{'row': 'FedAvg', 'solver': {'lr': 0.1}}]}
    """
    found = deepcopy(plain)
    for change in changes:
        key, equals, text = change.partition("=")
        tables, path = _addressed(found, key.strip())
        if not equals or not all(path):
            raise ValueError(f"--set wants KEY=VALUE, such as training.device=cpu, got {change!r}.")
        for table in tables:
            _put(table, path, toml_value(text), change)
    return found


def _addressed(plain: dict[str, Any], key: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tables that a key is of, and its path there."""
    methods = plain.get("method")
    if not key.startswith("method.") or not isinstance(methods, list):
        return [plain], key.split(".")
    rest = key.removeprefix("method.")
    tables = [table for table in methods if isinstance(table, dict)]
    for table in tables:
        label = f"{table.get('label', table.get('row'))}."
        if rest.startswith(label):
            return [table], rest.removeprefix(label).split(".")
    return tables, rest.split(".")


def _put(table: dict[str, Any], path: Sequence[str], value: object, change: str) -> None:
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ValueError(f"--set {change}: {key} is no table.")
    table[path[-1]] = value


def written(point: Point) -> str:
    """Return a point in words.

    Examples
    --------
    >>> from bayesadmm_np.cli._experiment_file import written
    >>> written({"rho": 0.5, "solver.epochs": 10})
    'rho=0.5 solver.epochs=10'
    """
    texts = {key: f"{value:g}" if isinstance(value, float) else value for key, value in point.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _entry(plain: object, number: int) -> Entry:
    where = f"[method {number}] "
    if not isinstance(plain, dict):
        raise ValueError(f"{where}must be written as [[method]].")
    if "row" not in plain:
        raise ValueError(f"{where}row is missing; there is {', '.join(ROWS)}.")
    name = _require_name("row", plain["row"], ROWS, where)
    own = [item.name for item in fields(Entry) if item.name != "steps"]
    steps = list(inspect.signature(ROWS[name]).parameters)
    others = {step for make in ROWS.values() for step in inspect.signature(make).parameters}.difference(own, steps)
    for key, value in plain.items():
        if key in others:
            raise ValueError(f"{where}{name} has no {key}; it has {', '.join(steps) or 'no steps'}.")
        if key in steps and isinstance(value, list):
            raise ValueError(f"{where}several values of {key} are written as grid = {{ {key} = {value} }}.")
    require_keys(plain, (*own, *steps), where)
    values = {"label": name, **{key: value for key, value in plain.items() if key in own}}
    if "grid" in values:
        values["grid"] = _grid(plain, (*steps, *OWN), where)
    return make_settings(Entry, {**values, "steps": {k: v for k, v in plain.items() if k in steps}}, where)


def _grid(plain: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, tuple[Any, ...]]:
    """Return the lists of a grid by key; their values are checked where the method is made."""
    if not isinstance(plain["grid"], Mapping):
        raise ValueError(f"{where}grid must be a table of lists.")
    grid = dict(plain["grid"])
    inner = grid.pop("solver", {})  # TOML reads a key solver.lr without quotes as a table in a table
    if not isinstance(inner, Mapping):
        raise ValueError(f"{where}grid solver must be written as solver.NAME = [...].")
    grid |= {SOLVER + key: values for key, values in inner.items()}
    solver = plain.get("solver", {})
    there = {*plain, *(SOLVER + key for key in (solver if isinstance(solver, Mapping) else ()))}
    for key, values in grid.items():
        if not key.startswith(SOLVER):
            require_keys([key], known, f"{where}grid: ")
        if key in there:
            raise ValueError(f"{where}{key} stands in the method and in its grid; write it once.")
        if not isinstance(values, list) or not values or any(item in values[:j] for j, item in enumerate(values)):
            raise ValueError(f"{where}grid {key} must be a list of different values, got {values!r}.")
    return {key: tuple(values) for key, values in grid.items()}
