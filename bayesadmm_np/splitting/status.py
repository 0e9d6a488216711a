"""How a run ended, and why a round could not be completed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .._errors import PLAIN, Words


class Status(Enum):
    """How a run ended; the value is the message."""

    CONVERGED = "converged: all residuals are below tol"
    ROUND_LIMIT = "stopped at the round limit; the residuals are above tol"
    ROUNDED = "stopped where steps are below the rounding of the objective; the residuals are above tol"
    STOPPED = "stopped by the callback"
    NO_MAXIMUM = "stopped: the likelihood has no maximum"
    DIVERGED = "diverged: the objective rises without bound"
    NOT_A_DISTRIBUTION = "diverged: the precisions of the sites no longer add up to a positive definite one"
    ILL_POSED_CLIENT = "a client's subproblem has no minimum near the server's distribution"
    NOT_FINITE = "a client's loss or gradient is not finite; scale the data or raise the prior's precision"
    COARSE_RULE = (
        "a client's rule for expectations has too few points for so wide a distribution; use more points, or raise the "
        "prior's precision"
    )
    CLIENT_LIMIT = (
        "a client's solver stopped above its tolerance; raise max_iter or tol of the solver, or the prior's precision"
    )
    UNRESOLVED = "rows and prior differ by more than double precision holds"

    @property
    def is_failure(self) -> bool:
        """Whether the answer should not be used without a look at the message."""
        ends = (Status.CONVERGED, Status.ROUND_LIMIT, Status.ROUNDED, Status.STOPPED, Status.NO_MAXIMUM)
        return self not in ends


@dataclass(frozen=True)
class Failure:
    """Why a round could not be completed; the state is left as it was.

    Examples
    --------
    >>> failure = Failure(Status.ILL_POSED_CLIENT, 3, client=1, knob="raise rho", switch="safeguard")
    >>> print(failure.message)  # doctest: +ELLIPSIS
    client 1, round 3: a client's subproblem has no minimum near ...; raise rho or set safeguard=True.
    >>> print(failure.worded(Words(client=["Basel", "Bern"].__getitem__)))  # doctest: +ELLIPSIS
    Bern, round 3: a client's subproblem has no minimum near ...; raise rho or set safeguard=True.
    """

    status: Status
    round: int
    client: int | None = None  # whose answer cannot be used; None where it is the server's
    detail: str = ""  # finding, such as "it reached 1e+09"
    knob: str = ""  # parameter to change, and in which direction
    switch: str = ""  # name of a switch of `run` that would help too

    def worded(self, words: Words = PLAIN) -> str:
        """Say where, what, and the knob to turn."""
        where = f"round {self.round}"
        if self.client is not None:
            where = f"{words.client(self.client)}, {where}"
        advice = " or ".join(filter(None, [self.knob, self.switch and words.switch(self.switch)]))
        return f"{where}: {'; '.join(filter(None, [self.status.value, self.detail, advice]))}."

    @property
    def message(self) -> str:
        """The sentence in the words of `run`."""
        return self.worded()
