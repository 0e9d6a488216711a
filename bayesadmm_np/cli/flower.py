"""`bayesadmm flower`: a federation on Flower, on this machine or as an app for several."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ._options import (
    MethodSettings,
    RowSettings,
    RunSettings,
    SiteConfig,
    Spread,
    at_least,
    converted,
    losses,
    make_settings,
    option,
    read_toml,
    toml_value,
)
from ._terminal import Refused, missing_name, note, require_writable, stop

__all__ = ["keys", "local", "new"]

HELP = """Run the same on Flower, with sites on other machines.

  bayesadmm flower new trial --data north.csv --data south.csv --target died --loss logistic
  bayesadmm flower keys trial
  bayesadmm flower local trial
"""

ROWS = 120
"""Of a made-up site."""

Folder = Annotated[Path, option("The federation's folder.", name="DIR")]
NO_ROWS = RowSettings()
UNSAID = ("rho", "gamma", "prior_precision", "penalty", "reference_site")
"""Keys of an app of which an empty text or 0 is no value."""
COLUMNS = ("target", "formula", "features", "drop", "categorical", "offset", "exposure", "weights", "cluster")
"""Options that name columns of a table."""


def new(
    folder: Folder,
    /,
    *,
    data: Annotated[tuple[Path, ...], option("CSV file of a site; repeat the option for every site.", "FILE.csv")] = (),
    loss: Annotated[str, option("Kind of regression, as in `bayesadmm site init`.", "|".join(losses()))] = "logistic",
    rows: Annotated[RowSettings, Spread] = NO_ROWS,
    sites: Annotated[
        int | None, option("Number of sites with made-up rows, instead of --data.", check=at_least(1))
    ] = None,
    heart_disease: Annotated[
        bool, option("Use the heart-disease tables of four hospitals, instead of --data.")
    ] = False,
    elsewhere: Annotated[
        int | None, option("Write only the app, for this number of sites on other machines.", check=at_least(1))
    ] = None,
) -> None:
    """Write the folder of a federation: the app, and one folder for each site.

    The file app/pyproject.toml explains every key. With --sites 3 the command
    makes up three sites, so that you can try `local` at once. A site has the name of
    its file; its folder stores the path of the rows, and no rows. If the sites are on
    other machines, each makes its own folder with `bayesadmm site init`, and
    --elsewhere writes the app alone; DIR/README.md lists all commands.

    The options for rows are the same as in `site init`, text and formulas included.
    Tables that cannot agree, whatever the server chooses, are refused here.

    Examples of use:
      bayesadmm flower new trial --sites 3
      bayesadmm flower new trial --data north.csv --data south.csv --target died --loss logistic --standardize
      bayesadmm flower new trial --data north.csv --data south.csv --formula 'died ~ age*sex + C(ward)' --dropna
      bayesadmm flower new heart --heart-disease
      bayesadmm flower new trial --elsewhere 4
    """
    from ..federation import Message
    from ..federation.agreeing import require_agreement
    from ..federation.flower.project import SITES, write_app
    from ..federation.messages import read_hellos
    from ._run_files import introduce

    if heart_disease and data:
        raise Refused("--heart-disease brings its own data: leave out --data.")
    if sites and (data or heart_disease or elsewhere):
        raise Refused("--sites: made-up sites stand alone; leave out --data, --heart-disease and --elsewhere.")
    named = [name for name in (*COLUMNS, "classes") if getattr(rows, name)]
    if named and not data:
        raise Refused(f"--{named[0]}: of which tables? Say so by --data.")
    if elsewhere and (heart_disease or data):
        raise Refused("--elsewhere: sites on other machines have their rows there; leave out --data.")
    if not (data or heart_disease or elsewhere or sites):
        raise Refused("--data: of which sites? Name their files, or say --elsewhere 3, or --sites 3 for made-up ones.")
    with _all_or_nothing(folder):
        require_writable(folder, "DIR")
        if elsewhere:
            write_app(folder, elsewhere)
            print(f"{folder}: an app for {elsewhere} sites on other machines\nnext:     {folder / 'README.md'}")
            return
        if data and not (rows.target or rows.formula):
            raise Refused("--target: which column of --data is to be explained? Or let --formula say it.")
        if heart_disease:
            data, rows, loss = _heart_disease(folder / "data"), replace(rows, target="disease"), "logistic"
        elif data and not (rows.formula or rows.features):
            rows = replace(rows, features=_common_features(data, rows))
        names = [path.stem for path in data]
        if len(set(names)) < len(names):
            raise Refused("--data: a site is called as its file, so that files need different names.")
        write_app(folder, len(data) or sites or 0)
        if sites:
            data, rows, loss = _made_up(folder / "data", sites), replace(rows, target="y"), "logistic"
        for path in data:
            with _of_site(path.stem):
                config = SiteConfig(data=path, name=path.stem, loss=loss, **vars(rows))
                introduce(folder / SITES / path.stem, config)
        hellos = read_hellos([Message.read(folder / SITES / path.stem / "hello.npz") for path in data])
        # what differs in case alone is the server's to choose
        require_agreement(hellos, {"ignore_case": True})
    print(f"{folder}: an app and {len(data)} sites, {', '.join(path.stem for path in data)}")
    print(f"settings: {folder / 'app' / 'pyproject.toml'}\nnext:     bayesadmm flower local {folder}")


def local(
    folder: Folder,
    /,
    *,
    sites: Annotated[
        int | None, option("Number of sites; the first ones are taken. Default: all.", check=at_least(1))
    ] = None,
    changes: Annotated[
        tuple[str, ...], option("Set a key of the app for this run; may be repeated.", "KEY=VALUE", name="--set")
    ] = (),
    resume: Annotated[bool, option("Continue the last run.")] = False,
    insecure: Annotated[bool, option("Use no TLS and no keys, even if DIR has them.")] = False,
) -> int:
    """Run a federation on this machine: a server and a process for each site, over loopback.

    If DIR/keys exists (see `bayesadmm flower keys`), the run uses TLS and a key for
    each site. The command ends every process that it has started. --set changes a key
    of app/pyproject.toml for this run. DIR/.flwr holds the last lines of every log.

    Examples of use:
      bayesadmm flower local trial
      bayesadmm flower local trial --sites 4 --set rounds=50 --set method=FedLapCov
      bayesadmm flower local trial --resume

    Exit codes: 0 done, and the certificate holds, 1 the run ended without that, or
    failed, 2 the command was not understood, 4 the likelihood has no maximum.
    """
    from ..federation import load_server
    from ..federation.dispatch.rounds import PROGRESS
    from ..federation.flower.local import LocalFederation, follow
    from ..federation.flower.project import KEY_FOLDER
    from ..federation.folders import STATE
    from ._run_files import standing, tell

    names = _site_names(folder)
    if sites is not None and sites > len(names):
        raise Refused(f"--sites: there are {len(names)} in {folder}, got {sites}.")
    names = names[:sites]
    keyed = (folder / KEY_FOLDER).exists() and not insecure
    lacking = [name for name in names if keyed and not (folder / KEY_FOLDER / f"site-{name}").exists()]
    if lacking:
        raise Refused(f"there is no key of {lacking[0]}; run `bayesadmm flower keys {folder}`.")
    config = _config(folder, changes) | {"sites": len(names), "keyed": keyed}
    read_plan(config)  # refuses before any process is started
    run_folder = _run_folder(folder, resume)
    config["run-folder"] = str(run_folder.absolute())
    note(f"{run_folder}: {len(names)} sites, {'TLS and keys' if keyed else 'without TLS and keys'}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the block below is left
    with LocalFederation(folder, keyed) as federation:
        federation.start_link()
        if keyed:
            federation.register(names)
        for name in names:
            federation.start_site(name)
        _show(follow(federation.submit(config), run_folder / PROGRESS), config["rounds"])
        words = federation.last_words("run")
    server = load_server(run_folder) if (run_folder / STATE).exists() else None
    if server is None or server.outcome is None:
        stop(f"bayesadmm flower local: the run did not end; the last words of its log:\n{words}", 1)
    return int(tell(standing(server), False))


def keys(
    folder: Folder,
    /,
    *,
    sites: Annotated[
        tuple[str, ...], option("Site that gets keys; may be repeated. Default: the sites of DIR/sites.", name="--site")
    ] = (),
    hosts: Annotated[
        tuple[str, ...], option("Name of the server besides localhost; may be repeated.", name="--host")
    ] = (),
    rotate: Annotated[tuple[str, ...], option("Site that gets a new key; may be repeated.", "NAME")] = (),
    at_site: Annotated[bool, option("Make the keys of --site alone, as in the folder of a single site.")] = False,
) -> None:
    """Make keys in DIR/keys: the key of a site, or the TLS certificates of the server.

    In a folder of `bayesadmm site init`, this command makes the key of the site's own
    node. The private key stays there, and keys/site-NAME.pub goes to the server. In
    the folder of the server, it makes certificates for TLS: give keys/ca.crt to the
    sites, and keep server.key and ca.key secret. Sites of `flower new` are on this
    machine and get their keys in DIR/keys. So does a --site NAME, whose private key
    you then have to carry to the site.

    Existing keys are kept. The certificate of the server is renewed for a new --host,
    and in its last 30 days; the old one is kept under another name.

    Examples of use:
      bayesadmm flower keys here
      bayesadmm flower keys trial --host server.example.org
      bayesadmm flower keys here --rotate north
    """
    from ..federation.flower.keys import make_keys
    from ..federation.flower.project import APP, KEY_FOLDER, SITES

    require_writable(folder, "DIR")
    own = _own_name(folder)
    if at_site and not (sites or own):
        raise Refused("--at-site: of which site? Say so by --site.")
    at_site = at_site or own is not None
    is_server = (folder / APP).exists() and not (folder / SITES).exists()
    names = sites or ([own] if own else [] if is_server else _site_names(folder))
    try:
        told = make_keys(folder / KEY_FOLDER, names, ["localhost", "127.0.0.1", *hosts], rotate, not at_site)
    except ValueError as error:
        raise Refused(str(error)) from error
    made = [*["TLS"] * (not at_site), *[f"keys of {', '.join(names)}"] * bool(names)]
    print(f"{folder / KEY_FOLDER}: {' and '.join(made)}")
    for sentence in told:
        note(f"{sentence}.")


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[None]:
    """Remove what the block has written when it fails: half a federation would be in the way of the next try."""
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except BaseException:
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
        for path in set() if before is None else set(folder.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def _common_features(data: Sequence[Path], rows: RowSettings) -> tuple[str, ...]:
    """Return the columns of the first table, which the others must have in whatever order."""
    from ._rows import read_frame, require_column

    features: tuple[str, ...] = ()
    others = {rows.target, rows.offset, rows.exposure, rows.weights, rows.cluster, *rows.drop}
    for path in data:
        frame = read_frame(path, rows.separator)
        require_column("--target", rows.target, frame.columns, path)
        found = tuple(name for name in frame.columns if name not in others)
        features = features or found
        lacking, extra = (sorted(set(a) - set(b)) for a, b in ((features, found), (found, features)))
        if lacking or extra:
            says = [f"lacks {', '.join(lacking)}"] * bool(lacking) + [f"also has {', '.join(extra)}"] * bool(extra)
            raise Refused(
                f"{path} {' and '.join(says)}, other than {data[0]}: the sites' tables must have the same columns; "
                "choose those that all have with --features."
            )
    return features


@contextmanager
def _of_site(name: str) -> Iterator[None]:
    """Name the site in what is refused of its file."""
    try:
        yield
    except Refused as error:
        raise Refused(f"site {name}: {error}") from error


def _made_up(folder: Path, n_sites: int) -> tuple[Path, ...]:
    """Write rows of a logistic model, each site's about a centre of its own."""
    rng, tables = np.random.default_rng(0), {}
    for k in range(n_sites):
        X = rng.normal(rng.normal(size=2), 1.0, size=(ROWS, 2))
        tables[f"site{k + 1}"] = X, rng.random(ROWS) < 1 / (1 + np.exp(-(X @ [1.0, -1.5] + 0.5)))
    return _saved(folder, "a,b,y", tables, "%.6g")


