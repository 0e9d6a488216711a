"""Answers of a fitted model beside its table: intervals of predictions, averages, hypotheses, models compared, VIF."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._registry import nearest
from .._validation import Array, as_float_array
from ..design.agreement import design
from ..glm.estimable import Reach
from ..glm.inference import LEVEL, Estimate, Test, estimate, likelihood_ratio_test, reach_of, wald_test
from ..glm.kinds import LOGIT
from ..losses.generalized import LINKS
from .fitted import FittedGLM
from .settings import read_choice
from .summary import ML, MODEL, Spread

Scale = Literal["response", "link"]

STEP = 1e-5
"""Step of central differences of a link, relative to its argument: their error is 1e-10 of the slope."""


# --- Predictions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions with standard errors and the ends of their intervals, each (n,), or of classes (n, C).

    NaN where the fit does not determine a number, or its error.
    """

    estimate: Array
    std_err: Array
    low: Array
    high: Array


def predict_interval(
    model: Any,
    table: Any,
    *,
    scale: Scale = "response",
    level: float = LEVEL,
    covariance: str = MODEL,
    offset: Array | None = None,
) -> Predictions:
    """Return the predictor of rows, or the mean or the probabilities of classes, with delta-method standard errors.

    The mean has the standard error |dμ/df| se(f), and the ends of the interval of f, through the inverse of the link.
    A probability of several classes has the interval of its logit. As R's `predict(se.fit = TRUE)`; by t where a noise
    variance or a dispersion is estimated.

    Parameters
    ----------
    model : FittedGLM or a fitted estimator
        A fit by maximum likelihood, penalised or not, or a posterior of one predictor a row.
    table : mapping or array, shape (n, p)
        Rows with the columns of the fit.
    scale : {'response', 'link'}
    level : float, default 0.95
    covariance : str, default 'model'
        See `FederatedGLM.summary`.
    offset : ndarray, shape (n,), optional
        Default: that of the formula.

    Returns
    -------
    Predictions

    Raises
    ------
    ValueError
        When the model has no such covariance, or has several predictors a row on the scale of the link.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedGLM, predict_interval
    >>> X, y, site = np.arange(8.0)[:, None] % 3, [1, 3, 4, 2, 3, 6, 1, 2], list("aaaabbbb")
    >>> model = FederatedGLM("poisson").fit(X, y, client=site)
    >>> found = predict_interval(model, np.array([[1.0]]))
    >>> found.estimate.round(3), found.std_err.round(3)
    (array([2.616]), array([0.593]))
    """
    model = _model_of(model, covariance)
    spread, layout = _known(model, covariance, level), model.layout
    read_choice(scale, "scale", ("response", "link"))
    reach, offset = model._reach(model.design(table)), _offset_of(model, table, offset)
    is_of_classes = model.kind.outputs in ("classes", "ordered")
    if scale == "response" and is_of_classes:
        return _of_classes(model, spread, reach, offset)
    if layout.n_outputs > 1:
        raise ArgumentError("scale", "must be 'response' for several predictors a row", repr(scale))
    f, error = model._predictor_mean(reach.design, offset), _error(reach.design, spread.matrix)
    is_blank = reach.is_blank | (reach.far != 0.0)
    shown = np.where(is_blank, np.nan, f)
    error = np.where(is_blank | ~model.has_error(reach.design), np.nan, error)
    ends = [shown + side * reach_of(spread.level, spread.df) * error for side in (-1.0, 1.0)]
    if scale == "link":
        return Predictions(shown, error, *ends)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.where(reach.is_blank, np.nan, model.kind.link.inverse(f + reach.far))
        low, high = np.sort([model.kind.link.inverse(end) for end in ends], axis=0)
        return Predictions(mean, np.abs(slope_of(model, shown)) * error, low, high)


def _offset_of(model: FittedGLM, table: Any, given: Array | None) -> Array | None:
    """Return the known part of rows' predictors: that of the formula, where it is not given."""
    agreement = model.columns.agreement
    if given is not None or agreement is None:
        return given
    if not isinstance(table, np.ndarray):
        return design(table, agreement, for_prediction=True).offset
    if agreement.parsed.offsets:
        raise ArgumentError("offset", "must be given with a matrix: the formula has one")
    return None


