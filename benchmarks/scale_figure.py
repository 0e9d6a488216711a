r"""Accuracy, NLL and the learned precision against the scale of the inputs: docs/figures/fashion_scale.png.

for scale in 1 4 16 64 255; do
  python -m benchmarks.papers benchmarks/experiments/fashion_scale.toml \
    --out runs/scale_$scale --set data.scale=$scale.0
done
python benchmarks/scale_figure.py --take runs/scale_*     # into benchmarks/results, and draws
python benchmarks/deep_tables.py                          # writes docs/results.md with its numbers
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from papers.figures import in_words, looks

from bayesadmm_np._archive import Archive
from bayesadmm_np.demos import style

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "fashion_scale.json"
FIGURES = ROOT / "docs" / "figures"
LAST = 3
"""Rounds of the means, as in the papers' tables."""
SETTING = " bounded steps"
"""What a second setting of a method adds to its label."""
POINTS = ("FedAvg", "FedDyn", "FedLap")
"""Methods that learn no precision."""
Row = dict[str, Any]


def taken(folder: Path) -> list[Row]:
    """One row a run of a folder: its scores by round, and quantiles of the server's precision after the last one.

    A run that is not done has a row of the rounds that it has, which `best` leaves out.
    """
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    labels, rows = list(dict.fromkeys(run["method"] for run in results["runs"])), []
    for run in results["runs"]:
        name = f"{labels.index(run['method']):02d}_seed{run['seed']}.npz"
        precision = Archive.read(folder / "checkpoints" / name, limit=None).arrays["precision"]
        row = {"scale": float(results["experiment"]["data"]["scale"])}
        row |= {key: run[key] for key in ("method", "seed", "status", "rounds", "curves")}
        rows.append(row | {"precision": np.quantile(precision, (0.05, 0.5, 0.95)).tolist()})
    return rows


def score(row: Row, name: str) -> float:
    """The mean over the last three rounds; of `spread` the ratio of the precision's quantiles."""
    if name == "spread":
        return float(row["precision"][2] / row["precision"][0])
    return float(np.mean(row["curves"][name][-LAST:]))


def best(rows: list[Row], method: str, scale: float) -> Row | None:
    """The more accurate of a method's settings at a scale, of those that were not cut short."""
    own = [row for row in rows if row["scale"] == scale and row["method"].removesuffix(SETTING) == method]
    done = [row for row in own if row["status"] == "ROUND_LIMIT"]
    return max(done, key=lambda row: score(row, "accuracy"), default=None)


def methods_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"].removesuffix(SETTING) for row in rows))


def table(rows: list[Row]) -> str:
    """One line a method: accuracy and NLL at every scale."""
    scales = sorted({row["scale"] for row in rows})
    lines = ["| method | " + " | ".join(f"0 … {scale:g}" for scale in scales) + " |"]
    lines.append("|---|" + "---:|" * len(scales))
    for method in methods_of(rows):
        found = [best(rows, method, scale) for scale in scales]
        cells = [
            "–" if row is None else f"{100 * score(row, 'accuracy'):.1f} ({score(row, 'nll'):.2f})" for row in found
        ]
        lines.append(f"| {in_words(method)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def number(rows: list[Row], scale: str, method: str, name: str) -> str:
    """A score of a method at a scale, with the digits of the pages."""
    row = best(rows, method, float(scale))
    if row is None:
        raise ValueError(f"{KEPT.name} has no run of {method} at the scale {scale}.")
    value = score(row, name)
    return {"accuracy": f"{100 * value:.1f}", "nll": f"{value:.2f}", "spread": f"{value:.{0 if value >= 10 else 1}f}"}[
        name
    ]


def draw(rows: list[Row], folder: Path = FIGURES) -> None:
    scales, methods = sorted({row["scale"] for row in rows}), methods_of(rows)
    with style.context():
        figure = style.new_figure(style.WIDTH, 2.9)
        panels = dict(zip(("accuracy", "nll", "spread"), figure.subplots(1, 3), strict=True))
        titles = "Accuracy / %", "NLL", "Spread of the precision"
        for method, look in zip(methods, looks(methods), strict=True):
            found = [row for scale in scales if (row := best(rows, method, scale))]
            for (name, axes), times in zip(panels.items(), (100.0, 1.0, 1.0), strict=True):
                if name != "spread" or method not in POINTS:
                    values = [times * score(row, name) for row in found]
                    axes.plot([row["scale"] for row in found], values, label=in_words(method), **look)
        for axes, title in zip(panels.values(), titles, strict=True):
            axes.set(xscale="log", xlabel="largest pixel", title=title)
            axes.set_xticks(scales, [f"{scale:g}" for scale in scales])
            axes.minorticks_off()
            style.tidy(axes)
        panels["spread"].set(yscale="log", ylabel="95 % over 5 % quantile")
        handles, names = panels["accuracy"].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
        style.save(figure, folder, "fashion_scale")
        (folder / "fashion_scale.svg").unlink()


def kept() -> list[Row]:
    rows: list[Row] = json.loads(KEPT.read_text(encoding="utf-8"))["rows"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders of results to keep")
    folders = parser.parse_args().take
    if folders:
        rows = sorted((row for folder in folders for row in taken(folder)), key=lambda row: row["scale"])
        machine = json.loads((folders[0] / "results.json").read_text(encoding="utf-8"))["machine"]
        KEPT.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    draw(kept())


if __name__ == "__main__":
    main()
