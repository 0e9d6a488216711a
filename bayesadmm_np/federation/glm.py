"""The engine of losses of the core: λ and η are `Natural`, a state is that of `bayesadmm_np.run`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from .._archive import refusal
from .._fields import NOT_NEGATIVE, Condition, Field
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Coordinates, Displacement, Natural, pairing
from ..families.full import FullGaussian
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DensePrecision
from ..glm.diagnosis import LONG
from ..glm.kinds import kind_of_loss
from ..glm.questions import Respondent
from ..losses.base import Expected, GaussianExpected, Loss, Margins, RowCurvature, effective_rows
from ..losses.expectations import Delta, Exact
from ..splitting.accelerated import combine
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.coefficients import client_coefficients
from ..splitting.conclusion import concluded
from ..splitting.guarded import evaluations, is_at_rounding, is_judged
from ..splitting.history import RoundRecord
from ..splitting.loop import ALL_ROUNDS, at_the_limit, has_converged
from ..splitting.messages import Broadcast, Reply
from ..splitting.privacy import GaussianMechanism, fresh_normals
from ..splitting.result import Result
from ..splitting.round import UNKNOWN, advance, complete
from ..splitting.server import Server
from ..splitting.sketched import floats_beside, is_sketch, is_told, no_sketches, pack_cavity, unpack_cavity
from ..splitting.state import Memory, State, Step, digest
from ..splitting.status import Failure
from ..splitting.team import make_client
from ..splitting.worker import Worker, moved_site
from .disclosure import Basis
from .engine import Gathered, ServerEngine, SiteEngine
from .glm_questions import AskedTable, Prepared, prepare, tabulate, watch
from .glm_spec import GLMSpec, state_size
from .messages import Heard, MessageError, Outcome, Question, ReplyHeader, Report, Served, SiteReply
from .questions import Asking, Talk
from .spec import RunSpec

Sums = Expected | GaussianExpected

NEVER_NEGATIVE = {"LeastSquares", "Logistic", "ReferenceSoftmax", "Softmax"}
"""Losses that are squares, or −log of a probability with no constant dropped."""
CONVEX_LOSSES = NEVER_NEGATIVE | {"Poisson"}
MOST_NATS = 100.0
ROUNDING = 1e-6


@dataclass(frozen=True)
class SolvedHeader:
    """How a site's solve went."""

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
    """What a certificate needs beside the sums."""

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


# ----------------------------------------------------------------------------------------------------
# At the server
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Engine:
    """The part that server and site share: they both read q_g."""

    spec: GLMSpec

    @property
    def q_fields(self) -> Mapping[str, Field]:
        """λ_g, and the sites' sketches where they are told."""
        row, dim = self.spec.row, self.spec.prior.natural.linear.size
        table = {"natural": _inside(self.spec.prior)}
        return table | ({"sketches": Field(floats_beside(row, dim, len(self.spec.sites)))} if is_told(row) else {})

    def q_made(self, found: Mapping[str, Any]) -> ExponentialFamily:
        """Return q_g."""
        q_g = self.made(found["natural"])
        if "sketches" in found:
            q_g.__dict__["told"] = found["sketches"]  # beside the distribution, for the solve that it is read for
        return q_g

    def made(self, natural: Natural) -> ExponentialFamily:
        """Return q_g from what is sent of it: λ_g, or the mean and the precision of a Newton row."""
        start = self.spec.prior.start()
        if not self.spec.row.is_newton:
            return start.with_natural(natural)
        assert isinstance(start, LearnedPrecisionGaussian)
        return start.at(natural.linear, natural.parts[1:])

    def sent(self, q_g: ExponentialFamily) -> Natural:
        """Inverse of `made`: λ = (Sm, S) would keep the mean of a Newton row to cond(S) ulp alone."""
        if not self.spec.row.is_newton:
            return q_g.natural
        assert isinstance(q_g, Gaussian)
        return q_g.natural_from(q_g.mean, q_g.factor.parts)


