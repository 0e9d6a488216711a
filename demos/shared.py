"""What every demo shares: it runs as a script, states its numbers to an accuracy, and draws with the panels below.

A demo is five things: a title, `compute` (the numbers, as plain dicts and lists), `claims` (what they show), `draw`,
and the accuracy that the numbers are stated to. Claims are judged and figures are drawn from the *stated* numbers,
which stand in the results file. So when a run on another machine finds the same numbers to that accuracy, nothing has
changed and no file is written.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.patches import FancyArrowPatch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import bayesadmm_np as ba
from bayesadmm_np import data
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.demos import style

SCHEMA = 2
LABEL_PAIR_CLIENTS = 5

# ---- stated accuracy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """A number is stated to `digits` significant digits, but never finer than `absolute`.

    The default is that of the runs here, whose solves end at residuals of 1e-8 to 1e-10. What rounding in another order
    changes is much less: over four kernels of OpenBLAS at most 1e-13, or 1e-13 of a number above 1.
    """

    digits: int = 6
    absolute: float = 1e-12

    def unit(self, value: float) -> float:
        """Return the unit of the last stated digit."""
        leading = math.floor(math.log10(abs(value))) if value else -math.inf
        return max(self.absolute, 10.0 ** (leading - self.digits + 1))

    def stated(self, numbers: Any) -> Any:
        """Return plain numbers, rounded."""
        if isinstance(numbers, dict):
            return {key: self.stated(value) for key, value in numbers.items()}
        if isinstance(numbers, list | tuple | np.ndarray):
            return [self.stated(value) for value in numbers]
        if isinstance(numbers, float):
            return round(float(numbers), -round(math.log10(self.unit(numbers)))) + 0.0
        return numbers.item() if isinstance(numbers, np.generic) else numbers


def size(value: float, pattern: str = ".1e", below: float = 1e-12) -> str:
    """Write a small number, and say so where it is below what is stated."""
    return format(value, pattern) if abs(value) > below else f"under {below:g}"


def differences(old: Any, new: Any, accuracy: Accuracy, where: str = "") -> Iterator[str]:
    """Say where stated numbers and new ones differ by more than the unit of the last stated digit, and by how much."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key, value in old.items():
            yield from differences(value, new[key], accuracy, f"{where}.{key}" if where else key)
    elif isinstance(old, list) and isinstance(new, list | tuple | np.ndarray) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, accuracy, f"{where}[{i}]")
    elif isinstance(old, int | float) and isinstance(new, float):
        if not abs(new - old) <= (unit := accuracy.unit(max(abs(old), abs(new)))):
            yield f"{where} was {old:.9g}, is {new:.9g} (stated to {unit:.0e})"
    elif isinstance(old, dict | list) or old != new:
        yield f"{where} was {_brief(old)}, is {_brief(new)}"


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(value)}}}"
    return f"a list of {len(value)}" if isinstance(value, list | tuple | np.ndarray) else repr(value)


def read_results(path: Path) -> dict[str, Any]:
    """Return the figures of a results file, {} when there is none; a ValueError where it holds something else."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        schema, figures = found["schema"], dict(found["figures"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a readable results file; move it away, or choose another --out.") from error
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema}, not {SCHEMA}; move it away, or choose another --out.")
    return figures


def _write_results(path: Path, figures: dict[str, Any]) -> None:
    text = {"schema": SCHEMA, "library": ba.__version__, "figures": dict(sorted(figures.items()))}
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(text, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, path)


OPTIONS = {  # what a parameter of `compute` is, for --help
    "add": "draw this method as well: module:NAME",
    "admm_rhos": "values of ρ that ADMM tries",
    "bregman_rhos": "values of ρ that BregmanADMM tries",
    "dataset": "name of the data set",
    "deltas": "precisions of the prior",
    "draws": "number of random draws",
    "epochs": "passes over a client's rows in a round",
    "first": "number of images, from the first on",
    "points": "points of the integration rule for a row's average over the posterior",
    "rounds": "largest number of communication rounds",
    "seeds": "seeds of the runs",
    "side": "pixels of an image's side, to which images are averaged",
}

# ---- a demo ----------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """One thing that a figure shows; `paper` is what the paper finds there, `agrees` whether ours is the same finding.

    A claim that holds and differs from the paper's is marked "≠ paper", which is no failure.
    """

    text: str
    holds: bool
    measured: str
    paper: str = ""
    agrees: bool = True

    def entry(self) -> dict[str, Any]:
        """Return what stands in the results file."""
        said = {"claim": self.text, "holds": bool(self.holds), "measured": self.measured}
        return said | ({"paper": self.paper, "agrees": bool(self.agrees)} if self.paper else {})


def mark(entry: dict[str, Any]) -> str:
    """Return ✓, "≠ paper" for a claim that holds and differs from the paper's, or ✗."""
    if not entry["holds"]:
        return "✗"
    return "✓" if entry.get("agrees", True) else "≠ paper"


