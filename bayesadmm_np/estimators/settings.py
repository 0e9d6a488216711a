"""Constructor arguments of an estimator, checked together in `fit`, and the prior that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from joblib import effective_n_jobs

from .._errors import ArgumentError
from .._text import word
from .._validation import Array, as_count, as_float_array, as_fraction, as_positive, as_switch
from ..families import FullGaussian
from ..families.gaussian import Gaussian
from ..families.gaussians import FAMILIES
from ..glm.kinds import Kind, read_kind
from ..glm.layout import Layout
from ..glm.prior import EVIDENCE, Prior, Unit
from ..glm.problem import Problem
from ..glm.site_statistics import WeightMeaning
from ..losses.base import Loss
from ..splitting.average import as_step
from ..splitting.guarded import Guarded
from ..splitting.method import Method
from ..splitting.methods import PVI, TABLE, Newton, recommended
from ..splitting.step import Step
from .fitted import STACKED_QR

Word = TypeVar("Word", bound=str)
WEIGHT_MEANINGS: tuple[WeightMeaning, ...] = get_args(WeightMeaning)
MINIMUM_NORM: Literal["minimum_norm"] = "minimum_norm"


@dataclass(frozen=True)
class Settings:
    """Settings of one `fit`.

    The evidence chooses a `precision` of None, and 0 is no prior; a `noise` of None is estimated. `options` go to
    `run`. With `is_relative`, `precision` is times the noise variance, as scikit-learn's alpha is. `prior` says what
    the precision is of.
    """

    method: Method | Step
    family: type[Gaussian]
    inference: Literal["likelihood", "posterior"]
    precision: float | Array | None
    prior: Prior
    noise: float | None
    fit_intercept: bool
    options: dict[str, Any]
    penalty: Literal["firth"] | None = None
    is_relative: bool = False
    is_auto: bool = False
    weights: WeightMeaning = "frequency"
    dependent: Literal["hold", "minimum_norm"] = "hold"

    def chosen(self, losses: Sequence[Loss]) -> Settings:
        """Return the settings with the default method for these losses, where the method was left to be chosen."""
        if not self.is_auto or self.inference != "posterior":
            return self
        prior = self.family(np.zeros(losses[0].dim), 1.0)
        return replace(self, method=recommended(prior, losses))

    @property
    def step(self) -> Step:
        """The step of the method."""
        return as_step(self.method)

    @property
    def row(self) -> Method:
        """Scalars of Eq. 15, 16 and 54."""
        return self.step.row

    @property
    def takes_sites(self) -> bool:
        """Return whether the run can start from sites: the server adds them to the prior, in more than one round."""
        row = self.row
        return row.dual_step > 0 and row.prior_at == "server" and row.max_rounds is None

    @property
    def learns_covariance(self) -> bool:
        """Return whether the family's precision is learned."""
        return self.family.learns_precision

    @property
    def is_flat(self) -> bool:
        """Return whether there is no prior: the likelihood alone determines the coefficients."""
        return isinstance(self.precision, float) and self.precision == 0.0

    @property
    def averages(self) -> bool:
        """Return whether predictions are averaged over the posterior."""
        return self.inference == "posterior" and self.learns_covariance

    @property
    def is_free_intercept(self) -> bool:
        """Return whether there is an intercept that the prior leaves alone."""
        return self.fit_intercept and not self.prior.penalize_intercept

    def problem(
        self, kind: Kind, layout: Layout, names: tuple[str, ...], sites: tuple[Any, ...], classes: Iterable[Any]
    ) -> Problem:
        """Return the problem of these settings; its prior is a member of the family once its units are known."""
        dim = layout.dim
        return Problem(
            kind=kind,
            layout=layout,
            names=names,
            sites=sites,
            prior=FullGaussian(np.zeros(dim), 0.0) if self.is_flat else self.family(np.zeros(dim), 1.0),
            tol=self.options["tol"],
            classes=tuple(map(word, classes)),
            stated=self.prior if self.precision is None else self.prior.at(self.precision),
            precision=self.precision if isinstance(self.precision, np.ndarray) else None,
            is_likelihood=self.inference == "likelihood",
            penalty=self.penalty,
            weights=self.weights,
            is_relative=self.is_relative,
            dependent=self.dependent,
        )

    def prior_precision(self, noise: float) -> float | Array:
        """Return the prior's precision at a noise variance."""
        assert self.precision is not None
        return self.precision / noise if self.is_relative else self.precision

    def require_evidence(self, argument: str) -> None:
        """Refuse `argument="evidence"` where the objective of the run is no bound on the evidence."""
        row = self.row
        is_delta = row.expectation is not None and row.expectation.is_delta
        if not self.learns_covariance or is_delta or not self.takes_sites:
            raise ValueError(
                f"{argument}='evidence' needs a method that reaches the pooled variational posterior with a learned "
                f"covariance, such as PVI with family='full'; {row.name} with {self.family.__name__} does not. "
                "Give a number."
            )


