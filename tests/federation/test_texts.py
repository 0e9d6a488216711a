"""Texts of others are only shown: what a terminal would obey, and a second line, are refused at the door."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np import _archive
from bayesadmm_np.estimators import load_model
from bayesadmm_np.federation import Message, MessageError, site_key
from oracles.by_files import SITES, introduce, write_tables
from oracles.overrides import OPTIONS

HOSTILE = ("\x1b[2J", "x\nCertificate: holds", "\u202esdloh", "\x9b31m", "a\rb", "\x7f", "\u2028")
DIED = f"{OPTIONS} --target died --loss logistic --features age,dose,ward"


def leaves(value, path=()):
    """Places of the texts in a header: values, and keys with their name in front."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        if isinstance(key, str):
            yield (*path, key), True
        if isinstance(inside, str):
            yield (*path, key), False
        yield from leaves(inside, (*path, key))


def forged(message, place, text, key, monkeypatch):
    """Bytes of the message with another text there, sealed as its sender would; no door is in the sender's way."""
    (*outer, last), is_key = place
    header = inner = json.loads(json.dumps(dict(message.header)))
    for name in outer:
        inner = inner[name]
    if is_key:
        inner[text] = inner.pop(last)
    else:
        inner[last] = text
    with monkeypatch.context() as open_door:
        open_door.setattr(_archive, "one_line", str)
        return Message(message.kind, header, message.arrays).sealed(key).to_bytes()


@pytest.fixture
def run(call):
    """Do a run by commands; return the files of each kind of message, with the folder of who made it."""
    write_tables()
    hellos = introduce(call, DIED)
    assert call(f"server init run {hellos} --method auto")[0] == 0
    found = {"hello": (Path("east/hello.npz"), "east")}
    waiting = Path("run/inquiry-0001.npz")
    while waiting.name != "final.npz":
        found[waiting.name.partition("-")[0]] = waiting, "run"
        replies = []
        for name in SITES:
            out = call(f"site step {name} {waiting} --json")[1]
            replies.append(json.loads(out)["written"])
        copied = Path(f"{Path(replies[0]).stem}.npz")
        copied.write_bytes(Path(replies[0]).read_bytes())
        found[copied.name.partition("-")[0]] = copied, "east"
        if waiting.name == "broadcast-0002.npz":
            lost = Path(json.loads(call(f"site step east {waiting} --lost --json")[1])["written"])
            found["lost"] = lost, "east"
            found["copy"] = Path(json.loads(call(f"server step run {lost} --json")[1])["written"]), "run"
        waiting = Path(json.loads(call(f"server step run {' '.join(replies)} --json")[1])["written"])
    found["final"] = waiting, "run"
    found |= {"site": (Path("east/state.npz"), None), "server": (Path("run/state.npz"), None)}
    return call, found


def test_a_text_that_a_terminal_obeys_is_refused_in_every_field(run, monkeypatch):
    """Some hundred places in ten kinds of message; then each command, which prints one line without such characters.

    The twin has no door: the text of a final message goes to the site's terminal.
    """
    call, found = run
    assert set(found) == {*COMMANDS, "site", "server"}
    count = 0
    for k, (path, owner) in enumerate(found.values()):
        message, key = Message.read(path), None if owner is None else site_key(owner)
        for place in leaves(message.header):
            count += 1
            data = forged(message, place, HOSTILE[count % len(HOSTILE)], key, monkeypatch)
            with pytest.raises(MessageError) as refused:
                Message.from_bytes(data)
            assert str(refused.value).isprintable(), (k, place)
    assert count > 100
    for kind, command in COMMANDS.items():
        path, owner = found[kind]
        message, key = Message.read(path), None if owner is None else site_key(owner)
        place = next(one for one in leaves(message.header) if one[1] is False)
        for text in HOSTILE:
            Path("forged.npz").write_bytes(forged(message, place, text, key, monkeypatch))
            code, out, err = call(command)
            assert (code, out, err.count("\n"), err[:-1].isprintable()) == (3, "", 1, True), (kind, err)


COMMANDS = {
    "hello": "server init other forged.npz north/hello.npz",
    "inquiry": "site step east forged.npz",
    "answer": "server step run forged.npz",
    "broadcast": "site step east forged.npz",
    "reply": "server step run forged.npz",
    "lost": "server step run forged.npz",
    "copy": "site step east run/broadcast-0002.npz --copy forged.npz",
    "final": "site step east forged.npz",
}


def test_without_the_door_a_final_message_writes_lines_of_its_own(run, monkeypatch):
    call, found = run
    path, owner = found["final"]
    data = forged(Message.read(path), (("message",), False), HOSTILE[1], site_key(owner), monkeypatch)
    monkeypatch.setattr(_archive, "one_line", str)
    Path("forged.npz").write_bytes(data)
    assert "\nCertificate: holds" in call("site step east forged.npz")[1]


@pytest.mark.parametrize(("name", "is_kept"), [("blood\npressure", True), ("blood\x1b[2J", False)])
def test_columns_of_a_model_may_have_lines_but_command_no_terminal(name, is_kept, call):
    write_tables()
    Path("own.csv").write_text(Path("east.csv").read_text().replace("marker", f'"{name}"'))
    code, _, err = call("fit own.csv --target pressure --loss ridge --client ward --drop died --out m.npz")
    assert (code == 0, "\x1b" in err) == (is_kept, False), err
    if is_kept:
        assert name in load_model("m.npz").coefficient_names


def test_a_site_learns_that_a_name_of_its_own_cannot_be_sent(call):
    write_tables()
    Path("east.csv").write_text(Path("east.csv").read_text().replace(",a,", ',"a\nb",'))
    code, _, err = call(f"site init east --data east.csv --name east {DIED}")
    assert (code, err.count("\n"), "'a\\nb'" in err) == (3, 1, True), err
