"""Numbers of a regression table beside the coefficients: pure functions of totals over sites, at the server.

The sums come from `site_statistics`, smaller models from `refit`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import chdtrc, fdtrc, ndtr, ndtri, stdtr, stdtrit

from .._errors import ArgumentError
from .._validation import Array, as_positive
from ..losses.regression import Poisson
from .kinds import Kind
from .refit import Derivatives, Refit, refit
from .site_statistics import ROBUST, SiteStatistics, WeightMeaning

FAR = 800.0
"""Predictor of a null model that has an infinite intercept, as y has one value: e^{−800} is 0 in double precision."""

Noise = Literal["none", "estimated", "given"]
"""Source of the noise variance that divides the loss."""


@dataclass(frozen=True, eq=False)
class FitStatistics:
    """The sums over all sites that a fitted model keeps for its table, in the units of the run.

    Without `has_null` the model of intercepts and offsets alone was not fitted: `total.null_loss` is not its loss. An
    estimated noise variance gives t and F.
    """

    total: SiteStatistics
    noise: Noise = "none"
    weights: WeightMeaning = "frequency"
    has_null: bool = True


def null_start(theta: Array, covariance: Array, is_intercept: Array) -> Array:
    """Return the intercepts that minimise the quadratic around a fit with all other coefficients at zero."""
    rest, found = np.logical_not(is_intercept), np.zeros_like(theta)
    units = np.sqrt(np.diagonal(covariance)[rest])
    units = np.where(units > 0.0, units, 1.0)
    inner = covariance[np.ix_(rest, rest)] / np.outer(units, units)
    pull = np.linalg.lstsq(inner, theta[rest] / units)[0] / units  # a held coefficient has hardly any variance
    found[is_intercept] = theta[is_intercept] - covariance[np.ix_(is_intercept, rest)] @ pull
    return found


def null_fit(start: Array, is_intercept: Array, kind: Kind, driven: Callable[[Any], Refit]) -> Array | None:
    """Return θ of intercepts and offsets alone, of counts in closed form; None where it is not found."""
    if not is_intercept.any():
        return np.zeros_like(start)
    for fit in (_count_null, refit) if kind.loss is Poisson else (refit,):
        try:
            return driven(fit(start, is_intercept)).theta
        except ValueError:
            continue
    return None


def _count_null(start: Array, is_intercept: Array) -> Generator[Array, Iterable[Derivatives], Refit]:
    """Return exp(b) = Σ w y / Σ w exp(offset) from one θ, where Σ w exp(f) = ℓ'' and Σ w y = ℓ'' − ℓ' of the intercept.

    A ValueError is raised where the difference loses more than four digits, or there is none.
    """
    theta = np.where(is_intercept, start, 0.0)
    answers = list((yield theta))
    (j,) = np.flatnonzero(is_intercept)
    fitted = sum(float(answer.hessian[j, j]) for answer in answers)
    ratio = 1.0 - sum(float(answer.gradient[j]) for answer in answers) / fitted if fitted > 0.0 else np.nan
    if not 1e-4 < ratio < np.inf:
        raise ValueError("the counts are lost beside their means where the fit begins.")
    theta[j] += np.log(ratio)
    return Refit(theta, np.nan, 1)


# --- The fit as a whole ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """A test: a χ² with `df` degrees of freedom, or an F with `df` and `df_residual` where that is not None."""

    __test__ = False  # the tests of this package import it
    name: str
    statistic: float
    df: int
    df_residual: float | None
    p_value: float

    def __str__(self) -> str:
        law = f"χ²({self.df})" if self.df_residual is None else f"F({self.df}, {self.df_residual:g})"
        return f"{self.name}: {law} = {self.statistic:.4g}, P = {self.p_value:.3g}"


@dataclass(frozen=True)
class GoodnessOfFit:
    """A fit as a whole, at its maximum of the likelihood; numbers that compare with the null model are None without it.

    `n_observations` is Σ w_i of frequency weights, the number of rows of analytic ones, times the outputs of least
    squares. `n_parameters` counts coefficients and intercepts, not a noise variance; `df_model` the coefficients beside
    the intercepts, and `df_residual` is n − parameters.

    Deviances are 2 Σ w_i (ℓ_i − ℓ_i at μ_i = y_i), of least squares the residual sum of squares. Likelihoods keep all
    constants; an estimated noise variance is the one that maximises them, RSS/n. `dispersion` is Pearson's χ² over
    `df_residual`, of least squares the unbiased noise variance. `aic` and `bic` are −2 log L + 2 p and −2 log L + p log
    n; R counts an estimated noise variance as a parameter too. `r_squared` is McFadden's 1 − log L/log L₀, of least
    squares 1 − RSS/RSS₀ beside `adjusted_r_squared`, and None where the null model fits perfectly. `test` is the
    likelihood-ratio test of all coefficients beside the intercepts, or the F test where the noise is estimated.
    """

    n_observations: float
    n_parameters: int
    df_model: float
    df_residual: float
    deviance: float
    null_deviance: float | None
    log_likelihood: float
    null_log_likelihood: float | None
    dispersion: float | None
    aic: float
    bic: float
    r_squared: float | None
    adjusted_r_squared: float | None
    test: Test | None


def goodness_of_fit(
    kind: Kind,
    total: SiteStatistics,
    n_parameters: int,
    n_intercepts: int,
    *,
    n_outputs: int = 1,
    noise: Noise = "none",
    noise_variance: float = 1.0,
    weights: WeightMeaning = "frequency",
    has_null: bool = True,
) -> GoodnessOfFit:
    """Return deviance, likelihood, criteria and the test against the null model from the sum over sites.

    `n_outputs` counts the columns of y.
    """
    n = total.n_observations(weights) * (n_outputs if kind.outputs == "columns" else 1)
    df_residual, df_model = n - n_parameters, n_parameters - n_intercepts
    # of a perfect fit rounding is all that there is, of either sign; −2 log of a density may be negative
    least = -np.inf if kind.is_linear_mixed else 0.0
    deviance, null = (max(least, 2.0 * (loss - total.saturated_loss)) for loss in (total.loss, total.null_loss))

    def log_likelihood(loss: float) -> float:
        fixed = -total.constant
        if kind.log_density is not None:  # at the most likely dispersion but one, the mean deviance, as in R
            return fixed + kind.log_density(loss, n, 2.0 * loss / n) if loss > 0 else float("inf")
        if noise == "none":
            return fixed - loss
        columns = n / total.n_observations(weights)
        fixed += 0.5 * columns * total.log_weight if weights == "analytic" else 0.0
        with np.errstate(divide="ignore"):  # a perfect fit has an infinite likelihood
            variance = np.float64(2.0 * loss / n if noise == "estimated" else noise_variance)
            energy = 0.5 * n if noise == "estimated" else loss / noise_variance
            return float(fixed - energy - 0.5 * n * np.log(variance))

    ours, theirs = log_likelihood(total.loss), log_likelihood(total.null_loss)
    is_least_squares = kind.has_noise
    top, bottom = (deviance, null) if is_least_squares else (ours, theirs)
    r_squared = (
        1.0 - top / bottom
        if has_null and null > 0 and not kind.is_linear_mixed and np.isfinite([top, bottom]).all()
        else None
    )
    has_adjusted = is_least_squares and r_squared is not None and df_residual > 0
    dispersion = total.pearson / df_residual if df_residual > 0 and total.pearson is not None else None
    test = None
    if df_model > 0 and has_null:
        left = deviance if noise == "estimated" else (dispersion or 0.0) * df_residual
        if noise == "estimated" or kind.has_dispersion:
            test = _f_test("all coefficients", null - deviance, int(df_model), left, df_residual)
        else:
            scale = noise_variance if noise == "given" else 1.0
            test = _chi2_test("all coefficients", (null - deviance) / scale, int(df_model))
    return GoodnessOfFit(
        n_observations=n,
        n_parameters=n_parameters,
        df_model=df_model,
        df_residual=df_residual,
        deviance=deviance,
        null_deviance=null if has_null else None,
        log_likelihood=ours,
        null_log_likelihood=theirs if has_null else None,
        dispersion=dispersion,
        aic=-2.0 * ours + 2.0 * n_parameters,
        bic=-2.0 * ours + n_parameters * float(np.log(n)),
        r_squared=r_squared,
        adjusted_r_squared=1.0 - (1.0 - r_squared) * (n - n_intercepts) / df_residual
        if has_adjusted and r_squared is not None
        else None,
        test=test,
    )


def _chi2_test(name: str, statistic: float, df: int) -> Test:
    statistic = max(0.0, float(statistic))  # below zero is rounding
    return Test(name, statistic, df, None, float(chdtrc(df, statistic)))


def _f_test(name: str, explained: float, df: int, left: float, df_residual: float) -> Test | None:
    if df_residual <= 0 or left <= 0:
        return None
    statistic = (explained / df) / (left / df_residual)
    return Test(name, float(statistic), df, df_residual, float(fdtrc(df, df_residual, statistic)))


# --- Coefficients, terms and contrasts ------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A coefficient or a contrast; all but the first two fields are None where they would mean nothing.

    P is two-sided, and the interval of 95 % or of the level that was asked for: by t where the noise variance is
    estimated, otherwise by the normal.
    """

    name: str
    coef: float
    std_err: float | None = None
    statistic: float | None = None
    p_value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> tuple[float, float | None, float | None]:
        """exp(coef) with its interval: an odds or rate ratio, where the link makes it one."""
        with np.errstate(over="ignore"):
            ends = (None if end is None else float(np.exp(end)) for end in (self.low, self.high))
            return float(np.exp(self.coef)), *ends  # type: ignore[return-value]  # two ends


