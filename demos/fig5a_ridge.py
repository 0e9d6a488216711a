"""Figure 5a: on ridge regression BayesADMM is exact after one round.

Least squares on one-hot labels, ten outputs, prior N(0, I/δ) with δ = 10, five clients with two labels each. For digits
the first 500 images at 8 × 8 (640 parameters), for MNIST the first 500 at 7 × 7 (490), as in the paper.

All methods have the same optimum, the ridge solution m*, so the axis is ‖m_g − m*‖/‖m*‖, which is also defined for
ADMM, a method without a covariance. BayesADMM runs at ρ = 1/K, the value of Proposition D.1. ρ means something else to
each other method (ADMM's is a curvature), so ADMM and BregmanADMM each get the best of a grid by the error at the end;
the grid and every run of it are in results.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import bayesadmm_np as ba

from . import images, style

__all__ = ["Curve", "Figure5a", "claims", "compute", "draw", "notes", "record"]

NAME = "fig5a_ridge"
DELTA = 10.0
ADMM_RHOS = (0.2, 1.0, 5.0, 25.0, 125.0)
BREGMAN_RHOS = (0.05, 0.2, 1.0)
SETTLED = 3
"""Rounds of BayesADMM; those after the first only show that it stays where it is."""
EXACT = 1e-12
STEPS = len(ADMM_RHOS) + len(BREGMAN_RHOS) + 1
"""Calls of `tick`."""


@dataclass(frozen=True)
class Curve:
    """One run: the relative error of the server's mean at the start and after every round."""

    method: str
    rho: float
    error: tuple[float, ...]
    status: str
    message: str


@dataclass(frozen=True)
class Figure5a:
    """The plotted curves, and all runs that they were chosen from."""

    data: str
    parameters: int
    clients: int
    delta: float
    curves: tuple[Curve, ...]
    tried: tuple[Curve, ...]

    def curve(self, method: str) -> Curve:
        """Find a plotted curve."""
        return next(curve for curve in self.curves if curve.method == method)


def compute(
    dataset: str = "digits",
    first: int = 500,
    side: int | None = None,
    rounds: int = 8,
    admm_rhos: tuple[float, ...] = ADMM_RHOS,
    bregman_rhos: tuple[float, ...] = BREGMAN_RHOS,
    tick: Callable[[str], None] | None = None,
) -> Figure5a:
    """Run the three methods against the known optimum."""
    pictures = images.load(dataset, side or (7 if dataset == "mnist" else 8), first)
    targets = np.eye(10)[pictures.y]
    clients = [ba.losses.LeastSquares(pictures.X[part], targets[part]) for part in pictures.parts]
    isotropic = ba.families.IsotropicGaussian(np.zeros(clients[0].dim), DELTA)
    full = ba.families.FullGaussian(np.zeros(clients[0].dim), DELTA)
    optimum = ba.solve_pooled(clients, isotropic, expectation=ba.losses.Delta(1)).posterior.mean

    def run(method: ba.methods.Method, prior: Any, rounds: int = rounds) -> Curve:
        error = [_relative(prior.mean, optimum)]
        result = ba.run(
            method,
            clients,
            prior,
            rounds,
            tol=1e-300,  # every curve has its full length
            callback=lambda _, q: error.append(_relative(q.mean, optimum)),
            raise_on_failure=False,
        )
        if tick is not None:
            tick(f"{method.name} (ρ = {method.rho:g})")
        return Curve(method.name, method.rho, tuple(error), result.status.name, result.message)

    bayes = run(ba.methods.BayesADMM(rho=1 / len(clients)), full, SETTLED)
    admm = [run(ba.methods.ADMM(rho), isotropic) for rho in admm_rhos]
    bregman = [run(ba.methods.BregmanADMM(rho), full) for rho in bregman_rhos]
    return Figure5a(
        data=pictures.text,
        parameters=clients[0].dim,
        clients=len(clients),
        delta=DELTA,
        curves=(_best(admm, rounds), _best(bregman, rounds), bayes),
        tried=(*admm, *bregman, bayes),
    )


def claims(result: Figure5a) -> list[tuple[str, bool, str]]:
    """What the figure is meant to show."""
    bayes = result.curve("BayesADMM")
    found = [
        (
            f"BayesADMM is at the ridge solution to {EXACT:g} after one round",
            bayes.error[1] <= EXACT,
            f"{bayes.error[1]:.1e}",
        ),
        ("and stays there", max(bayes.error[1:]) <= EXACT, f"largest later error {max(bayes.error[1:]):.1e}"),
    ]
    for name in ("ADMM", "BregmanADMM"):
        curve = result.curve(name)
        best = min(curve.error)
        found.append(
            (
                f"{name}, at the best ρ of its grid, is still above 1e-6 at the end",
                best > 1e-6,
                f"{best:.1e} after {len(curve.error) - 1} rounds (ρ = {curve.rho:g})",
            )
        )
    return found


def notes(result: Figure5a) -> list[str]:
    """Measurements that are no claim."""
    failed = [f"{run.method} at ρ = {run.rho:g}: {run.message}" for run in result.tried if _failed(run)]
    return [f"{result.data}, {result.parameters} parameters, δ = {result.delta:g}", *failed]


def record(result: Figure5a) -> dict[str, Any]:
    """Every plotted number as plain JSON."""
    return asdict(result)


def draw(result: Figure5a) -> Figure:
    """Relative error against rounds."""
    with style.context():
        figure = style.new_figure(3.5, 2.6)
        axes = figure.subplots()
        for curve in result.curves:
            look = style.look(curve.method)
            error = np.maximum(curve.error, 1e-16)
            label = f"{curve.method} (ρ = {curve.rho:g})"
            axes.semilogy(error, label=label, clip_on=False, zorder=3, **look.kwargs())
            if _failed(curve):
                axes.plot(len(error) - 1, error[-1], "x", color=look.colour, markersize=9, markeredgewidth=2, zorder=4)
        axes.axhspan(1e-17, 1e-14, color="#F0F0F0", zorder=0)
        axes.text(0.02, 3e-17, "rounding", fontsize=6.5, color=style.MUTED, transform=axes.get_yaxis_transform())
        axes.set_ylim(1e-17, 10)
        axes.set_xlim(0, max(len(curve.error) for curve in result.curves) - 1)
        axes.set_xlabel("communication round")
        axes.set_ylabel(r"$\|m_g - m^*\|\,/\,\|m^*\|$")
        axes.set_title("Ridge regression")
        axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
        style.tidy(axes)
    return figure


def _relative(mean: Any, optimum: Any) -> float:
    return float(np.linalg.norm(mean - optimum) / np.linalg.norm(optimum))


def _best(curves: list[Curve], rounds: int) -> Curve:
    """The run that got nearest by its last round; one that failed only if all did."""
    return min(curves, key=lambda curve: (len(curve.error) <= rounds, curve.error[-1]))


def _failed(curve: Curve) -> bool:
    return ba.Status[curve.status].is_failure
