"""The papers' algorithms as they are written, in dense NumPy; workers and server of a row, one by one."""

import numpy as np
import scipy.linalg

import bayesadmm_np as ba
from bayesadmm_np.losses import Delta, Exact, GaussHermite, QuasiMonteCarlo
from bayesadmm_np.splitting.average import as_step
from bayesadmm_np.splitting.messages import Broadcast
from bayesadmm_np.splitting.server import Server
from bayesadmm_np.splitting.step import Own
from bayesadmm_np.splitting.worker import Worker
from oracles.problems import expected_derivatives, point_derivatives, spd

TIGHT = ba.clients.VariationalNewton(tol=1e-13)


RULES = {
    "logistic": [Exact(), GaussHermite(), QuasiMonteCarlo(64), Delta(1), Delta(2)],
    "poisson": [Exact(), GaussHermite(16), QuasiMonteCarlo(64), Delta(1), Delta(2)],
    "squares": [Exact(), Delta(1), Delta(2)],
    "softmax": [QuasiMonteCarlo(64), Delta(1), Delta(2)],
    "softmax2": [Exact(), QuasiMonteCarlo(64)],
}


def newton(gradient_and_hessian, start):
    """Exact inner solves: plain Newton steps, halved until the gradient falls, to rounding."""
    theta = np.array(start, dtype=float)
    gradient, hessian = gradient_and_hessian(theta)
    for _ in range(100):
        step, t = scipy.linalg.solve(hessian, gradient, assume_a="sym"), 1.0
        while t > 1e-6:
            trial = theta - t * step
            new_gradient, new_hessian = gradient_and_hessian(trial)
            if np.linalg.norm(new_gradient) < np.linalg.norm(gradient):
                break
            t /= 2
        else:
            return theta  # the gradient is at its rounding error
        theta, gradient, hessian = trial, new_gradient, new_hessian
    return theta


def textbook_admm(
    name, parts, m0, P0, rho, rounds, metric=None, *, squared=True, sign=1.0, derivatives=point_derivatives, prox=True
):
    """Eq. 5–7 for ℓ₀ = ½‖θ − m₀‖²_P₀ and the proximal term ½ρ‖·‖²_metric; yields θ_k, v_k, θ_g of each round.

    Without the server's proximal term, `prox=False`, these are Eq. 39–41.
    """
    d, count = m0.size, len(parts)
    metric = np.eye(d) if metric is None else metric
    theta_g, v = m0.copy(), [np.zeros(d) for _ in parts]
    for _ in range(rounds):
        theta = []
        for (X, y), dual in zip(parts, v, strict=True):

            def local(t, X=X, y=y, dual=dual, centre=theta_g):
                g, H = derivatives(name, X, y, t)
                difference = t - centre
                if squared:
                    return g + dual + rho * metric @ difference, H + rho * metric
                # the widespread mistake: ½ρ‖θ − θ_g‖, smoothed here so that it can be minimised
                length = np.sqrt(difference @ difference + 1e-3)
                curvature = np.eye(d) / length - np.outer(difference, difference) / length**3
                return g + dual + 0.5 * rho * difference / length, H + 0.5 * rho * curvature

            theta.append(newton(local, theta_g))
        v = [dual + sign * rho * metric @ (t - theta_g) for dual, t in zip(v, theta, strict=True)]
        weight = rho * prox * metric
        theta_g = scipy.linalg.solve(P0 + count * weight, P0 @ m0 + sum(v) + weight @ sum(theta), assume_a="pos")
        yield theta, v, theta_g


M0 = np.array([0.5, -1.0, 0.25])


def structure(matrix, family):
    """Restrict a dense matrix to the family's structure, kept dense."""
    return matrix if family == "full" else np.diag(np.diag(matrix))


def dense(natural, family):
    return (natural.linear, natural.precision if family == "full" else np.diag(natural.precision))


def textbook_tilted(name, X, y, S_g, m_g, V, v, family):
    """argmin E_q[ℓ] + E_q[vᵀθ − ½θᵀVθ] + KL(q‖q_g) by its fixed point, damped, with our own quadrature."""
    S, m = S_g.copy(), m_g.copy()
    for _ in range(2000):
        _, g, H = expected_derivatives(name, X, y, m, np.linalg.inv(S))
        gradient = g + v - V @ m + S_g @ (m - m_g)
        new = S + 0.7 * (structure(H, family) - V + S_g - S)
        step = 0.7 * np.linalg.solve(H - V + S_g, gradient)
        change = max(np.abs(step).max(), np.abs(new - S).max())
        S, m = new, m - step
        if change < 1e-14:
            break
    return S, m


