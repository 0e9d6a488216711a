"""`bayesadmm experiment`: networks over clients, from a file that says everything."""

from __future__ import annotations

import importlib
import itertools
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ._options import Json, Progress, option
from ._terminal import Refused, note, plain, print_json, require_writable, stop, text_table, write_csv, write_json


def experiment(
    file: Annotated[Path, option("Experiment file.")],
    /,
    *,
    out: Annotated[
        Path | None, option("Folder for the results. Default: a folder beside FILE, with its name.", "DIR")
    ] = None,
    changes: Annotated[
        tuple[str, ...],
        option(
            "Replace a value of the file, as in training.device=cpu; method.KEY sets a key of every method, "
            "method.LABEL.KEY of one. May be repeated.",
            "KEY=VALUE",
            name="--set",
        ),
    ] = (),
    json: Json = False,
    progress: Progress = True,
) -> None:
    """Run the methods of an experiment file on a network, with several seeds.

    The file is TOML; an unknown key is refused. The state is written after every round.
    A command that was stopped can be repeated: it continues, with the same results bit
    for bit. Two commands at once in one folder are refused. A run that diverges is
    marked in the table; warnings of a run are notes in results.json.

    Examples of use:
      bayesadmm experiment fashion.toml
      bayesadmm experiment fashion.toml --out results/fashion --no-progress
      bayesadmm experiment fashion.toml --out less --set rounds=2 --set "report=[2]" --set data.train=600

    fashion.toml:
      version = 1
      rounds = 50
      report = [10, 25, 50]
      seeds = [0, 1, 2]
      [data]
      name = "fashion"          # or mnist, cifar10, digits
      train = 6000              # other rows for every seed
      clients = 10
      split = "two_dirichlet"   # or iid, two_classes, shards, label_pairs, label_skew, concept_drift
      scale = "unit"            # or raw: pixels 0 ... 255, as the papers have them; or a number
      [model]
      name = "MLP"
      hidden = [200, 100]
      [training]
      temperature = 0.1
      [[method]]
      row = "IVONADMM"
      rho = 0.5
      gamma = 0.05
      solver = { epochs = 10, lr = 0.3, hess_init = 0.1, beta2 = 0.98 }
      [[method]]
      row = "FedAvg"            # also: pooled = true, or local = true, every client alone

    To tune every method with the same budget, on validation rows held out of the training rows:
      [sweep]
      budget = 6                # most trials of a method
      validation = 0.1
      [[method]]
      row = "FedDyn"
      grid = { prior_precision = [1e-3, 1e-4], "solver.lr" = [1e-2, 1e-3, 1e-4] }
    Without [sweep] every point of a grid is run, and a grid of two keys is drawn as a heat map.

    Image sets are read from the directory that BAYESADMM_DATA names, or downloaded.

    Written to the folder: experiment.json (what was run), sweep.csv (every trial), rounds.csv
    (every round: accuracy, NLL, ECE and Brier score, at the mean and averaged over samples, and
    bytes), seconds.csv (its wall time), table.csv, results.json, curves and heat maps (svg and
    png), and checkpoints.

    Needs PyTorch: pip install 'bayesadmm-np[torch]'.

    Exit codes: 0 the table was made, 2 the file or the data were refused, 130 stopped.
    """
    if file.is_dir():
        raise Refused(f"{str(file)!r} is a folder, and not an experiment file.")
    folder = out or file.with_suffix("")
    if folder == file:
        raise Refused(f"{str(file)!r} has no ending to leave out: name the folder of the results by --out.")
    require_writable(folder)
    try:
        run_file(file, folder, json, progress, changes)
    except KeyboardInterrupt:
        stop(f"bayesadmm experiment: interrupted; the same command goes on from {folder}.", 130)


def run_file(file: Path, folder: Path, as_json: bool, progress: bool, changes: Sequence[str] = ()) -> None:
    """Run what is not done, write everything, print the table."""
    from tqdm import tqdm

    importlib.import_module("bayesadmm_np.torch")  # which says how to install it
    from ._experiment_file import Experiment
    from ._experiment_run import Bench, final_methods, total_rounds

    experiment = Experiment.read(file, changes)
    _check_device(experiment.training.device)  # before the data, which may take long
    with tqdm(total=total_rounds(experiment), desc=experiment.name, unit="round", disable=not progress) as bar:

        def tick(what: str, done: int, accuracy: float | None) -> None:
            bar.set_description(what, refresh=False)
            if accuracy is not None:
                bar.set_postfix(accuracy=f"{accuracy:.4f}", refresh=False)
            bar.update(done - bar.n)

        def say(line: str) -> None:
            bar.write(f"note: {line}", file=sys.stderr)

        bench = Bench(experiment, folder, tick, say)
        with bench.claimed():
            trials = bench.sweep()
            if trials:
                write_csv(folder / "sweep.csv", _sweep(trials))
            methods = final_methods(experiment, trials)
            outcomes = bench.final(methods)
            bar.close()
            results = _write_all(bench, trials, methods, outcomes)
    if as_json:
        print_json(results)
        return
    for line in _choices(trials):
        print(line)
    header = ["method", "round", "accuracy/%", "NLL", "ensemble/%", "ensemble NLL", "MB/round", "s/round", "seeds"]
    print(text_table(header, [_cells(row) for row in results["table"]]))
    for outcome in outcomes:
        if outcome.status.is_failure:
            print(f"✗ {outcome.label}, seed {outcome.seed}: {outcome.message}")


