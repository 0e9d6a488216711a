"""The kinds of generalised linear model, one row each.

Loss, target, link, predictions, scores, titles and the choices of the commands follow from the row. A user's own
package adds one by `KINDS.register`; estimators, commands, model files and runs by files then find it by its name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, gammaln, ndtri, xlogy

from .._errors import ArgumentError
from .._registry import Registry, load_plugins
from .._validation import Array, as_float_array
from ..design.levels import TableError, level_name
from ..design.terms import Parsed
from ..losses.base import Loss
from ..losses.expectations import Delta, Exact, GaussHermite, QuasiMonteCarlo, Rule
from ..losses.generalized import LINKS, GeneralizedLinear
from ..losses.least_squares import LeastSquares
from ..losses.likelihood import SiteLikelihood
from ..losses.linear_model import LinearModelLoss
from ..losses.negative_binomial import NegativeBinomial
from ..losses.ordinal import LATENT, ProportionalOdds, class_chances
from ..losses.pointwise import BernoulliLogit, BinomialLogit, CategoricalLogit, Pointwise, PoissonLog
from ..losses.random_intercept import GaussianRandomIntercept, LogisticRandomIntercept
from ..losses.regression import Binomial, Logistic, Poisson, ReferenceSoftmax, Softmax
from ..losses.survival import CoxPartialLikelihood, PiecewiseExponential
from .refit import DerivativesQuestion, DesignQuestion, drive, refit

FARTHEST = 700.0
"""Replaces an infinite predictor, of a count of zero: its exponential is still a number."""

LARGEST_OFFSET = 1e4
"""A number that all offsets share is the intercept's; from here on it costs digits of the predictor."""
MOST_CUTS, MOST_NODES = 100, 100

OFFSET_ADVICE = "an offset is on the scale of the predictor, as the logarithm of a time at risk is"


@dataclass(frozen=True)
class Target:
    """Values that the target of a regression may hold, in the words of "y must hold …".

    `is_labels` is true for class labels; `allows` maps numbers to booleans, by default true for every finite number.
    """

    expected: str
    is_labels: bool = False
    allows: Callable[[Array], Any] | None = None

    def wrong(self, y: Array) -> float | None:
        """Return the first number that is not allowed, or None."""
        if self.allows is None:
            return None
        right = np.asarray(self.allows(y), dtype=bool)
        return None if right.all() else float(y[~right].min())


LABELS = Target("class labels", is_labels=True)
COUNTS = Target("counts or rates >= 0", allows=lambda y: y >= 0)
NUMBERS = Target("numbers")


