"""Contrasts and predictions have a number where the pooled rows determine them, and it is that of any other choice."""

from functools import partial

import numpy as np
import pytest
import statsmodels.api as sm

from bayesadmm_np.estimators import FederatedGLM, contrast, load_model, save_model
from oracles.refusals import assert_refused

FAMILIES = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson(), "linear": sm.families.Gaussian()}


def dependent(rng, kind):
    """Whole numbers, so that columns depend on each other exactly, in any order and of any type."""
    n = 60
    X = rng.integers(-3, 4, (n, 3)).astype(float)
    more = [X @ rng.integers(-2, 3, 3) + rng.integers(-2, 3), np.full(n, 2.0), X[:, 0] - 1.0, np.zeros(n)]
    some = rng.choice(4, rng.integers(1, 4), replace=False)
    X = np.column_stack([X, *(more[k] for k in some)])[:, rng.permutation(3 + len(some))]
    f = X[:, :2] @ [0.2, -0.2]
    y = {
        "logistic": rng.random(n) < 1 / (1 + np.exp(-f)),
        "poisson": rng.poisson(np.exp(f)),
        "linear": f + rng.normal(size=n),
    }
    return X, y[kind].astype(float), rng.choice(["a", "b", "c"], n)


def is_in_the_rows(L, design):
    return np.linalg.matrix_rank(np.vstack([design, L])) == np.linalg.matrix_rank(design)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("seed", range(8))
def test_what_the_rows_determine_is_the_same_for_any_choice_of_columns(kind, seed, tmp_path):
    rng = np.random.default_rng(seed)
    X, y, site = dependent(rng, kind)
    estimator = FederatedGLM(kind).fit(X.astype(rng.choice([np.float32, np.float64, np.int64])), y, client=site)
    save_model(tmp_path / "model.npz", estimator.fitted_)
    design = np.column_stack([X, np.ones(len(X))])
    # the oracle takes the last columns that are independent, the model the first
    kept = [j for j in range(design.shape[1]) if not is_in_the_rows(design[:, j], design[:, j + 1 :].T)]
    oracle = sm.GLM(y, design[:, kept], family=FAMILIES[kind]).fit(tol=1e-12)
    theta = np.zeros(design.shape[1])
    theta[kept] = oracle.params
    spread = np.zeros((len(theta),) * 2)
    spread[np.ix_(kept, kept)] = oracle.cov_params()
    rows = np.vstack(
        [rng.integers(-2, 3, (3, len(X))) @ design, rng.integers(-1, 2, (3, len(theta))), np.eye(len(theta))]
    )
    answers, refused = {True: 0, False: 0}, []
    for model in (estimator.fitted_, load_model(tmp_path / "model.npz")):
        for L in rows[rows.any(axis=1)]:
            weights = dict(zip(model.coefficient_names, L, strict=True))
            known = is_in_the_rows(L, design)
            answers[known] += 1
            if known:
                found = contrast(model, weights)
                # both stop at 1e-8 standard errors or nearer
                assert abs(found.coef - L @ theta) < 1e-6 * np.sqrt(L @ spread @ L)
                assert np.isclose(found.std_err, np.sqrt(L @ spread @ L), rtol=1e-5)
            else:
                refused.append((partial(contrast, model, weights), "weights"))
    assert_refused(refused)
    assert min(answers.values()) >= 4
    other = np.vstack([X[:5] + X[5:10] - X[10:15], rng.integers(-3, 4, (5, X.shape[1]))]).astype(float)
    expected = [is_in_the_rows(row, design) for row in np.column_stack([other, np.ones(10)])]
    predicted = estimator.predict_proba(other)[:, 1] if kind == "logistic" else estimator.predict(other)
    means = FAMILIES[kind].link.inverse(np.column_stack([other, np.ones(10)]) @ theta)
    assert (~np.isnan(predicted)).tolist() == expected
    np.testing.assert_allclose(predicted[expected], means[expected], rtol=1e-5)
