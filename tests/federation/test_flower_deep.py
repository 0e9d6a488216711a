"""Networks over Flower: the bits of `torch.run` with its clients one by one, and what goes wrong costs a round."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from flwr.app import ArrayRecord, Error  # noqa: E402

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMData, Message, MessageError, SigningKey, Site  # noqa: E402
from bayesadmm_np.federation.dispatch import Plan  # noqa: E402
from bayesadmm_np.federation.flower.apps import VECTORS  # noqa: E402
from bayesadmm_np.federation.messages import read_spec  # noqa: E402
from bayesadmm_np.federation.spec import run_of  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    MLP,
    AdamSteps,
    FedLapFunc,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    final_model,
    run,
)
from bayesadmm_np.torch.federated import packed as packed_statistics  # noqa: E402
from bayesadmm_np.torch.methods import PersonalMethod  # noqa: E402
from bayesadmm_np.torch.state import TENSORS  # noqa: E402
from bayesadmm_np.torch.team import Team  # noqa: E402
from oracles.keys import KEYS, lied, own_key  # noqa: E402
from oracles.loopback import SITES, LoopbackGrid, Node, quicken, run_app  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import with_statistics  # noqa: E402

M = ba.methods
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.01)
ROWS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON),
    "from the server": (
        IVONADMM(0.7, 0.3),
        replace(IVON, hess_start="server", ess=12.0, schedule="linear", schedule_rounds=3),
    ),
    "FedIvon": (M.FedIvon(), IVON),
    "BCM": (M.BCM(), IVON),
    "FedLapCov": (M.FedLapCov(0.5), ADAM),
    "FedDyn": (M.FedDyn(1.0), ADAM),
    "FedAvg": (M.FedAvg(), ADAM),
}
DELTA = 3.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch, one_thread):
    quicken(monkeypatch)


def problem(sizes=(20, 12, 7), dtype=torch.float32):
    """Clients of different size, none a multiple of the batch."""
    source = torch.Generator().manual_seed(0)
    clients = []
    for n in sizes:
        X = torch.randn(n, 4, generator=source, dtype=dtype)
        clients.append(Rows(X, (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()))
    return clients


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return MLP((4, 5, 3)).to(dtype)


class DeepNode(Node):
    """A site that trains a network."""

    def __init__(self, name, rows, folder, model):
        super().__init__(name, rows, folder)
        self.model = model

    def load(self, folder, spec):
        site = Site(self.name, NetworkData(self.loss, self.model), key=own_key(self.folder), rules=ALLOWED)
        return site, site.hello()


def plan_of(folder, row, model, n_sites, **settings):
    waits = {"deadline": 30.0, "patience": 30.0}
    waits |= {name: settings.pop(name) for name in ("least", "participation", "patience") if name in settings}
    return Plan(
        NetworkTask(row, model, **{"prior_precision": DELTA, "seed": 4, **settings}),
        folder / "server",
        n_sites,
        **waits,
    )


def federation(folder, clients, model, fault=None):
    named = zip(SITES, clients, strict=False)
    return LoopbackGrid([DeepNode(name, rows, folder, model) for name, rows in named], fault)


def finished(folder, row, clients, model, fault=None, **settings):
    """Run to the end, failed or not; return the server as its checkpoint has it."""
    plan = plan_of(folder, row, model, len(clients), **settings)
    try:
        run_app(plan, federation(folder, clients, model, fault))
    except RuntimeError:
        assert plan.load().outcome.status.is_failure
    return plan.load()


def here(row, clients, model, **settings):
    """The run in one process; batched computation would differ by rounding."""
    return run(row, clients, model, DELTA, **{"seed": 4, "batched": False, **settings})


def objective_of(server):
    return [server.state.start_objective, *(record.objective for record in server.state.history)]


def same_state(result, server):
    return all(torch.equal(getattr(result.state, name), getattr(server.state, name)) for name in TENSORS)


def is_same(result, server):
    buffers = result.state.buffers
    records = [[(r.edges, r.present, r.dropped, r.alpha) for r in run.state.history] for run in (result, server)]
    return (
        same_state(result, server)
        and all(torch.equal(value, server.state.buffers[name]) for name, value in buffers.items())
        and np.array_equal(result.objective, objective_of(server), equal_nan=True)
        and records[0] == records[1]
        and (result.status, result.message) == (server.outcome.status, server.outcome.message)
    )


# ----------------------------------------------------------------------------------------------------
# The same bits
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_flower_and_one_process_agree_bit_for_bit(name, tmp_path):
    row, solver = ROWS[name]
    settings = {"rounds": 3, "solver": solver, "temperature": 0.7}
    result = here(row, problem(), network(), **settings)
    assert result.rounds == 3
    assert is_same(result, finished(tmp_path, row, problem(), network(), **settings))


def test_float64_travels_as_it_is(tmp_path):
    row, solver = ROWS["IVON-ADMM"]
    clients, model = problem(dtype=torch.float64), network(torch.float64)
    result = here(row, clients, model, rounds=2, solver=solver)
    assert is_same(result, finished(tmp_path, row, clients, model, rounds=2, solver=solver))


@pytest.mark.parametrize("is_late", [False, True])
def test_where_a_sites_own_model_is_does_not_count(is_late, tmp_path):
    """η_k at the start is of the server's parameters, also at a site that was away then."""
    row, solver = ROWS["IVON-ADMM"]

    def lose(node, number, call):
        return Error(code=3, reason="away") if is_late and (node.name, number) == ("b", 1) else call()

    def present(number, clients, rng):
        return np.arange(clients) != (1 if is_late and number == 1 else -1)

    settings = {"rounds": 3, "solver": solver}
    result = here(row, problem(), network(), participation=present, **settings)
    plan = plan_of(tmp_path, row, network(), 3, **settings)
    run_app(plan, federation(tmp_path, problem(), MLP((4, 5, 3)), lose))
    assert same_state(result, plan.load())


