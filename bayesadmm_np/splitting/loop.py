"""The loop that runs every method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .._errors import ArgumentError, needed_by
from .._threads import one_thread_where_small
from .._validation import as_count, as_fraction, as_positive, as_switch
from ..clients.problem import Solver
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.expectations import Rule
from .average import as_step
from .method import Method
from .privacy import GaussianMechanism
from .result import Result, RunError
from .round import Participation, Round, begin
from .server import Server
from .state import State, digest, load_state, save_state
from .status import Failure, RoundRecord, Status
from .step import Step
from .team import assemble

ALL_ROUNDS = "ran all rounds: no residual ends a run with noise on its answers."

Callback = Callable[[RoundRecord, ExponentialFamily], bool | None]


@one_thread_where_small(lambda method, clients, prior, *_, **__: prior.dim if isinstance(prior, Gaussian) else 0)
def run(
    method: Method | Step,
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    rounds: int = 100,
    *,
    expectation: Rule | None = None,
    solver: Solver | None = None,
    tol: float = 1e-6,
    sites: Sequence[Natural] | None = None,
    participation: Participation = 1.0,
    privacy: GaussianMechanism | None = None,
    seed: int = 0,
    safeguard: bool = False,
    warm_start: bool = False,
    n_jobs: int = 1,
    progress: bool = False,
    callback: Callback | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    raise_on_failure: bool = True,
) -> Result:
    """Let clients and server agree on a distribution.

    Minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9) over the prior's family; rows stay at the clients.

    Parameters
    ----------
    method : Method or Step
        A method of `bayesadmm_np.methods`, or a step such as `Guarded(...)`.
    clients : sequence of Loss
        ℓ_k, sums over rows.
    prior : ExponentialFamily
        π_0; its type is the family of the run, and the server starts at it. A flat prior (`FullGaussian(mean, 0.0)`)
        needs `sites`, or a method that starts without a distribution, such as `methods.Newton()`.
    rounds : int, default 100
        Largest number of rounds.
    expectation : Rule, optional
        Rule for E_q; default the method's own, else the most accurate deterministic rule.
    solver : Solver, optional
        Solver of the client's subproblem; default `ClosedForm` where it fits, else `VariationalNewton`.
    tol : float, default 1e-6
        Tolerance on the largest edge residual and, once that has passed, on the pooled stationarity residual (Fisher
        lengths per parameter). The default solver works to tol/100, between 1e-8 and 1e-12.
    sites : sequence of Natural, optional
        η_k to start from instead of zeros, such as those of `clients.own_fits`; the server then starts at η_0 + Ση_k.
        Only methods whose server adds sites to the prior take them. Fixed points do not depend on them.
    participation : float or callable, default 1.0
        Fraction of the clients, at least one, drawn anew for each round; or a function
        (round, n_clients, rng) -> bool array, shape (n_clients,), of who is present. Absent clients keep η_k and λ_k,
        and fixed points do not change, except in methods that average the clients present. Recorded objectives and the
        certificate are those of all clients. An accelerated method takes plain steps while a client is absent.
    privacy : GaussianMechanism, optional
        Noise on every client's answer. All rounds are done then, whatever `tol` and the objective. Recorded objectives
        and the certificate are diagnostics of a simulation, which no (ε, δ) covers; all else is covered.
    seed : int, default 0
        Seed of participation, stochastic solvers and simulated noise.
    safeguard : bool, default False
        Whether the server raises its α just enough, up to 1, that every ρS_g − V_k stays positive semidefinite and
        every client's problem has a minimum; fixed points do not change.
    warm_start : bool, default False
        Whether clients whose problem is well posed start from their last posterior instead of the server's.
    n_jobs : int, default 1
        Clients solved at the same time, in threads (needs joblib); results are the same bit for bit.
    progress : bool, default False
        Whether to show a progress bar (needs tqdm).
    callback : callable, optional
        Function called as callback(record, posterior) after each round; returning True stops the run.
    checkpoint : path, optional
        File to write the state to after each round.
    resume : path, optional
        File of a state to continue from; the result equals the uninterrupted run bit for bit.
    raise_on_failure : bool, default True
        Whether divergence or an ill-posed client raises RunError; otherwise see the status of the result.

    Raises
    ------
    ValueError
        Before round 0, when an argument is out of range or method, losses, family, rule and solver do not fit.
    RunError
        When the run failed; its `result` holds history and the last good iterate.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> prior = ba.families.FullGaussian(mean=np.zeros(1), precision=1.0)
    >>> clients = [ba.losses.LeastSquares([[1.0]], [1.0]), ba.losses.LeastSquares([[2.0]], [2.0])]
    >>> result = ba.run(ba.methods.BayesADMM(rho=1 / 2), clients, prior, rounds=2)
    >>> result.posterior  # the pooled answer, reached in one round (Prop. D.1)
    FullGaussian(mean=[0.8333], precision=[[6.]])
    """
    as_count(rounds, "rounds", minimum=0)
    as_positive(tol, "tol")
    as_count(seed, "seed", minimum=0)
    as_count(n_jobs, "n_jobs")
    if not callable(participation):
        participation = as_fraction(participation, "participation")
    step = as_step(method) if sites is None else as_step(method).starting("prior")
    switches = {"safeguard": safeguard, "warm_start": warm_start, "progress": progress}
    switches["raise_on_failure"] = raise_on_failure
    check_options(switches, callback, "callback(record, posterior)", checkpoint, resume)
    team = assemble(step, clients, prior, expectation, solver, tol, privacy, safeguard)
    first = begin(team, sites)
    describe = partial(
        team.describe,
        solver=repr(solver),
        safeguard=bool(safeguard),
        warm_start=bool(warm_start),
        seed=int(seed),
        sites=None if sites is None else digest(first.sites),
        participation="callable" if callable(participation) else participation,
        privacy=None if privacy is None else repr(privacy),
    )
    description = {} if checkpoint is None and resume is None else describe()  # which reads all rows
    with _mapper(n_jobs) as apply:
        state = first if resume is None else load_state(resume, first, description)
        next_round = Round(team, apply, seed, warm_start, participation)
        at_server = team.expect_all(state, apply)
        if resume is None:
            state = replace(state, start_objective=team.objective(state, at_server))

        def take(state: State) -> State | Failure:
            nonlocal at_server
            with np.errstate(over="ignore", invalid="ignore"):  # the status says it
                attempt = next_round(state, at_server)
            if isinstance(attempt, Failure):
                return attempt
            at_server = attempt.at_server
            return attempt.state

        def ended(state: State) -> Status | None:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite has not converged
                return step.terminate(team.server, state, at_server, tol) if state.history else None

        def keep(state: State) -> None:
            if checkpoint is not None:
                save_state(checkpoint, state, description, step.keeps_mean(state))

        def tell(state: State) -> bool | None:
            return None if callback is None else callback(state.history[-1], state.q_g)

        limit = rounds if step.row.max_rounds is None else min(rounds, step.row.max_rounds)
        bar = counter(state.round, limit, step.name, progress)
        state, status, failure = drive(state, bar, take, ended, keep, tell)
        with np.errstate(over="ignore", invalid="ignore"):
            state, known = step.conclude(team.server, state, at_server, status)
        at_server = team.expect_all(state, apply) if known is None else list(known)
    message = status.value if failure is None else failure.message
    if status is Status.ROUND_LIMIT:
        message = ALL_ROUNDS if team.is_private else at_the_limit(step, team.server, state)
    result = Result(status, message, prior, state, tol, at_server, describe, failure, step)
    if status.is_failure and raise_on_failure:
        raise RunError(result)
    return result


StateT = TypeVar("StateT")


def drive(
    state: StateT,
    rounds: Iterable[int],
    take: Callable[[StateT], StateT | Failure],
    ended: Callable[[StateT], Status | None],
    keep: Callable[[StateT], None],
    tell: Callable[[StateT], Any],
) -> tuple[StateT, Status, Failure | None]:
    """Take rounds until one fails, the run has ended, or `rounds` are done: the loop of the core and of networks.

    `keep` saves a state; `tell` passes it to the caller, who stops the run by True. Returns the last good state.
    """
    status = ended(state)  # resumed at the end
    if status is not None:
        return state, status, None
    for _ in rounds:
        after = take(state)
        if isinstance(after, Failure):
            return state, after.status, after
        state = after
        keep(state)
        said = tell(state)
        stopped = isinstance(said, bool | np.bool_) and bool(said)
        status = Status.STOPPED if stopped else ended(state)
        if status is not None:
            return state, status, None
    return state, Status.ROUND_LIMIT, None


def check_options(
    switches: Mapping[str, object],
    callback: object,
    form: str,
    checkpoint: str | os.PathLike[str] | None,
    resume: str | os.PathLike[str] | None,
) -> None:
    """Check the options that runs have with networks too; `form` is how the callback is called."""
    for name, value in switches.items():
        as_switch(value, name)
    if callback is not None and not callable(callback):
        raise ArgumentError("callback", f"must be callable as {form}", repr(callback))
    for name, path in (("checkpoint", checkpoint), ("resume", resume)):
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ArgumentError(name, "must be a path", repr(path))
    if checkpoint is not None and not Path(checkpoint).absolute().parent.is_dir():
        raise ArgumentError("checkpoint", "must lie in a folder that exists", repr(os.fspath(checkpoint)))


def at_the_limit(step: Step, server: Server, state: State) -> str:
    """Return the message of a run that used up its rounds."""
    return "; ".join(filter(None, [Status.ROUND_LIMIT.value, step.advice(server, state)])) + "."


def counter(done: int, limit: int, name: str, progress: bool) -> Iterable[int]:
    """Count the rounds that are left, in a progress bar where one is wanted."""
    if not progress:
        return range(done, limit)
    with needed_by("progress=True needs tqdm", "demos"):
        from tqdm.auto import tqdm
    bar: Iterable[int] = tqdm(range(done, limit), initial=done, total=limit, desc=name, unit="round")
    return bar


@contextmanager
def _mapper(n_jobs: int) -> Iterator[Any]:
    """Yield map, serial or threaded. Threads share the BLAS settings, hence the bits, of the serial run."""
    if n_jobs == 1:
        yield lambda function, items: [function(item) for item in items]
        return
    with needed_by("n_jobs > 1 needs joblib", "demos"):
        from joblib import Parallel, delayed
    with Parallel(n_jobs=n_jobs, prefer="threads") as pool:
        yield lambda function, items: pool(delayed(function)(item) for item in items)
