"""A client whose rows a `torch.utils.data.Dataset` makes when they are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from .network import AT_ONCE, Rows, digest
from .randomness import row_seeds

Job = tuple[Sequence[int], tuple[int, ...]]
"""Rows of a batch, and the key of their draws."""
MOST = 256
"""Rows at once in a pass over all of them, which may be larger than the memory."""
GROUP = 128
"""Rows at once in training without workers; looking whether a generator has moved costs as much as a few rows."""
FULL = ()
"""Key of passes over all rows: a row's draws are the same in every pass."""


@dataclass(frozen=True, eq=False)
class Stream:
    """The pairs (x, y) of a Dataset, as `Rows` a batch.

    A row's draws from the global generators of torch, NumPy and Python (augmentation) depend on the key of its batch
    and its number alone. They do not depend on earlier batches, workers or rows. The generators are left as they were.
    `collate` makes (X, y) of pairs, and `read` makes these rows as the network takes them. `drawn` are the generators
    that rows were seen to draw from; only these are seeded for each row.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] = default_collate
    workers: dict[str, Any] | None = None
    read: Callable[[Rows], Rows] = lambda rows: rows
    weights: Tensor | None = None
    drawn: set[str] = field(default_factory=set)
    name: str = "a Dataset"

    @classmethod
    def of(cls, source: Dataset[Any] | DataLoader[Any]) -> Stream:
        """Return the rows of a Dataset, or of a DataLoader with its workers; ValueError where that cannot be."""
        made = cls(source) if isinstance(source, Dataset) else cls._of_loader(source)
        if isinstance(made.dataset, IterableDataset) or not hasattr(made.dataset, "__len__") or not len(made):
            raise ValueError("a Dataset must have a length and rows by number, for the seed to say which comes when.")
        return made

    @classmethod
    def _of_loader(cls, loader: DataLoader[Any]) -> Stream:
        plain = type(loader.sampler) in (SequentialSampler, RandomSampler) and loader.batch_size is not None
        if loader.drop_last or not (plain or isinstance(loader.dataset, IterableDataset)):
            raise ValueError("a DataLoader must give every row once: its order and batches are the solver's.")
        names = ("num_workers", "multiprocessing_context", "prefetch_factor", "worker_init_fn")
        workers = {name: getattr(loader, name) for name in names} if loader.num_workers else None
        return cls(loader.dataset, loader.collate_fn, workers)

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    @property
    def mass(self) -> float:
        """N_k, the sum of the weights."""
        return len(self) if self.weights is None else float(self.weights.double().sum())

    def batches(self, jobs: Iterable[Job]) -> Iterator[Rows]:
        """Yield the rows of some batches; ValueError where these are not as many as were asked for."""
        rows, jobs = _Seeded(self.dataset, self.collate, self.drawn, self.name), list(jobs)
        count = 1 if self.workers else max(GROUP // len(jobs[0][0]), 1)
        groups = [jobs[i : i + count] for i in range(0, len(jobs), count)]
        found: Iterable[list[Any]] = map(rows.__getitem__, groups)
        if self.workers:
            # its own generator: a loader draws from torch's where it has none
            found = DataLoader(rows, batch_size=None, sampler=groups, generator=torch.Generator(), **self.workers)
        for (index, _), batch in zip(jobs, chain.from_iterable(found), strict=True):
            if not isinstance(batch, Sequence) or len(batch) != 2:
                cure = "let __getitem__ or collate_fn return a tuple of inputs and target"
                raise ValueError(f"{self.name}: rows must be pairs (x, y), got {type(batch).__name__}: {cure}.")
            made = Rows(*batch)
            if len(made) != len(index):
                asked = f"a batch must have the {len(index)} rows that were asked for, got {len(made)}"
                raise ValueError(f"{self.name}: {asked}: collate_fn and __getitems__ must keep all rows.")
            yield self.read(made)

    def passes(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield X, y and w of all rows, so many at a time, and not more than `MOST`."""
        for rows in self.pieces(min(size, MOST)):
            yield rows.X, rows.y, rows.weighted

    def pieces(self, size: int = AT_ONCE) -> Iterator[Rows]:
        """Yield all rows, by default as many at a time as a prediction of `Rows` on a CPU takes."""
        return self.batches((range(i, min(i + size, len(self))), FULL) for i in range(0, len(self), size))

    def first(self, count: int) -> Tensor:
        """Return the inputs of the first rows, without workers."""
        return next(replace(self, workers=None).batches([(range(min(count, len(self))), FULL)])).X

    def check(self) -> None:
        """Refuse a Dataset whose last and first rows, read together, are others alone with all generators seeded."""
        ends, here = sorted({0, len(self) - 1}, reverse=True), replace(self, workers=None)
        together, seeded = next(here.batches([(ends, FULL)])), replace(here, drawn=set(GENERATORS))
        for place, i in enumerate(ends):
            alone = next(seeded.batches([([i], FULL)]))
            pairs = (together.X[place], alone.X[0]), (together.y[place], alone.y[0])
            # a collate_fn may pad a batch to its longest row
            if any(a.shape == b.shape and not torch.allclose(a.double(), b.double()) for a, b in pairs):
                fact = f"row {i} is another when it is read with others, or again: collate_fn must keep the order"
                raise ValueError(
                    f"{fact}, and rows may draw from the global generators of torch, NumPy and Python alone."
                )

    @property
    def digest(self) -> str:
        """Digest of all rows, a pass through them."""
        found = [digest([X, y]) for X, y, _ in replace(self, read=lambda rows: rows).passes(MOST)]
        return digest([torch.tensor([int(part, 16) >> 1 for part in found])])


