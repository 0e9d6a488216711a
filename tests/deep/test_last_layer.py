"""`last_layer`: the pooled posterior of a network's last layer, against direct solutions on the pooled rows."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np._archive import ArchiveError  # noqa: E402
from bayesadmm_np.estimators.caveats import Caveat  # noqa: E402
from bayesadmm_np.estimators.on_features import METHOD  # noqa: E402
from bayesadmm_np.families import FullGaussian  # noqa: E402
from bayesadmm_np.federation import Coordinator, DisclosureRules, GLMTask, Message, Site, final_result  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    MLP,
    AdamSteps,
    Bernoulli,
    Categorical,
    FrozenBody,
    Gaussian,
    LastLayer,
    OwnLoss,
    Rows,
    last_layer,
    merge,
    run,
)
from oracles.refusals import assert_refused  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn
KINDS = {
    "three classes": (Categorical(), 3),
    "two classes": (Categorical(), 2),
    "one logit": (Bernoulli(), 1),
    "numbers": (Gaussian(0.25), 1),
    "two numbers": (Gaussian(0.25), 2),
}


def body_of(kind, seed=0):
    torch.manual_seed(seed)
    return FrozenBody(nn.Sequential(nn.Linear(4, 5), nn.Tanh()).double(), KINDS[kind][1], KINDS[kind][0])


def problem(kind, weighted=False, n=120):
    """Three clients of unequal size; of classes, sorted by label."""
    source = torch.Generator().manual_seed(3)
    X = torch.randn(n, 4, generator=source, dtype=torch.float64)
    f = X @ torch.randn(4, 3, generator=source, dtype=torch.float64) + torch.randn(n, 3, generator=source)
    y = {"one logit": (f[:, 0] > 0).long(), "numbers": f[:, 0], "two numbers": f[:, :2]}.get(kind)
    y = f[:, : KINDS[kind][1]].argmax(dim=1) if y is None else y
    order = y.argsort() if y.ndim == 1 else torch.arange(n)
    w = torch.rand(n, generator=source, dtype=torch.float64) if weighted else None
    parts = order.split([20, 60, n - 80])
    return [Rows(X[part], y[part], None if w is None else w[part]) for part in parts]


def direct(body, clients, delta):
    """Mode, covariance and −log evidence of the pooled rows in a layer with a weight for each output: plain Newton.

    Unlike the library's, the coefficients of all C classes are free, each with the prior N(0, 1/δ).
    """
    X = np.concatenate([np.column_stack([body.module(rows.X).numpy(), np.ones(len(rows))]) for rows in clients])
    y = np.concatenate([rows.y.numpy() for rows in clients])
    w = np.concatenate([rows.weighted.double().numpy() for rows in clients])
    C, p = body.outputs, X.shape[1]
    theta = np.zeros((C, p))
    for _ in range(40):
        f = X @ theta.T
        if isinstance(body.likelihood, Gaussian):
            v = body.likelihood.variance
            slope, curvature = (f - y.reshape(f.shape)) / v, np.tile(np.eye(C) / v, (len(X), 1, 1))
            value = 0.5 * (slope**2).sum(axis=1) * v
        elif isinstance(body.likelihood, Bernoulli):
            q = 1 / (1 + np.exp(-f))
            slope, curvature = q - y[:, None], (q * (1 - q))[:, :, None]
            value = np.logaddexp(0, f[:, 0]) - y * f[:, 0]
        else:
            q = np.exp(f - np.logaddexp.reduce(f, axis=1, keepdims=True))
            slope, curvature = q - np.eye(C)[y], q[:, :, None] * np.eye(C) - q[:, :, None] * q[:, None, :]
            value = np.logaddexp.reduce(f, axis=1) - f[np.arange(len(y)), y]
        S = np.einsum("n,nab,ni,nj->aibj", w, curvature, X, X).reshape(C * p, C * p) + delta * np.eye(C * p)
        step = np.linalg.solve(S, ((w[:, None] * slope).T @ X + delta * theta).ravel())
        if np.abs(step).max() < 1e-13:
            break
        theta = theta - step.reshape(C, p)
    logdet = np.linalg.slogdet(S)[1]
    return theta, np.linalg.inv(S), w @ value + 0.5 * delta * (theta**2).sum() + 0.5 * (logdet - C * p * np.log(delta))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_is_that_of_the_pooled_rows(kind, weighted):
    """Within the certificate's bound and rounding (1e-10); covariances to 1e-5. Twin: a client less.

    Of classes both sides are compared in contrasts against the first, which is what rows identify.
    """
    body, clients = body_of(kind), problem(kind, weighted)
    head = last_layer(body, clients, 0.7)
    assert head.certificate.holds
    assert head.exchanges <= 8
    theta, spread, _ = direct(body, clients, 0.7)
    C, p = theta.shape
    change = (
        np.kron(np.hstack([-np.ones((C - 1, 1)), np.eye(C - 1)]), np.eye(p)) if "classes" in kind else np.eye(C * p)
    )
    q, bound = head.fitted.posterior, head.certificate.distance.per_coefficient
    assert (np.abs(q.mean - change @ theta.ravel()) <= bound + 1e-10).all()
    np.testing.assert_allclose(q.covariance_matrix, change @ spread @ change.T, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(head.weight, theta, rtol=0, atol=2 * bound.max() + 1e-10)
    twin, _, _ = direct(body, clients[:2], 0.7)
    assert np.abs(head.weight - twin).max() > 1e3 * (bound.max() + 1e-10)
    assert head.fitted.record.floats == len(q.mean) * (len(q.mean) + 3) // 2


def wine():
    """Nearly separable classes in three clients."""
    data = pytest.importorskip("sklearn.datasets").load_wine()
    X = torch.tensor((data.data - data.data.mean(axis=0)) / data.data.std(axis=0))
    return FrozenBody(nn.Identity(), 3), [Rows(X[k::3], torch.tensor(data.target[k::3])) for k in range(3)]


def separable(kind):
    """Rows of a linear rule without noise: the evidence's slope at the start has another sign than MacKay's step.

    Where features are small, the evidence has another, lower maximum near δ = 10.
    """
    n, p, size, classes = {"two apart": (40, 8, 1.0, 2), "three apart": (60, 10, 1.0, 3), "small": (60, 6, 0.04, 4)}[
        kind
    ]
    source = torch.Generator().manual_seed(3)
    X = size * torch.randn(n, p, generator=source, dtype=torch.float64)
    y = (X @ torch.randn(p, classes, generator=source, dtype=torch.float64)).argmax(dim=1)
    rows = [Rows(X[part], y[part]) for part in torch.arange(n).split([n // 3, n - n // 3])]
    return FrozenBody(nn.Identity(), classes), rows


@pytest.mark.parametrize(
    "kind", ["three classes", "two classes", "one logit", "numbers", "wine", "two apart", "three apart", "small"]
)
def test_the_evidence_is_largest_at_the_chosen_precision(kind):
    """The slope of −log evidence in log δ, from direct solutions, is at most the curvature times the last step, 0.03.

    Twin: a factor of two beside, the slope is larger.
    """
    body, clients = (body_of(kind), problem(kind)) if kind in KINDS else wine() if kind == "wine" else separable(kind)
    head = last_layer(body, clients)

    def value(u):
        return direct(body, clients, np.exp(u))[2]

    def slope(u, h=0.05):
        low, here, high = value(u - h), value(u), value(u + h)
        return (high - low) / (2 * h), (high - 2 * here + low) / h**2

    place = np.log(head.prior_precision)
    if kind.endswith("apart"):
        start = float(torch.cat([rows.X for rows in clients]).square().mean())
        q = last_layer(body, clients, start).fitted.posterior
        prior = body.regression.prior(start, q.dim)
        known = q.dim - np.trace(q.covariance_matrix @ prior.precision)
        assert q.mean @ prior.precision @ q.mean < known  # so that MacKay's step is to a larger δ
        assert slope(np.log(start))[0] > 0
    if kind == "small":
        assert value(place) < value(2.28) - 30
        assert value(2.28) < min(value(1.0), value(4.0))
    found, curvature = slope(place)
    assert curvature > 0
    assert abs(found) <= 0.03 * curvature
    assert abs(slope(place + np.log(2.0))[0]) > 0.3 * curvature
    assert head.certificate.holds
    assert head.exchanges <= 40


def test_held_out_rows_choose_the_precision():
    """The log loss of the predictions at the mode is no lower a factor of √10 to either side."""
    body, clients = body_of("three classes"), problem("three classes")
    held = merge([Rows(rows.X[::3], rows.y[::3]) for rows in clients])
    clients = [Rows(rows.X[1::3], rows.y[1::3]) for rows in clients]
    head = last_layer(body, clients, validate=held)

    def loss(delta):
        p = last_layer(body, clients, delta).predict_proba(held.X)
        return float(-p[torch.arange(len(held)), held.y].log().mean())

    here = loss(head.prior_precision)
    assert loss(head.prior_precision * 10**0.5) >= here
    assert loss(head.prior_precision / 10**0.5) >= here
    numbers = problem("numbers")
    with pytest.warns(Caveat, match="lower end"):  # without classes there is nothing to overfit
        assert last_layer(body_of("numbers"), numbers[1:], validate=numbers[0]).certificate.holds
    with pytest.raises(ValueError, match="validate"):
        last_layer(body, clients, 1.0, validate=held)


def between_sites(bodies, clients, task):
    """Return the final result of a run by messages."""
    made = DisclosureRules.none()  # rows made up here
    sites = [
        Site(f"{k}", body.data(rows), rules=made) for k, (body, rows) in enumerate(zip(bodies, clients, strict=True))
    ]
    server = Coordinator.start([site.hello() for site in sites], task)
    while server.outcome is None:
        wire = server.broadcast().to_bytes()
        sites, replies = zip(*(site.step(Message.from_bytes(wire)) for site in sites), strict=True)
        server = server.step(replies)
    return final_result(server.broadcast(), server)


@pytest.mark.parametrize("kind", ["three classes", "one logit", "numbers"])
def test_sites_elsewhere_find_the_same_layer_bit_for_bit(kind):
    body, clients = body_of(kind), problem(kind)
    found, here = body.received(between_sites([body] * 3, clients, body.task(0.3))), last_layer(body, clients, 0.3)
    assert np.array_equal(found.fitted.posterior.mean, here.fitted.posterior.mean)
    assert np.array_equal(found.fitted.posterior.precision, here.fitted.posterior.precision)
    assert (found.prior_precision, found.exchanges) == (pytest.approx(0.3), here.exchanges)
    assert found.certificate.holds


def others(body):
    """Bodies that differ in parameters, a layer without parameters, likelihood or outputs."""
    linear, tanh = body.module
    norm, moved = nn.BatchNorm1d(5).double(), nn.BatchNorm1d(5).double()
    moved.running_mean.fill_(1.0)
    return {
        "parameters": FrozenBody(body_of("three classes", seed=1).module, 3),
        "layers": FrozenBody(nn.Sequential(linear, nn.ReLU()), 3),
        "class weights": FrozenBody(body.module, 3, Categorical(weights=(1.0, 50.0, 1.0))),
        "outputs": FrozenBody(body.module, 5),
        "numbers": FrozenBody(body.module, 2, Gaussian(0.01)),
        "noise": FrozenBody(body.module, 2, Gaussian(100.0)),
        "norm": FrozenBody(nn.Sequential(linear, tanh, norm), 3),
        "statistics": FrozenBody(nn.Sequential(linear, tanh, moved), 3),
    }


def test_a_run_and_a_file_are_those_of_one_body(tmp_path):
    """Sites, server and whoever reads the result have one body, likelihood and prior. Twin: the same body is taken."""
    body, clients = body_of("three classes"), problem("three classes")
    found = between_sites([body] * 3, clients, body.task(0.3))
    body.received(found).save(tmp_path / "head.npz")
    again = FrozenBody(body.module, 3)
    assert np.array_equal(again.received(found).weight, LastLayer.load(tmp_path / "head.npz", again).weight)
    named = [other.names(12) for other in [body, *others(body).values()]]
    assert len(set(named)) == len(named)
    assert FrozenBody(nn.Tanh(), 3).names(12) != FrozenBody(nn.ReLU(), 3).names(12)
    half = FrozenBody(nn.Linear(4, 5).bfloat16(), 3)
    assert half.names(12) != named[0]
    assert_refused([(lambda other=other: other.received(found), "found") for other in others(body).values()])
    for other in others(body).values():
        with pytest.raises(ArchiveError, match="body"):
            LastLayer.load(tmp_path / "head.npz", other)
    for name in ("parameters", "layers", "class weights"):
        with pytest.raises(ValueError, match="features"):
            between_sites([body, body, others(body)[name]], clients, body.task(0.3))


def test_a_run_with_another_prior_is_refused():
    body, clients = body_of("three classes"), problem("three classes")
    unit = body.regression.unit
    priors = (
        FullGaussian(np.full(12, 0.7), np.kron(unit, np.eye(6))),
        FullGaussian(np.zeros(12), np.kron(unit, np.diag(np.linspace(0.1, 5.0, 6)))),
        FullGaussian(np.zeros(12), 1.0),
    )
    runs = [between_sites([body] * 3, clients, GLMTask(METHOD, prior, tol=1e-8)) for prior in priors]
    assert_refused([(lambda found=found: body.received(found), "prior") for found in runs])


def test_a_run_between_sites_without_proof_or_a_class_warns():
    body, clients = body_of("three classes"), problem("three classes")
    with pytest.warns(Caveat, match="does NOT hold"):
        body.received(between_sites([body] * 3, clients, body.task(0.3, rounds=2)))
    for kind, gone in (("three classes", 1), ("three classes", 0), ("one logit", 0), ("one logit", 1)):
        body, clients = body_of(kind), problem(kind)
        kept = [Rows(rows.X, torch.where(rows.y == gone, abs(gone - 1), rows.y)) for rows in clients]
        found = between_sites([body] * 3, kept, body.task(0.3))
        with pytest.warns(Caveat, match=f"Of class {gone} no site has rows"):
            body.received(found)
    few = Rows(clients[0].X[:1], 1 - kept[0].y[:1])  # a row of the class is enough
    body.received(between_sites([body] * 3, [kept[0], kept[1], merge([kept[2], few])], body.task(0.3)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_layer_predicts_the_same_bits(kind, tmp_path):
    body, clients = body_of(kind), problem(kind)
    head = last_layer(body, clients, 0.3)
    head.save(tmp_path / "head.npz")
    again = LastLayer.load(tmp_path / "head.npz", body)
    predict = LastLayer.predict if body.likelihood.noise() else LastLayer.predict_proba
    assert torch.equal(predict(again, clients[0].X), predict(head, clients[0].X))
    assert again.prior_precision == head.prior_precision
    assert (again.exchanges, again.certificate) == (head.exchanges, head.certificate)
    with pytest.raises(ArchiveError, match="body"):
        LastLayer.load(tmp_path / "head.npz", body_of(kind, seed=1))


@pytest.mark.parametrize("kind", ["three classes", "two classes", "one logit"])
def test_probabilities_are_averages_over_the_posterior(kind):
    """Against 200 000 samples of the layer, within 5 standard errors and 2e-4 of the 256 points of several classes.

    Twin: the prediction at the mode is farther off.
    """
    body, clients = body_of(kind), problem(kind)
    head, X = last_layer(body, clients, 0.05), clients[1].X[:6]
    theta = head.fitted.posterior.sample(np.random.default_rng(0), 200_000)
    contrasts = theta.reshape(len(theta), -1, 6) @ body.design(X).T  # samples, contrasts, rows
    logits = torch.from_numpy(np.pad(contrasts, ((0, 0), (1, 0), (0, 0)))).transpose(1, 2)
    p = logits.softmax(dim=2)
    found, error = head.predict_proba(X, average=True), 5 * p.std(dim=0) / len(p) ** 0.5 + 2e-4
    assert bool(((found - p.mean(dim=0)).abs() < error).all())
    assert not bool(((head.predict_proba(X) - p.mean(dim=0)).abs() < error).all())
    assert torch.equal(head.predict_proba(X, average=True), found)
    assert torch.equal(head.predict(X), head.predict_proba(X).argmax(dim=1))
    at_mode = body.likelihood.probabilities(head.logits(X))
    torch.testing.assert_close(head.predict_proba(X), at_mode, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("classes", [2, 4])
def test_averages_lose_where_features_separate_the_classes(classes):
    """An average over N(m, v) takes probability from the side of m, so that rows that the mode predicts right lose.

    Classes 4 apart: the averages' NLL on held-out rows is 6 to 24 times the mode's at the evidence's δ; 3 is asserted.
    Twin: where features say nothing of the classes, and δ is small, averages are better.
    """
    source, y = torch.Generator().manual_seed(0), torch.arange(20 * classes) % classes
    noise, n, rows = torch.randn(len(y), 8, generator=source, dtype=torch.float64), len(y) // 2, torch.arange(len(y))

    def losses(X, delta):
        head = last_layer(FrozenBody(nn.Identity(), classes), [Rows(X[:n], y[:n])], delta)
        found = [-head.predict_proba(X[n:], average=over)[rows[:n], y[n:]].log() for over in (True, False)]
        return *found, (head.predict(X[n:]) == y[n:])

    averaged, mode, right = losses(noise + 4.0 * torch.eye(classes, 8, dtype=torch.float64)[y], "evidence")
    assert averaged.mean() > 3 * mode.mean()
    assert right.double().mean() > 0.9
    if classes == 2:
        assert torch.equal(averaged > mode, right)
    averaged, mode, _ = losses(noise, 0.01)
    assert averaged.mean() < mode.mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "averaged", "mode"), [("digits", 0.39, 0.11), ("wine", 0.31, 0.11), ("breast_cancer", 0.084, 0.086)]
)
def test_the_losses_of_averages_are_those_of_the_page(name, averaged, mode):
    """NLL on a third of the rows, means over three splits, within 0.01: rounding of the page, and of the search."""
    load = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")
    X, y = load(return_X_y=True)
    X = torch.from_numpy(X / 16 if name == "digits" else (X - X.mean(axis=0)) / X.std(axis=0))
    y, found, n = torch.from_numpy(y), [], 2 * len(y) // 3
    for seed in range(3):
        rows = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
        held = rows[n:]
        body = FrozenBody(nn.Identity(), len(y.unique()))
        head = last_layer(body, [Rows(X[part], y[part]) for part in rows[:n].chunk(3)])
        own = range(len(held)), y[held]
        found.append([-head.predict_proba(X[held], average=over)[own].log().mean() for over in (True, False)])
    np.testing.assert_allclose(np.mean(found, axis=0), [averaged, mode], rtol=0, atol=0.01)


def test_numbers_have_deviations():
    """√(xᵀS⁻¹x + v), and least squares is exact."""
    body, clients = body_of("two numbers"), problem("two numbers")
    head, X = last_layer(body, clients, 0.7), clients[0].X
    theta, spread, _ = direct(body, clients, 0.7)
    design = body.design(X)
    mean, deviation = head.predict(X, return_std=True)
    own = np.einsum("ni,ij,nj->n", design, spread[:6, :6], design)
    np.testing.assert_allclose(mean, design @ theta.T, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(deviation, np.sqrt(own + 0.25)[:, None].repeat(2, axis=1), rtol=1e-9)
    assert torch.equal(head.predict(X), mean)


def test_the_residuals_of_held_out_rows_are_a_variance():
    """The page's advice: NLL on other rows is lower than at the default 1, and than a factor of ten below.

    Targets have noise of variance 0.25 before they are scaled to a standard deviation of 1.
    """
    source = torch.Generator().manual_seed(0)
    X = torch.randn(300, 4, generator=source, dtype=torch.float64)
    y = X.sin().sum(dim=1) + 0.5 * torch.randn(300, generator=source, dtype=torch.float64)
    y, body = (y - y[:100].mean()) / y[:100].std(), body_of("numbers").module

    def fit(variance):
        return last_layer(FrozenBody(body, 1, Gaussian(variance)), [Rows(X[:60], y[:60]), Rows(X[60:100], y[60:100])])

    def nll(variance):
        mean, deviation = fit(variance).predict(X[200:], return_std=True)
        return float((0.5 * ((y[200:] - mean) / deviation) ** 2 + deviation.log()).mean())

    chosen = float((fit(1.0).predict(X[100:200]) - y[100:200]).square().mean())
    assert nll(chosen) < min(nll(1.0), nll(chosen / 10)) - 0.05


class Named(nn.Module):
    """A network whose last layer is registered first, inside another module."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"last": nn.Linear(6, 3), "first": nn.Linear(4, 6)})
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.parts["last"](self.norm(self.drop(self.parts["first"](x))).relu())


