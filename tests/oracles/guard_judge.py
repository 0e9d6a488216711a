"""What a guarded run promises, as bars that a run of any method on any problem passes or fails."""

import signal
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

import bayesadmm_np as ba
from oracles.guard_optimum import EPS, Pooled, Unresolved

ROUNDS = 60
"""Rounds of every run."""

SLOWER = 1.5
"""Rounds of a guarded row, relative to those of the row itself, where that converges and all sites take part."""

FAR = 1e-3
"""Largest gap in F, above rounding, of a run that says that it converged: a mean .045 posterior sd away."""

SLOWER_AWAY = 5.0
"""The same where sites are away: a point is judged when all have answered there, half of them in a round."""

SECONDS = 5.0
"""Processor time of a run, some thirty times what most take."""

STILL, STILL_AWAY = 20, 40
"""Rounds without any move after which a run should have ended."""

PLAIN_ERRORS = ("ValueError", "ArgumentError")
"""Refusals; subclasses such as those of a failed factorisation are none."""


def methods(problem):
    """Return the guarded rows that fit a family, with the row that each is compared with."""
    rows = ba.methods
    full_sites = ba.Sketched(rows.PVI(), "full") if problem.family == "diagonal" else None
    pairs = {
        "BLR": rows.BLR(1.0),
        "PVI": rows.PVI(),
        "AMA(2)": rows.AMA(2.0),
        "accelerated": ba.Accelerated(rows.PVI(0.4)),
        "sketched": full_sites,
        "joint": rows.JointNewton(),
        "Newton": rows.Newton(),
    }
    found = {name: (ba.Guarded(row), row) for name, row in pairs.items() if row is not None}
    found["recommended"] = (rows.recommended(problem.prior, problem.clients), rows.JointNewton())
    return found


NAMES = ("BLR", "PVI", "AMA(2)", "accelerated", "sketched", "joint", "Newton", "recommended")


@dataclass
class Outcome:
    """What a run left: its end, and what was recorded on the way."""

    status: str = ""
    message: str = ""
    error: str = ""
    error_type: str = ""
    warned: tuple[str, ...] = ()
    values: list[float] = field(default_factory=list)  # recorded objective at the start and after each round
    returned: float = np.nan  # recorded objective of the result
    posterior: Any = None
    path: list[Any] = field(default_factory=list)  # posterior at the start and after each round
    present: list[np.ndarray] = field(default_factory=list)  # who took part, by round

    @property
    def rounds(self):
        return len(self.path) - 1

    @property
    def is_refused(self):
        """Whether the row does not fit the problem: an argument was refused before any round."""
        return self.error_type in PLAIN_ERRORS and not self.rounds

    @property
    def heard(self):
        """By point of the path, whether all sites have answered there before it was left."""
        found = []
        for j, point in enumerate(self.path):
            ever = np.zeros(len(self.present[0]) if self.present else 0, dtype=bool)
            for i in range(j, self.rounds):
                if not same(self.path[i], point):
                    break
                ever |= self.present[i]
            found.append(bool(ever.all()) and len(ever) > 0)
        return found

    @property
    def still(self):
        """Rounds at the end in which the posterior did not move."""
        moved = [j for j in range(1, len(self.path)) if not same(self.path[j], self.path[j - 1])]
        return self.rounds - (moved[-1] if moved else 0)


class OutOfTimeError(Exception):
    """A run took more than `SECONDS`."""


