"""`bayesadmm site` and `bayesadmm server`: rounds by files, for sites that no network joins."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from .model import make_method
from .options import DataSettings, Gamma, read_damping, split_names
from .shared import Refused, missing_name, note, print_json, refusals, require_other, require_writable, stop, text_table

__all__ = ["add_commands", "load_site", "make_site", "report"]

EXAMPLE = """\b
A whole run of two sites, A and B, and a server S (any way of carrying the
files will do):
  A$ bayesadmm site init a --data a.csv --target died --name A --loss logistic
  B$ bayesadmm site init b --data b.csv --target died --name B --loss logistic
     carry a/hello.npz and b/hello.npz to S
  S$ bayesadmm server init run a/hello.npz b/hello.npz --method PVI
     carry run/broadcast-0001.npz to A and B
  A$ bayesadmm site step a broadcast-0001.npz       writes a/reply-A-0001.npz
  B$ bayesadmm site step b broadcast-0001.npz       writes b/reply-B-0001.npz
  S$ bayesadmm server step run reply-A-0001.npz reply-B-0001.npz
     ... and so on, until the server writes run/final.npz
  A$ bayesadmm site step a final.npz                prints the answer
"""

CODES = """\b
Exit codes: 0 done (the output says whether there are rounds to do), 1 the run
failed, 2 the command or the data were not understood, 3 a message was refused
(nothing was changed).
"""

SITE_HELP = f"""One site of a run by files: its rows never leave it.

{EXAMPLE}
{CODES}"""

SITE_INIT_HELP = f"""Introduce this site: read the rows, and write hello.npz for the server.

The message holds names and counts (with --standardize also the sum and the sum
of squares of each column), no rows. Columns must be in the same units at all
sites; --standardize, given at all of them, divides by pooled standard
deviations. DIR remembers where the rows are; later steps read them again.

What an answer discloses, and what noise on it buys, is in docs/privacy.md. The
three options --privacy-... go together; hello.npz itself is not noised.

{EXAMPLE}
{CODES}"""

SITE_STEP_HELP = f"""Answer a broadcast, or take in the final message.

An interrupted step can be repeated: the same broadcast gives the same bytes.

\b
Examples:
  bayesadmm site step a broadcast-0001.npz
  bayesadmm site step a broadcast-0002.npz --out /media/usb/reply-A.npz
  bayesadmm site step a final.npz

{CODES}"""

SERVER_HELP = f"""The server of a run by files: it sees posteriors and sums, no rows.

{EXAMPLE}
{CODES}"""

SERVER_INIT_HELP = f"""Make a run of the sites that said hello, and write its first broadcast.

\b
Examples:
  bayesadmm server init run hello-A.npz hello-B.npz
  bayesadmm server init run hello-*.npz --method BayesADMM --rho 1 --safeguard
  bayesadmm server init run hello-*.npz --method PVI --gamma 0.4 --accelerate --family diagonal

{CODES}"""

SERVER_STEP_HELP = f"""Take in the replies to the last broadcast, and write the next one or the final message.

Replies may be of all sites or of those that came: a site that is missing keeps
its factor, and convergence waits for it. Without replies, or with those of the
last step again, the message that is out is written again.

\b
Examples:
  bayesadmm server step run reply-A-0001.npz reply-B-0001.npz
  bayesadmm server step run

{CODES}"""

SERVER_STATUS_HELP = f"""Say where a run stands; changes nothing.

\b
Examples:
  bayesadmm server status run
  bayesadmm server status run --json

{CODES}"""

LOSSES = {"logistic": "Logistic", "softmax": "Softmax", "ridge": "LeastSquares", "poisson": "Poisson"}
FAMILIES = {
    "full": "FullGaussian",
    "diagonal": "DiagonalGaussian",
    "isotropic": "IsotropicGaussian",
    "fixed": "FixedPrecisionGaussian",
}
CONFIG = "site.json"
DELTA = 1e-5
"""Of the ε that a site is told; `GaussianMechanism.epsilon` gives it for any other."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of this site or server; init makes it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@dataclass(frozen=True)
class _Config:
    """What a site remembers of its first command."""

    name: str
    data: str
    target: str
    loss: str
    features: tuple[str, ...]
    weights: str | None
    classes: tuple[str, ...]
    intercept: bool
    standardize: bool
    noise_variance: float
    dropna: bool
    privacy_clip: float | None
    privacy_noise: float | None
    privacy_rounds: int | None
    digest: str = ""
    """Of the rows that hello.npz was made from."""


