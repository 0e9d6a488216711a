"""From what was typed to methods and families: rows of the table, those of plugins too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
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


def method_between_sites(settings: MethodSettings, inference: str, family: str) -> tuple[Any, float]:
    """Return the row of a run between sites, and its prior's precision: by default that of the likelihood's maximum.

    The row of a posterior is a function of the number of parameters, which hellos tell.
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
    return lambda dim: posterior_method(kind, dim, has_tensors=False), 1.0


def task_of(method: MethodSettings, settings: RunSettings, seed: int, **more: Any) -> GLMTask:
    """Return the task of a run between sites, of the options of a command or the keys of an app."""
    from ..families.gaussians import FAMILIES
    from ..federation import GLMTask

    if settings.penalty and (method.method != "auto" or settings.prior_precision):
        expected = "must be left out with a method or a prior precision"
        raise ArgumentError("penalty", expected, advice="Firth's is for a fit by maximum likelihood")
    row, precision = method_between_sites(method, settings.inference, settings.family)
    precision = precision if settings.prior_precision is None else settings.prior_precision
    prior: Any = FAMILIES[settings.family]
    same = ("tol", "rounds", "safeguard", "penalty", "weight_meaning", "tests")
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


def all_methods(rho: float | None = None, gamma: float | None = None) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield every row's name and a way to make it, each with the knobs that it has; and two kin of PVI."""
    from ..splitting.accelerated import Accelerated
    from ..splitting.methods import PVI, TABLE

    given = {key: value for key, value in (("rho", rho), ("gamma", gamma)) if value is not None}

    def maker(name: str) -> Callable[[], Any]:
        return lambda: TABLE[name](**{key: value for key, value in given.items() if key in knobs(name)})

    for name in TABLE:
        yield name, maker(name)
    yield "damped PVI", lambda: PVI(0.5 if gamma is None else gamma)
    yield "accelerated PVI", lambda: Accelerated(maker("PVI")())


def needs_prior(family: str, method: Any) -> bool:
    """Whether a method is defined under a proper prior alone: its family has no flat one."""
    from ..families import FullGaussian

    return family_for(family, method) is not FullGaussian


def family_for(name: str, method: Any) -> type:
    """Return the family asked for, or the one that the method demands."""
    from ..families.gaussians import FAMILIES
    from ..splitting.accelerated import Accelerated

    row = method.method if isinstance(method, Accelerated) else method
    asked: type = FAMILIES[name]
    return asked if not row.families or asked in row.families else row.families[0]
