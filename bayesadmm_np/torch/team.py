"""Clients, network, method and solver that fit each other: what a round is run with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .._errors import ArgumentError
from .._validation import as_positive
from ..families import DiagonalGaussian, IsotropicGaussian
from ..splitting.average import as_step
from ..splitting.method import NetworkMethod, circuit_weights, client_coefficients
from ..splitting.methods import Method
from .functional import shared_terms
from .likelihoods import Categorical, Likelihood
from .methods import FunctionalMethod, PersonalMethod, family_of, for_clients
from .network import Network, Rows, placed
from .problem import AdamSteps, IVONSteps, LocalProblem, Moments, PersonalSteps, PointSteps, Solver
from .state import Broadcast, Duals, State
from .stream import MOST, Stream, rows_of


@dataclass(frozen=True)
class Team:
    """Clients, network, method and solver; `sizes` has all N_k, `clients` the rows in this process by number."""

    method: Method
    family: type
    network: Network
    sizes: tuple[float, ...]
    clients: Mapping[int, Rows | Stream]
    solver: Solver
    delta: float
    temperature: float
    batched: bool

    @property
    def n_clients(self) -> int:
        """K, here or elsewhere."""
        return len(self.sizes)

    @property
    def learns_precision(self) -> bool:
        """Return whether s has an entry a parameter."""
        return self.family is DiagonalGaussian

    @property
    def is_variational(self) -> bool:
        """Return whether the method's expectation is an integral, and not the delta method's value at the mean."""
        return self.learns_precision and self.method.expectation is None

    @property
    def shares(self) -> Tensor:
        """N_k/N, shape (K,)."""
        rows = torch.tensor(self.sizes, dtype=torch.float64)
        return rows / rows.sum()

    @property
    def keeps_answers(self) -> bool:
        """Return whether a state has λ_k of clients that were absent: beside duals, or for a mean over all clients."""
        return bool(self.method.dual_step) or self.method.mean_over == "all"

    def at(self, round: int) -> Team:
        """Return the team with the method and the rate of a round."""
        row, solver = self.method.at(round), self.solver.at(round)
        return self if row is self.method and solver is self.solver else replace(self, method=row, solver=solver)

    @property
    def ess(self) -> float | None:
        """Given λ of every client where the solver has one, in place of N_k/(ρτ)."""
        return self.solver.ess if isinstance(self.solver, IVONSteps) else None

    def temperature_of(self, k: int) -> float:
        """Return the divisor of ℓ_k: τ, or with a given λ N_k/(ρλ)."""
        return self.temperature if self.ess is None else self.sizes[k] / ((self.method.rho or 1.0) * self.ess)

    def coefficients(self, chosen: Sequence[int], name: Literal["rho", "step", "prior"]) -> Tensor:
        """Return ρ_k, γ_k or π_k of some clients, shape (k, 1)."""
        shares = self.shares[list(chosen)].tolist()
        found = [getattr(client_coefficients(self.method, share, self.n_clients), name) for share in shares]
        return torch.tensor(found, dtype=torch.float64).to(self.network.start)[:, None]

    @property
    def prior_weight(self) -> float:
        """KL(q‖prior) = w KL(q‖start) + const: only the isotropic family has w = δ (see the core's table)."""
        return self.delta if self.family is IsotropicGaussian else 1.0

    def start(self) -> State:
        """Return the state before the first round, whose rows are views; its objective is not known yet.

        With a dual, and the prior at the server, the sites share what the model's parameters differ by from the prior's
        mean: λ_g = λ_0 + Σ_kη_k (wλ_g in the isotropic family).
        """
        mean, clients, moments = self.network.start, self.n_clients, None
        if self.solver.keep_moments:
            moments = Moments(mean.new_zeros(clients, 2, len(mean)), (0,) * clients)
        one = 1.0 if self.family is IsotropicGaussian else self.delta
        precision = torch.full_like(mean if self.learns_precision else mean[:1], one)
        site = precision.new_zeros(1, 1)
        if self.method.dual_step:
            # a prior at the clients is part of their problem: the server has nothing to share out
            above = circuit_weights(self.method, self.prior_weight)[0] * precision * mean
            site = (above / clients).expand(clients, -1)
        second = precision.new_zeros(1, 1)
        if self.method.dual_step and self.learns_precision:
            second = torch.zeros_like(mean).expand(clients, -1)
        answers = clients if self.keeps_answers else 1
        linear = (precision * mean).expand(answers, -1)
        own = precision.expand(answers if self.learns_precision else 1, -1)
        return State(
            mean, precision, site, second, linear, own, self.network.buffers, float("nan"), (), moments=moments
        )

    def problem(self, broadcast: Broadcast, duals: Duals, chosen: Sequence[int]) -> LocalProblem:
        """Eq. 66; a regulariser at the clients is merged into the anchor, where it is one more quadratic term."""
        rho, centre, precision = self.coefficients(chosen, "rho"), broadcast.mean[None], broadcast.precision[None]
        is_continued = isinstance(self.solver, IVONSteps) and self.solver.hess_start == "server"
        reached = precision if is_continued and not bool((precision == self.delta).all()) else None
        if self.method.prior_at == "nowhere":  # λ alone is left, which the solver has
            rho, precision = torch.ones_like(rho), torch.zeros_like(precision)
        elif self.method.prior_at != "server":
            own = self.coefficients(chosen, "prior")
            weight = rho + own * self.prior_weight
            mixed = rho * precision + own * self.delta
            centre, precision, rho = rho * precision / mixed * centre, mixed / weight, weight
        shared, sizes = None, torch.tensor([[self.sizes[k]] for k in chosen], dtype=torch.float64)
        if broadcast.memory is not None:
            held = broadcast.memory, broadcast.mean, chosen, sizes.to(centre)
            shared = shared_terms(self.network, *held, broadcast.buffers)
        scale = (self.temperature / sizes).to(rho)
        if self.ess is not None:
            scale = (rho * self.ess).reciprocal_()
        around = broadcast.mean, centre, precision, duals.linear, duals.precision, rho, scale
        served = broadcast.precision[None] if self.learns_precision else None
        return LocalProblem(*around, shared, reached, served, duals.moments)


def read_device(device: str | torch.device) -> torch.device:
    """Return the device; ValueError if it cannot be used."""
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).add_(1.0)  # what this build has no kernels for fails here
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device={str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error
    if place.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"device={str(device)!r} cannot be used: only 'cpu' and 'cuda' are tested, and have float64.")
    return place


