"""`bayesadmm fit`, `predict`, `summary` and `certify`: a federated regression from CSV files, and what it is worth."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import (
    NA,
    Accelerate,
    Categorical,
    Client,
    Config,
    DataSettings,
    Drop,
    DropNA,
    Family,
    Features,
    Files,
    FitSettings,
    Gamma,
    Intercept,
    Json,
    Loss,
    MethodName,
    NoiseVariance,
    PenalizeIntercept,
    PriorPrecision,
    Progress,
    Rho,
    Rounds,
    Separator,
    Standardize,
    Target,
    Tol,
    Weights,
    read_config,
    read_settings,
    split_names,
)
from .shared import (
    Refused,
    missing_name,
    note,
    print_json,
    refusals,
    require_file,
    require_other,
    text_table,
    write_csv,
)

__all__ = ["add_commands", "make_method"]

FIT_HELP = """Fit a regression to rows at several sites: the answer that pooling the rows would have given.

Prints coefficients with standard errors, each site's share of the information
on them, and a certificate: how far the answer is from the pooled one at most.
The model file holds no rows.

\b
Examples:
  bayesadmm fit patients.csv --target died --client hospital --out model.npz
  bayesadmm fit north.csv south.csv --target died        one file a site
  bayesadmm fit patients.csv --target died --client hospital \\
      --categorical sex,smoker --drop patient_id --prior-precision evidence
  bayesadmm fit patients.csv --config study.toml --json

The file study.toml has the options as keys (target = "died", rho = 1.0,
features = ["age", "dose"]); a key that is no option is refused.

Exit codes: 0 fitted, and the certificate holds; 1 fitted, but not converged
(the model is written), or the run failed (nothing is written); 2 the command
or the data were not understood.
"""

PREDICT_HELP = """Predict new rows from a model file.

Classification: the probability of each class, integrated over the posterior.
Regression: mean and standard deviation of a new observation. The columns must
be those of the fit; the target's and the sites' may be there and are ignored.

\b
Examples:
  bayesadmm predict model.npz new.csv --out predictions.csv
  bayesadmm predict model.npz new.csv --drop patient_id

Exit codes: 0 predicted, 2 the command, the model or the data were refused.
"""

SUMMARY_HELP = """Print the table of a model file: coefficients, standard errors, shares of the sites, certificate.

\b
Examples:
  bayesadmm summary model.npz
  bayesadmm summary model.npz --units standardized      per standard deviation
  bayesadmm summary model.npz --json

Exit codes: 0 all is well, 2 the command or the model were refused.
"""

CERTIFY_HELP = """Check a model file against the rows that it was fitted to, from sums over each site's rows.

Recomputes the residual of the pooled stationarity condition at the model's
posterior and the bound that it gives on the distance to the pooled fit. The
table shows whose rows are not those of the fit.

\b
Examples:
  bayesadmm certify model.npz patients.csv
  bayesadmm certify model.npz north.csv south.csv
  bayesadmm certify model.npz patients.csv --tol 1e-4

