"""Checks of what a user hands in: every failure is a sentence naming the argument and what was expected."""

from __future__ import annotations

import operator
from typing import Any, Literal, get_origin

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import ArgumentError

Array = NDArray[np.float64]
ARRAYS = frozenset({np.ndarray, get_origin(Array)})
"""Origins of an array's annotation: since NumPy 2.5 NDArray is an alias with a name of its own."""
Damping = float | Literal["rows"]
"""γ of a dual step: a number for all clients, or 'rows' for N_k/N."""


class LeftOut(float):
    """Default of a number that networks take from their clients, and exact clients as it is."""

    def __repr__(self) -> str:
        return f"<{float(self):g}, or from the clients>"


ONE = LeftOut(1.0)


def left_out(**given: object) -> tuple[str, ...]:
    """Return the names of the arguments that were left out."""
    return tuple(name for name, value in given.items() if isinstance(value, LeftOut))


def as_float_array(value: ArrayLike, name: str, ndim: int | tuple[int, ...] | None = None) -> Array:
    """Return `value` as a finite, non-empty float64 array, or raise a ValueError naming it."""
    if np.ma.is_masked(value):
        raise ArgumentError(name, "must be an array without missing values", f"{np.ma.count_masked(value)} masked")
    try:
        raw = np.asarray(value)
        if raw.dtype.kind in "USc":
            raise TypeError("strings and complex numbers are not quietly converted")
        array = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, "must be an array of numbers", _short(value)) from error
    if ndim is not None:
        allowed = (ndim,) if isinstance(ndim, int) else ndim
        if array.ndim not in allowed:
            expected = " or ".join(f"{n}-dimensional" for n in allowed)
            raise ArgumentError(name, f"must be {expected}", f"shape {array.shape}")
    if array.size == 0:
        raise ArgumentError(name, "must not be empty", f"shape {array.shape}")
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        where = ", ".join(str(i) for i in bad[0])
        raise ArgumentError(name, "must be finite", f"{len(bad)} NaN or infinite value(s), the first at [{where}]")
    return array


def as_labels(value: ArrayLike, name: str, n_classes: int) -> NDArray[np.int64]:
    """Return `value` as integer labels in 0 … n_classes − 1."""
    try:
        array = as_float_array(value, name, ndim=1)
    except ValueError as error:
        labels = np.ravel(np.asarray(value, dtype=object))
        if labels.size and all(isinstance(label, str) for label in labels):
            raise ArgumentError(
                name, f"must hold integer labels 0 to {n_classes - 1}", "strings", "encode them, as in y == 'yes'"
            ) from error
        raise
    if array.min() < 0 or array.max() >= n_classes or not np.array_equal(np.floor(array), array):
        raise ArgumentError(
            name, f"must hold integer labels 0 to {n_classes - 1}", f"values from {array.min():g} to {array.max():g}"
        )
    return array.astype(np.int64)


def as_positive(value: Any, name: str) -> float:
    """Return `value` as a finite float > 0."""
    number = as_number(value, name)
    if not number > 0:
        raise ArgumentError(name, "must be > 0", repr(value))
    return number


def as_fraction(value: Any, name: str) -> float:
    """Return `value` as a float in (0, 1]."""
    number = as_number(value, name)
    if not 0 < number <= 1:
        raise ArgumentError(name, "must lie in (0, 1]", repr(value))
    return number


def as_damping(gamma: Damping) -> tuple[float, Literal["equal", "dual"]]:
    """Return the dual step of a row, and its `client_share`: whether clients take the step whole or N_k/N of it."""
    if isinstance(gamma, str):
        if gamma != "rows":
            raise ArgumentError("gamma", "must be a number in (0, 1], or 'rows' for N_k/N", repr(gamma))
        return 1.0, "dual"
    return as_fraction(gamma, "gamma"), "equal"


def as_switch(value: Any, name: str) -> bool:
    """Return `value` as True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentError(name, "must be True or False", repr(value))
    return bool(value)


def as_number(value: Any, name: str) -> float:
    """Return `value` as a finite float."""
    try:
        if isinstance(value, str | bool):
            raise TypeError("not quietly converted")
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(name, "must be a number", _short(value)) from error
    except OverflowError as error:
        raise ArgumentError(name, "must be at most 1.8e308 in size", "a longer integer") from error
    if not np.isfinite(number):
        raise ArgumentError(name, "must be finite", repr(value))
    return number


def as_count(value: Any, name: str, minimum: int = 1) -> int:
    """Return `value` as an integer >= minimum."""
    try:
        if isinstance(value, bool):
            raise TypeError("not quietly converted")
        number = operator.index(value)
    except TypeError as error:
        raise ArgumentError(name, "must be an integer", _short(value)) from error
    if number < minimum:
        raise ArgumentError(name, f"must be at least {minimum}", number)
    return number


def frozen(array: Array) -> Array:
    """Make `array` read-only and return it: values that are shared are never written to."""
    array.flags.writeable = False
    return array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
