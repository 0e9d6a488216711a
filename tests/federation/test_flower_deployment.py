"""Real superlinks and supernodes on loopback: the final answer after kills, bad messages and strangers."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.cli._run_files import load_site
from bayesadmm_np.federation import load_server
from bayesadmm_np.federation.flower.local import LocalFederation, follow
from oracles.problems import same_bits

pytestmark = pytest.mark.deployment
slow = pytest.mark.slow  # a minute or more of two cores

TOL = 1e-3
PRIOR = ba.families.FullGaussian(np.zeros(3), 1.0)
LONGEST = 400.0
"""Seconds for a run on a machine that is busy; a quiet one needs a sixth."""


def bayesadmm(*arguments):
    command = [sys.executable, "-m", "bayesadmm_np", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST)


@pytest.fixture
def folder(tmp_path):
    """A federation of two made-up sites."""
    done = bayesadmm("flower", "new", tmp_path / "trial", "--sites", 3)
    assert done.returncode == 0, done.stderr
    return tmp_path / "trial"


def clients(folder):
    """The losses of the sites' rows, in the design that the first run agreed on."""
    spec = load_server(folder / "runs" / "0001").spec
    sites = [load_site(path, None)[0] for path in sorted((folder / "sites").iterdir())]
    return [site.data.join(spec, site.name, None).worker.loss for site in sites]


def assert_pooled(server, folder):
    """A tol in Fisher length per parameter is √3 · tol standard deviations, which are below 0.3."""
    assert server.outcome.status.name == "CONVERGED"
    assert server.outcome.certificate.holds
    pooled = ba.solve_pooled(clients(folder), PRIOR).posterior
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < np.sqrt(3) * TOL * 0.3


def progress(folder):
    path = folder / "runs" / "0001" / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(there, seconds=LONGEST):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.2)


def wait_for_round(folder, number):
    wait_until(lambda: any(line["round"] >= number for line in progress(folder)))


def kill(federation, name):
    process = federation.processes[name]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def settings(folder, **changes):
    run_folder = folder / "runs" / "0001"
    run_folder.mkdir(parents=True, exist_ok=True)
    return {"run-folder": str(run_folder), "sites": 2, "tol": TOL, "deadline": 60.0, "patience": 240.0, **changes}


def finish(federation, folder, run):
    run.wait(LONGEST)
    words = federation.last_words("run", 60)
    print(words)
    return load_server(folder / "runs" / "0001"), words


def alive(folder):
    """Processes, but for zombies, that are told this folder as an argument or, as all are, in their environment."""
    command = ["ps", "axeww", "-o", "stat=", "-o", "command="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line and not line.startswith("Z")]


def assert_all_end(folder):
    """At once, but the system needs a moment to remove them."""
    wait_until(lambda: not alive(folder), seconds=30)


@pytest.mark.parametrize(
    "keyed", [pytest.param(False, marks=slow, id="insecure"), pytest.param(True, id="TLS and keys")]
)
def test_the_command_gives_the_answer_of_one_process_bit_for_bit(keyed, folder):
    if keyed:
        assert bayesadmm("flower", "keys", folder).returncode == 0
    done = bayesadmm("flower", "local", folder, "--set", "rounds=2", "--set", "method=BayesADMM")
    assert done.returncode == 1, done.stderr  # as `fit`: the rounds ran out
    assert ("without TLS and keys" in done.stderr) != keyed
    server = load_server(folder / "runs" / "0001")
    result = ba.run(ba.methods.BayesADMM(), clients(folder), PRIOR, rounds=2, tol=1e-8)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    assert f"{result.posterior.mean[0]:.4f}" in done.stdout
    assert_all_end(folder)


def test_a_run_that_fails_is_an_exit_code_and_leaves_no_process(folder):
    done = bayesadmm("flower", "local", folder, "--set", "method=FedLap")
    assert done.returncode == 1
    assert "needs a prior of the family FixedPrecisionGaussian" in done.stderr
    assert_all_end(folder)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, marks=slow),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_the_command_leaves_no_process_however_it_is_ended(number, code, folder):
    command = [sys.executable, "-m", "bayesadmm_np", "flower", "local", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as local:
        try:
            wait_until(lambda: progress(folder) or local.poll() is not None)
            # itself; superlink, superexec, run and two supernodes, watched; their superexecs; the ServerApp
            n_alive = len(alive(folder))
            local.send_signal(number)
            assert local.wait(LONGEST) == code
        finally:
            local.kill()
    assert n_alive >= 1 + 2 * 5 + 2 + 1
    assert_all_end(folder)


@slow
def test_a_stranger_without_a_registered_key_is_refused(folder):
    assert bayesadmm("flower", "keys", folder).returncode == 0
    assert bayesadmm("flower", "keys", folder, "--site", "stranger").returncode == 0
    with LocalFederation(folder, keyed=True) as federation:
        federation.start_link()
        federation.register(["site1", "site2"])
        # the name and the rows of a site, and a key that nobody knows
        federation.start_site("site1", key="stranger")
        stranger = federation.processes.pop("site-site1")
        assert stranger.wait(LONGEST) != 0
        print(federation.last_words("site-site1", 60))
        assert "305" in federation.last_words("site-site1", 60) or "uthenticat" in federation.last_words(
            "site-site1", 60
        )
        for name in ("site1", "site2"):
            federation.start_site(name)
        server, _ = finish(federation, folder, federation.submit(settings(folder, keyed=True)))
    assert_pooled(server, folder)


@slow
def test_a_site_that_is_killed_and_started_again_goes_on_where_it_was(folder):
    with LocalFederation(folder, keyed=False) as federation:
        federation.start_link()
        for name in ("site1", "site2"):
            federation.start_site(name)
        run = federation.submit(settings(folder, **{"sites-per-round": 2}))
        wait_for_round(folder, 1)
        kill(federation, "site-site2")
        federation.start_site("site2")
        server, words = finish(federation, folder, run)
    assert_pooled(server, folder)
    assert "site site2: is at node" in words
    # both sites in every round: the interrupted one was repeated, not skipped
    assert len(set(server.counted)) == 1
    result = ba.run(ba.methods.PVI(), clients(folder), PRIOR, tol=TOL)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)


