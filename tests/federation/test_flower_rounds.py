"""ServerApp and ClientApps in one process: the answer of `run` bit for bit, and what goes wrong costs a round."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.clients import VON
from bayesadmm_np.federation import GLMTask, Message, Site, final_result, load_server
from bayesadmm_np.federation.dispatch import Plan
from oracles.loopback import SITES, LoopbackGrid, Node, quicken, run_app
from oracles.problems import prior, same_bits, team
from oracles.rows_of_the_table import ROWS, families_of

M = ba.methods
SIZES = (5, 8, 6)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    quicken(monkeypatch)


# Flower carries the bytes of messages, which test_rounds.py compares for every row, family and loss. Messages of the
# rows here differ in what they hold: η_k too, weights of a mix, a slope and a curvature, no λ_k; and few numbers.
CASES = [
    ("damped PVI", "full", "softmax"),
    ("BregmanADMM", "diagonal", "logistic"),
    ("accelerated PVI", "full", "logistic"),
    ("Newton", "full", "poisson"),
    ("FedAvg", "isotropic", "squares"),
]


def plan_of(folder, row, start, n_sites, **settings):
    waits = {"deadline": 30.0, "patience": 30.0}
    names = ("deadline", "patience", "least", "participation")
    waits |= {name: settings.pop(name) for name in names if name in settings}
    return Plan(GLMTask(row, lambda dim: start, **settings), folder / "server", n_sites, **waits)


def federation(folder, clients, fault=None):
    return LoopbackGrid([Node(name, loss, folder) for name, loss in zip(SITES, clients, strict=False)], fault)


def finished(folder, row, clients, start, fault=None, **settings):
    """Run to the end, failed or not; return the server as its checkpoint has it."""
    grid = federation(folder, clients, fault)
    plan = plan_of(folder, row, start, len(clients), **settings)
    try:
        run_app(plan, grid)
    except RuntimeError:
        assert load_server(plan.folder).outcome.status.is_failure
    return load_server(plan.folder)


def is_same(result, server):
    objective = [server.state.start_objective, *(record.objective for record in server.state.history)]
    return (
        same_bits(result.posterior.natural, server.state.q_g.natural)
        and all(same_bits(a, b) for a, b in zip(result.sites, server.state.sites, strict=True))
        and np.array_equal(result.objective, objective, equal_nan=True)
        and result.status == server.outcome.status
    )


@pytest.mark.parametrize(("name", "family", "loss"), CASES)
def test_flower_and_one_process_agree_bit_for_bit(name, family, loss, tmp_path):
    clients = team(loss, sizes=SIZES)
    start = prior(family, clients[0].dim)
    result = ba.run(ROWS[name], clients, start, rounds=5, tol=1e-4, raise_on_failure=False)
    assert is_same(result, finished(tmp_path, ROWS[name], clients, start, rounds=5, tol=1e-4))


def test_so_they_do_for_a_conjugate_family(tmp_path):
    counts = [ba.losses.LinearInStatistics(ba.families.Natural(np.array([k, 1.0]), np.full(2, -k))) for k in (3.0, 8.0)]
    start = ba.families.Gamma([2.0, 0.1], [1.0, 0.3])
    result = ba.run(ROWS["damped PVI"], counts, start)
    server = finished(tmp_path, ROWS["damped PVI"], counts, start)
    assert same_bits(server.state.q_g.natural, result.posterior.natural)
    assert server.outcome.certificate.pooled == result.certificate().pooled


def test_options_travel_with_the_run(tmp_path):
    clients, start = team("logistic", sizes=SIZES), prior("diagonal", 3)
    options = {"rounds": 4, "tol": 1e-8, "solver": VON(steps=20), "seed": 7, "warm_start": True}
    result = ba.run(M.PVI(0.5), clients, start, raise_on_failure=False, **options)
    assert is_same(result, finished(tmp_path, M.PVI(0.5), clients, start, **options))


def test_the_sites_of_a_round_are_those_of_one_process(tmp_path):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    options = {"rounds": 6, "tol": 1e-300, "participation": 0.4, "seed": 3}
    result = ba.run(M.PVI(0.5), clients, start, **options)
    server = finished(tmp_path, M.PVI(0.5), clients, start, **options)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    away = [[client.status.name == "ABSENT" for client in record.clients] for record in server.state.history]
    assert away == [[client.status.name == "ABSENT" for client in record.clients] for record in result.history]
    assert {sum(row) for row in away} == {2}


def test_richer_sites_travel_with_participation_in_as_many_bytes_as_numbers(tmp_path):
    """Eight bytes a number; headers and the spec are within some kilobytes."""
    clients, start = team("softmax", sizes=SIZES), prior("diagonal", 6)
    row = ba.Sketched(M.PVI(), ba.losses.Kronecker(3))
    options = {"rounds": 6, "tol": 1e-300, "participation": 0.7, "seed": 3}
    result = ba.run(row, clients, start, **options)
    server = finished(tmp_path, row, clients, start, **options)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    assert result.history[0].floats_up == 2 * (12 + 12 + 4)
    assert result.history[0].floats_down == 2 * (12 + min(3 * (6 + 4), 15))
    told = server.broadcast()
    assert {name: value.size for name, value in told.arrays.items()} == {"natural": 12, "sketches": 15, "prior": 12}
    assert 8 * 39 < len(told.to_bytes()) < 8 * 39 + 8000


def test_a_run_with_few_sites_a_round_ends_with_the_certificate_of_all(tmp_path):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    server = finished(tmp_path, M.PVI(), clients, start, participation=0.4, tol=1e-7)
    assert server.outcome.status.name == "CONVERGED"
    assert server.outcome.certificate.holds


def test_the_comparison_can_fail(tmp_path):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    server = finished(tmp_path, M.PVI(0.5), clients[::-1], start, rounds=4)
    assert not is_same(ba.run(M.PVI(0.5), clients, start, rounds=4), server)


def test_a_run_that_fails_raises_and_keeps_its_last_good_state(tmp_path):
    clients, start = team("poisson", sizes=SIZES), prior("isotropic", 3)
    result = ba.run(M.AMA(2.0), clients, start, raise_on_failure=False)
    assert result.status.is_failure
    with pytest.raises(RuntimeError, match=result.status.value):
        run_app(plan_of(tmp_path, M.AMA(2.0), start, 3), federation(tmp_path, clients))
    assert is_same(result, load_server(tmp_path / "server"))


def test_sites_and_server_are_left_with_the_final_message(tmp_path):
    clients, start = team("squares", sizes=SIZES), prior("full", 3)
    server = finished(tmp_path, M.PVI(), clients, start)
    finals = [Message.read(path) for path in (tmp_path / "server" / "final.npz", *tmp_path.glob("?/final-*.npz"))]
    assert len(finals) == 4
    for final in finals:
        assert same_bits(final_result(final).posterior.natural, server.state.q_g.natural)
    assert final_result(finals[0]).certificate.holds


# ----------------------------------------------------------------------------------------------------
# State: lost, damaged, restored, behind and ahead
# ----------------------------------------------------------------------------------------------------

DAMAGED = {
    "lost": lambda path, old: path.unlink(),
    "damaged": lambda path, old: path.write_bytes(path.read_bytes()[:-7]),
    "restored from a copy of round 2": lambda path, old: path.write_bytes(old),
}
RESYNCED = {
    "PVI": M.PVI(0.5),
    "BregmanADMM": M.BregmanADMM(1.0, 0.1),
    "accelerated PVI": ba.Accelerated(M.PVI(0.5), 3),
    "BLR": M.BLR(0.3),
}


@pytest.mark.parametrize(
    ("name", "damage"), [*(("PVI", damage) for damage in DAMAGED), *((name, "lost") for name in [*RESYNCED][1:])]
)
def test_a_site_without_its_state_takes_the_servers_copy_and_nothing_else_changes(name, damage, tmp_path, caplog):
    clients, row = team("logistic", sizes=SIZES), RESYNCED[name]
    start = prior(families_of(row)[0], 3)
    old = {}

    def fault(node, number, call):  # message 0 is the hello; the broadcast of round 5 meets what happened
        if node.name == "b" and number == 3:
            old["state"] = node.state.read_bytes()
        if node.name == "b" and number == 5:
            DAMAGED[damage](node.state, old["state"])
        return call()

    options = {"rounds": 8, "tol": 1e-300}
    result = ba.run(row, clients, start, raise_on_failure=False, **options)
    assert is_same(result, finished(tmp_path, row, clients, start, fault, **options))
    said = [record.getMessage() for record in caplog.records]
    assert sum("site b: refused" in line for line in said) == 1
    assert sum("site b: took the server's copy of its dual" in line for line in said) == 1


def test_a_site_that_began_again_from_zero_would_be_seen(tmp_path, monkeypatch):
    """The twin: where the copy is taken for a start, the sums are others."""
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    honest = Site.adopt

    def from_zero(site, spec, copy):
        like = spec.prior.natural
        zeros = {"natural": like.to_vector(), "site": like.zeros().to_vector()}
        return honest(site, spec, Message("copy", copy.header, {**copy.arrays, **zeros}))

    monkeypatch.setattr(Site, "adopt", from_zero)

    def fault(node, number, call):
        if node.name == "b" and number == 5:
            node.state.unlink()
        return call()

    options = {"rounds": 8, "tol": 1e-300}
    result = ba.run(M.PVI(0.5), clients, start, **options)
    assert not is_same(result, finished(tmp_path, M.PVI(0.5), clients, start, fault, **options))


def test_changed_rows_are_refused_and_not_resynchronised(tmp_path, caplog):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)

    def fault(node, number, call):
        if node.name == "b" and number == 3:
            node.loss = team("logistic", seed=5, sizes=SIZES)[1]
        return call()

    server = finished(tmp_path, M.PVI(0.5), clients, start, fault, rounds=5, tol=1e-300)
    assert server.counted == (5, 2, 5)
    assert any("have changed since" in record.getMessage() for record in caplog.records)


def test_a_server_that_is_resumed_goes_on_bit_for_bit(tmp_path, caplog):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    row, options = ba.Accelerated(M.PVI(0.5), 3), {"rounds": 8, "tol": 1e-300}

    class Killed(BaseException):
        pass

    def kill(node, number, call):
        if node.name == "c" and number == 4:
            raise Killed
        return call()

    plan = plan_of(tmp_path, row, start, 3, **options)
    with pytest.raises(Killed):
        run_app(plan, federation(tmp_path, clients, kill))
    halfway = load_server(plan.folder)
    assert halfway.outcome is None
    assert halfway.number == 4
    run_app(plan, federation(tmp_path, clients), run_id=8)
    assert is_same(ba.run(row, clients, start, raise_on_failure=False, **options), load_server(plan.folder))
    # a and b had answered that broadcast already
    again = [record.getMessage() for record in caplog.records if "again" in record.getMessage()]
    assert again == ["site a: answered broadcast 4 again", "site b: answered broadcast 4 again"]


def test_a_server_restored_from_an_older_checkpoint_resynchronises_the_sites_that_are_ahead(tmp_path, caplog):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    row, options = M.PVI(0.5), {"rounds": 8, "tol": 1e-300}
    plan, kept = plan_of(tmp_path, row, start, 3, **options), {}

    def keep(node, number, call):
        if number == 3:
            kept["state"] = (plan.folder / "state.npz").read_bytes()
        return call()

    run_app(plan, federation(tmp_path, clients, keep))
    expected = load_server(plan.folder)
    (plan.folder / "state.npz").write_bytes(kept["state"])
    run_app(plan, federation(tmp_path, clients), run_id=8)
    assert same_bits(expected.state.q_g.natural, load_server(plan.folder).state.q_g.natural)
    assert sum("took the server's copy" in record.getMessage() for record in caplog.records) == 3


def test_a_finished_run_and_one_with_other_settings_are_not_gone_on_with(tmp_path):
    clients, start = team("squares", sizes=SIZES), prior("full", 3)
    finished(tmp_path, M.PVI(), clients, start)
    with pytest.raises(ValueError, match=r"run-folder .* has ended"):
        run_app(plan_of(tmp_path, M.PVI(), start, 3), federation(tmp_path, clients))
    plan = plan_of(tmp_path / "other", M.PVI(), start, 3, tol=1e-9)
    plan.folder.parent.mkdir()
    with pytest.raises(ZeroDivisionError):
        run_app(plan, federation(tmp_path, clients, lambda node, number, call: call() if number == 0 else 1 / 0))
    with pytest.raises(ValueError, match="other settings"):
        run_app(plan_of(tmp_path / "other", M.PVI(), start, 3, tol=1e-8), federation(tmp_path, clients))


def test_two_runs_with_the_same_terms_do_not_meet(tmp_path, caplog):
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    plan = plan_of(tmp_path, M.PVI(), start, 3)
    run_app(plan, federation(tmp_path, clients), run_id=7)
    plan.folder.rename(tmp_path / "first")
    caplog.clear()
    run_app(plan, federation(tmp_path, clients), run_id=8)
    assert same_bits(load_server(plan.folder).state.q_g.natural, load_server(tmp_path / "first").state.q_g.natural)
    assert not [record for record in caplog.records if "site" in record.getMessage()]
