"""A site's half: one request in, one answer out, with the site's state in a file between the two."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..exchange.message import Message, MessageError
from ..exchange.terms import Terms, as_site_name
from .envelope import Answer, Request
from .protocols import AnySite

__all__ = ["Load", "answer"]

Load = Callable[[Any], tuple[AnySite, Message]]
"""Return the site in the units of the terms (its own before a run), and what it says to introduce itself."""


def answer(request: Request, folder: str | os.PathLike[str], load: Load) -> Answer:
    """Answer a request; the state file in `folder` is replaced before the answer is sent.

    A state file that is missing, damaged, or of another round than the server counts on never stands for zeros: the
    broadcast is refused until the server's copy of the site's dual comes along.

    Parameters
    ----------
    request : Request
    folder : path
        Of the state files, one a run.
    load : callable
        load(terms) -> (site, hello); `terms` is None before a run.

    Returns
    -------
    Answer
        Refused, with the reason, where rows, state file and broadcast do not fit.

    Examples
    --------
    >>> import tempfile
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.exchange import Message, Site
    >>> from bayesadmm_np.flower import Request, answer
    >>> site = Site("A", ba.losses.LeastSquares([[1.0]], [1.0]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     said = answer(Request("7"), folder, lambda terms: (site, site.hello()))
    >>> Message.from_bytes(said.message).header["site"]
    'A'
    """
    try:
        if request.message is None:
            return Answer(load(None)[1].to_bytes())
        return _stepped(request, Path(folder), load)
    except ValueError as error:
        return Answer(note=str(error), refused=True)


def _stepped(request: Request, folder: Path, load: Load) -> Answer:
    assert request.message is not None
    broadcast = Message.from_bytes(request.message, "broadcast")
    if "terms" not in broadcast.header:
        raise broadcast.refusal("header", "that of a broadcast", sorted(broadcast.header))
    terms = _terms(broadcast)
    site, _ = load(terms)
    path = folder / f"{as_site_name(request.label)}-{terms.run}-{site.name}.npz"
    try:
        kept = Message.read(path) if path.exists() else None
        damage = ""
    except MessageError as error:
        kept, damage = None, str(error)
    # also where a copy comes along: rows that have changed are not those of the run
    known = site if kept is None else site.restore(kept)
    if request.copy is not None:
        known = site.adopt(terms, Message.from_bytes(request.copy, "copy"))
    elif damage:
        raise MessageError(damage)
    after, reply = known.step(broadcast)
    after.save().write(path)
    if reply is None:
        broadcast.write(path.with_name(f"final-{path.name}"))
        return Answer()
    note = "took the server's copy of its dual" if request.copy is not None else ""
    if kept is not None and request.copy is None:
        note = _what_differs(kept, broadcast, terms.sites.index(site.name))
    if reply.header["solved"] is False:
        note = "trained to what is no distribution, which is left out"
    return Answer(reply.to_bytes(), note)


def _terms(broadcast: Message) -> Any:
    """Read the terms: those of a network have a model."""
    spoken = broadcast.header["terms"]
    if isinstance(spoken, dict) and "model" in spoken:
        from .deep import DeepTerms  # here, because it needs the extra `torch`

        return DeepTerms.read(broadcast)
    return Terms.read(broadcast)


def _what_differs(kept: Message, broadcast: Message, index: int) -> str:
    """What a site has to say when its last answer was not the last that the server heard of it."""
    number, answered = kept.header["heard"]
    if answered == broadcast.digest:
        return f"answered broadcast {number} again"
    if "pending" in kept.header["answers"]:
        sent = kept.header["answers"]["pending"][0]
        if sent != broadcast.header["counted"][index]:
            return f"its answer of round {sent} was not counted"
    return ""
