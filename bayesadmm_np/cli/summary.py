"""`bayesadmm summary`: the table of a model file."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any

from ..estimators.summary import COVARIANCES
from ._options import Json, ModelFile, ReferenceClass, Tests, TestType, option
from ._run_files import read_model
from ._terminal import Refused, option_words, print_json, text_table


def summary(
    model: ModelFile,
    /,
    *,
    covariance: Annotated[
        str | None,
        option(
            "Standard errors: from the model, from quasi-likelihood, or robust, if the fit kept the sums for them. "
            "Default: those that the fit printed.",
            choices=COVARIANCES,
        ),
    ] = None,
    ratios: Annotated[bool, option("Show odds or rate ratios with their intervals.")] = False,
    reference_class: ReferenceClass = None,
    tests: Tests = "none",
    test_type: TestType = "II",
    contrasts: Annotated[
        tuple[str, ...],
        option(
            "Test a weighted sum of coefficients, named as in the table; may be repeated.",
            "NAME=WEIGHT,…",
            name="--contrast",
        ),
    ] = (),
    json: Json = False,
) -> None:
    """Print the table of a model file: coefficients, standard errors, shares of sites, certificate.

    Examples of use:
      bayesadmm summary model.npz
      bayesadmm summary model.npz --ratios                  odds or rate ratios
      bayesadmm summary model.npz --contrast "C(stage)[T.II]=1,C(stage)[T.III]=-1"
      bayesadmm summary model.npz --json

    Exit codes: 0 all is well, 2 the command or the model were refused.
    """
    from .._errors import ArgumentError, worded
    from ..estimators.summary import as_dict, summarise
    from ..estimators.term_tests import contrast, term_table

    found = read_model(model)
    covariance = covariance or found.record.shown
    shown: Any = {"covariance": covariance, "reference": reference_class, "words": option_words()}
    shown["tests"] = term_table(found, tests, covariance, test_type, None)
    try:
        sums = [contrast(found, _weights(text), covariance) for text in contrasts]
    except ArgumentError as error:
        if error.argument != "weights":
            raise
        raise Refused(worded(error, argument=lambda _: "--contrast")) from error
    if json:
        print_json({**as_dict(found, **shown), "contrasts": [asdict(one) for one in sums]})
        return
    print(summarise(found, ratios=ratios, **shown))
    if sums:
        rows = [[one.name, *map(_shown, (one.coef, one.std_err, one.p_value, one.low, one.high))] for one in sums]
        print("\n" + text_table(("contrast", "coef", "std err", "P", "[0.025", "0.975]"), rows))


def _weights(text: str) -> dict[str, float]:
    """Read NAME=WEIGHT,…; a name may hold commas, as bs(age, 4)[1] does."""
    pairs = re.compile(r"\s*(.+?)\s*=\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*(?:,|$)")
    found, end = {}, 0
    while end < len(text) and (pair := pairs.match(text, end)):
        found[pair[1]], end = float(pair[2]), pair.end()
    if not found or end < len(text):
        raise Refused(f"--contrast must be NAME=WEIGHT,NAME=WEIGHT,…, got {text!r}.")
    return found


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
