"""Tables and figure of benchmarks/results/heads.json; `python benchmarks/heads.py --write` puts them into the docs."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bayesadmm_np.demos import style

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "heads.json"
PAGE, FULL = ROOT / "docs" / "deep.md", KEPT.with_suffix(".md")
FIGURES, TEMPLATE = ROOT / "docs" / "figures", ROOT / "benchmarks" / "heads.md"
MARKERS = "<!-- written by benchmarks/heads.py -->", "<!-- end of benchmarks/heads.py -->"
DATA = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SPLITS, SEEDS = ("iid", "two labels"), 3
NETWORKS = ("FedAvg", "FedDyn", "IVON-ADMM", "FedLap-Cov")
IN_WORDS = {
    "mean": "network at its mean",
    "mean, scaled": "the same, one scale by held-out rows",
    "samples": "network, samples",
    "refit": "exact head, mode",
    "Laplace": "exact head, Laplace",
    "refit, held-out": "mode, δ by held-out rows",
    "Laplace, held-out": "Laplace, δ by held-out rows",
    "ridge": "ridge head",
}
SCORES = {"accuracy": True, "nll": False, "ece": False, "auroc": True}
"""Scores, and whether more is better."""
IN_FULL = {"accuracy": "accuracy, %", "nll": "NLL", "ece": "ECE", "auroc": "AUROC"}
Record = dict[str, Any]


def kept() -> list[Record]:
    records: list[Record] = json.loads(KEPT.read_text(encoding="utf-8"))["records"]
    return records


def of(records: Iterable[Record], **wanted: Any) -> list[Record]:
    """Records with these values; a tuple allows several."""
    options = {key: one if isinstance(one, tuple) else (one,) for key, one in wanted.items()}
    return [r for r in records if all(r[key] in some for key, some in options.items())]


def lines(first: str, rest: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A Markdown table."""
    columns = list(rest)
    head = [f"| {first} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return "\n".join([*head, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows)])


def plain(name: str, value: float) -> str:
    """A score with the digits of the tables."""
    return f"{100 * value:.1f}" if name == "accuracy" else f"{value:.2f}" if name == "nll" else f"{value:.3f}"


def few(found: list[Record]) -> str:
    """A mark where a network has fewer than three seeds."""
    seeds = [len({r["seed"] for r in of(found, network=network)}) for network in {r["network"] for r in found}]
    return "" if min(seeds) == SEEDS else f" [{min(seeds)}]"


def spread(name: str, found: list[Record]) -> str:
    """The mean, and the deviation of the seeds' means."""
    means = [np.mean([r[name] for r in of(found, seed=seed)]) for seed in {r["seed"] for r in found}]
    deviation = f" ± {plain(name, float(np.std(means, ddof=1)))}" if len(means) > 1 else ""
    return f"{plain(name, float(np.mean(means)))}{deviation}{few(found)}"


def summary(records: list[Record], split: str) -> str:
    """Accuracy, NLL and AUROC of each data set: means over seeds and, with a network's features, over networks."""
    chosen = {words: {"predictor": p, "network": NETWORKS} for p, words in IN_WORDS.items() if p != "samples"}
    for network in ("IVON-ADMM", "FedLap-Cov"):
        chosen |= {f"{network} at its mean": {"predictor": "mean", "network": network}}
        chosen |= {f"{network}, samples": {"predictor": "samples", "network": network}}
    for words, predictor in (("mode", "refit"), ("Laplace", "Laplace")):
        chosen |= {f"components, {words}": {"predictor": predictor, "network": "pixels"}}
    chosen |= {"pixels, ridge": {"predictor": "ridge", "network": "pixels"}}
    columns = [f"{DATA[data]}, %, NLL, AUROC" for data in DATA]
    rows = []
    for words, wanted in chosen.items():
        cells = []
        for data in DATA:
            found = of(records, data=data, split=split, **wanted)
            each = (plain(name, float(np.mean([r[name] for r in found]))) for name in ("accuracy", "nll", "auroc"))
            cells.append(" · ".join(each) + few(found) if found else "–")
        rows.append((words, cells))
    return lines(split, columns, rows)


def _two(network: Any, first: str, second: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"network": network, "predictor": first}, {"network": network, "predictor": second}


COMPARED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "samples − mean, IVON-ADMM": _two("IVON-ADMM", "samples", "mean"),
    "samples − one scale, IVON-ADMM": _two("IVON-ADMM", "samples", "mean, scaled"),
    "samples − mean, FedLap-Cov": _two("FedLap-Cov", "samples", "mean"),
    "one scale − none": _two(NETWORKS, "mean, scaled", "mean"),
    "exact head's mode − network's mean": _two(NETWORKS, "refit", "mean"),
    "Laplace − mode, δ by evidence": _two(NETWORKS, "Laplace", "refit"),
    "mode: δ by held-out rows − by evidence": _two(NETWORKS, "refit, held-out", "refit"),
    "Laplace: δ by held-out rows − by evidence": _two(NETWORKS, "Laplace, held-out", "Laplace"),
    "Laplace − mode, δ by held-out rows": _two(NETWORKS, "Laplace, held-out", "refit, held-out"),
    "Laplace, δ by evidence − network's mean": _two(NETWORKS, "Laplace", "mean"),
    "Laplace, δ by evidence − ridge": _two(NETWORKS, "Laplace", "ridge"),
    "Laplace, δ by held-out rows − ridge": _two(NETWORKS, "Laplace, held-out", "ridge"),
    "components: Laplace − mode, δ by evidence": _two("pixels", "Laplace", "refit"),
    "pretrained: Laplace − mode, δ by evidence": _two("pretrained", "Laplace", "refit"),
    "pretrained: Laplace, δ by evidence − ridge": _two("pretrained", "Laplace", "ridge"),
    "Laplace, δ by evidence: components − network": (
        {"network": "pixels", "predictor": "Laplace"},
        {"network": NETWORKS, "predictor": "Laplace"},
    ),
}


