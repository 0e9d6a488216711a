"""The transport of Flower, with sites on other machines; running needs the extra `flower`."""

from .apps import server_app
from .node import run_node

__all__ = ["run_node", "server_app"]
