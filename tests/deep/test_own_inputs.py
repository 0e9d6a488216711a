"""Data of a user's own: arrays, images in uint8, weights of classes, Datasets to score on, and what is refused."""

from collections import namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    AdamSteps,
    Bernoulli,
    Categorical,
    Gaussian,
    NetworkData,
    NetworkPosterior,
    NetworkTask,
    Rows,
    last_layer,
    run,
    score,
)
from oracles.couriers import started, until  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import ADAM, KINDS  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn
WEIGHTS = (0.5, 3.0)


def model(is_plain=True, outputs=2):
    torch.manual_seed(1)
    between = [] if is_plain else [nn.LayerNorm(4)]
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 4), *between, nn.Tanh(), nn.Linear(4, outputs))


def pictures(n=41, seed=0):
    source = np.random.default_rng(seed)
    X = source.integers(0, 256, (n, 2, 2), dtype=np.uint8)
    return X, (X[:, 0, 0] > 100).astype(np.int32)


def clients(as_rows=Rows):
    X, y = pictures()
    return [as_rows(X[:20], y[:20]), as_rows(X[20:], y[20:])]


def go(kind, given, is_plain=True, **options):
    method, solver = KINDS[kind]
    return run(method, given, model(is_plain), **{"rounds": 2, "solver": solver} | options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_plain", [True, False])
def test_images_in_bytes_give_the_bits_of_the_same_images_in_single_precision(kind, is_plain, tmp_path):
    """Of arrays, with labels in int32, as they are; the twin is scaled to [0, 1]."""
    held = clients()
    assert (held[0].X.dtype, held[0].y.dtype) == (torch.uint8, torch.int64)
    plain = [Rows(rows.X.float(), rows.y) for rows in held]
    found = go(kind, held, is_plain, evaluate=held[0], checkpoint=tmp_path / "run.npz")
    expected = go(kind, plain, is_plain, evaluate=plain[0])
    assert torch.equal(found.mean, expected.mean)
    assert found.history[-1].at_mean == expected.history[-1].at_mean
    X = pictures()[0]
    assert torch.equal(found.posterior.predict_proba(X), expected.posterior.predict_proba(torch.tensor(X).float()))
    again = go(kind, held, is_plain, evaluate=held[0], resume=tmp_path / "run.npz", rounds=3)
    assert again.rounds == 3
    scaled = [Rows(rows.X / 255, rows.y) for rows in held]
    assert not torch.equal(go(kind, scaled, is_plain).mean, expected.mean)


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        (np.float64, torch.float64),
        (">f4", torch.float32),
        (np.longdouble, torch.float64),
        (np.int16, torch.int64),
        (np.uint16, torch.int64),
        (np.uint8, torch.uint8),
        (bool, torch.bool),
    ],
)
def test_arrays_keep_their_numbers(made, dtype):
    """Turned round, not contiguous, and read-only."""
    X = (np.arange(12).reshape(4, 3) % 5).astype(made)[::-1, 1:]
    X.flags.writeable = False
    rows = Rows(X, [0, 1, 0, 1], np.ones(4))
    assert rows.X.dtype == dtype
    assert np.array_equal(rows.X.numpy(), X)


class Table:
    """As a table of pandas: NumPy can make an array of it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_what_holds_no_numbers_is_refused():
    y = torch.tensor([0, 1])
    assert Rows(Table([[1.0], [2.0]]), Table([0, 1])).X.shape == (2, 1)
    cases = [
        (lambda: Rows(Table([["a"], ["b"]]), y), "X"),
        (lambda: Rows(np.array([[1.0], [None]], dtype=object), y), "X"),
        (lambda: Rows(np.ones((2, 1)) * 1j, y), "X"),
        (lambda: Rows(torch.ones(2, 1) * 1j, y), "X"),
        (lambda: Rows(torch.eye(2).to_sparse(), y), "X"),
        (lambda: Rows(np.array([["2020-01-01"]] * 2, dtype="M8[D]"), y), "X"),
        (lambda: Rows(np.ones(2), y), "X"),
        (lambda: Rows(np.ma.masked_equal([[1.0], [2.0]], 2.0), y), "X"),
        (lambda: run(methods.FedAvg(), clients(), nn.LazyLinear(2), rounds=1), "model"),
        (lambda: Rows(np.array([[1.0], [np.nan]]), y), "X"),
        (lambda: Rows(np.array([[1.0], [-np.inf]]), y), "X"),
        (lambda: Rows(np.ones((2, 1)), ["yes", "no"]), "y"),
        (lambda: Rows(np.ones((2, 1)), [0, 1, 1]), "y"),
        (lambda: Rows(np.ones((2, 1)), y, [1, 2]), "weights"),
    ]
    assert_refused(cases)


def test_labels_may_be_a_column():
    X, y = pictures()
    method, solver = KINDS["FedLapCov"]
    found, expected = (run(method, [Rows(X, z)], model(), rounds=1, solver=solver) for z in (y[:, None], y))
    assert torch.equal(found.mean, expected.mean)


Named = namedtuple("Named", ["hidden", "logits"])


class Wrapped(nn.Module):
    """Outputs as some libraries return them."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = model(), kind

    def forward(self, x):
        return self.kind(self.inner(x))


