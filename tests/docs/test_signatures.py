"""The reference shows the estimators' arguments as Python has them."""

import importlib.util
import inspect
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe")
estimators = pytest.importorskip("bayesadmm_np.estimators")

ROOT = Path(__file__).parents[2]
NAMES = ("FederatedGLM", "FederatedLinearRegression", "FederatedLogisticRegression")


def shown(*extensions):
    """The arguments of each estimator with parameters of its own, by the documentation's reader."""
    package = griffe.load(
        "bayesadmm_np", search_paths=[str(ROOT)], extensions=griffe.load_extensions("dataclasses", *extensions)
    )
    homes = {name: getattr(estimators, name).__module__.partition(".")[2] for name in NAMES}
    return {name: [each.name for each in package[f"{home}.{name}"].parameters] for name, home in homes.items()}


def test_arguments_stand_as_python_has_them():
    pytest.importorskip("sklearn")
    spec = importlib.util.spec_from_file_location("signatures", ROOT / "docs" / "signatures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    right = {name: ["self", *inspect.signature(getattr(estimators, name)).parameters] for name in NAMES}
    assert shown(module.Signatures) == right
    assert shown() != right  # a broken twin, which has the kind second, and a penalty of least squares
