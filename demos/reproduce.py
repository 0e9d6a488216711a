"""Run the figures' scripts of this folder, for `bayesadmm reproduce`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from bayesadmm_np.demos.shared import Demo

__all__ = ["DEFAULT", "FIGURES", "load", "reproduce"]

FIGURES = {
    "3": "fig3_circuit",
    "4": "fig4_outlier",
    "5a": "fig5a_ridge",
    "5b": "fig5b_logistic",
    "5c": "fig5c_deep",
    "heart": "heart_disease",
    "credit": "credit_approval",
}
DEFAULT = ("3", "4", "5a", "5b")
"""The others are drawn only when asked for: 5c needs PyTorch, and the tables' data do not come with the library."""
WITH_DATASET = ("5a", "5b", "5c")


def load(key: str) -> Demo:
    """Return a demo by its name on the command line."""
    return importlib.import_module(f"bayesadmm_np.demos.{FIGURES[key]}").DEMO


def reproduce(
    only: Sequence[str] = (),
    dataset: str = "digits",
    out: Path = Path("figures"),
    progress: bool = True,
    force: bool = False,
    echo: Callable[[str], None] = print,
) -> bool:
    """Run demos and return whether every claim holds, the paper's or not; `Demo.run` describes what is written.

    `only` names FIGURES, none of them means DEFAULT. `dataset` is for Figures 5a, 5b and 5c; others than "digits" get
    their own file names and keys. `echo` gets the summary, one line a call. An ImportError names a missing package.
    """
    if unknown := [name for name in only if name not in FIGURES]:
        raise ValueError(f"only must be among {', '.join(FIGURES)}, got {', '.join(unknown)}.")
    demos = [load(key) for key in FIGURES if key in (only or DEFAULT)]
    for demo in demos:
        demo.needs(dataset)  # a missing package or missing data are noticed here, not minutes later
    found: list[str] = []
    for demo in demos:
        settings = {"dataset": dataset} if demo.key in WITH_DATASET else {}
        found.extend(demo.run(out, force=force, progress=progress, echo=echo, **settings))
    files = ", ".join(dict.fromkeys(str(out / demo.results) for demo in demos))
    false, other = found.count("✗"), found.count("≠ paper")
    echo(f"\n{len(found) - false} claims hold, {other} of them differ from the paper (≠ paper)")
    if false:
        echo(f"{false} claims do NOT hold (✗)")
    echo(f"All plotted numbers are in {files}")
    return not false


if __name__ == "__main__":
    raise SystemExit(
        "To draw figures 3, 4, 5a and 5b, run: bayesadmm reproduce\n"
        "To draw one figure with options of its own, run its script, such as: python demos/fig5a_ridge.py --help"
    )
