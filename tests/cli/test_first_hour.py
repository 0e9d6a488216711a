"""Mistakes of the first hour with the hospitals' files: one line names what is wrong and the cure."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.demos import hospitals
from bayesadmm_np.federation import load_server
from bayesadmm_np.federation.lock import locked

FILES = "ghent.csv lund.csv porto.csv"
INIT = "--name Ghent --loss logistic --formula died~age"


@pytest.fixture
def run(bayesadmm, tmp_path, monkeypatch):
    """Type a command in a folder with the four files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(hospitals.FOLDER, tmp_path, dirs_exist_ok=True)
    return lambda words: bayesadmm(*words.split())


MISTAKES = {
    "a misspelt column": (f"fit {FILES} --formula died~agee", ["'agee'", "did you mean 'age'"]),
    "a misspelt target": (f"fit {FILES} --formula dead~age", ["'dead'", "did you mean 'died'"]),
    "an open formula": (f"fit {FILES} --formula died~age+", ["--formula"]),
    "no target": (f"fit {FILES} --formula age+sex", ["--formula", "target"]),
    "one file twice": ("fit ghent.csv ghent.csv --formula died~age", ["'ghent'", "NAME=FILE.csv"]),
    "a file that is not there": ("fit gent.csv --formula died~age", ["gent.csv"]),
    "a folder for a file": ("describe .", [". is a folder", "CSV file"]),
    "rows for a model": ("summary ghent.csv", ["MODEL", "ghent.csv", "fit --out", "describe"]),
    "rows before the model": ("certify ghent.csv lund.csv", ["MODEL", "after that file"]),
    "predict from rows": ("predict ghent.csv new.csv", ["MODEL"]),
    "a folder for a model": ("summary .", ["not the folder of a server"]),
    "files for sites": (f"server run trial {FILES}", ["SITE", "ghent.csv", "site init"]),
    "sites before their init": ("server run trial ghent lund porto", ["SITE", "site init"]),
    "a status of nothing": ("server status trial", ["not the folder of a server", "server init"]),
    "a step of nothing": ("server step trial", ["not the folder of a server"]),
    "an export of nothing": ("server status trial --out m.npz", ["not the folder of a server"]),
    "a file for a site's folder": (f"site init ghent.csv --data ghent.csv {INIT}", ["DIR"]),
    "a folder for a site's rows": (f"site init a --data . {INIT}", [". is a folder"]),
    "a class as a reference": (f"fit {FILES} --formula died~age --reference nein", ["COLUMN=LEVEL"]),
    "no such class": (f"fit {FILES} --formula died~age --reference-class nein", ["--reference-class", "(0, 1)"]),
    "a formula without quotes": (f"fit {FILES} --formula died ~ age", ["'~'", "double quotes"]),
    "an option for the files": ("fit --data ghent.csv --formula died~age", ["'--data'", "DATA"]),
    "no such family": ("derive fulll", ["FAMILY", "gaussian-full", "full", "'fulll'"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_with_its_cure(run, case):
    command, words = MISTAKES[case]
    code, out, err = run(command)
    assert (code, out) == (2, "")
    assert not [word for word in words if word not in err], err
    assert len([line for line in err.splitlines() if line.startswith("bayesadmm ")]) == 1, err


def test_a_run_goes_on_with_its_own_sites_alone(run):
    """A run of two sites ends in a refusal; the third site needs another folder for the server."""
    for name in ("ghent", "lund", "porto"):
        assert run(f"site init {name} --data {name}.csv --name {name} --loss logistic --formula died~age")[0] == 0
    assert run("server run trial ghent lund --no-progress")[0] == 3
    code, _, err = run("server run trial ghent lund porto --no-progress")
    assert (code, "ghent, lund, and not ghent, lund, porto" in err, "another DIR" in err) == (2, True, True)
    assert run("server run trial ghent lund --no-progress")[0] == 3
    assert run("server run other ghent lund porto --no-progress")[0] == 0


def test_a_model_among_files_of_rows_is_named(run):
    assert run(f"fit {FILES} --formula died~age --out model.npz --no-progress")[0] == 0
    code, _, err = run("describe ghent.csv model.npz")
    assert (code, "model.npz is a model or a message" in err) == (2, True)
    assert run("certify model.npz ghent.csv")[0] == 2  # two sites are lacking
    assert run(f"certify model.npz {FILES}")[0] == 0


@pytest.mark.parametrize("reference", ["ja", "nein"])
def test_what_is_said_before_a_table_agrees_with_its_head(run, reference):
    """The first class was called the reference, whichever --reference-class asked for."""
    for name in FILES.split():
        text = Path(name).read_text(encoding="utf-8").replace("\n1,", "\nja,").replace("\n0,", "\nnein,")
        Path(name).write_text(text, encoding="utf-8")
    other = {"ja": "nein", "nein": "ja"}[reference]
    code, out, err = run(f"fit {FILES} --formula died~age --reference-class {reference} --no-progress")
    assert code == 0, err
    assert f"of died: {other} against {reference}" in out
    said = [line for line in (out + err).splitlines() if "reference" in line or "coefficients are those" in line]
    assert said == []


def test_short_names_of_gaussians_are_names_of_derive(run):
    pytest.importorskip("sympy")
    code, short, _ = run("derive full")
    assert (code, short) == (0, run("derive gaussian-full")[1])
    assert short != run("derive diagonal")[1]


def losses():
    X = np.column_stack([np.arange(6.0), np.ones(6)])
    return [ba.losses.LeastSquares(X[:3], X[:3, 0]), ba.losses.LeastSquares(X[3:], X[3:, 0])]


PRIOR = ba.families.FullGaussian(np.zeros(2), 1.0)
PVI = ba.methods.PVI


@pytest.mark.parametrize(
    ("arguments", "argument", "advice"),
    [
        (lambda: ("PVI", losses(), PRIOR), "method", "call"),
        (lambda: (PVI, losses(), PRIOR), "method", "call PVI(...)"),
        (lambda: (losses(), PVI(), PRIOR), "method", "method, clients, prior"),
        (lambda: (PRIOR, losses(), PVI()), "method", "method, clients, prior"),
        (lambda: (PVI(), PRIOR, losses()), "prior", "method, clients, prior"),
    ],
)
def test_a_name_and_swapped_arguments_of_run_are_told_the_order(arguments, argument, advice):
    with pytest.raises(ArgumentError) as refused:
        ba.run(*arguments())
    assert refused.value.argument == argument
    assert advice in refused.value.advice


def test_a_forgotten_argument_of_run_is_named_by_python():
    with pytest.raises(TypeError, match=r"run\(\) missing 1 required positional argument: 'prior'"):
        ba.run(PVI(), losses())


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture
def sites(run):
    """Three sites that have said hello, and the command that makes them say hello."""

    def introduce(*names, formula="died~age"):
        for name in names:
            typed = f"site init {name} --data {name}.csv --name {name} --loss logistic --budget 3 --formula {formula}"
            assert run(typed)[0] == 0

    introduce("ghent", "lund", "porto")
    return introduce


@pytest.mark.parametrize("has_ledger", [True, False])
@pytest.mark.parametrize("begun", ["hello", "ended"])
def test_no_server_writes_into_the_folder_of_a_site(run, sites, begun, has_ledger):
    """The twins are the same commands with a folder of the server's own."""
    if begun == "ended":
        assert run("server run trial ghent lund porto --no-progress")[0] == 0
    if not has_ledger:
        Path("ghent/ledger.jsonl").unlink()
    before = files_of("ghent")
    for words in (
        "run ghent lund porto",
        "init ghent lund/hello.npz porto/hello.npz",
        "step ghent lund/hello.npz",
        "step ghent",
    ):
        code, out, err = run(f"server {words}")
        assert (code, out, "DIR" in err, "the folder of a site, ghent" in err) == (2, "", True, True), err
        assert files_of("ghent") == before, words
    with pytest.raises(ArgumentError) as raised, locked("ghent", "server"):
        pass  # as Flower's server and `start_server` do
    assert (raised.value.argument, files_of("ghent")) == ("folder", before)
    if begun == "hello":
        assert run("server init own lund/hello.npz porto/hello.npz")[0] == 0
        assert run("server step own")[0] == 0


def test_no_site_takes_the_folder_of_a_server(run, sites):
    assert run("server init trial ghent/hello.npz lund/hello.npz porto/hello.npz")[0] == 0
    before = files_of("trial")
    code, _, err = run(f"site init trial --data ghent.csv {INIT}")
    assert (code, "folder of a server" in err, files_of("trial") == before) == (2, True, True)


def test_a_second_run_needs_new_hellos_and_leaves_nothing_before(run, sites):
    assert run("server run trial ghent lund porto --no-progress")[0] == 0
    told = json.loads(run("server status trial --json")[1])  # the objective beside the log-likelihood, as in the guide
    spread = np.linalg.slogdet(2 * np.pi * load_server("trial").state.q_g.covariance)[1]
    assert told["objective"] == pytest.approx(-told["table"]["log_likelihood"] - spread / 2, rel=1e-9)
    code, _, err = run("server run trial2 ghent lund porto --no-progress")
    assert (code, "`bayesadmm site init`" in err, Path("trial2").exists()) == (2, True, False), err
    sites("ghent", "lund", "porto")
    assert run("server run trial2 ghent lund porto --no-progress")[0] == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("server init t ghent lund porto", ["HELLO: ghent is a folder", "ghent/hello.npz"]),
        ("server run t ghent/hello.npz lund porto", ["SITE: ghent/hello.npz is a message", "site, ghent."]),
        ("site step ghent/hello.npz ghent", ["DIR: ghent/hello.npz is a file", "folder first"]),
        ("server step ghent/hello.npz ghent", ["DIR: ghent/hello.npz is a file", "folder first"]),
    ],
)
def test_a_folder_and_its_message_are_told_apart(run, sites, command, words):
    code, out, err = run(command)
    assert (code, out, [word for word in words if word not in err], Path("t").exists()) == (2, "", [], False), err


@pytest.mark.parametrize(
    ("formula", "code"), [("died~age*sex", 0), ("died~sex+age+age:sex", 3), ("died~age+sex+age:sex", 0)]
)
def test_formulas_are_compared_by_their_terms(bayesadmm, run, sites, formula, code):
    """The other sites have blanks around each sign; the twin has its columns in another order."""
    sites("ghent", formula=formula)
    for name in ("lund", "porto"):
        words = f"site init {name} --data {name}.csv --name {name} --loss logistic --formula".split()
        assert bayesadmm(*words, "died ~ age * sex")[0] == 0
    assert run("server run trial ghent lund porto --no-progress")[0] == code


def recode(name, code):
    """Write the outcome of a site in another code."""
    head, *rows = Path(f"{name}.csv").read_text().splitlines()
    place = head.split(",").index("died")
    cells = [row.split(",") for row in rows]
    lines = [",".join([*row[:place], code[int(row[place])], *row[place + 1 :]]) for row in cells]
    Path(f"{name}.csv").write_text("\n".join([head, *lines, ""]))


@pytest.mark.parametrize(("code", "is_one"), [(("FALSE", "TRUE"), True), (("1", "2"), False), (("nein", "ja"), False)])
def test_two_codes_of_an_outcome_are_one_or_get_a_cure_that_works(run, sites, code, is_one):
    """FALSE is 0, as in one process; for the twins no option of the server makes two classes of four values."""
    assert run("server run first ghent lund porto --no-progress")[0] == 0
    recode("ghent", code)
    sites("lund", "porto")
    assert run("site init own --data ghent.csv --name ghent --loss logistic --budget 3 --formula died~age")[0] == 0
    done, _, err = run("server run trial own lund porto --no-progress")
    assert (done, "--as-written" in err) == (0 if is_one else 3, False), err
    if is_one:
        assert load_server("trial").state.q_g.mean == pytest.approx(load_server("first").state.q_g.mean, rel=1e-6)
