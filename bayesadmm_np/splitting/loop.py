"""The one loop that runs every row of the table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from .._validation import as_count, as_positive
from ..clients.closed_form import ClosedForm
from ..clients.newton import VariationalNewton
from ..clients.problem import ClientStatus
from ..clients.solver import Solver
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..losses.base import Expected, GaussianExpected, Loss
from ..losses.expectations import Auto, Rule
from .accelerated import Accelerated, Memory, mix, remember
from .certificate import pooled_residual
from .history import ClientRecord, Edges, RoundRecord
from .messages import Broadcast, Reply
from .methods import Method
from .result import Result, RunError
from .server import Server
from .state import State, describe, load_state, save_state
from .status import Status
from .worker import Worker

__all__ = ["run"]

UNBOUNDED = 1e6
"""The objective rises without bound when it exceeds its start, and its best value by this many times its size."""

FINEST = 1e-12
"""Residual that the default solver is asked for at most: rounding leaves some 1e-14 of a well conditioned problem."""

Callback = Callable[[RoundRecord, ExponentialFamily], bool | None]


def run(
    method: Method | Accelerated,
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    rounds: int = 100,
    *,
    expectation: Rule | None = None,
    solver: Solver | None = None,
    tol: float = 1e-6,
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

    Minimises Σ_k E_q[ℓ_k] + KL(q‖prior) (Eq. 9) over the prior's family without moving rows.

    Parameters
    ----------
    method : Method or Accelerated
        A row of `bayesadmm_np.methods`.
    clients : sequence of Loss
        ℓ_k, sums over rows.
    prior : ExponentialFamily
        π_0; its type is the family of the run, and the server starts at it.
    rounds : int, default 100
        At most; the run stops earlier when it has converged to `tol`.
    expectation : Rule, optional
        How E_q is computed; default the method's own, else the most accurate deterministic rule.
    solver : Solver, optional
        Of the client's subproblem; default `ClosedForm` where it fits, else `VariationalNewton`.
    tol : float, default 1e-6
        On the largest edge residual and, once that has passed, on the pooled stationarity residual, which costs one
        more exchange of natural gradients (Fisher lengths per parameter). The default solver works to tol/100,
        between 1e-8 and 1e-12.
    seed : int, default 0
        For stochastic solvers; the stream is a function of seed, round and client.
    safeguard : bool, default False
        Raise the server's α just enough, up to 1, that every ρS_g − V_k stays positive semidefinite, so that every
        client's problem has a minimum; fixed points do not change. Off is the papers' update.
    warm_start : bool, default False
        Start a client from its last posterior instead of from the server's, where its problem is well posed.
    n_jobs : int, default 1
        Clients solved at the same time, in threads (needs joblib); results are the same bit for bit.
    progress : bool, default False
        Show a progress bar (needs tqdm).
    callback : callable, optional
        Called as callback(record, posterior) after each round; returning True stops the run.
    checkpoint : path, optional
        Write the state there after each round (npz with JSON inside, no pickle).
    resume : path, optional
        Continue from such a file; the result equals the uninterrupted run bit for bit.
    raise_on_failure : bool, default True
        Raise RunError on divergence or an ill-posed client; otherwise return the result with its status.

    Returns
    -------
    Result

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
    _check_options(safeguard, warm_start, progress, raise_on_failure, callback, checkpoint)
    team = _assemble(method, clients, prior, expectation, solver, tol)
    settings = {"solver": repr(solver), "safeguard": bool(safeguard), "warm_start": bool(warm_start), "seed": int(seed)}
    description = describe(method, prior, [(worker.loss, worker.rule) for worker in team.workers], settings)
    with _mapper(n_jobs) as apply:
        state = team.initial_state() if resume is None else load_state(resume, prior, description)
        round_of = _Round(team, apply, seed, safeguard, warm_start)
        at_server = team.expect_all(state.q_g, apply)
        if resume is None:
            state = replace(state, start_objective=team.objective(state.q_g, at_server))
        status, message = Status.ROUND_LIMIT, ""
        limit = rounds if team.method.max_rounds is None else min(rounds, team.method.max_rounds)
        if _has_converged(state, prior, at_server, tol):  # resumed at the end
            status, message, limit = Status.CONVERGED, Status.CONVERGED.value, state.round
        for _ in _counter(state.round, limit, method.name, progress):
            with np.errstate(over="ignore", invalid="ignore"):  # the status says it
                attempt = round_of(state, at_server)
            if isinstance(attempt, _Failure):
                status, message = attempt.status, attempt.message
                break
            state, at_server = attempt.state, attempt.at_server
            if checkpoint is not None:
                save_state(checkpoint, state, description)
            stopped = callback is not None and callback(state.history[-1], state.q_g) is True
            if _has_converged(state, prior, at_server, tol) or stopped:
                status = Status.STOPPED if stopped else Status.CONVERGED
                message = status.value
                break
    message = message or _at_the_limit(state, team.method)
    result = Result(status, message, prior, state, tol, at_server, description)
    if status.is_failure and raise_on_failure:
        raise RunError(result)
    return result


def _check_options(
    safeguard: bool,
    warm_start: bool,
    progress: bool,
    raise_on_failure: bool,
    callback: Callback | None,
    checkpoint: str | os.PathLike[str] | None,
) -> None:
    switches = {
        "safeguard": safeguard,
        "warm_start": warm_start,
        "progress": progress,
        "raise_on_failure": raise_on_failure,
    }
    for name, value in switches.items():
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False, got {value!r}.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback must be callable as callback(record, posterior), got {callback!r}.")
    if checkpoint is not None and not Path(checkpoint).absolute().parent.is_dir():
        raise ValueError(f"checkpoint must lie in a folder that exists, got {os.fspath(checkpoint)!r}.")


@dataclass(frozen=True)
class _Team:
    """Workers and server that fit each other."""

    method: Method
    memory: int
    prior: ExponentialFamily
    workers: tuple[Worker, ...]
    server: Server

    def initial_state(self) -> State:
        start = self.prior.start()
        # through λ, as every later iterate: the first round then repeats to the bit after a resume
        q_g = start.with_natural(start.natural)
        zeros = (q_g.natural.zeros(),) * len(self.workers)
        return State(q_g, zeros, (q_g.natural,) * len(zeros), (), float("nan"), ())

    def expect_all(self, q_g: ExponentialFamily, apply: Any) -> list[Expected | GaussianExpected]:
        return list(apply(lambda worker: worker.expect(q_g), self.workers))

    def objective(self, q_g: ExponentialFamily, at_server: Sequence[Expected | GaussianExpected]) -> float:
        return sum(expected.value for expected in at_server) + q_g.kl(self.prior)


def _assemble(
    method: Method | Accelerated,
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    expectation: Rule | None,
    solver: Solver | None,
    tol: float,
) -> _Team:
    """Check that everything fits, before round 0."""
    row = Method.read(method.method if isinstance(method, Accelerated) else method)
    if not isinstance(prior, ExponentialFamily):
        got = f"the class {prior.__name__}" if isinstance(prior, type) else type(prior).__name__
        raise ValueError(f"prior must be a member of bayesadmm_np.families, such as FullGaussian(...), got {got}.")
    row.check(prior)
    if isinstance(clients, Loss) or not isinstance(clients, Iterable):
        raise ValueError(f"clients must be a sequence of losses, one a client, got {type(clients).__name__}.")
    losses = list(clients)
    if not losses:
        raise ValueError("clients must hold at least one loss, got none.")
    if expectation is not None and not isinstance(expectation, Rule):
        raise ValueError(f"expectation must be a rule of bayesadmm_np.losses, got {expectation!r}.")
    if solver is not None and not isinstance(solver, Solver):
        raise ValueError(f"solver must be a solver of bayesadmm_np.clients, got {solver!r}.")
    rule = expectation or row.expectation or Auto()
    if row.expectation is not None and rule != row.expectation:
        raise ValueError(f"{row.name} is defined with expectation={row.expectation}, got {rule}.")
    total = sum(loss.total_weight for loss in losses if isinstance(loss, Loss)) or 1.0
    workers = []
    for k, loss in enumerate(losses):
        if not isinstance(loss, Loss):
            raise ValueError(f"client {k}: expected a loss of bayesadmm_np.losses, got {type(loss).__name__}.")
        chosen = solver or _default_solver(loss, tol)
        try:
            resolved = loss.check(prior, rule)
            if row.client == "proximal":
                chosen.check(loss, prior, resolved)
        except ValueError as error:
            raise ValueError(f"client {k}: {error}") from error
        workers.append(Worker(loss, resolved, chosen, row, prior, loss.total_weight / total, len(losses)))
    server = Server(row, prior, tuple(w.share for w in workers), tuple(w.rho for w in workers))
    return _Team(row, method.memory if isinstance(method, Accelerated) else 0, prior, tuple(workers), server)


def _default_solver(loss: Loss, tol: float) -> Solver:
    closed = loss.is_quadratic or loss.is_linear_in_statistics
    return ClosedForm() if closed else VariationalNewton(tol=min(1e-8, max(0.01 * tol, FINEST)))


@dataclass(frozen=True)
class _Failure:
    status: Status
    message: str


@dataclass(frozen=True)
class _Success:
    state: State
    at_server: list[Expected | GaussianExpected]


@dataclass(frozen=True)
class _Gathered:
    sites: tuple[Natural, ...]
    natural: Natural
    alpha: float
    memory: tuple[Memory, ...]
    weights_sent: int


@dataclass(frozen=True)
class _Round:
    """state → next state, or a failure that leaves the state as it was."""

    team: _Team
    apply: Any
    seed: int
    safeguard: bool
    warm_start: bool

    def __call__(self, state: State, at_server: Sequence[Expected | GaussianExpected]) -> _Success | _Failure:
        began = perf_counter()
        broadcast = Broadcast(state.round + 1, state.q_g.natural)
        replies = self._ask(broadcast, state, at_server)
        failure = _client_failure(replies, broadcast.round, self.safeguard)
        if failure is not None:
            return failure
        gathered = self._gather(state, replies)
        try:
            q_g = self.team.prior.with_natural(gathered.natural)
        except ValueError:  # λ_g is outside the domain
            return _failure(Status.NOT_A_DISTRIBUTION, broadcast.round, self.team.method.knobs)
        following = self.team.expect_all(q_g, self.apply)
        objective = self.team.objective(q_g, following)
        if _rises_without_bound(objective, state):
            advice = f"it reached {objective:.3g}; {self.team.method.knobs}"
            return _failure(Status.DIVERGED, broadcast.round, advice)
        clients = tuple(_client_record(reply, q_g) for reply in replies)
        record = RoundRecord(
            round=broadcast.round,
            objective=objective,
            alpha=gathered.alpha,
            edges=_edges(self.team.server, q_g, gathered.sites, clients),
            clients=clients,
            mixed=gathered.weights_sent > 0,
            floats_down=(broadcast.floats + gathered.weights_sent) * len(replies),
            floats_up=sum(reply.floats for reply in replies),
            seconds=perf_counter() - began,
        )
        history = (*state.history, record)
        naturals = tuple(reply.natural for reply in replies)
        after = State(q_g, gathered.sites, naturals, gathered.memory, state.start_objective, history)
        return _Success(after, following)

    def _gather(self, state: State, replies: Sequence[Reply]) -> _Gathered:
        """The server's half: α (raised by the safeguard), Eq. 54, and the mix of an accelerated method."""
        server = self.team.server
        sites = tuple(reply.site for reply in replies)
        naturals = tuple(reply.natural for reply in replies)
        alpha = self.team.method.server_alpha(len(sites))
        if self.safeguard and self.team.method.client == "proximal":
            alpha = server.safe_alpha(sites, naturals, alpha)
        natural = server.gather(sites, naturals, alpha)
        if not self.team.memory:
            return _Gathered(sites, natural, alpha, (), 0)
        before, after = (state.sites, state.q_g.natural), (sites, natural)
        memory = remember(state.memory, self.team.memory, before, after)
        mixed = mix(server, state.q_g, memory, alpha)
        if mixed is None:
            return _Gathered(sites, natural, alpha, memory, 0)
        return _Gathered(*mixed, alpha, memory, len(memory))

    def _ask(self, broadcast: Broadcast, state: State, at_server: Sequence[Expected | GaussianExpected]) -> list[Reply]:
        def answer(k: int) -> Reply:
            start = state.q_g.with_natural(state.naturals[k]) if self.warm_start else None
            worker = self.team.workers[k]
            return worker.step(broadcast, state.q_g, state.sites[k], at_server[k], start, self.seed, k)

        return list(self.apply(answer, range(len(self.team.workers))))


