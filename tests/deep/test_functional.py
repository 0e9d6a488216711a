"""FedLap-Func: Eq. 17 of Swaroop et al. 2025 term by term, its fixed point, what it sends, and what may go wrong."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._archive import Archive, ArchiveError

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import AdamSteps, FedLapFunc, Rows, merge, run  # noqa: E402
from bayesadmm_np.torch.functional import gather_mean, pick  # noqa: E402
from bayesadmm_np.torch.round import answer, gathered  # noqa: E402
from bayesadmm_np.torch.team import assemble  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import DELTA, SIZES, func, network, problem, states_of, with_statistics  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
methods = ba.methods
cross_entropy = torch.nn.functional.cross_entropy
CPU = torch.device("cpu")


def flat(model):
    return torch.cat([p.reshape(-1) for p in model.parameters()])


def loaded(model, theta):
    torch.nn.utils.vector_to_parameters(theta.clone(), model.parameters())
    return model


# ----------------------------------------------------------------------------------------------------
# Eq. 17
# ----------------------------------------------------------------------------------------------------


def test_without_points_it_is_fedlap_bit_for_bit():
    lap, func_without = (states_of(row, 3)[-1] for row in (methods.FedLap(0.4), func(points_per_class=0)))
    for name in ("mean", "precision", "site_linear", "client_linear"):
        assert torch.equal(getattr(lap, name), getattr(func_without, name))
    assert [r.bytes_up for r in lap.history] == [r.bytes_up for r in func_without.history]
    assert func_without.memory is None
    with_points = states_of(func(), 3)[-1]
    assert (with_points.mean - lap.mean).abs().max() > 1e-3  # the twin


@pytest.mark.parametrize("wrong", ["", "no negative term", "own points only", "sites not scaled by delta"])
def test_the_client_solves_equation_17(wrong):
    """Full-batch Adam on the paper's objective with v_k in the paper's units; 12 steps keep float64's 1e-11."""
    clients, temperature, steps = problem(), 0.5, 12
    first, second = states_of(
        func(), 2, AdamSteps(epochs=steps, batch_size=64, lr=0.01), temperature=temperature, batched=False
    )
    memory, k = first.memory, 1
    v, w_g = first.site_linear[k] / DELTA, first.mean
    with torch.no_grad():
        at_server = loaded(network(), w_g)(memory.X).softmax(dim=1)
    model = loaded(network(), w_g)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    own = memory.owner == k
    for _ in range(steps):
        w = flat(model)
        scale = 1.0 if wrong == "sites not scaled by delta" else DELTA
        loss = cross_entropy(model(clients[k].X), clients[k].y, reduction="sum") / temperature
        loss = loss + scale * (v @ w) + 0.5 * DELTA * (w - w_g).square().sum()
        with_own = memory.weight * cross_entropy(model(memory.X), memory.soft, reduction="none")
        with_server = memory.weight * cross_entropy(model(memory.X), at_server, reduction="none")
        if wrong != "no negative term":
            loss = loss - with_own[own].sum() / temperature
        loss = loss + with_server[own if wrong == "own points only" else slice(None)].sum() / temperature
        optimiser.zero_grad()
        (temperature / len(clients[k]) * loss).backward()
        optimiser.step()
    gap = (second.client_linear[k] / DELTA - flat(model).detach()).abs().max()
    assert (gap < 1e-11) == (not wrong)


@pytest.mark.parametrize("wrong", ["", "points all alike", "soft labels of the server", "from zero"])
def test_the_server_solves_equation_17(wrong):
    """By Adam from the last mean, with the soft labels of this round; 40 steps keep float64's 1e-11."""
    temperature = 0.5
    first, second = states_of(func(), 2, temperature=temperature)
    memory = second.memory
    start = torch.zeros_like(first.mean) if wrong == "from zero" else first.mean
    weight = torch.full_like(memory.weight, 0.3) if wrong == "points all alike" else memory.weight
    soft = memory.soft
    if wrong == "soft labels of the server":
        soft = loaded(network(), first.mean)(memory.X).softmax(dim=1).detach()
    model = loaded(network(), start)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    v = second.site_linear / DELTA
    for _ in range(40):
        w = flat(model)
        function = (weight * cross_entropy(model(memory.X), soft, reduction="none")).sum() / temperature
        optimiser.zero_grad()
        (function - DELTA * (v.sum(dim=0) @ w) + 0.5 * DELTA * w.square().sum()).backward()
        optimiser.step()
    gap = (second.mean - flat(model).detach()).abs().max()
    assert (gap < 1e-11) == (not wrong)


# ----------------------------------------------------------------------------------------------------
# The fixed point
# ----------------------------------------------------------------------------------------------------


