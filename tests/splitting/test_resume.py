"""Parallel equals serial, resumed equals uninterrupted, to the bit; and files that are not ours are refused."""

import gc
import json
import os
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import bayesadmm_np as ba
from bayesadmm_np._archive import Archive, ArchiveError
from bayesadmm_np.clients import VON
from bayesadmm_np.families import Natural
from bayesadmm_np.losses import LinearInStatistics
from oracles.problems import PRIORS, prior, same_bits, skewed_logistic, team

M = ba.methods


def identical(a, b):
    """λ_g, sites, client posteriors, objective and every residual, bit for bit (wall times aside)."""

    def timeless(record):
        plain = record.to_dict()
        plain.pop("seconds")
        for client in plain["clients"]:
            client.pop("seconds")
        return plain

    return (
        same_bits(a.posterior.natural, b.posterior.natural)
        and all(same_bits(x, y) for x, y in zip(a.sites, b.sites, strict=True))
        and all(same_bits(x.natural, y.natural) for x, y in zip(a.client_posteriors, b.client_posteriors, strict=True))
        and np.array_equal(a.objective, b.objective)
        and [timeless(r) for r in a.history] == [timeless(r) for r in b.history]
        and a.status is b.status
    )


# --- Parallel = serial

PARALLEL = {
    "BayesADMM": (M.BayesADMM(1.0), "logistic", {}),
    "softmax": (M.PVI(0.5), "softmax", {}),
    "accelerated": (ba.Accelerated(M.PVI(0.5), memory=3), "poisson", {}),
    "VON": (M.PVI(0.5), "logistic", {"solver": VON(steps=20), "seed": 7}),
    "BLR": (M.BLR(0.3), "logistic", {}),
}


@pytest.mark.parametrize("case", PARALLEL)
def test_parallel_is_serial_bit_for_bit(case):
    row, name, options = PARALLEL[case]
    family = "full" if case in ("BayesADMM", "VON") else "diagonal"
    clients = team(name, sizes=(5, 8, 4))
    prior_ = prior(family, clients[0].dim)
    serial, parallel = (ba.run(row, clients, prior_, rounds=4, tol=1e-300, n_jobs=n, **options) for n in (1, 2))
    assert identical(serial, parallel)
    other = ba.run(row, clients[::-1], prior_, rounds=4, tol=1e-300, **options)
    assert not identical(serial, other)  # the comparison can fail


@pytest.mark.parametrize("kind", ["squares", "logistic"])
def test_parallel_is_serial_where_blas_has_threads_of_its_own(kind):
    rng = np.random.default_rng(0)
    d, clients = 300, []
    for _ in range(2):
        X = rng.standard_normal((60, d)) / np.sqrt(d)
        y = X[:, 0] > 0
        clients.append(ba.losses.LeastSquares(X, y) if kind == "squares" else ba.losses.Logistic(X, y))
    prior_ = ba.families.FullGaussian(np.zeros(d), 1.0)
    row = M.PVI() if kind == "squares" else M.BLR(0.5)
    with threadpool_limits(2, user_api="blas"):  # also in a worker of a parallel test run, which has one
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} <= {2}
        serial, parallel = (ba.run(row, clients, prior_, rounds=1, tol=1e-300, n_jobs=n) for n in (1, 2))
    assert identical(serial, parallel)


# --- Resumed = uninterrupted

CONJUGATE = [LinearInStatistics(Natural(np.array([0.3, 0.2]), np.array([-1.0, -2.0]))) for _ in range(2)]

RESUMABLE = {
    "plain": (M.BayesADMM(0.7), team("logistic"), prior("full", 3), {}),
    "damped": (M.PVI(0.4), team("softmax"), prior("diagonal", 6), {}),
    "accelerated": (ba.Accelerated(M.PVI(0.4), memory=2), team("logistic"), prior("full", 3), {}),
    "accelerated ADMM": (ba.Accelerated(M.BayesADMM(1.0), memory=3), team("poisson"), prior("diagonal", 3), {}),
    "VON with a seed": (M.PVI(0.5), team("logistic"), prior("full", 3), {"solver": VON(steps=20), "seed": 3}),
    "warm start": (M.PVI(0.5), team("logistic"), prior("diagonal", 3), {"warm_start": True}),
    "safeguard": (M.BayesADMM(1.0), team("logistic"), prior("full", 3), {"safeguard": True}),
    "by rows": (M.PVI("rows"), team("logistic"), prior("full", 3), {}),
    "scheduled": (replace(M.BayesADMM(1.0), schedule=M.Geometric(rho=0.9)), team("logistic"), prior("full", 3), {}),
    "sketched": (ba.Sketched(M.PVI(), ba.losses.Kronecker(3)), team("softmax"), prior("diagonal", 6), {}),
    "half of the clients": (M.PVI(0.5), team("logistic"), prior("full", 3), {"participation": 0.5, "seed": 4}),
    "Gamma": (M.BayesADMM(1.0), CONJUGATE, ba.families.Gamma([2.0, 1.0], 1.0), {}),
    **{family: (M.PVI(0.3), team("logistic"), prior(family, 3), {}) for family in PRIORS},
}


