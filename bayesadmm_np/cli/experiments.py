"""`bayesadmm compare` and `sweep`: many runs on one data set, where a failure is a row and not a crash."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import (
    NA,
    Accelerate,
    Categorical,
    Client,
    DataSettings,
    Drop,
    DropNA,
    Features,
    Files,
    Json,
    Loss,
    Progress,
    Rho,
    Separator,
    Standardize,
    Target,
    Weights,
    read_settings,
)
from .shared import Refused, missing_name, note, print_json, refusals, require_writable, text_table, write_csv

__all__ = ["add_commands"]

COMPARE_HELP = """Run every method that applies on one data set, and hold each against the pooled answer.

Each method is run once, with exact solves. The distance is the largest of
|coefficient − pooled coefficient| in posterior standard deviations, where the
pooled answer is of the method's own kind: the posterior mean of its family, or
the mode for the methods that work at a point. A method that fails is a row that
says so. Every coefficient, the intercept too, has the same prior here.

\b
Examples:
  bayesadmm compare patients.csv --target died --client hospital
  bayesadmm compare patients.csv --target died --client hospital --out results
  bayesadmm compare patients.csv --target died --client hospital \\
      --methods PVI,BayesADMM,FedAvg --rho 2 --rounds 200

With --out: compare.csv (the table), compare_rounds.csv (the distance after each
round), compare.svg and compare.png.

Exit codes: 0 the table was made, 2 the command or the data were refused.
"""

SWEEP_HELP = """Rounds to the pooled answer for a grid of ρ and γ, with the settings marked that diverge.

Say which values to try: --rho, --gamma or both.

\b
Examples:
  bayesadmm sweep patients.csv --target died --client hospital \\
      --rho 0.1,0.3,1,3,10 --gamma 0.2,0.5,1 --out results
  bayesadmm sweep patients.csv --target died --client hospital \\
      --method PVI --gamma 0.1,0.2,0.5,1

With --out: sweep.csv, sweep.svg and sweep.png. ✗ is a run that failed, >100 one
that had not converged after 100 rounds.

