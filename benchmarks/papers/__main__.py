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
    given = parser.parse_args(arguments)
    results = run_file(Experiment.read(given.file, given.set), given.out or given.file.with_suffix(""))
    for row in results["table"]:
        scores = f"{100 * row['accuracy_mean']:.1f} ± {100 * row['accuracy_sd']:.1f} %, NLL {row['nll_mean']:.3f}"
        print(f"{row['method']}, round {row['round']}: {scores} ({row['seeds_done']} of {row['seeds']} seeds)")


if __name__ == "__main__":
    main()