@pytest.mark.parametrize("case", RESUMABLE)
def test_resumed_runs_are_uninterrupted_runs_bit_for_bit(case, tmp_path):
    row, clients, prior_, options = RESUMABLE[case]
    cut = 4 if "accelerated" in case else 2
    options = {"tol": 1e-300, **options}
    whole = ba.run(row, clients, prior_, rounds=6, **options)
    file = tmp_path / "state.npz"
    part = ba.run(row, clients, prior_, rounds=cut, checkpoint=file, **options)
    resumed = ba.run(row, clients, prior_, rounds=6, resume=file, **options)
    assert identical(whole, resumed)
    assert [r.seconds for r in resumed.history[:cut]] != [r.seconds for r in whole.history[:cut]]  # truly from the file
    part.save(tmp_path / "saved.npz")  # what a result saves is a checkpoint
    assert identical(whole, ba.run(row, clients, prior_, rounds=6, resume=tmp_path / "saved.npz", **options))
    for name in {"seed", "participation", "warm_start", "safeguard"} & {*options}:
        with pytest.raises(ValueError, match=name):
            ba.run(row, clients, prior_, rounds=6, resume=file, **{**options, name: int(not options[name])})


def test_a_finished_run_resumes_to_itself(tmp_path):
    row, clients, prior_, _ = RESUMABLE["plain"]
    part = ba.run(row, clients, prior_, rounds=3, tol=1e-300, checkpoint=tmp_path / "a.npz")
    again = ba.run(row, clients, prior_, rounds=3, tol=1e-300, resume=tmp_path / "a.npz")
    assert again.rounds == 3
    assert identical(part, again)
    assert again.certificate() == part.certificate()


def test_the_checkpoint_of_a_failed_run_is_its_last_good_round(tmp_path):
    clients, prior_ = skewed_logistic(3, n_clients=5), ba.families.FullGaussian(np.zeros(2), 0.05)
    file = tmp_path / "state.npz"
    failed = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=9, checkpoint=file, raise_on_failure=False)
    assert failed.status is ba.Status.ILL_POSED_CLIENT
    again = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=1, resume=file)
    assert same_bits(again.posterior.natural, failed.posterior.natural)


# --- Files


@pytest.fixture
def saved(tmp_path):
    row, clients, prior_, _ = RESUMABLE["accelerated"]
    file = tmp_path / "state.npz"
    ba.run(row, clients, prior_, rounds=3, tol=1e-300, checkpoint=file)
    return file


def resume(file, case="accelerated", **options):
    row, clients, prior_, _ = RESUMABLE[case]
    return ba.run(row, clients, prior_, rounds=4, tol=1e-300, resume=file, **options)


def test_checkpoints_are_plain_arrays_and_json(saved):
    safetensors = pytest.importorskip("safetensors")
    with safetensors.safe_open(saved, "numpy") as file:
        top = json.loads(file.metadata()["bayesadmm"])
        assert all(file.get_tensor(name).dtype == np.float64 for name in file.keys())  # noqa: SIM118
    assert (top["kind"], top["schema"]) == ("checkpoint", 4)
    assert len(top["header"]["history"]) == 3


def test_files_that_are_no_checkpoint_are_refused_and_closed(saved):
    content = saved.read_bytes()
    for length in (0, 10, 500, -200):
        saved.write_bytes(content[:length])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(ArchiveError, match="whole") as refused:
                resume(saved)
            assert os.fspath(saved) in refused.value.source
            gc.collect()
        assert not [warning for warning in caught if issubclass(warning.category, ResourceWarning)]
    Archive("model", {}, {}).write(saved)
    with pytest.raises(ArchiveError, match="checkpoint"):
        resume(saved)
    with pytest.raises(FileNotFoundError):
        resume(saved.parent / "nothing.npz")