@dataclass(frozen=True)
class Demo:
    """One figure.

    Attributes
    ----------
    key, name, title : what `bayesadmm reproduce --only` calls it, the stem of its files, its headline
    compute : `compute(..., track=iter)` returns the numbers; every other parameter becomes an option of the script, and
        `track` goes around the longest loop, which it may show as a progress bar
    claims : yields each `Claim`, or the first three of its fields
    draw : returns the figure
    notes : yields measurements that are no claim
    accuracy : what the numbers are stated to
    results : the file beside the figure that holds the numbers
    needs : is called with the name of the data set before anything else, to find what is missing
    """

    key: str
    name: str
    title: str
    compute: Callable[..., dict[str, Any]]
    claims: Callable[[Any], Iterator[tuple[Any, ...]]]
    draw: Callable[[Any], Any]
    notes: Callable[[Any], Iterator[str]] = lambda _: iter(())
    accuracy: Accuracy = field(default_factory=Accuracy)
    results: str = "results.json"
    needs: Callable[[str], Any] = lambda _: None

    def run(
        self,
        out: Path | None = None,
        force: bool = False,
        progress: bool = True,
        echo: Callable[[str], None] = print,
        **settings: Any,
    ) -> list[str]:
        """Compute, write what has changed, print the claims, and return the `mark` of each.

        `out` is the folder figures, or figures/added with a method of one's own, which version control leaves out.

        Raises
        ------
        ValueError
            When the results file in `out` holds something else, or a setting is out of range.
        OSError
            When data are not available or `out` cannot be written.
        ImportError
            When an optional package is missing.
        """
        for name in ("rounds", "draws", "epochs"):
            if min(np.ravel(settings.get(name, 1))) < 1:
                raise ValueError(f"{name} must be at least 1, got {settings[name]}.")
        dataset = settings.get("dataset", "digits")
        suffix = "" if dataset == "digits" else f"_{dataset}"
        if added := settings.get("add"):  # of figure 5b: not in the place of what is committed
            suffix += f"_with_{added.partition(':')[2]}"
        out = out or (Path("figures", "added") if added else Path("figures"))
        key, path = self.key + suffix.replace("_", "-"), out / self.results
        pictures = [out / f"{self.name}{suffix}.{kind}" for kind in ("svg", "png")]
        figures = read_results(path)
        self.needs(dataset)
        # one thread: the matrices are small, and sums in a fixed order give the same digits on any number of cores
        with threadpool_limits(1):
            bar = partial(tqdm, desc=f"figure {self.key}", disable=not progress, leave=False, unit="run")
            found = self.compute(**settings, track=bar)
        old = figures.get(key)
        changes = list(differences(old["numbers"], found, self.accuracy)) if old else []
        entry = self.entry(old["numbers"] if old and not changes and not force else self.accuracy.stated(found))
        out.mkdir(parents=True, exist_ok=True)
        drawn = force or not old or bool(changes) or not all(picture.exists() for picture in pictures)
        if drawn:
            style.save(self.picture(entry["numbers"]), out, self.name + suffix)
        if force or entry != old:
            _write_results(path, figures | {key: entry})
        echo(f"\n{self.title}  →  {', '.join(map(str, pictures))}")
        self._report(entry, echo)
        if changes:
            which = "1 number is not that" if len(changes) == 1 else f"{len(changes)} numbers are not those"
            echo(f"  ! rewritten, because {which} of {path}:")
            for change in changes[:5]:
                echo(f"    {change}")
        elif old and entry != old and not force:
            echo(f"  ! the numbers are those of {path}; what is said of them there is rewritten")
        elif not drawn:
            digits = self.accuracy.digits
            echo(f"  = unchanged: every number is that of {path} to {digits} digits, so nothing is written")
            echo("    (pictures are not compared: draw them anew with --force)")
        return [mark(claim) for claim in entry["claims"]]

    def entry(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """Return what stands in the results file: stated numbers, their accuracy, and what is said of them."""
        claims = [Claim(*claim).entry() for claim in self.claims(numbers)]
        accuracy = {"digits": self.accuracy.digits, "absolute": self.accuracy.absolute}
        notes = list(self.notes(numbers))
        return {"title": self.title, "claims": claims, "notes": notes, "accuracy": accuracy, "numbers": numbers}

    def picture(self, numbers: dict[str, Any]) -> Any:
        """Return the figure."""
        with style.context():
            return self.draw(numbers)

    def _report(self, entry: dict[str, Any], echo: Callable[[str], None]) -> None:
        for claim in entry["claims"]:
            paper = f" (the paper: {claim['paper']})" if mark(claim) == "≠ paper" else ""
            sign = mark(claim).replace("paper", "paper:")
            echo(f"  {sign} {claim['claim']}: {claim['measured']}{paper}")
        for note in entry["notes"]:
            echo(f"  · {note}")

    def main(self) -> None:
        """Run as a script, with an option for each parameter of `compute`; exit with 0 when every claim holds."""
        doc = inspect.getmodule(self.compute).__doc__
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        for name, parameter in inspect.signature(self.compute).parameters.items():
            default = parameter.default
            if name == "track":
                continue
            several = isinstance(default, tuple)
            kind = {"type": type(default[0]), "nargs": "+"} if several else {"type": type(default)}
            shown = " ".join(map(str, default)) if several else default
            unset = "none" if default == "" else "those of the data set" if default == 0 else shown
            words = f"{OPTIONS[name]}; default: {unset}"
            parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=words, **kind)
        where = ", or figures/added with --add" if hasattr(parser.parse_args([]), "add") else ""
        parser.add_argument("--out", type=Path, help=f"folder to write to; default: figures{where}")
        parser.add_argument("--force", action="store_true", help="write the files even when no number has changed")
        parser.add_argument("--no-progress", dest="progress", action="store_false", help="show no progress bar")
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # a terminal without ✓
        try:
            sys.exit("✗" in self.run(**vars(parser.parse_args())))
        except (ImportError, OSError, ValueError) as error:
            sys.exit(f"{self.name}: {error}")