@dataclass(frozen=True)
class Link:
    """Dependence of the mean μ of an observation on the predictor f: `forward` is μ → f, `inverse` f → μ.

    `moments` is (m, v) → mean and variance of μ under f ~ N(m, v), by default Gauss–Hermite quadrature with 32 nodes.
    """

    name: str
    forward: Callable[[Array], Array]
    inverse: Callable[[Array], Array]
    moments: Callable[[Array, Array], tuple[Array, Array]] | None = None

    def mean_and_variance(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return the mean and the variance of μ under f ~ N(mean, variance), each (n,)."""
        if self.moments is not None:
            return self.moments(mean, variance)
        nodes, weights = GaussHermite().nodes(1)
        values = self.inverse(mean[:, None] + np.sqrt(variance)[:, None] * nodes[:, 0])
        centre = values @ weights
        return centre, (values - centre[:, None]) ** 2 @ weights


def _log_normal(mean: Array, variance: Array) -> tuple[Array, Array]:
    centre = np.exp(mean + 0.5 * variance)
    return centre, np.expm1(variance) * centre**2


@np.errstate(divide="ignore")  # the logarithm of zero is −∞, which is right
def _log(mean: Array) -> Array:
    return np.asarray(np.log(mean))


IDENTITY = Link("identity", np.asarray, np.asarray, lambda mean, variance: (mean, variance))
LOG = Link("log", _log, np.exp, _log_normal)
LOGIT = Link("logit", lambda mean: _log(mean) - _log(1.0 - mean), expit)

FORMS = {
    "": "one column or expression as its target, and no random intercept",
    "survival": "Surv(time, status) as its target",
    "group": "a random intercept (1 | group)",
}
"""Formulas by the form of a kind."""

RULES: dict[str, Rule] = {
    "exact": Exact(),
    "quasi-monte-carlo": QuasiMonteCarlo(),
    "gauss-hermite": GaussHermite(),
    "plug-in": Delta(1),
}


def class_probabilities(mean: Array, spread: Array, how: str | None = None) -> Array:
    """Return E_q[p(y = c)] of the logit and the softmax, shape (n, C): each tail on its own, so that none is lost.

    The predictors have means (n,) or (n, C) and variances (n,) or (n, C, C). `how` is a key of `RULES`, or "probit"
    (MacKay's approximation) for two classes; default the most accurate.
    """
    if how == "probit":
        first = expit(mean / np.sqrt(1.0 + np.pi / 8.0 * spread))
        return np.column_stack([1.0 - first, first])
    if mean.ndim == 1:  # the slope of the loss of label 0 is E σ(f)
        rule, zeros = RULES[how or "exact"], np.zeros(mean.shape[0])
        tails = [rule.moments(BernoulliLogit(), sign * mean, spread, zeros).slope for sign in (-1.0, 1.0)]
        return np.column_stack(tails)
    # the slope is E p minus the indicator of a class: of the likely one, so that no small tail is lost
    top = mean.argmax(axis=1)
    rule = RULES[how or "quasi-monte-carlo"]
    slope = np.array(rule.moments(CategoricalLogit(mean.shape[1]), mean, spread, top.astype(np.float64)).slope)
    slope[np.arange(top.size), top] += 1.0
    return slope


@dataclass(frozen=True, eq=False)
class Kind:
    """A row of the table of generalised linear models. Two rows are equal when name and options are.

    Parameters
    ----------
    name : str
        Name, as in `FederatedGLM(kind=...)` and `--loss`.
    title : str
        Text before "of TARGET" in reports.
    target : Target
    link : Link
    pointwise : Pointwise, optional
        The loss of a row as a function of its predictor; may be left out where `loss` is given.
    loss : type, optional
        A `Loss` made from `X`, `y`, `weights` and `offset`, with one output a class also `n_classes`; default the
        linear model on `pointwise`.
    variance : callable, optional
        (E μ, E μ²) → E V(μ), the variance of an observation of mean μ, in units of the noise variance where there is
        one. Not asked of classes.
    constant : callable, optional
        y → what the loss leaves out of −log p(y | f), shape (n,), at a noise variance of 1; default zeros.
    outputs : {'one', 'classes', 'columns', 'ordered'}
        Predictors a row: one, one a class, or one a column of y. Ordered classes have one.
    has_reference : bool, default False
        Whether the first class has the predictor zero, so that the others' are log odds ratios against it.
    has_noise : bool, default False
        Whether a noise variance divides the loss, which the evidence may choose.
    expectation : Rule, optional
        Rule for E_q of the loss if the method has none; default as `Auto` chooses.
    probabilities : callable, optional
        Function of classes: (mean, spread, how) → (n, C); default `class_probabilities`, for the logit.
    ratio : str, default ''
        Meaning of exp(coefficient): "odds ratio", "rate ratio", or empty.
    has_trials : bool, default False
        Whether y is the share of events in a row's weight, a number of trials. The row is then one observation.
    likelihood : type, optional
        A `SiteLikelihood` in place of a loss of each row: a function of all rows of a site, fitted by maximum
        likelihood alone. The fit is Newton's method on the sums over the sites.
    form : {'', 'survival', 'group'}
        Formula of the kind: one target, Surv(time, status), or one target and (1 | group).
    response : tuple of int, default ()
        Numbers of columns that y may have, where a row's response is more than one number, as (time, status).
    auxiliary : callable, optional
        Names of the classes → names of the parameters beside the coefficients, which come first in θ.
    start : callable, optional
        (layout, ask) → θ at which Newton's method starts where the sites' own fits leave something open; `ask` takes a
        question and returns the sites' answers. Default zeros, with the null model's intercept where there is one.
    domain : callable, optional
        Auxiliary parameters → whether they are allowed; default that all are.
    has_baseline : bool, default False
        Whether the likelihood has its own constant, so that an intercept would say nothing.
    endless : str, default ''
        Reason for a search without an end, in words; by default that of separated data.
    derived : callable, optional
        (auxiliary parameters, their covariance) → numbers of a report by name, each an estimate and its standard
        error or None.
    log_density : callable, optional
        Of a distribution with a dispersion φ, (half the deviance, n, φ) → log-likelihood of n observations without
        `constant`. Standard errors then hold √φ, φ being Pearson's χ² over n − p.
    options : tuple of (str, float or str), default ()
        Numbers and words that belong to the row; part of its name wherever it is written.

    Raises
    ------
    ValueError
        When there is no way to make the loss, or no variance function for numbers.

    Examples
    --------
    >>> from bayesadmm_np.glm.kinds import read_kind
    >>> kind = read_kind("poisson")
    >>> kind.title, kind.target.expected, kind.ratio
    ('Poisson regression', 'counts or rates >= 0', 'rate ratio')
    """

    name: str
    title: str
    target: Target
    link: Link
    pointwise: Pointwise | None = None
    loss: Callable[..., Loss] | None = None
    variance: Callable[[Array, Array], Array | float] | None = None
    constant: Callable[[Array], Array] | None = None
    outputs: Literal["one", "classes", "columns", "ordered"] = "one"
    has_reference: bool = False
    has_noise: bool = False
    expectation: Rule | None = None
    probabilities: Callable[[Array, Array, str | None], Array] | None = None
    ratio: str = ""
    has_trials: bool = False
    likelihood: Callable[..., SiteLikelihood] | None = None
    form: Literal["", "survival", "group"] = ""
    response: tuple[int, ...] = ()
    auxiliary: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    start: Callable[..., Array] | None = None
    domain: Callable[[Array], bool] | None = None
    has_baseline: bool = False
    endless: str = ""
    derived: Callable[[Array, Array], dict[str, tuple[float, float | None]]] | None = None
    log_density: Callable[[float, float, float], float] | None = None
    options: tuple[tuple[str, float | str], ...] = ()

    def __post_init__(self) -> None:
        if self.pointwise is None and self.loss is None and self.likelihood is None:
            raise ValueError(f"the kind {self.name!r} must have `pointwise`, `loss` or `likelihood`.")
        if self.variance is None and not self.target.is_labels and self.likelihood is None:
            raise ValueError(f"the kind {self.name!r} must have a variance function: its target is no class label.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        """Return the name with its options, as `read_kind` reads it."""
        listed = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.name}({listed})" if listed else self.name

    def __reduce__(self) -> Any:
        """Pickle a registered row by its name: functions of a row are not copied."""
        if self.name in KINDS:
            return read_kind, (str(self),)
        return super().__reduce__()

    @property
    def is_classifier(self) -> bool:
        """Return whether the target names classes."""
        return self.target.is_labels

    @property
    def has_dispersion(self) -> bool:
        """Return whether a dispersion multiplies the variance, which the fit estimates."""
        return self.log_density is not None

    @property
    def has_rows(self) -> bool:
        """Return whether the likelihood is a sum over rows, which have residuals, scores and leverages."""
        return self.likelihood is None or bool(self._likelihood_class.has_rows)

    @property
    def is_convex(self) -> bool:
        """Return whether a site's Hessian is positive semidefinite everywhere."""
        return self.likelihood is None or bool(self._likelihood_class.is_convex)

    @property
    def _likelihood_class(self) -> Any:
        return self.likelihood.func if isinstance(self.likelihood, partial) else self.likelihood

    @property
    def has_labels(self) -> bool:
        """Return whether the target of a row is the label of its class: not so of events over trials."""
        return self.is_classifier and not self.has_trials

    @property
    def is_of_counts(self) -> bool:
        """Return whether the kind fixes the variance of a target, so that the target may vary more."""
        return not (self.has_noise or self.has_labels)

    def left_out(self, y: Array, weights: Array, counted: Array | None = None) -> float:
        """Return what the loss of weighted rows leaves out of −log likelihood, at a noise variance of 1.

        `counted` replaces the weights if the number of observations with a constant is another.
        """
        if self.has_trials:
            events = weights * y
            found = gammaln(events + 1.0) + gammaln(weights - events + 1.0) - gammaln(weights + 1.0)
            if self.likelihood is not None:  # half a deviance, which is measured from the shares themselves
                found = found - weights * (xlogy(y, y) + xlogy(1.0 - y, 1.0 - y))
            return float(found.sum())
        if self.constant is None:
            return 0.0
        return float(((weights if counted is None else counted) @ self.constant(y)).sum())

    @property
    def has_flat_shift(self) -> bool:
        """Return whether a shift common to all outputs leaves the likelihood as it is."""
        return self.outputs == "classes" and not self.has_reference

    @property
    def rule(self) -> Rule:
        """The rule that `Auto` becomes."""
        if self.likelihood is not None:
            return Delta(2)
        if self.expectation is not None:
            return self.expectation
        return Exact() if self.pointwise is None or self.pointwise.has_exact else QuasiMonteCarlo()

    def n_outputs(self, n_classes: int = 0, n_columns: int = 1) -> int:
        """Return the number of predictors a row."""
        several = {"classes": n_classes - self.has_reference, "columns": n_columns}
        return several.get(self.outputs, 1)

    def auxiliaries(self, classes: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names of the parameters beside the coefficients, which come first in θ."""
        return () if self.auxiliary is None else self.auxiliary(classes)

    def widened(self, X: Array, classes: Sequence[str] = ()) -> Array:
        """Return a design with a column of zeros before it for each auxiliary parameter."""
        return np.pad(X, ((0, 0), (len(self.auxiliaries(classes)), 0)))

    def output_names(self, classes: Sequence[str], n_outputs: int) -> tuple[str, ...]:
        """Return one name an output: of its class, or y0, y1, …; an empty one where there is a single output."""
        if n_outputs == 1:
            return ("",)
        return tuple(classes[self.has_reference :]) or tuple(f"y{c}" for c in range(n_outputs))

    def of_classes(self, n_classes: int) -> Kind:
        """Return the row for a number of classes: the logistic for two of the softmax."""
        return _logistic() if self.name in ("softmax", "multinomial") and n_classes == 2 else self

    @property
    def of_trials(self) -> Kind | None:
        """The row of events over trials with this link; None where there is none."""
        links = {"softmax": "logit", "multinomial": "logit", "probit": "probit", "cloglog": "cloglog"}
        link = (
            dict(self.options).get("link", "logit") if self.name in ("logistic", "binomial") else links.get(self.name)
        )
        return None if link is None else binomial(str(link))

    @property
    def is_least_squares(self) -> bool:
        """Return whether the likelihood has its maximum in closed form."""
        return self.loss is LeastSquares

    @property
    def is_linear_mixed(self) -> bool:
        """Return whether the kind is the linear one with a random intercept, whose fit is a search in one number."""
        return self.likelihood is GaussianRandomIntercept

    @property
    def is_restricted(self) -> bool:
        """Return whether variances are estimated by REML, of which deviances do not compare."""
        return self.is_linear_mixed and dict(self.options).get("reml", 1.0) != 0.0

    @property
    def identified(self) -> Kind:
        """The row with the same probabilities whose coefficients the likelihood alone determines."""
        return KINDS["multinomial"]() if self.name == "softmax" else self

    def require_formula(self, parsed: Parsed) -> None:
        """Refuse a formula whose response, or random intercept, is of other kinds, or lacks what this one needs."""
        form = "survival" if parsed.response else "group" if parsed.group is not None else ""
        if form != self.form:
            raise ArgumentError("formula", f"must have {FORMS[self.form]} for {self.title}", f"one with {FORMS[form]}")
        if form == "survival" and len(parsed.response) not in self.response:
            raise ArgumentError("formula", f"must have no entry time for {self.title}", parsed.said_target)
        if self.has_baseline and self.auxiliary is None and not parsed.predictors:
            raise ArgumentError("formula", f"must have a predictor for {self.title}, which has no intercept")

    def in_order(self, classes: Sequence[Any]) -> list[Any]:
        """Return the classes in the order of the kind, where it has one; texts that nobody has ordered are refused."""
        words = [level_name(label) for label in classes]
        if self.outputs != "ordered":
            return list(classes)
        order = str(dict(self.options).get("order", "")).split(":")
        if order != [""]:
            if sorted(order) != sorted(words):
                listed = ":".join(words)
                raise ArgumentError("kind", f"must have an order of the classes {listed}", ":".join(order))
            return [classes[words.index(one)] for one in order]
        is_text = any(re.fullmatch(r"[-+]?[0-9.]+", one) is None for one in words)
        if is_text and words == sorted(words):
            advice = f"write the order that is meant, as in ordinal(order={':'.join(reversed(words))})"
            raise ArgumentError(
                "y", "must have classes in an order that is not the alphabet's", ":".join(words), advice
            )
        return list(classes)

    def read_response(self, y: ArrayLike) -> Array:
        """Check a response of several columns, shape (n, k)."""
        found = as_float_array(y, "y", ndim=2)
        if found.shape[1] not in self.response:
            counts = " or ".join(map(str, self.response))
            raise ArgumentError("y", f"must have {counts} columns for {self.title}", found.shape[1])
        return found

    def require_log(self, argument: str) -> None:
        """Refuse an exposure where the mean is not proportional to it."""
        if self.link is not LOG:
            advice = "an offset is in units of the predictor; poisson has a log link"
            raise ArgumentError(argument, f"must be left out: {self.link.name} is no log link", "", advice)

    def require_offset(self, offset: Array | None, site: str | None = None) -> None:
        """Refuse offsets whose exponentials no float holds beside each other, of links that take one."""
        if offset is None or self.link is IDENTITY or not offset.size:
            return
        low, high = float(offset.min()), float(offset.max())
        if high - low > FARTHEST or max(-low, high) > LARGEST_OFFSET:
            fact = f"has offsets from {low:g} to {high:g}, which is more than exponentials can hold"
            raise TableError(fact, OFFSET_ADVICE, site)

    def make_loss(
        self,
        design: Array,
        y: ArrayLike,
        weights: Any = None,
        offset: Any = None,
        n_outputs: int = 1,
        noise_variance: float = 1.0,
        n_auxiliary: int = 0,
    ) -> Loss:
        """Return the loss of a site's rows, a sum over them; y has labels 0 … C − 1, or numbers.

        The first `n_auxiliary` columns of the design are the zeros of `widened`.
        """
        if self.has_noise:
            weights = (np.ones(len(design)) if weights is None else np.asarray(weights)) / noise_variance
        if self.likelihood is not None:
            made = self.likelihood(X=design, y=y, weights=weights, offset=offset, n_auxiliary=n_auxiliary)
            made.kind_name = str(self)
            return made
        if self.loss is None:
            return KindLoss(self, design, y, weights, offset)
        classes = {"n_classes": n_outputs + self.has_reference} if self.outputs == "classes" else {}
        return self.loss(X=design, y=y, weights=weights, offset=offset, **classes)

    def null(self, mean: Array) -> Array:
        """Return the predictors of the model without features, from the mean of y, or the shares of the classes."""
        if self.outputs == "classes":
            logits = _log(mean)
            if self.has_reference:
                return np.asarray(logits[1:] - logits[0])
            return np.asarray(logits - logits.mean())
        return np.atleast_1d(self.link.forward(mean[1:] if self.is_classifier else mean))

    def class_probabilities(self, mean: Array, spread: Array, how: str | None = None) -> Array:
        """Return E_q[p(y = c)], shape (n, C); see `class_probabilities`."""
        if self.has_reference:
            mean, spread = self.class_predictors(mean), np.pad(spread, ((0, 0), (1, 0), (1, 0)))
        return (self.probabilities or class_probabilities)(mean, spread, how)

    def class_predictors(self, predictors: Array) -> Array:
        """Return one predictor a class, shape (n, C): that of a reference class is zero."""
        return np.pad(predictors, ((0, 0), (1, 0))) if self.has_reference else predictors

    def mean_and_sd(self, mean: Array, spread: Array, noise_variance: float = 1.0) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations, whose predictors are N(mean, spread)."""
        centre, variance = self.link.mean_and_variance(mean, spread)
        if self.variance is None:
            advice = "the variance of an observation is not known"
            raise ArgumentError("return_std", f"must be left out for {self.title}", True, advice)
        own = self.variance(centre, variance + centre**2)
        return np.asarray(centre), np.asarray(np.sqrt(noise_variance * own + variance))

    def loss_at(self, y: Array, mean: Array, weights: Any = None) -> float:
        """Return Σ_i −w_i log p(y_i | μ_i), without the constants, at a noise variance of 1."""
        predictor = np.nan_to_num(self.link.forward(mean), neginf=-FARTHEST, posinf=FARTHEST)
        theta = np.zeros(self.n_outputs(0, 1 if y.ndim == 1 else y.shape[1]))
        return self.make_loss(np.ones((len(y), 1)), y, weights, offset=predictor).value(theta)

    def explained(self, y: Array, mean: Array, weights: Any = None, offset: Array | None = None) -> float:
        """Return the share of the null model's deviance that predictions explain: R² of least squares.

        The null model has the mean of y in every row, or with an offset its own intercept beside it.
        """
        if self.likelihood is not None:
            raise ArgumentError("y", f"has no score for {self.title}, a likelihood of all rows of a site together")
        if not np.isfinite(mean).all():
            return float("nan")
        null = np.broadcast_to(np.average(y, axis=0, weights=weights), y.shape)
        if offset is not None:
            alone = self.make_loss(np.ones((len(y), 1)), y, weights, offset)
            start = np.atleast_1d(self.link.forward(null[:1]) - np.average(offset, weights=weights))
            if np.isfinite(start).all():  # all counts may be zero
                null = self.link.inverse(drive(refit(start, [True]), [alone]).theta[0] + offset)
        best, left, whole = (self.loss_at(y, at, weights) for at in (y, mean, null))
        return 1.0 - (left - best) / (whole - best) if whole > best else float("nan")

    def describe(self, target: str, classes: Sequence[str] = (), noise_variance: float = 1.0) -> str:
        """Return the title of a report."""
        text = f"{self.title} of {target}"
        if self.is_classifier:
            if self.outputs == "one":
                text += "" if self.has_trials else f": {classes[1]} against {classes[0]}"
            else:
                text += f", {len(classes)} classes"
            text += f", each against {classes[0]}" if self.has_reference else ""
        if self.has_noise:
            text += f", noise variance {noise_variance:.6g}"
        return text + "".join(
            f", {name} {value if isinstance(value, str) else format(value, 'g')}" for name, value in self.options
        )


class KindLoss(LinearModelLoss):
    """Loss of a kind with a pointwise loss alone; its name contains the options, so that sites with others differ."""

    def __init__(self, kind: Kind, X: Array, y: ArrayLike, weights: Any = None, offset: Any = None) -> None:
        assert kind.pointwise is not None
        super().__init__(X, np.asarray(y, dtype=np.float64), kind.pointwise, weights, offset)
        self.kind = kind

    @property
    def name(self) -> str:
        """The kind's, with its options."""
        return str(self.kind)


# --- The table ------------------------------------------------------------------------------------------------

KINDS: Registry[Callable[..., Kind]] = Registry("kind of GLM")
"""Functions that return a row, by the row's name; what they take are the row's options."""


def _of_family(family: str, link: str, default: str, base: Kind) -> Kind:
    """Return a row of a distribution with a link by its name; the default link is no option."""
    inverse = LINKS[link]
    return replace(
        base,
        link=Link(link, np.errstate(all="ignore")(lambda mean: inverse.link(np.asarray(mean))), inverse.mean),
        loss=None,
        pointwise=None,
        likelihood=partial(GeneralizedLinear, family=family, link=link),
        options=() if link == default else (("link", link),),
    )


def _read_link(kind: str, link: str, known: Sequence[str]) -> str:
    if link not in known:
        raise ArgumentError("kind", f"must have a link among {', '.join(known)} for {kind}", repr(link))
    return link


def _with_link(link: str, base: Kind) -> Kind:
    """Return a row of two classes, or of events over trials, with another link than the logit."""
    if _read_link(base.name, link, ("logit", "probit", "cloglog", "log", "identity")) == "logit":
        return base
    inverse = LINKS[link]

    @np.errstate(over="ignore")  # of a predictor far off, whose chance is one
    def chances(mean: Array, spread: Array, how: str | None = None) -> Array:
        return np.column_stack([inverse.other(mean), inverse.mean(mean)])

    title = base.title.replace("logistic", {"cloglog": "complementary log-log"}.get(link, link))
    ratio = {"log": "risk ratio", "cloglog": "hazard ratio"}.get(link, "")
    made = _of_family("binomial", link, "logit", base)
    return replace(made, title=title, probabilities=chances, ratio=ratio, variance=lambda mean, square: mean - square)


@KINDS.register
def logistic(link: str = "logit") -> Kind:
    """Two classes; the link may also be probit, cloglog, log or identity."""
    return _with_link(link, _logistic())


@KINDS.register
def probit() -> Kind:
    """Two classes by the normal distribution."""
    return replace(logistic("probit"), name="probit", options=())


@KINDS.register
def cloglog() -> Kind:
    """Two classes by the complementary log-log link."""
    return replace(logistic("cloglog"), name="cloglog", options=())


def _logistic() -> Kind:
    return Kind(
        "logistic",
        "logistic regression",
        LABELS,
        LOGIT,
        BernoulliLogit(),
        loss=Logistic,
        ratio="odds ratio",
    )


@KINDS.register
def binomial(link: str = "logit") -> Kind:
    """Events over trials; y is their share, and the weight of a row the number of trials. Links are the logistic's."""
    made = replace(
        _logistic(),
        name="binomial",
        title="logistic regression (events over trials)",
        pointwise=BinomialLogit(),
        loss=Binomial,
        has_trials=True,
    )
    return _with_link(link, made)


@KINDS.register
def softmax() -> Kind:
    """One row of coefficients a class."""
    return Kind(
        "softmax",
        "softmax regression",
        LABELS,
        LOGIT,
        loss=Softmax,
        outputs="classes",
        expectation=QuasiMonteCarlo(),
        ratio="odds ratio",
    )


@KINDS.register
def multinomial() -> Kind:
    """The softmax with a reference class: one row of coefficients for each of the others."""
    return replace(
        softmax(),
        name="multinomial",
        title="multinomial logistic regression",
        loss=ReferenceSoftmax,
        has_reference=True,
    )


@KINDS.register
def linear() -> Kind:
    """Least squares; the columns of y are outputs."""
    return Kind(
        "linear",
        "linear regression",
        NUMBERS,
        IDENTITY,
        loss=LeastSquares,
        variance=lambda mean, square: 1.0,
        constant=lambda y: np.full(y.shape, 0.5 * np.log(2.0 * np.pi)),
        outputs="columns",
        has_noise=True,
    )


@KINDS.register
def poisson(link: str = "log") -> Kind:
    """Counts of mean exp(f); the link may also be identity or sqrt."""
    made = _poisson()
    if _read_link("poisson", link, ("log", "identity", "sqrt")) == "log":
        return made
    return replace(_of_family("poisson", link, "log", made), ratio="", constant=_of_saturated_counts)


def _of_saturated_counts(y: Array) -> Array:
    """Return −log p(y) of counts whose mean is the count itself."""
    return np.asarray(y - xlogy(y, y) + gammaln(y + 1.0))


POSITIVE_NUMBERS = Target("numbers > 0", allows=lambda y: y > 0)


@KINDS.register
def gamma(link: str = "inverse") -> Kind:
    """Numbers above zero whose standard deviation is a share of their mean; the link is inverse, log or identity."""
    _read_link("gamma", link, ("inverse", "log", "identity"))
    parts = {"variance": lambda mean, square: square, "constant": np.log, "log_density": _of_gamma}
    return _dispersed("gamma", "gamma regression", link, "inverse", POSITIVE_NUMBERS, **parts)


@KINDS.register
def inverse_gaussian(link: str = "1/mu^2") -> Kind:
    """Numbers above zero whose variance is of the cube of their mean; the link is 1/mu^2, inverse, log or identity."""
    _read_link("inverse_gaussian", link, ("1/mu^2", "inverse", "log", "identity"))
    parts = {"variance": _cube, "constant": lambda y: 1.5 * np.log(y), "log_density": _of_root}
    return _dispersed("inverse_gaussian", "inverse Gaussian regression", link, "1/mu^2", POSITIVE_NUMBERS, **parts)


@KINDS.register
def gaussian(link: str = "log") -> Kind:
    """Numbers of one variance whose mean is exp(f), or with the inverse link 1/f."""
    _read_link("gaussian", link, ("log", "inverse"))
    parts = {"variance": lambda mean, square: mean**0, "constant": np.zeros_like, "log_density": _of_root}
    return _dispersed("gaussian", "Gaussian regression", link, "log", NUMBERS, **parts)


def _dispersed(name: str, title: str, link: str, default: str, target: Target, **parts: Any) -> Kind:
    """Return a row of a distribution with a dispersion."""
    ratio = "ratio of means" if link == "log" else ""
    return _of_family(
        name, link, default, Kind(name, title, target, LOG, likelihood=GeneralizedLinear, ratio=ratio, **parts)
    )


def _cube(mean: Array, square: Array) -> Array:
    return np.asarray(mean**3)


def _of_gamma(half: float, n: float, scale: float) -> float:
    return -half / scale - n * float(1.0 / scale + np.log(scale) / scale + gammaln(1.0 / scale))


def _of_root(half: float, n: float, scale: float) -> float:
    return -half / scale - 0.5 * n * float(np.log(2.0 * np.pi * scale))


def _poisson() -> Kind:
    return Kind(
        "poisson",
        "Poisson regression",
        COUNTS,
        LOG,
        PoissonLog(),
        loss=Poisson,
        variance=lambda mean, square: mean,
        constant=lambda y: gammaln(y + 1.0),
        ratio="rate ratio",
    )


@KINDS.register
def negative_binomial() -> Kind:
    """Counts whose variance is μ + μ²/size; the size is estimated."""
    return Kind(
        "negative_binomial",
        "negative binomial regression",
        COUNTS,
        LOG,
        likelihood=NegativeBinomial,
        variance=lambda mean, square: mean,
        constant=lambda y: gammaln(y + 1.0),
        auxiliary=lambda classes: ("log(size)",),
        endless="the counts vary no more than those of a Poisson regression, whose size is infinite: take poisson",
        ratio="rate ratio",
        derived=lambda own, spread: {"Size": (float(np.exp(own[0])), float(np.exp(own[0]) * np.sqrt(spread[0, 0])))},
    )


@KINDS.register
def ordinal(link: str = "logit", order: str = "") -> Kind:
    """Ordered classes with proportional odds: one row of coefficients, and a cutpoint between neighbours.

    The order is that of numbers, of an ordered column, or `order`, as in low:medium:high.
    """
    if link not in LATENT:
        raise ArgumentError("kind", f"must have a link among {', '.join(LATENT)}", repr(link))

    def start(layout: Any, ask: Callable[[Any], Any]) -> Array:
        counts = np.sum([one.target for one in ask(DesignQuestion())], axis=0)
        if not counts.all():
            raise ArgumentError("y", "must hold rows of each class", f"none of class {int(np.argmin(counts))}")
        theta = np.zeros(layout.dim)
        shares = np.cumsum(counts)[:-1] / counts.sum()
        theta[: shares.size] = LOGIT.forward(shares) if link == "logit" else ndtri(shares)
        return theta

    return Kind(
        "ordinal",
        "proportional odds regression" if link == "logit" else "ordered probit regression",
        LABELS,
        LOGIT,
        likelihood=partial(ProportionalOdds, link=link),
        outputs="ordered",
        auxiliary=lambda classes: tuple(f"{one}|{next}" for one, next in pairwise(classes)),
        start=start,
        domain=lambda cuts: bool((np.diff(cuts) > 0.0).all()),
        has_baseline=True,
        probabilities=partial(class_chances, link=link),
        ratio="odds ratio" if link == "logit" else "",
        options=(*[("link", link)] * (link != "logit"), *[("order", order)] * bool(order)),
    )


SURVIVAL = Target("(time, status), or (entry, time, status), with a status of 0 or 1")


@KINDS.register
def cox(ties: str = "efron") -> Kind:
    """Times to an event, with a baseline hazard of each site that is not estimated; `ties` is efron or breslow."""
    if ties not in ("efron", "breslow"):
        raise ArgumentError("kind", "must have ties of efron or breslow", repr(ties))
    return Kind(
        "cox",
        "Cox regression",
        SURVIVAL,
        LOG,
        likelihood=partial(CoxPartialLikelihood, ties=ties),
        form="survival",
        response=(2, 3),
        has_baseline=True,
        endless="an estimate grows without end, as where a column tells who has the event first",
        ratio="hazard ratio",
        options=() if ties == "efron" else (("ties", ties),),
    )


@KINDS.register
def piecewise_exponential(cuts: str = "") -> Kind:
    """Times to an event, with a hazard that all sites share and that changes at `cuts`, as in 90:180:365."""
    try:
        edges = tuple(map(float, cuts.split(":"))) if cuts else ()
    except ValueError as error:
        raise ArgumentError("kind", "must have cuts as numbers with colons, as in cuts=90:180", repr(cuts)) from error
    shown = [f"{edge:.15g}" for edge in edges]
    edges = tuple(map(float, shown))  # as the name tells them
    if not (np.isfinite(edges).all() and (np.diff([0.0, *edges]) > 0).all() and len(edges) <= MOST_CUTS):
        expected = f"must have at most {MOST_CUTS} cuts > 0 in rising order, as in cuts=90:180"
        raise ArgumentError("kind", expected, repr(cuts[:80]))

    def start(layout: Any, ask: Callable[[Any], Any]) -> Array:
        theta, n = np.zeros(layout.dim), len(edges) + 1
        answers = ask(DerivativesQuestion(theta))  # of a hazard of one: expected events are times at risk
        times = sum(np.diagonal(one.hessian)[:n] for one in answers)
        events = times - sum(one.gradient[:n] for one in answers)
        theta[:n] = np.log(np.maximum(events, 0.5) / np.where(times > 0, times, 1.0))
        return theta

    return Kind(
        "piecewise_exponential",
        "exponential regression",
        SURVIVAL,
        LOG,
        likelihood=partial(PiecewiseExponential, cuts=edges),
        form="survival",
        response=(2, 3),
        auxiliary=lambda classes: tuple(f"log hazard {a}-{b}" for a, b in pairwise(["0", *shown, ""])),
        start=start,
        has_baseline=True,
        endless="an estimate grows without end, as where an interval between cuts has no event",
        ratio="hazard ratio",
        options=(("cuts", ":".join(shown)),) if cuts else (),
    )


@KINDS.register
def mixed_linear(reml: float = 1.0) -> Kind:
    """Numbers with a random intercept by group, by REML, or with reml=0 by maximum likelihood."""
    if reml not in (0.0, 1.0):
        raise ArgumentError("kind", "must have reml=0 or reml=1", reml)

    def derived(own: Array, covariance: Array) -> dict[str, tuple[float, float | None]]:
        ratio, sigma = own[0], np.exp(own[1])
        found = {"Sd of groups": sigma * ratio, "Residual sd": sigma, "ICC": ratio**2 / (1.0 + ratio**2)}
        return {name: (float(value), None) for name, value in found.items()}

    return Kind(
        "mixed_linear",
        "linear regression with a random intercept",
        NUMBERS,
        IDENTITY,
        variance=lambda mean, square: 1.0,
        likelihood=GaussianRandomIntercept,
        form="group",
        response=(2,),
        auxiliary=lambda classes: ("sd ratio", "log residual sd"),
        derived=derived,
        options=() if reml else (("reml", 0.0),),
    )


@KINDS.register
def mixed_logistic(nodes: float = 1.0) -> Kind:
    """Events with a random intercept by group, by Laplace's approximation or so many nodes of a quadrature."""
    if nodes not in range(1, MOST_NODES + 1):
        raise ArgumentError("kind", f"must have a number of nodes from 1 to {MOST_NODES}", nodes)
    number = int(nodes)
    return replace(
        _logistic(),
        name="mixed_logistic",
        title="logistic regression with a random intercept",
        target=Target("1 of an event, else 0", allows=lambda y: (y >= 0.0) & (y <= 1.0)),
        variance=lambda mean, square: mean - square,
        likelihood=partial(LogisticRandomIntercept, nodes=number),
        form="group",
        response=(2,),
        auxiliary=lambda classes: ("sd of groups",),
        derived=lambda own, spread: {"ICC (log odds)": (float(own[0] ** 2 / (own[0] ** 2 + np.pi**2 / 3.0)), None)},
        endless="the standard deviation of groups grows without end; more nodes may help, as mixed_logistic(nodes=9)",
        options=() if number == 1 else (("nodes", float(number)),),
    )


OLD_NAMES = {"ridge": "linear"}
"""Names of kinds in files and commands of before."""

SPELLED = re.compile(r"(\w+)(?:\((.*)\))?")


def read_kind(kind: Kind | str) -> Kind:
    """Return the kind of a name, as in "poisson" or "ordinal(link=probit)", or a given kind.

    Raise a ValueError with the nearest name if there is no such kind or option.
    """
    if isinstance(kind, Kind):
        return kind
    found = SPELLED.fullmatch(kind) if isinstance(kind, str) else None
    if found is None:
        raise ArgumentError("kind", "must be a name, or a name with options as in 'name(option=2)'", repr(kind))
    name, listed = found.groups()
    name = OLD_NAMES.get(name, name)
    if name not in KINDS:
        load_plugins()
    maker = KINDS[name]
    made = maker(**_read_options(name, listed or "", maker))
    if made.name != name:
        raise ValueError(f"the kind registered as {name!r} calls itself {made.name!r}.")
    return made


def _read_options(name: str, listed: str, maker: Callable[..., Kind]) -> dict[str, Any]:
    """Read "size=2, ties=efron", every option one that the row's function takes, and none missing.

    An option is a text where its default is one.
    """
    takes: Any = inspect.signature(maker).parameters
    options: dict[str, Any] = {}
    for item in filter(None, map(str.strip, listed.split(","))):
        key, _, value = map(str.strip, item.partition("="))
        if key not in takes or key in options:
            known = ", ".join(takes) or "none"
            raise ArgumentError("kind", f"must have options that {name} takes ({known}), each once", repr(key[:80]))
        try:
            options[key] = value if isinstance(takes[key].default, str) else float(value)
        except ValueError as error:
            raise ArgumentError("kind", f"must have a number for each option, as in {name}({key}=2)", item) from error
    lacking = [key for key, option in takes.items() if option.default is option.empty and key not in options]
    if lacking:
        raise ArgumentError("kind", f"must set {', '.join(lacking)}, as in {name}({lacking[0]}=2)", f"{name}({listed})")
    return options


def is_kind_of_loss(name: str) -> bool:
    """Return whether a loss of messages is that of a row."""
    try:
        kind_of_loss(name)
    except ValueError:
        return False
    return True


def kind_of_loss(name: str) -> Kind:
    """Return the row whose sites call their loss so in messages: a class of losses, or a kind with its options."""
    makers = [(maker, inspect.signature(maker).parameters.values()) for maker in KINDS.values()]
    plain = (maker() for maker, takes in makers if all(one.default is not one.empty for one in takes))
    return next((row for row in plain if getattr(row.loss, "__name__", None) == name), None) or read_kind(name)
