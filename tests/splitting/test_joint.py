"""The joint Newton step of a posterior: its coordinates, its derivatives, its guard, and the run."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.preprocessing import scale

import bayesadmm_np as ba
from bayesadmm_np.losses import Auto, Exact
from bayesadmm_np.losses.tensors import JointSums, entries, tensor_size, unpack_tensors
from bayesadmm_np.splitting import joint, line
from oracles.problems import DIM, EPS, assert_close, overshooting, prior, spd, team
from oracles.refusals import assert_refused

M = ba.methods
FULL = ba.families.FullGaussian
ROW = ba.Guarded(M.JointNewton())


def objective(losses, prior_, q):
    """F(q), from the rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return sum(loss.expect(q, loss.check(q, Auto())).value for loss in losses) + q.kl(prior_)


def with_root(mean, root):
    """N(m, CCᵀ)."""
    return FULL.from_covariance(mean, root @ root.T)


# --- Coordinates


def ends(seed):
    """A random problem and two distributions on it, as mean and upper triangular root of the covariance."""
    rng = np.random.default_rng(seed)
    name = ("logistic", "poisson", "squares")[seed % 3]
    losses, prior_ = (
        team(name, seed, sizes=(4, 9)),
        FULL(rng.standard_normal(3), spd(rng, 3) * 10.0 ** rng.uniform(-3, 1)),
    )
    roots = [np.triu(rng.standard_normal((3, 3))) * 10.0 ** rng.uniform(-1, 0.3) for _ in range(2)]
    for root in roots:
        np.fill_diagonal(root, np.abs(np.diagonal(root)) + 0.05)
    return losses, prior_, [(2.0 * rng.standard_normal(3), root) for root in roots]


def bump(losses, prior_, points, middle):
    """How far F at the middle is above the mean of its ends, and the size of F there."""
    ends_ = [objective(losses, prior_, q) for q in points]
    return objective(losses, prior_, middle) - 0.5 * sum(ends_), 1.0 + max(map(abs, ends_))


def test_the_objective_is_convex_in_mean_and_cholesky_factor_and_not_in_mu():
    """Twin: the expectation parameter μ = (m, −½(mmᵀ + Σ)) of the same two ends, half-way between them."""
    above = 0
    for seed in range(150):
        losses, prior_, ((m0, c0), (m1, c1)) = ends(seed)
        points = [with_root(m0, c0), with_root(m1, c1)]
        height, size = bump(losses, prior_, points, with_root(0.5 * (m0 + m1), 0.5 * (c0 + c1)))
        assert height <= 1e4 * EPS * size
        between = 0.5 * (points[0].expectation + points[1].expectation)
        height, size = bump(losses, prior_, points, points[0].with_expectation(between))
        above += height > 1e-6 * size
    assert above >= 10


LEARNED = ["full", "diagonal", "block"]


def told(losses, q):
    """What the sites tell at q."""
    rules = [loss.check(q, Auto()) for loss in losses]
    told_ = [(loss.expect(q, rule), loss.tensors(q, rule)) for loss, rule in zip(losses, rules, strict=True)]
    return [JointSums(own.gradient, own.curvature.dense(), tensors) for own, tensors in told_]


def somewhere(family, name, rng):
    """A member with a mean that is not the prior's, and a narrower covariance."""
    start = prior(family, DIM[name])
    return start.at(0.3 * rng.standard_normal(start.dim), [8.0 * part for part in start.factor.parts])


def model_of(losses, prior_, q, tensors=True):
    """The model at q; the twin's has no fourth derivatives, or no tensors."""
    sums = told(losses, q)
    gradient, curvature = joint.pooled_sums(prior_, q, sums)
    third, fourth = unpack_tensors(sum(own.tensors for own in sums), q, losses[0].n_outputs)
    return joint.joint_model(q, gradient, curvature, (third, fourth if tensors else 0.0 * fourth))


