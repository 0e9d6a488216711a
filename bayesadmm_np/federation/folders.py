"""Folders of messages: what a site or a server writes, in an order that lets an interrupted step be repeated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._archive import MissingFileError, read_as, refusal
from .._errors import ArgumentError
from ..families.coordinates import Natural
from ..glm.own_fit import OwnFit
from .differencing import Source
from .disclosure import DisclosureError, require_budget
from .glm_questions import own_fits
from .glm_spec import GLMSpec
from .identity import read_key, site_key
from .ledger import DIGITS, Entry, Ledger
from .lock import locked
from .messages import Message, MessageError, Outcome, by_server, read_final, read_spec, require_run
from .refusals import Refusal
from .server import Coordinator
from .site import UNCOMPUTABLE, Site

Path_ = str | os.PathLike[str]
Replies = dict[str, tuple[Message, Any]]
"""Messages and their contents by site."""
STATE, HELLO = "state.npz", "hello.npz"


def step_site(
    folder: Path_, site: Site, broadcast: Path_, out: Path_ | None = None, copy: Path_ | None = None
) -> tuple[Site, Path | None]:
    """Answer a broadcast file: read the site's state from `folder`, write the new state, then the reply.

    Interrupted anywhere, the step can be repeated and gives the same bytes. A second process waits for the first. The
    answer is entered in the folder's ledger, which all runs share.

    Parameters
    ----------
    folder : path
        The site's own.
    site : Site
        As made from its rows.
    broadcast : path
    out : path, optional
        Of the reply; default reply-<site>-<round>.npz in the folder.
    copy : path, optional
        The server's copy of this site, which takes the place of the state in the folder.

    Returns
    -------
    site : Site
    reply : Path or None
        None after a final message.

    Raises
    ------
    MessageError
        When state or broadcast are refused, the privacy granted in this folder is spent, or a rule of the site
        keeps the reply back (`DisclosureError`); no file was changed.
    ValueError
        When another process has been at work in the folder for a minute.

    Examples
    --------
    See `start_server` for the rest of such a run.

    >>> from bayesadmm_np.federation import step_site
    >>> site, reply = step_site("north", site, "broadcast-0001.npz")  # doctest: +SKIP
    """
    folder = Path(folder)
    with locked(folder, "site"):
        state = folder / STATE
        known = site.restore(Message.read(state)) if state.exists() and copy is None else site
        message = Message.read(broadcast, signers=known.hears)
        if copy is not None:
            require_run(message)
            known = site.adopt(read_spec(message, site.data), Message.read(copy, signers=by_server(message.signer)))
        after, reply = stepped(known, folder, message)
        if after.kept is not known.kept:
            reply = put_away(after, folder, state, reply)
        elif reply is not None:  # of an inquiry a site keeps nothing
            reply = sent(after, folder, reply)
        if reply is None:
            return after, None
        number = reply.header["round" if reply.kind == "reply" else "number"]
        path = folder / _reply_name(reply.kind, site.name, number) if out is None else Path(out)
        reply.write(path)
        return after, path


def stepped(site: Site, folder: Path_, message: Message) -> tuple[Site, Message | None]:
    """Answer a message; that its numbers cannot be computed with is entered as a refusal, as it tells of the rows."""
    try:
        return site.step(message)
    except MessageError as error:
        cause = error.__cause__
        if site.privacy is None and isinstance(cause, UNCOMPUTABLE) and not isinstance(cause, MessageError):
            assert site.rules is not None
            _enter_refusal(site, folder, Entry.of(message, site.rules.overrides), message.digest, "no sums there")
        raise


def _enter_refusal(site: Site, folder: Path_, entry: Entry, asked: str, reason: str) -> None:
    """Enter that a message was not answered, once; a DisclosureError where the budget has no room for it."""
    assert site.rules is not None
    ledger = Ledger.read(folder)
    own = replace(entry, kind="refusal", bytes=0, digest=asked[:DIGITS], asked=asked[:DIGITS])
    own = ledger.refused(own, reason, site.rules.budget)
    require_budget(site, own, ledger)
    ledger.enter(own)


def _cleared(site: Site, folder: Path_, said: Message) -> tuple[Message, Ledger, Entry, Source | None]:
    """Return a message that the rules have cleared, with its entry; of an answer maybe the refusal."""
    ledger = Ledger.read(folder)
    try:
        said, entry, design = site.cleared(said, ledger)
    except DisclosureError as error:
        if error.tells and "answers" in said.header:
            assert site.rules is not None
            own = Entry.of(said, site.rules.overrides)
            _enter_refusal(site, folder, own, own.asked, error.refusal(()).text)
        raise
    if said.kind == "reply" and site.kept and site.kept.answers.pending and site.privacy and site.privacy_rounds:
        limits = site.kept.spec.limit, site.privacy, site.privacy_rounds
        entry = ledger.charged(entry, *limits, f"reply of {site.name}")
    return said, ledger, entry, design


def sent(site: Site, folder: Path_, said: Message) -> Message:
    """Return a message that is cleared and entered in the folder's ledger; of an answer maybe the refusal."""
    said, ledger, entry, design = _cleared(site, folder, said)
    ledger.enter(entry, design)
    return said