@pytest.mark.parametrize("make", [Named, lambda: MLP((4, 6, 3)), lambda: nn.Linear(4, 3)])
def test_the_last_layer_of_a_network_is_replaced(make):
    """The network's other parameters and its mode of training stay; float32 leaves 1e-4 of the logits."""
    torch.manual_seed(0)
    network, clients = make().train(), problem("three classes")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    head = last_layer(network, clients, 0.5)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    replaced, X = head.model(), clients[0].X
    like = next(replaced.parameters())
    torch.testing.assert_close(replaced(X.to(like)).double(), head.logits(X), rtol=0, atol=1e-4)
    changed = [name for name, value in replaced.state_dict().items() if not torch.equal(value, before[name])]
    assert len(changed) == 2
    assert head.certificate.holds


class Split(nn.Module):
    """A network that its last `nn.Linear` and the rest do not make."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.first, self.last = fault, nn.Linear(4, 4), nn.Linear(4, 4)
        self.net = nn.Sequential(self.first, nn.Tanh(), self.last)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return {
            "two names": lambda: self.net(x),
            "two uses": lambda: self.first(hidden),
            "random": lambda: self.last(nn.functional.dropout(hidden)),
            "none": lambda: self.last(hidden),
        }[self.fault]()


def test_a_network_that_does_not_split_is_refused():
    torch.manual_seed(0)
    clients = [Rows(rows.X, rows.y.clamp(max=1) + 2 * (rows.X[:, 0] > 0)) for rows in problem("three classes")]
    faults = ("two names", "two uses", "random")
    assert_refused([(lambda fault=fault: last_layer(Split(fault), clients, 1.0), "network") for fault in faults])
    assert last_layer(Split("none"), clients, 1.0).certificate.holds


def test_a_results_network_and_likelihood_are_taken():
    clients = problem("three classes")
    torch.manual_seed(0)
    done = run(ba.methods.FedAvg(), clients, MLP((4, 6, 3)).double(), rounds=1, solver=AdamSteps(epochs=1))
    heads = [last_layer(given, clients, 0.5) for given in (done, done.posterior, done.model())]
    assert all(torch.equal(head.logits(clients[0].X), heads[0].logits(clients[0].X)) for head in heads)
    one = problem("one logit")
    done = run(ba.methods.FedAvg(), one, MLP((4, 6, 1)).double(), rounds=1, likelihood=Bernoulli())
    assert last_layer(done, one, 0.5).predict_proba(one[0].X).shape == (20, 2)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows.X[i], self.rows.y[i]


def test_a_dataset_is_a_client():
    body, clients = body_of("three classes"), problem("three classes")
    found = last_layer(body, [Pairs(rows) for rows in clients], 0.5)
    assert torch.equal(found.logits(clients[0].X), last_layer(body, clients, 0.5).logits(clients[0].X))


@pytest.mark.parametrize("kind", ["three classes", "numbers"])
def test_a_dataset_is_predicted_in_its_order(kind):
    """As for a network's posterior, also from a shuffled DataLoader, and beyond the thousand rows read at once."""
    body, clients = body_of(kind), problem(kind)
    head, rows = last_layer(body, clients, 0.5), merge(clients * 9)
    for given in (Pairs(rows), torch.utils.data.DataLoader(Pairs(rows), batch_size=7, shuffle=True)):
        torch.testing.assert_close(head.logits(given), head.logits(rows.X))
        torch.testing.assert_close(head.predict(given), head.predict(rows.X))
    if kind == "numbers":
        torch.testing.assert_close(head.predict(Pairs(rows), return_std=True), head.predict(rows.X, return_std=True))
    else:
        torch.testing.assert_close(head.predict_proba(Pairs(rows)), head.predict_proba(rows.X))


