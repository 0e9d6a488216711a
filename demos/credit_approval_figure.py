"""Figure and tables of docs/flagship.md from the numbers of credit_approval.py."""

import numpy as np

from bayesadmm_np.demos import style, tabular
from bayesadmm_np.demos.tabular import percent

REPORTED = (10, 25, 50)
SPLITS = {"equal": "homogeneous", "unequal": "heterogeneous"}
EXACT, ADAM, ADAM_EQUAL = "exact", "Adam", "Adam, equal weights"
PAPER = {  # Swaroop et al. (2025), Tables 4 and 1: accuracy in %, mean (sd) of three runs, after 10, 25 and 50 rounds
    "equal": {
        tabular.FEDAVG: ((81.4, 0.6), (84.6, 1.1), (86.8, 0.6)),
        tabular.FEDPROX: ((82.1, 0.5), (84.2, 0.4), (87.4, 0.1)),
        tabular.FEDDYN: ((81.8, 1.4), (86.3, 1.5), (86.9, 0.5)),
        tabular.FEDLAP: ((83.6, 0.4), (87.0, 0.4), (88.0, 0.6)),
        tabular.COV: ((84.4, 0.5), (86.5, 1.0), (87.7, 0.7)),
    },
    "unequal": {
        tabular.FEDAVG: ((77.0, 1.3), (76.3, 3.5), (78.6, 3.3)),
        tabular.FEDPROX: ((73.6, 2.2), (75.0, 4.1), (79.3, 0.9)),
        tabular.FEDDYN: ((73.5, 1.0), (79.9, 2.6), (83.5, 2.2)),
        tabular.FEDLAP: ((77.1, 2.3), (80.7, 1.4), (83.5, 1.8)),
        tabular.COV: ((80.4, 0.4), (84.2, 2.0), (85.2, 1.6)),
    },
}
IN_PAPER = tuple(PAPER["equal"])
BY_ROWS = (tabular.FEDAVG, tabular.FEDPROX, tabular.FEDDYN)


def by_label(split):
    return {(row["label"], row["work"]): row for row in split["rows"]}


def never(value):
    return "never" if value is None else str(value)


def tables(numbers):
    """Return the tables of docs/flagship.md."""
    rows = {key: by_label(numbers[key]) for key in SPLITS}
    body = []
    for label in (label for label in IN_PAPER if label != tabular.FEDPROX):
        works = [rows["unequal"].get((label, work)) for work in (EXACT, ADAM, ADAM_EQUAL)]
        for i in (0, -1):
            cells = ["–" if row is None else percent(row["accuracy"][i]) for row in works]
            body.append(
                [f"{label}, round {REPORTED[i]}", *cells, "{:.1f} ({:.1f})".format(*PAPER["unequal"][label][i])]
            )
    head = ["accuracy, %", "exact clients", "local Adam", "Adam, equal weights", "the paper"]
    found = {"credit-unequal": tabular.markdown(head, body)}
    body = []
    for label in (label for label, work in rows["equal"] if work == EXACT):
        both = [rows[key][label, EXACT] for key in SPLITS]
        counts = [(never(row["rounds_near"]), never(row["rounds_same"])) for row in both]
        body.append([label, *counts[0], *counts[1]])
    columns = [f"{name}: {what}" for name in SPLITS.values() for what in ("to 0.01 sd", "to 1e-06 sd")]
    found["credit-rounds"] = tabular.markdown(["exact clients", *columns], body)
    return found


def draw(numbers):
    """Draw accuracies with exact clients and with local Adam beside the paper's, and distances to the pooled fit."""
    figure = style.new_figure(style.WIDTH, 7.0)
    panels = figure.subplots(3, 2, sharex=True, sharey="row")
    pooled = numbers["pooled"]["pooled mode"]["accuracy"]
    for column, key in enumerate(SPLITS):
        split = numbers[key]
        for row, work in enumerate((EXACT, ADAM)):
            draw_accuracy(panels[row, column], key, split, work, pooled)
        exact = [row for row in split["rows"] if row["work"] == EXACT]
        tabular.draw_distances(panels[2, column], exact, tabular.LOOKS, marks=7, dashes=(0, (1, 3)), top=50)
        small, large = (f"{100 * split['positives'][i]:.0f} %" for i in (0, -1))
        first = "equal clients" if key == "equal" else f"small and large clients ({small}, {large} positive)"
        panels[0, column].set_title(f"{'ab'[column]}  {first}")
    panels[0, 0].set_ylabel("test accuracy, %\nclients solved exactly")
    panels[1, 0].set_ylabel("test accuracy, %\nlocal Adam, and the paper's (bars)")
    panels[2, 0].set_ylabel("largest error of a mean\n(posterior sd), exact clients")
    handles, labels = panels[2, 0].get_legend_handles_labels()
    handles.append(panels[0, 0].lines[-1])
    figure.legend(handles, [*labels, "pooled mode"], loc="outside lower center", ncols=4)
    return figure


def draw_accuracy(axes, key, split, work, pooled):
    for row in (row for row in split["rows"] if row["work"] == work):
        label, look = row["label"], tabular.LOOKS[row["label"]]
        rounds = np.arange(1, len(row["curve"]) + 1)
        axes.plot(rounds, 100 * np.array(row["curve"]), markevery=(4, 8), **look.kwargs())
        if work == ADAM:
            shift = 0.7 * (IN_PAPER.index(label) - 2)
            means, sds = zip(*PAPER[key][label], strict=True)
            bars = {"fmt": look.marker, "markersize": 4, "markerfacecolor": "white", "elinewidth": 0.9}
            axes.errorbar(np.array(REPORTED) + shift, means, yerr=sds, color=look.colour, **bars)
    axes.axhline(100 * pooled, color=style.INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.set_xlim(0, REPORTED[-1] + 2)
    style.tidy(axes)