def failed(run: dict[str, Any]) -> bool:
    """Say whether the status of a run in the numbers is a failure."""
    return ba.Status[run["status"]].is_failure


def arrival(near: Sequence[bool]) -> int | None:
    """Return the first place from which on all are near, if the last one is."""
    far = np.flatnonzero(~np.array(near))
    first = int(far[-1]) + 1 if far.size else 0
    return first if first < len(near) else None


def finite(value: float | None) -> float:
    """Return a number that may be compared; what is None in a results file is infinite."""
    return math.inf if value is None else value


def words(count: int | None) -> str:
    """Say a number of rounds."""
    return "never" if count is None else "1 round" if count == 1 else f"{count} rounds"


@contextmanager
def torch_from(seed: int) -> Iterator[None]:
    """Let PyTorch draw from a seed inside, and sum on one thread in a fixed order; what it was before comes back.

    Warnings of clients that diverge are silent: the status tells.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


# ---- runs of networks with several seeds -----------------------------------------------------------------------------


def trial(rho: float, gamma: float, results: Sequence[Any]) -> dict[str, Any]:
    """Return one setting; its accuracy is averaged over rounds and seeds, None when a run failed."""
    by_round, bad = _accuracies(results), [result for result in results if result.status.is_failure]
    accuracy, status = None if bad else float(np.mean(by_round)), (bad or results)[0].status.name
    return {"rho": rho, "gamma": gamma, "accuracy": accuracy, "by_round": by_round, "status": status}


def curve_of_seeds(label: str, best: dict[str, Any], results: Sequence[Any]) -> dict[str, Any]:
    """Return the chosen setting, a list a seed; `nll` is that of the ensemble, None where not finite."""
    nll = [[float(r.ensemble.nll) if np.isfinite(r.ensemble.nll) else None for r in res.history] for res in results]
    chosen = {"label": label, "rho": best["rho"], "gamma": best["gamma"]}
    return {**chosen, "accuracy": _accuracies(results), "nll": nll, "statuses": [r.status.name for r in results]}


def _accuracies(results: Sequence[Any]) -> list[list[float]]:
    return [[record.at_mean.accuracy for record in result.history] for result in results]


def accuracies_after(curves: Sequence[dict[str, Any]], number: int) -> tuple[list[float], str]:
    """Return each curve's mean accuracy over seeds after a round, and with standard deviations in words."""
    reached = [[seed[number - 1] for seed in curve["accuracy"] if len(seed) >= number] or [np.nan] for curve in curves]
    pairs = [(float(np.mean(values)), float(np.std(values))) for values in reached]
    words = [f"{c['label']} {100 * mean:.1f} ± {100 * sd:.1f} %" for c, (mean, sd) in zip(curves, pairs, strict=True)]
    return [mean for mean, _ in pairs], ", ".join(words)


