"""IVON's noise and steps: published vectors of the cipher, exact normals, the same numbers with Numba and without."""

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVON, IVONADMM, MLP, IVONSteps, Rows, arithmetic, randomness, run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn
KEY = np.array([7, 11], np.uint32)
SINGLE = 2.0**-24


@pytest.fixture
def without_numba(monkeypatch):
    def switch():
        monkeypatch.setattr(arithmetic, "IS_COMPILED", False)

    return switch


def normals(size, key=KEY, step=3, dtype=torch.float32):
    return randomness.normals(torch.empty(size, dtype=dtype), key, step).numpy()


KNOWN = {
    "zeros": ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
}


def enciphered(counter, key):
    words = [np.array([word], np.uint32) for word in (*counter, *key)]
    return [int(word[0]) for word in arithmetic.philox(*words)]


def test_the_cipher_is_philox():
    """The known answers of Philox4x32-10 that Random123 publishes; the twin's key differs in a bit."""
    found = {name: enciphered(counter, key) for name, (counter, key, _) in KNOWN.items()}
    assert found == {name: expected for name, (*_, expected) in KNOWN.items()}
    assert enciphered([0] * 4, [1, 0]) != KNOWN["zeros"][2]


def exact_normals(size, key, step):
    """Box and Muller's transform in float64, of the same words."""
    found = []
    for block in range(-(-size // (4 * arithmetic.LANES))):
        counters = (block * arithmetic.LANES + np.arange(arithmetic.LANES)).astype(np.uint32)
        zero = np.uint32(0)
        words = arithmetic.philox(counters, np.uint32(step), zero, zero, key[:1], key[1:])
        top = [(word >> np.uint32(8)).astype(np.float64) for word in words]
        for i in (0, 2):
            radius = np.sqrt(-2.0 * np.log((top[i] + 1.0) / 2**24))
            angle = 2.0 * np.pi * top[i + 1] / 2**24
            found += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.concatenate(found)[:size]


def test_normals_are_exact_to_rounding(without_numba, monkeypatch):
    """r ≤ 5.8 times 4 roundings of 6e-8 in the angle's polynomial, and of ln u up to 17 over 2r: below 2e-6.

    The twin, not compiled, has a Taylor series that is one term short: t⁹/9! is 3e-7 of r at an eighth of a turn, t⁷/7!
    3.7e-5. Without Numba the numbers are the same bit for bit.
    """
    expected, found = exact_normals(20_000, KEY, 3), normals(20_000)
    assert np.abs(found - expected).max() < 2e-6
    without_numba()
    assert np.array_equal(normals(20_000), found)
    monkeypatch.setattr(arithmetic, "SINE", (*arithmetic.SINE[:3], np.float32(0.0), np.float32(0.0)))
    assert np.abs(normals(20_000) - expected).max() > 2e-6


def test_radii_at_the_ends_and_beside_root_half():
    """u = 2⁻²⁴, 1 − 2⁻²⁴, 1 and ±2⁻²⁴ about √½: 4 roundings, also where ln u is next to zero."""
    w = np.array([0, 1, 255, 2**24 - 2, 2**24 - 1, 11_863_282, 11_863_283])
    radius, _ = arithmetic.normal_pair((w << 8).astype(np.uint32), np.zeros(len(w), np.uint32))
    assert radius == pytest.approx(np.sqrt(-2.0 * np.log((w + 1) / 2**24)), rel=4 * SINGLE, abs=0.0)


def test_normals_are_normal():
    """Kolmogorov and Smirnov at 1e-3, fixed key; mean, variance and kurtosis to 4 deviations. The twin is wider."""
    drawn = np.stack([normals(10_000, step=step) for step in range(20)])
    z = drawn.ravel().astype(np.float64)
    n = len(z)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(z * 1.02, "norm").pvalue < 1e-3
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((z**4).mean() - 3) < 4 * np.sqrt(96 / n)
    lanes = arithmetic.LANES
    for a, b in ((drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:]), (drawn[:, :-lanes], drawn[:, lanes:])):
        for f in (np.asarray, np.square):
            products = (f(a) - f(a).mean()).astype(np.float64) * (f(b) - f(b).mean())
            assert abs(products.mean()) < 4 * products.std() / np.sqrt(products.size)


def test_a_number_is_a_function_of_key_step_and_place(without_numba):
    whole = normals(5000)
    for switch in (lambda: None, without_numba):
        switch()
        for size in (1, 256, 1023, 1024, 1025, 4097):
            assert np.array_equal(normals(size), whole[:size])
            for key, step in ((KEY, 6), (KEY[::-1].copy(), 3)):  # the twins
                assert not np.isclose(normals(size, key, step), whole[:size]).any()
        assert np.array_equal(normals(100, dtype=torch.float64), whole[:100])


# ----------------------------------------------------------------------------------------------------
# Steps
# ----------------------------------------------------------------------------------------------------

SHORT = {"epochs": 2, "batch_size": 6, "beta2": 0.9}
SOLVERS = {
    "clipped": IVONSteps(**SHORT, lr=10.0, hess_init=0.01, clip_radius=0.01),
    "not rescaled": IVONSteps(**SHORT, lr=0.05, rescale_lr=False),
    "two samples": IVONSteps(**SHORT, lr=0.1, samples=2),
}


def trained(solver, hidden=5):
    source = torch.Generator().manual_seed(0)
    X = torch.randn(50, 4, generator=source, dtype=torch.float64)
    clients = [Rows(x, torch.arange(len(x)) % 3) for x in X.split((23, 10, 17))]
    torch.manual_seed(1)
    return run(IVONADMM(0.5, 0.1), clients, MLP((4, hidden, 3)).double(), rounds=2, solver=solver).state


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())
def test_without_numba_torch_takes_the_same_steps(solver, without_numba):
    """Other roundings: 16 float64 steps keep 1e-10. The twin has the loops, and a tenth of a per cent less momentum."""
    if not arithmetic.IS_COMPILED:
        pytest.skip("needs the extra `compiled`")
    compiled, other = trained(solver), trained(IVONSteps(**{**vars(solver), "beta1": 0.899}))
    without_numba()
    in_torch = trained(solver)
    for name in ("mean", "precision"):
        one, two = getattr(compiled, name), getattr(in_torch, name)
        assert (one - two).abs().max() < 1e-10 * (1 + two.abs().max())
    assert (other.mean - in_torch.mean).abs().max() > 1e-8


