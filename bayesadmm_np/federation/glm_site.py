"""The engine of losses of the core at a site: its rows as a loss, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from .._archive import refusal
from .._fields import Field
from .._validation import Array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural, pack
from ..glm.kinds import kind_of_loss
from ..glm.questions import Respondent
from ..losses.base import GaussianExpected, Loss, RowCurvature, effective_rows
from ..losses.likelihood import SiteLikelihood
from ..splitting.accelerated import combine
from ..splitting.messages import Broadcast, Reply
from ..splitting.privacy import GaussianMechanism, fresh_normals
from ..splitting.round import UNKNOWN
from ..splitting.sketched import unpack_cavity
from ..splitting.state import digest
from ..splitting.step import Own
from ..splitting.team import make_client
from ..splitting.worker import Worker, moved_site
from .consent import GLM, require_rules
from .differencing import Source
from .disclosure import Basis
from .engine import SiteEngine
from .glm_messages import GLMEngine, Sums, natural_field, packed_sums, sketch_field
from .glm_spec import GLMSpec
from .messages import Heard, Question, Report, Served
from .spec import RunSpec


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
    design : Source, optional
        Columns as the user has them, which the rules compare with those of earlier runs; by default those of the loss.
    cluster : str, default 'clusters'
        Name of the column of clusters.

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
    design: Source | None = None
    cluster: str = "clusters"

    engine: ClassVar[str] = "glm"

    def __post_init__(self) -> None:
        if not isinstance(self.loss, Loss):
            raise ValueError(f"loss must be a loss of bayesadmm_np.losses, got {type(self.loss).__name__}.")
        if not self.features:
            count = getattr(self.loss, "n_features", self.loss.dim)
            object.__setattr__(self, "features", tuple(f"x{j + 1}" for j in range(count)))

    @property
    def digest(self) -> str:
        return digest(self.loss)

    def introduction(self) -> dict[str, Any]:
        return {
            "loss": self.loss.name,
            "dim": self.loss.dim,
            "rows": self.loss.n_rows,
            "weight": self.loss.total_weight,
            "features": list(self.features),
            "classes": list(self.classes),
        }

    def basis(self, heard: Heard, name: str) -> Basis:
        rows = None
        with suppress(ValueError):  # a loss of the user's own may know no rows
            rows = self.loss.rows(np.zeros(self.loss.dim))
        picked: Iterable[float] = self._picked(heard)
        points = self._points(heard)
        if isinstance(heard.asked, Question):
            asked = heard.asked
            question = heard.spec.question_made(asked.name, asked.content, asked.arrays)
            respondent = self._respondent(heard.spec)
            picked = respondent.picks(asked.name, question)
            points = chain(points, respondent.points(question))
        design = self.design
        if design is None and rows is not None:
            own = dict(zip(self.features, rows.X.T, strict=False))
            named = np.array(heard.spec.classes) if heard.spec.classes else None
            own["target"] = rows.target if named is None else named[rows.target.astype(int)]
            own |= {"weights": rows.weights, "offset": getattr(self.loss, "offset", None)}
            design = Source.of(own, np.arange(self.loss.n_rows))
        outcomes = self.loss.outcomes if isinstance(self.loss, SiteLikelihood) else None
        return Basis(self.loss.n_rows, self.loss.dim, rows, points, picked, design, self.clustered, outcomes)

    @property
    def clustered(self) -> tuple[str, Sequence[Hashable]]:
        """The column of clusters, and the cluster of each row."""
        return self.cluster, self.clusters or ()

    def _picked(self, heard: Heard) -> Iterator[float]:
        """Yield the rows on which the answer's own point rests: a forged dual puts it where one row is."""
        asked, solved = heard.asked, heard.solved
        if isinstance(asked, Served) and asked.ask == "solve" and solved is not None and hasattr(asked.q_g, "mean"):
            yield max(self.loss.rows(asked.q_g.with_natural(solved).mean).effective, 0.5)

    def _points(self, heard: Heard) -> Iterator[float]:
        asked, points = heard.asked, []
        own = heard.sums.curvature if isinstance(heard.sums, GaussianExpected) else None
        if isinstance(own, RowCurvature):
            yield effective_rows(own.weights)
        if isinstance(asked, Served):
            is_known = isinstance(own, RowCurvature) and heard.sums.is_at_mean
            points = [asked.q_g.mean] if hasattr(asked.q_g, "mean") and not is_known else []
        elif asked is not None and asked.name != "separation":
            points = [asked.arrays[name] for name in ("theta", "null") if name in asked.arrays]
        for theta in points:
            with np.errstate(all="ignore"):  # at a point that no fit would ask for
                counts = self.loss.rests_on(theta)
            yield from counts

    def join(self, spec: RunSpec, name: str, privacy: GaussianMechanism | None) -> GLMSite:
        assert isinstance(spec, GLMSpec)
        require_rules(GLM, spec, self, name)
        index = spec.sites.index(name)
        if privacy is not None:
            privacy.check(spec.step, spec.prior, len(spec.sites))
        settings = spec.step, self.loss, spec.prior, spec.rule, spec.solver, spec.tol
        worker = make_client(*settings, spec.shares[index], len(spec.sites), privacy)
        return GLMSite(spec, index, worker)

    def respond(
        self, spec: RunSpec, site: str, name: str, content: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> Callable[[], Any]:
        """Check a question of a run, and return what answers it."""
        assert isinstance(spec, GLMSpec)
        require_rules(GLM, spec, self, site)
        if not spec.asks:
            raise refusal("kind", "'broadcast' or 'final' in a run without questions", "inquiry")
        question = spec.question_made(name, content, arrays)
        return lambda: self._respondent(spec).answer(name, question)

    def _respondent(self, spec: GLMSpec) -> Respondent:
        return Respondent(kind_of_loss(spec.loss), self.loss, self.noise_variance, self.moves, self.clusters)


@dataclass(frozen=True)
class GLMAnswer:
    """λ_k, η_k after the dual step, η_k + ∇_μ E_{q_k}[ℓ_k] with its length, and a sketch, of a round from 0."""

    round: int
    natural: Natural
    dual: Natural
    gap: Natural
    edge: float
    sketch: Array | None = None

    @property
    def numbers(self) -> list[Any]:
        return [self.round, self.edge]

    @property
    def vectors(self) -> dict[str, Array]:
        found = {"natural": self.natural.to_vector(), "site": self.dual.to_vector(), "gap": self.gap.to_vector()}
        return found if self.sketch is None else found | {"sketch": self.sketch}


@dataclass(frozen=True)
class GLMSite(GLMEngine, SiteEngine[GLMAnswer]):
    """The engine at a site: a `Worker`, and what is said of its answers."""

    numbers: ClassVar[Any] = tuple[int, float]

    index: int
    worker: Worker

    def first(self, q_g: ExponentialFamily) -> GLMAnswer:
        start = self.spec.prior.start()
        zero = start.natural.zeros()
        sketch = None if self.spec.step.sketch is None else np.zeros(self.spec.sketch_size)
        return GLMAnswer(0, start.natural, zero, zero, UNKNOWN, sketch)

    def settled(
        self, answer: GLMAnswer, past: tuple[Natural, ...], served: Served
    ) -> tuple[GLMAnswer, tuple[Natural, ...]]:
        memory, mixed = self.spec.memory, served.mixed
        past = (*past, answer.dual)[-(memory + 1) :] if memory else ()
        if mixed is None or mixed[0] != answer.round:
            return answer, past
        weights = np.array(mixed[1])
        if abs(weights.sum() - 1.0) > 1e-6 * np.abs(weights).sum():
            raise refusal("mixed", "weights with the sum 1", float(weights.sum()))
        if len(weights) > len(past):
            raise refusal("mixed", f"at most {len(past)} weights, one a round kept", len(weights))
        dual = combine(weights, past[len(past) - len(weights) :])
        edge = served.q_g.with_natural(answer.natural).fisher_norm(answer.gap + (dual - answer.dual))
        return replace(answer, dual=dual, edge=edge), past

    def report(self, served: Served, counted: GLMAnswer) -> tuple[Report, dict[str, Any], dict[str, Array]]:
        fields: dict[str, Any] = {"value": None, "edge": counted.edge, "certificate": None}
        arrays: dict[str, Array] = {}
        if self.worker.privacy is not None:
            return Report(), fields, arrays
        at_server = self.worker.expect(served.q_g)
        if served.certify:
            fields["certificate"] = packed_sums(at_server, self.spec, served.ask, arrays)
        return Report(at_server.value, counted.edge, at_server), {**fields, "value": at_server.value}, arrays

    def answer(
        self, served: Served, counted: GLMAnswer, report: Report, earlier: GLMAnswer | None
    ) -> tuple[GLMAnswer | None, dict[str, Any], dict[str, Array]]:
        solved = self._solved(served, counted, report.sums)
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
        found = {"natural": solved.natural.to_vector(), "site": solved.site.to_vector(), "sketch": solved.sketch}
        if solved.slope is not None and self.spec.step.at_mean:
            # η_k about m_g, which the server moves back to zero by the same arithmetic
            found["site"] = Natural(-solved.slope, *solved.site.parts[1:]).to_vector()
        arrays = {name: vector for name in self.spec.answered(served.ask) if (vector := found[name]) is not None}
        if solved.curvature is not None and self.spec.curvature_size(served.ask):
            arrays["curvature"] = pack(solved.curvature)
        kept = solved.natural, solved.site, solved.gap, solved.natural_gradient_edge, solved.sketch
        return GLMAnswer(served.round, *kept), fields, arrays

    @property
    def answer_fields(self) -> Mapping[str, Field]:
        return dict.fromkeys(("natural", "site", "gap"), self.past_field) | self._sketch

    def answer_made(self, numbers: Any, found: Mapping[str, Any]) -> GLMAnswer:
        """Return an answer as it is kept."""
        number, edge = numbers
        return GLMAnswer(number, found["natural"], found["site"], found["gap"], edge, found.get("sketch"))

    @property
    def _sketch(self) -> dict[str, Field]:
        return {} if self.spec.step.sketch is None else {"sketch": sketch_field(self.spec)}

    @property
    def copy_fields(self) -> Mapping[str, Field]:
        return dict.fromkeys(("natural", "site"), self.past_field) | self._sketch

    def adopted(self, counted: int, found: Mapping[str, Any]) -> GLMAnswer | None:
        """Return the counted answer of a server's copy; the edge, which the server does not keep, is measured anew."""
        if counted == 0:
            return None
        spec, worker, natural, dual = self.spec, self.worker, found["natural"], found["site"]
        if spec.step.asks(counted) != "solve":  # its dual is a natural gradient, at λ_k or a fit that is not sent
            return GLMAnswer(counted, natural, dual, dual.zeros(), 0.0, found.get("sketch"))
        posterior = spec.prior.start().with_natural(natural)
        gap = worker.gap(posterior, worker.expect(posterior), dual)
        return GLMAnswer(counted, natural, dual, gap, posterior.fisher_norm(gap), found.get("sketch"))

    @property
    def most_past(self) -> int:  # type: ignore[override]
        return self.spec.memory + 1

    @property
    def past_field(self) -> Field:  # type: ignore[override]
        return natural_field(self.spec.prior.natural)

    def _solved(self, served: Served, counted: GLMAnswer, at_server: Sums | None) -> Reply:
        spec, worker, number, q_g = self.spec, self.worker, served.round, served.q_g
        start = q_g.with_natural(counted.natural) if spec.warm_start else None
        told, n_sites = q_g.__dict__.get("told"), len(spec.sites)
        kind = spec.step.sketch
        cavity = None if told is None or kind is None else unpack_cavity(kind, q_g, n_sites, told)
        message = Broadcast(number, q_g.natural, served.ask or "sums", cavity)
        own = Own(counted.natural, counted.dual, counted.sketch)
        noise = None if worker.privacy is None else fresh_normals(message.floats)
        try:
            at_server = worker.expect(q_g) if at_server is None else at_server
            return worker.answer(message, q_g, own, at_server, start, spec.seed, self.index, noise)
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
    if worker.row.dual_step:
        moved = moved_site(worker.row, worker.share, worker.n_clients, dual, natural, q_g.natural)
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
