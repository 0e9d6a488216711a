"""Heterogeneity between sites: a two-stage meta-analysis of the sites' own maximum-likelihood fits.

Each site fits its rows alone. For each coefficient the estimates of the sites that determine it are combined: Cochran's
Q, I², τ² and pooled estimates, by the formulas of Viechtbauer's metafor (J. Stat. Softw. 36(3), 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.special import chdtrc, ndtri

from .._errors import ArgumentError
from .._numerics import EPS
from .._text import aligned
from .._threads import one_thread_if_small, one_thread_where_small
from .._validation import Array
from ..glm.inference import Estimate, Test, estimate
from .fitted import FittedGLM
from .settings import read_choice

MODEL = "model"
"""The covariance that the model's own variance gives."""

QUASI = "quasi"
"""The model's times Pearson's χ² over its degrees of freedom, with t: quasi-likelihood (Wedderburn 1974)."""

DISPERSED = 1.44
"""Pearson's χ² over its degrees of freedom at which standard errors should be 1.2 times as large: 1.2²."""

CHANCE = 1e-6
"""P below which the table names a site that differs: practice that differs between hospitals is for `heterogeneity`."""

ENOUGH = 10
"""Rows a coefficient from which on a site's own coefficients are about normal."""

UNDETERMINED, SEPARATED = "its rows do not determine them", "its rows separate the outcome: no finite estimate"
NO_VARIANCE, NO_FIT = "its fit is exact, so it has no noise variance", "it has sent no fit of its own"


@dataclass(frozen=True)
class RandomEffects:
    """The mean of a coefficient that varies between sites as N(β, τ²).

    Attributes
    ----------
    pooled : Estimate
        β = Σ w_k β_k / Σ w_k with w_k = 1/(v_k + τ²); standard error 1/√Σ w_k, z and a normal interval.
    prediction : tuple of float
        95 % interval for the coefficient of a new site, β ± 1.96 √(se² + τ²), as metafor's `predict` has it.
    """

    pooled: Estimate
    prediction: tuple[float, float]


@dataclass(frozen=True)
class CoefficientHeterogeneity:
    """A coefficient over the sites that determine it; the rows of a forest plot are `sites`.

    Attributes
    ----------
    name : str
    sites : dict of Estimate
        Own estimate β_k and standard error √v_k by site, with a normal interval.
    Q : Test
        Q = Σ w_k (β_k − β̄)² with w_k = 1/v_k and β̄ the fixed-effect estimate; a χ² where all sites have one value.
    I_squared : float
        Share of the variation that is more than chance: max(0, (Q − df)/Q) (Higgins and Thompson 2002).
    tau_squared, tau_squared_reml : float
        Variance τ² between sites: DerSimonian's and Laird's, and by restricted maximum likelihood.
    fixed : Estimate
        β̄ = Σ w_k β_k / Σ w_k, its standard error 1/√Σ w_k.
    random_dl, random : RandomEffects
        With these two τ², in this order.
    """

    name: str
    sites: Mapping[Any, Estimate]
    Q: Test
    I_squared: float
    tau_squared: float
    tau_squared_reml: float
    fixed: Estimate
    random_dl: RandomEffects
    random: RandomEffects


