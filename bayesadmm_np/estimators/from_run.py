"""The fitted model of a run between sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..design.rows import Layout
from ..families.gaussians import FAMILIES
from ..glm.kinds import Kind, kind_of_loss
from ..losses.expectations import Auto
from ..splitting.status import RoundRecord
from .fitted import Columns, FittedGLM, Site


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
    kind = kind_of_loss(spec.loss)
    if type(spec.prior) not in FAMILIES.values():
        raise ValueError(f"a fitted GLM cannot hold a {type(spec.prior).__name__}.")
    names = spec.features[:-1] if spec.has_intercept else spec.features
    agreement, centre, table = spec.agreement, None, final.table
    columns = replace(Columns.plain(names), agreement=agreement)
    if spec.centre is not None and spec.has_intercept and (spec.scale == 1.0).all():
        centre = spec.centre[: len(names)]  # the run alone measures columns there
    elif spec.centre is not None:
        columns = replace(columns, centre=spec.centre[: len(names)], scale=spec.scale[: len(names)])
    n_outputs = final.posterior.dim // len(spec.features)
    objective = np.array(final.objective[1:])
    floats = sum(record.floats_down + record.floats_up for record in history)
    # a fit by questions alone has no broadcasts
    rounds = 0 if table is not None and (table.method or table.penalty) else final.round - 1
    is_likelihood, asked = spec.step.at_mean, {}
    if table is not None:
        rounds += table.exchanges
        floats += table.floats
        noise_variance = table.noise_variance
        asked = {"penalty": table.penalty, "findings": table.findings, "statistics": table.statistics}
        asked |= {"ratio_tests": table.ratio_tests, "flat": table.flat, "receding": table.receding}
        if table.statistics is not None:
            total, meaning = table.statistics.total, table.statistics.weights
            dropped = total.constant
            if kind.has_noise:
                dropped += 0.5 * n_outputs * total.n_observations(meaning) * np.log(noise_variance)
                dropped -= 0.5 * n_outputs * total.log_weight if meaning == "analytic" else 0.0
            asked["log_likelihood"] = -total.loss / noise_variance - dropped
            asked["elbo"] = None if is_likelihood or not objective.size else -float(objective[-1]) - dropped
    return FittedGLM(
        kind=kind,
        target=target if agreement is None else agreement.target,
        columns=columns,
        layout=Layout(len(names), n_outputs, spec.has_intercept, centre),
        classes=spec.classes if agreement is not None and agreement.classes else _labels(kind, spec.classes),
        prior=spec.prior,
        stated=spec.stated,
        posterior=final.posterior,
        sites={
            name: Site(factor, (rows or {}).get(name, 0), (missing or {}).get(name, 0), final.own.get(name))
            for name, factor in final.sites.items()
        },
        rule=kind.rule if isinstance(spec.rule, Auto) else spec.rule,
        method=(table and table.method) or spec.method.name,
        status=final.status,
        message=final.message.rstrip("."),
        certificate=final.certificate,
        rounds=rounds,
        objective=objective[np.isfinite(objective)],
        floats=floats,
        noise_variance=noise_variance if kind.has_noise else 1.0,
        inference="likelihood" if is_likelihood else "posterior",
        **asked,
    )


def _labels(kind: Kind, labels: Sequence[str]) -> tuple[Any, ...]:
    """Labels as they are read from a table, where 0 and 1 are numbers."""
    if not kind.is_classifier:
        return ()
    try:
        return tuple(float(label) for label in labels)
    except ValueError:
        return tuple(labels)
