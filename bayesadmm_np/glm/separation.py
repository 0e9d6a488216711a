"""Whether a likelihood has a maximum, and if not along which direction it keeps growing: from sums over sites.

Every row of a GLM puts walls b_j around its predictor (`Pointwise.walls`): its loss stays bounded along u iff
b_jᵀu >= 0 for all of them. With a_j = b_j ⊗ x_i over all rows, exactly one of two things holds (Stiemke's lemma; for
the logistic Albert and Anderson, Biometrika 71, 1984):

- there is a direction d with a_jᵀd >= 0 for all j, and > 0 for some: *separation*, and no finite maximum exists;
- there are numbers λ_j > 0 with Σ_j λ_j a_j = 0, and a maximum exists.

Offsets, positive weights and the sizes of counts play no part, so the search runs on Σ_j log(1 + exp(−a_jᵀv)), whatever
the kind of GLM. A Newton step s from any v proves the second case when |a_jᵀs| < 1 for all j: with p_j = σ(−a_jᵀv), the
numbers λ_j = p_j − p_j(1 − p_j) a_jᵀs are positive, and Σ λ_j a_j = −g − Hs = 0. No |a_jᵀs| is above the root of
Σ_j (a_jᵀs)² = 4 sᵀH_0 s, with H_0 the Hessian at zero, so that sums prove it. A direction proves the first case: the
sites compare their rows with it, and of a site whose own rows have a maximum the answer is known beforehand (`held`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
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
"""Largest bound on |a_jᵀs| that counts as less than 1: s is known to `RESOLVED`⁻¹ roundings, 1e-4."""

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

FALLING = 0.7
"""Part of the value that a step leaves where all rows are separated: exp(−1) in the end."""

ROUGH = 0.5
"""|a_jᵀd| below which a row is first taken to stand still, d being the way of the search: others moved by 1 a step."""

MOST_SETS = 16
"""Sets of columns that are asked about side by side."""
MOST_NEEDED = 12
"""Columns that are searched for: where more are needed, others that can be spared are named with them."""


@dataclass(frozen=True)
class Part:
    """What a search asks at one point.

    Attributes
    ----------
    basis : ndarray, shape (p, r)
        Columns in which the search runs: the design is X @ basis.
    theta : ndarray, shape (C r,)
    direction : ndarray, shape (C r,), optional
        Rows that it moves are left out of the sums.
    floor : float, default 0.0
        |a_jᵀd| up to which a row stands still, rounding apart.
    """

    basis: Array
    theta: Array
    direction: Array | None = None
    floor: float = 0.0


@dataclass(frozen=True)
class Question:
    """What the server asks all sites in one exchange: `Part`s, b of them, with zeros up to the widest basis.

    A direction of zeros is none.
    """

    basis: Array
    theta: Array
    direction: Array
    floor: Array

    @classmethod
    def of(cls, *parts: Part) -> Question:
        """Return the parts as one question."""
        widest = max(part.basis.shape[1] for part in parts)

        def padded(part: Part, vector: Array | None) -> Array:
            width = part.basis.shape[1]
            blocks = np.zeros((part.theta.size // max(width, 1), widest))
            blocks[:, :width] = 0.0 if vector is None else vector.reshape(-1, width)
            return blocks.ravel()

        return cls(
            np.stack([np.pad(part.basis, ((0, 0), (0, widest - part.basis.shape[1]))) for part in parts]),
            np.stack([padded(part, part.theta) for part in parts]),
            np.stack([padded(part, part.direction) for part in parts]),
            np.array([part.floor for part in parts], dtype=np.float64),
        )

    @property
    def parts(self) -> list[Part]:
        """All of one width."""
        each = zip(self.basis, self.theta, self.direction, self.floor.tolist(), strict=True)
        return [Part(basis, theta, way if way.any() else None, floor) for basis, theta, way, floor in each]


@dataclass(frozen=True)
class Answer:
    """What a site says of each part: sums over the walls a_j that stand still, and what the others do.

    Attributes
    ----------
    value : ndarray, shape (b,)
        Σ_j log(1 + exp(−a_jᵀv)).
    gradient, hessian : ndarrays, shapes (b, C r) and (b, C r, C r)
    stands, moves, opposes : ndarray of 0 and 1, shape (b,)
        Whether a_jᵀd is zero, positive or negative for some j. Walls that are `held` always stand; where d moves one
        of them and the floor is 0, some move and some oppose. Without a direction `opposes` says whether any is held.
    """

    value: Array
    gradient: Array
    hessian: Array
    stands: Array
    moves: Array
    opposes: Array

    @classmethod
    def of(cls, *answers: Answer) -> Answer:
        """Return the answers to parts as one."""
        return cls(**{item.name: np.array([getattr(one, item.name) for one in answers]) for item in fields(cls)})

    def __add__(self, other: Answer) -> Answer:
        return Answer(
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            np.maximum(self.stands, other.stands),
            np.maximum(self.moves, other.moves),
            np.maximum(self.opposes, other.opposes),
        )

    def part(self, place: int, like: Part) -> Answer:
        """Return the answer to one part, without the zeros of wider ones."""
        width = like.basis.shape[1]
        n_outputs = like.theta.size // width
        widest = self.gradient.shape[1] // n_outputs
        own = (np.arange(n_outputs)[:, None] * widest + np.arange(width)).ravel()
        one = Answer(**{item.name: getattr(self, item.name)[place] for item in fields(Answer)})
        return replace(one, gradient=one.gradient[own], hessian=one.hessian[np.ix_(own, own)])


YES_OR_NO = ("stands", "moves", "opposes")
Ask = Callable[[Question], Sequence[Answer]]
Held = NDArray[np.bool]


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


Outcome = Split | Literal["finite", "unknown"]
AtZero = Callable[[Array], Answer]
Searching = Generator[list[Part], list[Answer], Outcome]


def has_walls(loss: Loss) -> bool:
    """Whether something can be said about separation."""
    return isinstance(loss, LinearModelLoss) and loss.pointwise.walls(loss.y) is not None


class _Walls(NamedTuple):
    """The walls of a site's rows under a question: those that stand still, and whether others move along or oppose."""

    rows: Array
    walls: Array
    still: Held
    moves: bool
    opposes: bool
    margin: Array


