"""ServerApp and ClientApps in one process: the answer of `run` bit for bit, and what goes wrong costs a round.

Generalised linear models and networks: a `Model` has what differs. Of networks `run` goes over its clients one by one.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from flwr.app import Error  # noqa: E402

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.clients import VON  # noqa: E402
from bayesadmm_np.design.levels import TableError  # noqa: E402
from bayesadmm_np.federation import (  # noqa: E402
    GLMTable,
    GLMTask,
    Message,
    MessageError,
    Site,
    final_result,
    load_server,
)
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    final_model,
    run,
)
from bayesadmm_np.torch.state import TENSORS  # noqa: E402
from oracles.couriers import carry  # noqa: E402
from oracles.hospitals import tables_of, truth  # noqa: E402
from oracles.loopback import (  # noqa: E402
    at,
    federation,
    finished,
    lines,
    plan_of,
    quicken,
    run_app,
    spoiled,
)
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.problems import prior, same_bits, team  # noqa: E402
from oracles.rows_of_the_table import ROWS, families_of  # noqa: E402
from oracles.small_networks import with_statistics  # noqa: E402

M = ba.methods
SIZES = (5, 8, 6)
PVI, IVON_ADMM = M.PVI(0.5), IVONADMM(0.7, 0.3)
DELTA = 3.0
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.01)
FROM_SERVER = replace(IVON, hess_start="server", ess=12.0, schedule="cosine", schedule_rounds=2)
NETWORKS = {
    "IVON-ADMM": (IVON_ADMM, IVON),
    "IVON-PVI": (IVONPVI(0.3), IVON),
    "from the server": (IVON_ADMM, FROM_SERVER),
    "FedIvon": (M.FedIvon(), replace(IVON, schedule="linear", schedule_rounds=3)),
    "BCM": (M.BCM(), IVON),
    "FedLapCov": (M.FedLapCov(0.5), ADAM),
    "FedDyn": (M.FedDyn(1.0), ADAM),
    "FedAvg": (M.FedAvg(), ADAM),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch, one_thread):
    quicken(monkeypatch)


def objective_of(server):
    return [server.state.start_objective, *(record.objective for record in server.state.history)]


@dataclass(frozen=True)
class GLM:
    """A run of losses, and its options."""

    row: Any = PVI
    losses: Any = ()
    prior: Any = None
    options: Any = ()
    late = 5  # the broadcast that meets a damage, and that of which there is a copy
    early = 3

    @property
    def data(self):
        return list(self.losses) or team("logistic", sizes=SIZES)

    @property
    def task(self):
        return GLMTask(self.row, self.start, **self.settings)

    @property
    def start(self):
        return prior("full", 3) if self.prior is None else self.prior

    @property
    def settings(self):
        return {"rounds": 8, "tol": 1e-300, **dict(self.options)}

    def here(self, **more):
        return ba.run(self.row, self.data, self.start, raise_on_failure=False, **{**self.settings, **more})

    def state(self, result, server):
        """Whether the states are the same, bit for bit."""
        one, other = (result.posterior, result.sites), (server.state.q_g, server.state.sites)
        return same_bits(one[0].natural, other[0].natural) and all(map(same_bits, one[1], other[1]))

    def same(self, result, server):
        """Whether the runs are."""
        is_same = self.state(result, server) and result.status == server.outcome.status
        return is_same and np.array_equal(result.objective, objective_of(server), equal_nan=True)


@dataclass(frozen=True)
class Network:
    """A run of networks; `trained` is the sites' own model, where that is another one."""

    row: Any = IVON_ADMM
    clients: Any = ()
    model: Any = None
    options: Any = ()
    trained: Any = None
    late, early = 4, 3

    @property
    def rows(self):
        return list(self.clients) or problem()

    @property
    def data(self):
        return [NetworkData(rows, self.trained or self.start) for rows in self.rows]

    @property
    def start(self):
        return network() if self.model is None else self.model

    @property
    def settings(self):
        return {"rounds": 5, "solver": IVON, "seed": 4, **dict(self.options)}

    @property
    def task(self):
        return NetworkTask(self.row, self.start, DELTA, **self.settings)

    def here(self, **more):
        return run(self.row, self.rows, self.start, DELTA, batched=False, **{**self.settings, **more})

    def state(self, result, server):
        return all(torch.equal(getattr(result.state, name), getattr(server.state, name)) for name in TENSORS)

    def same(self, result, server):
        buffers = result.state.buffers
        records = [[(r.edges, r.present, r.dropped, r.alpha) for r in run.state.history] for run in (result, server)]
        return (
            self.state(result, server)
            and all(torch.equal(value, server.state.buffers[name]) for name, value in buffers.items())
            and np.array_equal(result.objective, objective_of(server), equal_nan=True)
            and records[0] == records[1]
            and result.status == server.outcome.status
            and result.message.startswith(server.outcome.message)  # what rows tell of the fit, a server cannot say
        )


