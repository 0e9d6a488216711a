"""Runs with sites elsewhere: a server and sites that share no memory, with the answer of one process."""

from .agreeing import needed_grids
from .folders import FinalResult, final_result, load_server, missing_sites, start_server, step_server, step_site
from .glm import GLMData, GLMSpec, GLMTask
from .messages import Message, MessageError, Outcome
from .server import Coordinator
from .site import Site
from .spec import RunSpec
from .tables import GLMTable

__all__ = [
    "Coordinator",
    "FinalResult",
    "GLMData",
    "GLMSpec",
    "GLMTable",
    "GLMTask",
    "Message",
    "MessageError",
    "Outcome",
    "RunSpec",
    "Site",
    "final_result",
    "load_server",
    "missing_sites",
    "needed_grids",
    "start_server",
    "step_server",
    "step_site",
]
