"""Numba is loaded where compiled code works, and nowhere else; without it torch does the same work."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bayesadmm_np

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
pytest.importorskip("numba", reason="the twins need the extra `compiled`")
from bayesadmm_np.torch import MLP, AdamSteps, IVONSteps, compiled  # noqa: E402
from bayesadmm_np.torch.network import Network, Rows  # noqa: E402
from bayesadmm_np.torch.problem import LocalProblem  # noqa: E402

SCRIPT = """
import importlib.abc, json, sys, warnings
warnings.simplefilter("error")

class Refused(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numba" and sys.argv[1] == "missing":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")
        if name == "numba" and sys.argv[1] == "broken":
            raise ImportError("Numba needs NumPy 2.3 or less")

sys.meta_path.insert(0, Refused())

import torch
import bayesadmm_np as ba
from bayesadmm_np.torch import IVON, IVONADMM, MLP, AdamSteps, IVONSteps, Rows, run

loaded, warned, means = {}, [], {}

def note(name):
    loaded[name] = [x for x in ("numba", "threadpoolctl") if x in sys.modules]

note("import")
torch.set_num_threads(1)
X = torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
rows = [Rows(x, torch.arange(len(x)) % 3) for x in (X[:20], X[20:])]
short = {"epochs": 2, "batch_size": 6}

def go(name, method, solver, model):
    torch.manual_seed(0)
    means[name] = run(method, rows, model().double(), rounds=2, solver=solver).mean.tolist()
    note(name)

go("Adam, another network", ba.methods.FedAvg(), AdamSteps(**short), lambda: torch.nn.Sequential(
    torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)))
x = torch.nn.Parameter(torch.ones(3))
IVON([x], lr=0.1, ess=10.0).step(lambda: (x.square().sum().backward(), 0.0)[1])
note("IVON by itself")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    go("Adam", ba.methods.FedAvg(), AdamSteps(**short), lambda: MLP((4, 5, 3)))
    go("IVON", IVONADMM(0.5, 0.1), IVONSteps(**short, lr=0.1, hess_init=0.1, beta2=0.9), lambda: MLP((4, 5, 3)))
warned = [str(one.message) for one in caught]
print(json.dumps({"loaded": loaded, "warned": warned, "means": means}))
"""


def outcome(numba):
    command = [sys.executable, "-c", SCRIPT, numba]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found():
    return outcome("there")


def test_numba_is_loaded_by_compiled_clients_alone(found):
    """The twins are what is compiled."""
    nothing = [name for name, modules in found["loaded"].items() if not modules]
    assert nothing == ["import", "Adam, another network", "IVON by itself"]
    assert found["loaded"]["Adam"] == ["numba", "threadpoolctl"]
    assert found["warned"] == []


@pytest.mark.parametrize("numba", ["missing", "broken"])
def test_without_numba_torch_does_the_same(numba, found):
    """Other roundings: float64 keeps 1e-11 in 12 steps of Adam; with normals to 3e-6 IVON keeps 1e-5. The twin is 0."""
    other = outcome(numba)
    assert "numba" not in other["loaded"]["IVON"]
    for name, bound in (("Adam", 1e-11), ("IVON", 1e-5), ("Adam, another network", 0.0)):
        one, two = (torch.tensor(x["means"][name], dtype=torch.float64) for x in (found, other))
        assert (one - two).abs().max() <= bound
        assert one.abs().max() > 0.1
    if numba == "missing":
        assert other["warned"] == []
    else:  # once, with the reason
        (said,) = other["warned"]
        assert said.endswith("cannot be used, torch does its work: Numba needs NumPy 2.3 or less")


def imports(folder, name):
    """The modules of a folder that import a package."""
    found = set()
    for file in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if any(one.partition(".")[0] == name for one in names):
                found.add(file.relative_to(folder).as_posix())
    return found


def test_one_folder_knows_of_numba():
    """The twin is NumPy, which others know too."""
    package = Path(bayesadmm_np.__file__).parent
    assert imports(package, "numba") == {"torch/compiled/kernels.py"}
    assert {"torch/compiled/kernels.py", "torch/loop.py"} < imports(package, "numpy")


def test_numba_is_not_asked_for_on_another_device(monkeypatch):
    """The twin is on a CPU."""

    def refused():
        raise AssertionError

    monkeypatch.setattr(compiled, "_client_module", refused)
    for device in ("meta", "cpu"):
        net = Network(MLP((4, 5, 3)).to(device), torch.device(device))
        one = net.start.new_ones(1, 1)
        problem = LocalProblem(net.start, one, one, one, one, one, 1.0)
        rows = [Rows(torch.zeros(3, 4), torch.tensor([0, 1, 2]))]
        for solver in (AdamSteps(), IVONSteps()):
            if device == "meta":
                assert not compiled.does(net, rows, problem, solver)
            else:
                with pytest.raises(AssertionError):
                    compiled.does(net, rows, problem, solver)
