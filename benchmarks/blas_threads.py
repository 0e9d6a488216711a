"""Time with one BLAS thread over time with all, by columns, alternating in one process.

    python benchmarks/blas_threads.py              on an idle machine
    python benchmarks/blas_threads.py --busy 2     beside two processes that compute

Each line is a posterior of three clients of 1000 rows, or a QR of 1000 rows. `SMALL` of `bayesadmm_np/_threads.py` is
the size up to which one thread is never much slower.
"""

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np import _threads


def seconds(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def cases(d):
    """Yield name and work, for d columns."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, d)) / np.sqrt(d)
    y = (rng.random(3000) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(int)
    clients = [ba.losses.Logistic(X[k::3], y[k::3]) for k in range(3)]
    prior = ba.families.FullGaussian(np.zeros(d), 1.0)
    yield "posterior", lambda: ba.run(ba.methods.PVI(), clients, prior, rounds=2)
    yield "QR", lambda: np.linalg.qr(X[::3], mode="r")


@contextmanager
def beside(busy):
    """Let other processes compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for other in others:
            other.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--columns", type=int, nargs="*", default=[5, 20, 50, 100, 200, 300, 500])
    options = parser.parse_args()
    _threads.SMALL = 0  # a run keeps the threads that it finds
    print("columns  work       all (ms)  one (ms)  one / all, median  worst all  worst one")
    with beside(options.busy):
        for d in options.columns:
            for name, work in cases(d):
                work()
                times = []
                for _ in range(options.turns):
                    everyone = seconds(work)
                    _threads.SMALL = d
                    with _threads.one_thread_if_small(d):
                        _threads.SMALL = 0
                        times.append((everyone, seconds(work)))
                both = 1e3 * np.array(times)
                (many, one), (worst, worst_one) = np.median(both, axis=0), both.max(axis=0)
                ratio = np.median(both[:, 1] / both[:, 0])
                print(
                    f"{d:7d}  {name:9s} {many:9.2f} {one:9.2f} {ratio:18.2f} {worst:10.1f} {worst_one:10.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
