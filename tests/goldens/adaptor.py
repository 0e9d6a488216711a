"""The names behind the goldens: who moves a name changes it here, and nowhere else in this folder.

Everything returns plain Python and NumPy. Helpers of other tests are looked up in the tree whose package is imported,
so that this folder can make the goldens of an older tree: see make.py.
"""

import contextlib
import hashlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import bayesadmm_np as ba

TESTS = str(Path(ba.__file__).parents[1] / "tests")
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

from oracles import problems  # noqa: E402

prior, team = problems.prior, problems.team
FAMILIES = tuple(problems.PRIORS)
LOSSES = tuple(problems.FEATURES)


# ----------------------------------------------------------------------------------------------------
# The core
# ----------------------------------------------------------------------------------------------------


def packed(natural):
    return natural.to_vector()


def packed_all(naturals):
    return np.array([packed(natural) for natural in naturals])


def state_of(state, servers):
    """λ_g after each round, and the duals and λ_k after the last."""
    return {
        "servers": np.array([packed(natural) for natural in servers]).reshape(len(servers), -1),
        "duals": packed_all(state.sites),
        "clients": packed_all(state.naturals),
    }


def certificate_of(certificate):
    found = {"certificate": np.array([*edges_of(certificate), certificate.pooled])}
    if certificate.distance is not None:
        distance = certificate.distance
        found["distance"] = np.array([distance.mahalanobis, distance.sd_units, *distance.per_coefficient])
        found["rigorous"] = bool(distance.rigorous)
    return found


def edges_of(record):
    edges = record.edges
    return edges.broadcast, edges.natural_gradient, edges.gather


# ----------------------------------------------------------------------------------------------------
# Messages, by files and over Flower
# ----------------------------------------------------------------------------------------------------


def contents(message):
    """Digests of the arrays that a message carries, whatever they are called and whatever its header says."""
    arrays = message.arrays.values()
    kept = [np.ascontiguousarray(a) for a in arrays if np.asarray(a).size > 1 and np.asarray(a).dtype == np.float64]
    return sorted(hashlib.sha256(a.tobytes()).hexdigest()[:10] for a in kept)


def run_by_messages(method, clients, start, **options):
    """Carry all messages by hand; return the server's state, its outcome, λ_g of each round, and the contents."""
    from bayesadmm_np.federation import Coordinator, GLMTask
    from oracles.couriers import carried, introduce

    sites = introduce(clients)
    hellos = [carried(site.hello()) for site in sites]
    server = Coordinator.start(hellos, GLMTask(method, start, **options))
    said, servers = [*map(contents, hellos)], []
    while server.outcome is None:
        broadcast, replies = carried(server.broadcast()), []
        for k, site in enumerate(sites):
            sites[k], reply = site.step(broadcast)
            replies.append(carried(reply))
        server = Coordinator.restore(carried(server.step(replies).save()))
        said += [contents(broadcast), *map(contents, replies)]
        servers.append(server.state.q_g.natural)
    final = carried(server.broadcast())
    for k, site in enumerate(sites):
        sites[k] = site.step(final)[0]
    return server, servers, [*said, contents(final)], packed_all([site.factor for site in sites])


def run_over_flower(method, clients, start, folder, **options):
    """In process, through Flower's ServerApp and ClientApps; return the finished server."""
    from bayesadmm_np.federation import GLMTask, load_server
    from bayesadmm_np.federation.dispatch import Plan
    from oracles.loopback import SITES, LoopbackGrid, Node, run_app

    nodes = [Node(name, loss, folder) for name, loss in zip(SITES, clients, strict=False)]
    task = GLMTask(method, start, **options)
    plan = Plan(task, folder / "server", len(clients), deadline=30.0, patience=30.0)
    with no_waiting(), contextlib.suppress(RuntimeError):
        run_app(plan, LoopbackGrid(nodes))
    return load_server(plan.folder)


def run_network_over_flower(method, clients, model, folder, prior_precision, **options):
    from bayesadmm_np.federation import Site
    from bayesadmm_np.federation.dispatch import Plan
    from bayesadmm_np.torch import NetworkData, NetworkTask
    from oracles.loopback import SITES, LoopbackGrid, Node, run_app

    class DeepNode(Node):
        def load(self, folder, spec):
            site = Site(self.name, NetworkData(self.loss, model))
            return site, site.hello()

    nodes = [DeepNode(name, rows, folder) for name, rows in zip(SITES, clients, strict=False)]
    task = NetworkTask(method, model, prior_precision, **options)
    plan = Plan(task, folder / "server", len(clients), deadline=30.0, patience=30.0)
    with no_waiting(), contextlib.suppress(RuntimeError):
        run_app(plan, LoopbackGrid(nodes))
    return plan.load()


@contextlib.contextmanager
def no_waiting():
    from bayesadmm_np.federation.dispatch import client_manager

    before = client_manager.POLL, client_manager.REFRESH
    client_manager.POLL, client_manager.REFRESH = 1e-4, 0.0
    try:
        yield
    finally:
        client_manager.POLL, client_manager.REFRESH = before


# ----------------------------------------------------------------------------------------------------
# Networks
# ----------------------------------------------------------------------------------------------------

TENSORS = ("mean", "precision", "site_linear", "site_precision", "client_linear", "client_precision")


def network_state(state):
    found = {name: np.asarray(getattr(state, name).detach().double().cpu()) for name in TENSORS}
    found["objective"] = np.array([state.start_objective, *(record.objective for record in state.history)])
    found["edges"] = np.array([[r.edges.broadcast, r.edges.gather] for r in state.history]).reshape(-1, 2)
    found["bytes"] = [[record.bytes_down, record.bytes_up] for record in state.history]
    found["present"] = [[list(record.present), list(record.dropped)] for record in state.history]
    if state.memory is not None:
        memory = state.memory
        found["points"] = np.asarray(memory.X.double())
        found["soft labels"] = np.asarray(memory.soft.double())
        found["owners"] = memory.owner.tolist()
    return found


# ----------------------------------------------------------------------------------------------------
# The command line
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


def command(*arguments, folder):
    """Run a command in this process and in a folder, as `bayesadmm ARGUMENTS` does."""
    from bayesadmm_np import cli

    before = sys.argv, Path.cwd()
    out, err = io.StringIO(), io.StringIO()
    code = 0
    try:
        os.chdir(folder)
        # a step took what had come, and waits for all now
        partial = ["--partial"] if arguments[:2] == ("server", "step") and len(arguments) == 5 else []
        sys.argv = ["bayesadmm", *map(str, arguments), *partial]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as stopped:
                code = stopped.code
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    return Said(0 if code is None else code, out.getvalue(), err.getvalue())