LEVEL = 0.95
"""Probability of an interval, where none is asked for."""


def read_level(level: Any) -> float:
    """Check the probability of an interval."""
    found = as_positive(level, "level")
    if not found < 1.0:
        raise ArgumentError("level", "must be between 0 and 1, as 0.95 is", f"{found:g}")
    return found


def reach_of(level: float, df: float | None = None) -> float:
    """Return the distance of an end of an interval from its middle, in standard errors: of t, or of the normal."""
    side = 0.5 * (1.0 + level)
    return float(ndtri(side) if df is None else stdtrit(df, side))


def estimate(name: str, coef: float, std_err: float, df: float | None = None, level: float = LEVEL) -> Estimate:
    """Return the row of a coefficient: t with `df` degrees of freedom, or z for None."""
    if not std_err > 0:
        return Estimate(name, float(coef), float(std_err))
    statistic = float(coef / std_err)
    reach = reach_of(level, df) * std_err
    tail = float(ndtr(-abs(statistic)) if df is None else stdtr(df, -abs(statistic)))
    return Estimate(name, float(coef), float(std_err), statistic, 2.0 * tail, float(coef - reach), float(coef + reach))


def wald_test(
    mean: Array,
    covariance: Array,
    L: Array,
    *,
    name: str = "Lβ = 0",
    df_residual: float | None = None,
    value: Array | float = 0.0,
) -> Test:
    """Test Lβ = r by W = (Lβ − r)ᵀ(LVLᵀ)⁻¹(Lβ − r), a χ²(q); W/q is F where V has degrees of freedom.

    L has shape (q, d), and r, `value`, shape (q,).

    Rows of L that depend on each other are a ValueError.
    """
    spread = L @ covariance @ L.T
    scale = np.sqrt(np.diagonal(spread))
    if not (scale > 0).all() or np.linalg.matrix_rank(spread / np.outer(scale, scale)) < len(L):
        raise ArgumentError("L", "must have rows that do not depend on each other", "a contrast of no variance")
    whitened = (L @ mean - value) / scale
    statistic = float(whitened @ cho_solve(cho_factor(spread / np.outer(scale, scale)), whitened))
    if df_residual is None:
        return _chi2_test(name, statistic, len(L))
    F = statistic / len(L)
    return Test(name, F, len(L), df_residual, float(fdtrc(len(L), df_residual, F)))


