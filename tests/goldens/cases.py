"""The cases: every area is a function that yields (name, record), in a fixed order and from fixed seeds."""

import csv
import itertools
import json
import re
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import adaptor
import numpy as np

import bayesadmm_np as ba

M = ba.methods
SIZES = (5, 8, 6)


# ----------------------------------------------------------------------------------------------------
# The core: every row, family and loss
# ----------------------------------------------------------------------------------------------------

ROWS = {
    "BayesADMM": M.BayesADMM(1.0),
    "BayesADMM, gamma 0.5": M.BayesADMM(2.0, 0.5),
    "ADMM": M.ADMM(2.0),
    "PreconditionedADMM": M.PreconditionedADMM(1.0),
    "BregmanADMM": M.BregmanADMM(2.0, 0.5),
    "BregmanADMM, half statistic": M.BregmanADMM(2.0, 0.5, 1.0),
    "AMA": M.AMA(2.0),
    "PVI": M.PVI(),
    "damped PVI": M.PVI(0.5),
    "PVI by rows": M.PVI("rows"),
    "FedLap": M.FedLap(0.5),
    "FedLap by rows": M.FedLap("rows"),
    "FedLapCov": M.FedLapCov(),
    "FedLapCov by rows": M.FedLapCov("rows"),
    "FedAvg": M.FedAvg(),
    "FedProx": M.FedProx(),
    "FedDyn": M.FedDyn(2.0),
    "FedIvon": M.FedIvon(),
    "BCM": M.BCM(),
    "BLR": M.BLR(0.3),
    "accelerated PVI": ba.Accelerated(M.PVI(0.5), 3),
    "accelerated BayesADMM": ba.Accelerated(M.BayesADMM(1.0), 2),
    "accelerated ADMM": ba.Accelerated(M.ADMM(2.0), 3),
    "accelerated FedLapCov by rows": ba.Accelerated(M.FedLapCov("rows"), 3),
}


def counts(*parts):
    return ba.losses.LinearInStatistics(ba.families.Natural(*(np.array(part) for part in parts)), n_rows=4)


CONJUGATE = {
    "Gamma": lambda: (
        ba.families.Gamma([2.0, 0.1], [1.0, 0.3]),
        [counts([3.0, 1.0], [-4.0, -4.0]), counts([9.0, 0.0], [-7.0, -7.0])],
    ),
    "Beta": lambda: (
        ba.families.Beta([1.3, 0.7], [1.0, 2.1]),
        [counts([3.0, 1.0], [4.0, 0.0]), counts([1.0, 5.0], [2.0, 9.0])],
    ),
    "Dirichlet": lambda: (
        ba.families.Dirichlet([0.3, 1.0, 2.2]),
        [counts([3.0, 1.0, 0.0]), counts([2.0, 7.0, 1.0])],
    ),
}

OPTIONS = {
    "half of the clients": (M.PVI(0.5), "logistic", "full", {"participation": 0.5, "seed": 3}),
    "half of the clients, averaged": (M.FedProx(), "squares", "isotropic", {"participation": 0.5, "seed": 3}),
    "half of the clients, accelerated": (
        ba.Accelerated(M.PVI(0.5), 3),
        "poisson",
        "diagonal",
        {"participation": 0.7, "seed": 3},
    ),
    "warm start": (M.PVI(0.5), "logistic", "diagonal", {"warm_start": True}),
    "safeguard": (M.BayesADMM(0.2), "logistic", "full", {"safeguard": True}),
    "stochastic solver": (M.PVI(0.5), "logistic", "full", {"solver": ba.clients.VON(steps=20), "seed": 7}),
    "gradient steps": (M.FedAvg(), "logistic", "isotropic", {"solver": ba.clients.GradientSteps(5, 0.02)}),
    "sites given": (M.PVI(0.5), "logistic", "diagonal", {"sites": 0.3}),
    "privacy": (M.PVI(1 / 3), "logistic", "full", {"privacy": ba.GaussianMechanism(1.0, 0.1), "seed": 5}),
    "privacy, fixed": (M.FedLap(0.5), "squares", "fixed", {"privacy": ba.GaussianMechanism(2.0, 0.2), "seed": 5}),
    **{
        f"rule {rule!r}": (M.BayesADMM(1.0), loss, "full", {"expectation": rule})
        for rule, loss in [
            (ba.losses.Delta(1), "logistic"),
            (ba.losses.Delta(2), "poisson"),
            (ba.losses.GaussHermite(20), "logistic"),
            (ba.losses.QuasiMonteCarlo(64, seed=3), "softmax"),
            (ba.losses.Exact(), "softmax2"),
        ]
    },
}


