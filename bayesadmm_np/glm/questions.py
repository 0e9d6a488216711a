"""What a server may ask the sites of a GLM beside the rounds: a fixed table of questions, each about sums over rows.

An answer is a function of a site's rows and of the question alone. `pack` and `unpack` say what questions and answers
are as plain values and arrays; a model file holds its statistics in the same way.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np

from .._archive import Archive, read_as
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
    """

    kind: Kind
    loss: Loss
    noise_variance: float | None = None
    moves: bool = False

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
        noise_variance=site.noise_variance or 1.0,
        weights=question.weights,
    )


# ----------------------------------------------------------------------------------------------------
# The table
# ----------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of the table: types of question and answer, shapes of their arrays, and who answers.

    In a shape p is the number of columns, c that of outputs, d = c p, k that of targets or classes; other letters
    stand for any number from 1. Names of arrays in a mapping are left out.
    """

    question: type
    answer: type
    asked: Mapping[str, str]
    said: Mapping[str, str]
    respond: Callable[[Respondent, Any], Any]
    may_overflow: bool = False


QUESTIONS: Mapping[str, Entry] = {
    "design": Entry(DesignQuestion, Design, {}, {"root": "m p", "sums": "p", "target": "k"}, _design),
    "least_squares": Entry(LeastSquaresQuestion, Triangle, {}, {"root": "m n", "shift": "s"}, _triangle),
    "rows": Entry(RowsQuestion, RowsRoot, {}, {"root": "m p"}, _rows),
    "separation": Entry(
        separation.Question,
        separation.Answer,
        {"basis": "p r", "theta": "c*r", "direction": "c*r", "step": "c*r"},
        {"gradient": "c*r", "hessian": "c*r c*r"},
        lambda site, question: separation.answer(site.loss, question),  # type: ignore[arg-type]
        may_overflow=True,
    ),
    "derivatives": Entry(
        DerivativesQuestion,
        Derivatives,
        {"theta": "d"},
        {"gradient": "d", "hessian": "d d"},
        lambda site, question: derivatives(site.loss, question.theta),
        may_overflow=True,
    ),
    "sums": Entry(SumsQuestion, Sums, {"theta": "d"}, {"gradient": "d", "hessian": "d d", "errors": "d"}, _sums),
    "statistics": Entry(
        StatisticsQuestion,
        SiteStatistics,
        {"theta": "d", "null": "d", "bread": "d d"},
        {"meats": "d d"},
        _statistics,
    ),
    "firth": Entry(
        FirthQuestion,
        FirthAnswer,
        {"theta": "d", "covariance": "d d"},
        {"gradient": "d", "hessian": "d d", "pull": "d"},
        lambda site, question: firth_answer(site.loss, question),
        may_overflow=True,
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


def unpack_statistics(message: Archive, plain: Mapping[str, Any] | None, dim: int, prefix: str) -> FitStatistics | None:
    """Inverse of `pack_statistics`; the arrays have `prefix` before their names."""
    if plain is None:
        return None
    if set(plain) != {"noise", "weights", "total"}:
        raise message.refusal("statistics", "exactly the fields noise, total, weights", sorted(plain))
    noise, weights, total = (plain[name] for name in ("noise", "weights", "total"))
    said: Any = tuple[Noise, WeightMeaning]
    noise, weights = read_as(said, [noise, weights], f"{message.source}: statistics")
    shapes = QUESTIONS["statistics"].said
    found: SiteStatistics = unpack(SiteStatistics, message, total, shapes, {"d": dim}, prefix=prefix)
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
    message: Archive,
    plain: Mapping[str, Any],
    shapes: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    prefix: str = "",
    may_overflow: bool = False,
) -> Any:
    """Inverse of `pack`: a value whose fields have the types of their annotations, and whose arrays fit together.

    Parameters
    ----------
    kind : type
    message : Archive
        Holds the arrays, under `prefix` and their names.
    plain : dict
        The plain values.
    shapes : dict of str
        See `Entry`.
    sizes : dict of int
        Numbers that letters of the shapes stand for.
    prefix : str, default ''
    may_overflow : bool, default False
        Whether arrays may hold infinities and NaN.

    Raises
    ------
    ArchiveError
        When something is missing, of another type or shape, or not finite.
    """
    known = dict(sizes)
    found: dict[str, Any] = {}
    expected = {name for name, (hint, _) in _fields(kind).items() if hint != "array"}
    if set(plain) != expected:
        raise message.refusal("content", f"exactly the fields {sorted(expected)}", sorted(plain))
    used = set()

    def array(name: str, field: str) -> Array:
        used.add(prefix + name)
        return _array(message, prefix + name, shapes[field], known, may_overflow)

    for name, (hint, annotation) in _fields(kind).items():
        if hint == "array":
            is_there = prefix + name in message.arrays
            found[name] = array(name, name) if is_there or annotation is np.ndarray else None
        elif hint == "arrays":
            keys = read_as(tuple[str, ...], plain[name], f"{message.source}: {name}")
            found[name] = {key: array(f"{name}/{key}", name) for key in keys}
        else:
            found[name] = read_as(annotation, plain[name], f"{message.source}: {name}")
    extra = {name for name in message.arrays if name.startswith(prefix)} - used if prefix else set()
    if extra:
        raise message.refusal("arrays", f"those of {sorted(used)}", sorted(extra))
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


def _array(message: Archive, name: str, shape: str, known: dict[str, int], may_overflow: bool) -> Array:
    """Return an array of the shape that the tokens say; letters that were unknown are known after it."""
    values = message.arrays.get(name)
    tokens = shape.split()
    if values is None or values.dtype != np.float64 or values.ndim != len(tokens):
        got = "nothing" if values is None else f"{values.dtype} of shape {values.shape}"
        raise message.refusal(name, f"an array of shape ({shape.replace(' ', ', ')})", got)
    for token, size in zip(tokens, values.shape, strict=True):
        letters = token.split("*")
        if len(letters) == 1 and size:
            known.setdefault(token, size)
    expected = tuple(int(np.prod([known.get(letter, -1) for letter in token.split("*")])) for token in tokens)
    if not may_overflow:
        return message.array(name, expected)
    if values.shape != expected:
        raise message.refusal(name, f"an array of shape {expected}", values.shape)
    return np.asarray(values)
