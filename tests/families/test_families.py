"""Every family answers to the same identities; Hypothesis draws a size and a seed, the family its members."""

import itertools

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag, cho_factor, cho_solve, solve_triangular

import bayesadmm_np as ba
from bayesadmm_np.families import precision
from bayesadmm_np.families.conjugate import log_minus_digamma, trigamma_excess
from bayesadmm_np.families.coordinates import Displacement
from bayesadmm_np.families.precision import BlockPrecision, DensePrecision, DiagonalPrecision
from bayesadmm_np.testing import check_family
from oracles.draws import CONJUGATE, Case, cases, member, other_member
from oracles.geometry import composition, derivative, norm, unit_direction
from oracles.members import spd
from oracles.refusals import assert_refused

F = ba.families

every_family = pytest.mark.parametrize("family", CONJUGATE)
learned_families = pytest.mark.parametrize("family", ["full", "diagonal", "block"])
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


def powers(rng, low, high, size):
    return 10.0 ** rng.uniform(low, high, size)


def members(family, d, seed, count=1):
    """Members of one family of dimension d, of condition ten at most."""
    case = Case(d=d, n_clients=1, rows=1, decades=1.0, skew=0.0, seed=seed)
    first = member(family, case, delta=1.0)
    return [first, *(other_member(first, case.other(k)) for k in range(1, count))]


# ----------------------------------------------------------------------------------------------------
# ∇A, ∇A*, Fisher
# ----------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@every_family
@given(case=cases(max_decades=3.0))
def test_members_of_all_sizes_and_conditions_pass_the_checks(family, case):
    """∇A, ∇A*, Fisher, KL, density and samples; tests/testing has a twin of every one of these checks."""
    q = member(family, case, delta=1.0)
    check_family(q, seed=case.seed)
    direction = unit_direction(q, case.rng)
    assert q.fisher_norm(direction) == pytest.approx(1.0 / np.sqrt(q.natural.size), rel=1e-12)


@every_family
def test_lengths_are_fisher_norms_and_a_shared_precision_is_whitened_once(family, monkeypatch):
    q, other, third = members(family, 4, 0, 3)
    first, *shared = other.natural.parts
    moved = F.Natural(1.25 * first, *shared)
    naturals = [other.natural, moved, third.natural, q.natural]
    expected = [q.fisher_norm(natural - q.natural) for natural in naturals]
    # two orders of adding squares: the sum is of fewer than 100 terms
    np.testing.assert_allclose(q.lengths(naturals), expected, rtol=1e-13)
    if family == "full":
        whitened, whiten = [], DensePrecision.whiten
        monkeypatch.setattr(DensePrecision, "whiten", lambda *args: (whitened.append(1), whiten(*args))[1])
        q.lengths(naturals)
        assert len(whitened) == 2


def moved(q, direction):
    """Return how mean and covariance change along a natural direction, packed."""

    def moments(t):
        p = q.with_natural(q.natural + t * direction)
        return Displacement(p.mean, *p.factor.covariance_parts).to_vector()

    return derivative(moments)


@learned_families
@given(d=sizes, seed=seeds)
def test_a_displacement_is_the_change_of_mean_and_covariance(family, d, seed):
    (q,) = members(family, d, seed)
    direction = unit_direction(q, np.random.default_rng(seed))
    found = q.displacement(direction).to_vector()
    # the step's error of 1e-8 is relative to standard deviations
    scale = 1e-7 * (1.0 + np.abs(moved(q, direction)).max() + q.variance.max())
    assert np.abs(found - moved(q, direction)).max() <= scale
    twin = q.displacement(direction)
    if np.abs(twin.parts[1]).max() > 10 * scale:  # the covariance falls when the precision rises
        flipped = Displacement(twin.parts[0], *(-part for part in twin.parts[1:])).to_vector()
        assert np.abs(flipped - moved(q, direction)).max() > scale


@every_family
@given(d=sizes, seed=seeds)
def test_a_displacement_has_the_fisher_length_of_the_move(family, d, seed):
    (q,) = members(family, d, seed)
    direction = unit_direction(q, np.random.default_rng(seed))
    # two solves with a precision of condition 100 at most
    assert np.linalg.norm(q.whiten_displacement(q.displacement(direction))) == pytest.approx(1.0, abs=1e-12)


