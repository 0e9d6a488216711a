"""Questions of a server to the sites of a GLM beside the rounds: a fixed table, each about sums over rows.

An answer is a function of a site's rows and of the question alone. `pack` and `unpack` convert questions and
answers to plain values and arrays; a model file stores its statistics in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .._archive import refusal
from .._fields import NOT_NEGATIVE, POSITIVE, Condition, Field, check, hints_of, read_fields, read_plain, typed
from .._numerics import rounding_unit, up_to_a_power_of_two
from .._validation import Array
from ..families import FullGaussian
from ..losses.base import GaussianExpected, Loss, effective_rows
from ..losses.expectations import Delta
from ..losses.linear_model import LinearModelLoss, row_factor
from ..losses.ordinal import ProportionalOdds
from ..losses.random_intercept import Profile
from ..losses.stacked_qr import SiteFactor
from ..losses.stacked_qr import site_factor as triangle
from . import separation
from .firth import FirthAnswer, FirthQuestion, firth_answer
from .inference import FitStatistics, Noise
from .kinds import Kind
from .mixed import ProfileQuestion, profile_of
from .own_fit import OwnFit, own_fit
from .refit import Derivatives, DerivativesQuestion, DesignQuestion, derivatives
from .site_statistics import SiteStatistics, WeightMeaning, leverages, site_statistics, undivided

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Respondent:
    """A site that answers, with the given noise variance, which divides the loss, or None.

    `moves` is true if a run chooses the origin of the site's columns; `clusters` has the cluster of each
    row, by default one of the site.
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
        """Answer a question of the table; a ValueError when the rows have no such sums, or these overflow."""
        entry = QUESTIONS[name]
        found = entry.respond(self, question)
        if not entry.may_overflow and not all(np.isfinite(array).all() for array in pack(found)[1].values()):
            raise ValueError("the sums over its rows overflow there")
        return found

    @cached_property
    def held(self) -> separation.Held:
        """See `separation.held`."""
        assert isinstance(self.loss, LinearModelLoss)
        return separation.held(self.loss)

    def picks(self, name: str, question: Any) -> Iterator[float]:
        """Yield how many rows a question picks, by a direction or by its own weights; 0 where it picks none."""
        if name == "separation":
            assert isinstance(self.loss, LinearModelLoss)
            yield from separation.rests_on(self.loss, question, self.held)
        if name == "statistics" and {"HC2", "HC3"} & set(question.robust):
            rows = self.loss.rows(question.theta)
            rows = rows._replace(weights=undivided(rows.weights, self.noise_variance or 1.0))
            is_frequency = question.weights == "frequency"
            times = rows.weights if is_frequency else rows.weights**2
            left = np.maximum(1.0 - leverages(rows, question.bread, is_frequency), 1e-12)
            yield effective_rows(times / left**2)

        if name == "profile":  # groups of each size have sums of their own in answers at several ρ
            sizes, counts = np.unique(getattr(self.loss, "sizes", ()), return_counts=True)
            yield from sizes * counts

    def points(self, question: Any) -> Iterator[float]:
        """Yield on how many rows the sums at a point of the site's own choice rest."""
        if isinstance(question, OwnFitQuestion):
            yield _own_fit(self, question)[1]
        if isinstance(question, ApartQuestion) and isinstance(self.loss, ProportionalOdds):
            yield from self.loss.rows_at_cutpoints


@dataclass(frozen=True, eq=False)
class Design:
    """Sums about columns and target: R with RᵀR = Σ w x xᵀ, Σ w x, Σ w y or of each class Σ w, and Σ w.

    `offset` is the weighted mean of the rows' offsets; None without offsets.
    """

    root: Array
    sums: Array
    target: Array
    weight: float
    n_rows: int
    offset: float | None
    noise_variance: float | None
    moves: bool


def _design(site: Respondent, question: DesignQuestion) -> Design:
    rows, weights = site.loss.rows(np.zeros(site.loss.dim)), site.weights
    target: Array = np.asarray(rows.target, dtype=np.float64)
    n_ordered = getattr(site.loss, "n_auxiliary", 0) + 1
    offset: Any = getattr(site.loss, "offset", None)
    if site.kind.has_trials:
        target = np.column_stack([1.0 - target, target])
    elif site.kind.is_classifier:
        n_classes = {"one": 2, "ordered": n_ordered}.get(site.kind.outputs) or (
            site.loss.dim // rows.X.shape[1] + site.kind.has_reference
        )
        target = np.asarray(target[:, None] == np.arange(n_classes), dtype=np.float64)
    return Design(
        root=row_factor(rows.X, weights),
        sums=weights @ rows.X,
        target=np.atleast_1d(weights @ target),
        weight=float(weights.sum()),
        n_rows=int(weights.size),
        offset=None if offset is None else float(weights @ offset / weights.sum()),
        noise_variance=site.noise_variance,
        moves=site.moves,
    )