def problem(dtype=torch.float32, weighted=False):
    """Clients of different size, none a multiple of the batch."""
    source, clients = torch.Generator().manual_seed(0), []
    for n in (20, 12, 7):
        X = torch.randn(n, 4, generator=source, dtype=dtype)
        weights = torch.randint(1, 4, (n,), generator=source).float() / 3.0 if weighted else None
        clients.append(Rows(X, (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long(), weights))
    return clients


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return MLP((4, 5, 3)).to(dtype)


BOTH = pytest.mark.parametrize("model", [GLM(), Network()], ids=["GLM", "network"])


def on_flower(model, folder, fault=None, **waits):
    """Run to the end, failed or not."""
    folder.mkdir(exist_ok=True)
    plan = plan_of(folder, model.task, len(model.data), **waits)
    return finished(plan, federation(folder, model.data, fault))


def without(k, numbers):
    """Participation of all but a site in some rounds."""
    return lambda number, clients, rng: np.arange(clients) != (k if number in numbers else -1)


# ----------------------------------------------------------------------------------------------------
# The same bits
# ----------------------------------------------------------------------------------------------------

COUNTS = [ba.losses.LinearInStatistics(ba.families.Natural(np.array([k, 1.0]), np.full(2, -k))) for k in (3.0, 8.0)]
SHORT = {"rounds": 5, "tol": 1e-4}
VON_STEPS = {"rounds": 4, "tol": 1e-8, "solver": VON(steps=20), "seed": 7, "warm_start": True}
# Flower carries the bytes of messages, which test_rounds.py compares for every row, family and loss. Messages of the
# rows here differ in what they hold: η_k too, weights of a mix, a slope and a curvature, no λ_k; and few numbers.
SAME = {
    "damped PVI": GLM(ROWS["damped PVI"], team("softmax", sizes=SIZES), prior("full", 6), SHORT),
    "BregmanADMM": GLM(ROWS["BregmanADMM"], prior=prior("diagonal", 3), options=SHORT),
    "accelerated PVI": GLM(ROWS["accelerated PVI"], options=SHORT),
    "Newton": GLM(ROWS["Newton"], team("poisson", sizes=SIZES), options=SHORT),
    "FedAvg": GLM(ROWS["FedAvg"], team("squares", sizes=SIZES), prior("isotropic", 3), SHORT),
    "Gamma": GLM(ROWS["damped PVI"], COUNTS, ba.families.Gamma([2.0, 0.1], [1.0, 0.3]), {"rounds": 100, "tol": 1e-6}),
    "options": GLM(prior=prior("diagonal", 3), options=VON_STEPS),
    "float64": Network(clients=problem(torch.float64), model=network(torch.float64), options={"rounds": 2}),
    "network": Network(options={"rounds": 3, "temperature": 0.7}),
}


@pytest.mark.parametrize("case", SAME)
def test_flower_and_one_process_agree_bit_for_bit(case, tmp_path):
    model = SAME[case]
    result, server = model.here(), on_flower(model, tmp_path)
    assert model.same(result, server)
    if case == "Gamma":
        assert server.outcome.certificate.pooled == result.certificate().pooled


@pytest.mark.parametrize(
    ("name", "weighted"), [*((name, name == "FedLapCov") for name in NETWORKS), ("IVON-ADMM", True)]
)
def test_networks_by_files_and_one_process_agree_bit_for_bit(name, weighted, tmp_path):
    """Every step is done twice, as if it had been interrupted, and every state is read from its file."""
    row, solver = NETWORKS[name]
    model = Network(row, problem(weighted=weighted), options={"rounds": 2, "solver": solver, "temperature": 0.7})

    def twice(act):
        act()
        return act()

    def sites():
        return [Site(name, data, rules=ALLOWED) for name, data in zip("abc", model.data, strict=True)]

    assert model.same(model.here(), carry(tmp_path, sites, model.task, twice, model=(model.start,)))


@BOTH
def test_the_comparison_can_fail(model, tmp_path):
    turned = {"losses": model.data[::-1]} if isinstance(model, GLM) else {"clients": model.rows[::-1]}
    assert not model.same(model.here(), on_flower(replace(model, **turned), tmp_path))


def of_tables(choices=None):
    start = lambda d: ba.families.FullGaussian(np.zeros(d), 0.5)  # noqa: E731
    return GLMTask(ba.Guarded(M.Newton()), start, tol=1e-8, rounds=30, choices=choices)


def test_tables_that_do_not_match_are_refused_as_elsewhere(tmp_path):
    tables = tables_of(truth())
    tables["Chur"] = tables["Chur"].assign(ward=tables["Chur"].ward.str.lower())
    data = [GLMTable(part, "died ~ age + ward", "logistic") for part in tables.values()]
    with pytest.raises(TableError) as refused:
        run_app(plan_of(tmp_path, of_tables()), federation(tmp_path, data, names=tables))
    assert (refused.value.site, refused.value.column) == ("Chur", "ward")
    assert not (tmp_path / "server" / "state.npz").exists()


# ----------------------------------------------------------------------------------------------------
# Some of the sites
# ----------------------------------------------------------------------------------------------------


@BOTH
def test_the_sites_of_a_round_are_those_of_one_process(model, tmp_path):
    result = model.here(participation=0.4, seed=3)
    server = on_flower(replace(model, options={"seed": 3}), tmp_path, participation=0.4)
    assert model.state(result, server)
    if isinstance(model, GLM):
        away = [[client.status.name == "ABSENT" for client in record.clients] for record in server.state.history]
        assert away == [[client.status.name == "ABSENT" for client in record.clients] for record in result.history]
        assert {sum(row) for row in away} == {2}
        return
    assert [record.present for record in server.state.history] == [record.present for record in result.history]
    assert {len(record.present) for record in result.history} == {1}
    # one process has all rows at hand; here a site that was not asked has not reported, until all are at the end
    assert np.isfinite(objective_of(server)).tolist() == [False] * 5 + [True]
    assert objective_of(server)[-1] == result.objective[-1]


def test_richer_sites_travel_with_participation_in_as_many_bytes_as_numbers(tmp_path):
    """Eight bytes a number; headers and the spec are within some kilobytes."""
    row, options = ba.Sketched(M.PVI(), ba.losses.Kronecker(3)), {"rounds": 6, "seed": 3}
    model = GLM(row, team("softmax", sizes=SIZES), prior("diagonal", 6), options)
    result, server = model.here(participation=0.7), on_flower(model, tmp_path, participation=0.7)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    assert result.history[0].floats_up == 2 * (12 + 12 + 4)
    assert result.history[0].floats_down == 2 * (12 + min(3 * (6 + 4), 15))
    told = server.broadcast()
    assert {name: value.size for name, value in told.arrays.items()} == {"natural": 12, "sketches": 15, "prior": 12}
    assert 8 * 39 < len(told.to_bytes()) < 8 * 39 + 8000


def test_a_run_with_few_sites_a_round_ends_with_the_certificate_of_all(tmp_path):
    server = on_flower(GLM(M.PVI(), options={"rounds": 2000, "tol": 1e-7}), tmp_path, participation=0.4)
    assert server.outcome.status.name == "CONVERGED"
    assert server.outcome.certificate.holds


@pytest.mark.parametrize("is_late", [False, True])
def test_where_a_sites_own_model_is_does_not_count(is_late, tmp_path):
    """η_k at the start is of the server's parameters, also at a site that was away then."""
    model = Network(options={"rounds": 3})
    result = model.here(participation=without(1, {1} if is_late else ()))
    lose = at("b", {1} if is_late else (), lambda node, call: Error(code=3, reason="away"))
    assert model.state(result, on_flower(replace(model, trained=MLP((4, 5, 3))), tmp_path, lose))


def test_running_statistics_travel(tmp_path):
    source = torch.Generator().manual_seed(0)
    clients = [
        Rows(torch.randn(n, 3, 8, 8, generator=source), torch.randint(0, 3, (n,), generator=source)) for n in (12, 4)
    ]
    start = with_statistics()
    model = Network(M.FedAvg(), clients, start, {"rounds": 2, "solver": AdamSteps(epochs=1, batch_size=4)})
    result, server = model.here(), on_flower(model, tmp_path)
    assert model.same(result, server)
    moved = dict(server.engine.model(server.state).named_buffers())
    assert any(not torch.equal(value, moved[name]) for name, value in start.named_buffers())


def test_clients_without_a_finite_answer_count_as_in_one_process(tmp_path, caplog):
    """One is left out; where all are, the run ends with the same status."""
    broken, start = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1])), torch.nn.Linear(4, 3)
    torch.nn.init.constant_(start.weight, 5.0)
    first, _, last = problem()
    model = Network(M.FedLap(0.5), [first, broken, last], start, {"rounds": 2, "solver": ADAM})
    with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
        result = model.here()
    server = on_flower(model, tmp_path / "one")
    assert model.same(result, server)
    assert server.state.history[0].dropped == (1,)
    assert lines(caplog, "site b: its training ended in no distribution")
    model = replace(model, clients=[broken, broken])
    server = on_flower(model, tmp_path)
    assert server.outcome.status is ba.Status.NOT_FINITE
    assert model.same(model.here(), server)


