"""The papers' tables of networks beside ours: reads results of `benchmarks.papers`, writes pages of docs/.

python -m benchmarks.papers benchmarks/experiments/fashion_heterogeneous.toml --out runs/fashion_heterogeneous
python benchmarks/deep_tables.py --take runs/fashion_heterogeneous     # into benchmarks/results/deep
python benchmarks/deep_tables.py                                       # writes pages and figures anew

benchmarks/results/deep/tables.md has all tables. Pages of benchmarks/pages/ become docs/, with what stands in
double braces replaced: {{STEM|METHOD|ROUND|SCORE}} by a number of results/deep/STEM.json, and {{NAME|...}} by what a
function of `MAKERS` returns.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fedivon_figure
import numpy as np
import scale_figure
from papers.figures import NAMES, PANELS, Curve, curves_of, draw_curves, draw_heatmap, in_words

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "deep"
PAGE = RESULTS / "tables.md"
PAGES = ROOT / "benchmarks" / "pages"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- tables: benchmarks/deep_tables.py -->", "<!-- end of tables -->"
ENSEMBLE = ", ensemble"

Cells = tuple[str, ...]
# Accuracy in per cent and NLL after the rounds of the table. Tables 1, 2 and 4 of "Federated ADMM from Bayesian
# Duality". Their row "FedAvg/FedProx" stands for both where nothing else is known; for Fashion-MNIST the accuracies of
# FedAvg, and those of FedLap-Func, are of Table 1 of "Connecting Federated ADMM to Bayes", without NLL.
PAPER: dict[str, dict[str, tuple[Cells, Cells]]] = {
    "fashion_homogeneous": {
        "FedAvg": (("72.3 ± 0.4", "77.7 ± 0.3", "80.0 ± 0.2"), ("0.70", "0.61", "0.56")),
        "FedProx": (("72.2 ± 0.3", "77.4 ± 0.1", "80.3 ± 0.1"), ("0.71", "0.61", "0.56")),
        "FedDyn": (("75.3 ± 0.8", "77.5 ± 0.8", "78.2 ± 0.5"), ("0.67", "0.63", "0.63")),
        "FedLap": (("72.1 ± 0.2", "77.1 ± 0.1", "80.2 ± 0.1"), ("0.71", "0.62", "0.57")),
        "FedLapCov": (("75.0 ± 0.6", "79.8 ± 0.4", "81.8 ± 0.1"), ("0.67", "0.59", "0.56")),
        "FedLapFunc": (("73.7 ± 0.7", "77.9 ± 0.3", "80.0 ± 0.2"), ("–", "–", "–")),
        "IVONADMM": (("80.4 ± 0.2", "83.1 ± 0.1", "83.4 ± 0.1"), ("0.56", "0.53", "0.60")),
        "IVONADMM, ensemble": (("80.6 ± 0.2", "83.5 ± 0.1", "84.1 ± 0.2"), ("0.55", "0.50", "0.53")),
    },
    "fashion_heterogeneous": {
        "FedAvg": (("70.4 ± 0.9", "74.3 ± 0.5", "76.0 ± 0.7"), ("–", "–", "–")),
        "FedProx": (("69.9 ± 0.4", "74.7 ± 0.6", "76.9 ± 0.9"), ("0.80", "0.71", "0.66")),
        "FedDyn": (("73.0 ± 0.6", "74.6 ± 0.4", "74.6 ± 0.5"), ("0.75", "0.70", "0.77")),
        "FedLap": (("71.3 ± 0.9", "74.3 ± 0.4", "77.6 ± 0.7"), ("0.75", "0.71", "0.65")),
        "FedLapCov": (("74.6 ± 0.7", "78.3 ± 1.0", "80.5 ± 0.6"), ("0.70", "0.63", "0.60")),
        "FedLapFunc": (("72.2 ± 0.9", "75.4 ± 0.8", "78.1 ± 0.7"), ("–", "–", "–")),
        "IVONADMM": (("77.0 ± 0.8", "81.4 ± 0.4", "82.1 ± 0.1"), ("0.65", "0.53", "0.51")),
        "IVONADMM, ensemble": (("77.0 ± 0.8", "81.5 ± 0.5", "82.3 ± 0.2"), ("0.65", "0.52", "0.50")),
    },
    "mnist_100_clients": {
        "FedAvg": (("89.6 ± 0.4", "91.8 ± 0.5", "94.0 ± 0.4"), ("0.59", "0.36", "0.22")),
        "FedProx": (("89.6 ± 0.4", "91.8 ± 0.5", "94.0 ± 0.4"), ("0.59", "0.36", "0.22")),
        "FedDyn": (("89.8 ± 0.1", "92.6 ± 0.2", "94.9 ± 0.1"), ("0.60", "0.33", "0.18")),
        "FedLap": (("89.7 ± 0.3", "92.0 ± 0.4", "94.4 ± 0.3"), ("0.63", "0.38", "0.22")),
        "FedLapCov": (("91.0 ± 0.4", "92.9 ± 0.4", "94.9 ± 0.3"), ("0.47", "0.29", "0.18")),
        "IVONADMM": (("91.0 ± 0.1", "94.2 ± 0.1", "96.0 ± 0.1"), ("0.31", "0.19", "0.13")),
        "IVONADMM, ensemble": (("91.0 ± 0.1", "94.2 ± 0.1", "96.0 ± 0.1"), ("0.31", "0.19", "0.13")),
    },
    "mnist_10_clients_homogeneous": {
        "FedAvg": (("97.9 ± 0.0", "98.1 ± 0.1"), ("–", "–")),
        "FedProx": (("97.9 ± 0.1", "98.2 ± 0.1"), ("–", "–")),
        "FedDyn": (("98.0 ± 0.1", "98.1 ± 0.1"), ("–", "–")),
        "FedLap": (("98.0 ± 0.0", "98.2 ± 0.0"), ("–", "–")),
        "FedLapCov": (("98.0 ± 0.1", "98.2 ± 0.1"), ("–", "–")),
    },
    "cifar10_zenke": {
        "FedAvg": (("73.8 ± 1.5", "75.0 ± 0.9", "75.4 ± 0.8"), ("0.9", "1.2", "1.5")),
        "FedDyn": (("72.7 ± 0.9", "77.4 ± 0.6", "79.4 ± 0.4"), ("1.0", "0.8", "0.7")),
        "FedLap": (("74.8 ± 1.3", "78.0 ± 1.2", "79.5 ± 1.4"), ("0.7", "0.6", "0.6")),
        "IVONADMM": (("71.5 ± 1.8", "78.9 ± 0.8", "80.3 ± 0.6"), ("0.8", "0.6", "0.6")),
        "IVONADMM, ensemble": (("71.5 ± 1.8", "79.0 ± 0.8", "80.3 ± 0.6"), ("0.8", "0.6", "0.6")),
    },
    "cifar10_acar": {
        "FedAvg": (("64.3 ± 2.0", "65.9 ± 1.6", "66.3 ± 1.4"), ("1.7", "2.2", "2.6")),
        "FedDyn": (("63.6 ± 1.1", "64.7 ± 0.6", "65.4 ± 1.0"), ("2.0", "3.6", "2.6")),
        "FedLap": (("60.2 ± 2.4", "66.4 ± 1.1", "66.5 ± 1.2"), ("1.1", "1.3", "1.8")),
        "IVONADMM": (("63.8 ± 1.4", "69.5 ± 0.8", "70.2 ± 0.7"), ("1.0", "1.0", "1.5")),
        "IVONADMM, ensemble": (("63.8 ± 1.4", "69.5 ± 0.8", "70.3 ± 0.6"), ("1.0", "1.0", "1.4")),
    },
}
for split in ("heterogeneous", "homogeneous"):
    PAPER[f"raw_fashion_{split}"] = PAPER[f"fashion_{split}"]
PAPER["paper_mnist_100_clients"] = PAPER["mnist_100_clients"]
PAPER_ROUNDS = {"mnist_100_clients": (25, 50, 100), "paper_mnist_100_clients": (25, 50, 100)}
PAPER_ROUNDS["mnist_10_clients_homogeneous"] = (10, 20)


def name_of(label: str, samples: int = 32) -> str:
    method, *rest = label.removesuffix(ENSEMBLE).split(" ", 1)
    words = [NAMES.get(method, method), *rest, *([f"(mean of {samples} samples)"] if label.endswith(ENSEMBLE) else [])]
    return " ".join(words)


def score(row: dict[str, Any], kind: str, scale: float, digits: int) -> str:
    mean, sd = row[f"{kind}_mean"], row[f"{kind}_sd"]
    if mean is None:
        return "–"
    spread = f" ± {scale * sd:.{digits}f}" if row["seeds_done"] > 1 else ""
    return f"{scale * mean:.{digits}f}{spread}"


def table(stem: str, results: dict[str, Any]) -> list[str]:
    """One line a method and round: our accuracy and NLL beside the paper's, and where they are known ECE and Brier.

    Also the means over the last three rounds, where every round was scored.
    """
    samples = results["experiment"]["training"].get("ensemble", 32)
    paper, rounds = PAPER.get(stem, {}), PAPER_ROUNDS.get(stem, (10, 25, 50))
    lines = ["| method | round | accuracy/% | paper | NLL | paper |", "|---|---:|---:|---:|---:|---:|"]
    has_means = any(row.get("accuracy_last3_mean") is not None for row in results["table"])
    if has_means:  # the papers' numbers are such means
        lines = [
            "| method | round | accuracy/%, mean of 3 rounds | the round | paper | NLL, mean of 3 | the round | paper |"
        ]
        lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    is_calibrated = any("ece_mean" in row for row in results["table"])  # older results have no such scores
    if is_calibrated:
        lines = [lines[0] + " ECE/% | Brier |", lines[1] + "---:|---:|"]
    for method in dict.fromkeys(row["method"] for row in results["table"]):
        own = [row for row in results["table"] if row["method"] == method]
        kinds = [("", method)]
        if "IVON" in method and any(row["ensemble_accuracy_mean"] is not None for row in own):
            kinds.append(("ensemble_", method + ENSEMBLE))
        for prefix, label in kinds:
            for row in own:
                at = rounds.index(row["round"]) if row["round"] in rounds else None
                theirs = paper.get(label.split(" ")[0] if label == method else method.split(" ")[0] + ENSEMBLE)
                there = ("–", "–") if theirs is None or at is None else (theirs[0][at], theirs[1][at])
                part = "" if row["seeds_done"] == row["seeds"] else f" ({row['seeds_done']} of {row['seeds']} seeds)"
                accuracy, nll = score(row, f"{prefix}accuracy", 100.0, 1), score(row, f"{prefix}nll", 1.0, 2)
                if has_means:
                    accuracy = f"{score(row, f'{prefix}accuracy_last3', 100.0, 1)} | {accuracy}"
                    nll = f"{score(row, f'{prefix}nll_last3', 1.0, 2)} | {nll}"
                line = f"| {name_of(label, samples)}{part} | {row['round']} | {accuracy} | {there[0]} | {nll} |"
                line += f" {there[1]} |"
                if is_calibrated:
                    ece, brier = score(row, f"{prefix}ece", 100.0, 1), score(row, f"{prefix}brier", 1.0, 3)
                    line += f" {ece} | {brier} |"
                lines.append(line)
    return lines


def point_of(trial: dict[str, Any]) -> str:
    """Name a trial by its values."""
    fixed = {"method", "status", "rounds", "validation_accuracy", "validation_nll", "chosen"}
    return ", ".join(f"{k.removeprefix('solver.')} = {v}" for k, v in trial.items() if k not in fixed and v != "")


def costs(results: dict[str, Any]) -> list[str]:
    """Bytes and seconds of a round, and what the sweep chose."""
    lines = ["| method | chosen | MB a round | seconds a round |", "|---|---|---:|---:|"]
    for method in dict.fromkeys(row["method"] for row in results["table"]):
        own = [row for row in results["table"] if row["method"] == method]
        row = ([row for row in own if row["seconds_round"] is not None] or own)[-1]  # of all rounds done
        best = [trial for trial in results.get("sweep", []) if trial["method"] == method and trial["chosen"] == "yes"]
        words = ", ".join(point_of(trial) for trial in best) or "–"
        spent = [(row["bytes_round"], 1e-6), (row["seconds_round"], 1.0)]  # null where no run had a round
        megabytes, seconds = ("–" if value is None else f"{scale * value:.1f}" for value, scale in spent)
        lines.append(f"| {name_of(method)} | {words} | {megabytes} | {seconds} |")
    return lines


def trials(results: dict[str, Any]) -> list[str]:
    """Every trial of a sweep, for an experiment that is nothing else."""
    lines = ["| method | trial | validation accuracy/% | NLL |", "|---|---|---:|---:|"]
    for trial in results.get("sweep", []):
        scores = (trial["validation_accuracy"], 100.0, 1), (trial["validation_nll"], 1.0, 2)  # null where it failed
        found = " | ".join("–" if value is None else f"{scale * value:.{digits}f}" for value, scale, digits in scores)
        lines.append(f"| {name_of(trial['method'])} | {point_of(trial)} | {found} |")
    return [*lines, ""] if results.get("sweep") else []


def section(path: Path) -> list[str]:
    results = json.loads(path.read_text(encoding="utf-8"))
    experiment, machine = results["experiment"], results["machine"]
    cores, threads = machine["cores"], "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    where = f"{cores} {machine['architecture']} cores, {threads} a process"
    if machine["cuda"] != "none" and experiment["training"]["device"] != "cpu":
        where += f", {machine['cuda']}"
    seeds = "1 seed" if len(experiment["seeds"]) == 1 else f"{len(experiment['seeds'])} seeds"
    head = [f"## {experiment['name']}", ""]
    head += [f"`python -m benchmarks.papers benchmarks/experiments/{path.stem}.toml`; {seeds}; {where}.", ""]
    picture = FIGURES / f"{path.stem}.png"
    if picture.exists():
        head += [f"![{experiment['name']}](../../../docs/figures/{picture.name})", ""]
    if path.stem not in PAPER:
        return [*head, *trials(results)]
    return [*head, *table(path.stem, results), "", *costs(results), ""]


@cache
def results_of(stem: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8"))
    return found


def filled(text: str) -> str:
    """A page with its numbers; what does not exist is an error."""

    def value(match: re.Match[str]) -> str:
        name, *rest = match[1].split("|")
        return MAKERS[name](*rest) if name in MAKERS else number(name, *rest)

    return re.sub(r"\{\{(.+?)\}\}", value, text)


def number(stem: str, method: str, at: str, name: str) -> str:
    """One mean over seeds; accuracies in per cent."""
    (row,) = [row for row in results_of(stem)["table"] if (row["method"], row["round"]) == (method, int(at))]
    return _written(row[f"{name}_mean"], name)


def _written(value: float, name: str) -> str:
    return f"{100.0 * value:.1f}" if name.startswith("accuracy") else f"{value:.2f}"


def papers_number(stem: str, method: str, at: str, name: str) -> str:
    return PAPER[stem][method][name == "nll"][PAPER_ROUNDS.get(stem, (10, 25, 50)).index(int(at))]


def span(stem: str, at: str, name: str) -> str:
    """The least and the largest mean of all methods."""
    values = [row[f"{name}_mean"] for row in results_of(stem)["table"] if row["round"] == int(at)]
    known = [value for value in values if value is not None]
    return f"{_written(min(known), name)} to {_written(max(known), name)}"


def failures(stem: str, method: str) -> str:
    own = [run for run in results_of(stem)["runs"] if run["method"] == method]
    return f"{sum(run['status'] not in ('ROUND_LIMIT', 'STOPPED') for run in own)} of {len(own)}"


def trial_span(stem: str, method: str) -> str:
    own = [trial["validation_accuracy"] for trial in results_of(stem)["sweep"] if trial["method"] == method]
    return f"{100.0 * min(own):.0f} to {100.0 * max(own):.0f}"


def picture(stem: str) -> str:
    return f"![{results_of(stem)['experiment']['name']}](figures/{stem}.png)"


def short_table(stem: str, name: str) -> str:
    """One line a method: its score at the rounds of the paper, the paper's, and whether they agree; and the figure."""
    rounds, results = PAPER_ROUNDS.get(stem, (10, 25, 50)), results_of(stem)
    listed = ", ".join(map(str, rounds[:-1])) + f" and {rounds[-1]}"
    lines = [f"**{results['experiment']['name']}**, after {listed} rounds:", ""]
    lines += ["| method | ours | paper | agreement |", "|---|---:|---:|---:|"]
    for method in dict.fromkeys(row["method"] for row in results["table"]):
        own = {row["round"]: row for row in results["table"] if row["method"] == method}
        theirs = PAPER[stem].get(method.split(" ")[0], (("–",) * len(rounds),))[0]
        cells = [
            (_cell(own[at], name), text.split(" ")[0], agreement(own[at], name, text))
            for at, text in zip(rounds, theirs, strict=True)
        ]
        lines.append(
            f"| {in_words(method)} | " + " | ".join(" ".join(parts) for parts in zip(*cells, strict=True)) + " |"
        )
    return "\n".join([*lines, "", picture(stem)])


