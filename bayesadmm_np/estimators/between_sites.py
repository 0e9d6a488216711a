"""Whether sites disagree: Cochran's Q from the factors that the sites have sent, with no further message.

At the pooled mode m the factor of site k is (H_k m − g_k, H_k), g_k and H_k the gradient and Hessian of its loss. So
β_k = m − H_k⁻¹ g_k, one Newton step towards the site's own fit (of least squares the fit itself), is a solve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigvalsh
from scipy.optimize import brentq
from scipy.special import chdtrc, fdtrc

from .._errors import ArgumentError
from .._validation import Array, frozen
from ..glm.inference import Estimate, Test, estimate
from .fitted import FittedGLM, Units
from .settings import read_choice

LEAST = 1e-9
"""Smallest eigenvalue of a site's information, scaled to a diagonal of ones, that is told from zero."""

SAME = 1e-9
"""Difference of predictors, relative to them, up to which rounding makes it: rows that lie on a plane."""
MODEL = "model"
"""The covariance that the model's own variance gives."""

QUASI = "quasi"
"""The model's times Pearson's χ² over its degrees of freedom, with t: quasi-likelihood (Wedderburn 1974)."""

DISPERSED = 1.44
"""Pearson's χ² over its degrees of freedom at which standard errors should be 1.2 times as large: 1.2²."""

CHANCE = 1e-6
"""P below which sites contradict each other: practice that differs between hospitals is said by `heterogeneity`."""

ENOUGH = 10
"""Rows a coefficient from which on a site's own coefficients are about normal."""


@dataclass(frozen=True)
class CoefficientHeterogeneity:
    """A coefficient over sites; the rows of a forest plot are `sites`.

    Attributes
    ----------
    name : str
    sites : dict of Estimate
        β_k and its standard error √(H_k⁻¹)_jj by site, with a normal interval.
    Q : Test
        Q = Σ w_k (β_k − β̄)², w_k one over the variance and β̄ the weighted mean.
    I_squared : float
        Share of the variation that is more than chance: max(0, (Q − df)/Q).
    tau_squared, tau_squared_reml : float
        Variance between sites: DerSimonian's and Laird's, and by restricted maximum likelihood.
    """

    name: str
    sites: Mapping[Any, Estimate]
    Q: Test
    I_squared: float
    tau_squared: float
    tau_squared_reml: float


@dataclass(frozen=True)
class Heterogeneity:
    """Disagreement of the sites of a fit; `str` prints it.

    Attributes
    ----------
    test : Test
        That all sites have the same coefficients: T = Σ_k (β_k − β̄)ᵀ H_k (β_k − β̄), a χ² with (K − 1) d degrees of
        freedom; Chow's F where the noise variance is estimated, exact for normal errors. Of a quasi-likelihood T over
        the dispersion φ and its degrees of freedom, an F with those of φ.
    coefficients : tuple of CoefficientHeterogeneity
    left_out : tuple
        Names of sites whose rows do not determine all coefficients.
    dispersion : float or None
        φ of counts, Pearson's χ² of the pooled fit over its degrees of freedom; None of other targets.
    is_scaled : bool
        Whether variances are times φ.
    """

    test: Test
    coefficients: tuple[CoefficientHeterogeneity, ...]
    left_out: tuple[Any, ...]
    dispersion: float | None = None
    is_scaled: bool = False

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.coefficients)
        head = f"{'':<{width}}  {'Q':>8}  {'df':>3}  {'P':>6}  {'I² %':>6}  {'τ':>8}  {'τ REML':>8}"
        lines = [
            f"{row.name:<{width}}  {row.Q.statistic:8.3f}  {row.Q.df:3d}  {row.Q.p_value:6.3f}"
            f"  {100 * row.I_squared:6.1f}  {row.tau_squared**0.5:8.4g}  {row.tau_squared_reml**0.5:8.4g}"
            for row in self.coefficients
        ]
        out = ", ".join(map(str, self.left_out))
        note = [f"Left out, because their rows do not determine all coefficients: {out}."] if out else []
        note += ["Q (Cochran) tests whether the sites have the same coefficient; I² is the share of the variation that"]
        note += ["is more than chance; τ is the sd between sites, by DerSimonian and Laird and by REML."]
        if self.dispersion is not None and self.is_scaled:
            note += [f"Variances are times the dispersion of the counts, {self.dispersion:.4g}."]
        elif self.dispersion is not None and self.dispersion > DISPERSED:
            note += [f"The counts vary {self.dispersion:.4g} times as much as the model says, which counts here as"]
            note += ["disagreement: covariance quasi divides it out."]
        return "\n".join([str(self.test), "-" * len(head), head, *lines, "-" * len(head), *note])

    __repr__ = __str__


