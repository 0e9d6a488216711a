"""One client with a plain network on a CPU: its problem as arrays for `kernels`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import threadpoolctl  # noqa: F401  # what `one_blas_thread` needs must be there before a client is promised
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..kernel import step_rate
from ..network import Network, Rows
from ..problem import AdamSteps, IVONSteps, LocalProblem
from ..randomness import noise_key
from . import kernels

Floats = NDArray[np.floating[Any]]
CODES = {nn.Sigmoid: kernels.SIGMOID, nn.Tanh: kernels.TANH, nn.ReLU: kernels.RELU}
ALIGNED = 16
"""Arrays begin at multiples of so many numbers, a vector of the processor."""


def layers_of(network: Network, batch: int, like: Floats) -> kernels.Layers:
    """Return shapes and activations of a plain network, and the workspace for a batch."""
    assert network.dense is not None
    shapes = np.array(network.dense.shapes, dtype=np.int64)
    kinds = np.array([CODES[kind] for kind in network.dense.between], dtype=np.int64)
    return shapes, kinds, *kernels.workspace(shapes, batch, like)


class Client(ABC):
    """A client's rows, in the memory of its tensors, and the layers with their workspace."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, batch_size: int) -> None:
        X, points = rows.X.detach().flatten(1).contiguous().numpy(), 0
        if problem.shared is not None:
            points = len(problem.shared.X)
        self.layers = layers_of(network, batch_size + points, X)
        _check(rows.y, X.shape[1], self.layers[0])
        self.start, self.kept = problem.start.numpy(), problem.moments
        self.done = 0 if self.kept is None else self.kept.steps[0]
        self.scale = problem.scale([rows.mass])
        self.rows = X, rows.y.contiguous().numpy()
        if problem.shared is not None:  # the same in every step: behind the rows of a batch
            terms, width = problem.shared.over(torch.full_like(problem.rho, rows.mass)), X.shape[1]
            self.layers[2][batch_size * width :][: terms.X.numel()] = terms.X.flatten().numpy()
            self.layers[4][batch_size:] = terms.targets[0].numpy()

    def side_by_side(self, *contents: Tensor | NDArray[Any] | float) -> tuple[Floats, ...]:
        """Return arrays with an entry a parameter, in one block: large enough for the system's large pages."""
        whole = np.empty((len(contents), -(-len(self.start) // ALIGNED) * ALIGNED), self.start.dtype)
        rows = tuple(row[: len(self.start)] for row in whole)
        for row, content in zip(rows, contents, strict=True):
            row[:] = content.numpy() if isinstance(content, Tensor) else content
        return rows

    @abstractmethod
    def take_steps(self, begun: int, index: Tensor, weights: Tensor) -> None:
        """Take steps `begun` + 1, …, one a batch; `index` and `weights` are of its rows, shape (T, B)."""

    def kept_moment(self, which: int) -> Tensor | float:
        """Return where an average of gradients goes on from."""
        return 0.0 if self.kept is None else self.kept.vectors[0, which]

    def moments(self, *averages: Floats) -> Tensor | None:
        """Return them where they are kept."""
        return None if self.kept is None else torch.from_numpy(np.stack(averages))

    @abstractmethod
    def result(self) -> tuple[Tensor | None, ...]:
        """Return m_k and, for IVON, s_k and h_k; then None twice, and what the solver keeps."""


def _check(y: Tensor, width: int, shapes: NDArray[np.int64]) -> None:
    """Check that rows fit the network, also those that changed since the run began: compiled code checks no bounds."""
    inputs, classes = int(shapes[0, 1]), int(shapes[-1, 0])
    if width != inputs:
        raise ValueError(f"X must have {inputs} columns, got {width}.")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(f"y must lie in 0 … {classes - 1}, got {int(y.min())} … {int(y.max())}.")


class AdamClient(Client):
    """A client of `AdamSteps`."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: AdamSteps) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.rates = tuple(map(float, (solver.lr, solver.beta1, solver.beta2, solver.eps)))
        averages = self.kept_moment(0), self.kept_moment(1)
        arrays = self.side_by_side(self.start, *averages, 0.0, *(problem.quadratic(self.scale) or ()))
        nothing = np.empty(0, self.start.dtype)
        self.state, self.terms = arrays[:4], arrays[4:] or (nothing, nothing)

    def take_steps(self, begun: int, index: Tensor, weights: Tensor) -> None:  # noqa: D102
        batches = index.numpy(), weights.numpy()
        kernels.adam(self.state, self.terms, self.rows, batches, self.layers, self.done + begun, self.rates)

    def result(self) -> tuple[Tensor | None, ...]:  # noqa: D102
        return torch.from_numpy(self.state[0]), None, None, None, None, self.moments(*self.state[1:3])


class IVONClient(Client):
    """A client of `IVONSteps`."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: IVONSteps, seed: int) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.rates, self.debias = tuple(map(float, (solver.beta1, solver.beta2, solver.clip_radius))), solver.debias
        ess, delta, slope, curvature = problem.terms(self.scale)
        rate = torch.zeros_like(delta) + step_rate(solver.lr, delta, solver.rates)
        hess = problem.hess_start(solver.hess_init, ess, delta)
        state = self.start, hess, self.kept_moment(0), 0.0, 0.0, 0.0
        arrays = self.side_by_side(*state, delta, rate, slope, curvature)
        self.ess, self.key, self.state, self.terms = float(ess), noise_key(seed), arrays[:6], arrays[6:]

    def take_steps(self, begun: int, index: Tensor, weights: Tensor) -> None:  # noqa: D102
        batches = index.numpy(), weights.numpy()
        given = self.rows, batches, self.layers, self.key, begun, self.rates, self.debias
        kernels.ivon(self.state, self.terms, self.ess, *given, self.done)

    def result(self) -> tuple[Tensor | None, ...]:  # noqa: D102
        mean, hess, average = self.state[:3]
        precision = (hess + self.terms[0]) * hess.dtype.type(self.ess)
        return *map(torch.from_numpy, (mean, precision, hess)), None, None, self.moments(average)
