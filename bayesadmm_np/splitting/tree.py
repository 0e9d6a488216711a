"""A step's own state as plain values and arrays, in files and in messages of a server to itself.

Only registered classes are written and read, field by field. A reader makes objects of no other class, whatever a file
contains.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from .._registry import Registry
from .._validation import ARRAYS, Array
from ..clients.problem import ClientStatus
from ..families.coordinates import Displacement, Natural
from .status import Failure, Status

MEMORIES: Registry[type] = Registry("memory")
"""Classes that the memory of a step may be made of: frozen dataclasses, named tuples, enums, coordinates."""
for _kind in (Natural, Displacement, Failure, Status, ClientStatus):
    MEMORIES.register(_kind)


def pack(value: Any, arrays: dict[str, Array]) -> Any:
    """Return a value as JSON, with its arrays put into `arrays` as vectors and named there.

    Examples
    --------
    >>> arrays = {}
    >>> plain = pack((Natural(np.ones(2)), None, 1.5), arrays)
    >>> unpack(plain, arrays)[2], list(arrays)
    (1.5, ['state0'])
    """
    if isinstance(value, np.ndarray):
        if value.dtype != np.float64:
            raise ValueError(f"the state of a step contains an array of {value.dtype}; it must be of float64.")
        name = f"state{len(arrays)}"
        arrays[name] = value.ravel()
        return {"array": name, "shape": list(value.shape)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value)
    if kind is tuple:
        return [pack(item, arrays) for item in value]
    if MEMORIES.get(kind.__name__) is not kind:
        raise ValueError(f"the state of a step contains a {kind.__name__}, which is not registered in MEMORIES.")
    if isinstance(value, Enum):
        return {"type": kind.__name__, "name": value.name}
    if isinstance(value, Natural | Displacement):
        return {"type": kind.__name__, "parts": [pack(part, arrays) for part in value.parts]}
    return {"type": kind.__name__, "fields": {name: pack(getattr(value, name), arrays) for name in _names(kind)}}


def unpack(plain: Any, arrays: Mapping[str, Array]) -> Any:
    """Inverse of `pack`; a ValueError or KeyError if `pack` cannot have made the value."""
    if isinstance(plain, list):
        return tuple(unpack(item, arrays) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return np.array(arrays[plain["array"]], dtype=np.float64).reshape(_shape(plain["shape"]))
    if "float" in plain:
        return float(plain["float"])
    kind: Any = MEMORIES[plain["type"]]
    if "name" in plain:
        return kind[plain["name"]]
    if "parts" in plain:
        return kind(*(unpack(part, arrays) for part in plain["parts"]))
    if set(plain["fields"]) != set(_names(kind)):
        raise ValueError(f"{plain['type']} must have the fields {_names(kind)}")
    values = {name: unpack(item, arrays) for name, item in plain["fields"].items()}
    for name, hint in typing.get_type_hints(kind).items():
        if name in values and not _fits(values[name], hint):
            raise ValueError(f"{name} of a {plain['type']} must be of the type {hint}")
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type; other annotations are not looked at."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is typing.Literal:
        return value in inside
    if origin is tuple:
        each = inside[:1] * len(value) if isinstance(value, tuple) and inside[-1] is Ellipsis else inside
        return isinstance(value, tuple) and len(each) == len(value) and all(map(_fits, value, each))
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = np.ndarray if hint in ARRAYS or origin in ARRAYS else hint
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a file names it."""
    if not (isinstance(shape, list) and all(isinstance(one, int) and 0 <= one < 1 << 40 for one in shape)):
        raise ValueError("the shape of an array must be a list of integers from 0")
    return tuple(shape)


def require_like(value: Any, like: Any, shapes: Sequence[tuple[int, ...]], place: str = "memory") -> None:
    """Raise a ValueError unless a value is built as `like`, a state before round 1, and all its numbers are finite.

    Where `like` holds nothing yet, coordinates have the shapes of λ, and arrays are vectors or dense curvatures.
    """
    dim = shapes[0][0]
    if isinstance(value, np.ndarray):
        is_known = isinstance(like, np.ndarray)
        fits = value.shape == like.shape if is_known else value.ndim == 1 or value.shape == (dim, dim)
        if not (fits and np.isfinite(value).all()):
            shape = like.shape if is_known else f"{(dim, dim)}, or a vector"
            raise ValueError(f"{place} must be finite, of shape {shape}")
        return
    if isinstance(value, Natural | Displacement) and (value.shapes != shapes or not value.is_finite()):
        raise ValueError(f"{place} must be finite, of the shapes {shapes}")
    is_sized = not isinstance(like, tuple) or hasattr(like, "_fields") or like == () or len(like) == len(value)
    if like is not None and not (isinstance(value, type(like)) and is_sized):
        raise ValueError(f"{place} must be built as {type(like).__name__} before the first round")
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        before = like or (None,) * len(value)
        for k, (item, old) in enumerate(zip(value, before, strict=True)):
            require_like(item, old, shapes, f"{place}[{k}]")
    elif MEMORIES.get(type(value).__name__) is type(value) and not isinstance(value, Enum | Natural | Displacement):
        for name in _names(type(value)):
            require_like(getattr(value, name), getattr(like, name, None), shapes, f"{place}.{name}")


def sizes(plain: Any) -> dict[str, int]:
    """Return the lengths of the vectors that a packed value names."""
    if isinstance(plain, dict) and "array" in plain:
        return {str(plain["array"]): math.prod(_shape(plain["shape"]))}
    inside = plain if isinstance(plain, list) else list(plain.values()) if isinstance(plain, dict) else []
    found: dict[str, int] = {}
    for item in inside:
        found |= sizes(item)
    return found


def _names(kind: Any) -> tuple[str, ...]:
    named: tuple[str, ...] = getattr(kind, "_fields", ())
    return named or tuple(item.name for item in dataclasses.fields(kind))
