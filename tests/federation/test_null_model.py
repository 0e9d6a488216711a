"""By files the model of intercepts and offsets alone costs few exchanges, and its failure ends no fit."""

import shutil

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")

from bayesadmm_np.estimators import FederatedGLM, load_model  # noqa: E402
from bayesadmm_np.estimators.summary import as_dict, summarise  # noqa: E402
from bayesadmm_np.glm import inference  # noqa: E402
from oracles.by_files import SITES, play  # noqa: E402

SAID = "the model of intercepts alone was not found"
NULL = {"null_deviance", "null_log_likelihood", "r_squared", "test"}


def write(kind):
    """Write three sites' tables with offsets of standard deviation one; return all rows."""
    rng = np.random.default_rng(1)
    tables = []
    for name in SITES:
        dose, beside = rng.normal(size=(2, 100))
        f = dose + beside
        y = rng.random(100) < 1.0 / (1.0 + np.exp(-f)) if kind == "logistic" else rng.poisson(np.exp(f))
        tables.append(pd.DataFrame({"dose": dose, "beside": beside, "y": y.astype(int), "site": name}))
        tables[-1].drop(columns="site").to_csv(f"{name}.csv", index=False)
    return pd.concat(tables, ignore_index=True)


def test_the_null_model_of_counts_takes_one_exchange(call, monkeypatch, tmp_path):
    """The twin searches for it as for any other kind: it asks more, and finds the same."""
    found = {}
    for name, closed in (("closed", inference.Poisson), ("searched", None)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setattr(inference, "Poisson", closed)
        write("poisson")
        _, told, sent = play(call, "--loss poisson --formula y~dose+offset(beside)")
        assert told["status"] == "CONVERGED"
        call("server status run --out m.npz")
        found[name] = inquiries(sent), as_dict(load_model("m.npz"))["goodness"]["null_deviance"]
    assert found["closed"][0] == 4 < found["searched"][0]
    assert found["closed"][1] == pytest.approx(found["searched"][1], rel=1e-9)  # half a decrement of 1e-12


def inquiries(sent):
    return len([name for name in sent if name.startswith("inquiry")])


def test_a_null_model_that_is_not_found_withholds_what_compares_with_it_alone(call, monkeypatch):
    """By files and in one process; the likelihood, the deviance and the criteria stay. Twin: found, it is there."""
    rows = write("logistic")
    found = FederatedGLM.from_formula("y~dose+offset(beside)", rows, "site", kind="logistic").fitted_
    monkeypatch.setattr(inference, "refit", lost)
    code, told, _ = play(call, "--loss logistic --formula y~dose+offset(beside)")
    assert (code, told["status"]) == (0, "CONVERGED")
    call("server status run --out m.npz")
    here = FederatedGLM.from_formula("y~dose+offset(beside)", rows, "site", kind="logistic").fitted_
    whole = as_dict(found)["goodness"]
    for model in (load_model("m.npz"), here):
        own = as_dict(model)["goodness"]
        assert {name for name in own if own[name] is None and whole[name] is not None} == NULL
        assert own["log_likelihood"] == pytest.approx(whole["log_likelihood"], rel=1e-9)
        assert SAID in " ".join(str(summarise(model)).split())
    assert SAID not in " ".join(str(summarise(found)).split())


def lost(start, free):
    """A smaller model that its rows do not determine."""
    yield start
    raise ValueError("the rows do not determine the coefficients of the model without the term.")


def test_a_column_too_large_for_sums_is_named(call):
    """Twin: in other units it runs."""
    rows = write("poisson")
    for large in (1e90, 1e3):
        for name, own in rows.groupby("site"):
            own.assign(dose=large * own["dose"]).drop(columns="site").to_csv(f"{name}.csv", index=False)
        if large > 1e70:
            with pytest.raises(AssertionError, match="column 'dose' must have a largest value between"):
                play(call, "--loss poisson --formula y~dose+offset(beside)")
            shutil.rmtree("run")
            for name in SITES:
                shutil.rmtree(name)
    code, told, _ = play(call, "--loss poisson --formula y~dose+offset(beside)")
    assert (code, told["status"]) == (0, "CONVERGED")