def put_away(site: Site, folder: Path, state: Path, said: Message | None) -> Message | None:
    """Write what a site keeps of its step, then the ledger, in this order; return what may leave then.

    What a rule keeps back, or the granted privacy has not, leaves the state as it was.
    """
    if said is None:
        site.save().write(state)
        return None
    said, ledger, entry, design = _cleared(site, folder, said)
    site.save().write(state)
    ledger.enter(entry, design)
    return said


def say_hello(folder: Path_, site: Site) -> None:
    """Write the hello of a site into its folder."""
    sent(site, folder, site.hello()).write(Path(folder) / HELLO)


def introduced(folder: Path_, site: Site) -> tuple[Site, Message]:
    """Return a site with the key of the hello in its folder, and the hello."""
    hello = Message.read(Path(folder) / HELLO)
    known = hello.header.get("identity")
    return replace(site, key=None if known is None else read_key(folder, known)), hello


def told(path: Path_) -> dict[str, Any]:
    """Return for its owner what a site's file is about: a round, or a question and why it is refused."""
    said = Message.read(path)
    if said.kind == "answer":
        refused = said.header["refused"]
        words = refused and read_as(Refusal, refused, said.source).text
        return {"question": said.header["name"], "refused": words}
    return {"round": said.header["round"]}


def ask_copy(folder: Path_, site: Site, broadcast: Path_) -> Path:
    """Write the request of a site that has lost its state, for the broadcast that the site could not answer.

    The site has a key, as the server's copy goes to nobody else. Returns the path of lost-<site>-<round>.npz.
    """
    message = Message.read(broadcast)
    if message.kind not in ("broadcast", "final"):
        raise message.refusal("kind", "'broadcast' or 'final'", message.kind)
    request = sent(site, folder, site.lost(message))
    path = Path(folder) / f"lost-{site.name}-{request.header['round']:04d}.npz"
    request.write(path)
    return path


def give_copy(folder: Path_, request: Path_, model: Any = None) -> Path:
    """Write what the server holds of a site that has lost its state, for the signed request of `ask_copy`.

    A request that the key of the site has not sealed, or about another broadcast, is a MessageError.
    """
    with locked(folder, "server"):
        server = load_server(folder, model)
        asked = Message.read(request, server.reply_limit, signers=server.signers)
        copy = server.copy_for(asked, server.served.digest)
        path = Path(folder) / f"copy-{copy.header['site']}-{server.number:04d}.npz"
        copy.write(path)
        return path


def _reply_name(kind: str, site: str, number: int) -> str:
    """Return the file name of a reply, or of an answer to a question."""
    return f"{kind}-{site}-{number:04d}.npz"


def start_server(folder: Path_, server: Coordinator) -> Path:
    """Write a new run's state and its first broadcast; return the latter's path.

    Parameters
    ----------
    folder : path
    server : Coordinator

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        When the folder holds another run already.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, DisclosureRules, GLMData, GLMTask, Site
    >>> from bayesadmm_np.federation import load_server, start_server, step_server, step_site
    >>> data, allowed = GLMData(ba.losses.LeastSquares([[1.0]], [1.0])), DisclosureRules.none()
    >>> site = Site("A", data, rules=allowed)  # one row would not be sent
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as run:
    ...     path = start_server(run, Coordinator.start([site.hello()], task))
    ...     while path.name != "final.npz":
    ...         server, path = step_server(run, [step_site(a, site, path)[1]])
    ...     load_server(run).outcome.status.name
    'CONVERGED'
    """
    folder = Path(folder)
    with locked(folder, "server"):
        state = folder / STATE
        if state.exists():
            found = Message.read(state)
            if read_spec(found).run != server.spec.run:
                raise ValueError(f"{folder} holds another run; step it, or give a new run a folder of its own.")
            return _publish(folder, with_key(folder, Coordinator.restored(found, server.engine)))
        server = with_key(folder, server, is_new=True)
        server.save().write(state)
        return _publish(folder, server)


