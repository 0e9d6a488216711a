"""E_q of a loss and of its derivatives, against integrals in θ-space that share nothing with the package."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import bayesadmm_np as ba
from bayesadmm_np.losses.base import KroneckerCurvature, RowCurvature
from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit, PoissonLog
from oracles.members import FAMILIES, as_dense, every_family, spd
from oracles.refusals import assert_refused

F, L = ba.families, ba.losses

N = 6

# ----------------------------------------------------------------------------------------------------
# Members of each Gaussian family, and dense matrices of their own
# ----------------------------------------------------------------------------------------------------


def dense_covariance(q):
    """The covariance from the entries of the precision alone, by NumPy's own inverse."""
    return np.linalg.inv(as_dense(q.factor.parts))


def structure(q):
    """Zero-one matrix of the entries that the family's natural parameter holds."""
    parts = q.factor.parts
    return np.eye(q.dim) if parts[0].ndim == 1 else block_diag(*[np.ones_like(part) for part in parts])


# ----------------------------------------------------------------------------------------------------
# Oracles
# ----------------------------------------------------------------------------------------------------


def tensor_nodes(dim, step, reach=9.0):
    """A trapezoidal rule for the standard normal in `dim` dimensions.

    For a logistic of standard deviation s along an axis its relative error is about exp(−2π²/(step·s)), for the
    normal alone exp(−2π²/step²): with step 0.36 and s = 2 that is 1e-12. The tails left out weigh 1e-18.
    """
    line = np.arange(-reach, reach + step / 2, step)
    grid = np.stack(np.meshgrid(*[line] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    weights = np.exp(-0.5 * (grid**2).sum(axis=1))
    return grid, weights / weights.sum()


def plain_logistic(f, y):
    p = 1 / (1 + np.exp(-f))
    return np.log1p(np.exp(-np.abs(f))) + np.maximum(f, 0) - y * f, p - y, p * (1 - p)


def plain_poisson(f, y):
    return np.exp(f) - y * f, np.exp(f) - y, np.exp(f)


def plain_least_squares(f, y):
    return 0.5 * (f - y) ** 2, f - y, np.ones_like(f)


SCALAR = {
    "logistic": (L.Logistic, lambda rng: rng.integers(0, 2, N).astype(float), plain_logistic),
    "poisson": (L.Poisson, lambda rng: rng.poisson(2.0, N).astype(float), plain_poisson),
    "least squares": (L.LeastSquares, lambda rng: rng.standard_normal(N), plain_least_squares),
}


class ScalarCase:
    """A loss of one predictor a row with rows of length about 0.7, so that predictors have deviations below 2."""

    def __init__(self, kind, seed=0, d=3):
        cls, draw, self.plain = SCALAR[kind]
        rng = np.random.default_rng(seed)
        self.X, self.y = 0.4 * rng.standard_normal((N, d)), draw(rng)
        self.w, self.offset = rng.uniform(0.2, 2, N), rng.standard_normal(N)
        self.loss = cls(self.X, self.y.copy(), weights=self.w, offset=self.offset)
        self.rng, self.d = rng, d

    def oracle(self, q):
        """Return E_q[ℓ], E_q[∇ℓ], E_q[∇²ℓ] by quadrature over the whole of θ-space."""
        z, weights = tensor_nodes(self.d, 0.36)
        theta = q.mean + z @ np.linalg.cholesky(dense_covariance(q)).T
        predictors = theta @ self.X.T + self.offset
        value, first, second = (weights @ part for part in self.plain(predictors, self.y))
        return self.w @ value, self.X.T @ (self.w * first), self.X.T @ np.diag(self.w * second) @ self.X


def softmax_oracle(q, X, y, w, n_classes, step=0.25):
    """The same for three classes: the loss sees the differences to class 0 only, a plane for each row."""
    p, d = X.shape[1], X.shape[1] * n_classes
    covariance, (z, weights) = dense_covariance(q), tensor_nodes(2, step)
    contrast = np.array([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
    value, gradient, hessian = 0.0, np.zeros(d), np.zeros((d, d))
    for x, label, weight in zip(X, y, w, strict=True):
        design = np.kron(np.eye(n_classes), x)  # (C, d)
        to_plane = contrast @ design
        root = np.linalg.cholesky(to_plane @ covariance @ to_plane.T)
        plane = to_plane @ q.mean + z @ root.T
        f = np.hstack([np.zeros((len(z), 1)), plane])
        probability = np.exp(f - f.max(axis=1, keepdims=True))
        normaliser = probability.sum(axis=1)
        probability /= normaliser[:, None]
        value += weight * weights @ (np.log(normaliser) + f.max(axis=1) - f[:, label])
        mean = weights @ probability
        gradient += weight * design.T @ (mean - np.eye(n_classes)[label])
        curvature = np.diag(mean) - probability.T @ (weights[:, None] * probability)
        hessian += weight * design.T @ curvature @ design
        assert p * n_classes == d
    return value, gradient, hessian


class SoftmaxCase:
    def __init__(self, seed=0, p=2):
        rng = np.random.default_rng(seed)
        self.X, self.y, self.w = 0.6 * rng.standard_normal((N, p)), rng.integers(0, 3, N), rng.uniform(0.2, 2, N)
        self.loss = L.Softmax(self.X, self.y, 3, weights=self.w)
        self.rng, self.d = rng, 3 * p

    def oracle(self, q):
        return softmax_oracle(q, self.X, self.y, self.w, 3)


def worst(expected, oracle):
    """Largest deviation of value, gradient and Hessian, each relative to its own largest entry."""
    found = expected.value, expected.gradient, expected.curvature.dense()
    return max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(found, oracle, strict=True))


def expect(loss, q, rule=None):
    return loss.expect(q, loss.check(q, rule or L.Auto()))


# ----------------------------------------------------------------------------------------------------
# The default rule
# ----------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize("kind", SCALAR)
def test_exact_expectations_are_integrals_over_theta(kind, family):
    """The oracle is good to 1e-12 (see `tensor_nodes`), the package to rounding. Measured worst: 7e-13."""
    case = ScalarCase(kind)
    q = FAMILIES[family](case.rng, case.d)
    expected, oracle = expect(case.loss, q), case.oracle(q)
    assert worst(expected, oracle) < 1e-11
    # twins: the spread of q ignored, and twice its precision
    assert worst(expect(case.loss, q, L.Delta(1)), oracle) > 1e-3
    narrow = F.FullGaussian(q.mean, 2 * np.linalg.inv(dense_covariance(q)))
    assert worst(expect(case.loss, narrow), oracle) > 1e-3


@every_family
def test_softmax_expectations_are_integrals_over_theta(family):
    """Default rule, 256 points: measured 7e-4 … 2e-3 of the largest entry. 2¹⁴ points: below 6e-5. Delta: above 0.1."""
    case = SoftmaxCase()
    q = FAMILIES[family](case.rng, case.d)
    oracle = case.oracle(q)
    assert worst(expect(case.loss, q), oracle) < 1e-2
    assert worst(expect(case.loss, q, L.QuasiMonteCarlo(2**14)), oracle) < 2e-4
    assert worst(expect(case.loss, q, L.Delta(1)), oracle) > 5e-2  # twin


def test_softmax_oracle_has_converged():
    """Two steps of the oracle agree."""
    case = SoftmaxCase()
    q = FAMILIES["full"](case.rng, case.d)
    for a, b in zip(case.oracle(q), softmax_oracle(q, case.X, case.y, case.w, 3, step=0.18), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@every_family
def test_least_squares_is_exact_under_every_rule(family):
    case = ScalarCase("least squares")
    q = FAMILIES[family](case.rng, case.d)
    reference = expect(case.loss, q, L.Exact())
    for rule in (L.Auto(), L.GaussHermite(2), L.QuasiMonteCarlo(8), L.Delta(2)):
        found = expect(case.loss, q, rule)
        assert found.value == reference.value
        assert found.natural_gradient == reference.natural_gradient
    point = expect(case.loss, q, L.Delta(1))
    assert point.value == pytest.approx(case.loss.value(q.mean), rel=1e-14)


def test_total_is_the_sum_of_its_terms():
    cases = [ScalarCase(kind, seed) for seed, kind in enumerate(SCALAR)]
    loss = L.Total([case.loss for case in cases])
    for family, draw in FAMILIES.items():
        q = draw(np.random.default_rng(5), 3)
        if family == "block":
            oracles = [case.oracle(q) for case in cases]
            oracle = [sum(parts) for parts in zip(*oracles, strict=True)]
            assert worst(expect(loss, q), oracle) < 1e-11
        for rule in (L.Delta(1), L.Delta(2), L.QuasiMonteCarlo(64)):
            parts = [expect(case.loss, q, rule) for case in cases]
            whole = expect(loss, q, rule)
            assert whole.value == pytest.approx(sum(part.value for part in parts), rel=1e-12)
            gradient = sum((part.natural_gradient for part in parts), q.natural.zeros())
            for a, b in zip(whole.natural_gradient.parts, gradient.parts, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# ----------------------------------------------------------------------------------------------------
# Natural gradients (check_loss has them as derivatives in μ)
# ----------------------------------------------------------------------------------------------------


@every_family
def test_a_loss_linear_in_the_statistics_is_minus_c(family, rng):
    """E_q[−⟨c, T⟩] = −⟨c, μ⟩ with natural gradient −c under every Gaussian too, alone and as a term of a sum."""
    q = FAMILIES[family](rng, 3)
    c = q.natural.from_vector(rng.standard_normal(q.natural.size))
    loss, other = L.LinearInStatistics(c), ScalarCase("logistic").loss
    alone, beside, both = expect(loss, q), expect(other, q), expect(L.Total([other, loss]), q)
    assert alone.value == pytest.approx(-ba.families.pairing(c, q.expectation), rel=1e-12, abs=1e-13)
    assert both.value == pytest.approx(beside.value + alone.value, rel=1e-12)
    for a, part in zip(alone.natural_gradient.parts, c.parts, strict=True):
        np.testing.assert_allclose(a, -part, rtol=1e-12, atol=1e-12)
    whole = beside.natural_gradient - c
    for b, part in zip(both.natural_gradient.parts, whole.parts, strict=True):
        np.testing.assert_allclose(b, part, rtol=1e-12, atol=1e-12)


# ----------------------------------------------------------------------------------------------------
# Curvatures
# ----------------------------------------------------------------------------------------------------


def curvatures(rng):
    """Return (curvature, its dense matrix) for each kind, all of dimension 6."""
    X, a = rng.standard_normal((N, 6)), rng.uniform(0, 2, N)
    P, A = rng.standard_normal((N, 3)), np.stack([spd(rng, 2) for _ in range(N)])
    gram = spd(rng, 2)
    rows = RowCurvature(X, a), sum(a[i] * np.outer(X[i], X[i]) for i in range(N))
    classes = RowCurvature(P, A), sum(np.kron(A[i], np.outer(P[i], P[i])) for i in range(N))
    kronecker = KroneckerCurvature(gram, 3), np.kron(np.eye(3), gram)
    losses = [L.Logistic(X, rng.integers(0, 2, N)), L.LeastSquares(P, rng.standard_normal((N, 2)))]
    q = F.IsotropicGaussian(np.zeros(6))
    whole = expect(L.Total(losses), q).curvature, sum(expect(loss, q).curvature.dense() for loss in losses)
    return {"rows": rows, "classes": classes, "kronecker": kronecker, "total": whole}


LAYOUTS = {
    "full": lambda rng: F.FullGaussian(np.zeros(6), spd(rng, 6)),
    "diagonal": lambda rng: F.DiagonalGaussian(np.zeros(6), 1.0),
    "one block a class": lambda rng: F.BlockDiagonalGaussian(np.zeros(6), 1.0, [3, 3]),
    "blocks inside and across classes": lambda rng: F.BlockDiagonalGaussian(np.zeros(6), 1.0, [1, 4, 1]),
    "unequal blocks": lambda rng: F.BlockDiagonalGaussian(np.zeros(6), 1.0, [5, 1]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["rows", "classes", "kronecker", "total"])
def test_projection_is_the_dense_matrix_restricted(kind, layout, rng):
    curvature, dense = curvatures(rng)[kind]
    np.testing.assert_allclose(curvature.dense(), dense, rtol=0, atol=1e-13 * np.abs(dense).max())
    q = LAYOUTS[layout](rng)
    parts = curvature.project(q.factor)
    np.testing.assert_allclose(as_dense(parts), dense * structure(q), rtol=0, atol=1e-13 * np.abs(dense).max())
    assert [part.shape for part in parts] == [part.shape for part in q.factor.parts]


@pytest.mark.parametrize("kind", ["rows", "classes", "kronecker", "total"])
def test_product_with_a_vector_is_the_dense_product(kind, rng):
    curvature, dense = curvatures(rng)[kind]
    for vector in rng.standard_normal((4, 6)):
        np.testing.assert_allclose(curvature.multiply(vector), dense @ vector, rtol=0, atol=1e-12)
    if kind != "rows":  # twin: θ read column by column instead of class by class
        swapped = vector.reshape(3, 2).T.ravel()
        assert not np.allclose(curvature.multiply(swapped), dense @ vector, atol=1e-3)


# ----------------------------------------------------------------------------------------------------
# Rules
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, 2, 3, 10])
@pytest.mark.parametrize("points", [64, 100, 256])
@pytest.mark.parametrize("seed", [0, 7])
def test_matched_points_integrate_quadratics(n_outputs, points, seed):
    """Mean 0 and covariance I to rounding, and therefore every quadratic; odd cubics vanish by symmetry."""
    nodes, weights = L.QuasiMonteCarlo(points, seed).nodes(n_outputs)
    np.testing.assert_allclose(weights @ nodes, 0, atol=1e-14)
    np.testing.assert_allclose(nodes.T @ (weights[:, None] * nodes), np.eye(n_outputs), atol=1e-13)
    np.testing.assert_allclose(weights @ nodes**3, 0, atol=1e-12)
    plain = np.random.default_rng(seed).standard_normal((points, n_outputs))
    assert not np.allclose(plain.T @ plain / points, np.eye(n_outputs), atol=1e-2)  # twin


def test_points_depend_on_the_seed_only():
    first = L.QuasiMonteCarlo(64, 3).nodes(2)[0]
    L.expectations.matched_sobol.cache_clear()
    np.testing.assert_array_equal(L.QuasiMonteCarlo(64, 3).nodes(2)[0], first)
    assert not np.allclose(L.QuasiMonteCarlo(64, 4).nodes(2)[0], first)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0.0


def one_row(m, sd):
    q = F.DiagonalGaussian([m], [sd**-2])
    loss = L.Logistic([[1.0]], [0])
    return loss, q


def line_oracle(m, sd):
    z, weights = tensor_nodes(1, 0.1 / max(1.0, sd / 2), reach=10.0)
    parts = plain_logistic(m + sd * z, 0.0)
    return [(weights[:, None] * part).sum() for part in parts]


@pytest.mark.parametrize("m", [0.0, 1.0, -3.0])
@pytest.mark.parametrize("sd", [0.5, 1.0, 4.0, 8.0, 20.0])
def test_gauss_hermite_fails_at_large_deviations_where_exact_does_not(sd, m):
    """Value, slope and curvature of one row. The oracle's step keeps exp(−2π²/(step·sd)) below 1e-40."""
    loss, q = one_row(m, sd)
    oracle = line_oracle(m, sd)
    assert worst(expect(loss, q, L.Exact()), oracle) < 1e-12
    hermite = worst(expect(loss, q, L.GaussHermite(32)), oracle)
    if sd < 1:
        assert hermite < 1e-11
    elif sd >= 4:
        assert hermite > 1e-5


@pytest.mark.parametrize("rule", [L.GaussHermite(40), L.QuasiMonteCarlo(2**14)], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_point_rules_approach_the_exact_one(rule, kind):
    """Deviations of the predictors are below 1. Measured worst: 8e-14, 5e-5."""
    case = ScalarCase(kind)
    q = FAMILIES["full"](case.rng, case.d)
    bound = {L.GaussHermite: 1e-10, L.QuasiMonteCarlo: 2e-4}[type(rule)]
    assert worst(expect(case.loss, q, rule), case.oracle(q)) < bound


@every_family
@pytest.mark.parametrize("kind", ["logistic", "poisson", "least squares", "softmax"])
def test_delta_method_is_what_its_docstring_says(kind, family):
    case = SoftmaxCase() if kind == "softmax" else ScalarCase(kind)
    loss, q = case.loss, FAMILIES[family](case.rng, case.d)
    gradient, hessian = loss.gradient(q.mean), loss.hessian(q.mean)
    first, second = expect(loss, q, L.Delta(1)), expect(loss, q, L.Delta(2))
    assert first.value == pytest.approx(loss.value(q.mean), rel=1e-13)
    trace = 0.5 * np.trace(hessian * structure(q) @ dense_covariance(q))
    assert second.value == pytest.approx(loss.value(q.mean) + trace, rel=1e-12)
    for found, curvature in ((first, np.zeros_like(hessian)), (second, hessian * structure(q))):
        np.testing.assert_allclose(found.gradient, gradient, rtol=0, atol=1e-13 * np.abs(gradient).max())
        assert found.value_at_mean == pytest.approx(loss.value(q.mean), rel=1e-13)
        if q.learns_precision:
            scale = np.abs(hessian).max()
            np.testing.assert_allclose(as_dense(found.natural_gradient.parts[1:]), -curvature, atol=1e-13 * scale)
            linear = gradient - curvature @ q.mean
            np.testing.assert_allclose(found.natural_gradient.linear, linear, rtol=0, atol=1e-12 * scale)
        else:
            np.testing.assert_allclose(found.natural_gradient.linear, gradient, rtol=1e-12, atol=1e-13)
    assert first.value != pytest.approx(second.value, rel=1e-4)  # twin: the trace dropped


def test_every_row_is_used_whatever_the_chunk(monkeypatch, rng):
    """Chunks change at most the order of a sum: a few units in the last place."""
    n = 23
    losses = [
        (L.Logistic(rng.standard_normal((n, 2)), rng.integers(0, 2, n)), L.GaussHermite(16)),
        (L.Poisson(rng.standard_normal((n, 2)), rng.poisson(2, n)), L.QuasiMonteCarlo(16)),
        (L.Softmax(rng.standard_normal((n, 2)), rng.integers(0, 3, n), 3), L.QuasiMonteCarlo(16)),
    ]
    for loss, rule in losses:
        q = F.FullGaussian(rng.standard_normal(loss.dim), spd(rng, loss.dim))
        whole = expect(loss, q, rule)
        reference = whole.value, whole.gradient, whole.curvature.dense()
        for chunk in (1, 16, 100, 7 * 48, 10**9):
            monkeypatch.setattr(L.expectations, "CHUNK", chunk)
            assert worst(expect(loss, q, rule), reference) < 1e-14
        monkeypatch.undo()


@pytest.mark.parametrize(
    "rule",
    [L.Auto(), L.QuasiMonteCarlo(64), L.GaussHermite(), L.Delta(2)],
    ids=lambda r: type(r).__name__,
)
@pytest.mark.parametrize("kind", ["logistic", "poisson", "softmax", "softmax of two"])
def test_rows_of_zeros_have_no_variance(kind, rule, rng):
    """Such a row has predictor 0 for sure: it adds a constant to the value and nothing to the derivatives."""
    X = np.vstack([rng.standard_normal((4, 2)), np.zeros((3, 2))])
    y = np.array([0, 1, 1, 0, 0, 1, 1])
    make = {
        "logistic": lambda X, y: L.Logistic(X, y),
        "poisson": lambda X, y: L.Poisson(X, y),
        "softmax": lambda X, y: L.Softmax(X, y, 3),
        "softmax of two": lambda X, y: L.Softmax(X, y, 2),
    }[kind]
    constant = {"logistic": np.log(2), "poisson": 1.0, "softmax": np.log(3), "softmax of two": np.log(2)}[kind]
    if kind.startswith("softmax") and isinstance(rule, L.GaussHermite):
        pytest.skip("one predictor a row only")
    full, short = make(X, y), make(X[:4], y[:4])
    q = F.FullGaussian(rng.standard_normal(full.dim), spd(rng, full.dim))
    found, reference = expect(full, q, rule), expect(short, q, rule)
    assert found.value == pytest.approx(reference.value + 3 * constant, rel=1e-13)
    np.testing.assert_allclose(found.gradient, reference.gradient, atol=1e-13)
    np.testing.assert_allclose(found.curvature.dense(), reference.curvature.dense(), atol=1e-13)
    only = make(np.zeros((2, 2)), [0, 1])
    assert expect(only, q, rule).value == pytest.approx(2 * constant, rel=1e-13)


@every_family
def test_two_class_softmax_is_the_logistic_of_the_difference(family, rng):
    """E_q sees θ₁ − θ₀ only, whose covariance is Σ₀₀ + Σ₁₁ − Σ₀₁ − Σ₁₀."""
    X, y, w = rng.standard_normal((N, 2)), rng.integers(0, 2, N), rng.uniform(0.2, 2, N)
    q = FAMILIES[family](rng, 4)
    contrast = np.hstack([-np.eye(2), np.eye(2)])
    difference = F.FullGaussian.from_covariance(contrast @ q.mean, contrast @ dense_covariance(q) @ contrast.T)
    softmax, logistic = L.Softmax(X, y, 2, weights=w), L.Logistic(X, y, weights=w)
    assert softmax.check(q, L.Auto()) == L.Exact()
    for rule in (L.Auto(), L.Delta(1), L.Delta(2)):
        both, one = expect(softmax, q, rule), expect(logistic, difference, rule)
        if rule != L.Delta(2) or family == "full":  # elsewhere the trace sees the family's own blocks of H only
            assert both.value == pytest.approx(one.value, rel=1e-12)
        np.testing.assert_allclose(both.gradient, contrast.T @ one.gradient, atol=1e-12)
        np.testing.assert_allclose(both.curvature.dense(), contrast.T @ one.curvature.dense() @ contrast, atol=1e-12)


@every_family
def test_a_reference_class_is_a_softmax_whose_first_predictor_is_zero(family, rng):
    """E_q in C − 1 dimensions and in C of which one is a point: 4096 points in each, 2e-3 by measurement."""
    X, y, w = rng.standard_normal((N, 2)), rng.integers(0, 3, N), rng.uniform(0.2, 2, N)
    q = FAMILIES[family](rng, 4)
    sure = 1e12 * np.eye(6)
    sure[2:, 2:] = np.linalg.inv(dense_covariance(q))
    whole = F.FullGaussian(np.concatenate([np.zeros(2), q.mean]), sure)
    for rule, near in ((L.QuasiMonteCarlo(4096), 2e-3), (L.Delta(1), 1e-12)):
        ours, theirs = (
            expect(L.ReferenceSoftmax(X, y, 3, weights=w), q, rule),
            expect(L.Softmax(X, y, 3, w), whole, rule),
        )
        assert ours.value == pytest.approx(theirs.value, rel=near)
        np.testing.assert_allclose(ours.gradient, theirs.gradient[2:], atol=near * w.sum())
        np.testing.assert_allclose(ours.curvature.dense(), theirs.curvature.dense()[2:, 2:], atol=near * w.sum())
        # twin: the last class is the reference
        assert ours.value != pytest.approx(expect(L.Softmax(X, (y + 1) % 3, 3, w), whole, rule).value, rel=1e-2)


def test_the_reach_of_a_reference_class_counts_each_predictor_against_zero():
    """One row, two predictors of variance 4 and covariance 3.9: their difference varies little, each of them much."""
    q = F.FullGaussian.from_covariance(np.zeros(2), [[4.0, 3.9], [3.9, 4.0]])
    reach = {
        loss: expect(loss([[1.0]], [1], size), q, L.Delta(2)).margins.reach
        for loss, size in ((L.ReferenceSoftmax, 3), (L.Softmax, 2))
    }
    assert reach[L.ReferenceSoftmax] == pytest.approx(2.0)
    assert reach[L.Softmax] == pytest.approx(np.sqrt(0.2))


def test_class_variances_of_very_different_size():
    """A class that a client never saw keeps a wide prior beside narrow ones: its spread must not leak into theirs.

    Predictors of deviations (1e4, 1e-4, 1e-4); the wide class has mean −1e6 and so no probability. What is left is a
    logistic in a difference of variance 2e-8, where ℓ + ½ℓ''·2e-8 is good to the square of that.
    """
    q = F.DiagonalGaussian([-1e6, 0.3, 0.0], [1e-8, 1e8, 1e8])
    expected = expect(L.Softmax([[1.0]], [1], 3), q, L.QuasiMonteCarlo(256))
    curvature = 1 / (2 + 2 * np.cosh(0.3))
    assert expected.value == pytest.approx(np.log1p(np.exp(-0.3)) + 0.5 * curvature * 2e-8, rel=1e-12)


# ----------------------------------------------------------------------------------------------------
# Mismatches and bad arguments
# ----------------------------------------------------------------------------------------------------


def test_rules_that_do_not_fit_say_so():
    softmax = L.Softmax([[1.0]], [0], 3)
    q = F.FullGaussian(np.zeros(3), 1.0)
    with pytest.raises(ValueError, match=r"expectation=Exact\(\) does not fit CategoricalLogit.*3 classes; use Quasi"):
        softmax.check(q, L.Exact())
    with pytest.raises(
        ValueError, match=r"expectation=GaussHermite\(\) needs one predictor a row, CategoricalLogit has 3"
    ):
        softmax.check(q, L.GaussHermite())
    with pytest.raises(ValueError, match="points must be at least 12 for 3 classes"):
        softmax.check(q, L.QuasiMonteCarlo(8))
    with pytest.raises(ValueError, match=r"expectation=Exact\(\) does not fit"):
        L.Total([L.LeastSquares(np.ones((1, 3)), [1.0]), softmax]).check(q, L.Exact())
    with pytest.raises(ValueError, match=r"expectation=Exact\(\) does not fit"):
        ba.solve_pooled([softmax], q, expectation=L.Exact())
    with pytest.raises(ValueError, match="Softmax has 3 parameters, but the prior's mean has 2"):
        softmax.check(F.FullGaussian(np.zeros(2), 1.0), L.Auto())
    with pytest.raises(ValueError, match="LeastSquares needs a Gaussian family, the prior is Beta"):
        L.LeastSquares([[1.0]], [1.0]).check(F.Beta([1.0], [1.0]), L.Auto())


def test_bad_rules():
    assert_refused(
        [
            *((lambda n=n: L.GaussHermite(n), "points") for n in (0, 2.5, 500)),
            *((lambda n=n: L.QuasiMonteCarlo(n), "points") for n in (63, 0, "many")),
            *((lambda n=n: L.QuasiMonteCarlo(64, seed=n), "seed") for n in (-1, 0.5, None)),
            *((lambda n=n: L.Delta(n), "order") for n in (3, "first")),
        ]
    )


def test_a_rule_that_is_no_rule():
    q = F.FullGaussian(np.zeros(1), 1.0)
    with pytest.raises((TypeError, ValueError), match="expectation"):
        ba.solve_pooled([L.Logistic([[1.0]], [1])], q, expectation="exact")


@pytest.mark.parametrize("points", [1, 2, 32, 300])
def test_gauss_hermite_integrates_polynomials(points):
    """Degree 2·points − 1 exactly: E z^k is 0 for odd k, 1 and 3 for k = 2 and 4."""
    nodes, weights = L.GaussHermite(points).nodes(1)
    for power, moment in {0: 1, 1: 0, 2: 1, 3: 0, 4: 3}.items():
        if power < 2 * points:
            assert weights @ nodes[:, 0] ** power == pytest.approx(moment, rel=1e-12, abs=1e-13)


def test_auto_resolves_by_the_loss():
    assert L.Auto().resolve(BernoulliLogit()) == L.Exact()
    assert L.Auto().resolve(PoissonLog()) == L.Exact()
    assert L.Auto().resolve(CategoricalLogit(2)) == L.Exact()
    assert L.Auto().resolve(CategoricalLogit(3)) == L.QuasiMonteCarlo()
    mean, variance, y = np.zeros(2), np.ones(2), np.ones(2)
    direct = L.Exact().moments(BernoulliLogit(), mean, variance, y)
    for a, b in zip(L.Auto().moments(BernoulliLogit(), mean, variance, y), direct, strict=True):
        np.testing.assert_array_equal(a, b)


def test_poisson_overflow_is_silent_whatever_the_design():
    """E exp f = exp(5000) under a wide q: infinite, quietly, also with a one-hot column (see the Laplace start)."""
    loss = L.Poisson([[1.0, 0.0], [0.0, 1.0]], [2, 3])
    q = F.FullGaussian(np.zeros(2), 1e-4)
    expected = expect(loss, q)
    assert expected.value == np.inf
    assert not expected.natural_gradient.is_finite()
