"""What may leave a site: the rules of its owner, checked where messages leave, and the list of all that has left.

`cleared` is the one place. It is called for every message of a site that goes into a file or over a network. In one
process nothing is sent, and no rule applies.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._archive import sync_folder
from .._fields import read_fields
from .._validation import Array, as_count
from ..design.terms import parse
from ..families.gaussian import Gaussian
from ..families.gaussians import FullGaussian
from ..glm.separation import rests_on
from ..losses.base import GaussianExpected, Loss, RowCurvature, Rows
from ..losses.linear_model import LinearModelLoss
from ..splitting.methods import PVI
from .messages import Message, MessageError, answer_of, read_question, read_spec

SENT = "sent.jsonl"
DIGITS = 32
"""Of a digest."""
ALONE = 0.99
"""Leverage from which on a combination of columns is the value of one row."""
MOST_NAMED = 8
"""Columns and levels that break one rule, after the first."""
COMBINED, A_POINT = "a combination of columns", "the point that was asked for"


@dataclass(frozen=True, kw_only=True)
class DisclosureRules:
    """What the rows of a site must be like, before anything that depends on them is sent by file or network.

    The defaults of rows, levels and parameters are those of DataSHIELD and of vantage6's GLM.

    Parameters
    ----------
    minimum_rows : int, default 10
        Rows of the site.
    minimum_count : int, default 3
        Rows of a level, or rows that are not at a column's commonest value; none at all are allowed. Also rows on which
        sums at a point rest, (Σv)²/Σv² of their curvatures v (there, and expected under a q_g), which must not be
        fewer than the columns either.
    minimum_class_count : int, default 3
        Rows of a class of the target; none at all are allowed.
    most_parameters : float, default 0.33
        Parameters a row.
    minimum_sites : int, default 3
        Sites of a run: of two each learns the other's sums.
    most_numbers : float, default 3.0
        Different numbers that leave in a run, by the numbers that the rows hold: rows times columns and target.
    allow : tuple of str, default ()
        Columns that a run may use; () allows those that the site has named.

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
    most_numbers: float = 3.0
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("minimum_rows", "minimum_count", "minimum_class_count", "minimum_sites"):
            as_count(getattr(self, name), name, minimum=0)
        for name in ("most_parameters", "most_numbers"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")

    @classmethod
    def none(cls) -> DisclosureRules:
        """Return rules that allow everything: for trials on rows that are no secret."""
        return cls(
            minimum_rows=0,
            minimum_count=0,
            minimum_class_count=0,
            most_parameters=math.inf,
            minimum_sites=0,
            most_numbers=math.inf,
        )

    @property
    def overrides(self) -> dict[str, Any]:
        """What is not as by default."""
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
    def option(self) -> str:
        """The rule as an option of the command line."""
        return f"--{self.rule.replace('_', '-')}"

    @property
    def holds(self) -> bool:
        """Whether the rule is kept."""
        return self.got >= self.limit if self.rule.startswith("minimum") else self.got <= self.limit

    @property
    def nearer(self) -> Callable[..., Any]:
        """Of two findings the one that is nearer to the limit, or farther beyond it."""
        return min if self.rule.startswith("minimum") else max

    @property
    def of(self) -> str:
        """The column, in words; empty where there is none."""
        return (f" at {self.column}" if self.column in (COMBINED, A_POINT) else f" of column {self.column!r}") * bool(
            self.column
        )

    @property
    def where(self) -> str:
        """Column and level, in words."""
        return self.of + f" with {self.level!r}" * bool(self.level)


class DisclosureError(MessageError):
    """Rules of a site keep a message back: the text names site, rules, columns, levels, and the way out, `remedy`.

    All rules that are broken are named, so that their owner decides once. Others read `told`, which has no level and no
    number.

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
    >>> print(error.told)
    site Basel sends nothing, by its disclosure rules --minimum-count of column 'ward', --minimum-rows
    >>> print(error.remedy)
    override by --minimum-count 1 --minimum-rows 8 (of `site init`, or in a run of `site rules`), which is recorded
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
        broken = [Check(rule, got, limit, column, level), *(Check(*one) for one in others)]
        rules = list(dict.fromkeys(one.rule for one in broken))
        said, options = [], {}
        for name in rules:
            first, *more = [one for one in broken if one.rule == name]
            found = "" if name == "allow" else f", got {first.got:.3g}"
            also = "".join(f"{one.where}{'' if name == 'allow' else f' ({one.got:.3g})'}," for one in more[:MOST_NAMED])
            rest = f" and {len(more) - MOST_NAMED} more" * (len(more) > MOST_NAMED)
            also = f" (also{also.rstrip(',')}{rest})" * bool(more)
            remedy = "use fewer columns, or a narrower prior" if first.column == A_POINT else REMEDY[name]
            said.append(
                f"{first.option} {WANTS[name].format(f'{first.limit:.3g}')}{first.where}{found}{also}; {remedy}"
            )
            options[first.option] = _override(name, [one for one in broken if one.rule == name], allow)
        if any(one.column == A_POINT for one in broken):  # its limit is the number of columns, too
            options["--most-parameters"] = _larger(options.get("--most-parameters", "1"), "1")
        listed = " ".join(f"{name} {value}" for name, value in options.items())
        self.remedy = f"override by {listed} (of `site init`, or in a run of `site rules`), which is recorded"
        super().__init__(
            f"site {site} sends nothing: {'. '.join(said)}{', or' if len(said) == 1 else '. Or'} {self.remedy}."
        )
        named = ", ".join(dict.fromkeys(one.option + one.of for one in broken))
        self.told = f"site {site} sends nothing, by its disclosure rule{'s' * (len(rules) > 1)} {named}"


def _larger(one: str, other: str) -> str:
    return max(one, other, key=float)


def _override(rule: str, broken: Sequence[Check], allow: Sequence[str]) -> str:
    """Return the value of a rule under which all that breaks it is allowed, rounded to that side."""
    if rule == "allow":
        return ",".join((*allow, *(one.column for one in broken)))
    worst = broken[0].nearer(one.got for one in broken)
    if isinstance(getattr(DisclosureRules, rule), int):
        return str(math.floor(worst))
    step = 10.0 ** (math.floor(math.log10(worst)) - 2)
    return f"{math.ceil(worst / step * (1 - 1e-12)) * step:.3g}"


WANTS = {
    "minimum_rows": "wants at least {} rows",
    "minimum_count": "wants none or at least {} rows",
    "minimum_class_count": "wants none or at least {} rows of each class",
    "most_parameters": "wants at most {} parameters a row",
    "minimum_sites": "wants at least {} sites",
    "most_numbers": "wants at most {} numbers sent by number of its rows",
    "allow": "wants columns of its list alone",
}
REMEDY = {
    "minimum_rows": "let another site take these rows in",
    "minimum_count": "merge the level with another, or leave the column out",
    "minimum_class_count": "let another site take these rows in, or leave this site out",
    "most_parameters": "use fewer columns",
    "minimum_sites": "ask for more sites",
    "most_numbers": "ask for fewer rounds or columns",
    "allow": "leave the column out",
}


# ----------------------------------------------------------------------------------------------------
# The list of what has left
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A message that has left the site.

    Attributes
    ----------
    time : str
        UTC, to the second.
    kind : str
        "hello", "reply" or "answer".
    run : str
        Of the message; "" before a run.
    number : int
        Round, or number of the question.
    name : str
        Of the question.
    bytes, numbers : int
        Size of the message, and different numbers in it.
    digest : str
    refused : str
        Rule that kept the content back; the message says so and holds nothing.
    allowed : dict of str to list
        By rule, what it was about and its limit.
    overrides : dict
        Rules that are not as by default.
    """

    time: str
    kind: str
    run: str
    number: int
    name: str
    bytes: int
    numbers: int
    digest: str
    refused: str
    allowed: dict[str, list[float]]
    overrides: dict[str, Any]

    def enter(self, folder: str | os.PathLike[str]) -> None:
        """Append to the folder's list, on the disk before the message leaves; what is sent again is there already."""
        path = Path(folder) / SENT
        if any(one.digest == self.digest for one in read_log(folder)):
            return
        is_new = not path.exists()
        with open(path, "ab") as file:
            file.truncate(len(b"".join(_lines(path))))
            file.write(json.dumps(asdict(self)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(path.parent)


def read_log(folder: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Read what has left a site's folder, in order; a line that a kill cut short is of a message that did not leave."""
    path = Path(folder) / SENT
    try:
        return tuple(Entry(**json.loads(line)) for line in _lines(path))
    except (ValueError, TypeError) as error:
        raise MessageError(f"it is damaged ({error}); put an undamaged one back.", os.fspath(path)) from error


def _lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


# ----------------------------------------------------------------------------------------------------
# The rules
# ----------------------------------------------------------------------------------------------------


def cleared(
    site: Any, folder: str | os.PathLike[str], said: Message, asked: Message | None = None
) -> tuple[Message, Entry]:
    """Check a message of a site against its rules; return it, and what is to be entered in the folder's list.

    A question beside the rounds that the rules do not allow is answered by a refusal, so that the run can go on.

    Parameters
    ----------
    site : Site
        After its step.
    folder : path
        The site's own, with the list.
    said, asked : Message
        What is to be sent, and what it answers; a hello may answer nothing.

    Raises
    ------
    DisclosureError
        When a rule keeps it back.
    """
    header, before = said.header, [one for one in read_log(folder) if one.run == said.header.get("run", "")]
    allowed: dict[str, list[float]] = {}
    try:
        checks = [] if header.get("refused") else list(_checks(site, said, asked, before))
        broken = list(dict.fromkeys(one for one in checks if not one.holds))
        if broken:
            raise DisclosureError(site.name, *broken[0], others=broken[1:], allow=site.rules.allow)
        for one in checks:
            near = [one.got, one.limit]
            allowed[one.rule] = one.nearer(allowed.get(one.rule, near), near)
    except DisclosureError as error:
        if asked is None or said.kind != "answer":
            raise
        said, allowed = answer_of(read_question(asked), site.name, {}, {}, error.told).sealed(site.key), {}
    return said, Entry(
        time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        kind=said.kind,
        run=str(header.get("run", "")),
        number=int(header.get("number", header.get("round", 0))),
        name=str(header.get("name", "")),
        bytes=said.size,
        numbers=_numbers(said),
        digest=said.digest[:DIGITS],
        refused=str(said.header.get("refused", "")),
        allowed=allowed,
        overrides=overrides_of(site),
    )


def overrides_of(site: Any) -> dict[str, Any]:
    """Return what a site's owner allows beyond the usual rules."""
    shares = {"share_quantiles": True} if getattr(site.data, "shares_quantiles", False) else {}
    return {**site.rules.overrides, **shares}


def sent(site: Any, folder: str | os.PathLike[str], said: Message, asked: Message | None = None) -> Message:
    """Return a message that is `cleared` and entered in the folder's list; of an answer maybe the refusal."""
    said, entry = cleared(site, folder, said, asked)
    entry.enter(folder)
    return said


def _checks(site: Any, said: Message, asked: Message | None, before: Sequence[Entry]) -> Iterator[Check]:
    """Yield all that the rules are about."""
    rules: DisclosureRules = site.rules
    if said.kind == "lost":  # which depends on no row
        return
    if asked is None or said.kind == "hello":
        yield from _of_hello(site)
        return
    spec = read_spec(asked) if site.kept is None else site.kept.spec
    yield Check("minimum_sites", len(spec.sites), rules.minimum_sites)
    if not hasattr(site.data, "rows_of"):  # a network, which has more parameters than rows
        yield Check("minimum_rows", site.data.introduction()["rows"], rules.minimum_rows)
        return
    loss: Loss = site.data.rows_of(spec, site.name).loss
    yield Check("minimum_rows", loss.n_rows, rules.minimum_rows)
    yield Check("most_parameters", loss.dim / max(loss.n_rows, 1), rules.most_parameters)
    rows = _rows_of(loss)
    if rows is None:
        return
    if not before:  # a run has one design
        yield from _of_rows(rules, rows, spec)
    if site.privacy is not None:  # what is sent is noised, and a refusal would not be
        return
    n_columns = rows.X.shape[1]
    least = max(rules.minimum_count, n_columns if rules.most_parameters < 1 else 0)
    for count in _rows_at(loss, asked, spec):
        yield Check("minimum_count", count, least, A_POINT)
    for count in _rows_of_a_subset(loss, asked, spec):
        yield Check("minimum_count", count or math.inf, rules.minimum_count, A_POINT)
    held = loss.n_rows * (int((np.ptp(rows.X, axis=0) > 0).sum()) + 1)
    sent = sum(one.numbers for one in before if one.digest != said.digest[:DIGITS]) + _numbers(said)
    yield Check("most_numbers", sent / held, rules.most_numbers)


def _of_hello(site: Any) -> Iterator[Check]:
    """What is known before a run."""
    rules, said = site.rules, site.data.introduction()
    yield Check("minimum_rows", said["rows"], rules.minimum_rows)
    described = getattr(site.data, "described", None)
    for name in (said.get("features", ()) if described is None else described.columns) if rules.allow else ():
        yield Check("allow", float(name not in rules.allow), 0, name)
    if described is not None:
        target = parse(site.data.formula).target
        for name, column in described.columns.items():
            rule = "minimum_class_count" if name == target else "minimum_count"
            for level, count in (column.levels or {}).items():
                yield Check(rule, count, getattr(rules, rule), name, level)
    if hasattr(site.data, "rows_of"):
        yield from _of_own_design(site)


def _of_own_design(site: Any) -> Iterator[Check]:
    """What a run asks of the rows whatever the others have, so that all is said before it: its design has no less."""
    from .glm_spec import GLMTask
    from .server import Coordinator

    try:
        task = GLMTask(PVI(), lambda d: FullGaussian(np.zeros(d), 1.0))
        spec = Coordinator.start([replace(site, key=None).hello()], task).spec
        loss = site.data.rows_of(spec, site.name).loss
    except ValueError:  # alone it has no design: one class, knots of all rows, levels that the server may merge
        return
    yield Check("most_parameters", loss.dim / max(loss.n_rows, 1), site.rules.most_parameters)
    rows = _rows_of(loss)
    if rows is not None:
        yield from _of_rows(site.rules, rows, spec)


def _rows_of(loss: Loss) -> Rows | None:
    """Return the rows of a loss; None of one of the user's own that knows none."""
    try:
        return loss.rows(np.zeros(loss.dim))
    except ValueError:
        return None


def _of_rows(rules: DisclosureRules, rows: Rows, spec: Any) -> Iterator[Check]:
    """The columns of the design, the classes of the target, and combinations of columns."""
    X, target = rows.X[rows.weights > 0], rows.target[rows.weights > 0]
    for name, column in zip(spec.features, X.T, strict=False):
        others = len(column) - int(np.unique(column, return_counts=True)[1].max())
        yield Check("minimum_count", others or math.inf, rules.minimum_count, *_named(str(name)))
    name = "" if spec.agreement is None else str(spec.agreement.target)
    for value, count in zip(*np.unique(target, return_counts=True), strict=True) if spec.classes else ():
        yield Check("minimum_class_count", int(count), rules.minimum_class_count, name, str(spec.classes[int(value)]))
    # h_i is the largest (x_iᵀc)²/‖Xc‖² of all combinations c
    left, sizes, _ = np.linalg.svd(X / np.maximum(np.abs(X).max(axis=0), np.finfo(float).tiny), full_matrices=False)
    own = left[:, sizes > sizes.max() * 1e-12]
    is_alone = (own**2).sum(axis=1).max() > ALONE
    yield Check("minimum_count", 1 if is_alone else math.inf, min(rules.minimum_count, 2), COMBINED)


def _named(feature: str) -> tuple[str, str]:
    """Return column and level of a column of the design, such as ward[T.icu]."""
    name, mark, level = feature.partition("[")
    return (name, level.removesuffix("]").removeprefix("T.")) if mark else (feature, "")


def effective_rows(weights: Array) -> float:
    """Return (Σv)²/Σv²: n of n equal weights, 1 of one that outweighs all others."""
    most = weights.max(initial=0.0)
    size = weights / most if 0 < most < math.inf else np.zeros(1)
    return float(size.sum() ** 2 / max(size @ size, 1e-300))


def _rows_at(loss: Loss, asked: Message, spec: Any) -> Iterator[float]:
    """Yield how many rows the sums of a message rest on: at each point of it, and in expectation under q_g."""
    q_g = None
    if asked.kind == "broadcast":
        engine = spec.at_server()
        q_g = engine.q_made(read_fields(engine.q_fields, {name: asked.arrays[name] for name in engine.q_fields}))
    for theta in _points(asked, q_g):
        rows = loss.rows(theta)
        yield effective_rows(rows.weights * _sizes(rows.curvature))
    if isinstance(q_g, Gaussian):
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite weight outweighs all others
            expected = loss.expect(q_g, loss.check(spec.prior, spec.rule))
        if isinstance(expected, GaussianExpected) and isinstance(expected.curvature, RowCurvature):
            yield effective_rows(_sizes(expected.curvature.weights))


def _sizes(curvature: Array) -> Array:
    """One number a row: its curvature, or the trace of those of its predictors."""
    return curvature if curvature.ndim == 1 else np.trace(curvature, axis1=1, axis2=2)


def _points(asked: Message, q_g: Any) -> Iterator[Array]:
    if asked.kind == "broadcast":
        if hasattr(q_g, "mean"):
            yield q_g.mean
    elif asked.header["name"] != "separation":
        yield from (asked.arrays[name] for name in ("q/theta", "q/null") if name in asked.arrays)


def _rows_of_a_subset(loss: Loss, asked: Message, spec: Any) -> Iterator[float]:
    """Yield how many rows a question picks, by a direction or by its own weights; 0 where it picks none."""
    if asked.kind != "inquiry":
        return
    read = read_question(asked)
    question = spec.question_made(read.name, read.content, read.arrays)
    if read.name == "separation" and isinstance(loss, LinearModelLoss):
        for *counts, weights in rests_on(loss, question):
            yield from counts
            yield effective_rows(weights) if counts[0] else 0
    if read.name == "statistics" and {"HC2", "HC3"} & set(question.robust):
        rows = loss.rows(question.theta)
        p = rows.X.shape[1]
        leverages = rows.curvature * np.einsum("ij,ij->i", rows.X @ question.bread[:p, :p], rows.X)
        yield effective_rows(1.0 / np.maximum(1.0 - leverages, 1e-12) ** 2)


def _numbers(message: Message) -> int:
    """Count the different numbers of a message: a matrix has most of its entries twice, a reply some of its sums."""
    values = [array.ravel().astype(np.float64) for array in message.arrays.values()]
    return int(np.unique(np.concatenate(values)).size) if values else 0
