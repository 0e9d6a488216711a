"""Figure and tables of docs/flagship.md from the numbers of heart_disease.py."""

import numpy as np

from bayesadmm_np.demos import shared, style, tabular
from bayesadmm_np.demos.tabular import NEAR, SAME, cell, percent

ALL = "all"
POOLED, POOLED_MODE, LOCAL, OWN = "pooled VB", "pooled mode", "own rows only", "PVI, four intercepts"
PAPER = {  # Swaroop et al. (2025), Table 1, FLambyH: accuracy after 10 and after 20 rounds, mean (sd) of three runs
    tabular.FEDAVG: ("72.6 (1.1)", "77.6 (0.6)"),
    tabular.FEDPROX: ("77.5 (1.5)", "77.7 (0.5)"),
    tabular.FEDDYN: ("76.9 (0.5)", "78.1 (0.6)"),
    tabular.FEDLAP: ("77.5 (1.1)", "77.7 (0.5)"),
    tabular.COV: ("79.2 (1.8)", "80.0 (0.5)"),
}


def by_label(rows):
    return {row["label"]: row for row in rows}


def tables(numbers):
    """Return the tables of docs/flagship.md."""
    ece = {curve["label"]: f"{curve['ece']:.3f}" for curve in numbers["reliability"]}
    scores, paper = [], []
    for summary in numbers["summaries"]:
        label, score = summary["label"], summary["scores"]
        if label in (POOLED, POOLED_MODE, tabular.FEDAVG, tabular.PVI, LOCAL, OWN):  # the figure has all
            scores.append([label, percent(score[ALL]["accuracy"]), cell(score[ALL]["nll"]), ece[label]])
        if label in PAPER:
            pairs = zip(summary["after"], PAPER[label], strict=True)
            paper.append([label, *(f"{percent(ours)}, {theirs}" for ours, theirs in pairs)])

    travel = []
    for curve in numbers["curves"]:
        arrivals = [
            "never" if rounds is None else str(rounds) for rounds in (curve["rounds_near"], curve["rounds_same"])
        ]
        end = shared.size(curve["distance"][-1], ".0e")
        travel.append([curve["label"], str(curve["floats_per_round"]), *arrivals, end])
    head = ["", "floats a round", f"rounds to {NEAR:g} sd", f"to {SAME:g} sd", "distance at the end, sd"]
    return {
        "heart-scores": tabular.markdown(["", "accuracy, %", "NLL", "ECE"], scores),
        "heart-rounds": tabular.markdown(head, travel),
        "heart-paper": tabular.markdown(["accuracy, %: ours, the paper's", "10 rounds", "20 rounds"], paper),
    }