class LeastSquaresQuestion(NamedTuple):
    """Ask for a site's triangle; `has_intercept` is true if the last column is an intercept without a prior."""

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
        """Return the factor, with its counts."""
        own = (self.n_rows, self.total_weight, self.log_weight)
        return SiteFactor(self.root, self.shift, n_features, n_outputs, has_intercept, *own)


def _triangle(site: Respondent, question: LeastSquaresQuestion) -> Triangle:
    rows = site.loss.rows(np.zeros(site.loss.dim))
    X = rows.X[:, :-1] if question.has_intercept else rows.X
    found = triangle(X, rows.target, site.weights, has_intercept=question.has_intercept)
    own = (found.n_rows, found.total_weight, found.log_weight)
    return Triangle(found.root, found.shift, *own, site.noise_variance, site.moves)


class RowsQuestion(NamedTuple):
    """Question for the columns that the rows of positive weight make up, whatever their weights."""


@dataclass(frozen=True, eq=False)
class RowsRoot:
    """R of the rows of positive weight, shape (m, p), and whether their loss has `walls`."""

    root: Array
    has_walls: bool


def _rows(site: Respondent, question: RowsQuestion) -> RowsRoot:
    known = separation.has_walls(site.loss)
    p = site.loss.rows(np.zeros(site.loss.dim)).X.shape[1]
    root = separation.factors_of([site.loss])[0] if known else np.zeros((1, p))  # type: ignore[list-item]
    return RowsRoot(root, known)


class SumsQuestion(NamedTuple):
    """θ, and a precision for the reach of a likelihood that is no sum over rows."""

    theta: Array
    precision: Array | None = None


class Sums(NamedTuple):
    """ℓ, ∇ℓ and ∇²ℓ at θ with the rounding errors of the last two, and reach; see `losses.base.Margins`."""

    value: float
    gradient: Array
    hessian: Array
    errors: Array
    curvature_error: float
    reach: float | None = None

    def stretched(self, most: float) -> Sums:
        """Return the sums for a precision Λ from those for another, which is at most `most` Λ."""
        if self.reach is None:
            return self
        return self._replace(reach=self.reach * np.sqrt(most), curvature_error=self.curvature_error * most)


def _sums(site: Respondent, question: SumsQuestion) -> Sums:
    precision: Any = 1.0 if question.precision is None else question.precision
    found = site.loss.expect(FullGaussian(question.theta, precision), Delta(2))
    assert isinstance(found, GaussianExpected)
    margins, value = found.margins, found.value_at_mean
    error = up_to_a_power_of_two(margins.curvature_error)  # a number of a single row
    is_asked = question.precision is not None and margins.reach is not None
    reach = up_to_a_power_of_two(float(margins.reach or 0.0)) if is_asked else None
    return Sums(value, found.gradient, found.curvature.dense(), margins.gradient_error, error, reach)


class StatisticsQuestion(NamedTuple):
    """Arguments of `site_statistics`."""

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


class OwnFitQuestion(NamedTuple):
    """Question for own fits: the columns with a coefficient, 0 or 1 each, and what weights mean."""

    free: Array
    weights: WeightMeaning = "frequency"


def _own_fit(site: Respondent, question: OwnFitQuestion) -> tuple[OwnFit, float]:
    noise = site.noise_variance or 1.0
    return own_fit(site.kind, site.loss, question.free, noise_variance=noise, weights=question.weights)


class ApartQuestion(NamedTuple):
    """Question for the slope of a model of ordered classes with coefficients of their own at each cutpoint."""

    theta: Array


class Apart(NamedTuple):
    """Gradient and Hessian of that model at the fit of the smaller one."""

    gradient: Array
    hessian: Array


def _apart(site: Respondent, question: ApartQuestion) -> Apart:
    if not isinstance(site.loss, ProportionalOdds):
        raise ValueError(f"{site.kind.title} has no ordered classes")
    return Apart(*site.loss.apart(question.theta))