def last_nll(curve: dict[str, Any], rounds: int) -> list[float]:
    """Return the NLL of the ensemble after the last round, of each seed that came to it."""
    return [seed[-1] for seed in curve["nll"] if len(seed) == rounds and seed[-1] is not None] or [np.nan]


def notes_on_tuning(numbers: dict[str, Any]) -> Iterator[str]:
    """Say the accuracy of early rounds, which setting was chosen of how many, and which seeds ended early."""
    rounds = numbers["rounds"]
    for number in sorted({1, max(1, rounds // 3), rounds}):
        yield f"round {number}: {accuracies_after(numbers['curves'], number)[1]}"
    for curve in numbers["curves"]:
        label, tried = curve["label"], len(numbers["sweep"][curve["label"]])
        last = last_nll(curve, rounds)
        chosen = f"ρ = {curve['rho']:g}, γ = {curve['gamma']:g} is chosen of {tried} settings"
        yield f"{label}: {chosen}; NLL of the ensemble at the end {np.mean(last):.3f} ± {np.std(last):.3f}"
        if bad := [name.lower() for name in curve["statuses"] if ba.Status[name].is_failure]:
            yield f"{label}: {len(bad)} of {len(curve['statuses'])} seeds end early ({', '.join(bad)})"


# ---- data ------------------------------------------------------------------------------------------------------------


def with_ones(points: Any) -> np.ndarray:
    """Append a column of ones, for the intercept."""
    return np.column_stack([points, np.ones(len(points))])


def label_pairs(dataset: str, side: int, first: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], str]:
    """Return (X, y) of five clients with two labels each, and what the data are, in words.

    The first `first` images are averaged to side × side pixels; pixels are in [0, 1], without a column of ones.
    """
    if dataset == "mnist":
        raw = data.load_mnist(size=side, train=first)
        X, y = raw.X, raw.y
    elif dataset == "digits":
        if side not in (1, 2, 4, 8):
            raise ValueError(f"side must be one of 1, 2, 4, 8 for digits, got {side}.")
        raw, block = data.load_digits(), 8 // side
        X = raw.X[:first].reshape(-1, side, block, side, block).mean(axis=(2, 4)).reshape(-1, side * side)
        y = raw.y[:first]
    else:
        raise ArgumentError("dataset", "must be one of digits, mnist", repr(dataset))
    parts = data.partition.label_pairs(y, LABEL_PAIR_CLIENTS)
    return [(X[part], y[part]) for part in parts], f"{dataset}, first {len(y)} images, {side}×{side} pixels"


def find_images(dataset: str) -> None:
    """Load a few images of a data set, so that missing data are noticed at once."""
    label_pairs(dataset, 8 if dataset == "digits" else 7, 200)


def images(dataset: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Return rows of pixels, labels, and what they are: all digits, or 6000 images of a larger set at 14 × 14."""
    loaders = {"digits": data.load_digits, "mnist": data.load_mnist, "fashion": data.load_fashion_mnist}
    if dataset not in loaders:
        raise ArgumentError("dataset", f"must be one of {', '.join(loaders)}", repr(dataset))
    if dataset == "digits":
        raw = data.load_digits()
        return raw.X, raw.y, f"digits, {len(raw.y)} images, 8×8 pixels"
    raw = loaders[dataset](size=14, train=6000)
    return raw.X, raw.y, f"{dataset}, first {len(raw.y)} images, 14×14 pixels"


def tensors(X: np.ndarray, y: np.ndarray) -> Any:
    """Return rows for a network."""
    import torch

    from bayesadmm_np.torch import Rows

    return Rows(torch.tensor(X, dtype=torch.float32), torch.tensor(y))


# ---- panels ----------------------------------------------------------------------------------------------------------


def semilog(axes: Any, values: Sequence[float | None], look: style.Look, floor: float, **options: Any) -> Any:
    """Plot values against rounds on a logarithmic axis; a curve ends on the floor, where it first falls below it."""
    curve = np.array([np.nan if value is None else max(value, floor) for value in values])
    below = np.flatnonzero(curve <= floor)
    shown = curve[: below[0] + 1] if below.size else curve
    (line,) = axes.semilogy(shown, **(look.kwargs() | {"clip_on": False} | options))
    return line


def cross(axes: Any, x: Any, y: Any, colour: str, **options: Any) -> Any:
    """Mark where a run failed."""
    look = {"markersize": 9, "markeredgewidth": 2.2, "zorder": 5, "linestyle": ""} | options
    return axes.plot(x, y, marker="x", color=colour, **look)[0]


def gaps(axes: Any, title: str, curves: Sequence[dict[str, Any]], near: float, looks: dict[str, style.Look]) -> Any:
    """Draw relative distances from an optimum by round, ✗ where a run failed; return the lines by label.

    Curves whose look is faint lie behind; a curve's twin, under "mean", is dotted.
    """
    handles, floor = {}, 1e-9
    for curve in curves:
        label, look = curve["label"], looks[curve["label"]]
        faint = look.colour == style.FAINT
        size = {"linewidth": 0.8, "markersize": 3.5, "markeredgecolor": look.colour, "zorder": 2} if faint else {}
        handles[label] = semilog(axes, curve["gap"], look, floor, **({"zorder": 3} | size))
        runs = [(curve, look)]
        if "mean" in curve:
            dotted = replace(look, line=(0, (1, 1.2)), hollow=True)
            semilog(axes, curve["mean"]["gap"], dotted, floor, zorder=4, linewidth=1.0, markersize=3.0)
            runs.append((curve["mean"], dotted))
        for one, own in runs:
            if failed(one):
                cross(axes, len(one["gap"]) - 1, one["gap"][-1], own.colour)
    axes.axhline(near, color=style.MUTED, linewidth=0.7, linestyle=(0, (2, 2)), zorder=1)
    place = {"transform": axes.get_yaxis_transform(), "va": "top", "fontsize": 6.5, "color": style.MUTED}
    axes.text(0.015, near * 0.85, f"{100 * near:g} %", **place)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    top = 10 ** math.ceil(math.log10(max(curve["gap"][0] for curve in curves) * 30))
    axes.set(xlabel="communication round", title=title, ylim=(floor, top))
    longest = max(len(curve["gap"]) for curve in curves) - 1
    axes.set_xlim(0, 1.02 * longest)  # room for the last marker, and no number behind it
    style.tidy(axes)
    return handles


def seeds_by_round(axes: Any, label: str, values: Sequence[Sequence[float]], look: style.Look) -> None:
    """Draw the mean over seeds of 1 − a share and a band of one standard deviation; a run that failed ends both.

    On a log axis, where the last rounds do not look alike.
    """
    length = min(len(seed) for seed in values)
    shares, rounds = 1.0 - np.array([seed[:length] for seed in values]), np.arange(1, length + 1)
    mean, sd = shares.mean(axis=0), shares.std(axis=0)
    axes.fill_between(rounds, mean - sd, mean + sd, color=look.colour, alpha=0.18, linewidth=0)
    axes.plot(rounds, mean, label=label, **look.kwargs())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set(xlabel="communication round")
    axes.legend(loc="upper right")
    _errors(axes)
    style.tidy(axes)


def _errors(axes: Any) -> None:
    """Make a log axis of shares in per cent."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda share, _: f"{100.0 * share:.3g} %")


def sweeps(axes: Any, rows: Sequence[tuple[str, Sequence[dict[str, Any]], style.Look]], unnamed: Any = ()) -> None:
    """Draw errors against γ, a curve for each (label, trials, look), and ✗ in a strip above where a run failed.

    The γ in `unnamed` get no number on the axis, where they stand too close to others.
    """
    axes.set_xscale("log")
    _errors(axes)
    for label, trials, look in rows:
        good = [(trial["gamma"], 1.0 - trial["accuracy"]) for trial in trials if trial["accuracy"] is not None]
        axes.plot(*np.reshape(good, (-1, 2)).T, label=label, **look.kwargs())
    if any(trial["accuracy"] is None for _, trials, _ in rows for trial in trials):
        _failures(axes, rows)
    named = sorted({trial["gamma"] for _, trials, _ in rows for trial in trials} - set(unnamed))
    axes.set_xticks(named, [f"{gamma:g}" for gamma in named])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="dual step γ")
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, 0.85))
    style.tidy(axes)


