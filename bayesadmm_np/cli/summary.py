"""`bayesadmm summary`: the table of a model file."""

from __future__ import annotations

from typing import Annotated

from . import report
from ._options import Json, ModelFile, option
from .shared import print_json


def summary(
    model: ModelFile,
    /,
    *,
    units: Annotated[
        str, option("Units: the columns' own, or per standard deviation.", "UNIT", choices=report.UNITS)
    ] = "original",
    json: Json = False,
) -> None:
    """Print the table of a model file: coefficients, standard errors, shares of the sites, certificate.

    Examples of use:
      bayesadmm summary model.npz
      bayesadmm summary model.npz --units standardized      per standard deviation
      bayesadmm summary model.npz --json

    Exit codes: 0 all is well, 2 the command or the model were refused.
    """
    from ..estimators.model_file import load_model

    found = load_model(model)
    if json:
        print_json(report.as_dict(found, units))
    else:
        print(report.as_text(found, units))