@pytest.mark.parametrize("name", ["IVON-ADMM", "FedLapCov"])
def test_outputs_may_have_the_name_logits(name):
    method, solver = KINDS[name]
    expected = run(method, clients(), Wrapped(lambda f: f), rounds=2, solver=solver)
    for kind in (lambda f: {"loss": 0.0, "logits": f}, lambda f: Named(0.0, f)):
        assert torch.equal(run(method, clients(), Wrapped(kind), rounds=2, solver=solver).mean, expected.mean)


def test_outputs_without_a_name_are_refused():
    for kind, got in ((lambda f: (f, f), "tuple"), (lambda f: {"scores": f}, "dict"), (lambda f: None, "NoneType")):
        with pytest.raises(ValueError, match=f"client 0: .*logits, got {got}"):
            run(methods.FedAvg(), clients(), Wrapped(kind), rounds=1, solver=ADAM)


def weighted(rows):
    return Rows(rows.X, rows.y, torch.tensor(WEIGHTS, dtype=torch.float64)[rows.y])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_plain", [True, False])
def test_weights_of_classes_are_weights_of_rows(kind, is_plain):
    """To the bit, scores too; the twin has no weights."""
    settings = {"likelihood": Categorical(WEIGHTS), "evaluate": clients()[0]}
    found = go(kind, clients(), is_plain, **settings)
    expected = go(kind, [weighted(rows) for rows in clients()], is_plain, evaluate=clients()[0])
    assert torch.equal(found.mean, expected.mean)
    assert found.objective.tolist() == expected.objective.tolist()
    assert found.history[-1].at_mean == expected.history[-1].at_mean
    assert found.certificate() == expected.certificate()
    assert not torch.equal(go(kind, clients(), is_plain).mean, expected.mean)


def test_the_weighted_objective_is_that_of_torch():
    """Both regularisers are the same, so the difference is that of the sums. Rounding: 41 terms in single precision."""
    X, y = pictures()
    rows = Rows(X / np.float32(255), y)
    starts = [
        run(methods.FedAvg(), [rows], model(), rounds=0, likelihood=Categorical(w)).state.start_objective
        for w in (WEIGHTS, None)
    ]
    with torch.no_grad():
        logits = model()(rows.X)
    losses = [
        nn.functional.cross_entropy(logits, rows.y, weight=w, reduction="sum") for w in (torch.tensor(WEIGHTS), None)
    ]
    assert starts[0] - starts[1] == pytest.approx(float(losses[0] - losses[1]), rel=1e-4)
    assert abs(float(losses[0] - losses[1])) > 0.1


@pytest.mark.parametrize("samples", [None, 2])
def test_weights_of_two_classes_by_one_logit(samples):
    """As `pos_weight` of torch; with drawn labels for the curvature too."""
    solver, positive = AdamSteps(epochs=2, batch_size=8, lr=0.01, curvature_samples=samples), Bernoulli((1.0, 3.0))
    method, own = methods.FedLapCov(0.3), torch.tensor([1.0, 3.0])
    found = run(method, clients(), model(outputs=1), rounds=2, solver=solver, likelihood=positive)
    same = [Rows(rows.X, rows.y, own[rows.y]) for rows in clients()]
    expected = run(method, same, model(outputs=1), rounds=2, solver=solver, likelihood=Bernoulli())
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.precision, expected.precision)


def test_sites_and_datasets_have_the_weights_of_their_classes(tmp_path):
    """The bits of one process that holds the rows; a site of other weights is refused, and a file of a posterior."""
    method, solver = KINDS["IVON-ADMM"]
    options = {"rounds": 2, "solver": solver, "likelihood": Categorical(WEIGHTS), "batched": False}
    expected = run(method, clients(), model(), **options)
    data = [TensorDataset(rows.X, rows.y) for rows in clients()]
    assert torch.equal(run(method, data, model(), **options).mean, expected.mean)

    def serve(own):
        sites = [
            Site(name, NetworkData(rows, model(), likelihood=own), rules=ALLOWED)
            for name, rows in zip("AB", [data[0], clients()[1]], strict=True)
        ]
        task = NetworkTask(method, model(), solver=solver, rounds=2, likelihood=Categorical(WEIGHTS))
        return until(started(sites, task), sites)[0].state

    assert torch.equal(serve(Categorical(np.array(WEIGHTS))).mean, expected.mean)
    assert_refused([(lambda: serve(Categorical()), "loss")])
    expected.posterior.save(tmp_path / "q.npz")
    NetworkPosterior.load(tmp_path / "q.npz", model(), likelihood=Categorical(list(WEIGHTS)))
    assert_refused([(lambda: NetworkPosterior.load(tmp_path / "q.npz", model()), "model")])


