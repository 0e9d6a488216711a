"""Tables as hospitals have them: separator × decimal mark × encoding × mark for a missing value × command.

Each is read as the plain table is, or it is refused in one line, and the options that the line names are the cure.
"""

import itertools
import json
import re
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")

from bayesadmm_np._errors import PLAIN, Words
from bayesadmm_np.cli._options import FileSettings
from bayesadmm_np.cli._rows import read_frame, read_sites
from bayesadmm_np.cli._terminal import Refused
from bayesadmm_np.demos import hospitals
from bayesadmm_np.design.levels import TableError, require_readable

SITES = ("ghent", "lund", "porto")
FILES = [f"{name}.csv" for name in SITES]
FORMULA = ("--formula", "died ~ age + C(ward) + crp")
CURE = re.compile(r"--(na|decimal|encoding|separator) (\"[^\"]*\"|[\w-]+)")

SEPARATORS = (",", ";", "\t", "sep=;")
DECIMALS = (".", ",")
ENCODINGS = ("utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-16-le")
MARKS = ("", "#NV", "n.a.", "<5", "-", "k.A.", "NULL", "?")
DOORS = ("describe", "fit", "list", "certify", "evaluate", "predict", "site")


def write(separator=",", decimal=".", encoding="utf-8", mark="", everywhere=True):
    """Write the three files with a laboratory value, of which each 17th is missing."""
    rng = np.random.default_rng(3)
    for name, text in hospitals.simulate().items():
        if name not in SITES:
            continue
        head, *lines = text.replace("surgical", "Chirurgie Süd").splitlines()
        rows = [line.split(",") for line in [head, *lines]]
        for k, row in enumerate(rows):
            value = f"{np.exp(rng.normal(2.5, 1.0)):.1f}".replace(".", decimal)
            own = mark if everywhere or name == "lund" else ""
            row.append("crp" if k == 0 else own if k % 17 == 5 else value)
        cells = separator[-1]
        said = [cells.join(f'"{cell}"' if cells in cell else cell for cell in row) for row in rows]
        opening = ["sep=;"] if separator == "sep=;" else []
        with open(f"{name}.csv", "w", encoding=encoding, newline="") as file:
            file.write("\r\n".join([*opening, *said, ""]))


def enter(run, door, *options):
    """Return the exit code, the result as JSON, and the line of a refusal or the finding of a description."""
    if door == "site":
        folders = [Path(tempfile.mkdtemp(prefix=f"{name}-", dir=".")) for name in (*SITES, "trial")]
        for name, folder in zip(SITES, folders, strict=False):
            names = ("--data", f"{name}.csv", "--name", name, "--loss", "logistic")
            code, _, err = run("site", "init", folder, *names, *FORMULA, *options)
            if code:
                return code, None, err
        code, out, err = run("server", "run", folders[-1], *folders[:-1], "--no-progress")
        return code, run("summary", folders[-1], "--json")[1], err
    commands = {
        "describe": ("describe", *FILES),
        "fit": ("fit", *FILES, *FORMULA, "--no-progress"),
        "list": ("fit", *FILES, "--target", "died", "--categorical", "ward,sex", "--no-progress"),
        "certify": ("certify", "plain.npz", *FILES),
        "evaluate": ("evaluate", "plain.npz", *FILES),
        "predict": ("predict", "plain.npz", "lund.csv", "--dropna"),
    }
    json_option = () if door == "predict" else ("--json",)
    code, out, err = run(*commands[door], *json_option, *options)
    if door == "describe" and code == 0:
        err = " ".join(json.loads(out)["findings"])
        code = 2 if err else 0
    return code, out, err


def cured(run, door, most=4):
    """Return the result of a command with the options that its refusals name, and how many it took."""
    options = {}
    for count in range(most):
        code, out, err = enter(run, door, *itertools.chain(*options.items()))
        if code == 0:
            return out, count
        assert code == 2, (code, err)
        assert door == "describe" or len([line for line in err.splitlines() if "bayesadmm" in line]) == 1, err
        named = {f"--{option}": value.strip('"') for option, value in CURE.findall(err)}
        assert named.items() - options.items(), err
        options |= named
    raise AssertionError(err)


@pytest.fixture
def plain(bayesadmm, tmp_path, monkeypatch):
    """Results of the plain table by command."""
    monkeypatch.chdir(tmp_path)
    write()
    assert bayesadmm("fit", *FILES, *FORMULA, "--no-progress", "--out", "plain.npz")[0] == 0
    found = {}

    def of(door):
        if door not in found:
            found[door] = enter(bayesadmm, door)[1]
        return found[door]

    return of


ALL = list(itertools.product(SEPARATORS, DECIMALS, ENCODINGS, MARKS, (True, False)))


