"""Label skew and concept drift: what a pair of clients has, and broken twins."""

import numpy as np
import pytest

from bayesadmm_np.data.partition import concept_drift, iid, label_skew

fails = pytest.raises(AssertionError)
PAIRS = [[0, 6], [2, 4], [1, 3], [5, 7], [8, 9]]


def labels(rng):
    return rng.permutation(np.repeat(np.arange(10), rng.integers(30, 90, 10)))


def check(parts, y, complement):
    """Every row once; each class in pieces of the same cuts; a pair has all classes, and `complement` of each side."""
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        own, other = set(y[first]), set(y[second])
        assert len(own) == len(other) == 5
        assert own | other == set(range(10))
        complement(own, other)
    both = [np.concatenate(pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    sizes = np.array([np.bincount(y[rows], minlength=10) for rows in both])
    shares = np.cumsum(sizes, axis=0) / sizes.sum(axis=0)
    assert np.ptp(shares, axis=1).max() <= 1 / np.bincount(y).min() + 1e-12  # one row of the smallest class


def one_of_each(own, other):
    assert all(len(own.intersection(pair)) == 1 for pair in PAIRS)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clients", [2, 8, 40])
def test_what_clients_have(seed, clients):
    y = labels(np.random.default_rng(seed))
    check(label_skew(y, clients, np.random.default_rng(seed)), y, lambda own, other: None)
    check(concept_drift(y, clients, PAIRS, np.random.default_rng(seed)), y, one_of_each)
    with fails:
        check(iid(len(y), clients, np.random.default_rng(seed)), y, lambda own, other: None)
    if clients == 40:
        with fails:  # halves of the classes at random split some pair
            check(label_skew(y, clients, np.random.default_rng(seed)), y, one_of_each)


def test_sizes_differ_and_halves_are_drawn_anew():
    y = np.repeat(np.arange(10), 200)
    parts = label_skew(y, 40, np.random.default_rng(0))
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 5 * sizes.min()
    assert len({frozenset(y[part]) for part in parts}) > 20
    drifted = concept_drift(y, 40, PAIRS, np.random.default_rng(0))
    assert len({frozenset(y[part]) for part in drifted}) > 10


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda y, rng: label_skew(y, 3, rng), "clients must be even"),
        (lambda y, rng: label_skew(y, 200, rng), "at most 60, twice the smallest class"),
        (lambda y, rng: concept_drift(y, 4, PAIRS[1:], rng), "pairs must hold each class once"),
    ],
)
def test_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call(np.repeat(np.arange(10), 30), np.random.default_rng(0))
