"""Newton's row, its guard, and the sites' own fits as a start."""

from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.clients.own_fits import LIFT, own_fits
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site
from bayesadmm_np.losses import Total
from bayesadmm_np.splitting import line
from bayesadmm_np.splitting.average import Average, as_step
from bayesadmm_np.splitting.certificate import PooledObjective
from oracles.couriers import carried
from oracles.problems import EPS, assert_close, counts_of_far_columns, overshooting, prior, same_bits, spd, team
from oracles.refusals import assert_refused

M = ba.methods
DELTA = ba.losses.Delta(2)
FULL = ba.families.FullGaussian
STARTS = import_module("bayesadmm_np.clients.own_fits")


def flat(d):
    return FULL(np.zeros(d), 0.0)


def mode_objective(losses, prior, mean):
    """F(m), from the rows."""
    deviation = mean - prior.mean
    return sum(loss.value(mean) for loss in losses) + 0.5 * deviation @ prior.precision @ deviation


def path(row, losses, prior, rounds=60, tol=1e-9, **options):
    """The means after 0, 1, 2, … rounds, and the result."""
    means = [prior.mean]
    result = ba.run(
        row,
        losses,
        prior,
        rounds,
        tol=tol,
        callback=lambda record, q: means.append(q.mean),
        raise_on_failure=False,
        **options,
    )
    return means, result


# --- The row


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("proper", [True, False])
def test_a_round_is_the_newton_step_of_the_pooled_mode(name, proper):
    """The oracle is Newton's formula on all rows; its twin, without the prior's gradient or a loss, is elsewhere."""
    losses = team(name, sizes=(20, 30))
    prior_ = prior("full", 3) if proper else FULL(np.array([0.1, -0.2, 0.3]), 0.0)
    total, precision = Total(losses), prior_.precision
    means, _ = path(M.Newton(start="prior"), losses, prior_, rounds=3)
    for here, there in pairwise(means):
        hessian = total.hessian(here) + precision
        step = np.linalg.solve(hessian, total.gradient(here) + precision @ (here - prior_.mean))
        assert_close(there, here - step, 1e-12)
        twin = np.linalg.solve(hessian, losses[0].gradient(here) + precision @ (here - prior_.mean))
        assert np.abs(there - (here - twin)).max() > 1e-3


@pytest.mark.parametrize("family", ["full", "diagonal", "block"])
def test_the_fixed_point_is_laplaces_approximation(family):
    """From the prior, and from the sites' own fits, which are the first round of a run that is given none."""
    losses, prior_ = team("logistic", sizes=(20, 30)), prior(family, 3)
    pooled = ba.solve_pooled(losses, prior_, expectation=DELTA).posterior.natural
    begun = ba.run(M.Newton(), losses, prior_, rounds=1, tol=1e-300)
    total = prior_.natural.combine([1.0] * 3, [prior_.natural, *own_fits(losses, prior_)])
    assert_close(begun.posterior.mean, prior_.with_natural(total).mean, 1e-9)
    plain = ba.run(M.Newton("prior"), losses, prior_, tol=1e-9)
    given = ba.run(M.Newton(), losses, prior_, sites=own_fits(losses, prior_), tol=1e-9)
    alone = ba.run(M.Newton(), losses, prior_, tol=1e-9)
    assert alone.rounds == given.rounds + 1
    for result in (plain, given, alone):
        assert_close(result.posterior.natural, pooled, 1e-7)


@pytest.mark.parametrize("start", ["prior", "sites"])
def test_least_squares_ends_in_one_round(start):
    losses = team("squares")
    result = ba.run(ba.Guarded(M.Newton(start)), losses, flat(3), tol=1e-9)
    assert (result.status, result.rounds) == (ba.Status.CONVERGED, 1)
    assert_close(result.posterior.natural, ba.solve_pooled(losses, flat(3)).posterior.natural, 1e-13)
    twin = ba.run(replace(M.BLR(0.9), expectation=DELTA), losses, prior("full", 3), tol=1e-9)
    assert twin.rounds > 1