def slope_of(model):
    """The gradient at q, entropy included."""
    found = model.linear + model.hessian @ model.origin
    found[model.diagonal] -= 1.0
    return found


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares", "softmax2"])
@pytest.mark.parametrize("family", LEARNED)
def test_gradient_and_hessian_of_the_model_are_those_of_the_objective(family, name, rng):
    """Central differences of F in (a, T) over 3e-4: they err by 1e-7, and rounding by some EPS/1e-7."""
    losses, prior_ = team(name, sizes=(6, 9)), prior(family, DIM[name])
    q = somewhere(family, name, rng)
    model = model_of(losses, prior_, q)
    units = 3e-4 * np.eye(len(model.linear))

    def F(*steps):
        return objective(losses, prior_, joint.at(q, model.origin + sum(steps)))

    slopes = np.array([F(e) - F(-e) for e in units]) / 6e-4
    assert_close(slopes, slope_of(model), 1e-6)
    ways = rng.standard_normal((3, len(units)))
    found = np.array([[F(e, f) - F(e, -f) - F(-e, f) + F(-e, -f) for f in units] for e in 3e-4 * ways]) / 36e-8
    entropy = np.zeros(len(units))
    entropy[model.diagonal] = 1.0
    assert_close(found, ways @ (model.hessian + np.diag(entropy)), 1e-5)
    twin = model_of(losses, prior_, q, tensors=False)
    assert name == "squares" or np.abs(found - ways @ (twin.hessian + np.diag(entropy))).max() > 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_the_minimum_of_a_model_is_one(seed):
    """The gradient is zero there up to the last step; the diagonal of T stays positive however steep the model is."""
    rng = np.random.default_rng(seed)
    size, diagonal = 14, np.array([4, 6, 9, 13])
    scale_ = 10.0 ** rng.uniform(-3, 4)
    model = joint.Model(scale_ * rng.standard_normal(size), 10.0 ** rng.uniform(-3, 3) * spd(rng, size), diagonal)
    x = model.minimum()
    value = model.value(x)
    assert np.isfinite(value)
    for direction in rng.standard_normal((30, size)):
        assert model.value(x + 1e-4 * direction) >= value - 1e-12 * (1.0 + abs(value))
    assert slope_of(model) @ (x - model.origin) < 0.0
    assert joint.Model(model.linear, -model.hessian * 1e3, diagonal).minimum() is None


# --- The step, in every family


def lengths(losses, prior_, take, best, count):
    """Fisher distances of the posterior from the pooled one after 1, 2, … steps without a guard."""
    q, found = prior_.start(), []
    for _ in range(count):
        q = take(prior_, q, told(losses, q))
        found.append(best.fisher_norm(best.natural - q.natural))
    return np.array(found)


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares", "softmax2", "softmax"])
@pytest.mark.parametrize("family", [*LEARNED, "fixed", "isotropic"])
def test_steps_converge_quadratically_in_every_family(family, name):
    """Least squares end in one. Of a softmax of three classes points stand for q, whose covariance derivative is not
    theirs: so the steps end linearly, at their error. Twin: without tensors the errors fall by a factor.
    """
    losses, prior_ = team(name, sizes=(20, 30)), prior(family, DIM[name])
    best = ba.solve_pooled(losses, prior_, tol=1e-12).posterior

    def take(*at):
        return joint.joint_step(*at, losses[0].n_outputs)

    found = lengths(losses, prior_, take, best, 10)
    fast = [b <= 2.0 * a**2 + 1e-11 for a, b in pairwise(found) if a < 0.3]
    if name == "softmax" and family in LEARNED:
        fast = [b <= 2.0 * a**2 + 0.01 * a + 1e-11 for a, b in pairwise(found) if a < 0.3]
    assert all(fast)
    assert len(fast) >= 4
    assert name != "squares" or found[0] < 1e-12
    if family in LEARNED and name != "squares":
        plain = lengths(losses, prior_, joint.curvature_step, best, 10)
        assert not all(b <= 2.0 * a**2 + 0.01 * a + 1e-11 for a, b in pairwise(plain) if a < 0.3)


