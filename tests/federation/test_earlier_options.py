"""Every option that `site`, `server`, `export` and `flower` had at the reference commit b93a714 is still read and used.

Options of today that those runs need, too, are those of the disclosure rules: that commit had none.
"""

import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the command line needs the extra `cli`")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np.federation import load_server  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402

ALLOWED = OPTIONS.split()


@pytest.fixture
def typed(bayesadmm, tmp_path, monkeypatch):
    """Type a command in a folder with the rows of two sites, and return what it said."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "AB":
        X = rng.normal(size=(40, 2))
        table = {"age": X[:, 0], "dose": X[:, 1], "died": np.where(rng.random(40) < 0.5, "yes", "no")}
        table |= {"cost": X[:, 0] + rng.normal(size=40), "w": rng.integers(1, 3, 40)}
        frame = pd.DataFrame(table)
        frame.loc[0, "dose"] = np.nan
        frame.to_csv(f"{name}.csv", index=False)

    def call(text, expected=0):
        code, out, err = bayesadmm(*text.split())
        assert code == expected, err
        return out if code == 0 else err

    return call


def test_a_run_by_files_takes_all_old_options(typed):
    for name in "AB":
        typed(
            f"site init {name} --data {name}.csv --target died --name {name} --loss logistic --features age,dose "
            f"--weights w --classes no,yes --intercept --standardize --noise-variance 1 --dropna --json {OPTIONS}"
        )
    run = "--method BayesADMM --rho 1 --gamma 0.5 --accelerate --family diagonal --prior-precision 2 --tol 1e-3"
    typed(f"server init run A/hello.npz B/hello.npz {run} --rounds 30 --safeguard --seed 3 --json")
    spec = load_server("run").spec
    assert (spec.tol, spec.rounds, spec.seed, spec.safeguard) == (1e-3, 30, 3, True)
    assert (spec.row.rho, spec.row.dual_step, spec.memory > 0) == (1.0, 0.5, True)
    assert np.array_equal(np.unique(spec.prior.precision), [2.0])
    assert spec.features == ("age", "dose", "intercept")
    assert spec.weights[0] > 39  # weights of one and two, without the row that has no dose
    sent = json.loads(typed("site step A run/broadcast-0001.npz --out elsewhere.npz --json"))["written"]
    assert sent.endswith("elsewhere.npz")
    typed(f"server step run {sent} --json")
    typed("server status run --json")


def test_a_whole_run_is_exported_with_the_old_options(typed):
    for name in "AB":
        typed(f"site init {name} --data {name}.csv --target cost --name {name} --loss ridge --features age {OPTIONS}")
    typed("server init run A/hello.npz B/hello.npz --method PVI")
    path = "run/broadcast-0001.npz"
    while not path.endswith("final.npz"):
        sent = [json.loads(typed(f"site step {name} {path} --json"))["written"] for name in "AB"]
        path = json.loads(typed(f"server step run {' '.join(sent)} --json"))["written"]
    typed("export run --target cost --noise-variance 1 --out model.npz")
    assert "age" in typed("summary model.npz")


def test_a_site_with_noise_takes_the_old_options(typed):
    pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")
    typed(
        "site init A --data A.csv --target died --name A --loss logistic --features age --no-intercept "
        f"--privacy-clip 1 --privacy-noise 4 --privacy-rounds 3 --json {OPTIONS}"
    )


def test_a_federation_takes_the_old_options(typed):
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    typed("flower new trial --elsewhere 3")


def test_an_option_that_nobody_had_is_refused(typed):
    """The test can fail: an option that is not read is an error."""
    assert "--seeds" in typed("server init run A/hello.npz --seeds 3", 2)
