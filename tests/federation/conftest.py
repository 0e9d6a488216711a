import warnings
from importlib.util import find_spec

collect_ignore = []
if find_spec("flwr") is None:
    collect_ignore.append("loopback.py")
else:
    # the typer that Flower is pinned to warns about its click
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flwr.clientapp
        import flwr.serverapp  # noqa: F401
