"""Small matrices are computed by one BLAS thread, and the number of threads is put back."""

from threading import Barrier, Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import bayesadmm_np as ba
from bayesadmm_np._threads import SMALL, one_thread_if_small
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site
from bayesadmm_np.federation.glm_server import GLMServer


def threads():
    """Return the numbers of threads of all BLAS libraries."""
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def three_threads():
    before = threads()
    with threadpool_limits(3, user_api="blas"):
        assert threads() == {3}
        yield
        assert threads() == {3}
    assert threads() == before


@pytest.mark.parametrize(("columns", "expected"), [(1, {1}), (SMALL, {1}), (SMALL + 1, {3})])
def test_up_to_a_size_one_thread_computes(columns, expected):
    with one_thread_if_small(columns):
        assert threads() == expected


def test_an_error_puts_the_number_back():
    with pytest.raises(ZeroDivisionError), one_thread_if_small(1):
        _ = 1 / 0


def test_of_two_that_overlap_the_last_puts_the_number_back():
    """The second enters after the first and leaves after it: a number remembered by each would stay at one."""
    entered, left = Barrier(2), Barrier(2)

    def first():
        with one_thread_if_small(1):
            entered.wait()
        left.wait()

    other = Thread(target=first)
    other.start()
    entered.wait()
    with one_thread_if_small(1):
        left.wait()
        assert threads() == {1}
    other.join()


def test_a_server_that_is_read_again_asks_the_same_bytes(monkeypatch):
    """The question that is out is computed again from the answers: by one thread, so that it has the same bits."""
    seen = []
    prepared = GLMServer.prepared
    monkeypatch.setattr(GLMServer, "prepared", lambda self, talk: (seen.append(threads()), prepared(self, talk))[1])
    X = np.random.default_rng(0).normal(size=(40, 3))
    hello = Site("A", GLMData(ba.losses.Logistic(X, np.arange(40) % 2))).hello()
    server = Coordinator.start([hello], GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(3), 1.0)))
    again = Coordinator.restore(server.save())
    assert again.broadcast().digest == server.broadcast().digest
    assert seen == [{1}, {1}]


@pytest.mark.parametrize(("dim", "expected"), [(2, {1}), (SMALL + 1, {3})])
def test_every_way_into_the_core_asks_for_it(dim, expected):
    seen = []

    class Watched(ba.losses.Logistic):
        def row_moments(self, *args):
            seen.append(threads())
            return super().row_moments(*args)

    prior = ba.families.DiagonalGaussian(np.zeros(dim), 1.0)
    clients = [Watched(np.eye(2, dim), [0, 1])]
    result = ba.run(ba.methods.PVI(), clients, prior, rounds=1)
    for enter in (
        result.certificate,
        lambda: ba.solve_pooled(clients, prior, tol=1e-3),
        lambda: ba.clients.own_fits(clients, prior),
        lambda: ba.local_rates(clients, prior) if dim == 2 else None,
    ):
        enter()
        assert {frozenset(one) for one in seen} == {frozenset(expected)}
