"""A round costs what the clients present cost: the objective, the state, and the passes over rows."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from bayesadmm_np import Status, methods  # noqa: E402
from bayesadmm_np.federation import Site  # noqa: E402
from bayesadmm_np.splitting.method import gather_weights  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    FedLapFunc,
    FedLaplace,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    run,
)
from bayesadmm_np.torch.certificate import objective  # noqa: E402
from bayesadmm_np.torch.curvature import diagonal_ggn  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from bayesadmm_np.torch.round import ended  # noqa: E402
from bayesadmm_np.torch.steps import room_of  # noqa: E402
from oracles.couriers import started, until  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402

SIZES = (20, 10, 30, 15, 25, 20)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.02)
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
METHODS = {
    "FedAvg": (methods.FedAvg(), ADAM),
    "FedProx": (methods.FedProx(0.1), ADAM),
    "FedIvon": (methods.FedIvon(), IVON),
    "FedIvon from the prior": (methods.FedIvon("start"), replace(IVON, hess_start="server")),
    "FedLaplace": (FedLaplace(), ADAM),
    "FedAvg over all": (replace(methods.FedAvg(), mean_over="all"), ADAM),
    "FedDyn": (methods.FedDyn(0.1), ADAM),
    "FedLap": (methods.FedLap(0.2), ADAM),
    "FedLapCov": (methods.FedLapCov(0.2), ADAM),
    "FedLap-Func": (FedLapFunc(0.3, tau=0.1, server_steps=5), ADAM),
    "IVON-ADMM": (IVONADMM(1.0, 0.1), IVON),
    "IVON-PVI": (IVONPVI(0.2), IVON),
}
WITHOUT_DUAL = ("FedAvg", "FedProx", "FedIvon", "FedIvon from the prior", "FedLaplace")


@dataclass(frozen=True, eq=False)
class Counted(Rows):
    """Rows that count the passes over all of them: objective, curvature and certificate make passes."""

    def passes(self, size):
        PASSES.append(len(self))
        return super().passes(size)


PASSES = []


def clients(sizes=SIZES):
    source = torch.Generator().manual_seed(0)
    X = torch.randn(sum(sizes), 4, generator=source, dtype=torch.float64)
    y = (X[:, 0] + X[:, 1] > 0).long() + (X[:, 2] > 0.5).long()
    return [Counted(*rows) for rows in zip(X.split(list(sizes)), y.split(list(sizes)), strict=True)]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()


def turns(number, n_clients, rng):
    return np.arange(n_clients) % 3 == number % 3


def of(name, rounds=5, **options):
    PASSES.clear()
    method, solver = METHODS[name]
    method = options.pop("method", method)
    options = {"participation": turns, "solver": solver, **options}
    return run(method, options.pop("clients", None) or clients(), network(), 1.0, rounds, **options)


def measured(result):
    return np.isfinite(result.objective).tolist()


# ----------------------------------------------------------------------------------------------------
# The objective
# ----------------------------------------------------------------------------------------------------


def test_the_objective_is_evaluated_where_it_was_asked_for_and_nothing_else_changes():
    """Two of six clients take part in a round: by default each third round, and the last."""
    whole = of("FedIvon", objective_every=1)
    assert all(measured(whole))
    expected = {
        None: [True, False, False, True, False, True],
        0: [False] * 6,
        2: [True, False, True, False, True, True],
        4: [True, False, False, False, True, True],
    }
    for every, pattern in expected.items():
        found = of("FedIvon", objective_every=every)
        assert measured(found) == pattern
        # an antithetic pair over all clients at each of these, and the mean at the end
        assert len(PASSES) == len(SIZES) * (2 * sum(pattern) + any(pattern))
        assert found.objective[pattern].tolist() == whole.objective[pattern].tolist()
        assert torch.equal(found.mean, whole.mean)
        assert torch.equal(found.precision, whole.precision)
        assert [np.isfinite(record.edges.broadcast) for record in found.history] == pattern[1:]
    assert all(measured(of("FedIvon", participation=1.0)))
    assert sum(measured(of("FedIvon", participation=0.5, rounds=10))) == 1 + 5


@pytest.mark.parametrize("every", [-1, 1.5, True])
def test_a_wrong_number_of_rounds_is_refused(every):
    with pytest.raises(ValueError, match="objective_every"):
        of("FedAvg", objective_every=every)


def test_divergence_is_noticed_at_the_next_objective():
    """Each step multiplies the parameters by more than 10: no objective of a later round is below the bound."""
    rough = AdamSteps(epochs=2, batch_size=8, lr=1e6)
    ends = {every: of("FedAvg", 8, solver=rough, objective_every=every) for every in (1, 3, 0)}
    assert {every: result.status.name for every, result in ends.items()} == {
        1: "DIVERGED",
        3: "DIVERGED",
        0: "ROUND_LIMIT",
    }
    assert ends[1].failure.round == 1
    assert (ends[3].failure.round, ends[3].rounds) == (3, 2)  # the last state before the objective
    assert ends[1].rounds == 0
    assert torch.isfinite(ends[1].mean).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(name, tmp_path):
    """Records of an interrupted run's last round have an objective; no other record depends on the interruption."""
    file = tmp_path / "state.npz"
    scored = {"evaluate": clients()[0], "ensemble": 3}
    whole = of(name, 6, **scored)
    of(name, 3, checkpoint=file, **scored)
    resumed = of(name, 6, resume=file, **scored)
    found, expected = ({**vars(one.state), **vars(one.state.memory or object)} for one in (resumed, whole))
    tensors = {field: value for field, value in expected.items() if isinstance(value, torch.Tensor)}
    assert len(tensors) == (11 if name == "FedLap-Func" else 6)
    assert all(torch.equal(found[field], value) for field, value in tensors.items())
    # round 3, the last of the interrupted run, is due in both
    records = [[str(replace(record, seconds=0.0)) for record in one.history] for one in (whole, resumed)]
    assert records[0] == records[1]
    assert str(resumed.certificate(3)) == str(whole.certificate(3))