def record_of(method, clients, start, **options):
    """The record of a run of some rounds; `tol` lets the solvers work to their end."""
    servers = []
    options = {"rounds": 4, "tol": 1e-10, "raise_on_failure": False, **options}
    result = ba.run(method, clients, start, callback=lambda _, q: servers.append(q.natural), **options)
    history = result.history
    found = {
        "status": result.status.name,
        "rounds": result.rounds,
        **adaptor.state_of(result.state, servers),
        "objective": result.objective,
        "edges": np.array([adaptor.edges_of(record) for record in history]).reshape(-1, 3),
        "alpha": np.array([record.alpha for record in history]),
        "floats": [[record.floats_down, record.floats_up] for record in history],
        "mixed": [record.mixed for record in history],
        "client statuses": [[client.status.name for client in record.clients] for record in history],
        "bits iterations": [[client.iterations for client in record.clients] for record in history],
    }
    return {**found, **(adaptor.certificate_of(result.certificate()) if history else {})}


def unless_refused(refused, case, *problem):
    try:
        record = record_of(*problem)
    except ValueError:
        refused.append(case)
        return
    yield case, record


EVERY_LOSS = ("BayesADMM", "FedLapCov", "accelerated ADMM", "PreconditionedADMM")
"""Rows that meet every loss; between them they are defined for every Gaussian family. The others meet the logistic."""


def core():
    refused = []
    for family, loss in itertools.product(adaptor.FAMILIES, adaptor.LOSSES):
        clients = adaptor.team(loss, sizes=SIZES)
        start = adaptor.prior(family, clients[0].dim)
        for name in ROWS if loss == "logistic" else EVERY_LOSS:
            yield from unless_refused(refused, f"{name}, {family}, {loss}", ROWS[name], clients, start)
    for family, make in CONJUGATE.items():
        start, clients = make()
        for name, method in ROWS.items():
            yield from unless_refused(refused, f"{name}, {family}", method, clients, start)
    yield "refused", {"cases": sorted(refused)}
    for name, (method, loss, family, options) in OPTIONS.items():
        clients = adaptor.team(loss, sizes=SIZES)
        start = adaptor.prior(family, clients[0].dim)
        if "sites" in options:
            options = {"sites": [options["sites"] * start.natural for _ in clients]}
        yield f"option: {name}", record_of(method, clients, start, **options)
    for family, loss in itertools.product(adaptor.FAMILIES, adaptor.LOSSES):
        clients = adaptor.team(loss, sizes=SIZES)
        found = ba.solve_pooled(clients, adaptor.prior(family, clients[0].dim))
        yield f"pooled: {family}, {loss}", {"server": adaptor.packed(found.posterior.natural)}


# ----------------------------------------------------------------------------------------------------
# Networks
# ----------------------------------------------------------------------------------------------------

DELTA = 1.5


def network_problem(sizes=(23, 10, 17)):
    import torch

    from bayesadmm_np.torch import Rows

    rng = np.random.default_rng(0)
    true = rng.standard_normal((4, 3))
    clients = []
    for n in sizes:
        X, noise = rng.standard_normal((n, 4)), 0.5 * rng.standard_normal((n, 3))
        clients.append(Rows(torch.tensor(X), torch.tensor((X @ true + noise).argmax(axis=1))))
    return clients


