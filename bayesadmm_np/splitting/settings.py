"""Settings as plain values: methods, rules, solvers and schedules, as messages and model files hold them.

Only registered classes are written and read, as frozen dataclasses of plain values. A reader makes objects of no other
class, whatever a file contains.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np

from .._archive import ArchiveError, read_as
from .._fields import hints_of, typed
from .._registry import Registry
from ..clients.problem import SOLVERS
from ..families.base import FAMILIES
from ..losses.expectations import RULES
from ..losses.sketches import SKETCHES
from .duals import DUAL_RULES, SCHEDULES
from .method import Method
from .step import STEPS

SETTINGS: Registry[type] = Registry("setting")
"""Frozen dataclasses of plain values that can be sent, beside the registered ones of the core."""
SETTINGS.register(Method)

REGISTRIES: tuple[Mapping[str, type], ...] = (SETTINGS, STEPS, RULES, SOLVERS, DUAL_RULES, SCHEDULES, SKETCHES)


def known(name: Any) -> Any:
    """Return the class of a setting that can be sent; None for an unknown name."""
    return next((registry[name] for registry in REGISTRIES if isinstance(name, str) and name in registry), None)


def require_registered(value: Any, others: Collection[str] = ()) -> None:
    """Raise a ValueError for a setting that the other party could not make; the fields `others` are not checked."""
    for item in dataclasses.fields(value):
        entry = getattr(value, item.name)
        if not dataclasses.is_dataclass(entry) or item.name in others:
            continue
        if known(type(entry).__name__) is not type(entry):
            names = ", ".join(chain(*REGISTRIES))
            raise ValueError(f"{item.name}={entry!r} cannot be sent: it is none of {names}.")
        require_registered(entry)


def encode(value: Any) -> Any:
    """Return a setting as JSON: a frozen dataclass with its type's name, a tuple as a list, a family as its name."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    kind: Any = type(value)
    hints = hints_of(kind)
    plain: dict[str, Any] = {"type": kind.__name__}
    for item in dataclasses.fields(value):
        entry = getattr(value, item.name)
        plain[item.name] = float(entry) if hints[item.name] is float else encode(entry)
    return plain


def decode(plain: Any, hint: Any, name: str, source: str) -> Any:
    """Inverse of `encode` for a setting of an annotated type; makes nothing but what is registered."""
    of = plain.get("type") if isinstance(plain, dict) else plain
    kind = known(of)
    if kind is None or not issubclass(kind, _kinds(hint)):
        raise ArchiveError(f"{name} is none that is known here: {of!r:.120}.", source)
    own, expected = {*plain} - {"type"}, {item.name for item in dataclasses.fields(kind)}
    if own != expected:
        raise ArchiveError(f"{name} of {of} must have the fields {sorted(expected)}, got {sorted(own)}.", source)
    values = decode_fields(kind, {field: plain[field] for field in own}, name, source)
    try:
        return kind(**values)
    except ArchiveError:
        raise
    except ValueError as error:
        raise ArchiveError(f"{name}: {error}", source) from error


def decode_fields(kind: type, plain: Mapping[str, Any], name: str, source: str) -> dict[str, Any]:
    """Return values of the fields of a dataclass: settings are made, and what is plain is of its type and finite."""
    hints, values, leaves = hints_of(kind), dict(plain), dict(plain)
    for field, default in ((item.name, item.default) for item in dataclasses.fields(kind) if item.name in plain):
        if field == "families":
            values[field] = tuple(FAMILIES[family] for family in leaves.pop(field))
        elif plain[field] == default == np.inf:  # such as that of a radius: the one number that is not finite
            del leaves[field]
        elif plain[field] is not None and (
            isinstance(plain[field], dict) or any(map(dataclasses.is_dataclass, _kinds(hints[field])))
        ):
            values[field] = decode(leaves.pop(field), hints[field], f"{name}.{field}".lstrip("."), source)
    where = ": ".join(filter(None, (source, name)))
    try:
        json.dumps(leaves, allow_nan=False)
    except ValueError as error:
        raise ArchiveError(f"numbers must be finite, got {leaves!r:.120}.", where) from error
    return values | read_as(typed(kind, tuple(leaves)), leaves, where)


def _kinds(hint: Any) -> tuple[type, ...]:
    return tuple(kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type))
