"""Folders of messages: what a site or a server writes, in an order that lets an interrupted step be repeated."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..families.coordinates import Natural
from ..splitting.certificate import Certificate
from ..splitting.status import Status
from .glm_spec import GLMSpec
from .messages import Message, as_real, as_text, content_of, read_served, require_run
from .server import Coordinator, decode_certificate
from .site import Site
from .spec import RunSpec

__all__ = ["STATE", "FinalResult", "final_result", "load_server", "start_server", "step_server", "step_site"]

Path_ = str | os.PathLike[str]
STATE = "state.npz"


def step_site(folder: Path_, site: Site, broadcast: Path_, out: Path_ | None = None) -> tuple[Site, Path | None]:
    """Answer a broadcast file: read the site's state from `folder`, write the new state, then the reply.

    Interrupted anywhere, the step can be repeated and gives the same bytes.

    Parameters
    ----------
    folder : path
        The site's own.
    site : Site
        As made from its rows.
    broadcast : path
    out : path, optional
        Of the reply; default reply-<site>-<round>.npz in the folder.

    Returns
    -------
    site : Site
    reply : Path or None
        None after a final message.

    Raises
    ------
    MessageError
        When state or broadcast are refused; no file was changed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, step_site
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> folder = tempfile.TemporaryDirectory()
    >>> server.broadcast().write(f"{folder.name}/broadcast.npz")
    >>> site, reply = step_site(folder.name, site, f"{folder.name}/broadcast.npz")
    >>> reply.name
    'reply-A-0001.npz'
    >>> folder.cleanup()
    """
    state = Path(folder) / STATE
    known = site.restore(Message.read(state)) if state.exists() else site
    after, reply = known.step(Message.read(broadcast))
    after.save().write(state)
    if reply is None:
        return after, None
    path = Path(folder) / f"reply-{site.name}-{reply.header['round']:04d}.npz" if out is None else Path(out)
    reply.write(path)
    return after, path


def start_server(folder: Path_, server: Coordinator) -> Path:
    """Write a new run's state and its first broadcast; return the latter's path.

    Parameters
    ----------
    folder : path
    server : Coordinator

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        When the folder holds another run already.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, start_server
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> folder = tempfile.TemporaryDirectory()
    >>> start_server(folder.name, server).name
    'broadcast-0001.npz'
    >>> folder.cleanup()
    """
    state = Path(folder) / STATE
    if state.exists():
        found = Message.read(state)
        if RunSpec.read(found).run != server.spec.run:
            raise ValueError(f"{os.fspath(folder)} holds another run; step it, or give a new run a folder of its own.")
        return _publish(Path(folder), Coordinator.restored(found, server.engine))
    server.save().write(state)
    return _publish(Path(folder), server)


def load_server(folder: Path_, model: Any = None) -> Coordinator:
    """Read the server's state.

    Parameters
    ----------
    folder : path
    model : Module, optional
        The network, where the run is of one.

    Returns
    -------
    Coordinator

    Raises
    ------
    MessageError
        When there is none, or it is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, load_server, start_server
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> folder = tempfile.TemporaryDirectory()
    >>> broadcast = start_server(folder.name, server)
    >>> load_server(folder.name).number
    1
    >>> folder.cleanup()
    """
    return Coordinator.restore(Message.read(Path(folder) / STATE), model)


def step_server(folder: Path_, replies: Sequence[Path_], model: Any = None) -> tuple[Coordinator, Path]:
    """Take in reply files: write the new state, then the next broadcast or the final message.

    Without replies, or with those of the last step, the message that is out is written again.

    Parameters
    ----------
    folder : path
        The server's own.
    replies : sequence of path
    model : Module, optional
        The network, where the run is of one.

    Returns
    -------
    server : Coordinator
    message : Path

    Raises
    ------
    MessageError
        When the state or a reply is refused; no file was changed.
    ValueError
        When the run has ended.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, start_server, step_server
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> folder = tempfile.TemporaryDirectory()
    >>> broadcast = start_server(folder.name, server)
    >>> site, reply = site.step(server.broadcast())
    >>> reply.write(f"{folder.name}/reply.npz")
    >>> step_server(folder.name, [f"{folder.name}/reply.npz"])[1].name
    'broadcast-0002.npz'
    >>> folder.cleanup()
    """
    server = load_server(folder, model)
    after = server.step([Message.read(path) for path in replies]) if replies else server
    if after is not server:
        after.save().write(Path(folder) / STATE)
    return after, _publish(Path(folder), after)


def _publish(folder: Path, server: Coordinator) -> Path:
    path = folder / ("final.npz" if server.outcome is not None else f"broadcast-{server.number:04d}.npz")
    server.broadcast().write(path)
    return path


@dataclass(frozen=True, eq=False)
class FinalResult:
    """What a run came to, as the server knows it, or a site from the final message.

    Attributes
    ----------
    status : Status
    message : str
    spec : GLMSpec
        Names of sites, columns and classes, method and prior.
    posterior : Gaussian
        q_g, the last good one.
    sites : dict of str to Natural
        η_k by name; empty at a site, which is not told of the others'.
    objective : tuple of float
        At the start and after each round; NaN where a site was absent.
    certificate : Certificate or None
        None where a site did not send its sums at the last λ_g.
    """

    status: Status
    message: str
    spec: GLMSpec
    posterior: Any
    sites: dict[str, Natural]
    objective: tuple[float, ...]
    certificate: Certificate | None


def final_result(message: Message, server: Coordinator | None = None) -> FinalResult:
    """Read a final message; with the server's state also the sites' factors.

    Parameters
    ----------
    message : Message
    server : Coordinator, optional

    Returns
    -------
    FinalResult

    Raises
    ------
    MessageError
        When the message is not a final one, or damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Site, final_result
    >>> site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0]), ("dose",)))
    >>> task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server = Coordinator.start([site.hello()], task)
    >>> while server.outcome is None:
    ...     site, reply = site.step(server.broadcast())
    ...     server = server.step([reply])
    >>> result = final_result(server.broadcast(), server)
    >>> result.status.name, result.posterior.mean, list(result.sites)
    ('CONVERGED', array([0.5]), ['A'])
    """
    if message.kind != "final":
        raise message.refusal("kind", "'final'", message.kind)
    require_run(message)
    spec = RunSpec.read(message)
    if not isinstance(spec, GLMSpec):
        raise message.refusal("spec", "that of a run of losses of the core", spec.engine)
    served = read_served(message, spec, spec.at_server())
    header = message.header
    with content_of(message, "the result of a run"):
        status = Status[header["status"]]
        values = header["objective"] if isinstance(header["objective"], list) else [None]
        objective = tuple(as_real(message, "objective", value, finite=False) for value in values)
        certificate = decode_certificate(message, header["certificate"])
    return FinalResult(
        status=status,
        message=as_text(message, "message", header["message"]),
        spec=spec,
        posterior=served.q_g,
        sites={} if server is None else dict(zip(spec.sites, server.state.sites, strict=True)),
        objective=objective,
        certificate=certificate,
    )
