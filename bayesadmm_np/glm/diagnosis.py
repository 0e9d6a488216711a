"""Faults of the data by name: findings, each with a sentence and a name for programs.

Findings before a fit come from the sites' R factors, those after it from the fitted precision, and separations from
the search of `glm/separation.py`. No row is used here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.special import xlogy

from .._archive import read_as
from .._errors import PLAIN, ArgumentError, Words
from .._numerics import EPS
from .._validation import Array
from ..design.rows import INTERCEPT
from ..splitting.status import RoundRecord
from .columns import Relation, find_relations
from .estimable import estimable, flat_directions
from .separation import Ask, Split, Unanswered, basis_within, find_split

LONG = 8
"""Rounds after which it is asked, once, whether a likelihood has a maximum: with one, few fits take as many."""

STEEP = 0.15
"""Loss of classes, relative to that of their shares alone, below which it is asked earlier: separated rows go there.

Where it is smaller yet the sums of a site rest on so few rows that its rules refuse them.
"""

FIFTH = 0.2
"""Share of the information on a coefficient from which on the prior is named."""

HALF = 0.5
"""Standard errors that the prior moves a coefficient by, from which on it is named."""

EXACT = 1e-13
"""Part of a column outside the span of others up to which it is called their sum: rounding of some hundred rows."""

NEARLY = 1e-6
"""Part up to which a column may be what broke a fit, as its square is next to rounding."""

FEWEST = 8
"""Digits below which the condition is named: two more than the 1e-6 of a standard error that estimates are held to."""

PART = 0.3
"""Entry of the weakest direction, a unit vector, from which on its coefficient is named."""

TOUCHED = 1e-8
"""Part of a coefficient's standard error that lies in the directions of separation, above which it has no estimate.

These directions are known to 1e-9, see `separation.STILL`.
"""

MOST_TERMS = 6
"""Terms and names that a sentence still shows."""


def _remedies(words: Words) -> str:
    firth, prior = words.setting("penalty", "firth"), words.setting("prior_precision", 1)
    return f"Firth's penalty ({firth}), a prior ({prior}), or a fit without the column"


@dataclass(frozen=True)
class Finding:
    """A fault of the data; `str` is a sentence, and `code` a name for programs."""

    code: ClassVar[str]

    def worded(self, words: Words) -> str:
        """Return the sentence, with remedies as the reader writes them."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.worded(PLAIN)


@dataclass(frozen=True)
class Dependent(Finding):
    """A column that depends on others and has no coefficient.

    `relation` is the dependence; `rest` the part of the column outside it, 0 if that is rounding.
    """

    column: str
    advice: ClassVar[str] = "it has no coefficient"

    @property
    def relation(self) -> str:
        """The relation of the column to the others, without advice."""
        return f"{self.column} is zero in every row"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        fit = " The fit, and the bound on its distance, are those of the model without it."
        return f"{self.relation}: {self.advice}.{fit if getattr(self, 'rest', 0.0) else ''}"


@dataclass(frozen=True)
class Zero(Dependent):
    """A column of zeros."""

    code: ClassVar[str] = "zero"


@dataclass(frozen=True)
class Constant(Dependent):
    """A column that the intercepts make up; `value` is None where it differs between sites with own intercepts."""

    value: float | None
    rest: float = 0.0
    code: ClassVar[str] = "constant"
    advice: ClassVar[str] = "the intercept already has this effect, so that the column has no coefficient"

    @property
    def relation(self) -> str:
        """The constant."""
        where = "within every site" if self.value is None else f"{self.value:.6g} in every row"
        return f"{self.column} is constant, {where}{_up_to(self.rest)}"


@dataclass(frozen=True)
class Collinear(Dependent):
    """A column that is a sum of others: column = Σ coefficient · other, none of which can be spared."""

    terms: tuple[tuple[str, float], ...]
    rest: float = 0.0
    code: ClassVar[str] = "collinear"
    advice: ClassVar[str] = "leave one of these columns out"

    @property
    def relation(self) -> str:
        """The sum."""
        return f"{self.column} = {_sum(self.terms)} in every row{_up_to(self.rest)}"