def _failures(axes: Any, rows: Sequence[tuple[str, Sequence[dict[str, Any]], style.Look]]) -> None:
    """Mark what failed in a strip of its own, in which there are no errors."""
    low, high = axes.get_ylim()
    middle, top = (high * (high / low) ** share for share in (0.08, 0.16))
    axes.axhspan(high, top, color="#EFEFEF", linewidth=0)
    axes.set_yticks([tick for tick in axes.get_yticks() if low <= tick <= high])
    axes.set_ylim(low, top)
    axes.text(0.02, middle, "a run failed", transform=axes.get_yaxis_transform(), va="center", fontsize=7)
    for _, trials, look in rows:
        bad = [trial["gamma"] for trial in trials if trial["accuracy"] is None]
        cross(axes, bad, [middle] * len(bad), look.colour)


def tuning(curves: Any, knobs: dict[str, str], looks: dict[str, style.Look], tried: Any, unnamed: Any) -> Any:
    """Return a figure of the chosen settings by round, and of all that were tried."""
    figure = style.new_figure(style.WIDTH, 2.9)
    left, right = figure.subplots(1, 2)
    for curve in curves:
        label = f"{curve['label']} ({knobs[curve['label']].format(**curve)})"
        seeds_by_round(left, label, curve["accuracy"], looks[curve["label"]])
    left.set(ylabel="error at the server's mean", title="Chosen setting, test rows")
    sweeps(right, tried, unnamed)
    right.set(title="All settings, validation rows, mean of rounds")
    return figure


