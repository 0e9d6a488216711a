"""`bayesadmm flower`: a federation on Flower, on this machine or as an app for several."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import numpy as np
from cyclopts import Parameter

from .._errors import worded
from ._methods import task_of
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
)
from ._terminal import Refused, require_writable

if TYPE_CHECKING:
    from ..federation.dispatch import Plan

__all__ = ["new"]

HELP = """Run the same on Flower, with sites on other machines; Flower's own commands do the rest.

  bayesadmm flower new trial --elsewhere 4
"""

ROWS = 120
"""Of a made-up site."""

NO_ROWS = RowSettings()
OWN: dict[str, tuple[Any, str]] = {
    "seed": (0, "For stochastic solvers."),
    "warm_start": (False, "Start each site's solver from its last posterior."),
    "sites": (None, "The run begins when so many sites have said hello."),
    "sites_per_round": (None, "Answers that make a round; sites without one keep their factor."),
    "participation": (None, "Fraction of the sites that are asked in a round."),
    "deadline": (None, "Seconds that a site has for an answer."),
    "patience": (None, "Seconds without enough sites after which the run stops; it can be resumed."),
    "keyed": (None, "Sites have keys: a name stays with the node that said it first."),
    "run_folder": ("run", "Of the checkpoint, on the server; an unfinished run in it goes on."),
}
"""Keys of an app that no command has as an option; those without a default have that of `Plan`."""
PLANNED = {"sites_per_round": "least", "run_folder": "folder"}
"""Fields of `Plan` whose keys have other names."""
COLUMNS = ("target", "formula", "features", "drop", "categorical", "offset", "exposure", "weights", "cluster")
"""Options that name columns of a table."""


def new(
    folder: Annotated[Path, option("The federation's folder.", name="DIR")],
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
    makes up three sites for a try on this machine. A site has the name of its file;
    its folder stores the path of the rows, and no rows. If the sites are on other
    machines, each makes its own folder with `bayesadmm site init`, and --elsewhere
    writes the app alone; docs/flower.md lists Flower's commands that start all.

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
            write_app(folder, _explained(elsewhere))
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
        write_app(folder, _explained(len(data) or sites or 0))
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
    print(f"settings: {folder / 'app' / 'pyproject.toml'}\nnext:     {folder / 'README.md'}")


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


def _explained(n_sites: int) -> str:
    """Return the keys of an app as TOML, each below its meaning."""
    return "\n".join(f"# {meaning}\n{key} = {_toml(default)}" for key, (default, meaning) in keys(n_sites).items())


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
            "client_app(load) where the losses are others too."
        )

    def made(kind: Any) -> Any:
        given = {}
        for item in fields(kind):
            value = plain.get(item.name)
            if isinstance(item.default, tuple):
                value = [word.strip() for word in value.split(",") if word.strip()]
            if item.name in plain and (value or item.default is not None):  # what is 0 or empty stands for none
                given[item.name] = value
        return make_settings(kind, given, "")

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
