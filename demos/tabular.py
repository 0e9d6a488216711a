"""Settings, methods and scores that the two demonstrations on real tables share.

No setting was chosen by looking at test rows:

* all methods have the same prior N(0, I/δ), intercept included. For heart disease δ is the best of 0.1, 1, 10 and 100
  by the evidence bound on training rows. For credit approval δ = 1 (the FedLap paper's App. D.2);
* FedProx and FedDyn have the ρ of a grid with the smallest *training* objective after the last round, a sum of one
  number from each client;
* FedLap and FedLap-Cov are damped by γ = 1/K. The paper damps FedLap by N_k/N, which is the same for equal clients.
  FedLap-Cov also runs undamped, with γ = 1;
* PVI is undamped. BayesADMM has ρ = 1 with the safeguard: the server raises α just enough that every client's problem
  has a minimum. Accelerated PVI is Anderson mixing of PVI at γ = 0.4.

Methods that learn a covariance predict by the integral over it, E σ(f) with f ~ N(xᵀm, xᵀS⁻¹x). The others predict by
σ(xᵀm).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import bayesadmm_np as ba
from bayesadmm_np.demos import shared, style
from bayesadmm_np.losses.logistic_normal import logistic_normal_moments

Array = NDArray[np.float64]

FEDAVG, FEDPROX, FEDDYN, FEDLAP = "FedAvg", "FedProx", "FedDyn", "FedLap"
COV, COV_FULL = "FedLap-Cov (γ=1/K)", "FedLap-Cov (γ=1)"
PVI, BAYESADMM, ACCELERATED = "PVI", "BayesADMM", "Accelerated PVI"

ACCURACY = shared.Accuracy(digits=8)  # shares of rows, of which some lie close to the half of a printed digit

RHOS = (0.1, 1.0, 10.0)
TOL, SAME, NEAR, FLOOR = 1e-8, 1e-6, 0.01, 1e-8
"""Of the runs; distances, in posterior standard deviations, that are the same, near, and the least that is drawn."""

LOOKS = {
    FEDAVG: style.Look(style.MUTED, "s", (0, (4, 1.2))),
    FEDPROX: style.Look(style.MUTED, "X", (0, (1, 1))),
    FEDDYN: style.Look(style.PURPLE, "D", (0, (3, 1.2, 1, 1.2))),
    FEDLAP: style.Look(style.SKY, "P", (0, (5, 1.5))),
    COV: style.Look(style.ORANGE, "^", (0, (5, 1.5))),
    COV_FULL: style.Look(style.BLACK, "^", "-"),
    PVI: style.look("PVI"),
    BAYESADMM: style.look("BayesADMM"),
    ACCELERATED: style.look("Accelerated"),
}


@dataclass(frozen=True)
class Line:
    """Method of the comparison: the family of its prior, and settings from which the training objective chooses."""

    label: str
    family: Any
    candidates: tuple[Any, ...]
    safeguard: bool = False

    @property
    def is_variational(self) -> bool:
        """Return whether the target is the variational posterior; otherwise the target is the mode."""
        method = getattr(self.candidates[0], "method", self.candidates[0])
        return method.expectation is None


@dataclass(frozen=True)
class Fit:
    """Finished run of a method.

    `trace` has the server's posterior at the start and after every round, `distance` those of their means to the
    method's own pooled fit; a run that converged stops early. `spread` is the largest relative error of a standard
    deviation at the end, None where no covariance is learned.
    """

    label: str
    rho: float
    status: str
    rounds: int
    floats_per_round: int
    distance: tuple[float, ...]
    trace: tuple[Any, ...]
    spread: float | None

    @property
    def posterior(self) -> Any:
        """Return the posterior at the end."""
        return self.trace[-1]

    def after(self, round_: int) -> Any:
        """Return the server's posterior after a round, or the last one when the run had converged before."""
        return self.trace[min(round_, len(self.trace) - 1)]

    def rounds_to(self, distance: float) -> int | None:
        """Return the first round from which the distance stays within a bound until the end, or None."""
        return shared.arrival(np.array(self.distance) <= distance)


