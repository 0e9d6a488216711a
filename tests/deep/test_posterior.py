"""`Result.posterior` of networks: moments of samples, averaged predictions, the linearisation, and the file."""

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np._archive import ArchiveError  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    MLP,
    AdamSteps,
    IVONSteps,
    NetworkPosterior,
    run,
    score,
)
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import network, problem  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = {
    "variational": (IVONADMM(0.7, 0.3), IVONSteps(epochs=3, batch_size=6, lr=0.1, hess_init=0.1, beta2=0.9)),
    "laplace": (methods.FedLapCov(0.5), AdamSteps(epochs=3, batch_size=6, lr=0.01)),
    "point": (methods.FedLap(0.5), AdamSteps(epochs=3, batch_size=6, lr=0.01)),
}


def trained(kind, model=None, **options):
    method, solver = ROWS[kind]
    return run(method, problem((23, 10)), model or network(), rounds=2, solver=solver, **options)


@pytest.mark.parametrize("kind", ["variational", "laplace"])
@pytest.mark.parametrize(("power", "right"), [(-0.5, True), (-1.0, False)])
def test_samples_have_the_posteriors_moments(kind, power, right):
    """40 000 samples: means within 5 standard errors sd/200, variances within 5·√(2/n) = 3.5 %. The twin has sd 1/s."""
    result = trained(kind)
    posterior, sd = result.posterior, result.precision.pow(power)
    drawn = posterior.sample(40_000, seed=3)
    assert torch.equal(posterior.sample(2, seed=3), drawn[:2])
    assert not torch.equal(posterior.sample(2, seed=4), drawn[:2])
    gaps = (drawn.mean(dim=0) - result.mean).abs() / sd
    assert bool((gaps < 5 / 200).all() and ((drawn.var(dim=0) / sd.square() - 1).abs() < 0.036).all()) == right


@pytest.mark.parametrize("kind", ROWS)
def test_without_samples_predictions_are_the_models(kind):
    result, X = trained(kind), problem((23, 10))[0].X
    assert result.posterior.kind == kind
    with torch.no_grad():
        expected = result.model()(X).softmax(dim=1)
    torch.testing.assert_close(result.posterior.predict_proba(X, samples=0), expected, rtol=1e-12, atol=0)
    assert torch.equal(result.posterior.predict(X, samples=0), expected.argmax(dim=1))


def test_predictions_are_averages_over_samples():
    """Samples of the same seed, put into the module one by one. The twin averages logits, and not probabilities."""
    posterior, X = trained("variational").posterior, problem((23, 10))[0].X
    found = posterior.predict_proba(X, samples=7, seed=5)
    with torch.no_grad():
        logits = [posterior.network.module_at(theta, {})(X) for theta in posterior.sample(7, seed=5)]
    expected = torch.stack([each.softmax(dim=1) for each in logits]).mean(dim=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert (torch.stack(logits).mean(dim=0).softmax(dim=1) - expected).abs().max() > 1e-4
    assert torch.equal(posterior.predict(X, samples=7, seed=5), found.argmax(dim=1))
    assert not torch.equal(posterior.predict_proba(X, samples=7, seed=6), found)
    torch.testing.assert_close(posterior.predict_proba(X.float(), samples=7, seed=5), found, rtol=1e-5, atol=1e-6)


def test_a_laplace_approximation_predicts_by_the_linearisation():
    """f(m) + J(θ − m), which is tested against autograd elsewhere. The twin is the network itself, not linear."""
    posterior, X = trained("laplace").posterior, problem((23, 10))[0].X[:4]
    mean, net = posterior.mean, posterior.network

    def logits(theta):
        return net.logits(net.leaves(theta[None]), X[None], {}, train=False)[0]

    drawn = posterior.sample(5, seed=2)
    expected = torch.stack([net.predict_linear(mean, t - mean, X, {}).softmax(dim=1) for t in drawn]).mean(dim=0)
    found = posterior.predict_proba(X, samples=5, seed=2)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    twin = torch.stack([logits(theta).detach().softmax(dim=1) for theta in drawn]).mean(dim=0)
    assert (found - twin).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["variational", "laplace"])
