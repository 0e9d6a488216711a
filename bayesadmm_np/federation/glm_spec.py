"""The spec and the task of a run of the core's losses, generalised linear models and others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from .._archive import read_as, refusal
from .._errors import ArgumentError
from .._validation import Array, as_positive
from ..clients import Solver
from ..design.agreement import Agreement, terms_of
from ..families import BlockDiagonalGaussian, ExponentialFamily, FullGaussian, IsotropicGaussian
from ..families.base import FAMILIES
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..glm.fit import Prepared, state_prior
from ..glm.hypotheses import TestName, TestType
from ..glm.kinds import is_kind_of_loss, kind_of_loss
from ..glm.layout import Layout
from ..glm.prior import Prior
from ..glm.problem import Problem
from ..glm.site_statistics import WeightMeaning
from ..losses.expectations import Rule
from ..splitting.average import as_step
from ..splitting.line import dense_size
from ..splitting.messages import Ask
from ..splitting.method import Method
from ..splitting.methods import TABLE
from ..splitting.sketched import context_floats
from ..splitting.step import Step
from ..splitting.team import read_rule, require_family
from . import glm_questions
from .agreeing import agreed_hellos
from .bounds import most_numbers, prior_size, require_work
from .columns import INTERCEPT
from .messages import Hello, require_room
from .spec import MOST_ROWS, RunSpec, keys_of, sized


@dataclass(frozen=True, kw_only=True)
class GLMSettings:
    """Settings that a task and the spec of a run have in common; see `GLMTask`."""

    expectation: Rule | None = None
    solver: Solver | None = None
    tol: float = 1e-6
    safeguard: bool = False
    warm_start: bool = False
    asks: bool = False
    penalty: Literal["firth"] | None = None
    weight_meaning: WeightMeaning = "frequency"
    tests: TestName = "none"
    test_type: TestType = "II"
    sums_only: bool = False
    stated: Prior | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class GLMSpec(GLMSettings, RunSpec):
    """The spec of a run of losses of the core; the settings are those of `GLMTask`.

    `centre` and `shift` are what sites subtract from their columns and their offsets.
    """

    engine: ClassVar[str] = "glm"
    in_vectors: ClassVar[frozenset[str]] = frozenset({"centre"})
    of_its_own: ClassVar[frozenset[str]] = frozenset({"agreement"})

    method: Method | Step
    prior: ExponentialFamily
    loss: str
    features: tuple[str, ...]
    classes: tuple[str, ...] = ()
    centre: Array | None = None
    shift: float = 0.0
    agreement: Agreement | None = None

    def __post_init__(self) -> None:
        require_sums(self.method)
        require_work(solver=self.solver, expectation=self.expectation)
        if FAMILIES.name_of(type(self.prior)) is None:
            raise ValueError(
                f"prior must be one of the families {', '.join(FAMILIES)} to be sent, got {type(self.prior).__name__}."
            )
        if not isinstance(self.prior, Gaussian) and not self.prior.arguments:
            raise ValueError(
                f"prior must be of a family with `arguments` to be sent, and {type(self.prior).__name__} has none."
            )
        require_family(self.row, self.prior)
        if self.sketch_size > self.dim**2:
            raise ArgumentError("method", f"must have a sketch of at most {self.dim**2} numbers", self.sketch_size)
        if self.stated is not None:
            self.stated.require(self.row, type(self.prior), self.has_intercept)
        read_rule(self.row, self.expectation)
        self.step.require_start(self.prior)
        # of the type that a site reads, or its digest of the same spec would be another
        object.__setattr__(self, "tol", as_positive(self.tol, "tol"))
        super().__post_init__()
        if self.asks:
            posed = self.problem
            posed.layout.require_names(posed.names, posed.outputs)
        if self.sums_only and (self.asks or self.safeguard or not (self.step.at_mean and self.step.takes_back)):
            raise ArgumentError("sums_only", "must be off but for guarded Newton without questions and safeguard")
        if self.penalty and not (self.asks and self.step.at_mean and type(self.prior) is FullGaussian):
            raise ArgumentError("penalty", "must be None unless the fit is by maximum likelihood", repr(self.penalty))

    @property
    def lines(self) -> tuple[str, ...]:  # type: ignore[override]
        """Sentences on what the sites agreed on."""
        return () if self.agreement is None else self.agreement.lines

    def with_lines(self, lines: tuple[str, ...]) -> Self:
        return self if self.agreement is None else replace(self, agreement=replace(self.agreement, lines=lines))

    @property
    def step(self) -> Step:
        """The step of the method."""
        return as_step(self.method)

    @property
    def row(self) -> Method:
        """Scalars of Eq. 15, 16 and 54."""
        return self.step.row

    @property
    def problem(self) -> Problem:
        """The fit of a GLM that the run is of; its kind is None for other losses."""
        p = len(self.features) - self.has_intercept
        outputs = max(self.dim // max(len(self.features), 1), 1)
        centre = None if self.centre is None else self.centre[:p]
        kind = kind_of_loss(self.loss) if is_kind_of_loss(self.loss) else None
        n_auxiliary = 0 if kind is None else len(kind.auxiliaries(self.classes))
        return Problem(
            kind=kind,  # type: ignore[arg-type]
            layout=Layout(p, outputs, self.has_intercept, centre, self.shift),
            names=self.features[:p],
            sites=self.sites,
            prior=self.prior,
            tol=self.tol,
            classes=self.classes,
            stated=self.stated,
            is_likelihood=self.step.at_mean,
            penalty=self.penalty,
            weights=self.weight_meaning,
            terms=terms_of(self.features[:p], self.agreement, n_auxiliary),
            tests=self.tests,
            test_type=self.test_type,
        )

    def posed(self, problem: Problem) -> Self:
        """Return the spec of a problem whose origin, prior or tolerance a fit has changed."""
        layout, centre = problem.layout, self.centre
        if layout.centre is not None and (centre is None or layout.centre is not centre[: layout.n_features]):
            centre = np.append(layout.centre, [0.0] * layout.has_intercept)
        return replace(self, prior=problem.prior, tol=problem.tol, centre=centre, shift=layout.shift)

    @property
    def named(self) -> frozenset[str]:
        told = self.agreement
        raw = () if told is None else (*told.columns, told.target, *(term.name for term in told.terms))
        return frozenset((*self.features, *raw))

    @property
    def has_intercept(self) -> bool:
        """Return whether the last column is one of ones."""
        return bool(self.features) and self.features[-1] == INTERCEPT

    @property
    def memory(self) -> int:
        """Rounds remembered by an accelerated method; 0 without."""
        return self.step.remembers

    @property
    def limit(self) -> int:
        """Rounds at most."""
        return self.rounds if self.row.max_rounds is None else min(self.rounds, self.row.max_rounds)

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return int(self.prior.natural.linear.size)

    @property
    def sketch_size(self) -> int:
        """Numbers of a site's sketch; 0 where sites keep none."""
        return 0 if self.step.sketch is None else self.step.sketch.size(self.dim)

    @property
    def told_size(self) -> int:
        """Numbers of the sketches that a site is told beside λ_g."""
        kind = self.step.sketch
        return 0 if kind is None or self.row.client != "proximal" else context_floats(kind, self.dim, len(self.sites))

    @property
    def answer_size(self) -> int:
        """Numbers of a question or an answer, or of the table in a final message, at most."""
        d, p = self.prior.natural.linear.size, len(self.features)
        return 4 * d * d + 8 * d + 2 * (p + 1 + d) ** 2 + MOST_OUTPUTS

    pack_question = staticmethod(glm_questions.pack_question)
    question_made = glm_questions.question_made
    answer_made = glm_questions.answer_made
    read_table = glm_questions.read_table

    @property
    def certified(self) -> tuple[int, float]:
        return self.prior.natural.linear.size, self.tol

    @property
    def rule(self) -> Rule:
        """The rule before each loss resolves it."""
        return read_rule(self.row, self.expectation)

    @property
    def shares(self) -> tuple[float, ...]:
        """N_k/N."""
        total = sum(self.weights) or 1.0
        return tuple(weight / total for weight in self.weights)

    def asked(self, round: int) -> frozenset[Ask]:
        own: frozenset[Ask] = frozenset({"own"} if self.step.begins == "sites" else ())
        return own | {self.step.asks(round), "sums"}

    def curvature_size(self, ask: Ask | None) -> int:
        """Return the numbers of E[∇²ℓ_k] that a site tells beside the family's part, for the direction of a search."""
        step, prior = self.step, self.prior
        if not isinstance(prior, Gaussian):
            return 0
        # a site whose precision is fixed has its whole curvature in the sums
        searches = ask == "sums" and step.takes_back and prior.learns_precision
        evaluates = ask == "evaluate" and step.line is not None and (step.takes_back or not step.at_mean)
        return dense_size(prior.start()) if searches or evaluates else 0

    def answered(self, ask: Ask | None) -> frozenset[str]:
        """Return the vectors of an answer: λ_k, and η_k where the server cannot follow it to the last bit.

        A client that solves nothing around q_g has λ_k = λ_g, and sends η_k alone.
        """
        row, solves = self.row, ask == "solve"
        if self.step.sketch is not None:
            return frozenset({"natural", "site", "sketch"} if solves else {"site", "sketch"})
        if not solves:
            return frozenset({"site"})
        followed = row.dual_rule.reads_natural or row.dual_step == 0.0
        return frozenset({"natural"} if followed else {"natural", "site"})

    @property
    def certificate_like(self) -> Natural:
        """Zeros of the shapes that a site sends for the certificate: (g, H), H dense if not learned, or ∇_μ E."""
        if not isinstance(self.prior, Gaussian) or self.prior.learns_precision:
            return self.prior.natural
        return Natural(np.zeros(self.prior.dim), np.zeros((self.prior.dim, self.prior.dim)))

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the spec as JSON values and vectors, without the agreement's lines, which tell of single sites."""
        header, _ = super().encode()
        arrays = {} if self.centre is None else {"centre": self.centre}
        header["prior"], parts = _encode_prior(self.prior)
        header["agreement"] = None if self.agreement is None else asdict(self.agreement)
        if self.agreement is not None:
            del header["agreement"]["lines"]
        if parts is not None:
            arrays["prior"] = parts.to_vector()
        return {name: value for name, value in header.items() if name not in self.in_vectors}, arrays

    @classmethod
    def decode(cls, plain: dict[str, Any], vectors: Mapping[str, Array], most: int) -> Self:
        prior = _decode_prior(plain.pop("prior"), vectors, most)
        agreement: Any = Agreement | None
        agreement = read_as(agreement, plain.pop("agreement"), "agreement")
        if agreement is not None and agreement.lines:
            raise refusal("lines", "left out of messages to sites", f"{len(agreement.lines)} of them")
        values = {**cls.settings(plain), "agreement": agreement}
        if agreement is not None:
            agreement.require_columns(len(values["features"]))
        if "centre" in vectors:
            values["centre"] = sized(vectors, "centre", len(values["features"]))
        return cls(prior=prior, **values)


