"""Run a lesson (a py:percent script) cell by cell, and turn it into a page or a notebook.

A lesson is an ordinary script whose lines ``# %%`` open code cells and ``# %% [markdown]`` open cells of text.
`run_lesson` executes it in a fresh namespace with warnings as errors and collects what every cell printed and drew;
`to_markdown` and `to_notebook` write that down. Run as a script, this file writes a notebook beside every lesson.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import re
import runpy
import sys
import textwrap
import warnings
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "Agg")

__all__ = [
    "LESSONS",
    "Cell",
    "Ran",
    "exercise",
    "lessons",
    "opening",
    "read_cells",
    "run_lesson",
    "task",
    "title",
    "to_markdown",
    "to_notebook",
    "usual_mistake",
]

LESSONS = Path(__file__).parent
MARKER = re.compile(r"^# %%(?P<rest>.*)$")
OPENING = re.compile(r"^# \*(\d+) minutes\. You need: (.+)\.\*$", flags=re.MULTILINE)
SHARED = re.compile(r"^(?:import _style as style|from _data import .*)\n", flags=re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of text or of code, and the line of the file that it starts at.

    Its code may be folded, and the whole cell may belong to an answer, which is folded with all that it shows.
    """

    is_text: bool
    source: str
    line: int
    is_folded: bool = False
    is_answer: bool = False


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
            tags = lines[start]
            cells.append(Cell(is_text, source, start + 2, "hide-input" in tags, '"answer"' in tags))
    return cells


def title(path: Path) -> str:
    """Return the first heading of a lesson."""
    found = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"{path.name} has no heading.")
    return found.group(1)


def opening(path: Path) -> tuple[int, str]:
    """Return the minutes that a lesson takes, and what it builds on."""
    found = OPENING.search(path.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{path.name} does not open with its minutes and what one needs.")
    return int(found.group(1)), found.group(2)


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
    figures: dict[str, bytes] = {}
    parts: list[str] = []
    for is_answer, items in groupby(ran, lambda item: item.cell.is_answer):
        shown = [part for item in items for part in _shown(path, item, figures)]
        parts += [_fold("success", "Answer", "\n\n".join(shown))] if is_answer else shown
    return "\n\n".join(parts) + "\n", figures


def _shown(path: Path, item: Ran, figures: dict[str, bytes]) -> list[str]:
    if item.cell.is_text:
        return [item.cell.source]
    code = f"```python\n{item.cell.source}\n```"
    parts = [_fold("example", "Code of what follows", code) if item.cell.is_folded else code]
    if item.printed:
        parts.append(f"```{{ .text .output }}\n{item.printed.rstrip()}\n```")
    for figure in item.figures:
        name = f"{path.stem}-{len(figures) + 1}.svg"
        figures[name] = figure
        parts.append(f"![figure {len(figures)} of this lesson]({name}){{ .figure }}")
    return parts


def _fold(kind: str, head: str, body: str) -> str:
    return f'??? {kind} "{head}"\n\n{textwrap.indent(body, "    ")}'


def to_notebook(path: Path, ran: list[Ran]) -> str:
    """Return the executed lesson as a notebook that needs no other file: `_style` and `_data` are its first cell."""
    cells = [_code(0, "# What the lessons share: the look of the figures, and the data.\n" + _shared(), hidden=True)]
    for item in ran:
        number, cell = len(cells), item.cell
        if cell.is_text:
            cells.append(_text(path, number, cell))
            continue
        outputs: list[dict[str, object]] = []
        if item.printed:
            outputs.append({"output_type": "stream", "name": "stdout", "text": item.printed})
        for figure in item.figures:
            data = {"image/svg+xml": figure.decode("utf-8")}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
        source = SHARED.sub("", cell.source)
        cells.append(_code(number, source, outputs, hidden=cell.is_folded or cell.is_answer))
        if cell.is_answer:
            cells[-1]["metadata"]["jupyter"]["outputs_hidden"] = True
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _shared() -> str:
    """Return the source of `_style` and `_data` as one cell, with `style` as a namespace."""
    style, data = ((LESSONS / name).read_text(encoding="utf-8") for name in ("_style.py", "_data.py"))
    text = f"{style}\n\nstyle = SimpleNamespace(**{{name: globals()[name] for name in __all__}})\n\n\n{data}"
    return "from types import SimpleNamespace\n" + text.replace("from __future__ import annotations\n", "")


def _code(number: int, source: str, outputs: list[dict[str, object]] | None = None, hidden: bool = False) -> Any:
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "execution_count": None,
        "metadata": {"jupyter": {"source_hidden": True}} if hidden else {},
        "outputs": outputs or [],
        "source": source,
    }


def _text(path: Path, number: int, cell: Cell) -> Any:
    """Return a cell of text: pictures come with it, links to lessons go to notebooks, other links are plain words."""
    attachments = {}

    def picture(found: re.Match[str]) -> str:
        file = path.parent / found[2]
        if not file.exists():  # a copy of the lessons without the site's figures
            return f"*{found[1]}: a film on the course's site.*"
        kind = file.suffix.removeprefix(".")
        attachments[file.name] = {f"image/{kind}": base64.b64encode(file.read_bytes()).decode("ascii")}
        return f"![{found[1]}](attachment:{file.name})"

    text = re.sub(r"!\[([^\]]*)\]\(([^):]+)\)", picture, cell.source)
    text = re.sub(r"\]\((\d\d_\w+)\.py\)", r"](\1.ipynb)", text)
    text = re.sub(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text)
    if cell.is_answer:
        text = f"<details><summary>Answer</summary>\n\n{text}\n\n</details>"
    made: Any = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text}
    return made | ({"attachments": attachments} if attachments else {})


def usual_mistake(lesson: Path) -> str:
    """Return the sentence of a lesson's solution about the wrong answer that is to be expected."""
    (path,) = (LESSONS / "exercises" / "solutions").glob(f"{lesson.name[:2]}_*.py")
    (wrong,) = runpy.run_path(str(path))["MISTAKE"].values()
    return str(wrong.__doc__)


def task(lesson: Path) -> str:
    """Return what a lesson's exercise asks for, with its file."""
    (path,) = (LESSONS / "exercises").glob(f"{lesson.name[:2]}_*.py")
    return f"{ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))}\n\nFile: `exercises/{path.name}`"


def exercise(lesson: Path) -> str:
    """Return the exercise of a lesson as the end of its page: the file to fill in, and its solution, folded."""
    (path,) = (LESSONS / "exercises").glob(f"{lesson.name[:2]}_*.py")
    stub, solution = (
        f"```python\n{file.read_text(encoding='utf-8').strip()}\n```"
        for file in (path, path.parent / "solutions" / path.name)
    )
    name = f"docs/lessons/exercises/{path.name}"
    return (
        f"## Exercise\n\nFill in `{name}` and run it: it says what is wrong, or *Right*.\n\n"
        f"{_fold('question', name, stub)}\n\n{_fold('success', 'A solution, and the usual mistake', solution)}\n"
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


def main() -> None:
    """Execute every lesson of this folder, and write its notebook beside it."""
    for path in lessons():
        target = path.with_suffix(".ipynb")
        target.write_text(to_notebook(path, run_lesson(path)), encoding="utf-8")
        print(target.name)


if __name__ == "__main__":
    main()
