"""What the tests of both kinds of data share: an empty cache and a network that is down, and folders of real files."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def no_variable(monkeypatch):
    monkeypatch.delenv("BAYESADMM_DATA", raising=False)


@pytest.fixture
def cache(monkeypatch, tmp_path, no_variable):
    """An empty pooch cache, and a network that is down."""
    pooch = pytest.importorskip("pooch")
    folder = tmp_path / "cache"

    def retrieve(url, known_hash, fname, path):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "os_cache", lambda name: folder)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return folder


@pytest.fixture
def downloads(cache, monkeypatch):
    """Let a download write a file by `write(path)`; the list of (URL, sum, path) of each download."""
    import pooch

    calls = []

    def let(write):
        def retrieve(url, known_hash, fname, path):
            calls.append((url, known_hash, Path(path, fname)))
            Path(path).mkdir(exist_ok=True)
            write(Path(path, fname))

        monkeypatch.setattr(pooch, "retrieve", retrieve)
        return calls

    return let


@pytest.fixture
def real_folder():
    """The directory BAYESADMM_DATA, if one of these files is in it."""

    def find(*names):
        named = os.environ.get("BAYESADMM_DATA")
        if not named:
            pytest.skip(f"BAYESADMM_DATA is not set: the real {' or '.join(names)} is not tested")
        if not any(Path(named, name).is_file() for name in names):
            pytest.skip(f"no {' or '.join(names)} in the directory BAYESADMM_DATA: the real one is not tested")
        return named

    return find
