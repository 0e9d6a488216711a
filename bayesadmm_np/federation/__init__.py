"""Runs with sites elsewhere: a server and sites that share no memory, with the answer of one process."""

from .._signatures import SigningKey
from .disclosure import DisclosureError, DisclosureRules
from .folders import (
    FinalResult,
    ask_copy,
    final_result,
    give_copy,
    load_server,
    missing_sites,
    start_server,
    step_server,
    step_site,
)
from .glm_site import GLMData
from .glm_spec import GLMSpec, GLMTask
from .identity import site_key
from .messages import Message, MessageError, Outcome
from .server import Coordinator
from .site import Site
from .spec import RunSpec
from .tables import GLMTable

__all__ = [
    "Coordinator",
    "DisclosureError",
    "DisclosureRules",
    "FinalResult",
    "GLMData",
    "GLMSpec",
    "GLMTable",
    "GLMTask",
    "Message",
    "MessageError",
    "Outcome",
    "RunSpec",
    "SigningKey",
    "Site",
    "ask_copy",
    "final_result",
    "give_copy",
    "load_server",
    "missing_sites",
    "site_key",
    "start_server",
    "step_server",
    "step_site",
]
