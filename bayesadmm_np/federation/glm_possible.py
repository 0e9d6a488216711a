"""Replies that no rows of a site can give: by themselves, or beside what the site sent before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._archive import refusal
from .._numerics import EPS
from .._validation import Array
from ..families.coordinates import Natural, pairing
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..splitting.guarded import Search
from ..splitting.joint import sums_of, tangent_to
from ..splitting.line import Answer, Point
from ..splitting.messages import Reply
from ..splitting.method import client_coefficients
from ..splitting.state import State
from .glm_spec import GLMSpec
from .messages import Served, SiteReply

Sums = tuple[Array, Sequence[Array]]
"""E[∇ℓ_k], and the family's part of E[∇²ℓ_k]."""

NEVER_NEGATIVE = {"Binomial", "LeastSquares", "Logistic", "ReferenceSoftmax", "Softmax"}
"""Losses that are squares, or −log of a probability with no constant dropped: finite where parameters are."""
CONVEX_LOSSES = NEVER_NEGATIVE | {"Poisson"}
CLOSED = {"LeastSquares", "Poisson"}
"""Losses whose expectations have closed forms."""
MOST_NATS = 100.0
ROUNDING = 1e-6
COARSE = 0.1  # relative error of expectations and of their slopes, by a rule of points or a precision that is singular
FINITE = 1e150  # from which on a number has no square
MOST_REFUSED = 8  # points in a row that a search refuses because of one site: a tenth as far each, of 1e-11 in all
APART = 10.0  # times all others together that this site's value misses what its slope says


def require_possible(
    spec: GLMSpec, reply: SiteReply, found: Mapping[str, Any], served: Served, k: int, state: State
) -> None:
    """Raise where no rows have what a site says, as far as that can be seen without its columns."""
    value = reply.report.value
    is_never_negative = spec.loss in NEVER_NEGATIVE
    if is_never_negative and value is not None and value < 0:
        raise refusal("value", f">= 0, as {spec.loss} is", value)
    _require_finite(spec, reply, served)
    if "curvature" in found and spec.loss in CONVEX_LOSSES:
        _require_curvature("curvature", [found["curvature"]])
        for name in ("sums", "site"):
            if name in found and isinstance(spec.prior, LearnedPrecisionGaussian):
                own = spec.prior.factor.repeated_block(found["curvature"], 1)
                pairs = list(zip(own, found[name].parts[1:], strict=True))
                if not all(np.abs(a - b).max() <= ROUNDING * np.abs(b).max(initial=0.0) for a, b in pairs):
                    raise refusal("curvature", f"with the family's part of it in {name}", "another")
    if "site" in found and spec.step.at_mean:
        if spec.loss in CONVEX_LOSSES:
            _require_curvature("site", found["site"].parts[1:])
        if spec.loss == "LeastSquares" and served.ask == "evaluate" and value is not None and is_finite(value):
            _require_residuals(found["site"], value)
    elif is_never_negative and "natural" in found and value is not None and np.isfinite(value):
        require_within_reach(spec, served, k, state.sites[k], found["natural"], value)
    if value is not None and np.isfinite(value) and is_compared(spec):
        require_convex(spec, value, reply, served, k, state)


def is_compared(spec: GLMSpec) -> bool:
    """Return whether values and slopes of a site are convex: those of few points in several dimensions are not."""
    is_known = spec.rule.is_delta or spec.loss in ("Logistic", *CLOSED)
    return spec.loss in CONVEX_LOSSES and isinstance(spec.prior, Gaussian) and is_known and not spec.sums_only


def is_finite(value: float | None) -> bool:
    """Return whether a value, and its square, are finite; a site with privacy tells none."""
    return value is None or abs(value) < FINITE


def _require_finite(spec: GLMSpec, reply: SiteReply, served: Served) -> None:
    """Raise where a site says that a loss overflows which cannot."""
    value, answer = reply.report.value, reply.answer
    tells = is_finite(value) and (served.ask != "sums" or value is None or reply.report.sums is not None)
    if served.ask == "evaluate":
        tells = tells and answer is not None and answer.status.is_usable
    if not tells and spec.loss in NEVER_NEGATIVE and np.abs(getattr(served.q_g, "mean", np.inf)).max() < FINITE:
        raise refusal("value", f"finite, with its slopes, as {spec.loss} is", value)


def _require_curvature(name: str, parts: Sequence[Array]) -> None:
    """Raise where E[∇²ℓ_k] of a convex loss is not positive semidefinite, up to rounding."""
    for part in parts:
        values = np.linalg.eigvalsh(part) if part.ndim == 2 else part
        if values.min(initial=0.0) < -ROUNDING * np.abs(values).max(initial=0.0):
            raise refusal(name, "with a curvature that is positive semidefinite", f"one of {values.min():.3g}")


