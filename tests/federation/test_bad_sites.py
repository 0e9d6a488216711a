"""A site whose reply no rows have is named and set aside; the run of the others goes on."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMTask, MessageError, glm_possible, load_server, start_server, step_server
from oracles.couriers import edited, introduce, started, until
from oracles.problems import prior, team

M = ba.methods
CLIENTS = team("logistic", sizes=(25, 28, 26))
START = prior("full", 3)


def changed(name, change):
    return lambda reply: edited(reply, {}, {name: change(reply.arrays[name].copy())})


def shrink(numbers):
    return np.r_[numbers[:3], numbers[3:] * 1e-12]


def shift(numbers):
    return np.r_[np.full(3, 1e20), numbers[3:]]


def negate(numbers):
    return np.r_[numbers[:3], -numbers[3:]]


def valued(value):
    return lambda reply: edited(reply, {"value": value})


LIES = {
    "a tiny precision": (M.PVI(), changed("natural", shrink), "natural must be within the reach of a site", "DIST"),
    "a tiny precision, damped": (M.PVI(0.5), changed("natural", shrink), "natural must be within the reach", "ILL_"),
    "a far mean": (M.PVI(), changed("natural", shift), "natural must be within the reach", "DIVERGED"),
}


POISSON, SQUARES = (team(name, sizes=(25, 28, 26)) for name in ("poisson", "squares"))
OTHER_KINDS = {
    "logistic: a loss below zero": (CLIENTS, M.PVI(), valued(-1e6), "value must be >= 0, as Logistic is"),
    "squares: a loss below zero": (SQUARES, M.PVI(), valued(-1.0), "value must be >= 0, as LeastSquares is"),
    "squares: a tiny precision": (SQUARES, M.PVI(), changed("natural", shrink), "natural must be within the reach"),
    "squares: a far mean": (SQUARES, M.PVI(), changed("natural", shift), "natural must be within the reach"),
    "squares: a concave loss": (SQUARES, M.Newton(), changed("site", negate), "curvature that is positive"),
    "squares: a slope of 1e20": (SQUARES, M.Newton(), changed("site", shift), "with a slope that residuals"),
    "Poisson: a concave loss": (POISSON, M.Newton(), changed("site", negate), "curvature that is positive"),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_lies_of_other_kinds_are_named(name, tmp_path, monkeypatch):
    """The twin is a server that believes all."""
    clients, row, lie, words = OTHER_KINDS[name]
    sites = begun(row, tmp_path, clients)
    sites, paths = answered(tmp_path, sites)
    step_server(tmp_path, paths)
    sites, paths = answered(tmp_path, sites, lie)
    with pytest.raises(MessageError, match=rf"s1\.npz: .*{words}.* s0, s2 answered; the server keeps that"):
        step_server(tmp_path, paths)
    monkeypatch.setattr(glm_possible, "NEVER_NEGATIVE", set())
    monkeypatch.setattr(glm_possible, "CONVEX_LOSSES", set())
    monkeypatch.setattr(glm_possible, "_require_residuals", lambda *given: None)
    step_server(tmp_path, paths)


def begun(row, folder, clients=CLIENTS):
    sites = introduce(clients)
    start_server(folder, started(sites, GLMTask(row, START, rounds=30, tol=1e-6)))
    return sites


def answered(folder, sites, spoil=None):
    """Every site's reply to the message that is out, as files; the second site may lie."""
    broadcast = load_server(folder).broadcast()
    after, paths = [], []
    for site in sites:
        site, reply = site.step(broadcast)
        after.append(site)
        paths.append(folder / f"{site.name}.npz")
        (spoil(reply) if spoil and site.name == "s1" else reply).write(paths[-1])
    return after, paths


@pytest.mark.parametrize("name", LIES)
def test_a_site_that_lies_is_named_and_the_others_go_on(name, tmp_path):
    row, lie, words, _ = LIES[name]
    sites = begun(row, tmp_path)
    for _ in range(2):
        sites, paths = answered(tmp_path, sites)
        step_server(tmp_path, paths)
    sites, paths = answered(tmp_path, sites, lie)
    with pytest.raises(MessageError, match=rf"s1\.npz: .*{words}.* s0, s2 answered; the server keeps that"):
        step_server(tmp_path, paths)
    server, _ = step_server(tmp_path, [], without=["s1"])
    assert server.left_out == (("round", 3, ("s1",)),)
    while server.outcome is None:
        sites, paths = answered(tmp_path, sites)
        server, _ = step_server(tmp_path, paths)
    assert server.outcome.status.name == "CONVERGED"
    pooled = ba.solve_pooled(CLIENTS, START).posterior
    assert np.abs(server.state.q_g.mean - pooled.mean).max() < 1e-4  # tol 1e-6 per parameter in Fisher length


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_believes_all_lets_one_site_end_the_run(name, tmp_path, monkeypatch):
    """The twin."""
    row, lie, _, end = LIES[name]
    monkeypatch.setattr(glm_possible, "NEVER_NEGATIVE", set())
    monkeypatch.setattr(glm_possible, "CONVEX_LOSSES", set())
    sites = begun(row, tmp_path)
    for number in range(40):
        sites, paths = answered(tmp_path, sites, lie if number == 2 else None)
        server, _ = step_server(tmp_path, paths)
        if server.outcome is not None:
            break
    assert end in server.outcome.status.name


def test_the_reach_of_honest_sites_is_far_within_the_bound(monkeypatch):
    """One part in ten of what is forgiven: weak priors, separated rows, columns in wild units."""
    seen = []
    honest = glm_possible.require_within_reach
    monkeypatch.setattr(glm_possible, "MOST_NATS", 10.0)
    monkeypatch.setattr(glm_possible, "require_within_reach", lambda *given: seen.append(given) or honest(*given))
    rng = np.random.default_rng(3)
    for scale in (1e-3, 1.0, 1e3):
        for precision in (1e-6, 1.0, 1e3):
            X = rng.standard_normal((30, 3)) * [1.0, scale, 1.0 / scale]
            losses = [ba.losses.Logistic(X[:8], X[:8, 0] > 0), ba.losses.Logistic(X[8:], rng.random(22) < 0.5)]
            sites = introduce(losses)
            task = GLMTask(M.PVI(0.5), ba.families.FullGaussian(np.zeros(3), precision), rounds=6)
            until(started(sites, task), sites)
    assert len(seen) >= 9 * 2
