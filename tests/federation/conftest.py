import warnings
from importlib.util import find_spec

import pytest

if find_spec("flwr") is not None:
    # the typer that Flower is pinned to warns about its click
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import flwr.clientapp
        import flwr.serverapp  # noqa: F401


@pytest.fixture
def call(bayesadmm, tmp_path, monkeypatch):
    """Type a command in a folder of the test's own; return exit code, standard output and standard error."""
    pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    return lambda text: bayesadmm(*text.split())
