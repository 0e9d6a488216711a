"""Runs between sites for the tests: by messages that cross as bytes, or by files; and messages of a liar."""

import json

import numpy as np

from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTask,
    Message,
    Site,
    load_server,
    site_key,
    start_server,
    step_server,
    step_site,
)
from bayesadmm_np.federation.spec import run_of
from oracles.overrides import ALLOWED
from oracles.problems import same_bits


def carried(message):
    return Message.from_bytes(message.to_bytes())


def names_of(clients):
    return [f"s{k}" for k in range(len(clients))]


def introduce(clients):
    return [Site(name, GLMData(loss), rules=ALLOWED) for name, loss in zip(names_of(clients), clients, strict=True)]


def started(sites, task):
    """The server of a run of these sites."""
    return Coordinator.start([site.hello() for site in sites], task)


def until(server, sites, there=lambda server: server.outcome is not None):
    """Server and sites after the exchanges of a run to its end, or to where the server is `there`."""
    while not there(server):
        server, sites = exchanged(server, sites)
    return server, list(sites)


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


# ----------------------------------------------------------------------------------------------------
# By files
# ----------------------------------------------------------------------------------------------------


def begin(folder, sites, task):
    """Make a folder for each site and for the server, and begin a run; return the first broadcast."""
    for name in (*(site.name for site in sites), "server"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return start_server(folder / "server", started(sites, task))


def answers(folder, sites, path):
    """The files that sites write in answer to a message."""
    return [step_site(folder / site.name, site, path)[1] for site in sites]


def carry(folder, sites, task, persist=lambda act: act(), after=lambda number: None, model=()):
    """Do a run by files; every step is a call of `persist`, and sites are made anew for it by `sites()`."""
    names, home = [site.name for site in sites()], folder / "server"
    persist(lambda: begin(folder, sites(), task))
    for number in range(1, 40):
        path = max(home.glob("broadcast-*.npz"))
        for k, name in enumerate(names):
            persist(lambda k=k, name=name, path=path: step_site(folder / name, sites()[k], path))
        replies = [folder / name / f"reply-{name}-{number:04d}.npz" for name in names]
        persist(lambda replies=replies: step_server(home, replies, *model))
        after(number)
        if (home / "final.npz").exists():
            break
    for k, name in enumerate(names):
        persist(lambda k=k, name=name: step_site(folder / name, sites()[k], home / "final.npz"))
    return load_server(home, *model)


def state_of(folder):
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ----------------------------------------------------------------------------------------------------
# Lies
# ----------------------------------------------------------------------------------------------------

KEYS = {}


def own_key(folder):
    """The key of a site's folder, which `lied` knows too."""
    key = site_key(folder)
    KEYS[key.identity] = key
    return key


def lied(message, old):
    """The message as the writer of an old one would seal it."""
    return message.sealed(KEYS.get(old.signer))


def edited(message, header=None, arrays=None):
    """The message with other content, and right digests, as a hostile sender makes it.

    Fields of the header are named by dotted paths; `...` takes a field away, and None an array. Where the spec is
    changed, the run's id is that of the new one, unless `header` says it.
    """
    fields = json.loads(json.dumps(dict(message.header)))
    for path, value in (header or {}).items():
        inner, (*outer, last) = fields, path.split(".")
        for name in outer:
            inner = inner[name]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    vectors = {name: value for name, value in {**message.arrays, **(arrays or {})}.items() if value is not None}
    made = carried(Message(message.kind, fields, vectors))
    is_resigned = any(path.startswith("spec.") for path in header or ()) or "prior" in (arrays or ())
    if is_resigned and "run" not in (header or ()):
        made = carried(Message(message.kind, {**fields, "run": run_of(made.header["spec"], made.arrays)}, vectors))
    return made if message.signer is None else lied(made, message)


# ----------------------------------------------------------------------------------------------------
# Comparisons
# ----------------------------------------------------------------------------------------------------


def timeless(record):
    plain = record.to_dict()
    plain.pop("seconds")
    for client in plain["clients"]:
        client.pop("seconds")
    return plain


def is_as_wide(own, sent):
    """Whether what is proven of a distance is at least as wide: sites send powers of two above the reach of rows."""
    if not sent.rigorous:
        return True
    pairs = [(getattr(own, name), getattr(sent, name)) for name in ("mahalanobis", "sd_units", "per_coefficient")]
    return own.rigorous and all(np.all(np.asarray(x) * (1 - 1e-9) <= y) for x, y in pairs)


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
        same["distance"] = sent.distance is None or is_as_wide(own.distance, sent.distance)
    return [name for name, equal in same.items() if not equal]