ADMM_EDGES = {  # edge: title, equation, heads of what flows along it
    "broadcast": ("broadcast", r"$\theta_k = \theta_g$", r"$\theta_g$"),
    "natural_gradient": ("gradient", r"$\mathbf{v}_k = -\nabla\ell_k(\theta_k)$", r"$\theta_1$"),
    "gather": ("gather", r"$\mathbf{v}_g = \sum_k \mathbf{v}_k$", r"$\mathbf{v}_1$"),
    "dual_map": ("dual map", r"$\theta_g = \mathbf{v}_g/\delta$", r"$\mathbf{v}_g$"),
}
NATURAL_GRADIENT = r"$\eta_k = -\widetilde{\nabla}\,\mathrm{E}_{q_k}[\ell_k]$"
BAYES_EDGES = {
    "broadcast": ("broadcast", r"$\mu_k = \mu_g$", r"$\mu_g$: mean | sd"),
    "natural_gradient": ("natural gradient", NATURAL_GRADIENT, r"$\mu_1$: mean | sd"),
    "gather": ("gather", r"$\lambda_g = \eta_0 + \sum_k \eta_k$", r"$\eta_1$: $v$ | diag $V$"),
    "dual_map": ("dual map", r"$\mu_g = \nabla A(\lambda_g)$", r"$\lambda_g$: $Sm$ | diag $S$"),
}
ADMM_NODES = (r"$\theta_g$", r"$\theta_k$", r"$\mathbf{v}_k$", r"$\mathbf{v}_g$")
BAYES_NODES = (r"$\mu_g$", r"$\mu_k$", r"$\eta_k$", r"$\lambda_g$")
CIRCUITS = {
    "admm": ("ADMM: point estimates (Eq. 4)", ADMM_NODES, ADMM_EDGES),
    "bayes": ("Bayesian duality: distributions (Eq. 13)", BAYES_NODES, BAYES_EDGES),
}
LEFT, RIGHT, TOP, BOTTOM = 4.05, 7.95, 4.75, 0.3
PLACES = {"broadcast": (0.1, 3.5), "natural_gradient": (4.2, 2.3), "gather": (8.3, 3.5), "dual_map": (4.2, 4.4)}
WIDE = 3.6


