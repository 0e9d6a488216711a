"""Reading a formula: its terms, and what each expression in it may do.

A formula comes to a site from elsewhere, so it is no Python: names of columns, numbers, arithmetic and the functions
of a list are all that is evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from keyword import iskeyword
from typing import Any, Literal

import numpy as np

from .._errors import ArgumentError
from .levels import level_name

LONGEST = 10_000
"""Characters of a formula."""
LARGEST_POWER = 64
MOST_BENDS = 10
"""Degree of a spline: each costs as many passes over its columns."""
DEEPEST = 100
"""Operations in operations: whoever walks through an expression calls itself."""

ELEMENTWISE = ("abs", "cbrt", "exp", "expm1", "log", "log10", "log1p", "log2", "sqrt", "square", "tanh")
"""Functions of NumPy, by their names and as np.log."""
CODINGS = {"Treatment": "treatment", "Sum": "sum", "Helmert": "helmert", "Diff": "diff", "Poly": "poly"}
LEARNED = ("bs", "ns", "poly", "center", "scale", "standardize")
"""Transforms that take something from data; poly(…, raw=True) takes nothing."""
SPLINES = ("bs", "ns")
ARITHMETIC: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
SPLINE = ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation")

OFFSET = re.compile(r"offset\((.*)\)")
QUOTED = r"\"(?:\\.|[^\"])*\"|'(?:\\.|[^'])*'|`([^`]*)`"
"""A text, or a name in backticks."""
EMPTY = re.compile(r"[~+(-]\s*\+|[~+*:/-]\s*$|~\s*[*:/]|\+\s*[*:/]")
"""A sign without a term, as a shell leaves where a formula in double quotes has a name in backticks."""
IN_BACKTICKS = (
    "write a name with blanks or signs in backticks, and in a shell the formula in single quotes, as in "
    "'died ~ `Age [y]` + sex': in double quotes the shell deletes what stands in backticks"
)
IN_R = {
    r"(?<![\w.])(as\.)?(factor|ordered)\(": "write C(x) for a factor",
    r"(?<![\w.])relevel\(": "write C(x, Treatment('level')) for another reference",
    r"(?<![\w.])cbind\(": "name the events as the target, and the column of trials by trials=, of a command --trials",
    r"\|": "the random effect that there is is an intercept by group, (1 | group)",
    r"strata\(": "each site is a stratum of a Cox regression by itself",
    r"(?<![\w.])I\([^()]*\^": "write I(x**2) for a power",
    r"%in%": "write a:b for an interaction",
    r"(?<![\w.)])\.(?![\w.])": "name the columns; all columns are used only without a formula",
}
"""Patterns of R's formulas, and what to write here."""
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors that Python's parser may raise."""


# --- Reading a formula ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """A call of a transform that takes something from data, and its place in the expression's tree."""

    text: str
    name: str
    argument: str
    options: Mapping[str, Any]
    node: ast.Call


@dataclass(frozen=True)
class Expression:
    """An expression of columns, checked.

    `columns` has names of columns by their names in `tree`. `factor` is the column of which C(…) makes a factor, with
    a coding of the formula if `is_coded`, and `base` its reference level where the coding names one.
    """

    text: str
    tree: ast.expr
    columns: Mapping[str, str]
    factor: str | None
    base: str | None
    learned: tuple[Learned, ...]
    degree: int = 1  # of poly(…), which has as many columns

    @property
    def is_coded(self) -> bool:
        """Return whether C(…) says how levels become columns."""
        call = self.tree
        return self.factor is not None and isinstance(call, ast.Call) and len(call.args) + len(call.keywords) > 1

    def value(self, columns: Mapping[str, Any], learned: Mapping[ast.Call, Callable[..., Any]] | None = None) -> Any:
        """Evaluate on columns by name, with a function for each learned transform."""
        names = {alias: columns[name] for alias, name in self.columns.items()}
        with np.errstate(all="ignore"):  # what is not finite is refused afterwards
            return _value(self.tree, names, learned or {})


