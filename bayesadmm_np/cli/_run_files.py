"""Runs by files, for sites that no network joins: what `bayesadmm site` and `bayesadmm server` do."""

from __future__ import annotations

import inspect
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from .._archive import private_folder, replace_atomically
from ._methods import task_of
from ._options import MethodSettings, RuleSettings, RunSettings, SiteConfig, make_settings, option
from ._results import Answered, Ended, Introduced, RulesOf, Standing, Told, ended_model
from ._sites import note_measured, read_site
from ._terminal import (
    Refused,
    missing_name,
    note,
    option_words,
    refusals,
    require_out,
    require_writable,
    stop,
)

EXAMPLE = """A fit by three hospitals and a server (carry the files in any way). Each hospital:
  bayesadmm site init ghent --data ghent.csv --name Ghent --loss logistic --formula "died ~ age + C(ward)"
The server, with the three files hello.npz:
  bayesadmm server init run ghent/hello.npz lund/hello.npz porto/hello.npz
Each hospital, with the server's newest file:
  bayesadmm site step ghent inquiry-0001.npz        writes ghent/answer-Ghent-0001.npz
The server, with the three answers:
  bayesadmm server step run answer-Ghent-0001.npz answer-Lund-0001.npz answer-Porto-0001.npz
Repeat the last two steps until the server writes run/final.npz. Each hospital:
  bayesadmm site step ghent final.npz               prints the result
If the hospitals' folders are on this machine, `bayesadmm server run run ghent lund
porto` does all steps after the first. docs/federation.md explains each step.
"""

CODES = """Exit codes: 0 done (the output says what comes next; at the end the certificate
holds), 1 the run failed, or ended without a certificate that holds, 2 the command
or the data were not understood, 3 a message was refused (nothing was changed),
4 the likelihood has no maximum.
"""

LOST = (
    "If this folder was lost in a run, put its key.hex back from a backup, repeat `site init` with the same options, "
    "and use `site step --lost` and `site step --copy`. Without key.hex, the server must begin a new run."
)

CONFIG, HELLO = "site.json", "hello.npz"
DIGEST = "digest"
"""Key of the digest of the rows that hello.npz was made from; the others are fields of `SiteConfig`."""
DELTA = 1e-5
"""Value of δ for the ε that a site is told; `GaussianMechanism.epsilon` gives ε for any other δ."""

Folder = Annotated[Path, option("Folder of this site or server; init creates it.", name="DIR")]


def with_example(command: Callable[..., Any]) -> Callable[..., Any]:
    """Show the whole run in a command's help."""
    command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{EXAMPLE}"
    return command


@contextmanager
def message_refusals(command: str) -> Iterator[None]:
    """Refuse in one line, as all commands do, and with exit code 3 where a message was refused."""
    from .._archive import MissingFileError
    from ..federation import MessageError

    with refusals(command):
        try:
            yield
        except MissingFileError as error:  # a wrong path, in the words of all commands: no message was refused
            raise (error.__cause__ or error) from None
        except MessageError as error:
            stop(f"bayesadmm {command}: refused: {error} The run has not changed.", 3)


def introduce(folder: Path, config: SiteConfig) -> Introduced:
    """Write the configuration of a site, and hello.npz."""
    from ..federation import Message, site_key
    from ..federation.folders import STATE, say_hello
    from ..glm.questions import QUESTIONS
    from ._kinds import named_kind

    named_kind(config.loss)
    unknown = sorted(set(config.refuse) - set(QUESTIONS))
    if unknown:
        raise Refused(f"--refuse: {missing_name('there is no question', unknown[0], QUESTIONS)}")
    if config.noise_variance is not None and config.noise_variance <= 0:
        raise Refused(f"--noise-variance must be > 0, got {config.noise_variance:g}.")
    state = Message.read(folder / STATE) if (folder / STATE).exists() else None
    if state is not None and state.kind == "server":
        raise Refused(f"DIR: {folder} is the folder of a server; name a folder of this site's own.")
    if state is not None and not state.header.get("ended"):
        raise Refused(
            f"{folder} takes part in a run that has not ended here: give its final.npz to `bayesadmm site step`, or "
            "remove state.npz to leave the run. To change rules during a run, use `bayesadmm site rules`."
        )
    chosen, site = read_site(config)
    note_measured(site.data.described.columns)
    require_writable(folder, "DIR")
    private_folder(folder)
    site = replace(site, key=site_key(folder))
    say_hello(folder, site)
    (folder / STATE).unlink(missing_ok=True)  # of a run that has ended; its ledger stays
    _keep_config(folder, replace(chosen, data=config.data.absolute()), site.data.digest)
    described = site.data.described
    return Introduced(
        written=str(folder / HELLO),
        site=site.name,
        key=site.key.identity,
        rows=described.n_complete,
        missing_rows=described.n_rows - described.n_complete,
        formula=site.data.formula,
        levels={name: list(one.levels) for name, one in described.columns.items() if one.levels},
        privacy=_promise(site),
        overrides=site.rules.overrides,
    )


