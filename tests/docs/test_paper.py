"""The paper in docs/paper/: its pages, numbers, citations, tests and scripts, its PDF, and CITATION.cff."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bayesadmm_np._version

pytest.importorskip("matplotlib", reason="the paper's script draws")
ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / "benchmarks" / "pages" / "paper").glob("*.md"))
PAGES = [ROOT / "docs" / "paper" / path.name for path in TEMPLATES]
LABELS = (
    "Theorem|Proposition|Lemma|Corollary|Definition|Remark|Example|Figure|Table|Section|Sections|Eq\\.|Eqs\\.|Appendix"
)
fails = pytest.raises(AssertionError)


def script(monkeypatch, path):
    """Import a script of docs/ under a name that nothing else has."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location(f"of_the_paper_{Path(path).stem}", ROOT / "docs" / path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(monkeypatch):
    return script(monkeypatch, "paper/build.py")


@pytest.fixture
def site(monkeypatch):
    return script(monkeypatch, "paper_page.py")


@pytest.fixture
def program(build):
    """The script, where Pandoc and Typst are installed."""
    pytest.importorskip("pypandoc", reason="the PDF needs the extra `paper`")
    pytest.importorskip("typst", reason="the PDF needs the extra `paper`")
    return build


def text_of(paths):
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_the_pages_are_those_of_the_templates_and_the_results(build, monkeypatch, capsys):
    assert {path.name for path in PAGES} == {"paper.md", "software.md"}
    assert build.main(["--check"]) == 0, capsys.readouterr().out
    assert "{{" not in text_of(PAGES)
    monkeypatch.setattr(build.paper_tables, "filled", lambda text: text + "\nAnother result.\n")
    assert build.main(["--check"]) == 1
    assert "docs/paper/paper.md is not what its template" in capsys.readouterr().out


def test_the_build_needs_no_more_than_the_extras_of_its_command(build):
    """A missing package is one that import finds to be None."""
    run = "import runpy, sys; sys.modules.update(dict.fromkeys({0!r})); sys.argv = [{1!r}, '--help']"
    run = (run + "; runpy.run_path({1!r}, run_name='__main__')").format

    def ends(missing):
        return subprocess.run([sys.executable, "-c", run(missing, build.__file__)], capture_output=True).returncode

    assert ends(["statsmodels", "torch", "yaml"]) == 0
    assert ends(["matplotlib"]) != 0


def test_a_sentence_that_the_results_do_not_bear_ends_the_build(build, monkeypatch):
    """Each relation between numbers that the paper states in words is checked where the words stand."""
    tables, template = build.paper_tables, text_of(TEMPLATES)
    named = set(re.findall(r"\{\{holds\|([^}]+)\}\}", template))
    assert named == tables.HOLDS.keys()
    assert not any(tables.holds(name) for name in named)
    doctored = [
        ("certificates", "bounds hold", "held", False),
        ("sites", "kronecker first", "rounds 1e-2", 5),
        ("factors", "theorem a", "reach", 0.01),
        ("factors", "smallest factor", tables.PLANNED, {"rounds": None}),
        ("guards", "guarded below start", "recommended", {"above start": False, "status": "DIVERGED"}),
        ("regressions", "newton slim", "dim", 100),
    ]
    for study, name, key, value in doctored:
        rows = [{**row, key: value} for row in tables.study(study)]
        with monkeypatch.context() as patch:
            patch.setattr(tables, "study", lambda asked, rows=rows: rows)
            with pytest.raises(ValueError, match=name):
                tables.holds(name)


def check_tests_and_scripts(text):
    for path, name in re.findall(r"(tests/[\w/]+\.py)::(\w+)", text):
        assert (ROOT / path).exists(), path
        assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE), name
    for path in re.findall(r"python ([\w/]+\.py)", text):
        assert (ROOT / path).exists(), path


def test_the_tests_and_the_scripts_that_the_paper_names_are_there():
    text = text_of(PAGES)
    assert re.search(r"`tests/[\w/]+\.py::\w+`", text)
    check_tests_and_scripts(text)
    for wrong in ("tests/docs/test_paper.py::test_nothing", "tests/test_no.py::test_x", "python benchmarks/no.py"):
        with fails:
            check_tests_and_scripts(f"`{wrong}`")


def check_citations(text, works):
    assert set(re.findall(r"(?<![\w/])@(\w+)", text)) == works.keys()
    assert all({"author", "title", "year"} <= work.keys() for work in works.values())


def test_every_citation_is_in_the_references_and_every_reference_is_cited(site):
    text, works = text_of(PAGES), site.works()
    assert len(works) == (ROOT / "docs" / "paper" / "references.bib").read_text(encoding="utf-8").count("\n@") + 1
    check_citations(text, works)
    with fails:
        check_citations(text + " [@nobody1999]", works)
    with fails:
        check_citations(text, {**works, "nobody1999": {"author": "N.", "title": "N.", "year": "1999"}})
    with fails:
        check_citations(text, {**works, "boyd2011": {"title": "No author, no year"}})