def filled(model):
    """The model with parameters that are the same on every machine: torch's own differ by float32's rounding."""
    import torch

    rng = np.random.default_rng(1)
    for parameter in model.double().parameters():
        parameter.data = torch.tensor(0.4 * rng.standard_normal(parameter.shape))
    return model


def plain_network():
    """Of linear layers and ReLUs: its gradients are made by hand."""
    from bayesadmm_np.torch import MLP

    return filled(MLP((4, 5, 3)))


def other_network():
    """With another activation: its gradients are autograd's."""
    from torch import nn

    return filled(nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)))


def network_rows():
    from bayesadmm_np.torch import IVONADMM, IVONPVI, AdamSteps, FedLapFunc, IVONSteps

    ivon = IVONSteps(epochs=3, batch_size=6, lr=0.1, hess_init=0.1, beta2=0.9)
    two = IVONSteps(epochs=2, batch_size=6, lr=0.1, samples=2, beta2=0.9, clip_radius=1.0, rescale_lr=False)
    adam = AdamSteps(epochs=3, batch_size=6, lr=0.01)
    return {
        "IVON-ADMM": (IVONADMM(0.7, 0.3), ivon),
        "IVON-PVI": (IVONPVI(0.2), ivon),
        "BayesADMM, two samples": (M.BayesADMM(1.0, 0.5), two),
        "AMA": (M.AMA(2.0), ivon),
        "PVI by rows": (M.PVI("rows"), ivon),
        "FedIvon": (M.FedIvon(), ivon),
        "BCM": (M.BCM(), ivon),
        "FedLapCov": (M.FedLapCov(0.5), adam),
        "FedLap": (M.FedLap(0.5), adam),
        "PreconditionedADMM": (M.PreconditionedADMM(1.0), adam),
        "ADMM": (M.ADMM(1.0), adam),
        "FedDyn": (M.FedDyn(0.5), adam),
        "FedProx": (M.FedProx(0.3), adam),
        "FedAvg": (M.FedAvg(), adam),
        "FedLap-Func": (FedLapFunc(0.4, tau=0.3, server_steps=40, server_lr=0.01), adam),
    }


def one_thread():
    import torch

    torch.set_num_threads(1)


def torch_area():
    from bayesadmm_np.torch import run

    one_thread()

    def record(method, solver, model, **options):
        options = {"rounds": 2, "temperature": 0.5, "seed": 4, **options}
        result = run(method, network_problem(), model(), DELTA, solver=solver, **options)
        certificate = result.certificate(pairs=3, seed=1)
        return {
            "status": result.status.name,
            **adaptor.network_state(result.state),
            "certificate": np.array([certificate.pooled, certificate.pooled_error]),
        }

    rows = network_rows()
    for name, (method, solver) in rows.items():
        for model, engine in ((plain_network, "compiled"), (other_network, "stacks")):
            yield f"{name}, {engine}", record(method, solver, model)
    for name in ("IVON-ADMM", "FedLapCov", "FedLap-Func"):
        for model, engine in ((plain_network, "compiled"), (other_network, "stacks")):
            away = {"batched": False, "participation": 0.7, "objective_every": 1}
            alone = record(*rows[name], model, rounds=3, **away)
            yield f"{name}, {engine}, one by one, some away", alone


# ----------------------------------------------------------------------------------------------------
# The command line
# ----------------------------------------------------------------------------------------------------

TIMELY = re.compile(r"second|version|time|folder|path|digest|^run$|^key$|s/round")