def test_a_run_ends_at_laplaces_approximation_of_its_own_mean():
    """The precision is that of the last mean, told by the same exchange; that of the last round is one mean late."""
    losses = team("logistic", sizes=(20, 30))
    for rounds in (2, 3, 4):
        last = []
        result = ba.run(
            M.Newton(), losses, flat(3), rounds, tol=1e-300, callback=lambda record, q, last=last: last.append(q)
        )
        assert_close(result.posterior.mean, last[-1].mean, 1e-14)
        assert_close(result.posterior.precision, Total(losses).hessian(result.posterior.mean), 1e-13)
        assert rounds == 4 or np.abs(last[-1].precision - result.posterior.precision).max() > 1e-6
        at_q = [loss.expect(result.posterior, DELTA) for loss in losses]
        # values of some 30, and log-determinants, to a hundred ulp
        objective = sum(one.value for one in at_q) + result.posterior.kl(flat(3))
        assert abs(result.objective[-1] - objective) < 1e-12
        # the bound that comes with it holds also with the reach that the rows have at the posterior
        own = PooledObjective(flat(3), result.posterior, at_q).distance
        assert own.sd_units <= result.certificate().distance.sd_units * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_the_reach_at_the_new_covariance_is_bounded_from_that_at_the_old_one(factor, rng):
    losses, mean = team("logistic", sizes=(20, 30)), rng.standard_normal(3)
    old = FULL(mean, factor * spd(rng, 3))
    moved = PooledObjective(flat(3), old, [loss.expect(old, DELTA) for loss in losses]).laplace
    for loss, one in zip(losses, moved.expected, strict=True):
        true = loss.expect(moved.q, DELTA).margins.reach
        assert true <= one.margins.reach <= 100 * true
        # the twin with the reach at the old covariance is too small where that one was small
        assert factor < 30.0 or loss.expect(old, DELTA).margins.reach < true


def test_rows_that_cannot_be_guarded_or_start_at_sites():
    rows = (M.FedLapCov(), M.BLR(0.5), M.FedAvg(), "Newton")
    assert_refused(
        [
            *((lambda row=row: ba.Guarded(row), "method") for row in rows),
            (lambda: ba.Accelerated(ba.Guarded(M.Newton())), "method"),
            (lambda: M.Newton(start="zero"), "start"),
            (lambda: Average(M.FedAvg(), start="sites"), "start"),
        ]
    )
    for bad in (prior("isotropic", 3), prior("fixed", 3)):
        with pytest.raises(ValueError, match="own fits"):
            own_fits(team("logistic"), bad)
        with pytest.raises(ValueError, match="own fits"):
            ba.run(Average(M.PVI(), start="sites"), team("logistic"), bad)
    loss = ba.losses.Logistic(np.ones((3, 1)), [0, 1, 1])
    loss.is_convex = False
    with pytest.raises(ValueError, match="convex") as refused:
        ba.run(ba.Guarded(M.Newton()), [loss], flat(1))
    assert refused.value.client == 0
    assert ba.Guarded(ba.Guarded(M.Newton())) == ba.Guarded(M.Newton())


# --- The start


def test_a_site_is_minus_the_natural_gradient_at_the_sites_own_mode():
    """The oracle solves the site's problem with its lifted prior on its own."""
    (loss, _), prior_ = team("logistic", sizes=(20, 30)), FULL(np.array([0.1, 0.2, 0.3]), np.diag([4.0, 0.0, 0.0]))
    site = own_fits(team("logistic", sizes=(20, 30)), prior_)[0]
    lifted = np.diag(np.maximum(np.diag(prior_.precision) / 2, LIFT * np.diag(loss.hessian(prior_.mean))))
    assert lifted[0, 0] == 2.0  # strong enough: not lifted
    mode = prior_.mean
    for _ in range(50):
        gradient = loss.gradient(mode) + lifted @ (mode - prior_.mean)
        mode = mode - np.linalg.solve(loss.hessian(mode) + lifted, gradient)
    hessian = loss.hessian(mode)
    assert_close(site.parts[1], hessian, 1e-6)
    assert_close(site.linear, hessian @ mode - loss.gradient(mode), 1e-6)


