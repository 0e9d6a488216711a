"""The spec of a run as plain values: the sites, the rounds, and the settings of its engine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from .._archive import Archive, refusal
from .._errors import ArgumentError
from .._validation import Array, as_count
from ..splitting.messages import Ask
from ..splitting.settings import decode_fields, encode, require_registered
from .bounds import MOST_ROUNDS

MOST_ROWS = 1 << 53
"""Rows of a site, at most: up to there a float64 holds every whole number."""

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")

ENGINES = {
    "glm": ("bayesadmm_np.federation.glm_server", "GLMSpec", "GLMServer"),
    "network": ("bayesadmm_np.torch.federated", "NetworkSpec", "NetworkServer"),
}
"""Module, spec and engine at the server; those of networks are imported when a message asks for them, with torch."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSpec:
    """All that server and sites must agree on, repeated by every broadcast. The run's id is a digest of it.

    Sums over sites are taken in the order of their sorted names. `weights` has N_k, the total weight of each site's
    rows, and `keys` the public keys of the sites, () where they have none.
    """

    engine: ClassVar[str]
    """Name in `ENGINES`."""

    sites: tuple[str, ...]
    weights: tuple[float, ...]
    keys: tuple[str, ...] = ()
    rounds: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        # of the types that a site reads, or its digest of the same spec would be another
        for name in ("rounds", "seed"):
            object.__setattr__(self, name, as_count(getattr(self, name), name, minimum=0))
        if self.rounds > MOST_ROUNDS:
            raise ArgumentError("rounds", f"must be at most {MOST_ROUNDS} between sites", self.rounds)
        if not self.sites or list(self.sites) != sorted(set(self.sites)):
            raise ValueError(f"sites must be different names in order, at least one, got {list(self.sites)}.")
        for name in self.sites:
            as_site_name(name)
        if len(self.weights) != len(self.sites) or not all(0 <= weight < np.inf for weight in self.weights):
            raise ValueError(f"weights must hold one number >= 0 a site, {len(self.sites)}, got {list(self.weights)}.")
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        if self.keys and not len(self.sites) == len(self.keys) == len(set(self.keys)):
            raise ValueError(f"keys must be () or a key of its own for each site, got {list(self.keys)}.")
        require_registered(self, self.of_its_own)

    if TYPE_CHECKING:  # a field of the one kind of run, a property of the other

        @property
        def dim(self) -> int:
            """Number of parameters."""

    def at_server(self, model: Any = None) -> Any:
        """Return the engine of this run at a server; networks need their model."""
        module, _, server = ENGINES[self.engine]
        return getattr(import_module(module), server).of(self, model)

    @property
    def limit(self) -> int:
        """Rounds at most."""
        return self.rounds

    def asked(self, round: int) -> frozenset[Ask]:
        """Return what sites can be asked for in a round, beside their report."""
        return frozenset({"solve"})

    @property
    def named(self) -> frozenset[str]:
        """Names of columns and terms that all parties of the run know."""
        return frozenset()

    @property
    def certified(self) -> tuple[int, float] | None:
        """Parameters and tolerance of the certificate; None where a run of this engine makes none."""
        return None

    lines: ClassVar[tuple[str, ...]] = ()
    """Sentences on what the sites agreed on, which a server keeps and does not send."""

    def with_lines(self, lines: tuple[str, ...]) -> Self:
        """Return the spec with these sentences."""
        return self

    def read_table(self, plain: Mapping[str, Any], arrays: Mapping[str, Any]) -> Any:
        """Read what sites were asked for beside the rounds."""
        raise refusal("table", f"null: a run of the engine {self.engine} asks for none", "one")

    @cached_property
    def run(self) -> str:
        """The run's id."""
        return run_of(*self.encode())

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the spec as JSON values and vectors."""
        header: dict[str, Any] = {"engine": self.engine}
        arrays: dict[str, Array] = {}
        for item in dataclasses.fields(self):
            if item.name not in self.of_its_own:
                header[item.name] = encode(getattr(self, item.name))
        return header, arrays

    in_vectors: ClassVar[frozenset[str]] = frozenset()
    """Fields that are vectors of the message, not values of its header."""

    of_its_own: ClassVar[frozenset[str]] = frozenset()
    """Fields that a spec writes and reads in a way of its own."""

    @classmethod
    def decode(cls, plain: dict[str, Any], vectors: Mapping[str, Array], most: int) -> Self:
        """Inverse of `encode`; refuse what is larger than a parameter of at most so many numbers."""
        return cls(**cls.settings(plain))

    @classmethod
    def settings(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """Return the fields whose values say it all."""
        return decode_fields(cls, plain, "", "")


def keys_of(hellos: Sequence[Any]) -> tuple[str, ...]:
    """Return the public keys of sites that have said hello; () where they have none."""
    return tuple(hello.identity for hello in hellos if hello.identity is not None)


def sized(vectors: Mapping[str, Array], name: str, size: int) -> Array:
    """Return a vector of a spec, which must be of this length."""
    if name not in vectors or vectors[name].size != size:
        got = vectors[name].size if name in vectors else "nothing"
        raise refusal(name, f"a vector of {size} numbers", got)
    return vectors[name]


def run_of(plain: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Return the id of a run from the plain values of its spec, and the arrays beside them: nothing is made of them."""
    own = {name: values for name, values in arrays.items() if name in SPEC_VECTORS}
    return Archive("spec", {"spec": plain}, own).digest[:16]


SPEC_VECTORS = frozenset({"prior", "centre"})
"""Vectors that belong to the spec, in whatever message."""


def as_site_name(name: Any) -> str:
    """Check a site's name: it becomes part of a file's name."""
    if not (isinstance(name, str) and SITE_NAME.fullmatch(name)):
        raise ValueError(
            "site must be a name of at most 64 ASCII letters (oe for ö), digits, spaces, dots, dashes and underscores, "
            f"which starts with a letter or digit, got {name!r}."
        )
    return name
