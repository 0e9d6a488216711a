"""Tests of terms of a fitted model: columns, the levels of a column together, or any group of coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .._errors import ArgumentError
from .._registry import nearest
from ..design.agreement import terms_of
from ..glm.inference import Estimate, Test, contrasts, likelihood_ratio_test, picks, wald_test
from ..glm.refit import drive, refit, without
from ..losses.base import Loss
from .fitted import FittedGLM
from .summary import MODEL, Spread

Terms = Mapping[str, Sequence[str]] | None


def read_terms(model: FittedGLM, terms: Terms = None) -> dict[str, list[int]]:
    """Return the places in θ of each term, at all outputs, without those that are held at zero.

    By default one term is a column of the table, or a term of the formula.
    """
    columns, layout = model.columns, model.layout
    names = columns.names
    given = terms_of(names, columns.agreement) if terms is None else terms
    found, gone = {}, model.held | ~model.has_error(np.eye(layout.dim))
    for term, members in given.items():
        unknown = [name for name in members if name not in names]
        if unknown or not members or isinstance(members, str):
            expected = f"must name columns of the design ({', '.join(names)}) for {term!r}"
            raise ArgumentError("terms", expected, repr(unknown[0]) if unknown else repr(members))
        places = [names.index(name) for name in dict.fromkeys(members)]
        every = [output * layout.width + j for output in range(layout.n_outputs) for j in places]
        found[term] = [place for place in every if not gone[place]]
        if not found[term] and terms is None:
            del found[term]
        elif not found[term]:
            what = ", ".join(members)
            raise ArgumentError(
                "terms", "must have a coefficient that the rows determine", f"{term!r} ({what}) held at 0"
            )
    return found


def wald_tests(model: FittedGLM, terms: Terms = None, covariance: str = MODEL) -> tuple[Test, ...]:
    """Test that all coefficients of a term are zero, by the estimates and their covariance; see `wald_test`.

    A term with a coefficient that has no finite estimate has no such test.
    """
    spread = _spread(model, covariance)
    assert spread.matrix is not None
    return tuple(
        wald_test(
            model.kept,
            spread.matrix,
            picks(model.layout.dim, places),
            name=term,
            df_residual=spread.df,
        )
        for term, places in read_terms(model, terms).items()
        if model.shows(picks(model.layout.dim, places)).all()
    )


def likelihood_ratio_tests(model: FittedGLM, losses: Sequence[Loss], terms: Terms = None) -> tuple[Test, ...]:
    """Test each term by a refit without it: χ² of the likelihood ratio, or F where the noise variance is estimated."""
    return ratio_tests(replace(model, reduced=reduced_losses(model, losses, terms)), terms)


def reduced_losses(model: FittedGLM, losses: Sequence[Loss], terms: Terms = None) -> dict[str, float]:
    """Return the pooled loss of the fit without each term, at a noise variance of 1; see `likelihood_ratio_tests`."""
    _spread(model, MODEL)
    return {
        term: drive(refit(model.posterior.mean, without(model.layout.dim, places) & ~model.superfluous), losses).value
        * model.noise_variance
        for term, places in read_terms(model, terms).items()
    }


def ratio_tests(model: FittedGLM, terms: Terms = None) -> tuple[Test, ...]:
    """Test each term of which the model knows the loss of the fit without it."""
    full, found = model.goodness(), []
    if full is None or model.statistics is None:
        raise ValueError("a likelihood-ratio test needs a model with statistics.")
    for term, places in read_terms(model, terms).items():
        if term in model.reduced:
            reduced = model.goodness(model.reduced[term], len(places))
            assert reduced is not None
            found.append(likelihood_ratio_test(full, reduced, term, noise=model.statistics.noise))
    return tuple(found)


def tests_of(model: FittedGLM, how: str, covariance: str) -> tuple[Test, ...]:
    """Return tests of the terms, of 'none', 'wald' or 'lr'; likelihood ratios where the fit knows them."""
    if how == "lr" and not model.reduced:
        advice = "fit again with it: a fit keeps the likelihood ratios that it is asked for"
        raise ArgumentError("tests", "must be 'none' or 'wald' for this model", "'lr'", advice)
    if how == "none":
        return ()
    return ratio_tests(model) if how == "lr" else wald_tests(model, None, covariance)


def contrast(model: FittedGLM, weights: Mapping[str, float], covariance: str = MODEL, name: str = "") -> Estimate:
    """Return a weighted sum of coefficients, in the columns' own units, with its standard error.

    Parameters
    ----------
    model : FittedGLM
    weights : dict of float
        Weights by the names of coefficients, those of `FittedGLM.coefficient_names`.
    covariance : str, default 'model'
        See `summarise`.
    name : str, default ''
        By default the sum in words.

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
    names, spread = model.coefficient_names, Spread.of(model, covariance)
    unknown = [key for key in weights if key not in names]
    if unknown or not weights:
        near = nearest(unknown[0], names) if unknown else None
        expected, got = f"must name coefficients ({', '.join(names)})", repr(unknown[0]) if unknown else "none"
        raise ArgumentError("weights", expected, got, f"did you mean {near!r}?" if near else "")
    if spread.matrix is None:
        raise ValueError(f"{model.method} with the {model.family} family learns no covariance.")
    change, shift = model.in_units("original")
    weight = np.array([weights.get(key, 0.0) for key in names])
    model.require_determined((weight @ change)[None], "weights", _in_words(weights))
    own, covariance_of = change @ model.posterior.mean + shift, change @ spread.matrix @ change.T
    return contrasts(own, covariance_of, weight, [name or _in_words(weights)], df=spread.df)[0]


def _in_words(weights: Mapping[str, float]) -> str:
    """Return a weighted sum as it is written: 2·a + b − c."""
    terms = [f"{'−' if w < 0 else '+'} {'' if abs(w) == 1 else f'{abs(w):g}·'}{key}" for key, w in weights.items()]
    first = terms[0].removeprefix("+ ").replace("− ", "−", 1)
    return " ".join([first, *terms[1:]])


def _spread(model: FittedGLM, covariance: str) -> Spread:
    spread = Spread.of(model, covariance)
    if model.fit_name != "maximum likelihood" or spread.matrix is None:
        raise ValueError(f"a test of terms needs a fit by maximum likelihood with a covariance, not: {model.fit_name}.")
    return spread
