"""Kaplan-Meier curves and log-rank tests over sites, from counts in the intervals of a common grid of times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from .._errors import ArgumentError
from .._text import aligned
from .._validation import Array
from ..design.agreement import Table
from ..design.levels import TableError
from ..design.terms import quoted
from .formula_fit import make_designs, split_table


@dataclass(frozen=True, eq=False)
class Curve:
    """A group's counts at each point of the grid, and the chance to be without an event after it.

    `std_err` is Greenwood's; `lower` and `upper` are 95 % limits by the logarithm, `median` has its limits too. All are
    those of R's survfit, and NaN where R has NA.
    """

    at_risk: Array
    events: Array
    censored: Array
    survival: Array
    std_err: Array
    lower: Array
    upper: Array
    median: tuple[float, float, float]

    @classmethod
    def of(cls, grid: Array, cells: Array) -> Curve:
        """Return the curve of events and censored rows, shape (2, m)."""
        events, censored = cells
        at_risk = cells.sum(axis=0)[::-1].cumsum()[::-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            survival: Array = np.cumprod(np.where(at_risk > 0, 1.0 - events / at_risk, 1.0), dtype=np.float64)
            steps = np.where(events > 0, events / (at_risk * (at_risk - events)), 0.0)
            relative = np.sqrt(np.cumsum(steps))
            ends = [survival * np.exp(sign * norm.ppf(0.975) * relative) for sign in (-1.0, 1.0)]
            lower, upper = (np.where(survival > 0, np.minimum(end, 1.0), np.nan) for end in ends)
            median = _half(grid, survival), _half(grid, lower), _half(grid, upper)
            return cls(at_risk, events, censored, survival, survival * relative, lower, upper, median)


def _half(grid: Array, curve: Array) -> float:
    """Return the time at which a curve is a half; in the middle of a step of exactly that height, as in R."""
    near = np.sqrt(np.finfo(float).eps)
    kept = curve < 0.5 + near
    times, heights = grid[kept], curve[kept]
    if not times.size:
        return float("nan")
    below = times[heights < heights[0]]
    return float((times[0] + below[0]) / 2 if abs(heights[0] - 0.5) < near and below.size else times[0])


@dataclass(frozen=True)
class LogRank:
    """A log-rank test: events by group, observed and expected of equal hazards, χ² and its P value, as of survdiff."""

    observed: tuple[float, ...]
    expected: tuple[float, ...]
    statistic: float
    df: int
    p_value: float

    @classmethod
    def of(cls, strata: Sequence[Array]) -> LogRank:
        """Return the test of cells by stratum, each of shape (groups, 2, m)."""
        observed, expected = np.zeros((2, len(strata[0])))
        variance = np.zeros((len(observed), len(observed)))
        for cells in strata:
            n = cells.sum(axis=1)[:, ::-1].cumsum(axis=1)[:, ::-1]
            there = n.sum(axis=0) > 0
            n, d, total = n[:, there], cells[:, 0].sum(axis=0)[there], n.sum(axis=0)[there]
            share = n / total
            weight = d * (total - d) / np.maximum(total - 1.0, 1.0)
            observed = observed + cells[:, 0].sum(axis=1)
            expected = expected + share @ d
            variance = variance + np.diag(share @ weight) - (share * weight) @ share.T
        apart = observed - expected
        solved, _, df, _ = np.linalg.lstsq(variance, apart, rcond=1e-10)  # of a rank less than the groups
        found = float(apart @ solved)
        return cls(
            tuple(observed.tolist()), tuple(expected.tolist()), found, int(df), float(chi2.sf(found, max(df, 1)))
        )


@dataclass(frozen=True, eq=False)
class SurvivalTable:
    """Kaplan-Meier curves by group over all sites, on a grid of times; `str` prints them, `plot` draws them.

    `tests` compare the groups, "pooled" and "stratified by site"; of one group there is none. `sites` has the rows of
    each site, and `missing` those left out.
    """

    by: str | None
    grid: Array
    curves: Mapping[str, Curve]
    tests: Mapping[str, LogRank]
    sites: Mapping[str, int]
    missing: Mapping[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        heads, lines = [["" if self.by is None else self.by, "rows", "events", "median [95 %]"]], []
        for name, curve in self.curves.items():
            cells = "{:.0f}|{:.0f}|{:.6g} [{:.6g}, {:.6g}]".format(curve.at_risk[0], curve.events.sum(), *curve.median)
            heads.append([name, *cells.replace("nan", "–").split("|")])
        lines.append(["time", *(cell for name in self.curves for cell in ("at risk", f"{name} [95 %]"))])
        for j, time in enumerate(self.grid):
            lines.append([f"{time:.6g}"])
            for c in self.curves.values():
                ends = f"[{c.lower[j]:.3f}, {c.upper[j]:.3f}]".replace("nan", "–")
                lines[-1] += [f"{c.at_risk[j]:.0f}", f"{c.survival[j]:.3f} {ends}"]
        notes = [
            f"Log-rank test, {name}: χ² {test.statistic:.4f}, df {test.df}, P {test.p_value:.4g}"
            for name, test in self.tests.items()
        ]
        for says, counts in (("Rows", self.sites), ("Rows left out, since a value is missing", self.missing)):
            listed = ", ".join(f"{site} {n}" for site, n in counts.items() if n)
            notes += [f"{says}: {listed}"] if listed else []
        return "\n".join([*aligned(heads), "", *(text.rstrip() for text in aligned(lines, 0)), "", *notes])

    def plot(self, figure: Any) -> None:
        """Draw each group's curve as steps, with its band, into a matplotlib figure."""
        axes = figure.subplots()
        times = np.concatenate([[0.0], self.grid])
        for name, curve in self.curves.items():
            (drawn,) = axes.step(times, [1.0, *curve.survival], where="post", label=name)
            band = [1.0, *curve.lower], [1.0, *curve.upper]
            axes.fill_between(times, *band, step="post", color=drawn.get_color(), alpha=0.15, linewidth=0)
        axes.set(xlabel="time", ylabel="share without an event", ylim=(0.0, 1.02), xlim=(0.0, times[-1]))
        if len(self.curves) > 1:
            axes.legend(title=self.by, frameon=False)


