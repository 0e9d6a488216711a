"""Every method as a row of one table; the loop that runs them all is in `loop.py`.

A round of any row is

    client   λ_k ← argmin E_q[ℓ_k] + ⟨η_k, μ⟩ + ρ_k KL(q‖q_g)                         Eq. 15
    dual     η_k ← η_k + step · (λ_k − λ_g)   or   step · (μ_k − μ_g)                 Eq. 16
    gather   λ_g ← [(1 − α) mean_k λ_k + α (η_0 + Σ_k η_k)] / (1 − α + αw)            Eq. 54

with w = 1 for every family that contains its prior (w = δ for the isotropic family under a N(·, I/δ) prior), and with
η_0 and w replaced by zero when the prior sits at the clients. A row says what ρ, step, α and the expectation are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from .._errors import ArgumentError
from .._registry import Registry
from .._validation import Damping, as_damping, as_fraction, as_positive
from ..families import (
    BlockDiagonalGaussian,
    DiagonalGaussian,
    ExponentialFamily,
    FixedPrecisionGaussian,
    FullGaussian,
    IsotropicGaussian,
)
from ..losses.expectations import Delta, Rule
from ..losses.sketches import Sketch
from .duals import DUAL_RULES, SCHEDULES, AlongExpectation, AlongNatural, DualRule, Geometric, Schedule

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


@dataclass(frozen=True)
class Method:
    """A row of the table.

    Attributes
    ----------
    name : str
    rho : float
        Weight of the client's KL term to the server; 0 only where the prior sits at the clients.
    dual_step : float
        Step of the dual; 0 means that there is no dual.
    alpha : float or None
        Server's step; None means 1/(1 + ρK).
    dual_rule : DualRule
        Rule by which the dual moves; `AlongExpectation` is Wang & Banerjee's choice.
    client : {"proximal", "gradient", "joint", "own"}
        Whether a client solves Eq. 15, only evaluates its natural gradient at the server, with it the tensors of third
        and fourth derivatives, or fits alone.
    prior_at : {"server", "clients", "each"}
        Place where the regulariser is added; clients get the share N_k/N of it, or with 'each' all of it.
    client_share : {"equal", "rows", "dual"}
        Scalars proportional to a client's rows N_k: none; ρ_k = ρKN_k/N, and with it the dual step; or the dual step
        alone, which is then `dual_step` times N_k/N.
    server_share : {"equal", "rows"}
        Whether the weights of the mean at the server are equal or N_k/N.
    mean_over : {"all", "present"}
        Whether the server's mean keeps the last λ_k of clients that are absent from a round.
    expectation : Rule or None
        The method's own rule; None where every rule is allowed.
    families : tuple of type
        Families that the row is defined for; empty where every family is allowed.
    max_rounds : int or None
    knobs : str
        Advice when a run of this row fails: the parameters to change.
    schedule : Schedule or None
        Values of `rho`, `dual_step` and `alpha` in each round; None where they stay as they are.
    start : {"prior", "sites"}
        Whether round 1 is like the others, or the sites' own fits (`bayesadmm_np.clients.own_fits`), which replace it.
    guarded : bool
        Whether the server takes back a step that increases the pooled objective; see `bayesadmm_np.Guarded`.
    sites : Sketch or None
        What sites keep of their curvature beside the family's part; see `bayesadmm_np.Sketched`.

    Raises
    ------
    ValueError
        When `dual_rule`, `schedule`, `client_share`, `rho` or `alpha` is out of range, or when the row can neither
        start at the sites' own fits nor be guarded, or keeps no sketches.

    Examples
    --------
    >>> Method("HalfwayADMM", rho=2.0, dual_step=2.0, alpha=0.5).server_alpha(n_clients=3)
    0.5
    """

    for_networks: ClassVar[bool] = False
    """Whether clients need inputs to predict at, which the core's losses have not."""
    name: str
    rho: float
    dual_step: float
    alpha: float | None = None
    dual_rule: DualRule = field(default_factory=AlongNatural)
    client: Literal["proximal", "gradient", "joint", "own"] = "proximal"
    prior_at: Literal["server", "clients", "each"] = "server"
    client_share: Literal["equal", "rows", "dual"] = "equal"
    server_share: Literal["equal", "rows"] = "equal"
    mean_over: Literal["all", "present"] = "all"
    expectation: Rule | None = None
    families: tuple[type[ExponentialFamily], ...] = ()
    max_rounds: int | None = None
    knobs: str = "raise rho"
    schedule: Schedule | None = None
    start: Literal["prior", "sites"] = "prior"
    guarded: bool = False
    sites: Sketch | None = None

    def __post_init__(self) -> None:
        at_clients = self.prior_at != "server"
        if not isinstance(self.dual_rule, DualRule):
            raise ArgumentError("dual_rule", "must be a rule such as AlongNatural()", repr(self.dual_rule))
        if not isinstance(self.schedule, Schedule | None):
            raise ArgumentError("schedule", "must be a schedule such as Geometric(), or None", repr(self.schedule))
        if self.client_share not in ("equal", "rows", "dual"):
            raise ArgumentError("client_share", "must be 'equal', 'rows' or 'dual'", repr(self.client_share))
        if self.rho < 0 or (self.rho == 0 and (self.dual_step or not at_clients)):
            raise ArgumentError(
                "rho", "must be > 0 (0 only without a dual and with the prior at the clients)", self.rho
            )
        if self.alpha is not None and not 0 <= self.alpha <= (0.0 if at_clients else 1.0):
            raise ArgumentError(
                "alpha", "must lie in [0, 1], or be 0 or None where the prior is at the clients", self.alpha
            )
        if self.start not in ("prior", "sites"):
            raise ArgumentError("start", "must be 'prior' or 'sites'", repr(self.start))
        if self.start == "sites" and (at_clients or not self.dual_step):
            raise ArgumentError("start", f"must be 'prior' for {self.name}: its server adds no sites to the prior")
        if self.is_joint and not (self.expectation is None and self.alpha == 1.0 and self.schedule is None):
            raise ArgumentError(
                "client", f"must not be 'joint' for {self.name}: alpha must be 1, with no rule of its own"
            )
        solves = self.client == "proximal" and self.dual_step > 0 and self.dual_rule.reads_natural
        can_fall = solves and self.expectation != Delta(2) and self.max_rounds is None
        if self.guarded and (
            self.prior_at != "server" or not (can_fall or (self.client != "proximal" and self.alpha == 1))
        ):
            expected = "must be Newton(), JointNewton(), BLR(1.0), or a row whose dual moves along λ, such as PVI()"
            raise ArgumentError("method", expected, self.name)
        if self.sites is not None and (reason := self._without_sketches):
            raise ArgumentError("sites", f"must be 'family' for {self.name}: {reason}", repr(self.sites))

    @property
    def _without_sketches(self) -> str:
        """Why the sites of this row cannot keep sketches; '' where they can."""
        whole = self.rho == self.dual_step == 1.0 and self.client_share == "equal"
        if self.prior_at != "server" or not self.dual_step:
            return "its server adds no sites to the prior"
        if self.is_newton or self.is_joint:
            return "its step takes the curvature of a FullGaussian"
        if self.alpha != 1.0:
            return "its server takes a mean of the sites' posteriors, which are diagonal"
        if not (whole and isinstance(self.dual_rule, AlongNatural) and self.schedule is None):
            return "a site would be a mixture of two sketches, which is none; take rho = gamma = 1, as in PVI()"
        return "its sites begin with fits of their own" if self.start == "sites" else ""

    @property
    def is_newton(self) -> bool:
        """Whether a round is Newton's step for the pooled mode: λ_g follows from g_k and H_k at the last m_g alone."""
        at_mean = self.client == "gradient" and self.expectation == Delta(2)
        return at_mean and self.alpha == 1.0 and self.prior_at == "server"

    @property
    def is_joint(self) -> bool:
        """Whether a round is the joint Newton step in mean and covariance of `bayesadmm_np.splitting.joint`."""
        return self.client == "joint"

    @staticmethod
    def read(method: object) -> Method:
        """Return `method`, or say in a ValueError that it is not a row (or only the function that makes one)."""
        if isinstance(method, Method):
            return method
        name = getattr(method, "__name__", "")
        if callable(method) and name in TABLE:
            raise ArgumentError("method", f"must be a row of bayesadmm_np.methods: call the function, methods.{name}()")
        raise ArgumentError("method", "must be a row of bayesadmm_np.methods", repr(method))

    def at(self, round: int) -> Method:
        """Return the row of a round, from 1; a schedule may change `rho`, `alpha` and a positive `dual_step`."""
        if self.start == "sites" and round == 1:
            return replace(self, client="own", alpha=1.0, guarded=False)
        if self.schedule is None:
            return self
        row = self.schedule.row(self, round)
        same = isinstance(row, Method) and bool(row.dual_step) == bool(self.dual_step)
        if not same or replace(row, rho=self.rho, dual_step=self.dual_step, alpha=self.alpha) != self:
            raise ValueError(
                f"{self.schedule!r} may change rho, a positive dual_step and alpha of {self.name} alone, "
                f"got {row!r} for round {round}."
            )
        return row

    def server_alpha(self, n_clients: int) -> float:
        """Return α for K clients."""
        return 1.0 / (1.0 + self.rho * n_clients) if self.alpha is None else self.alpha


