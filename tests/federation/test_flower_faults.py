"""Partial rounds, and messages that are not as they should be: each costs its sender the round, not the run."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import dataclasses
import io
import pickle
import time

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, DisclosureRules, GLMData, GLMTask, Message, Site, load_server
from bayesadmm_np.federation.dispatch import Answer, Plan, TooFewError, WithheldError
from bayesadmm_np.federation.dispatch import answer as node_answer
from bayesadmm_np.federation.flower import apps
from bayesadmm_np.federation.flower.apps import RECORD, STYPE, VECTORS
from oracles.keys import lied, own_key
from oracles.loopback import SITES, LoopbackGrid, Node, quicken, run_app
from oracles.overrides import ALLOWED
from oracles.problems import prior, team

M = ba.methods
SIZES = (5, 8, 6)
START = prior("full", 3)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def federate(folder, fault, **settings):
    """Run three sites of which `b` is at fault; return the server and the pooled answer."""
    clients = team("logistic", sizes=SIZES)
    grid = LoopbackGrid([Node(name, loss, folder) for name, loss in zip(SITES, clients, strict=False)], fault)
    options = {name: settings.pop(name) for name in ("tol", "rounds") if name in settings}
    waits = {"deadline": 20.0, "patience": 20.0, **settings}
    plan = Plan(GLMTask(M.PVI(), lambda dim: START, **{"tol": 1e-9, **options}), folder / "server", 3, **waits)
    run_app(plan, grid)
    return load_server(plan.folder), ba.solve_pooled(clients, START).posterior


def assert_pooled(server, pooled):
    """tol 1e-9 per parameter in Fisher length: below 1e-7 in any entry, as the posterior's sd are below 2."""
    assert server.outcome.status.name == "CONVERGED"
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < 1e-7


def edited(reply, header=None, **arrays):
    """The same reply with another content; the digest is right, as an attacker's would be."""
    old = Message.from_bytes(reply.content[VECTORS]["message"].data)
    made = Message("reply", {**old.header, **(header or {})}, {**old.arrays, **arrays})
    return packed(reply, lied(made, old).to_bytes())


def packed(reply, data, stype=STYPE):
    array = Array(dtype="uint8", shape=(len(data),), stype=stype, data=data)
    reply.content[VECTORS] = ArrayRecord({"message": array})
    return reply


def nan(vector):
    return np.where(np.arange(vector.size) == 1, np.nan, vector)


def natural(reply):
    return Message.from_bytes(reply.content[VECTORS]["message"].data).arrays["natural"]


