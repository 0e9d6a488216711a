"""Rules of a site's owner for all that may leave, checked where messages leave.

`checked` has the rules. `Site.cleared` asks it for every message that goes into a file or over a network, with the
ledger of all that has left. In one process nothing is sent, and no rule applies.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._archive import refusal
from .._signatures import is_identity
from .._validation import Array, as_count
from ..design.terms import parse
from ..families.gaussians import FullGaussian
from ..glm.kinds import is_kind_of_loss, kind_of_loss
from ..glm.questions import QUESTIONS
from ..losses.base import ALONE, Rows
from ..splitting.methods import PVI
from .columns import INTERCEPT
from .differencing import COMBINED, ROWS, Cells, Source, differences
from .ledger import Entry, Ledger
from .messages import Heard, MessageError
from .refusals import MOST_NAMED as MOST_COLUMNS
from .refusals import PLACES, RULES, Refusal

WHOLE = {False: 14, True: 8}
"""Points of a run with its table, of least squares or not: each has a value, a gradient and a curvature."""
FEW_VALUES = 10
"""Values of a column, at most, whose combinations with others can be listed."""
MOST_NAMED = 8
"""Columns and levels that break one rule, after the first."""
A_POINT, EARLIER = PLACES["point"], " of an earlier run"
REMEDIES = {
    A_POINT: "a column that separates the outcomes may be the reason; use fewer columns, or a narrower prior",
    PLACES["combination"]: "merge values that few rows have, or leave a column out",
}
ALIKE = "use exactly the rows of that run, in the same coding, or rows that differ in more places"


@dataclass(frozen=True, kw_only=True)
class DisclosureRules:
    """Limits that the rows of a site must keep before anything that depends on them is sent by file or network.

    The defaults of rows, levels and parameters are those of DataSHIELD and of vantage6's GLM.

    Parameters
    ----------
    minimum_rows : int, default 10
        Rows of the site.
    minimum_count : int, default 3
        Rows of a level, rows that are not at a column's commonest value, and rows of each combination of values, where
        all columns have at most ten; none at all are allowed. Also rows on which
        sums at a point rest, (Σv)²/Σv² of their curvatures v (there, and expected under a q_g), which must not be
        fewer than the columns either.
    minimum_class_count : int, default 3
        Rows of a class of the target, with an event or without; none at all are allowed.
    most_parameters : float, default 0.33
        Parameters a row.
    minimum_sites : int, default 3
        Sites of a run: of two each learns the other's sums. With `peers` these alone count, and the site itself.
    budget : float, default 1.0
        Different numbers that leave the site's folder in all runs, by the numbers that the rows hold: rows times
        columns that are not constant. More are equations enough for all rows. A refusal about a point, or by an
        overflow, takes a twentieth of the budget: it tells of the rows.
    most_evaluations : int, default 1
        Counts of predictions that leave (`bayesadmm site evaluate`): the difference of those by two models, or of two
        sets of rows, can be one row's outcome.
    allow : tuple of str, default ()
        Columns that a run may use; () allows those that the site has named.
    peers : tuple of str, default ()
        Public keys of sites that the owner knows; () counts every site of a run, which a server can invent.
    trusted_server : bool, default False
        Whether the owner trusts whoever operates the server with the rows; asked for by networks alone. Gradients of
        a network are rows where the server makes the first layer for it, and no limit on counts changes that.

    Raises
    ------
    ValueError
        When a limit is negative or no number.

    Examples
    --------
    >>> from bayesadmm_np.federation import DisclosureRules
    >>> DisclosureRules(minimum_rows=5).overrides
    {'minimum_rows': 5}
    """

    minimum_rows: int = 10
    minimum_count: int = 3
    minimum_class_count: int = 3
    most_parameters: float = 0.33
    minimum_sites: int = 3
    budget: float = 1.0
    most_evaluations: float = 1
    allow: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    trusted_server: bool = False

    def __post_init__(self) -> None:
        for name in ("minimum_rows", "minimum_count", "minimum_class_count", "minimum_sites"):
            as_count(getattr(self, name), name, minimum=0)
        for name in ("most_parameters", "budget", "most_evaluations"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")
        for key in self.peers:
            if not is_identity(key):
                raise ValueError(f"peers must be public keys, as `site init` prints them, got {key!r}.")

    @classmethod
    def none(cls) -> DisclosureRules:
        """Return rules that allow everything: for trials on rows that are no secret."""
        limits: dict[str, Any] = {name: 0 if name.startswith("minimum") else math.inf for name in asdict(cls())}
        return cls(**{**limits, "allow": (), "peers": (), "trusted_server": True})

    @property
    def overrides(self) -> dict[str, Any]:
        """Rules that are not as by default."""
        usual = DisclosureRules()
        return {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}


class Check(NamedTuple):
    """Something that a rule is about: what was found, the rule's limit, and where it is about one, column and level."""

    rule: str
    got: float
    limit: float
    column: str = ""
    level: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the rule is kept."""
        return self.got >= self.limit if self.rule.startswith("minimum") else self.got <= self.limit

    @property
    def nearer(self) -> Callable[..., Any]:
        """Choose the findings that are nearest to the limit, or farthest beyond it."""
        return min if self.rule.startswith("minimum") else max

    @property
    def where(self) -> str:
        """Column and level, in words; empty where there is none."""
        column = self.column.removesuffix(EARLIER)
        if self.column == ROWS + EARLIER:
            found = " that differ from those of an earlier run"
        elif column in (COMBINED, A_POINT, ROWS):
            found = f" at {self.column}"
        else:
            found = f" of column {column!r}{self.column.removeprefix(column)}" * bool(column)
        return found + f" with {self.level!r}" * bool(self.level)


class DisclosureError(MessageError):
    """Rules of a site keep a message back: the text names site, rules, columns, levels, and the way out, `remedy`.

    All rules that are broken are named, so that their owner decides once. Others read `refusal(named)`, which has no
    level and no number.

    Parameters
    ----------
    site, rule : str
        Name of the site, and of a field of `DisclosureRules`.
    got, limit : float
    column, level : str, default ''
        Where the rule is about one.
    others : sequence of tuple, default ()
        What else breaks a rule: rule, got, limit, column and level.
    allow : tuple of str, default ()
        Columns that the site allows.

    Examples
    --------
    >>> from bayesadmm_np.federation import DisclosureError
    >>> error = DisclosureError("Basel", "minimum_count", 1, 3, "ward", "icu", [("minimum_rows", 8, 10)])
    >>> error.refusal({"ward"})
    Refusal(codes=('minimum_count', 'minimum_rows'), columns=('ward',))
    >>> print(error.remedy)
    set --minimum-count 1 --minimum-rows 8 (by `site init`, or in a run by `site rules`), which every report lists
    """

    def __init__(
        self,
        site: str,
        rule: str,
        got: float,
        limit: float,
        column: str = "",
        level: str = "",
        others: Sequence[tuple[Any, ...]] = (),
        allow: Sequence[str] = (),
    ) -> None:
        self.site, self.rule, self.got, self.limit, self.column, self.level = site, rule, got, limit, column, level
        self.broken = (Check(rule, got, limit, column, level), *(Check(*one) for one in others))
        self.tells = any(one.column == A_POINT for one in self.broken)  # of the rows, to whoever chose the point
        said, options = [], {}
        for name in dict.fromkeys(one.rule for one in self.broken):
            findings = [one for one in self.broken if one.rule == name]
            said.append(_said(*findings))
            if kept := [one for one in findings if not one.column.endswith(EARLIER)]:
                options[_option(name)] = _override(name, kept, allow)
        if self.tells:  # the limit at a point is the number of columns, too
            options["--most-parameters"] = max(options.get("--most-parameters", "1"), "1", key=float)
        listed = " ".join(f"{name} {value}" for name, value in options.items())
        self.remedy = ALIKE  # the difference of two runs would be these rows: no rule is loosened for them
        joined = ". ".join(said)
        if options:
            self.remedy = f"set {listed} (by `site init`, or in a run by `site rules`), which every report lists"
            joined += f"{', or' if len(said) == 1 else '. Or'} {self.remedy}"
        super().__init__(f"site {site} sends nothing: {joined}.")

    def refusal(self, named: Collection[str]) -> Refusal:
        """Return the codes for others, with columns of these names alone."""
        places = {text: code for code, text in PLACES.items()}
        codes, columns = [], []
        for one in self.broken:
            column = one.column.removesuffix(EARLIER)
            codes += [one.rule, "earlier" * (column != one.column), places.get(column, "")]
            columns += [column] * (column in named)
        return Refusal(tuple(dict.fromkeys(filter(None, codes))), tuple(dict.fromkeys(columns))[:MOST_COLUMNS])


def _option(rule: str) -> str:
    return f"--{rule.replace('_', '-')}"


def _said(first: Check, *more: Check) -> str:
    """Return the sentence on one rule: its limit, all that breaks it, and the way out beside an override."""
    wants, remedy = RULES[first.rule]
    is_number = not isinstance(first.got, bool)
    also = ",".join(one.where + f" ({one.got:.3g})" * is_number for one in more[:MOST_NAMED])
    rest = f" and {len(more) - MOST_NAMED} more" * (len(more) > MOST_NAMED)
    found = f", got {first.got:.3g}" * is_number + f" (also{also}{rest})" * bool(more)
    if first.column in REMEDIES or first.column.endswith(EARLIER):
        remedy = REMEDIES.get(first.column, ALIKE)
    return f"{_option(first.rule)} {wants.format(f'{first.limit:.3g}')}{first.where}{found}; {remedy}"


def _override(rule: str, broken: Sequence[Check], allow: Sequence[str]) -> str:
    """Return the value of a rule under which all that breaks it is allowed, rounded to that side."""
    if rule == "allow":
        return ",".join((*allow, *(one.column for one in broken)))
    worst = broken[0].nearer(one.got for one in broken)
    if isinstance(getattr(DisclosureRules, rule), int):
        return str(math.floor(worst))
    step = 10.0 ** (math.floor(math.log10(worst)) - 2)
    return f"{math.ceil(worst / step * (1 - 1e-12)) * step:.3g}"


# --- The rules ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Basis:
    """Rows that an answer rests on, as the rules see them; `rows` is None where the loss knows none.

    A network has dim 0: its parameters are more than its rows. `points` yields how many rows the sums rest on, at each
    point of the message and under its q_g; `picked` how many rows a question picks, 0 for none. `clusters` has the
    column of clusters and the cluster of each row, `outcomes` a 1 of each row that has an event, else 0.
    """

    n_rows: int
    dim: int = 0
    rows: Rows | None = None
    points: Iterable[float] = ()
    picked: Iterable[float] = ()
    design: Source | None = None
    clusters: tuple[str, Sequence[Any]] = ("", ())
    outcomes: Array | None = None


def described(site: Any, entry: Entry) -> Entry:
    """Return the entry of a message of a site after its step, with what it is about."""
    if entry.kind not in ("hello", "answer", "reply"):
        return entry
    told = site.data
    if entry.kind != "hello":
        spec = site.heard.spec
        entry, told = replace(entry, talk=_talk(spec)), getattr(spec, "agreement", None) or spec
    about = str(getattr(told, "formula", "")) or ", ".join(getattr(told, "features", ()))
    return replace(entry, about=about)


def checked(site: Any, entry: Entry, ledger: Ledger) -> tuple[Entry, Source | None]:
    """Return the entry of a described message with all that the rules of the site allowed of it, and its design.

    Raises a DisclosureError when a rule keeps the message back, and an ArchiveError where a question is out of order.
    """
    is_open = site.privacy is None and entry.name not in site.refuses
    if entry.kind == "answer":
        _require_in_order(entry, ledger, site.heard.spec)
    if entry.refused:
        if is_open:  # by an error of the sums, which tells of the rows
            entry = ledger.refused(entry, entry.refused, site.rules.budget)
            require_budget(site, entry, ledger)
        return entry, None
    basis, design = None, getattr(site.data, "raw", None) if entry.kind == "hello" else None
    if entry.kind in ("answer", "reply"):
        basis = site.data.basis(site.heard, site.name)
        if is_open:
            design = basis.design
        if is_open and basis.rows is not None:
            entry = replace(entry, cost=entry.numbers / numbers_held(basis.rows))
    if design is not None:
        entry = replace(entry, design=design.digest(ledger.key))
    return _allowed(site.name, site.rules, entry, list(_checks(site, entry, ledger, basis, design))), design


def numbers_held(rows: Rows) -> int:
    """Return the numbers that rows hold: as many sums, at points that are far apart, determine all rows."""
    X = rows.X[rows.weights > 0]
    return max(int((np.ptp(X, axis=0) > 0).sum()) if len(X) else 0, 1) * max(len(X), 1)


def rarest(rows: Rows) -> float:
    """Return the rows of the rarest combination of values, where all columns have few; ∞ elsewhere.

    Rows of few values are known but for the number of rows of each combination, a linear unknown of every sum.
    """
    X = rows.X[rows.weights > 0]
    if not all(len(np.unique(column)) <= min(FEW_VALUES, len(X) / 3) for column in X.T):
        return math.inf
    return float(np.unique(X, axis=0, return_counts=True)[1].min(initial=len(X) or 1))


def _talk(spec: Any) -> str:
    """Return a digest of a run's settings without those that its questions change: origin, prior and tolerance."""
    plain = {name: value for name, value in spec.encode()[0].items() if name not in ("prior", "tol", "centre", "shift")}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def _require_in_order(entry: Entry, ledger: Ledger, spec: Any) -> None:
    """Refuse a question that an honest server would not ask: out of order, or oftener than a fit needs it."""
    dim = spec.prior.natural.linear.size
    before = {one.asked: one for one in ledger.entries if one.kind == "answer" and one.talk == entry.talk}
    if entry.asked in before:
        return
    last = max((one.number for one in before.values()), default=0)
    most = sum(one.limit(dim) for one in QUESTIONS.values())
    if not last < entry.number <= most:
        raise refusal("number", f"from {last + 1} to {most}, or that of a question repeated", entry.number, entry.name)
    most = QUESTIONS[entry.name].limit(dim)
    if sum(one.name == entry.name for one in before.values()) >= most:
        raise refusal("name", f"a question that was asked less than {most} times in this run", entry.name, entry.name)


