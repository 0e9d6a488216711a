"""Methods for neural networks beside the core's (`bayesadmm_np.methods`): IVON-ADMM, IVON-PVI, FedLap-Func, FedLaplace.

A core method runs here if it is defined for a diagonal, fixed or isotropic Gaussian, has a proximal client, and moves
its dual along λ. Only the solver of the client's problem differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._validation import Damping, as_count, as_damping, as_positive
from ..families import DiagonalGaussian, ExponentialFamily, FixedPrecisionGaussian, IsotropicGaussian
from ..losses.expectations import Delta
from ..splitting.duals import DualRule
from ..splitting.methods import PVI, FedIvon, Method


@dataclass(frozen=True)
class FunctionalMethod(Method):
    """Method whose clients and server also share predictions at a few inputs; the fields are those of `FedLapFunc`."""

    for_networks = True
    tau: float = 1.0
    points_per_class: int = 1
    server_steps: int = 5000
    server_lr: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        as_positive(self.tau, "tau")
        as_count(self.points_per_class, "points_per_class", minimum=0)
        as_count(self.server_steps, "server_steps")
        as_positive(self.server_lr, "server_lr")


def IVONADMM(rho: float = 1.0, gamma: float = 1.0) -> Method:
    """IVON-ADMM (Algorithm 1): BayesADMM for diagonal Gaussians, the client's problem solved by IVON.

        (m_k, s_k) ← IVON on (1/ρ)(ℓ_k/τ + v_kᵀθ − ½θᵀdiag(u_k)θ) with prior N(m_g, 1/s_g)           lines 4, 5
        v_k ← v_k + γ(s_km_k − s_gm_g),  u_k ← u_k + γ(s_k − s_g)                                    lines 6, 7
        s_g ← (1 − α) mean s_k + α(δ + Σu_k),  s_gm_g ← (1 − α) mean s_km_k + αΣv_k                  lines 10, 11

    with α = 1/(1 + ρK). The dual step is γ, as in Algorithm 1; `BayesADMM(rho, gamma)` has γρ.

    Parameters
    ----------
    rho : float, default 1.0
        ρ > 0.
    gamma : float, default 1.0
        γ > 0.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import IVONADMM
    >>> method = IVONADMM(rho=0.5, gamma=0.1)
    >>> method.dual_step, method.server_alpha(n_clients=2)
    (0.1, 0.5)
    """
    rho, gamma = as_positive(rho, "rho"), as_positive(gamma, "gamma")
    return Method("IVON-ADMM", rho, gamma, families=(DiagonalGaussian,), knobs="raise rho or lower gamma")


def IVONPVI(gamma: Damping = 1.0) -> Method:
    """IVON-PVI (App. G.1): Algorithm 1 with ρ = 1 and α = 1, the dual damped by γ.

        (m_k, s_k) ← IVON on ℓ_k/τ + v_kᵀθ − ½θᵀdiag(u_k)θ with prior N(m_g, 1/s_g)                  lines 4, 5
        v_k ← v_k + γ(s_km_k − s_gm_g),  u_k ← u_k + γ(s_k − s_g)                                    lines 6, 7
        s_g ← δ + Σu_k,  s_gm_g ← Σv_k                                                               lines 10, 11

    Errors and use are as for `IVONADMM`.

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping γ in (0, 1]; or 'rows' for γ_k = N_k/N, as in `bayesadmm_np.methods.FedLap`.
    """
    return replace(PVI(gamma), name="IVON-PVI", families=(DiagonalGaussian,))


def FedLapFunc(
    gamma: Damping = 1.0,
    tau: float = 1.0,
    points_per_class: int = 1,
    server_steps: int = 5000,
    server_lr: float = 1e-3,
) -> FunctionalMethod:
    """FedLap-Func (Swaroop et al. 2025, Eq. 17): FedLap with predictions at a few shared inputs.

        m_k ← argmin ℓ_k(θ) + v_kᵀθ + ½δ‖θ − m_g‖² − Σ_{i∈M_k} τ_iℓ(ŷ_i, θ) + Σ_{k'}Σ_{i∈M_k'} τ_iℓ(ŷ_{i,g}, θ)
        v_k ← v_k + γ_kδ(m_k − m_g)
        m_g ← argmin Σ_kΣ_{i∈M_k} τ_iℓ(ŷ_i, θ) − θᵀΣ_kv_k + ½δ‖θ‖²,  by Adam from the last m_g

    ŷ_i are soft labels at client k's last m_k, and ŷ_{i,g} soft labels at m_g. The weight τ_i = τN_{k,c}/M_{k,c}
    represents the client's rows of class c (App. E). v_k is δ times the paper's, and γ_k the paper's ρ. Temperature
    divides every ℓ. The fixed points are FedLap's; without points so is every round.

    **The inputs leave the site.** A client's first answer contains `points_per_class` random rows of each class with
    τ_i, which shows how many rows the class has. The server passes them on to all other clients. Labels do not leave
    the site; soft labels do, in every round.

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping, in (0, 1], the same for all clients; or 'rows' for γ_k = N_k/N, the paper's (App. E).
    tau : float, default 1.0
        τ, > 0.
    points_per_class : int, default 1
        Number of points, at least 0.
    server_steps : int, default 5000
    server_lr : float, default 1e-3
        Learning rate of the server, > 0.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> from bayesadmm_np.torch import FedLapFunc
    >>> FedLapFunc(gamma=0.1, tau=0.01).points_per_class
    1
    """
    step, share = as_damping(gamma)
    return FunctionalMethod(
        "FedLap-Func",
        1.0,
        step,
        alpha=1.0,
        client_share=share,
        expectation=Delta(1),
        families=(FixedPrecisionGaussian,),
        knobs="lower gamma, tau or server_lr",
        tau=tau,
        points_per_class=points_per_class,
        server_steps=server_steps,
        server_lr=server_lr,
    )


@dataclass(frozen=True)
class LaplaceMethod(Method):
    """Method whose clients leave S_g out of their precision: Laplace's approximation under the run's prior."""

    for_networks = True


def FedLaplace() -> Method:
    """FedLaplace (Liu et al. 2024): FedIvon's server, and Laplace's approximation at the clients.

        m_k ← argmin ℓ_k(θ)/τ + ½‖θ − m_g‖²_{s_g},   s_k = δ + diag GGN_k(m_k)/τ,   λ_g ← Σ_k (N_k/N) λ_k

    In Eq. 15 s_k is s_g + diag GGN_k(m_k)/τ, under which s_g grows in every round: that is
    `replace(methods.FedIvon(), expectation=Delta(2))`.

    Examples
    --------
    >>> from bayesadmm_np.torch import FedLaplace
    >>> FedLaplace().expectation
    Delta(order=2)
    """
    return LaplaceMethod(**vars(replace(FedIvon(), name="FedLaplace", expectation=Delta(2))))


@dataclass(frozen=True)
class PersonalMethod(Method):
    """Method whose clients keep a second model that is not sent; `work` is its type of `PersonalSteps`."""

    for_networks = True
    work: type[Any] = object

    def server(self, linear: Tensor, precision: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return m_g and s_g from a round's answers (s_km_k, s_k); None for Eq. 54."""
        return None


def family_of(method: Method) -> type[ExponentialFamily]:
    """Return the Gaussian family of a method for networks; ValueError where there is none."""
    if not (method.client == "proximal" and method.dual_rule.reads_natural and _moves_tensors(method.dual_rule)):
        raise ValueError(f"method must have a proximal client and a dual along λ for networks, got {method.name}.")
    for family in (DiagonalGaussian, FixedPrecisionGaussian, IsotropicGaussian):
        if not method.families or family in method.families:
            return family
    raise ValueError(f"method must be defined for diagonal, fixed or isotropic Gaussians, got {method.name}.")


def _moves_tensors(rule: DualRule) -> bool:
    """Return whether the rule uses no more than +, − and ×, as far as three numbers show."""
    try:
        return isinstance(rule(*torch.ones(4, 1)), torch.Tensor)
    except (AttributeError, TypeError):
        return False