@dataclass(frozen=True)
class Pooled:
    """Pooled fits, with which the federated fits are compared.

    `variational` minimises E_q[ℓ] + KL over full covariances; `laplace` is the mode with the curvature there.
    """

    variational: Any
    laplace: Any


def lines(n_clients: int) -> tuple[Line, ...]:
    """Return the methods."""
    methods, families = ba.methods, ba.families
    share = 1.0 / n_clients
    return (
        Line(FEDAVG, families.IsotropicGaussian, (methods.FedAvg(),)),
        Line(FEDPROX, families.IsotropicGaussian, tuple(methods.FedProx(rho) for rho in RHOS)),
        Line(FEDDYN, families.IsotropicGaussian, tuple(methods.FedDyn(rho) for rho in RHOS)),
        Line(FEDLAP, families.FixedPrecisionGaussian, (methods.FedLap(share),)),
        Line(COV, families.FullGaussian, (methods.FedLapCov(share),)),
        Line(COV_FULL, families.FullGaussian, (methods.FedLapCov(),)),
        Line(PVI, families.FullGaussian, (methods.PVI(),)),
        Line(BAYESADMM, families.FullGaussian, (methods.BayesADMM(),), safeguard=True),
        Line(ACCELERATED, families.FullGaussian, (ba.Accelerated(methods.PVI(0.4)),)),
    )


@dataclass(frozen=True)
class LocalAdam(ba.clients.Solver):
    """The paper's local work: epochs of minibatch Adam (Kingma & Ba 2015) on the mean, moments anew in every round.

    A minibatch's gradient is scaled to the client's sum. A learned precision is set afterwards to its stationary value
    at the mean that was reached, S = S_g + (H − V)/ρ.
    """

    epochs: int = 10
    batch: int = 4
    learning_rate: float = 1e-3

    def solve(self, problem: ba.clients.Subproblem, start: Any, rng: np.random.Generator, expected: Any = None) -> Any:
        """Take the epochs of Adam."""
        loss: Any = problem.loss
        slope, constant = quadratic_part(problem, loss.dim)
        mean, first, second = start.mean.copy(), np.zeros(loss.dim), np.zeros(loss.dim)
        step = 0
        for _ in range(self.epochs):
            order = rng.permutation(loss.n_rows)
            X, y = loss.X[order], loss.y[order]
            for i in range(0, loss.n_rows, self.batch):
                step += 1
                rows = X[i : i + self.batch]
                errors = (expit(rows @ mean) - y[i : i + self.batch]) * (loss.n_rows / len(rows))
                gradient = errors @ rows + slope @ mean + constant
                first += 0.1 * (gradient - first)
                second += 0.001 * (gradient**2 - second)
                size = self.learning_rate * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                mean -= size * first / (np.sqrt(second) + 1e-8)
        q = start.with_natural(start.natural_from(start.factor.multiply(mean), start.factor.parts))
        if q.learns_precision:
            parts = problem.target(problem.expect(q).natural_gradient).parts[1:]
            q = q.with_natural(q.natural_from(q.factor.like(parts).multiply(mean), parts))
        return self.measured(problem, q, step, ba.clients.ClientStatus.STEPS_DONE)


def quadratic_part(problem, dim):
    """Return A and b of Aθ + b = v − Vθ + ρS_g(θ − m_g), the gradient of the dual and proximal terms."""

    def matrix(factor):
        return np.column_stack([factor.multiply(column) for column in np.eye(dim)])

    anchor, site = problem.anchor, problem.site
    slope = problem.rho * matrix(anchor.factor)
    if anchor.learns_precision:
        slope = slope - matrix(anchor.factor.like(site.parts[1:]))
    return slope, site.linear - problem.rho * anchor.factor.multiply(anchor.mean)


def pooled(clients: Sequence[Any], prior: Any) -> Pooled:
    """Return the pooled fits under a full-covariance prior, without sites or rounds."""
    laplace = ba.solve_pooled(clients, prior, expectation=ba.losses.Delta(2))
    return Pooled(ba.solve_pooled(clients, prior).posterior, laplace.posterior)


