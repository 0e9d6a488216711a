"""Every promise of the pages on security names tests that exist, and each page begins with what is not promised."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text() for name in ("docs/security.md", "SECURITY.md")}


def named(text):
    return re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)


def lost(tests):
    """Those that no file has."""
    return [
        (path, name)
        for path, name in tests
        if not (ROOT / path).exists() or (name and f"\ndef {name}(" not in (ROOT / path).read_text())
    ]


def test_promises_name_tests_that_exist():
    table = PAGES["docs/security.md"].partition("## What is promised")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    promises = [line for line in lines if not line.endswith("| tests |") and not line.startswith("|---")]
    assert len(promises) > 20
    assert [line for line in promises if not named(line)] == []
    assert lost(test for text in PAGES.values() for test in named(text)) == []
    assert lost([("tests/attacks/test_single_sums.py", "test_nothing_of_the_kind"), ("tests/none.py", "")])  # the twin


def test_pages_begin_with_what_is_not_promised():
    """At most a sentence that says for whom the page is comes before."""
    assert [
        name for name, text in PAGES.items() if "\n\n**Not promised" not in "\n\n".join(text.split("\n\n")[:3])
    ] == []
