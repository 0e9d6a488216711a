"""Fits of R on public data, over four unequal sites: written once by `menu_NAME.R` into `menu_NAME.json`."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent


def read(name):
    """Return the cases of a file by name."""
    found = json.loads((HERE / f"menu_{name}.json").read_text())
    return {key: case for key, case in found.items() if key != "versions"}


def table(case):
    """Return the rows of a case with R's levels, the target's in order."""
    found, target = pd.DataFrame(case["data"]), case["formula"].split(" ~")[0]
    for name, levels in case.get("levels", {}).items():
        found[name] = pd.Categorical(found[name].astype(str), levels, ordered=name == target)
    return found


def apart(found, case, errors=None):
    """Return the largest difference of coefficients in R's standard errors, and that of standard errors."""
    coef, std_err = np.array(case["coef"]), np.array(case["std_err"])
    far = np.abs((np.asarray(found) - coef) / std_err).max()
    return far if errors is None else (far, np.abs(np.asarray(errors) / std_err - 1.0).max())
