"""The fitted model of a run, in one process or between sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..families.gaussian import LearnedPrecisionGaussian
from ..families.gaussians import FAMILIES
from ..glm.fit import Table
from ..glm.kinds import Kind
from ..glm.problem import Problem
from ..losses.expectations import Auto
from ..splitting.status import RoundRecord
from .fitted import NO_NOISE, FittedGLM, Site, model_of


def fitted_model(problem: Problem, posterior: Any, table: Table | None, **record: Any) -> FittedGLM:
    """Return the fitted model of a problem in the units of its run; `record` are the other fields of the model.

    The log-likelihood at the mean and the bound on the log evidence keep all constants.
    """
    kind, layout = problem.kind, problem.layout
    if table is not None:
        record |= {name: getattr(table, name) for name in ("penalty", "findings", "statistics", "ratio_tests")}
        record |= {"flat": table.flat, "receding": table.receding, "noise_variance": table.noise_variance}
        record["method"] = table.method or record["method"]
    noise = record["noise_variance"] = record["noise_variance"] if kind.has_noise else 1.0
    statistics, rule = record.get("statistics"), record["rule"]
    if statistics is not None:
        total, meaning = statistics.total, statistics.weights
        dropped = total.constant
        if kind.has_noise:
            dropped += 0.5 * layout.n_outputs * total.n_observations(meaning) * np.log(noise)
            dropped -= 0.5 * layout.n_outputs * total.log_weight if meaning == "analytic" else 0.0
        record["log_likelihood"] = float(-total.loss / noise - dropped)
        averages = not problem.is_likelihood and isinstance(posterior, LearnedPrecisionGaussian) and not rule.is_delta
        if averages and record["objective"].size:
            record["elbo"] = float(-record["objective"][-1] - dropped)
    model = model_of(
        kind=kind,
        layout=layout,
        posterior=posterior,
        names=problem.names,
        n_auxiliary=len(kind.auxiliaries(problem.classes)),
        dependent=problem.dependent,
        inference="likelihood" if problem.is_likelihood else "posterior",
        **record,
    )
    if not (model.totals.ratio_tests and model.lacks_noise):
        return model
    nothing: dict[str, Any] = {"statistic": None, "df_residual": None, "p_value": None, "why": NO_NOISE}
    tests = tuple(replace(test, **nothing) for test in model.totals.ratio_tests)
    return replace(model, totals=replace(model.totals, ratio_tests=tests))


def fitted_run(
    spec: Any,
    final: Any,
    rows: Mapping[str, int] | None = None,
    history: Sequence[RoundRecord] = (),
    target: str = "y",
    noise_variance: float = 1.0,
    missing: Mapping[str, int] | None = None,
) -> FittedGLM:
    """Return the fitted model of a run between sites, from its terms and its result.

    The server alone has the `history`. `target` and `noise_variance` count where the run has no agreement and no table.
    """
    problem, table, agreement = spec.problem, final.table, spec.agreement
    if type(spec.prior) not in FAMILIES.values():
        raise ValueError(f"a fitted GLM cannot hold a {type(spec.prior).__name__}.")
    objective = np.array(final.objective[1:])
    needed_none = table is not None and (table.method or table.penalty)
    return fitted_model(
        problem,
        final.posterior,
        table,
        target=target if agreement is None else agreement.said_target,
        agreement=agreement,
        classes=spec.classes if agreement is not None and agreement.classes else _labels(problem.kind, spec.classes),
        prior=spec.prior,
        stated=spec.stated,
        sites={
            name: Site(factor, (rows or {}).get(name, 0), (missing or {}).get(name, 0), final.own.get(name))
            for name, factor in final.sites.items()
        },
        rule=problem.kind.rule if isinstance(spec.rule, Auto) else spec.rule,
        method=spec.method.name,
        status=final.status,
        message=final.message.rstrip("."),
        certificate=final.certificate,
        rounds=(0 if needed_none else final.round - 1) + (0 if table is None else table.exchanges),
        objective=objective[np.isfinite(objective)],
        floats=sum(record.floats_down + record.floats_up for record in history)
        + (0 if table is None else table.floats),
        noise_variance=noise_variance,
    )


def _labels(kind: Kind, labels: Sequence[str]) -> tuple[Any, ...]:
    """Return labels as they are read from a table, where 0 and 1 are numbers."""
    if not kind.is_classifier:
        return ()
    try:
        return tuple(float(label) for label in labels)
    except ValueError:
        return tuple(labels)
