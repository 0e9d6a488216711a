"""Messages about losses of the core: q_g down; λ_k, η_k and sums up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._archive import refusal
from .._fields import Condition, Field
from .._numerics import up_to_a_power_of_two
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural, pack, unpack
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..losses.base import Expected, GaussianExpected, Margins
from ..losses.expectations import Delta, Exact
from ..splitting.messages import Ask, Reply
from ..splitting.sketched import is_sketch
from ..splitting.worker import moved_site
from .glm_spec import GLMSpec
from .messages import ReplyHeader, Report, Served, SiteReply

Sums = Expected | GaussianExpected


@dataclass(frozen=True)
class SolvedHeader:
    """Status of a site's solve."""

    status: str
    iterations: int
    residual: float
    edge: float
    well_posed: bool

    def __post_init__(self) -> None:
        if self.status not in ClientStatus.__members__ or self.ended is ClientStatus.ABSENT:
            raise ValueError(f"solved.status must be a status of a client that took part, got {self.status}")
        if self.iterations < 0:
            raise ValueError(f"solved.iterations must be an integer from 0, got {self.iterations}")

    @property
    def ended(self) -> ClientStatus:
        """The status."""
        return ClientStatus[self.status]


@dataclass(frozen=True)
class SumsHeader:
    """Numbers that a certificate needs beside the sums."""

    reach: float | None
    curvature_error: float
    at_mean: bool

    def __post_init__(self) -> None:
        if not (self.curvature_error >= 0 and (self.reach is None or self.reach >= 0)):
            raise ValueError(f"reach and curvature_error must be >= 0, got {self.reach} and {self.curvature_error}")


@dataclass(frozen=True)
class GLMReplyHeader(ReplyHeader):
    """A reply."""

    value: float | None
    edge: float
    solved: SolvedHeader | None
    certificate: SumsHeader | None


@dataclass(frozen=True)
class GLMEngine:
    """The part that server and site share: they both read q_g."""

    spec: GLMSpec

    @property
    def q_fields(self) -> Mapping[str, Field]:
        table = {"natural": inside_field(self.spec.prior)}
        return table | ({"sketches": Field(self.spec.told_size)} if self.spec.told_size else {})

    def q_made(self, found: Mapping[str, Any]) -> ExponentialFamily:
        q_g = self.made(found["natural"])
        if "sketches" in found:
            q_g.__dict__["told"] = found["sketches"]  # beside the distribution, for the solve that it is read for
        return q_g

    def made(self, natural: Natural) -> ExponentialFamily:
        """Return q_g from what is sent of it: λ_g, or the mean and the precision of a Newton row."""
        start = self.spec.prior.start()
        if not self.spec.step.at_mean:
            return start.with_natural(natural)
        assert isinstance(start, LearnedPrecisionGaussian)
        return start.at(natural.linear, natural.parts[1:])

    def sent(self, q_g: ExponentialFamily) -> Natural:
        """Inverse of `made`: λ = (Sm, S) would keep the mean of a Newton row to cond(S) ulp alone."""
        if not self.spec.step.at_mean:
            return q_g.natural
        assert isinstance(q_g, Gaussian)
        return q_g.natural_from(q_g.mean, q_g.factor.parts)


def natural_field(like: Natural, *conditions: Condition) -> Field:
    """A natural parameter with the shapes of `like`; packed matrices are symmetric by construction."""
    return Field(like.size, conditions, like.from_vector)


def inside_field(family: ExponentialFamily) -> Field:
    """The natural parameter of a distribution."""
    words = "a distribution: its precision must be positive definite"
    is_inside = Condition(words, lambda natural, known: family.contains(natural), lambda natural: "one that is not")
    return natural_field(family.natural, is_inside)


CONVEX = Condition(
    "of a curvature with a diagonal >= 0", lambda site, known: np.all(site.parts[1] >= 0), lambda site: "a negative one"
)


def sketch_field(spec: GLMSpec) -> Field:
    """The sketch of a positive semidefinite curvature."""
    kind, dim = spec.step.sketch, spec.prior.natural.linear.size
    assert kind is not None

    def is_valid(numbers: Array, known: Any) -> bool:
        return is_sketch(kind, numbers, dim)

    return Field(kind.size(dim), (Condition("of a correlation matrix", is_valid, lambda numbers: "another's"),))


