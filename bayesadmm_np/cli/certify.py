"""`bayesadmm certify`: a model against the rows of its sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..glm.diagnosis import as_dict
from ._kinds import code_labels, code_of
from ._options import PLAIN, Client, Files, FileSettings, Json, ModelFile, Spread, Weights, option
from ._rows import Rows, rows_of_model
from ._run_files import read_model
from ._terminal import Refused, missing_name, option_words, show, text_table

if TYPE_CHECKING:
    from ..estimators.fitted import Check, FittedGLM
    from ..splitting.certificate import Certificate


def certify(
    model: ModelFile,
    data: Files,
    /,
    *,
    client: Client = None,
    weights: Weights = None,
    tol: Annotated[float | None, option("Tolerance on the residual. Default: the tolerance of the fit.")] = None,
    files: Annotated[FileSettings, Spread] = PLAIN,
    json: Json = False,
) -> int:
    """Check a model file against the rows that it was fitted to, from sums over each site's rows.

    Computes the bound on the distance between the model and the pooled fit again. The
    last column of the table shows which sites have other rows than at the fit.

    Examples of use:
      bayesadmm certify model.npz patients.csv
      bayesadmm certify model.npz north.csv south.csv
      bayesadmm certify run A=a.csv B=b.csv             the folder of a run by files
      bayesadmm certify model.npz patients.csv --tol 1e-4

    Exit codes: 0 the certificate holds, 1 it does not; 2 the command, the model or
    the data were refused; 4 the likelihood of the model has no maximum.
    """
    fitted = read_model(model)
    rows = rows_of_model(fitted, data, client, files, weights)
    found = _certified(fitted, rows, tol)
    show(found, json)
    return code_of(fitted, "the residual is that of its last round") or int(not found.holds)


@dataclass(frozen=True, eq=False)
class Certified:
    """A certificate of a model, computed again from the rows of its sites.

    `counts` has the rows that were read at each site.
    """

    model: FittedGLM
    proof: Certificate
    check: Check
    counts: Mapping[str, int]

    @property
    def holds(self) -> bool:
        """Return whether the residual is below the tolerance, of a likelihood that has a maximum."""
        return self.proof.holds and self.model.has_maximum

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        model, distance = self.model, self.check.distance
        bound = None if distance is None else distance.sd_units
        is_rigorous = distance is not None and distance.rigorous and bool(np.isfinite(distance.sd_units))
        return {
            "holds": self.holds,
            "has_maximum": model.has_maximum,
            "pooled": self.check.pooled,
            "tol": self.proof.tol,
            "distance": {"sd_units": bound, "rigorous": is_rigorous and model.has_maximum},
            "sites": {
                name: {"n_rows": self.counts[name], "n_rows_in_fit": site.n_rows, "apart": self.check.apart[name]}
                for name, site in model.sites.items()
            },
            "findings": [as_dict(finding, option_words()) for finding in model.findings],
        }

    def __str__(self) -> str:
        rows = [
            [name, site.n_rows, self.counts[name], f"{self.check.apart[name]:.1e}"]
            for name, site in self.model.sites.items()
        ]
        table = text_table(["site", "rows in the fit", "rows here", "dual to rows"], rows)
        verdict = f"\n{self.proof.verdict(self.model.has_maximum)} (residual {self.check.pooled:.1e})"
        return "\n".join([table, verdict, *([] if self.check.distance is None else [str(self.check.distance)])])


def _how_named(model: FittedGLM) -> str:
    if model.columns.client is None:
        files = " ".join(f"{name}=FILE.csv" for name in model.sites)
        return f"The model was fitted to one file for each site: give such files, without --client: {files}."
    client = model.columns.client
    return f"The model was fitted to one file with a column {client!r} of sites: give one, with --client {client}."


def _certified(model: FittedGLM, rows: Rows, tol: float | None) -> Certified:
    from .._validation import as_positive

    strangers = sorted(set(rows.designs) - set(model.sites))
    if strangers:
        raise Refused(f"{missing_name('the model has no site', strangers[0], model.sites)} {_how_named(model)}")
    absent = [name for name in model.sites if name not in rows.designs]
    if absent:
        raise Refused(
            f"rows are missing of the site(s) {', '.join(absent)}; the certificate needs all sites of the fit."
        )
    losses = {}
    for name in model.sites:
        made = rows.designs[name]
        losses[name] = model.make_loss(made.matrix, code_labels(model, made.y, made.weights), made.weights, made.offset)
    check = model.check(losses)
    assert model.record.certificate is not None
    tol = model.record.certificate.tol if tol is None else as_positive(tol, "--tol")
    proof = replace(model.record.certificate, pooled=check.pooled, tol=tol, distance=check.distance)
    counts = {name: int(rows.designs[name].used.sum()) for name in model.sites}
    return Certified(model, proof, check, counts)
