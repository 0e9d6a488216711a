"""The loop of every method for neural networks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .._validation import as_count, as_fraction, as_positive
from ..splitting.loop import check_options, counter, drive
from ..splitting.methods import FedIvon, Method
from ..splitting.result import Rounds
from ..splitting.round import Participation, complete, present_clients
from ..splitting.state import describe_method
from ..splitting.status import Failure, Status
from .certificate import SampledCertificate, certify, objective
from .likelihoods import Likelihood
from .metrics import AnyScores
from .network import Rows, digest
from .posterior import SAMPLES, Kind, NetworkPosterior, by_pieces
from .problem import Solver
from .randomness import stream
from .round import DONE, answer, ended, gathered, is_usable, kept, recorded
from .state import RoundRecord, State, load_state, save_state
from .stream import Stream
from .team import Team, assemble, fit, read_device

SCHEMA = 6
"""1: sites started at zero; 2: another noise; 3: one for all architectures; 4: FedLap-Func's sums; 5: absent λ_k."""


@dataclass(frozen=True, repr=False)
class Result(Rounds):
    """The outcome of `run`; every field is of the same round. Its objective is Σ_k E_{q_g}[ℓ_k]/τ + KL(q_g‖prior).

    Attributes
    ----------
    status : Status
        `RISEN` after all rounds where the objective ends above its start, or, with a fixed precision, has lost half of
        its descent.
    message : str
    state : State
        The last good state: server, sites, clients, history.
    failure : Failure or None
        Status, round, detail and knob of a run that failed.
    """

    status: Status
    message: str
    state: State
    _team: Team
    failure: Failure | None = None

    def __repr__(self) -> str:
        return f"Result({self.status.name} after {self.rounds} rounds, {self.state.mean.numel()} parameters)"

    @property
    def settings(self) -> dict[str, Any]:
        """Method and solver of the run, with the numbers that followed from the clients."""
        return {"method": self._team.method, "solver": self._team.solver}

    @property
    def mean(self) -> Tensor:
        """Mean m_g, flat, in the order of the model's parameters; shape (P,)."""
        return self.state.mean

    @property
    def precision(self) -> Tensor:
        """Precision s_g, shape (P,); one number where the method does not learn it."""
        return self.state.precision

    def certificate(self, pairs: int = 8, tol: float = 0.1, seed: int = 0) -> SampledCertificate:
        """Return the four residuals of the duality circuit and the pooled residual, in posterior sd per parameter.

        A variational method averages natural gradients over antithetic pairs of samples: 4 × `pairs` passes over all
        rows, and 2 × `pairs` vectors of parameters. A method of the delta method needs no samples.

        Parameters
        ----------
        pairs : int, default 8
            Number of pairs, at least 3 for a standard error.
        tol : float, default 0.1
        seed : int, default 0

        Raises
        ------
        ValueError
            When an argument is out of range, or no round was completed.
        """
        as_count(pairs, "pairs", minimum=3)
        as_count(seed, "seed", minimum=0)
        if not self.history:
            raise ValueError("certificate needs a completed round, got none: raise rounds.")
        return certify(self._team, self.state, pairs, as_positive(tol, "tol"), seed)

    @property
    def posterior(self) -> NetworkPosterior:
        """Posterior q_g: samples, predictions and a file."""
        return posterior_of(self._team, self.state)

    def personal(self, seed: int = 0) -> tuple[NetworkPosterior, ...]:
        """Return each client's own model: its posterior after one more local update from the last server.

        With FedAvg this is fine-tuning. FedIvon updates as with prior="server", with its β. A method whose clients keep
        a second model returns that model.

        Parameters
        ----------
        seed : int, default 0
            Seed of batches and noise.
        """
        team, state = self._team, self.state
        if team.method.name == "FedIvon" and team.method.prior_at == "each":
            team = replace(team, method=FedIvon())
        everyone, seed = list(range(team.n_clients)), as_count(seed, "seed", minimum=0)
        own = kept(team, state.broadcast, state.duals(everyone), everyone, state.round + 1, seed)
        return tuple(
            replace(
                self.posterior,
                mean=own.linear[k],
                precision=own.precision[k if len(own.precision) > 1 else 0],
                buffers={name: stack[k] for name, stack in own.buffers.items()},
            )
            for k in everyone
        )

    def model(self) -> nn.Module:
        """Return a copy of the model with its parameters set to m_g and its statistics to the clients' mean."""
        return self.posterior.model()


