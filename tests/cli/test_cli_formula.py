"""`--formula`: fit, predict, certify and evaluate by files, against the estimator of the same formula."""

import json

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np.estimators import FederatedLogisticRegression, evaluate, load_model

FORMULA = "died ~ age*sex + C(ward, Treatment('medical')) + bs(bmi, 4) + offset(known)"


@pytest.fixture
def table(rng):
    n = 120
    return pd.DataFrame(
        {
            "hospital": rng.choice(["Basel", "Bern"], n),
            "died": rng.choice(["no", "yes"], n),
            "age": rng.integers(30, 90, n),
            "bmi": rng.normal(25, 4, n).round(1),
            "sex": rng.choice(["f", "m"], n),
            "ward": rng.choice(["medical", "surgical", "icu"], n),
            "known": rng.normal(0, 0.1, n).round(2),
            "patient": [f"p{i}" for i in range(n)],
        }
    )


@pytest.fixture
def run(tmp_path, bayesadmm, monkeypatch):
    """Run a command in an empty folder; return what it printed and said."""
    monkeypatch.chdir(tmp_path)

    def call(*words, code=0):
        found, out, err = bayesadmm(*words)
        assert found == code, err
        return out, err

    return call


def test_a_formula_gives_the_estimators_fit_and_predicts_raw_tables(table, run):
    table.to_csv("all.csv", index=False)
    _, said = run(
        "fit", "all.csv", "--formula", FORMULA, "--client", "hospital", "--prior-precision", 1, "--out", "m.npz"
    )
    assert "'icu', 'medical', 'surgical'" in said
    right = FederatedLogisticRegression.from_formula(FORMULA, table, "hospital", prior_precision=1.0)
    model = load_model("m.npz")
    assert model.columns.names == tuple(right.feature_names_in_)
    assert model.columns.target == "died"
    table.drop(columns=["died", "hospital"]).to_csv("new.csv", index=False)
    run("predict", "m.npz", "new.csv", "--out", "p.csv")
    new = pd.read_csv("p.csv")
    np.testing.assert_allclose(
        new.probability_yes,
        model.probabilities(right.fitted_.columns.design(table), offset=table.known.to_numpy())[:, 1],
        rtol=1e-12,
    )
    run("certify", "m.npz", "all.csv")
    run("evaluate", "m.npz", "all.csv")


def test_a_word_among_numbers_is_named_with_the_option_that_makes_it_missing(table, run):
    """Few words or many, at one site. The twin has no number, and is text."""
    table["bmi"] = table.bmi.astype(str)
    places = table.index[table.hospital == "Bern"][:4]
    fit = ("fit", "all.csv", "--formula", "died ~ age + bmi", "--client", "hospital")
    for words in "lost", ["#NV", "<5", "later", "lost"]:
        table.loc[places, "bmi"] = words
        table.to_csv("all.csv", index=False)
        for said in run(*fit, code=2)[1], run("describe", "all.csv", "--client", "hospital")[0]:
            assert all(word in said for word in ("--na", *([words] if words == "lost" else words)))
            assert "site 'Bern': column 'bmi'" in said
    table.loc[places, "bmi"] = "lost"
    table.to_csv("all.csv", index=False)
    run(*fit, "--na", "lost")
    table[table.hospital == "Bern"].assign(bmi="?").head(4).to_csv("Bern.csv", index=False)
    settings = ("--data", "Bern.csv", "--name", "Bern", "--loss", "logistic", "--formula", "died ~ age + bmi")
    assert '--na "?"' in run("site", "init", "mark", *settings, code=2)[1]


@pytest.mark.parametrize("accused", ["Basel", "Bern"])
@pytest.mark.parametrize("code", [("never", "ever"), (1, 2)])
def test_two_codings_of_a_target_are_shown_with_both_sites_before_a_loss_is_asked_for(table, run, accused, code):
    """In one file, in files and in Python; the twin is one coding at all sites."""
    other = "Bern" if accused == "Basel" else "Basel"

    def said(wanted=2):
        files = [f"{name}.csv" for name in (other, accused)]
        for name in (other, accused):
            table[table.hospital == name].to_csv(f"{name}.csv", index=False)
        table.to_csv("all.csv", index=False)
        formula = ("--formula", "died ~ age")
        whole = run("fit", "all.csv", "--client", "hospital", *formula, code=wanted)[1]
        return [whole, run("fit", *files, *formula, code=wanted)[1]]

    table = table.sort_values("hospital", ascending=accused == "Bern")
    dead = table.died == "yes"
    table["died"] = dead.astype(int)
    assert not any("column 'died'" in sentence for sentence in said(0))
    places = table.hospital == accused
    table["died"] = table.died.astype(object)
    table.loc[places, "died"] = [code[is_dead] for is_dead in dead[places].astype(int)]
    for sentence in said():
        assert f"site {accused!r}: column 'died'" in sentence
        assert repr(other) in sentence
        assert "--na" not in sentence
    with pytest.raises(ValueError, match=f"site '{accused}': column 'died' holds"):
        FederatedLogisticRegression.from_formula("died ~ age", table, "hospital")


