"""Tests of terms and contrasts of a fitted model, against statsmodels on the pooled rows."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import qr

from bayesadmm_np.design.agreement import design
from bayesadmm_np.estimators import (
    FederatedGLM,
    FederatedLogisticRegression,
)
from bayesadmm_np.estimators.term_tests import contrast, read_terms, refit_tests, wald_tests
from bayesadmm_np.families import FullGaussian

sm = pytest.importorskip("statsmodels.api")

WARDS = {"age": ["age"], "ward": ["ward b", "ward c"]}


def rows(seed=0, n=240):
    import pandas as pd

    rng = np.random.default_rng(seed)
    ward = rng.integers(0, 3, n)
    X = pd.DataFrame({"age": rng.normal(size=n), "ward b": ward == 1, "ward c": ward == 2}).astype(float)
    return X, X.to_numpy() @ [0.6, 0.4, -0.3] - 0.2, rng.integers(0, 3, n), rng


@pytest.fixture(scope="module")
def logistic():
    X, f, site, rng = rows()
    y = (f + rng.logistic(size=len(f)) > 0).astype(float)
    return FederatedLogisticRegression().fit(X, y, client=site), X, y


def test_a_term_of_levels_is_one_test(logistic):
    model, X, y = logistic
    full = sm.GLM(y, sm.add_constant(X, prepend=False), sm.families.Binomial()).fit(tol=1e-14)
    age, ward = model.test_terms(WARDS)
    theirs = full.wald_test(np.eye(4)[[1, 2]], scalar=True)
    assert np.allclose([ward.statistic, ward.p_value], [theirs.statistic, theirs.pvalue], rtol=1e-6)
    assert (age.name, age.df, ward.name, ward.df) == ("age", 1, "ward", 2)
    assert np.isclose(age.statistic, full.tvalues.iloc[0] ** 2, rtol=1e-6)
    one, two = model.test_terms(WARDS, how="lr")
    for found, columns in ((one, ["ward b", "ward c"]), (two, ["age"])):
        reduced = sm.GLM(y, sm.add_constant(X[columns], prepend=False), sm.families.Binomial()).fit(tol=1e-14)
        assert np.isclose(found.statistic, 2.0 * (full.llf - reduced.llf), rtol=1e-8)
    # broken twins: the levels one by one, and Wald for the ratio
    alone = model.test_terms()
    assert [test.name for test in alone] == ["age", "ward b", "ward c"]
    assert not np.isclose(alone[1].statistic + alone[2].statistic, ward.statistic, rtol=1e-3)
    assert not np.isclose(two.statistic, ward.statistic, rtol=1e-4)
    assert str(ward).startswith("ward: χ²(2) = ")


def crossed():
    """Rows with interactions, at four sites."""
    import pandas as pd

    rng = np.random.default_rng(42)
    n = 320
    table = pd.DataFrame(
        {
            "g": rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]),
            "h": rng.choice(["u", "v"], n, p=[0.6, 0.4]),
            "x": rng.random(n).round(3),
            "z": rng.random(n).round(3),
            "w": rng.integers(1, 4, n),
            "days": rng.integers(1, 9, n),
            "site": rng.integers(0, 4, n),
        }
    )
    f = 2.0 * table["x"] - 1.5 * table["x"] * (table["g"] == "b") + 0.8 * (table["h"] == "v") - table["z"]
    table["y"] = (f + rng.normal(size=n)).round(3)
    table["died"] = (rng.random(n) < 1 / (1 + np.exp(-f))).astype(int)
    table["visits"] = rng.poisson(table["days"] * np.exp(0.4 * f))
    table["class"] = [*map("klm".__getitem__, rng.binomial(2, 1 / (1 + np.exp(-f))))]
    return table


# car 3.1.1: m <- lm(formula, d, weights) or glm(…, family, control = glm.control(1e-15, 100)), of the last but one
# nnet's multinom(…, reltol = 1e-16, maxit = 2000) and, as car refits to 1e-8 only, for type II differences of deviances
# of multinom(class ~ x + h) and of (class ~ g + h) from (class ~ g + x + h). Then Anova(m, type = type,
# test.statistic = "LR" or "Wald"), of least squares F; "HC3" is Anova(m, type, vcov. = hccm(m, type = "hc3")).
# contrasts: contr.treatment, with Sum contr.sum. bs(x, knots = 0.5, Boundary.knots = c(0, 1)).
BS = "bs(x, knots=[0.5], lower_bound=0, upper_bound=1)"
CAR = {
    ("linear", "y ~ g*h*x"): {
        "lr II": [12.5474037, 46.3156969, 47.4528927, 0.0451332129, 9.1470311, 2.18157153, 0.197882215],
        "lr III": [0.62326484, 11.9958976, 34.8140122, 0.197369403, 6.6889291, 0.951535181, 0.197882215],
    },
    ("linear", "y ~ g*x + z", "analytic"): {
        "lr II": [13.8991494, 33.2056524, 21.654961, 9.72584984],
        "lr III": [0.454657089, 33.9642483, 21.654961, 9.72584984],
    },
    ("logistic", "died ~ g*x + h"): {
        "lr II": [4.30521064, 15.5957234, 10.8422335, 0.755660829],
        "lr III": [0.411104221, 11.8093406, 10.8422335, 0.755660829],
        "wald II": [4.35968681, 14.5937169, 10.4308193, 0.757159777],
        "wald III": [0.409405185, 11.0346487, 10.4308193, 0.757159777],
    },
    ("logistic", "died ~ g*h*x"): {
        "lr II": [3.99533883, 10.8422335, 15.2340191, 4.56665542, 0.453386952, 1.38638135, 1.72960292],
        "lr III": [0.271163318, 0.129672027, 5.87973392, 2.23182572, 1.62890402, 0.0995631711, 1.72960292],
        "wald II": [3.47527919, 8.40029191, 13.7022927, 4.17579633, 0.49321978, 1.22850164, 1.68036354],
        "wald III": [0.26747777, 0.129639916, 5.59008155, 2.08166, 1.63454514, 0.0988560588, 1.68036354],
    },
    ("poisson", "visits ~ g*x + h + offset(log(days))"): {
        "lr II": [22.0068992, 134.824074, 53.5801984, 23.0337278],
        "lr III": [4.04454279, 109.070475, 53.5801984, 23.0337278],
    },
    ("poisson", "visits ~ g*x*z", "frequency"): {
        "lr II": [145.861495, 143.01541, 41.5853004, 54.8922458, 38.1683382, 0.000262974796, 13.5704674],
        "lr III": [0.203684963, 29.7560798, 5.73377207, 43.9257075, 0.20929428, 0.229164385, 13.5704674],
    },
    ("logistic", "died ~ g + x + g:h"): {
        "lr II": [4.2682152, 15.2340191, 16.1097792],
        "lr III": [4.4734148, 15.2340191, 16.1097792],
    },
    ("linear", f"y ~ {BS}*g + h"): {
        "lr II": [12.1369248, 12.1552688, 46.3747049, 3.10522025],
        "lr III": [11.8707525, 2.06025584, 46.3747049, 3.10522025],
    },
    ("linear", "y ~ x + x:z"): {"lr II": [34.8051704, 21.3094164], "lr III": [56.0807261, 21.3094164]},
    ("linear", "y ~ C(g, Sum)*C(h, Sum) + x"): {
        "lr II": [11.566426, 48.6210914, 45.2596878, 0.176476925],
        "lr III": [11.1001208, 41.9527482, 45.2596878, 0.176476925],
    },
    ("poisson", "visits ~ h*x + g"): {"wald II": [82.0887228, 96.8251615, 45.5946552, 0.00719825211]},
    ("multinomial", "class ~ g*x + h"): {
        "lr II": [11.301111, 27.7661694, 19.783254, 7.11860572],
        "lr III": [1.37003569, 19.7032464, 19.783254, 7.11860572],
    },
    ("linear", "y ~ g*x + h"): {
        "HC3 II": [14.0631039, 41.0932372, 45.5562282, 9.19508391],
        "HC3 III": [0.603372277, 47.2795529, 45.5562282, 9.19508391],
    },
}
LEVELS = {"g": 2, "h": 1, BS: 4, "C(g, Sum)": 2, "C(h, Sum)": 1}


@pytest.mark.parametrize("case", CAR, ids=lambda case: " ".join(case))
def test_types_are_those_of_car(case):
    """Statistics to the nine digits given, and 1e-8 of a loss of some 1e3 nats, which is rounding."""
    (kind, formula, *weighting), table = case, crossed()
    table["site"] = table["site"] % (1 + len(formula) % 4)
    options = {"weights": "w", "weight_meaning": weighting[0]} if weighting else {}
    model = FederatedGLM.from_formula(formula, table, "site", kind=kind, **options)
    for key, expected in CAR[case].items():
        how, type_ = key.split()
        options = {"covariance": "HC3"} if how == "HC3" else {}
        found = model.test_terms(how="wald" if options else how, type=type_, **options)
        assert [test.statistic for test in found] == pytest.approx(expected, rel=1e-7, abs=1e-8)
        assert {test.type for test in found} == {type_}
        for test in found:
            factors = next(term.factors for term in model.agreement_.terms if term.name == test.name)
            own = np.prod([LEVELS.get(name, 1) for name in factors])
            assert test.df == own * model.fitted_.layout.n_outputs or formula.endswith("g:h")
            df = test.df_residual
            law = stats.chi2(test.df) if df is None else stats.f(test.df, df)
            assert (df is None, test.p_value) == (kind != "linear", pytest.approx(law.sf(test.statistic), rel=1e-9))
        if kind == "linear" and how == "lr":  # of least squares Wald's test is the same
            wald = model.test_terms(type=type_)
            assert [test.statistic for test in wald] == pytest.approx(expected, rel=1e-7)
    if "lr III" in CAR[case]:  # a broken twin: the other type
        assert CAR[case]["lr II"] != pytest.approx(CAR[case]["lr III"], rel=1e-3)


def dependent(seed):
    """Return a kind, terms of a formula with copies of columns among them, and rows at one to four sites."""
    rng, table = np.random.default_rng(seed), crossed()
    table = table.iloc[rng.permutation(len(table))].reset_index(drop=True)
    table["copy"] = table["g"].map({"a": "u", "b": "v", "c": "w"})
    table["x"] = table["x"].astype(rng.choice(["float64", "float32"]))
    table["twice"] = 2.0 * table["x"].astype(float) - 1.0
    table["site"] = table["site"] % (1 + seed % 4)
    mains = ["g", "x", "h", *rng.choice(["copy", "twice", "z"], 2, replace=False)]
    products = [f"{a}:{b}" for a, b in combinations(mains, 2)]
    return (("logistic", "died"), ("poisson", "visits"), ("linear", "y"))[seed % 3], mains, [
        *rng.choice(products, 2, replace=False)
    ], table  # fmt: skip


def smaller_models(kind, y, X, terms, type_):
    """Return deviance and rank by term without and with it, of columns that do not depend, by statsmodels."""
    family = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson(), "linear": sm.families.Gaussian()}
    known = {}

    def fit(dropped):
        kept = np.delete(X, sorted(dropped), axis=1)
        if dropped not in known:
            rank = np.linalg.matrix_rank(kept)
            independent = np.sort(qr(kept, pivoting=True)[2][:rank])
            known[dropped] = sm.GLM(y, kept[:, independent], family[kind]).fit(tol=1e-14).deviance, rank
        return np.array(known[dropped])

    whole = fit(frozenset())
    for term in terms:
        above = [one for one in terms if type_ == "II" and term.factors < one.factors]
        beyond = frozenset(j for one in above for j in one.columns)
        drop, df = fit(beyond | set(term.columns)) - fit(beyond)
        law = stats.chi2(-df) if kind != "linear" else stats.f(-df, len(y) - whole[1])
        statistic = drop if kind != "linear" else drop / -df / (whole[0] / (len(y) - whole[1])) if df else 0.0
        yield term.name, -df, statistic, law


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 50))])
@pytest.mark.filterwarnings("ignore")
def test_dependent_columns_are_tested_whatever_the_order(seed):
    """Ranks and deviances of the smaller models; 1e-6 of a statistic, or of a loss, is both fits' rounding."""
    (kind, target), mains, products, table = dependent(seed)
    rng = np.random.default_rng(seed)
    order = [*rng.permutation(mains), *rng.permutation(products)]
    model = FederatedGLM.from_formula(f"{target} ~ {' + '.join(order)}", table, "site", kind=kind)
    X = np.column_stack([design(table, model.agreement_).matrix, np.ones(len(table))])
    for type_ in ("II", "III"):
        found = {test.name: test for test in model.test_terms(how="lr", type=type_)}
        wald = {test.name: test for test in model.test_terms(type=type_)}
        for name, df, statistic, law in smaller_models(kind, table[target], X, model.agreement_.terms, type_):
            assert (found[name].df, wald[name].df) == (df, df), name
            if df == 0:
                assert (found[name].statistic, wald[name].statistic) == (None, None)
                assert found[name].why
                continue
            assert found[name].statistic == pytest.approx(statistic, rel=1e-6, abs=1e-6)
            assert found[name].p_value == pytest.approx(law.sf(statistic), rel=1e-4)
            if kind == "linear":
                assert wald[name].statistic == pytest.approx(statistic, rel=1e-6, abs=1e-6)


