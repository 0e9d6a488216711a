"""A module as a function of a flat parameter vector, for one client or for a stack of them; and the clients' rows."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from .dense import Dense, Slope
from .likelihoods import Categorical, Likelihood

AT_ONCE = 1000
"""Rows at once in a prediction on a CPU."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one client.

    Parameters
    ----------
    X : Tensor or array, shape (n, ...)
        Inputs: floating-point numbers, or integers such as the tokens of an embedding. Images in uint8, and bool, stay
        as they are in memory. The network gets their values 0 … 255 in its own dtype: nothing is scaled, so scale in
        the model's first layer, or before.
    y : Tensor or array, shape (n,) or (n, ...)
        Labels 0 … C − 1 as integers, or the numbers that another likelihood of `run` takes.
    weights : Tensor or array, shape (n,), optional
        w_i >= 0: ℓ_k = Σ_i w_i ℓ_i, and N_k = Σ_i w_i wherever rows are counted, so that weight 2 is two rows. Batches
        are drawn regardless of weights, and default rates follow from the number of rows. Scores and batch statistics
        count every row once. Default 1.

    Raises
    ------
    ValueError
        When there are no rows, lengths differ, an input is not a finite number, or weights are negative, not finite or
        all zero.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import Rows
    >>> len(Rows(torch.zeros(3, 28, 28), torch.tensor([0, 1, 1])))
    3
    """

    X: Tensor
    y: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "X", as_tensor(self.X, "X"))
        y = as_tensor(self.y, "y")
        object.__setattr__(self, "y", y if y.is_floating_point() else y.long())
        if self.X.ndim < 2:
            raise ValueError(f"X must have shape (n, ...), got {tuple(self.X.shape)}: one column is X[:, None].")
        if self.y.shape[:1] != self.X.shape[:1]:
            raise ValueError(f"y must have {len(self.X)} rows, as X has, got shape {tuple(self.y.shape)}.")
        if len(self.X) == 0:
            raise ValueError("X must have at least one row, got none.")
        ends = self.X.aminmax() if self.X.is_floating_point() and self.X.numel() else ()  # NaN if any number is
        if not all(bool(torch.isfinite(end)) for end in ends):
            raise ValueError("X must be finite, got NaN or infinite values.")
        if self.weights is None:
            return
        w = as_tensor(self.weights, "weights")
        object.__setattr__(self, "weights", w)
        if not w.is_floating_point() or w.shape != self.X.shape[:1]:
            raise ValueError(f"weights must be a floating-point tensor of shape ({len(self.X)},), one number a row.")
        if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not bool((w > 0).any()):
            raise ValueError("weights must be finite and >= 0, and not all zero.")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def mass(self) -> float:
        """N_k, the sum of the weights."""
        return len(self.X) if self.weights is None else float(self.weights.double().sum())

    @property
    def weighted(self) -> Tensor:
        """Weights w_i, shape (n,)."""
        return torch.ones(len(self.X), device=self.X.device) if self.weights is None else self.weights

    def passes(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield X, y and w of all rows, so many at a time."""
        return zip(self.X.split(size), self.y.split(size), self.weighted.split(size), strict=True)

    def batches(self, jobs: Iterable[tuple[Sequence[int], object]]) -> Iterator[Rows]:
        """Yield the rows of some batches; their keys are for rows that are drawn."""
        return (Rows(self.X[list(index)], self.y[list(index)]) for index, _ in jobs)

    def first(self, count: int) -> Tensor:
        """Return the inputs of the first rows."""
        return self.X[:count]

    @property
    def digest(self) -> str:
        """Digest of the rows."""
        return digest([self.X, self.y] if self.weights is None else [self.X, self.y, self.weights])


def as_tensor(given: Any, name: str) -> Tensor:
    """Return numbers as a tensor of floating-point numbers, int64, uint8 or bool; ValueError for anything else."""
    if not isinstance(given, Tensor):
        array = np.asarray(given)
        if array.dtype.kind not in "biuf" or np.ma.is_masked(given):
            got = f"{type(given).__name__} of {array.dtype}"
            raise ValueError(f"{name} must be a tensor or an array of real numbers, got {got}: fill or encode it.")
        wide = {"f": "f8" if array.itemsize > 8 else f"f{array.itemsize}", "b": "?"}  # in this machine's byte order
        array = array.astype(wide.get(array.dtype.kind, "u1" if array.dtype == np.uint8 else "i8"), copy=False)
        given = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if given.is_complex() or given.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor of real numbers, got {given.dtype} in {given.layout}.")
    return given if given.is_floating_point() or given.dtype in (torch.uint8, torch.bool) else given.long()


