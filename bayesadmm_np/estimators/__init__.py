"""The scikit-learn face: `fit(X, y, client=...)` gives the pooled generalised linear model, with standard errors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._errors import needed_by as _needed_by

if TYPE_CHECKING:
    from ..design.agreement import Agreement
    from ..design.levels import TableError
    from ..design.table_one import describe
    from ..glm.kinds import KINDS, Kind
    from .between_sites import heterogeneity
    from .caveats import SeparationWarning
    from .effects import average_effects, compare_models, joint_test, predict_interval, variance_inflation
    from .evaluation import evaluate
    from .fitted import FittedGLM
    from .formula_fit import fit_formula
    from .general import (
        FederatedGLM,
        FederatedLinearRegression,
        FederatedLogisticRegression,
        FederatedPoissonRegressor,
        FederatedRidge,
    )
    from .kaplan_meier import survival_table
    from .model_file import load_model, save_model
    from .summary import Summary, SummaryRow
    from .term_tests import contrast

__all__ = [
    "KINDS",
    "Agreement",
    "FederatedGLM",
    "FederatedLinearRegression",
    "FederatedLogisticRegression",
    "FederatedPoissonRegressor",
    "FederatedRidge",
    "FittedGLM",
    "Kind",
    "SeparationWarning",
    "Summary",
    "SummaryRow",
    "TableError",
    "average_effects",
    "compare_models",
    "contrast",
    "describe",
    "evaluate",
    "fit_formula",
    "heterogeneity",
    "joint_test",
    "load_model",
    "predict_interval",
    "save_model",
    "survival_table",
    "variance_inflation",
]

HOMES = {
    **dict.fromkeys(
        ("average_effects", "compare_models", "joint_test", "predict_interval", "variance_inflation"), ".effects"
    ),
    "KINDS": "..glm.kinds",
    "Agreement": "..design.agreement",
    "FederatedGLM": ".general",
    "FederatedLinearRegression": ".general",
    "FederatedLogisticRegression": ".general",
    "FederatedPoissonRegressor": ".general",
    "FederatedRidge": ".general",
    "contrast": ".term_tests",
    "describe": "..design.table_one",
    "evaluate": ".evaluation",
    "FittedGLM": ".fitted",
    "Kind": "..glm.kinds",
    "load_model": ".model_file",
    "save_model": ".model_file",
    "SeparationWarning": ".caveats",
    "Summary": ".summary",
    "SummaryRow": ".summary",
    "survival_table": ".kaplan_meier",
    "TableError": "..design.levels",
    "fit_formula": ".formula_fit",
    "heterogeneity": ".between_sites",
}


def __getattr__(name: str) -> Any:
    """Import an estimator when it is asked for: other modules of this room need no scikit-learn."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _needed_by(f"{name} needs scikit-learn 1.6 or newer", "estimators"):
        home = import_module(HOMES[name], __name__)
    return getattr(home, name)


def __dir__() -> list[str]:
    """List the names above, imported or not."""
    return sorted([*globals(), *HOMES])