def require_budget(site: Any, entry: Entry, ledger: Ledger) -> None:
    """Raise a DisclosureError unless what an entry costs is left of the budget."""
    _allowed(site.name, site.rules, entry, [_budget(site.rules, entry, ledger)])


def _budget(rules: DisclosureRules, entry: Entry, ledger: Ledger) -> Check:
    return Check("budget", ledger.spent(entry.digest) + entry.cost, rules.budget)


def checked_counts(
    name: str,
    rules: DisclosureRules,
    classes: Mapping[str, int],
    columns: Iterable[str],
    entry: Entry,
    before: Sequence[Entry],
) -> Entry:
    """Return the entry of counts of predictions by class, with what the rules allowed, or raise a DisclosureError."""
    checks = [Check("minimum_rows", sum(classes.values()), max(rules.minimum_rows, 1))]
    least = rules.minimum_class_count
    checks += [Check("minimum_class_count", n or math.inf, least, "", label) for label, n in classes.items()]
    counted = {one.digest for one in before if one.kind == entry.kind} | {entry.digest}
    checks.append(Check("most_evaluations", len(counted), rules.most_evaluations))
    return _allowed(name, rules, entry, [*checks, *_of_names(rules, columns)])


def _allowed(name: str, rules: DisclosureRules, entry: Entry, checks: Sequence[Check]) -> Entry:
    allowed: dict[str, list[float]] = {}
    broken = list(dict.fromkeys(one for one in checks if not one.holds))
    if broken:
        raise DisclosureError(name, *broken[0], others=broken[1:], allow=rules.allow)
    for one in checks:
        near = [float(one.got), one.limit]
        allowed[one.rule] = one.nearer(allowed.get(one.rule, near), near)
    return replace(entry, allowed=allowed)


