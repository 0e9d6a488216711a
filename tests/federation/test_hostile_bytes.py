"""Whatever bytes arrive, the answer is a message or a refusal in one sentence: structure that is made up, and signed.

CI reads a seeded sample. `HOSTILE=1000000 pytest -m slow tests/federation/test_hostile_bytes.py` reads a million.
"""

import json
import os
import random

import numpy as np
import pytest

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
from oracles.problems import prior, team

KEYS = [SigningKey(bytes([k] * 32)) for k in range(2)]
LOSSES = team("logistic", sizes=(25, 28))
SITES = [Site(name, GLMData(loss), key=key) for name, loss, key in zip("AB", LOSSES, KEYS, strict=True)]
SERVER = Coordinator.start([site.hello() for site in SITES], GLMTask(ba.methods.PVI(), prior("full", 3)))
REPLY = SITES[0].step(SERVER.broadcast())[1]
HONEST = {"hello": SITES[0].hello(), "reply": REPLY, "broadcast": SERVER.broadcast()}
WORDS = ["", "A", "\ud800", "a\udcffb", "\x00\x1b[2J", "x" * 5000, "NaN", "../a", "__proto__", "١", "e\u0301"]
NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 1.5, -0.0, 5e-324, 1e308, -1e308, float("nan"), float("inf")]
FLOATS = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 1e-300, 1.0, -1.0, 1e20, 1e154, 1e200, 1.7e308, -1.7e308, np.nan, np.inf]


def made_up(rng, depth=0):
    """Any value that JSON can hold, and some that it cannot."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 2:
        return rng.choice(WORDS)
    if kind < 5:
        return rng.choice(NUMBERS)
    if kind == 5:
        return rng.choice([None, True, False])
    if kind == 6:
        return [made_up(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 30]))]
    if kind == 7:
        return {rng.choice(WORDS) or str(i): made_up(rng, depth + 1) for i in range(rng.randrange(4))}
    nested = rng.choice(NUMBERS)
    for _ in range(rng.choice([10, 31, 33, 900, 3000])):
        nested = [nested]
    return nested


def numbers(rng, values):
    """Vectors of other numbers, lengths and types."""
    values = np.array(values, dtype=float).ravel()
    how = rng.randrange(6) if values.size > 1 else 1
    if how == 0:
        return values[: rng.randrange(values.size + 1)]
    if how == 1:
        return np.zeros(rng.choice([0, 1, 10, 4000]))
    if how == 2:
        with np.errstate(all="ignore"):
            return values.astype(rng.choice([np.float32, np.int64, np.bool_, np.int8]))
    if how == 3:
        return values.reshape(1, -1)
    for _ in range(rng.randrange(1, 4)):
        values[rng.randrange(values.size)] = rng.choice(FLOATS)
    return values


def forged(rng, message):
    """Another header or other arrays, at any depth, sealed by the honest key, by another, or by none."""
    header, arrays = json.loads(json.dumps(message.header)), dict(message.arrays)
    for _ in range(rng.randrange(1, 3)):
        place, name = header, rng.choice(sorted(header))
        while isinstance(place[name], dict) and place[name] and rng.random() < 0.7:
            place = place[name]
            name = rng.choice(sorted(place))
        how = rng.randrange(6)
        if how == 0:
            del place[name]
            break
        if how == 1:
            place[rng.choice(WORDS)] = made_up(rng)
        elif arrays and how < 4:
            chosen = rng.choice(sorted(arrays))
            arrays[chosen] = numbers(rng, arrays[chosen])
        else:
            place[name] = made_up(rng)
    return written(Message(message.kind, header, arrays), rng.choice([KEYS[0], KEYS[0], KEYS[1], None]))


def written(message, key):
    """The bytes of a message, whatever its header holds: the writer's own checks are an honest writer's."""
    honest = _archive._json
    _archive._json = lambda value: json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    try:
        return message.sealed(key).to_bytes(None)
    finally:
        _archive._json = honest


def heard(kind, data):
    """What a server or a site makes of bytes."""
    message = Message.from_bytes(data, "stranger", 1 << 24)
    if kind == "hello":
        read = read_hello(message)
        Coordinator.start([read, SITES[1].hello()], GLMTask(ba.methods.PVI(), prior("full", 3)))
    elif kind == "reply":
        SERVER.step(list(SERVER.read([message]).values()))
    else:
        SITES[0].step(message)
    return message


def hostile(count, seed):
    """Read made-up messages; return how many were refused, and those that were taken in."""
    rng, refused, taken = random.Random(seed), 0, []
    for _ in range(count):
        kind = rng.choice(sorted(HONEST))
        try:
            data = forged(rng, HONEST[kind])
        except (ValueError, RecursionError):  # no bytes say it
            continue
        try:
            taken.append((kind, heard(kind, data)))
        except (MessageError, ValueError) as error:
            text = str(error)
            assert text
            text.encode()  # a log can hold it
            refused += 1
    return refused, taken


def require_sane(taken):
    """What was taken in was signed by the site that it names, or is as free as an introduction and a server's word."""
    for kind, message in taken:
        if kind == "reply":
            assert message.signer == KEYS[0].identity
            assert message.header["answers"] == REPLY.header["answers"]
            assert all(np.isfinite(values).all() for values in message.arrays.values())
        elif kind == "hello":
            assert message.signer == message.header["identity"]


def test_made_up_messages_are_read_or_refused():
    refused, taken = hostile(300, 0)
    assert refused > 180
    require_sane(taken)


@pytest.mark.slow
def test_a_million_made_up_messages():
    count = int(os.environ.get("HOSTILE", "20000"))
    for seed in range(1000, 1000 + count // 1000):
        require_sane(hostile(1000, seed)[1])
