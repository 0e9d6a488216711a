"""Everything of our own passes the checks of bayesadmm_np.testing, and twins with one fault each are named."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.families import Expectation, Natural
from bayesadmm_np.losses.base import Expected
from bayesadmm_np.losses.linear_model import LinearModelLoss
from bayesadmm_np.losses.pointwise import BernoulliLogit, Pointwise, PoissonLog, RowMoments
from bayesadmm_np.splitting.methods import AlongNatural, DualRule, Geometric, Schedule
from bayesadmm_np.testing import CheckError, check_family, check_loss, check_method
from oracles.extensions import Exponential

F, L, M = ba.families, ba.losses, ba.methods
RNG = np.random.default_rng(0)
X = RNG.standard_normal((7, 3))
BINARY, COUNTS, REAL, THREE = (
    RNG.integers(0, 2, 7),
    RNG.integers(0, 4, 7),
    RNG.standard_normal(7),
    RNG.integers(0, 3, 7),
)

LOSSES = {
    "Logistic": L.Logistic(X, BINARY),
    "Logistic, weights and offset": L.Logistic(X, BINARY, weights=np.arange(7.0), offset=REAL),
    "Binomial": L.Binomial(X, COUNTS / 3.0, weights=np.full(7, 3.0)),
    "Poisson": L.Poisson(X, COUNTS),
    "LeastSquares": L.LeastSquares(X, REAL),
    "LeastSquares, two outputs": L.LeastSquares(X, np.column_stack([REAL, REAL**2])),
    "Softmax": L.Softmax(X, THREE, n_classes=3),
    "Softmax, two classes": L.Softmax(X, BINARY, n_classes=2),
    "ReferenceSoftmax": L.ReferenceSoftmax(X, THREE, n_classes=3),
    "Total": L.Total([L.Logistic(X, BINARY), L.LeastSquares(X, REAL)]),
}
GAMMA = F.Gamma([2.0, 0.7], 1.5)
STATISTICS = {
    "LinearInStatistics": (L.LinearInStatistics(Natural(np.array([3.0, 1.0]), np.array([-2.0, -1.0]))), GAMMA),
    "of a Gaussian": (L.LinearInStatistics(Natural(np.ones(2), np.eye(2))), F.FullGaussian([0, 0], 1.0)),
}
MEMBERS = {
    "FullGaussian": F.FullGaussian([0.3, -1.0, 2.0], [[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]]),
    "DiagonalGaussian": F.DiagonalGaussian([0.3, -1.0, 2.0], [1.0, 2.0, 3.0]),
    "BlockDiagonalGaussian": F.BlockDiagonalGaussian([0.3, -1.0, 2.0], 2.0, blocks=[1, 2]),
    "FixedPrecisionGaussian": F.FixedPrecisionGaussian([0.3, -1.0], 2.0),
    "IsotropicGaussian": F.IsotropicGaussian([0.3, -1.0], 2.0),
    "Gamma": GAMMA,
    "Beta": F.Beta([2.0, 0.7], 1.5),
    "Dirichlet": F.Dirichlet([2.0, 0.7, 3.0]),
}
ROWS = {
    **{name: make() for name, make in M.TABLE.items()},
    "BayesADMM, rho = 5": M.BayesADMM(rho=5.0),
    "damped": M.PVI(gamma=0.3),
    "by rows": M.PVI(gamma="rows"),
    "Bregman's other scale": M.BregmanADMM(rho=2.0, gamma=0.5, statistic_scale=1.0),
    "scheduled": replace(M.BayesADMM(rho=2.0), schedule=Geometric(rho=0.9)),
}


def test_all_of_our_own_are_here():
    assert set(MEMBERS) == set(F.FAMILIES)
    assert {name.partition(",")[0] for name in LOSSES} | {"LinearInStatistics"} == set(L.LOSSES)
    assert set(M.TABLE) <= set(ROWS)


@pytest.mark.parametrize(("seed", "loss"), list(enumerate(LOSSES.values())), ids=LOSSES)
def test_our_losses_pass(seed, loss):
    check_loss(loss, seed=seed)


@pytest.mark.parametrize(("loss", "prior"), STATISTICS.values(), ids=STATISTICS)
def test_losses_of_statistics_pass(loss, prior):
    check_loss(loss, prior)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
def test_our_families_pass(member, seed):
    check_family(member, seed=seed)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_our_methods_pass(row):
    check_method(row)


@pytest.mark.parametrize("family", ["Gamma", "Beta", "Dirichlet"])
def test_our_methods_pass_on_conjugate_families(family):
    prior = MEMBERS[family]
    signs = {"Gamma": (1.0, -1.0)}.get(family, (1.0, 1.0))
    factor = Natural(*(sign * np.ones_like(part) for sign, part in zip(signs, prior.natural.parts, strict=False)))
    clients = [L.LinearInStatistics(t * factor) for t in (0.5, 1.5)]
    for row in (M.BayesADMM(rho=2.0), M.PVI(), M.AMA(rho=1.5)):
        check_method(row, prior, clients)


# ----------------------------------------------------------------------------------------------------
# Losses with one fault
# ----------------------------------------------------------------------------------------------------


FIRST = np.random.default_rng(0).standard_normal(3)[0]
"""First coordinate of the point that a check with seed 0 begins at."""


def loss_with(**methods):
    return type("Twin", (L.Logistic,), methods)(X, BINARY)


class HalfSlope(BernoulliLogit):
    """A slope that is a thousandth too long, at points and in the integral."""

    def expected_derivatives(self, predictors, weights, y):
        value, slope, curvature = super().expected_derivatives(predictors, weights, y)
        return RowMoments(value, 1.001 * slope, curvature)


class OtherIntegral(PoissonLog):
    """E exp(f) with the variance instead of half of it."""

    def exact(self, mean, variance, y):
        return super().exact(mean, 2.0 * variance, y)._replace(value=super().exact(mean, variance, y).value)


class NoCurvature(PoissonLog):
    def exact(self, mean, variance, y):
        found = super().exact(mean, variance, y)
        return found._replace(curvature=1.01 * found.curvature)


class Cosine(PoissonLog):
    """Not convex: ℓ(f) = cos f."""

    def expected_derivatives(self, predictors, weights, y):
        return RowMoments(np.cos(predictors) @ weights, -np.sin(predictors) @ weights, -np.cos(predictors) @ weights)

    def exact(self, mean, variance, y):
        size = np.exp(-0.5 * variance)
        return RowMoments(size * np.cos(mean), -size * np.sin(mean), -size * np.cos(mean))


class HonestCosine(Cosine):
    is_convex = False


class CLogLog(Pointwise):
    """−log p of y ∈ {0, 1} with p = 1 − exp(−exp f): poles at f = log 2πk ± iπ/2 slow its quadrature down."""

    def expected_derivatives(self, predictors, weights, y):
        rate, seen = np.exp(predictors), y[:, None] > 0
        hit = -np.expm1(-rate)
        odds = rate * np.exp(-rate) / hit
        return RowMoments(
            np.where(seen, -np.log(hit), rate) @ weights,
            np.where(seen, -odds, rate) @ weights,
            np.where(seen, odds * (rate / hit - 1.0), rate) @ weights,
        )


class LongIntegral(CLogLog):
    """At points it is right; in quadrature slope and curvature are a ten-thousandth too long."""

    def expected_derivatives(self, predictors, weights, y):
        found = super().expected_derivatives(predictors, weights, y)
        factor = 1.0 if weights.size == 1 else 1.0001
        return RowMoments(found.value, factor * found.slope, factor * found.curvature)


def skew(self, theta):
    hessian = L.Logistic.hessian(self, theta).copy()
    hessian[0, 1] *= 1.0 + 1e-6
    return hessian


class Bent(L.LinearInStatistics):
    """The value of another loss."""

    def expect(self, q, rule):
        found = super().expect(q, rule)
        return Expected(found.value + 0.01 * q.conjugate, found.natural_gradient)


LOSS_TWINS = {
    "gradient": (loss_with(gradient=lambda self, t: 1.00001 * L.Logistic.gradient(self, t)), "gradient = derivative"),
    "slope": (LinearModelLoss(X, BINARY, HalfSlope()), "gradient = derivative of value"),
    "hessian": (loss_with(hessian=lambda self, t: L.Logistic.hessian(self, 1.001 * t)), "Hessian = derivative"),
    "symmetry": (loss_with(hessian=skew), "Hessian"),
    "shape": (
        loss_with(gradient=lambda self, t: L.Logistic.gradient(self, t)[:, None]),
        r"shape \(d,\) of the gradient",
    ),
    "convexity": (LinearModelLoss(X, REAL, Cosine()), "convexity, which is_convex claims"),
    "quadratic": (loss_with(is_quadratic=True), "constant Hessian, which is_quadratic claims"),
    "integral": (LinearModelLoss(X, COUNTS, OtherIntegral()), "∇_μ E_q"),
    "curvature of the integral": (LinearModelLoss(X, COUNTS, NoCurvature()), "∇_μ E_q"),
    "jump": (loss_with(value=lambda self, t: L.Logistic.value(self, t) + float(t[0] > FIRST)), "differentiability"),
}


@pytest.mark.parametrize("twin", LOSS_TWINS)
def test_a_loss_with_a_fault_is_named(twin):
    loss, identity = LOSS_TWINS[twin]
    with pytest.raises(CheckError, match=identity) as caught:
        check_loss(loss)
    error = caught.value
    assert error.difference > error.tolerance
    assert str(error) == (
        f"{error.identity} does not hold at {error.where}: off by {error.difference:.3g}, where rounding and "
        f"truncation allow {error.tolerance:.1g}."
    )


@pytest.mark.parametrize(
    ("field", "fold"), [("value", np.sum), ("slope", lambda v: v[:, None]), ("curvature", np.diag)]
)
def test_row_moments_of_a_wrong_shape_are_named(field, fold):
    class Folded(BernoulliLogit):
        def expected_derivatives(self, predictors, weights, y):
            found = super().expected_derivatives(predictors, weights, y)
            return found._replace(**{field: fold(getattr(found, field))})

    got = {"value": "()", "slope": "(7, 1)", "curvature": "(7, 7)"}[field]
    with pytest.raises(CheckError) as caught:
        check_loss(LinearModelLoss(X, BINARY, Folded()))
    where = "Folded.expected_derivatives with n = 7"
    assert str(caught.value) == f"{field} must have shape (n,), got {got}, at {where}."


def test_a_loss_that_claims_no_convexity_needs_none():
    check_loss(LinearModelLoss(X, REAL, HonestCosine()))


@pytest.mark.parametrize("seed", range(4))
def test_the_error_of_the_quadrature_is_no_fault_of_the_loss(seed):
    """At a predictor's standard deviation of 1.5 and more, where 64 nodes give the slope to 1e-7."""
    wide = np.column_stack([2.0 * X[:, :2], np.ones(7)])
    check_loss(LinearModelLoss(wide, BINARY, CLogLog()), seed=seed)
    with pytest.raises(CheckError, match=r"∇_μ E_q.*GaussHermite"):
        check_loss(LinearModelLoss(wide, BINARY, LongIntegral()), seed=seed)


