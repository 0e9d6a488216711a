"""IVON against the published package, against Algorithm 2 written out, and against the core's exact solution."""

import io
import math
import warnings
from functools import partial

import numpy as np
import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVON  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

cross_entropy = torch.nn.functional.cross_entropy


def small_network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.Sigmoid(), torch.nn.Linear(5, 3)
    return torch.nn.Sequential(*layers).to(dtype)


def rows(dtype=torch.float32):
    source = torch.Generator().manual_seed(1)
    X = torch.randn(32, 6, generator=source, dtype=dtype)
    return X, torch.randint(0, 3, (32,), generator=source)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(model, optimiser, steps, samples=1):
    X, y = rows(next(model.parameters()).dtype)
    for _ in range(steps):
        for _ in range(samples):
            with optimiser.sampled_params(train=True):
                optimiser.zero_grad()
                cross_entropy(model(X), y).backward()
        optimiser.step()


# ----------------------------------------------------------------------------------------------------
# The same steps as ivon-opt
# ----------------------------------------------------------------------------------------------------

VARIANTS = {
    "plain": ({}, 1),
    "learned Hessian": ({"beta2": 0.9}, 3),
    "clipped, plain rate": ({"clip_radius": 0.1, "rescale_lr": False}, 1),
}


def follow(make, samples, **options):
    model = small_network()
    optimiser = make(model.parameters(), lr=0.1, ess=64.0, hess_init=0.3, weight_decay=1e-2, **options)
    torch.manual_seed(5)  # the package draws from torch's global generator
    train(model, optimiser, 40, samples)
    return flat(model)


# A float32 step commits a few roundings of entries below 1, each at most 6e-8; this problem contracts, so that those of
# 40 steps do not grow: 40 · 4 · 6e-8 ≈ 1e-5.
ROUNDING = 1e-5


@pytest.mark.parametrize(("options", "samples"), VARIANTS.values(), ids=VARIANTS.keys())
def test_follows_ivon_opt_step_for_step(options, samples):
    ivon = pytest.importorskip("ivon", reason="the package ivon-opt is the oracle")
    ours, theirs = follow(IVON, samples, **options), follow(ivon.IVON, samples, **options)
    assert (ours - theirs).abs().max() < ROUNDING
    if "clip_radius" not in options:  # the twin: another β₁ is seen
        broken = follow(IVON, samples, **options, beta1=0.91)
        assert (broken - theirs).abs().max() > 100 * ROUNDING


# ----------------------------------------------------------------------------------------------------
# Algorithm 2, line by line
# ----------------------------------------------------------------------------------------------------


def algorithm_2(loss, m_p, s_p, lam, v, u, *, steps, lr, h0, beta1, beta2, seed, sign=1.0, u_in_h=True, u_in_m=True):
    """The listing of App. D.4 with the bias correction and rate of Shen et al., for `steps` steps from the prior."""
    source = torch.Generator().manual_seed(seed)
    delta = s_p / lam
    m, h, g = m_p.clone(), torch.full_like(m_p, h0), torch.zeros_like(m_p)
    for t in range(1, steps + 1):
        sigma = 1 / torch.sqrt(lam * (h + delta))
        theta = (m + sigma * torch.randn(m.shape, generator=source, dtype=m.dtype)).requires_grad_()
        (g_hat,) = torch.autograd.grad(loss(theta), theta)
        h_hat = g_hat * (theta.detach() - m) / sigma**2 - (u if u_in_h else 0)
        g = beta1 * g + (1 - beta1) * g_hat
        h = beta2 * h + (1 - beta2) * h_hat + 0.5 * (1 - beta2) ** 2 * (h - h_hat) ** 2 / (h + delta)
        slope = g / (1 - beta1**t) + sign * v - (u * m if u_in_m else 0) + delta * (m - m_p)
        m = m - lr * (h0 + delta) * slope / (h + delta)
    return m, lam * (h + delta)


def setting(size=7):
    source = torch.Generator().manual_seed(2)

    def draw():
        return torch.randn(size, generator=source, dtype=torch.float64)

    return {"m_p": draw(), "s_p": draw().exp(), "lam": 30.0, "v": 0.3 * draw(), "u": 0.1 * draw()}


def quartic(theta):
    return (theta**2 + 0.1 * theta**4 - theta).sum()


