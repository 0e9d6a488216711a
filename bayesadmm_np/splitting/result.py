"""Result of a run; all fields belong to the same round."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .._threads import one_thread_where_small
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Expected
from .certificate import Certificate, PooledObjective
from .state import State, save_state
from .status import Failure, Status
from .step import Step


class Rounds:
    """Rounds of a result, from its state; of networks too."""

    state: Any

    @property
    def history(self) -> tuple[Any, ...]:
        """One record a round."""
        return tuple(self.state.history)

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.state.history)

    @property
    def objective(self) -> Array:
        """The objective of `run` at the start and after each round, shape (rounds + 1,)."""
        return np.array([self.state.start_objective, *(record.objective for record in self.history)])


@dataclass(frozen=True, repr=False)
class Result(Rounds):
    """The outcome of `run`; its objective is Σ_k E_{q_g}[ℓ_k] + KL(q_g‖prior).

    Attributes
    ----------
    status : Status
    ending : str
        The status in words, with client, round and the knob to turn where a run failed.
    prior : ExponentialFamily
    state : State
        The last good state.
    tol : float
    at_server : sequence of Expected
        E_{q_g}[ℓ_k] of every client at the end, with its natural gradient.
    failure : Failure or None
        Status, client, round and knob of a run that failed.
    step : Step or None
        None of a fit that needed no rounds.
    """

    status: Status
    ending: str
    prior: ExponentialFamily
    state: State
    tol: float
    at_server: Sequence[Expected] = field(repr=False)
    _describe: Callable[[], dict[str, Any]] = field(repr=False)
    failure: Failure | None = None
    step: Step | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        final = f", objective {self.objective[-1]:.8g}"
        return f"Result({self.status.name} after {self.rounds} rounds{final},\n  posterior={self.posterior!r})"

    @cached_property
    def message(self) -> str:
        """Ending of the run in words, with the doubt of its certificate where it has converged."""
        if self.status is not Status.CONVERGED or not self.history:
            return self.ending
        found = self.certificate()
        return f"{self.ending}; {found.doubt}" if found.doubt else self.ending

    @property
    def posterior(self) -> Any:
        """q_g, the distribution agreed on; a member of the prior's family."""
        return self.state.q_g

    @property
    def sites(self) -> tuple[Natural, ...]:
        """The duals η_k, one a client."""
        return self.state.sites

    @property
    def client_posteriors(self) -> tuple[ExponentialFamily, ...]:
        """q_k of the last round."""
        return tuple(self.state.q_g.with_natural(natural) for natural in self.state.naturals)

    @one_thread_where_small(lambda self: self.prior.dim if isinstance(self.prior, Gaussian) else 0)
    def certificate(self) -> Certificate:
        """Return the residuals of the circuit's four edges and of the pooled stationarity condition.

        With a bound on the distance to the pooled fit, which needs one more exchange of sums at q_g.

        Raises
        ------
        ValueError
            When no round was completed.
        """
        if not self.history:
            raise ValueError("no round was completed: there is nothing to certify.")
        pooled = PooledObjective(self.prior, self.posterior, self.at_server)
        return Certificate(self.history[-1].edges, pooled.residual, self.tol, pooled.distance)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file that `run(..., resume=path)` continues bit for bit."""
        save_state(path, self.state, self._describe(), self.step is not None and self.step.keeps_mean(self.state))


class RunError(RuntimeError):
    """A run failed; `result` keeps the history and the last good iterate."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message)
        self.result = result

    @property
    def failure(self) -> Failure | None:
        """Status, client, round and knob."""
        return self.result.failure