def require_sums(method: Method | Step) -> None:
    """Raise where replies of a method would hold more than sums of first and second order.

    The fourth-order tensor of a joint Newton step is a sum of fourth powers of rows: with fewer rows than d(d−1)/2 its
    decomposition is unique, and it gives every row.
    """
    step = as_step(method)
    if not step.is_between_sites:
        expected = "must send sums of first and second order between sites"
        advice = "take Guarded(Accelerated(PVI())), or leave the method out; in one process JointNewton stays"
        raise ArgumentError("method", expected, step.name, advice)
    inside: Step | None = step
    while inside is not None:
        for name in ("context", "beside"):  # messages have no field for what these add, and would lose it
            if not getattr(type(inside), name).__module__.startswith("bayesadmm_np."):
                expected = f"must have no `{name}` of its own between sites, whose messages have no such field"
                raise ArgumentError("method", expected, type(inside).__name__, "run it in one process")
        inside = getattr(inside, "inner", None)


def state_size(size: int, n_sites: int, memory: int) -> int:
    """Return the numbers of a state: λ_g, where sites told their values, a step, η_k, λ_k, and what acceleration keeps.

    That is as many η_k and moves. `size` are the numbers of one of them, and two of them hold the three of a step.
    """
    rounds = memory + 1 if memory else 0
    return (4 + 2 * n_sites + rounds * (2 * n_sites + 2)) * size + n_sites


