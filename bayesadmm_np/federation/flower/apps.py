"""Flower's ServerApp, and requests and answers as records of Flower."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from ..._archive import LIMIT, read_as
from ..._errors import needed_by
from ..dispatch.envelope import LONGEST_NOTE, Answer, Request, one_line
from ..dispatch.plan import Plan
from ..dispatch.rounds import serve
from ..refusals import Refusal

RECORD, VECTORS = "bayesadmm", "messages"
STYPE = "bayesadmm.archive"
"""Type of an array's bytes, which Flower does not unpack."""
REASONS = {1: "failed", 2: "failed", 3: "was late", 5: "went away"}
"""Flower's error codes."""

logger = logging.getLogger("flwr.bayesadmm")


def server_app(plan: Plan | Callable[[Mapping[str, Any]], Plan]) -> Any:
    """Return the ServerApp of a run.

    Parameters
    ----------
    plan : Plan or callable
        Or plan(config) -> Plan, from the app's configuration.

    Returns
    -------
    flwr.serverapp.ServerApp
        It raises when the run failed; checkpoint, progress and final message are in the plan's folder.

    Raises
    ------
    ImportError
        When Flower is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import GLMTask
    >>> from bayesadmm_np.federation.dispatch import Plan
    >>> from bayesadmm_np.federation.flower import server_app
    >>> task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    >>> plan = Plan(task, "run", sites=4)
    >>> app = server_app(plan)  # doctest: +SKIP
    """
    with needed_by("bayesadmm_np.federation.flower needs Flower", "flower"):
        from flwr.serverapp import ServerApp
    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        wanted = plan(context.run_config) if callable(plan) else plan
        server = serve(wanted, GridTransport(grid), str(context.run_id), logger.warning)
        assert server.outcome is not None
        if server.outcome.status.is_failure:
            raise RuntimeError(server.outcome.message)
        logger.info("%s after %d rounds", server.outcome.message.rstrip("."), server.state.round)

    app.main()(main)
    return app


class GridTransport:
    """Requests and answers as Flower's messages."""

    def __init__(self, grid: Any) -> None:
        self.grid, self.is_apart = grid, False

    def nodes(self) -> Set[int]:
        """Return the nodes that are there."""
        return set(self.grid.get_node_ids())

    def push(self, requests: Mapping[int, Request], seconds: float) -> dict[str, int]:
        """Send each node its request; return the messages' names."""
        from flwr.app import Message, MessageType

        nodes, messages = sorted(requests), []
        for node in nodes:
            one = requests[node]
            record = _record({"label": one.label}, {"message": one.message, "copy": one.copy})
            messages.append(Message(record, node, MessageType.TRAIN, ttl=seconds))
        tickets = list(self.grid.push_messages(messages))
        if len(tickets) < len(nodes):
            size = max(len(request.message or b"") for request in requests.values())
            raise RuntimeError(f"Flower's superlink did not take messages of {size} bytes: see its log.")
        # an empty ticket: the node has left since
        return {ticket: node for ticket, node in zip(tickets, nodes, strict=True) if ticket}

    def pull(self, tickets: Set[str]) -> dict[str, Answer | str]:
        """Return what has come; what Flower itself cannot read, its reader raises, and drops what came with it.

        So all that came with it are asked again, and from then on one at a time: one node cannot hold up the others.
        """
        found: dict[str, Answer | str] = {}
        for some in [{one} for one in sorted(tickets)] if self.is_apart else [set(tickets)]:
            try:
                found |= self._read(self.grid.pull_messages(some))
            except Exception as error:
                if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "grpc")):  # of the network
                    raise
                words = f"Flower could not read what was sent ({one_line(str(error)) or type(error).__name__})"
                found |= dict.fromkeys(some, words)
                self.is_apart = True
        return found

    def _read(self, messages: Iterable[Any]) -> dict[str, Answer | str]:
        found: dict[str, Answer | str] = {}
        for message in messages:
            # an error that the server's end makes has no other trace of the node that it is about
            ticket = message.metadata.reply_to_message_id
            if message.has_error():
                code, reason = message.error.code, message.error.reason
                found[ticket] = f"{REASONS.get(code, 'failed')} (Flower's error {code}: {reason})"
            else:
                found[ticket] = _read_answer(message.content)
        return found


def answer_record(said: Answer) -> Any:
    """Return an answer as Flower carries it."""
    codes, columns = ((), ()) if said.said is None else (said.said.codes, said.said.columns)
    plain = {"codes": json.dumps(codes), "columns": json.dumps(columns)}
    return _record(plain, {"message": said.message})


def _record(plain: dict[str, Any], messages: dict[str, bytes | None]) -> Any:
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        name: Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)
        for name, data in messages.items()
        if data is not None
    }
    return RecordDict({RECORD: ConfigRecord(plain), VECTORS: ArrayRecord(arrays)})


def read_request(record: Any) -> Request:
    """Read a request out of what Flower carried."""
    plain, messages = _unrecord(record, ("label",), {"message", "copy"})
    return Request(plain["label"], messages.get("message"), messages.get("copy"))


def _read_answer(record: Any) -> Answer | str:
    try:
        plain, messages = _unrecord(record, ("codes", "columns"), {"message"})
        said = {name: json.loads(text) for name, text in plain.items()}
        refusal = read_as(Refusal, said, "answer") if said["codes"] else None
    except (ValueError, RecursionError) as error:
        return one_line(str(error))
    return Answer(messages.get("message"), refusal)


def _unrecord(record: Any, fields: tuple[str, ...], names: set[str]) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the texts and messages of a record from outside."""
    if set(record) != {RECORD, VECTORS}:
        raise ValueError(f"records must be {RECORD} and {VECTORS}, got {one_line(', '.join(sorted(record)))}.")
    plain, arrays = dict(record.config_records.get(RECORD, {})), dict(record.array_records.get(VECTORS, {}))
    if set(plain) != set(fields) or not all(
        isinstance(text, str) and len(text) <= LONGEST_NOTE for text in plain.values()
    ):
        raise ValueError(f"{RECORD} must have the fields {', '.join(fields)}, at most {LONGEST_NOTE} characters each.")
    if not set(arrays) <= names or not all(
        array.stype == STYPE and len(array.data) <= LIMIT for array in arrays.values()
    ):
        raise ValueError(f"{VECTORS} must be messages of at most {LIMIT} bytes.")
    return plain, {name: array.data for name, array in arrays.items()}
