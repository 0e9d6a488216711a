"""compare: one row a method, held against the pooled answer, and a failure is a row."""

import json

import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("tqdm", reason="the command line needs the extra `cli`")
pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")


import bayesadmm_np as ba

CANCER = ("--target", "target", "--client", "site", "--no-progress")
SMALL = ("--features", "mean_radius,mean_texture")


def methods(out):
    return {row["method"]: row for row in json.loads(out)["methods"]}


def test_every_method_is_a_row_and_the_distance_is_that_from_the_pooled_fit(bayesadmm, csv):
    path = csv("cancer")
    code, out, err = bayesadmm("compare", path, *CANCER, *SMALL, "--rounds", "12", "--json")
    assert code == 0, err
    rows = methods(out)
    assert set(rows) == set(ba.methods.TABLE)
    for name in ("PVI", "FedLapCov"):
        assert rows[name]["status"] == "converged"
        # 1e-6 of Fisher length per parameter, nine of them
        assert rows[name]["distance_sd"] < 1e-5
        assert rows[name]["certificate_holds"]
        assert rows[name]["rounds_to_close"] <= rows[name]["rounds"]
    for name in ("FedAvg", "FedProx", "FedIvon", "BCM"):  # their fixed points are others
        assert not rows[name]["certificate_holds"]
        assert rows[name]["distance_sd"] > 1e-2
        assert rows[name]["rounds_to_close"] is None
    assert rows["BCM"]["rounds"] == 1
    assert all(len(row["distances"]) == row["rounds"] for row in rows.values())


def test_a_method_that_fails_is_a_row_that_names_the_site(bayesadmm, csv):
    code, out, _ = bayesadmm("compare", csv("cancer"), *CANCER, "--methods", "BayesADMM,PVI", "--rho", "0.05")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith(("PVI", "BayesADMM", "✗"))]
    assert [line.split()[0] for line in lines] == ["PVI", "BayesADMM", "✗"]
    assert "ill posed client" in lines[1]
    assert "BayesADMM: site '" in lines[2]


@pytest.mark.parametrize(
    ("name", "target", "loss"),
    [("wine", "cultivar", "softmax"), ("diabetes", "target", "ridge"), ("diabetes", "target", "poisson")],
)
def test_other_losses(bayesadmm, csv, name, target, loss):
    data = ("--target", target, "--client", "site", "--loss", loss, "--no-progress")
    code, out, _ = bayesadmm("compare", csv(name), *data, "--methods", "PVI,FedAvg", "--rounds", "10", "--json")
    assert code == 0
    rows = methods(out)
    assert rows["PVI"]["distance_sd"] < 1e-3 < rows["FedAvg"]["distance_sd"]


def test_without_a_prior_the_methods_that_need_one_are_named(bayesadmm, csv):
    """The broken twin is the default, which leaves none out."""
    chosen = (*CANCER, *SMALL, "--methods", "Newton,ADMM,PVI,FedAvg", "--json")
    code, out, _ = bayesadmm("compare", csv("cancer"), *chosen, "--prior-precision", "0")
    assert code == 0
    found = json.loads(out)
    assert (found["prior_precision"], found["left_out"]) == ("none", ["ADMM", "FedAvg"])
    assert {row["method"]: row["status"] for row in found["methods"]} == {"PVI": "converged", "Newton": "converged"}
    assert all(row["distance_sd"] < 1e-4 for row in found["methods"])
    assert json.loads(bayesadmm("compare", csv("cancer"), *chosen)[1])["left_out"] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--methods", "PVI,PIV"), ["--methods", "'PVI'"]),
        (("--family", "block"), ["--family", "full, diagonal"]),
        (("--rounds", "0"), ["--rounds"]),
        (("--prior-precision", "-1"), ["--prior-precision"]),
        (("--prior-precision", "0", "--methods", "ADMM,FedAvg"), ["--prior-precision", "ADMM, FedAvg"]),
        (("--rho", "-1"), ["rho"]),
        (("--offset", "mean_radius"), ["--offset"]),
    ],
)
def test_bad_options_are_refused(bayesadmm, csv, options, words):
    code, out, err = bayesadmm("compare", csv("cancer"), *CANCER, *options)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
