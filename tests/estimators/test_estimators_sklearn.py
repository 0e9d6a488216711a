"""scikit-learn's conventions: its own checks, pipelines, searches, pickles, frames."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayesadmm_np import estimators
from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLinearRegression,
    FederatedLogisticRegression,
    FederatedPoissonRegressor,
    FederatedRidge,
)
from oracles.cohorts import KINDS, cohort, estimator, parameter

PUBLIC = [
    FederatedLogisticRegression(),
    FederatedLogisticRegression(penalty="firth"),
    FederatedLinearRegression(dependent="minimum_norm"),
    FederatedRidge(),
    FederatedPoissonRegressor(),
    # binomial takes trials; a likelihood of all rows of a site has no estimate of the checks' separated classes
    *(FederatedGLM(name) for name, row in estimators.KINDS.items() if name != "binomial" and row().likelihood is None),
]
"""Every estimator, and every kind of GLM that another estimator is not."""


def not_estimable(estimator):
    """A check asks for classes of rows that weigh nothing and are no sums of those that count, which are refused."""
    check = "check_sample_weight_equivalence_on_dense_data"
    return {check: "no class is known"} if is_classifier(estimator) else {}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # some checks hand in degenerate data
@pytest.mark.filterwarnings("ignore:.* rows are not estimable")
@parametrize_with_checks(PUBLIC, expected_failed_checks=not_estimable)
def test_scikit_learns_own_checks(estimator, check):
    """Only what has no answer may fail."""
    check(estimator)


def test_every_public_estimator_is_checked():
    named = {name for name in estimators.__all__ if name.startswith("Federated")}
    assert named == {type(estimator).__name__ for estimator in PUBLIC}


@pytest.mark.parametrize(
    ("model", "several_classes", "several_outputs"),
    [
        (FederatedLogisticRegression(), True, False),
        (FederatedLogisticRegression(penalty="firth"), False, False),
        (FederatedGLM("logistic"), False, False),
        (FederatedGLM("multinomial"), True, False),
        (FederatedGLM("linear"), None, True),
        (FederatedRidge(), None, True),
        (FederatedPoissonRegressor(), None, False),
    ],
    ids=str,
)
def test_tags_say_what_y_may_be(model, several_classes, several_outputs):
    tags = model.__sklearn_tags__()
    assert (tags.classifier_tags and tags.classifier_tags.multi_class) == several_classes
    assert tags.target_tags.multi_output is several_outputs


@pytest.mark.parametrize("given", [{0: 1.0, 1: 2.0, 5: 3.0}, {1: 2.0}, {1: 2.0, 5: 3.0}, {5: 3.0}, {}], ids=str)
def test_class_weights_are_refused_where_scikit_learn_refuses_them(given):
    X, y, sites = cohort("logistic")
    y = (y == y.max()).astype(int)
    ours = FederatedLogisticRegression(0.5, class_weight=given, tol=1e-10)
    try:
        theirs = LogisticRegression(C=2.0, class_weight=given, tol=1e-12, max_iter=10000).fit(X, y)
    except ValueError:
        with pytest.raises(ValueError, match=r"^class_weight"):
            ours.fit(X, y, client=sites)
    else:
        assert np.allclose(ours.fit(X, y, client=sites).coef_, theirs.coef_, rtol=1e-4)


@pytest.mark.parametrize("kind", ["softmax", "ridge"])
def test_clone_pipeline_and_scaling(kind):
    X, y, sites = cohort(kind)
    made = make_pipeline(StandardScaler(), estimator(kind, tol=1e-7))
    key = f"{type(made[-1]).__name__.lower()}__client"
    piped = made.fit(X, y, **{key: sites})
    alone = clone(made[-1]).fit(StandardScaler().fit_transform(X), y, client=sites)
    assert np.array_equal(parameter(piped[-1]), parameter(alone))
    assert piped[-1].sites_ == ["north", "south", "west"]
    assert clone(made[-1]).tol == 1e-7


def test_grid_search_and_metadata_routing():
    X, y, sites = cohort("logistic")
    with sklearn.config_context(enable_metadata_routing=True):
        routed = FederatedLogisticRegression(1.0, inference="posterior").set_fit_request(
            client=True, sample_weight=False
        )
        search = GridSearchCV(routed, {"prior_precision": [0.1, 10.0]}, cv=3).fit(X, y, client=sites)
        assert set(search.best_estimator_.sites_) == {"north", "south", "west"}
        scores = cross_val_score(routed, X, y, cv=3, params={"client": sites})
        assert scores.shape == (3,)
        by_site = GridSearchCV(routed, {"prior_precision": [1.0]}, cv=GroupKFold(3).split(X, y, sites))
        by_site.fit(X, y, client=sites)
        assert np.isfinite(by_site.best_score_)


@pytest.mark.parametrize("kind", ["softmax", "ridge"])
def test_a_pickle_predicts_the_same_and_holds_no_row(kind):
    X, y, sites = cohort(kind)
    model = estimator(kind).fit(X, y, client=sites)
    packed = pickle.dumps(model)
    other = pickle.loads(packed)
    assert np.array_equal(model.predict(X), other.predict(X))
    assert str(model.summary()) == str(other.summary())
    assert not any(value.tobytes() in packed for value in X.ravel())
    with pytest.raises(ValueError, match="partial_fit_site"):
        other.partial_fit_site("east", X, y)
    with pytest.raises(ValueError, match="forget_site"):
        other.forget_site("north")


def test_the_search_for_rows_in_a_pickle_can_fail():
    X, y, sites = cohort("logistic")
    model = FederatedLogisticRegression(1.0, inference="posterior").fit(X, y, client=sites)
    model.kept_ = model._rows
    packed = pickle.dumps(model)
    assert all(value.tobytes() in packed for value in X.ravel())


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library):
    frames = pytest.importorskip(library)
    X, y, sites = cohort("poisson")
    table = frames.DataFrame({"age": X[:, 0], "dose": X[:, 1]})
    client, target = frames.Series(sites.tolist()), frames.Series(y)
    model = FederatedPoissonRegressor(1.0, inference="posterior").fit(table, target, client=client)
    assert model.feature_names_in_.tolist() == ["age", "dose"]
    assert [row.name for row in model.summary().rows] == ["age", "dose", "(intercept)"]
    plain = FederatedPoissonRegressor(1.0, inference="posterior").fit(X, y, client=sites)
    assert np.array_equal(model.predict(table), plain.predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frames.DataFrame({"dose": X[:, 1], "age": X[:, 0]}))


def test_labels_of_sites_may_be_anything_hashable():
    X, y, sites = cohort("ridge")
    names = {"north": ("a", 1), "south": 2, "west": frozenset({"x"})}
    model = estimator("ridge").fit(X, y, client=[names[site] for site in sites])
    assert model.sites_ == list(names.values())
    assert model.site_rows_[2] == 8
    assert np.allclose(parameter(model), parameter(estimator("ridge").fit(X, y, client=sites)))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_repetitions(kind):
    X, y, sites = cohort(kind)
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    weights[np.unique(y, return_index=True)[1]] = 1
    weighted = estimator(kind).fit(X, y, client=sites, sample_weight=weights)
    again = np.repeat(np.arange(len(y)), weights)
    repeated = estimator(kind).fit(X[again], y[again], client=sites[again])
    sd = np.sqrt(np.diag(repeated.covariance_))
    assert np.abs((parameter(weighted) - parameter(repeated)) / sd).max() < 1e-6
    assert np.isclose(weighted.log_likelihood_, repeated.log_likelihood_, rtol=1e-8)
    assert np.isclose(weighted.elbo_, repeated.elbo_, rtol=1e-8)


def test_a_warm_start_takes_fewer_rounds_and_ends_at_the_same_place():
    X, y, sites = cohort("logistic")
    model = FederatedLogisticRegression(1.0, warm_start=True, inference="posterior").fit(X, y, client=sites)
    first, before = model.n_rounds_, parameter(model)
    model.set_params(prior_precision=1.1).fit(X, y, client=sites)
    cold = FederatedLogisticRegression(1.1, inference="posterior").fit(X, y, client=sites)
    assert model.n_rounds_ < first
    assert model.n_rounds_ < cold.n_rounds_
    sd = np.sqrt(np.diag(cold.covariance_))
    assert np.abs((parameter(model) - parameter(cold)) / sd).max() < 1e-6
    assert np.abs((parameter(model) - before) / sd).max() > 1e-3