# --- The table ------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A row of the table: types of question and answer, their arrays, who answers, and how often a run may ask.

    In a shape p is the number of columns, c that of outputs, d = c p, k that of targets or classes; other letters
    mean any number from 1. Names of arrays in a mapping are left out. An answer's conditions are checked on
    arrival, against the site and the question; see `known_of`.
    """

    question: type
    answer: type
    asked: Mapping[str, Field]
    said: Mapping[str, Field]
    respond: Callable[[Respondent, Any], Any]
    most: tuple[int, int] = (3, 0)

    def limit(self, dim: int) -> int:
        """Return how often an honest run of d coefficients asks at most: some times, and some a coefficient tested."""
        return self.most[0] + self.most[1] * dim

    @property
    def may_overflow(self) -> bool:
        """Return whether sums may be infinite, where a search has gone too far."""
        return any(field.may_overflow for field in self.said.values())


NEXT_TO_NOTHING = 1e-250
LARGEST = 1e150
"""Largest number in an answer: the server squares them and adds them up."""


def _slack(known: Mapping[str, Any]) -> float:
    """Relative rounding of a sum over a site's rows, in whatever order, and of a factorisation of them."""
    return 8.0 * rounding_unit(known["told_rows"])


def _semidefinite(matrix: Array, known: Mapping[str, Any]) -> bool:
    # eigenvalues of a sum of squares are off by roundings of its trace
    trace = np.trace(matrix)
    if known.get("field") == "hessian" and "kind" in known and not known["kind"].is_convex:
        return bool(np.array_equal(matrix, matrix.T))
    return bool(np.array_equal(matrix, matrix.T) and trace >= 0) and bool(
        np.linalg.eigvalsh(matrix / (trace or 1.0))[0] >= -1e-8
    )


def _is_weight(value: Any, known: Mapping[str, Any]) -> bool:
    """Return whether a number is the weight of the site's rows; that of a hello was divided by a noise variance."""
    told = known["told_weight"] * (known.get("noise_variance") or 1.0)
    return bool(abs(value - told) <= _slack(known) * told)


def _squares(root: Array) -> Array:
    return np.einsum("ij,ij->j", root, root)


def _has_ones(root: Array, known: Mapping[str, Any], column: int) -> bool:
    """Return whether a column of a triangular factor is as long as one of ones."""
    return bool(root.shape[1]) and _is_weight(float(_squares(root)[column]), known)


def _are_independent(root: Array, known: Mapping[str, Any]) -> bool:
    rows = root[root.any(axis=1)]
    scale = np.linalg.norm(rows, axis=0)
    rows = rows / np.where(scale > 0.0, scale, 1.0)
    apart = np.abs(np.diag(np.linalg.qr(rows.T, mode="r")))
    return bool((apart > 8.0 * np.finfo(float).eps * np.linalg.norm(rows, axis=1)).all())


