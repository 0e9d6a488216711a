"""Least squares from triangular factors: each site sends the R of a QR of its rows, once, and the server stacks them.

RᵀR = XᵀX at the condition of X, not its square, and the R of stacked factors is that of the pooled rows (TSQR: Demmel,
Grigori, Hoemmen and Langou, SIAM J. Sci. Comput. 34, 2012). Small factorisations run in NumPy's long double.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._errors import ArgumentError
from .._validation import Array, as_float_array
from .linear_model import read_design, read_offset, read_weights

COLLINEAR = 2.0**-43
"""A column is collinear when rounding the entries of the design at this relative size could make it so: 500 times that
of doubles, because columns are computed from others in a few operations."""

MOST_EXTENDED = 2e7
"""Most rows × columns² for which a factorisation runs in long double: a fraction of a second."""

Extended = NDArray[Any]
WeightKind = Literal["frequency", "analytic"]


@dataclass(frozen=True, eq=False)
class SiteFactor:
    """All that a site sends, `floats` numbers, which do not grow with its rows."""

    # shape (min(n, m), m): R of √w ∘ [1, X − shift, y − offset − shift], upper triangular; without an intercept there
    # are no ones and no shift
    root: Array
    # shape (p + q,): Weighted means of the site's own columns and targets: what is subtracted before the factorisation
    # is no digit lost in it, and the server adds it back exactly
    shift: Array
    n_features: int  # p
    n_outputs: int  # q
    has_intercept: bool
    n_rows: int  # number of rows of positive weight
    total_weight: float  # Σ w_i
    log_weight: float  # Σ log w_i

    @property
    def floats(self) -> int:
        """Numbers sent: the triangle (m(m + 1)/2 where there are m rows), the shift, and three counts."""
        rows, columns = self.root.shape
        return rows * columns - rows * (rows - 1) // 2 + self.has_intercept * self.shift.size + 3


@dataclass(frozen=True, eq=False)
class StackedFit:
    """The least-squares fit of all rows together."""

    coef: Array  # shape (q, p); NaN of a column that is left out
    intercept: Array  # shape (q,); zeros without an intercept
    # shape (p,): a point near the pooled mean, at which `information_root` measures the intercept; zeros without one
    centre: Array
    # shape (r, d): B with σ⁻² BᵀB the information on the coefficients and the intercept at `centre`, b + coefᵀcentre,
    # the penalty included
    information_root: Array
    rss: Array  # shape (q,): Σ_i w_i r_i², without the penalty
    rank: int  # number of coefficients that the rows determine, the intercept included
    parameters: float  # effective number: `rank`, or with a penalty tr[(XᵀX + P)⁻¹XᵀX]
    df: float  # of the residuals: n − parameters
    n: float  # Σ w_i of frequency weights, the number of rows of analytic weights
    # names of columns that are combinations of those before them, where the penalty does not determine coefficients
    collinear: tuple[str, ...]
    # shape (p, k): orthonormal directions n with nᵀcoef held at zero; of columns left out those of their coefficients
    held: Array
    # smallest relative change of the design's entries that makes another column collinear, to first order; digits of
    # the coefficients that rounding of the design takes are −log10 of it
    closeness: float
    floats: int  # numbers that the sites sent together

    @property
    def variance(self) -> Array:
        """The unbiased RSS/df of each output, shape (q,); NaN where no degree of freedom is left."""
        return self.rss / self.df if self.df > 0 else np.full_like(self.rss, np.nan)


def site_factor(
    X: ArrayLike, y: ArrayLike, weights: Any = None, offset: Any = None, *, has_intercept: bool = True
) -> SiteFactor:
    """Reduce a site's rows to the factor that it sends."""
    design = np.empty(np.shape(X)) if has_intercept and np.shape(X)[1:] == (0,) else read_design(X)
    target = as_float_array(y, "y", ndim=(1, 2))
    if target.shape[0] != design.shape[0]:
        raise ArgumentError("y", f"must have {design.shape[0]} rows like X", target.shape[0])
    known = read_offset(offset, target.shape)
    goal = (target if known is None else target - known).reshape(target.shape[0], -1)
    if not np.isfinite(goal).all():
        raise ArgumentError("offset", "must leave y − offset finite", "an overflow")
    w = read_weights(weights, design.shape[0])
    used = w > 0
    w, rows = w[used], np.column_stack([design, goal])[used]
    rows = rows.astype(_precision(rows.shape[0], rows.shape[1] + has_intercept), copy=False)
    shift = np.zeros(rows.shape[1])
    if has_intercept:
        if w.size:
            shift = np.asarray((w / w.max()) @ rows / (w / w.max()).sum(), dtype=np.float64)
        rows = np.column_stack([np.ones(w.size), rows - shift])
    root = _triangle(np.sqrt(w, dtype=rows.dtype)[:, None] * rows)
    return SiteFactor(
        np.asarray(root, dtype=np.float64),
        shift,
        design.shape[1],
        goal.shape[1],
        has_intercept,
        int(w.size),
        float(w.sum()),
        float(np.log(w).sum()),
    )


