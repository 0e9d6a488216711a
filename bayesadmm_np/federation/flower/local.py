"""A whole deployment on this machine: one superlink, one supernode a site, all ended by their own process ids."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .project import APP, KEY_FOLDER, SITES

HOST = "127.0.0.1"
PORTS = (20000, 32000)
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    # all processes share this machine's cores
    "OPENBLAS_NUM_THREADS": "1",
}
START_SECONDS = 120.0
"""For the superlink to listen: it imports for seconds, for longer on a machine that is busy."""
GRACE = 5.0
"""Seconds between asking a process to end and ending it."""
WATCHDOG = (sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py")))
"""What ends a program when this process is gone and could not do so itself."""


class LocalFederation:
    """Superlink and supernodes on loopback, for as long as the `with` block lasts, and no longer than this process.

    Parameters
    ----------
    folder : path
        As `bayesadmm flower new` makes it.
    keyed : bool
        TLS and a key a site, from the folder's keys.
    """

    def __init__(self, folder: Path, keyed: bool) -> None:
        self.folder, self.keyed = folder.absolute(), keyed
        self.home = self.folder / ".flwr"
        self.port = _free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            **SETTINGS,
            "FLWR_HOME": str(self.home),
            # superlink and supernodes start programs of their own environment by name
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }

    def __enter__(self) -> LocalFederation:
        self.home.mkdir(exist_ok=True)
        # nobody else has the end for writing, and nothing is ever written
        self._lifeline = os.pipe()
        connection = f'root-certificates = "{self._key("ca.crt")}"' if self.keyed else "insecure = true"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "{HOST}:{self.port}"\n{connection}\n',
            encoding="utf-8",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(self.processes):
            _signal(self.processes[name], signal.SIGTERM)
        end = time.monotonic() + GRACE
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            # also what a process that has ended had started
            _signal(process, signal.SIGKILL)
            process.wait()
        for end_of_pipe in self._lifeline:
            os.close(end_of_pipe)

    def start_link(self) -> None:
        """Start the superlink, and wait until it listens.

        Raises
        ------
        RuntimeError
            When it ends, or takes too long.
        """
        client, options = ["--insecure"], ["--insecure"]
        if self.keyed:
            client = ["--root-certificates", self._key("ca.crt")]
            options = ["--enable-supernode-auth", "--ssl-ca-certfile", self._key("ca.crt")]
            options += ["--ssl-certfile", self._key("server.pem"), "--ssl-keyfile", self._key("server.key")]
        options += ["--isolation", "process", "--host", HOST, "--port", str(self.port)]
        process = self.start("superlink", ["flower-superlink", *options])
        end = time.monotonic() + START_SECONDS
        while not _listens(self.port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"Flower's superlink did not start: {self.last_words('superlink')}")
            time.sleep(0.1)
        # what runs the ServerApp: the superlink would start it in another session, where it may outlive a killed one
        self.start("superexec", ["flower-superexec", *client, "--runtime-api-address", f"{HOST}:{self.port}"])

    def start_site(self, name: str, key: str | None = None) -> None:
        """Start the supernode of a site; the folder of the site is all that it is told.

        With keys it uses its own, or where `key` is given another's.
        """
        options = ["--insecure"]
        if self.keyed:
            options = ["--root-certificates", self._key("ca.crt")]
            options += ["--auth-supernode-private-key", self._key(f"site-{key or name}")]
        config = f"site={json.dumps(str(self.folder / SITES / name))}"
        link = ["--superlink", f"{HOST}:{self.port}", "--port", str(_free_port())]
        self.start(f"site-{name}", ["flower-supernode", *options, *link, "--node-config", config])

    def register(self, names: Sequence[str]) -> None:
        """Tell the superlink the public keys of sites.

        Raises
        ------
        RuntimeError
            When it does not take one.
        """
        for name in names:
            done = self._flwr("supernode", "register", self._key(f"site-{name}.pub"), "local")
            if done.returncode:
                raise RuntimeError(f"the key of site {name} was not registered: {(done.stderr or done.stdout).strip()}")

    def submit(self, changes: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start a run with other values for some keys of the configuration; the process lasts as long as the run."""
        path = self.home / "changes.toml"
        # a JSON string, number or boolean is one of TOML, too
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in changes.items())
        path.write_text(text, encoding="utf-8")
        return self.start("run", ["flwr", "run", str(self.folder / APP), "local", "--stream", "-c", str(path)])

    def last_words(self, name: str, n_lines: int = 15) -> str:
        """Return the end of a process's log."""
        path = self.home / f"{name}.log"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return "\n".join(lines[-n_lines:])

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program that writes to a log of its name, and ends with this process."""
        log: IO[bytes]
        with open(self.home / f"{name}.log", "ab") as log:
            # a session of its own: what it starts can be ended with it, and nothing else
            process = subprocess.Popen(
                [*WATCHDOG, _program(command[0]), *command[1:]],
                env=self._environment,
                cwd=self.folder,
                stdin=self._lifeline[0],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_program("flwr"), *arguments], env=self._environment, capture_output=True, text=True, check=False
        )

    def _key(self, name: str) -> str:
        return str(self.folder / KEY_FOLDER / name)


def follow(process: subprocess.Popen[bytes], path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's progress as they are written, until the process ends.

    A line that the run drops when it goes on, and writes again, is yielded once.
    """
    seen = 0
    while True:
        over = process.poll() is not None
        if path.exists():
            whole = path.read_bytes().split(b"\n")[:-1]
            yield from map(json.loads, whole[seen:])
            seen = max(seen, len(whole))
        if over:
            return
        time.sleep(0.2)


def _program(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ImportError(f"{name} was not found; it comes with Flower: pip install 'bayesadmm-np[flower]'.")
    return found


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)  # the leader of its own session


def _free_port() -> int:
    """Below the ports of outgoing connections, of which one could have it before Flower does."""
    for port in secrets.SystemRandom().sample(range(*PORTS), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise RuntimeError(f"100 ports of {HOST} between {PORTS[0]} and {PORTS[1]} are in use.")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