def one_label_each(seed):
    """Weak effects, and rows in the order of their labels over ten sites: all but one know a single label."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((600, 4))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (rng.random(600) < 1 / (1 + np.exp(0.8 - X @ np.full(4, 0.15)))).astype(float)
    rows = np.array_split(np.argsort(y, kind="stable"), 10)
    return [ba.losses.Logistic(np.column_stack([X[own], np.ones(own.size)]), y[own]) for own in rows]


def exchanges(row, losses, prior_):
    """Rounds until every coefficient is within 1e-6 standard errors of the mode; the start is one."""
    best = ba.solve_pooled(losses, prior_, expectation=DELTA, tol=1e-12).posterior
    means, _ = path(row, losses, prior_, tol=1e-300)
    errors = [np.abs((mean - best.mean) / np.sqrt(best.variance)).max() for mean in means]
    return next(count for count, error in enumerate(errors) if error <= 1e-6)


def test_the_start_counted_it_takes_no_more_exchanges_than_newton_from_zero(monkeypatch):
    """Where the sites' own fits say least. Broken twin: the weaker lift, whose fits lie too far out."""
    for lift, is_never_more in ((LIFT, True), (0.03, False)):
        monkeypatch.setattr(STARTS, "LIFT", lift)
        more = [
            exchanges(ba.Guarded(M.Newton()), losses, flat(5)) > exchanges(M.Newton(start="prior"), losses, flat(5))
            for losses in map(one_label_each, range(3))
        ]
        assert (not any(more)) is is_never_more


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_lift_does_not_depend_on_units(scale, rng):
    X = np.column_stack([rng.standard_normal((40, 2)), np.ones(40)])
    y = (rng.random(40) < 0.5).astype(float)
    units = np.array([scale, 1.0, 1.0])
    plain, other = (own_fits([ba.losses.Logistic(X / u, y)], flat(3))[0] for u in (np.ones(3), units))
    assert_close(other.parts[1] * np.outer(units, units), plain.parts[1], 1e-6)