def slope_of(model: FittedGLM, f: Array) -> Array:
    """Return dμ/df of the link at predictors, by differences of links of one's own, which lose it at a mean near 1."""
    name = model.kind.link.name
    if name == "logit":
        return np.asarray(LOGIT.inverse(f) * LOGIT.inverse(-f))
    if name in LINKS:
        return np.asarray(LINKS[name].slope(f))
    h = STEP * np.maximum(np.abs(f), 1.0)
    return np.asarray((model.kind.link.inverse(f + h) - model.kind.link.inverse(f - h)) / (2.0 * h))


def _model_of(model: Any, covariance: str = MODEL) -> FittedGLM:
    """Return the fitted model of an estimator, with the sums that a covariance takes, or a fitted model itself."""
    return model._with_covariance(covariance, None) if hasattr(model, "fitted_") else model


def _known(model: FittedGLM, covariance: str, level: float) -> Spread:
    """Return a covariance that there is."""
    spread = Spread.of(model, covariance, level)
    if spread.matrix is None:
        raise ArgumentError("covariance", "must be one that the fit has: it has no standard errors", repr(covariance))
    return spread


def _error(rows: Array, spread: Any) -> Array:
    """Return √(lᵀVl) of each row l."""
    return np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", rows, spread, rows), 0.0))


def _of_classes(model: FittedGLM, spread: Spread, reach: Reach, offset: Array | None) -> Predictions:
    """Return probabilities of classes with errors by the delta method, and intervals of their logits."""
    if model.averages:
        raise ArgumentError("inference", "must be 'likelihood' for errors of probabilities", "'posterior'")
    chances = np.where(reach.is_blank[:, None], np.nan, model._chances(reach, None, offset))
    theta, design = model.posterior.mean, reach.design
    if model.kind.outputs == "ordered":
        n = model.columns.n_auxiliary
        f, own = design @ theta + (0.0 if offset is None else offset), np.asarray(model.kind.probabilities)
        at: Any = own.item()
        slopes = [
            (at(f, theta[:n] + way, None) - at(f, theta[:n] - way, None)) / (2.0 * STEP) for way in STEP * np.eye(n)
        ]
        along = (at(f + STEP, theta[:n], None) - at(f - STEP, theta[:n], None)) / (2.0 * STEP)
        ways = along[:, :, None] * design[:, None, :]
        ways[:, :, :n] += np.stack(slopes, axis=2)
    else:
        first = int(model.kind.has_reference)
        shares = chances[:, :, None] * (np.eye(chances.shape[1]) - chances[:, None, :])[:, :, first:]
        ways = (shares[:, :, :, None] * design[:, None, None, :]).reshape(*chances.shape, -1)
    error = np.sqrt(np.maximum(np.einsum("nci,ij,ncj->nc", ways, np.asarray(spread.matrix), ways), 0.0))
    is_far = (reach.far != 0.0).reshape(len(chances), -1).any(axis=1)
    error = np.where(np.isnan(chances) | is_far[:, None], np.nan, error)
    with np.errstate(divide="ignore", invalid="ignore"):
        f = LOGIT.forward(chances)
        width = reach_of(spread.level, spread.df) * error / (chances * (1.0 - chances))
        return Predictions(chances, error, LOGIT.inverse(f - width), LOGIT.inverse(f + width))


# --- Averages -------------------------------------------------------------------------------------------------