def tables(folder):
    """Rows at three sites with every kind of target."""
    rng = np.random.default_rng(0)
    names = ("age", "dose", "ward", "times", "died", "kind", "cost", "visits", "site")
    rows = []
    for k, (site, n) in enumerate({"north": 25, "east": 40, "west": 15}.items()):
        for _ in range(n):
            age, dose = 60 + 10 * rng.standard_normal(), rng.standard_normal() + 0.3 * k
            f = 0.06 * (age - 60) - dose
            died = int(rng.random() < 1 / (1 + np.exp(-f)))
            kind = "abc"[int(np.argmax(np.array([f, -f, 0.0]) + rng.gumbel(size=3)))]
            cost = 20 + 3 * f + rng.standard_normal()
            visits = int(rng.poisson(np.exp(0.3 * dose)))
            other = "xyz"[rng.integers(3)], int(rng.integers(1, 3))
            rows.append((f"{age:.6f}", f"{dose:.6f}", *other, died, kind, f"{cost:.6f}", visits, site))
    write(folder / "all.csv", names, rows)
    for site in ("north", "east", "west"):
        write(folder / f"{site}.csv", names[:-1], [row[:-1] for row in rows if row[-1] == site])
    write(folder / "other.csv", names, [(row[0], f"{2 * float(row[1]):.6f}", *row[2:]) for row in rows])
    (folder / "study.toml").write_text('target = "died"\nclient = "site"\nrho = 2.0\nfeatures = ["age", "dose"]\n')