MATRIX = Field("d d")
VECTOR = Field("d")
SEMIDEFINITE = Condition("symmetric and positive semidefinite", _semidefinite)
WITH_TARGET = Condition("of the columns and the target", lambda root, known: root.shape[1] == known["p"] - 1)
SYMMETRIC = Condition("symmetric", lambda matrix, known: np.array_equal(matrix, matrix.T))
WEIGHT = Condition("the weight of the rows in its hello, {told_weight}, times its noise variance", _is_weight)
TABLE_WEIGHT = WEIGHT._replace(  # where a noise variance may have divided them, another answer has said it
    holds=lambda value, known: known["kind"].has_noise or _is_weight(value, known)
)
ROWS = Condition(
    "the number of its rows as its hello says it, {told_rows}",
    lambda value, known: value == known["told_rows"],
)
SOME_ROWS = Condition(
    "a number of its rows, from 1 to {told_rows}", lambda value, known: 1 <= value <= known["told_rows"]
)
NOISE = Condition("None or > 0", lambda value, known: value is None or 0 < value < np.inf)
NOT_NEGATIVE_OR_NONE = Condition("None or >= 0", lambda value, known: value is None or value >= 0.0)
LOSS = Condition("at least {least}, as every loss of this kind is", lambda value, known: value >= known["least"])
LOGS = Condition(  # n log(W/n) has its maximum W/e over n
    "the sum of logarithms of weights with this sum",
    lambda value, known: value <= known.get("weight", known.get("total_weight")) / np.e * (1 + _slack(known)),
)
CAUCHY = Condition(
    "sums that columns of these lengths can have",
    lambda sums, known: np.all(sums**2 <= (1 + _slack(known)) * known["weight"] * _squares(known["root"])),
)
ONES = Condition(
    "that of columns of which the last is one of ones",
    lambda root, known: not known["has_ones"] or _has_ones(root, known, -1),
)
ONES_SUM = Condition(
    "the weight of the rows in the column of ones",
    lambda sums, known: not known["has_ones"] or _is_weight(float(sums[-1]), known),
)
TARGET = Condition(
    "sums of a target of this kind",
    lambda target, known: (
        (known["kind"].form == "group" or known["kind"].target.wrong(target) is None)
        and (not known["kind"].is_classifier or ((target >= 0).all() and _is_weight(float(target.sum()), known)))
    ),
)
FIRST_ONES = Condition(
    "a factor with the ones before the columns, whose square is the weight",
    lambda root, known: not known["has_intercept"] or _has_ones(root, known, 0),
)
ABOVE_SATURATED = Condition(
    "at least the saturated loss, {saturated_loss}",
    lambda value, known: (  # the saturated loss of a count of 0 is not quite 0
        known["kind"].likelihood is not None
        or value
        >= known["saturated_loss"] - _slack(known) * (abs(value) + abs(known["saturated_loss"]) + NEXT_TO_NOTHING)
    ),
)
SHORT = Condition("of no more rows than columns", lambda root, known: root.shape[0] <= root.shape[1])
INDEPENDENT = Condition("of rows that are independent or zero", _are_independent)
NO_LOSS = Condition("0 of classes", lambda value, known: not known["kind"].has_labels or value == 0.0)
LARGER = Condition(  # scores are divided by √(1 − h) ≤ 1
    "from HC0 to HC3",
    lambda meat, known: (
        known["field"] == "meats/cluster"
        or (
            _semidefinite(meat - known.get("meats/HC0", 0.0) * (1 - 1e-8), known)
            and ("meats/HC3" not in known or np.trace(meat) <= np.trace(known["meats/HC3"]) * (1 + 1e-8))
        )
    ),
)
CLUSTERS = Condition(
    "from 1 to its number of rows where clusters were asked for, else 0",
    lambda value, known: (
        value <= known["told_rows"] and (value > 0) == ("cluster" in known["robust"] or known["kind"].form == "group")
    ),
)
NO_REACH = Condition(
    "None or >= 0, and None where no precision came",
    lambda reach, known: reach is None or (known["precision"] is not None and reach >= 0.0),
)
NO_PULL = Condition(
    "zero where no covariance came", lambda pull, known: known["covariance"] is not None or not pull.any()
)
NARROW = Condition("of no more columns than the design", lambda basis, known: basis.shape[1] <= basis.shape[0])
YES_OR_NO = Condition("0 or 1", lambda value, known: np.isin(value, (0.0, 1.0)).all())
FREEDOM = Condition(  # a noise variance may have divided the weight of its hello
    "less than its observations, {told_rows} rows of weight {told_weight}, by {d} at most",
    lambda value, known: (
        value >= -known["d"] and (known["kind"].has_noise or value < max(known["told_rows"], known["told_weight"]))
    ),
)

WILD = {"value": Field("", (LOSS,), may_overflow=True)}
"""Sums at a point that a search has chosen can overflow."""
WILD |= {"gradient": Field("d", may_overflow=True), "hessian": Field("d d", (SEMIDEFINITE,), may_overflow=True)}
COORDINATES = Field("c*r")
FREE = Field()
"""A plain value without a condition but its type."""

