"""Names of columns, levels and classes are names: what looks like a level, a product or an intercept splits nothing."""

import json
import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas")

from bayesadmm_np._errors import ArgumentError  # noqa: E402
from bayesadmm_np.design.levels import TableError  # noqa: E402
from bayesadmm_np.estimators import (  # noqa: E402
    FederatedGLM,
    FederatedLogisticRegression,
    contrast,
    load_model,
    save_model,
)

PIECES = (
    *(
        "dose[mg]",
        "a:b",
        "x: y",
        "p vs q",
        "[T.a]",
        "C(g)",
        "(intercept)",
        "intercept",
        "a, b",
        "=1",
        "·",
        "− x",
        "+ x",
    ),
    *("[", "]", "x0", "prior", "share of A", "{0}", "%s", "ä", "1", "g[T.b]:h[T.c]", "T.", ":", ": ", "~", "y"),
)


def nasty(seed, count):
    """Return different names, of which no two differ in blanks or case alone."""
    rng, found = np.random.default_rng(seed), {}
    while len(found) < count:
        name = "".join(rng.choice(PIECES, rng.integers(1, 4))).strip()
        found.setdefault(" ".join(name.casefold().split()), name)
    return list(found.values())


def rows(seed, n=150):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    X[:, 3] = 1.0 + 2.0 * X[:, 0] - X[:, 1]  # what two others make up
    f = X[:, :3] @ [0.8, -0.5, 0.3]
    return X, (f[:, None] * [0.0, 1.0, -0.5] + rng.gumbel(size=(n, 3))).argmax(axis=1), rng.integers(0, 3, n)


def answers(model, names, folder, ratio=True):
    """Return all that a fit says, with the places of names for the names."""
    save_model(folder / "m.npz", model.fitted_)
    said = []
    for fitted in (model.fitted_, load_model(folder / "m.npz")):
        place = {name: j for j, name in enumerate(fitted.coefficient_names)}
        assert len(place) == fitted.layout.dim
        said += [fitted.mean(), *(np.array([place[row.name]]) for row in model.summary().rows)]
        a, b, c, *_ = place
        for weights in ({a: 1.0, b: 2.0}, {c: -1.0}):  # which the dependence of columns leaves as they are
            found = contrast(fitted, weights)
            said.append(np.array([found.coef, found.std_err]))
        for finding in fitted.findings:
            said += [np.array([names.index(finding.column)]), np.array([value for _, value in finding.terms])]
            said.append(np.array([names.index(name) if name in names else -1 for name, _ in finding.terms]))
    for test in (*model.test_terms(), *(model.test_terms(how="lr") if ratio else ())):
        said.append(np.array([test.statistic or 0.0, test.df]))
    return said


