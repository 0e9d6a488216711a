"""Why IVON-ADMM at ρ = .2 diverges on raw Fashion-MNIST: one change at a time, on the splits of seeds 63 and 64.

BAYESADMM_DATA=folder python benchmarks/divergence.py        # into benchmarks/results/divergence.json; some 30 minutes

Each variant is the method "IVONADMM" of experiments/raw_fashion_heterogeneous.toml (λ = N_k/(ρτ), γ = 2e-4, h carried
by the server) with one change, which is made here and not in the library. A run that diverges is a result; `concave` is
the share of parameters at which ρ s_g − u_k < 0 for some client, whose dual and anchor then push it away.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from papers import runs
from papers.files import Entry, Experiment

from bayesadmm_np.data import partition
from bayesadmm_np.torch import Rows, run
from bayesadmm_np.torch import kernel as steps_of_ivon
from bayesadmm_np.torch import round as rounds
from bayesadmm_np.torch import steps as local_steps
from bayesadmm_np.torch.state import State
from bayesadmm_np.torch.team import Team

FILE = Path(__file__).parent / "experiments" / "raw_fashion_heterogeneous.toml"
OUT = Path(__file__).parent / "results" / "divergence.json"
SEEDS, ROUNDS = (63, 64), 35
"""Where the printed method ends in rounds 33 and 20."""


@contextmanager
def from_the_prior() -> Iterator[None]:
    """Start with η_k = 0 and the prior N(0, 1/δ) at the clients of round 1; the network is still their start."""
    start, problem = Team.start, Team.problem

    def without_duals(team: Team) -> State:
        state = start(team)
        return replace(state, site_linear=torch.zeros_like(state.site_linear))

    def about_zero(team: Team, broadcast: Any, duals: Any, chosen: Any) -> Any:
        found = problem(team, broadcast, duals, chosen)
        is_first = bool((broadcast.precision == team.delta).all())
        return replace(found, centre=torch.zeros_like(found.centre)) if is_first else found

    with patch.object(Team, "start", without_duals), patch.object(Team, "problem", about_zero):
        yield


@contextmanager
def momentum_carried() -> Iterator[None]:
    """Keep every client's average of gradients between rounds; from round 2 on it needs no debiasing."""
    client_seed, stack, kept, owner = rounds.client_seed, local_steps._IVON, dict[int, Any](), dict[int, int]()

    def noted(seed: int, number: int, k: int) -> int:
        owner[found := client_seed(seed, number, k)] = k
        return found

    class Carried(stack):  # type: ignore[misc, valid-type]
        def __init__(self, problem: Any, solver: Any, noise: Any) -> None:
            super().__init__(problem, solver, noise)
            self.clients = [owner[key] for key in self.given]
            for i, k in enumerate(self.clients):
                if k in kept:
                    self.buffers.momentum[i] = kept[k]
            self.done = 10_000 if self.clients[0] in kept else 0

        def step(self, k: int, t: int, gradient: Any) -> None:
            def later(b: Any, terms: Any, rates: Any, at: int, samples: int) -> None:
                update(b, terms, rates, at + self.done, samples)

            with patch.object(local_steps, "update", later):
                super().step(k, t, gradient)

        def result(self) -> Any:
            kept.update({k: self.buffers.momentum[i].clone() for i, k in enumerate(self.clients)})
            return super().result()

    update = steps_of_ivon.update

    def made(work: Any, clients: Any, problem: Any) -> Any:
        Carried.given = [work.seeds[k] for k in clients]
        return original(work, clients, problem)

    original = local_steps.Work._stack
    with (
        patch.object(rounds, "client_seed", noted),
        patch.object(local_steps, "_IVON", Carried),
        patch.object(local_steps.Work, "_stack", made),
    ):
        yield


@contextmanager
def old_duals_at_the_server() -> Iterator[None]:
    """Eq. 54 with the duals of the round before: the server is updated first, and the duals after."""
    gathered = rounds.gathered

    def late(team: Team, state: State, replies: Any) -> Any:
        after = gathered(team, state, replies)
        if not isinstance(after, State):
            return after
        still = replace(team.method, dual_step=0.0)
        first = gathered(replace(team, method=still), state, replies)
        return replace(after, mean=first.mean, precision=first.precision) if isinstance(first, State) else first

    import bayesadmm_np.torch.loop as loop

    with patch.object(loop, "gathered", late):
        yield


@contextmanager
def hessian_clamped() -> Iterator[None]:
    """Keep h >= 0 after every step: s_k never falls below the server's precision."""
    update = steps_of_ivon.update

    def above(b: Any, terms: Any, rates: Any, step: int, samples: int) -> None:
        update(b, terms, rates, step, samples)
        b.hess.clamp_(min=0.0)

    with patch.object(local_steps, "update", above):
        yield


def one_weight(entry: Entry) -> Entry:
    """Give all clients the λ of a client of N/K rows: the mean of their mean losses, as Eq. 2 has plain means."""
    return replace(entry, solver={**entry.solver, "ess": 600 / (0.2 * 1e-3)})


