"""Run an experiment file: the trials of its sweep, then every method with every seed; and the table of the results.

The state of a run is written after its rounds, and its scores when it is done: what was stopped goes on, with the same
numbers bit for bit.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bayesadmm_np
from bayesadmm_np.torch import Result, Rows, Scores, merge, run
from bayesadmm_np.torch.metrics import scored

from .files import Entry, Experiment, written
from .measures import auroc, reliability

SCORES = ("accuracy", "nll", "ece", "brier")
KINDS = (("", "at_mean"), ("ensemble_", "ensemble"))
BYTES = ("bytes_down", "bytes_up")
LAST = 3
"""Rounds that the papers' tables average over: the reported one and the two before."""
Record = dict[str, Any]
"""A run: status, message, rounds, `spent` (seconds and bytes of each round), `curves`, `last`, and its machine."""


@dataclass(frozen=True)
class Job:
    """One method with one seed, or one trial of it."""

    name: str
    file: str
    entry: Entry
    seed: int
    rounds: int
    every: int
    """Rounds between two that are scored."""


class Bench:
    """The data of an experiment, and the folder of its results, which must be of this experiment."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        own, path = experiment.as_dict(), folder / "experiment.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != own:
            raise SystemExit(f"{folder} holds another experiment; choose another folder by --out.")
        path.write_text(json.dumps(own, indent=1), encoding="utf-8")
        (self.X, self.y), (X_test, self.y_test) = experiment.data.load()
        self.test = self.rows(X_test, self.y_test)
        self.outside = None
        if experiment.data.outside is not None:
            others = experiment.data.others()
            self.outside = self.rows(others, np.zeros(len(others), dtype=np.int64)).X

    def sweep(self) -> list[dict[str, Any]]:
        """Run every trial, and mark the best of each method; none without a sweep."""
        sweep, found = self.experiment.sweep, list[dict[str, Any]]()
        if sweep is None:
            return found
        # the rows are drawn, then those to validate on, and the others are divided as in the experiment itself
        rows = np.random.default_rng([sweep.seed, 3]).permutation(self.drawn(sweep.seed))
        held, rounds = max(1, round(sweep.validation * len(rows))), sweep.rounds or self.experiment.rounds
        validation = self.rows(self.X[rows[:held]], self.y[rows[:held]])
        clients = self.clients(rows[held:], sweep.seed)
        keys = dict.fromkeys(key for entry in self.experiment.methods for key in entry.grid)
        for k, entry in enumerate(self.experiment.methods):
            own = []
            for j, point in enumerate(entry.points()):
                name, file = f"trial of {entry.label} {written(point)}".rstrip(), f"sweep_{k:02d}_{j:03d}"
                job = Job(name, file, entry.at(point), sweep.seed, rounds, rounds)
                record = self.done(job, clients, validation)
                trial = {"method": entry.label, **{key: point.get(key, "") for key in keys}}
                trial |= {name: record[name] for name in ("status", "rounds")}
                for name in ("accuracy", "nll"):
                    trial[f"validation_{name}"] = math.nan if record["failed"] else record["curves"][name][-1]
                own.append({**trial, "chosen": "no"})
            max(own, key=_merit)["chosen"] = "yes"
            found += own
        return found

    def final(self, entries: list[Entry], jobs: Sequence[str] = (), is_run: bool = True) -> list[dict[str, Any]]:
        """Run every method with every seed on all its rows; or the `jobs`, 'LABEL' or 'LABEL|SEED'; or read results."""
        found = []
        for k, entry in enumerate(entries):
            for seed in self.experiment.seeds:
                name, every = f"{entry.label}, seed {seed}", self.experiment.training.evaluate_every
                job = Job(name, f"{k:02d}_seed{seed}", entry, seed, self.experiment.rounds, every)
                wanted = is_run and (not jobs or entry.label in jobs or f"{entry.label}|{seed}" in jobs)
                if wanted or self.path(job).exists():
                    record = self.done(job, self.clients(self.drawn(seed), seed), self.test)
                    found.append({"method": entry.label, "seed": seed, **record})
        return found

    def path(self, job: Job) -> Path:
        """The file of what a job gave."""
        return self.folder / "checkpoints" / f"{job.file}.json"

    def done(self, job: Job, clients: list[Rows], test: Rows) -> Record:
        """Run a job, or read what it gave; of trials, which are many, the large state is deleted then."""
        path = self.path(job)
        if not path.exists():
            if job.entry.local:
                record = _together([self.train(job, [rows], test, k) for k, rows in enumerate(clients)])
            else:
                record = self.train(job, [merge(clients)] if job.entry.pooled else clients, test)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(record), encoding="utf-8")
            part.replace(path)
            if test is not self.test:
                for state in path.parent.glob(f"{job.file}*.npz"):
                    state.unlink()
        record = json.loads(path.read_text(encoding="utf-8"))
        print(f"{job.name}: {record['message'] if record['failed'] else record['curves']['accuracy'][-1]}", flush=True)
        return record

    def train(self, job: Job, clients: list[Rows], test: Rows, alone: int | None = None) -> Record:
        """Train all clients, one that holds all rows, or the one that is `alone`."""
        entry, shared = job.entry, self.experiment.training
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            model = self.experiment.network(test.X[0].numel())
        state = self.folder / "checkpoints" / f"{job.file}{'' if alone is None else f'_client{alone}'}.npz"
        result = run(
            entry.method(),
            clients,
            model,
            entry.prior_precision or shared.prior_precision,
            job.rounds,
            solver=entry.local_work(),
            temperature=entry.temperature or shared.temperature,
            participation=1.0 if len(clients) == 1 else shared.participation,
            device=shared.device,
            seed=job.seed,
            evaluate=test,
            evaluate_every=job.every,
            ensemble=shared.ensemble,
            checkpoint=state,
            checkpoint_every=shared.checkpoint_every,
            resume=state if state.exists() else None,
        )
        failed = result.status.is_failure
        is_final = test is self.test and not failed and not entry.pooled
        spent = {name: [getattr(r, name) for r in result.history] for name in ("seconds", "bytes_down", "bytes_up")}
        return {
            "status": result.status.name,
            "message": result.message,
            "failed": failed,
            "rounds": len(result.history),
            "spent": spent,
            "curves": _curves(result),
            "last": self.scored_last(result, job, alone) if is_final else {},
            "machine": machine(),
        }

    def scored_last(self, result: Result, job: Job, alone: int | None) -> dict[str, Any]:
        """Score once what is not scored by round: reliability, images of another kind, and models of clients' own."""
        shared, posterior, found = self.experiment.training, result.posterior, dict[str, Any]()
        samples = [0] if posterior.kind == "point" else [0, shared.ensemble]
        if self.outside is not None and alone is None:
            for name, count in zip(("at_mean", "ensemble"), samples, strict=False):
                inside = posterior.predict_proba(self.test.X, count)
                outside = posterior.predict_proba(self.outside, count)
                if bool(inside.isnan().any() or outside.isnan().any()):
                    continue  # of a run that failed
                found[name] = {"auroc": auroc(inside, outside)}
                found[name]["reliability"] = reliability(inside, self.test.y)
        if shared.personal:
            rows = self.drawn(job.seed)
            parts = self.experiment.data.parts(self.y[rows], job.seed)
            own = (posterior,) if job.entry.local else result.personal(job.seed)
            chosen = range(len(parts)) if alone is None else [alone]
            masks = [torch.from_numpy(np.isin(self.y_test, self.y[rows[parts[k]]])) for k in chosen]
            for name, count in zip(("at_mean", "ensemble"), samples, strict=False):
                each = [
                    vars(scored(one.predict_proba(self.test.X[mask], count).log(), self.test.y[mask]))
                    for one, mask in zip(own, masks, strict=True)
                ]
                found[f"personal_{name}"] = _mean_of(each)
        return found

    def drawn(self, seed: int) -> Any:
        """The numbers of the rows that a seed trains on."""
        return self.experiment.data.subset(len(self.y), seed)

    def clients(self, rows: Any, seed: int) -> list[Rows]:
        parts = self.experiment.data.parts(self.y[rows], seed)
        return [self.rows(self.X[rows[part]], self.y[rows[part]]) for part in parts]

    def rows(self, X: Any, y: Any) -> Rows:
        """Images as the network wants them: rows of pixels for the MLP, and else three channels of 32 × 32."""
        images = torch.tensor(X, dtype=torch.float32)
        if self.experiment.model["name"] != "MLP":
            channels = 3 if images.shape[1] == 3 * 32 * 32 else 1  # images of another kind may be grey
            side = round((images.shape[1] / channels) ** 0.5)
            images = torch.nn.functional.interpolate(images.view(-1, channels, side, side), (32, 32))
            images = images.expand(-1, 3, -1, -1)
        return Rows(images.contiguous(), torch.tensor(self.experiment.data.targets(y), dtype=torch.int64))


