"""`bayesadmm fit`: a federated regression from CSV files, and what it is worth."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ._methods import make_method
from ._options import (
    Files,
    FitSettings,
    FormulaSettings,
    Json,
    MethodSettings,
    Progress,
    ReferenceClass,
    Spread,
    Tests,
    TestType,
    option,
    switch,
)
from ._terminal import exit_code, note, option_words, print_json, require_out

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM
    from ..glm.kinds import Kind


DEFAULT = FitSettings()
AUTO = MethodSettings()
NO_ROWS = FormulaSettings()


def fit(
    data: Files,
    /,
    *,
    rows: Annotated[FormulaSettings, Spread] = NO_ROWS,
    settings: Annotated[FitSettings, Spread] = DEFAULT,
    method: Annotated[MethodSettings, Spread] = AUTO,
    ratios: Annotated[bool, switch("Show odds or rate ratios with their intervals.")] = False,
    reference_class: ReferenceClass = None,
    intervals: Annotated[
        Literal["wald", "profile"],
        option("Confidence intervals: symmetric (wald), or from the profile likelihood, for small samples."),
    ] = "wald",
    tests: Tests = "none",
    test_type: TestType = "II",
    config: Annotated[
        Path | None,
        option(
            "File of settings, named like the options. An option on the command line takes precedence.", "FILE.toml"
        ),
    ] = None,
    out: Annotated[Path | None, option("Model file to write.", "FILE.npz")] = None,
    json: Json = False,
    progress: Progress = True,
) -> int:
    r"""Fit a regression to rows at several sites; the result is the fit of the pooled rows.

    Prints the coefficients with standard errors, the share of the information that
    each site has on them, and a certificate: a bound on the distance between this
    result and the pooled fit. The model file holds no rows.

    Examples of use:
      bayesadmm fit patients.csv --target died --client hospital --out model.npz
      bayesadmm fit north.csv south.csv --target died        one file a site
      bayesadmm fit patients.csv --target died --client hospital \
          --categorical sex,smoker --drop patient_id --prior-precision evidence
      bayesadmm fit north.csv south.csv --formula 'died ~ age*sex + C(ward)'
      bayesadmm fit north.csv south.csv --target died --ratios --covariance HC3
      bayesadmm fit patients.csv --config study.toml --json

    The file study.toml has the options as keys (target = "died", rho = 1.0,
    features = ["age", "dose"]); an unknown key is refused.

    Exit codes: 0 fitted, and the certificate holds; 1 fitted, but not converged
    (the model is written), or the run failed (nothing is written); 2 the command
    or the data were not understood; 4 the likelihood has no maximum (the model is
    written, and names the coefficients without an estimate).
    """
    from ..estimators.model_file import save_model
    from ..estimators.summary import as_dict, summarise
    from ..estimators.term_tests import tests_of

    if out is not None:
        require_out(out, [*data, *([config] if config else [])])
    model, losses, dropped = _fitted(data, rows, settings, make_method(method), progress)
    shown: Any = {"covariance": settings.covariance, "reference": reference_class, "words": option_words()}
    if model.has_maximum:
        shown |= {"losses": losses} if intervals == "profile" else {}
    elif intervals == "profile":
        note("the likelihood has no maximum: intervals are Wald's.")
    if not model.has_maximum and model.fit_name != "maximum likelihood" and tests != "none":
        note("nothing is known about the maximum of the likelihood: there are no tests of terms.")
        tests = "none"
    shown |= {"tests": tests_of(model, tests, settings.covariance, test_type, losses)}
    if tests == "lr":
        model = replace(model, ratio_tests=shown["tests"])
    table = summarise(model, ratios=ratios, **shown)  # what it refuses leaves no file
    if out is not None:
        save_model(out, model)
    if json:
        whole = as_dict(model, **shown)
        print_json({**whole, "model": None if out is None else str(out), "dropped_rows": dropped})
    else:
        print(table)
        if out is not None:
            note(f"model written to {out}.")
    return exit_code(model)


def _fitted(
    data: list[Path], given: FormulaSettings, settings: FitSettings, method: Any, progress: bool
) -> tuple[FittedGLM, Any, int]:
    """Return the fitted model, the sites' losses, and how many rows were dropped."""
    import numpy as np
    import pandas as pd
    from sklearn.exceptions import ConvergenceWarning

    from ..estimators.caveats import Caveat
    from ._design import choose_kind, fit_columns, in_own_units, target_units
    from ._formula import rows_of_fit

    rows, exposure = rows_of_fit(data, given, settings.intercept), given.exposure
    if rows.agreement is not None:
        given = replace(given, target=rows.agreement.target, offset=None, exposure=None)  # the formula has them
        settings = replace(settings, intercept=rows.agreement.has_intercept)
    if len(data) == 1 and given.client is None:
        note("all rows are taken as one site: --client names the column of sites.")
    kind, classes = choose_kind(rows, given)
    if exposure is not None:
        kind.require_log("exposure")
    columns = fit_columns(rows, given.standardize, settings.intercept)
    y = rows.target
    centre, scale = target_units(kind, y, rows.weights, given.standardize)
    centre *= settings.intercept and not settings.penalize_intercept  # that takes it back, and has no prior about zero
    estimator = _estimator(kind, method, settings, scale, progress)
    estimator._home = columns.centre, columns.scale, scale
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore", UserWarning)  # of the classes: `choose_kind` has said it
        warnings.simplefilter("always", ConvergenceWarning)
        estimator.fit(
            pd.DataFrame(columns.design(rows.matrix), columns=list(columns.names)),
            y if kind.is_classifier else (y - centre) / scale,
            client=rows.site.astype(str),
            sample_weight=None if kind.has_trials else rows.weights,
            trials=rows.weights if kind.has_trials else None,
            offset=None if rows.offset is None else rows.offset / scale,
        )
    for warning in said:
        about: Any = warning.message
        # of a caveat the table has the findings, in the columns' own units
        text = " ".join(say(option_words()) for say in about.sentences) if isinstance(about, Caveat) else str(about)
        if text:
            note(f"bayesadmm fit: {text}")
    counts = settings.weight_meaning == "frequency" and rows.weights is not None
    weight = rows.weights.sum() if counts and rows.weights is not None else len(y)
    fitted, likelihood = estimator.fitted_, estimator.log_likelihood_
    if fitted.inference == "likelihood" and fitted.learns_covariance:
        leveraged = settings.covariance in ("HC2", "HC3") and fitted.kind.outputs != "classes"
        # what is asked for and not defined is refused with the reason
        fitted = estimator.with_robust(("HC0", "HC2", "HC3", "cluster") if leveraged else None, rows.clusters)
    sites = {name: replace(site, n_missing=rows.site_dropped.get(name, 0)) for name, site in fitted.sites.items()}
    model = replace(
        fitted,
        sites=sites,
        target=given.target,
        client=given.client,
        offset=given.offset,
        exposure=given.exposure,
        columns=columns,
        findings=tuple(
            in_own_units(finding, columns, fitted.layout, fitted.output_names) for finding in fitted.findings
        ),
        classes=classes,
        target_centre=centre,
        target_scale=scale,
        shown=settings.covariance,
        log_likelihood=None if likelihood is None else float(likelihood - weight * np.log(scale)),
        elbo=None if fitted.elbo is None else float(fitted.elbo - weight * np.log(scale)),
    )
    return model, estimator.losses(), rows.dropped


def _estimator(kind: Kind, method: Any, settings: FitSettings, target_scale: float, progress: bool) -> Any:
    from ..estimators import FederatedGLM

    noise = settings.noise_variance
    same = ("inference", "family", "prior_unit", "penalize_intercept", "penalty", "weight_meaning", "tol")
    return FederatedGLM(
        kind,
        settings.prior_precision,
        noise_variance=noise if isinstance(noise, str) else noise / target_scale**2,
        method=method,
        fit_intercept=settings.intercept,
        max_rounds=settings.rounds,
        progress=progress and settings.prior_precision != "evidence",
        **{name: getattr(settings, name) for name in same},
    )
