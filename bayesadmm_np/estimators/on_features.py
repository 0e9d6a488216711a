"""The regression of a network's last layer on its features: exact over all clients' rows, at a precision that fits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._errors import ArgumentError
from .._validation import Array, as_positive
from ..families import FullGaussian
from ..glm.kinds import Kind, read_kind
from ..glm.layout import Layout
from ..glm.prior import Prior
from ..losses.base import Loss
from ..losses.expectations import Delta
from ..splitting.certificate import Certificate
from ..splitting.guarded import Guarded
from ..splitting.loop import run
from ..splitting.newton import Newton
from ..splitting.result import Result, RunError
from ..splitting.status import Failure
from .caveats import Caveat
from .evidence import RANGE, at_end, maximise_laplace
from .fitted import FittedGLM, Site, model_of

METHOD = Guarded(Newton("prior"))
TOL = 1e-8
POOR = 1e-4
"""Residual, in Fisher length per parameter, above which a fit is refused; from the tolerance on, a warning names it."""
GRID = tuple(10.0 ** (3 - i / 2) for i in range(19))
RISES = 3
"""Precisions that held-out rows choose among, from the stiffest; they stop after so many rises."""
TIE = 1e-9
"""Gain in log loss a row, in nats, that a softer precision needs: rounding must not choose where the loss is flat."""


@dataclass(frozen=True)
class FeatureRegression:
    """A regression whose columns are features and ones, in this order, and whose coefficients have one prior N(0, 1/δ).

    C classes have C − 1 contrasts against the first, with the prior that these weights of all classes give them.
    """

    name: str
    outputs: int
    noise: float = 1.0

    @property
    def kind(self) -> Kind:
        """The kind by its name; of two classes the logistic one."""
        kind = read_kind(self.name)
        return kind.of_classes(self.outputs) if kind.is_classifier else kind

    @property
    def has_classes(self) -> bool:
        """Return whether each class has an output, so that a shift common to all changes nothing."""
        return self.kind.is_classifier and self.outputs > 1

    @property
    def contrasts(self) -> int:
        """Number of outputs that rows identify."""
        return self.outputs - self.has_classes

    @property
    def unit(self) -> Array:
        """Prior precision of the contrasts at δ = 1: I, or I − 11ᵀ/C for C classes, whichever of them is the first."""
        return np.eye(self.contrasts) - self.has_classes / self.outputs

    def prior(self, precision: float, dim: int) -> FullGaussian:
        """Return the prior at δ of `dim` coefficients."""
        delta = as_positive(precision, "prior_precision")
        return FullGaussian(np.zeros(dim), delta * np.kron(self.unit, np.eye(dim // self.contrasts)))

    def stated(self, prior: Any) -> Prior:
        """Return a prior as its δ; ValueError for another than `prior` makes."""
        told = isinstance(prior, FullGaussian)
        delta = float(prior.precision[0, 0] / self.unit[0, 0]) if told else 0.0
        own = self.prior(delta, prior.dim) if delta > 0.0 else None
        same = own and not prior.mean.any() and np.allclose(prior.precision, own.precision, rtol=1e-9, atol=0.0)
        if not same:
            expected = "must be N(0, 1/δ), the same for every weight and bias"
            raise ArgumentError("prior", expected, "another", "give the server body.task(prior_precision)")
        return Prior(delta, penalize_intercept=True)

    def loss(self, design: Array, target: Array, weights: Array, name: str) -> Loss:
        """Return the sum of the losses of rows; ValueError, which names the rows, where a feature is not finite."""
        require_finite(design, name)
        target = target[:, 0] if target.shape[1:] == (1,) else target
        return self.kind.make_loss(design, target, weights, None, self.contrasts, self.noise)

    def weights(self, fitted: FittedGLM) -> Array:
        """Return the mode, one row an output and the intercepts last; the mean over the classes is zero."""
        found = fitted.posterior.mean.reshape(self.contrasts, -1)
        return np.asarray(np.pad(found, ((1, 0), (0, 0))) - found.sum(0) / self.outputs if self.has_classes else found)

    def fitted(
        self, found: Any, prior: Any, names: Sequence[str], certificate: Certificate | None, exchanges: int
    ) -> FittedGLM:
        """Return the fitted model of a run, `found` here by `run` or between sites by `final_result`."""
        stated = self.stated(prior)
        q = FullGaussian(found.posterior.mean, found.posterior.precision)  # as a file has it
        return model_of(
            kind=self.kind,
            layout=Layout(len(names), self.contrasts, has_intercept=True),
            names=tuple(names),
            classes=tuple(range(max(self.outputs, 2))) if self.kind.is_classifier else (),
            prior=prior,
            stated=stated,
            posterior=q,
            inference="posterior",
            rule=Delta(2),
            noise_variance=self.noise,
            sites={"all": Site(q.natural - prior.natural, 1)},
            method=METHOD.name,
            status=found.status,
            message=found.message,
            certificate=certificate,
            rounds=exchanges,
            floats=q.natural.size,
            objective=np.zeros(0),
        )

    def received(self, found: Any, names: Sequence[str]) -> FittedGLM:
        """Return the fitted model of a run between sites; warnings name what its certificate and its classes lack.

        Nobody counts the classes of all sites. At the mode n_c − Σ_i p_ic² = Σ_i p_ic(1 − p_ic) + δb_c, with b_c the
        intercepts: the curvature, and the prior's slope. Where no site has rows of class c, it is negative.
        """
        if found.spec.features[:-1] != tuple(names):
            expected = f"must be of a run with this body, outputs and likelihood, of digest {names[:1]}"
            raise ArgumentError("found", expected, found.spec.features[:1])
        fitted = self.fitted(found, found.spec.prior, names, found.certificate, found.round - 1)
        say_doubt(found.certificate)
        if self.kind.is_classifier:
            stop = len(names)
            own = (fitted.posterior.precision - fitted.prior.precision)[stop :: stop + 1, stop :: stop + 1]
            slope: Any = self.stated(found.spec.prior).precision * self.weights(fitted)[:, -1]
            slope = slope if self.has_classes else np.array([-slope[0], slope[0]])
            rare = np.flatnonzero(np.append(own.sum(), np.diagonal(own)) + slope <= 0.0)
            if rare.size:
                say(f"Of class {rare[0]} no site has rows, or so few that the prior outweighs them: count them there.")
        return fitted

    def fit(
        self, losses: Sequence[Loss], precision: Any, names: Sequence[str], held: Loss | None, tol: float
    ) -> FittedGLM:
        """Fit at a given δ, or at the one that the evidence or held-out rows choose."""
        for k, loss in enumerate([*losses, held or losses[0]]):
            if (width := loss.dim // self.contrasts - 1) != len(names):
                name = f"client {k}" if k < len(losses) else "validate"
                raise ValueError(f"{name}: the body must return {len(names)} features, as for client 0, got {width}.")
        if self.kind.is_classifier:
            self._require_classes(losses)
        sites: Any = None
        exchanges = 0

        def at(delta: float) -> Result:
            """Fit at δ, from the clients' sums at the end of the last fit."""
            nonlocal sites, exchanges
            found = run(METHOD, losses, self.prior(delta, losses[0].dim), tol=tol, sites=sites)
            sites = [-own.natural_gradient for own in found.at_server]
            exchanges += found.rounds + 1  # the last sums are those of the certificate
            return found

        if held is not None:
            if not isinstance(precision, str):
                raise ArgumentError("validate", "must be left out beside a number for prior_precision")
            delta = _best(lambda delta: self.fitted(found := at(delta), found.prior, names, None, 0), held)
            say_end(delta, (GRID[-1], GRID[0]), "log loss of the held-out rows has no minimum")
        elif isinstance(precision, str):
            squares = [np.square(one.rows(np.zeros(one.dim)).X[:, :-1]).mean() for one in losses]
            delta = maximise_laplace(at, float(np.mean(squares)) or 1.0)  # sums in curvatures at zero
            say_end(delta, RANGE, "evidence has no maximum")
        else:
            delta = as_positive(precision, "prior_precision")
        found = at(delta)
        proof = found.certificate()
        if not proof.pooled <= max(tol, POOR):
            detail = f"the residual of the pooled fit is {proof.pooled:.1g}, where {POOR:g} is the most"
            knob = "scale the features in the body, or raise prior_precision"
            failure = Failure(found.status, found.rounds, detail=detail, knob=knob)
            raise RunError(replace(found, failure=failure, ending=failure.message))
        say_doubt(proof)
        return self.fitted(found, found.prior, names, proof, exchanges)

    def _require_classes(self, losses: Sequence[Any]) -> None:
        """Refuse classes that no client has, of whose weights the prior alone would decide."""
        counts = np.sum([np.bincount(one.y.astype(int), one.weights, max(self.outputs, 2)) for one in losses], axis=0)
        if not counts.all():
            expected = f"must have rows of every class, and none has class {int(np.argmin(counts))}"
            advice = "number classes from 0 without gaps; for other classes than the network's give FrozenBody(...)"
            raise ArgumentError("clients", expected, "", advice)


