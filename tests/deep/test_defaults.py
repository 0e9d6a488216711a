"""Defaults of networks: arguments that are left out follow from the clients, and no method diverges with them."""

import math
import warnings
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.data import load_digits, partition  # noqa: E402
from bayesadmm_np.federation import Coordinator, Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    Categorical,
    FedLapFunc,
    FedLaplace,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    SGDSteps,
    run,
)
from bayesadmm_np.torch.methods import for_clients  # noqa: E402

SIZES = (40, 20, 20, 20)
"""K = 4, N = 100, a largest share of 0.4, and a mean client of 25 rows."""
ALL = {
    "IVON-ADMM": IVONADMM,
    "IVON-PVI": IVONPVI,
    "BayesADMM": methods.BayesADMM,
    "PVI": methods.PVI,
    "FedIvon": methods.FedIvon,
    "FedLaplace": FedLaplace,
    "FedLap-Cov": methods.FedLapCov,
    "FedLap": methods.FedLap,
    "FedLap-Func": lambda: FedLapFunc(server_steps=200),
    "ADMM": methods.ADMM,
    "FedDyn": methods.FedDyn,
    "FedProx": methods.FedProx,
    "FedAvg": methods.FedAvg,
}


@pytest.mark.parametrize(
    ("method", "rho", "step"),
    [
        (IVONADMM(), 0.8, 0.25),  # 2 × 0.4, 1/K
        (IVONADMM(gamma=0.1), 0.8, 0.1),
        (IVONADMM(rho=0.5), 0.5, 0.25),
        (methods.BayesADMM(), 0.8, 0.25),
        (methods.BayesADMM(gamma=0.5), 0.8, 0.4),  # γρ
        (methods.BayesADMM(rho=0.1), 0.1, 0.1),  # γ ≤ 1
        (methods.PVI(), 1.0, 0.25),
        (IVONPVI(), 1.0, 0.25),
        (methods.FedLap(), 1.0, 0.25),
        (methods.FedLapCov(), 1.0, 0.25),
        (FedLapFunc(), 1.0, 0.25),
        (methods.ADMM(), 1.5, 1.5),  # 0.03 × 25 rows / 0.5
        (methods.FedDyn(), 1.5, 1.5),
        (methods.FedProx(), 1.5, 0.0),
    ],
)
def test_the_method_s_numbers_follow_from_the_clients(method, rho, step):
    found = for_clients(method, SIZES, temperature=0.5)
    assert (found.rho, found.dual_step) == pytest.approx((rho, step), rel=1e-12)
    assert for_clients(found, (1, 1), 1.0) is found


def test_a_number_that_was_replaced_is_given():
    for method in (replace(IVONADMM(), rho=0.3, dual_step=0.1), replace(methods.BayesADMM(), rho=0.3, dual_step=0.1)):
        found = for_clients(method, SIZES)
        assert (found.rho, found.dual_step) == (0.3, 0.1)
    assert for_clients(replace(methods.PVI(), dual_step=0.1), SIZES).dual_step == 0.1
    assert for_clients(replace(methods.FedProx(), rho=0.3), SIZES).rho == 0.3
    assert for_clients(replace(IVONADMM(), knobs="none"), SIZES).rho == 0.8  # of something else


def test_given_numbers_stay():
    given = [make(1.0) for make in (methods.PVI, FedLapFunc, methods.FedDyn, methods.FedProx, methods.ADMM)]
    given += [IVONADMM(1.0, 1.0), methods.BayesADMM(1.0, 1.0), methods.FedLap("rows"), methods.FedIvon()]
    assert all(for_clients(method, SIZES, 0.5) is method for method in given)


def test_exact_clients_keep_their_defaults():
    pairs = [(methods.PVI(), methods.PVI(1.0)), (methods.BayesADMM(), methods.BayesADMM(1.0, 1.0))]
    for left, given in [*pairs, (methods.FedDyn(), methods.FedDyn(1.0)), (methods.ADMM(), methods.ADMM(1.0))]:
        assert left == given
        assert left.unset
        assert not given.unset