def with_solver(**changes: Any) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, solver={**entry.solver, **changes})


def with_steps(**changes: Any) -> Callable[[Entry], Entry]:
    return lambda entry: replace(entry, steps={**entry.steps, **changes})


def as_it_is(entry: Entry) -> Entry:
    return entry


PATCHES: dict[str, Callable[[], Any]] = {
    "duals start at zero": from_the_prior,
    "momentum carried": momentum_carried,
    "old duals at the server": old_duals_at_the_server,
    "h clamped at zero": hessian_clamped,
}
CHANGES: dict[str, Callable[[Entry], Entry]] = {
    "one weight for all clients": one_weight,
    "rho 0.3, gamma the same": with_steps(rho=0.3),
    "half gamma": with_steps(gamma=1e-4),
    "4 samples a step": with_solver(samples=4),
    "beta2 0.9999": with_solver(beta2=0.9999),
    "clip at 0.1": with_solver(clip_radius=0.1),
}
BY_ROWS = ("mean by rows", "rho by rows")


def variants() -> list[str]:
    return ["as printed", *PATCHES, *CHANGES, *BY_ROWS, "equal sizes", "noise 1", "noise 2"]


def clients_of(bench: runs.Bench, variant: str, seed: int) -> list[Rows]:
    """The split of a seed; or the same classes by Dirichlet draws, and clients of equal size."""
    if variant != "equal sizes":
        return bench.clients(bench.drawn(seed), seed)
    rows = bench.drawn(seed)
    y, rng = bench.y[rows], np.random.default_rng([seed, 1])
    parts = partition.two_dirichlet(y, 10, 1e6, 0.5, rng)
    return [bench.rows(bench.X[rows[part]], y[part]) for part in parts]


def trained(bench: runs.Bench, variant: str, seed: int, most: int) -> dict[str, Any]:
    """One run: accuracy, objective, and the pull of dual and anchor, by round."""
    (entry,) = (e for e in bench.experiment.expanded() if e.label == "IVONADMM")
    entry = CHANGES.get(variant, as_it_is)(entry)
    method = entry.method()
    if variant in BY_ROWS:
        field = "server_share" if variant.startswith("mean") else "client_share"
        method = replace(method, **{field: "rows"})
    torch.manual_seed(seed)
    model = bench.experiment.network(bench.test.X[0].numel())
    clients = clients_of(bench, variant, seed)
    sizes = torch.tensor([float(len(rows)) for rows in clients])
    shares = sizes / sizes.sum()
    weights = method.rho * (len(clients) * shares if method.client_share == "rows" else torch.ones(len(clients)))
    seen: dict[str, list[Any]] = {"accuracy": [], "objective": [], "concave": [], "largest_step": [], "client": []}
    last = [torch.zeros(1)]

    def note(record: Any, state: State) -> None:
        seen["accuracy"].append(record.at_mean.accuracy)
        seen["objective"].append(record.objective)
        # the quadratic of dual and anchor, ρ_k s_g − u_k; where it is negative the client is pushed away
        pull = weights[:, None] * state.precision - state.site_precision
        share = (pull < 0).float().mean(dim=1)
        seen["concave"].append(float(share.max()))
        seen["client"].append(int(share.argmax()))
        seen["largest_step"].append(float((state.mean - last[0]).abs().max()))
        last[0] = state.mean

    with ExitStack() as stack:
        if variant in PATCHES:
            stack.enter_context(PATCHES[variant]())
        warnings.simplefilter("ignore")
        result = run(
            method,
            clients,
            model,
            entry.prior_precision or 1.0,
            most,
            solver=entry.local_work(),
            temperature=entry.temperature or 1.0,
            seed=seed + 1000 * (int(variant.split()[1]) if variant.startswith("noise") else 0),
            evaluate=bench.test,
            ensemble=1,
            callback=note,
        )
    return {
        "variant": variant,
        "seed": seed,
        "status": result.status.name,
        "rounds": len(result.history),
        "largest_share": float(shares.max()),
        "largest_client": int(sizes.argmax()),
        **seen,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=variants())
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"runs": []}
    bench = runs.Bench(Experiment.read(FILE), Path(gettempdir(), "divergence"))
    for variant in given.only:
        for seed in given.seeds:
            same = [one for one in found["runs"] if (one["variant"], one["seed"]) == (variant, seed)]
            if any(one["rounds"] >= given.rounds or one["status"] == "DIVERGED" for one in same):
                continue
            one = trained(bench, variant, seed, given.rounds)
            found["runs"] = [other for other in found["runs"] if other not in same] + [one]
            OUT.write_text(json.dumps(runs._plain(found), indent=1) + "\n", encoding="utf-8")
            print(variant, seed, one["status"], one["rounds"], one["accuracy"][-1:], flush=True)


if __name__ == "__main__":
    main()