def test_weights_of_classes_that_cannot_be():
    cases = [
        (lambda: Categorical((1.0, 0.0)), "weights"),
        (lambda: Categorical((1.0, float("nan"))), "weights"),
        (lambda: Categorical("ab"), "weights"),
        (lambda: go("FedLapCov", clients(), likelihood=Categorical((1.0, 1.0, 1.0))), "client"),
    ]
    assert_refused(cases)


class Shown(Dataset):
    """Pairs with arrays, made when they are asked for."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], int(self.y[i])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_predictions_of_a_dataset_are_those_of_its_rows(kind):
    """To the bit, of more rows than a pass has; the twin lacks a row."""
    X, y = pictures(1234, seed=1)
    shown, rows = Shown(X, y), Rows(X, y)
    found, expected, twin = (
        go(kind, clients(), is_plain=False, evaluate=given, ensemble=4) for given in (shown, rows, Shown(X[1:], y[1:]))
    )
    assert found.history[-1].at_mean == expected.history[-1].at_mean
    assert found.history[-1].ensemble == expected.history[-1].ensemble
    assert twin.history[-1].at_mean != expected.history[-1].at_mean
    posterior, loader = found.posterior, DataLoader(shown, batch_size=50)
    assert torch.equal(posterior.predict_proba(loader), posterior.predict_proba(X))
    assert torch.equal(posterior.predict(shown, samples=0), posterior.predict(torch.from_numpy(X), samples=0))


def test_numbers_of_a_dataset_are_predicted_with_deviations():
    X, _ = pictures(1030)
    rows = [Rows(X[:30] / 255, X[:30, 0, 0] / 255)]
    method, solver = KINDS["IVON-ADMM"]
    posterior = run(method, rows, model(outputs=1), rounds=1, solver=solver, likelihood=Gaussian(0.1)).posterior
    shown = Shown(X / 255, X[:, 0, 0])
    for found, expected in zip(*(posterior.predict(given, return_std=True) for given in (shown, X / 255)), strict=True):
        assert torch.equal(found, expected)


def test_what_is_no_prediction_has_no_score():
    half, y = torch.full((2, 2), 0.5).log(), torch.tensor([0, 1])
    cases = [
        (lambda: score(torch.tensor([[0.0, float("nan")]] * 2), y), "log_probabilities"),
        (lambda: score(torch.tensor([[0.0, float("inf")]] * 2), y), "log_probabilities"),
        (lambda: score(half.exp(), y), "log_probabilities"),
        (lambda: score(half, torch.tensor([0, 2])), "y"),
        (lambda: score(half, torch.tensor([0, -1])), "y"),
        (lambda: score(half, torch.tensor([0.0, 1.0])), "y"),
    ]
    assert_refused(cases)
    certain = score(torch.tensor([[1.0, 0.0]] * 2).log(), y)  # probability 0 of what happened
    assert (certain.nll, certain.accuracy) == (float("inf"), 0.5)


def test_a_run_whose_predictions_are_no_numbers_goes_on():
    """Scores are NaN, all of them, where the test rows overflow."""
    X, y = pictures()
    huge = Rows(np.full((2, 2, 2), 3e38, dtype=np.float32), y[:2])
    method, solver = KINDS["FedLapCov"]
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    last = run(method, [Rows(X / 255, y)], linear, rounds=1, solver=solver, evaluate=huge).history[-1]
    assert np.isnan([*vars(last.at_mean).values()]).all()


def test_the_last_layer_has_weights_of_classes_and_images_in_bytes():
    """As with weights of rows and images in double precision; the twin has none."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    plain = [Rows(rows.X.double(), rows.y) for rows in clients()]
    expected = last_layer(body, [weighted(rows) for rows in plain], 1.0)
    found = last_layer(body, clients(), 1.0, likelihood=Categorical(WEIGHTS))
    X = plain[0].X
    assert torch.equal(found.predict_proba(X), expected.predict_proba(X))
    assert not torch.equal(last_layer(body, plain, 1.0).predict_proba(X), expected.predict_proba(X))
