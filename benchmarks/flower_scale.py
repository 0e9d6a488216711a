"""What a federation on Flower costs: bytes of a round, memory of its two ends, and rounds of the simulation engine.

    python benchmarks/flower_scale.py bytes
    python benchmarks/flower_scale.py memory                                  # minutes, and 6 GB
    python benchmarks/flower_scale.py server
    python benchmarks/flower_scale.py simulation --sites 100 --rounds 20      # needs flwr[simulation]

Results are added to `benchmarks/results/flower_scale.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, Site, load_server, step_server, step_site

RESULTS = Path(__file__).parent / "results" / "flower_scale.json"
FAMILIES = {
    "isotropic": lambda d: ba.families.IsotropicGaussian(np.zeros(d), 1.0),
    "fixed": lambda d: ba.families.FixedPrecisionGaussian(np.zeros(d), 1.0),
    "diagonal": lambda d: ba.families.DiagonalGaussian(np.zeros(d), 1.0),
    "blocks of 10": lambda d: ba.families.BlockDiagonalGaussian(np.zeros(d), 1.0, blocks=[10] * (d // 10)),
    "full": lambda d: ba.families.FullGaussian(np.zeros(d), 1.0),
}
MEMORY = [("full", 500), ("full", 2000), ("diagonal", 10**7)]
ROWS = 2
N_SITES = 2


def loss(d, k):
    """Two rows: what is measured is that of the parameters."""
    X = np.random.default_rng(k).standard_normal((ROWS, d)) / np.sqrt(d)
    return ba.losses.Logistic(X, np.arange(ROWS))


def start(family, d):
    """Return a server, and its sites; names of columns would be longer than the vectors."""
    sites = [Site(f"s{k}", GLMData(loss(d, k), ("x",) * d)) for k in range(N_SITES)]
    return Coordinator.start(
        [site.hello() for site in sites], GLMTask(ba.methods.PVI(), FAMILIES[family](d), tol=1e-300)
    ), sites


def measure_bytes():
    found = []
    for family in FAMILIES:
        for d in (100, 1000):
            server, sites = start(family, d)
            one, two = (site.step(server.broadcast())[1] for site in sites)
            after = server.step([one, two]).broadcast()
            numbers = server.spec.prior.natural.size
            found.append(
                {
                    "family": family,
                    "d": d,
                    "numbers": numbers,
                    "down": len(after.to_bytes()) - len(json.dumps(after.header["terms"]["features"])),
                    "up": len(one.to_bytes()),
                }
            )
            print(found[-1])
    return found


def measure_server():
    """Seconds of the server for one round in which all sites answer, and bytes of a broadcast, by number of sites."""
    found = []
    for n_sites, d in ((10, 100), (100, 100), (1000, 100), (1000, 5)):
        one = loss(d, 0)
        names = [f"s{k:04d}" for k in range(n_sites)]
        sites = [Site(name, GLMData(one, tuple(f"x{j}" for j in range(d)))) for name in names]
        server = Coordinator.start(
            [site.hello() for site in sites], GLMTask(ba.methods.PVI(gamma=0.5), FAMILIES["full"](d), tol=1e-300)
        )
        broadcast = server.broadcast()
        began = time.perf_counter()
        sites[0].step(broadcast)
        at_site = time.perf_counter() - began
        replies = [site.step(broadcast)[1].to_bytes() for site in sites]
        began = time.perf_counter()
        server = server.step([Message.from_bytes(reply) for reply in replies])
        stepped = time.perf_counter() - began
        found.append(
            {
                "sites": n_sites,
                "d": d,
                "broadcast": len(server.broadcast().to_bytes()),
                "reply": len(replies[0]),
                "server_seconds": stepped,
                "site_seconds": at_site,
                "checkpoint": len(server.save().to_bytes()),
            }
        )
        print(found[-1])
    return found


def peak():
    """MB of resident memory at most, of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def role(name, family, d, folder):
    """One end of round 1 in a process of its own; prints its peak, and what it was after the imports."""
    begun, at = time.perf_counter(), peak()
    if name == "start":
        server, _ = start(family, d)
        (folder / "server").mkdir()
        server.save().write(folder / "server" / "state.npz")
        server.broadcast().write(folder / "broadcast.npz")
    elif name == "server":
        step_server(folder / "server", [folder / "s0.npz", folder / "s1.npz"])
    else:
        site = Site(name, GLMData(loss(d, int(name[1:])), ("x",) * d))
        at, begun = peak(), time.perf_counter()
        (folder / name).mkdir()
        step_site(folder / name, site, folder / "broadcast.npz", folder / f"{name}.npz")
    print(json.dumps({"peak": peak(), "before": at, "seconds": time.perf_counter() - begun}))


