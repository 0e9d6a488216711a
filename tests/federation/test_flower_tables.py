"""Sites with tables on Flower's grid: the run of messages bit for bit, grids before it, and the same refusals."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.design.levels import TableError
from bayesadmm_np.federation import GLMTable, GLMTask, Site, final_result, load_server
from bayesadmm_np.federation.dispatch import Plan, TooFewError
from bayesadmm_np.splitting.guarded import Guarded
from bayesadmm_np.splitting.methods import Newton
from oracles.couriers import drive_sites
from oracles.hospitals import tables_of, truth
from oracles.loopback import LoopbackGrid, Node, quicken, run_app
from oracles.problems import same_bits

CASES = {
    "splines": ("died ~ bs(age, 5) + ward", "logistic", {"shares_quantiles": True}, None),
    "offset": ("stays ~ dose + ward + offset(log(days))", "poisson", {}, {"site_intercepts": True}),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


def task(choices=None):
    prior = lambda d: ba.families.FullGaussian(np.zeros(d), 0.5)  # noqa: E731
    return GLMTask(Guarded(Newton()), prior, tol=1e-8, rounds=30, choices=choices)


def on_flower(folder, tables, formula, kind="logistic", options=None, choices=None, fault=None, deadline=30.0):
    nodes = [Node(name, GLMTable(part, formula, kind, **(options or {})), folder) for name, part in tables.items()]
    plan = Plan(task(choices), folder / "server", len(nodes), deadline=deadline, patience=30.0)
    run_app(plan, LoopbackGrid(nodes, fault))
    return load_server(plan.folder)


@pytest.mark.parametrize("case", CASES)
def test_flower_and_messages_agree_bit_for_bit(case, tmp_path):
    formula, kind, options, choices = CASES[case]
    tables = tables_of(truth())
    server = on_flower(tmp_path, tables, formula, kind, options, choices)
    sites = [Site(name, GLMTable(part, formula, kind, **options)) for name, part in tables.items()]
    other, _ = drive_sites(sites, task(choices))
    assert server.spec.run == other.spec.run
    assert same_bits(server.state.q_g.natural, other.state.q_g.natural)
    assert final_result(server.broadcast()).status.name == "CONVERGED"
    assert server.missing_rows == dict.fromkeys(sorted(tables), 2)


def test_grids_that_got_lost_are_sent_again(tmp_path):
    """Bern is silent at its first message; the run is that without the fault."""
    formula, kind, options, _ = CASES["splines"]

    def silent(node, number, call):
        return None if node.name == "Bern" and number == 1 else call()

    found = []
    for name, fault in (("whole", None), ("lost", silent)):
        (tmp_path / name).mkdir()
        args = (tmp_path / name, tables_of(truth()), formula, kind, options)
        found.append(on_flower(*args, fault=fault, deadline=0.5))
    assert found[0].spec.run == found[1].spec.run


def test_a_site_that_never_counts_stops_the_run_by_name(tmp_path):
    formula, kind, options, _ = CASES["splines"]

    def silent(node, number, call):
        return None if node.name == "Bern" and number else call()

    nodes = [
        Node(name, GLMTable(part, formula, kind, **options), tmp_path) for name, part in tables_of(truth()).items()
    ]
    plan = Plan(task(), tmp_path / "server", len(nodes), deadline=0.05, patience=0.1)
    with pytest.raises(TooFewError, match="no counts for the run's splines came from Bern"):
        run_app(plan, LoopbackGrid(nodes, silent))


def test_a_mismatch_is_refused_in_the_words_of_the_other_front_ends(tmp_path):
    tables = tables_of(truth())
    tables["Chur"] = tables["Chur"].assign(ward=tables["Chur"].ward.str.lower())
    with pytest.raises(TableError, match=r"site 'Chur': column 'ward' holds .* differ in case or in blanks alone"):
        on_flower(tmp_path, tables, "died ~ age + ward")
    assert not (tmp_path / "server" / "state.npz").exists()
