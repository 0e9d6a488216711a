"""A description of a table with raw columns in a hello: no rows, for an agreement with other sites."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..design.formula import SiteColumns
from ..design.terms import parse

INTERCEPT = "intercept"
"""Name of a column of ones; with such a column last, the others can be centred."""


@dataclass(frozen=True)
class TableHeader:
    """Description of a table in a hello, before its columns have become a design.

    The kind has its options. A list is a formula made of columns in the table's own order. `orders` has levels in the
    order that a column declares, as keys are sent in order of name.
    """

    kind: str
    described: SiteColumns
    weights: str | None = None
    is_list: bool = False
    orders: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def plain(self) -> dict[str, Any]:
        """The header as JSON has it."""
        said: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return said

    def __post_init__(self) -> None:
        parse(self.described.formula)  # that of a stranger must not end a server later
        columns = dict(self.described.columns)
        for name, order in self.orders.items():
            found = columns[name].levels if name in columns else None
            if found is None or sorted(found) != sorted(order):
                raise ValueError(f"orders must be of the levels of a column, got {list(order)} of {name!r}")
            columns[name] = replace(columns[name], levels={level: found[level] for level in order})
        object.__setattr__(self, "described", replace(self.described, columns=columns))
