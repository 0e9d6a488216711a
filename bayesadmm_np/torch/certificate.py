"""The objective, the edges of the duality circuit, and the certificate, for networks: the core's definitions.

E_q[ℓ], g = E_q[∇ℓ] and h = E_q[diag ∇²ℓ] are averages over antithetic pairs θ± = m ± ε/√s, where h is estimated by
½(∇ℓ(θ+) − ∇ℓ(θ−))∘ε√s; for methods of the delta method they are values at the mean, without sampling. The squared
length of an average is too long by its noise. So lengths are taken from the products of *different* samples, whose
expectation is the squared length of the residual, and come with the jackknife's standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from ..splitting.certificate import Certificate
from ..splitting.method import circuit_weights
from ..splitting.status import Edges
from .curvature import diagonal_ggn
from .randomness import stream
from .state import Broadcast, State, parts
from .stream import Stream
from .team import Team

OTHER = 2**63
"""Seeds from here on are no run's."""
Residual = tuple[Tensor, Tensor]
"""δ = (linear, precision) about the mean: linear − precision·m, and precision; shapes (P,) and (P,) or (1,)."""


@dataclass(frozen=True)
class SampledCertificate(Certificate):
    """`Certificate` of a network: two residuals are estimated; lengths are in posterior sd per parameter.

    A network's loss is not convex. So a pooled residual of zero means a stationary point of the pooled objective, not
    its minimum. The network is in evaluation mode.

    Attributes
    ----------
    pairs : int
        Antithetic pairs of samples; 0 where nothing was sampled.
    natural_gradient_error, pooled_error : float
        Standard errors of the two estimated residuals.
    drawn : bool
        Whether a Dataset makes a client's rows; random rows then count with one draw each.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np import methods
    >>> from bayesadmm_np.torch import AdamSteps, Rows, run
    >>> rows = Rows(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0, 1]))
    >>> model = torch.nn.Linear(1, 2)
    >>> result = run(methods.FedLap(), [rows], model, rounds=30, solver=AdamSteps(epochs=100, batch_size=4, lr=0.01))
    >>> result.certificate().holds
    True
    """

    pairs: int = 0
    natural_gradient_error: float = 0.0
    pooled_error: float = 0.0
    drawn: bool = False

    @property
    def holds(self) -> bool:
        """Return whether the pooled residual plus two standard errors is at most tol."""
        return self.pooled + 2.0 * self.pooled_error <= self.tol

    def __str__(self) -> str:
        lines = super().__str__()
        if self.drawn:
            lines += "\n  rows are made by a Dataset: where they are random, of one draw of each"
        if not self.pairs:
            return lines
        errors = f"natural gradient {self.natural_gradient_error:.1e}, pooled {self.pooled_error:.1e}"
        return f"{lines}\n  standard errors from {self.pairs} pairs of samples: {errors}"


def objective(team: Team, state: State, seed: int, without: Sequence[int] = ()) -> float:
    """Return `pooled_objective` in one process, over all clients except `without`."""
    having = [k for k in range(team.n_clients) if k not in without]
    return pooled_objective(team, state, losses(team, state.broadcast, seed, having))


def rise(team: Team, state: State, pairs: int = 16) -> float:
    """Return by how much the objective is above its start, less three standard errors over pairs that no record has.

    NaN without all clients' rows.
    """
    if len(team.clients) < team.n_clients:
        return float("nan")
    begun = team.start()
    found = [objective(team, state, seed) - objective(team, begun, seed) for seed in range(OTHER, OTHER + pairs)]
    return float(np.mean(found) - 3.0 * np.std(found, ddof=1) / pairs**0.5)


def doubt(team: Team, state: State) -> str:
    """Return a sentence where the mean predicts the rows no better than a constant, or a variance is far off."""
    if len(team.clients) < team.n_clients:
        return ""
    likelihood, variance, own, square, targets = team.network.likelihood, team.network.likelihood.noise(), 0.0, 0.0, []
    for k in team.clients:  # the outputs of one client at a time, for the memory
        f, y, w = _outputs(team, k, state.mean, state.buffers)
        own += float(likelihood.losses(f, y) @ w)
        square += float((f - y).square().mean(dim=1) @ w) if variance else 0.0
        targets.append((y, w))
    y, w = (torch.cat(part) for part in zip(*targets, strict=True))
    best, error = likelihood.constant(y, w, f.shape[1]), square / float(w.sum())
    fits = [] if best is None else [likelihood.losses(best.expand(len(y), -1), y) @ w for y, w in targets]
    if fits and not own <= float(sum(fits)):
        cure = "scale the inputs, shorten steps (lr, clip_radius), raise hess_init (of IVON), or raise rounds"
        return f" Outputs that are the same for every row fit better: {cure}."
    if not 0.25 * variance <= error <= 4.0 * variance:
        return f" The residuals' mean square is {error:.2g}: give likelihood=Gaussian({error:.2g})."
    return ""


