"""The first word of a docstring is a verb or a noun of the field."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parents[2] / "bayesadmm_np"
FORBIDDEN = re.compile(r"\s*(What|Of|Where|It|As|By|That|Those|Whether|Its|How|Why|Which|When|If)\b")


def docstrings(source: str) -> list[tuple[int, str]]:
    """Return line and text of every string that stands alone: docstrings, and those below constants and fields."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    values = (node.value for node in statements if isinstance(node.value, ast.Constant))
    return [(value.lineno, value.value) for value in values if isinstance(value.value, str)]


def faults(source: str) -> list[str]:
    return [f"{line}: {text}" for line, text in docstrings(source) if FORBIDDEN.match(text)]


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_a_docstring_begins_with_a_verb_or_a_noun(path: Path) -> None:
    assert not faults(path.read_text(encoding="utf-8"))


def test_a_forbidden_word_is_found() -> None:
    source = 'def f():\n    """Whether, as ever."""\n\nN = 1\n"""Number."""\nM = 2\n"""Of a site."""\n'
    assert [fault[:2] for fault in faults(source)] == ["7:", "2:"]
