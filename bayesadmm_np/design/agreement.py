"""The design that the sites agreed on, and how a site makes it of its table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, combinations, product
from math import prod
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._validation import Array
from .bases import natural_spline, orthogonal_polynomials
from .levels import AgreedColumn, TableError, cells_of, is_missing, level_name
from .rows import SiteRows
from .terms import SPLINES, Expression, Learned, Parsed, parse, refuse

MOST_COLUMNS = 1000
"""Columns of a design that a message may ask for without naming them."""
MOST_WORK = 1 << 17
"""Comparisons of products of factors, of which a term of k factors with levels makes 4ᵏ: a second of formulaic's."""


@dataclass(frozen=True)
class Term:
    """A term of a model: its factors, and the places of its columns among those of the design."""

    name: str
    factors: frozenset[str]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """Columns of a design without rows: their names, the terms, and the levels of factors that each column marks.

    `levels` has for each column the pairs (factor, level) of the rows where it is 1, and () where it is no such mark.
    """

    names: tuple[str, ...]
    terms: tuple[Term, ...]
    levels: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Agreement:
    """Instructions by which all sites make their designs: plain values, sent to each site and kept with the model.

    Attributes
    ----------
    formula : str
    columns : dict of str to AgreedColumn
        Reading of each column.
    learned : dict of str to dict
        What each learned transform takes from data, by its call: mean and scale, knots and bounds, or a recurrence.
    weights : str or None
        Column of weights.
    client : str or None
        Factor of the sites, where they have intercepts of their own.
    lines : tuple of str
        What was made alike, and how many rows each site leaves out.

    Raises
    ------
    ValueError
        When columns or learned transforms are not those of the formula.
    """

    formula: str
    columns: dict[str, AgreedColumn]
    learned: dict[str, dict[str, float | list[float] | None]] = field(default_factory=dict)
    weights: str | None = None
    client: str | None = None
    lines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parsed = self.parsed
        needed = needed_columns(parsed.roles, self.weights)
        if set(self.columns) != set(needed):
            raise ValueError(f"columns must be {sorted(needed)}, got {sorted(self.columns)}")
        for name, role in needed.items():
            if role != "any" and self.columns[name].kind != role:
                raise ValueError(f"column {name!r} must be a {role}, got a {self.columns[name].kind}")
        if self.client is not None and getattr(self.columns.get(self.client), "kind", "") != "factor":
            raise ValueError(f"client must be a factor of the formula, got {self.client!r}")
        if set(self.learned) != {call.text for call in parsed.learned}:
            raise ValueError(f"learned must be those of the formula, got {sorted(self.learned)}")
        for call in parsed.learned:
            _check_learned(call, self.learned[call.text])
        for expression in parsed.expressions.values():
            if expression.factor is not None and expression.base is not None:
                self.columns[expression.factor].require(expression.base, expression.factor)

    @property
    def parsed(self) -> Parsed:
        """The formula in parts."""
        return parse(self.formula)

    @property
    def target(self) -> str:
        """Column or expression on the left."""
        return self.parsed.target

    @property
    def said_target(self) -> str:
        """The target as the formula has it."""
        return self.parsed.said_target

    @property
    def has_intercept(self) -> bool:
        """Return whether the formula has an intercept, which is no column of the design."""
        return self.parsed.has_intercept

    @property
    def classes(self) -> tuple[str, ...]:
        """Levels of a target that is text; empty for numbers."""
        found = self.columns.get(self.parsed.target_column)
        return found.levels if found is not None else ()

    @property
    def factors(self) -> tuple[str, ...]:
        """Columns that are factors."""
        return tuple(name for name, column in self.columns.items() if column.kind == "factor")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the design's columns, in order, without the intercept."""
        return self.structure.names

    @property
    def terms(self) -> tuple[Term, ...]:
        """Terms of the formula, in order, without the intercept."""
        return self.structure.terms

    @cached_property
    def n_columns(self) -> int:
        """Number of columns of the design at most, by multiplication of counts; enormous where counting takes too long.

        A term spans Π (levels − 1) columns for each subset of its factors with levels, and each subset counts once.
        """
        found: dict[Any, int] = {}
        work = 0
        for term in self.parsed.terms:
            widths = {name: self._width(name) for name, is_number in term if not is_number}
            marks = {name for name, (has_levels, _) in widths.items() if has_levels}
            work += 4 ** len(marks)
            if work > MOST_WORK:
                return 1 << 62
            others = frozenset(set(widths) - marks)
            for chosen in chain.from_iterable(combinations(marks, size) for size in range(len(marks) + 1)):
                found[others, frozenset(chosen)] = prod(widths[name][1] for name in (*others, *chosen))
        return sum(found.values()) - self.has_intercept

    def _width(self, name: str) -> tuple[bool, int]:
        """Return whether a factor has levels, and the number of its columns beside those of an intercept."""
        expression = self.parsed.expressions.get(name)
        if expression is None or expression.factor is not None:
            levels = self.columns[name if expression is None else str(expression.factor)].levels
            return bool(levels), len(levels) - 1 if levels else 1
        for call in expression.learned:
            knots, options = self.learned[call.text].get("knots"), call.options
            if isinstance(knots, list) and call.name == "ns":
                return False, len(knots) + 1
            if isinstance(knots, list):
                return False, len(knots) + options.get("degree", 3) + bool(options.get("include_intercept"))
        return False, expression.degree

    def require_columns(self, named: int) -> None:
        """Raise an ArgumentError where the design has more columns than `MOST_COLUMNS`, and than so many names."""
        most = max(MOST_COLUMNS, named)
        if self.n_columns > most:
            remedy = "leave out products of factors, or make a column of them in the table"
            raise refuse(self.formula, f"must make at most {most} columns", remedy)

    @cached_property
    def structure(self) -> Structure:
        """Columns and terms of the design, without the intercept."""
        row = {name: np.array([0 if column.kind == "factor" else np.nan]) for name, column in self.columns.items()}
        try:
            return _structure(self, *_materialised(self, row, 1))
        except (ArgumentError, TableError):
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # such as scores of other levels
            raise refuse(self.formula, "must have codings for the levels that there are", str(error)) from error