@dataclass(frozen=True)
class LeftOut:
    """Coefficients that a site has no part in, and why."""

    site: Any
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Heterogeneity:
    """Disagreement of the sites of a fit; `str` prints it.

    Attributes
    ----------
    test : Test
        That all sites have the same coefficients: the multivariate Q = Σ_k (b_k − β̂)ᵀ V_k⁻¹ (b_k − β̂), b_k and V_k
        the coefficients that site k determines and their covariance, β̂ the generalised least-squares estimate. A χ²
        with (K − 1) d degrees of freedom, less those of coefficients that a site lacks.
    coefficients : tuple of CoefficientHeterogeneity
        Coefficients that at least two sites determine.
    left_out : tuple of LeftOut
        Sites without some of these coefficients.
    not_compared : tuple of str
        Coefficients that fewer than two sites determine, such as the intercept of one site.
    dispersion : float or None
        Pearson's χ² of the pooled fit of counts over its degrees of freedom; None of other targets.
    is_scaled : bool
        Whether each site's variances are times its own dispersion.
    """

    test: Test
    coefficients: tuple[CoefficientHeterogeneity, ...]
    left_out: tuple[LeftOut, ...]
    not_compared: tuple[str, ...] = ()
    dispersion: float | None = None
    is_scaled: bool = False

    def __str__(self) -> str:
        apart = [["", "Q", "df", "P", "I² %", "τ DL", "τ REML"]]
        pooled = [["", "fixed", "std err", "random", "std err", "[0.025", "0.975]", "new site", ""]]
        for row in self.coefficients:
            tau = (f"{square**0.5:.4g}" for square in (row.tau_squared, row.tau_squared_reml))
            Q = f"{row.Q.statistic:.3f}", f"{row.Q.df}", f"{row.Q.p_value:.3f}", f"{100 * row.I_squared:.1f}"
            apart.append([row.name, *Q, *tau])
            mean = row.random.pooled
            shown = (row.fixed.coef, row.fixed.std_err, mean.coef, mean.std_err, mean.low, mean.high)
            pooled.append([row.name, *(f"{value:.4g}" for value in (*shown, *row.random.prediction))])
        tables = [aligned(apart), aligned(pooled)]
        rule = "-" * max(len(table[0]) for table in tables)
        every = {row.name for row in self.coefficients}
        note = [
            f"Without site {one.site}{'' if every == {*one.names} else ', of ' + ', '.join(one.names)}: {one.reason}."
            for one in self.left_out
        ]
        if self.not_compared:
            note += [f"Not compared, as fewer than two sites determine them: {', '.join(self.not_compared)}."]
        note += ["From each site's own fit. Q (Cochran) tests whether sites have the same coefficient; I² is the share"]
        note += ["of the variation that is more than chance; τ is the sd between sites, by DerSimonian and Laird and"]
        note += ["by REML. The random-effects mean, its interval and that for a new site are by REML."]
        if self.is_scaled:
            note += ["Variances are times the dispersion of each site's counts."]
        elif self.dispersion is not None and self.dispersion > DISPERSED:
            note += [f"The counts vary {self.dispersion:.4g} times as much as the model says, which looks like"]
            note += ["disagreement here; covariance quasi allows for it."]
        return "\n".join([str(self.test), rule, *tables[0], rule, *tables[1], rule, *note])

    __repr__ = __str__


def heterogeneity(model: Any, covariance: str = MODEL) -> Heterogeneity:
    """Compare the sites of a fit by maximum likelihood, by a two-stage meta-analysis of their own fits.

    Each site's estimates and standard errors are those of its rows alone; of least squares with its own residual
    variance. A site has no part in a coefficient that its rows do not determine, or that a separation of its rows makes
    infinite. The law of Q is that of many rows a site.

    Parameters
    ----------
    model : FittedGLM or estimator
    covariance : {'model', 'quasi'}
        "quasi" takes each site's variances times the dispersion of its own counts.

    Raises
    ------
    ValueError
        When the fit is another one, or no coefficient is determined by two sites.

    Examples
    --------
    >>> from bayesadmm_np.estimators import FederatedLinearRegression, heterogeneity
    >>> x = [float(i) for i in range(12)]
    >>> y = [2.0 * i + (i % 3) for i in x] + [2.2 * i + (i % 2) + 5.0 for i in x]
    >>> model = FederatedLinearRegression().fit([[i] for i in x + x], y, client=["a"] * 12 + ["b"] * 12)
    >>> row = heterogeneity(model).coefficients[0]
    >>> print(row.Q, round(row.fixed.coef, 3))
    x0: χ²(1) = 3.713, P = 0.054 2.175
    """
    model = getattr(model, "fitted_", model)
    if not isinstance(model, FittedGLM):
        raise ArgumentError("model", "must be an estimator after fit, or its fitted_", type(model).__name__)
    with one_thread_if_small(model.layout.dim):
        return _heterogeneity(model, covariance)


def _heterogeneity(model: FittedGLM, covariance: str) -> Heterogeneity:
    if model.fit_name != "maximum likelihood" or model.family != "full":
        raise ValueError(
            f"a test of sites against each other needs a fit by maximum likelihood, not: {model.fit_name}."
        )
    spare = model.overdispersion
    is_scaled = read_choice(covariance, "covariance", (MODEL, QUASI)) == QUASI
    if is_scaled and spare is None:
        raise ArgumentError("covariance", "must be 'model' for this fit: quasi-likelihood is for counts", repr(QUASI))
    change, shift = model.layout.to_user
    estimates = _SiteEstimates.of(model, change, shift, is_scaled)
    shared = estimates.shared
    names = np.array(model.coefficient_names)
    if not shared:
        said = [f"site {one.site}: {one.reason}" for one in estimates.left_out(estimates.places, names)]
        raise ValueError(
            "a test of sites against each other needs a coefficient that two sites determine, got "
            f"{'; '.join(said) or 'none'}."
        )
    Q, df = _cochran([estimates.whitened(site, shared) for site in estimates.values])
    return Heterogeneity(
        test=Test("the same coefficients at all sites", Q, df, None, float(chdtrc(df, Q))),
        coefficients=tuple(estimates.coefficient(j, str(names[j])) for j in shared),
        left_out=estimates.left_out(shared, names),
        not_compared=tuple(str(names[j]) for j in estimates.places if j not in shared),
        dispersion=spare,
        is_scaled=is_scaled,
    )


