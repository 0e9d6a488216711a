"""One column at several sites, at every door: the levels of pandas' own reading, a line on what was made alike, or no.

pandas reads the files by itself, and concatenates them: 250 and 250.00 are one number in a column of numbers, and two
texts beside V58.6.
"""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.cli._options import DataSettings  # noqa: E402
from bayesadmm_np.cli._rows import rows_of_fit  # noqa: E402
from bayesadmm_np.design.agreement import design  # noqa: E402
from bayesadmm_np.design.levels import AgreedColumn, TableError  # noqa: E402
from bayesadmm_np.estimators import (  # noqa: E402
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    describe,
)
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

ROOMY = ("--budget", "1000", "--minimum-count", "1")
"""Rows are few here, and so are their values."""


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


def stacked(rows):
    return np.concatenate([made.matrix for made in rows.designs.values()])


def by_files(tables):
    for site, table in tables.items():
        table.to_csv(f"{site}.csv", index=False)
    rows = rows_of_fit([Path(f"{site}.csv") for site in tables], DataSettings(formula=FORMULA))
    return (
        rows.agreement,
        np.concatenate([made.matrix for made in rows.designs.values()]),
        pd.concat([pd.read_csv(f"{site}.csv") for site in tables]),
    )


def in_one_file(tables):
    whole = pd.concat([table.assign(site=site) for site, table in sorted(tables.items())])
    whole.to_csv("all.csv", index=False)
    rows = rows_of_fit([Path("all.csv")], DataSettings(formula=FORMULA, client="site"))
    return rows.agreement, stacked(rows), pd.read_csv("all.csv")


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


def patients(n=180):
    """A table of three sites without a fault, with codes of ICD-9."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"site": rng.choice(SITES, n), "x": rng.normal(size=n).round(3), "sex": rng.choice(["F", "M"], n)}
    )
    table["icd"] = rng.choice(["250", "250.00", "V58.6"], n)
    table["lab"] = [f"{value:.1f}" for value in rng.gamma(2, 9, n)]
    eta = table.x + table.icd.map({"250": -1.5, "250.00": 1.5, "V58.6": 0.0})
    return table.assign(died=(rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int))


@pytest.fixture
def run(bayesadmm, tmp_path, monkeypatch):
    """Call a command in a folder of the test's own; return its exit code, and what it says."""
    monkeypatch.chdir(tmp_path)
    return bayesadmm


def write_files(table, **how):
    table.to_csv("all.csv", index=False, **how)
    for site, part in table.groupby("site"):
        part.drop(columns="site").to_csv(f"{site}.csv", index=False, **how)
    return [f"{site}.csv" for site in SITES]


def test_a_model_takes_codes_of_another_file_as_they_are_written(run):
    """A file of 250.00 alone is one of numbers to pandas, and 250 is another code. Twin: a file of 250."""
    table = patients()
    write_files(table[table.icd != "250.00"])
    run("fit", "all.csv", "--client", "site", "--formula", "died ~ x + icd", "--no-progress", "--out", "m.npz")
    for code, wanted in (("250.00", 2), ("250", 0)):
        write_files(table.assign(icd=code))
        for command in (("predict", "m.npz", "all.csv"), ("evaluate", "m.npz", "all.csv")):
            found, _, err = run(*command)
            assert (found, "the level '250.00'" in err) == (wanted, wanted == 2), err


CODINGS = {
    "other words": {"Chur": {"F": "female", "M": "male"}},
    "words and letters": {"Bern": {"F": "Female", "M": "Male"}, "Basel": {"F": "Female", "M": "Male"}},
    "numbers": {"Basel": {"F": 0, "M": 1}, "Bern": {"F": 1, "M": 2}, "Chur": {"F": 0, "M": 1}},
}


@pytest.mark.parametrize("coding", CODINGS)
def test_codings_that_do_not_meet_are_refused_at_every_door_and_described(coding, run):
    """By one sentence, whose option fits them. Twin: one coding is fitted and not described."""
    table = patients()
    assert not describe(table.drop(columns="lab"), "site").findings
    table["sex"] = [
        CODINGS[coding].get(site, {}).get(sex, sex) for site, sex in zip(table.site, table.sex, strict=True)
    ]
    table["sex"] = table.sex.infer_objects()
    files, one = write_files(table), ("all.csv", "--client", "site")
    (sentence,) = describe(table.drop(columns="lab"), "site").findings
    assert "column 'sex' holds" in sentence
    parts = {site: part.drop(columns="site") for site, part in table.groupby("site")}
    for data in (table, parts):
        client = "site" if data is table else None
        with pytest.raises(TableError) as caught:
            FederatedLogisticRegression.from_formula("died ~ x + sex", data, client)
        assert str(caught.value) == sentence
        model = FederatedLogisticRegression.from_formula(
            "died ~ x + sex", data, client, as_written="sex", penalty="firth"
        )
        assert len(model.coef_.ravel()) == 1 + (1 if coding == "numbers" else 3)
    listed = ("--target", "died", "--features", "x,sex", *(("--categorical", "sex") if coding != "numbers" else ()))
    for data in (files, one):
        for how in (("--formula", "died ~ x + sex"), listed):
            code, _, err = run("fit", *data, *how, "--no-progress", "--penalty", "firth")
            assert (code, "column 'sex' holds" in err, "--as-written sex" in err) == (2, True, True), err
            assert run("fit", *data, *how, "--no-progress", "--penalty", "firth", "--as-written", "sex")[0] == 0
    for how in (("--formula", "died ~ x + sex"), listed[:4]):
        for site, file in zip(SITES, files, strict=True):
            assert run("site", "init", site, "--data", file, "--name", site, "--loss", "logistic", *ROOMY, *how)[0] == 0
        hellos = [f"{site}/hello.npz" for site in SITES]
        code, _, err = run("server", "init", "run", *hellos)
        assert (code, "column 'sex' holds" in err, "--as-written sex" in err) == (3, True, True), err
        assert run("server", "init", "run", *hellos, "--as-written", "sex")[0] == 0
        shutil.rmtree("run")


