"""A client's problem, the settings of its solver, and the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from .._validation import as_count, as_number, as_positive, as_switch
from .functional import SharedTerms
from .kernel import Rates, check_decays
from .network import Network
from .randomness import Noise


@dataclass(frozen=True)
class Steps:
    """Settings of every solver: epochs of minibatches, and a rate that may fall over the rounds.

    With f = (t − 1)/T in round t = 1, …, T the rate α becomes α_T + (α − α_T)(1 − f), or with a cosine
    α_T + ½(α − α_T)(1 + cos πf): it is α in the first round, and would be α_T in the round after the last. Rounds after
    T have the rate of round T.
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = field(default="constant", kw_only=True)
    schedule_rounds: int | None = field(default=None, kw_only=True)
    lr_end: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch_size, "batch_size")
        as_positive(self.lr, "lr")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise ValueError(f"schedule must be 'constant', 'linear' or 'cosine', got {self.schedule!r}.")
        if (self.schedule_rounds is None) != (self.schedule == "constant"):
            raise ValueError(
                f"schedule_rounds must be given exactly where the rate falls, got {self.schedule_rounds!r}."
            )
        if self.schedule_rounds is not None:
            as_count(self.schedule_rounds, "schedule_rounds")
        if not 0 <= as_number(self.lr_end, "lr_end") <= self.lr:
            raise ValueError(f"lr_end must lie in [0, lr], got {self.lr_end!r}.")

    def at(self, round: int) -> Self:
        """Return the work of a round, counted from 1, with its rate."""
        if self.schedule_rounds is None:
            return self
        passed = (min(round, self.schedule_rounds) - 1) / self.schedule_rounds
        left = 1.0 - passed if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * passed))
        rate = self.lr_end + (self.lr - self.lr_end) * left
        return replace(self, lr=rate, lr_end=0.0, schedule="constant", schedule_rounds=None)


@dataclass(frozen=True)
class PointSteps(Steps):
    """Local work of a point method, and how the curvature is found where the method needs one (FedLap-Cov)."""

    curvature_samples: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.curvature_samples is not None:
            as_count(self.curvature_samples, "curvature_samples")


@dataclass(frozen=True)
class AdamSteps(PointSteps):
    """Local work of a point method: Adam (Kingma & Ba 2015) on ℓ_k and the terms around it.

    Parameters
    ----------
    epochs : int, default 5
        Passes over the client's rows in a round.
    batch_size : int, default 32
    lr : float, default 1e-3
    beta1 : float, default 0.9
    beta2 : float, default 0.999
    eps : float, default 1e-8
    curvature_samples : int, optional
        Labels a row from which a method that needs the curvature (FedLap-Cov) estimates it; default: the exact one, for
        which every row has as many gradients as there are classes, less one.
    keep_moments : bool, default False
        Whether a client's moments and its count of steps go on from the last round that it took part in, in place of
        starting at zero: 2P more numbers a client, which stay with it. In one process only.
    schedule : {'constant', 'linear', 'cosine'}
        How the rate falls over the rounds, from `lr` towards `lr_end`.
    schedule_rounds : int, optional
        T, the number of these rounds; only for a rate that falls.
    lr_end : float, default 0.0
        α_T, which the round after the last would have.

    Raises
    ------
    ValueError
        When a number is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import AdamSteps
    >>> AdamSteps(epochs=10).lr
    0.001
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    keep_moments: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        as_switch(self.keep_moments, "keep_moments")
        as_positive(self.eps, "eps")
        check_decays(beta1=self.beta1, beta2=self.beta2)


@dataclass(frozen=True)
class SGDSteps(PointSteps):
    """Local work of a point method: stochastic gradient descent on ℓ_k/N_k and the terms around it, over N_k.

        b ← βb + ĝ,  θ ← θ − αb,  b = 0 at the start of a round

    Errors and use are those of `AdamSteps`.

    Parameters
    ----------
    lr : float, default 0.01
        α.
    momentum : float, default 0.0
        β, in [0, 1).
    epochs, batch_size, curvature_samples, schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    """

    lr: float = 0.01
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decays(momentum=self.momentum)


@dataclass(frozen=True)
class IVONSteps(Steps):
    """Local work of a variational method: IVON under prior and multipliers (Algorithm 2, App. D.4).

    From h₀ the precision is learned only in rounds that forget h₀: (1 − β₂) times their steps should be well above 1.
    From the server's precision, h = s_g/λ − δ, it is learned over the rounds.
    Errors and use are those of `AdamSteps`.

    Parameters
    ----------
    lr : float, default 1.0
        α, before the rescaling: the first step is one of gradient descent with this rate, or Newton's if that is less.
    hess_init : float, default 0.01
        h₀, on the scale of the mean loss.
    beta1, beta2, hess_approx, clip_radius, debias, rescale_lr
        As in `IVON`; β₂ is 0.99 by default.
    samples : int, default 1
        Number of samples of the posterior in a step.
    hess_start : {'h0', 'server'}
        Where h starts a round; while the server's precision is the prior's, at h₀ with either. From the server take a
        small `lr` or a `clip_radius`.
    ess : float, optional
        λ of every client, in place of N_k/(ρτ): client k's loss is ρλ/N_k times its sum over rows, and `temperature`
        has no part.
    epochs, batch_size, schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    """

    lr: float = 1.0
    hess_init: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    samples: int = 1
    hess_approx: Literal["price", "gradsq"] = "price"
    clip_radius: float = float("inf")
    debias: bool = True
    rescale_lr: bool = True
    hess_start: Literal["h0", "server"] = "h0"
    ess: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count(self.samples, "samples")
        if self.hess_start not in ("h0", "server"):
            raise ValueError(f"hess_start must be 'h0' or 'server', got {self.hess_start!r}.")
        if self.ess is not None:
            as_positive(self.ess, "ess")
        self.rates  # noqa: B018  # checks the others

    @property
    def rates(self) -> Rates:
        """The settings that `kernel` takes."""
        return Rates.of(vars(self))


@dataclass(frozen=True)
class PersonalSteps(Steps):
    """Local work of one's own, with two models: the model that is sent, and the model that is kept."""

    def check(self, network: Network) -> None:
        """Raise a ValueError for a network that this work cannot train."""

    def stack(self, network: Network, problem: LocalProblem, noise: Noise, steps: Sequence[int]) -> Any:
        """Return an object with the work of some clients: `step(k, t, gradient)` and `result()`.

        `step` takes step t of the first k clients; `gradient(θ, out)` writes the gradients of their mean losses.
        `result` returns the mean and the precision that are sent, None, and the mean and the precision that are kept.
        """
        raise NotImplementedError