def test_sites_of_one_class_of_few_rows_and_with_empty_columns_have_finite_fits(rng):
    X = np.column_stack([rng.standard_normal((60, 3)), np.ones(60)])
    y = (rng.random(60) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    X[:20, 2] = 0.0
    parts = [slice(0, 20), slice(20, 58), slice(58, 60)]
    losses = [ba.losses.Logistic(X[part], y[part]) for part in parts]
    result = ba.run(ba.Guarded(M.Newton()), losses, flat(4), tol=1e-9)
    assert_close(result.posterior.natural, ba.solve_pooled(losses, flat(4), expectation=DELTA).posterior.natural, 1e-7)


@pytest.mark.parametrize("row", [M.PVI(), M.FedLapCov(), M.BayesADMM(2.0)], ids=lambda row: row.name)
def test_other_rows_start_at_the_sites_too(row):
    losses, prior_ = team("logistic", sizes=(20, 30)), prior("full", 3)
    result = ba.run(Average(row, start="sites"), losses, prior_, tol=1e-8)
    pooled = ba.solve_pooled(losses, prior_, expectation=row.expectation).posterior
    assert_close(result.posterior.natural, pooled.natural, 1e-6)


# --- The guard


def hostile(seed):
    """The prior's mean has a largest predictor of 20: beyond some 40 the curvature is singular to rounding."""
    losses, far = overshooting(seed)
    return losses, FULL(20.0 * far, 1e-6)


def accepted(means, result):
    """The points that were not taken back: those from which the next round's full step was taken."""
    alphas = [record.alpha for record in result.history]
    kept = [mean for mean, following in zip(means, [*alphas, 1.0][: len(means)], strict=False) if following == 1.0]
    return kept if result.status is ba.Status.CONVERGED else kept[:-1]


@pytest.mark.parametrize("seed", range(6))
def test_no_accepted_step_increases_the_objective(seed):
    losses, prior_ = hostile(seed)
    means, result = path(ba.Guarded(M.Newton(start="prior")), losses, prior_)
    assert result.status is ba.Status.CONVERGED
    values = [mode_objective(losses, prior_, mean) for mean in accepted(means, result)]
    slack = 2 * EPS * (60 + 3 + 1000) * (np.abs(values).max() + 100)
    assert (np.diff(values) <= slack).all()
    best = ba.solve_pooled(losses, prior_, expectation=DELTA).posterior
    assert_close(result.posterior.mean, best.mean, 1e-6)


def test_the_undamped_twin_increases_or_diverges_where_the_guarded_row_does_not():
    lost = 0
    for seed in range(12):
        losses, prior_ = hostile(seed)
        means, result = path(M.Newton(start="prior"), losses, prior_)
        with np.errstate(over="ignore", invalid="ignore"):
            values = [mode_objective(losses, prior_, mean) for mean in means]
        lost += result.status is not ba.Status.CONVERGED or (np.diff(values) > 1e-6).any()
    assert lost >= 8


def test_the_server_knows_the_mode_objective_without_the_rows(rng):
    """From objective, sites and q alone; the twin that leaves the trace in is off by half the dimension or so."""
    losses, prior_ = team("poisson", sizes=(20, 30)), FULL(rng.standard_normal(3), np.diag([0.0, 1.0, 2.0]))
    q = FULL(0.3 * rng.standard_normal(3), spd(rng, 3))
    at_q = [loss.expect(q, DELTA) for loss in losses]
    objective = sum(one.value for one in at_q) + q.kl(prior_)
    server = ba.splitting.team.assemble(as_step(M.Newton()), losses, prior_, None, None, 1e-6).server
    sites = [-one.natural_gradient for one in at_q]
    found, rounding = line.mode_objective(server, q, objective, sites)
    assert abs(found - mode_objective(losses, prior_, q.mean)) <= rounding < 1e-9
    assert abs(objective - q.kl(prior_) + q.mean_distance(prior_) - found) > 0.1


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_an_overflow_is_a_refused_step(seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((40, 2)), np.ones(40)])
    losses = [ba.losses.Poisson(X[k::2], rng.poisson(np.exp(7 + X[k::2, 0]))) for k in range(2)]
    plain = ba.run(M.Newton(start="prior"), losses, flat(3), raise_on_failure=False)
    assert plain.status.is_failure
    result = ba.run(ba.Guarded(M.Newton(start="prior")), losses, flat(3), tol=1e-9)
    assert not all(np.isfinite(record.objective) for record in result.history)
    assert_close(result.posterior.mean, ba.solve_pooled(losses, flat(3), expectation=DELTA).posterior.mean, 1e-8)


def test_a_start_that_is_worse_than_the_priors_mean_is_refused(monkeypatch):
    """Counts at sites with far columns: with a weak lift the sites' fits add up to a point where F is astronomical."""
    monkeypatch.setattr(STARTS, "LIFT", 0.03)
    losses = counts_of_far_columns()
    means, result = path(ba.Guarded(M.Newton()), losses, flat(4))
    at_zero = mode_objective(losses, flat(4), np.zeros(4))
    assert mode_objective(losses, flat(4), means[1]) > 1e3 * at_zero  # what the broken twin would go on from
    assert result.history[1].alpha < 1.0
    assert result.status is ba.Status.CONVERGED
    best = ba.solve_pooled(losses, flat(4), expectation=DELTA).posterior
    assert_close(result.posterior.mean, best.mean, 1e-7)


