"""What a server may ask the sites of a GLM beside the rounds: a fixed table of questions, each about sums over rows.

An answer is a function of a site's rows and of the question alone. `pack` and `unpack` say what questions and answers
are as plain values and arrays; a model file holds its statistics in the same way.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from .._archive import refusal
from .._fields import Field, read_fields, read_plain
from .._validation import Array
from ..families import FullGaussian
from ..losses.base import GaussianExpected, Loss
from ..losses.expectations import Delta
from ..losses.stacked_qr import SiteFactor
from ..losses.stacked_qr import site_factor as triangle
from . import separation
from .columns import site_factor
from .firth import FirthAnswer, FirthQuestion, firth_answer
from .inference import FitStatistics, Noise
from .kinds import Kind
from .refit import Derivatives, derivatives
from .site_statistics import SiteStatistics, WeightMeaning, site_statistics, undivided

__all__ = [
    "QUESTIONS",
    "DerivativesQuestion",
    "Design",
    "DesignQuestion",
    "LeastSquaresQuestion",
    "Respondent",
    "RowsQuestion",
    "RowsRoot",
    "StatisticsQuestion",
    "Sums",
    "SumsQuestion",
    "Triangle",
    "name_of",
    "pack",
    "pack_statistics",
    "unpack",
    "unpack_statistics",
]


@dataclass(frozen=True, eq=False)
class Respondent:
    """What a site answers from.

    Attributes
    ----------
    kind : Kind
    loss : Loss
    noise_variance : float or None
        The one that the site was told, which divides the loss; None where there is none, or it is to be estimated.
    moves : bool
        Whether the site's columns are measured from wherever a run says.
    clusters : sequence or None
        Cluster of each row; the site is one by default.
    """

    kind: Kind
    loss: Loss
    noise_variance: float | None = None
    moves: bool = False
    clusters: Sequence[Hashable] | None = None

    @property
    def weights(self) -> Array:
        """Weights of the rows, without the noise variance."""
        return undivided(self.loss.rows(np.zeros(self.loss.dim)).weights, self.noise_variance or 1.0)

    def answer(self, name: str, question: Any) -> Any:
        """Answer a question of the table.

        Raises
        ------
        ValueError
            When the rows have no such sums, or these overflow.
        """
        entry = QUESTIONS[name]
        found = entry.respond(self, question)
        if not entry.may_overflow and not all(np.isfinite(array).all() for array in pack(found)[1].values()):
            raise ValueError("the sums over its rows overflow there")
        return found


class DesignQuestion(NamedTuple):
    """What the columns and the target have in common over all rows."""


@dataclass(frozen=True, eq=False)
class Design:
    """Sums about columns and target.

    Attributes
    ----------
    root : ndarray, shape (m, p)
        R with RᵀR = Σ_i w_i x_i x_iᵀ.
    sums : ndarray, shape (p,)
        Σ_i w_i x_i.
    target : ndarray, shape (c,)
        Σ_i w_i y_i, or of each class Σ_i w_i.
    weight : float
        Σ_i w_i.
    has_offset : bool
    noise_variance : float or None
    moves : bool
        See `Respondent`.
    """

    root: Array
    sums: Array
    target: Array
    weight: float
    has_offset: bool
    noise_variance: float | None
    moves: bool


def _design(site: Respondent, question: DesignQuestion) -> Design:
    rows, weights = site.loss.rows(np.zeros(site.loss.dim)), site.weights
    target: Array = np.asarray(rows.target, dtype=np.float64)
    if site.kind.is_classifier:
        n_classes = 2 if site.kind.outputs == "one" else site.loss.dim // rows.X.shape[1] + site.kind.has_reference
        target = np.asarray(target[:, None] == np.arange(n_classes), dtype=np.float64)
    return Design(
        root=site_factor(rows.X, weights),
        sums=weights @ rows.X,
        target=np.atleast_1d(weights @ target),
        weight=float(weights.sum()),
        has_offset=getattr(site.loss, "offset", None) is not None,
        noise_variance=site.noise_variance,
        moves=site.moves,
    )


class LeastSquaresQuestion(NamedTuple):
    """Whether the last column is an intercept that no prior holds."""

    has_intercept: bool


@dataclass(frozen=True, eq=False)
class Triangle:
    """A site's share of a least-squares fit: `losses.stacked_qr.SiteFactor`."""

    root: Array
    shift: Array
    n_rows: int
    total_weight: float
    log_weight: float
    noise_variance: float | None
    moves: bool

    def factor(self, n_features: int, n_outputs: int, has_intercept: bool) -> SiteFactor:
        """Return the factor, whose counts the server knows."""
        own = (self.n_rows, self.total_weight, self.log_weight)
        return SiteFactor(self.root, self.shift, n_features, n_outputs, has_intercept, *own)


