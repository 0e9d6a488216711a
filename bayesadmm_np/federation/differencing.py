"""Rows by which two analyses of a site differ: sums that differ by fewer rows than a level may have tell these rows.

A site's folder keeps the cells of each design of which sums have left, as keyed hashes: the user's columns, target,
weights and offset. A column of two values, and the same with its values swapped, are compared as one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._archive import Archive
from ..losses.base import ALONE, largest_leverage
from .refusals import PLACES

ROWS = "rows"
"""Whole rows, as a place of a difference; others are names of columns."""
COMBINED = PLACES["combination"]
OWN = ("weights", "offset")
"""Columns that are compared with those of the same name alone."""


@dataclass(frozen=True)
class Source:
    """Columns of a design by name, in the user's units, and the places of its rows in the table."""

    columns: Mapping[str, NDArray[Any]]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Mapping[str, Any], places: NDArray[Any]) -> Source:
        """Return a design of columns of numbers or words; None is weights of one, and offsets of zero."""
        found: dict[str, NDArray[Any]] = {}
        for name, column in columns.items():
            values = np.full(len(places), float(name != OWN[1])) if column is None else np.asarray(column)
            if values.ndim == 2:  # several outputs
                found |= {f"{name}{j}": np.ascontiguousarray(one) for j, one in enumerate(values.T)}
            else:
                number = values.dtype.kind in "biuf"
                found[name] = values.astype(np.float64) if number else np.array([str(one) for one in values.tolist()])
        return cls(found, np.asarray(places, dtype=np.int64))

    def digest(self, key: bytes) -> str:
        """Return a keyed digest of all cells."""
        found = hashlib.blake2b(self.places.astype("<i8").tobytes(), digest_size=16, key=key)
        for name, column in self.columns.items():
            found.update(f"\n{name!r} ".encode())
            found.update(column.tobytes() if column.dtype.kind == "f" else repr(column.tolist()).encode())
        return found.hexdigest()


@dataclass(frozen=True)
class Cells:
    """Keyed hashes of 64 bits of the cells of a design, shape (n, p), and the places of its rows in the table."""

    names: tuple[str, ...]
    hashes: NDArray[np.int64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, design: Source, key: bytes) -> Cells:
        """Return the cells of a design; a constant column says nothing, and is left out."""
        found = {}
        for name, column in design.columns.items():
            values, inverse = np.unique(column + 0.0 if column.dtype.kind == "f" else column, return_inverse=True)
            if len(values) > 1 or name in OWN:
                cells = [hashlib.blake2b(repr(one).encode(), digest_size=8, key=key) for one in values.tolist()]
                found[name] = np.frombuffer(b"".join(one.digest() for one in cells), dtype="<i8")[inverse.ravel()]
        hashes = np.column_stack([*found.values()]) if found else np.zeros((len(design.places), 0), np.int64)
        return cls(tuple(found), hashes, design.places.astype(np.int64))

    def write(self, folder: Path, digest: str) -> None:
        """Write the cells into a site's folder, for its owner alone."""
        arrays = {"hashes": self.hashes, "places": self.places}
        Archive("design", {"design": digest, "names": list(self.names)}, arrays).write(_path(folder, digest))

    @classmethod
    def read(cls, folder: Path, digest: str) -> Cells:
        """Inverse of `write`; an ArchiveError when the file is lost, damaged or another's."""
        found = Archive.read(_path(folder, digest))
        found.require("design", ("hashes", "places"))
        if found.header.get("design") != digest:
            raise found.refusal("design", digest, found.header.get("design"))
        return cls(tuple(found.header["names"]), found.arrays["hashes"], found.arrays["places"])

    def column(self, name: str) -> NDArray[np.int64]:
        """Return the hashes of a column."""
        return self.hashes[:, self.names.index(name)]

    def at(self, rows: NDArray[Any]) -> Cells:
        """Return some of the rows."""
        return Cells(self.names, self.hashes[rows], self.places[rows])

    @cached_property
    def marks(self) -> dict[str, NDArray[np.float64]]:
        """Columns of two values as 0 and 1, by name."""
        return {
            name: (column == column[0]).astype(np.float64)
            for name, column in zip(self.names, self.hashes.T, strict=True)
            if len(np.unique(column)) == 2
        }


def differences(new: Cells, old: Cells) -> Iterator[tuple[float, str]]:
    """Yield in how many rows two designs differ, with the place: whole rows, a column, or a combination of columns.

    Rows are compared over the columns in common, whatever their order. Columns are compared at common rows, each new
    one with every earlier one. Designs with no column in common have no sums that could be subtracted.
    """
    shared = [name for name in new.names if name in old.names]
    if not set(shared) - set(OWN):
        return
    keys = [np.column_stack([one.column(name) for name in shared]) for one in (new, old)]
    own, earlier = _labels(*keys)
    yield float(np.setxor1d(own, earlier).size), ROWS
    _, here, there = np.intersect1d(new.places, old.places, return_indices=True)
    if len(here) and 2 * (keys[0][here] == keys[1][there]).all(axis=1).sum() >= len(here):
        yield from _of_columns(new.at(here), old.at(there))
        return
    _, here, there = np.intersect1d(own, earlier, return_indices=True)  # another order: by the cells in common
    yield from _of_columns(new.at(here), old.at(there))


def _labels(*tables: NDArray[Any]) -> list[NDArray[Any]]:
    """Return a number for each row: the same for equal rows of two tables, the second of equals counted apart."""
    inverse = np.unique(np.concatenate(tables), axis=0, return_inverse=True)[1].ravel()
    found = []
    for part in np.split(inverse, [len(tables[0])]):
        order = np.argsort(part, kind="stable")
        first = np.searchsorted(part[order], part[order])
        rank = np.empty_like(part)
        rank[order] = np.arange(len(part)) - first
        found.append(part * len(inverse) + rank)
    return found


def _of_columns(new: Cells, old: Cells) -> Iterator[tuple[float, str]]:
    size, fresh = len(new.places), []
    for name, column in zip(new.names, new.hashes.T, strict=True):
        others = [other for other in old.names if other == name or not {name, other} & set(OWN)]
        apart = {other: float((old.column(other) != column).sum()) for other in others}
        if name in new.marks:
            for other in others:
                if other in old.marks:
                    swapped = float((old.marks[other] != new.marks[name]).sum())
                    apart[other] = min(apart[other], swapped, size - swapped)
        if apart and min(apart.values()) > 0.0:
            yield min(apart.values()), name
            fresh.append(name)
    marks = [new.marks[name] for name in fresh if name in new.marks]
    if marks and old.marks:
        whole = np.column_stack([np.ones(size), *old.marks.values(), *marks])
        yield 1.0 if largest_leverage(whole) > ALONE else np.inf, COMBINED


def _path(folder: str | os.PathLike[str], digest: str) -> Path:
    return Path(folder) / f"design-{digest}.npz"
