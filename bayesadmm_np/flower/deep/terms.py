"""What a run of a network is: method, solver, sites and signature of the model, repeated by every broadcast."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._validation import Array, as_count, as_positive
from ...exchange.message import Message, content_of
from ...exchange.terms import MOST_ROWS, as_site_name, hear, speak
from ...splitting.methods import Method
from ...torch import AdamSteps, IVONSteps, Rows
from ...torch.network import Network
from ...torch.state import Broadcast, State, digest
from ...torch.team import Team, build

__all__ = [
    "DeepTerms",
    "packed",
    "read_precision",
    "read_q",
    "read_tensor",
    "signature",
    "spoken_q",
    "unpacked",
    "vector",
]

FIELDS = {
    *("method", "solver", "sites", "sizes", "model", "dim"),
    *("prior_precision", "temperature", "rounds", "seed"),
}
NOT_NEGATIVE = ("running_var", "num_batches_tracked")
"""A variance and a counter, by the names that torch's normalisations give them."""
SOLVERS: dict[str, Any] = {kind.__name__: kind for kind in (AdamSteps, IVONSteps)}


@dataclass(frozen=True, eq=False)
class DeepTerms:
    """The terms of a run: all that server and sites must agree on. The run's id is a digest of them.

    Parameters
    ----------
    method : Method
    solver : AdamSteps or IVONSteps
    sites : tuple of str
        Names, sorted: sums over sites are taken in this order.
    sizes : tuple of int
        Rows of each site.
    model : str
        The model's `signature`.
    dim : int
        Parameters of the model.
    prior_precision, temperature, rounds, seed
        As in `bayesadmm_np.torch.run`.

    Raises
    ------
    ValueError
        When something is out of range, or cannot be sent.
    """

    method: Method
    solver: AdamSteps | IVONSteps
    sites: tuple[str, ...]
    sizes: tuple[int, ...]
    model: str
    dim: int
    prior_precision: float = 1.0
    temperature: float = 1.0
    rounds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if type(Method.read(self.method)) is not Method:
            raise ValueError(f"{self.method.name} shares inputs of the clients: it runs in one process only.")
        for name in ("prior_precision", "temperature"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))
        for name in ("rounds", "seed"):
            object.__setattr__(self, name, as_count(getattr(self, name), name, minimum=0))
        if not self.sites or list(self.sites) != sorted(set(self.sites)):
            raise ValueError(f"sites must be different names in order, at least one, got {list(self.sites)}.")
        for site in self.sites:
            as_site_name(site)
        if len(self.sizes) != len(self.sites):
            raise ValueError(f"sizes must hold one number of rows a site, {len(self.sites)}, got {list(self.sizes)}.")
        for size in (*self.sizes, self.dim):
            if as_count(size, "sizes") > MOST_ROWS:
                raise ValueError(f"sizes must be at most {MOST_ROWS}, got one of {len(str(size))} digits.")

    @cached_property
    def run(self) -> str:
        """The run's id."""
        return Message("terms", self.spoken(), {}).digest[:16]

    def team(self, network: Network, here: Mapping[int, Rows]) -> Team:
        """Return what a round is computed with, where these sites' rows are."""
        settings = self.prior_precision, self.temperature, self.solver
        return build(self.method, network, self.sizes, here, *settings, batched=False)

    def start_of_one(self, network: Network, mean: Tensor | None = None) -> State:
        """Return a site's part of the start: q_g and one η_k, without the K rows that only the server needs.

        `mean` is where the server's model is; without it values are those of this model, of use for their shapes.
        """
        if mean is not None:
            network = copy(network)
            network.start = mean
        start = replace(self.team(network, {}), sizes=self.sizes[:1]).start()
        # of what all sites share at the start each has a part
        return replace(start, site_linear=start.site_linear / len(self.sizes))

    def spoken(self) -> dict[str, Any]:
        """Return the terms as JSON values."""
        return {
            "method": speak(self.method),
            "solver": {"type": type(self.solver).__name__, **asdict(self.solver)},
            "sites": list(self.sites),
            "sizes": list(self.sizes),
            **{name: getattr(self, name) for name in FIELDS - {"method", "solver", "sites", "sizes"}},
        }

    @classmethod
    def read(cls, message: Message) -> DeepTerms:
        """Read the terms that a message repeats, checking every type and range.

        Raises
        ------
        MessageError
            When a field is missing, of another type, or out of range.
        """
        spoken = message.header.get("terms")
        if not isinstance(spoken, dict) or set(spoken) != FIELDS:
            raise message.refusal("terms", f"exactly the fields {sorted(FIELDS)}", spoken)
        if not isinstance(spoken["model"], str):
            raise message.refusal("terms.model", "the signature of a model", spoken["model"])
        with content_of(message, "the terms of a run"):
            solver = dict(spoken["solver"])
            plain = {name: value for name, value in spoken.items() if name not in ("method", "solver")}
            return cls(
                hear(spoken["method"], Method),
                SOLVERS[solver.pop("type")](**solver),
                **{**plain, "sites": tuple(plain["sites"]), "sizes": tuple(plain["sizes"])},
            )