@pytest.mark.parametrize("family", LEARNED)
def test_without_tensors_the_minimum_of_the_model_is_in_closed_form(family, rng):
    losses, prior_ = team("logistic", sizes=(20, 30)), prior(family, 3)
    q = somewhere(family, "logistic", rng)
    sums = [own._replace(tensors=0.0 * own.tensors) for own in told(losses, q)]
    natural = joint.curvature_step(prior_, q, sums).natural
    assert_close(joint.joint_step(prior_, q, sums).natural, natural, 1e-9)
    bare = [own._replace(tensors=None) for own in sums]
    assert_close(joint.joint_step(prior_, q, bare).natural, natural, 0.0)
    # the twin takes the family's part of the curvature for the mean as well: BLR's step
    twin = prior_.natural - sum(
        (loss.expect(q, Exact()).natural_gradient for loss in losses[1:]), losses[0].expect(q, Exact()).natural_gradient
    )
    assert_close(twin.parts[1], natural.parts[1], 1e-12)
    assert family == "full" or np.abs(twin.linear - natural.linear).max() > 1e-3


@pytest.mark.parametrize("family", LEARNED)
def test_a_secant_model_has_the_gradient_at_both_points(family, rng):
    """Differences of F over 1e-5, in coordinates (a, T) around q; the twin without tensors has it at q alone."""
    losses, prior_ = team("logistic", sizes=(20, 30)), prior(family, 3)
    last, q = somewhere(family, "logistic", rng), prior_.start()
    sums, earlier = told(losses, q), told(losses, last)
    model, twin = joint.secant_model(prior_, q, sums, last, earlier), joint.secant_model(prior_, q, sums, q, sums)
    root, other = (one.factor.colour(np.eye(3)) for one in (q, last))
    x = np.concatenate([np.linalg.solve(root, last.mean - q.mean), np.linalg.solve(root, other)[entries(q)]])
    units = 1e-5 * np.eye(len(x))

    def gradient(x):
        """Of F and log det T."""
        slopes = [
            objective(losses, prior_, joint.at(q, x + e)) - objective(losses, prior_, joint.at(q, x - e)) for e in units
        ]
        found = np.array(slopes) / 2e-5
        found[model.diagonal] += 1.0 / x[model.diagonal]
        return found

    for one, other_ in ((model.origin, model), (x, model), (model.origin, twin)):
        assert_close(other_.linear + other_.hessian @ one, gradient(one), 1e-7)
    assert np.abs(twin.linear + twin.hessian @ x - gradient(x)).max() > 1e-2
    assert np.linalg.eigvalsh(model.hessian).min() > 0.0
    assert_close(
        joint.secant_step(prior_, q, sums, q, sums).natural, joint.curvature_step(prior_, q, sums).natural, 1e-9
    )


def test_a_dense_curvature_that_is_indefinite_by_rounding_leaves_the_step_of_the_family():
    """Two equal columns, and a prior that rounding loses beside them."""
    X = np.repeat(np.random.default_rng(0).standard_normal((9, 1)), 2, axis=1) * [1e6, 3e6]
    losses, prior_ = [ba.losses.LeastSquares(X, np.arange(9.0))], ba.families.DiagonalGaussian(np.ones(2), 1e-8)
    sums = told(losses, prior_)
    sums = [own._replace(curvature=own.curvature - 1e-2 * np.eye(2)) for own in sums]
    assert np.linalg.eigvalsh(sums[0].curvature).min() < 0.0
    step = joint.curvature_step(prior_, prior_, sums)
    gradient, diagonal = sums[0].gradient, np.diagonal(sums[0].curvature)
    assert_close(step.mean, 1.0 - gradient / diagonal, 1e-6)
    overflow = [own._replace(curvature=np.inf * own.curvature) for own in sums]
    assert joint.curvature_step(prior_, prior_, overflow) is None
    assert joint.joint_step(prior_, prior_, overflow) is None


def test_a_step_keeps_its_mean_where_its_natural_parameter_loses_it():
    """Counts of a thousand ask of blocks for T with a condition of 1e8 and more; the twin goes through λ = (Sm, S)."""
    lost = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        X = np.column_stack([np.ones(20), rng.standard_normal((20, 3))])
        losses = [ba.losses.Poisson(X, np.round(3e3 * rng.random(20)))]
        prior_ = ba.families.BlockDiagonalGaussian(np.zeros(4), 1e-3, blocks=[2, 2])
        bent = losses[0].hessian(np.zeros(4)) + 1e-3 * np.eye(4)
        q = prior_.at(prior_.mean, prior_.factor.repeated_block(bent, 1))
        sums, x = told(losses, q), model_of(losses, prior_, q).minimum()
        parts = [(sums[0].gradient, q.factor.repeated_block(sums[0].curvature, 1))]
        end = joint.joint_step(prior_, q, sums)
        assert joint.promised_fall(prior_, q, parts, end).change < 0.0
        way, twin = q.factor.colour(x[:4]), end.natural
        share = float(way @ (end.mean - q.mean) / (way @ way))  # 1, or 0.1 where T is singular to rounding
        assert_close(end.mean, q.mean + 10.0 ** round(np.log10(share)) * way, 1e-12)
        error = np.abs(q.with_natural(twin).mean - end.mean).max() if prior_.contains(twin) else np.inf
        lost += error > 0.01 * np.abs(end.mean).max()
    assert lost >= 1