def sampled(count, seed):
    """Return so many ways to write the files, in which each single choice occurs."""
    rng = np.random.default_rng(seed)
    return [ALL[k] for k in rng.choice(len(ALL), count, replace=False)]


def hold(run, plain, ways):
    """Check each way to write the files at the next command."""
    refusals = 0
    for way, door in zip(ways, itertools.cycle(DOORS), strict=False):
        expected = plain(door)
        write(*way)
        out, count = cured(run, door)
        assert out == expected, (way, door)
        refusals += count
        write()
    return refusals


def test_files_of_hospitals_are_read_right_or_refused_with_the_cure(bayesadmm, plain):
    ways = sampled(21, seed=0)
    choices = (SEPARATORS, DECIMALS, ENCODINGS, MARKS, (True, False))
    assert all(set(found) == set(choice) for found, choice in zip(zip(*ways, strict=True), choices, strict=True))
    assert hold(bayesadmm, plain, ways) > 10


@pytest.mark.slow
def test_six_hundred_and_forty_ways_to_write_the_files(bayesadmm, plain):
    hold(bayesadmm, plain, ALL)


@pytest.mark.parametrize("mark", ["999", "0.1"])
def test_a_number_that_stands_for_a_missing_value_is_found_by_the_check(bayesadmm, plain, mark):
    """Twin: such a mark is read as a value, and the results are others."""
    with pytest.raises(AssertionError):
        hold(bayesadmm, plain, [(",", ".", "utf-8", mark, True)])


@pytest.mark.parametrize("door", [door for door in DOORS if door != "predict"])
@pytest.mark.parametrize(
    ("cells", "options"),
    [
        (("1,23{}", "1{}.5"), ()),
        (("1.23{},5", "1{},5"), ("--decimal", ",")),
        (("1.23{}", "1{},5"), ("--decimal", ",")),  # above a thousand, or a little above one
        (("1.23{}", "1{},5"), ()),
        (("1.23{}", "1{}0"), ()),  # all fractions have three digits, beside whole numbers
        (("1,23{}", "1{}0"), ("--decimal", ",")),
    ],
)
def test_marks_for_thousands_are_refused_whatever_the_decimal_mark(bayesadmm, plain, door, cells, options):
    plain("fit")
    for name in FILES:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        said = [line.rsplit(",", 1)[0].replace(",", ";") for line in lines]
        values = ["crp", *(cells[k % 3 == 0].format(k % 5) for k in range(len(lines) - 1))]
        text = "\n".join(f"{line};{value}" for line, value in zip(said, values, strict=True))
        Path(name).write_text(text, encoding="utf-8")
    code, _, err = enter(bayesadmm, door, *options)
    assert code == 2
    assert "'crp'" in err
    assert "thousands" in err


@pytest.mark.parametrize(
    ("cell", "is_said"), [("43.78{}", True), ("0.78{}", False), ("1.78{}", False), ("43.7{}", False)]
)
def test_fractions_of_three_digits_alone_are_numbers_with_a_note(bayesadmm, tmp_path, cell, is_said):
    """No rule can tell 43.787 of a salary from 43.787 of a balance: the site's own person is asked."""
    file = tmp_path / "a.csv"
    rows = "".join(f"{k % 2},{cell.format(k % 9 + 1)}\n" for k in range(40))
    file.write_text("y,x\n" + rows, encoding="utf-8")
    code, _, err = bayesadmm("describe", file)
    assert (code, "marks thousands" in err) == (0, is_said)


def test_fractions_of_three_digits_are_numbers_unless_larger_whole_numbers_stand_beside_them(tmp_path):
    """Twins: a fraction of two digits, and no whole number from 100 on."""
    path = tmp_path / "a.csv"
    for cells, is_read in (
        ("1.010 990", False),
        ("1.010 99", True),
        ("1.010 990 2.25", True),
        ("0.123 990", True),
        ("1.234 2.345", True),
    ):
        path.write_text("\n".join(["x", *cells.split()]))
        assert (read_frame(path, FileSettings()).x.dtype.kind == "f") == is_read, cells


def test_an_encoding_is_for_files_that_are_not_utf_8(tmp_path):
    """Twin: a file of the other encoding, read without the option, is refused."""
    for encoding in ENCODINGS[:3]:
        (tmp_path / f"{encoding}.csv").write_text("town\nKöln\nMünster\n", encoding=encoding)
    frames = read_sites([*tmp_path.iterdir()], None, FileSettings(encoding="cp1252"))
    assert [frame.town.tolist() for frame in frames.values()] == [["Köln", "Münster"]] * 3
    with pytest.raises(Refused):
        read_frame(tmp_path / "latin-1.csv", FileSettings())


