"""What K clients cost: λ_k and sites, those of the last good state beside the new ones, and little more."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

PEAK = "/proc/self/clear_refs"
"""Linux forgets the peak of a process that writes a 5 to it."""
SCRIPT = """
import torch
import bayesadmm_np as ba
from bayesadmm_np.torch import AdamSteps, IVONADMM, IVONSteps, MLP, Rows, run, state

torch.set_num_threads(1)
ROWS = ((IVONADMM(rho=0.5, gamma=0.05), IVONSteps(epochs=1)), (ba.methods.FedAvg(), AdamSteps(epochs=1)))

def used(name):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))

held = []

def measure(record, now):
    if record.round == 2:
        print((used("VmHWM") - held[-1]) / (4 * 100 * len(now.mean)))
    held.append(used("VmRSS"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

rows = [Rows(torch.rand(8, 100), torch.arange(8) % 3) for _ in range(100)]
for method, solver in ROWS:
    for state.AT_ONCE in (2**18, 2**30):
        run(method, rows, MLP((100, 900, 3)), rounds=2, solver=solver, callback=measure)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access(PEAK, os.W_OK), reason="reads the peak as Linux counts it")
def test_a_round_grows_by_the_new_state():
    """From the end of a round to the peak of the next, in K vectors of P numbers: the new state.

    Half a one, 19 MB, is for one client's work and the residuals of a few. All K vectors are above 32 MB, which the C
    library gives back at once. The twins look at the residuals of all clients together.
    """
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    ivon, ivon_twin, fedavg, fedavg_twin = map(float, done.stdout.split())
    assert (ivon, fedavg) == (pytest.approx(4, abs=0.5), pytest.approx(2, abs=0.5))
    assert ivon_twin > 4 + 2
    assert fedavg_twin > 2 + 2
