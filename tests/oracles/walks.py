"""Count the rooms that a reader crosses to follow X, a posterior or a message: `python tests/oracles/walks.py`.

A room is a folder of the package, or a single file beside the folders. A walk is the functions that take, return or
hold the thing during one small run, or that call such a function. The script imports nothing of the tests, so that
older checkouts can be measured: PYTHONPATH=checkout python tests/oracles/walks.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import bayesadmm_np as ba

PACKAGE = Path(ba.__file__).resolve().parent
SIZES, N_FEATURES = (23, 31), 3


@dataclass
class Walk:
    """Rooms and files of a walk, and the calls between rooms."""

    files: set[str] = field(default_factory=set)
    changes: int = 0

    @property
    def rooms(self) -> set[str]:
        return {file.split("/")[0].removesuffix(".py") for file in self.files}

    def __str__(self) -> str:
        return f"{len(self.rooms)} rooms, {len(self.files)} files, {self.changes} calls from room to room"


def file_of(frame: FrameType) -> str:
    """Return the file within the package, '' of others and of the comprehensions and lambdas of others."""
    path = frame.f_code.co_filename
    return path[len(str(PACKAGE)) + 1 :] if path.startswith(str(PACKAGE)) else ""


def walk(run: Callable[[], Any], is_it: Callable[[Any], bool]) -> Walk:
    """Measure the functions of the package that take, return or hold what `is_it` knows, and their callers."""
    found = Walk()
    on_path: list[tuple[FrameType, str, bool]] = []  # the functions of the package that run, and if they have it

    def has(value: Any) -> bool:
        return is_it(value) or any(map(is_it, parts(value)))

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and (file := file_of(frame)):
            on_path.append((frame, file, any(map(has, frame.f_locals.values()))))
        elif event == "return" and on_path and on_path[-1][0] is frame:
            _, file, carries = on_path.pop()
            if carries or has(value):
                found.files.add(file)
                if on_path:
                    above, its_file, _ = on_path[-1]
                    on_path[-1] = (above, its_file, True)
                    found.changes += file.split("/")[0] != its_file.split("/")[0]

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return found


def parts(value: Any) -> list[Any]:
    """Return the entries of a sequence or table, and the fields of an object of the package."""
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return list(getattr(value, "__dict__", {}).values()) if type(value).__module__.startswith("bayesadmm_np") else []


def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sum(SIZES), N_FEATURES))
    return X, (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-X[:, 0]))).astype(int), np.repeat(("a", "b"), SIZES)


def fit() -> Any:
    from bayesadmm_np.estimators import FederatedLogisticRegression

    X, y, sites = tables()
    return FederatedLogisticRegression().fit(X, y, client=sites)


def by_files() -> None:
    from bayesadmm_np import federation as fed

    X, y, names = tables()
    X = np.column_stack([X, np.ones(len(X))])
    data = {name: fed.GLMData(ba.losses.Logistic(X[names == name], y[names == name])) for name in ("a", "b")}
    rules = fed.DisclosureRules.none()
    task = fed.GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(X.shape[1]), 1.0), rounds=20)
    with tempfile.TemporaryDirectory() as top:
        places = {name: Path(top) / name for name in (*data, "server")}
        for place in places.values():
            place.mkdir()
        sites = [fed.Site(name, each, key=fed.site_key(places[name]), rules=rules) for name, each in data.items()]
        message = fed.start_server(places["server"], fed.Coordinator.start([site.hello() for site in sites], task))
        while message.name != "final.npz":
            replies = [fed.step_site(places[site.name], site, message)[1] for site in sites]
            _, message = fed.step_server(places["server"], replies)


def is_design(value: Any) -> bool:
    shape = getattr(value, "shape", ()) if isinstance(value, np.ndarray) else ()
    return len(shape) == 2 and shape[0] in (*SIZES, sum(SIZES)) and shape[1] in (N_FEATURES, N_FEATURES + 1)


def is_posterior(value: Any) -> bool:
    return any(kind.__name__ == "ExponentialFamily" for kind in type(value).__mro__)


def is_message(value: Any) -> bool:
    """Return whether a value is an archive, or a record of a file of messages, which its contents are read into."""
    home = type(value).__module__
    return home.startswith("bayesadmm_np") and home.endswith(("messages", "_archive"))


def measure() -> dict[str, Walk]:
    """Return the walk of X in a fit, of a posterior in a fit and its use, and of a message by files."""
    X = tables()[0]
    return {
        "X": walk(fit, is_design),
        "a posterior": walk(lambda: fit().predict_proba(X), is_posterior),
        "a message": walk(by_files, is_message),
    }


if __name__ == "__main__":
    fit(), by_files()  # imports and caches are no part of a walk
    for name, found in measure().items():
        print(f"{name}: {found}: {' '.join(sorted(found.rooms))}")
