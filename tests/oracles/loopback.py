"""An in-process grid: the same ServerApp and ClientApps as in a deployment, without wire or processes."""

import itertools

from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from bayesadmm_np.federation import GLMData, Site
from bayesadmm_np.federation import Message as Message_
from bayesadmm_np.federation.dispatch import Plan
from bayesadmm_np.federation.dispatch import client_manager as manager_module
from bayesadmm_np.federation.flower import server_app
from bayesadmm_np.federation.flower.apps import STYPE, VECTORS
from bayesadmm_np.federation.flower.node import replied
from bayesadmm_np.losses import Loss
from oracles.couriers import edited, own_key
from oracles.overrides import ALLOWED

RUN = 7
SITES = "abcdefgh"


class Node:
    """A site's process: what it remembers between messages lies in its folder; `data` may be a loss.

    `options` are those of the site, by default rules that allow everything; with `signs=False` it has no key.
    """

    def __init__(self, name, data, folder, signs=True, **options):
        self.name, self.folder = name, folder / name
        self.folder.mkdir(exist_ok=True)
        self.data, self.signs, self.options = data, signs, {"rules": ALLOWED, **options}

    def load(self, folder, spec):
        assert folder == self.folder
        data = GLMData(self.data) if isinstance(self.data, Loss) else self.data
        site = Site(self.name, data, key=own_key(self.folder) if self.signs else None, **self.options)
        return site, site.hello()

    @property
    def state(self):
        (path,) = (path for path in self.folder.glob("*.npz") if not path.name.startswith(("final", "design")))
        return path

    def __call__(self, message):
        return replied(message, self.load, self.folder)


class LoopbackGrid(Grid):
    """`fault(node, number, call)` may stand in for a node's answer to its message of this number, counted from 0.

    It returns a reply, an Error, or None for silence; `call()` is the honest reply.
    """

    def __init__(self, nodes, fault=None):
        self.members = dict(enumerate(nodes, start=1))
        self.fault = fault or (lambda node, number, call: call())
        self.replies, self.numbers, self.ids = {}, {}, itertools.count()

    run = None

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.members)

    def push_messages(self, messages):
        return [self._deliver(message) for message in messages]

    def _deliver(self, message):
        ticket = f"m{next(self.ids)}"
        message.metadata.__dict__["_message_id"] = ticket
        node_id = message.metadata.dst_node_id
        number = self.numbers.get(node_id, 0)
        self.numbers[node_id] = number + 1
        node = self.members[node_id]
        said = self.fault(node, number, lambda: node(message))
        if isinstance(said, Error):
            said = Message(said, reply_to=message)
        if said is not None:
            self.replies[ticket] = said
        return ticket

    def pull_messages(self, message_ids):
        return [self.replies.pop(ticket) for ticket in sorted(message_ids) if ticket in self.replies]


def federation(folder, data, fault=None, names=SITES, **options):
    """A grid of sites with these data."""
    return LoopbackGrid([Node(name, one, folder, **options) for name, one in zip(names, data, strict=False)], fault)


def plan_of(folder, task, n_sites=3, **waits):
    return Plan(task, folder / "server", n_sites, **{"deadline": 30.0, "patience": 30.0, **waits})


def at(name, numbers, act):
    """A fault: `act(node, call)` stands in for the answers of a node to its messages of these numbers."""
    return lambda node, number, call: act(node, call) if node.name == name and number in numbers else call()


def lines(caplog, words=""):
    """What was said with these words in it."""
    return [line for record in caplog.records if words in (line := record.getMessage())]


def run_app(plan, grid, run_id=RUN):
    """Run the ServerApp as Flower does."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 0, 0
    server_app(plan)(grid, Context(run_id, 0, {}, RecordDict(), {}))


def finished(plan, grid, run_id=RUN):
    """Run to the end, failed or not; return the server as its checkpoint has it."""
    try:
        run_app(plan, grid, run_id)
    except RuntimeError:
        assert plan.load().outcome.status.is_failure
    return plan.load()


def quicken(monkeypatch):
    """In one process there is nothing to wait for."""
    monkeypatch.setattr(manager_module, "POLL", 1e-4)
    monkeypatch.setattr(manager_module, "REFRESH", 0.0)


def said_by(reply):
    """Our message in Flower's."""
    return Message_.from_bytes(reply.content[VECTORS]["message"].data)


def packed(reply, data, stype=STYPE):
    """Flower's message with other bytes in it."""
    reply.content[VECTORS] = ArrayRecord({"message": Array(dtype="uint8", shape=(len(data),), stype=stype, data=data)})
    return reply


def spoiled(reply, header=None, **arrays):
    """The same reply with another content; the digest is right, as an attacker's would be."""
    return packed(reply, edited(said_by(reply), header, arrays).to_bytes())