def saved(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def changed(reply):
    data = reply.content[VECTORS]["message"].data
    return bytes([*data[:200], data[200] ^ 1, *data[201:]])


UNSIGNED = "got no signature"
BAD = {
    "NaN": (lambda reply: edited(reply, natural=nan(natural(reply))), "natural must be finite, got nan at position 1"),
    "wrong shape": (lambda reply: edited(reply, natural=natural(reply)[:-1]), "natural must be a vector of 9 numbers"),
    "not a distribution": (lambda reply: edited(reply, natural=-natural(reply)), "precision must be positive definite"),
    "an old round": (lambda reply: edited(reply, {"round": 1}), "round must be"),
    "another run": (lambda reply: edited(reply, {"run": "0" * 16}), "run must be"),
    "another site's name": (lambda reply: edited(reply, {"site": "a"}), "site must be b, got a"),
    "another broadcast": (lambda reply: edited(reply, {"answers": "0" * 64}), "answers must be the digest"),
    "a value that is not finite": (lambda reply: edited(reply, {"value": float("nan")}), "value must be finite"),
    "a value that is text": (lambda reply: edited(reply, {"value": "nan"}), "got `str` - at `$.value`"),
    "a value that is no float": (lambda reply: edited(reply, {"value": 10**400}), "Number out of range - at `$.value`"),
    "an extra field": (lambda reply: edited(reply, {"more": 1}), "unknown field `more`"),
    "damage": (lambda reply: packed(reply, reply.content[VECTORS]["message"].data[:-9]), UNSIGNED),
    "damage that is signed over": (lambda reply: packed(reply, changed(reply)), "they were changed after"),
    "nothing": (lambda reply: packed(reply, b""), UNSIGNED),
    "too large": (lambda reply: packed(reply, bytes(1 << 20)), "size must be at most"),
    "a pickle": (lambda reply: packed(reply, pickle.dumps(Bomb())), UNSIGNED),
    "a pickle in an array": (
        lambda reply: packed(reply, saved(np.array([Bomb()], dtype=object))),
        UNSIGNED,
    ),
    "an array of Flower's": (
        lambda reply: packed(reply, saved(np.array([Bomb()], dtype=object)), "numpy.ndarray"),
        "must be messages",
    ),
    "another record": (
        lambda reply: setattr(reply, "content", RecordDict({"x": ConfigRecord({"y": 1})})) or reply,
        "records must be",
    ),
    "an exception": (lambda reply: Error(code=2, reason="ValueError: no"), "failed"),
}


class Bomb:
    """Unpickling it fails the test."""

    def __reduce__(self):
        return pytest.fail, ("something was unpickled",)


def test_bad_messages_cost_their_sender_the_round(tmp_path, caplog):
    """Site b sends another bad message in every round from the third on, and is heard again after them."""
    counted = []

    def fault(node, number, call):
        if node.name == "a" and number > 2:
            counted.append(load_server(tmp_path / "server").counted[1])
        if node.name != "b" or not 3 <= number < 3 + len(BAD):
            return call()
        return [*BAD.values()][number - 3][0](call())

    server, pooled = federate(tmp_path, fault)
    assert_pooled(server, pooled)
    assert counted[: len(BAD)] == [2] * len(BAD)
    said = [line for record in caplog.records if (line := record.getMessage()).startswith("site b")]
    refused = [line for line in said if "was not counted" not in line]
    assert [kind for line, (kind, (_, words)) in zip(refused, BAD.items(), strict=True) if words not in line] == []


def test_refusals_can_fail(tmp_path):
    """The twin: a reply that is edited within its bounds is taken, and moves the answer."""

    def fault(node, number, call):
        reply = call()
        return edited(reply, natural=1.01 * natural(reply)) if node.name == "b" and 0 < number <= 4 else reply

    server, pooled = federate(tmp_path, fault, rounds=4)
    assert server.counted == (4, 4, 4)
    assert np.abs(server.state.q_g.mean - pooled.mean).max() > 1e-4


# ----------------------------------------------------------------------------------------------------
# Sites that are late, fail, go and come back
# ----------------------------------------------------------------------------------------------------


def test_a_late_site_keeps_its_factor_and_the_round_ends_at_its_deadline(tmp_path, caplog):
    began = time.monotonic()

    def fault(node, number, call):
        reply = call()  # the site did the work, but its answer gets lost: it is ahead of what the server counts
        return None if node.name == "b" and number in (2, 3) else reply

    server, pooled = federate(tmp_path, fault, deadline=0.4)
    assert_pooled(server, pooled)
    assert 0.8 <= time.monotonic() - began < 15
    said = [record.getMessage() for record in caplog.records]
    assert said.count("site b: no answer within 0.4 s") == 2
    assert said.count("site b: its answer of round 3 was not counted") == 1


def test_every_round_may_lack_a_site(tmp_path):
    """Until the residuals are below tol: then all report at the same λ_g, who failed at the second try."""

    def fault(node, number, call):
        return Error(code=3, reason="expired") if number and (number + SITES.index(node.name)) % 3 == 0 else call()

    server, pooled = federate(tmp_path, fault, rounds=40)
    assert_pooled(server, pooled)
    *before, last = [record.objective for record in server.state.history]
    assert np.isnan(before).all()
    assert np.isfinite(last)


def test_a_dead_site_leaves_and_comes_back_at_another_node(tmp_path, caplog):
    grids = []

    def fault(node, number, call):
        grid = grids[0]
        if node.name == "a" and number == 2:
            grid.members[9] = grid.members.pop(2)
        return call()

    clients = team("logistic", sizes=SIZES)
    grid = LoopbackGrid([Node(name, loss, tmp_path) for name, loss in zip(SITES, clients, strict=False)], fault)
    grids.append(grid)
    plan = Plan(GLMTask(M.PVI(), lambda dim: START, tol=1e-9), tmp_path / "server", 3, deadline=0.5, patience=20.0)
    grid.push = grid.push_messages

    def push(messages):
        return [ticket if m.metadata.dst_node_id in grid.members else None for m in messages for ticket in known(m)]

    def known(message):
        return grid.push([message]) if message.metadata.dst_node_id in grid.members else [None]

    grid.push_messages = push
    run_app(plan, grid)
    assert_pooled(load_server(plan.folder), ba.solve_pooled(clients, START).posterior)
    assert any("site b: is at node 9 now" in record.getMessage() for record in caplog.records)


def test_a_round_waits_for_the_least_number_of_sites(tmp_path):
    failures = {"b": 3}

    def fault(node, number, call):
        if number and failures.get(node.name, 0):
            failures[node.name] -= 1
            return Error(code=2, reason="busy")
        return call()

    server, pooled = federate(tmp_path, fault, least=3)
    assert_pooled(server, pooled)
    assert len(set(server.counted)) == 1
    assert all(np.isfinite(record.objective) for record in server.state.history)


def test_too_few_sites_stop_the_run_which_can_be_resumed(tmp_path):
    def dead(node, number, call):
        return Error(code=5, reason="gone") if node.name != "a" and number > 2 else call()

    with pytest.raises(TooFewError, match=r"1 of at least 2 sites answered within 0\.3 s"):
        federate(tmp_path, dead, least=2, deadline=0.1, patience=0.3)
    assert load_server(tmp_path / "server").number == 3
    assert_pooled(*federate(tmp_path, lambda node, number, call: call(), least=2))


class StrictNode(Node):
    rules = DisclosureRules()

    def load(self, folder, spec):
        site = Site(self.name, GLMData(self.loss), key=own_key(self.folder), rules=self.rules)
        return site, site.hello()


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(("rules", "rule"), [({}, "minimum-rows"), ({"minimum_sites": 4}, "minimum-sites")])
def test_a_site_whose_own_rules_refuse_ends_the_run_at_once(rules, rule, is_told, tmp_path, monkeypatch):
    """The broken twin is a server that is not told why, and waits for as long as it is patient."""
    none = dict.fromkeys(("minimum_rows", "minimum_count", "minimum_class_count", "minimum_sites"), 0)
    limits = none | {"most_parameters": 9.0, "budget": 1e9} | rules if rules else {}
    monkeypatch.setattr(StrictNode, "rules", DisclosureRules(**limits))
    kinds = [Node, StrictNode, Node]
    clients = zip(kinds, SITES, team("logistic", sizes=SIZES), strict=False)
    grid = LoopbackGrid([kind(name, loss, tmp_path) for kind, name, loss in clients])
    patience = 3600.0 if is_told else 0.3
    plan = Plan(GLMTask(M.PVI(), lambda dim: START), tmp_path / "server", 3, least=3, patience=patience)
    if not is_told:
        monkeypatch.setattr(apps, "answer", lambda *given: dataclasses.replace(node_answer(*given), withheld=False))
    words = rf"cannot go on: site b sends nothing, by its disclosure rules? --{rule}\b" if is_told else "within 0.3 s"
    with pytest.raises(WithheldError if is_told else TooFewError, match=words):
        run_app(plan, grid)


def test_a_rule_that_keeps_back_one_round_costs_no_more_than_that_round(tmp_path, caplog):
    """A rule about a point: the next point may be allowed; the sites that are needed are there without it."""

    def fault(node, number, call):
        reply = call()
        if node.name == "b" and number == 3:
            told = Answer(
                note="site b sends nothing, by its disclosure rule --minimum-count", refused=True, withheld=True
            )
            reply.content = apps.answer_record(apps._flower("app"), told)
        return reply

    server, pooled = federate(tmp_path, fault, patience=3600.0)
    assert_pooled(server, pooled)
    assert any("site b: refused: site b sends nothing" in record.getMessage() for record in caplog.records)


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
    assert_pooled(*federate(tmp_path, fault))
    assert any("site b: Flower could not read what was sent" in record.getMessage() for record in caplog.records)


def test_a_run_does_not_begin_without_its_sites(tmp_path):
    clients = team("logistic", sizes=SIZES)[:2]
    grid = LoopbackGrid([Node(name, loss, tmp_path) for name, loss in zip(SITES, clients, strict=False)])
    plan = Plan(GLMTask(M.PVI(), lambda dim: START), tmp_path / "server", 3, patience=0.2)
    with pytest.raises(TooFewError, match=r"2 of 3 sites said hello within 0\.2 s: a, b"):
        run_app(plan, grid)


def test_a_stranger_has_no_part_in_a_run_that_has_begun(tmp_path, caplog):
    grids = []

    def fault(node, number, call):
        if node.name == "a" and number == 1:
            stranger = Node("z", team("logistic", sizes=SIZES)[0], tmp_path)
            grids[0].members[26] = stranger
        return call()

    clients = team("logistic", sizes=SIZES)
    grids.append(LoopbackGrid([Node(n, loss, tmp_path) for n, loss in zip(SITES, clients, strict=False)], fault))
    plan = Plan(GLMTask(M.PVI(), lambda dim: START, tol=1e-9), tmp_path / "server", 3, deadline=20.0, patience=20.0)
    run_app(plan, grids[0])
    assert_pooled(load_server(plan.folder), ba.solve_pooled(clients, START).posterior)
    assert any(
        "node 26" in record.getMessage() and "one of a, b, c" in record.getMessage() for record in caplog.records
    )


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
        reply = call()
        if node.name not in strangers or number:
            return reply
        old = Message.from_bytes(reply.content[VECTORS]["message"].data)
        return packed(reply, lied(Message("hello", {**old.header, **strangers[node.name]}, {}), old).to_bytes())

    clients = team("logistic", sizes=(4,) * len(strangers) + SIZES)
    grid = LoopbackGrid([Node(n, loss, tmp_path) for n, loss in zip("defghabc", clients, strict=True)], fault)
    plan = Plan(GLMTask(M.PVI(), lambda dim: START), tmp_path / "server", 3, deadline=20.0, patience=20.0)
    run_app(plan, grid)
    assert load_server(plan.folder).spec.sites == ("a", "b", "c")
    said = [record.getMessage() for record in caplog.records]
    assert [n for n in range(1, 1 + len(strangers)) if not any(f"hello of node {n}" in line for line in said)] == []


@pytest.mark.parametrize(("keyed", "signs"), [(False, True), (True, False), (False, False)])
def test_with_keys_a_name_stays_with_its_node(keyed, signs, tmp_path, caplog, monkeypatch):
    """Keys of sites or of Flower's nodes will do; the broken twin has neither, and its thief takes the place."""
    monkeypatch.setattr(Node, "signs", signs)
    grids, copies = [], []

    def fault(node, number, call):
        if node.name == "a" and number == 1:
            (tmp_path / "thief").mkdir()
            grids[0].members[26] = Node("b", team("logistic", sizes=SIZES)[1], tmp_path / "thief")
        return call()

    honest = Coordinator.copy_for
    monkeypatch.setattr(Coordinator, "copy_for", lambda *given: copies.append(honest(*given)) or copies[-1])

    clients = team("logistic", sizes=SIZES)
    grids.append(LoopbackGrid([Node(n, loss, tmp_path) for n, loss in zip(SITES, clients, strict=False)], fault))
    plan = Plan(
        GLMTask(M.PVI(), lambda dim: START, rounds=8), tmp_path / "server", 3, deadline=0.5, patience=20.0, keyed=keyed
    )
    run_app(plan, grids[0])
    said = [record.getMessage() for record in caplog.records]
    known = keyed or signs
    refused = [line for line in said if "a name of its own" in line or "identity must be" in line]
    assert any("node 26" in line for line in refused) == known
    assert any("site b: is at node 26 now" in line for line in said) != known
    assert copies == []  # whoever has the place gets no dual without the key
    assert any("a name is all that is known of them" in line for line in said) != signs


class PrivateNode(Node):
    def load(self, folder, spec):
        noise = {"privacy": ba.GaussianMechanism(1.0, 0.5), "privacy_rounds": 10}
        site = Site(self.name, GLMData(self.loss), key=own_key(self.folder), rules=ALLOWED, **noise)
        return site, site.hello()


@pytest.mark.parametrize("loses_its_state", [False, True])
def test_a_site_with_privacy_takes_part_but_not_after_it_lost_its_account(loses_its_state, tmp_path, caplog):
    def fault(node, number, call):
        if loses_its_state and node.name == "b" and number == 4:
            node.state.unlink()
        return call()

    grid = LoopbackGrid([PrivateNode(n, one, tmp_path) for n, one in zip("ab", team("logistic"), strict=True)], fault)
    plan = Plan(GLMTask(M.PVI(0.5), lambda dim: prior("diagonal", 3), rounds=6), tmp_path / "server", 2, patience=20.0)
    run_app(plan, grid)
    assert load_server(plan.folder).counted == ((6, 3) if loses_its_state else (6, 6))
    lost = [record for record in caplog.records if "spent of its privacy is lost" in record.getMessage()]
    assert bool(lost) == loses_its_state


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(apps.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError(name)))
    with pytest.raises(ImportError, match=r"pip install 'bayesadmm-np\[flower\]'"):
        apps.client_app(None)


def test_records_of_a_request_are_checked_at_the_site(tmp_path):
    node = Node("a", team("logistic", sizes=SIZES)[0], tmp_path)
    for record in ({RECORD: ConfigRecord({"label": 7}), VECTORS: ArrayRecord({})}, {}):
        with pytest.raises(ValueError, match="must"):
            apps.read_request(RecordDict(record))
    assert node.load(node.folder, None)[0].name == "a"
