"""From the settings of the page to a frozen result of numbers; no drawing, no page, no exception for a bad choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any

import numpy as np

from .._validation import Array, frozen
from ..clients import Solution, Subproblem, VariationalNewton
from ..families import (
    BlockDiagonalGaussian,
    DiagonalGaussian,
    ExponentialFamily,
    FixedPrecisionGaussian,
    FullGaussian,
    IsotropicGaussian,
)
from ..losses import Delta, Exact, Rule
from ..losses.base import Expected
from ..splitting import Accelerated, Edges, Result, Status, methods, run
from ..splitting.average import as_step
from ..splitting.method import Method
from ..splitting.pooled import solve_pooled
from ..splitting.step import Step
from . import words
from .scene import Belief, Scene, make_scene
from .settings import Settings

DELTA = 0.5
"""Precision of the prior."""
TOL = 1e-6
"""An edge of the circuit counts as closed below this."""
DIM = 3


@dataclass(frozen=True)
class Family:
    """A family that the page offers."""

    label: str  # name on the page
    build: Callable[[], ExponentialFamily]  # returns the prior
    rule: Rule  # rule for expectations where the method does not fix one; point families evaluate losses at the mean

    @property
    def kind(self) -> type[ExponentialFamily]:
        """The class of the family."""
        return type(self.build())


FAMILIES: dict[str, Family] = {
    "isotropic": Family("isotropic (point methods)", lambda: IsotropicGaussian(np.zeros(DIM), DELTA), Delta(1)),
    "fixed": Family("fixed precision", lambda: FixedPrecisionGaussian(np.zeros(DIM), DELTA), Delta(1)),
    "diagonal": Family("diagonal", lambda: DiagonalGaussian(np.zeros(DIM), DELTA), Exact()),
    "block": Family("block: weights | bias", lambda: BlockDiagonalGaussian(np.zeros(DIM), DELTA, [2, 1]), Exact()),
    "full": Family("full covariance", lambda: FullGaussian(np.zeros(DIM), DELTA), Exact()),
}


class Verdict(Enum):
    """Outcome of a run, for the colour of the message."""

    CONVERGED = "converged"
    OPEN = "not converged"
    FAILED = "failed"
    INVALID = "not a valid choice"


@dataclass(frozen=True)
class Frame:
    """The state after one round."""

    round: int  # 0 is the start, with every residual unknown
    server: Belief
    clients: tuple[Belief, ...] = ()  # empty at the start, and for methods whose clients only send gradients
    edges: Edges | None = None
    alpha: float = float("nan")  # the server's step
    mixed: bool = False  # whether an accelerated step was taken


@dataclass(frozen=True)
class Outcome:
    """Everything that is drawn."""

    settings: Settings
    scene: Scene
    verdict: Verdict
    message: str  # one or two plain sentences
    notes: tuple[str, ...] = ()  # controls without effect, and the reason
    frames: tuple[Frame, ...] = ()  # of the start and of every completed round; empty when the choice is not valid
    gap: Array = field(default_factory=lambda: frozen(np.empty(0)))  # objective minus that of `solve_pooled`
    pooled: Belief | None = None
    failed_round: int | None = None  # the round that was not completed
    seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """Rounds completed."""
        return max(0, len(self.frames) - 1)

    @property
    def residuals(self) -> Array:
        """Broadcast, natural gradient, gather, dual map; shape (rounds, 4)."""
        edges = [frame.edges for frame in self.frames if frame.edges is not None]
        rows = [(edge.broadcast, edge.natural_gradient, edge.gather, edge.dual_map) for edge in edges]
        return np.array(rows, dtype=np.float64).reshape(-1, 4)


def knobs(method: str) -> tuple[str, ...]:
    """Names of the parameters that a row has and the page sets: rho, gamma, learning_rate."""
    return tuple(n for n in inspect.signature(methods.TABLE[method]).parameters if n in words.SYMBOLS)


def fits(method: str, family: str) -> bool:
    """Return whether a row is defined for a family."""
    step = as_step(methods.TABLE[method]())
    if step.begins == "sites" and family in ("isotropic", "fixed"):  # sites have no fits of their own
        return False
    return not step.row.families or issubclass(FAMILIES[family].kind, step.row.families)


def simulate(settings: Settings) -> Outcome:
    """Run the chosen method and describe what happened; no choice that a reader can make raises.

    A row that does not fit the family, an acceleration without a dual, a run that diverges and a client without a
    minimum are all outcomes with a sentence.
    """
    began = perf_counter()
    scene = make_scene(settings.outlier, settings.skew)
    try:
        method, losses = _row(settings), scene.losses()
    except ValueError as error:
        return Outcome(settings, scene, Verdict.INVALID, words.sentence(error))
    prior = FAMILIES[settings.family].build()
    row = as_step(method).row
    rule = row.expectation or FAMILIES[settings.family].rule
    recorder, servers = _Recorder(), [Belief.of(prior.start())]
    try:
        result = run(
            method,
            losses,
            prior,
            settings.rounds,
            expectation=rule,
            solver=recorder,
            tol=TOL,
            safeguard=settings.safeguard,
            callback=lambda record, q_g: servers.append(Belief.of(q_g)),
            raise_on_failure=False,
        )
    except ValueError as error:
        return Outcome(settings, scene, Verdict.INVALID, words.sentence(error))
    pooled = solve_pooled(losses, prior, expectation=rule)
    gap = result.objective - pooled.objective
    return Outcome(
        settings,
        scene,
        _verdict(result, row, gap),
        _message(result, row, settings, gap, recorder),
        _notes(settings, row),
        _frames(result, servers, recorder.found, len(losses)),
        frozen(gap),
        Belief.of(pooled.posterior),
        result.rounds + 1 if result.status.is_failure else None,
        perf_counter() - began,
    )


class _Recorder(VariationalNewton):
    """The default solver, which also remembers what it found; clients are asked in order."""

    found: list[Solution]

    def __init__(self) -> None:
        super().__init__(tol=0.01 * TOL)
        object.__setattr__(self, "found", [])

    def solve(
        self,
        problem: Subproblem,
        start: ExponentialFamily,
        rng: np.random.Generator,
        expected: Expected | None = None,
    ) -> Solution:
        solution = super().solve(problem, start, rng, expected)
        self.found.append(solution)
        return solution


def _row(settings: Settings) -> Method | Step:
    """Build the method, or raise a ValueError that a reader of the page can act on."""
    name, family = settings.method, settings.family
    if not fits(name, family):
        fitting = [f.label for key, f in FAMILIES.items() if fits(name, key)]
        label = FAMILIES[family].label
        raise ValueError(f"{name} is not defined for the {label} family. It needs: {' or '.join(fitting)}.")
    values = {"rho": settings.rho, "gamma": settings.gamma, "learning_rate": settings.gamma}
    try:
        row = methods.TABLE[name](**{knob: values[knob] for knob in knobs(name)})
    except ValueError as error:
        raise ValueError(words.sentence(error)) from error
    if not settings.accelerated:
        return row
    if as_step(row).row.dual_step == 0.0:
        raise ValueError(f"{name} has no dual, so there is nothing to accelerate: switch “accelerated” off.")
    if not isinstance(row, Method):
        raise ValueError(f"{name} makes steps that are not mixed: switch “accelerated” off.")
    return Accelerated(row)


def _frames(result: Result, servers: list[Belief], found: list[Solution], n_clients: int) -> tuple[Frame, ...]:
    frames = [Frame(0, servers[0])]
    for record, server in zip(result.history, servers[1:], strict=True):
        first = n_clients * (record.round - 1)
        clients = tuple(Belief.of(solution.posterior) for solution in found[first : first + n_clients])
        frames.append(Frame(record.round, server, clients, record.edges, record.alpha, record.mixed))
    return tuple(frames)


def _verdict(result: Result, row: Method, gap: Array) -> Verdict:
    if result.status is Status.CONVERGED:
        return Verdict.CONVERGED
    bad = result.status.is_failure or words.is_running_away(gap) or words.is_worse_than_start(row, gap)
    return Verdict.FAILED if bad else Verdict.OPEN


def _message(result: Result, row: Method, settings: Settings, gap: Array, recorder: _Recorder) -> str:
    if result.status.is_failure:
        usable = [solution.status.is_usable for solution in recorder.found]
        client = usable.index(False) % 2 + 1 if False in usable else None
        return words.failure(result.status, result.rounds + 1, client, settings, row, gap)
    if result.status is Status.CONVERGED:
        rounds = f"{result.rounds} round{'' if result.rounds == 1 else 's'}"
        return f"Converged after {rounds}: every edge of the circuit is closed, and the server holds the pooled answer."
    return words.still_open(row, result.rounds, result.history[-1].edges, gap, settings)


def _notes(settings: Settings, row: Method) -> tuple[str, ...]:
    has: Any = knobs(settings.method)
    notes = []
    if "rho" not in has:
        notes.append(f"{settings.method} fixes ρ = {row.rho:g}: the ρ slider has no effect.")
    if "learning_rate" in has:
        notes.append("For BLR the γ slider sets its learning rate.")
    elif "gamma" not in has:
        notes.append(f"{settings.method} has no γ.")
    if row.alpha is not None and settings.safeguard:
        notes.append(f"The safeguard raises α, and {settings.method} has α = {row.alpha:g} anyway.")
    if FAMILIES[settings.family].rule != Exact():
        notes.append("A point method learns no uncertainty, so no band is drawn.")
    return tuple(notes)
