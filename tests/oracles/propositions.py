"""The paper's algebra as identities: proved with symbols for every K, ρ, prior and loss, refuted in wrong variants.

Sums over clients stay sums with a symbolic upper limit K. One coordinate stands for all: every step is linear in
λ-space with scalar coefficients; where the geometry of a family enters, A is an arbitrary function of two coordinates.

`Identity.difference` is lhs − rhs, simplified; a proof is a difference of 0. That a difference could not be simplified
to 0 would prove nothing, so a refutation is a `witness`: numbers at which the two sides differ.

A function of this file returns the identity that its docstring states. Its arguments are what wrong variants change;
their defaults are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sympy as sp

from bayesadmm_np.theory.algebra import is_zero

K = sp.Symbol("K", integer=True, positive=True)
RHO, GAMMA, WEIGHT = sp.symbols("rho gamma w", positive=True)
LAM_G, ETA_0 = sp.symbols("lambda_g eta_0", real=True)
INDEX = sp.Idx("k")
LAM, ETA, COEFFICIENT, GRADIENT = (sp.IndexedBase(name, real=True) for name in ("lambda", "eta", "c", "g"))
HALF = sp.Rational(1, 2)


@dataclass(frozen=True)
class Identity:
    """left = right, component by component."""

    left: tuple[sp.Expr, ...]
    right: tuple[sp.Expr, ...]
    # concrete functions in place of arbitrary ones (A, L), used only to look for a witness
    examples: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def difference(self) -> tuple[sp.Expr, ...]:
        """Left minus right, sums gathered, simplified."""
        return tuple(_simplest(a - b) for a, b in zip(self.left, self.right, strict=True))

    @property
    def holds(self) -> bool:
        """Whether the difference is shown to be zero."""
        return all(entry == 0 for entry in self.difference)

    def witness(self) -> dict[sp.Expr, sp.Rational] | None:
        """Numbers at which the sides differ, which refutes the identity; None when none was found."""
        gaps = [sp.sympify(entry).subs(dict(self.examples)).doit() for entry in self.difference]
        found = set()  # sums over clients, and the symbols outside them
        for gap in gaps:
            sums = gap.atoms(sp.Sum)
            found |= sums | gap.subs(dict.fromkeys(sums, sp.S.One)).free_symbols
        atoms = sorted(found, key=sp.default_sort_key)
        for shift in range(3):
            point = {atom: _sample(atom, n + 5 * shift) for n, atom in enumerate(atoms)}
            values = [sp.N(gap.xreplace(point).doit(), 30) for gap in gaps]
            if any(value.is_number and abs(value) > sp.Float("1e-20") for value in values):
                return point
        return None


@dataclass(frozen=True)
class Proposition:
    """A statement, its proof, and wrong variants of it."""

    label: str  # its number in the paper
    statement: str  # what is claimed: the first line of the docstring of `identity`
    identity: Callable[[], Identity]  # returns the `Identity` that proves it
    # wrong variants by name; each returns an `Identity` that a witness refutes
    twins: Mapping[str, Callable[[], Identity]]


PROPOSITIONS: list[Proposition] = []
"""Every proposition with its proof and its broken twins."""


def _proposition(label: str, twins: Mapping[str, Mapping[str, Any]], **arguments: Any) -> Callable[..., Any]:
    """List what a function proves with these `arguments`; with the arguments of a twin it claims what is wrong."""

    def listed(make: Callable[..., Identity]) -> Callable[..., Identity]:
        wrong = {name: partial(make, **own) for name, own in twins.items()}
        PROPOSITIONS.append(
            Proposition(label, (make.__doc__ or "").partition("\n")[0], partial(make, **arguments), wrong)
        )
        return make

    return listed


@_proposition("Eq. 32", {"KL in the other order": {"swapped": True}})
def client_optimality(swapped: bool = False) -> Identity:
    """Eq. 32 for an arbitrary family: F⁻¹∇_λ of L(μ) + ⟨η, μ⟩ + ρ KL(q‖q_g) is ∇_μ L + η + ρ(λ − λ_g).

    A and L are arbitrary functions of two variables; both sides are multiplied by F = ∇²A.
    """
    lam, server, eta = sp.symbols("x y", real=True), sp.symbols("x_g y_g", real=True), sp.symbols("eta_1 eta_2")
    A, L = sp.Function("A"), sp.Function("L")
    u, v = sp.symbols("u v", real=True)
    mu = [sp.diff(A(*lam), x) for x in lam]
    slopes_g = [sp.diff(A(*server), x) for x in server]
    kl = _bregman(A, server, lam, mu) if not swapped else _bregman(A, lam, server, slopes_g)
    loss = L(u, v)
    objective = loss.subs({u: mu[0], v: mu[1]}) + eta[0] * mu[0] + eta[1] * mu[1] + RHO * kl
    left = tuple(sp.diff(objective, x).doit() for x in lam)
    gradient = [sp.Subs(sp.diff(loss, s), (u, v), tuple(mu)) for s in (u, v)]
    inner = [gradient[i] + eta[i] + RHO * (lam[i] - server[i]) for i in range(2)]
    fisher = sp.Matrix(2, 2, lambda i, j: sp.diff(mu[i], lam[j]))
    right = tuple(sum(fisher[i, j] * inner[j] for j in range(2)) for i in range(2))
    return Identity(left, right, {A: sp.Lambda((u, v), sp.exp(u) + sp.exp(v) + u * v / 9), L: sp.Lambda((u, v), u * v)})


@_proposition(
    "Eq. 33",
    {
        "flipped sign": {"sign": -1},
        "dual along mu": {"space": "expectation"},
        "damped, gamma rho": {"step": GAMMA * RHO},
    },
)
def dual_is_natural_gradient(sign: int = 1, step: sp.Expr = RHO, space: str = "natural") -> Identity:
    """Eq. 33: after the client's step, η_k + step·(λ_k − λ_g) = −∇_μ L_k(μ_k), for every loss.

    Eq. 32 is used to eliminate λ_k.
    """
    eta, gradient = sp.symbols("eta_k g_k", real=True)
    A, t = sp.Function("A"), sp.Symbol("t", real=True)
    lam_k = LAM_G - (eta + gradient) / RHO
    mean = lambda lam: sp.Subs(sp.diff(A(t), t), t, lam)  # noqa: E731
    change = lam_k - LAM_G if space == "natural" else mean(lam_k) - mean(LAM_G)
    return Identity((eta + sign * step * change,), (-gradient,), {A: sp.Lambda(t, sp.exp(t))})


@_proposition("Eq. 53", {"prior counted twice": {"weight": 2}})
def server_stationarity(weight: sp.Expr | int = 1) -> Identity:
    """Eq. 53: F⁻¹∇_λ of the server's objective, Eq. 17, is λ_g − η_0 − Ση_k + ρΣ(λ_g − λ_k), in every family.

    A is an arbitrary function, and there are two clients.
    """
    A = sp.Function("A")
    lam, prior, first, second = sp.symbols("lambda_g eta_0 lambda_1 lambda_2", real=True)
    duals = sp.symbols("eta_1 eta_2", real=True)
    mu, fisher = sp.diff(A(lam), lam), sp.diff(A(lam), lam, 2)
    kl = lambda other: _bregman(A, (other,), (lam,), (mu,))  # noqa: E731
    objective = kl(prior) - sum(duals) * mu + RHO * (kl(first) + kl(second))
    claimed = weight * (lam - prior) - sum(duals) + RHO * (2 * lam - first - second)
    t = sp.Symbol("t", real=True)
    return Identity((sp.diff(objective, lam).doit(),), (fisher * claimed,), {A: sp.Lambda(t, sp.exp(t))})


@_proposition(
    "Eq. 54, prior outside the family",
    {"alpha = 1/(w + rho K)": {"alpha": 1 / (WEIGHT + RHO * K), "weight": WEIGHT}},
    weight=WEIGHT,
)
@_proposition(
    "Eq. 54", {"alpha = 1/(rho K)": {"alpha": 1 / (RHO * K)}, "alpha = 1/(1 + rho)": {"alpha": 1 / (1 + RHO)}}
)
def server_step(alpha: sp.Expr | None = None, weight: sp.Expr | int = 1) -> Identity:
    """Eq. 54 from Eq. 53, for K clients: [(1 − α) mean λ_k + α(η_0 + Ση_k)]/(1 − α + αw) makes Eq. 53 vanish."""
    a = _alpha() if alpha is None else alpha
    new = _gather(a, total(LAM[INDEX]), total(ETA[INDEX]), weight)
    residual = weight * new - ETA_0 - total(ETA[INDEX]) + RHO * (K * new - total(LAM[INDEX]))
    return Identity((residual,), (sp.S.Zero,))


@_proposition(
    "Prop. D.1",
    {
        "rho = 2/K": {"rho": 2 / K},
        "any rho": {"rho": RHO},
        "another start": {"start": LAM_G},
        "flipped sign": {"sign": -1},
    },
)
def one_round(rho: sp.Expr | None = None, start: sp.Expr = ETA_0, sign: int = 1) -> Identity:
    """Prop. D.1: with losses −⟨c_k, T⟩, ρ = 1/K and the server at the prior, one round reaches λ* = η_0 + Σc_k."""
    r = 1 / K if rho is None else rho
    lam_k = start + COEFFICIENT[INDEX] / r  # Eq. 32 with η_k = 0 and ∇_μ L_k = −c_k
    eta_k = sign * r * (lam_k - start)
    new = _gather(1 / (1 + r * K), total(lam_k), total(eta_k))
    return Identity((new,), (ETA_0 + total(COEFFICIENT[INDEX]),))


@_proposition("Prop. D.1, converse", {"halved for every rho": {"halved": True}})
def error_recursion(halved: bool = False) -> Identity:
    """The exact error for any ρ and any start, α = 1/(1 + ρK): e_t = (1 − α)^(t−1) [(1 − α)(λ_g − η_0) + (2α − 1)Σc].

    Proved by induction: the first component is round 1, the second the step from round t to t + 1.
    """
    t = sp.Symbol("t", integer=True, positive=True)
    a, solution, pull = _alpha(), ETA_0 + total(COEFFICIENT[INDEX]), total(COEFFICIENT[INDEX])
    factor = a if halved else 1 - a
    claim = lambda n: factor ** (n - 1) * ((1 - a) * (LAM_G - ETA_0) + (2 * a - 1) * pull)  # noqa: E731
    first = _gather(a, total(LAM_G + COEFFICIENT[INDEX] / RHO), pull) - solution
    lam_t = solution + claim(t)
    # from round 1 on η_k = c_k, so that Eq. 32 gives λ_k = λ_g, and the dual stays
    following = _gather(a, total(lam_t), pull) - solution
    return Identity((first, following), (claim(sp.Integer(1)), claim(t + 1)))


def one_round_converse() -> tuple[sp.Expr, sp.Expr]:
    """Return what must vanish for one round to be exact whatever the losses: 2α − 1, and (1 − α)(λ_g − η_0).

    Σc is arbitrary, so its factor has to be zero, which gives ρ = 1/K; then the rest gives λ_g = η_0, since α < 1.
    Elsewhere one round is exact only by coincidence, for the one Σc = (1 − α)(λ_g − η_0)/(1 − 2α).
    """
    error = error_recursion().right[0]
    pull = sp.Symbol("C", real=True)
    linear = sp.expand(error.subs(total(COEFFICIENT[INDEX]), pull))
    return sp.factor(linear.coeff(pull)), sp.factor(linear.subs(pull, 0))


@_proposition("Sites add up", {"rho = 2/K": {"rho": 2 / K}})
def sites_add_up(rho: sp.Expr | None = None) -> Identity:
    """At ρ = 1/K, for any losses: if Ση_k = λ_g − η_0 before a round, then also after it.

    Only the dual step and the server step are used; λ_k is whatever the client answered.
    """
    r = 1 / K if rho is None else rho
    before = ETA_0 + total(ETA[INDEX])
    duals = total(ETA[INDEX] + r * (LAM[INDEX] - before))
    after = _gather(1 / (1 + r * K), total(LAM[INDEX]), duals)
    return Identity((duals,), (after - ETA_0,))


@_proposition("Prop. C.1", {"alpha = 1/(rho K)": {"alpha": 1 / (RHO * K)}, "flipped sign": {"sign": 1}})
def bayesian_learning_rule(alpha: sp.Expr | None = None, sign: int = -1) -> Identity:
    """Prop. C.1: clients iterated to convergence, then Eq. 34 is λ_g ← λ_g − α(λ_g − η_0 + Σ∇L_k), a step of the BLR.

    Convergence of Eq. 16 (η_k stays) forces λ_k = λ_g because ρ > 0, and Eq. 33 then η_k = −∇L_k(μ_g).
    """
    a = _alpha() if alpha is None else alpha
    lam_k, eta = sp.symbols("lambda_k eta_k", real=True)
    (settled,) = sp.solve(eta + RHO * (lam_k - LAM_G) - eta, lam_k)
    new = _gather(a, total(settled), total(sign * GRADIENT[INDEX]))
    rule = LAM_G - _alpha() * (LAM_G - ETA_0 + total(GRADIENT[INDEX]))
    return Identity((settled, new), (LAM_G, rule))


@_proposition("Eq. 42", {"undamped": {"step": sp.S.One}, "flipped sign": {"step": -GAMMA}})
def damped_pvi(step: sp.Expr = GAMMA) -> Identity:
    """Eq. 42: at ρ = 1 a dual step γ gives η_k ← (1 − γ)η_k − γ∇L_k(μ_k)."""
    eta, gradient = sp.symbols("eta_k g_k", real=True)
    lam_k = LAM_G - (eta + gradient)  # Eq. 36's optimality, ρ = 1
    return Identity((eta + step * (lam_k - LAM_G),), ((1 - GAMMA) * eta - GAMMA * gradient,))


@_proposition("Eq. 27", {"dropped half": {"half": sp.S.One}, "alpha = 1/(rho K)": {"alpha": 1 / (RHO * K)}})
def admm_server(half: sp.Rational = HALF, alpha: sp.Expr | None = None) -> Identity:
    """Eq. 27: for ℓ_0 = ½‖θ‖² the minimiser of Eq. 7 is αΣv_k + (1 − α) mean θ_k; Eq. 54 of N(m, I) is the same."""
    a = _alpha() if alpha is None else alpha
    theta, local, v = sp.Symbol("theta_g", real=True), *(sp.IndexedBase(name, real=True) for name in ("theta", "v"))
    slope = theta - total(v[INDEX]) + sp.diff(half * RHO * total((theta - local[INDEX]) ** 2), theta)
    (minimiser,) = sp.solve(_gathered(slope), theta)
    claimed = a * total(v[INDEX]) + (1 - a) * total(local[INDEX]) / K
    lifted = _gather(_alpha(), total(local[INDEX]), total(v[INDEX])).subs(ETA_0, 0)
    return Identity((minimiser, lifted), (claimed, claimed))


@_proposition("AMA", {"alpha = 1/(1 + rho K)": {"alpha": 1 / (1 + RHO * K)}})
def ama_server(alpha: sp.Expr | int = 1) -> Identity:
    """AMA and PVI: without the server's KL terms Eq. 53 reads λ_g = η_0 + Ση_k, which is Eq. 54 with α = 1."""
    (minimiser,) = sp.solve(LAM_G - ETA_0 - total(ETA[INDEX]), LAM_G)
    return Identity((_gather(sp.sympify(alpha), total(LAM[INDEX]), total(ETA[INDEX])),), (minimiser,))


