"""A kind with a likelihood of its own has the doors of a GLM: one model by all of them, and what they refuse."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.design.terms import parse  # noqa: E402
from bayesadmm_np.estimators import KINDS, FederatedGLM, load_model, save_model  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMTable, Site  # noqa: E402
from oracles.by_files import SITES  # noqa: E402
from oracles.doors import OTHERS, by_estimator, differing, plan  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.weibull import weibull  # noqa: E402

FORMULA = "Surv(days/30,died==2)~age+C(ward)"


@pytest.fixture
def registered(registries):
    return KINDS.register(weibull)


def tables(seed=0):
    rng = np.random.default_rng(seed)
    n = 160
    whole = pd.DataFrame({"age": rng.normal(60, 9, n).round(1), "ward": rng.choice(["a", "b", "c"], n)})
    time = rng.weibull(1.6, n) * 300 * np.exp(-0.03 * (whole["age"] - 60))
    end = rng.uniform(30, 500, n)
    whole["days"] = np.minimum(time, end).round() + 1
    whole["died"] = np.where(time <= end, 2, 1)
    parts = [whole[:30], whole[30:75], whole[75:]]
    return {name: part.reset_index(drop=True) for name, part in zip(SITES, parts, strict=True)}


@pytest.mark.parametrize("door", OTHERS, ids=lambda door: door.__name__)
def test_every_door_has_one_model(call, registered, door):
    given = (call, tables(), FORMULA, "weibull", None, "none")
    first = by_estimator(*given)
    assert first.holds
    assert first.coefficient_names[0] == "log(shape)"
    assert differing(first, door(*given)) == set()


def test_table_predictions_and_file_have_the_parameter(registered, tmp_path):
    model = FederatedGLM.from_formula(FORMULA, tables(), kind="weibull")
    rows = {row.name: row for row in model.summary().shown}
    assert [*rows] == ["(intercept)", "age", "C(ward)[T.b]", "C(ward)[T.c]", "log(shape)"]
    assert rows["log(shape)"].p_value is None
    assert rows["age"].p_value < 0.05
    assert f"{np.exp(model.auxiliary_['log(shape)']):.6g}" in str(model.summary())
    assert model.coef_.shape == (3,)
    assert set(model.auxiliary_) == {"log(shape)"}
    save_model(tmp_path / "w.npz", model.fitted_)
    loaded = load_model(tmp_path / "w.npz")
    assert loaded.coefficient_names == model.fitted_.coefficient_names
    assert loaded.covariance() == pytest.approx(model.covariance_, rel=1e-12)
    new = {"age": [50.0, 70.0], "ward": ["b", "a"]}
    linear = model.intercept_ + np.array([[50.0, 1, 0], [70.0, 0, 0]]) @ model.coef_
    assert loaded.expected(new) == pytest.approx(np.exp(linear), rel=1e-12)


def test_without_a_formula_y_has_two_columns(registered):
    whole = pd.concat(tables())
    X, y = whole[["age"]], np.column_stack([whole["days"] / 30, whole["died"] == 2])
    by_matrix = FederatedGLM("weibull").fit(X, y, client=whole.index.get_level_values(0))
    by_formula = FederatedGLM.from_formula("Surv(days/30, died == 2) ~ age", tables(), kind="weibull")
    assert by_matrix.coef_ == pytest.approx(by_formula.coef_, rel=1e-12)
    with pytest.raises(ArgumentError, match="y must have 2 columns for Weibull"):
        FederatedGLM("weibull").fit(X, y[:, :1], client=whole.index.get_level_values(0))


@pytest.mark.parametrize(
    ("formula", "kind", "says"),
    [
        ("days ~ age", "weibull", "formula must have Surv"),
        ("Surv(days, died == 2) ~ age", "poisson", "formula must have one column"),
        ("Surv(0, days, died == 2) ~ age", "weibull", "no entry time"),
        ("days ~ age + (1 | ward)", "linear", "formula must have one column"),
        ("Surv(days) ~ age", "weibull", "Surv\\(time, status\\)"),
        ("Surv(days, C(died)) ~ age", "weibull", "numbers in Surv"),
        ("days ~ age + (1 | ward) + (1 | died)", "linear", "one random intercept at most"),
        ("days ~ ward + (1 | ward)", "linear", "does not use elsewhere"),
        ("days ~ (age | ward)", "linear", "intercept by group"),
        ("Surv(days, died == 2) ~ age + strata(ward)", "weibull", "stratum"),
    ],
)
def test_formulas_that_are_refused(registered, formula, kind, says):
    with pytest.raises(ArgumentError, match=says):
        FederatedGLM.from_formula(formula, tables(), kind=kind)


def test_a_formula_in_parts():
    found = parse("Surv(entry, log(a + b), status == 2) ~ x + (1 | `the group`)")
    assert found.response == ("entry", "log(a + b)", "status == 2")
    assert found.group == "the group"
    assert found.predictors == {"x"}
    assert set(found.roles) == {"entry", "a", "b", "status", "x"}
    assert found.has_intercept
    assert parse("y ~ (1|g)").has_intercept
    assert not parse("y ~ 0 + x + (1|g)").has_intercept


def test_a_prior_is_refused_by_name(registered):
    with pytest.raises(ArgumentError, match="maximum likelihood alone"):
        FederatedGLM("weibull", prior_precision=1.0).fit([[1.0], [2.0]], [[1.0, 1.0], [2.0, 1.0]])


def test_superfluous_columns_are_named(registered):
    whole = pd.concat(tables())
    X = np.column_stack([whole["age"], 2.0 * whole["age"]])
    with pytest.raises(ArgumentError, match="no information on x0, x1"):
        FederatedGLM("weibull").fit(X, np.column_stack([whole["days"] / 30, whole["died"] == 2]))


def test_data_without_a_maximum_have_no_number(registered):
    """All events are at ages above all other rows': the slope has no finite estimate, and no door has a number."""
    whole = pd.concat(tables())
    X = (whole["died"] == 2).to_numpy(float)[:, None]
    y = np.column_stack([whole["days"] / 30, whole["died"] == 2])
    with pytest.warns(UserWarning, match="no maximum"):
        model = FederatedGLM("weibull").fit(X, y, client=whole.index.get_level_values(0))
    assert np.isnan(model.coef_).all()
    assert np.isnan(model.covariance_).all()
    assert all(row.std_err is None for row in model.summary().rows)
    assert not model.fitted_.has_maximum
    with pytest.warns(UserWarning, match="3 of 3 rows are not estimable"):
        assert np.isnan(model.predict(X[:3])).all()


def test_no_time_leaves_a_site(registered):
    """Times are 17 digits long, and no message has one: in JSON as text, or in an array as bytes."""
    rng = np.random.default_rng(3)
    data = tables()
    for table in data.values():
        table["days"] = table["days"] + rng.random(len(table))
    sites = [Site(name, GLMTable(table, FORMULA, "weibull"), rules=ALLOWED) for name, table in data.items()]
    sent = [site.hello() for site in sites]
    server = Coordinator.start(sent, plan("lr").task)
    while server.outcome is None:
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        server, sent = server.step(replies), [*sent, *replies]
    raw = b"".join(one.to_bytes() for one in sent)
    assert len(raw) > 10_000
    times = np.concatenate([table["days"].to_numpy() for table in data.values()])
    for unit in (1.0, 30.0):
        for time in (times / unit).tolist():
            assert repr(time).encode() not in raw
            assert np.float64(time).tobytes() not in raw
