"""Files: a step that was interrupted anywhere can be repeated, and what is refused changes nothing on the disk."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    final_result,
    load_server,
    lock,
    start_server,
    step_server,
    step_site,
)
from bayesadmm_np.federation.folders import arrivals
from oracles.couriers import answers, begin, carry, introduce, started, state_of
from oracles.problems import prior, same_bits, team

M = ba.methods
CLIENTS = team("logistic", sizes=(5, 8, 6))
START = prior("full", 3)
ROW = ba.Accelerated(M.PVI(0.5), 2)
OPTIONS = {"rounds": 4, "tol": 1e-12}


class Crash(BaseException):
    """A machine that stops: no handler of ordinary errors sees it."""


@pytest.fixture
def crash_at(monkeypatch):
    """Stop the n-th writing of a file from now on, before or after the file has its name."""
    real, count = os.replace, {"at": 0, "before": True}

    def replace(source, target):
        count["at"] -= 1
        if count["at"] == 0:
            if count["before"]:
                raise Crash
            real(source, target)
            raise Crash
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    return lambda number, before: count.update(at=number, before=before)


def sites():
    return introduce(CLIENTS)


def run(folder, crash=lambda step: None):
    """Run to the end by files; a step that `crash` interrupts is repeated. Return all messages and states."""

    def persist(act):
        try:
            crash(act)
        except Crash:
            # half of a file from another crash lies beside the good ones
            (folder / "server" / "tmpx.part").write_bytes(b"half a fi")
        return act()

    carry(folder, sites, GLMTask(ROW, START, **OPTIONS), persist)
    found = {name: data for name, data in state_of(folder).items() if name.endswith(".npz")}
    keyed = [name for name in found if "/design-" in name]  # by a random key of the site's ledger
    assert len(keyed) == len(CLIENTS)
    return {name: data for name, data in found.items() if name not in keyed}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("undisturbed"))


def test_a_run_by_files_is_the_run_in_process(undisturbed, tmp_path):
    result = ba.run(ROW, CLIENTS, START, **OPTIONS)
    final = Message.from_bytes(undisturbed["server/final.npz"])
    assert same_bits(final_result(final).posterior.natural, result.posterior.natural)
    assert np.array_equal(final_result(final).objective, result.objective)
    assert (
        len([name for name in undisturbed if "server/" in name]) == result.rounds + 3
    )  # one broadcast more, the state, the final message


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("before", [True, False])
def test_every_step_survives_a_crash_at_every_writing(number, before, undisturbed, crash_at, tmp_path):
    """Each step of the run is interrupted at its n-th file, and repeated: all files come out the same."""
    crashes = []

    def crash(act):
        crash_at(number, before)
        try:
            act()
        except Crash:
            crashes.append(number)
            raise
        finally:
            crash_at(0, before)

    assert run(tmp_path, crash) == undisturbed
    assert len(crashes) >= 14  # it did crash: a server and three sites in five exchanges


def test_without_replies_the_message_is_written_again(tmp_path):
    path = start_server(tmp_path, started(sites(), GLMTask(ROW, START)))
    data = path.read_bytes()
    path.unlink()
    assert step_server(tmp_path, [])[1] == path
    assert path.read_bytes() == data


@pytest.fixture
def halfway(tmp_path):
    """Two exchanges done; the third broadcast and the replies to it."""
    path = begin(tmp_path, sites(), GLMTask(ROW, START))
    for _ in range(3):
        replies = answers(tmp_path, sites(), path)
        last, (_, path) = path, step_server(tmp_path / "server", replies)
    return tmp_path, last, path, replies


def stepped(folder, name, path, **options):
    """A site's step by its name."""
    return step_site(folder / name, sites()[int(name[1])], path, **options)


