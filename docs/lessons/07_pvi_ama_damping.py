# %% [markdown]
# # 7. PVI, AMA, damping, acceleration
#
# *20 minutes. You need: lesson 5.*
#
# The server's step in Eq. 54 has a knob, $\alpha$. Bayesian ADMM sets $\alpha = 1/(1+\rho K)$: the server stays near
# its clients. Set $\alpha = 1$ and the server jumps to $\eta_0 + \sum_k\eta_k$ at once:
#
# | method | client's $\rho$ | dual step | $\alpha$ | known as |
# |---|---|---|---|---|
# | `BayesADMM(rho)` | $\rho$ | $\rho$ | $1/(1+\rho K)$ | ADMM |
# | `AMA(rho)` | $\rho$ | $\rho$ | 1 | alternating minimisation (Tseng; Eq. 39–41) |
# | `PVI()` | 1 | 1 | 1 | partitioned variational inference (Eq. 36–38) |
# | `PVI(gamma)` | 1 | $\gamma$ | 1 | damped PVI (Eq. 42) |
#
# PVI is AMA at $\rho = 1$. In the language of factors, $q_g \propto \pi_0\prod_k t_k$ with
# $t_k = \exp\langle\eta_k, T\rangle$: every client divides its own factor out of the product, fits its own data, and
# puts a better factor back.
#
# **What you will learn:** the fastest method depends on the *family*. Damping costs rounds and gains safety;
# acceleration gains the rounds back.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np
from _data import digits_clients

import bayesadmm_np as ba

style.use()
clients = digits_clients("odd")  # five clients, two digits each: is the digit odd?
d, K = clients[0].dim, len(clients)
methods = ba.methods
chosen = {
    "BayesADMM, ρ = 1": methods.BayesADMM(rho=1.0),
    "PVI (= AMA, ρ = 1)": methods.PVI(),
    "AMA, ρ = 20": methods.AMA(rho=20.0),
    "damped PVI, γ = 1/K": methods.PVI(gamma=1 / K),
    "damped PVI, γ = 0.4": methods.PVI(gamma=0.4),
    "accelerated damped PVI": ba.Accelerated(methods.PVI(gamma=0.4), memory=5),
}


def compare(family, rounds=40):
    """Return every method's relative gap to the pooled optimum, per round."""
    prior = family(np.zeros(d), 1.0)
    best = ba.solve_pooled(clients, prior).objective
    gaps = {}
    for name, method in chosen.items():
        result = ba.run(method, clients, prior, rounds=rounds, tol=1e-10, raise_on_failure=False)
        gaps[name] = (result.objective - best) / best
    return gaps


def rounds_to(gap, level):
    """Return the first round from which the gap stays below a level, as text."""
    above = np.flatnonzero(~(np.abs(gap) < level))
    return "> 40" if above[-1:] == len(gap) - 1 else str(above[-1] + 1 if above.size else 0)


same = [
    ba.run(m, clients, ba.families.FullGaussian(np.zeros(d), 1.0), rounds=3) for m in (methods.PVI(), methods.AMA(1.0))
]
assert np.array_equal(same[0].posterior.mean, same[1].posterior.mean)
results = {"full covariance": compare(ba.families.FullGaussian), "diagonal": compare(ba.families.DiagonalGaussian)}

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True)
print(f"{'rounds until the gap stays below':34}" + "".join(f"{level:>9}" for level in ("1 %", "0.01 %")))
for axis, (title, gaps) in zip(axes, results.items(), strict=True):
    print(title)
    for number, (name, gap) in enumerate(gaps.items()):
        print(f"  {name:32}" + "".join(f"{rounds_to(gap, level):>9}" for level in (1e-2, 1e-4)))
        marker = style.MARKERS[number]
        axis.plot(np.clip(gap, 1e-12, None), marker=marker, markevery=4, color=style.CYCLE[number], label=name)
    style.log_axis(axis, "relative gap to the pooled optimum")
    axis.set_title(title)
axes[1].set_ylabel("")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, fontsize=8, ncols=3, loc="outside lower center")
plt.show()

