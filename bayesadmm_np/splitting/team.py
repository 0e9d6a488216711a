"""Clients and server of a run, checked to fit each other before round 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .._errors import ArgumentError, ClientError
from ..clients.fixed_steps import ClosedForm
from ..clients.newton import VariationalNewton
from ..clients.own_fits import require_information, start_rule
from ..clients.problem import Solver
from ..families.base import ExponentialFamily
from ..losses.base import Expected, Loss
from ..losses.expectations import Auto, Rule
from .average import ORDER
from .method import Method
from .privacy import GaussianMechanism
from .server import Server
from .state import State, describe_method, digest
from .step import Step
from .worker import Worker

FINEST = 1e-12  # smallest residual asked of the default solver: rounding leaves some 1e-14


@dataclass(frozen=True)
class Team:
    """Workers and server that fit each other."""

    workers: tuple[Worker, ...]
    server: Server
    step: Step

    @property
    def prior(self) -> ExponentialFamily:
        """π_0."""
        return self.server.prior

    @property
    def is_private(self) -> bool:
        """Return whether answers are noised; then nothing that is measured on the rows may end the run."""
        return any(worker.privacy is not None for worker in self.workers)

    def describe(self, **settings: Any) -> dict[str, Any]:
        """Return what a checkpoint must agree on with the run that resumes it."""
        pairs = [(worker.loss, worker.rule) for worker in self.workers]
        return {
            "method": describe_method(self.step),
            "family": type(self.prior).__name__,
            "shapes": [list(shape) for shape in self.prior.natural.shapes],
            "n_clients": len(pairs),
            "clients": [[loss.name, loss.n_rows, loss.dim, repr(rule)] for loss, rule in pairs],
            "prior": digest([self.prior.natural, self.prior.start().natural]),
            "data": [digest(loss) for loss, _ in pairs],
            **settings,
        }

    def expect_all(self, state: State, apply: Any) -> list[Expected]:
        """Return E_{q_g}[ℓ_k] of every client."""
        return list(apply(lambda worker: worker.expect(state.q_g), self.workers))

    def objective(self, state: State, at_server: Sequence[Expected]) -> float:
        """Return Σ_k E_{q_g}[ℓ_k] + KL(q_g‖prior)."""
        return self.server.objective(state, [expected.value for expected in at_server])


def assemble(
    step: Step,
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    expectation: Rule | None,
    solver: Solver | None,
    tol: float,
    privacy: GaussianMechanism | None = None,
    safeguard: bool = False,
) -> Team:
    """Check that losses, prior, rule and solver fit, and make the clients."""
    row = step.row
    if not isinstance(prior, ExponentialFamily):
        got = f"the class {prior.__name__}" if isinstance(prior, type) else type(prior).__name__
        expected = "must be a member of bayesadmm_np.families, such as FullGaussian(...)"
        raise ArgumentError("prior", expected, got, ORDER if isinstance(clients, ExponentialFamily) else "")
    require_family(row, prior)
    if isinstance(clients, Loss) or not isinstance(clients, Iterable):
        raise ArgumentError("clients", "must be a sequence of losses, one a client", type(clients).__name__)
    losses = list(clients)
    if not losses:
        raise ArgumentError("clients", "must hold at least one loss", "none")
    if expectation is not None and not isinstance(expectation, Rule):
        raise ArgumentError("expectation", "must be a rule of bayesadmm_np.losses", repr(expectation))
    if solver is not None and not isinstance(solver, Solver):
        raise ArgumentError("solver", "must be a solver of bayesadmm_np.clients", repr(solver))
    if privacy is not None:
        if not isinstance(privacy, GaussianMechanism):
            raise ArgumentError("privacy", "must be a GaussianMechanism", repr(privacy))
        privacy.check(step, prior, len(losses))
    rule = read_rule(row, expectation)
    known = [loss for loss in losses if isinstance(loss, Loss)]
    total = sum(loss.total_weight for loss in known)
    by_rows = row.server_share == "rows" or row.client_share != "equal" or row.prior_at != "server"
    if by_rows and known and not total > 0.0:
        raise ArgumentError("clients", f"must have rows of positive weight: {row.name} weights clients by them", "none")
    total = total or 1.0
    workers = []
    for k, loss in enumerate(losses):
        if not isinstance(loss, Loss):
            raise ClientError(k, ValueError(f"expected a loss of bayesadmm_np.losses, got {type(loss).__name__}."))
        try:
            share = loss.total_weight / total
            workers.append(make_client(step, loss, prior, rule, solver, tol, share, len(losses), privacy))
        except ValueError as error:
            raise ClientError(k, error) from error
    outputs = {worker.loss.n_outputs for worker in workers}
    if not step.is_between_sites and len(outputs) > 1:
        raise ArgumentError(
            "clients",
            f"must have equally many predictors a row for {row.name}",
            sorted(outputs),
        )
    shares = tuple(worker.share for worker in workers)
    server = Server(row, prior, shares, safeguard=bool(safeguard), sets_duals=True, total=total, n_outputs=max(outputs))
    return Team(tuple(workers), server, step)


def require_family(row: Method, prior: ExponentialFamily) -> None:
    """Raise a ValueError unless the method is defined for the prior's family."""
    if row.for_networks:
        raise ValueError(f"{row.name} is for networks only: run it with bayesadmm_np.torch.run.")
    if row.families and not isinstance(prior, row.families):
        wanted = " or ".join(family.__name__ for family in row.families)
        raise ValueError(f"{row.name} needs a prior of the family {wanted}, got {type(prior).__name__}.")


def read_rule(row: Method, expectation: Rule | None) -> Rule:
    """Return the given rule, or else the method's own; raise a ValueError if the two differ."""
    rule = expectation or row.expectation or Auto()
    if row.expectation is not None and rule != row.expectation:
        raise ValueError(f"{row.name} is defined with expectation={row.expectation}, got {rule}.")
    return rule


def make_client(
    step: Step,
    loss: Loss,
    prior: ExponentialFamily,
    rule: Rule,
    solver: Solver | None,
    tol: float,
    share: float,
    n_clients: int,
    privacy: GaussianMechanism | None = None,
) -> Worker:
    """Make one client's worker, with N_k/N = `share`; raise a ValueError if loss, family, rule or solver do not fit."""
    is_closed = loss.is_quadratic or loss.is_linear_in_statistics
    default = ClosedForm() if is_closed else VariationalNewton(tol=min(1e-8, max(0.01 * tol, FINEST)))
    chosen = solver or default
    resolved = loss.check(prior, rule)
    if step.row.client == "proximal":
        chosen.check(loss, prior, resolved)
    if step.begins == "sites":
        chosen.check(loss, prior, loss.check(prior, start_rule(resolved)))
        require_information(prior)
    step.require(loss, prior, resolved)
    return Worker(loss, resolved, chosen, step, prior, share, n_clients, privacy)