@dataclass(frozen=True)
class Separation(Finding):
    """A likelihood without a maximum, proven: along `direction` no row's loss grows, and some fall for ever.

    The coefficients `names` have no finite estimate; `columns` are theirs, or, where every row's loss falls, the
    fewest found that separate alone.
    """

    columns: tuple[str, ...]
    direction: tuple[tuple[str, float], ...]
    names: tuple[str, ...]
    is_complete: bool
    code: ClassVar[str] = "separation"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        how = "complete" if self.is_complete else "quasi-complete"
        by = enumerated(self.columns) if self.columns else "the intercept alone, as y has one value"
        along = f"along {_sum(self.direction)} " if len(self.direction) <= MOST_TERMS else ""
        verb = "have" if len(self.names) > 1 else "has"
        have = "No coefficient has a" if self.is_complete else f"{enumerated(self.names)} {verb} no"
        return (
            f"Separation ({how}) by {by}: {along}the likelihood rises for ever and has no maximum. {have} finite "
            f"estimate; take {_remedies(words)}."
        )


@dataclass(frozen=True)
class Undecided(Finding):
    """A likelihood for which the existence of a maximum is unknown: rounding hides it, or no search was possible."""

    names: tuple[str, ...]
    reason: str = ""
    code: ClassVar[str] = "undecided"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        if self.reason:
            return (
                "The data may be separated, and the search for separation, or for the limit of the likelihood, had no "
                f"end ({self.reason}): no estimate is to be trusted; take {_remedies(words)}."
            )
        return (
            "The data are so nearly separated, or columns so nearly collinear, that double precision cannot "
            f"show whether the likelihood has a maximum: trust no estimate; use {_remedies(words)}."
        )


@dataclass(frozen=True)
class Endless(Undecided):
    """A likelihood of a site's rows together in which the search for a maximum had no end, for a reason in words."""

    code: ClassVar[str] = "endless"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        return f"The likelihood has no maximum that was found ({self.reason}): there is no estimate."


@dataclass(frozen=True)
class PriorShare(Finding):
    """Coefficients on which the prior holds more than a fifth of the information: names, and its shares."""

    shares: tuple[tuple[str, float], ...]
    code: ClassVar[str] = "prior"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        listed = enumerated([f"{name} ({share:.0%})" for name, share in self.shares])
        return f"Much of the information on {listed} comes from the prior, not from the data."


@dataclass(frozen=True)
class PriorPull(Finding):
    """Coefficients that the prior moves by more than half a standard error: names, and standard errors."""

    pulls: tuple[tuple[str, float], ...]
    code: ClassVar[str] = "pull"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        listed = enumerated([f"{name} ({pull:+.1f})" for name, pull in self.pulls])
        return f"The prior moved estimates by more than half a standard error: {listed}."


@dataclass(frozen=True)
class Digits(Finding):
    """An information matrix of large `condition` (unit diagonal), which leaves at most `digits` digits of `of`.

    `names` are the coefficients of the direction of least information.
    """

    digits: int
    condition: float
    names: tuple[str, ...]
    of: Literal["coefficients", "standard errors"] = "coefficients"
    code: ClassVar[str] = "digits"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        left = "no digit" if self.digits < 1 else f"at most {self.digits} digit{'s' if self.digits > 1 else ''}"
        return (
            f"The information is nearly singular (condition {self.condition:.0e}, unit diagonal), mostly in "
            f"{enumerated(self.names)}: {left} of the {self.of} can be right."
        )


@dataclass(frozen=True)
class SameRows(Finding):
    """Sites whose sums are equal to the last bit, as those of one file under two names are."""

    sites: tuple[str, ...]
    code: ClassVar[str] = "same rows"

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        return (
            f"The sums of the sites {enumerated(self.sites)} are equal to the last bit: are these the same rows twice?"
        )


