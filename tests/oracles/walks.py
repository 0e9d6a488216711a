"""Files and rooms of the package that hold a value on its way: `python tests/oracles/walks.py [checkout] [-v]`.

While commands run, every call and return of a function of the package is looked at. A file counts when one of its
functions has the value in a local variable, parameters and `self` included. A room is a folder of the package, or a
file beside the folders. The values are

    rho        the number that was typed
    X          an array or frame with a column of the data, also shifted and scaled
    holder     X, or an object with X in a field: a table of columns, rows, a design, a loss
    prior      the member of a family in a variable of this name
    posterior  any other member of a family that is not the prior
    message    an archive that goes from one party to another, or that one of them keeps

The measure is of names and values: it cannot tell code that only passes a value on from code that needs it.
"""

import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

if __name__ == "__main__":
    ROOT = Path(next((one for one in sys.argv[1:] if one != "-v"), Path(__file__).parents[2])).resolve()
    sys.path[:0] = [str(ROOT), str(Path(__file__).parents[1])]

import numpy as np

import bayesadmm_np
from bayesadmm_np.cli import main
from bayesadmm_np.families.base import ExponentialFamily

try:
    from oracles.overrides import OPTIONS
except ImportError:  # an older checkout has no rules of disclosure
    OPTIONS = ""

PACKAGE = f"{Path(bayesadmm_np.__file__).parent}{os.sep}"
RHO, GAMMA, PRECISION = 0.7310585, 0.9, 0.3719
SIZES = {"a": 41, "b": 53}
NETWORK = """
import torch
from bayesadmm_np.torch import IVONADMM, NetworkTask, Rows

def a():
    X = torch.randn(30, 2, generator=torch.Generator().manual_seed(1))
    return Rows(X, (X[:, 0] > 0).long()), torch.nn.Linear(2, 2)

b = a

def task():
    return NetworkTask(IVONADMM(), a()[1], rounds=2)
"""


class Walks:
    """What was seen so far: {value: {file: {function: names of its variables}}}."""

    def __init__(self):
        self.seen = defaultdict(lambda: defaultdict(lambda: defaultdict(set)))
        rng, self.tables, columns = np.random.default_rng(0), {}, []
        for name, size in SIZES.items():
            X = rng.normal(size=(size, 3))
            died = X @ [1.0, -0.5, 0.2] + rng.logistic(size=size) > 0
            self.tables[name] = np.round(np.column_stack([died, X]), 6)
            columns.append(self.tables[name][:, 1])
        self.columns = {len(column): _unit(column) for column in [*columns, np.concatenate(columns)]}
        self.tests = {
            "rho": lambda name, value: isinstance(value, float) and value == RHO,
            "X": lambda name, value: self.is_data(value),
            "holder": lambda name, value: self.is_data(value) or self.holds_data(value),
            "prior": lambda name, value: name == "prior" and isinstance(value, ExponentialFamily),
            "posterior": lambda name, value: name != "prior" and self.is_posterior(value),
            "message": lambda name, value: isinstance(value, message_class()),
        }

    def is_data(self, value):
        """Whether a column of a table is the data's first, up to shift and scale."""
        if hasattr(value, "select_dtypes"):
            value = value.select_dtypes("number").to_numpy(float)
        if not (isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f"):
            return False
        if len(value) not in self.columns or not np.isfinite(value).all():
            return False
        centred = value - value.mean(axis=0)
        lengths = np.linalg.norm(centred, axis=0)
        scaled = centred[:, lengths > 0] / lengths[lengths > 0]
        return bool((np.abs(self.columns[len(value)] @ scaled) > 1 - 1e-9).any())

    def holds_data(self, value):
        """Whether a field of an object is data, or columns by name with numbers that are."""
        for own in getattr(value, "__dict__", {}).values():
            columns = [np.asarray(one) for one in own.values()] if isinstance(own, dict) else []
            numbers = [one for one in columns if one.ndim == 1 and one.dtype.kind in "fi"]
            if len({len(one) for one in numbers}) == 1:
                own = np.column_stack(numbers).astype(float)
            if self.is_data(own):
                return True
        return False

    def is_posterior(self, value):
        """Whether a member of a family has a mean that is not zero."""
        return isinstance(value, ExponentialFamily) and bool(np.any(getattr(value, "mean", 0.0)))

    def look(self, frame, event, argument):
        """Trace function."""
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_lines = False
        if event in ("call", "return"):
            for name, value in frame.f_locals.items():
                if name in code.co_freevars:
                    continue
                for what, test in self.tests.items():
                    try:
                        found = test(name, value)
                    except Exception:  # an object that is half made
                        found = False
                    if found:
                        self.seen[what][code.co_filename.removeprefix(PACKAGE)][code.co_name].add(name)
        return self.look

    def along(self, *journeys):
        """Follow the values while these functions run in a folder with the tables, and return what was seen."""
        self.seen.clear()
        here, out = os.getcwd(), sys.stdout
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as sys.stdout:
            os.chdir(folder)
            for name, table in self.tables.items():
                np.savetxt(f"{name}.csv", table, "%.6f", ",", header="died,u,v,w", comments="")
            Path("trial.py").write_text(NETWORK)
            before = sys.gettrace()  # of a measurement of coverage
            sys.settrace(self.look)
            try:
                for journey in journeys:
                    journey()
            finally:
                sys.settrace(before)
                sys.stdout = out
                os.chdir(here)
        return {what: {file: dict(names) for file, names in files.items()} for what, files in self.seen.items()}


def _unit(column):
    centred = column - column.mean()
    return centred / np.linalg.norm(centred)


def message_class():
    """Return the class of messages; that of an older checkout lies elsewhere."""
    if os.path.exists(f"{PACKAGE}_archive.py"):
        from bayesadmm_np._archive import Archive

        return Archive
    from bayesadmm_np.exchange.message import Message

    return Message


def call(line):
    """Run a command."""
    before, sys.argv = sys.argv, ["bayesadmm", *line.split()]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"bayesadmm {line}: exit code {ended.code}") from None
    finally:
        sys.argv = before


