"""Partial rounds, and messages that are not as they should be: each costs its sender the round, not the run."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import dataclasses
import io
import pickle
import sys
import time

import numpy as np
from flwr.app import ConfigRecord, Error, RecordDict

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, DisclosureRules, GLMTask, load_server
from bayesadmm_np.federation.dispatch import TooFewError, WithheldError
from bayesadmm_np.federation.dispatch import answer as node_answer
from bayesadmm_np.federation.dispatch.envelope import Answer
from bayesadmm_np.federation.flower import apps
from bayesadmm_np.federation.flower import node as node_module
from bayesadmm_np.federation.flower.apps import VECTORS
from bayesadmm_np.federation.refusals import Refusal
from oracles.loopback import (
    SITES,
    LoopbackGrid,
    Node,
    at,
    federation,
    lines,
    packed,
    plan_of,
    quicken,
    run_app,
    said_by,
    spoiled,
)
from oracles.problems import prior, team

PVI = ba.methods.PVI()
SIZES = (5, 8, 6)
START = prior("full", 3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def clients():
    return team("logistic", sizes=SIZES)


def task(row=PVI, **options):
    return GLMTask(row, lambda dim: START, **{"tol": 1e-9, **options})


def federate(folder, fault=None, change=lambda grid: None, **settings):
    """Run three sites of which one is at fault; return the server."""
    grid = federation(folder, clients(), fault)
    change(grid)
    options = {name: settings.pop(name) for name in ("tol", "rounds") if name in settings}
    plan = plan_of(folder, task(**options), **{"deadline": 20.0, "patience": 20.0, **settings})
    run_app(plan, grid)
    return load_server(plan.folder)


def assert_pooled(server):
    """tol 1e-9 per parameter in Fisher length: below 1e-7 in any entry, as the posterior's sd are below 2."""
    assert server.outcome.status.name == "CONVERGED"
    assert np.abs(server.state.q_g.mean - ba.solve_pooled(clients(), START).posterior.mean).max() < 1e-7


def natural(reply):
    return said_by(reply).arrays["natural"]


def nan(vector):
    return np.where(np.arange(vector.size) == 1, np.nan, vector)


def saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def bytes_of(reply):
    return reply.content[VECTORS]["message"].data


def changed(reply):
    data = bytes_of(reply)
    return bytes([*data[:200], data[200] ^ 1, *data[201:]])


class Bomb:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


BOMB = np.array([Bomb()], dtype=object)
UNSIGNED = "got no signature"
BAD = {  # test_messages.py has what the content of a reply must be
    "NaN": (lambda reply: spoiled(reply, natural=nan(natural(reply))), "natural must be finite, got nan at position 1"),
    "another site's name": (lambda reply: spoiled(reply, {"site": "a"}), "site must be b, got a"),
    "a value that is not finite": (lambda reply: spoiled(reply, {"value": float("nan")}), "value must be finite"),
    "damage": (lambda reply: packed(reply, bytes_of(reply)[:-9]), UNSIGNED),
    "damage that is signed over": (lambda reply: packed(reply, changed(reply)), "they were changed after"),
    "nothing": (lambda reply: packed(reply, b""), UNSIGNED),
    "too large": (lambda reply: packed(reply, bytes(1 << 20)), "size must be at most"),
    "a pickle": (lambda reply: packed(reply, pickle.dumps(Bomb())), UNSIGNED),
    "a pickle in an array": (lambda reply: packed(reply, saved(BOMB)), UNSIGNED),
    "an array of Flower's": (lambda reply: packed(reply, saved(BOMB), "numpy.ndarray"), "must be messages"),
    "another record": (
        lambda reply: setattr(reply, "content", RecordDict({"x": ConfigRecord({"y": 1})})) or reply,
        "records must be",
    ),
    "an exception": (lambda reply: Error(code=2, reason="ValueError: no"), "failed"),
}


def test_bad_messages_cost_their_sender_the_round(tmp_path, caplog):
    """Site b sends another bad message in every round from the third on, and is heard again after them."""
    counted = []

    def fault(node, number, call):
        if node.name == "a" and number > 2:
            counted.append(load_server(tmp_path / "server").counted[1])
        if node.name != "b" or not 3 <= number < 3 + len(BAD):
            return call()
        return [*BAD.values()][number - 3][0](call())

    assert_pooled(federate(tmp_path, fault))
    assert counted[: len(BAD)] == [2] * len(BAD)
    refused = [line for line in lines(caplog) if line.startswith("site b") and "was not counted" not in line]
    assert [kind for line, (kind, (_, words)) in zip(refused, BAD.items(), strict=True) if words not in line] == []


