"""Messages that are made up, of any structure, and sealed by an honest key or another; and what their readers say."""

import random
import resource
import tracemalloc

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np import _archive
from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    Site,
)
from bayesadmm_np.federation.messages import read_hello
from oracles import bombs
from oracles.problems import prior, team

KEYS = [SigningKey(bytes([k] * 32)) for k in range(2)]
LOSSES = team("logistic", sizes=(25, 28))
SITES = [Site(name, GLMData(loss), key=key) for name, loss, key in zip("AB", LOSSES, KEYS, strict=True)]
SERVER = Coordinator.start([site.hello() for site in SITES], GLMTask(ba.methods.PVI(), prior("full", 3)))
REPLY = SITES[0].step(SERVER.broadcast())[1]
JOINED = SITES[0].step(SERVER.broadcast())[0]
ASKING = Coordinator.start([site.hello() for site in SITES], GLMTask(ba.methods.PVI(), prior("full", 3), asks=True))
ANSWER = SITES[0].step(ASKING.broadcast())[1]
LOST = SITES[0].lost(SERVER.broadcast())
HONEST = {
    "hello": SITES[0].hello(),
    "reply": REPLY,
    "broadcast": SERVER.broadcast(),
    "inquiry": ASKING.broadcast(),
    "answer": ANSWER,
    "lost": LOST,
    "copy": SERVER.step([site.step(SERVER.broadcast())[1] for site in SITES]).copy_for(LOST, SERVER.served.digest),
}
NEEDS_KEY = {"reply": REPLY, "answer": ANSWER, "lost": LOST}
"""What a server takes from the site's own key alone, and which broadcast it answers."""
SHAPES = [(0,), (-1,), (2**31,), (2**40, 8), (2**63,), (10**30,), (1,) * 40]
SPARE = 1 << 23
"""Bytes that a reader may take beside ten times those of the message."""


def forged(rng, message):
    """Hostile fields, or one field more, sealed by the honest key, by another, or by none."""
    header, arrays = bombs.changed(rng, message)
    if rng.random() < 0.1:
        header[rng.choice(bombs.WORDS)] = rng.choice(bombs.WORDS)
    shape = rng.choice(SHAPES) if rng.random() < 0.1 else None
    return written(Message(message.kind, header, arrays), rng.choice([KEYS[0], KEYS[0], KEYS[1], None]), shape)


def written(message, key, shape=None):
    """The bytes of a message, whatever its header holds: the writer's own checks are an honest writer's.

    With a shape every array says that it has it.
    """
    honest = {name: getattr(_archive, name) for name in ("_json", "_utf8")}
    _archive._utf8 = lambda text: text.encode("utf-8", "surrogatepass")
    if shape is not None:
        _archive._json = lambda value, sort=True: honest["_json"](
            value if sort else {name: said | {"shape": shape} for name, said in value.items()}, sort
        )
    try:
        return message.sealed(key).to_bytes(None)
    finally:
        for name, function in honest.items():
            setattr(_archive, name, function)


def heard(rng, kind, data):
    """What a server or a site makes of bytes; a site is new, or has joined the run."""
    message = Message.from_bytes(data, "stranger", 1 << 24)
    site = rng.choice([SITES[0], JOINED])
    if kind == "hello":
        Coordinator.start([read_hello(message), SITES[1].hello()], GLMTask(ba.methods.PVI(), prior("full", 3)))
    elif kind == "reply":
        SERVER.step(list(SERVER.read([message]).values()))
    elif kind == "answer":
        ASKING.step(list(ASKING.read([message]).values()))
    elif kind == "lost":
        SERVER.copy_for(message, SERVER.served.digest)
    elif kind == "copy":
        site.adopt(SERVER.spec, message)
    else:
        site.step(message)
    return message


def most(size):
    """Bytes of memory that reading a message of a size may take."""
    return 10 * size + SPARE


def hostile(count, seed, read=heard, traced=1.0):
    """Read made-up messages; return how many were refused, those that were taken in, and the largest share of memory.

    An error that is no refusal ends the test that calls this. Tracing every allocation takes most of the time: of the
    messages that are not traced the growth of the process counts.
    """
    rng, refused, taken, share = random.Random(seed), 0, [], 0.0
    for _ in range(count):
        kind = rng.choice(sorted(HONEST))
        try:
            data = forged(rng, HONEST[kind])
        except (ValueError, RecursionError):  # no bytes say it
            continue
        before, is_traced = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, rng.random() < traced
        if is_traced:
            tracemalloc.start()
        try:
            taken.append((kind, read(rng, kind, data)))
        except MessageError as error:
            refused += len(str(error).encode()) > 0  # a log can hold it
        finally:
            grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
            used = tracemalloc.get_traced_memory()[1] if is_traced else grown
            share = max(share, used / most(len(data)))
            tracemalloc.stop()
    return refused, taken, share


def altered(taken):
    """Return what was taken in though the site that it names has not written it, or answers something else."""
    found = []
    for kind, message in taken:
        if kind in NEEDS_KEY:
            honest = (
                message.signer == KEYS[0].identity and message.header["answers"] == NEEDS_KEY[kind].header["answers"]
            )
            honest = honest and all(np.isfinite(values).all() for values in message.arrays.values())
        elif kind == "hello":
            honest = message.signer == message.header["identity"]
        else:
            honest = True
        found += [] if honest else [message]
    return found
