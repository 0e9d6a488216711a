"""benchmarks/heads.py: tables are those of the JSON, and the JSON is of a fair comparison."""

import copy
import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the scripts draw")
torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from torch import nn  # noqa: E402

from bayesadmm_np.torch import FrozenBody, Rows  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
fails = pytest.raises(AssertionError)


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("heads")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("heads_tables")


def the_page_has_the_tables(tables, records):
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.filled(page, records) == page
    assert tables.FULL.read_text(encoding="utf-8") == tables.full(records)


def test_the_tables_are_those_of_the_records(tables):
    records = tables.kept()
    the_page_has_the_tables(tables, records)
    changed = copy.deepcopy(records)
    next(r for r in changed if r["predictor"] == "mean")["nll"] += 1.0
    with fails:
        the_page_has_the_tables(tables, changed)


def all_methods_have_the_same_rows(records):
    for data, seed in {(r["data"], r["seed"]) for r in records}:
        assert len({r["rows"] for r in records if (r["data"], r["seed"]) == (data, seed)}) == 1


def test_all_methods_of_a_seed_have_the_same_rows(tables):
    records = tables.kept()
    all_methods_have_the_same_rows(records)
    with fails:
        all_methods_have_the_same_rows([*records, {**records[0], "rows": "others"}])


def every_exact_head_is_certified(records):
    exact = [r for r in records if r["predictor"].startswith(("refit", "Laplace"))]
    assert exact
    assert all(r["holds"] for r in exact)
    # the bound on the distance is useful below a hundredth of a standard error; the page names the exception
    useless = {(r["data"], r["network"], r["split"]) for r in exact if not r["distance"] < 0.01}
    assert useless <= {("cifar10", name, "two labels") for name in ("FedAvg", "IVON-ADMM")}


def test_every_exact_head_is_certified(tables):
    records = tables.kept()
    every_exact_head_is_certified(records)
    one = {**records[0], "predictor": "refit", "network": "pixels"}
    for twin in ({"holds": False, "distance": 0.0}, {"holds": True, "distance": 0.1}):
        with fails:
            every_exact_head_is_certified([*records, {**one, **twin}])


def a_cell_of_fewer_seeds_has_a_mark(tables, found):
    seeds = len({r["seed"] for r in found})
    assert tables.spread("nll", found).endswith(f" [{seeds}]") == (seeds < 3)


def test_cells_of_fewer_seeds_have_a_mark(tables, monkeypatch):
    found = [r for r in records_of(0.5, 0.25, 0.125) if r["predictor"] == "mean"]
    a_cell_of_fewer_seeds_has_a_mark(tables, found)
    a_cell_of_fewer_seeds_has_a_mark(tables, found[:2])
    monkeypatch.setattr(tables, "few", lambda found: "")
    with fails:
        a_cell_of_fewer_seeds_has_a_mark(tables, found[:1])


def heads_without_a_network_are_the_same_in_both_splits(records):
    pooled = [r for r in records if r["network"] in ("pixels", "pretrained")]
    done = [r for r in pooled if r["split"] == "iid" and "copied" not in r]
    assert done
    for one in done:
        same = {key: one[key] for key in ("data", "seed", "network", "predictor")}
        (twin,) = (r for r in pooled if r["split"] == "two labels" and all(r[k] == v for k, v in same.items()))
        # clients' sums in another order, and modes to 1e-8: a test row of 5000 may change sides, no more
        assert all(abs(one[name] - twin[name]) < 1e-3 for name in ("accuracy", "nll", "ece", "auroc"))


def test_heads_without_a_network_are_the_same_in_both_splits(tables):
    records = tables.kept()
    heads_without_a_network_are_the_same_in_both_splits(records)
    changed = [{**r, "nll": r["nll"] + 0.01} if r["split"] == "iid" else r for r in records]
    with fails:
        heads_without_a_network_are_the_same_in_both_splits(changed)


def test_training_and_held_out_rows_are_disjoint(script, monkeypatch):
    y = torch.arange(10).repeat(10_000)
    monkeypatch.setattr(script, "images", lambda data: (None, y, None, None))
    for data, (train, held, _) in script.SIZES.items():
        for split in script.SPLITS:
            mine, others, parts = script.drawn(data, split, 1)
            assert (len(mine), len(others)) == (train, held)
            assert not set(mine) & set(others)
            assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(train))
            if split == "two labels":
                assert all(len(set(y[mine[p]].tolist())) == 2 for p in parts)
            assert np.array_equal(mine, script.drawn(data, "iid", 1)[0])  # the same rows in both splits