@_proposition("Eq. 48, 60", {"dropped half": {"half": sp.S.One}})
def gaussian_natural_gradient(half: sp.Rational = HALF) -> Identity:
    """Eq. 48, 60 for ℓ = exp(tθ), every t: ∇_μ E[ℓ] = (g − Hm, ½H), hence (Bonnet, Price) for all their mixtures.

    E[ℓ] is computed from the moment generating function and differentiated with respect to μ = (m, m² + 1/s).
    Derivatives in t carry the identity over to all polynomials.
    """
    first, second, t = sp.symbols("mu_1 mu_2 t", real=True)
    expected = sp.exp(t * first + t**2 * (second - first**2) / 2)
    g, H = t * expected, t**2 * expected
    return Identity((sp.diff(expected, first), sp.diff(expected, second)), (g - H * first, half * H))


@_proposition("Scale of T", {"dual along mu": {"space": "expectation"}})
def scale_of_statistic(space: str = "natural") -> Identity:
    """Rescaling T by s rescales a λ-space dual step with it: the site stays the same function of θ.

    With T → sT: λ → λ/s, η → η/s, μ → sμ, and the site ⟨η, T⟩ is unchanged. One dual step keeps it so for duals
    along λ; along μ the step is multiplied by s², so that the method depends on how T is written.
    """
    s, T = sp.Symbol("s", positive=True), sp.Symbol("T", real=True)
    eta, lam_k, mu_k, mu_g = sp.symbols("eta_k lambda_k mu_k mu_g", real=True)
    if space == "natural":
        plain, scaled = RHO * (lam_k - LAM_G), RHO * (lam_k / s - LAM_G / s)
    else:
        plain, scaled = RHO * (mu_k - mu_g), RHO * (s * mu_k - s * mu_g)
    return Identity(((eta / s + scaled) * (s * T),), ((eta + plain) * T,))