@contextmanager
def limited(seconds=SECONDS):
    """Raise an error after as much processor time, where the system has such a clock."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number, frame):
        raise OutOfTimeError(f"{seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.natural.parts, other.natural.parts, strict=True))


def attempt(problem, method, rounds=ROUNDS):
    """Run a method on a problem, whatever happens."""
    found = Outcome(path=[problem.prior])

    def draw(*arguments):  # a record would not say who answered and was not counted
        found.present.append(problem.present(*arguments))
        return found.present[-1]

    def watch(record, posterior):
        found.path.append(posterior)
        found.values.append(record.objective)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with limited():
                result = ba.run(
                    method,
                    problem.clients,
                    problem.prior,
                    rounds,
                    participation=draw if problem.is_away else 1.0,
                    raise_on_failure=False,
                    callback=watch,
                )
        except Exception as error:
            found.error_type, found.error = type(error).__name__, str(error)
        else:
            found.status, found.message = result.status.name, result.message
            found.values.insert(0, float(result.objective[0]))
            if not problem.is_away:
                found.present = [np.ones(len(problem.clients), dtype=bool)] * len(found.path[1:])
            found.returned, found.posterior = float(result.objective[-1]), result.posterior
    found.warned = tuple(sorted({f"{one.category.__name__}: {one.message}" for one in caught}))
    return found


@dataclass
class Verdict:
    """What the bars say of a guarded run; the gap is that of the posterior, of the mode for Newton."""

    name: str
    problem: Any
    guarded: Outcome
    plain: Outcome
    gap: float = np.nan
    away: float = np.nan  # mean, in posterior standard deviations
    plain_gap: float = np.nan
    unknown: str = ""  # why there is no gap
    faults: dict[str, str] = field(default_factory=dict)

    @property
    def has_converged(self):
        return self.guarded.status == "CONVERGED" and "converged far from it" not in self.faults

    def __str__(self):
        ends = [f"{one.status or one.error_type} in {one.rounds}" for one in (self.guarded, self.plain)]
        found = "; ".join(f"{bar}: {text}" if text else bar for bar, text in self.faults.items()) or "no fault"
        gaps = f"gap {self.gap:.2g} (mean {self.away:.2g} sd), unguarded {self.plain_gap:.2g}"
        return f"{self.problem}\n    {self.name}: {ends[0]}, unguarded {ends[1]}, {gaps}{self.unknown}: {found}"

    @property
    def record(self):
        """Plain numbers and words for a table."""
        return {
            "status": self.guarded.status or self.guarded.error_type,
            "rounds": self.guarded.rounds,
            "gap": self.gap,
            "away": self.away,
            "plain_status": self.plain.status or self.plain.error_type,
            "plain_rounds": self.plain.rounds,
            "plain_gap": self.plain_gap,
            "unknown": self.unknown,
            "faults": self.faults,
            "refused": self.guarded.is_refused,
            "text": str(self) if self.faults else "",
        }


def verdicts(problem, names=NAMES):
    """Run and judge the guarded rows on a problem."""
    pooled, known = Pooled(problem), {}

    def outcome(method, rounds):
        key = (repr(method), rounds)
        if key not in known:
            known[key] = attempt(problem, method, rounds)
        return known[key]

    for name, (guarded, plain) in methods(problem).items():
        if name in names:
            # of a longer run without a guard nothing follows
            pair = outcome(guarded, ROUNDS), outcome(plain, int(ROUNDS / SLOWER))
            yield judge(problem, *pair, name, None if name == "Newton" else pooled)


def judge(problem, guarded, plain, name="guarded", pooled=None):
    """Return the verdict on a guarded run beside that of its row without a guard.

    Faults: an exception that is no refusal; more than `SECONDS`; a warning; a failure of convex losses that have an
    optimum; a returned
    objective above that at the start, above the lowest at a point where all sites answered, or that is not F there;
    more than `SLOWER` times the rounds of the row, `SLOWER_AWAY` times where sites are away; CONVERGED or ROUNDED far
    from the optimum; ROUND_LIMIT where the last `STILL` rounds did not move or `STILL_AWAY` found no lower point.
    """
    pooled = pooled or Pooled(problem, at_mode=name == "Newton")
    verdict = Verdict(name, problem, guarded, plain)
    faults = verdict.faults
    if guarded.is_refused:
        return verdict
    if guarded.error_type:
        bar = "out of time" if guarded.error_type == OutOfTimeError.__name__ else "exception"
        faults[bar] = f"{guarded.error_type}: {guarded.error:.80}"
        return verdict
    if guarded.warned:
        faults["warning"] = guarded.warned[0][:90]
    slack = _values(verdict, pooled)
    _distance(verdict, pooled, slack)
    if guarded.status not in ("CONVERGED", "ROUND_LIMIT", "ROUNDED"):
        excused = guarded.status == "COARSE_RULE" and problem.n_classes > 2
        if not excused and not verdict.unknown:
            faults["failed"] = guarded.message[:160]
    elif guarded.status == "ROUND_LIMIT" and guarded.still >= (STILL_AWAY if problem.is_away else STILL):
        faults["idle"] = f"the last {guarded.still} of {guarded.rounds} rounds did not move"
    allowed = ceil((SLOWER_AWAY if problem.is_away else SLOWER) * plain.rounds)
    if plain.status == "CONVERGED" and not verdict.plain_gap > FAR + slack and allowed <= ROUNDS:
        ended = guarded.status in ("CONVERGED", "ROUNDED")
        if not ended or guarded.rounds > allowed:
            faults["slow"] = f"{guarded.rounds} rounds, the row itself {plain.rounds}"
    return verdict


def _values(verdict, pooled):
    """Look at the objectives; return by how much rounding lets two values of F differ."""
    guarded, faults = verdict.guarded, verdict.faults
    values, returned = guarded.values, guarded.returned
    end = guarded.posterior
    if pooled.at_mode:  # what is recorded holds the trace and the entropy of Laplace's approximation
        values = [pooled.value(q) for q in guarded.path]
        returned = pooled.value(end)
    with np.errstate(all="ignore"):
        slack = 20 * pooled.rounding(end) + 1e-10 * (1.0 + abs(returned))
    if pooled.is_sampled:  # slopes may say what values of few points do not
        slack += 1e-3 * (1.0 + abs(returned))
    if not np.isfinite(slack):
        slack = 0.0
    if np.isfinite(values[0]) and not returned <= values[0] + slack:
        faults["above start"] = f"{returned:.6g} > {values[0]:.6g}"
    heard = [value for value, known in zip(values, guarded.heard, strict=True) if known and np.isfinite(value)]
    if not verdict.problem.is_away:  # in one process the last point is known as well
        heard += [value for value in values[-1:] if np.isfinite(value)]
    # Armijo's rule may refuse a point that is lower, by less than 1e-4 of what was promised there
    lowest = min(heard, default=np.inf)
    if not returned <= lowest + slack + 1e-4 * (1.0 + abs(lowest)):
        faults["above best"] = f"{returned:.6g} > {lowest:.6g}"
    tail = values[-STILL_AWAY:]
    is_late = guarded.status == "ROUND_LIMIT" and not verdict.problem.is_away and len(values) > len(tail)
    if is_late and min(tail) >= min(values[: -len(tail)]) - pooled.rounding(end):
        faults["idle"] = f"none of the last {len(tail)} points is lower"
    own = returned if pooled.at_mode else pooled.value(end)
    # a covariance is known from its precision to rounding times the condition number
    unsure = 10 * pooled.dim * EPS * condition(end.factor.colour(np.eye(pooled.dim)))
    if np.isfinite(own) and abs(own - returned) > slack + 1e-6 * (1.0 + abs(own)) + unsure:
        faults["false value"] = f"recorded {returned:.9g}, is {own:.9g}"
    return slack


def condition(root):
    """Condition number of the correlation matrix of a covariance with this root."""
    spread = np.linalg.svd(root / np.linalg.norm(root, axis=1, keepdims=True), compute_uv=False)
    return float((spread[0] / spread[-1]) ** 2)


def _distance(verdict, pooled, slack):
    """Compare with the optimum."""
    guarded, faults = verdict.guarded, verdict.faults
    try:
        optimum = pooled.optimum
    except Unresolved as reason:
        verdict.unknown = f" unknown ({reason})"
        return
    verdict.gap, verdict.away = pooled.distance(guarded.posterior)
    if verdict.plain.posterior is not None:
        verdict.plain_gap, _ = pooled.distance(verdict.plain.posterior)
    slack = slack + pooled.slack(optimum)
    # a message may say beside the status that the bound on the distance is of no use
    if guarded.status == "CONVERGED" and guarded.message.endswith("below tol") and not verdict.gap <= FAR + slack:
        faults["converged far from it"] = ""
    if guarded.status == "ROUNDED" and not verdict.gap <= FAR + slack:
        faults["rounded far from it"] = ""