@dataclass(frozen=True, eq=False)
class Table:
    """A table's columns, read once from a frame or a mapping, by their names as they are written."""

    names: tuple[Any, ...]
    columns: dict[Any, Any]

    @classmethod
    def of(cls, table: Any) -> Table:
        """Return a table; one that is read already stays as it is."""
        if isinstance(table, Table):
            return table
        if not isinstance(table, Mapping) and not hasattr(table, "columns"):
            raise TableError(f"a table must be a frame or a mapping from names to columns, got {type(table).__name__}")
        names = tuple(table if isinstance(table, Mapping) else table.columns)
        twice = [name for j, name in enumerate(names) if name in names[:j]]
        if twice:
            raise TableError("stands in the table twice", "rename one", column=str(twice[0]))
        return cls(names, {name: table[name] for name in names})

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.columns[self.names[0]]) if self.names else 0

    def own_names(self, names: Collection[str]) -> dict[str, Any]:
        """Return {name: its name in the table}, which may have blanks around it."""
        own: dict[str, Any] = {}
        for column in self.names:
            name = str(column).strip()
            if name in names and name in own:
                raise TableError("stands in the table twice", "rename one", column=name)
            own[name] = column
        return {name: own[name] for name in names if name in own}

    def of_rows(self, rows: Array) -> Table:
        """Return a table of these rows, marked by a bool each."""
        return (
            self if rows.all() else Table(self.names, {name: cells_of(own)[rows] for name, own in self.columns.items()})
        )

    def named(self, names: Collection[str]) -> dict[str, Any]:
        """Return the columns of these names that the table has."""
        return {name: self.columns[own] for name, own in self.own_names(names).items()}


@dataclass(frozen=True, eq=False)
class Design:
    """Rows of a site as a regression takes them, without a column for the intercept; y is None for a prediction.

    `kept` marks the table's rows that are rows of the design, and `missing` counts missing values by column.
    """

    matrix: Array
    names: tuple[str, ...]
    y: Any
    offset: Array | None
    weights: Array | None
    kept: Array
    missing: dict[str, int]

    @property
    def n_dropped(self) -> int:
        """Rows left out."""
        return len(self.kept) - int(self.kept.sum())

    @property
    def used(self) -> Array:
        """Rows of the table that are kept and have a positive weight: a row of weight zero is no row."""
        found = self.kept.copy()
        found[found] = True if self.weights is None else self.weights > 0
        return found

    def rows(self, with_ones: bool, centre: Array | None = None, shift: float = 0.0) -> SiteRows:
        """Return the rows of positive weight at an origin, with a column of ones last where a run has one."""
        whole = np.column_stack([self.matrix, np.ones(len(self.matrix))]) if with_ones else self.matrix
        whole = whole if centre is None else whole - centre
        used = self.used[self.kept]
        weights, offset = (None if part is None else part[used] for part in (self.weights, self.offset))
        offset = offset if offset is None or not shift else offset - shift
        return SiteRows(whole[used], self.y[used], weights, offset)


