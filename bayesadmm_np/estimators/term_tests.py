"""Tests of terms of a fitted model: columns, the levels of a column together, or any group of coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._registry import nearest
from .._validation import Array
from ..design.agreement import Term
from ..glm import hypotheses as glm
from ..glm.fit import Ask, ask_tests, test_of_odds
from ..glm.hypotheses import TYPES, Hypothesis, TermTest, TestName, TestType, hypotheses
from ..glm.inference import LEVEL, Estimate, estimate
from ..glm.problem import Problem
from .fitted import NO_NOISE, FittedGLM
from .settings import read_choice
from .summary import MODEL, QUASI, Spread

Terms = Mapping[str, Sequence[str]] | None


def read_terms(model: FittedGLM, terms: Terms = None, type: TestType | None = None) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that each term is nothing, or each group of columns that somebody names."""
    columns, layout = model.columns, model.layout
    if terms is None:
        chosen = read_choice("II" if type is None else type, "type", TYPES)
        return hypotheses(columns.terms, layout.width, layout.n_outputs, chosen)
    if type is not None:
        raise ArgumentError("type", "must be left out for columns that `terms` names, beside all others", repr(type))
    place = {name: j for j, name in enumerate(columns.names)}
    groups = []
    for name, members in terms.items():
        unknown = [member for member in members if member not in place]
        if unknown or not members or isinstance(members, str):
            expected = f"must name columns of the design ({', '.join(place)}) for {name!r}"
            raise ArgumentError("terms", expected, repr(unknown[0]) if unknown else repr(members))
        groups.append(Term(name, frozenset([name]), tuple(place[member] for member in dict.fromkeys(members))))
    return hypotheses(groups, layout.width, layout.n_outputs, "")


def wald_tests(
    model: FittedGLM, terms: Terms = None, covariance: str = MODEL, type: TestType | None = None
) -> tuple[TermTest, ...]:
    """Test terms by the estimates and their covariance; see `glm.hypotheses.wald_tests`."""
    spread, asked = _spread(model, covariance), read_terms(model, terms, type)
    if spread.matrix is None:
        return tuple(one.lacks(one.df(_flat(model)), NO_NOISE) for one in asked)
    return glm.wald_tests(asked, model.kept, spread.matrix, _flat(model), model.determines, spread.df)


AtHand = tuple[Problem, Ask]
"""The problem of a fit in this process, and its rows, which answer questions."""


def refit_tests(
    model: FittedGLM, rows: AtHand, how: TestName = "lr", terms: Terms = None, type: TestType | None = None
) -> tuple[TermTest, ...]:
    """Test each term by fits without it: χ², or F where the noise variance is estimated; see `REFITS`."""
    asked = read_terms(model, terms, type)
    if _spread(model, MODEL, how == "lr").matrix is None:
        return tuple(replace(one.lacks(one.df(_flat(model)), NO_NOISE), how=how) for one in asked)
    known, whole, (problem, ask) = model.totals.statistics, model.goodness(), rows
    noise = "none" if known is None else known.noise
    full = None if known is None else known.total.loss / (model.criterion.noise_variance if noise == "given" else 1.0)
    df = None if whole is None else whole.df_residual
    settings: dict[str, Any] = {
        "flat": _flat(model),
        "receding": model.unidentified.receding,
        "full": full,
        "noise": noise,
    }
    if model.kind.has_dispersion and known is not None and known.total.pearson is not None:
        settings |= {"noise": "estimated", "left": 0.5 * known.total.pearson}
    theta = model.posterior.mean
    tests = ask_tests(how, asked, problem, ask, theta, **settings, df_residual=df)
    return tests if terms is not None else (*tests, *test_of_odds(problem, ask, theta, how))