def _keep_config(folder: Path, config: SiteConfig, digest: str) -> None:
    known = {**asdict(config), "data": str(config.data)}
    text = json.dumps({**known, DIGEST: digest}, indent=1) + "\n"
    replace_atomically(folder / CONFIG, lambda file: file.write(text.encode()))


def change_rules(folder: Path, given: RuleSettings) -> RulesOf:
    """Change the rules of a site, from the next message on; a rule that is not given stays."""
    from ..federation.folders import STATE, say_hello
    from ..federation.lock import locked

    said = {name: value for name, value in asdict(given).items() if value not in (None, ())}
    with locked(folder, "site"):
        _known_site(folder)
        config, digest = _read_config(folder)
        changed, started = replace(config, **said), (folder / STATE).exists()
        named = read_site(changed)[1].data.digest
        if started and named != digest:  # of a level that is not named no row is in the run
            raise Refused(
                f"--minimum-count would change the levels that {folder} has already named to the server of its run; "
                "begin a new run, with a new folder."
            )
        _keep_config(folder, changed, named)
        site, _ = load_site(folder, None)
        written = None
        if "minimum_count" in said and not started:  # the levels that a hello names
            say_hello(folder, site)
            written = str(folder / HELLO)
        return RulesOf(written=written, site=site.name, overrides=site.rules.overrides)


def _promise(site: Any) -> str | None:
    if site.privacy is None:
        return None
    epsilon = site.privacy.epsilon(site.privacy_rounds, DELTA)
    return f"ε = {epsilon:.3g} at δ = {DELTA:g} for at most {site.privacy_rounds} answers (not for hello.npz)"


def answer(folder: Path, broadcast: Path, out: Path | None, copy: Path | None = None) -> Told:
    """Write the reply to a broadcast, or return the result that a final message holds."""
    from ..federation import Message, final_result, step_site
    from ..federation.folders import told

    if out is not None:
        require_out(out, [broadcast, read_config(folder).data], folder)
    site, path = step_site(folder, load_site(folder, None)[0], broadcast, out, copy)
    if path is not None:
        return Answered(written=str(path), site=site.name, **told(path))
    result = final_result(Message.read(broadcast))
    return Ended(site=site.name, result=result, model=ended_model(result))


def begin(folder: Path, hellos: Sequence[Path], method: MethodSettings, settings: RunSettings) -> Standing:
    """Start a run of the sites that said hello, and write its first broadcast."""
    from ..design.levels import TableError
    from ..federation import Coordinator, DisclosureRules, MessageError, start_server
    from ..federation.lock import require_no_site
    from ..glm.kinds import KINDS, kind_of_loss

    require_no_site(folder)
    for hello in hellos:
        if hello.is_dir():
            raise Refused(f"HELLO: {hello} is a folder; name the message of its site, {hello / HELLO}.")
    read, task = _asked(hellos, method, settings, secrets.randbelow(1 << 31))
    if "Softmax" in {hello.loss for hello in read} and settings.prior_precision == 0.0:
        raise Refused(
            "--prior-precision must be > 0 for sites with --loss softmax: the rows determine differences between "
            "classes alone; or let the sites take --loss multinomial."
        )
    require_signed(read)
    try:
        server = Coordinator.start(read, task)
    except TableError as error:
        words = option_words()
        own = words._replace(setting=lambda *chosen: f"{words.setting(*chosen)} of `bayesadmm server`")
        raise MessageError(error.worded(own)) from error
    try:
        kind_of_loss(server.spec.loss)
    except ValueError as error:
        expected = f"that of a kind of GLM that is known here, {', '.join(KINDS)}"
        raise read[0].refusal("loss", expected, server.spec.loss) from error
    require_writable(folder, "DIR")
    private_folder(folder)
    if len(read) < DisclosureRules().minimum_sites:
        note(f"By default a site does not answer in a run of {len(read)}; each needs --minimum-sites {len(read)}.")
    written = str(start_server(folder, server))
    return replace(Standing.of(server), written=written, agreed=list(server.spec.lines))