def test_refusals_can_fail(tmp_path):
    """The twin: a reply that is edited within its bounds is taken, and moves the answer."""

    def edit(node, call):
        reply = call()
        return spoiled(reply, natural=1.01 * natural(reply))

    server = federate(tmp_path, at("b", range(1, 5), edit), rounds=4)
    assert server.counted == (4, 4, 4)
    assert np.abs(server.state.q_g.mean - ba.solve_pooled(clients(), START).posterior.mean).max() > 1e-4


# ----------------------------------------------------------------------------------------------------
# Sites that are late, fail, go and come back
# ----------------------------------------------------------------------------------------------------


def test_a_late_site_keeps_its_factor_and_the_round_ends_at_its_deadline(tmp_path, caplog):
    """The site did the work, but its answer gets lost: it is ahead of what the server counts."""
    began = time.monotonic()
    assert_pooled(federate(tmp_path, at("b", (2, 3), lambda node, call: call() and None), deadline=0.4))
    assert time.monotonic() - began >= 0.8
    assert lines(caplog).count("site b: no answer within 0.4 s; is the deadline too short for it?") == 2
    assert lines(caplog).count("site b: its last answer was not counted") == 1


def test_every_round_may_lack_a_site(tmp_path):
    """Until the residuals are below tol: then all report at the same λ_g, who failed at the second try."""

    def fault(node, number, call):
        return Error(code=3, reason="expired") if number and (number + SITES.index(node.name)) % 3 == 0 else call()

    server = federate(tmp_path, fault, rounds=40)
    assert_pooled(server)
    *before, last = [record.objective for record in server.state.history]
    assert np.isnan(before).all()
    assert np.isfinite(last)


def untold(answer):
    """The answer of a site that does not say why it refuses."""
    return dataclasses.replace(answer, said=Refusal(("failed",)) if answer.withheld else answer.said)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(("rules", "rule"), [({}, "minimum-rows"), ({"minimum_sites": 4}, "minimum-sites")])
def test_a_site_whose_own_rules_refuse_ends_the_run_at_once(rules, rule, is_told, tmp_path, monkeypatch):
    """The broken twin is a server that is not told why, and waits for as long as it is patient."""
    none = DisclosureRules.none()
    strict = dataclasses.replace(none, **rules) if rules else DisclosureRules()

    def change(grid):
        grid.members[2].options["rules"] = strict

    if not is_told:
        monkeypatch.setattr(node_module, "answer", lambda *given: untold(node_answer(*given)))
    words = (
        rf"(site b|node 2): it sends nothing, because of its disclosure rules? --{rule}\b"
        if is_told
        else "within 0.3 s"
    )
    with pytest.raises(WithheldError if is_told else TooFewError, match=words):
        federate(tmp_path, None, change, least=3, patience=3600.0 if is_told else 0.3)


def test_a_rule_that_keeps_back_one_round_costs_no_more_than_that_round(tmp_path, caplog):
    """A rule about a point: the next point may be allowed; the sites that are needed are there without it."""

    def withhold(node, call):
        reply = call()
        reply.content = apps.answer_record(Answer(said=Refusal(("minimum_count", "point"))))
        return reply

    assert_pooled(federate(tmp_path, at("b", (3,), withhold), patience=3600.0))
    assert lines(caplog, "site b: refused: it sends nothing")


@pytest.mark.parametrize("is_caught", [True, False])
def test_what_flower_cannot_read_costs_its_sender_the_round(is_caught, tmp_path, caplog, monkeypatch):
    """Its reader raises, and drops what came with it; in the broken twin one node ends the run."""

    def fault(node, number, call):
        reply = call()
        reply.is_garbled = node.name == "b" and number in (2, 3)
        return reply

    honest = LoopbackGrid.pull_messages

    def pulled(grid, tickets):
        found = honest(grid, tickets)
        if any(message.is_garbled for message in found):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return found

    monkeypatch.setattr(LoopbackGrid, "pull_messages", pulled)
    if not is_caught:
        monkeypatch.setattr(
            apps.GridTransport, "pull", lambda self, tickets: self._read(self.grid.pull_messages(tickets))
        )
        with pytest.raises(UnicodeDecodeError):
            federate(tmp_path, fault)
        return
    assert_pooled(federate(tmp_path, fault))
    assert lines(caplog, "site b: Flower could not read what was sent")