def survival_table(
    data: Any,
    time: str,
    status: str,
    by: str | None = None,
    client: str | None = None,
    *,
    grid: str | Sequence[float],
    minimum_count: int = 3,
) -> SurvivalTable:
    """Return Kaplan-Meier curves and log-rank tests over sites, from each site's counts on a grid of times.

    Works in one process; of each site only the number of events and of censored rows by group and point of the grid is
    used. Each time counts as the first point of the grid that is not below it.

    Parameters
    ----------
    data : frame, mapping from names to columns, or mapping from sites to tables
    time, status : str
        Columns, or expressions of columns such as "status == 2"; a status is 1 for an event, 0 for a censored row.
    by : str, optional
        Column of groups.
    client : str, optional
        Column of sites in one table.
    grid : str or sequence of float
        Rising times, or "0:1000:30": from 0 in steps of 30 to the first point that is not below 1000.
    minimum_count : int, default 3
        Least number of events, and of censored rows, that a site's group may have at a point where it has some. A time
        is not moved to the next point in place of a refusal: curves and tests would then be others.

    Raises
    ------
    ValueError
        When the grid does not rise, or ends before the last time; when a time is negative, a status neither 0 nor 1,
        or a number of rows at a point too small.

    Examples
    --------
    >>> table = {"days": [10, 20, 20, 35, 40, 60], "died": [1, 1, 0, 1, 0, 1]}
    >>> found = survival_table(table, "days", "died", grid="0:60:20", minimum_count=1)
    >>> found.curves["all"].survival.round(4).tolist()
    [1.0, 0.6667, 0.4444, 0.0]
    """
    points, tables = _points(grid), split_table(data, client)
    known = {str(name) for table in tables.values() for name in Table.of(table).names}
    time, status = (quoted(name) if name in known else name for name in (time, status))
    right = "1" if by is None else f"C({quoted(by)})"
    agreement, designs = make_designs(tables, f"Surv({time}, {status}) ~ {right}")
    groups = ("all",) if by is None else agreement.columns[by].levels
    cells = {}
    for site, made in designs.items():
        codes: Any = (made.matrix @ np.arange(1, len(groups))).astype(int)
        cells[site] = counts_on_grid(made.y, codes, points, len(groups), site)
        small = int(((cells[site] > 0) & (cells[site] < minimum_count)).sum())
        if small:
            fact = f"has fewer than {minimum_count} events, or censored rows, of a group at {small} points of the grid"
            raise TableError(fact, "choose fewer points, or a smaller minimum if the owners of the rows agree", site)
    whole = np.sum([*cells.values()], axis=0)
    return SurvivalTable(
        by,
        points,
        {name: Curve.of(points, own) for name, own in zip(groups, whole, strict=True)},
        {} if by is None else {"pooled": LogRank.of([whole]), "stratified by site": LogRank.of([*cells.values()])},
        {site: int(one.sum()) for site, one in cells.items()},
        {site: made.n_dropped for site, made in designs.items()},
    )


def _points(grid: str | Sequence[float]) -> Array:
    try:
        if isinstance(grid, str):
            first, last, step = map(float, grid.split(":"))
            grid = [*(first + step * np.arange(np.ceil((last - first) / step - 1e-9) + 1))]
        points = np.asarray(grid, dtype=np.float64)
    except (ValueError, ArithmeticError) as error:
        raise ArgumentError("grid", "must be times, or from:to:step as 0:1000:30", repr(grid)) from error
    if points.ndim != 1 or not points.size or not np.isfinite(points).all() or (np.diff(points) <= 0).any():
        raise ArgumentError("grid", "must rise from point to point", repr(grid))
    return points


def counts_on_grid(y: Array, codes: Any, grid: Array, n_groups: int, site: str) -> Array:
    """Return a site's events and censored rows by group and point of the grid, shape (groups, 2, m)."""
    time, status = y.T
    if (time < 0).any():
        raise TableError(f"has {int((time < 0).sum())} negative time(s)", "correct them, or leave them empty", site)
    strange = status[(status != 0) & (status != 1)]
    if strange.size:
        hint = "write 1 for an event and 0 for a censored row, or an expression as status == 2"
        raise TableError(f"has the status {strange[0]:g}, which is neither 0 nor 1", hint, site)
    if (time > grid[-1]).any():
        beyond = f"{int((time > grid[-1]).sum())} of site {site!r}"
        raise ArgumentError("grid", f"must not end before the last time, and {beyond} lie beyond {grid[-1]:g}")
    cells = np.zeros((n_groups, 2, len(grid)))
    np.add.at(cells, (codes, 1 - status.astype(int), np.searchsorted(grid, time)), 1.0)
    return cells
