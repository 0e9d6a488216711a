"""`bayesadmm summary`: the table of a model file."""

from __future__ import annotations

from typing import Annotated, Any

from ..estimators.fitted import UNITS, Units
from ..estimators.summary import COVARIANCES
from ._options import Json, ModelFile, Reference, Tests, option, switch
from ._terminal import option_words, print_json


def summary(
    model: ModelFile,
    /,
    *,
    units: Annotated[
        Units, option("Units: the columns' own, or per standard deviation.", "UNIT", choices=UNITS)
    ] = "original",
    covariance: Annotated[
        str, option("Covariance: the model's, or a robust one that the fit kept the sums of.", choices=COVARIANCES)
    ] = "model",
    ratios: Annotated[bool, switch("Show odds or rate ratios with their intervals.")] = False,
    reference: Reference = None,
    tests: Tests = "none",
    json: Json = False,
) -> None:
    """Print the table of a model file: coefficients, standard errors, shares of the sites, certificate.

    Examples of use:
      bayesadmm summary model.npz
      bayesadmm summary model.npz --units standardized      per standard deviation
      bayesadmm summary model.npz --ratios                  odds or rate ratios
      bayesadmm summary model.npz --json

    Exit codes: 0 all is well, 2 the command or the model were refused.
    """
    from ..estimators.model_file import load_model
    from ..estimators.summary import as_dict, summarise
    from ..estimators.term_tests import tests_of

    found = load_model(model)
    shown: Any = {"covariance": covariance, "reference": reference, "words": option_words()}
    shown["tests"] = tests_of(found, tests, covariance)
    if json:
        print_json(as_dict(found, units, **shown))
    else:
        print(summarise(found, units, ratios=ratios, **shown))
