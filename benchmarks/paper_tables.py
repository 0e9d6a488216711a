"""Numbers, tables and figures of docs/paper from the committed results; `docs/paper/build.py` calls this script.

Fields of benchmarks/pages/paper/*.md in double braces are the names of `MAKERS`, with arguments after bars. A field
`{{holds|...}}` is empty where the sentence before it is true of the results, and an error otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import heads_tables
import matplotlib as mpl
import numpy as np
import outlier as outlier_study
from cost_tables import markdown
from matplotlib.figure import Figure

from bayesadmm_np.demos import style

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "figures" / "results.json"
Rows = list[dict[str, Any]]
ACCELERATED, KRONECKER = "accelerated PVI", "PVI, Kronecker sites"
FACTORS = ("PVI", "BayesADMM, ρ = 1", "AMA, ρ = 5", "PVI, γ = 1/K")
FAR_FACTOR = 0.02
USUAL, PLANNED = "PVI, γ = 1/K", "PVI, γ by theory"
SITE_LOOKS = (
    *((style.MUTED, "-"), (style.MUTED, "--"), (style.ORANGE, "--"), (style.ORANGE, "-")),
    *((style.SKY, "-"), (style.VERMILION, "-"), (style.BLUE, "-")),
)
"""Colours and lines of the methods of the study of sites, in their order."""


@cache
def study(name: str) -> Rows:
    """Rows of a study of comparisons.py."""
    rows: Rows = json.loads((RESULTS / "comparisons.json").read_text(encoding="utf-8"))[name]["rows"]
    return rows


def few(value: float) -> str:
    """A number with two or three significant digits and marks for thousands."""
    if value >= 1e3:
        return f"{round(value, -int(np.floor(np.log10(value))) + 2):,.0f}"
    return f"{value:.0f}" if value >= 10 or float(value).is_integer() else f"{value:.2g}"


# --- Sites


def methods(name: str) -> list[str]:
    """Methods of a study whose rows have one each, in their order."""
    return list(dict.fromkeys(row["method"] for row in study(name)))


def of_method(name: str) -> Rows:
    return [row for row in study("sites") if row["method"] == name]


def site_number(method: str, what: str) -> str:
    """The mean over seeds; – where a seed did not arrive."""
    values = [row[what] for row in of_method(method)]
    if None in values:
        return "–" if values.count(None) == len(values) else f"– ({len(values) - values.count(None)} of {len(values)})"
    mean = float(np.mean(values))
    return few(mean) if what.startswith("floats") else f"{mean:.1f}".removesuffix(".0")


def quickest(method: str, level: str) -> float:
    """The setting of the grid that takes the fewest rounds to a level on the first draw."""
    rows = [row for row in study("tuning") if row["method"] == method and row[f"rounds {level}"]]
    return float(min(rows, key=lambda row: row[f"rounds {level}"])["value"])


def site_table() -> str:
    columns = [f"{what} {level}" for what in ("rounds", "floats", "seconds") for level in ("1e-2", "1e-6")]
    words = [c.replace("1e-2", "to 1 %").replace("1e-6", "to $10^{-6}$") for c in columns]
    return markdown(("method", *words), ([name, *(site_number(name, c) for c in columns)] for name in methods("sites")))


def site_ratio(first: str, second: str, what: str) -> str:
    means = [np.mean([row[what] for row in of_method(name)]) for name in (first, second)]
    return f"{means[0] / means[1]:.1f}"


# --- Rates


def pairs_of_factors() -> list[tuple[str, float, float]]:
    """Method, predicted and measured factor, where a run shows one."""
    found = [(name, row[name]) for row in study("factors") for name in FACTORS]
    return [(name, one["predicted"], one["measured"]) for name, one in found if one["measured"] is not None]


def rounds_of(method: str, family: str) -> list[float]:
    return [row[method]["rounds"] or np.inf for row in study("factors") if row["family"] == family]


def factors_lost(method: str, family: str) -> str:
    rounds = rounds_of(method, family)
    return f"{rounds.count(np.inf)} of {len(rounds)}"


def theorem_a(sigma: float) -> float:
    phi = sigma**2 / 4 + np.sqrt(sigma**4 / 16 + sigma**2 / 2)
    return float(phi / (1 - phi)) if phi < 0.5 else np.inf


def covered() -> list[tuple[float, float]]:
    """Reach and factor of undamped PVI where Theorem A applies."""
    own = [row for row in study("factors") if row["family"] == "full" and row["kind"] != "squares"]
    return [(row["reach"], row["PVI"]["predicted"]) for row in own if np.isfinite(theorem_a(row["reach"]))]


def damping() -> str:
    """How often undamped PVI and each γ fail; medians of rounds, floats and processor time where both γ arrive."""
    rows = [row for row in study("factors") if row["family"] == "diagonal"]
    lost = [sum(row[name]["rounds"] is None for row in rows) for name in ("PVI", USUAL, PLANNED)]
    both = [row for row in rows if all(row[name]["rounds"] for name in (USUAL, PLANNED))]
    usual, planned = (
        [few(float(np.median([row[name][what] for row in both]))) for what in ("rounds", "floats")]
        for name in (USUAL, PLANNED)
    )
    seconds = [float(np.median([row[name]["seconds"] for row in both])) for name in (USUAL, PLANNED)]
    rates = float(np.median([row["seconds of rates"] for row in both]))
    unsafe = sum(row["gamma_max"] <= 1.0 / row["sites"] for row in rows)
    return (
        f"of {len(rows)} random regressions with a diagonal covariance, undamped PVI does not reach "
        f"$10^{{-6}}$ within $400$ rounds in {lost[0]}, $\\gamma=1/K$ in {lost[1]} ({unsafe} unstable), and "
        f"the $\\gamma$ of the smallest factor in {lost[2]}. Where both arrive, $\\gamma=1/K$ takes {usual[0]} rounds, "
        f"{usual[1]} floats and {seconds[0]:.2f} s, and the $\\gamma$ by theory {planned[0]} rounds, {planned[1]} "
        f"floats and {seconds[1]:.2f} s (medians), with {rates:.2f} s for the rates"
    )


# --- Certificates


def certified() -> Rows:
    return [row for row in study("certificates") if "bound" in row]


def tight() -> Rows:
    """Runs to which Theorem B applies, with a distance that rounding does not hide."""
    return [row for row in certified() if "small, and so is" in (row["reason"] or "") and row["distance"] > 1e-9]


def change_below() -> Rows:
    return [row for row in certified() if row["distance"] > 1e-9 and row["change"] < row["distance"]]


def change_factor() -> str:
    slow = [row for row in certified() if row["method"] != "PVI" and row["distance"] > 1e-9]
    return few(float(np.median([row["distance"] / row["change"] for row in slow])))


# --- Guards and regressions

SAFE = ("guarded PVI", "guarded BLR", "recommended")
GUARDED = ("damped PVI", "PVI", "guarded PVI", "BLR", "guarded BLR", "recommended")


def guard_table() -> str:
    lines = []
    for name in GUARDED:
        runs = [row[name] for row in study("guards")]
        there = [run for run in runs if run["arrived"]]
        cells = [len(there), *(few(float(np.median([run[what] for run in there]))) for what in ("rounds", "floats"))]
        words = "recommended: guarded joint Newton" if name == "recommended" else name
        lines.append([words, *cells, f"{1e3 * np.mean([run['seconds'] for run in runs]):.0f}"])
    return markdown(("method", "arrive", "rounds", "floats", "ms"), lines)


def cells(kind: str, method: str, split: str) -> Rows:
    return [row[kind][method] for row in study("regressions") if kind in row and row["split"] == split]


def regression_table() -> str:
    lines = []
    aims = {"mode": "maximum likelihood", "posterior": "posterior"}
    for kind, words in aims.items():
        for method in next(row for row in study("regressions") if kind in row)[kind]:
            line = [f"{words}: {method}".replace("JointNewton", "joint Newton")]
            for split in ("random", "by target"):
                counts: list[Any] = cells(kind, method, split)
                there = [one for one in counts if one]
                lost = f", {len(counts) - len(there)} lost" if len(there) < len(counts) else ""
                line.append(f"{np.mean([one[0] for one in there]):.1f} ({max(one[0] for one in there)}){lost}")
            both = [one for split in ("random", "by target") for one in cells(kind, method, split) if one]
            floats, seconds = (float(np.mean([one[i] for one in both])) for i in (1, 2))
            lines.append([*line, few(floats), f"{1e3 * seconds:.0f}"])
    return markdown(("aim and method", "random split", "by target", "floats", "ms"), lines)


def newton_slim() -> float:
    """Mean floats of Newton from zero where the server sends coefficients alone, as DataSHIELD's does."""
    runs = [(row["mode"]["Newton from zero"][0], row["dim"]) for row in study("regressions") if "mode" in row]
    return float(np.mean([exchanges * (2 * d + d * (d + 1) // 2) for exchanges, d in runs]))


def two_stage(split: str) -> list[float | None]:
    """Errors in standard errors, None without an answer; for least squares the average is exact."""
    rows = [row for row in study("regressions") if row["split"] == split and row["table"] != "diabetes"]
    return [row["two-stage"] for row in rows if "two-stage" in row]


def two_stage_errors(split: str) -> str:
    errors = [one for one in two_stage(split) if one is not None]
    return f"{np.median(errors):.2f} pooled standard errors off (median; largest {max(errors):.1f})"


def without_answer(split: str) -> str:
    return f"{two_stage(split).count(None)} of {len(two_stage(split))}"


# --- Heads

HEADS = {
    "network at its mean": ("networks", "mean"),
    "one scale by held-out rows": ("networks", "mean, scaled"),
    "exact head, mode": ("networks", "refit"),
    "exact head, Laplace": ("networks", "Laplace"),
    "ridge head": ("networks", "ridge"),
    "components of pixels, exact head": ("pixels", "refit"),
}


def heads_table() -> str:
    records, lines = heads_tables.kept(), []
    for words, (network, predictor) in HEADS.items():
        chosen = heads_tables.NETWORKS if network == "networks" else network
        line = [words]
        for split in ("iid", "two labels"):
            own = heads_tables.of(records, network=chosen, predictor=predictor, data="fashion", split=split)
            means = [(name, float(np.mean([r[name] for r in own]))) for name in ("accuracy", "nll", "auroc")]
            line.append(" · ".join(heads_tables.plain(name, mean) for name, mean in means))
        rounds, seconds = (np.mean([r[name] for r in own]) for name in ("exchanges", "seconds"))  # of two labels
        lines.append([*line, f"{rounds:.0f}", heads_tables.costs(own)[0], f"{seconds:.2g}"])
    head = ("predictor", "iid: %, NLL, AUROC", "two labels: %, NLL, AUROC", "exchanges", "floats, 10³", "s")
    return markdown(head, lines)


# --- The papers' claims


@cache
def figure(key: str) -> dict[str, str]:
    """Claims of a figure with what was measured."""
    claims = json.loads(FIGURES.read_text(encoding="utf-8"))["figures"][key]["claims"]
    return {one["claim"]: one["measured"] for one in claims}


def measured(key: str, start: str) -> str:
    (found,) = [text for claim, text in figure(key).items() if claim.startswith(start)]
    return found


@cache
def outlier() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "outlier.json").read_text(encoding="utf-8"))
    return found


def at_the_mean(which: str) -> str:
    """In how many of the problems BayesADMM at the mean is as fast as with averages, slower, or faster; or of all."""
    same, slower, faster = outlier_study.counts(outlier())
    return str({"all": same + slower + faster, "same": same, "slower": slower, "faster": faster}[which])


def widest(which: str) -> str:
    """In how many draws the wrongly labelled point has the largest sd of the logit; or of how many."""
    ranks = [rank for name, one in outlier().items() if name != "right" for rank in one.get("sd_rank", ())]
    return str({"is": ranks.count(1), "of": len(ranks)}[which])


THEIRS = {
    "FedLapCov": "80.5",
    "IVONADMM": "82.1",
    "FedAvg": "76.0",
    "FedProx": "76.9",
    "FedDyn": "74.6",
    "FedLap": "77.6",
}
"""Accuracy on heterogeneous Fashion-MNIST after 50 rounds, in the papers' tables; deep_tables.py has them all."""


RAW = "raw_fashion_heterogeneous"


@cache
def deep_rows(stem: str) -> Rows:
    table: Rows = json.loads((RESULTS / "deep" / f"{stem}.json").read_text(encoding="utf-8"))["table"]
    return table


def deep_row(stem: str, method: str, at: str) -> dict[str, Any]:
    (row,) = [row for row in deep_rows(stem) if (row["method"], row["round"]) == (method, int(at))]
    return row


def deep(stem: str, method: str, at: str, name: str) -> str:
    return f"{100 * deep_row(stem, method, at)[f'{name}_mean']:.1f}"


def deep_lost(stem: str, method: str, at: str) -> str:
    row = deep_row(stem, method, at)
    return f"{row['seeds'] - row['seeds_done']} of {row['seeds']}"


def deep_range(stem: str, at: str, name: str) -> str:
    values = [row[f"{name}_mean"] for row in deep_rows(stem) if row["round"] == int(at)]
    return f"{100 * min(values):.1f} to {100 * max(values):.1f}"


# --- Sentences that the results must bear

HOLDS: dict[str, Callable[[], bool]] = {
    "bounds hold": lambda: all(row["held"] and row["rigorous"] for row in certified()),
    "kronecker first": lambda: all(
        a[f"rounds {level}"] < b[f"rounds {level}"] and a[f"floats {level}"] > b[f"floats {level}"]
        for level in ("1e-2", "1e-6")
        for a, b in zip(of_method(KRONECKER), of_method(ACCELERATED), strict=True)
    ),
    "quickest": lambda: (
        all(quickest("damped PVI", level) == 0.5 for level in ("1e-2", "1e-6"))
        and (quickest("BayesADMM", "1e-2"), quickest("BayesADMM", "1e-6")) == (2.0, 1.0)
    ),
    "theorem a": lambda: all(factor <= theorem_a(reach) for reach, factor in covered()),
    "one scale": lambda: all(
        _mean("mean, scaled", "nll", "iid") < _mean(head, "nll", "iid") for head in ("refit", "Laplace")
    ),
    "components": lambda: all(
        (_mean("refit", "accuracy", split, "pixels") >= _mean("refit", "accuracy", split)) == (split == "two labels")
        for split in ("iid", "two labels")
    ),
    "newton": lambda: all((_count("guarded Newton", i) < _count("Newton from zero", i)) == (i < 2) for i in range(3)),
    "newton slim": lambda: abs(newton_slim() / _count("guarded Newton", 1) - 1.0) < 0.1,
    "guarded below start": lambda: (
        not any(
            row[name]["above start"] or row[name]["status"] in ("DIVERGED", "NOT_FINITE")
            for row in study("guards")
            for name in SAFE
        )
    ),
    "smallest factor": lambda: all(
        a <= b for a, b in zip(rounds_of(PLANNED, "diagonal"), rounds_of(USUAL, "diagonal"), strict=True)
    ),
    "printed table": lambda: all(
        abs(float(deep(RAW, f"{name} {variant}", "50", "accuracy_last3")) - float(THEIRS[name])) > 1.0
        for name, variant in (("FedProx", "moments kept"), ("FedDyn", "plain mean"), ("FedLap", "equal damping"))
    ),
    "all arrive": lambda: all(
        row["seeds_done"] == row["seeds"] for row in deep_rows("fashion_heterogeneous") if row["round"] == 50
    ),
}


def _mean(predictor: str, score: str, split: str, network: Any = heads_tables.NETWORKS) -> float:
    """Mean of a score of Fashion-MNIST."""
    records = heads_tables.of(heads_tables.kept(), network=network, predictor=predictor, data="fashion", split=split)
    return float(np.mean([r[score] for r in records]))


def _count(method: str, i: int) -> float:
    """Mean exchanges (0), floats (1) or seconds (2) to the maximum likelihood."""
    return float(np.mean([row["mode"][method][i] for row in study("regressions") if "mode" in row]))


def holds(name: str) -> str:
    """Return an empty text; ValueError where the results do not bear a sentence."""
    if not HOLDS[name]():
        raise ValueError(f"the results do not bear the sentence {name!r} of the paper.")
    return ""


def share(part: float) -> str:
    return f"{100 * part:.0f} %"


MAKERS: dict[str, Callable[..., str]] = {
    "holds": holds,
    "sites": site_number,
    "sites dim": lambda: str(study("sites")[0]["dim"]),
    "sites seeds": lambda: str(len({row["seed"] for row in study("sites")})),
    "sites table": site_table,
    "sites ratio": site_ratio,
    "factors count": lambda: str(len(pairs_of_factors())),
    "factors typical": lambda: f"{np.median([abs(a - b) for _, a, b in pairs_of_factors()]):.4f}",
    "factors level": lambda: f"{FAR_FACTOR:g}",
    "factors far": lambda: str(sum(abs(a - b) > FAR_FACTOR for _, a, b in pairs_of_factors())),
    "factors lost": factors_lost,
    "factors rounds": lambda method, family: few(float(np.median(rounds_of(method, family)))),
    "damping": damping,
    "theorem a count": lambda: str(len(covered())),
    "theorem a ratio": lambda: few(float(np.median([theorem_a(s) / f for s, f in covered()]))),
    "certificate count": lambda: str(len(certified())),
    "certificate close": lambda: str(len(tight())),
    "certificate ratio": lambda q: f"{np.quantile([r['bound'] / r['distance'] for r in tight()], float(q)):.2f}",
    "certificate seconds": lambda: share(
        float(np.median([r["seconds"] / r["seconds of a round"] for r in certified()]))
    ),
    "change below": lambda: share(len(change_below()) / sum(row["distance"] > 1e-9 for row in certified())),
    "change factor": change_factor,
    "guard table": guard_table,
    "guard count": lambda: str(len(study("guards"))),
    "tables table": regression_table,
    "tables seeds": lambda: str(len({row["seed"] for row in study("regressions")})),
    "two-stage errors": two_stage_errors,
    "two-stage none": without_answer,
    "heads table": heads_table,
    "heads": lambda *parts: heads_tables.said(heads_tables.kept(), "|".join(parts)),
    "figure": measured,
    "at the mean": at_the_mean,
    "widest": widest,
    "theirs": THEIRS.__getitem__,
    "deep": deep,
    "deep lost": deep_lost,
    "deep range": deep_range,
    "newton slim": lambda: few(newton_slim()),
}


def filled(text: str) -> str:
    """A page with its fields filled; an unknown field is a KeyError."""

    def value(match: re.Match[str]) -> str:
        name, *rest = " ".join(match[1].split()).split("|")
        return MAKERS[name](*rest)

    return re.sub(r"\{\{(.+?)\}\}", value, text, flags=re.DOTALL)


# --- Figures


def draw_sites() -> Figure:
    """Gap by rounds and by floats of a site; a line a draw."""
    fig = style.new_figure(style.WIDTH, 2.5)
    axes = fig.subplots(1, 2, sharey=True)
    looks = dict(zip(methods("sites"), SITE_LOOKS, strict=True))
    for row in study("sites"):
        gaps, (colour, line) = np.array(row["gaps"]), looks[row["method"]]
        known = row["floats 1e-2"] and row["rounds 1e-2"]
        a_round = row["floats 1e-2"] / row["rounds 1e-2"] if known else None
        label = row["method"] if row["seed"] == 0 else None
        rounds = np.arange(1, len(gaps) + 1)
        axes[0].semilogy(rounds, gaps, line, color=colour, linewidth=1.0, label=label)
        if a_round:
            axes[1].loglog(a_round * rounds, gaps, line, color=colour, linewidth=1.0)
    axes[0].set(xlabel="round", ylabel="gap", xlim=(0, 60), ylim=(1e-7, 10))
    axes[1].set(xlabel="numbers sent and received by a site", ylim=(1e-7, 10))
    fig.legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="outside lower center", ncols=4)
    return fig


def draw_rates() -> Figure:
    """Predicted and measured factors; Theorem A; rounds with two dampings."""
    fig = style.new_figure(style.WIDTH, 2.2)
    axes = fig.subplots(1, 3)
    colours = dict(zip(FACTORS, (style.BLUE, style.VERMILION, style.GREEN, style.ORANGE), strict=True))
    for name, colour in colours.items():
        shown = [(a, b) for one, a, b in pairs_of_factors() if one == name]
        axes[0].plot(*np.array(shown).T, "o", color=colour, markersize=2.5, alpha=0.7, label=name)
    axes[0].plot([0, 1], [0, 1], color=style.FAINT, linewidth=0.8)
    axes[0].set(xlabel="predicted factor", ylabel="measured factor", title="(a)")
    axes[0].legend(fontsize=6)
    line = np.linspace(0.01, 0.57, 100)
    axes[1].plot(line, [theorem_a(s) for s in line], color=style.INK, linewidth=1.0, label="bound")
    axes[1].plot(*np.array(covered()).T, "o", color=style.BLUE, markersize=2.5, label="PVI")
    axes[1].set(xlabel="largest reach $\\sigma$", ylabel="factor", ylim=(0, 1), title="(b)")
    axes[1].legend(fontsize=6)
    for family, colour in (("diagonal", style.ORANGE), ("full", style.BLUE)):
        rows = [row for row in study("factors") if row["family"] == family]
        x, y = ([min(row[name]["rounds"] or 1000, 1000) for row in rows] for name in (USUAL, PLANNED))
        axes[2].loglog(x, y, "o", color=colour, markersize=2.5, label=f"{family} covariance")
    axes[2].plot([3, 1000], [3, 1000], color=style.FAINT, linewidth=0.8)
    axes[2].set(xlabel="rounds, $\\gamma=1/K$", ylabel="rounds, $\\gamma$ by theory", title="(c)")
    axes[2].legend(fontsize=6)
    return fig


def draw_certificate() -> Figure:
    """The bound, and the last round's change, against the distance from the pooled fit."""
    fig = style.new_figure(style.WIDTH, 2.2)
    axes = fig.subplots(1, 2)
    colours = dict(zip(methods("certificates"), (style.BLUE, style.ORANGE, style.VERMILION), strict=True))
    for ax, what, words in zip(axes, ("bound", "change"), ("certified bound", "change of the last round"), strict=True):
        for name, colour in colours.items():
            own = [row for row in certified() if row["method"] == name and row[what] and np.isfinite(row[what])]
            shown = np.array([(row["distance"], row[what]) for row in own])
            ax.loglog(*shown.T, "o", color=colour, markersize=2.5, alpha=0.7, label=name)
        low, high = 1e-13, 1e2
        ax.plot([low, high], [low, high], color=style.FAINT, linewidth=0.8)
        ax.set(xlabel="distance from the pooled fit, posterior sd", ylabel=words, xlim=(low, high), ylim=(low, 1e4))
    axes[1].legend(fontsize=6.5, loc="upper left")
    return fig


def draw(folder: Path) -> None:
    """Write the figures as SVG without fonts, of the same bytes for the same results and matplotlib."""
    with style.context(), mpl.rc_context({"svg.fonttype": "path"}):
        for name, make in (("sites", draw_sites), ("rates", draw_rates), ("certificate", draw_certificate)):
            make().savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None}, facecolor="white")