def assemble(
    method: Method,
    clients: Sequence[Rows | Dataset[Any] | DataLoader[Any]],
    model: nn.Module,
    prior_precision: float,
    temperature: float,
    solver: Solver | None,
    batched: bool,
    place: torch.device,
    likelihood: Likelihood | None = None,
) -> Team:
    """Check that everything fits, before the first round."""
    network = Network(model, place, likelihood)
    if isinstance(clients, Rows | Dataset | DataLoader) or not isinstance(clients, Iterable):
        raise ValueError(f"clients must be a sequence of Rows or Datasets, got {type(clients).__name__}.")
    data = tuple(fit(rows, f"client {k}", network, place) for k, rows in enumerate(clients))
    if not data:
        raise ValueError("clients must hold at least one client, got none.")
    shapes = [tuple(rows.first(1).shape[1:]) for rows in data]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(f"client {k}: inputs must have the shape of client 0's, {shapes[0]}, got {shape}.")
    sizes, here = tuple(rows.mass for rows in data), dict(enumerate(data))
    rows = tuple(len(each) for each in data)
    return build(method, network, sizes, here, prior_precision, temperature, solver, batched, rows)


def build(
    method: Method,
    network: Network,
    sizes: tuple[float, ...],
    clients: Mapping[int, Rows | Stream],
    prior_precision: float,
    temperature: float,
    solver: Solver | None,
    batched: bool,
    rows: Sequence[float] | None = None,
) -> Team:
    """Return the team of clients of these sizes; `clients` has the rows of the clients in this process.

    A solver's rates that are left open follow from the numbers of `rows`, and from N_k where these are not known.
    """
    if not isinstance(method, Method):
        raise ArgumentError("method", "must be a method of `methods` for networks", repr(as_step(method)))
    delta, tau = as_positive(prior_precision, "prior_precision"), as_positive(temperature, "temperature")
    family, method = family_of(method), for_clients(method, sizes, tau)
    if family is DiagonalGaussian and len(network.start) < 2:  # one number stands for a precision that is not learned
        raise ValueError(f"model must have at least two parameters for {method.name}, which learns precisions.")
    if method.prior_at == "clients" and family is not IsotropicGaussian:
        raise ValueError(f"{method.name}: shares of the prior at the clients are for the isotropic family only.")
    variational = family is DiagonalGaussian and method.expectation is None
    kind: type[Solver] = IVONSteps if variational else AdamSteps
    if isinstance(method, PersonalMethod):
        kind = method.work
    chosen = solver or kind()
    if not isinstance(chosen, PointSteps if kind is AdamSteps else kind):
        wanted = "AdamSteps(...) or SGDSteps(...)" if kind is AdamSteps else f"{kind.__name__}(...)"
        raise ValueError(f"{method.name} needs solver={wanted}, got {chosen!r}.")
    chosen = chosen.for_clients(sizes, sizes if rows is None else rows, method, tau)
    if batched and network.buffers:
        names = ", ".join(list(network.buffers)[:3])
        raise ValueError(f"batched must be False for a model with buffers, such as running statistics ({names}, ...).")
    if isinstance(chosen, IVONSteps) and chosen.ess is not None:
        if method.schedule is not None:
            raise ValueError(f"ess needs a method without a schedule of ρ, got {method!r}.")
        if method.prior_at == "nowhere" and chosen.hess_init <= 0:
            raise ValueError(f"hess_init must be > 0 for beta=0, where s_k = ess h_k, got {chosen.hess_init!r}.")
        if method.name == "FedIvon" and method.rho not in (0, 1):
            raise ValueError(f"ess is λ = ess/β itself in FedIvon: give FedIvon() and ess={chosen.ess / method.rho:g}.")
    elif isinstance(method, NetworkMethod):
        raise ValueError("ess must be given for FedIvon with beta=0 or average='hessian': IVONSteps(ess=5000.0, ...).")
    if isinstance(chosen, PointSteps) and chosen.curvature_samples is not None and family is not DiagonalGaussian:
        raise ValueError(f"curvature_samples needs a method with a curvature, such as FedLapCov, got {method.name}.")
    if isinstance(chosen, PersonalSteps):
        chosen.check(network)
    if isinstance(method, FunctionalMethod):
        if not isinstance(network.likelihood, Categorical):
            raise ValueError(f"{method.name} shares soft labels: it needs likelihood=Categorical().")
        if any(isinstance(rows, Stream) for rows in clients.values()):
            raise ValueError(f"{method.name} shares rows, drawn by their classes: its clients must be Rows.")
    _check_last_batches(network, clients, chosen.batch_size)
    return Team(method, family, network, sizes, clients, chosen, delta, tau, batched)


