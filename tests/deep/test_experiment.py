"""`bayesadmm experiment`: a strict file, the same numbers as `run`, and the same bytes after a kill."""

import csv
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from matplotlib.colors import to_hex  # noqa: E402

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np._archive import ArchiveError  # noqa: E402
from bayesadmm_np.cli import _experiment_plots as plots  # noqa: E402
from bayesadmm_np.cli import _experiment_run as module  # noqa: E402
from bayesadmm_np.cli._experiment_file import Experiment, Split, changed  # noqa: E402
from bayesadmm_np.torch import IVONADMM, MLP, AdamSteps, IVONSteps, Rows, SGDSteps  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = (Path(__file__).parents[1] / "goldens" / "small.toml").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def read(path):
    with open(path, newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def tensors(X, y):
    return Rows(torch.tensor(X, dtype=torch.float32), torch.tensor(y))


def by_hand(plan, seed):
    """The clients' rows and the test rows of a seed."""
    (X, y), (X_test, y_test) = plan.data.load()
    chosen = np.random.default_rng([seed, 2]).permutation(len(y))[: plan.data.train]
    X, y = X[chosen], y[chosen]
    return [tensors(X[part], y[part]) for part in plan.data.parts(y, seed)], tensors(X_test, y_test)


def test_table_rounds_and_plot_are_those_of_the_runs(bayesadmm, file, tmp_path):
    code, out, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 0, err
    folder = tmp_path / "small"  # the file's name, beside it
    assert {path.name for path in folder.iterdir()} == {
        *("experiment.json", "rounds.csv", "seconds.csv", "table.csv", "results.json"),
        *("curves.svg", "curves.png", "checkpoints", ".lock"),
    }
    rounds, table = read(folder / "rounds.csv"), read(folder / "table.csv")
    assert [(row["method"], row["seed"], row["round"]) for row in rounds] == [
        (label, str(seed), str(k)) for label in ("IVONADMM", "pooled") for seed in (3, 1) for k in (1, 2, 3, 4)
    ]
    last = [float(r["at_mean_accuracy"]) for r in rounds if r["method"] == "IVONADMM" and r["round"] == "4"]
    row = next(r for r in table if r["method"] == "IVONADMM" and r["round"] == "4")
    assert float(row["accuracy_mean"]) == pytest.approx(sum(last) / 2)
    assert float(row["accuracy_sd"]) == pytest.approx(abs(last[0] - last[1]) / 2)
    assert rounds[-1]["ensemble_nll"] == ""  # a point has no ensemble
    for name in ("ece", "brier"):
        for prefix, kind in (("", "at_mean_"), ("ensemble_", "ensemble_")):
            last = [float(r[kind + name]) for r in rounds if r["method"] == "IVONADMM" and r["round"] == "4"]
            assert float(row[f"{prefix}{name}_mean"]) == pytest.approx(sum(last) / 2)
    # the mean over rounds 2 to 4 of each seed, and its spread over the seeds; round 2 has two alone
    own = [[float(r["at_mean_nll"]) for r in rounds if (r["method"], r["seed"]) == ("pooled", s)] for s in "31"]
    for number in (2, 4):
        means = [np.mean(nlls[max(0, number - 3) : number]) for nlls in own]
        three = next(r for r in table if (r["method"], r["round"]) == ("pooled", str(number)))
        assert float(three["nll_last3_mean"]) == pytest.approx(np.mean(means))
        assert float(three["nll_last3_sd"]) == pytest.approx(np.std(means))
        assert float(three["nll_mean"]) == pytest.approx(np.mean([nlls[number - 1] for nlls in own]))
    spent = read(folder / "seconds.csv")
    assert [(r["method"], r["seed"], r["round"]) for r in spent] == [
        (r["method"], r["seed"], r["round"]) for r in rounds
    ]
    assert all(float(r["seconds"]) > 0 for r in spent)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert [run["status"] for run in results["runs"]] == ["ROUND_LIMIT"] * 4
    assert results["experiment"]["methods"][0]["steps"] == {"rho": 0.7, "gamma": 0.1}
    assert results["notes"] == []
    assert [run["curves"]["nll"] for run in results["runs"] if run["method"] == "pooled"] == own
    assert results["runs"][0]["curves"]["round"] == [1, 2, 3, 4]
    assert ["ensemble_nll" in run["curves"] for run in results["runs"]] == [True, True, False, False]
    assert "pooled" in out

    # by hand: the same split, start and settings
    plan = Experiment.read(file)
    clients, test = by_hand(plan, 1)
    assert (sum(map(len, clients)), len(test)) == (60, 40)
    torch.manual_seed(1)
    result = module.run(
        IVONADMM(0.7, 0.1),
        clients,
        MLP((64, 5, 10)),
        rounds=4,
        temperature=0.1,
        solver=IVONSteps(epochs=2, lr=0.3, hess_init=0.1, beta2=0.9),
        seed=1,
        evaluate=test,
        ensemble=2,
    )
    mine = [row for row in rounds if row["method"] == "IVONADMM" and row["seed"] == "1"]
    assert [float(row["at_mean_nll"]) for row in mine] == [record.at_mean.nll for record in result.history]
    assert [float(row["objective"]) for row in mine] == [record.objective for record in result.history]


def test_a_mean_of_three_rounds_needs_all_of_them(bayesadmm, file, tmp_path):
    """Every second round is scored: round 4 has its own score, and no mean over rounds 2 to 4."""
    code, _, err = bayesadmm("experiment", file, "--no-progress", "--set", "training.evaluate_every=2")
    assert code == 0, err
    [row] = [r for r in read(tmp_path / "small" / "table.csv") if (r["method"], r["round"]) == ("pooled", "4")]
    assert float(row["nll_mean"]) > 0
    assert row["nll_last3_mean"] == "nan"


@pytest.fixture
def interrupted(monkeypatch):
    """Press Ctrl-C after so many rounds of all runs; return the list of the rounds that were done."""

    def after(count):
        plain, rounds = module.run, []

        def stopping(*arguments, callback, **options):
            def stop(record, state):
                callback(record, state)
                rounds.append(record.round)
                if len(rounds) == count:
                    raise KeyboardInterrupt

            return plain(*arguments, callback=stop, **options)

        monkeypatch.setattr(module, "run", stopping)
        return rounds

    return after


def test_an_interrupted_experiment_goes_on_to_the_same_bytes(bayesadmm, file, tmp_path, interrupted):
    assert bayesadmm("experiment", file, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    rounds = interrupted(6)  # in the second run
    code, _, err = bayesadmm("experiment", file, "--out", tmp_path / "cut", "--no-progress")
    assert code == 130
    assert "the same command goes on" in err
    assert not (tmp_path / "cut" / "rounds.csv").exists()
    assert bayesadmm("experiment", file, "--out", tmp_path / "cut", "--no-progress")[0] == 0
    assert rounds == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]  # nothing was done twice
    same_bytes(tmp_path)


def same_bytes(tmp_path, *more):
    for name in ("rounds.csv", "experiment.json", "curves.svg", *more):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    tables = [read(tmp_path / folder / "table.csv") for folder in ("whole", "cut")]
    for table in tables:
        assert all(float(row.pop("seconds_round")) > 0 for row in table)  # of the machine
    assert tables[0] == tables[1]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_experiment_goes_on_to_the_same_bytes(bayesadmm, file, tmp_path):
    assert bayesadmm("experiment", file, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    kill_when(tmp_path / "cut" / "checkpoints" / "00_seed3.npz", file, tmp_path / "cut")
    assert bayesadmm("experiment", file, "--out", tmp_path / "cut", "--no-progress")[0] == 0
    same_bytes(tmp_path)


def kill_when(path, file, folder):
    """Start the command in another process, and kill it as soon as a path is there."""
    code = "import torch; torch.set_num_threads(1); from bayesadmm_np.cli import main; main()"
    arguments = ["experiment", file, "--out", folder, "--no-progress"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 300.0  # a crowded machine takes a minute to start
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert path.exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients = 3", "cleints = 3", "[data] there is no key 'cleints'; did you mean 'clients'?"),
        ("rounds = 4", "round = 4", "there is no key 'round'; did you mean 'rounds'?"),
        ("rounds = 4\n", "", "rounds is missing"),
        ("version = 1", "version = 2", "version must be 1, got 2"),
        ("gamma = 0.1", "gama = 0.1", "[method 1] there is no key 'gama'; did you mean 'gamma'?"),
        ("gamma = 0.1", "gamma = -0.1", "[method 1] gamma must be > 0"),
        ("beta2 = 0.9", "beta3 = 0.9", "[solver] there is no key 'beta3'; did you mean 'beta"),
        ('row = "FedAvg"', 'row = "FedAvrg"', "there is no row 'FedAvrg'; did you mean 'FedAvg'?"),
        ('row = "FedAvg"', 'row = "BLR"', "BLR is a row of the core only"),
        ('label = "pooled"', 'label = "IVONADMM"', "labels must be there and differ"),
        ("[model]\n", "[modle]\n", "there is no key 'modle'; did you mean 'model'?"),
        ("hidden = [5]", "hiden = [5]", "[model] there is no key 'hiden'; did you mean 'hidden'?"),
        ("hidden = [5]", "hidden = [0]", "hidden must be at least 1"),
        ('name = "MLP"', 'name = "MPL"', "[model] there is no network 'MPL'; did you mean 'MLP'?"),
        ('split = "two_dirichlet"', 'split = "dirichlet"', "there is no split 'dirichlet'; did you mean 'two_dir"),
        (
            "temperature = 0.1",
            "temprature = 0.1",
            "[training] there is no key 'temprature'; did you mean 'temperature'?",
        ),
        ("temperature = 0.1", 'temperature = "hot"', "[training] temperature must be"),
        ("report = [2, 4]", "report = [2, 5]", "round 5 is not scored within 4 rounds"),
        ("seeds = [3, 1]", "seeds = [3, 3]", "seeds must hold different numbers"),
        ("seeds = [3, 1]", "seeds = 3", "seeds must be a list of integers"),
        ('[[method]]\nrow = "FedAvg"', "[[method]]\n", "[method 2] row is missing; there is IVONADMM, IVONPVI"),
        ('row = "FedAvg"', 'row = "FedAvg"\nrho = 1.0', "[method 2] FedAvg has no rho; it has shares."),
        ('row = "FedAvg"', 'row = "FedLap"\nrho = 1.0', "[method 2] FedLap has no rho; it has gamma."),
        ('row = "FedAvg"', 'row = "FedLap"\ngamma = "row"', "gamma must be a number in (0, 1], or 'rows' for N_k/N"),
        ("gamma = 0.1", "gamma = [0.1, 0.2]", "several values of gamma are written as grid = { gamma = [0.1, 0.2] }"),
        ("pooled = true", 'pooled = "yes"', "[method 2] pooled must be true or false, got 'yes'."),
        ('label = "pooled"', "label = 3", "[method 2] label must be a text, got 3."),
        ("ensemble = 2", 'batched = "x"', "[training] batched must be true or false, got 'x'."),
        ("ensemble = 2", "device = 0", "[training] device must be a text, got 0."),
        ('name = "MLP"\n', "", "[model] name is missing; there is MLP, ZenkeCNN"),
        ('name = "MLP"', 'name = "AcarCNN"', "[model] there is no key 'hidden'; there is none."),
        ("train = 60", "train = 5000", "exceed the 1797 digits"),
        ("version = 1", "version = ", "is not TOML"),
        ("version = 1", "version = true", "version must be 1, got True"),
        ("rho = 0.7", "rho = 0.7\nlocal = true", "[method 1] local needs a row without duals, such as FedAvg; IVON"),
        (
            'row = "FedAvg"\nlabel = "pooled"',
            'row = "FedLap"\ngrid = { gamma = [0.5] }\n[[method]]\nrow = "FedAvg"\nlabel = "FedLap gamma=0.5"',
            "labels must be there and differ",
        ),
        ('label = "pooled"', 'label = ""', "labels must be there and differ"),
        ("train = 60", 'train = 60\nscale = "row"', "[data] there is no scale 'row'; did you mean 'raw'?"),
        ("train = 60", "train = 60\nscale = 0.0", "[data] scale must be > 0, got 0.0"),
        ("train = 60", "train = 60\nsize = 14", "[data] size must be 8 for the digits, got 14"),
        ("beta2 = 0.9", 'beta2 = 0.9, debias = "no"', "[solver] debias must be true or false, got 'no'"),
        ("beta2 = 0.9", 'beta2 = 0.9, clip_radius = "x"', "[solver] clip_radius must be a number, got 'x'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(bayesadmm, file, tmp_path, old, new, message):
    refused(bayesadmm, file, tmp_path, old, new, message)


def refused(bayesadmm, file, tmp_path, old, new, message):
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    code, out, err = bayesadmm("experiment", file, "--out", tmp_path / "out", "--no-progress")
    assert code == 2
    assert message in err
    assert (out, len(err.splitlines())) == ("", 1)
    assert not (tmp_path / "out").exists()


def test_what_is_no_experiment_file_is_refused_by_name(bayesadmm, file, tmp_path):
    code, _, err = bayesadmm("experiment", tmp_path)
    assert (code, err) == (2, f"bayesadmm experiment: {str(tmp_path)!r} is a folder, and not an experiment file.\n")
    plain = file.rename(tmp_path / "small")
    code, _, err = bayesadmm("experiment", plain, "--no-progress")
    assert code == 2
    assert f"{str(plain)!r} has no ending to leave out: name the folder of the results by --out." in err
    assert bayesadmm("experiment", plain, "--out", tmp_path / "out", "--no-progress")[0] == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_done(bayesadmm, file, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o555)
    for folder in ("closed", "closed/inside"):
        code, out, err = bayesadmm("experiment", file, "--out", tmp_path / folder)
        assert (code, out) == (2, "")
        assert "is not a folder that can be written to" in err


def test_a_folder_of_another_experiment_is_left_alone(bayesadmm, file, tmp_path):
    assert bayesadmm("experiment", file, "--out", tmp_path / "out", "--no-progress")[0] == 0
    before = (tmp_path / "out" / "rounds.csv").read_bytes()
    file.write_text(TEXT.replace("gamma = 0.1", "gamma = 0.2"), encoding="utf-8")
    code, _, err = bayesadmm("experiment", file, "--out", tmp_path / "out", "--no-progress")
    assert code == 2
    assert "holds another experiment: its methods differs" in err
    assert (tmp_path / "out" / "rounds.csv").read_bytes() == before
    assert bayesadmm("experiment", tmp_path / "none.toml", "--no-progress")[0] == 2


def test_a_run_that_was_refused_has_no_claim_on_its_folder(bayesadmm, file, tmp_path):
    """What is corrected in the file may then run; a folder with results stays (the test above)."""
    file.write_text(TEXT.replace("ensemble = 2", 'ensemble = 2\ndevice = "cud"'), encoding="utf-8")
    code, _, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 2
    assert "device='cud' cannot be used here" in err
    file.write_text(TEXT, encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0


def test_a_folder_on_other_data_is_left_alone(bayesadmm, file, tmp_path, monkeypatch):
    """Trials are files without the rows that they were scored on."""
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    (X, y), test = load = Split.load(Experiment.read(file).data)
    monkeypatch.setattr(Split, "load", lambda _: load)
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0  # the same rows: it goes on
    monkeypatch.setattr(Split, "load", lambda _: ((1.0 - X, y), test))
    code, _, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 2
    assert "the contents of its data files differ" in err


def test_a_folder_that_does_not_say_its_rows_is_left_alone(bayesadmm, file, tmp_path):
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    path = tmp_path / "small" / "experiment.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    del known["rows"]
    path.write_text(json.dumps(known), encoding="utf-8")
    code, _, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 2
    assert "the contents of its data files differ" in err
    path.unlink()  # trials of whatever experiment
    code, _, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 2
    assert "has results but not the experiment.json that says of what" in err
    assert not path.exists()


HOLD = """
import sys, time
from pathlib import Path
from bayesadmm_np.cli._experiment_file import Experiment
from bayesadmm_np.cli._experiment_run import Bench
with Bench(Experiment.read(sys.argv[1]), Path(sys.argv[2])).claimed():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_second_process_is_refused_until_the_first_is_gone(bayesadmm, file, tmp_path):
    """Also one that is killed: what refuses is the process that is there, and not a file that it left."""
    folder = tmp_path / "out"
    arguments = [sys.executable, "-c", HOLD, str(file), str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            before = sorted(folder.rglob("*"))
            code, out, err = bayesadmm("experiment", file, "--out", folder, "--no-progress")
            assert (code, out) == (2, "")
            assert err == (
                f"bayesadmm experiment: {folder} is in use by another process; "
                "wait until it is done, or choose another folder.\n"
            )
            assert sorted(folder.rglob("*")) == before
        finally:
            holder.kill()
    assert (folder / ".lock").exists()
    assert bayesadmm("experiment", file, "--out", folder, "--no-progress")[0] == 0
    assert bayesadmm("experiment", file, "--out", folder, "--no-progress")[0] == 0  # the first one let it go


def test_what_a_killed_command_left_half_written_is_removed_from_its_own_folder_only(bayesadmm, file, tmp_path):
    left = tmp_path / "small" / "checkpoints" / "tmp0.npz.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half of it")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    assert not left.exists()
    left.write_bytes(b"half of it")
    file.write_text(TEXT.replace("gamma = 0.1", "gamma = 0.2"), encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 2
    assert left.exists()


def test_a_method_looks_the_same_in_every_plot():
    """Its own colour also where others are missing; the twin: all lines of one plot differ."""
    fewer, more = ["FedAvg", "FedDyn", "IVONADMM"], ["pooled", "FedAvg", "FedProx", "FedDyn", "IVONADMM"]
    looks = dict(zip(more, plots.places(more), strict=True))
    assert plots.places(fewer) == [looks[row] for row in fewer]
    many = ["FedAvg a=1", "FedAvg a=2", "pooled", "local", *plots.ROWS[1:]]
    assert plots.places(many)[0] == 0
    assert len(set(plots.places(many))) == len(many)


def test_only_an_archive_is_refused_with_the_advice_to_delete_it():
    words = r"^'a.npz': file is of another run. Delete it, and X begins anew.$"
    with pytest.raises(ValueError, match=words), module.going_on("X", Path("a.npz")):
        raise ArchiveError("file is of another run.", "resume='b'")
    with pytest.raises(ValueError, match=r"^resume= is no archive$"), module.going_on("X", Path("a.npz")):
        raise ValueError("resume= is no archive")


def test_a_damaged_checkpoint_is_named_with_what_to_do(bayesadmm, file, tmp_path):
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    path = tmp_path / "small" / "checkpoints" / "00_seed3.npz"
    with np.load(path) as whole:
        mean = whole["mean"]
    path.write_bytes(path.read_bytes()[:10_000])
    code, out, err = bayesadmm("experiment", file, "--no-progress")
    assert (code, out) == (2, "")
    assert err.startswith(f"bayesadmm experiment: {str(path)!r}: file must be a whole bayesadmm archive")
    assert err.endswith(". Delete it, and IVONADMM, seed 3 begins anew.\n")
    path.unlink()
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    with np.load(path) as whole:
        np.testing.assert_array_equal(whole["mean"], mean)


def noted(lines):
    return [line for line in lines.splitlines() if line.startswith("note: ")]


def test_a_warning_is_a_note_of_its_run(bayesadmm, file, tmp_path, interrupted):
    """One line, once, also when the command is stopped and goes on; and no source line of the package."""
    file.write_text(TEXT.replace("beta2 = 0.9", "beta2 = 0.99999").replace("[3, 1]", "[3]"), encoding="utf-8")
    interrupted(1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = bayesadmm("experiment", file)
        assert code == 130
        (line,) = noted(err)
        assert line.startswith("note: IVONADMM, seed 3: the Hessian estimate has moved")
        assert ".py" not in err
        code, _, err = bayesadmm("experiment", file)
    assert (code, noted(err)) == (0, [])
    results = json.loads((tmp_path / "small" / "results.json").read_text(encoding="utf-8"))
    assert results["notes"] == [line.removeprefix("note: ")]
    curves = (tmp_path / "small" / "curves.svg").read_text(encoding="utf-8")
    assert "1 seed" in curves
    assert "1 seeds" not in curves


def test_every_run_has_its_own_notes(file, tmp_path):
    said = []
    bench = module.Bench(Experiment.read(file), tmp_path / "out", say=said.append)
    with warnings.catch_warnings(), bench.claimed():
        warnings.simplefilter("default")
        for name in ("a, seed 0", "b, seed 0", "a, seed 0"):
            with bench.noting(name):
                for _ in range(2):
                    warnings.warn("the same\n  words", stacklevel=1)
    assert said == bench.notes == ["a, seed 0: the same words", "b, seed 0: the same words"]


def test_files_of_heat_maps_differ_where_only_signs_or_case_do():
    stems = []
    for label in ("a/b", "a:b", "A b", "a_b_2", "ab"):
        stems.append(plots.new_stem(label, stems))
    assert stems == ["heatmap_a_b", "heatmap_a_b_2", "heatmap_A_b_3", "heatmap_a_b_2_2", "heatmap_ab"]


def curve(label, rounds, seed=0, first=0.1):
    """One run of results.json, whose scores move by 0.01 a round."""
    scores = [first + 0.01 * j for j in range(rounds)]
    curves = {"round": [*range(1, rounds + 1)], "accuracy": scores, "nll": scores}
    return {"method": label, "seed": seed, "rounds": rounds, "curves": curves}


def drawn(runs, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots.style, "save", lambda figure, *_: figures.append(figure) or [])
    plots.draw_curves("", plots.curves_of(runs), tmp_path)
    return figures[0]


def test_a_curve_that_ends_early_says_so(monkeypatch, tmp_path):
    """In the legend, and by a ✗ at its last round; the twin has all its rounds and none of it."""
    runs = [curve("FedAvg", 9), curve("FedAvg", 9, 1), curve("IVONADMM rho=0.5", 4), curve("IVONADMM rho=0.5", 9, 1)]
    figure = drawn(runs, monkeypatch, tmp_path)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["FedAvg", "IVON-ADMM, ρ = 0.5 (✗ 1 of 2 seeds, from round 5 on)"]
    for axes in figure.axes:
        (cross,) = [line for line in axes.lines if line.get_marker() == "x"]
        assert list(cross.get_xdata()) == [4]
    twin = drawn(runs[:2], monkeypatch, tmp_path)
    assert not [line for axes in twin.axes for line in axes.lines if line.get_marker() == "x"]
    assert [text.get_text() for text in twin.legends[0].get_texts()] == ["FedAvg"]


def test_a_method_may_take_gradient_descent(file):
    """By the solver's name; without it Adam is taken. A row refuses the solvers of others, and unknown fields."""

    def solver(text):
        file.write_text(text, encoding="utf-8")
        entry = Experiment.read(file).methods[1]
        return entry.local_work(entry.method())

    assert solver(TEXT + 'name = "sgd"\nmomentum = 0.5\n') == SGDSteps(epochs=1, momentum=0.5)
    assert solver(TEXT) == solver(TEXT + 'name = "adam"\n') == AdamSteps(epochs=1)
    with pytest.raises(ValueError, match="there is no solver of this method 'ivon'"):
        solver(TEXT + 'name = "ivon"\n')
    with pytest.raises(ValueError, match="beta1"):
        solver(TEXT + 'name = "sgd"\nbeta1 = 0.5\n')


def test_no_two_methods_have_one_colour(monkeypatch, tmp_path):
    """Not even forty; in 255ths at least one channel differs. The twin takes them in turns, as before."""

    def colours():
        figure = drawn([curve(f"method {j}", 3) for j in range(40)], monkeypatch, tmp_path)
        return {to_hex(line.get_color()) for line in figure.axes[0].lines}

    assert len(colours()) == 40
    monkeypatch.setattr(plots, "_colour", lambda place: plots.COLOURS[place % len(plots.COLOURS)])
    assert len(colours()) < 40


def test_the_first_rounds_do_not_set_the_axes(monkeypatch, tmp_path):
    """Ten rounds of which two rise from 0 to 0.5: the axes hold those after a fifth, and a margin."""
    run = curve("FedAvg", 10, first=0.5)
    run["curves"]["accuracy"][:2] = [0.0, 0.2]
    low, high = drawn([run], monkeypatch, tmp_path).axes[0].get_ylim()
    assert 50.0 < low < 52.0
    assert 59.0 < high < 60.0
    monkeypatch.setattr(plots, "SETTLED", 0.0)  # the twin: limits of all
    assert drawn([run], monkeypatch, tmp_path).axes[0].get_ylim()[0] < 0.0


def test_dollars_in_a_label_are_no_formula(tmp_path, monkeypatch):
    def draw():
        return plots.draw_curves(r"of $\foo$", plots.curves_of([curve(r"$\foo$", 1)]), tmp_path)

    assert draw() == ["curves.svg", "curves.png"]
    assert r"of $\foo$" in (tmp_path / "curves.svg").read_text(encoding="utf-8")
    monkeypatch.setattr(plots, "_plain", str)  # the twin
    with pytest.raises(ValueError, match="foo"):
        draw()


def test_a_run_that_fails_is_a_row(bayesadmm, file, tmp_path):
    file.write_text(TEXT.replace("epochs = 1", "epochs = 1\nlr = 1e9"), encoding="utf-8")
    code, out, err = bayesadmm("experiment", file, "--no-progress", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [run["status"] for run in found["runs"]] == ["ROUND_LIMIT", "ROUND_LIMIT", "DIVERGED", "DIVERGED"]
    row = found["table"][-1]
    assert (row["seeds_done"], row["seeds"], row["accuracy_mean"]) == (0, 2, None)


def test_without_torch_the_command_says_what_to_install(bayesadmm, file, monkeypatch):
    plain = importlib.import_module

    def absent(name, *package):
        if name != "bayesadmm_np.torch":
            return plain(name, *package)
        raise ImportError("bayesadmm_np.torch needs PyTorch: pip install 'bayesadmm-np[torch]'.")

    monkeypatch.setattr(importlib, "import_module", absent)
    code, _, err = bayesadmm("experiment", file)
    assert code == 2
    assert "pip install 'bayesadmm-np[torch]'" in err


# Rows ---------------------------------------------------------------------------------------------


def test_every_seed_trains_on_other_rows_and_tests_on_the_same():
    split = Split("digits", clients=3, train=200, test=40)
    (X, y), (X_test, _) = split.load()
    one, again, other = split.subset(len(y), 1), split.subset(len(y), 1), split.subset(len(y), 2)
    np.testing.assert_array_equal(one, again)
    assert len(set(one)) == len(set(other)) == 200
    # 200 of 1757 rows, drawn twice, have 23 ± 4 in common (hypergeometric); the first rows would have all 200
    assert len(set(one) & set(other)) < 23 + 6 * 4
    seen = {row.tobytes() for row in X_test}
    assert not any(row.tobytes() in seen for row in X)
    np.testing.assert_array_equal(Split("digits", clients=3).subset(5, 1), np.arange(5))  # all of them


@pytest.mark.parametrize(("scale", "largest"), [("unit", 1.0), ("raw", 16.0), (0.25, 0.25)])
def test_the_scale_is_the_largest_pixel(scale, largest):
    """Only the pixels differ: the split is a function of labels and seed. The digits' own pixels end at 16."""
    plain, scaled = Split("digits", clients=4, test=40), Split("digits", clients=4, test=40, scale=scale)
    for (X, y), (same, labels) in zip(plain.load(), scaled.load(), strict=True):
        np.testing.assert_allclose(same, largest * X, rtol=1e-7)
        np.testing.assert_array_equal(labels, y)
    assert scaled.load()[0][0].max() == largest


def test_raw_images_have_the_files_bytes(made_images, monkeypatch):
    """Red and blue are 255."""
    monkeypatch.setenv("BAYESADMM_DATA", str(made_images))
    (X, _), (X_test, _) = Split("cifar10", clients=2, scale="raw").load()
    assert set(np.unique(X)) == set(np.unique(X_test)) == {0.0, 255.0}


def test_too_many_rows_of_an_image_file_are_refused_by_name(made_images, monkeypatch):
    monkeypatch.setenv("BAYESADMM_DATA", str(made_images))
    with pytest.raises(ValueError, match=r"^\[data\] train must be at most 30, the rows of cifar10, got 31\.$"):
        Split("cifar10", clients=2, train=31).load()
    with pytest.raises(ValueError, match=r"^\[data\] test must be at most 10, the rows of cifar10, got 11\.$"):
        Split("cifar10", clients=2, test=11).load()


@pytest.fixture
def made_images(tmp_path):
    """CIFAR-10 in the published layout: 5 × 6 images to train on and 10 to test on, red above and blue below."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    image = np.zeros((3, 32, 32), np.uint8)
    image[0, :16], image[2, 16:] = 255, 255
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, count in [*((f"data_batch_{k}", 6) for k in range(1, 6)), ("test_batch", 10)]:
            content = b"".join(bytes([label]) + image.tobytes() for label in rng.permutation(10)[:count])
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


def test_colour_images_keep_their_colours_and_places(bayesadmm, file, made_images, monkeypatch):
    monkeypatch.setenv("BAYESADMM_DATA", str(made_images))
    text = TEXT.replace('"digits"', '"cifar10"').replace("train = 60\ntest = 40", "train = 20\nsize = 16")
    text = text.replace("rounds = 4\nreport = [2, 4]", "rounds = 1").replace('"two_dirichlet"', '"iid"')
    file.write_text(text, encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0  # the MLP takes 768 numbers
    plan = Experiment.read(file)
    (X, y), _ = plan.data.load()
    assert module._rows(plan, X, y).X.shape == (30, 768)
    file.write_text(text.replace('name = "MLP"\nhidden = [5]', 'name = "AcarCNN"'), encoding="utf-8")
    images = module._rows(Experiment.read(file), X, y).X
    assert images.shape == (30, 3, 32, 32)  # enlarged to what the network takes
    red, green, blue = images[0]
    assert (red[:16] == 1).all()
    assert (red[16:] == 0).all()
    assert (green == 0).all()
    assert (blue[16:] == 1).all()


FILES = Path(__file__).parents[2] / "benchmarks" / "experiments"
LESS = [
    *("rounds=1", "report=[1]", "seeds=[0]", "sweep.rounds=1", "data.clients=2", "data.train=12", "data.test=5"),
    *("training.device=cpu", "training.ensemble=2", "method.solver.epochs=1", "method.solver.batch_size=4"),
    *("method.grid={}", "method.FedLapFunc.server_steps=2"),
    *("method.IVONADMM.solver.lr=1e-3", "method.IVONADMM.solver.beta2=0.9"),
    "method.IVONADMM.solver.hess_init=1e3",  # or six images allow any weights
]
"""What makes an experiment for a GPU one for everywhere: few images, one round, one trial."""


@pytest.mark.parametrize("file", sorted(FILES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_file_that_is_kept_is_understood(file):
    """The settings of every method and grid, and a schedule of a rate that is as long as the run."""
    plan = Experiment.read(file)
    for entry in plan.expanded():
        solver = entry.local_work(entry.method())
        assert solver.schedule_rounds in (None, plan.rounds), entry.label
    if file.stem.startswith("raw"):
        assert plan.data.scale == "raw"


@pytest.mark.parametrize("network", ["acar", "zenke", "resnet20"])
def test_networks_of_images_run_by_their_files(bayesadmm, made_images, tmp_path, monkeypatch, network):
    monkeypatch.setenv("BAYESADMM_DATA", str(made_images))
    file = FILES / f"cifar10_{network}.toml"
    less = [part for change in LESS for part in ("--set", change)]
    code, _, err = bayesadmm("experiment", file, "--out", tmp_path / "out", "--no-progress", *less)
    assert code == 0, err
    rows = read(tmp_path / "out" / "table.csv")
    assert {row["method"].partition(",")[0] for row in rows} == {
        *("FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "FedLapFunc", "IVONADMM")
    }
    assert all(0 <= float(row["accuracy_mean"]) <= 1 for row in rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["rounds"], "--set wants KEY=VALUE, such as training.device=cpu, got 'rounds'"),
        (["training.=1"], "--set wants KEY=VALUE"),
        (["rounds.x=1"], "--set rounds.x=1: rounds is no table"),
        (["training.devise=cpu"], "did you mean 'device'"),
        (["method.rho=0.1", "method.pooled.gamma=3"], "FedAvg has no"),
        (["report=[1,"], "report must be a list of integers, got '[1,'"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(file, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Experiment.read(file, changes)


def test_a_change_is_of_every_method_or_of_the_one_that_is_named():
    plain = {"method": [{"row": "FedLap"}, {"row": "FedLap", "label": "FedLap 0.1"}]}
    found = changed(plain, ["method.solver.lr=0.5", "method.FedLap 0.1.gamma=0.2", "method.FedLap.solver.lr=1"])
    assert [table["solver"] for table in found["method"]] == [{"lr": 1}, {"lr": 0.5}]
    assert [table.get("gamma") for table in found["method"]] == [None, 0.2]
    assert plain == {"method": [{"row": "FedLap"}, {"row": "FedLap", "label": "FedLap 0.1"}]}
    with pytest.raises(ValueError, match=r"--set method.rho=1: method is no table"):
        changed({"method": 3}, ["method.rho=1"])
    assert changed({}, ["name=1\nrounds = 3"]) == {"name": "1\nrounds = 3"}  # one key, one value


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_file_for_a_gpu_says_how_to_do_without(bayesadmm, monkeypatch, tmp_path):
    monkeypatch.setenv("BAYESADMM_DATA", str(tmp_path))  # no images: it does not come to that
    code, _, err = bayesadmm("experiment", FILES / "cifar10_acar.toml", "--out", tmp_path / "out", "--no-progress")
    assert code == 2
    assert "device='cuda' cannot be used here" in err
    assert "--set training.device=cpu" in err


def test_changes_are_as_if_they_stood_in_the_file(bayesadmm, file, tmp_path):
    changes = ["rounds=2", "report=[2]", "training.ensemble=2", "method.solver.epochs=1", "method.pooled.label=one"]
    found = Experiment.read(file, changes)
    assert found.rounds == 2
    assert [entry.solver["epochs"] for entry in found.methods] == [1] * len(found.methods)
    assert "one" in [entry.label for entry in found.methods]
    assert Experiment.read(file).rounds == 4
    code, _, err = bayesadmm("experiment", file, "--out", tmp_path / "less", "--no-progress", "--set", "rounds=4")
    assert code == 0, err
    code, _, err = bayesadmm("experiment", file, "--out", tmp_path / "less", "--no-progress", "--set", "data.train=50")
    assert code == 2
    assert "another experiment" in err


# Sweeps -------------------------------------------------------------------------------------------

SWEEP = """
[sweep]
validation = 0.2
rounds = 3
budget = 4
"""
GRIDS = (
    TEXT.replace("gamma = 0.1\n", "")
    .replace("beta2 = 0.9 }\n", "beta2 = 0.9 }\ngrid = { gamma = [0.1, 1.0], prior_precision = [1.0, 0.1] }\n")
    .replace("pooled = true\n", 'pooled = true\ngrid = { "solver.lr" = [1e9, 1e-3, 1e-2] }\n')
)


@pytest.fixture
def swept(file):
    file.write_text(GRIDS + SWEEP, encoding="utf-8")
    return file


def test_a_sweep_tries_every_point_and_its_best_one_is_what_is_run(bayesadmm, swept, tmp_path):
    code, out, err = bayesadmm("experiment", swept, "--out", tmp_path / "swept", "--no-progress")
    assert code == 0, err
    trials = read(tmp_path / "swept" / "sweep.csv")
    assert [(t["method"], t["gamma"], t["prior_precision"], t["solver.lr"]) for t in trials] == [
        *(("IVONADMM", gamma, delta, "") for gamma in ("0.1", "1.0") for delta in ("1.0", "0.1")),
        *(("pooled", "", "", lr) for lr in ("1000000000.0", "0.001", "0.01")),
    ]
    assert [t["status"] for t in trials] == [*["ROUND_LIMIT"] * 4, "DIVERGED", *["ROUND_LIMIT"] * 2]
    assert [t["rounds"] for t in trials] == [*["3"] * 4, "0", *["3"] * 2]
    assert (trials[4]["validation_accuracy"], trials[4]["chosen"]) == ("nan", "no")
    best = {}
    for label in ("IVONADMM", "pooled"):
        own = [t for t in trials if t["method"] == label and t["status"] == "ROUND_LIMIT"]
        best[label] = max(own, key=lambda t: (float(t["validation_accuracy"]), -float(t["validation_nll"])))
        assert [t for t in trials if t["method"] == label and t["chosen"] == "yes"] == [best[label]]
        assert f"{label}: " in out
    results = json.loads((tmp_path / "swept" / "results.json").read_text(encoding="utf-8"))
    assert [t["chosen"] for t in results["sweep"]] == [t["chosen"] for t in trials]
    assert results["sweep"][4]["validation_nll"] is None

    # the same rounds as of a file in which the chosen values stand
    chosen = TEXT.replace(
        "gamma = 0.1", "gamma = {gamma}\nprior_precision = {prior_precision}".format(**best["IVONADMM"])
    )
    swept.write_text(chosen + f"lr = {best['pooled']['solver.lr']}\n", encoding="utf-8")
    assert bayesadmm("experiment", swept, "--out", tmp_path / "plain", "--no-progress")[0] == 0
    same = [(tmp_path / folder / "rounds.csv").read_bytes() for folder in ("swept", "plain")]
    assert same[0] == same[1]
    assert not (tmp_path / "plain" / "sweep.csv").exists()


def test_a_trial_is_scored_on_rows_held_out_of_those_to_train_on(bayesadmm, swept, monkeypatch):
    plain, calls = module.run, []

    def spy(method, clients, *arguments, **options):
        calls.append((clients, options["evaluate"], options["seed"]))
        return plain(method, clients, *arguments, **options)

    monkeypatch.setattr(module, "run", spy)
    assert bayesadmm("experiment", swept, "--no-progress")[0] == 0
    plan = Experiment.read(swept)
    (X, y), (X_test, _) = plan.data.load()

    def images(*parts):
        return sorted(row.tobytes() for part in parts for row in part.X.numpy())

    drawn = images(tensors(*(array[plan.data.subset(len(y), 100)] for array in (X, y))))
    assert len({seed for _, _, seed in calls[:7]}) == 1
    for clients, validation, seed in calls[:7]:
        assert (seed, len(validation), sum(map(len, clients))) == (100, 12, 48)
        assert images(*clients, validation) == drawn  # each of the 60 rows once, here or there
    for clients, test, seed in calls[7:]:
        assert seed in (3, 1)
        assert sum(map(len, clients)) == 60
        assert images(test) == images(tensors(X_test, y[:40]))


def test_the_choice_does_not_depend_on_the_test_rows(bayesadmm, swept, tmp_path, monkeypatch):
    assert bayesadmm("experiment", swept, "--out", tmp_path / "a", "--no-progress")[0] == 0
    plain = Split.load

    def other_test_rows(self):
        train, (X_test, y_test) = plain(self)
        return train, (1.0 - X_test, (y_test + 1) % 10)

    monkeypatch.setattr(Split, "load", other_test_rows)
    assert bayesadmm("experiment", swept, "--out", tmp_path / "b", "--no-progress")[0] == 0
    assert (tmp_path / "a" / "sweep.csv").read_bytes() == (tmp_path / "b" / "sweep.csv").read_bytes()
    assert (tmp_path / "a" / "rounds.csv").read_bytes() != (tmp_path / "b" / "rounds.csv").read_bytes()


def trial(accuracy, nll, method=0):
    return module.Trial(method, "x", {}, "ROUND_LIMIT", "", 3, accuracy, nll)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.5, 1.0), (0.6, 9.0), (0.4, 0.1)], 1),
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.9)], 1),
        ([(None, None), (0.0, 9.0)], 1),
        ([(0.5, float("inf")), (0.5, 100.0), (0.5, float("nan"))], 1),
        ([(None, None), (None, None)], 0),
    ],
)
def test_the_best_trial_is_the_most_accurate_then_of_the_lower_nll(scores, best):
    trials = [trial(*pair) for pair in scores]
    assert module.best_trial([trial(0.9, 0.1, method=1), *trials], 0) is trials[best]


def test_when_all_trials_fail_the_first_is_kept_and_it_is_said(bayesadmm, file):
    file.write_text(TEXT.replace("epochs = 1", "epochs = 1\n[method.grid]\nsolver.lr = [1e9, 1e10]") + SWEEP, "utf-8")
    code, out, _ = bayesadmm("experiment", file, "--no-progress")
    assert code == 0
    assert "pooled: solver.lr=1e+09; ✗ all 2 trials failed, the first is kept: round 1: diverged" in out
    assert "✗ pooled, seed 3: round 1: diverged" in out


def test_progress_counts_the_trials_too(swept, tmp_path):
    seen = []
    plan = Experiment.read(swept)
    bench = module.Bench(plan, tmp_path / "out", lambda what, done, accuracy: seen.append((what, done)))
    with bench.claimed():
        bench.final(module.final_methods(plan, bench.sweep()))
    numbers = [done for _, done in seen]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == module.total_rounds(plan) == 7 * 3 + 4 * 4
    assert seen[0] == ("trial of IVONADMM gamma=0.1 prior_precision=1", 1)
    assert seen[-1] == ("pooled, seed 1", 37)
    assert len(seen) == 37 - 3  # the trial that diverged


@pytest.mark.parametrize("stop", [5, 20])  # in the second trial, and in the first run after the 18 rounds of trials
def test_an_interrupted_sweep_goes_on_to_the_same_bytes(bayesadmm, swept, tmp_path, interrupted, stop):
    assert bayesadmm("experiment", swept, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    rounds = interrupted(stop)
    assert bayesadmm("experiment", swept, "--out", tmp_path / "cut", "--no-progress")[0] == 130
    assert not (tmp_path / "cut" / "rounds.csv").exists()
    assert bayesadmm("experiment", swept, "--out", tmp_path / "cut", "--no-progress")[0] == 0
    assert len(rounds) == 6 * 3 + 4 * 4  # nothing was done twice
    same_bytes(tmp_path, "sweep.csv")
    assert not list((tmp_path / "cut" / "checkpoints").glob("sweep*.npz"))  # large, and of no more use


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_sweep_goes_on_to_the_same_bytes(bayesadmm, swept, tmp_path):
    assert bayesadmm("experiment", swept, "--out", tmp_path / "whole", "--no-progress")[0] == 0
    kill_when(tmp_path / "cut" / "checkpoints" / "sweep_00_001.npz", swept, tmp_path / "cut")
    assert not (tmp_path / "cut" / "sweep.csv").exists()
    assert bayesadmm("experiment", swept, "--out", tmp_path / "cut", "--no-progress")[0] == 0
    same_bytes(tmp_path, "sweep.csv")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("budget = 4", "budget = 3", "[sweep] budget is 3 trials for every method; the grid of IVONADMM has 4 points."),
        ("budget = 4", "bugdet = 4", "[sweep] there is no key 'bugdet'; did you mean 'budget'?"),
        ("budget = 4", "", "[sweep] budget is missing"),
        ("budget = 4", "budget = 4\nseed = 3", "[sweep] seed must not be one of seeds, got 3"),
        ("validation = 0.2", "validation = 1.0", "[sweep] validation must lie in (0, 1), got 1.0"),
        ("validation = 0.2", "validation = 0.99", "[sweep] validation leaves 1 of 60 rows to 3 clients"),
        ("gamma = [0.1, 1.0]", "gama = [0.1, 1.0]", "[method 1] grid: there is no key 'gama'; did you mean 'gamma'?"),
        ("gamma = [0.1, 1.0]", "gamma = [0.1, -1.0]", "[method 1] gamma must be > 0"),
        ("gamma = [0.1, 1.0]", "gamma = 0.1", "[method 1] grid gamma must be a list of different values, got 0.1"),
        ("gamma = [0.1, 1.0]", "gamma = []", "[method 1] grid gamma must be a list of different values"),
        ("gamma = [0.1, 1.0]", "gamma = [0.1, 0.1]", "[method 1] grid gamma must be a list of different values"),
        (
            "gamma = [0.1, 1.0]",
            "rho = [0.1, 1.0]",
            "[method 1] rho stands in the method and in its grid; write it once",
        ),
        ("prior_precision = [1.0, 0.1]", "prior_precision = [0.0]", "[method 1] prior_precision must be > 0"),
        ('"solver.lr"', '"solver.rl"', "[method 2] [solver] there is no key 'rl'"),
        ('"solver.lr"', "solver.epochs", "[method 2] solver.epochs stands in the method and in its grid"),
        ("solver = {", "solver = 3 # {", "[method 1] solver must be a table"),
        ("pooled = true", "pooled = true\nlocal = true", "[method 2] pooled and local exclude each other"),
    ],
)
def test_a_sweep_that_is_not_understood_is_refused_by_name(bayesadmm, swept, tmp_path, old, new, message):
    refused(bayesadmm, swept, tmp_path, old, new, message)


# Clients alone, grids, and what a round costs -----------------------------------------------------


def test_clients_alone_are_the_mean_of_runs_with_one_client(bayesadmm, file, tmp_path):
    file.write_text(TEXT.replace('label = "pooled"\npooled = true', 'label = "alone"\nlocal = true'), encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    mine = [r for r in read(tmp_path / "small" / "rounds.csv") if (r["method"], r["seed"]) == ("alone", "1")]
    clients, test = by_hand(Experiment.read(file), 1)
    results = []
    for client in clients:
        torch.manual_seed(1)
        options = {"solver": AdamSteps(epochs=1), "temperature": 0.1, "seed": 1, "evaluate": test}
        results.append(module.run(methods.FedAvg(), [client], MLP((64, 5, 10)), rounds=4, **options))
    for k, row in enumerate(mine):
        for name in ("accuracy", "nll", "ece", "brier"):
            scores = [getattr(result.history[k].at_mean, name) for result in results]
            assert float(row[f"at_mean_{name}"]) == np.mean(scores)
        assert (row["bytes_down"], row["bytes_up"]) == ("0", "0")
    # together they learn something else
    file.write_text(TEXT.replace('label = "pooled"\npooled = true', 'label = "alone"'), encoding="utf-8")
    assert bayesadmm("experiment", file, "--out", tmp_path / "together", "--no-progress")[0] == 0
    other = [r for r in read(tmp_path / "together" / "rounds.csv") if (r["method"], r["seed"]) == ("alone", "1")]
    assert [r["at_mean_nll"] for r in other] != [r["at_mean_nll"] for r in mine]
    assert all(int(r["bytes_up"]) > 0 for r in other)


def test_a_client_that_fails_alone_ends_the_row(bayesadmm, file):
    text = TEXT.replace('label = "pooled"\npooled = true', 'label = "alone"\nlocal = true')
    file.write_text(text.replace("epochs = 1", "epochs = 1\nlr = 1e9"), encoding="utf-8")
    code, out, _ = bayesadmm("experiment", file, "--no-progress")
    assert code == 0
    assert "✗ alone, seed 1: client 0 alone: round 1: diverged" in out


def test_without_a_sweep_a_grid_of_two_keys_is_a_heat_map(bayesadmm, file, tmp_path):
    file.write_text(
        TEXT.replace("pooled = true", 'grid = { "solver.lr" = [1e-2, 1e9], "solver.batch_size" = [8, 16, 32] }'),
        encoding="utf-8",
    )
    code, out, err = bayesadmm("experiment", file, "--no-progress")
    assert code == 0, err
    folder = tmp_path / "small"
    table = [row for row in read(folder / "table.csv") if row["round"] == "4"]
    points = [f"solver.lr={lr} solver.batch_size={size}" for lr in ("0.01", "1e+09") for size in (8, 16, 32)]
    assert [row["method"] for row in table] == ["IVONADMM", *(f"pooled {point}" for point in points)]
    drawn = (folder / "heatmap_pooled.svg").read_text(encoding="utf-8")
    texts = [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawn)]
    for row in table[1:4]:
        assert f"{100 * float(row['accuracy_mean']):.1f}" in texts
        assert f"{float(row['nll_mean']):.3f}" in texts
    assert texts.count("✗") == 2 * 3  # in both panels
    assert texts.index("0.01") < texts.index("1e+09")
    assert (folder / "heatmap_pooled.png").exists()
    curves = (folder / "curves.svg").read_text(encoding="utf-8")
    assert "IVON-ADMM" in curves
    assert "solver.lr" not in curves  # it has its own figure
    assert not (folder / "sweep.csv").exists()
    assert f"pooled {points[0]}" in out


def test_a_cell_of_a_heat_map_is_at_its_values(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots.style, "save", lambda figure, folder, name: figures.append(figure) or [])
    rows = [
        {"accuracy_mean": (10 * i + j) / 100, "nll_mean": 1.0 + 10 * i + j, "seeds_done": 2, "seeds": 2}
        for i in range(2)
        for j in range(3)
    ]
    rows[1] |= {"accuracy_mean": float("nan"), "nll_mean": float("nan"), "seeds_done": 0}
    rows[5] |= {"nll_mean": float("inf"), "seeds_done": 1}
    plots.draw_heatmap("x", {"rho": (0.5, 1.0), "temperature": (0.1, 1.0, 10.0)}, rows, "", tmp_path)
    expected = (
        {(0, 0): "0.0", (1, 0): "✗", (2, 0): "2.0", (0, 1): "10.0", (1, 1): "11.0", (2, 1): "12.0"},
        {(0, 0): "1.000", (1, 0): "✗", (2, 0): "3.000", (0, 1): "11.000", (1, 1): "12.000", (2, 1): "∞"},
    )
    for axes, cells in zip(figures[0].axes, expected, strict=True):
        texts = {text.get_position(): text.get_text() for text in axes.texts}
        assert texts.pop((2, 1.32)) == "1 of 2 seeds"
        assert texts == cells
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1", "10"]  # to the right
        assert [label.get_text() for label in axes.get_yticklabels()] == ["0.5", "1"]  # downwards
        assert (axes.get_xlabel(), axes.get_ylabel(), axes.yaxis_inverted()) == ("τ", "ρ", True)
        # darker is better, of the cells that have a number
        known = [(k, patch) for k, patch in enumerate(axes.patches) if np.isfinite(float(texts_of(cells, k)))]
        darkest = min(known, key=lambda pair: sum(pair[1].get_facecolor()[:3]))[0]
        assert texts_of(cells, darkest) == ("12.0" if axes is figures[0].axes[0] else "1.000")


def texts_of(cells, k):
    """The number in cell k, the cells of a row first."""
    return {"✗": "nan", "∞": "inf"}.get(cells[k % 3, k // 3], cells[k % 3, k // 3])


def test_without_a_sweep_a_grid_of_one_key_is_rows(bayesadmm, file, tmp_path):
    file.write_text(TEXT.replace("gamma = 0.1\n", "grid = { gamma = [0.1, 0.2] }\n"), encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    labels = {row["method"] for row in read(tmp_path / "small" / "table.csv")}
    assert labels == {"IVONADMM gamma=0.1", "IVONADMM gamma=0.2", "pooled"}
    assert not list((tmp_path / "small").glob("heatmap*"))


def test_the_table_says_what_a_round_costs(bayesadmm, file, tmp_path):
    # an infinite radius is the default, and none of JSON's numbers
    file.write_text(TEXT.replace("beta2 = 0.9 }", "beta2 = 0.9, clip_radius = inf }"), encoding="utf-8")
    assert bayesadmm("experiment", file, "--no-progress")[0] == 0
    results = json.loads((tmp_path / "small" / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert results["experiment"]["methods"][0]["solver"]["clip_radius"] is None
    numbers = 64 * 5 + 5 + 5 * 10 + 10
    # mean and precision in single precision, to and from three clients; the pooled one is a client with a mean alone
    expected = {"IVONADMM": 3 * 2 * 2 * 4 * numbers, "pooled": 2 * 4 * numbers}
    for row in results["table"]:
        assert row["bytes_round"] == expected[row["method"]]
        assert row["seconds_round"] > 0
    for run in results["runs"]:
        assert run["bytes_down_round"] == run["bytes_up_round"] == expected[run["method"]] / 2
        assert run["seconds_round"] == pytest.approx(run["seconds"] / 4)
    assert "seconds" not in ",".join(read(tmp_path / "small" / "rounds.csv")[0])
