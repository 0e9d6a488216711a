"""Losses of one kind are one loss of all their rows, and losses of two kinds are not."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.losses.pointwise import PoissonLog

MADE = {
    "logistic": lambda X, y, **options: ba.losses.Logistic(X, y % 2, **options),
    "poisson": lambda X, y, **options: ba.losses.Poisson(X, y, **options),
    "softmax": lambda X, y, **options: ba.losses.Softmax(X, y, n_classes=3, **options),
}


@pytest.mark.parametrize("name", MADE)
def test_joined_rows_are_the_sum(name, rng):
    X, y, weights = rng.standard_normal((12, 2)), rng.integers(0, 3, 12), rng.random(12)
    shape = (12, 3) if name == "softmax" else (12,)
    offset = rng.standard_normal(shape)
    first = MADE[name](X[:5], y[:5], weights=weights[:5], offset=offset[:5])
    second = MADE[name](X[5:], y[5:], weights=weights[5:])
    whole, theta = first.joined([second]), rng.standard_normal(first.dim)
    assert first.settings == second.settings
    assert (whole.n_rows, whole.total_weight) == (12, pytest.approx(weights.sum()))
    assert whole.value(theta) == pytest.approx(first.value(theta) + second.value(theta), rel=1e-13)
    assert np.allclose(whole.gradient(theta), first.gradient(theta) + second.gradient(theta), rtol=1e-12, atol=1e-13)
    assert not np.isclose(first.joined([first]).value(theta), whole.value(theta))  # the twin


def test_the_pooled_fit_is_that_of_the_clients(rng, monkeypatch):
    X = rng.standard_normal((30, 2))
    clients = [ba.losses.Logistic(X[k::3], rng.random(10) < 0.5) for k in range(2)]
    clients.append(ba.losses.Poisson(X[2::3], rng.integers(0, 4, 10)))
    prior = ba.families.FullGaussian(np.zeros(2), 1.0)
    found = ba.solve_pooled(clients, prior).posterior
    monkeypatch.setattr(ba.losses.Logistic, "settings", None)
    assert np.allclose(found.mean, ba.solve_pooled(clients, prior).posterior.mean, atol=1e-9)


class Scaled(PoissonLog):
    def __init__(self, scale):
        self.scale = scale


def test_settings_that_differ_are_another_kind(rng):
    X, y = rng.standard_normal((4, 1)), np.ones(4)
    kinds = []
    for pointwise in (Scaled(1.0), Scaled(1.0), Scaled(2.0), Scaled(np.ones(2))):
        client = ba.losses.Poisson(X, y)
        client.pointwise = pointwise
        kinds.append(client.settings)
    assert kinds[0] == kinds[1] != kinds[2]
    assert kinds[3] is None
    assert ba.losses.Softmax(X, y, n_classes=3).settings != ba.losses.Softmax(X, y, n_classes=4).settings
