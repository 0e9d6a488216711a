# %% [markdown]
# # 2. Exponential families and the dual map
#
# *25 minutes. You need: lesson 1 and Lagrange multipliers.*
#
# ADMM has a point $\theta$ and a price $v$. To lift it to distributions we need distributions that come with *two*
# coordinate systems, one for points and one for prices. Exponential families do.
#
# **What you will learn:** a member of an exponential family has a natural parameter $\lambda$ (a multiplier) and an
# expectation parameter $\mu$ (a moment). $\nabla A$ and $\nabla A^\ast$ map them onto each other. The KL divergence is
# the Bregman divergence of $A$, with the arguments in one particular order.

# %%
import _style as style
import matplotlib.pyplot as plt
import numpy as np

from bayesadmm_np.families import FullGaussian, Gamma, Natural, pairing

style.use()

# %% [markdown]
# ## Where they come from: maximum entropy
#
# Fix the moments $\mathbb{E}_q[T(\theta)] = \mu$, here mean 0 and variance 1, with $T(\theta) = (\theta, \theta^2)$.
# Many densities have them. Choose the one of largest entropy (Eq. 29): a Lagrangian with multipliers $\lambda$ for the
# moment constraints and $\alpha$ for $\int q = 1$ (Eq. 30),
#
# $$-\int q\log\frac{q}{h} \;+\; \langle \lambda, \mathbb{E}_q[T] - \mu \rangle
#   \;-\; \alpha\Bigl(\int q - 1\Bigr).$$
#
# Move $q$ to $q + \varepsilon r$ and keep what is linear in $\varepsilon$:
# $\int r\,\bigl(-\log\frac{q}{h} - 1 + \langle\lambda, T\rangle - \alpha\bigr)$. It must vanish for *every*
# $r$, so the bracket is zero at every $\theta$; with $A = \alpha + 1$, which $\int q = 1$ determines,
#
# $$q(\theta) = h(\theta)\, \exp\bigl(\langle \lambda, T(\theta) \rangle - A(\lambda)\bigr),
#   \qquad\text{(Eq. 10, 31)}$$
#
# so **natural parameters are multipliers of moment constraints**. That is why ADMM's multipliers can be expected to
# turn into natural parameters. $A$ is the log of the normaliser, and $\mu = \nabla A(\lambda)$.
#
# The figure redraws Fig. 6 of the paper: (a) three densities with the same two moments; (b) the one-to-one map between
# $\lambda \in \Omega$ and $\mu \in \mathcal{M}$ for one-dimensional Gaussians, in the paper's coordinates
# $\lambda = (m/\sigma^2, -1/2\sigma^2)$, $\mu = (m, m^2 + \sigma^2)$.

# %%
theta = np.linspace(-12, 12, 2401)
step = theta[1] - theta[0]
gaussian = np.exp(-0.5 * theta**2) / np.sqrt(2 * np.pi)
laplace = np.exp(-np.sqrt(2) * abs(theta)) / np.sqrt(2)
width = 0.4  # of two bumps at ±√(1 − width²)
bumps = sum(np.exp(-0.5 * ((theta - s * np.sqrt(1 - width**2)) / width) ** 2) for s in (-1, 1))
bumps = bumps / (2 * width * np.sqrt(2 * np.pi))


def entropy(density):
    """Return −∫ q log q."""
    return -step * np.sum(density * np.log(density + 1e-300))


for density in (gaussian, laplace, bumps):
    assert np.allclose([step * np.sum(density * theta**power) for power in (0, 1, 2)], [1, 0, 1], atol=1e-3)
assert entropy(gaussian) > max(entropy(laplace), entropy(bumps))

# %% tags=["hide-input"]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4))
for density, name, line in ((gaussian, "Gaussian", "-"), (laplace, "Laplace", "--"), (bumps, "two bumps", ":")):
    moments = [step * np.sum(density * theta**power) for power in (1, 2)]
    print(f"{name:10} mean {abs(moments[0]):.2f}  variance {moments[1]:.2f}  entropy {entropy(density):.3f}")
    axes[0].plot(
        theta, density, line, color="k" if line == "-" else style.GREY, label=f"{name}, {entropy(density):.2f}"
    )
axes[0].legend(title="density, entropy", fontsize=8, title_fontsize=8)
axes[0].set(xlim=(-4, 4), xlabel=r"$\theta$", ylabel="density", title="(a) Same moments, one maximum")

