"""Asynchronous rounds: the pooled answer whoever is slow, within the bound on staleness, repeated from the log."""

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.data import load_heart_disease
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, MessageError, Site, load_server
from bayesadmm_np.federation.dispatch import Answer, Plan, TooFewError, serve
from bayesadmm_np.federation.dispatch.client_manager import LONGEST_REST
from oracles.keys import lied
from oracles.overrides import ALLOWED
from oracles.problems import assert_close, prior, same_bits, team
from oracles.scripted import Clock, Scripted

M = ba.methods
NAMES = "abc"
START = prior("full", 3)
FOREVER = 10**9
TOL = 1e-6


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def slow(name, seconds=10.0):
    """One site works so long, every other for one unit of time."""
    return lambda site, number: seconds if site == name else 1.0


def made_up(loss="logistic", sizes=(5, 8, 6)):
    return dict(zip(NAMES, team(loss, sizes=sizes), strict=True))


def plan_of(folder, losses, row=None, start=START, staleness=10, **settings):
    names = ("deadline", "patience", "least", "participation")
    waits = {"deadline": 100.0, "patience": 1000.0}
    waits |= {name: settings.pop(name) for name in names if name in settings}
    options = {"tol": TOL, "rounds": 2000, **settings}
    row = M.PVI() if row is None else row
    task = GLMTask(row, lambda dim: start, **options)
    return Plan(task, folder / "server", len(losses), max_staleness=staleness, **waits)


def federate(clock, folder, losses, takes, fault=None, **settings):
    """Run to the end; return server, log, what was told, and the transport."""
    folder.mkdir(exist_ok=True)
    told, transport = [], Scripted(clock, folder, losses, takes, fault)
    serve(plan_of(folder, losses, **settings), transport, "7", told.append)
    return load_server(folder / "server"), log_of(folder), told, transport


def log_of(folder):
    return [json.loads(line) for line in (folder / "server" / "progress.jsonl").read_text().splitlines()]


def staleness(lines):
    """Of every answer: the version into which it was folded less the version that it answers."""
    return [line["round"] + 1 - base for line in lines for base in line["bases"].values()]


def replay(lines, losses, row=None, start=START, watch=None, **options):
    """Do a run again from the order in its log, in one process without files or clock."""
    sites = {name: Site(name, GLMData(loss), rules=ALLOWED) for name, loss in losses.items()}
    options = {"tol": TOL, "rounds": 2000, **options}
    server = Coordinator.start([site.hello() for site in sites.values()], GLMTask(row or M.PVI(), start, **options))
    out = {}
    for line in lines:
        out[server.number] = server.served, server.broadcast()
        replies = []
        for name, base in line["bases"].items():
            sites[name], reply = sites[name].step(out[base][1])
            replies += server.read([reply], out[base][0]).values()
        server = server.step(replies)
        if watch is not None:
            watch(server)
    return server


def assert_pooled(server, losses, start=START):
    """tol 1e-6 per parameter is 3e-6 in Fisher length of the nine, and below 1e-5 in any entry: sd are below 2."""
    assert server.outcome.status.name == "CONVERGED"
    assert server.outcome.certificate.holds
    pooled = ba.solve_pooled(list(losses.values()), start).posterior
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < 1e-5
    assert np.abs(server.state.q_g.covariance - pooled.covariance).max() < 1e-5


# ----------------------------------------------------------------------------------------------------
# The heart data, with one hospital ten times as slow
# ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hospitals():
    folder = os.environ.get("BAYESADMM_DATA")
    if not folder or not (Path(folder) / "processed.cleveland.data").exists():
        pytest.skip("BAYESADMM_DATA does not name a folder with processed.cleveland.data: the heart data is not run")
    sites = load_heart_disease().sites
    return {one.name: ba.losses.Logistic(np.column_stack([one.X, np.ones(len(one.y))]), one.y) for one in sites}


HEART = ba.families.FullGaussian(np.zeros(14), 1.0)


