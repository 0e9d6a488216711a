"""Runs of networks by files: a Python file of the user's own says what the rows and the model are."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

from ._columns import rules_of
from ._options import RuleSettings, make_settings, option
from ._terminal import Refused, require_writable, write_json

CONFIG = "network.json"

Function = Annotated[str, option("Python file, and a function in it.", name="FILE.py:FUNCTION")]


def _function(reference: str) -> Callable[[], Any]:
    """Return a function of a user's own file; the file can import what lies beside it."""
    path, _, name = reference.rpartition(":")
    if not Path(path).is_file() or not name:
        raise Refused(f"FILE.py:FUNCTION must name a file that exists and a function in it, got {reference!r}.")
    found = spec_from_file_location(Path(path).stem, path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        found.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        raise Refused(f"{path} has no function {name!r}.")
    return function


def is_network(folder: Path) -> bool:
    """Whether a folder, of a site or a server, is that of a run of a network."""
    return (folder / CONFIG).exists()


def _config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))


def _keep(folder: Path, **known: Any) -> None:
    path, _, name = known["function"].rpartition(":")
    known["function"] = f"{Path(path).resolve()}:{name}"
    write_json(folder / CONFIG, known)


def _site(name: str, reference: str, rules: RuleSettings) -> Any:
    from ..federation import Site
    from ..torch import NetworkData

    made = _function(reference)()
    if not (isinstance(made, tuple) and len(made) == 2):
        raise Refused(f"{reference} must return (rows, model), got {type(made).__name__}.")
    return Site(name, NetworkData(*made), rules=rules_of(rules))


def introduce_network(folder: Path, name: str, reference: str, rules: RuleSettings) -> dict[str, Any]:
    """Write what a site remembers, and hello.npz."""
    from ..federation import site_key
    from ..federation.folders import STATE, say_hello

    if (folder / STATE).exists():
        raise Refused(f"{folder} takes part in a run already; give a new run a folder of its own.")
    site = _site(name, reference, rules)
    require_writable(folder, "DIR")
    folder.mkdir(parents=True, exist_ok=True)
    _keep(folder, name=name, function=reference, digest=site.data.digest, rules=asdict(rules))
    site = replace(site, key=site_key(folder))
    say_hello(folder, site)
    told = {"written": str(folder / "hello.npz"), "site": name, "key": site.key.identity}
    return {**told, "rows": len(site.data.rows)}


def change_network_rules(folder: Path, given: dict[str, Any]) -> None:
    """Change the rules that a site remembers."""
    known = _config(folder)
    write_json(folder / CONFIG, {**known, "rules": {**known["rules"], **given}})


def load_network_site(folder: Path) -> Any:
    """Return the site of a folder, whose rows are those of hello.npz."""
    from ..federation import MessageError

    known = _config(folder)
    site = _site(known["name"], known["function"], make_settings(RuleSettings, known["rules"]))
    if site.data.digest != known["digest"]:
        raise MessageError(
            f"{known['function']}: the rows of site {site.name!r} must be those of hello.npz, and they have changed "
            "since; put the old ones back, or start a new run."
        )
    return site


def begin_network(folder: Path, hellos: Sequence[Path], reference: str) -> tuple[Any, Path]:
    """Start a run of the sites that said hello; return the server and its first broadcast."""
    from ..federation import Coordinator, Message, start_server
    from ..federation.dispatch.client_manager import HELLO_LIMIT
    from ..torch import NetworkTask

    task = _function(reference)()
    if not isinstance(task, NetworkTask):
        raise Refused(f"{reference} must return a NetworkTask, got {type(task).__name__}.")
    server = Coordinator.start([Message.read(path, HELLO_LIMIT) for path in hellos], task)
    require_writable(folder, "DIR")
    folder.mkdir(parents=True, exist_ok=True)
    path = start_server(folder, server)
    _keep(folder, function=reference)
    return server, path


def model_of(folder: Path) -> Any:
    """Return the model of a server's folder; None where the run is of no network."""
    return _function(_config(folder)["function"])().model if is_network(folder) else None