def test_the_comparison_can_fail(tmp_path):
    row, solver = ROWS["IVON-ADMM"]
    result = here(row, problem(), network(), rounds=2, solver=solver)
    (tmp_path / "other").mkdir()
    assert not is_same(result, finished(tmp_path, row, problem()[::-1], network(), rounds=2, solver=solver))
    assert not is_same(result, finished(tmp_path / "other", row, problem(), network(), rounds=2, solver=solver, seed=5))


def test_running_statistics_travel(tmp_path):
    source = torch.Generator().manual_seed(0)
    clients = [
        Rows(torch.randn(n, 3, 8, 8, generator=source), torch.randint(0, 3, (n,), generator=source)) for n in (12, 4)
    ]
    model = with_statistics()
    solver = AdamSteps(epochs=1, batch_size=4)
    result = here(M.FedAvg(), clients, model, rounds=2, solver=solver)
    server = finished(tmp_path, M.FedAvg(), clients, model, rounds=2, solver=solver)
    assert is_same(result, server)
    moved = dict(server.engine.model(server.state).named_buffers())
    assert any(not torch.equal(value, moved[name]) for name, value in model.named_buffers())


def test_the_sites_of_a_round_are_those_of_one_process(tmp_path):
    row, solver = ROWS["IVON-ADMM"]
    settings = {"rounds": 4, "solver": solver, "participation": 0.4, "seed": 3}
    result = here(row, problem(), network(), **settings)
    server = finished(tmp_path, row, problem(), network(), **settings)
    assert same_state(result, server)
    assert [record.present for record in server.state.history] == [record.present for record in result.history]
    assert {len(record.present) for record in result.history} == {1}
    # one process has all rows at hand; here a site that was not asked has not reported, until all are at the end
    known = np.isfinite(objective_of(server))
    assert known.tolist() == [False] * 4 + [True]
    assert objective_of(server)[-1] == result.objective[-1]


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_clients_without_a_finite_answer_count_as_in_one_process(tmp_path, caplog):
    """One is left out; where all are, the run ends with the same status."""
    broken, model = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1])), torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 5.0)
    clients = problem()
    clients[1] = broken
    with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
        result = here(M.FedLap(0.5), clients, model, rounds=2, solver=ADAM)
    (tmp_path / "one").mkdir()
    server = finished(tmp_path / "one", M.FedLap(0.5), clients, model, rounds=2, solver=ADAM)
    assert is_same(result, server)
    assert server.state.history[0].dropped == (1,)
    assert any("site b: trained to what is no distribution" in line for line in lines(caplog))
    result = here(M.FedLap(0.5), [broken, broken], model, rounds=3, solver=ADAM)
    server = finished(tmp_path, M.FedLap(0.5), [broken, broken], model, rounds=3, solver=ADAM)
    assert server.outcome.status is ba.Status.NOT_FINITE
    assert is_same(result, server)