@pytest.mark.parametrize(("name", "bound"), [("cleveland", 1), ("cleveland", 100), ("switzerland", 5)])
def test_the_heart_data_with_a_slow_hospital_gives_the_answer_of_rounds(name, bound, hospitals, clock, tmp_path):
    options = {"tol": 1e-8, "row": M.PVI(), "start": HEART, "staleness": bound}
    server, lines, told, _ = federate(clock, tmp_path, hospitals, slow(name), **options)
    assert server.outcome.certificate.holds
    assert not told
    assert 0 < max(staleness(lines)) <= bound
    result = ba.run(M.PVI(), list(hospitals.values()), HEART, tol=1e-8)
    # each certificate bounds the distance of its means to the pooled fit, so their sum bounds that of the two
    bounds = [one.distance for one in (server.outcome.certificate, result.certificate())]
    assert all(one.rigorous for one in bounds)
    allowed = sum(one.per_coefficient for one in bounds)
    assert (np.abs(server.state.q_g.mean - result.posterior.mean) <= allowed).all()
    # and the bounds are no excuse: a thousandth of a standard deviation
    assert (allowed < 1e-3 * np.sqrt(np.diag(result.posterior.covariance))).all()


def good_from(transport, pooled):
    """From when on all λ_g that were sent are within a hundredth of a standard deviation of the pooled means."""
    sd, since = np.sqrt(np.diag(pooled.covariance)), None
    for when, message in transport.served:
        mean = HEART.with_natural(message.natural("natural", HEART.natural)).mean
        since = (when if since is None else since) if (np.abs(mean - pooled.mean) < 0.01 * sd).all() else None
    return since


def straggling(name, number):
    """Every fifth answer or so, of anybody, takes ten times as long."""
    return 10.0 if np.random.default_rng([number, *name.encode()]).random() < 0.2 else 1.0


TABLE = {
    "all alike": lambda name, number: 1.0,
    "Cleveland ten times as slow": slow("cleveland"),
    "Switzerland ten times as slow": slow("switzerland"),
    "every fifth answer ten times as slow": straggling,
}
PAGE = Path(__file__).parents[2] / "docs" / "flower.md"


@pytest.mark.parametrize("case", TABLE)
def test_the_table_of_times_is_what_is_measured(case, hospitals, clock, tmp_path):
    pooled = ba.solve_pooled(list(hospitals.values()), HEART).posterior
    cells = []
    for bound in (0, 1, 10):
        begun = clock.now
        server, _, _, transport = federate(
            clock, tmp_path / f"{bound}", hospitals, TABLE[case], tol=1e-6, start=HEART, staleness=bound
        )
        assert server.outcome.certificate.holds
        cells.append(f"{good_from(transport, pooled) - begun:g}, {transport.served[-1][0] - begun:g}")
    row = f"| {case} | {' | '.join(cells)} |"
    assert row in PAGE.read_text(encoding="utf-8"), row


# ----------------------------------------------------------------------------------------------------
# What one fold-in does
# ----------------------------------------------------------------------------------------------------


def fold_late(row, losses, versions=3):
    """Let `a` answer the first λ_g after the others have made so many versions; return it all."""
    sites = {name: Site(name, GLMData(loss), rules=ALLOWED) for name, loss in losses.items()}
    server = Coordinator.start([site.hello() for site in sites.values()], GLMTask(row, START, tol=1e-12))
    base, first = server.served, server.broadcast()
    for _ in range(versions):
        replies = []
        for name in NAMES[1:]:
            sites[name], reply = sites[name].step(server.broadcast())
            replies.append(reply)
        server = server.step(replies)
    _, reply = sites["a"].step(first)
    return server, server.step([*server.read([reply], base).values()]), reply, base


ROWS = {"PVI": M.PVI(), "damped PVI": M.PVI(0.4), "AMA": M.AMA(2.0)}


@pytest.mark.parametrize("name", ROWS)
def test_a_late_answer_moves_its_factor_towards_its_natural_gradient_and_the_server_by_the_same(name):
    """η_k + γ(−∇_μ E_{q_k}[ℓ_k] − η_k) by Eq. 15, whose solver works to 1e-12; entries here are of the size 1."""
    row, losses = ROWS[name], made_up()
    before, after, reply, _ = fold_late(row, losses)
    q_k = START.with_natural(reply.natural("natural", START.natural))
    gamma = row.dual_step / row.rho
    expected = -gamma * losses["a"].expect(q_k, ba.losses.expectations.Auto()).natural_gradient  # η_a was zero
    moved = after.held.sites[0]
    assert_close(moved, expected, 1e-9, "factors")
    change = after.served.q_g.natural - before.served.q_g.natural
    assert_close(change, moved, 1e-12, "moves of λ_g")
    assert after.counted == (1, 3, 3)
    # the twin: the step from the λ_g that is current when the answer comes is another one, and not a distribution's
    wrong = row.dual_step * (q_k.natural - before.served.q_g.natural)
    assert np.abs((wrong - expected).parts[0]).max() > 0.05