def test_a_loss_of_statistics_with_a_fault_is_named():
    coefficients = STATISTICS["LinearInStatistics"][0].coefficients
    with pytest.raises(CheckError, match="∇_μ E_q"):
        check_loss(Bent(coefficients), GAMMA)


def test_sampled_rules_are_compared_with_points_of_another_kind():
    class Twin(L.Softmax):
        def expect(self, q, rule):
            found = super().expect(q, rule)
            found.gradient = 1.2 * found.gradient
            return found

    with pytest.raises(CheckError, match="E_q of gradient and Hessian"):
        check_loss(Twin(X, THREE, n_classes=3))


# ----------------------------------------------------------------------------------------------------
# Families with one fault
# ----------------------------------------------------------------------------------------------------

FAMILY_TWINS = {
    "sign of μ": ({"expectation": property(lambda self: Expectation(-1.0 / self.rate))}, "∇A inverts|∇A|inverts"),
    "A": ({"log_partition": property(lambda self: -1.001 * float(np.log(self.rate).sum()))}, "expectation = ∇A"),
    "whiten": ({"whiten": lambda self, d: 2.0 * d.linear / self.rate}, "whiten = root of the Fisher metric"),
    "inverse": ({"with_expectation": lambda self, e: type(self)(1.00001 / e.mean)}, r"∇A\* inverts ∇A"),
    "forgets": ({"with_natural": lambda self, n: type(self)(-n.linear * 1.00001)}, "with_natural"),
    "accepts all": ({"with_natural": lambda self, n: type(self)(np.abs(n.linear))}, "inside contains"),
    "contains all": ({"contains": lambda self, n: True}, "inside contains"),
    "contains none": ({"contains": lambda self, n: bool((n.linear < -1e9).all())}, "contains"),
    "kl": ({"kl": lambda self, p: F.ExponentialFamily.kl(p, self)}, "KL = Bregman"),
    "kl of itself": ({"kl": lambda self, p: 1e-3 + F.ExponentialFamily.kl(self, p)}, r"KL\(q‖q\) = 0"),
    "conjugate": ({"conjugate": property(lambda self: self.log_partition)}, "conjugate = "),
    "density": ({"log_density": lambda self, t: (-self.rate * np.asarray(t)).sum(-1)}, "log_density = "),
    "base": (
        {"log_density": lambda self, t: Exponential.log_density(self, t) - 0.1 * np.log(self.rate).sum() ** 2},
        "log_density = ",
    ),
    "samples": ({"sample": lambda self, rng, size=1: rng.exponential(self.rate, (size, self.rate.size))}, "samples"),
    "shape": ({"sample": lambda self, rng, size=1: rng.exponential(1.0 / self.rate[0], size)}, r"sample returns"),
}


