"""Guarded rows on thousands of small problems that are hard on a guard: how many converge, and every broken promise.

    python benchmarks/guard.py                            # all 3000; an hour or two on two cores
    python benchmarks/guard.py --count 300 --processes 1
    python benchmarks/guard.py --only 17 --only 23        # some problems, told in full
    python benchmarks/guard.py --table                    # print what is finished

Problems, optimum and bars are those of tests/oracles/guard_{problems,optimum,judge}.py. Finished problems are kept in a
file (by default build/guard.json) and not run again; give another file, or --fresh, after the guard has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import numpy as np
from common import machine, write_json
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.guard_judge import NAMES, verdicts
from oracles.guard_problems import COUNT, problem

FILE = Path(__file__).parents[1] / "build" / "guard.json"
EVERY = 20.0
"""Seconds between two writings of the file."""


def judged(index: int, names: tuple[str, ...]) -> dict[str, Any]:
    """One problem under all methods, as plain values."""
    one, began = problem(index), process_time()
    rows = {verdict.name: verdict.record for verdict in verdicts(one, names)}
    return {
        "index": index,
        "text": str(one),
        "kind": one.kind,
        "family": one.family,
        "away": one.is_away,
        "seconds": round(process_time() - began, 2),
        "methods": rows,
    }


def share(rows: list[dict[str, Any]]) -> str:
    """How many converged of how many."""
    return f"{sum(row['status'] == 'CONVERGED' for row in rows)} of {len(rows)}"


def near(rows: list[dict[str, Any]]) -> str:
    """How many ended within 1e-3 of F's minimum, of those whose minimum is known."""
    known = [row for row in rows if not row["unknown"]]
    return f"{sum(bool(row['gap'] <= 1e-3) for row in known)} of {len(known)}"


def rounds(rows: list[dict[str, Any]]) -> str:
    """Median and 90 % quantile of the rounds of those that converged."""
    found = [row["rounds"] for row in rows if row["status"] == "CONVERGED"]
    return "–" if not found else "/".join(f"{np.quantile(found, q, method='higher'):.0f}" for q in (0.5, 0.9))


def table(found: list[dict[str, Any]], names: tuple[str, ...]) -> str:
    """The share that converges, the rounds, and the broken promises by kind."""
    lines = [
        "| guarded | converged: all | all present | away | near | rounds, median/p90: present; away | faults |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        pairs = [(one, one["methods"][name]) for one in found if name in one["methods"]]
        pairs = [(one, row) for one, row in pairs if not row["refused"]]
        rows = [row for _, row in pairs]
        here, away = ([row for one, row in pairs if one["away"] is absent] for absent in (False, True))
        kinds = Counter(bar for row in rows for bar in row["faults"])
        told = ", ".join(f"{bar} {count}" for bar, count in kinds.most_common()) or "none"
        times = f"{rounds(here)}; {rounds(away)}"
        lines.append(f"| {name} | {share(rows)} | {share(here)} | {share(away)} | {near(rows)} | {times} | {told} |")
    reasons = Counter(row["unknown"] for one in found for row in one["methods"].values() if row["unknown"])
    lines += [f"{count} runs without a gap:{reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--only", type=int, action="append", help="indices; nothing is kept")
    parser.add_argument("--methods", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after as many")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--fresh", action="store_true", help="forget what is finished")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--faults", action="store_true", help="print every fault beside the table")
    given = parser.parse_args()
    names = tuple(name for name in NAMES if name in given.methods)
    if given.only:
        for index in given.only:
            for verdict in verdicts(problem(index), names):
                print(verdict, flush=True)
        return
    content: dict[str, Any] = {"machine": machine(), "problems": {}}
    if given.file.is_file() and not given.fresh:
        content = json.loads(given.file.read_text())
    done = content["problems"]
    asked = range(given.first, given.first + given.count)
    # a problem is finished when it was run with all these methods; one that does not fit is among those asked for
    missing = [i for i in asked if not set(names) <= set(done.get(str(i), {}).get("asked", ()))]
    ends, written = monotonic() + 60.0 * given.minutes, monotonic()
    if missing and not given.table:
        for library in ("OPENBLAS", "OMP", "MKL"):  # the new processes read these when they import the libraries
            os.environ[f"{library}_NUM_THREADS"] = "1"
        with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
            run = partial(judged, names=names)
            for found in tqdm(pool.map(run, missing), total=len(missing), unit="problem", mininterval=10):
                last = done.get(str(found["index"]), {"methods": {}, "asked": []})
                found["methods"] = last["methods"] | found["methods"]
                found["asked"] = sorted({*last["asked"], *names})
                done[str(found["index"])] = found
                if monotonic() > written + EVERY:
                    write_json(given.file, content)
                    written = monotonic()
                if monotonic() > ends:
                    pool.shutdown(wait=False, cancel_futures=True)
                    break
        write_json(given.file, content)
    found = [done[str(i)] for i in asked if str(i) in done]
    print(f"{len(found)} problems, {sum(one['seconds'] for one in found):.0f} s of processor time\n")
    print(table(found, names))
    faulty = [row["text"] for one in found for row in one["methods"].values() if row["faults"]]
    print(f"\n{len(faulty)} faults" + ("" if given.faults else "; --faults prints them"))
    if given.faults:
        print("\n".join(faulty))
    sys.exit(bool(faulty))


if __name__ == "__main__":
    main()
