# %% [markdown]
# # 1. ADMM from scratch
#
# *15 minutes. You need: gradients and linear systems.*
#
# Eq. 5 to 17 and 54 are also one file of NumPy, `demos/duality_in_numpy.py`. Read it first if you like programs better
# than prose.
#
# Two hospitals hold rows of the same table and may not show them to anybody. They want the parameter $\theta$ that
# fits *all* rows,
#
# $$\theta_g^\ast = \mathrm{arg}\min_\theta \; \sum_{k=1}^K \ell_k(\theta) + \ell_0(\theta), \qquad\text{(Eq. 1)}$$
#
# where $\ell_k$ is the loss on client $k$'s rows (a sum, not a mean) and $\ell_0$ a regulariser at the server.
# Equation numbers are those of *Federated ADMM from Bayesian Duality* (Möllenhoff, Swaroop, Doshi-Velez, Khan).
#
# **What you will learn:** ADMM is ten lines. From the first round on its multipliers are the negative gradients of the
# clients' losses. The rest of the course generalises this fact.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np

import bayesadmm_np as ba

style.use()
rng = np.random.default_rng(1)
K, d, rho, delta = 2, 2, 4.0, 1.0
theta_true = np.array([1.0, -2.0])
X = [rng.normal(size=(15, d)) * [1.0, 0.4], rng.normal(size=(10, d)) * [0.4, 1.0]]  # each sees one direction well
y = [X_k @ theta_true + 0.5 * rng.normal(size=len(X_k)) for X_k in X]


def gradient(k, theta):
    """Return ∇ℓ_k(θ) for ℓ_k(θ) = ½‖X_k θ − y_k‖²."""
    return X[k].T @ (X[k] @ theta - y[k])


# %% [markdown]
# ## The algorithm
#
# Give every client its own copy $\theta_k$ and ask for $\theta_k = \theta_g$ (Eq. 3). A multiplier $v_k$ is the price
# of disagreeing. One round is
#
# $$\theta_k \leftarrow \mathrm{arg}\min_{\theta_k} \ell_k(\theta_k) + v_k^\top \theta_k
#   + \frac{\rho}{2}\|\theta_k - \theta_g\|^2 \qquad\text{(Eq. 5)}$$
#
# $$v_k \leftarrow v_k + \rho\,(\theta_k - \theta_g) \qquad\text{(Eq. 6)}$$
#
# $$\theta_g \leftarrow \mathrm{arg}\min_{\theta_g} \ell_0(\theta_g) - \sum_k v_k^\top \theta_g
#   + \sum_k \frac{\rho}{2}\|\theta_g - \theta_k\|^2 \qquad\text{(Eq. 7)}$$
#
# For least squares the client's problem is one linear system, and for $\ell_0(\theta) = \frac{\delta}{2}\|\theta\|^2$
# the server's is one division. The proximal term has a *square*; without the square the copies need never agree.
# Parameters and multipliers travel, and no row does.


# %%
def admm(rounds, sign=+1.0):
    """Run textbook ADMM; `sign` is for the exercise."""
    theta_g, v, path = np.zeros(d), np.zeros((K, d)), []
    for _ in range(rounds):
        theta = np.zeros((K, d))
        for k in range(K):
            A = X[k].T @ X[k] + rho * np.eye(d)
            theta[k] = np.linalg.solve(A, X[k].T @ y[k] - v[k] + rho * theta_g)  # Eq. 5
            v[k] = v[k] + sign * rho * (theta[k] - theta_g)  # Eq. 6
        theta_g = (v.sum(0) + rho * theta.sum(0)) / (delta + rho * K)  # Eq. 7
        path.append((theta_g, theta, v.copy()))
    return path


path = admm(60)
X_all, y_all = np.vstack(X), np.concatenate(y)
pooled = np.linalg.solve(X_all.T @ X_all + delta * np.eye(d), X_all.T @ y_all)
print("ADMM after 60 rounds ", path[-1][0])
print("all rows in one place", pooled)
assert np.allclose(path[-1][0], pooled, atol=1e-5)

# %% [markdown]
# ## Multipliers are negative gradients
#
# Differentiate the client's problem: $\nabla\ell_k(\theta_k) + v_k^{\mathrm{old}} + \rho(\theta_k - \theta_g) = 0$.
# The last two terms are the *new* multiplier, so
#
# $$v_k = -\nabla\ell_k(\theta_k) \qquad\text{(Eq. 8)}$$
#
# after **every** client step, not only in the end. What does take time is that the copies agree, and that the
# multipliers add up: $\delta\,\theta_g = \sum_k v_k$ (Eq. 2).

