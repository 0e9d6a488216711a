"""The command as a user types it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `demos`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `demos`")
pytest.importorskip("sklearn", reason="the command line needs the extra `demos`")

import bayesadmm_np as ba
from bayesadmm_np.demos import fig4_outlier, fig5a_ridge, shared


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environment,
    )


def test_only_writes_its_files_and_keeps_the_entries_of_other_figures(bayesadmm, tmp_path):
    code, out, err = bayesadmm("reproduce", "--only", "4", "--out", tmp_path / "new" / "folder", "--no-progress")
    assert code == 0, err
    assert err == ""
    names = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert names == {"fig4_outlier.svg", "fig4_outlier.png", "results.json"}
    assert "✓" in out
    assert "≠ paper" in out
    assert "✗" not in out
    results = json.loads((tmp_path / "new" / "folder" / "results.json").read_text(encoding="utf-8"))
    assert results["schema"] == shared.SCHEMA
    assert list(results["figures"]) == ["4"]
    assert all(claim["holds"] for claim in results["figures"]["4"]["claims"])
    assert bayesadmm("reproduce", "--only", "3", "--out", tmp_path / "new" / "folder", "--no-progress")[0] == 0
    after = json.loads((tmp_path / "new" / "folder" / "results.json").read_text(encoding="utf-8"))
    assert list(after["figures"]) == ["3", "4"]
    assert after["figures"]["4"] == results["figures"]["4"]


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [("--only", "7", "3, 4, 5a, 5b"), ("--only", "", "3, 4, 5a, 5b"), ("--dataset", "cifar", "digits, mnist")],
)
def test_bad_values_are_named(bayesadmm, tmp_path, option, value, allowed):
    code, _, err = bayesadmm("reproduce", option, value, "--out", tmp_path / "out")
    assert code == 2
    assert option in err
    assert repr(value) in err
    assert allowed in err
    assert not (tmp_path / "out").exists()


def test_a_data_set_of_other_figures_is_not_understood(bayesadmm, tmp_path):
    code, _, err = bayesadmm("reproduce", "--only", "5a", "--dataset", "fashion", "--out", tmp_path / "out")
    assert code == 2
    assert_one_line(err, "--dataset", "'fashion'", "digits, mnist")
    assert not (tmp_path / "out").exists()


def test_a_claim_that_does_not_hold_is_exit_code_1(bayesadmm, monkeypatch, tmp_path):
    """Broken twin: the same run with a claim that is false."""
    false = replace(fig4_outlier.DEMO, claims=lambda numbers: [("two is three", False, "2")])
    monkeypatch.setattr(fig4_outlier, "DEMO", false)
    code, out, _ = bayesadmm("reproduce", "--only", "4", "--out", tmp_path, "--no-progress")
    assert code == 1
    assert "✗ two is three: 2" in out


def assert_one_line(err, *words):
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_mnist_that_is_nowhere_is_one_line_before_anything_is_drawn(bayesadmm, monkeypatch, tmp_path):
    import pooch

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setattr(pooch, "os_cache", lambda _: tmp_path / "cache")
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))
    code, _, err = bayesadmm("reproduce", "--dataset", "mnist", "--out", tmp_path / "out", "--no-progress")
    assert code == 1
    assert_one_line(err, "mnist.npz", "BAYESADMM_DATA")
    assert not (tmp_path / "out").exists()


def test_a_damaged_mnist_is_one_line(bayesadmm, monkeypatch, tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"not an archive")
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))
    code, _, err = bayesadmm("reproduce", "--only", "5a", "--dataset", "mnist", "--out", tmp_path / "out")
    assert code == 1
    assert_one_line(err, "mnist.npz")


def test_mnist_gets_its_own_files_and_key(bayesadmm, monkeypatch, tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (500, 28, 28), dtype=np.uint8)
    y = np.arange(500) % 10
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))
    sizes = {"rounds": 2, "admm_rhos": (25.0,), "bregman_rhos": (0.2,)}
    small = replace(fig5a_ridge.DEMO, compute=partial(fig5a_ridge.compute, **sizes))
    monkeypatch.setattr(fig5a_ridge, "DEMO", small)
    code, out, err = bayesadmm("reproduce", "--only", "5a", "--dataset", "mnist", "--out", tmp_path / "out")
    assert code == 0, out + err
    assert "figure 5a" in err  # the progress bar
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert list(results["figures"]) == ["5a-mnist"]
    assert (tmp_path / "out" / "fig5a_ridge_mnist.svg").exists()


@pytest.mark.parametrize("text", ["{ broken", '{"schema": 99, "figures": {}}'])
def test_a_results_file_of_something_else_is_not_overwritten(bayesadmm, tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    code, _, err = bayesadmm("reproduce", "--only", "3", "--out", tmp_path, "--no-progress")
    assert code == 1
    assert_one_line(err, "results.json")
    assert (tmp_path / "results.json").read_text() == text


@pytest.mark.parametrize("name", ["results.json", "fig3_circuit.png"])
def test_a_folder_in_the_place_of_a_file_is_one_line(bayesadmm, tmp_path, name):
    (tmp_path / name).mkdir()
    code, _, err = bayesadmm("reproduce", "--only", "3", "--out", tmp_path, "--no-progress")
    assert code == 1
    assert_one_line(err, name)
    assert "Errno" not in err


def test_out_that_is_a_file_is_one_line(bayesadmm, tmp_path):
    (tmp_path / "taken").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("taken", "link", "link/below"):
        code, _, err = bayesadmm("reproduce", "--only", "3", "--out", tmp_path / name, "--no-progress")
        assert code == 2
        assert_one_line(err, name, "--out")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("cyclopts", "reproduce --only 5a --out new --no-progress", "cli"),
        ("sklearn", "reproduce --only 5a --out new --no-progress", "demos"),
        ("torch", "reproduce --only 5c --out new --no-progress", "torch"),
        ("pandas", "fit a.csv --target y --no-progress", "cli"),
    ],
)
def test_a_missing_extra_is_one_sentence_and_exit_code_2(missing, words, extra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("y,x\n0,1\n1,2\n0,3\n")
    done = python(
        "-c", f"import sys; sys.modules[{missing!r}] = None; from bayesadmm_np.cli import main; main()", *words.split()
    )
    assert done.returncode == 2, done.stderr
    assert_one_line(done.stderr, f'pip install -e ".[{extra}]"')


def test_importing_the_command_line_needs_no_extra():
    code = (
        "import sys, bayesadmm_np.cli; "
        "print(sorted({'cyclopts', 'rich', 'matplotlib', 'sklearn', 'tqdm'} & set(sys.modules)))"
    )
    assert python("-c", code).stdout.strip() == "[]"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['bayesadmm', '--help']; from bayesadmm_np.cli import main\n"
        "try: main()\n"
        "except SystemExit: print({'torch', 'matplotlib', 'sklearn', 'pandas', 'tqdm', 'sympy'} & set(sys.modules))"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "set()"


def test_python_m():
    done = python("-m", "bayesadmm_np", "--help")
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout


def test_a_terminal_without_the_signs_is_no_error():
    done = python("-m", "bayesadmm_np", "fit", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, "?" in done.stdout) == (0, True), done.stderr


def test_version(bayesadmm):
    code, out, _ = bayesadmm("--version")
    assert code == 0
    assert out.strip() == f"bayesadmm_np {ba.__version__}"


def test_derive_prints_a_family_and_its_method(bayesadmm):
    code, out, _ = bayesadmm("derive", "gaussian-unit")
    assert code == 0
    assert "KL(q_k‖q_g)" in out
    code, latex, _ = bayesadmm("derive", "gaussian-unit", "--latex")
    assert code == 0
    assert "\\" in latex
    assert latex != out


def test_derive_names_the_families_it_knows(bayesadmm):
    code, _, err = bayesadmm("derive", "gaus")
    assert code == 2
    assert "gaussian-full" in err
