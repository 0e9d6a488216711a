"""A guard between sites: answers at one q_g are kept over rounds, and a search knows dense curvatures."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.cli._results import waits_in_vain
from bayesadmm_np.federation import GLMTask, Message, MessageError
from bayesadmm_np.losses.expectations import Delta
from bayesadmm_np.splitting import line
from oracles.couriers import drive, introduce, started
from oracles.problems import same_bits

D, K = 4, 3
NEWTON, PVI = ba.Guarded(ba.methods.Newton()), ba.Guarded(ba.methods.PVI())
FAMILIES = [ba.families.FullGaussian, ba.families.DiagonalGaussian]


def clients():
    """Columns far from their mean: rounds of PVI with a diagonal posterior do not converge."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(K):
        X = rng.standard_normal((40, D)) + 2.0
        found.append(ba.losses.Logistic(X, (rng.random(40) < 1 / (1 + np.exp(-X[:, 0] + 2))).astype(float)))
    return found


def away(until):
    """Another site is away in each round before `until`."""
    return lambda number, k: number < until and k == number % K


@pytest.mark.parametrize("family", FAMILIES)
def test_a_guarded_run_is_that_of_one_process_with_sites_in_turns(family):
    """Also the first round, of the sites' own fits, takes two then."""
    prior, rounds = family(np.full(D, 0.3), 1.0), 9
    absent = away(rounds + 1)
    options = {"rounds": rounds, "tol": 1e-300}

    def present(number, n_clients, rng):
        return np.array([not absent(number, k) for k in range(n_clients)])

    result = ba.run(NEWTON, clients(), prior, participation=present, raise_on_failure=False, **options)
    server, _ = drive(NEWTON, clients(), prior, absent, **options)
    assert same_bits(result.posterior.natural, server.state.q_g.natural)
    assert result.status is server.outcome.status
    kept = {record.round for record in server.state.history if all(c.status.name == "ABSENT" for c in record.clients)}
    assert {1, 3} <= kept  # where answers were kept, and no step was made
    assert 2 not in kept


@pytest.mark.parametrize(
    ("row", "family"),
    [
        (NEWTON, ba.families.FullGaussian),
        (NEWTON, ba.families.DiagonalGaussian),
        (PVI, ba.families.FullGaussian),
        pytest.param(PVI, ba.families.DiagonalGaussian, marks=pytest.mark.slow),
    ],
)
def test_sites_in_turns_delay_a_guard_and_do_not_stop_it(row, family):
    prior = family(np.zeros(D), 0.1)
    server, _ = drive(row, clients(), prior, away(13), tol=1e-8, rounds=80)
    assert server.outcome.status.name == "CONVERGED"
    pooled = ba.solve_pooled(clients(), prior, expectation=Delta(2) if row is NEWTON else None).posterior
    distance = server.outcome.certificate.distance
    apart = np.abs(server.state.q_g.mean - pooled.mean)
    # the pooled fit is known to its own residual, some 1e-8 of a standard error
    assert (apart <= 1e-6 * np.sqrt(pooled.variance)).all()
    if row is PVI and family is ba.families.DiagonalGaussian:
        assert server.state.memory.phase == "line"
        assert distance is not None


@pytest.mark.parametrize(("most", "status"), [(line.MOST_NUMBERS, "CONVERGED"), (0, "ROUND_LIMIT")])
def test_the_dense_curvature_makes_the_steps_of_a_diagonal_family_few(most, status, monkeypatch):
    """The twin: too many columns for dense curvatures, so that none is sent."""
    monkeypatch.setattr(line, "MOST_NUMBERS", most)
    prior = ba.families.DiagonalGaussian(np.zeros(D), 0.1)
    assert drive(NEWTON, clients(), prior, tol=1e-8, rounds=8)[0].outcome.status.name == status


def asked(server, sites):
    return [site.step(server.broadcast()) for site in sites]


def test_a_round_is_in_vain_only_while_answers_lack():
    sites = introduce(clients())
    server = started(sites, GLMTask(NEWTON, ba.families.FullGaussian(np.zeros(D), 1.0)))
    names = server.spec.sites
    assert server.broadcast().header["ask"] == "own"
    replies = [reply for _, reply in asked(server, sites)]
    server = server.without(list(server.read(replies[:2]).values()), names[2:])
    assert waits_in_vain(server) == names[2:]
    assert server.broadcast().header["ask"] == "own"  # of all, until the last has told its fit
    assert server.counted == (0, 0, 0)
    reply = asked(server, sites)[2][1]
    server = server.without(list(server.read([reply]).values()), names[:2])
    assert waits_in_vain(server) == ()  # the answers of the others were kept
    assert server.broadcast().header["ask"] == "evaluate"


def test_a_forged_curvature_is_refused():
    sites = introduce(clients())
    prior = ba.families.DiagonalGaussian(np.zeros(D), 1.0)
    server = started(sites, GLMTask(NEWTON, prior))
    sites, replies = zip(*asked(server, sites), strict=True)
    server = server.step(replies)
    reply = sites[0].step(server.broadcast())[1]
    assert reply.arrays["curvature"].size == D * (D + 1) // 2
    server.read([reply])  # as it was, it is read
    same = np.zeros((D, D), dtype=bool)  # the entries that the family's own part says too
    same[np.diag_indices(D)] = True
    for factor, is_own in ((-1.0, True), (30.0, False)):
        curvature = reply.arrays["curvature"] * np.where(same[np.triu_indices(D)] == is_own, factor, 1.0)
        forged = Message("reply", reply.header, {**reply.arrays, "curvature": curvature})
        with pytest.raises(MessageError, match="curvature must be"):
            server.read([forged.sealed(sites[0].key)])
    bare = Message("reply", reply.header, {name: v for name, v in reply.arrays.items() if name != "curvature"})
    with pytest.raises(MessageError, match="curvature"):
        server.read([bare.sealed(sites[0].key)])