def run(
    method: Method,
    clients: Sequence[Rows | Dataset[Any] | DataLoader[Any]],
    model: nn.Module,
    prior_precision: float = 1.0,
    rounds: int = 10,
    *,
    likelihood: Likelihood | None = None,
    solver: Solver | None = None,
    temperature: float = 1.0,
    participation: Participation = 1.0,
    batched: bool = True,
    device: str | torch.device = "cpu",
    seed: int = 0,
    evaluate: Rows | Dataset[Any] | DataLoader[Any] | None = None,
    evaluate_every: int = 1,
    objective_every: int | None = None,
    ensemble: int | None = None,
    progress: bool = False,
    callback: Callable[[RoundRecord, State], bool | None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1,
    resume: str | os.PathLike[str] | None = None,
) -> Result:
    """Train one network over several clients and a server.

    Minimises Σ_k E_q[ℓ_k]/τ + KL(q‖N(0, 1/δ)) (Eq. 65), where ℓ_k is the loss summed over a client's rows; a method of
    the delta method takes ℓ_k at the mean. The server starts at the model's parameters. To train alone or on pooled
    rows, pass one client, `[client]` or `[merge(clients)]`, and `FedAvg()`.

    Parameters
    ----------
    method : Method
        A method of `bayesadmm_np.methods` for diagonal, fixed or isotropic Gaussians, or of this package.
    clients : sequence of Rows, Dataset or DataLoader
        Rows of a Dataset are pairs (x, y); their random draws (augmentation) are a function of seed, round, client,
        step and row. A DataLoader gives its workers and `collate_fn`; order and batches are the solver's.
    model : Module
        Map of inputs to the likelihood's outputs (logits), shape (n, C); the run works on a copy.
    prior_precision : float, default 1.0
        δ, the server's first precision, and the fixed precision of FedLap.
    rounds : int, default 10
        Largest number of rounds; `methods.BCM` has one.
    likelihood : Likelihood, optional
        Distribution of y given outputs: `Categorical()` (default), `Bernoulli()`, `Gaussian(variance)`, `OwnLoss(f)`.
    solver : AdamSteps, SGDSteps or IVONSteps, optional
        Local work; default IVONSteps() for variational methods, AdamSteps() for methods of the delta method.
    temperature : float, default 1.0
        τ.
    participation : float or callable, default 1.0
        Fraction of clients that take part in a round, or callable(round, n_clients, rng) → one bool a client. A round
        without an answer changes nothing; the run ends when all clients have failed since the last answer.
    batched : bool, default True
        Compute the steps of several clients at once where that is faster, or one client after the other. Both give the
        same numbers to rounding, except for dropout's masks and, on a GPU, IVON's noise. Models with running
        statistics need False.
    device : str or device, default cpu
    seed : int, default 0
        A client's stream is a function of seed, round and client.
    evaluate : Rows, Dataset or DataLoader, optional
        Test rows, scored after rounds. Of a Dataset a thousand rows at a time are in memory, with the predictions of
        all samples for all rows.
    evaluate_every : int, default 1
        Rounds between scores; the last round is always scored.
    objective_every : int, optional
        Rounds between evaluations of objective and edges, which read all clients' rows and duals; the last round is
        always evaluated. 0 is never. By default a round is evaluated when the clients that took part since the start
        add up to all K once more: every round if all take part, and every 20th with 10 of 200. Records of other rounds
        have NaN, and a run that diverges is noticed at the next evaluation.
    ensemble : int, optional
        Number of posterior samples whose averaged predictions are scored beside those at the mean, if the method learns
        a precision; default 32 of variational methods, and none of Laplace approximations (FedLap-Cov, FedLaplace).
    progress : bool, default False
        Whether to show a bar with the first score (needs tqdm).
    callback : callable, optional
        Function called as callback(record, state) after each round; returning True stops the run.
    checkpoint : path, optional
        Write the state there after rounds (arrays and JSON, no pickle): 4KP numbers where a precision is learned.
    checkpoint_every : int, default 1
        Rounds between checkpoints; the run's last round is always written.
    resume : path, optional
        File of a state to continue from, bit for bit as if uninterrupted.

    Raises
    ------
    ValueError
        Before the first round, when an argument is out of range or arguments do not fit each other.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import IVONADMM, IVONSteps, MLP, Rows, run
    >>> source = torch.Generator().manual_seed(0)
    >>> X = torch.randn(60, 2, generator=source)
    >>> y = (X[:, 0] > 0).long()
    >>> clients = [Rows(X[:40], y[:40]), Rows(X[40:], y[40:])]
    >>> _ = torch.manual_seed(0)
    >>> solver = IVONSteps(epochs=20, batch_size=20)
    >>> result = run(IVONADMM(rho=0.5, gamma=0.5), clients, MLP((2, 2)), rounds=3, solver=solver, evaluate=clients[0])
    >>> result.history[-1].at_mean.accuracy > 0.9
    True
    """
    as_count(rounds, "rounds", minimum=0)
    as_count(seed, "seed", minimum=0)
    if ensemble is not None:
        as_count(ensemble, "ensemble")
    as_count(evaluate_every, "evaluate_every")
    if objective_every is not None:
        as_count(objective_every, "objective_every", minimum=0)
    as_count(checkpoint_every, "checkpoint_every")
    check_options({"batched": batched, "progress": progress}, callback, "callback(record, state)", checkpoint, resume)
    if not callable(participation):
        participation = as_fraction(participation, "participation")
    place = read_device(device)
    team = assemble(method, clients, model, prior_precision, temperature, solver, batched, place, likelihood)
    tests = None if evaluate is None else fit(evaluate, "evaluate", team.network, place)
    rounds = min(rounds, team.method.max_rounds or rounds)
    is_kept = checkpoint is not None or resume is not None
    description = _describe(team, seed, participation) if is_kept else {}  # which reads all rows
    state = team.start()
    if resume is None:
        reached = float("nan") if objective_every == 0 else objective(team, state, seed)
        state = replace(state, start_objective=reached)
    else:
        state = load_state(resume, state, description)
    written, bar, said = state.round, counter(state.round, rounds, method.name, progress), DONE

    def take(state: State) -> State | Failure:
        began, number = perf_counter(), state.round + 1
        chosen = np.flatnonzero(present_clients(participation, number, team.n_clients, seed)).tolist()
        after: State | Failure = state
        dropped: list[int] = []
        if chosen:
            replies = answer(team, state.broadcast, state.duals(chosen), chosen, number, seed)
            good = replies.of(is_usable(replies, state.buffers))
            dropped = [k for k in chosen if k not in good.clients]
            is_over = not good.clients and _all_failed(team, state, dropped)
            if dropped and not is_over:
                said = f"round {number}: clients {dropped} gave no finite answer and are left out."
                warnings.warn(said, stacklevel=4)
            if good.clients or is_over:
                after = gathered(team, state, good)
        if isinstance(after, Failure):
            return after
        seconds = perf_counter() - began
        taken = sum(len(record.present) for record in state.history)
        is_due = (taken + len(chosen)) // team.n_clients > taken // team.n_clients
        if objective_every is not None:
            is_due = objective_every > 0 and number % objective_every == 0
        is_due = is_due or (number == rounds and objective_every != 0)
        reached = objective(team, after, seed, dropped) if is_due else float("nan")
        is_judged = is_due and after is not state
        done = recorded(team, state, after, chosen, dropped, is_due)
        scores: dict[str, Any] = {}
        if tests is not None and (number % evaluate_every == 0 or number == rounds):
            scores = _scores(team, done, tests, ensemble, seed)
        return complete(team.method.knobs, done, reached, is_judged, seconds=seconds, **scores)

    def keep(state: State) -> None:
        nonlocal written
        if checkpoint is not None and (state.round % checkpoint_every == 0 or state.round == rounds):
            save_state(checkpoint, state, description)
            written = state.round

    def tell(state: State) -> bool | None:
        record = state.history[-1]
        if progress and record.at_mean is not None:
            name, value = next(iter(vars(record.at_mean).items()))
            bar.set_postfix({name: f"{value:.4f}"})  # type: ignore[attr-defined]
        return None if callback is None else callback(record, state)

    def over(state: State) -> Status | None:
        nonlocal said
        status, said = ended(team, state, rounds)
        return status

    first = [state]
    del state  # else its stacks of all clients would be held to the end
    state, status, failure = drive(first.pop(), bar, take, over, keep, tell)
    if checkpoint is not None and state.round > written:
        save_state(checkpoint, state, description)
    said = f"{status.value}." if status is Status.STOPPED else said
    return Result(status, said if failure is None else failure.message, state, team, failure)


def _all_failed(team: Team, state: State, dropped: Sequence[int]) -> bool:
    """Return whether every client has failed since one last gave an answer."""
    since = takewhile(lambda record: set(record.present) <= set(record.dropped), reversed(state.history))
    return len(set(dropped).union(*(record.dropped for record in since))) == team.n_clients


def posterior_of(team: Team, state: State) -> NetworkPosterior:
    """Return q_g of a state."""
    kind: Kind = "variational" if team.is_variational else "laplace" if team.learns_precision else "point"
    return NetworkPosterior(state.mean, state.precision, kind, team.network, state.buffers)


def _scores(
    team: Team, state: State, tests: Rows | Stream, ensemble: int | None, seed: int
) -> dict[str, AnyScores | None]:
    """Score the predictions at the mean and, of all pieces of a Dataset, at the same samples."""
    posterior, likelihood, labels = posterior_of(team, state), team.network.likelihood, []
    count = (ensemble or (SAMPLES if team.is_variational else 0)) if team.learns_precision else 0

    def predicted(rows: Rows) -> Iterator[Tensor]:
        labels.append(rows.y)
        yield team.network.predict(state.mean, rows.X, state.buffers)
        if count:
            source = stream(state.mean.device, "scores", seed, state.round)
            yield from posterior.outputs(rows.X, count, source)

    outputs = by_pieces(tests, predicted)
    at_mean = next(outputs)
    y = torch.cat(labels)
    averaged = likelihood.score_average(outputs, y) if count else None
    return {"at_mean": likelihood.score(at_mean, y), "ensemble": averaged}


def _describe(team: Team, seed: int, participation: object) -> dict[str, Any]:
    """Describe what a checkpoint and the run that resumes it must have in common."""
    if callable(participation):
        participation = getattr(participation, "__qualname__", type(participation).__qualname__)
    return {
        "schema": SCHEMA,
        "method": describe_method(team.method),
        "solver": repr(team.solver),
        "prior_precision": team.delta,
        "temperature": team.temperature,
        "batched": team.batched,
        "seed": int(seed),
        "participation": participation,
        "model": f"{digest([team.network.start])} {team.network.signature}",
        "data": [rows.digest for rows in team.clients.values()],
    }
