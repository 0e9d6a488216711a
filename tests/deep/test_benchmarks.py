"""benchmarks/torch_device.py, which is meant for a GPU, does what it says on a CPU."""

import importlib
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import MLP  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("torch_device")


def test_the_products_of_a_step_are_counted(script):
    """Forward and both backward products of three layers, without the gradient in the inputs."""
    first, second, third = (2 * 64 * size for size in (784 * 200, 200 * 100, 100 * 10))
    assert script.flops_of(Network(MLP(), torch.device("cpu"))) == 2 * first + 3 * second + 3 * third


def test_a_small_run_is_written_whole(script, monkeypatch, tmp_path):
    out = tmp_path / "device.json"
    monkeypatch.setattr(
        sys, "argv", ["torch_device.py", "--device", "cpu", "--clients", "2", "--rows", "8", "--out", str(out)]
    )
    script.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    for name in ("adam", "ivon"):
        work = found["local_work"][name]
        assert work["sequential_over_batched"] == work["sequential"] / work["batched"]
        assert work["of_matmul_rate"] == work["flops_per_second"] / found["matmul_flops_per_second"] > 0
        assert 0 < found["seconds_of_a_round"][name]["later"] < found["seconds_of_a_round"][name]["wall"]
    assert found["machine"]["device"] == "cpu"


def test_without_a_gpu_it_says_so(script, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["torch_device.py"])
    with pytest.raises(SystemExit) as stop:
        script.main()
    assert stop.value.code == 2
    assert "there is no CUDA device here" in capsys.readouterr().err
