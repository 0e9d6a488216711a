"""Hooks of the MkDocs build: lessons are executed and become pages, and formulas become MathML.

Nothing is fetched: no fonts, no scripts, no style sheets from elsewhere. Browsers draw MathML themselves.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "lessons"))
import _notebook as notebook
import reference_names

FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
ROLE = re.compile(r":math:<code>(.*?)</code>", flags=re.DOTALL)


class LessonFile(File):
    """A script that counts as a page, so that links and the navigation can name the script."""

    def is_documentation_page(self) -> bool:
        """Yes."""
        return True


def on_files(files: Files, *, config: Any) -> Files:
    """Execute the lessons; a lesson that fails ends the build."""
    for path in notebook.lessons():
        uri = f"lessons/{path.name}"
        old = files.get_file_from_path(uri)
        if old is not None:
            files.remove(old)
        text, figures = notebook.to_markdown(path, notebook.run_lesson(path))
        page = LessonFile(uri, None, config.site_dir, config.use_directory_urls)
        page.dest_uri = f"lessons/{path.stem}.html"
        page.generated_by = "site_hooks"
        source = f"\n---\n\nThis page is an executed script: [{path.name}](scripts/{path.name}).\n"
        page.content_string = text + "\n" + notebook.exercise(path) + source
        files.append(page)
        extra: dict[str, str | bytes] = {f"lessons/{name}": figure for name, figure in figures.items()}
        extra[f"lessons/scripts/{path.name}"] = path.read_text(encoding="utf-8")
        for name, content in extra.items():
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """List the public names where a page of the reference asks for them."""
    return reference_names.expand(markdown) if page.file.src_uri.startswith("reference/") else markdown


def on_page_content(page_html: str, **_: Any) -> str:
    """Replace TeX by MathML."""
    page_html = FORMULA.sub(lambda found: _mathml(found.group(2), found.group(1) == "div"), page_html)
    return ROLE.sub(lambda found: _mathml(found.group(1), False), page_html)


def _mathml(tex: str, block: bool) -> str:
    tex = re.sub(r"\\[lr](v|V)ert(?![a-zA-Z])", lambda bar: "|" if bar[1] == "v" else r"\|", html.unescape(tex))
    formula = convert(tex.strip(), display="block" if block else "inline")  # bars of \lvert would stretch
    return f'<div class="formula">{formula}</div>' if block else formula