def test_the_slack_holds_where_the_covariance_is_nearly_singular(rng):
    """Collinear to 1e-5: the trace's products are 1e10 and cancel; a slack without their rounding is too small."""
    z = rng.standard_normal((60, 1))
    X = np.column_stack([z, z + 1e-5 * rng.standard_normal((60, 1)), np.ones(60)])
    losses = [ba.losses.Logistic(X[k::3], (rng.random(20) < 0.5).astype(float)) for k in range(3)]
    server = ba.splitting.team.assemble(ba.Guarded(M.Newton()), losses, flat(3), None, None, 1e-6).server
    total, worst = Total(losses), 0.0
    for _ in range(20):
        mean = 0.1 * rng.standard_normal(3)
        q = FULL(mean, total.hessian(mean + 0.1 * rng.standard_normal(3)))
        at_q = [loss.expect(q, DELTA) for loss in losses]
        objective = sum(one.value for one in at_q) + q.kl(flat(3))
        found, rounding = line.mode_objective(server, q, objective, [-one.natural_gradient for one in at_q])
        error = abs(found - mode_objective(losses, flat(3), mean))
        assert error <= rounding < 1e-2
        worst = max(worst, error)
    assert worst > 2 * EPS * (60 + 3 + 1000) * 60


def test_a_run_never_ends_on_a_refused_point():
    refused = 0
    for seed in (0, 1, 2, 3):
        losses, prior_ = hostile(seed)
        row = ba.Guarded(M.Newton(start="prior"))
        means, whole = path(row, losses, prior_)
        steps = [record.alpha for record in whole.history]
        for limit in range(1, whole.rounds):
            with np.errstate(over="ignore", invalid="ignore"):
                result = ba.run(row, losses, prior_, rounds=limit, tol=1e-300)
            last_good = means[limit] if steps[limit] == 1.0 else result.posterior.mean
            refused += steps[limit] < 1.0
            assert_close(result.posterior.mean, last_good, 1e-8)  # through λ: rounding times a condition of 1e8
            best = min(mode_objective(losses, prior_, mean) for mean in means[: limit + 1] if np.isfinite(mean).all())
            assert mode_objective(losses, prior_, result.posterior.mean) <= best + 1e-9 * abs(best)
            assert np.isfinite(result.objective[-1])
            assert np.isfinite(result.certificate().pooled)
    assert refused >= 2  # the broken twin, that returns the last point, would have returned these


def by_messages(losses, task, lose=()):
    """A run by messages, in which the replies (round, site) of `lose` do not come."""
    sites = [Site(f"s{k}", GLMData(loss)) for k, loss in enumerate(losses)]
    server = Coordinator.start([site.hello() for site in sites], task)
    while server.outcome is None:
        number, broadcast = server.number, carried(server.broadcast())
        # every message and state goes through its bytes
        sites, replies = zip(*(site.step(broadcast) for site in sites), strict=True)
        sites = [Site(s.name, s.data).restore(carried(s.save())) for s in sites]
        came = [carried(reply) for k, reply in enumerate(replies) if (number, k) not in lose]
        server = Coordinator.restore(carried(server.step(came).save()))
    return server