# ----------------------------------------------------------------------------------------------------
# How a run ends
# ----------------------------------------------------------------------------------------------------


def test_a_run_that_fails_raises_and_keeps_its_last_good_state(tmp_path):
    model = GLM(M.AMA(2.0), team("poisson", sizes=SIZES), prior("isotropic", 3), {"tol": 1e-6, "rounds": 2000})
    result = model.here()
    assert result.status.is_failure
    with pytest.raises(RuntimeError, match=result.status.value):
        run_app(plan_of(tmp_path, model.task), federation(tmp_path, model.data))
    assert model.same(result, load_server(tmp_path / "server"))


@BOTH
def test_sites_and_server_are_left_with_the_final_message(model, tmp_path):
    server = on_flower(replace(model, options={"rounds": 2}), tmp_path)
    finals = [Message.read(path) for path in (tmp_path / "server" / "final.npz", *tmp_path.glob("?/final-*.npz"))]
    assert len(finals) == 4
    if isinstance(model, GLM):
        assert all(same_bits(final_result(one).posterior.natural, server.state.q_g.natural) for one in finals)
        assert final_result(finals[0]).certificate is not None
        return
    vector = torch.nn.utils.parameters_to_vector
    for final in finals:
        assert torch.equal(vector(final_model(final, network()).parameters()), server.state.mean)
        assert np.array_equal(final.arrays["precision"], server.state.precision.double())
    with pytest.raises(MessageError, match="model must be the signature of this model"):
        final_model(finals[0], MLP((4, 6, 3)))


