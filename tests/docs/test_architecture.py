"""The floors of docs/architecture.md: no module imports a floor above its own, or a package its room does not list."""

import ast
import functools
import re
import sys
from pathlib import Path

import bayesadmm_np

PACKAGE = Path(bayesadmm_np.__file__).resolve().parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "architecture.md"
ROW = re.compile(r"^\| (\d+) \| (`.+?) \| (.*?) \| .+ \|$", flags=re.MULTILINE)
FACE = "bayesadmm_np"


def read_floors(page):
    """Return {room: floor}, and {room: (packages that it imports, packages that only its functions import)}."""
    floors, packages = {}, {}
    for number, rooms, others in ROW.findall(page):
        always, _, lazily = others.partition("(")
        for room in re.findall(r"`(\w+)`", rooms):
            assert room not in floors, f"{room} stands on two floors"
            floors[room] = int(number)
            packages[room] = tuple(set(re.findall(r"`(\w+)`", part)) for part in (always, lazily))
    return floors, packages


FLOORS, PACKAGES = read_floors(PAGE.read_text(encoding="utf-8"))


def module_of(path):
    """Return the dotted name; scripts of demos/ are installed as bayesadmm_np.demos."""
    inside = path.relative_to(ROOT if ROOT / "demos" in path.parents else PACKAGE).with_suffix("").parts
    return ".".join([FACE, *(inside[:-1] if inside[-1] == "__init__" else inside)])


SOURCES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "demos").glob("*.py")])
TEXTS = {module_of(path): (path.read_text(encoding="utf-8"), path.name == "__init__.py") for path in SOURCES}


def room_of(module):
    """Return the room of a module; the face, what `import bayesadmm_np` loads first, is one too."""
    return [*module.split("."), FACE][1]


