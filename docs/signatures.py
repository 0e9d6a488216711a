"""Signatures of the reference: those of Python, where griffe reads a dataclass otherwise.

A field that a subclass makes an argument keeps its place in Python, and griffe puts it last; one that a subclass takes
back griffe keeps.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from bayesadmm_np import estimators

__all__ = ["Signatures"]


class Signatures(griffe.Extension):
    """Orders the arguments of the estimators as their signatures do."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Put arguments in order, when all classes of the package are read."""
        for module in pkg["estimators"].modules.values():
            for found in module.classes.values():
                init = found.members.get("__init__")
                if isinstance(init, griffe.Function) and "dataclass" in found.labels and found.name in estimators.HOMES:
                    arguments = inspect.signature(getattr(estimators, found.name)).parameters
                    init.parameters = griffe.Parameters(*(init.parameters[name] for name in ("self", *arguments)))
