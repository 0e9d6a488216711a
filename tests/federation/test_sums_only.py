"""Sums over sites alone: the fit and a certificate; and an inventory of what a server learns of one site."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, MessageError, Site, final_result
from bayesadmm_np.losses.expectations import Delta
from bayesadmm_np.splitting.guarded import Guarded
from oracles.couriers import started

NAMES = "ABC"
D = 4


def losses(kind=ba.losses.Logistic):
    found = {}
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng([9, k])
        X = np.column_stack([rng.normal(k - 1.0, 1.0, (60, D - 1)), np.ones(60)])
        f = X @ [0.8, -0.5, 0.3, 0.2]
        y = rng.random(60) < 1 / (1 + np.exp(-f)) if kind is ba.losses.Logistic else rng.poisson(np.exp(0.3 * f))
        found[name] = kind(X, y.astype(float))
    return found


def task(**options):
    return GLMTask(Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), **options)


def masked(replies, rng):
    """Replies whose vectors add up to the same sums, and are else at random; of reaches the squares add up."""
    found = [{name: value.copy() for name, value in one.arrays.items()} for one in replies]
    headers = [{**one.header, "certificate": dict(one.header["certificate"] or {}) or None} for one in replies]
    for name in {"site", "sums"} & set(found[0]):
        total, shares = sum(one[name] for one in found), rng.dirichlet(np.ones(len(found)))
        for one, share in zip(found, shares, strict=True):  # curvatures stay semidefinite, as a reader wants them
            one[name] = share * total
        for k in range(len(found)):
            mask = rng.normal(0.0, 5.0, D)
            found[k][name][:D] += mask
            found[k - 1][name][:D] -= mask
    if "errors" in found[0]:
        total = sum(one["errors"] for one in found)
        shares = rng.dirichlet(np.ones(len(found)))
        squares = sum(header["certificate"]["reach"] ** 2 for header in headers)
        bounds = sum(header["certificate"]["curvature_error"] for header in headers)
        for one, header, share in zip(found, headers, shares, strict=True):
            one["errors"] = share * total
            header["certificate"]["reach"] = float(np.sqrt(share * squares))
            header["certificate"]["curvature_error"] = float(share * bounds)
    values = rng.normal(0.0, 5.0, len(found))
    for k, header in enumerate(headers):
        header["value"] = float(header["value"] + values[k] - values[k - 1])
    return [Message("reply", header, arrays) for header, arrays in zip(headers, found, strict=True)]


def play(made, rng=None, kind=ba.losses.Logistic):
    sites = [Site(name, GLMData(loss)) for name, loss in losses(kind).items()]
    server = started(sites, made)
    while server.outcome is None:
        broadcast = Message.from_bytes(server.broadcast().to_bytes())
        sites, replies = zip(*(site.step(broadcast) for site in sites), strict=True)
        if rng is not None and server.number > 1:  # the sites' own fits of the first round begin the run
            replies = masked(replies, rng)
        server = Coordinator.restore(Message.from_bytes(server.step(replies).save().to_bytes()))
    return server


@pytest.mark.parametrize("kind", [ba.losses.Logistic, ba.losses.Poisson], ids=["logistic", "poisson"])
def test_the_fit_from_sums_is_the_fit_within_its_certificate(kind):
    ordinary, summed = play(task(), kind=kind), play(task(sums_only=True), kind=kind)
    assert summed.outcome.status.name == "CONVERGED"
    own, other = (one.outcome.certificate.distance for one in (summed, ordinary))
    q, usual = summed.state.q_g, ordinary.state.q_g
    apart = np.abs(q.mean - usual.mean)
    assert (apart <= own.per_coefficient + other.per_coefficient).all()
    # the same sums in another order: standard errors to rounding
    assert np.allclose(q.covariance_matrix, usual.covariance_matrix, rtol=1e-10)
    assert summed.state.round == ordinary.state.round
    assert own.rigorous
    assert np.isfinite(own.sd_units)
    prior = ba.families.FullGaussian(np.zeros(D), 0.0)
    pooled = ba.solve_pooled(list(losses(kind).values()), prior, expectation=Delta(2))
    assert (np.abs(q.mean - pooled.posterior.mean) <= own.per_coefficient + 1e-9 * q.variance**0.5).all()


def test_the_bound_is_wider_and_no_more_than_the_reach_makes_it():
    """Two rounds only, so that the bound is no rounding."""
    summed, ordinary = (play(task(rounds=3, tol=1e-14, **more)) for more in ({"sums_only": True}, {}))
    own, other = (one.outcome.certificate.distance for one in (summed, ordinary))
    assert other.mahalanobis <= own.mahalanobis * (1 + 1e-9)
    assert own.mahalanobis <= 3.0 * other.mahalanobis


def test_the_server_uses_sums_alone():
    """Masks that cancel change nothing but rounding; the ordinary run keeps the parts of each site."""
    plain, hidden = play(task(sums_only=True)), play(task(sums_only=True), np.random.default_rng(1))
    a, b = plain.state.q_g, hidden.state.q_g
    assert np.allclose(a.mean, b.mean, rtol=0, atol=1e-9 * np.sqrt(a.variance).max())
    assert np.allclose(a.covariance_matrix, b.covariance_matrix, rtol=1e-9)
    assert plain.state.round == hidden.state.round
    assert np.allclose(plain.state.start_objective, hidden.state.start_objective)
    assert hidden.outcome.certificate.distance.rigorous
    for server in (plain, hidden):  # what is kept of a site is the sum, or zero
        assert [bool(np.any(site.to_vector())) for site in server.state.sites] == [True, False, False]
    ordinary = play(task())
    assert all(np.any(site.to_vector()) for site in ordinary.state.sites)


def test_what_could_not_be_had_is_refused():
    for wrong in ({"asks": True}, {"safeguard": True}):
        with pytest.raises(ValueError, match="sums_only must be off but for guarded Newton"):
            play(task(sums_only=True, **wrong))
    with pytest.raises(ValueError, match="sums_only must be off"):
        Coordinator.start(
            [Site(name, GLMData(loss)).hello() for name, loss in losses().items()],
            GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(D), 1.0), sums_only=True),
        )
    server = play(task(sums_only=True))
    with pytest.raises(MessageError, match="no copy of a site"):
        server.copy_of("A")
    assert final_result(server.broadcast(), server).sites == {}
    sites = [Site(name, GLMData(loss)) for name, loss in losses().items()]
    begun = started(sites, task(sums_only=True))
    with pytest.raises(ValueError, match="needs the replies of all"):
        begun.step([sites[0].step(begun.broadcast())[1]])
