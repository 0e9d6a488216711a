"""A client's problem, the settings of its solver, and the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from .._validation import LeftOut, as_count, as_number, as_positive, as_switch, left_out
from ..splitting.method import Method
from .functional import SharedTerms
from .kernel import Rates, check_decays
from .network import Network
from .randomness import Noise


@dataclass(frozen=True)
class Steps:
    """Settings of every solver: epochs of minibatches, and a rate that may fall over the rounds.

    With f = (t − 1)/T in round t = 1, …, T the rate is α_T + (α − α_T)(1 − f), or with a cosine
    α_T + ½(α − α_T)(1 + cos πf). Later rounds have the rate of round T.
    """

    keep_moments = False  # whether clients keep Adam's averages between rounds

    epochs: int = 5
    batch_size: int = 32
    lr: float = LeftOut(1e-3)  # a number
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
                f"schedule_rounds must be given with a falling rate and only then, got {self.schedule_rounds!r}."
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

    def for_clients(self, sizes: Sequence[float], rows: Sequence[float], method: Method, temperature: float) -> Self:
        """Return the work with what was left open, from the clients' N_k and numbers of rows, the method and τ."""
        return replace(self, lr=self.reach(rows, 0.5)) if left_out(lr=self.lr) else self

    def reach(self, rows: Sequence[float], length: float) -> float:
        """Return the length of a step by which a parameter goes so far in a round, but from 0.001 to 0.01."""
        return min(max(length / self.steps_of(sum(rows) / len(rows)), 1e-3), 1e-2)

    def steps_of(self, rows: float) -> int:
        """Return the steps of a client of so many rows in a round."""
        return self.epochs * math.ceil(rows / self.batch_size)


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
    lr : float, optional
        Default: 0.5/n for the n steps of the mean client in a round, but from 0.001 to 0.01.
    beta1 : float, default 0.9
    beta2 : float, default 0.999
    eps : float, default 1e-8
    curvature_samples : int, optional
        Number of labels a row from which FedLap-Cov estimates the curvature; default: the exact curvature, C − 1
        gradients a row for C classes.
    keep_moments : bool, default False
        Whether a client's moments and count of steps continue from its last round instead of zero: 2P more numbers a
        client. In one process only.
    schedule : {'constant', 'linear', 'cosine'}
        Course of the rate over the rounds, from `lr` towards `lr_end`.
    schedule_rounds : int, optional
        T; only for a rate that falls.
    lr_end : float, default 0.0
        α_T, the rate of round T + 1 by the formula.

    Raises
    ------
    ValueError
        When a number is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import AdamSteps
    >>> AdamSteps(epochs=10, lr=0.002).lr
    0.002
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

    Errors and use are as for `AdamSteps`.

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


LAG = 3.0
"""Rounds that the Hessian estimate averages over; over one it is mostly noise (docs/deep_methods.md)."""


@dataclass(frozen=True)
class IVONSteps(Steps):
    """Local work of a variational method: IVON under prior and multipliers (Algorithm 2, App. D.4).

    With hess_start="h0" a round learns the precision only if (1 − β₂) times its steps is well above 1. With "server",
    h = s_g/λ − δ, the precision is learned over the rounds. Errors and use are as for `AdamSteps`.

    Without a given `lr` what else is left out follows from the clients: with λ and n of the mean client, n its steps
    (in β₂ at least 10),

        h₀ = max(10, N/20)/λ,  α = 1/h₀,  β₂ = 1 − 1/(3n),  hess_start "server"
        clip_radius = 0.25/n, but from 0.001 to 0.01

    A step is then Newton's, no entry longer than `clip_radius`; the first samples have the precision
    s_g + max(10, N/20), and later ones what the rounds have learned. With a given `lr` what is left out is 0.01 (h₀),
    0.99 (β₂), no clip, and "h0".

    Parameters
    ----------
    lr : float, optional
        α before the rescaling: the first step is gradient descent's with this rate, or Newton's if shorter.
    hess_init : float, optional
        h₀, on the scale of the mean loss.
    beta1, beta2, clip_radius, rescale_lr
        As in `IVON`.
    samples : int, default 1
        Number of samples of the posterior in a step.
    hess_start : {'h0', 'server'}, optional
        Start of h in a round; h₀ as long as the server's precision is the prior's. "server" needs a small `lr` or a
        `clip_radius`.
    ess : float, optional
        λ of every client in place of N_k/(ρτ): client k's loss is ρλ/N_k times its sum over rows, without τ.
    epochs, batch_size, schedule, schedule_rounds, lr_end
        As in `AdamSteps`.
    """

    lr: float = LeftOut(1.0)
    hess_init: float = LeftOut(0.01)
    beta1: float = 0.9
    beta2: float = LeftOut(0.99)
    samples: int = 1
    clip_radius: float = LeftOut("inf")
    rescale_lr: bool = True
    hess_start: Literal["h0", "server"] | None = None
    ess: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not left_out(lr=self.lr):
            for name in left_out(**vars(self)):
                object.__setattr__(self, name, float(getattr(self, name)))
            object.__setattr__(self, "hess_start", self.hess_start or "h0")
        as_count(self.samples, "samples")
        if self.hess_start not in ("h0", "server", None):
            raise ValueError(f"hess_start must be 'h0' or 'server', got {self.hess_start!r}.")
        if self.ess is not None:
            as_positive(self.ess, "ess")
        Rates.of(vars(self))  # checks the others

    def for_clients(self, sizes: Sequence[float], rows: Sequence[float], method: Method, temperature: float) -> Self:
        """Return the work with what was left open; see the class."""
        if not left_out(lr=self.lr):
            return self
        clients, n = len(sizes), max(self.steps_of(sum(rows) / len(rows)), 10)
        ess = self.ess or sum(sizes) / (clients * (method.rho or 1.0) * temperature)
        h0 = max(10.0, sum(sizes) / 20.0) / ess if left_out(h0=self.hess_init) else self.hess_init
        follow = {"hess_init": h0, "beta2": 1.0 - 1.0 / (LAG * n), "clip_radius": self.reach(rows, 0.25)}
        chosen: Any = {name: follow[name] for name in left_out(**vars(self)) if name in follow}
        return replace(self, lr=1.0 / h0, hess_start=self.hess_start or "server", **chosen)


