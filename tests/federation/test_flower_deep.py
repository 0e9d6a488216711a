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
    IVONPVI,
    MLP,
    AdamSteps,
    FedLapFunc,
    IVONSteps,
    NetworkData,
    NetworkTask,
    PFedMe,
    ResNet20,
    Rows,
    final_model,
    run,
)
from bayesadmm_np.torch.federated import packed as packed_statistics  # noqa: E402
from bayesadmm_np.torch.state import TENSORS  # noqa: E402
from bayesadmm_np.torch.team import Team  # noqa: E402
from oracles.keys import KEYS, lied, own_key  # noqa: E402
from oracles.loopback import SITES, LoopbackGrid, Node, quicken, run_app  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402

M = ba.methods
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.01)
ROWS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON),
    "from the server": (
        IVONADMM(0.7, 0.3),
        replace(IVON, hess_start="server", ess=12.0, schedule="linear", schedule_rounds=3),
    ),
    "BayesADMM": (M.BayesADMM(1.0, 0.5), IVON),
    "FedIvon": (M.FedIvon(), IVON),
    "BCM": (M.BCM(), IVON),
    "FedLapCov": (M.FedLapCov(0.5), ADAM),
    "FedLap": (M.FedLap(0.5), ADAM),
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


@pytest.mark.parametrize("name", ["IVON-ADMM", "FedLap"])
def test_float64_travels_as_it_is(name, tmp_path):
    row, solver = ROWS[name]
    clients, model = problem(dtype=torch.float64), network(torch.float64)
    result = here(row, clients, model, rounds=2, solver=solver)
    assert is_same(result, finished(tmp_path, row, clients, model, rounds=2, solver=solver))


@pytest.mark.parametrize(("name", "is_late"), [("IVON-ADMM", False), ("IVON-ADMM", True), ("FedAvg", True)])
def test_where_a_sites_own_model_is_does_not_count(name, is_late, tmp_path):
    """η_k at the start is of the server's parameters, also at a site that was away then."""
    row, solver = ROWS[name]

    def lose(node, number, call):
        return Error(code=3, reason="away") if is_late and (node.name, number) == ("b", 1) else call()

    def present(number, clients, rng):
        return np.arange(clients) != (1 if is_late and number == 1 else -1)

    settings = {"rounds": 3, "solver": solver}
    result = here(row, problem(), network(), participation=present, **settings)
    plan = plan_of(tmp_path, row, network(), 3, **settings)
    run_app(plan, federation(tmp_path, problem(), MLP((4, 5, 3)), lose))
    assert same_state(result, plan.load())


def test_default_solver_and_options_travel(tmp_path):
    result = here(IVONADMM(), problem(), network(), rounds=2)
    assert is_same(result, finished(tmp_path, IVONADMM(), problem(), network(), rounds=2))


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
    torch.manual_seed(1)
    model = ResNet20(n_classes=3, norm="batch")
    solver = AdamSteps(epochs=1, batch_size=4)
    result = here(M.FedAvg(), clients, model, rounds=2, solver=solver)
    server = finished(tmp_path, M.FedAvg(), clients, model, rounds=2, solver=solver)
    assert is_same(result, server)
    moved = dict(server.engine.model(server.state).named_buffers())
    assert any(not torch.equal(value, moved[name]) for name, value in model.named_buffers())


def test_dropout_masks_are_those_of_one_process(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    result = here(IVONADMM(0.7, 0.3), problem(), model, rounds=2, solver=IVON)
    assert is_same(result, finished(tmp_path, IVONADMM(0.7, 0.3), problem(), model, rounds=2, solver=IVON))


@pytest.mark.parametrize("name", ["IVON-ADMM", "FedAvg"])
def test_the_sites_of_a_round_are_those_of_one_process(name, tmp_path):
    row, solver = ROWS[name]
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


def test_a_client_without_a_finite_answer_is_left_out_as_in_one_process(tmp_path, caplog):
    clients, model = problem(), torch.nn.Linear(4, 3)
    clients[1] = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1]))
    torch.nn.init.constant_(model.weight, 5.0)  # 4 · 5 · 3e38 is beyond float32
    with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
        result = here(M.FedLap(0.5), clients, model, rounds=2, solver=ADAM)
    server = finished(tmp_path, M.FedLap(0.5), clients, model, rounds=2, solver=ADAM)
    assert is_same(result, server)
    assert server.state.history[0].dropped == (1,)
    assert any("site b: trained to what is no distribution" in line for line in lines(caplog))


def lines(caplog):
    return [record.getMessage() for record in caplog.records]


