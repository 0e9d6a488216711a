"""What a hello says of a table with raw columns: a description without rows, and counts that a server asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from .._archive import Archive as Message
from .._validation import Array
from ..design.formula import Moments, SiteColumns
from ..design.terms import parse

INTERCEPT = "intercept"
"""Name of a column of ones; with such a column last, the others can be centred."""
MOST_LEVELS = 64
"""Grids that are asked for one after the other; bisection of all floats would need as many."""


@dataclass(frozen=True)
class TableHeader:
    """What a hello says of a table, before its columns have become a design.

    Attributes
    ----------
    kind : str
        Kind of GLM, with its options.
    described : SiteColumns
    weights : str or None
        Column of weights.
    is_list : bool
        Whether the formula was made of a list of columns, in the table's own order.
    orders : dict of str to tuple of str
        Levels in the order that a column declares; what is sent has its keys in order of name.
    units : dict of str to Moments
        Of columns of numbers, where they are to be standardised.
    ranges : dict of str to (float, float)
        Least and largest value of what splines take, at a site that lets quantiles be found.
    asked : tuple of str
        Digests of the grids on which the arrays hold counts.
    """

    kind: str
    described: SiteColumns
    weights: str | None = None
    is_list: bool = False
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    units: dict[str, Moments] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """What was said before any grids came, as JSON has it."""
        said: dict[str, Any] = json.loads(json.dumps(asdict(replace(self, asked=()))))
        return said

    def __post_init__(self) -> None:
        parse(self.described.formula)  # that of a stranger must not end a server later
        if not all(np.isfinite(ends).all() and ends[0] <= ends[1] for ends in self.ranges.values()):
            raise ValueError(f"ranges must be finite and rising, got {self.ranges}")
        if len(self.asked) > MOST_LEVELS:
            raise ValueError(f"asked must hold at most {MOST_LEVELS} digests, got {len(self.asked)}")
        columns = dict(self.described.columns)
        for name, order in self.orders.items():
            found = columns[name].levels if name in columns else None
            if found is None or sorted(found) != sorted(order):
                raise ValueError(f"orders must be of the levels of a column, got {list(order)} of {name!r}")
            columns[name] = replace(columns[name], levels={level: found[level] for level in order})
        object.__setattr__(self, "described", replace(self.described, columns=columns))


def count_name(level: int, index: int) -> str:
    """Return the name of the array with a grid, or the counts on it."""
    return f"counts/{level}/{index}"


def asked_of(grids: Mapping[int, Array]) -> str:
    """Return the digest by which a site says on which grids it counted."""
    return Message("grids", {}, {f"{index}": grid for index, grid in grids.items()}).digest[:16]


def count_names(names: Iterable[str]) -> set[str]:
    """Return those of grids and counts among some names."""
    return {name for name in names if name.startswith("counts/")}
