"""One client's half of a round: solve, dual step, reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from ..clients.coupled import CoupledExpected, loosened
from ..clients.own_fits import own_fit, start_rule
from ..clients.problem import ClientStatus, Solution, Subproblem
from ..clients.solver import Solver
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Expected, Loss
from ..losses.expectations import Rule
from .coefficients import ClientCoefficients, client_coefficients
from .duals import AlongNatural
from .messages import Broadcast, Reply
from .methods import Method
from .privacy import GaussianMechanism
from .sketched import Own, sketch_of


@dataclass(frozen=True)
class Worker:
    """A client as a pure function of the broadcast and of its own dual."""

    loss: Loss
    rule: Rule  # resolved for this loss
    solver: Solver
    method: Method
    prior: ExponentialFamily
    share: float  # N_k/N, used by methods that weigh clients by rows
    n_clients: int
    privacy: GaussianMechanism | None = None

    @cached_property
    def coefficients(self) -> ClientCoefficients:
        """ρ_k, γ_k and the part of the prior."""
        return client_coefficients(self.method, self.share, self.n_clients)

    def at(self, round: int) -> Worker:
        """Return the worker with the row of a round."""
        row = self.method.at(round)
        return self if row is self.method else replace(self, method=row)

    def expect(self, q: ExponentialFamily) -> Expected:
        """E_q[ℓ_k] and its natural gradient; an overflow is reported by the result, not by a warning."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.loss.expect(q, self.rule)

    def subproblem(self, q_g: ExponentialFamily, site: Natural) -> Subproblem:
        """Eq. 15; a regulariser at the client is merged into the anchor, where it is one more KL term."""
        own = self.coefficients
        if self.method.prior_at == "server":
            return Subproblem(self.loss, self.rule, q_g, site, own.rho)
        weight = own.rho + own.prior * self.prior.prior_weight
        mixture = (own.rho * q_g.natural + own.prior * self.prior.natural) * (1.0 / weight)
        return Subproblem(self.loss, self.rule, q_g.with_natural(mixture), site, weight)

    @np.errstate(over="ignore", invalid="ignore")  # the reply's status says it
    def step(
        self,
        broadcast: Broadcast,
        q_g: ExponentialFamily,
        site: Natural,
        at_server: Expected,
        start: ExponentialFamily | None,
        seed: int,
        index: int,
        noise: Array | None = None,
        sketch: tuple[Natural, Array] | None = None,
    ) -> Reply:
        """Answer a broadcast.

        `q_g` is the member with the broadcast parameter: clients in one process share it, and its factorisation.
        `at_server` is the expectation at q_g (it is both a report and the solver's first evaluation); `start` is
        the client's last posterior for a warm start. The random stream is a function of seed, round and client.
        `noise` is what privacy adds to the answer, in units of its scale. `sketch` are λ_k and the sketch of the
        client's last answer, where sites keep one.
        """
        began, rng = perf_counter(), np.random.default_rng([seed, broadcast.round, index])
        own = None if sketch is None else Own(sketch[0], site, sketch[1])
        cavity, worker = broadcast.cavity, self.at(broadcast.round)
        problem, solver = worker.subproblem(q_g, site), worker.solver
        kind = worker.method.sites
        if kind is not None and own is not None and cavity is not None:
            problem = own.subproblem(kind, worker.loss, worker.rule, q_g, cavity)
            at_server = problem.loss.around(at_server, q_g, worker.rule)  # type: ignore[attr-defined]
            solver = loosened(solver, problem, q_g, at_server)
        tensors = None
        if worker.method.client == "own":
            rule = worker.loss.check(worker.prior, start_rule(worker.rule))
            solution = own_fit(worker.loss, rule, worker.prior, worker.n_clients, worker.solver, rng)
        elif worker.method.client in ("gradient", "joint"):
            finite = at_server.natural_gradient.is_finite()
            if worker.method.is_joint and finite:
                assert isinstance(q_g, Gaussian)
                tensors = worker.loss.tensors(q_g, worker.rule)
                finite = bool(np.isfinite(tensors).all())
            status = ClientStatus.STEPS_DONE if finite else ClientStatus.NOT_FINITE
            solution = Solution(q_g, at_server, 0.0, 0, status)
        else:
            warm = start is not None and problem.is_well_posed
            first = start if warm and start is not None else q_g
            solution = solver.solve(problem, first, rng, None if warm else at_server)
            if isinstance(solution.expected, CoupledExpected):
                solution = replace(solution, expected=solution.expected.own)
        if worker.privacy is not None:
            return worker._private_reply(worker.privacy, q_g, site, solution, noise)
        moved = worker._dual_step(site, solution, q_g)
        gap = worker.gap(solution.posterior, solution.expected, moved)
        return Reply(
            natural=q_g.natural if worker.method.client == "own" else solution.posterior.natural,
            site=moved,
            iterations=solution.iterations,
            status=solution.status,
            residual=solution.residual,
            natural_gradient_edge=0.0 if worker._is_rounding(solution) else solution.posterior.fisher_norm(gap),
            gap=gap,
            well_posed=problem.is_well_posed,
            seconds=perf_counter() - began,
            slope=getattr(solution.expected, "gradient", None) if worker.method.is_newton else None,
            tensors=tensors,
            sketch=None if kind is None else sketch_of(kind, solution.expected),
            is_evaluation=worker.method.client != "proximal",
        )

    def _private_reply(
        self, privacy: GaussianMechanism, q_g: ExponentialFamily, site: Natural, solution: Solution, noise: Array | None
    ) -> Reply:
        """A reply of which the noised λ_k alone depends on the rows; even a failed solve is not reported."""
        if noise is None:
            raise ArgumentError("noise", "must hold one standard normal number for each free one of λ_k", "None")
        # after a failed solve the update is zero, and what is sent is noise alone
        natural = solution.posterior.natural if solution.status.is_usable else q_g.natural
        sent = privacy.noised(q_g, natural, noise)
        moved = self._dual_step(site, replace(solution, posterior=q_g.with_natural(sent)), q_g)
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

    def _dual_step(self, site: Natural, solution: Solution, q_g: ExponentialFamily) -> Natural:
        """Eq. 16 by the row's rule, or no dual."""
        if self.method.client != "proximal" or self.method.sites is not None:
            return -solution.expected.natural_gradient
        step, rule = self.coefficients.step, self.method.dual_rule
        if not step:
            return site
        if rule.reads_natural:
            moved: Natural = rule(site, solution.posterior.natural, q_g.natural, step)
        else:
            moved = rule(site, solution.posterior, q_g, step)
        return moved

    def _is_rounding(self, solution: Solution) -> bool:
        """Whether η_k + ∇_μ E_{q_k}[ℓ_k] is zero by construction, so that its length would be that of rounding alone.

        Of a closed form λ_k = λ_g − (η_k + ∇)/ρ_k with a constant ∇, and then γ_k = ρ_k makes η_k = −∇. At d = 490 the
        lengths of all clients took a fifth of a round.
        """
        row = self.method
        is_whole = row.dual_step == row.rho and row.client_share != "dual" and type(row.dual_rule) is AlongNatural
        return is_whole and row.client == "proximal" and row.prior_at == "server" and solution.residual == 0.0

    def gap(self, posterior: ExponentialFamily, expected: Expected, site: Natural) -> Natural:
        """η_k + ∇_μ E_{q_k}[ℓ_k]: zero when the dual is a natural gradient (Eq. 33)."""
        gap = site + expected.natural_gradient
        if self.method.prior_at == "server":
            return gap
        prior = self.coefficients.prior
        weight = prior * self.prior.prior_weight
        return gap + (weight * posterior.natural - prior * self.prior.natural)


def moved_site(method: Method, share: float, n_clients: int, site: Natural, own: Natural, served: Natural) -> Natural:
    """Eq. 16 for a server that follows a client's dual by λ_k and λ_g, of a rule that reads no more than these."""
    step = client_coefficients(method, share, n_clients).step
    moved: Natural = method.dual_rule(site, own, served, step) if step else site
    return moved