def _cell(row: dict[str, Any], name: str) -> str:
    if row[f"{name}_mean"] is None:
        return "–"
    return _written(row[f"{name}_mean"], name) + (
        "" if row["seeds_done"] == row["seeds"] else f" [{row['seeds_done']}]"
    )


def agreement(row: dict[str, Any], name: str, paper: str) -> str:
    """✓ where the difference is within the two standard deviations together, else the difference; – without numbers."""
    if row[f"{name}_mean"] is None or paper == "–":
        return "–"
    mean, sd = map(float, paper.split(" ± "))
    difference = 100.0 * row[f"{name}_mean"] - mean
    return "✓" if abs(difference) <= 100.0 * row[f"{name}_sd"] + sd else f"{difference:+.1f}".replace("-", "−")


MAKERS: dict[str, Callable[..., str]] = {
    "table": short_table,
    "paper": papers_number,
    "range": span,
    "failed": failures,
    "trials": trial_span,
    "picture": picture,
    "scale": lambda *what: scale_figure.number(scale_figure.kept(), *what),
    "fedivon standard": fedivon_figure.standard,
    "fedivon personal": fedivon_figure.personal,
    "fedivon epochs": fedivon_figure.epochs_table,
    "fedivon claims": fedivon_figure.claims,
    "scale table": lambda: scale_figure.table(scale_figure.kept()),
}


