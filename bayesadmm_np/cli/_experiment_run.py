"""Run an experiment file: the trials of a sweep, then every method with every seed."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from .._archive import ArchiveError
from ..splitting.status import Status
from ..torch import Result, RoundRecord, Rows, Scores, auroc, merge, reliability, run, score
from ..torch.network import digest
from ._experiment_file import Entry, Experiment, Point, Sweep, written
from ._terminal import write_json

Tick = Callable[[str, int, float | None], None]
"""tick(what runs, rounds done of all, accuracy or None), after every round."""
NOTES = "notes.json"


@dataclass(frozen=True)
class Outcome:
    """One method with one seed, or one trial of it."""

    label: str
    seed: int
    status: Status
    message: str
    history: tuple[RoundRecord, ...]
    last: dict[str, Any] = field(default_factory=dict)
    """What is scored once, after the last round."""

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return len(self.history)


@dataclass(frozen=True)
class Trial:
    """One point of a method's grid, scored on the validation rows at the mean after the last round."""

    method: int
    """Its number in the file, from 0."""
    label: str
    point: Point
    """Empty where the method has no grid."""
    status: str
    message: str
    rounds: int
    accuracy: float | None
    nll: float | None
    """None, as the accuracy, where the trial failed."""
    chosen: bool = False

    @property
    def words(self) -> str:
        """The point, as `key=value`."""
        return written(self.point)


@dataclass(frozen=True)
class _Job:
    """One call for `Bench._train`, or one a client where they train alone."""

    name: str
    file: str
    method: int
    entry: Entry
    point: Point
    seed: int
    rounds: int


Last = Callable[[Result, _Job, int | None], dict[str, Any]]
"""Scores after the last round, of a run or of a client alone."""


