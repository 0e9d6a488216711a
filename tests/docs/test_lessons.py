"""The course cannot rot: every lesson runs, the reference lists every public name, the site builds."""

import functools
import importlib
import importlib.util
import json
import re
import runpy
import sys
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

plt = pytest.importorskip("matplotlib.pyplot")


def load(name: str) -> ModuleType:
    """Import a script of docs/, which is no package, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"docs_{Path(name).stem}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


notebook, reference_names = load("lessons/_notebook"), load("reference_names")
LESSONS = notebook.lessons()
LECTURE = (DOCS / "lecture.md").read_text(encoding="utf-8").replace("\\|", "|")


def test_there_are_nine_lessons():
    assert [path.name[:2] for path in LESSONS] == [f"{number:02}" for number in range(1, 10)]


@functools.cache
def ran(path):
    return notebook.run_lesson(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_runs(path):
    page, figures = notebook.to_markdown(path, ran(path))
    assert page.startswith(f"# {notebook.title(path)}")
    assert figures, "a lesson without a figure"
    minutes, needed = notebook.opening(path)
    assert 5 <= minutes <= 30
    assert re.search("[Ll]essons? [1-9]|gradients", needed)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_folds_its_answer_which_has_code(path):
    question, answer = notebook.to_markdown(path, ran(path))[0].split('??? success "Answer"', 1)
    assert "## Change a line and see what breaks" in question
    assert "    assert" in answer
    assert re.search(r"Eq\. \d", question)


def own_code(made):
    """Return the code of a notebook."""
    return "\n\n".join(cell["source"] for cell in json.loads(made)["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow) if path.name > "07" else path for path in LESSONS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_by_itself(path, tmp_path, monkeypatch):
    made = notebook.to_notebook(path, ran(path))
    if importlib.util.find_spec("nbformat"):
        importlib.import_module("nbformat").validate(json.loads(made))
    text = "".join(cell["source"] for cell in json.loads(made)["cells"] if cell["cell_type"] == "markdown")
    assert "<details>" in text
    assert not re.search(r"\]\((?!attachment:|https?:|\d\d_\w+\.ipynb)", text), "a link that leads nowhere"
    monkeypatch.chdir(tmp_path)
    exec(compile(own_code(made), "notebook", "exec"), {"__name__": "notebook"})
    plt.close("all")


def test_a_notebook_without_what_the_lessons_share_does_not_run(monkeypatch):
    monkeypatch.setattr(notebook, "_shared", lambda: "")
    with pytest.raises(NameError):
        exec(own_code(notebook.to_notebook(LESSONS[0], [])) + "\nstyle.use()", {})


def exercise_of(lesson: Path) -> tuple[dict, dict, list[str]]:
    """Return the names of an exercise, those of its solution, and which functions the exercise asks for."""
    (path,) = (DOCS / "lessons" / "exercises").glob(f"{lesson.name[:2]}_*.py")
    task = runpy.run_path(str(path))
    return task, runpy.run_path(str(path.parent / "solutions" / path.name)), list(signature(task["check"]).parameters)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_an_exercise_takes_its_solution_and_neither_the_stub_nor_the_usual_mistake(path):
    task, solution, asked = exercise_of(path)
    task["check"](*[solution[name] for name in asked])
    with pytest.raises(NotImplementedError):
        task["check"](*[task[name] for name in asked])
    with pytest.raises(AssertionError) as caught:
        task["check"](*[(solution | solution["MISTAKE"])[name] for name in asked])
    assert len(str(caught.value)) > 10, "the check says what is wrong"
    page = notebook.exercise(path)
    assert page.count("???") == 2, "the file to fill in and its solution are folded"
    assert notebook.usual_mistake(path) in LECTURE, "the lecture says which wrong answer to expect"


def test_a_lecture_has_90_minutes_and_every_lesson():
    minutes = [int(found) for found in re.findall(r"^\| (\d+) \| \[\d\. ", LECTURE, flags=re.MULTILINE)]
    assert len(minutes) == len(LESSONS)
    assert sum(minutes) == 90
    assert abs(sum(notebook.opening(path)[0] for path in LESSONS) - 180) <= 15, "about three hours alone"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("assert 1 + 1 == 3", AssertionError),
        ("import warnings\nwarnings.warn('old', DeprecationWarning)", DeprecationWarning),
        ("print(np)", NameError),  # a fresh namespace: nothing is left from another lesson
    ],
)
def test_the_runner_fails_on_a_broken_lesson(tmp_path, body, error):
    path = tmp_path / "99_broken.py"
    path.write_text(f"# %% [markdown]\n# # Broken\n\n# %%\nx = 1\n\n# %%\n{body}\n", encoding="utf-8")
    with pytest.raises(error):
        notebook.run_lesson(path)


def test_the_runner_collects_text_output_and_figures(tmp_path):
    path = tmp_path / "98_small.py"
    path.write_text(
        "# %% [markdown]\n# # Small\n# text\n\n# %%\nimport matplotlib.pyplot as plt\n\nprint('out')\n\n"
        '# %% tags=["hide-input"]\nplt.plot([1, 2])\nplt.show()\n',
        encoding="utf-8",
    )
    page, figures = notebook.to_markdown(path, notebook.run_lesson(path))
    assert page.startswith("# Small\ntext\n\n```python\nimport matplotlib")
    assert "```{ .text .output }\nout\n```" in page
    assert '??? example "Code of what follows"\n\n    ```python\n    plt.plot' in page
    assert [(name, figure[:5]) for name, figure in figures.items()] == [("98_small-1.svg", b"<?xml")]
    assert notebook.to_markdown(path, notebook.run_lesson(path))[1] == figures, "figures are the same at each build"


def test_lessons_lie_no_paths_and_link_to_what_exists():
    for path in LESSONS:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|work|tmp)/", text), path.name
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


# slides and the handout


def test_slides_and_the_handout_need_no_other_file():
    """The twin: a formula that is not converted is refused."""
    pytest.importorskip("latex2mathml")
    pytest.importorskip("pymdownx")
    slides = load("slides")
    path = LESSONS[4]
    deck = slides.slides_of(path, ran(path))
    assert [slide.is_answer for slide in deck].count(True) == 1
    figures = sum(len(item.figures) for item in ran(path)) + 1  # the film
    assert [slide.is_figure for slide in deck].count(True) == figures
    shown, printed = slides.deck([deck]), slides.handout([(deck, notebook.task(path))])
    for page in (shown, printed):
        assert not re.search(r"(?:src|href)=\"(?!data:)", page)
        assert "arithmatex" not in page
        assert page.count("<math") > 20
    assert shown.count("<section") == len(deck)
    assert "right after the first round" in shown
    assert "right after the first round" not in printed, "an answer is printed for those who are to find it"
    for tex in (r"\bigl\langle x", r"\begin{aligned}a&=b\end{aligned}"):
        with pytest.raises(ValueError, match="latex2mathml"):
            slides.mathml(tex, True)
    assert slides.mathml(r"\lvert x\rvert", False) == slides.mathml("|x|", False)  # no bar is stretched
    letters = slides.mathml(r"F\mathbb E\mathcal F\mathcal N\mathbf 1", False)  # browsers draw no mathvariant
    assert re.sub("<.*?>", "", letters) == "F𝔼ℱ𝒩𝟏"
    assert "mathvariant" not in letters


def test_pages_have_typeset_formulas():
    """Each formula is converted, and none is plain text; the twins are a command unknown above, and a plain formula."""
    pytest.importorskip("latex2mathml")
    slides, formula = load("slides"), re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$]+?)(?<=\S)\$", flags=re.DOTALL)
    plain = re.compile("[α-ωΑ-Ωℓ∇∂]_|ᵀ|[Σ√∂]\\(")
    for name in ("certificate", "guarantee", "rates", "methods", "choosing", "notation", "diagnosis", "extending"):
        text = re.sub(r"^```.*?^```|`[^`]+`", "", (DOCS / f"{name}.md").read_text("utf-8"), flags=re.M | re.DOTALL)
        found = formula.findall(text)
        assert all(slides.mathml(block or inline, bool(block)) for block, inline in found)
        assert len(found) > 5
        assert not plain.findall(formula.sub("", text)), name
    assert plain.findall("h_i e^{χ(b)σ'r} with C = Σ_k H_k")


@pytest.mark.browser
def test_keys_turn_the_slides_and_each_fits_its_screen(chromium, tmp_path):
    for needed in ("latex2mathml", "pymdownx"):
        pytest.importorskip(needed)
    slides = load("slides")
    deck = slides.slides_of(LESSONS[1], ran(LESSONS[1]))
    (tmp_path / "slides.html").write_text(slides.deck([deck]), encoding="utf-8")
    chromium.get((tmp_path / "slides.html").as_uri())
    script = """const on = [...document.querySelectorAll("section")].filter(slide => slide.offsetHeight > 0);
        return [location.hash, on.length, on[0].scrollHeight - innerHeight, on[0].scrollWidth - innerWidth]"""
    for number in range(1, len(deck) + 1):
        shown, how_many, below, beside = chromium.execute_script(script)
        assert (shown, how_many) == (f"#{number}", 1)
        assert max(below, beside) <= 1  # the script stops at a pixel
        chromium.switch_to.active_element.send_keys("\ue014")  # the right arrow
    for key, at in (("\ue011", 1), ("\ue010", len(deck)), ("\ue012", len(deck) - 1)):  # Home, End, left
        chromium.switch_to.active_element.send_keys(key)
        assert chromium.execute_script(script)[0] == f"#{at}"


# the API reference


def pages() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(reference_names.REFERENCE.glob("*.md")))


def forgotten(text: str) -> list[str]:
    """Return the public names without an entry in the reference; one object may have several names."""
    entries = re.findall(r"^::: ([\w.]+)$", reference_names.expand(text), flags=re.MULTILINE)
    assert len(entries) == len(set(entries)), "an entry is listed twice"
    found = []
    for entry in entries:
        module, _, name = entry.rpartition(".")
        found.append(getattr(importlib.import_module(module), name))
    missing = []
    for module_name in reference_names.public_modules():
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if not isinstance(value, ModuleType) and not any(value is other for other in found):
                missing.append(f"{module_name}.{name}")
    return missing


def test_every_public_name_is_in_the_reference():
    assert forgotten(pages()) == [], "add a line '@all MODULE' to a page of docs/reference/"


def test_a_forgotten_name_is_noticed():
    assert "bayesadmm_np.families.Gamma" in forgotten(pages().replace("@all bayesadmm_np.families\n", ""))
    assert "bayesadmm_np.run" in forgotten("@all bayesadmm_np.losses")


# the site


def test_the_navigation_names_files_that_exist():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"[\w/]+\.(?:md|py)$", text.partition("\nnav:\n")[2].partition("\n\n")[0], flags=re.MULTILINE)
    assert len(named) >= 18
    for name in named:
        assert (DOCS / name).is_file(), name
    for path in [*LESSONS, *reference_names.REFERENCE.glob("*.md"), *DOCS.glob("*.md")]:
        assert path.relative_to(DOCS).as_posix() in named, f"{path.name} is not in the navigation of mkdocs.yml"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings_handlers.python")
    pytest.importorskip("latex2mathml")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert len(built) >= 18
    for page in built:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)", text)
        assert not loaded, f"{page.name} loads {loaded}"
    made = tmp_path / "site" / "lessons"
    assert {"slides.html", "handout.html"} <= {page.name for page in built}
    assert len(list(made.glob("notebooks/*.ipynb"))) == len(LESSONS)
    assert 'href="lessons/slides.html"' in (tmp_path / "site" / "lecture.html").read_text(encoding="utf-8")
    lesson = (made / "05_change_the_family.html").read_text(encoding="utf-8")
    assert "<math" in lesson
    assert "arithmatex" not in lesson, "a formula was left unconverted"