def test_where_no_client_is_finite_the_run_ends_with_the_status_of_one_process(tmp_path):
    broken, model = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1])), torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 5.0)
    result = here(M.FedLap(0.5), [broken, broken], model, rounds=3, solver=ADAM)
    server = finished(tmp_path, M.FedLap(0.5), [broken, broken], model, rounds=3, solver=ADAM)
    assert server.outcome.status is ba.Status.NOT_FINITE
    assert is_same(result, server)


def test_an_improper_server_ends_the_run_with_the_status_of_one_process(tmp_path):
    """Undamped, K clients can subtract up to K times the server's precision, and noisy estimates do."""
    solver = IVONSteps(epochs=2, batch_size=4, lr=0.5, hess_init=1e-6, beta2=0.5)
    clients, model = problem((8,) * 8), network()
    result = here(IVONPVI(1.0), clients, model, rounds=5, solver=solver)
    server = finished(tmp_path, IVONPVI(1.0), clients, model, rounds=5, solver=solver)
    assert server.outcome.status is ba.Status.NOT_A_DISTRIBUTION
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


def test_a_message_holds_one_or_two_numbers_a_parameter(tmp_path):
    sent = []

    def listen(node, number, call):
        reply = call()
        sent.append(Message.from_bytes(reply.content[VECTORS]["message"].data) if number in (1, 2) else None)
        return reply

    for i, (name, numbers) in enumerate({"IVON-ADMM": 2, "FedLap": 1}.items()):
        row, solver = ROWS[name]
        sent.clear()
        (tmp_path / str(i)).mkdir()
        server = finished(tmp_path / str(i), row, problem(), network(), listen, rounds=2, solver=solver)
        sizes = {sum(v.size for v in reply.arrays.values()) for reply in sent if reply is not None}
        assert sizes == {numbers * len(server.state.mean)}


# ----------------------------------------------------------------------------------------------------
# State: lost, damaged, restored, behind and ahead
# ----------------------------------------------------------------------------------------------------