# %% [markdown]
# **Full covariance:** each client's problem is close to conjugate (it can express its own curvature exactly), so
# undamped PVI is nearly the one-round method of Prop. D.1: one round to 1 %. Bayesian ADMM's server, at $\rho = 1$,
# averages with its past and needs 17 rounds to 0.01 % where PVI needs 2.
#
# **Diagonal:** the clients' approximations are wrong in the same directions, and adding five wrong corrections
# overshoots. PVI ends more than a hundred times the optimum above it. A larger $\rho$ in AMA does *not* help: it moves
# the point where the natural gradient is taken, but the dual still *is* that natural gradient (Eq. 33), and the server
# still adds it in full. Adding less helps: damping ($\gamma < 1$: the dual is a running average, Eq. 42) or the
# averaging server of Bayesian ADMM ($\alpha < 1$).
#
# ## Acceleration
#
# One round is a fixed-point map of the duals, $(\eta_1, \dots, \eta_K) \mapsto (\eta_1', \dots, \eta_K')$. Anderson
# mixing stores the last few rounds and takes the affine combination whose residual is smallest in the Fisher metric.
# The server sends a handful of numbers, and every client mixes its own stored duals. A step is taken only if everything
# stays in the domain, so fixed points stay. Any method that has a dual can be wrapped.

# %%
full, diagonal = results["full covariance"], results["diagonal"]
assert rounds_to(full["PVI (= AMA, ρ = 1)"], 1e-2) == "1"
assert rounds_to(full["PVI (= AMA, ρ = 1)"], 1e-4) == "2"
assert rounds_to(full["BayesADMM, ρ = 1"], 1e-4) == "17"
assert diagonal["PVI (= AMA, ρ = 1)"][-1] > 100
assert rounds_to(diagonal["PVI (= AMA, ρ = 1)"], 1e-2) == "> 40"
assert rounds_to(diagonal["AMA, ρ = 20"], 1e-2) == "> 40"
quick, damped = (int(rounds_to(diagonal[name], 1e-2)) for name in ("accelerated damped PVI", "damped PVI, γ = 0.4"))
assert quick < damped < int(rounds_to(diagonal["BayesADMM, ρ = 1"], 1e-2))

# %% [markdown]
# ## Change a line and see what breaks
#
# The papers damp PVI with $\gamma = 1/K$. How much more can you take on the diagonal problem? Change `gamma` and look
# at the gap after 40 rounds.

# %% [markdown] tags=["answer"]
# The more the better, up to a cliff. One run does not show the cliff in advance, but the problem does: near the optimum
# a round is a linear map, $y \mapsto (I - \gamma G)y$, and `ba.local_rates` computes its eigenvalues
# ([How fast, and why](../rates.md)). The cliff is at $\gamma_{\max} = 0.67$. $\gamma = 1/K$ is slow here, and not safe
# everywhere: [lesson 9](09_how_fast_and_why.py) has a problem with two sites where $\gamma = 1/2$ diverges.

# %% tags=["answer"]
prior = ba.families.DiagonalGaussian(np.zeros(d), 1.0)
best = ba.solve_pooled(clients, prior).objective
rates = ba.local_rates(clients, prior)
print(f"γ_max = {rates.gamma_max:.3f}, and γ = {rates.best_gamma[0]:.2f} is fastest")
after = {}
for gamma in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0):
    result = ba.run(methods.PVI(gamma=gamma), clients, prior, rounds=40, raise_on_failure=False)
    assert (rates.factor(methods.PVI(gamma=gamma)) < 1) == (gamma < rates.gamma_max)
    after[gamma] = (result.objective[-1] - best) / best
    factor = rates.factor(methods.PVI(gamma))
    print(f"γ = {gamma:.1f}: predicted factor {factor:.2f}, gap after {result.rounds} rounds {after[gamma]:.1e}")
assert after[0.6] < after[0.4] < after[0.2] < after[0.1] < 1.0 < min(after[0.8], after[1.0])
assert abs(rates.gamma_max - 0.67) < 0.005
