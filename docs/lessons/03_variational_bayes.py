# %% [markdown]
# # 3. Variational Bayes and natural gradients
#
# *25 minutes. You need: lesson 2 and Bayes' rule.*
#
# Lift the problem from a point $\theta$ to a distribution $q$ of an exponential family:
#
# $$q_g^\ast = \mathrm{arg}\min_{q \in \mathcal{Q}} \; \sum_{k=1}^K \mathbb{E}_q[\ell_k] + \mathrm{KL}(q \,\|\, \pi_0),
#   \qquad \pi_0 \propto e^{-\ell_0}. \qquad\text{(Eq. 9)}$$
#
# If $\mathcal{Q}$ contained all distributions, $q_g^\ast$ would be the Bayesian posterior. With Gaussians it is the
# best Gaussian approximation in this sense: a fit *with error bars*.
#
# **What you will learn:** the gradient of $\mathbb{E}_q[\ell]$ in $\mu$ *is* its natural gradient. For Gaussians it is
# made of the expected gradient and the expected Hessian. The solution is a sum of natural gradients, as the solution
# of lesson 1 was a sum of gradients.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.families import FullGaussian

style.use()
x = np.array([-3.0, -1.0, 0.5, 1.0, 2.0, 4.0, 5.0])
labels = np.array([0, 0, 1, 0, 1, 1, 1])
loss = ba.losses.Logistic(x[:, None], labels)  # one parameter: the slope
prior = FullGaussian(mean=[0.0], precision=0.1)
exact = ba.losses.Exact()  # expectations by quadrature that is exact to rounding; no sampling anywhere


def value(q):
    """Return E_q[ℓ]."""
    return loss.expect(q, exact).value


# %% [markdown]
# ## Bonnet and Price: derivatives move inside the expectation
#
# For $q = N(m, v)$
#
# $$\frac{\partial}{\partial m}\mathbb{E}_q[\ell] = \mathbb{E}_q[\ell'] =: g, \qquad
#   \frac{\partial}{\partial v}\mathbb{E}_q[\ell] = \tfrac12\, \mathbb{E}_q[\ell''] =: \tfrac12 H.$$
#
# We check both by central differences.

# %%
m, v, h = 0.6, 0.5, 1e-4
q = FullGaussian.from_covariance([m], v)
expected = loss.expect(q, exact)
g, H = expected.gradient[0], expected.curvature.dense()[0, 0]
by_m = (value(q.from_covariance([m + h], v)) - value(q.from_covariance([m - h], v))) / (2 * h)
by_v = (value(q.from_covariance([m], v + h)) - value(q.from_covariance([m], v - h))) / (2 * h)
print(f"Bonnet: {g:.8f} = {by_m:.8f}      Price: {0.5 * H:.8f} = {by_v:.8f}")
assert np.allclose([g, 0.5 * H], [by_m, by_v], atol=1e-7)

# %% [markdown]
# ## The natural gradient is the gradient in μ
#
# The natural gradient rescales the gradient in $\lambda$ by the inverse Fisher matrix
# $F(\lambda) = \nabla^2 A(\lambda)$. Because $F$ is the Jacobian of $\mu(\lambda)$, the chain rule removes it:
#
# $$\nabla_\mu \mathbb{E}_q[\ell] = F(\lambda)^{-1}\, \nabla_\lambda \mathbb{E}_q[\ell]. \qquad\text{(Eq. 11)}$$
#
# No Fisher matrix is ever formed. In the coordinates $T = (\theta, -\frac12\theta\theta^\top)$ of the code, the result
# is $(g - Hm,\; -H)$; the paper's Eq. 48 has $(g - Hm, \frac12 H)$ for $T = (\theta, \theta\theta^\top)$.
# Three routes to the same two numbers:

# %%
lam, mu, e = q.natural.to_vector(), q.expectation.to_vector(), np.eye(2)


def at_lambda(vector):
    """Return the member with a packed natural parameter."""
    return q.with_natural(q.natural.from_vector(vector))


def at_mu(vector):
    """Return the member with a packed expectation parameter."""
    return q.with_expectation(q.expectation.from_vector(vector))


