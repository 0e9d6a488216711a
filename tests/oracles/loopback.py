"""An in-process grid: the same ServerApp and ClientApps as in a deployment, without wire or processes."""

import itertools

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from bayesadmm_np.federation import GLMData, Site
from bayesadmm_np.federation.dispatch import client_manager as manager_module
from bayesadmm_np.federation.flower import client_app, server_app
from bayesadmm_np.losses import Loss
from oracles.keys import own_key
from oracles.overrides import ALLOWED

RUN = 7
SITES = "abcdefgh"


class Node:
    """A site's process: what it remembers between messages lies in its folder; `loss` may be a site's data."""

    signs = True

    def __init__(self, name, loss, folder):
        self.name, self.folder = name, folder / name
        self.folder.mkdir(exist_ok=True)
        self.loss = loss
        self.app = client_app(self.load)

    def load(self, folder, spec):
        assert folder == self.folder
        data = GLMData(self.loss) if isinstance(self.loss, Loss) else self.loss
        site = Site(self.name, data, key=own_key(self.folder) if self.signs else None, rules=ALLOWED)
        return site, site.hello()

    @property
    def state(self):
        (path,) = (path for path in self.folder.glob("*.npz") if not path.name.startswith(("final", "privacy")))
        return path

    def __call__(self, message, node_id):
        context = Context(RUN, node_id, {"site": str(self.folder)}, RecordDict(), {})
        return self.app(message, context)


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
        said = self.fault(node, number, lambda: node(message, node_id))
        if isinstance(said, Error):
            said = Message(said, reply_to=message)
        if said is not None:
            self.replies[ticket] = said
        return ticket

    def pull_messages(self, message_ids):
        return [self.replies.pop(ticket) for ticket in sorted(message_ids) if ticket in self.replies]


def run_app(plan, grid, run_id=RUN):
    """Run the ServerApp as Flower does."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 0, 0
    server_app(plan)(grid, Context(run_id, 0, {}, RecordDict(), {}))


def quicken(monkeypatch):
    """In one process there is nothing to wait for."""
    monkeypatch.setattr(manager_module, "POLL", 1e-4)
    monkeypatch.setattr(manager_module, "REFRESH", 0.0)