def with_key(folder: Path_, server: Coordinator, is_new: bool = False) -> Coordinator:
    """Return a server that seals what it sends, where its sites have keys; a new run's key is made in its folder."""
    if server.signers is None:
        return server
    return replace(server, key=site_key(folder) if is_new else read_key(folder))


def load_server(folder: Path_, model: Any = None) -> Coordinator:
    """Read the server's state.

    Parameters
    ----------
    folder : path
    model : Module, optional
        The network, where the run is of one.

    Returns
    -------
    Coordinator

    Raises
    ------
    MessageError
        When there is none, or it is damaged.

    Examples
    --------
    See `start_server` for the rest of such a run.

    >>> from bayesadmm_np.federation import load_server
    >>> load_server("run").number  # doctest: +SKIP
    """
    return with_key(folder, Coordinator.restore(Message.read(Path(folder) / STATE), model))


def step_server(
    folder: Path_, replies: Sequence[Path_], model: Any = None, partial: bool = False, without: Sequence[str] = ()
) -> tuple[Coordinator, Path]:
    """Take in reply files; when all sites have answered write the new state, then the next broadcast or the final one.

    Until then the folder keeps the replies that have come, and the outstanding message is written again. The same
    happens without replies, and with the replies of the last step. `arrivals` names the sites that have answered.

    Parameters
    ----------
    folder : path
        The server's own.
    replies : sequence of path
    model : Module, optional
        The network, where the run is of one.
    partial : bool, default False
        End the round without all sites whose replies have not come.
    without : sequence of str, default ()
        End the round without these sites, when all others have answered; a reply of theirs that has come is left out.
        They keep their factors, which the run records; what they still send of this round is refused.

    Returns
    -------
    server : Coordinator
    message : Path

    Raises
    ------
    MessageError
        When the state or a reply is refused; the run is as it was, and the other replies are kept.
    ValueError
        When the run has ended, `without` names no site of it, nobody would be left, or another process has been at work
        in the folder for a minute.

    Examples
    --------
    See `start_server` for the rest of such a run.

    >>> from bayesadmm_np.federation import step_server
    >>> server, message = step_server("run", ["reply-A-0001.npz", "reply-B-0001.npz"])  # doctest: +SKIP
    """
    folder = Path(folder)
    with locked(folder, "server"):
        server = load_server(folder, model)
        for name in without:
            if name not in server.spec.sites:
                raise ArgumentError("without", f"must name sites of {', '.join(server.spec.sites)}", name)
        given, refused = _read_each(server, replies)
        came = _kept(folder, server)[0] | {name: reply for name, (_, reply) in given.items()}
        left = [name for name in server.spec.sites if name in without or (partial and name not in came)]
        if not refused and len(came.keys() - set(left)) + len(left) == len(server.spec.sites):
            astray = server.strays({name: came[name] for name in came.keys() - set(left)})
            given, came = ({name: one for name, one in these.items() if name not in astray} for these in (given, came))
            refused = [*astray.values()]
        if refused:
            _keep(folder, server, given)
            kept = f" {', '.join(sorted(came))} answered; the server keeps that." if came else ""
            raise MessageError(f"{refused[0].reason}{kept}", refused[0].source) from refused[0]
        counts = [reply for name, reply in came.items() if name not in left]
        if left and not counts and server.outcome is None:
            name = "partial" if partial else "without"
            raise ValueError(f"{name} must leave at least one reply in round {server.number}, and none has come.")
        if not counts or len(counts) + len(left) < len(server.spec.sites):
            _keep(folder, server, given)
            return server, _publish(folder, server)
        after = server.without(counts, left)
        if (folder / _out_name(after)).is_dir():  # before the state goes on
            raise ValueError(
                f"{folder / _out_name(after)} is a folder, and the next message needs this name; move the folder away."
            )
        after.save().write(folder / STATE)
        return after, _publish(folder, after)


def _read_each(server: Coordinator, paths: Sequence[Path_]) -> tuple[Replies, list[MessageError]]:
    """Read replies one by one; return the new ones that the server can take in, and the refusals."""
    found: Replies = {}
    refused = []
    for path in paths:
        try:
            message = Message.read(path, server.reply_limit, signers=server.signers)
            if message.digest in server.taken:  # of the last step, once more: it is in the sum
                continue
            ((name, reply),) = server.read([message]).items()
        except MissingFileError:
            raise
        except MessageError as error:
            refused.append(error)
            continue
        if name in found:
            raise message.refusal("site", "one that has not replied yet", name)
        found[name] = message, reply
    return found, refused


