"""How a run ended."""

from __future__ import annotations

from enum import Enum

__all__ = ["Status"]


class Status(Enum):
    """How a run ended; the value is the message."""

    CONVERGED = "converged: all residuals of the duality circuit and of the pooled condition are below tol"
    ROUND_LIMIT = "stopped at the round limit; the residuals are above tol"
    STOPPED = "stopped by the callback"
    DIVERGED = "diverged: the objective rises without bound"
    NOT_A_DISTRIBUTION = "diverged: the server's natural parameter left the domain of the family"
    ILL_POSED_CLIENT = "a client's subproblem has no minimum near the server's distribution"
    NOT_FINITE = "a client's loss or gradient is not finite; scale the data or raise the prior's precision"
    CLIENT_LIMIT = (
        "a client's solver reached its iteration limit; raise max_iter or tol of the solver, or the prior's precision"
    )

    @property
    def is_failure(self) -> bool:
        """Whether the answer should not be used without a look at the message."""
        return self not in (Status.CONVERGED, Status.ROUND_LIMIT, Status.STOPPED)