# --- The fall that is promised


@pytest.mark.parametrize("family", LEARNED)
def test_the_promised_fall_does_not_cancel_where_the_covariance_grows_a_lot(family):
    """T = 1e30: the change is 3 − 3 log 1e30, to EPS of its terms; the twin adds tr(T − I) − log det T to the slope."""
    prior_ = prior(family, 3)
    q = prior_.at(
        prior_.mean, prior_.start().at(prior_.mean, prior_.factor.repeated_block(1e30 * np.eye(3), 1)).factor.parts
    )
    target = q.at(q.mean, [1e-60 * part for part in q.factor.parts])
    flat = prior_.at(prior_.mean, prior_.factor.repeated_block(1e-30 * np.eye(3), 1))
    parts = prior_.factor.repeated_block((1.0 - 1e-30) * np.eye(3), 1)
    found = joint.promised_fall(flat, q, [(np.zeros(3), parts)], target)
    exact = 3.0 - 90.0 * np.log(10.0)
    assert abs(found.change - exact) <= 1e-12 * abs(exact)
    tangent = 3e30 - 90.0 * np.log(10.0)
    assert abs(found.value + tangent - exact) > 1.0


# --- The run


@pytest.mark.parametrize("name", ["logistic", "poisson", "squares"])
@pytest.mark.parametrize("start", ["prior", "sites"])
def test_the_fixed_point_is_that_of_pvi(name, start):
    losses, prior_ = team(name, sizes=(20, 30)), prior("full", 3)
    result = ba.run(ba.Guarded(M.JointNewton(start)), losses, prior_, tol=1e-10)
    assert result.status is ba.Status.CONVERGED
    assert_close(result.posterior.natural, ba.run(M.PVI(), losses, prior_, tol=1e-10).posterior.natural, 1e-8)
    assert_close(result.posterior.natural, ba.solve_pooled(losses, prior_).posterior.natural, 1e-8)
    assert result.certificate().holds
    assert_close(result.objective[-1], objective(losses, prior_, result.posterior), 1e-12)


def test_least_squares_ends_in_one_round():
    """The twin steps in mean and covariance with the curvature frozen at the wrong place: the mode's."""
    losses = team("squares")
    for start in ("prior", "sites"):
        result = ba.run(M.JointNewton(start), losses, prior("full", 3), tol=1e-9)
        assert (result.status, result.rounds) == (ba.Status.CONVERGED, 1)
        assert_close(result.posterior.natural, ba.solve_pooled(losses, prior("full", 3)).posterior.natural, 1e-11)


def run_to(best, row, losses, prior_, **options):
    """A run until means and deviations are within 1e-6 deviations of the pooled fit."""
    deviation = np.sqrt(best.variance)

    def is_there(record, q):
        moved = np.abs((q.mean - best.mean) / deviation).max()
        return bool(max(moved, np.abs(np.sqrt(q.variance) / deviation - 1.0).max()) <= 1e-6)

    return ba.run(row, losses, prior_, 60, tol=1e-300, callback=is_there, **options)


@pytest.mark.parametrize(("count", "precision"), [(2, 1.0), (5, 0.01), (10, 0.01)])
def test_at_most_six_exchanges(precision, count):
    """By label, the hardest split of docs/benchmarks.md; today's accelerated PVI takes more in every case."""
    X, y = load_breast_cancer(return_X_y=True)
    X = np.column_stack([scale(X[:, [0, 1, 4, 8, 9]]), np.ones(len(y))])
    site = np.argsort(np.argsort(y, kind="stable"), kind="stable") * count // len(y)
    losses = [ba.losses.Logistic(X[site == k], y[site == k]) for k in range(count)]
    prior_ = FULL(np.zeros(6), np.diag([precision] * 5 + [0.0]))
    best = ba.solve_pooled([ba.losses.Logistic(X, y)], prior_, tol=1e-11).posterior

    ours = run_to(best, ROW, losses, prior_).rounds
    assert ours <= 6
    begun = ba.clients.own_fits(losses, prior_)
    assert 1 + run_to(best, ba.Accelerated(M.PVI()), losses, prior_, sites=begun).rounds > ours


