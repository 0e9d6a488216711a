"""The page of propositions is what its script writes, and each row leads to tests, lessons and code that are there."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import propositions  # noqa: E402  docs/ is no package

DUALITY, *_ = propositions.TABLE
ROWS = [row for rows in propositions.TABLE.values() for row in rows]


def test_the_page_is_what_the_script_writes(monkeypatch):
    page = (ROOT / "docs" / "propositions.md").read_text(encoding="utf-8")
    assert page == propositions.markdown(), "run python docs/propositions.py"
    monkeypatch.setitem(propositions.TABLE, DUALITY, ROWS[1:5])
    assert page != propositions.markdown()


def test_each_row_leads_somewhere():
    assert [fault for row in ROWS for fault in propositions.faults(row)] == []


@pytest.mark.parametrize(
    "change",
    [
        {"tests": ("tests/theory/test_theory.py::test_that_nobody_wrote",)},
        {"tests": ("tests/theory/no_file.py::test_geometry_is_consistent",)},
        {"tests": ()},
        {"lessons": (1, 99)},
        {"code": ("bayesadmm_np/splitting/server.py:Server.scatter",)},
        {"code": ("bayesadmm_np/splitting/server.py:gather",)},  # a method of Server, not a function
        {"code": ()},
    ],
    ids=str,
)
def test_a_row_that_leads_nowhere_is_a_fault(change):
    assert len(list(propositions.faults(replace(ROWS[0], **change)))) == 1


def missing(rows, collected):
    """Return the tests of rows that pytest does not collect; those of networks need torch."""
    has_torch = importlib.util.find_spec("torch") is not None
    named = {name for row in rows for name in row.tests if has_torch or not name.startswith("tests/deep/")}
    return sorted(named - collected)


def test_each_test_is_collected():
    """With its case in brackets. The twins: a helper that is a function but no test, and a case that is not there."""
    files = sorted({name.partition("::")[0] for row in ROWS for name in row.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-2000:]
    found = {line for line in done.stdout.splitlines() if "::" in line}
    found |= {line.partition("[")[0] for line in found}
    assert missing(ROWS, found) == []
    for twin in ("properties/test_circuit.py::check_duals", "theory/test_theory.py::test_propositions[Eq. 99]"):
        row = replace(ROWS[0], tests=(f"tests/{twin}",))
        assert list(propositions.faults(row)) == []
        assert missing([row], found) == [*row.tests]


def test_the_site_adds_lines_that_define_the_code():
    cells = re.findall(r"`([\w.]+)` in `([\w/]+\.py):(\d+)`", propositions.markdown(lines=True))
    assert len(cells) == sum(len(row.code) for row in ROWS)
    for symbol, path, line in cells:
        source = (ROOT / "bayesadmm_np" / path).read_text(encoding="utf-8").splitlines()
        assert re.match(rf"\s*(def|class) {symbol.rpartition('.')[2]}\b", source[int(line) - 1])


def test_every_equation_that_the_library_claims_has_a_row():
    numbers = set()
    for row in propositions.TABLE[DUALITY]:
        for first, last in re.findall(r"(\d+)(?:–(\d+))?", row.where.partition("(")[0]):
            numbers |= set(range(int(first), int(last or first) + 1))
    assert {*range(2, 18), 26, *range(29, 34), *range(46, 57), 63} <= numbers
    assert {"Prop. C.1", "Prop. D.1"} <= {row.where.partition(",")[0] for row in ROWS}


def test_no_line_of_the_text_file_is_lost():
    """All that the file says is on the page, places without their folder and symbols apart."""
    text = (ROOT / "docs" / "propositions.txt").read_text(encoding="utf-8")
    page = " ".join(propositions.markdown().split())
    for line in filter(None, map(str.strip, text.splitlines())):
        place, _, symbol = line.partition(":")
        parts = [symbol] if place.startswith("bayesadmm_np/") else re.split(r" \| [\d ]*\|", line)
        assert all(part.strip() in page for part in parts), line