def held(loss: LinearModelLoss) -> Held:
    """Return which walls no separation moves, as the site's own rows show it; all where they have a maximum.

    Every direction that moves such a wall moves some of them against it: Σ_j λ_j a_j = 0 over them, with λ_j > 0. So
    what a site says of them, whatever the direction, follows from the factor of their rows.

    Returns
    -------
    ndarray of bool, shape (n, m)
        Of the rows of positive weight; none where rounding hides the proof.
    """
    walls = _walls(loss)
    is_wall = np.asarray(walls.any(axis=2))
    factors, n_outputs = factors_of([loss]), loss.n_outputs
    basis = basis_within(factors, range(loss.n_features))
    if not basis.shape[1] or not is_wall.any():
        return is_wall
    free = np.zeros_like(is_wall)

    def ask(question: Question) -> list[Answer]:
        return [answer(loss, question, free)]

    (found,) = find_splits(ask, ask_at_zero(ask, factors, basis, n_outputs), [basis], n_outputs, is_whole=True)
    if not isinstance(found, Split) or not found.is_largest:
        return is_wall if found == "finite" else free
    way = found.direction.reshape(n_outputs, -1) @ factors[0].T @ (factors[0] @ basis)  # in the basis
    return _walls_of(loss, Part(basis, np.zeros(way.size), way.ravel()), free).still


def answer(loss: LinearModelLoss, question: Question, fixed: Held | None = None) -> Answer:
    """Answer at a site; only the sums and three times yes or no a part leave it. `fixed` is `held(loss)`."""
    known = held(loss) if fixed is None else fixed
    return Answer.of(*(_answer(loss, part, known) for part in question.parts))


