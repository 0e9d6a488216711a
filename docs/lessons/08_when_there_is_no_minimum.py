# %% [markdown]
# # 8. When the client's problem has no minimum
#
# *20 minutes. You need: lessons 5 and 7.*
#
# Write the client's problem (Eq. 15) for a Gaussian $q = N(m, S^{-1})$ and look at the terms that are quadratic in
# $\theta$. The KL term brings $+\frac{\rho}{2} S_g$. The dual term,
# $\langle\eta_k,\mu\rangle = \mathbb{E}_q[v_k^\top\theta - \frac12\theta^\top V_k\theta]$, brings $-\frac12 V_k$,
# because the client has sent $V_k$ to the server already:
#
# $$\mathbb{E}_q[\ell_k] + v_k^\top m + \tfrac12\, m^\top(\rho S_g - V_k)\,m
#   + \tfrac12 \mathrm{tr}\bigl[(\rho S_g - V_k) S^{-1}\bigr] + \tfrac{\rho}{2}\log\det S + \dots$$
#
# A logistic loss grows only *linearly*. So if $\rho S_g - V_k$ has a negative eigenvalue, the objective falls to
# $-\infty$ far away: **the client's problem has no minimum**, although a perfectly good local one may lie near $q_g$,
# where the loss adds its own curvature.
#
# **What you will learn:** why a client's problem may have no minimum, what the status `ILL_POSED_CLIENT` means, and
# how the safeguard prevents it.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np
from _data import digits_clients, outlier_clients

import bayesadmm_np as ba
from bayesadmm_np.families import DiagonalGaussian, FullGaussian, Natural

style.use()
loss = ba.losses.Logistic(np.array([[1.0], [1.5], [2.0], [-0.5]]), np.array([1, 1, 0, 0]))
server = FullGaussian(mean=[0.5], precision=2.0)  # q_g
solver = ba.clients.VariationalNewton()


def subproblem(rho, V):
    """Return Eq. 15 with the dual (0.3, V)."""
    return ba.clients.Subproblem(loss, ba.losses.Exact(), server, Natural(np.array([0.3]), np.array([[V]])), rho)


def profile(problem, means):
    """Return the objective over m, minimised over variances near the server's (up to nine times as wide)."""
    variances = np.geomspace(0.05, 4.5, 40)
    grid = [[FullGaussian.from_covariance([m], v) for v in variances] for m in means]
    return np.array([min(problem.objective(q, problem.expect(q).value) for q in row) for row in grid])


# %% [markdown]
# Three duals at $\rho = \frac12$, so $\rho S_g = 1$. With $V = 0.6$ the problem is well posed. With $V = 1.2$ there is
# a local minimum and a hole behind the hill. With $V = 2$ the hill is gone.

# %% tags=["hide-input"]
means = np.linspace(-12, 14, 131)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.3))
found = {}
for axis, V, colour in zip(axes, (0.6, 1.2, 2.0), (style.GREEN, style.ORANGE, style.VERMILION), strict=True):
    problem = subproblem(0.5, V)
    heights = profile(problem, means)
    found[V] = solver.solve(problem, server, np.random.default_rng(0))
    axis.plot(means, heights, color=colour)
    axis.axvline(server.mean[0], color=style.GREY, ls=":", label="server's mean")
    if found[V].status is ba.clients.ClientStatus.CONVERGED:
        q = found[V].posterior
        axis.plot(q.mean, problem.objective(q, found[V].expected.value), "ko", ms=7, label="what the solver returns")
    axis.set(xlabel="mean $m$", title=f"$V={V}$,  $\\rho S_g-V={1 - V:+.1f}$:  {found[V].status.name}")
    print(f"V = {V}: guaranteed minimum: {problem.is_well_posed!s:5}  solver: {found[V].status.value}")
axes[0].set_ylabel("client's objective")
figure.legend(*axes[0].get_legend_handles_labels(), ncols=2, fontsize=8, loc="outside lower center")
plt.show()

# %% [markdown]
# A solver that minimises can end in the hole of the middle panel: one long first step is enough. The library's solver
# starts at $q_g$ and bounds every step in KL as long as the problem is not known to be well posed. It returns the
# stationary point that is *connected to* $q_g$. If there is none, its status says so.

# %%
near, middle = found[1.2].posterior, subproblem(0.5, 1.2)
far = near.with_natural(Natural(np.array([40.0 * 0.05]), np.array([[0.05]])))  # N(40, 20)
values = [middle.objective(q, middle.expect(q).value) for q in (near, far)]
print(f"objective at the returned q_k {values[0]:.2f}, at N(40, 20) {values[1]:.2f}")
assert values[1] < values[0]
assert found[1.2].status is ba.clients.ClientStatus.CONVERGED
assert found[2.0].status is ba.clients.ClientStatus.ILL_POSED

