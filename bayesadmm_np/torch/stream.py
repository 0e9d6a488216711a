"""A client whose rows a `torch.utils.data.Dataset` makes when they are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from .network import Rows, digest
from .randomness import row_seed

Job = tuple[Sequence[int], tuple[int, ...]]
"""Rows of a batch, and the key of their draws."""
MOST = 256
"""Rows at once in a pass over all of them, which may be larger than the memory."""
FULL = ()
"""Key of passes over all rows: a row's draws are the same in every pass."""


@dataclass(frozen=True, eq=False)
class Stream:
    """The pairs (x, y) of a Dataset, as `Rows` a batch.

    A row's draws from the global generators of torch, NumPy and Python (augmentation) depend on the key of its batch
    and its number alone. They do not depend on earlier batches, workers or rows. The generators are left as they were.
    `collate` makes (X, y) of pairs, and `read` makes these rows as the network takes them.
    """

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any] = default_collate
    workers: dict[str, Any] | None = None
    read: Callable[[Rows], Rows] = lambda rows: rows
    weights: None = None

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
        """N_k."""
        return len(self)

    def batches(self, jobs: Iterable[Job]) -> Iterator[Rows]:
        """Yield the rows of some batches."""
        rows = _Seeded(self.dataset, self.collate)
        # its own generator: a loader draws from torch's where it has none
        options: dict[str, Any] = {"batch_size": None, "sampler": list(jobs), "generator": torch.Generator()}
        for batch in DataLoader(rows, **options, **(self.workers or {})):
            try:
                X, y = batch
            except (TypeError, ValueError) as error:
                raise ValueError(f"a Dataset must have pairs (x, y) as rows, got {type(batch).__name__}.") from error
            yield self.read(Rows(X, y))

    def passes(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield X, y and w of all rows, so many at a time, and not more than `MOST`."""
        size = min(size, MOST)
        starts = range(0, len(self), size)
        for rows in self.batches((range(i, min(i + size, len(self))), FULL) for i in starts):
            yield rows.X, rows.y, rows.weighted

    def first(self, count: int) -> Tensor:
        """Return the inputs of the first rows."""
        return next(self.batches([(range(min(count, len(self))), FULL)])).X

    def check(self) -> None:
        """Refuse a Dataset whose first row differs between two reads with the same key."""
        first, same = (rows.X for rows in self.batches([([0], FULL)] * 2))
        if not torch.equal(first, same):
            raise ValueError("a Dataset's rows may draw from the global generators of torch, NumPy and Python alone.")

    @property
    def digest(self) -> str:
        """Digest of all rows, a pass through them."""
        found = [digest([X, y]) for X, y, _ in replace(self, read=lambda rows: rows).passes(MOST)]
        return digest([torch.tensor([int(part, 16) >> 1 for part in found])])


@dataclass(frozen=True)
class _Seeded(Dataset[Any]):
    """Batches by job; here or in a worker, the same."""

    dataset: Dataset[Any]
    collate: Callable[[list[Any]], Any]

    def __getitem__(self, job: Job) -> Any:
        index, key = job
        with _kept_generators():
            return self.collate([self._row(int(i), key) for i in index])

    def _row(self, i: int, key: tuple[int, ...]) -> Any:
        _seed(row_seed(key, i))
        return self.dataset[i]


def _seed(seed: int) -> None:
    """Seed the global generators, from which a user's augmentations draw: no other can be handed to `dataset[i]`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def _kept_generators() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