# ----------------------------------------------------------------------------------------------------
# The state
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_server_mixes_the_answers_of_all_clients_by_the_weights_of_eq_54(name):
    """The formula on stacks of all K clients, kept here by hand; sums of six float64 numbers round at most 1e-14.

    The twin keeps the weights of a round with everybody, and is far away wherever absent clients do not count.
    """
    if name == "FedLap-Func":
        pytest.skip("the server solves a problem of its own")
    method, _ = METHODS[name]
    shares = [size / sum(SIZES) for size in SIZES]
    stacks, states = {}, []
    of(name, callback=lambda record, state: states.append(state))
    start = of(name, 0).state
    learned = len(start.precision) > 1
    prior_weight = 1.0
    for field, kind in (("linear", "site_linear"), ("precision", "site_precision")):
        rows = getattr(start, f"client_{field}")
        stacks[field] = (rows.expand(len(SIZES), -1) if learned or field == "linear" else rows).clone(), kind
    for number, state in enumerate(states, 1):
        present = turns(number, len(SIZES), None)
        weights = gather_weights(method, shares, prior_weight=prior_weight, present=present.tolist())
        everybody = gather_weights(method, shares, prior_weight=prior_weight)
        here = np.flatnonzero(present).tolist()
        assert state.answered == tuple(here)
        mixed, twin = {}, {}
        for field in ("linear", "precision") if learned else ("linear",):
            stack, kind = stacks[field]
            rows = getattr(state, f"client_{field}")
            stack[here] = rows if name in WITHOUT_DUAL else rows[here]
            sites = getattr(state, kind).sum(dim=0)
            prior = weights.prior * (0.0 if field == "linear" else 1.0)
            for found, by in ((mixed, weights), (twin, everybody)):
                own = torch.tensor(by.naturals, dtype=torch.float64)
                found[field] = own @ stack + by.sites * sites + prior
        server = mixed["precision"] if learned else state.precision
        assert (mixed["linear"] / server - state.mean).abs().max() < 1e-14 * (1 + state.mean.abs().max())
        assert (state.precision / server - 1).abs().max() < 1e-14
        if method.mean_over == "present":
            assert (twin["linear"] / server - state.mean).abs().max() > 1e-3
    expected = len(SIZES) if name not in WITHOUT_DUAL else 2
    assert len(state.client_linear) == expected


def test_a_method_without_duals_keeps_no_row_of_an_absent_client():
    """Five hundred clients, five of them present; with duals there are 500 rows."""
    many = clients((4,) * 500)
    names = ("site_linear", "site_precision", "client_linear", "client_precision")
    rows = {
        name: sum(
            getattr(of(name, 2, clients=many, participation=0.01, objective_every=0).state, field).numel()
            for field in names
        )
        for name in ("FedIvon", "FedAvg", "IVON-ADMM")
    }
    parameters = 4 * 6 + 6 + 6 * 3 + 3
    assert rows["FedIvon"] == 2 * 5 * parameters + 2
    assert rows["FedAvg"] == 5 * parameters + 3
    assert rows["IVON-ADMM"] == 4 * 500 * parameters


def test_the_certificate_knows_which_answers_are_kept():
    """Without a dual the edge of natural gradients is known after a round with everybody, and only then."""
    always = lambda number, K, rng: np.ones(K, dtype=bool)  # noqa: E731
    last = lambda number, K, rng: np.ones(K, dtype=bool) if number == 3 else turns(number, K, rng)  # noqa: E731
    edges = {
        (name, when): of(name, 3, participation=who).certificate(3).edges.natural_gradient
        for name in ("FedAvg", "FedDyn")
        for when, who in (("away", turns), ("always", always), ("last", last))
    }
    assert edges["FedAvg", "away"] == np.inf
    assert all(np.isfinite(edge) for key, edge in edges.items() if key != ("FedAvg", "away"))


