"""`bayesadmm fit`: a federated regression from CSV files, and what it is worth."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..glm.inference import LEVEL
from ._methods import make_method
from ._options import (
    DataSettings,
    Files,
    FitSettings,
    Json,
    Level,
    MethodSettings,
    NoProgress,
    ReferenceClass,
    Spread,
    Tests,
    TestType,
    option,
)
from ._terminal import exit_code, note, option_words, print_json, require_out

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM


DEFAULT = FitSettings()
AUTO = MethodSettings()
NO_ROWS = DataSettings()
SAME = (
    *("prior_precision", "noise_variance", "inference", "family", "prior_unit", "penalize_intercept", "penalty"),
    *("weight_meaning", "tol"),
)
"""Settings that are arguments of the estimator, too."""


def fit(
    data: Files,
    /,
    *,
    rows: Annotated[DataSettings, Spread] = NO_ROWS,
    settings: Annotated[FitSettings, Spread] = DEFAULT,
    method: Annotated[MethodSettings, Spread] = AUTO,
    ratios: Annotated[bool, option("Show odds or rate ratios with their intervals.")] = False,
    reference_class: ReferenceClass = None,
    intervals: Annotated[
        Literal["wald", "profile"],
        option("Confidence intervals: symmetric (wald), or from the profile likelihood, for small samples."),
    ] = "wald",
    level: Level = LEVEL,
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
    no_progress: NoProgress = False,
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
      bayesadmm fit north.csv south.csv --formula "died ~ age*sex + C(ward)"
      bayesadmm fit north.csv south.csv --target died --ratios --covariance HC3
      bayesadmm fit patients.csv --config study.toml --json

    The file study.toml has the options as keys (target = "died", rho = 1.0,
    features = ["age", "dose"]); an unknown key is refused.

    Exit codes: 0 fitted, and the certificate holds. 1 fitted, but not converged
    (the model is written), or the run failed (nothing is written). 2 the command
    or the data were not understood. 4 the likelihood has no maximum (the model is
    written, and names the coefficients without an estimate).
    """
    from ..estimators.model_file import save_model
    from ..estimators.summary import as_dict, summarise
    from ..estimators.term_tests import term_table

    if out is not None:
        require_out(out, [*data, *([config] if config else [])])
    model, estimator, dropped = _fitted(data, rows, settings, make_method(method), not no_progress)
    shown: Any = {"covariance": settings.covariance, "reference": reference_class, "words": option_words()}
    shown |= {"level": level}
    if model.has_maximum:
        shown |= {"losses": estimator.losses()} if intervals == "profile" else {}
    elif intervals == "profile":
        note("the likelihood has no maximum: intervals are Wald's.")
    if not model.has_maximum and model.fit_name != "maximum likelihood" and tests != "none":
        note("it is not known whether the likelihood has a maximum, so no terms are tested.")
        tests = "none"
    shown |= {"tests": term_table(model, tests, settings.covariance, test_type, estimator._at_hand("fit"))}
    if tests not in ("none", "wald"):
        model = replace(model, totals=replace(model.totals, ratio_tests=shown["tests"]))
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
    data: list[Path], given: DataSettings, settings: FitSettings, method: Any, show: bool
) -> tuple[FittedGLM, Any, int]:
    """Return the fitted model, the estimator, and how many rows were dropped."""
    from sklearn.exceptions import ConvergenceWarning

    from ..estimators import FederatedGLM
    from ..estimators.caveats import Caveat
    from ..estimators.formula_fit import fit_designs
    from ._kinds import choose_kind
    from ._rows import rows_of_fit

    rows = rows_of_fit(data, given, no_intercept=settings.no_intercept)
    clusters = rows.clusters(given.cluster)
    if len(data) == 1 and given.client is None:
        note("all rows count as one site; --client COLUMN names the site of each row.")
    kind, _ = choose_kind(rows, given.loss, given)
    if given.exposure is not None:
        kind.require_log("exposure")
    estimator = FederatedGLM(
        kind,
        method=method,
        fit_intercept=rows.agreement.has_intercept,
        max_rounds=settings.rounds,
        progress=show and settings.prior_precision != "evidence",
        **{name: getattr(settings, name) for name in SAME},
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("ignore", UserWarning)  # of the classes: `choose_kind` has said it
        warnings.simplefilter("always", ConvergenceWarning)
        fit_designs(estimator, rows.agreement, rows.designs, given.client, rows.tables, kind.has_trials)
    for warning in said:
        about: Any = warning.message
        # of a caveat the table has the findings
        text = " ".join(say(option_words()) for say in about.sentences) if isinstance(about, Caveat) else str(about)
        if text:
            note(f"bayesadmm fit: {text}")
    model = estimator.fitted_
    if model.criterion.inference == "likelihood" and model.learns_covariance:
        leveraged = settings.covariance in ("HC2", "HC3") and model.kind.outputs != "classes"
        # what is asked for and not defined is refused with the reason
        robust = ("HC0", "HC2", "HC3", "cluster") if leveraged else None
        model = estimator.with_robust(robust, clusters)
    model = replace(model, record=replace(model.record, shown=settings.covariance))
    return model, estimator, sum(rows.site_dropped.values())
