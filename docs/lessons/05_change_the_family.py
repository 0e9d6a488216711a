# %% [markdown]
# # 5. From ADMM to Bayesian ADMM by changing the family
#
# *20 minutes. You need: lessons 1 to 4.*
#
# Put lessons 1 to 4 together. Take ADMM's round (Eq. 5–7), replace points by distributions, squared distances by KL
# divergences, and move the dual along *natural* parameters:
#
# $$\mu_k \leftarrow \mathrm{arg}\min_{\mu_k}\; \mathbb{E}_{q_k}[\ell_k] + \langle \eta_k, \mu_k\rangle
#   + \rho\,\mathrm{KL}(q_k \,\|\, q_g) \qquad\text{(Eq. 15)}$$
#
# $$\eta_k \leftarrow \eta_k + \rho\,(\lambda_k - \lambda_g) \qquad\text{(Eq. 16)}$$
#
# $$\lambda_g \leftarrow (1-\alpha)\,\frac1K\sum_k \lambda_k + \alpha\Bigl(\eta_0 + \sum_k\eta_k\Bigr),
#   \qquad \alpha = \frac{1}{1+\rho K} \qquad\text{(Eq. 17, 54)}$$
#
# **What you will learn:** choose the family and you have chosen the method. The loop does not change; one line does.
#
# | family $\mathcal{Q}$ | $\lambda$ | KL to the server | method |
# |---|---|---|---|
# | $N(m, I)$, delta method | $m$ | $\frac12\Vert m - m_g\Vert^2$ | ADMM (Eq. 21–22) |
# | $N(m, S^{-1})$, $S$ fixed, delta method | $Sm$ | $\frac12\Vert m - m_g\Vert_S^2$ | preconditioned ADMM |
# | $N(m, \mathrm{diag}(s)^{-1})$ | $(sm, s)$ | Eq. 63 | Adam-like (Alg. 1) |
# | $N(m, S^{-1})$ | $(Sm, S)$ | Eq. 50 | Newton-like (Eq. 46–56) |
#
# The film shows one method, $\rho = 1$, with the first family and with the last, on three sites with one parameter.
# Springs pull at points, and the forces (the multipliers) come to cancel. Bells multiply: the dashed bell is the prior
# times the sites' factors, and the server's bell converges to it. For least squares the factors are final after round
# 1.
#
# ![Forces that cancel, bells that multiply](../figures/idea.gif)

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.families import (
    Beta,
    DiagonalGaussian,
    FixedPrecisionGaussian,
    FullGaussian,
    Gamma,
    IsotropicGaussian,
    Natural,
)

style.use()
rng = np.random.default_rng(5)
K, d, delta = 3, 4, 1.0
scales = np.array([0.4, 1.0, 2.0, 4.0])  # features in different units
X = [rng.normal(size=(25, d)) * scales * rng.uniform(0.5, 1.5, d) for _ in range(K)]
X = [X_k + 0.4 * X_k[:, [0]] * scales for X_k in X]  # and correlated
theta = rng.normal(size=d)
clients = [ba.losses.LeastSquares(X_k, X_k @ theta + rng.normal(size=25)) for X_k in X]

# %% [markdown]
# ## One line
#
# Losses and method stay as they are; only the prior's type changes. The method `BayesADMM` *is* ADMM for the first
# family and preconditioned ADMM for the second: with a fixed covariance $\mathbb{E}_q[\ell_k]$ of least squares is
# $\ell_k(m)$ and a constant. $\rho$ is tuned for each family on a grid, except for the last: $\rho = 1/K$ (Prop. D.1).
# The fixed precision is a diagonal preconditioner, $S \propto \mathrm{diag}(\sum_k X_k^\top X_k)$,
# scaled so that the prior $N(0, S^{-1})$ is about as weak as the others.

# %%
gram = np.diag(sum(X_k.T @ X_k for X_k in X))
priors = {
    "isotropic: ADMM": IsotropicGaussian(np.zeros(d), delta),
    "fixed S: preconditioned ADMM": FixedPrecisionGaussian(np.zeros(d), delta * gram / gram.mean()),
    "diagonal: Adam-like": DiagonalGaussian(np.zeros(d), delta),
    "full: Newton-like": FullGaussian(np.zeros(d), delta),
}


def means_of(method, prior, rounds=30):
    """Return the server's mean after every round."""
    means = []
    ba.run(
        method,
        clients,
        prior,
        rounds=rounds,
        tol=1e-14,
        raise_on_failure=False,
        callback=lambda record, q: means.append(np.array(q.mean)),
    )
    return np.array(means + means[-1:] * (rounds - len(means)))  # a run that ended stays where it is


def errors(rho, prior):
    """Return the server's relative distance to the pooled mean after every round."""
    pooled = ba.solve_pooled(clients, prior).posterior.mean
    return np.linalg.norm(means_of(ba.methods.BayesADMM(rho), prior) - pooled, axis=1) / np.linalg.norm(pooled)


