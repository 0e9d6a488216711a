"""Run the methods of an experiment file with all its seeds; see docs/results.md.

python -m benchmarks.papers benchmarks/experiments/fashion_homogeneous.toml --out runs/fashion_homogeneous
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .files import Experiment
from .runs import run_file


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="folder of the results; default beside the file, with its name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as if it stood in the file")
    parser.add_argument("--only", nargs="*", default=[], metavar="LABEL[|SEED]", help="methods, or runs, to do alone")
    parser.add_argument("--done", action="store_true", help="write the results of the runs that are done; run nothing")
    given = parser.parse_args(arguments)
    experiment, out = Experiment.read(given.file, given.set), given.out or given.file.with_suffix("")
    results = run_file(experiment, out, given.only, not given.done)
    for row in results["table"]:
        scores = f"{100 * row['accuracy_mean']:.1f} ± {100 * row['accuracy_sd']:.1f} %, NLL {row['nll_mean']:.3f}"
        seeds = f"{row['seeds_done']} of {row['seeds']} seeds, {row['seeds_failed']} failed"
        print(f"{row['method']}, round {row['round']}: {scores} ({seeds})")


if __name__ == "__main__":
    main()
