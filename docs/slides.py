"""Make slides and a handout of the executed lessons, each one HTML file without anything from elsewhere.

A section of a lesson becomes a slide, without its code. Each figure has a slide of its own, large. The handout has the
same in fewer pages, without answers and with room to write, for printing.
"""

from __future__ import annotations

import base64
import html
import io
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from latex2mathml.converter import convert
from markdown import markdown
from PIL import Image

__all__ = ["Slide", "deck", "handout", "slides_of", "with_mathml"]

FIGURES = Path(__file__).parent / "figures"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL)
PRIME = re.compile(r"<msup>(<m[io][^>]*>[^<]*</m[io]>)<mi>(&#x0203[2-4];)</mi></msup>")
LETTER = re.compile(r'<(m[in]) mathvariant="(double-struck|script|bold)">([A-Za-z0-9])</\1>')
"""A letter whose style browsers no longer draw: 𝔼 and ℱ would read E and F."""
BAR = r"\\[lr](v|V)ert(?![a-zA-Z])"
"""Bars that latex2mathml would stretch."""
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
EXTENSIONS = {"tables": {}, "pymdownx.arithmatex": {"generic": True}}


@dataclass
class Slide:
    """A heading, and what is below it as HTML."""

    heading: str
    parts: list[str] = field(default_factory=list)
    is_figure: bool = False
    is_answer: bool = False


def with_mathml(text: str) -> str:
    """Replace the TeX of a page by MathML."""
    return FORMULA.sub(lambda found: mathml(found.group(2), found.group(1) == "div"), text)


def mathml(tex: str, block: bool) -> str:
    """Return a formula as MathML; a formula on lines of its own may be scrolled."""
    tex = re.sub(BAR, lambda bar: "|" if bar[1] == "v" else r"\|", html.unescape(tex).strip())
    formula = convert(tex, display="block" if block else "inline")
    formula = re.sub(r"<mi>(&#x0(?:2AAF|2AB0|00B1|27C2);)</mi>", r"<mo>\1</mo>", formula)  # relations need space
    formula = PRIME.sub(r"<mrow>\1<mtext>\2</mtext></mrow>", formula)  # as a superscript, a prime is raised twice
    formula = LETTER.sub(lambda found: f"<{found[1]}>{_styled(found[3], found[2])}</{found[1]}>", formula)
    if re.search(r"\\|>&<", formula):
        raise ValueError(f"a formula has a command that latex2mathml does not know: {tex!r}")
    return f'<div class="formula">{formula}</div>' if block else formula


def _styled(letter: str, style: str) -> str:
    """Return a letter as the character of a style; ten capitals have names without MATHEMATICAL."""
    name = f"{style.upper()} {unicodedata.name(letter).replace('LATIN ', '').replace('LETTER ', '')}"
    try:
        return unicodedata.lookup(f"MATHEMATICAL {name}")
    except KeyError:
        return unicodedata.lookup(name)


def _html(text: str) -> str:
    text = re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)  # a file has no neighbours
    return with_mathml(markdown(text, extensions=list(EXTENSIONS), extension_configs=EXTENSIONS))


def _image(content: bytes, kind: str, text: str, shown: str = "") -> str:
    data = base64.b64encode(content).decode("ascii")
    return f'<img class="{shown}" alt="{html.escape(text)}" src="data:image/{kind};base64,{data}">'


def _film(content: bytes, text: str) -> list[str]:
    """Return an animation for the screen, and its last frame for paper."""
    still = io.BytesIO()
    with Image.open(io.BytesIO(content)) as film:
        film.seek(film.n_frames - 1)
        film.convert("RGB").save(still, "png")
    return [_image(content, "gif", text, "film"), _image(still.getvalue(), "png", text, "still")]


def _blocks(text: str) -> list[str]:
    """Cut a text at empty lines, and cut formulas out of paragraphs."""
    parts = re.split(r"(\$\$.*?\$\$)", text, flags=re.DOTALL)
    return [block.strip("\n") for part in parts for block in re.split(r"\n\s*\n", part) if block.strip()]


def slides_of(path: Path, cells: Iterable) -> list[Slide]:
    """Return the slides of an executed lesson (`_notebook.run_lesson`)."""
    made: list[Slide] = []
    for item in cells:
        if item.cell.is_text and item.cell.is_answer:
            made.append(Slide("Answer", [_html(item.cell.source)], is_answer=True))
        elif item.cell.is_text:
            _add_text(made, path, _blocks(item.cell.source))
        for figure in item.figures:
            made.append(Slide(made[-1].heading, [_image(figure, "svg+xml", made[-1].heading)], is_figure=True))
    return [slide for slide in made if slide.parts]


def _add_text(made: list[Slide], path: Path, blocks: list[str]) -> None:
    for block in blocks:
        heading = re.match(r"#+ (.+)", block)
        picture = PICTURE.match(block)
        if heading:
            made.append(Slide(heading[1]))
        elif picture:
            images = _film((path.parent / picture[2]).read_bytes(), picture[1])
            made.append(Slide(made[-1].heading, images, is_figure=True))
        else:
            if made[-1].is_figure or made[-1].is_answer:
                made.append(Slide(made[-1].heading))
            made[-1].parts.append(_html(block))


def _page(title: str, style: str, body: str) -> str:
    style = (FIGURES / style).read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{style}</style>\n{body}\n</html>\n"
    )


def deck(lessons: Iterable[list[Slide]]) -> str:
    """Return all slides as one page that keys turn."""
    body = []
    for slides in lessons:
        for number, slide in enumerate(slides):
            kind = "title" if number == 0 else "figure" if slide.is_figure else ""
            body.append(f'<section class="{kind}"><h1>{_inline(slide.heading)}</h1>{"".join(slide.parts)}</section>')
    script = (FIGURES / "slides.js").read_text(encoding="utf-8")
    body.append(f'<div id="place"></div>\n<script>\n{script}</script>')
    return _page("ADMM and variational Bayes: slides", "slides.css", "\n".join(body))


def handout(lessons: Iterable[tuple[list[Slide], str]]) -> str:
    """Return a page to print: every lesson's slides without answers, its exercise, and room to write."""
    body = []
    for slides, exercise in lessons:
        parts, heading = [], ""
        for number, slide in enumerate(slides):
            if slide.is_answer:
                continue
            if slide.heading != heading:
                heading, level = slide.heading, 1 if number == 0 else 2
                parts.append(f"<h{level}>{_inline(heading)}</h{level}>")
            parts += slide.parts
        parts.append(f'<div class="room"></div><h2>Exercise</h2>{_html(exercise)}')
        body.append(f"<article>{''.join(parts)}</article>")
    return _page("ADMM and variational Bayes: handout", "handout.css", "\n".join(body))


def _inline(text: str) -> str:
    return re.sub(r"^<p>|</p>$", "", _html(re.sub(r"^(\d+)\.", r"\1\.", text)))
