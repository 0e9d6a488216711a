"""The spec of a run as plain values: the sites, the rounds, and the settings of its engine.

Only registered families, methods, rules and solvers can be sent, as frozen dataclasses of plain values. A reader makes
objects of no other class, whatever a message says.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np

from .._archive import Archive as Message
from .._archive import content_of
from .._registry import Registry
from .._validation import Array, as_count
from ..clients.solver import SOLVERS
from ..families.base import FAMILIES, ExponentialFamily
from ..losses.expectations import RULES
from ..splitting.accelerated import Accelerated
from ..splitting.duals import DUAL_RULES
from ..splitting.methods import Method
from ..splitting.schedules import SCHEDULES

__all__ = ["MOST_ROWS", "SPEC_VECTORS", "RunSpec", "as_site_name", "decode", "encode", "run_of"]

MOST_ROWS = 1 << 53
"""Of a site: up to there a float64 holds every whole number."""

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")

ENGINES = {
    "glm": ("bayesadmm_np.federation.glm", "GLMSpec", "GLMServer"),
    "network": ("bayesadmm_np.torch.federated", "NetworkSpec", "NetworkServer"),
}
"""Module, spec and engine at the server; those of networks are imported when a message asks for them, with torch."""

SETTINGS: Registry[type] = Registry("setting")
"""Frozen dataclasses of plain values that can be sent, beside the registered ones of the core."""
SETTINGS.register(Method)
SETTINGS.register(Accelerated)


REGISTRIES: tuple[Mapping[str, type], ...] = (SETTINGS, RULES, SOLVERS, DUAL_RULES, SCHEDULES)


def setting(name: Any) -> type | None:
    """Return the class of a setting that can be sent; None where there is none of this name."""
    for registry in REGISTRIES:
        if isinstance(name, str) and name in registry:
            found: type = registry[name]
            return found
    return None


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSpec:
    """All that server and sites must agree on, repeated by every broadcast. The run's id is a digest of it.

    Parameters
    ----------
    sites : tuple of str
        Names, sorted: sums over sites are taken in this order.
    weights : tuple of float
        N_k, the total weight of each site's rows.
    rounds : int, default 100
    seed : int, default 0

    Raises
    ------
    ValueError
        When something is out of range, or cannot be sent.

    Examples
    --------
    >>> from bayesadmm_np.federation import GLMSpec, RunSpec
    >>> issubclass(GLMSpec, RunSpec), GLMSpec.engine
    (True, 'glm')
    """

    engine: ClassVar[str]
    """Name in `ENGINES`."""

    sites: tuple[str, ...]
    weights: tuple[float, ...]
    rounds: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        # of the types that a site reads, or its digest of the same spec would be another
        for name in ("rounds", "seed"):
            object.__setattr__(self, name, as_count(getattr(self, name), name, minimum=0))
        if not self.sites or list(self.sites) != sorted(set(self.sites)):
            raise ValueError(f"sites must be different names in order, at least one, got {list(self.sites)}.")
        for name in self.sites:
            as_site_name(name)
        if len(self.weights) != len(self.sites) or not all(0 <= weight < np.inf for weight in self.weights):
            raise ValueError(f"weights must hold one number >= 0 a site, {len(self.sites)}, got {list(self.weights)}.")
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        _require_registered(self)

    def at_server(self, model: Any = None) -> Any:
        """Return the engine of this run at a server; networks need their model."""
        module, _, server = ENGINES[self.engine]
        return getattr(import_module(module), server).of(self, model)

    @property
    def limit(self) -> int:
        """Rounds at most."""
        return self.rounds

    @property
    def certified(self) -> tuple[int, float] | None:
        """Parameters and tolerance of the certificate; None where a run of this engine makes none."""
        return None

    @cached_property
    def run(self) -> str:
        """The run's id."""
        header, arrays = self.encode()
        return run_of(Message("spec", {"spec": header}, arrays))

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the spec as JSON values and vectors."""
        header: dict[str, Any] = {"engine": self.engine}
        arrays: dict[str, Array] = {}
        for item in dataclasses.fields(self):
            header[item.name] = encode(getattr(self, item.name))
        return header, arrays

    @classmethod
    def read(cls, message: Message, data: Any = None) -> RunSpec:
        """Read the spec that a message repeats, checking every type and range, with the reader of its engine.

        A site gives its `data`: what is of another engine, or larger than a parameter of its own can be, is refused
        before it is made.

        Raises
        ------
        MessageError
            When a field is missing, of another type, or out of range.
        """
        plain = message.header.get("spec")
        name = plain.get("engine") if isinstance(plain, dict) else None
        if not isinstance(name, str) or name not in ENGINES:
            raise message.refusal("spec", f"that of a run, with an engine of {', '.join(ENGINES)}", plain)
        if data is not None and name != data.engine:
            raise message.refusal("engine", f"{data.engine!r}, as this site has rows for", name)
        module, kind, _ = ENGINES[name]
        own: type[RunSpec] = getattr(import_module(module), kind)
        fields = {"engine", *(item.name for item in dataclasses.fields(own))} - own.in_vectors
        assert isinstance(plain, dict)
        if set(plain) != fields:
            raise message.refusal("spec", f"exactly the fields {sorted(fields)}", sorted(map(str, plain)))
        with content_of(message, "the spec of a run"):
            return own.decode(
                message,
                {name: value for name, value in plain.items() if name != "engine"},
                None if data is None else data.most,
            )

    in_vectors: ClassVar[frozenset[str]] = frozenset()
    """Fields that are vectors of the message, not values of its header."""

    @classmethod
    def decode(cls, message: Message, plain: dict[str, Any], most: int | None) -> Self:
        """Inverse of `encode`."""
        hints = typing.get_type_hints(cls)
        return cls(**{name: decode(value, hints[name], name) for name, value in plain.items()})


def _require_registered(value: Any) -> None:
    """Raise a ValueError for the first setting, or setting of a setting, that the other party could not make."""
    for item in dataclasses.fields(value):
        entry = getattr(value, item.name)
        if not dataclasses.is_dataclass(entry):
            continue
        if setting(type(entry).__name__) is not type(entry):
            known = ", ".join(chain(*REGISTRIES))
            raise ValueError(f"{item.name}={entry!r} cannot be sent: it is none of {known}.")
        _require_registered(entry)


def run_of(message: Message) -> str:
    """Return the id of the run of a message, from the plain values of its spec: nothing is made of them."""
    plain = message.header["spec"]
    arrays = {name: values for name, values in message.arrays.items() if name in SPEC_VECTORS}
    return Message("spec", {"spec": plain}, arrays).digest[:16]


SPEC_VECTORS = frozenset({"prior", "centre", "scale"})
"""Vectors that belong to the spec, in whatever message."""


def as_site_name(name: Any) -> str:
    """Check a site's name: it becomes part of a file's name."""
    if not (isinstance(name, str) and SITE_NAME.fullmatch(name)):
        raise ValueError(
            "site must be a name of at most 64 letters, digits, spaces, dots, dashes and underscores, which starts "
            f"with a letter or digit, got {name!r}."
        )
    return name


# ----------------------------------------------------------------------------------------------------
# Settings as plain values
# ----------------------------------------------------------------------------------------------------


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


def decode(plain: Any, hint: Any, name: str) -> Any:
    """Inverse of `encode` for a value of an annotated type; makes nothing but what is registered."""
    if isinstance(plain, dict):
        kind = setting(plain.get("type"))
        if kind is None or not _is_of(kind, hint):
            raise ValueError(f"{name} is none that is known here: {plain.get('type')!r}")
        hints, names = typing.get_type_hints(kind), {item.name: item.default for item in dataclasses.fields(kind)}
        values = {key: value for key, value in plain.items() if key != "type"}
        if set(values) != set(names):
            raise ValueError(f"{kind.__name__} must have the fields {sorted(names)}, got {sorted(map(str, values))}")
        # an infinite default, such as that of a radius, is the one number that is not finite
        infinite = {key for key, value in values.items() if value == names[key] == np.inf}
        read = {key: value if key in infinite else decode(value, hints[key], key) for key, value in values.items()}
        return kind(**read)
    if isinstance(plain, list):
        items = [FAMILIES[item] if name == "families" else item for item in plain]
        plain = tuple(items)
    if not _fits(plain, hint):
        raise ValueError(f"{name} must be of the type {hint}, got {plain!r}")
    return float(plain) if hint is float else plain


def _is_of(kind: type, hint: Any) -> bool:
    """Whether instances of a class are of an annotated type."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return any(_is_of(kind, one) for one in typing.get_args(hint))
    return isinstance(hint, type) and issubclass(kind, hint)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON made is of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in arguments)
    if origin is type:
        return isinstance(value, type) and issubclass(value, ExponentialFamily)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
