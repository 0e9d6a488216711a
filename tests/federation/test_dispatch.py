"""Rounds over a scripted transport: sites that fail, go and come back, and a crash between any two writings."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMTask, Message, load_server
from bayesadmm_np.federation.dispatch import Plan, TooFewError, client_manager, serve
from bayesadmm_np.federation.dispatch.client_manager import LONGEST_REST
from bayesadmm_np.federation.dispatch.envelope import Answer
from oracles.couriers import edited
from oracles.problems import prior, team
from oracles.scripted import Clock, Scripted

START = prior("full", 3)
ERROR = "failed (Flower's error 2: no)"


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def alike(name, number):
    return 1.0


def made_up():
    return dict(zip("abc", team("logistic", sizes=(5, 8, 6)), strict=True))


def plan_of(folder, gamma=1.0, rounds=2000, tol=1e-6, **waits):
    task = GLMTask(ba.methods.PVI(gamma), lambda dim: START, tol=tol, rounds=rounds)
    return Plan(task, folder / "server", 3, **{"deadline": 100.0, "patience": 1000.0, **waits})


def federate(clock, folder, fault=None, change=None, **settings):
    """Run to the end; return server, log, and what was told. `change` gets the transport before the run begins."""
    folder.mkdir(exist_ok=True)
    told, transport = [], Scripted(clock, folder, made_up(), alike, fault)
    if change is not None:
        change(transport)
    serve(plan_of(folder, **settings), transport, "7", told.append)
    return load_server(folder / "server"), log_of(folder), told


def log_of(folder):
    return [json.loads(line) for line in (folder / "server" / "progress.jsonl").read_text().splitlines()]


def assert_pooled(server):
    """tol 1e-6 per parameter is 3e-6 in Fisher length of the nine, and below 1e-5 in any entry: sd are below 2."""
    assert server.outcome.status.name == "CONVERGED"
    assert server.outcome.certificate.holds
    pooled = ba.solve_pooled(list(made_up().values()), START).posterior
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < 1e-5
    assert np.abs(server.state.q_g.covariance - pooled.covariance).max() < 1e-5


# ----------------------------------------------------------------------------------------------------
# Sites that fail, go and come back
# ----------------------------------------------------------------------------------------------------


def test_a_site_that_goes_before_the_certificate_does_not_use_up_the_rounds(clock, tmp_path):
    """All residuals are below tol: what the others say again and again is the same. The run waits to be resumed."""

    def goes(name, number, call):
        said = call()
        is_last = name == "b" and number and said.message and Message.from_bytes(said.message).header["certificate"]
        return None if is_last else said

    settings = {"deadline": 20.0, "patience": 100.0, "rounds": 50}
    with pytest.raises(TooFewError, match="2 of at least 3 sites answered") as stopped:
        federate(clock, tmp_path, goes, **settings)
    assert "No usable answer came from b." in str(stopped.value)
    assert "Only the certificate is missing" in str(stopped.value)
    halfway = load_server(tmp_path / "server")
    assert halfway.outcome is None
    assert halfway.served.certify
    assert halfway.number < 20
    server, _, told = federate(clock, tmp_path, **settings)
    assert told[0] == f"continues from the checkpoint at round {halfway.number}"
    assert_pooled(server)
    assert server.number == halfway.number + 1


def test_after_the_last_round_the_others_are_enough(clock, tmp_path):
    """A run ends after its rounds whoever has gone, then without a certificate."""

    def goes(name, number, call):
        return None if name == "b" and number == 4 else call()

    server, _, told = federate(clock, tmp_path, goes, deadline=20.0, rounds=3)
    assert server.outcome.status.name == "ROUND_LIMIT"
    assert server.outcome.certificate is None
    assert told == ["site b: no answer within 20 s; is the deadline too short for it?"]


def test_who_fails_again_and_again_rests_longer_and_longer(clock, tmp_path):
    asked = []

    def failing(name, number, call):
        if name != "b" or number < 3:
            return call()
        asked.append(clock.now)
        return ERROR

    settings = {"patience": 300.0, "least": 3}
    with pytest.raises(TooFewError):
        federate(clock, tmp_path, failing, **settings)
    # it fails at once, and the clock stands where every look is a unit of time: rests of 1, 2, 4, …, 30, 30, …
    gaps = np.diff(asked)
    assert (np.diff(gaps) >= 0).all()
    assert gaps[-1] == gaps[-2] == LONGEST_REST + 1.0
    assert len(asked) < 20
    # and when it answers it is as any other
    began = clock.now
    assert_pooled(federate(clock, tmp_path, **settings)[0])
    assert clock.now - began < 30


@pytest.mark.parametrize("rests", [True, False])
def test_a_deadline_that_is_too_short_does_not_pile_up_requests(rests, clock, tmp_path, monkeypatch):
    """Site b works for 20 units a request, and the server waits for two; the broken twin asks at every deadline.

    The rests are 1, 2, 4, ..., 30, 30 units, with two units of waiting between them: 300 units hold less than 15.
    """
    transport = Scripted(clock, tmp_path, made_up(), lambda name, number: 20.0 if name == "b" else 1.0)
    if not rests:
        monkeypatch.setattr(client_manager.ClientManager, "failed", lambda self, name: None)
    told = []
    with pytest.raises(TooFewError):
        serve(plan_of(tmp_path, deadline=2.0, patience=300.0, least=3), transport, "7", told.append)
    assert (transport.numbers["b"] < 15) == rests
    assert all("deadline" in line for line in told)


def test_a_site_that_rests_is_asked_again_before_patience_is_over(clock, tmp_path):
    """Rests of 1, 2, 4, 7.5 and 7.5 units after five failures; without a bound their sum would be 31."""

    def fails(name, number, call):
        return ERROR if name == "b" and 0 < number <= 5 else call()

    assert_pooled(federate(clock, tmp_path, fails, least=3, patience=30.0)[0])


def test_who_failed_and_is_at_another_node_now_is_asked_at_once(clock, tmp_path):
    transports, asked = [], []

    def fault(name, number, call):
        members = transports[0].members
        if name != "b" or number < 3:
            return call()
        asked.append(clock.now)
        if 9 in members:
            return call()
        if len(asked) == 8:
            members[9] = members.pop(2)
        return ERROR

    assert_pooled(federate(clock, tmp_path, fault, transports.append, least=3)[0])
    assert asked[7] - asked[6] == LONGEST_REST + 1.0
    assert asked[8] - asked[7] <= 3.0


@pytest.mark.parametrize("goes", [True, False])
def test_of_two_nodes_with_one_name_the_last_is_asked_until_it_has_gone(goes, clock, tmp_path):
    transports = []

    def leaves(name, number, call):
        if goes and (name, number) == ("a", 3):
            transports[0].members.pop(9)
        return call()

    def doubled(transport):
        transport.members[9] = "b"
        transports.append(transport)

    server, _, told = federate(clock, tmp_path, leaves, doubled)
    assert_pooled(server)
    assert [line for line in told if "is at" in line] == [
        "site b: is at node 9 now; node 2, which says so too, is not asked",
        *["site b: is at node 2 now"] * goes,
    ]


LOST = {  # which of its messages of which sites say what, and how the run ends
    "one without an answer": ("b", range(2, 3), {"solved.status": "NOT_FINITE"}),
    "one without a value": ("b", range(2, 4), {"value": float("nan")}),
    "nobody with a value": ("abc", range(4, 10**6), {"value": float("nan")}),
}


@pytest.mark.parametrize("case", LOST)
def test_sites_without_an_answer_or_a_value_are_named_and_left_out(case, clock, tmp_path):
    """A logistic loss is finite wherever its parameters are."""
    names, numbers, header = LOST[case]

    def fault(name, number, call):
        said = call()
        if name not in names or number not in numbers or not said.message:
            return said
        arrays = dict.fromkeys(("natural",)) if "solved.status" in header else {}
        return Answer(edited(Message.from_bytes(said.message), header, arrays).to_bytes())

    if names == "b":
        server, _, told = federate(clock, tmp_path, fault, gamma=0.5)
        assert server.outcome.status.name == "CONVERGED"
        assert any("site b, round" in line and "value must be finite" in line for line in told)
        return
    with pytest.raises(TooFewError, match="came from a, b, c"):
        federate(clock, tmp_path, fault, gamma=0.3)


# ----------------------------------------------------------------------------------------------------
# A crash between any two writings
# ----------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """A machine that stops."""


@pytest.mark.parametrize("number", [3, -1])
@pytest.mark.parametrize("kind", ["before the checkpoint", "after it", "in the line"])
def test_the_log_is_that_of_the_checkpoint_wherever_the_server_stopped(kind, number, clock, tmp_path, monkeypatch):
    """No line is lost and none is there twice; -1 is the last checkpoint, which holds the outcome."""
    whole = federate(clock, tmp_path / "whole", tol=1e-2)[1]
    # the checkpoint of the start is written first
    wanted = 1 + (number if number > 0 else len(whole))
    state, real, writings = tmp_path / "server" / "state.npz", os.replace, []

    def stop(source, target):
        writings.append(target)
        is_now = Path(target) == state and writings.count(target) == wanted
        if not is_now or kind == "after it":
            real(source, target)
        if is_now:
            raise Crash

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(Crash):
        federate(clock, tmp_path, tol=1e-2)
    if kind == "in the line":
        path = state.with_name("progress.jsonl")
        path.write_bytes(path.read_bytes()[:-7])
    server, lines, _ = federate(clock, tmp_path, tol=1e-2)
    assert (state.with_name("final.npz")).exists()
    assert len(lines) == server.number - 1
    assert json.dumps(lines) == json.dumps(whole)


@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_stopped_in_its_farewell_tells_the_sites_when_it_goes_on(older, clock, tmp_path):
    """Also where the folder still has the final message of an older run."""
    final = tmp_path / "server" / "final.npz"
    if older:
        federate(clock, tmp_path, gamma=0.3)
        final.with_name("state.npz").unlink()
        final.with_name("progress.jsonl").unlink()
        for path in tmp_path.glob("?/*.npz"):
            path.unlink()
    before = final.read_bytes() if older else b""

    def stop(name, number, call):
        if number and load_server(tmp_path / "server").outcome is not None:
            raise Crash
        return call()

    with pytest.raises(Crash):
        federate(clock, tmp_path, stop)
    assert not list(tmp_path.glob("?/final-*.npz"))
    server, _, _ = federate(clock, tmp_path)
    assert_pooled(server)
    assert len(list(tmp_path.glob("?/final-*.npz"))) == 3
    assert final.read_bytes() == server.broadcast().to_bytes() != before
    with pytest.raises(ValueError, match="has ended"):
        federate(clock, tmp_path)