def check_invariance(product, d, seed):
    """A product of moves at two members is the same for θ and for Mθ."""
    rng = np.random.default_rng(seed)
    members_ = members("full", d, seed, 2)
    inverse = np.linalg.solve(spd(rng, d), np.eye(d))

    def carried(natural):
        matrix = inverse.T @ natural.precision @ inverse
        return F.Natural(inverse.T @ natural.linear, 0.5 * (matrix + matrix.T))

    moves = [unit_direction(q, rng) for q in members_]
    there = [q.with_natural(carried(q.natural)) for q in members_]
    # lengths of at most the condition number, and M as badly conditioned
    assert product(*there, *map(carried, moves)) == pytest.approx(product(*members_, *moves), abs=1e-8)


@given(d=sizes, seed=seeds)
def test_displacements_compare_alike_in_all_coordinates(d, seed):
    def read_in_place_and_measured_in_one(q, p, x, y):
        return p.whiten_displacement(q.displacement(x)) @ p.whiten_displacement(p.displacement(y))

    check_invariance(read_in_place_and_measured_in_one, d, seed)


def test_broken_twin_each_in_its_own_metric():
    with pytest.raises(AssertionError):
        check_invariance(lambda q, p, x, y: q.whiten(x) @ p.whiten(y), 3, 0)


EXTREMES = [1e-3, 0.03, 1.0, 30.0, 1e3, 1e6]


def relative_error(found, true):
    return np.max(np.abs(found / true - 1.0))


@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e6])
def test_gamma_inversion_from_small_to_large_shapes(rate):
    for shape in EXTREMES:
        q = F.Gamma(shape, rate)
        p = q.with_expectation(q.expectation)
        lost = 1 + shape * (1 + abs(q.expectation.parts[0][0]))
        assert relative_error(p.shape, q.shape) <= 1e-15 * lost
        assert relative_error(p.rate, q.rate) <= 1e-15 * lost
        assert norm(p.expectation - q.expectation) <= 5e-15 * norm(q.expectation)


@pytest.mark.parametrize("count", [2, 3])
def test_dirichlet_and_beta_inversion_from_small_to_large_concentrations(count):
    for concentration in itertools.product(EXTREMES, repeat=count):
        q = F.Dirichlet(concentration)
        p = q.with_expectation(q.expectation)
        lost = 10 + q.concentration.sum() * (1 + np.abs(q.expectation.parts[0]).max())
        assert relative_error(p.concentration, q.concentration) <= 1e-15 * lost
        assert norm(p.expectation - q.expectation) <= 5e-15 * norm(q.expectation)
    if count == 2:
        a, b = np.array(list(itertools.product(EXTREMES, repeat=2))).T
        q = F.Beta(a, b)
        p = q.with_expectation(q.expectation)
        worst = np.maximum(np.abs(p.a / a - 1), np.abs(p.b / b - 1))
        largest = np.maximum(*np.abs(q.expectation.parts))
        assert (worst <= 1e-15 * (10 + (a + b) * (1 + largest))).all()


def test_dirichlet_inversion_of_many_coordinates(rng):
    for low, high in [(-3, 6), (-3, -3), (6, 6), (-3, 0)]:
        q = F.Dirichlet(powers(rng, low, high, 500))
        p = q.with_expectation(q.expectation)
        assert relative_error(p.concentration, q.concentration) <= 1e-8
        assert relative_error(p.expectation.parts[0], q.expectation.parts[0]) <= 1e-14


def test_digamma_helpers_against_mpmath():
    points = np.concatenate([np.logspace(-6, 9, 40), [9.999, 10.0, 10.001]])
    with mpmath.workdps(40):
        first = [float(mpmath.log(x) - mpmath.digamma(x)) for x in map(mpmath.mpf, points)]
        second = [float(mpmath.psi(1, x) - 1 / x) for x in map(mpmath.mpf, points)]
    assert relative_error(log_minus_digamma(points), first) <= 2e-14
    assert relative_error(trigamma_excess(points), second) <= 2e-14