@pytest.mark.parametrize("gamma", [1.0, 0.3])
def test_the_server_stays_a_distribution_whatever_the_order(gamma, clock, tmp_path):
    """Each V_k is a mixture of E[∇²ℓ] ⪰ 0 and zero, so that S_g ⪰ S_0; times are drawn, of very different sizes."""
    rng = np.random.default_rng(3)
    times = rng.integers(1, 40, size=(3, 2000))
    smallest = []
    _, lines, _, _ = federate(
        *(clock, tmp_path, made_up(), lambda name, number: float(times[NAMES.index(name), number])),
        **{"row": M.PVI(gamma), "staleness": FOREVER, "rounds": 40},
    )
    assert max(staleness(lines)) > 3

    def watch(server):
        smallest.extend(np.linalg.eigvalsh(site.parts[1]).min() for site in server.state.sites)

    replay(lines, made_up(), M.PVI(gamma), watch=watch, rounds=40)
    assert min(smallest) >= -1e-12
    assert max(smallest) > 0.1


def test_least_squares_is_pooled_as_soon_as_everybody_has_answered_once(tmp_path):
    """The factor of a conjugate site is its likelihood, whatever λ_g it answers; the twin damps what is old."""
    losses = made_up("squares")
    before, after, _, _ = fold_late(M.PVI(), losses)
    pooled = ba.solve_pooled(list(losses.values()), START).posterior
    assert_close(after.served.q_g.natural, pooled.natural, 1e-12, "posteriors")
    late = after.number - 2
    damped = before.served.q_g.natural + (1.0 / (1.0 + late)) * (after.served.q_g.natural - before.served.q_g.natural)
    assert np.abs((damped - pooled.natural).parts[0]).max() > 0.05


def test_an_answer_from_a_factor_that_is_no_longer_counted_is_refused():
    losses = made_up()
    site = Site("a", GLMData(losses["a"]), rules=ALLOWED)
    hellos = [Site(name, GLMData(loss), rules=ALLOWED).hello() for name, loss in losses.items()]
    server = Coordinator.start(hellos, GLMTask(M.PVI(), START, rounds=3))
    base, first = server.served, server.broadcast()
    site, reply = site.step(first)
    second = server.step([reply])
    site, late = site.step(second.broadcast())
    third = second.step([late])
    with pytest.raises(MessageError, match="answers must be a broadcast that counts round 2 of it"):
        third.read([reply], base)
    # after the last round only reports at the last λ_g are of use
    _, other = Site("b", GLMData(losses["b"]), rules=ALLOWED).step(first)
    last = third.step([site.step(third.broadcast())[1]])
    assert not last.served.solve
    with pytest.raises(MessageError, match="round must be 4: all rounds are done, got 1"):
        last.read([other], base)


# ----------------------------------------------------------------------------------------------------
# The bound on staleness, and the log
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 2, 4])
def test_no_factor_is_folded_in_from_a_server_older_than_the_bound(bound, clock, tmp_path):
    losses = made_up()
    server, lines, told, _ = federate(clock, tmp_path, losses, slow("b", 12.0), staleness=bound)
    assert max(staleness(lines)) == bound
    assert_pooled(server, losses)
    assert not told


def test_without_the_bound_the_same_sites_are_further_apart(clock, tmp_path):
    """The twin of the test above."""
    _, lines, _, _ = federate(clock, tmp_path, made_up(), slow("b", 12.0), staleness=FOREVER)
    assert max(staleness(lines)) > 4


@pytest.mark.parametrize("row", [M.PVI(0.4), M.AMA(2.0)], ids=["damped PVI", "AMA"])
def test_a_run_is_repeated_bit_for_bit_from_its_log(row, clock, tmp_path):
    losses = made_up()
    server, lines, _, _ = federate(clock, tmp_path, losses, slow("b", 4.0), row=row, rounds=15)
    again = replay(lines, losses, row, rounds=15)
    assert same_bits(again.state.q_g.natural, server.state.q_g.natural)
    assert all(same_bits(a, b) for a, b in zip(again.state.sites, server.state.sites, strict=True))
    assert again.outcome.status == server.outcome.status
    assert again.counted == server.counted
    # the twin: with one answer counted a version later the bits are others
    i, name = next(i for i, line in enumerate(lines) if {"a", "b"} <= line["bases"].keys()), "b"
    assert name not in lines[i + 1]["bases"]
    answers = [dict(line["bases"]) for line in lines[: i + 2]]
    answers[i + 1][name] = answers[i].pop(name)
    moved = replay([{"bases": one} for one in answers], losses, row, rounds=15)
    kept = replay(lines[: i + 2], losses, row, rounds=15)
    assert not same_bits(moved.served.q_g.natural, kept.served.q_g.natural)