def curvature_field(spec: GLMSpec) -> Field:
    """E[∇²ℓ_k], its upper triangle."""
    dim = spec.dim
    return Field(dim * (dim + 1) // 2, (), lambda vector: unpack(vector, dim))


def made_answer(
    solved: SolvedHeader,
    found: Mapping[str, Any],
    spec: GLMSpec,
    served: Served,
    k: int,
    site: Natural,
    value: float | None,
) -> Reply:
    """Return λ_k where it is not λ_g, and follow η_k from `site`, what it was."""
    row, q_g = spec.row.at(served.round), served.q_g
    natural, moved, slope = found.get("natural", q_g.natural), q_g.natural, None
    if solved.ended.is_usable:
        if "site" in found:
            moved = found["site"]
            if spec.step.at_mean and served.ask == "evaluate":
                assert isinstance(q_g, Gaussian)
                slope, curvature = -moved.linear, moved.parts[1:]
                moved = -q_g.natural_gradient(slope, curvature)
        elif row.dual_step == 0.0:
            moved = site
        else:
            moved = moved_site(row, spec.shares[k], len(spec.sites), site, natural, q_g.natural)
    return Reply(
        natural=natural,
        site=moved,
        iterations=solved.iterations,
        status=solved.ended,
        residual=solved.residual,
        natural_gradient_edge=solved.edge,
        gap=None,
        well_posed=solved.well_posed,
        seconds=0.0,
        value=float("nan") if value is None else value,
        slope=slope,
        curvature=found.get("curvature"),
        sketch=found.get("sketch"),
        is_evaluation=served.ask != "solve",
    )


# --- Sums at q_g ----------------------------------------------------------------------------------------------


def packed_sums(at_server: Sums, spec: GLMSpec, ask: Ask | None, arrays: dict[str, Array]) -> dict[str, Any] | None:
    """Put g and H at q_g into `arrays`, with their rounding errors; None where they overflow.

    The reach and the error of curvatures are rounded up to powers of two.

    Of a family that is no Gaussian ∇_μ E_q[ℓ], of which no bound is made.
    """
    if not isinstance(at_server, GaussianExpected):
        gradient = at_server.natural_gradient
        if not gradient.is_finite():
            return None
        arrays |= {"sums": gradient.to_vector(), "errors": np.zeros(gradient.linear.size)}
        return {"reach": None, "curvature_error": 0.0, "at_mean": False}
    like = spec.certificate_like
    if len(like.shapes[1]) == 2 and len(like.shapes) == 2:
        curvature: tuple[Array, ...] = (at_server.curvature.dense(),)
    else:
        curvature = at_server.projected
    sums = Natural(at_server.gradient, *curvature)
    margins = at_server.margins
    if not (sums.is_finite() and np.isfinite(margins.gradient_error).all()):
        return None
    arrays |= {"sums": sums.to_vector(), "errors": margins.gradient_error}
    if spec.curvature_size(ask):
        arrays["curvature"] = pack(at_server.curvature.dense())
    # both are numbers of a single row
    reach = None if margins.reach is None else up_to_a_power_of_two(margins.reach)
    error = up_to_a_power_of_two(margins.curvature_error)
    return {"reach": reach, "curvature_error": error, "at_mean": at_server.is_at_mean}


def made_sums(header: GLMReplyHeader, found: Mapping[str, Any], spec: GLMSpec, served: Served) -> Sums | None:
    """E_{q_g}[ℓ_k] as the site computed it, from g, H and the margins of its rounding."""
    sent, q_g, value = header.certificate, served.q_g, header.value
    if sent is None:
        return None
    if value is None:
        raise refusal("value", "a number where sums are sent", None)
    sums = found["sums"]
    margins = Margins(sent.reach, found["errors"], sent.curvature_error)
    if not isinstance(q_g, Gaussian):
        return Expected(value, sums)
    rule = Delta(1) if not spec.rule.carries_curvature else Delta(2) if sent.at_mean else Exact()
    whole = found.get("curvature") if q_g.learns_precision else sums.parts[1]
    curvature = _Curvature(sums.parts[1:], whole)
    expected = GaussianExpected(q_g, value, sums.linear, curvature, rule, lambda: margins)
    expected.__dict__["value"] = value  # as computed at the site, whatever the rule adds
    return expected


@dataclass(frozen=True)
class _Curvature:
    """A curvature as it came: in the structure of the family, and dense where it is told beside."""

    parts: tuple[Array, ...]
    whole: Array | None

    def dense(self) -> Array:
        return self.parts[0] if self.whole is None else self.whole

    def project(self, factor: Any) -> tuple[Array, ...]:
        return self.parts

    def multiply(self, vector: Array) -> Array:
        return np.asarray(self.dense() @ vector)


# --- Sums over sites alone ------------------------------------------------------------------------------------


def summed(replies: Sequence[SiteReply], q_g: Any) -> Iterator[SiteReply]:
    """Yield the sum of the sites' replies as that of the first site, and zeros for each other site.

    All that follows is a function of these sums. In place of the largest reach R of a site's rows it has
    √(Σ_k R_k²) ≥ R, with which the bound of the certificate, which rises with R, holds too.
    """
    reports, answers = [one.report for one in replies], [one.answer for one in replies]
    whole = Report(_plus([one.value for one in reports]), sum(one.edge for one in reports), None)
    nothing = Report(None if whole.value is None else 0.0, 0.0, None)
    if all(one.sums is not None for one in reports):
        whole = replace(whole, sums=_sum_of_sums([one.sums for one in reports], q_g, whole.value))
        nothing = replace(nothing, sums=_sum_of_sums([whole.sums], q_g, 0.0, share=0.0))
    answer = None if any(one is None for one in answers) else _sum_of_answers([one for one in answers if one])
    for k, one in enumerate(replies):
        own = answer
        if k and answer is not None:
            slope = None if answer.slope is None else 0.0 * answer.slope
            curvature = None if answer.curvature is None else 0.0 * answer.curvature
            beside: dict[str, Any] = {"value": 0.0, "slope": slope, "curvature": curvature}
            own = answer._replace(site=answer.site.zeros(), natural_gradient_edge=0.0, **beside)
        yield replace(one, report=nothing if k else whole, answer=own)


def _plus(values: Sequence[Any]) -> Any:
    return None if any(value is None for value in values) else sum(values)


def _sum_of_answers(answers: Sequence[Reply]) -> Reply:
    first, n_sites = answers[0], len(answers)
    site, apart = first.site, first.natural.zeros()
    for other in answers[1:]:
        site, apart = site + other.site, apart + (other.natural - first.natural)
    return first._replace(
        natural=first.natural + apart * (1.0 / n_sites),  # of evaluations all are λ_g
        site=site,
        value=sum(one.value for one in answers),
        slope=_plus([one.slope for one in answers]),
        curvature=_plus([one.curvature for one in answers]),
        status=next((one.status for one in answers if not one.status.is_usable), first.status),
        iterations=sum(one.iterations for one in answers),
        residual=sum(one.residual for one in answers),
        natural_gradient_edge=sum(one.natural_gradient_edge for one in answers),
        well_posed=all(one.well_posed for one in answers),
    )


def _sum_of_sums(each: Sequence[Any], q_g: Any, value: float, share: float = 1.0) -> GaussianExpected:
    margins = [one.margins for one in each]
    squares = _plus([None if one.reach is None else np.square(one.reach) for one in margins])
    bound = Margins(
        None if squares is None else share * float(np.sqrt(squares)),
        share * sum(one.gradient_error for one in margins),
        share * sum(one.curvature_error for one in margins),
    )
    parts = tuple(share * sum(part) for part in zip(*(one.curvature.parts for one in each), strict=True))
    gradient, whole = share * sum(one.gradient for one in each), _plus([one.curvature.whole for one in each])
    curvature = _Curvature(parts, None if whole is None else share * whole)
    expected = GaussianExpected(q_g, value, gradient, curvature, Delta(2), lambda: bound)
    expected.__dict__["value"] = value
    return expected
