"""Mutants: small wrong changes of the code that a machine makes, and whether a test notices each of them.

    python benchmarks/mutants.py families losses          # 60 mutants of each room
    python benchmarks/mutants.py clients/descent.py --sample 200 --seed 1

A mutant flips a comparison, swaps `and` and `or`, drops `not`, swaps + and − or · and /, doubles or halves a number,
makes a condition always true or false, or returns at the first statement of a function. The tests of the room run once
and say which of them run which line; a mutant runs, in a copy of the package, those that pass and run its line, the
quick ones first. Killed is a mutant with which a test fails, or the tests take a minute and four times as long.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
RESULTS, PACKAGE = ROOT / "benchmarks" / "results" / "mutants.json", "bayesadmm_np"
TRACE, NO_PLUGINS = "MUTANTS_TRACE", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"

TESTS = {"_archive.py": ["tests/test_archive.py"], "_numerics.py": ["tests/test_numerics.py"]}
"""Tests of a room; those of a folder are in the folder of the same name in tests/."""

FLIPPED = {
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
}
UNTOUCHED = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom


class Mutant(NamedTuple):
    """A change of one node."""

    line: int
    last_line: int
    was: str
    becomes: str
    source: str
    in_function: bool


def mutants(source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    text = source.encode()
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    for node, new, in_function in changes(ast.parse(source), False):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        changed = text[:begin] + new.encode() + text[end:]
        yield Mutant(node.lineno, node.end_lineno, ast.unparse(node), new, changed.decode(), in_function)


def changes(node: ast.AST, inside: bool) -> Iterator[tuple[Any, str, bool]]:
    """Yield (node, its new text, whether it is in a function), of a node and all below."""
    if isinstance(node, UNTOUCHED) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    match node:
        case ast.FunctionDef(body=body):
            first = next((one for one in body if not isinstance(one, UNTOUCHED | ast.Expr)), node)
            if first is not node and ast.unparse(first) not in ("return", "return None"):
                yield first, "return", True
            inside = True
        case ast.Compare(left=left, ops=[op], comparators=right):
            yield node, f"({ast.unparse(ast.Compare(left, [FLIPPED[type(op)]()], right))})", inside
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(FLIPPED[type(op)](), values))})", inside
        case ast.BinOp(left=left, op=op, right=right) if type(op) in FLIPPED:
            yield node, f"({ast.unparse(ast.BinOp(left, FLIPPED[type(op)](), right))})", inside
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})", inside
        case ast.Constant(value=value) if type(value) in (int, float):
            half = value // 2 if type(value) is int else value / 2
            yield from ((node, repr(new), inside) for new in ([2 * value, half] if value else [value + 1]))
        case ast.If(test=test) | ast.IfExp(test=test):
            if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                yield from ((test, new, inside) for new in ("True", "False"))
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns", "decorator_list"):
                yield from changes(child, inside)


# --- The plugin of pytest that says which test runs which line

FOUND: dict[str, list[Any]] = {}
"""Seconds of a test function, whether it passes, and the lines that it runs."""


def noted(item: pytest.Item) -> list[Any]:
    return FOUND.setdefault(item.nodeid.split("[")[0], [0.0, True, set()])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    folder, own, began = str(Path.cwd() / PACKAGE) + os.sep, noted(item), time.perf_counter()

    def within(frame: Any, event: str, _: Any) -> Any:
        own[2].add((frame.f_code.co_filename[len(folder) :], frame.f_lineno))
        return within

    sys.settrace(lambda frame, event, _: within if frame.f_code.co_filename.startswith(folder) else None)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        own[0] += time.perf_counter() - began


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    FOUND[report.nodeid.split("[")[0]][1] &= not report.failed


def pytest_sessionfinish() -> None:
    rows = {name: (seconds, sorted(lines)) for name, (seconds, passed, lines) in FOUND.items() if passed and lines}
    Path(os.environ[TRACE]).write_text(json.dumps(rows))


# --- A run


def run_tests(folder: Path, tests: list[str], *options: str, timeout: float | None = None) -> int:
    """Return pytest's exit code in a copy, 1 where the tests take too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    paths = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    known = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", TRACE: str(folder / "trace.json")}
    environment = {**os.environ, **known, **dict.fromkeys(("PYTHONDONTWRITEBYTECODE", NO_PLUGINS), "1")}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(command, cwd=folder, env=environment, timeout=timeout, **quiet).returncode
    except subprocess.TimeoutExpired:
        return 1


def judge(root: Path, files: list[str], tests: list[str], sample: int, seed: int) -> dict[str, Any]:
    """Return the score of files of the package under tests, and the mutants that survive; prints each mutant's fate."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for part in (PACKAGE, "tests"):
            shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in filter(Path.exists, (root / "pyproject.toml", root / "conftest.py")):
            shutil.copy(part, folder)
        run_tests(folder, tests, "-p", "mutants")
        trace = json.loads((folder / "trace.json").read_text())
        runs: dict[tuple[str, int], list[str]] = {}
        for test, (_, lines) in trace.items():
            for file, line in lines:
                runs.setdefault((file, line), []).append(test)
                runs.setdefault((file, 0), []).append(test)  # what is outside of functions runs in no test
        found = []
        for file in files:
            for mutant in mutants((root / PACKAGE / file).read_text()):
                lines = range(mutant.line, mutant.last_line + 1) if mutant.in_function else [0]
                which = {test for line in lines for test in runs.get((file, line), [])}
                found += [(file, mutant, sorted(which, key=trace.get))] if which else []
        alive, chosen = [], random.Random(seed).sample(found, min(sample, len(found)))
        for file, mutant, which in chosen:
            path = folder / PACKAGE / file
            kept = path.read_text()
            path.write_text(mutant.source)
            limit = 60.0 + 4.0 * sum(trace[test][0] for test in which)
            survives = run_tests(folder, which, "-x", timeout=limit) == 0
            path.write_text(kept)
            alive += [{"file": file, "line": mutant.line, "was": mutant.was, "becomes": mutant.becomes}] * survives
            fate = "SURVIVES" if survives else "killed"
            print(f"{fate:<9}{file}:{mutant.line}: {mutant.was} → {mutant.becomes}", flush=True)
    score = {"mutants": len(found), "tried": len(chosen), "killed": len(chosen) - len(alive)}
    return {**score, "seed": seed, "survivors": alive}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="+", metavar="ROOM or FILE")
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for room in options.rooms:
        path = ROOT / PACKAGE / room
        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        files = [each.relative_to(ROOT / PACKAGE).as_posix() for each in inside]
        tests = TESTS.get(room, [f"tests/{Path(room).parts[0]}"])
        scores = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        scores[room] = score = judge(ROOT, files, tests, options.sample, options.seed)
        RESULTS.write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")
        print(f"{room}: {score['killed']} of {score['tried']} killed, of {score['mutants']} mutants")


if __name__ == "__main__":
    main()
