"""What `LocalFederation` has started ends with the process that started it, also when that is killed."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from bayesadmm_np.federation.flower import local

PARENT = """
import subprocess, sys, time
from pathlib import Path
from bayesadmm_np.federation.flower import local
local.WATCHDOG = local.WATCHDOG if {watched} else ()
with local.LocalFederation(Path(sys.argv[1]), keyed=False) as federation:
    # a program that starts another, as superlink and supernodes do
    process = federation.start("program", ["sh", "-c", "sleep 600 & sleep 600"])
    print(process.pid, flush=True)
    time.sleep(600)
"""
SECONDS = 30.0
"""For processes to end; a busy machine may need some."""


def group_lives(group):
    """Whether the group holds a process that is no zombie."""
    listed = subprocess.run(["ps", "-eo", "pgid,stat"], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in listed.splitlines()[1:])
    return any(int(found) == group and not state.startswith("Z") for found, state in rows)


def group_ends(group, seconds):
    end = time.monotonic() + seconds
    while group_lives(group) and time.monotonic() < end:
        time.sleep(0.05)
    return not group_lives(group)


@pytest.mark.parametrize("watched", [True, False], ids=["watchdog", "broken twin: none"])
def test_a_killed_starter_takes_its_processes_along(watched, tmp_path):
    command = [sys.executable, "-c", PARENT.format(watched=watched), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        group = int(starter.stdout.readline())
        assert group_lives(group)
        starter.kill()
    if watched:
        assert group_ends(group, SECONDS)
    else:
        assert not group_ends(group, 1.0)
        os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", 256 - 9)])
def test_the_exit_code_is_the_programs(script, code, tmp_path):
    with local.LocalFederation(tmp_path, keyed=False) as federation:
        assert federation.start("program", ["sh", "-c", script]).wait(SECONDS) == code


def test_a_program_that_is_asked_to_end_has_time_for_it(tmp_path):
    """The watchdog outlives the request; would it not, its group would be killed at once."""
    script = "trap 'sleep 1; echo bye; exit' TERM; echo ready; while :; do sleep 0.1; done"
    with local.LocalFederation(tmp_path, keyed=False) as federation:
        federation.start("program", ["sh", "-c", script])
        end = time.monotonic() + SECONDS
        while federation.last_words("program") != "ready":
            assert time.monotonic() < end
            time.sleep(0.05)
    assert federation.last_words("program", 1) == "bye"


def test_a_line_that_is_dropped_and_written_again_is_followed_once(tmp_path):
    """As when a run goes on from a checkpoint that its log was ahead of."""
    path, codes = tmp_path / "progress.jsonl", [None, None, 0]
    process = SimpleNamespace(poll=lambda: codes.pop(0))
    path.write_text('{"round": 0}\n{"round": 1, "who": "a, b and c"}\n')
    lines = local.follow(process, path)
    assert [next(lines)["round"] for _ in range(2)] == [0, 1]
    path.write_text('{"round": 0}\n{"round": 1}\n{"round": 2}\n{"round": 3}\n{"rou')
    assert [line["round"] for line in lines] == [2, 3]
