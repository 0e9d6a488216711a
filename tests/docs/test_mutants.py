"""benchmarks/mutants.py: which changes it makes, and which of them it calls noticed."""

import ast
from pathlib import Path

import pytest

SOURCE = '''
"""One module."""
STRONG = 0.5  # über


def chosen(x: int, y, *, most=4):
    """Return something."""
    if not x or y:
        raise ValueError(f"{x + 1}")
    return [z for z in y if z < most] if x in y else x - 1
'''


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import mutants

    return mutants


def test_every_kind_of_change_is_made_and_stands_alone(mutants):
    found = list(mutants.mutants(SOURCE))
    assert {(m.was, m.becomes) for m in found} == {
        *(("0.5", new) for new in ("1.0", "0.25")),
        *(("4", new) for new in ("8", "2")),
        *(("1", new) for new in ("2", "0")),
        ("not x or y", "(not x and y)"),
        *(("not x or y", new) for new in ("True", "False")),
        ("not x", "(x)"),
        ("z < most", "(z >= most)"),
        ("x in y", "(x not in y)"),
        *(("x in y", new) for new in ("True", "False")),
        ("x - 1", "(x + 1)"),
        (ast.unparse(ast.parse(SOURCE).body[-1].body[1]), "return"),
    }
    for mutant in found:
        ast.parse(mutant.source)
        assert mutant.source != SOURCE
        assert mutant.source.count("über") == 1
    assert [m.line for m in found if m.was == "0.5"] == [3, 3]
    assert [m.in_function for m in found if m.was in ("0.5", "1")] == [False, False, True, True]


def test_a_mutant_survives_tests_that_run_its_line_and_assert_nothing(mutants, tmp_path, capsys):
    package, tests = tmp_path / mutants.PACKAGE, tmp_path / "tests"
    package.mkdir()
    tests.mkdir()
    (package / "__init__.py").write_text("")
    (package / "toy.py").write_text(
        "def above(x, y):\n    return x > y\n\n\ndef odd(x):\n    return not x\n\n\ndef unused(x):\n    return x + 1\n"
    )
    (tests / "test_toy.py").write_text(
        "from bayesadmm_np.toy import above, odd\n\n"
        "def test_above():\n    assert above(2, 1)\n    assert not above(1, 2)\n\n"
        "def test_odd():\n    odd(1)\n\n"
        "def test_that_fails():\n    assert odd(1)\n"
    )
    score = mutants.judge(tmp_path, ["toy.py"], ["tests"], 100, 0)
    assert (score["mutants"], score["tried"], score["killed"]) == (4, 4, 2)
    assert {(one["line"], one["becomes"]) for one in score["survivors"]} == {(6, "(x)"), (6, "return")}
    assert capsys.readouterr().out.count("SURVIVES") == 2
    assert (package / "toy.py").read_text().count("not x") == 1