def test_files_of_other_countries_are_read_as_pandas_reads_them(run):
    table = patients().replace({"sex": {"F": "Männer", "M": "Ärztinnen"}})
    fit = ("fit", "all.csv", "--client", "site", "--formula", "died ~ x + sex", "--json", "--no-progress")
    write_files(table)
    plain = run(*fit)[1]
    write_files(table, sep=";", decimal=",", encoding="cp1252")
    how = ("--separator", ";", "--decimal", ",", "--encoding", "cp1252")
    assert run(*fit, *how)[1] == plain
    assert "--encoding" in run(*fit, *how[:4])[2]


def test_a_column_without_a_name_is_refused_where_columns_are_taken_without_a_formula(run):
    """Twins: a formula names columns, and so do --features and --drop."""
    table = patients().drop(columns=["icd", "lab", "sex"])
    table.to_csv("all.csv")
    table[table.site == "Bern"].drop(columns="site").to_csv("Bern.csv")
    site = ("site", "init", "a", "--data", "Bern.csv", "--name", "A", "--loss", "logistic", *ROOMY)
    for command in (("fit", "all.csv", "--client", "site", "--no-progress"), site):
        code, _, err = run(*command, "--target", "died")
        assert (code, '--drop "Unnamed: 0"' in err) == (2, True), err
        for how in (("--features", "x"), ("--drop", "Unnamed: 0")):
            assert run(*command, "--target", "died", *how)[0] == 0
        assert run(*command, "--formula", "died ~ x")[0] == 0
    assert "'Unnamed: 0' is a column without a name" in run("describe", "all.csv")[1]
    again = pd.read_csv("all.csv")
    with pytest.raises(ArgumentError, match="X must have a name"):
        FederatedLogisticRegression().fit(again[["Unnamed: 0", "x"]], again.died, again.site)


def test_what_transforms_learn_is_learned_from_rows_that_are_dropped_afterwards():
    """As in R 4.2: lm(y ~ scale(x) + w) and lm(y ~ bs(x, df=4) + w) of this table. Twin: complete rows alone."""
    table = pd.DataFrame(
        {
            "x": [1.5, 2, 3.5, 4, 6.5, 8, 9, 12, 15, 20, np.nan, 30],
            "w": [None, "b", "a", "a", "b", "a", "b", None, "a", "b", "a", "a"],
            "y": [2.1, 1, 3.3, 2.2, 4.1, 3.9, 4.4, 5, 6.1, 5.2, 1, 9],
            "s": list("AB") * 6,
        }
    )
    right = {
        "y ~ scale(x) + w": [1.99305754578155, -0.60223563011859],
        "y ~ bs(x, df=4) + w": [
            1.642326973507011,
            6.412886008953779,
            2.972832149503005,
            7.802251145759728,
            -0.393206936364313,
        ],
    }
    for formula, coefficients in right.items():
        model = FederatedLinearRegression.from_formula(formula, table, "s")
        np.testing.assert_allclose(model.coef_, coefficients, rtol=1e-12)
        assert model.site_missing_ == {"A": 2, "B": 1}
        twin = FederatedLinearRegression.from_formula(formula, table.dropna(), "s")
        assert abs(twin.coef_ - coefficients).max() > 1e-3


def test_an_intercept_alone_is_fitted_at_every_door(run):
    table = patients()
    files, p = write_files(table), table.died.mean()
    right = {"died": np.log(p / (1 - p)), "x": table.x.mean()}
    kinds = {"died": "logistic", "x": "linear"}
    for target, kind in kinds.items():
        formula = f"{target} ~ 1"
        model = FederatedGLM.from_formula(formula, table, "site", kind=kind)
        said = json.loads(run("fit", *files, "--formula", formula, "--loss", kind, "--json", "--no-progress")[1])
        for site, file in zip(SITES, files, strict=True):
            run("site", "init", site, "--data", file, "--name", site, "--loss", kind, "--formula", formula)
        between = json.loads(run("server", "run", "run", *SITES, "--json")[1])
        found = [np.ravel(model.intercept_)[0], said["coefficients"][0]["coef"], between["mean"][0]]
        # each is known to 1e-8 standard errors of at most 1
        np.testing.assert_allclose(found, right[target], atol=1e-7)
        assert len(model.predict(table)) == len(table)
        for folder in (*SITES, "run"):
            shutil.rmtree(folder)
    with pytest.raises(ArgumentError, match="an intercept"):
        FederatedGLM.from_formula("died ~ 0", table, "site", fit_intercept=False)
