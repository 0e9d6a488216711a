"""The table of coefficients as statisticians know it, with each site's share of the information."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .._errors import PLAIN, ArgumentError, Words
from .._numerics import driven
from .._text import aligned, word
from .._validation import Array
from ..families.precision import DensePrecision
from ..glm.diagnosis import Finding, diagnose_after, find_same_rows
from ..glm.diagnosis import as_dict as finding_as_dict
from ..glm.firth import firth_answer
from ..glm.hypotheses import NAMES, TermTest, profile_bound
from ..glm.inference import (
    LEVEL,
    Estimate,
    GoodnessOfFit,
    estimate,
    read_level,
    robust_covariance,
)
from ..glm.refit import drive
from ..glm.site_statistics import ROBUST
from ..losses.base import Loss
from .between_sites import DISPERSED, MODEL, QUASI, differing_site, heterogeneity
from .fitted import FittedGLM

WIDEST = 100
"""Columns of a table: shares of the sites that do not fit beside the coefficients stand below them."""

COVARIANCES = (MODEL, QUASI, *ROBUST)

ML = "maximum likelihood"
OF_THE_MAXIMUM = ("aic", "bic", "r_squared", "adjusted_r_squared", "test")
"""Fields of `GoodnessOfFit` that are nothing where the fit is no maximum of the likelihood."""

VISIBLE = 0.0005
"""Share that shows in a table."""

DOMINATED = 0.5
"""Share of the prior in a coefficient from which on a test of it says more about the prior than about the rows."""

FEW_CLUSTERS = 30
"""Below it a covariance by clusters is known to be too small on average (Cameron and Miller 2015, section VI)."""

FAR = 4.0
"""Standard deviations of Pearson's statistic from its mean that are no chance."""


@dataclass(frozen=True)
class SummaryRow(Estimate):
    """One coefficient; all but the first two are None where they would mean nothing.

    Attributes
    ----------
    name : str
    coef : float
        The maximum of the likelihood, or the posterior mean; NaN of a column that depends on others, which the model
        leaves out, and where there is no finite estimate.
    std_err : float or None
        Standard error, or posterior standard deviation.
    statistic, p_value : float or None
        coef/std_err, and its two-sided P under t or the normal. Of a posterior P is twice the probability of the other
        sign. None also where the prior holds more than half of the information, and like all but the first two where
        `coef` is NaN.
    low, high : float or None
        Ends of the central interval, of 95 % or the level of the table.
    shares : tuple of float, or None
        Share of the prior and of each site in the information on this coefficient. They add up to 1; None where the
        factors do not make up the posterior.
    is_intercept : bool
        Whether exp(coef) is the odds or the rate where every column is zero, and no ratio.
    is_auxiliary : bool
        Whether it is a parameter beside the coefficients, such as a cutpoint, of which no test is of interest.
    """

    shares: tuple[float, ...] | None = None
    is_intercept: bool = False
    is_auxiliary: bool = False

    @property
    def has_ratio(self) -> bool:
        """Return whether exp(coef) may be a ratio."""
        return not (self.is_intercept or self.is_auxiliary)


