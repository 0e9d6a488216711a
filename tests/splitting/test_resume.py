"""Parallel equals serial, resumed equals uninterrupted, to the bit; and files that are not ours are refused."""

import gc
import json
import os
import warnings

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


# ----------------------------------------------------------------------------------------------------
# Parallel = serial
# ----------------------------------------------------------------------------------------------------

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


# ----------------------------------------------------------------------------------------------------
# Resumed = uninterrupted
# ----------------------------------------------------------------------------------------------------

CONJUGATE = [LinearInStatistics(Natural(np.array([0.3, 0.2]), np.array([-1.0, -2.0]))) for _ in range(2)]

RESUMABLE = {
    "plain": (M.BayesADMM(0.7), team("logistic"), prior("full", 3), {}),
    "damped": (M.PVI(0.4), team("softmax"), prior("diagonal", 6), {}),
    "block": (M.AMA(1.0), team("poisson"), prior("block", 3), {}),
    "isotropic": (M.ADMM(2.0), team("logistic"), prior("isotropic", 3), {}),
    "fixed": (M.FedLap(0.3), team("logistic"), prior("fixed", 3), {}),
    "accelerated": (ba.Accelerated(M.PVI(0.4), memory=2), team("logistic"), prior("full", 3), {}),
    "accelerated ADMM": (ba.Accelerated(M.BayesADMM(1.0), memory=3), team("poisson"), prior("diagonal", 3), {}),
    "VON with a seed": (M.PVI(0.5), team("logistic"), prior("full", 3), {"solver": VON(steps=20), "seed": 3}),
    "warm start": (M.PVI(0.5), team("logistic"), prior("diagonal", 3), {"warm_start": True}),
    "safeguard": (M.BayesADMM(1.0), team("logistic"), prior("full", 3), {"safeguard": True}),
    "Gamma": (M.BayesADMM(1.0), CONJUGATE, ba.families.Gamma([2.0, 1.0], 1.0), {}),
}


@pytest.mark.parametrize("case", RESUMABLE)
def test_resumed_runs_are_uninterrupted_runs_bit_for_bit(case, tmp_path):
    row, clients, prior_, options = RESUMABLE[case]
    cut = 4 if "accelerated" in case else 2
    options = {"tol": 1e-300, **options}
    whole = ba.run(row, clients, prior_, rounds=6, **options)
    file = tmp_path / "state.npz"
    ba.run(row, clients, prior_, rounds=cut, checkpoint=file, **options)
    resumed = ba.run(row, clients, prior_, rounds=6, resume=file, **options)
    assert identical(whole, resumed)
    assert [r.seconds for r in resumed.history[:cut]] != [r.seconds for r in whole.history[:cut]]  # truly from the file
    if case == "VON with a seed":
        with pytest.raises(ValueError, match="its seed is 3"):
            ba.run(row, clients, prior_, rounds=6, resume=file, **{**options, "seed": 4})


def test_results_save_what_a_run_resumes(tmp_path):
    row, clients, prior_, _ = RESUMABLE["accelerated"]
    part = ba.run(row, clients, prior_, rounds=3, tol=1e-300)
    part.save(tmp_path / "saved.npz")
    resumed = ba.run(row, clients, prior_, rounds=6, tol=1e-300, resume=tmp_path / "saved.npz")
    assert identical(resumed, ba.run(row, clients, prior_, rounds=6, tol=1e-300))


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


# ----------------------------------------------------------------------------------------------------
# Files
# ----------------------------------------------------------------------------------------------------


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
    with np.load(saved, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    top = json.loads(arrays.pop("header").tobytes())
    assert (top["kind"], top["schema"]) == ("checkpoint", 3)
    assert all(array.dtype == np.float64 for array in arrays.values())
    assert len(top["header"]["history"]) == 3


@pytest.mark.parametrize("length", [0, 10, 500, -200])
def test_truncated_files_are_refused(saved, length):
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"resume=.*state\.npz.: file must be a whole bayesadmm archive"):
        resume(saved)


def test_refused_files_are_closed(saved):
    saved.write_bytes(saved.read_bytes()[:500])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="a whole bayesadmm archive"):
            resume(saved)
        gc.collect()
    assert not [warning for warning in caught if issubclass(warning.category, ResourceWarning)]


def rewrite(file, change):
    archive = Archive.read(file)
    header, arrays = json.loads(json.dumps(archive.header)), dict(archive.arrays)
    change(header, arrays)
    Archive(archive.kind, header, arrays).write(file)


def header(**new):
    return lambda header, _: header.update(new)


def run_of(**new):
    return lambda header, _: header["run"].update(new)


