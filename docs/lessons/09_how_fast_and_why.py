# %% [markdown]
# # 9. How fast, and why
#
# *25 minutes. You need: lessons 7 and 8, and eigenvalues.*
#
# Lesson 7 counted rounds, lesson 8 lost clients. Both can be computed before a run. Near the pooled optimum a round of
# every method is a linear map of the errors, and its largest eigenvalue is the factor by which a round shortens them.
#
# Measure the deviations of $\lambda_g$, $\lambda_k$ and $\eta_k$ from the optimum in the Fisher metric: $x$, $z_k$ and
# $y_k$. A client's answer satisfies $\eta_k + \nabla_\mu L_k + \rho(\lambda_k - \lambda_g) = 0$ (Eq. 32), with
# $L_k(\mu) = \mathbb{E}_q[\ell_k]$. To first order this is $y_k + B_kz_k + \rho(z_k - x) = 0$, where $B_k$ is the
# second derivative of $L_k$, and the round becomes
#
# $$z_k = (\rho + B_k)^{-1}(\rho x - y_k), \qquad y_k \leftarrow y_k + \gamma\rho(z_k - x),$$
#
# $$x \leftarrow (1-\alpha)\,\mathrm{mean}_k z_k + \alpha\sum_k y_k.$$
#
# That is ordinary ADMM on the quadratics $\frac{1}{2}x^\top B_kx$. Data, loss and *family* enter by the matrices
# $B_k$ alone.
#
# **What you will learn:** the family decides the rate. Damping has a cliff that can be computed. A larger $\rho$ may
# not save a client that has too much of the curvature. A guarantee costs nothing where a method works.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np
from _data import digits_clients

import bayesadmm_np as ba

style.use()
methods, families = ba.methods, ba.families
clients = digits_clients("odd")
d, K = clients[0].dim, len(clients)
priors = {"full": families.FullGaussian(np.zeros(d), 1.0), "diagonal": families.DiagonalGaussian(np.zeros(d), 1.0)}
rates = {name: ba.local_rates(clients, prior) for name, prior in priors.items()}


def errors(method, prior, rounds):
    """Return the distance to the pooled optimum after each round, in its Fisher metric."""
    best, found = ba.solve_pooled(clients, prior, tol=1e-12).posterior, []
    solver = ba.clients.VariationalNewton(tol=1e-12)

    def note(record, q):
        found.append(best.fisher_norm(q.natural - best.natural))

    ba.run(method, clients, prior, rounds=rounds, tol=1e-300, solver=solver, callback=note, raise_on_failure=False)
    return np.array(found)


def measured(found):
    """Return the mean factor of the last rounds above rounding."""
    above = found[found > 1e-9]
    half = len(above) // 2
    return (above[-1] / above[half]) ** (1 / (len(above) - 1 - half))


# %% [markdown]
# ## Predicted and measured
#
# `ba.local_rates(clients, prior)` differentiates every client's natural gradient at the optimum. Nothing is fitted to
# the runs.

# %%
runs = {
    ("full", "PVI"): (methods.PVI(), 12),
    ("full", "BayesADMM, ρ = 1"): (methods.BayesADMM(1.0), 120),
    ("full", "BayesADMM, ρ = 3"): (methods.BayesADMM(3.0), 200),
    ("diagonal", "PVI, γ = 0.4"): (methods.PVI(0.4), 60),
    ("diagonal", "PVI, γ = 1/K"): (methods.PVI(1 / K), 120),
}
curves = {}
print(f"{'family':10}{'method':22}{'predicted':>10}{'measured':>10}")
for (family, name), (method, rounds) in runs.items():
    curves[family, name] = errors(method, priors[family], rounds)
    pair = rates[family].factor(method), measured(curves[family, name])
    print(f"{family:10}{name:22}{pair[0]:10.3f}{pair[1]:10.3f}")
    assert abs(pair[1] - pair[0]) < 0.03

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.0))
for number, ((family, name), found) in enumerate(curves.items()):
    colour, shown = style.CYCLE[number], found[found > 1e-9]
    left.plot(np.arange(1, len(shown) + 1), shown, color=colour, label=f"{family}: {name}")
    factor, last = rates[family].factor(runs[family, name][0]), len(shown)
    line = np.arange(max(last - 25, 1), last + 1)
    left.plot(line, shown[-1] * factor ** (line - last), color="black", ls=":", lw=2.5)