@pytest.mark.parametrize("concentration", list(itertools.product([1e-3, 1.0, 1e6], repeat=2)))
def test_dirichlet_moments_and_fisher_length_against_mpmath(concentration, rng):
    q = F.Dirichlet(concentration)
    directions = [rng.standard_normal(2), q.concentration]  # along the second one everything cancels
    with mpmath.workdps(40):
        alpha = [mpmath.mpf(x) for x in concentration]
        moments = [float(mpmath.digamma(x) - mpmath.digamma(sum(alpha))) for x in alpha]
        lengths = [
            float(
                sum(mpmath.psi(1, a) * mpmath.mpf(x) ** 2 for a, x in zip(alpha, direction, strict=True))
                - mpmath.psi(1, sum(alpha)) * sum(mpmath.mpf(x) for x in direction) ** 2
            )
            for direction in directions
        ]
    assert relative_error(q.expectation.parts[0], moments) <= 1e-12
    for direction, length in zip(directions, lengths, strict=True):
        whitened = q.whiten(F.Natural(direction))
        assert whitened @ whitened == pytest.approx(length, rel=1e-11)


# ----------------------------------------------------------------------------------------------------
# KL and entropy
# ----------------------------------------------------------------------------------------------------


@every_family
@given(d=sizes, seed=seeds)
def test_conjugate_is_the_negative_entropy_relative_to_the_base_measure(family, d, seed):
    (q,) = members(family, d, seed)
    assert q.conjugate == F.pairing(q.natural, q.expectation) - q.log_partition
    if family in ("fixed", "isotropic"):  # h is the density of the member with λ = 0
        assert q.conjugate == pytest.approx(q.kl(q.with_natural(q.natural.zeros())), rel=1e-12, abs=1e-12)
    else:
        assert q.conjugate == pytest.approx(-q.entropy, rel=1e-11, abs=1e-11)


# ----------------------------------------------------------------------------------------------------
# Densities and samples
# ----------------------------------------------------------------------------------------------------