def add_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""
    site = typer.Typer(help=SITE_HELP, no_args_is_help=True, rich_markup_mode=None)
    server = typer.Typer(help=SERVER_HELP, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(site, name="site")
    app.add_typer(server, name="server")

    @site.command("init", help=SITE_INIT_HELP)
    def _site_init(
        folder: Folder,
        data: Annotated[Path, typer.Option("--data", metavar="FILE.csv", help="The rows of this site.")],
        target: Annotated[str, typer.Option("--target", metavar="COLUMN", help="What is to be explained.")],
        name: Annotated[str, typer.Option("--name", help="This site's name, different from all others'.")],
        loss: Annotated[str, typer.Option("--loss", metavar="|".join(LOSSES), help="Kind of regression.")],
        features: Annotated[
            str | None, typer.Option("--features", metavar="A,B,…", help="Default: all others.")
        ] = None,
        weights: Annotated[str | None, typer.Option("--weights", metavar="COLUMN", help="Weight of each row.")] = None,
        classes: Annotated[
            str | None,
            typer.Option("--classes", metavar="A,B,…", help="Labels in order; needed where a site lacks some."),
        ] = None,
        intercept: Annotated[bool, typer.Option("--intercept/--no-intercept", help="Add a column of ones.")] = True,
        standardize: Annotated[bool, typer.Option("--standardize", help="Pooled units, from sums.")] = False,
        noise_variance: Annotated[float, typer.Option("--noise-variance", help="Of a ridge regression.")] = 1.0,
        dropna: Annotated[bool, typer.Option("--dropna", help="Leave out rows with a missing value.")] = False,
        privacy_clip: Annotated[
            float | None, typer.Option("--privacy-clip", metavar="C", help="Longest update, in Fisher length.")
        ] = None,
        privacy_noise: Annotated[
            float | None, typer.Option("--privacy-noise", metavar="Z", help="Noise on every answer, in units of 2C.")
        ] = None,
        privacy_rounds: Annotated[
            int | None, typer.Option("--privacy-rounds", metavar="T", help="Longest run that is answered.")
        ] = None,
        as_json: Json = False,
    ) -> None:
        with _refusals("site init"):
            listed = None if features is None else split_names(features)
            config = _Config(
                name=name,
                data=str(data.absolute()),
                target=target,
                loss=loss,
                features=listed or (),
                weights=weights,
                classes=split_names(classes),
                intercept=intercept,
                standardize=standardize,
                noise_variance=noise_variance,
                dropna=dropna,
                privacy_clip=privacy_clip,
                privacy_noise=privacy_noise,
                privacy_rounds=privacy_rounds,
            )
            _tell(_introduce(folder, config), as_json)

    @site.command("step", help=SITE_STEP_HELP)
    def _site_step(
        folder: Folder,
        broadcast: Annotated[Path, typer.Argument(metavar="BROADCAST", help="From the server.")],
        out: Annotated[Path | None, typer.Option("--out", metavar="FILE.npz", help="Where to write the reply.")] = None,
        as_json: Json = False,
    ) -> None:
        with _refusals("site step"):
            failed = _tell(_answer(folder, broadcast, out), as_json)
        raise typer.Exit(int(failed))

    @server.command("init", help=SERVER_INIT_HELP)
    def _server_init(
        folder: Folder,
        hellos: Annotated[list[Path], typer.Argument(metavar="HELLO...", help="One a site.")],
        method: Annotated[str, typer.Option("--method", help="A row of the table of methods.")] = "PVI",
        rho: Annotated[float | None, typer.Option("--rho", help="Default: the method's.")] = None,
        gamma: Gamma = None,
        accelerate: Annotated[bool, typer.Option("--accelerate", help="Mix past rounds (Anderson).")] = False,
        family: Annotated[str, typer.Option("--family", metavar="|".join(FAMILIES))] = "full",
        prior_precision: Annotated[float, typer.Option("--prior-precision", help="Of every coefficient.")] = 1.0,
        tol: Annotated[float, typer.Option("--tol")] = 1e-6,
        rounds: Annotated[int, typer.Option("--rounds", help="At most.")] = 100,
        safeguard: Annotated[bool, typer.Option("--safeguard", help="Keep every site's problem well posed.")] = False,
        seed: Annotated[
            int | None,
            typer.Option("--seed", help="Part of the run's id. Default: drawn, so that no other run has this id."),
        ] = None,
        as_json: Json = False,
    ) -> None:
        with _refusals("server init"):
            row = make_method(method, rho, read_damping(gamma), accelerate)
            if isinstance(row, str):
                raise Refused("--method: a run by files needs a row of the table, such as PVI.")
            seed = secrets.randbelow(1 << 31) if seed is None else seed
            options = {"tol": tol, "rounds": rounds, "safeguard": safeguard, "seed": seed}
            _tell(_begin(folder, hellos, row, family, prior_precision, options), as_json)

    @server.command("step", help=SERVER_STEP_HELP)
    def _server_step(
        folder: Folder,
        replies: Annotated[list[Path] | None, typer.Argument(metavar="[REPLY]...", help="From the sites.")] = None,
        as_json: Json = False,
    ) -> None:
        with _refusals("server step"):
            from ..exchange import step_server

            server, path = step_server(folder, replies or ())
            failed = _tell({"written": str(path), **_standing(server)}, as_json)
        raise typer.Exit(int(failed))

    @server.command("status", help=SERVER_STATUS_HELP)
    def _server_status(folder: Folder, as_json: Json = False) -> None:
        with _refusals("server status"):
            from ..exchange import load_server

            failed = report(load_server(folder), as_json)
        raise typer.Exit(int(failed))


@contextmanager
def _refusals(command: str) -> Iterator[None]:
    """As for all commands, and exit code 3 where a message was refused."""
    from ..exchange import MessageError

    with refusals(command):
        try:
            yield
        except MessageError as error:
            stop(f"bayesadmm {command}: refused: {error} Nothing was changed.", 3)


def _introduce(folder: Path, config: _Config) -> dict[str, Any]:
    from .._archive import replace_atomically
    from ..exchange.files import STATE
    from ..splitting.state import digest

    if config.loss not in LOSSES:
        raise Refused(f"--loss: {missing_name('there is no loss', config.loss, LOSSES)}")
    if config.noise_variance <= 0:
        raise Refused(f"--noise-variance must be > 0, got {config.noise_variance:g}.")
    if (folder / STATE).exists():
        raise Refused(f"{folder} takes part in a run already; give a new run a folder of its own.")
    rows = _Rows.read(config)
    site = rows.site(None)
    require_writable(folder, "DIR")
    folder.mkdir(parents=True, exist_ok=True)
    known = json.dumps({**asdict(rows.config), "classes": rows.classes, "digest": digest(site.loss)}, indent=1) + "\n"
    replace_atomically(folder / CONFIG, lambda file: file.write(known.encode()))
    sums = (rows.design.sum(axis=0), (rows.design**2).sum(axis=0)) if config.standardize else (None, None)
    site.hello(*sums).write(folder / "hello.npz")
    return {
        "written": str(folder / "hello.npz"),
        "site": site.name,
        "rows": len(rows.design),
        "features": list(site.features),
        "classes": list(site.classes),
        "privacy": _promise(site),
    }


def _promise(site: Any) -> str | None:
    if site.privacy is None:
        return None
    epsilon = site.privacy.epsilon(site.privacy_rounds, DELTA)
    return f"ε = {epsilon:.3g} at δ = {DELTA:g} for at most {site.privacy_rounds} answers (not for hello.npz)"


def _answer(folder: Path, broadcast: Path, out: Path | None) -> dict[str, Any]:
    from ..exchange import Message, Terms, final_result, step_site
    from ..exchange.files import STATE

    config = _read_config(folder)
    message = Message.read(broadcast)
    if message.kind not in ("broadcast", "final"):
        raise message.refusal("kind", "'broadcast' or 'final'", message.kind)
    if "terms" not in message.header:
        raise message.refusal("header", "that of a broadcast", sorted(message.header))
    if out is not None:
        require_writable(out.absolute().parent)
        require_other(out, [broadcast, Path(config.data), *(folder / name for name in (CONFIG, STATE, "hello.npz"))])
    rows = _known_rows(config)
    site, reply = step_site(folder, rows.site(Terms.read(message)), broadcast, out)
    if reply is None:
        return {"site": site.name, **_result(final_result(message))}
    return {"written": str(reply), "site": site.name, "round": message.header["round"]}


def _begin(
    folder: Path, hellos: Sequence[Path], row: Any, family: str, precision: float, options: dict[str, Any]
) -> dict[str, Any]:
    from .. import families
    from ..exchange import Coordinator, Message, start_server

    if family not in FAMILIES:
        raise Refused(f"--family: {missing_name('there is no family', family, FAMILIES)}")
    messages = [Message.read(path) for path in hellos]
    dim = messages[0].header.get("dim")
    if not isinstance(dim, int) or not 0 < dim <= 1 << 20:
        raise messages[0].refusal("dim", "the number of parameters of a site that says hello", dim)
    prior = getattr(families, FAMILIES[family])(np.zeros(dim), precision)
    standardize = any("sums" in message.arrays for message in messages)
    server = Coordinator.start(messages, row, prior, standardize=standardize, **options)
    require_writable(folder, "DIR")
    folder.mkdir(parents=True, exist_ok=True)
    return {"written": str(start_server(folder, server)), **_standing(server)}


def _standing(server: Any) -> dict[str, Any]:
    """Where a run stands, as plain values."""
    from ..exchange import final_result

    terms, last = server.terms, server.state.history[-1] if server.state.history else None
    plain: dict[str, Any] = {
        "run": terms.run,
        "method": terms.method.name,
        "family": type(terms.prior).__name__,
        "sites": dict(zip(terms.sites, server.rows, strict=True)),
        "rounds": server.state.round,
        "objective": server.state.start_objective if last is None else last.objective,
        "edges": None if last is None else asdict(last.edges),
    }
    if server.outcome is None:
        return plain | {"status": "RUNNING", "waits_for": server.number}
    return plain | _result(final_result(server.broadcast(), server))


def _result(result: Any) -> dict[str, Any]:
    from ..estimators.glm import carry_distance

    mean, covariance = result.coefficients
    learned = result.posterior.learns_precision
    certificate = result.certificate
    if certificate is not None and certificate.distance is not None and learned:
        distance = carry_distance(certificate.distance, result.own_units, covariance)
        certificate = replace(certificate, distance=distance)
    return {
        "status": result.status.name,
        "message": result.message,
        "names": list(result.names),
        "mean": mean.tolist(),
        "standard_error": np.sqrt(np.diag(covariance)).tolist() if learned else None,
        "objective": result.objective[-1],
        "certificate": None if certificate is None else str(certificate),
    }


def _tell(plain: dict[str, Any], as_json: bool) -> bool:
    """Print what a command did; return whether the run has failed."""
    from ..splitting.status import Status

    status = plain.get("status", "RUNNING")
    failed = status != "RUNNING" and Status[status].is_failure
    if as_json:
        print_json(plain)
        return failed
    for key in ("written", "site", "round", "run", "method", "family", "rows", "rounds", "objective", "privacy"):
        if plain.get(key) is not None and plain[key] == plain[key]:  # the objective is NaN until all have reported
            print(f"{key:<10} {plain[key]}")
    for key in ("sites", "features", "classes"):
        if plain.get(key):
            listed = plain[key].items() if isinstance(plain[key], dict) else plain[key]
            print(f"{key:<10} {', '.join(f'{i[0]} ({i[1]} rows)' if isinstance(i, tuple) else i for i in listed)}")
    if status == "RUNNING" and "waits_for" in plain:
        print(f"{'status':<10} running: waits for replies to broadcast {plain['waits_for']}")
    if "mean" in plain:
        print(f"{'status':<10} {plain['message']}\n")
        errors = plain["standard_error"] or [float("nan")] * len(plain["mean"])
        table = [
            (name, f"{mean:.6g}", f"{error:.3g}")
            for name, mean, error in zip(plain["names"], plain["mean"], errors, strict=True)
        ]
        print(text_table(("", "estimate", "standard error"), table))
        if plain["standard_error"] is None:
            note("A family with a fixed precision knows no standard errors.")
        if plain["certificate"]:
            print(f"\n{plain['certificate']}")
    return failed


def _read_config(folder: Path) -> _Config:
    path = folder / CONFIG
    if not path.exists():
        raise Refused(f"{folder} is no site: there is no {CONFIG}; run `bayesadmm site init` first.")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        kept: dict[str, Any] = {item.name: plain[item.name] for item in fields(_Config)}
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is damaged ({error}); run `bayesadmm site init` again.") from error
    kept |= {name: tuple(kept[name]) for name in ("features", "classes")}
    return _Config(**kept)


def report(server: Any, as_json: bool = False) -> bool:
    """Do what `server status` does, and return whether the run has failed."""
    return _tell(_standing(server), as_json)


def _known_rows(config: _Config) -> _Rows:
    """Read the rows that hello.npz was made from."""
    from ..exchange import MessageError
    from ..splitting.state import digest

    rows = _Rows.read(config)
    if digest(rows.site(None).loss) != config.digest:
        raise MessageError(
            f"{config.data}: the rows of site {config.name!r} must be those of hello.npz, and they have changed since; "
            "put the old file back, or start a new run."
        )
    return rows


def make_site(
    folder: Path,
    data: Path,
    name: str,
    target: str,
    loss: str,
    *,
    features: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
    standardize: bool = False,
    dropna: bool = False,
) -> None:
    """Do what `site init` does."""
    config = _Config(
        name=name,
        data=str(data.absolute()),
        target=target,
        loss=loss,
        features=features,
        weights=None,
        classes=classes,
        intercept=True,
        standardize=standardize,
        noise_variance=1.0,
        dropna=dropna,
        privacy_clip=None,
        privacy_noise=None,
        privacy_rounds=None,
    )
    _introduce(folder, config)


def load_site(folder: Path, terms: Any) -> tuple[Any, Any]:
    """Return the site of a folder that `site init` made, in the units of a run if there is one, and its hello."""
    from ..exchange import Message

    return _known_rows(_read_config(folder)).site(terms), Message.read(folder / "hello.npz")


@dataclass(frozen=True)
class _Rows:
    """The rows of a site as a design matrix in its own units."""

    config: _Config
    features: tuple[str, ...]
    classes: tuple[str, ...]
    design: Any
    target: Any
    weights: Any

    @classmethod
    def read(cls, config: _Config) -> _Rows:
        from ..exchange.terms import INTERCEPT
        from .table import read_rows

        wanted = DataSettings(
            target=config.target, features=config.features, weights=config.weights, dropna=config.dropna
        )
        try:
            rows = read_rows([Path(config.data)], wanted)
        except Refused as error:
            fact, _, advice = str(error).partition(": make 0/1 columns")
            if not advice:
                raise
            # a site alone does not know the levels that others have
            raise Refused(
                f"{fact}: write 0/1 columns of its levels into the file, the same at all sites (with all files at hand "
                "`bayesadmm flower new --categorical` does), or choose columns with --features. Missing values are "
                "empty cells."
            ) from error
        if INTERCEPT in rows.columns:
            raise Refused(f"--features: a column cannot be called {INTERCEPT!r}; that is the column of ones.")
        ones = {INTERCEPT: np.ones(len(rows.target))} if config.intercept else {}
        columns = {**rows.columns, **ones}
        target, classes = _labels(rows.target, config)
        design = np.column_stack(list(columns.values()))
        return cls(replace(config, features=tuple(rows.columns)), tuple(columns), classes, design, target, rows.weights)

    def site(self, terms: Any) -> Any:
        """The site, in the units of the run."""
        from ..estimators.model_file import make_loss
        from ..exchange import MessageError, Site
        from ..splitting import GaussianMechanism

        design, config = self.design, self.config
        if terms is not None and (terms.centre is not None) != config.standardize:
            given = "only where site init had --standardize"
            raise MessageError(f"broadcast: centre and scale must be given {given}, at this site and at the others.")
        if terms is not None and terms.centre is not None and terms.centre.size == design.shape[1]:
            design = (design - terms.centre) / terms.scale
        loss = make_loss(config.loss, design, self.target, self.weights, len(self.classes), config.noise_variance)
        clip, noise, rounds = config.privacy_clip, config.privacy_noise, config.privacy_rounds
        if None in (clip, noise, rounds) and (clip, noise, rounds) != (None,) * 3:
            raise Refused("--privacy-clip, --privacy-noise and --privacy-rounds must be given together.")
        mechanism = None if clip is None or noise is None else GaussianMechanism(clip, noise)
        return Site(config.name, loss, self.features, self.classes, mechanism, rounds)


def _labels(target: Any, config: _Config) -> tuple[Any, tuple[str, ...]]:
    """Labels 0 … C − 1 and their names; the numbers themselves for a regression."""
    from ..estimators.model_file import word

    if config.loss not in ("logistic", "softmax"):
        if target.dtype == object:
            raise Refused(f"--loss {config.loss} needs numbers, but column {config.target!r} holds text.")
        return target, ()
    words = [word(value) for value in target.tolist()]
    classes = config.classes or tuple(word(value) for value in sorted(set(target.tolist())))
    if not config.classes and set(classes) <= {"0", "1"}:
        classes = ("0", "1")
    if len(classes) < 2 or (config.loss == "logistic" and len(classes) != 2):
        count = "two classes" if config.loss == "logistic" else "at least two classes"
        raise Refused(
            f"--loss {config.loss} needs {count}, but column {config.target!r} holds {', '.join(classes)}; name all "
            "labels that any site has, in the same order everywhere, with --classes."
        )
    unknown = sorted(set(words) - set(classes))
    if unknown:
        raise Refused(f"--classes: column {config.target!r} also holds {unknown[0]!r}.")
    place = {label: k for k, label in enumerate(classes)}
    return np.array([place[label] for label in words], dtype=np.float64), classes
