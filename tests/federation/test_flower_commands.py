"""`bayesadmm flower new`, and the keys of the app that it writes."""

import tomllib

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

import numpy as np

import bayesadmm_np as ba
from bayesadmm_np.cli._run_files import load_site
from bayesadmm_np.cli.flower import keys, read_plan
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.splitting.average import Average
from oracles.overrides import OPTIONS

ALLOWED = OPTIONS.split()


@pytest.fixture
def trial(bayesadmm, tmp_path):
    assert bayesadmm("flower", "new", tmp_path / "trial", "--sites", 3)[0] == 0
    return tmp_path / "trial"


def config(trial):
    return tomllib.loads((trial / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def test_new_writes_an_app_whose_every_key_is_explained_and_read(trial):
    written = (trial / "app" / "pyproject.toml").read_text()
    found = config(trial)
    assert found == {name: default for name, (default, _) in keys(3).items()}
    for name, (_, meaning) in keys(3).items():
        assert f"# {meaning}\n{name} = " in written
    plan = read_plan(found)
    assert plan.sites == 3
    assert plan.task.method.name == "guarded Newton"
    assert plan.task.prior(4).natural.linear.shape == (4,)
    for name in found:
        with pytest.raises(ValueError, match=name):
            read_plan({key: value for key, value in found.items() if key != name})


def test_a_posterior_is_by_the_method_with_the_fewest_rounds(trial):
    """The twin takes maximum likelihood; all have a guard."""
    posterior = {**config(trial), "inference": "posterior"}
    wide, whole = read_plan(posterior).task, {"prior-precision": 2.0, "penalize-intercept": True}
    at_own_fits = ba.Guarded(ba.Accelerated(Average(ba.methods.PVI(), start="sites")))
    assert wide.method(3, 1) == wide.method(70, 1) == wide.method(42, 7) == at_own_fits
    assert not wide.prior(2).precision.any()
    chosen = read_plan({**posterior, **whole}).task
    assert chosen.method(3, 1) == chosen.method(70, 1) == ba.Guarded(ba.Accelerated(ba.methods.PVI()))
    assert chosen.method(42, 7) == at_own_fits
    assert np.array_equal(chosen.prior(2).precision, 2 * np.eye(2))
    diagonal = read_plan({**posterior, **whole, "family": "diagonal"}).task
    assert diagonal.method(362, 1) == ba.Guarded(ba.Sketched(ba.methods.PVI(), "full"))
    assert diagonal.method(363, 1) == ba.Guarded(ba.Accelerated(ba.methods.PVI(gamma=0.4)))
    assert read_plan(config(trial)).task.method == ba.Guarded(ba.methods.Newton())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"inference": "evidence"}, "inference must be auto or likelihood or posterior, got 'evidence'"),
        (
            {"inference": "likelihood", "method": "PVI"},
            "^inference must be auto or posterior with a method other than auto, got likelihood",
        ),
        (
            {"inference": "posterior", "family": "fixed"},
            "^family must be full or diagonal for a posterior whose method is auto, got fixed",
        ),
        ({"family": "triangular"}, "family must be one of full, diagonal, .* got 'triangular'"),
        ({"family": "Gamma"}, r"Beta, BlockDiagonalGaussian, Dirichlet, Gamma are set in Python: server_app\(Plan\("),
        ({"method": "PVX"}, "PVI"),
        ({"sites-per-round": 4}, "sites-per-round must be at most"),
        ({"participation": 0.0}, "participation must lie"),
        ({"deadline": -1.0}, "deadline must be"),
        ({"sites": 2.9}, "sites must be an integer"),
        ({"rounds": True}, "rounds must be an integer"),
        ({"accelerate": "False"}, "accelerate must be true or false, as in accelerate = false, got 'False'"),
        ({"tol": "small"}, "tol must be a number"),
    ],
)
def test_a_wrong_value_of_a_key_is_named(change, complaint, trial):
    with pytest.raises(ValueError, match=complaint):
        read_plan({**config(trial), **change})


def test_the_app_is_what_flower_ships_and_nothing_else(bayesadmm, trial):
    assert sorted(path.name for path in trial.rglob("*") if path.is_file()) == [
        *("__init__.py", "pyproject.toml", "server_app.py"),
    ]
    for path in (trial / "app" / "federation").glob("*.py"):
        compile(path.read_text(), str(path), "exec")
    code, _, err = bayesadmm("flower", "new", trial, "--sites", 3)
    assert (code, "holds an app already" in err) == (2, True)


def test_a_site_whose_rows_have_changed_does_not_say_hello(bayesadmm, tmp_path, caplog):
    rows, site = tmp_path / "rows.csv", tmp_path / "here"
    np.savetxt(rows, [[1, 0], [2, 1], [0, 1]], delimiter=",", header="x,died", comments="")
    options = ["--data", rows, "--target", "died", "--name", "Lund", "--loss", "logistic"]
    assert bayesadmm("site", "init", site, *options, *ALLOWED)[0] == 0
    with open(rows, "a") as file:
        file.write("1,1\n")
    said = answer(Request("7"), tmp_path, lambda spec: load_site(site, spec))
    assert said.refused
    assert said.said.codes == ("rows",)
    assert "must be those of hello.npz" in caplog.text


def test_the_servers_choices_are_keys_of_the_app(trial):
    known = config(trial)
    assert read_plan(known).task.choices is None
    changed = {"reference": "ward=c, old=yes", "ignore-case": True, "site-intercepts": True, "reference-site": "south"}
    assert read_plan({**known, **changed}).task.choices == {
        "reference": {"ward": "c", "old": "yes"},
        "ignore_case": True,
        "site_intercepts": True,
        "reference_site": "south",
    }