def test_rows_that_are_no_pairs_say_what_a_row_is():
    class Named(Pairs):
        def __getitem__(self, i):
            return {"x": self.rows.X[i], "y": self.rows.y[i]}

    body, clients = body_of("three classes"), problem("three classes")
    with pytest.raises(ValueError, match=r"rows must be pairs \(x, y\), got dict: let __getitem__"):
        last_layer(body, [Named(rows) for rows in clients], 0.5)
    with pytest.raises(ValueError, match=r"expected Rows\(X, y\), .* got builtins.dict"):
        last_layer(body, [{}], 0.5)


def test_a_body_without_parameters_computes_with_numbers():
    """Images in bytes are numbers to it, as to a body in float32; they do not overflow at 256."""

    class Centred(nn.Module):
        def forward(self, x):
            return 2 * (x - 128)

    X = torch.arange(256, dtype=torch.uint8).reshape(64, 4)
    assert np.array_equal(FrozenBody(Centred(), 3).design(X)[:, :-1], 2 * (X.numpy().astype(float) - 128))


def test_a_body_leaves_the_rows_as_they_are():
    """A first layer that writes into its input has no effect on the caller's tensors."""

    class Scaled(nn.Module):
        def forward(self, x):
            return x.div_(2.0)

    clients = problem("three classes")
    before = [rows.X.clone() for rows in clients]
    head = last_layer(FrozenBody(Scaled(), 3), clients, 0.5)
    head.predict(clients[0].X)
    assert all(torch.equal(rows.X, own) for rows, own in zip(clients, before, strict=True))


