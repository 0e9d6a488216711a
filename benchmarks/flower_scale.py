"""What a federation costs, by files or on Flower: bytes of a round, memory of its two ends, seconds of the server.

    python benchmarks/flower_scale.py bytes
    python benchmarks/flower_scale.py memory                                  # minutes, and 6 GB
    python benchmarks/flower_scale.py server

Results are added to `benchmarks/results/flower_scale.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    Coordinator,
    DisclosureRules,
    GLMData,
    GLMTask,
    Message,
    Site,
    step_server,
    step_site,
)

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
    """Return a server, and its sites."""
    sites = [Site(f"s{k}", GLMData(loss(d, k)), rules=DisclosureRules.none()) for k in range(N_SITES)]
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
                    "down": len(after.to_bytes()) - len(json.dumps(after.header["spec"]["features"])),
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
        site = Site(name, GLMData(loss(d, int(name[1:]))), rules=DisclosureRules.none())
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("bytes")
    commands.add_parser("memory")
    commands.add_parser("server")
    one = commands.add_parser("role")
    one.add_argument("rest", nargs=4)
    options = parser.parse_args()
    if options.command == "role":
        name, family, d, folder = options.rest
        role(name, family, int(d), Path(folder))
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    measure = {"bytes": measure_bytes, "memory": measure_memory, "server": measure_server}[options.command]
    results[options.command] = measure()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
