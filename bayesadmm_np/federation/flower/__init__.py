"""The transport of Flower, with sites on other machines; running needs `pip install 'bayesadmm-np[flower]'`."""

from .apps import client_app, server_app

__all__ = ["client_app", "server_app"]
