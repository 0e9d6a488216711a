# %% [markdown]
# # 4. The circuit
#
# *20 minutes. You need: lessons 1 and 3.*
#
# Lessons 1 and 3 found the same sentence twice: *the solution is a sum of (natural) gradients*. Written as a loop of
# four conditions, it is the **duality circuit**, the central picture of the paper (its Fig. 3).
#
# **What you will learn:** to read the four edges, to compute their residuals for any method, and to use them as a proof
# that an answer is the pooled answer.
#
# | edge | ADMM (Eq. 4) | Bayesian duality (Eq. 13) |
# |---|---|---|
# | broadcast | $\theta_k^\ast = \theta_g^\ast$ | $\mu_k^\ast = \mu_g^\ast$ |
# | gradient | $v_k^\ast = -\nabla\ell_k(\theta_k^\ast)$ | $\eta_k^\ast = -\nabla_\mu\mathbb{E}_{q_k^\ast}[\ell_k]$ |
# | gather | $v_g^\ast = \sum_{k=1}^K v_k^\ast$ | $\lambda_g^\ast = \eta_0 + \sum_{k=1}^K \eta_k^\ast$ |
# | back | $\theta_g^\ast = v_g^\ast$ | $\mu_g^\ast = \nabla A(\lambda_g^\ast)$ |
#
# Left column of the circuit: *primal* variables, where the server and the clients agree. Right column: *dual*
# variables, which add up. In ADMM, going back from the dual to the primal is the identity (for
# $\ell_0 = \frac12\|\theta\|^2$); in an exponential family it is the dual map of lesson 2.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np
from _data import outlier_clients

import bayesadmm_np as ba

style.use()


# %% tags=["hide-input"]
def draw_circuit(axis, title, nodes, edges):
    """Draw four nodes and the four arrows between them."""
    places = ((0, 1), (0, 0), (1, 0), (1, 1))
    for (x, y), text in zip(places, nodes, strict=True):
        axis.text(x, y, text, ha="center", va="center", fontsize=15, bbox={"boxstyle": "round", "fc": "w"})
    for number, text in enumerate(edges):
        start, stop = np.array(places[number], float), np.array(places[(number + 1) % 4], float)
        inset = 0.22 * (stop - start)
        arrow = {"arrowstyle": "-|>", "color": style.CYCLE[number], "lw": 2, "mutation_scale": 16}
        axis.annotate("", stop - inset, start + inset, arrowprops=arrow)
        x, y = 0.5 * (start + stop) + ((-0.06, 0), (0, -0.13), (0.06, 0), (0, 0.13))[number]
        place = {"ha": ("right", "center", "left", "center")[number], "va": "center"}
        axis.text(x, y, text, color=style.CYCLE[number], fontsize=10, **place)
    axis.set(xlim=(-0.75, 1.75), ylim=(-0.35, 1.35), title=title)
    axis.axis("off")


figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
draw_circuit(
    left,
    "ADMM (Eq. 4)",
    (r"$\theta_g$", r"$\theta_k$", r"$v_k$", r"$v_g$"),
    ("broadcast", r"$-\nabla\ell_k$", "gather\n(sum)", "identity"),
)
draw_circuit(
    right,
    "Bayesian duality (Eq. 13)",
    (r"$\mu_g$", r"$\mu_k$", r"$\eta_k$", r"$\lambda_g$"),
    ("broadcast", r"$-\nabla_\mu\mathbb{E}_q[\ell_k]$", "gather\n(sum)", r"dual map $\nabla A$"),
)
plt.show()

# %% [markdown]
# ## The edges of a run
#
# Two clients hold points in the plane with labels 0 and 1; one point of client 1 is mislabelled and far off. Each run
# records the residual of every edge after every round, in the same unit (Fisher length per parameter), in
# `result.history[t].edges`. We run classic ADMM and Bayesian ADMM on the same rows, both with $\rho = 1$.

# %%
clients = outlier_clients()
runs = {
    "ADMM, isotropic family": ba.run(
        ba.methods.ADMM(rho=1.0), clients, ba.families.IsotropicGaussian(np.zeros(3), 0.2), rounds=60, tol=1e-8
    ),
    "Bayesian ADMM, full covariance": ba.run(
        ba.methods.BayesADMM(rho=1.0), clients, ba.families.FullGaussian(np.zeros(3), 0.2), rounds=60, tol=1e-8
    ),
}

# %% tags=["hide-input"]
names = ("broadcast", "natural_gradient", "gather", "dual_map")
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
for axis, (title, result) in zip(axes, runs.items(), strict=True):
    for name, colour, marker in zip(names, style.CYCLE, style.MARKERS, strict=False):
        values = [max(getattr(record.edges, name), 1e-17) for record in result.history]
        axis.plot(range(1, len(values) + 1), values, color=colour, marker=marker, markevery=5, label=name)
    style.log_axis(axis, "residual", floor=3e-18)
    axis.set_title(title)
axes[1].set_ylabel("")
axes[0].legend(fontsize=8)
plt.show()
for result in runs.values():
    edges = [record.edges for record in result.history]
    assert max(edge.dual_map for edge in edges) < 1e-12
    assert max(edge.natural_gradient for edge in edges) < 1e-7
    assert min(edges[0].broadcast, edges[0].gather) > 1e-2 > 1e-7 > max(edges[-1].broadcast, edges[-1].gather)

