"""Make the goldens of the tree as it stands: `python tests/goldens/make.py [core torch cli]`.

Before code is moved, make them, and while it moves `GOLDENS=bits pytest tests/goldens` compares to the last bit on the
same machine; without the switch numbers have the tolerance that is stated in test_goldens.py.

The committed answers are those of b93a714, except for "fit, diagonal", where the intercept's standard error was wrong
and the method of who chose none has changed,
and "site step, end", whose message is not there: exit code 2, as for every file that is missing. Those of the commands
were made anew when maximum likelihood became the default of `fit`, and the count of rounds that of exchanges,
and again when `fit` took columns as they are: the bound on the evidence without a prior is now in the columns' units,
and families that depend on the units get scaled columns by a formula.
Networks' "BCM" is of one round since `run` there ends after a method's `max_rounds`; "two samples" no longer has
squared gradients, which are gone.
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