def design(table: Any, agreement: Agreement, site: str | None = None, *, for_prediction: bool = False) -> Design:
    """Make the design of a table as agreed, or raise a TableError where the table is not as it was agreed.

    The site's name stands in for a column of sites. Rows to be predicted need no target or weights, and lack no value.
    """
    parsed = agreement.parsed
    names = parsed.predictors if for_prediction else needed_columns(parsed.roles, agreement.weights)
    wanted = [name for name in agreement.columns if name in names]
    try:
        return _design(Table.of(table), agreement, wanted, site, for_prediction)
    except TableError as error:
        if site is None or error.site is not None:
            raise
        raise TableError(error.fact, error.remedy, site, error.column) from error


def check_weights(weights: Array, name: str) -> None:
    """Refuse what is no weight, and a site without a row of positive weight."""
    if (weights < 0).any() or not weights.any():
        raise TableError("must hold weights >= 0, not all zero", "", column=name)


def _design(table: Table, agreement: Agreement, wanted: list[str], site: str | None, for_prediction: bool) -> Design:
    columns, n_rows = table.named(wanted), table.n_rows
    if agreement.client in wanted and site is not None:
        columns[agreement.client] = np.array([site] * n_rows, dtype=object)
    for name in wanted:
        if name not in columns:
            raise TableError("is not in the table", column=name)
    missing = {name: count for name in wanted if (count := int(is_missing(columns[name]).sum()))}
    if for_prediction and missing:
        name, count = next(iter(missing.items()))
        raise TableError(f"is missing in {count} row(s), which cannot be predicted", "fill it in", column=name)
    complete: Any = complete_rows(columns, n_rows)
    rows = {name: agreement.columns[name].read(columns[name], complete, name) for name in wanted}
    for name, values in rows.items():
        strange = values < 0
        if agreement.columns[name].kind == "factor" and strange.any():
            cell = cells_of(columns[name])[complete][strange][0]
            levels = ", ".join(map(repr, agreement.columns[name].levels))
            fact = f"holds the level {level_name(cell)!r}, which is not among those agreed ({levels})"
            raise TableError(fact, column=name)
    if agreement.weights in rows:
        check_weights(rows[agreement.weights], agreement.weights)
    n_kept, parsed = int(complete.sum()), agreement.parsed
    y: Any = None if for_prediction else _target(agreement, rows, n_kept)
    if parsed.group is not None and not for_prediction:
        if agreement.classes:
            raise TableError("holds text beside a random intercept", "write 1 for an event and 0", column=parsed.target)
        y = np.column_stack([y, _codes(table, parsed.group)[complete]])
    matrix = _matrix(agreement, rows, n_kept)
    offsets = [_finite(parsed.expressions[offset], rows, n_kept) for offset in parsed.offsets]
    return Design(
        matrix,
        agreement.names,
        y,
        np.sum(offsets, axis=0) if offsets else None,
        None if for_prediction or agreement.weights is None else rows[agreement.weights],
        complete,
        missing,
    )


def _target(agreement: Agreement, rows: Mapping[str, Any], n_rows: int) -> Any:
    target, parsed = agreement.target, agreement.parsed
    if parsed.response:
        return np.column_stack([_finite(parsed.expressions[text], rows, n_rows) for text in parsed.response])
    expression = parsed.expressions.get(target)
    if expression is not None and expression.factor is None:
        return _finite(expression, rows, n_rows)
    name = target if expression is None else expression.factor
    assert name is not None
    levels = agreement.columns[name].levels
    return np.array(levels, dtype=object)[rows[name]] if levels else rows[name]


def _codes(table: Table, group: str) -> Array:
    """Return a number for each row's group, which no site sends; a column `site` that there is not is the site."""
    found = table.named([group])
    if group not in found:
        if group != "site":
            raise TableError("is not in the table", column=group)
        return np.zeros(table.n_rows)
    missing: Any = is_missing(found[group])
    if missing.any():
        raise TableError(f"names no group in {int(missing.sum())} row(s)", "fill it in", column=group)
    return np.unique(cells_of(found[group]).astype(str), return_inverse=True)[1].astype(np.float64)


def _finite(expression: Expression, rows: Mapping[str, Any], n_rows: int) -> Array:
    values = np.broadcast_to(np.asarray(expression.value(rows), dtype=np.float64), (n_rows,))
    _check_finite(values, expression.text)
    return values


