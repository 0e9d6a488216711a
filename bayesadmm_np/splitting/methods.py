"""Every method as an entry of one table, and the recommended method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from .._errors import ArgumentError
from .._registry import Registry
from .._validation import ONE, Damping, as_damping, as_fraction, as_number, as_positive, left_out
from ..families import (
    BlockDiagonalGaussian,
    DiagonalGaussian,
    ExponentialFamily,
    FixedPrecisionGaussian,
    FullGaussian,
    IsotropicGaussian,
)
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.expectations import Delta
from ..losses.sketches import Full
from ..losses.tensors import tensor_size
from .accelerated import Accelerated
from .duals import DUAL_RULES, SCHEDULES, AlongExpectation, AlongNatural, DualRule, Geometric, Schedule
from .guarded import Guarded
from .line import MOST_NUMBERS
from .method import Method, NetworkMethod
from .newton import JointNewton, Newton
from .sketched import Sketched
from .step import Step

__all__ = [
    "ADMM",
    "AMA",
    "BCM",
    "BLR",
    "DUAL_RULES",
    "PVI",
    "SCHEDULES",
    "TABLE",
    "AlongExpectation",
    "AlongNatural",
    "BayesADMM",
    "BregmanADMM",
    "DualRule",
    "FedAvg",
    "FedDyn",
    "FedIvon",
    "FedLap",
    "FedLapCov",
    "FedProx",
    "Geometric",
    "JointNewton",
    "Method",
    "Newton",
    "PreconditionedADMM",
    "Schedule",
    "recommended",
]


TABLE: Registry[Callable[..., Method | Step]] = Registry("method")
"""Every method by name. To add a method, write one function that returns a `Method` and register it here."""


@TABLE.register
def BayesADMM(rho: float = ONE, gamma: float = ONE) -> Method:
    """Bayesian-ADMM (Eq. 15–17): any family, dual along λ with step γρ, α = 1/(1 + ρK).

    Parameters
    ----------
    rho : float, default 1.0
        ρ > 0. Small values let clients move far; ρ = 1/K solves conjugate problems in one round (Prop. D.1). Networks
        take what is left out from their clients.
    gamma : float, default 1.0
        γ in (0, 1]; scales the dual step (Algorithm 1 writes γ for our γρ). Duals are natural gradients for γ = 1.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> BayesADMM(rho=0.5).server_alpha(n_clients=2)
    0.5
    """
    unset, rho = left_out(rho=rho, gamma=gamma), as_positive(rho, "rho")
    step = as_fraction(gamma, "gamma") * rho
    return Method("BayesADMM", rho, step, knobs="raise rho or lower gamma", unset=unset)


@TABLE.register
def ADMM(rho: float = ONE) -> Method:
    """Federated ADMM (Eq. 5–7): the isotropic family under the delta method, where λ = μ = m.

    Parameters
    ----------
    rho : float, default 1.0
        ρ in ½ρ‖θ − θ_g‖² (squared). Networks take the default from their rows.

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> ADMM(rho=2.0).dual_step
    2.0
    """
    return replace(_point("ADMM", as_positive(rho, "rho"), IsotropicGaussian), unset=left_out(rho=rho))


@TABLE.register
def PreconditionedADMM(rho: float = 1.0) -> Method:
    """ADMM with the proximal term ½ρ‖θ − θ_g‖²_S: a fixed precision S under the delta method (Table 3, row 2).

    Parameters
    ----------
    rho : float, default 1.0

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> PreconditionedADMM().name
    'PreconditionedADMM'
    """
    return _point("PreconditionedADMM", as_positive(rho, "rho"), FixedPrecisionGaussian)


def _point(name: str, rho: float, family: type[ExponentialFamily]) -> Method:
    return Method(name, rho, rho, expectation=Delta(1), families=(family,))


@TABLE.register
def BregmanADMM(rho: float = 1.0, gamma: float = 1.0, statistic_scale: float = 2.0) -> Method:
    """Bregman ADMM (Wang & Banerjee 2014; App. C.2): BayesADMM with η_k ← η_k + γρ(μ_k − μ_g).

    Parameters
    ----------
    rho, gamma : float, default 1.0
    statistic_scale : float, default 2.0
        Scale of T, on which the step in V depends: 2 for the papers' (θ, θθᵀ), 1 for (θ, −½θθᵀ).

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> BregmanADMM().dual_rule
    AlongExpectation(statistic_scale=2.0)
    """
    rule, knobs = AlongExpectation(statistic_scale), "lower gamma or raise rho"
    return replace(BayesADMM(rho, gamma), name="BregmanADMM", dual_rule=rule, knobs=knobs)


@TABLE.register
def AMA(rho: float = 1.0) -> Method:
    """Alternating minimisation (Tseng 1991; Eq. 39–41 lifted to distributions): BayesADMM with α = 1.

    Parameters
    ----------
    rho : float, default 1.0

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> AMA(rho=2.0).server_alpha(n_clients=5)
    1.0
    """
    rho = as_positive(rho, "rho")
    return Method("AMA", rho, rho, alpha=1.0, knobs="change rho, or take damped PVI")


@TABLE.register
def PVI(gamma: Damping = ONE) -> Method:
    """Partitioned variational inference (Ashman et al. 2022; Eq. 36–38), damped when γ < 1 (Eq. 42).

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping γ in (0, 1], in the papers 1/K; or 'rows' for γ_k = N_k/N, as in `FedLap`. The default of networks
        is 1/K.

    Raises
    ------
    ValueError
        When `gamma` is neither in (0, 1] nor 'rows'.

    Examples
    --------
    >>> PVI(gamma=0.2).name
    'damped PVI'
    """
    step, share = as_damping(gamma)
    name = "PVI" if gamma == 1.0 else "damped PVI"
    knobs = "lower gamma or wrap the method in Guarded"
    return Method(name, 1.0, step, alpha=1.0, client_share=share, knobs=knobs, unset=left_out(gamma=gamma))


@TABLE.register
def FedLap(gamma: Damping = ONE) -> Method:
    """FedLap (Swaroop et al. 2025, Eq. 9): PVI with a fixed precision δI and the delta method.

        m_k ← argmin ℓ_k(θ) + v_kᵀθ + ½δ‖θ − m_g‖²,  v_k ← v_k + γ_kδ(m_k − m_g),  m_g ← Σ_kv_k/δ

    with a prior mean of zero; the paper's v_k is ours over δ, and its ρ our γ_k.

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping in (0, 1]; or 'rows' for γ_k = N_k/N (App. E), which sum to one. The default of networks is 1/K.

    Examples
    --------
    >>> FedLap(gamma="rows").client_share
    'dual'
    """
    return replace(PVI(gamma), name="FedLap", expectation=Delta(1), families=(FixedPrecisionGaussian,))


@TABLE.register
def FedLapCov(gamma: Damping = ONE) -> Method:
    """FedLap-Cov (Swaroop et al. 2025, Eq. 12): PVI with Laplace's approximation, V_k ← (1 − γ_k)V_k + γ_k∇²ℓ_k(m_k).

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping in (0, 1], in the paper and the default of networks 1/K; or 'rows' for γ_k = N_k/N.

    Examples
    --------
    >>> FedLapCov().expectation
    Delta(order=2)
    """
    learned = FullGaussian, DiagonalGaussian, BlockDiagonalGaussian
    return replace(PVI(gamma), name="FedLapCov", expectation=Delta(2), families=learned)


@TABLE.register
def FedAvg(shares: Literal["rows", "equal"] = "rows") -> Method:
    """FedAvg (McMahan et al. 2016): clients fit alone, with their share of the regulariser, and are averaged.

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖²,    θ_g ← Σ_k (N_k/N) θ_k

    With exact solves nothing changes after round 1; `solver=GradientSteps(...)` gives the usual local work.

    Parameters
    ----------
    shares : {'rows', 'equal'}
        Weights of the mean: N_k/N, or 1/K.

    Examples
    --------
    >>> FedAvg().rho
    0.0
    """
    knobs = "take fewer or smaller local steps"
    return _averaging("FedAvg", 0.0, alpha=0.0, server_share=_shares(shares), knobs=knobs)


@TABLE.register
def FedProx(rho: float = ONE) -> Method:
    """FedProx (Li et al. 2020): FedAvg with ½ρ‖θ − θ_g‖² (squared) at each client; no dual.

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖² + ½ρ‖θ − θ_g‖²,    θ_g ← Σ_k (N_k/N) θ_k

    Parameters
    ----------
    rho : float, default 1.0
        ρ of a sum over rows: N_k times that of a mean. Networks take the default from their rows.

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> FedProx(rho=0.1).dual_step
    0.0
    """
    return _averaging("FedProx", as_positive(rho, "rho"), alpha=0.0, unset=left_out(rho=rho))


@TABLE.register
def FedDyn(rho: float = ONE, shares: Literal["rows", "equal"] = "rows") -> Method:
    """FedDyn (Acar et al. 2021): ADMM with ρ_k ∝ N_k, the regulariser at the clients, and a server history.

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖² + v_kᵀθ + ½ρ_k‖θ − θ_g‖²,    v_k ← v_k + ρ_k(θ_k − θ_g)

    and the server takes mean_k λ_k + h/(ρK), with the history h = Σ_kη_k. The losses are sums over rows: α_k = ρ_k/N_k
    of the original, and of Swaroop et al. 2025 (Eq. 2), is one number for all clients.

    Parameters
    ----------
    rho : float, default 1.0
        Mean of the clients' ρ_k = ρ K N_k/N. Networks take the default from their rows.
    shares : {'rows', 'equal'}
        With 'equal' ρ_k = ρ for all, and the server's mean is a plain one, as Swaroop et al. 2025 ran it.

    Raises
    ------
    ValueError
        When `rho` is not positive, or `shares` is neither.

    Examples
    --------
    >>> FedDyn().prior_at
    'clients'
    """
    unset, rho, own = left_out(rho=rho), as_positive(rho, "rho"), _shares(shares)
    return _averaging("FedDyn", rho, dual_step=rho, client_share=own, server_share=own, unset=unset)


def _shares(shares: Literal["rows", "equal"]) -> Literal["rows", "equal"]:
    if shares not in ("rows", "equal"):
        raise ValueError(f"shares must be 'rows' or 'equal', got {shares!r}.")
    return shares


def _averaging(name: str, rho: float, dual_step: float = 0.0, **others: Any) -> Method:
    """Return a point method with the regulariser at the clients; the server averages who is present."""
    by_rows: Any = {"prior_at": "clients", "server_share": "rows", "mean_over": "present", **others}
    return Method(name, rho, dual_step, expectation=Delta(1), families=(IsotropicGaussian,), **by_rows)


@TABLE.register
def FedIvon(
    prior: Literal["server", "start"] = "server",
    beta: float = 1.0,
    average: Literal["precision", "hessian"] = "precision",
) -> Method:
    """FedIvon (Pal et al. 2024): no dual; the clients' posteriors are averaged by rows.

        q_k ← argmin E_q[ℓ_k] + β KL(q‖q_g)     (Eq. 8), or with prior='start'     E_q[ℓ_k] + KL(q‖prior)
        λ_g ← Σ_k (N_k/N) λ_k                                                                       (Eq. 6, 7)

    The paper has both: under Eq. 8 s_g grows in every round; the clients of Algorithm 1 have the prior of the run and
    begin at q_g, which exact clients do not notice. No fixed point is the pooled solution (docs/deep_methods.md).

    Parameters
    ----------
    prior : {'server', 'start'}
        The clients' prior: the server's posterior, or that of the run. With networks take
        `IVONSteps(hess_start="server")` for the latter.
    beta : float, default 1.0
        β >= 0, the weight of the server's posterior; only for prior='server'. With β = 0 clients only start at q_g:
        they have no prior, and s_k = λh_k. Networks alone have β = 0, with `IVONSteps(ess=λ)`.
    average : {'precision', 'hessian'}
        Weights of the clients' means at the server: s_k (Eq. 7), or h_k (Algorithm 2, lines 9 to 12), which are
        s_k less the prior's precision; s_g is the mean of s_k in both. Networks alone have 'hessian', with
        prior='start' and `IVONSteps(ess=λ)`. A server with Σ_k N_kh_k <= 0 somewhere ends the run.

    Raises
    ------
    ValueError
        When an argument is out of range, or arguments do not fit each other.

    Examples
    --------
    >>> FedIvon(beta=0.5).rho, FedIvon(prior="start").prior_at
    (0.5, 'each')
    """
    if prior not in ("server", "start"):
        raise ArgumentError("prior", "must be 'server' or 'start'", repr(prior))
    if average not in ("precision", "hessian") or (average == "hessian" and prior == "server"):
        raise ArgumentError("average", "must be 'precision', or with prior='start' also 'hessian'", repr(average))
    by_rows: Any = {"alpha": 0.0, "server_share": "rows", "mean_over": "present", "families": (DiagonalGaussian,)}
    by_rows["knobs"] = "scale the data"
    beta = as_number(beta, "beta")
    if prior == "server":
        if beta == 0:
            return NetworkMethod("FedIvon", 0.0, 0.0, prior_at="nowhere", **by_rows)
        return Method("FedIvon", as_positive(beta, "beta"), 0.0, **by_rows)
    if beta != 1.0:
        raise ArgumentError("beta", "must be 1.0 for prior='start', which has no KL to the server", repr(beta))
    by_rows["prior_at"] = "each"
    if average == "hessian":
        by_rows["knobs"] = "give clients more rows or steps, or take average='precision'"
        return NetworkMethod("FedIvon", 0.0, 0.0, average="hessian", **by_rows)
    return Method("FedIvon", 0.0, 0.0, **by_rows)


@TABLE.register
def BCM() -> Method:
    """Bayesian committee machine (Tresp 2000): PVI stopped after its first round; one shot.

    Examples
    --------
    >>> BCM().max_rounds
    1
    """
    return Method("BCM", 1.0, 1.0, alpha=1.0, max_rounds=1, knobs="use PVI with gamma < 1")


@TABLE.register
def BLR(learning_rate: float = 0.5) -> Method:
    """Bayesian learning rule (Khan & Rue 2023, Eq. 6): λ_g ← (1 − α)λ_g + α[η_0 − Σ_k ∇_μ E_{q_g}[ℓ_k]].

    Clients only evaluate natural gradients at the server: Prop. C.1's limit of BayesADMM.

    Parameters
    ----------
    learning_rate : float, default 0.5
        α in (0, 1].

    Raises
    ------
    ValueError
        When `learning_rate` is outside (0, 1].

    Examples
    --------
    >>> BLR(learning_rate=0.1).alpha
    0.1
    """
    alpha = as_fraction(learning_rate, "learning_rate")
    return Method("BLR", 1.0, 1.0, alpha=alpha, client="gradient", knobs="lower learning_rate")


TABLE.register(Newton)
TABLE.register(JointNewton)


MOST_WORK = 1e8
"""Products of rows and numbers of their tensors up to which clients make these: some 50 ms a round on one core."""


def recommended(prior: ExponentialFamily, clients: Sequence[Loss] | None = None) -> Method | Step:
    """Return the method that docs/choosing.md recommends for the posterior of these clients under this prior.

    In one process `JointNewton`, with tensors if rows are few; above some 360 parameters, or for losses that are not
    convex, accelerated PVI. Between sites sketched PVI for a small diagonal covariance, otherwise accelerated PVI. For
    convex losses the method is guarded (docs/guarantee.md).

    Parameters
    ----------
    prior : ExponentialFamily
        Its type is the family.
    clients : sequence of Loss, optional
        Left out for a run between sites, whose losses are elsewhere.

    Raises
    ------
    ValueError
        When `prior` is no family, or `clients` no losses.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> clients = [ba.losses.Logistic(np.eye(3), np.array([0, 1, 1]))]
    >>> prior = ba.families.DiagonalGaussian(np.zeros(3), 1.0)
    >>> ba.methods.recommended(prior, clients)
    Guarded(method=JointNewton(start='sites', tensors=True))
    """
    if not isinstance(prior, ExponentialFamily):
        raise ArgumentError(
            "prior", "must be a member of bayesadmm_np.families, such as FullGaussian(...)", repr(prior)
        )
    if clients is not None and not (isinstance(clients, Sequence) and clients):
        raise ArgumentError("clients", "must be a sequence of losses, one a client", type(clients).__name__)
    if not isinstance(prior, Gaussian):  # of a conjugate family one round of PVI is exact
        return PVI()
    dim, is_diagonal = prior.dim, isinstance(prior, DiagonalGaussian)
    accelerated = Accelerated(PVI(gamma=1.0 if isinstance(prior, FullGaussian) else 0.4))
    if clients is None:
        is_kept = is_diagonal and dim * (dim - 1) // 2 <= MOST_NUMBERS
        return Guarded(Sketched(PVI(), Full()) if is_kept else accelerated)
    if not all(loss.is_convex for loss in clients):
        return accelerated
    if dim * (dim + 1) // 2 > MOST_NUMBERS:
        return Guarded(accelerated)
    numbers = tensor_size(prior, max(loss.n_outputs for loss in clients))
    work = numbers * sum(loss.n_rows for loss in clients)
    has_tensors = all(loss.has_tensors for loss in clients) and numbers <= MOST_NUMBERS and work <= MOST_WORK
    return Guarded(JointNewton("sites" if prior.learns_precision else "prior", tensors=has_tensors))
