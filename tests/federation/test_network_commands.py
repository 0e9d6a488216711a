"""`bayesadmm site network`, `server network`: networks by the commands of other runs, with the bits of one process."""

import json
import runpy

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="networks need the extra `torch`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np import cli  # noqa: E402
from bayesadmm_np.federation import Message, load_server  # noqa: E402
from bayesadmm_np.torch import final_model, run  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402

FILE = """
import torch
from bayesadmm_np.torch import IVONADMM, MLP, IVONSteps, NetworkTask, Rows

SHIFT = 0.0


def rows(n):
    X = torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + SHIFT
    return Rows(X, (X[:, 0] > SHIFT).long()), MLP((4, 5, 2))


def a():
    return rows(20)


def b():
    return rows(12)


def alone():
    return rows(3)[0]


def task():
    torch.manual_seed(0)
    return NetworkTask(IVONADMM(0.7, 0.3), MLP((4, 5, 2)), rounds=2, solver=IVONSteps(epochs=2, batch_size=8), seed=3)
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, one_thread):
    (tmp_path / "trial.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["bayesadmm", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code or 0, capsys.readouterr()

    return call


def test_a_network_is_trained_by_the_same_commands(command, tmp_path):
    for name in "ab":
        assert command("site", "network", name, f"trial.py:{name}", "--name", name, *OPTIONS.split())[0] == 0
    code, said = command("server", "network", "run", "trial.py:task", "a/hello.npz", "b/hello.npz", "--json")
    plain = json.loads(said.out)
    assert (code, plain["family"], plain["sites"]) == (0, "network", {"a": 20, "b": 12})
    message = plain["written"]
    while not message.endswith("final.npz"):
        replies = []
        for name in "ab":
            code, said = command("site", "step", name, message, "--json")
            assert code == 0
            replies.append(json.loads(said.out)["written"])
        code, said = command("server", "step", "run", *replies, "--json")
        message = json.loads(said.out)["written"]
    said = command("site", "step", "a", message)[1].out
    assert "all rounds done." in said
    assert 'final_model(Message.read("final.npz"), model)' in said
    assert not said.endswith("\n\n")
    assert json.loads(command("server", "status", "run", "--json")[1].out)["status"] == "ROUND_LIMIT"
    here = runpy.run_path(str(tmp_path / "trial.py"))
    task = here["task"]()
    clients = [here[name]()[0] for name in "ab"]
    result = run(task.method, clients, task.model, rounds=2, solver=task.solver, seed=3, batched=False)
    server = load_server(tmp_path / "run", task.model)
    assert torch.equal(server.state.mean, result.mean)
    final = final_model(Message.read(message), task.model)
    assert torch.equal(torch.nn.utils.parameters_to_vector(final.parameters()), result.mean)
    assert "family     network" in command("server", "status", "run")[1].out


@pytest.mark.parametrize("group", ["site", "server"])
def test_the_help_says_how_to_get_the_trained_model(command, group):
    said = " ".join(command(group, "network", "--help")[1].out.split())
    assert "takes no arguments" in said
    assert "bayesadmm_np.torch.final_model(message, model)" in said


def test_what_is_wrong_is_said(command, tmp_path):
    for reference, words in (
        ("none.py:a", "must name a file that exists"),
        ("trial.py", "must name a file that exists"),
        ("trial.py:c", "trial.py has no function 'c'"),
        ("trial.py:alone", "must return (rows, model), got Rows"),
    ):
        code, said = command("site", "network", "a", reference, "--name", "a")
        assert (code, words in said.err) == (2, True), said.err
    assert command("site", "network", "a", "trial.py:a", "--name", "a")[0] == 0
    code, said = command("server", "network", "run", "trial.py:a", "a/hello.npz")
    assert (code, "must return a NetworkTask, got tuple" in said.err) == (2, True), said.err
    assert command("server", "network", "run", "trial.py:task", "a/hello.npz")[0] == 0
    (tmp_path / "trial.py").write_text(FILE.replace("SHIFT = 0.0", "SHIFT = 1.0"))
    code, said = command("site", "step", "a", "run/broadcast-0001.npz")
    assert (code, "have changed since" in said.err) == (3, True), said.err
