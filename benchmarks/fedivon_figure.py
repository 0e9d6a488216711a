"""The FedIvon tables in kind: reads results of `benchmarks.papers`, draws docs/figures/fedivon.png.

python benchmarks/fedivon_figure.py --take runs/fedivon_*     # into benchmarks/results/fedivon, and draws
python benchmarks/deep_tables.py                              # writes docs/results.md with its numbers

What the page says in words about numbers are the functions of `claims`: each gives whether it holds, and its numbers.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from papers.figures import in_words, looks

from bayesadmm_np.demos import style

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "fedivon"
FIGURES = ROOT / "docs" / "figures"
STANDARD, PERSONAL = ("fedivon_mnist", "fedivon_fashion"), ("fedivon_skew_mnist", "fedivon_drift_fashion")
EPOCHS = "fedivon_epochs"
LEAST = 10
"""Rows of a bin that is drawn."""
MEAN, SAMPLED = "at_mean", "ensemble"
Run = dict[str, Any]


@cache
def results_of(stem: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KEPT / f"{stem}.json").read_text(encoding="utf-8"))
    return found


def runs_of(stem: str, method: str) -> list[Run]:
    return [run for run in results_of(stem)["runs"] if run["method"] == method]


def methods_of(stem: str) -> list[str]:
    return list(dict.fromkeys(run["method"] for run in results_of(stem)["runs"]))


def scores(stem: str, method: str, name: str, kind: str = MEAN) -> list[float]:
    """The last score of every seed; `auroc` is that of the other images, and `personal` the clients' own accuracy."""
    if name == "auroc":
        return [run["last"][kind]["auroc"] for run in runs_of(stem, method) if kind in run["last"]]
    if name == "personal":
        own = [run["last"].get(f"personal_{kind}") for run in runs_of(stem, method)]
        return [found["accuracy"] for found in own if found]
    prefix = "" if kind == MEAN else "ensemble_"
    return [run["curves"][prefix + name][-1] for run in runs_of(stem, method) if prefix + name in run["curves"]]


def cell(values: list[float], scale: float = 1.0, digits: int = 3) -> str:
    if not values:
        return "–"
    spread = f" ± {scale * np.std(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * np.mean(values):.{digits}f}{spread}"


def personal() -> str:
    """Tables 4 and 5: accuracies of the clients' own models, and of the server's; columns by data set."""
    lines = ["| method | MNIST: own | server | Fashion: own | server |", "|---|" + "---:|" * (2 * len(PERSONAL))]
    for method in methods_of(PERSONAL[0]):
        cells = []
        for stem in PERSONAL:
            cells.append(cell(scores(stem, method, "personal", kind_of(method)), 100, 1))
            server = scores(stem, method, "accuracy", kind_of(method))
            cells.append("–" if method == "Local" else cell(server, 100, 1))
        lines.append(f"| {in_words(method)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kind_of(method: str) -> str:
    """By samples where the paper samples."""
    return SAMPLED if method in ("FedIvon", "PFedBayes") else MEAN


def epochs() -> dict[str, dict[int, list[Run]]]:
    """Runs by method and local epochs."""
    found: dict[str, dict[int, list[Run]]] = {}
    for run in results_of(EPOCHS)["runs"]:
        method, _, count = run["method"].partition(" solver.epochs=")
        found.setdefault(method, {}).setdefault(int(count), []).append(run)
    return found


def mean(stem: str, method: str, name: str, kind: str = MEAN) -> float:
    return float(np.mean(scores(stem, method, name, kind)))


def three(stem: str, name: str) -> list[float]:
    """FedIvon's score by samples, and those of FedAvg and FedLaplace at the mean."""
    return [mean(stem, "FedIvon", name, SAMPLED), *(mean(stem, method, name) for method in ("FedAvg", "FedLaplace"))]


def written(own: float, first: float, second: float) -> str:
    return f"{own:.3f}; {first:.3f}, {second:.3f}"


def claims() -> str:
    """Each claim of the paper by data set: its mark, and the numbers behind it; = within a margin."""

    def cell_of(ahead: float, numbers: str, margin: float = 0.01) -> str:
        return f"{'=' if abs(ahead) <= margin else '✓' if ahead > 0 else '✗'} {numbers}"

    rows: dict[str, list[str]] = {}
    for stem in STANDARD:
        at, by = (mean(stem, "FedIvon", "ece", kind) for kind in (MEAN, SAMPLED))
        rows.setdefault("sampling lowers the ECE: sampled; at the mean", []).append(
            cell_of(at - by, f"{by:.3f}; {at:.3f}")
        )
        own, *others = (100 * x for x in three(stem, "accuracy"))
        numbers = f"{own:.1f}; {others[0]:.1f}, {others[1]:.1f}"
        rows.setdefault("highest accuracy: FedIvon; FedAvg, FedLaplace", []).append(
            cell_of(own - max(others), numbers, 1)
        )
        for name in ("ece", "nll"):
            own, *others = three(stem, name)
            rows.setdefault(f"lowest {name.upper()}: the same", []).append(
                cell_of(min(others) - own, written(own, *others))
            )
        own, *others = three(stem, "auroc")
        rows.setdefault("highest AUROC: the same", []).append(cell_of(own - max(others), written(own, *others)))
    for stem in PERSONAL:
        for claim, name, lead in (
            ("server's model 8 points above pFedVEM's: FedIvon; pFedVEM", "accuracy", 8),
            ("own models at least as good: the same", "personal", 0),
        ):
            own, vem = (100 * mean(stem, m, name, kind_of(m)) for m in ("FedIvon", "PFedVEM"))
            rows.setdefault(claim, []).append(cell_of(own - vem - lead, f"{own:.1f}; {vem:.1f}", 1))
    last = {
        count: 100 * np.mean([run["curves"]["accuracy"][-1] for run in runs])
        for count, runs in epochs()["FedIvon"].items()
    }
    most = max(last)
    rows[f"unstable beyond two epochs: 2; {most} epochs"] = [
        cell_of(last[2] - last[most], f"{last[2]:.1f}; {last[most]:.1f}", 1),
        "–",
    ]
    lines = ["| claim: numbers | MNIST | Fashion-MNIST |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {claim} | {' | '.join(cells)} |" for claim, cells in rows.items())])


