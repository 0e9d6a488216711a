"""Third and fourth expected derivatives: against differences of the second, and as symmetric tensors."""

from itertools import combinations_with_replacement

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit, PoissonLog
from bayesadmm_np.losses.tensors import pack_tensors, pairs, tensor_size, unpack_tensors
from oracles.problems import assert_close, spd, team

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
        third, fourth = pointwise.bends(mean, spread, y)
        assert_close(third, slope_of(lambda m, y=y: pointwise.exact(m, spread, y).curvature, mean), 1e-9)
        assert_close(fourth, slope_of(lambda m, y=y: pointwise.bends(m, spread, y)[0], mean), 1e-9)
    # the twin that takes one for the other
    assert isinstance(pointwise, PoissonLog) or np.abs(third - fourth).max() > 1e-3 * np.abs(fourth).max()


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_packed_tensors_hold_every_entry_once(dim, rng):
    z, third, fourth = rng.standard_normal((7, dim)), rng.standard_normal(7), rng.standard_normal(7)
    packed = pack_tensors(z, third, fourth)
    cubes = list(combinations_with_replacement(range(dim), 3))
    quads = list(combinations_with_replacement(range(dim), 4))
    assert packed.size == tensor_size(dim) == len(cubes) + len(quads)
    three, four = unpack_tensors(packed, dim)
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
        assert any((a != b).any() for a, b in zip(unpack_tensors(other, dim), (three, four), strict=True))


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares"])
def test_the_tensors_of_a_loss_tell_how_its_hessian_moves_with_q(name, rng):
    """dH = Σ w(E[ℓ''']xᵀdm + ½E[ℓ'''']xᵀdΣx)xxᵀ, in coordinates in which q is standard; twin: without the ½."""
    (loss, _), q = team(name, sizes=(20, 5)), FULL(0.3 * rng.standard_normal(3), 4.0 * spd(rng, 3))
    rule = loss.check(q, ba.losses.Exact())
    three, four = unpack_tensors(loss.tensors(q), 3)
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
    whole = ba.losses.Logistic(X, y, weights=np.full(6, 2.0), offset=offset).tensors(q)
    twice = ba.losses.Logistic(np.vstack([X, X]), np.tile(y, 2), offset=np.tile(offset, 2)).tensors(q)
    assert_close(whole, twice, 1e-13)
    assert np.abs(whole - 2 * ba.losses.Logistic(X, y).tensors(q)).max() > 1e-2


def test_what_is_not_known_is_said():
    X, y = np.ones((3, 1)), np.array([0, 1, 2])
    softmax, q = ba.losses.Softmax(X, y, n_classes=3), FULL(np.zeros(3), 1.0)
    assert not softmax.has_tensors
    with pytest.raises(ValueError, match="third and fourth derivatives of Softmax are not known"):
        softmax.tensors(q)
    with pytest.raises(NotImplementedError, match="CategoricalLogit"):
        CategoricalLogit(3).bends(np.zeros(1), np.ones(1), np.zeros(1))
    counts = ba.losses.LinearInStatistics(q.natural)
    assert counts.has_tensors
    assert not counts.tensors(q).any()