def test_a_finished_run_and_one_with_other_settings_are_not_gone_on_with(tmp_path):
    model = GLM(M.PVI(), team("squares", sizes=SIZES), options={"tol": 1e-6})
    on_flower(model, tmp_path)
    with pytest.raises(ValueError, match=r"run-folder .* has ended"):
        on_flower(model, tmp_path)
    with pytest.raises(ZeroDivisionError):
        on_flower(model, tmp_path / "other", lambda node, number, call: call() if number == 0 else 1 / 0)
    with pytest.raises(ValueError, match="other settings"):
        on_flower(replace(model, options={"tol": 1e-8}), tmp_path / "other")


def test_two_runs_with_the_same_terms_do_not_meet(tmp_path, caplog):
    model = GLM(M.PVI(), options={"rounds": 3})
    plan = plan_of(tmp_path, model.task)
    run_app(plan, federation(tmp_path, model.data), run_id=7)
    plan.folder.rename(tmp_path / "first")
    caplog.clear()
    run_app(plan, federation(tmp_path, model.data), run_id=8)
    assert same_bits(load_server(plan.folder).state.q_g.natural, load_server(tmp_path / "first").state.q_g.natural)
    assert not lines(caplog, "site")


# ----------------------------------------------------------------------------------------------------
# State: lost, damaged, restored, behind and ahead
# ----------------------------------------------------------------------------------------------------

DAMAGED = {
    "lost": lambda path, old: path.unlink(),
    "damaged": lambda path, old: path.write_bytes(path.read_bytes()[:-7]),
    "restored from a copy of round 2": lambda path, old: path.write_bytes(old),
}
RESYNCED = {
    "GLM": GLM(),
    "network": Network(),
    "BregmanADMM": GLM(M.BregmanADMM(1.0, 0.1)),
    "accelerated PVI": GLM(ba.Accelerated(M.PVI(0.5), 3)),
    "BLR": GLM(M.BLR(0.3), prior=prior(families_of(M.BLR(0.3))[0], 3)),
    "FedDyn": Network(M.FedDyn(1.0), options={"solver": ADAM}),
}