def test_buffers_place_the_inputs():
    """Inputs take the type of a body that has buffers alone, such as means and scales."""
    body = FrozenBody(nn.BatchNorm1d(4, affine=False), 3)
    assert body.design(torch.ones(2, 4, dtype=torch.float64)).shape == (2, 5)
    assert body.module(torch.ones(2, 4)).dtype == torch.float32


def test_features_that_depend_on_other_rows_or_on_chance_are_refused():
    """Twin: the same layers with kept statistics, or in evaluation mode, are taken."""

    class Random(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x)

    class Together(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    torch.manual_seed(0)
    clients = problem("three classes")
    for module in (Random(), Together()):
        with pytest.raises(ValueError, match=r"client \d: features of a row must not depend"):
            last_layer(FrozenBody(module, 3), clients, 0.5)
    trained = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
    assert last_layer(FrozenBody(trained, 3), clients, 0.5).certificate.holds
    half = FrozenBody(nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 30), nn.Tanh()).bfloat16(), 3)
    assert last_layer(half, clients, 0.5).certificate.holds


def test_the_model_can_be_trained_further():
    """The body's parameters stay, and the new layer's have gradients; the head's own body is another copy."""
    torch.manual_seed(0)
    head = last_layer(MLP((4, 6, 3)).double(), problem("three classes"), 0.5)
    model = head.model()
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trainable) == 2
    assert not model.training
    model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
    with torch.no_grad():
        model.get_parameter(trainable[0]).add_(1.0)
    assert not torch.equal(head.model().get_parameter(trainable[0]), model.get_parameter(trainable[0]))