def _checks(site: Any, entry: Entry, ledger: Ledger, basis: Any, design: Source | None) -> Iterator[Check]:
    """Yield all that the rules are about."""
    rules: DisclosureRules = site.rules
    if entry.kind == "lost":  # which depends on no row
        return
    if design is not None and entry.design not in ledger.designs:
        yield from _of_earlier(rules, design, ledger)
    if entry.kind == "hello":
        # said again, of a run that goes on, it asks for no price
        is_new = not any(one.digest == entry.digest for one in ledger.entries)
        yield from _of_hello(site, ledger.spent() if is_new else None)
        return
    spec = site.heard.spec
    known = {*rules.peers, site.key and site.key.identity}
    yield Check("minimum_sites", len(known.intersection(spec.keys) if rules.peers else spec.sites), rules.minimum_sites)
    names, made = getattr(spec, "features", ()), INTERCEPT
    if getattr(spec, "agreement", None) is not None:
        names, made = spec.agreement.columns, spec.agreement.client
    yield from _of_names(rules, (name for name in names if name != made))
    if spec.engine == "network":
        yield Check("trusted_server", not rules.trusted_server, 0)
    is_new = not any((one.run, one.design) == (entry.run, entry.design) for one in ledger.entries)  # not looked at yet
    yield from _of_design(rules, basis, spec, is_new)
    if basis.rows is None or site.privacy is not None:  # what is sent is noised, and a refusal would not be
        return
    spent = _budget(rules, entry, ledger)
    yield spent
    if not spent.holds:  # whatever else the rows would say
        return
    n_columns = basis.rows.X.shape[1]
    least = max(rules.minimum_count, n_columns if rules.most_parameters < 1 else 0)
    for count in basis.points:
        yield Check("minimum_count", count, least, A_POINT)
    for count in basis.picked:
        yield Check("minimum_count", count or math.inf, rules.minimum_count, A_POINT)