@dataclass(frozen=True)
class GLMServer(_Engine, ServerEngine[State]):
    """The engine at the server: the pure functions of `bayesadmm_np.splitting`, applied to what the sites sent."""

    SUMMED: ClassVar[tuple[str, ...]] = ("value", "natural", "site", "tensors", "edge", "sums", "errors", "certificate")
    PER_SITE: ClassVar[tuple[str, ...]] = ("natural", "site", "sketch", "solved")
    record: ClassVar[Any] = RoundRecord
    reply_header: ClassVar[Any] = GLMReplyHeader

    known: Prepared | None = None
    """What was asked before the first round."""

    @classmethod
    def of(cls, spec: GLMSpec, model: Any) -> GLMServer:
        """Return the engine of a run."""
        if model is not None:
            raise ValueError("model must not be given: the run is not of a network.")
        return cls(spec)

    def prepared(self, talk: Talk) -> tuple[GLMServer, Result | None]:
        """Ask about columns, and for a fit that needs no rounds."""
        if not self.spec.asks:
            return self, None
        ask = Asking(talk, self.spec)
        known = replace(prepare(self.spec, ask), done=ask.done, floats=ask.floats)
        return replace(self, spec=known.spec, known=known), known.result

    def is_long(self, state: State) -> bool:
        """Whether it is time to ask if the likelihood has a maximum."""
        asks = self.known is not None and self.spec.row.is_newton and self.known.searched is None
        return asks and len(state.history) == LONG

    def watched(self, talk: Talk, state: State) -> tuple[GLMServer, Certificate | None]:
        """Ask whether the likelihood has a maximum; where it has none the run ends."""
        assert self.known is not None
        ask = Asking(talk, self.spec, self.known.done, self.known.floats)
        known, certificate = watch(self.known, ask, state)
        return replace(self, known=replace(known, done=ask.done, floats=ask.floats)), certificate

    def table(self, talk: Talk, state: State, outcome: Outcome) -> AskedTable | None:
        """Ask for deviance, criteria, robust covariances, and for why there is no maximum."""
        known = self.known
        if known is None:
            return None
        fitted: Any = state.q_g if known.result is None else known.result.posterior
        is_robust = self.spec.row.is_newton and type(self.spec.prior) is FullGaussian
        covariance = (lambda: fitted.covariance_matrix) if is_robust else None
        return tabulate(known, Asking(talk, self.spec, known.done, known.floats), fitted.mean, covariance, outcome)

    @cached_property
    def server(self) -> Server:
        """Eq. 54."""
        spec = self.spec
        return Server(spec.row, spec.prior, spec.shares, total=sum(spec.weights) or 1.0, n_outputs=spec.n_outputs)

    @property
    def reply_size(self) -> int:
        """λ_k, η_k where it travels, the tensors of a joint step, and the sums of the certificate with their errors."""
        like = self.spec.prior.natural
        tensors = self.spec.tensor_size if self.spec.row.is_joint else 0
        beside = tensors + self.spec.sketch_size
        return 2 * like.size + self.spec.certificate_like.size + like.linear.size + beside

    @property
    def state_size(self) -> int:
        """Numbers of a state."""
        n_sites = len(self.spec.sites)
        return state_size(self.spec.prior.natural.size, n_sites, self.spec.memory) + n_sites * self.spec.sketch_size

    def pack_q(self, state: State) -> dict[str, Array]:
        """Return what is sent of q_g."""
        sent = {"natural": self.sent(state.q_g).to_vector()}
        row = self.spec.row
        return sent | ({"sketches": pack_cavity(row, state.sites, state.sketches)} if is_told(row) else {})

    def q_of(self, state: State) -> ExponentialFamily:
        """Return q_g."""
        return state.q_g

    def reply_fields(self, header: GLMReplyHeader, served: Served) -> Mapping[str, Field]:
        """λ_k, η_k, the tensors of a joint step or a sketch, and the sums of the certificate."""
        spec, table = self.spec, {}
        if header.solved is not None and header.solved.ended.is_usable:
            like = spec.prior.natural
            own = {
                "natural": _inside(spec.prior),
                "site": _natural(like),
                "tensors": Field(spec.tensor_size),
            }
            if spec.row.sites is not None:
                own |= {"site": _natural(like, CONVEX), "sketch": _sketch(spec)}
            table = {name: own[name] for name in own if name in spec.answered(served.round)}
        if header.certificate is not None:
            if not served.certify:
                raise refusal("certificate", "null in a round that does not ask for it", "sums")
            like = spec.certificate_like
            table |= {"sums": _natural(like), "errors": Field(like.linear.size, (NOT_NEGATIVE,))}
        return table

    def reply_made(
        self, header: GLMReplyHeader, found: Mapping[str, Any], served: Served, k: int, state: State
    ) -> SiteReply:
        """Return E_{q_g}[ℓ_k], the edge of the counted answer, λ_k and the sums; η_k is followed from `state`."""
        solved = header.solved
        report = Report(header.value, header.edge, _made_sums(header, found, self.spec, served))
        answer = None if solved is None else _made_answer(solved, found, self.spec, served, k, state.sites[k])
        self._require_possible(header.value, found, served, k, state)
        return SiteReply(served.round, report, answer)

    def _require_possible(
        self, value: float | None, found: Mapping[str, Any], served: Served, k: int, state: State
    ) -> None:
        """Raise where no rows have what a site says, as far as that can be seen without its columns."""
        loss, row = self.spec.loss, self.spec.row
        is_never_negative = loss in NEVER_NEGATIVE
        if is_never_negative and value is not None and value < 0:
            raise refusal("value", f">= 0, as {loss} is", value)
        if "site" in found and (row.is_newton or row.is_joint):
            if loss in CONVEX_LOSSES:
                _require_curvature(found["site"])
            if loss == "LeastSquares" and row.is_newton and value is not None and np.isfinite(value):
                _require_residuals(found["site"], value)
        elif is_never_negative and "natural" in found and value is not None and np.isfinite(value):
            require_within_reach(self.spec, served, k, state.sites[k], found["natural"], value)

    def used(self, state: State, replies: list[SiteReply | None]) -> list[SiteReply | None]:
        """Return the replies, or in their places the sum over all sites and nothing else; see `summed`."""
        if not self.spec.sums_only:
            return replies
        came = [one for one in replies if one is not None]
        if len(came) < len(replies):
            raise ValueError("sums_only: a sum over sites needs the replies of all; no site can be left out.")
        return list(summed(came, state.q_g))

    def ended(self, served: Served) -> ExponentialFamily:
        """Return the posterior of a final message."""
        # natural parameters alone would lose digits of a fit that did not need them
        exact: ExponentialFamily | None = getattr(served.outcome and served.outcome.table, "exact", None)
        return served.q_g if exact is None else exact

    def start(self) -> State:
        """Duals at zero, the server at the prior."""
        begin = self.spec.prior.start()
        q_g = begin if self.spec.row.is_newton else begin.with_natural(begin.natural)
        n_sites = len(self.spec.sites)
        sites, naturals = (begin.natural.zeros(),) * n_sites, (q_g.natural,) * n_sites
        sketches = no_sketches(self.spec.row, self.spec.prior.natural.linear.size, n_sites)
        return State(q_g, sites, naturals, (), float("nan"), (), sketches=sketches)

    def complete(self, state: State, replies: Sequence[SiteReply | None]) -> State | Failure:
        """Fill in the objective, and the natural-gradient edges that the sites know."""
        values = [one.report.value for one in replies if one is not None and one.report.value is not None]
        is_whole = len(values) == len(replies)
        objective = self.server.objective(state, values) if is_whole else float("nan")
        if not state.history:
            return replace(state, start_objective=objective)
        record = state.history[-1]
        clients = tuple(
            client if one is None else replace(client, natural_gradient=one.report.edge)
            for client, one in zip(record.clients, replies, strict=True)
        )
        edges = replace(record.edges, natural_gradient=max(client.natural_gradient for client in clients))
        return complete(self.spec.row, state, objective, is_whole, clients=clients, edges=edges)

    def has_converged(self, state: State, replies: Sequence[SiteReply | None]) -> bool:
        """Whether the circuit is closed and q_g is stationary, as in one process; known when all have sent sums."""
        sums = _sums(replies)
        return sums is not None and has_converged(self.server, state, sums, self.spec.tol)

    def is_at_rounding(self, state: State, replies: Sequence[SiteReply | None]) -> bool:
        """As in one process; known when all have sent sums."""
        return is_at_rounding(self.server, state, _sums(replies))

    def at_the_limit(self, state: State, replies: Sequence[SiteReply | None]) -> str:
        """As in one process; a site with privacy sends no value."""
        is_private = any(one is not None and one.report.value is None for one in replies)
        return ALL_ROUNDS if is_private else at_the_limit(state, self.spec.row, self.spec.n_outputs)

    def gather(self, state: State, replies: Sequence[SiteReply | None]) -> Gathered[State] | Failure:
        """Eq. 54, and the mix of an accelerated method."""
        answers = [None if one is None else one.answer for one in replies]
        if self.only_evaluates(state):
            lost = Expected(np.nan, state.q_g.natural * np.nan)  # of a site that overflows, and sends no sums
            answers = evaluations(state.q_g, [None if one is None else one.report.sums or lost for one in replies])
        after = advance(self.server, self.spec.memory, state, answers, self.spec.safeguard)
        return after if isinstance(after, Failure) else Gathered(after.state, after.weights, after.counts)

    def concluded(
        self, state: State, replies: Sequence[SiteReply | None], has_converged: bool
    ) -> tuple[State, Sequence[SiteReply | None]]:
        """The last accepted point of a Newton row, with the curvature there."""
        after, sums = concluded(self.server, state, _sums(replies), has_converged)
        if sums is None:
            return after, () if after is not state else replies
        if self.spec.asks and self.spec.row.is_newton:  # shares are those at the end
            after = replace(after, sites=tuple(-own.natural_gradient for own in sums))
        known = zip(replies, sums, strict=True)
        return after, [one and replace(one, report=replace(one.report, sums=own)) for one, own in known]

    def certificate(self, state: State, replies: Sequence[SiteReply | None]) -> Certificate | None:
        """Return the certificate from the sums of all sites."""
        sums, q_g = _sums(replies), state.q_g
        if sums is None:
            return None
        pooled = PooledObjective(self.spec.prior, q_g, sums)
        # a diagonal or block family sends its own part of the curvature only: too little for a bound
        dense = isinstance(q_g, Gaussian) and (not q_g.learns_precision or isinstance(q_g.factor, DensePrecision))
        distance = pooled.distance if dense else None
        return Certificate(state.history[-1].edges, pooled.residual, self.spec.tol, distance)

    def is_nearly_closed(self, state: State) -> bool:
        """Whether the edges, as far as they are known, are below tol."""
        record, tol = state.history[-1], self.spec.tol
        natural_gradients = [client.natural_gradient for client in record.clients]
        row = self.spec.row
        known = (
            row.is_newton
            or row.is_joint
            or is_judged(row, state)
            or max(record.edges.broadcast, record.edges.gather) <= tol
        )
        return known and all(edge <= tol or edge == UNKNOWN for edge in natural_gradients)

    def only_evaluates(self, state: State) -> bool:
        """Whether a guarded row has fallen: sites send the sums at q_g, and solve nothing."""
        return self.spec.row.client == "proximal" and is_judged(self.spec.row, state)

    def unsettled(self, state: State) -> Sequence[int]:
        """Return the sites with λ_k − λ_g or η_k + ∇_μ E_{q_k}[ℓ_k] above tol."""
        clients, tol = state.history[-1].clients, self.spec.tol
        return [k for k, one in enumerate(clients) if not max(one.broadcast, one.natural_gradient) <= tol]

    def has_lost(self, value: Any) -> bool:
        """Whether E_{q_g}[ℓ_k] is no number, which a guarded row can use; a site with privacy sends none."""
        return not self.spec.row.guarded and value is not None and not np.isfinite(value)

    def pack_state(self, state: State) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return q_g, η_k, λ_k, what acceleration remembers, and Newton's step."""
        found: dict[str, Coordinates] = {"server": self.sent(state.q_g)}
        found |= {f"site{k}": site for k, site in enumerate(state.sites)}
        found |= {f"natural{k}": natural for k, natural in enumerate(state.naturals)}
        for i, item in enumerate(state.memory):
            found[f"memory{i}/server"] = item.natural
            found |= {f"memory{i}/site{k}": site for k, site in enumerate(item.sites)}
            found |= {f"memory{i}/move{k}": move for k, move in enumerate(item.moves)}
        arrays = {name: value.to_vector() for name, value in found.items()}
        arrays |= {f"sketch{k}": numbers for k, numbers in enumerate(state.sketches)}
        if state.step is not None:
            arrays |= {f"step/{name}": value for name, value in state.step._asdict().items() if value is not None}
        return {"memory": len(state.memory), "step": sum(name.startswith("step/") for name in arrays)}, arrays

    def state_fields(self, header: Any, like: State) -> Mapping[str, Field]:
        """q_g, η_k, λ_k and sketches, what acceleration remembers, and Newton's step."""
        shape, n_sites = self.spec.prior.natural, len(self.spec.sites)
        names = ["server", *_numbered("site", n_sites), *_numbered("natural", n_sites)]
        for i in range(header["memory"]):
            names += [f"memory{i}/server", *_numbered(f"memory{i}/site", n_sites)]
            names += _numbered(f"memory{i}/move", n_sites + 1)
        step = {f"step/{name}": Field(shape.linear.size) for name in STEP[: header["step"]]}
        sketches = {name: _sketch(self.spec) for name in self._sketches}
        return {name: _natural(shape) for name in names} | step | sketches

    def state_made(self, header: Any, found: Mapping[str, Any], like: State) -> State:
        """Inverse of `pack_state`."""
        n_sites = len(self.spec.sites)

        def column(name: str, count: int = n_sites) -> tuple[Natural, ...]:
            return tuple(found[one] for one in _numbered(name, count))

        memory = tuple(
            Memory(
                column(f"memory{i}/site"),
                found[f"memory{i}/server"],
                tuple(Displacement(*move.parts) for move in column(f"memory{i}/move", n_sites + 1)),
            )
            for i in range(header["memory"])
        )
        step = Step(*(found[f"step/{name}"] for name in STEP[: header["step"]])) if header["step"] else None
        q_g, sites, naturals = self.made(found["server"]), column("site"), column("natural")
        after = replace(like, q_g=q_g, sites=sites, naturals=naturals, memory=memory, step=step)
        return replace(after, sketches=tuple(found[name] for name in self._sketches))

    @property
    def _sketches(self) -> list[str]:
        """Names of the sites' sketches."""
        return [] if self.spec.row.sites is None else _numbered("sketch", len(self.spec.sites))

    def copy_of(self, state: State, k: int) -> tuple[int, dict[str, Array]]:
        """Return η_k and λ_k, and the sites that acceleration mixes."""
        if self.spec.sums_only:
            raise MessageError("sums_only: the server has sums over sites, and no copy of a site; start a new run.")
        arrays = {"natural": state.naturals[k].to_vector(), "site": state.sites[k].to_vector()}
        arrays |= {f"past{i}": item.sites[k].to_vector() for i, item in enumerate(state.memory)}
        arrays |= {"sketch": state.sketches[k]} if state.sketches else {}
        return len(state.memory), arrays


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
            own = answer._replace(site=answer.site.zeros(), slope=slope, natural_gradient_edge=0.0)
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
        slope=_plus([one.slope for one in answers]),
        status=next((one.status for one in answers if not one.status.is_usable), first.status),
        iterations=sum(one.iterations for one in answers),
        residual=sum(one.residual for one in answers),
        natural_gradient_edge=sum(one.natural_gradient_edge for one in answers),
        well_posed=all(one.well_posed for one in answers),
    )