def _asked(hellos: Sequence[Path], method: MethodSettings, settings: RunSettings, seed: int) -> tuple[list[Any], Any]:
    """Return the hellos of a run and its task; the seed counts where none was given."""
    from ..federation import Message
    from ..federation.dispatch.client_manager import HELLO_LIMIT
    from ..federation.messages import read_hello
    from ..glm.kinds import is_kind_of_loss

    read = [read_hello(Message.read(path, HELLO_LIMIT)) for path in hellos]
    asks = all(is_kind_of_loss(hello.loss) for hello in read) and not settings.sums_only
    seed = seed if settings.seed is None else settings.seed
    return read, task_of(method, settings, seed, asks=asks, sums_only=settings.sums_only)


OPTIONS = {"precision": "prior_precision", "unit": "prior_unit", "agreement": "reference"}
"""Options by the names of fields of a spec, where these differ."""
LEFT = ("asks", "prior", "stated")
"""Fields of a spec that other fields determine."""


def _require_first_settings(
    folder: Path, hellos: Sequence[Path], method: MethodSettings, settings: RunSettings
) -> None:
    """Refuse sites and options that differ from those that a run began with, by name; options may be left out."""
    from ..federation import load_server
    from ..federation.messages import read_hellos

    first, named = load_server(folder).origin.spec, [read_config(hello.parent).name for hello in hellos]
    if set(first.sites) != set(named):
        sites = f"began with the sites {', '.join(first.sites)}, and not {', '.join(named)}"
        raise Refused(f"the run in {folder} {sites}. Name the same sites to go on, or another DIR for a new run.")
    if (method, settings) == (MethodSettings(), RunSettings()):
        return
    read, task = _asked(hellos, method, settings, first.seed)
    own, told = (
        {**plain, **(plain["stated"] or {}), "family": plain["prior"]["family"]}
        for plain in (first.encode()[0], task.spec(read_hellos(read)).encode()[0])
    )
    differ = [
        option_words().argument(OPTIONS.get(name, name))
        for name in told
        if name not in LEFT and own.get(name) != told[name]
    ]
    if differ:
        raise Refused(
            f"the run in {folder} began with other settings of {', '.join(differ)}. To continue it, leave out all "
            "options. To begin a new run, name a new folder, after `bayesadmm site init` at each site."
        )


def require_signed(hellos: Sequence[Any]) -> None:
    """Raise unless sites have keys: those of Python can do without, and the commands make them."""
    for hello in hellos:
        if hello.identity is None:
            raise hello.refusal(
                "identity", "the public key of its site: let the site `bayesadmm site init` again", None
            )


def carry(folder: Path, sites: Sequence[Path], method: MethodSettings, settings: RunSettings, progress: bool) -> Any:
    """Do a whole run, or the rest of one, of sites whose folders are at hand; return its server."""
    from tqdm import tqdm

    from ..federation import step_server, step_site
    from ..federation.folders import STATE
    from ..federation.lock import require_no_site

    require_no_site(folder)
    hellos = [site / HELLO for site in sites]
    for hello in hellos:
        if hello.parent.name == HELLO:
            raise Refused(f"SITE: {hello.parent} is a message; name the folder of its site, {hello.parent.parent}.")
        if not hello.exists():
            made = "which `bayesadmm site init` makes from a CSV file"
            raise Refused(f"SITE: {hello.parent} is not the folder of a site, {made}.")
    if (folder / STATE).exists():
        _require_first_settings(folder, hellos, method, settings)
    else:
        _require_new(sites)
        for line in begin(folder, hellos, method, settings).agreed:
            note(f"{line}.")
    loaded = {site: load_site(site, None)[0] for site in sites}
    server, path = step_server(folder, ())
    with tqdm(desc=server.spec.method.name, unit=" exchanges", initial=server.exchanges, disable=not progress) as bar:
        while server.outcome is None:
            replies = [step_site(site, known, path)[1] for site, known in loaded.items()]
            server, path = step_server(folder, [reply for reply in replies if reply is not None])
            bar.update(server.exchanges - bar.n)
    for site, known in loaded.items():
        step_site(site, known, path)
    return server