def pairs(records: list[Record], name: str, first: dict[str, Any], second: dict[str, Any], **where: Any) -> Any:
    """Differences of a score between records of the same data, split, seed and, if there are several, network."""
    left, right = (of(records, **one, **where) for one in (first, second))
    same = ("data", "split", "seed") + (("network",) if first["network"] == second["network"] else ())
    return np.array([a[name] - b[name] for b in right for a in left if all(a[key] == b[key] for key in same)])


def difference(name: str, found: Any) -> str:
    """Mean and deviation of differences, and how many are an improvement."""
    if not len(found):
        return "–"
    times, digits = (100.0, 1) if name == "accuracy" else (1.0, 3)
    deviation = f" ± {times * found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    better = int((found > 0 if SCORES[name] else found < 0).sum())
    return f"{times * found.mean():+.{digits}f}{deviation}, {better}/{len(found)}".replace("-", "−")


def differences(records: list[Record], name: str) -> str:
    """Paired differences of a score, by data and split, and over all data."""
    where = {f"{DATA[data]}, {split}": {"data": data, "split": split} for data in DATA for split in SPLITS}
    where |= {f"all, {split}": {"split": split} for split in SPLITS}
    rows = []
    for words, (first, second) in COMPARED.items():
        rows.append((words, [difference(name, pairs(records, name, first, second, **one)) for one in where.values()]))
    return lines(IN_FULL[name], where, rows)


def costs(found: list[Record]) -> list[str]:
    """Numbers that a site sends, in thousands, and seconds."""
    return [f"{np.mean([r['floats'] for r in found]) / 1e3:,.0f}", f"{np.mean([r['seconds'] for r in found]):.1f}"]


HEAD = (*IN_FULL.values(), "sent, 10³", "s")


def block(records: list[Record], chosen: list[tuple[str, dict[str, Any]]], first: str) -> str:
    """All scores and costs of some records."""
    rows = []
    for words, wanted in chosen:
        if found := of(records, **wanted):
            rows.append((words, [*(spread(name, found) for name in SCORES), *costs(found)]))
    return lines(first, HEAD, rows)


def pretrained(records: list[Record]) -> str:
    """CIFAR-10 with a pretrained body, against what needs none."""
    chosen = [(f"pretrained: {IN_WORDS[p]}", {"network": "pretrained", "predictor": p}) for p in list(IN_WORDS)[3:]]
    for predictor in ("mean", "Laplace"):
        for split in SPLITS:
            wanted = {"network": "FedAvg", "predictor": predictor, "split": split}
            chosen.append((f"LeNet by FedAvg, {split}: {IN_WORDS[predictor]}", wanted))
    chosen += [("components of pixels: exact head, Laplace", {"network": "pixels", "predictor": "Laplace"})]
    return block(of(records, data="cifar10"), chosen, "CIFAR-10")