# %%
identity = [max(abs(v[k] + gradient(k, theta[k])).max() for k in range(K)) for _, theta, v in path]
agree = [abs(theta - theta_g).max() for theta_g, theta, _ in path]
gather = [abs(delta * theta_g - v.sum(0)).max() for theta_g, _, v in path]
print(f"largest |v_k + ∇ℓ_k(θ_k)| over all rounds: {max(identity):.1e}")
assert max(identity) < 1e-12
assert agree[-1] < 1e-6 < 0.1 < agree[0]
assert gather[-1] < 1e-6 < 0.1 < gather[0]

# %% tags=["hide-input"]
rounds = np.arange(1, len(path) + 1)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
for values, label, marker in (
    (agree, r"copies agree: $|\theta_k-\theta_g|$", "o"),
    (gather, r"multipliers add up: $|\delta\theta_g-\sum_k v_k|$", "s"),
    (np.maximum(identity, 1e-17), r"multipliers are gradients: $|v_k+\nabla\ell_k|$", "^"),
):
    left.plot(rounds, values, marker=marker, markevery=6, label=label)
style.log_axis(left, "largest entry")
left.set_ylim(top=1e5)
left.legend(fontsize=8, loc="upper right")
left.set_title("Two conditions converge, one always holds")
trace = np.array([np.zeros(d), *(theta_g for theta_g, _, _ in path)])
right.plot(*trace.T, color=style.BLUE, marker="o", label=r"server $\theta_g$")
for k, (colour, marker) in enumerate(((style.VERMILION, "s"), (style.GREEN, "^"))):
    copies = np.array([theta[k] for _, theta, _ in path])
    right.plot(*copies.T, color=colour, marker=marker, lw=1, label=rf"client {k + 1}'s copy $\theta_{k + 1}$")
right.plot(*pooled, "k*", ms=12, zorder=5, label="pooled solution")
right.set(xlabel="first coordinate", ylabel="second coordinate", title="Paths")
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# ## The library's method
#
# In `bayesadmm_np` a method is a few numbers, and a *family of distributions* is part of the problem. Classic ADMM
# is what you get for the isotropic Gaussian family $\{N(m, I)\}$ when expectations are replaced by values at the mean;
# lesson 5 says why. The prior $N(0, I/\delta)$ is the regulariser $\ell_0$. The iterates are the same to rounding:

# %%
clients = [ba.losses.LeastSquares(X_k, y_k) for X_k, y_k in zip(X, y, strict=True)]
prior = ba.families.IsotropicGaussian(mean=np.zeros(d), precision=delta)
ours = []
result = ba.run(
    ba.methods.ADMM(rho=rho), clients, prior, rounds=60, callback=lambda record, q: ours.append(np.array(q.mean))
)
difference = max(abs(a - b[0]).max() for a, b in zip(ours, path, strict=False))
print(result.message)
print(f"largest difference from the ten lines above, {result.rounds} rounds: {difference:.1e}")
assert difference < 1e-12
assert np.allclose(result.sites[0].linear, path[result.rounds - 1][2][0], atol=1e-12)  # the dual is the multiplier

# %% [markdown]
# ## Change a line and see what breaks
#
# Flip the sign of the dual step: `v[k] - rho * (theta[k] - theta_g)`. Which of the three curves breaks first?

# %% [markdown] tags=["answer"]
# The identity $v_k = -\nabla\ell_k(\theta_k)$, in the very first round: the optimality condition of the
# client's problem is now $-\nabla\ell_k(\theta_k) = v_k^{\mathrm{old}} + \rho(\theta_k-\theta_g)$ while we stored
# $v_k^{\mathrm{old}} - \rho(\theta_k-\theta_g)$. The price now *rewards* disagreement, and the iterates run away.

# %% tags=["answer"]
broken = admm(60, sign=-1.0)
for number in (1, 2, 5, 10):
    theta_g, theta, v = broken[number - 1]
    off = max(abs(v[k] + gradient(k, theta[k])).max() for k in range(K))
    print(f"round {number:2}: |v_k + ∇ℓ_k| = {off:9.2e}   distance to the answer = {abs(theta_g - pooled).max():9.2e}")
assert abs(broken[0][2][0] + gradient(0, broken[0][1][0])).max() > 1.0
assert abs(broken[-1][0] - pooled).max() > 100 * abs(broken[0][0] - pooled).max()
