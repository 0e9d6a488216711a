# %% [markdown]
# # 6. Why λ and not μ
#
# *15 minutes. You need: lessons 2 and 5.*
#
# ADMM's dual step is $v_k \leftarrow v_k + \rho(\theta_k - \theta_g)$. Lifted to distributions, the difference could be
# taken in either coordinate system:
#
# $$\eta_k \leftarrow \eta_k + \rho\,(\lambda_k - \lambda_g) \qquad\text{(Bayesian ADMM, Eq. 16)}$$
#
# $$\eta_k \leftarrow \eta_k + \gamma\rho\,(\mu_k - \mu_g) \qquad\text{(Bregman ADMM, App. C.2)}$$
#
# In classic ADMM the two agree: for $N(m, I)$ both are $m$. Bregman ADMM (Wang & Banerjee 2014) takes the second.
#
# **What you will learn:** the first step keeps duals equal to natural gradients and does not depend on units.
# The second does neither.
#
# The multiplier $\eta_k$ is paired with $\mu$ in Eq. 15, so it is a *dual* vector, like $\lambda$;
# $\lambda_k-\lambda_g$ is one too. The moment difference $\mu_k - \mu_g$ is a *primal* vector. Adding it to $\eta_k$
# silently identifies the two spaces, by nothing but the units in which we happened to write $T(\theta)$. In the code,
# `Natural + Expectation` is a `TypeError`; the method `BregmanADMM` has to convert explicitly.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np

import bayesadmm_np as ba

style.use()
rng = np.random.default_rng(0)
heights = rng.normal(size=40)
X = np.column_stack([heights, np.ones(40)])
y = (X @ [1.0, 0.3] + 0.8 * rng.normal(size=40) > 0).astype(int)
parts = (slice(0, 15), slice(15, 40))
UNITS = {"unit": 1.0, "unit / 2": 2.0, "unit / 10": 10.0, "unit · 2": 0.5}


def in_units(factor):
    """Return the same two clients and the same prior with the first feature multiplied by `factor`."""
    D = np.diag([factor, 1.0])
    clients = [ba.losses.Logistic(X[part] @ D, y[part]) for part in parts]
    return clients, ba.families.FullGaussian(np.zeros(2), D @ D), D


def trace(method, factor, rounds=40):
    """Return the run, and its gap to the pooled optimum (which is the same number in all units)."""
    clients, prior, _ = in_units(factor)
    result = ba.run(method, clients, prior, rounds=rounds, tol=1e-12, raise_on_failure=False)
    return result, result.objective - ba.solve_pooled(clients, prior).objective


q = ba.families.IsotropicGaussian(np.array([1.0, -2.0]), 1.0)
assert np.allclose(q.natural.to_vector(), q.expectation.to_vector())  # for N(m, I) both are m

# %% [markdown]
# ## First: duals are natural gradients, or not
#
# The proof of Eq. 33 needs $\nabla_\mu\mathrm{KL}(q_k\|q_g) = \lambda_k - \lambda_g$: the dual step has to repeat the
# term that stands in the client's optimality condition (Eq. 32). A step along $\mu$ does not.

# %%
for method in (ba.methods.BayesADMM(), ba.methods.BregmanADMM()):
    result, _ = trace(method, 1.0, rounds=10)
    edges = [record.edges.natural_gradient for record in result.history]
    print(f"{method.name:12} |η_k + ∇_μ E[ℓ_k]| in rounds 1–5:", " ".join(f"{edge:.0e}" for edge in edges[:5]))
bayes_edges = trace(ba.methods.BayesADMM(), 1.0, 10)[0].history
assert max(record.edges.natural_gradient for record in bayes_edges) < 1e-7
assert edges[0] > 0.1