# suppressWarnings: glm(formula, binomial, d, control = glm.control(1e-14, 60)), Anova(m, type = type)
SEPARATED = {
    ("y ~ z + C(k)", "II"): [12.22839396, 28.97005089],
    ("y ~ z * C(k)", "II"): [12.22839396, 28.97005089, 0.05771443497],
    ("y ~ z * C(k)", "III"): [6.156972006, 27.85359578, 0.05771443497],
}


@pytest.mark.parametrize("case", SEPARATED, ids=lambda case: " type ".join(case))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_terms_of_a_separated_model_have_likelihood_ratios_alone(case):
    """Of level h everybody died: its coefficient is infinite, and Wald's test of it has no value."""
    import pandas as pd

    rng, n = np.random.default_rng(0), 240
    site, z = rng.choice(list("ABC"), n), rng.normal(size=n).round(3)
    table = pd.DataFrame({"site": site, "z": z, "k": rng.choice(["a", "b", "h"], n, p=[0.45, 0.43, 0.12])})
    table["y"] = (rng.random(n) < 1 / (1 + np.exp(0.4 * table["z"]))).astype(int)
    table.loc[table["k"] == "h", "y"] = 1
    formula, type_ = case
    model = FederatedLogisticRegression.from_formula(formula, table, "site")
    ratios = model.test_terms(how="lr", type=type_)
    # R's own deviances stop at 1e-14 of themselves, and at fitted probabilities that differ from 1
    assert [test.statistic for test in ratios] == pytest.approx(SEPARATED[case], abs=1e-6)
    _, level, *_ = model.test_terms(type=type_)
    assert (level.statistic, level.p_value, level.df) == (None, None, 2)
    assert "no finite estimate" in level.why
    text = str(model.summary(tests="wald", test_type=type_))
    assert f"Tests of terms (Wald, type {type_})" in text
    assert f"C(k): no test, as {level.why}" in " ".join(text.split())
    # a broken twin, that takes the coefficients for estimates
    twin = replace(model.fitted_, receding=None)
    assert wald_tests(twin, None, type=type_)[1].p_value is not None