QUESTIONS: Mapping[str, Entry] = {
    "design": Entry(
        DesignQuestion,
        Design,
        {},
        {
            "noise_variance": Field("", (NOISE,)),
            "weight": Field("", (WEIGHT,)),
            "root": Field("m p", (SHORT, ONES)),
            "sums": Field("p", (CAUCHY, ONES_SUM)),
            "target": Field("k", (TARGET,)),
            "n_rows": Field("", (ROWS,)),
            "offset": FREE,
            "moves": FREE,
        },
        _design,
    ),
    "least_squares": Entry(
        LeastSquaresQuestion,
        Triangle,
        {"has_intercept": FREE},
        {
            "noise_variance": Field("", (NOISE,)),
            "total_weight": Field("", (WEIGHT,)),
            "n_rows": Field("", (SOME_ROWS,)),
            "log_weight": Field("", (LOGS,)),
            "root": Field("m n", (SHORT, FIRST_ONES)),
            "shift": Field("s"),
            "moves": FREE,
        },
        _triangle,
    ),
    "rows": Entry(RowsQuestion, RowsRoot, {}, {"root": Field("m p", (SHORT,)), "has_walls": FREE}, _rows, (2, 3)),
    "separation": Entry(
        separation.Question,
        separation.Answer,
        {"basis": Field("p r", (NARROW,)), "theta": COORDINATES, "direction": COORDINATES, "floor": FREE},
        {
            "value": Field("", (NOT_NEGATIVE,)),
            "gradient": COORDINATES,
            "hessian": Field("c*r c*r", (SEMIDEFINITE,)),
            **dict.fromkeys(separation.YES_OR_NO, Field("", (YES_OR_NO,))),
        },
        lambda site, question: separation.answer(site.loss, question, site.held),  # type: ignore[arg-type]
        (100, 30),
    ),
    "derivatives": Entry(
        DerivativesQuestion,
        Derivatives,
        {"theta": VECTOR},
        WILD,
        lambda site, question: derivatives(site.loss, question.theta),
        (200, 20),
    ),
    "sums": Entry(
        SumsQuestion,
        Sums,
        {"theta": VECTOR, "precision": MATRIX},
        {
            "value": Field("", (LOSS,)),
            "gradient": VECTOR,
            "hessian": Field("d d", (SEMIDEFINITE,)),
            "errors": Field("d", (NOT_NEGATIVE,)),
            "curvature_error": Field("", (NOT_NEGATIVE,)),
            "reach": Field("", (NO_REACH,)),
        },
        _sums,
    ),
    "statistics": Entry(
        StatisticsQuestion,
        SiteStatistics,
        {"theta": VECTOR, "null": VECTOR, "bread": MATRIX, "robust": FREE, "weights": FREE},
        {
            "n_rows": Field("", (ROWS,)),
            "weight": Field("", (POSITIVE, TABLE_WEIGHT)),
            "log_weight": Field("", (LOGS,)),
            "saturated_loss": Field("", (NO_LOSS,)),
            "loss": Field("", (LOSS, ABOVE_SATURATED)),
            "null_loss": Field("", (LOSS, ABOVE_SATURATED)),
            "constant": FREE,
            "pearson": Field("", (NOT_NEGATIVE_OR_NONE,)),
            "meats": Field("d d", (SEMIDEFINITE, LARGER)),
            "n_clusters": Field("", (CLUSTERS,)),
        },
        _statistics,
    ),
    "own_fit": Entry(
        OwnFitQuestion,
        OwnFit,
        {"free": Field("p", (YES_OR_NO,)), "weights": FREE},
        {
            "mean": VECTOR,
            "root": Field("m d", (SHORT, INDEPENDENT)),
            "span": Field("s d", (SHORT, INDEPENDENT)),
            "dispersion": Field("", (NOT_NEGATIVE,)),
            "df_residual": Field("", (FREEDOM,)),
        },
        lambda site, question: _own_fit(site, question)[0],
        (1, 0),
    ),
    "apart": Entry(
        ApartQuestion,
        Apart,
        {"theta": VECTOR},
        {"gradient": Field("w"), "hessian": Field("w w", (SEMIDEFINITE,))},
        _apart,
        (1, 0),
    ),
    "firth": Entry(
        FirthQuestion,
        FirthAnswer,
        {"theta": VECTOR, "covariance": MATRIX},
        {**WILD, "pull": Field("d", (NO_PULL,), may_overflow=True)},
        lambda site, question: firth_answer(site.loss, question),
        (250, 0),
    ),
    "profile": Entry(
        ProfileQuestion,
        Profile,
        {"ratio": Field("", (NOT_NEGATIVE,))},
        {
            "n_rows": Field("", (ROWS,)),
            "n_groups": Field("", (SOME_ROWS,)),
            "root": Field("m q", (SHORT, WITH_TARGET)),
            **dict.fromkeys(("first", "second"), Field("q q", (SYMMETRIC,))),
            "log_det": Field("3"),
        },
        lambda site, question: profile_of(site.loss, question.ratio),
        (200, 0),
    ),
}
"""All that a site answers, by name; every other question is refused."""


def name_of(question: Any) -> str:
    """Return the name of a question."""
    return next(name for name, entry in QUESTIONS.items() if type(question) is entry.question)


# --- As plain values and arrays -------------------------------------------------------------------------------


