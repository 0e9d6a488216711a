"""A guard around any step: the server keeps the best point, and searches along a line when rounds make no progress.

The guard's state, a `Search`, has two phases. In 'row' the wrapped step runs unchanged. In 'line' clients evaluate
at a trial point, which the server accepts once all have answered there, or moves nearer to the last accepted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._errors import ArgumentError
from .._numerics import SHORTEST, rounding_unit
from ..clients.problem import Solution
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Expected, Loss
from ..losses.expectations import Delta, Rule
from .average import as_distribution
from .joint import stretched, sums_of, tangent_to
from .line import CREDIT, Answer, Line, Point, PosteriorLine
from .messages import Ask, Reply
from .status import Failure, Status
from .step import STEPS, Gathered, is_stationary
from .tree import MEMORIES
from .wrapper import Wrapper

if TYPE_CHECKING:
    from .server import Server
    from .state import State
    from .worker import Worker

LATE = 10  # rounds after which a point that is refused is no longer one of a far start
LONG_STILL = 30  # points without a lower F, after which a run ends: its steps are rounding
MOST_FAR = 5  # points without a direction, at which F is huge, that are drawn towards zero
MOST_REFUSED = 40  # refusals from one accepted point, after which a line is given up
OWN_REFUSED = 3  # refusals of the sites' own fits, after which the search begins at the prior
PATIENCE = 5  # rounds in which a row must halve its largest edge; doubled each time that the search returns to the row
RETURN = 4  # accepted points, times the patience, after which a search that has not ended returns to the row
SHRINK = 0.1  # factor by which mean and deviations of a first point are shortened while F is not finite there
MOST = float(np.finfo(np.float64).max)
FLOOR = 1e-11  # Fisher length of a step from which on it is rounding
FALLBACK = PosteriorLine()


@MEMORIES.register
@dataclass(frozen=True)
class Search:
    """The state of a guard."""

    phase: Literal["own", "row", "line"]
    inner: Any  # the state of the step inside
    answers: tuple[Answer | None, ...]  # answers at the present q_g; None of a client that is yet to be heard
    best: Point | None = None  # lowest point at which all clients told F
    accepted: Point | None = None  # where the line begins
    last: Point | None = None  # accepted before that
    target: Point | None = None  # end of the line
    share: float = 1.0  # w, the part of the way to the target at which q_g is
    is_plain: bool = False  # whether the second direction is tried, after the first was refused
    refused: int = 0  # points since the last accepted one
    lowest: float = float("inf")  # lowest F at accepted points of this search, of the mode without the covariance
    still: int = 0  # points since then
    steps: int = 0  # accepted points of this phase
    since: int = 0  # rounds of the row without progress
    edge: float = float("inf")  # largest edge of the circuit when it was last halved
    patience: int = PATIENCE
    reason: Failure | None = None  # first diagnosis of a row that was left
    end: Status | None = None

    def __post_init__(self) -> None:
        counts = (self.refused, self.still, self.steps, self.since, self.patience - 1)
        is_sound = 0.0 <= self.share <= 1.0 and min(counts) >= 0 and self.end in (None, Status.ROUNDED)
        if not (is_sound and self.lowest == self.lowest and self.edge >= 0.0):
            raise ValueError(f"share must be in [0, 1], counts from 0, end None or ROUNDED, got {self}.")


@STEPS.register
@dataclass(frozen=True)
class Guarded(Wrapper):
    """A guard: no point that the server accepts increases the pooled objective, and a run ends at the best.

        F(m) = Σ_k ℓ_k(m) + ½ ‖m − m_0‖²_{P_0}   of Newton,   F(q) = Σ_k E_q[ℓ_k] + KL(q‖π_0)   of all others

    The server computes F at q_g from the replies of all clients. It keeps answers at one q_g over rounds, so that
    absent clients only delay a step.

    `Newton()` and `JointNewton()` give a direction. The server broadcasts points at a share w of the way along it,
    first w = 1, and accepts the first point at which F decreases by a part of the predicted decrease. For strictly
    convex F with a minimum the accepted points converge to the minimum from every start at which F is finite
    (docs/guarantee.md). Where F is ∞ at the start, the first point is drawn towards zero.

    Any other method runs unchanged while F does not increase, all clients have a minimum, and the largest edge of the
    circuit halves in every five rounds. Otherwise a search starts at the best point in the direction of `JointNewton`;
    if the search is long, the method resumes with twice the patience.

    A run ends at the best point, whatever its status; the status is `ROUNDED` if rounding hides the effect of a step.

    Parameters
    ----------
    method : Method or Step
        `Newton()`, `JointNewton()`, `BLR(1.0)`, or a method whose clients solve Eq. 15 and whose dual moves along λ,
        sketched or accelerated or not; losses must be convex, and the prior Gaussian.

    Raises
    ------
    ValueError
        When `method` is another one, a client's loss is not convex, or the prior is not Gaussian.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.Guarded(ba.methods.Newton()).name
    'guarded Newton'

    BLR diverges here; the guard needs one additional number from each client in each round.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((60, 4)) + 1.0
    >>> clients = [ba.losses.LeastSquares(part, part.sum(axis=1)) for part in np.split(X, 3)]
    >>> prior = ba.families.DiagonalGaussian(np.zeros(4), 1.0)
    >>> for row in (ba.methods.BLR(1.0), ba.Guarded(ba.methods.BLR(1.0))):
    ...     print(ba.run(row, clients, prior, raise_on_failure=False).status.name)
    DIVERGED
    CONVERGED
    """

    takes_back = True
    knobs = "the curvature is singular to rounding: leave nearly collinear columns out, or shrink them with a prior"

    def __post_init__(self) -> None:
        inner, row = self.inner, self.inner.row
        if isinstance(inner, Guarded):
            object.__setattr__(self, "method", inner.method)
            return
        solves = row.client == "proximal" and row.dual_step > 0 and row.dual_rule.reads_natural
        follows = solves and row.expectation != Delta(2) and row.max_rounds is None
        if row.prior_at != "server" or not (follows or (row.client == "gradient" and row.alpha == 1.0)):
            expected = "must be Newton(), JointNewton(), BLR(1.0), or a method whose dual moves along λ, such as PVI()"
            raise ArgumentError("method", expected, inner.name)

    @property
    def name(self) -> str:
        return f"guarded {self.inner.name}"

    @property
    def descent(self) -> Line:
        """Line of descent, of the step inside or of `JointNewton`."""
        return FALLBACK if self.inner.line is None else self.inner.line

    def require(self, loss: Loss, prior: ExponentialFamily, rule: Rule) -> None:
        super().require(loss, prior, rule)
        if not isinstance(prior, Gaussian):
            raise ValueError(f"{self.name} needs a Gaussian prior, and {type(prior).__name__} is none.")
        if not self.at_mean and rule.is_delta and prior.natural.shapes[1:]:
            expected = f"must be an expectation under the family for {self.name}, not the delta method"
            raise ArgumentError("expectation", expected, repr(rule))
        if loss.has_rounds and not loss.is_convex:
            raise ValueError(f"{self.name} needs convex losses, and {loss.name} is not.")

    # --- a round

    def init(self, server: Server) -> Search:
        phase: Any = "row" if self.inner.line is None else "own" if self.begins == "sites" else "line"
        return Search(phase, super().init(server), (None,) * len(server.shares))

    def only_evaluates(self, memory: Search) -> bool:
        return memory.phase == "line" and self.inner.line is None

    def ask(self, state: State) -> Ask:
        if state.memory.phase == "own":
            return "own"
        return "sums" if self.only_evaluates(state.memory) else self.asks(state.round + 1)

    def keeps_mean(self, state: State) -> bool:
        return self.at_mean or state.memory.phase == "line"  # a fit that needed no rounds has no search

    def context(self, state: State) -> Any:
        return super().context(_inside(state)) if state.memory.phase == "row" else None

    def context_floats(self, state: State) -> int:
        return super().context_floats(_inside(state)) if state.memory.phase == "row" else 0

    def sketches(self, state: State) -> Any:
        return super().sketches(_inside(state))

    def beside(self, worker: Worker, asked: Ask, solution: Solution) -> dict[str, Any]:
        if asked == "sums" or (asked == "evaluate" and self.inner.line is not None):
            return self.descent.beside(worker, solution)
        return super().beside(worker, asked, solution)

    def waits_for(self, state: State) -> list[int]:
        search = state.memory
        return [k for k, one in enumerate(search.answers) if one is None] if search.phase != "row" else []

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        search: Search = state.memory
        if search.phase == "row":
            return self._row(server, state, search, replies)
        pairs = zip(search.answers, replies, strict=True)
        answers = tuple(old if new is None else Answer.of(new) for old, new in pairs)
        if any(one is None for one in answers):
            return Gathered(state.q_g, state.sites, state.naturals, replace(search, answers=answers), 1.0, counts=False)
        trial = Point.of(server, state.q_g, answers)  # type: ignore[arg-type]
        return (self._own if search.phase == "own" else self._judged)(server, state, search, trial)

    def _own(self, server: Server, state: State, search: Search, start: Point) -> Gathered | Failure:
        """Use the sites' own fits as the end of a line from the prior, if F is finite there."""
        # a point with values alone: of what was told there no direction follows
        begin = replace(start, answers=()) if np.isfinite(start.value) else None
        search = replace(search, phase="line", best=begin)
        if len(start.sites) == len(start.answers):
            q_g = as_distribution(self, server, state, server.gather(start.sites, start.sites, 1.0))
            if not isinstance(q_g, Failure):
                target = Point.of(server, q_g)
                return self._moved(server, state, replace(search, accepted=begin, target=target), target, start)
        return self._moved(server, state, search, Point.of(server, server.prior.start()))

    def _row(self, server: Server, state: State, search: Search, replies: Sequence[Reply | None]) -> Gathered | Failure:
        """Continue the wrapped step while it makes progress."""
        here = Point.of(server, state.q_g, [Answer(one.value) for one in replies if one is not None])
        is_known, is_high = all(reply is not None for reply in replies), False
        if is_known:
            is_high = search.best is not None and not here.value <= _ceiling(server, search.best)
            search = _lowered(search, here, self._highest(server))
        edge = state.history[-1].edges.largest if state.history else float("inf")
        search = replace(search, since=search.since + 1)
        if edge < 0.5 * search.edge:
            search = replace(search, since=0, edge=edge)
        if is_high or search.since > search.patience:
            return self._left(server, state, search, is_known)
        found = super().step(server, _inside(state), replies)
        if isinstance(found, Failure):
            return self._left(server, state, replace(search, reason=search.reason or found), is_known)
        return found._replace(memory=replace(search, inner=found.memory))

    def _left(self, server: Server, state: State, search: Search, is_known: bool) -> Gathered | Failure:
        """Start a search at the best point, or at q_g if that may be better."""
        begin = search.best if search.best is not None and is_known else Point.of(server, state.q_g)
        none: Any = dict.fromkeys(("accepted", "last", "target"))
        search = replace(search, phase="line", **none, share=1.0, refused=0, steps=0, lowest=float("inf"), still=0)
        return self._moved(server, state, search, begin)

    def _judged(self, server: Server, state: State, search: Search, trial: Point) -> Gathered | Failure:
        """Accept a trial point at which all have answered, or go on with another one."""
        begin, target = search.accepted, search.target
        if begin is None or target is None:
            return self._first(server, state, search, trial)
        search = replace(search, still=search.still + 1)
        if not np.isfinite(trial.value):
            return self._shorter(server, state, search, SHORTEST)
        change = self.descent.change(server, begin, trial, target, search.share)
        if change.is_coarse:
            begun = self.descent.q_of(server, begin)
            below = [
                old - new.value - tangent_to(q, *sums_of(q, new.site), begun)[0]
                for old, new in zip(begin.values, trial.answers, strict=True)
                if (q := self.descent.q_of(server, trial)) and new.site is not None
            ]
            return Failure(Status.COARSE_RULE, state.round + 1, client=int(np.argmin(below)))
        if not change.is_accepted(search.lowest):
            return self._shorter(server, state, search, change.stretch())
        if change.after < search.lowest - change.rounding:
            search = replace(search, still=0, lowest=change.after)
        return self._accepted(server, state, search, trial)

    def _first(self, server: Server, state: State, search: Search, trial: Point) -> Gathered | Failure:
        """Accept a point to begin a search at, or look for a lower one."""
        best = search.best
        ceiling = self._highest(server) if best is None else _ceiling(server, best)
        if trial.value <= ceiling:
            return self._accepted(server, state, search, trial)
        search = replace(search, refused=search.refused + 1)
        if search.refused > MOST_REFUSED:
            return search.reason or Failure(Status.NOT_FINITE, state.round + 1)
        if best is not None and best.natural != trial.natural:
            return self._moved(server, state, search, best)
        return self._nearer(server, state, search, trial)

    def _nearer(self, server: Server, state: State, search: Search, trial: Point) -> Gathered | Failure:
        """Shrink the mean and the standard deviations of a trial point."""
        q: Any = self.descent.q_of(server, trial)
        mean = SHRINK * q.mean
        nearer = stretched(q, mean, [SHRINK * one for one in q.factor.stretch_to(q.factor)])
        if nearer is None:
            return search.reason or Failure(Status.NOT_FINITE, state.round + 1)
        search = replace(search, accepted=None, target=None, last=None)
        return self._moved(server, state, search, Point(nearer.natural, nearer.mean))

    def _highest(self, server: Server) -> float:
        """Return the largest F of a point to begin at."""
        return min(self.descent.highest * (1.0 + server.total), MOST)

    def _accepted(self, server: Server, state: State, search: Search, trial: Point) -> Gathered | Failure:
        """Begin a new line from a trial point."""
        search = replace(search, last=search.accepted, accepted=_lean(trial), refused=0, is_plain=False)
        search = _lowered(replace(search, steps=search.steps + 1, target=None), trial, np.inf)
        if self.inner.line is None and server.sets_duals and search.steps > RETURN * search.patience:
            return self._returned(server, state, search, trial)
        is_over = search.still >= LONG_STILL
        return self._begun(server, state, replace(search, end=Status.ROUNDED if is_over else None), trial)

    def _begun(self, server: Server, state: State, search: Search, point: Point) -> Gathered | Failure:
        """Broadcast the end of a line from a point at which all have answered."""
        target = None if search.end else self.descent.target(server, point, search.last, search.is_plain)
        if target is None and search.end is None:
            # where the curvature is singular to rounding, columns are to be named
            whole = as_distribution(self, server, state, server.gather(point.sites, point.sites, 1.0))
            if isinstance(whole, Failure):
                is_far = search.steps <= MOST_FAR and point.value > PosteriorLine.highest * (1.0 + server.total)
                return self._nearer(server, state, search, point) if is_far else whole
            search = replace(search, end=Status.ROUNDED)
        target = target or point
        return self._moved(server, state, replace(search, target=target, share=1.0), target, point)

    def _shorter(self, server: Server, state: State, search: Search, stretch: float) -> Gathered | Failure:
        """Broadcast a point nearer to the accepted one, or where that is in vain one in another direction."""
        begin, target = search.accepted, search.target
        assert begin is not None
        assert target is not None
        search = replace(search, refused=search.refused + 1, share=stretch * search.share)
        if not begin.answers and search.refused >= OWN_REFUSED:
            return self._moved(server, state, replace(search, accepted=None, target=None, refused=0), begin)
        q, end = self.descent.q_of(server, begin), self.descent.q_of(server, target)
        step = search.share * q.fisher_norm(end.natural - q.natural)
        if search.refused <= MOST_REFUSED and step > FLOOR and search.still < LONG_STILL:
            return self._moved(server, state, search, self.descent.between(server, begin, target, search.share))
        if search.is_plain or search.still >= LONG_STILL:
            return self._moved(server, state, replace(search, end=Status.ROUNDED), begin)
        search = replace(search, is_plain=True, refused=0)
        return self._begun(server, state, search, begin)

    def _returned(self, server: Server, state: State, search: Search, point: Point) -> Gathered | Failure:
        """Resume the method at an accepted point, with twice the patience."""
        count = len(server.shares)
        begun = {
            "phase": "row",
            "inner": self.inner.init(server),
            "edge": float("inf"),
            "accepted": None,
            "target": None,
        }
        search = replace(search, **begun, patience=2 * search.patience, since=0, steps=0)
        q_g = self.descent.q_of(server, point)
        return Gathered(q_g, tuple(point.sites), (q_g.natural,) * count, search, 1.0)

    def _moved(
        self, server: Server, state: State, search: Search, to: Point, accepted: Point | None = None
    ) -> Gathered:
        """Ask all clients for their sums at another point; sites are those of a point that was accepted just now."""
        q_g = self.descent.q_of(server, to)
        search = replace(search, answers=(None,) * len(server.shares))
        kept = state.sites, state.naturals
        if accepted is not None and accepted.answers:
            kept = tuple(accepted.sites), (accepted.natural,) * len(state.sites)
        return Gathered(q_g, *kept, search, search.share, counts=accepted is not None)

    # --- the end

    def terminate(self, server: Server, state: State, at_server: Sequence[Expected], tol: float) -> Status | None:
        search: Search = state.memory
        if search.phase == "row" or self.inner.line is not None:
            found = self.inner.terminate(server, _inside(state), at_server, tol)
        else:
            found = Status.CONVERGED if is_stationary(server, state, at_server, tol) else None
        if found is not None and not self.at_mean and state.history[-1].objective > self._lowest(server, state):
            found = None  # of a loose tol, at a point that is no answer
        return found or search.end

    def _lowest(self, server: Server, state: State) -> float:
        """Return the largest F that is not above the lowest known one, to what a rule of points may differ by."""
        known = [one.value for one in (state.memory.best,) if one is not None]
        known += [state.start_objective] if server.prior.is_proper and np.isfinite(state.start_objective) else []
        lowest = min(known, default=np.inf)
        return lowest + CREDIT * (1.0 + abs(lowest))

    def conclude(
        self, server: Server, state: State, at_server: Sequence[Expected] | None, status: Status
    ) -> tuple[State, Sequence[Expected] | None]:
        """Return to the best point, unless q_g is known to be as good."""
        best = state.memory.best
        start = state.start_objective
        if server.prior.is_proper and np.isfinite(start) and (best is None or start < best.value):
            best = replace(Point.of(server, server.prior.start()), value=start)
        if state.history and status is not Status.CONVERGED and best is not None:
            record = state.history[-1]
            here = Point(state.q_g.natural, state.q_g.mean, record.objective)  # type: ignore[attr-defined]
            if at_server is None or not self._is_as_good(server, state.memory, here, best, at_server):
                found = state.memory.accepted if self.at_mean and state.memory.accepted is not None else best
                record = replace(record, objective=found.value)
                q_g = self.descent.q_of(server, found)
                return replace(state, q_g=q_g, history=(*state.history[:-1], record)), None
        return self.inner.conclude(server, state, at_server, status)

    def _is_as_good(
        self, server: Server, search: Search, here: Point, best: Point, at_server: Sequence[Expected]
    ) -> bool:
        sites = [-own.natural_gradient for own in at_server]
        if not (np.isfinite(here.value) and all(site.is_finite() for site in sites)):
            return False
        if search.phase == "line" and search.accepted is not None and search.target is not None:
            pairs = zip(at_server, sites, strict=True)
            trial = replace(here, answers=tuple(Answer(own.value, site) for own, site in pairs))
            change = self.descent.change(server, search.accepted, trial, search.target, search.share)
            return change.is_accepted(best.value)
        return here.value <= best.value

    def advice(self, server: Server, state: State) -> str:
        search: Search = state.memory
        said, waited = [super().advice(server, state)], self.waits_for(state)
        if 0 < len(waited) < len(search.answers):
            said.append(f"{self.name} waits for the answers of {len(waited)} of {len(search.answers)} clients")
        if search.reason is not None:
            said.append(search.reason.message.rstrip("."))
        if server.n_outputs > 1 and any(record.alpha < 1.0 for record in state.history[LATE:]):
            said.append(Status.COARSE_RULE.value)  # values and slopes of F by points contradict each other
        return "; ".join(filter(None, said))


def _lowered(search: Search, point: Point, highest: float) -> Search:
    """Return the search after a point, which becomes the best one if F is lower there and at most `highest`."""
    is_lower = point.value <= highest and (search.best is None or point.value < search.best.value)
    return replace(search, best=replace(point, answers=())) if is_lower else search


def _ceiling(server: Server, best: Point) -> float:
    """Return the largest F that is not above the best point, to the rounding of both values."""
    return best.value + 2.0 * rounding_unit(int(server.total), best.mean.size) * (abs(best.value) + best.mean.size)


def _inside(state: State) -> State:
    """Return the state as the step inside sees it."""
    return replace(state, memory=state.memory.inner)


def _lean(point: Point) -> Point:
    """Return a point without the tensors."""
    return replace(point, answers=tuple(replace(one, tensors=None) for one in point.answers))