COLOURS = (style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
LOOKS = tabular.LOOKS | {OWN: style.Look(style.VERMILION, "o", "-")}


def draw(numbers):
    """Draw coefficients, distances, reliability, and a table."""
    figure = style.new_figure(style.WIDTH, 8.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=(1.0, 0.4))
    left, right = upper.subfigures(1, 2, width_ratios=(1.0, 1.12))
    slopes, intercepts = left.subplots(2, 1, height_ratios=(13, 4))
    draw_coefficients(slopes, numbers, slice(0, -len(numbers["hospitals"])))
    draw_coefficients(intercepts, numbers, slice(-len(numbers["hospitals"]), None))
    slopes.set_title("a  Federated = pooled, with error bars")
    intercepts.set_xlabel("coefficient and 95 % interval")
    handles, labels = slopes.get_legend_handles_labels()
    left.legend(handles, labels, loc="outside lower center", ncols=2, columnspacing=1.2, handlelength=1.6)
    distances, calibration = right.subplots(2, 1)
    draw_distances(distances, numbers)
    draw_reliability(calibration, numbers)
    draw_table(lower.subplots(), numbers)
    return figure


def draw_coefficients(axes, numbers, shown):
    names = numbers["coefficients"][shown]
    place = np.arange(len(names))

    def bars(who, part, at, **look):
        mean, sd = (np.array(numbers["intervals"][who][key][part]) for key in ("mean", "sd"))
        axes.errorbar(mean, at, xerr=1.96 * sd, **look)

    for i, (hospital, colour) in enumerate(zip(numbers["hospitals"], COLOURS, strict=True)):
        look = {"fmt": ".", "color": colour, "markersize": 3, "elinewidth": 0.8}
        look["label"] = f"{hospital['name']} alone ({hospital['train']})"
        if shown.start == 0:
            bars(hospital["name"], slice(0, -1), place + 0.13 + 0.16 * i, **look)
        else:
            bars(hospital["name"], slice(-1, None), place[i : i + 1] + 0.25, **look)
    bars("pooled", shown, place - 0.16, label="pooled rows", fmt="s", color="#B8B8B8", markersize=6, elinewidth=4.5)
    bars("federated", shown, place - 0.16, label="federated", fmt="o", color=style.BLACK, markersize=3, elinewidth=1.0)
    axes.axvline(0, color=style.MUTED, linewidth=0.6, zorder=0)
    axes.set_yticks(place, names)
    axes.set_ylim(len(place) - 0.2, -0.6)
    axes.grid(True, axis="x")
    axes.tick_params(length=0, axis="y")


def draw_distances(axes, numbers):
    tabular.draw_distances(axes, numbers["curves"], LOOKS, marks=9, dashes=(0, (2, 2)), top=2e4)
    axes.set_xscale("symlog", linthresh=10, linscale=1.2)
    ticks = [0, 2, 4, 6, 8, 10, 20, 50, 100]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(0, max(len(curve["distance"]) for curve in numbers["curves"]) - 1)
    axes.set(ylabel="largest error of a mean\n(posterior sd)", title="b  Distance to each method's pooled fit")
    axes.axvline(10, ymax=0.7, color=style.MUTED, linewidth=0.7)  # where the scale changes
    for x, side, text in ((9.8, "right", "linear"), (10.4, "left", "logarithmic")):
        axes.text(x, 10.0, text, ha=side, va="center", fontsize="x-small", color=style.MUTED)
    axes.set_yticks([10.0**k for k in range(-8, 1, 2)])
    axes.legend(loc="upper center", ncols=3, fontsize="xx-small", handlelength=2.4, columnspacing=1.0, labelspacing=0.3)


def draw_reliability(axes, numbers):
    axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=0.7, linestyle=(0, (2, 2)))
    found = by_label(numbers["reliability"])
    looks = {LOCAL: style.Look(style.ORANGE, "s", (0, (1, 1)))}
    for label in (LOCAL, tabular.FEDAVG, tabular.PVI, OWN):
        predicted, observed = ([v for v in found[label][key] if v is not None] for key in ("predicted", "observed"))
        text = f"{label}: ECE {found[label]['ece']:.3f}"
        axes.plot(predicted, observed, label=text, **(LOOKS | looks)[label].kwargs())
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability of disease", ylabel="observed frequency")
    axes.set_title("c  Calibration on test patients")
    axes.legend(loc="lower right")
    style.tidy(axes)


HEADS = ("accuracy, %", "NLL", "Brier", "rounds to\n0.01 sd", "rounds to\n$10^{-6}$ sd", "floats to\n$10^{-6}$ sd")
COLUMNS = (0.33, 0.47, 0.61, 0.74, 0.86, 0.99)


def draw_table(axes, numbers):
    curves = by_label(numbers["curves"])
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(len(numbers["summaries"]) + 0.1, -1.6))
    for x, head in zip(COLUMNS, HEADS, strict=True):
        axes.text(x, -0.55, head, ha="right", va="bottom", fontsize=7, fontweight="bold", linespacing=1.1)
    axes.set_title(f"d  All test patients, mean (sd) of {len(numbers['seeds'])} splits; rounds of the split in a and b")
    axes.axhline(-0.45, color=style.MUTED, linewidth=0.6)
    for row, summary in enumerate(numbers["summaries"]):
        label, score = summary["label"], summary["scores"][ALL]
        if label == LOCAL:
            axes.axhline(row - 0.48, color=style.MUTED, linewidth=0.4)
        cells = [percent(score["accuracy"]), cell(score["nll"]), cell(score["brier"])]
        if label in curves:
            near, same = curves[label]["rounds_near"], curves[label]["rounds_same"]
            counts = (near, same, same and same * curves[label]["floats_per_round"])
            cells += ["–" if count is None else f"{count:,}" for count in counts]
            axes.plot(0.012, row + 0.02, clip_on=False, **LOOKS[label].kwargs())
            axes.plot([0, 0.024], [row + 0.02] * 2, clip_on=False, **(LOOKS[label].kwargs() | {"marker": ""}))
        axes.text(0.035, row, label, va="center", fontsize=7)
        for x, text in zip(COLUMNS, cells, strict=False):
            axes.text(x, row, text, ha="right", va="center", fontsize=7)