def test_the_family_of_the_documentation_passes():
    check_family(Exponential([2.0, 0.5]))


@pytest.mark.parametrize("twin", FAMILY_TWINS)
def test_a_family_with_a_fault_is_named(twin):
    methods, identity = FAMILY_TWINS[twin]
    with pytest.raises(CheckError, match=identity):
        check_family(type("Twin", (Exponential,), methods)([2.0, 0.5]))


def test_a_density_of_one_dimension_that_is_not_normalised_is_named():
    check_family(Exponential(2.0))
    twin = type("Twin", (Exponential,), {"log_density": lambda self, t: Exponential.log_density(self, t) + 0.01})
    with pytest.raises(CheckError, match="log_density is normalised"):
        check_family(twin(2.0))


@pytest.mark.parametrize("arguments", [("rate", "shape"), ("shape",), ("shape", "scale"), ()])
def test_arguments_that_do_not_make_the_member_are_named(arguments, registries):
    twin = F.FAMILIES.register(type("Twin", (F.Gamma,), {"arguments": arguments}))
    with pytest.raises(CheckError, match=r"Twin\(\*arguments\) is the member"):
        check_family(twin([2.0, 0.7], 1.5))


def test_a_wrong_expectation_is_named_as_such():
    methods = {"arguments": (), "expectation": property(lambda self: Expectation(1.1 / self.rate))}
    twin = type("Twin", (Exponential,), methods)
    with pytest.raises(CheckError, match=r"expectation = ∇A.* at q = Twin\(Natural\(\[-2"):
        check_family(twin([2.0, 0.5]))


