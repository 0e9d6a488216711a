"""Separation: a likelihood without a maximum, and the direction along which it grows, from sums over sites.

The loss of a row stays bounded along u iff b_jᵀu >= 0 for all its constraints b_j (`Pointwise.walls`). With
a_j = b_j ⊗ x_i over all rows, exactly one of two things holds (Stiemke's lemma; for the logistic Albert and Anderson,
Biometrika 71, 1984):

- there is a direction d with a_jᵀd >= 0 for all j, and > 0 for some: *separation*, and no finite maximum exists;
- there are numbers λ_j > 0 with Σ_j λ_j a_j = 0, and a maximum exists.

Offsets, positive weights and the sizes of counts play no part: the search minimises Σ_j log(1 + exp(−a_jᵀv)). A Newton
step s proves the second case when |a_jᵀs| < 1 for all j: λ_j = p_j − p_j(1 − p_j) a_jᵀs with p_j = σ(−a_jᵀv) are then
positive, and Σ λ_j a_j = −g − Hs = 0. Sums prove it: Σ_j (a_jᵀs)² = 4 sᵀH_0 s, with H_0 the Hessian at zero. For the
first case sites compare their rows with a direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from .._numerics import Trial, driven, line_search
from .._validation import Array
from ..losses.base import Loss, RowCurvature, effective_rows
from ..losses.linear_model import LinearModelLoss, row_factor
from .columns import orthonormal_basis

STEPS = 60
"""Newton steps of a search. A margin grows by 1 a step, and exp(−30) is the smallest weight that sums still resolve."""

HALF = 0.5
"""Largest bound on |a_jᵀs| that counts as less than 1: s is known to `RESOLVED`⁻¹ roundings, 1e-4."""

RESOLVED = 1e-12
"""Least eigenvalue, relative to the largest, that double precision distinguishes from zero in a sum of rows."""

STILL = 1e-9
"""|a_jᵀd| relative to ‖a_j‖‖d‖ in orthonormal columns, below which a row does not move.

d is an eigenvector of a matrix whose other eigenvalues are > `RESOLVED`: known to 2e-16 over the least of them, so that
proofs fail rather than err where it is < 1e-7.
"""

ROUNDING = 1e-14
"""Error of a product of p numbers, relative to that of their sizes."""

WIDE, NARROW = 10.0, 2.0
"""Ratios of neighbouring eigenvalues that make a gap: at first, and where the information has `FADED`."""

FADED = 1e-3
"""Smallest eigenvalue, relative to the largest, from which on narrow gaps are tried: each gap costs two exchanges."""

GAPS = 3
"""Gaps of the spectrum that are tried: rows that move at different speeds cause several."""

FALLING = 0.7
"""Factor of the value in a step if all rows are separated: exp(−1) in the end."""

ROUGH = 0.5
"""|a_jᵀd| below which a row is first assumed not to move, d being the search's path; other rows moved by 1 a step."""


BEYOND = (0.0, 1.0, 2.0, 4.0)
"""Steps beyond a point whose sums are refused, at which a way is still tried: iterates turn towards a separation."""


class Unanswered(Exception):
    """Sites refuse the sums at a point, as their rules forbid; another question may have an answer."""


@dataclass(frozen=True)
class Question:
    """A point (C r,), and a direction (C r,), 0 for none, with which sites compare their rows X @ basis, basis (p, r).

    Constraints with |a_jᵀd| up to `floor`, and rounding, are in the sums.
    """

    basis: Array
    theta: Array
    direction: Array
    floor: float


@dataclass(frozen=True)
class Answer:
    """Sum Σ_j log(1 + exp(−a_jᵀv)) of a site with its gradient and Hessian.

    `stands`, `moves` and `opposes`, each 0 or 1, are 1 if a_jᵀd is zero, positive or negative for some j. Without a
    direction `opposes` is 1 if any constraint is `held`.
    """

    value: float
    gradient: Array
    hessian: Array
    stands: float
    moves: float
    opposes: float

    @property
    def is_complete(self) -> bool:
        """Return whether all constraints move, and none against the direction."""
        return bool(self.moves and not (self.opposes or self.stands))

    def __add__(self, other: Answer) -> Answer:
        return Answer(
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            max(self.stands, other.stands),
            max(self.moves, other.moves),
            max(self.opposes, other.opposes),
        )