def test_sites_and_server_are_left_with_the_final_message(tmp_path):
    row, solver = ROWS["IVON-ADMM"]
    server = finished(tmp_path, row, problem(), network(), rounds=2, solver=solver)
    finals = [Message.read(path) for path in (tmp_path / "server" / "final.npz", *tmp_path.glob("?/final-*.npz"))]
    assert len(finals) == 4
    expected = torch.nn.utils.parameters_to_vector(server.engine.model(server.state).parameters())
    assert torch.equal(expected, server.state.mean)
    for final in finals:
        model = final_model(final, network())
        assert torch.equal(torch.nn.utils.parameters_to_vector(model.parameters()), expected)
        assert np.array_equal(final.arrays["precision"], server.state.precision.double())
    with pytest.raises(MessageError, match="model must be the signature of this model"):
        final_model(finals[0], MLP((4, 6, 3)))


# ----------------------------------------------------------------------------------------------------
# State: lost, restored and behind; test_flower_rounds.py has what GLMs share
# ----------------------------------------------------------------------------------------------------

DAMAGED = {
    "lost": lambda path, old: path.unlink(),
    "restored from a copy of round 2": lambda path, old: path.write_bytes(old),
}


def damaging(damage, old):
    def fault(node, number, call):  # message 0 is the hello; the broadcast of round 4 meets what happened
        if node.name == "b" and number == 3:
            old["state"] = node.state.read_bytes()
        if node.name == "b" and number == 4:
            DAMAGED[damage](node.state, old["state"])
        return call()

    return fault


@pytest.mark.parametrize(("name", "damage"), [*(("IVON-ADMM", damage) for damage in DAMAGED), ("FedDyn", "lost")])
def test_a_site_without_its_state_takes_the_servers_copy_and_nothing_else_changes(name, damage, tmp_path, caplog):
    row, solver = ROWS[name]
    settings = {"rounds": 5, "solver": solver}
    result = here(row, problem(), network(), **settings)
    assert is_same(result, finished(tmp_path, row, problem(), network(), damaging(damage, {}), **settings))
    assert sum("site b: refused" in line for line in lines(caplog)) == 1
    assert sum("site b: took the server's copy of its dual" in line for line in lines(caplog)) == 1


def test_a_site_that_began_again_from_zero_would_be_seen(tmp_path, monkeypatch):
    """The twin: where the copy is taken for a start, the sums are others."""
    honest = Site.adopt

    def from_zero(site, spec, copy):
        zeros = {name: np.zeros_like(values) for name, values in copy.arrays.items()}
        return honest(site, spec, Message("copy", copy.header, zeros))

    monkeypatch.setattr(Site, "adopt", from_zero)
    row, solver = ROWS["IVON-ADMM"]
    settings = {"rounds": 5, "solver": solver}
    result = here(row, problem(), network(), **settings)
    assert not is_same(result, finished(tmp_path, row, problem(), network(), damaging("lost", {}), **settings))


def test_an_answer_that_does_not_arrive_is_dropped_on_both_sides(tmp_path, caplog):
    """As if the site had been away in that round."""
    row, solver = ROWS["IVON-ADMM"]
    away = {"rounds": 4, "solver": solver}

    def lose(node, number, call):
        said = call()
        return Error(code=3, reason="lost") if (node.name, number) == ("b", 2) else said

    def without_b_in_round_2(number, clients, rng):
        return np.arange(clients) != (1 if number == 2 else -1)

    result = here(row, problem(), network(), participation=without_b_in_round_2, **away)
    server = finished(tmp_path, row, problem(), network(), lose, **away)
    assert same_state(result, server)
    assert any("its answer of round 2 was not counted" in line for line in lines(caplog))
    # the objective of round 1 is reported in round 2
    assert np.isfinite(objective_of(server)).tolist() == [True, False, True, True, True]