def average_effects(
    model: Any,
    table: Mapping[str, ArrayLike],
    variables: Sequence[str] | None = None,
    *,
    level: float = LEVEL,
    covariance: str = MODEL,
    offset: Array | None = None,
    weights: ArrayLike | None = None,
) -> tuple[Estimate, ...]:
    """Return the average prediction of rows, and the average effect of each variable on it, with standard errors.

    Of a number the effect is dμ/dx, averaged over the rows; of a factor, or text, the difference of the averages with
    all rows at a level and at the first one. Interactions and transforms of the formula are followed. Standard errors
    are by the delta method, given the rows, as those of marginaleffects in R (`avg_predictions`, `avg_slopes`).

    Parameters
    ----------
    model : FittedGLM or a fitted estimator
        With one predictor a row.
    table : mapping from names to columns, or frame
        Rows to average over, such as those of all sites, or of one.
    variables : sequence of str, optional
        Columns of the formula; default all predictors.
    level : float, default 0.95
    covariance : str, default 'model'
        See `FederatedGLM.summary`.
    offset : ndarray, shape (n,), optional
    weights : array_like, shape (n,), optional
        Weights of the rows in the averages.

    Returns
    -------
    tuple of Estimate
        The average prediction, then an effect a variable, or a level.

    Raises
    ------
    ValueError
        When a variable is unknown, rows have several predictors or relative risks, or the fit does not determine an
        average.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedGLM, average_effects
    >>> X, y, site = np.arange(8.0)[:, None] % 3, [1, 3, 4, 2, 3, 6, 1, 2], list("aaaabbbb")
    >>> model = FederatedGLM("poisson").fit(X, y, client=site)
    >>> [(one.name, round(one.coef, 3)) for one in average_effects(model, {"x0": X[:, 0]})]
    [('average prediction', 2.75), ('x0: slope', 1.802)]
    """
    model = _model_of(model, covariance)
    spread, columns = _known(model, covariance, level), model.columns
    if model.layout.n_outputs > 1 or model.kind.outputs == "ordered":
        raise ArgumentError("model", "must have one predictor a row for average effects", model.kind.title)
    if model.kind.form == "survival":
        advice = "a relative risk is against a row of zeros, and so is its average"
        raise ArgumentError("model", "must predict means for average effects", model.kind.title, advice)
    data = {str(name): np.asarray(table[name]) for name in table}
    known = sorted(columns.agreement.parsed.predictors) if columns.agreement else [*columns.read]
    for name in known if variables is None else variables:
        if name not in known:
            near = nearest(name, known)
            expected = f"must be predictors of the fit ({', '.join(known)})"
            raise ArgumentError("variables", expected, repr(name), f"did you mean {near!r}?" if near else "")
    n = len(next(iter(data.values())))
    share = np.full(n, 1.0 / n) if weights is None else as_float_array(weights, "weights", ndim=1)
    share = share / share.sum()

    def average(changed: Mapping[str, Any]) -> tuple[float, Array]:
        """Return Σ μ/n and its gradient in θ."""
        complete = columns.complete(changed)
        rows = model.design(complete)
        model.require_determined(rows, "table", "the prediction of a row")
        f = model._predictor_mean(rows, _offset_of(model, complete, offset))
        return float(share @ model.kind.link.inverse(f)), (share * slope_of(model, f)) @ rows

    def shown(name: str, value: float, way: Array) -> Estimate:
        return estimate(name, value, float(_error(way[None], spread.matrix)[0]), spread.df, spread.level)

    found = [shown("average prediction", *average(data))]
    for name in known if variables is None else variables:
        if name in columns.factors:
            levels = columns.levels(name)
            base, at_base = average({**data, name: np.full(n, levels[0], dtype=object)})
            for other in levels[1:]:
                value, way = average({**data, name: np.full(n, other, dtype=object)})
                found.append(shown(f"{name}: {other} − {levels[0]}", value - base, way - at_base))
            continue
        x = data[name].astype(np.float64)
        h = STEP * max(float(np.std(x)), 1e-3 * float(np.abs(x).max(initial=1e-3)))
        (high, up), (low, down) = average({**data, name: x + h}), average({**data, name: x - h})
        found.append(shown(f"{name}: slope", (high - low) / (2.0 * h), (up - down) / (2.0 * h)))
    return tuple(found)


# --- Hypotheses and models ------------------------------------------------------------------------------------


