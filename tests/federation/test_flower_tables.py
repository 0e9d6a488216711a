"""Sites with tables on Flower's grid: the run of messages bit for bit, and the same refusals."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.design.levels import TableError
from bayesadmm_np.federation import GLMTable, GLMTask, Site, final_result, load_server
from bayesadmm_np.federation.dispatch import Plan
from bayesadmm_np.splitting.guarded import Guarded
from bayesadmm_np.splitting.methods import Newton
from oracles.couriers import drive_sites
from oracles.hospitals import tables_of, truth
from oracles.loopback import LoopbackGrid, Node, quicken, run_app
from oracles.problems import same_bits

CASES = {
    "interactions": ("died ~ dose*ward + I(age/10)", "logistic", None),
    "offset": ("stays ~ dose + ward + offset(log(days))", "poisson", {"site_intercepts": True}),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def task(choices=None):
    prior = lambda d: ba.families.FullGaussian(np.zeros(d), 0.5)  # noqa: E731
    return GLMTask(Guarded(Newton()), prior, tol=1e-8, rounds=30, choices=choices)


def on_flower(folder, tables, formula, kind="logistic", choices=None):
    nodes = [Node(name, GLMTable(part, formula, kind), folder) for name, part in tables.items()]
    plan = Plan(task(choices), folder / "server", len(nodes), deadline=30.0, patience=30.0)
    run_app(plan, LoopbackGrid(nodes))
    return load_server(plan.folder)


@pytest.mark.parametrize("case", CASES)
def test_flower_and_messages_agree_bit_for_bit(case, tmp_path):
    formula, kind, choices = CASES[case]
    tables = tables_of(truth())
    server = on_flower(tmp_path, tables, formula, kind, choices)
    sites = [Site(name, GLMTable(part, formula, kind)) for name, part in tables.items()]
    other, _ = drive_sites(sites, task(choices))
    assert server.spec.run == other.spec.run
    assert same_bits(server.state.q_g.natural, other.state.q_g.natural)
    assert final_result(server.broadcast()).status.name == "CONVERGED"
    assert server.missing_rows == dict.fromkeys(sorted(tables), 2)


def test_a_mismatch_is_refused_in_the_words_of_the_other_front_ends(tmp_path):
    tables = tables_of(truth())
    tables["Chur"] = tables["Chur"].assign(ward=tables["Chur"].ward.str.lower())
    with pytest.raises(TableError, match=r"site 'Chur': column 'ward' holds .* differ in case"):
        on_flower(tmp_path, tables, "died ~ age + ward")
    assert not (tmp_path / "server" / "state.npz").exists()
