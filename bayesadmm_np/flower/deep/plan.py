"""What a server wants that trains a network: the run, and how long and for how many sites it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from ..._validation import as_count, as_fraction, as_positive
from ...exchange.files import STATE
from ...exchange.message import Message
from ...splitting.methods import Method
from ...torch.team import read_device, read_network
from .server import DeepCoordinator, terms_of

__all__ = ["DeepPlan"]


@dataclass(frozen=True)
class DeepPlan:
    """A run of a network on Flower as the server sees it: for `conduct` and `server_app`, in place of a `Plan`.

    Parameters
    ----------
    method : Method
    model : Module
        The run starts at its parameters.
    folder : path
        Of the checkpoint; with one of an unfinished run in it, that run goes on.
    sites : int
        The run begins when so many sites have said hello.
    options : mapping, optional
        Keyword arguments of `DeepCoordinator.start`: prior_precision, solver, temperature, rounds, seed.
    least, participation, deadline, patience, keyed
        As in `Plan`.

    Raises
    ------
    ValueError
        When a number is out of range, or `least` exceeds the sites that are asked.

    Examples
    --------
    One site, in this process:

    >>> import tempfile
    >>> import torch
    >>> from bayesadmm_np.flower import answer, conduct
    >>> from bayesadmm_np.flower.deep import DeepPlan, DeepSite
    >>> from bayesadmm_np.torch import IVONADMM, IVONSteps, Rows
    >>> X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    >>> model = torch.nn.Linear(2, 2)
    >>> site = DeepSite("A", Rows(X, (X[:, 0] > 0).long()), model)
    >>> class Here:
    ...     def nodes(self):
    ...         return {1}
    ...
    ...     def push(self, requests, seconds):
    ...         self.said = answer(requests[1], folder, lambda terms: (site, site.hello()))
    ...         return {"ticket": 1}
    ...
    ...     def pull(self, tickets):
    ...         return {"ticket": self.said}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     plan = DeepPlan(IVONADMM(), model, folder, sites=1, options={"rounds": 2})
    ...     server = conduct(plan, Here(), "7", print)
    >>> server.outcome.status.name, server.state.round, server.model()(X).shape
    ('ROUND_LIMIT', 2, torch.Size([30, 2]))
    """

    method: Method
    model: nn.Module
    folder: Path
    sites: int
    options: Mapping[str, Any] | None = None
    least: int = 1
    participation: float = 1.0
    deadline: float = 600.0
    patience: float = 3600.0
    keyed: bool = False

    max_staleness: ClassVar[int] = 0
    """Rounds only."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        as_count(self.sites, "sites")
        as_count(self.least, "least")
        as_fraction(self.participation, "participation")
        as_positive(self.deadline, "deadline")
        as_positive(self.patience, "patience")
        asked = max(1, round(self.participation * self.sites))
        if self.least > asked:
            raise ValueError(f"least must be at most the sites that are asked in a round, {asked}, got {self.least}.")

    def begin(self, hellos: Sequence[Message]) -> DeepCoordinator:
        """Make the run of the sites that said hello."""
        return DeepCoordinator.start(hellos, self.method, self.model, **(self.options or {}))

    def load(self) -> DeepCoordinator:
        """Read the checkpoint."""
        return DeepCoordinator.restore(Message.read(self.folder / STATE), self.model)

    def is_of(self, server: DeepCoordinator) -> bool:
        """Whether the server's run has the settings of this plan."""
        sites = dict(zip(server.terms.sites, server.terms.sizes, strict=True))
        asked = terms_of(read_network(self.model, read_device("cpu")), sites, self.method, **(self.options or {}))
        return asked.run == server.terms.run