def test_sites_that_are_alike_do_rounds(clock, tmp_path):
    """The order in which all arrive together is that of rounds: the bits are those of one process."""
    losses = made_up()
    settings = {"row": M.PVI(0.4), "rounds": 6, "tol": 1e-300}
    server, lines, _, _ = federate(clock, tmp_path, losses, lambda name, number: 1.0, **settings)
    result = ba.run(M.PVI(0.4), list(losses.values()), START, rounds=6, tol=1e-300)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    assert server.outcome.status.name == "ROUND_LIMIT"
    assert set(staleness(lines)) == {0}


def test_sites_with_nothing_to_add_are_not_asked(clock, tmp_path):
    """While `b` works, the others come to rest: less than one answer a unit of time of each."""
    server, lines, _, _ = federate(clock, tmp_path, made_up(), slow("b", 200.0), deadline=1000.0, tol=1e-6)
    assert server.outcome.certificate.holds
    assert sum("a" in line["bases"] for line in lines) < 0.2 * clock.now


# ----------------------------------------------------------------------------------------------------
# Sites that are late, fail, lose their state, and are gone
# ----------------------------------------------------------------------------------------------------


def test_an_answer_after_its_deadline_is_dropped_on_both_sides(clock, tmp_path):
    losses = made_up()

    def takes(name, number):
        return 25.0 if (name, number) == ("b", 2) else 2.0

    server, lines, told, _ = federate(clock, tmp_path, losses, takes, deadline=20.0, staleness=3)
    assert_pooled(server, losses)
    assert told.count("site b: no answer within 20 s") == 1
    (dropped,) = [line for line in told if "was not counted" in line]
    number = int(dropped.split("round ")[1].split(" ")[0])
    assert all(line["bases"].get("b") != number for line in lines)
    assert max(staleness(lines)) <= 3


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(clock, tmp_path):
    losses = made_up()

    class Killed(BaseException):
        pass

    def kill(name, number, call):
        if (name, number) == ("a", 6):
            raise Killed
        return call()

    with pytest.raises(Killed):
        federate(clock, tmp_path, losses, slow("b"), kill)
    halfway = load_server(tmp_path / "server")
    assert halfway.outcome is None
    assert halfway.number > 3
    server, lines, told, _ = federate(clock, tmp_path, losses, slow("b"))
    assert_pooled(server, losses)
    assert told[0] == f"goes on from the checkpoint at round {halfway.number}"
    # the answers that were under way are lost, and what is logged is the whole run
    again = replay(lines, losses)
    assert same_bits(again.state.q_g.natural, server.state.q_g.natural)


@pytest.mark.parametrize("kind", ["lost", "damaged", "older"])
def test_a_site_without_its_state_takes_the_servers_copy_and_nothing_else_changes(kind, clock, tmp_path):
    losses, transports = made_up(), {}
    kept = {}

    def fault(name, number, call):
        if name == "a" and number == 3:
            kept["state"] = transports["transport"].state("a").read_bytes()
        if name == "a" and number == 6 and not kept.get("done"):
            kept["done"] = True
            path = transports["transport"].state("a")
            {
                "lost": path.unlink,
                "damaged": lambda: path.write_bytes(kept["state"][:-7]),
                "older": lambda: path.write_bytes(kept["state"]),
            }[kind]()
        return call()

    told = []
    transports["transport"] = Scripted(clock, tmp_path, losses, slow("b"), fault)
    serve(plan_of(tmp_path, losses), transports["transport"], "7", told.append)
    server = load_server(tmp_path / "server")
    assert_pooled(server, losses)
    assert sum("took the server's copy" in line for line in told) == 1
    again = replay(log_of(tmp_path), losses)
    assert same_bits(again.state.q_g.natural, server.state.q_g.natural)


def edited(said, header=None, **arrays):
    old = Message.from_bytes(said.message)
    made = Message("reply", {**old.header, **(header or {})}, {**old.arrays, **arrays})
    return Answer(lied(made, old).to_bytes())


def broken(said):
    natural = Message.from_bytes(said.message).arrays["natural"].copy()
    natural[1] = np.nan
    return edited(said, natural=natural)


