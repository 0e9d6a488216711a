"""The site's form of the pages in docs/paper/, whose Markdown is Pandoc's: head, citations, captions and references."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

__all__ = ["markdown", "works"]

REFERENCES = Path(__file__).parent / "paper" / "references.bib"
CITATION = re.compile(r"\[([^\[\]]*@[^\[\]]*)\](?!\()")
KEY = re.compile(r"(-?)@(\w+)")
FIGURE = re.compile(r"^!\[((?:.|\n(?!\n))*?)\]\((\S+\.svg)\)(\{.*?\})?$", flags=re.MULTILINE)
TABLE = re.compile(r"^Table: ((?:.|\n(?!\n))*)", flags=re.MULTILINE)


def works() -> dict[str, dict[str, str]]:
    """Return the fields of each work in references.bib, which has one field a line."""
    text = REFERENCES.read_text(encoding="utf-8")
    found = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", text, flags=re.DOTALL | re.MULTILINE)
    return {key: dict(re.findall(r"^  (\w+) = \{(.*)\},$", fields, flags=re.MULTILINE)) for key, fields in found}


def _short(work: dict[str, str]) -> str:
    names = [name.split(",")[0].strip("{}") for name in work["author"].split(" and ")]
    return f"{names[0]} et al." if len(names) > 2 else " and ".join(names)


def _entry(work: dict[str, str]) -> str:
    authors = work["author"].replace(" and others", " and et al").replace(" and ", "; ")
    place = next((work[name] for name in ("journal", "booktitle", "publisher", "url") if name in work), "")
    where = ", ".join([place, *(work[name].replace("--", "–") for name in ("volume", "pages") if name in work)])
    return "- " + re.sub(r"[{}\\]", "", f"{authors.rstrip('.')}. {work['year']}. *{work['title']}*. {where}.")


def markdown(text: str, meta: dict[str, str]) -> str:
    """Return a page of docs/paper/ without Pandoc's marks, with its title and abstract and the list of cited works."""
    known, sections, figures, tables = works(), count(1), count(1), count(1)
    cited = {key for found in CITATION.findall(text) for _, key in KEY.findall(found)}

    def cite(found: re.Match[str]) -> str:
        work = known[found[2]]
        return work["year"] if found[1] else f"{_short(work)} {work['year']}"

    text = CITATION.sub(lambda found: f"({KEY.sub(cite, found[1])})", text)
    text = re.sub(r"^## (?!References)", lambda _: f"## {next(sections)} ", text, flags=re.MULTILINE)
    text = FIGURE.sub(lambda found: f"![]({found[2]}){found[3] or ''}\n\n*Figure {next(figures)}.* {found[1]}", text)
    text = TABLE.sub(lambda found: f"*Table {next(tables)}.* {found[1]}", text)
    text = re.sub(r"\\tag\{([^}]*)\}", r"\\qquad(\1)", text).replace("{aligned}", "{split}")  # for latex2mathml
    head = f"# {meta['title']}\n\n{meta['author']}\n\n" + (
        f"**Abstract.** {meta['abstract']}\n\n" if "abstract" in meta else ""
    )
    return "\n".join([head, text, *sorted(_entry(known[key]) for key in cited)])
