"""Questions of the engine of GLMs and their answers as messages, and the table of a final message.

What is asked, and what becomes of the answers, is told in `glm.fit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from .._archive import refusal
from .._fields import Field, read_fields, read_plain
from .._validation import Array
from ..families import FullGaussian
from ..families.precision import DensePrecision
from ..glm.diagnosis import as_dict, read_finding
from ..glm.firth import FirthAnswer
from ..glm.fit import Table
from ..glm.hypotheses import TermTest
from ..glm.kinds import kind_of_loss
from ..glm.own_fit import OwnFit
from ..glm.questions import (
    LARGEST,
    QUESTIONS,
    LeastSquaresQuestion,
    name_of,
    pack,
    pack_statistics,
    unpack,
    unpack_statistics,
)
from ..glm.refit import Derivatives
from ..glm.separation import Question as SeparationQuestion
from ..glm.site_statistics import SiteStatistics
from ..splitting.status import Status
from .messages import Outcome
from .questions import Talk

# --- Questions and answers as messages ------------------------------------------------------------------------


def sizes_of(spec: Any) -> dict[str, int]:
    """Return the numbers that letters of the shapes in `glm.questions` stand for."""
    d, p = spec.prior.natural.linear.size, len(spec.features)
    c = d // p
    return {"d": d, "p": p, "c": c, "n": p + c}


def pack_question(question: Any) -> tuple[str, dict[str, Any], dict[str, Array]]:
    """Return the name of a question, its plain values, and its arrays."""
    return name_of(question), *pack(question)


def question_made(spec: Any, name: str, content: Mapping[str, Any], arrays: Mapping[str, Array]) -> Any:
    """Return a question; one that is not in the table is refused."""
    if name not in QUESTIONS:
        raise refusal("name", f"a question of the table: {', '.join(QUESTIONS)}", name)
    entry = QUESTIONS[name]
    return unpack(entry.question, content, arrays, entry.asked, sizes_of(spec))


def answer_made(
    spec: Any, question: Any, content: Mapping[str, Any], arrays: Mapping[str, Array], about: Mapping[str, Any] | None
) -> Any:
    """Return the answer to a question; `about` is what the hello said, or None of an answer that was checked before."""
    entry, kind, sizes = QUESTIONS[name_of(question)], kind_of_loss(spec.loss), sizes_of(spec)
    asked = {name: getattr(question, name) for name in entry.asked}
    sizes["k"] = 2 if kind.is_classifier and kind.outputs == "one" else sizes["c"] + kind.has_reference
    sizes["k"] = len(spec.classes) if kind.outputs == "ordered" else sizes["k"]
    if isinstance(question, SeparationQuestion):
        sizes["r"] = question.basis.shape[1]
    if isinstance(question, LeastSquaresQuestion):
        sizes["s"] = sizes["n"] - question.has_intercept
    least = 0.0 if kind.likelihood is None and (kind.is_classifier or kind.is_least_squares) else -np.inf
    known = {**sizes, **asked, "kind": kind, "least": least, "has_ones": spec.has_intercept, **(about or {})}
    found = unpack(entry.answer, content, arrays, entry.said, known, is_own=about is None)
    if isinstance(found, SiteStatistics) and set(found.meats) != set(question.robust):
        raise refusal("meats", f"those of {list(question.robust)}", sorted(found.meats))
    if isinstance(found, Derivatives | FirthAnswer) and not all((np.abs(value) <= LARGEST).all() for value in found):
        return found._replace(value=np.inf)  # what has overflowed is of no use to a search but for that
    return found


# --- The table of a final message ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _Head:
    """The plain fields of a table."""

    noise_variance: float
    missing: tuple[str, ...]
    penalty: str | None
    method: str | None
    exchanges: int
    floats: int
    ratio_tests: tuple[TermTest, ...]

    def __post_init__(self) -> None:
        if not 0 < self.noise_variance < np.inf or min(self.exchanges, self.floats) < 0:
            raise ValueError("noise_variance must be > 0, exchanges and floats counts")


@dataclass(frozen=True, eq=False, kw_only=True)
class AskedTable(Table):
    """A `Table` as a final message has it."""

    def ending(self, outcome: Outcome) -> Outcome:
        """Return how the run ended, with this table: a likelihood without a maximum has an end of its own."""
        if self.is_separated:
            outcome = replace(outcome, status=Status.NO_MAXIMUM, message=f"{Status.NO_MAXIMUM.value}.")
        if self.limit is not None:
            outcome = replace(outcome, certificate=self.limit.certificate())
        return replace(outcome, table=self)

    def encode(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the table as JSON values and arrays, without the exact posterior's natural parameters."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(_Head)}
        plain["ratio_tests"] = [asdict(test) for test in self.ratio_tests]
        plain["findings"] = [as_dict(finding) for finding in self.findings]
        plain["statistics"], meats = pack_statistics(self.statistics)
        arrays = {f"statistics/{name}": meat for name, meat in meats.items()}
        if self.exact is not None:
            arrays |= {"mean": self.exact.mean, "root": self.exact.factor.cholesky.T}
        arrays |= {name: values for name in WAYS if (values := getattr(self, name)) is not None and values.size}
        return plain, {f"table/{name}": value for name, value in arrays.items()}


def read_table(spec: Any, plain: Mapping[str, Any], arrays: Mapping[str, Array]) -> AskedTable:
    """Inverse of `AskedTable.encode`."""
    d = sizes_of(spec)["d"]
    rest = dict(plain)
    findings = rest.pop("findings")
    statistics = unpack_statistics(rest.pop("statistics"), arrays, d, "statistics/")
    exact, own = None, {name: values for name, values in arrays.items() if not name.startswith("statistics/")}
    is_exact = not set(own) <= set(WAYS)
    fields = {"mean": Field("d"), "root": Field("d d")} if is_exact else {}
    fields |= {name: Field(f"d {name}") for name in WAYS if name in own}
    found = read_fields(fields, own, known={"d": d})
    if is_exact:
        exact = FullGaussian(found.pop("mean"), DensePrecision.from_root(found.pop("root")))
    head = read_plain(_Head, rest, "table")
    made = tuple(map(read_finding, findings))
    return AskedTable(findings=made, statistics=statistics, exact=exact, **vars(head), **found)


WAYS = ("flat", "receding")
"""Directions of θ in a table; none is kept of no columns."""


def own_fits(spec: Any, talk: Talk) -> dict[str, OwnFit]:
    """Return the own fits that the server was told, by site; the final message does not have them."""
    return {
        site: unpack(OwnFit, one.content, one.arrays, QUESTIONS["own_fit"].said, sizes_of(spec), is_own=True)
        for answers in talk.exchanges
        for site, one in zip(spec.sites, answers, strict=True)
        if one is not None and one.name == "own_fit" and not one.refused
    }