def _of_earlier(rules: DisclosureRules, design: Source, ledger: Ledger) -> Iterator[Check]:
    """Yield in how many rows a new design differs from each of which something has left."""
    cells = Cells.of(design, ledger.key)
    for earlier in ledger.designs:
        for count, place in differences(cells, Cells.read(ledger.folder, earlier)):
            least = min(rules.minimum_count, 2) if place == COMBINED else rules.minimum_count
            yield Check("minimum_count", count or math.inf, least, place + EARLIER)


def _of_names(rules: DisclosureRules, columns: Iterable[str]) -> Iterator[Check]:
    """Yield for each column that is used whether the owner has listed it, where there is a list."""
    return (Check("allow", name not in rules.allow, 0, name) for name in columns if rules.allow)


def _of_hello(site: Any, spent: float | None) -> Iterator[Check]:
    """Yield the checks that are known before a run."""
    rules, said = site.rules, site.data.introduction()
    yield Check("minimum_rows", said["rows"], rules.minimum_rows)
    described = getattr(site.data, "described", None)
    yield from _of_names(rules, said.get("features", ()) if described is None else described.columns)
    if described is not None:
        for name, one in described.moments.items():  # rows that only the mean has are a difference of two sums
            count = one.count - said["rows"] or math.inf
            yield Check("minimum_count", count, rules.minimum_count, f"{name} in rows that lack another value")
            yield Check("minimum_count", one.rarest, rules.minimum_count, f"a value of {name}")
        target = parse(site.data.formula).target
        for name, column in described.columns.items():
            rule = "minimum_class_count" if name == target else "minimum_count"
            for level, count in (column.levels or {}).items():
                yield Check(rule, count, getattr(rules, rule), name, level)
    if site.data.engine == "glm":
        yield from _of_clusters(rules, site.data.clustered)
        yield from _of_own_design(site, spent)
    else:
        yield Check("trusted_server", not rules.trusted_server, 0)