def test_a_column_of_names_is_no_factor_unless_the_formula_says_so(bayesadmm, plain):
    """A list of columns says it by an option; the twin has few levels."""
    plain("fit")
    text = [Path(name).read_text(encoding="utf-8").splitlines() for name in FILES]
    site = ("site", "init", "a", "--data", FILES[0], "--name", "A", "--loss", "logistic")
    for n_levels, code in (200, 2), (3, 0):
        for name, lines in zip(FILES, text, strict=True):
            cells = ["note", *(f"note {k % n_levels}" for k in range(len(lines) - 1))]
            Path(name).write_text("\n".join(map(",".join, zip(lines, cells, strict=True))), encoding="utf-8")
        fit = ("fit", *FILES, "--no-progress", "--formula")
        found, _, err = bayesadmm(*fit, "died ~ age + note")
        assert (found, "write C(note)" in err) == (code, code == 2)
        assert bayesadmm(*site, "--formula", "died ~ age + note")[0] == code
        found, _, err = bayesadmm(*site, "--target", "died", "--features", "age,note")
        assert (found, "--categorical note" in err) == (code, code == 2)
    out = json.loads(bayesadmm("describe", *FILES, "--json")[1])
    assert not out["findings"]


MEASURED = {"limits": "<{}", "units": "{} mg", "marks": "{},5", "a date": "01.02.2024", "a number with blanks": " {} "}


@pytest.mark.parametrize("case", MEASURED)
def test_measurements_are_never_called_levels(case):
    """Twins: numbers pass, and words are texts that may be levels."""
    cells = [str(k + 0.25) for k in range(30)] + [MEASURED[case].format(k) for k in range(10)]
    for role, is_list in ("any", False), ("any", True), ("factor", False), ("factor", True):
        with pytest.raises(TableError) if role == "factor" or "number" not in case else nullcontext() as caught:
            require_readable("bmi", cells, np.ones(40, dtype=bool), role, "A", is_list)
        if caught is not None:
            words = Words(setting=lambda name, value: pytest.fail(f"{name}={value}") if name == "categorical" else name)
            remedy = caught.value.remedy
            told = remedy if isinstance(remedy, str) else remedy(words)
            assert ("write C(" in told, "numbers" in told, caught.value.column) == (False, True, "bmi"), told
    with pytest.raises(TableError, match=r"write C\(bmi\)"):
        require_readable("bmi", [f"note {k}" for k in range(40)], np.ones(40, dtype=bool), "any", "A")


def test_units_and_dates_among_numbers_have_their_own_cures():
    for word, cure in ("12 mg", "unit"), ("01.02.2024", "date"), ("lost", "missing"):
        with pytest.raises(TableError) as caught:
            require_readable("x", ["1", "2", "3", "4", word], np.ones(5, dtype=bool), "any", "A")
        told = caught.value.remedy(PLAIN)
        assert [one in told for one in ("unit", "date", "missing")] == [
            one == cure for one in ("unit", "date", "missing")
        ]


def test_a_hello_with_many_numbers_for_levels_is_told(bayesadmm, tmp_path, monkeypatch):
    """Twin: a factor of few levels."""
    monkeypatch.chdir(tmp_path)
    for n_levels, n_told in (60, 1), (5, 0):
        rows = [f"{k % 2},{k % n_levels + 0.5}" for k in range(10 * n_levels)]
        Path("a.csv").write_text("\n".join(["died,bmi", *rows]), encoding="utf-8")
        site = (
            "site",
            "init",
            f"a{n_levels}",
            "--budget",
            "100",
            "--data",
            "a.csv",
            "--name",
            "A",
            "--loss",
            "logistic",
        )
        code, _, err = bayesadmm(*site, "--formula", "died ~ C(bmi)")
        assert (code, err.count("60 levels of 'bmi'")) == (0, n_told), err


NO_TABLES = {
    "workbook": (b"PK\x03\x04" + bytes(60), "CSV UTF-8"),
    "old workbook": (b"\xd0\xcf\x11\xe0" + bytes(60), "CSV UTF-8"),
    "header twice": (b"died,age\n1,60\ndied,age\n0,61\n", "row 2"),
    "bytes of two": ("died,age\n1,60\n".encode("utf-16-be"), "--encoding utf-16-be"),
    "title first": (b"Report\ndied,age\n1,60\n", "header"),
    "no such utf-16": (b"died,age\n1,60\n", "--encoding"),
}


@pytest.mark.parametrize("case", NO_TABLES)
def test_what_is_no_table_is_refused_with_the_cure(bayesadmm, tmp_path, case):
    content, cure = NO_TABLES[case]
    path = tmp_path / "ghent.csv"
    path.write_bytes(content)
    options = ("--encoding", "utf-16") if case == "no such utf-16" else ()
    for command in ("describe",), ("fit", "--formula", "died ~ age"):
        code, out, err = bayesadmm(command[0], path, *command[1:], *options)
        assert (code, out, len(err.splitlines()), cure in err, "ghent.csv" in err) == (2, "", 1, True, True), err
