"""What the API reference lists: every public name of the package and of its subpackages, once.

A page of `docs/reference/` names a module on a line of its own, ``@all bayesadmm_np.families``; the site replaces the
line by the documentation of everything in the module's ``__all__``. The tests check that no module is forgotten.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import bayesadmm_np

__all__ = ["DIRECTIVE", "REFERENCE", "expand", "is_there", "names", "public_modules"]

REFERENCE = Path(__file__).parent / "reference"
DIRECTIVE = re.compile(r"^@all ([\w.]+)$", flags=re.MULTILINE)
MODULES_OF_FUNCTIONS = ("bayesadmm_np.splitting.methods", "bayesadmm_np.data.partition")
"""Plain modules that are public themselves; all other public names are those of packages."""
OPTIONAL = {"bayesadmm_np.torch": "torch"}


def public_modules() -> list[str]:
    """Return the package, its subpackages (but not the demos), and the public plain modules."""
    found = [
        module.name
        for module in pkgutil.iter_modules(bayesadmm_np.__path__, "bayesadmm_np.")
        if module.ispkg and module.name != "bayesadmm_np.demos" and is_there(module.name)
    ]
    return ["bayesadmm_np", *found, *MODULES_OF_FUNCTIONS]


def is_there(module_name: str) -> bool:
    """Whether the optional package that a subpackage imports at once is installed."""
    return find_spec(OPTIONAL.get(module_name, "bayesadmm_np")) is not None


def names(module_name: str) -> list[str]:
    """Return the names of a module that have no entry elsewhere: no modules, and nothing that the package exports."""
    module = importlib.import_module(module_name)
    exported = [] if module is bayesadmm_np else [getattr(bayesadmm_np, name) for name in bayesadmm_np.__all__]
    return [
        name
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
        and not any(getattr(module, name) is other for other in exported)
    ]


def expand(markdown: str) -> str:
    """Replace every directive by one entry per name."""

    def entries(found: re.Match[str]) -> str:
        if not is_there(found.group(1)):
            return f"*Listed where {OPTIONAL[found.group(1)]} is installed.*"
        return "\n\n".join(f"::: {found.group(1)}.{name}" for name in names(found.group(1)))

    return DIRECTIVE.sub(entries, markdown)
