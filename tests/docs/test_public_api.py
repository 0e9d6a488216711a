"""Promises about the package as a whole: what it imports, what it documents, and what it does not do."""

import ast
import contextlib
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import bayesadmm_np

PACKAGE = Path(bayesadmm_np.__file__).resolve().parent
FACES = [
    *("", ".families", ".losses", ".clients", ".splitting", ".splitting.methods", ".data", ".data.partition"),
    *(".estimators", ".federation", ".federation.dispatch", ".federation.flower", ".testing"),
]
"""Modules whose names a user is meant to call."""

SOURCES = sorted(PACKAGE.rglob("*.py"))
TREES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def module_of(path):
    parts = ["bayesadmm_np", *path.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [module_of(path) for path in SOURCES if path.name != "__main__.py"]

# ----------------------------------------------------------------------------------------------------
# What the package imports
# ----------------------------------------------------------------------------------------------------

OPTIONAL = [
    "sklearn",
    "matplotlib",
    "sympy",
    "pooch",
    "tqdm",
    "cyclopts",
    "msgspec",
    "joblib",
    "torch",
    "pytest",
    "pandas",
    "polars",
    "dp_accounting",
    "flwr",
    "mpmath",
    "numba",
    "threadpoolctl",
]

IMPORT = """
import json, sys, time
import numpy, scipy.linalg, scipy.special
before, start = set(sys.modules), time.perf_counter()
import bayesadmm_np
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "new": sorted(set(sys.modules) - before), "all": sorted(sys.modules)}))
"""


def import_in_a_fresh_interpreter(code, folder):
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_import_pulls_in_nothing_optional(tmp_path, capsys):
    """NumPy, SciPy and the standard library; the time is printed, not asserted: it is the machine's."""
    found = import_in_a_fresh_interpreter(IMPORT, tmp_path)
    loaded = {name.partition(".")[0] for name in found["all"]}
    assert loaded.isdisjoint(OPTIONAL)
    # SciPy's statistics take longer to import than the rest of the package
    assert "scipy.stats" not in found["all"]
    added = {name.partition(".")[0] for name in found["new"]}
    assert added - set(sys.stdlib_module_names) <= {"bayesadmm_np", "numpy", "scipy"}
    with capsys.disabled():
        print(f"\nimport bayesadmm_np: {1e3 * found['seconds']:.0f} ms on top of numpy and scipy")


def test_what_the_face_offers_can_be_imported():
    """Broken twin: an attribute that is no module."""
    for room in ("families", "losses", "clients", "methods"):
        assert importlib.import_module(f"bayesadmm_np.{room}") is getattr(bayesadmm_np, room)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("bayesadmm_np.Status")


FRESH = """
import json, pickle, sys
import numpy, scipy.linalg, scipy.special
import {face} as face
offered = sorted(set(face.__all__) - set(dir(face)))
loaded = sorted(set(face.__all__) - set(vars(face)))
kept = [name for name in loaded if callable(getattr(face, name)) and getattr(face, name).__module__.startswith("{face}")
        and pickle.loads(pickle.dumps(getattr(face, name))) is not getattr(face, name)]
print(json.dumps({{"missing": offered, "later": loaded, "not pickled": kept}}))
"""


@pytest.mark.parametrize("face", ["bayesadmm_np", "bayesadmm_np.estimators"])
def test_what_is_loaded_later_is_completed_and_pickled(face, tmp_path):
    """Tab completion lists what nobody has asked for yet; twin: a module's own list has not got it."""
    found = import_in_a_fresh_interpreter(FRESH.format(face=face), tmp_path)
    assert found["later"]
    assert not found["missing"]
    assert not found["not pickled"]
    twin = FRESH.format(face=face).replace("dir(face)", "vars(face)")
    assert import_in_a_fresh_interpreter(twin, tmp_path)["missing"] == found["later"]


def test_the_import_check_can_fail(tmp_path):
    found = import_in_a_fresh_interpreter(
        IMPORT.replace("import bayesadmm_np", "import bayesadmm_np, pytest"), tmp_path
    )
    assert "pytest" in found["new"]


# ----------------------------------------------------------------------------------------------------
# Names and docstrings
# ----------------------------------------------------------------------------------------------------


def public(module):
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def undocumented(name):
    """Yield names that a module lists without a docstring of their own, or lists twice."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if getattr(error.__cause__ or error, "name", None) in OPTIONAL:
            return  # a package that is not installed
        raise
    listed = list(getattr(module, "__all__", ()))
    if len(set(listed)) < len(listed) or not (module.__doc__ or name.endswith("_version")):
        yield name
    for item in listed:
        thing = getattr(module, item)
        is_code = inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
        if is_code and not thing.__doc__:
            yield f"{name}.{item}"


def test_every_listed_name_exists_and_is_documented():
    assert [wrong for name in MODULES for wrong in undocumented(name)] == []


def hidden(face):
    """Return public names of a face, or of a file that is one, that its `__all__` does not list."""
    module = importlib.import_module("bayesadmm_np" + face)
    home = module.__name__ if face.endswith(("methods", "partition", "testing")) else "bayesadmm_np"
    own = {
        f"{face}.{name}"
        for name, thing in vars(module).items()
        if not name.startswith("_") and str(getattr(thing, "__module__", "")).startswith(home)
    }
    return own - {f"{face}.{name}" for name in module.__all__}


def test_faces_list_what_they_offer():
    assert [name for face in FACES for name in sorted(hidden(face))] == []


ROOMS = ["", ".families", ".losses", ".clients", ".splitting", ".theory", ".data", ".estimators", ".federation"]
ROOMS += [".torch", ".testing"]
MOST_NAMES = 170


def test_public_names_are_few():
    """A new name takes the place of another; those of the rooms without their package are not counted."""
    names = []
    for room in ROOMS:
        with contextlib.suppress(ImportError):
            names += importlib.import_module("bayesadmm_np" + room).__all__
    assert 100 < len(names) <= MOST_NAMES


CALLED = {
    f"{thing.__module__}.{thing.__qualname__}": thing
    for face in FACES
    for thing in public(importlib.import_module("bayesadmm_np" + face)).values()
    if inspect.isclass(thing) or inspect.isfunction(thing)
}
"""Every class and function that a user may call, by its full name."""

NOT_CALLED = {
    # abstract: a user meets their subclasses
    "ExponentialFamily",
    "Gaussian",
    "Loss",
    "Rule",
    "Solver",
    # results: made by the package
    "Certificate",
    "ClientRecord",
    "ClientStatus",
    "DataUnavailableError",
    "Edges",
    "Agreement",
    "FittedGLM",
    "ArchiveError",
    "Summary",
    "SummaryRow",
    "TooFewError",
    "WithheldError",
    "Expected",
    "GaussianExpected",
    "NotPositiveDefiniteError",
    "Result",
    "RoundRecord",
    "RunError",
    "TableError",
    "Solution",
    "Status",
    # the row type of the table and the argument of a solver: shown in the examples of methods and of solvers
    "Method",
    "Subproblem",
}


def sections(thing):
    """The titles of the underlined sections of a numpydoc docstring."""
    return re.findall(r"^(\w[\w ]*)\n-{3,}$", inspect.getdoc(thing) or "", flags=re.MULTILINE)


EXAMPLED = {name: thing for name, thing in CALLED.items() if name.rpartition(".")[2] not in NOT_CALLED}


def test_what_a_user_calls_has_an_example():
    without = [
        name
        for name, thing in EXAMPLED.items()
        if "Examples" not in sections(thing) or ">>> " not in inspect.getdoc(thing)
    ]
    assert without == []


def test_exceptions_are_named_once_and_exist():
    assert {name.rpartition(".")[2] for name in CALLED} >= NOT_CALLED


def bodies(thing):
    """The syntax trees of what runs when a user calls `thing`."""
    if inspect.isfunction(thing):
        written = [thing]
    else:
        own = [inspect.getattr_static(thing, name, None) for name in ("__init__", "__post_init__")]
        # the __init__ that a dataclass generates has no source, and raises nothing by itself
        written = [method for method in own if inspect.isfunction(method) and method.__code__.co_filename[0] != "<"]
    return [ast.parse(textwrap.dedent(inspect.getsource(method))) for method in written]


def may_raise(thing):
    """Whether a body raises, or checks an argument by one of the package's validators."""
    for node in (node for body in bodies(thing) for node in ast.walk(body)):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith(("as_", "read_")):
            return True
    return False


RAISING = [name for name, thing in CALLED.items() if may_raise(thing)]


def test_what_may_raise_says_so():
    assert [name for name in RAISING if "Raises" not in sections(CALLED[name])] == []
    names = {name.rpartition(".")[2] for name in RAISING}
    assert {"FullGaussian", "Softmax", "VON", "BayesADMM", "QuasiMonteCarlo"} <= names


def parameters(thing):
    """The entries of the Parameters section: name → (type, default as text or None)."""
    text = inspect.getdoc(thing) or ""
    match = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-{3,}$|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    found = {}
    for names, kind in re.findall(
        r"^(\*{0,2}\w[\w, *]*?)(?: : (.+))?$", match.group(1) if match else "", flags=re.MULTILINE
    ):
        default = re.search(r"\bdefault (.+)$", kind)
        for name in names.split(", "):
            found[name.lstrip("*")] = kind, default.group(1) if default else None
    return found


def wrong_parameters(thing):
    """Sentences about each difference between the Parameters section and the signature."""
    documented, signature = parameters(thing), inspect.signature(thing).parameters
    pointer = re.search(r"Other parameters and attributes are those of `(\w+)`", inspect.getdoc(thing) or "")
    if pointer:
        whole = {**parameters(getattr(importlib.import_module("bayesadmm_np.estimators"), pointer[1])), **documented}
        documented = {name: whole[name] for name in signature if name in whole}
    if not documented:
        return [] if not signature else [f"undocumented: {list(signature)}"]
    wrong = []
    if list(documented) != list(signature):
        wrong.append(f"documented {list(documented)}, signature {list(signature)}")
    for name, (kind, default) in documented.items():
        if name not in signature:
            continue
        actual = signature[name].default
        if actual is inspect.Parameter.empty or actual is None:
            if default not in (None, "None"):
                wrong.append(f"{name}: documented default {default}, signature has {actual}")
            if (actual is None) and not ("optional" in kind or default == "None"):
                wrong.append(f"{name}: may be left out, which is not documented")
        elif default is None:
            # {first, other}: the first of a list of choices is the default
            if not kind.startswith(f"{{{actual!r},"):
                wrong.append(f"{name}: the default {actual!r} is not documented")
        elif default not in (repr(actual), str(actual)) and not same_number(default, actual):
            wrong.append(f"{name}: documented default {default}, signature has {actual!r}")
    return wrong


def same_number(text, value):
    try:
        return float(text) == float(value)
    except (TypeError, ValueError):
        return False


def test_documented_parameters_are_those_of_the_signature():
    assert {name: wrong for name, thing in EXAMPLED.items() if (wrong := wrong_parameters(thing))} == {}


def test_the_check_of_parameters_can_fail():
    def good(tol=1e-8, memory=5, site=None):
        """Do.

        Parameters
        ----------
        tol : float, default 1e-8
        memory : int, default 5
            Of the mixing.
        site : Natural, optional
        """

    def bad(tol=1e-8, memory=5, site=None, seed=0):
        """Do.

        Parameters
        ----------
        memory : int, default 6
        tol : float
        site : Natural
        """

    assert not wrong_parameters(good)
    assert len(wrong_parameters(bad)) == 4


# ----------------------------------------------------------------------------------------------------
# Things that the package does not do
# ----------------------------------------------------------------------------------------------------


def dotted(node):
    """`np.linalg.inv` as text, or an empty string."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


LEGACY_RANDOM = {"seed", "rand", "randn", "random", "normal", "uniform", "choice", "permutation", "shuffle", "randint"}


SEEDED = ["random", "np.random.seed"]
"""What a user's Dataset draws from: global generators, which are seeded row by row and put back."""


def misdeeds(tree):
    """Explicit inverses, pickles, the global generator, unseeded generators and evaluations of text."""
    found = []
    for node in ast.walk(tree):
        name = dotted(node) if isinstance(node, ast.Attribute) else ""
        if name.endswith(("linalg.inv", "linalg.pinv")):
            found.append(name)
        if name.startswith(("np.random.", "numpy.random.")) and name.rpartition(".")[2] in LEGACY_RANDOM:
            found.append(name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found += [
                n for n in names if n in {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "random", "inv", "pinv"}
            ]
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and not is_false(node.value):
            found.append("allow_pickle")
        if isinstance(node, ast.Call):
            called = dotted(node.func) or getattr(node.func, "id", "")
            if called.endswith("default_rng") and not (node.args or node.keywords):
                found.append("default_rng()")
            if called in {"eval", "exec"}:
                found.append(called)
    return found


def is_false(node):
    return isinstance(node, ast.Constant) and node.value is False


def test_no_inverse_no_pickle_no_global_seed():
    found = {file: wrong for file, tree in TREES.items() if (wrong := misdeeds(tree))}
    assert found == {"torch/stream.py": SEEDED}


def test_the_check_of_misdeeds_can_fail():
    for source in (
        "np.linalg.inv(S)",
        "from scipy.linalg import inv",
        "scipy.linalg.pinv(S)",
        "np.random.seed(0)",
        "numpy.random.randn(3)",
        "import pickle",
        "from pickle import loads",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "rng = np.random.default_rng()",
        "import random",
        "eval(text)",
    ):
        assert misdeeds(ast.parse(source)), source
    right = "rng = np.random.default_rng(seed)\nnp.load(path, allow_pickle=False)\nS.solve(v)"
    assert not misdeeds(ast.parse(right))


def test_numpy_loads_say_that_they_do_not_unpickle():
    """`np.load` without the keyword would do (its default is False), but says less."""
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and dotted(node.func) in {"np.load", "numpy.load"}:
                assert "allow_pickle" in {keyword.arg for keyword in node.keywords}, file