def read_settings(estimator: Any) -> Settings:
    """Check the arguments that all estimators share."""
    if estimator.penalty is not None:
        read_choice(estimator.penalty, "penalty", ("firth",))
    inference = _read_inference(estimator)
    is_exact = inference == "likelihood" and read_kind(estimator.kind).is_least_squares
    method = STACKED_QR if is_exact else _read_method(estimator.method, estimator.family, inference)
    row = as_step(method).row
    precision = _read_precision(estimator.prior_precision)
    row_has_dual = row.dual_step > 0 and row.prior_at == "server"
    settings = Settings(
        method=method,
        family=_read_family(estimator.family, row),
        inference=inference,
        precision=precision,
        prior=Prior(
            unit=read_choice(estimator.prior_unit, "prior_unit", get_args(Unit)),
            penalize_intercept=as_switch(estimator.penalize_intercept, "penalize_intercept"),
            precision=EVIDENCE,
        ),
        noise=read_noise(estimator.noise_variance, inference),
        fit_intercept=as_switch(estimator.fit_intercept, "fit_intercept"),
        options={
            "rounds": as_count(estimator.max_rounds, "max_rounds"),
            "tol": as_positive(estimator.tol, "tol"),
            "participation": _read_participation(estimator.participation, inference),
            "seed": _read_seed(estimator.random_state),
            "n_jobs": _read_jobs(estimator.n_jobs),
            "progress": as_switch(estimator.progress, "progress"),
            "safeguard": row_has_dual,
        },
        penalty=estimator.penalty,
        is_auto=isinstance(estimator.method, str) and estimator.method == "auto",
        weights=read_choice(estimator.weight_meaning, "weight_meaning", WEIGHT_MEANINGS),
        dependent=read_choice(getattr(estimator, "dependent", "hold"), "dependent", ("hold", MINIMUM_NORM)),
    )
    as_switch(estimator.warm_start, "warm_start")
    if precision is not None:
        settings = replace(settings, prior=settings.prior.at(precision))
    settings.prior.require(row, settings.family, settings.fit_intercept)
    if precision is None:
        settings.require_evidence("prior_precision")
    if settings.penalty and not (settings.is_flat and inference == "likelihood"):
        expected = "must be None unless the fit is by maximum likelihood, without a prior"
        raise ArgumentError("penalty", expected, repr(settings.penalty))
    return settings


def read_choice(value: Any, name: str, choices: Iterable[Word]) -> Word:
    """Check one of several words."""
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise ArgumentError(name, f"must be one of {', '.join(map(repr, choices))}", repr(value))


def _read_inference(estimator: Any) -> Literal["likelihood", "posterior"]:
    """Resolve "auto": the likelihood, unless another argument asks for what a posterior alone has."""
    given = read_choice(estimator.inference, "inference", ("auto", "likelihood", "posterior"))
    asks = {
        "prior_precision": isinstance(estimator.prior_precision, str),
        "method": not (isinstance(estimator.method, str) and estimator.method == "auto"),
        "family": estimator.family not in ("auto", "full"),
        "noise_variance": isinstance(estimator.noise_variance, str) and estimator.noise_variance == EVIDENCE,
    }
    named = [name for name, asked in asks.items() if asked]
    if given == "likelihood" and named:
        value = getattr(estimator, named[0])
        raise ArgumentError("inference", f"must be 'posterior' with {named[0]}={value!r}", "'likelihood'")
    return ("posterior" if named else "likelihood") if given == "auto" else given  # type: ignore[return-value]


def _read_method(method: Any, family: Any, inference: str) -> Method | Step:
    if isinstance(method, Method | Step):
        return method
    if inference == "likelihood":
        return Guarded(Newton())
    if isinstance(method, str) and method == "auto":
        return PVI()  # stands for the one that is chosen once the losses are known
    if isinstance(method, str) and method in TABLE:
        return TABLE[method]()
    names = ", ".join(repr(name) for name in ("auto", *TABLE))
    raise ArgumentError("method", f"must be one of {names}, or a row of bayesadmm_np.methods", repr(method))


def _read_family(family: Any, row: Method) -> type[Gaussian]:
    name = read_choice(family, "family", ("auto", *FAMILIES))
    if name == "auto":
        allowed = row.families or tuple(FAMILIES.values())
        return next(kind for kind in FAMILIES.values() if kind in allowed)
    chosen = FAMILIES[name]
    if row.families and chosen not in row.families:
        fitting = " or ".join(repr(key) for key, kind in FAMILIES.items() if kind in row.families)
        raise ArgumentError("family", f"must be {fitting} for method {row.name}", repr(name))
    return chosen


def _read_precision(value: Any) -> float | Array | None:
    if isinstance(value, str) and value == EVIDENCE:
        return None
    if isinstance(value, str):
        raise ArgumentError("prior_precision", "must be a number, an array or 'evidence'", repr(value))
    array = as_float_array(value, "prior_precision", ndim=(0, 1, 2))
    if array.ndim:
        return array
    if not 0.0 <= array < np.inf:
        raise ArgumentError("prior_precision", "must be a number >= 0, an array or 'evidence'", f"{float(array):g}")
    return float(array)


def read_noise(value: Any, inference: str) -> float | None:
    """Check a noise variance; None where it is estimated."""
    estimate = "unbiased" if inference == "likelihood" else EVIDENCE
    if isinstance(value, str) and value in ("auto", estimate):
        return None
    if isinstance(value, str):
        raise ArgumentError("noise_variance", f"must be a number, 'auto' or {estimate!r} of a {inference}", repr(value))
    return as_positive(value, "noise_variance")


def _read_participation(value: Any, inference: str) -> Any:
    if callable(value):
        return value
    share = as_fraction(value, "participation")
    if share < 1.0 and inference == "likelihood":
        expected = "must be 1 with inference='likelihood', whose steps are judged at all sites"
        raise ArgumentError(
            "participation", expected, f"{share:g}", "take inference='posterior', or a function of who is there"
        )
    return share


def _read_seed(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, np.random.Generator):
        return int(value.integers(2**31))
    if isinstance(value, np.random.RandomState):
        return int(value.randint(2**31 - 1))
    return as_count(value, "random_state", minimum=0)


def _read_jobs(value: Any) -> int:
    if value is None:
        return 1
    if isinstance(value, int | np.integer) and value != 0:
        return int(effective_n_jobs(int(value)))
    raise ArgumentError("n_jobs", "must be None or an integer other than 0", repr(value))
