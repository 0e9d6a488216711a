"""The plan of a server: the run, how many sites it waits for, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..._errors import ArgumentError
from ..._validation import as_count, as_fraction, as_positive
from .. import Coordinator, load_server
from ..engine import Task, require_sum_of_factors


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
    max_staleness : int, default 0
        0: rounds, each of which ends when all who were asked have answered or are late. N > 0: asynchronous; an answer
        is folded in when it comes, from a λ_g at most N versions old, and others wait for a site that would fall
        further behind. A round is then a version: what came together.
    deadline : float, default 600.0
        Seconds that a site has for an answer.
    patience : float, default 3600.0
        Seconds without enough sites after which the run stops, to be resumed.
    keyed : bool, default False
        Nodes have keys: a site's name stays with the node that said it first.

    Raises
    ------
    ValueError
        When a number is out of range, `least` exceeds the sites that are asked, or an asynchronous run has `least` or
        `participation` other than 1, or a method whose server is not the prior and the sum of the sites' factors.

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
    max_staleness: int = 0
    deadline: float = 600.0
    patience: float = 3600.0
    keyed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        as_count(self.sites, "sites")
        as_count(self.least, "least")
        as_fraction(self.participation, "participation")
        if as_count(self.max_staleness, "max_staleness", minimum=0):
            require_sum_of_factors(self.task.method)
            for name, value in (("least", self.least), ("participation", self.participation)):
                if value != 1:
                    raise ArgumentError(name, "must be 1 in an asynchronous run, as every answer counts", value)
        as_positive(self.deadline, "deadline")
        as_positive(self.patience, "patience")
        asked = max(1, round(self.participation * self.sites))
        if self.least > asked:
            expected = f"must be at most the sites that are asked in a round, {asked}"
            raise ArgumentError("least", expected, self.least)

    def load(self) -> Coordinator:
        """Read the checkpoint."""
        return load_server(self.folder, self.task.model)