class HeavyPrior(F.IsotropicGaussian):
    """w of another prior."""

    def __init__(self, mean, precision=1.0):
        super().__init__(mean, precision)
        self.prior_weight = 0.7


class LostPrior(F.IsotropicGaussian):
    """A start elsewhere."""

    def start(self):
        return type(self)(self.mean + 0.1)


@pytest.mark.parametrize("kind", [HeavyPrior, LostPrior])
def test_a_prior_outside_its_family_says_by_how_much(kind):
    with pytest.raises(CheckError, match=r"= prior_weight ·|same family"):
        check_family(kind([0.3, -1.0], 2.0))


# ----------------------------------------------------------------------------------------------------
# Methods with one fault
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drifting(DualRule):
    def __call__(self, site, own, served, step):
        return site + step * (own - 0.999 * served)


@dataclass(frozen=True)
class Forgetting(DualRule):
    def __call__(self, site, own, served, step):
        return 0.999 * site + step * (own - served)


@dataclass(frozen=True)
class Relaxed(DualRule):
    factor: float = 1.01

    def __call__(self, site, own, served, step):
        return site + self.factor * step * (own - served)


@dataclass(frozen=True)
class Boasting(Relaxed):
    is_natural_gradient: ClassVar[bool] = True


@dataclass(frozen=True)
class Backward(DualRule):
    def __call__(self, site, own, served, step):
        return site - step * (own - served)


@dataclass(frozen=True)
class Lame(DualRule):
    def __call__(self, site, own, served, step):
        return site


class Thawed(AlongNatural):
    """No frozen dataclass of its own: what it holds could change between rounds."""

    __dataclass_params__ = replace_frozen = type("Params", (), {"frozen": False})


@dataclass(frozen=True)
class Wild(Schedule):
    def row(self, method, round):
        return replace(method, dual_step=-0.1 if round == 7 else method.dual_step)


ROW = M.BayesADMM(rho=2.0)
METHOD_TWINS = {
    "a rule that drifts": (replace(ROW, dual_rule=Drifting()), "Drifting leaves η_k as it is where λ_k = λ_g"),
    "a rule that forgets": (replace(ROW, dual_rule=Forgetting()), "Forgetting leaves η_k as it is"),
    "a rule that boasts": (replace(ROW, dual_rule=Boasting()), r"Eq\. 33\), which Boasting claims"),
    "a rule of the wrong sign": (replace(ROW, dual_rule=Backward()), "rounds near the pooled solution come back to it"),
    "a rule that never moves": (replace(ROW, dual_rule=Lame()), "rounds near the pooled solution come back to it"),
    "a rule that thaws": (replace(ROW, dual_rule=Thawed()), "frozen dataclasses"),
    "a schedule of negative steps": (replace(ROW, schedule=Wild()), "γ_k ≥ 0"),
}


@pytest.mark.parametrize("twin", METHOD_TWINS)
def test_a_method_with_a_fault_is_named(twin):
    row, identity = METHOD_TWINS[twin]
    with pytest.raises(CheckError, match=identity):
        check_method(row)


def test_a_rule_that_does_not_claim_eq_33_need_not_hold_it():
    check_method(replace(ROW, dual_rule=Relaxed()))


def test_a_row_whose_fixed_point_is_another_is_named():
    """Clients that only evaluate natural gradients do not know of a prior that is theirs."""
    with pytest.raises(CheckError, match="the pooled solution is a fixed point of Lost"):
        check_method(M.Method("Lost", 1.0, 1.0, client="gradient", prior_at="clients"))