def _keep(folder: Path, server: Coordinator, replies: Replies) -> None:
    """Write replies that wait for others into the server's folder."""
    for name, (message, _) in replies.items():
        message.write(folder / _expected_name(server, name))


def _kept(folder: Path, server: Coordinator) -> tuple[dict[str, Any], list[MessageError]]:
    """Return the replies to the message that is out that lie in the folder, and the refusals of other files."""
    found: dict[str, Any] = {}
    refused = []
    for name in server.spec.sites if server.outcome is None else ():
        path = folder / _expected_name(server, name)
        read, errors = _read_each(server, [path] if path.exists() else [])
        for other, (_, reply) in read.items():
            if other == name:
                found[name] = reply
            else:
                errors.append(refusal("site", name, other, os.fspath(path)))
        refused += errors
    return found, refused


def _expected_name(server: Coordinator, site: str) -> str:
    """Return the file name of the site's answer to the message that is out."""
    kind, number = ("reply", server.number) if server.question is None else ("answer", server.question.number)
    return _reply_name(kind, site, number)


def _out_name(server: Coordinator) -> str:
    """Return what the file of the message that is out is called."""
    if server.outcome is not None:
        return "final.npz"
    question = server.question
    return f"broadcast-{server.number:04d}.npz" if question is None else f"inquiry-{question.number:04d}.npz"


def _publish(folder: Path, server: Coordinator) -> Path:
    """Write the message that is out, when the replies that the state counts are gone, of interrupted steps too."""
    question, over = server.question, server.outcome is not None
    rounds = server.number - (not over and question is None)
    for kind, last in (("reply", rounds), ("answer", server.asked)):
        for path in folder.glob(f"{kind}-*-*.npz"):
            name, _, number = path.stem.removeprefix(f"{kind}-").rpartition("-")
            if name in server.spec.sites and number.isdecimal() and int(number) <= last and not path.is_dir():
                path.unlink(missing_ok=True)
    path, message = folder / _out_name(server), server.broadcast()
    if not (path.exists() and path.read_bytes() == message.to_bytes()):  # its time says since when it is out
        message.write(path)
    return path


def arrivals(folder: Path_, server: Coordinator) -> tuple[dict[str, float], float, list[MessageError]]:
    """Return when replies to the message that is out came, by site, since when it is out, and what no replies are.

    The times are those of the files. Whoever can write into the folder can leave a file with the name of a reply there;
    its site has not answered, and a reply that comes takes its place.
    """
    out = Path(folder, _out_name(server))
    came, refused = _kept(Path(folder), server)
    times = {name: Path(folder, _expected_name(server, name)).stat().st_mtime for name in came}
    since = (out if out.exists() else Path(folder, STATE)).stat().st_mtime  # Flower's broadcasts are no files
    return times, since, refused


@dataclass(frozen=True, eq=False)
class FinalResult(Outcome):
    """Result of a run: its outcome, the posterior q_g, and by name of the site η_k and the fits of the sites' own rows.

    A site reads the result from the final message, and knows neither η_k nor fits of the others: both are empty there.
    """

    spec: GLMSpec = field(kw_only=True)
    posterior: Any = field(kw_only=True)
    sites: dict[str, Natural] = field(kw_only=True)
    own: dict[str, OwnFit] = field(kw_only=True)


def final_result(message: Message, server: Coordinator | None = None) -> FinalResult:
    """Read a final message; with the server's state also the sites' factors.

    Parameters
    ----------
    message : Message
    server : Coordinator, optional

    Returns
    -------
    FinalResult

    Raises
    ------
    MessageError
        When the message is not a final one, or damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, final_result
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0]), ("dose",)))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> while server.outcome is None:
    ...     site, reply = site.step(server.broadcast())
    ...     server = server.step([reply])
    >>> result = final_result(server.broadcast(), server)
    >>> result.status.name, result.posterior.mean, list(result.sites)
    ('CONVERGED', array([0.5]), ['A'])
    """
    engine, served = read_final(message, _engine)
    sites = {}
    if server is not None and not engine.spec.sums_only:
        end = getattr(server.outcome and server.outcome.table, "limit", None) or server.state
        sites = dict(zip(engine.spec.sites, end.sites, strict=True))
    own = {} if server is None else own_fits(engine.spec, server.talk)
    spec = engine.spec if server is None else server.spec
    return FinalResult(**vars(served.outcome), spec=spec, posterior=engine.ended(served), sites=sites, own=own)


def _engine(spec: Any) -> Any:
    if not isinstance(spec, GLMSpec):
        raise refusal("spec", "that of a run of losses of the core", spec.engine)
    return spec.at_server()
