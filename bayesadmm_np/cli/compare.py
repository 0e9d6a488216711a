"""`bayesadmm compare`: several methods on one data set, beside the pooled answer; a failure is a row."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
from ._terminal import Refused, in_options, missing_name, show, text_table

CLOSE = 0.01
"""Standard deviations: close to the pooled answer."""
TOL = 1e-6
"""Tolerance on the pooled stationarity residual."""
NO_ROWS = CompareSettings()


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
    json: Json = False,
    no_progress: NoProgress = False,
) -> None:
    r"""Run every method that applies on one data set, and compare each with the pooled answer.

    Each method is run once, with exact solves. The distance is the largest of
    |coefficient − pooled coefficient| in posterior standard deviations, where the
    pooled answer is of the method's own kind: the posterior mean of its family, or
    the mode for the methods that work at a point. The line of a method that fails
    says why. Every coefficient, the intercept too, has a prior here, because most
    methods need one; fit has none by default. --prior-precision 0 leaves out the
    methods that need a prior, and names them.

    Examples of use:
      bayesadmm compare patients.csv --target died --client hospital
      bayesadmm compare patients.csv --target died --client hospital \
          --methods PVI,BayesADMM,FedAvg --rho 2 --rounds 200

    --json has the distance after each round, too.

    Exit codes: 0 the table was made, 2 the command or the data were refused.
    """
    from tqdm import tqdm

    for name in methods:
        if name not in TABLE:
            raise Refused(f"--methods: {missing_name('there is no method', name, TABLE)}")
    given = {key: value for key, value in (("rho", rho), ("gamma", gamma)) if value is not None}
    runs = {}
    for name in methods or TABLE:
        method = TABLE[name](**{key: given[key] for key in given if key in knobs(name)})
        allowed = as_step(method).row.families  # a flat prior is for the full family alone
        chosen = FAMILIES[family] if not allowed or FAMILIES[family] in allowed else allowed[0]
        if prior_precision != 0.0 or chosen is FullGaussian:
            runs[name] = method, chosen
    left_out = [name for name in methods or TABLE if name not in runs]
    if not runs:
        raise Refused(f"--prior-precision must be > 0 for all of these: {', '.join(left_out)}.")
    problem = Problem.read(data, settings, prior_precision)
    bar = tqdm(runs.items(), "compare", unit="run", disable=no_progress)
    trials = [problem.trial(name, method, chosen, rounds) for name, (method, chosen) in bar]
    # those that cannot say how far they are come last
    trials.sort(key=lambda trial: (trial.failed, trial.distances[-1] if trial.distances else np.inf))
    prior = Prior(problem.precision / problem.scale**2, "sd", penalize_intercept=True)  # of a column
    show(Comparison(prior.words(has_intercept=True), left_out, trials), json)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of a method, with the distance from the pooled answer after each round."""

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


@dataclass(frozen=True)
class Comparison:
    """Trials, the nearest to the pooled answer first, with their prior and the methods that the prior leaves out."""

    prior: str
    left_out: list[str]
    trials: list[Trial]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rows = list(map(asdict, self.trials))
        return {"close_sd": CLOSE, "prior_precision": self.prior, "left_out": self.left_out, "methods": rows}

    def __str__(self) -> str:
        header = ["method", "family", "rounds", f"to {CLOSE:g} sd", "numbers sent", "distance / sd", "status"]
        keys = ("method", "family", "rounds", "rounds_to_close", "floats", "distance_sd", "status")
        table = text_table(header, [[_cell(getattr(trial, key)) for key in keys] for trial in self.trials], left=2)
        said = f"Distance from the pooled answer of the method's own kind. Prior precision: {self.prior}."
        out = [f"Left out, because they need a prior: {', '.join(self.left_out)}."] if self.left_out else []
        failed = [f"✗ {trial.method}: {trial.message}" for trial in self.trials if trial.failed]
        return "\n".join([table, "", said, *out, *failed])


@dataclass(frozen=True, eq=False)
class Problem:
    """The sites' losses in standard units, with the precision of the prior there.

    Columns are standardised, and the target of a linear regression is in units of its standard deviation `scale`; the
    noise is that of pooled least squares.
    """

    sites: list[str]
    losses: list[Any]
    precision: float
    scale: float

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

    def prior(self, family: Any) -> Any:
        """Return N(0, I/precision) in a family."""
        return family(np.zeros(self.losses[0].dim), self.precision)

    @cache  # noqa: B019  # of one problem a process
    def pooled(self, family: Any, rule: Any) -> Any:
        """Return the pooled answer of a family and an expectation rule."""
        return solve_pooled(self.losses, self.prior(family), expectation=rule).posterior

    def trial(self, name: str, method: Any, family: Any, rounds: int) -> Trial:
        """Run a method."""
        found = Trial(method=name, family=next(key for key, known in FAMILIES.items() if known is family))
        prior, iterates = self.prior(family), list[Any]()
        try:
            goal = self.pooled(family, as_step(method).row.expectation).mean
            unit = np.sqrt(self.pooled(FullGaussian, None).variance)
            # under a flat prior a run begins at the first Newton step
            start = None if self.precision else newton_sites(self.losses, prior, np.zeros(prior.dim))
            options: dict[str, Any] = {"tol": TOL, "sites": start, "raise_on_failure": False}
            result = run(method, self.losses, prior, rounds, callback=lambda _, q: iterates.append(q), **options)
        except (ValueError, RuntimeError) as error:
            return replace(found, message=in_options(error))
        distances = tuple(float(np.max(np.abs(q.mean - goal) / unit)) for q in iterates)
        far = max((k for k, distance in enumerate(distances, 1) if not distance <= CLOSE), default=0)
        message, failed = result.message, result.status.is_failure
        if result.failure is not None:
            message = result.failure.worded(Words(client=lambda k: f"site {self.sites[k]!r}"))
        return replace(
            found,
            status=result.status.name.lower().replace("_", " "),
            rounds=result.rounds,
            rounds_to_close=far + 1 if far < len(distances) else None,
            floats=sum(one.floats_down + one.floats_up for one in result.history),
            distance_sd=distances[-1] if distances else float("nan"),
            certificate_holds=not failed and result.certificate().is_stationary,
            message=message,
            failed=failed,
            distances=distances,
        )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.1e}"
    return "–" if value is None else str(value)