# ----------------------------------------------------------------------------------------------------
# A run whose objective has risen
# ----------------------------------------------------------------------------------------------------


def by_messages(method, solver, rounds):
    """The run by messages between a server and sites."""
    task = NetworkTask(method, network(), 1.0, solver=solver, rounds=rounds)
    sites = [Site(f"s{k}", NetworkData(rows, network()), rules=ALLOWED) for k, rows in enumerate(clients())]
    return until(started(sites, task), sites)[0].outcome


@pytest.mark.parametrize(
    ("name", "method", "status"),
    [
        ("FedLap", methods.FedLap(1.0), "RISEN"),
        ("FedLap", methods.FedLap(0.1), "ROUND_LIMIT"),
        ("FedLapCov", methods.FedLapCov(1.0), "RISEN"),
        ("FedLapCov", methods.FedLapCov(0.1), "ROUND_LIMIT"),
    ],
)
def test_a_run_whose_objective_has_risen_says_so_with_a_cure(name, method, status):
    """Without damping every dual takes the whole step for six clients: the server goes too far, and back."""
    rounds, solver = 8, AdamSteps(epochs=20, batch_size=8, lr=0.05)
    result = of(name, rounds, method=method, solver=solver, participation=1.0)
    start, last = result.objective[0], result.objective[-1]
    assert result.status.name == status
    if status == "RISEN":
        assert last > 1.5 * start  # far from the margin
        assert "gamma" in result.message
        assert "temperature" not in result.message
    else:
        assert last < 0.9 * start
    assert not result.status.is_failure
    outcome = by_messages(method, solver, rounds)
    if name == "FedLap":  # a server has no rows to look again at an objective that was sampled
        assert (outcome.status, outcome.message) == (result.status, result.message)
    else:
        assert outcome.status is Status.ROUND_LIMIT


def test_a_precision_that_the_rows_do_not_pay_for_is_the_cause_that_the_message_names():
    """A Hessian estimate that stays at h₀ = 100 costs more KL than 120 rows gain, whatever γ is.

    The other cause is `FedLapCov(1.0)` above: its objective is above its start without this KL, too.
    """
    solver = IVONSteps(epochs=2, batch_size=8, lr=0.01, hess_init=100.0)
    result = of("IVON-PVI", 4, solver=solver, participation=1.0)
    start, last = result.objective[0], result.objective[-1]
    s = result.state.precision
    cost = 0.5 * float((1.0 / s - 1.0 + s.log()).sum())
    assert result.status is Status.RISEN
    assert last - start > 60.0  # 4√51 = 29 is the margin
    assert start - (last - cost) > 60.0
    assert "temperature" in result.message
    assert "gamma" not in result.message


def test_half_of_the_descent_is_what_a_point_may_lose():
    """The records of a run, with the objectives 100, 20 and 59 or 61: half of the descent is at 60."""
    state = of("FedAvg", 2, participation=1.0).state
    team = of("FedAvg", 0)._team

    def end(*values, limit=2, dropped=((), ())):
        pairs = zip(state.history, values[1:], dropped, strict=True)
        history = tuple(replace(record, objective=value, dropped=out) for record, value, out in pairs)
        return ended(team, replace(state, start_objective=values[0], history=history), limit)[0]

    assert end(100.0, 20.0, 61.0) is Status.RISEN
    assert end(100.0, 20.0, 59.0) is None
    assert end(100.0, 20.0, 61.0, limit=3) is None  # there are rounds to come
    nan = float("nan")
    assert end(nan, nan, nan) is None
    assert end(nan, 20.0, nan) is None
    assert end(nan, 20.0, 170.0) is None
    assert end(100.0, 170.0, nan) is None  # the last round was not evaluated
    assert end(100.0, 20.0, 61.0, dropped=((1,), ())) is None  # 20 lacks the loss of a client
    assert end(100.0, 20.0, 161.0, dropped=((1,), ())) is Status.RISEN
    assert end(100.0, 20.0, 61.0, dropped=((), (1,))) is None


def small_clients(seed):
    """Return one to four clients of 5 to 59 rows with noisy labels, and a network of 42 parameters."""
    source, found = torch.Generator().manual_seed(seed), []
    for _ in range(1 + seed % 4):
        n = int(torch.randint(5, 60, (1,), generator=source))
        X = torch.randn(n, 2, generator=source)
        found.append(Rows(X, (X[:, 0] + 0.5 * torch.randn(n, generator=source) > 0).long()))
    torch.manual_seed(seed)
    return found, MLP((2, 8, 2))