def test_a_head_is_one_line():
    head = last_layer(body_of("three classes"), problem("three classes"), 0.7)
    assert "\n" not in repr(head)
    for part in ("Categorical", "5 features", "3 outputs", "prior_precision=0.7", head.certificate.verdict()):
        assert part in repr(head)


def test_class_weights_and_arrays_are_those_of_networks():
    """A class of weight 2 is the row twice; arrays and an output with `logits` are taken. Twin: without weights."""
    body, clients = body_of("three classes"), problem("three classes")
    weighted = FrozenBody(body.module, 3, Categorical(weights=(1.0, 2.0, 1.0)))
    twice = [merge([rows, Rows(own.X, own.y)]) if len((own := part(rows, 1)).y) else rows for rows in clients]
    arrays = [Rows(rows.X.numpy(), rows.y.numpy()) for rows in clients]
    X = clients[0].X
    found, expected = last_layer(weighted, arrays, 0.5), last_layer(body, twice, 0.5)
    torch.testing.assert_close(found.logits(X.numpy()), expected.logits(X), rtol=1e-6, atol=1e-8)
    assert (last_layer(body, clients, 0.5).logits(X) - expected.logits(X)).abs().max() > 1e-2

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 3).double()

        def forward(self, x):
            return {"logits": self.last(x)}

    assert last_layer(Wrapped(), clients, 0.5).certificate.holds


