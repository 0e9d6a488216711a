"""A site's node on Flower, which takes messages and answers them; no file of the run's app is fetched, let alone run.

Flower's own supernode runs the app that the superlink's operator ships. This node stands in its place. It speaks the
Fleet interface by functions of `flwr` that are internal, so that the minor version of `flwr` is checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..._errors import needed_by
from .. import Site
from ..dispatch.envelope import Answer, one_line
from ..dispatch.node import answer
from ..refusals import Refusal
from .apps import answer_record, read_request

Load = Callable[[Path, Any], tuple[Site, Any]]
VERSION = "1.41."
POLL = 0.5
"""Seconds between two looks for a message."""

logger = logging.getLogger("flwr.bayesadmm")


def run_node(load: Load, folder: Path, superlink: str, key: Path, root_certificates: Path | None = None) -> None:
    """Answer the messages of a superlink for a site, one at a time, until the connection ends.

    Parameters
    ----------
    load : callable
        load(folder, spec) -> (site, hello): the site in the units of a run, in its own where `spec` is None, and the
        message by which it introduces itself.
    folder : path
        Folder of the site, with its key and its state.
    superlink : str
        HOST:PORT; the connection is by TLS.
    key : path
        Private key of the node, by `ssh-keygen -t ecdsa -b 384`.
    root_certificates : path, optional
        Authorities of the superlink's certificate; default: those of the system.

    Raises
    ------
    ImportError
        When Flower is not installed, or another minor version of it.
    ValueError
        When a file holds no key.
    ConnectionError
        When the connection has ended.

    Examples
    --------
    >>> from bayesadmm_np.federation.flower import run_node
    >>> def load(folder, spec):
    ...     site = Site(folder.name, GLMData(loss))
    ...     return site, site.hello()
    >>> run_node(load, Path("Lund"), "server.example.org:8000", Path("node-Lund"))  # doctest: +SKIP
    """
    with needed_by("a node needs Flower", "flower"):
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
        from flwr.supercore.version import package_version
        from flwr.supernode.fleet_http_connection import http_request_response
    if not package_version.startswith(VERSION):
        raise ImportError(f"flwr must be {VERSION}x, whose internal functions a node uses, got {package_version}.")
    try:
        private: Any = load_ssh_private_key(key.read_bytes(), None)
        pair = private, private.curve and private.public_key()
    except (AttributeError, ValueError) as error:
        raise ValueError(f"key must be one that `ssh-keygen -t ecdsa -b 384` makes, got {key}.") from error
    roots = None if root_certificates is None else root_certificates.read_bytes()
    with http_request_response(superlink, False, roots, pair) as (_, receive, send, _, _, pull, push, confirm):
        while True:
            if (came := receive()) is None:
                time.sleep(POLL)
                continue
            message, tree = came
            run, began = message.metadata.run_id, time.monotonic()
            try:
                whole: Any = pull_and_inflate_object_from_tree(tree, partial(pull, run), partial(confirm, run))
                message.content = whole.content
                reply = replied(message, load, folder)
                if reply.metadata.ttl <= 0:  # where the site keeps it, it is sent when the server asks again
                    words = "too late for the server, whose deadline must be longer than %.3g s"
                    logger.warning(words, message.metadata.ttl)
                    continue
                reply.metadata.__dict__["_message_id"] = reply.object_id
                missing, session = send(reply, get_object_tree(reply), time.monotonic() - began)
                parts = get_all_nested_objects(reply)
                push_objects(parts, partial(push, run, session), object_ids_to_push=missing)
            except Exception as error:  # of one message or its run, of which the next may know nothing
                logger.warning("a message got no answer: %s: %s", type(error).__name__, one_line(str(error)))
    raise ConnectionError(f"the connection to {superlink} has ended; the log above says why. Start the node again.")


def replied(message: Any, load: Load, folder: Path) -> Any:
    """Return Flower's message with the answer; of an error only a code, as Flower would send its text."""
    from flwr.app import Message

    try:
        said = answer(read_request(message.content), folder, partial(load, folder))
    except Exception as error:  # of what Flower carried: `answer` raises nothing
        logger.warning(one_line(str(error)))
        said = Answer(said=Refusal(("message",)))
    return Message(answer_record(said), reply_to=message)