YES_OR_NO = ("stands", "moves", "opposes")
Ask = Callable[[Question], Sequence[Answer]]
Held = NDArray[np.bool_]


@dataclass(frozen=True)
class Split:
    """A proven separation along `direction`, shape (C p,); complete where every row moves.

    `span`, shape (C p, k), has the directions that move none of the other rows, and holds every separation if
    `is_largest`. `whole`, shape (C p, r), has all directions that move any row; a row of it is as long as the
    coefficient's standard error, without effects.
    """

    direction: Array
    is_complete: bool
    span: Array
    whole: Array
    is_largest: bool


Outcome = Split | Literal["finite", "unknown"]


# --- At a site ------------------------------------------------------------------------------------------------


def has_walls(loss: Loss) -> bool:
    """Return whether the loss has constraints, so that separation can be diagnosed."""
    return isinstance(loss, LinearModelLoss) and loss.pointwise.walls(loss.y) is not None


def held(loss: LinearModelLoss) -> Held:
    """Return which constraints no separation can move, shape (n, m), by the site's own rows; none if rounding hides it.

    A site's answer about them, whatever the direction, follows from the factor of their rows.
    """
    is_wall = np.asarray(walls_of(loss).any(axis=2))
    factors, none = factors_of([loss]), np.zeros_like(is_wall)
    basis = basis_within(factors, range(loss.n_features))
    found = find_split(lambda question: [answer(loss, question, none)], basis, loss.n_outputs)
    if found == "finite":
        return is_wall
    if not isinstance(found, Split) or not found.is_largest:
        return none
    way = found.direction.reshape(loss.n_outputs, -1) @ factors[0].T @ (factors[0] @ basis)  # in the basis
    return _compared(loss, Question(basis, np.zeros(way.size), way.ravel(), 0.0), none).is_summed


def answer(loss: LinearModelLoss, question: Question, fixed: Held | None = None) -> Answer:
    """Answer at a site; only the sums and three times yes or no leave it. `fixed` is `held(loss)`."""
    found = _compared(loss, question, held(loss) if fixed is None else fixed)
    slope = np.einsum("nm,nmc->nc", np.where(found.is_summed, -expit(-found.margin), 0.0), found.walls)
    bends = np.einsum("nm,nmc,nmd->ncd", found.weights, found.walls, found.walls)
    curvature = RowCurvature(found.rows, bends if loss.n_outputs > 1 else bends[:, 0, 0])
    return Answer(
        float(np.logaddexp(0.0, -found.margin)[found.is_summed].sum()),
        (slope.T @ found.rows).ravel(),
        curvature.dense(),
        *map(float, (found.stands, found.moves, found.opposes)),
    )


def rests_on(loss: LinearModelLoss, question: Question, fixed: Held) -> Iterator[float]:
    """Yield the number of rows of each sort in an answer: compared, summed, left out."""
    found, loose = _compared(loss, question, fixed), walls_of(loss).any(axis=2) & ~fixed
    weights = found.weights.sum(axis=1)
    yield effective_rows(weights) if weights.any() else 0
    if not question.direction.any() or not loose.any():
        return
    yield from (int(rows.sum()) for rows in (fixed.any(axis=1), ~fixed.any(axis=1)))
    left = loose & ~found.is_summed
    if left.any() and (loose & found.is_summed).any():  # the direction chooses rows
        yield int((loose & found.is_summed).any(axis=1).sum())
        yield int((left.any(axis=1) & ~found.is_summed.any(axis=1)).sum())


class _Compared(NamedTuple):
    """A site's constraints under a question, shape (n, m, C): the margins in the sums, and the signs of the others."""

    rows: Array
    walls: Array
    margin: Array
    is_summed: Held
    stands: bool
    moves: bool
    opposes: bool

    @property
    def weights(self) -> Array:
        return np.where(self.is_summed, expit(self.margin) * expit(-self.margin), 0.0)