def _require_residuals(site: Natural, value: float) -> None:
    """Raise where a slope Xᵀr is longer than any with a loss ½‖r‖² and a curvature XᵀX: gᵀH⁺g ≤ ‖r‖²."""
    if len(site.parts) != 2 or site.parts[1].ndim != 2:
        return
    slope, curvature = site.parts
    sizes = np.sqrt(np.maximum(np.diag(curvature), 0.0)) + np.finfo(float).tiny  # columns of length one
    values, vectors = np.linalg.eigh(curvature / sizes / sizes[:, None])
    along = vectors.T @ (slope / sizes)
    squares = float((along**2 / np.maximum(values, ROUNDING)).sum())
    if not squares <= 2.0 * value * (1.0 + 1e-3) + ROUNDING:
        raise refusal("site", f"with a slope that residuals of a loss of {value:.3g} have", f"one of {squares:.3g}")


def require_within_reach(spec: GLMSpec, served: Served, k: int, site: Natural, natural: Natural, value: float) -> None:
    """Raise where λ_k is farther from λ_g than the site's own loss there allows.

    Of Eq. 15 λ_k is the minimum, and a loss of outcomes that are counted is nowhere below zero, so that

        ρ KL(q_k‖q_g) + ⟨η_k, μ_k − μ_g⟩ ≤ E_{q_g}[ℓ_k] − E_{q_k}[ℓ_k] ≤ E_{q_g}[ℓ_k].

    Solvers and rules of integration are not exact, and ten times the loss and `MOST_NATS` a parameter are forgiven.
    """
    row = spec.row.at(served.round)
    is_plain = row.prior_at == "server" and spec.step.sketch is None
    if not is_plain or served.ask != "solve":
        return
    q_g, q_k = served.q_g, spec.prior.with_natural(natural)
    rho = client_coefficients(row, spec.shares[k], len(spec.sites)).rho
    away, held = rho * q_k.kl(q_g), pairing(site, q_k.expectation - q_g.expectation)
    most = 10.0 * value + MOST_NATS * natural.linear.size
    if not away + held <= most + ROUNDING * (abs(away) + abs(held)):
        expected = f"within the reach of a site whose loss at λ_g is {value:.3g}: at most {most:.3g} nats from it"
        raise refusal("natural", expected, f"{away + held:.3g}")


# --- Beside what the site said before -------------------------------------------------------------------------


def require_convex(spec: GLMSpec, value: float, reply: SiteReply, served: Served, k: int, state: State) -> None:
    """Raise where no convex function has the values and slopes that a site told here and at an earlier point.

        ℓ(B) − ℓ(A) − ∇ℓ(A)·(B − A) ≥ 0,    ℓ(A) − ℓ(B) − ∇ℓ(B)·(A − B) ≥ 0

    in the mean under the delta method, and in mean and root of the covariance for expectations.
    """
    own = _own_sums(served.q_g, reply.answer) if served.ask == "evaluate" else None
    if reply.report.sums is not None:
        own = reply.report.sums.gradient, reply.report.sums.curvature.parts
    here = _Told(spec, served.q_g, value, own, spec.weights[k])
    if spec.loss in NEVER_NEGATIVE and here.value < -here.slack:
        raise refusal("value", f">= ½ tr(HΣ) of the curvature H told beside it, as {spec.loss} is", f"{value:.6g}")
    for there in _earlier(spec, k, state):
        for missed, rounding in (there.missed(here), here.missed(there)):
            if missed < -rounding:
                expected = "one that a convex function has, by value and slope at this point and an earlier one"
                raise refusal("value", expected, f"{value:.6g}, {-missed:.3g} beside it")


