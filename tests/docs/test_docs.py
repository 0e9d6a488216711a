"""Every Python block of the documentation runs, page by page, top to bottom."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = r"\]\(([^)#:]+)(?:#[^)]*)?\)"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def programs():
    """Return (page, blocks of one namespace): those of a page, but each block of extending.md alone."""
    for page in PAGES:
        found = blocks(page.read_text(encoding="utf-8"))
        parts = [[block] for block in found] if page.name == "extending.md" else [found]
        yield from ((page, part) for part in parts if part)


@pytest.mark.parametrize(("page", "program"), [pytest.param(*one, id=one[0].name) for one in programs()])
def test_code_blocks_run(page, program, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in program:
        if re.search(r"^(import|from) .*torch", block, flags=re.MULTILINE):
            pytest.importorskip("torch")  # what stands before has run
        exec(compile(block, str(page), "exec"), namespace)


def test_the_extractor_sees_blocks():
    assert sum(len(blocks(page.read_text(encoding="utf-8"))) for page in PAGES) >= 6
    assert blocks("```python\n1 / 0\n```\n") == ["1 / 0\n"]


def test_tests_that_pages_name_are_there():
    """A function of tests/, or a file; the twin is a name that is none."""
    known = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= set(re.findall(r"^ *def (test_\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {
        name for page in PAGES for name in re.findall(r"`(?:[\w/]+/)?(test_\w+(?:\.py)?)`", page.read_text("utf-8"))
    }
    assert len(named) > 40
    assert named - known == set()
    assert {"test_of_nothing"} - known


def test_links_lead_somewhere():
    links = [(page, target) for page in PAGES for target in re.findall(LINK, page.read_text(encoding="utf-8"))]
    assert [(page.name, target) for page, target in links if not (page.parent / target).exists()] == []


def test_the_exchanges_of_several_classes_are_those_of_the_results_file():
    """Each cell of JointNewton, and the sentence above the table; a page of other numbers fails."""
    path = ROOT / "benchmarks" / "results" / "exchanges_posterior.json"
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "PVI" not in row]
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    page = page[page.index("### Several classes") : page.index("## Rounds to the posterior of a regression")]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + len({row["problem"] for row in rows})
    whole = []
    for name, _, *cells in table[1:]:
        for prior, exchanges in zip((1.0, 0.01, 1e-4), cells, strict=False):
            own = [row for row in rows if row["problem"] == name and row["prior"] == prior]
            taken = [cell[0] for row in own if (cell := row["guarded JointNewton"]) is not None]
            assert len(own) == 8
            assert exchanges == (f"{sum(taken) / len(taken):.1f} ({max(taken)})" if taken else "–")
            whole += [] if own[0]["separable"] else taken
    assert f"{sum(one <= 6 for one in whole)} of the {len(whole)} cases" in page.replace("\n", " ")
    assert max(whole) == 7