@pytest.mark.parametrize(("seed", "start"), [(0, "prior"), (0, "sites"), (1, "prior"), (1, "sites"), (3, "collinear")])
def test_by_messages_and_resumed_it_is_the_same_to_the_bit(seed, start, tmp_path):
    losses, prior_ = hostile(seed)
    prior_ = prior_ if start == "prior" else flat(3)
    if start == "collinear":
        X, y = nearly_collinear_counts(seed)
        losses, prior_, start = [ba.losses.Poisson(X[k::3], y[k::3]) for k in range(3)], flat(4), "sites"
    row = ba.Guarded(M.Newton(start))
    whole = ba.run(row, losses, prior_, tol=1e-9)
    for rounds in (2, 3, 100):
        with np.errstate(over="ignore", invalid="ignore"):
            here = ba.run(row, losses, prior_, rounds, tol=1e-9, checkpoint=tmp_path / "state")
        there = by_messages(losses, GLMTask(row, prior_, rounds=rounds, tol=1e-9))
        assert there.outcome.status is here.status
        assert same_bits(there.state.q_g.natural, here.posterior.natural)
        assert [r.alpha for r in there.state.history] == [r.alpha for r in here.history]
        assert np.array_equal([r.objective for r in there.state.history], here.objective[1:], equal_nan=True)
        resumed = ba.run(row, losses, prior_, tol=1e-9, resume=tmp_path / "state")
        assert same_bits(resumed.posterior.natural, whole.posterior.natural)
        assert [record.alpha for record in resumed.history] == [record.alpha for record in whole.history]


def test_a_site_sends_its_factor_alone_and_no_copy_of_what_it_heard():
    """λ_k is λ_g, which the server has; the certificate's sums come from the second round on."""
    losses, _ = hostile(0)
    sites = [Site(f"s{k}", GLMData(loss)) for k, loss in enumerate(losses)]
    server = Coordinator.start([site.hello() for site in sites], GLMTask(M.Newton(), flat(3)))
    sent = []
    for _ in range(2):
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        sent.append(set(replies[0].arrays))
        server = server.step(replies)
    assert sent == [{"site"}, {"site", "sums", "errors"}]


def test_a_site_that_is_away_delays_the_run_and_changes_no_number():
    """Answers to one point are kept: only a round in which nobody completes them is lost."""
    losses, _ = hostile(0)
    task = GLMTask(ba.Guarded(M.Newton()), flat(3), tol=1e-9)
    whole, late = (
        by_messages(losses, task),
        by_messages(losses, task, lose={(1, 0), (2, 1), (2, 2), (3, 0), (4, 1), (4, 2)}),
    )
    assert len(late.state.history) == len(whole.state.history) + 2
    assert same_bits(late.state.q_g.natural, whole.state.q_g.natural)


def nearly_collinear_counts(seed):
    """Counts up to e^25 and two columns that agree to six digits: S has a condition of 1e14 and more."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal((60, 3)), np.ones(60)])
    X[:, 2] = X[:, 1] + 10 ** rng.uniform(-7.5, -5) * rng.standard_normal(60)
    top = rng.uniform(10, 25)
    return X, rng.poisson(np.exp(np.clip(top / 3 * X[:, 0], -3, top))).astype(float)


def weighted_qr_mode(X, y):
    """Iteratively reweighted least squares by QR of all rows, as R's `glm` does it; the mode and its errors."""
    mode = np.append(np.zeros(X.shape[1] - 1), np.log(y.mean()))
    for _ in range(100):
        mean = np.exp(X @ mode)
        Q, R = np.linalg.qr(np.sqrt(mean)[:, None] * X)
        length = Q.T @ ((y - mean) / np.sqrt(mean))
        mode = mode + np.linalg.solve(R, length)
        if np.linalg.norm(length) < 1e-10:
            break
    return mode, np.linalg.norm(np.linalg.inv(R), axis=1)


def errors_of_nearly_collinear_counts():
    found = []
    for seed in (1, 3, 6):
        X, y = nearly_collinear_counts(seed)
        losses = [ba.losses.Poisson(X[k::3], y[k::3]) for k in range(3)]
        result = ba.run(ba.Guarded(M.Newton()), losses, flat(4), rounds=30, tol=1e-8, raise_on_failure=False)
        mode, errors = weighted_qr_mode(X, y)
        found.append((result.status is ba.Status.CONVERGED, np.abs((result.posterior.mean - mode) / errors).max()))
    return found