def losses(team: Team, broadcast: Broadcast, seed: int, clients: Sequence[int]) -> list[tuple[float, ...]]:
    """Return ℓ_k/τ at m_g ± ε/√s_g, with the same ε in every round; at m_g where s is not learned."""
    points = [broadcast.mean]
    if team.learns_precision:
        width = _noise(broadcast.mean, seed, 1)[0] * broadcast.precision.rsqrt()
        points = [broadcast.mean + width, broadcast.mean - width]
    if not clients:
        return []
    # one read of all numbers: on a GPU each read waits for the device
    found = torch.stack([_loss(team, k, theta, broadcast.buffers) for k in clients for theta in points])
    return [
        tuple(value / team.temperature_of(k) for value in values)
        for k, values in zip(clients, found.view(len(clients), -1).tolist(), strict=True)
    ]


def pooled_objective(team: Team, state: State, found: Sequence[Sequence[float]]) -> float:
    """Σ_k E_{q_g}[ℓ_k]/τ + KL(q_g‖prior) from the clients' `losses`; NaN if no loss at a point is finite."""
    divergence = 0.5 * team.delta * float(state.mean.double().square().sum()) + narrowing(team, state)
    finite = ([loss for loss in each if np.isfinite(loss)] for each in zip(*found, strict=True))
    totals = [sum(losses) if losses else float("nan") for losses in finite]
    return divergence + sum(totals) / len(totals) if totals else float("nan")


def narrowing(team: Team, state: State) -> float:
    """Return the precision's part of KL(q_g‖prior), ½Σ(δ/s − 1 − log(δ/s)); 0 at the start, where s = δ."""
    ratio = team.delta / state.precision.double().expand(len(state.mean))
    return 0.5 * float((ratio - 1.0 - ratio.log()).sum())


