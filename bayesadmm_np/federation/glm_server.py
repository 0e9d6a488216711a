"""The engine of losses of the core at the server: a state is that of `bayesadmm_np.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from .._archive import refusal
from .._fields import NOT_NEGATIVE, Field
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..families.gaussians import FullGaussian
from ..families.precision import DensePrecision
from ..glm.fit import Prepared, is_long, prepare, tabulate, watch
from ..splitting.certificate import Certificate, PooledObjective
from ..splitting.line import Point
from ..splitting.loop import ALL_ROUNDS, at_the_limit
from ..splitting.messages import Ask, Reply
from ..splitting.result import Result
from ..splitting.round import UNKNOWN, advance, complete
from ..splitting.server import Server
from ..splitting.sketched import is_sketch, pack_cavity
from ..splitting.state import State, pack_state, unpack_state
from ..splitting.status import Failure, RoundRecord, Status
from ..splitting.step import Step
from ..splitting.tree import sizes
from .engine import Gathered, ServerEngine
from .glm_messages import (
    CONVEX,
    GLMEngine,
    GLMReplyHeader,
    Sums,
    curvature_field,
    inside_field,
    made_answer,
    made_sums,
    natural_field,
    sketch_field,
    summed,
)
from .glm_possible import NEVER_NEGATIVE, blamed, is_finite, require_possible
from .glm_questions import AskedTable
from .glm_spec import GLMSpec, state_size
from .messages import MessageError, Outcome, Report, Served, SiteReply
from .questions import Asking, Talk


@dataclass(frozen=True)
class GLMServer(GLMEngine, ServerEngine[State]):
    """The engine at the server: the pure functions of `bayesadmm_np.splitting`, applied to what the sites sent."""

    record: ClassVar[Any] = RoundRecord
    reply_header: ClassVar[Any] = GLMReplyHeader

    known: Prepared | None = None
    """Answers to questions before the first round."""
    asked: tuple[int, int] = (0, 0)
    """Questions so far, and numbers in them and in their answers."""

    @classmethod
    def of(cls, spec: GLMSpec, model: Any) -> GLMServer:
        """Return the engine of a run."""
        if model is not None:
            raise ValueError("model must not be given: the run is not of a network.")
        return cls(spec)

    def prepared(self, talk: Talk) -> tuple[GLMServer, Result | None]:
        if not self.spec.asks:
            return self, None
        ask = Asking(talk, self.spec)
        known = prepare(self.spec.problem, ask)
        return self._knowing(known, ask), known.result

    def _knowing(self, known: Prepared, ask: Asking) -> GLMServer:
        return replace(self, spec=self.spec.posed(known.problem), known=known, asked=(ask.done, ask.floats))

    def is_long(self, state: State) -> bool:
        has_rounds = self.known is not None and self.step.at_mean and bool(state.history)
        return has_rounds and is_long(self.known, state.history[-1])  # type: ignore[arg-type]

    def watched(self, talk: Talk, state: State) -> tuple[GLMServer, bool, Certificate | None]:
        if self.known is None:
            raise refusal("watched", "false: the run asks its sites nothing", True)
        ask = Asking(talk, self.spec, *self.asked)
        known, is_over, certificate = watch(self.known, ask, state.q_g, state.history[-1])
        return self._knowing(known, ask), is_over, certificate

    def table(self, talk: Talk, state: State, outcome: Outcome) -> AskedTable | None:
        known = self.known
        if known is None:
            return None
        fitted: Any = state.q_g if known.result is None else known.result.posterior
        is_robust = self.step.at_mean and type(self.spec.prior) is FullGaussian
        covariance = (lambda: fitted.covariance_matrix) if is_robust else None
        ask = Asking(talk, self.spec, *self.asked)
        found = tabulate(known, ask, fitted.mean, outcome.status, outcome.certificate, covariance)
        return AskedTable(**vars(found))

    @cached_property
    def server(self) -> Server:
        """Eq. 54."""
        spec = self.spec
        safeguard, total = spec.safeguard, sum(spec.weights) or 1.0
        return Server(spec.row, spec.prior, spec.shares, safeguard=safeguard, total=total)

    @cached_property
    def step(self) -> Step:
        """Step of the server: its memory, its questions and its work between two broadcasts."""
        return self.spec.step

    @property
    def reply_size(self) -> int:
        """λ_k, η_k where it travels, a sketch, the sums of the certificate with their errors, and a dense curvature."""
        like = self.spec.prior.natural
        whole = max(self.spec.curvature_size("sums"), self.spec.curvature_size("evaluate"))
        return 2 * like.size + self.spec.certificate_like.size + like.linear.size + self.spec.sketch_size + whole

    @property
    def state_size(self) -> int:
        n_sites = len(self.spec.sites)
        return state_size(self.spec.prior.natural.size, n_sites, self.spec.memory) + n_sites * self.spec.sketch_size

    def pack_q(self, state: State) -> dict[str, Array]:
        sent = {"natural": self.sent(state.q_g).to_vector()}
        kind = self.step.sketch
        if kind is None or not self.spec.told_size:
            return sent
        return sent | {"sketches": pack_cavity(kind, state.sites, self.step.sketches(state))}

    def q_of(self, state: State) -> ExponentialFamily:
        return state.q_g

    def reply_fields(self, header: GLMReplyHeader, served: Served) -> Mapping[str, Field]:
        spec, table = self.spec, {}
        if header.solved is not None and header.solved.ended.is_usable:
            like = spec.prior.natural
            own = {"natural": inside_field(spec.prior), "site": natural_field(like)}
            if self.step.sketch is not None:
                own |= {"site": natural_field(like, CONVEX), "sketch": sketch_field(spec)}
            table = {name: own[name] for name in own if name in spec.answered(served.ask)}
        if header.certificate is not None:
            if not served.certify:
                raise refusal("certificate", "null in a round that does not ask for it", "sums")
            like = spec.certificate_like
            table |= {"sums": natural_field(like), "errors": Field(like.linear.size, (NOT_NEGATIVE,))}
        if table and spec.curvature_size(served.ask):
            table["curvature"] = curvature_field(spec)
        return table

    def reply_made(
        self, header: GLMReplyHeader, found: Mapping[str, Any], served: Served, k: int, state: State
    ) -> SiteReply:
        """Return E_{q_g}[ℓ_k], the edge of the counted answer, λ_k and the sums; η_k is followed from `state`."""
        solved = header.solved
        report = Report(header.value, header.edge, made_sums(header, found, self.spec, served))
        told = header.value
        answer = None if solved is None else made_answer(solved, found, self.spec, served, k, state.sites[k], told)
        reply = SiteReply(report, answer)
        require_possible(self.spec, reply, found, served, k, state)
        return reply

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
        begin = self.spec.prior.start()
        q_g = begin if self.step.at_mean else begin.with_natural(begin.natural)
        n_sites = len(self.spec.sites)
        sites, naturals = (begin.natural.zeros(),) * n_sites, (q_g.natural,) * n_sites
        return State(q_g, sites, naturals, self.step.init(self.server), float("nan"), ())

    def complete(self, state: State, replies: Sequence[SiteReply | None]) -> State | Failure:
        values = [one.report.value for one in replies if one is not None and one.report.value is not None]
        is_whole = len(values) == len(replies)
        objective = self.server.objective(state, values) if is_whole else float("nan")
        if not state.history:
            return replace(state, start_objective=objective)
        record = state.history[-1]
        # of a search the server has natural gradients as sites, and a client's own dual plays no part
        is_search = self.step.ask(state) == "sums"
        clients = tuple(
            client if one is None else replace(client, natural_gradient=0.0 if is_search else one.report.edge)
            for client, one in zip(record.clients, replies, strict=True)
        )
        edges = replace(record.edges, natural_gradient=max(client.natural_gradient for client in clients))
        is_judged = is_whole and not self.step.takes_back
        return complete(self.step.knobs, state, objective, is_judged, values, clients=clients, edges=edges)

    def terminated(self, state: State, replies: Sequence[SiteReply | None]) -> Status | None:
        """Return the end of the step, as in one process; known when all have sent sums."""
        sums = _sums(replies)
        if sums is None or not state.history:
            return None
        return self.step.terminate(self.server, state, sums, self.spec.tol)

    def at_the_limit(self, state: State, replies: Sequence[SiteReply | None]) -> str:
        """Return the status at the round limit, as in one process; a site with privacy sends no value."""
        is_private = any(one is not None and one.report.value is None for one in replies)
        return ALL_ROUNDS if is_private else at_the_limit(self.step, self.server, state)

    def gather(self, state: State, replies: Sequence[SiteReply | None]) -> Gathered[State] | Failure:
        answers = [None if one is None else one.answer for one in replies]
        if self.ask(state) == "sums":
            answers = [None if one is None else evaluation(state.q_g, one.report) for one in replies]
        after = advance(self.step, self.server, state, answers)
        if isinstance(after, Failure):
            return after
        told = None
        if isinstance(state.q_g, Gaussian) and not self.step.takes_back:  # a guard keeps its own points
            values = [np.nan if one is None or one.report.value is None else one.report.value for one in replies]
            told = replace(Point.of(self.server, state.q_g), values=tuple(values))
        return Gathered(replace(after.state, told=told), after.weights, after.counts)

    def concluded(
        self, state: State, replies: Sequence[SiteReply | None], status: Status
    ) -> tuple[State, Sequence[SiteReply | None]]:
        """The state that the step ends at, such as the last accepted point of a guard."""
        after, sums = self.step.conclude(self.server, state, _sums(replies), status)
        if sums is None:
            return after, () if after is not state else replies
        if self.spec.asks and self.step.line is not None:  # shares are those at the end
            after = replace(after, sites=tuple(-own.natural_gradient for own in sums))
        known = zip(replies, sums, strict=True)
        return after, [one and replace(one, report=replace(one.report, sums=own)) for one, own in known]

    def certificate(self, state: State, replies: Sequence[SiteReply | None]) -> Certificate | None:
        sums, q_g = _sums(replies), state.q_g
        if sums is None:
            return None
        pooled = PooledObjective(self.spec.prior, q_g, sums)
        # the own part of a diagonal or block family is too little for a bound
        is_dense = isinstance(q_g, Gaussian) and q_g.learns_precision and isinstance(q_g.factor, DensePrecision)
        is_known = is_dense or all(_whole(own) is not None for own in sums)
        distance = pooled.distance if is_known else None
        return Certificate(state.history[-1].edges, pooled.residual, self.spec.tol, distance)

    def is_nearly_closed(self, state: State) -> bool:
        record, tol = state.history[-1], self.spec.tol
        natural_gradients = [client.natural_gradient for client in record.clients]
        ends_at_q = self.step.line is not None or self.ask(state) == "sums"
        known = ends_at_q or max(record.edges.broadcast, record.edges.gather) <= tol
        return known and all(edge <= tol or edge == UNKNOWN for edge in natural_gradients)

    def ask(self, state: State) -> Ask:
        return self.step.ask(state)

    def strays(self, state: State, replies: Mapping[int, SiteReply]) -> dict[int, str]:
        """A guard can use what is not finite; a site with privacy tells nothing."""
        if self.step.takes_back:
            told = {k: one.answer or evaluation(state.q_g, one.report) for k, one in replies.items()}
            return {} if self.spec.sums_only else blamed(self.spec, state.q_g, told, state)
        found, is_exact = {}, self.spec.loss in NEVER_NEGATIVE and self.spec.solver is None
        for k, one in replies.items():
            value, answer = one.report.value, one.answer
            is_lost = answer is not None and answer.status is ClientStatus.NOT_FINITE and is_exact
            if is_lost or not is_finite(value):
                found[k] = f"value must be finite, with an answer, as that of others, got {value}"
        return found

    def pack_state(self, state: State) -> tuple[dict[str, Any], dict[str, Array]]:
        return pack_state(state, self.step.keeps_mean(state))

    def state_fields(self, header: Any, like: State) -> Mapping[str, Field]:
        return {name: Field(size) for name, size in sizes(header["state"]).items()}

    def state_made(self, header: Any, found: Mapping[str, Any], like: State) -> State:
        state, kind = unpack_state(header, found, like), self.step.sketch
        for k, numbers in enumerate(self.step.sketches(state)):
            if kind is not None and not is_sketch(kind, numbers, self.spec.dim):
                raise refusal("sketches", "of positive semidefinite curvatures", f"another of site {k}")
        return state

    def copy_of(self, state: State, k: int) -> tuple[int, dict[str, Array]]:
        if self.spec.sums_only:
            raise MessageError("sums_only: the server has sums over sites, and no copy of a site; start a new run.")
        arrays = {"natural": state.naturals[k].to_vector(), "site": state.sites[k].to_vector()}
        past = state.memory if self.step.remembers else ()
        past = getattr(past, "inner", past)  # of a guard
        arrays |= {f"past{i}": item.sites[k].to_vector() for i, item in enumerate(past)}
        sketches = self.step.sketches(state)
        arrays |= {"sketch": sketches[k]} if sketches else {}
        return len(past), arrays


def evaluation(q_g: ExponentialFamily, report: Report) -> Reply:
    """Return the reply of a site that told its sums at q_g; one that overflows tells none."""
    sums = report.sums
    site = q_g.natural * np.nan if sums is None else -sums.natural_gradient
    status = ClientStatus.STEPS_DONE if site.is_finite() else ClientStatus.NOT_FINITE
    value = np.nan if report.value is None else report.value
    slope, curvature = getattr(sums, "gradient", None), _whole(sums)
    scalars = 0, status, 0.0, 0.0, site.zeros(), True, 0.0
    return Reply(q_g.natural, site, *scalars, value=value, slope=slope, curvature=curvature, is_evaluation=True)


def _whole(sums: Sums | None) -> Array | None:
    """The dense curvature, where it is told beside the family's part."""
    return getattr(getattr(sums, "curvature", None), "whole", None)


def _sums(replies: Sequence[SiteReply | None]) -> list[Sums] | None:
    """The sums of all sites at q_g, where all have sent them."""
    found = [one.report.sums for one in replies if one is not None and one.report.sums is not None]
    return found if len(found) == len(replies) else None
