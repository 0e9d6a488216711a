"""One column at several sites, at every door: the levels of pandas' own reading, a line on what was made alike, or no.

pandas reads the files by itself, and concatenates them: 250 and 250.00 are one number in a column of numbers, and two
texts beside V58.6.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.cli._formula import rows_of_fit  # noqa: E402
from bayesadmm_np.cli._options import FormulaSettings  # noqa: E402
from bayesadmm_np.design.agreement import design  # noqa: E402
from bayesadmm_np.design.levels import AgreedColumn  # noqa: E402
from bayesadmm_np.estimators.formula_fit import make_designs, split_table  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMTable, GLMTask, Site  # noqa: E402

SITES = ("Basel", "Bern", "Chur")
FORMULA = "y ~ C(code)"
POOLS = {
    "numbers": ["1", "2", "3"],
    "with points": ["1.0", "2.0", "3.0"],
    "codes": ["250", "250.00", "V58.6"],
    "codes that are numbers": ["345.1", "345.10", "250"],
    "zeros before": ["01", "02", "3"],
    "words": ["a", "b", "c"],
    "another case": ["A", "b", "c"],
    "blanks": ["a", "b ", "c"],
    "other words": ["x", "y"],
    "numbers and a word": ["1", "2", "X"],
}


def partition(cells):
    """Rows by level: rows of one level have one number, in the order in which levels are met."""
    met = {}
    return [met.setdefault((isinstance(cell, str), cell), len(met)) for cell in cells]


def write(rng):
    """Each site's file as text, of pools that are alike or not."""
    pool = rng.choice(list(POOLS), 3) if rng.random() < 0.5 else np.repeat(rng.choice(list(POOLS)), 3)
    found = {}
    for site in rng.permutation(SITES):
        names = POOLS[str(pool[SITES.index(site)])]
        own = [names[i] for i in rng.permutation(len(names))[: rng.integers(2, len(names) + 1)]]
        found[str(site)] = pd.DataFrame(
            {"y": np.arange(30) % 2, "code": [own[i] for i in rng.integers(0, len(own), 30)]}
        )
    return found


def by_files(tables):
    for site, table in tables.items():
        table.to_csv(f"{site}.csv", index=False)
    rows = rows_of_fit([Path(f"{site}.csv") for site in tables], FormulaSettings(formula=FORMULA))
    return rows.agreement, rows.matrix, pd.concat([pd.read_csv(f"{site}.csv") for site in tables])


def in_one_file(tables):
    whole = pd.concat([table.assign(site=site) for site, table in sorted(tables.items())])
    whole.to_csv("all.csv", index=False)
    rows = rows_of_fit([Path("all.csv")], FormulaSettings(formula=FORMULA, client="site"))
    return rows.agreement, rows.matrix, pd.read_csv("all.csv")


def as_frames(tables, dtype):
    frames = {site: table.assign(code=cast(table.code, dtype)) for site, table in sorted(tables.items())}
    agreement, made = make_designs(frames, FORMULA)
    whole = pd.concat([frame.astype({"code": object}) for frame in frames.values()])
    return agreement, np.concatenate([part.matrix for part in made.values()]), whole


def in_one_frame(tables, dtype):
    whole = pd.concat([table.assign(site=site) for site, table in sorted(tables.items())], ignore_index=True)
    whole["code"] = cast(whole.code, dtype)
    agreement, made = make_designs(split_table(whole, "site"), FORMULA)
    return agreement, np.concatenate([part.matrix for part in made.values()]), whole


def between_sites(tables, dtype):
    frames = {site: table.assign(code=cast(table.code, dtype)) for site, table in sorted(tables.items())}
    sites = [Site(site, GLMTable(frame, FORMULA)) for site, frame in frames.items()]
    task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    agreement = Coordinator.start([site.hello() for site in sites], task).spec.agreement
    made = [design(frame, agreement).matrix for frame in frames.values()]
    return agreement, np.concatenate(made), pd.concat([frame.astype({"code": object}) for frame in frames.values()])


def cast(column, dtype):
    if dtype in ("int", "float"):
        try:
            numbers = column.astype(float)
        except ValueError:
            return column
        return numbers.astype(dtype) if dtype == "float" or (numbers == numbers.round()).all() else numbers
    return column.astype(dtype)


DTYPES = ("int", "float", "str", "object", "category")
DOORS = [
    by_files,
    in_one_file,
    *(
        lambda tables, door=door, dtype=dtype: door(tables, dtype)
        for door, dtype in itertools.product((as_frames, in_one_frame, between_sites), DTYPES)
    ),
]


def judged(door, tables):
    """ "refused", "alike" (by a line that says so) or "same", as pandas has it; silent differences raise."""
    try:
        agreement, matrix, whole = door(tables)
    except ValueError as error:
        if "'code'" not in str(error):
            raise
        return "refused"
    ours = partition([tuple(row) for row in matrix])
    theirs = partition([cell.strip() if isinstance(cell, str) else cell for cell in whole.code])
    if ours == theirs:
        return "same"
    said = [
        line
        for line in agreement.lines
        if line.startswith("code:") and (" was read as " in line or " were read as " in line)
    ]
    assert said, (agreement.lines, tables)
    return "alike"


@pytest.mark.parametrize("door", range(len(DOORS)))
def test_levels_are_those_of_pandas_or_a_line_or_a_refusal_says_otherwise(door, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng([4, door])
    found = [judged(DOORS[door], write(rng)) for _ in range(20)]
    assert min(found.count("same"), found.count("refused")) >= 2  # the generator exercises both ends


def test_the_check_catches_texts_that_are_read_as_numbers(monkeypatch):
    """Broken twin: every text that can be a number is one, as 1ec12de had it."""
    read = AgreedColumn.read

    def merged(self, column, rows, name):
        return read(self, column.replace("250.00", "250") if name == "code" else column, rows, name)

    monkeypatch.setattr(AgreedColumn, "read", merged)
    tables = {site: pd.DataFrame({"y": [0, 1] * 3, "code": POOLS["codes"] * 2}) for site in SITES}
    with pytest.raises(AssertionError):
        judged(lambda tables: as_frames(tables, "str"), tables)