# %% [markdown]
# ## It happens on ordinary data
#
# Five clients have two digits each; the question is whether the digit is at least five. Four clients see only one
# answer. With a diagonal covariance, Bayesian ADMM at $\rho = 1$ stops in its second round:

# %%
clients = digits_clients("high")
prior = DiagonalGaussian(np.zeros(clients[0].dim), 1.0)
plain = ba.run(ba.methods.BayesADMM(rho=1.0), clients, prior, rounds=60, raise_on_failure=False)
print(plain.message)
assert plain.status is ba.Status.ILL_POSED_CLIENT
assert plain.failure.round == 2
assert sum(np.unique(client.y).size == 1 for client in clients) == 4

# %% [markdown]
# ## The safeguard
#
# The server follows every $V_k$, so it can check $\rho S_g - V_k \;\succeq\; 0$ *before* it broadcasts. And it can
# choose $\alpha$. With $\alpha = 1$, $S_g = S_0 + \sum_j V_j$, and for convex losses no $V_j$ has a negative
# eigenvalue. Hence for $\rho = 1$ (and more so above)
#
# $$\rho S_g - V_k = S_0 + \sum_{j\neq k} V_j \;\succeq\; 0 .$$
#
# `safeguard=True` raises $\alpha$ in $[1/(1+\rho K), 1]$ just enough. Fixed points do not depend on $\alpha$, so the
# answer is the same. The papers do not use it, so it is off by default.

# %%
guarded = ba.run(ba.methods.BayesADMM(rho=1.0), clients, prior, rounds=60, safeguard=True)
accelerated = ba.run(ba.Accelerated(ba.methods.PVI(gamma=0.4)), clients, prior, rounds=60)
best = ba.solve_pooled(clients, prior).objective
alphas = [record.alpha for record in guarded.history]
print("α of the first rounds:", " ".join(f"{alpha:.2f}" for alpha in alphas[:8]), f"  (plain: {1 / 6:.2f})")
print(f"relative gap after 60 rounds: {(guarded.objective[-1] - best) / best:.1e}")

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
for result, name, colour, marker in (
    (plain, "BayesADMM: stops", style.VERMILION, "X"),
    (guarded, "BayesADMM with safeguard", style.BLUE, "o"),
    (accelerated, "accelerated damped PVI", style.GREEN, "^"),
):
    gap = np.clip((result.objective - best) / best, 1e-10, None)
    left.plot(gap, color=colour, marker=marker, markevery=1 if result is plain else 6, label=name)
style.log_axis(left, "relative gap to the pooled optimum")
left.legend(fontsize=8)
left.set_title("The run goes on, towards the pooled answer")
right.step(range(1, len(alphas) + 1), alphas, where="mid", color=style.BLUE, label="with safeguard")
right.axhline(1 / 6, color=style.GREY, ls="--", label=r"$1/(1+\rho K)$")
right.set(xlabel="round", ylabel=r"server's step $\alpha$", ylim=(0, 1.05), title="Raised only where needed")
right.legend(fontsize=8)
plt.show()
assert alphas[0] > 1 / 6 + 0.01
assert min(alphas) > 1 / 6 - 1e-12
assert (guarded.objective[-1] - best) / best < 1e-2
assert not guarded.status.is_failure

# %% [markdown]
# ## Change a line and see what breaks
#
# Set $\rho = 1/K$ (the one-round value of lesson 5) on the outlier data of lesson 4, with the safeguard on. Is it safe?

# %% [markdown] tags=["answer"]
# No. For $\rho < 1$ even $\alpha = 1$ leaves
# $\rho S_g - V_k = \rho S_0 + \rho\sum_{j\ne k}V_j - (1-\rho)V_k$, which is negative where one client has much more
# curvature than the others together. The guarantee is for $\rho \ge 1$.

# %% tags=["answer"]
for rho in (1 / 2, 1.0):
    for safeguard in (False, True):
        result = ba.run(
            ba.methods.BayesADMM(rho=rho),
            outlier_clients(),
            FullGaussian(np.zeros(3), 0.2),
            rounds=60,
            safeguard=safeguard,
            raise_on_failure=False,
        )
        ill = sum(not client.well_posed for record in result.history for client in record.clients)
        ended = f"{result.status.name:16} after {result.rounds:2} rounds, {ill} not certified"
        print(f"ρ = {rho}, safeguard {safeguard!s:5}: {ended}")
        if rho < 1:
            assert result.status is ba.Status.ILL_POSED_CLIENT
        else:
            assert not result.status.is_failure
            assert ill == 0 or not safeguard