@dataclass(frozen=True)
class GLMTask(GLMSettings):
    """Task of a server for sites with losses of the core; settings are those of `bayesadmm_np.run`.

    Parameters
    ----------
    method : Method, Step or callable
        A callable is method(d, C) -> Method or Step; the numbers of parameters and of predictors a row are known
        when the sites have said hello. A row whose replies hold tensors, `JointNewton`, is refused.
    prior : ExponentialFamily or callable
        A callable is prior(d) -> ExponentialFamily.
    rounds : int, default 100
    seed : int, default 0
    choices : dict, optional
        Of `design.formula.agree`, where sites have tables: reference, ignore_case, site_intercepts, reference_site,
        as_written.
    expectation : Rule, optional
    solver : Solver, optional
    tol : float, default 1e-6
    safeguard : bool, default False
    warm_start : bool, default False
    asks : bool, default False
        Whether sites are asked for the sums of a table, before and after the rounds; see `glm_questions`.
    penalty : {'firth'}, optional
        Firth's penalty, of a likelihood without a prior; the fit is then made by questions alone.
    weight_meaning : {'frequency', 'analytic'}
        A weight of 2 is the row twice, or a row of half the variance; see `glm.site_statistics`.
    tests : {'none', 'wald', 'lr', 'score'}
        Tests of terms in the table; those by fits without a term take some four exchanges for each.
    test_type : {'II', 'III'}
    sums_only : bool, default False
        Whether the server uses sums over sites alone; of a guarded Newton row without questions.
    stated : Prior, optional
        The prior as it was asked for, of which `prior` is the member in the units of the run, once these are known.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import GLMTask
    >>> GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0), tol=1e-8).rounds
    100
    """

    method: Method | Step | Callable[[int, int], Method | Step]
    prior: ExponentialFamily | Callable[[int], ExponentialFamily]
    rounds: int = 100
    seed: int = 0
    choices: Mapping[str, Any] | None = None

    model: ClassVar[None] = None

    def __post_init__(self) -> None:
        if isinstance(self.method, Method | Step):
            require_sums(self.method)

    def spec(self, hellos: Sequence[Hello]) -> GLMSpec:
        named = sum(hello.named for hello in hellos)
        hellos, agreed = agreed_hellos(hellos, self.choices)
        first = hellos[0]
        require_alike(hellos)
        self._require_room(hellos, most_numbers(named, {}))
        prior = self._prior(first.dim)
        if isinstance(prior, ExponentialFamily) and prior.natural.linear.shape != (first.dim,):
            size = prior.natural.linear.size
            raise ValueError(f"prior must have the {first.dim} parameters of the sites, got {size}.")
        spec = GLMSpec(
            sites=tuple(hello.site for hello in hellos),
            weights=tuple(hello.weight for hello in hellos),
            keys=keys_of(hellos),
            loss=first.loss,
            features=first.features,
            classes=first.classes,
            prior=prior,
            method=self._method(first.dim, first.features),
            **self._settings_of(first.loss),
            **agreed,
        )
        return self._with_prior(spec)

    def again(self, spec: GLMSpec, rows: Sequence[int]) -> GLMSpec:
        dim = spec.prior.natural.linear.size
        settings, method = self._settings_of(spec.loss), self._method(dim, spec.features)
        return self._with_prior(replace(spec, prior=self._prior(dim), method=method, **settings))

    def _with_prior(self, spec: GLMSpec) -> GLMSpec:
        """Return the spec with the prior that was stated, where no site will be asked about it."""
        return spec if self.asks else spec.posed(state_prior(Prepared(spec.problem), None).problem)

    def _require_room(self, hellos: Sequence[Hello], most: int) -> None:
        """Refuse more parameters than hellos may ask for, or a server can keep of all sites, before any is made."""
        # two parameters tell a family with a dense precision from one without; a prior that is none, or that can be
        # made of one size only, is left to the checks of what it is, whatever error it makes of two
        try:
            small = self._prior(2)
        except Exception:
            return
        if not isinstance(small, ExponentialFamily) or small.natural.linear.shape != (2,):
            return
        dense = not isinstance(small, BlockDiagonalGaussian) and (2, 2) in small.natural.shapes
        dim = hellos[0].dim
        size = dim + (dim * (dim + 1) // 2 if dense else 0)
        if size > most:
            raise hellos[0].refusal("dim", f"that of a parameter of at most {most} numbers, got {size} with", dim)
        method = self._method(dim, hellos[0].features)
        require_room(hellos[0], len(hellos), state_size(size, len(hellos), as_step(method).remembers))

    def _method(self, dim: int, features: Sequence[str]) -> Any:
        method: Any = self.method
        # a row's own function is no choice: it is refused, as elsewhere
        is_choice = callable(method) and TABLE.name_of(method) is None
        return method(dim, max(1, dim // max(1, len(features)))) if is_choice else method

    def _prior(self, dim: int) -> Any:
        return self.prior if isinstance(self.prior, ExponentialFamily) or not callable(self.prior) else self.prior(dim)

    def _settings_of(self, loss: str) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name not in ("prior", "method", "choices")}
        if is_kind_of_loss(loss) and kind_of_loss(loss).has_trials:  # a row of events over trials is one observation
            found["weight_meaning"] = "analytic"
        return found


def require_alike(hellos: Sequence[Hello]) -> None:
    """Raise unless the sites have the same loss, columns and classes."""
    first = hellos[0]
    for other in hellos[1:]:
        for field in ("loss", "features", "classes", "dim"):
            own, told = first.plain[field], other.plain[field]
            if told != own:
                raise other.refusal(field, f"as in {first.source}, {own!r}", told)
    for field in ("features", "classes"):
        for name, count in Counter(getattr(first, field)).most_common(1):
            if count > 1:
                raise first.refusal(field, f"different names at site {first.site}", f"{name!r} twice")
    for hello in hellos:
        if not 0 < hello.weight <= MOST_ROWS:
            raise hello.refusal("weight", f"> 0 and at most {MOST_ROWS}", hello.weight)
    width = len(first.features)
    # every parameter has a column that was named: a hello cannot ask for more memory than it takes itself
    if not width or first.dim % width or first.dim > width * max(MOST_OUTPUTS, len(first.classes)):
        raise first.refusal("dim", f"a multiple of the number of features, {width}", first.dim)


MOST_OUTPUTS = 1 << 12
"""Classes of a site that does not name them."""


# --- Priors ---------------------------------------------------------------------------------------------------


def _encode_prior(prior: ExponentialFamily) -> tuple[dict[str, Any], Natural | None]:
    """Return a prior as JSON values, and as vectors what these do not say."""
    name = type(prior).__name__
    if not isinstance(prior, Gaussian):
        # as it was made: from λ its parameters would come back with another last digit
        parts = Natural(*(getattr(prior, argument) for argument in prior.arguments))
        return {"family": name, "shapes": [list(part.shape) for part in parts.parts]}, parts
    parts = Natural(prior.mean, *prior.factor.parts)
    plain: dict[str, Any] = {"family": name, "shapes": [list(part.shape) for part in parts.parts]}
    mean, precision = float(prior.mean[0]), float(prior.factor.parts[0].flat[0])
    try:
        short = _family(name, [[mean] * prior.dim, precision], plain["shapes"])
    except ValueError:
        short = None
    # most priors are two numbers: sent as such, they do not make every broadcast twice as long
    if short is not None and _same(short, prior):
        return plain | {"mean": mean, "precision": precision}, None
    return plain, parts


@np.errstate(over="ignore", invalid="ignore")  # an infinite precision is refused as such
def _decode_prior(plain: Any, vectors: Mapping[str, Array], most: int) -> ExponentialFamily:
    """Inverse of `_encode_prior`; of at most so many numbers, which are counted before any is made."""
    shapes = [tuple(shape) for shape in plain["shapes"]]
    size = prior_size(plain["family"], shapes, most)
    family: Any = FAMILIES[plain["family"]]
    parts = None
    if "prior" in vectors:
        vector = sized(vectors, "prior", size)  # before its matrices are made
        parts = Natural(*(np.zeros(shape) for shape in shapes)).from_vector(vector).parts
    if not issubclass(family, Gaussian):
        if parts is None or len(shapes) != len(family.arguments):
            raise ValueError(f"a prior of this family has the vectors {', '.join(family.arguments)}")
        member: ExponentialFamily = family(*parts)
        return member
    if parts is None:
        mean, precision = (read_as(float, plain[name], name) for name in ("mean", "precision"))
        return _family(plain["family"], [[mean] * shapes[0][0], precision], shapes)
    return _family(plain["family"], list(parts), shapes)


def _family(name: str, arguments: list[Any], shapes: list[Any]) -> Gaussian:
    """Make a prior from a mean and its precision's parts, or from a mean and one number."""
    family: Any = FAMILIES[name]
    mean, *precision = arguments
    if family is BlockDiagonalGaussian:
        scalar = np.ndim(precision[0]) == 0
        blocks = {"blocks": [shape[0] for shape in shapes[1:]]} if scalar else {}
        return BlockDiagonalGaussian(mean, precision[0] if scalar else precision, **blocks)
    if family is IsotropicGaussian:
        return IsotropicGaussian(mean, float(np.ravel(precision[0])[0]))
    made: Gaussian = family(mean, precision[0])
    return made


def _same(one: Gaussian, other: Gaussian) -> bool:
    parts = zip((one.mean, *one.factor.parts), (other.mean, *other.factor.parts), strict=True)
    return type(one.factor) is type(other.factor) and all(np.array_equal(a, b) for a, b in parts)
