"""The scripts of benchmarks/papers, as modules."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from papers import files, networks, personal, runs  # noqa: F401
from papers.__main__ import main  # noqa: F401
from papers.measures import auroc, reliability  # noqa: F401