def test_contrasts_by_name(logistic):
    model, X, y = logistic
    full = sm.GLM(y, sm.add_constant(X, prepend=False), sm.families.Binomial()).fit(tol=1e-14)
    found = contrast(model.fitted_, {"ward b": 1.0, "ward c": -1.0})
    theirs = full.t_test([0.0, 1.0, -1.0, 0.0])
    assert np.allclose([found.coef, found.std_err, found.p_value], [theirs.effect[0], theirs.sd[0, 0], theirs.pvalue])
    assert found.name == "ward b − ward c"
    for weights, name in {
        (("age", -1.0), ("ward b", 2.0)): "−age + 2·ward b",
        (("age", -0.5), ("ward b", 1.0), ("ward c", -1.5)): "−0.5·age + ward b − 1.5·ward c",
    }.items():
        assert contrast(model.fitted_, dict(weights)).name == name
    for wrong, says in {"WARD_b": r"'WARD_b'; did you mean 'ward b'\?$", "dose": r"'dose'\.$"}.items():
        with pytest.raises(ValueError, match=rf"^weights .*, got {says}"):
            contrast(model.fitted_, {wrong: 1.0})
    with pytest.raises(ValueError, match=r"^weights "):
        contrast(model.fitted_, {})


def test_what_is_no_test_is_refused(logistic):
    model = logistic[0]
    with pytest.raises(ValueError, match=r"^terms .*'ward d'"):
        model.test_terms({"ward": ["ward d"]})
    with pytest.raises(ValueError, match=r"^terms .*'ward'"):
        model.test_terms({"ward": []})
    with pytest.raises(ValueError, match=r"^how "):
        model.test_terms(how="rao")
    some = replace(model.fitted_, prior=FullGaussian(np.zeros(4), 1.0))
    for call in (lambda: wald_tests(some), lambda: refit_tests(some, (None, None))):
        with pytest.raises(ValueError, match="not: penalised"):
            call()
    assert read_terms(model.fitted_, {"twice": ["age", "age"]})[0].places == (0,)
