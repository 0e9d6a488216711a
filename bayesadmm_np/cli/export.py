"""`bayesadmm export`: the model file of a run by files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from ._options import option
from .shared import Refused, note, require_file, require_other

LOSSES = {"Logistic": "logistic", "Softmax": "softmax", "LeastSquares": "ridge", "Poisson": "poisson"}


def export(
    folder: Annotated[Path, option("Folder of bayesadmm server init.", name="DIR")],
    /,
    *,
    target: Annotated[str, option("Column that is predicted.", "COLUMN")],
    out: Annotated[Path, option("Model file to write.", "FILE.npz")],
    noise_variance: Annotated[float, option("Noise variance of ridge regression, as told to the sites.")] = 1.0,
) -> int:
    """Make a model file of a run by files that has ended.

    DIR is the server's folder. The messages of such a run do not say what the
    target is called, nor a known noise variance: say it here, so that predict and
    certify know.

    Examples of use:
      bayesadmm export run --target died --out model.npz
      bayesadmm summary model.npz

    Exit codes: 0 written, and the certificate holds; 1 written, and it does not;
    2 the command or the run were refused.
    """
    from ..estimators.model_file import save_model
    from ..exchange.files import STATE

    require_file(out)
    require_other(out, [folder / STATE, folder / "final.npz"])
    model = read_run(folder, target, noise_variance)
    save_model(out, model)
    note(f"model written to {out}.")
    return 0 if model.holds else 1


def read_run(folder: Path, target: str, noise_variance: float = 1.0) -> Any:
    """Return the fitted model of the run in a server's folder."""
    import numpy as np

    from .._validation import as_positive
    from ..estimators.model_file import FAMILIES, Columns, FittedModel, Site
    from ..exchange import final_result, load_server
    from ..exchange.terms import INTERCEPT
    from ..losses import Auto, Exact, QuasiMonteCarlo
    from ..splitting.team import read_rule

    server = load_server(folder)
    terms = server.terms
    prior: Any = terms.prior
    if server.outcome is None:
        raise Refused(f"the run in {folder} has not ended: it waits for broadcast {server.number} to be answered.")
    if terms.loss not in LOSSES or type(prior) not in FAMILIES.values():
        raise Refused(f"a model file cannot hold {terms.loss} with {type(prior).__name__}.")
    result = final_result(server.broadcast(), server)
    if result.certificate is None:
        raise Refused(f"the run in {folder} ended without the sums of all sites: {result.message}")
    loss = LOSSES[terms.loss]
    intercept = terms.features[-1] == INTERCEPT
    names = terms.features[:-1] if intercept else terms.features
    centre = np.zeros(len(names)) if terms.centre is None else terms.centre[: len(names)]
    scale = np.ones(len(names)) if terms.scale is None else terms.scale[: len(names)]
    rule = read_rule(terms.row, terms.expectation)
    if isinstance(rule, Auto):
        rule = QuasiMonteCarlo() if loss == "softmax" else Exact()
    history = server.state.history
    distance = result.certificate.distance
    objective = np.array(result.objective[1:])
    model = FittedModel(
        loss=loss,
        target=target,
        client=None,
        columns=Columns(names, {}, centre, scale),
        classes=_classes(loss, terms.classes),
        intercept=intercept,
        prior=prior,
        posterior=result.posterior,
        sites={name: Site(result.sites[name], rows) for name, rows in zip(terms.sites, server.rows, strict=True)},
        rule=rule,
        noise_variance=as_positive(noise_variance, "--noise-variance") if loss == "ridge" else 1.0,
        method=terms.method.name,
        status=result.status.name,
        message=result.message,
        tol=terms.tol,
        rounds=server.state.round,
        objective=objective[np.isfinite(objective)],
        floats=sum(record.floats_down + record.floats_up for record in history),
        edges=result.certificate.edges,
        pooled=result.certificate.pooled,
    )
    return model if distance is None else replace(model, distance=str(model.in_both_units(distance)))


def _classes(loss: str, labels: tuple[str, ...]) -> tuple[str | float, ...]:
    """Labels as they are read from a table, where 0 and 1 are numbers."""
    if loss not in ("logistic", "softmax"):
        return ()
    try:
        return tuple(float(label) for label in labels)
    except ValueError:
        return labels
