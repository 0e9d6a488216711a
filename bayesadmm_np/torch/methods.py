"""Methods for neural networks beside the core's (`bayesadmm_np.methods`): IVON-ADMM, IVON-PVI, FedLap-Func, FedLaplace.

A core method runs here if it is defined for a diagonal, fixed or isotropic Gaussian, has a proximal client, and moves
its dual along λ. Only the solver of the client's problem differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._validation import ONE, Damping, as_count, as_positive, left_out
from ..families import DiagonalGaussian, ExponentialFamily, FixedPrecisionGaussian, IsotropicGaussian
from ..losses.expectations import Delta
from ..splitting.duals import DualRule
from ..splitting.methods import PVI, FedIvon, FedLap, Method

IVON_ADMM = "IVON-ADMM"
"""Name of the method whose dual step is γ itself, and not γρ."""
ABOVE_SHARE = 2.0
"""ρ of a variational method over the largest client's share of the rows; at 1 nothing keeps that client near m_g."""
STIFFNESS = 0.03
"""ρ of a point method a row of the mean client: the weight of ½‖θ − m_g‖² beside a mean loss."""


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


def IVONADMM(rho: float = ONE, gamma: float = ONE) -> Method:
    """IVON-ADMM (Algorithm 1): BayesADMM for diagonal Gaussians, the client's problem solved by IVON.

        (m_k, s_k) ← IVON on (1/ρ)(ℓ_k/τ + v_kᵀθ − ½θᵀdiag(u_k)θ) with prior N(m_g, 1/s_g)           lines 4, 5
        v_k ← v_k + γ(s_km_k − s_gm_g),  u_k ← u_k + γ(s_k − s_g)                                    lines 6, 7
        s_g ← (1 − α) mean s_k + α(δ + Σu_k),  s_gm_g ← (1 − α) mean s_km_k + αΣv_k                  lines 10, 11

    with α = 1/(1 + ρK). The dual step is γ, as in Algorithm 1; `BayesADMM(rho, gamma)` has γρ.

    Parameters
    ----------
    rho : float, optional
        ρ > 0; default: twice the largest client's share of the rows.
    gamma : float, optional
        γ > 0; default 1/K.

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
    unset = left_out(rho=rho, gamma=gamma)
    rho, gamma, knobs = as_positive(rho, "rho"), as_positive(gamma, "gamma"), "raise rho or lower gamma"
    return Method(IVON_ADMM, rho, gamma, families=(DiagonalGaussian,), knobs=knobs, unset=unset)


def IVONPVI(gamma: Damping = ONE) -> Method:
    """IVON-PVI (App. G.1): Algorithm 1 as in `IVONADMM` with ρ = 1 and α = 1, the dual damped by γ.

    Errors and use are as for `IVONADMM`.

    Parameters
    ----------
    gamma : float or 'rows', optional
        Damping γ in (0, 1], default 1/K; or 'rows' for γ_k = N_k/N, as in `bayesadmm_np.methods.FedLap`.
    """
    return replace(PVI(gamma), name="IVON-PVI", families=(DiagonalGaussian,))


def FedLapFunc(
    gamma: Damping = ONE, tau: float = 1.0, points_per_class: int = 1, server_steps: int = 5000, server_lr: float = 1e-3
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
    gamma : float or 'rows', optional
        Damping, in (0, 1], the same for all clients, default 1/K; or 'rows' for γ_k = N_k/N, the paper's (App. E).
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
    base = replace(FedLap(gamma), name="FedLap-Func", knobs="lower gamma, tau or server_lr")
    own: dict[str, Any] = {"tau": tau, "points_per_class": points_per_class, "server_steps": server_steps}
    return FunctionalMethod(**vars(base), **own, server_lr=server_lr)


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


def for_clients(method: Method, sizes: Sequence[float], temperature: float = 1.0) -> Method:
    """Return the method with the arguments that were left out, from the clients' N_k.

        variational     ρ = 2 max N_k/N,  γ = 1/K, of `BayesADMM` γρ = 1/K
        α = 1           γ = 1/K
        isotropic       ρ = 0.03 N/(Kτ), also the dual step

    With ρ above every N_k/N, and γ at most 1/K, ρs_g − u_k is positive (docs/deep_methods.md); with α = 1 the server
    then moves by the mean of the clients' moves. The losses of point methods are sums, so that their ρ grows with rows.
    """
    if not method.unset:
        return method
    rho, step = method.rho, method.dual_step
    replaced = {"rho": rho != ONE, "gamma": step not in (ONE, rho)}  # since it was left out: then it is given
    unset = [name for name in method.unset if not replaced[name]]
    if "rho" in unset:
        is_point = IsotropicGaussian in method.families
        rho = STIFFNESS * sum(sizes) / (len(sizes) * temperature) if is_point else ABOVE_SHARE * max(sizes) / sum(sizes)
        step *= 1.0 if method.name == IVON_ADMM else rho
    if "gamma" in unset:
        step = min(1.0 / len(sizes), rho)
    return replace(method, rho=rho, dual_step=step, unset=())


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