def likelihood_ratio_test(
    drop: float,
    df: int,
    name: str = "term",
    *,
    noise: Noise,
    full: float | None = None,
    df_residual: float | None = None,
) -> Test:
    """Test a drop of the pooled loss by `df` more coefficients: 2·drop is a χ² with `df` degrees of freedom.

    Where the noise variance is estimated, (drop/df)/(full/df_residual) is an F, with `full` the loss of the whole
    model. Raises a ValueError when the larger model fits worse, or has no residuals.
    """
    if drop < -1e-8 * max(abs(full or 0.0), 1.0):
        raise ArgumentError("reduced", "must not fit better than the model that holds it", f"a loss less by {-drop:g}")
    if noise != "estimated":
        return _chi2_test(name, max(2.0 * drop, 0.0), df)
    found = _f_test(name, max(drop, 0.0), df, full or 0.0, df_residual or 0.0)
    if found is None:
        raise ValueError("an F test needs residuals: the model fits perfectly.")
    return found


# --- Robust covariances ---------------------------------------------------------------------------------------


def robust_covariance(
    name: str, bread: Array, total: SiteStatistics, n_parameters: int, *, weights: WeightMeaning = "frequency"
) -> tuple[Array, float]:
    """Return the sandwich A⁻¹ B A⁻¹ times its factor, and n − p, or of clusters G − 1, degrees of freedom.

    `bread` is A⁻¹ at a noise variance of 1.

    HC0 (White): B = Σ s_i s_iᵀ. HC1: times n/(n − p). HC2 and HC3 (MacKinnon and White): s_i over √(1 − h_i) and 1 −
    h_i. "cluster" (Liang and Zeger): s summed within each of G clusters first, times G/(G − 1) · (n − 1)/(n − p). n is
    the number of rows or the sum of frequency weights, p that of one output where the columns of y are outputs. Raises
    a ValueError when the sites did not send the sums, or there are no more clusters, or rows, than parameters.
    """
    if name not in ROBUST:
        raise ArgumentError("covariance", f"must be one of {', '.join(ROBUST)}", repr(name))
    key = "HC0" if name == "HC1" else name
    if key not in total.meats:
        kept = ", ".join(total.meats)
        advice = f"the model has those of {kept}" if kept else "fit again with it: this fit was not asked for it"
        raise ArgumentError("covariance", "must be one that the sites sent sums for", repr(name), advice)
    n, G = total.n_observations(weights), total.n_clusters
    df, factor = n - n_parameters, 1.0
    if df <= 0:
        raise ArgumentError("covariance", "must have more rows than parameters", f"{n:g} rows, {n_parameters}")
    if name == "HC1":
        factor = n / df
    elif name == "cluster":
        if n_parameters >= G:  # their scores add up to zero at the fit: the rank is G − 1 at most
            expected = f"must be another here: clusters must be more than the {n_parameters} parameters"
            raise ArgumentError("covariance", expected, f"{name!r} of {G} clusters")
        factor, df = G / (G - 1) * (n - 1) / df, G - 1.0
    return factor * (bread @ total.meats[key] @ bread), df