def draw(folder: Path = FIGURES) -> None:
    """Reliability diagrams of the standard runs, accuracy by round (Figure 2), and by epochs (Figure 4)."""
    with style.context():
        figure = style.new_figure(style.WIDTH, 4.6)
        panels = figure.subplots(2, 3)
        for column, stem in enumerate(STANDARD):
            methods = methods_of(stem)
            name = results_of(stem)["experiment"]["data"]["name"]
            name = {"mnist": "MNIST", "fashion": "Fashion-MNIST"}[name]
            above, below = panels[0][column], panels[1][column]
            for method, look in zip(methods, looks(methods), strict=True):
                runs = runs_of(stem, method)
                curves = np.mean([run["curves"]["accuracy"] for run in runs], axis=0)
                above.plot(runs[0]["curves"]["round"], 100 * curves, label=in_words(method), **look)
                diagram = runs[0]["last"][SAMPLED if method == "FedIvon" else MEAN]["reliability"]
                full = np.array(diagram["rows"]) >= LEAST
                below.plot(np.array(diagram["confidence"])[full], np.array(diagram["accuracy"])[full], **look)
            below.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
            above.set(title=name, xlabel="round", ylabel="accuracy / %")
            below.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        for axes, method, words in zip(
            (row[2] for row in panels), ("FedIvon", "FedAvg"), ("FedIvon by epochs", "FedAvg by epochs"), strict=True
        ):
            own = epochs()[method]
            for shade, count in zip(np.linspace(0.75, 0.0, len(own)), sorted(own), strict=True):
                curves = np.mean([run["curves"]["accuracy"] for run in own[count]], axis=0)
                label = f"{count} epochs" if count > 1 else "1 epoch"
                axes.plot(own[count][0]["curves"]["round"], 100 * curves, color=str(shade), label=label)
            axes.set(title=words, xlabel="round", ylabel="accuracy / %")
            axes.legend(fontsize=6)
        for axes in panels.flat:
            style.tidy(axes)
        handles, names = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
        style.save(figure, folder, "fedivon")
        (folder / "fedivon.svg").unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", type=Path, nargs="*", default=[], help="folders of results to keep")
    for folder in parser.parse_args().take:
        KEPT.mkdir(exist_ok=True)
        content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        (KEPT / f"{folder.name}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
