"""Networks on CUDA where there is none: torch's fake tensors carry devices and shapes, and refuse to mix devices.

What is computed is not looked at, for there is nothing to look at. A number that Python asks for is one.
"""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import bayesadmm_np.torch as bt  # noqa: E402
from bayesadmm_np.torch import loop, state  # noqa: E402


class Ones(TorchDispatchMode):
    """Every number that leaves the device is 1, or True; every generator is the default one."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            return torch.ones((), dtype=args[0].dtype).item()
        kwargs = dict(kwargs or {})
        if "generator" in kwargs:
            kwargs["generator"] = None
        return function(*args, **kwargs)