@pytest.mark.parametrize("seed", range(20))
def test_columns_and_classes_with_nasty_names_are_those_with_plain_ones(seed, tmp_path):
    """A name that two coefficients would share is refused; nothing else changes an answer."""
    X, y, site = rows(seed)
    names, classes = nasty(seed, 4), nasty(seed + 1000, 3)
    order = np.argsort(np.argsort(classes))  # classes are sorted by name
    labels = {"multinomial": np.array(classes, dtype=object)[y], "logistic": y == 0}
    kind = ("multinomial", "logistic")[seed % 2]
    ours, plain = FederatedGLM(kind), FederatedGLM(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the column that others make up
        plain.fit(pd.DataFrame(X, columns=list("abcd")), order[y] if kind == "multinomial" else y == 0, client=site)
        outputs = [f"{label}: " for label in sorted(classes)[1:]] if kind == "multinomial" else [""]
        every = [f"{output}{name}" for output in outputs for name in [*names, "(intercept)"]]
        if len(set(every)) < len(every) or "(intercept)" in names:
            with pytest.raises(ArgumentError) as error:
                ours.fit(pd.DataFrame(X, columns=names), labels[kind], client=site)
            assert error.value.argument == "X"
            return
        ours.fit(pd.DataFrame(X, columns=names), labels[kind], client=site)
    assert [test.name for test in ours.test_terms()] == names
    for one, other in zip(answers(ours, names, tmp_path), answers(plain, list("abcd"), tmp_path), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_levels_with_nasty_names_are_those_with_plain_ones(seed, tmp_path):
    """Factors by a formula, crossed, beside a column whose name is that of a product."""
    X, y, site = rows(seed)
    levels = sorted(nasty(seed, 3)), sorted(nasty(seed + 2000, 2))
    rng = np.random.default_rng(seed)
    g, h = rng.integers(0, 3, len(y)), rng.integers(0, 2, len(y))
    found = []
    for own in (levels, (list("pqr"), list("uv"))):
        table = {"g": np.array(own[0], dtype=object)[g], "h": np.array(own[1], dtype=object)[h], "g:h": X[:, 0]}
        table |= {"died": (y == 0).astype(int), "site": site}
        try:
            model = FederatedLogisticRegression.from_formula("died ~ C(g)*C(h) + `g:h`", pd.DataFrame(table), "site")
        except TableError:  # such as a number beside words, or a mark of a missing value
            return
        assert [len(term.columns) for term in model.agreement_.terms] == [2, 1, 1, 2]
        assert [pair for pairs in model.agreement_.structure.levels[:3] for pair in pairs] == [
            *(("g", level) for level in own[0][1:]),
            ("h", own[1][1]),
        ]
        found.append(answers(model, list(model.agreement_.names), tmp_path))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_two_columns_of_one_name_are_refused_by_it():
    X, y, site = rows(0)
    for names, got in ((["a", "b", "a", "c"], "'a' twice"), (["a", "b", "(intercept)", "c"], "'(intercept)'")):
        with pytest.raises(ArgumentError) as error:
            FederatedLogisticRegression().fit(pd.DataFrame(X, columns=names), y == 0, client=site)
        assert (error.value.argument, error.value.got) == ("X", got)


@pytest.mark.parametrize("levels", [("0", "__x", "p"), ("A", "B", "__")])
def test_levels_of_which_the_design_has_no_column_are_refused(levels):
    """formulaic leaves out columns of levels that begin with two underscores."""
    X, y, _ = rows(0)
    table = {"g": np.array(levels, dtype=object)[np.arange(len(y)) % 3], "x": X[:, 0], "died": (y == 0).astype(int)}
    with pytest.raises(ArgumentError) as error:
        FederatedLogisticRegression.from_formula("died ~ x + C(g)", table)
    assert (error.value.argument, error.value.got) == ("formula", "'C(g)'")


def test_nasty_names_come_through_commands_and_files(bayesadmm, tmp_path, monkeypatch):
    """The table of `fit`, and of a run by files, is the estimator's, name by name."""
    pytest.importorskip("cyclopts")
    monkeypatch.chdir(tmp_path)
    X, y, site = rows(0)
    names, levels = [name for name in nasty(0, 9) if "(intercept)" not in name][:3], ["q [x]: y", "p vs q", "r"]
    g = np.array(levels, dtype=object)[np.random.default_rng(0).integers(0, 3, len(y))]
    table = pd.DataFrame({**dict(zip(names, X.T, strict=False)), "ward [T.a]": g, "out come": (y == 0).astype(int)})
    formula = f"`out come` ~ {' + '.join(f'`{name}`' for name in names)} + C(`ward [T.a]`)"
    files = [f"{k}.csv" for k in range(3)]
    for k, file in enumerate(files):
        table[site == k].to_csv(file, index=False)
        rules = ("--minimum-rows", 1, "--minimum-count", 1, "--most-parameters", 9, "--budget", 1e6)
        code, _, err = bayesadmm("site", "init", k, "--data", file, "--name", k, "--formula", formula, *rules,
                                 "--loss", "logistic")  # fmt: skip
        assert code == 0, err
    model = FederatedLogisticRegression.from_formula(formula, table.assign(site=site), "site")
    tables = [
        bayesadmm("server", "run", "run", 0, 1, 2, "--tests", "lr", "--no-progress", "--json"),
        bayesadmm("fit", *files, "--formula", formula, "--loss", "logistic", "--tests", "lr", "--no-progress",
                  "--json"),
    ]  # fmt: skip
    for code, out, err in tables:
        assert code == 0, err
        found = json.loads(out)
        found = found.get("table", found)
        assert [row["name"] for row in found["coefficients"]] == list(model.fitted_.coefficient_names)
        assert [row["coef"] for row in found["coefficients"]] == pytest.approx(model.fitted_.mean(), abs=1e-7)
        for row, test in zip(found["tests"], model.test_terms(how="lr"), strict=True):
            assert (row["name"], row["df"]) == (test.name, test.df)
            assert row["statistic"] == pytest.approx(test.statistic, rel=1e-6)