def test_the_rate_follows_from_the_steps_of_a_round():
    def rate(rows, **settings):
        return AdamSteps(**settings).for_clients((1.0, 2.0), (rows, rows), methods.FedAvg(), 1.0).lr

    assert rate(800) == pytest.approx(0.5 / 125)  # 5 epochs of 25 batches
    assert rate(800, epochs=2, batch_size=16) == pytest.approx(0.5 / 100)
    assert rate(32) == 0.01
    assert rate(10**6) == 0.001
    assert rate(800, lr=0.001) == 0.001  # the same number, given
    assert SGDSteps().for_clients((800, 800), (800, 800), methods.FedAvg(), 1.0) == SGDSteps()


def test_the_settings_of_ivon_follow_from_the_clients():
    """N_k = 800 of two clients: n = 125, and λ = N_k/(ρτ) = 800/(1 × 0.5); 80 = N/20."""
    admm = IVONADMM(1.0, 0.5)
    found = IVONSteps().for_clients((800, 800), (800, 800), admm, 0.5)
    assert (found.hess_init, found.lr, found.clip_radius) == pytest.approx((0.05, 20.0, 0.002), rel=1e-12)
    assert (found.beta2, found.hess_start) == (1 - 1 / 375, "server")
    assert IVONSteps(ess=50.0).for_clients((800, 800), (800, 800), admm, 0.5).hess_init == pytest.approx(80 / 50)
    assert IVONSteps().for_clients((100, 60), (100, 60), admm, 0.5).hess_init == pytest.approx(10 / 160)
    chosen = IVONSteps(hess_init=0.1, beta2=0.9, clip_radius=math.inf, hess_start="h0")
    kept = chosen.for_clients((800, 800), (800, 800), admm, 0.5)
    assert (kept.lr, kept.hess_init, kept.beta2, kept.clip_radius) == (10.0, 0.1, 0.9, math.inf)
    assert kept.hess_start == "h0"
    given = IVONSteps(lr=1.0)  # with a given rate nothing follows
    assert given.for_clients((800, 800), (800, 800), admm, 0.5) is given
    assert given == IVONSteps(lr=1.0, hess_init=0.01, beta2=0.99, clip_radius=math.inf, hess_start="h0")


@pytest.mark.parametrize(("make", "kind"), [(methods.FedAvg, AdamSteps), (methods.FedIvon, IVONSteps)])
def test_steps_are_counted_in_rows_whatever_the_rows_weigh(make, kind):
    """A batch has rows. By weights of 100 a round would have 1000 steps, and the least rate."""
    X = torch.linspace(-1.0, 1.0, 60)[:, None]

    def solver(weight, classes=None):
        rows = Rows(X, (X[:, 0] > 0).long(), torch.full((60,), weight))
        return run(make(), [rows] * 2, MLP((1, 3, 2)), rounds=0, likelihood=Categorical(classes)).settings["solver"]

    plain, name = solver(1.0), "clip_radius" if kind is IVONSteps else "lr"
    for other in (solver(100.0), solver(0.01), solver(1.0, (1.0, 50.0))):
        assert getattr(other, name) == getattr(plain, name) == 0.01
        assert other.beta2 == plain.beta2
    assert getattr(kind().for_clients((60,) * 2, (6000,) * 2, make(), 1.0), name) == 0.001