def keeps_moments(solver: Steps) -> bool:
    """Return whether clients keep Adam's averages between rounds."""
    return isinstance(solver, AdamSteps) and solver.keep_moments


@dataclass(frozen=True)
class Moments:
    """Adam's two averages that some clients keep between rounds, shape (k, 2, P), and their steps done."""

    vectors: Tensor
    steps: tuple[int, ...]

    def of(self, chosen: Sequence[int]) -> Moments:
        """Return those of some of the clients."""
        return Moments(self.vectors[list(chosen)], tuple(self.steps[k] for k in chosen))

    def put(self, clients: Sequence[int], new: Moments) -> Moments:
        """Return these with those of some clients anew."""
        index = torch.tensor(list(clients), device=self.vectors.device)
        counts = dict(zip(clients, new.steps, strict=True))
        steps = tuple(counts.get(k, count) for k, count in enumerate(self.steps))
        return Moments(self.vectors.index_copy(0, index, new.vectors), steps)


Solver = AdamSteps | SGDSteps | IVONSteps | PersonalSteps


@dataclass(frozen=True)
class LocalProblem:
    """Minimise ℓ_k/τ + vᵀθ − ½θᵀVθ + ρ_k·(anchor), for some clients k (Eq. 66): everything but the rows.

    The anchor is KL(q‖N(centre, 1/precision)); for point methods ½‖θ − centre‖² in that metric. Clients start at
    `start`, the server's mean, shape (P,); `linear` and `curvature` are the sites (v_k, V_k). A tensor of one row is of
    all clients, and one of a single column of all parameters. `scale` is τ/N_k = 1/(ρλ), the weight of dual and anchor
    beside a client's mean loss; `reached` is the precision at which IVON starts, None for that of h₀; `served` is s_g.
    """

    start: Tensor
    centre: Tensor
    precision: Tensor
    linear: Tensor
    curvature: Tensor
    rho: Tensor
    scale: Tensor
    shared: SharedTerms | None = None
    reached: Tensor | None = None
    served: Tensor | None = None
    moments: Moments | None = None

    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        """Return A's diagonal and b of ½θᵀAθ + bᵀθ, dual and anchor for a mean loss; None in FedAvg."""
        pull = self.rho * self.precision
        stiffness, slope = self.scale * (pull - self.curvature), self.scale * (self.linear - pull * self.centre)
        return (stiffness, slope) if bool(stiffness.any()) or bool(slope.any()) else None

    def terms(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return Algorithm 2's λ = N_k/(ρτ), δ = s_g/λ, v − δm_g and u, for v = (τ/N_k)v_k and u = (τ/N_k)u_k."""
        ess = 1.0 / (self.rho * self.scale)
        delta = self.precision / ess
        slope = (self.scale * self.linear).addcmul(delta, self.centre, value=-1.0)
        return ess, delta, slope, self.scale * self.curvature

    def of(self, chosen: Sequence[int]) -> LocalProblem:
        """Return the problem of some of the clients."""
        names = "centre", "precision", "linear", "curvature", "rho", "scale"
        whole = {name: getattr(self, name) for name in names}
        rows = {name: x[list(chosen)] if len(x) > 1 else x for name, x in whole.items()}
        shared, moments = self.shared and self.shared.of(chosen), self.moments and self.moments.of(chosen)
        return replace(self, **rows, shared=shared, moments=moments)


@dataclass(frozen=True)
class Trained:
    """Result of local work: m_k and, for IVON, s_k and h_k; shapes (K, P), and the clients' running statistics.

    Rows with personal models also return what the clients keep: a mean, and where it is learned a precision.
    """

    mean: Tensor
    precision: Tensor | None
    hess: Tensor | None
    steps: tuple[int, ...]
    buffers: dict[str, Tensor]
    kept: Tensor | None = None
    kept_precision: Tensor | None = None
    moments: Tensor | None = None

    def put(self, clients: Sequence[int], rows: Sequence[Tensor | None]) -> None:
        """Set the rows of some clients."""
        wholes = self.mean, self.precision, self.hess, self.kept, self.kept_precision, self.moments
        for whole, part in zip(wholes, rows, strict=False):
            if whole is not None and part is not None:
                whole[list(clients)] = part