def _merit(trial: dict[str, Any]) -> tuple[float, float]:
    """The most accurate trial is the best, of equals that of the lower NLL, and of these the first."""
    accuracy, nll = trial["validation_accuracy"], trial["validation_nll"]
    return -math.inf if math.isnan(accuracy) else accuracy, -nll if math.isfinite(nll) else -math.inf


def _curves(result: Result) -> dict[str, list[float]]:
    """Scores by round, of the rounds that were scored."""
    scored = [record for record in result.history if record.at_mean is not None]
    curves: dict[str, list[float]] = {"round": [record.round for record in scored]}
    for prefix, kind in KINDS:
        scores = [getattr(record, kind) for record in scored]
        if None not in scores:
            curves |= {prefix + name: [getattr(score, name) for score in scores] for name in SCORES}
    return curves


def _mean_of(scores: list[dict[str, float]]) -> dict[str, float]:
    return {item.name: float(np.mean([one[item.name] for one in scores])) for item in fields(Scores)}


def _together(alone: list[Record]) -> Record:
    """The mean scores of clients alone, or the first that failed; their seconds together, and nothing sent."""
    for number, one in enumerate(alone):
        if one["failed"]:
            return {**one, "message": f"client {number} alone: {one['message']}"}
    first = alone[0]
    means = {name: np.mean([one["curves"][name] for one in alone], axis=0).tolist() for name in first["curves"]}
    spent = {name: [0] * first["rounds"] for name in first["spent"]}
    spent["seconds"] = np.sum([one["spent"]["seconds"] for one in alone], axis=0).tolist()
    last = {name: _mean_of([one["last"][name] for one in alone]) for name in first["last"]}
    return {**first, "spent": spent, "curves": {**means, "round": first["curves"]["round"]}, "last": last}