class Killed(BaseException):
    pass


def test_a_server_that_is_resumed_goes_on_bit_for_bit(tmp_path, caplog):
    row, solver = ROWS["IVON-ADMM"]
    settings = {"rounds": 5, "solver": solver}

    def kill(node, number, call):
        if node.name == "c" and number == 3:
            raise Killed
        return call()

    plan = plan_of(tmp_path, row, network(), 3, **settings)
    with pytest.raises(Killed):
        run_app(plan, federation(tmp_path, problem(), network(), kill))
    assert (plan.load().outcome, plan.load().number) == (None, 3)
    # a resumed run goes on from its checkpoint, wherever the model has got to since
    other = plan_of(tmp_path, row, MLP((4, 5, 3)), 3, **settings)
    run_app(other, federation(tmp_path, problem(), network()), run_id=8)
    assert is_same(here(row, problem(), network(), **settings), plan.load())
    again = [line for line in lines(caplog) if "again" in line]
    assert again == ["site a: answered broadcast 3 again", "site b: answered broadcast 3 again"]


# ----------------------------------------------------------------------------------------------------
# What is refused
# ----------------------------------------------------------------------------------------------------


def edited(reply, header=None, **arrays):
    """The same reply with another content; the digest is right, as an attacker's would be."""
    return lied(Message("reply", {**reply.header, **(header or {})}, {**reply.arrays, **arrays}), reply)


def carrying(said, change):
    """Flower's message with a changed reply in it."""
    old = said.content[VECTORS]["message"]
    data = change(Message.from_bytes(old.data)).to_bytes()
    array = type(old)(dtype="uint8", shape=(len(data),), stype=old.stype, data=data)
    said.content[VECTORS] = ArrayRecord({"message": array})
    return said


def spoilt(reply, name, value):
    values = reply.arrays[name].copy()
    values[1] = value
    return edited(reply, **{name: values})


BAD = {
    "NaN": (lambda r: spoilt(r, "linear", np.nan), "linear must be finite, got nan at position 1"),
    "beyond float32": (lambda r: spoilt(r, "linear", 1e300), "linear must be finite in torch.float32"),
    "wrong shape": (lambda r: edited(r, linear=r.arrays["linear"][:-1]), "linear must be a vector of 43 numbers"),
    "a negative precision": (lambda r: spoilt(r, "precision", -1.0), "precision must be a distribution's: positive"),
    "a precision of zero": (lambda r: spoilt(r, "precision", 1e-60), "precision must be a distribution's: positive"),
    "one more vector": (lambda r: edited(r, more=np.zeros(3)), "arrays must be exactly"),
    "nothing solved": (lambda r: edited(r, {"solved": None}), "solved must be"),
    "solved is a number": (lambda r: edited(r, {"solved": 1}), "$.solved"),
    "one value": (lambda r: edited(r, {"value": [1.0]}), "value must be"),
    "a value that is text": (lambda r: edited(r, {"value": ["1", 2.0]}), "$.value[0]"),
}


def test_bad_replies_are_refused(monkeypatch):
    """What is the engine's own; test_flower_faults.py has what all messages share."""
    key = SigningKey(bytes(32))
    monkeypatch.setitem(KEYS, key.identity, key)
    site = Site("A", NetworkData(problem()[0], network()), key=key, rules=ALLOWED)
    server = Coordinator.start([site.hello()], NetworkTask(IVONADMM(), network(), solver=IVON, rounds=2))
    reply = site.step(server.broadcast())[1]
    assert server.read([reply])
    wrong = []
    for kind, (spoil, complaint) in BAD.items():
        with pytest.raises(MessageError) as refused:
            server.read([spoil(reply)])
        wrong += [kind] * (complaint not in str(refused.value))
    assert wrong == []


def test_a_bad_message_costs_its_sender_the_round(tmp_path, caplog):
    row, solver = ROWS["IVON-ADMM"]

    def fault(node, number, call):
        return carrying(call(), BAD["NaN"][0]) if (node.name, number) == ("b", 3) else call()

    def without_b_in_round_3(number, clients, rng):
        return np.arange(clients) != (1 if number == 3 else -1)

    settings = {"rounds": 4, "solver": solver}
    server = finished(tmp_path, row, problem(), network(), fault, **settings)
    assert any("site b" in line and BAD["NaN"][1] in line for line in lines(caplog)), lines(caplog)
    result = here(row, problem(), network(), participation=without_b_in_round_3, **settings)
    assert same_state(result, server)
    assert server.counted == (4, 4, 4)


