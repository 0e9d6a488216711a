"""Compiled clients: published vectors of the cipher, exact normals, autograd's gradients, and the steps in torch.

Whatever stands compiled and in torch is held together here: cipher, normals, gradients, steps of Adam and of IVON.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
pytest.importorskip("numba", reason="compiled clients need the extra `compiled`")
from bayesadmm_np.torch import IVON, IVONADMM, MLP, AdamSteps, FedLapFunc, IVONSteps, Rows, compiled, noise, run  # noqa: E402
from bayesadmm_np.torch.compiled import kernels  # noqa: E402
from bayesadmm_np.torch.compiled.client import layers_of  # noqa: E402
from bayesadmm_np.torch.functional import SharedTerms  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from bayesadmm_np.torch.problem import LocalProblem  # noqa: E402
from bayesadmm_np.torch.steps import local_work  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn, CPU = torch.nn, torch.device("cpu")
KEY = np.array([7, 11], np.uint32)

# ----------------------------------------------------------------------------------------------------
# Noise
# ----------------------------------------------------------------------------------------------------

KNOWN = {
    "zeros": ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
}


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN.values(), ids=KNOWN.keys())
def test_the_cipher_is_philox(counter, key, expected):
    """The known answers of Philox4x32-10 that Random123 publishes; the twin's key differs in a bit."""
    words, key = np.repeat(np.array(counter, np.uint32)[:, None], 3, axis=1), np.array(key, np.uint32)
    twin = words.copy()
    assert np.transpose(noise.philox(words.astype(np.uint64), key)).tolist() == [expected] * 3
    kernels.philox(words, key)
    assert words.T.tolist() == [expected] * 3
    kernels.philox(twin, key ^ np.array([1, 0], np.uint32))
    assert (twin != words).all()


