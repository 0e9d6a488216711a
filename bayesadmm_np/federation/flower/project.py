"""The folder of a federation: the app that Flower ships, and beside it sites, keys and runs, which it does not."""

from __future__ import annotations

from pathlib import Path

from ..._version import __version__

APP, SITES, RUNS, KEY_FOLDER = "app", "sites", "runs", "keys"

KEYS = {
    "method": ('"auto"', "auto: maximum likelihood; or a row of the table of methods: PVI, BayesADMM, ADMM, …"),
    "inference": ('"auto"', "posterior: with auto the variational posterior, in few rounds; auto: likelihood."),
    "rho": ("0.0", "The method's rho; 0.0: its default."),
    "gamma": ("0.0", "The method's gamma; 0.0: its default."),
    "accelerate": ("false", "Mix past rounds (Anderson)."),
    "family": (
        '"full"',
        "full, diagonal, isotropic or fixed: the covariance of a Gaussian. Other families are set in Python.",
    ),
    "prior-precision": ("0.0", "Of every coefficient; 0.0: none of a likelihood, 1 of a posterior."),
    "penalty": ('""', "firth: Firth's penalty, for a likelihood without a maximum."),
    "weight-meaning": ('"frequency"', "frequency: weight 2 is the row twice; analytic: half the variance."),
    "tests": ('"none"', "Of the terms: wald, or lr (likelihood ratio, or F), some four exchanges each."),
    "tol": ("1e-8", "The run ends when all residuals are below it."),
    "rounds": ("100", "At most."),
    "seed": ("0", "For stochastic solvers."),
    "safeguard": ("false", "Keep every site's problem well posed (BayesADMM)."),
    "warm-start": ("false", "Start each site's solver from its last posterior."),
    "reference": ('""', "Reference levels of sites with tables: 'ward=medical,sex=m'."),
    "ignore-case": ("false", "Levels that differ in case or in blanks alone are one."),
    "drop-withheld": ("false", "Leave out rows of levels that no site names."),
    "site-intercepts": ("false", "An intercept for each site."),
    "reference-site": ('""', "The site whose intercept is the model's."),
    "sites": ("2", "The run begins when so many sites have said hello."),
    "sites-per-round": ("1", "Answers that make a round; sites without one keep their factor."),
    "participation": ("1.0", "Fraction of the sites that are asked in a round."),
    "deadline": ("600.0", "Seconds that a site has for an answer."),
    "patience": ("3600.0", "Seconds without enough sites after which the run stops; it can be resumed."),
    "keyed": ("false", "Sites have keys: a name stays with the node that said it first."),
    "run-folder": ('"run"', "Of the checkpoint, on the server; an unfinished run in it goes on."),
}
"""The keys of an app's configuration: default as TOML, and what it means."""

PROJECT = """\
# What Flower ships to the server and to every site. It takes all .py, .toml, .md, .yaml and .json files below this
# folder: keep data elsewhere.
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
clientapp = "federation.client_app:app"

# The server's configuration; `flwr run -c 'rounds=50'` changes a key for one run.
[tool.flwr.app.config]
{keys}
"""

SERVER = '''"""The server: waits for the sites, does the rounds, writes checkpoint and result into `run-folder`."""

from bayesadmm_np.cli.flower import read_plan
from bayesadmm_np.federation.flower import server_app

app = server_app(read_plan)
'''

CLIENT = '''"""A site. Its node is told where it is: --node-config 'site="/folder/of/site" state-dir="/another"'.

The folder of the site is made there, once, by `bayesadmm site init`, which also says where the rows are; it holds no
rows. `state-dir` (default: the same folder) keeps the site's dual between rounds.
"""

from bayesadmm_np.cli._run_files import load_site
from bayesadmm_np.federation.flower import client_app

app = client_app(load_site)
'''

README = """\
# A federation

| | |
|---|---|
| `app/` | what Flower ships; `app/pyproject.toml` holds the server's settings, each explained |
| `sites/NAME/` | one folder a site: where its rows are (`site.json`), its hello, its state during a run |
| `keys/` | made by `bayesadmm flower keys .`: TLS and a key a site |
| `runs/NNNN/` | one a run: `state.npz` (checkpoint), `progress.jsonl`, `final.npz` |

All on this machine, over loopback:

    bayesadmm flower local .

On several machines the folders `sites/NAME` lie at the sites; docs/flower.md of bayesadmm-np has every command.

Set `FLWR_TELEMETRY_ENABLED=0` and `FLWR_DISABLE_UPDATE_CHECK=1` everywhere.
"""


def write_app(folder: Path, n_sites: int) -> None:
    """Write the app's files and an explanation of the folder.

    Raises
    ------
    ValueError
        When there is an app already.
    """
    if (folder / APP).exists():
        raise ValueError(
            f"{folder} holds an app already; edit {folder / APP / 'pyproject.toml'}, or take another folder."
        )
    package = folder / APP / "federation"
    package.mkdir(parents=True)
    values = {name: value for name, (value, _) in KEYS.items()} | {"sites": str(n_sites)}
    keys = "\n".join(f"# {meaning}\n{name} = {values[name]}" for name, (_, meaning) in KEYS.items())
    files = {
        package.parent / "pyproject.toml": PROJECT.format(version=__version__, keys=keys),
        package / "__init__.py": "",
        package / "server_app.py": SERVER,
        package / "client_app.py": CLIENT,
        folder / "README.md": README,
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
