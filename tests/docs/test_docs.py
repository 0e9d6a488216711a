"""Every Python block of the documentation runs, page by page, top to bottom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch, registries):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if re.search(r"^(import|from) .*torch", block, flags=re.MULTILINE):
            pytest.importorskip("torch")  # what stands before has run
        exec(compile(block, str(page), "exec"), namespace)


def test_the_extractor_sees_blocks():
    assert sum(len(blocks(page.read_text(encoding="utf-8"))) for page in PAGES) >= 6
    assert blocks("```python\n1 / 0\n```\n") == ["1 / 0\n"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
