"""`bayesadmm compare`: every method on one data set, where a failure is a row and not a crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from ._methods import all_methods, needs_prior
from ._options import DataSettings, Files, Json, Names, Progress, Spread, at_least, option, within
from ._terminal import Refused, missing_name, note, print_json, require_writable, text_table, write_csv
from ._trials import CLOSE, Runner, Trial, TrialSettings, read_problem

DEFAULT = TrialSettings()
KEYS = {"R²": "r2", "D²": "d2"}


def compare(
    data: Files,
    /,
    *,
    settings: Annotated[DataSettings, Spread],
    methods: Annotated[Names, option("Methods to run. Default: all that apply.", "A,B,C")] = (),
    rho: Annotated[float | None, option("ρ > 0, for the methods that have it.")] = None,
    gamma: Annotated[float | None, option("γ in (0, 1], for the methods that have it.")] = None,
    how: Annotated[TrialSettings, Spread] = DEFAULT,
    rounds: Annotated[int, option("Maximum number of rounds of each method.", check=at_least(1))] = 50,
    holdout: Annotated[
        float,
        option(
            "Share of the rows of each site to hold out for scoring; 0: score the rows of the fit.", check=within(0, 1)
        ),
    ] = 0.25,
    seed: Annotated[int, option("Seed of the random choice of these rows.", check=at_least(0))] = 0,
    out: Annotated[Path | None, option("Folder for the tables and the plot.", "DIR")] = None,
    json: Json = False,
    progress: Progress = True,
) -> None:
    r"""Run every method that applies on one data set, and compare each with the pooled answer.

    Each method is run once, with exact solves. The distance is the largest of
    |coefficient − pooled coefficient| in posterior standard deviations, where the
    pooled answer is of the method's own kind: the posterior mean of its family, or
    the mode for the methods that work at a point. A method that fails or oscillates
    is a row that says so. Every coefficient, the intercept too, has the same prior
    here, of precision 1, because most methods need one; fit has none by default.
    --prior-precision 0 leaves out the methods that need a prior, and names them.

    Examples of use:
      bayesadmm compare patients.csv --target died --client hospital
      bayesadmm compare patients.csv --target died --client hospital --out results
      bayesadmm compare patients.csv --target died --client hospital \
          --methods PVI,BayesADMM,FedAvg --rho 2 --rounds 200

    With --out: compare.csv (the table), compare_rounds.csv (the distance after each
    round), compare.svg and compare.png.

    Exit codes: 0 the table was made, 2 the command or the data were refused.
    """
    if out is not None:
        require_writable(out)
    problem = read_problem(data, settings, how, holdout, seed)
    chosen = _choose(methods, rho, gamma)
    left_out = [] if how.prior_precision else [name for name, method in chosen if needs_prior(how.family, method)]
    if len(left_out) == len(chosen):
        raise Refused(f"--prior-precision must be > 0 for all of these: {', '.join(left_out)}.")
    runs = [item for item in chosen if item[0] not in left_out]
    trials = Runner(problem, how, rounds).run(runs, "compare", progress)
    # those that cannot say how far they are come last
    trials.sort(key=lambda trial: (trial.failed, trial.distance if trial.distances else float("inf")))
    score = problem.kind.score_name
    records = [_record(trial, score) for trial in trials]
    if out is not None:
        _write(out, trials, records, score, problem.scored_on)
    if json:
        facts = {"scored_on": problem.scored_on, "close_sd": CLOSE, "prior_precision": how.prior_precision}
        print_json({**facts, "left_out": left_out, "methods": records})
        return
    header = [
        "method",
        "family",
        "rounds",
        f"to {CLOSE:g} sd",
        "numbers sent",
        "distance / sd",
        "score",
        "NLL",
        "status",
    ]
    print(text_table(header, [_cells(trial) for trial in trials], left=2))
    print(
        f"\nscore ({score}) and NLL on {problem.scored_on}; distance from the pooled answer of the method's own kind."
    )
    print(_prior_line(how.prior_precision, left_out))
    for trial in trials:
        if trial.failed:
            print(f"✗ {trial.method}: {trial.message}")
        elif trial.status == "oscillates":
            print(f"~ {trial.method}: its last rounds lead away from the pooled answer as often as to it: no score.")


def _prior_line(precision: float, left_out: Sequence[str]) -> str:
    if precision:
        return f"Every coefficient has prior precision {precision:g}, because most methods need a prior; fit has none."
    return f"No prior. Left out, because they need one: {', '.join(left_out) or 'none'}."


def _choose(wanted: Sequence[str], rho: float | None, gamma: float | None) -> list[tuple[str, Any]]:
    """Return label and method of each row."""
    makers = dict(all_methods(rho, gamma))
    for name in wanted:
        if name not in makers:
            raise Refused(f"--methods: {missing_name('there is no method', name, makers)}")
    return [(name, makers[name]()) for name in wanted or makers]


def _write(out: Path, trials: Sequence[Trial], records: Sequence[Any], score: str, scored_on: str) -> None:
    from ._trial_plots import draw_compare

    out.mkdir(parents=True, exist_ok=True)
    by_round = [
        {"method": trial.method, "family": trial.family, "round": k, "distance_sd": distance}
        for trial in trials
        for k, distance in enumerate(trial.distances, 1)
    ]
    write_csv(out / "compare.csv", records)
    write_csv(out / "compare_rounds.csv", by_round)
    draw_compare(trials, score, scored_on, out)
    note(f"compare.csv, compare_rounds.csv, compare.svg and compare.png written to {out}.")


def _record(trial: Trial, score: str) -> dict[str, Any]:
    return {
        "method": trial.method,
        "family": trial.family,
        "status": trial.status,
        "rounds": trial.rounds,
        "rounds_to_close": trial.rounds_to_close,
        "floats": trial.floats,
        "distance_sd": trial.distance,
        KEYS.get(score, score): trial.score,
        "nll": trial.nll,
        "certificate_holds": trial.holds,
        "message": trial.message,
    }


def _cells(trial: Trial) -> list[Any]:
    def figure(value: float, form: str) -> str:
        return "–" if value != value else format(value, form)

    left = [trial.method, trial.family, trial.rounds, trial.rounds_to_close or "–", trial.floats]
    scores = [figure(trial.distance, ".1e"), figure(trial.score, ".3f"), figure(trial.nll, ".4f")]
    return [*left, *scores, trial.status.removeprefix("round ")]
