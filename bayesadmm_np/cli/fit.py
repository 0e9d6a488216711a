"""`bayesadmm fit`: a federated regression from CSV files, and what it is worth."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from ._methods import make_method
from ._options import (
    Accelerate,
    DataSettings,
    Files,
    Json,
    Progress,
    Spread,
    at_least,
    families,
    methods,
    option,
    switch,
)
from .shared import Refused, note, print_json, require_file, require_other


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What is fitted to the rows, and how."""

    family: Annotated[
        str, option("Family of the posterior. Default: full, if the method allows it.", choices=families("auto"))
    ] = "auto"
    method: Annotated[str, option("Method, a row of docs/methods.md.", choices=methods("auto"))] = "auto"
    rho: Annotated[float | None, option("ρ of a method that has one, > 0.")] = None
    gamma: Annotated[
        float | Literal["rows"] | None,
        option(
            "γ of a method that has one, in (0, 1]; rows: each site's share of the rows, for PVI and its kin.",
            "NUMBER|rows",
        ),
    ] = None
    accelerate: Accelerate = False
    prior_precision: Annotated[
        float | Literal["evidence"],
        option("Prior precision of each coefficient, in the units of --standardize.", "NUMBER|evidence"),
    ] = 1.0
    noise_variance: Annotated[
        float | Literal["evidence"], option("Noise variance of ridge regression.", "NUMBER|evidence")
    ] = "evidence"
    intercept: Annotated[bool, switch("Fit an intercept.")] = True
    penalize_intercept: Annotated[
        bool, option("Give the intercept the prior of the coefficients; needed by point methods.")
    ] = False
    rounds: Annotated[int, option("Rounds, at most.", check=at_least(1))] = 100
    tol: Annotated[float, option("Tolerance on the pooled stationarity residual.")] = 1e-8


DEFAULT = FitSettings()


def fit(
    data: Files,
    /,
    *,
    rows: Annotated[DataSettings, Spread],
    settings: Annotated[FitSettings, Spread] = DEFAULT,
    config: Annotated[
        Path | None, option("Settings by the names of the options; what is typed wins.", "FILE.toml")
    ] = None,
    out: Annotated[Path | None, option("Model file to write.", "FILE.npz")] = None,
    json: Json = False,
    progress: Progress = True,
) -> int:
    r"""Fit a regression to rows at several sites: the answer that pooling the rows would have given.

    Prints coefficients with standard errors, each site's share of the information
    on them, and a certificate: how far the answer is from the pooled one at most.
    The model file holds no rows.

    Examples of use:
      bayesadmm fit patients.csv --target died --client hospital --out model.npz
      bayesadmm fit north.csv south.csv --target died        one file a site
      bayesadmm fit patients.csv --target died --client hospital \
          --categorical sex,smoker --drop patient_id --prior-precision evidence
      bayesadmm fit patients.csv --config study.toml --json

    The file study.toml has the options as keys (target = "died", rho = 1.0,
    features = ["age", "dose"]); a key that is no option is refused.

    Exit codes: 0 fitted, and the certificate holds; 1 fitted, but not converged
    (the model is written), or the run failed (nothing is written); 2 the command
    or the data were not understood.
    """
    if out is not None:
        require_file(out)
        require_other(out, [*data, *([config] if config else [])])
    return 0 if run_fit(data, rows, settings, out, json, progress) else 1