means, spreads = np.linspace(-2, 2, 161), np.geomspace(0.3, 6.0, 161)
for m in np.arange(-2, 2.1, 1.0):
    axes[1].plot(m / spreads**2, -0.5 / spreads**2, color=style.BLUE, lw=1)
    axes[2].plot(np.full_like(spreads, m), m**2 + spreads**2, color=style.BLUE, lw=1)
for s in (0.5, 0.7, 1.0, 1.5):
    axes[1].plot(means / s**2, np.full_like(means, -0.5 / s**2), color=style.ORANGE, lw=1, ls="--")
    axes[2].plot(means, means**2 + s**2, color=style.ORANGE, lw=1, ls="--")
for m, s, colour, marker in ((-1, 0.5, style.VERMILION, "s"), (0, 1.0, style.BLACK, "o"), (1, 0.7, style.GREEN, "^")):
    axes[1].plot(m / s**2, -0.5 / s**2, marker, color=colour, ms=8)
    axes[2].plot(m, m**2 + s**2, marker, color=colour, ms=8)
axes[1].axhspan(0, 0.3, color="0.85")
axes[1].text(0, 0.13, r"not in $\Omega$: cannot be normalised", ha="center", va="center", fontsize=8)
axes[2].fill_between(means, -0.6, means**2, color="0.85")
axes[2].text(0, -0.3, r"not in $\mathcal{M}$: variance < 0", ha="center", va="center", fontsize=8)
axes[1].set(xlim=(-6, 6), ylim=(-2.3, 0.3), xlabel=r"$\lambda_1=m/\sigma^2$", ylabel=r"$\lambda_2=-1/2\sigma^2$")
axes[1].set_title(r"(b) $\Omega$: natural parameters")
axes[2].set(xlim=(-2, 2), ylim=(-0.6, 5), xlabel=r"$\mu_1=m$", ylabel=r"$\mu_2=m^2+\sigma^2$")
axes[2].set_title(r"$\mathcal{M}$: moments")
axes[2].plot([], [], color=style.BLUE, lw=1, label="equal mean")
axes[2].plot([], [], color=style.ORANGE, lw=1, ls="--", label="equal variance")
axes[2].legend(fontsize=8, loc="upper center")
plt.show()

# %% [markdown]
# ## The map in the code
#
# A member of a family is an immutable object with `.natural` and `.expectation`. For Gaussians the code uses
# $T(\theta) = (\theta, -\frac12\theta\theta^\top)$, so that $\lambda = (Sm, S)$ with no $-\frac12$ left; the paper's
# second moment is `.expectation.second_moment`. The map is $\nabla A$, and its inverse $\nabla A^\ast$, where
# $A^\ast(\mu) = \langle\lambda,\mu\rangle - A(\lambda)$ is the conjugate (the negative entropy). Below, $\nabla A$ by
# finite differences:

# %%
q = FullGaussian(mean=np.array([1.0, -0.5]), precision=np.array([[2.0, 0.3], [0.3, 1.0]]))
vector, h = q.natural.to_vector(), 1e-5


def A(v):
    """Return the log-partition at a packed natural parameter."""
    return q.with_natural(q.natural.from_vector(v)).log_partition


numeric = np.array([(A(vector + h * e) - A(vector - h * e)) / (2 * h) for e in np.eye(vector.size)])
exact = q.expectation.to_vector() * [1, 1, 1, 2, 1]  # the off-diagonal entry stands for two entries of the matrix
print("∇A by differences", numeric)
print("μ                ", exact)
assert np.allclose(numeric, exact, atol=1e-8)
back = q.with_expectation(q.expectation)  # ∇A*
assert np.allclose(back.natural.to_vector(), vector)

# %% [markdown]
# $\lambda$ and $\mu$ are different *types*. Multipliers, duals and natural gradients have the type of $\lambda$ and
# may be added to each other; a moment may not be added to them. The two meet only in the pairing
# $\langle\lambda,\mu\rangle$:

# %%
print("⟨λ, μ⟩ =", round(pairing(q.natural, q.expectation), 4))
try:
    q.natural + q.expectation
except TypeError as error:
    print("TypeError:", error)

# %% [markdown]
# ## KL is a Bregman divergence
#
# $$\mathrm{KL}(q \,\|\, q') = A(\lambda') - A(\lambda) - \langle \lambda' - \lambda,\; \mu \rangle$$
#
# The gap between $A$ at $\lambda'$ and its tangent at $\lambda$. Read the order: the *first* argument of the KL is
# where the tangent touches. Two consequences carry the whole course:
#
# $$\nabla_\mu\, \mathrm{KL}(q \,\|\, q') = \lambda - \lambda' \qquad\text{and}\qquad
#   \nabla_\lambda\, \mathrm{KL}(q' \,\|\, q) = \mu - \mu'.$$
#
# The left one turns ADMM's $\rho(\theta_k - \theta_g)$ into $\rho(\lambda_k - \lambda_g)$ (Eq. 32). The picture shows
# it for the exponential distribution, where $\lambda = -\text{rate}$ and $A(\lambda) = -\log(-\lambda)$.

