"""Constructor arguments of an estimator, checked together in `fit`, and the prior that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from joblib import effective_n_jobs

from .._errors import ArgumentError
from .._validation import Array, as_count, as_float_array, as_fraction, as_positive, as_switch
from ..design.rows import Layout
from ..families import DiagonalGaussian, FullGaussian, IsotropicGaussian
from ..families.gaussian import Gaussian
from ..families.gaussians import FAMILIES
from ..glm.inference import Noise
from ..glm.kinds import Kind, read_kind
from ..glm.problem import HOLD, Glm
from ..glm.site_statistics import WeightMeaning
from ..losses.base import Loss
from ..splitting.accelerated import Accelerated
from ..splitting.choice import posterior_method
from ..splitting.guarded import Guarded
from ..splitting.methods import PVI, TABLE, Method, Newton
from .fitted import STACKED_QR

EVIDENCE = "evidence"
MINIMUM_NORM: Literal["minimum_norm"] = "minimum_norm"

FLAT = 1e-8
"""Prior precision ε of a posterior's unpenalised intercept, relative to the information I that all rows hold on it.

Centred at the null model's intercept b, the prior moves the intercept m by ε√I (m − b) standard errors, and a slope by
no more: Σ Λ₀ (b − m) with Λ₀ = εI on the intercept alone and |Σ_0j| <= √(Σ_00 Σ_jj). So that rows without number do
not make this large, ε falls to `FLAT`/√I, but not below `LEAST`, which sums in double precision still resolve.
"""
LEAST = 1e-12


@dataclass(frozen=True)
class Settings:
    """Settings of one `fit`.

    The evidence chooses a `precision` of None, and 0 is no prior; a `noise` of None is estimated. `options` go to
    `run`. With `is_relative`, `precision` is times the noise variance, as scikit-learn's alpha is.
    """

    method: Method | Accelerated
    family: type[Gaussian]
    inference: Literal["likelihood", "posterior"]
    precision: float | Array | None
    noise: float | None
    fit_intercept: bool
    penalize_intercept: bool
    options: dict[str, Any]
    penalty: Literal["firth"] | None = None
    is_relative: bool = False
    is_auto: bool = False
    weights: WeightMeaning = "frequency"
    dependent: Literal["hold", "minimum_norm"] = "hold"

    def chosen(self, losses: Sequence[Loss]) -> Settings:
        """Return the settings with the default method for these losses, where the method was left to be chosen.

        A joint Newton step is made with all sites, and so it is not the default where some are not asked.
        """
        if not self.is_auto or self.inference != "posterior":
            return self
        has_tensors = all(loss.has_tensors for loss in losses) and self.options["participation"] == 1.0
        is_convex = all(loss.is_convex for loss in losses)
        first, kind = losses[0], self.family
        method = posterior_method(
            kind, first.dim, has_tensors=has_tensors, is_convex=is_convex, n_outputs=first.n_outputs
        )
        return replace(self, method=method)

    @property
    def row(self) -> Method:
        """The row of the table."""
        return self.method.method if isinstance(self.method, Accelerated) else self.method

    @property
    def takes_sites(self) -> bool:
        """Whether the run can start from sites: the server adds them to the prior, in more than one round."""
        row = self.row
        return row.dual_step > 0 and row.prior_at == "server" and row.max_rounds is None

    @property
    def learns_covariance(self) -> bool:
        """Whether the family's precision is learned."""
        return self.family.learns_precision

    def noise_source(self, kind: Kind) -> Noise:
        """Where the noise variance of a kind comes from."""
        return "none" if not kind.has_noise else "estimated" if self.noise is None else "given"

    @property
    def is_flat(self) -> bool:
        """Whether there is no prior: the likelihood alone determines the coefficients."""
        return isinstance(self.precision, float) and self.precision == 0.0

    @property
    def averages(self) -> bool:
        """Whether predictions are averaged over the posterior."""
        return self.inference == "posterior" and self.learns_covariance

    @property
    def is_free_intercept(self) -> bool:
        """Whether there is an intercept that the prior leaves alone."""
        return self.fit_intercept and not self.penalize_intercept

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
    row = method.method if isinstance(method, Accelerated) else method
    precision = _read_precision(estimator.prior_precision)
    row_has_dual = row.dual_step > 0 and row.prior_at == "server"
    settings = Settings(
        method=method,
        family=_read_family(estimator.family, row),
        inference=inference,
        precision=precision,
        noise=read_noise(estimator.noise_variance, inference),
        fit_intercept=as_switch(estimator.fit_intercept, "fit_intercept"),
        penalize_intercept=as_switch(estimator.penalize_intercept, "penalize_intercept"),
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
        weights=read_weights(estimator.weight_meaning),
        dependent=_read_dependent(getattr(estimator, "dependent", "hold")),
    )
    as_switch(estimator.warm_start, "warm_start")
    _check_family(settings)
    if precision is None:
        settings.require_evidence("prior_precision")
    if settings.penalty and not (settings.is_flat and inference == "likelihood"):
        expected = "must be None unless the fit is by maximum likelihood, without a prior"
        raise ArgumentError("penalty", expected, repr(settings.penalty))
    return settings