KINDS: dict[str, type[Finding]] = {
    kind.code: kind
    for kind in (Zero, Constant, Collinear, Separation, Undecided, Endless, PriorShare, PriorPull, Digits, SameRows)
}


def as_dict(finding: Finding, words: Words = PLAIN) -> dict[str, Any]:
    """Return a finding for JSON: code, sentence in the words of a reader, and fields."""
    return {"code": finding.code, "sentence": finding.worded(words), **asdict(finding)}


def read_finding(fields: Mapping[str, Any]) -> Finding:
    """Return the finding that `as_dict` wrote, and JSON carried; a ValueError when it is none."""
    given = {key: value for key, value in fields.items() if key not in ("code", "sentence")}
    if fields.get("code") not in KINDS:
        raise ArgumentError("finding", f"must have a code among {', '.join(KINDS)}", repr(fields.get("code")))
    return read_as(KINDS[fields["code"]], given, "finding")


def without_estimate(findings: Sequence[Finding]) -> frozenset[str]:
    """Return the names of the coefficients that have no finite estimate."""
    return frozenset(name for f in findings if isinstance(f, Separation | Undecided) for name in f.names)


# --- Before a fit ---------------------------------------------------------------------------------------------


def search_dependence(
    factors: Sequence[Array], columns: Sequence[str], intercepts: Sequence[int] = (), within: float | None = None
) -> tuple[tuple[Dependent, ...], Array]:
    """Name columns of zeros, constant columns, and columns that others add up to, from the sites' R factors (m, p).

    `intercepts` are places of columns that are intercepts; `within` is that of `find_relations`. Return a finding for
    each column that earlier columns or the intercepts make superfluous, and its direction. The direction (p, k) changes
    no row's predictor; it is 1 at the finding's column and 0 at those of the others.
    """
    for factor in factors:
        if factor.ndim != 2 or factor.shape[1] != len(columns) or not np.isfinite(factor).all():
            raise ArgumentError("factors", f"must be finite, with {len(columns)} columns", f"shape {factor.shape}")
    first = list(intercepts)
    order = first + [j for j in range(len(columns)) if j not in first]
    relations = find_relations([factor[:, order] for factor in factors], within)
    findings = tuple(_finding_of(relation, [columns[j] for j in order], len(first)) for relation in relations)
    flat = np.zeros((len(columns), len(relations)))
    flat[order] = flat_directions(relations, len(columns))
    return findings, flat


def _finding_of(relation: Relation, names: Sequence[str], n_intercepts: int) -> Dependent:
    """Word a relation; the first columns are the intercepts."""
    column, terms = names[relation.column], relation.terms
    rest = relation.rest if relation.rest > EXACT else 0.0
    if not terms:
        return Zero(column)
    if relation.column >= n_intercepts and all(j < n_intercepts for j, _ in terms):
        return Constant(column, terms[0][1] if n_intercepts == 1 else None, rest)
    return Collinear(column, tuple((names[j], value) for j, value in terms), rest)


# --- After it -------------------------------------------------------------------------------------------------


SOME = 10
"""Number of rows below which two sites may have equal sums by chance, if columns have few values."""


def find_same_rows(sums: Mapping[Any, tuple[int, Array]]) -> tuple[Finding, ...]:
    """Name sites of as many rows, at least `SOME`, with equal sums: number of rows and any sums over them by site."""
    alike: dict[Any, list[str]] = {}
    for site, (n_rows, values) in sums.items():
        if n_rows >= SOME and values.any():
            alike.setdefault((n_rows, values.tobytes()), []).append(str(site))
    return tuple(SameRows(tuple(names)) for names in alike.values() if len(names) > 1)


