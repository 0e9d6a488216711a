"""A run by messages is the run in one process, bit for bit: every method, family and loss, and sites that are away."""

import dataclasses

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients import VON, GradientSteps
from bayesadmm_np.estimators.from_run import fitted_run
from bayesadmm_np.federation import Coordinator, GLMTask, Message, MessageError, final_result
from bayesadmm_np.federation.messages import read_spec
from bayesadmm_np.losses import LinearInStatistics, QuasiMonteCarlo
from oracles.couriers import carried, differences, drive, introduce, names_of, said_of, started
from oracles.problems import prior, same_bits, skewed_logistic, team
from oracles.rows_of_the_table import ROWS

M = ba.methods
SIZES = (5, 8, 6)

CASES = [
    ("BayesADMM", "full", "logistic"),  # λ_k and a server with a memory
    ("ADMM", "isotropic", "squares"),
    ("PreconditionedADMM", "fixed", "logistic"),
    ("BregmanADMM", "full", "poisson"),  # duals that the server cannot follow from λ
    ("AMA", "diagonal", "poisson"),
    ("PVI", "block", "softmax"),
    ("PVI by rows", "full", "logistic"),
    ("FedLapCov", "full", "softmax"),
    ("FedDyn", "isotropic", "logistic"),  # the prior at the clients
    ("FedIvon", "diagonal", "logistic"),  # no dual
    ("BCM", "full", "squares"),  # one round
    ("BLR", "diagonal", "softmax"),  # no solve
    ("Newton", "full", "logistic"),  # own fits first, then slopes and curvatures
    ("guarded Newton", "block", "poisson"),
    ("accelerated BayesADMM", "block", "logistic"),
    ("accelerated FedLapCov by rows", "diagonal", "poisson"),
]


def counts(*parts):
    return LinearInStatistics(ba.families.Natural(*(np.array(part) for part in parts)), n_rows=4)


CONJUGATE = {
    "Gamma": (
        ba.families.Gamma([2.0, 0.1], [1.0, 0.3]),
        counts([3.0, 1.0], [-4.0, -4.0]),
        counts([9.0, 0.0], [-7.0, -7.0]),
    ),
    "Beta": (ba.families.Beta([1.3, 0.7], [1.0, 2.1]), counts([3.0, 1.0], [4.0, 0.0]), counts([1.0, 5.0], [2.0, 9.0])),
    "Dirichlet": (ba.families.Dirichlet([0.3, 1.0, 2.2]), counts([3.0, 1.0, 0.0]), counts([2.0, 7.0, 1.0])),
}


SHORT = {"rounds": 4, "tol": 1e-3}
OPTIONS = {
    "warm start": (M.PVI(0.5), "logistic", "diagonal", {"warm_start": True}),
    "safeguard": (M.BayesADMM(1.0), "logistic", "full", {"safeguard": True}),
    "a stochastic solver": (M.PVI(0.5), "logistic", "full", {"solver": VON(steps=20), "seed": 7}),
    "gradient steps": (M.FedAvg(), "logistic", "isotropic", {"solver": GradientSteps(5, 0.02)}),
    "a rule": (M.PVI(0.5), "softmax", "full", {"expectation": QuasiMonteCarlo(64, seed=3)}),
    "a long memory": (ba.Accelerated(M.PVI(0.4), 5), "poisson", "diagonal", {"rounds": 10, "tol": 1e-9}),
}
CONJUGATES = [("Gamma", "PVI"), ("Beta", "BayesADMM"), ("Dirichlet", "BregmanADMM"), ("Gamma", "BLR")]
FAILURES = {
    "ILL_POSED_CLIENT": (
        M.BayesADMM(1.0),
        skewed_logistic(3, n_clients=5),
        ba.families.FullGaussian(np.zeros(2), 0.05),
    ),
    "DIVERGED": (M.AMA(2.0), team("poisson", sizes=SIZES), prior("isotropic", 3)),
    "ROUND_LIMIT": (M.PVI(0.1), team("logistic", sizes=SIZES), prior("full", 3)),
}