def rewrite(file, header=(), run=(), arrays=()):
    """The same checkpoint with other entries of its header, of the header's run, and other arrays; None removes one."""
    archive = Archive.read(file)
    changed = {**json.loads(json.dumps(archive.header)), **dict(header)}
    if run:
        changed["run"] |= run
    kept = {**archive.arrays, **dict(arrays)}
    kept = {name: array for name, array in kept.items() if array is not None}
    Archive(archive.kind, changed, kept).write(file)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"arrays": {"state0": np.full(3, np.nan)}}, "finite"),
        ({"arrays": {"state4": np.full(3, np.inf)}}, "finite"),
        ({"arrays": {"state4": np.zeros(7)}}, "content"),
        ({"arrays": {"state7": None}}, "state7"),
        ({"arrays": {"state12": None}}, "state12"),
        ({"header": {"state": [None] * 5}}, "content"),
        ({"header": {"state": {"type": "Path", "fields": {}}}}, "Path"),
        ({"run": {"family": "Gamma"}}, "family"),
        ({"header": {"run": []}}, "method"),
        ({"header": {"history": [{"round": 1}]}}, "content"),
        ({"header": {"start_objective": None}}, "content"),
        ({"arrays": {"state1": -np.eye(3).ravel()}}, "content"),
    ],
)
def test_damaged_contents_are_named(saved, change, field):
    rewrite(saved)
    assert resume(saved).rounds == 4  # rewriting alone does no harm
    rewrite(saved, **change)
    with pytest.raises(ArchiveError, match=field) as refused:
        resume(saved)
    assert f"resume={os.fspath(saved)!r}" in str(refused.value)


@dataclass(frozen=True)
class Namesake(M.AlongNatural):
    """Another rule without a field: its class alone tells it apart."""


@pytest.mark.parametrize(
    ("method", "clients", "prior_", "what"),
    [
        (ba.Accelerated(M.PVI(0.5), memory=2), None, None, "method"),
        (ba.Accelerated(M.PVI(0.4), memory=3), None, None, "method"),
        (M.PVI(0.4), None, None, "method"),
        (M.BayesADMM(0.4), None, None, "method"),
        (ba.Accelerated(replace(M.PVI(0.4), dual_rule=Namesake()), memory=2), None, None, "method"),
        (ba.Accelerated(replace(M.PVI(0.4), schedule=M.Geometric(rho=0.8)), memory=2), None, None, "method"),
        (ba.Accelerated(replace(M.PVI(0.4), client_share="dual"), memory=2), None, None, "method"),
        (None, team("logistic", seed=1), None, "data"),
        (None, None, prior("full", 3, seed=9), "prior"),
        (None, team("logistic", sizes=(3, 3, 7)), None, "n_clients"),
        (None, None, prior("diagonal", 3), "family"),
        (None, team("softmax2"), prior("full", 4), "shapes"),
    ],
)
def test_checkpoints_of_other_runs_are_refused_by_name(saved, method, clients, prior_, what):
    row, own_clients, own_prior, _ = RESUMABLE["accelerated"]
    with pytest.raises(ValueError, match=f"its {what} is"):
        ba.run(method or row, clients or own_clients, prior_ or own_prior, rounds=4, resume=saved)


def test_writing_is_atomic(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        resume(saved, checkpoint=saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]  # no litter
    assert resume(saved).rounds == 4


# --- Callback and progress


@pytest.mark.parametrize("yes", [True, np.True_])
def test_callback_sees_every_round_and_may_stop(yes):
    seen = []

    def callback(record, posterior):
        seen.append((record.round, posterior))
        return yes if record.round == 3 else None

    clients, prior_ = team("logistic"), prior("full", 3)
    result = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=50, callback=callback)
    assert result.status is ba.Status.STOPPED
    assert not result.status.is_failure
    assert [number for number, _ in seen] == [1, 2, 3]
    assert same_bits(seen[-1][1].natural, result.posterior.natural)
    assert identical(result, ba.run(M.BayesADMM(1.0), clients, prior_, rounds=50, callback=callback))


def test_only_true_stops():
    for value in (None, False, 0, 1, "stop"):
        result = ba.run(
            M.PVI(0.5), team("logistic"), prior("full", 3), rounds=3, callback=lambda *_, value=value: value
        )
        assert result.status is ba.Status.ROUND_LIMIT


def test_progress_bar_shows_rounds(capsys):
    ba.run(M.PVI(0.5), team("logistic"), prior("full", 3), rounds=3, progress=True)
    shown = capsys.readouterr().err
    assert "damped PVI" in shown
    assert "3/3" in shown
