"""Prose of Markdown pages and docstrings, cut into sentences whose words can be counted."""

from __future__ import annotations

import ast
import inspect
import re

WORD = re.compile(r"[A-Za-z][A-Za-z’'-]+")
"""Formulas, numbers and single letters count as no words."""
FENCE = re.compile(r"^ *(```|~~~|<pre).*?^ *(```|~~~|</pre>)", flags=re.MULTILINE | re.DOTALL)
INLINE = (
    (re.compile(r"\$\$.*?\$\$", flags=re.DOTALL), " "),
    (re.compile(r"\$[^$]+\$|:math:`[^`]*`"), "x"),
    (re.compile(r"``.*?``|`[^`]*`"), "x"),
    (re.compile(r"\[(?:\^\w|[^\[\]]*@)[^\[\]]*\](?!\()"), ""),  # footnotes and citations of the paper
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"</?[a-z][^>]*>"), " "),
)
NEW_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|\||#|>)\s)")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|Eqs?|Props?|Figs?|vs|cf|App|Sec|Thm|Alg|al)\.$")


def sentences(markdown: str) -> list[str]:
    """Return the sentences of all paragraphs and items, without headings, tables, code and display formulas."""
    text = FENCE.sub("", markdown)
    for pattern, instead in INLINE:
        text = pattern.sub(instead, text)
    found: list[str] = []
    for block in NEW_BLOCK.split(text):
        line = " ".join(block.split())
        if line and not line.startswith(("|", "#", "---")):
            found += _cut(line)
    return found


def _cut(paragraph: str) -> list[str]:
    """Cut after a full stop, a question mark, an exclamation mark or a colon."""
    found, kept = [], ""
    for part in re.split(r"(?<=[.!?:])\**\s+", paragraph):
        kept = f"{kept} {part}".strip()
        if not ABBREVIATION.search(kept):
            found.append(kept)
            kept = ""
    return found + [kept] * bool(kept)


def words(sentence: str) -> int:
    return len(WORD.findall(sentence))


def docstrings(source: str) -> list[tuple[int, str]]:
    """Return line and text of every string that stands alone: docstrings, and those below constants and fields."""
    statements = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    values = (node.value for node in statements if isinstance(node.value, ast.Constant))
    return [(value.lineno, value.value) for value in values if isinstance(value.value, str)]


def without_blocks(docstring: str) -> str:
    """Return a docstring as Markdown: examples, indented blocks and heads of parameters leave gaps."""
    kept, shown = [], False
    for line in inspect.cleandoc(docstring).splitlines():
        opens = not kept or not kept[-1].strip() or kept[-1].endswith(":")
        shown = line.startswith("  ") and (shown or opens)
        head = re.match(r"^\w[\w, *.]* ?: ", line) or re.fullmatch(r"-{3,}|[A-Z]\w+(Error|Warning)", line)
        kept.append("" if shown or line.startswith((">>>", "...")) else f"{line}\n" if head else line)
    return "\n".join(kept)


def cells_of_text(script: str) -> str:
    """Return the Markdown cells of a py:percent script."""
    cells = re.split(r"^# %%", script, flags=re.MULTILINE)
    text = [cell.split("\n", 1)[1] for cell in cells if cell.lstrip().startswith("[markdown]")]
    return "\n".join(re.sub(r"^# ?", "", cell, flags=re.MULTILINE) for cell in text)