def _check_device(device: str) -> None:
    from ..torch.team import read_device

    try:
        read_device(device)
    except ValueError as error:
        raise ValueError(f"[training] {error}; --set training.device=cpu runs it on the processor.") from error


def _write_all(bench: Any, trials: Sequence[Any], methods: Sequence[Any], outcomes: Sequence[Any]) -> dict[str, Any]:
    """Write tables and plots, and return what results.json holds."""
    experiment, folder = bench.experiment, bench.folder
    rounds, seconds = ([*itertools.chain(*rows)] for rows in zip(*map(_rounds, outcomes), strict=True))
    table = [_row(entry.label, number, outcomes) for entry in methods for number in experiment.report]
    for name, rows in (files := {"rounds.csv": rounds, "seconds.csv": seconds, "table.csv": table}).items():
        if rows:
            write_csv(folder / name, rows)
    results: dict[str, Any] = {"experiment": experiment.as_dict(), "machine": _machine(), "table": table}
    results |= {"sweep": _sweep(trials), "runs": _runs(outcomes), "notes": bench.notes}
    write_json(folder / "results.json", plain(results))
    drawn = _draw(experiment, results["runs"], table, folder) if rounds else []  # last: no plot is worth the numbers
    there = {"sweep.csv": trials, **files, "results.json": results}
    names = [*(name for name, content in there.items() if content), *drawn]
    note(f"{', '.join(names)} written to {folder}.")
    return results


def _sweep(trials: Sequence[Any]) -> list[dict[str, Any]]:
    """One row a trial; a key that a method's grid lacks is empty."""
    keys = dict.fromkeys(key for trial in trials for key in trial.point)
    return [
        {"method": trial.label, **{key: trial.point.get(key, "") for key in keys}}
        | {"status": trial.status, "rounds": trial.rounds}
        | {"validation_accuracy": _or_nan(trial.accuracy), "validation_nll": _or_nan(trial.nll)}
        | {"chosen": "yes" if trial.chosen else "no"}
        for trial in trials
    ]


def _choices(trials: Sequence[Any]) -> list[str]:
    """One line a method: what the sweep chose, and by which scores."""
    lines = []
    for best in (trial for trial in trials if trial.chosen):
        own = [trial for trial in trials if trial.method == best.method]
        failed = sum(trial.accuracy is None for trial in own)
        if best.accuracy is None:
            found = f"✗ all {len(own)} trials failed, the first is kept: {best.message}"
        else:
            found = f"{100.0 * best.accuracy:.1f} %, NLL {best.nll:.3f} on the validation rows, best of {len(own)}"
            found += f" ({failed} failed)" if failed else ""
        lines.append(f"{best.label}: {best.words or 'no grid'}; {found}")
    return lines


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


SCORES = ("accuracy", "nll", "ece", "brier")
KINDS = (("", "at_mean"), ("ensemble_", "ensemble"))
LAST = 3
"""Rounds that the papers' tables average over: the reported one and the two before."""


