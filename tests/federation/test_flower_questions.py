"""Questions beside the rounds over Flower: a silent site is named in the table, and a server that stopped goes on."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMData, GLMTask, Site, load_server
from oracles.couriers import started, until
from oracles.loopback import at, federation, plan_of, quicken, run_app
from oracles.overrides import ALLOWED

NEWTON = ba.Guarded(ba.methods.Newton())
TASK = GLMTask(NEWTON, lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), tol=1e-8, asks=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def data():
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)])
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.3]))).astype(float)
    return [GLMData(ba.losses.Logistic(X[i::3], y[i::3]), ("a", "b", "intercept")) for i in range(3)]


def by_messages():
    """The same run without Flower; no state is put away."""
    sites = [Site(name, one, rules=ALLOWED) for name, one in zip("abc", data(), strict=True)]
    return until(started(sites, TASK), sites)[0]


def by_flower(folder, fault=None, patience=30.0):
    plan = plan_of(folder, TASK, deadline=min(patience, 5.0), patience=patience)
    run_app(plan, federation(folder, data(), fault, signs=False))
    return load_server(plan.folder)


def test_a_silent_site_leaves_its_name_in_the_table(tmp_path):
    """It answers the rounds, and never the question after them."""
    whole = by_messages()
    last = whole.number + 1  # a hello, a question, and one message a round come before
    server = by_flower(tmp_path, at("c", range(last, 99), lambda node, call: call() and None), patience=0.4)
    table = server.outcome.table
    assert table.statistics is None
    assert "site c: it was away" in table.missing[0]
    assert server.asked == whole.asked
    assert server.outcome.status.name == "CONVERGED"


class StoppedError(Exception):
    pass


def test_a_server_that_stopped_within_a_question_goes_on(tmp_path):
    """Posterior, statistics, findings and certificate are those of a run without Flower that did not stop."""
    whole = by_messages()

    def fault(node, number, call):
        if number == whole.number + 1:  # the question after the rounds
            raise StoppedError
        return call()

    with pytest.raises(StoppedError):
        by_flower(tmp_path, fault)
    kept = load_server(tmp_path / "server")
    assert kept.question.name == "statistics"
    assert by_flower(tmp_path).broadcast().digest == whole.broadcast().digest