Exit codes: 0 the certificate holds, 1 it does not, 2 the command, the model or
the data were refused.
"""

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Written by bayesadmm fit.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""

    @app.command("fit", help=FIT_HELP, short_help="Fit a regression to rows at several sites.")
    def _fit(
        ctx: typer.Context,
        data: Files,
        target: Target = None,
        client: Client = None,
        features: Features = None,
        drop: Drop = None,
        categorical: Categorical = None,
        weights: Weights = None,
        loss: Loss = None,
        family: Family = None,
        method: MethodName = None,
        rho: Rho = None,
        gamma: Gamma = None,
        accelerate: Accelerate = None,
        prior_precision: PriorPrecision = None,
        noise_variance: NoiseVariance = None,
        intercept: Intercept = None,
        penalize_intercept: PenalizeIntercept = None,
        standardize: Standardize = None,
        rounds: Rounds = None,
        tol: Tol = None,
        dropna: DropNA = None,
        separator: Separator = None,
        na: NA = None,
        config: Config = None,
        out: Annotated[Path | None, typer.Option("--out", metavar="FILE.npz", help="Write the model there.")] = None,
        json: Json = False,
        progress: Progress = True,
    ) -> None:
        with refusals("fit"):
            settings = read_settings(FitSettings, ctx.params, read_config(config) if config else None)
            if out is not None:
                require_file(out)
                require_other(out, [*data, *([config] if config else [])])
            good = fit(data, settings, out, json, progress)
        raise typer.Exit(0 if good else 1)

    @app.command("predict", help=PREDICT_HELP, short_help="Predict new rows.")
    def _predict(
        model: ModelFile,
        data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV file of new rows.")],
        out: Annotated[Path | None, typer.Option("--out", metavar="FILE.csv", help="Default: standard output.")] = None,
        drop: Drop = None,
        separator: Separator = None,
        na: NA = None,
        json: Json = False,
    ) -> None:
        with refusals("predict"):
            if out is not None:
                require_file(out)
                require_other(out, [model, data])
            predict(model, data, out, split_names(drop), separator or ",", split_names(na), json)

    @app.command("summary", help=SUMMARY_HELP, short_help="Print the table of a model file.")
    def _summary(
        model: ModelFile,
        units: Annotated[
            str,
            typer.Option(
                "--units",
                metavar="original|standardized",
                help="The columns' own, or per standard deviation.",
            ),
        ] = "original",
        json: Json = False,
    ) -> None:
        with refusals("summary"):
            from ..estimators.model_file import load_model
            from . import report

            if units not in report.UNITS:
                raise Refused(f"--units: {missing_name('there are no units', units, report.UNITS)}")
            found = load_model(model)
            if json:
                print_json(report.as_dict(found, units))
            else:
                print(report.as_text(found, units))

    @app.command("certify", help=CERTIFY_HELP, short_help="Check a model against its rows.")
    def _certify(
        ctx: typer.Context,
        model: ModelFile,
        data: Files,
        client: Client = None,
        weights: Weights = None,
        tol: Tol = None,
        dropna: DropNA = None,
        separator: Separator = None,
        na: NA = None,
        json: Json = False,
    ) -> None:
        with refusals("certify"):
            good = certify(model, data, ctx.params, tol, json)
        raise typer.Exit(0 if good else 1)


def fit(paths: list[Path], settings: FitSettings, out: Path | None, as_json: bool, progress: bool) -> bool:
    """Fit, print and write a model; return whether its certificate holds."""
    from sklearn.exceptions import ConvergenceWarning

    from ..estimators.model_file import save_model
    from . import report
    from .prepare import choose_loss, code_labels, fit_columns, target_units
    from .table import read_rows

    rows = read_rows(paths, settings)
    if len(paths) == 1 and settings.client is None:
        note("all rows are taken as one site: --client names the column of sites.")
    loss, classes = choose_loss(rows, settings.target, settings.loss)
    columns = fit_columns(rows, settings.categorical, settings.standardize, settings.intercept)
    labels = code_labels(rows, settings.target, classes)
    units = target_units(loss, labels, rows.weights, settings)
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
        _to_model(estimator, loss, classes, columns, settings), target_centre=units[0], target_scale=units[1]
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


def make_method(name: str, rho: float | None, gamma: float | str | None, accelerate: bool) -> Any:
    """Return a row of the table with its arguments, or "auto"."""
    from ..splitting.accelerated import Accelerated
    from ..splitting.methods import TABLE

    given = {key: value for key, value in (("rho", rho), ("gamma", gamma)) if value is not None}
    if name == "auto":
        if given or accelerate:
            raise Refused("--rho, --gamma and --accelerate need --method: auto has chosen them already.")
        return name
    if name not in TABLE:
        raise Refused(f"--method: {missing_name('there is no method', name, ('auto', *TABLE))}")
    takes = inspect.signature(TABLE[name]).parameters
    for key in given:
        if key not in takes:
            raise Refused(f"--{key}: {name} has no {key}; it takes {', '.join(takes) or 'nothing'}.")
    row = TABLE[name](**given)
    return Accelerated(row) if accelerate else row


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


def _to_model(estimator: Any, loss: str, classes: tuple[Any, ...], columns: Any, settings: FitSettings) -> Any:
    import numpy as np

    from ..estimators.model_file import FittedModel, Site
    from ..estimators.settings import read_settings as settings_of
    from ..losses import Exact, QuasiMonteCarlo
    from ..splitting.methods import FedLapCov

    certificate = estimator.certificate_
    own = settings_of(estimator).row.expectation
    if estimator.method_ == FedLapCov().name:  # where auto fell back to it, too
        own = FedLapCov().expectation
    history = estimator.history_
    model = FittedModel(
        loss=loss,
        target=settings.target,
        client=settings.client,
        columns=columns,
        classes=classes,
        intercept=settings.intercept,
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


def predict(
    model_path: Path, path: Path, out: Path | None, drop: tuple[str, ...], separator: str, missing: Any, as_json: bool
) -> None:
    """Predict the rows of a file."""
    import csv
    import sys

    from ..estimators.model_file import load_model, word
    from .table import feature_columns, read_frame, require_column

    model = load_model(model_path)
    frame = read_frame(path, separator, missing, model.columns.levels)
    for name in drop:
        require_column("--drop", name, frame, path)
    lacking = [name for name in model.columns.names if name not in frame.columns]
    if lacking:
        raise Refused(f"{path} lacks the column(s) {', '.join(lacking)}, with which the model was fitted.")
    known = {*model.columns.names, model.target, model.client, *drop}
    extra = [name for name in frame.columns if name not in known]
    if extra:
        raise Refused(
            f"{path} has the column(s) {', '.join(extra)}, which the model does not know: --drop {','.join(extra)} "
            "leaves them out."
        )
    gone = frame[list(model.columns.names)].isna().sum()
    if gone.any():
        listed = ", ".join(f"{name} ({count})" for name, count in gone.items() if count)
        raise Refused(f"missing values in {listed}: nothing can be predicted without them.")
    table = feature_columns(frame, model.columns.names, model.columns.levels)
    if model.classes:
        chances = model.probabilities(table)
        best = chances.argmax(axis=1)
        names = [f"probability_{word(label)}" for label in model.classes]
        rows = [
            {"predicted": word(model.classes[k]), **dict(zip(names, map(float, row), strict=True))}
            for k, row in zip(best, chances, strict=True)
        ]
    else:
        rows = [{"mean": float(m), "sd": float(s)} for m, s in zip(*model.mean_and_sd(table), strict=True)]
    if out is not None:
        write_csv(out, rows)
        note(f"{len(rows)} predictions written to {out}.")
    if as_json:
        print_json({"rows": len(rows), "out": None if out is None else str(out), "predictions": rows})
    elif out is None:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def certify(model_path: Path, paths: list[Path], typed: Mapping[str, Any], tol: float | None, as_json: bool) -> bool:
    """Recompute the certificate of a model from the rows of its sites; return whether it holds."""
    from .._validation import as_positive
    from ..estimators.model_file import load_model
    from .prepare import code_labels, site_names
    from .table import read_rows

    model = load_model(model_path)
    fitted = {
        "target": model.target,
        "client": typed["client"] or (model.client if len(paths) == 1 else None),
        "features": list(model.columns.names),
        "categorical": list(model.columns.levels) or None,
    }
    rows = read_rows(paths, read_settings(DataSettings, {**typed, **fitted}))
    strangers = sorted(set(site_names(rows)) - set(model.sites))
    if strangers:
        raise Refused(missing_name("the model has no site", strangers[0], model.sites))
    absent = [name for name in model.sites if name not in site_names(rows)]
    if absent:
        raise Refused(f"the data lack the site(s) {', '.join(absent)}: the certificate is a sum over all sites.")
    labels = code_labels(rows, model.target, model.classes)
    losses, counts = {}, {}
    for name in model.sites:
        here = rows.site.astype(str) == name
        weights = None if rows.weights is None else rows.weights[here]
        table = {column: values[here] for column, values in rows.columns.items()}
        losses[name] = model.make_loss(table, labels[here], weights)
        counts[name] = int(here.sum())
    check = model.check(losses)
    tol = model.tol if tol is None else as_positive(tol, "--tol")
    holds = check.pooled <= tol
    if as_json:
        sites = {
            name: {"n_rows": counts[name], "n_rows_in_fit": site.n_rows, "apart": check.apart[name]}
            for name, site in model.sites.items()
        }
        bound = None if check.distance is None else check.distance.sd_units
        distance = {"sd_units": bound, "rigorous": check.distance is not None and check.distance.rigorous}
        print_json({"holds": holds, "pooled": check.pooled, "tol": tol, "distance": distance, "sites": sites})
        return holds
    table_rows = [[name, site.n_rows, counts[name], f"{check.apart[name]:.1e}"] for name, site in model.sites.items()]
    print(text_table(["site", "rows in the fit", "rows here", "factor against rows"], table_rows))
    verdict = "holds" if holds else "does NOT hold"
    print(f"\npooled stationarity {verdict} to {tol:.0e} (residual {check.pooled:.1e})")
    if check.distance is not None:
        print(check.distance)
    return holds