def test_floats_are_counted_with_the_tensors():
    result = ba.run(ROW, team("logistic"), prior("full", 3), rounds=2, tol=1e-300)
    assert [record.floats_up for record in result.history] == [2 * 9, 2 * (9 + tensor_size(3))]
    assert [record.floats_down for record in result.history] == [2 * 9] * 2


def test_a_round_without_a_site_is_done_again():
    """Broken twin: a row that goes on with the old site of who is away."""
    losses, prior_ = team("logistic", sizes=(20, 30)), prior("full", 3)

    def attend(number, k, rng):
        return np.arange(k) != number - 3 if number in (3, 4) else np.ones(k, dtype=bool)

    for row in (ROW, M.JointNewton()):
        whole, gaps = [], []
        ba.run(row, losses, prior_, 6, tol=1e-300, callback=lambda record, q, to=whole: to.append(q))
        ba.run(
            row, losses, prior_, 8, tol=1e-300, callback=lambda record, q, to=gaps: to.append(q), participation=attend
        )
        # the guard keeps the answer of the third round, and the fourth completes it
        means = [gaps[i].mean for i in ((0, 1, 3, 4, 5, 6) if row is ROW else (0, 1, 4, 5, 6, 7))]
        assert_close(np.array(means), np.array([q.mean for q in whole]), 1e-12)
        assert_close(gaps[2].natural, gaps[1].natural, 1e-12)
    plain = ba.run(M.BLR(1.0), losses, prior_, 4, tol=1e-300, participation=attend)
    assert np.abs(plain.posterior.mean - gaps[1].mean).max() > 1e-6


def test_what_cannot_be_is_refused_before_the_run():
    losses, prior_, delta = team("logistic"), prior("full", 3), ba.losses.Delta(2)
    mixed = [*team("softmax2"), ba.losses.Logistic(np.ones((2, 4)), [0, 1])]
    wide = [ba.losses.Logistic(np.ones((2, 80)), [0, 1])]
    assert_refused(
        [
            (lambda: ba.run(ROW, losses, prior_, expectation=delta), "expectation"),
            (lambda: ba.run(ROW, mixed, prior("full", 4)), "clients"),
            (lambda: ba.Accelerated(M.JointNewton()), "method"),
            (lambda: M.JointNewton(tensors=1), "tensors"),
            (lambda: M.JointNewton(start="zero"), "start"),
            (lambda: ba.run(M.JointNewton("prior"), losses, FULL(np.zeros(3), 0.0)), "prior"),
        ]
    )
    with pytest.raises(ValueError, match="80 parameters"):
        ba.run(ROW, wide, FULL(np.zeros(80), 1.0))


def test_a_flat_prior_is_taken_where_the_data_determine_a_posterior():
    losses, flat = team("logistic", sizes=(20, 30)), FULL(np.zeros(3), 0.0)
    result = ba.run(ROW, losses, flat, tol=1e-9)
    assert_close(result.posterior.natural, ba.solve_pooled(losses, flat).posterior.natural, 1e-7)


# --- The guard


def hostile(seed):
    """A far and narrow start, from which the full step overshoots."""
    losses, far = overshooting(seed)
    prior_, begin = FULL(np.zeros(3), 1e-2), FULL(12.0 * far, 1e4)
    # a site that puts the server where the run is to begin
    apart = (begin.natural - prior_.natural) * (1.0 / 3.0)
    return losses, prior_, [apart] * 3


def values(row, seed, rounds=80):
    """Result, and F at every accepted point: those from which the next full step was taken."""
    losses, prior_, sites = hostile(seed)
    result = ba.run(row, losses, prior_, rounds, sites=sites, tol=1e-8, raise_on_failure=False)
    following = [*(record.alpha for record in result.history), 1.0]
    return result, [F for F, alpha in zip(result.objective, following, strict=True) if alpha == 1.0]