def _value(node: ast.expr, names: Mapping[str, Any], learned: Mapping[ast.Call, Callable[..., Any]]) -> Any:
    """Evaluate a tree that was checked."""
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Name | ast.Attribute):  # a coding
        return functions()[ast.unparse(node)]
    if isinstance(node, ast.UnaryOp):
        return ARITHMETIC[type(node.op)](_value(node.operand, names, learned))
    if isinstance(node, ast.BinOp):
        return ARITHMETIC[type(node.op)](_value(node.left, names, learned), _value(node.right, names, learned))
    if isinstance(node, ast.Compare):
        compare = COMPARISONS[type(node.ops[0])]
        return compare(_value(node.left, names, learned), _value(node.comparators[0], names, learned))
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if node in learned:
        return learned[node](_value(node.args[0], names, learned))
    parts = [_value(part, names, learned) for part in node.args]
    options = {str(keyword.arg): _value(keyword.value, names, learned) for keyword in node.keywords}
    return functions()[ast.unparse(node.func)](*parts, **options)


@dataclass(frozen=True)
class Parsed:
    """A formula in parts.

    `terms` are those on the right but offsets, by factors, each with whether the factor is a literal number. `response`
    has the expressions of Surv(…), of which the first is the target too, and `group` the column of (1 | group).
    `expressions` are those of all factors that are no column, of offsets and of the target. `roles` says what each
    column must be.
    """

    target: str
    terms: tuple[tuple[tuple[str, bool], ...], ...]
    offsets: tuple[str, ...]
    expressions: Mapping[str, Expression]
    roles: Mapping[str, Literal["any", "number", "factor"]]
    response: tuple[str, ...] = ()
    group: str | None = None

    @property
    def said_target(self) -> str:
        """The target as the formula has it: Surv(time, status) too."""
        return f"Surv({', '.join(self.response)})" if self.response else self.target

    @property
    def has_intercept(self) -> bool:
        """Return whether the formula has an intercept, which is no column of a design."""
        return (("1", True),) in self.terms

    @property
    def learned(self) -> list[Learned]:
        """All learned transforms."""
        return [call for expression in self.expressions.values() for call in expression.learned]

    @property
    def target_column(self) -> str:
        """The column that the target is, or of which C(…) makes it; other expressions are themselves."""
        expression = self.expressions.get(self.target)
        return (expression and expression.factor) or self.target

    @property
    def predictors(self) -> set[str]:
        """Columns that a prediction needs."""
        factors = [*self.offsets, *(name for term in self.terms for name, is_number in term if not is_number)]
        return {name for factor in factors for name in self.columns_of(factor)}

    def columns_of(self, factor: str) -> set[str]:
        """Columns of a factor or expression."""
        expression = self.expressions.get(factor)
        return {factor} if expression is None else set(expression.columns.values())


def refuse(text: str, fact: str, remedy: str = "") -> ArgumentError:
    """Return the refusal of a formula, or of a part of it."""
    return ArgumentError("formula", fact, text, remedy)


def formula_of_columns(
    target: str,
    columns: Sequence[str],
    *,
    factors: Sequence[str] = (),
    offset: str | None = None,
    exposure: str | None = None,
    intercept: bool = True,
) -> str:
    """Return the formula of a list of columns, among them factors; the logarithm of the exposure is an offset, too."""
    terms = [f"C({quoted(name)})" if name in factors else quoted(name) for name in columns]
    listed = f"{' + '.join([*terms, *_offsets(offset, exposure)])}{'' if intercept else ' - 1'}"
    return f"{quoted(target)} ~ {listed}"


def with_offset(formula: str, offset: str | None = None, exposure: str | None = None) -> str:
    """Return a formula with columns of offset and exposure, which it must not have already."""
    added = _offsets(offset, exposure)
    if added and parse(formula).offsets:
        name = "exposure" if offset is None else "offset"
        raise ArgumentError(name, f"must be left out: the formula has {parse(formula).offsets[0]}")
    return " + ".join([formula, *added])


def _offsets(offset: str | None, exposure: str | None) -> list[str]:
    known = [] if offset is None else [f"offset({quoted(offset)})"]
    return known if exposure is None else [*known, f"offset(log({quoted(exposure)}))"]


def quoted(name: str) -> str:
    """A column's name as a formula takes it."""
    if "`" in name:
        raise ArgumentError("features", "must have names without backticks", repr(name), "rename the column")
    is_plain = name.isidentifier() and not iskeyword(name) and name not in functions() and name not in LEARNED
    return name if is_plain else f"`{name}`"