def diagnose_after(
    precision: Array,
    names: Sequence[str],
    prior_share: Array | None = None,
    root: Array | None = None,
    of: Literal["coefficients", "standard errors"] = "coefficients",
    prior_pull: Array | None = None,
) -> tuple[Finding, ...]:
    """Name coefficients that the prior determines or shifts, and the number of correct digits.

    `precision`, shape (d, d), is the pooled information, or BᵀB for a `root` B. `prior_share` is the prior's share of
    it on each coefficient, `prior_pull` the way that the prior moved each, in standard errors, NaN for unknown.
    """
    shares = np.zeros(len(names)) if prior_share is None else prior_share
    much = tuple((name, float(share)) for name, share in zip(names, shares, strict=True) if share > FIFTH)
    held: tuple[Finding, ...] = (PriorShare(much),) if much else ()
    pulls = np.zeros(len(names)) if prior_pull is None else prior_pull
    far = tuple((name, float(pull)) for name, pull in zip(names, pulls, strict=True) if abs(pull) > HALF)
    held += (PriorPull(far),) if far else ()
    weakest, condition = weakest_direction(precision, root)
    lost = np.sqrt(condition) if root is not None else condition
    digits = int(-np.log10(EPS * lost))
    if digits >= FEWEST:
        return held
    named = tuple(names[int(j)] for j in weakest)
    return *held, Digits(digits, condition, named, of)


def weakest_direction(precision: Array, root: Array | None = None) -> tuple[NDArray[np.intp], float]:
    """Return the coefficients of the direction of least information, and the condition, at a unit diagonal."""
    scale = np.sqrt(np.maximum(np.diagonal(precision), np.finfo(float).tiny))
    if root is None:
        values, vectors = np.linalg.eigh(precision / scale / scale[:, None])
        least, weakest = max(values[0], EPS * values[-1]), np.abs(vectors[:, 0])
        condition = float(values[-1] / least)
    else:
        _, sizes, rows = np.linalg.svd(root / scale)
        weakest, condition = np.abs(rows[-1]), float((sizes[0] / max(sizes[-1], EPS * sizes[0])) ** 2)
    return np.flatnonzero(weakest >= PART * weakest.max()), condition


def is_suspect(record: RoundRecord, shares: Array | None) -> bool:
    """Return whether it is time to search for a separation; `shares` are the weights of classes, None of numbers."""
    if record.round == LONG or shares is None:
        return record.round == LONG
    return bool(record.objective < STEEP * float(-xlogy(shares, shares / shares.sum()).sum()))


class Searched(NamedTuple):
    """The end of a search for separation, and the directions of θ that have no finite estimate, shape (C p, k).

    Of a separation the first direction is one along which every row that separates moves; with its k `pivots` given,
    the rows determine all other coefficients.
    """

    finding: Separation | Undecided | None
    receding: Array
    pivots: tuple[int, ...] = ()