def _answer(loss: LinearModelLoss, question: Part, fixed: Held) -> Answer:
    found, n_outputs = _walls_of(loss, question, fixed), loss.n_outputs
    still, margin = found.still, found.margin
    slope = np.einsum("nm,nmc->nc", np.where(still, -expit(-margin), 0.0), found.walls)
    bends = np.einsum("nm,nmc,nmd->ncd", _weights(found), found.walls, found.walls)
    curvature = RowCurvature(found.rows, bends if n_outputs > 1 else bends[:, 0, 0])
    return Answer(
        np.asarray(np.logaddexp(0.0, -margin)[still].sum()),
        (slope.T @ found.rows).ravel(),
        curvature.dense(),
        *(np.asarray(float(said)) for said in (still.any(), found.moves, found.opposes)),
    )


class RestsOn(NamedTuple):
    """What the answer to a part rests on: rows that are held and that are not, weights, and what a direction compares.

    Attributes
    ----------
    held, free : int
        Rows with a wall that is held, and without one.
    weights : ndarray
        Of the rows in the sums.
    compared : bool
        Whether a direction is compared with walls that are not held.
    split : str
        Digest of those of them that stand, where others do not, so that the direction chooses rows; otherwise empty.
    stands, goes : int
        Then rows with a wall that is not held and stands, and rows none of whose walls does.
    """

    held: int
    free: int
    weights: Array
    compared: bool
    split: str = ""
    stands: int = 0
    goes: int = 0


def rests_on(loss: LinearModelLoss, question: Question, fixed: Held) -> Iterator[RestsOn]:
    """Yield of each part what its answer rests on."""
    loose = _walls(loss).any(axis=2) & ~fixed
    rows = fixed.any(axis=1)
    for part in question.parts:
        found, compared = _walls_of(loss, part, fixed), part.direction is not None and bool(loose.any())
        counts = (int(rows.sum()), int((~rows).sum())) if compared else (0, 0)
        own = RestsOn(*counts, _weights(found).sum(axis=1), compared)
        stands = found.still & loose
        if compared and stands.any() and (loose & ~stands).any():
            goes = (loose & ~stands).any(axis=1) & ~found.still.any(axis=1)
            own = own._replace(split=_digest(stands), stands=int(stands.any(axis=1).sum()), goes=int(goes.sum()))
        yield own


def _digest(rows: Held) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()[:16]


def _walls(loss: LinearModelLoss) -> Array:
    walls = loss.pointwise.walls(loss.y[loss.weights > 0])
    assert walls is not None
    return walls


def _walls_of(loss: LinearModelLoss, question: Part, fixed: Held) -> _Walls:
    X, n_outputs, walls = _weighted_rows(loss), loss.n_outputs, _walls(loss)
    rows = X @ question.basis

    def along(theta: Array) -> Array:
        return np.asarray(np.einsum("nmc,nc->nm", walls, rows @ theta.reshape(n_outputs, -1).T))

    is_wall = np.asarray(walls.any(axis=2))
    margin = along(question.theta)
    if question.direction is None:
        return _Walls(rows, walls, is_wall, False, bool(fixed.any()), margin)
    moved = along(question.direction)
    direction = question.direction.reshape(n_outputs, -1).T
    # of the whole direction: an output that it leaves alone is known no better than the others
    size = STILL * np.linalg.norm(direction) * np.linalg.norm(rows, axis=1)[:, None]
    size = size + ROUNDING * np.abs(X) @ np.abs(question.basis @ direction)
    floor = np.maximum(question.floor, np.einsum("nmc,nc->nm", np.abs(walls), size))
    loose = is_wall & ~fixed
    both = question.floor == 0 and bool((fixed & (np.abs(moved) > floor)).any())
    still = is_wall & (fixed | (np.abs(moved) <= floor))
    moves, opposes = (bool((loose & far).any()) or both for far in (moved > floor, moved < -floor))
    return _Walls(rows, walls, still, moves, opposes, margin)


