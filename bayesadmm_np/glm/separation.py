"""Whether a likelihood has a maximum, and if not along which direction it keeps growing: from sums over sites.

Every row of a GLM puts walls b_j around its predictor (`Pointwise.walls`): its loss stays bounded along u iff
b_jᵀu >= 0 for all of them. With a_j = b_j ⊗ x_i over all rows, exactly one of two things holds (Stiemke's lemma; for
the logistic Albert and Anderson, Biometrika 71, 1984):

- there is a direction d with a_jᵀd >= 0 for all j, and > 0 for some: *separation*, and no finite maximum exists;
- there are numbers λ_j > 0 with Σ_j λ_j a_j = 0, and a maximum exists.

Offsets, positive weights and the sizes of counts play no part, so the search runs on Σ_j log(1 + exp(−a_jᵀv)), whatever
the kind of GLM. A Newton step s from any v proves the second case when |a_jᵀs| < 1 for all j: with p_j = σ(−a_jᵀv), the
numbers λ_j = p_j − p_j(1 − p_j) a_jᵀs are positive, and Σ λ_j a_j = −g − Hs = 0. A direction proves the first. Neither
needs a row to leave its site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from .._validation import Array
from ..losses.base import Loss, RowCurvature
from ..losses.linear_model import LinearModelLoss, row_factor
from .columns import orthonormal_basis

STEPS = 60
"""Newton steps of a search. A margin grows by 1 a step, and exp(−30) is the smallest weight that sums still resolve."""

HALF = 0.5
"""Largest |a_jᵀs| that counts as less than 1: s is known to `RESOLVED`⁻¹ roundings, 1e-4."""

RESOLVED = 1e-12
"""Least eigenvalue, relative to the largest, that a sum of rows in double precision tells from zero."""

STILL = 1e-9
"""|a_jᵀd| relative to ‖a_j‖‖d‖ in orthonormal columns, below which a row does not move.

d is an eigenvector of a matrix whose other eigenvalues are > `RESOLVED`: known to 2e-16 over the least of them, so that
proofs fail rather than err where it is < 1e-7.
"""

ROUNDING = 1e-14
"""Of a product of p numbers, relative to that of their sizes."""

WIDE = 2.0
"""Ratio of neighbouring eigenvalues that makes a gap."""

GAPS = 3
"""Gaps of the spectrum that are tried: rows that move at different paces leave some inside the part that moves."""

ROUGH = 0.5
"""|a_jᵀd| below which a row is first taken to stand still, d being the way of the search: others moved by 1 a step."""


@dataclass(frozen=True)
class Question:
    """What the server asks all sites.

    Attributes
    ----------
    basis : ndarray, shape (p, r)
        Columns in which the search runs: the design is X @ basis.
    theta : ndarray, shape (C r,)
    direction : ndarray, shape (C r,), optional
        Rows that it moves are left out of the sums.
    floor : float, default 0.0
        |a_jᵀd| up to which a row stands still, rounding apart.
    step : ndarray, shape (C r,), optional
    """

    basis: Array
    theta: Array
    direction: Array | None = None
    floor: float = 0.0
    step: Array | None = None


@dataclass(frozen=True)
class Answer:
    """What a site says: sums over the walls a_j that stand still under the direction, and what the others do.

    Attributes
    ----------
    value : float
        Σ_j log(1 + exp(−a_jᵀv)).
    gradient, hessian : ndarray, shapes (C r,) and (C r, C r)
    stands, moves, opposes : bool
        Whether a_jᵀd is zero, positive or negative for some j.
    change : float
        max_j |a_jᵀs| among the a_j that stand still, rounded down to a power of two: the largest value of a row is
        nobody's business.
    """

    value: float
    gradient: Array
    hessian: Array
    stands: bool
    moves: bool
    opposes: bool
    change: float

    def __add__(self, other: Answer) -> Answer:
        return Answer(
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            self.stands or other.stands,
            self.moves or other.moves,
            self.opposes or other.opposes,
            max(self.change, other.change),
        )


Ask = Callable[[Question], Sequence[Answer]]


@dataclass(frozen=True)
class Split:
    """A proven separation.

    Attributes
    ----------
    direction : ndarray, shape (C p,)
        d: no row opposes it.
    is_complete : bool
        Whether every row moves.
    span : ndarray, shape (C p, k)
        Directions that move none of the rows that stand still under d.
    whole : ndarray, shape (C p, r)
        All directions that move any row; a row of it is as long as the coefficient's standard error, without effects.
    is_largest : bool
        Whether the rows that stand still were proven to have a maximum, so that `span` holds every separation.
    """

    direction: Array
    is_complete: bool
    span: Array
    whole: Array
    is_largest: bool


def has_walls(loss: Loss) -> bool:
    """Whether something can be said about separation."""
    return isinstance(loss, LinearModelLoss) and loss.pointwise.walls(loss.y) is not None


class _Walls(NamedTuple):
    """The walls of a site's rows under a question: those that stand still, and where the others go."""

    rows: Array
    walls: Array
    still: NDArray[np.bool]
    moves: NDArray[np.bool]
    opposes: NDArray[np.bool]
    margin: Array
    change: Array


