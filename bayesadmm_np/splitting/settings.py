"""Settings as plain values: methods, rules, solvers and schedules, as messages and model files hold them.

Only registered classes are written and read, as frozen dataclasses of plain values. A reader makes objects of no other
class, whatever a file says.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import numpy as np

from .._archive import ArchiveError, read_as
from .._registry import Registry
from ..clients.solver import SOLVERS
from ..families.base import FAMILIES
from ..losses.expectations import RULES
from ..losses.sketches import SKETCHES
from .accelerated import Accelerated
from .duals import DUAL_RULES
from .methods import Method
from .schedules import SCHEDULES

__all__ = ["SETTINGS", "decode", "encode", "require_registered"]

SETTINGS: Registry[type] = Registry("setting")
"""Frozen dataclasses of plain values that can be sent, beside the registered ones of the core."""
SETTINGS.register(Method)
SETTINGS.register(Accelerated)

REGISTRIES: tuple[Mapping[str, type], ...] = (SETTINGS, RULES, SOLVERS, DUAL_RULES, SCHEDULES, SKETCHES)


def known(name: Any) -> Any:
    """Return the class of a setting that can be sent; None where there is none of this name."""
    return next((registry[name] for registry in REGISTRIES if isinstance(name, str) and name in registry), None)


def require_registered(value: Any, others: Collection[str] = ()) -> None:
    """Raise a ValueError for the first setting, or setting of a setting, that the other party could not make.

    Fields among the `others` are sent in a way of their own.
    """
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
    hints = typing.get_type_hints(type(value))
    plain: dict[str, Any] = {"type": type(value).__name__}
    for item in dataclasses.fields(value):
        entry = getattr(value, item.name)
        plain[item.name] = float(entry) if hints[item.name] is float else encode(entry)
    return plain


def decode(plain: Any, hint: Any, name: str, source: str) -> Any:
    """Inverse of `encode` for the value of an annotated field; makes nothing but what is registered.

    Raises
    ------
    ArchiveError
        With the name of the field, and of the file, `source`.
    """
    kinds = tuple(kind for kind in typing.get_args(hint) or (hint,) if isinstance(kind, type))
    if not isinstance(plain, dict) and not any(map(dataclasses.is_dataclass, kinds)):
        return _leaf(plain, hint, name, source)
    of = plain.get("type") if isinstance(plain, dict) else plain
    kind = known(of)
    if kind is None or not issubclass(kind, kinds):
        raise ArchiveError(f"{name} is none that is known here: {of!r:.120}.", source)
    hints, defaults = typing.get_type_hints(kind), {item.name: item.default for item in dataclasses.fields(kind)}
    if set(plain) != {"type", *defaults}:
        got = sorted({*plain} - {"type"})
        raise ArchiveError(f"{name} of {of} must have the fields {sorted(defaults)}, got {got}.", source)
    try:
        values: dict[str, Any] = {}
        for field, value in plain.items():
            if field == "families":
                values[field] = tuple(FAMILIES[family] for family in value)
            elif value == defaults.get(field) == np.inf:  # such as that of a radius: the one number that is not finite
                values[field] = value
            elif field != "type":
                values[field] = decode(value, hints[field], f"{name}.{field}", source)
        return kind(**values)
    except ArchiveError:
        raise
    except ValueError as error:
        raise ArchiveError(f"{name}: {error}", source) from error


def _leaf(plain: Any, hint: Any, name: str, source: str) -> Any:
    try:
        value = read_as(hint, plain, source)
        if np.isfinite([x for x in (value if isinstance(value, tuple) else [value]) if isinstance(x, float)]).all():
            return value
    except ArchiveError:
        pass
    raise ArchiveError(f"{name} must be of the type {hint} and finite, got {plain!r:.120}.", source)