def test_a_mean_does_not_pass_through_its_natural_parameter(monkeypatch):
    """Within 1e-6 standard errors of QR's mode; the twin, whose means come out of λ = Sm, does not get there."""
    for converged, error in errors_of_nearly_collinear_counts():
        assert converged
        assert error < 1e-6

    class ThroughNatural(line.ModeLine):
        at_mean = False

        def target(self, server, point, last, is_plain):
            natural = server.gather(point.sites, point.sites, 1.0)
            return line.Point(natural, server.prior.with_natural(natural).mean)

    monkeypatch.setattr(M.Newton, "line", ThroughNatural())
    assert sum(error < 1e-6 and converged for converged, error in errors_of_nearly_collinear_counts()) <= 1


# --- The bend of a guarded step


def counts_in_one_column(seed, n=80):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.5, 1.5, (n, 1))
    return [ba.losses.Poisson(X[k::2], rng.poisson(np.exp(X[k::2, 0]))) for k in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_bent_by_the_third_derivative(seed):
    """In one column the oracle is −½F‴s²/F″ from the rows; the cubic's error is of second order in the last step."""
    losses = counts_in_one_column(seed)
    total, means = Total(losses), []
    ba.run(
        ba.Guarded(M.Newton(start="prior")),
        losses,
        flat(1),
        4,
        tol=1e-300,
        callback=lambda _, q: means.append(q.mean[0]),
    )
    X = np.concatenate([loss.X[:, 0] for loss in losses])
    for before, here, there in zip(means, means[1:], means[2:], strict=False):
        gradient, curvature = total.gradient([here])[0], total.hessian([here])[0, 0]
        step = -gradient / curvature
        bend = -0.5 * float(X**3 @ np.exp(X * here)) * step**2 / curvature
        rounding = 50 * EPS * abs(here)
        assert abs(there - (here + step + bend)) <= 2.0 * (here - before) ** 2 * abs(bend) + rounding
        assert abs(bend) < rounding or abs(there - (here + step)) > 0.5 * abs(bend)  # the twin that is not bent


def test_a_bent_step_is_gradient_related_and_saves_rounds(monkeypatch):
    """−gᵀ(step) >= ½‖s‖² at the first six points, whatever the bend; without it the runs are longer."""
    counted, row = [], ba.Guarded(M.Newton(start="prior"))
    for most in (line.MOST_BENT, 0.0):
        monkeypatch.setattr(line, "MOST_BENT", most)
        rounds = 0
        for seed in range(6):
            losses, prior_ = hostile(seed)
            rounds += ba.run(row, losses, prior_, tol=1e-9).rounds
            for limit in range(1, 7):
                search = ba.run(row, losses, prior_, limit, tol=1e-9).state.memory
                at, total = search.accepted.mean, Total(losses)
                hessian = total.hessian(at) + prior_.precision
                gradient = total.gradient(at) + prior_.precision @ (at - prior_.mean)
                step = np.linalg.solve(hessian, gradient)
                assert -gradient @ (search.target.mean - at) >= (0.5 - 1e-6) * step @ hessian @ step - 1e-12
        counted.append(rounds)
    assert counted[0] < counted[1]


def huge_counts_to_come():
    """Means of e^38 at zero: F is 4e18, its ulp 512, and so the gradient is lost at some 1e-3 standard errors."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 2))
    y = rng.poisson(np.exp(0.3 * X[:, 0])).astype(float)
    return [ba.losses.Poisson(X[k::3], y[k::3], offset=np.full(20, 38.7)) for k in range(3)]


def test_a_run_ends_where_its_steps_are_rounding():
    losses, row = huge_counts_to_come(), ba.Guarded(M.Newton())
    result = ba.run(row, losses, flat(2), tol=1e-8)
    assert result.status is ba.Status.ROUNDED
    assert result.rounds < 50
    assert result.message == ba.Status.ROUNDED.value
    assert not result.certificate().holds
    there = by_messages(losses, GLMTask(row, flat(2), tol=1e-8))
    assert (there.outcome.status, there.outcome.message) == (result.status, result.message)
    assert np.array_equal(there.state.q_g.mean, result.posterior.mean)