def test_sites_elsewhere_get_the_numbers_of_a_run_in_one_process():
    X = torch.linspace(-1.0, 1.0, 60)[:, None]
    clients = [Rows(X[:40], (X[:40, 0] > 0).long()), Rows(X[40:], (X[40:, 0] > 0.6).long())]
    model = MLP((1, 3, 2))
    weighted = [Rows(rows.X, rows.y, torch.full((len(rows),), 50.0)) for rows in clients]
    for make, team in product((IVONADMM, methods.FedDyn), (clients, weighted)):
        settings = run(make(), team, model, rounds=0, temperature=0.5).settings
        hellos = [Site(name, NetworkData(rows, model)).hello() for name, rows in zip("AB", team, strict=True)]
        spec = Coordinator.start(hellos, NetworkTask(make(), model, temperature=0.5)).engine.spec
        assert (spec.method, spec.solver) == (settings["method"], settings["solver"])
        assert not spec.method.unset
        assert spec.method.rho != 1.0


@cache
def digits(clients, equal):
    """400 digits in [0, 1]; with labels apart a client has two of the ten, or five where there are two clients."""
    data = load_digits()
    X, y = torch.tensor(data.X[:400] / data.X.max(), dtype=torch.float32), torch.tensor(data.y[:400])
    if equal:
        parts = partition.iid(400, clients, np.random.default_rng(0))
    else:
        parts = [np.flatnonzero(y.numpy() % clients == k) for k in range(clients)]
    return [Rows(X[part], y[part]) for part in parts]


def gained(method, clients, **settings):
    """Return nats a row that the training rows' loss at the server's mean fell by; −inf for a run that failed."""
    torch.manual_seed(0)
    model, scores = MLP((64, 20, 10)), []
    rows = Rows(torch.cat([one.X for one in clients]), torch.cat([one.y for one in clients]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(method, clients, model, evaluate=rows, objective_every=0, rounds=10, **settings)
    if result.rounds < 10:
        return -math.inf
    scores = [record.at_mean.nll for record in result.history]
    return math.log(10) - float(np.mean(scores[-3:]))


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("clients", [2, 5])
@pytest.mark.parametrize("name", ALL)
def test_no_default_diverges(name, clients, equal):
    """A start that knows nothing has a loss of log 10 a row; a default that overshoots stays above this, or fails."""
    assert gained(ALL[name](), digits(clients, equal)) > 0.0


BEFORE = {
    "IVON-PVI": (IVONPVI(1.0), 5, {"solver": IVONSteps(lr=1.0)}),
    "FedLap-Cov": (methods.FedLapCov(1.0), 5, {"solver": AdamSteps(lr=0.01)}),
    "FedLap": (methods.FedLap(1.0), 5, {"solver": AdamSteps(lr=0.01)}),
}


@pytest.mark.parametrize("name", BEFORE)
def test_the_defaults_of_exact_clients_would(name):
    """The broken twin: what `test_no_default_diverges` asks for fails with ρ = γ = 1."""
    method, clients, settings = BEFORE[name]
    assert not gained(method, digits(clients, True), **settings) > 0.0


@pytest.mark.parametrize("method", [IVONADMM(), IVONPVI()])
def test_ivon_leaves_chance_on_a_network_of_relu(method):
    """After 30 rounds on ten equal clients; the twin, a start at a smaller h₀ in every round, leaves IVON-PVI there."""
    digits = load_digits()
    X, y = torch.tensor(digits.X, dtype=torch.float32), torch.tensor(digits.y).long()
    rows = np.random.default_rng(1).permutation(len(y))
    clients = [Rows(X[part], y[part]) for part in np.array_split(rows[:1300], 10)]
    torch.manual_seed(1)
    model, test = MLP((64, 32, 16, 10), "relu"), Rows(X[rows[1300:]], y[rows[1300:]])

    def accuracy(solver=None):
        found = run(method, clients, model, rounds=30, solver=solver, evaluate=test, evaluate_every=30, ensemble=1)
        return found.history[-1].at_mean.accuracy

    assert accuracy() > 0.8
    if method.name == "IVON-PVI":  # λ = 130
        assert accuracy(IVONSteps(lr=10.0, hess_init=0.1, beta2=0.99, clip_radius=0.01)) < 0.5
