"""The fields of a message in one table: the shape of each, what its numbers must be, and what is made of them.

Whoever knows what a message holds writes the table; whoever reads messages checks it, in one way for all of them.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._archive import ArchiveError, read_as, refusal
from ._validation import Array

Known = Mapping[str, Any]
"""Sizes by their letters, what is known of the sender, and the fields that have been read before."""


class Condition(NamedTuple):
    """A condition of a field: words, a test of the value and of what is known beside it, and what a refusal shows."""

    expected: str
    holds: Callable[[Any, Known], Any]
    shown: Callable[[Any], Any] = lambda value: value if np.ndim(value) == 0 else "others"


def _least(value: Any) -> float:
    return float(np.min(value))


NOT_NEGATIVE = Condition(">= 0", lambda value, known: np.all(value >= 0), _least)
POSITIVE = Condition("> 0", lambda value, known: np.all(value > 0), _least)


@dataclass(frozen=True)
class Field:
    """A field of a message."""

    # Of an array: the length of a vector, or letters for sizes, as in "p p" or "c*r". A letter that is not known stands
    # for any number from 1. '' is that of a plain value
    shape: int | str = ""
    conditions: tuple[Condition, ...] = ()  # beside finite numbers
    make: Callable[[Array], Any] | None = None  # what the array becomes before the conditions are looked at
    may_overflow: bool = False  # whether infinities and NaN are taken too


def read_fields(
    table: Mapping[str, Field], arrays: Mapping[str, NDArray[Any]], prefix: str = "", known: Known | None = None
) -> dict[str, Any]:
    """Parse a message's arrays by a table of fields; with `prefix`, only arrays whose names begin with it.

    An ArchiveError has the name of the field and no source: whoever holds the message adds it.
    """
    there = {name for name in arrays if name.startswith(prefix)}
    if there - {prefix + name for name in table}:
        raise refusal("arrays", f"exactly {sorted(prefix + name for name in table)}", sorted(there))
    told = {} if known is None else dict(known)
    found: dict[str, Any] = {}
    for name, field in table.items():
        values = _array(arrays.get(prefix + name), prefix + name, field, told)
        found[name] = values if field.make is None else field.make(values)
    for name, field in table.items():
        check(prefix + name, field, found[name], told | found)
    return found


def check(name: str, field: Field, value: Any, known: Known) -> None:
    """Raise unless a value meets the conditions of its field, and a plain number is finite.

    Conditions are those of numbers: what has overflowed, where it may, has none to meet.
    """
    if isinstance(value, float) and not math.isfinite(value):
        if not field.may_overflow or value == -math.inf:
            raise refusal(name, "finite", value)
        return
    if field.may_overflow and isinstance(value, np.ndarray) and not np.isfinite(value).all():
        return
    for condition in field.conditions:
        with np.errstate(all="ignore"):  # numbers that overflow in a test fail it
            holds = condition.holds(value, known)
        if not holds:
            raise refusal(name, condition.expected.format_map(known), condition.shown(value))


hints_of = cache(typing.get_type_hints)


@cache
def typed(kind: Any, names: tuple[str, ...]) -> Any:
    """Return the type of a mapping with some fields of a class."""
    return typing.TypedDict(kind.__name__, {name: hints_of(kind)[name] for name in names})  # type: ignore[operator]


def read_plain(kind: Any, plain: Any, name: str, has_arrays: bool = False) -> Any:
    """Return plain JSON values as of an annotated type; a refusal begins with `name`, and has no source."""
    try:
        return read_as(kind, plain, "", has_arrays)
    except ArchiveError as error:
        raise ArchiveError(f"{name}: {error.reason}") from error


def _array(values: NDArray[Any] | None, name: str, field: Field, known: dict[str, Any]) -> Array:
    """Return a float64 array of the field's shape; letters that were not known are known after it."""
    tokens = str(field.shape).split()
    if values is not None and values.ndim == len(tokens):
        for token, size in zip(tokens, values.shape, strict=True):
            if token.isalpha() and size:
                known.setdefault(token, size)
    sizes = [[int(known.get(one, -1)) if one.isalpha() else int(one) for one in token.split("*")] for token in tokens]
    expected = tuple(math.prod(each) for each in sizes)
    if values is None or values.dtype != np.float64 or values.shape != expected:
        words = f"a vector of {expected[0]} numbers" if len(expected) == 1 else f"numbers of shape {expected}"
        raise refusal(name, words, "nothing" if values is None else _described(values))
    if not field.may_overflow and not np.isfinite(values).all():
        bad = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
        raise refusal(name, "finite", f"{values[bad]} at position {', '.join(map(str, bad))}")
    return values


def _described(values: NDArray[Any]) -> str:
    if values.dtype != np.float64:
        return f"{values.dtype} of shape {values.shape}"
    return f"{values.size}" if values.ndim == 1 else f"shape {values.shape}"