def answer(loss: LinearModelLoss, question: Question) -> Answer:
    """Answer at a site; only the sums, a maximum's power of two and three times yes or no leave it."""
    found, n_outputs = _walls_of(loss, question), loss.n_outputs
    still, margin = found.still, found.margin
    slope = np.einsum("nm,nmc->nc", np.where(still, -expit(-margin), 0.0), found.walls)
    bends = np.einsum("nm,nmc,nmd->ncd", _weights(found), found.walls, found.walls)
    curvature = RowCurvature(found.rows, bends if n_outputs > 1 else bends[:, 0, 0])
    return Answer(
        float(np.logaddexp(0.0, -margin)[still].sum()),
        (slope.T @ found.rows).ravel(),
        curvature.dense(),
        bool(still.any()),
        bool(found.moves.any()),
        bool(found.opposes.any()),
        _power_of_two(float(found.change[still].max(initial=0.0))),
    )


def rests_on(loss: LinearModelLoss, question: Question) -> tuple[int, int, Array]:
    """Return how many rows have a wall that stands still, how many have none, and the weights of all in the sums."""
    found = _walls_of(loss, question)
    stands = found.still.any(axis=1)
    return int(stands.sum()), int((~stands).sum()), _weights(found).sum(axis=1)


def _walls_of(loss: LinearModelLoss, question: Question) -> _Walls:
    X, n_outputs = _weighted_rows(loss), loss.n_outputs
    walls = loss.pointwise.walls(loss.y[loss.weights > 0])
    assert walls is not None
    rows = X @ question.basis

    def along(theta: Array) -> Array:
        return np.asarray(np.einsum("nmc,nc->nm", walls, rows @ theta.reshape(n_outputs, -1).T))

    is_wall = walls.any(axis=2)
    still = np.asarray(is_wall)
    moves = opposes = np.zeros_like(still)
    if question.direction is not None:
        moved = along(question.direction)
        direction = question.direction.reshape(n_outputs, -1).T
        # of the whole direction: an output that it leaves alone is known no better than the others
        size = STILL * np.linalg.norm(direction) * np.linalg.norm(rows, axis=1)[:, None]
        size = size + ROUNDING * np.abs(X) @ np.abs(question.basis @ direction)
        floor = np.maximum(question.floor, np.einsum("nmc,nc->nm", np.abs(walls), size))
        still = is_wall & (np.abs(moved) <= floor)
        moves, opposes = is_wall & (moved > floor), is_wall & (moved < -floor)
    change = np.zeros_like(still, dtype=np.float64) if question.step is None else np.abs(along(question.step))
    return _Walls(rows, walls, still, moves, opposes, along(question.theta), change)


def _weights(found: _Walls) -> Array:
    return np.where(found.still, expit(found.margin) * expit(-found.margin), 0.0)


def _power_of_two(value: float) -> float:
    """Return the power of two at or below a number: what is compared with `HALF` needs no digits of a single row."""
    return float(np.ldexp(0.5, np.frexp(value)[1])) if 0 < value < np.inf else value


def _weighted_rows(loss: LinearModelLoss) -> Array:
    """Return the rows that count."""
    return loss.X if loss.weights.all() else loss.X[loss.weights > 0]


def find_split(ask: Ask, basis: Array, n_outputs: int) -> Split | Literal["finite", "unknown"]:
    """Prove separation, or that a maximum exists, within the columns of a basis.

    A damped Newton run from zero in coordinates in which the information at zero is the identity. Each iterate offers
    two proofs: its step, that of the maximum, and the part of the iterate in the eigenvectors of the smallest
    eigenvalues, where the rows that stand still have no information, that of separation.

    Parameters
    ----------
    ask : callable
        Question → an answer of each site.
    basis : ndarray, shape (p, r)
        Of a full column rank design X @ basis, nearly orthonormal; see `orthonormal_basis`.
    n_outputs : int
        C.

    Returns
    -------
    Split, "finite" or "unknown"
        "unknown" where rounding hides both proofs.
    """
    return _Search(ask, basis, n_outputs).run() if basis.shape[1] else "finite"