def statistics_of(position, value):
    """A site and a reply with another number among its running statistics; the digest is right."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))
    site = Site("A", NetworkData(problem()[0], model))
    server = Coordinator.start([site.hello()], NetworkTask(IVONADMM(), model, solver=IVON))
    reply = site.step(server.broadcast())[1]
    statistics = reply.arrays["statistics"].copy()
    statistics[position] = value
    return server, Message("reply", reply.header, {**reply.arrays, "statistics": statistics})


def test_statistics_that_the_model_cannot_hold_are_refused():
    """They would be infinite in the next broadcast, which no site takes, and in the checkpoint, which nobody reads."""
    for position, value, name in (
        (0, 1e300, "1.running_mean"),
        (-1, 1e300, "1.num_batches_tracked"),
        (-1, 0.5, "1.num_batches_tracked"),
        (-1, -1.0, "1.num_batches_tracked"),
        (2, -0.25, "1.running_var"),
    ):
        server, reply = statistics_of(position, value)
        for take in (server.read, server.step):
            with pytest.raises(MessageError, match=f"statistics of {name} must be"):
                take([reply])
    for position, value in ((0, -0.25), (2, 3.0)):  # a mean may be below zero
        server, reply = statistics_of(position, value)
        assert packed_statistics(server.step([reply]).held.buffers)["statistics"][position] == value


def test_a_server_that_overflows_ends_the_run_as_diverged():
    """Finite answers can make a mean that is not: no site would take it, and no reader of the checkpoint."""
    site, server = begun()
    site, reply = site.step(server.broadcast())
    arrays = {"linear": np.full(43, 3e38), "precision": np.full(43, 1e-3)}
    ended = server.step([Message("reply", reply.header, arrays)])
    assert ended.outcome.status.name == "DIVERGED"
    again = Coordinator.restore(Message.from_bytes(ended.save().to_bytes()), network())
    assert again.outcome == ended.outcome
    assert site.step(ended.broadcast())[1] is None


def test_a_site_holds_one_factor_however_many_sites_there_are(monkeypatch):
    """Its memory is not the server's, whose tensors have a row a site."""
    site = Site("A", NetworkData(problem()[0], network()))
    hellos = [site.hello(), *(Site(f"B{k}", NetworkData(problem()[1], network())).hello() for k in range(5))]
    server = Coordinator.start(hellos, NetworkTask(IVONADMM(), network(), solver=IVON, rounds=1))
    made = []
    start = Team.start

    def watched(team):
        made.append(team.n_clients)
        return start(team)

    monkeypatch.setattr(Team, "start", watched)
    after, reply = site.step(server.broadcast())
    copied = site.adopt(server.spec, server.copy_of("A"))
    assert site.restore(after.save()).save().digest == after.save().digest
    assert copied.step(server.broadcast())[1].digest == reply.digest
    assert set(made) == {1}
    Coordinator.restore(server.save(), network())  # the twin
    assert made[-1] == 6


def test_settings_that_are_no_plain_numbers_travel():
    site = Site("A", NetworkData(problem()[0], network()))
    settings = {"prior_precision": 2, "rounds": np.int64(1), "seed": np.int64(3), "solver": IVON}
    server = Coordinator.start([site.hello()], NetworkTask(IVONADMM(), network(), **settings))
    assert server.step([site.step(Message.from_bytes(server.broadcast().to_bytes()))[1]]).number == 2


def test_a_loss_that_is_not_finite_is_left_out_of_the_objective_only(tmp_path):
    row, solver = ROWS["FedDyn"]

    def fault(node, number, call):
        lost = {"value": [float("nan")]}
        return carrying(call(), lambda reply: edited(reply, lost)) if (node.name, number) == ("b", 2) else call()

    settings = {"rounds": 3, "solver": solver}
    result = here(row, problem(), network(), **settings)
    server = finished(tmp_path, row, problem(), network(), fault, **settings)
    assert same_state(result, server)
    assert (np.array(objective_of(server)) == result.objective).tolist() == [True, False, True, True]
    assert objective_of(server)[1] < result.objective[1]


