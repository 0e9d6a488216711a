"""The names behind the goldens: who moves a name changes it here, and nowhere else in this folder.

Everything returns plain Python and NumPy. Helpers of other tests are looked up in the tree whose package is imported,
so that this folder can make the goldens of an older tree: see make.py.
"""

import contextlib
import io
import os
import sys
from pathlib import Path

import numpy as np

import bayesadmm_np as ba

TESTS = str(Path(ba.__file__).parents[1] / "tests")
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

from oracles import problems  # noqa: E402

prior, team = problems.prior, problems.team
FAMILIES = tuple(problems.PRIORS)
LOSSES = tuple(problems.FEATURES)


# ----------------------------------------------------------------------------------------------------
# The core
# ----------------------------------------------------------------------------------------------------


def packed(natural):
    return natural.to_vector()


def packed_all(naturals):
    return np.array([packed(natural) for natural in naturals])


def state_of(state, servers):
    """λ_g after each round, and the duals and λ_k after the last."""
    return {
        "servers": np.array([packed(natural) for natural in servers]).reshape(len(servers), -1),
        "duals": packed_all(state.sites),
        "clients": packed_all(state.naturals),
    }


def certificate_of(certificate):
    found = {"certificate": np.array([*edges_of(certificate), certificate.pooled])}
    if certificate.distance is not None:
        distance = certificate.distance
        found["distance"] = np.array([distance.mahalanobis, distance.sd_units, *distance.per_coefficient])
        found["rigorous"] = bool(distance.rigorous)
    return found


def edges_of(record):
    edges = record.edges
    return edges.broadcast, edges.natural_gradient, edges.gather


# ----------------------------------------------------------------------------------------------------
# Networks
# ----------------------------------------------------------------------------------------------------

TENSORS = ("mean", "precision", "site_linear", "site_precision", "client_linear", "client_precision")


def network_state(state):
    found = {name: np.asarray(getattr(state, name).detach().double().cpu()) for name in TENSORS}
    found["objective"] = np.array([state.start_objective, *(record.objective for record in state.history)])
    found["edges"] = np.array([[r.edges.broadcast, r.edges.gather] for r in state.history]).reshape(-1, 2)
    found["bytes"] = [[record.bytes_down, record.bytes_up] for record in state.history]
    found["present"] = [[list(record.present), list(record.dropped)] for record in state.history]
    if state.memory is not None:
        memory = state.memory
        found["points"] = np.asarray(memory.X.double())
        found["soft labels"] = np.asarray(memory.soft.double())
        found["owners"] = memory.owner.tolist()
    return found


# ----------------------------------------------------------------------------------------------------
# The command line
# ----------------------------------------------------------------------------------------------------


def command(*arguments, folder):
    """Return exit code and output of a command that runs in this process and in a folder."""
    from bayesadmm_np import cli

    before = sys.argv, Path.cwd()
    out = io.StringIO()
    code = 0
    try:
        os.chdir(folder)
        # a step took what had come, and waits for all now
        partial = ["--partial"] if arguments[:2] == ("server", "step") and len(arguments) == 5 else []
        sys.argv = ["bayesadmm", *map(str, arguments), *partial]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            try:
                cli.main()
            except SystemExit as stopped:
                code = stopped.code
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
    return (0 if code is None else code), out.getvalue()
