"""What K clients cost: λ_k and sites, those of the last good state beside the new ones, and little more."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

SCRIPT = """
import resource, sys
import torch
import bayesadmm_np as ba
from bayesadmm_np.torch import AdamSteps, IVONADMM, IVONSteps, MLP, Rows, certificate, run

torch.set_num_threads(1)
certificate.AT_ONCE = int(sys.argv[2])
method, solver = {
    "IVONADMM": (IVONADMM(rho=0.5, gamma=0.05), IVONSteps(epochs=1)),
    "FedAvg": (ba.methods.FedAvg(), AdamSteps(epochs=1)),
}[sys.argv[1]]

def clients(count):
    return [Rows(torch.rand(8, 100), torch.arange(8) % 3) for _ in range(count)]

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

model = MLP((100, 480, 3))
run(method, clients(2), model, rounds=2, solver=solver)  # compiles
rows, before = clients(100), peak()
run(method, rows, model, rounds=3, solver=solver)
print((peak() - before) / (4 * 100 * sum(p.numel() for p in model.parameters())))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak as Linux counts it")
@pytest.mark.parametrize(("method", "vectors"), [("IVONADMM", 8), ("FedAvg", 2)])
def test_the_peak_of_a_run_is_old_and_new_state(method, vectors):
    """In K vectors of P numbers: the states, and 3 for a round's work and the allocator.

    The twin looks at the residuals of all clients together.
    """

    def found(at_once):
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, method, str(at_once)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return float(done.stdout)

    assert found(2**19) < vectors + 3
    assert found(2**30) > vectors + 3