@dataclass(frozen=True)
class Summary:
    """A fitted model as a table; `str` prints it.

    Attributes
    ----------
    facts : tuple of dict of str to str
        The fit as a whole: the left and the right column above the coefficients.
    rows : tuple of SummaryRow
        Rows in the order of `covariance_`; a printed table and `to_frame` have each output's intercept first (`shown`).
    statistic : {'z', 't'}
    ratio : str
        Meaning of exp(coef) where the table is to show it, otherwise empty.
    sources : tuple of str
        Sources of the shares: the prior, then the sites in order.
    header : dict of str to str
        Model and fit, and below the coefficients where they come from.
    note : str
    tests : tuple of TermTest
        Of terms, where they were asked for.
    level : float
        Probability of the intervals.
    """

    facts: tuple[Mapping[str, str], Mapping[str, str]]
    rows: tuple[SummaryRow, ...]
    statistic: str
    ratio: str
    sources: tuple[str, ...]
    header: Mapping[str, str]
    note: str
    tests: tuple[TermTest, ...] = ()
    level: float = LEVEL

    @property
    def ends(self) -> tuple[str, str]:
        """Titles of the columns of intervals."""
        return f"[{0.5 * (1.0 - self.level):.6g}", f"{0.5 * (1.0 + self.level):.6g}]"

    @property
    def shown(self) -> tuple[SummaryRow, ...]:
        """Rows in the order of a printed table: of each output the intercept first, as R has it, then its columns.

        Parameters beside the coefficients stand last.
        """
        found: list[SummaryRow] = []
        begin = 0
        for row in sorted(self.rows, key=lambda row: row.is_auxiliary):
            found.insert(begin if row.is_intercept else len(found), row)
            begin = len(found) if row.is_intercept else begin
        return tuple(found)

    def __str__(self) -> str:
        titles = ["", "coef", "std err", self.statistic, f"P>|{self.statistic}|"]
        titles += [self.ratio] if self.ratio else []
        cells = [[*titles, *self.ends], *map(self._cells, self.shown)]
        table, shares = aligned(cells), self._shares()
        beside = aligned([line + share[1:] for line, share in zip(cells, shares, strict=True)]) if shares else table
        fits = len(beside[0]) <= WIDEST
        lines = beside if fits else table
        width = max(*map(len, lines), 78)
        model, fit, *rest = self.header.items()
        parts = [*_wrapped([model, fit], width), "=" * width, *_paired(*self.facts, width), "=" * width, lines[0]]
        parts += ["-" * width, *lines[1:]]
        if shares and not fits:
            parts += ["-" * width, "Share of the information, %", *_chunks(shares, width)]
        if self.tests:
            parts += ["-" * width, *aligned(_cells_of_tests(self.tests))]
            parts += [line for test in self.tests if test.why for line in textwrap.wrap(str(test), width)]
        return "\n".join([*parts, "=" * width, *textwrap.wrap(self.note, width), *_wrapped(rest, width)])

    __repr__ = __str__

    def _cells(self, row: SummaryRow) -> list[str]:
        cells = [row.name, _scaled(row.coef, 4), _scaled(row.std_err, 3), _scaled(row.statistic, 3), _p(row.p_value)]
        if not self.ratio:
            return [*cells, _scaled(row.low, 3), _scaled(row.high, 3)]
        ratios = row.ratio if row.has_ratio else (None,) * 3
        return [*cells, *(_scaled(value, 3) for value in ratios)]

    def _shares(self) -> list[list[str]]:
        """The table of shares in per cent; empty where there are none, and without a prior that holds nothing."""
        known = [row.shares for row in self.rows if row.shares is not None]
        if not known:
            return []
        shown = [j for j in range(len(self.sources)) if j > 0 or any(shares[0] >= VISIBLE for shares in known)]
        found = [["", *(f"{self.sources[j]} %" for j in shown)]]
        for row in self.shown:
            found.append(
                [row.name, *(_number(None if row.shares is None else 100.0 * row.shares[j], 1) for j in shown)]
            )
        return found

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row a coefficient; shares are fractions.

        Raises
        ------
        ImportError
            When pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas.") from error
        rows = self.shown
        columns = {
            "coef": [row.coef for row in rows],
            "std err": [row.std_err for row in rows],
            self.statistic: [row.statistic for row in rows],
            f"P>|{self.statistic}|": [row.p_value for row in rows],
            self.ends[0]: [row.low for row in rows],
            self.ends[1]: [row.high for row in rows],
        }
        for j, source in enumerate(self.sources):
            columns[f"share of {source}"] = [None if row.shares is None else row.shares[j] for row in rows]
        return pd.DataFrame(columns, index=[row.name for row in rows], dtype=float)


