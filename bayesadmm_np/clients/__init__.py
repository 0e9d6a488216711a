"""Solvers of the client's subproblem (Eq. 15)."""

from .closed_form import ClosedForm
from .gradient_steps import GradientSteps
from .newton import VariationalNewton
from .own_fits import own_fits
from .problem import ClientStatus, Solution, Subproblem
from .solver import SOLVERS, Solver
from .von import VON

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
