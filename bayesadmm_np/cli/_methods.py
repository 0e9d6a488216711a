"""From what was typed to methods and families: rows of the table, those of plugins too."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import ArgumentError
from .._registry import nearest
from ._options import MethodSettings, RunSettings, levels_of

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
        advice = f"did you mean {near!r}?" if near else f"the methods are {', '.join(TABLE)}"
        raise ArgumentError("method", "must be auto or a method of the table", repr(name), advice)
    takes = knobs(name)
    for key in given:
        if key not in takes:
            raise ArgumentError(key, f"must be left out: {name} takes {', '.join(takes) or 'nothing'}")
    row = TABLE[name](**given)
    return Accelerated(row) if settings.accelerate else row


def method_between_sites(settings: MethodSettings, inference: str, family: str, is_wide: bool = False) -> Any:
    """Return the row of a run between sites, by default that of the likelihood's maximum.

    The row of a posterior is a function of the numbers of parameters and of predictors a row, which hellos tell. A
    run whose prior `is_wide`, flat on the intercept at least, begins at the sites' own fits.
    """
    from ..families import DiagonalGaussian, FullGaussian
    from ..splitting.average import as_step
    from ..splitting.guarded import Guarded
    from ..splitting.methods import Newton, recommended

    row = make_method(settings)
    if row != "auto":
        if inference == "likelihood":
            raise ArgumentError("inference", "must be auto or posterior with a method other than auto", "likelihood")
        return as_step(row).starting("sites") if is_wide else row
    if inference != "posterior":
        return Guarded(Newton())
    if family not in ("full", "diagonal"):
        expected = "must be full or diagonal for a posterior whose method is auto"
        raise ArgumentError("family", expected, family, "or choose a method of this family")
    kind = FullGaussian if family == "full" else DiagonalGaussian

    def chosen(dim: int, n_outputs: int) -> Any:
        row: Any = recommended(kind(np.zeros(dim), 1.0))
        # points of a softmax cannot resolve a wide prior: the first round is the sites' own fits
        return as_step(row).starting("sites") if is_wide or (kind is FullGaussian and n_outputs > 1) else row

    return chosen


def task_of(method: MethodSettings, settings: RunSettings, seed: int, **more: Any) -> GLMTask:
    """Return the task of a run between sites, of the options of a command or the keys of an app."""
    from ..families.gaussians import FAMILIES
    from ..federation import GLMTask
    from ..glm.prior import Prior

    if settings.penalty and (method.method != "auto" or settings.prior_precision):
        expected = "must be left out with a method or a prior precision"
        raise ArgumentError("penalty", expected, advice="Firth's is for a fit by maximum likelihood")
    stated = Prior(settings.prior_precision, settings.prior_unit, settings.penalize_intercept)
    family: Any = FAMILIES[settings.family]
    same = ("tol", "rounds", "safeguard", "penalty", "weight_meaning", "tests", "test_type")
    return GLMTask(
        method_between_sites(
            method, settings.inference, settings.family, is_wide=stated.is_flat or not stated.penalize_intercept
        ),
        lambda dim: family(np.zeros(dim), settings.prior_precision or float(settings.family != "full")),
        stated=stated,
        seed=seed,
        choices=choices_of(settings),
        **{name: getattr(settings, name) for name in same},
        **more,
    )


def choices_of(settings: RunSettings) -> dict[str, Any] | None:
    """Return the choices of a server for sites with tables; None where all are as by default."""
    switches = ("ignore_case", "drop_withheld", "site_intercepts", "reference_site", "as_written")
    given: dict[str, Any] = {
        "reference": levels_of(settings.reference),
        **{name: getattr(settings, name) for name in switches},
    }
    return {name: value for name, value in given.items() if value} or None


def knobs(name: str) -> tuple[str, ...]:
    """Return the arguments of a row of the table."""
    from ..splitting.methods import TABLE

    return tuple(inspect.signature(TABLE[name]).parameters)