def blamed(spec: GLMSpec, q_g: Any, replies: Mapping[int, Reply], state: State) -> dict[int, str]:
    """Return the sites because of which alone a search refuses one point after another, ever nearer to the last one.

    What a value misses of a slope falls with the square of a step, and that of a slope or a value that is false does
    not: of eight steps refused in a row it is all. A loss may overflow while the step is long for others as well.
    """
    search = state.memory
    if not (isinstance(search, Search) and search.refused >= MOST_REFUSED and is_compared(spec)):
        return {}
    missed, far = dict.fromkeys(replies, 0.0), frozenset[int]()
    for k, reply in replies.items():
        begin = next((one for one in _earlier(spec, k, state, search.accepted) if one.sums is not None), None)
        if not (reply.status.is_usable and np.isfinite(reply.value) and reply.site.is_finite()):
            # Poisson losses of one site can overflow ten times in a row: in a second direction too is no chance
            is_again = search.is_plain or search.refused >= 3 * MOST_REFUSED
            missed[k], far = (np.inf, far) if is_again else (0.0, far | {k})
        elif begin is not None:
            here = _Told(spec, q_g, reply.value, _own_sums(q_g, reply), spec.weights[k])
            away, rounding = begin.missed(here)
            missed[k] = away if away > rounding else 0.0
            far |= {k} if away > abs(begin.told) + spec.weights[k] else frozenset()
    others = {k: sum(other for j, other in missed.items() if j != k and other < np.inf) for k in missed}
    found = [k for k, one in missed.items() if one > APART * others[k] and far <= {k}]
    said = "value must be what its slopes say at each of eight points, as others are, got "
    return {k: f"{said}{replies[k].value:.6g}" for k in found}


def _own_sums(q: Any, told: Reply | Answer | None) -> Sums | None:
    """Return E[∇ℓ] and the family's part of E[∇²ℓ], by the slope itself where it is told."""
    if told is None or told.site is None:
        return None
    return sums_of(q, told.site) if told.slope is None else (told.slope, told.site.parts[1:])


def _earlier(spec: GLMSpec, k: int, state: State, only: Point | None = None) -> Iterator[_Told]:
    """Yield what a site told at earlier points: those that a guard has accepted, or q_g of the last round."""
    search = state.memory
    points: list[tuple[Point | None, Answer | None]] = [(state.told, None)]
    if isinstance(search, Search):
        kept = (search.accepted, search.last, search.best) if only is None else (only,)
        points = [(one, one.answers[k] if one is not None and one.answers else None) for one in kept]
    elif spec.step.asks(state.round) == "evaluate" and not spec.memory:
        points = [(state.told, Answer(0.0, state.sites[k]))]
    for point, own in points:
        if point is not None and point.values and np.isfinite(point.values[k]):
            q = point.distribution(spec.prior.start())
            yield _Told(spec, q, point.values[k], _own_sums(q, own), spec.weights[k])


def _is_resolved(q: Any) -> bool:
    """Return whether a covariance is known to `ROUNDING`: S_jj Σ_jj of each parameter, 1/(1 − R²), times an ulp."""
    if not q.learns_precision:
        return True
    pairs = zip(q.factor.parts, q.factor.covariance_parts, strict=True)
    each = [(own if own.ndim == 1 else np.diagonal(own)) for pair in pairs for own in pair]
    return all(bool((S * C * EPS <= ROUNDING).all()) for S, C in zip(each[::2], each[1::2], strict=True))


@dataclass(frozen=True)
class _Told:
    """Value, slope and curvature of a site at a distribution."""

    spec: GLMSpec
    q: Any
    told: float
    sums: Sums | None
    weight: float

    @cached_property
    def _spread(self) -> tuple[float, float]:
        """½ tr(HΣ), and the size of its terms."""
        if self.sums is None or not self.q.learns_precision:
            return 0.0, 0.0
        pairs = zip(self.q.factor.covariance_parts, self.sums[1], strict=True)
        size = 0.5 * sum(float(np.abs(one * other).sum()) for one, other in pairs)
        return 0.5 * self.q.factor.trace_solve(self.sums[1]), size

    @property
    def value(self) -> float:
        """E[ℓ]; under the delta method ℓ(m), or where no curvature is known a number above it."""
        is_above = self.spec.rule.is_delta and self.spec.rule.carries_curvature
        return self.told - self._spread[0] * is_above

    @property
    def slack(self) -> float:
        """Rounding of the value, and the error of a rule of points."""
        rounding = ROUNDING * (self._spread[1] + self.weight)
        return (ROUNDING if self.spec.rule.is_delta else COARSE) * abs(self.told) + rounding

    def missed(self, other: _Told) -> tuple[float, float]:
        """Return how far the other's value is above what is said of it here, and the rounding; ∞ where nothing is."""
        if self.sums is None or not (_is_resolved(self.q) and _is_resolved(other.q)):
            return np.inf, 0.0
        slope, parts = self.sums
        change, size, shape = tangent_to(self.q, slope, () if self.spec.rule.is_delta else parts, other.q)
        if parts and self.q.learns_precision:  # g = Hm − (Hm − g)
            size += float(np.abs(self.q.factor.like(parts).multiply(self.q.mean)) @ np.abs(other.q.mean - self.q.mean))
        rounding = ROUNDING * size if self.spec.rule.is_delta else COARSE * size + shape
        return other.value - self.value - change, rounding + self.slack + other.slack