def _sum_of_sums(each: Sequence[Any], q_g: Any, value: float, share: float = 1.0) -> GaussianExpected:
    margins = [one.margins for one in each]
    squares = _plus([None if one.reach is None else one.reach**2 for one in margins])
    bound = Margins(
        None if squares is None else share * float(np.sqrt(squares)),
        share * sum(one.gradient_error for one in margins),
        share * sum(one.curvature_error for one in margins),
    )
    parts = tuple(share * sum(part) for part in zip(*(one.curvature.parts for one in each), strict=True))
    gradient = share * sum(one.gradient for one in each)
    expected = GaussianExpected(q_g, value, gradient, _Curvature(parts), Delta(2), lambda: bound)
    expected.__dict__["value"] = value
    return expected


STEP = ("mean", "move", "gradient")
"""Parts of Newton's step; the last is kept where there is one."""


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}{k}" for k in range(count)]


def _sums(replies: Sequence[SiteReply | None]) -> list[Sums] | None:
    """The sums of all sites at q_g, where all have sent them."""
    found = [one.report.sums for one in replies if one is not None and one.report.sums is not None]
    return found if len(found) == len(replies) else None


# ----------------------------------------------------------------------------------------------------
# At a site
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GLMData:
    """The rows of a site as a loss.

    Parameters
    ----------
    loss : Loss
        ℓ_k, a sum over this site's rows.
    features : tuple of str, default ()
        Names of the columns of the design, in order; without any x1, x2, …
    classes : tuple of str, default ()
        What the labels 0, 1, … stand for.
    noise_variance : float, optional
        The one that the loss was divided by; None where there is none, or a run may estimate it.
    moves : bool, default False
        Whether whoever made this data measures columns from the centre of a run's spec.
    clusters : sequence, optional
        Cluster of each row, for robust standard errors by cluster; by default the site is one.
    told_weight : float, optional
        Weight of the rows in the site's hello; more than the loss's where an agreement has dropped rows.

    Raises
    ------
    ValueError
        When `loss` is no loss.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import GLMData
    >>> GLMData(ba.losses.LeastSquares([[1.0, 2.0]], [1.0])).features
    ('x1', 'x2')
    """

    loss: Loss
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    noise_variance: float | None = None
    moves: bool = False
    clusters: Sequence[Hashable] | None = None
    told_weight: float | None = None

    engine: ClassVar[str] = "glm"

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise ValueError(f"loss must be a loss of bayesadmm_np.losses, got {type(self.loss).__name__}.")
        if not self.features:
            count = getattr(self.loss, "n_features", self.loss.dim)
            object.__setattr__(self, "features", tuple(f"x{j + 1}" for j in range(count)))

    @property
    def digest(self) -> str:
        """Digest of the arrays of the loss."""
        return digest(self.loss)

    @property
    def most(self) -> int:
        """Numbers of (Sm, S) of a full covariance."""
        return self.loss.dim + self.loss.dim * (self.loss.dim + 1) // 2

    def introduction(self) -> dict[str, Any]:
        """Return what a hello says."""
        return {
            "loss": self.loss.name,
            "dim": self.loss.dim,
            "rows": self.loss.n_rows,
            "weight": self.loss.total_weight,
            "features": list(self.features),
            "classes": list(self.classes),
        }

    def basis(self, heard: Heard, name: str) -> Basis:
        """Return what an answer rests on."""
        rows = None
        with suppress(ValueError):  # a loss of the user's own may know no rows
            rows = self.loss.rows(np.zeros(self.loss.dim))
        picked: Iterable[float] = ()
        if isinstance(heard.asked, Question):
            asked = heard.asked
            question = heard.spec.question_made(asked.name, asked.content, asked.arrays)
            picked = self._respondent(heard.spec).picks(asked.name, question)
        return Basis(self.loss.n_rows, self.loss.dim, rows, self._points(heard), picked)

    def _points(self, heard: Heard) -> Iterator[float]:
        asked, points = heard.asked, []
        if isinstance(asked, Served):
            points = [asked.q_g.mean] if hasattr(asked.q_g, "mean") else []
        elif asked is not None and asked.name != "separation":
            points = [asked.arrays[name] for name in ("theta", "null") if name in asked.arrays]
        for theta in points:
            yield self.loss.rows(theta).effective
        if isinstance(heard.sums, GaussianExpected) and isinstance(heard.sums.curvature, RowCurvature):
            yield effective_rows(heard.sums.curvature.weights)

    def join(self, spec: RunSpec, name: str, privacy: GaussianMechanism | None) -> GLMSite:
        """Return the engine of a run at this site; a ValueError where loss, family, rule or solver do not fit."""
        self._require_own(spec)
        assert isinstance(spec, GLMSpec)
        index = spec.sites.index(name)
        # with privacy nothing but the noised answer depends on the rows
        told = self.loss.total_weight if self.told_weight is None else self.told_weight
        if privacy is None and spec.weights[index] != told:
            raise refusal("weights", f"{told:g} for the rows of this site", spec.weights[index])
        if privacy is not None:
            privacy.check(spec.row, spec.memory, spec.prior, len(spec.sites))
        settings = spec.row, self.loss, spec.prior, spec.rule, spec.solver, spec.tol
        worker = make_client(*settings, spec.shares[index], len(spec.sites), privacy)
        return GLMSite(spec, index, worker)

    def respond(
        self, spec: RunSpec, site: str, name: str, content: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> Callable[[], Any]:
        """Check a question of a run, and return what answers it."""
        self._require_own(spec)
        assert isinstance(spec, GLMSpec)
        if not spec.asks:
            raise refusal("kind", "'broadcast' or 'final' in a run without questions", "inquiry")
        question = spec.question_made(name, content, arrays)
        return lambda: self._respondent(spec).answer(name, question)

    def _respondent(self, spec: GLMSpec) -> Respondent:
        return Respondent(kind_of_loss(spec.loss), self.loss, self.noise_variance, self.moves, self.clusters)

    def _require_own(self, spec: RunSpec) -> None:
        """Refuse a run that is not of this loss and these columns."""
        assert isinstance(spec, GLMSpec)
        for field in ("features", "classes"):
            own, told = getattr(self, field), getattr(spec, field)
            if told != own:
                raise refusal(field, f"those of this site, {list(own)}", list(told))
        if spec.loss != self.loss.name:
            raise refusal("loss", f"that of this site, {self.loss.name}", spec.loss)
        if spec.prior.natural.linear.shape != (self.loss.dim,):
            size = spec.prior.natural.linear.size
            raise refusal("prior", f"of the {self.loss.dim} parameters of this site's loss", size)


@dataclass(frozen=True)
class GLMAnswer:
    """What a site answered in a round.

    Attributes
    ----------
    round : int
        Round of the broadcast that was answered; 0 before the first.
    natural : Natural
        λ_k.
    dual : Natural
        η_k after the dual step.
    gap : Natural
        η_k + ∇_μ E_{q_k}[ℓ_k].
    edge : float
        Fisher length of `gap` per parameter.
    sketch : ndarray or None
        Of the curvature, where sites keep one.
    """

    round: int
    natural: Natural
    dual: Natural
    gap: Natural
    edge: float
    sketch: Array | None = None

    @property
    def numbers(self) -> list[Any]:
        """What is kept in the header."""
        return [self.round, self.edge]

    @property
    def vectors(self) -> dict[str, Array]:
        """What is kept as vectors."""
        found = {"natural": self.natural.to_vector(), "site": self.dual.to_vector(), "gap": self.gap.to_vector()}
        return found if self.sketch is None else found | {"sketch": self.sketch}


@dataclass(frozen=True)
class GLMSite(_Engine, SiteEngine[GLMAnswer]):
    """The engine at a site: a `Worker`, and what is said of its answers."""

    numbers: ClassVar[Any] = tuple[int, float]

    index: int
    worker: Worker

    def first(self, q_g: ExponentialFamily) -> GLMAnswer:
        """λ_k at the prior, η_k at zero."""
        start = self.spec.prior.start()
        zero = start.natural.zeros()
        sketches = no_sketches(self.spec.row, self.spec.prior.natural.linear.size, 1)
        return GLMAnswer(0, start.natural, zero, zero, UNKNOWN, *sketches)

    def settled(
        self, answer: GLMAnswer, past: tuple[Natural, ...], served: Served
    ) -> tuple[GLMAnswer, tuple[Natural, ...]]:
        """Mix η_k of an answer that has just been counted, where an accelerated step was taken."""
        memory, mixed = self.spec.memory, served.mixed
        past = (*past, answer.dual)[-(memory + 1) :] if memory else ()
        if mixed is None or mixed[0] != answer.round:
            return answer, past
        weights = np.array(mixed[1])
        if len(weights) > len(past):
            raise refusal("mixed", f"at most {len(past)} weights, one a round kept", len(weights))
        dual = combine(weights, past[len(past) - len(weights) :])
        edge = served.q_g.with_natural(answer.natural).fisher_norm(answer.gap + (dual - answer.dual))
        return replace(answer, dual=dual, edge=edge), past

    def report(
        self, q_g: ExponentialFamily, counted: GLMAnswer, certify: bool
    ) -> tuple[Report, dict[str, Any], dict[str, Array]]:
        """Return E_{q_g}[ℓ_k], the edge, and on demand the sums; with privacy nothing of them."""
        fields: dict[str, Any] = {"value": None, "edge": counted.edge, "certificate": None}
        arrays: dict[str, Array] = {}
        if self.worker.privacy is not None:
            return Report(), fields, arrays
        at_server = self.worker.expect(q_g)
        if certify:
            fields["certificate"] = _pack_sums(at_server, self.spec, arrays)
        return Report(at_server.value, counted.edge, at_server), {**fields, "value": at_server.value}, arrays

    def answer(
        self, number: int, q_g: ExponentialFamily, counted: GLMAnswer, report: Report, earlier: GLMAnswer | None
    ) -> tuple[GLMAnswer | None, dict[str, Any], dict[str, Array]]:
        """Solve Eq. 15 and move the dual."""
        solved = self._solved(number, q_g, counted, report.sums)
        if self.worker.privacy is not None and earlier is not None:
            solved = solved._replace(natural=earlier.natural, site=earlier.dual)
        assert solved.gap is not None
        # fixed numbers of steps can overflow without notice
        finite = all(part.is_finite() for part in (solved.natural, solved.site, solved.gap))
        status = solved.status if finite or not solved.status.is_usable else ClientStatus.NOT_FINITE
        fields = {
            "status": status.name,
            "iterations": solved.iterations,
            "residual": solved.residual,
            "edge": solved.natural_gradient_edge,
            "well_posed": solved.well_posed,
        }
        if not status.is_usable:  # the run ends here: there is no answer to send or to keep
            return None, fields, {}
        found = {"natural": solved.natural.to_vector(), "site": solved.site.to_vector(), "tensors": solved.tensors}
        found["sketch"] = solved.sketch
        if solved.slope is not None:  # η_k about m_g, which the server moves back to zero by the same arithmetic
            found["site"] = Natural(-solved.slope, *solved.site.parts[1:]).to_vector()
        arrays = {name: vector for name in self.spec.answered(number) if (vector := found[name]) is not None}
        kept = solved.natural, solved.site, solved.gap, solved.natural_gradient_edge, solved.sketch
        return GLMAnswer(number, *kept), fields, arrays

    @property
    def answer_fields(self) -> Mapping[str, Field]:
        """λ_k, η_k, η_k + ∇_μ E_{q_k}[ℓ_k], and a sketch."""
        return dict.fromkeys(("natural", "site", "gap"), self.past_field) | self._sketch

    def answer_made(self, numbers: Any, found: Mapping[str, Any]) -> GLMAnswer:
        """Return an answer as it is kept."""
        number, edge = numbers
        return GLMAnswer(number, found["natural"], found["site"], found["gap"], edge, found.get("sketch"))

    @property
    def _sketch(self) -> dict[str, Field]:
        return {} if self.spec.row.sites is None else {"sketch": _sketch(self.spec)}

    @property
    def copy_fields(self) -> Mapping[str, Field]:
        """λ_k, η_k, and a sketch."""
        return dict.fromkeys(("natural", "site"), self.past_field) | self._sketch

    def adopted(self, counted: int, found: Mapping[str, Any]) -> GLMAnswer | None:
        """Return the counted answer of a server's copy; the edge, which the server does not keep, is measured anew."""
        if counted == 0:
            return None
        spec, worker, natural, dual = self.spec, self.worker, found["natural"], found["site"]
        posterior = spec.prior.start().with_natural(natural)
        gap = dual + worker.expect(posterior).natural_gradient
        if own := worker.coefficients.prior:
            gap = gap + (own * spec.prior.prior_weight * natural - own * spec.prior.natural)
        return GLMAnswer(counted, natural, dual, gap, posterior.fisher_norm(gap), found.get("sketch"))

    @property
    def most_past(self) -> int:  # type: ignore[override]
        """Duals that acceleration mixes."""
        return self.spec.memory + 1

    @property
    def past_field(self) -> Field:  # type: ignore[override]
        """η_k."""
        return _natural(self.spec.prior.natural)

    def _solved(self, number: int, q_g: ExponentialFamily, counted: GLMAnswer, at_server: Sums | None) -> Reply:
        spec, worker = self.spec, self.worker
        start = q_g.with_natural(counted.natural) if spec.warm_start else None
        told, n_sites = q_g.__dict__.get("told"), len(spec.sites)
        cavity = None if told is None else unpack_cavity(spec.row, q_g, n_sites, told)
        message = Broadcast(number, q_g.natural, cavity)
        own = None if counted.sketch is None else (counted.natural, counted.sketch)
        noise = None if worker.privacy is None else fresh_normals(message.floats)
        try:
            at_server = worker.expect(q_g) if at_server is None else at_server
            return worker.step(message, q_g, counted.dual, at_server, start, spec.seed, self.index, noise, own)
        except (ArithmeticError, ValueError):
            if worker.privacy is None or noise is None:
                raise
            # a server could choose q_g so that some rows overflow: silence would tell of them
            return _noise_alone(worker.at(number), worker.privacy, q_g, counted.dual, noise)


def _noise_alone(
    worker: Worker, privacy: GaussianMechanism, q_g: ExponentialFamily, dual: Natural, noise: Array
) -> Reply:
    """The answer of a private site whose loss cannot be evaluated: an update of zero, noised like any other."""
    natural = privacy.noised(q_g, q_g.natural, noise)
    moved = dual
    if worker.method.dual_step:
        moved = moved_site(worker.method, worker.share, worker.n_clients, dual, natural, q_g.natural)
    return Reply(
        natural=natural,
        site=moved,
        iterations=0,
        status=ClientStatus.STEPS_DONE,
        residual=UNKNOWN,
        natural_gradient_edge=UNKNOWN,
        gap=dual.zeros(),
        well_posed=worker.subproblem(q_g, dual).is_well_posed,
        seconds=0.0,
    )


# ----------------------------------------------------------------------------------------------------
# What is sent
# ----------------------------------------------------------------------------------------------------


def _natural(like: Natural, *conditions: Condition) -> Field:
    """A natural parameter with the shapes of `like`; packed matrices are symmetric by construction."""
    return Field(like.size, conditions, like.from_vector)


def _inside(family: ExponentialFamily) -> Field:
    """The natural parameter of a distribution."""
    words = "a distribution: its precision must be positive definite"
    is_inside = Condition(words, lambda natural, known: family.contains(natural), lambda natural: "one that is not")
    return _natural(family.natural, is_inside)


CONVEX = Condition(
    "of a curvature with a diagonal >= 0", lambda site, known: np.all(site.parts[1] >= 0), lambda site: "a negative one"
)


def _sketch(spec: GLMSpec) -> Field:
    """The sketch of a positive semidefinite curvature."""
    kind, dim = spec.row.sites, spec.prior.natural.linear.size
    assert kind is not None

    def is_valid(numbers: Array, known: Any) -> bool:
        return is_sketch(kind, numbers, dim)

    return Field(kind.size(dim), (Condition("of a correlation matrix", is_valid, lambda numbers: "another's"),))


def _made_answer(
    solved: SolvedHeader, found: Mapping[str, Any], spec: GLMSpec, served: Served, k: int, site: Natural
) -> Reply:
    """Return λ_k where it is not λ_g, and follow η_k from `site`, what it was."""
    row, q_g = spec.row.at(served.round), served.q_g
    natural, moved, slope = found.get("natural", q_g.natural), q_g.natural, None
    if solved.ended.is_usable:
        if "site" in found:
            moved = found["site"]
            if row.is_newton:
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
        slope=slope,
        tensors=found.get("tensors"),
        sketch=found.get("sketch"),
        is_evaluation=row.client != "proximal",
    )


