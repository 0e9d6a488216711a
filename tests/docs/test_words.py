"""Plain English: the first word of a docstring, the length of a sentence, and sentences that begin at their end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oracles import prose

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "bayesadmm_np"
FORBIDDEN = re.compile(r"\s*(What|Of|Where|It|As|By|That|Those|Whether|Its|How|Why|Which|When|If)\b")
LONGEST = 30
"""Words of a sentence at most; formulas, numbers and code are no words."""
TURNED = re.compile(r"(?:^|\*\*)(?:Of (?:a|an|the|all|these|those)|What [^?]{1,80}, (?:is|are|has|goes))\b")
"""A sentence whose actor comes last: "Of a mode the bound is ...", "What is sent, is ..."."""
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "paper").glob("*.md"))
LESSONS = sorted((ROOT / "docs" / "lessons").glob("0*.py"))


def too_long(text: str) -> list[str]:
    return [sentence for sentence in prose.sentences(text) if prose.words(sentence) > LONGEST]


def turned(text: str) -> list[str]:
    return [sentence for sentence in prose.sentences(text) if TURNED.search(sentence)]


def text_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return prose.cells_of_text(text) if page.suffix == ".py" else text


@pytest.mark.parametrize("page", PAGES + LESSONS, ids=lambda page: page.name)
def test_a_page_has_short_sentences_that_begin_at_their_beginning(page: Path) -> None:
    text = text_of(page)
    assert too_long(text) == []
    assert turned(text) == []


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.relative_to(LIBRARY).as_posix())
def test_a_docstring_begins_with_a_verb_or_a_noun_and_has_short_sentences(path: Path) -> None:
    found = prose.docstrings(path.read_text(encoding="utf-8"))
    assert [f"{line}: {text}" for line, text in found if FORBIDDEN.match(text)] == []
    assert [sentence for _, text in found for sentence in too_long(prose.without_blocks(text))] == []


def test_faults_are_found() -> None:
    source = 'def f():\n    """Whether, as ever."""\n\nN = 1\n"""Number."""\nM = 2\n"""Of a site."""\n'
    assert [line for line, text in prose.docstrings(source) if FORBIDDEN.match(text)] == [7, 2]
    assert too_long("Short. " + "word " * 31 + ".\n\n```\n" + "code " * 50 + "\n```\n") == ["word " * 31 + "."]
    assert len(turned("Of a mode it is one.\n\n- **What is sent, is a sum.** What is a sum? Kind of the site.")) == 2
    assert prose.sentences("See Eq. 5 and `a. B`. Next: $a. B$ is\n$$x. Y$$\n\n| a. | b. |\n") == [
        "See Eq. 5 and x.",
        "Next:",
        "x is",
    ]