style.log_axis(left, "distance to the pooled optimum")
left.set_title("Errors (lines) and predicted slopes (dotted)")
left.legend(fontsize=8)
for number, (family, found) in enumerate(rates.items()):
    for k, spectrum in enumerate(found.spectra):
        right.plot(
            np.full(len(spectrum), k + 1 + 0.3 * number),
            spectrum,
            ls="",
            marker=style.MARKERS[number],
            alpha=0.6,
            color=style.CYCLE[number],
            label=family if k == 0 else None,
        )
right.axhline(0.0, color=style.GREY, lw=0.8)
right.set_yscale("symlog", linthresh=0.1)
right.set_ylim(-1.0, 2.5)
right.set(xlabel="client", ylabel="eigenvalues of $B_k$", title="What the family leaves of the curvature")
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# The right-hand figure is the reason. A full covariance absorbs a client's curvature, and $B_k$ keeps only how this
# curvature changes with $q$: third and fourth derivatives, small when there are many rows. Then
# $y_k \leftarrow -C_k\sum_{j\ne k}y_j$ with $C_k = B_k(1+B_k)^{-1} \approx 0$, and PVI is nearly the one-round method.
# A diagonal family leaves all correlations in $B_k$. Bayesian ADMM is slow even for $B_k = 0$: its averaging server
# has the factor $\rho K/(1+\rho K)$ for all data.
#
# $B_k$ has eigenvalues of **both signs**. $L_k$ is not convex in $\mu$, so that theorems on convex ADMM do not apply
# to Eq. 15–17; in mean and Cholesky factor the pooled objective is convex.

# %%
widest = {family: max(np.abs(spectrum).max() for spectrum in found.spectra) for family, found in rates.items()}
print({family: round(float(width), 2) for family, width in widest.items()})
assert widest["full"] < 0.5 * widest["diagonal"]
assert all(spectrum[0] < 0 < spectrum[-1] for spectrum in rates["full"].spectra)
no_curvature = ba.splitting.rates.LocalRates((1e-9 * np.eye(2),) * K, (1 / K,) * K)
assert all(abs(no_curvature.factor(methods.BayesADMM(rho)) - rho * K / (1 + rho * K)) < 1e-6 for rho in (0.5, 1.0, 3.0))

# %% [markdown]
# ## The cliff
#
# With $\alpha = \rho = 1$ damped PVI is $y \leftarrow (I - \gamma G)y$, with
# $G = \mathrm{blockdiag}(P_k) + (I - P_k)11^\top$ and $P_k = (1 + B_k)^{-1}$. It is stable if and only if
# $\gamma < \gamma_{\max} = \min_g 2\,\mathrm{Re}\,g/|g|^2$ over the eigenvalues $g$ of $G$. Here
# $\gamma_{\max} = 0.67$, and the fastest $\gamma$ lies just below it.

# %%
diagonal = rates["diagonal"]
gamma, factor = diagonal.best_gamma
print(f"γ_max = {diagonal.gamma_max:.3f}, fastest γ = {gamma:.3f} with factor {factor:.3f}")
gammas = (0.1, 0.3, 0.5, 0.6, 0.65, 0.7, 0.8)
gaps = {value: errors(methods.PVI(value), priors["diagonal"], 60)[-1] for value in gammas}
for value, gap in gaps.items():
    factor = diagonal.factor(methods.PVI(value))
    print(f"γ = {value:.2f}: predicted factor {factor:.3f}, error after 60 rounds {gap:.1e}")
assert all((gap < 1.0) == (value < diagonal.gamma_max) for value, gap in gaps.items())
assert abs(diagonal.gamma_max - 0.67) < 0.005
assert 0.95 * diagonal.gamma_max < gamma < diagonal.gamma_max

# %% [markdown]
# $1/K$ is *not* always below the cliff. Take two sites, least squares and a diagonal family: site 1 measures the sum of
# the 24 coefficients, site 2 everything but the sum. Each diagonal takes the wrong share of the curvature along the
# sum, and $\gamma_{\max} = 0.283 < 1/2$.

