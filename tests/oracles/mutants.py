"""Mutants: one line of the library changed, and the tests that must notice.

    python tests/oracles/mutants.py              # all of them: the score
    python tests/oracles/mutants.py distance     # those whose name has this word

A mutant runs in a copy of the package, so the working tree stays as it is. Tools that make mutants by themselves
(mutmut, cosmic-ray) make thousands here, most of tolerances and of messages. These are lines that a reader would get
wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

MUTANTS = {
    "certificate: a solve for half of one": (
        "splitting/certificate.py",
        "newton.half_solve(gradient)",
        "newton.solve(gradient)",
        "tests/splitting/test_distance.py -k fixed_precision",
    ),
    "certificate: d for its root": (
        "splitting/certificate.py",
        "newton.half_solve(gradient)) / np.sqrt(self.q.dim))",
        "newton.half_solve(gradient)) / self.q.dim)",
        "tests/splitting/test_distance.py -k fixed_precision",
    ),
    "distance: bend without its two": (
        "splitting/distance.py",
        "if 2.0 * bend * length > floor**2",
        "if bend * length > floor**2",
        "tests/splitting/test_distance.py -k ball",
    ),
    "distance: largest is one": (
        "splitting/distance.py",
        "largest = 1.0 + self.excess",
        "largest = 1.0",
        "tests/splitting/test_distance.py -k ball",
    ),
    "distance: cross is the reach": (
        "splitting/distance.py",
        "cross = reach * float(np.sqrt(largest))",
        "cross = reach",
        "tests/splitting/test_distance.py -k ball",
    ),
    "distance: no second order in the slack": (
        "splitting/distance.py",
        " + 0.5 * data * radius**2 + self.noise",
        " + self.noise",
        "tests/splitting/test_distance.py -k ball",
    ),
    "total: the value at the mean": (
        "losses/total.py",
        "part.value if not rule.is_delta else part.value_at_mean for",
        "part.value_at_mean for",
        "tests/losses/test_expectations.py -k total",
    ),
    "newton: nothing escapes": (
        "clients/newton.py",
        "return q.kl(anchor) > ESCAPED * (10.0 + anchor.dim)",
        "return False",
        "tests/splitting/test_failures.py tests/clients",
    ),
    "newton: the site left out of the product": (
        "clients/newton.py",
        "return result if site is None else result - site.multiply(vector)",
        "return result",
        "tests/clients tests/splitting/test_failures.py",
    ),
    "worker: a warm start of ill-posed problems": (
        "splitting/worker.py",
        "warm = start is not None and problem.is_well_posed",
        "warm = start is not None",
        "tests/splitting/test_failures.py -k warm",
    ),
    "descent: one pair of coordinates": (
        "clients/descent.py",
        "else 3 - power",
        "else power",
        "tests/clients -k valley",
    ),
    "descent: no step beyond Newton's": (
        "clients/descent.py",
        "0.5 * self.slope <= slope < 0.0",
        "slope < 0.0",
        "tests/clients/test_hostile_problems.py",
    ),
    "tensors in the descent: no second derivative of the factor": (
        "clients/descent.py",
        "shape += np.stack([q.factor.symmetrised(excess, unit) for unit in np.eye(len(kept))], axis=1)",
        "pass",
        "tests/clients -k hessian",
    ),
    "theory: the natural gradient not transposed": (
        "theory/updates.py",
        "field_inverse(jacobian).T",
        "field_inverse(jacobian)",
        "tests/theory/test_theory.py",
    ),
    "precision: covariance not mirrored": (
        "families/precision.py",
        "return frozen(symmetric_from_lower(inverse))",
        "return frozen(inverse)",
        "tests/families",
    ),
}

SURVIVORS = {
    "descent: no step beyond Newton's",
    "newton: nothing escapes",
    "newton: the site left out of the product",
    "theory: the natural gradient not transposed",
}
"""Mutants that no test notices yet."""


def survives(mutant: str) -> bool:
    """Whether the tests of a mutant pass in a copy of the package with it."""
    file, old, new, tests = MUTANTS[mutant]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "bayesadmm_np", Path(folder, "bayesadmm_np"), symlinks=True)
        shutil.copytree(ROOT / "tests", Path(folder, "tests"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, "bayesadmm_np", file)
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{mutant}: {old!r} stands {text.count(old)} times in {file}, not once.")
        path.write_text(text.replace(old, new))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            *tests.split(),
        ]
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode not in (0, 1):
            raise RuntimeError(f"{mutant}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
        return ended.returncode == 0


def main() -> int:
    """Print each mutant's fate and the score; the exit code is the number of survivors."""
    words = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant for word in words)]
    alive = []
    for mutant in chosen:
        alive += [mutant] if survives(mutant) else []
        print(f"{'SURVIVES' if mutant in alive else 'killed':<9} {mutant}", flush=True)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} killed")
    return len(alive)


if __name__ == "__main__":
    sys.exit(main())
