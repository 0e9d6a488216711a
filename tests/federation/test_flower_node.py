"""The node of a site on Flower: it depends on internal functions of flwr, answers one at a time, and fetches no app."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import inspect
import subprocess
from contextlib import contextmanager

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore import version
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from bayesadmm_np.federation import GLMData, Site
from bayesadmm_np.federation.dispatch.envelope import Answer
from bayesadmm_np.federation.flower import node as node_module
from bayesadmm_np.federation.flower import run_node
from bayesadmm_np.federation.flower.apps import RECORD, STYPE, VECTORS
from bayesadmm_np.federation.refusals import Refusal
from oracles.couriers import own_key
from oracles.overrides import ALLOWED
from oracles.problems import team

HELLO = RecordDict({RECORD: ConfigRecord({"label": "7"}), VECTORS: ArrayRecord({})})


class Superlink:
    """Stands in for the Fleet connection; it ends when all messages have been pulled."""

    def __init__(self, contents, seconds):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 0
        self.waiting, self.objects, self.replies = [], {}, []
        for content in contents:
            message = Message(content, dst_node_id=3, message_type="query", ttl=seconds)
            message.metadata.__dict__["_message_id"] = message.object_id
            tree = get_object_tree(message)
            self.objects |= {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
            self.waiting.append((Message(metadata=message.metadata, content=RecordDict()), tree))

    @contextmanager
    def connection(self, address, insecure, root_certificates, authentication_keys):
        assert not insecure
        yield (3, self.receive, self.send, self.never, self.never, self.pull, self.push, lambda *_: None)

    def receive(self):
        if not self.waiting:
            raise StopAsyncIteration  # what the true connection logs, and ends with
        return self.waiting.pop(0)

    def never(self, *given):
        raise AssertionError("a node asks neither for the run nor for its app")

    def pull(self, run, name):
        return self.objects[name]

    def send(self, message, tree, seconds):
        self.replies.append(message)
        return {one.object_id for one in (tree, *tree.children)}, "session"

    def push(self, run, session, name, data):
        self.objects[name] = data


@pytest.fixture
def key(tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "node"], check=True)
    return tmp_path / "node"


def answered(contents, load, folder, key, monkeypatch, seconds=60.0):
    """The replies of a node to these contents, in order."""
    superlink = Superlink(contents, seconds)
    monkeypatch.setattr(fleet_http_connection, "http_request_response", superlink.connection)
    with pytest.raises(StopAsyncIteration):
        run_node(load, folder, "localhost:8000", key)
    return superlink.replies


def test_an_answer_a_message_and_no_app(tmp_path, key, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site("a", GLMData(team("logistic")[0]), key=own_key(folder), rules=ALLOWED)
    replies = answered([HELLO, HELLO], lambda folder, spec: (site, site.hello()), folder, key, monkeypatch)
    assert [reply.content[RECORD]["codes"] for reply in replies] == ["[]", "[]"]


BAD = {
    "no records": RecordDict({}),
    "a label of another type": RecordDict({RECORD: ConfigRecord({"label": 7}), VECTORS: ArrayRecord({})}),
    "an array to unpack": RecordDict(
        {
            RECORD: ConfigRecord({"label": "7"}),
            VECTORS: ArrayRecord({"message": Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"\x80")}),
        }
    ),
    "a message that is none": RecordDict(
        {
            RECORD: ConfigRecord({"label": "7"}),
            VECTORS: ArrayRecord({"message": Array(dtype="uint8", shape=(1,), stype=STYPE, data=b"\x80")}),
        }
    ),
}


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize("kind", [ValueError, KeyError, MemoryError, RecursionError])
def test_no_text_of_an_error_leaves_the_site(kind, leaks, tmp_path, key, monkeypatch, caplog):
    """Whatever fails, in the request or at the site, the reply holds a code; the sentence is in the site's log.

    The broken twin sends the sentence, as Flower's own process would.
    """
    folder = tmp_path / "site"
    folder.mkdir()

    def load(folder, spec):
        raise kind("age 61.5")

    if leaks:
        monkeypatch.setattr(node_module, "answer", lambda *given: Answer(said=Refusal(("allow",), ("age 61.5",))))
    replies = answered([*BAD.values(), HELLO], load, folder, key, monkeypatch)
    said = [str(dict(reply.content[RECORD])) for reply in replies]
    assert ["61.5" in text for text in said[-1:]] == [leaks]
    assert [text for text in said if '"codes": "[]"' in text] == []
    assert ("age 61.5" in caplog.text) != leaks
    assert not any(reply.content[VECTORS] for reply in replies)


def test_an_answer_that_is_too_late_is_not_sent_and_the_log_names_the_cure(tmp_path, key, monkeypatch, caplog):
    """The twin has the time."""
    for seconds, is_late in ((60.0, False), (1e-9, True)):
        replies = answered([HELLO], lambda folder, spec: None, tmp_path, key, monkeypatch, seconds)
        assert (replies == [], "deadline" in caplog.text) == (is_late, is_late)


@pytest.mark.parametrize("kind", ["ed25519", "none", "ecdsa"])
def test_a_key_of_another_kind_is_refused(kind, tmp_path, monkeypatch):
    path = tmp_path / "node"
    if kind == "none":
        path.write_text("no key")
    else:
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    monkeypatch.setattr(fleet_http_connection, "http_request_response", Superlink([], 1.0).connection)
    with pytest.raises(
        StopAsyncIteration if kind == "ecdsa" else ValueError, match=None if kind == "ecdsa" else "key must"
    ):
        run_node(None, tmp_path, "localhost:8000", path)


def test_another_minor_version_of_flwr_is_refused(tmp_path, key, monkeypatch):
    """The functions below are internal, and may change with any minor version."""
    monkeypatch.setattr(version, "package_version", "1.42.0")
    with pytest.raises(ImportError, match=r"1\.41"):
        run_node(None, tmp_path, "localhost:8000", key)


def test_functions_of_flwr_that_a_node_uses_are_those_that_it_knows():
    """By the names of their parameters."""
    from flwr.supercore.inflatable import inflatable_utils

    known = {
        fleet_http_connection.http_request_response: [
            *("server_address", "insecure", "root_certificates", "authentication_keys", "max_retries", "max_wait_time")
        ],
        inflatable_utils.pull_and_inflate_object_from_tree: [
            *("object_tree", "pull_object_fn", "confirm_object_received_fn", "return_type"),
            *("max_concurrent_pulls", "max_time", "max_tries_per_object", "initial_backoff", "backoff_cap"),
        ],
        inflatable_utils.push_objects: [
            *("objects", "push_object_fn", "object_ids_to_push", "keep_objects", "max_concurrent_pushes")
        ],
    }
    for function, names in known.items():
        assert list(inspect.signature(function).parameters) == names
    assert version.package_version.startswith("1.41.")