def heterogeneity(model: FittedGLM, units: Units = "original", covariance: str = MODEL) -> Heterogeneity:
    """Test whether the sites of a fit by maximum likelihood have the same coefficients.

    T is approximate where the loss is no quadratic: it takes one Newton step for each site's own fit. Few rows at a
    site, or coefficients far from the pooled ones, make it worse.

    Parameters
    ----------
    model : FittedGLM
    units : {'original', 'standardized'}
        Of the coefficients; T does not depend on them.
    covariance : {'model', 'quasi'}
        "quasi" takes variances times the dispersion of the pooled counts, as the table of that name does.

    Raises
    ------
    ValueError
        When the fit is another one, or fewer than two sites determine all coefficients.

    Examples
    --------
    >>> from bayesadmm_np.estimators import FederatedLinearRegression, heterogeneity
    >>> X, y = [[0.0], [1.0], [2.0], [0.0], [1.0], [2.0]], [0.0, 1.1, 1.9, 0.1, 2.9, 6.1]
    >>> model = FederatedLinearRegression().fit(X, y, client=["a", "a", "a", "b", "b", "b"])
    >>> print(heterogeneity(model.fitted_).test)
    the same coefficients at all sites: F(2, 2) = 249.7, P = 0.00399
    """
    if model.fit_name != "maximum likelihood" or model.family != "full":
        raise ValueError(
            f"a test of sites against each other needs a fit by maximum likelihood, not: {model.fit_name}."
        )
    spare = model.overdispersion
    is_scaled = read_choice(covariance, "covariance", (MODEL, QUASI)) == QUASI
    if is_scaled and spare is None:
        raise ArgumentError("covariance", "must be 'model' for this fit: quasi-likelihood is for counts", repr(QUASI))
    scale = spare if is_scaled and spare is not None else 1.0
    fits = _own_fits(model)
    free, whole = fits.free, list(fits.precisions)
    block = np.ix_(free, free)
    left_out = tuple(name for name in model.sites if name not in whole)
    if len(whole) < 2:
        raise ValueError(
            f"a test of sites against each other needs two whose rows determine all coefficients, got {len(whole)}."
        )
    precisions, linear = np.array(list(fits.precisions.values())), np.array(list(fits.linear.values()))
    own = np.array([_solved(H, b) for H, b in zip(precisions, linear, strict=True)])
    centre = _solved(precisions.sum(axis=0), linear.sum(axis=0))
    T = sum(float((b - centre) @ H @ (b - centre)) for b, H in zip(own, precisions, strict=True))
    change, shift = model.in_units(units)
    change, shift = change[block], shift[free]
    moved = own @ change.T + shift
    variances = scale * np.array([np.einsum("ij,ji->i", change, _solved(H, change.T)) for H in precisions])
    return Heterogeneity(
        test=_overall(model, T, whole, spare if is_scaled else None),
        coefficients=tuple(
            _coefficient(name, dict(zip(whole, moved[:, j], strict=True)), variances[:, j])
            for j, name in enumerate(np.array(model.coefficient_names)[free].tolist())
        ),
        left_out=left_out,
        dispersion=spare,
        is_scaled=is_scaled,
    )


@dataclass(frozen=True)
class Contradiction:
    """A site whose rows say something else than those of the others; `str` is a sentence.

    `sites` are both where there are two; `test` is Wald's, that the site has the coefficients of the others together.
    """

    sites: tuple[Any, ...]
    test: Test

    def __str__(self) -> str:
        names = " and ".join(repr(str(site)) for site in self.sites)
        chance = f"P = {self.test.p_value:.0e}" if self.test.p_value > 0 else "P < 1e-300"
        who = f"Site {names} contradicts the others" if len(self.sites) == 1 else f"Sites {names} contradict each other"
        return f"{who} ({chance}; heterogeneity has each site's coefficients): is the outcome coded alike?"


def contradiction(model: FittedGLM) -> Contradiction | None:
    """Return the site that contradicts the others most, where its coefficients are theirs at no P above `CHANCE`.

    With β and H of the site, β' and H' of the others together, W = (β − β')ᵀ (H⁻¹ + H'⁻¹)⁻¹ (β − β'). P is times the
    number of sites, and a site counts that has `ENOUGH` rows a coefficient. W is divided by a dispersion above 1 of
    counts. None also where the fit is no maximum, and where the two differ by rounding of the predictors.
    """
    if not model.is_at_maximum or model.family != "full":
        return None
    own = _own_fits(model)
    if len(own.precisions) < 2:
        return None
    d, total = len(own.free), np.sum(list(own.precisions.values()), axis=0)
    all_linear = np.sum(list(own.linear.values()), axis=0)
    worst: Contradiction | None = None
    for name, H in own.precisions.items():
        others = total - H
        if model.sites[name].n_rows < ENOUGH * d or not _is_definite(others):
            continue
        linear = np.sum([part for site, part in own.linear.items() if site != name], axis=0)
        apart = _solved(H, own.linear[name]) - _solved(others, linear)
        if apart @ total @ apart <= SAME**2 * float(_solved(total, all_linear) @ all_linear):
            continue
        W = float(apart @ H @ _solved(total, others @ apart)) / max(1.0, model.overdispersion or 1.0)
        P = min(1.0, len(own.precisions) * float(chdtrc(d, W)))
        if P < CHANCE and (worst is None or worst.test.statistic < W):
            sites = (name,) if len(own.precisions) > 2 else tuple(own.precisions)
            worst = Contradiction(sites, Test("the coefficients of the others", W, d, None, P))
    return worst