def _of_clusters(rules: DisclosureRules, clusters: tuple[str, Sequence[Any]]) -> Iterator[Check]:
    """Yield the number of rows of each cluster: sums of one are part of robust standard errors."""
    for label, count in Counter(clusters[1]).items():
        yield Check("minimum_count", count, rules.minimum_count, clusters[0], str(label))


def _of_own_design(site: Any, spent: float | None) -> Iterator[Check]:
    """Yield what a run asks of the rows whatever other sites have, so that all is said before the run."""
    from .glm_spec import GLMTask
    from .server import Coordinator

    try:
        task = GLMTask(PVI(), lambda d: FullGaussian(np.zeros(d), 1.0))
        spec = Coordinator.start([replace(site, key=None).hello()], task).spec
        basis = site.data.basis(Heard(spec), site.name)
    except ValueError:  # alone it has no design: one class, knots of all rows, levels that the server may merge
        return
    yield from _of_design(site.rules, basis, spec, is_new=True)
    if spent is not None and basis.rows is not None and site.privacy is None:
        points = WHOLE[spec.loss == "LeastSquares"]
        needed = points * (basis.dim + 1) * (basis.dim + 2) // 2 / numbers_held(basis.rows)
        yield Check("budget", spent + needed, site.rules.budget)


def _of_design(rules: DisclosureRules, basis: Basis, spec: Any, is_new: bool) -> Iterator[Check]:
    """Counts of rows and parameters; of a new design its columns, the classes of the target, and combinations."""
    yield Check("minimum_rows", basis.n_rows, rules.minimum_rows)
    if not basis.dim:
        return
    yield Check("most_parameters", basis.dim / max(basis.n_rows, 1), rules.most_parameters)
    if basis.rows is None or not is_new:
        return
    yield from _of_clusters(rules, basis.clusters)
    rows = basis.rows
    marked = {} if spec.agreement is None else dict(enumerate(spec.agreement.structure.levels))
    for j, (name, others) in enumerate(zip(spec.features, rows.others, strict=False)):
        levels = [":".join(words) for words in zip(*marked.get(j, ()), strict=True)] or [str(name)]
        yield Check("minimum_count", others or math.inf, rules.minimum_count, *levels)
    name = "" if spec.agreement is None else str(spec.agreement.target)
    counted: Any = [found.tolist() for found in np.unique(rows.target[rows.weights > 0], return_counts=True)]
    if is_kind_of_loss(spec.loss) and kind_of_loss(spec.loss).has_trials:
        events = float(rows.weights @ rows.target)
        counted = [0, 1], [float(rows.weights.sum()) - events or math.inf, events or math.inf]
    for value, count in zip(*counted, strict=True) if spec.classes else ():
        yield Check("minimum_class_count", count, rules.minimum_class_count, name, str(spec.classes[int(value)]))
    if basis.outcomes is not None:  # the sums tell Σx of the rows of either
        for outcome, count in Counter(basis.outcomes[rows.weights > 0].tolist()).items():
            yield Check("minimum_class_count", count, rules.minimum_class_count, name, f"{outcome:g}")
    alone = 1 if rows.largest_leverage > ALONE else math.inf
    yield Check("minimum_count", alone, min(rules.minimum_count, 2), COMBINED)
    yield Check("minimum_count", rarest(rows), rules.minimum_count, COMBINED)