def fit(line: Line, clients: Sequence[Any], delta: float, target: Pooled, rounds: int, **options: Any) -> Fit:
    """Run a method, and return the candidate with the lowest training objective at the end."""
    prior = line.family(np.zeros(clients[0].dim), delta)
    own = target.variational if line.is_variational else target.laplace
    best: tuple[float, Fit] | None = None
    for method in line.candidates:
        trace = [prior.start()]
        result = ba.run(
            method,
            clients,
            prior,
            rounds,
            callback=lambda _, q, trace=trace: trace.append(q),
            safeguard=line.safeguard,
            raise_on_failure=False,
            **options,
        )
        if best is not None and not result.objective[-1] < best[0]:
            continue
        record = result.history[0]
        found = Fit(
            label=line.label,
            rho=getattr(method, "method", method).rho,
            status=result.status.name,
            rounds=result.rounds,
            floats_per_round=record.floats_down + record.floats_up,
            distance=tuple(deviation(q, own) for q in trace),
            trace=tuple(trace),
            spread=_spread(result.posterior, own) if result.posterior.learns_precision else None,
        )
        best = (float(result.objective[-1]), found)
    assert best is not None
    return best[1]


def is_pooled(distance: float, spread: float) -> tuple[bool, str]:
    """Return whether means and standard deviations equal those of the pooled fit, and both distances in words."""
    words = f"means {shared.size(distance)} sd, standard deviations {shared.size(spread)} relative"
    return max(distance, spread) <= SAME, words


def deviation(q: Any, target: Any) -> float:
    """Return max_j |m_j − m*_j| / sd*_j, with mean and standard deviations of the pooled fit."""
    return float(np.max(np.abs(q.mean - target.mean) / np.sqrt(target.variance)))


def probability(q: Any, X: Array) -> Array:
    """Return P(y = 1) of each row: over the posterior if its covariance was learned, else at its mean."""
    predictor = X @ q.mean
    if not q.learns_precision:
        return np.asarray(expit(predictor))
    variance = np.einsum("ij,jk,ik->i", X, q.covariance, X)
    return np.asarray(logistic_normal_moments(predictor, variance).sigmoid)


def scores(p: Array, y: NDArray[np.int64]) -> dict[str, float]:
    """Return the share of rows on the right side of ½, the mean of −log p(y), and that of (p − y)²."""
    return {
        "rows": len(y),
        "accuracy": float(np.mean((p > 0.5) == (y == 1))),
        "nll": float(-np.mean(np.log(np.where(y == 1, p, 1.0 - p)))),
        "brier": float(np.mean((p - y) ** 2)),
    }


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation, with divisor n − 1 (0 for a single value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def percent(pair: Sequence[float]) -> str:
    """Write mean and standard deviation of a share."""
    return f"{100 * pair[0]:.1f} ({100 * pair[1]:.1f})"


def cell(pair: Sequence[float]) -> str:
    """Write mean and standard deviation."""
    return f"{pair[0]:.3f} ({pair[1]:.3f})"


def draw_distances(axes: Any, rows: Iterable[dict[str, Any]], looks: Any, marks: int, dashes: Any, top: float) -> None:
    """Draw distances to the pooled fit by round, with some `marks` markers, and a line of `dashes` at SAME."""
    for row in rows:
        line = shared.semilog(axes, row["distance"], looks[row["label"]], FLOOR, label=row["label"])
        line.set_markevery(max(1, len(line.get_xdata()) // marks))
    axes.axhline(SAME, color=style.MUTED, linewidth=0.7, linestyle=dashes)
    axes.set(xlabel="communication round", ylim=(FLOOR, top))
    style.tidy(axes)


def failures(fits: Iterable[Fit]) -> int:
    """Count the runs that failed."""
    return sum(ba.Status[fit.status].is_failure for fit in fits)


def _spread(q: Any, target: Any) -> float:
    """Return max_j |sd_j / sd*_j − 1|."""
    return float(np.max(np.abs(np.sqrt(q.variance / target.variance) - 1.0)))
