"""Tables of docs/benchmarks.md from benchmarks/results/*.json; `deep_tables.py` puts them into the page.

Every function returns Markdown, or a phrase with the numbers of a sentence. Nothing here runs a method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
Rows = list[dict[str, Any]]
MODE = ("guarded Newton", "FedLap-Cov", "Newton from zero")
POSTERIOR = ("guarded JointNewton", "accelerated PVI", "PVI")
ROUNDS = {"digits-diagonal": "digits, diagonal", "mnist-diagonal": "MNIST, diagonal", "digits-full": "digits, full"}
LEVELS = (1e-2, 1e-3, 1e-6)
FLOOR_SECONDS, BYTES_A_SECOND, PVI_ROUNDS = 5.0, 125e6, 7
"""Seconds of a round that the engine needs, the server's network (1 Gbit/s), and rounds of PVI on four hospitals."""


@cache
def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def markdown(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table whose first column is text, and whose other columns are numbers."""
    names = list(head)
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in (names, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(names) - 1), *lines[1:]])


def exchanges(counts: list[Any]) -> str:
    """Mean (largest) of the cases that end, and how many do not."""
    ended = [one[0] for one in counts if one]
    lost = len(counts) - len(ended)
    text = f"{np.mean(ended):.1f} ({max(ended)})" if ended else "–"
    return f"{text}, {lost} lost" if lost and ended else text


def floats(counts: list[Any]) -> str:
    sent = [one[1] for one in counts if one]
    return f"{np.mean(sent):.0f}" if sent else "–"


def mode_rows() -> Rows:
    return [row for row in results("exchanges")["rows"] if row["mode"]]


def mode_table() -> str:
    """Exchanges to the pooled mode by data set, and floats of a site over all."""
    found, lines = mode_rows(), []
    for name in [*dict.fromkeys(row["problem"] for row in found), "all"]:
        own = [row for row in found if name in ("all", row["problem"])]
        lines.append([name, len(own), *(exchanges([row[label] for row in own]) for label in MODE)])
    lines.append(["floats of a site", "", *(floats([row[label] for row in found]) for label in MODE)])
    return markdown(("data", "cases", *MODE), lines)


def mode_finding() -> str:
    """How often each method takes no more exchanges than Newton from zero, its start counted."""
    found = mode_rows()
    for row in found:
        assert row["Newton from zero"]
    never = sum(row["guarded Newton"][0] > row["Newton from zero"][0] for row in found)
    other = np.mean([row["FedLap-Cov"][0] <= row["Newton from zero"][0] for row in found])
    return (
        f"guarded Newton takes more exchanges than Newton from zero in {never} of {len(found)} cases. "
        f"FedLap-Cov takes no more in {other:.1%}"
    )


def posterior_rows(separable: bool, prior: float, classes: bool = False) -> Rows:
    return [
        row
        for row in results("exchanges_posterior")["rows"]
        if row["separable"] is separable and row["prior"] == prior and ("PVI" not in row) is classes
    ]


PRIORS = (1.0, 0.01, 1e-4)


def posterior_table() -> str:
    """Exchanges to the pooled posterior of two classes, counts and numbers; floats of a site by method."""
    lines = []
    for separable, words in ((False, "not separable"), (True, "separable")):
        for prior in PRIORS:
            own = posterior_rows(separable, prior)
            columns = [[row[label] for row in own] for label in POSTERIOR]
            cells = [text for counts in columns for text in (exchanges(counts), floats(counts))]
            lines.append([f"{words}, δ = {prior:g}", len(own), *cells])
    return markdown(("data", "cases", *(name for label in POSTERIOR for name in (label, "floats"))), lines)


def classes_table() -> str:
    """Targets with several classes: a line a problem, guarded JointNewton by prior precision, and accelerated PVI."""
    rows = [row for row in results("exchanges_posterior")["rows"] if "PVI" not in row]
    columns = {f"δ = {prior:g}": ("guarded JointNewton", prior) for prior in PRIORS}
    columns["accelerated PVI, δ = 0.01"] = ("accelerated PVI", 0.01)
    lines = []
    for name, dim in dict.fromkeys((row["problem"], row["dim"]) for row in rows):
        own = [row for row in rows if row["problem"] == name]
        cells = [exchanges([row[label] for row in own if row["prior"] == prior]) for label, prior in columns.values()]
        lines.append([name, dim, *cells])
    return markdown(("data", "d", *columns), lines)


def at_most(label: str, most: int, classes: bool = False) -> str:
    """Cases that no direction separates, and how many of them take at most so many exchanges."""
    counts = [row[label] for prior in PRIORS for row in posterior_rows(False, prior, classes)]
    return f"{sum(one is not None and one[0] <= most for one in counts)} of the {len(counts)} cases"


def reached(gaps: list[float], level: float) -> int | None:
    """Return the first round from which on the gap stayed at or below a level."""
    above = [at for at, gap in enumerate(gaps, start=1) if not gap <= level]
    first = (above[-1] if above else 0) + 1
    return first if first <= len(gaps) else None


def run_of(problem: str, method: str) -> dict[str, Any]:
    return results("rounds")["rows"][f"{problem} | {method}"]


def rounds_of(problem: str, method: str, level: float) -> int | None:
    row = run_of(problem, method)
    return row["to_1e-6"] if level == LEVELS[-1] else reached(row["gaps"], level)


def rounds_cell(problem: str, method: str) -> str:
    if f"{problem} | {method}" not in results("rounds")["rows"]:
        return ""
    return ", ".join("–" if (at := rounds_of(problem, method, level)) is None else str(at) for level in LEVELS)


def rounds_table() -> str:
    """Rounds to 1 %, 0.1 % and 1e-6 above the pooled optimum, by method and problem."""
    methods = dict.fromkeys(key.split(" | ", 1)[1] for key in results("rounds")["rows"])
    methods = {name: None for name in methods if not name.startswith("BregmanADMM, ρ = 1 |")}  # as without
    return markdown(
        ("method", *ROUNDS.values()),
        ([name.replace(" | ", ", "), *(rounds_cell(problem, name) for problem in ROUNDS)] for name in methods),
    )


def rounds(problem: str, method: str, level: str) -> str:
    found = rounds_of(problem, method.replace(", safeguard", " | safeguard"), float(level))
    return "none" if found is None else str(found)


def near(kind: str, label: str) -> str:
    """Round in which a run at the size of figure 5b comes within 1 %."""
    (curve,) = [curve for curve in results("fig5b_mnist")[kind]["curves"] if curve["label"] == label]
    return "none" if curve["rounds_to_near"] is None else str(curve["rounds_to_near"])


def full_covariance() -> str:
    found = results("full_covariance")
    (first, *_), memory = found["rounds"], found["memory"]
    return (
        f"the linear algebra of a round runs at {first['ratio_to_dgemm']:.0%} of `dgemm` ({first['gflop']:.0f} GFLOP). "
        f"Peak memory grows by {memory['above_the_start_bytes'] / 1e9:.1f} GB, {memory['in_d2']:.0f} matrices of "
        "$d^2$ numbers"
    )


def cost_formula() -> str:
    per = results("scaling")["model"]["seconds_per"]

    def power(value: float) -> str:
        digits, exponent = f"{value:.1e}".split("e")
        return rf"{digits}\cdot 10^{{{int(exponent)}}}"

    terms = (("N d^2", "N d^2"), ("K d^3", "K d^3"), ("N", "N"), ("K", "K"))
    return r"$$\text{seconds} = " + " + ".join(rf"{power(per[key])}\, {text}" for key, text in terms) + "$$"


def cost_error() -> str:
    low, high = results("scaling")["model"]["measured_over_fitted"]
    return f"{100 * (low - 1):+.0f} % and {100 * (high - 1):+.0f} %".replace("-", "−")


def graphs_table() -> str:
    """Rounds on a graph, and hops of a message on a spanning tree, by graph and posterior."""
    lines = []
    for row in results("graphs")["graphs"]:
        if (row["graph"], row["nodes"]) in (("ring", 16), ("expander", 36)):
            for kind in ("linear", "logistic"):
                lines.append([f"{row['graph']} of {row['nodes']}, {kind}", row[kind]["rounds"], row[kind]["tree_hops"]])
    return markdown(("graph, posterior", "rounds", "hops on a tree"), lines)


def size(number: float) -> str:
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f} B"


def bytes_table() -> str:
    """Bytes of a broadcast and a reply by family."""
    words = {"fixed": "fixed precision", "blocks of 10": "blocks of 10"}
    lines: dict[str, list[str]] = {}
    for row in results("flower_scale")["bytes"]:
        if row["family"] != "isotropic":  # as the fixed one, which learns no precision either
            cells = lines.setdefault(words.get(row["family"], row["family"]), [])
            cells += [size(row["down"]), size(row["up"])]
    head = [f"{what}, d = {d}" for d in (100, 1000) for what in ("down", "up")]
    return markdown(("family", *head), ([family, *cells] for family, cells in lines.items()))


def memory_table() -> str:
    lines = []
    for row in results("flower_scale")["memory"]:
        ends = [f"{row[end]['peak']:.0f} MB, {row[end]['seconds']:.1f} s" for end in ("site", "server")]
        lines.append([f"{row['family']}, d = {row['d']:.0f}", f"{row['vector']:.0f} MB", *ends])
    return markdown(("family", "one vector", "site", "server"), lines)


def server_table() -> str:
    """Measured seconds of the server, and what a run of seven rounds comes to on a network of 1 Gbit/s."""
    lines = []
    for row in results("flower_scale")["server"]:
        network = row["sites"] * (row["broadcast"] + row["reply"]) / BYTES_A_SECOND
        total = PVI_ROUNDS * (FLOOR_SECONDS + row["server_seconds"] + network)
        cells = [f"{row['server_seconds']:.2g} s", f"{network:.1g} s", f"{total:.0f} s", size(row["checkpoint"])]
        lines.append([f"{row['sites']}, d = {row['d']}", *cells])
    return markdown(("sites", "server, a round", "network, a round", "seven rounds", "checkpoint"), lines)


def broadcast_at(sites: str) -> str:
    """Bytes of one broadcast for so many sites, by the slope between 100 and 1000 sites."""
    few, many = (row["broadcast"] for row in results("flower_scale")["server"][1:3])
    return size((many - few) / 900 * float(sites))


MAKERS: dict[str, Callable[..., str]] = {
    "mode table": mode_table,
    "mode finding": mode_finding,
    "posterior table": posterior_table,
    "classes table": classes_table,
    "at most": lambda label, most, classes="": at_most(label, int(most), classes == "classes"),
    "rounds table": rounds_table,
    "rounds": rounds,
    "ill posed": lambda problem, method: str(run_of(problem, method)["ill_posed_rounds"]),
    "ends in": lambda problem, method: str(run_of(problem, method)["rounds"] + 1),
    "near": near,
    "full covariance": full_covariance,
    "cost formula": cost_formula,
    "cost error": cost_error,
    "graphs table": graphs_table,
    "bytes table": bytes_table,
    "memory table": memory_table,
    "server table": server_table,
    "broadcast at": broadcast_at,
}