@pytest.mark.parametrize("seed", range(6))
def test_no_accepted_step_increases_the_objective(seed):
    result, accepted = values(ROW, seed)
    assert result.status is ba.Status.CONVERGED
    slack = 2 * EPS * (60 + 3 + 1000) * (np.abs(accepted).max() + 3)
    assert (np.diff(accepted) <= slack).all()
    losses, prior_, _ = hostile(seed)
    assert_close(result.posterior.mean, ba.solve_pooled(losses, prior_).posterior.mean, 1e-6)


def test_the_twin_without_a_guard_increases_it_or_is_lost():
    lost = 0
    for seed in range(12):
        result, accepted = values(M.JointNewton(), seed, rounds=12)
        lost += result.status.is_failure or bool((np.diff(accepted) > 1e-6 * (1 + np.abs(accepted[1:]))).any())
    assert lost >= 3


# --- The softmax


def classes(name, seed=0):
    """Losses of a softmax with a reference at sites, and a flat prior on the intercepts."""
    if name == "wine":  # by label, so that sites lack classes
        X, y = load_wine(return_X_y=True)
        X = scale(X[:, [1, 2, 4]])
        site, precision = np.argsort(np.argsort(y, kind="stable")) * 5 // len(y), 1e-4
    else:  # 120 rows for 16 coefficients: points of a rule are few for so wide predictors
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((120, 3))
        f = np.column_stack([X, np.ones(120)]) @ rng.standard_normal((4, 5))
        y = (f + rng.gumbel(size=f.shape)).argmax(axis=1)
        site, precision = np.arange(120) % 3, 1e-2
    design, C = np.column_stack([X, np.ones(len(y))]), int(y.max()) + 1
    losses = [ba.losses.ReferenceSoftmax(design[site == k], y[site == k], C) for k in np.unique(site)]
    flat = np.tile([*[precision] * X.shape[1], 0.0], C - 1)
    return losses, FULL(np.zeros(flat.size), np.diag(flat))


def rises(result):
    """Largest relative increase of the objective between accepted points; of a failed run the last was not judged."""
    following = [*(record.alpha for record in result.history), 0.0 if result.status.is_failure else 1.0]
    accepted = np.array([F for F, alpha in zip(result.objective, following, strict=True) if alpha == 1.0])
    return (np.diff(accepted) / (1.0 + np.abs(accepted[:-1]))).max()


def test_a_softmax_takes_at_most_six_exchanges():
    """Twin: the natural-gradient step from the same start, which has no tensors."""
    losses, prior_ = classes("wine")
    best = ba.solve_pooled(losses, prior_, tol=1e-11).posterior
    found = run_to(best, ROW, losses, prior_)
    assert found.rounds <= 6
    assert found.history[1].floats_up == len(losses) * (prior_.natural.size + tensor_size(8, 2))
    begun = ba.clients.own_fits(losses, prior_)
    assert 1 + run_to(best, M.BLR(1.0), losses, prior_, sites=begun).rounds > 6


def test_of_a_softmax_no_accepted_step_increases_the_objective_by_more_than_points_can_tell():
    """The answer is the fixed point of the rule, where its values of F need not be least; the twin is below."""
    for seed in (0, 1):
        losses, prior_ = classes("coarse", seed)
        result = ba.run(ROW, losses, prior_, 60, tol=1e-8)
        assert result.status is ba.Status.CONVERGED
        assert rises(result) <= line.CREDIT
        best = ba.solve_pooled(losses, prior_).posterior
        assert np.abs((result.posterior.mean - best.mean) / np.sqrt(best.variance)).max() < 1e-6


def test_a_softmax_of_too_few_points_says_so_at_the_round_limit():
    """Nearly separable rows, whose predictors are wide: values and slopes contradict each other at 256 points."""
    losses, prior_ = classes("coarse", 4)
    result = ba.run(ROW, losses, prior_, 30, tol=1e-8)
    assert result.status is ba.Status.ROUND_LIMIT
    assert "too few points" in result.message
    assert "too few points" not in ba.run(ROW, losses, prior_, 4, tol=1e-300).message
