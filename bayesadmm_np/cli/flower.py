"""`bayesadmm flower`: the app of a federation on Flower, and the plan of its configuration."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from cyclopts import Parameter

from .._errors import worded
from ._methods import task_of
from ._options import MethodSettings, RunSettings, at_least, converted, make_settings, option
from ._run_files import Folder, load_site, read_config
from ._terminal import note, require_writable

if TYPE_CHECKING:
    from ..federation.dispatch import Plan

__all__ = ["new", "node"]

HELP = """Fit a model on Flower, with sites on other machines; Flower's own commands do the rest.

  S$ bayesadmm flower new trial --sites 3
  A$ bayesadmm flower node a --superlink server.example.org:8000 --key node-A --root-certificates ca.crt
"""

OWN: dict[str, tuple[Any, str]] = {
    "seed": (0, "For stochastic solvers."),
    "warm_start": (False, "Start each site's solver from its last posterior."),
    "sites": (None, "Number of sites that must say hello before the run begins."),
    "sites_per_round": (None, "Number of answers that complete a round; a site without one keeps its last factor."),
    "participation": (None, "Fraction of the sites that are asked in a round."),
    "deadline": (None, "Seconds that a site has for an answer."),
    "patience": (None, "Seconds that the run waits for enough sites before it stops; it can be resumed."),
    "run_folder": ("run", "Folder of the checkpoint on the server; an unfinished run in it continues."),
}
"""Keys of an app that no command has as an option; those without a default have that of `Plan`."""
PLANNED = {"sites_per_round": "least", "run_folder": "folder"}
"""Fields of `Plan` whose keys have other names."""


def new(
    folder: Annotated[Path, option("The federation's folder.", name="DIR")],
    /,
    *,
    sites: Annotated[int, option("Number of sites.", name=("--sites", "--elsewhere"), check=at_least(1))],
) -> None:
    """Write the app of a federation, which Flower ships to all machines.

    The file app/pyproject.toml explains every key of a run. Each site makes its own
    folder with `bayesadmm site init`, on the machine that holds its rows.
    docs/flower.md lists Flower's commands that start all.

    Examples of use:
      bayesadmm flower new trial --sites 3
    """
    from ..federation.flower.project import APP, write_app

    require_writable(folder, "DIR")
    explained = (f"# {meaning}\n{key} = {_toml(default)}" for key, (default, meaning) in keys(sites).items())
    write_app(folder, "\n".join(explained))
    print(f"{folder / APP}: an app for {sites} sites\nsettings: {folder / APP / 'pyproject.toml'}")


def node(
    folder: Folder,
    /,
    *,
    superlink: Annotated[str, option("The server's address.", name=("--superlink",), metavar="HOST:PORT")],
    key: Annotated[Path, option("Private key of the node: ssh-keygen -t ecdsa -b 384.")],
    root_certificates: Annotated[Path | None, option("Authorities of its certificate; default: the system's.")] = None,
) -> None:
    """Answer the messages of a server on Flower for a site, until it is stopped.

    This program takes the place of Flower's own flower-supernode, which runs code that
    the server's operator sends. It takes messages only.

    Examples of use:
      bayesadmm flower node a --superlink server.example.org:8000 --key node-A
    """
    from ..federation.flower import run_node

    read_config(folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to take leave of the superlink
    note(f"{folder}: answers {superlink}; runs no code of its operator")
    with suppress(KeyboardInterrupt):
        run_node(load_site, folder, superlink, key, root_certificates)


def keys(n_sites: int) -> dict[str, tuple[Any, str]]:
    """Return the keys of an app's configuration: default and meaning, those of options where an option has the name."""
    from ..federation.dispatch import Plan

    found: dict[str, tuple[Any, str]] = {}
    for kind in (MethodSettings, RunSettings):
        hints = get_type_hints(kind, include_extras=True)
        for item in fields(kind):
            declared = next(one for one in reversed(get_args(hints[item.name])) if isinstance(one, Parameter))
            found[item.name] = _without_null(item.default, hints[item.name]), str(declared.help)
    del found["sums_only"]  # a sum needs the answers of all sites, and a network loses some
    of_plan = {item.name: item.default for item in fields(Plan)} | {"sites": n_sites}
    for name, (default, meaning) in OWN.items():
        found[name] = of_plan[PLANNED.get(name, name)] if default is None else default, meaning
    return {name.replace("_", "-"): value for name, value in found.items()}


def _without_null(default: Any, hint: Any) -> Any:
    """Return a default as a TOML file has it: there 0 or an empty text stands for none."""
    if isinstance(default, tuple):
        return ",".join(default)
    kinds = get_args(get_args(hint)[0])
    return default if default is not None else 0.0 if float in kinds else 0 if int in kinds else ""


def read_plan(config: Mapping[str, Any]) -> Plan:
    """Return the plan of an app's configuration, whose keys `flower new` writes and explains."""
    from ..families.base import FAMILIES as SENDABLE
    from ..families.gaussians import FAMILIES
    from ..federation.dispatch import Plan

    known = keys(0)
    missing = sorted(set(known) - set(config))
    if missing:
        raise ValueError(f"the app's configuration must have the key {missing[0]!r}; see [tool.flwr.app.config].")
    plain = {
        key.replace("-", "_"): converted(config[key], type(default), key, f", as in {key} = {_toml(default)}")
        for key, (default, _) in known.items()
    }
    if plain["family"] not in FAMILIES:
        others = sorted(set(SENDABLE) - {family.__name__ for family in FAMILIES.values()})
        raise ValueError(
            f"family must be one of {', '.join(FAMILIES)}, the Gaussian families that a key can name, got "
            f"{plain['family']!r}; {', '.join(others)} are set in Python: server_app(Plan(GLMTask(...), ...)), and "
            "run_node(load, ...) where the losses are others too."
        )

    def made(kind: Any) -> Any:
        given = {}
        for item in (one for one in fields(kind) if one.name in plain):
            value = plain[item.name]
            if isinstance(item.default, tuple):
                value = [word.strip() for word in value.split(",") if word.strip()]
            if value or item.default is not None:  # what is 0 or empty stands for none
                given[item.name] = value
        return make_settings(kind, given)

    try:
        task = task_of(
            made(MethodSettings), made(RunSettings), plain["seed"], asks=True, warm_start=plain["warm_start"]
        )
        return Plan(
            task, **{PLANNED.get(name, name): plain[name] for name in OWN if name not in ("seed", "warm_start")}
        )
    except ValueError as error:
        names = {new: old for old, new in PLANNED.items()}
        raise ValueError(worded(error, argument=lambda name: names.get(name, name).replace("_", "-"))) from error


def _toml(value: Any) -> str:
    """Return a text, number or boolean as TOML has it; their JSON is the same."""
    return json.dumps(value, ensure_ascii=False)