def _check_last_batches(network: Network, clients: Mapping[int, Rows | Stream], batch_size: int) -> None:
    """Refuse a batch of one row where the model normalises over rows alone."""
    for k, rows in clients.items():
        if network.buffers and (len(rows) - 1) % batch_size == 0:
            buffers = {name: buffer.clone() for name, buffer in network.buffers.items()}
            place = network.start.device
            try:
                with torch.random.fork_rng([place] if place.type == "cuda" else []):
                    network.logits(network.leaves(network.start[None]), rows.first(1)[None], buffers, train=True)
            except ValueError as error:
                fact = f"client {k}: its {len(rows)} rows leave one to the last batch of {batch_size}"
                raise ValueError(f"{fact}; choose another batch_size ({error}).") from error


def fit(given: object, name: str, network: Network, place: torch.device) -> Rows | Stream:
    """Move rows to the device and the network's dtype, and try two of them; rows of a Dataset move when made."""
    like, likelihood = network.start, network.likelihood

    def read(rows: Rows) -> Rows:
        weights = None if rows.weights is None else placed(rows.weights.detach(), like)
        try:
            y = likelihood.read(placed(rows.y, like), outputs)
            if likelihood.weights is not None:
                weights = likelihood.weighed(rows.weighted.to(like), y)
            new: dict[str, Any] = {"X": placed(rows.X, like), "y": y, "weights": weights}
            is_same = all(getattr(rows, key) is each for key, each in new.items())
            return rows if is_same else replace(rows, **new)  # whose checks take time
        except ValueError as error:  # what is fine in double precision may not be in single
            raise ValueError(f"{name}: {error}") from error

    try:
        found = rows_of(given)
        if isinstance(found, Stream):
            found.check()
            found = replace(found, name=name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    logits = network.tried(like, placed(found.first(2), like), network.buffers, name)
    if logits.ndim != 2:
        raise ValueError(f"{name}: the model must return outputs of shape (n, C), got {tuple(logits.shape)}.")
    outputs = logits.shape[1]
    wrong = (logits < 0).any() | ((logits.sum(dim=1) - 1).abs() > 1e-5).any()
    if likelihood.has_classes and outputs > 1 and not bool(wrong):
        raise ValueError(f"{name}: the model must return logits, got probabilities: leave out its last softmax.")
    if isinstance(found, Rows):
        return read(found)
    found = replace(found, read=read)
    if likelihood.weights is None:
        return found
    return replace(found, weights=torch.cat([own for *_, own in found.passes(MOST)]))  # of labels, a pass