def information_shares(model: FittedGLM, change: Array) -> Array:
    """Return [Σ P Σ]_jj / Σ_jj for P the precision of the prior and of each site, shape (1 + sites, d).

    Σ is the covariance of `change` @ θ. The precisions add up to Σ⁻¹, so that the shares of a coefficient add up to 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # of columns without a unit that a float holds
        spread = model.spread @ change.T / model.scale
        variance = np.einsum("ij,ji->i", change, spread)
    precisions = [model.prior.precision, *(site.factor.precision for site in model.sites.values())]
    moved = [p @ spread if p.ndim == 2 else p[:, None] * spread for p in precisions]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.array([np.einsum("ji,ji->i", spread, each) / variance for each in moved])


def diagnose_fit(model: FittedGLM) -> tuple[Finding, ...]:
    """Name sites of the same rows, coefficients that the prior holds, and digits that estimates lose.

    In the run's coordinates, with the intercept at the centre of the columns: there the arithmetic is done.
    """
    twice = find_same_rows({name: (site.n_rows, site.factor.to_vector()) for name, site in model.sites.items()})
    each = np.eye(model.layout.dim)
    kept = np.flatnonzero(model.shows(each) & model.has_error(each)).tolist()
    # where a shift common to all classes is the prior's alone, the table says so of every coefficient
    if model.family != "full" or model.kind.has_flat_shift or not kept:
        return twice
    shares = information_shares(model, np.eye(model.layout.dim))
    names = [model.coefficient_names[j] for j in kept]
    factor = model.posterior.factor
    own = factor.cholesky.T[:, kept] if model.is_exact and isinstance(factor, DensePrecision) else None
    of: Any = "standard errors" if model.criterion.inference == "likelihood" and own is None else "coefficients"
    precision = model.posterior.precision[np.ix_(kept, kept)]
    return *twice, *diagnose_after(precision, names, shares[0, kept], own, of, model.pull[kept])


def summarise(
    model: FittedGLM,
    *,
    covariance: str = MODEL,
    ratios: bool = False,
    reference: Any = None,
    losses: Sequence[Loss] | None = None,
    tests: Sequence[TermTest] = (),
    level: float = LEVEL,
    words: Words = PLAIN,
) -> Summary:
    """Return the table of a fitted model; see `FederatedGLM.summary`.

    With the `losses` of all sites, in the units of the run, intervals are those of the profile likelihood.
    """
    if ratios and not model.kind.ratio:
        raise ArgumentError("ratios", f"must be False for {model.kind.title}: exp(coef) is no ratio", ratios)
    spread = Spread.of(model, covariance, level)
    rows = _rows(model, spread, reference, losses)
    return Summary(
        facts=_facts(model, spread),
        rows=rows,
        statistic="z" if spread.df is None else "t",
        ratio=model.kind.ratio if ratios else "",
        sources=("prior", *map(str, model.sites)),
        header=_header(model, reference, words),
        note=_note(model, rows, spread, losses is not None),
        tests=tuple(tests),
        level=spread.level,
    )


def as_dict(
    model: FittedGLM,
    *,
    covariance: str = MODEL,
    reference: Any = None,
    losses: Sequence[Loss] | None = None,
    tests: Sequence[TermTest] = (),
    level: float = LEVEL,
    words: Words = PLAIN,
) -> dict[str, Any]:
    """Return everything about a fitted model that a program may want to read; see `summarise`."""
    names = ("prior", *map(str, model.sites))
    spread = Spread.of(model, covariance, level)
    rows = _rows(model, spread, reference, losses)
    plain = []
    for row in rows:
        has_ratio = model.kind.ratio and row.coef == row.coef and row.has_ratio
        told = {name: _finite(value) for name, value in asdict(row).items() if not name.startswith("is_")}
        shares = None if row.shares is None else dict(zip(names, row.shares, strict=True))
        plain.append({**told, "shares": shares, "ratio": row.ratio if has_ratio else None})
    proof, whole = model.record.certificate, model.goodness()
    is_plain = covariance != QUASI and not model.has_noise_of_rounding
    withheld = () if model.is_at_maximum and is_plain else OF_THE_MAXIMUM
    withheld = withheld if is_plain else (*withheld, "log_likelihood")
    assert proof is not None
    return {
        "status": model.record.status.name,
        "message": model.record.message,
        "fit": model.fit_name,
        "loss": str(model.kind),
        "target": model.columns.target,
        "classes": list(map(word, model.columns.classes)),
        "method": model.record.method,
        "family": model.family,
        "rounds": model.record.rounds,
        "floats": model.record.floats,
        "noise_variance": model.criterion.noise_variance if model.kind.has_noise else None,
        "log_likelihood": _finite(_log_likelihood(model, whole)) if is_plain else None,
        "elbo": model.totals.elbo,
        "goodness": None
        if whole is None
        else {name: None if name in withheld else _finite(value) for name, value in asdict(whole).items()},
        "sites": {str(name): site.n_rows for name, site in model.sites.items()},
        "missing": {str(name): site.n_missing for name, site in model.sites.items()},
        "agreed": [] if model.columns.agreement is None else list(model.columns.agreement.lines),
        "weights": None if model.totals.statistics is None else model.totals.statistics.weights,
        "exp_coef": model.kind.ratio or None,
        "covariance": covariance,
        "intervals": "wald" if losses is None else "profile",
        "level": spread.level,
        "statistic": "z" if spread.df is None else "t",
        "df": spread.df,
        "coefficients": plain,
        "tests": [asdict(test) for test in tests],
        "heterogeneity": _between_sites(model, covariance),
        "prior_precision": _prior_precision(model),
        "note": _note(model, rows, spread, losses is not None),
        "findings": [finding_as_dict(finding, words) for finding in model.findings],
        "certificate": {
            "holds": model.holds,
            "pooled": proof.pooled,
            "tol": proof.tol,
            "edges": asdict(proof.edges),
            "distance": model.said_distance(),
        },
    }


@dataclass(frozen=True, eq=False)
class Spread:
    """A covariance in the units of the run, None where the family learns none, and degrees of freedom of t.

    Intervals have the probability `level`.
    """

    name: str
    matrix: Array | None
    df: float | None
    n_clusters: int = 0
    level: float = LEVEL

    @classmethod
    def of(cls, model: FittedGLM, name: str, level: float = LEVEL) -> Spread:
        """Return the spread by a covariance's name."""
        return replace(cls._of(model, name), level=read_level(level))

    @classmethod
    def _of(cls, model: FittedGLM, name: str) -> Spread:
        found, whole = model.totals.statistics, model.goodness()
        is_t = found is not None and found.noise == "estimated" and model.fit_name == ML
        if name == QUASI:
            if model.overdispersion is None or whole is None or model.kind.has_dispersion:
                expected = "must be another for this fit: quasi-likelihood is for counts, by maximum likelihood"
                advice = "'HC1' allows for a variance that is not the model's"
                raise ArgumentError("covariance", expected, repr(name), advice)
            return cls(name, model.overdispersion * model.spread, whole.df_residual)
        if name == MODEL:
            is_t = is_t or (model.kind.has_dispersion and model.fit_name == ML)
            df = whole.df_residual if is_t and whole is not None else None
            known = model.learns_covariance and not model.lacks_noise
            return cls(name, model.spread if known else None, df if known else None)
        if model.criterion.inference == "posterior" or model.family != "full" or found is None:
            expected = f"must be {MODEL!r}: a robust one needs a likelihood of the full family, with statistics"
            raise ArgumentError("covariance", expected, repr(name))
        outputs = model.layout.n_outputs if model.kind.outputs == "columns" else 1
        free = int((~model.superfluous).sum()) // outputs
        bread = model.spread / (model.criterion.noise_variance * model.scale)
        matrix, df = robust_covariance(name, bread, found.total, free, weights=found.weights)
        n_clusters = found.total.n_clusters if name == "cluster" else 0
        if model.has_noise_of_rounding:
            return cls(name, None, None, n_clusters)
        return cls(name, matrix, df if is_t else None, n_clusters)


