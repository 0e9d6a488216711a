"""The theory as something that runs: families derived from T and A(λ).

A family is given by its sufficient statistic T(θ) and its log-partition A(λ), nothing else; everything that
Bayesian-ADMM needs of it follows (`SymbolicFamily`, `updates`). `builtin` holds the families of the project.

It needs sympy; the numeric core never imports it.
"""

from .._errors import needed_by as _needed_by

with _needed_by("bayesadmm_np.theory needs sympy", "demos"):
    import sympy as _sympy  # noqa: F401

from . import builtin
from .derive import derive_text
from .family import SymbolicFamily
from .updates import Updates, updates

__all__ = [
    "SymbolicFamily",
    "Updates",
    "builtin",
    "derive_text",
    "updates",
]
