"""Whatever bytes arrive, or whatever a node sends over Flower's own wire: a message, or a refusal in one sentence.

Structure that is made up, and signed. CI reads a seeded sample. `HOSTILE=1000000 pytest -m slow
tests/federation/test_hostile_bytes.py` reads a million.
"""

import os

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as Wired
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from bayesadmm_np.federation import Message, MessageError
from bayesadmm_np.federation.dispatch.envelope import Answer
from bayesadmm_np.federation.flower import apps
from oracles import forgeries

CODES = ["[]", '["busy"]', '["minimum_count", "point"]', '["x"]', "[" * 5000, "{}", "null", "1" * 5000]
NOTES = ["[]", '["age"]', "late", "\x1b[2J", "x" * 10**5, "a\nb", "\u202eb", "\x00"]


class Wire:
    """A grid that holds what one node has pushed, as the objects by which Flower sends a message."""

    def __init__(self, root, contents):
        self.root, self.contents = root, contents

    def pull_messages(self, tickets):
        message = inflate_object_from_contents(self.root, dict(self.contents))
        message.metadata.__dict__["_reply_to_message_id"] = next(iter(tickets))
        return [message]


def record(rng, data):
    """The record of an answer, with something in it that no site of ours sends."""
    how = rng.randrange(8)
    plain = {"codes": rng.choice(CODES), "columns": rng.choice(NOTES)}
    arrays = {"message": Array(dtype="uint8", shape=(len(data),), stype=apps.STYPE, data=data)}
    if how == 0:
        plain[rng.choice(["codes", "columns", "more"])] = rng.choice(
            [1, 1.5, b"\xff", ["a", "b"], [1.0] * 1000, 2**63 - 1]
        )
    elif how == 1:
        del plain[rng.choice(sorted(plain))]
    elif how == 2:
        shape = rng.choice([(-1,), (2**62,), (2**31, 2**31), ()])
        arrays["message"] = Array(
            dtype=rng.choice(["uint8", "object", "<f8", ""]),
            shape=shape,
            stype=rng.choice([apps.STYPE, "numpy.ndarray", ""]),
            data=data,
        )
    elif how == 3:
        arrays[rng.choice(["copy", "", "x" * 10**4])] = arrays["message"]
    elif how == 4:
        return RecordDict({apps.RECORD: MetricRecord({"note": 1}), apps.VECTORS: ArrayRecord(arrays)})
    elif how == 5:
        return RecordDict({rng.choice(["", apps.RECORD, "\ud7ff"]): ConfigRecord(plain)})
    return RecordDict({apps.RECORD: ConfigRecord(plain), apps.VECTORS: ArrayRecord(arrays)})


def wired(rng, data):
    """A node's answer on the wire; sometimes the bytes of an object are others, and its id is theirs."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 0
    asked = Wired(content=RecordDict(), dst_node_id=1, message_type="train", ttl=60.0)
    asked.metadata.__dict__["_message_id"] = "m0"
    objects = get_all_nested_objects(Wired(record(rng, data), reply_to=asked))
    contents = {name: item.deflate() for name, item in objects.items()}
    root, changed = list(contents)[-1], rng.choice(sorted(contents))
    if rng.random() < 0.5:
        return Wire(root, contents)
    body = bytearray(contents[changed])
    for _ in range(rng.randrange(1, 4)):
        where = rng.randrange(len(body))
        body[where : where + rng.randrange(3)] = rng.choice(
            [b"", b"\xff", b"[" * 5000, b"\x00", bytes([rng.randrange(256)])]
        )
    old, new = changed, get_object_id(bytes(body))
    contents[new] = bytes(body)
    while old != root:  # whoever holds it names the new one
        parent = next((name for name in contents if old.encode() in contents[name] and name != new), None)
        if parent is None:
            break
        text = contents.pop(parent).replace(old.encode(), new.encode())
        old, new = parent, get_object_id(text)
        contents[new] = text
    return Wire(new if old == root else root, contents)


def heard(rng, kind, data):
    """What the server makes of a node's answer."""
    said = apps.GridTransport(wired(rng, data)).pull({"m0"})["m0"]
    if isinstance(said, str):
        raise MessageError(said)
    assert isinstance(said, Answer)
    assert len(said.note) <= 1000
    return forgeries.heard(rng, kind, said.message or b"")


WAYS = {"bytes": (forgeries.heard, 0), "Flower's wire": (heard, 1)}


@pytest.mark.parametrize("way", WAYS)
def test_made_up_messages_are_read_or_refused(way):
    read, seed = WAYS[way]
    refused, taken, share = forgeries.hostile(400, seed, read)
    assert refused > 250
    assert share < 1
    assert forgeries.altered(taken) == []


@pytest.mark.parametrize("check", ["signature", "memory"])
def test_what_finds_faults_can_find_them(check, monkeypatch):
    """The twins: a server that opens whatever it is sent, and a reader that believes what is said of sizes."""
    if check == "signature":
        monkeypatch.setattr(forgeries.SERVER.__class__, "signers", None)
        assert forgeries.altered(forgeries.hostile(400, 0)[1])
    else:
        monkeypatch.setattr(Message, "from_bytes", lambda data, *given: bytearray(1 << 28) and Message("x", {}, {}))
        assert forgeries.hostile(4, 0)[2] > 1


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_million_made_up_messages(way):
    read, seed = WAYS[way]
    for more in range(int(os.environ.get("HOSTILE", "20000")) // 1000):
        _, taken, share = forgeries.hostile(1000, 1000 * (seed + 1) + more, read, traced=0.05)
        assert forgeries.altered(taken) == []
        assert share < 1, more
