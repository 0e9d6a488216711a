"""Results of the commands of a run by files: text for a terminal, plain values for JSON, and an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from ._terminal import exit_code, note, option_words, show, text_table

if TYPE_CHECKING:
    from ..estimators.fitted import FittedGLM


@dataclass(frozen=True, kw_only=True)
class Told:
    """Result of a command; a field that is None says nothing."""

    written: str | None = None
    site: str | None = None

    @property
    def code(self) -> int:
        """Exit code."""
        return 0

    @property
    def notes(self) -> Sequence[str]:
        """Sentences beside the result, for standard error."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __str__(self) -> str:
        return lines((name, value) for name, value in self.to_dict().items() if not isinstance(value, Mapping))


def tell(found: Told, as_json: bool) -> int:
    """Print a result and its notes; return its exit code."""
    show(found, as_json)
    if not as_json:
        for sentence in found.notes:
            note(sentence)
    return found.code


def lines(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return a line for each name with a value."""
    return "\n".join(f"{name:<10} {value}" for name, value in pairs if value not in (None, ""))


@dataclass(frozen=True, kw_only=True)
class Introduced(Told):
    """A site that has said hello.

    `levels` are those that the message names, `privacy` is the guarantee of its noise, and `overrides` are the rules
    that differ from their defaults.
    """

    key: str
    rows: int
    missing_rows: int
    formula: str
    levels: Mapping[str, Sequence[str]]
    privacy: str | None
    overrides: Mapping[str, Any]

    def __str__(self) -> str:
        missing = f"{self.site} ({self.missing_rows} rows left out)" if self.missing_rows else None
        return lines(
            [
                *((name, getattr(self, name)) for name in ("written", "site", "key", "rows", "privacy", "formula")),
                *(("override", f"{name} {value}") for name, value in self.overrides.items()),
                *(("levels", f"{name}: {', '.join(levels)}") for name, levels in self.levels.items()),
                ("missing", missing),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class RulesOf(Told):
    """Rules of a site that differ from their defaults."""

    overrides: Mapping[str, Any]

    def __str__(self) -> str:
        overrides = [("override", f"{name} {value}") for name, value in self.overrides.items()]
        return lines([("written", self.written), ("site", self.site), *overrides])


@dataclass(frozen=True, kw_only=True)
class Answered(Told):
    """A site's reply to a broadcast, or its answer to a question, with the reason where it is refused."""

    round: int | None = None
    question: str | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Counted(Told):
    """Counts of predictions that a site has written."""

    rows: int
    classes: Mapping[str, int]

    def __str__(self) -> str:
        classes = ", ".join(f"{name} ({count} rows)" for name, count in self.classes.items())
        return lines([("written", self.written), ("site", self.site), ("rows", self.rows), ("classes", classes)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ended(Told):
    """A run's result, as a site and the server know it; the server alone has the whole model."""

    result: Any
    model: FittedGLM

    @property
    def code(self) -> int:
        """Exit code of the fit."""
        return exit_code(self.model)

    @property
    def notes(self) -> Sequence[str]:
        """Numbers that the table lacks, and findings where there is no table with them."""
        missing = [] if self.result.table is None else list(self.result.table.missing)
        if self._is_whole:
            return missing
        unknown = ["A family with a fixed precision knows no standard errors."] * (self.model.covariance() is None)
        return [*missing, *self._findings, *unknown]

    @property
    def _is_whole(self) -> bool:
        return self.result.table is not None and self.result.certificate is not None

    @property
    def _words(self) -> Any:
        words = option_words()
        return words._replace(setting=lambda *named: f"server init NEW_DIR {words.setting(*named)}")

    @property
    def _findings(self) -> list[str]:
        return [finding.worded(self._words) for finding in self.model.findings]

    @property
    def _shown(self) -> dict[str, Any]:
        from ..estimators.term_tests import term_table

        model, spec = self.model, self.result.spec
        is_tested = model.fit_name.endswith("maximum likelihood") and (model.totals.ratio_tests or spec.tests == "wald")
        tests = term_table(model, spec.tests if is_tested else "none", "model", spec.test_type, None)
        return {"words": self._words, "tests": tests}

    def _estimates(self) -> tuple[list[float | None], list[float | None] | None]:
        """Return means and standard errors, None where the table has a dash."""
        covariance = self.model.covariance()
        errors = None if covariance is None else [_known(error) for error in np.sqrt(np.diag(covariance)).tolist()]
        return [_known(mean) for mean in self.model.mean().tolist()], errors

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `table` is that of `fit --json`."""
        from ..estimators.summary import as_dict

        mean, errors = self._estimates()
        certificate = self.model.claimed
        return {
            **({} if self.site is None else {"site": self.site}),
            "status": self.result.status.name,
            "message": self.result.message,
            "objective": self.result.objective[-1],
            "rounds": self.model.record.rounds,
            "names": list(self.model.coefficient_names),
            "mean": mean,
            "standard_error": errors,
            "findings": self._findings,
            "missing": [] if self.result.table is None else list(self.result.table.missing),
            "table": as_dict(self.model, **self._shown) if self._is_whole else None,
            "certificate": None if certificate is None else str(certificate),
        }

    def __str__(self) -> str:
        from ..estimators.summary import summarise

        objective = _known(self.result.objective[-1])
        head = [("site", self.site), ("rounds", self.model.record.rounds), ("objective", objective)]
        said = lines([*(head if self.site else []), ("status", self.result.message)])
        if self._is_whole:
            return f"{said}\n\n{summarise(self.model, **self._shown)}"
        mean, errors = self._estimates()
        rows = [
            (name, *("–" if one is None else f"{one:.{digits}g}" for one, digits in ((estimate, 6), (error, 3))))
            for name, estimate, error in zip(
                self.model.coefficient_names, mean, errors or [None] * len(mean), strict=True
            )
        ]
        table = text_table(("", "estimate", "standard error"), rows)
        return "\n\n".join([said, table, *([] if self.model.claimed is None else [str(self.model.claimed)])])


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A running run: the message that it waits for, and who has answered.

    `since` is when the message was written, and `came` when each site answered, in seconds; where these are known.
    """

    number: int
    question: str | None
    missing: Sequence[str]
    came: Mapping[str, float]
    since: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "status": "RUNNING",
            "waits_for": self.number,
            "question": self.question,
            "since": self.since and _moment(self.since),
            "came": {name: _moment(when) for name, when in self.came.items()} if self.since else {},
            "answered": list(self.came),
            "missing": list(self.missing),
        }

    def __str__(self) -> str:
        answered = f"; {', '.join(self.came)} answered" if self.came else ""
        to = f"broadcast {self.number}" if self.question is None else f"inquiry {self.number} ({self.question})"
        said = [("status", f"running: waits for replies to {to} of {', '.join(self.missing)}{answered}")]
        if self.since:
            came = "".join(f"; {name} answered {_moment(when)}" for name, when in self.came.items())
            said.append(("since", f"{_moment(self.since)}{came}"))
        return lines(said)


@dataclass(frozen=True, kw_only=True, eq=False)
class Standing(Told):
    """State of a run, as its server knows it.

    `warnings` are sentences about files and sites, `left_out` has the rounds and questions that were closed without
    some sites, and `agreed` what the sites' tables were made alike by.
    """

    run: str
    method: str
    family: str
    prior: str | None
    sites: Mapping[str, int]
    missing_rows: Mapping[str, int]
    rounds: int
    objective: float
    edges: Mapping[str, Any] | None
    state: Waiting | Ended
    warnings: Sequence[str] = ()
    left_out: Sequence[tuple[str, int, Sequence[str]]] = ()
    agreed: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        server: Any,
        came: Mapping[str, float] | None = None,
        since: float | None = None,
        refused: Sequence[Exception] = (),
    ) -> Standing:
        """Return the state of a server; `came` are the sites whose replies to the last message are in its folder."""
        from ..federation import final_result

        terms, last, came = server.spec, server.state.history[-1] if server.state.history else None, came or {}
        state: Waiting | Ended
        if server.outcome is None:
            question = server.question
            state = Waiting(
                number=server.number if question is None else question.number,
                question=None if question is None else question.name,
                missing=[name for name in terms.sites if name not in came],
                came=came,
                since=since,
            )
        else:
            result = final_result(server.broadcast(), server)
            state = Ended(result=result, model=ended_model(result, server))
        return cls(
            run=terms.run,
            method=terms.method.name,
            family=type(terms.prior).__name__,
            prior=terms.stated and terms.stated.words(terms.has_intercept),
            sites=dict(zip(terms.sites, server.rows, strict=True)),
            missing_rows=server.missing_rows,
            rounds=server.exchanges,
            objective=server.state.start_objective if last is None else last.objective,
            edges=None if last is None else asdict(last.edges),
            state=state,
            warnings=[*(f"{one} It is left aside." for one in refused), *_in_vain(server)],
            left_out=server.left_out,
        )

    @property
    def code(self) -> int:
        """Exit code: that of the fit, where there is one."""
        return self.state.code if isinstance(self.state, Ended) else 0

    @property
    def notes(self) -> Sequence[str]:
        """Warnings, what was made alike, and what the result says."""
        more = self.state.notes if isinstance(self.state, Ended) else ()
        return [*self.warnings, *(f"{line}." for line in self.agreed), *more]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        own = super().to_dict()
        del own["site"], own["state"]
        left_out = [{kind: number, "sites": list(names)} for kind, number, names in self.left_out]
        return {**own, "left_out": left_out, **self.state.to_dict()}

    def __str__(self) -> str:
        missing = ", ".join(f"{name} ({count} rows left out)" for name, count in self.missing_rows.items())
        ended = self.state if isinstance(self.state, Ended) else None
        head = [
            *((name, getattr(self, name)) for name in ("written", "run", "method", "family", "prior")),
            ("rounds", self.rounds if ended is None else ended.model.record.rounds),
            ("objective", _known(self.objective if ended is None else ended.result.objective[-1])),
            ("missing", missing),
            ("sites", ", ".join(f"{name} ({count} rows)" for name, count in self.sites.items())),
            *(
                ("left out", f"{', '.join(names)}: {kind} {number} was closed without a reply")
                for kind, number, names in self.left_out
            ),
        ]
        return f"{lines(head)}\n{self.state}"


def waits_in_vain(server: Any) -> tuple[str, ...]:
    """Return the sites without which the last round was closed, where the step waits for them at the same q_g."""
    if server.outcome is not None or server.waiting is None or not server.left_out:
        return ()
    kind, number, names = server.left_out[-1]
    awaited = [server.spec.sites[k] for k in server.spec.step.waits_for(server.held)]
    is_same = bool(awaited) and server.waiting.q_g.natural == server.state.q_g.natural
    is_last = (kind, number) == ("round", server.number - 1)
    return tuple(name for name in names if name in awaited) if is_last and is_same else ()


def _in_vain(server: Any) -> list[str]:
    gone = waits_in_vain(server)
    if not gone:
        return []
    return [
        f"Round {server.number - 1} made no step, because {' and '.join(gone)} did not answer, and "
        f"{server.spec.method.name} needs the replies of all sites. The replies that came are kept. If a site never "
        "returns, begin a new run without it (`site init` and `server init` in new folders). If sites come and go, "
        "begin a run in which an absent site keeps its last reply: `server init NEW_DIR --method PVI --prior-precision "
        "1` fits a posterior."
    ]


def ended_model(result: Any, server: Any = None, target: str = "y", noise_variance: float = 1.0) -> Any:
    """Return the fitted model of a result; all of it where the server is here."""
    from ..estimators.from_run import fitted_run
    from ..estimators.summary import diagnose_fit

    rows = {} if server is None else dict(zip(server.spec.sites, server.rows, strict=True))
    history, missing = ((), {}) if server is None else (server.state.history, server.missing_rows)
    model = fitted_run(result.spec, result, rows, history, target, noise_variance, missing)
    if result.table is not None and server is not None:
        model = replace(model, findings=(*model.findings, *diagnose_fit(model)))
    return model


def _known(value: float) -> float | None:
    """Return a number, None for NaN: a table's dash."""
    return None if value != value else value


def _moment(seconds: float) -> str:
    """Return a time as this machine's clock shows it."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "minutes")
