"""The limit of a separated likelihood is the fit of the rows that do not separate, and its supremum is theirs."""

from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from bayesadmm_np.glm.columns import find_relations
from bayesadmm_np.glm.diagnosis import Separation, Undecided
from bayesadmm_np.glm.estimable import estimable, flat_directions
from bayesadmm_np.glm.limit import limit, supremum
from bayesadmm_np.glm.refit import drive, refit
from bayesadmm_np.losses import Logistic, Poisson, ReferenceSoftmax
from bayesadmm_np.losses.linear_model import row_factor
from oracles.separable import searched as search


def searching(losses, width):
    """Return the search of `supremum` among rows in this process."""

    def among(free):
        outputs, columns = [str(c) for c in range(free.size // width)], [str(j) for j in range(width)]
        return search(losses, columns, outputs=outputs, penalised=np.flatnonzero(~free[:width]).tolist())

    return among


CLOSE = 1e-8
"""Nats and coefficients: the limit is reached to 1e-10, and an oracle's last Newton step to less."""

NAMES = ["z", "k1", "k2", "k3", "(intercept)"]
WIDTH, AT = len(NAMES), {name: j for j, name in enumerate(NAMES)}


def problem(seed):
    """Return losses of sites, and the rows and columns of the fit at the limit; levels 2 and 3 may separate.

    Softmax has a level without its last class, and without its last two.
    """
    rng = np.random.default_rng(seed)
    n, kind = int(rng.integers(60, 150)), (Logistic, Poisson, ReferenceSoftmax)[seed % 3]
    level, z = rng.choice(4, n, p=[0.3, 0.3, 0.2, 0.2]), rng.normal(size=n)
    X = np.column_stack([z, *(level == k for k in (1, 2, 3)), np.ones(n)]).astype(float)
    gone = [2, 3][: 1 + seed % 2]
    weights = rng.choice([0.5, 1.0, 2.0], n) if seed % 4 == 1 else np.ones(n)
    offset = rng.normal(0.0, (0.5, 6.0)[seed % 5 == 0], n)
    if kind is Poisson:
        y = rng.poisson(np.exp(np.clip(0.3 * z + 0.5 + offset, None, 8.0))).astype(float)
        y[np.isin(level, gone)] = 0.0
    elif kind is Logistic:
        y = (rng.random(n) < 1 / (1 + np.exp(0.4 * z - offset))).astype(float)
        y[np.isin(level, gone)] = 1.0
    else:
        y, offset = rng.integers(0, 3, n).astype(float), None
        for m, k in enumerate(gone):
            y[level == k] = np.minimum(y[level == k], 1 - m)
    make = partial(kind, n_classes=3) if kind is ReferenceSoftmax else kind
    sites = np.array_split(rng.permutation(n), 1 + seed % 5)
    part = [{} if offset is None else {"offset": offset[own]} for own in sites]
    losses = [make(X[own], y[own], weights=weights[own], **more) for own, more in zip(sites, part, strict=True)]
    return losses, gone, (X, y, weights, offset, level)


def reference(losses, gone, rows, columns):
    """Return the minimum without the rows, or the classes of rows, that separate; θ has zeros elsewhere."""
    X, y, weights, offset, level = rows
    if isinstance(losses[0], ReferenceSoftmax):
        out = np.zeros((len(y), 3))
        for m, k in enumerate(gone):
            if AT[f"k{k}"] in columns:
                out[level == k, 2 - m :] = -np.inf

        def value(theta):
            full = np.column_stack([np.zeros(len(y)), X[:, columns] @ theta.reshape(2, -1).T])
            p = np.exp(full + out - logsumexp(full + out, axis=1, keepdims=True))
            slope = (p - np.eye(3)[y.astype(int)])[:, 1:]
            lost = logsumexp(full + out, axis=1) - full[np.arange(len(y)), y.astype(int)]
            return lost @ weights, ((weights[:, None] * slope).T @ X[:, columns]).ravel()

        found = minimize(value, np.zeros(2 * len(columns)), jac=True, method="BFGS", options={"gtol": 1e-9})
        return found.fun, None
    left = ~np.isin(level, [k for k in gone if AT[f"k{k}"] in columns])
    kept = [j for j in columns if not any(j == AT[f"k{k}"] for k in gone)]
    alone = type(losses[0])(X[left][:, kept], y[left], weights[left], offset=offset[left])
    found = drive(refit(np.zeros(len(kept)), np.ones(len(kept), bool), most_exchanges=200), [alone])
    theta = np.zeros(WIDTH)
    theta[kept] = found.theta
    return found.value, (theta, kept, np.sqrt(np.diagonal(np.linalg.inv(alone.hessian(found.theta)))))


@pytest.mark.parametrize("seed", range(30))
def test_the_limit_is_the_fit_of_the_rows_that_do_not_separate(seed):
    losses, gone, rows = problem(seed)
    search, dim = searching(losses, WIDTH), losses[0].dim
    everything = np.ones(dim, dtype=bool)
    searched = search(everything)
    assert isinstance(searched.finding, Separation)
    assert not searched.finding.is_complete
    found = drive(limit([np.zeros(dim)], everything, searched), losses)
    value, fit = reference(losses, gone, rows, range(WIDTH))
    scale = max(1.0, 1e-6 * abs(value))  # of large counts
    assert found.value == pytest.approx(value, abs=CLOSE * scale)
    assert sum(loss.value(found.theta) for loss in losses) == pytest.approx(value, abs=CLOSE * scale)
    if fit is not None:
        theta, kept, errors = fit
        assert estimable(np.eye(dim), searched.receding).tolist() == [j in kept for j in range(dim)]
        # with the pivots given, every coefficient that is finite has its standard error
        free = np.setdiff1d(np.arange(dim), searched.pivots)
        hessian = np.sum([loss.hessian(found.theta) for loss in losses], axis=0)
        spread = np.zeros((dim, dim))
        spread[np.ix_(free, free)] = np.linalg.inv(hessian[np.ix_(free, free)])
        assert np.abs((found.theta - theta)[kept] / errors).max() < CLOSE
        np.testing.assert_allclose(np.sqrt(np.diagonal(spread))[kept], errors, rtol=1e-6)
    # broken twin: with the pivots a little way along d the rows that separate still lose something
    free = np.isin(np.arange(dim), searched.pivots, invert=True)
    twin = refit(np.zeros(dim), free, searched.receding[:, 0], most_exchanges=200)
    assert drive(twin, losses).value > value + 1e-4
    for term in ([0], [1], [1, 2, 3], [gone[0]]):
        left = [j for j in range(WIDTH) if j not in term]
        present = np.tile(np.isin(np.arange(WIDTH), left), dim // WIDTH)
        reduced = drive(supremum(found.theta, present, WIDTH, search, None, searched.receding), losses)
        assert reduced.value == pytest.approx(reference(losses, gone, rows, left)[0], abs=CLOSE * scale)


def test_complete_separation_loses_nothing():
    x = np.array([-2.0, -1.0, 1.0, 3.0])
    losses = [Logistic(np.column_stack([x, np.ones(4)]), x > 0)]
    searched = search(losses, ["x", "one"], intercepts=[1])
    found = drive(limit([[np.nan, 0.0], [0.0, 0.0]], [True, True], searched), losses)
    assert (len(searched.pivots), found.value < 1e-12) == (2, True)
    # the model of the intercept alone has a maximum: ½
    null = drive(supremum(found.theta, [False, True], 2, searching(losses, 2), None, searched.receding), losses)
    assert null.value == pytest.approx(4.0 * np.log(2.0), abs=CLOSE)


def test_a_removed_column_frees_the_one_that_it_made_superfluous():
    """Of a, b and a + b the last is held; without a it is determined, and the span is the same."""
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 80))
    X = np.column_stack([a, b, a + b, np.ones(80)])
    losses = [Logistic(X[k::2], (rng.random(80) < 0.5)[k::2]) for k in range(2)]
    flat = flat_directions(find_relations([row_factor(loss.X) for loss in losses]), 4)
    whole = drive(supremum(np.zeros(4), np.ones(4, bool), 4, None, flat, None), losses)
    without = drive(supremum(whole.theta, [False, True, True, True], 4, None, flat, None), losses)
    assert without.value == pytest.approx(whole.value, abs=CLOSE)
    assert whole.theta[2] == 0.0 != without.theta[2]
    # broken twin: the column stays held
    assert drive(refit(whole.theta, [False, True, False, True]), losses).value > whole.value + 1e-6


def test_a_smaller_model_of_which_nothing_is_known_has_no_supremum():
    losses, _, _ = problem(0)
    searched = searching(losses, WIDTH)(np.ones(WIDTH, bool))
    unknown = searched._replace(finding=Undecided(("z",)))
    with pytest.raises(ValueError, match="not decided"):
        drive(
            supremum(np.zeros(WIDTH), np.arange(WIDTH) > 0, WIDTH, lambda _: unknown, None, searched.receding), losses
        )
