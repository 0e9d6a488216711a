"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def aligned(lines: Sequence[Sequence[str]], left: int = 1, gap: str = "  ") -> list[str]:
    """Return one text a line of cells: the first `left` columns stand to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        gap.join(c.ljust(w) if j < left else c.rjust(w) for j, (c, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]


def word(label: Any) -> str:
    """Write a class label as it stands in a table."""
    return f"{label:.12g}" if isinstance(label, float) else str(label)
