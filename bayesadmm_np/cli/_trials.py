"""Many runs on one problem: each becomes a row, also when it fails, and is compared with the pooled answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .._errors import Words
from .._validation import Array, as_positive
from ..design.rows import Layout
from ..estimators.fitted import predictor
from ..estimators.search import newton_sites
from ..families import FullGaussian
from ..families.gaussian import Gaussian
from ..families.gaussians import FAMILIES
from ..glm.kinds import Kind
from ..losses.base import Loss
from ..losses.expectations import Rule
from ..splitting.accelerated import Accelerated
from ..splitting.loop import run
from ..splitting.methods import Method
from ..splitting.pooled import solve_pooled
from ._design import choose_kind, code_labels, fit_columns, site_names, target_units
from ._formula import listed_rows
from ._methods import family_for, needs_prior
from ._options import DataSettings, at_least, option
from ._terminal import Refused, in_options

CLOSE = 0.01
"""Standard deviations: what counts as close to the pooled answer."""


LAST = 13
"""Rounds by which a run is said to oscillate."""


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """What `compare` and `sweep` share: the problem, and how each run is done."""

    family: Annotated[str, option("Family of the methods that can use either.", choices=("full", "diagonal"))] = "full"
    prior_precision: Annotated[
        float,
        option(
            "Prior precision of every coefficient, the intercept too; not the default of fit, because most methods "
            "need a prior. 0 is none, and leaves out the methods that need one.",
            check=at_least(0),
        ),
    ] = 1.0
    noise_variance: Annotated[
        float | None,
        option("Noise variance of linear regression. Default: that of the pooled least-squares residuals."),
    ] = None
    tol: Annotated[float, option("Tolerance on the pooled stationarity residual.")] = 1e-6
    safeguard: Annotated[bool, option("Raise the server's α just enough that every site's problem has a minimum.")] = (
        False
    )


@dataclass(frozen=True)
class Problem:
    """The sites' losses, and rows to score on.

    Attributes
    ----------
    kind : Kind
    sites : tuple of str
    clients : tuple of Loss
    precision : float
        Precision of the prior, 0 where there is none.
    noise_variance : float
        Noise variance in units of the target's scale, squared.
    target_scale : float
    n_outputs : int
    design, target : ndarray
        Rows to score on.
    scored_on : str
    """

    kind: Kind
    sites: tuple[str, ...]
    clients: tuple[Loss, ...]
    precision: float
    noise_variance: float
    target_scale: float
    n_outputs: int
    design: Array
    target: Array
    scored_on: str

    def prior(self, family: Any) -> Gaussian:
        """Return N(0, I/precision) in a family."""
        prior: Gaussian = family(np.zeros(self.clients[0].dim), self.precision)
        return prior


@dataclass(frozen=True)
class Trial:
    """One method that was run.

    Attributes
    ----------
    method, family : str
    status : str
        Status of the run, or "refused".
    rounds, floats : int
    distances : tuple of float
        Distances from the pooled answer after each round, in standard deviations.
    score, nll : float
        Scores on the rows to score on.
    holds : bool
        Whether the pooled stationarity residual is below tol.
    failed : bool
    message : str
    """

    method: str
    family: str
    status: str
    rounds: int = 0
    floats: int = 0
    distances: tuple[float, ...] = ()
    score: float = float("nan")
    nll: float = float("nan")
    holds: bool = False
    failed: bool = True
    message: str = ""

    @property
    def distance(self) -> float:
        """At the end, in standard deviations."""
        return self.distances[-1] if self.distances else float("nan")

    @property
    def oscillates(self) -> bool:
        """Whether the run used up its rounds, and its last rounds led away from the pooled answer as often as to it.

        Where it ends is then a matter of the number of rounds.
        """
        last = np.array(self.distances[-LAST:])
        away = np.diff(last) > 1e-3 * last[1:]
        return self.status == "round limit" and away.size > 3 and int(away.sum()) >= away.size // 3

    @property
    def rounds_to_close(self) -> int | None:
        """Rounds after which the distance stays below CLOSE."""
        far = [k for k, distance in enumerate(self.distances, 1) if not distance <= CLOSE]
        last = far[-1] if far else 0
        return last + 1 if last < len(self.distances) else None


def read_problem(
    paths: Sequence[Path], settings: DataSettings, how: TrialSettings, holdout: float = 0.0, seed: int = 0
) -> Problem:
    """Read the data and make one loss a site; standardised by the rows that are fitted."""
    noise_variance = how.noise_variance
    if settings.offset is not None or settings.exposure is not None:
        raise Refused("--offset and --exposure are options of fit: here methods are compared without them.")
    rows = listed_rows(paths, settings)
    kind, classes = choose_kind(rows, settings.target, settings.loss)
    kind = kind if how.prior_precision else kind.identified
    target = code_labels(rows, settings.target, classes)
    names, sites = rows.site.astype(str), site_names(rows)
    rng = np.random.default_rng(seed)
    kept_back = np.zeros(len(target), dtype=bool)
    for name in sites:
        here = np.flatnonzero(names == name)
        kept_back[rng.permutation(here)[: min(round(holdout * len(here)), len(here) - 1)]] = True
    scored = kept_back if kept_back.any() else ~kept_back
    weights = np.where(kept_back, 0.0, 1.0 if rows.weights is None else rows.weights)
    columns = fit_columns(replace(rows, weights=weights), settings.standardize)
    n_outputs = kind.n_outputs(len(classes))
    design = Layout(len(columns.scale), n_outputs, has_intercept=True).design(columns.design(rows.matrix))
    centre, scale = target_units(kind, target, weights, settings)
    if kind.has_noise:
        target = (target - centre) / scale
        if noise_variance is None:
            noise_variance = scale**2 * _residual_variance(design, target, weights)
    noise = as_positive(1.0 if noise_variance is None else noise_variance, "--noise-variance") / scale**2
    clients = []
    for name in sites:
        here = (names == name) & ~kept_back
        clients.append(kind.make_loss(design[here], target[here], weights[here], None, n_outputs, noise))
    return Problem(
        kind,
        sites,
        tuple(clients),
        how.prior_precision,
        noise,
        scale,
        n_outputs,
        design[scored],
        target[scored],
        f"{int(kept_back.sum())} rows held out" if kept_back.any() else "the rows fitted",
    )


def _residual_variance(design: Array, target: Array, weights: Array) -> float:
    """Return the residual variance of the pooled least-squares fit."""
    root = np.sqrt(weights)
    theta = np.linalg.lstsq(root[:, None] * design, root * target, rcond=None)[0]
    freedom = max(float(weights.sum()) - design.shape[1], 1.0)
    return float(weights @ (target - design @ theta) ** 2) / freedom


class Runner:
    """Runs methods on a problem; the pooled answers that they are held against are found once."""

    def __init__(self, problem: Problem, how: TrialSettings, rounds: int) -> None:
        self.problem, self.how, self.rounds = problem, how, rounds
        self._pooled: dict[tuple[type, str], Any] = {}

    def pooled(self, family: type, rule: Rule | None) -> Any:
        """Return the pooled answer of a family and an expectation rule."""
        key = family, repr(rule)
        if key not in self._pooled:
            prior = self.problem.prior(family)
            self._pooled[key] = solve_pooled(self.problem.clients, prior, expectation=rule).posterior
        return self._pooled[key]

    def run(self, chosen: Sequence[tuple[str, Method | Accelerated]], what: str, progress: bool) -> list[Trial]:
        """Run methods by label, in this order."""
        from tqdm import tqdm

        return [self(*item) for item in tqdm(chosen, desc=what, unit="run", disable=not progress)]

    def __call__(self, label: str, method: Method | Accelerated) -> Trial:
        """Run one method; whatever goes wrong is in the row."""
        family = family_for(self.how.family, method)
        short = next(name for name, kind in FAMILIES.items() if kind is family)
        row = method.method if isinstance(method, Accelerated) else method
        problem = self.problem
        iterates: list[Any] = []
        try:
            if needs_prior(self.how.family, method) and not problem.precision:
                raise ValueError(f"{label} with the {short} family needs a prior: --prior-precision must be > 0.")
            prior = problem.prior(family)
            # under a flat prior a run begins at the first Newton step
            sites = None if problem.precision else newton_sites(problem.clients, prior, np.zeros(prior.dim))
            goal = self.pooled(family, row.expectation).mean
            unit = np.sqrt(self.pooled(FullGaussian, None).variance)
            result = run(
                method,
                problem.clients,
                prior,
                self.rounds,
                tol=self.how.tol,
                safeguard=self.how.safeguard and row.dual_step > 0 and row.prior_at == "server",
                raise_on_failure=False,
                sites=sites,
                callback=lambda _, q: iterates.append(q),
            )
        except (ValueError, RuntimeError) as error:
            return Trial(label, short, "refused", message=in_options(error))
        failed = result.status.is_failure
        score, nll = (float("nan"),) * 2 if failed else evaluate(problem, result.posterior)
        trial = Trial(
            label,
            short,
            result.status.name.lower().replace("_", " "),
            result.rounds,
            sum(record.floats_down + record.floats_up for record in result.history),
            tuple(float(np.max(np.abs(q.mean - goal) / unit)) for q in iterates),
            score,
            nll,
            not failed and result.certificate().is_stationary,
            failed,
            _message(result, problem.sites),
        )
        if trial.oscillates and trial.distance > 1.0:  # a score would be that of an accident
            return replace(trial, status="oscillates", score=float("nan"), nll=float("nan"))
        return trial


def _message(result: Any, sites: Sequence[str]) -> str:
    """Word a failure with the site's name for its number, and the option for the argument."""
    if result.failure is None:
        return str(result.message)
    return str(result.failure.worded(Words(client=lambda k: f"site {sites[k]!r}", switch="add --{}".format)))


def evaluate(problem: Problem, posterior: Gaussian) -> tuple[float, float]:
    """Return accuracy (or R², or explained deviance) and the mean negative log predictive probability, in nats."""
    y, kind = problem.target, problem.kind
    moments = predictor(posterior, problem.design, problem.n_outputs)
    if kind.is_classifier:
        chances = kind.class_probabilities(*moments, None)
        accuracy = float((chances.argmax(axis=1) == y).mean())
        return accuracy, float(-np.log(np.maximum(chances[np.arange(len(y)), y], 1e-300)).mean())
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # of methods that end far away
        mean, sd = kind.mean_and_sd(*moments, problem.noise_variance)
        if kind.has_noise:
            nll = 0.5 * ((y - mean) / sd) ** 2 + np.log(problem.target_scale * sd) + 0.5 * np.log(2.0 * np.pi)
            return kind.explained(y, mean), float(nll.mean())
        return kind.explained(y, mean), kind.surprise(y, mean)


def cell_text(trial: Trial, rounds: int) -> str:
    """Return what stands in a cell: rounds, ✗ for a failure, >N for a run that had not converged."""
    if trial.failed:
        return "✗"
    return str(trial.rounds) if trial.status == "converged" else f">{rounds}"