MOST_PRODUCTS = 2000
"""Products of columns in a formula: forming 6 561 takes seconds."""


def _products(node: Any) -> float:
    """Bound how many products of columns a parsed formula stands for, before any is formed."""
    if not hasattr(node, "args"):
        return 1.0
    each = [_products(one) for one in node.args]
    symbol = node.operator.symbol
    if symbol in ("**", "^"):
        power = str(node.args[-1])
        # the parser multiplies as often as the power says, even where one column stays one
        if not power.isdecimal() or len(power) > 3 or int(power) > LARGEST_POWER:
            return math.inf
        return float(min(each[0], 1e9) ** min(int(power), 30))
    if symbol in ("*", "/"):
        return math.prod(1.0 + one for one in each)
    if symbol in (":", "%in%"):
        return math.prod(each)
    return sum(each)


@lru_cache(maxsize=64)
def parse(formula: str) -> Parsed:
    """Read a formula as of R, and check every expression in it; what is not on the list is refused."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError
    from formulaic.formula import SimpleFormula
    from formulaic.parser import DefaultFormulaParser

    if not isinstance(formula, str) or len(formula) > LONGEST:
        raise ArgumentError("formula", f"must be a text of at most {LONGEST} characters")
    formula, response, group = _set_apart(formula)
    plain = re.sub(QUOTED, "``", formula)
    if EMPTY.search(plain):
        raise refuse(formula, "must have a term between its signs", IN_BACKTICKS)
    for pattern, remedy in IN_R.items():
        found_in_r = re.search(pattern, plain)
        if found_in_r:
            raise refuse(formula, f"must not have R's {found_in_r[0].strip('(')!r}", remedy)
    try:
        products = _products(DefaultFormulaParser().get_ast(formula))
        found = Formula(formula) if products <= MOST_PRODUCTS else None  # all of which the parser would form
    except (FormulaicError, *UNREADABLE) as error:
        fact = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).split("\n")[0].rstrip(".")
        cure = f"{fact}; {IN_BACKTICKS}"
        raise refuse(formula, "must be a formula like 'died ~ age + C(ward)'", cure) from error
    if found is None:
        raise refuse(formula, f"must stand for at most {MOST_PRODUCTS} products of columns")
    sides = getattr(found, "lhs", None), getattr(found, "rhs", None)
    if not all(isinstance(side, SimpleFormula) for side in sides):
        raise refuse(formula, "must have a target, '~' and predictors, as in 'died ~ age + C(ward)'")
    left, right = (list(side) for side in sides if side is not None)
    if len(left) != 1 or len(left[0].factors) != 1:
        raise refuse(formula, "must have one column or expression on the left")
    expressions: dict[str, Expression] = {}
    terms, offsets = [], []
    for term in (*left, *right):
        for factor in term.factors:
            if factor.eval_method.value == "python" and factor.expr not in expressions:
                offset = OFFSET.fullmatch(factor.expr)
                may_learn = offset is None and term is not left[0]
                expressions[factor.expr] = read_expression(offset[1] if offset else factor.expr, may_learn)
    for term in right:
        names = [factor.expr for factor in term.factors]
        marked = [name for name in names if OFFSET.fullmatch(name)]
        if marked and len(names) > 1:
            raise refuse(str(term), "must not multiply an offset: it has no coefficient")
        if marked:
            offsets.append(names[0])
        else:
            terms.append(tuple((factor.expr, factor.eval_method.value == "literal") for factor in term.factors))
    target = left[0].factors[0].expr
    for text in response:
        expressions[text] = read_expression(text, may_learn=False)
        if expressions[text].factor is not None:
            raise refuse(text, "must have numbers in Surv(…): a time, and a status of 0 or 1")
    target = response[0] if response else target
    for name in (name for term in terms for name, _ in term):
        if name == target or (name in response and name != "1"):
            raise refuse(name, "must not have the target among the predictors")
    roles = _roles(target, terms, expressions)
    if group in roles:
        raise refuse(f"(1 | {group})", "must have a column of groups that the formula does not use elsewhere")
    return Parsed(target, tuple(terms), tuple(offsets), expressions, roles, response, group)


GROUP = re.compile(r"\(\s*1\s*\|\s*(?:`([^`]+)`|([\w.]+))\s*\)(?=\s*(?:[+-]|$))")
SURVIVAL = re.compile(r"\s*Surv\((.*?)\)\s*~", re.DOTALL)


def _set_apart(formula: str) -> tuple[str, tuple[str, ...], str | None]:
    """Return a formula without Surv(…) and (1 | group), the expressions of the first, and the column of the second."""
    groups = [short or name for short, name in GROUP.findall(formula)]
    if len(groups) > 1:
        raise refuse(formula, "must have one random intercept at most, (1 | group)")
    if groups:
        formula = re.sub(r"~\s*" + GROUP.pattern, "~ 1", formula)
        formula = re.sub(r"\+\s*" + GROUP.pattern, "", formula)
    found = SURVIVAL.match(formula)
    if found is None:
        return formula, (), groups[0] if groups else None
    depth, parts = 0, [""]
    for sign in (one[0] for one in re.finditer(rf"{QUOTED}|.", found[1], re.DOTALL)):
        depth += (sign in "([") - (sign in ")]")
        parts = [*parts, ""] if sign == "," and not depth else [*parts[:-1], parts[-1] + sign]
    response = tuple(part.strip() for part in parts)
    if len(response) not in (2, 3) or not all(response):
        raise refuse(found[0], "must be Surv(time, status), or Surv(entry, time, status) of rows that enter late")
    return f"I({response[0]}) ~{formula[found.end() :]}", response, groups[0] if groups else None


def _roles(target: str, terms: Sequence[Any], expressions: Mapping[str, Expression]) -> dict[str, Any]:
    roles: dict[str, Any] = {}
    bare = [target, *(name for term in terms for name, is_number in term if not is_number)]
    for name in bare:
        if name not in expressions:
            roles.setdefault(name, "any")
    for expression in expressions.values():
        for name in expression.columns.values():
            role = "factor" if expression.factor == name else "number"
            if roles.setdefault(name, role) == "any":
                roles[name] = role
            elif roles[name] != role:
                raise refuse(
                    expression.text,
                    f"must not use column {name!r} as a number and as a factor",
                    "copy the column under another name",
                )
    for name in bare:
        if roles.get(name) == "factor" and name not in expressions:
            raise refuse(name, f"must not use column {name!r} with C(…) and without", "write C(…) everywhere")
    return roles


def read_expression(text: str, may_learn: bool = True) -> Expression:
    """Check an expression against the list of what may stand in a formula; a target or an offset may learn nothing."""
    aliases: dict[str, str] = {}
    prefix = "backticked"
    while prefix in text:
        prefix += "_"

    def alias(found: re.Match[str]) -> str:
        if found[1] is None:  # a text in quotes
            return found[0]
        short = next((short for short, name in aliases.items() if name == found[1]), f"{prefix}{len(aliases)}")
        aliases[short] = found[1]
        return short

    reader = _Reader(text, aliases)
    factor, base = None, None
    try:
        body = ast.parse(re.sub(QUOTED, alias, text), mode="eval").body
        level: list[ast.AST] = [body]
        for _ in range(DEEPEST):
            level = [inside for node in level for inside in ast.iter_child_nodes(node)]
        if level:
            raise refuse(text, f"must be at most {DEEPEST} deep")
        if isinstance(body, ast.Call) and isinstance(body.func, ast.Name) and body.func.id == "C":
            factor, base = reader.factor(body)
        else:
            reader.number(body, is_top=True)
    except ArgumentError:
        raise
    except UNREADABLE as error:
        raise refuse(text, "must be an expression of columns") from error
    reader.require(may_learn or not reader.learned, "must take nothing from data in a target or an offset")
    return Expression(text, body, reader.columns, factor, base, tuple(reader.learned), reader.degree)


class _Reader:
    """Walks through an expression; what is not on the list is refused."""

    def __init__(self, text: str, aliases: Mapping[str, str]) -> None:
        self.text, self.aliases = text, aliases
        self.columns: dict[str, str] = {}
        self.learned: list[Learned] = []
        self.degree = 1

    def require(self, is_right: bool, fact: str, remedy: str = "") -> None:
        if not is_right:
            raise refuse(self.text, fact, remedy)

    def name(self, node: ast.Name) -> str:
        self.require(
            node.id in self.aliases or node.id not in functions(), f"must call {node.id}(…), which is no column"
        )
        found = self.aliases.get(node.id, node.id)
        self.columns[node.id] = found
        return found

    def written(self, node: ast.AST) -> str:
        """The source of a node, names of columns as in the formula."""
        aliases = self.aliases
        return re.sub(
            r"\w+", lambda word: f"`{aliases[word[0]]}`" if word[0] in aliases else word[0], ast.unparse(node)
        )

    def constant(self, node: ast.AST) -> Any:
        try:
            found = ast.literal_eval(node)
        except ValueError:
            raise refuse(self.text, f"must have a constant for {self.written(node)!r}") from None
        return found

    def number(self, node: ast.AST, is_top: bool = False, is_inside: bool = False) -> None:
        """An expression of numbers; transforms into several columns stand at the top alone."""
        if isinstance(node, ast.Name):
            self.name(node)
        elif isinstance(node, ast.Constant):
            value: Any = node.value
            self.require(type(value) in (int, float), "must have numbers for constants", "C(…) makes factors")
            self.require(abs(value) <= sys.float_info.max, "must have constants that are finite")
        elif isinstance(node, ast.UnaryOp | ast.BinOp):
            self.require(type(node.op) in ARITHMETIC, "must be arithmetic: + − * / **")
            if isinstance(node.op, ast.Pow):
                power = self.constant(node.right)
                is_small = isinstance(power, int | float) and abs(power) <= LARGEST_POWER
                has_column = any(isinstance(part, ast.Name) for part in ast.walk(node.left))
                self.require(is_small and has_column, f"must have powers of columns, at most {LARGEST_POWER}")
            for part in (node.operand,) if isinstance(node, ast.UnaryOp) else (node.left, node.right):
                self.number(part, False, is_inside)
        elif isinstance(node, ast.Compare):
            self.require(len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS, "must compare two")
            for part in (node.left, *node.comparators):
                self.number(part, False, is_inside)
        elif isinstance(node, ast.Call):
            self.call(node, is_top, is_inside)
        else:
            raise refuse(self.text, f"must hold columns, numbers, arithmetic and calls, not {self.written(node)!r}")

    def call(self, node: ast.Call, is_top: bool, is_inside: bool) -> None:
        name = self.written(node.func)
        self.require(bool(node.args), f"must give {name}(…) a column")
        is_raw = name == "poly" and self.polynomial(node)
        if name in LEARNED and not is_raw:
            self.require(not is_inside, f"must not put {name}(…) inside another transform")
            self.require(is_top or name not in (*SPLINES, "poly"), f"must have {name}(…) as a term of its own")
            self.number(node.args[0], is_inside=True)
            self.learned.append(
                Learned(self.written(node), name, self.written(node.args[0]), self.options(node, name), node)
            )
            return
        if is_raw:
            self.require(is_top, "must have poly(…) as a term of its own")
        else:
            known = name == "I" or name.removeprefix("np.") in ELEMENTWISE
            remedy = {
                "C": "C(…) stands as a term of its own",
                "offset": "offset(…) stands as a term of its own",
                "Q": IN_BACKTICKS,
            }.get(name, f"there are {', '.join((*LEARNED, 'C', 'I', 'offset', *ELEMENTWISE))}")
            self.require(known, f"must not call {name}", remedy)
            self.require(len(node.args) == 1 and not node.keywords, f"must give {name}(…) one argument")
        self.number(node.args[0], is_inside=is_inside)

    def polynomial(self, node: ast.Call) -> bool:
        """Take the degree of poly(…), and return whether its columns are powers."""
        options = {str(keyword.arg): self.constant(keyword.value) for keyword in node.keywords}
        options |= dict(zip(("degree", "raw"), map(self.constant, node.args[1:]), strict=False))
        is_known = set(options) <= {"degree", "raw"} and len(node.args) <= 3
        self.require(is_known, "must give poly(…) a column, a degree and raw=True at most")
        is_raw, degree = options.get("raw") is True, options.get("degree", 1)
        most = LARGEST_POWER if is_raw else MOST_BENDS
        self.require(type(degree) is int and 1 <= degree <= most, f"must have a whole degree from 1 to {most}")
        self.degree = degree
        return is_raw

    def options(self, node: ast.Call, name: str) -> dict[str, Any]:
        if name == "poly":
            return {"degree": self.degree}
        options = dict(zip(SPLINE, map(self.constant, node.args[1:]), strict=False))
        options |= {str(keyword.arg): self.constant(keyword.value) for keyword in node.keywords}
        if name not in SPLINES:
            self.require(
                not options, f"must give {name}(…) one argument", "subtract and divide in I(…): I((x - 60)/10)"
            )
            return options
        known = SPLINE if name == "bs" else ("df", "knots", "lower_bound", "upper_bound")
        self.require(set(options) <= set(known), f"must give {name}(…) arguments among {', '.join(known)}")
        self.require(("df" in options) != ("knots" in options), f"must give {name}(…) one of df and knots")
        degree, df = options.get("degree", 3), options.get("df", LARGEST_POWER)
        fact = f"must have a whole degree from 0 to {MOST_BENDS}"
        self.require(type(degree) is int and 0 <= degree <= MOST_BENDS, fact)
        least = degree + bool(options.get("include_intercept")) if name == "bs" else 1
        self.require(isinstance(df, int) and least <= df <= 1000, f"must have a whole df >= {least}")
        is_cut = options.get("extrapolation", "raise") not in ("raise", "extend")
        self.require(not ("df" in options and is_cut), "must have knots where the spline is cut off at its bounds")
        return options

    def factor(self, node: ast.Call) -> tuple[str, str | None]:
        """C(column) or C(column, Treatment("medical")): a factor, with levels that are agreed."""
        column = node.args[0] if node.args else None
        if not isinstance(column, ast.Name):
            raise refuse(self.text, "must have one column in C(…)")
        given = [*node.args[1:], *(keyword.value for keyword in node.keywords if keyword.arg == "contrasts")]
        others = [keyword.arg for keyword in node.keywords if keyword.arg != "contrasts"]
        remedy = "levels are agreed between the sites; the reference is C(x, Treatment('…'))"
        self.require(not others and len(given) <= 1, "must have at most a coding in C(…)", remedy)
        base = None
        for coding in given:
            call = coding.func if isinstance(coding, ast.Call) else coding
            known = self.written(call) in (*CODINGS, *(f"contr.{short}" for short in CODINGS.values()))
            self.require(known, "must have a coding in C(…)", f"there are {', '.join(CODINGS)}")
            if isinstance(coding, ast.Call):
                for part in (*coding.args, *(keyword.value for keyword in coding.keywords)):
                    self.constant(part)
            base = self.base(coding)
        return self.name(column), base

    def base(self, coding: ast.expr) -> str | None:
        """The reference level of a coding, all of whose arguments are constants."""
        try:
            made = _value(coding, {}, {})
        except (TypeError, ValueError, OverflowError) as error:
            raise refuse(self.text, f"must have a coding that exists, not {self.written(coding)}") from error
        found = getattr(made, "base", None)
        return found if isinstance(found, str) else None


@lru_cache(maxsize=1)
def functions() -> dict[str, Any]:
    """Return what an expression may call, by name; formulaic's own where it has one."""
    from formulaic.transforms import TRANSFORMS, ContrastsRegistry

    found = {name: TRANSFORMS[name] for name in ("C", "I", "poly")}
    for name in ELEMENTWISE:
        found[name] = found[f"np.{name}"] = getattr(np, name)
    for name, short in CODINGS.items():
        found[name], found[f"contr.{short}"] = TRANSFORMS[name], getattr(ContrastsRegistry, short)
    found["Treatment"] = found["contr.treatment"] = _treatment
    return found


def _treatment(reference: Any = None, base: Any = None) -> Any:
    """Treatment coding whose reference is written as levels are."""
    from formulaic.transforms.contrasts import TreatmentContrasts

    chosen = reference if reference is not None else base
    return TreatmentContrasts() if chosen is None else TreatmentContrasts(base=level_name(chosen))
