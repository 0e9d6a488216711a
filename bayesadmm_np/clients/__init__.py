"""Solvers of the client's subproblem (Eq. 15)."""

from .fixed_steps import VON, ClosedForm, GradientSteps
from .newton import VariationalNewton
from .own_fits import own_fits
from .problem import SOLVERS, ClientStatus, Solution, Solver, Subproblem

__all__ = [
    "SOLVERS",
    "VON",
    "ClientStatus",
    "ClosedForm",
    "GradientSteps",
    "Solution",
    "Solver",
    "Subproblem",
    "VariationalNewton",
    "own_fits",
]
