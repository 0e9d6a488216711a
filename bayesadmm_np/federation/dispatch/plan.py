"""The plan of a server: the run, how many sites it waits for, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..._errors import ArgumentError
from ..._validation import as_count, as_fraction, as_positive
from .. import Coordinator, load_server
from ..engine import Task


@dataclass(frozen=True)
class Plan:
    """A run over a transport, as the server sees it.

    Parameters
    ----------
    task : GLMTask or NetworkTask
        What is to be fitted, and how.
    folder : path
        Folder of the checkpoint. If it holds an unfinished run, that run goes on.
    sites : int
        Number of sites. The run begins when so many sites have said hello.
    least : int, default 1
        Number of answers that a round needs; sites without an answer keep their factor. When the residuals are below
        tol, and only the certificate is missing, the round needs the answers of all sites.
    participation : float, default 1.0
        Fraction of the sites that are asked in a round, at least one, drawn as in `run`. When the residuals are below
        tol all are asked, so that the run can end.
    deadline : float, default 600.0
        Seconds that a site has for an answer.
    patience : float, default 3600.0
        Seconds without enough sites after which the run stops, to be resumed.

    Raises
    ------
    ValueError
        When a number is out of range, or `least` exceeds the sites that are asked.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import GLMTask
    >>> from bayesadmm_np.federation.dispatch import Plan
    >>> task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    >>> plan = Plan(task, "run", sites=4, least=2)
    >>> plan.deadline
    600.0
    """

    task: Task
    folder: Path
    sites: int
    least: int = 1
    participation: float = 1.0
    deadline: float = 600.0
    patience: float = 3600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        as_count(self.sites, "sites")
        as_count(self.least, "least")
        as_fraction(self.participation, "participation")
        as_positive(self.deadline, "deadline")
        as_positive(self.patience, "patience")
        asked = max(1, round(self.participation * self.sites))
        if self.least > asked:
            expected = f"must be at most the sites that are asked in a round, {asked}"
            raise ArgumentError("least", expected, self.least)

    def load(self) -> Coordinator:
        """Read the checkpoint."""
        return load_server(self.folder, self.task.model)
