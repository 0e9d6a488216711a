"""A site's half: one request in, one answer out, with the site's state in a file between the two."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import Site
from ..disclosure import DisclosureError
from ..folders import put_away, sent, stepped
from ..lock import locked
from ..messages import Message, MessageError, by_server, read_spec, require_run, require_to_site
from ..refusals import Refusal
from ..spec import as_site_name
from .envelope import Answer, Request, one_line

logger = logging.getLogger(__name__)

Load = Callable[[Any], tuple[Site, Message]]
"""Return the site in the units of the spec (its own before a run), and what it says to introduce itself."""


def answer(request: Request, folder: str | os.PathLike[str], load: Load) -> Answer:
    """Answer a request; the state file in `folder` is replaced before the answer is sent.

    A state file that is missing, damaged, or of another round than the server counts on never stands for zeros: the
    broadcast is refused until the server's copy of the site's dual comes along. One process at a time answers for a
    site. The answer is entered, before it is sent, in the ledger of the site's folder, which all runs share.

    Parameters
    ----------
    request : Request
    folder : path
        Of the site: its state files, one a run, and its ledger.
    load : callable
        load(spec) -> (site, hello); `spec` is None before a run.

    Returns
    -------
    Answer
        Refused, with the reason, where rows, state file and broadcast do not fit.

    Examples
    --------
    See `serve` for a whole run.

    >>> from bayesadmm_np.federation.dispatch import answer
    >>> said = answer(request, "site", lambda spec: (site, site.hello()))  # doctest: +SKIP
    """
    try:
        folder = Path(folder)
        with locked(folder, "site"):
            if request.message is None:
                with _of_rows():
                    site, hello = load(None)
                return Answer(sent(site, folder, hello).to_bytes())
            return _stepped(request, folder, load)
    except Exception as error:  # a transport would send its text, which can quote cells
        return Answer(said=_refusal(error))


class _RowsError(ValueError):
    """The rows or the settings of the site cannot be read, or are not those of the run."""

    code = "rows"


@contextmanager
def _of_rows() -> Iterator[None]:
    try:
        yield
    except DisclosureError:
        raise
    except ValueError as error:
        raise _RowsError(str(error)) from error


def _refusal(error: Exception, named: Collection[str] = ()) -> Refusal:
    """Write an error into the site's log, and return its code for the server."""
    logger.warning(one_line(str(error)), exc_info=not isinstance(error, ValueError))
    if isinstance(error, DisclosureError):
        return error.refusal(named)
    return Refusal((getattr(error, "code", "message" if isinstance(error, ValueError) else "failed"),))


def _stepped(request: Request, folder: Path, load: Load) -> Answer:
    assert request.message is not None
    broadcast = Message.from_bytes(request.message, "broadcast")
    require_to_site(broadcast)
    label, run = as_site_name(request.label), require_run(broadcast)
    # of a run that this site takes part in the spec has been read before; a new one is as large as the rows allow
    is_new = not any(folder.glob(f"{label}-{run}-*.npz"))
    with _of_rows():
        own = load(None)[0].data if is_new else None
    spec = read_spec(broadcast, own)
    with _of_rows():
        site, _ = load(spec)
    try:
        if broadcast.kind == "inquiry":  # of which a site keeps nothing
            after, said = stepped(site, folder, broadcast)
            assert said is not None
            return Answer(sent(after, folder, said).to_bytes())
        return _rounded(request, folder, site, spec, broadcast)
    except DisclosureError as error:
        return Answer(said=_refusal(error, spec.named))


def _rounded(request: Request, folder: Path, site: Site, spec: Any, broadcast: Message) -> Answer:
    """Answer a broadcast, or take in a final message."""
    label = as_site_name(request.label)
    path = folder / f"{label}-{spec.run}-{site.name}.npz"
    try:
        kept = Message.read(path) if path.exists() else None
        damage = ""
    except MessageError as error:
        kept, damage = None, str(error)
    # also where a copy comes along: rows that have changed are not those of the run
    with _of_rows():
        known = site if kept is None else site.restore(kept)
    try:
        if request.copy is not None:
            known = site.adopt(spec, Message.from_bytes(request.copy, "copy", signers=by_server(broadcast.signer)))
        elif damage:
            raise MessageError(damage)
        after, reply = stepped(known, folder, broadcast)
    except MessageError as error:
        if site.key is None or request.copy is not None:
            raise
        logger.warning(one_line(str(error)))
        return Answer(sent(site, folder, site.lost(broadcast)).to_bytes(), Refusal(("state",)))
    reply = put_away(after, folder, path, reply)
    if reply is None:
        broadcast.write(path.with_name(f"final-{path.name}"))
        return Answer()
    note = "copied" if request.copy is not None else ""
    if kept is not None and request.copy is None:
        note = _what_differs(kept, broadcast, spec.sites.index(site.name))
    if reply.header["solved"] is False:
        note = "no_distribution"
    return Answer(reply.to_bytes(), Refusal((note,)) if note else None)


def _what_differs(kept: Message, broadcast: Message, index: int) -> str:
    """Return the note of a site whose last answer was not the last that the server heard of it, or ''."""
    _, answered = kept.header["heard"]
    if answered == broadcast.digest:
        return "again"
    if "pending" in kept.header["answers"]:
        sent = kept.header["answers"]["pending"][0]
        if sent != broadcast.header["counted"][index]:
            return "uncounted"
    return ""
