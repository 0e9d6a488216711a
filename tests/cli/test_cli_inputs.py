"""The table of bad inputs: each gets one line that names the option or column, and exit code 2."""

import gzip
import json
import os

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")

import pandas as pd

CANCER = ("--target", "target", "--client", "site", "--no-progress")


def change(**columns):
    return lambda frame: frame.assign(**columns)


def same(frame):
    return frame


BAD = {
    "no target": (same, ("--client", "site"), ["--target"]),
    "unknown target": (same, ("--target", "tarot"), ["--target", "did you mean 'target'"]),
    "unknown client": (same, ("--target", "target", "--client", "Site"), ["--client", "did you mean 'site'"]),
    "unknown column": (same, (*CANCER, "--drop", "id"), ["--drop", "'id'"]),
    "target among features": (same, (*CANCER, "--features", "target"), ["--features", "--target"]),
    "target is client": (same, ("--target", "site", "--client", "site"), ["--client", "--target"]),
    "nothing left": (
        same,
        (*CANCER, "--drop", "mean_radius,mean_texture,mean_smoothness,mean_concavity"),
        ["no feature"],
    ),
    "text feature": (change(mean_radius="big"), CANCER, ["'mean_radius'", "'big'", "--categorical mean_radius"]),
    "decimal commas": (change(mean_radius="1,5"), CANCER, ["'mean_radius'", "'1,5'"]),
    "words among numbers": (
        lambda f: f.assign(mean_radius=f.mean_radius.astype(str).where(f.index % 9 != 0, "#NV")),
        CANCER,
        ["'mean_radius'", "holds numbers and '#NV'", '--na "#NV"'],
    ),
    "two codes": (
        lambda f: f.assign(sex=f.index % 2 + (f.site == "west")),
        CANCER,
        ["site 'west': column 'sex' holds 1 and 2", "0 and 1 at site", "--as-written sex"],
    ),
    "points for commas": (same, (*CANCER, "--decimal", ","), ["'mean_radius'", "--decimal"]),
    "no such encoding": (same, (*CANCER, "--encoding", "cp12520"), ["--encoding", "'cp12520'"]),
    "infinite feature": (change(mean_radius=np.inf), CANCER, ["'mean_radius'", "infinite"]),
    "missing feature": (
        change(mean_radius=np.nan),
        CANCER,
        ["'mean_radius'", "no row is complete"],
    ),
    "one class": (change(target=1), CANCER, ["--target", "one value"]),
    "text for ridge": (
        lambda f: f.assign(target=np.where(f.target == 1, "ill", "well")),
        (*CANCER, "--loss", "ridge"),
        ["text", "ill"],
    ),
    "many classes for logistic": (
        lambda f: f.assign(target=np.arange(len(f)) % 3),
        (*CANCER, "--loss", "logistic"),
        ["two classes", "--loss softmax"],
    ),
    "unknown outcome": (
        lambda f: f.assign(target=np.where(f.index % 50, f.target, 9)),
        CANCER,
        ["if 9 stands for an unknown value", '--na "9"', "--loss softmax"],
    ),
    "dates": (change(mean_radius="2024-02-01"), CANCER, ["'mean_radius'", "holds dates", "as numbers"]),
    "units": (
        lambda f: f.assign(mean_radius=f.mean_radius.map("{} mm".format)),
        CANCER,
        ["'mean_radius'", "delete the unit", "write numbers"],
    ),
    "no column of the formula": (same, ("--formula", "outcome ~ blood"), ["mean_radius", "title above the header"]),
    "whole numbers": (lambda f: f.assign(target=np.arange(len(f)) % 7), CANCER, ["softmax", "poisson", "linear"]),
    "negative counts": (
        lambda f: f.assign(target=np.arange(len(f)) - 3),
        (*CANCER, "--loss", "poisson"),
        ["-3"],
    ),
    "a name as target": (
        lambda f: f.assign(target=[f"patient {i}" for i in range(len(f))]),
        CANCER,
        ["'target'", "'patient 1"],
    ),
    "one level": (change(sex="f"), (*CANCER, "--categorical", "sex"), ["'sex'", "one level", "'f'"]),
    "unknown loss": (same, (*CANCER, "--loss", "logit"), ["--loss", "did you mean 'logistic'"]),
    "no such knob": (same, (*CANCER, "--method", "PVI", "--rho", "1"), ["--rho", "gamma"]),
    "knob of auto": (same, (*CANCER, "--rho", "1"), ["--rho"]),
    "free intercept": (same, (*CANCER, "--method", "ADMM"), ["--penalize-intercept"]),
    "separator": (same, (*CANCER, "--separator", ";;"), ["--separator"]),
    "wrong separator": (same, (*CANCER, "--separator", ";"), ["--separator"]),
    "out in no folder": (same, (*CANCER, "--out", "no/such/folder/m.npz"), ["--out"]),
    "out is a folder": (same, (*CANCER, "--out", "."), ["--out"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words(bayesadmm, csv, tmp_path, case):
    spoil, options, words = BAD[case]
    path = csv("data", spoil(pd.read_csv(csv("cancer"))))
    code, out, err = bayesadmm("fit", path, *options)
    assert code == 2, (out, err)
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_refused_option_is_all_that_is_said(bayesadmm, csv):
    code, _, err = bayesadmm("fit", csv("cancer"), *CANCER, "--method", "ADMM", "--rho", "-1")
    assert (code, len(err.splitlines()), "rho must be > 0" in err) == (2, 1, True), err


def test_what_is_no_plain_file_is_not_replaced(bayesadmm, csv, tmp_path):
    pipe = tmp_path / "model.npz"  # stands for /dev/null and /dev/stdout, which root could lose
    os.mkfifo(pipe)
    code, out, err = bayesadmm("fit", csv("cancer"), *CANCER, "--out", pipe)
    assert code == 2, (out, err)
    assert "--out" in err
    assert pipe.is_fifo()


def test_a_constant_column_and_a_forgotten_site_column_are_said_aloud(bayesadmm, csv):
    path = csv("data", change(ward=3)(pd.read_csv(csv("cancer"))))
    options = ("--target", "target", "--drop", "site", "--no-progress")
    code, out, err = bayesadmm("fit", path, *options, "--json")
    assert code == 0, err
    (found,) = json.loads(out)["findings"]
    assert (found["code"], found["column"]) == ("constant", "ward")
    assert "--client" in err


FILES = {
    "nowhere": (None, ["nowhere.csv"]),
    "empty": (b"", ["empty"]),
    "header only": (b"target,x\n", ["no rows"]),
    "ragged": (b"target,x\n1,2\n0,1,5\n1,2\n", ["not a table"]),
    "all rows too long": (b"target,x\n1,2,3\n0,1,5\n", ['--separator ";"']),
    "title first": (b"Report\ntarget,x\n1,2\n0,1\n", ["lines above the header"]),
    "no names": (b",\n,\n", ["no name of a column"]),
    "repeated column": (b"target,x,x\n1,2,3\n", ["'x' 2 times"]),
    "binary": (bytes(range(128, 256)), ["utf-8", "--encoding"]),
}


def test_files_that_are_no_tables(bayesadmm, tmp_path):
    for case, (content, words) in FILES.items():
        path = tmp_path / f"{case}.csv"
        if content is not None:
            path.write_bytes(content)
        code, _, err = bayesadmm("fit", path, "--target", "target", "--no-progress")
        assert (code, len(err.strip().splitlines())) == (2, 1), err
        assert all(word in err for word in words), err


def test_rows_inside_a_cell_pipes_and_archives_are_no_tables(bayesadmm, tmp_path):
    """A quotation mark too many takes rows into a cell; a note of two lines is a cell as others are."""
    lines = ["y,x,note", *(f"{k % 2},{k * 0.7 % 1:.2f},ok" for k in range(40))]
    swallowed = [*lines[:11], '1,0.3,"tall', *lines[12:31], '0,0.2,"short', *lines[32:]]
    table = tmp_path / "table.csv"
    for text, code in ((lines, 0), (swallowed, 2), ([*lines[:5], '1,0.5,"two\nlines"', *lines[5:]], 0)):
        table.write_text("\n".join(text) + "\n", encoding="utf-8")
        found, _, err = bayesadmm("describe", table)
        assert (found, "row 11 of column 'note'" in err) == (code, code == 2)
    packed = gzip.compress(table.read_bytes())
    (tmp_path / "cut.csv.gz").write_bytes(packed[:60])
    (tmp_path / "packed.csv").write_bytes(packed)
    (tmp_path / "whole.csv.gz").write_bytes(packed)
    os.mkfifo(tmp_path / "pipe.csv")
    codes = [bayesadmm("describe", tmp_path / name)[0] for name in ("cut.csv.gz", "packed.csv", "pipe.csv")]
    assert (codes, bayesadmm("describe", tmp_path / "whole.csv.gz")[0]) == ([2, 2, 2], 0)


def test_several_files(bayesadmm, csv, tmp_path):
    frame = pd.read_csv(csv("cancer"))
    a, b = csv("a", frame), csv("b", frame.rename(columns={"mean_radius": "radius"}))
    code, _, err = bayesadmm("fit", a, b, "--target", "target")
    assert code == 2
    assert "mean_radius" in err
    case = csv("case", frame.rename(columns={"mean_radius": "Mean_radius"}))
    assert "rename 'Mean_radius' to 'mean_radius'" in bayesadmm("fit", a, case, "--target", "target")[2]
    wide = csv("wide", frame.assign(**{"": np.nan, " ": np.nan}))  # columns that a spreadsheet left at the end
    fits = [bayesadmm("fit", path, "--target", "target", "--drop", "site", "--json")[1] for path in (a, wide)]
    assert len({json.loads(out)["log_likelihood"] for out in fits}) == 1
    code, _, err = bayesadmm("fit", a, a, "--target", "target")
    assert code == 2
    assert "'a'" in err
    code, _, err = bayesadmm("fit", a, b, "--target", "target", "--client", "site")
    assert code == 2
    assert "--client" in err


CONFIGS = {
    "unknown key": ('targte = "target"', ["'targte'", "did you mean 'target'"]),
    "kind": ('target = "target"\nrho = "big"', ["rho", "a number", "'big'"]),
    "switch": ('target = "target"\nno_intercept = "yes"', ["no_intercept", "true or false"]),
    "table": ('[method]\nname = "PVI"', ["method", "a text"]),
    "twice": ("prior-precision = 1\nprior_precision = 2", ["prior_precision", "twice"]),
    "not toml": ("target: y", ["not TOML"]),
}


def test_bad_configurations(bayesadmm, csv, tmp_path):
    config = tmp_path / "study.toml"
    for text, words in CONFIGS.values():
        config.write_text(text, encoding="utf-8")
        code, _, err = bayesadmm("fit", csv("cancer"), "--config", config)
        assert code == 2
        assert all(word in err for word in ("--config", *words)), err


def test_predict_refuses_other_columns(bayesadmm, csv, tmp_path):
    path = csv("cancer")
    bayesadmm("fit", path, *CANCER, "--rounds", "2", "--out", tmp_path / "m.npz")
    for spoil, words in (
        (lambda f: f.drop(columns="mean_radius"), ["mean_radius"]),
        (lambda f: f.assign(mean_radius=np.nan), ["mean_radius (569)", "--dropna"]),
        (lambda f: f.assign(mean_radius="x"), ["'mean_radius'", "'x'"]),
        (lambda f: f.assign(mean_radius="59,0"), ["'mean_radius'", "'59,0'", '--decimal ","']),
    ):
        code, out, err = bayesadmm("predict", tmp_path / "m.npz", csv("new", spoil(pd.read_csv(path))))
        assert (code, out) == (2, "")
        assert all(word in err for word in words), err


def test_a_file_that_is_no_model(bayesadmm, csv, tmp_path):
    for command in (("summary", tmp_path / "m.npz"), ("predict", tmp_path / "m.npz", csv("cancer"))):
        code, _, err = bayesadmm(*command)
        assert code == 2
        assert "no such file" in err
    (tmp_path / "m.npz").write_bytes(b"PK")
    code, _, err = bayesadmm("summary", tmp_path / "m.npz")
    assert code == 2
    assert "m.npz" in err
    assert len(err.strip().splitlines()) == 1
