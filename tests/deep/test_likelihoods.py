"""Likelihoods: their derivatives, the core's answers for linear models, predictions, scores, and what is refused."""

import re
from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.func import jacrev, vmap  # noqa: E402

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    AdamSteps,
    Bernoulli,
    Categorical,
    FedLapFunc,
    Gaussian,
    IVONSteps,
    LossScores,
    NetworkData,
    NetworkPosterior,
    NetworkTask,
    OwnLoss,
    RegressionScores,
    Rows,
    run,
)
from oracles.couriers import started  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402


def huber(outputs, y):
    return torch.nn.functional.huber_loss(outputs[:, 0], y, reduction="none")


def cross_entropy(outputs, y):
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none")


SOURCE = torch.Generator().manual_seed(0)
N = 7
LABELS = torch.randint(0, 2, (N,), generator=SOURCE)
NUMBERS = torch.randn(N, 2, generator=SOURCE, dtype=torch.float64)
CASES = [
    (Categorical(), 3, LABELS),
    (Bernoulli(), 1, LABELS),
    (Gaussian(0.3), 2, NUMBERS),
    (OwnLoss(huber), 1, NUMBERS[:, 0]),
    (OwnLoss(cross_entropy), 3, LABELS),
]


def outputs_of(width, rows=N):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def slope_error(likelihood, width, y):
    """|slope − ∂Σwℓ/∂f| over stacked clients, by autograd of the losses."""
    f = torch.stack([outputs_of(width), -outputs_of(width)]).requires_grad_()
    twice, weights = torch.stack([y, y]), torch.rand(2, N, generator=torch.Generator().manual_seed(2)).double()
    (expected,) = torch.autograd.grad((weights * likelihood.losses(f, twice)).sum(), f)
    return float((likelihood.slope(f.detach().clone(), twice, weights) - expected).abs().max())


@pytest.mark.parametrize(("likelihood", "width", "y"), CASES, ids=lambda x: repr(x)[:20])
def test_slopes_are_derivatives_of_the_weighted_losses(likelihood, width, y):
    assert slope_error(likelihood, width, y) <= 1e-14  # a few roundings of numbers below 10


def test_a_slope_that_forgets_the_variance_is_seen():
    @dataclass(frozen=True)
    class Broken(Gaussian):
        def slope(self, outputs, y, weights):
            return (outputs - y) * weights[..., None]

    assert slope_error(Broken(0.3), 2, NUMBERS) > 0.1


def curvature_of(likelihood, f, y):
    return vmap(jacrev(jacrev(lambda f, y: likelihood.losses(f[None], y[None])[0])))(f, y)


@pytest.mark.parametrize(("likelihood", "width", "y"), CASES, ids=lambda x: repr(x)[:20])
def test_roots_multiply_to_the_curvature_in_the_outputs(likelihood, width, y):
    f = outputs_of(width)
    a = likelihood.roots(f, y)
    torch.testing.assert_close(a.mT @ a, curvature_of(likelihood, f, y), atol=1e-13, rtol=0)


def test_an_own_loss_keeps_the_positive_part_of_its_curvature():
    """sin has the second derivative −sin."""
    f, wave = outputs_of(1), OwnLoss(lambda f, y: f[:, 0].sin())
    a = wave.roots(f, NUMBERS[:, 0])[:, :, 0]
    torch.testing.assert_close((a**2).sum(dim=1), (-f[:, 0].sin()).clamp(min=0.0), atol=1e-13, rtol=0)


@pytest.mark.parametrize(("likelihood", "width", "y"), CASES[:3], ids=lambda x: repr(x)[:20])
def test_drawn_slopes_have_the_curvature_as_their_mean(likelihood, width, y):
    f = outputs_of(width, 2)
    count = 40_000
    a = likelihood.drawn(f, count, torch.Generator().manual_seed(3)) * count**0.5
    products = a[:, :, :, None] * a[:, :, None, :]
    errors = products.std(dim=1) / count**0.5
    # 5 standard errors for fewer than 20 numbers: chance 1e-5
    assert bool(((products.mean(dim=1) - curvature_of(likelihood, f, y[:2])).abs() <= 5.0 * errors + 1e-12).all())