for name, classic in (
    ("isotropic: ADMM", ba.methods.ADMM(40.0)),
    ("fixed S: preconditioned ADMM", ba.methods.PreconditionedADMM(40.0)),
):
    same = means_of(ba.methods.BayesADMM(40.0), priors[name]), means_of(classic, priors[name])
    assert np.allclose(*same, rtol=0, atol=1e-12)  # identical iterates, round by round

# %% tags=["hide-input"]
figure, axis = plt.subplots(figsize=(7.5, 3.8))
for number, (name, prior) in enumerate(priors.items()):
    grid = [1 / K] if name.startswith("full") else np.geomspace(0.4, 200, 16)
    rho = min(grid, key=lambda value, prior=prior: errors(value, prior)[-1])
    curve = errors(rho, prior)
    assert rho == 1 / K or grid[0] < rho < grid[-1]
    print(f"{name:30} ρ = {rho:7.2f}   error after 1, 10, 30 rounds: {curve[0]:.0e}, {curve[9]:.0e}, {curve[29]:.0e}")
    axis.plot(
        range(1, 31),
        np.maximum(curve, 1e-16),
        marker=style.MARKERS[number],
        markevery=3,
        label=f"{name}, ρ = {rho:.3g}",
    )
style.log_axis(axis, "distance to the pooled mean", floor=1e-16)
axis.set_title("Least squares on three clients: one line changes")
axis.legend(fontsize=8)
plt.show()
assert errors(1 / K, priors["full: Newton-like"])[0] < 1e-10

# %% [markdown]
# ## Why one round
#
# A quadratic loss is *linear in the sufficient statistic* $T = (\theta, -\frac12\theta\theta^\top)$ of the full
# Gaussian: $\ell_k(\theta) = -\langle c_k, T(\theta)\rangle$. Its natural gradient is the constant $-c_k$. Then Eq. 15
# gives $\lambda_k = \lambda_g + c_k/\rho$, Eq. 16 gives $\eta_k = c_k$, and with $\rho = 1/K$ and $\lambda_g = \eta_0$
# the server's Eq. 54 is $\eta_0 + \sum_k c_k$: the exact posterior (**Prop. D.1**). The dual's precision *is* the
# client's Hessian $X_k^\top X_k$. For the diagonal family the quadratic is not linear in $T$ when features correlate.
#
# Nothing here needs a Gaussian. Counts with a Gamma prior, coin flips with a Beta prior, one round each:

# %%
first = ba.run(ba.methods.BayesADMM(rho=1 / K), clients, priors["full: Newton-like"], rounds=1)
assert np.allclose(first.sites[0].precision, X[0].T @ X[0])
assert errors(1 / K, priors["diagonal: Adam-like"])[0] > 1e-3
gamma_clients = [
    ba.losses.LinearInStatistics(Natural(np.array([s]), np.array([-n]))) for s, n in ((7.0, 3.0), (12.0, 5.0))
]
rates = ba.run(ba.methods.BayesADMM(rho=1 / 2), gamma_clients, Gamma(shape=[1.0], rate=[0.5]), rounds=1).posterior
coin_clients = [
    ba.losses.LinearInStatistics(Natural(np.array([a]), np.array([b]))) for a, b in ((3.0, 1.0), (2.0, 6.0))
]
coins = ba.run(ba.methods.BayesADMM(rho=1 / 2), coin_clients, Beta(a=[1.0], b=[1.0]), rounds=1).posterior
print("19 events in 8 hours, prior Gamma(1, 0.5):", rates)
print("5 heads, 7 tails, prior Beta(1, 1):       ", coins)
assert np.allclose(coins.a, 6.0)
assert np.allclose(coins.b, 8.0)
assert np.allclose(rates.natural.to_vector(), [19.0, -8.5])

# %% [markdown]
# ## Change a line and see what breaks
#
# Set $\rho = 1$ instead of $\rho = 1/K$ for the full family. The problem is still conjugate. Predict the distance
# $\Vert\lambda_g - \lambda^\ast\Vert$ after every round.

# %% [markdown] tags=["answer"]
# The duals are right after the first round, $\eta_k = c_k$, but the server mixes them with the mean of the
# $\lambda_k$. Insert $\lambda_k = \lambda_g + c_k/\rho$ (round 1) and $\lambda_k = \lambda_g$ (later) into Eq. 54:
#
# $$e_1 = \frac{\rho K - 1}{\rho K + 1}\, e_0, \qquad e_{t+1} = \frac{\rho K}{\rho K + 1}\, e_t .$$
#
# One round is exact *because* $\rho K = 1$. With any other $\rho$ the server forgets its old value geometrically: with
# $\rho = 1$ and $K = 3$ by the factor 1/2, and then 3/4 a round.

# %% tags=["answer"]
prior = priors["full: Newton-like"]
target = ba.solve_pooled(clients, prior).posterior.natural.to_vector()
path = [prior.natural.to_vector()]
ba.run(
    ba.methods.BayesADMM(rho=1.0),
    clients,
    prior,
    rounds=6,
    callback=lambda record, q: path.append(q.natural.to_vector()),
)
distance = np.linalg.norm(np.array(path) - target, axis=1)
ratios = distance[1:] / distance[:-1]
print("e_(t+1)/e_t:", ratios.round(6))
assert np.allclose(ratios, [0.5] + [0.75] * 5)