def full(records: list[Record]) -> str:
    """Every network and predictor, by data and split."""
    parts = [
        "# Networks, exact heads and baselines\n\nMeans ± standard deviations over three seeds; `heads.py` made them."
    ]
    for data, words in DATA.items():
        for split in SPLITS:
            here, chosen = of(records, data=data, split=split), []
            for network in dict.fromkeys(r["network"] for r in here):
                for predictor in dict.fromkeys(r["predictor"] for r in of(here, network=network)):
                    chosen.append((f"{network}: {predictor}", {"network": network, "predictor": predictor}))
            parts.append(f"## {words}, {split}\n\n" + block(here, chosen, "predictions"))
    parts.append("## Paired differences\n\nThe last two numbers are pairs with an improvement, and all pairs.")
    parts += [differences(records, name) for name in SCORES]
    return "\n\n".join(parts) + "\n"


def said(records: list[Record], field: str) -> str:
    """A table, or SCORE|NETWORK|PREDICTOR|DATA|SPLIT, SCORE|COMPARISON|DATA|SPLIT, rise|NETWORK|DATA|SPLIT."""
    name, *parts = field.split("|")
    if not parts:
        known = {"pretrained": pretrained, **{split: lambda rows, s=split: summary(rows, s) for split in SPLITS}}
        return known[name](records)
    *what, data, split = parts
    where = {"split": split} | ({} if data == "all" else {"data": data})
    if name == "rise":
        curves = [r["curve"] for r in of(records, network=what[0], predictor="mean", **where)]
        return f"{100 * np.mean([curve[-1][1] - curve[-3][1] for curve in curves]):+.1f}".replace("-", "−")
    if len(what) == 1:
        first, second = COMPARED[what[0]]
        return difference(name, pairs(records, name, first, second, **where))
    network, predictor = what
    chosen = NETWORKS if network == "networks" else network
    return plain(name, float(np.mean([r[name] for r in of(records, network=chosen, predictor=predictor, **where)])))


def section(records: list[Record]) -> str:
    """What docs/deep.md has between its markers: the template, with what its fields {{…}} stand for."""
    text, found, last = TEMPLATE.read_text(encoding="utf-8"), "", ""
    for part in re.split(r"\n\n|\n(?=- )", text.strip()):
        made = re.sub(r"\{\{(.+?)\}\}", lambda m: said(records, m[1]), " ".join(part.split()))
        if not made.startswith(("|", "!")):
            made = textwrap.fill(made, 120, subsequent_indent="  " * made.startswith("- "), break_on_hyphens=False)
        found += ("\n" if made.startswith("- ") and last.startswith("- ") else "\n\n") + made if found else made
        last = made
    return found + "\n"


def filled(page: str, records: list[Record]) -> str:
    """The page with the section between its markers."""
    begin, end = MARKERS
    return page[: page.index(begin)] + f"{begin}\n\n{section(records)}\n" + page[page.index(end) :]


def draw(records: list[Record], folder: Path = FIGURES) -> None:
    """NLL and AUROC of every predictor; a bar a run, a large point the mean."""
    shown = {words: {"network": NETWORKS, "predictor": p} for p, words in IN_WORDS.items() if p != "samples"}
    shown |= {f"{name}, samples": {"network": name, "predictor": "samples"} for name in ("IVON-ADMM", "FedLap-Cov")}
    for words, network in (("components", "pixels"), ("pretrained body", "pretrained")):
        shown[f"{words}, Laplace"] = {"network": network, "predictor": "Laplace"}
    looks = {"iid": (style.BLUE, "o", -0.17), "two labels": (style.VERMILION, "D", 0.17)}
    with style.context():
        figure = style.new_figure(style.WIDTH, 4.6)
        panels = figure.subplots(2, len(DATA), sharey=True)
        for row, name in zip(panels, ("nll", "auroc"), strict=True):
            for axes, (data, words) in zip(row, DATA.items(), strict=True):
                for split, (colour, marker, shift) in looks.items():
                    for place, wanted in enumerate(shown.values()):
                        found = [r[name] for r in of(records, data=data, split=split, **wanted)]
                        if found:
                            axes.plot(found, [place + shift] * len(found), "|", color=colour, alpha=0.6)
                            axes.plot(np.mean(found), place + shift, marker, color=colour, label=split)
                axes.set(title=words, xlabel=name.upper())
                axes.set_yticks(range(len(shown)), list(shown))
                style.tidy(axes)
        panels[0, 0].invert_yaxis()
        handles = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=2)
        style.save(figure, folder, "heads")
        (folder / "heads.svg").unlink()


def write() -> None:
    records = kept()
    FULL.write_text(full(records), encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")
    draw(records)