@slow
def test_a_site_that_is_killed_and_stays_away_costs_rounds_only_its_own_answers(folder):
    with LocalFederation(folder, keyed=False) as federation:
        federation.start_link()
        for name in ("site1", "site2"):
            federation.start_site(name)
        run = federation.submit(settings(folder, deadline=25.0))
        wait_for_round(folder, 1)
        kill(federation, "site-site2")
        wait_until(lambda: any(line["answered"] == ["site1"] for line in progress(folder)))
        federation.start_site("site2")
        server, words = finish(federation, folder, run)
    assert_pooled(server, folder)
    ends = ("no answer within 25 s", "was late", "went away")
    assert any(f"site site2: {end}" in words for end in ends)


@slow
def test_a_server_that_is_killed_is_resumed_from_its_checkpoint(folder):
    with LocalFederation(folder, keyed=False) as federation:
        federation.start_link()
        for name in ("site1", "site2"):
            federation.start_site(name)
        federation.submit(settings(folder))
        wait_for_round(folder, 1)
        kill(federation, "superlink")
        kill(federation, "superexec")
    assert load_server(folder / "runs" / "0001").outcome is None
    done = bayesadmm("flower", "local", folder, "--resume", "--set", f"tol={TOL}")
    assert done.returncode == 0, done.stderr
    server = load_server(folder / "runs" / "0001")
    assert_pooled(server, folder)
    result = ba.run(ba.methods.PVI(), clients(folder), PRIOR, tol=TOL)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)


WATCH = """
import os
import sys


def watch(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "/trial/" in arguments[0]:
        with os.fdopen(os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as log:
            log.write(f"{os.getpgid(0)} {arguments[0]}\\n")


sys.addaudithook(watch)
"""


@pytest.mark.skipif("BAYESADMM_DATA" not in os.environ, reason="BAYESADMM_DATA names no folder with the heart data")
def test_four_hospitals_read_their_own_files_only_and_get_the_pooled_certificate(tmp_path, monkeypatch):
    folder, log = tmp_path / "trial", tmp_path / "opened"
    assert bayesadmm("flower", "new", folder, "--heart-disease").returncode == 0
    assert bayesadmm("flower", "keys", folder).returncode == 0
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(WATCH)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "hook"))
        patch.setenv("WATCH_LOG", str(log))
        done = bayesadmm("flower", "local", folder, "--set", f"tol={TOL}")
    assert done.returncode == 0, done.stderr
    assert "guaranteed" in done.stdout
    opened = {}
    for line in log.read_text().splitlines():
        group, _, path = line.partition(" ")
        for hospital in ("cleveland", "hungarian", "switzerland", "va"):
            if f"/data/{hospital}.csv" in path or f"/sites/{hospital}/" in path:
                opened.setdefault(group, set()).add(hospital)
    # one group of processes a site; the command itself and the server open none of these
    assert sorted(opened.values(), key=min) == [{"cleveland"}, {"hungarian"}, {"switzerland"}, {"va"}]
    model = tmp_path / "heart.npz"
    assert bayesadmm("export", folder / "runs" / "0001", "--target", "disease", "--out", model).returncode == 0
    certified = bayesadmm("certify", model, *sorted((folder / "data").glob("*.csv")))
    assert certified.returncode == 0, certified.stdout + certified.stderr


TAMPERING = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

from bayesadmm_np.cli._run_files import load_site
from bayesadmm_np.federation import Message, site_key
from bayesadmm_np.federation.flower import client_app

honest = client_app(load_site)
app = ClientApp()
app.query()(honest)


@app.train()
def tampered(message, context):
    reply = honest(message, context)
    if "site2" not in context.node_config["site"] or "message" not in reply.content["messages"]:
        return reply
    said = Message.from_bytes(reply.content["messages"]["message"].data)
    header, arrays, number = dict(said.header), dict(said.arrays), said.header["round"]
    if number == 2:
        arrays["natural"] = np.full_like(arrays["natural"], np.nan)
    elif number == 3:
        arrays["natural"] = arrays["natural"][1:]
    elif number == 4:
        header["round"] = 1
    data = Message("reply", header, arrays).sealed(site_key(context.node_config["site"])).to_bytes()
    array = Array(dtype="uint8", shape=(len(data),), stype="bayesadmm.npz", data=data)
    reply.content["messages"] = ArrayRecord({"message": array})
    return reply
"""


@slow
def test_messages_that_are_refused_cost_their_sender_a_round(folder):
    (folder / "app" / "federation" / "client_app.py").write_text(TAMPERING)
    with LocalFederation(folder, keyed=False) as federation:
        federation.start_link()
        for name in ("site1", "site2"):
            federation.start_site(name)
        run = federation.submit(settings(folder))
        answered = {
            line["round"]: line["answered"] for line in follow(run, folder / "runs" / "0001" / "progress.jsonl")
        }
        server, words = finish(federation, folder, run)
    assert_pooled(server, folder)
    # a line stands for the round whose record the answers complete: those to broadcast t for round t − 1
    assert answered[0] == ["site1", "site2"]
    assert [answered[number] for number in (1, 2, 3)] == [["site1"]] * 3
    for complaint in ("natural must be finite, got nan", "natural must be a vector of 9 numbers", "round must be 4"):
        assert complaint in words
