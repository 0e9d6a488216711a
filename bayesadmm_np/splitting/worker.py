"""One client's half of a round: solve, dual step, reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..clients.coupled import CoupledExpected
from ..clients.own_fits import own_fit, start_rule
from ..clients.problem import ClientStatus, Solution, Solver, Subproblem
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from .duals import AlongNatural
from .messages import Ask, Broadcast, Reply
from .method import ClientCoefficients, Method, client_coefficients
from .privacy import GaussianMechanism
from .step import Own, Step


@dataclass(frozen=True)
class Worker:
    """A client as a pure function of the broadcast and of its own dual."""

    loss: Loss
    rule: Rule  # resolved for this loss
    solver: Solver
    method: Step
    prior: ExponentialFamily
    share: float  # N_k/N, used by methods that weigh clients by rows
    n_clients: int
    privacy: GaussianMechanism | None = None
    round: int = 0  # whose scalars are taken, where a schedule changes them

    @cached_property
    def row(self) -> Method:
        """Scalars of the round."""
        return self.method.row.at(self.round) if self.round else self.method.row

    @cached_property
    def coefficients(self) -> ClientCoefficients:
        """ρ_k, γ_k and the part of the prior."""
        return client_coefficients(self.row, self.share, self.n_clients)

    def at(self, round: int) -> Worker:
        """Return the worker with the method of a round."""
        return self if self.method.row.schedule is None else replace(self, round=round)

    def expect(self, q: ExponentialFamily) -> Expected:
        """E_q[ℓ_k] and its natural gradient; an overflow is reported by the result, not by a warning."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.loss.expect(q, self.rule)

    def subproblem(self, q_g: ExponentialFamily, site: Natural) -> Subproblem:
        """Eq. 15; a regulariser at the client is merged into the anchor, where it is one more KL term."""
        own = self.coefficients
        if self.row.prior_at == "server":
            return Subproblem(self.loss, self.rule, q_g, site, own.rho)
        weight = own.rho + own.prior * self.prior.prior_weight
        mixture = (own.rho * q_g.natural + own.prior * self.prior.natural) * (1.0 / weight)
        return Subproblem(self.loss, self.rule, q_g.with_natural(mixture), site, weight)

    @np.errstate(over="ignore", invalid="ignore")  # the reply's status says it
    def answer(
        self,
        broadcast: Broadcast,
        q_g: ExponentialFamily,
        own: Own,
        at_server: Expected,
        start: ExponentialFamily | None,
        seed: int,
        index: int,
        noise: Array | None = None,
    ) -> Reply:
        """Answer a broadcast.

        `own` is the client's last answer, `at_server` the expectation at q_g, which is the solver's first evaluation
        too. `start` is the client's last posterior for a warm start, `noise` that of privacy, in units of its scale.
        """
        began, rng = perf_counter(), np.random.default_rng([seed, broadcast.round, index])
        worker, asked = self.at(broadcast.round), broadcast.ask
        is_posed = True
        if asked == "own":
            rule = worker.loss.check(worker.prior, start_rule(worker.rule))
            solution = own_fit(worker.loss, rule, worker.prior, worker.n_clients, worker.solver, rng)
        elif asked != "solve":
            finite = at_server.natural_gradient.is_finite()
            status = ClientStatus.STEPS_DONE if finite else ClientStatus.NOT_FINITE
            solution = Solution(q_g, at_server, 0.0, 0, status)
        else:
            problem, solver, here = worker.method.work(worker, q_g, own, at_server, broadcast.context)
            is_posed = problem.is_well_posed
            warm = start is not None and is_posed
            first = start if warm and start is not None else q_g
            solution = solver.solve(problem, first, rng, None if warm else here)
            if isinstance(solution.expected, CoupledExpected):
                solution = replace(solution, expected=solution.expected.own)
        if worker.privacy is not None:
            return worker._private_reply(worker.privacy, q_g, own.site, solution, noise)
        moved = worker._dual_step(asked, own.site, solution, q_g)
        gap = worker.gap(solution.posterior, solution.expected, moved)
        beside = worker.method.beside(worker, asked, solution)
        tensors = beside.get("tensors")
        status = solution.status
        if tensors is not None and not np.isfinite(tensors).all():
            status = ClientStatus.NOT_FINITE
        return Reply(
            natural=q_g.natural if asked == "own" else solution.posterior.natural,
            site=moved,
            iterations=solution.iterations,
            status=status,
            residual=solution.residual,
            natural_gradient_edge=0.0 if worker._is_rounding(asked, solution) else solution.posterior.fisher_norm(gap),
            gap=gap,
            well_posed=is_posed,
            seconds=perf_counter() - began,
            value=at_server.value,
            is_evaluation=asked != "solve",
            **beside,
        )

    def _private_reply(
        self, privacy: GaussianMechanism, q_g: ExponentialFamily, site: Natural, solution: Solution, noise: Array | None
    ) -> Reply:
        """Return a reply of which the noised λ_k alone depends on the rows; even a failed solve is not reported."""
        if noise is None:
            raise ArgumentError("noise", "must hold one standard normal number for each free one of λ_k", "None")
        # after a failed solve the update is zero, and what is sent is noise alone
        natural = solution.posterior.natural if solution.status.is_usable else q_g.natural
        sent = privacy.noised(q_g, natural, noise)
        moved = self._dual_step("solve", site, replace(solution, posterior=q_g.with_natural(sent)), q_g)
        return Reply(
            natural=sent,
            site=moved,
            iterations=0,
            status=ClientStatus.STEPS_DONE,
            residual=float("inf"),
            natural_gradient_edge=float("inf"),
            gap=site.zeros(),
            well_posed=self.subproblem(q_g, site).is_well_posed,
            seconds=0.0,
        )

    def _dual_step(self, asked: Ask, site: Natural, solution: Solution, q_g: ExponentialFamily) -> Natural:
        """Eq. 16 by the method's rule, or no dual."""
        if self.method.is_natural_gradient(asked):
            return -solution.expected.natural_gradient
        step, rule = self.coefficients.step, self.row.dual_rule
        if not step:
            return site
        if rule.reads_natural:
            moved: Natural = rule(site, solution.posterior.natural, q_g.natural, step)
        else:
            moved = rule(site, solution.posterior, q_g, step)
        return moved

    def _is_rounding(self, asked: Ask, solution: Solution) -> bool:
        """Return whether η_k + ∇_μ E_{q_k}[ℓ_k] is zero by construction, for a closed form with γ_k = ρ_k."""
        row = self.row
        is_whole = row.dual_step == row.rho and row.client_share != "dual" and type(row.dual_rule) is AlongNatural
        return is_whole and asked == "solve" and row.prior_at == "server" and solution.residual == 0.0

    def gap(self, posterior: ExponentialFamily, expected: Expected, site: Natural) -> Natural:
        """Return η_k + ∇_μ E_{q_k}[ℓ_k]: zero when the dual is a natural gradient (Eq. 33)."""
        gap = site + expected.natural_gradient
        if self.row.prior_at == "server":
            return gap
        prior = self.coefficients.prior
        weight = prior * self.prior.prior_weight
        return gap + (weight * posterior.natural - prior * self.prior.natural)


def moved_site(method: Method, share: float, n_clients: int, site: Natural, own: Natural, served: Natural) -> Natural:
    """Return η_k after Eq. 16, for a server that follows a client's dual by λ_k and λ_g."""
    step = client_coefficients(method, share, n_clients).step
    moved: Natural = method.dual_rule(site, own, served, step) if step else site
    return moved
