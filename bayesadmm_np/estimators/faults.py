"""Faults in the data of a fit, named from sums over its sites."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._errors import PLAIN, Words
from .._numerics import EPS
from .._validation import Array
from ..design.rows import SiteRows
from ..glm.columns import ROUNDING
from ..glm.diagnosis import (
    FEWEST,
    NEARLY,
    Dependent,
    Finding,
    Searched,
    search_dependence,
    search_separation,
    weakest_direction,
)
from ..glm.estimable import moved
from ..glm.problem import Glm
from ..losses.base import GaussianExpected
from ..losses.linear_model import LinearModelLoss, row_factor
from ..splitting.result import RunError
from ..splitting.status import Failure, Status
from .settings import Settings, make_prior

PRIOR = "prior_precision"


@dataclass(frozen=True, kw_only=True)
class _NamedFailure(Failure):
    """A failure whose client is a site, with a sentence more, in the words of a caller."""

    sites: tuple[Hashable, ...]
    more: Callable[[Words], str]

    def worded(self, words: Words = PLAIN) -> str:
        knob = self.knob.replace(PRIOR, words.argument(PRIOR))
        words = words._replace(client=lambda k: f"site {self.sites[k]!r}")
        return " ".join(filter(None, [Failure.worded(replace(self, knob=knob), words), self.more(words)]))


def name_failure(error: RunError, sites: Sequence[Hashable], more: Callable[[Words], str]) -> RunError:
    """Return a run's error that names the site, and says more; commands word it by their options."""
    assert error.failure is not None  # every RunError has one
    failure = _NamedFailure(**vars(error.failure), sites=tuple(sites), more=more)
    return RunError(replace(error.result, failure=failure, ending=failure.message))


def name_superfluous(
    glm: Glm, rows: Mapping[Hashable, SiteRows], names: Sequence[str]
) -> tuple[Glm, tuple[Finding, ...], Array]:
    """Name columns of zeros, constant and collinear ones, and hold their coefficients at zero.

    From the sites' R factors, in the columns' own units; sites of weight and rows as in the fit. Return also the
    directions of the run's θ that move no row's predictors.
    """
    layout = glm.layout
    findings, flat = _relations(glm, rows, names)
    places = [names.index(f.column) for f in findings]
    held = tuple(c * layout.width + j for c in range(layout.n_outputs) for j in places)
    return replace(glm, held=held), findings, moved(layout.outward, np.asarray(np.kron(np.eye(layout.n_outputs), flat)))


def _relations(
    glm: Glm, rows: Mapping[Hashable, SiteRows], names: Sequence[str], within: float | None = None
) -> tuple[tuple[Dependent, ...], Array]:
    layout = glm.layout
    plain = replace(layout, centre=None)
    factors = [row_factor(plain.design(site.X), site.weights) for site in rows.values()]
    intercepts = [layout.n_features] if layout.has_intercept else []
    return search_dependence(factors, layout.columns(names), intercepts, within)


def name_dependence(error: RunError, glm: Glm, rows: Mapping[Hashable, SiteRows], names: Sequence[str]) -> RunError:
    """Name the columns whose dependence broke a run, by their relation or by the information where it was lost."""
    failure = error.result.failure
    if failure is None or failure.status not in (Status.NOT_A_DISTRIBUTION, Status.UNRESOLVED):
        return error
    near = [f.relation for f in _relations(glm, rows, names, NEARLY)[0] if getattr(f, "rest", 0.0) > ROUNDING]
    if near:
        said, these = f"{'; '.join(near)}: sums of squares cannot tell them apart", "one of these columns"
    else:
        labels = glm.layout.parameters(names, glm.outputs)
        parts = [expected.projected[0] for expected in error.result.at_server if isinstance(expected, GaussianExpected)]
        information = np.sum([error.result.prior.factor.parts[0], *parts], axis=0)  # type: ignore[attr-defined]
        if not np.isfinite(information).all() or information.ndim < 2 or not information.any():
            return error
        weakest, condition = weakest_direction(information)
        if EPS * condition < 10.0**-FEWEST:  # the method failed, and not for want of digits
            return error
        listed = ", ".join(labels[int(j)] for j in weakest)
        said, these = f"the rows that count say next to nothing on {listed} together", "one of them"
    remedies = f"leave {these} out, shrink it with {PRIOR} > 0, or scale columns and weights"
    failure = replace(failure, detail=said, knob=remedies)
    return RunError(replace(error.result, ending=failure.message, failure=failure))


def name_separation(glm: Glm, settings: Settings, names: Sequence[str]) -> Searched:
    """Name what keeps a likelihood without a maximum from having one; nothing where it has one, or is no likelihood."""
    layout = glm.layout
    losses = glm.losses(1.0)
    if (
        settings.penalty
        or settings.inference != "likelihood"
        or not all(isinstance(loss, LinearModelLoss) for loss in losses)
    ):
        return Searched(None, np.zeros((layout.dim, 0)))
    prior = make_prior(settings, 0.0 if settings.precision is None else settings.precision, glm, 1.0)
    penalised = np.flatnonzero(np.diagonal(prior.precision)[: layout.width] > 0)
    return search_separation(
        losses,  # type: ignore[arg-type]
        layout.columns(names),
        outputs=glm.outputs,
        intercepts=[layout.n_features] if layout.has_intercept else [],
        penalised=penalised.tolist(),
        change=None if layout.centre is None else layout.homeward,
    )