Exit codes: 0 the grid was made, 2 the command or the data were refused.
"""

Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Also write tables and plot there.")]
FamilyName = Annotated[
    str, typer.Option("--family", metavar="full|diagonal", help="Of the methods that work with either.")
]
Precision = Annotated[float, typer.Option("--prior-precision", help="Of every coefficient.")]
Noise = Annotated[
    float | None,
    typer.Option("--noise-variance", help="Of ridge regression. Default: of the pooled least-squares residuals."),
]
Safeguard = Annotated[
    bool,
    typer.Option("--safeguard", help="Raise the server's α just enough that every site's problem has a minimum."),
]
RunTol = Annotated[float, typer.Option("--tol", help="On the pooled stationarity residual.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""

    @app.command("compare", help=COMPARE_HELP, short_help="Every method against the pooled answer.")
    def _compare(
        ctx: typer.Context,
        data: Files,
        target: Target = None,
        client: Client = None,
        features: Features = None,
        drop: Drop = None,
        categorical: Categorical = None,
        weights: Weights = None,
        loss: Loss = None,
        standardize: Standardize = None,
        dropna: DropNA = None,
        separator: Separator = None,
        na: NA = None,
        methods: Annotated[
            str | None, typer.Option("--methods", metavar="A,B,C", help="Only these. Default: all that apply.")
        ] = None,
        family: FamilyName = "full",
        rho: Rho = None,
        gamma: Annotated[
            float | None, typer.Option("--gamma", help="γ of the methods that have one, in (0, 1].")
        ] = None,
        prior_precision: Precision = 1.0,
        noise_variance: Noise = None,
        rounds: Annotated[int, typer.Option("--rounds", min=1, help="At most, for each method.")] = 50,
        tol: RunTol = 1e-6,
        safeguard: Safeguard = False,
        holdout: Annotated[
            float, typer.Option("--holdout", help="Share of each site's rows to score on; 0 scores on the rows fitted.")
        ] = 0.25,
        seed: Annotated[int, typer.Option("--seed", min=0, help="Of the choice of these rows.")] = 0,
        out: Out = None,
        json: Json = False,
        progress: Progress = True,
    ) -> None:
        with refusals("compare"):
            if not 0.0 <= holdout < 1.0:
                raise Refused(f"--holdout must lie in [0, 1), got {holdout:g}.")
            if out is not None:
                require_writable(out)
            settings = read_settings(DataSettings, ctx.params)
            from .trials import Runner, read_problem

            problem = read_problem(data, settings, prior_precision, noise_variance, holdout, seed)
            chosen = choose_methods(methods, family, rho, gamma)
            compare(Runner(problem, rounds, tol, safeguard), chosen, out, json, progress)

    @app.command("sweep", help=SWEEP_HELP, short_help="Rounds for a grid of ρ and γ.")
    def _sweep(
        ctx: typer.Context,
        data: Files,
        target: Target = None,
        client: Client = None,
        features: Features = None,
        drop: Drop = None,
        categorical: Categorical = None,
        weights: Weights = None,
        loss: Loss = None,
        standardize: Standardize = None,
        dropna: DropNA = None,
        separator: Separator = None,
        na: NA = None,
        method: Annotated[
            str, typer.Option("--method", metavar="NAME", help="A row of docs/methods.md, such as PVI.")
        ] = "BayesADMM",
        accelerate: Accelerate = None,
        family: FamilyName = "full",
        rho: Annotated[
            str | None, typer.Option("--rho", metavar="A,B,C", help="Values of ρ. Default: the method's.")
        ] = None,
        gamma: Annotated[
            str | None, typer.Option("--gamma", metavar="A,B,C", help="Values of γ. Default: the method's.")
        ] = None,
        prior_precision: Precision = 1.0,
        noise_variance: Noise = None,
        rounds: Annotated[int, typer.Option("--rounds", min=1, help="At most, for each cell.")] = 100,
        tol: RunTol = 1e-6,
        safeguard: Safeguard = False,
        out: Out = None,
        json: Json = False,
        progress: Progress = True,
    ) -> None:
        with refusals("sweep"):
            if out is not None:
                require_writable(out)
            settings = read_settings(DataSettings, ctx.params)
            grid = Grid.read(method, bool(accelerate), family, rho, gamma)
            from .trials import Runner, read_problem

            problem = read_problem(data, settings, prior_precision, noise_variance)
            sweep(Runner(problem, rounds, tol, safeguard), grid, out, json, progress)


# --- compare ---------------------------------------------------------------------------------------


def choose_methods(
    wanted: str | None, family: str, rho: float | None, gamma: float | None
) -> list[tuple[str, Any, type]]:
    """Return label, method and family of each row."""
    from .. import Accelerated, methods
    from .options import split_names

    makers: dict[str, Callable[[], Any]] = {
        name: partial(make, **_takes(make, rho=rho, gamma=gamma)) for name, make in methods.TABLE.items()
    }
    makers["damped PVI"] = partial(methods.PVI, 0.5 if gamma is None else gamma)
    makers["accelerated PVI"] = lambda: Accelerated(makers["PVI"]())
    for name in split_names(wanted):
        if name not in makers:
            raise Refused(f"--methods: {missing_name('there is no method', name, makers)}")
    chosen = []
    for name in split_names(wanted) or makers:
        method = makers[name]()
        chosen.append((name, method, _family(family, method)))
    return chosen


def _takes(make: Callable[..., Any], **given: float | None) -> dict[str, float]:
    names = inspect.signature(make).parameters
    return {key: value for key, value in given.items() if value is not None and key in names}


def _family(name: str, method: Any) -> type:
    """Return the family asked for, or the one that the method demands."""
    from .. import Accelerated
    from ..estimators.model_file import FAMILIES

    if name not in ("full", "diagonal"):
        raise Refused(f"--family: {missing_name('there is no family', name, ('full', 'diagonal'))}")
    row = method.method if isinstance(method, Accelerated) else method
    asked: type = FAMILIES[name]
    return asked if not row.families or asked in row.families else row.families[0]


def _counted(items: Sequence[Any], what: str, progress: bool) -> Iterator[Any]:
    from tqdm import tqdm

    return iter(tqdm(items, desc=what, unit="run", disable=not progress))


SCORES = {"logistic": "accuracy", "softmax": "accuracy", "ridge": "R²", "poisson": "D²"}


def compare(
    runner: Any,
    chosen: Sequence[tuple[str, Any, type]],
    out: Path | None,
    as_json: bool,
    progress: bool,
) -> None:
    """Run the methods, print the table, and write tables and plot."""
    from .trials import CLOSE

    problem = runner.problem
    trials = [runner(*item) for item in _counted(chosen, "compare", progress)]
    # those that cannot say how far they are come last
    trials.sort(key=lambda trial: (trial.failed, trial.distance if trial.distances else float("inf")))
    score = SCORES[problem.kind]
    records = [_record(trial, score) for trial in trials]
    if out is not None:
        from .plots import draw_compare

        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / "compare.csv", records)
        write_csv(
            out / "compare_rounds.csv",
            [
                {"method": trial.method, "family": trial.family, "round": k, "distance_sd": distance}
                for trial in trials
                for k, distance in enumerate(trial.distances, 1)
            ],
        )
        draw_compare(trials, score, problem.scored_on, out)
        note(f"compare.csv, compare_rounds.csv, compare.svg and compare.png written to {out}.")
    if as_json:
        print_json({"scored_on": problem.scored_on, "close_sd": CLOSE, "methods": records})
        return
    header = ["method", "family", "rounds", f"to {CLOSE:g} sd", "numbers sent", "distance/sd", score, "NLL", "status"]
    table = [
        [
            trial.method,
            trial.family,
            trial.rounds,
            trial.rounds_to_close or "–",
            trial.floats,
            _figure(trial.distance, ".1e"),
            _figure(trial.score, ".3f"),
            _figure(trial.nll, ".4f"),
            trial.status,
        ]
        for trial in trials
    ]
    print(text_table(header, table, left=2))
    print(f"\n{score} and NLL on {problem.scored_on}; distance from the pooled answer of the method's own kind.")
    for trial in trials:
        if trial.failed:
            print(f"✗ {trial.method}: {trial.message}")


def _record(trial: Any, score: str) -> dict[str, Any]:
    return {
        "method": trial.method,
        "family": trial.family,
        "status": trial.status,
        "rounds": trial.rounds,
        "rounds_to_close": trial.rounds_to_close,
        "floats": trial.floats,
        "distance_sd": trial.distance,
        {"R²": "r2", "D²": "d2"}.get(score, score): trial.score,
        "nll": trial.nll,
        "certificate_holds": trial.holds,
        "message": trial.message,
    }


def _figure(value: float, form: str) -> str:
    return "–" if value != value else format(value, form)


# --- sweep -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """What is varied; a method without ρ, or without γ, has one row or column.

    Attributes
    ----------
    method : str
    accelerate : bool
    family : str
    rhos, gammas : tuple of float, or (None,)
    """

    method: str
    accelerate: bool
    family: str
    rhos: tuple[float | None, ...]
    gammas: tuple[float | None, ...]

    @classmethod
    def read(cls, method: str, accelerate: bool, family: str, rho: str | None, gamma: str | None) -> Grid:
        """Check the options by making every method of the grid."""
        from ..splitting.methods import TABLE
        from .model import make_method

        if method not in TABLE:
            raise Refused(f"--method: {missing_name('there is no method', method, TABLE)}")
        takes = inspect.signature(TABLE[method]).parameters
        if rho is None and gamma is None:
            options = " and ".join(f"--{name}" for name in ("rho", "gamma") if name in takes)
            raise Refused(f"say what to vary: {options or method + ' has neither rho nor gamma'}.")
        grid = cls(method, accelerate, family, _values("--rho", rho), _values("--gamma", gamma))
        for cell in grid.cells():
            make_method(method, cell[0], cell[1], accelerate)
        return grid

    def cells(self) -> list[tuple[float | None, float | None]]:
        """Return all pairs of ρ and γ."""
        return [(rho, gamma) for gamma in self.gammas for rho in self.rhos]


def _values(option: str, text: str | None) -> tuple[float | None, ...]:
    if text is None:
        return (None,)
    try:
        values = tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise Refused(f"{option} must be numbers, as in 0.1,1,10, got {text!r}.") from error
    if len(set(values)) < len(values):
        raise Refused(f"{option} has a value twice: {text}.")
    return tuple(sorted(values))


def sweep(runner: Any, grid: Grid, out: Path | None, as_json: bool, progress: bool) -> None:
    """Run the grid, print it, and write table and plot."""
    from .model import make_method
    from .trials import Trial, cell_text

    rounds, tol = runner.rounds, runner.tol
    trials: dict[tuple[float | None, float | None], Trial] = {}
    for cell in _counted(grid.cells(), "sweep", progress):
        method = make_method(grid.method, cell[0], cell[1], grid.accelerate)
        trials[cell] = runner(method.name, method, _family(grid.family, method))
    records = [
        {
            "rho": rho,
            "gamma": gamma,
            "status": trial.status,
            "rounds": trial.rounds,
            "converged": trial.holds and trial.status == "converged",
            "distance_sd": trial.distance,
            "message": trial.message,
        }
        for (rho, gamma), trial in trials.items()
    ]
    first = next(iter(trials.values()))
    name = f"accelerated {grid.method}" if grid.accelerate else grid.method
    title = f"{name}, {first.family} family: rounds to {tol:.0e}"
    if out is not None:
        from .plots import draw_sweep

        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / "sweep.csv", records)
        draw_sweep(trials, grid.rhos, grid.gammas, title, rounds, out)
        note(f"sweep.csv, sweep.svg and sweep.png written to {out}.")
    if as_json:
        print_json({"method": name, "family": first.family, "tol": tol, "rounds": rounds, "cells": records})
        return
    print(title)
    corner = " \\ ".join(sign for sign, values in (("γ", grid.gammas), ("ρ", grid.rhos)) if None not in values)
    header = [corner, *("" if rho is None else f"{rho:g}" for rho in grid.rhos)]
    rows = [
        ["" if gamma is None else f"{gamma:g}", *(cell_text(trials[rho, gamma], rounds) for rho in grid.rhos)]
        for gamma in grid.gammas
    ]
    print(text_table(header, rows))
    for (rho, gamma), trial in trials.items():
        if trial.failed:
            where = ", ".join(f"{name} = {value:g}" for name, value in (("ρ", rho), ("γ", gamma)) if value is not None)
            print(f"✗ {where}: {trial.message}")