def signature(network: Network) -> str:
    """Hash what a model is but for the values of its parameters: its layers as printed, shapes, dtype, fixed values."""
    layout = [repr(network.module), network.names, [list(shape) for shape in network.shapes], str(network.start.dtype)]
    kept = {name: list(buffer.shape) for name, buffer in network.buffers.items()}
    text = json.dumps([layout, kept, sorted(network.fixed), digest([network.fixed[n] for n in sorted(network.fixed)])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ----------------------------------------------------------------------------------------------------
# Tensors as vectors of a message: float64 holds every float32, so that nothing is rounded on the way
# ----------------------------------------------------------------------------------------------------


def vector(tensor: Tensor) -> Array:
    """Return a tensor as a float64 vector."""
    return np.array(tensor.detach().cpu().double().reshape(-1).numpy())


def read_tensor(message: Message, name: str, like: Tensor) -> Tensor:
    """Return a vector of a message as a tensor of this shape, finite also in this dtype."""
    found = torch.tensor(message.vector(name, like.numel()), dtype=like.dtype, device=like.device).view(like.shape)
    if not bool(torch.isfinite(found).all()):
        raise message.refusal(name, f"finite in {like.dtype}", "larger numbers")
    return found


def read_precision(message: Message, name: str, like: Tensor) -> Tensor:
    """Return a precision, all of whose entries are positive."""
    found = read_tensor(message, name, like)
    if not bool((found > 0).all()):
        raise message.refusal(name, "a distribution's: positive", f"{float(found.min()):g}")
    return found


def packed(buffers: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return running statistics as one named vector; nothing where there are none."""
    return {"statistics": np.concatenate([vector(value) for value in buffers.values()])} if buffers else {}


def unpacked(message: Message, name: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `packed`; a variance or a counter below zero is refused."""
    if not like:
        return {}
    sizes = [value.numel() for value in like.values()]
    pieces = torch.tensor(message.vector(name, sum(sizes))).split(sizes)
    found = {key: piece.to(value.dtype) for (key, value), piece in zip(like.items(), pieces, strict=True)}
    for (key, value), piece in zip(found.items(), pieces, strict=True):
        # a float is rounded, as elsewhere; a counter that is no whole number of its dtype is none
        if not bool((torch.isfinite(value) if value.is_floating_point() else value.double() == piece).all()):
            raise message.refusal(f"{name} of {key}", f"numbers of {value.dtype}", f"{float(piece.abs().max()):g}")
        if key.rpartition(".")[2] in NOT_NEGATIVE and not bool((value >= 0).all()):
            raise message.refusal(f"{name} of {key}", ">= 0", f"{float(value.min()):g}")
    return {key: found[key].to(value.device).view(value.shape) for key, value in like.items()}


def spoken_q(q: Broadcast) -> dict[str, Array]:
    """Return q_g as vectors (m, s): the product s·m would be a rounding away from what one process holds."""
    return {"mean": vector(q.mean), "precision": vector(q.precision), **packed(q.buffers)}


def read_q(message: Message, like: Broadcast) -> Broadcast:
    """Inverse of `spoken_q`."""
    mean, precision = read_tensor(message, "mean", like.mean), read_precision(message, "precision", like.precision)
    return Broadcast(mean, precision, unpacked(message, "statistics", like.buffers))