def circuit(axes: Any, title: str, nodes: Sequence[str], edges: dict[str, tuple[str, str, str]], rows: Any) -> None:
    """Draw a duality circuit: four nodes, four arrows, and a table beside each arrow.

    Parameters
    ----------
    nodes : names of the server's and the clients' primal variables, then of the clients' and the server's dual ones
    edges : from the name of an edge to (its title, its equation, the heads of the values that flow along it)
    rows : from the name of an edge to its table: (round, values, residual)
    """
    axes.set(xlim=(0, 12), ylim=(-0.15, 5.2))
    axes.axis("off")
    axes.set_title(title, fontsize=9.5)
    corners = ((LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM), (RIGHT, TOP))
    arrow = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 1.3, "color": style.INK}
    for start, end in zip(corners, (*corners[1:], corners[0]), strict=True):
        axes.add_patch(FancyArrowPatch(start, end, shrinkA=15, shrinkB=15, **arrow))
    places = ("server, primal", "clients, primal", "clients, dual", "server, dual")
    for (x, y), node, place in zip(corners, nodes, places, strict=True):
        colour = style.BLUE if place.endswith("primal") else style.VERMILION
        circle = {"boxstyle": "circle,pad=0.28", "facecolor": colour, "edgecolor": "none"}
        axes.text(x, y, node, fontsize=12, color="white", ha="center", va="center", bbox=circle)
        side = {"x": x - 0.45, "ha": "right"} if x == LEFT else {"x": x + 0.45, "ha": "left"}
        axes.text(y=y, s=place, va="center", fontsize=7, color=colour, **side)
    for edge, (name, equation, heads) in edges.items():
        _edge_table(axes, PLACES[edge], name, equation, heads.split(" | "), rows[edge])


def _edge_table(axes: Any, corner: tuple[float, float], name: str, equation: str, heads: Any, rows: Any) -> None:
    x, y = corner
    axes.text(x, y, name, fontsize=7.5, weight="bold", va="center")
    axes.text(x + WIDE, y, equation, fontsize=8, va="center", ha="right")
    small = {"fontsize": 6, "va": "center"}
    columns = [(x + 0.1, "t", "center"), (x + WIDE - 0.05, "residual", "right")]
    columns += [(left, head, "left") for left, head in zip((x + 0.35, x + 1.82), heads, strict=False)]
    for at, head, side in columns:
        axes.text(at, y - 0.36, head, ha=side, color=style.MUTED, **small)
    axes.plot([x, x + WIDE], [y - 0.53] * 2, color=style.MUTED, linewidth=0.5)
    rights = [x + 0.69 + 0.47 * j for j in range(3)] + [x + 2.14 + 0.4 * j for j in range(3)]
    for i, (round_, values, residual) in enumerate(rows):
        height = y - 0.72 - 0.29 * i
        axes.text(x + 0.1, height, str(round_), ha="center", **small)
        for right, value in zip(rights, values, strict=False):
            axes.text(right, height, _short(value, f".{1 if abs(value) >= 9.95 else 2}f"), ha="right", **small)
        axes.text(x + WIDE - 0.05, height, _short(residual, ".2f" if residual >= 0.01 else ".0e"), ha="right", **small)


def _short(value: float, pattern: str) -> str:
    text = format(value, pattern)
    return text.replace("e-0", "e-").replace("-", "−") if float(text) else "0"
