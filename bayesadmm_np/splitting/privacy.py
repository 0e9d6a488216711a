"""Clipped Gaussian noise on what a site sends, with the (ε, δ) that it buys."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import ndtri

from .._errors import ArgumentError, needed_by
from .._validation import Array, as_count, as_number, as_positive
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from .duals import AlongNatural

if TYPE_CHECKING:
    from .step import Step

FLOOR = 0.5
"""f of S_k ⪰ f S_g: a round takes at most half of the server's precision."""


@dataclass(frozen=True)
class GaussianMechanism:
    """Differential privacy of a whole site: its update is clipped, noised, and only then sent.

        u = F^{1/2}(λ_k − λ_g),    u ← clip(u) + 2Cz ε,    u ← clip(u),    λ_k ← λ_g + F^{-1/2}u with S_k ⪰ ½S_g

    for the Fisher matrix F of q_g, clip(u) = u min(1, C/‖u‖) and ε ~ N(0, I). Exchanging all rows of a site for others
    changes the clipped update by at most 2C; z is the noise in this unit. Later computations cost no privacy. The dual
    follows this λ_k. Where the precision is learned, a method with α = 1 and dual steps Σ_k γ_k <= 1, such as 1/K each,
    is required: then no noise drives the server out of its domain. `docs/security.md` lists what is covered.

    Parameters
    ----------
    clip : float
        C > 0, in Fisher length (not per parameter): 1 moves the mean by one posterior standard deviation of q_g.
    noise_multiplier : float
        z > 0, standard deviation of the noise over the sensitivity 2C.

    Raises
    ------
    ValueError
        When a parameter is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 2))
    >>> clients = [ba.losses.LeastSquares(X[k::3], X[k::3] @ [1.0, 2.0]) for k in range(3)]
    >>> prior = ba.families.FixedPrecisionGaussian(np.zeros(2), 1.0)
    >>> mechanism = ba.GaussianMechanism(clip=1.0, noise_multiplier=0.05)
    >>> result = ba.run(ba.methods.PVI(gamma=1 / 3), clients, prior, rounds=10, privacy=mechanism)
    >>> bool(np.abs(result.posterior.mean - [1.0, 2.0]).max() < 0.5)
    True
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name in ("clip", "noise_multiplier"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))

    @property
    def sensitivity(self) -> float:
        """2C: the farthest that two clipped updates lie apart."""
        return 2.0 * self.clip

    @property
    def scale(self) -> float:
        """2Cz: standard deviation of the noise in every whitened coordinate."""
        return self.sensitivity * self.noise_multiplier

    def epsilon(self, rounds: int, delta: float) -> float:
        """Return ε of `rounds` answers of one site: (ε, δ) for any change of all its rows, exact for this mechanism.

        T adaptive answers disclose as much as one with the multiplier z/√T (Dong, Roth & Su 2022, Cor. 3.3), whose ε
        solves δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √T/z (Balle & Wang 2018, Thm. 8). The extra `privacy` has the
        package that it needs.

        Parameters
        ----------
        rounds : int
            Number of rounds in which the site answered.
        delta : float
            δ in (0, 1), well below one over the number of people that are protected together.

        Examples
        --------
        >>> import bayesadmm_np as ba
        >>> round(ba.GaussianMechanism(clip=1.0, noise_multiplier=10.0).epsilon(rounds=5, delta=1e-5), 3)
        0.82
        """
        rounds = as_count(rounds, "rounds")
        return float(_accountant().get_epsilon_gaussian(self.noise_multiplier / np.sqrt(rounds), _read_delta(delta)))

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, rounds: int, clip: float) -> Self:
        """Return the mechanism with the least noise whose `epsilon(rounds, delta)` is at most `epsilon`.

        Examples
        --------
        >>> import bayesadmm_np as ba
        >>> ba.GaussianMechanism.for_budget(epsilon=1.0, delta=1e-5, rounds=5, clip=1.0).noise_multiplier > 8
        True
        """
        epsilon, rounds = as_positive(epsilon, "epsilon"), as_count(rounds, "rounds")
        single = float(_accountant().get_sigma_gaussian(epsilon, _read_delta(delta)))
        return cls(clip, single * float(np.sqrt(rounds)))

    def check(self, step: Step, prior: ExponentialFamily, n_clients: int) -> None:
        """Raise a ValueError when noise cannot be added to the updates of this run, or could end it."""
        method = step.row
        if not isinstance(prior, Gaussian):
            raise ValueError(f"privacy needs a Gaussian family, got a prior of the family {type(prior).__name__}.")
        if step.sketch is not None:
            raise ValueError(f"privacy cannot be combined with {step.name}: no noise is known for sketches.")
        if step.remembers:
            raise ValueError("privacy cannot be combined with Accelerated: mixing rounds multiplies their noise.")
        if method.schedule is not None and prior.learns_precision:
            raise ValueError("privacy with a learned precision needs a method without a schedule.")
        if step.takes_back:
            raise ValueError(f"privacy cannot be combined with {step.name}: it would disclose the objective.")
        if method.client != "proximal" or step.begins == "sites" or not isinstance(method.dual_rule, AlongNatural):
            needed = "clients that send λ_k and duals that move along λ"
            raise ValueError(f"privacy needs {needed}, which {step.name} has not.")
        is_mean = method.prior_at == "server" and method.dual_step == 0.0
        steps = method.dual_step * (1 if method.client_share == "dual" else n_clients)  # Σ_k γ_k
        small_steps = method.alpha == 1.0 and steps <= 1.0 + 1e-9
        if prior.learns_precision and not (is_mean or small_steps):
            raise ValueError(
                f"privacy with a learned precision needs alpha=1 and a dual step of at most 1/K, such as PVI(gamma=1/K)"
                f" with K={n_clients}: in {step.name} as given noise may make the server's precision indefinite."
            )

    def noised(self, q_g: ExponentialFamily, natural: Natural, noise: Array) -> Natural:
        """Return λ_k as it is sent; `noise` holds one standard normal number for each free one of λ."""
        assert isinstance(q_g, Gaussian)
        released = self.clipped(q_g.whiten(natural - q_g.natural)) + self.scale * noise
        return q_g.natural + q_g.unwhiten(self.clipped(released), low=FLOOR - 1.0)

    def clipped(self, whitened: Array) -> Array:
        """Shorten to the length C; an update that is not finite, or too long to be measured, becomes zero."""
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.sqrt(np.einsum("i,i->", whitened, whitened)))
        if not np.isfinite(length):
            return np.zeros_like(whitened)
        return whitened * min(1.0, self.clip / length) if length else whitened


def fresh_normals(size: int) -> Array:
    """Return standard normal numbers from the operating system's entropy; they cannot be drawn again."""
    integers = np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64) >> np.uint64(12)
    return np.asarray(ndtri((integers + 0.5) * 2.0**-52))


def _read_delta(delta: Any) -> float:
    number = as_number(delta, "delta")
    if not 0 < number < 1:
        raise ArgumentError("delta", "must lie in (0, 1)", repr(delta))
    return number


def _accountant() -> Any:
    with needed_by("epsilon needs dp-accounting", "privacy"):
        import dp_accounting
    return dp_accounting