def _check_finite(values: Array, what: str) -> None:
    wrong = int((~np.isfinite(values)).sum())
    if wrong:
        raise TableError(f"{what} is not finite in {wrong} row(s)", "correct them, or leave them empty")


def terms_of(names: Sequence[str], agreement: Agreement | None, first: int = 0) -> tuple[Term, ...]:
    """Return the terms of a design: those of the formula, or without one each column by itself.

    The first columns are of no term, as those of parameters beside the coefficients.
    """
    if agreement is not None:
        return tuple(replace(term, columns=tuple(first + j for j in term.columns)) for term in agreement.terms)
    return tuple(Term(name, frozenset([name]), (j,)) for j, name in enumerate(names) if j >= first)


def _materialised(agreement: Agreement, rows: Mapping[str, Any], n_rows: int) -> tuple[Any, dict[str, Any]]:
    """Put the terms together as formulaic does, from factors that were evaluated here; return these, too."""
    import pandas as pd
    from formulaic import ModelSpec
    from formulaic.parser.types import Factor
    from formulaic.parser.types import Term as FormulaTerm

    parsed = agreement.parsed
    columns = {
        name: pd.Categorical.from_codes(values, categories=list(agreement.columns[name].levels))
        if agreement.columns[name].kind == "factor"
        else values
        for name, values in rows.items()
    }
    evaluated: dict[str, Any] = {}
    for factor in dict.fromkeys(name for term in parsed.terms for name, is_number in term if not is_number):
        expression = parsed.expressions.get(factor)
        if expression is None:
            evaluated[factor] = pd.Series(columns[factor])
            continue
        if expression.factor is not None:
            evaluated[factor] = expression.value({expression.factor: pd.Series(columns[expression.factor])})
            continue
        calls = {call.node: _transform(call, agreement.learned[call.text]) for call in expression.learned}
        try:
            evaluated[factor] = expression.value(columns, calls)
        except ValueError as error:
            remedy = "set lower_bound and upper_bound, or extrapolation='extend'"
            raise TableError(f"{factor} lies outside of its bounds in some row(s)", remedy) from error
    terms = [
        FormulaTerm([Factor(name, eval_method="literal" if is_number else "lookup") for name, is_number in term])
        for term in parsed.terms
    ]
    spec = ModelSpec(formula=terms, na_action="ignore", output="pandas")
    return spec.get_model_matrix(pd.DataFrame(index=range(n_rows)), context=evaluated), evaluated


def _matrix(agreement: Agreement, rows: Mapping[str, Any], n_rows: int) -> Array:
    """Return the columns of the design, which `agreement.structure` has checked, for complete rows."""
    names = agreement.names
    made, _ = _materialised(agreement, rows, n_rows)
    matrix = np.asarray(made, dtype=np.float64)
    if agreement.has_intercept:
        matrix = np.delete(matrix, made.model_spec.term_slices["1"], axis=1)
    for name, column in zip(names, matrix.T, strict=True):
        _check_finite(column, name)
    return matrix


def _structure(agreement: Agreement, made: Any, evaluated: Mapping[str, Any]) -> Structure:
    """Return the structure of a design that was put together; two columns of one name are refused.

    formulaic keeps one of such columns, and leaves out those of levels that begin with two underscores.
    """
    names: list[str] = []
    terms: list[Term] = []
    levels: list[tuple[tuple[str, str], ...]] = []
    for term, (found, scopes, own) in zip(agreement.parsed.terms, made.model_spec.structure, strict=True):
        if term == (("1", True),):
            continue
        marks = [mark for scope in scopes for mark in _marks(agreement, scope, made.model_spec, evaluated)]
        names += map(str, own)
        if len(marks) != len(own) or len(set(names)) < len(names):
            expected = "must give each column of the design a name of its own"
            twice = next((name for name in names if names.count(name) > 1), str(found))
            advice = "rename levels that hold ':' or begin with '__'" if len(marks) != len(own) else ""
            raise ArgumentError("formula", expected, repr(twice), advice)
        factors = frozenset(name for name, is_number in term if not is_number)
        terms.append(Term(str(found), factors, tuple(range(len(levels), len(levels) + len(own)))))
        levels += marks
    return Structure(tuple(names), tuple(terms), tuple(levels))


