# %% [markdown]
# # 5. From ADMM to Bayesian ADMM by changing the family
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
# The losses stay as they are. Only the prior's type changes, and with it everything else. $\rho$ is tuned for each
# family on a grid (nobody should win by tuning), except for the last, where the theory says $\rho = 1/K$.
# For the fixed precision we spend what a diagonal preconditioner knows: $S \propto \mathrm{diag}(\sum_k X_k^\top X_k)$,
# scaled so that the prior $N(0, S^{-1})$ is about as weak as the others.

# %%
gram = np.diag(sum(X_k.T @ X_k for X_k in X))
priors = {
    "isotropic: ADMM": IsotropicGaussian(np.zeros(d), delta),
    "fixed S: preconditioned ADMM": FixedPrecisionGaussian(np.zeros(d), delta * gram / gram.mean()),
    "diagonal: Adam-like": DiagonalGaussian(np.zeros(d), delta),
    "full: Newton-like": FullGaussian(np.zeros(d), delta),
}


def errors(method, prior, rounds=30):
    """Return the server's relative distance to the pooled mean after every round."""
    rule = method.expectation
    pooled = ba.solve_pooled(clients, prior, expectation=rule).posterior.mean
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
    means += means[-1:] * (rounds - len(means))  # a run that ended stays where it is
    return np.linalg.norm(np.array(means) - pooled, axis=1) / np.linalg.norm(pooled)


# %% tags=["hide-input"]
makers = (ba.methods.ADMM, ba.methods.PreconditionedADMM, ba.methods.BayesADMM)
figure, axis = plt.subplots(figsize=(7.5, 3.8))
for number, (name, prior) in enumerate(priors.items()):
    make = makers[min(number, 2)]
    grid = [1 / K] if name.startswith("full") else np.geomspace(0.4, 200, 16)
    rho = min(grid, key=lambda value, make=make, prior=prior: errors(make(rho=value), prior)[-1])
    curve = errors(make(rho=rho), prior)
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
one_round = errors(ba.methods.BayesADMM(rho=1 / K), priors["full: Newton-like"])
assert one_round[0] < 1e-10

# %% [markdown]
# ## Why one round
#
# A quadratic loss is *linear in the sufficient statistic* $T = (\theta, -\frac12\theta\theta^\top)$ of the full
# Gaussian: $\ell_k(\theta) = -\langle c_k, T(\theta)\rangle$. Its natural gradient is the constant $-c_k$. Then Eq. 15
# gives $\lambda_k = \lambda_g + c_k/\rho$, Eq. 16 gives $\eta_k = c_k$, and with $\rho = 1/K$ and $\lambda_g = \eta_0$
# the server's Eq. 54 is $\eta_0 + \sum_k c_k$: the exact posterior (**Prop. D.1**). The client sends its Hessian
# without knowing that it does. For the diagonal family the quadratic is *not* linear in $T$ when features correlate.
#
# Nothing here needs a Gaussian. Counts with a Gamma prior, coin flips with a Beta prior, one round each:

# %%
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
#
# *Answer.* The duals are right after the first round, $\eta_k = c_k$, but the server mixes them with the mean of the
# $\lambda_k$. Insert $\lambda_k = \lambda_g + c_k/\rho$ (round 1) and $\lambda_k = \lambda_g$ (later) into Eq. 54:
#
# $$e_1 = \frac{\rho K - 1}{\rho K + 1}\, e_0, \qquad e_{t+1} = \frac{\rho K}{\rho K + 1}\, e_t .$$
#
# One round is exact *because* $\rho K = 1$; any other $\rho$ makes the server forget its old value geometrically. With
# $\rho = 1$ and $K = 3$ that is a factor 1/2 and then 3/4 a round.

# %%
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
