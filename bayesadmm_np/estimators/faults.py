"""Failures of a run in the words of its sites and columns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._errors import PLAIN, Words
from .._numerics import EPS
from ..glm.columns import ROUNDING
from ..glm.diagnosis import FEWEST, NEARLY, search_dependence, weakest_direction
from ..glm.fit import Ask, Prepared
from ..glm.questions import DesignQuestion
from ..losses.base import GaussianExpected
from ..splitting.result import RunError
from ..splitting.status import Failure, Status

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


def name_dependence(error: RunError, found: Prepared, sites: Ask) -> RunError:
    """Name the columns whose dependence broke a run, by their relation or by the information where it was lost."""
    failure, problem = error.result.failure, found.problem
    if failure is None or failure.status not in (Status.NOT_A_DISTRIBUTION, Status.UNRESOLVED):
        return error
    layout = problem.layout
    back = layout.outward[: layout.width, : layout.width]
    factors = [one.root @ back for one in sites(problem, DesignQuestion())]
    findings, _ = search_dependence(factors, problem.columns, problem.intercepts, NEARLY)
    near = [one.relation for one in findings if getattr(one, "rest", 0.0) > ROUNDING]
    if near:
        said, these = (
            f"{'; '.join(near)}: in double precision, sums of squares cannot tell these columns apart",
            "one of these columns",
        )
    else:
        parts = [expected.projected[0] for expected in error.result.at_server if isinstance(expected, GaussianExpected)]
        information = np.sum([error.result.prior.factor.parts[0], *parts], axis=0)  # type: ignore[attr-defined]
        if not np.isfinite(information).all() or information.ndim < 2 or not information.any():
            return error
        weakest, condition = weakest_direction(information)
        if EPS * condition < 10.0**-FEWEST:  # the method failed, and not for want of digits
            return error
        listed = ", ".join(problem.parameters[int(j)] for j in weakest)
        said, these = f"the rows say almost nothing about {listed} together", "one of them"
    remedies = f"leave {these} out, shrink it with {PRIOR} > 0, or scale columns and weights"
    failure = replace(failure, detail=said, knob=remedies)
    return RunError(replace(error.result, ending=failure.message, failure=failure))