def _heart_disease(folder: Path) -> tuple[Path, ...]:
    """Write one table a hospital."""
    from ..data import load_heart_disease

    heart = load_heart_disease()
    tables = {part.name: (part.X, part.y) for part in heart.sites}
    return _saved(folder, ",".join((*heart.feature_names, "disease")), tables, "%.17g")


def _saved(folder: Path, header: str, tables: Mapping[str, Any], digits: str) -> tuple[Path, ...]:
    folder.mkdir(parents=True)
    for name, (X, y) in tables.items():
        np.savetxt(folder / f"{name}.csv", np.column_stack([X, y]), digits, ",", header=header, comments="")
    return tuple(folder / f"{name}.csv" for name in tables)


def _site_names(folder: Path) -> list[str]:
    from ..federation.flower.project import SITES

    names = sorted(path.parent.name for path in (folder / SITES).glob("*/site.json"))
    if not names:
        raise Refused(f"{folder / SITES} holds no site; run `bayesadmm flower new` first.")
    return names


def _own_name(folder: Path) -> str | None:
    """Return the name of the site whose folder this is."""
    path = folder / "site.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["name"]) if path.exists() else None


def read_plan(config: Mapping[str, Any]) -> Any:
    """Return the plan of an app's configuration, whose keys `flower new` writes and explains."""
    from .._errors import worded
    from ..families.base import FAMILIES as SENDABLE
    from ..families.gaussians import FAMILIES
    from ..federation.dispatch import Plan
    from ..federation.flower.project import KEYS
    from ._methods import task_of

    missing = sorted(set(KEYS) - set(config))
    if missing:
        raise ValueError(f"the app's configuration must have the key {missing[0]!r}; see [tool.flwr.app.config].")
    plain = {
        key.replace("-", "_"): converted(config[key], type(toml_value(default)), key, f", as in {key} = {default}")
        for key, (default, _) in KEYS.items()
    }
    if plain["family"] not in FAMILIES:
        others = sorted(set(SENDABLE) - {family.__name__ for family in FAMILIES.values()})
        raise ValueError(
            f"family must be one of {', '.join(FAMILIES)}, the Gaussian families that a key can name, got "
            f"{plain['family']!r}; {', '.join(others)} are set in Python: server_app(Plan(GLMTask(...), ...)), and "
            "client_app(load) where the losses are others too."
        )
    # the configuration of an app has no null: what is empty or 0 stands for the default
    given = {name: value for name, value in plain.items() if value or name not in UNSAID}
    given["reference"] = [pair.strip() for pair in plain["reference"].split(",") if pair.strip()]

    def made(kind: Any) -> Any:
        return make_settings(kind, {one.name: given[one.name] for one in fields(kind) if one.name in given}, "")

    try:
        task = task_of(
            made(MethodSettings), made(RunSettings), plain["seed"], asks=True, warm_start=plain["warm_start"]
        )
        names = ("sites", "participation", "deadline", "patience", "keyed")
        options = {name: plain[name] for name in names}
        return Plan(task, folder=Path(plain["run_folder"]), least=plain["sites_per_round"], **options)
    except ValueError as error:
        keys = {"least": "sites-per-round"}
        raise ValueError(worded(error, argument=lambda name: keys.get(name, name.replace("_", "-")))) from error


def _config(folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """The app's configuration with what --set changes."""
    from ..federation.flower.project import APP, KEYS

    config: dict[str, Any] = read_toml(folder / APP / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in KEYS:
            raise Refused(f"--set: {missing_name('there is no key', key, KEYS)}")
        config[key] = toml_value(text)
    return config


def _run_folder(folder: Path, resume: bool) -> Path:
    from ..federation.flower.project import RUNS

    numbers = [int(path.name) for path in (folder / RUNS).glob("[0-9]*") if path.name.isdigit()]
    if resume and not numbers:
        raise Refused(f"--resume: there is no run in {folder / RUNS}.")
    number = max(numbers, default=0) + (not resume)
    found = folder / RUNS / f"{number:04d}"
    found.mkdir(parents=True, exist_ok=True)
    return found


def _show(progress: Iterator[dict[str, Any]], limit: int) -> None:
    from tqdm import tqdm

    with tqdm(total=limit, unit="round") as bar:
        for line in progress:
            bar.n = line["round"]
            residual = max(line["edges"].values()) if line["edges"] else float("nan")
            bar.set_postfix_str(f"objective {line['objective']:.8g}, residual {residual:.1e}")