def linear_model():
    model = torch.nn.Linear(4, 3, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    return model


def maximum_a_posteriori(clients):
    """Newton's method on the pooled loss of the linear model, to rounding, and the clients' gradients there."""

    def loss(theta, rows):
        return cross_entropy(rows.X @ theta.view(3, 4).T, rows.y, reduction="sum")

    def pooled(theta):
        return loss(theta, merge(clients)) + 0.5 * DELTA * theta.square().sum()

    gradient = torch.func.grad(pooled)
    theta = torch.zeros(12, dtype=torch.float64)
    for _ in range(20):
        theta = theta - torch.linalg.solve(torch.func.jacrev(gradient)(theta), gradient(theta))
    assert gradient(theta).abs().max() < 1e-12
    return theta, torch.stack([torch.func.grad(loss)(theta, rows) for rows in clients])


def test_the_pooled_optimum_is_a_fixed_point():
    """With m_k = m_g = θ* and v_k = −∇ℓ_k(θ*) no term has a gradient: a round changes nothing.

    A step of Adam is at most some lr = 1e-4. Where the gradient is rounding the 50 steps of a round hover within a few
    lr; where it is not they add up to 5e-3, as with labels that are not predictions at θ* (the twin).
    """
    clients = problem()
    solver = AdamSteps(epochs=50, batch_size=64, lr=1e-4)
    team = assemble(func(server_lr=1e-4, server_steps=50), clients, linear_model(), DELTA, 1.0, solver, True, CPU)
    best, gradients = maximum_a_posteriori(clients)
    losses = [ba.losses.Softmax(rows.X.numpy(), rows.y.numpy(), n_classes=3) for rows in clients]
    prior = ba.families.FixedPrecisionGaussian(np.zeros(12), DELTA)
    core = ba.solve_pooled(losses, prior, expectation=ba.losses.Delta(1)).posterior.mean
    assert np.abs(best.numpy() - core).max() < 1e-6  # the core's tolerance is 1e-8 in its own metric

    def moves(state):
        replies = answer(team, state.broadcast, state.duals(range(4)), range(4), 1, 0)
        after = gathered(team, state, replies)
        own = replies.linear / DELTA
        return after, float((after.mean - best).abs().max()), (own - best).abs().amax(dim=1)

    at_best = {"mean": best, "site_linear": -gradients}
    first, server, own = moves(replace(team.start(), **at_best))  # without points, with them from the next round on
    assert len(first.memory.owner) == 3 + 3 + 2 + 2
    assert max(server, float(own.max())) < 5e-4
    predicted = replace(first.memory, soft=(first.memory.X @ best.view(3, 4).T).softmax(dim=1))
    _, server, own = moves(replace(first, **at_best, memory=predicted))
    assert max(server, float(own.max())) < 5e-4
    hard = replace(predicted, soft=predicted.soft.round())
    _, _, own = moves(replace(first, **at_best, memory=hard))
    assert float(own.min()) > 2e-3
    sites = -gradients.sum(dim=0)
    gathers = [
        gather_mean(team.method, team.network, memory, best, sites, DELTA, 1.0, {}) for memory in (predicted, hard)
    ]
    assert [float((mean - best).abs().max()) > 2e-3 for mean in gathers] == [False, True]


# ----------------------------------------------------------------------------------------------------
# Which points, and what is sent
# ----------------------------------------------------------------------------------------------------


def test_points_are_of_the_classes_that_are_there():
    y = torch.tensor([0] * 7 + [2] * 2 + [5])
    rows = Rows(torch.arange(10.0, dtype=torch.float64)[:, None], y)
    index, count = pick(rows, 3, seed=0, client=1)
    assert sorted(y[index].tolist()) == [0, 0, 0, 2, 2, 5]
    assert len(set(index.tolist())) == 6
    # N_{k,c}/M_{k,c}: together the points stand for all rows
    assert {(int(y[i]), float(n)) for i, n in zip(index, count, strict=True)} == {(0, 7 / 3), (2, 1.0), (5, 1.0)}
    assert float(count.sum()) == pytest.approx(len(rows))
    again, other = pick(rows, 3, seed=0, client=1)[0], pick(rows, 3, seed=0, client=2)[0]
    assert torch.equal(index, again)
    assert not torch.equal(index, other)
    # the order of the points must not tell their labels
    orders = {tuple(y[pick(rows, 1, seed=s, client=0)[0]].tolist()) for s in range(20)}
    assert len(orders) > 3


def test_weights_are_those_of_appendix_e():
    memory = states_of(func(tau=0.3), 1)[-1].memory
    for k, n in enumerate(SIZES):
        assert float(memory.weight[memory.owner == k].sum()) == pytest.approx(0.3 * n)
    assert memory.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]


def test_bytes_are_those_of_what_is_sent():
    """P numbers each way; inputs and τ_i (5 numbers a point) once up, and once down to three others; 3 labels up."""
    history = states_of(func(), 3)[-1].history
    parameters, points = 4 * 5 + 5 + 5 * 3 + 3, 10
    assert [r.bytes_up for r in history] == [
        8 * n for n in (4 * parameters + points * (5 + 3),) + 2 * (4 * parameters + points * 3,)
    ]
    down = 4 * parameters
    assert [r.bytes_down for r in history] == [8 * n for n in (down, down + 3 * points * 5, down)]