@dataclass(frozen=True)
class DifferingSite:
    """A site whose slopes are not those of the others; `str` is a sentence.

    `sites` are both where there are two; `test` is Wald's, that the site has the slopes of the others together.
    """

    sites: tuple[Any, ...]
    test: Test

    def __str__(self) -> str:
        names = " and ".join(repr(str(site)) for site in self.sites)
        chance = f"P = {self.test.p_value:.0e}" if self.test.p_value > 0 else "P < 1e-300"
        who = f"Site {names} differs from the others" if len(self.sites) == 1 else f"Sites {names} differ"
        return f"{who} in slope ({chance}): is the outcome coded alike? `heterogeneity` shows each site's own slopes."


@one_thread_where_small(lambda model: model.layout.dim)
def differing_site(model: FittedGLM) -> DifferingSite | None:
    """Return the site whose own slopes differ most from the others', where that is chance at no P above `CHANCE`.

    With b and V of the site's slopes and their covariance, b' and V' of the others' together, W = (b − b')ᵀ (V + V')⁻¹
    (b − b'), by which the Q of all slopes is less without the site. P is times the number of sites; a site counts that
    has `ENOUGH` rows a coefficient. Variances are times a site's dispersion of counts above 1.
    """
    if model.fit_name != "maximum likelihood" or model.family != "full":
        return None
    estimates = _SiteEstimates.of(model, *model.layout.to_user, model.kind.is_of_counts, least=1.0)
    slopes = [j for j in estimates.shared if not model.layout.is_intercept[j]]
    each = {site: estimates.whitened(site, slopes) for site in estimates.values}
    worst: DifferingSite | None = None
    if not slopes:
        return None
    whole, df_whole = _cochran([*each.values()])
    for name in each:
        if model.sites[name].n_rows < ENOUGH * len(estimates.values[name]):
            continue
        rest, df_rest = _cochran([each[site] for site in each if site != name])
        W, df = whole - rest, df_whole - df_rest
        P = min(1.0, len(each) * float(chdtrc(df, W))) if df else 1.0
        if P < CHANCE and (worst is None or worst.test.statistic < W):
            sites = (name,) if len(each) > 2 else tuple(each)
            worst = DifferingSite(sites, Test("the slopes of the others", W, df, None, P))
    return worst