def _rounds(outcome: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every round: what does not depend on the machine's speed, which is the same after a kill, and the wall time."""
    rows, seconds = [], []
    for record in outcome.history:
        run = {"method": outcome.label, "seed": outcome.seed, "round": record.round}
        seconds.append({**run, "seconds": record.seconds})
        row = {"objective": record.objective, "broadcast": record.edges.broadcast, "gather": record.edges.gather}
        for _, kind in KINDS:
            scores = getattr(record, kind)
            row |= {f"{kind}_{name}": "" if scores is None else getattr(scores, name) for name in SCORES}
        rows.append({**run, **row, "bytes_down": record.bytes_down, "bytes_up": record.bytes_up})
    return rows, seconds


def _row(label: str, number: int, outcomes: Sequence[Any]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds whose run got to a round, and how many these are.

    Of the round itself, and of each seed's mean over the last three rounds.
    """
    own = [outcome for outcome in outcomes if outcome.label == label]
    done = [outcome for outcome in own if outcome.rounds >= number]
    passed = [record for outcome in done for record in outcome.history[:number]]
    row: dict[str, Any] = {"method": label, "round": number}
    for prefix, kind in KINDS:
        for name in SCORES:
            for rounds, suffix in ((1, ""), (LAST, f"_last{LAST}")):
                means = [_score(outcome.history[max(0, number - rounds) : number], kind, name) for outcome in done]
                values = [mean for mean in means if mean is not None]
                row[f"{prefix}{name}{suffix}_mean"] = float(np.mean(values)) if values else float("nan")
                with np.errstate(invalid="ignore"):  # an infinite NLL has no deviation
                    row[f"{prefix}{name}{suffix}_sd"] = float(np.std(values)) if values else float("nan")
    row["bytes_round"] = _mean(record.bytes_down + record.bytes_up for record in passed)
    row["seconds_round"] = _mean(record.seconds for record in passed)
    return row | {"seeds_done": len(done), "seeds": len(own)}


def _score(records: Sequence[Any], kind: str, name: str) -> float | None:
    """Mean of a score over these rounds; None where not all were scored."""
    scores = [getattr(record, kind) for record in records]
    return None if None in scores else float(np.mean([getattr(score, name) for score in scores]))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return float(np.mean(found)) if found else float("nan")


def _cells(row: dict[str, Any]) -> list[str]:
    def cell(name: str, scale: float, digits: int) -> str:
        mean, sd = scale * row[f"{name}_mean"], scale * row[f"{name}_sd"]
        return "–" if mean != mean else f"{mean:.{digits}f} ± {sd:.{digits}f}"

    scores = [cell("accuracy", 100.0, 1), cell("nll", 1.0, 3), cell("ensemble_accuracy", 100.0, 1)]
    costs = ["–" if x != x else f"{x:.3g}" for x in (1e-6 * row["bytes_round"], row["seconds_round"])]
    return [row["method"], str(row["round"]), *scores, cell("ensemble_nll", 1.0, 3), *costs, _seeds(row)]


def _seeds(row: dict[str, Any]) -> str:
    return str(row["seeds"]) if row["seeds_done"] == row["seeds"] else f"{row['seeds_done']} of {row['seeds']}"


def _runs(outcomes: Sequence[Any]) -> list[dict[str, Any]]:
    rows = []
    for outcome in outcomes:
        run = {"method": outcome.label, "seed": outcome.seed, "status": outcome.status.name}
        run |= {"message": outcome.message, "rounds": outcome.rounds}
        run["seconds"] = sum(record.seconds for record in outcome.history)
        for name in ("seconds", "bytes_down", "bytes_up"):
            run[f"{name}_round"] = _mean(getattr(record, name) for record in outcome.history)
        run["curves"], run["last"] = _curves(outcome.history), outcome.last
        rows.append(run)
    return rows


def _curves(history: Sequence[Any]) -> dict[str, list[float]]:
    """Scores by round, of the rounds that were scored."""
    scored = [record for record in history if record.at_mean is not None]
    curves = {"round": [record.round for record in scored]}
    for prefix, kind in KINDS:
        scores = [getattr(record, kind) for record in scored]
        if None not in scores:
            curves |= {prefix + name: [getattr(score, name) for score in scores] for name in SCORES}
    return curves


def _machine() -> dict[str, Any]:
    import torch

    from .._version import __version__

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    processor = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "architecture": platform.machine()}
    return {**processor, "cuda": name, "torch": torch.__version__, "bayesadmm_np": __version__}


def _draw(experiment: Any, runs: Sequence[dict[str, Any]], table: Sequence[dict[str, Any]], folder: Path) -> list[str]:
    """Draw a heat map of every grid of two keys whose points are all in the table, and of everything else curves."""
    from ._experiment_plots import curves_of, draw_curves, draw_heatmap, in_words, new_stem

    several = "" if len(experiment.seeds) == 1 else "s"
    seeds, last = f"{len(experiment.seeds)} seed{several}", max(experiment.report)
    stems: list[str] = []
    mapped: list[str] = []
    drawn: list[str] = []
    for entry in experiment.methods:
        if experiment.sweep is None and len(entry.grid) == 2:
            own = [at.label for at in entry.expanded()]
            rows = [row for label in own for row in table if (row["method"], row["round"]) == (label, last)]
            title = f"{experiment.name}: {in_words(entry.label)}, round {last}, {seeds}"
            stems.append(new_stem(entry.label, stems))
            drawn += draw_heatmap(stems[-1], entry.grid, rows, title, folder)
            mapped += own
    curves = curves_of([run for run in runs if run["method"] not in mapped])
    return [*draw_curves(f"{experiment.name}: {seeds}", curves, folder), *drawn]