def part(rows, label):
    """Rows of a class, of which there may be none."""
    return SimpleNamespace(X=rows.X[rows.y == label], y=rows.y[rows.y == label])


def test_what_does_not_fit_is_named():
    body, clients = body_of("three classes"), problem("three classes")

    class Broken(nn.Module):
        def forward(self, x):
            return x.log()

    class After(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            return 2 * self.last(x)

    done = run(ba.methods.FedAvg(), clients, MLP((4, 3)).double(), rounds=1)
    gap = [Rows(rows.X, torch.where(rows.y == 1, 0, rows.y)) for rows in clients]
    assert_refused(
        [
            (lambda: last_layer(body, [], 1.0), "clients"),
            (lambda: last_layer(body, clients[0], 1.0), "clients"),
            (lambda: last_layer(body, gap, 1.0), "clients"),
            (lambda: last_layer("net", clients), "network"),
            (lambda: last_layer(After(), clients), "network"),
            (lambda: last_layer(body, clients, 0.0), "prior_precision"),
            (lambda: last_layer(body, clients, "cv"), "prior_precision"),
            (lambda: last_layer(body, clients, np.ones(2)), "prior_precision"),
            (lambda: last_layer(MLP((4, 1)), clients), "outputs"),
            (lambda: LastLayer.load("none.npz", done), "body"),
            (lambda: LastLayer.load("none.npz", body.module), "body"),
            (lambda: last_layer(body, clients, 1.0).predict_proba(clients[0].X, average=3), "average"),
            (lambda: last_layer(body, clients, 1.0).predict_proba(clients[0].X[:0]), "X"),
            (lambda: last_layer(body, clients, 1.0, likelihood=Gaussian(1.0)), "likelihood"),
            (lambda: last_layer(done, clients, 1.0, likelihood=Bernoulli()), "likelihood"),
            (lambda: FrozenBody(nn.Tanh(), 1), "outputs"),
            (lambda: FrozenBody(nn.Tanh(), 2, Bernoulli()), "outputs"),
            (lambda: FrozenBody(nn.Tanh(), 2, OwnLoss(lambda f, y: f[:, 0])), "likelihood"),
            (lambda: FrozenBody(torch.tanh, 2), "module"),
        ]
    )
    with pytest.raises(ValueError, match="client 0: features of"):
        last_layer(FrozenBody(Broken(), 3), clients, 1.0)
    with pytest.raises(ValueError, match="client 2"):
        last_layer(body, [*clients[:2], Rows(clients[2].X[:, :3], clients[2].y)], 1.0)
    wider = Rows(clients[2].X.repeat(1, 2), clients[2].y)
    with pytest.raises(ValueError, match="client 1: the body must return 4 features"):
        last_layer(FrozenBody(nn.Identity(), 3), [clients[0], wider, clients[1]], 1.0)
    with pytest.raises(ValueError, match="validate: the body must return 4 features"):
        last_layer(FrozenBody(nn.Identity(), 3), clients, validate=wider)
    with pytest.raises(ValueError, match="client 0: labels must be below"):
        last_layer(body_of("two classes"), [Rows(clients[0].X, clients[0].y + 2), *clients[1:]], 1.0)


def test_separable_features_have_a_layer_under_the_prior():
    """Without a prior there would be no mode; a small one leaves the certificate in force."""
    X = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]], dtype=torch.float64)
    rows = Rows(X, (X[:, 0] > 0).long())
    head = last_layer(FrozenBody(nn.Identity(), 2), [rows, rows], 1e-4)
    assert head.certificate.holds
    assert torch.equal(head.predict(X), rows.y)
    chosen = last_layer(FrozenBody(nn.Identity(), 2), [rows, rows])
    assert 1e-8 <= chosen.prior_precision <= 1e8
    assert chosen.certificate.holds


