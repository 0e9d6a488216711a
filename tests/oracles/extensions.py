"""What a user's own package may bring: two dual rules, a schedule and a family."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bayesadmm_np.families import Expectation, ExponentialFamily, Natural
from bayesadmm_np.splitting.methods import DualRule, Schedule


@dataclass(frozen=True)
class Relaxed(DualRule):
    """η_k ← η_k + factor γ_k(λ_k − λ_g)."""

    factor: float = 1.5

    def __call__(self, site, own, served, step):
        return site + self.factor * step * (own - served)


@dataclass(frozen=True)
class Sized(DualRule):
    """Along λ, by the distributions: the step shrinks with their distance, and the dual travels with the reply."""

    reads_natural: ClassVar[bool] = False

    def __call__(self, site, own, served, step):
        return site + step / (1.0 + own.kl(served)) * (own.natural - served.natural)


@dataclass(frozen=True)
class Listed(Schedule):
    """ρ of each round from a list, the last one for ever."""

    rhos: tuple[float, ...]

    def row(self, method, round):
        rho = self.rhos[min(round, len(self.rhos)) - 1]
        return replace(method, rho=rho, dual_step=method.dual_step * rho / method.rho)


class Exponential(ExponentialFamily):
    """The exponential distribution: T(θ) = θ, λ = −rate."""

    arguments = ("rate",)

    def __init__(self, rate):
        self.rate = np.atleast_1d(np.asarray(rate, float))

    natural = property(lambda self: Natural(-self.rate))
    expectation = property(lambda self: Expectation(1.0 / self.rate))
    log_partition = property(lambda self: -float(np.log(self.rate).sum()))

    def with_natural(self, natural):
        if not self.contains(natural):
            raise ValueError("natural parameter outside the domain: every rate must be positive.")
        return type(self)(-natural.linear)

    def with_expectation(self, expectation):
        return type(self)(1.0 / expectation.mean)

    def contains(self, natural):
        return bool((natural.linear < 0).all())

    def whiten(self, difference):
        return difference.linear / self.rate

    def log_density(self, theta):
        return (np.log(self.rate) - self.rate * np.asarray(theta)).sum(-1)

    def sample(self, rng, size=1):
        return rng.exponential(1.0 / self.rate, (size, self.rate.size))