def _between_sites(model: FittedGLM, covariance: str) -> dict[str, Any] | None:
    """Return the heterogeneity; None where no two sites determine a coefficient, or their own fits are not here."""
    try:
        found = asdict(heterogeneity(model, QUASI if covariance == QUASI else MODEL))
    except ValueError:
        return None
    for row in found["coefficients"]:
        row["sites"] = {str(name): own for name, own in row["sites"].items()}
    return {**found, "left_out": [{**one, "site": str(one["site"])} for one in found["left_out"]]}


def _rows(
    model: FittedGLM, spread: Spread, reference: Any, losses: Sequence[Loss] | None = None
) -> tuple[SummaryRow, ...]:
    change, shift = model.layout.to_user
    names = model.coefficient_names
    if reference is not None:
        apart, names = _differences(model, reference)
        change, shift = apart @ change, apart @ shift
    rows = _wald_rows(model, names, change, shift, spread)
    n_auxiliary = model.columns.n_auxiliary
    no_test: dict[str, Any] = {"statistic": None, "p_value": None, "is_auxiliary": True}
    rows = (*(replace(row, **no_test) for row in rows[:n_auxiliary]), *rows[n_auxiliary:])
    if model.kind.form == "group":  # Wald's interval of a spread knows no zero
        rows = (replace(rows[0], low=None, high=None), *rows[1:])
    return rows if losses is None else _profiled(model, rows, change, shift, spread, losses)


