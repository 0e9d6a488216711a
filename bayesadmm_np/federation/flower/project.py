"""The app that Flower ships to the server, and to sites that start its own supernode."""

from __future__ import annotations

from pathlib import Path

from ..._archive import private_folder
from ..._version import __version__

APP = "app"

PROJECT = """\
# What Flower ships to the server, and to sites that start its own supernode. It takes all .py, .toml, .md, .yaml and
# .json files below this folder: keep data elsewhere.
[project]
name = "federation"
version = "0.1.0"
description = "Rounds of bayesadmm-np among sites that keep their rows."
license = "BSD-3-Clause"
dependencies = ["flwr>=1.41,<1.42", "bayesadmm-np=={version}"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "bayesadmm"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.server_app:app" # Flower wants one; a site that starts `bayesadmm flower node` has its own

# The server's configuration; `flwr run -c 'rounds=50'` changes a key for one run. An empty text or 0.0: the default.
[tool.flwr.app.config]
{keys}
"""

SERVER = '''"""The server: waits for the sites, does the rounds, writes checkpoint and result into `run-folder`."""

from bayesadmm_np.cli.flower import read_plan
from bayesadmm_np.federation.flower import server_app

app = server_app(read_plan)
'''


def write_app(folder: Path, keys: str) -> None:
    """Write the app's files, with these keys for its configuration; a ValueError when there is an app already."""
    if (folder / APP).exists():
        file = folder / APP / "pyproject.toml"
        raise ValueError(f"{folder} holds an app already; edit {file}, or take another folder.")
    package = folder / APP / "federation"
    private_folder(folder)
    package.mkdir(parents=True)
    files = {
        package.parent / "pyproject.toml": PROJECT.format(version=__version__, keys=keys),
        package / "__init__.py": "",
        package / "server_app.py": SERVER,
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
