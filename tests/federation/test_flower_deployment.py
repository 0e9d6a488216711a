"""The commands of docs/flower.md, "On several machines", as they stand: to a certified answer on loopback."""

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from bayesadmm_np.federation import load_server
from oracles.problems import same_bits

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
SITES = ("Lund", "Ghent", "Bergen")
WARDS = ("medical", "surgical", "intensive")
ONCE, SERVER, SITE, REGISTER, NODE, RUN = range(6)
LONGEST = 400.0
"""Seconds for a command on a machine that is busy; a quiet one needs a sixth."""


def commands():
    """The blocks of the section, in order."""
    section = PAGE.read_text(encoding="utf-8").partition("## On several machines")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_page_has_the_blocks_that_are_run():
    words = ("export", "flower-superlink", "site init", "register", "flower node", "flwr run")
    assert [word in block for block, word in zip(commands(), words, strict=True)] == [True] * 6


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("spoil", [False, True])
def test_units_of_the_page_are_whole(spoil, tmp_path):
    """As systemd reads them, with this environment's programs; the twin has a word that it does not know."""
    units = re.findall(r"```ini\n# /etc/systemd/system/(\S+?\.service)[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in units] == ["superlink.service", "node.service"]
    for name, text in units:
        program = re.search(r"ExecStart=(\S+)", text)[1]
        found = shutil.which(Path(program).name) or shutil.which(Path(program).name, path=Path(sys.executable).parent)
        if found is None:
            pytest.skip("Flower's programs are not on the path")
        text = text.replace(program, found).replace("User=federation\n", "")
        (tmp_path / name).write_text(text.replace("Restart=always", "Restart=allways") if spoil else text)
        command = ["systemd-analyze", "verify", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        mine = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
        assert bool(mine) == spoil, mine


def write_rows(path, rng):
    ward = rng.choice(WARDS, 300)
    age = rng.normal(60.0, 10.0, 300).round(1)
    died = rng.random(300) < 1 / (1 + np.exp(-(0.05 * (age - 60.0) + (ward == "intensive"))))
    path.write_text("age,ward,died\n" + "".join(f"{a},{w},{d:d}\n" for a, w, d in zip(age, ward, died, strict=True)))


class Machine:
    """A folder, and a shell with the commands of the page."""

    def __init__(self, folder, **names):
        folder.mkdir()
        self.folder = folder
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        own = {"PATH": path, "SERVER": "localhost", "FLWR_HOME": str(folder / ".flwr"), "OPENBLAS_NUM_THREADS": "1"}
        self.environment = {**os.environ, **own, **names}

    def do(self, number, change=lambda block: block):
        """Run a block; what it leaves in the background goes on. Return all that was said so far."""
        with open(self.folder / "log", "ab") as log:
            shell = subprocess.Popen(
                ["bash", "-c", f"set -eu\n{commands()[ONCE]}\n{change(commands()[number])}"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            assert shell.wait(LONGEST) == 0, self.said()
        return self.said()

    def said(self):
        return (self.folder / "log").read_text()

    def end(self):
        """End all that was started here, also what left the shell's group: a superexec that outlives its superlink may
        take the next run, and end it unread."""
        end_all(self.folder)


def end_all(folder):
    for process in of_folder(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def of_folder(folder):
    """Ids of processes that are told this folder as an argument or in their environment."""
    listed = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if str(folder) in line]


def listens():
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 8000)) == 0


def wait_until(there):
    end = time.monotonic() + LONGEST
    while not there():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Server and sites with their keys; the superlink listens, and no site has joined."""
    if listens():
        pytest.skip("port 8000 is in use")
    try:  # workers of one run share the port: the first has it
        if "PYTEST_XDIST_WORKER" in os.environ:
            (tmp_path_factory.getbasetemp().parent / "port-8000").touch(exist_ok=False)
    except FileExistsError:
        pytest.skip("port 8000 is taken by another worker")
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("machines")
    server = Machine(folder / "server")
    sites = {name: Machine(folder / name, SITE=name) for name in SITES}
    try:
        server.do(SERVER)
        for name, site in sites.items():
            write_rows(site.folder / f"{name}.csv", rng)
            site.do(SITE)
            shutil.copy(site.folder / f"node-{name}.pub", server.folder / "trial" / "keys")
            shutil.copy(server.folder / "trial" / "keys" / "ca.crt", site.folder)
        wait_until(listens)
        yield server, sites
    finally:
        end_all(folder)


@pytest.mark.deployment
def test_a_stranger_without_a_registered_key_is_refused(machines):
    """Before the keys of the sites are registered each of them is a stranger."""
    _, sites = machines
    site = sites["Lund"]
    with pytest.raises(AssertionError, match=r"ApiError:2004|305"):
        site.do(NODE, lambda block: block.replace(" &\n", "\n"))


@pytest.fixture(scope="module")
def joined(machines):
    """Server and sites at work, and a fourth site that starts Flower's own node."""
    server, sites = machines
    keys = server.folder / "trial" / "keys"
    plain = Machine(server.folder.with_name("plain"), SITE="Turku")
    plain.do(SITE, lambda block: block[block.index("ssh-keygen") :])
    shutil.copy(plain.folder / "node-Turku.pub", keys)
    shutil.copy(keys / "ca.crt", plain.folder)
    server.do(REGISTER)
    for site in sites.values():
        site.do(NODE)
    return server, sites, plain


def readable(folder):
    """Files and folders that others than their owner may read."""
    return sorted(path.name for path in folder.rglob("*") if path.lstat().st_mode & 0o077 and not path.is_symlink())


@pytest.mark.deployment
def test_from_nothing_to_a_certified_answer(joined):
    """Nothing is readable by others; the database outlives its process, and the nodes wait for it."""
    server, sites, _ = joined
    assert not (server.folder / "trial" / "sites").exists()
    words = server.do(RUN)
    assert "medical" in words
    assert "guaranteed" in words
    assert load_server(server.folder / "trial" / "runs" / "0001").outcome.certificate.holds
    assert {"superlink.db", "superlink.db-wal"} <= {path.name for path in (server.folder / "trial").iterdir()}
    assert readable(server.folder / "trial") == []
    assert [name for site in sites.values() for name in readable(site.folder / site.folder.name)] == []
    server.end()
    wait_until(lambda: not listens())
    server.do(SERVER, lambda block: block[block.index("flower-superlink") :])
    wait_until(listens)
    # keys and sites are those that the database knows: nothing is registered again
    short = "rounds=1 run-folder"
    server.do(RUN, lambda block: block.partition("bayesadmm")[0].replace("0001", "0002").replace("run-folder", short))
    assert load_server(server.folder / "trial" / "runs" / "0002").outcome.status.name == "ROUND_LIMIT"


PLAIN = """
flower-supernode --superlink $SERVER:8000 --root-certificates ca.crt --auth-supernode-private-key node-$SITE &
"""


@pytest.mark.deployment
def test_code_of_the_operator_runs_at_no_site_of_our_node(joined):
    """The server waits for four sites: all four get its messages; the twin's node runs what it ships."""
    server, sites, plain = joined
    app = server.folder / "trial" / "app" / "federation" / "server_app.py"
    kept = app.read_text()
    app.write_text(kept + "\nfrom pathlib import Path\n\nPath('stolen').write_text('rows')\n")
    plain.do(NODE, lambda block: PLAIN)
    four = "sites=4 patience=40.0 run-folder"
    words = server.do(
        RUN, lambda block: block.partition("bayesadmm")[0].replace("0001", "0003").replace("run-folder", four)
    )
    assert "3 of 4 sites said hello" in words
    assert (plain.folder / "stolen").exists()
    assert [name for name, site in sites.items() if list(site.folder.rglob("stolen"))] == []
    app.write_text(kept)


AGAIN = "while [ ! -e stop ]; do {} || true; sleep 3; done &"
PVI = (
    'sites-per-round=3 method=\\"PVI\\" gamma=0.5 prior-precision=1.0 penalize-intercept=true '
    "tol=1e-300 rounds={} run-folder"
)
ROUNDS = 60


def processes(folder, words):
    """Ids of processes that are told this folder, and have these words in their command."""
    listed = subprocess.run(["ps", "axww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    here = set(of_folder(folder))
    found = (line.split(maxsplit=1) for line in listed.splitlines())
    return [int(pid) for pid, command in found if int(pid) in here and words in command and "bash" not in command]


@pytest.mark.slow
@pytest.mark.deployment
def test_kills_inside_a_run_lose_nothing(joined):
    """Of nodes, and of the process with the server's half: 16 or more; the bits are those of a run without kills."""
    server, sites, _ = joined
    rng, kills = np.random.default_rng(int(time.time())), 0
    typed = lambda block: block.partition("bayesadmm")[0].replace("run-folder", PVI.format(ROUNDS))  # noqa: E731
    server.do(RUN, lambda block: typed(block).replace("0001", "0010"))
    for site in sites.values():
        for process in processes(site.folder, "flower node"):
            os.kill(process, signal.SIGKILL)
        site.do(NODE, lambda block: AGAIN.format(block.strip().removesuffix("&")))
    folder = server.folder / "trial" / "runs" / "0011"
    one = lambda block: typed(block).replace("0001", "0011").strip()  # noqa: E731
    server.do(RUN, lambda block: AGAIN.format(one(block)).replace("! -e stop", f"! -e {folder}/final.npz"))
    progress = folder / "progress.jsonl"
    while not (folder / "final.npz").exists() and kills < 16:
        done = progress.read_bytes().count(b"\n") if progress.exists() else 0
        wait_until(lambda done=done: progress.exists() and progress.read_bytes().count(b"\n") > done + 1)
        time.sleep(rng.uniform(0.0, 3.0))
        where = [(site.folder, "flower node") for site in sites.values()] + [(server.folder, "flwr-serverapp")]
        for process in [process for place, words in where for process in processes(place, words)]:
            os.kill(process, signal.SIGKILL)
            kills += 1
    wait_until((folder / "final.npz").exists)
    found, expected = load_server(folder), load_server(folder.with_name("0010"))
    assert same_bits(found.state.q_g.natural, expected.state.q_g.natural)
    assert found.state.round == expected.state.round == ROUNDS
    assert kills >= 16
    print(f"{kills} kills")