def write(path, names, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


SITES = "--client site --no-progress --json"
DIED = f"--target died --features age,dose {SITES}"
SCALED = f"fit all.csv --formula died~scale(age)+scale(dose) {SITES}"
CALLS = {
    "fit": f"fit all.csv {DIED} --out m.npz",
    "fit of every column": f"fit all.csv --target died --drop kind,cost,visits,times --categorical ward {SITES}",
    "fit of one file a site": "fit north.csv east.csv west.csv --target died --features age,dose --no-progress --json",
    "fit from a file": "fit all.csv --config study.toml --method BayesADMM --json --no-progress",
    "fit by BayesADMM": f"fit all.csv {DIED} --method BayesADMM --rho 0.5 --gamma 0.8",
    "fit, accelerated": f"fit all.csv {DIED} --method PVI --gamma 0.4 --accelerate",
    "fit, diagonal": f"{SCALED} --family diagonal --prior-precision 1 --tol 1e-6",
    "fit by Laplace": f"fit all.csv {DIED} --method FedLapCov --gamma rows",
    "fit at a point": f"{SCALED} --method ADMM --rho 5 --penalize-intercept --prior-precision 1 --tol 1e-5",
    "fit with evidence": f"fit all.csv {DIED} --prior-precision evidence --prior-unit sd",
    "fit with weights": f"fit all.csv {DIED} --weights times",
    "fit in given units": f"fit all.csv {DIED} --no-intercept --prior-precision 0.5",
    "ridge": f"fit all.csv --target cost --features age,dose --loss ridge --out r.npz {SITES}",
    "ridge with given noise": f"fit all.csv --target cost --features age,dose --loss ridge --noise-variance 2 {SITES}",
    "poisson": f"fit all.csv --target visits --features age,dose --loss poisson --out p.npz {SITES}",
    "softmax": f"fit all.csv --target kind --features age,dose --out s.npz {SITES} --tol 1e-6",
    "too few rounds": f"fit all.csv {DIED} --method PVI --gamma 0.1 --rounds 2",
    "a run that fails": f"fit all.csv {DIED} --method BayesADMM --rho 0.001",
    "summary": "summary m.npz --json",
    "summary of classes": "summary s.npz --json",
    "summary of ridge": "summary r.npz --json",
    "predict": "predict m.npz all.csv --json",
    "predict classes": "predict s.npz all.csv",
    "predict costs": "predict r.npz all.csv",
    "predict counts": "predict p.npz all.csv",
    "certify": "certify m.npz all.csv --json",
    "certify ridge": "certify r.npz all.csv --json",
    "certify other rows": "certify m.npz other.csv --client site --json",
    "compare some": "compare all.csv --target visits --features age,dose --loss poisson --methods PVI,FedLap,BCM "
    f"--family diagonal --rounds 8 {SITES}",
    "compare no method": f"compare all.csv {DIED} --methods PVX",
    "site init": "site init north --data north.csv --target died --name north --loss logistic --features age,dose "
    "--minimum-sites 2 --budget 100 --json",
    "site init 2": "site init west --data west.csv --target died --name west --loss logistic --features age,dose "
    "--minimum-sites 2 --budget 100 --json",
    "site init again": "site init north --data north.csv --target died --name north --loss logistic "
    "--features age,doze",
    "server init": "server init run north/hello.npz west/hello.npz --method PVI --gamma 0.5 --rounds 2 "
    "--prior-precision 1 --penalize-intercept --json",
    "server init with one name twice": "server init two north/hello.npz north/hello.npz --json",
    "server init of no message": "server init two all.csv --json",
    "site step": "site step north run/broadcast-0001.npz --json",
    "site step again": "site step north run/broadcast-0001.npz --json",
    "site step 2": "site step west run/broadcast-0001.npz --json",
    "site step of a reply": "site step west north/reply-north-0001.npz --json",
    "server step of a hello": "server step run north/hello.npz --json",
    "server step": "server step run north/reply-north-0001.npz west/reply-west-0001.npz --json",
    "server step again": "server step run north/reply-north-0001.npz west/reply-west-0001.npz --json",
    "server status": "server status run --json",
    "site step, round 2": "site step north run/broadcast-0002.npz --json",
    "site step 2, round 2": "site step west run/broadcast-0002.npz --json",
    "server step, round 2": "server step run north/reply-north-0002.npz --json",
    "site step, end": "site step north run/final.npz --json",
    "server status, end": "server status run --json",
    "export": "server status run --target died --out e.npz",
    "summary of an export": "summary e.npz --json",
    "certify an export": "certify e.npz north.csv west.csv --json --tol 10",
    "export of nothing": "server status north --target died --out f.npz",
    "flower new": "flower new trial --sites 2",
    "flower new again": "flower new trial --sites 2",
}


def flattened(value, at=""):
    """Numbers of a JSON text by their place; without times, versions and paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not TIMELY.search(key):
                yield from flattened(inner, f"{at}.{key}")
    elif isinstance(value, list):
        for k, inner in enumerate(value):
            yield from flattened(inner, f"{at}[{k}]")
    else:
        yield at, value


def record_json(text, tag=""):
    """One vector of the numbers of a JSON text, with their places; counts, names and switches as they are, no prose."""
    pairs = list(flattened(json.loads(text)))
    floats = [(at, value) for at, value in pairs if isinstance(value, float)]
    plain = {at: Path(v).name if isinstance(v, str) and "/" in v else v for at, v in pairs if not isinstance(v, float)}
    return {
        f"{tag}numbers": np.array([value for _, value in floats]),
        f"{tag}places": [at for at, _ in floats],
        f"{tag}plain": {at: value for at, value in plain.items() if not (isinstance(value, str) and " " in value)},
    }


def record_csv(text, tag=""):
    names, *rows = csv.reader(text.splitlines())
    kept = [k for k, name in enumerate(names) if not TIMELY.search(name)]
    numeric = [k for k in kept if re.fullmatch(r"-?\d*\.\d+(e[-+]\d+)?", rows[0][k])]
    return {
        f"{tag}columns": names,
        f"{tag}numbers": np.array([[float(row[k] or "nan") for k in numeric] for row in rows]),
        f"{tag}words": [[row[k] for k in kept if k not in numeric] for row in rows],
    }


NEEDS = {"flower": "flwr"}


def is_installed(words):
    """Whether a command has the packages that it needs beside those of the extra `cli`."""
    needed = NEEDS.get(words.partition(" ")[0])
    return needed is None or find_spec(needed) is not None


def cli():
    """A case whose command cannot run here is None."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables(folder)
        for case, words in CALLS.items():
            yield case, called(case, words, folder) if is_installed(words) else None


def called(case, words, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, out = adaptor.command(*words.split(), folder=folder)
    record = {"code": code}
    if out.startswith("{"):
        record |= record_json(out)
    elif case.startswith("predict") and code == 0:
        record |= record_csv(out)
    return record


AREAS = {"core": core, "torch": torch_area, "cli": cli}