def textbook_pvi(name, parts, m0, S0, family, rounds, gamma=1.0, *, tilted=textbook_tilted, sign=1.0):
    """Ashman et al. 2022, Alg. 1: q_k ∝ argmin of Eq. 36, t_k ← t_k (q_k/q_g)^γ, q_g ∝ π₀ Π t_k."""
    S_g, m_g = S0, m0
    V, v = [np.zeros_like(S0) for _ in parts], [np.zeros_like(m0) for _ in parts]
    for _ in range(rounds):
        local = [tilted(name, X, y, S_g, m_g, Vk, vk, family) for (X, y), Vk, vk in zip(parts, V, v, strict=True)]
        steps = sign * np.broadcast_to(gamma, len(parts))
        V = [Vk + step * (S - S_g) for Vk, step, (S, _) in zip(V, steps, local, strict=True)]
        v = [vk + step * (S @ m - S_g @ m_g) for vk, step, (S, m) in zip(v, steps, local, strict=True)]
        S_g = S0 + sum(V)
        m_g = np.linalg.solve(S_g, S0 @ m0 + sum(v))
        yield V, v, S_g, m_g


def gaussian_prior(family, d=3):
    S0 = structure(spd(np.random.default_rng(6), d), family)
    made = {"full": ba.families.FullGaussian, "diagonal": ba.families.DiagonalGaussian}[family]
    return made(M0[:d], S0 if family == "full" else np.diag(S0)), S0


def textbook_fedlap(name, parts, m0, delta, rounds, gamma, *, scale=True):
    """Swaroop et al. 2025, Eq. 9, with prior mean m₀: duals δv_k; w_g = m₀ + Σ v_k."""
    d = m0.size
    w_g, v = m0.copy(), [np.zeros(d) for _ in parts]
    for _ in range(rounds):
        w = []
        for (X, y), dual in zip(parts, v, strict=True):

            def derivatives(t, X=X, y=y, dual=dual, centre=w_g):
                g, H = point_derivatives(name, X, y, t)
                return g + (delta if scale else 1.0) * dual + delta * (t - centre), H + delta * np.eye(d)

            w.append(newton(derivatives, w_g))
        steps = np.broadcast_to(gamma, len(parts))
        v = [dual + step * (t - w_g) for dual, step, t in zip(v, steps, w, strict=True)]
        w_g = m0 + sum(v)
        yield w, [delta * dual for dual in v], w_g


def textbook_laplace(name, X, y, S_g, m_g, V, v, family):
    """Swaroop et al. 2025, Eq. 14: the mode, then S_k = H_k(w_k) − V_k + S_g."""

    def derivatives(w):
        g, H = point_derivatives(name, X, y, w)
        return g + v - V @ w + S_g @ (w - m_g), H - V + S_g

    w = newton(derivatives, m_g)
    return structure(point_derivatives(name, X, y, w)[1], family) - V + S_g, w


def half_laplace(*arguments):
    """The appendix's stray ½: S_k = ½H_k − V_k + S_g."""
    name, X, y, *_, family = arguments
    S, w = textbook_laplace(*arguments)
    return S - 0.5 * structure(point_derivatives(name, X, y, w)[1], family), w


def crew(row, clients, prior_, rule=None):
    """The workers and the server of a row, for rounds that `run` does not make."""
    rows = sum(client.n_rows for client in clients)
    workers = [
        Worker(
            client,
            client.check(prior_, rule or ba.losses.Auto()),
            TIGHT,
            as_step(row),
            prior_,
            client.n_rows / rows,
            len(clients),
        )
        for client in clients
    ]
    return workers, Server(row, prior_, tuple(w.share for w in workers))


def replied(worker, q_g, site, at_server, k):
    """The answer of a client of `crew` to the broadcast of q_g in round 1."""
    message = Broadcast(1, q_g.natural, worker.method.asks(1))
    return worker.answer(message, q_g, Own(q_g.natural, site), at_server, None, 0, k)