def _weights(found: _Walls) -> Array:
    return np.where(found.still, expit(found.margin) * expit(-found.margin), 0.0)


def _weighted_rows(loss: LinearModelLoss) -> Array:
    """Return the rows that count."""
    return loss.X if loss.weights.all() else loss.X[loss.weights > 0]


def ask_at_zero(ask: Ask, factors: Sequence[Array], basis: Array, n_outputs: int) -> AtZero:
    """Ask for the sums at zero within the columns of a basis; return those within a basis inside of it."""
    part, root = Part(basis, np.zeros(n_outputs * basis.shape[1])), np.vstack(factors)
    total = reduce(Answer.__add__, ask(Question.of(part))).part(0, part)

    def within(inner: Array) -> Answer:
        places = np.kron(np.eye(n_outputs), (root @ basis).T @ (root @ inner))  # the design @ basis is orthonormal
        return replace(total, gradient=places.T @ total.gradient, hessian=places.T @ total.hessian @ places)

    return within


def find_splits(
    ask: Ask,
    at_zero: AtZero,
    bases: Sequence[Array],
    n_outputs: int,
    is_nested: bool = False,
    is_whole: bool = False,
) -> list[Outcome]:
    """Prove separation, or that a maximum exists, within the columns of each basis; all at once.

    A damped Newton run from zero in coordinates in which the information at zero is the identity. Each iterate offers
    three proofs: its step, that of the maximum, and, of separation, itself and its part in the eigenvectors of the
    smallest eigenvalues, where the rows that stand still have no information.

    Parameters
    ----------
    ask : callable
        Question → an answer of each site.
    at_zero : callable
        See `ask_at_zero`, of a basis that spans all others.
    bases : sequence of ndarray, shape (p, r)
        Of a full column rank design X @ basis, nearly orthonormal; see `orthonormal_basis`.
    n_outputs : int
        C.
    is_nested : bool, default False
        Whether each basis spans the ones before it: what is known of one then tells the others', which are "unknown".
    is_whole : bool, default False
        Whether a separation is looked for that is the largest.

    Returns
    -------
    list of Split, "finite" or "unknown"
        "unknown" where rounding hides both proofs, or nobody needs it.
    """
    found: list[Outcome] = ["unknown"] * len(bases)
    running = {k: _Search(basis, n_outputs, is_whole).run(at_zero(basis)) for k, basis in enumerate(bases)}
    waiting: dict[int, list[Part]] = {}
    told: dict[int, list[Answer] | None] = dict.fromkeys(running)
    while True:
        for k, own in told.items():
            try:
                waiting[k] = next(running[k]) if own is None else running[k].send(own)
            except StopIteration as end:
                found[k] = end.value
                waiting.pop(k, None)
        if is_nested:
            split = next((k for k, one in enumerate(found) if isinstance(one, Split)), len(bases))
            finite = max((k for k, one in enumerate(found) if one == "finite"), default=-1)
            waiting = {k: own for k, own in waiting.items() if finite < k < split}
        if not waiting:
            return found
        parts = [part for own in waiting.values() for part in own]
        total = reduce(Answer.__add__, ask(Question.of(*parts)))
        answers = (total.part(i, part) for i, part in enumerate(parts))
        told = {k: [next(answers) for _ in own] for k, own in waiting.items()}