def test_absent_clients_keep_their_soft_labels_and_get_the_points_later():
    """Clients 1 and 3 are there in odd rounds, 0 and 2 in even ones."""
    first, second, third = states_of(func(), 3, participation=lambda n, K, rng: np.arange(K) % 2 == n % 2)
    assert set(first.memory.owner.tolist()) == {1, 3}
    assert second.memory.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    assert second.memory.joined.tolist() == [2, 2, 2, 1, 1, 1, 2, 2, 1, 1]
    of_first = second.memory.of(second.memory.owned_by([1, 3]))
    assert torch.equal(of_first.soft, first.memory.soft)
    assert torch.equal(third.memory.X, second.memory.X)
    moved = (third.memory.soft != second.memory.soft).any(dim=1)
    assert torch.equal(moved, third.memory.owned_by([1, 3]))
    P, size = 43, 5  # numbers of a point and its τ_i
    # round 2: the 5 points of clients 1 and 3 to both; round 3: to 1 those of 0, 2 and 3, to 3 those of 0, 1 and 2
    numbers = [2 * P, 2 * P + size * 2 * 5, 2 * P + size * (7 + 8)]
    assert [record.bytes_down for record in third.history] == [8 * n for n in numbers]


def test_a_client_without_a_finite_answer_is_left_out_and_sends_no_points():
    clients = problem(dtype=torch.float32)
    broken = Rows(torch.full((5, 4), 3e38), torch.tensor([0, 1, 2, 0, 1]))
    model = torch.nn.Linear(4, 3)
    torch.nn.init.constant_(model.weight, 5.0)  # 4 · 5 · 3e38 is beyond float32
    for batched in (True, False):
        with pytest.warns(UserWarning, match=r"clients \[1\] gave no finite answer"):
            (state,) = states_of(func(), 1, clients=[clients[0], broken, clients[2]], model=model, batched=batched)
        assert set(state.memory.owner.tolist()) == {0, 2}
        assert bool(torch.isfinite(state.mean).all())
        assert state.history[0].dropped == (1,)
        assert torch.equal(state.site_linear[1], run(func(), [clients[0]] * 3, model, DELTA, 0).state.site_linear[1])
        assert state.history[0].bytes_up == 4 * (2 * len(state.mean) + 5 * (5 + 3))


# ----------------------------------------------------------------------------------------------------
# The loop around it
# ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_other_points_is_refused(tmp_path):
    file, options = tmp_path / "state.npz", {"participation": 0.5}
    states_of(func(), 2, checkpoint=file, **options)
    with pytest.raises(ValueError, match="of another run: its method"):
        states_of(func(tau=0.2), 5, resume=file, **options)
    archive = Archive.read(file)
    for damage, message in (("X", "memory must be as many inputs as labels"), ("", "memory/soft must be an array")):
        wrong = {
            k: v[:-1] if k == f"memory/{damage}" else v
            for k, v in archive.arrays.items()
            if damage or k != "memory/soft"
        }
        Archive(archive.kind, archive.header, wrong).write(file)
        with pytest.raises(ArchiveError, match=message):
            states_of(func(), 5, resume=file, **options)


def test_predictions_are_those_of_evaluation_mode():
    """Batch normalisation at a single client: the server's statistics are its own, and dropout would be noise."""
    source = torch.Generator().manual_seed(0)
    rows = Rows(torch.randn(12, 3, 8, 8, generator=source), torch.randint(0, 3, (12,), generator=source))
    model = with_statistics()
    result = run(func(server_steps=2), [rows], model, rounds=2, solver=AdamSteps(epochs=1, batch_size=6), batched=False)
    state = result.state
    trained = result.model().eval()
    loaded(trained, state.client_linear[0] / state.precision)
    with torch.no_grad():
        expected = trained(state.memory.X).softmax(dim=1)
        # float32, after a quotient with δ = 1
        assert (expected - state.memory.soft).abs().max() < 1e-5
        assert (trained.train()(state.memory.X).softmax(dim=1) - state.memory.soft).abs().max() > 1e-3


def test_wrong_settings_are_named():
    wrong = {"gamma": 1.5, "tau": 0.0, "points_per_class": -1, "server_steps": 0, "server_lr": -0.1}
    loss, prior = ba.losses.Logistic(np.eye(2), [0, 1]), ba.families.FixedPrecisionGaussian(np.zeros(2), 1.0)
    in_the_core = (lambda: ba.run(FedLapFunc(), [loss], prior), "FedLap-Func")
    assert_refused([*((partial(FedLapFunc, **{name: value}), name) for name, value in wrong.items()), in_the_core])