def search_separation(
    ask: Ask,
    factors: Sequence[Array],
    columns: Sequence[str],
    *,
    outputs: Sequence[str] = ("",),
    intercepts: Sequence[int] = (),
    penalised: Sequence[int] = (),
    change: Array | None = None,
) -> Searched:
    """Prove, without a fit, that a likelihood has a maximum, or that it has none and why.

    `ask` puts a `separation.Question` to the sites, and `factors` are their R factors. `outputs` names a row's
    predictors, `intercepts` are places of columns that are never named as the cause, `penalised` those of columns with
    a proper prior. With `change` = A coefficients are named in the reader's units, Aθ + b. There is no finding if
    a maximum is proven.
    """
    dim = len(outputs) * len(columns)
    nothing = np.zeros((dim, 0))
    free = [j for j in range(len(columns)) if j not in penalised]
    found = find_split(ask, basis_within(factors, free), len(outputs))
    if found == "finite":
        return Searched(None, nothing)
    names = coefficient_names(columns, outputs)
    if not isinstance(found, Split):
        places = [c * len(columns) + j for c in range(len(outputs)) for j in free]
        return Searched(Undecided(tuple(names[place] for place in places)), np.eye(dim)[:, places])
    along, receding = found, _first_is(found.direction, found.span)
    receding[np.setdiff1d(np.arange(dim), _touched(found.span, found.whole, None))] = 0.0
    lost = np.flatnonzero(~estimable(np.eye(dim) if change is None else change, receding))
    by = sorted({int(j) % len(columns) for j in lost} - set(intercepts))
    if found.is_complete:
        always = [j for j in free if j in intercepts]
        size = np.abs(found.direction.reshape(len(outputs), -1)).max(axis=0) * np.linalg.norm(
            np.vstack(factors), axis=0
        )
        for few in ([], sorted(by, key=lambda j: -size[j])[:1]):
            try:
                alone = find_split(ask, basis_within(factors, sorted([*always, *few])), len(outputs))
            except Unanswered:  # all columns together are known to separate
                break
            if isinstance(alone, Split):
                by, along = few, alone
                break
    way, sparse = _moved(along.direction, change), _touched(along.direction[:, None], along.whole, change)
    largest = np.abs(way[sparse]).max()
    finding = Separation(
        tuple(columns[j] for j in by),
        tuple((names[j], float(way[j] / largest)) for j in sparse),
        tuple(names[j] for j in lost),
        found.is_complete,
    )
    return Searched(finding, receding, _pivots(receding, found.whole))


def _pivots(directions: Array, whole: Array) -> tuple[int, ...]:
    """Return k coordinates in which the directions, shape (d, k), differ most, in units of standard errors."""
    units = np.linalg.norm(whole, axis=1)
    order = qr((directions / np.where(units > 0, units, 1.0)[:, None]).T, mode="r", pivoting=True)[1]
    return tuple(sorted(int(j) for j in order[: directions.shape[1]]))


def _first_is(direction: Array, span: Array) -> Array:
    """Return a basis of a span, shape (d, k), whose first column is a direction in it."""
    inside, *_ = np.linalg.lstsq(span, direction, rcond=None)
    rotation, _ = np.linalg.qr(np.column_stack([inside, np.eye(span.shape[1])]))
    return np.asarray(span @ rotation * np.where(np.arange(span.shape[1]) == 0, np.sign(rotation[:, 0] @ inside), 1.0))


def coefficient_names(columns: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
    """Return the names of coefficients, by output, then column."""
    return tuple(f"{output}: {name}" if output else name for output in outputs for name in columns)


def _moved(vector: Array, change: Array | None) -> Array:
    return vector if change is None else np.asarray(change @ vector)


def _touched(span: Array, whole: Array, change: Array | None) -> list[int]:
    """Return the coefficients that the directions of a span move."""
    inside, outside = (np.linalg.norm(_moved(vectors, change), axis=1) for vectors in (span, whole))
    return [int(j) for j in np.flatnonzero(inside > TOUCHED * outside)]


# --- Words ----------------------------------------------------------------------------------------------------


def enumerated(names: Sequence[str]) -> str:
    """Return names as a sentence has them; of many the first."""
    if len(names) > MOST_TERMS:
        names = [*names[: MOST_TERMS - 1], f"{len(names) - MOST_TERMS + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _up_to(rest: float) -> str:
    return f", up to {rest:.0e} of its length" if rest else ""


def _sum(terms: Sequence[tuple[str, float]]) -> str:
    """Write Σ coefficient · name; the intercept is a number alone, and a name of several words has brackets."""
    text = ""
    for name, value in terms:
        size, name = f"{abs(value):.6g}", f"[{name}]" if " " in name else name
        word = size if name == INTERCEPT else name if size == "1" else f"{size}·{name}"
        sign = " − " if value < 0 else " + "
        text += sign + word
    return text.removeprefix(" + ").replace(" − ", "−", 1) if text.startswith(" − ") else text.removeprefix(" + ")
