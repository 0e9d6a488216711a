"""A run by files ends in the same model file as a fit."""

import json

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")

import pandas as pd


@pytest.fixture
def run_by_files(bayesadmm, csv, tmp_path):
    """Two sites and a server; `rounds` at most."""

    def play(rounds=40, steps=60):
        frame = pd.read_csv(csv("cancer"))[["mean_radius", "mean_texture", "target", "site"]]
        paths = {name: csv(name, frame[frame["site"] == name].drop(columns="site")) for name in ("south", "west")}
        server = tmp_path / "run"
        for name, path in paths.items():
            options = ("--data", path, "--target", "target", "--name", name, "--loss", "logistic")
            options += ("--minimum-sites", "2", "--budget", "100")
            code, _, err = bayesadmm("site", "init", tmp_path / f"at-{name}", *options)
            assert code == 0, err
        hellos = [tmp_path / f"at-{name}" / "hello.npz" for name in paths]
        options = ("--method", "PVI", "--tol", "1e-8", "--rounds", rounds, "--json")
        code, out, err = bayesadmm("server", "init", server, *hellos, *options)
        for _ in range(steps):
            assert code in (0, 1), err
            broadcast = json.loads(out)["written"]
            if "final" in broadcast:
                break
            replies = []
            for name in paths:
                code, out, err = bayesadmm("site", "step", tmp_path / f"at-{name}", broadcast, "--json")
                assert code == 0, err
                replies.append(json.loads(out)["written"])
            code, out, err = bayesadmm("server", "step", server, *replies, "--json")
        return server, paths

    return play


def test_the_model_of_a_run_is_that_of_a_fit_and_certifies_against_the_rows(bayesadmm, run_by_files, tmp_path):
    server, paths = run_by_files()
    code, _, err = bayesadmm("server", "status", server, "--target", "target", "--out", tmp_path / "m.npz")
    assert code == 0, err
    status = json.loads(bayesadmm("server", "status", server, "--json")[1])
    found = json.loads(bayesadmm("summary", tmp_path / "m.npz", "--json")[1])
    # one undoes the units before, the other after the sums: rounding
    assert [row["coef"] for row in found["coefficients"]] == pytest.approx(status["mean"], rel=1e-9)
    assert [row["std_err"] for row in found["coefficients"]] == pytest.approx(status["standard_error"], rel=1e-9)
    assert found["sites"] == {name: len(pd.read_csv(path)) for name, path in paths.items()}
    code, out, _ = bayesadmm("certify", tmp_path / "m.npz", *paths.values(), "--json")
    assert code == 0
    assert json.loads(out)["pooled"] <= 1e-8
    fit = ("--target", "target", "--no-progress", "--json", "--inference", "posterior")
    one = json.loads(bayesadmm("fit", *paths.values(), *fit)[1])
    for a, b in zip(one["coefficients"], found["coefficients"], strict=True):
        # both within 1e-8 · √d of the pooled answer, in standard errors
        assert abs(a["coef"] - b["coef"]) < 1e-6 * a["std_err"]
    new = pd.read_csv(paths["west"]).head(3)
    new.to_csv(tmp_path / "new.csv", index=False)
    code, out, _ = bayesadmm("predict", tmp_path / "m.npz", tmp_path / "new.csv", "--json")
    assert code == 0
    assert np.isfinite([row["probability_1"] for row in json.loads(out)["predictions"]]).all()


def test_a_run_that_has_not_ended_is_refused(bayesadmm, run_by_files, tmp_path):
    server, _ = run_by_files(steps=1)
    code, _, err = bayesadmm("server", "status", server, "--target", "target", "--out", tmp_path / "m.npz")
    assert code == 2
    assert "has not ended" in err
    assert not (tmp_path / "m.npz").exists()


def test_a_folder_that_is_no_run_is_refused(bayesadmm, tmp_path):
    code, _, err = bayesadmm("server", "status", tmp_path, "--target", "target", "--out", tmp_path / "m.npz")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
