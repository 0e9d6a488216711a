"""Runs by messages for the tests: every message crosses as bytes, and every state is put away and read again."""

import json

import numpy as np

from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, Site
from oracles.overrides import ALLOWED
from oracles.problems import same_bits


def carried(message):
    return Message.from_bytes(message.to_bytes())


def names_of(clients):
    return [f"s{k}" for k in range(len(clients))]


def introduce(clients):
    return [Site(name, GLMData(loss), rules=ALLOWED) for name, loss in zip(names_of(clients), clients, strict=True)]


def exchanged(server, sites):
    """Server and sites after every site has answered."""
    sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
    return server.step(replies), list(sites)


def drive(method, clients, prior, is_absent=lambda number, k: False, **options):
    """Return the server, and the sites after the final message."""
    return drive_sites(introduce(clients), GLMTask(method, prior, **options), is_absent)


def drive_sites(sites, task, is_absent=lambda number, k: False):
    """The same of sites that are there already."""
    sites = list(sites)
    server = Coordinator.start([carried(site.hello()) for site in sites], task)
    while server.outcome is None:
        broadcast, replies = carried(server.broadcast()), []
        for k, site in enumerate(sites):
            if is_absent(server.number, k):
                continue
            after, reply = site.step(broadcast)
            sites[k] = after if after.kept is None else site.restore(carried(after.save()))
            replies.append(carried(reply))
        # the order in which replies come does not count
        server = Coordinator.restore(carried(server.step(replies[::-1]).save()))
    final = carried(server.broadcast())
    return server, [site.step(final)[0] for site in sites]


def timeless(record):
    plain = record.to_dict()
    plain.pop("seconds")
    for client in plain["clients"]:
        client.pop("seconds")
    return plain


def differences(result, server, sites):
    """What is not the same, bit for bit, in a run by messages and one in process."""
    state, outcome = server.state, server.outcome
    # the answer that made a run diverge was counted before the server could know
    counted = [] if outcome.status.name == "DIVERGED" else list(zip(result.sites, sites, strict=True))
    same = {
        "posterior": same_bits(result.posterior.natural, state.q_g.natural),
        "sites": all(same_bits(a, b) for a, b in zip(result.sites, state.sites, strict=True)),
        "the sites' own": all(same_bits(a, b.factor) for a, b in counted),
        "client posteriors": all(same_bits(a, b) for a, b in zip(result.state.naturals, state.naturals, strict=True)),
        "objective": np.array_equal(
            result.objective, [state.start_objective, *(record.objective for record in state.history)], equal_nan=True
        ),
        # as text, in which NaN equals NaN
        "history": json.dumps([timeless(r) for r in result.history])
        == json.dumps([timeless(r) for r in state.history]),
        "status": (result.status, result.message) == (outcome.status, outcome.message),
    }
    if result.history and outcome.certificate is not None:
        own, sent = result.certificate(), outcome.certificate
        same["certificate"] = own.edges == sent.edges and own.pooled == sent.pooled
        same["distance"] = sent.distance is None or own.distance == sent.distance
    return [name for name, equal in same.items() if not equal]