in_mu = np.array([(value(at_mu(mu + h * d)) - value(at_mu(mu - h * d))) / (2 * h) for d in e])
in_lambda = np.array([(value(at_lambda(lam + h * d)) - value(at_lambda(lam - h * d))) / (2 * h) for d in e])
fisher = np.array(
    [(at_lambda(lam + h * d).expectation - at_lambda(lam - h * d).expectation).to_vector() / (2 * h) for d in e]
)
print("gradient in μ       ", in_mu)
print("F⁻¹ · gradient in λ ", np.linalg.solve(fisher, in_lambda))
print("(g − Hm, −H)        ", np.array([g - H * m, -H]))
print("the library         ", expected.natural_gradient.to_vector())
assert np.allclose(in_mu, [g - H * m, -H], atol=1e-5)
assert np.allclose(np.linalg.solve(fisher, in_lambda), [g - H * m, -H], atol=1e-5)

# %% [markdown]
# ## The solution is a sum of natural gradients
#
# $\nabla_\mu \mathrm{KL}(q\|\pi_0) = \lambda - \eta_0$, where $\eta_0$ is the prior's natural parameter. So Eq. 9 is
# stationary when
#
# $$\lambda_g^\ast = \eta_0 - \sum_{k=1}^K \nabla_\mu \mathbb{E}_{q_g^\ast}[\ell_k]. \qquad\text{(Eq. 12)}$$
#
# (The paper writes $\eta_0 = -\nabla_\mu\mathbb{E}_q[\ell_0]$ as the term $k = 0$ of the sum.) Compare Eq. 2,
# $\theta_g^\ast = -\sum_k\nabla\ell_k(\theta_g^\ast)$: parameters became natural parameters, gradients natural
# gradients. Iterating it with a step $\alpha$ is the **Bayesian learning rule** (BLR):
#
# $$\lambda \leftarrow (1-\alpha)\,\lambda + \alpha \Bigl(\eta_0 - \sum_k \nabla_\mu\mathbb{E}_q[\ell_k]\Bigr).$$


# %%
def blr(steps, alpha, direction=None, loss=loss, prior=prior):
    """Run the Bayesian learning rule; the last three arguments are for later."""
    q, path = prior, [prior]
    for _ in range(steps):
        gradient = loss.expect(q, exact).natural_gradient if direction is None else direction(q)
        q = q.with_natural((1 - alpha) * q.natural + alpha * (prior.natural - gradient))
        path.append(q)
    return path


pooled = ba.solve_pooled([loss], prior)
natural_path = blr(80, alpha=0.5)
ours = ba.run(ba.methods.BLR(learning_rate=0.5), [loss], prior, rounds=80, tol=1e-15)
print("by hand ", natural_path[-1])
print("library ", ours.posterior)
print("pooled  ", pooled.posterior)
assert np.allclose(natural_path[ours.rounds].mean, ours.posterior.mean, atol=1e-12)
assert np.isclose(natural_path[-1].mean[0], pooled.posterior.mean[0], atol=1e-6)

# %% [markdown]
# ## Why bother with the natural one?
#
# An ordinary gradient depends on the coordinates that it is taken in: in $(m, \log\sigma)$, a unit of $m$ means
# something else for a wide $q$ than for a narrow one, and something else when $x$ is given in other units. The natural
# gradient measures lengths in KL, which has no units. We tune the rate of ordinary gradient descent for this problem,
# then express $x$ in units three times as small or as large (with the prior changed accordingly: it is the same model).


# %%
def in_units(factor):
    """Return loss and prior with x multiplied by a factor."""
    return ba.losses.Logistic(factor * x[:, None], labels), FullGaussian([0.0], 0.1 * factor**2)


def gap_of(path, loss, prior):
    """Return the objective minus its minimum along a path."""
    values = np.array([loss.expect(q, exact).value + q.kl(prior) for q in path])
    return values - ba.solve_pooled([loss], prior).objective


def ordinary(steps, rate, loss, prior):
    """Descend along the ordinary gradient in (m, log σ)."""
    q, S, path = prior, prior.precision[0, 0], [prior]
    for _ in range(steps):
        expected = loss.expect(q, exact)
        by_mean = expected.gradient[0] + S * q.mean[0]
        by_log = q.variance[0] * (expected.curvature.dense()[0, 0] + S) - 1.0
        log_sigma = 0.5 * np.log(q.variance[0]) - rate * by_log
        q = FullGaussian.from_covariance([q.mean[0] - rate * by_mean], np.exp(2 * np.clip(log_sigma, -8, 8)))
        path.append(q)
    return path


