"""No third or fourth derivatives leave a site: a sum of fourth powers of few rows gives every row.

The attack is the subspace power method (Kileel and Pereira): the flattened tensor Σ c_i z_i⊗z_i⊗z_i⊗z_i of n rows has
the range of the n matrices z_izᵢᵀ, and for n < d(d−1)/2 no other matrices of rank one are in it.
"""

from math import comb

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.cli._methods import task_of
from bayesadmm_np.cli._options import MethodSettings, RunSettings
from bayesadmm_np.federation import GLMData, GLMTask, MessageError, Site
from bayesadmm_np.losses import Exact
from bayesadmm_np.losses.tensors import tensor_size, unpack_tensors
from bayesadmm_np.splitting.settings import encode
from oracles.couriers import edited, started
from oracles.overrides import ALLOWED

M = ba.methods
D, ROWS = 6, 12
JOINT = [M.JointNewton(), ba.Guarded(M.JointNewton("prior"))]


def losses():
    rng = np.random.default_rng(3)
    designs = [np.column_stack([rng.normal(size=(ROWS, D - 1)), np.ones(ROWS)]) for _ in range(3)]
    return [ba.losses.Logistic(X, np.arange(ROWS) % 2) for X in designs]


def sites():
    return [Site(name, GLMData(loss), rules=ALLOWED) for name, loss in zip("ABC", losses(), strict=True)]


def flattened(four, d):
    """T⁴ as a matrix of order d², from its entries over pairs."""
    pairs = np.zeros((d, d), dtype=int)
    rows, columns = np.triu_indices(d)
    pairs[rows, columns] = pairs[columns, rows] = np.arange(rows.size)
    return four[np.ix_(pairs.ravel(), pairs.ravel())]


def directions(matrix, rank, starts=150, seed=0):
    """Unit vectors x with x⊗x in the range of a symmetric matrix of order d²: maxima of ‖P x⊗x‖ that reach one."""
    values, vectors = np.linalg.eigh(matrix)
    chosen = vectors[:, np.argsort(-np.abs(values))[:rank]]
    d = int(np.sqrt(len(matrix)))
    x = np.random.default_rng(seed).normal(size=(starts, d))
    for _ in range(1500):
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        squares = np.einsum("ni,nj->nij", x, x).reshape(starts, -1)
        projected = (squares @ chosen @ chosen.T).reshape(starts, d, d)
        height = np.einsum("ni,nij,nj->n", x, projected, x)
        x = np.einsum("nij,nj->ni", projected, x) + 0.5 * x
    return x[height > 1 - 1e-10] / np.linalg.norm(x[height > 1 - 1e-10], axis=1, keepdims=True)


def missed(loss):
    """Rank of a site's T⁴, and the distance of each row from the nearest one that the tensor gives.

    The intercept gives sign and scale of a direction.
    """
    q = ba.families.FullGaussian(np.zeros(D), 1.0)
    four = flattened(unpack_tensors(loss.tensors(q, Exact()), q)[1], D)
    rank = np.linalg.matrix_rank(four)
    found = directions(four, rank) @ np.linalg.cholesky(q.precision).T
    found = found / found[:, -1:]
    return rank, np.abs(loss.X[:, None] - found[None]).max(axis=2).min(axis=1)


def test_the_tensors_of_one_reply_give_all_rows_of_a_site():
    """The reason of the ban; the twin has so many rows that every matrix of rank one is in the range."""
    rank, distances = missed(losses()[0])
    assert rank == ROWS < comb(D, 2)
    assert distances.max() < 1e-6
    rng = np.random.default_rng(4)
    many = ba.losses.Logistic(np.column_stack([rng.normal(size=(40, D - 1)), np.ones(40)]), np.arange(40) % 2)
    rank, distances = missed(many)
    assert rank == comb(D + 1, 2)
    assert distances.min() > 1e-3


def test_replies_of_a_posterior_between_sites_hold_sums_of_first_and_second_order():
    """The inventory of all replies of a run by default; the twin: one reply of a joint step would be far larger."""
    task = task_of(MethodSettings(), RunSettings(inference="posterior"), seed=0)
    team = sites()
    server, sizes = started(team, task), {}
    while server.outcome is None:
        team, replies = zip(*(site.step(server.broadcast()) for site in team), strict=True)
        for reply in replies:
            assert all(array.ndim == 1 for array in reply.arrays.values())
            sizes |= {name: max(array.size, sizes.get(name, 0)) for name, array in reply.arrays.items()}
        server = server.step(replies)
    assert server.outcome.status is ba.Status.CONVERGED
    order_two = D + comb(D + 1, 2)
    assert sizes == {"natural": order_two, "site": order_two, "sums": order_two, "errors": D}
    assert tensor_size(D) > 3 * order_two
    joint = ba.run(ba.Guarded(M.JointNewton()), losses(), task.prior(D), tol=1e-9).posterior
    most = server.outcome.certificate.distance.per_coefficient
    moved = np.abs(server.state.q_g.mean - joint.mean) / np.sqrt(joint.variance)
    assert (moved <= most + 1e-9).all()


@pytest.mark.parametrize("row", JOINT, ids=lambda row: row.name)
def test_a_server_refuses_a_joint_step_before_anything_is_sent(row):
    prior = ba.families.FullGaussian(np.zeros(D), 1.0)
    with pytest.raises(ArgumentError) as known:
        GLMTask(row, prior)
    with pytest.raises(ArgumentError) as chosen:  # the method is known when sites have said hello
        started(sites(), GLMTask(lambda d, n: row, prior))
    for error in (known.value, chosen.value):
        assert (error.argument, error.got) == ("method", row.name)
        assert "Guarded(Accelerated(PVI()))" in error.advice
    with pytest.raises(ArgumentError) as typed:
        task_of(MethodSettings(method="JointNewton"), RunSettings(), seed=0)
    assert typed.value.argument == "method"


def test_a_site_refuses_a_joint_step_and_computes_nothing_for_it(monkeypatch):
    """A server without the rule sends the spec that an older one would; the twin of the honest spec is answered."""
    computed = []
    monkeypatch.setattr(ba.losses.Logistic, "tensors", lambda *_: computed.append(1))
    team = sites()
    server = started(team, GLMTask(M.PVI(), ba.families.FullGaussian([0.0] * D, 1.0)))
    honest = server.broadcast()
    assert team[0].step(honest)[1].kind == "reply"
    with pytest.raises(MessageError) as refused:
        team[0].step(edited(honest, {"spec.method": encode(JOINT[0])}))
    assert JOINT[0].name in str(refused.value)
    assert not computed