@functools.cache
def named_imports(source, module, is_package=False):
    """List (module, whether only a function imports it, names) for every import that runs, wherever in the file."""
    base = module.split(".") if is_package else module.split(".")[:-1]
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    never = {id(node) for branch in types for node in ast.walk(branch)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in never:
            found += [(alias.name, id(node) in inside, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and id(node) not in never:
            start = base[: len(base) - node.level + 1] if node.level else []
            target = ".".join([*start, *([node.module] if node.module else [])])
            found.append((target, id(node) in inside, tuple(alias.name for alias in node.names)))
    return found


def imports(source, module, is_package=False):
    """Yield (module, whether only a function imports it); a name of the face counts as a module of it."""
    for target, in_function, names in named_imports(source, module, is_package):
        yield from ((f"{target}.{name}", in_function) for name in names) if target == FACE else [(target, in_function)]


def violations(source, module, is_package=False):
    """Say what a source may not import."""
    room = room_of(module)
    always, lazily = PACKAGES[room]
    for target, in_function in imports(source, module, is_package):
        package = target.split(".")[0]
        if package == FACE:
            # a name of the face that is no room: `from bayesadmm_np import run`
            other = room_of(target) if room_of(target) in FLOORS else FACE
            if other != room and FLOORS[other] >= FLOORS[room]:
                yield f"{room} (floor {FLOORS[room]}) imports {target} (floor {FLOORS[other]})"
        elif package not in {*sys.stdlib_module_names, *always, *(lazily if in_function else ())}:
            yield f"{room} imports {target}" + (" outside of a function" if package in lazily else "")


def neighbours(sources):
    """Return {module: modules of the package that its file imports}; `sources` maps a module to (text, is_package)."""
    found = {}
    for module, (source, is_package) in sources.items():
        targets = set()
        for target, _, names in named_imports(source, module, is_package):
            inner = {f"{target}.{name}" for name in names} & set(sources)
            targets |= inner or {target}  # `from . import losses` names a module, `from .losses import Loss` does not
        found[module] = targets & set(sources) - {module}
    return found


def circles(graph):
    """Return the sets of modules that reach each other, two or more."""

    def reached(start):
        seen, todo = set(), [start]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    below = {module: reached(module) for module in graph}
    return {
        frozenset({module, *(m for m in below[module] if module in below[m])})
        for module in graph
        if module in below[module]
    }


def test_every_room_has_a_floor():
    rooms = {room_of(module) for module in TEXTS}
    assert rooms == set(FLOORS), (
        "docs/architecture.md: give a new room its row, and take away the row of one that is gone"
    )


def test_no_module_imports_a_floor_above_its_own():
    assert [wrong for module, (source, package) in TEXTS.items() for wrong in violations(source, module, package)] == []


def test_the_core_needs_numpy_and_scipy_alone():
    for room in ("families", "losses", "clients", "splitting", FACE):
        assert PACKAGES[room][0] <= {"numpy", "scipy"}, room
        assert FLOORS[room] <= FLOORS[FACE]


def test_every_listed_package_is_imported():
    """A package that a room no longer needs leaves the table."""
    found = {room: set() for room in FLOORS}
    for module, (source, is_package) in TEXTS.items():
        found[room_of(module)] |= {target.split(".")[0] for target, _ in imports(source, module, is_package)}
    unused = {room: (always | lazily) - found[room] for room, (always, lazily) in PACKAGES.items()}
    assert {room: names for room, names in unused.items() if names} == {}


def test_no_files_import_each_other_in_a_circle():
    assert not circles(neighbours(TEXTS))


def test_a_circle_is_seen():
    a, b = f"{FACE}.losses.a", f"{FACE}.losses.b"
    assert circles(neighbours({a: ("from .b import B", False), b: ("def f():\n    from . import a", False)})) == {
        frozenset({a, b})
    }
    assert not circles(
        neighbours({a: ("from .b import B", False), b: ("if TYPE_CHECKING:\n    from . import a", False)})
    )


UP = [
    ("from ..losses.base import Loss", "families.gaussians"),
    ("def f():\n    from bayesadmm_np.clients import VON", "losses.total"),
    ("import bayesadmm_np.splitting.loop", "clients.newton"),
    ("from .. import losses", "families.gaussians"),
    ("from bayesadmm_np.data import load_digits", "splitting.loop"),
    ("from ..estimators import kinds", "data.images"),
    ("from bayesadmm_np import run", "losses.total"),
    ("from ..torch import run", "estimators.base"),
    ("from ..cli.fit import fit", "demos.shared"),
]
OUTSIDE = [
    ("import torch", "splitting.loop"),
    ("import pandas", "losses.total"),
    ("import joblib", "splitting.loop"),
    ("from sklearn.base import BaseEstimator", "torch.loop"),
    ("def f():\n    import matplotlib", "families.gaussians"),
]


def test_an_arrow_up_and_a_package_too_many_are_seen():
    """Broken twins."""
    seen = [len(list(violations(source, f"{FACE}.{module}"))) for source, module in [*UP, *OUTSIDE]]
    assert seen == [1] * len(seen)


def test_arrows_down_are_allowed():
    below = "from ..families.base import ExponentialFamily\nfrom .base import Loss\nimport scipy.special"
    assert not list(violations(below, f"{FACE}.losses.x"))
    assert not list(violations("from ..data import partition\nfrom .. import run", f"{FACE}.cli.x"))
    assert not list(violations("def f():\n    import joblib", f"{FACE}.splitting.loop"))
    assert not list(violations("from . import families, losses", FACE, is_package=True))
    assert list(violations("from . import data", FACE, is_package=True))


def missing(page):
    """Files and folders that a page names and that are not there: from the root, or from the package."""
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|\.toml|\.yml|/))`", page)
    return [name for name in named if not any((base / name).exists() for base in (ROOT, PACKAGE))]


def test_every_file_that_the_page_names_is_there():
    page = PAGE.read_text(encoding="utf-8")
    assert missing(page) == []
    assert missing(page + "`splitting/nowhere.py`") == ["splitting/nowhere.py"]


KEPT = {
    "_json": "the writers of bytes, which a forger replaces",
    "_utf8": "the writers of bytes, which a forger replaces",
    "_rows": "rows that a pickled estimator must not hold",
    "_agreed": "a step that a test's own server does otherwise",
    "_flower": "the import of an extra",
    "_fused": "kernels without their compiler",
    "_things": "what a registry held before a test",
    "_margins": "a loss of one's own that gives none",
    "_team": "what only a run can make",
    "_buffers": "memory that must not be copied",
    "_draw": "kernels without their compiler",
    "_update": "kernels without their compiler",
    "_block": "kernels without their compiler",
    "_circle": "kernels without their compiler",
    "_radius": "kernels without their compiler",
}
"""Names of a file's own that tests reach for all the same, and why."""


def reached(source):
    """Yield names of a file's own that a test takes from something else, and other tests that it imports.

    A broken twin may replace what is inside: that is what it is for.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            continue
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [] if (node.module or "").split(".")[0] in ("torch", "numpy") else [a.name for a in node.names]
            yield from (name for name in (node.module or "").split(".") if name.startswith("test_"))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[-1].startswith("test_"))
            continue
        else:
            continue
        for name in names:
            if name.startswith("_") and not name.endswith("__") and name not in FOREIGN and name not in KEPT:
                yield name


FOREIGN = {"_replace", "_asdict", "_fields", "_make", "_exit", "_dynamo", "_to_copy", "_message_id"}
"""Names of the standard library, and of other packages, that are their users' all the same."""
FILES = {path.stem for path in SOURCES if path.stem.startswith("_")}


def test_tests_know_no_name_of_a_files_own_and_no_other_test():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
    assert [(stem, name) for stem, text in texts.items() for name in set(reached(text)) - FILES] == []


def test_a_test_that_knows_too_much_is_seen():
    for source in ("loop._inner()", "from bayesadmm_np.run import _a", "from test_cli import f"):
        assert set(reached(source)) - FILES, source
