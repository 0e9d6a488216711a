"""Three rows whose clients keep a model of their own beside the one that they send: pFedMe, pFedBayes and pFedVEM.

Their answers are no λ of Eq. 15. Rounds, batches, noise, checkpoints and scores are those of all rows of
`bayesadmm_np.torch`: a row says here what a client does in a step, and how the server takes the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayesadmm_np._validation import as_count, as_positive
from bayesadmm_np.families import DiagonalGaussian, IsotropicGaussian
from bayesadmm_np.losses.expectations import Delta
from bayesadmm_np.torch.kernel import check_decays
from bayesadmm_np.torch.methods import PersonalMethod
from bayesadmm_np.torch.network import Network
from bayesadmm_np.torch.problem import LocalProblem, PersonalSteps
from bayesadmm_np.torch.randomness import Noise

Gradient = Callable[[Tensor, Tensor], Tensor]
Kept = dict[str, Tensor]
"""What is sent (mean, precision), and what is kept (kept, kept_precision)."""
FIXED = 1e6
"""Precision of what is a point, a row of the client: samples do not move it, and the server's mean is by rows."""


@dataclass(frozen=True)
class MoreauSteps(PersonalSteps):
    """pFedMe's local work (after T Dinh et al. 2020): in every step, on one batch.

        θ̃ ← θ̃ − α(∇L(θ̃) + λ(θ̃ − w)), `inner` times,    w ← w − ηλ(w − θ̃)


    Parameters
    ----------
    epochs, batch_size, schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    lr : float, default 0.01
        α.
    inner : int, default 5
    penalty : float, default 15.0
        λ.
    outer_lr : float, default 0.01
        η; ηλ is at most 1.
    """

    lr: float = 0.01
    inner: int = 5
    penalty: float = 15.0
    outer_lr: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count(self.inner, "inner")
        if as_positive(self.outer_lr, "outer_lr") * as_positive(self.penalty, "penalty") > 1.0:
            raise ValueError(f"outer_lr must be at most 1/penalty, got {self.outer_lr} with penalty={self.penalty}.")

    def stack(self, network: Network, problem: LocalProblem, noise: Noise, steps: Sequence[int]) -> Moreau:
        return Moreau(problem.start, self, len(steps))


@dataclass(frozen=True)
class BayesSteps(PersonalSteps):
    """pFedBayes's local work (after Zhang et al. 2022): q = N(μ, σ²), σ = log(1 + eʳ), and steps of two kinds.

        (μ, r) of q ← a gradient step on E_q[ℓ_k]/N_k + (ζ/N_k) KL(q‖w),    (μ, r) of w ← one on KL(q‖w)

    The first w has the precision `prior_precision`.

    Parameters
    ----------
    epochs, batch_size, schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    lr : float, default 0.01
        Rate of q.
    outer_lr : float, default 0.001
        Rate of w.
    penalty : float, default 10.0
        ζ.
    """

    lr: float = 0.01
    outer_lr: float = 1e-3
    penalty: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        as_positive(self.outer_lr, "outer_lr")
        as_positive(self.penalty, "penalty")

    def stack(self, network: Network, problem: LocalProblem, noise: Noise, steps: Sequence[int]) -> Bayes:
        return Bayes(problem, problem.scale * self.penalty, self, noise)


@dataclass(frozen=True)
class VEMSteps(PersonalSteps):
    """pFedVEM's local work (Zhu et al. 2023): a Gaussian over the last layer, and a point for all before it.

        ρ² ← mean(σ² + (μ − w)²),    (μ, r) ← a step on E_q[ℓ_k]/N_k + (1/N_k) KL(q‖N(w, ρ²)),  σ = log(1 + eʳ)

    in the first `head_epochs`, and then steps of the other layers on E_q[ℓ_k]/N_k, all with momentum. A client begins
    each round at the server's w: it remembers no σ.

    Parameters
    ----------
    epochs : int, default 15
        Of both parts together.
    batch_size : int, default 10
    lr : float, default 1e-3
    head_epochs : int, default 10
    momentum : float, default 0.9
    samples : int, default 5
    scale : float, default 0.1
        σ at the start of a round.
    schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    """

    epochs: int = 15
    batch_size: int = 10
    head_epochs: int = 10
    momentum: float = 0.9
    samples: int = 5
    scale: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count(self.samples, "samples")
        as_positive(self.scale, "scale")
        if not 0 < as_count(self.head_epochs, "head_epochs") < self.epochs:
            raise ValueError(f"head_epochs must be below epochs, {self.epochs}, got {self.head_epochs}.")
        check_decays(momentum=self.momentum)

    def check(self, network: Network) -> None:
        head_of(network)

    def stack(self, network: Network, problem: LocalProblem, noise: Noise, steps: Sequence[int]) -> VEM:
        return VEM(problem.start, problem.scale, self, noise, steps, head_of(network))