def ours(setting, steps=25):
    torch.manual_seed(9)  # torch's global generator draws the numbers themselves
    theta = torch.nn.Parameter(setting["m_p"].clone())
    optimiser = IVON(
        [theta],
        lr=0.05,
        ess=setting["lam"],
        hess_init=0.4,
        beta2=0.95,
        prior_mean=setting["m_p"],
        prior_precision=setting["s_p"],
        linear=setting["v"],
        curvature=setting["u"],
    )
    for _ in range(steps):
        with optimiser.sampled_params(train=True):
            quartic(theta).backward()
        optimiser.step()
    return optimiser.posterior()


def error(found, expected):
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


RATES = {"steps": 25, "lr": 0.05, "h0": 0.4, "beta1": 0.9, "beta2": 0.95, "seed": 9}


def test_is_algorithm_2():
    """Precisions are below 1e3, and 25 steps of float64 rounding keep 1e-10 of them; a changed listing is seen."""
    found = ours(setting())
    assert error(found, algorithm_2(quartic, **setting(), **RATES)) < 1e-10
    for twin in ({"sign": -1.0}, {"u_in_h": False}, {"u_in_m": False}, {"lam": 31.0}):
        assert error(found, algorithm_2(quartic, **{**setting(), **RATES, **twin})) > 1e-3


# ----------------------------------------------------------------------------------------------------
# The core's deterministic solution
# ----------------------------------------------------------------------------------------------------


def softmax_problem():
    source = np.random.default_rng(3)
    X = np.column_stack([source.normal(size=(60, 2)), np.ones(60)])
    return X, (X @ source.normal(size=(3, 3)) + source.gumbel(size=(60, 3))).argmax(axis=1)


def diagonal_solution(X, y, precision):
    prior = ba.families.DiagonalGaussian(np.zeros(9), precision)
    loss = ba.losses.Softmax(X, y, n_classes=3)
    return ba.solve_pooled([loss], prior, expectation=ba.losses.QuasiMonteCarlo(1024)).posterior


def stationary_averages(X, y, precision, chains=48, start=2500, stop=6000):
    """Averages of m and s over many small steps, of independent chains: shape (2, chains, 9)."""
    W = torch.nn.Parameter(torch.zeros(chains, 3, 3, dtype=torch.float64))
    rows, labels = torch.tensor(X), torch.tensor(y).repeat(chains)
    options = {"hess_init": 0.1, "beta2": 0.998, "prior_precision": precision}
    optimiser = IVON([W], 0.1, ess=60.0, generator=torch.Generator().manual_seed(4), **options)
    total = np.zeros((2, chains, 9))
    for t in range(stop):
        with optimiser.sampled_params(train=True):
            logits = torch.einsum("nd,kcd->knc", rows, W).flatten(0, 1)
            (cross_entropy(logits, labels, reduction="sum") / 60).backward()
        optimiser.step()
        if t >= start:
            total += np.stack([x.view(chains, -1).numpy() for x in optimiser.posterior()])
    return total / (stop - start)


def test_linear_softmax_agrees_with_the_cores_diagonal_solution():
    """Two routes to one variational posterior, deterministic and by sampling, tie the two halves together."""
    X, y = softmax_problem()
    averages = stationary_averages(X, y, 2.0)
    found, errors = averages.mean(axis=1), averages.std(axis=1, ddof=1) / math.sqrt(averages.shape[1])

    def excess(exact):
        """By how much means (in posterior standard deviations) and precisions (relative) are beyond what is allowed.

        18 comparisons are allowed 4.5 standard errors, and half a per cent for the bias of finite steps: both the
        learning rate's and that of line 5's last term are proportional to it.
        """
        scale = np.stack([exact.precision**-0.5, exact.precision])
        far = np.abs(found - np.stack([exact.mean, exact.precision])) / scale
        return (far - 4.5 * errors / scale - 0.005).max(axis=1)

    exact = diagonal_solution(X, y, 2.0)
    # the standard errors are themselves small, so that the comparison is a sharp one
    assert (errors[0] * exact.precision**0.5).max() < 0.005
    assert (errors[1] / exact.precision).max() < 0.008
    assert (excess(exact) < 0).all()
    assert (excess(diagonal_solution(X, y, 2.4)) > 0).all()  # the twin: another prior


