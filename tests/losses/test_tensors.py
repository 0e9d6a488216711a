"""Third and fourth expected derivatives: against differences of the second, and as symmetric tensors."""

from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses import Exact
from bayesadmm_np.losses.linear_model import LinearModelLoss
from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit, Pointwise, PoissonLog
from bayesadmm_np.losses.tensors import entries, pack_tensors, pairs, sorted_indices, tensor_size, unpack_tensors
from oracles.problems import assert_close, prior, spd, team

FULL = ba.families.FullGaussian
STEP = 1e-3
"""Of a central difference of fourth order: it errs by some STEP⁴ = 1e-12 derivatives, and rounding by 1e-16/STEP."""


def slope_of(function, at):
    """Central difference of fourth order."""
    far, near = (function(at + k * STEP) - function(at - k * STEP) for k in (2, 1))
    return (8.0 * near - far) / (12.0 * STEP)


@pytest.mark.parametrize("pointwise", [BernoulliLogit(), PoissonLog()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("variance", [0.0, 0.3, 2.0, 30.0])
def test_bends_are_the_slopes_of_the_expected_curvature(pointwise, variance):
    """∂E[ℓ'']/∂m = E[ℓ'''], and ∂E[ℓ''']/∂m = E[ℓ'''']; so do both signs of a label."""
    mean = np.linspace(-3.0, 3.0, 13)
    spread = np.full(13, variance)
    for label in (0.0, 1.0):
        y = np.full(13, label)
        third, fourth = pointwise.higher_derivatives(mean, spread, y)
        assert_close(third, slope_of(lambda m, y=y: pointwise.exact(m, spread, y).curvature, mean), 1e-9)
        assert_close(fourth, slope_of(lambda m, y=y: pointwise.higher_derivatives(m, spread, y)[0], mean), 1e-9)
    # the twin that takes one for the other
    assert isinstance(pointwise, PoissonLog) or np.abs(third - fourth).max() > 1e-3 * np.abs(fourth).max()


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_packed_tensors_hold_every_entry_once(dim, rng):
    z, third, fourth = rng.standard_normal((7, dim)), rng.standard_normal(7), rng.standard_normal(7)
    packed = pack_tensors(z, third, fourth)
    cubes = list(combinations_with_replacement(range(dim), 3))
    quads = list(combinations_with_replacement(range(dim), 4))
    assert packed.size == tensor_size(dim) == len(cubes) + len(quads)
    q = FULL(np.zeros(dim), 1.0)
    three, four = unpack_tensors(packed, q)
    whole3, whole4 = (
        np.einsum("i,ij,ik,il->jkl", third, z, z, z),
        np.einsum("i,ij,ik,il,im->jklm", fourth, z, z, z, z),
    )
    rows, columns = pairs(dim)
    assert_close(three, whole3[:, rows, columns], 1e-13)
    assert_close(four, whole4[rows, columns][:, rows, columns], 1e-13)
    assert np.array_equal(four, four.T)
    # every number is used: none is there twice
    for i in range(packed.size):
        other = packed.copy()
        other[i] += 1.0
        assert any((a != b).any() for a, b in zip(unpack_tensors(other, q), (three, four), strict=True))


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares"])
def test_the_tensors_of_a_loss_tell_how_its_hessian_moves_with_q(name, rng):
    """dH = Σ w(E[ℓ''']xᵀdm + ½E[ℓ'''']xᵀdΣx)xxᵀ, in coordinates in which q is standard; twin: without the ½."""
    (loss, _), q = team(name, sizes=(20, 5)), FULL(0.3 * rng.standard_normal(3), 4.0 * spd(rng, 3))
    rule = loss.check(q, ba.losses.Exact())
    three, four = unpack_tensors(loss.tensors(q, rule), q)
    root = q.factor.colour(np.eye(3))
    move, change = rng.standard_normal(3), rng.standard_normal((3, 3))
    change = change + change.T

    def hessian(t):
        other = FULL.from_covariance(q.mean + t * root @ move, root @ (np.eye(3) + t * change) @ root.T)
        return root.T @ loss.expect(other, rule).curvature.dense() @ root

    rows, columns = pairs(3)
    twice = np.where(rows == columns, 1.0, 2.0)
    found = slope_of(hessian, 0.0)[rows, columns]
    assert_close(found, move @ three + 0.5 * (twice * change[rows, columns]) @ four, 1e-8)
    twin = move @ three + (twice * change[rows, columns]) @ four
    assert name == "squares" or np.abs(found - twin).max() > 1e-2


def test_weights_and_offsets_are_in_the_tensors(rng):
    X, y = rng.standard_normal((6, 2)), rng.integers(0, 2, 6).astype(float)
    q, offset = FULL(np.array([0.2, -0.1]), 3.0), rng.standard_normal(6)
    whole = ba.losses.Logistic(X, y, weights=np.full(6, 2.0), offset=offset).tensors(q, Exact())
    twice = ba.losses.Logistic(np.vstack([X, X]), np.tile(y, 2), offset=np.tile(offset, 2)).tensors(q, Exact())
    assert_close(whole, twice, 1e-13)
    assert np.abs(whole - 2 * ba.losses.Logistic(X, y).tensors(q, Exact())).max() > 1e-2


def whole_tensor(entries, n_classes, order):
    """A symmetric tensor for every row, from its sorted entries."""
    whole = np.zeros((len(entries), *(n_classes,) * order))
    for i, key in enumerate(sorted_indices(n_classes, order)):
        for own in set(permutations(key)):
            whole[(slice(None), *own)] = entries[:, i]
    return whole


@pytest.mark.parametrize("has_reference", [False, True])
def test_bends_of_the_softmax_are_the_slopes_of_its_curvature(has_reference, rng):
    """In every direction of the predictors, and of the mean of points; twin: the third in place of the fourth."""
    pointwise = CategoricalLogit(4, has_reference)
    C = pointwise.n_outputs
    points, weights, u = 2.0 * rng.standard_normal((5, 7, C)), rng.dirichlet(np.ones(7)), rng.standard_normal(C)
    third, fourth = (
        whole_tensor(own, C, order)
        for own, order in zip(pointwise.higher_derivatives_at(points, weights), (3, 4), strict=True)
    )
    y = np.zeros(5)
    moved = slope_of(lambda t: pointwise.expected_derivatives(points + t * u, weights, y).curvature, 0.0)
    assert_close(third @ u, moved, 1e-9)
    moved = slope_of(lambda t: whole_tensor(pointwise.higher_derivatives_at(points + t * u, weights)[0], C, 3), 0.0)
    assert_close(fourth @ u, moved, 1e-9)
    assert np.abs(third - moved).max() > 1e-3


@pytest.mark.parametrize("loss_class", [ba.losses.Softmax, ba.losses.ReferenceSoftmax])
@pytest.mark.parametrize("n_classes", [3, 5])
def test_the_tensors_of_a_softmax_tell_how_its_hessian_moves_with_the_mean(loss_class, n_classes, rng):
    """Exactly, also of points, in coordinates in which q is standard; twin: the classes' own units in R's place."""
    X, y = rng.standard_normal((9, 2)), np.arange(9) % n_classes
    loss = loss_class(X, y, n_classes, weights=rng.uniform(0.5, 2.0, 9))
    d, C = loss.dim, loss.n_outputs
    q = FULL(0.3 * rng.standard_normal(d), 4.0 * spd(rng, d))
    rule = loss.check(q, ba.losses.QuasiMonteCarlo(64))
    packed = loss.tensors(q, rule)
    assert packed.size == tensor_size(d, C) < tensor_size(d)
    three, four = unpack_tensors(packed, q, C)
    root, (rows, columns) = q.factor.colour(np.eye(d)), pairs(d)
    move = rng.standard_normal(d)

    def at(t):
        return FULL(q.mean + t * root @ move, q.precision)

    found = slope_of(lambda t: root.T @ loss.expect(at(t), rule).curvature.dense() @ root, 0.0)
    assert_close(found[rows, columns], move @ three, 1e-8)
    found = slope_of(lambda t: unpack_tensors(loss.tensors(at(t), rule), q, C)[0], 0.0)
    index = np.zeros((d, d), dtype=int)
    index[rows, columns] = index[columns, rows] = np.arange(rows.size)
    assert_close(found, np.einsum("e,eap->ap", move, four[index]), 1e-8)
    assert_close(four, four.T, 1e-15)
    # as if the rows were in the units of the mean block already, and theta in those of R
    twin, _ = unpack_tensors(packed, FULL(q.mean, np.eye(d)), C)
    assert np.abs(twin - three).max() > 1e-2


def test_two_classes_have_the_tensors_of_the_logistic(rng):
    """θ₁ − θ₀ is the logistic's coefficient; by exact integrals."""
    X, y = rng.standard_normal((9, 2)), np.arange(9) % 2
    q = FULL(0.3 * rng.standard_normal(4), 4.0 * spd(rng, 4))
    turn = np.hstack([-np.eye(2), np.eye(2)])
    difference = FULL.from_covariance(turn @ q.mean, turn @ q.covariance_matrix @ turn.T)
    three, four = unpack_tensors(ba.losses.Softmax(X, y, 2).tensors(q, Exact()), q, 2)
    three_, four_ = unpack_tensors(ba.losses.Logistic(X, y).tensors(difference, Exact()), difference)
    # from units in which q is standard to those in which the difference is
    turned = difference.factor.cholesky.T @ turn @ q.factor.colour(np.eye(4))
    (rows, columns), (rows_, columns_) = pairs(4), pairs(2)
    double = np.einsum("ja,kb->jkab", turned, turned)
    double = (double + double.swapaxes(0, 1))[rows_, columns_][:, rows, columns] * np.where(
        rows_ == columns_, 0.5, 1.0
    )[:, None]
    assert_close(three, turned.T @ three_ @ double, 1e-12)
    assert_close(four, double.T @ four_ @ double, 1e-12)


def of_family(family, d, rng):
    """A member, and the numbers of both tensors by counting: the sorted indices (j, k, l, m) of pairs within blocks."""
    q = prior(family, d)
    q = q.at(0.3 * rng.standard_normal(d), [4.0 * part for part in q.factor.parts])
    own = list(zip(*entries(q), strict=True))
    cubes = {tuple(sorted((j, *pair))) for j in range(d) for pair in own}
    quads = {tuple(sorted((*one, *other))) for one in own for other in own}
    return q, len(cubes) + len(quads)


@pytest.mark.parametrize("family", ["diagonal", "block"])
@pytest.mark.parametrize("name", ["logistic", "poisson", "squares", "softmax", "softmax2"])
def test_a_family_with_blocks_has_their_entries_of_the_full_tensors(name, family, rng):
    """The same q as a full Gaussian has the same factor; of a softmax with d = 6 a block holds two classes' columns."""
    loss = team(name, sizes=(20, 5))[0]
    q, size = of_family(family, loss.dim, rng)
    whole = FULL(q.mean, q.factor.multiply(np.eye(loss.dim)))
    rule = loss.check(q, ba.losses.Auto())
    packed = loss.tensors(q, rule)
    assert packed.size == tensor_size(q, loss.n_outputs) == size
    three, four = unpack_tensors(packed, q, loss.n_outputs)
    full = unpack_tensors(loss.tensors(whole, rule), whole, loss.n_outputs)
    kept = [list(zip(*pairs(loss.dim), strict=True)).index(pair) for pair in zip(*entries(q), strict=True)]
    assert_close(three, full[0][:, kept], 1e-12)
    assert_close(four, full[1][np.ix_(kept, kept)], 1e-12)
    # every number is used: none is there twice
    for i in range(packed.size):
        found = unpack_tensors(packed + np.eye(1, packed.size, i)[0], q, loss.n_outputs)
        assert any((a != b).any() for a, b in zip(found, (three, four), strict=True))


@pytest.mark.parametrize(
    ("family", "numbers"), [("diagonal", 9 + 6), ("block", 10 + 9), ("full", 10 + 15), ("fixed", 0), ("isotropic", 0)]
)
def test_tensors_have_as_many_numbers_as_documented(family, numbers):
    """Of d = 3: a diagonal d² + d(d+1)/2; of blocks of 2 and 1 all cubes, and 5 + 1 + 3 quads; a fixed one none."""
    loss, q = team("logistic")[0], prior(family, 3).start()
    found = loss.tensors(q, Exact())
    assert found.size == tensor_size(q) == numbers
    if numbers == 0:
        assert [own.shape for own in unpack_tensors(found, q)] == [(3, 0), (0, 0)]


def test_what_is_not_known_is_said():
    class Bare(CategoricalLogit):
        higher_derivatives_at = Pointwise.higher_derivatives_at

    loss = LinearModelLoss(np.ones((3, 1)), np.arange(3.0), Bare(3))
    q = FULL(np.zeros(3), 1.0)
    assert not loss.has_tensors
    with pytest.raises(ValueError, match="third and fourth derivatives of LinearModelLoss are not known"):
        loss.tensors(q, ba.losses.QuasiMonteCarlo())
    with pytest.raises(NotImplementedError, match="CategoricalLogit"):
        CategoricalLogit(3).higher_derivatives(np.zeros(1), np.ones(1), np.zeros(1))
    with pytest.raises(NotImplementedError, match="Bare"):
        Bare(3).higher_derivatives_at(np.zeros((1, 1, 3)), np.ones(1))
    counts = ba.losses.LinearInStatistics(q.natural)
    assert counts.has_tensors
    assert not counts.tensors(q, Exact()).any()