def solve_stacked(
    factors: Sequence[SiteFactor],
    penalty: float | ArrayLike = 0.0,
    names: Sequence[str] | None = None,
    weight_kind: WeightKind = "frequency",
    shortest: bool = False,
    sizes: ArrayLike = 0.0,
) -> StackedFit:
    """Minimise Σ_i w_i (y_i − offset_i − x_iᵀβ − b)² + βᵀPβ over the rows of all sites, from their factors.

    `penalty` is P, its diagonal or a multiple of I. An analytic weight of two is a row of half the variance, a
    frequency weight the row twice. Columns that depend on those before them are left out, as R's `lm` does, or with
    `shortest` get the solution of least ‖β‖. A penalty takes no part in that choice: no rounding is divided by the
    penalty.
    """
    if weight_kind not in get_args(WeightKind):
        raise ArgumentError("weight_kind", "must be 'frequency' or 'analytic'", repr(weight_kind))
    first = _common(factors)
    p, ones = first.n_features, int(first.has_intercept)
    penalties = _penalty_rows(penalty, p, first.n_outputs)
    labels = [f"x{j}" for j in range(p)] if names is None else list(names)
    total = sum(factor.total_weight for factor in factors)
    origin = np.asarray(sum(factor.total_weight / total * factor.shift for factor in factors), dtype=np.float64)

    whole = _triangle(np.concatenate([_at(origin, factor) for factor in factors]))
    mean = origin + (whole[0, 1:] / whole[0, 0] if ones else 0.0)  # of the columns and then the targets
    body = whole[ones:, ones:]
    own = np.sqrt((body[:, :p] ** 2).sum(axis=0) + total * mean[:p] ** 2)
    kept, reduced, inverse, closeness = _eliminate(body, p, own)
    lost = np.setdiff1d(np.arange(p), kept)
    turn, dependent = None, tuple(labels[j] for j in lost)
    if len(penalties) or (shortest and lost.size):
        rows = np.concatenate([body, penalties])
        if lost.size:
            combination = inverse @ reduced[: len(kept), lost]
            turn, rows, penalties, own = _turned(body, penalties, kept, combination, np.maximum(own, sizes))
        else:
            own = np.sqrt(own**2 + (penalties[:, :p] ** 2).sum(axis=0))
        kept, reduced, inverse, closeness = _eliminate(rows, p, own)
        lost = np.setdiff1d(np.arange(p), kept)

    rank = len(kept)
    slopes = np.zeros((p, first.n_outputs), dtype=body.dtype)
    slopes[kept] = inverse @ reduced[:rank, p:]
    information = np.zeros((rank + ones, p + ones), dtype=body.dtype)
    information[:rank, kept] = reduced[:rank, kept]
    if turn is not None:
        slopes, information[:, :p] = turn @ slopes, information[:, :p] @ turn.T
    residuals = body[:, p:] - body[:, :p] @ slopes
    if ones:
        information[rank, p] = whole[0, 0]
    intercept = mean[p:] - mean[:p] @ slopes if ones else np.zeros(first.n_outputs)
    if turn is None:
        slopes[lost] = np.nan
    parameters = rank + ones - float(((penalties[:, kept] @ inverse) ** 2).sum())
    n = total if weight_kind == "frequency" else float(sum(factor.n_rows for factor in factors))
    return StackedFit(
        coef=_double(slopes.T),
        intercept=_double(intercept),
        centre=_double(mean[:p]),
        information_root=_double(information),
        rss=_double((residuals**2).sum(axis=0)),
        rank=rank + ones,
        parameters=parameters,
        df=n - parameters,
        n=n,
        collinear=dependent if lost.size else (),
        held=np.eye(p)[:, lost] if turn is None else turn[:, lost],
        closeness=closeness,
        floats=sum(factor.floats for factor in factors),
    )


def _common(factors: Sequence[SiteFactor]) -> SiteFactor:
    """Return the first factor, when all are of one model and there is a row."""
    if not any(factor.n_rows for factor in factors):
        raise ArgumentError("factors", "must hold a row of positive weight")
    shapes = {(factor.n_features, factor.n_outputs, factor.has_intercept) for factor in factors}
    if len(shapes) > 1:
        raise ArgumentError("factors", "must have the same columns, outputs and intercept", sorted(shapes))
    return factors[0]