def _profiled(
    model: FittedGLM,
    rows: Sequence[SummaryRow],
    change: Array,
    shift: Array,
    spread: Spread,
    losses: Sequence[Loss],
) -> tuple[SummaryRow, ...]:
    """Put the ends of profile-likelihood intervals into rows that have an interval."""
    if not model.holds:
        raise ArgumentError("intervals", "must be 'wald' for a fit that has not come to its maximum", "'profile'")
    is_penalised = model.criterion.penalty == "firth"
    if not (model.fit_name == ML or is_penalised) or model.kind.has_noise or spread.name != MODEL:
        expected = "must be 'wald' unless the fit is by maximum likelihood, with the model's covariance"
        raise ArgumentError("intervals", expected, "'profile'", "those of least squares are exact")
    mean = model.kept
    loss = None if is_penalised else sum(each.value(mean) for each in losses)

    def end(row: SummaryRow, a: Array, b: float, side: float) -> float | None:
        assert row.std_err is not None
        search = profile_bound(mean, loss, a, row.std_err, side, ~model.held, spread.level)
        if is_penalised:
            found = driven(search, lambda at: [firth_answer(one, at) for one in losses])
        else:
            found = drive(search, losses)
        return None if found is None else float(found + b)

    return tuple(
        replace(row, low=end(row, a, b, -1.0), high=end(row, a, b, 1.0)) if row.std_err else row
        for row, a, b in zip(rows, change, shift, strict=True)
    )


def _wald_rows(
    model: FittedGLM, names: Sequence[str], change: Array, shift: Array, spread: Spread
) -> tuple[SummaryRow, ...]:
    mean = (model.value(change) + shift).tolist()
    inner = np.resize(model.layout.is_intercept, len(names)).tolist()  # rows are in the order of θ, output by output
    if spread.matrix is None:
        each = zip(names, mean, inner, strict=True)
        return tuple(SummaryRow(name, m, is_intercept=is_inner) for name, m, is_inner in each)
    shares = information_shares(model, change).T
    # the factors make up the posterior only where the duals are the sites
    has_error = model.has_error(change)
    known = shares[~np.isnan(mean) & has_error]
    # a site's Hessian need not be definite, and then its part is no share
    adds_up = bool(np.allclose(known.sum(axis=1), 1.0, atol=1e-3) and (known > -1e-3).all())
    errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", change, spread.matrix, change), 0.0))

    def row(name: str, m: float, sd: float, share: Array, is_inner: bool, is_known: bool) -> SummaryRow:
        if m != m or not is_known:
            return SummaryRow(name, m, is_intercept=is_inner)
        is_prior = adds_up and share[0] > DOMINATED
        found = SummaryRow(
            **vars(estimate(name, m, sd, spread.df, spread.level)),
            shares=tuple(share.tolist()) if adds_up else None,
            is_intercept=is_inner,
        )
        return replace(found, statistic=None, p_value=None) if is_prior else found

    return tuple(row(*entry) for entry in zip(names, mean, errors, shares, inner, has_error, strict=True))