def test_sites_with_another_model_or_without_one_do_not_begin_a_run():
    model, clients = network(), problem()

    def call(*sites):
        return lambda: Coordinator.start([site.hello() for site in sites], NetworkTask(IVONADMM(), model))

    site = Site("A", NetworkData(clients[0], model))
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    others = [Site("B", NetworkData(clients[1], one)) for one in (MLP((4, 5, 3)).double(), flat)]
    glm = Site("C", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    assert_refused([(call(site, other), "loss") for other in others] + [(call(glm), "loss"), (call(), "hellos")])


def test_wrong_arguments_are_named():
    rows, hello = problem()[0], Site("A", NetworkData(problem()[0], network())).hello()

    def task(row, **settings):
        return lambda: Coordinator.start([hello], NetworkTask(row, network(), **settings))

    assert_refused(
        [
            (task(FedLapFunc()), "shared"),
            (task(PersonalMethod("own", 1.0, 0.0)), "personal"),
            (task(ba.Accelerated(M.PVI(0.5))), "acceleration:"),
            (task(M.BregmanADMM()), "BregmanADMM"),
            (task(M.FedAvg(), solver=IVON), "FedAvg"),
            (task(IVONADMM(), temperature=0.0), "temperature"),
            (task(IVONADMM(), rounds=-1), "rounds"),
            (lambda: Site("A", NetworkData(rows.X, network())), "rows"),
            (lambda: Site("A", NetworkData(rows, network()), ba.GaussianMechanism(1.0, 2.0), 3), "privacy:"),
            (lambda: Site("A", rows), "data"),
            (lambda: Site("A", NetworkData(rows, "mlp")), "model"),
            (lambda: Site("A", NetworkData(rows, network(), "nonsense")), "device='nonsense'"),
        ]
    )


def begun(name="A"):
    site = Site(name, NetworkData(problem()[0], network()))
    return site, Coordinator.start([site.hello()], NetworkTask(IVONADMM(), network(), solver=IVON, rounds=2))


FORGED = {
    "method": {"type": "Popen"},
    "solver": {"type": "Popen"},
    "sites": ["B", "A"],
    "engine": "glm",
    "weights": [0.0],
    "network": 3,
    "dim": "43",
    "prior_precision": float("nan"),
    "temperature": None,
    "rounds": 1.5,
    "seed": -1,
    "likelihood": {"type": "Bernoulli"},  # the signature of the network is that of classes
}


def test_forged_terms_are_refused():
    site, server = begun()
    honest = server.broadcast()
    assert set(FORGED) == set(honest.header["spec"])
    for field, value in FORGED.items():
        header = json.loads(json.dumps(dict(honest.header)))
        assert read_spec(Message("broadcast", header, honest.arrays)).run == server.spec.run
        header["spec"][field] = value
        forged = Message("broadcast", header, honest.arrays)
        with pytest.raises(MessageError, match="run must be"):
            site.step(forged)
        with pytest.raises(MessageError) as refused:
            site.step(replace(forged, header={**header, "run": run_of(forged.header["spec"], forged.arrays)}))
        assert "run must be" not in str(refused.value), field


def test_a_site_refuses_broadcasts_of_others():
    """For what networks add; test_engines.py and test_rounds.py have what all engines share."""
    site, server = begun()
    first = server.broadcast()
    after, reply = site.step(first)
    same, again = after.step(first)
    assert (again.digest, same.save().digest) == (reply.digest, after.save().digest)
    negative = replace(first, arrays={**first.arrays, "precision": -first.arrays["precision"]})
    assert_refused(
        [
            (lambda: Site("B", NetworkData(problem()[0], network())).step(first), "sites"),
            (lambda: Site("A", NetworkData(problem()[1], network())).step(first), "weights"),
            (lambda: Site("A", NetworkData(problem()[0], MLP((4, 6, 3)))).step(first), "dim"),
            (lambda: site.step(negative), "precision"),
            (lambda: Coordinator.restore(server.save(), MLP((4, 6, 3))), "content"),
        ]
    )
