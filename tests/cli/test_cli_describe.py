"""`bayesadmm describe`: its table, its JSON, its exit codes and refusals."""

import json

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")

from bayesadmm_np import cli

HEART = """hospital,age,chol,sex
north,61,0,m
north,58,0,f
north,70,0,m
south,66,{}
"""


def run(capsys, monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["bayesadmm", "describe", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, *capsys.readouterr()


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "heart.csv"
    rows = [f"{'south' if k % 2 else 'west'},{50 + k},{180 + 3 * k},m" for k in range(20)]
    path.write_text("\n".join([*HEART.splitlines()[:-1], *rows]) + "\n")
    return path


def test_the_table_and_what_looks_wrong(capsys, monkeypatch, table):
    code, out, err = run(capsys, monkeypatch, table, "--client", "hospital")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == ["all", "(23)", "north", "(3)", "south", "(10)", "west", "(10)"]
    assert "! chol is 0 in 3 of 23 rows" in out
    code, out, _ = run(capsys, monkeypatch, table, "--client", "hospital", "--json", "--columns", "age")
    assert code == 0
    assert json.loads(out)["columns"]["age"]["north"]["mean"] == 63.0


def test_a_dictionary_that_is_contradicted_is_exit_code_1(capsys, monkeypatch, table, tmp_path):
    book = tmp_path / "book.toml"
    book.write_text("[chol]\nmin = 80\nmax = 700\n")
    code, out, _ = run(capsys, monkeypatch, table, "--client", "hospital", "--dictionary", book)
    assert code == 1
    assert "! chol lies outside [80, 700]" in out
    book.write_text("[chol]\nleast = 80\n")
    code, _, err = run(capsys, monkeypatch, table, "--dictionary", book)
    assert (code, "--dictionary" in err, "chol" in err) == (2, True, True)


def test_an_unknown_column_is_named(capsys, monkeypatch, table):
    code, _, err = run(capsys, monkeypatch, table, "--columns", "ages")
    assert (code, "did you mean 'age'" in err) == (2, True)


def test_infinite_numbers_are_left_out_and_told(capsys, monkeypatch, tmp_path):
    (tmp_path / "a.csv").write_text("age\n" + "\n".join(map(str, range(50, 70))) + "\ninf\n")
    code, out, err = run(capsys, monkeypatch, tmp_path / "a.csv", "--json")
    found = json.loads(out)
    (finding,) = found["findings"]
    assert (code, err, "1 infinite" in finding) == (0, "", True)
    assert (found["columns"]["age"]["a"]["n"], found["columns"]["age"]["a"]["mean"]) == (20, 59.5)