class _Search:
    """One search: generators of the parts that are asked, which are sent the answers."""

    def __init__(self, basis: Array, n_outputs: int, is_whole: bool) -> None:
        self._basis, self._n_outputs, self._is_whole = basis, n_outputs, is_whole

    def _part(self, theta: Array, direction: Array | None = None, floor: float = 0.0) -> Part:
        there = None if direction is None else self._frame @ direction
        return Part(self._basis, self._frame @ theta, there, floor)

    def _framed(self, total: Answer) -> Answer:
        frame = self._frame
        return replace(total, gradient=frame.T @ total.gradient, hessian=frame.T @ total.hessian @ frame)

    def run(self, now: Answer) -> Searching:
        if not now.gradient.size:
            return "finite"
        values, vectors = np.linalg.eigh(now.hessian)
        real = values > RESOLVED * max(values[-1], np.finfo(float).tiny)
        self._frame = vectors[:, real] / np.sqrt(values[real])
        self._placed = np.kron(np.eye(self._n_outputs), self._basis) @ self._frame
        now, theta = self._framed(now), np.zeros(self._frame.shape[1])
        if not theta.size:
            return "finite"
        # where a wall is held no separation is complete, and none need be compared to see it
        may_be_complete, before, found = not now.opposes, now.value, None
        proofs: list[_Proof] = []
        for _ in range(STEPS):
            values, vectors = np.linalg.eigh(now.hessian)
            if values[0] <= RESOLVED * values[-1]:
                break
            step = -vectors @ ((vectors.T @ now.gradient) / values)
            if _is_short(step):
                return "finite"
            if not may_be_complete or now.value > FALLING * before:
                proofs += [_Proof(self._proven(theta, way)) for way in _candidates(values, vectors, theta)]
            before = now.value
            # the next iterate, and all that is under way in one question
            end = theta + step
            whole = [self._part(np.zeros_like(end), end)] if may_be_complete else []
            there, *others = yield [self._part(end), *whole, *(proof.part for proof in proofs)]
            if whole:
                first, *others = others
                if first.moves and not first.opposes and not first.stands:
                    every = self._placed
                    return Split(every @ end, True, every, every, True)
            proofs, found = _advanced(proofs, others, found)
            if found is not None and (found.is_largest or not self._is_whole):
                return found
            theta, now = yield from self._descend(theta, now, step, self._framed(there))
        while proofs and not (found is not None and found.is_largest):
            proofs, found = _advanced(proofs, (yield [proof.part for proof in proofs]), found)
        return found or "unknown"

    def _descend(
        self, theta: Array, now: Answer, step: Array, there: Answer
    ) -> Generator[list[Part], list[Answer], tuple[Array, Answer]]:
        """Take the step, whose end is `there`, halved until the value falls."""
        for _ in range(50):
            if there.value < now.value:
                return theta + step, there
            step = 0.5 * step
            (told,) = yield [self._part(theta + step)]
            there = self._framed(told)
        return theta, now

    def _proven(self, theta: Array, direction: Array) -> Generator[Part, Answer, Split | None]:
        """Prove that no row opposes a direction, after taking out of it what moves the rows that hardly move."""
        rough = yield self._part(np.zeros_like(theta), direction, ROUGH)
        if rough.opposes or not rough.moves:
            return None
        values, vectors = np.linalg.eigh(self._framed(rough).hessian)  # the frame makes all rows together 1 at 0
        silent = values <= RESOLVED
        span, rest = vectors[:, silent], vectors[:, ~silent]
        direction = span @ (span.T @ direction)
        if not direction.any():
            return None
        exact = yield self._part(theta, direction)
        if exact.opposes or not exact.moves:
            return None
        is_complete = not exact.stands
        found = Split(self._placed @ direction, is_complete, self._placed @ span, self._placed, is_complete)
        if is_complete or not self._is_whole:
            return found
        still = self._framed(exact)  # whether the rows that stand still prove that they have a maximum
        information = rest.T @ still.hessian @ rest
        values = np.linalg.eigvalsh(information) if information.size else np.ones(1)
        if values[0] <= RESOLVED * values[-1]:
            return found
        step = -rest @ np.linalg.solve(information, rest.T @ still.gradient)
        return replace(found, is_largest=_is_short(step))


