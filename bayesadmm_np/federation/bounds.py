"""Bounds on what a message makes its reader allocate: counts in the message are multiplied before anything is made.

A few words may ask for `MOST_COLUMNS` columns or parameters, with a full covariance. Whoever asks for more writes as
many names, or numbers, into the same message, which its length then pays for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from .._archive import refusal
from .._errors import ArgumentError
from .._validation import Array
from ..design.agreement import MOST_COLUMNS
from ..families.base import FAMILIES
from ..families.gaussian import Gaussian, LearnedPrecisionGaussian
from ..families.precision import DiagonalPrecision

MOST_ROUNDS = 1 << 20
MOST_STEPS = 10_000
WORK = {
    **dict.fromkeys((("steps", "samples"), ("max_iter",), ("memory",), ("points",)), MOST_STEPS),
    ("epochs", "curvature_samples"): MOST_STEPS,
    ("epochs", "batch_size"): 1 << 22,
}
"""Largest product of counts of a solver or a rule."""


def require_work(**settings: Any) -> None:
    """Raise an ArgumentError where a solver or a rule, by the name of its argument, would take a site too long."""
    for name, setting in settings.items():
        for counts, most in WORK.items():
            work = prod(getattr(setting, count, None) or 1 for count in counts)
            if work > most:
                raise ArgumentError(name, f"must have {' times '.join(counts)} of at most {most}", work)


def most_numbers(named: int, arrays: Mapping[str, Array]) -> int:
    """Return the numbers of a parameter at most, where a message has so many names, and these arrays."""
    dim = max(MOST_COLUMNS, named)
    return max(dim + dim * (dim + 1) // 2, sum(array.size for array in arrays.values()))


def prior_size(family: Any, shapes: Sequence[tuple[Any, ...]], most: int) -> int:
    """Return the numbers of a prior's vector by its family and shapes, or refuse these."""
    kind = FAMILIES[family]
    is_dense = issubclass(kind, LearnedPrecisionGaussian) and kind.structure is not DiagonalPrecision
    fits = len(shapes) > 0 and len(shapes[0]) == 1
    for j, shape in enumerate(shapes):
        fits &= bool(shape) and all(type(n) is int and n == shape[0] > 0 for n in shape)
        # a precision whose shape is that of a vector would become a matrix
        fits &= len(shape) <= 2 and not (j and is_dense and len(shape) == 1)
    if not fits or (issubclass(kind, Gaussian) and sum(shape[0] for shape in shapes[1:]) != shapes[0][0]):
        raise refusal("shapes of the prior", f"those of a {family}", list(shapes))
    size = sum(shape[0] * (shape[0] + 1) // 2 if len(shape) == 2 else shape[0] for shape in shapes)
    if size > most:
        expected = f"of at most {most} numbers, or of as many as the message has"
        raise refusal("shapes of the prior", expected, list(shapes))
    return size
