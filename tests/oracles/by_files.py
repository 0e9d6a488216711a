"""Runs by files for the tests, as their users type them: commands in this process, messages carried by their paths."""

import json
from pathlib import Path

import numpy as np

from oracles.overrides import OPTIONS

SITES = ("east", "north", "west")
ROWS = {"east": 40, "north": 25, "west": 15}


def write_tables():
    """Write three sites' rows into this folder, and return all of them with their site."""
    whole = tables_in_memory()
    for name, table in whole.groupby("site"):
        table.drop(columns="site").to_csv(f"{name}.csv", index=False)
    return whole


def tables_in_memory():
    """Return three sites' rows with their site.

    The column `twice` is 1 + 2 dose, `one` is constant, and `marker` separates `died`.
    """
    import pandas as pd

    rng = np.random.default_rng(0)
    tables = []
    for name, n in ROWS.items():
        age, dose = rng.normal(60.0, 10.0, n), rng.normal(size=n)
        f = 0.08 * (age - 60.0) - dose
        died = rng.random(n) < 1.0 / (1.0 + np.exp(-f))
        table = pd.DataFrame(
            {
                "age": age / 60.0,
                "dose": dose,
                "twice": 1.0 + 2.0 * dose,
                "one": 3.0,
                "marker": died.astype(float),
                "died": np.where(died, "yes", "no"),
                "ward": rng.choice(["a", "b", "c"], n),
                "visits": rng.poisson(np.exp(0.3 * dose)),
                "pressure": 120.0 + f + rng.normal(size=n),
                "w": rng.integers(1, 3, n),
            }
        )
        tables.append(table.assign(site=name))
    return pd.concat(tables)


def introduce(call, options, sites=SITES):
    """Let sites say hello; return the paths of what they said."""
    for name in sites:
        code, _, err = call(f"site init {name} --data {name}.csv --name {name} {options}")
        assert code == 0, err
    return " ".join(f"{name}/hello.npz" for name in sites)


def play(call, site, server="", sites=SITES):
    """Do a whole run; return the last exit code, what it said, and the names of the messages that were sent."""
    hellos = introduce(call, f"{OPTIONS} {site}", sites)
    code, out, err = call(f"server init run {hellos} {server} --json")
    assert code == 0, err
    path, sent = json.loads(out)["written"], []
    while not path.endswith("final.npz"):
        sent.append(Path(path).name)
        replies = []
        for name in sites:
            code, out, err = call(f"site step {name} {path} --json")
            assert code == 0, err
            replies.append(json.loads(out)["written"])
        code, out, err = call(f"server step run {' '.join(replies)} --json")
        assert out, err
        path = json.loads(out)["written"]
    return code, json.loads(out), sent


def run(call, site, server="", names=SITES):
    """Do a run by files in one command; return its exit code, its JSON and standard error."""
    for name in names:
        code, out, err = call(f"site init {name} --data {name}.csv --name {name} {OPTIONS} {site}")
        if code:
            return code, None, err
    code, out, err = call(f"server run run {' '.join(names)} {server} --no-progress --json")
    return code, json.loads(out) if out else None, err


def leaves(plain, apart, place=""):
    """Yield every value of a table with its place, but for what stands under the names of `apart`."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list | tuple) else None
    if items is None:
        yield place, plain
    for key, value in items or ():
        if place or key not in apart:
            yield from leaves(value, apart, f"{place}.{key}")


def differences(one, other, apart, rel=0.0):
    """Return the places at which two tables differ by more than rounding, with what stands there."""
    a, b = dict(leaves(one, apart)), dict(leaves(other, apart))
    assert a.keys() == b.keys()

    def differ(x, y):
        if isinstance(x, float) and isinstance(y, float):
            return not abs(x - y) <= rel * max(abs(x), abs(y))
        return x != y

    return [(place, a[place], b[place]) for place in a if differ(a[place], b[place])]