def exact_normals(size, key, step):
    """Box and Muller's transform in float64, of the same words."""
    blocks = -(-size // (4 * kernels.LANES))
    found = []
    for block in range(blocks):
        words = np.zeros((4, kernels.LANES), np.uint32)
        words[0], words[1] = block * kernels.LANES + np.arange(kernels.LANES), step
        kernels.philox(words, key)
        top = (words >> np.uint32(8)).astype(np.float64)
        for i in (0, 2):
            radius = np.sqrt(-2.0 * np.log((top[i] + 1.0) / 2**24))
            angle = 2.0 * np.pi * top[i + 1] / 2**24
            found += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.concatenate(found)[:size]


@pytest.mark.parametrize(("dropped", "close"), [(0, True), (1, False)])
def test_normals_are_exact_to_rounding(dropped, close, monkeypatch):
    """r ≤ 5.8 times 4 roundings of 6e-8 in the angle's polynomial, and of ln u up to 17 over 2r: below 2e-6.

    The twin, interpreted, has a Taylor series that is one term short: t⁹/9! is 3e-7 of r at an eighth of a turn, t⁷/7!
    3.7e-5.
    """
    found = np.empty(20_000, np.float32)
    if dropped:
        monkeypatch.setattr(kernels, "SINE", (*kernels.SINE[:3], np.float32(0.0), np.float32(0.0)))
        monkeypatch.setattr(kernels, "_circle", kernels._circle.py_func)
        monkeypatch.setattr(kernels, "_block", kernels._block.py_func)
        kernels.normals.py_func(found, KEY, 3)
    else:
        kernels.normals(found, KEY, 3)
    expected = exact_normals(len(found), KEY, 3)
    assert (np.abs(found - expected).max() < 2e-6) == close


@pytest.mark.parametrize(("turn", "close"), [(1.0, True), (1.0 + 1e-6, False)])
def test_normals_in_torch_are_exact_to_rounding(turn, close, monkeypatch):
    """The angle is rounded twice, at most 2π·2⁻²⁴, and cosine and sine once: r ≤ 5.8 times 5e-7 is below 3e-6.

    The twin's angle is longer by a millionth, 3e-6 at half a turn.
    """
    monkeypatch.setattr(compiled, "_client_module", lambda: None)
    monkeypatch.setattr(np, "pi", turn * np.pi)
    found = noise.normals(torch.empty(20_000), KEY, 3).numpy()
    monkeypatch.undo()
    assert (np.abs(found - exact_normals(len(found), KEY, 3)).max() < 3e-6) == close


@pytest.mark.parametrize("w", [0, 1, 255, 2**24 - 2, 2**24 - 1, 11_863_282, 11_863_283])
def test_radii_at_the_ends_and_beside_root_half(w):
    """u = 2⁻²⁴, 1 − 2⁻²⁴, 1 and ±2⁻²⁴ about √½: 4 roundings, also where ln u is next to zero."""
    words, radius = np.full(8, w << 8, np.uint32), np.empty(8, np.float32)
    kernels._radius(words, radius)
    assert radius == pytest.approx(np.sqrt(-2.0 * np.log((w + 1) / 2**24)), rel=4 * 2.0**-24, abs=0.0)


def test_normals_are_normal():
    """Kolmogorov and Smirnov at 1e-3, fixed key; mean, variance and kurtosis to 4 deviations. The twin is uniform."""
    drawn = np.empty((20, 50_000), np.float32)
    for step, row in enumerate(drawn):
        kernels.normals(row, KEY, step)
    z = drawn.ravel().astype(np.float64)
    n = len(z)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(z * 1.01, "norm").pvalue < 1e-3
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 4 * np.sqrt(96 / n)
    for a, b in (
        (drawn[:-1], drawn[1:]),
        (drawn[:, :-1], drawn[:, 1:]),
        (drawn[:, : -kernels.LANES], drawn[:, kernels.LANES :]),
    ):
        for f in (np.asarray, np.square):
            products = (f(a) - f(a).mean()).astype(np.float64) * (f(b) - f(b).mean())
            assert abs(products.mean()) < 4 * products.std() / np.sqrt(products.size)


@pytest.mark.parametrize("size", [1, 43, 256, 1023, 1024, 1025, 3000])
def test_a_number_is_a_function_of_key_step_and_place(size):
    whole, part = np.empty(5000, np.float32), np.empty(size, np.float32)
    kernels.normals(whole, KEY, 5)
    kernels.normals(part, KEY, 5)
    assert np.array_equal(part, whole[:size])
    for key, step in ((KEY, 6), (KEY[::-1].copy(), 5)):  # the twins
        kernels.normals(part, key, step)
        assert not np.isclose(part, whole[:size]).any()


def test_float64_gets_the_same_noise():
    single, double = np.empty(100, np.float32), np.empty(100)
    for out in (single, double):
        kernels.normals(out, KEY, 0)
    assert np.array_equal(single, double)


# ----------------------------------------------------------------------------------------------------
# Gradients
# ----------------------------------------------------------------------------------------------------


def gradient_of(net, theta, X, y, weights):
    """The compiled gradient."""
    layers = layers_of(net, len(y), theta)
    layers[2][: X.size] = X.ravel()
    layers[4][:] = weights[:, None] * np.eye(layers[4].shape[1])[y]
    out = np.full(len(theta), np.nan, theta.dtype)
    kernels.gradient(theta, out, layers)
    return out


MODELS = {
    "no hidden layer": lambda: nn.Linear(4, 3),
    "sigmoids": lambda: MLP((4, 5, 3)),
    "three kinds": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 5), nn.Sigmoid(), nn.Linear(5, 3)
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_gradients_are_those_of_autograd(make, dtype, tolerance):
    """Sums of at most 12 terms below 1, to rounding; the last row has weight zero. The twin takes other labels."""
    torch.manual_seed(0)
    net = Network(make().to(dtype), CPU)
    X, y = torch.randn(7, 4, dtype=dtype), torch.randint(0, 3, (7,))
    weights = torch.tensor([1 / 6] * 6 + [0.0], dtype=dtype)
    theta = net.start.clone().requires_grad_()
    pieces = [p.view(shape) for p, shape in zip(theta.split(net.sizes), net.shapes, strict=True)]
    module = net.module
    logits = torch.func.functional_call(module, dict(zip(net.names, pieces, strict=True)), (X,))
    (nn.functional.cross_entropy(logits, y, reduction="none") @ weights).backward()
    found = gradient_of(net, net.start.numpy(), X.numpy(), y.numpy(), weights.numpy())
    assert np.abs(found - theta.grad.numpy()).max() < tolerance
    twin = gradient_of(net, net.start.numpy(), X.numpy(), (y.numpy() + 1) % 3, weights.numpy())
    assert np.abs(twin - found).max() > 1e-3


def test_large_logits_do_not_overflow():
    """softmax(±2e4) is one-hot, so that the gradient at a wrong label is x for one class and −x for the other."""
    net = Network(nn.Linear(1, 2), CPU)
    theta = np.array([2e4, -2e4, 0.0, 0.0], np.float32)
    one = np.ones(1, np.float32)
    assert gradient_of(net, theta, one[None], np.array([1]), one).tolist() == [1.0, -1.0, 1.0, -1.0]


# ----------------------------------------------------------------------------------------------------
# Steps
# ----------------------------------------------------------------------------------------------------


def clients(sizes=(23, 10, 17), dtype=torch.float64):
    source = torch.Generator().manual_seed(0)
    return [
        Rows(torch.randn(n, 4, generator=source, dtype=dtype), torch.randint(0, 3, (n,), generator=source))
        for n in sizes
    ]


def task_for(net, count, plain_terms=False):
    """A problem in which every term counts, or that of FedAvg."""
    source, P = torch.Generator().manual_seed(3), len(net.start)

    def draw(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(net.start)

    task = LocalProblem(
        start=net.start,
        centre=draw(1, P),
        precision=draw(1, P).exp(),
        linear=draw(count, P),
        curvature=0.1 * draw(count, P).abs(),
        rho=torch.linspace(0.5, 0.9, count).to(net.start)[:, None],
        temperature=0.5,
    )
    nothing = net.start.new_zeros(1, 1)
    return replace(task, linear=nothing, curvature=nothing, rho=0.0 * task.rho) if plain_terms else task


SHORT = {"epochs": 3, "batch_size": 6}
SOLVERS = {
    "Adam": (AdamSteps(**SHORT, lr=0.01), False),
    "Adam without terms": (AdamSteps(**SHORT, lr=0.01, beta1=0.8, beta2=0.9, eps=1e-3), True),
    "IVON": (IVONSteps(**SHORT, lr=0.1, hess_init=0.1, beta2=0.9), False),
    "clipped": (IVONSteps(**SHORT, lr=10.0, hess_init=0.01, clip_radius=0.01), False),
    "neither debiased nor rescaled": (IVONSteps(**SHORT, lr=0.05, debias=False, rescale_lr=False), False),
    "from the server": (IVONSteps(**SHORT, lr=0.1, hess_start="server"), False),
    "Newton's rate": (IVONSteps(**SHORT, lr=1e3, hess_init=0.1, beta2=0.9), False),
}


@pytest.mark.parametrize("hidden", [5, 300], ids=["less than a block", "three blocks"])
@pytest.mark.parametrize(("solver", "plain_terms"), SOLVERS.values(), ids=SOLVERS.keys())
def test_steps_are_those_of_stacks(solver, plain_terms, hidden, monkeypatch):
    """Same noise and other roundings: 12 float64 steps keep 1e-10 of what moved. The twin has other seeds."""
    torch.manual_seed(1)
    net = Network(MLP((4, hidden, 3)).double(), CPU)
    data, task = clients(), task_for(net, 3, plain_terms)
    if isinstance(solver, IVONSteps) and solver.hess_start == "server":
        task = replace(task, ess=20.0, reached=3.0 * task.precision)

    def of(seeds):
        return local_work(net, data, task, solver, seeds, {})

    found, twin = of([3, 4, 5]), of([6, 7, 8])
    monkeypatch.setattr(compiled, "does", lambda *_: False)
    expected = of([3, 4, 5])
    for name in ("mean", "precision", "hess"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            size = (other - task.start).abs().max() if name == "mean" else other.abs().max()
            assert (one - other).abs().max() < 1e-10 * size
    assert (found.mean - twin.mean).abs().max() > 1e-3 * (found.mean - task.start).abs().max()


def shared_by(count, dtype):
    """Function-space terms of some clients, who own three points each: inputs are images, as the rows are."""
    source, points = torch.Generator().manual_seed(4), 3 * count
    inputs = torch.randn(points, 2, 2, generator=source, dtype=dtype)
    common, own = torch.rand(2, points, 3, generator=source, dtype=dtype)
    return SharedTerms(inputs, 5.0 * common, 5.0 * own, torch.arange(points) // 3, torch.arange(count))


@pytest.mark.parametrize("batch_size", [6, 100])
@pytest.mark.parametrize(("dtype", "kept"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("solver", [SOLVERS["Adam"][0], SOLVERS["IVON"][0]], ids=["Adam", "IVON"])
def test_terms_at_shared_inputs_are_those_of_stacks(solver, dtype, kept, batch_size, monkeypatch):
    """As above; 23, 10 and 17 rows are no multiples of 6. The twins have no terms, or another client's."""
    torch.manual_seed(1)
    net, solver = Network(MLP((4, 5, 3)).to(dtype), CPU), replace(solver, batch_size=batch_size)
    data = [Rows(rows.X.view(-1, 2, 2), rows.y) for rows in clients(dtype=dtype)]
    shared = shared_by(3, dtype)

    def of(shared):
        return local_work(net, data, replace(task_for(net, 3), shared=shared), solver, [3, 4, 5], {})

    found, twins = of(shared), (of(None), of(shared.of([1, 2, 0])))
    monkeypatch.setattr(compiled, "does", lambda *_: False)
    expected = of(shared)
    moved = (expected.mean - net.start).abs().max()
    assert (found.mean - expected.mean).abs().max() < kept * moved
    assert all((found.mean - twin.mean).abs().max() > 1e-3 * moved for twin in twins)


ROWS = {
    "Adam": (ba.methods.FedAvg(), AdamSteps(**SHORT), MLP, True),
    "IVON": (IVONADMM(0.5, 0.1), IVONSteps(**SHORT), MLP, True),
    "two samples": (IVONADMM(0.5, 0.1), IVONSteps(**SHORT, samples=2), MLP, False),
    "squared gradients": (IVONADMM(0.5, 0.1), IVONSteps(**SHORT, hess_approx="gradsq"), MLP, False),
    "memory": (FedLapFunc(0.5, server_steps=2), AdamSteps(**SHORT), MLP, True),
    "another module": (
        ba.methods.FedAvg(),
        AdamSteps(**SHORT),
        lambda _: nn.Sequential(nn.Linear(4, 3), nn.GELU()),
        False,
    ),
}


@pytest.mark.parametrize(("method", "solver", "make", "expected"), ROWS.values(), ids=ROWS.keys())
def test_what_is_compiled(method, solver, make, expected, monkeypatch):
    seen, whole = [], Network.gradient
    monkeypatch.setattr(Network, "gradient", lambda *terms, **options: seen.append("torch") or whole(*terms, **options))
    run(method, clients(), make((4, 5, 3)).double(), rounds=2, solver=solver)
    assert (not seen) == expected


def test_what_is_not_a_number_stays_so():
    """Logits beyond float32: a clipped step would hide them, and the client's failure with them."""
    net = Network(nn.Linear(1, 2), CPU)
    net.start.fill_(10.0)
    rows = Rows(torch.full((4, 1), 3e38), torch.tensor([0, 1, 0, 1]))
    for solver in (IVONSteps(epochs=2, batch_size=2, clip_radius=0.1), AdamSteps(epochs=2, batch_size=2, lr=1.0)):
        task = task_for(net, 1, plain_terms=isinstance(solver, AdamSteps))
        assert bool(local_work(net, [rows], task, solver, [0], {}).mean.isnan().any())


def test_without_a_directory_for_what_is_compiled(monkeypatch):
    """As under a read-only installation without a home; Numba says so when it is told to cache."""

    def njit(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(kernels, "njit", njit)
    function, options = kernels.jit(print)
    assert function is print
    assert options["nogil"]


def test_inputs_of_any_shape_are_vectors():
    """Images and their pixels are the same rows, bit for bit."""
    torch.manual_seed(0)
    model = MLP((12, 5, 3))
    X, y = torch.randn(9, 3, 2, 2), torch.randint(0, 3, (9,))
    found = []
    for rows in (X.flatten(1), X, X.mT):
        net = Network(model, CPU)
        found.append(local_work(net, [Rows(rows, y)], task_for(net, 1), AdamSteps(**SHORT), [0], {}).mean)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])  # the twin


@pytest.mark.parametrize("batch_size", [1, 6, 100])
@pytest.mark.parametrize("solver", [AdamSteps(epochs=2), IVONSteps(epochs=2, lr=0.1)], ids=["Adam", "IVON"])
def test_steps_in_float32(solver, batch_size, monkeypatch):
    """Up to 46 steps, batches that are larger than a client's rows, a strided label: 1e-4 of what moved."""
    torch.manual_seed(1)
    net, solver = Network(MLP((4, 5, 3)), CPU), replace(solver, batch_size=batch_size)
    data = [Rows(rows.X, torch.stack([rows.y, rows.y], dim=1)[:, 0]) for rows in clients(dtype=torch.float32)]
    found = local_work(net, data, task_for(net, 3), solver, [3, 4, 5], {}).mean
    monkeypatch.setattr(compiled, "does", lambda *_: False)
    expected = local_work(net, data, task_for(net, 3), solver, [3, 4, 5], {}).mean
    assert (found - expected).abs().max() < 1e-4 * (expected - net.start).abs().max()


@pytest.mark.parametrize("method", [ba.methods.FedAvg(), FedLapFunc(server_steps=2)], ids=["rows", "shared inputs"])
def test_inputs_may_require_gradients(method):
    rows = clients()
    asking = [Rows(one.X.clone().requires_grad_(), one.y) for one in rows]
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    found = [run(method, x, model, rounds=2, solver=AdamSteps(**SHORT)).state.mean for x in (rows, asking)]
    assert torch.equal(*found)
    assert not torch.equal(found[0], run(method, asking, model, rounds=1, solver=AdamSteps(**SHORT)).state.mean)


def test_rows_that_changed_since_the_run_began_are_refused():
    """Compiled code would write where it must not."""
    rows = clients()

    def spoil(record, state):
        rows[1].y.add_(100_000_000)

    with pytest.raises(ValueError, match=r"y must lie in 0 … 2, got 100000000"):
        run(ba.methods.FedAvg(), rows, MLP((4, 5, 3)).double(), rounds=2, solver=AdamSteps(**SHORT), callback=spoil)
    net = Network(nn.Linear(4, 3), CPU)
    wide = [Rows(torch.ones(3, width), torch.zeros(3, dtype=torch.int64)) for width in (4, 5)]
    with pytest.raises(ValueError, match="X must have 4 columns, got 5"):
        local_work(net, wide, task_for(net, 2), AdamSteps(**SHORT), [0, 1], {})


@pytest.mark.parametrize("name", ["_draw", "_update"])
def test_bits_are_those_of_plain_arithmetic(name):
    """Compiled or interpreted: otherwise a run that goes on in another process may find other machine code there."""
    arrays = np.random.default_rng(0).uniform(0.5, 1.5, (9, 1000)).astype(np.float32)

    def of(function):
        mean, hess, momentum, gradient, product, *terms = arrays.copy()
        if name == "_draw":
            function(mean, hess, terms[0], momentum, 20.0, gradient, product)
        else:
            numbers = tuple(map(np.float32, (20.0, 0.01, 0.1, 1.7, 0.7)))
            function((mean, hess, momentum), (gradient, product), tuple(terms), numbers)
        return np.stack([mean, hess, momentum, gradient, product])

    found = of(getattr(kernels, name))
    assert np.array_equal(found, of(getattr(kernels, name).py_func))
    assert not np.array_equal(found, arrays[:5])


# ----------------------------------------------------------------------------------------------------
# The optimiser
# ----------------------------------------------------------------------------------------------------

AROUND = {
    "plain": {},
    "vectors": {"prior_mean": 0.1, "prior_precision": 3.0, "linear": 0.02, "curvature": 0.1},
    "squares": {"hess_approx": "gradsq", "rescale_lr": False, "debias": False},
    "clipped": {"clip_radius": 0.05},
}


def optimised(options, samples, size=2 * kernels.BLOCK + 3):
    """Five steps on a quartic, whose gradient is not a number times θ."""
    torch.manual_seed(0)
    x = nn.Parameter(torch.randn(size, dtype=torch.float64))
    optimiser = IVON(
        [x], generator=torch.Generator().manual_seed(3), **{"lr": 0.1, "ess": 50.0, "beta2": 0.9, **options}
    )
    for _ in range(5):
        for _ in range(samples):
            with optimiser.sampled_params(train=True):
                (0.25 * x**4 + x).sum().backward()
        optimiser.step()
    return torch.cat([x.detach(), *optimiser.posterior()])


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("around", AROUND)
def test_the_optimisers_passes_are_those_of_torch(around, samples, monkeypatch):
    found = optimised(AROUND[around], samples)
    twin = optimised(AROUND[around] | {"lr": 0.1001}, samples) if around == "plain" else None
    door = compiled.kernel_of
    monkeypatch.setattr(compiled, "kernel_of", lambda name: door(name) if name == "normals" else None)
    in_torch = optimised(AROUND[around], samples)
    # some ten roundings of float64 a step; where θ is large the quartic multiplies an error by up to a hundred a step
    tolerance = 100**3 * 10 * 2.0**-53 * (1 + in_torch.abs())
    assert ((found - in_torch).abs() <= tolerance).all()
    assert twin is None or ((twin - in_torch).abs() > tolerance).any()