def _edges(server: Server, q_g: ExponentialFamily, sites: Sequence[Natural], clients: Sequence[ClientRecord]) -> Edges:
    return Edges(
        broadcast=max(client.broadcast for client in clients),
        natural_gradient=max(client.natural_gradient for client in clients),
        gather=server.gather_residual(q_g, sites),
        dual_map=_dual_map(q_g),
    )


def _dual_map(q_g: ExponentialFamily) -> float:
    try:
        return q_g.fisher_norm(q_g.with_expectation(q_g.expectation).natural - q_g.natural)
    except ValueError:  # the moments have lost the covariance to rounding: a run on its way out
        return float("inf")


def _client_record(reply: Reply, q_g: ExponentialFamily) -> ClientRecord:
    return ClientRecord(
        iterations=reply.iterations,
        status=reply.status,
        residual=reply.residual,
        broadcast=q_g.fisher_norm(reply.natural - q_g.natural),
        natural_gradient=reply.natural_gradient_edge,
        well_posed=reply.well_posed,
        seconds=reply.seconds,
    )


def _client_failure(replies: Sequence[Reply], number: int, safeguard: bool) -> _Failure | None:
    statuses = {
        ClientStatus.ILL_POSED: Status.ILL_POSED_CLIENT,
        ClientStatus.NOT_FINITE: Status.NOT_FINITE,
        ClientStatus.ITERATION_LIMIT: Status.CLIENT_LIMIT,
    }
    for k, reply in enumerate(replies):
        if not reply.status.is_usable:
            status = statuses[reply.status]
            remedy = "raise rho" if safeguard else "raise rho or set safeguard=True"
            advice = remedy if status is Status.ILL_POSED_CLIENT else ""
            return _failure(status, number, advice, client=k)
    return None