class Bench:
    """The data of an experiment and the folder of its results; trials and runs are for within `claimed`.

    `tick(what runs, rounds done of all, accuracy or None)` is called after every round, and `say` with every note, the
    warning of a run. `notes` are those of this command and of the commands that it continues, each once.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        tick: Tick | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.experiment, self.folder, self.tick, self.say = experiment, folder, tick, say
        (self.X, self.y), (X_test, y_test) = experiment.data.load()
        if experiment.sweep is not None:
            _held(experiment, experiment.sweep, experiment.data.train or len(self.y))
        arrays = [torch.from_numpy(np.asarray(array)) for array in (self.X, self.y, X_test, y_test)]
        self._what = {**experiment.as_dict(), "rows": digest(arrays)}
        self.test, self.test_classes = _rows(experiment, X_test, y_test), np.asarray(y_test)
        self.outside = None if experiment.data.outside is None else experiment.data.others()
        self.began = 0
        self.notes: list[str] = []

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Claim the folder for this command alone; one in use, or of another experiment or other data, is refused."""
        (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")  # the system's own: it ends with the process, however that ends
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(
                f"{self.folder} is in use by another process; wait until it is done, or choose another folder."
            ) from error
        try:
            _claim(self.folder, self._what)
            for left in (self.folder / "checkpoints").glob("*.part"):  # by a command that was killed as it wrote
                left.unlink()
            if self._checkpoint(NOTES).exists():
                self.notes = json.loads(self._checkpoint(NOTES).read_text(encoding="utf-8"))["notes"]
            yield
        finally:
            lock.release()

    def sweep(self) -> list[Trial]:
        """Run every trial that is not done, and mark the best of each method; none without a sweep."""
        sweep = self.experiment.sweep
        if sweep is None:
            return []
        # the rows are drawn, then those to validate on, and the others are divided as in the experiment itself
        rows = np.random.default_rng([sweep.seed, 3]).permutation(self._drawn(sweep.seed))
        held = _held(self.experiment, sweep, len(rows))
        validation = _rows(self.experiment, self.X[rows[:held]], self.y[rows[:held]])
        clients = self._clients(rows[held:], sweep.seed)
        trials = [self._trial(job, clients, validation) for job in _trials(self.experiment)]
        return [replace(trial, chosen=trial is best_trial(trials, trial.method)) for trial in trials]

    def final(self, methods: Sequence[Entry]) -> list[Outcome]:
        """Run every method with every seed on all its rows, as far as that is not done."""
        jobs = _finals(self.experiment, methods)
        every = self.experiment.training.evaluate_every
        return [
            self._outcome(job, self._clients(self._drawn(job.seed), job.seed), self.test, every, self._scored_last)
            for job in jobs
        ]

    def _scored_last(self, result: Result, job: _Job, alone: int | None) -> dict[str, Any]:
        """Score once what is not scored by round: reliability, images of another kind, and models of clients' own."""
        shared, found = self.experiment.training, dict[str, Any]()
        posterior = result.posterior
        samples = [0] if posterior.kind == "point" else [0, shared.ensemble]
        if self.outside is not None and alone is None:
            other = _rows(self.experiment, self.outside, np.zeros(len(self.outside), dtype=np.int64)).X
            for name, count in zip(("at_mean", "ensemble"), samples, strict=False):
                inside = posterior.predict_proba(self.test.X, count)
                found[name] = {"auroc": auroc(inside, posterior.predict_proba(other, count))}
                found[name]["reliability"] = reliability(inside, self.test.y)
        if shared.personal:
            rows = self._drawn(job.seed)
            parts = self.experiment.data.parts(self.y[rows], job.seed)
            own = (posterior,) if job.entry.local else result.personal(job.seed)
            chosen = range(len(parts)) if alone is None else [alone]
            masks = [torch.from_numpy(np.isin(self.test_classes, self.y[rows[parts[k]]])) for k in chosen]
            for name, count in zip(("at_mean", "ensemble"), samples, strict=False):
                each = [
                    score(one.predict_proba(self.test.X[mask], count).log(), self.test.y[mask])
                    for one, mask in zip(own, masks, strict=True)
                ]
                found[f"personal_{name}"] = vars(_mean(each))
        return found

    def _drawn(self, seed: int) -> Any:
        return self.experiment.data.subset(len(self.y), seed)

    def _clients(self, rows: Any, seed: int) -> list[Rows]:
        parts = self.experiment.data.parts(self.y[rows], seed)
        return [_rows(self.experiment, self.X[rows[part]], self.y[rows[part]]) for part in parts]

    def _trial(self, job: _Job, clients: list[Rows], validation: Rows) -> Trial:
        """Run a trial, or read what it gave; its checkpoint, which is large, is deleted when it is done."""
        path = self._checkpoint(f"{job.file}.json")
        if not path.exists():
            outcome = self._outcome(job, clients, validation, job.rounds)
            is_scored = outcome.history and not outcome.status.is_failure
            scores = outcome.history[-1].to_dict()["at_mean"] if is_scored else None
            found = {"status": outcome.status.name, "message": outcome.message, "rounds": outcome.rounds}
            found |= {name: scores and scores[name] for name in ("accuracy", "nll")}
            write_json(path, found)
        else:
            self.began += _all_rounds(self.experiment, job)
        for checkpoint in (path.with_suffix(".npz"), *path.parent.glob(f"{job.file}_client*.npz")):
            checkpoint.unlink(missing_ok=True)
        return Trial(job.method, job.entry.label, job.point, **json.loads(path.read_text(encoding="utf-8")))

    def _outcome(self, job: _Job, clients: list[Rows], test: Rows, every: int, last: Last | None = None) -> Outcome:
        entry = job.entry
        if entry.local:
            alone = [self._train(job, [rows], test, every, last, k) for k, rows in enumerate(clients)]
            failed = [(k, one) for k, one in enumerate(alone) if one.status.is_failure]
            number, worst = failed[0] if failed else (0, alone[0])
            message = f"client {number} alone: {worst.message}" if failed else worst.message
            found = replace(worst, message=message, history=_averaged([one.history for one in alone]))
            each = [{name: Scores(**scores) for name, scores in one.last.items()} for one in alone]
            found = replace(found, last={name: vars(_mean([one[name] for one in each])) for name in each[0]})
        else:
            found = self._train(job, [merge(clients)] if entry.pooled else clients, test, every, last)
        self.began += _all_rounds(self.experiment, job)
        return found

    def _train(
        self, job: _Job, clients: list[Rows], test: Rows, every: int, last: Last | None = None, alone: int | None = None
    ) -> Outcome:
        entry, shared, method = job.entry, self.experiment.training, job.entry.method()
        begun = self.began + (alone or 0) * job.rounds

        def after(record: RoundRecord, _: Any) -> None:
            if self.tick is not None:
                accuracy = record.at_mean.accuracy if isinstance(record.at_mean, Scores) else None
                self.tick(job.name, begun + record.round, accuracy)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(job.seed)
            model = self.experiment.network(test.X[0].numel(), self.experiment.data.classes)
        checkpoint = self._checkpoint(f"{job.file}.npz" if alone is None else f"{job.file}_client{alone}.npz")
        name = job.name if alone is None else f"{job.name}, client {alone} alone"
        with self.noting(name), going_on(name, checkpoint):
            result = run(
                method,
                clients,
                model,
                entry.prior_precision or shared.prior_precision,
                job.rounds,
                solver=entry.local_work(method),
                temperature=entry.temperature or shared.temperature,
                participation=1.0 if len(clients) == 1 else shared.participation,
                batched=shared.batched,
                device=shared.device,
                seed=job.seed,
                evaluate=test,
                evaluate_every=every,
                ensemble=shared.ensemble,
                callback=after,
                checkpoint=checkpoint,
                checkpoint_every=shared.checkpoint_every,
                resume=checkpoint if checkpoint.exists() else None,
            )
            scored = {} if last is None or entry.pooled or result.status.is_failure else last(result, job, alone)
        return Outcome(entry.label, job.seed, result.status, result.message, result.history, scored)

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Make notes of a run's warnings."""

        def take(message: Warning | str, *_: Any, **__: Any) -> None:
            line = f"{name}: {' '.join(str(message).split())}"
            if line in self.notes:
                return
            self.notes.append(line)
            write_json(self._checkpoint(NOTES), {"notes": self.notes})
            if self.say is not None:
                self.say(line)

        with warnings.catch_warnings():
            warnings.showwarning = take
            yield

    def _checkpoint(self, name: str) -> Path:
        return self.folder / "checkpoints" / name


@contextmanager
def going_on(name: str, checkpoint: Path) -> Iterator[None]:
    """Word the refusal of a checkpoint with the advice to remove it, not with an argument's name."""
    try:
        yield
    except ArchiveError as error:
        raise ValueError(f"{str(checkpoint)!r}: {error.reason} Delete it, and {name} begins anew.") from error


def best_trial(trials: Sequence[Trial], method: int) -> Trial:
    """Return the best trial of a method: the most accurate, then the one of the lower NLL, then the first."""

    def merit(trial: Trial) -> tuple[float, float]:
        if trial.accuracy is None or trial.nll is None:
            return -np.inf, -np.inf
        return trial.accuracy, -trial.nll if np.isfinite(trial.nll) else -np.inf

    return max((trial for trial in trials if trial.method == method), key=merit)


def final_methods(experiment: Experiment, trials: Sequence[Trial]) -> tuple[Entry, ...]:
    """Return what is run in the end: the points that a sweep chose, or without a sweep all of them."""
    if experiment.sweep is None:
        return experiment.expanded()
    best = {trial.method: trial.point for trial in trials if trial.chosen}
    return tuple(entry.at(best[number]) for number, entry in enumerate(experiment.methods))


def total_rounds(experiment: Experiment) -> int:
    """Return the rounds of all trials and runs: what progress is counted in."""
    methods = experiment.methods if experiment.sweep else experiment.expanded()
    return sum(_all_rounds(experiment, job) for job in (*_trials(experiment), *_finals(experiment, methods)))


def _all_rounds(experiment: Experiment, job: _Job) -> int:
    """Return the rounds of a job, those of all clients where they train alone."""
    return job.rounds * (experiment.data.clients if job.entry.local else 1)


def _held(experiment: Experiment, sweep: Sweep, rows: int) -> int:
    """Return how many of so many rows to validate on; a sweep that leaves clients without rows is refused."""
    held, clients = max(1, round(sweep.validation * rows)), experiment.data.clients
    if rows - held < clients:
        raise ValueError(f"[sweep] validation leaves {max(0, rows - held)} of {rows} rows to {clients} clients.")
    return held


def _trials(experiment: Experiment) -> list[_Job]:
    sweep, jobs = experiment.sweep, []
    if sweep is None:
        return []
    for k, entry in enumerate(experiment.methods):
        for j, point in enumerate(entry.points()):
            name, file = f"trial of {entry.label} {written(point)}".rstrip(), f"sweep_{k:02d}_{j:03d}"
            jobs.append(_Job(name, file, k, entry.at(point), point, sweep.seed, sweep.rounds or experiment.rounds))
    return jobs


def _finals(experiment: Experiment, methods: Sequence[Entry]) -> list[_Job]:
    return [
        _Job(f"{entry.label}, seed {seed}", f"{k:02d}_seed{seed}", k, entry, {}, seed, experiment.rounds)
        for k, entry in enumerate(methods)
        for seed in experiment.seeds
    ]


def _averaged(alone: Sequence[tuple[RoundRecord, ...]]) -> tuple[RoundRecord, ...]:
    """Return the rounds that all clients got to: mean scores, summed objectives and seconds, nothing sent."""
    return tuple(
        replace(
            records[0],
            objective=sum(record.objective for record in records),
            edges=max((record.edges for record in records), key=lambda edges: edges.largest),
            present=tuple(range(len(records))),
            bytes_down=0,
            bytes_up=0,
            seconds=sum(record.seconds for record in records),
            at_mean=_mean([record.at_mean for record in records]),
            ensemble=_mean([record.ensemble for record in records]),
        )
        for records in zip(*alone, strict=False)
    )


def _mean(scores: Sequence[Any]) -> Scores | None:
    known = [score for score in scores if score is not None]
    if not known:
        return None
    return Scores(**{item.name: float(np.mean([getattr(s, item.name) for s in known])) for item in fields(Scores)})


def _rows(experiment: Experiment, X: Any, y: Any) -> Rows:
    """Images as the network wants them: rows of pixels for the MLP, and else three channels of 32 × 32."""
    images = torch.tensor(X, dtype=torch.float32)
    if experiment.model["name"] != "MLP":
        channels = 3 if experiment.data.name == "cifar10" else 1
        side = round((images.shape[1] / channels) ** 0.5)
        images = torch.nn.functional.interpolate(images.view(-1, channels, side, side), (32, 32))
        images = images.expand(-1, 3, -1, -1)
    return Rows(images.contiguous(), torch.tensor(experiment.data.targets(y), dtype=torch.int64))


def _claim(folder: Path, own: dict[str, Any]) -> None:
    """Make the folder this experiment's, unless it holds something of another."""
    path, checkpoints = folder / "experiment.json", folder / "checkpoints"
    # a run that was refused before its first round leaves a folder in which there is nothing to lose
    done = (*checkpoints.glob("*.npz"), *checkpoints.glob("sweep_*.json"), *folder.glob("results.json"))
    if done and not path.exists():
        raise ValueError(f"{folder} has results but not the experiment.json that says of what; choose another folder.")
    if not done:
        (checkpoints / NOTES).unlink(missing_ok=True)
        write_json(path, own)
        return
    try:
        other = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not readable; choose another folder.") from error
    for key, value in own.items():
        if other.get(key) != value:
            what = "the contents of its data files differ" if key == "rows" else f"its {key} differs"
            raise ValueError(f"{folder} holds another experiment: {what}; choose another folder.")
