"""The local work of one client with a plain network on a CPU: its problem as `compiled` wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import compiled
from .kernel import step_rate
from .network import Network, Rows
from .problem import AdamSteps, IVONSteps, LocalProblem

__all__ = ["AdamAlone", "IVONAlone", "Noise", "fits"]

Floats = NDArray[np.floating[Any]]
ALIGNED = 16
"""Arrays begin at multiples of it, as long as the processor's vectors."""


def fits(network: Network, rows: Rows, problem: LocalProblem, solver: AdamSteps | IVONSteps) -> bool:
    """Whether `compiled` has the gradient and the step."""
    usual = isinstance(solver, AdamSteps) or (solver.samples == 1 and solver.hess_approx == "price")
    return usual and problem.shared is None and problem.start.device.type == "cpu" and network.is_pure(rows.X)


class Noise:
    """The noise of a client, apart from the order of its rows; on a CPU a function of seed and step."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.key: compiled.Words = np.random.SeedSequence([seed, 1]).generate_state(2).astype(np.uint32)
        self.source = None if device.type == "cpu" else torch.Generator(device).manual_seed(int(self.key[0]))

    def fill(self, out: Tensor, step: int) -> None:
        """Write standard normals; steps count from 0."""
        if self.source is None:
            compiled.normals(out.numpy(), self.key, step)
        else:
            out.normal_(generator=self.source)


class _Alone:
    """Rows, layers and room; arrays share the memory of tensors."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, batch_size: int) -> None:
        assert network.dense is not None
        X, (shapes, kinds) = rows.X.flatten(1).contiguous().numpy(), network.dense.codes()
        self.start = problem.start.numpy()
        self.scale = torch.full_like(problem.rho, problem.temperature / len(rows))
        self.rows = X, rows.y.numpy()
        outputs, slopes = compiled.room(shapes, batch_size, X)
        self.layers = shapes, kinds, outputs, slopes

    def room(self, *contents: Tensor | NDArray[Any] | float) -> tuple[Floats, ...]:
        """Arrays with an entry a parameter, side by side: large enough together for the system's large pages."""
        whole = np.empty((len(contents), -(-len(self.start) // ALIGNED) * ALIGNED), self.start.dtype)
        rows = tuple(row[: len(self.start)] for row in whole)
        for row, content in zip(rows, contents, strict=True):
            row[:] = content.numpy() if isinstance(content, Tensor) else content
        return rows


class AdamAlone(_Alone):
    """Adam, as `steps` has it for stacks."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: AdamSteps) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.solver, quadratic = solver, problem.quadratic(self.scale)
        around = quadratic if quadratic else ()
        arrays = self.room(self.start, 0.0, 0.0, 0.0, *around)
        nothing = np.empty(0, self.start.dtype)
        self.state, self.terms = arrays[:4], arrays[4:] or (nothing, nothing)

    def steps(self, begun: int, index: Tensor, weights: Tensor) -> None:
        """Take the steps of some batches."""
        s, batches = self.solver, (index.numpy(), weights.numpy())
        rates = tuple(map(float, (s.lr, s.beta1, s.beta2, s.eps)))
        compiled.adam(self.state, self.terms, self.rows, batches, self.layers, begun, rates)

    def result(self) -> tuple[Tensor, None, None]:
        """Return m_k."""
        return torch.from_numpy(self.state[0]), None, None


class IVONAlone(_Alone):
    """Algorithm 2, as `steps` has it for stacks."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: IVONSteps, noise: Noise) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.solver, self.noise = solver, noise
        ess, delta, slope, curvature = problem.terms(self.scale)
        rate = torch.zeros_like(delta) + step_rate(solver.lr, delta, solver.rates)
        arrays = self.room(self.start, solver.hess_init, 0.0, 0.0, 0.0, 0.0, delta, rate, slope, curvature)
        self.ess, self.state, self.terms = float(ess), arrays[:6], arrays[6:]

    def steps(self, begun: int, index: Tensor, weights: Tensor) -> None:
        """Take the steps of some batches."""
        s, batches = self.solver, (index.numpy(), weights.numpy())
        rates = float(s.beta1), float(s.beta2), float(s.clip_radius)
        given = self.rows, batches, self.layers, self.noise.key, begun, rates, s.debias
        compiled.ivon(self.state, self.terms, self.ess, *given)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return m_k, s_k and h_k."""
        mean, hess = self.state[:2]
        precision = (hess + self.terms[0]) * hess.dtype.type(self.ess)
        return torch.from_numpy(mean), torch.from_numpy(precision), torch.from_numpy(hess)
