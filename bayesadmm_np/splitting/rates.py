"""Rate of a method near the pooled optimum, before a run: rounds linearised in the Fisher metric.

At the optimum μ*, with F the Fisher matrix, B_k = F^{1/2}(∂²L_k/∂μ²)F^{1/2}, L_k(μ) = E_q[ℓ_k], and deviations x of
λ_g, z_k of λ_k and y_k of η_k in the same metric, Eq. 15, 16 and 54 are to first order

    client   z_k = (ρ_k + π_k + B_k)⁻¹(ρ_k x − y_k)
    dual     y_k ← y_k + γ_k (z_k − x)
    server   x ← Σ_k a_k z_k + b Σ_k y_k

with the scalars of `method.py`: ADMM on the quadratics ½xᵀB_kx. The spectral radius of this map is the factor by
which a round shortens the error. docs/rates.md draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .._errors import ArgumentError
from .._threads import one_thread_where_small
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.expectations import Auto, Rule
from .average import Average, as_step
from .method import Method, client_coefficients, gather_weights
from .methods import PVI, BayesADMM
from .pooled import solve_pooled

PROBE = 1e-5  # Fisher length of the steps over which natural gradients are differenced
MOST_NUMBERS = 3000  # most entries of the deviations of a round


@dataclass(frozen=True)
class LocalRates:
    """The linearised round of every method at one pooled optimum.

    Attributes
    ----------
    curvatures : tuple of ndarray, each of shape (n, n)
        B_k, in the orthonormal coordinates of `posterior.whiten`; n is the number of free entries of λ.
    shares : tuple of float
        N_k/N.
    prior_weight : float
        w of the prior's family: 1 but for isotropic priors.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> X = np.random.default_rng(0).standard_normal((60, 2))
    >>> clients = [ba.losses.Logistic(part, part[:, 0] > 0.5) for part in np.split(X, 3)]
    >>> rates = ba.local_rates(clients, ba.families.FullGaussian(np.zeros(2), 1.0))
    >>> round(rates.factor(ba.methods.PVI()), 2), round(rates.factor(ba.methods.BayesADMM(1.0)), 2)
    (0.15, 0.78)
    >>> bool(rates.factor(ba.methods.BayesADMM(rates.best_rho[0])) < 0.78)
    True
    """

    curvatures: tuple[Array, ...]
    shares: tuple[float, ...]
    prior_weight: float = 1.0

    @property
    def spectra(self) -> tuple[Array, ...]:
        """Real parts of the eigenvalues of each B_k, in ascending order."""
        return tuple(np.sort(np.linalg.eigvals(curvature).real) for curvature in self.curvatures)

    def round(self, method: Method) -> Array:
        """Return the matrix of one round on (x, y_1, …, y_K), for a method whose dual moves along λ, or BLR."""
        row = _row_of(method)
        follows = row.client == "proximal" and row.dual_step > 0.0 and row.dual_rule.reads_natural
        if not (follows or row.client == "gradient"):
            raise ArgumentError("method", "must be a method whose dual moves along λ, or BLR", row.name)
        count, size = len(self.curvatures), len(self.curvatures[0])
        weights = gather_weights(row, self.shares, prior_weight=self.prior_weight)
        identity = np.eye(size)
        x, *sites = np.split(np.eye((count + 1) * size), count + 1)
        moved: list[Array] = []
        gathered: Array = np.zeros(x.shape)
        pieces = zip(self.curvatures, self.shares, weights.naturals, sites, strict=True)
        for curvature, share, weight, y in pieces:
            own = client_coefficients(row, share, count)
            z: Array = x
            following: Array = -curvature @ x
            if row.client == "proximal":
                system = (own.rho + own.prior * self.prior_weight) * identity + curvature
                z = np.asarray(np.linalg.solve(system, own.rho * x - y), dtype=np.float64)
                following = y + own.step * (z - x)
            moved.append(following)
            gathered = gathered + weight * z + weights.sites * following
        return np.concatenate([gathered, *moved])

    def factor(self, method: Method) -> float:
        """Return the asymptotic factor of the error in a round; above 1 the method diverges."""
        return float(np.abs(np.linalg.eigvals(self.round(method))).max())

    @cached_property
    def damping_spectrum(self) -> Array:
        """Eigenvalues g of G: damped PVI is y ← (I − γG)y."""
        count, size = len(self.curvatures), len(self.curvatures[0])
        undamped = self.round(PVI())[size:]
        # x = Σy_k after a round, so that its columns add to each site's
        onto = undamped[:, size:] + np.tile(undamped[:, :size], (1, count))
        return np.asarray(np.linalg.eigvals(np.eye(count * size) - onto))

    @property
    def gamma_max(self) -> float:
        """The damping below which PVI is stable: min 2 Re g/|g|²; 0 or less where none is."""
        g = self.damping_spectrum
        return float(np.min(2.0 * g.real / np.abs(g) ** 2))

    @cached_property
    def best_gamma(self) -> tuple[float, float]:
        """The damping γ of PVI with the smallest factor, and that factor."""
        from scipy.optimize import minimize_scalar  # here: it takes longer to load than the library

        g = self.damping_spectrum

        def radius(gamma: float) -> float:
            return float(np.abs(1.0 - gamma * g).max())  # convex in gamma

        if not self.gamma_max > 0.0:
            return 0.0, 1.0
        found = minimize_scalar(radius, bounds=(0.0, self.gamma_max), method="bounded")
        return float(found.x), float(found.fun)

    @cached_property
    def best_rho(self) -> tuple[float, float]:
        """The ρ of BayesADMM between 1e-3 and 1e3 with the smallest factor, and that factor."""
        from scipy.optimize import minimize_scalar

        def radius(exponent: float) -> float:
            return self.factor(BayesADMM(rho=float(10.0**exponent)))

        grid = np.linspace(-3.0, 3.0, 25)
        start = int(np.argmin([radius(exponent) for exponent in grid]))
        bounds = grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)]
        found = minimize_scalar(radius, bounds=bounds, method="bounded", options={"xatol": 1e-4})
        return float(10.0**found.x), float(found.fun)


@one_thread_where_small(lambda clients, prior, *_, **__: prior.dim if isinstance(prior, Gaussian) else 0)
def local_rates(
    clients: Sequence[Loss],
    prior: ExponentialFamily,
    posterior: ExponentialFamily | None = None,
    *,
    expectation: Rule | None = None,
) -> LocalRates:
    """Linearise the rounds at the pooled optimum.

    Parameters
    ----------
    clients : sequence of Loss
    prior : ExponentialFamily
    posterior : ExponentialFamily, optional
        The optimum, such as `result.posterior`; default that of `solve_pooled`.
    expectation : Rule, optional
        Rule for E_q of the run.

    Raises
    ------
    ValueError
        When losses, family and rule do not fit, or K + 1 times the entries of λ exceed 3000.
    RuntimeError
        When `solve_pooled` fails.

    Examples
    --------
    The first client measures the sum of the coefficients alone, and the second everything but it: γ = 1/K diverges.

    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> total, rest = 0.3 * np.ones((1, 24)), np.sqrt(0.9 * 24 / 23) * (np.eye(24) - 1 / 24)
    >>> clients = [ba.losses.LeastSquares(X, np.zeros(len(X))) for X in (total, rest)]
    >>> round(ba.local_rates(clients, ba.families.DiagonalGaussian(np.zeros(24), 0.01)).gamma_max, 2)
    0.28
    """
    if not isinstance(prior, Gaussian):
        raise ArgumentError("prior", "must be a Gaussian family", type(prior).__name__)
    rules = [loss.check(prior, expectation or Auto()) for loss in clients]
    size = prior.natural.size
    if (len(clients) + 1) * size > MOST_NUMBERS:
        expected = f"must have at most {MOST_NUMBERS} entries of λ, times the number of clients + 1"
        raise ArgumentError("prior", expected, f"{size} for {len(clients)} clients")
    q = solve_pooled(clients, prior, expectation=expectation).posterior if posterior is None else posterior
    assert isinstance(q, Gaussian)
    pairs = zip(clients, rules, strict=True)
    rows = np.array([loss.total_weight for loss in clients])
    curvatures = tuple(_curvature(loss, rule, q) for loss, rule in pairs)
    return LocalRates(curvatures, tuple(float(n) for n in rows / (rows.sum() or 1.0)), prior.prior_weight)


def _curvature(loss: Loss, rule: Rule, q: Gaussian) -> Array:
    """Return B_k by central differences of whitened natural gradients along unwhitened unit vectors."""
    columns = []
    for unit in np.eye(q.natural.size):
        step = q.unwhiten(PROBE * unit)
        ends = [loss.expect(q.with_natural(q.natural + sign * step), rule).natural_gradient for sign in (1.0, -1.0)]
        columns.append(q.whiten((ends[0] - ends[1]) * (0.5 / PROBE)))
    return np.stack(columns, axis=1)


def _row_of(method: Method) -> Method:
    step = as_step(method)
    if not isinstance(step, Average):
        raise ArgumentError("method", "must be a plain method, with the round of Eq. 15, 16 and 54", step.name)
    return step.row
