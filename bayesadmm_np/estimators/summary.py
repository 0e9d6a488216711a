"""The table of coefficients as statisticians know it, with each site's share of the information."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from .._validation import Array
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from .fitted import FittedGLM, Units

__all__ = ["Summary", "SummaryRow", "as_dict", "information_shares", "summarise"]

NORMAL_975 = 1.959963984540054
"""Quantile of the standard normal."""

MOST_SOURCES = 7
"""The prior and the sites whose shares still fit beside the coefficients."""

PER_CLASS = (
    "The rows determine differences between classes only: a single class's standard error, z and P hold the prior's "
    "uncertainty about all classes at once, and are no test."
)
"""Of three classes on."""


@dataclass(frozen=True)
class SummaryRow:
    """One coefficient; all but the first two are None where the family learns no covariance.

    Attributes
    ----------
    name : str
    coef : float
        Posterior mean.
    std_err, z, p_value, low, high : float or None
        Posterior standard deviation, coef/std_err, P(|N(0, 1)| > |z|) and the ends of the central 95 % interval.
    shares : tuple of float, or None
        Share of the prior and of each site in the information on this coefficient. They add up to 1; None where the
        factors do not make up the posterior.
    """

    name: str
    coef: float
    std_err: float | None = None
    z: float | None = None
    p_value: float | None = None
    low: float | None = None
    high: float | None = None
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Summary:
    """A fitted model as a table; `str` prints it.

    Attributes
    ----------
    header : dict of str to str
    rows : tuple of SummaryRow
        Rows in the order of `covariance_`.
    sources : tuple of str
        Sources of the shares: the prior, then the sites in order.
    note : str
    """

    header: Mapping[str, str]
    rows: tuple[SummaryRow, ...]
    sources: tuple[str, ...]
    note: str

    @property
    def _shown(self) -> tuple[str, ...]:
        """Sources whose shares fit beside the coefficients."""
        return self.sources if self.rows[0].shares is not None and len(self.sources) <= MOST_SOURCES else ()

    def __str__(self) -> str:
        titles = ["", "coef", "std err", "z", "P>|z|", "[0.025", "0.975]", *(f"{name} %" for name in self._shown)]
        lines = [titles, *map(self._cells, self.rows)]
        widths = [max(len(line[j]) for line in lines) for j in range(len(titles))]
        table = [
            "  ".join(
                [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in lines
        ]
        rule = "-" * max(map(len, table))
        margin = max(map(len, self.header))
        hang = " " * (margin + 2)
        head = [
            textwrap.fill(text, 80, initial_indent=f"{key + ':':<{margin + 2}}", subsequent_indent=hang)
            for key, text in self.header.items()
        ]
        return "\n".join([*head, "=" * len(rule), table[0].rstrip(), rule, *table[1:], "=" * len(rule), self.note])

    __repr__ = __str__

    def _cells(self, row: SummaryRow) -> list[str]:
        shares = (row.shares or ())[: len(self._shown)]
        return [
            row.name,
            f"{row.coef:.4f}",
            _number(row.std_err, 4),
            _number(row.z, 3),
            _number(row.p_value, 3),
            _number(row.low, 3),
            _number(row.high, 3),
            *(_number(100.0 * share, 1) for share in shares),
        ]

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
        columns = {
            "coef": [row.coef for row in self.rows],
            "std err": [row.std_err for row in self.rows],
            "z": [row.z for row in self.rows],
            "P>|z|": [row.p_value for row in self.rows],
            "[0.025": [row.low for row in self.rows],
            "0.975]": [row.high for row in self.rows],
        }
        for j, source in enumerate(self.sources):
            columns[f"share of {source}"] = [None if row.shares is None else row.shares[j] for row in self.rows]
        return pd.DataFrame(columns, index=[row.name for row in self.rows], dtype=float)


def information_shares(posterior: Gaussian, prior: Gaussian, sites: Sequence[Natural], change: Array) -> Array:
    """Return [Σ P Σ]_jj / Σ_jj for P the precision of the prior and of each site, shape (1 + sites, d).

    Σ is the covariance of `change` @ θ. The precisions add up to Σ⁻¹, so that the shares of a coefficient add up to 1.
    """
    spread = posterior.covariance_matrix @ change.T
    variance = np.einsum("ij,ji->i", change, spread)
    precisions = [prior.precision, *(site.precision for site in sites)]
    moved = [p @ spread if p.ndim == 2 else p[:, None] * spread for p in precisions]
    return np.array([np.einsum("ji,ji->i", spread, each) / variance for each in moved])


def summarise(model: FittedGLM, units: Units = "original") -> Summary:
    """Return the table of a fitted model, in the columns' own units or per standard deviation."""
    rows, names = _rows(model, units), ("prior", *map(str, model.sites))
    table = Summary(_header(model, units), rows, names, "")
    if not model.learns_covariance:
        note = f"{model.method} with the {model.family} family learns no covariance: there are no standard errors."
    else:
        note = "Mean and standard deviation of the posterior"
        note += "; the last columns: where the information comes from." if table._shown else "."
        if model.kind.outputs == "classes" and not model.kind.has_reference:
            note += f"\n{PER_CLASS}"
    return replace(table, note=note)


