"""What README.md promises, .ci/run runs and pyproject.toml installs are the same things."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import bayesadmm_np._version

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / ".ci" / "run"

REPRODUCE = "python3 -m venv .venv && .venv/bin/pip install -e '.[demos]' && .venv/bin/bayesadmm reproduce"
TESTS = ".venv/bin/pip install -e '.[test]' && .venv/bin/pytest -n auto"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def fenced_lines(markdown: str) -> list[str]:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def listed(root: Path) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", str(root / ".ci" / "run"), "--list"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [REPRODUCE, TESTS])
def test_readme_has_each_command_once_in_a_fenced_block(command):
    lines = fenced_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines.count(command) == 1


@needs_bash
def test_ci_runs_the_readme_commands_with_pytest_last():
    done = listed(ROOT)
    assert done.returncode == 0, done.stderr
    commands = done.stdout.splitlines()
    assert commands[0] == REPRODUCE
    assert commands[1] == "git diff --exit-code --stat -- figures"
    assert commands[-1] == TESTS
    assert [line.removeprefix(".venv/bin/") for line in commands[3:6]] == [
        "ruff check .",
        "ruff format --check .",
        "mypy",
    ]
    assert commands[-3].startswith("OPENBLAS_NUM_THREADS=2 .extras/bin/pytest -n auto tests/deep tests/federation")
    assert commands[-2] == ".extras/bin/pytest tests/federation -m 'deployment and not slow'"


@needs_bash
def test_check_runs_the_same_commands_and_installs_nothing():
    done = subprocess.run(["bash", str(ROOT / ".ci" / "check"), "--list"], capture_output=True, text=True, check=True)
    commands = done.stdout.splitlines()
    assert commands[:5] == [
        "bayesadmm reproduce",
        "git diff --exit-code --stat -- figures",
        "ruff check .",
        "ruff format --check .",
        "mypy",
    ]
    assert commands[-1] == "pytest -n auto"
    assert not any("install" in command or "bin/" in command for command in commands)


@needs_bash
def test_check_stops_at_the_first_command_that_fails(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "check", tmp_path / ".ci" / "check")
    commands = "python3 -m venv .venv && .venv/bin/pip install x && echo first\\n.venv/bin/false\\necho last\\n"
    (tmp_path / ".ci" / "run").write_text(f"#!/usr/bin/env bash\nprintf '{commands}'\n")
    (tmp_path / ".ci" / "run").chmod(0o755)
    done = subprocess.run(["bash", ".ci/check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == ["+ echo first", "first", "+ false"]


def test_the_version_of_the_citation_is_that_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {bayesadmm_np._version.__version__}\n" in citation


def test_every_package_on_disk_is_listed_for_installation():
    """The list in pyproject.toml is written by hand: a forgotten package is missing in a wheel."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    on_disk = set()
    places = {"bayesadmm_np": "bayesadmm_np", "demos": "bayesadmm_np.demos", "docs/lessons": "bayesadmm_np.lessons"}
    for folder, name in places.items():
        for source in (ROOT / folder).rglob("*.py"):
            inner = source.parent.relative_to(ROOT / folder).parts
            on_disk.add(".".join((name, *inner)))
    assert set(config["tool"]["setuptools"]["packages"]) == on_disk


def test_the_version_is_written_once():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert config["project"]["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", bayesadmm_np._version.__version__)


def test_demos_are_importable_inside_the_package():
    import bayesadmm_np.demos

    assert Path(bayesadmm_np.demos.__file__).resolve() == ROOT / "demos" / "__init__.py"


# ----------------------------------------------------------------------------------------------------
# The practitioner's example
# ----------------------------------------------------------------------------------------------------


def without_residuals(text: str) -> str:
    """Replace numbers with exponents, whose digits are rounding."""
    return re.sub(r"\d\.\de-\d\d", "#", text)


def test_the_ten_lines_print_what_stands_below_them(capsys):
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```\n\n```\n", page, flags=re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```\n\n```\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    exec(block, {})
    assert without_residuals(capsys.readouterr().out) == without_residuals(shown)
    exec(block.replace("BayesADMM(rho=1.0)", "PVI()").replace("precision=1.0", "precision=1.5"), {})
    assert without_residuals(capsys.readouterr().out) != without_residuals(shown)


def test_the_readme_fits_a_page():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 70