def placed(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers where a tensor is, and floating-point numbers in its dtype."""
    return numbers.to(like) if numbers.is_floating_point() else numbers.to(like.device)


def logits_of(found: Any) -> Tensor:
    """Return the outputs in what a model returns: a tensor, or `logits` of a dict, named tuple or other object."""
    named = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    if not isinstance(named, Tensor):
        cure = "return the tensor of shape (n, C) itself, or name it logits"
        raise ValueError(f"model must return a tensor, or an object with logits, got {type(found).__name__}: {cure}.")
    return named


def digest(tensors: Sequence[Tensor], text: str = "") -> str:
    """Hash tensors and a text, so that a run is not resumed with other data or another network."""
    found = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", text).encode())  # every process has functions elsewhere
    for tensor in tensors:
        found.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def merge(clients: Sequence[Rows]) -> Rows:
    """Return all clients' `Rows` as one client's, for pooled training.

    Raises
    ------
    ValueError
        When there are none, or their rows do not fit each other.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import Rows, merge
    >>> len(merge([Rows(torch.zeros(2, 1), torch.tensor([0, 1]))] * 3))
    6
    """
    if not clients:
        raise ValueError("clients must hold at least one client, got none.")
    if not all(isinstance(client, Rows) for client in clients):
        raise ValueError("clients must be Rows: Datasets are joined by torch.utils.data.ConcatDataset.")
    for name in ("X", "y"):
        kinds = {(tuple(x.shape[1:]), x.dtype) for x in (getattr(client, name) for client in clients)}
        if len(kinds) > 1:
            raise ValueError(f"clients must have {name} of one shape and type, got {sorted(map(str, kinds))}.")
    X, y = torch.cat([client.X for client in clients]), torch.cat([client.y for client in clients])
    has_weights = any(client.weights is not None for client in clients)
    return Rows(X, y, torch.cat([client.weighted for client in clients]) if has_weights else None)


class Network:
    """Outputs ("logits") at θ of shape (K, P) and X of shape (K, B, ...), and their likelihood.

    Running statistics belong to one client at a time: they are passed, and changed in place.
    """

    def __init__(self, module: nn.Module, device: torch.device, likelihood: Likelihood | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise ValueError(f"model must be a torch.nn.Module, got {type(module).__name__}.")
        if not isinstance(likelihood, Likelihood | None):
            raise ValueError(f"likelihood must be Categorical(), Gaussian(...), ..., got {likelihood!r}.")
        self.likelihood = likelihood or Categorical()
        self.module = module = deepcopy(module)  # leaves the caller's alone
        if any(map(is_lazy, module.parameters())):
            raise ValueError("model must have parameters of known shapes: call a model with lazy layers once.")
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("model must have parameters to train.")
        if len({p.dtype for _, p in named}) > 1 or named[0][1].dtype not in (torch.float32, torch.float64):
            got = ", ".join(sorted({str(p.dtype) for _, p in named}))
            raise ValueError(f"model must have all its parameters in float32, or all in float64, got {got}.")
        self.dense = Dense.of(module)
        self.stacks = True  # until a module turns out to be one that vmap does not know, such as an LSTM
        self.names = [name for name, _ in named]
        self.shapes = [p.shape for _, p in named]
        self.sizes = [p.numel() for _, p in named]
        self.start = torch.cat([p.detach().reshape(-1) for _, p in named]).to(device)
        self.fixed = {n: p.detach().to(device) for n, p in module.named_parameters() if not p.requires_grad}
        self.buffers = {name: b.detach().to(device, copy=True) for name, b in module.named_buffers()}

    @property
    def signature(self) -> str:
        """Hash what a model is but for its parameters' values: layers as printed, shapes, fixed values, likelihood."""
        kept = {name: tuple(buffer.shape) for name, buffer in self.buffers.items()}
        layout = str(self.module), self.names, self.shapes, self.start.dtype, kept, sorted(self.fixed), self.observed
        fixed = digest([self.fixed[name] for name in sorted(self.fixed)])
        return digest([], f"{layout}{fixed}")

    @property
    def observed(self) -> str:
        """The likelihood in a description; empty for classes."""
        return "" if self.likelihood == Categorical() else repr(self.likelihood)

    def is_pure(self, X: Tensor) -> bool:
        """Return whether gradients at rows X are computed by hand, from θ alone."""
        return self.dense is not None and self.dense.takes(X[None]) and not torch.is_autocast_enabled(X.device.type)

    def leaves(self, theta: Tensor) -> list[Tensor]:
        """Return views of θ, one a parameter and each with the leading dimension K, that gradients stop at."""
        pieces = torch.split(theta.detach(), self.sizes, dim=1)
        named = zip(pieces, self.shapes, strict=True)
        return [piece.view(len(theta), *shape).requires_grad_() for piece, shape in named]

    def logits(self, leaves: Sequence[Tensor], X: Tensor, buffers: dict[str, Tensor], train: bool) -> Tensor:
        """Shape (K, B, C)."""
        self.module.train(train)
        X = self._as_input(X)

        def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            return logits_of(functional_call(self.module, {**parameters, **self.fixed, **buffers}, (x,)))

        stacked = dict(zip(self.names, leaves, strict=True))
        if len(X) > 1 and self.stacks:
            try:
                with sdpa_kernel(SDPBackend.MATH):  # the one with a rule
                    return vmap(one, randomness="different")(stacked, X)
            except RuntimeError as error:
                if "vmap" not in str(error) and "atching rule" not in str(error):
                    raise
                self.stacks = False
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"clients are trained one after the other, torch cannot stack them: {reason}", stacklevel=2
                )
        return torch.stack([one({name: leaf[k] for name, leaf in stacked.items()}, x) for k, x in enumerate(X)])

    def _as_input(self, X: Tensor) -> Tensor:
        """Return uint8 and bool in the dtype of the parameters, and other inputs as they are."""
        return X.to(self.start.dtype) if X.dtype in (torch.uint8, torch.bool) else X

    def gradient(
        self, theta: Tensor, out: Tensor, X: Tensor, slope_at: Slope, buffers: dict[str, Tensor], train: bool = True
    ) -> Tensor:
        """Write ∇_θ of a function of every client's logits, shape (K, P), into `out`, and return it.

        `slope_at` maps the logits to the function's derivatives in them, as `likelihood.slope` does for given y and w.
        """
        if self.dense is not None and self.is_pure(X[0]):
            return self.dense.pull_back(theta, out, self._as_input(X), slope_at)
        leaves = self.leaves(theta)
        logits = self.logits(leaves, X, buffers, train)
        gradients = torch.autograd.grad(logits, leaves, slope_at(logits.detach()).to(logits))
        return torch.cat([g.reshape(len(theta), -1) for g in gradients], dim=1, out=out)

    @torch.no_grad()
    def predict(self, theta: Tensor, X: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """Return logits at one θ of shape (P,), in evaluation mode, shape (n, C)."""
        chunk = AT_ONCE if X.device.type == "cpu" else 10 * AT_ONCE  # small enough for the caches, or for the memory
        leaves = [leaf.detach() for leaf in self.leaves(theta[None])]
        return torch.cat([self.logits(leaves, part[None], buffers, train=False)[0] for part in X.split(chunk)])

    def tried(self, theta: Tensor, X: Tensor, buffers: dict[str, Tensor], name: str) -> Tensor:
        """Return logits as `predict` does; a ValueError names the rows that the model cannot map."""
        try:
            return self.predict(theta, X, buffers)
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError) as error:
            raise ValueError(f"{name}: inputs of shape {tuple(X.shape[1:])} do not fit the model: {error}") from error

    @torch.no_grad()
    def predict_linear(self, theta: Tensor, change: Tensor, X: Tensor, buffers: dict[str, Tensor]) -> Tensor:
        """Return f(θ) + J(θ)·change, the logits of the linearisation at θ, both of shape (P,); shape (n, C)."""
        leaves, tangents = (tuple(leaf.detach() for leaf in self.leaves(x[None])) for x in (theta, change))

        def at(part: Tensor) -> Tensor:
            def logits(*leaves: Tensor) -> Tensor:
                return self.logits(leaves, part[None], buffers, train=False)[0]

            # u ↦ Jᵀu is linear, so its own pull-back is v ↦ Jv; torch's jvp warns on import, and lacks more rules
            with sdpa_kernel(SDPBackend.MATH):  # the one with a second derivative
                found, pull = vjp(logits, *leaves)[:2]
                return found + vjp(pull, torch.zeros_like(found))[1](tangents)[0]

        return torch.cat([at(part) for part in X.split(AT_ONCE)])

    def module_at(self, theta: Tensor, buffers: dict[str, Tensor]) -> nn.Module:
        """Return a copy of the module with these parameters, of shape (P,), and statistics."""
        module = deepcopy(self.module)
        with torch.no_grad():
            named = dict(module.named_parameters())
            for name, shape, piece in zip(self.names, self.shapes, theta.split(self.sizes), strict=True):
                named[name].copy_(piece.view(shape))
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
        return module
