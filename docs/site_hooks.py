"""Hooks of the MkDocs build: lessons are executed and become pages, notebooks, slides and a handout.

Formulas become MathML. Nothing is fetched: no fonts, no scripts, no style sheets from elsewhere. Browsers
draw MathML themselves.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "lessons"))
import _notebook as notebook
import paper_page
import propositions
import reference_names
import slides

from bayesadmm_np.cli.play import page as play_page

ONE_FILE = Path(__file__).parents[1] / "demos" / "duality_in_numpy.py"
FIGURES = Path(__file__).parents[1] / "figures"
ROOT_FIGURES = sorted(FIGURES.glob("*.png"))
"""Figures that pages show as ../figures/."""
DOWNLOADS = "<!-- slides and handout -->"
ROLE = re.compile(r":math:<code>(.*?)</code>", flags=re.DOTALL)


class LessonFile(File):
    """A script that counts as a page, so that links and the navigation can name the script."""

    def is_documentation_page(self) -> bool:
        """Yes."""
        return True


def on_files(files: Files, *, config: Any) -> Files:
    """Execute the lessons; a lesson that fails ends the build. Add the page with sliders."""
    made: dict[str, str | bytes] = {f"lessons/scripts/{ONE_FILE.name}": ONE_FILE.read_text(encoding="utf-8")}
    made["play.html"] = play_page(lessons="lessons/")
    decks = []
    for path in notebook.lessons():
        ran = notebook.run_lesson(path)
        text, figures = notebook.to_markdown(path, ran)
        text = text.replace(f"`demos/{ONE_FILE.name}`", f"[`demos/{ONE_FILE.name}`](scripts/{ONE_FILE.name})")
        made |= {f"lessons/{name}": figure for name, figure in figures.items()}
        made[f"lessons/scripts/{path.name}"] = path.read_text(encoding="utf-8")
        made[f"lessons/notebooks/{path.stem}.ipynb"] = notebook.to_notebook(path, ran)
        decks.append((slides.slides_of(path, ran), notebook.task(path)))
        page = LessonFile(f"lessons/{path.name}", None, config.site_dir, config.use_directory_urls)
        page.dest_uri = f"lessons/{path.stem}.html"
        page.generated_by = "site_hooks"
        page.content_string = f"{text}\n{notebook.exercise(path)}\n---\n\n{_sources(path, config.repo_url)}\n"
        old = files.get_file_from_path(page.src_uri)
        if old is not None:
            files.remove(old)
        files.append(page)
    made["lessons/slides.html"] = slides.deck(deck for deck, _ in decks)
    made["lessons/handout.html"] = slides.handout(decks)
    for path in ROOT_FIGURES:
        made[f"figures/{path.name}"] = path.read_bytes()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def _sources(path: Path, repo_url: str | None) -> str:
    found = f"This page is an executed script. Download [{path.name}](scripts/{path.name}), or the "
    found += f"[notebook](notebooks/{path.stem}.ipynb) with its results."
    return found + (
        f" In the repository: [{path.name}]({repo_url}/blob/HEAD/docs/lessons/{path.name})." if repo_url else ""
    )


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """List the public names of a reference page and the propositions' lines of code; find the repository's files."""
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](../figures/", "](figures/").replace("](../bayesadmm_np/play/", "](")
    if page.file.src_uri.startswith("paper/"):
        return paper_page.markdown(markdown, page.meta)
    if page.file.src_uri == "propositions.md":
        return propositions.markdown(lines=True)
    if page.file.src_uri == "lecture.md":
        return markdown.replace(DOWNLOADS, "[Slides](lessons/slides.html) · [handout to print](lessons/handout.html)")
    return reference_names.expand(markdown) if page.file.src_uri.startswith("reference/") else markdown


def on_page_content(page_html: str, **_: Any) -> str:
    """Replace TeX by MathML."""
    return ROLE.sub(lambda found: slides.mathml(found.group(1), False), slides.with_mathml(page_html))