DAMAGED = {
    "lost": lambda path, old: path.unlink(),
    "damaged": lambda path, old: path.write_bytes(path.read_bytes()[:-7]),
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


@pytest.mark.parametrize(
    ("name", "damage"), [*(("IVON-ADMM", damage) for damage in DAMAGED), ("FedDyn", "lost"), ("FedAvg", "lost")]
)
def test_a_site_without_its_state_takes_the_servers_copy_and_nothing_else_changes(name, damage, tmp_path, caplog):
    row, solver = ROWS[name]
    settings = {"rounds": 5, "solver": solver}
    result = here(row, problem(), network(), **settings)
    assert is_same(result, finished(tmp_path, row, problem(), network(), damaging(damage, {}), **settings))
    assert sum("site b: refused" in line for line in lines(caplog)) == 1
    assert sum("site b: took the server's copy of its dual" in line for line in lines(caplog)) == 1


def test_a_site_whose_first_message_is_the_final_one_needs_the_copy_too(tmp_path):
    """Else it would keep zeros around the mean of the end for its dual."""
    row, solver = ROWS["IVON-ADMM"]
    server = finished(tmp_path, row, problem(), network(), rounds=2, solver=solver)
    final, site = server.broadcast(), Site("a", NetworkData(problem()[0], network()))
    away = Message(final.kind, {**final.header, "counted": [0, 2, 2]}, final.arrays)  # as if it had never answered
    with pytest.raises(MessageError, match="a copy of the dual must come along, where a site begins"):
        site.step(away)
    after, reply = site.adopt(server.spec, server.copy_of("a").sealed(server.key)).step(final)
    assert reply is None
    assert all(np.array_equal(after.save().arrays[name], server.copy_of("a").arrays[name[8:]]) for name in COUNTED)


COUNTED = ("counted/linear", "counted/precision")


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


def test_changed_rows_are_refused_and_not_resynchronised(tmp_path, caplog):
    row, solver = ROWS["IVON-ADMM"]

    def fault(node, number, call):
        if node.name == "b" and number == 3:
            node.loss = Rows(node.loss.X + 1.0, node.loss.y)
        return call()

    server = finished(tmp_path, row, problem(), network(), fault, rounds=4, solver=solver)
    assert server.counted == (4, 2, 4)
    assert any("have changed since" in line for line in lines(caplog))


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


def test_a_server_restored_from_an_older_checkpoint_resynchronises_the_sites_that_are_ahead(tmp_path, caplog):
    row, solver = ROWS["IVON-ADMM"]
    plan, kept = plan_of(tmp_path, row, network(), 3, rounds=5, solver=solver), {}

    def keep(node, number, call):
        if number == 3:
            kept["state"] = (plan.folder / "state.npz").read_bytes()
        return call()

    run_app(plan, federation(tmp_path, problem(), network(), keep))
    expected = plan.load()
    (plan.folder / "state.npz").write_bytes(kept["state"])
    run_app(plan, federation(tmp_path, problem(), network()), run_id=8)
    assert same_state(expected, plan.load())
    assert sum("took the server's copy" in line for line in lines(caplog)) == 3


def test_a_finished_run_and_one_with_other_settings_are_not_gone_on_with(tmp_path):
    row, solver = ROWS["IVON-ADMM"]
    finished(tmp_path, row, problem(), network(), rounds=1, solver=solver)
    with pytest.raises(ValueError, match=r"run-folder .* has ended"):
        run_app(plan_of(tmp_path, row, network(), 3), federation(tmp_path, problem(), network()))
    folder = tmp_path / "other"
    folder.mkdir()
    plan = plan_of(folder, row, network(), 3, rounds=2, solver=solver)
    with pytest.raises(ZeroDivisionError):
        run_app(
            plan, federation(folder, problem(), network(), lambda node, number, call: call() if not number else 1 / 0)
        )
    # also a setting that is left to its default now
    for row_now, settings in ((row, {"rounds": 3, "solver": solver}), (row, {"rounds": 2}), (IVONADMM(), {})):
        with pytest.raises(ValueError, match="other settings"):
            run_app(plan_of(folder, row_now, network(), 3, **settings), federation(folder, problem(), network()))
    with pytest.raises(MessageError, match="model must be that of the run"):
        run_app(plan_of(folder, row, MLP((4, 6, 3)), 3), federation(folder, problem(), network()))


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


def emptied(reply, header):
    return lied(Message("reply", {**reply.header, **header}, {}), reply)


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
    "nothing solved": (lambda r: edited(r, {"solved": None}), "solved must be given"),
    "solved is a number": (lambda r: edited(r, {"solved": 1}), "Expected `bool | null`, got `int` - at `$.solved`"),
    "solved is a zero": (lambda r: emptied(r, {"solved": 0}), "Expected `bool | null`, got `int` - at `$.solved`"),
    "one value": (lambda r: edited(r, {"value": [1.0]}), "value must be 2 numbers"),
    "a value that is text": (
        lambda r: edited(r, {"value": ["1", 2.0]}),
        "Expected `float`, got `str` - at `$.value[0]`",
    ),
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


@pytest.mark.parametrize(
    ("position", "value", "complaint"),
    [
        (0, 1e300, r"statistics of 1.running_mean must be numbers of torch.float32, got 1e\+300"),
        (-1, 1e300, r"statistics of 1.num_batches_tracked must be numbers of torch.int64, got 1e\+300"),
        (-1, 0.5, r"statistics of 1.num_batches_tracked must be numbers of torch.int64, got 0.5"),
        (-1, -1.0, r"statistics of 1.num_batches_tracked must be >= 0, got -1"),
        (2, -0.25, r"statistics of 1.running_var must be >= 0, got -0.25"),
    ],
)
def test_statistics_that_the_model_cannot_hold_are_refused(position, value, complaint):
    """They would be infinite in the next broadcast, which no site takes, and in the checkpoint, which nobody reads."""
    server, reply = statistics_of(position, value)
    for take in (lambda: server.read([reply]), lambda: server.step([reply])):
        with pytest.raises(MessageError, match=complaint):
            take()
    server, reply = statistics_of(position, 3.0)
    assert packed_statistics(server.step([reply]).held.buffers)["statistics"][position] == 3.0


def test_a_mean_below_zero_is_none_of_these():
    server, reply = statistics_of(0, -0.25)
    assert packed_statistics(server.step([reply]).held.buffers)["statistics"][0] == -0.25


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
    row, solver = ROWS["FedLap"]

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
    for other in (
        MLP((4, 6, 3)),
        MLP((4, 5, 3)).double(),
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)),
    ):
        hellos = [Site("A", NetworkData(clients[0], model)).hello(), Site("B", NetworkData(clients[1], other)).hello()]
        with pytest.raises(MessageError, match="must be that of the server's model"):
            Coordinator.start(hellos, NetworkTask(IVONADMM(), model))
    with pytest.raises(MessageError, match="loss must be that of the server's model"):
        Coordinator.start(
            [Site("C", GLMData(ba.losses.LeastSquares([[1.0]], [1.0]))).hello()], NetworkTask(IVONADMM(), model)
        )
    twice = [Site("A", NetworkData(clients[0], model)).hello()] * 2
    with pytest.raises(MessageError, match="a name of its own"):
        Coordinator.start(twice, NetworkTask(IVONADMM(), model))
    with pytest.raises(ValueError, match="at least one message"):
        Coordinator.start([], NetworkTask(IVONADMM(), model))


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        (FedLapFunc(), {}, "shared inputs: FedLap-Func shares inputs of the clients, and runs in one process only"),
        (PFedMe(), {}, "personal models: a site sends what the server takes, and keeps a dual alone"),
        (ba.Accelerated(M.PVI(0.5)), {}, "acceleration: the loop of networks mixes no rounds"),
        (M.BregmanADMM(), {}, "BregmanADMM is a row of the core only"),
        (M.FedAvg(), {"solver": IVON}, "FedAvg needs solver=AdamSteps"),
        (IVONADMM(), {"temperature": 0.0}, "temperature must be > 0"),
        (IVONADMM(), {"prior_precision": -1.0}, "prior_precision must be > 0"),
        (IVONADMM(), {"rounds": -1}, "rounds must be at least 0"),
        (IVONADMM(), {"seed": 0.5}, "seed must be an integer"),
    ],
)
def test_wrong_arguments_are_named(row, settings, message):
    hello = Site("A", NetworkData(problem()[0], network())).hello()
    with pytest.raises(ValueError, match=message):
        Coordinator.start([hello], NetworkTask(row, network(), **settings))


