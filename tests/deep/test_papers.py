"""benchmarks/papers: experiment files give the numbers that are kept, and those of `run` itself."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.data import Dataset  # noqa: E402
from bayesadmm_np.torch import IVONADMM, MLP, AdamSteps, FedLaplace, IVONSteps, Rows, run, score  # noqa: E402
from oracles import papers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
FILES = ROOT / "benchmarks" / "experiments"
read = papers.files.Experiment.read
SMALL = Path(__file__).parent / "papers" / "small.toml"


def differing(old, new, at=""):
    """The places of JSON at which numbers differ by more than sums in another order do, or anything else at all.

    Four rounds of float32 multiply a rounding of 1e-7 by less than a thousand; of 40 test rows one may change sides.
    """
    if isinstance(old, dict):
        return [place for key in old for place in differing(old[key], new.get(key, "none"), f"{at}.{key}")]
    if isinstance(old, list):
        pairs = enumerate(zip(old, new, strict=True))
        return [place for k, (one, other) in pairs for place in differing(one, other, f"{at}[{k}]")]
    if isinstance(old, float) and isinstance(new, float):
        is_share = any(name in at for name in ("accuracy", "ece", "rows"))
        return [] if new == pytest.approx(old, rel=1e-3, abs=0.05 if is_share else 1e-6) else [f"{at}: {old} {new}"]
    return [] if new == old or at.endswith(".message") else [f"{at}: {old} {new}"]


def test_a_small_file_gives_the_numbers_that_are_kept(tmp_path):
    """A sweep, rows together and alone, one that diverges, and models of clients' own."""
    kept = json.loads(SMALL.with_suffix(".json").read_text(encoding="utf-8"))
    papers.main([str(SMALL), "--out", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert not differing(kept, found)
    assert sum(trial["chosen"] == "yes" for trial in found["sweep"]) == len(found["sweep"]) - 5
    found["table"][0]["nll_mean"] *= 1.01  # the broken twin
    assert len(differing(kept, found)) == 1
    with pytest.raises(SystemExit, match="another experiment"):
        papers.main([str(SMALL), "--out", str(tmp_path / "out"), "--set", "training.temperature=0.2"])


def test_a_committed_result_is_found_again(tmp_path):
    """A cell of the tables: two rounds of FedAvg with one epoch on Fashion-MNIST with raw pixels."""
    if not Path(os.environ.get("BAYESADMM_DATA", ""), "fashion_mnist.npz").is_file():
        pytest.skip("BAYESADMM_DATA names no folder with fashion_mnist.npz")
    plan = read(FILES / "raw_fashion_homogeneous.toml", ["rounds=2", "report=[2]", "seeds=[62]"])
    plan = replace(plan, methods=[entry for entry in plan.methods if entry.label == "FedAvg 1 epoch"])
    (found,) = papers.runs.run_file(plan, tmp_path)["runs"]
    committed = json.loads((ROOT / "benchmarks/results/deep/raw_fashion_homogeneous.json").read_text(encoding="utf-8"))
    kept = {one["seed"]: one["curves"] for one in committed["runs"] if one["method"] == "FedAvg 1 epoch"}
    # of raw pixels Adam multiplies rounding: other vector instructions moved NLL by 1e-3 of itself, accuracy by .017
    curves = found["curves"]
    assert curves["nll"] == pytest.approx(kept[62]["nll"][:2], rel=1.5e-3)
    assert curves["accuracy"] == pytest.approx(kept[62]["accuracy"][:2], abs=0.03)
    for other in (kept[62]["nll"][1:3], kept[63]["nll"][:2], kept[64]["nll"][:2]):  # twins: later rounds, other seeds
        assert curves["nll"] != pytest.approx(other, rel=1.5e-3)


def tensors(X, y):
    return Rows(torch.tensor(X, dtype=torch.float32), torch.tensor(y))


def test_a_run_is_that_of_python(tmp_path):
    """With the same split, start and settings; what was stopped goes on, to the same numbers."""
    plan = read(SMALL, ["seeds=[1]"])
    plan = replace(plan, sweep=None, methods=[replace(plan.methods[0], steps={"rho": 0.7, "gamma": 0.1}, grid={})])
    (X, y), test = plan.data.load()
    chosen = np.random.default_rng([1, 2]).permutation(len(y))[:60]
    clients = [tensors(X[chosen][part], y[chosen][part]) for part in plan.data.parts(y[chosen], 1)]
    torch.manual_seed(1)
    solver = IVONSteps(epochs=2, lr=0.3, hess_init=0.1, beta2=0.9)
    same = {"temperature": 0.1, "solver": solver, "seed": 1, "evaluate": tensors(*test), "ensemble": 2}
    state = tmp_path / "checkpoints" / "00_seed1.npz"
    state.parent.mkdir()
    whole = run(IVONADMM(0.7, 0.1), clients, MLP((64, 8, 10), "relu"), rounds=4, **same)
    torch.manual_seed(1)
    stopping = {"callback": lambda record, _: record.round == 2, "checkpoint": state}
    run(IVONADMM(0.7, 0.1), clients, MLP((64, 8, 10), "relu"), rounds=4, **same, **stopping)
    (found,) = papers.runs.run_file(plan, tmp_path)["runs"]
    assert found["curves"]["nll"] == [record.at_mean.nll for record in whole.history]
    assert found["curves"]["ensemble_nll"] == [record.ensemble.nll for record in whole.history]


def test_the_choice_does_not_depend_on_the_test_rows(tmp_path, monkeypatch):
    plan = read(SMALL)
    plan, ((X, y), (X_test, y_test)) = replace(plan, methods=plan.methods[:1]), plan.data.load()

    def trials(folder, train, test):
        monkeypatch.setattr(papers.files.Split, "load", lambda _: (train, test))
        return papers.runs.Bench(plan, tmp_path / folder).sweep()

    assert trials("a", (X, y), (X_test, y_test)) == trials("b", (X, y), (1.0 - X_test, y_test))
    assert trials("a", (X, y), (X_test, y_test)) != trials("c", (1.0 - X, y), (X_test, y_test))  # the twin


def test_every_file_is_understood_and_its_methods_take_a_step():
    """The settings of every method and grid; of CIFAR and the personal methods also a round on two rows a client."""
    X = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    clients = [Rows(X[:2], torch.tensor([0, 1])), Rows(X[2:], torch.tensor([2, 3]))]
    for file in FILES.glob("*.toml"):
        plan = read(file)
        for entry in replace(plan, sweep=None).expanded():
            solver = entry.local_work()
            assert solver.schedule_rounds in (None, plan.rounds), (file.stem, entry.label)
            if file.stem == "fedivon_skew_mnist" or (file.stem.startswith("cifar") and entry.label == entry.row):
                precision = entry.prior_precision or plan.training.prior_precision
                method, tau = entry.method(), entry.temperature or plan.training.temperature
                if hasattr(method, "server_steps"):
                    method = replace(method, server_steps=2)
                solver = replace(solver, epochs=1) if file.stem.startswith("cifar") else solver
                result = run(method, clients, plan.network(3072), precision, 1, solver=solver, temperature=tau)
                assert bool(torch.isfinite(result.mean).all()), (file.stem, entry.label)


DRIFT = """
rounds = 2
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
row = "FedLaplace"
solver = { epochs = 2, lr = 0.01 }
"""


def blobs(shift):
    """Ten blobs of 4 × 4 pixels."""
    rng = np.random.default_rng(0)
    y, y_test = rng.permutation(np.arange(300) % 10), np.arange(100) % 10
    centres = rng.random((10, 16))
    X, X_test = (np.clip(centres[of] + 0.1 * rng.standard_normal((len(of), 16)) + shift, 0, 1) for of in (y, y_test))
    return Dataset(X, y, X_test, y_test, 10, "blobs")


def test_clients_own_models_and_images_of_another_kind_are_scored_last(monkeypatch, tmp_path):
    for name, shift in (("fashion", 0.0), ("mnist", 0.5)):
        monkeypatch.setitem(papers.files.LOADERS, name, lambda shift=shift: blobs(shift))
    (tmp_path / "drift.toml").write_text(DRIFT, encoding="utf-8")
    papers.main([str(tmp_path / "drift.toml")])
    (one,) = json.loads((tmp_path / "drift" / "results.json").read_text(encoding="utf-8"))["runs"]
    assert one["last"].keys() == {"at_mean", "ensemble", "personal_at_mean", "personal_ensemble"}

    plan = read(tmp_path / "drift.toml")  # by hand
    (X, y), (X_test, y_test) = plan.data.load()
    rows = plan.data.subset(len(y), 3)
    parts = plan.data.parts(y[rows], 3)
    target = {c: t for t, pair in enumerate(papers.files.DRIFT) for c in pair}
    clients = [tensors(X[rows[part]], [target[c] for c in y[rows[part]]]) for part in parts]
    tests = tensors(X_test, [target[c] for c in y_test])
    torch.manual_seed(3)
    model = MLP((16, 6, 5), "relu")
    result = run(FedLaplace(), clients, model, rounds=2, solver=AdamSteps(epochs=2, lr=0.01), seed=3)
    own = []
    for posterior, part in zip(result.personal(3), parts, strict=True):
        mask = np.isin(y_test, y[rows[part]])
        assert mask.sum() == 50  # one of the two classes of each target
        own.append(score(posterior.predict_proba(tests.X[mask], 0).log(), tests.y[mask]))
    assert one["last"]["personal_at_mean"]["nll"] == pytest.approx(np.mean([each.nll for each in own]), rel=1e-5)
    other = torch.tensor(plan.data.others(), dtype=torch.float32)
    entropy = papers.auroc(result.posterior.predict_proba(tests.X, 0), result.posterior.predict_proba(other, 0))
    assert one["last"]["at_mean"]["auroc"] == pytest.approx(entropy, abs=1e-4)
    assert sum(one["last"]["ensemble"]["reliability"]["rows"]) == 100


def drawn(n, seed, sharpness=1.0):
    logits = sharpness * torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.softmax(dim=1)


def test_the_diagram_is_what_ece_sums():
    p = drawn(500, 0, 2.0)
    y = torch.randint(4, (500,), generator=torch.Generator().manual_seed(1))
    found = {name: np.array(values) for name, values in papers.reliability(p, y).items()}
    gap = np.abs(found["accuracy"] - found["confidence"]) @ found["rows"] / 500
    assert gap == pytest.approx(score(p.log(), y).ece, rel=1e-12)
    confidence, right = p.max(dim=1).values.numpy(), (p.argmax(dim=1) == y).numpy()
    edges = np.ceil(confidence * 15)
    for row, b in enumerate(np.unique(edges)):  # by hand
        assert found["rows"][row] == (edges == b).sum()
        assert found["accuracy"][row] == pytest.approx(right[edges == b].mean(), rel=1e-12)
        assert found["confidence"][row] == pytest.approx(confidence[edges == b].mean(), rel=1e-12)


def test_auroc_counts_pairs_and_half_of_ties():
    inside = torch.cat([drawn(30, 0, 3.0), torch.full((5, 4), 0.25, dtype=torch.float64)])
    outside = torch.cat([drawn(40, 10), inside[:3], torch.full((4, 4), 0.25, dtype=torch.float64)])

    def by_pairs(tie):
        a, b = (torch.special.entr(p).sum(dim=1).tolist() for p in (inside, outside))
        return np.mean([1.0 if y > x else tie if y == x else 0.0 for x, y in itertools.product(a, b)])

    assert papers.auroc(inside, outside) == pytest.approx(by_pairs(0.5), rel=1e-12)
    with pytest.raises(AssertionError):
        assert papers.auroc(inside, outside) == pytest.approx(by_pairs(0.0), rel=1e-12)
    assert papers.auroc(inside, outside) == pytest.approx(1.0 - papers.auroc(outside, inside), rel=1e-12)


def test_the_curve_of_no_probabilities_is_refused():
    """NaN sorts as the largest entropy: refused as either argument, as are logits and no rows at all."""
    p = drawn(5, 0)
    for bad in (p.log(), p * float("nan"), p[:0]):
        for pair, name in (((bad, p), "inside"), ((p, bad), "outside")):
            with pytest.raises(ValueError, match=f"^{name}"):
                papers.auroc(*pair)
    assert papers.auroc(p, p) == 0.5


def test_a_mean_is_of_all_seeds_or_of_none():
    """A seed that failed leaves no mean of those that survived; a seed that was not run only lowers the count."""

    def record(seed, rounds, accuracy):
        curves = {name: [accuracy] * rounds for name in papers.runs.SCORES} | {"round": list(range(1, rounds + 1))}
        spent = {name: [1] * rounds for name in ("seconds", *papers.runs.BYTES)}
        return {"method": "FedAvg", "seed": seed, "rounds": rounds, "curves": curves, "spent": spent}

    short = [record(0, 5, 0.5), record(1, 3, 0.7)]
    counts = ("accuracy_mean", "seeds_done", "seeds_failed", "seeds")
    found = papers.runs.row("FedAvg", 3, short, 3)
    assert [found[name] for name in counts] == [pytest.approx(0.6), 2, 0, 3]
    found = papers.runs.row("FedAvg", 5, short, 3)
    assert np.isnan(found["accuracy_mean"])
    assert [found[name] for name in counts[1:]] == [1, 1, 3]


def test_results_of_what_is_done_need_no_run(tmp_path):
    """--only makes one method's run, --done reads it; the other methods of the file are in neither."""
    plan = replace(read(SMALL, ["rounds=1", "report=[1]"]), sweep=None)
    plan = replace(plan, methods=[replace(entry, grid={}) for entry in plan.methods[:2]])
    first = papers.runs.run_file(plan, tmp_path, ["IVONADMM|3"])
    again = papers.runs.run_file(plan, tmp_path, is_run=False)
    assert [(run["method"], run["seed"]) for run in first["runs"]] == [("IVONADMM", 3)]
    assert again["runs"] == first["runs"]
    assert again["table"][0]["seeds_done"] == 1
    assert again["table"][0]["seeds"] == len(plan.seeds) == 2


def test_grey_images_stand_beside_coloured_ones(tmp_path, monkeypatch):
    """CIFAR-10 against Fashion-MNIST: both become three channels of 32 × 32, whatever the experiment's own are."""
    plan = replace(read(SMALL), sweep=None, model={"name": "LeNet"})
    bench = papers.runs.Bench(plan, tmp_path)
    for pixels in (3 * 32 * 32, 28 * 28):
        assert bench.rows(np.ones((2, pixels)), np.zeros(2, dtype=int)).X.shape == (2, 3, 32, 32)