def runs():
    """By name: method, clients, prior, and options."""

    def of(row, loss, family, options):
        clients = team(loss, sizes=SIZES)
        return row, clients, prior(family, clients[0].dim), options

    found = {f"{name}, {family}, {loss}": of(ROWS[name], loss, family, SHORT) for name, family, loss in CASES}
    for family, name in [*CONJUGATES, ("Beta", "accelerated PVI")]:
        start, *clients = CONJUGATE[family]
        found[f"{name}, {family}"] = ROWS[name], clients, start, {"rounds": 8, "tol": 1e-6}
    for name, (row, loss, family, options) in OPTIONS.items():
        found[name] = of(row, loss, family, {"rounds": 6, "tol": 1e-8, **options})
    return found | {status: (*case, {"rounds": 9}) for status, case in FAILURES.items()}


RUNS = runs()


@pytest.mark.parametrize("case", RUNS)
def test_messages_and_one_process_agree_bit_for_bit(case):
    """Failures come in the same round with the same words, and leave the last good posterior."""
    row, clients, start, options = RUNS[case]
    result = ba.run(row, clients, start, raise_on_failure=False, **options)
    server, sites = drive(row, clients, start, **options)
    assert not differences(result, server, sites)
    assert case not in FAILURES or result.status.name == case
    final = final_result(carried(server.broadcast()))
    assert (type(final.posterior), final.message) == (type(start), said_of(result))
    assert same_bits(final.posterior.natural, result.posterior.natural)


def test_a_conjugate_prior_is_sent_as_it_was_made():
    """Broken twin: from λ = shape − 1 it comes back with another last digit."""
    start, *clients = CONJUGATE["Gamma"]
    server = started(introduce(clients), GLMTask(M.PVI(), start))
    heard = read_spec(carried(server.broadcast())).prior
    assert np.array_equal(heard.shape, start.shape)
    assert np.array_equal(heard.rate, start.rate)
    assert not np.array_equal(start.with_natural(start.natural).shape, start.shape)


def test_other_options_make_another_run():
    """The comparison can fail: seeds, rules and the order of sites count."""
    clients = team("logistic", sizes=SIZES)
    options = {"rounds": 3, "tol": 1e-300, "solver": VON(steps=20)}
    result = ba.run(M.PVI(0.5), clients, prior("full", 3), seed=1, **options)
    assert "posterior" in differences(result, *drive(M.PVI(0.5), clients, prior("full", 3), seed=2, **options))
    plain = ba.run(M.PVI(0.5), clients[::-1], prior("full", 3), rounds=3, tol=1e-300)
    assert differences(plain, *drive(M.PVI(0.5), clients, prior("full", 3), rounds=3, tol=1e-300))


