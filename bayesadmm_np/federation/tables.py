"""The table of a site: raw columns, text too, that become its part of the design which the sites agreed on.

`agreeing.py` is the server's half, and says which messages go to and fro.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from .._archive import refusal
from .._errors import ArgumentError
from .._validation import Array, as_positive
from ..design.agreement import Agreement, Table, check_weights, complete_rows, design, needed_columns
from ..design.formula import (
    SiteColumns,
    describe_columns,
    expression_values,
    require_columns,
    require_readable,
    spline,
)
from ..design.levels import AgreedColumn, TableError, about_classes, are_named, cells_of, is_missing
from ..design.rows import SiteRows, read_events, require_size, require_weights
from ..design.terms import SPLINES, parse
from ..glm.kinds import Kind, read_kind
from .columns import TableHeader
from .consent import require_agreed, require_origin
from .differencing import Source
from .disclosure import Basis
from .glm_site import GLMData, GLMSite
from .glm_spec import GLMSpec
from .messages import Heard, MessageError
from .spec import RunSpec

MOST_CLASSES = 50
"""More values would be numbers, which a description must not name."""


# --- At a site ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GLMTable:
    """The table of a site, whose columns a formula turns into a design when the sites have agreed on their levels.

    Parameters
    ----------
    table : frame, or mapping from names to columns
        Of pandas or polars, or anything whose columns NumPy reads. Rows with a missing value are left out and counted.
    formula : str
        As of formulaic and of R: "died ~ age*sex + C(ward) + offset(log(days))"; the same at all sites.
    kind : str, default 'logistic'
        Kind of GLM, as `FederatedGLM` takes it.
    weights : str, optional
        Column of row weights; a row of weight zero is no row.
    noise_variance : float, optional
        Of a kind that has one; default estimated by a likelihood, 1 for a posterior.
    minimum_count : int, default 0
        Levels with fewer complete rows are not named to the server, which then refuses the column, unless these rows
        are left out (`drop_withheld` of the task's choices).
    is_list : bool, default False
        Whether the formula lists columns, and sites may list them in another order.
    cluster : str, optional
        Column of clusters, for robust standard errors; its labels stay at the site. By default the site is one cluster.
    trials : str, optional
        Column of numbers of trials, in place of weights, of logistic regression: the target holds counts of events.

    Raises
    ------
    TableError
        When the table lacks a column of the formula, or has no complete row.
    ArgumentError
        When the formula cannot be read, or a spline lacks knots or bounds: quantiles are values of rows.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.federation import Coordinator, GLMTable, GLMTask, Site
    >>> tables = {
    ...     "Basel": {"died": [0, 1, 1, 0], "ward": ["b", "a ", "b", "a"]},
    ...     "Bern": {"died": [1, 0, 1, 0], "ward": ["c", "b", "b", "c"]},
    ... }
    >>> sites = [Site(name, GLMTable(table, "died ~ ward")) for name, table in tables.items()]
    >>> task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    >>> server = Coordinator.start([site.hello() for site in sites], task)
    >>> server.spec.features
    ('ward[T.b]', 'ward[T.c]', 'intercept')
    """

    table: Any
    formula: str
    kind: str = "logistic"
    weights: str | None = None
    noise_variance: float | None = None
    minimum_count: int = 0
    is_list: bool = False
    cluster: str | None = None
    trials: str | None = None

    engine: ClassVar[str] = "glm"

    def __post_init__(self) -> None:
        if self.noise_variance is not None:
            as_positive(self.noise_variance, "noise_variance")
        if self.trials is not None:
            of_trials = self.row.of_trials
            if of_trials is None:
                raise ArgumentError(
                    "trials", f"must be left out for {self.row.title}", "", "it is for logistic regression"
                )
            if self.weights is not None:
                raise ArgumentError("weights", "must be left out beside trials, which are the weights")
            vars(self).update(kind=str(of_trials), weights=self.trials)
            vars(self).pop("row", None)
        elif self.row.has_trials:
            raise ArgumentError("trials", "must name the column of the numbers of trials")
        require_columns({None: self.described}, parse(self.formula), self.described.lacking)
        # before levels of few rows are withheld
        require_readable(self._whole, self.formula, self.weights, None, self.is_list)
        if not self.described.n_complete:
            columns = self.described.columns.items()
            gaps = ", ".join(f"{name} ({one.missing})" for name, one in columns if one.missing)
            rare = ", ".join(name for name, one in columns if one.withheld)
            why = [f"missing values in {gaps}"] * bool(gaps) + [f"levels of too few rows in {rare}"] * bool(rare)
            raise TableError(f"no row is complete: {' and '.join(why)}")
        self._require_target()
        self._weights  # noqa: B018 – what is no weight is refused here
        parsed = parse(self.formula)
        for call in parsed.learned:
            if call.name in SPLINES:
                spline(call)
        for offset in parsed.offsets:
            expression = parsed.expressions[offset].text
            values = self.values(expression)
            if wrong := int((~np.isfinite(values)).sum()):
                raise TableError(f"{expression} is not finite in {wrong} row(s)", "correct them, or leave them empty")
            self.row.require_offset(values)
        self._clusters(self._complete)

    @cached_property
    def _whole(self) -> Table:
        """The table, read once."""
        return Table.of(self.table)

    @cached_property
    def _table(self) -> Table:
        """The rows of every run: those whose levels this site has named, whatever a server says of the others."""
        described = self.described.columns
        columns = self._whole.named({*described, *filter(None, [self.cluster, parse(self.formula).group])})
        rows = [are_named(columns[name], one) for name, one in described.items()]
        return Table(tuple(columns), columns).of_rows(np.all(rows, axis=0))

    @cached_property
    def _made(self) -> dict[str, GLMData]:
        """Designs by run: a site is asked for its own in every round."""
        return {}

    def _require_target(self) -> None:
        """Refuse a target that the kind has not: text, or of classes numbers that a description would name."""
        parsed = parse(self.formula)
        self.row.require_formula(parsed)
        name = parsed.target_column
        target = self.described.columns.get(name)
        if target is None or parsed.response:  # an expression
            return
        if not self.row.has_labels:
            if not target.is_numeric and target.kind in ("text", "mixed"):
                raise TableError(f"holds text, and {self.row} needs {self.row.target.expected}", "", None, name)
            if self.row.has_trials and target.is_numeric:
                found = AgreedColumn("number").read(self._columns[name], self._complete, name)
                self._shares(np.asarray(found, dtype=np.float64), self._weights)
            elif target.is_numeric and not target.infinite:
                self._require_values(self.values(f"`{name}`"))
            return
        most = 2 if self.row.outputs == "one" else MOST_CLASSES
        if target.levels is not None and len(target.levels) > most:
            fact = f"holds {len(target.levels)} different values, and {self.row} needs at most {most} classes"
            advice = "choose another kind of regression; for events over trials name the column of trials"
            raise TableError(fact, partial(about_classes, target.levels, advice), None, name)

    def _require_values(self, y: Array) -> None:
        """Refuse numbers that are no target of the kind."""
        wrong = self.row.target.wrong(y)
        if self.row.is_classifier and not np.isin(y, (0.0, 1.0)).all():
            wrong = float(y[~np.isin(y, (0.0, 1.0))][0])
        if wrong is not None:
            expected = "0 and 1" if self.row.is_classifier else self.row.target.expected
            raise TableError(f"{parse(self.formula).target} must hold {expected} for {self.row}, got {wrong:g}")

    @cached_property
    def row(self) -> Kind:
        """The kind of GLM."""
        return read_kind(self.kind)

    @cached_property
    def described(self) -> SiteColumns:
        """Description of the columns."""
        return describe_columns(
            self._whole,
            self.formula,
            weights=self.weights,
            minimum_count=self.minimum_count,
            classes=self.row.has_labels,
        )

    @property
    def _noise(self) -> float:
        return float(self.noise_variance or 1.0)

    @cached_property
    def digest(self) -> str:
        """Digest of the cells that the formula reads, and of what makes the loss."""
        found = hashlib.sha256(repr((self.formula, self.kind, self.weights, self._noise, self.cluster)).encode())
        others = self._table.named([*filter(None, [self.cluster, parse(self.formula).group])])
        for name, column in sorted({**self._columns, **others}.items()):
            cells = cells_of(column)
            found.update(f"\n{name} {cells.dtype.str} {len(cells)}\n".encode())
            if cells.dtype.kind == "O":
                found.update("\x1f".join(f"{type(cell).__name__} {cell!r}" for cell in cells).encode())
            else:
                found.update(np.ascontiguousarray(cells).tobytes())
        return found.hexdigest()[:16]

    @property
    def _columns(self) -> dict[str, Any]:
        return self._table.named(needed_columns(parse(self.formula).roles, self.weights))

    @property
    def _complete(self) -> Array:
        return complete_rows(self._columns, self._table.n_rows)

    @cached_property
    def _weights(self) -> Array | None:
        if self.weights is None:
            return None
        column, complete = self._columns[self.weights], self._complete
        found = np.asarray(AgreedColumn("number").read(column, complete, self.weights), dtype=np.float64)
        check_weights(found, self.weights)
        require_weights(found)
        return found

    def values(self, expression: str) -> Array:
        """Return an expression's values in complete rows, rising."""
        return expression_values(self._table, expression, self._complete)

    def introduction(self) -> dict[str, Any]:
        """Return what a hello says."""
        weights, n_rows = self._weights, self.described.n_complete
        if weights is not None:
            weights = weights[weights > 0]
            n_rows = len(weights)
        # number of rows, total weight and name are those of the loss to come
        row = self.row if self.row.likelihood is None else None
        rows = np.zeros((n_rows, 1)), np.ones(n_rows), weights, None
        loss = (row or read_kind("poisson")).make_loss(*rows, self.row.n_outputs(3), self._noise)
        columns = self.described.columns.items()
        orders = {name: tuple(one.levels or ()) for name, one in columns if one.is_ordered}
        return {
            "loss": loss.name if row else str(self.row),
            "dim": 0,
            "rows": loss.n_rows,
            "weight": loss.total_weight,
            "features": [],
            "classes": [],
            "table": asdict(TableHeader(str(self.row), self.described, self.weights, self.is_list, orders)),
        }

    def join(self, spec: RunSpec, name: str, privacy: Any) -> GLMSite:
        """Return the engine of a run with this site's part of the design that was agreed."""
        if privacy is not None and isinstance(spec, GLMSpec) and spec.centre is not None:
            raise refusal("centre", "left out: a site with privacy tells no means", "an origin")
        return self.rows_of(spec, name).join(spec, name, privacy)

    def respond(
        self, spec: RunSpec, site: str, name: str, content: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> Callable[[], Any]:
        """Check a question of a run, and return what answers it."""
        return self.rows_of(spec, site).respond(spec, site, name, content, arrays)

    def basis(self, heard: Heard, name: str) -> Basis:
        """Return what an answer rests on."""
        return self.rows_of(heard.spec, name).basis(heard, name)

    def rows_of(self, spec: RunSpec, name: str) -> GLMData:
        """Return this site's part of the design that was agreed."""
        assert isinstance(spec, GLMSpec)
        if spec.run not in self._made:
            try:
                self._made[spec.run] = self._agreed(spec, require_agreed(spec, self), name)
            except (TableError, ArgumentError) as error:
                raise MessageError(str(error)) from error
        return self._made[spec.run]

    def _agreed(self, spec: GLMSpec, agreement: Agreement, name: str) -> GLMData:
        made = design(self._table, agreement, name)
        require_origin(spec, made, spec.has_intercept)
        n_auxiliary = len(self.row.auxiliaries(spec.classes))
        rows = made.rows(spec.has_intercept, None if spec.centre is None else spec.centre[n_auxiliary:], spec.shift)
        rows = replace(rows, X=self.row.widened(rows.X, spec.classes))
        for name, column in zip(spec.features, rows.X.T, strict=False):
            require_size(f"column {name!r}", column)
        y = self._target(rows, agreement, spec.classes)
        if not spec.classes:
            require_size(f"column {agreement.target!r}", y)
        outputs = self.row.n_outputs(len(spec.classes))
        loss = self.row.make_loss(rows.X, y, rows.weights, rows.offset, outputs, self._noise, n_auxiliary)
        told = self.noise_variance if self.row.has_noise else None
        own = made.rows(with_ones=False)
        columns = dict(zip(agreement.names, own.X.T, strict=True))
        columns |= {agreement.target: own.y, "weights": own.weights, "offset": own.offset}
        source = Source.of(columns, np.flatnonzero(made.used))
        data = GLMData(loss, spec.features, spec.classes, told, moves=True, clusters=self._clusters(made.used))
        return replace(data, design=source, cluster=self.cluster or "")

    @property
    def clustered(self) -> tuple[str, Any]:
        """The column of clusters, and the cluster of each row of the hello."""
        rows = self._complete
        if self._weights is not None:
            rows[rows] = self._weights > 0
        return self.cluster or "", self._clusters(rows) or ()

    @cached_property
    def raw(self) -> Source:
        """Columns of which the hello has counts, by names that no design has."""
        columns = {f"{name} (hello)": cells_of(column)[self._complete] for name, column in self._columns.items()}
        return Source.of(columns, np.flatnonzero(self._complete))

    def _clusters(self, rows: Array) -> Any:
        """Return the cluster of each of these rows."""
        if self.cluster is None:
            return None
        found = self._table.named([self.cluster])
        if not found:
            raise TableError("is not in the table", "", None, self.cluster)
        missing = int(is_missing(found[self.cluster])[rows].sum())
        if missing:
            raise TableError(f"names no cluster in {missing} row(s)", "fill it in", None, self.cluster)
        return cells_of(found[self.cluster])[rows].tolist()

    def _target(self, rows: SiteRows, agreement: Agreement, classes: Sequence[str]) -> Array:
        """Labels 0 … C − 1, shares of events, or numbers of the kind."""
        if agreement.classes:
            place = {label: k for k, label in enumerate(classes)}
            return np.array([place[label] for label in rows.y], dtype=np.float64)
        y = np.asarray(rows.y, dtype=np.float64)
        if self.row.has_trials:
            return self._shares(y, rows.weights)
        if self.row.response:
            return self.row.read_response(y)
        self._require_values(y)
        return y

    def _shares(self, y: Array, trials: Any) -> Array:
        """Return events as shares of trials; other sites might read shares of 0 and 1 as counts."""
        shares, _ = read_events(y, trials, (parse(self.formula).target, str(self.weights)))
        if (y != np.rint(y)).any():
            remedy = "write the numbers of events, which all sites read alike"
            raise TableError("holds shares of the trials", remedy, None, parse(self.formula).target)
        return shares
