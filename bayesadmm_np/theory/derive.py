"""The text that `bayesadmm derive FAMILY` prints: a family's maps and updates, derived by sympy."""

from __future__ import annotations

import re
from collections.abc import Iterable

import sympy as sp

from . import printing
from .builtin import by_name, in_code
from .family import SymbolicFamily
from .updates import updates

SYMBOLS = {
    "λ": r"\lambda ",
    "μ": r"\mu ",
    "η": r"\eta ",
    "θ": r"\theta ",
    "α": r"\alpha ",
    "Ω": r"\Omega ",
    "∇": r"\nabla ",
    "∂": r"\partial ",
    "‖": r"\Vert ",
    "⁻¹": "^{-1}",
}
Row = tuple[str, str, sp.Expr | str]


def derive_text(family_name: str, latex: bool = False) -> str:
    """Derive μ, ∇A*, A*, KL, Fisher, natural gradient and the three updates of a built-in family.

    Parameters
    ----------
    family_name : str
        A key of `bayesadmm_np.theory.builtin.FAMILIES`.
    latex : bool, default False
        Whether to write LaTeX (sections and display equations) instead of text.

    Raises
    ------
    ValueError
        When there is no such family; the message lists those that there are.

    Examples
    --------
    >>> print(derive_text("poisson").splitlines()[0])
    Poisson of rate r
    """
    return derive_family(by_name(family_name), latex)


def derive_family(family: SymbolicFamily, latex: bool = False) -> str:
    """Derive the same text for a family of your own."""
    sections = [("Given", _given(family)), ("Derived geometry", _geometry(family)), ("Bayesian-ADMM", _method(family))]
    code = _code_coordinates(family)
    if code:
        sections.append(("The same in the coordinates of bayesadmm_np.families", code))
    if latex:
        return _latex(family, sections)
    lines = [family.title, "=" * len(family.title)]
    for title, rows in sections:
        width = max(len(left) for left, _, _ in rows)
        lines += ["", title, "-" * len(title)]
        lines += [f"  {left:<{width}} {sign} {r if isinstance(r, str) else printing.text(r)}" for left, sign, r in rows]
    return "\n".join(lines) + "\n"


def _given(family: SymbolicFamily) -> list[Row]:
    rows = _vector("T", family.statistic)
    rows += [("A(λ)", "=", family.log_partition), ("log h(θ)", "=", family.log_base_measure)]
    rows += [("Ω", ":", condition) for condition in family.domain] or [("Ω", ":", "every λ")]
    rows.append(("support", ":", str(family.support)))
    return rows


def _geometry(family: SymbolicFamily) -> list[Row]:
    rows: list[Row] = []
    if family.natural_of_parameters is not None:
        rows += _vector("λ", family.natural_of_parameters)
        rows += _vector("μ", [family.in_parameters(mean) for mean in family.expectation])
    rows += [
        (f"{left} = ∂A/∂λ_{n + 1}", sign, value)
        for n, (left, sign, value) in enumerate(_vector("μ", family.expectation))
    ]
    if family.inverse is not None:
        rows += [(f"λ_{n + 1} = ∂A*/∂μ_{n + 1}", "=", value) for n, value in enumerate(family.inverse)]
    else:
        rows.append(("∇A*(μ)", ":", "no closed form; solve ∇A(λ) = μ by Newton's method"))
    rows.append(("A* at λ", "=", family.conjugate))
    if family.conjugate_of_moments is not None:
        rows.append(("A*(μ)", "=", family.conjugate_of_moments))
    size = len(family.natural)
    rows += [(f"F_{i + 1}{j + 1}(λ)", "=", family.fisher[i, j]) for i in range(size) for j in range(i, size)]
    return rows


def _method(family: SymbolicFamily) -> list[Row]:
    made = updates(family)
    rows: list[Row] = [("KL(q_k‖q_g)", "=", made.kl)]
    if made.natural_gradient is None:
        rows.append(("∇_μ L", "=", "F(λ)⁻¹ ∇_λ L (long: solve the linear system with F above)"))
    else:
        rows += [(f"(∇_μ L)_{n + 1}", "=", value) for n, value in enumerate(made.natural_gradient)]
    rows += [(f"client, Eq. 32 ({n + 1})", ":", equation) for n, equation in enumerate(made.optimality)]
    rows += [(f"site {printing.text(e.lhs)}", "=", e.rhs) for e in made.site if e.lhs != e.rhs]
    rows += [(f"dual, Eq. 16: {printing.text(e.lhs)}", "←", e.rhs) for e in made.dual]
    rows.append(("after it, Eq. 33: η_k", "=", "-∇_μ L_k(μ_k), that is η_i,k = -G_i,k"))
    rows += [(f"server, Eq. 54: {printing.text(e.lhs)}", "←", e.rhs) for e in made.server]
    rows.append(("α", "=", 1 / (1 + sp.Symbol("rho") * sp.Symbol("K"))))
    return rows


def _code_coordinates(family: SymbolicFamily) -> list[Row]:
    """For Gaussians that learn a precision: T = (θ, −½θθᵀ)."""
    if not family.name.startswith("gaussian") or len(family.natural) == len(family.theta):
        return []
    code = in_code(family)
    assert code.natural_of_parameters is not None
    means = [code.in_parameters(mean) for mean in code.expectation]
    return [*_vector("T", code.statistic), *_vector("λ", code.natural_of_parameters), *_vector("μ", means)]


def _vector(letter: str, entries: Iterable[sp.Expr]) -> list[Row]:
    return [(f"{letter}_{n + 1}", "=", entry) for n, entry in enumerate(entries)]


def _latex(family: SymbolicFamily, sections: list[tuple[str, list[Row]]]) -> str:
    lines, signs = [rf"\section*{{{_words(family.title)}}}"], {"←": r"\leftarrow", ":": r":\ "}
    for title, rows in sections:
        lines += ["", rf"\subsection*{{{_words(title)}}}", r"\begin{align*}"]
        lines += [
            rf"  &\text{{{_words(left)}}} {signs.get(sign, sign)} "
            + (rf"\text{{{_words(r)}}}" if isinstance(r, str) else printing.latex(r))
            + (r" \\" if n < len(rows) - 1 else "")
            for n, (left, sign, r) in enumerate(rows)
        ]
        lines.append(r"\end{align*}")
    return "\n".join(lines) + "\n"


def _words(words: str) -> str:
    """Text with mathematics in it, for LaTeX's text mode."""
    return re.sub(r"\$ \$", " ", " ".join(_token(word) for word in words.split(" ")))


def _token(word: str) -> str:
    if not re.search(r"[_λμηθαΩ∇∂‖⁻]|^[A-Z]\*?[(]|\*$", word):
        return word
    word = re.sub(r"_([A-Za-z0-9,]+|[λμη])", r"_{\1}", word.rstrip(",:"))
    for character, command in SYMBOLS.items():
        word = word.replace(character, command)
    return f"${word}$"
