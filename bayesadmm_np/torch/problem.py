"""What a client is asked, with which settings, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from .._validation import as_count, as_positive
from .functional import SharedTerms
from .kernel import Rates, check_betas

__all__ = ["AdamSteps", "IVONSteps", "LocalProblem", "Trained"]


@dataclass(frozen=True)
class AdamSteps:
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

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch_size, "batch_size")
        as_positive(self.lr, "lr")
        as_positive(self.eps, "eps")
        check_betas(self.beta1, self.beta2)


@dataclass(frozen=True)
class IVONSteps:
    """Local work of a variational method: IVON under prior and multipliers (Algorithm 2, App. D.4).

    The Hessian estimate starts at `hess_init` in every round. To learn it a round must be long enough to forget that:
    (1 − β₂) times the steps of a round should be well above 1. Otherwise `hess_init` is the precision that is chosen.

    Parameters
    ----------
    epochs : int, default 5
        Passes over the client's rows in a round.
    batch_size : int, default 32
    lr : float, default 1.0
        α, before the rescaling: the first step is one of gradient descent with this rate, or Newton's if that is less.
    hess_init : float, default 0.01
        h₀, on the scale of the mean loss.
    beta1 : float, default 0.9
    beta2 : float, default 0.99
    samples : int, default 1
        Number of samples of the posterior in a step.
    hess_approx : {'price', 'gradsq'}
    clip_radius : float, default inf
    debias : bool, default True
    rescale_lr : bool, default True

    Raises
    ------
    ValueError
        When a number is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import IVONSteps
    >>> IVONSteps(epochs=10).samples
    1
    """

    epochs: int = 5
    batch_size: int = 32
    lr: float = 1.0
    hess_init: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    samples: int = 1
    hess_approx: Literal["price", "gradsq"] = "price"
    clip_radius: float = float("inf")
    debias: bool = True
    rescale_lr: bool = True

    def __post_init__(self) -> None:
        as_count(self.epochs, "epochs")
        as_count(self.batch_size, "batch_size")
        as_count(self.samples, "samples")
        as_positive(self.lr, "lr")
        self.rates  # noqa: B018  # checks the others

    @property
    def rates(self) -> Rates:
        """The settings that `kernel` takes."""
        return Rates.of(vars(self))


@dataclass(frozen=True)
class LocalProblem:
    """ℓ_k/τ + vᵀθ − ½θᵀVθ + ρ_k·(anchor), for some clients k (Eq. 66): everything but the rows.

    The anchor is KL(q‖N(centre, 1/precision)); for point methods ½‖θ − centre‖² in that metric.

    Attributes
    ----------
    start : Tensor, shape (P,)
        Point at which the clients start: the server's mean.
    centre, precision : Tensor, shape (K, P), (1, P) or (1, 1)
    linear, curvature : Tensor, shape (K, P) or (1, 1)
        Site (v_k, V_k).
    rho : Tensor, shape (K, 1)
        Weight of the anchor.
    temperature : float
        τ.
    shared : SharedTerms or None
        Function-space terms over τ (Eq. 17 of Swaroop et al. 2025).
    """

    start: Tensor
    centre: Tensor
    precision: Tensor
    linear: Tensor
    curvature: Tensor
    rho: Tensor
    temperature: float
    shared: SharedTerms | None = None

    def quadratic(self, scale: Tensor) -> tuple[Tensor, Tensor] | None:
        """A's diagonal and b of ½θᵀAθ + bᵀθ, site and anchor for a loss times `scale` = τ/N_k; None in FedAvg."""
        pull = self.rho * self.precision
        stiffness, slope = scale * (pull - self.curvature), scale * (self.linear - pull * self.centre)
        return (stiffness, slope) if bool(stiffness.any()) or bool(slope.any()) else None

    def terms(self, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Algorithm 2's λ = N_k/(ρτ), δ = s_g/λ, v − δm_g and u, for v = (τ/N_k)v_k and u = (τ/N_k)u_k."""
        ess = 1.0 / (self.rho * scale)
        delta = self.precision / ess
        slope = (scale * self.linear).addcmul(delta, self.centre, value=-1.0)
        return ess, delta, slope, scale * self.curvature

    def of(self, chosen: Sequence[int]) -> LocalProblem:
        """Return the problem of some of the clients."""

        def rows(x: Tensor) -> Tensor:
            return x[list(chosen)] if len(x) > 1 else x

        centre, precision, linear, curvature, rho = map(
            rows, (self.centre, self.precision, self.linear, self.curvature, self.rho)
        )
        shared = None if self.shared is None else self.shared.of(chosen)
        return LocalProblem(self.start, centre, precision, linear, curvature, rho, self.temperature, shared)


@dataclass(frozen=True)
class Trained:
    """What local work returns: m_k and, for IVON, s_k and h_k; shapes (K, P), and the buffers of one client."""

    mean: Tensor
    precision: Tensor | None
    hess: Tensor | None
    steps: tuple[int, ...]
    buffers: dict[str, Tensor]

    def put(self, clients: Sequence[int], rows: tuple[Tensor, Tensor | None, Tensor | None]) -> None:
        """Set the rows of some clients."""
        for whole, part in zip((self.mean, self.precision, self.hess), rows, strict=True):
            if whole is not None and part is not None:
                whole[list(clients)] = part