def linear_clients(y):
    X = torch.randn(120, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    y = y(X @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.5)
    return X, y, [Rows(X[rows], y[rows]) for rows in (slice(0, 40), slice(40, 90), slice(90, 120))]


def wavy(f):
    return f + 0.3 * f.cos()


def above(f):
    return (f + 2.0 * (3.0 * f).sin() > 0).long()


def linear_model(outputs=1):
    torch.manual_seed(0)
    return torch.nn.Linear(3, outputs).double()


def trained(likelihood, clients, rounds=4, outputs=1, **settings):
    settings = {"solver": AdamSteps(epochs=20, batch_size=50, lr=0.05)} | settings
    return run(methods.FedLapCov(), clients, linear_model(outputs), rounds=rounds, likelihood=likelihood, **settings)


@pytest.mark.parametrize(
    ("likelihood", "y", "loss"),
    [
        (Gaussian(0.25), wavy, lambda X, y: ba.losses.LeastSquares(X, y, weights=np.full(len(y), 4.0))),
        (Bernoulli(), above, ba.losses.Logistic),
    ],
    ids=["Gaussian", "Bernoulli"],
)
def test_a_linear_model_has_the_posterior_of_the_core(likelihood, y, loss):
    """One client under damping 1, whose Laplace approximation is the pooled one (Eq. 14 of Swaroop et al.).

    A rate that falls to zero leaves Adam within its last steps of the mode: 1e-4 of numbers near 1.
    """
    X, y, _ = linear_clients(y)
    solver = AdamSteps(epochs=400, batch_size=120, lr=0.05, schedule="cosine", schedule_rounds=8)
    result = trained(likelihood, [Rows(X, y)], rounds=8, solver=solver)
    prior = ba.families.DiagonalGaussian(np.zeros(4), 1.0)
    design = np.column_stack([X.numpy(), np.ones(len(X))])
    pooled = ba.solve_pooled([loss(design, y.numpy())], prior, expectation=ba.losses.Delta(2)).posterior
    np.testing.assert_allclose(result.state.mean, pooled.mean, atol=1e-4)
    np.testing.assert_allclose(1.0 / result.state.precision.numpy(), pooled.variance, rtol=1e-3)
    twin = trained(Gaussian(1.0) if y.is_floating_point() else OwnLoss(squares), [Rows(X, y)], rounds=8, solver=solver)
    assert np.abs(1.0 / twin.state.precision.numpy() / pooled.variance - 1.0).max() > 0.1


def squares(outputs, y):
    return 0.5 * (outputs[:, 0] - y).square()


def test_ivon_learns_the_posterior_of_a_regression():
    """The core's diagonal solution but for IVON's noise: measured 0.11 sd and 7 %, and held to three times as much."""
    X, y, clients = linear_clients(wavy)
    solver = IVONSteps(epochs=60, batch_size=40, lr=0.02, hess_init=4.0, beta2=0.98, hess_start="server")
    method = IVONADMM(rho=1.0, gamma=0.3)
    result = run(method, clients, linear_model(), rounds=15, likelihood=Gaussian(0.25), solver=solver)
    design = np.column_stack([X.numpy(), np.ones(len(X))])
    loss = ba.losses.LeastSquares(design, y.numpy(), weights=np.full(len(y), 4.0))
    pooled = ba.solve_pooled([loss], ba.families.DiagonalGaussian(np.zeros(4), 1.0)).posterior
    off = (result.state.mean.numpy() - pooled.mean) / np.sqrt(pooled.variance)
    assert np.abs(off).max() < 0.3
    ratio = result.state.precision.numpy() * pooled.variance
    assert np.abs(ratio - 1.0).max() < 0.2
    assert np.abs(0.25 * ratio - 1.0).max() > 0.7  # a slope without 1/v


def test_scores_by_hand():
    f, y = torch.tensor([[1.0], [3.0]]), torch.tensor([[0.0], [3.0]])
    noise = Gaussian(0.5)
    constant = 0.5 * np.log(2 * np.pi * 0.5)
    found = noise.score(f, y)
    assert found == RegressionScores(nll=pytest.approx(0.5 + constant), rmse=pytest.approx(np.sqrt(0.5)))
    mixture = -np.log(0.5 * (np.exp(-1.0) + np.exp(0.0)))  # of a sample that errs by 1 and one that does not
    averaged = noise.score_average([f[:1], y[:1]], y[:1])
    assert averaged == RegressionScores(nll=pytest.approx(mixture + constant), rmse=pytest.approx(0.5))
    assert OwnLoss(huber).score(f, y[:, 0]) == LossScores(loss=pytest.approx(0.25))
    coin = Bernoulli().score(torch.zeros(2, 1), torch.tensor([0, 1]))
    assert (coin.nll, coin.brier) == (pytest.approx(np.log(2)), pytest.approx(0.5))


def test_a_regression_predicts_with_deviations():
    X, _, clients = linear_clients(wavy)
    posterior = trained(Gaussian(0.25), clients).posterior
    mean, deviation = posterior.predict(X[:4], samples=4000, return_std=True)
    design = torch.cat([X[:4], torch.ones(4, 1, dtype=torch.float64)], dim=1)
    expected = (0.25 + design.square() @ (1.0 / posterior.precision)).sqrt()
    # 4000 samples: the variance of f, a fifth of the whole at most, is known to 5·√(2/4000) = 11 % of itself
    torch.testing.assert_close(deviation, expected, rtol=0.02, atol=0)
    torch.testing.assert_close(mean, design @ posterior.mean, atol=0.05, rtol=0)
    assert posterior.predict(X[:4]).shape == (4,)
    with pytest.raises(ValueError, match="predict_proba needs classes, got likelihood=Gaussian"):
        posterior.predict_proba(X[:4])
    classes = trained(Bernoulli(), linear_clients(above)[2]).posterior
    assert torch.equal(classes.predict(X[:4]), classes.predict_proba(X[:4]).argmax(dim=1))
    with pytest.raises(ValueError, match="return_std needs numbers"):
        classes.predict(X[:4], return_std=True)


def test_a_posterior_and_a_checkpoint_know_their_likelihood(tmp_path):
    X, _, clients = linear_clients(wavy)
    settings = {"evaluate": clients[0], "checkpoint": tmp_path / "run.npz"}
    whole = trained(Gaussian(0.25), clients, rounds=3, evaluate=clients[0])
    trained(Gaussian(0.25), clients, rounds=2, **settings)
    again = trained(Gaussian(0.25), clients, rounds=3, evaluate=clients[0], resume=tmp_path / "run.npz")
    assert torch.equal(again.state.mean, whole.state.mean)
    assert [r.at_mean for r in again.history] == [r.at_mean for r in whole.history]
    with pytest.raises(ValueError, match="model"):
        trained(Gaussian(0.5), clients, rounds=3, resume=tmp_path / "run.npz")
    whole.posterior.save(tmp_path / "q.npz")
    read = NetworkPosterior.load(tmp_path / "q.npz", linear_model(), likelihood=Gaussian(0.25))
    assert torch.equal(read.predict(X), whole.posterior.predict(X))
    with pytest.raises(ValueError, match="signature"):
        NetworkPosterior.load(tmp_path / "q.npz", linear_model())


def served(likelihood, at_sites, clients):
    sites = [
        Site(n, NetworkData(rows, linear_model(), likelihood=at_sites)) for n, rows in zip("ABC", clients, strict=True)
    ]
    task = NetworkTask(methods.FedLapCov(), linear_model(), rounds=2, likelihood=likelihood, solver=AdamSteps(epochs=2))
    return started(sites, task)


def test_sites_of_another_likelihood_are_refused():
    numbers, labels = linear_clients(wavy)[2], linear_clients(above)[2]
    assert_refused(
        [
            (lambda: served(Gaussian(0.25), Gaussian(0.5), numbers), "loss"),
            (lambda: served(Gaussian(0.25), None, labels), "loss"),
            (lambda: served(OwnLoss(huber), OwnLoss(huber), numbers), f"likelihood={OwnLoss(huber)!r}"),
        ]
    )


def two(y):
    return [Rows(torch.zeros(2, 3, dtype=torch.float64), y)]


def test_what_a_likelihood_cannot_take_is_named():
    """With a keyword of the client's complaint."""
    cases = [
        (Categorical(), torch.zeros(2), 2, "client 0: y must be int64"),
        (Categorical(), torch.tensor([0, -1]), 2, "client 0: y must have labels"),
        (Bernoulli(), torch.tensor([0, 1]), 2, "client 0: Bernoulli() needs"),
        (Bernoulli(), torch.tensor([0, 2]), 1, "client 0: labels"),
        (Gaussian(), torch.tensor([0, 1]), 1, "client 0: y must be finite"),
        (Gaussian(), torch.tensor([0.0, float("nan")]), 1, "client 0: y must be finite"),
        (Gaussian(), torch.zeros(2, 3), 2, "client 0: y must have shape (2, 2)"),
        (OwnLoss(lambda f, y: f.sum()), torch.zeros(2), 1, "client 0: OwnLoss("),
        ("mse", torch.zeros(2), 1, "likelihood"),
    ]
    for likelihood, y, outputs, start in cases:
        with pytest.raises(ValueError, match=f"^{re.escape(start)}"):
            trained(likelihood, two(y), outputs=outputs)


def test_what_only_some_likelihoods_have_is_named():
    _, _, clients = linear_clients(wavy)
    flat = torch.nn.Sequential(linear_model(), torch.nn.Flatten(0))
    assert_refused(
        [
            (lambda: run(FedLapFunc(), clients, linear_model(), likelihood=Gaussian()), "FedLap-Func"),
            (lambda: trained(OwnLoss(huber), clients, solver=AdamSteps(curvature_samples=1)), "curvature_samples"),
            (lambda: Gaussian(0.0), "variance"),
            (lambda: OwnLoss("mse"), "function"),
            (lambda: run(methods.FedAvg(), two(torch.zeros(2)), flat), "client"),
        ]
    )