# %% tags=["hide-input"]
lam, lam_other = -2.0, -0.4
mu = -1.0 / lam
grid = np.linspace(-3.2, -0.2, 300)
figure, axis = plt.subplots(figsize=(5.6, 3.4))
axis.plot(grid, -np.log(-grid), color="k", label=r"$A(\lambda)=-\log(-\lambda)$")
axis.plot(
    grid, -np.log(-lam) + mu * (grid - lam), color=style.BLUE, ls="--", label=r"tangent at $\lambda$, slope $\mu$"
)
low, high = -np.log(-lam) + mu * (lam_other - lam), -np.log(-lam_other)
axis.annotate("", (lam_other, high), (lam_other, low), arrowprops={"arrowstyle": "<->", "color": style.VERMILION})
axis.text(lam_other - 0.3, 0.5 * (low + high), r"KL$(q\|q')$", ha="right", va="center", color=style.VERMILION)
axis.plot([lam, lam_other], [-np.log(-lam), high], "ko")
axis.annotate(r"$\lambda$", (lam, -np.log(-lam)), (0, 8), textcoords="offset points", ha="center")
axis.annotate(r"$\lambda'$", (lam_other, high), (-10, 4), textcoords="offset points")
axis.set(xlabel=r"natural parameter $\lambda$", ylabel=r"$A(\lambda)$", title="The KL divergence is a gap")
axis.legend(fontsize=8, loc="upper left")
plt.show()
q1, q2 = Gamma(shape=[1.0], rate=[-lam]), Gamma(shape=[1.0], rate=[-lam_other])  # shape 1: exponential distributions
print(f"gap in the picture {high - low:.6f},  the library's kl {q1.kl(q2):.6f},  the other order {q2.kl(q1):.6f}")
assert np.isclose(high - low, q1.kl(q2))
h = 1e-6 * q1.expectation.to_vector()[0]
moved = [
    q1.with_expectation(q1.expectation.from_vector(q1.expectation.to_vector() + s * np.array([h]))) for s in (1, -1)
]
assert np.isclose((moved[0].kl(q2) - moved[1].kl(q2)) / (2 * h), lam - lam_other)  # ∇_μ KL(q‖q′) = λ − λ′

# %% [markdown]
# ## Change a line and see what breaks
#
# You have two Gaussians and want "the average". Average their natural parameters, then average their expectation
# parameters instead. Do you get the same distribution? Which of the two is wide enough to cover both?

# %% [markdown] tags=["answer"]
# No. Averaging $\lambda$ multiplies densities, $q \propto \sqrt{q_1 q_2}$. Precisions are averaged, so the result sits
# *between* the two, and its width is between theirs. Averaging $\mu$ matches the moments of the mixture, so the result
# is wider than both. Bayes' rule multiplies independent evidence, and so will the server with its clients.

# %% tags=["answer"]
a, b = FullGaussian(np.array([-2.0]), 1.0), FullGaussian(np.array([2.0]), 4.0)
product = a.with_natural(0.5 * a.natural + 0.5 * b.natural)
mixture = a.with_expectation(0.5 * a.expectation + 0.5 * b.expectation)
for name, member in (("average of λ", product), ("average of μ", mixture)):
    print(f"{name}: mean {member.mean[0]:5.2f}, standard deviation {np.sqrt(member.variance[0]):.2f}")
log_root = 0.5 * (a.log_density([[0.3], [1.4]]) + b.log_density([[0.3], [1.4]]))
assert np.isclose(np.diff(log_root), np.diff(product.log_density([[0.3], [1.4]])))  # √(q₁q₂) up to its constant
assert b.variance[0] < product.variance[0] < a.variance[0] < mixture.variance[0]
assert a.mean[0] < product.mean[0] < b.mean[0]

# %% [markdown] tags=["answer"]
# A factor $t(\theta) = e^{\langle\eta,T(\theta)\rangle}$ need not be a distribution: any `Natural` is allowed, even one
# with negative curvature. Only what the server broadcasts must lie in $\Omega$.

# %% tags=["answer"]
improper = Natural(np.array([1.0]), np.array([[-0.5]]))
print("in Ω?", a.contains(improper), "  the prior times it:", a.with_natural(a.natural + improper))
assert not a.contains(improper)