def term_table(
    model: FittedGLM, how: TestName, covariance: str, type: TestType, rows: AtHand | None = None
) -> tuple[TermTest, ...]:
    """Return tests of the terms; those by fits without a term of a fit at hand, or that the model has kept."""
    if how == "none":
        return ()
    if how == "wald":
        return wald_tests(model, None, covariance, type)
    if covariance == QUASI:
        raise ArgumentError("tests", "must be 'wald' beside covariance 'quasi', which has no likelihood", repr(how))
    if rows is not None:
        return refit_tests(model, rows, how, None, type)
    if {(test.how, test.type) for test in model.totals.ratio_tests} != {(how, type)}:
        advice = "fit again with it: a fit keeps the tests that it is asked for"
        raise ArgumentError("tests", "must be 'none' or 'wald' for this model", f"{how!r} of type {type}", advice)
    return model.totals.ratio_tests


def _flat(model: FittedGLM) -> Array:
    """Return the directions that no row sees; where nobody looked for them, those of held coefficients alone."""
    return np.eye(model.layout.dim)[:, model.held] if model.unidentified.flat is None else model.unidentified.flat


def contrast(
    model: Any, weights: Mapping[str, float], covariance: str = MODEL, name: str = "", level: float = LEVEL
) -> Estimate:
    """Return a weighted sum of coefficients, in the columns' own units, with its standard error.

    Parameters
    ----------
    model : FittedGLM or a fitted estimator
    weights : dict of float
        Weights by the names of coefficients, those of `FittedGLM.coefficient_names`.
    covariance : str, default 'model'
        See `summarise`.
    name : str, default ''
        By default the sum in words.
    level : float, default 0.95
        Probability of the interval.

    Raises
    ------
    ValueError
        When a coefficient is unknown, the rows do not determine the sum, or the model has no covariance.

    Examples
    --------
    >>> from bayesadmm_np.estimators import FederatedLinearRegression, contrast
    >>> X = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]]
    >>> model = FederatedLinearRegression().fit(X, [1.0, 2.0, 4.1, 5.0], client=["a", "a", "b", "b"])
    >>> found = contrast(model.fitted_, {"x0": 1.0, "x1": -1.0})
    >>> found.name, round(found.coef, 4)
    ('x0 − x1', 0.95)
    """
    if hasattr(model, "fitted_"):
        model = model._with_covariance(covariance, None)
    if not isinstance(weights, Mapping):
        raise ArgumentError("weights", "must be a dict from names of coefficients to numbers", repr(weights))
    names, spread = model.coefficient_names, Spread.of(model, covariance, level)
    unknown = [key for key in weights if key not in names]
    if unknown or not weights:
        near = nearest(unknown[0], names) if unknown else None
        expected, got = f"must name coefficients ({', '.join(names)})", repr(unknown[0]) if unknown else "none"
        raise ArgumentError("weights", expected, got, f"did you mean {near!r}?" if near else "")
    if spread.matrix is None:
        why = (
            NO_NOISE if model.learns_covariance else f"{model.record.method} with the {model.family} family learns none"
        )
        raise ValueError(f"a contrast needs a covariance, and there is none: {why}.")
    change, shift = model.layout.to_user
    weight = np.array([weights.get(key, 0.0) for key in names])
    model.require_determined((weight @ change)[None], "weights", _in_words(weights))
    own, covariance_of = change @ model.posterior.mean + shift, change @ spread.matrix @ change.T
    (error,) = np.sqrt(np.einsum("ij,jk,ik->i", weight[None], covariance_of, weight[None]))
    return estimate(name or _in_words(weights), (weight[None] @ own)[0], error, spread.df, spread.level)


def _in_words(weights: Mapping[str, float]) -> str:
    """Return a weighted sum as it is written: 2·a + b − c."""
    terms = [f"{'−' if w < 0 else '+'} {'' if abs(w) == 1 else f'{abs(w):g}·'}{key}" for key, w in weights.items()]
    first = terms[0].removeprefix("+ ").replace("− ", "−", 1)
    return " ".join([first, *terms[1:]])


def _spread(model: FittedGLM, covariance: str, may_penalise: bool = False) -> Spread:
    spread = Spread.of(model, covariance)
    is_penalised = may_penalise and model.criterion.penalty == "firth"
    if not (model.fit_name.endswith("maximum likelihood") or is_penalised) or not model.learns_covariance:
        raise ValueError(f"a test of terms needs a fit by maximum likelihood with a covariance, not: {model.fit_name}.")
    return spread