def _require_new(sites: Sequence[Path]) -> None:
    """Refuse a new run with sites that remember another run, before its folder is made."""
    from ..federation.folders import STATE

    known = [str(site) for site in sites if (site / STATE).exists()]
    if known:
        raise Refused(
            f"SITE: {', '.join(known)} took part in another run. For a new run, repeat `bayesadmm site init` with its "
            "options at each site, in the same folder; to continue the other run, name its DIR."
        )


def require_server(folder: Path) -> None:
    """Refuse a folder without the state of a server."""
    from ..federation.folders import STATE
    from ..federation.lock import require_no_site

    _require_folder(folder)
    require_no_site(folder)
    if not (folder / STATE).exists():
        raise Refused(f"{folder} is not the folder of a server, which `bayesadmm server init` and `server run` make.")


def read_model(path: Path) -> Any:
    """Return the model of a file, or of a server's folder whose run has ended."""
    from ..estimators.model_file import load_model

    if path.is_dir():
        return model_of_run(path, None, 1.0)
    with open(path, "rb") as file:
        start = file.read(9)
        if not start.startswith(b"PK") and start[8:] != b"{":  # a model of earlier versions is refused as one
            cure = "name the file that `bayesadmm fit --out FILE.npz` wrote, and files of rows after that file"
            raise Refused(f"MODEL: {path} is no model file; {cure} (`bayesadmm describe` shows rows).")
    return load_model(path)


def model_of_run(folder: Path, target: str | None, noise_variance: float) -> Any:
    """Return the model of a run that has ended, from its server's folder."""
    from .._validation import as_positive
    from ..federation import final_result, load_server

    require_server(folder)
    server = load_server(folder)
    if server.outcome is None:
        raise Refused(f"the run in {folder} has not ended: it waits for broadcast {server.number} to be answered.")
    agreed: Any = server.spec.agreement
    if target is None and agreed is None:
        raise Refused("--target must name the column that is predicted: `bayesadmm server status --out` has it.")
    if None not in (target, agreed) and target != agreed.target:
        raise Refused(f"--target: the sites agreed on {agreed.target!r}, got {target!r}.")
    noise = as_positive(noise_variance, "--noise-variance")
    if server.outcome.certificate is None:
        raise Refused(f"the run in {folder} ended without the sums of all sites: {server.outcome.message}")
    return ended_model(final_result(server.broadcast(), server), server, target or "y", noise)


def _require_folder(folder: Path) -> None:
    """Refuse a file in the place of the folder of a site or server."""
    if folder.is_file():
        raise Refused(f"DIR: {folder} is a file; name the folder first, then the messages.")


def _read_config(folder: Path) -> tuple[SiteConfig, str]:
    """Return what a site remembers, and the digest of its rows."""
    _require_folder(folder)
    path = folder / CONFIG
    if not path.exists():
        raise Refused(f"{folder} is no site: there is no {CONFIG}; run `bayesadmm site init` first. {LOST}")
    try:
        plain = dict(json.loads(path.read_text(encoding="utf-8")))
        known = str(plain.pop(DIGEST))
        return make_settings(SiteConfig, plain), known
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is damaged ({error}); run `bayesadmm site init` again.") from error


def read_config(folder: Path) -> SiteConfig:
    """Return what a site of a regression remembers."""
    return _read_config(folder)[0]


def _known_site(folder: Path) -> Any:
    """Return the site of the rows that hello.npz was made from."""
    from ..federation import MessageError

    config, known = _read_config(folder)
    _, site = read_site(config)
    if site.data.digest != known:
        raise MessageError(
            f"{config.data}: the rows of site {config.name!r} must be those of hello.npz, and they have changed since; "
            "put the old file back to continue the run."
        )
    return site


def load_site(folder: Path, terms: Any) -> tuple[Any, Any]:
    """Return the site of a folder that `site init` made, whatever the terms of the run, and its hello."""
    from ..federation.folders import introduced

    return introduced(folder, _known_site(folder))