def joint_test(model: Any, hypothesis: Any, value: ArrayLike = 0.0, *, covariance: str = MODEL) -> Test:
    """Test that sums of coefficients have given values together: Lβ = r, as `car::linearHypothesis` of R.

    Parameters
    ----------
    model : FittedGLM or a fitted estimator
    hypothesis : str, sequence of str, or array_like, shape (q, d)
        Equations such as "age = 0" or "dose - placebo = 0.5", with names of `coefficient_names`; or L, whose columns
        are in the order of these.
    value : array_like, shape (q,), default 0
        r beside L.
    covariance : str, default 'model'
        See `FederatedGLM.summary`.

    Returns
    -------
    Test
        A χ² with q degrees of freedom, or an F where a noise variance or a dispersion is estimated.

    Raises
    ------
    ValueError
        When an equation is not understood, the rows do not determine a sum, or equations depend on each other.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedGLM, joint_test
    >>> X, y, site = np.arange(8.0)[:, None] % 3, [1, 3, 4, 2, 3, 6, 1, 2], list("aaaabbbb")
    >>> model = FederatedGLM("poisson").fit(X, y, client=site)
    >>> print(joint_test(model, "x0 = 0.5"))
    x0 = 0.5: χ²(1) = 0.3017, P = 0.583
    """
    model = _model_of(model, covariance)
    spread = _known(model, covariance, LEVEL)
    equations = [hypothesis] if isinstance(hypothesis, str) else list(hypothesis)
    if all(isinstance(one, str) for one in equations):
        pairs = [_equation(str(one), model.coefficient_names) for one in equations]
        L, r = np.array([weights for weights, _ in pairs]), np.array([number for _, number in pairs])
        name = "; ".join(map(str, equations))
    else:
        L, r = np.atleast_2d(as_float_array(hypothesis, "hypothesis", ndim=(1, 2))), np.asarray(value, dtype=float)
        name = "Lβ = r"
    if L.shape[1:] != (model.layout.dim,):
        expected = f"must have a column for each of the {model.layout.dim} coefficients"
        raise ArgumentError("hypothesis", expected, L.shape)
    change = model.layout.homeward
    model.require_determined(L @ change, "hypothesis", name)
    inner, mean = change @ spread.matrix @ change.T, model.mean()
    return wald_test(np.nan_to_num(mean), inner, L, name=name, df_residual=spread.df, value=r)


NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9]+"


def _equation(text: str, names: Sequence[str]) -> tuple[Array, float]:
    """Read an equation of sums of coefficients: weights, shape (d,), and the number on the right."""
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    part = re.compile(rf"\s*([-+]?)\s*(?:(?:({NUMBER})\s*\*?\s*)?({known})|({NUMBER}))\s*")
    weights, number, side, place = np.zeros(len(names)), 0.0, 1.0, 0
    while place < len(text):
        found = part.match(text, place)
        if found is None or not found[0]:
            if text[place] == "=" and side > 0.0 and place:
                side, place = -1.0, place + 1
                continue
            near = nearest(re.split(r"[-+=*]", text[place:])[0].strip() or text[place:], names)
            expected = f"must be an equation of the coefficients {', '.join(names)}, as in '{names[0]} = 0'"
            raise ArgumentError("hypothesis", expected, repr(text), f"did you mean {near!r}?" if near else "")
        sign, factor, name, alone = found.groups()
        size = side * (-1.0 if sign == "-" else 1.0)
        if name is None:
            number -= size * float(alone)
        else:
            weights[names.index(name)] += size * float(factor or 1.0)
        place = found.end()
    if not weights.any() or side > 0.0:
        raise ArgumentError("hypothesis", "must be an equation with a coefficient, as in 'age = 0'", repr(text))
    return weights, number


