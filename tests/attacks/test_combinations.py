"""Columns of few values: sums of an honest run are linear equations for the number of rows of each combination."""

import itertools

import numpy as np
import pytest
from scipy.optimize import nnls

import bayesadmm_np as ba
from bayesadmm_np.federation import DisclosureError, DisclosureRules, GLMData, GLMTask, Message, Site, step_site
from bayesadmm_np.splitting.guarded import Guarded
from oracles.couriers import started

P = 6
COMBINATIONS = np.array([[*bits, 1.0] for bits in itertools.product([0.0, 1.0], repeat=P)])


def site_of(name, seed, n, rules):
    """A site with six columns of 0 and 1."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random((n, P)) < rng.uniform(0.3, 0.5, P), np.ones(n)]).astype(float)
    y = rng.random(n) < 1 / (1 + np.exp(-X @ [0.5, -0.4, 0.8, 0.0, 0.3, -0.6, -0.5]))
    return X, Site(name, GLMData(ba.losses.Logistic(X, y.astype(float))), rules=rules)


def curvatures_of_a_run(folder, n, rules):
    """Points of an honest run of maximum likelihood after the first, with the curvatures of site A there."""
    X, first = site_of("A", 0, n, rules)
    sites = [first, *(site_of(name, seed, 400, DisclosureRules.none())[1] for name, seed in (("B", 1), ("C", 2)))]
    for site in sites:
        (folder / site.name).mkdir()
    task = GLMTask(Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0))
    server, found = started(sites, task), []
    while server.outcome is None:
        server.broadcast().write(folder / "sent.npz")
        replies = []
        for k, site in enumerate(sites):
            sites[k], path = step_site(folder / site.name, site, folder / "sent.npz")
            replies.append(Message.read(path))
        if server.number > 1 and "site" in replies[0].arrays:
            like = server.spec.prior.natural.from_vector(replies[0].arrays["site"])
            found.append((server.served.q_g.mean, like.parts[1]))
        server = server.step(replies)
    return X, found


def counts_from(found):
    """Rows of each combination, from Σ w(θ_t) x xᵀ; weights of near points are made orthogonal first."""
    rows, columns = np.triu_indices(P + 1)
    predictors = [COMBINATIONS @ theta for theta, _ in found]
    weights = np.array([1 / (2 + np.exp(f) + np.exp(-f)) for f in predictors])
    basis, root = np.linalg.qr(weights.T)
    sums = np.linalg.solve(root.T, [curvature[rows, columns] for _, curvature in found])
    products = (COMBINATIONS[:, rows] * COMBINATIONS[:, columns]).T
    return np.rint(nnls(np.vstack([products * one for one in basis.T]), sums.ravel())[0])


@pytest.mark.parametrize("is_usual", [False, True], ids=["no rules", "usual rules"])
def test_the_patient_whose_combination_nobody_shares(is_usual, tmp_path):
    """200 rows are no protection: 64 unknown counts have 84 equations."""
    if is_usual:
        with pytest.raises(DisclosureError) as raised:
            curvatures_of_a_run(tmp_path, 200, DisclosureRules())
        assert (raised.value.rule, raised.value.column) == ("minimum_count", "a combination of columns")
        return
    X, found = curvatures_of_a_run(tmp_path, 200, DisclosureRules.none())
    true = (X[:, None] == COMBINATIONS).all(axis=2).sum(axis=0)
    assert np.array_equal(counts_from(found), true)
    assert (true == 1).sum() > 5


def test_combinations_of_three_rows_or_none_are_sent(tmp_path):
    X, found = curvatures_of_a_run(tmp_path, 2000, DisclosureRules())
    counts = (X[:, None] == COMBINATIONS).all(axis=2).sum(axis=0)
    assert counts[counts > 0].min() >= 3
    assert len(found) >= 3