def _differences(model: FittedGLM, reference: Any) -> tuple[Array, tuple[str, ...]]:
    """Return the matrix of differences to a class, and their names; a class without coefficients has zeros."""
    layout, labels = model.layout, tuple(map(word, model.columns.classes))
    if word(reference) not in labels:
        raise ArgumentError(
            "reference_class", f"must be a class of this model ({', '.join(labels) or 'it has none'})", repr(reference)
        )
    # the single output of two classes is that of the second
    outputs = model.output_names if model.kind.outputs == "classes" else labels[1:]
    own = np.array([[float(label == name) for name in outputs] for label in labels])
    apart = np.delete(own - own[labels.index(word(reference))], labels.index(word(reference)), axis=0)
    others = [label for label in labels if label != word(reference)]
    columns = layout.columns(model.columns.names)
    return np.kron(apart, np.eye(layout.width)), tuple(
        f"{label} vs {word(reference)}: {column}" for label in others for column in columns
    )


def _facts(model: FittedGLM, spread: Spread) -> tuple[dict[str, str], dict[str, str]]:
    """Return what stands above the coefficients; what holds at a maximum of the likelihood alone only there."""
    whole = model.goodness()
    left = {"Covariance": spread.name if spread.matrix is not None else "none"}
    if spread.n_clusters:
        left["Covariance"] = f"{spread.name}, {spread.n_clusters} of them"
    right = {"Observations": f"{sum(site.n_rows for site in model.sites.values())}"} if model.sites else {}
    likelihood = _log_likelihood(model, whole)
    if likelihood is not None and spread.name != QUASI and not model.has_noise_of_rounding:
        left["Log-likelihood"] = _fact(likelihood)
    if whole is not None:
        right["Observations"] = f"{whole.n_observations:g}"
        left["REML criterion" if model.kind.is_restricted else "Deviance"] = _fact(whole.deviance)
        if whole.null_deviance is not None:
            left["Null deviance"] = _fact(whole.null_deviance)
        if model.is_at_maximum:
            right |= _at_the_maximum(model, whole, is_quasi=spread.name == QUASI)
    if model.kind.form == "group" and model.totals.statistics is not None:
        right["Groups"] = f"{model.totals.statistics.total.n_clusters}"
    if model.kind.derived is not None and spread.matrix is not None and model.has_maximum:
        n = model.columns.n_auxiliary
        for name, (value, error) in model.kind.derived(model.auxiliary, spread.matrix[:n, :n]).items():
            right[name] = _fact(value) + ("" if error is None else f" (SE {_fact(error)})")
    if model.totals.elbo is not None and model.criterion.inference == "posterior":
        right["ELBO"] = _fact(model.totals.elbo)
    return left, right


def _log_likelihood(model: FittedGLM, whole: GoodnessOfFit | None) -> float | None:
    """All constants kept; an estimated noise variance is the most likely one, but that of a posterior is its own."""
    return (
        model.totals.log_likelihood
        if whole is None or model.criterion.inference == "posterior"
        else whole.log_likelihood
    )


def _at_the_maximum(model: FittedGLM, whole: GoodnessOfFit, is_quasi: bool) -> dict[str, str]:
    facts = {"Df residuals, model": f"{whole.df_residual:g}, {whole.df_model:g}"}
    if is_quasi and whole.dispersion is not None:
        return facts | {"Dispersion (Pearson/df)": _fact(whole.dispersion)}
    if whole.r_squared is not None:
        adjusted = "" if whole.adjusted_r_squared is None else f", adjusted {whole.adjusted_r_squared:.4f}"
        facts["R²" if model.kind.has_noise else "Pseudo R² (McFadden)"] = f"{whole.r_squared:z.4f}{adjusted}"
    if model.has_noise_of_rounding:
        return facts
    facts["AIC, BIC"] = f"{_fact(whole.aic)}, {_fact(whole.bic)}"
    if whole.test is not None:
        law = "LR χ²" if whole.test.df_residual is None else "F"
        P = f"{whole.test.p_value:.3g}" if whole.test.p_value > 0 else "<1e-300"
        facts[f"{law}, P"] = f"{whole.test.statistic:.4g}, {P}"
    if whole.dispersion is not None and model.kind.has_noise:
        facts["Residual sd"] = _fact(whole.dispersion**0.5)
    elif whole.dispersion is not None and model.kind.is_of_counts:
        facts["Dispersion (Pearson/df)"] = _fact(whole.dispersion)
    return facts