def pack_statistics(statistics: FitStatistics | None) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    """Return the statistics of a fit as plain values and arrays."""
    if statistics is None:
        return None, {}
    total, meats = pack(statistics.total)
    plain = {name: getattr(statistics, name) for name in ("noise", "weights", "has_null")}
    return {**plain, "total": total}, meats


def unpack_statistics(
    plain: Mapping[str, Any] | None, arrays: Mapping[str, Array], dim: int, prefix: str
) -> FitStatistics | None:
    """Inverse of `pack_statistics`; the arrays have `prefix` before their names."""
    if plain is None:
        return None
    if set(plain) != {"noise", "weights", "total", "has_null"}:
        raise refusal("statistics", "exactly the fields has_null, noise, total, weights", sorted(plain))
    said: Any = tuple[Noise, WeightMeaning, bool]
    given = [plain[name] for name in ("noise", "weights", "has_null")]
    noise, weights, has_null = read_plain(said, given, "statistics")
    shapes = QUESTIONS["statistics"].said
    found = unpack(SiteStatistics, plain["total"], arrays, shapes, {"d": dim}, prefix, is_own=True)
    for name in ("loss", "null_loss", "saturated_loss", "pearson", "weight", "constant", "log_weight"):
        size = abs(getattr(found, name) or 1.0)
        if not np.finfo(float).tiny <= size <= LARGEST:
            raise refusal(f"statistics.total.{name}", f"0, or a number at most {LARGEST:g} in size", size)
    return FitStatistics(found.require_possible(), noise, weights, has_null)


def unpack_own_fit(
    plain: Mapping[str, Any] | None, arrays: Mapping[str, Array], model: Any, prefix: str
) -> OwnFit | None:
    """Return the own fit that the file of a `model` of a dim and a kind holds as plain values and arrays."""
    known = {"d": model.dim, "kind": model.kind, "told_rows": np.inf, "told_weight": np.inf}
    return None if plain is None else unpack(OwnFit, plain, arrays, QUESTIONS["own_fit"].said, known, prefix)


def pack(value: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return plain values and arrays by the names of the fields; arrays in a mapping are named FIELD/KEY."""
    plain: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    for name in hints_of(value.__class__):
        item = getattr(value, name)
        if isinstance(item, np.ndarray):
            arrays[name] = item
        elif isinstance(item, Mapping):
            plain[name] = sorted(item)
            arrays |= {f"{name}/{key}": item[key] for key in plain[name]}
        else:
            plain[name] = item
    return plain, arrays


def unpack(
    kind: Callable[..., T],
    plain: Mapping[str, Any],
    arrays: Mapping[str, Array],
    table: Mapping[str, Field],
    known: Mapping[str, Any],
    prefix: str = "",
    is_own: bool = False,
) -> T:
    """Inverse of `pack`: a value whose fields have the types of their annotations, and whose arrays fit together.

    `arrays` are under `prefix` and their names, `table` has their shapes and conditions, `known` the values of the
    shapes' letters and the arguments of conditions. Conditions are not checked if `is_own`: nobody else can have
    written the value. Raises an ArchiveError when something is missing, of another type or shape, or not finite.
    """
    bare = {name: replace(row, conditions=()) for name, row in table.items()}
    wanted: dict[str, Field] = {}
    values = dict(plain)
    for name, row in bare.items():
        if row.shape and isinstance(plain.get(name), list):  # the keys of a mapping
            wanted |= {f"{name}/{key}": row for key in plain[name]}
            values[name] = {}
        elif row.shape and name not in plain:
            wanted[name] = row
    read = read_fields(wanted, arrays, prefix, known)
    for name, array in read.items():
        field, _, key = name.partition("/")
        values[field] = {**values[field], key: array} if key else array
    found: dict[str, Any] = read_plain(typed(kind, tuple(hints_of(kind))), values, "content", has_arrays=True)
    each = {name: value for name, value in plain.items() if not bare[name].shape} | read
    for name, value in each.items():
        row = bare[name.partition("/")[0]]
        check(name, row, value, {})
        most = np.max(np.abs(value), initial=0.0) if isinstance(value, float | np.ndarray) else 0.0
        if most > LARGEST and not (is_own or row.may_overflow):
            raise refusal(name, f"at most {LARGEST:g} in size, so that its square is a number", float(most))
    for field, row in () if is_own else table.items():
        for name in (name for name in each if name.partition("/")[0] == field):
            check(name, row, each[name], {**known, **each, "field": name})
    return kind(**found)