def damaging(model, damage):
    """What happens to the state of site b: message 0 is the hello."""
    old = {}

    def fault(node, number, call):
        if node.name == "b" and number == model.early:
            old["state"] = node.state.read_bytes()
        if node.name == "b" and number == model.late:
            DAMAGED[damage](node.state, old["state"])
        return call()

    return fault


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((name, damage) for name in ("GLM", "network") for damage in DAMAGED), *((n, "lost") for n in [*RESYNCED][2:])],
)
def test_a_site_without_its_state_takes_the_servers_copy_and_nothing_else_changes(name, damage, tmp_path, caplog):
    model = RESYNCED[name]
    assert model.same(model.here(), on_flower(model, tmp_path, damaging(model, damage)))
    assert len(lines(caplog, "site b: refused")) == 1
    assert len(lines(caplog, "site b: took the server's copy of its dual")) == 1


@BOTH
def test_a_site_that_began_again_from_zero_would_be_seen(model, tmp_path, monkeypatch):
    """The twin: where the copy is taken for a start, the sums are others."""
    honest = Site.adopt

    def from_zero(site, spec, copy):
        zeros = {name: np.zeros_like(values) for name, values in copy.arrays.items()}
        if isinstance(model, GLM):
            zeros["natural"] = spec.prior.natural.to_vector()
        return honest(site, spec, Message("copy", copy.header, zeros))

    monkeypatch.setattr(Site, "adopt", from_zero)
    assert not model.same(model.here(), on_flower(model, tmp_path, damaging(model, "lost")))


def test_changed_rows_are_refused_and_not_resynchronised(tmp_path, caplog):
    model = GLM(options={"rounds": 5})

    def change(node, call):
        node.data = team("logistic", seed=5, sizes=SIZES)[1]
        return call()

    server = on_flower(model, tmp_path, at("b", {3}, change))
    assert server.counted == (5, 2, 5)
    assert lines(caplog, "have changed since")


class Killed(BaseException):
    pass


@pytest.mark.parametrize("model", [GLM(ba.Accelerated(M.PVI(0.5), 3)), Network()], ids=["GLM", "network"])
def test_a_server_that_is_resumed_goes_on_bit_for_bit(model, tmp_path, caplog):
    def kill(node, call):
        raise Killed

    plan = plan_of(tmp_path, model.task)
    with pytest.raises(Killed):
        run_app(plan, federation(tmp_path, model.data, at("c", {4}, kill)))
    assert (plan.load().outcome, plan.load().number) == (None, 4)
    if isinstance(model, Network):  # it goes on from its checkpoint, wherever the model has got to since
        plan = plan_of(tmp_path, replace(model, model=MLP((4, 5, 3))).task)
    run_app(plan, federation(tmp_path, model.data), run_id=8)
    assert model.same(model.here(), plan.load())
    # a and b had answered that broadcast already
    assert lines(caplog, "again") == [f"site {name}: answered this broadcast again" for name in "ab"]


def test_a_server_restored_from_an_older_checkpoint_resynchronises_the_sites_that_are_ahead(tmp_path, caplog):
    model, kept = GLM(), {}
    plan = plan_of(tmp_path, model.task)

    def keep(node, number, call):
        if number == 3:
            kept["state"] = (plan.folder / "state.npz").read_bytes()
        return call()

    run_app(plan, federation(tmp_path, model.data, keep))
    expected = load_server(plan.folder)
    (plan.folder / "state.npz").write_bytes(kept["state"])
    run_app(plan, federation(tmp_path, model.data), run_id=8)
    assert same_bits(expected.state.q_g.natural, load_server(plan.folder).state.q_g.natural)
    assert len(lines(caplog, "took the server's copy")) == 3


# ----------------------------------------------------------------------------------------------------
# Answers that are lost or bad
# ----------------------------------------------------------------------------------------------------


def test_an_answer_that_does_not_arrive_is_dropped_on_both_sides(tmp_path, caplog):
    """As if the site had been away in that round."""
    model = Network(options={"rounds": 4})
    server = on_flower(model, tmp_path, at("b", {2}, lambda node, call: call() and Error(code=3, reason="lost")))
    assert model.state(model.here(participation=without(1, {2})), server)
    assert lines(caplog, "its last answer was not counted")
    # the objective of round 1 is reported in round 2
    assert np.isfinite(objective_of(server)).tolist() == [True, False, True, True, True]


def test_a_loss_that_is_not_finite_is_left_out_of_the_objective_only(tmp_path):
    model = Network(M.FedDyn(1.0), options={"rounds": 3, "solver": ADAM})
    lost = at("b", {2}, lambda node, call: spoiled(call(), {"value": [float("nan")]}))
    result, server = model.here(), on_flower(model, tmp_path, lost)
    assert model.state(result, server)
    assert (np.array(objective_of(server)) == result.objective).tolist() == [True, False, True, True]
    assert objective_of(server)[1] < result.objective[1]