METHOD = f"--method BayesADMM --rho {RHO} --gamma {GAMMA} --prior-precision {PRECISION}"


def fit():
    """`fit`, `predict` and `summary`."""
    call(f"fit a.csv b.csv --target died --loss logistic {METHOD} --out model.npz --no-progress")
    call("predict model.npz a.csv")
    call("summary model.npz")


def by_files():
    """`site` and `server`, to the end."""
    for name in SIZES:
        call(f"site init {name} --data {name}.csv --target died --name {name} --loss logistic {OPTIONS}")
    call(f"server init run a/hello.npz b/hello.npz {METHOD} --seed 1")
    _rounds()


def network_by_files():
    """The same of a network."""
    for name in SIZES:
        call(f"site network {name}-net trial.py:{name} --name {name} {OPTIONS}")
    call("server network run-net trial.py:task a-net/hello.npz b-net/hello.npz")
    _rounds("-net")


def _rounds(mark=""):
    run = Path(f"run{mark}")
    while not (run / "final.npz").exists():
        message = max((path for path in run.glob("*-*.npz")), key=lambda path: path.stat().st_mtime_ns)
        for name in SIZES:
            call(f"site step {name}{mark} {message} --out {name}{mark}/reply.npz")
        call(f"server step {run} {' '.join(f'{name}{mark}/reply.npz' for name in SIZES)}")
    for name in SIZES:
        call(f"site step {name}{mark} {run}/final.npz")
    call(f"server status {run}")


def on_flower():
    """Both kinds of run on Flower, in this process, of sites that the commands made."""
    import pytest
    from flwr.app import Context, RecordDict

    import bayesadmm_np as ba
    from bayesadmm_np.cli._run_files import load_site
    from bayesadmm_np.federation import GLMTask
    from bayesadmm_np.federation.dispatch import Plan
    from bayesadmm_np.federation.flower import client_app
    from oracles.loopback import LoopbackGrid, quicken, run_app

    class Node:
        def __init__(self, folder):
            self.folder, self.app = folder, client_app(load_site)

        def __call__(self, message, node_id):
            return self.app(message, Context(1, node_id, {"site": str(self.folder)}, RecordDict(), {}))

    def prior(dim):
        return ba.families.FullGaussian(np.zeros(dim), PRECISION)

    sys.path.insert(0, os.getcwd())
    import trial

    tasks = {"": GLMTask(ba.methods.BayesADMM(), prior), "-net": trial.task()}
    for mark, task in tasks.items():
        for name in SIZES:
            if mark:
                call(f"site network {name}-flower-net trial.py:{name} --name {name} {OPTIONS}")
            else:
                call(f"site init {name}-flower --data {name}.csv --target died --name {name} --loss logistic {OPTIONS}")
        grid = LoopbackGrid([Node(Path(f"{name}-flower{mark}")) for name in SIZES])
        with pytest.MonkeyPatch.context() as patch:
            quicken(patch)
            run_app(Plan(task, f"flower{mark}", sites=2), grid)


TABLE = {
    "fit": ((fit,), ("rho", "X", "holder", "prior", "posterior")),
    "files": ((by_files,), ("rho", "X", "holder", "prior", "posterior", "message")),
    "both": ((by_files, network_by_files, on_flower), ("message",)),
}
"""Journeys, and the values that are followed on them."""


def counted(journey):
    """Return {value: {file: {function: names}}} of a journey of the table."""
    journeys, values = TABLE[journey]
    seen = Walks().along(*journeys)
    return {what: seen.get(what, {}) for what in values}


def rooms(files):
    """Return the rooms of files: folders of the package, and files beside these."""
    return {file.split(os.sep)[0] for file in files}


if __name__ == "__main__":
    for journey in TABLE:
        if journey == "both" and not os.path.exists(f"{PACKAGE}federation"):
            continue
        for what, files in counted(journey).items():
            print(f"{journey:<6} {what:<10} {len(files):>3} {len(rooms(files)):>3}  {' '.join(sorted(files))}")
            if "-v" in sys.argv:
                for file, names in sorted(files.items()):
                    print(f"    {file}: {'; '.join(f'{f} {sorted(names[f])}' for f in sorted(names))}"[:400])
