"""Threads of a parallel test run, and which doctests are collected.

Doctests are collected where their optional package is installed, and never from the helpers of tests/.
"""

import os
from importlib.util import find_spec

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # workers share the cores; the libraries read these when they are imported, which is later
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

NEEDS = {"torch/*": "torch", "federation/flower/*": "flwr"}

collect_ignore_glob = [
    "tests/*conftest.py",
    "tests/oracles/*",
    *(f"bayesadmm_np/{modules}" for modules, needed in NEEDS.items() if find_spec(needed) is None),
]


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers():
    """`-n auto`: at most four, as each worker imports and collects everything."""
    return min((yield), 4)