def _penalty_rows(penalty: float | ArrayLike, p: int, n_outputs: int) -> Array:
    """Rows B with BᵀB = P, below those of the data, with targets of zero."""
    array = as_float_array(penalty if p else 0.0, "penalty", ndim=(0, 1, 2))
    if array.ndim and array.shape != (p,) * array.ndim:
        raise ArgumentError("penalty", f"must be a number, or have shape ({p},) or ({p}, {p})", array.shape)
    if array.ndim == 2:
        values, vectors = np.linalg.eigh(array)
        if not np.allclose(array, array.T, rtol=1e-10, atol=0.0) or values[0] < -1e-12 * values[-1]:
            raise ArgumentError("penalty", "must be symmetric and positive semidefinite")
        root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    else:
        if (array < 0).any():
            raise ArgumentError("penalty", "must be >= 0", f"{array.min():g}")
        root = np.diag(np.sqrt(np.broadcast_to(array, (p,))))
    rows = root[root.any(axis=1)]
    return np.column_stack([rows, np.zeros((len(rows), n_outputs))])


def _at(origin: Array, factor: SiteFactor) -> Extended:
    """A site's factor with columns and targets measured from `origin`: no longer triangular."""
    moved = factor.root.astype(np.longdouble)
    if factor.has_intercept:
        moved[:, 1:] += moved[:, :1] * (factor.shift.astype(np.longdouble) - origin)
    return moved


def _precision(n: int, m: int) -> type[np.floating[Any]]:
    """The type in which n rows of m columns are factorised."""
    return np.float64 if n * m * m > MOST_EXTENDED else np.longdouble


def _triangle(rows: Extended) -> Extended:
    """Return the R of a QR by Householder reflections, shape (min(n, m), m)."""
    n, m = rows.shape
    if _precision(n, m) is np.float64:
        return np.asarray(np.linalg.qr(rows.astype(np.float64, copy=False), mode="r"))
    work = np.array(rows)
    for j in range(min(n, m)):
        _reflect(work, j, j)
    return work[:m]


def _reflect(work: Extended, row: int, column: int) -> None:
    """Zero a column below a row, in place."""
    v = work[row:, column].copy()
    length = np.sqrt(v @ v)
    if length == 0.0:
        return
    v[0] += np.copysign(length, v[0])
    rest = work[row:, column:]
    rest -= np.multiply.outer(v * (2.0 / (v @ v)), v @ rest)
    rest[1:, 0] = 0.0


def _eliminate(rows: Extended, p: int, sizes: Extended) -> tuple[list[int], Extended, Extended, float]:
    """Reduce the first p columns in order, and leave out those that depend on the columns before them.

    The part of x_j orthogonal to these, of length t, changes by at most δ (‖x_j‖ + Σ_i |c_i| ‖x_i‖) when entries change
    by a relative δ: collinear where this reaches t at δ = COLLINEAR. `sizes` are the ‖x_j‖ in the user's units.
    Returns the columns kept, the reduced rows, the inverse of their triangle, and the smallest δ of a kept column.
    """
    work = np.array(rows)
    inverse = np.zeros((p, p), dtype=work.dtype)
    kept: list[int] = []
    closeness = 1.0
    for j in range(p):
        i = len(kept)
        combination = inverse[:i, :i] @ work[:i, j]
        reach = sizes[j] + np.abs(combination) @ sizes[kept]
        rest = np.sqrt(work[i:, j] @ work[i:, j])
        if rest <= COLLINEAR * reach:
            continue
        _reflect(work, i, j)
        inverse[:i, i], inverse[i, i] = -combination / work[i, j], 1.0 / work[i, j]
        kept.append(j)
        closeness = min(closeness, float(rest / reach))
    rank = len(kept)
    return kept, work, inverse[:rank, :rank], closeness


def _turned(
    body: Extended, penalties: Extended, kept: list[int], combination: Extended, sizes: Extended
) -> tuple[Array, Extended, Extended, Extended]:
    """Return an orthogonal T, rows and penalties as rows of Tᵀβ, and column sizes, where X_lost = X_kept @ combination.

    On the first columns of T the rows are rounding alone, and set to zero.
    """
    r, k = combination.shape
    p, lost = r + k, np.setdiff1d(np.arange(r + k), kept)
    is_seen = np.abs(combination) * sizes[kept, None] > COLLINEAR * sizes[lost]
    null = np.zeros((p, k), dtype=body.dtype)
    null[kept], null[lost] = np.where(is_seen, -combination, 0.0), np.eye(k)
    turn = np.linalg.qr(_double(null), mode="complete")[0]
    turn[~null.any(axis=1), :k] = 0.0
    known = body[:, kept] @ (turn[kept, k:] - null[kept] @ turn[lost, k:])
    known = np.concatenate([np.zeros((len(body), k)), known, body[:, p:]], axis=1)
    # a small penalty is not mixed with the rows: those of the first columns are triangular, and come first
    prior = _triangle(np.concatenate([penalties[:, :p] @ turn, penalties[:, p:]], axis=1))
    rows = np.concatenate([prior[:k], known, prior[k:]])
    lengths = np.sqrt((rows[:, :p] ** 2).sum(axis=0))
    lengths[:k] = np.abs(turn[:, :k]).T @ sizes
    return turn, rows, prior, lengths


def _double(array: Extended) -> Array:
    return np.asarray(array, dtype=np.float64)