# %% [markdown]
# ## Second: units
#
# Measure the first feature in another unit and transform the prior with it. It is the same data and the same model, so
# the posterior only changes its coordinates. A good algorithm then gives the same posterior (*equivariance*).

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
gaps, failed = {}, {}
for axis, method in zip(axes, (ba.methods.BayesADMM(rho=1.0), ba.methods.BregmanADMM(rho=1.0)), strict=True):
    for number, (name, factor) in enumerate(UNITS.items()):
        colour, marker = style.CYCLE[number], style.MARKERS[number]
        result, gap = trace(method, factor)
        gaps[method.name, name], failed[method.name, name] = gap, result.status.is_failure
        shown = np.maximum(gap, 1e-13)
        axis.plot(shown, color=colour, marker=marker, markevery=(number, 4), label=name, alpha=0.8)
        if result.status.is_failure:
            axis.plot(len(gap) - 1, shown[-1], "X", color=colour, ms=11)
        print(f"{method.name:12} {name:10} {result.status.name:19} gap after {result.rounds:2} rounds {gap[-1]:.2e}")
    style.log_axis(axis, "objective − pooled minimum")
    axis.set_title(f"{method.name}: dual along {'λ' if method.dual_rule.reads_natural else 'μ'}")
axes[1].set_ylabel("")
axes[0].legend(title="first feature in", fontsize=8)
axes[1].plot([], [], "kX", ms=9, label="run failed")
axes[1].legend(fontsize=8)
plt.show()
assert all(np.allclose(gaps["BayesADMM", name], gaps["BayesADMM", "unit"], atol=1e-8) for name in UNITS)
assert failed["BregmanADMM", "unit · 2"]
assert not failed["BregmanADMM", "unit"]

# %% [markdown]
# On the left, four curves lie on top of each other; on the right, the unit decides whether the method works. The
# iterates themselves are mapped onto each other by the change of coordinates $\theta' = D^{-1}\theta$:

# %%
reference = trace(ba.methods.BayesADMM(), 1.0, 5)[0].posterior
changed = trace(ba.methods.BayesADMM(), 10.0, 5)[0].posterior
D = in_units(10.0)[2]
print("λ: after 5 rounds, mapped back", D @ changed.mean, " and in the first unit", reference.mean)
assert np.allclose(D @ changed.mean, reference.mean, atol=1e-7)
assert np.allclose(changed.precision, D @ reference.precision @ D, rtol=1e-6)

mu_reference = trace(ba.methods.BregmanADMM(), 1.0, 5)[0].posterior
mu_changed = trace(ba.methods.BregmanADMM(), 10.0, 5)[0].posterior
print("μ: after 5 rounds, mapped back", D @ mu_changed.mean, " and in the first unit", mu_reference.mean)
assert not np.allclose(D @ mu_changed.mean, mu_reference.mean, atol=1e-3)

# %% [markdown]
# ## Change a line and see what breaks
#
# Not even the data need to change. Multiply the second statistic by a constant:
# $T = (\theta, -\frac12\theta\theta^\top)$ instead of the paper's $T = (\theta, \theta\theta^\top)$. It is the same
# family of distributions, with other names for its parameters. Set `statistic_scale=1.0` instead of `2.0` in
# `BregmanADMM`. What happens to the curvature step $V_k \leftarrow V_k - 2\gamma\rho(M_k - M_g)$, where
# $M = mm^\top + S^{-1}$?

# %% [markdown] tags=["answer"]
# It is divided by four: a natural coordinate scales with $1/s$ and a moment with $s$, so a moment added to a natural
# coordinate scales with $s^2$. The two are different algorithms, and nothing says which to prefer.
# $\lambda$-differences scale as $\eta$ does, and the constant cancels.

# %% tags=["answer"]
steps = {}
for scale in (2.0, 1.0):
    result, gap = trace(ba.methods.BregmanADMM(statistic_scale=scale), 1.0, rounds=1)
    steps[scale] = result.sites[0].precision
    later = trace(ba.methods.BregmanADMM(statistic_scale=scale), 1.0, rounds=40)[1]
    print(f"scale {scale}: V_1 after one round {np.diag(steps[scale]).round(4)}, gap after 40 rounds {later[-1]:.1e}")
assert np.allclose(steps[2.0], 4.0 * steps[1.0])
