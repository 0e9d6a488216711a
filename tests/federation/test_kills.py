"""Nothing is lost and no bit changes: kill -9 at random moments, no room, older backups.

`KILLS=500 pytest -m slow tests/federation/test_kills.py` kills 500 processes in some minutes; `pytest -m deployment`
does it to Flower's own.
"""

import os
import random
import resource
import shutil
import signal
import time

import pytest

import bayesadmm_np as ba
from bayesadmm_np import _archive
from bayesadmm_np.federation import (
    GLMData,
    GLMTask,
    MessageError,
    Site,
    load_server,
    step_server,
    step_site,
)
from bayesadmm_np.federation.folders import ask_copy, give_copy
from bayesadmm_np.federation.ledger import Ledger
from oracles.couriers import begin, carry, own_key
from oracles.kills import Killer, ended, forked
from oracles.overrides import ALLOWED
from oracles.problems import prior, same_bits, team

CLIENTS = team("logistic", sizes=(5, 8, 6))
START = prior("full", 3)
NAMES = ("s0", "s1", "s2")
TASK = GLMTask(ba.methods.PVI(0.5), START, rounds=4, tol=1e-12)
IN_PROCESS = ba.run(ba.methods.PVI(0.5), CLIENTS, START, rounds=4, tol=1e-12)


def site(folder, name):
    """A site as a process begins: from its folder alone."""
    return Site(name, GLMData(CLIENTS[NAMES.index(name)]), key=own_key(folder / name), rules=ALLOWED)


def sites_in(folder):
    return lambda: [site(folder, name) for name in NAMES]


def carried(folder, persist, after=lambda number: None):
    """Do a run of which every step is a call of `persist`."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
    carry(folder, sites_in(folder), TASK, persist, after)


def assert_whole(folder):
    """The bits of one process, in state and history; each reply is listed once; nothing half stands under a name."""
    server = load_server(folder / "server")
    assert same_bits(server.state.q_g.natural, IN_PROCESS.posterior.natural)
    assert [record.objective for record in server.state.history] == list(IN_PROCESS.objective[1:])
    assert len(set(server.counted)) == 1
    for name in NAMES:
        digests = [entry.digest for entry in Ledger.read(folder / name).entries]
        assert len(digests) == len(set(digests)) >= server.number - 1


def by_files(folder, count, seed):
    """A run by files of which every step may be killed; return how many were."""
    killer = Killer(random.Random(seed), count)
    carried(folder, killer.persist)
    assert_whole(folder)
    return killer.kills


def test_kills_at_random_moments_lose_nothing(tmp_path):
    kills = 0
    for seed in range(20):  # a fast machine may be done before the moment comes
        kills += by_files(tmp_path / str(seed), 5, seed)
        if kills >= 3:
            return
    pytest.fail(f"{kills} kills in 20 runs")


@pytest.mark.slow
def test_many_kills_lose_nothing(tmp_path):
    wanted, seed, kills = int(os.environ.get("KILLS", "100")), 1, 0
    while kills < wanted:
        kills += by_files(tmp_path / str(seed), 40, seed)
        seed += 1


def cramped(most, failed):
    """Let no file grow beyond so many bytes, as on a disk that is full; with room again the step is repeated."""

    def persist(act):
        def within():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            act()

        failed.append(not ended(forked(within)))
        act()

    return persist


def test_a_full_disk_loses_nothing(tmp_path):
    failed = []
    carried(tmp_path / "run", cramped(200, failed))
    assert sum(failed) > 20
    assert_whole(tmp_path / "run")


def test_a_file_that_is_written_in_its_place_is_lost(tmp_path, monkeypatch):
    """The broken twin: half a file under the name of the whole one."""

    def in_place(path, fill, rights=0o600):
        with open(path, "wb", buffering=0) as file:
            fill(file)

    monkeypatch.setattr(_archive, "replace_atomically", in_place)
    with pytest.raises(_archive.ArchiveError):
        carried(tmp_path / "run", cramped(1500, []))


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    """All files seem to be of another year after every exchange, and so does the present."""

    def jump(number):
        when = time.time() + (-1) ** number * 10 * 365 * 86400.0
        for path in (tmp_path / "run").rglob("*"):
            os.utime(path, (when, when))
        monkeypatch.setattr(time, "time", lambda: when)

    carried(tmp_path / "run", lambda act: act(), jump)
    assert_whole(tmp_path / "run")


@pytest.mark.parametrize("who", [("s1",), ("server", "s2")])
def test_a_folder_from_an_older_backup_is_noticed_and_catches_up(who, tmp_path):
    """Of a site, of the server, or of both: it says so, and the server's copies of the sites lead to the same bits."""
    folder = tmp_path / "run"
    refused = []

    def after(number):
        if number == 2:
            shutil.copytree(folder, tmp_path / "backup")
        if number == 4:
            for name in who:
                shutil.rmtree(folder / name)
                shutil.copytree(tmp_path / "backup" / name, folder / name)

    for name in NAMES:
        (folder / name).mkdir(parents=True)
    path = begin(folder, sites_in(folder)(), TASK)
    for step in range(1, 20):
        replies = []
        for name in NAMES:
            try:
                replies.append(step_site(folder / name, site(folder, name), path)[1])
            except MessageError as error:
                refused.append(str(error))
                copy = give_copy(folder / "server", ask_copy(folder / name, site(folder, name), path))
                replies.append(step_site(folder / name, site(folder, name), path, copy=copy)[1])
        path = step_server(folder / "server", replies)[1]
        if path.name == "final.npz":
            break
        after(step)
        path = max((folder / "server").glob("broadcast-*.npz"))
    assert refused
    assert all(any(words in text for words in ("round must be", "counted must be", "answers")) for text in refused)
    server = load_server(folder / "server")
    assert same_bits(server.state.q_g.natural, IN_PROCESS.posterior.natural)