def pasted_commands(markdown):
    """Return the words of each `bayesadmm` line of the shell blocks, as a shell splits the line."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", markdown, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "bayesadmm"]


def test_the_shell_block_runs_as_it_is_pasted_and_gives_the_pooled_fit(bayesadmm, tmp_path, monkeypatch):
    """Coefficients and errors are within 1e-6 standard errors of statsmodels' GLM of all rows, in process and by files.

    The runs stop at 1e-8 standard errors, and IRLS at a deviance that changes by 1e-13 of itself.
    """
    pd, sm = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.api")
    from bayesadmm_np.estimators.model_file import load_model
    from bayesadmm_np.estimators.summary import summarise

    shutil.copytree(ROOT / "demos" / "hospitals", tmp_path / "hospitals")
    monkeypatch.chdir(tmp_path / "hospitals")
    commands = pasted_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"fit", "certify", "site", "server"} == {words[0] for words in commands}
    for words in commands:
        code, _, err = bayesadmm(*words)
        assert code == 0, (words, err)
    assert bayesadmm("server", "status", "trial", "--out", "run.npz")[0] == 0
    table = pd.concat([pd.read_csv(f"{name}.csv") for name in ("ghent", "lund", "porto")])

    def largest_difference(name, formula):
        theirs = sm.GLM.from_formula(formula, table, family=sm.families.Binomial()).fit(tol=1e-13)
        rows = {row.name.replace("(intercept)", "Intercept"): row for row in summarise(load_model(Path(name))).rows}
        assert set(rows) == set(theirs.params.index)
        return max(
            max(abs(row.coef - theirs.params[name]), abs(row.std_err - theirs.bse[name])) / theirs.bse[name]
            for name, row in rows.items()
        )

    formula = next(words[words.index("--formula") + 1] for words in commands if "--formula" in words)
    for name in ("model.npz", "run.npz"):
        assert largest_difference(name, formula) < 1e-6
    table["age"] += table["died"]
    assert largest_difference("model.npz", formula) > 1e-3  # other rows are another fit: the test can fail


def test_a_command_without_its_file_fails(bayesadmm, tmp_path, monkeypatch):
    pytest.importorskip("cyclopts")
    monkeypatch.chdir(tmp_path)
    (first, *_) = pasted_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert bayesadmm(*first)[0] == 2


def test_the_hospitals_are_what_their_script_simulates():
    from bayesadmm_np.demos import hospitals

    files = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "demos" / "hospitals").iterdir()}
    assert files == hospitals.simulate()
    assert files != hospitals.simulate(seed=2025)


def test_the_hospitals_travel_with_a_wheel_and_are_copied_out(tmp_path, monkeypatch):
    from bayesadmm_np.demos import hospitals

    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pattern,) = config["tool"]["setuptools"]["package-data"]["bayesadmm_np.demos"]
    shipped = {path.name: path.read_bytes() for path in (ROOT / "demos").glob(pattern)}
    monkeypatch.setattr("sys.argv", ["hospitals", str(tmp_path / "a" / "b")])
    hospitals.main()
    assert {path.name: path.read_bytes() for path in (tmp_path / "a" / "b").iterdir()} == shipped
    assert len(shipped) == 4


def test_the_copy_of_the_hospitals_replaces_nothing(tmp_path, monkeypatch):
    """What is there and differs is refused before anything is written, a link too; what is the same is fine."""
    from bayesadmm_np.demos import hospitals

    def copied_to(folder, *options):
        monkeypatch.setattr("sys.argv", ["hospitals", str(folder), *options])
        try:
            return hospitals.main() or 0
        except SystemExit as ended:
            return ended.code

    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.csv"
    mine.write_text("died,age\n1,70\n", encoding="utf-8")
    obstacles = {
        "rows": lambda path: path.write_bytes(mine.read_bytes()),
        "link": lambda path: path.symlink_to(mine),
        "dangling": lambda path: path.symlink_to(tmp_path / "target.csv"),
        "folder": lambda path: path.mkdir(),
    }
    for name, lay in obstacles.items():
        (tmp_path / name).mkdir()
        lay(tmp_path / name / "porto.csv")
        for options in ((), ("--simulate",)):
            assert copied_to(tmp_path / name, *options) == 2
        assert [path.name for path in (tmp_path / name).iterdir()] == ["porto.csv"]
    for path in (mine, tmp_path / "rows" / "porto.csv"):
        assert path.read_text(encoding="utf-8") == "died,age\n1,70\n"
    assert not (tmp_path / "target.csv").exists()
    assert copied_to(mine) == copied_to("") == 2
    assert not list(tmp_path.glob("ghent.csv"))
    (tmp_path / "good").mkdir()
    shipped = (hospitals.FOLDER / "ghent.csv").read_bytes()
    (tmp_path / "ghent.csv").write_bytes(shipped)
    (tmp_path / "good" / "ghent.csv").symlink_to(tmp_path / "ghent.csv")
    assert copied_to("good") == copied_to("good", "--simulate") == 0
    assert (tmp_path / "good" / "ghent.csv").is_symlink()
    assert len(list((tmp_path / "good").iterdir())) == 4


# ----------------------------------------------------------------------------------------------------
# pytest -n auto
# ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="not in a parallel test run")
def test_workers_do_not_fight_for_cores():
    """The number reaches OpenBLAS only if conftest.py sets it before anything imports NumPy."""
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    wanted = int(os.environ["OPENBLAS_NUM_THREADS"])
    assert all(pool["num_threads"] <= wanted for pool in threadpool_info() if pool["internal_api"] == "openblas")


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (64, 4)])
def test_a_large_machine_gets_four_workers(cores, workers):
    spec = importlib.util.spec_from_file_location("root_conftest", ROOT / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.pytest_xdist_auto_num_workers()
    next(hook)
    with pytest.raises(StopIteration) as returned:
        hook.send(cores)
    assert returned.value.value == workers