def damaged(path, how):
    data = path.read_bytes()
    bad = {
        "half": data[: len(data) // 2],
        "a bit": bytes([*data[:200], data[200] ^ 1, *data[201:]]),
        "empty": b"",
        "text": b"Dear server,\n",
    }[how]
    target = path.with_name(f"bad-{path.name}")
    target.write_bytes(bad)
    return target


def test_damaged_files_change_nothing(halfway):
    folder, _, path, replies = halfway
    for how in ("half", "a bit", "empty", "text"):
        bad_reply, bad_broadcast = damaged(replies[1], how), damaged(path, how)
        before = state_of(folder)
        with pytest.raises(MessageError, match=bad_reply.name):
            step_server(folder / "server", [replies[0], bad_reply])
        with pytest.raises(MessageError, match=bad_broadcast.name):
            stepped(folder, "s0", bad_broadcast)
        assert state_of(folder) == before


def test_messages_of_other_rounds_change_nothing(halfway):
    folder, last, path, replies = halfway
    before = state_of(folder)
    fresh = stepped(folder, "s0", last)[1]  # the old broadcast: the same bytes again
    assert state_of(folder) == before
    for old in ([fresh], replies):  # the step that was done already
        assert step_server(folder / "server", old)[0].number == 4
        assert state_of(folder) == before
    for _ in range(2):
        new = answers(folder, sites(), path)
        path = step_server(folder / "server", new)[1]
    before = state_of(folder)
    with pytest.raises(MessageError, match="round must be 6"):
        step_server(folder / "server", [fresh])
    assert state_of(folder) == before


def missing(folder, server):
    came = arrivals(folder / "server", server)[0]
    return tuple(name for name in server.spec.sites if name not in came)


def test_replies_are_kept_until_all_have_come(halfway):
    """Whoever steps as the mails arrive loses none, in whatever order they come, and however often."""
    folder, _, path, _ = halfway
    replies = answers(folder, sites(), path)
    together = tuple(state_of(step_all(folder, "together", replies)).items())
    for _ in range(2):
        server, out = step_server(folder / "server", [replies[2]])
        assert (server.number, out) == (4, path)
        assert missing(folder, server) == ("s0", "s1")
    replies[2].unlink()  # the server has its own
    server, out = step_server(folder / "server", [replies[0]])
    assert missing(folder, server) == ("s1",)
    server, out = step_server(folder / "server", [replies[1]])
    assert (server.number, server.counted) == (5, (4, 4, 4))
    assert missing(folder, server) == ("s0", "s1", "s2")
    assert tuple(state_of(folder / "server").items()) == together
    assert step_server(folder / "server", [replies[1]])[0].number == 5  # once more: it is in the sum


def step_all(folder, name, replies):
    other = folder / name
    shutil.copytree(folder / "server", other)
    step_server(other, replies)
    return other


def test_a_round_ends_without_the_named_site_alone(halfway):
    """The broken twin is --partial, which leaves out whoever has not answered yet."""
    folder, _, path, _ = halfway
    replies = answers(folder, sites(), path)
    server, out = step_server(folder / "server", replies[:1], without=["s2"])
    assert (server.number, out, missing(folder, server)) == (4, path, ("s1", "s2"))
    with pytest.raises(ValueError, match="without"):
        step_server(folder / "server", replies[1:], without=["s9"])
    step_server(folder / "server", replies[2:])  # which comes, and is left out all the same
    twin = step_all(folder, "twin", [])
    server, _ = step_server(folder / "server", replies[1:2], without=["s2"])
    assert (server.counted, server.left_out) == ((4, 4, 3), (("round", 4, ("s2",)),))
    assert load_server(folder / "server").left_out == server.left_out
    assert step_server(twin, [], partial=True)[0].counted == (4, 3, 4)
    with pytest.raises(ValueError, match="partial"):
        step_server(twin, [], partial=True)
    with pytest.raises(MessageError, match="let the site answer that broadcast"):
        step_server(folder / "server", replies[2:])
    server, path = step_server(folder / "server", replies[:2])  # the same step again
    replies = answers(folder, sites(), path)
    with pytest.raises(ValueError, match="without"):
        step_server(folder / "server", replies, without=["s0", "s1", "s2"])
    after, _ = step_server(folder / "server", replies)
    assert (after.counted, after.left_out) == ((5, 5, 5), server.left_out)  # once said, recorded for good


@pytest.mark.parametrize("how", ["half", "of another site", "of another key"])
def test_a_file_in_the_place_of_a_reply_is_named_and_left_aside(how, halfway):
    """Its site has not answered; the others are kept, and a reply that comes takes its place."""
    folder, _, path, _ = halfway
    replies = answers(folder, sites(), path)
    planted = folder / "server" / "reply-s0-0004.npz"
    data = replies[0].read_bytes()
    files = {
        "half": data[:-1],
        "of another site": replies[1].read_bytes(),
        "of another key": Message.read(replies[0]).sealed(SigningKey(bytes(32))).to_bytes()[:-1] + b"x",
    }
    planted.write_bytes(files[how])
    server, out = step_server(folder / "server", replies[1:])
    assert (server.number, out, missing(folder, server)) == (4, path, ("s0",))
    (words,) = map(str, arrivals(folder / "server", server)[2])
    assert "reply-s0-0004.npz: " in words
    server, _ = step_server(folder / "server", replies[:1])
    assert server.counted == (4, 4, 4)
    assert not arrivals(folder / "server", server)[2]


def test_a_reply_larger_than_the_run_allows_is_not_read(halfway):
    folder, *_, replies = halfway
    server = load_server(folder / "server")
    replies[0].write_bytes(b"PK" + bytes(server.reply_limit))
    with pytest.raises(MessageError, match=f"size must be at most {server.reply_limit} bytes, got"):
        step_server(folder / "server", replies)


# ----------------------------------------------------------------------------------------------------
# One process a folder
# ----------------------------------------------------------------------------------------------------

TOGETHER = """
import sys, time
sys.path[:0] = {paths!r}
from oracles.couriers import introduce
from oracles.problems import team
from bayesadmm_np.federation import step_server, step_site
while time.time() < {at}:
    pass
what, *files = sys.argv[1:]
if what == "server":
    step_server(files[0], files[1:])
else:
    step_site(files[0], introduce(team("logistic", sizes=(5, 8, 6)))[int(what)], files[1])
"""


def at_once(*calls):
    """Run commands at the same moment, each in a process of its own."""
    program = TOGETHER.format(paths=[str(Path(__file__).parents[1])], at=time.time() + 4.0)
    started = [
        subprocess.Popen([sys.executable, "-c", program, *map(str, call)], stderr=subprocess.PIPE, text=True)
        for call in calls
    ]
    return [process.communicate(timeout=120)[1] for process in started]


@pytest.mark.slow
def test_two_steps_at_once_lose_no_reply(halfway):
    folder, _, path, _ = halfway
    for _ in range(4):
        replies = answers(folder, sites(), path)
        expected = state_of(step_all(folder, f"all{load_server(folder / 'server').number}", replies))
        assert at_once(*(("server", folder / "server", reply) for reply in replies)) == ["", "", ""]
        assert state_of(folder / "server") == expected
        path = step_server(folder / "server", [])[1]


def test_a_folder_in_use_is_refused_in_one_sentence(halfway, monkeypatch):
    folder, _, path, replies = halfway
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    before = state_of(folder)
    with lock.locked(folder / "s0", "site"), lock.locked(folder / "server", "server"):
        for act in (
            lambda: stepped(folder, "s0", path),
            lambda: step_server(folder / "server", replies),
        ):
            with pytest.raises(ValueError, match="in use"):
                act()
    assert state_of(folder) == before


def test_a_step_that_died_before_it_removed_its_replies_is_repeated_without_them(tmp_path, monkeypatch):
    path, home = begin(tmp_path, sites(), GLMTask(ROW, START, **OPTIONS)), tmp_path / "server"
    for number in (1, 2):
        replies = answers(tmp_path, sites(), path)
        step_server(home, replies[:2])
        assert len(list(home.glob("reply-*"))) == 2
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", dies)
            with pytest.raises(Crash):
                step_server(home, replies[2:])
        if number == 1:  # the whole next round may come in one step
            path = home / "broadcast-0002.npz"
            load_server(home).broadcast().write(path)
    step_server(home, [])
    assert not list(home.glob("reply-*"))


def dies(*_, **__):
    raise Crash