def compare_models(smaller: Any, larger: Any) -> Test:
    """Test a model against a larger one of the same rows by the likelihood ratio, as R's `anova(m1, m2, test = "LRT")`.

    Parameters
    ----------
    smaller, larger : FittedGLM or a fitted estimator
        Fits by maximum likelihood; columns of the smaller one are among those of the larger.

    Returns
    -------
    Test
        A χ², or an F where the noise variance or the dispersion is estimated.

    Raises
    ------
    ValueError
        When a fit is not by maximum likelihood, or the models are not of one kind, target and rows, or not nested.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedGLM, compare_models
    >>> X, y, site = np.arange(8.0)[:, None] % 3, [1, 3, 4, 2, 3, 6, 1, 2], list("aaaabbbb")
    >>> model = FederatedGLM("poisson").fit(X, y, client=site)
    >>> larger = FederatedGLM("poisson").fit(np.column_stack([X, X**2]), y, client=site)
    >>> print(compare_models(model, larger))
    larger model: χ²(1) = 0.004892, P = 0.944
    """
    smaller, larger = _model_of(smaller), _model_of(larger)
    for name, one in (("smaller", smaller), ("larger", larger)):
        if one.fit_name != ML or not one.is_at_maximum or one.totals.statistics is None:
            raise ArgumentError(name, "must be a fit that has come to its maximum of the likelihood", one.fit_name)
    a, b = smaller.totals.statistics, larger.totals.statistics
    assert a is not None
    assert b is not None

    def facts(one: FittedGLM, found: Any) -> tuple[Any, ...]:
        rows = tuple((str(name), site.n_rows) for name, site in one.sites.items())
        return str(one.kind), one.columns.target, one.columns.classes, rows, found.noise, found.weights

    names = ("weight", "constant", "n_rows", *["null_loss"] * (a.has_null and b.has_null))
    sums = [np.array([getattr(found.total, name) for name in names]) for found in (a, b)]
    if facts(smaller, a) != facts(larger, b) or not np.allclose(sums[0], sums[1], rtol=1e-9, atol=1e-12):
        raise ArgumentError("smaller", "must be of the kind, target, rows and weights of the larger model", "others")
    apart = [name for name in smaller.coefficient_names if name not in larger.coefficient_names]
    if apart:
        raise ArgumentError("smaller", "must have columns that the larger model has too", apart[0])
    one, two = smaller.goodness(), larger.goodness()
    assert one is not None
    assert two is not None
    df = two.n_parameters - one.n_parameters
    if df < 1:
        raise ArgumentError("larger", "must have more coefficients than the smaller model", two.n_parameters)
    scale = larger.criterion.noise_variance if b.noise == "given" else 1.0
    settings: dict[str, Any] = {"noise": b.noise, "full": b.total.loss, "df_residual": two.df_residual}
    if larger.kind.has_dispersion and b.total.pearson is not None:
        settings |= {"noise": "estimated", "full": 0.5 * b.total.pearson}
    return likelihood_ratio_test((a.total.loss - b.total.loss) / scale, df, "larger model", **settings)


# --- Variance inflation ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inflation:
    """Variance inflation of a term: det R_tt det R_rr/det R of the correlations of coefficients, as `car::vif` of R.

    `scaled` is its root of order 2 df, which compares terms of several coefficients.
    """

    name: str
    factor: float
    df: int

    @property
    def scaled(self) -> float:
        """Return the factor's root of order 2 df."""
        return float(self.factor ** (0.5 / self.df))


def variance_inflation(model: Any) -> tuple[Inflation, ...]:
    """Return the (generalised) variance inflation factor of each term, from the covariance of the coefficients alone.

    Parameters
    ----------
    model : FittedGLM or a fitted estimator

    Raises
    ------
    ValueError
        When the model has several predictors a row, fewer than two terms, or a coefficient without an error.

    Examples
    --------
    >>> import numpy as np
    >>> from bayesadmm_np.estimators import FederatedLinearRegression, variance_inflation
    >>> X = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 1.0], [3.0, 3.0], [4.0, 2.0]])
    >>> model = FederatedLinearRegression().fit(X, [1.0, 2.0, 4.0, 3.0, 5.0], client=list("aabbb"))
    >>> [round(one.factor, 4) for one in variance_inflation(model)]
    [3.25, 3.25]
    """
    model = _model_of(model)
    spread, columns = _known(model, MODEL, LEVEL), model.columns
    if model.layout.n_outputs > 1:
        raise ArgumentError("model", "must have one predictor a row for variance inflation", model.kind.title)
    terms = columns.terms
    if len(terms) < 2:
        raise ArgumentError("model", "must have two terms or more, which can inflate each other", len(terms))
    change = model.layout.homeward
    each = np.eye(model.layout.dim)[[j for term in terms for j in term.columns]]
    model.require_determined(each, "model", "a coefficient of the terms")
    inner = change @ spread.matrix @ change.T
    found = []
    for term in terms:
        rest = [j for other in terms if other is not term for j in other.columns]
        own = [*term.columns]
        sizes = [_log_det(inner, places) for places in (own, rest, own + rest)]
        found.append(Inflation(term.name, float(np.exp(sizes[0] + sizes[1] - sizes[2])), len(own)))
    return tuple(found)


def _log_det(covariance: Array, places: Sequence[int]) -> float:
    block = covariance[np.ix_(places, places)]
    units = np.sqrt(np.diagonal(block))
    return float(np.linalg.slogdet(block / np.outer(units, units))[1])
