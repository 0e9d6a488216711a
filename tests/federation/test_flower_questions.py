"""Questions beside the rounds over Flower: the run by messages, bit for bit; a silent site is named in the table."""

import dataclasses
from functools import cache

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    GLMData,
    GLMTask,
    Message,
    Site,
    final_result,
    load_server,
)
from bayesadmm_np.losses import LeastSquares, Logistic
from oracles.couriers import started, until
from oracles.loopback import at, federation, plan_of, quicken, run_app
from oracles.overrides import ALLOWED

COLUMNS = ("a", "b", "intercept")
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
    sites = [
        Site(name, GLMData(loss, COLUMNS), rules=ALLOWED) for name, loss in zip("abc", losses_of(case), strict=True)
    ]
    return until(started(sites, task(case)), sites)[0]


def by_flower(case, folder, fault=None, patience=30.0):
    data = [GLMData(loss, COLUMNS) for loss in losses_of(case)]
    plan = plan_of(folder, task(case), deadline=min(patience, 5.0), patience=patience)
    run_app(plan, federation(folder, data, fault, signs=False))
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
    last = by_messages("plain").number + 1  # a hello, a question, and one message a round come before
    server = by_flower("plain", tmp_path, at("c", range(last, 99), lambda node, call: call() and None), patience=0.4)
    table = server.outcome.table
    assert table.statistics is None
    assert "site c: it was away" in table.missing[0]
    assert server.asked == by_messages("plain").asked
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


def test_results_hold_the_table(tmp_path):
    server = by_flower("plain", tmp_path)
    result = final_result(Message.from_bytes(server.broadcast().to_bytes()))
    assert dataclasses.asdict(result.table)["exchanges"] == server.asked