def as_dict(model: FittedGLM, units: Units = "original") -> dict[str, Any]:
    """Return everything about a fitted model that a program may want to read."""
    names = ("prior", *map(str, model.sites))
    rows = [
        {**asdict(row), "shares": None if row.shares is None else dict(zip(names, row.shares, strict=True))}
        for row in _rows(model, units)
    ]
    proof, distance = model.certificate, model.widest_distance()
    assert proof is not None
    return {
        "status": model.status.name,
        "message": model.message,
        "loss": str(model.kind),
        "target": model.target,
        "classes": list(model.classes),
        "method": model.method,
        "family": model.family,
        "rounds": model.rounds,
        "floats": model.floats,
        "noise_variance": model.noise_variance * model.target_scale**2 if model.kind.has_noise else None,
        "log_likelihood": model.log_likelihood,
        "elbo": model.elbo,
        "sites": {str(name): site.n_rows for name, site in model.sites.items()},
        "exp_coef": model.kind.ratio or None,
        "units": units,
        "coefficients": rows,
        "certificate": {
            "holds": proof.holds,
            "pooled": proof.pooled,
            "tol": proof.tol,
            "edges": asdict(proof.edges),
            "distance": None if distance is None else str(distance),
        },
    }


def _rows(model: FittedGLM, units: Units) -> tuple[SummaryRow, ...]:
    mean, names = model.mean(units), model.coefficient_names
    covariance = model.covariance(units)
    if covariance is None:
        return tuple(SummaryRow(name, float(m)) for name, m in zip(names, mean, strict=True))
    change, _ = model.in_units(units)
    factors = [site.factor for site in model.sites.values()]
    shares = information_shares(model.posterior, model.prior, factors, change).T
    # the factors make up the posterior only where the duals are the sites
    adds_up = bool(np.allclose(shares.sum(axis=1), 1.0, atol=1e-3))
    errors = np.sqrt(np.diagonal(covariance))
    return tuple(
        _row(name, float(m), float(sd), tuple(share.tolist()) if adds_up else None)
        for name, m, sd, share in zip(names, mean, errors, shares, strict=True)
    )


def _row(name: str, mean: float, error: float, shares: tuple[float, ...] | None) -> SummaryRow:
    z = mean / error
    p_value = 2.0 * float(ndtr(-abs(z)))
    low, high = mean - NORMAL_975 * error, mean + NORMAL_975 * error
    return SummaryRow(name, mean, error, z, p_value, low, high, shares)


def _header(model: FittedGLM, units: Units) -> dict[str, str]:
    sites = ", ".join(f"{name} {site.n_rows}" for name, site in model.sites.items())
    header = {
        "Model": model.title,
        "Method": f"{model.method}, {model.family} family, {model.rounds} rounds, {model.floats} numbers sent",
        "Rows": f"{sum(site.n_rows for site in model.sites.values())} at {len(model.sites)} sites: {sites}",
        "Prior precision": _prior_precision(model),
        "Coefficients": "in the columns' own units" if units == "original" else "per pooled standard deviation",
        "Status": model.message,
    }
    if model.log_likelihood is not None and model.elbo is not None:
        header["Log likelihood"] = f"{model.log_likelihood:.6g} at the mean; ELBO {model.elbo:.6g}"
    if model.certificate is not None:
        proof = model.certificate
        verdict = "holds" if proof.holds else "does NOT hold"
        header["Certificate"] = f"pooled stationarity {verdict} to {proof.tol:.0e} (residual {proof.pooled:.1e})"
    distance = model.widest_distance()
    if distance is not None:
        header["Distance"] = str(distance)
    return header


def _prior_precision(model: FittedGLM) -> str:
    """Return the prior precision of the first output's coefficients; the intercept, the last, may have another."""
    values = 1.0 / model.prior.variance[: model.layout.n_features]
    if np.ptp(values) <= 1e-12 * values.max():
        return f"{values[0]:.6g}"
    return f"{values.min():.6g} to {values.max():.6g}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
