"""`bayesadmm compare`: several methods on one data set, beside the pooled answer; a failure is a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .._errors import Words
from ..estimators.search import newton_sites
from ..families import FullGaussian
from ..families.gaussians import FAMILIES
from ..glm.prior import Prior
from ..splitting.average import as_step
from ..splitting.loop import run
from ..splitting.methods import TABLE
from ..splitting.pooled import solve_pooled
from ._kinds import choose_kind
from ._methods import knobs
from ._options import CompareSettings, DataSettings, Files, Json, Names, NoProgress, Spread, at_least, option
from ._rows import rows_of_fit
from ._terminal import Refused, in_options, missing_name, note, require_writable, show, text_table, write_csv

CLOSE = 0.01
"""Standard deviations: close to the pooled answer."""
FLOOR = 1e-9
"""Standard deviations: below, the pooled answer itself is not known better."""
TOL = 1e-6
"""Tolerance on the pooled stationarity residual."""
NO_ROWS = CompareSettings()


@dataclass(kw_only=True)
class Trial:
    """A run of a method: a row of the table, with the distance from the pooled answer after each round."""

    method: str
    family: str
    status: str = "refused"
    rounds: int = 0
    rounds_to_close: int | None = None
    floats: int = 0
    distance_sd: float = float("nan")
    certificate_holds: bool = False
    message: str = ""
    failed: bool = True
    distances: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {name: value for name, value in vars(self).items() if name not in ("failed", "distances")}


@dataclass(frozen=True)
class Comparison:
    """Trials, the nearest to the pooled answer first, with their prior and the methods that it leaves out."""

    trials: list[Trial]
    prior: str
    left_out: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [trial.to_dict() for trial in self.trials]
        return {"close_sd": CLOSE, "prior_precision": self.prior, "left_out": self.left_out, "methods": rows}

    def __str__(self) -> str:
        header = ["method", "family", "rounds", f"to {CLOSE:g} sd", "numbers sent", "distance / sd", "status"]
        keys = ("method", "family", "rounds", "rounds_to_close", "floats", "distance_sd", "status")
        table = text_table(header, [[_cell(getattr(trial, key)) for key in keys] for trial in self.trials], left=2)
        said = f"Distance from the pooled answer of the method's own kind. Prior precision: {self.prior}."
        out = [f"Left out, because they need a prior: {', '.join(self.left_out)}."] if self.left_out else []
        failed = [f"✗ {trial.method}: {trial.message}" for trial in self.trials if trial.failed]
        return "\n".join([table, "", said, *out, *failed])


def compare(
    data: Files,
    /,
    *,
    settings: Annotated[CompareSettings, Spread] = NO_ROWS,
    methods: Annotated[Names, option("Methods to run. Default: all that apply.", "A,B,C")] = (),
    rho: Annotated[float | None, option("ρ > 0, for the methods that have it.")] = None,
    gamma: Annotated[float | None, option("γ in (0, 1], for the methods that have it.")] = None,
    family: Annotated[str, option("Family of the methods that can use either.", choices=("full", "diagonal"))] = "full",
    prior_precision: Annotated[
        float | None,
        option(
            "Prior precision of every coefficient per standard deviation of its column, the intercept too, as most "
            "methods need one. 0 is none, and leaves these out. Default: 1 (of a linear regression 1 over the variance "
            "of the target).",
            check=at_least(0),
        ),
    ] = None,
    rounds: Annotated[int, option("Maximum number of rounds of each method.", check=at_least(1))] = 50,
    out: Annotated[Path | None, option("Folder for the table and the plot.", "DIR")] = None,
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    r"""Run every method that applies on one data set, and compare each with the pooled answer.

    Each method is run once, with exact solves. The distance is the largest of
    |coefficient − pooled coefficient| in posterior standard deviations, where the
    pooled answer is of the method's own kind: the posterior mean of its family, or
    the mode for the methods that work at a point. A method that fails is a row that
    says so. Every coefficient, the intercept too, has a prior here, because most
    methods need one; fit has none by default. --prior-precision 0 leaves out the
    methods that need a prior, and names them.

    Examples of use:
      bayesadmm compare patients.csv --target died --client hospital
      bayesadmm compare patients.csv --target died --client hospital --out results
      bayesadmm compare patients.csv --target died --client hospital \
          --methods PVI,BayesADMM,FedAvg --rho 2 --rounds 200

    With --out: compare.csv (the table), and the distance after each round as
    compare.svg and compare.png.

    Exit codes: 0 the table was made, 2 the command or the data were refused.
    """
    from tqdm import tqdm

    if out is not None:
        require_writable(out)
    for name in methods:
        if name not in TABLE:
            raise Refused(f"--methods: {missing_name('there is no method', name, TABLE)}")
    given = {key: value for key, value in (("rho", rho), ("gamma", gamma)) if value is not None}
    runs = {}
    for name in methods or TABLE:
        method = TABLE[name](**{key: given[key] for key in given if key in knobs(name)})
        allowed = as_step(method).row.families  # a flat prior is for the full family alone
        kind = FAMILIES[family] if not allowed or FAMILIES[family] in allowed else allowed[0]
        if prior_precision != 0.0 or kind is FullGaussian:
            runs[name] = method, kind
    left_out = [name for name in methods or TABLE if name not in runs]
    if not runs:
        raise Refused(f"--prior-precision must be > 0 for all of these: {', '.join(left_out)}.")
    problem = Problem.read(data, settings, prior_precision)
    bar = tqdm(runs.items(), "compare", unit="run", disable=no_progress)
    trials = [problem.trial(name, method, kind, rounds) for name, (method, kind) in bar]
    # those that cannot say how far they are come last
    trials.sort(key=lambda trial: (trial.failed, trial.distances[-1] if trial.distances else np.inf))
    prior = Prior(problem.precision / problem.scale**2, "sd", penalize_intercept=True).words(has_intercept=True)
    found = Comparison(trials, prior, left_out)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / "compare.csv", [trial.to_dict() for trial in trials])
        _draw({trial.method: trial.distances for trial in trials if trial.distances}, out)
        note(f"compare.csv, compare.svg and compare.png written to {out}.")
    show(found, json)


class Problem:
    """The sites' losses in standard units, with the prior's precision, and the pooled answers.

    Columns are standardised, and the target of a linear regression is in units of its standard deviation `scale`; the
    noise is that of pooled least squares.
    """

    def __init__(self, sites: list[str], losses: list[Any], precision: float, scale: float) -> None:
        self.sites, self.losses, self.precision, self.scale = sites, losses, precision, scale
        self.pooled = cache(self._pooled)

    @classmethod
    def read(cls, paths: list[Path], settings: CompareSettings, precision: float | None) -> Problem:
        """Read the rows."""
        rows = rows_of_fit(paths, given := DataSettings(**vars(settings)))
        kind, classes = choose_kind(rows, settings.loss, given)
        kind, scale, noise = kind.identified if precision == 0.0 else kind, 1.0, 1.0
        X = np.concatenate([made.matrix for made in rows.designs.values()])
        spread = X.std(axis=0)
        X = np.column_stack([(X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0), np.ones(len(X))])
        y = np.searchsorted(classes, rows.target) if classes else rows.target
        if kind.has_noise:
            scale = float(y.std()) or 1.0
            y = y / scale
            noise = float(np.sum((y - X @ np.linalg.lstsq(X, y)[0]) ** 2)) / max(len(y) - X.shape[1], 1)
            if not noise > 0.0:
                raise Refused("the columns fit the target exactly: there is no noise to compare methods under.")
        ends = np.cumsum([len(made.y) for made in rows.designs.values()])[:-1]
        parts = zip(np.split(X, ends), np.split(y, ends), strict=True)
        n_outputs = kind.n_outputs(len(classes))
        losses = [kind.make_loss(X, y, np.ones(len(y)), None, n_outputs, noise) for X, y in parts]
        return cls([*rows.designs], losses, 1.0 if precision is None else precision * scale**2, scale)

    def prior(self, kind: Any) -> Any:
        """Return N(0, I/precision) in a family."""
        return kind(np.zeros(self.losses[0].dim), self.precision)

    def _pooled(self, kind: Any, rule: Any) -> Any:
        return solve_pooled(self.losses, self.prior(kind), expectation=rule).posterior

    def trial(self, label: str, method: Any, kind: Any, rounds: int) -> Trial:
        """Run a method."""
        found = Trial(method=label, family=next(name for name, known in FAMILIES.items() if known is kind))
        prior, iterates = self.prior(kind), list[Any]()
        try:
            goal = self.pooled(kind, as_step(method).row.expectation).mean
            unit = np.sqrt(self.pooled(FullGaussian, None).variance)
            # under a flat prior a run begins at the first Newton step
            start = None if self.precision else newton_sites(self.losses, prior, np.zeros(prior.dim))
            options: dict[str, Any] = {"tol": TOL, "sites": start, "raise_on_failure": False}
            result = run(method, self.losses, prior, rounds, callback=lambda _, q: iterates.append(q), **options)
        except (ValueError, RuntimeError) as error:
            found.message = in_options(error)
            return found
        distances = [float(np.max(np.abs(q.mean - goal) / unit)) for q in iterates]
        far = max((k for k, distance in enumerate(distances, 1) if not distance <= CLOSE), default=0)
        found.status, found.rounds, found.failed = (
            result.status.name.lower().replace("_", " "),
            result.rounds,
            result.status.is_failure,
        )
        found.rounds_to_close = far + 1 if far < len(distances) else None
        found.floats = sum(one.floats_down + one.floats_up for one in result.history)
        found.distances, found.distance_sd = tuple(distances), distances[-1] if distances else float("nan")
        found.certificate_holds = not found.failed and result.certificate().is_stationary
        found.message = result.message
        if result.failure is not None:
            found.message = result.failure.worded(Words(client=lambda k: f"site {self.sites[k]!r}"))
        return found


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.1e}"
    return "–" if value is None else str(value)


def _draw(curves: dict[str, tuple[float, ...]], folder: Path) -> None:
    """Draw the distance by round; the nearest six methods have colours, the others are grey."""
    from ..demos import style

    colours = (style.BLUE, style.VERMILION, style.GREEN, style.PURPLE, style.ORANGE, style.INK)
    with style.context():
        figure = style.new_figure(style.WIDTH, 3.4)
        axes = figure.subplots()
        for j, (name, distances) in enumerate(curves.items()):
            colour, label = (colours[j], name) if j < len(colours) else ("#B5B5B5", None)
            rounds = np.arange(1, len(distances) + 1)
            axes.plot(rounds, np.maximum(distances, FLOOR), color=colour, label=label, marker=".", zorder=-j)
        axes.axhline(CLOSE, color=style.MUTED, linewidth=0.6, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="round", ylabel="distance / sd")
        axes.set_title("Distance from the pooled answer by round")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        style.tidy(axes)
        style.save(figure, folder, "compare")
