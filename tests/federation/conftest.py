import warnings
from importlib.util import find_spec

if find_spec("flwr") is not None:
    # the typer that Flower is pinned to warns about its click
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flwr.clientapp
        import flwr.serverapp  # noqa: F401
