"""Runs by files for the tests, as their users type them: commands in this process, messages carried by their paths."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bayesadmm_np import cli
from oracles.overrides import OPTIONS

SITES = ("east", "north", "west")
ROWS = {"east": 40, "north": 25, "west": 15}


def commands(capsys, monkeypatch):
    """Return a function that runs a command and returns exit code, standard output and standard error."""

    def call(text):
        monkeypatch.setattr(sys, "argv", ["bayesadmm", *text.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call


def write_tables():
    """Write three sites' rows into this folder, and return all of them with their site.

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
        table.to_csv(f"{name}.csv", index=False)
        tables.append(table.assign(site=name))
    return pd.concat(tables)


def play(call, site, server="", sites=SITES, answering=None):
    """Do a whole run; return the last exit code, what it said, and the names of the messages that were sent.

    `answering(path, names)` returns the sites that answer a message; the others are left out of the step.
    """
    for name in sites:
        code, _, err = call(f"site init {name} --data {name}.csv --name {name} {OPTIONS} {site}")
        assert code == 0, err
    hellos = " ".join(f"{name}/hello.npz" for name in sites)
    code, out, err = call(f"server init run {hellos} {server} --json")
    assert code == 0, err
    path, sent = json.loads(out)["written"], []
    while not path.endswith("final.npz"):
        sent.append(Path(path).name)
        there = sites if answering is None else answering(path, sites)
        replies = []
        for name in there:
            code, out, err = call(f"site step {name} {path} --json")
            assert code == 0, err
            replies.append(json.loads(out)["written"])
        partial = "" if len(there) == len(sites) else "--partial"
        code, out, err = call(f"server step run {' '.join(replies)} {partial} --json")
        assert out, err
        path = json.loads(out)["written"]
    return code, json.loads(out), sent
