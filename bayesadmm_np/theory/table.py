"""Table 3 of the paper, generated: natural parameters, statistics, moments and resulting method of each family.

The families are derived for d = 2 with symbolic entries; the compact matrix notation of the table is then *found*, by
solving for the rational coefficients of each block over a small vocabulary (m, Sm, S, S⁻¹, mmᵀ …), and kept only if
the block and the combination are shown to be equal. A block that is not of such a form is printed entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sympy as sp

from . import builtin, printing
from .algebra import is_zero
from .family import SymbolicFamily

DIM = 2
Block = Any
Words = tuple[tuple[sp.Rational, str], ...]
NORMAL = r"\mathcal{N}(\boldsymbol{\theta} \mid \mathbf{m}, "
DISTRIBUTIONS = {
    "unit": ("N(θ | m, I)", NORMAL + r"\mathbf{I})"),
    "fixed": ("N(θ | m, S⁻¹), S fixed", NORMAL + r"\mathbf{S}^{-1}),\ \mathbf{S} \text{ fixed}"),
    "diagonal": (
        "N(θ | m, S⁻¹), S = diag(s)",
        NORMAL + r"\mathbf{S}^{-1}),\ \mathbf{S} = \operatorname{diag}(\mathbf{s})",
    ),
    "full": ("N(θ | m, S⁻¹)", NORMAL + r"\mathbf{S}^{-1})"),
}
HEADER = ("Distribution", "λ", "T(θ)", "μ", "Resulting method")
MARKDOWN = {
    "Sm": "Sm", "m": "m", "S": "S", "S^-1": "S⁻¹", "mm'": "mmᵀ", "s": "s", "1/s": "1/s", "m^2": "m²", "sm": "sm",
    "θ": "θ", "θθ'": "θθᵀ", "θ^2": "θ²",
}  # fmt: skip
LATEX = {
    "Sm": r"\mathbf{S}\mathbf{m}", "m": r"\mathbf{m}", "S": r"\mathbf{S}", "S^-1": r"\mathbf{S}^{-1}",
    "mm'": r"\mathbf{m}\mathbf{m}^\top", "s": r"\mathbf{s}", "1/s": r"1/\mathbf{s}", "m^2": r"\mathbf{m}^2",
    "sm": r"\mathbf{s}\mathbf{m}", "θ": r"\boldsymbol{\theta}", "θθ'": r"\boldsymbol{\theta}\boldsymbol{\theta}^\top",
    "θ^2": r"\boldsymbol{\theta}^2",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One line of the table: each column is a tuple of blocks in the notation of `table3`'s vocabulary.

    Attributes
    ----------
    family : SymbolicFamily
    distribution : str
    natural, statistic, expectation : tuple of tuple
        (coefficient, word) pairs of each block, or its entries where no words were found.
    method : str

    Examples
    --------
    >>> rows()[3].natural
    (((1, 'Sm'),), ((-1/2, 'S'),))
    """

    family: SymbolicFamily
    distribution: tuple[str, str]
    natural: tuple[Words, ...]
    statistic: tuple[Words, ...]
    expectation: tuple[Words, ...]
    method: str


@cache
def rows(coordinates: str = "paper") -> tuple[Row, ...]:
    """Derive the rows of Table 3.

    Parameters
    ----------
    coordinates : {"paper", "code"}, default "paper"
        T = (θ, θθᵀ), or the information form T = (θ, −½θθᵀ).

    Examples
    --------
    >>> [row.method for row in rows()]
    ['ADMM', 'Preconditioned ADMM', 'Alg. 1', 'App. D.2']
    """
    made = []
    for structure, name in DISTRIBUTIONS.items():
        family = builtin.gaussian(structure, DIM, coordinates)
        words, points = _vocabulary(family), _points(family)
        means = [family.in_parameters(mean) for mean in family.expectation]
        assert family.natural_of_parameters is not None
        made.append(
            Row(
                family=family,
                distribution=name,
                natural=_read(family, family.natural_of_parameters, words, halve=False),
                statistic=_read(family, family.statistic, points, halve=True),
                expectation=_read(family, means, words, halve=True),
                method=_method(family),
            )
        )
    return tuple(made)