def row(label: str, number: int, runs: list[dict[str, Any]], seeds: int) -> dict[str, Any]:
    """Mean and standard deviation over the seeds that were run; none of both where one failed before the round.

    Of the round itself, and of each seed's mean over the last three rounds; and the numbers of seeds: those of the
    experiment, of runs that got to the round, and of runs that failed before it.
    """
    own = [one for one in runs if one["method"] == label]
    done = [one for one in own if one["rounds"] >= number]
    found: dict[str, Any] = {"method": label, "round": number}
    for prefix, _ in KINDS:
        for name in SCORES:
            for rounds, suffix in ((1, ""), (LAST, f"_last{LAST}")):
                wanted = range(max(1, number - rounds + 1), number + 1)
                values = [_mean([_scored(one["curves"], prefix + name, at) for at in wanted]) for one in done]
                values = values if len(done) == len(own) else []  # no mean of those that survived
                found[f"{prefix}{name}{suffix}_mean"] = _mean(values)
                with np.errstate(invalid="ignore"):  # an infinite NLL has no deviation
                    found[f"{prefix}{name}{suffix}_sd"] = float(np.std(values)) if values else math.nan
    spent = {name: [x for one in done for x in one["spent"][name][:number]] for name in ("seconds", *BYTES)}
    found["bytes_round"] = _mean([sum(pair) for pair in zip(*(spent[name] for name in BYTES), strict=True)])
    found |= {"seconds_round": _mean(spent["seconds"]), "seeds_done": len(done), "seeds": seeds}
    return found | {"seeds_failed": len(own) - len(done)}


def _scored(curves: dict[str, list[float]], name: str, at: int) -> float:
    """A score of a round; NaN where it was not scored."""
    return curves[name][curves["round"].index(at)] if name in curves and at in curves["round"] else math.nan


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def machine() -> dict[str, Any]:
    """Processor and versions: on them depends how sums are rounded, which training magnifies."""
    cpus = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpus.read_text(encoding="utf-8")) if cpus.exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "architecture": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "compiled": find_spec("numba") is not None,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "bayesadmm_np": bayesadmm_np.__version__,
    }


def run_file(experiment: Experiment, folder: Path, jobs: Sequence[str] = (), is_run: bool = True) -> dict[str, Any]:
    """Run what is not done, or some jobs of it, or nothing; write and return the results of what is done."""
    bench = Bench(experiment, folder)
    trials, entries = bench.sweep(), experiment.expanded()
    if trials:
        best = {one["method"]: one for one in trials if one["chosen"] == "yes"}
        entries = [entry.at({key: best[entry.label][key] for key in entry.grid}) for entry in entries]
    runs = bench.final(entries, jobs, is_run)
    seeds, labels = len(experiment.seeds), {one["method"] for one in runs}
    begun = [entry.label for entry in entries if entry.label in labels]
    table = [row(label, number, runs, seeds) for label in begun for number in experiment.report]
    for one in runs:
        spent = one.pop("spent")
        one |= {"seconds": sum(spent["seconds"]), **{f"{name}_round": _mean(spent[name]) for name in spent}}
        del one["failed"]
    results = {"experiment": experiment.as_dict(), "machine": machine(), "table": table, "sweep": trials, "runs": runs}
    text = json.dumps(_plain(results), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    return results


def _plain(value: Any) -> Any:
    """What JSON can hold: NaN and ∞ become null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