def numbers(template):
    """Words with digits that no field, formula, code, citation, heading, label or name accounts for."""
    text = re.sub(r"^(```.*?^```|#+ .*?)$", "", template, flags=re.DOTALL | re.MULTILINE)
    for free in (
        r"\$\$.*?\$\$",
        r"\$[^$]+\$",
        r"`[^`]*`",
        r"\{\{.*?\}\}",
        r"\[[^\[\]]*@[^\[\]]*\]|@\w+",
        r"\[\^[\w-]+\]",
    ):
        text = re.sub(free, " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)\s]*\)|<https?:[^>]*>|\{width=\d+%\}|^\d+\. ", " ", text, flags=re.MULTILINE)
    text = re.sub(rf"\b(?:{LABELS})\s\d+(?:\.\d+)*(?: (?:and|to) \d+)*", " ", text)
    return re.findall(r"\S*\d\S*", text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_each_number_of_a_result_comes_from_a_field(path):
    assert numbers(path.read_text(encoding="utf-8")) == []


def test_a_typed_number_is_found():
    assert numbers("Gains 3.5 points[^a1], in\n| a | 12 |") == ["3.5", "12"]
    assert numbers("[^b]: In 3 runs.\n\n---\nabstract: 7 rounds\n---") == ["3", "7"]
    free = (
        "## 2 Method\n\n**Theorem 1 (rate).** By Theorems and Theorem 2, Figure 3, Eqs. 4 and 5 and $x^2$,\n$$\n3\n$$\n"
    )
    free += "`ba.f(1)` gives {{a|1}} % [@li2020, p. 3; @x1].[^n1]\n\n1. ![Text.](a1.svg){width=70%}\n"
    assert numbers(free) == []


def test_the_citation_file_has_the_version_and_the_papers_of_the_readme():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    def check(readme):
        arxiv = [f"arXiv:{number}" for number in re.findall(r"arxiv\.org/abs/(\d+\.\d+)", readme)]
        assert [work["identifiers"][0]["value"] for work in citation["references"]] == arxiv

    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == bayesadmm_np._version.__version__
    assert all(author["family-names"] for work in citation["references"] for author in work["authors"])
    check(readme)
    with fails:
        check(readme.replace("2411.18385", "2411.18386"))


def test_the_paper_has_at_most_eight_pages_and_is_built_the_same_twice(program, tmp_path):
    text = PAGES[0].read_text(encoding="utf-8")
    assert 1 <= program.build(text, "paper", tmp_path / "a") <= program.MOST_PAGES == 8
    program.build(text, "paper", tmp_path / "b")
    figures = {f"{name}.pdf" for name in re.findall(r"\]\((\w+)\.svg\)", text)}
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"paper.pdf", "paper.tex", "paper.html"} | figures
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_a_paper_that_is_too_long_or_cites_no_work_ends_the_build(program, monkeypatch, capsys, tmp_path):
    page = tmp_path / "paper.md"
    for name, value in (("pages", lambda: {page: "Word. " * 9000}), ("OUT", tmp_path)):
        monkeypatch.setattr(program, name, value)
    monkeypatch.setattr(program.paper_tables, "draw", lambda folder: None)
    assert program.main([]) == 1
    assert "pages, and at most 8 are allowed" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="nobody"):
        program.converted("As in [@nobody].", "html")


def test_formulas_keep_their_form_in_typst(program):
    """The twin is Pandoc alone: it loses an array's columns, the place below argmin, bars, and numbers."""
    import pypandoc

    tex = r"$$\begin{array}{ll}a&b\\c&d\end{array}\;\underset{x}{\operatorname{argmin}} \lvert f\rvert\tag{3}$$"
    made = program.converted(tex, "typst-citations")
    alone = pypandoc.convert_text(tex, "typst", format="markdown")
    for kept in ('#numbered("3")[', 'op("argmin", limits: #true)_x', "a, b; c, d", "lr(|f|)", "thick"):
        assert kept in made
        assert kept not in alone
    every = r"$$\left\lVert\frac12 x\right\rVert\odot\operatorname{tr}(A)\otimes\Bigl(\succeq\Bigr)\!\mathbb{E}\cap B$$"
    assert program.printed(program.converted(every, "typst-citations")).startswith(b"%PDF")


def test_the_site_shows_citations_captions_and_formulas(site, monkeypatch):
    text = "## One\n\n## Two\n\nBy [@boyd2011, p. 3; @tseng1991] and Gabay [-@gabay1976]:\n\n"
    text += "![A\ncaption.](a.svg){width=70%}\n\nTable: T.\n"
    made = site.markdown(text, {"title": "T", "author": "A", "abstract": "B"})
    assert made.startswith("# T\n\nA\n\n**Abstract.** B\n")
    assert "## 1 One\n\n## 2 Two" in made
    assert "By (Boyd et al. 2011, p. 3; Tseng 1991) and Gabay (1976):" in made
    assert "![](a.svg){width=70%}\n\n*Figure 1.* A\ncaption.\n\n*Table 1.* T." in made
    assert made.index("- Boyd, Stephen P.; Parikh, Neal") < made.index("- Tseng, Paul")
    with pytest.raises(KeyError):
        site.markdown("[@nobody]", {"title": "T", "author": "A"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_site_knows_every_formula_and_citation(path, site, monkeypatch):
    for name in ("latex2mathml", "markdown", "PIL"):
        pytest.importorskip(name)
    slides = script(monkeypatch, "slides.py")
    made = site.markdown(path.read_text(encoding="utf-8").split("\n---\n", 1)[1], {"title": "T", "author": "A"})
    assert not re.search(r"@\w|^!\[[^\]]|^Table:", made, flags=re.MULTILINE)
    for block, inline in re.findall(r"\$\$(.*?)\$\$|(?<!\$)\$([^$]+)\$", made, flags=re.DOTALL):
        slides.mathml(block or inline, bool(block))
    with pytest.raises(ValueError, match="latex2mathml does not know"):
        slides.mathml(r"\begin{aligned}a&=b\end{aligned}", True)