def PFedMe() -> PersonalMethod:
    """PFedMe (T Dinh et al. 2020): clients send w, near which they keep θ̃; the server takes the plain mean."""
    point: Any = {"expectation": Delta(1), "families": (IsotropicGaussian,), "prior_at": "clients"}
    return PersonalMethod("pFedMe", 0.0, 0.0, alpha=0.0, mean_over="present", work=MoreauSteps, **point)


def PFedBayes() -> PersonalMethod:
    """PFedBayes (Zhang et al. 2022): clients keep q_k near w_k, which they send; the server takes means of (μ, r)."""
    return _gaussian("pFedBayes", BayesSteps, MeansOfScales)


def PFedVEM() -> PersonalMethod:
    """PFedVEM (Zhu et al. 2023): w ← Σ(μ_k/ρ_k²)/Σ(1/ρ_k²) for the last layer, the mean by rows for all before it.

    That is the gather of Eq. 54 with α = 0 for precisions 1/ρ_k² and N_k.
    """
    return _gaussian("pFedVEM", VEMSteps)


def _gaussian(name: str, work: type[PersonalSteps], kind: type[PersonalMethod] = PersonalMethod) -> PersonalMethod:
    each: Any = {"alpha": 0.0, "mean_over": "present", "families": (DiagonalGaussian,)}
    return kind(name, 1.0, 0.0, work=work, knobs="lower lr", **each)


def head_of(network: Network) -> int:
    """Return how many parameters the last layer has."""
    names = [name.rpartition(".")[2] for name in network.names[-2:]]
    if names != ["weight", "bias"] or len(network.shapes[-2]) != 2 or len(network.sizes) < 4:
        raise ValueError("pFedVEM needs a model whose last layer, behind others, is a dense one with a bias.")
    return sum(network.sizes[-2:])


def unsoftplus(x: Tensor) -> Tensor:
    """Return r with log(1 + eʳ) = x."""
    return x + torch.log(-torch.expm1(-x))


