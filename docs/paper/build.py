"""Build the paper: its pages from templates and results, and from each page a PDF, LaTeX source and HTML.

    python3 -m venv .venv && .venv/bin/pip install -e '.[demos,paper]' && .venv/bin/python docs/paper/build.py

1. The templates benchmarks/pages/paper/*.md get their numbers from benchmarks/results/, by benchmarks/paper_tables.py,
   and become docs/paper/*.md; the same script draws docs/paper/*.svg. These files are committed.
2. Pandoc and Typst make of each page build/paper/*.pdf, *.tex (with the figures as PDF) and *.html. Both programs come
   with the extra `paper`; nothing else is installed or fetched. The layout is docs/paper/paper.typ.

To change a sentence, edit the template; a cited work, docs/paper/references.bib; a number, run its benchmark.
The exit status is 1 if paper.pdf has more than eight pages, or if --check finds a page that is not of the results.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "paper"
MOST_PAGES = 8
NUMBERED = r"\$\$((?:(?!\$\$).)*?)\\tag\{([^}]*)\}(.*?)\$\$"
"""A display formula with its number, which Pandoc keeps for LaTeX alone."""
FOR_TYPST = [
    (NUMBERED, r'`#numbered("\2")[`{=typst}$$\1\3$$`]`{=typst}'),
    (r"\\begin\{array\}\{[^}]*\}(.*?)\\end\{array\}", r"\\begin{vmatrix}\1\\end{vmatrix}"),  # its columns would be lost
    (r"\\[bB]igg?l(?![a-zA-Z])", r"\\left"),
    (r"\\[bB]igg?r(?![a-zA-Z])", r"\\right"),
    (r"(?:\\left *)?\\lvert(?![a-zA-Z])", r"\\left|"),
    (r"(?:\\right *)?\\rvert(?![a-zA-Z])", r"\\right|"),
    (r"\\left *(?:\\lVert|\\\|)(?![a-zA-Z])", r"\\lVert "),
    (r"\\right *(?:\\rVert|\\\|)(?![a-zA-Z])", r"\\rVert "),
]
"""TeX whose form Pandoc would lose on its way to Typst."""
IN_TYPST = [
    (r'(?<!\()"(arg ?m\w+)"', r'op("\1", limits: #true)'),
    (r'(?<!\()"([A-Za-z]{2,})"', r'op("\1")'),
    (r'mat\(delim: "\|\|",', "mat(delim: #none, align: #left, column-gap: #0.6em,"),
    (r"#h\(0em\)", "thick"),  # Pandoc rounds \; and \! to whole em
    (r"#h\(-1em\)", "#h(-0.17em) "),
    (r"\bsect\b", "inter"),  # symbols that Typst renamed
    (r"\b(dot|minus|times)\.circle\b", r"\1.o"),
]
"""Typst that Pandoc writes wrongly, within formulas."""
STYLE = """<style>
body { max-width: 46em; counter-reset: figure table }
figcaption::before { counter-increment: figure; content: "Figure " counter(figure) ": " }
caption::before { counter-increment: table; content: "Table " counter(table) ": " }
</style>"""
IN_LATEX = (
    "papersize:a4",
    "geometry:margin=2.1cm",
    r"header-includes:\AtBeginEnvironment{longtable}{\footnotesize\setlength{\tabcolsep}{3pt}}",
)
FORMATS = {
    "typst-citations": (FOR_TYPST, [f"--template={HERE / 'paper.typ'}", "--columns=500"]),
    "latex": (
        [
            (r"\.svg\)", ".pdf)"),
            ("∎", r"$\\blacksquare$"),
            ("ρ", r"$\\rho$"),
            ("γ", r"$\\gamma$"),
            ("−", r"`\\textminus{}`{=latex}"),
        ],
        ["--columns=150", "--number-sections", *(f"--variable={one}" for one in IN_LATEX)],
    ),
    "html": (
        [(NUMBERED, r"$$\1\3\\qquad(\2)$$")],
        ["--columns=500", "--mathml", "--embed-resources", "--number-sections", f"--variable=header-includes:{STYLE}"],
    ),
}
"""Replacements in a page before it is converted, and Pandoc's options."""
sys.path.insert(0, str(ROOT / "benchmarks"))
import paper_tables  # noqa: E402


def replaced(text: str, pairs: list[tuple[str, str]]) -> str:
    """Return a text after all replacements, in their order."""
    for pattern, instead in pairs:
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return text


def pages() -> dict[Path, str]:
    """Return what each page should say."""
    templates = sorted((ROOT / "benchmarks" / "pages" / "paper").glob("*.md"))
    return {HERE / path.name: paper_tables.filled(path.read_text(encoding="utf-8")) for path in templates}


def converted(text: str, to: str) -> str:
    """Return a page in another format, with its references; a citation that is not in references.bib ends the build."""
    import pypandoc

    before, options = FORMATS[to]
    options = ["--standalone", "--citeproc", f"--bibliography={HERE / 'references.bib'}", *options]
    options += ["--shift-heading-level-by=-1", "--fail-if-warnings", f"--resource-path={HERE}"]
    made = pypandoc.convert_text(replaced(text, before), to, format="markdown", extra_args=options)
    if to == "typst-citations":
        made = re.sub(r"(?<!\\)\$.*?(?<!\\)\$", lambda found: replaced(found[0], IN_TYPST), made, flags=re.DOTALL)
    if to == "latex":  # names of tests are longer than a line
        made = re.sub(
            r"\\texttt\{[^{}]*\}", lambda found: replaced(found[0], [(r"(\\_|/|::)", r"\1\\allowbreak{}")]), made
        )
    return made


def printed(source: str, **options: object) -> bytes | list[bytes]:
    """Return a Typst document as PDF, or as one PNG a page with `format="png"`."""
    import typst

    return typst.compile(source.encode(), root=str(HERE), ignore_system_fonts=True, **options)


def build(text: str, stem: str, out: Path) -> int:
    """Write a page as PDF, LaTeX and HTML into a folder, and return the number of pages of the PDF."""
    out.mkdir(parents=True, exist_ok=True)
    source = converted(text, "typst-citations")
    (out / f"{stem}.pdf").write_bytes(printed(source))
    (out / f"{stem}.tex").write_text(converted(text, "latex"), encoding="utf-8")
    (out / f"{stem}.html").write_text(converted(text, "html"), encoding="utf-8")
    for name in re.findall(r"\]\((\w+)\.svg\)", text):
        figure = f'#set page(width: auto, height: auto, margin: 0pt)\n#set document(date: none)\n#image("{name}.svg")'
        (out / f"{name}.pdf").write_bytes(printed(figure))
    drawn = printed(source, format="png", ppi=20)
    return len(drawn) if isinstance(drawn, list) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; name the committed pages that differ")
    if parser.parse_args(arguments).check:
        made = pages().items()
        stale = [path for path, text in made if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"docs/paper/{path.name} is not what its template and the results give: run docs/paper/build.py")
        return int(bool(stale))
    paper_tables.draw(HERE)
    counts = {}
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        counts[path.name] = build(text, path.stem, OUT)
        print(f"docs/paper/{path.name} -> build/paper/{path.stem}.pdf ({counts[path.name]} pages), .tex, .html")
    if counts["paper.md"] > MOST_PAGES:
        print(f"build/paper/paper.pdf has {counts['paper.md']} pages, and at most {MOST_PAGES} are allowed")
    return int(counts["paper.md"] > MOST_PAGES)


if __name__ == "__main__":
    sys.exit(main())