BAD = {
    "NaN": (broken, "natural must be finite, got nan at position 1"),
    "a value that is not finite": (lambda said: edited(said, {"value": float("nan")}), "value must be finite"),
    "another broadcast": (lambda said: edited(said, {"answers": "0" * 64}), "answers must be the digest"),
    "nothing": (lambda said: Answer(b""), "got no signature"),
    "an error of the engine": (lambda said: "failed (Flower's error 2: no)", "failed"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_costs_its_sender_that_answer(kind, clock, tmp_path):
    spoil, complaint = BAD[kind]
    losses = made_up()

    def fault(name, number, call):
        return spoil(call()) if name == "b" and number in (2, 3) else call()

    server, _, told, _ = federate(clock, tmp_path, losses, slow("c"), fault)
    assert_pooled(server, losses)
    assert sum("site b" in line and complaint in line for line in told) == 2, told


def test_where_no_site_has_a_value_the_run_has_diverged(clock, tmp_path):
    def fault(name, number, call):
        said = call()
        return edited(said, {"value": float("nan")}) if number > 3 and said.message else said

    server, _, _, _ = federate(clock, tmp_path, made_up(), lambda name, number: 1.0, fault, row=M.PVI(0.3))
    assert server.outcome.status.name == "DIVERGED"


def test_a_dead_site_holds_the_others_for_its_deadline_and_the_run_for_its_patience(clock, tmp_path):
    losses = made_up()

    def dead(name, number, call):
        return None if name == "b" and number > 2 else call()

    with pytest.raises(TooFewError, match="no site answered within 100 s; the same command goes on"):
        federate(clock, tmp_path, losses, slow("b"), dead, deadline=20.0, patience=100.0, staleness=2)
    lines = log_of(tmp_path)
    assert sum("b" in line["bases"] for line in lines) == 2
    assert max(staleness(lines)) <= 2
    # the others have used what b said last, as far as that goes
    assert load_server(tmp_path / "server").unsettled == {"b"}
    server, _, _, _ = federate(clock, tmp_path, losses, slow("b"), staleness=2)
    assert_pooled(server, losses)


@pytest.mark.parametrize("bound", [1, 10])
def test_patience_does_not_end_a_run_while_somebody_works_within_the_deadline(bound, clock, tmp_path):
    losses = made_up()
    server, _, told, _ = federate(
        clock, tmp_path, losses, slow("b", 60.0), deadline=100.0, patience=50.0, staleness=bound
    )
    assert_pooled(server, losses)
    assert not told


def test_a_site_that_rests_is_asked_again_before_patience_is_over(clock, tmp_path):
    """Six failures from the start on make a rest of 30 units, and the others have nothing to add after 20 or so.

    With rests of 7.5 at the most it is asked for the seventh time after 40 units, and not after 67.
    """
    losses = made_up()

    def fails(name, number, call):
        return "failed (Flower's error 2: no)" if name == "b" and 0 < number <= 6 else call()

    server, _, _, _ = federate(clock, tmp_path, losses, lambda name, number: 1.0, fails, patience=30.0)
    assert_pooled(server, losses)


WAITING = {0: "2 of at least 3 sites answered", 10: "only a, c answered"}


@pytest.mark.parametrize("bound", WAITING)
def test_a_site_that_goes_before_the_certificate_does_not_use_up_the_rounds(bound, clock, tmp_path):
    """All residuals are below tol: what the others say again and again is the same. The run waits to be resumed."""
    losses = made_up()

    def goes(name, number, call):
        said = call()
        is_last = name == "b" and number and said.message and Message.from_bytes(said.message).header["certificate"]
        return None if is_last else said

    settings = {"deadline": 20.0, "patience": 100.0, "rounds": 50, "staleness": bound}
    with pytest.raises(TooFewError, match=f"{WAITING[bound]} within 100 s; the same command goes on") as stopped:
        federate(clock, tmp_path, losses, lambda name, number: 1.0, goes, **settings)
    assert "No answer that could be used came from b. Only the certificate is missing" in str(stopped.value)
    halfway = load_server(tmp_path / "server")
    assert halfway.outcome is None
    assert halfway.served.certify
    assert halfway.number < 20
    server, _, _, _ = federate(clock, tmp_path, losses, lambda name, number: 1.0, **settings)
    assert_pooled(server, losses)
    assert server.number == halfway.number + 1


def test_after_the_last_round_the_others_are_enough(clock, tmp_path):
    """A run ends after its rounds whoever has gone, then without a certificate."""
    losses = made_up()

    def goes(name, number, call):
        return None if name == "b" and number == 4 else call()

    settings = {"deadline": 20.0, "rounds": 3, "staleness": 0}
    server, _, told, _ = federate(clock, tmp_path, losses, lambda name, number: 1.0, goes, **settings)
    assert server.outcome.status.name == "ROUND_LIMIT"
    assert server.outcome.certificate is None
    assert told == ["site b: no answer within 20 s"]


@pytest.mark.parametrize("bound", [0, 10])
def test_who_fails_again_and_again_rests_longer_and_longer(bound, clock, tmp_path):
    losses, asked = made_up(), []

    def failing(name, number, call):
        if name != "b" or number < 3:
            return call()
        asked.append(clock.now)
        return "failed (Flower's error 2: no)"

    settings = {"patience": 300.0, "least": 1 if bound else 3, "staleness": bound}
    with pytest.raises(TooFewError):
        federate(clock, tmp_path, losses, lambda name, number: 1.0, failing, **settings)
    # it fails at once, and the clock stands where every look is a unit of time: rests of 1, 2, 4, …, 30, 30, …
    gaps = np.diff(asked)
    assert (np.diff(gaps) >= 0).all()
    assert gaps[-1] == gaps[-2] == LONGEST_REST + 1.0
    assert len(asked) < 20
    # and when it answers it is as any other
    began = clock.now
    server, _, _, _ = federate(clock, tmp_path, losses, lambda name, number: 1.0, **settings)
    assert_pooled(server, losses)
    assert clock.now - began < 30


def test_who_failed_and_is_at_another_node_now_is_asked_at_once(clock, tmp_path):
    losses, transports, asked = made_up(), {}, []

    def fault(name, number, call):
        members = transports["transport"].members
        if name != "b" or number < 3:
            return call()
        asked.append(clock.now)
        if 9 in members:
            return call()
        if len(asked) == 8:
            members[9] = members.pop(2)
        return "failed (Flower's error 2: no)"

    transports["transport"] = Scripted(clock, tmp_path, losses, lambda name, number: 1.0, fault)
    serve(plan_of(tmp_path, losses), transports["transport"], "7", lambda line: None)
    assert_pooled(load_server(tmp_path / "server"), losses)
    assert asked[7] - asked[6] == LONGEST_REST + 1.0
    assert asked[8] - asked[7] <= 3.0


# ----------------------------------------------------------------------------------------------------
# A crash between any two writings
# ----------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """A machine that stops."""


@pytest.mark.parametrize("bound", [0, 10])
@pytest.mark.parametrize("number", [1, 3, -1])
@pytest.mark.parametrize("kind", ["before the checkpoint", "after it", "in the line"])
def test_the_log_is_that_of_the_checkpoint_wherever_the_server_stopped(
    kind, number, bound, clock, tmp_path, monkeypatch
):
    """No line is lost and none is there twice, so that the run can be done again from them."""
    losses, settings = made_up(), {"staleness": bound, "tol": 1e-2}
    whole = federate(clock, tmp_path / "whole", losses, slow("b", 3.0), **settings)[1]
    # the checkpoint of the start is written first; -1 is the last, which holds the outcome
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
        federate(clock, tmp_path, losses, slow("b", 3.0), **settings)
    if kind == "in the line":
        path = state.with_name("progress.jsonl")
        path.write_bytes(path.read_bytes()[:-7])
    server, lines, _, _ = federate(clock, tmp_path, losses, slow("b", 3.0), **settings)
    assert (state.with_name("final.npz")).exists()
    assert len(lines) == server.number - 1
    if bound:
        again = replay(lines, losses, tol=1e-2)
        assert same_bits(again.state.q_g.natural, server.state.q_g.natural)
    else:
        assert json.dumps(lines) == json.dumps(whole)


@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_stopped_in_its_farewell_tells_the_sites_when_it_goes_on(older, clock, tmp_path):
    """Also where the folder still has the final message of an older run."""
    losses, final = made_up(), tmp_path / "server" / "final.npz"
    if older:
        federate(clock, tmp_path, losses, slow("b"), row=M.PVI(0.3))
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
        federate(clock, tmp_path, losses, slow("b"), stop)
    assert not list(tmp_path.glob("?/final-*.npz"))
    server, _, _, _ = federate(clock, tmp_path, losses, slow("b"))
    assert_pooled(server, losses)
    assert len(list(tmp_path.glob("?/final-*.npz"))) == 3
    assert final.read_bytes() == server.broadcast().to_bytes() != before
    with pytest.raises(ValueError, match="has ended"):
        federate(clock, tmp_path, losses, slow("b"))


def test_of_two_nodes_with_one_name_the_last_is_asked_and_it_is_told_once(clock, tmp_path):
    losses, told = made_up(), []
    transport = Scripted(clock, tmp_path, losses, lambda name, number: 1.0)
    transport.members[9] = "b"
    serve(plan_of(tmp_path, losses, staleness=0), transport, "7", told.append)
    assert_pooled(load_server(tmp_path / "server"), losses)
    assert told == ["site b: is at node 9 now; node 2, which says so too, is not asked"]


def test_of_two_nodes_with_one_name_the_first_is_asked_again_when_the_other_has_gone(clock, tmp_path):
    losses, told, transports = made_up(), [], {}

    def leaves(name, number, call):
        if (name, number) == ("a", 3):
            transports["transport"].members.pop(9)
        return call()

    transports["transport"] = Scripted(clock, tmp_path, losses, lambda name, number: 1.0, leaves)
    transports["transport"].members[9] = "b"
    serve(plan_of(tmp_path, losses, staleness=0), transports["transport"], "7", told.append)
    assert_pooled(load_server(tmp_path / "server"), losses)
    assert [line for line in told if "is at" in line] == [
        "site b: is at node 9 now; node 2, which says so too, is not asked",
        "site b: is at node 2 now",
    ]


def test_a_site_that_comes_back_at_another_node_is_asked_there(clock, tmp_path):
    losses, transports = made_up(), {}

    def fault(name, number, call):
        members = transports["transport"].members
        if (name, number) == ("a", 4):
            members[9] = members.pop(2)
        return None if (name, number) == ("b", 2) else call()

    told = []
    transports["transport"] = Scripted(clock, tmp_path, losses, slow("b", 3.0), fault)
    serve(plan_of(tmp_path, losses), transports["transport"], "7", told.append)
    assert_pooled(load_server(tmp_path / "server"), losses)
    assert "site b: is at node 9 now" in told


def test_a_site_whose_problem_fails_ends_the_run(clock, tmp_path):
    def fault(name, number, call):
        said = call()
        solved = Message.from_bytes(said.message).header.get("solved") if said.message and number else None
        if name != "b" or number != 2:
            return said
        old = Message.from_bytes(said.message)
        return Answer(
            lied(Message("reply", {**old.header, "solved": {**solved, "status": "NOT_FINITE"}}, {}), old).to_bytes()
        )

    server, _, _, _ = federate(clock, tmp_path, made_up(), slow("c"), fault, row=M.PVI(0.5))
    assert server.outcome.status.name == "NOT_FINITE"


# ----------------------------------------------------------------------------------------------------
# Which rows, and with what
# ----------------------------------------------------------------------------------------------------

TAKEN = {
    "PVI": (M.PVI(), "full"),
    "damped PVI": (M.PVI(0.7), "diagonal"),
    "AMA": (M.AMA(2.0), "block"),
    "FedLap": (M.FedLap(0.8), "fixed"),
    "FedLapCov": (M.FedLapCov(0.8), "full"),
    "BLR of step 1": (M.BLR(1.0), "full"),
    "PVI, isotropic": (M.PVI(0.6), "isotropic"),
    "Newton": (M.Newton(), "full"),
    "Newton of one start": (M.Newton("prior"), "full"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_rows_whose_server_is_the_sum_of_factors_reach_the_fixed_point_of_rounds(name, clock, tmp_path):
    row, family = TAKEN[name]
    losses, start = made_up(), prior(family, 3)
    server, _, _, _ = federate(clock, tmp_path, losses, slow("b", 3.0), row=row, start=start)
    assert server.outcome.certificate.holds
    result = ba.run(row, list(losses.values()), start, rounds=2000, tol=TOL)
    assert result.status.name == "CONVERGED"
    # each as near its fixed point as above
    assert np.abs(server.state.q_g.mean - result.posterior.mean).max() < 1e-5


REFUSED = {
    "BayesADMM": (M.BayesADMM(), "averages the λ_k"),
    "ADMM": (M.ADMM(), "averages the λ_k"),
    "PreconditionedADMM": (M.PreconditionedADMM(), "averages the λ_k"),
    "BregmanADMM": (M.BregmanADMM(), "averages the λ_k"),
    "FedAvg": (M.FedAvg(), "averages the λ_k"),
    "FedProx": (M.FedProx(), "averages the λ_k"),
    "FedDyn": (M.FedDyn(), "averages the λ_k"),
    "FedIvon": (M.FedIvon(), "averages the λ_k"),
    "BLR": (M.BLR(0.5), "averages the λ_k"),
    "guarded Newton": (ba.Guarded(M.Newton()), "compares rounds of all sites"),
    "JointNewton": (M.JointNewton(), "needs all sites at one λ_g"),
    "guarded JointNewton": (ba.Guarded(M.JointNewton()), "compares rounds of all sites"),
    "BCM": (M.BCM(), "a method of 1 round"),
    "accelerated PVI": (ba.Accelerated(M.PVI(0.5), 3), "mixes whole rounds"),
    "a dual along μ": (replace(M.BregmanADMM(), alpha=1.0), "does not move along λ"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_rows_are_refused_and_the_reason_is_said(name, tmp_path):
    row, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"max_staleness must be 0.*{reason}"):
        plan_of(tmp_path, NAMES, row=row)
    plan_of(tmp_path, NAMES, row=row, staleness=0)
    sites = [Site(name, GLMData(loss), rules=ALLOWED) for name, loss in made_up().items()]
    if name == "BayesADMM":  # nor is there another way to it
        server = Coordinator.start([site.hello() for site in sites], GLMTask(row, START))
        late, *others = [site.step(server.broadcast())[1] for site in sites]
        with pytest.raises(ValueError, match="max_staleness must be 0"):
            server.step(others).read([late], server.served)


def test_every_row_of_the_table_is_taken_or_refused():
    listed = {name.split(" of")[0] for name in (*TAKEN, *REFUSED)}
    assert set(M.TABLE) <= listed


def test_the_key_of_the_app_is_read(tmp_path):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from bayesadmm_np.cli.flower import read_plan
    from bayesadmm_np.federation.flower.project import APP, write_app

    write_app(tmp_path, 3)
    config = tomllib.loads((tmp_path / APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert read_plan(config).max_staleness == 0
    assert read_plan({**config, "max-staleness": 7, "method": "PVI"}).max_staleness == 7
    with pytest.raises(ValueError, match="max-staleness must be 0"):
        read_plan({**config, "max-staleness": 7, "method": "BayesADMM"})


def test_flowers_apps_do_it_too(tmp_path, monkeypatch):
    """Through Flower's records and its grid, where every answer is there at once."""
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from oracles.loopback import LoopbackGrid, Node, quicken, run_app

    quicken(monkeypatch)
    losses, late = made_up(), []

    def fault(node, number, call):
        reply = call()
        if node.name == "b" and number == 2:  # an answer that stays away for three versions
            late.append(reply)
            return None
        return reply

    grid = LoopbackGrid([Node(name, loss, tmp_path) for name, loss in losses.items()], fault)
    pull = grid.pull_messages

    def pull_late(message_ids):
        if late and load_server(tmp_path / "server").number == 5:
            reply = late.pop()
            grid.replies[reply.metadata.reply_to_message_id] = reply
        return pull(message_ids)

    grid.pull_messages = pull_late
    run_app(plan_of(tmp_path, losses, M.PVI(0.7)), grid)
    assert_pooled(load_server(tmp_path / "server"), losses)
    assert max(staleness(log_of(tmp_path))) == 3


@pytest.mark.slow
@pytest.mark.deployment
def test_a_deployment_with_a_bound_on_staleness_is_pooled(tmp_path):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from bayesadmm_np.cli._run_files import load_site

    def bayesadmm(*arguments):
        command = [sys.executable, "-m", "bayesadmm_np", "flower", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)

    folder = tmp_path / "trial"
    assert bayesadmm("new", folder, "--sites", 3).returncode == 0
    done = bayesadmm("local", folder, "--set", "max-staleness=2", "--set", "tol=1e-3")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "runs" / "0001" / "progress.jsonl").read_text().splitlines()]
    assert max(staleness(lines)) <= 2
    server = load_server(folder / "runs" / "0001")
    assert server.outcome.certificate.holds
    clients = [load_site(path, None)[0].loss for path in sorted((folder / "sites").iterdir())]
    pooled = ba.solve_pooled(clients, ba.families.FullGaussian(np.zeros(3), 1.0)).posterior
    # tol 1e-3 per parameter is 3e-3 in Fisher length of the nine; sd are below 0.3
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < 1e-3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"staleness": -1}, "max_staleness must be at least 0"),
        ({"staleness": 1.5}, "max_staleness must be an integer"),
        ({"least": 2}, "least must be 1 in an asynchronous run"),
        ({"participation": 0.5}, "participation must be 1 in an asynchronous run"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, complaint, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        plan_of(tmp_path, NAMES, **settings)
