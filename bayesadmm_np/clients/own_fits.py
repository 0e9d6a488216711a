"""The start of a run: each site fits alone, under its part of the prior, and sends its site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .._threads import one_thread_where_small
from .._validation import Array
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..losses.base import GaussianExpected, Loss
from ..losses.expectations import Delta, Rule
from .newton import VariationalNewton
from .problem import ClientStatus, Solution, Solver, Subproblem

LIFT = 0.1
"""Least precision of a site's own prior, in units of the site's information on each coefficient at the prior's mean."""


@one_thread_where_small(lambda losses, prior, *_: prior.dim if isinstance(prior, Gaussian) else 0)
def own_fits(losses: Sequence[Loss], prior: ExponentialFamily, expectation: Rule | None = None) -> list[Natural]:
    """Return the sites η_k at the sites' own fits, where a run can start: `run(method, losses, prior, sites=...)`.

    Site k minimises E_q[ℓ_k] + KL(q‖p_k) alone, and sends η_k = λ_k − λ(p_k) = −∇_μ E_{q_k}[ℓ_k]: one exchange. p_k is
    the prior's K-th part, N(m_0, P_0/K), lifted where it is too weak: the precision of coefficient j is at least 0.1
    (∇²ℓ_k(m_0))_jj, or 1 where the site has no information or it overflows. So a site with labels that are all alike,
    or collinear columns, has a finite fit in any units. The lift is not in η_k.

    Parameters
    ----------
    losses : sequence of Loss
        ℓ_k.
    prior : ExponentialFamily
        A Gaussian whose precision is learned; it may be flat.
    expectation : Rule, optional
        Rule for E_q; default Delta(2), for which q_k is Laplace's approximation at the mode.

    Raises
    ------
    ValueError
        When loss, family and rule do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> flat = ba.families.FullGaussian(np.zeros(1), 0.0)
    >>> losses = [ba.losses.Logistic(np.ones((4, 1)), y) for y in ([1, 0, 0, 0], [1, 1, 1, 1])]
    >>> result = ba.run(ba.methods.Newton(), losses, flat, sites=ba.clients.own_fits(losses, flat))
    >>> bool(abs(result.posterior.mean[0] - np.log(5 / 3)) < 1e-8)
    True
    """
    require_information(prior)
    rules = [loss.check(prior, expectation or Delta(2)) for loss in losses]
    settings = prior, len(losses), VariationalNewton(), np.random.default_rng(0)
    fits = [own_fit(loss, rule, *settings) for loss, rule in zip(losses, rules, strict=True)]
    return [-fit.expected.natural_gradient for fit in fits]


def own_fit(
    loss: Loss, rule: Rule, prior: ExponentialFamily, n_clients: int, solver: Solver, rng: np.random.Generator
) -> Solution:
    """Return a site's own fit, usable whenever it is finite: an unfinished one is a start too."""
    assert isinstance(prior, Gaussian)
    begin = prior.start()
    anchor = _lifted(loss, prior, begin, n_clients)
    problem = Subproblem(loss, rule, anchor, anchor.natural.zeros(), 1.0)
    solution = solver.solve(problem, anchor, rng)
    finite = solution.expected.natural_gradient.is_finite()
    return replace(solution, status=ClientStatus.STEPS_DONE if finite else ClientStatus.NOT_FINITE)


def start_rule(rule: Rule) -> Rule:
    """Return the rule of the own fits in a run: Laplace's approximation, as one site's posterior may be wide."""
    return rule if rule.is_delta else Delta(2)


def require_information(prior: ExponentialFamily) -> None:
    """Raise a ValueError unless the family has a learned precision, for the information of a site."""
    if not isinstance(prior, LearnedPrecisionGaussian):
        raise ValueError(f"the sites' own fits need a Gaussian prior with a learned precision, not {prior!r}.")


def _lifted(loss: Loss, prior: Gaussian, begin: Gaussian, n_clients: int) -> Gaussian:
    """The prior's K-th part, with the precision of every coefficient raised to LIFT times the site's information."""
    expected = loss.expect(begin, Delta(2))
    assert isinstance(expected, GaussianExpected)
    parts = [
        _raised(whole / n_clients, information)
        for whole, information in zip(prior.factor.parts, expected.projected, strict=True)
    ]
    linear = prior.factor.like(parts).multiply(prior.mean)
    return begin.with_natural(begin.natural_from(linear, parts))


def _raised(precision: Array, information: Array) -> Array:
    """Raise the diagonal of a part of a precision."""
    known = information if information.ndim == 1 else np.diagonal(information)
    least = np.where((known > 0) & np.isfinite(known), LIFT * known, 1.0)
    if precision.ndim == 1:
        return np.maximum(precision, least)
    return precision + np.diag(np.maximum(least - np.diagonal(precision), 0.0))