def _loss(team: Team, k: int, theta: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    logits, y, weights = _outputs(team, k, theta, buffers)
    each = team.network.likelihood.losses(logits, y)
    return each.sum() if team.clients[k].weights is None else each @ weights


def _outputs(team: Team, k: int, theta: Tensor, buffers: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a client's outputs, observations and weights; outputs and weights in float64."""
    parts = [(team.network.predict(theta, X, buffers), y, w) for X, y, w in team.clients[k].passes(10_000)]
    logits, y, weights = (torch.cat(found) for found in zip(*parts, strict=True))
    return logits.double(), y, weights.double()


def edges(team: Team, state: State, natural_gradient: float = float("inf")) -> Edges:
    """Return the core's four residuals; the natural gradients' is infinite where it was not estimated."""
    linear, precision = state.precision * state.mean, state.precision
    weight, prior = circuit_weights(team.method, team.prior_weight)
    sites = [x.sum(dim=0) for x in (state.site_linear, state.site_precision)]
    excess = weight * precision - sites[1] - prior * team.delta if team.learns_precision else 0.0 * precision
    own = parts(state.client_precision) if team.learns_precision else repeat(precision)
    pairs = zip(parts(state.client_linear), own, strict=False)  # by groups of clients, for the memory
    return Edges(
        broadcast=float(np.max([fisher_length(state, a - linear, b - precision) for a, b in pairs])),  # or NaN
        natural_gradient=natural_gradient,
        gather=fisher_length(state, (weight * linear - sites[0])[None], excess[None]),
        dual_map=_dual_map(team, state),
    )


def _dual_map(team: Team, state: State) -> float:
    if not team.learns_precision:
        return 0.0
    second = state.mean.square() + 1.0 / state.precision
    variance = second - state.mean.square()
    if not bool((variance > 0).all()):  # the moments have lost the variance to rounding
        return float("inf")
    change = 1.0 / variance - state.precision
    return fisher_length(state, (change * state.mean)[None], change[None])


def fisher_length(state: State, linear: Tensor, precision: Tensor) -> float:
    """Largest over rows of √(δᵀF(λ_g)δ / #parameters) for δ = (linear, precision) and F the Fisher matrix at N(m, 1/s).

    Var[aθ − ½bθ²] = (a − bm)²/s + ½b²/s² under that Gaussian.
    """
    squares = (linear - precision * state.mean).square() / state.precision
    parameters = len(state.mean)
    if len(state.precision) > 1:
        squares = squares + 0.5 * (precision / state.precision).square()
        parameters *= 2
    return float((squares.double().sum(dim=1) / parameters).sqrt().max())


def certify(team: Team, state: State, pairs: int, tol: float, seed: int) -> SampledCertificate:
    """Estimate every client's natural-gradient residual, and the pooled residual."""
    answered = {k for record in state.history for k in record.present if k not in record.dropped}
    rows = {k: k for k in answered} if team.keeps_answers else {k: row for row, k in enumerate(state.answered)}
    found = [_natural_gradient(team, state, k, row, pairs, seed) for k, row in rows.items()]
    natural, natural_error = max(found, default=(float("inf"), 0.0))
    if len(rows) < team.n_clients:
        natural, natural_error = float("inf"), 0.0
    # wλ_g − η_0 + Σ_k∇_μE_{q_g}[ℓ_k]/τ: about the mean (g + δm, s − δ − h)
    s, delta, everyone = state.precision, team.delta, range(team.n_clients)
    each = _natural_gradients(team, everyone, state.mean, s, state.buffers, pairs, seed)
    pooled, pooled_error = sampled_length([(g + delta * state.mean, s - delta - h) for g, h in each], s)
    return SampledCertificate(
        edges=edges(team, state, natural),
        pooled=pooled,
        tol=tol,
        pairs=pairs if team.is_variational else 0,
        natural_gradient_error=natural_error,
        pooled_error=pooled_error,
        drawn=any(isinstance(rows, Stream) for rows in team.clients.values()),
    )


def _natural_gradient(team: Team, state: State, k: int, row: int, pairs: int, seed: int) -> tuple[float, float]:
    """Return the length of η_k + ∇_μE_{q_k}[ℓ_k]/τ: about the mean (v + g − Vm, V − h), in the metric of q_k."""
    precision = state.client_precision[row] if team.learns_precision else state.precision
    mean = state.client_linear[row] / precision
    v, V = (site[k] if len(site) > 1 else site[0] for site in (state.site_linear, state.site_precision))
    prior = team.coefficients([k], "prior")[0]
    v, beyond = v + prior * team.delta * mean, prior * (precision - team.delta)
    found = _natural_gradients(team, [k], mean, precision, state.buffers, pairs, seed)
    return sampled_length([(g + v - V * mean, V + beyond - h) for g, h in found], precision)


def _natural_gradients(
    team: Team, clients: Sequence[int], mean: Tensor, precision: Tensor, buffers: dict[str, Tensor], *how: int
) -> list[Residual]:
    """Return (g, h) of Σ_kℓ_k/τ for each pair of samples; one exact (g, h) for the delta method."""

    def gradient(theta: Tensor) -> Tensor:
        parts = (_gradient(team, k, theta, buffers) / team.temperature_of(k) for k in clients)
        return sum(parts, torch.zeros_like(theta))

    if not team.is_variational:
        hessian = torch.zeros_like(mean[:1])
        if team.learns_precision:
            parts = [diagonal_ggn(team.network, mean, team.clients[k], buffers) for k in clients]
            hessian = torch.stack(parts).sum(dim=0) / team.temperature
        return [(gradient(mean), hessian)]
    pairs, seed = how
    root, found = precision.sqrt(), []
    for noise in _noise(mean, seed, pairs):
        above, below = (gradient(mean + sign * noise / root) for sign in (1.0, -1.0))
        found.append((0.5 * (above + below), 0.5 * (above - below) * noise * root))
    return found


def _gradient(team: Team, k: int, theta: Tensor, buffers: dict[str, Tensor]) -> Tensor:
    total, part = torch.zeros_like(theta), torch.empty_like(theta)[None]
    rows = team.clients[k]
    for X, y, weights in rows.passes(1000):
        slope_at = partial(team.network.likelihood.slope, y=y[None], weights=weights.to(theta)[None])
        total += team.network.gradient(theta[None], part, X[None], slope_at, buffers, train=False)[0]
    return total


def sampled_length(found: Sequence[Residual], precision: Tensor) -> tuple[float, float]:
    """Return the length per parameter of the mean of independent estimates, and its standard error.

    Near zero the mean over i ≠ j of ⟨r_i, r_j⟩ may be negative; the standard error of its root is then its own root.
    """
    learned = len(precision) > 1
    rows = [
        torch.cat([a * precision.rsqrt(), b / precision * 0.5**0.5]) if learned else a * precision.rsqrt()
        for a, b in found
    ]
    stack = torch.stack(rows).double()
    gram = (stack @ stack.T).cpu().numpy() / stack.shape[1]
    n = len(gram)
    if n == 1:
        return float(np.sqrt(gram[0, 0])), 0.0
    crossed = gram - np.diag(np.diag(gram))
    square = crossed.sum() / (n * (n - 1))
    without = (crossed.sum() - 2.0 * crossed.sum(axis=1)) / ((n - 1) * (n - 2))
    error = float(np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum()))
    length = float(np.sqrt(max(square, 0.0)))
    return length, error / (2.0 * np.sqrt(max(square, 0.25 * error))) if error else 0.0


def _noise(like: Tensor, seed: int, pairs: int) -> list[Tensor]:
    """Return standard normals of the certificate's own stream."""
    source = stream(like.device, "certificate", seed)
    return [torch.empty_like(like).normal_(generator=source) for _ in range(pairs)]