MECHANISM = ba.GaussianMechanism(1.0, 2.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Site("../A", NetworkData(problem()[0], network())), "site must be a name"),
        (lambda: Site("A", NetworkData(problem()[0].X, network())), r"rows must be Rows\(X, y\)"),
        (lambda: Site("A", NetworkData(problem()[0], network()), MECHANISM, 3), "privacy: the loop of networks has no"),
        (lambda: Site("A", problem()[0]), r"data must be GLMData\(loss\) or NetworkData\(rows, model\)"),
        (lambda: Site("A", NetworkData(problem()[0], "mlp")), "model must be a torch.nn.Module"),
        (lambda: Site("A", NetworkData(problem()[0], network(), "nonsense")), "device='nonsense' cannot be used"),
        (lambda: Site("A", NetworkData(problem()[0], network())).save(), "has not answered a broadcast"),
        (lambda: Plan(NetworkTask(IVONADMM(), network()), "x", 2, least=3), "least must be at most"),
        (lambda: Plan(NetworkTask(IVONADMM(), network()), "x", 0), "sites must be at least 1"),
    ],
)
def test_wrong_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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


def test_more_rows_than_a_float_can_count_are_refused():
    site, server = begun()
    hello = site.hello()
    with pytest.raises(MessageError, match="rows must be an integer from 1 to 9007199254740992, got 1000"):
        Coordinator.start(
            [replace(hello, header={**hello.header, "rows": 10**400})], NetworkTask(IVONADMM(), network())
        )
    header = json.loads(json.dumps(dict(server.broadcast().header)))
    header["spec"] |= {"sites": ["A", "B"], "weights": [20, 10**400]}
    forged = replace(server.broadcast(), header=header)
    with pytest.raises(MessageError, match=r"Number out of range - at `\$.weights\[1\]`"):
        site.step(replace(forged, header={**header, "run": run_of(forged.header["spec"], forged.arrays)}))


def test_a_site_refuses_broadcasts_of_others_and_of_the_past():
    site, server = begun()
    first = server.broadcast()
    after, reply = site.step(first)
    same, again = after.step(first)
    assert (again.digest, same.save().digest) == (reply.digest, after.save().digest)
    later = server.step([reply])
    assert later.step([reply]) is later
    ahead, _ = after.step(later.broadcast())
    with pytest.raises(MessageError, match="round must be 2 or later"):
        ahead.step(first)
    with pytest.raises(MessageError, match=r"run must be .* which this site takes part in"):
        ahead.step(Coordinator.start([site.hello()], NetworkTask(IVONADMM(), network(), rounds=3)).broadcast())
    with pytest.raises(MessageError, match="counted must be a round that this site remembers"):
        site.step(later.broadcast())
    with pytest.raises(MessageError, match="sites must be names with 'B' among them"):
        Site("B", NetworkData(problem()[0], network())).step(first)
    with pytest.raises(MessageError, match="weights must be that of this site, 12"):
        Site("A", NetworkData(problem()[1], network())).step(first)
    with pytest.raises(MessageError, match="dim must be that of this site's model, 51"):
        Site("A", NetworkData(problem()[0], MLP((4, 6, 3)))).step(first)
    with pytest.raises(MessageError, match="precision must be a distribution's"):
        site.step(replace(first, arrays={**first.arrays, "precision": -first.arrays["precision"]}))
    for state, message in ((after, "kind must be 'server'"), (server, "file must be the state of site 'A'")):
        restore = (lambda m: Coordinator.restore(m, network())) if state is after else site.restore
        with pytest.raises(MessageError, match=message):
            restore(state.save())


def test_a_run_whose_checkpoint_could_not_be_read_does_not_begin(monkeypatch):
    monkeypatch.setattr("bayesadmm_np.federation.messages.LIMIT", 1000)
    with pytest.raises(ValueError, match=r"checkpoint of 1000 bytes with 1 sites \(4128 for"):
        begun()