@dataclass(frozen=True)
class MeansOfScales(PersonalMethod):
    """A row whose server takes the means of μ_k and r_k."""

    def server(self, linear: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
        scale = softplus(unsoftplus(precision.rsqrt()).mean(dim=0))
        return (linear / precision).mean(dim=0), scale.square().reciprocal()


class Moreau:
    """pFedMe."""

    def __init__(self, start: Tensor, solver: MoreauSteps, count: int) -> None:
        self.solver, self.sent = solver, start.expand(count, -1).clone()
        self.own, self.gradient = self.sent.clone(), torch.empty_like(self.sent)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        """Take the inner steps on a batch, and the outer one."""
        s, own, sent, g = self.solver, self.own[:k], self.sent[:k], self.gradient[:k]
        for _ in range(s.inner):
            own.sub_(gradient(own, g).add_(own - sent, alpha=s.penalty), alpha=s.lr)
        sent.sub_(sent - own, alpha=s.outer_lr * s.penalty)

    def result(self) -> Kept:
        """Return w, and θ̃."""
        return {"mean": self.sent, "kept": self.own}


class Bayes:
    """pFedBayes."""

    def __init__(self, problem: LocalProblem, penalty: Tensor, solver: BayesSteps, noise: Noise) -> None:
        count = len(penalty)
        assert problem.served is not None
        raw = unsoftplus(problem.served.rsqrt())
        self.solver, self.noise, self.penalty = solver, noise, penalty
        self.sent, self.sent_raw = (x.expand(count, -1).clone() for x in (problem.start, raw))
        self.own, self.own_raw = self.sent.clone(), self.sent_raw.clone()
        self.gradient, self.drawn = torch.empty_like(self.sent), torch.empty_like(self.sent)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        """Take a step of q, and one of w."""
        own, raw, sent, sent_raw, eps = (x[:k] for x in (self.own, self.own_raw, self.sent, self.sent_raw, self.drawn))
        self.noise.fill(eps, t - 1)
        sigma, wide = softplus(raw), softplus(sent_raw)
        g, weight = gradient(own + sigma * eps, self.gradient[:k]), self.penalty[:k]
        pull = (own - sent) / wide.square()
        widen = g * eps + weight * (sigma / wide.square() - 1.0 / sigma)
        own.sub_(g + weight * pull, alpha=self.solver.lr)
        raw.sub_(widen * raw.sigmoid(), alpha=self.solver.lr)
        away, sigma = own - sent, softplus(raw)
        sent.add_(away / wide.square(), alpha=self.solver.outer_lr)
        narrow = 1.0 / wide - (sigma.square() + away.square()) / wide**3
        sent_raw.sub_(narrow * sent_raw.sigmoid(), alpha=self.solver.outer_lr)

    def result(self) -> Kept:
        """Return w, and q."""
        sent, own = (softplus(raw).square().reciprocal() for raw in (self.sent_raw, self.own_raw))
        return {"mean": self.sent, "precision": sent, "kept": self.own, "kept_precision": own}


class VEM:
    """pFedVEM."""

    def __init__(
        self, start: Tensor, weight: Tensor, solver: VEMSteps, noise: Noise, steps: Sequence[int], head: int
    ) -> None:
        self.solver, self.noise, self.weight, self.head = solver, noise, weight, head
        self.mean = start.expand(len(steps), -1).clone()
        self.served = start[-head:]
        self.raw = unsoftplus(torch.full_like(self.mean[:, -head:], solver.scale))
        self.speed, self.raw_speed = torch.zeros_like(self.mean), torch.zeros_like(self.raw)
        self.theta, self.gradient, self.drawn = self.mean.clone(), self.mean.clone(), self.raw.clone()
        each = torch.tensor([count // solver.epochs for count in steps], device=start.device)[:, None]
        self.until = each * solver.head_epochs

    def confidence(self, k: int) -> Tensor:
        """ρ² of the first k clients, shape (k, 1)."""
        away = self.mean[:k, -self.head :] - self.served
        return (softplus(self.raw[:k]).square() + away.square()).mean(dim=1, keepdim=True)

    def step(self, k: int, t: int, gradient: Gradient) -> None:
        """Take a step of the head, or of the base."""
        s, mean, raw, eps, theta = self.solver, self.mean[:k], self.raw[:k], self.drawn[:k], self.theta[:k]
        sigma, head, total, bent = softplus(raw), mean[:, -self.head :], torch.zeros_like(mean), torch.zeros_like(raw)
        for sample in range(s.samples):
            self.noise.fill(eps, (t - 1) * s.samples + sample)
            theta.copy_(mean)
            theta[:, -self.head :].addcmul_(sigma, eps)
            g = gradient(theta, self.gradient[:k])
            total.add_(g, alpha=1.0 / s.samples)
            bent.addcmul_(g[:, -self.head :], eps, value=1.0 / s.samples)
        rho, weight = self.confidence(k), self.weight[:k]
        total[:, -self.head :] += weight * (head - self.served) / rho
        bent = (bent + weight * (sigma / rho - 1.0 / sigma)) * raw.sigmoid()
        is_head = (t <= self.until[:k]).to(mean)
        turn = torch.cat([(1.0 - is_head).expand(-1, mean.shape[1] - self.head), is_head.expand_as(head)], dim=1)
        for x, speed, slope, on in ((mean, self.speed[:k], total, turn), (raw, self.raw_speed[:k], bent, is_head)):
            speed.mul_(s.momentum).add_(slope).mul_(on)
            x.sub_(speed, alpha=s.lr)

    def result(self) -> Kept:
        """Return base and μ with N_k and 1/ρ², and the same with 1/σ²."""
        k = len(self.mean)
        sent = (FIXED / self.weight).expand_as(self.mean).clone()
        own = sent.clone()
        sent[:, -self.head :] = self.confidence(k).reciprocal()
        own[:, -self.head :] = softplus(self.raw).square().reciprocal()
        return {"mean": self.mean, "precision": sent, "kept": self.mean.clone(), "kept_precision": own}
