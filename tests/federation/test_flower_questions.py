"""Questions beside the rounds over Flower: the run by messages, bit for bit; a silent site is named in the table."""

import dataclasses
from functools import cache

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTask,
    Message,
    MessageError,
    Site,
    final_result,
    load_server,
)
from bayesadmm_np.federation.dispatch import Plan
from bayesadmm_np.losses import LeastSquares, Logistic
from oracles.loopback import SITES, LoopbackGrid, Node, quicken, run_app
from oracles.overrides import ALLOWED

NEWTON = ba.Guarded(ba.methods.Newton())


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def losses_of(case):
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)])
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.3]))).astype(float)
    if case == "separated":
        y = (X[:, 0] > 0).astype(float)
    parts = np.array_split(np.arange(60), 3)
    if case == "squares":
        return [LeastSquares(X[i], X[i] @ [1.0, 2.0, 3.0] + rng.normal(size=len(i))) for i in parts]
    return [Logistic(X[i], y[i]) for i in parts]


def task(case):
    penalty = "firth" if case == "firth" else None
    return GLMTask(NEWTON, lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), tol=1e-8, asks=True, penalty=penalty)


@cache
def by_messages(case):
    """The same run without Flower; no state is put away."""
    named = zip(SITES, losses_of(case), strict=False)
    sites = [Site(name, GLMData(loss, ("a", "b", "intercept")), rules=ALLOWED) for name, loss in named]
    server = Coordinator.start([site.hello() for site in sites], task(case))
    while server.outcome is None:
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        server = server.step(replies)
    return server


class Named(Node):
    def load(self, folder, spec):
        site = Site(self.name, GLMData(self.loss, ("a", "b", "intercept")), rules=ALLOWED)
        return site, site.hello()


def by_flower(case, folder, fault=None, patience=30.0):
    nodes = [Named(name, loss, folder) for name, loss in zip(SITES, losses_of(case), strict=False)]
    plan = Plan(task(case), folder / "server", 3, deadline=min(patience, 5.0), patience=patience)
    run_app(plan, LoopbackGrid(nodes, fault))
    return load_server(plan.folder)


@pytest.mark.parametrize("case", ["plain", "separated", "firth"])
def test_flower_asks_what_messages_ask(case, tmp_path):
    one, other = by_messages(case), by_flower(case, tmp_path)
    assert one.asked == other.asked > 0
    assert one.broadcast().digest == other.broadcast().digest  # posterior, statistics, findings, certificate
    table = final_result(other.broadcast(), other).table
    assert [type(finding).__name__ for finding in table.findings] == ["Separation"] * (case == "separated")
    assert (table.receding is not None and table.receding.shape[1] == 3) == (case == "separated")
    assert (table.statistics.total.loss < 1e-9) == (case == "separated")  # the supremum of complete separation
    # broken twin: another case's run
    assert one.broadcast().digest != by_messages("plain" if case == "firth" else "firth").broadcast().digest


def test_a_silent_site_leaves_its_name_in_the_table(tmp_path):
    """It answers the rounds, and never the question after them."""
    asked = by_messages("plain").asked

    def fault(node, number, call):
        # a hello, the question before, one message a round, and then the question after
        rounds = fault.rounds.setdefault(node.name, 0)
        said = call()
        fault.rounds[node.name] = rounds + 1
        return None if node.name == "c" and rounds >= fault.last else said

    fault.rounds, fault.last = {}, by_messages("plain").number + 1
    server = by_flower("plain", tmp_path, fault, patience=0.4)
    table = server.outcome.table
    assert table.statistics is None
    assert "site c: it was away" in table.missing[0]
    assert server.asked == asked
    assert server.outcome.status.name == "CONVERGED"


def test_a_server_that_stopped_within_a_question_goes_on(tmp_path):
    whole = by_messages("squares")

    class StoppedError(Exception):
        pass

    def fault(node, number, call):
        if number == 2 and not fault.stopped:  # the second question, of the first node
            fault.stopped = True
            raise StoppedError
        return call()

    fault.stopped = False
    with pytest.raises(StoppedError):
        by_flower("squares", tmp_path, fault)
    kept = load_server(tmp_path / "server")
    assert (kept.asked, kept.question.name) == (1, "sums")
    assert by_flower("squares", tmp_path).broadcast().digest == whole.broadcast().digest


def test_a_site_refuses_a_question_of_no_table():
    site = Site("a", GLMData(losses_of("plain")[0], ("a", "b", "intercept")), rules=ALLOWED)
    first = Coordinator.start([site.hello()], task("plain")).broadcast()
    changed = Message("inquiry", {**first.header, "name": "rows_themselves"}, first.arrays)
    with pytest.raises(MessageError, match="name must be a question of the table"):
        site.step(changed)


def test_results_hold_the_table(tmp_path):
    server = by_flower("plain", tmp_path)
    result = final_result(Message.from_bytes(server.broadcast().to_bytes()))
    assert dataclasses.asdict(result.table)["exchanges"] == server.asked