# %%
ones = np.ones((24, 24)) / 24
opposed = [
    ba.losses.LeastSquares(np.sqrt(0.09) * np.ones((1, 24)), [1.0]),
    ba.losses.LeastSquares(np.sqrt(0.9 * 24 / 23) * (np.eye(24) - ones), np.arange(24) / 24),
]
flat = families.DiagonalGaussian(np.zeros(24), 0.01)
print(f"γ_max = {ba.local_rates(opposed, flat).gamma_max:.3f}")
halves = ba.run(methods.PVI(1 / 2), opposed, flat, rounds=200, raise_on_failure=False)
ends = halves.objective[[0, -1]]
print(f"γ = 1/K: objective {ends[0]:.1f} at the start, {ends[1]:.1e} after {halves.rounds} rounds")
assert ends[1] > ends[0]
assert abs(ba.local_rates(opposed, flat).gamma_max - 0.283) < 0.0005

# %% [markdown]
# ## Round 2 of Bayesian ADMM
#
# From the prior, with curvatures $D_j$, client $k$'s problem in round 2 is bounded below if
#
# $$ \rho S_0 + \frac{2\rho}{1+\rho K}\sum_jD_j - D_k \succeq 0. $$
#
# The weight of the sum grows with $\rho$, but never above $2/K$. Among three clients, a client that has more than 2/3
# of a coefficient's curvature is therefore lost until $\rho S_0$ outweighs the rest. Here site 2 has 91 %, and
# $\rho = 20$ is still too small.

# %%
third = ba.losses.LeastSquares(0.03 * np.eye(24), np.ones(24))
for rho in (1.0, 2.0, 5.0, 20.0):
    lost = ba.run(methods.BayesADMM(rho), [*opposed, third], flat, raise_on_failure=False)
    assert lost.status is ba.Status.ILL_POSED_CLIENT
    assert lost.failure.round == 2
print(lost.message)
held = (loss.expect(flat, ba.losses.Exact()).curvature.dense() for loss in (*opposed, third))
shares = np.array([np.diag(curvature) for curvature in held])
assert round(100 * (shares[1] / shares.sum(axis=0)).max()) == 91

# %% [markdown]
# ## A guarantee
#
# Local theory does not cover a distant start. `ba.Guarded(method)` runs a method as it is while it makes progress.
# Where it does not, the server takes steps along which the pooled objective must fall: on a line in mean and Cholesky
# factor, where it is convex ([A guarantee](../guarantee.md) has the theorem). Where PVI works, as for the digits with a
# full covariance, the guard changes nothing.

# %%
for name, method in {
    "PVI": methods.PVI(),
    "PVI, γ = 1/K": methods.PVI(1 / 3),
    "BayesADMM, ρ = 1": methods.BayesADMM(1.0),
}.items():
    plain = ba.run(method, [*opposed, third], flat, rounds=200, raise_on_failure=False)
    safe = ba.run(ba.Guarded(method), [*opposed, third], flat, rounds=200)
    print(f"{name:18} {plain.status.name:17} with a guard {safe.status.name} after {safe.rounds} rounds")
    assert plain.status is not ba.Status.CONVERGED
    assert safe.status is ba.Status.CONVERGED
good = [ba.run(method, clients, priors["full"]) for method in (methods.PVI(), ba.Guarded(methods.PVI()))]
assert good[0].rounds == good[1].rounds
assert np.allclose(good[0].objective, good[1].objective, rtol=1e-12)

# %% [markdown]
# ## Change a line and see what breaks
#
# The prior of the two opposed sites has precision 0.01. Raise it to 10. What becomes of $\gamma_{\max}$, and may PVI
# then go undamped?

# %% [markdown] tags=["answer"]
# The prior adds the same curvature to every coordinate. The sites' shares, 9 % and 90 % of each coordinate's curvature,
# fall to 1 % and 8 %. $B_k$ falls with them, and $\gamma_{\max}$ rises above 1. Regularisation shrinks estimates, and
# it also speeds up rounds.

# %% tags=["answer"]
for precision in (0.01, 1.0, 10.0):
    strong = families.DiagonalGaussian(np.zeros(24), precision)
    found = ba.local_rates(opposed, strong)
    result = ba.run(methods.PVI(), opposed, strong, rounds=60, raise_on_failure=False)
    ended = f"undamped {result.status.name} after {result.rounds} rounds"
    print(f"precision {precision:5}: γ_max = {found.gamma_max:.2f}, {ended}")
    assert (found.gamma_max > 1.0) == (result.status is ba.Status.CONVERGED)
assert found.gamma_max > 1.0
for precision, percent in ((0.01, [9, 90]), (10.0, [1, 8])):
    assert np.allclose(100 * shares[:2, 0] / (shares[:2, 0].sum() + precision), percent, atol=0.5)
