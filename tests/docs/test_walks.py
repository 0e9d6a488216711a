"""The table of docs/architecture.md: no value is held by more files on its way than it says."""

import re
from pathlib import Path

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
from oracles import walks

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
NAMES = {
    "rho": "ρ",
    "X": "X",
    "holder": "X, or an object with X in a field",
    "prior": "the prior",
    "posterior": "a posterior",
    "message": "a message",
}
ROW = re.compile(rf"^\| ({'|'.join(NAMES.values())}) \| (\S+).*? \| (\S+).*? \|$", flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("journey", ["fit", "files"])
def test_walks_are_as_short_as_the_page_says(journey):
    said = {name: dict(zip(("fit", "files"), counts, strict=True)) for name, *counts in ROW.findall(PAGE.read_text())}
    for value, files in walks.counted(journey).items():
        most = int(said[NAMES[value]][journey])
        assert 0 < len(files) <= most, f"{value}: {len(files)} files, {sorted(files)}"
