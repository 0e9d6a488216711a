"""Bring `docs/flagship.md` up to date with `figures/heart_disease.json` and `figures/credit_approval.json`.

Run it as ``python docs/flagship.py`` after ``bayesadmm reproduce --only heart --only credit``. It replaces the tables
between the page's markers, and copies the two figures beside the page.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from bayesadmm_np.demos import credit_approval, heart_disease

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "flagship.md"
DEMOS = {"heart": heart_disease, "credit": credit_approval}
TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n\n)(.*?)(\n\n<!-- end -->)", flags=re.DOTALL)


def tables() -> dict[str, str]:
    """Return every table by the name of its marker."""
    found = {}
    for name, demo in DEMOS.items():
        results = json.loads((ROOT / "figures" / f"{demo.DEMO.name}.json").read_text(encoding="utf-8"))
        found |= demo.tables(results["figures"][name]["numbers"])
    return found


def filled(page: str, known: dict[str, str]) -> str:
    """Return the page with its tables replaced."""
    return TABLE.sub(lambda old: old.group(1) + known[old.group(2)] + old.group(4), page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
    for demo in DEMOS.values():
        shutil.copy(ROOT / "figures" / f"{demo.DEMO.name}.png", PAGE.parent / "figures")
