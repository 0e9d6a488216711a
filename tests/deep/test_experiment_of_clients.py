"""Experiment files with models of clients' own, images of another kind, and the files of the FedIvon tables."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("matplotlib", reason="the command line needs the extra `cli`")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.cli import _experiment_file as module  # noqa: E402
from bayesadmm_np.cli._experiment_file import DRIFT, Experiment, Split  # noqa: E402
from bayesadmm_np.data import Dataset  # noqa: E402
from bayesadmm_np.torch import MLP, AdamSteps, FedLaplace, IVONSteps, Rows, auroc, run, score  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = Path(__file__).parents[2] / "benchmarks" / "experiments"
TEXT = """
version = 1
rounds = 2
report = [2]
seeds = [3]
[data]
name = "fashion"
clients = 4
train = 200
split = "concept_drift"
outside = "mnist"
[model]
name = "MLP"
hidden = [6]
activation = "relu"
[training]
ensemble = 3
personal = true
[[method]]
row = "FedAvg"
label = "Local"
local = true
solver = { epochs = 2, lr = 0.01 }
[[method]]
row = "FedLaplace"
solver = { epochs = 2, lr = 0.01 }
[[method]]
row = "PFedVEM"
solver = { epochs = 2, head_epochs = 1, samples = 1 }
"""


@pytest.fixture
def images(monkeypatch):
    """Ten blobs of 4 × 4 pixels under either name; those of "mnist" are brighter."""

    def load(name, shift):
        rng = np.random.default_rng(0)
        y, y_test = rng.permutation(np.arange(300) % 10), np.arange(100) % 10
        centres = rng.random((10, 16))
        X, X_test = (
            np.clip(centres[of] + 0.1 * rng.standard_normal((len(of), 16)) + shift, 0, 1) for of in (y, y_test)
        )
        return Dataset(X, y, X_test, y_test, 10, name)

    for name, shift in (("fashion", 0.0), ("mnist", 0.5)):
        monkeypatch.setitem(module.LOADERS, name, lambda name=name, shift=shift, **_: load(name, shift))


def test_what_is_scored_last(bayesadmm, images, tmp_path):
    file = tmp_path / "drift.toml"
    file.write_text(TEXT, encoding="utf-8")
    for _ in range(2):  # a second command goes on from what is done, and scores the same
        code, _, err = bayesadmm("experiment", file, "--no-progress")
        assert code == 0, err
        runs = json.loads((tmp_path / "drift" / "results.json").read_text(encoding="utf-8"))["runs"]
        local, laplace, vem = (one["last"] for one in runs)
        assert local.keys() == {"personal_at_mean"}
        both = {"at_mean", "ensemble", "personal_at_mean", "personal_ensemble"}
        assert laplace.keys() == vem.keys() == both

    plan = Experiment.read(file)  # by hand
    (X, y), (X_test, y_test) = plan.data.load()
    rows = plan.data.subset(len(y), 3)
    parts = plan.data.parts(y[rows], 3)
    target = {c: t for t, pair in enumerate(DRIFT) for c in pair}

    def tensors(X, y):
        return Rows(torch.tensor(X, dtype=torch.float32), torch.tensor([target[c] for c in y]))

    clients, tests = [tensors(X[rows[part]], y[rows[part]]) for part in parts], tensors(X_test, y_test)
    torch.manual_seed(3)
    model = MLP((16, 6, 5), "relu")
    result = run(FedLaplace(), clients, model, rounds=2, solver=AdamSteps(epochs=2, lr=0.01), seed=3)
    own = []
    for posterior, part in zip(result.personal(3), parts, strict=True):
        mask = np.isin(y_test, y[rows[part]])
        assert mask.sum() == 50  # one of the two classes of each target
        own.append(score(posterior.predict_proba(tests.X[mask], 0).log(), tests.y[mask]))
    assert laplace["personal_at_mean"]["nll"] == pytest.approx(np.mean([one.nll for one in own]), rel=1e-5)
    other = torch.tensor(plan.data.others(), dtype=torch.float32)
    entropy = auroc(result.posterior.predict_proba(tests.X, 0), result.posterior.predict_proba(other, 0))
    assert laplace["at_mean"]["auroc"] == pytest.approx(entropy, abs=1e-4)
    assert sum(laplace["ensemble"]["reliability"]["rows"]) == 100


def test_drift_is_made_for_fashion():
    with pytest.raises(ValueError, match="concept_drift is made for fashion, got mnist"):
        Split("mnist", 4, "concept_drift")


@pytest.mark.parametrize("stem", ["mnist", "fashion", "cifar10", "skew_cifar10", "skew_mnist", "drift_fashion"])
def test_the_files_of_the_tables_parse_and_start(stem):
    """Every method of a file takes its first step, on two rows a client."""
    plan = Experiment.read(FILES / f"fedivon_{stem}.toml")
    model = plan.network(3072, plan.data.classes)
    X = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    clients = [Rows(X[:2], torch.tensor([0, 1])), Rows(X[2:], torch.tensor([2, 3]))]
    for entry in plan.methods:
        method = entry.method()
        solver = entry.local_work(method)
        result = run(method, clients, model, entry.prior_precision or plan.training.prior_precision, 1, solver=solver)
        assert bool(torch.isfinite(result.mean).all()), entry.label
        if isinstance(solver, IVONSteps):
            assert solver.at(plan.rounds).lr < 0.2 * solver.lr