def _is_short(step: Array) -> bool:
    """Whether all |a_jᵀs| are below `HALF`, by their root sum of squares: the frame makes H_0 the identity."""
    return bool(2.0 * np.linalg.norm(step) < HALF)


class _Proof:
    """A proof under way, and the part that it waits for."""

    def __init__(self, proof: Generator[Part, Answer, Split | None]) -> None:
        self.proof, self.part = proof, next(proof)


def _advanced(
    proofs: Sequence[_Proof], answers: Sequence[Answer], found: Split | None
) -> tuple[list[_Proof], Split | None]:
    """Return the proofs that go on, and the best separation that is proven, the largest if there is one."""
    left = []
    for one, told in zip(proofs, answers, strict=True):
        try:
            one.part = one.proof.send(told)
            left.append(one)
        except StopIteration as end:
            found = found if end.value is None or (found is not None and found.is_largest) else end.value
    return left, found


def _candidates(values: Array, vectors: Array, theta: Array) -> Iterator[Array]:
    """Yield the part of θ in the eigenvectors below each wide gap of the spectrum, the widest first.

    Where the search starts all eigenvalues are 1.
    """
    gaps = np.append(values[1:], max(1.0, values[-1])) / values
    for last in np.argsort(-gaps)[:GAPS]:
        weak = vectors[:, : last + 1]
        if gaps[last] > WIDE:
            yield weak @ (weak.T @ theta)


def smallest_separating(
    split: Callable[[Sequence[Sequence[int]], bool], Sequence[Outcome]],
    columns: Sequence[int],
    found: Split,
    most: int = MOST_SETS,
) -> tuple[list[int], Split]:
    """Return columns that separate, none of which can be spared, out of columns that do, and how they do.

    Columns more never undo a separation. So the last column of the shortest list that separates is needed, and so is
    each without which the list does not. Where rounding hides the proof of a set, or more than `MOST_NEEDED` are
    needed, there may be some that can be spared.

    Parameters
    ----------
    split : callable
        Sets of columns, and whether each holds the ones before it → what is proven of them.
    columns : sequence of int
        In the order of preference.
    found : Split
        Of all columns.
    most : int
        Sets that are asked about in one exchange: each is a Hessian of a site.
    """
    known: dict[frozenset[int], Split] = {}

    def separate(sets: list[list[int]], is_nested: bool) -> list[bool]:
        proven = split(sets, is_nested)
        known.update((frozenset(one), how) for one, how in zip(sets, proven, strict=True) if isinstance(how, Split))
        return [isinstance(how, Split) for how in proven]

    needed: list[int] = []
    left = list(columns)
    while True:  # needed + left separates, as far as rounding shows it
        low, high = -1, len(left)  # needed + left[:low] does not, needed + left[:high] does
        while high - low > 1:
            places = sorted({low + 1 + (high - low - 2) * i // max(most - 1, 1) for i in range(most)})
            proven = separate([needed + left[:place] for place in places], True)
            first = proven.index(True) if True in proven else len(places)
            low, high = ([low, *places][first], [*places, high][first])
        if not high or len(needed) >= MOST_NEEDED:
            break
        needed, left = [*needed, left[high - 1]], left[: high - 1]
        if 0 < len(left) <= most:
            spared = separate([[*needed, *(i for i in left if i != j)] for j in left], False)
            needed += [j for j, is_spare in zip(left, spared, strict=True) if not is_spare]
            left = [j for j, is_spare in zip(left, spared, strict=True) if is_spare]
        if frozenset(needed) in known or not (left or separate([needed], False)[0]):
            break
    for some in (needed, [*needed, *left]):
        if frozenset(some) in known:
            return sorted(some), known[frozenset(some)]
    return sorted(columns), found


def ask_losses(losses: Sequence[LinearModelLoss]) -> Ask:
    """Return the way to ask sites whose rows are in this process."""
    known = [held(loss) for loss in losses]
    return lambda question: [answer(loss, question, fixed) for loss, fixed in zip(losses, known, strict=True)]


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
