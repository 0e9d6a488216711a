"""Run a lesson (a py:percent script) cell by cell, and turn it into a page.

A lesson is an ordinary script whose lines ``# %%`` open code cells and ``# %% [markdown]`` open cells of text.
`run_lesson` executes it in a fresh namespace with warnings as errors and collects what every cell printed and drew;
`to_markdown` writes that down. The site (`site_hooks.py`) and the tests use the same two functions.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

__all__ = ["LESSONS", "Cell", "Ran", "exercise", "lessons", "read_cells", "run_lesson", "title", "to_markdown"]

LESSONS = Path(__file__).parent / "lessons"
MARKER = re.compile(r"^# %%(?P<rest>.*)$")


@dataclass(frozen=True)
class Cell:
    """A cell of text or of code, the line of the file that it starts at, and whether its code is folded."""

    is_text: bool
    source: str
    line: int
    is_folded: bool = False


@dataclass(frozen=True)
class Ran:
    """A cell after its execution: what it printed, and its figures as SVG."""

    cell: Cell
    printed: str = ""
    figures: tuple[bytes, ...] = ()


def lessons() -> list[Path]:
    """Return the lessons in order."""
    return sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def read_cells(text: str) -> list[Cell]:
    """Split a py:percent script; what stands before the first marker (jupytext's header) is dropped."""
    cells: list[Cell] = []
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if MARKER.match(line)]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        is_text = "[markdown]" in lines[start]
        body = lines[start + 1 : stop]
        if is_text:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        source = "\n".join(body).strip("\n")
        if source:
            cells.append(Cell(is_text, source, start + 2, "hide-input" in lines[start]))
    return cells


def title(path: Path) -> str:
    """Return the first heading of a lesson."""
    found = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"{path.name} has no heading.")
    return found.group(1)


def run_lesson(path: Path, draw: bool = True) -> list[Ran]:
    """Execute a lesson in a fresh namespace; warnings are errors, and any exception ends it.

    Figures are rendered (with `draw`) and closed cell by cell.
    """
    import matplotlib.pyplot as plt

    text = path.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__lesson__", "__file__": str(path)}
    done = []
    with warnings.catch_warnings(), _importable(path.parent), plt.rc_context():
        warnings.simplefilter("error")
        plt.close("all")
        for cell in read_cells(text):
            if cell.is_text:
                done.append(Ran(cell))
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                # blank lines in front keep the line numbers of tracebacks those of the file
                exec(compile("\n" * (cell.line - 1) + cell.source, str(path), "exec"), namespace)
            figures = tuple(_svg(plt.figure(number)) for number in plt.get_fignums()) if draw else ()
            plt.close("all")
            done.append(Ran(cell, printed.getvalue(), figures))
    return done


def to_markdown(path: Path, ran: list[Ran]) -> tuple[str, dict[str, bytes]]:
    """Return the page and its figures by file name."""
    parts, figures = [], {}
    for item in ran:
        if item.cell.is_text:
            parts.append(item.cell.source)
            continue
        code = f"```python\n{item.cell.source}\n```"
        if item.cell.is_folded:
            code = '??? example "Code of what follows"\n\n' + textwrap.indent(code, "    ")
        parts.append(code)
        if item.printed:
            parts.append(f"```{{ .text .output }}\n{item.printed.rstrip()}\n```")
        for figure in item.figures:
            name = f"{path.stem}-{len(figures) + 1}.svg"
            figures[name] = figure
            parts.append(f"![figure {len(figures)} of this lesson]({name}){{ .figure }}")
    return "\n\n".join(parts) + "\n", figures


def exercise(lesson: Path) -> str:
    """Return the exercise of a lesson as the end of its page: the file to fill in, and its solution, folded."""
    (path,) = (LESSONS / "exercises").glob(f"{lesson.name[:2]}_*.py")
    task, solution = (
        f"```python\n{file.read_text(encoding='utf-8').strip()}\n```"
        for file in (path, path.parent / "solutions" / path.name)
    )
    name = f"docs/lessons/exercises/{path.name}"
    return (
        f"## Exercise\n\nFill in `{name}` and run it: it says what is wrong, or *Right*.\n\n"
        f'??? question "{name}"\n\n{textwrap.indent(task, "    ")}\n\n'
        f'??? success "A solution, and the usual mistake"\n\n{textwrap.indent(solution, "    ")}\n'
    )


def _svg(figure: object) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "lesson"}):  # the same bytes at each build
        figure.savefig(buffer, format="svg", metadata={"Date": None})  # type: ignore[attr-defined]
    return buffer.getvalue()


@contextlib.contextmanager
def _importable(folder: Path):
    """Let a lesson import `_style`, as it can when it is opened in its own folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
