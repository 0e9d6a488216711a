"""From what was typed to methods and families: rows of the table, those of plugins too."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError
from .._registry import nearest
from ._columns import choices_of
from ._options import MethodSettings, RunSettings

if TYPE_CHECKING:
    from ..federation import GLMTask


def make_method(settings: MethodSettings) -> Any:
    """Return a row of the table with its arguments, or "auto"."""
    from ..splitting.accelerated import Accelerated
    from ..splitting.methods import TABLE

    name = settings.method
    given = {key: value for key in ("rho", "gamma") if (value := getattr(settings, key)) is not None}
    if name == "auto":
        if given or settings.accelerate:
            named = next(iter(given), "accelerate")
            raise ArgumentError(named, "must be left out where the method is auto, which chooses it")
        return name
    if name not in TABLE:
        near = nearest(name, ("auto", *TABLE))
        advice = f"did you mean {near!r}?" if near else f"the rows are {', '.join(TABLE)}"
        raise ArgumentError("method", "must be auto or a row of the table", repr(name), advice)
    takes = knobs(name)
    for key in given:
        if key not in takes:
            raise ArgumentError(key, f"must be left out: {name} takes {', '.join(takes) or 'nothing'}")
    row = TABLE[name](**given)
    return Accelerated(row) if settings.accelerate else row


def method_between_sites(
    settings: MethodSettings, inference: str, family: str, is_flat: bool = False
) -> tuple[Any, float]:
    """Return the row of a run between sites, and its prior's precision: by default that of the likelihood's maximum.

    The row of a posterior is a function of the numbers of parameters and of predictors a row, which hellos tell. A
    run whose prior `is_flat` begins at the sites' own fits, as such a prior is no distribution to begin at.
    """
    from ..families import DiagonalGaussian, FullGaussian
    from ..splitting.choice import posterior_method
    from ..splitting.guarded import Guarded
    from ..splitting.methods import Newton

    row = make_method(settings)
    if row != "auto":
        if inference == "likelihood":
            raise ArgumentError("inference", "must be auto or posterior with a method other than auto", "likelihood")
        return row, 1.0
    if inference != "posterior":
        return Guarded(Newton()), 0.0
    if family not in ("full", "diagonal"):
        expected = "must be full or diagonal for a posterior whose method is auto"
        raise ArgumentError("family", expected, family, "or choose a method of this family")
    kind = FullGaussian if family == "full" else DiagonalGaussian

    def chosen(dim: int, n_outputs: int) -> Any:
        row: Any = posterior_method(kind, dim, has_tensors=False)
        if kind is DiagonalGaussian or (n_outputs == 1 and not is_flat):
            return row
        # points of a softmax cannot resolve a wide prior: the first round is the sites' own fits
        return replace(row, method=replace(row.method, start="sites"))

    return chosen, 1.0


def task_of(method: MethodSettings, settings: RunSettings, seed: int, **more: Any) -> GLMTask:
    """Return the task of a run between sites, of the options of a command or the keys of an app."""
    from ..families.gaussians import FAMILIES
    from ..federation import GLMTask

    if settings.penalty and (method.method != "auto" or settings.prior_precision):
        expected = "must be left out with a method or a prior precision"
        raise ArgumentError("penalty", expected, advice="Firth's is for a fit by maximum likelihood")
    row, precision = method_between_sites(
        method, settings.inference, settings.family, is_flat=settings.prior_precision == 0.0
    )
    precision = precision if settings.prior_precision is None else settings.prior_precision
    prior: Any = FAMILIES[settings.family]
    same = ("tol", "rounds", "safeguard", "penalty", "weight_meaning", "tests", "test_type")
    return GLMTask(
        row,
        lambda dim: prior(np.zeros(dim), precision),
        seed=seed,
        choices=choices_of(settings),
        **{name: getattr(settings, name) for name in same},
        **more,
    )


def knobs(name: str) -> tuple[str, ...]:
    """Return the arguments of a row of the table."""
    from ..splitting.methods import TABLE

    return tuple(inspect.signature(TABLE[name]).parameters)
