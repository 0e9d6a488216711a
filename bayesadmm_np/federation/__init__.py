"""Runs with sites elsewhere: a server and sites that share no memory, with the answer of one process."""

from .._signatures import SigningKey
from .disclosure import DisclosureError, DisclosureRules
from .folders import final_result, load_server, start_server, step_server, step_site
from .glm_site import GLMData
from .glm_spec import GLMTask
from .identity import site_key
from .messages import Message, MessageError
from .server import Coordinator
from .site import Site
from .tables import GLMTable

__all__ = [
    "Coordinator",
    "DisclosureError",
    "DisclosureRules",
    "GLMData",
    "GLMTable",
    "GLMTask",
    "Message",
    "MessageError",
    "SigningKey",
    "Site",
    "final_result",
    "load_server",
    "site_key",
    "start_server",
    "step_server",
    "step_site",
]