def _header(model: FittedGLM, reference: Any, words: Words) -> dict[str, str]:
    sites = ", ".join(f"{name} {site.n_rows}" for name, site in model.sites.items())
    family = f"{model.family} family, " if model.criterion.inference == "posterior" else ""
    many = "site" if len(model.sites) == 1 else "sites"
    rounds = "1 round" if model.record.rounds == 1 else f"{model.record.rounds} rounds"
    header = {
        "Model": model.titled(reference),
        "Fit": model.fit_name,
        "Rows": f"{sum(site.n_rows for site in model.sites.values())} at {len(model.sites)} {many}: {sites}"
        if sites
        else "those of all sites, whose shares the server knows",
        "Method": f"{model.record.method}, {family}{rounds}, {model.record.floats} numbers sent",
        "Prior precision": _prior_precision(model),
        "Coefficients": "in the columns' own units",
        "Status": model.record.message,
    }
    left_out = ", ".join(f"{name} {site.n_missing}" for name, site in model.sites.items() if site.n_missing)
    lines = () if model.columns.agreement is None else model.columns.agreement.lines
    if left_out and not lines:  # which say how many and why
        header["Rows"] += f"; left out, because a value is missing: {left_out}"
    if lines:
        header["Agreed"] = "; ".join(lines)
    if model.findings:
        header["Data"] = " ".join(finding.worded(words) for finding in model.findings)
    if model.record.certificate is not None:
        proof = model.record.certificate
        header["Certificate"] = f"{proof.verdict(model.has_maximum)} (residual {proof.pooled:.1e})"
    distance = model.said_distance()
    if distance is not None:
        header["Distance"] = distance
    return header


