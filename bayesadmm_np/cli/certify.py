"""`bayesadmm certify`: a model against the rows of its sites."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from ..glm.diagnosis import as_dict
from ._design import code_labels, code_of, site_names
from ._formula import rows_of_model
from ._options import NA, Client, DropNA, Files, Json, ModelFile, Separator, Weights, option
from ._rows import Rows
from ._run_files import read_model
from ._terminal import Refused, missing_name, option_words, print_json, text_table

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM


def certify(
    model: ModelFile,
    data: Files,
    /,
    *,
    client: Client = None,
    weights: Weights = None,
    tol: Annotated[float | None, option("Tolerance on the residual. Default: the tolerance of the fit.")] = None,
    dropna: DropNA = False,
    separator: Separator = ",",
    na: NA = (),
    json: Json = False,
) -> int:
    """Check a model file against the rows that it was fitted to, from sums over each site's rows.

    Recomputes the residual of the pooled stationarity condition at the posterior of
    the model, and from it the bound on the distance to the pooled fit. The table
    shows which sites have other rows than at the fit.

    Examples of use:
      bayesadmm certify model.npz patients.csv
      bayesadmm certify model.npz north.csv south.csv
      bayesadmm certify run A=a.csv B=b.csv             the folder of a run by files
      bayesadmm certify model.npz patients.csv --tol 1e-4

    Exit codes: 0 the certificate holds, 1 it does not; 2 the command, the model or
    the data were refused; 4 the likelihood of the model has no maximum.
    """
    fitted = read_model(model)
    rows = rows_of_model(fitted, data, client=client, weights=weights, dropna=dropna, separator=separator, na=na)
    holds = run_certify(fitted, rows, tol, json)
    return code_of(fitted, "the residual is that of where its rounds stopped") or int(not holds)


def _how_named(model: FittedGLM) -> str:
    if model.client is None:
        files = " ".join(f"{name}=FILE.csv" for name in model.sites)
        return f"Its sites were not named by a column: give one file a site, by its name, without --client: {files}."
    return f"Its sites are the values of the column {model.client!r}: give one file, with --client {model.client}."


def run_certify(model: FittedGLM, rows: Rows, tol: float | None, as_json: bool) -> bool:
    """Recompute the certificate of a model from the rows of its sites; return whether it holds."""
    from .._validation import as_positive

    strangers = sorted(set(site_names(rows)) - set(model.sites))
    if strangers:
        raise Refused(f"{missing_name('the model has no site', strangers[0], model.sites)} {_how_named(model)}")
    absent = [name for name in model.sites if name not in site_names(rows)]
    if absent:
        raise Refused(f"the data lack the site(s) {', '.join(absent)}: the certificate is a sum over all sites.")
    labels = code_labels(rows, model.target, model.classes, model.kind.has_trials)
    losses, counts = {}, {}
    for name in model.sites:
        here = rows.site.astype(str) == name
        weights = None if rows.weights is None else rows.weights[here]
        offset = None if rows.offset is None else rows.offset[here]
        losses[name] = model.make_loss(rows.matrix[here], labels[here], weights, offset)
        counts[name] = int(here.sum())
    check = model.check(losses)
    assert model.certificate is not None
    tol = model.certificate.tol if tol is None else as_positive(tol, "--tol")
    proof = replace(model.certificate, pooled=check.pooled, tol=tol, distance=check.distance)
    holds = proof.holds and model.has_maximum
    if as_json:
        sites = {
            name: {"n_rows": counts[name], "n_rows_in_fit": site.n_rows, "apart": check.apart[name]}
            for name, site in model.sites.items()
        }
        bound = None if check.distance is None else check.distance.sd_units
        is_rigorous = check.distance is not None and check.distance.rigorous and bool(np.isfinite(bound or 0.0))
        distance = {"sd_units": bound, "rigorous": is_rigorous and model.has_maximum}
        findings = [as_dict(finding, option_words()) for finding in model.findings]
        whole = {"holds": holds, "has_maximum": model.has_maximum, "pooled": check.pooled, "tol": tol}
        print_json({**whole, "distance": distance, "sites": sites, "findings": findings})
        return holds
    table_rows = [[name, site.n_rows, counts[name], f"{check.apart[name]:.1e}"] for name, site in model.sites.items()]
    print(text_table(["site", "rows in the fit", "rows here", "factor against rows"], table_rows))
    print(f"\n{proof.verdict(model.has_maximum)} (residual {check.pooled:.1e})")
    if check.distance is not None:
        print(check.distance)
    return holds
