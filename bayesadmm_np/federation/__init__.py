"""Runs with sites elsewhere: a server and sites that share no memory, with the answer of one process."""

from .agreeing import ask_sites
from .folders import FinalResult, final_result, load_server, missing_sites, start_server, step_server, step_site
from .glm import GLMData, GLMSpec, GLMTask
from .messages import Message, MessageError, Outcome
from .server import Coordinator
from .site import Site
from .spec import RunSpec
from .tables import GLMTable, answer_question

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
    "answer_question",
    "ask_sites",
    "final_result",
    "load_server",
    "missing_sites",
    "start_server",
    "step_server",
    "step_site",
]
