"""Models beside their reference in R: results/menu.json, and the table of docs/models.md.

python benchmarks/menu.py            # fits all cases over four unequal sites, some ten seconds
python benchmarks/menu.py --write    # the table alone, from the results

Cases and R's numbers are those of the tests (tests/oracles/menu_*.json, which the R scripts beside them wrote).
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import RESULTS, write_json

from bayesadmm_np.estimators import FederatedGLM

ROOT = Path(__file__).parents[1]
ORACLES = ROOT / "tests" / "oracles"
KEPT, PAGE = RESULTS / "menu.json", ROOT / "docs" / "models.md"
BEGIN, END = "<!-- made by benchmarks/menu.py -->", "<!-- end -->"
NAMES = {
    "gamma": "clotting",
    "inverse Gaussian": "clotting",
    **dict.fromkeys(("gamma, log", "gamma, identity", "inverse Gaussian, log", "Gaussian, log"), "trees"),
    **dict.fromkeys(("probit", "complementary log-log", "log-binomial"), "birthwt"),
    **dict.fromkeys(("probit of trials", "cloglog of trials", "quasi-binomial"), "budworm"),
    "Poisson, identity": "warpbreaks",
    "Poisson, root": "quine",
}
"""Data of the cases whose names are those of the kind."""
REFERENCES = {
    "gamma": "`glm`, Gamma",
    "inverse_gaussian": "`glm`, inverse.gaussian",
    "gaussian": "`glm`, gaussian",
    "logistic": "`glm`, binomial",
    "probit": "`glm`, binomial",
    "cloglog": "`glm`, binomial",
    "binomial": "`glm`, binomial",
    "poisson": "`glm`, poisson",
    "negative_binomial": "`MASS::glm.nb`",
    "ordinal": "`ordinal::clm`, `polr`",
    "cox": "`survival::coxph`",
    "piecewise_exponential": "`glm` on `survSplit`",
    "mixed_linear": "`lme4::lmer`",
    "mixed_logistic": "`lme4::glmer`",
}


def read(name: str) -> dict[str, Any]:
    """Return the cases of a file of R's numbers."""
    found: dict[str, Any] = json.loads((ORACLES / f"menu_{name}.json").read_text())
    return found


def frame(case: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of a case, with levels in R's order."""
    rows, target = pd.DataFrame(case["data"]), case["formula"].split(" ~")[0]
    for name, levels in case.get("levels", {}).items():
        rows[name] = pd.Categorical(rows[name].astype(str), levels, ordered=name == target)
    return rows


def cases() -> list[dict[str, Any]]:
    """Return every fit: group, name of the data, kind, formula, rows, and R's estimates."""
    found = []
    for group in ("kinds", "ordinal", "survival"):
        for name, case in read(group).items():
            if name != "versions":
                quasi = case["kind"] == "quasi"
                kind = "logistic" if quasi else case["kind"].replace("binomial(", "logistic(")
                kind = case["kind"] if case["kind"] == "negative_binomial" else kind
                given = {"weights": case.get("weights"), "trials": case.get("trials")}
                found.append({**case, "group": group, "name": name, "rows": frame(case), "kind": kind, **given})
                found[-1]["covariance"] = "quasi" if quasi else "model"
    mixed = read("mixed")
    for name, case in mixed["fits"].items():
        rows = pd.DataFrame(mixed["tables"][case["data"]])
        codes = pd.factorize(rows[case["group"]])[0]
        order = np.random.default_rng(5).permutation(codes.max() + 1)[codes]
        rows["site"] = np.array(list("ABCD"))[np.searchsorted([0.1, 0.3, 0.6], (order + 0.5) / (codes.max() + 1))]
        kind = "mixed_linear" + ("" if case.get("reml", True) else "(reml=0)")
        if case["kind"] == "logistic":
            kind = f"mixed_logistic(nodes={case['nodes']})"
            if case.get("events"):
                rows[case["events"]] = rows[case["events"]] / rows[case["trials"]]
                rows["period"] = "p" + rows["period"]
        formula = f"{case['formula']} + (1 | {case['group']})"
        weights = case["trials"] if case.get("events") else None
        found.append({**case, "group": "mixed", "name": name, "rows": rows, "kind": kind, "formula": formula})
        found[-1] |= {"weights": weights, "trials": None, "covariance": "model"}
    return found


def fit(case: dict[str, Any]) -> dict[str, Any]:
    """Return how far a fit is from R's, and its exchanges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a singular fit, which the reference has too
        model = FederatedGLM.from_formula(
            case["formula"], case["rows"], "site", kind=case["kind"], weights=case["weights"], trials=case["trials"]
        )
    rows = model.summary(covariance=case["covariance"]).rows
    own = len(model.auxiliary_)
    listed = [row for row in rows if row.is_auxiliary][: len(case["coef"]) - len(rows) + own or None]
    listed = listed if own and len(case["coef"]) > len(rows) - own else []
    order = [*listed, *(r for r in rows if r.is_intercept), *(r for r in rows if r.has_ratio)]
    coef, std_err = np.array(case["coef"]), np.array(case["std_err"])
    found = np.array([[row.coef, row.std_err] for row in order], dtype=np.float64)
    return {
        "group": case["group"],
        "data": case["name"],
        "kind": case["kind"],
        "formula": " ".join(case["formula"].split()),
        "rows": len(case["rows"]),
        "coefficients": float(np.abs((found[:, 0] - coef) / std_err).max()),
        "standard_errors": float(np.abs(found[:, 1] / std_err - 1.0).max()),
        "exchanges": model.n_rounds_,
    }


def table(results: list[dict[str, Any]]) -> str:
    """Return the table of the page: a line a kind, with the largest difference of its cases."""
    lines = [
        "| `--loss` | data of R | reference | coefficients, in SE | SE, relative | exchanges |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one["kind"] for one in results):
        own = [one for one in results if one["kind"] == kind]
        data = ", ".join(dict.fromkeys(NAMES.get(one["data"]) or re.split(",? ", one["data"])[0] for one in own))
        far, wide = (max(one[name] for one in own) for name in ("coefficients", "standard_errors"))
        least, most = (f(one["exchanges"] for one in own) for f in (min, max))
        each = str(least) if least == most else f"{least} to {most}"
        lines.append(f"| `{kind}` | {data} | {REFERENCES[kind.split('(')[0]]} | {far:.0e} | {wide:.0e} | {each} |")
    return "\n".join(lines)


def main() -> None:
    """Fit the cases, and write results and table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table alone, from the results")
    if not parser.parse_args().write:
        versions = {name: read(name).get("versions", {}) for name in ("kinds", "ordinal", "survival", "answers")}
        write_json(KEPT, {"versions": versions, "fits": [fit(case) for case in cases()]})
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    made = table(json.loads(KEPT.read_text())["fits"])
    PAGE.write_text(f"{before}\n\n{made}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