@dataclass(frozen=True)
class _OwnFits:
    """Precisions and linear parts of the sites that determine all coefficients that are not held at zero."""

    free: Any
    precisions: Mapping[Any, Array]
    linear: Mapping[Any, Array]


def _own_fits(model: FittedGLM) -> _OwnFits:
    free = np.flatnonzero(~model.held)
    block = np.ix_(free, free)
    precision = {name: np.asarray(site.factor.precision)[block] for name, site in model.sites.items()}
    whole = {name: H for name, H in precision.items() if _is_definite(H)}
    return _OwnFits(free, whole, {name: model.sites[name].factor.linear[free] for name in whole})


def _is_definite(precision: Array) -> bool:
    scale = np.sqrt(np.diagonal(precision))
    if not (scale > 0).all():
        return False
    return bool(eigvalsh(precision / np.outer(scale, scale), subset_by_index=[0, 0])[0] > LEAST)


def _solved(precision: Array, vector: Array) -> Array:
    scale = np.sqrt(np.diagonal(precision))
    columns = (vector.T / scale).T
    return np.asarray((cho_solve(cho_factor(precision / np.outer(scale, scale)), columns).T / scale).T)


def _overall(model: FittedGLM, T: float, sites: list[Any], dispersion: float | None) -> Test:
    d, name = int((~model.held).sum()), "the same coefficients at all sites"
    df, statistics = (len(sites) - 1) * d, model.statistics
    whole = model.goodness()
    if dispersion is not None and whole is not None:
        F = T / df / dispersion
        return Test(name, F, df, whole.df_residual, float(fdtrc(df, whole.df_residual, F)))
    if statistics is None or statistics.noise != "estimated":
        return Test(name, T, df, None, float(chdtrc(df, T)))
    # in units of the pooled noise variance; sites that are left out take their rows and their misfit with them
    rows = sum(model.sites[site].n_rows for site in sites) * model.layout.n_outputs
    if len(sites) < len(model.sites) or rows != statistics.total.n_observations(statistics.weights):
        return Test(name, T, df, None, float(chdtrc(df, T)))
    left, df_left = 2.0 * statistics.total.loss / model.noise_variance - T, rows - len(sites) * d
    if model.has_noise_of_rounding:
        raise ValueError("an F test of sites against each other needs residuals: those of this fit are rounding.")
    if df_left <= 0 or left <= 0:
        raise ValueError(
            "an F test of sites against each other needs more rows than coefficients of all sites together."
        )
    F = (T / df) / (left / df_left)
    return Test(name, F, df, df_left, float(fdtrc(df, df_left, F)))


def _coefficient(name: str, own: Mapping[Any, float], variances: Array) -> CoefficientHeterogeneity:
    unit = 2.0 ** np.round(np.log2(variances.max()) / 2.0)  # no digit is lost, and squares of weights are numbers
    b, v = frozen(np.array(list(own.values())) / unit), variances / unit**2
    w = 1.0 / v
    Q, df = float(w @ (b - w @ b / w.sum()) ** 2), len(b) - 1
    spread = w.sum() - (w @ w) / w.sum()
    return CoefficientHeterogeneity(
        name=name,
        sites={
            site: estimate(str(site), value, float(np.sqrt(variance)))
            for (site, value), variance in zip(own.items(), variances, strict=True)
        },
        Q=Test(name, Q, df, None, float(chdtrc(df, Q))),
        I_squared=max(0.0, (Q - df) / Q) if Q > 0 else 0.0,
        tau_squared=max(0.0, (Q - df) / spread) * unit**2,
        tau_squared_reml=_reml(b, v) * unit**2,
    )


def _reml(b: Array, variances: Array) -> float:
    """The τ² of b_k ~ N(β, v_k + τ²) where Σ w² (b − β)² + Σ w²/Σ w = Σ w, w = 1/(v + τ²); 0 where it is below."""

    def slope(tau: float) -> float:
        w = 1.0 / (variances + tau)
        return float(w**2 @ (b - w @ b / w.sum()) ** 2 + (w @ w) / w.sum() - w.sum())

    if slope(0.0) <= 0.0:
        return 0.0
    high = float(variances.max() + np.ptp(b) ** 2)
    while slope(high) > 0.0:
        high *= 2.0
    return float(brentq(slope, 0.0, high, xtol=1e-14 * high, rtol=4.0 * np.finfo(float).eps))
