"""Networks on a device that is not the CPU, where there is none: on torch's meta device, whose tensors have no content.

All that can be seen is where tensors are made, and whether an operation mixes devices: what fails on a GPU first. A
number that Python asks for is one.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from bayesadmm_np.splitting.methods import FedAvg, FedDyn, FedLapCov  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVON,
    IVONADMM,
    MLP,
    AdamSteps,
    FedLapFunc,
    IVONSteps,
    Rows,
    loop,
    run,
    steps,
)
from oracles.papers import networks  # noqa: E402

ATEN = torch.ops.aten


class OneDevice(TorchDispatchMode):
    """Refuses operations that a GPU refuses; what is copied back to the CPU is ones."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is ATEN._to_copy.default and kwargs.get("device") == torch.device("cpu") and args[0].is_meta:
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if function is ATEN.copy_.default:
            return args[0].fill_(1) if args[1].is_meta else function(*args, **kwargs)
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        # an index, and a tensor that is one number, may lie on the CPU
        mixed = [] if function is ATEN._to_copy.default else [x.device.type for x in given if x.ndim]
        if function in (ATEN.index.Tensor, ATEN.index_put_.default):
            mixed = mixed[:1]
        if len(set(mixed)) > 1:
            raise RuntimeError(f"{function} mixes devices: {mixed}")
        if function is ATEN.index.Tensor:  # a mask takes all
            places = [torch.zeros(len(i), dtype=torch.int64) if _is_mask(i) else i for i in args[1]]
            args = (args[0], places)
        return function(*args, **kwargs)


def _is_mask(index):
    return index is not None and index.is_meta and index.dtype is torch.bool


NUMBERS = {"__int__": int, "__index__": int, "__float__": float, "__bool__": bool}


class Ones(TorchFunctionMode):
    """A number that Python asks for is one; generators, which the meta device has none of, are left out."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            if name in NUMBERS:
                return NUMBERS[name](1)
            if name in ("item", "tolist"):
                return getattr(torch.ones(args[0].shape, dtype=args[0].dtype), name)()
            kwargs.pop("generator", None)
        return function(*args, **kwargs)


class Generator(torch.Generator):
    """On the CPU, wherever it is wanted."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls)


@pytest.fixture
def elsewhere(monkeypatch):
    is_autocast_enabled = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and is_autocast_enabled(kind))
    monkeypatch.setattr(loop, "digest", lambda tensors: "of no content")
    with OneDevice(), Ones():
        yield


def rows(shape, classes=3):
    X = torch.rand(7, *shape, generator=torch.Generator().manual_seed(0))
    return Rows(X, torch.arange(7) % classes)


ADAM, IVON_STEPS = AdamSteps(epochs=1, batch_size=4), IVONSteps(epochs=1, batch_size=4)
CASES = {
    "FedDyn": (FedDyn(), ADAM),
    "FedLap-Cov": (FedLapCov(), ADAM),
    "FedLap-Func": (FedLapFunc(server_steps=2), ADAM),
    "IVON-ADMM": (IVONADMM(), IVON_STEPS),
    "two samples": (IVONADMM(), replace(IVON_STEPS, samples=2)),
}
NETWORKS = {"Zenke": (networks.ZenkeCNN, True), "Acar": (networks.AcarCNN, True), "ResNet": (networks.ResNet20, False)}


def trained(method, solver, model, shape, batched=True, rounds=2, **files):
    data = [rows(shape), Rows(rows(shape).X[:5], rows(shape).y[:5])]
    arguments = {"solver": solver, "device": "meta", "batched": batched, "evaluate": data[0], "ensemble": 2}
    return run(method, data, model, rounds=rounds, **arguments, **files)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_run_stays_on_its_device(elsewhere, tmp_path, name, batched):
    case, file = (*CASES[name], MLP((5, 4, 3)), (5,), batched), tmp_path / "run.npz"
    assert trained(*case, rounds=1, checkpoint=file).rounds == 1
    result = trained(*case, resume=file)
    assert result.rounds == 2, result.message
    assert {x.device.type for x in (result.mean, result.precision, result.state.site_linear)} == {"meta"}
    if name != "FedLap-Func":
        result.certificate(pairs=3)
    assert next(result.model().parameters()).device.type == "cpu"


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_images_stay_there(elsewhere, name):
    model, batched = NETWORKS[name]
    result = trained(IVONADMM(), IVON_STEPS, model(), (3, 32, 32), batched)
    assert result.rounds == 2, result.message


def test_what_lies_on_the_cpu_is_refused(elsewhere, monkeypatch):
    """The twin: the weights of the rows were forgotten there."""
    plan = steps.make_plan

    def forgotten(*given):
        made = plan(*given)
        return replace(made, weight=torch.ones(made.weight.shape))

    monkeypatch.setattr(steps, "make_plan", forgotten)
    with pytest.raises(RuntimeError, match="mixes devices"):
        trained(FedAvg(), ADAM, MLP((5, 4, 3)), (5,))


def test_the_optimiser_stays_there(elsewhere):
    model = nn.Linear(5, 3, device="meta")
    optimiser = IVON(model.parameters(), lr=0.1, ess=7)
    data = rows((5,))
    for _ in range(2):
        with optimiser.sampled_params(train=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.X.to("meta")), data.y.to("meta")).backward()
        optimiser.step()
    assert all(p.is_meta for p in model.parameters())