def _compared(loss: LinearModelLoss, question: Question, fixed: Held) -> _Compared:
    X, n_outputs, walls = _weighted_rows(loss), loss.n_outputs, walls_of(loss)
    rows, is_wall = X @ question.basis, np.asarray(walls.any(axis=2))

    def along(theta: Array) -> Array:
        return np.asarray(np.einsum("nmc,nc->nm", walls, rows @ theta.reshape(n_outputs, -1).T))

    margin = along(question.theta)
    if not question.direction.any():
        return _Compared(rows, walls, margin, is_wall, bool(is_wall.any()), False, bool(fixed.any()))
    moved, direction = along(question.direction), question.direction.reshape(n_outputs, -1).T
    # of the whole direction: an output that it leaves alone is known no better than the others
    size = STILL * np.linalg.norm(direction) * np.linalg.norm(rows, axis=1)[:, None]
    size = size + ROUNDING * np.abs(X) @ np.abs(question.basis @ direction)
    nothing = np.einsum("nmc,nc->nm", np.abs(walls), size)
    still, both = fixed | (np.abs(moved) <= nothing), bool((fixed & (np.abs(moved) > nothing)).any())
    is_summed = is_wall & (still | (np.abs(moved) <= question.floor))
    stands = bool((is_wall & still).any())
    moves, opposes = (both or bool((is_wall & ~still & far).any()) for far in (moved > 0, moved < 0))
    return _Compared(rows, walls, margin, is_summed, stands, moves, opposes)


def walls_of(loss: LinearModelLoss) -> Array:
    """Return the constraints of rows with positive weight, shape (n, m, C)."""
    walls = loss.pointwise.walls(loss.y[loss.weights > 0])
    assert walls is not None
    return walls


def _weighted_rows(loss: LinearModelLoss) -> Array:
    """Return the rows that count."""
    return loss.X if loss.weights.all() else loss.X[loss.weights > 0]


# --- From sums of all sites -----------------------------------------------------------------------------------


def find_split(ask: Ask, basis: Array, n_outputs: int) -> Outcome:
    """Prove separation, or that a maximum exists, in orthonormal columns X @ basis; "unknown" where rounding hides it.

    Each iterate of a damped Newton run offers its step as a proof of a maximum, and itself and its part in the
    eigenvectors of small eigenvalues as directions of separation.
    """
    start = np.zeros(n_outputs * basis.shape[1])
    if not start.size:
        return "finite"
    now = reduce(Answer.__add__, ask(Question(basis, start, start, 0.0)))
    values, vectors = np.linalg.eigh(now.hessian)
    real = values > RESOLVED * max(values[-1], np.finfo(float).tiny)
    frame = vectors[:, real] / np.sqrt(values[real])
    search = _Search(ask, basis, frame, np.kron(np.eye(n_outputs), basis) @ frame)
    return search.run(search.framed(now)) if frame.size else "finite"