def records_of(*differences):
    """Records of one network whose mode is `differences` better than its mean."""
    about = {"data": "mnist", "split": "iid", "network": "FedAvg"}
    pairs = [(("mean", 1.0), ("refit", 1.0 - d)) for d in differences]
    return [{**about, "seed": s, "predictor": p, "nll": x} for s, pair in enumerate(pairs) for p, x in pair]


def test_pairs_are_of_the_same_seed_and_counted(tables):
    records = records_of(0.5, 0.25, -0.125)
    first, second = tables.COMPARED["exact head's mode − network's mean"]
    found = tables.pairs(records, "nll", first, second)
    assert sorted(found) == [-0.5, -0.25, 0.125]
    assert tables.difference("nll", found).endswith(", 2/3")
    assert tables.difference("auroc", found).endswith(", 1/3")


def blobs(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 10
    return Rows(torch.from_numpy(np.eye(12)[y] + 0.3 * rng.standard_normal((n, 12))), torch.from_numpy(y))


def test_ridge_from_clients_is_the_pooled_one(script):
    rows, held, test = blobs(200, 0), blobs(100, 1), blobs(50, 2)
    body = FrozenBody(nn.Flatten(), 10)
    clients = [Rows(rows.X[part], rows.y[part]) for part in np.array_split(np.arange(200), 3)]
    (apart,), about = script.ridge(body, clients, held, [test.X])
    (pooled,), same = script.ridge(body, [rows], held, [test.X])
    assert about == same
    assert about["floats"] == 13 * 14 // 2 + 130
    # sums of 200 products in another order, and a system of condition below 1e4
    assert torch.allclose(apart, pooled, rtol=0, atol=1e-9)
    assert (apart.argmax(1) == test.y).double().mean() > 0.9


def test_components_are_those_of_the_pooled_rows(script):
    rows = blobs(200, 0)
    clients = [Rows(rows.X[part], rows.y[part]) for part in np.array_split(np.arange(200), 3)]
    body, sent = script.components(clients, 3)
    made = body(rows.X.float()).detach().double()
    centred = rows.X - rows.X.mean(0)
    largest = torch.linalg.svdvals(centred)[:3]
    assert sent == 12 * 13 // 2 + 12
    # in single precision
    assert torch.allclose(torch.linalg.svdvals(made), largest, rtol=1e-4)
    assert torch.allclose(made.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-5)


def small(script, monkeypatch):
    """Sixteen pixels and few rows in place of the images."""

    def images(data):
        X, y = [], []
        for seed, n in ((0, 300), (1, 100)):
            rows = blobs(n, seed)
            X.append(torch.nn.functional.pad(rows.X, (0, 4)).float() + (data == "fashion"))
            y.append(rows.y)
        return X[0], y[0], X[1], y[1]

    monkeypatch.setattr(script, "images", images)
    monkeypatch.setattr(script, "SIZES", {"mnist": (200, 50, 60)})
    monkeypatch.setattr(script, "SEEDS", (0,))
    monkeypatch.setattr(script, "ROUNDS", {"iid": 4, "two labels": 4})
    monkeypatch.setattr(script, "COMPONENTS", 4)
    monkeypatch.setattr(script, "MLP", lambda _: script.nn.Sequential(nn.Linear(16, 4), nn.Sigmoid(), nn.Linear(4, 10)))


def test_a_small_run_has_all_predictors_and_goes_on(script, tables, monkeypatch, tmp_path):
    small(script, monkeypatch)
    monkeypatch.setattr(script, "KEPT", tmp_path / "heads.json")
    script.run_all(tmp_path, ["FedAvg", "IVON-ADMM", "pixels"], ["mnist"])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*")}
    script.run_all(tmp_path, ["FedAvg", "IVON-ADMM", "pixels"], ["mnist"])
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*")}
    script.take(tmp_path)
    monkeypatch.setattr(tables, "KEPT", tmp_path / "heads.json")
    records = tables.kept()
    of = {n: {r["predictor"] for r in records if r["network"] == n} for n in ("FedAvg", "IVON-ADMM", "pixels")}
    assert of["IVON-ADMM"] == set(tables.IN_WORDS)
    assert of["FedAvg"] == set(tables.IN_WORDS) - {"samples"}
    assert of["pixels"] == set(tables.IN_WORDS) - {"samples", "mean", "mean, scaled"}
    every_exact_head_is_certified(records)
    all_methods_have_the_same_rows(records)
    heads_without_a_network_are_the_same_in_both_splits(records)