def read_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    """Check one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(name, f"must be one of {', '.join(map(repr, choices))}", repr(value))
    return value


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
    if given == "auto":
        return "posterior" if named else "likelihood"
    return "likelihood" if given == "likelihood" else "posterior"


def _read_method(method: Any, family: Any, inference: str) -> Method | Accelerated:
    if isinstance(method, Method | Accelerated):
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


def _check_family(settings: Settings) -> None:
    if not settings.is_free_intercept:
        return
    if not settings.learns_covariance:
        why = "whose one fixed precision is the prior and the metric of every step at once"
        expected = f"must be True for {settings.family.__name__}, {why}"
        raise ArgumentError("penalize_intercept", expected, False, "or take another family, such as 'full'")
    if not settings.takes_sites:
        why = "which starts from the prior alone: without one it knows nothing about the intercept"
        raise ArgumentError("penalize_intercept", f"must be True for {settings.row.name}, {why}", False)


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


def read_weights(value: Any) -> WeightMeaning:
    """Check the meaning of row weights."""
    return "frequency" if read_choice(value, "weight_meaning", get_args(WeightMeaning)) == "frequency" else "analytic"


def _read_dependent(value: Any) -> Literal["hold", "minimum_norm"]:
    return "hold" if read_choice(value, "dependent", ("hold", MINIMUM_NORM)) == "hold" else MINIMUM_NORM


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


def make_prior(settings: Settings, precision: float | Array, glm: Glm, noise: float) -> Gaussian:
    """Return the prior of the family: of mean zero, but flat (`FLAT`) about the null model for a free intercept."""
    layout, family = glm.layout, settings.family
    if family is not FullGaussian and np.ndim(precision) == 0 and precision == 0.0:
        raise ArgumentError("prior_precision", f"must be > 0 for {settings.row.name} with {family.__name__}", 0)
    if family is IsotropicGaussian:
        if np.ndim(precision):
            raise ArgumentError("prior_precision", "must be a number for the isotropic family")
        return IsotropicGaussian(np.zeros(layout.dim), precision)
    mean = np.zeros(layout.dim)
    block = _one_output(settings, precision, layout)
    if block.ndim == 2 and family is DiagonalGaussian:
        raise ArgumentError("prior_precision", "must be a number or a vector for the diagonal family", "a matrix")
    if block.ndim == 2 or family is FullGaussian:
        block = block if block.ndim == 2 else np.diag(block)
        whole = np.asarray(np.kron(np.eye(layout.n_outputs), block), dtype=np.float64)
    else:
        whole = np.tile(block, layout.n_outputs)
    if settings.is_free_intercept:
        exact = settings.inference == "likelihood" or (np.ndim(precision) == 0 and precision == 0.0)
        information = glm.information / noise
        share = max(FLAT / max(1.0, np.sqrt(information)), LEAST)
        share = 0.0 if exact and not glm.has_flat_shift else share
        whole = _free_intercepts(whole, glm, information, share)
        mean = np.where(layout.is_intercept, glm.null_parameter, 0.0) if share else mean
    for j in glm.held:
        whole[j, j] = HOLD * glm.information_on(j) / noise
    try:
        return family(mean, whole)
    except ValueError as error:
        raise ValueError(f"prior_precision: {error}") from error


def _one_output(settings: Settings, precision: float | Array, layout: Layout) -> Array:
    """The diagonal (width,) or the matrix (width, width) for one output; the free intercept's entry is still zero."""
    p, width = layout.n_features, layout.width
    if np.ndim(precision) == 0:
        return np.full(width, float(precision))
    array = np.asarray(precision, dtype=np.float64)
    given = p if settings.is_free_intercept else width
    if array.shape != (given,) * array.ndim:
        last = " and the intercept, which comes last" if given > p else ""
        raise ValueError(
            f"prior_precision must be a number, or have shape ({given},) or ({given}, {given}) for the {p} features"
            f"{last}, got {array.shape}."
        )
    if given == width:
        return array
    padded = np.zeros((width,) * array.ndim)
    padded[(slice(0, p),) * array.ndim] = array
    return padded


def _free_intercepts(whole: Array, glm: Glm, information: float, share: float) -> Array:
    layout = glm.layout
    where = np.flatnonzero(layout.is_intercept)
    flat = share * information
    if not glm.has_flat_shift:
        whole[(where,) * whole.ndim] = flat
        return whole
    if whole.ndim == 1:
        raise ValueError(
            "penalize_intercept=False with three or more classes needs family='full': a common shift of all "
            "intercepts changes nothing, and only a dense prior can hold it without holding the intercepts."
        )
    # a shift common to all classes leaves the likelihood as it is: holding it at zero costs nothing
    mean = np.full((where.size, where.size), 1.0 / where.size)
    whole[np.ix_(where, where)] = flat * (np.eye(where.size) - mean) + information * mean
    return whole