recommended: Callable[..., Any]
"""The method to take where nobody chose one; it is made in `choice.py`, which wraps rows, and put here by the face."""

TABLE: Registry[Callable[..., Method]] = Registry("method")
"""Every row by name. To add a method, write one function that returns a `Method` and register it here."""


@TABLE.register
def BayesADMM(rho: float = 1.0, gamma: float = 1.0) -> Method:
    """Bayesian-ADMM (Eq. 15–17): any family, dual along λ with step γρ, α = 1/(1 + ρK).

    Parameters
    ----------
    rho : float, default 1.0
        ρ > 0. Small values let clients move far; ρ = 1/K solves conjugate problems in one round (Prop. D.1).
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
    rho = as_positive(rho, "rho")
    return Method("BayesADMM", rho, as_fraction(gamma, "gamma") * rho, knobs="raise rho or lower gamma")


@TABLE.register
def ADMM(rho: float = 1.0) -> Method:
    """Federated ADMM (Eq. 5–7): the isotropic family under the delta method, where λ = μ = m.

    Parameters
    ----------
    rho : float, default 1.0
        ρ > 0, in ½ρ‖θ − θ_g‖² (squared).

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> ADMM(rho=2.0).dual_step
    2.0
    """
    rho = as_positive(rho, "rho")
    return Method("ADMM", rho, rho, expectation=Delta(1), families=(IsotropicGaussian,))


@TABLE.register
def PreconditionedADMM(rho: float = 1.0) -> Method:
    """ADMM with the proximal term ½ρ‖θ − θ_g‖²_S: a fixed precision S under the delta method (Table 3, row 2).

    Parameters
    ----------
    rho : float, default 1.0
        ρ > 0.

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> PreconditionedADMM().name
    'PreconditionedADMM'
    """
    rho = as_positive(rho, "rho")
    return Method("PreconditionedADMM", rho, rho, expectation=Delta(1), families=(FixedPrecisionGaussian,))


@TABLE.register
def BregmanADMM(rho: float = 1.0, gamma: float = 1.0, statistic_scale: float = 2.0) -> Method:
    """Bregman ADMM (Wang & Banerjee 2014): as BayesADMM, but the dual moves along μ (App. C.2).

    η_k ← η_k + γρ(μ_k − μ_g) depends on how T is scaled: with T = (θ, θθᵀ) (`statistic_scale=2`, the papers' choice)
    V ← V − 2γρ(M_k − M_g) for second moments M; with T = (θ, −½θθᵀ) (`statistic_scale=1`) a quarter of it.

    Parameters
    ----------
    rho : float, default 1.0
    gamma : float, default 1.0
    statistic_scale : float, default 2.0

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> BregmanADMM().dual_rule
    AlongExpectation(statistic_scale=2.0)
    """
    rho = as_positive(rho, "rho")
    rule = AlongExpectation(statistic_scale)
    return Method(
        "BregmanADMM", rho, as_fraction(gamma, "gamma") * rho, dual_rule=rule, knobs="lower gamma or raise rho"
    )


@TABLE.register
def AMA(rho: float = 1.0) -> Method:
    """Alternating minimisation (Tseng 1991; Eq. 39–41 lifted to distributions): BayesADMM without the server's prox.

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
def PVI(gamma: Damping = 1.0) -> Method:
    """Partitioned variational inference (Ashman et al. 2022; Eq. 36–38), damped when γ < 1 (Eq. 42).

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping γ in (0, 1], in the papers 1/K; or 'rows' for γ_k = N_k/N, as in `FedLap`.

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
    return Method(name, 1.0, step, alpha=1.0, client_share=share, knobs=knobs)


@TABLE.register
def FedLap(gamma: Damping = 1.0) -> Method:
    """FedLap (Swaroop et al. 2025, Eq. 9): PVI with a fixed precision δI and the delta method.

        m_k ← argmin ℓ_k(θ) + v_kᵀθ + ½δ‖θ − m_g‖²,  v_k ← v_k + γ_kδ(m_k − m_g),  m_g ← Σ_kv_k/δ

    with a prior mean of zero; the paper's v_k is ours over δ, and its ρ our γ_k.

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping, in (0, 1], the same for all clients; or 'rows' for γ_k = N_k/N (App. E), which sum to one.

    Raises
    ------
    ValueError
        When `gamma` is neither in (0, 1] nor 'rows'.

    Examples
    --------
    >>> FedLap(gamma=0.5).dual_step
    0.5
    >>> FedLap(gamma="rows").client_share
    'dual'
    """
    return replace(PVI(gamma), name="FedLap", expectation=Delta(1), families=(FixedPrecisionGaussian,))


@TABLE.register
def FedLapCov(gamma: Damping = 1.0) -> Method:
    """FedLap-Cov (Swaroop et al. 2025, Eq. 12): PVI with Laplace's approximation, V_k ← (1 − γ_k)V_k + γ_k∇²ℓ_k(m_k).

    Parameters
    ----------
    gamma : float or 'rows', default 1.0
        Damping, in (0, 1], in the paper 1/K; or 'rows' for γ_k = N_k/N, as in `FedLap`.

    Raises
    ------
    ValueError
        When `gamma` is neither in (0, 1] nor 'rows'.

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

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖²,    θ_g ← Σ_k (N_k/N) θ_k,

    which is Eq. 2 of Swaroop et al. 2025 without its dual and its proximal term.

    With exact solves it averages once and stands still; `solver=GradientSteps(...)` gives the usual local work. Its
    fixed point is not the pooled solution.

    Parameters
    ----------
    shares : {'rows', 'equal'}
        Weights of the mean: N_k/N, or 1/K.

    Raises
    ------
    ValueError
        When `shares` is neither.

    Examples
    --------
    >>> FedAvg().rho
    0.0
    """
    knobs = "take fewer or smaller local steps"
    return _averaging("FedAvg", 0.0, alpha=0.0, server_share=_shares(shares), knobs=knobs)


@TABLE.register
def FedProx(rho: float = 1.0) -> Method:
    """FedProx (Li et al. 2020): FedAvg with ½ρ‖θ − θ_g‖² (squared) at each client; no dual.

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖² + ½ρ‖θ − θ_g‖²,    θ_g ← Σ_k (N_k/N) θ_k,

    which is Eq. 2 of Swaroop et al. 2025 with v_k = 0. ℓ_k is a sum over rows, so that ρ is N_k times that of a mean.

    Parameters
    ----------
    rho : float, default 1.0

    Raises
    ------
    ValueError
        When `rho` is not positive.

    Examples
    --------
    >>> FedProx(rho=0.1).dual_step
    0.0
    """
    return _averaging("FedProx", as_positive(rho, "rho"), alpha=0.0)


@TABLE.register
def FedDyn(rho: float = 1.0, shares: Literal["rows", "equal"] = "rows") -> Method:
    """FedDyn (Acar et al. 2021): ADMM with ρ_k ∝ N_k, the regulariser at the clients, and a server history.

        θ_k ← arg min ℓ_k(θ) + (N_k/N) ½δ‖θ‖² + v_kᵀθ + ½ρ_k‖θ − θ_g‖²,    v_k ← v_k + ρ_k(θ_k − θ_g),

    which is Eq. 2 of Swaroop et al. 2025 on sums over rows: there and in the original the loss is a mean, and α_k =
    ρ_k/N_k is one number for all clients. The history h = Σ_k ρ_k(θ_k − θ_g), summed over rounds, is Σ_k η_k, and the
    server takes mean_k λ_k + h/(ρK).

    Parameters
    ----------
    rho : float, default 1.0
        Mean of the clients' ρ_k = ρ K N_k/N.
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
    rho = as_positive(rho, "rho")
    own = _shares(shares)
    return _averaging("FedDyn", rho, dual_step=rho, client_share=own, server_share=own)


def _shares(shares: Literal["rows", "equal"]) -> Literal["rows", "equal"]:
    if shares not in ("rows", "equal"):
        raise ValueError(f"shares must be 'rows' or 'equal', got {shares!r}.")
    return shares


def _averaging(name: str, rho: float, dual_step: float = 0.0, **others: Any) -> Method:
    """Return a point method with the regulariser at the clients; the server averages who is present."""
    by_rows: Any = {"prior_at": "clients", "server_share": "rows", "mean_over": "present", **others}
    return Method(name, rho, dual_step, expectation=Delta(1), families=(IsotropicGaussian,), **by_rows)


@TABLE.register
def FedIvon(prior: Literal["server", "start"] = "server", beta: float = 1.0) -> Method:
    """FedIvon (Pal et al. 2024): no dual; the clients' posteriors are averaged by rows.

        q_k ← argmin E_q[ℓ_k] + β KL(q‖q_g)     (Eq. 8), or with prior='start'     E_q[ℓ_k] + KL(q‖prior)
        λ_g ← Σ_k (N_k/N) λ_k                                                                       (Eq. 6, 7)

    The paper has both: Eq. 8, under which s_k = s_g + h_k/β for the curvature h_k, so that s_g grows in every round;
    and Algorithm 1, whose clients have the prior of the run and begin at q_g. Exact clients do not notice where they
    begin: with prior='start' the server is Π_k q_k^{N_k/N} after one round, and stands still. No fixed point is the
    pooled solution.

    Parameters
    ----------
    prior : {'server', 'start'}
        The clients' prior: the server's posterior, or that of the run, with the server's posterior as the start. With
        networks take `IVONSteps(hess_start="server")` for this start.
    beta : float, default 1.0
        β > 0, the weight of the server's posterior; only for prior='server'. As β → 0 clients train alone.

    Raises
    ------
    ValueError
        When an argument is out of range.

    Examples
    --------
    >>> FedIvon(beta=0.5).rho, FedIvon(prior="start").prior_at
    (0.5, 'each')
    """
    if prior not in ("server", "start"):
        raise ArgumentError("prior", "must be 'server' or 'start'", repr(prior))
    by_rows: Any = {"alpha": 0.0, "server_share": "rows", "mean_over": "present", "families": (DiagonalGaussian,)}
    row = Method("FedIvon", as_positive(beta, "beta"), 0.0, knobs="scale the data", **by_rows)
    if prior == "server":
        return row
    if beta != 1.0:
        raise ArgumentError("beta", "must be 1.0 for prior='start', which has no KL to the server", repr(beta))
    return replace(row, rho=0.0, prior_at="each")


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


@TABLE.register
def Newton(start: Literal["prior", "sites"] = "sites") -> Method:
    """Newton's method for the mode: BLR with α = 1 under the delta method of order 2.

        m_g ← m_g − (P_0 + Σ_k ∇²ℓ_k(m_g))⁻¹ [P_0(m_g − m_0) + Σ_k ∇ℓ_k(m_g)]

    with the covariance of Laplace's approximation. Clients solve nothing: they send g_k and H_k at m_g, as one site
    (H_km_g − g_k, H_k). It is the federated `glm` of DataSHIELD. Diagonal and block families keep that part of H_k.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects the sites' own fits, from which some three rounds follow (docs/methods.md), or begins
        at the prior's mean, as `glm` does.

    Raises
    ------
    ValueError
        When `start` is neither.

    Examples
    --------
    >>> Newton().at(1).client, Newton().at(2).client
    ('own', 'gradient')
    """
    families = (FullGaussian, DiagonalGaussian, BlockDiagonalGaussian)
    row = replace(BLR(1.0), name="Newton", expectation=Delta(2), families=families, start=start)
    return replace(row, knobs="wrap the method in Guarded")


@TABLE.register
def JointNewton(start: Literal["prior", "sites"] = "sites") -> Method:
    """Newton's method for the variational posterior, in mean and covariance at once (full covariance, small d).

        (m, C) ← argmin of the pooled objective with E_q[ℓ_k] to second order around q_g,  q = N(m, CCᵀ),

    for triangular C: coordinates in which the objective is convex for convex losses (`splitting/joint.py`). Where PVI
    contracts linearly, because it freezes how the sites' curvature depends on q, this converges quadratically. Clients
    solve nothing. They give the site −∇_μE_{q_g}[ℓ_k], as in BLR, and how it changes with q: the tensors of third and
    fourth expected derivatives, d(d+1)(d+2)/6 + d(d+1)(d+2)(d+3)/24 numbers, so that it is for d up to some thirty.
    Losses must have these tensors: logistic, Poisson, least squares, softmax. A round that lacks a site is done again.

    This row runs in one process, where it is the recommended one. Between sites it is refused, because the fourth-order
    tensor of fewer than d(d−1)/2 rows gives every row; take `Guarded(Accelerated(PVI()))` there.

    Parameters
    ----------
    start : {'sites', 'prior'}, default 'sites'
        Whether round 1 collects Laplace's approximations at the sites' own modes, or begins at the prior.

    Raises
    ------
    ValueError
        When `start` is neither.

    Examples
    --------
    >>> JointNewton().at(1).client, JointNewton().at(2).client
    ('own', 'joint')
    """
    row = Method("JointNewton", 1.0, 1.0, alpha=1.0, client="joint", families=(FullGaussian,))
    return replace(row, start=start, knobs="wrap the method in Guarded")
