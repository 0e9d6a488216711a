"""Multinomial logistic regression: the softmax with a reference class, whose likelihood has one maximum."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bayesadmm_np.estimators import FederatedGLM, load_model, save_model
from bayesadmm_np.estimators.check_kind import check_kind
from bayesadmm_np.glm.kinds import kind_of_loss, read_kind


def newton(losses, steps=30):
    """Return the maximum and its covariance from sums over sites."""
    theta = np.zeros(losses[0].dim)
    for _ in range(steps):
        hessian = sum(loss.hessian(theta) for loss in losses)
        theta = theta - np.linalg.solve(hessian, sum(loss.gradient(theta) for loss in losses))
    return theta, np.linalg.inv(sum(loss.hessian(theta) for loss in losses))


def anes():
    sm = pytest.importorskip("statsmodels.api")
    data = sm.datasets.anes96.load_pandas()
    design = sm.add_constant(data.exog, prepend=False).to_numpy()
    return sm, design, data.endog.to_numpy().astype(int)


def test_three_sites_have_statsmodels_table():
    """Seven classes, 944 rows. statsmodels stops at a change of the mean log-likelihood that is told to it."""
    sm, design, y = anes()
    site = np.arange(len(y)) % 3
    losses = [read_kind("multinomial").make_loss(design[site == k], y[site == k], n_outputs=6) for k in range(3)]
    theta, covariance = newton(losses)
    theirs = sm.MNLogit(y, design).fit(method="newton", tol=1e-12, maxiter=100, disp=False)
    errors = np.sqrt(np.diag(covariance))
    assert np.abs((theta - theirs.params.T.ravel()) / errors).max() < 1e-6
    assert_allclose(errors, theirs.bse.T.ravel(), rtol=1e-6)
    assert_allclose(-sum(loss.value(theta) for loss in losses), theirs.llf, rtol=1e-12)
    # twin: the classes in another order have another reference, and other coefficients
    moved = [read_kind("multinomial").make_loss(design, (y + 1) % 7, n_outputs=6)]
    assert np.abs((newton(moved)[0] - theta) / errors).max() > 1


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    f = np.column_stack([np.zeros(200), 0.5 + X[:, 0], -0.5 - X[:, 1]])
    y = np.array(["a", "b", "c"])[(f + rng.gumbel(size=f.shape)).argmax(axis=1)]
    return X, y


def test_the_kind_is_one():
    check_kind("multinomial")
    kind = read_kind("multinomial")
    assert kind_of_loss("ReferenceSoftmax") == kind == read_kind("softmax").identified
    assert read_kind("poisson").identified == read_kind("poisson")
    assert kind.of_classes(2) == read_kind("logistic")


def test_rows_of_the_table_are_named_by_class_and_column(rows, tmp_path):
    X, y = rows
    model = FederatedGLM("multinomial", 1e-6).fit(X, y, client=np.arange(200) % 3)
    assert model.fitted_.title == "multinomial logistic regression of y, 3 classes, each against a"
    assert model.fitted_.coefficient_names == (
        *("b: x0", "b: x1", "b: (intercept)"),
        *("c: x0", "c: x1", "c: (intercept)"),
    )
    # a printed table begins with the intercepts, as R's does; `rows` are in the order of `covariance_`
    assert [row.name for row in model.summary().rows] == list(model.fitted_.coefficient_names)
    printed = ["b: (intercept)", "b: x0", "b: x1", "c: (intercept)", "c: x0", "c: x1"]
    assert list(model.summary().to_frame().index) == [row.name for row in model.summary().shown] == printed
    lines = str(model.summary()).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith(("b: ", "c: "))] == printed
    assert model.coef_.shape == (2, 2)
    assert model.decision_function(X).shape == (200, 3)
    assert not model.decision_function(X)[:, 0].any()
    assert_allclose(model.predict_proba(X).sum(axis=1), 1.0, rtol=1e-12)
    assert model.certificate_.holds
    save_model(tmp_path / "model.npz", model.fitted_)
    assert_allclose(load_model(tmp_path / "model.npz").probabilities(X), model.predict_proba(X), rtol=1e-14)
