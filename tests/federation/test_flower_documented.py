"""The section "On several machines" of docs/flower.md: its commands as they stand, to a certified answer."""

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

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
SITES = ("Lund", "Ghent", "Bergen", "Turku")
WARDS = ("medical", "surgical", "intensive")
ONCE, SERVER, SITE, REGISTER, NODE, RUN = range(6)


def commands():
    """The blocks of the section, in order."""
    section = PAGE.read_text(encoding="utf-8").partition("## On several machines")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def test_the_page_has_the_blocks_that_are_run():
    blocks = commands()
    words = ("export", "flower-superlink", "site init", "register", "flower-supernode", "flwr run")
    for block, word in zip(blocks, words, strict=True):
        assert word in block


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
@pytest.mark.parametrize("spoil", [False, True])
def test_units_of_the_page_are_whole(spoil, tmp_path):
    """As systemd reads them, with this environment's programs; the twin has a word that it does not know."""
    units = re.findall(r"```ini\n# /etc/systemd/system/(\S+?\.service)[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in units] == ["superlink.service", "supernode.service"]
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
    ward = rng.choice(WARDS, 80)
    age = rng.normal(60.0, 10.0, 80).round(1)
    died = rng.random(80) < 1 / (1 + np.exp(-(0.05 * (age - 60.0) + (ward == "intensive"))))
    path.write_text("age,ward,died\n" + "".join(f"{a},{w},{d:d}\n" for a, w, d in zip(age, ward, died, strict=True)))


class Machine:
    """A folder, and a shell with the commands of the page."""

    def __init__(self, folder, **names):
        folder.mkdir()
        self.folder, self.started = folder, []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {
            **os.environ,
            "PATH": path,
            "SERVER": "localhost",
            "FLWR_HOME": str(folder / ".flwr"),
            **names,
        }

    def do(self, number, begin="", run="0001"):
        """Run a block, from some word on; what it leaves in the background goes on."""
        block = commands()[number].replace("runs/0001", f"runs/{run}")
        block = block[block.index(begin) :]
        with open(self.folder / "log", "ab") as log:
            script = f"set -eu\n{commands()[ONCE]}\n{block}"
            shell = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self.started.append(shell.pid)
            assert shell.wait(900) == 0, (self.folder / "log").read_text()
        return (self.folder / "log").read_text()

    def kill(self):
        """End at once, without a word, what was started first: the superlink."""
        os.killpg(self.started[0], signal.SIGKILL)

    def stop(self):
        for group in self.started:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)


def of_folder(folder):
    """Ids of processes that are told this folder as an argument or in their environment."""
    listed = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if str(folder) in line]


def listens():
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 8000)) == 0


def wait_for_link():
    end = time.monotonic() + 120
    while not listens():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.deployment
def test_from_nothing_to_a_certified_answer(tmp_path):
    if listens():
        pytest.skip("port 8000 is in use")
    rng, trial = np.random.default_rng(0), tmp_path / "machines"
    trial.mkdir()
    server = Machine(trial / "server")
    sites = [Machine(trial / name, SITE=name, PORT=str(9194 + k)) for k, name in enumerate(SITES)]
    try:
        server.do(SERVER)
        keys = server.folder / "trial" / "keys"
        assert sorted(path.name for path in keys.iterdir()) == ["ca.crt", "ca.key", "server.key", "server.pem"]
        assert not (server.folder / "trial" / "sites").exists()
        for name, site in zip(SITES, sites, strict=True):
            write_rows(site.folder / f"{name}.csv", rng)
            site.do(SITE)
            shutil.copy(site.folder / name / "keys" / f"site-{name}.pub", keys)
            shutil.copy(keys / "ca.crt", site.folder)
        wait_for_link()
        server.do(REGISTER)
        for site in sites:
            site.do(NODE)
        words = server.do(RUN)
        server.kill()
        while listens():
            time.sleep(0.2)
        server.do(SERVER, begin="flower-superlink")
        wait_for_link()
        # keys and sites are those that the database knows: nothing is registered again
        again = server.do(RUN, run="0002")
    finally:
        for machine in (*sites, server):
            machine.stop()
        time.sleep(5)
        for process in of_folder(trial):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    assert "medical" in words
    assert "guaranteed" in words
    assert again.count("guaranteed") == 2