def test_what_is_not_a_number_stays_so(without_numba):
    """A clipped step would hide NaN, and the client's failure with it."""
    for switch in (lambda: None, without_numba):
        switch()
        x = nn.Parameter(torch.zeros(2))
        optimiser = IVON([x], lr=0.1, ess=10.0, clip_radius=0.1, generator=torch.Generator().manual_seed(0))
        with optimiser.sampled_params(train=True):
            (x * torch.tensor([1.0, float("nan")])).sum().backward()
        optimiser.step()
        assert torch.isfinite(x).tolist() == [True, False]


def test_bits_are_those_of_plain_arithmetic():
    """Compiled or interpreted: otherwise a run that goes on in another process may find other machine code there."""
    arrays = np.random.default_rng(0).uniform(0.5, 1.5, (9, 1, 300)).astype(np.float32)
    numbers = tuple(map(np.float32, (1.7, 0.01, 0.1, 0.5, 0.7)))
    one = np.ones(1, np.float32)

    def of(update):
        mean, hess, momentum, gradient, product, *terms = arrays.copy()
        update((mean, hess, momentum), (gradient, product), tuple(terms), 20.0 * one, numbers)
        return np.stack([mean, hess, momentum])

    found = of(arithmetic.update)
    assert np.array_equal(found, of(getattr(arithmetic.update, "py_func", arithmetic.update)))
    assert not np.array_equal(found, arrays[:3])
