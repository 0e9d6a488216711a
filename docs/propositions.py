"""The table of propositions: `python docs/propositions.py` writes `docs/propositions.md` from `docs/propositions.txt`.

A row of the text file begins with its place in a paper, or a link to the page that proves it. The numbers of its
lessons and the statement follow. Indented lines continue the statement, or name tests and code by their symbols, which
stay valid when lines move. `resolve` finds the line of a symbol, and raises an error when the symbol is not there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["TABLE", "Row", "faults", "markdown", "read", "resolve"]

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
INTRODUCTION = """# Propositions

Each row is a statement of a paper or of this library. The tests check the statement, the lesson derives or uses it, and
the code (a file of `bayesadmm_np/`) computes it. Most of the tests also check that a wrong variant fails. To run a
test, type `pytest` and the name in quotes. *Misprinted* marks an equation of which the tests check the corrected form
([errata](notation.md)). `python docs/propositions.py` writes this page.

<div class="places" markdown>
"""


@dataclass(frozen=True)
class Row:
    """A statement, and the places where it is tested, taught and computed.

    Attributes
    ----------
    where, statement : str
        Markdown; formulas between dollars.
    lessons : tuple of int
    tests : tuple of str
        Names that pytest takes, such as ``tests/theory/test_theory.py::test_propositions[Eq. 33]``.
    code : tuple of str
        Such as ``bayesadmm_np/splitting/server.py:Server.gather``.
    """

    where: str
    lessons: tuple[int, ...]
    statement: str
    tests: tuple[str, ...]
    code: tuple[str, ...]


def read(text: str) -> dict[str, list[Row]]:
    """Return the rows of each section of the text file."""
    sections: dict[str, list[Row]] = {}
    for title, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)+)", text, flags=re.MULTILINE):
        sections[title] = [_row(entry) for entry in re.split(r"\n(?=\S)", section.rstrip())]
    return sections


def _row(entry: str) -> Row:
    first, *rest = map(str.strip, entry.splitlines())
    where, lessons, statement = (part.strip() for part in first.split("|", 2))
    tests = tuple(line for line in rest if line.startswith("tests/"))
    code = tuple(line for line in rest if line.startswith("bayesadmm_np/"))
    more = [line for line in rest if line not in (*tests, *code)]
    return Row(where, tuple(map(int, lessons.split())), " ".join([statement, *more]), tests, code)


TABLE = read((DOCS / "propositions.txt").read_text(encoding="utf-8"))


def resolve(place: str) -> int:
    """Return the line of a place such as `bayesadmm_np/splitting/server.py:Server.gather`; a test may have a case.

    Raises
    ------
    LookupError
        When the file or the symbol is not there.
    """
    path, symbol = re.split("::?", place.partition("[")[0], maxsplit=1)
    if not (ROOT / path).is_file():
        raise LookupError(f"{path} is not there.")
    body, line = _statements(ROOT / path), 0
    for part in symbol.split("."):
        found = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
        if not found:
            raise LookupError(f"{path} has no {symbol}.")
        line, body = found[0].lineno, found[0].body
    return line


@cache
def _statements(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def lesson(number: int) -> str:
    """Return the name of the script of a lesson; LookupError when there is not exactly one."""
    found = [path.name for path in (DOCS / "lessons").glob(f"{number:02}_*.py")]
    if len(found) != 1:
        raise LookupError(f"there are {len(found)} lessons {number}.")
    return found[0]


def faults(row: Row) -> Iterator[str]:
    """Say what a row names that is not there; whether pytest collects a test is for the tests to find out."""
    if not row.tests or not row.code:
        yield f"{row.where}: no test or no code"
    for find, names in ((resolve, (*row.tests, *row.code)), (lesson, row.lessons)):
        for name in names:
            try:
                find(name)
            except LookupError as error:
                yield f"{row.where}: {error}"


def markdown(lines: bool = False) -> str:
    """Return the page; with `lines` the line of each piece of code, which the site adds and no file keeps."""
    text = INTRODUCTION
    for title, rows in TABLE.items():
        text += f"\n## {title}\n\n| where | statement | lesson | test | code |\n|---|---|---|---|---|\n"
        text += "".join(f"| {' | '.join(_cells(row, lines))} |\n" for row in rows)
    return text + "\n</div>\n"


def _cells(row: Row, lines: bool) -> list[str]:
    lessons = ", ".join(f"[{number}](lessons/{lesson(number)})" for number in row.lessons)
    code = []
    for place in row.code:
        path, _, symbol = place.removeprefix("bayesadmm_np/").partition(":")
        code.append(f"`{symbol}` in `{path}{f':{resolve(place)}' if lines else ''}`")
    return [row.where, row.statement, lessons, "<br>".join(f"`{name}`" for name in row.tests), "<br>".join(code)]


if __name__ == "__main__":
    if wrong := [fault for rows in TABLE.values() for row in rows for fault in faults(row)]:
        raise SystemExit("\n".join(wrong))
    (DOCS / "propositions.md").write_text(markdown(), encoding="utf-8")
    print(f"docs/propositions.md: {sum(map(len, TABLE.values()))} statements")
