"""The layer below every command: an option is declared once; typed, in a file or of a plugin it is the same."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")

from bayesadmm_np import cli
from bayesadmm_np.splitting import methods

DOCS = Path(__file__).parents[2] / "docs" / "commands.md"
GROUPS = {name: importlib.import_module(f"bayesadmm_np.cli.{name}").__all__ for name in ("site", "server", "flower")}
CALLS = [
    *((name,) for name in cli.COMMANDS if name not in GROUPS),
    *((group, name) for group, names in GROUPS.items() for name in names),
]


def run(*arguments, code="from bayesadmm_np.cli import main; main()", **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


def wrong_help(call, out):
    """Say what a help has that no plain terminal shows."""
    options = out[out.index("Options:") :]
    if not out.startswith(f"Usage: bayesadmm {' '.join(call)}") or "\x1b" in out or "--help, -h" not in options:
        yield call
    yield from (line for line in options.splitlines() if len(line) > 80)
    for line in re.findall(r"^  --.*$", options, re.MULTILINE):
        if not re.fullmatch(r"  --\S+(, -\S+)?( [^ ]+)?(\s{2,}\S.*)?", line):
            yield line


def test_every_command_says_what_it_does_in_a_plain_terminal(bayesadmm):
    said = {call: bayesadmm(*call, "--help") for call in CALLS}
    assert [call for call, (code, _, err) in said.items() if (code, err) != (0, "")] == []
    assert [wrong for call, (_, out, _) in said.items() for wrong in wrong_help(call, out)] == []


def test_a_group_without_a_command_says_what_it_has(bayesadmm):
    for group, names in GROUPS.items():
        code, out, err = bayesadmm(group)
        assert (code, out) == (2, "")
        assert [name for name in names if not re.search(rf"^  {name} ", err, re.MULTILINE)] == []
        assert bayesadmm(group, "--help")[:2] == (0, err)


def test_every_command_is_in_the_overview_and_in_the_docs(bayesadmm):
    code, out, _ = bayesadmm("--help")
    assert code == 0
    rows = "".join(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
        assert f"`{name}`" in rows
    assert max(map(len, out.splitlines())) <= 80
    assert bayesadmm() == (2, "", out)


def test_only_commands_are_modules_without_an_underscore():
    modules = {path.stem for path in Path(cli.__file__).parent.glob("[!_]*.py")}
    assert modules == set(cli.COMMANDS)


def test_every_option_in_the_docs_is_one(bayesadmm):
    """The twin: an option that is none is found."""
    known = set().union(*(re.findall(r"--[a-z][a-z-]*", bayesadmm(*call, "--help")[1]) for call in CALLS))
    text = DOCS.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) <= known
    assert "--no-such-option" not in known


def test_there_are_few_commands_and_options():
    """Names of options, as the parser has them, summed over the commands."""

    def names(call):
        app = cli.application(call[0], importlib.import_module(f"bayesadmm_np.cli.{call[0]}"))
        found = app
        for word in call:
            found = found[word]
        arguments = found.assemble_argument_collection(default_parameter=app.default_parameter)
        return {name for argument in arguments for name in argument.names if name.startswith("--")}

    assert len(CALLS) <= 22
    assert sum(len(names(call)) for call in CALLS) <= 240
    assert {"--target", "--no-dropna"} <= names(("fit",))
    assert "--dropna" not in names(("fit",))


TYPED = [
    (("--rounds", "1.5"), "--rounds"),  # 2 would be a number nobody asked for
    (("--rounds", "none"), "--rounds"),
    (("--rho", "none"), "--rho"),
    (("--rounds", "0"), "--rounds"),
    (("--method", "pvi"), "'PVI'"),
    (("--gama", "1"), "'--gamma'"),
    (("--drop", "a,,b"), "--drop"),
    (("--tol",), "--tol"),
]


def test_a_refusal_is_one_line_that_names_the_option(bayesadmm):
    for typed, word in TYPED:
        code, out, err = bayesadmm("fit", "a.csv", "--target", "y", *typed)
        assert (code, out, err.count("\n"), word in err) == (2, "", 1, True), err


def test_a_command_that_is_none_has_a_neighbour(bayesadmm):
    for typed, near in ((["fti"], "'fit'"), (["site", "stpe"], "'step'")):
        code, out, err = bayesadmm(*typed)
        assert (code, out, near in err) == (2, "", True), err


def test_tables_fit_a_plain_terminal(bayesadmm, csv):
    """What a fit says, and what it is compared to; a long name or status may stand out."""
    data = (csv("diabetes"), "--target", "target", "--client", "site", "--loss", "ridge", "--no-progress")
    out = bayesadmm("fit", *data)[1]
    assert max(len(line) for line in out.splitlines() if ":  " in line) <= 100
    out = bayesadmm("compare", *data, "--methods", "PVI,BayesADMM,FedAvg", "--rounds", "5")[1]
    assert max(map(len, out.splitlines()[:6])) <= 80


def test_the_last_of_two_wins_and_lists_add_up(bayesadmm, csv):
    """As where an alias has options of its own."""
    options = ("--target", "target", "--client", "site", "--no-progress", "--tol", "1e-6")
    code, out, err = bayesadmm("fit", csv("cancer"), "--target", "none", *options, "--drop", "nope", "--drop", "no")
    assert (code, out) == (2, "")
    assert "--drop" in err
    assert "'nope'" in err
    code, out, err = bayesadmm(
        "fit", csv("cancer"), "--target", "none", *options, "--drop", "mean_radius", "--drop", "mean_texture"
    )
    assert code == 0, err
    assert "mean_concavity" in out
    assert "mean_radius" not in out
    assert "mean_texture" not in out


def test_a_file_is_held_to_what_is_typed(bayesadmm, tmp_path):
    for text in ("rounds = 0", "rounds = 1.5", "rounds = true", 'method = "pvi"', "drop = [1]", 'gamma = "all"'):
        (tmp_path / "study.toml").write_text(f'target = "y"\n{text}\n', encoding="utf-8")
        code, _, err = bayesadmm("fit", "a.csv", "--config", tmp_path / "study.toml")
        assert (code, "--config" in err, text.split()[0] in err) == (2, True, True), err


def test_a_method_of_another_package_is_a_choice(bayesadmm, csv, monkeypatch):
    """Its name is in the help and can be fitted with, also when it came after the commands were loaded."""
    options = ("--target", "target", "--client", "site", "--no-progress", "--method", "Halved")
    assert bayesadmm("fit", csv("cancer"), *options)[0] == 2  # the twin
    monkeypatch.setattr(methods.TABLE, "_things", dict(methods.TABLE))
    methods.TABLE.register(lambda: methods.PVI(0.5), name="Halved")
    assert "Halved" in bayesadmm("fit", "--help")[1]
    code, out, err = bayesadmm("fit", csv("cancer"), *options)
    assert code == 0, err
    assert "PVI, full family" in out


def test_plugins_are_loaded_before_a_command_is_read(tmp_path):
    """As installed packages register: by an entry point of the group."""
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bayesadmm_np.plugins]\nstranger = stranger\n")
    (tmp_path / "stranger.py").write_text(
        "from bayesadmm_np.splitting.methods import PVI, TABLE\nTABLE.register(lambda: PVI(0.5), name='Stranger')\n"
    )
    there = run("fit", "--help", env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"})
    assert (there.returncode, there.stderr) == (0, "")
    assert "Stranger" in there.stdout
    assert "Stranger" not in run("fit", "--help", env=os.environ | {"PYTHONIOENCODING": "utf-8"}).stdout


def test_a_pager_that_was_left_is_no_traceback():
    command = [sys.executable, "-c", "from bayesadmm_np.cli import main; main()", "derive", "gaussian-unit", "--latex"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait() == 1
    assert err == ""