@dataclass(frozen=True)
class PersonalSteps(Steps):
    """Local work of your own with two models, one that is sent and one that is kept."""

    def check(self, network: Network) -> None:
        """Raise a ValueError for a network that this work cannot train."""

    def stack(self, network: Network, problem: LocalProblem, noise: Noise, steps: Sequence[int]) -> Any:
        """Return an object with the work of some clients: `step(k, t, gradient)` and `result()`.

        `step` takes step t of the first k clients; `gradient(θ, out)` writes the gradients of their mean losses.
        `result` returns fields of `Trained` by name: mean and precision that are sent, and kept and kept_precision.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Moments:
    """Adam's two averages that some clients keep between rounds, shape (k, 2, P), and their steps done."""

    vectors: Tensor
    steps: tuple[int, ...]

    def of(self, chosen: Sequence[int]) -> Moments:
        """Return the moments of some clients."""
        return Moments(self.vectors[list(chosen)], tuple(self.steps[k] for k in chosen))

    def put(self, clients: Sequence[int], new: Moments) -> Moments:
        """Return these moments with new ones for some clients."""
        index = torch.tensor(list(clients), device=self.vectors.device)
        counts = dict(zip(clients, new.steps, strict=True))
        steps = tuple(counts.get(k, count) for k, count in enumerate(self.steps))
        return Moments(self.vectors.index_copy(0, index, new.vectors), steps)


Solver = AdamSteps | SGDSteps | IVONSteps | PersonalSteps


@dataclass(frozen=True)
class LocalProblem:
    """Minimise ℓ_k/τ + vᵀθ − ½θᵀVθ + ρ_k·(anchor), for some clients k (Eq. 66): everything but the rows.

    The anchor is KL(q‖N(centre, 1/precision)); for point methods ½‖θ − centre‖² in that metric. `start` is the server's
    mean, shape (P,); `linear` and `curvature` are the duals (v_k, V_k). A single row applies to all clients, a single
    column to all parameters. `scale` is τ/N_k = 1/(ρλ), the weight of dual and anchor beside a client's mean loss.
    `reached` is the precision at which IVON starts (None: h₀); `served` is s_g.
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


@dataclass
class Trained:
    """Result of local work: m_k and, for IVON, s_k and h_k; shapes (K, P), and the clients' running statistics.

    Methods with personal models also return the kept mean, and the kept precision if it is learned.
    """

    steps: tuple[int, ...]
    buffers: dict[str, Tensor]
    mean: Tensor = field(init=False)
    precision: Tensor | None = field(init=False, default=None)
    hess: Tensor | None = field(init=False, default=None)
    kept: Tensor | None = field(init=False, default=None)
    kept_precision: Tensor | None = field(init=False, default=None)
    moments: Tensor | None = field(init=False, default=None)

    def put(self, clients: Sequence[int], rows: Mapping[str, Tensor]) -> None:
        """Set the rows of some clients; threads may do so at the same time."""
        for name, part in rows.items():
            if name not in vars(self):
                with torch.inference_mode(False):  # a mode of the caller's thread, and other threads write here too
                    vars(self).setdefault(name, part.new_empty(len(self.steps), *part.shape[1:]))
            vars(self)[name][list(clients)] = part
