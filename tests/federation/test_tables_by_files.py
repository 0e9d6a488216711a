"""Runs by files have the table of the estimators: what sites are asked for before and after the rounds."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")

from bayesadmm_np.estimators import FederatedGLM, load_model  # noqa: E402
from bayesadmm_np.estimators.summary import as_dict  # noqa: E402
from bayesadmm_np.federation import Message  # noqa: E402
from bayesadmm_np.splitting.status import Status  # noqa: E402
from oracles.by_files import SITES, differences, introduce, play, write_tables  # noqa: E402
from oracles.strd import PROBLEMS, digits  # noqa: E402

APART = {"rounds", "floats", "target", "agreed"}
"""By files the exchanges of the table count, and sites agree on columns by name; an estimator sees a matrix."""


def exported(call):
    code, _, err = call("server status run --out m.npz")
    assert code in (0, 1, 4), err
    return load_model("m.npz")


def test_rows_of_levels_that_nobody_names_are_left_out(call):
    """The table is that of the rows left, up to 1e-6: both fits end within their tolerance, 1e-8."""
    rows = write_tables().reset_index(drop=True)
    rare = (rows["site"] == "north") & (rows.index % 12 == 5)
    rows.loc[rare, "ward"] = "hospice"
    for name in SITES:
        rows[rows["site"] == name].to_csv(f"{name}.csv", index=False)
    formula = "died~dose+ward"
    site = f"--loss logistic --minimum-count 3 --weights w --formula {formula}"
    code, told, _ = play(call, site, "--drop-withheld")
    assert (code, told["status"], told["missing"]) == (0, "CONVERGED", [])
    own = exported(call)
    assert own.totals.statistics.total.n_rows == len(rows) - rare.sum() < len(rows)
    left = {name: int(count) for name, count in rows[~rare]["site"].value_counts().sort_index().items()}
    assert told["sites"] == {name: site.n_rows for name, site in own.sites.items()} == left
    assert left != {name: int(count) for name, count in rows["site"].value_counts().items()}  # those of the hellos
    fits = [
        FederatedGLM.from_formula(formula, table, "site", kind="logistic", weights="w") for table in (rows[~rare], rows)
    ]
    left, whole = ([[row["coef"], row["std_err"]] for row in as_dict(fit.fitted_)["coefficients"]] for fit in fits)
    said = [[row["coef"], row["std_err"]] for row in as_dict(own)["coefficients"]]
    np.testing.assert_allclose(said, left, rtol=1e-6, atol=1e-9)
    assert len(whole) > len(left)  # broken twin: no row was left out
    assert f"{rare.sum()} of 25 rows left out because of levels of ward" in " ".join(call("summary m.npz")[1].split())


def test_a_posterior_has_deviance_and_a_bound_too(call):
    rows = write_tables()
    play(
        call,
        "--target died --loss logistic --features age,dose",
        "--method PVI --prior-precision 1 --penalize-intercept --tol 1e-9",
    )
    model = exported(call)
    options = {"inference": "posterior", "method": "PVI", "penalize_intercept": True, "tol": 1e-9}
    fit = FederatedGLM("logistic", 1.0, **options).fit(rows[["age", "dose"]], rows["died"], client=rows["site"])
    own, other = as_dict(model), as_dict(fit.fitted_)
    for name in ("log_likelihood", "elbo"):  # both at a posterior known to 1e-9
        assert own[name] == pytest.approx(other[name], rel=1e-8)
    assert own["goodness"]["deviance"] == pytest.approx(other["goodness"]["deviance"], rel=1e-8)


# ----------------------------------------------------------------------------------------------------
# Least squares
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["--weights w", "--no-intercept --noise-variance 2"])
def test_least_squares_takes_one_exchange_and_has_t(call, site):
    """One for the fit, one for its certificate, one for the table, one for the sites' own fits.

    The factors are of other columns (centred or not): equal to some roundings of the condition, 1e-10.
    """
    rows = write_tables()
    code, told, sent = play(call, f"--target pressure --loss linear --features age,dose {site}")
    assert (code, told["status"]) == (0, "CONVERGED")
    assert sent == [f"inquiry-000{number}.npz" for number in (1, 2, 3, 4)]
    weights = rows["w"] if "--weights" in site else None
    noise = {"noise_variance": 2.0} if "--noise" in site else {}
    fit = FederatedGLM("linear", fit_intercept="--no-intercept" not in site, **noise).fit(
        rows[["age", "dose"]], rows["pressure"], client=rows["site"], sample_weight=weights
    )
    own, other = as_dict(exported(call), covariance="HC3"), as_dict(fit.with_robust(("HC3",)), covariance="HC3")
    for table in (own, other):
        del table["certificate"]
    assert differences(own, other, APART, 1e-10) == []
    assert own["statistic"] == ("z" if noise else "t")
    twin = FederatedGLM("linear", noise_variance=1.5).fit(rows[["age", "dose"]], rows["pressure"], client=rows["site"])
    assert twin.fitted_.criterion.noise_variance != pytest.approx(own["noise_variance"])


@pytest.mark.parametrize(("name", "least"), [("Longley", 11), ("Wampler1", 9)])
def test_right_digits_by_files(call, name, least):
    problem = PROBLEMS[name]
    columns = [f"x{j}" for j in range(problem.X.shape[1])]
    for k, site in enumerate(SITES):
        table = pd.DataFrame(problem.X[k::3], columns=columns).assign(y=problem.y[k::3])
        table.to_csv(f"{site}.csv", index=False, float_format="%.17g")
    _, told, _ = play(call, f"--target y --loss linear --features {','.join(columns)}")
    # Wampler1 is fitted perfectly: no sum in doubles certifies that, and a sentence says so
    assert (told["status"] == "ROUND_LIMIT") == (name == "Wampler1") == bool(told["missing"])
    order = [len(columns), *range(len(columns))]
    found = np.array(told["mean"])[order], np.array(told["standard_error"])[order]
    assert digits(found[0], problem.coef) >= least
    assert name == "Wampler1" or digits(found[1], problem.std_err) >= least
    # the model file and the final message at a site keep the digits
    assert digits(exported(call).mean()[order], problem.coef) >= least
    _, out, _ = call("site step north run/final.npz --json")
    assert digits(np.array(json.loads(out)["mean"])[order], problem.coef) >= least
    # broken twin: sums of squares in place of factors lose them
    if name == "Longley":
        X = np.column_stack([problem.X, np.ones(len(problem.y))])
        plain = np.linalg.solve(X.T @ X, X.T @ problem.y)
        assert digits(plain[order], problem.coef) < least


# ----------------------------------------------------------------------------------------------------
# What is wrong with the data
# ----------------------------------------------------------------------------------------------------


def test_a_separation_is_named_and_no_number_is_an_estimate(call):
    write_tables()
    code, told, sent = play(call, "--target died --loss logistic --features age,marker")
    assert (code, told["status"]) == (4, "NO_MAXIMUM")
    assert all(words in told["findings"][0] for words in ("(complete) by marker", "--penalty firth"))
    assert told["mean"] == told["standard_error"] == [None, None, None]
    assert len([name for name in sent if name.startswith("broadcast")]) == 2  # asked once: the loss is next to nothing
    for command in ("server status run", "site step north run/final.npz"):
        code, out, _ = call(command)
        assert code == 4
        assert "no maximum" in out
    model = exported(call)
    assert model.findings[0].columns == ("marker",)
    # no reader claims a distance to a fit that is not there, nor does a looser tol make the certificate hold
    loose = replace(model, record=replace(model.record, certificate=replace(model.record.certificate, tol=1e9)))
    assert not loose.holds
    assert not loose.claimed.holds
    twin = replace(loose, findings=(), record=replace(loose.record, status=Status.CONVERGED))
    assert twin.claimed.holds  # of another likelihood
    told = json.loads(call("server status run --json")[1])
    said = told["table"]["certificate"]
    assert not said["holds"]
    assert "no maximum" in said["distance"]
    text = call("server status run")[1] + call("summary m.npz")[1]
    assert "standard errors of the pooled fit" not in told["certificate"] + text
    assert "no bound on the distance" in text
    # twin without a separation: the search is not even begun
    shutil.rmtree("run")
    for name in SITES:
        shutil.rmtree(name)
    code, told, sent = play(call, "--target died --loss logistic --features age,dose")
    assert (code, told["findings"], len(sent)) == (0, [], 8)


def test_the_status_and_the_table_agree_on_what_is_no_estimate(call):
    """In a level all died: its coefficient is infinite, and the others are those of the rows outside it."""
    write_tables()
    for name in SITES:
        rows = pd.read_csv(f"{name}.csv")
        rows["level"] = (np.arange(len(rows)) % 7 == 0).astype(int)
        rows.loc[rows["level"] == 1, "died"] = "yes"
        rows.to_csv(f"{name}.csv", index=False)
    code, told, _ = play(call, "--target died --loss logistic --features age,level")
    assert code == 4
    table = told["table"]["coefficients"]
    for ours, theirs in (("standard_error", "std_err"), ("mean", "coef")):  # None is NaN as a float
        same = [np.array(values, dtype=float) for values in (told[ours], [row[theirs] for row in table])]
        np.testing.assert_allclose(*same, rtol=1e-9)
    # broken twin: the root of the posterior's diagonal is a number in all three places
    assert np.isfinite(np.sqrt(np.diag(exported(call).posterior.covariance_matrix))).all()
    assert [error is None for error in told["standard_error"]] == [False, True, False]
    assert [mean is None for mean in told["mean"]] == [False, True, False]
    assert "means that there is no estimate" in " ".join(call("server status run")[1].split())


@pytest.mark.parametrize("features", [pytest.param("age,marker", marks=pytest.mark.slow), "age,dose"])
def test_firth_by_files_is_that_of_the_estimator(call, features):
    rows = write_tables()
    code, told, sent = play(call, f"--target died --loss logistic --features {features}", "--penalty firth")
    assert (code, told["status"]) == (0, "CONVERGED")
    assert not [name for name in sent if name.startswith("broadcast")]  # rounds of questions
    fit = FederatedGLM("logistic", penalty="firth").fit(rows[features.split(",")], rows["died"], client=rows["site"])
    own, other = as_dict(exported(call)), as_dict(fit.fitted_)
    assert own["fit"] == other["fit"]
    for a, b in zip(own["coefficients"], other["coefficients"], strict=True):
        # both end within 1e-10 standard errors of the mode
        assert a["coef"] == pytest.approx(b["coef"], abs=1e-8 * b["std_err"])
        assert a["std_err"] == pytest.approx(b["std_err"], rel=1e-8)
    assert own["log_likelihood"] == pytest.approx(other["log_likelihood"], rel=1e-8)
    # θ down; ℓ, its derivatives and the pull up, from each of the sites in every exchange of the fit
    least = (other["rounds"] - 2) * len(SITES) * (3 + 1 + 3 + 9 + 3)
    assert least < other["floats"] < own["floats"]
    plain = FederatedGLM("logistic").fit(rows[["age", "dose"]], rows["died"], client=rows["site"])
    if features == "age,dose":  # broken twin: without the penalty
        assert own["coefficients"][0]["coef"] != pytest.approx(plain.coef_[0, 0], rel=1e-3)


def test_firth_needs_a_likelihood_without_a_prior(call):
    write_tables()
    call(
        "site init east --data east.csv --name east --target died --loss logistic --features age "
        "--minimum-sites 1 --budget 100"
    )
    for options in ("--penalty firth --prior-precision 1", "--penalty firth --method PVI"):
        code, _, err = call(f"server init run east/hello.npz {options}")
        assert code == 2
        assert "--penalty" in err


# ----------------------------------------------------------------------------------------------------
# Sites that do not answer
# ----------------------------------------------------------------------------------------------------

LACKING = {
    "derivatives": ("logistic", "died", "There are no likelihood-ratio tests of terms"),
    "statistics": ("logistic", "died", "There are no deviance, AIC, BIC and robust standard errors"),
    "design": ("logistic", "died", "Collinear and constant columns were not looked for"),
    "least_squares": ("linear", "pressure", "The noise variance is not estimated"),
}


@pytest.mark.parametrize("question", LACKING)
def test_what_a_site_refuses_is_missing_by_name(call, question):
    loss, target, words = LACKING[question]
    write_tables()
    site = f"--target {target} --loss {loss} --features age,dose --refuse {question}"
    code, told, _ = play(call, site, "--tests lr" * (question == "derivatives"))
    assert (code, told["status"]) == (0, "CONVERGED")
    (sentence,) = [one for one in told["missing"] if one.startswith(words)]
    assert f"question {question!r}" in sentence
    assert "site east: it refuses this question" in sentence
    _, _, err = call("server status run")
    assert words in err
    assert told["mean"][0] is not None


def test_a_private_site_answers_no_question(call):
    pytest.importorskip("dp_accounting")
    write_tables()
    private = "--privacy-clip 1 --privacy-noise 3 --privacy-rounds 10"
    options = "--method PVI --gamma 0.3 --rounds 2 --prior-precision 1 --penalize-intercept"
    _, told, _ = play(call, f"--target died --loss logistic --features age,dose {private}", options)
    assert "it sends only answers with noise" in told["missing"][0]


def test_levels_that_a_site_has_named_stay_in_a_run(call):
    """Rows of other levels are in no run: with another --minimum-count they would be, from one round to the next."""
    rows = write_tables().reset_index(drop=True)
    rows.loc[(rows["site"] == "north") & (rows.index % 12 == 5), "ward"] = "hospice"
    for name in SITES:
        rows[rows["site"] == name].to_csv(f"{name}.csv", index=False)
    assert play(call, "--loss logistic --minimum-count 3 --formula died~dose+ward", "--drop-withheld")[0] == 0
    code, _, err = call("site rules north --minimum-count 2")
    assert (code, "--minimum-count" in err) == (2, True)
    assert call("site rules north --minimum-count 4")[0] == 0  # names the same
    assert call("site rules east --minimum-count 2")[0] == 0


def test_sites_whose_keys_the_owner_lists_are_those_that_count(call):
    write_tables()
    paths = introduce(call, "--loss logistic --formula died~dose --minimum-rows 5 --budget 100")
    assert call(f"server init run {paths}")[0] == 0
    keys = {name: Message.read(f"{name}/hello.npz").header["identity"] for name in SITES}
    for peers, refused in (((), None), (("north", "west"), None), (("north",), ["minimum_sites"])):
        listed = ",".join(keys[name] for name in peers)
        assert call("site rules east" + f" --peers {listed}" * bool(peers))[0] == 0
        assert call("site step east run/inquiry-0001.npz --out answer.npz")[0] == 0
        said = Message.read("answer.npz").header["refused"]
        assert (said and said["codes"]) == refused
    code, _, err = call("site rules east --peers ed25519:ab")
    assert (code, "peers must be public keys" in err) == (2, True)