class _Search(NamedTuple):
    """A search in a frame, shape (C r, k); `whole` is the same in all columns, shape (C p, k)."""

    ask: Ask
    basis: Array
    frame: Array
    whole: Array

    def framed(self, total: Answer) -> Answer:
        return replace(total, gradient=self.frame.T @ total.gradient, hessian=self.frame.T @ total.hessian @ self.frame)

    def at(self, theta: Array, direction: Array, floor: float = 0.0) -> Answer:
        """Ask for the sums of all sites."""
        question = Question(self.basis, self.frame @ theta, self.frame @ direction, floor)
        return self.framed(reduce(Answer.__add__, self.ask(question)))

    def along(self, theta: Array, direction: Array) -> Answer:
        """Ask with all constraints in the sums: no |a_jᵀd| is above 2‖d‖."""
        return self.at(theta, direction, 4.0 * float(np.linalg.norm(direction)))

    def run(self, now: Answer) -> Outcome:
        theta = nothing = np.zeros(self.frame.shape[1])
        # where a wall is held no separation is complete, and none need be compared to see it
        may_be_complete, before, found, refused = not now.opposes, now.value, None, None
        for _ in range(STEPS):
            values, vectors = np.linalg.eigh(now.hessian)
            if values[0] <= RESOLVED * values[-1]:
                break
            step = -vectors @ ((vectors.T @ now.gradient) / values)
            if _is_short(step):
                return "finite"
            if not may_be_complete or now.value > FALLING * before:
                for direction in _candidates(values, vectors, theta):
                    try:
                        found = self.proven(theta, direction) or found
                    except Unanswered as error:  # a later one may move more rows
                        refused = error
                    if found is not None and found.is_largest:
                        return found
            end, before = theta + step, now.value
            try:
                there = self.along(end, end if may_be_complete else nothing)
            except Unanswered:  # sums there would rest on few rows: what rows do along a way is known at zero, too
                for far in BEYOND if may_be_complete else ():
                    if self.along(nothing, way := end + far * step).is_complete:
                        return Split(self.whole @ way, True, self.whole, self.whole, True)
                raise
            if there.is_complete:
                return Split(self.whole @ end, True, self.whole, self.whole, True)
            search = line_search(now.value, float(now.gradient @ step))
            taken, t = driven(search, partial(self._tried, there, theta, step))
            if taken is not None:
                theta, now = theta + t * step, taken.point
        if refused is not None and found is None:
            raise refused
        return found or "unknown"

    def _tried(self, there: Answer, theta: Array, step: Array, t: float) -> Trial:
        """The sums at a fraction t of a step; at t = 1 they are known."""
        now = there if t == 1.0 else self.at(theta + t * step, np.zeros_like(theta))
        return Trial(now.value, point=now)

    def proven(self, theta: Array, direction: Array) -> Split | None:
        """Prove that no row opposes a direction, after taking out of it what moves the rows that hardly move."""
        rough = self.at(np.zeros_like(theta), direction, ROUGH)
        values, vectors = np.linalg.eigh(rough.hessian)  # the frame makes all rows together 1 at 0
        silent = values <= RESOLVED
        span, rest = vectors[:, silent], vectors[:, ~silent]
        direction = span @ (span.T @ direction)
        if not direction.any():
            return None
        exact = self.at(theta, direction)
        if exact.opposes or not exact.moves:
            return None
        is_largest = not exact.stands or not rest.size
        if not is_largest:  # whether the rows that stand still prove that they have a maximum
            information = rest.T @ exact.hessian @ rest
            values = np.linalg.eigvalsh(information)
            is_known = values[0] > RESOLVED * values[-1]
            is_largest = bool(is_known) and _is_short(np.linalg.solve(information, rest.T @ exact.gradient))
        return Split(self.whole @ direction, not exact.stands, self.whole @ span, self.whole, is_largest)


def _is_short(step: Array) -> bool:
    """Return whether all |a_jᵀs| are below `HALF`, by their root sum of squares: the frame makes H_0 the identity."""
    return bool(2.0 * np.linalg.norm(step) < HALF)


def _candidates(values: Array, vectors: Array, theta: Array) -> Iterator[Array]:
    """Yield the part of θ in the eigenvectors below each wide gap of the spectrum, the widest first."""
    gaps = np.append(values[1:], max(1.0, values[-1])) / values
    wide = WIDE if values[0] > FADED * values[-1] else NARROW
    for last in np.argsort(-gaps)[:GAPS]:
        weak = vectors[:, : last + 1]
        if gaps[last] > wide:
            yield weak @ (weak.T @ theta)


def factors_of(losses: Sequence[LinearModelLoss]) -> list[Array]:
    """Return the sites' R factors."""
    return [row_factor(_weighted_rows(loss)) for loss in losses]


def basis_within(factors: Sequence[Array], columns: Sequence[int]) -> Array:
    """Return B, shape (p, r), for which XB is orthonormal and spans `columns`; other rows of B are zero."""
    basis = np.zeros((factors[0].shape[1], 0))
    if columns:
        inner = orthonormal_basis([factor[:, list(columns)] for factor in factors])
        basis = np.zeros((factors[0].shape[1], inner.shape[1]))
        basis[list(columns)] = inner
    return basis
