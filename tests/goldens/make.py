"""Make the goldens of a tree: `python tests/goldens/make.py [core torch cli files flower]`.

The committed data are of commit b93a714. They were made by this folder as it was at af8c529, whose adaptor knows that
tree's names:

    git worktree add --detach /tmp/tree b93a714 && git worktree add --detach /tmp/goldens af8c529
    cd /tmp/tree && OMP_NUM_THREADS=1 PYTHONPATH=. python /tmp/goldens/tests/goldens/make.py
"""

import os
import sys
import time

for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import cases  # noqa: E402
import records  # noqa: E402


def main(areas):
    for area in areas or cases.AREAS:
        began = time.perf_counter()
        made = dict(cases.AREAS[area]())
        records.save(area, made)
        print(f"{area}: {len(made)} cases in {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