def run_fit(
    paths: list[Path], given: DataSettings, settings: FitSettings, out: Path | None, as_json: bool, progress: bool
) -> bool:
    """Fit, print and write a model; return whether its certificate holds."""
    from sklearn.exceptions import ConvergenceWarning

    from ..estimators.model_file import save_model
    from . import report
    from .prepare import choose_loss, code_labels, fit_columns, target_units
    from .table import read_rows

    rows = read_rows(paths, given)
    if len(paths) == 1 and given.client is None:
        note("all rows are taken as one site: --client names the column of sites.")
    loss, classes = choose_loss(rows, given.target, given.loss)
    columns = fit_columns(rows, given.categorical, given.standardize, settings.intercept)
    labels = code_labels(rows, given.target, classes)
    units = target_units(loss, labels, rows.weights, given)
    estimator = _estimator(loss, settings, units[1], progress)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            estimator.fit(
                columns.design(rows.columns),
                (labels - units[0]) / units[1] if loss == "ridge" else labels,
                client=rows.site.astype(str),
                sample_weight=rows.weights,
            )
        except ValueError as error:
            raise Refused(_in_options(str(error))) from error
    for warning in said:
        note(f"bayesadmm fit: {_in_options(str(warning.message))}")
    model = replace(
        _to_model(estimator, loss, classes, columns, given, settings.intercept),
        target_centre=units[0],
        target_scale=units[1],
    )
    if out is not None:
        save_model(out, model)
    if as_json:
        extra = {"model": None if out is None else str(out), "dropped_rows": rows.dropped}
        print_json({**report.as_dict(model, "original"), **extra})
    else:
        print(report.as_text(model, "original"))
        if out is not None:
            note(f"model written to {out}.")
    return model.holds and model.status == "CONVERGED"


def _estimator(loss: str, settings: FitSettings, target_scale: float, progress: bool) -> Any:
    from ..estimators import FederatedLogisticRegression, FederatedPoissonRegressor, FederatedRidge

    arguments: dict[str, Any] = {
        "prior_precision": settings.prior_precision,
        "method": make_method(settings.method, settings.rho, settings.gamma, settings.accelerate),
        "family": settings.family,
        "fit_intercept": settings.intercept,
        "penalize_intercept": settings.penalize_intercept,
        "max_rounds": settings.rounds,
        "tol": settings.tol,
        "progress": progress and settings.prior_precision != "evidence",
    }
    if loss == "ridge":
        noise = settings.noise_variance
        return FederatedRidge(**arguments, noise_variance=noise if isinstance(noise, str) else noise / target_scale**2)
    return (FederatedPoissonRegressor if loss == "poisson" else FederatedLogisticRegression)(**arguments)


def _in_options(message: str) -> str:
    """Spell the estimators' arguments as options."""
    message = message.replace("penalize_intercept=False", "an unpenalised intercept")
    message = message.replace("penalize_intercept=True", "--penalize-intercept").replace("max_rounds", "rounds")
    message = re.sub(r"\b(method|family|prior_precision|noise_variance)='(\w+)'", r"--\1 \2", message)
    message = re.sub(r"\b(rounds|tol|prior_precision|noise_variance)\b(?= \(now| must)", r"--\1", message)
    return re.sub(r"--(prior|noise)_", r"--\1-", message)


def _to_model(
    estimator: Any, loss: str, classes: tuple[Any, ...], columns: Any, given: DataSettings, intercept: bool
) -> Any:
    import numpy as np

    from ..estimators.model_file import FittedModel, Site
    from ..estimators.settings import read_settings
    from ..losses import Exact, QuasiMonteCarlo
    from ..splitting.methods import FedLapCov

    certificate = estimator.certificate_
    own = read_settings(estimator).row.expectation
    if estimator.method_ == FedLapCov().name:  # where auto fell back to it, too
        own = FedLapCov().expectation
    history = estimator.history_
    model = FittedModel(
        loss=loss,
        target=given.target,
        client=given.client,
        columns=columns,
        classes=classes,
        intercept=intercept,
        prior=estimator.prior_,
        posterior=estimator.posterior_,
        sites={str(name): Site(factor, estimator.site_rows_[name]) for name, factor in estimator.site_factors_.items()},
        rule=own or (QuasiMonteCarlo() if loss == "softmax" else Exact()),
        noise_variance=float(getattr(estimator, "noise_variance_", 1.0)),
        method=estimator.method_,
        status=estimator.status_.name,
        message="; ".join(filter(None, [estimator.status_.value, estimator.evidence_message_])),
        tol=certificate.tol,
        rounds=estimator.n_rounds_,
        objective=np.array([record.objective for record in history]),
        floats=sum(record.floats_down + record.floats_up for record in history),
        edges=certificate.edges,
        pooled=certificate.pooled,
    )
    if certificate.distance is None:
        return model
    return replace(model, distance=str(model.in_both_units(certificate.distance)))