def _note(model: FittedGLM, rows: Sequence[SummaryRow], spread: Spread, is_profile: bool = False) -> str:
    """Return the sentences that hold of this table: where its numbers come from, and what standard errors rest on."""
    if not model.learns_covariance:
        return (
            f"{model.record.method} with the {model.family} family learns no covariance: there are no standard errors."
        )
    held = ", ".join(name for name, is_held in zip(model.coefficient_names, model.held, strict=True) if is_held)
    several = ", ".join(row.name for row in rows if row.coef == row.coef and row.std_err is None)
    has_no_null = model.totals.statistics is not None and not model.totals.statistics.has_null
    apart, clusters = differing_site(model), spread.n_clusters
    sentences = {
        "The fit is exact up to rounding, so there is no noise variance or dispersion, and no standard error.": (
            model.has_noise_of_rounding
        ),
        "Standard errors are from the information at the mode, and tests are Wald's.": model.criterion.penalty,
        "Mean and standard deviation of the posterior; P is twice the probability of the other sign.": (
            model.criterion.inference == "posterior"
        ),
        "The % columns show how much each site contributes to the information on a coefficient.": (
            any(row.shares is not None for row in rows)
        ),
        f"Left out, because other columns determine them: {held}.": held,
        "There is no null deviance, R² or test of all, as the model of intercepts alone was not found.": (
            has_no_null and not model.kind.is_restricted
        ),
        f"The coefficients are those of minimum norm; the rows do not determine {several}.": model.undetermined.size,
        "A dash (–) means that there is no estimate: see Data below.": any(row.coef != row.coef for row in rows),
        "If the prior contributes more than half of the information on a coefficient, no P value is printed (–).": (
            any(row.p_value is None and row.std_err and not row.is_auxiliary for row in rows)
        ),
        "The target varies more than the model says (dispersion above 1), so these standard errors are likely too "
        "small. Compare those of covariance quasi or HC1.": _is_overdispersed(model, spread),
        "Standard errors are those of the model times the root of the dispersion. A quasi-likelihood has no AIC and no "
        "likelihood ratio.": spread.name == QUASI,
        str(apart): apart,
        f"With {clusters} clusters, fewer than {FEW_CLUSTERS}, these standard errors are usually too small.": (
            0 < clusters < FEW_CLUSTERS
        ),
        "The rows determine only differences between classes. Standard error, z and P of a single class contain the "
        "prior's uncertainty about all classes, and test nothing.": (
            model.kind.has_flat_shift and rows[0].name == model.coefficient_names[0]
        ),
        "Intervals are from the profile likelihood, P values from Wald's test.": is_profile,
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def _is_overdispersed(model: FittedGLM, spread: Spread) -> bool:
    """Return whether a target varies so much that the model's standard errors should be a fifth larger."""
    whole = model.goodness()
    spare = model.overdispersion
    if whole is None or spare is None or spread.name != MODEL:
        return False
    # Pearson's statistic has a mean of `df_residual`, and a standard deviation of √(2/df) of it where counts are large
    rare = 1.0 + FAR * math.sqrt(2.0 / whole.df_residual)
    return spare > max(DISPERSED, rare)


def _prior_precision(model: FittedGLM) -> str:
    """Return the prior as it was stated; of one made in Python the precision of the first output's coefficients."""
    if model.stated is not None:
        return model.stated.words(model.layout.has_intercept)
    if model.fit_name == ML or model.criterion.penalty or model.kind.is_restricted:
        return "none"
    if model.undetermined.size:
        return "below the rounding of the columns"
    is_seen = ~model.held[: model.layout.n_features]
    if model.prior.is_proper:
        values = 1.0 / model.prior.variance[: model.layout.n_features][is_seen]
    else:
        values = np.diagonal(model.prior.precision)[: model.layout.n_features][is_seen]
    if not values.size:
        return "none"
    if np.ptp(values) <= 1e-12 * values.max():
        return f"{values[0]:.6g}"
    return f"{values.min():.6g} to {values.max():.6g}"


# --- Text -----------------------------------------------------------------------------------------------------


def _cells_of_tests(tests: Sequence[TermTest]) -> list[list[str]]:
    law = "χ²" if all(test.df_residual is None for test in tests) else "F"
    lines = [[f"Tests of terms ({NAMES[tests[0].how]}, type {tests[0].type})", law, "df", f"P>{law}"]]
    for test in tests:
        df = f"{test.df}" if test.df_residual is None else f"{test.df}, {test.df_residual:g}"
        lines.append([test.name, _number(test.statistic, 3), df, _p(test.p_value)])
    return lines


def _chunks(lines: list[list[str]], width: int) -> list[str]:
    """Tables of as many columns each as fit."""
    count = len(lines[0]) - 1
    while count > 1 and len(aligned([line[: count + 1] for line in lines])[0]) > width:
        count -= 1
    starts = range(1, len(lines[0]), count)
    return [text for j in starts for text in aligned([[line[0], *line[j : j + count]] for line in lines])]


def _paired(left: Mapping[str, str], right: Mapping[str, str], width: int) -> list[str]:
    """Names and values in two columns."""
    half = (width - 3) // 2
    columns = [
        [f"{name}:{value:>{max(size - len(name) - 1, len(value) + 1)}}" for name, value in facts.items()]
        for facts, size in ((left, half), (right, width - 3 - half))
    ]
    height = max(map(len, columns))
    padded = [column + [""] * (height - len(column)) for column in columns]
    return [f"{a:<{half}}   {b}".rstrip() for a, b in zip(*padded, strict=True)]


def _wrapped(items: Sequence[tuple[str, str]], width: int) -> list[str]:
    margin = max(len(name) for name, _ in items) + 2
    return [
        textwrap.fill(text, width, initial_indent=f"{name + ':':<{margin}}", subsequent_indent=" " * margin)
        for name, text in items
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None or value != value else f"{value:.{digits}f}"


def _scaled(value: float | None, digits: int) -> str:
    """Plain digits where they show the number; otherwise six significant ones."""
    is_plain = value is None or value != value or value == 0 or 1e-4 <= abs(value) < 1e4
    return _number(value, digits) if is_plain else f"{value:.6g}"


def _p(value: float | None) -> str:
    return "<.001" if value is not None and value < 0.0005 else _number(value, 3)


def _fact(value: float) -> str:
    return f"{value:.6g}"


def _finite(value: Any) -> Any:
    """JSON has no infinity: a fit without residuals has no likelihood."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