class _Search:
    def __init__(self, ask: Ask, basis: Array, n_outputs: int) -> None:
        self._ask, self._basis, self._n_outputs = ask, basis, n_outputs
        self._zero = np.zeros(n_outputs * basis.shape[1])
        self._frame = np.eye(self._zero.size)
        information = self.ask(self._zero).hessian
        values, vectors = np.linalg.eigh(information)
        real = values > RESOLVED * max(values[-1], np.finfo(float).tiny)
        self._frame = vectors[:, real] / np.sqrt(values[real])
        self._placed = np.kron(np.eye(n_outputs), basis) @ self._frame

    def ask(
        self, theta: Array, direction: Array | None = None, floor: float = 0.0, step: Array | None = None
    ) -> Answer:
        """Sum the answers, in coordinates of the frame."""
        there = [None if vector is None else self._frame @ vector for vector in (direction, step)]
        question = Question(self._basis, self._frame @ theta, there[0], floor, there[1])
        total = reduce(Answer.__add__, self._ask(question))
        return replace(
            total,
            gradient=self._frame.T @ total.gradient,
            hessian=self._frame.T @ total.hessian @ self._frame,
        )

    def run(self) -> Split | Literal["finite", "unknown"]:
        theta = np.zeros(self._frame.shape[1])
        if not theta.size:
            return "finite"
        now, found = self.ask(theta), None
        for _ in range(STEPS):
            values, vectors = np.linalg.eigh(now.hessian)
            if values[0] <= RESOLVED * values[-1]:
                break
            step = -vectors @ ((vectors.T @ now.gradient) / values)
            there = self.ask(theta + step, step=step)  # the proof and the next iterate in one question
            if there.change < HALF:
                return "finite"
            for direction in _candidates(values, vectors, theta):
                found = self._proven(theta, direction) or found
                if found is not None and found.is_largest:
                    return found
            theta, now = self._descend(theta, now, step, there)
        return found or "unknown"

    def _descend(self, theta: Array, now: Answer, step: Array, there: Answer) -> tuple[Array, Answer]:
        """Take the step, whose end is `there`, halved until the value falls."""
        for _ in range(50):
            if there.value < now.value:
                return theta + step, there
            step = 0.5 * step
            there = self.ask(theta + step)
        return theta, now

    def _proven(self, theta: Array, direction: Array) -> Split | None:
        """Prove that no row opposes a direction, after taking out of it what moves the rows that hardly move."""
        origin = np.zeros_like(theta)
        rough = self.ask(origin, direction, ROUGH)
        if rough.opposes or not rough.moves:
            return None
        values, vectors = np.linalg.eigh(rough.hessian)  # at the origin the frame makes all rows together 1
        silent = values <= RESOLVED
        span, rest = vectors[:, silent], vectors[:, ~silent]
        direction = span @ (span.T @ direction)
        if not direction.any():
            return None
        exact = self.ask(theta, direction)
        if exact.opposes or not exact.moves:
            return None
        return Split(
            self._placed @ direction,
            not exact.stands,
            self._placed @ span,
            self._placed,
            not exact.stands or self._has_maximum(theta, direction, exact, rest),
        )

    def _has_maximum(self, theta: Array, direction: Array, still: Answer, rest: Array) -> bool:
        """Whether the rows that stand still under a direction prove that they have one."""
        information = rest.T @ still.hessian @ rest
        values = np.linalg.eigvalsh(information) if information.size else np.ones(1)
        if values[0] <= RESOLVED * values[-1]:
            return False
        step = -rest @ np.linalg.solve(information, rest.T @ still.gradient)
        return self.ask(theta, direction, step=step).change < HALF


def _candidates(values: Array, vectors: Array, theta: Array) -> Iterator[Array]:
    """Yield the part of θ in the eigenvectors below each wide gap of the spectrum, the widest first.

    Where the search starts all eigenvalues are 1.
    """
    gaps = np.append(values[1:], max(1.0, values[-1])) / values
    for last in np.argsort(-gaps)[:GAPS]:
        weak = vectors[:, : last + 1]
        if gaps[last] > WIDE:
            yield weak @ (weak.T @ theta)


def smallest_separating(is_separated: Callable[[list[int]], bool], columns: Sequence[int], most: int) -> list[int]:
    """Return columns that separate, none of which can be spared, out of columns that do.

    Columns more never undo a separation, so bisection finds the last that is needed, again and again (Junker's
    QuickXplain, in one list).

    Parameters
    ----------
    is_separated : callable
    columns : sequence of int
        In the order of preference.
    most : int
        Columns that are looked for; where more are needed, the others may hold some that can be spared.
    """
    needed: list[int] = []
    left = list(columns)
    while not is_separated(needed):
        if len(needed) == most:
            return sorted(needed + left)
        low, high = 0, len(left)  # needed + left[:low] is not separated, needed + left[:high] is
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_separated(needed + left[:middle]) else (middle, high)
        needed.append(left[high - 1])
        left = left[: high - 1]
    return sorted(needed)


def ask_losses(losses: Sequence[LinearModelLoss]) -> Ask:
    """Return the way to ask sites whose rows are in this process."""
    return lambda question: [answer(loss, question) for loss in losses]


def factors_of(losses: Sequence[LinearModelLoss]) -> list[Array]:
    """Return the sites' R factors."""
    return [row_factor(_weighted_rows(loss)) for loss in losses]


def basis_within(factors: Sequence[Array], columns: Sequence[int]) -> Array:
    """Return coefficients of all columns that make some of them orthonormal, shape (p, r); zero for the others."""
    basis = np.zeros((factors[0].shape[1], 0))
    if columns:
        inner = orthonormal_basis([factor[:, list(columns)] for factor in factors])
        basis = np.zeros((factors[0].shape[1], inner.shape[1]))
        basis[list(columns)] = inner
    return basis