# ----------------------------------------------------------------------------------------------------
# A torch optimiser like others
# ----------------------------------------------------------------------------------------------------


def make(model, seed=0, **options):
    options = {"lr": 0.1, "ess": 32.0, "beta2": 0.9, "generator": torch.Generator().manual_seed(seed), **options}
    return IVON(model.parameters(), **options)


def test_state_dict_continues_bit_for_bit_through_a_file():
    whole, part = small_network(), small_network()
    vectors = {"prior_mean": 0.1, "prior_precision": 2.0, "linear": 0.01, "curvature": 0.02}
    first, second = make(whole, **vectors), make(part, **vectors)
    train(whole, first, 6)
    train(part, second, 3)
    X, y = rows()
    with second.sampled_params(train=True):  # a sample that waits for its step is part of the state
        cross_entropy(part(X), y).backward()
    file = io.BytesIO()
    torch.save({"model": part.state_dict(), "optimiser": second.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # nothing that would need pickle
    fresh = small_network()
    third = make(fresh, seed=99)
    fresh.load_state_dict(saved["model"])
    third.load_state_dict(saved["optimiser"])
    third.step()
    train(fresh, third, 2)
    assert torch.equal(flat(fresh), flat(whole))
    for resumed, uninterrupted in zip(third.posterior(), first.posterior(), strict=True):
        assert torch.equal(resumed, uninterrupted)


def test_state_dict_of_something_else_is_refused():
    optimiser = make(small_network())
    with pytest.raises(ValueError, match="other parameters"):
        optimiser.load_state_dict(IVON([torch.nn.Parameter(torch.ones(3))], 0.1, ess=1.0).state_dict())
    with pytest.raises(ValueError, match="not one of IVON"):
        optimiser.load_state_dict(torch.optim.Adam(small_network().parameters()).state_dict())


def test_groups_are_independent_optimisers():
    a, b = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    c, d = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    # one generator serves the groups in turn, as it serves two optimisers that take turns
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    slow = {"lr": 0.01, "hess_init": 0.5, "prior_mean": 2.0}
    together = IVON([{"params": [a]}, {"params": [b], **slow}], lr=0.1, ess=9.0, beta2=0.9, generator=generators[0])
    apart = [
        IVON([c], lr=0.1, ess=9.0, beta2=0.9, generator=generators[1]),
        IVON([d], **slow, ess=9.0, beta2=0.9, generator=generators[1]),
    ]
    for _ in range(4):
        with together.sampled_params(train=True):
            ((a - 3) ** 2 + (b - 3) ** 2).sum().backward()
        together.step()
        for optimiser, x in zip(apart, (c, d), strict=True):
            with optimiser.sampled_params(train=True):
                ((x - 3) ** 2).sum().backward()
            optimiser.step()
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)


def test_backward_passes_in_one_block_add_up():
    """Micro-batches at one sample are the batch: to rounding, 10 steps of float64."""
    whole, pieces = (small_network(torch.float64) for _ in range(2))
    X, y = rows(torch.float64)
    optimisers = make(whole), make(pieces)
    for _ in range(10):
        with optimisers[0].sampled_params(train=True):
            cross_entropy(whole(X), y).backward()
        with optimisers[1].sampled_params(train=True):
            for part in (slice(0, 8), slice(8, 32)):
                (cross_entropy(pieces(X[part]), y[part], reduction="sum") / 32).backward()
        for optimiser in optimisers:
            optimiser.step()
    assert (flat(whole) - flat(pieces)).abs().max() < 1e-13


def test_autocast_keeps_the_state_in_float32():
    model = small_network()
    optimiser = make(model)
    X, y = rows()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        start = cross_entropy(model(X), y).item()
    for _ in range(60):
        with optimiser.sampled_params(train=True), torch.autocast("cpu", dtype=torch.bfloat16):
            cross_entropy(model(X), y).backward()
        optimiser.step()
    assert {x.dtype for x in (*optimiser.posterior(), *model.parameters())} == {torch.float32}
    assert cross_entropy(model(X), y).item() < start


def test_a_grad_scaler_is_refused():
    """`step` would take gradients that are too long by the scale."""
    model = small_network()
    optimiser, scaler = make(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    X, y = rows()
    before = flat(model)
    with optimiser.sampled_params(train=True):
        scaler.scale(cross_entropy(model(X), y)).backward()
    with pytest.raises(RuntimeError, match="GradScaler"):
        scaler.step(optimiser)
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("blocks", [1, 2])
def test_gradients_are_clipped_in_their_block_or_not_at_all(blocks):
    """After the block it is refused, also where it would change nothing. Inside it is a step with another gradient."""
    X, y = rows()

    def one(norm=None, after=None):
        model = small_network()
        optimiser = make(model)
        for _ in range(blocks):
            with optimiser.sampled_params(train=True):
                cross_entropy(model(X), y).backward()
                if norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
        if after:
            torch.nn.utils.clip_grad_norm_(model.parameters(), after)
        optimiser.step()
        return flat(model)

    assert torch.equal(one(1e9), one())
    assert (one(1e-3) - one()).abs().max() > 1e-4
    for norm in (1e-3, 1e9):
        with pytest.raises(RuntimeError, match="changed after their block: clip them"):
            one(after=norm)


def test_a_sample_is_not_taken_for_the_mean():
    model = small_network()
    optimiser = make(model)
    train(model, optimiser, 1)
    before = flat(model)
    with optimiser.sampled_params():
        for wrong in (optimiser.step, optimiser.posterior):
            with pytest.raises(RuntimeError, match="leave the block"):
                wrong()
    assert torch.equal(flat(model), before)


def test_samples_are_those_of_the_posterior_and_leave_the_mean():
    x = torch.nn.Parameter(torch.full((20000,), 2.0))
    optimiser = IVON([x], 0.1, ess=50.0, hess_init=0.3, prior_precision=5.0, generator=torch.Generator().manual_seed(0))
    with optimiser.sampled_params():
        sample = x.detach().clone()
    assert bool((x == 2.0).all())
    # s = 50 · (0.3 + 5/50) = 20; the standard errors of mean and variance of 20000 normals, four times
    assert abs(float(sample.mean()) - 2.0) < 4 * (20 * 20000) ** -0.5
    assert abs(20 * float(sample.var()) - 1.0) < 4 * (2 / 20000) ** 0.5


def test_a_block_that_fails_or_cannot_be_used_leaves_no_trace():
    model = small_network()
    optimiser = make(model)
    before = flat(model)
    with pytest.raises(KeyError), optimiser.sampled_params(train=True):
        raise KeyError
    with optimiser.sampled_params(), pytest.raises(RuntimeError, match="nested"), optimiser.sampled_params():
        pass
    with pytest.raises(RuntimeError, match="backward"), optimiser.sampled_params(train=True):
        pass
    assert torch.equal(flat(model), before)
    for closure in (None, lambda: 0.0):
        with pytest.raises(RuntimeError, match="step needs a sample"):
            optimiser.step(closure)
    train(model, optimiser, 1)


def test_a_hessian_that_has_not_moved_is_reported():
    model = small_network()
    optimiser = make(model, beta2=0.99999)
    train(model, optimiser, 5)
    with pytest.warns(UserWarning, match="has moved by .* in 5 steps with beta2=0.99999"):
        optimiser.posterior()
    learned = make(model, beta2=0.9)
    train(model, learned, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learned.posterior()


WRONG = [
    ("lr", 0.0),
    ("ess", -1.0),
    ("ess", "many"),
    ("hess_init", 0.0),
    ("beta1", 1.0),
    ("beta2", -0.1),
    ("weight_decay", -1e-4),
    ("clip_radius", 0.0),
    ("generator", 3),
    ("prior_mean", torch.zeros(3)),
    ("linear", [torch.zeros(3)]),
    ("linear", [0.1, 0.2]),
    ("curvature", float("nan")),
    ("prior_precision", 0.0),
]


def test_wrong_arguments_are_named():
    def parameters(*kinds):
        return lambda: IVON([torch.nn.Parameter(torch.zeros(2, dtype=kind)) for kind in kinds], 0.1, ess=1.0)

    calls = [(partial(make, small_network(), **{name: value}), name) for name, value in WRONG]
    mixed = parameters(torch.float32, torch.float64)
    assert_refused([*calls, (parameters(torch.bfloat16), "params"), (mixed, "params:")])