def test_the_historys_ensemble_is_of_the_posterior(kind):
    """With enough samples scores of two streams are near: NLL over 400 samples of 23 rows to 5 %."""
    test = problem((23, 10))[0]
    result = trained(kind, evaluate=test, ensemble=400)
    found = score(result.posterior.predict_proba(test.X, samples=400).log(), test.y)
    assert result.history[-1].ensemble.nll == pytest.approx(found.nll, rel=0.05)


@pytest.mark.parametrize("kind", ROWS)
def test_a_variational_posterior_alone_predicts_by_samples_unless_asked(kind):
    """The default of predictions and of a run's scores. Twins: samples that are asked for differ from the mean."""
    test = problem((23, 10))[0]
    result = trained(kind, evaluate=test)
    q, averages = result.posterior, kind == "variational"
    assert torch.equal(q.predict_proba(test.X), q.predict_proba(test.X, samples=32 if averages else 0))
    assert (result.history[-1].ensemble is not None) == averages
    if kind == "point":
        return
    assert not torch.equal(q.predict_proba(test.X, samples=32), q.predict_proba(test.X, samples=0))
    assert trained(kind, evaluate=test, ensemble=3).history[-1].ensemble is not None


def test_a_point_has_no_samples():
    posterior, X = trained("point").posterior, problem((23, 10))[0].X
    assert torch.equal(posterior.predict_proba(X), posterior.predict_proba(X, samples=0))
    for ask in (posterior.sample, lambda: posterior.predict(X, samples=3)):
        with pytest.raises(ValueError, match="samples need a method that learns a precision, such as IVONADMM"):
            ask()


@pytest.mark.parametrize("kind", ROWS)
def test_a_saved_posterior_is_the_same(kind, tmp_path):
    posterior, X = trained(kind).posterior, problem((23, 10))[0].X
    posterior.save(tmp_path / "posterior.npz")
    again = NetworkPosterior.load(tmp_path / "posterior.npz", network())
    assert again.kind == kind
    assert repr(again) == f"NetworkPosterior({kind}, 43 parameters)"
    assert torch.equal(again.predict_proba(X), posterior.predict_proba(X))
    with pytest.raises(ArchiveError, match="model must be the signature of this model"):
        NetworkPosterior.load(tmp_path / "posterior.npz", MLP((4, 6, 3)).double())
    with pytest.raises(ArchiveError):
        NetworkPosterior.load(tmp_path / "posterior.npz", torch.nn.BatchNorm1d(4))
    content = (tmp_path / "posterior.npz").read_bytes()
    (tmp_path / "damaged.npz").write_bytes(content[:-30])
    with pytest.raises(ArchiveError):
        NetworkPosterior.load(tmp_path / "damaged.npz", network())


def test_statistics_are_kept(tmp_path):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
    posterior = run(methods.FedAvg(), problem((23, 10)), model, rounds=1, batched=False).posterior
    posterior.save(tmp_path / "posterior.npz")
    again, X = NetworkPosterior.load(tmp_path / "posterior.npz", model), problem((23, 10))[0].X
    assert torch.equal(again.predict_proba(X), posterior.predict_proba(X))
    assert not torch.equal(again.buffers["1.running_mean"], torch.zeros(3))


def test_wrong_arguments_are_named():
    q = trained("variational").posterior
    assert_refused(
        [
            (lambda: q.sample(0), "n"),
            (lambda: q.sample(1, seed=-1), "seed"),
            (lambda: q.predict_proba(torch.zeros(3, 4), samples=-1), "samples"),
            (lambda: q.predict([["0"] * 4]), "X"),
        ]
    )