def _triangle(site: Respondent, question: LeastSquaresQuestion) -> Triangle:
    rows = site.loss.rows(np.zeros(site.loss.dim))
    X = rows.X[:, :-1] if question.has_intercept else rows.X
    found = triangle(X, rows.target, site.weights, has_intercept=question.has_intercept)
    own = (found.n_rows, found.total_weight, found.log_weight)
    return Triangle(found.root, found.shift, *own, site.noise_variance, site.moves)


class RowsQuestion(NamedTuple):
    """Which columns the rows that count make up, whatever their weights."""


@dataclass(frozen=True, eq=False)
class RowsRoot:
    """R of the rows of positive weight, shape (m, p), and whether their loss tells how it grows."""

    root: Array
    has_walls: bool


def _rows(site: Respondent, question: RowsQuestion) -> RowsRoot:
    known = separation.has_walls(site.loss)
    p = site.loss.rows(np.zeros(site.loss.dim)).X.shape[1]
    root = separation.factors_of([site.loss])[0] if known else np.zeros((1, p))  # type: ignore[list-item]
    return RowsRoot(root, known)


class DerivativesQuestion(NamedTuple):
    """θ."""

    theta: Array


class SumsQuestion(NamedTuple):
    """θ."""

    theta: Array


class Sums(NamedTuple):
    """ℓ, ∇ℓ and ∇²ℓ at θ with the rounding errors of the last two; see `losses.base.Margins`."""

    value: float
    gradient: Array
    hessian: Array
    errors: Array
    curvature_error: float


def _sums(site: Respondent, question: SumsQuestion) -> Sums:
    found = site.loss.expect(FullGaussian(question.theta, 1.0), Delta(2))
    assert isinstance(found, GaussianExpected)
    margins = found.margins
    value = found.value_at_mean
    return Sums(value, found.gradient, found.curvature.dense(), margins.gradient_error, margins.curvature_error)


class StatisticsQuestion(NamedTuple):
    """What `site_statistics` takes."""

    theta: Array
    null: Array
    bread: Array | None = None
    robust: tuple[str, ...] = ()
    weights: WeightMeaning = "frequency"


def _statistics(site: Respondent, question: StatisticsQuestion) -> SiteStatistics:
    return site_statistics(
        site.kind,
        site.loss,
        question.theta,
        question.null,
        robust=question.robust,
        bread=question.bread,
        clusters=site.clusters or [0] * site.loss.n_rows,
        noise_variance=site.noise_variance or 1.0,
        weights=question.weights,
    )


# ----------------------------------------------------------------------------------------------------
# The table
# ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of the table: types of question and answer, their arrays, and who answers.

    In a shape p is the number of columns, c that of outputs, d = c p, k that of targets or classes; other letters
    stand for any number from 1. Names of arrays in a mapping are left out.
    """

    question: type
    answer: type
    asked: Mapping[str, Field]
    said: Mapping[str, Field]
    respond: Callable[[Respondent, Any], Any]

    @property
    def may_overflow(self) -> bool:
        """Whether sums may be infinite, where a search has gone too far."""
        return any(field.may_overflow for field in self.said.values())


VECTOR, MATRIX = Field("d"), Field("d d")
WILD_VECTOR, WILD_MATRIX = Field("d", may_overflow=True), Field("d d", may_overflow=True)
COORDINATES = Field("c*r")

QUESTIONS: Mapping[str, Entry] = {
    "design": Entry(
        DesignQuestion, Design, {}, {"root": Field("m p"), "sums": Field("p"), "target": Field("k")}, _design
    ),
    "least_squares": Entry(LeastSquaresQuestion, Triangle, {}, {"root": Field("m n"), "shift": Field("s")}, _triangle),
    "rows": Entry(RowsQuestion, RowsRoot, {}, {"root": Field("m p")}, _rows),
    "separation": Entry(
        separation.Question,
        separation.Answer,
        {"basis": Field("p r"), **dict.fromkeys(("theta", "direction", "step"), COORDINATES)},
        {"gradient": Field("c*r", may_overflow=True), "hessian": Field("c*r c*r", may_overflow=True)},
        lambda site, question: separation.answer(site.loss, question),  # type: ignore[arg-type]
    ),
    "derivatives": Entry(
        DerivativesQuestion,
        Derivatives,
        {"theta": VECTOR},
        {"gradient": WILD_VECTOR, "hessian": WILD_MATRIX},
        lambda site, question: derivatives(site.loss, question.theta),
    ),
    "sums": Entry(
        SumsQuestion, Sums, {"theta": VECTOR}, {"gradient": VECTOR, "hessian": MATRIX, "errors": VECTOR}, _sums
    ),
    "statistics": Entry(
        StatisticsQuestion,
        SiteStatistics,
        {"theta": VECTOR, "null": VECTOR, "bread": MATRIX},
        {"meats": MATRIX},
        _statistics,
    ),
    "firth": Entry(
        FirthQuestion,
        FirthAnswer,
        {"theta": VECTOR, "covariance": MATRIX},
        {"gradient": WILD_VECTOR, "hessian": WILD_MATRIX, "pull": WILD_VECTOR},
        lambda site, question: firth_answer(site.loss, question),
    ),
}
"""All that a site answers, by name; every other question is refused."""


def name_of(question: Any) -> str:
    """Return the name of a question."""
    return next(name for name, entry in QUESTIONS.items() if type(question) is entry.question)


# ----------------------------------------------------------------------------------------------------
# As plain values and arrays
# ----------------------------------------------------------------------------------------------------


def pack_statistics(statistics: FitStatistics | None) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    """Return the statistics of a fit as plain values and arrays."""
    if statistics is None:
        return None, {}
    total, meats = pack(statistics.total)
    return {"noise": statistics.noise, "weights": statistics.weights, "total": total}, meats


def unpack_statistics(
    plain: Mapping[str, Any] | None, arrays: Mapping[str, Array], dim: int, prefix: str
) -> FitStatistics | None:
    """Inverse of `pack_statistics`; the arrays have `prefix` before their names."""
    if plain is None:
        return None
    if set(plain) != {"noise", "weights", "total"}:
        raise refusal("statistics", "exactly the fields noise, total, weights", sorted(plain))
    noise, weights, total = (plain[name] for name in ("noise", "weights", "total"))
    said: Any = tuple[Noise, WeightMeaning]
    noise, weights = read_plain(said, [noise, weights], "statistics")
    shapes = QUESTIONS["statistics"].said
    found: SiteStatistics = unpack(SiteStatistics, total, arrays, shapes, {"d": dim}, prefix)
    return FitStatistics(found.require_possible(), noise, weights)


def pack(value: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return plain values and arrays by the names of the fields; a mapping of arrays is its keys, and arrays of theirs.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.glm.questions import StatisticsQuestion, pack
    >>> plain, arrays = pack(StatisticsQuestion(np.zeros(2), np.ones(2)))
    >>> plain["robust"], sorted(arrays)
    ((), ['null', 'theta'])
    """
    plain: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    for name, (hint, _) in _fields(type(value)).items():
        item = getattr(value, name)
        if hint == "arrays":
            plain[name] = sorted(item)
            arrays |= {f"{name}/{key}": item[key] for key in plain[name]}
        elif hint == "array":
            arrays |= {} if item is None else {name: item}
        else:
            plain[name] = item
    return plain, arrays


