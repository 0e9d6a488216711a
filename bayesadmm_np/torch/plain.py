"""The local work of one client with a plain network on a CPU: its problem as `compiled` wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import compiled
from .kernel import step_rate
from .network import Network, Rows
from .problem import AdamSteps, IVONSteps, LocalProblem

__all__ = ["AdamAlone", "IVONAlone", "fits", "key_of"]

Floats = NDArray[np.floating[Any]]
ALIGNED = 16
"""Arrays begin at multiples of it, as long as the processor's vectors."""


def fits(network: Network, data: Sequence[Rows], problem: LocalProblem, solver: AdamSteps | IVONSteps) -> bool:
    """Whether `compiled` has the gradient and the step."""
    usual = isinstance(solver, AdamSteps) or (solver.samples == 1 and solver.hess_approx == "price")
    plain = all(network.is_pure(rows.X) for rows in data)
    return usual and plain and problem.start.device.type == "cpu"


def key_of(seed: int) -> compiled.Words:
    """Return the key of a client's noise, which is apart from the order of its rows."""
    return np.random.SeedSequence([seed, 1]).generate_state(2).astype(np.uint32)


class _Alone:
    """Rows, which share the memory of tensors, layers and room."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, batch_size: int) -> None:
        assert network.dense is not None
        X, (shapes, kinds) = rows.X.detach().flatten(1).contiguous().numpy(), network.dense.codes()
        _check(rows.y, X.shape[1], shapes)
        self.start = problem.start.numpy()
        self.scale = torch.full_like(problem.rho, problem.temperature / rows.mass)
        self.rows = X, rows.y.contiguous().numpy()
        self.layers = shapes, kinds, *compiled.room(shapes, batch_size + _points(problem), X)
        if problem.shared is not None:  # the same in every step: behind the rows of a batch
            terms, width = problem.shared.over(torch.full_like(problem.rho, rows.mass)), X.shape[1]
            self.layers[2][batch_size * width :][: terms.X.numel()] = terms.X.flatten().numpy()
            self.layers[4][batch_size:] = terms.targets[0].numpy()

    def side_by_side(self, *contents: Tensor | NDArray[Any] | float) -> tuple[Floats, ...]:
        """Arrays with an entry a parameter, in one block: large enough for the system's large pages."""
        whole = np.empty((len(contents), -(-len(self.start) // ALIGNED) * ALIGNED), self.start.dtype)
        rows = tuple(row[: len(self.start)] for row in whole)
        for row, content in zip(rows, contents, strict=True):
            row[:] = content.numpy() if isinstance(content, Tensor) else content
        return rows


def _points(problem: LocalProblem) -> int:
    """How many inputs the client shares with others."""
    return 0 if problem.shared is None else len(problem.shared.X)


def _check(y: Tensor, width: int, shapes: NDArray[np.int64]) -> None:
    """Compiled code looks at no bounds: not at those of rows, either, that changed since the run began."""
    inputs, classes = int(shapes[0, 1]), int(shapes[-1, 0])
    if width != inputs:
        raise ValueError(f"X must have {inputs} columns, got {width}.")
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(f"y must lie in 0 … {classes - 1}, got {int(y.min())} … {int(y.max())}.")


class AdamAlone(_Alone):
    """Adam, as `steps` has it for stacks."""

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: AdamSteps) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.solver, quadratic = solver, problem.quadratic(self.scale)
        around = quadratic if quadratic else ()
        arrays = self.side_by_side(self.start, 0.0, 0.0, 0.0, *around)
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

    def __init__(self, network: Network, rows: Rows, problem: LocalProblem, solver: IVONSteps, seed: int) -> None:
        super().__init__(network, rows, problem, solver.batch_size)
        self.solver, self.key = solver, key_of(seed)
        ess, delta, slope, curvature = problem.terms(self.scale)
        rate = torch.zeros_like(delta) + step_rate(solver.lr, delta, solver.rates)
        arrays = self.side_by_side(self.start, solver.hess_init, 0.0, 0.0, 0.0, 0.0, delta, rate, slope, curvature)
        self.ess, self.state, self.terms = float(ess), arrays[:6], arrays[6:]

    def steps(self, begun: int, index: Tensor, weights: Tensor) -> None:
        """Take the steps of some batches."""
        s, batches = self.solver, (index.numpy(), weights.numpy())
        rates = float(s.beta1), float(s.beta2), float(s.clip_radius)
        given = self.rows, batches, self.layers, self.key, begun, rates, s.debias
        compiled.ivon(self.state, self.terms, self.ess, *given)

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return m_k, s_k and h_k."""
        mean, hess = self.state[:2]
        precision = (hess + self.terms[0]) * hess.dtype.type(self.ess)
        return torch.from_numpy(mean), torch.from_numpy(precision), torch.from_numpy(hess)