@every_family
@given(d=sizes, seed=seeds)
def test_log_density_against_scipy(family, d, seed):
    (q,) = members(family, d, seed)
    theta = q.sample(np.random.default_rng(seed), 6)
    if isinstance(q, F.Gaussian):
        expected = scipy.stats.multivariate_normal(q.mean, q.covariance_matrix).logpdf(theta)
    elif isinstance(q, F.Gamma):
        expected = scipy.stats.gamma.logpdf(theta, q.shape, scale=1 / q.rate).sum(axis=1)
    elif isinstance(q, F.Beta):
        expected = scipy.stats.beta.logpdf(theta, q.a, q.b).sum(axis=1)
    else:
        expected = scipy.stats.dirichlet.logpdf(theta.T, q.concentration)
    found = q.log_density(theta)
    np.testing.assert_allclose(found, np.reshape(expected, 6), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(q.log_density(theta.reshape(2, 3, -1)), found.reshape(2, 3), rtol=1e-13)
    np.testing.assert_allclose(q.log_density(theta[0]), found[0], rtol=1e-13)
    with pytest.raises(ValueError, match="last dimension"):
        q.log_density(np.zeros(theta.shape[1] + 1))


def test_log_density_off_the_support():
    for q, outside in [
        (F.Gamma([0.5, 2.0], 1.0), [-1.0, 1.0]),
        (F.Beta([1.0, 2.0], 1.0), [0.5, 1.5]),
        (F.Dirichlet([1.0, 2.0]), [0.5, 0.6]),
        (F.Dirichlet([1.0, 2.0]), [-0.5, 1.5]),
    ]:
        assert q.log_density(outside) == -np.inf
    assert F.Gamma(1.0, 2.0).log_density([0.0]) == pytest.approx(np.log(2.0))
    assert F.Beta(1.0, 1.0).log_density([[0.0], [1.0]]).tolist() == [0.0, 0.0]


# ----------------------------------------------------------------------------------------------------
# Coordinates
# ----------------------------------------------------------------------------------------------------


@every_family
def test_coordinates_cannot_be_mixed(family):
    (q,), (other,) = members(family, 2, 0), members(family, 3, 0)
    for mixed in [
        lambda: q.natural + q.expectation,
        lambda: q.expectation - q.natural,
        lambda: q.natural + other.natural,
        lambda: q.natural + 1.0,
        lambda: q.natural * q.natural,
        lambda: q.with_natural(q.expectation),
        lambda: q.with_expectation(q.natural),
        lambda: F.pairing(q.expectation, q.natural),
        lambda: F.pairing(q.natural, q.natural),
        lambda: F.pairing(q.natural, other.expectation),
        lambda: q.kl(F.Gamma([1.0, 1.0], 1.0) if family != "gamma" else F.Beta([1.0, 1.0], 1.0)),
    ]:
        with pytest.raises(TypeError):
            mixed()
    assert q.natural != q.expectation


@every_family
@given(d=sizes, seed=seeds)
def test_coordinates_are_a_vector_space(family, d, seed):
    q, p = members(family, d, seed, 2)
    for x, y in [(q.natural, p.natural), (q.expectation, p.expectation)]:
        assert x + y == y + x
        assert x - x == x.zeros()
        assert 2 * x == x + x == x * 2.0
        assert (4.0 * x) / 2.0 == x + x
        assert -x == x.zeros() - x
        assert x.from_vector(x.to_vector()) == x
        assert x.to_vector().shape == (x.size,)
        np.testing.assert_allclose((x + y).to_vector(), x.to_vector() + y.to_vector(), rtol=1e-15)
        with pytest.raises(ValueError, match="vector must have shape"):
            x.from_vector(np.zeros(x.size + 1))


@pytest.mark.parametrize("d", [1, 2, 5, 70])
def test_symmetric_matrices_are_packed_by_their_upper_triangle(d):
    rng = np.random.default_rng(d)
    root = rng.standard_normal((d, d))
    x = F.Natural(rng.standard_normal(d), root + root.T)
    packed = np.concatenate([x.linear, x.precision[np.triu_indices(d)]])
    assert np.array_equal(x.to_vector(), packed)
    back = x.from_vector(packed)
    assert back == x
    assert np.array_equal(back.precision, back.precision.T)
    if d > 2:  # twin: the lower triangle, row after row, is another order
        assert not np.array_equal(x.to_vector()[d:], x.precision[np.tril_indices(d)])


@every_family
def test_members_are_immutable(family):
    (q,) = members(family, 3, 0)
    q = q.with_expectation(q.expectation)
    names = ("mean", "precision", "covariance") if isinstance(q, F.Gaussian) else vars(q)
    values = [getattr(q, name) for name in names if name != "factor"]
    arrays = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
    arrays = [array for array in arrays if isinstance(array, np.ndarray)]
    assert arrays
    for array in [*arrays, *q.natural.parts, *q.expectation.parts]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def test_members_do_not_share_memory_with_their_arguments():
    values = np.ones(2)
    matrix = np.eye(2)
    built = [
        F.FullGaussian(values, matrix),
        F.DiagonalGaussian(values, values),
        F.BlockDiagonalGaussian(values, [matrix]),
        F.FixedPrecisionGaussian(values, matrix),
        F.FixedPrecisionGaussian(values, values),
        F.IsotropicGaussian(values),
        F.Gamma(values, values),
        F.Beta(values, values),
        F.Dirichlet(values),
    ]
    before = [q.natural for q in built]
    values[:], matrix[:] = 7.0, 7.0
    for q, natural in zip(built, before, strict=True):
        assert natural == q.with_natural(natural).natural
        assert float(np.max(q.mean)) <= 1.0


# ----------------------------------------------------------------------------------------------------
# Domains
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gamma", "beta", "dirichlet"])
def test_edges_of_the_domain(family):
    (q,) = members(family, 2, 0)
    for i, part in enumerate(q.natural.parts):
        edge = 0.0 if family == "gamma" and i == 1 else -1.0
        parts = [np.array(p) for p in q.natural.parts]
        parts[i] = np.full_like(part, edge)
        assert not q.contains(F.Natural(*parts))
        parts[i] = np.nextafter(part * 0 + edge, -np.inf if edge == 0 else 0.0)
        assert q.contains(F.Natural(*parts))
        for beyond in (np.inf, np.nan):
            parts[i] = np.full_like(part, beyond)
            assert not q.contains(F.Natural(*parts))


@pytest.mark.parametrize(
    ("member", "impossible"),
    [
        (F.FullGaussian(np.zeros(2), 1.0), [np.zeros(2), np.eye(2)]),
        (F.FullGaussian(np.zeros(2), 1.0), [np.array([1.0, 0.0]), -0.5 * np.eye(2)]),
        (F.DiagonalGaussian(np.zeros(2), 1.0), [np.array([1.0, 0.0]), np.array([-0.5, -0.5])]),
        (F.BlockDiagonalGaussian(np.zeros(1), [np.eye(1)]), [np.ones(1), -0.4 * np.eye(1)]),
        (F.Gamma(1.0, 1.0), [np.zeros(1), np.ones(1)]),  # E log θ = log E θ: a point mass
        (F.Gamma(1.0, 1.0), [np.ones(1), np.ones(1)]),
        (F.Gamma(1.0, 1.0), [np.zeros(1), -np.ones(1)]),
        (F.Gamma(1.0, 1.0), [np.array([np.nan]), np.ones(1)]),
        (F.Beta(1.0, 1.0), [np.log([0.5]), np.log([0.51])]),
        (F.Beta(1.0, 1.0), [np.zeros(1), np.array([-np.inf])]),
        (F.Dirichlet([1.0, 1.0, 1.0]), [np.log([0.4, 0.4, 0.4])]),
        (F.Dirichlet([1.0, 1.0]), [np.array([0.1, -5.0])]),
        (F.Dirichlet([1.0, 1.0]), [np.array([np.nan, -5.0])]),
    ],
)
def test_impossible_moments(member, impossible):
    with pytest.raises(ValueError, match=r"impossible moments|positive"):
        member.with_expectation(F.Expectation(*impossible))


# ----------------------------------------------------------------------------------------------------
# Precision objects against dense NumPy
# ----------------------------------------------------------------------------------------------------


def precisions(rng, d):
    """Return the three structures, each with its dense matrix."""
    full, diagonal = spd(rng, d), rng.uniform(0.3, 3.0, d)
    blocks = [spd(rng, n) for n in composition(rng, d)]
    return [
        (DensePrecision(full), full),
        (DiagonalPrecision(diagonal), np.diag(diagonal)),
        (BlockPrecision(*blocks), block_diag(*blocks)),
    ]


def restrict(factor, matrix):
    """Return a dense matrix's entries that the structure keeps."""
    if isinstance(factor, DensePrecision):
        return (matrix,)
    if isinstance(factor, DiagonalPrecision):
        return (np.diagonal(matrix),)
    return tuple(matrix[rows, rows] for rows in factor.slices)


def widen(factor, parts):
    """Return the dense matrix with the structure's entries `parts`."""
    return np.diag(parts[0]) if isinstance(factor, DiagonalPrecision) else block_diag(*parts)


def close(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12 * (1 + np.abs(expected).max()))


def close_parts(found, expected):
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@given(d=st.integers(1, 8), seed=seeds)
def test_precision_linear_algebra(d, seed):
    rng = np.random.default_rng(seed)
    for factor, matrix in precisions(rng, d):
        inverse = cho_solve(cho_factor(matrix), np.eye(d))
        vector, X = rng.standard_normal(d), rng.standard_normal((5, d))
        assert factor.dim == d
        assert factor.is_positive_definite()
        close_parts(factor.parts, restrict(factor, matrix))
        close_parts(factor.covariance_parts, restrict(factor, inverse))
        close(factor.logdet, np.linalg.slogdet(matrix)[1])
        close(factor.multiply(vector), matrix @ vector)
        close(factor.solve(vector), inverse @ vector)
        half = factor.half_solve(vector)
        close(half @ half, vector @ inverse @ vector)
        coloured = factor.colour(np.eye(d))
        close(coloured @ coloured.T, inverse)
        close(factor.colour(vector), coloured @ vector)
        close(factor.half_solve(vector), coloured.T @ vector)  # the same factor L
        close(factor.row_variances(X), np.diagonal(X @ inverse @ X.T))
        close_parts(factor.outer(vector), restrict(factor, np.outer(vector, vector)))
        weights = rng.standard_normal(5)
        close_parts(factor.gram(X, weights), restrict(factor, X.T @ np.diag(weights) @ X))
        close_parts(factor.from_covariance(factor.covariance_parts).parts, factor.parts)
        close_parts(factor.like(factor.parts).parts, factor.parts)


def test_many_rows_are_worked_through_in_blocks(rng):
    """As few rows are, to rounding; the inverse of an ill-conditioned factor, the twin, loses digits in its place."""
    n, d = 2 * precision.ROWS + 5, 4
    half, weights = rng.standard_normal((n, d)), rng.uniform(0.1, 2.0, n)
    root = np.tril(rng.standard_normal((d, d)), -1) + np.eye(d)
    hard = root.copy()
    hard[1, :2] = 1e6, 1e-3
    for lower in (root, hard):
        factor = DensePrecision.from_root(lower.T)
        rows = half @ factor.cholesky.T
        apart = np.concatenate([factor.row_variances(part) for part in np.array_split(rows, 5)])
        assert np.abs(factor.row_variances(rows) / apart - 1.0).max() <= 1e-14  # measured 7e-16
    twin = ((rows @ np.linalg.inv(factor.cholesky).T) ** 2).sum(axis=1)
    assert np.abs(twin / apart - 1.0).max() > 1e-9
    for factor, _ in precisions(rng, d):
        for own in (weights, weights - 1.0):
            close_parts(factor.gram(half, own), restrict(factor, half.T @ (own[:, None] * half)))


def check_columns(factor, matrix, columns):
    """A matrix is a row of column vectors: each column is done as if it were alone."""
    for name in ("multiply", "solve", "half_solve", "colour"):
        done = getattr(factor, name)
        close(done(columns), np.stack([done(column) for column in columns.T], axis=1))
    close(factor.multiply(columns), matrix @ columns)
    close(factor.solve(columns), np.linalg.solve(matrix, columns))


@given(d=st.integers(1, 8), n=st.integers(1, 8), seed=seeds)
@example(d=3, n=3, seed=0)
def test_precision_takes_columns(d, n, seed):
    rng = np.random.default_rng(seed)
    for factor, matrix in precisions(rng, d):
        check_columns(factor, matrix, rng.standard_normal((d, n)))


@pytest.mark.parametrize("name", ["solve", "half_solve"])
def test_broken_twin_scales_the_last_axis(name, rng):
    """A square matrix has room for the mistake."""

    def scaled(self, vector):
        return vector * self.covariance_parts[0] ** (1.0 if name == "solve" else 0.5)

    broken = type("Broken", (DiagonalPrecision,), {name: scaled})(np.array([1.0, 4.0]))
    with pytest.raises(AssertionError):
        check_columns(broken, np.diag([1.0, 4.0]), rng.standard_normal((2, 2)))


@given(d=st.integers(1, 8), seed=seeds)
def test_precision_whiten_and_trace(d, seed):
    rng = np.random.default_rng(seed)
    for factor, matrix in precisions(rng, d):
        inverse = np.linalg.solve(matrix, np.eye(d))
        symmetric = rng.standard_normal((d, d))
        parts = restrict(factor, symmetric + symmetric.T)
        change = widen(factor, parts)
        whitened = factor.whiten(parts)
        close(factor.trace_solve(parts), np.trace(inverse @ change))
        close(whitened @ whitened, np.trace(inverse @ change @ inverse @ change))


def test_whiten_packs_both_triangles_into_one():
    """At a size that LAPACK treats block by block; rounding is some 1e-15, the twin is off by its norm."""
    rng = np.random.default_rng(0)
    d = 150
    root, symmetric = rng.standard_normal((2, d, d))
    factor, symmetric = DensePrecision(root @ root.T + d * np.eye(d)), symmetric + symmetric.T
    half = solve_triangular(factor.cholesky, symmetric, lower=True)
    whole = solve_triangular(factor.cholesky, half.T, lower=True)
    whitened, rows_and_columns = factor.whiten((symmetric,)), np.triu_indices(d)
    on_diagonal = np.equal(*rows_and_columns)
    assert whitened.shape == (d * (d + 1) // 2,)
    np.testing.assert_allclose(whitened[on_diagonal], np.diagonal(whole), atol=1e-13)
    np.testing.assert_allclose(whitened[~on_diagonal], np.sqrt(2.0) * whole[rows_and_columns][~on_diagonal], atol=1e-13)
    assert whitened @ whitened == pytest.approx((whole**2).sum(), rel=1e-13)
    assert not np.isclose((whole[rows_and_columns] ** 2).sum(), (whole**2).sum(), rtol=0.1)  # twin: without the √2


@pytest.mark.parametrize("family", ["diagonal", "block", "full"])
def test_a_member_of_ones_own_parameter_shares_the_factorisation(family):
    q, p = members(family, 3, 0, 2)
    assert q.with_natural(q.natural).factor is q.factor
    assert q.at(p.mean, q.factor.parts).factor is q.factor
    assert q.at(p.mean, p.factor.parts).factor is not q.factor
    assert q.with_natural(p.natural).factor is not q.factor
    assert q.with_natural(2.0 * q.natural).factor is not q.factor
    copied = q.natural.from_vector(q.natural.to_vector())
    np.testing.assert_array_equal(q.with_natural(q.natural).mean, q.with_natural(copied).mean)


@given(p=st.integers(1, 4), classes=st.integers(2, 4), seed=seeds)
def test_precision_of_stacked_classes(p, classes, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((5, p))
    roots = rng.standard_normal((5, classes, classes))
    weights = roots + roots.transpose(0, 2, 1)
    gram = sum(np.kron(w, np.outer(x, x)) for w, x in zip(weights, X, strict=True))
    lifted = np.stack([np.kron(np.eye(classes), x) for x in X])  # (n, C, d): predictors are lifted @ θ
    # `precisions` draws block sizes without looking at the classes, so that blocks cut through them
    for factor, matrix in precisions(rng, classes * p):
        inverse = np.linalg.solve(matrix, np.eye(classes * p))
        close(factor.class_covariances(X, classes), lifted @ inverse @ lifted.transpose(0, 2, 1))
        close_parts(factor.class_gram(X, weights), restrict(factor, gram))
        a, b = np.sort(rng.integers(0, classes * p + 1, 2)), np.sort(rng.integers(0, classes * p + 1, 2))
        if not isinstance(factor, DiagonalPrecision) and a[0] < a[1] and b[0] < b[1]:
            block = factor.covariance_block(slice(*map(int, a)), slice(*map(int, b)))
            expected = inverse[a[0] : a[1], b[0] : b[1]]
            close(np.zeros_like(expected) if block is None else block, expected)


def test_precision_that_is_not_positive_definite():
    for factor in [
        DensePrecision(np.array([[1.0, 2.0], [2.0, 1.0]])),
        DensePrecision(np.full((2, 2), np.nan)),
        DiagonalPrecision(np.array([1.0, 0.0])),
        DiagonalPrecision(np.array([1.0, np.inf])),
        BlockPrecision(np.eye(2), -np.eye(1)),
    ]:
        assert not factor.is_positive_definite()
        with pytest.raises(F.NotPositiveDefiniteError):
            _ = factor.logdet
        with pytest.raises(F.NotPositiveDefiniteError):
            _ = factor.covariance_parts


# ----------------------------------------------------------------------------------------------------
# What users hand in
# ----------------------------------------------------------------------------------------------------

TWO = np.zeros(2)
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]


BAD = [
    (lambda: F.FullGaussian([[0.0]], 1.0), "mean"),
    (lambda: F.FullGaussian("abc", 1.0), "mean"),
    (lambda: F.FullGaussian(TWO, -1.0), "precision"),
    (lambda: F.FullGaussian(TWO, np.ones(2)), "precision"),
    (lambda: F.FullGaussian(TWO, [[1.0, 0.5], [0.0, 1.0]]), "precision"),
    (lambda: F.FullGaussian(TWO, INDEFINITE), "precision"),
    (lambda: F.FullGaussian(TWO, [[np.inf, 0.0], [0.0, 1.0]]), "precision"),
    (lambda: F.FullGaussian.from_covariance(TWO, INDEFINITE), "covariance"),
    (lambda: F.DiagonalGaussian(TWO, [1.0, -1.0]), "precision"),
    (lambda: F.DiagonalGaussian(TWO, [1.0, 1.0, 1.0]), "precision"),
    (lambda: F.DiagonalGaussian.from_covariance(TWO, [1.0, 0.0]), "covariance"),
    (lambda: F.BlockDiagonalGaussian(TWO, 1.0), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, 1.0, [1, 2]), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, 1.0, [0, 2]), "blocks"),
    (lambda: F.BlockDiagonalGaussian(TWO, 1.0, 2), "blocks"),
    (lambda: F.BlockDiagonalGaussian(TWO, None), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, []), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, [1.0, 1.0]), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, [np.eye(2), np.eye(3)], [2, 3]), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, [np.eye(2), np.ones((2, 3))]), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, [np.eye(1)], [1, 1]), "precision"),
    (lambda: F.BlockDiagonalGaussian(TWO, [INDEFINITE]), "precision"),
    (lambda: F.FixedPrecisionGaussian(TWO, INDEFINITE), "precision"),
    (lambda: F.FixedPrecisionGaussian(TWO, np.ones((2, 2, 2))), "precision"),
    (lambda: F.IsotropicGaussian(TWO, 0.0), "precision"),
    (lambda: F.IsotropicGaussian(TWO, "one"), "precision"),
    (lambda: F.Gamma([1.0, 0.0], 1.0), "shape"),
    (lambda: F.Gamma(1.0, -2.0), "rate"),
    (lambda: F.Gamma([1.0, 2.0], [1.0, 2.0, 3.0]), "rate"),
    (lambda: F.Beta(0.0, 1.0), "a"),
    (lambda: F.Beta(1.0, [1.0, -1.0]), "b"),
    (lambda: F.Dirichlet([1.0]), "concentration"),
    (lambda: F.Dirichlet([1.0, 0.0]), "concentration"),
]