def test_a_run_does_not_begin_without_its_sites(tmp_path):
    with pytest.raises(TooFewError, match=r"2 of 3 sites said hello within 0\.2 s: a, b"):
        federate(tmp_path, None, lambda grid: grid.members.pop(3), patience=0.2)


def joining(folder, name):
    """Another node, which joins when the first round has begun."""
    grids = []

    def join(node, call):
        folder.mkdir(exist_ok=True)
        grids[0].members[26] = Node(name, clients()[1], folder, grids[0].members[2].signs)
        return call()

    return at("a", (1,), join), grids.append


def test_a_stranger_has_no_part_in_a_run_that_has_begun(tmp_path, caplog):
    assert_pooled(federate(tmp_path, *joining(tmp_path, "z")))
    assert [line for line in lines(caplog, "node 26") if "one of a, b, c" in line]


@pytest.mark.parametrize("signs", [True, False])
def test_a_name_stays_with_the_key_of_its_site(signs, tmp_path, caplog, monkeypatch):
    """The broken twin has no keys, and its thief takes the place."""
    copies, honest = [], Coordinator.copy_for
    monkeypatch.setattr(Coordinator, "copy_for", lambda *given: copies.append(honest(*given)) or copies[-1])
    fault, keep = joining(tmp_path / "thief", "b")

    def change(grid):
        for node in grid.members.values():
            node.signs = signs
        keep(grid)

    federate(tmp_path, fault, change, rounds=8, tol=1e-12, deadline=0.5)
    assert any("node 26" in line for line in lines(caplog, "identity must be")) == signs
    assert bool(lines(caplog, "site b: is at node 26 now")) != signs
    assert copies == []  # whoever has the place gets no dual without the key
    assert bool(lines(caplog, "anybody can use a site")) != signs


BAD_HELLOS = {
    "no number of parameters": {"dim": "x"},
    "a path for a name": {"site": "../a"},
    "no names of columns": {"features": 3},
    "a weight that is no float": {"weight": 10**400},
    "rows that are no float": {"rows": 10**400},
}


def test_bad_hellos_do_not_keep_others_from_beginning(tmp_path, caplog):
    strangers = dict(zip("defgh", BAD_HELLOS.values(), strict=True))

    def fault(node, number, call):
        return spoiled(call(), strangers[node.name]) if node.name in strangers and not number else call()

    losses = team("logistic", sizes=(4,) * len(strangers) + SIZES)
    plan = plan_of(tmp_path, GLMTask(PVI, lambda dim: START), deadline=20.0, patience=20.0)
    run_app(plan, federation(tmp_path, losses, fault, names="defghabc"))
    assert load_server(plan.folder).spec.sites == ("a", "b", "c")
    assert [n for n in range(1, 1 + len(strangers)) if not lines(caplog, f"hello of node {n}")] == []


@pytest.mark.parametrize("loses_its_state", [False, True])
def test_a_site_with_privacy_takes_part_but_not_after_it_lost_its_account(loses_its_state, tmp_path, caplog):
    def lose(node, call):
        node.state.unlink()
        return call()

    noise = {"privacy": ba.GaussianMechanism(1.0, 0.5), "privacy_rounds": 10}
    grid = federation(tmp_path, team("logistic")[:2], at("b", (4,) * loses_its_state, lose), **noise)
    plan = plan_of(tmp_path, GLMTask(ba.methods.PVI(0.5), lambda dim: prior("diagonal", 3), rounds=6), 2, patience=20.0)
    run_app(plan, grid)
    assert load_server(plan.folder).counted == ((6, 3) if loses_its_state else (6, 6))
    assert bool(lines(caplog, "account of answers with noise is lost")) == loses_its_state


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.serverapp", None)
    with pytest.raises(ImportError, match=r"\.\[flower\]"):
        apps.server_app(None)
