"""Files and folders of sites and servers are readable by their owner alone, whatever the umask."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

import bayesadmm_np as ba
from bayesadmm_np import _archive
from bayesadmm_np.federation import GLMTask
from bayesadmm_np.federation.dispatch import Plan, serve
from oracles.by_files import SITES, play, write_tables
from oracles.problems import prior, team
from oracles.scripted import Clock, Scripted

DIED = "--target died --loss logistic --features age,dose"
PVI = "--method PVI --prior-precision 1 --penalize-intercept"


@pytest.fixture(autouse=True)
def _umask():
    before = os.umask(0)
    yield
    os.umask(before)


def others_read(folder):
    """Names of what others than the owner may read, the folder among them."""
    return {path.name for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077}


def by_commands(call):
    write_tables()
    assert play(call, DIED, PVI)[0] == 0
    assert call("site rules east --most-parameters 0.5")[0] == 0
    for name in SITES:
        assert call(f"site step {name} run/final.npz")[0] == 0
    folders = [Path(name) for name in (*SITES, "run")]
    assert {"site.json", "key.hex", "ledger.jsonl", "state.npz", "hello.npz"} <= set(os.listdir("east"))
    return {name for folder in folders for name in others_read(folder)}


def test_a_run_by_commands(call):
    assert by_commands(call) == set()


def test_folders_that_are_made_by_the_umask_are_found(call, monkeypatch):
    """The broken twin: whoever may enter the folder reads the names of its files."""
    wide = lambda folder: Path(folder).mkdir(parents=True, exist_ok=True)  # noqa: E731
    monkeypatch.setattr("bayesadmm_np.cli._run_files.private_folder", wide)
    assert by_commands(call) == {*SITES, "run"}


@pytest.mark.parametrize("appended", [_archive.private, None])
def test_a_run_over_a_transport(appended, tmp_path, monkeypatch):
    """The broken twin appends to a file that the umask has made."""
    monkeypatch.setattr("bayesadmm_np.federation.dispatch.rounds.private", appended)
    losses = dict(zip("abc", team("logistic", sizes=(5, 8, 6)), strict=True))
    folders = [tmp_path / "runs" / "1", *(tmp_path / name for name in losses)]
    for folder in folders[1:]:
        _archive.private_folder(folder)
    task = GLMTask(ba.methods.PVI(0.5), lambda dim: prior("full", 3), rounds=3)
    transport = Scripted(Clock(monkeypatch), tmp_path, losses, lambda *_: 1.0)
    serve(Plan(task, folders[0], sites=3), transport, "7", lambda text: None)
    found = {name for folder in folders for name in others_read(folder)}
    assert found == (set() if appended else {"progress.jsonl"})


def test_the_folder_of_an_app_is_its_owners(call):
    """Keys and the database of the superlink come to lie there."""
    assert call("flower new trial --sites 3")[0] == 0
    assert Path("trial").stat().st_mode & 0o077 == 0