rates = np.geomspace(0.02, 1.0, 13)
rate = min(rates, key=lambda r: gap_of(ordinary(60, r, loss, prior)[-1:], loss, prior)[0])
gaps = {}
for factor in (1.0, 1 / 3, 3.0):
    pair = in_units(factor)
    gaps[factor] = [gap_of(blr(60, 0.5, None, *pair), *pair), gap_of(ordinary(60, rate, *pair), *pair)]
    ends = " ".join(f"{name} {gap[-1]:.1e} " for name, gap in zip(("natural", "ordinary"), gaps[factor], strict=True))
    print(f"x in units of {1 / factor:4.2f}, gap after 60 steps: {ends}")
assert np.allclose(gaps[1.0][0], gaps[3.0][0], atol=1e-8)
assert np.allclose(gaps[1.0][0], gaps[1 / 3][0], atol=1e-8)
assert gaps[1.0][1][-1] < 1e-6 < 1e-3 < min(gaps[3.0][1][-1], gaps[1 / 3][1][-1])

# %% tags=["hide-input"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
ms, ls = np.linspace(-0.4, 3.5, 50), np.linspace(-2.2, 1.4, 50)
grid = [[FullGaussian.from_covariance([a], np.exp(2 * b)) for a in ms] for b in ls]
heights = np.array([gap_of(row, loss, prior) for row in grid])
left.contour(ms, ls, heights, levels=np.geomspace(0.02, 20, 12), colors="0.75", linewidths=0.8)
for path, name, colour, marker in (
    (ordinary(60, 0.1, loss, prior), "ordinary, rate 0.1", style.VERMILION, "s"),
    (blr(60, 0.5), "natural, α = 0.5", style.BLUE, "o"),
):
    points = np.array([[q.mean[0], 0.5 * np.log(q.variance[0])] for q in path])
    left.plot(*points.T, color=colour, marker=marker, ms=3.5, lw=1.2, label=name)
left.plot(pooled.posterior.mean[0], 0.5 * np.log(pooled.posterior.variance[0]), "k*", ms=12, label="solution", zorder=5)
left.set(xlabel="mean $m$", ylabel=r"$\log\sigma$", ylim=(-2.2, 1.4), title="Paths over the objective's contours")
left.legend(fontsize=8, loc="lower right")
for (factor, (by_natural, by_ordinary)), line in zip(gaps.items(), ("-", "--", ":"), strict=True):
    units = f"x in units of {1 / factor:.2g}"
    right.plot(np.maximum(by_ordinary, 1e-14), line, color=style.VERMILION, label=f"ordinary, {units}")
    look = {"color": style.SKY, "lw": 6} if factor == 1 else {"color": style.BLUE}
    right.plot(np.maximum(by_natural, 1e-14), line, label=f"natural, {units}", **look)
style.log_axis(right, "objective − its minimum", xlabel="step")
right.set(title=f"Same model, other units (ordinary: rate {rate:.2f})", ylim=(1e-15, 1e9))
right.legend(fontsize=7, ncols=2, loc="upper center")
plt.show()

# %% [markdown]
# ## Change a line and see what breaks
#
# Forget the term $-Hm$: pass `(g, −H)` instead of `(g − Hm, −H)` to `blr`. The iteration still converges. To what?

# %% [markdown] tags=["answer"]
# To a distribution whose mean is far too small. Its fixed point is $Sm = -g$ in place of $S_0m = -g$, and $S$ is much
# larger than the prior's $S_0$. It is not a stationary point of Eq. 9, and the residual of Eq. 12 says so.


# %% tags=["answer"]
def forgetful(q):
    """Return a wrong natural gradient."""
    expected = loss.expect(q, exact)
    return q.natural_from(np.array(expected.gradient), [-expected.curvature.dense()])


def residual(q):
    """Return the Fisher length per parameter of λ − η₀ + ∇."""
    return q.fisher_norm(q.natural - prior.natural + loss.expect(q, exact).natural_gradient)


wrong = blr(200, 0.5, forgetful)[-1]
print(f"right: mean {natural_path[-1].mean[0]:.3f}, residual {residual(natural_path[-1]):.1e}")
print(f"wrong: mean {wrong.mean[0]:.3f}, residual {residual(wrong):.1e}")
assert residual(wrong) > 0.1 > 1e-6 > residual(natural_path[-1])
assert wrong.mean[0] < 0.3 * natural_path[-1].mean[0]
assert np.isclose(wrong.precision[0, 0] * wrong.mean[0], -loss.expect(wrong, exact).gradient[0])
assert wrong.precision[0, 0] > 5 * prior.precision[0, 0]