def _require_curvature(site: Natural) -> None:
    """Raise where E[∇²ℓ_k] of a convex loss is not positive semidefinite, up to rounding."""
    for part in site.parts[1:]:
        values = np.linalg.eigvalsh(part) if part.ndim == 2 else part
        if values.min(initial=0.0) < -ROUNDING * np.abs(values).max(initial=0.0):
            raise refusal("site", "with a curvature that is positive semidefinite", f"one of {values.min():.3g}")


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
    if row.client != "proximal" or row.prior_at != "server" or row.sites is not None:
        return
    q_g, q_k = served.q_g, spec.prior.with_natural(natural)
    rho = client_coefficients(row, spec.shares[k], len(spec.sites)).rho
    away, held = rho * q_k.kl(q_g), pairing(site, q_k.expectation - q_g.expectation)
    most = 10.0 * value + MOST_NATS * natural.linear.size
    if not away + held <= most + ROUNDING * (abs(away) + abs(held)):
        expected = f"within the reach of a site whose loss at λ_g is {value:.3g}: at most {most:.3g} nats from it"
        raise refusal("natural", expected, f"{away + held:.3g}")


def _pack_sums(at_server: Sums, spec: GLMSpec, arrays: dict[str, Array]) -> dict[str, Any] | None:
    """Put g and H at q_g into `arrays`, with their rounding errors; None where they overflow.

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
    return {"reach": margins.reach, "curvature_error": margins.curvature_error, "at_mean": at_server.is_at_mean}


def _made_sums(header: GLMReplyHeader, found: Mapping[str, Any], spec: GLMSpec, served: Served) -> Sums | None:
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
    expected = GaussianExpected(q_g, value, sums.linear, _Curvature(sums.parts[1:]), rule, lambda: margins)
    expected.__dict__["value"] = value  # as computed at the site, whatever the rule adds
    return expected


@dataclass(frozen=True)
class _Curvature:
    """A curvature as it came: dense, or in the structure of the family."""

    parts: tuple[Array, ...]

    def dense(self) -> Array:
        return self.parts[0]

    def project(self, factor: Any) -> tuple[Array, ...]:
        return self.parts

    def multiply(self, vector: Array) -> Array:
        return np.asarray(self.parts[0] @ vector)