def measure_memory():
    found = []
    for family, d in MEMORY:
        with tempfile.TemporaryDirectory() as folder:
            ends = {}
            for name in ("start", "s0", "s1", "server"):
                command = [sys.executable, __file__, "role", name, family, str(d), folder]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                ends[name] = json.loads(done.stdout)
            megabytes = 8 * {"full": d + d * (d + 1) // 2, "diagonal": 2 * d}[family] / 1e6
            found.append({"family": family, "d": d, "vector": megabytes, "site": ends["s0"], "server": ends["server"]})
            print(found[-1])
    return found


SERVER = """
import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation.dispatch import Plan
from bayesadmm_np.federation.flower import server_app


def plan(config):
    return Plan(
        GLMTask(
            ba.methods.PVI(gamma=config["gamma"]),
            lambda d: ba.families.FullGaussian(np.zeros(d), 1.0),
            rounds=config["rounds"],
        ),
        config["run-folder"],
        config["sites"],
        participation=config["participation"],
    )


app = server_app(plan)
"""

CLIENT = """
import numpy as np
from flwr.clientapp import ClientApp

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMData, Site
from bayesadmm_np.federation.flower import client_app


def load(folder, spec):
    rng = np.random.default_rng(int(folder.name))
    X = np.column_stack([rng.normal(size=(30, 4)), np.ones(30)])
    y = rng.random(30) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5, 0.0, 0.3]))
    site = Site(f"s{int(folder.name):04d}", GLMData(ba.losses.Logistic(X, y.astype(int))))
    return site, site.hello()


real = client_app(load)
app = ClientApp()


def simulated(message, context):
    context.node_config["site"] = f"{context.run_config['state-folder']}/{context.node_config['partition-id']}"
    context.node_config["state-dir"] = str(context.run_config["state-folder"])
    return real(message, context)


app.train()(simulated)
app.query()(simulated)
"""

PROJECT = """
[project]
name = "scale"
version = "0.1.0"
description = "Sites of 30 rows."
license = "BSD-3-Clause"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.flwr.app]
publisher = "bayesadmm"
[tool.flwr.app.components]
serverapp = "scale.server_app:app"
clientapp = "scale.client_app:app"
[tool.flwr.app.config]
run-folder = "{folder}/run"
state-folder = "{folder}/state"
sites = {sites}
rounds = {rounds}
participation = {participation}
gamma = 1.0
"""


def measure_simulation(sites, rounds, participation):
    folder = Path(tempfile.mkdtemp())
    package = folder / "app" / "scale"
    package.mkdir(parents=True)
    (folder / "state").mkdir()
    values = {"folder": folder, "sites": sites, "rounds": rounds, "participation": participation}
    (package.parent / "pyproject.toml").write_text(PROJECT.format(**values))
    (package / "__init__.py").write_text("")
    (package / "server_app.py").write_text(SERVER)
    (package / "client_app.py").write_text(CLIENT)
    port = 39091 + os.getpid() % 1000
    environment = {
        **os.environ,
        **{"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        **{"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OPENBLAS_NUM_THREADS": "1"},
        **{"FLWR_HOME": str(folder / "home"), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port)},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
    )
    federation = (
        f"num-supernodes={sites} client-resources-num-cpus=1 client-resources-num-gpus=0.0 init-args-num-cpus=2"
    )
    command = ["flwr", "run", str(folder / "app"), "local", "--stream", "--federation-config", federation]
    began = time.time()
    try:
        with open(folder / "log", "w") as log:
            run = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            run.wait(1500)
    finally:
        # the engine leaves a superlink of its own behind
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            pid, _, arguments = line.strip().partition(" ")
            if str(folder) in arguments or f"--port {port}" in arguments:
                os.kill(int(pid), signal.SIGTERM)
    lines = (folder / "run" / "progress.jsonl").read_text().splitlines()
    server = load_server(folder / "run")
    sizes = [path.stat().st_size for path in (folder / "state").glob("[!f]*.npz")]
    found = {
        "sites": sites,
        "participation": participation,
        "rounds": server.state.round,
        "answers": [len(json.loads(line)["answered"]) for line in lines],
        "seconds": time.time() - began,
        "status": None if server.outcome is None else server.outcome.status.name,
        "broadcast": len(server.broadcast().to_bytes()),
        "checkpoint": (folder / "run" / "state.npz").stat().st_size,
        "site_file": max(sizes),
        "distance_to_pooled": distance(server, sites),
    }
    print(found)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def distance(server, n_sites):
    """Largest distance of a coefficient to the pooled fit, in its standard deviation."""
    space: dict = {}
    exec(CLIENT.split("real =")[0].replace("from flwr.clientapp import ClientApp\n", ""), space)
    losses = [space["load"](Path(str(k)), None)[0].loss for k in range(n_sites)]
    pooled = ba.solve_pooled(losses, ba.families.FullGaussian(np.zeros(5), 1.0)).posterior
    return float(np.abs((server.state.q_g.mean - pooled.mean) / np.sqrt(pooled.variance)).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bytes")
    commands.add_parser("memory")
    commands.add_parser("server")
    simulation = commands.add_parser("simulation")
    simulation.add_argument("--sites", type=int, default=100)
    simulation.add_argument("--rounds", type=int, default=20)
    simulation.add_argument("--participation", type=float, default=0.05)
    one = commands.add_parser("role")
    one.add_argument("rest", nargs=4)
    options = parser.parse_args()
    if options.command == "role":
        name, family, d, folder = options.rest
        role(name, family, int(d), Path(folder))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.command == "simulation":
        key = f"simulation of {options.sites}"
        results[key] = measure_simulation(options.sites, options.rounds, options.participation)
    else:
        measure = {"bytes": measure_bytes, "memory": measure_memory, "server": measure_server}[options.command]
        results[options.command] = measure()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