@dataclass(frozen=True)
class _SiteEstimates:
    """Estimates of the sites' own fits of the coefficients at some places in θ.

    Each site and place has an estimate, and a row h of a matrix with covariances hᵀh'; or why there is none.
    """

    places: list[int]
    values: Mapping[Any, Mapping[int, float]]
    half: Mapping[Any, Mapping[int, Array]]
    reasons: Mapping[Any, Mapping[int, str]]

    @classmethod
    def of(cls, model: FittedGLM, change: Array, shift: Array, is_scaled: bool, least: float = 0.0) -> _SiteEstimates:
        """Read the own fits in units of a table; `is_scaled` takes dispersions of counts, but not below `least`."""
        change = change * ~model.held  # whose coefficients are zero
        places = np.flatnonzero(change.any(axis=1)).tolist()
        estimated = model.kind.has_noise and model.totals.noise in (None, "estimated")
        values: dict[Any, dict[int, float]] = {}
        half: dict[Any, dict[int, Array]] = {}
        reasons: dict[Any, dict[int, str]] = {}
        for name, site in model.sites.items():
            own = site.own
            variance = model.criterion.noise_variance if model.kind.has_noise else 1.0
            if own is not None and (estimated or is_scaled):
                variance = own.dispersion if estimated else max(least, own.dispersion)
            values[name], half[name] = {}, {}
            if own is None or not variance > 0:
                reasons[name] = dict.fromkeys(places, NO_FIT if own is None else NO_VARIANCE)
                continue
            is_known, is_apart, found = own.combine(change[places])
            known = np.array(places)[is_known]
            values[name] = dict(zip(known.tolist(), (change @ own.mean + shift)[known].tolist(), strict=True))
            half[name] = dict(zip(known.tolist(), np.sqrt(variance) * found, strict=True))
            lost = zip(places, is_known, is_apart, strict=True)
            reasons[name] = {j: SEPARATED if apart else UNDETERMINED for j, is_there, apart in lost if not is_there}
        return cls(places, values, half, reasons)

    @property
    def shared(self) -> list[int]:
        """Places that at least two sites determine."""
        return [j for j in self.places if sum(j in own for own in self.values.values()) > 1]

    def left_out(self, places: Sequence[int], names: NDArray[Any]) -> tuple[LeftOut, ...]:
        """Return by site and reason what a site has no part in."""
        return tuple(
            LeftOut(site, lost, reason)
            for site, own in self.reasons.items()
            for reason in dict.fromkeys(own[j] for j in places if j in own)
            if (lost := tuple(str(names[j]) for j in places if own.get(j) == reason))
        )

    def whitened(self, site: Any, places: Sequence[int]) -> tuple[Array, Array]:
        """Return W, shape (m, places), and t of the m places that a site determines: Wβ = t with unit variances."""
        own = [j for j in places if j in self.half[site]]
        if not own:
            return np.zeros((0, len(places))), np.zeros(0)
        half = np.array([self.half[site][j] for j in own])
        values = np.array([self.values[site][j] for j in own])
        picks = np.eye(len(places))[np.searchsorted(places, own)]
        root = np.linalg.qr(half.T, mode="r")  # RᵀR is the covariance
        return solve_triangular(root, picks, trans="T"), solve_triangular(root, values, trans="T")

    def coefficient(self, place: int, name: str) -> CoefficientHeterogeneity:
        """Combine one coefficient."""
        sites = [site for site, own in self.values.items() if place in own]
        b = np.array([self.values[site][place] for site in sites])
        deviations = np.array([np.linalg.norm(self.half[site][place]) for site in sites])
        unit = 2.0 ** np.round(np.log2(deviations.max()))  # no digit is lost, and squares of weights are numbers
        b, v = b / unit, (deviations / unit) ** 2
        w = 1.0 / v
        fixed, df = float(w @ b / w.sum()), len(b) - 1
        Q = float(w @ (b - fixed) ** 2)
        spread = float(w.sum() - (w @ w) / w.sum())  # 0 where one site has nearly all of the weight
        dl, reml = max(0.0, (Q - df) / spread) if spread > 0 else 0.0, _reml(b, v)
        return CoefficientHeterogeneity(
            name=name,
            sites={site: estimate(str(site), *own) for site, *own in zip(sites, b * unit, deviations, strict=True)},
            Q=Test(name, Q, df, None, float(chdtrc(df, Q))),
            I_squared=max(0.0, (Q - df) / Q) if Q > 0 else 0.0,
            tau_squared=dl * unit**2,
            tau_squared_reml=reml * unit**2,
            fixed=estimate(name, fixed * unit, unit / np.sqrt(w.sum())),
            random_dl=_random_effects(name, b, v, dl, unit),
            random=_random_effects(name, b, v, reml, unit),
        )


def _cochran(parts: Sequence[tuple[Array, Array]]) -> tuple[float, int]:
    """Return Σ|Wβ − t|² at the β that makes it least, and its degrees of freedom, in columns of whatever units."""
    rows, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    rows = rows[:, rows.any(axis=0)]
    axes = np.linalg.qr(rows / np.linalg.norm(rows, axis=0))[0]
    left = values - axes @ (axes.T @ values)
    return float(left @ left), len(values) - rows.shape[1]


def _random_effects(name: str, b: Array, v: Array, tau_squared: float, unit: float) -> RandomEffects:
    w = 1.0 / (v + tau_squared)
    mean, error = float(w @ b / w.sum()), float(w.sum() ** -0.5)
    reach = float(ndtri(0.975) * np.sqrt(error**2 + tau_squared))
    ends = float((mean - reach) * unit), float((mean + reach) * unit)
    return RandomEffects(estimate(name, mean * unit, error * unit), ends)


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
    return float(brentq(slope, 0.0, high, xtol=1e-14 * high, rtol=4.0 * EPS))
