"""`bayesadmm lessons`: a copy that runs without the clone."""

import json
from pathlib import Path

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

LESSONS = Path(__file__).parents[2] / "docs" / "lessons"


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")}


def test_the_lessons_are_copied_whole(bayesadmm, tmp_path):
    assert bayesadmm("lessons", tmp_path / "course")[0] == 0
    copied = files_of(tmp_path / "course")
    assert copied == files_of(LESSONS)
    assert len([path for path in copied if path.parent.name == "solutions"]) == 9
    (tmp_path / "empty").mkdir()
    assert bayesadmm("lessons", tmp_path / "empty")[0] == 0


def test_a_folder_with_something_in_it_is_refused(bayesadmm, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").write_text("x = 1")
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "file/below", "dangling", "dangling/below"):
        code, _, err = bayesadmm("lessons", tmp_path / name)
        assert code == 2
        assert "DIR" in err, err
    assert not (tmp_path / "nowhere").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.py"]


def test_a_copy_makes_notebooks_without_the_clone(bayesadmm, tmp_path, monkeypatch):
    """Two lessons are left in the folder before the rest is executed: all nine take a minute."""
    pytest.importorskip("matplotlib")
    from bayesadmm_np.cli import lessons

    few = tmp_path / "few"
    few.mkdir()
    for name in ("_notebook.py", "_style.py", "_data.py", "02_exponential_families.py"):
        (few / name).write_bytes((LESSONS / name).read_bytes())
    film = "# %% [markdown]\n# # Film\n#\n# ![Springs](../figures/idea.gif)\n"
    (few / "03_film.py").write_text(film, encoding="utf-8")
    monkeypatch.setattr(lessons, "PLACES", (few,))
    code, out, _ = bayesadmm("lessons", tmp_path / "course", "--notebooks")
    assert (code, out.split()) == (0, ["02_exponential_families.ipynb", "03_film.ipynb"])
    second, third = (json.loads((tmp_path / "course" / name).read_text(encoding="utf-8")) for name in out.split())
    assert any(
        "image/svg+xml" in output.get("data", {}) for cell in second["cells"] for output in cell.get("outputs", [])
    )
    assert "film on the course's site" in third["cells"][1]["source"]