# %% [markdown]
# Read it from bottom to top. The dual map holds by construction: the server stores one of $(\lambda_g, \mu_g)$ and
# computes the other. The natural-gradient edge holds after *every* client step, up to the solver's tolerance
# (Eq. 33; in lesson 1 it was Eq. 8). The two upper curves, agreement and gathering, are the ones a round improves.
#
# ## A proof, not a promise
#
# When all four vanish, Eq. 12 holds and $q_g$ is the solution of the *pooled* problem. `certificate()` also evaluates
# Eq. 12 directly, from one sum of natural gradients at the server; no row leaves its client for that either.

# %%
result = runs["Bayesian ADMM, full covariance"]
print(result.certificate())
pooled = ba.solve_pooled(clients, result.prior).posterior
print("server", result.posterior.mean)
print("pooled", pooled.mean)
assert result.certificate().holds
assert np.allclose(result.posterior.mean, pooled.mean, atol=1e-6)

# %% [markdown]
# The same circuit over rounds, as an animation (made by `docs/animate.py`): edges are as thick as their residual is
# large, and they grow thin as the run closes the circuit.
#
# ![The circuit over rounds](../figures/circuit.gif)
#
# The next film shows the server's decision boundary with its posterior band, beside that of classic ADMM.
#
# ![The boundary and its uncertainty over rounds](../figures/boundary.gif)
#
# In the dark band the side of a point is uncertain at one posterior standard deviation of its score, in the light band
# at 1.96. From which round on does each line stay within 2° and 0.05 of its own final place?


# %%
def line(q):
    """Return the direction of the boundary in degrees, and its distance from the origin."""
    across, up, constant = q.mean
    return np.degrees(np.arctan2(up, across)), constant / np.hypot(across, up)


def arrival(method, family, expectation=None):
    """Return the first round from which the boundary stays near the method's pooled one."""
    prior, lines = family(np.zeros(3), 0.2), []
    ba.run(method, clients, prior, rounds=60, expectation=expectation, callback=lambda record, q: lines.append(line(q)))
    end = ba.solve_pooled(clients, prior, expectation=expectation or method.expectation).posterior
    off = (abs(np.array(lines) - line(end)) > (2.0, 0.05)).any(axis=1)
    return int(np.flatnonzero(off)[-1]) + 2 if off.any() else 1


point, full = ba.families.IsotropicGaussian, ba.families.FullGaussian
admm = {rho: arrival(ba.methods.ADMM(rho), point) for rho in (0.2, 1.0, 2.0)}
bayes = arrival(ba.methods.BayesADMM(rho=1.0), full)
at_mean = arrival(ba.methods.BayesADMM(rho=1.0), full, ba.losses.Delta(2))
print("ADMM, round by ρ:", admm, f"  Bayesian ADMM: {bayes}, with the value at the mean for every average: {at_mean}")
assert admm == {0.2: 24, 1.0: 7, 2.0: 4}
assert bayes == at_mean == 1

# %% [markdown]
# ADMM needs 7 rounds at $\rho = 1$, 24 at 0.2, and 4 at 2: it measures every direction with the one ruler $\rho$.
# Bayesian ADMM needs 1, because its clients also send how *curved* their losses are. Uncertainty is not the reason.
# Put the value at the mean in place of every average over $q$, and it is as fast.
#
# ## Change a line and see what breaks
#
# Algorithm 1 of the paper has a factor $\gamma$ on the dual step: `BayesADMM(rho=1.0, gamma=0.5)`. Which edge does it
# break during the run, and does the run still end at the pooled solution?

# %% [markdown] tags=["answer"]
# The natural-gradient edge. Eq. 33 needs the full step $\rho$; with $\gamma < 1$ the dual is a mixture of the old dual
# and the new natural gradient. It becomes the natural gradient as the clients' steps vanish. The fixed point stays.

# %% tags=["answer"]
damped = ba.run(ba.methods.BayesADMM(rho=1.0, gamma=0.5), clients, result.prior, rounds=100, tol=1e-8)
for label, run in (("γ = 1.0", result), ("γ = 0.5", damped)):
    edges = [record.edges.natural_gradient for record in run.history]
    print(f"{label}: natural-gradient edge after rounds 1, 5, 30: {edges[0]:.0e}, {edges[4]:.0e}, {edges[29]:.0e}")
assert max(record.edges.natural_gradient for record in result.history) < 1e-7
assert damped.history[0].edges.natural_gradient > 1e-2 > 1e-6 > damped.history[29].edges.natural_gradient
assert np.allclose(damped.posterior.mean, pooled.mean, atol=1e-4)

# %% [markdown]
# A second one: start at the prior with $\rho = 1/K$. Which edge then holds from the first round on, too?

# %% [markdown] tags=["answer"]
# The *gather* edge: $\sum_k\eta_k = \lambda_g - \eta_0$, for any server step $\alpha$. Only agreement is left to
# achieve. With such a small $\rho$, however, the clients go too far, and this run does not reach the end. Lesson 8
# explains the message.

# %% tags=["answer"]
plain = ba.run(ba.methods.BayesADMM(rho=1 / 2), clients, result.prior, rounds=60, raise_on_failure=False)
gather = max(record.edges.gather for record in plain.history)
print(f"largest gather residual of {plain.rounds} rounds at ρ = 1/K: {gather:.0e}")
print(plain.message)
assert gather < 1e-10
assert plain.status is ba.Status.ILL_POSED_CLIENT