def _failure(status: Status, number: int, advice: str, client: int | None = None) -> _Failure:
    where = f"round {number}" if client is None else f"client {client}, round {number}"
    return _Failure(status, f"{where}: {status.value}" + (f"; {advice}" if advice else "") + ".")


def _has_converged(
    state: State, prior: ExponentialFamily, at_server: Sequence[Expected | GaussianExpected], tol: float
) -> bool:
    closed = bool(state.history) and state.history[-1].edges.largest <= tol
    return closed and pooled_residual(prior, state.q_g, at_server) <= tol


def _at_the_limit(state: State, method: Method) -> str:
    """What a run that used up its rounds says: a bounded cycle is not a matter of patience."""
    message = Status.ROUND_LIMIT.value
    last = state.history[-1].objective if state.history else state.start_objective
    if last > state.start_objective:
        message += f"; the objective is above its start ({last:.6g} > {state.start_objective:.6g}): {method.knobs}"
    return f"{message}."


def _rises_without_bound(objective: float, state: State) -> bool:
    if np.isnan(objective):
        return True
    past = np.array([state.start_objective, *(record.objective for record in state.history)])
    finite = past[np.isfinite(past)]
    if not finite.size:
        return False
    best = finite.min()
    return bool(objective > max(best + UNBOUNDED * (1.0 + abs(best)), finite[0]))


def _counter(done: int, limit: int, name: str, progress: bool) -> Iterator[int]:
    if not progress:
        return iter(range(done, limit))
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'bayesadmm-np[demos]'.") from error
    return iter(tqdm(range(done, limit), initial=done, total=limit, desc=name, unit="round"))


@contextmanager
def _mapper(n_jobs: int) -> Iterator[Any]:
    """Yield map, serial or threaded. Threads share the BLAS settings, hence the bits, of the serial run."""
    if n_jobs == 1:
        yield lambda function, items: [function(item) for item in items]
        return
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise ImportError("n_jobs > 1 needs joblib: pip install 'bayesadmm-np[demos]'.") from error
    with Parallel(n_jobs=n_jobs, prefer="threads") as pool:
        yield lambda function, items: pool(delayed(function)(item) for item in items)