def test_a_fit_far_from_the_mode_is_an_error():
    """Rounding hides Newton's step at features of 1e6 and a weak prior; in their own units the fit is exact."""
    rows = merge(problem("three classes"))
    body, far = FrozenBody(nn.Identity(), 3), Rows(1e6 * rows.X, rows.y)
    with pytest.raises(ba.RunError) as caught:
        last_layer(body, [far], 1e-8)
    assert caught.value.failure.status is ba.Status.ROUNDED
    assert caught.value.result.certificate().pooled > 0.1
    assert last_layer(body, [rows], 1e-8).certificate.holds


def test_a_certificate_that_is_worth_little_warns():
    """Of offsets 1e6 the residual is small, and its bound on the distance is of no use."""
    rows = merge(problem("three classes"))
    with pytest.warns(Caveat, match="standard errors"):
        head = last_layer(FrozenBody(nn.Identity(), 3), [Rows(rows.X + 1e6, rows.y)], 1.0)
    assert head.certificate.is_worth_little


def test_a_search_that_ends_at_an_end_warns():
    """Features without any effect, and classes as frequent as the prior has them, leave the evidence no maximum."""
    X = torch.zeros(12, 1, dtype=torch.float64)
    rows = Rows(X, torch.arange(12) % 3)
    for how in ({}, {"validate": rows}):
        with pytest.warns(Caveat, match="upper end"):
            head = last_layer(FrozenBody(nn.Identity(), 3), [rows], **how)
        assert head.prior_precision == pytest.approx(1e3 if how else 1e8)
    noise = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(Caveat, match="upper end"):  # by one step from where the evidence is flat
        assert last_layer(FrozenBody(nn.Identity(), 4), [Rows(noise, torch.arange(40) % 4)]).exchanges <= 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last_layer(body_of("three classes"), problem("three classes"))


def test_rows_without_probabilities_have_no_class():
    """An error names the row, also where logits alone overflow; a network's probabilities show the row as NaN."""
    clients = problem("three classes")
    torch.manual_seed(0)
    done = run(ba.methods.FedAvg(), clients, MLP((4, 6, 3)).double(), rounds=1)
    X = clients[0].X.clone()
    X[3] = float("nan")
    assert done.posterior.predict_proba(X, samples=0)[3].isnan().all()
    with pytest.raises(ValueError, match="X: 1 rows have NaN for probabilities, first row 3"):
        done.posterior.predict(X, samples=0)
    for kind in KINDS:
        head = last_layer(body_of(kind), problem(kind), 0.5)
        far = torch.cat([X[:1]] * 1500 + [X[3:4]])
        with pytest.raises(ValueError, match="X: features of 1 rows are not finite, first of row 1500"):
            head.predict(far)
    head = last_layer(FrozenBody(nn.Identity(), 3), clients, 0.5)
    X[3] = 1e308
    with (
        pytest.raises(ValueError, match="X: 1 rows have NaN for probabilities, first row 3"),
        np.errstate(all="ignore"),
    ):
        head.predict(X)
