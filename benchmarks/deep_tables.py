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
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cost_tables
import fedivon_figure
import numpy as np
import scale_figure
from papers.figures import NAMES, curves_of, draw_curves, draw_heatmap, draw_rounds, in_words
from papers.files import Experiment

from bayesadmm_np.demos import fig5b_logistic, style

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "deep"
PAGE = RESULTS / "tables.md"
PAGES = ROOT / "benchmarks" / "pages"
EXPERIMENTS = ROOT / "benchmarks" / "experiments"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- tables: benchmarks/deep_tables.py -->", "<!-- end of tables -->"
ENSEMBLE = ", ensemble"

Cells = tuple[str, ...]
# Accuracy in per cent and NLL after the rounds of the table: Tables 1, 2 and 4 of "Federated ADMM from Bayesian
# Duality". Its row "FedAvg/FedProx" repeats FedProx of the paper's earlier version, from which FedAvg comes here.
# FedLap-Func, and MNIST with ten clients, come from Table 1 of "Connecting Federated ADMM to Bayes", without NLL. The
# two versions differ for IVON-ADMM on MNIST with 100 clients: 88.8 ± 1.5, 93.6 ± 0.1 and 95.6 ± 0.1 in the earlier one.
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
        "FedAvg": (("70.4 ± 0.9", "74.3 ± 0.5", "76.0 ± 0.7"), ("0.78", "0.72", "0.67")),
        "FedProx": (("69.9 ± 0.4", "74.7 ± 0.6", "76.9 ± 0.9"), ("0.80", "0.71", "0.66")),
        "FedDyn": (("73.0 ± 0.6", "74.6 ± 0.4", "74.6 ± 0.5"), ("0.75", "0.70", "0.77")),
        "FedLap": (("71.3 ± 0.9", "74.3 ± 0.4", "77.6 ± 0.7"), ("0.75", "0.71", "0.65")),
        "FedLapCov": (("74.6 ± 0.7", "78.3 ± 1.0", "80.5 ± 0.6"), ("0.70", "0.63", "0.60")),
        "FedLapFunc": (("72.2 ± 0.9", "75.4 ± 0.8", "78.1 ± 0.7"), ("–", "–", "–")),
        "IVONADMM": (("77.0 ± 0.8", "81.4 ± 0.4", "82.1 ± 0.1"), ("0.65", "0.53", "0.51")),
        "IVONADMM, ensemble": (("77.0 ± 0.8", "81.5 ± 0.5", "82.3 ± 0.2"), ("0.65", "0.52", "0.50")),
    },
    "mnist_100_clients": {
        "FedAvg": (("89.4 ± 0.2", "91.8 ± 0.3", "94.1 ± 0.0"), ("0.67", "0.41", "0.24")),
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
        "FedLapFunc": (("97.9 ± 0.1", "98.2 ± 0.0"), ("–", "–")),
    },
    "mnist_10_clients_heterogeneous": {
        "FedAvg": (("97.5 ± 0.1", "97.9 ± 0.2", "98.0 ± 0.1"), ("–", "–", "–")),
        "FedProx": (("97.5 ± 0.1", "97.9 ± 0.1", "98.0 ± 0.1"), ("–", "–", "–")),
        "FedDyn": (("97.0 ± 0.2", "97.8 ± 0.0", "98.0 ± 0.1"), ("–", "–", "–")),
        "FedLap": (("97.4 ± 0.1", "98.0 ± 0.1", "98.2 ± 0.1"), ("–", "–", "–")),
        "FedLapCov": (("97.6 ± 0.1", "98.0 ± 0.2", "98.2 ± 0.1"), ("–", "–", "–")),
        "FedLapFunc": (("97.5 ± 0.1", "98.0 ± 0.1", "98.0 ± 0.1"), ("–", "–", "–")),
    },
    "fashion_100_clients": {
        "FedAvg": (("73.9 ± 0.3", "78.7 ± 0.3", "81.8 ± 0.3"), ("0.73", "0.60", "0.53")),
        "FedProx": (("73.3 ± 0.4", "78.4 ± 0.1", "81.6 ± 0.1"), ("0.74", "0.61", "0.53")),
        "FedDyn": (("75.7 ± 0.4", "81.4 ± 0.2", "82.2 ± 0.3"), ("0.66", "0.53", "0.51")),
        "FedLap": (("73.9 ± 0.3", "79.4 ± 0.2", "82.4 ± 0.3"), ("0.68", "0.59", "0.53")),
        "FedLapCov": (("76.9 ± 0.7", "81.3 ± 0.2", "83.0 ± 0.1"), ("0.64", "0.54", "0.49")),
        "FedLapFunc": (("77.0 ± 0.9", "80.0 ± 0.1", "81.9 ± 0.4"), ("–", "–", "–")),
        "IVONADMM": (("78.7 ± 0.1", "82.2 ± 0.1", "82.9 ± 0.2"), ("0.62", "0.50", "0.48")),
        "IVONADMM, ensemble": (("78.7 ± 0.1", "82.3 ± 0.1", "83.0 ± 0.2"), ("0.62", "0.50", "0.48")),
    },
    "cifar100_resnet20": {
        "FedAvg": (("39.8 ± 0.5", "39.8 ± 0.8", "39.3 ± 0.6"), ("2.6", "3.3", "4.0")),
        "FedProx": (("37.9 ± 0.4", "40.4 ± 0.9", "39.8 ± 0.8"), ("2.4", "2.6", "3.4")),
        "FedDyn": (("38.4 ± 0.5", "39.2 ± 0.8", "39.6 ± 0.4"), ("3.5", "3.2", "3.2")),
        "FedLap": (("40.1 ± 1.1", "40.4 ± 1.0", "39.7 ± 0.7"), ("2.9", "3.0", "3.2")),
        "IVONADMM": (("40.0 ± 1.0", "46.2 ± 0.4", "46.5 ± 0.6"), ("2.3", "2.1", "2.3")),
        "IVONADMM, ensemble": (("40.0 ± 1.0", "46.2 ± 0.4", "46.6 ± 0.6"), ("2.3", "2.1", "2.2")),
        "IVONPVI": (("31.5 ± 0.5", "41.2 ± 0.6", "47.4 ± 0.5"), ("2.7", "2.2", "2.0")),
    },
    "cifar10_zenke": {
        "FedAvg": (("73.8 ± 0.5", "75.0 ± 0.5", "75.1 ± 0.3"), ("0.9", "1.1", "1.5")),
        "FedProx": (("73.8 ± 1.5", "75.0 ± 0.9", "75.4 ± 0.8"), ("0.9", "1.2", "1.5")),
        "FedDyn": (("72.7 ± 0.9", "77.4 ± 0.6", "79.4 ± 0.4"), ("1.0", "0.8", "0.7")),
        "FedLap": (("74.8 ± 1.3", "78.0 ± 1.2", "79.5 ± 1.4"), ("0.7", "0.6", "0.6")),
        "FedLapCov": (("75.1 ± 1.1", "77.6 ± 0.7", "79.2 ± 0.9"), ("0.7", "0.7", "0.6")),
        "FedLapFunc": (("76.0 ± 1.1", "78.5 ± 1.0", "79.5 ± 1.4"), ("–", "–", "–")),
        "IVONADMM": (("71.5 ± 1.8", "78.9 ± 0.8", "80.3 ± 0.6"), ("0.8", "0.6", "0.6")),
        "IVONADMM, ensemble": (("71.5 ± 1.8", "79.0 ± 0.8", "80.3 ± 0.6"), ("0.8", "0.6", "0.6")),
    },
    "cifar10_acar": {
        "FedAvg": (("62.8 ± 3.1", "65.4 ± 1.8", "66.0 ± 1.5"), ("1.1", "1.8", "2.3")),
        "FedProx": (("64.3 ± 2.0", "65.9 ± 1.6", "66.3 ± 1.4"), ("1.7", "2.2", "2.6")),
        "FedDyn": (("63.6 ± 1.1", "64.7 ± 0.6", "65.4 ± 1.0"), ("2.0", "3.6", "2.6")),
        "FedLap": (("60.2 ± 2.4", "66.4 ± 1.1", "66.5 ± 1.2"), ("1.1", "1.3", "1.8")),
        "FedLapCov": (("58.4 ± 2.4", "65.4 ± 1.1", "67.5 ± 1.2"), ("1.2", "1.0", "1.0")),
        "IVONADMM": (("63.8 ± 1.4", "69.5 ± 0.8", "70.2 ± 0.7"), ("1.0", "1.0", "1.5")),
        "IVONADMM, ensemble": (("63.8 ± 1.4", "69.5 ± 0.8", "70.3 ± 0.6"), ("1.0", "1.0", "1.4")),
    },
}
for split in ("heterogeneous", "homogeneous"):
    PAPER[f"raw_fashion_{split}"] = PAPER[f"fashion_{split}"]