def rows_of(given: object) -> Rows | Stream:
    """Return rows as they are, or those of a Dataset or DataLoader; ValueError for anything else."""
    if isinstance(given, Dataset | DataLoader):
        return Stream.of(given)
    if not isinstance(given, Rows):
        got = f"{type(given).__module__}.{type(given).__qualname__}"
        raise ValueError(f"expected Rows(X, y), a torch.utils.data.Dataset or a DataLoader, got {got}.")
    return given


@dataclass(frozen=True)
class _Seeded(Dataset[Any]):
    """Batches by group of jobs; here or in a worker, the same.

    Rows are read without seeds until a generator moves. Then the group is read again with this generator seeded for
    each row, and so are all later groups. So a generator that no row uses costs nothing.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]
    drawn: set[str]
    name: str

    def __getitem__(self, jobs: Sequence[Job]) -> list[Any]:
        before = {name: state() for name, (_, state, _) in GENERATORS.items()}
        try:
            found = [self.collate(self._rows(*job)) for job in jobs]
            moved = {name for name in {*before} - self.drawn if _has_moved(name, before[name])}
            self.drawn.update(moved)
            return self[jobs] if moved else found
        finally:
            for name in self.drawn:
                GENERATORS[name][2](before[name])

    def _rows(self, index: Sequence[int], key: tuple[int, ...]) -> list[Any]:
        seeds, rows, asked = [GENERATORS[name][0] for name in self.drawn], [], f"rows {list(index[:3])} ..."
        at_once = None if seeds else getattr(self.dataset, "__getitems__", None)
        try:
            if at_once:
                return list(at_once(list(index)))
            for i, seed in zip(index, row_seeds(key, index) if seeds else index, strict=True):
                asked = f"row {i}"
                for put in seeds:
                    put(seed)
                rows.append(self.dataset[int(i)])
            return rows
        except (LookupError, StopIteration) as error:  # either would end an iteration in silence
            raise ValueError(f"{self.name}: {asked} cannot be read: {error!r}.") from error


GENERATORS: dict[str, tuple[Callable[[int], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "torch": (torch.default_generator.manual_seed, torch.get_rng_state, torch.set_rng_state),
    "numpy": (np.random.seed, np.random.get_state, np.random.set_state),
    "python": (random.seed, random.getstate, random.setstate),
}
"""Functions that seed, read and set the global generators, from which a user's augmentations draw."""


def _has_moved(name: str, before: Any) -> bool:
    now = GENERATORS[name][1]()
    if name == "numpy":  # an array, then numbers
        return now[2:] != before[2:] or not np.array_equal(now[1], before[1])
    return not torch.equal(now, before) if name == "torch" else bool(now != before)
