"""`bayesadmm sweep`: one method over a grid of ρ and γ; the same engine as `compare`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

from ._methods import knobs, make_method
from ._options import (
    Accelerate,
    DataSettings,
    Files,
    Json,
    MethodSettings,
    Numbers,
    Progress,
    Spread,
    at_least,
    methods,
    option,
)
from ._terminal import Refused, note, print_json, require_writable, text_table, write_csv
from ._trials import Runner, Trial, TrialSettings, cell_text, read_problem

DEFAULT = TrialSettings()


def sweep(
    data: Files,
    /,
    *,
    settings: Annotated[DataSettings, Spread],
    method: Annotated[str, option("Method; docs/methods.md lists them.", choices=methods())] = "BayesADMM",
    rho: Annotated[Numbers, option("Values of ρ. Default: that of the method.", "A,B,C")] = (),
    gamma: Annotated[Numbers, option("Values of γ. Default: that of the method.", "A,B,C")] = (),
    accelerate: Accelerate = False,
    how: Annotated[TrialSettings, Spread] = DEFAULT,
    rounds: Annotated[int, option("Maximum number of rounds of each cell.", check=at_least(1))] = 100,
    out: Annotated[Path | None, option("Folder for the table and the plot.", "DIR")] = None,
    json: Json = False,
    progress: Progress = True,
) -> None:
    r"""Count the rounds to the pooled answer for a grid of ρ and γ, and mark the settings that diverge.

    Say which values to try: --rho, --gamma or both.

    Examples of use:
      bayesadmm sweep patients.csv --target died --client hospital \
          --rho 0.1,0.3,1,3,10 --gamma 0.2,0.5,1 --out results
      bayesadmm sweep patients.csv --target died --client hospital \
          --method PVI --gamma 0.1,0.2,0.5,1

    With --out: sweep.csv, sweep.svg and sweep.png. ✗ marks a run that failed; >100
    marks a run that had not converged after 100 rounds.

    Exit codes: 0 the grid was made, 2 the command or the data were refused.
    """
    if out is not None:
        require_writable(out)
    rhos, gammas = _values("--rho", rho), _values("--gamma", gamma)
    if rhos == gammas == (None,):
        takes = " and ".join(f"--{name}" for name in ("rho", "gamma") if name in knobs(method))
        raise Refused(f"say what to vary: {takes or method + ' has neither rho nor gamma'}.")
    cells = [(rho, gamma) for gamma, rho in itertools.product(gammas, rhos)]
    chosen = [MethodSettings(method=method, rho=rho, gamma=gamma, accelerate=accelerate) for rho, gamma in cells]
    made = [make_method(one) for one in chosen]
    problem = read_problem(data, settings, how)
    done = Runner(problem, how, rounds).run([(row.name, row) for row in made], "sweep", progress)
    trials = dict(zip(cells, done, strict=True))
    records = [_record(*cell, trial) for cell, trial in trials.items()]
    name = f"accelerated {method}" if accelerate else method
    title = f"{name}, {done[0].family} family: rounds to {how.tol:.0e}"
    if out is not None:
        from ._trial_plots import draw_sweep

        out.mkdir(parents=True, exist_ok=True)
        write_csv(out / "sweep.csv", records)
        draw_sweep(trials, rhos, gammas, title, rounds, out)
        note(f"sweep.csv, sweep.svg and sweep.png written to {out}.")
    if json:
        more = {"tol": how.tol, "rounds": rounds, "cells": records}
        print_json({"method": name, "family": done[0].family, **more})
        return
    print(title)
    corner = " \\ ".join(sign for sign, values in (("γ", gammas), ("ρ", rhos)) if None not in values)
    rows = [[_word(g), *(cell_text(trials[r, g], rounds) for r in rhos)] for g in gammas]
    print(text_table([corner, *map(_word, rhos)], rows))
    for cell, trial in trials.items():
        if trial.failed:
            where = (f"{sign} = {value:g}" for sign, value in zip("ργ", cell, strict=True) if value is not None)
            print(f"✗ {', '.join(where)}: {trial.message}")


def _record(rho: float | None, gamma: float | None, trial: Trial) -> dict[str, Any]:
    return {
        "rho": rho,
        "gamma": gamma,
        "status": trial.status,
        "rounds": trial.rounds,
        "converged": trial.holds and trial.status == "converged",
        "distance_sd": trial.distance,
        "message": trial.message,
    }


def _word(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _values(option: str, values: tuple[float, ...]) -> tuple[float | None, ...]:
    """Return the values of a knob in order; of one that is not varied None, which is the method's own."""
    if len(set(values)) < len(values):
        raise Refused(f"{option} has a value twice: {', '.join(map(_word, values))}.")
    return tuple(sorted(values)) or (None,)