def draw(stem: str, results: dict[str, Any], folder: Path = FIGURES) -> None:
    """Draw an experiment: its grid of two keys, or its curves; where rounds were not kept, the rounds of its table."""
    experiment, table = results["experiment"], results["table"]
    (seeds, last), entry = (len(experiment["seeds"]), max(experiment["report"])), experiment["methods"][0]
    words = "1 seed" if seeds == 1 else f"{seeds} seeds"
    if experiment["sweep"] is None and len(entry["grid"]) == 2:
        rows = [row for row in table if row["round"] == last]
        title = f"{experiment['name']}: {in_words(entry['label'])}, round {last}, {words}"
        draw_heatmap(stem, entry["grid"], rows, title, folder)
        return
    kept = all("curves" in run for run in results["runs"])
    curves = curves_of(results["runs"]) if kept else table_curves(table)
    draw_curves(f"{experiment['name']}: {words}", curves, folder, stem)


def table_curves(table: list[dict[str, Any]]) -> list[Curve]:
    """The rounds that a table has of every method, for results that were made before rounds were kept."""
    found = []
    for method in dict.fromkeys(row["method"] for row in table):
        own = [row for row in table if row["method"] == method]
        done = [row for row in own if row["seeds_done"] == row["seeds"]]
        scores = [np.array([[row[f"{name}_{kind}"] for row in done] for name, *_ in PANELS]) for kind in ("mean", "sd")]
        ended = "" if len(done) == len(own) else f"not run beyond round {done[-1]['round']}" if done else "failed"
        found.append(Curve(method, [row["round"] for row in done], *scores, ended))
    return found


def page(text: str, results: Path = RESULTS) -> str:
    """The page with the tables of a folder between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page must hold {BEGIN!r}, and {END!r} after it.")
    paths = sorted(sorted(results.glob("*.json"), reverse=True), key=lambda path: path.stem not in PAPER)
    lines = [line for path in paths for line in section(path)]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders of results to keep")
    for folder in parser.parse_args().take:
        kept = RESULTS / folder.name
        shutil.copy(folder / "results.json", kept.with_suffix(".json"))
        if (folder / "sweep.csv").exists():
            shutil.copy(folder / "sweep.csv", RESULTS / f"{folder.name}_sweep.csv")
    for path in RESULTS.glob("*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in PAPER or results["experiment"]["sweep"] is None:  # the curves of a mere sweep say nothing
            draw(path.stem, results)
    for path in PAGES.glob("*.md"):
        (ROOT / "docs" / path.name).write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