def require_finite(design: Array, name: str, before: int = 0) -> Array:
    """Return the features of rows; ValueError where one is not finite, which counts the rows that came before."""
    wrong = np.flatnonzero(~np.isfinite(design).all(axis=1))
    if wrong.size:
        fact = f"features of {wrong.size} rows are not finite, first of row {before + wrong[0]}"
        raise ValueError(f"{name}: {fact}; scale the inputs as in training, or leave these rows out.")
    return design


def say_end(delta: float, ends: tuple[float, float], fact: str) -> None:
    """Warn where a search chose an end of its range."""
    for end, value in zip(("lower", "upper"), ends, strict=True):
        if np.isclose(delta, value, rtol=1e-9):
            say(at_end("prior_precision", end, delta, fact))


def say_doubt(proof: Certificate | None) -> None:
    """Warn where a certificate does not hold, or holds and is worth little."""
    if proof is None or not proof.holds or proof.is_worth_little:
        said = "there is none" if proof is None else f"{proof.verdict()}. {proof.distance or ''}".strip()
        say(f"The certificate of the last layer: {said}; scale the features in the body, or raise prior_precision.")


def say(sentence: str) -> None:
    """Warn as the core's estimators do."""
    warnings.warn(Caveat((), [lambda words: sentence]), stacklevel=4)


def _best(at: Callable[[float], FittedGLM], held: Loss) -> float:
    """Return the δ of `GRID` with the lowest log loss of held-out rows; `RISES` in a row end the search."""
    rows, best, lowest, rises = held.rows(np.zeros(held.dim)), GRID[0], np.inf, 0
    y: Any = rows.target
    for delta in GRID:
        fitted = at(delta)
        if fitted.kind.is_classifier:
            each = -np.log(fitted.probabilities(rows.X[:, :-1], "plug-in")[np.arange(len(y)), y.astype(int)])
        else:
            mean, sd = fitted.mean_and_sd(rows.X[:, :-1])
            each = (0.5 * ((y - mean) / sd) ** 2 + np.log(sd)).reshape(len(y), -1).sum(axis=1)
        loss = float(np.average(each, weights=rows.weights))
        best, lowest, rises = (delta, loss, 0) if loss < lowest - TIE else (best, lowest, rises + 1)
        if rises == RISES:
            break
    return best