BROKEN = {
    "a dual of the other sign": (
        "bayesadmm_np.federation.glm_messages.moved_site",
        lambda m, share, n, s, own, g: s - (own - g),
    ),
    "a site that does not mix": ("bayesadmm_np.federation.glm_site.combine", lambda weights, past: past[-1]),
    "a server that never asks": (
        "bayesadmm_np.federation.glm_server.GLMServer.is_nearly_closed",
        lambda self, state: False,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_twins_are_noticed(case, monkeypatch):
    """The row follows duals, mixes sites and stops early; each of the three has to be right."""
    row, clients, start = ba.Accelerated(M.PVI(0.5), 3), team("logistic", sizes=SIZES), prior("diagonal", 3)
    options = {"rounds": 20, "tol": 1e-3}
    result = ba.run(row, clients, start, **options)
    assert result.status is ba.Status.CONVERGED
    assert not differences(result, *drive(row, clients, start, **options))
    monkeypatch.setattr(*BROKEN[case])
    assert differences(result, *drive(row, clients, start, **options))


def test_a_prior_of_two_numbers_is_sent_as_two_numbers():
    d, rng = 12, np.random.default_rng(0)
    clients = [ba.losses.Logistic(rng.standard_normal((9, d)), np.arange(9) % 2) for _ in range(2)]
    F = ba.families
    made = [
        *(kind(np.zeros(d), 0.3) for kind in (F.FullGaussian, F.DiagonalGaussian, F.FixedPrecisionGaussian)),
        F.BlockDiagonalGaussian(np.zeros(d), 0.3, blocks=[d - 3, 3]),
        F.IsotropicGaussian(np.zeros(d), 0.3),
    ]
    sent = [started(introduce(clients), GLMTask(M.PVI(0.5), one)) for one in made]
    assert [set(server.broadcast().arrays) for server in sent] == [{"natural"}] * len(made)
    heard = [read_spec(carried(server.broadcast())).prior for server in sent]
    assert all(same_bits(one.natural, other.natural) for one, other in zip(heard, made, strict=True))


# ----------------------------------------------------------------------------------------------------
# Runs that fail, and runs that stop
# ----------------------------------------------------------------------------------------------------


def test_a_first_round_that_fails_ends_the_run(monkeypatch):
    """The final message then has no round before it; a site that alone says so of a finite loss is set aside."""
    row, clients, start = FAILURES["ILL_POSED_CLIENT"]
    sites = introduce(clients)
    server = started(sites, GLMTask(row, start))
    replies = [site.step(server.broadcast())[1] for site in sites]
    bad = dataclasses.replace(replies[0], header={**replies[0].header}, arrays={})
    bad.header["solved"] = {**bad.header["solved"], "status": "NOT_FINITE"}
    with pytest.raises(MessageError, match="site s0, round 1: value must be finite, with an answer"):
        server.step([bad, *replies[1:]])
    monkeypatch.setattr(type(server.engine), "strays", lambda *given: {})
    ended = server.step([bad, *replies[1:]])
    assert ended.outcome.status is ba.Status.NOT_FINITE
    assert "site s0, round 1" in ended.outcome.message
    after, none = sites[1].step(server.broadcast())[0].step(ended.broadcast())
    assert none is None
    assert not after.factor.linear.any()  # its answer was not counted


def test_an_overflow_is_said_and_not_sent():
    """A fixed number of steps can end nowhere: the reply has a status and no arrays."""
    clients = team("squares", sizes=SIZES)
    steps = GradientSteps(200, 1e3)
    server, _ = drive(M.FedAvg(), clients, prior("isotropic", 3), solver=steps, rounds=3)
    assert server.outcome.status is ba.Status.NOT_FINITE


# ----------------------------------------------------------------------------------------------------
# Sites that are away
# ----------------------------------------------------------------------------------------------------


def away(number, k):
    """Site 1 misses broadcasts 2 and 3, site 2 broadcast 5."""
    return (k == 1 and number in (2, 3)) or (k == 2 and number == 5)


ABSENT = {
    "PVI": (M.PVI(), "full", 1e-4),
    "BayesADMM": (M.BayesADMM(2.0), "full", 1e-300),
    "BLR": (M.BLR(0.5), "diagonal", 1e-300),
    "FedDyn": (M.FedDyn(2.0), "isotropic", 1e-300),
    "accelerated": (ba.Accelerated(M.PVI(0.5), 2), "diagonal", 1e-4),
}


@pytest.mark.parametrize("name", ABSENT)
def test_absent_sites_keep_their_factor_as_in_process(name):
    row, family, tol = ABSENT[name]
    clients, start = team("logistic", sizes=SIZES), prior(family, 3)
    options = {"rounds": 10, "tol": tol}

    def present(number, n_clients, rng):
        return np.array([not away(number, k) for k in range(n_clients)])

    result = ba.run(row, clients, start, participation=present, raise_on_failure=False, **options)
    server, sites = drive(row, clients, start, away, **options)
    # a site that is away does not report: the objective of that round, and an accelerated site's edge, are not known
    assert set(differences(result, server, sites)) <= {"objective", "history"}
    objective = np.array([record.objective for record in server.state.history])
    unknown = ~np.isnan(objective)
    assert np.array_equal(objective[unknown], result.objective[1:][unknown])
    # report n arrives with the replies to broadcast n + 1
    missed = {n for n in (1, 2, 4) if n <= result.rounds}
    assert {int(n) + 1 for n in np.flatnonzero(~unknown)} == missed


def test_a_run_waits_for_a_site_that_is_away():
    clients, start = team("logistic", sizes=SIZES), prior("full", 3)
    server, _ = drive(M.PVI(), clients, start, lambda number, k: k == 2 and number > 3, rounds=12)
    assert server.outcome.status is ba.Status.ROUND_LIMIT
    assert server.outcome.certificate is None  # nobody can vouch for a site that did not send its sums
    back, _ = drive(M.PVI(), clients, start, lambda number, k: k == 2 and 3 < number < 8, rounds=30)
    assert back.outcome.status is ba.Status.CONVERGED
    assert back.outcome.certificate.holds


# ----------------------------------------------------------------------------------------------------
# What is sent, and what is asked for
# ----------------------------------------------------------------------------------------------------


def test_a_message_is_as_large_as_its_numbers():
    """λ is d + d(d+1)/2 numbers, the sites' sums are asked for only when the edges have closed."""
    d, rng = 60, np.random.default_rng(0)
    clients = [ba.losses.Logistic(rng.standard_normal((80, d)) / 8, rng.random(80) < 0.5) for _ in range(2)]
    sites = introduce(clients)
    server = started(sites, GLMTask(M.PVI(), ba.families.FullGaussian(np.zeros(d), 1.0)))
    floats, asked = 8 * (d + d * (d + 1) // 2), []
    while server.outcome is None:
        broadcast = server.broadcast()
        # terms, names of features, zip and npy headers
        assert floats <= len(broadcast.to_bytes()) <= floats + 4096
        sites, replies = zip(*(site.step(broadcast) for site in sites), strict=True)
        asked.append(server.served.certify)
        sums = floats + 8 * d if asked[-1] else 0  # with the bounds on their rounding
        assert all(floats <= len(reply.to_bytes()) - sums <= floats + 2048 for reply in replies)
        server = server.step(replies)
    assert server.outcome.status is ba.Status.CONVERGED
    assert asked[-1]
    assert not any(asked[:-1])


def test_results_name_sites_and_parameters():
    clients = team("softmax", sizes=SIZES)
    server, sites = drive(M.PVI(0.5), clients, prior("full", 6), rounds=3)
    result = final_result(server.broadcast(), server)
    assert list(result.sites) == names_of(clients)
    assert all(same_bits(result.sites[site.name], site.factor) for site in sites)
    names = fitted_run(dataclasses.replace(server.spec, classes=("0", "1", "2")), result).coefficient_names
    assert names == ("0: x1", "0: x2", "1: x1", "1: x2", "2: x1", "2: x2")
    assert final_result(server.broadcast()).sites == {}


@pytest.mark.parametrize(("size", "family"), [(1e100, "full"), (1e160, "full"), (-1.7e308, "diagonal")])
def test_a_huge_answer_to_an_accelerated_run_ends_it_and_no_step_raises(size, family):
    # squares and products of such numbers are infinite: what cannot be mixed is not mixed
    clients = team("poisson", sizes=(5, 8))  # whose replies are not held against their losses
    sites = introduce(clients)
    task = GLMTask(ba.Accelerated(M.PVI(0.5)), prior(family, 3), rounds=9, tol=1e-12)
    server = started(sites, task)
    while server.outcome is None:
        broadcast, replies = server.broadcast(), []
        for k, site in enumerate(sites):
            sites[k], reply = site.step(broadcast)
            if server.number == 3 and k == 0:
                natural = reply.arrays["natural"].copy()
                natural[0] = size
                reply = Message("reply", reply.header, {**reply.arrays, "natural": natural})
            replies.append(reply)
        server = Coordinator.restore(carried(server.step(replies).save()))
    assert server.outcome.status.is_failure or size == 1e100  # whose square a float still holds
    assert all(np.isfinite(site.to_vector()).all() for site in server.held.sites)