def _marks(
    agreement: Agreement, scope: Any, spec: Any, evaluated: Mapping[str, Any]
) -> list[tuple[tuple[str, str], ...]]:
    """Return for each column of a product of factors the levels that it marks, in formulaic's order of columns."""
    parts: list[list[tuple[str, str] | None]] = []
    for one in scope.factors:
        name = one.factor.expr
        coding = spec.encoder_state[name][1].get("contrasts")
        if coding is None:
            found: Any = evaluated.get(name)
            width = len(found) if isinstance(found, dict) else np.shape(found)[1] if np.ndim(found) == 2 else 1
            parts.append([None] * width)
            continue
        levels = coding.contrasts.get_coding_column_names(coding.levels, reduced_rank=one.reduced)
        expression = agreement.parsed.expressions.get(name)
        column = name if expression is None else str(expression.factor)
        is_mark = not one.reduced or hasattr(coding.contrasts, "base")  # of treatment coding
        parts.append([(column, str(level)) if is_mark else None for level in levels])
    products = [[pair for pair in pairs[::-1] if pair is not None] for pairs in product(*reversed(parts))]
    return [tuple(pairs) if len(pairs) == len(parts) else () for pairs in products]


def _check_learned(call: Learned, found: Mapping[str, Any]) -> None:
    wanted: tuple[str, ...] = ("alpha", "beta") if call.name == "poly" else ("center", "scale")
    wanted = ("knots", "lower_bound", "upper_bound") if call.name in SPLINES else wanted
    if set(found) != set(wanted):
        raise ValueError(f"{call.text} must have {', '.join(wanted)}, got {', '.join(sorted(found)) or 'nothing'}")
    if call.name == "poly":
        alpha, beta, degree = found["alpha"], found["beta"], call.options["degree"]
        if len(alpha) != degree or len(beta) != degree + 1 or not np.isfinite([*alpha, *beta]).all() or min(beta) <= 0:
            raise ValueError(f"{call.text} must have a recurrence of its degree, got {dict(found)}")
        return
    if call.name not in SPLINES:
        if found["center"] is None or not (found["scale"] is None or found["scale"] > 0):
            raise ValueError(f"{call.text} must have a mean, and a scale > 0, got {dict(found)}")
        return
    places = [found["lower_bound"], *found["knots"], found["upper_bound"]]
    if not (np.isfinite(places).all() and places == sorted(places) and places[0] < places[-1]):
        raise ValueError(f"{call.text} must have rising knots between its bounds, got {places}")


def _transform(call: Learned, found: Mapping[str, Any]) -> Callable[..., Any]:
    """The transform with what was agreed in place of what it would learn."""
    if call.name == "poly":
        return lambda values: _columns(orthogonal_polynomials(values, found["alpha"], found["beta"]))
    if call.name == "ns":
        places = found["knots"], found["lower_bound"], found["upper_bound"]
        return lambda values: _columns(natural_spline(values, *places))
    if call.name != "bs":
        return partial(_rescaled, found)
    from formulaic.transforms import basis_spline

    degree = call.options.get("degree", 3)
    low, high = found["lower_bound"], found["upper_bound"]
    padded = np.pad([low, *found["knots"], high], degree, mode="edge").tolist()
    state = {"knots": padded, "lower_bound": low, "upper_bound": high}
    options = {name: value for name, value in call.options.items() if name not in ("df", "knots", *state)}
    return partial(basis_spline, _state=state, **options)


def _columns(matrix: Array) -> Any:
    """Return columns as formulaic takes those of bs(…): numbered from one."""
    from formulaic.materializers.types import FactorValues

    found = dict(enumerate(matrix.T, 1))
    return FactorValues(found, kind="numerical", format="{name}[{field}]", encoded=False)


def _rescaled(found: Mapping[str, Any], values: Array) -> Array:
    moved = values - found["center"]
    return moved if found["scale"] is None else moved / found["scale"]


def needed_columns(roles: Mapping[str, Any], weights: str | None) -> dict[str, Any]:
    """Return what each column must be, the column of weights too."""
    if weights is None:
        return dict(roles)
    if weights in roles:
        advice = "of events over trials the target is the column of events alone, and trials names the other"
        raise ArgumentError("weights", "must be a column that the formula does not use", repr(weights), advice)
    return {**roles, weights: "number"}


def complete_rows(columns: Mapping[str, Any], n_rows: int) -> Array:
    """Return the rows in which no column is missing, shape (n,) of bool."""
    complete = np.ones(n_rows, dtype=bool)
    for name, column in columns.items():
        gone: Any = is_missing(column)
        if len(gone) != n_rows:
            raise TableError(f"must have {n_rows} rows as the table has, got {len(gone)}", column=name)
        complete &= ~gone
    return complete
