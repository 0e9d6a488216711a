"""`bayesadmm summary`: the table of a model file."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from ..estimators.summary import COVARIANCES, QUASI
from ..glm.inference import LEVEL
from ._options import Json, Level, ModelFile, ReferenceClass, Tests, TestType, option
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
    hypotheses: Annotated[
        tuple[str, ...],
        option(
            "Test equations together; may be repeated.",
            "EQUATION;…",
            name="--test",
        ),
    ] = (),
    against: Annotated[
        Path | None, option("Model file of a smaller model of the same rows, for a likelihood-ratio test.", "FILE.npz")
    ] = None,
    inflation: Annotated[bool, option("Show variance inflation factors of the terms.")] = False,
    level: Level = LEVEL,
    json: Json = False,
) -> None:
    """Print the table of a model file: coefficients, standard errors, shares of sites, certificate.

    Examples of use:
      bayesadmm summary model.npz
      bayesadmm summary model.npz --ratios                  odds or rate ratios
      bayesadmm summary model.npz --contrast "C(stage)[T.II]=1,C(stage)[T.III]=-1"
      bayesadmm summary model.npz --test "age = 0; sex = 0" --level 0.9
      bayesadmm summary larger.npz --against smaller.npz    likelihood-ratio test
      bayesadmm summary model.npz --json

    Exit codes: 0 all is well, 2 the command or the model were refused.
    """
    from .._errors import ArgumentError, worded
    from ..estimators.effects import compare_models, joint_test, variance_inflation
    from ..estimators.summary import as_dict, summarise
    from ..estimators.term_tests import contrast, term_table

    found = read_model(model)
    covariance = covariance or found.record.shown
    if against is not None and covariance == QUASI:
        raise Refused("--against compares likelihoods, and --covariance quasi has none; choose another covariance.")
    shown: Any = {"covariance": covariance, "reference": reference_class, "words": option_words(), "level": level}
    shown["tests"] = term_table(found, tests, covariance, test_type, None)
    try:
        sums = [contrast(found, _weights(text), covariance, "", level) for text in contrasts]
        joint = [joint_test(found, text.split(";"), covariance=covariance) for text in hypotheses]
        joint += [] if against is None else [compare_models(read_model(against), found)]
        inflated = variance_inflation(found) if inflation else ()
    except ArgumentError as error:
        option_of = {"weights": "--contrast", "hypothesis": "--test", "smaller": "--against", "larger": "--against"}
        if error.argument not in option_of:
            raise
        raise Refused(worded(error, argument=lambda name: option_of[name])) from error
    if json:
        told: dict[str, Any] = {"contrasts": sums, "hypotheses": joint, "inflation": inflated}
        print_json({**as_dict(found, **shown), **{name: [*map(asdict, each)] for name, each in told.items()}})
        return
    table = summarise(found, ratios=ratios, **shown)
    print(table)
    if sums:
        rows = [[one.name, *map(_shown, (one.coef, one.std_err, one.p_value, one.low, one.high))] for one in sums]
        print("\n" + text_table(("contrast", "coef", "std err", "P", *table.ends), rows))
    if joint:
        print("\n" + "\n".join(map(str, joint)))
    if inflated:
        each = [[one.name, _shown(one.factor), str(one.df), _shown(one.scaled)] for one in inflated]
        print("\n" + text_table(("term", "GVIF", "df", "GVIF^(1/2df)"), each))


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
