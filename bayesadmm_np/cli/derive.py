"""`bayesadmm derive`: a family's whole method, with symbols."""

from __future__ import annotations

from typing import Annotated

from .._errors import worded
from ._options import option
from ._terminal import Refused, needs


def derive(
    family: Annotated[str, option("Name of a built-in family.")],
    /,
    *,
    latex: Annotated[bool, option("Print LaTeX.")] = False,
) -> None:
    """Derive the whole method of a family from its statistic and log-partition function.

    Prints μ = ∇A, its inverse, A*, KL, the Fisher matrix, the natural gradient, and
    the client, dual and server steps.

    Examples of use:
      bayesadmm derive gamma
      bayesadmm derive gaussian --latex

    Families: gaussian-unit (isotropic), gaussian-fixed, gaussian (diagonal),
    gaussian-full (full), gamma, beta, dirichlet, poisson, bernoulli, inverse-gaussian.
    """
    with needs("demos"):
        from ..theory.derive import derive_text
    try:
        print(derive_text(family, latex))
    except ValueError as error:
        raise Refused(worded(error, argument=str.upper)) from error