def unpack(
    kind: type,
    plain: Mapping[str, Any],
    arrays: Mapping[str, Array],
    table: Mapping[str, Field],
    known: Mapping[str, Any],
    prefix: str = "",
) -> Any:
    """Inverse of `pack`: a value whose fields have the types of their annotations, and whose arrays fit together.

    Parameters
    ----------
    kind : type
    plain : dict
        The plain values.
    arrays : dict of ndarray
        Under `prefix` and their names; others are left out where there is a prefix.
    table : dict of Field
        Of the arrays; see `Entry`.
    known : dict
        What letters of the shapes stand for.
    prefix : str, default ''

    Raises
    ------
    ArchiveError
        When something is missing, of another type or shape, or not finite.
    """
    expected = {name for name, (hint, _) in _fields(kind).items() if hint != "array"}
    if set(plain) != expected:
        raise refusal("content", f"exactly the fields {sorted(expected)}", sorted(plain))
    found: dict[str, Any] = {}
    wanted: dict[str, Field] = {}
    for name, (hint, annotation) in _fields(kind).items():
        if hint == "plain":
            found[name] = read_plain(annotation, plain[name], name)
        elif hint == "arrays":
            wanted |= {f"{name}/{key}": table[name] for key in read_plain(tuple[str, ...], plain[name], name)}
        elif annotation is np.ndarray or prefix + name in arrays:
            wanted[name] = table[name]
    read = read_fields(wanted, arrays, prefix, known)
    for name, (hint, _) in _fields(kind).items():
        if hint == "arrays":
            found[name] = {key: read[f"{name}/{key}"] for key in plain[name]}
        elif hint == "array":
            found[name] = read.get(name)
    return kind(**found)


def _fields(kind: Any) -> dict[str, tuple[Literal["array", "arrays", "plain"], Any]]:
    """Return the fields in order, and whether each is an array, a mapping of arrays, or a plain value."""
    hints = typing.get_type_hints(kind)
    names = kind._fields if issubclass(kind, tuple) else tuple(item.name for item in fields(kind))
    found: dict[str, tuple[Literal["array", "arrays", "plain"], Any]] = {}
    for name in names:
        hint = hints[name]
        parts = [typing.get_origin(part) or part for part in (hint, *typing.get_args(hint))]
        if parts[0] is np.ndarray:
            found[name] = "array", np.ndarray
        elif np.ndarray in parts:
            found[name] = ("arrays" if parts[0] is Mapping else "array"), hint
        else:
            found[name] = "plain", hint
    return found