def test_bad_arguments():
    assert_refused(BAD)


def test_numbers_are_repeated():
    given = [np.eye(2), 2.0 * np.eye(3)]
    ragged = F.BlockDiagonalGaussian(np.zeros(5), given, blocks=[2, 3])
    assert ragged.natural == F.BlockDiagonalGaussian(np.zeros(5), given).natural
    assert F.Gamma(2.0, [1.0, 2.0]).shape.tolist() == [2.0, 2.0]
    assert F.Beta(2.0, 3.0).dim == 1
    np.testing.assert_array_equal(F.FullGaussian(TWO, 3.0).precision, 3.0 * np.eye(2))
    np.testing.assert_array_equal(F.DiagonalGaussian(TWO, 3.0).precision, [3.0, 3.0])


# ----------------------------------------------------------------------------------------------------
# Bad arguments that no domain check sees
# ----------------------------------------------------------------------------------------------------


@learned_families
def test_linear_part_that_is_not_finite(family):
    (q,) = members(family, 2, 0)
    linear = np.array([np.nan, 0.0])
    assert not q.contains(F.Natural(linear, *q.natural.parts[1:]))
    with pytest.raises(ValueError, match="outside the domain"):
        q.with_natural(F.Natural(linear, *q.natural.parts[1:]))


@pytest.mark.parametrize("family", ["full", "diagonal", "fixed", "isotropic"])
def test_members_of_another_dimension(family):
    (small,), (large,) = members(family, 1, 0), members(family, 2, 0)
    for method, argument in [
        (small.kl, large),
        (large.kl, small),
        (large.with_natural, small.natural),
        (large.with_expectation, small.expectation),
    ]:
        with pytest.raises(TypeError):
            method(argument)


def test_fixed_precisions_of_different_structure():
    q = F.FixedPrecisionGaussian(TWO, [1.0, 2.0])
    p = F.FixedPrecisionGaussian(TWO, np.diag([3.0, 4.0]))
    with pytest.raises(TypeError, match="their fixed precisions differ"):
        q.kl(p)