def array(**new):
    return lambda _, arrays: arrays.update({name.replace("_", "/"): value for name, value in new.items()})


def without(name):
    return lambda _, arrays: arrays.pop(name)


def test_rewriting_alone_does_no_harm(saved):
    rewrite(saved, header())
    assert resume(saved).rounds == 4


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (array(server_part0=np.full(3, np.nan)), "server/part0 must be finite, got nan at position 0"),
        (array(site1_part0=np.zeros(7)), "site1/part0 must be a vector of 3 numbers, got 7"),
        (array(site1_part0=np.zeros(3, dtype=np.float32)), "site1/part0 must be a vector of 3 numbers, got float32"),
        (without("posterior0/part1"), r"posterior0/part1 must be numbers of shape \(3, 3\), got nothing"),
        (without("memory1/site0/part0"), "memory1/site0/part0 must be a vector"),
        (without("memory1/move0/part0"), "memory1/move0/part0 must be a vector"),
        (run_of(family="Gamma"), "its family is 'Gamma', expected 'FullGaussian'"),
        (header(run=[]), "is of another run: its method is None"),
        (header(history=[{"round": 1}]), "content must be the state of a run"),
        (header(start_objective=None), "content must be the state of a run"),
        (array(server_part1=-np.eye(3)), "content must be the state of a run"),
    ],
)
def test_damaged_contents_are_named(saved, change, pattern):
    rewrite(saved, change)
    with pytest.raises(ArchiveError, match=pattern) as refused:
        resume(saved)
    assert f"resume={os.fspath(saved)!r}" in str(refused.value)


def test_an_archive_of_another_kind_is_refused(saved):
    Archive("model", {}, {}).write(saved)
    with pytest.raises(ArchiveError, match="kind must be 'checkpoint', got model"):
        resume(saved)


@pytest.mark.parametrize(
    ("method", "clients", "prior_", "what"),
    [
        (ba.Accelerated(M.PVI(0.5), memory=2), None, None, "method"),
        (ba.Accelerated(M.PVI(0.4), memory=3), None, None, "memory"),
        (M.PVI(0.4), None, None, "memory"),
        (M.BayesADMM(0.4), None, None, "method"),
        (None, team("logistic", sizes=(3, 3, 7)), None, "n_clients"),
        (None, None, prior("diagonal", 3), "family"),
        (None, team("softmax2"), prior("full", 4), "shapes"),
    ],
)
def test_checkpoints_of_other_runs_are_refused_by_name(saved, method, clients, prior_, what):
    row, own_clients, own_prior, _ = RESUMABLE["accelerated"]
    with pytest.raises(ValueError, match=f"is of another run: its {what} is"):
        ba.run(method or row, clients or own_clients, prior_ or own_prior, rounds=4, resume=saved)


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        resume(tmp_path / "nothing.npz")


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


# ----------------------------------------------------------------------------------------------------
# Callback and progress
# ----------------------------------------------------------------------------------------------------


def test_callback_sees_every_round_and_may_stop():
    seen = []

    def callback(record, posterior):
        seen.append((record.round, posterior))
        return record.round == 3

    clients, prior_ = team("logistic"), prior("full", 3)
    result = ba.run(M.BayesADMM(1.0), clients, prior_, rounds=50, callback=callback)
    assert result.status is ba.Status.STOPPED
    assert not result.status.is_failure
    assert [number for number, _ in seen] == [1, 2, 3]
    assert same_bits(seen[-1][1].natural, result.posterior.natural)
    assert identical(
        result, ba.run(M.BayesADMM(1.0), clients, prior_, rounds=50, callback=lambda record, _: record.round == 3)
    )


@pytest.mark.parametrize("value", [None, False, 0, 1, "stop"])
def test_only_true_stops(value):
    result = ba.run(M.PVI(0.5), team("logistic"), prior("full", 3), rounds=3, callback=lambda *_: value)
    assert result.status is ba.Status.ROUND_LIMIT


def test_progress_bar_shows_rounds(capsys):
    ba.run(M.PVI(0.5), team("logistic"), prior("full", 3), rounds=3, progress=True)
    shown = capsys.readouterr().err
    assert "damped PVI" in shown
    assert "3/3" in shown


@pytest.mark.parametrize("family", list(PRIORS))
def test_states_keep_every_family(family, tmp_path):
    clients, prior_ = team("logistic"), prior(family, 3)
    part = ba.run(M.PVI(0.3), clients, prior_, rounds=2, tol=1e-300, checkpoint=tmp_path / "a.npz")
    again = ba.run(M.PVI(0.3), clients, prior_, rounds=2, tol=1e-300, resume=tmp_path / "a.npz")
    assert identical(part, again)