def total(term: sp.Expr) -> sp.Expr:
    """Σ over clients k = 1 … K, with what does not depend on k taken out."""
    done = {s: sp.Dummy() for s in term.atoms(sp.Sum)}  # a sum over k does not depend on k
    parts = []
    for piece in sp.Add.make_args(sp.expand(term.subs(done))):
        outside, inside = piece.as_independent(INDEX, as_Add=False)
        parts.append(outside * (K if inside == 1 else sp.Sum(inside, (INDEX, 1, K))))
    return sp.Add(*parts).subs({dummy: s for s, dummy in done.items()})


def _alpha() -> sp.Expr:
    return 1 / (1 + RHO * K)


def _gather(alpha: sp.Expr, naturals: sp.Expr, duals: sp.Expr, weight: sp.Expr | int = 1) -> sp.Expr:
    """Eq. 54 from the sums over clients."""
    return ((1 - alpha) * naturals / K + alpha * (ETA_0 + duals)) / (1 - alpha + alpha * weight)


def _bregman(A: Any, other: tuple[sp.Expr, ...], at: tuple[sp.Expr, ...], slopes: Any) -> sp.Expr:
    """A(other) − A(at) − ⟨other − at, ∇A(at)⟩ = KL(q_at‖q_other)."""
    return A(*other) - A(*at) - sum((o - x) * m for o, x, m in zip(other, at, slopes, strict=True))


def _gathered(expression: sp.Expr) -> sp.Expr:
    """Give equal sums the same form, by taking constants out of each."""
    return expression.replace(lambda e: isinstance(e, sp.Sum), lambda e: total(e.function))


def _simplest(expression: sp.Expr) -> sp.Expr:
    plain = _gathered(sp.sympify(expression).doit(deep=True) if not expression.has(sp.Sum) else expression)
    names = {s: sp.Dummy(real=True) for s in plain.atoms(sp.Sum)}
    written = plain.subs(names)
    if is_zero(written):
        return sp.S.Zero
    return sp.factor(written).subs({dummy: s for s, dummy in names.items()})


def _sample(atom: sp.Expr, n: int) -> sp.Rational:
    if isinstance(atom, sp.Symbol) and atom.is_integer:
        return sp.Integer(3 + n % 2)
    return sp.Rational(3 + 2 * n, 2 + n)
