"""Sums of likelihoods tell single rows, of one event or at a far point: each recovered, and then kept by a rule."""

import numpy as np
import pytest

from bayesadmm_np.federation import DisclosureRules
from bayesadmm_np.glm.refit import DerivativesQuestion
from bayesadmm_np.losses.negative_binomial import NegativeBinomial
from bayesadmm_np.losses.ordinal import ProportionalOdds
from bayesadmm_np.losses.random_intercept import LogisticRandomIntercept
from bayesadmm_np.losses.survival import CoxPartialLikelihood, PiecewiseExponential
from oracles.attacks import asked
from oracles.overrides import ALLOWED

N, FAR = 60, 1e4


def columns():
    rng = np.random.default_rng(1)
    Z = rng.normal(size=(N, 2))
    return Z, rng.exponential(size=N), int(np.argsort(Z[:, 0])[N // 2])


def of_events(kind, rows):
    """Return a site whose events are those rows, the sums at zero, and Σx of the events from them."""
    Z, time, _ = columns()
    status = np.isin(np.arange(N), rows).astype(float)
    y = np.column_stack([time, status])
    if kind == "cox":  # the first time is the event's, so that all rows are at risk
        y[rows, 0] = 0.0
        return CoxPartialLikelihood(Z, y), np.zeros(2), lambda told: Z.mean(axis=0) - told["gradient"]
    if kind == "mixed_logistic":
        X = np.column_stack([np.zeros(N), Z, np.ones(N)])
        loss = LogisticRandomIntercept(X, np.column_stack([status, np.arange(N) // 5]), n_auxiliary=1)
        return loss, np.zeros(4), lambda told: 0.5 * Z.sum(axis=0) - told["gradient"][1:3]
    X = np.column_stack([np.zeros(N), Z])
    loss = PiecewiseExponential(X, y, n_auxiliary=1)
    return loss, np.zeros(3), lambda told: told["hessian"][0, 1:] - told["gradient"][1:]


@pytest.mark.parametrize("kind", ["cox", "piecewise_exponential", "mixed_logistic"])
def test_the_row_of_the_only_event(kind, tmp_path):
    loss, theta, attack = of_events(kind, [7])
    loss.kind_name = kind
    (tmp_path / "open").mkdir()
    told, refused = asked(tmp_path / "open", DerivativesQuestion(theta), loss, ALLOWED)
    assert refused is None
    assert attack(told) == pytest.approx(columns()[0][7], rel=1e-9)
    told, refused = asked(tmp_path, DerivativesQuestion(theta), loss, DisclosureRules())
    assert told == {}
    assert "minimum_class_count" in refused["codes"]


@pytest.mark.parametrize("kind", ["cox", "piecewise_exponential", "mixed_logistic"])
def test_rows_of_some_events_are_answered(kind, tmp_path):
    loss, theta, _ = of_events(kind, [*range(10, 40)])
    loss.kind_name = kind
    assert asked(tmp_path, DerivativesQuestion(theta), loss, DisclosureRules())[1] is None


def at_a_point(kind):
    """Return a site, a point at which the information is one row's, that row, and the row from the information."""
    Z, time, k = columns()
    y = (np.arange(N) % 2).astype(float)
    x = Z[k, 0]
    if kind == "mixed_logistic":
        X = np.column_stack([np.zeros(N), Z, np.ones(N)])
        loss = LogisticRandomIntercept(X, np.column_stack([y, np.arange(N) // 5]), n_auxiliary=1)
        return loss, np.array([0.0, FAR, 0.0, -FAR * x]), Z[k], lambda H: H[1:3, 3] / H[3, 3]
    if kind == "ordinal":
        loss = ProportionalOdds(np.column_stack([np.zeros(N), Z]), y, n_auxiliary=1)
        return loss, np.array([FAR * x, FAR, 0.0]), Z[k], lambda H: -H[0, 1:] / H[0, 0]
    if kind == "negative_binomial":
        top = int(np.argmax(Z[:, 0]))
        X = np.column_stack([np.zeros(N), Z, np.ones(N)])
        at = np.array([15.0, 300.0, 0.0, -300.0 * Z[top, 0]])  # where the counts are Poisson's
        return NegativeBinomial(X, 3.0 * y), at, Z[top], lambda H: H[1:3, 3] / H[3, 3]
    cuts = (float(np.sort(time)[-2]),)  # the last row alone is at risk beyond it
    X = np.column_stack([np.zeros((N, 2)), Z])
    loss = PiecewiseExponential(X, np.column_stack([time, y]), n_auxiliary=2, cuts=cuts)
    return loss, np.zeros(4), Z[np.argmax(time)], lambda H: H[1, 2:] / H[1, 1]


@pytest.mark.parametrize("kind", ["mixed_logistic", "ordinal", "negative_binomial", "piecewise_exponential"])
def test_the_row_at_a_point(kind, tmp_path):
    loss, theta, row, attack = at_a_point(kind)
    loss.kind_name = f"{kind}(cuts={np.sort(columns()[1])[-2]:.17g})" if kind.startswith("piece") else kind
    told, refused = asked(tmp_path, DerivativesQuestion(theta), loss, ALLOWED)
    assert refused is None
    assert attack(told["hessian"]) == pytest.approx(row, rel=1e-6)
    told, refused = asked(tmp_path, DerivativesQuestion(theta), loss, DisclosureRules())
    assert told == {}
    assert "point" in refused["codes"]
