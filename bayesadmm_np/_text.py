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


_OBEYED = [*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_OF_ONE_LINE = dict.fromkeys(_OBEYED, "�")
_SHOWN = {code: mark for code, mark in _OF_ONE_LINE.items() if chr(code) not in "\t\n"}


def visible(text: str) -> str:
    """Return text without the characters that a terminal obeys: a stranger's names and levels stand in tables."""
    return text.translate(_SHOWN)


def one_line(text: str) -> str:
    """Return visible text of one line: a stranger's text cannot add lines of its own."""
    return text.translate(_OF_ONE_LINE)


def word(label: Any) -> str:
    """Write a class label as it stands in a table."""
    return f"{label:.12g}" if isinstance(label, float) else str(label)