PAPER["paper_mnist_100_clients"] = PAPER["mnist_100_clients"]
PAPER_ROUNDS = dict.fromkeys(("mnist_100_clients", "paper_mnist_100_clients", "cifar100_resnet20"), (25, 50, 100))
PAPER_ROUNDS["mnist_10_clients_homogeneous"] = (10, 20)
SIX = ("FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "FedLapFunc")
BEST_OF_THREE = {
    "raw_fashion_homogeneous": ("80.3 ± 0.1", "80.5 ± 0.1", "78.5 ± 0.3", "80.4 ± 0.1", "82.0 ± 0.2", "80.4 ± 0.1"),
    "raw_fashion_heterogeneous": ("76.4 ± 0.5", "77.4 ± 0.8", "75.0 ± 0.6", "78.1 ± 0.6", "80.9 ± 0.5", "78.5 ± 0.7"),
    "mnist_10_clients_homogeneous": (
        "98.2 ± 0.0",
        "98.3 ± 0.1",
        "98.2 ± 0.0",
        "98.2 ± 0.0",
        "98.3 ± 0.0",
        "98.2 ± 0.0",
    ),
    "mnist_10_clients_heterogeneous": (
        *("98.0 ± 0.1", "98.1 ± 0.1", "98.1 ± 0.0"),
        *("98.2 ± 0.1", "98.2 ± 0.1", "98.1 ± 0.1"),
    ),
}
"""Table 2 of "Connecting Federated ADMM to Bayes": the largest of three accuracies, in the order of `SIX`."""
NEVER = dict.fromkeys(SIX)
ROUNDS_TO: dict[str, dict[float, dict[str, int | None]]] = {
    "raw_fashion_homogeneous": {
        75: dict(zip(SIX, (15, 15, 9, 15, 9, 12), strict=True)),
        78: dict(zip(SIX, (25, 26, 17, 28, 15, 24), strict=True)),
    },
    "raw_fashion_heterogeneous": {
        75: dict(zip(SIX, (26, 22, 24, 24, 11, 20), strict=True)),
        78: NEVER | {"FedLapCov": 22},
    },
    "mnist_10_clients_homogeneous": {97.5: dict(zip(SIX, (6, 6, 4, 5, 4, 6), strict=True))},
    "mnist_10_clients_heterogeneous": {97.5: dict(zip(SIX, (10, 10, 18, 11, 9, 9), strict=True))},
}
"""Its Table 3: rounds to an accuracy in per cent; no number where some seed never has it."""
LIKE_THE_PAPERS = ("{} plain mean", "{} moments kept", "{}")
"""Labels of a method as the papers ran it, the first that exists."""
FRONT = {
    "raw_fashion_heterogeneous": ("FedAvg", "FedAvg plain mean", "FedLapCov", "IVONADMM", "IVONADMM rho=0.4"),
    "raw_fashion_homogeneous": ("FedAvg", "FedAvg moments kept", "FedLapCov", "IVONADMM"),
}
"""Lines that carry the finding; the others of the figure are thin and grey."""
ALSO = {
    "raw_fashion_heterogeneous": ("IVONADMM rho=0.4", "FedLap equal damping", "FedLapCov"),
    "mnist_100_clients": ("FedLap (best of ten)", "FedLapCov (best of ten)"),
    "paper_mnist_100_clients": ("IVONADMM batches of 32",),
}
"""Variants that the page shows; tables.md has them all."""
SMALL = {
    "heart": {
        "FedAvg": ("72.6 ± 1.1", "77.6 ± 0.6"),
        "FedProx": ("77.5 ± 1.5", "77.7 ± 0.5"),
        "FedDyn": ("76.9 ± 0.5", "78.1 ± 0.6"),
        "FedLap": ("77.5 ± 1.1", "77.7 ± 0.5"),
        "FedLapCov": ("79.2 ± 1.8", "80.0 ± 0.5"),
    },
    "credit": {
        "FedAvg": ("81.4 ± 0.6", "84.6 ± 1.1", "86.8 ± 0.6", "88.7 ± 0.2"),
        "FedProx": ("82.1 ± 0.5", "84.2 ± 0.4", "87.4 ± 0.1", "88.5 ± 0.6"),
        "FedDyn": ("81.8 ± 1.4", "86.3 ± 1.5", "86.9 ± 0.5", "87.9 ± 0.3"),
        "FedLap": ("83.6 ± 0.4", "87.0 ± 0.4", "88.0 ± 0.6", "88.2 ± 0.2"),
        "FedLapCov": ("84.4 ± 0.5", "86.5 ± 1.0", "87.7 ± 0.7", "89.1 ± 0.7"),
    },
}
"""Tables 1 and 4 of "Connecting Federated ADMM to Bayes", at the rounds of small_tables.py."""
FEDIVON = {
    ("FedAvg", "at_mean"): (62.25, 0.0981, 1.199, 0.5191),
    ("FedLaplace", "at_mean"): (61.80, 0.1072, 1.233, 0.5284),
    ("FedIvon", "at_mean"): (62.92, 0.0983, 1.150, 0.5114),
    ("FedIvon", "ensemble"): (62.54, 0.0312, 1.079, 0.5021),
}
"""Table 1 of "FedIvon" on CIFAR-10: accuracy in per cent, ECE, NLL and Brier score."""
MINUTES = {
    "paper_mnist_100_clients": 17,
    "fashion_100_clients": 12,
    "mnist_10_clients_heterogeneous": 4,
    "raw_fashion_heterogeneous": 1,
    "fedivon_cifar10": 6,
    "fedivon_mnist": 6,
    "fedivon_fashion": 6,
    "fedivon_skew_mnist": 10,
    "fedivon_skew_cifar10": 10,
    "fedivon_drift_fashion": 10,
    "fedivon_epochs": 6,
}
"""Processor minutes of a run on the machine of the results, where no run is done."""
GPU = {"cifar10_zenke": 3, "cifar10_acar": 2, "cifar100_resnet20": 6}
"""Hours of a run on one GPU, estimated from the products of a step; on a processor each takes days."""
MOST, ROUNDING = 1.0, 0.1
"""Largest difference in percentage points that counts as agreement; rounding error of a printed mean and its sd."""


def name_of(label: str, samples: int = 32) -> str:
    method, *rest = label.removesuffix(ENSEMBLE).split(" ", 1)
    words = [NAMES.get(method, method), *rest, *([f"(mean of {samples} samples)"] if label.endswith(ENSEMBLE) else [])]
    return " ".join(words)


def failed(row: dict[str, Any]) -> int:
    """Seeds whose run ended before the round; older results have no seeds that were not run."""
    return int(row.get("seeds_failed", row["seeds"] - row["seeds_done"]))


def missing(row: dict[str, Any]) -> int:
    """Seeds that were not run."""
    return int(row["seeds"]) - int(row["seeds_done"]) - failed(row)


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
                part = f" ({failed(row)} of {row['seeds']} seeds diverged)" if failed(row) else ""
                part += f" ({row['seeds_done']} of {row['seeds']} seeds)" if missing(row) else ""
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
        name, *rest = " ".join(match[1].split()).split("|")
        return MAKERS[name](*rest) if name in MAKERS else number(name, *rest)

    return re.sub(r"\{\{(.+?)\}\}", value, text, flags=re.DOTALL)


def number(stem: str, method: str, at: str, name: str) -> str:
    """One mean over seeds; accuracies in per cent."""
    (row,) = [row for row in results_of(stem)["table"] if (row["method"], row["round"]) == (method, int(at))]
    return _written(row[f"{name}_mean"], name)


def _written(value: float, name: str) -> str:
    return f"{100.0 * value:.1f}" if name.startswith("accuracy") else f"{value:.2f}"


def span(stem: str, at: str, name: str) -> str:
    """The least and the largest mean of all methods."""
    values = [row[f"{name}_mean"] for row in results_of(stem)["table"] if row["round"] == int(at)]
    known = [value for value in values if value is not None]
    return f"{_written(min(known), name)} to {_written(max(known), name)}"


def picture(stem: str) -> str:
    return f"![{results_of(stem)['experiment']['name']}](figures/{stem}.png)"


def by_method(stem: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Rows of a table by method and round."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in results_of(stem)["table"]:
        found.setdefault(row["method"], {})[row["round"]] = row
    return found


def short_table(stem: str, name: str) -> str:
    """Verdict; each method as the papers ran it, with ours, the paper's and the mark at each round; command; figure."""
    rounds, experiment = PAPER_ROUNDS.get(stem, (10, 25, 50)), results_of(stem)["experiment"]["name"]
    lines = [verdict(stem, name), "", "| method | " + " | ".join(f"round {at}" for at in rounds) + " |"]
    lines += ["|---|" + "---:|" * len(rounds)]
    shown = [as_run(stem, method) for method in PAPER[stem]]
    for label in (label for label in by_method(stem) if label in (*shown, *ALSO.get(stem, ()))):
        own, theirs = by_method(stem)[label], papers_cells(stem, label)
        cells = [cell(own[at], name, text) for at, text in zip(rounds, theirs, strict=True)]
        lines.append(f"| {in_words(label)} | " + " | ".join(cells) + " |")
    command = f"python -m benchmarks.papers benchmarks/experiments/{stem}.toml"
    return "\n".join([f"### {experiment}", "", *lines, "", f"Run: `{command}`", "", picture(stem)])


def papers_cells(stem: str, method: str) -> Cells:
    """The paper's accuracies for a method or a variant of it."""
    none = (("–",) * len(PAPER_ROUNDS.get(stem, (10, 25, 50))),)
    return PAPER[stem].get(method.split(" ")[0], none)[0]


def cell(row: dict[str, Any], name: str, paper: str) -> str:
    mean = row[f"{name}_mean"]
    ours = f"{failed(row)} of {row['seeds']} diverged" if failed(row) else "–" if mean is None else _written(mean, name)
    ours += f", {row['seeds_done']} of {row['seeds']} seeds" if missing(row) else ""
    return ours if paper == "–" else f"{ours} ({paper.split(' ')[0]}) {agreement(row, name, paper)}".rstrip()


def agreement(row: dict[str, Any], name: str, paper: str) -> str:
    """✓ where every seed reached the round, and the means differ by at most both deviations together and by `MOST`.

    Without a mark where no seed failed, and some were not run.
    """
    if paper == "–":
        return "–"
    if failed(row) or row[f"{name}_mean"] is None:
        return "✗"
    sd = float(paper.split(" ± ")[1])
    near = min(100.0 * row[f"{name}_sd"] + sd + ROUNDING, MOST)
    return "" if missing(row) else "✓" if _difference(row, name, paper) <= near else "✗"


def _difference(row: dict[str, Any], name: str, paper: str) -> float:
    return abs(100.0 * float(row[f"{name}_mean"]) - float(paper.split(" ± ")[0]))


def verdict(stem: str, name: str) -> str:
    """One line: methods reproduced at every round, by a variant alone, or not; with fewer seeds; and not run."""
    rounds, own = PAPER_ROUNDS.get(stem, (10, 25, 50)), by_method(stem)
    heads = ("Reproduced", "Reproduced with a difference that is explained", "Not reproduced", "Not run")
    held: dict[str, list[str]] = {head: [] for head in heads}

    def marks(label: str) -> set[str]:
        theirs = papers_cells(stem, label)
        return {agreement(own[label][at], name, text) for at, text in zip(rounds, theirs, strict=True)}

    for method in (method for method in PAPER[stem] if not method.endswith(ENSEMBLE)):
        label = as_run(stem, method)
        if label is None:
            held["Not run"].append(in_words(method))
            continue
        others = [other for other in own if other.split(" ")[0] == method and other != label]
        variant = next((other for other in others if marks(other) == {"✓"}), None)
        last, words = own[label][rounds[-1]], ""
        if marks(label) == {"✓"}:
            held["Reproduced"].append(in_words(method))
        elif "✗" not in marks(label):
            ends = [own[label][at] for at in rounds], papers_cells(stem, label)
            far = max(
                (_difference(row, name, text) for row, text in zip(*ends, strict=True) if text != "–"), default=0.0
            )
            how = f"all cells within {MOST:g} point" if far <= MOST else f"up to {far:.1f} points off"
            head = f"Open ({last['seeds_done']} of {last['seeds']} seeds, {how})"
            held.setdefault(head, []).append(in_words(method))
        elif variant:
            held[heads[1]].append(f"{in_words(method)} ({variant.removeprefix(method).strip() or 'moments anew'})")
        else:
            if failed(last) and papers_cells(stem, label)[-1] != "–":
                words = f" ({failed(last)} of {last['seeds']} seeds diverged)"
            held["Not reproduced"].append(in_words(method) + words)
    parts = [
        f"{head}: {'all methods' if 1 < len(methods) == len(PAPER[stem]) else ', '.join(methods)}."
        for head, methods in held.items()
        if methods
    ]
    return "**Verdict.** " + " ".join(parts)


def ablation_verdict() -> str:
    """Whether every accuracy of the two large ρ is above every one of the two small ρ, at round 10."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in (row for row in results_of("fashion_ablation")["table"] if row["round"] == 10):
        found[float(row["method"].split("rho=")[1].split(" ")[0]) > 0.3].append(row["accuracy_mean"])
    holds = min(found[True]) > max(found[False])
    return f"**Verdict.** {'Reproduced in kind: small ρ is worse' if holds else 'Not reproduced'}."


def of_curves() -> str:
    """Tables 2 and 3 of "Connecting Federated ADMM to Bayes": best of three, and rounds to an accuracy."""
    stems = [stem for stem in BEST_OF_THREE if (RESULTS / f"{stem}.json").exists()]
    heads = ["method"]
    for stem in stems:
        data = f"{'Fashion' if 'fashion' in stem else 'MNIST'}, {'equal' if 'homog' in stem else 'unequal'}"
        heads += [f"{data}: best", *(f"to {level:g} %" for level in ROUNDS_TO[stem])]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for method in SIX:
        cells = [in_words(method)]
        for stem in stems:
            label = as_run(stem, method, with_all_seeds=True)
            if label is None:
                cells += ["–"] * (1 + len(ROUNDS_TO[stem]))
                continue
            found, theirs = best_of_three(stem, label), BEST_OF_THREE[stem][SIX.index(method)]
            cells.append(f"{100 * found['best_mean']:.1f} ({theirs.split(' ')[0]}) {agreement(found, 'best', theirs)}")
            for level, theirs_at in ROUNDS_TO[stem].items():
                ours, paper = first_round(stem, label, level), theirs_at[method]
                cells.append(f"{'–' if ours is None else f'{ours:.0f}'} ({'–' if paper is None else paper})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_run(stem: str, method: str, *, with_all_seeds: bool = False) -> str | None:
    """Return the label of a method as the papers ran it, if it was run."""
    for label in (form.format(method) for form in LIKE_THE_PAPERS):
        rows = by_method(stem).get(label, {})
        if rows and not (with_all_seeds and any(row["seeds_done"] < row["seeds"] for row in rows.values())):
            return label
    return None


def _curves_of(stem: str, label: str) -> list[dict[str, list[float]]]:
    return [run["curves"] for run in results_of(stem)["runs"] if run["method"] == label]


def best_of_three(stem: str, label: str) -> dict[str, Any]:
    """Mean and deviation over seeds of the largest accuracy of the last three rounds."""
    best = [max(curve["accuracy"][-3:]) for curve in _curves_of(stem, label)]
    counts = {"seeds": len(best), "seeds_done": len(best)}
    return {"best_mean": float(np.mean(best)), "best_sd": float(np.std(best)), **counts}


def first_round(stem: str, label: str, level: float) -> float | None:
    """Mean over seeds of the first round with an accuracy; None where some seed never has it."""
    firsts = [
        next((at for at, x in zip(curve["round"], curve["accuracy"], strict=True) if 100 * x >= level), np.nan)
        for curve in _curves_of(stem, label)
    ]
    return None if np.isnan(np.mean(firsts)) else float(np.mean(firsts))


def of_curves_verdict() -> str:
    """Count the accuracies that agree, each of one method on one split with all seeds."""
    marks = re.findall("[✓✗]", of_curves())
    return f"**Verdict.** {marks.count('✓')} of {len(marks)} accuracies are reproduced."


def not_run() -> str:
    """Experiments whose file has runs that no result has, with the number of these runs, by the cost of a run."""
    groups: dict[str, list[str]] = {}
    for stem in sorted({*MINUTES, *GPU}):
        plan = Experiment.read(EXPERIMENTS / f"{stem}.toml")
        entries, runs = [entry.label for entry in plan.expanded()], []
        for path in (RESULTS / f"{stem}.json", fedivon_figure.KEPT / f"{stem}.json"):
            kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
            if kept and not _differences(kept["experiment"], plan.as_dict()):
                runs = kept["runs"]
        done = {(run["method"], run["seed"]) for run in runs}
        left = [(label, seed) for label in entries for seed in plan.seeds if (label, seed) not in done]
        if not left:
            continue
        cost = f"a GPU for {GPU[stem]} hours" if stem in GPU else f"{MINUTES[stem]} processor minutes"
        groups.setdefault(cost, []).append(f"`{stem}` ({len(left)} of {len(entries) * len(plan.seeds)})")
    return "\n".join(f"- {cost}: {', '.join(each)}" for cost, each in groups.items())


def divergence() -> str:
    """What each change does on one split: parameters that are pushed away, and the round at which the run ended."""
    found = json.loads((ROOT / "benchmarks" / "results" / "divergence.json").read_text(encoding="utf-8"))["runs"]
    lines = ["| change | split of seed | pushed away | end |", "|---|---:|---:|---|"]
    for run in found:
        share, ended = 100.0 * max(run["concave"]), run["status"] == "DIVERGED"
        end = f"diverged in round {run['rounds'] + 1}" if ended else f"none in {run['rounds']} rounds"
        lines.append(f"| {run['variant']} | {run['seed']} | {share:.2f} % | {end} |")
    return "\n".join(lines)


@cache
def _small() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS.parent / "small_tables.json").read_text(encoding="utf-8"))
    return found


def small_verdict(name: str) -> str:
    return small_table(name).split("\n")[0]


def small_table(name: str) -> str:
    """A table of logistic regressions: verdict; the setting that is best at the last round, and the worst there."""
    rounds, papers, lines = _small()["report"][name], SMALL[name], []
    for method, theirs in papers.items():
        done = [np.array(one["accuracy"]) for one in _small()[name][method] if not one["lost"]]
        best, worst = (pick(done, key=lambda each: each[-1].mean()) for pick in (max, min))
        rows = [{"seeds": 3, "seeds_done": 3, "best_mean": x.mean(), "best_sd": x.std()} for x in best]
        cells = [
            f"{100 * row['best_mean']:.1f} ({text.split(' ')[0]}) {agreement(row, 'best', text)}"
            for row, text in zip(rows, theirs, strict=True)
        ]
        lines.append(f"| {in_words(method)} | " + " | ".join(cells) + f" | {100 * worst[-1].mean():.1f} |")
    marks = re.findall("[✓✗]", "".join(lines))
    head = [f"**Verdict.** {marks.count('✓')} of {len(marks)} accuracies are reproduced.", ""]
    head.append("| method | " + " | ".join(f"round {at}" for at in rounds) + " | worst |")
    return "\n".join([*head, "|---|" + "---:|" * (len(rounds) + 1), *lines])


def best_of_sweep(name: str, method: str) -> str:
    """Accuracy in per cent of the setting that is best at the last round."""
    done = [np.mean(one["accuracy"][-1]) for one in _small()[name][method] if not one["lost"]]
    return f"{100 * max(done):.1f}"


def two_clients(method: str, work: str) -> str:
    """The least rounds to one per cent of the optimum, over the values of δ or ρ."""
    own = [
        one["rounds"] for one in _small()["two clients"][method] if one["work"] == work and one["rounds"] is not None
    ]
    return str(min(own))


def two_clients_nll(delta: str) -> str:
    return f"{_small()['two clients']['test NLL'][delta]:.3f}"


def fedivon_cifar() -> str:
    """Table 1 of the FedIvon paper on CIFAR-10: verdict, and ours beside the paper's, of the seeds that were run."""
    stem, score_of = "fedivon_cifar10", fedivon_figure.mean
    if not (fedivon_figure.KEPT / f"{stem}.json").exists():
        return "**Verdict.** Not run at full size."
    methods = fedivon_figure.methods_of(stem)
    lines = ["| method | seeds | accuracy/% | ECE | NLL | Brier |", "|---|---:|---:|---:|---:|---:|"]
    near = []
    for (method, kind), theirs in FEDIVON.items():
        if method in methods:
            cells = [f"{len(fedivon_figure.runs_of(stem, method))}"]
            for name, paper in zip(("accuracy", "ece", "nll", "brier"), theirs, strict=True):
                scale, digits = (100.0, 1) if name == "accuracy" else (1.0, 3)
                cells.append(f"{scale * score_of(stem, method, name, kind):.{digits}f} ({paper:.{digits}f})")
            near.append(abs(100.0 * score_of(stem, method, "accuracy", kind) - theirs[0]) <= MOST)
            how = ", samples" if kind == fedivon_figure.SAMPLED else ""
            lines.append(f"| {in_words(method)}{how} | " + " | ".join(cells) + " |")
    claims = {"accuracies within a point": all(near)}
    if "FedIvon" in methods:
        ece = [score_of(stem, "FedIvon", "ece", kind) for kind in (fedivon_figure.SAMPLED, fedivon_figure.MEAN)]
        claims["sampling lowers the ECE"] = ece[0] < ece[1]
        if "FedAvg" in methods:
            nll = score_of(stem, "FedIvon", "nll", fedivon_figure.SAMPLED), score_of(stem, "FedAvg", "nll")
            claims["FedIvon has a lower NLL than FedAvg"] = nll[0] < nll[1]
    words = "; ".join(f"{claim} {'✓' if holds else '✗'}" for claim, holds in claims.items())
    return "\n".join([f"**Verdict.** Table 1, CIFAR-10 at full size: {words}.", "", *lines])


MAKERS: dict[str, Callable[..., str]] = {
    "table": short_table,
    "range": span,
    "tables 2 and 3 verdict": of_curves_verdict,
    "picture": picture,
    "not run": not_run,
    "divergence": divergence,
    "small table": small_table,
    "small verdict": small_verdict,
    "best of sweep": best_of_sweep,
    "two clients": two_clients,
    "two clients NLL": two_clients_nll,
    "fedivon cifar": fedivon_cifar,
    "scale": lambda *what: scale_figure.number(scale_figure.kept(), *what),
    "fedivon held": lambda: f"{(made := fedivon_figure.claims()).count('✓')} of {sum(map(made.count, '✓✗='))}",
    "ablation": ablation_verdict,
    **cost_tables.MAKERS,
}


def draw(stem: str, results: dict[str, Any], folder: Path = FIGURES) -> None:
    """Draw an experiment: its grid of two keys, or its curves; where rounds were not kept, the rounds of its table."""
    experiment, table = results["experiment"], results["table"]
    counts = {row["seeds"] - missing(row) for row in table}
    last, entry = max(experiment["report"]), experiment["methods"][0]
    low, high = min(counts), max(counts)
    words = f"{low} to {high} seeds" if low < high else "1 seed" if high == 1 else f"{high} seeds"
    if experiment["sweep"] is None and len(entry["grid"]) == 2:
        rows = [row for row in table if row["round"] == last]
        title = f"{experiment['name']}: {in_words(entry['label'])}, round {last}, {words}"
        draw_heatmap(stem, entry["grid"], rows, title, folder)
        return
    title = f"{experiment['name']}: {words}"
    if all("curves" in run for run in results["runs"]):
        draw_curves(title, curves_of(results["runs"]), folder, stem, FRONT.get(stem))
    else:
        draw_rounds(title, table, PAPER.get(stem, {}), folder, stem)


def draw_at_the_papers_size(folder: Path = FIGURES) -> None:
    """Draw figure 5b of MNIST from `results/fig5b_mnist.json`, which `bayesadmm reproduce` made."""
    with style.context():
        style.save(fig5b_logistic.draw(cost_tables.results("fig5b_mnist")), folder, "fig5b_mnist")
    (folder / "fig5b_mnist.svg").unlink()


def page(text: str, results: Path = RESULTS) -> str:
    """The page with the tables of a folder between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page must hold {BEGIN!r}, and {END!r} after it.")
    paths = sorted(sorted(results.glob("*.json"), reverse=True), key=lambda path: path.stem not in PAPER)
    lines = [line for path in paths for line in section(path)]
    lines += ["## Best of three rounds, and rounds to an accuracy", "", of_curves(), ""]
    lines += ["## Credit approval, ten equal clients", "", small_table("credit"), ""]
    lines += ["## FedIvon in kind", "", fedivon_figure.claims(), "", fedivon_figure.personal(), ""]
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n{END}{after}"


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What two experiments do not have in common; keys of the files that came later are not compared."""

    def differs(one: Any, other: Any) -> bool:
        return any(one[key] != other[key] for key in one if key in other) if isinstance(one, dict) else one != other

    return [key for key in ("data", "model", "rounds", "seeds", "training") if differs(old[key], new[key])]


def take(folder: Path) -> None:
    """Keep the results of a folder, beside those of methods that an earlier result of the experiment has alone."""
    path, new = RESULTS / f"{folder.name}.json", json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        own = {run["method"] for run in new["runs"]}
        if others := _differences(old["experiment"], new["experiment"]):
            raise SystemExit(f"{path.name} has other {', '.join(others)} than {folder}; delete it first.")
        others = [run for run in old["runs"] if run["method"] not in own]
        new["runs"] += [{"machine": old["machine"], **run} for run in others]
        new["table"] += [row for row in old["table"] if row["method"] not in own]
        order = {entry["label"]: k for k, entry in enumerate(new["experiment"]["methods"])}
        for rows in (new["runs"], new["table"]):
            rows.sort(key=lambda row: order[row["method"]])
    path.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders of results to keep")
    for folder in parser.parse_args().take:
        take(folder)
    for path in RESULTS.glob("*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        if path.stem in PAPER or results["experiment"]["sweep"] is None:  # the curves of a mere sweep say nothing
            draw(path.stem, results)
    draw_at_the_papers_size()
    for path in PAGES.glob("*.md"):
        (ROOT / "docs" / path.name).write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