@pytest.mark.parametrize(("seed", "temperature"), [(1, 0.1), (2, 0.1), (9, 0.1), (28, 1.0)])
def test_a_wide_start_raises_no_alarm_and_a_rise_within_the_noise_of_a_record_is_found(seed, temperature):
    """At the start s = δ is far below the curvature, and a record's one pair misses E_q[ℓ] by hundreds.

    With τ = 0.1 the records rise by more than 4√P where the objective falls by more than 100; with τ = 1 the objective
    rises by 34 of 42, and the record by less than 4√P = 26 above its start's. The twin judges by the records.
    """
    own, model = small_clients(seed)
    mean = sum(map(len, own)) / len(own)
    h0, is_soft, n = 10.0 * temperature / mean, len(own) <= 3, max(5 * math.ceil(mean / 32), 10)
    start = {"beta2": 0.99} if is_soft else {"beta2": 1.0 - 1.0 / n, "hess_start": "server"}
    solver = IVONSteps(lr=1.0 / h0, hess_init=h0, clip_radius=0.01, **start)
    result = run(IVONPVI(), own, model, rounds=3, seed=seed, temperature=temperature, solver=solver)
    first, last = result.objective[0], result.objective[-1]
    team, begun = result._team, result._team.start()
    rises = [objective(team, result.state, each) - objective(team, begun, each) for each in range(100, 164)]
    error = np.std(rises, ddof=1) / 8.0
    if temperature < 1.0:
        assert last > first + 4.0 * 42**0.5
        assert np.mean(rises) < -5.0 * error
        assert result.status.name == "ROUND_LIMIT"
    else:
        assert last < first + 4.0 * 42**0.5
        assert np.mean(rises) > 4.0 * error
        assert result.status.name == "RISEN"


def test_a_server_without_rows_does_not_judge_a_sampled_objective():
    result = of("IVON-ADMM", 1, participation=1.0)
    raised = replace(result.state, start_objective=-1e6)
    assert ended(replace(result._team, clients={}), raised, 1)[0] is None
    point = of("FedAvg", 1, participation=1.0)
    assert ended(replace(point._team, clients={}), replace(point.state, start_objective=-1e6), 1)[0] is Status.RISEN


# ----------------------------------------------------------------------------------------------------
# Stacks
# ----------------------------------------------------------------------------------------------------


def test_stacks_have_the_size_at_which_they_are_faster(monkeypatch):
    """917 504 numbers on a CPU, a sixteenth with convolutions; on a GPU a quarter of the memory of a fake card."""
    torch.manual_seed(0)
    dense = Network(torch.nn.Linear(100, 10), torch.device("cpu"))
    small = Network(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten()), torch.device("cpu"))
    large = Network(torch.nn.Conv2d(64, 64, 5), torch.device("cpu"))
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert room_of(dense, cpu, 4, 3200) == 917_504 // 1010
    assert room_of(small, cpu, 4, 3200) == 57_344 // 40
    assert room_of(large, cpu, 4, 3200) == 1
    card = 2**30
    for free in (2**10, 2**29):  # what others use now changes no bit
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, card))
        found = room_of(dense, cuda, 4, 3200)
        bytes_of_a_client = 4 * (12 * 1010 + 64 * 3200)
        assert found * bytes_of_a_client <= card / 4 < (found + 1) * bytes_of_a_client
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**20, 2**20))
    assert room_of(large, cuda, 4, 3200) == 1


# ----------------------------------------------------------------------------------------------------
# The curvature
# ----------------------------------------------------------------------------------------------------


class Square(torch.autograd.Function):
    """A derivative that reads a number, which torch can do for one slope at a time alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, slope):
        SLOPES.append(slope.sum().item())
        return 2.0 * ctx.saved_tensors[0] * slope


SLOPES = []


class Squared(torch.nn.Module):
    def __init__(self, square):
        super().__init__()
        self.forward_of = square

    def forward(self, x):
        return self.forward_of(x)


def test_a_layer_that_takes_one_slope_at_a_time_gets_them_one_by_one():
    """Both passes sum the same products; two slopes a row for three classes."""
    torch.manual_seed(0)
    first, last = torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(32, 3)
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0, 0.5], dtype=torch.float64)
    rows = Rows(torch.rand(5, 1, 6, 6, dtype=torch.float64), torch.arange(5) % 3, weights)
    found = []
    for square in (Square.apply, torch.square):
        layers = first, Squared(square), torch.nn.Flatten(), last
        net = Network(torch.nn.Sequential(*layers).double(), torch.device("cpu"))
        found.append(diagonal_ggn(net, net.start, rows, {}))
    assert len(SLOPES) == 2
    assert (found[0] - found[1]).abs().max() < 1e-14 * found[1].abs().max()
    assert (found[1] > 0).any()