def test_files_of_sites_may_be_written_differently(table, run):
    table["age"] = table.age.astype(float)
    for site, rows in table.groupby("hospital"):
        part = rows.drop(columns="hospital")
        if site == "Bern":
            part = part[part.columns[::-1]].assign(sex=" " + part.sex)
            part.loc[part.index[:2], "age"] = np.nan
        part.to_csv(f"{site}.csv", index=False)
    words = ("fit", "Basel.csv", "Bern.csv", "--formula", FORMULA, "--site-intercepts", "--prior-precision", 1)
    assert "age (2)" in run(*words, "--no-dropna", code=2)[1]
    out, said = run(*words, "--json", "--out", "m.npz")
    assert "' f' for 'f'" in said
    assert json.loads(out)["dropped_rows"] == 2
    model = load_model("m.npz")
    assert {name: site.n_missing for name, site in model.sites.items()} == {"Basel": 0, "Bern": 2}
    assert "site[T.Bern]" in model.columns.names
    run("certify", "m.npz", "Basel.csv", "Bern.csv")
    rows = pd.read_csv("Bern.csv")
    rows.assign(sex=rows.sex.str.upper()).to_csv("Bern.csv", index=False)
    refused = run(*words, code=2)[1]
    assert "column 'sex'" in refused
    assert "'Bern'" in refused
    run(*words, "--ignore-case")


def test_what_a_formula_does_not_go_with_is_refused(table, run):
    table.to_csv("all.csv", index=False)
    for words, says in (
        (("--formula", FORMULA, "--target", "died"), "--target"),
        (("--formula", FORMULA, "--categorical", "ward"), "--categorical"),
        (("--formula", "died ~ nothing"), "'nothing'"),
        (("--formula", "died ~ agee", "--client", "hospital"), "did you mean 'age'?"),
        (("--formula", "died ~ exec(age)"), "--formula must not call exec"),
        (("--formula", "died ~ age", "--no-intercept"), "'- 1'"),
        (("--formula", "died ~ patient + age", "--client", "clinic"), "'clinic'"),
        (("--site-intercepts", "--target", "died", "--features", "age"), "--site-intercepts"),
        ((), "--target"),
    ):
        assert says in run("fit", "all.csv", *words, code=2)[1]


def test_a_model_of_three_classes_is_evaluated_like_the_estimators_predictions(table, run):
    rng = np.random.default_rng(1)  # 0 made the table
    table = table.assign(died=np.array(["late", "no", "soon"])[rng.integers(0, 3, len(table))])
    table.to_csv("all.csv", index=False)
    words = ("all.csv", "--client", "hospital")
    run("fit", *words, "--target", "died", "--features", "age,bmi", "--out", "m.npz")
    found = json.loads(run("evaluate", "m.npz", *words, "--json", "--figure", "m.svg")[0])
    model = FederatedLogisticRegression().fit(table[["age", "bmi"]], table.died, table.hospital)
    chances = model.predict_proba(table[["age", "bmi"]])
    right = evaluate(chances, table.died, table.hospital, classes=model.classes_).to_dict()
    assert sorted(found) == sorted(right)
    for site in ("all", "Basel", "Bern"):  # both maxima are known to 1e-8 standard errors
        assert found[site] == pytest.approx(right[site], rel=1e-6)
        for label in model.classes_:
            ours, theirs = (one["classes"][label][site]["auc"]["estimate"] for one in (found, right))
            assert ours == pytest.approx(theirs, abs=2e-3)  # a pair may fall into another bin
    numbers = ("fit", *words, "--target", "bmi", "--features", "age", "--out", "n.npz")
    run(*numbers)
    run("evaluate", "n.npz", *words, code=2)