def table3(latex: bool = False, coordinates: str = "paper") -> str:
    r"""Return Table 3, derived and typeset.

    Parameters
    ----------
    latex : bool, default False
        A LaTeX tabular instead of Markdown.
    coordinates : {"paper", "code"}, default "paper"

    Examples
    --------
    >>> print(table3().splitlines()[3])
    | N(θ \| m, S⁻¹), S fixed | Sm | θ | m | Preconditioned ADMM |
    """
    derived = rows(coordinates)
    if not latex:
        lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
        for row in derived:
            cells = [_markdown(part) for part in (row.natural, row.statistic, row.expectation)]
            lines.append("| " + " | ".join([row.distribution[0].replace("|", r"\|"), *cells, row.method]) + " |")
        return "\n".join(lines) + "\n"
    columns = r"$\boldsymbol{\lambda}$ & $\mathbf{T}(\boldsymbol{\theta})$ & $\boldsymbol{\mu}$"
    head = rf"Distribution & {columns} & Resulting method \\"
    lines = [r"\begin{tabular}{lcccl}", r"\hline", head, r"\hline"]
    for row in derived:
        cells = [f"${_latex(part)}$" for part in (row.natural, row.statistic, row.expectation)]
        lines.append(" & ".join([f"${row.distribution[1]}$", *cells, row.method]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _method(family: SymbolicFamily) -> str:
    """Read the method off the Fisher matrix, which is the metric of the client's proximal term."""
    fisher, dim = family.fisher, len(family.theta)
    if not fisher.free_symbols & set(family.natural):
        return "ADMM" if fisher == sp.eye(dim) else "Preconditioned ADMM"
    owner = [n % dim for n in range(len(family.natural))]
    separate = len(family.natural) == 2 * dim and all(
        fisher[i, j] == 0 for i in range(2 * dim) for j in range(2 * dim) if owner[i] != owner[j]
    )
    return "Alg. 1" if separate else "App. D.2"


def _vocabulary(family: SymbolicFamily) -> dict[str, Block]:
    symbols = {p.name: p for p in (*family.parameters, *family.constants)}
    m = sp.Matrix([symbols[f"m_{i + 1}"] for i in range(DIM)])
    words = {"m": m}
    if "s_1" in symbols:
        s = sp.Matrix([symbols[f"s_{i + 1}"] for i in range(DIM)])
        words |= {
            "sm": s.multiply_elementwise(m),
            "s": s,
            "m^2": m.multiply_elementwise(m),
            "1/s": s.applyfunc(lambda e: 1 / e),
        }
    if "S_11" in symbols:
        S = sp.Matrix(DIM, DIM, lambda i, j: symbols[f"S_{min(i, j) + 1}{max(i, j) + 1}"])
        words |= {"Sm": S * m, "mm'": m * m.T, "S^-1": S.inv(), "S": S}
    return words


def _points(family: SymbolicFamily) -> dict[str, Block]:
    theta = sp.Matrix(family.theta)
    return {"θ": theta, "θθ'": theta * theta.T, "θ^2": theta.multiply_elementwise(theta)}


def _read(
    family: SymbolicFamily, entries: Sequence[sp.Expr], words: Mapping[str, Block], halve: bool
) -> tuple[Words, ...]:
    """Split packed entries into blocks and find their words; `halve` undoes the double count of off-diagonals."""
    assert family.shapes is not None
    blocks, left = [], [e / n if halve else e for e, n in zip(entries, family.multiplicity, strict=True)]
    for shape in family.shapes:
        block = sp.zeros(shape[0], 1 if len(shape) == 1 else shape[0])
        for i in range(shape[0]):
            for j in [0] if len(shape) == 1 else range(i, shape[0]):
                block[i, j] = left.pop(0)
                if len(shape) == 2:
                    block[j, i] = block[i, j]
        blocks.append(_combination(block, words))
    return tuple(blocks)


def _combination(block: Block, words: Mapping[str, Block]) -> Words:
    """Rational coefficients with Σ coefficient · word = block, shown to hold; the bare entries if there are none."""
    fitting = {word: value for word, value in words.items() if value.shape == block.shape}
    unknowns = {word: sp.Dummy() for word in fitting}
    gap = block - sum((c * fitting[word] for word, c in unknowns.items()), sp.zeros(*block.shape))
    symbols = sorted(gap.free_symbols - set(unknowns.values()), key=lambda s: s.name)
    equations = []
    for n in range(len(fitting) + 1):
        point = {
            s: sp.Rational(7 + 3 * i + 5 * n, 2 + i) if "12" not in s.name else sp.Rational(n + 1, 9)
            for i, s in enumerate(symbols)
        }
        equations += list(gap.subs(point))
    solved = sp.solve(equations, list(unknowns.values()), dict=True)
    if solved and all(is_zero(entry.subs(solved[0])) for entry in gap):
        pairs = [(solved[0].get(c, sp.S.Zero), word) for word, c in unknowns.items()]
        if all(coefficient.is_Rational for coefficient, _ in pairs):
            return tuple(pair for pair in pairs if pair[0] != 0)
    return tuple((sp.S.One, printing.text(entry)) for entry in block)


def _markdown(blocks: tuple[Words, ...]) -> str:
    written = [
        _sum(block, MARKDOWN, {sp.Rational(1, 2): "½", sp.Rational(-1, 2): "−½", sp.S.NegativeOne: "−"})
        for block in blocks
    ]
    return written[0] if len(written) == 1 else f"({', '.join(written)})"


def _latex(blocks: tuple[Words, ...]) -> str:
    halves = {sp.Rational(1, 2): r"\tfrac{1}{2}", sp.Rational(-1, 2): r"-\tfrac{1}{2}", sp.S.NegativeOne: "-"}
    written = [_sum(block, LATEX, halves) for block in blocks]
    return written[0] if len(written) == 1 else r"\begin{pmatrix} " + r" \\ ".join(written) + r" \end{pmatrix}"


def _sum(block: Words, words: Mapping[str, str], signs: Mapping[sp.Rational, str]) -> str:
    terms = []
    for coefficient, word in block:
        shown = words.get(word, word)
        if coefficient == 1:
            terms.append(shown)
        else:
            terms.append(signs.get(coefficient, str(coefficient)) + (f"({shown})" if "/" in shown else shown))
    return " + ".join(terms).replace("+ −", "− ").replace("+ -", "- ")
