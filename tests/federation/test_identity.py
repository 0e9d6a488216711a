"""Who is who: a site's name belongs to the key that joined with it, and a server is known by its own."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    Coordinator,
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    final_result,
    load_server,
    site_key,
    start_server,
    step_server,
    step_site,
)
from bayesadmm_np.federation.folders import ask_copy, give_copy
from oracles.by_files import write_tables
from oracles.couriers import answers, begin, introduce, started, state_of
from oracles.problems import prior, same_bits, team

CLIENTS = team("logistic", sizes=(5, 8, 6))
START = prior("full", 3)
ROW = ba.Accelerated(ba.methods.PVI(0.5), 2)
OPTIONS = {"rounds": 6, "tol": 1e-12}
STRANGER = SigningKey(bytes(range(32)))


def sites_in(folder):
    """The three sites, each with the key of its folder."""
    sites = introduce(CLIENTS)
    for site in sites:
        (folder / site.name).mkdir(exist_ok=True)
    return [replace(site, key=site_key(folder / site.name)) for site in sites]


def begun(folder):
    return begin(folder, sites_in(folder), GLMTask(ROW, START, **OPTIONS))


def onward(folder, path, rounds):
    for _ in range(rounds):
        _, path = step_server(folder / "server", answers(folder, sites_in(folder), path))
    return path


def to_the_end(folder, path):
    while path.name != "final.npz":
        path = onward(folder, path, 1)
    return final_result(Message.read(path))


def signed_by(key, path, **changes):
    """The file as another writer would make it."""
    old = Message.read(path)
    Message(old.kind, {**old.header, **changes}, old.arrays).sealed(key).write(path)
    return path


# ----------------------------------------------------------------------------------------------------
# Seals
# ----------------------------------------------------------------------------------------------------


def test_the_seal_is_that_of_rfc_8032(tmp_path):
    """`cryptography` verifies the signature of SHA-256 by itself, over the bytes before the seal."""
    import hashlib

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    message = Message("reply", {"site": "A"}, {"natural": np.arange(3.0)})
    data = message.sealed(STRANGER).to_bytes()
    bare, seal = data[: len(message.to_bytes())], data[len(message.to_bytes()) :]
    assert bare == message.to_bytes()
    public, signature = seal[-96:-64], seal[-64:]
    assert STRANGER.identity == f"ed25519:{public.hex()}"
    Ed25519PublicKey.from_public_bytes(public).verify(signature, b"bayesadmm archive\n" + hashlib.sha256(bare).digest())
    assert Message.from_bytes(data).sealed(STRANGER).to_bytes() == data == Message.from_bytes(data).to_bytes()
    assert Message.from_bytes(data).digest == message.digest  # what answers repeat is of the content alone


def test_every_changed_byte_of_a_sealed_message_is_refused():
    data = Message("reply", {"site": "A"}, {"natural": np.arange(3.0)}).sealed(STRANGER).to_bytes()
    for i in range(len(data)):
        bad = bytes([*data[:i], data[i] ^ 1, *data[i + 1 :]])
        with pytest.raises(MessageError):
            Message.from_bytes(bad)
        with pytest.raises(MessageError, match="signature must be"):  # before anything else is looked at
            Message.from_bytes(bad, signers={STRANGER.identity: "A"})


def test_a_message_of_an_unknown_key_is_not_opened():
    nonsense = b"PK" + bytes(1000)
    with pytest.raises(MessageError, match=r"signature must be that of A, the key ed25519:\w+, got no signature"):
        Message.from_bytes(nonsense, signers={STRANGER.identity: "A"})
    with pytest.raises(MessageError, match="whole bayesadmm archive"):  # the twin: it is opened without a demand
        Message.from_bytes(nonsense)


# ----------------------------------------------------------------------------------------------------
# Joining
# ----------------------------------------------------------------------------------------------------


def test_an_introduction_is_signed_by_the_key_that_it_names(tmp_path):
    first, second, third = sites_in(tmp_path)
    task = GLMTask(ROW, START)
    stolen = first.hello()
    forged = Message("hello", stolen.header, stolen.arrays).sealed(STRANGER)
    with pytest.raises(MessageError, match="signature must be that of its identity"):
        Coordinator.start([forged, second.hello(), third.hello()], task)
    with pytest.raises(MessageError, match="signature must be that of its identity"):
        Coordinator.start([Message("hello", stolen.header, {}), second.hello(), third.hello()], task)
    with pytest.raises(MessageError, match="all sites have keys or none"):
        Coordinator.start([replace(first, key=None).hello(), second.hello(), third.hello()], task)
    with pytest.raises(MessageError, match="identity must be a key of its own, got that of site s0"):
        Coordinator.start([first.hello(), replace(second, key=first.key).hello(), third.hello()], task)


def test_a_key_that_is_there_is_never_replaced(tmp_path):
    key = site_key(tmp_path)
    assert site_key(tmp_path) == key
    path = tmp_path / "key.hex"
    assert path.stat().st_mode & 0o077 == 0
    assert key.secret.hex() not in repr(key)
    path.write_text("zz")
    with pytest.raises(MessageError, match=r"key\.hex: the private key is damaged; put it back"):
        site_key(tmp_path)
    assert path.read_text() == "zz"


# ----------------------------------------------------------------------------------------------------
# Strangers
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [STRANGER, None, "another site"])
def test_nobody_else_answers_in_a_sites_name(key, tmp_path):
    path = onward(tmp_path, begun(tmp_path), 2)
    replies = answers(tmp_path, sites_in(tmp_path), path)
    key = site_key(tmp_path / "s0") if key == "another site" else key
    honest = replies[1].read_bytes()
    signed_by(key, replies[1])
    before = state_of(tmp_path / "server")
    with pytest.raises(MessageError, match="signature must be"):
        step_server(tmp_path / "server", replies[1:2])
    assert state_of(tmp_path / "server") == before
    replies[1].write_bytes(honest)
    assert step_server(tmp_path / "server", replies)[0].number == 4


def test_a_site_hears_one_server(tmp_path):
    path = onward(tmp_path, begun(tmp_path), 2)
    other = shutil.copy(path, tmp_path / "other.npz")
    site, before = sites_in(tmp_path)[0], state_of(tmp_path / "s0")
    for key in (STRANGER, None):
        signed_by(key, Path(other), round=99)
        with pytest.raises(MessageError, match="signature must be that of the server of this run"):
            step_site(tmp_path / "s0", site, other)
    assert state_of(tmp_path / "s0") == before
    with pytest.raises(MessageError, match="round must be"):  # the twin: what the server itself has signed is read
        step_site(tmp_path / "s0", site, signed_by(site_key(tmp_path / "server"), Path(other), round=99))


# ----------------------------------------------------------------------------------------------------
# A site that has lost its state
# ----------------------------------------------------------------------------------------------------


LOSSES = {
    "lost": lambda folder, kept: (folder / "state.npz").unlink(),
    "damaged": lambda folder, kept: (folder / "state.npz").write_bytes(b"half"),
    "older": lambda folder, kept: (folder / "state.npz").write_bytes(kept),
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_site_that_lost_its_state_comes_back_with_its_key(how, tmp_path):
    """The answer is that of a run in which nothing was lost, bit for bit."""
    result = ba.run(ROW, CLIENTS, START, **OPTIONS)
    path = onward(tmp_path, begun(tmp_path), 1)
    kept = (tmp_path / "s1" / "state.npz").read_bytes()
    path = onward(tmp_path, path, 2)
    LOSSES[how](tmp_path / "s1", kept)
    site = sites_in(tmp_path)[1]
    with pytest.raises(MessageError):
        step_site(tmp_path / "s1", site, path)
    copy = give_copy(tmp_path / "server", ask_copy(tmp_path / "s1", site, path))
    reply = step_site(tmp_path / "s1", site, path, copy=copy)[1]
    others = answers(tmp_path, sites_in(tmp_path)[::2], path)
    _, path = step_server(tmp_path / "server", [reply, *others])
    final = to_the_end(tmp_path, path)
    assert same_bits(final.posterior.natural, result.posterior.natural)
    assert np.array_equal(final.objective, result.objective)
    assert all(Message.read(path).signer for path in (tmp_path / "server").glob("*cast-*.npz"))


def test_a_copy_is_for_the_key_of_its_site_alone_and_of_the_server_alone(tmp_path, monkeypatch):
    path = onward(tmp_path, begun(tmp_path), 2)
    request = ask_copy(tmp_path / "s1", sites_in(tmp_path)[1], path)
    data, folder = request.read_bytes(), tmp_path / "server"
    for key in (STRANGER, None, site_key(tmp_path / "s0")):
        request.write_bytes(data)
        with pytest.raises(MessageError, match="signature must be that of"):
            give_copy(folder, signed_by(key, request))
    request.write_bytes(data)
    for name in ("run", "answers"):
        with pytest.raises(MessageError, match=f"{name} must be .*: let the site step that broadcast"):
            give_copy(folder, signed_by(site_key(tmp_path / "s1"), request, **{name: "0" * 16}))
        request.write_bytes(data)
    assert not list(folder.glob("copy-*"))
    copy = give_copy(folder, request)
    assert copy.name == "copy-s1-0003.npz"
    before = state_of(tmp_path / "s1")
    with pytest.raises(MessageError, match="signature must be that of the server of this run"):
        step_site(tmp_path / "s1", sites_in(tmp_path)[1], path, copy=signed_by(STRANGER, copy))
    assert state_of(tmp_path / "s1") == before
    # the twin: a server that asks for no signature gives the dual to whoever says the name
    signed_by(STRANGER, request)
    monkeypatch.setattr(Coordinator, "_require_signed", lambda *given: None)
    own = load_server(folder)
    assert own.copy_for(Message.read(request), own.served.digest).header["site"] == "s1"


def test_without_keys_nobody_is_given_a_copy(tmp_path):
    sites = introduce(CLIENTS)
    server = started(sites, GLMTask(ROW, START, **OPTIONS))
    with pytest.raises(ValueError, match="site s1 has no key"):
        ask_copy(tmp_path, sites[1], start_server(tmp_path, server))
    request = replace(sites[1], key=STRANGER).lost(server.broadcast())
    with pytest.raises(MessageError, match="copies go to nobody else"):
        server.copy_for(request, server.served.digest)


# ----------------------------------------------------------------------------------------------------
# Commands
# ----------------------------------------------------------------------------------------------------


def test_a_key_that_is_lost_is_not_made_anew_in_silence(call):
    write_tables()
    for name in ("north", "west"):
        init = f"site init {name} --data {name}.csv --target died --name {name} --loss logistic --features age,dose"
        keys = [json.loads(call(f"{init} --minimum-sites 2 --budget 100 --json")[1])["key"] for _ in range(2)]
        assert keys == [site_key(name).identity] * 2
    assert call("server init run north/hello.npz west/hello.npz --method PVI --prior-precision 1")[0] == 0
    Path("north/key.hex").unlink()
    code, _, err = call("site step north run/broadcast-0001.npz")
    assert (code, "north/key.hex: the private key is lost; put it back" in err) == (3, True), err
    assert not Path("north/key.hex").exists()
    hello = Message.read("north/hello.npz")
    Message("hello", {**hello.header, "identity": None}, hello.arrays).write("unsigned.npz")
    code, _, err = call("server init other unsigned.npz --method PVI")
    assert (code, "let the site `bayesadmm site init` again" in err) == (3, True)
