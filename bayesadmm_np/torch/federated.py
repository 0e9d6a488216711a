"""Engine of networks for sites on other machines: the rounds of `run(..., batched=False)`.

Tensors travel as float64 vectors, which represent every float32 exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .._archive import refusal
from .._fields import Condition, Field
from .._validation import Array, as_count, as_positive
from ..federation.bounds import require_work
from ..federation.consent import NETWORK, require_rules
from ..federation.disclosure import Basis
from ..federation.engine import Gathered, ServerEngine, SiteEngine, require
from ..federation.messages import Hello, Message, ReplyHeader, Report, Served, SiteReply, read_final
from ..federation.spec import RunSpec, keys_of
from ..splitting.method import Method, NetworkMethod
from ..splitting.round import complete
from ..splitting.settings import SETTINGS
from ..splitting.status import Failure, Status
from ..splitting.step import Step
from .certificate import fisher_length, losses, pooled_objective
from .likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from .methods import FunctionalMethod, LaplaceMethod, PersonalMethod
from .network import Network, Rows
from .problem import AdamSteps, IVONSteps, SGDSteps, Solver
from .round import Replies, answer, ended, gathered, is_usable, moved, recorded
from .state import TENSORS, Broadcast, Duals, RoundRecord, State
from .stream import Stream, rows_of
from .team import Team, build, fit, read_device

for kind in (AdamSteps, SGDSteps, IVONSteps, NetworkMethod, LaplaceMethod, Categorical, Bernoulli, Gaussian):
    SETTINGS.register(kind)


@dataclass(frozen=True)
class NetworkReplyHeader(ReplyHeader):
    """A reply: ℓ_k/τ at each point, and whether λ_k is a distribution."""

    value: tuple[float, ...]
    solved: bool | None


FAR = 100.0
"""Largest ratio of a site's value, or of its answer's length, to the values or lengths of others and of before."""

NOT_NEGATIVE = ("running_var", "num_batches_tracked")
"""A variance and a counter, by the names that torch's normalisations give them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkSpec(RunSpec):
    """The spec of a run of a network; `network` is the model's `signature`, and `dim` its number of parameters."""

    engine: ClassVar[str] = "network"

    method: Method
    solver: Solver
    network: str
    dim: int
    prior_precision: float = 1.0
    temperature: float = 1.0
    likelihood: Likelihood = Categorical()  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        _require_plain(self.method)
        require_work(solver=self.solver)
        if self.solver.keep_moments:
            require("network", "kept moments")
        for name in ("prior_precision", "temperature"):
            object.__setattr__(self, name, as_positive(getattr(self, name), name))
            if not 1e-37 <= getattr(self, name) <= 1e38:
                raise ValueError(f"{name} must be from 1e-37 to 1e38, for float32, got {getattr(self, name)}.")
        as_count(self.dim, "dim")
        super().__post_init__()
        if not all(self.weights):
            raise ValueError(f"weights must be > 0, got {list(self.weights)}.")

    @property
    def limit(self) -> int:
        """Rounds at most, of the spec and of the method."""
        return min(self.rounds, self.method.max_rounds or self.rounds)

    def team(self, network: Network, here: Mapping[int, Rows | Stream]) -> Team:
        """Return what a round is computed with, where these sites' rows are."""
        settings = self.prior_precision, self.temperature, self.solver
        return build(self.method, network, self.weights, here, *settings, batched=False)


def _require_plain(method: object) -> None:
    """Refuse methods that only run in one process."""
    features = {Step: "acceleration", FunctionalMethod: "shared inputs", PersonalMethod: "personal models"}
    for kind, feature in features.items():
        if isinstance(method, kind):
            require("network", feature)


@dataclass(frozen=True)
class NetworkTask:
    """Server's task for a network over several sites; settings are as in `bayesadmm_np.torch.run`.

    Parameters
    ----------
    method : Method
    model : Module
        The run starts at its parameters.
    prior_precision, solver, temperature, rounds, seed, likelihood
        As in `run`.

    Examples
    --------
    Two sites, in this process:

    >>> import torch
    >>> from bayesadmm_np.federation import Coordinator, Site
    >>> from bayesadmm_np.torch import IVONADMM, NetworkData, NetworkTask, Rows
    >>> X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    >>> rows, model = Rows(X, (X[:, 0] > 0).long()), torch.nn.Linear(2, 2)
    >>> sites = [Site(name, NetworkData(rows, model)) for name in ("A", "B")]
    >>> server = Coordinator.start([site.hello() for site in sites], NetworkTask(IVONADMM(), model, rounds=2))
    >>> while server.outcome is None:
    ...     sites, replies = zip(*(site.step(server.broadcast()) for site in sites))
    ...     server = server.step(replies)
    >>> server.outcome.status.name, server.state.round, server.engine.model(server.state)(X).shape
    ('ROUND_LIMIT', 2, torch.Size([30, 2]))
    """

    method: Method
    model: nn.Module
    prior_precision: float = 1.0
    solver: Solver | None = None
    temperature: float = 1.0
    rounds: int = 10
    seed: int = 0
    likelihood: Likelihood | None = None

    def spec(self, hellos: Sequence[Hello]) -> NetworkSpec:
        """Return the spec of a run of these sites, whose models must have the layers of this one."""
        own = introduction_of(self._network())
        for hello in hellos:
            for name, expected in own.items():
                if hello.plain[name] != expected:
                    raise hello.refusal(name, f"that of the server's model, {expected!r}", hello.plain[name])
        sites = {hello.site: hello.weight for hello in hellos}
        return self._spec(sites, keys_of(hellos), [hello.rows for hello in hellos])

    def again(self, spec: NetworkSpec, rows: Sequence[int]) -> NetworkSpec:
        """Return the spec that this task gives the sites of another spec, with so many rows."""
        return self._spec(dict(zip(spec.sites, spec.weights, strict=True)), spec.keys, rows)

    def _network(self) -> Network:
        return Network(self.model, read_device("cpu"), self.likelihood)

    def _spec(self, sites: Mapping[str, float], keys: tuple[str, ...], rows: Sequence[int]) -> NetworkSpec:
        network = self._network()
        _require_plain(self.method)
        weights = tuple(map(float, sites.values()))
        settings = self.prior_precision, self.temperature, self.solver
        team = build(self.method, network, weights, {}, *settings, batched=False, rows=rows)
        run: dict[str, Any] = {
            name: getattr(self, name) for name in ("rounds", "seed", "prior_precision", "temperature")
        }
        run |= {"method": team.method, "solver": team.solver, "likelihood": network.likelihood}
        run |= {"network": network.signature, "dim": len(network.start), "keys": keys}
        return NetworkSpec(sites=tuple(sites), weights=weights, **run)


def introduction_of(network: Network) -> dict[str, Any]:
    """Return a hello's fields that describe the model."""
    loss = f"{network.observed or 'cross entropy'} of the network {network.signature}"
    return {"loss": loss, "dim": len(network.start), "features": [], "classes": []}


@dataclass(frozen=True)
class _Engine:
    """Spec of a run, and its team: without rows at the server, with the site's rows at a site."""

    spec: NetworkSpec
    team: Team

    @property
    def q_fields(self) -> Mapping[str, Field]:
        start = self.team.network.start
        precision = start if self.team.learns_precision else start[:1]
        return {"mean": _tensor(start), "precision": _tensor(precision, DISTRIBUTION), **self._statistics}

    def q_made(self, found: Mapping[str, Any]) -> Broadcast:
        return Broadcast(found["mean"], found["precision"], found.get("statistics", {}))

    @property
    def _statistics(self) -> dict[str, Field]:
        like = self.team.network.buffers
        return {"statistics": _unpacked(like)} if like else {}


@dataclass(frozen=True)
class NetworkServer(_Engine, ServerEngine[State]):
    """Engine at the server: the pure functions of `bayesadmm_np.torch` on the sites' replies."""

    record: ClassVar[Any] = RoundRecord
    reply_header: ClassVar[Any] = NetworkReplyHeader

    @classmethod
    def of(cls, spec: RunSpec, model: Any) -> NetworkServer:
        """Return the engine of a run at a server that has the model."""
        network = Network(model, read_device("cpu"), getattr(spec, "likelihood", None))
        if not isinstance(spec, NetworkSpec) or spec.network != network.signature:
            expected = f"the signature of this model, {network.signature}"
            raise refusal("model", expected, getattr(spec, "network", ""))
        return cls(spec, spec.team(network, {}))

    def model(self, state: State) -> nn.Module:
        """Return a copy of the model with its parameters set to m_g and its statistics to the sites' mean."""
        return self.team.network.module_at(state.mean, state.buffers)

    @property
    def reply_size(self) -> int:
        return self._size - (0 if self.team.learns_precision else 1)

    @property
    def state_size(self) -> int:
        statistics = sum(value.numel() for value in self.team.network.buffers.values())
        duals = 2 if self.team.method.dual_step else 1
        return self._size + self.team.n_clients * duals * (self._size - statistics)

    @property
    def _size(self) -> int:
        return sum(int(field.shape) for field in self.q_fields.values())

    def pack_q(self, state: State) -> dict[str, Array]:
        """Return q_g as vectors (m, s); the product s·m would differ by rounding from a run in one process."""
        return {"mean": vector(state.mean), "precision": vector(state.precision), **packed(state.buffers)}

    def q_of(self, state: State) -> Broadcast:
        return state.broadcast

    def reply_fields(self, header: NetworkReplyHeader, served: Served) -> Mapping[str, Field]:
        points = 2 if self.team.learns_precision else 1
        if len(header.value) != points:
            raise refusal("value", f"{points} numbers, one a point", list(header.value))
        if not header.solved:
            return {}
        q_g = served.q_g
        precision = {"precision": _tensor(q_g.precision, DISTRIBUTION)} if self.team.learns_precision else {}
        return {"linear": _tensor(q_g.mean), **precision, **self._statistics}

    def reply_made(
        self, header: NetworkReplyHeader, found: Mapping[str, Any], served: Served, k: int, state: State
    ) -> SiteReply:
        if not header.solved:
            return SiteReply(Report(header.value), None)
        precision = found.get("precision", served.q_g.precision)
        statistics = {name: value[None] for name, value in found.get("statistics", {}).items()}
        return SiteReply(Report(header.value), Replies((k,), found["linear"][None], precision[None], statistics))

    def strays(self, state: State, replies: Mapping[int, SiteReply]) -> dict[int, str]:
        """Return the sites whose answer or value is `FAR` times as large as others' and earlier ones.

        A network's loss has no bound. So an answer is compared with other sites' answers, last answers, the server's
        distance from zero, and one standard deviation; a value with other sites' values and the start's total.
        """
        linear, precision = state.precision * state.mean, state.precision
        before = state.client_precision if len(precision) > 1 else precision
        own = fisher_length(state, state.client_linear - linear, before - precision)
        least = max(1.0, own, fisher_length(state, linear[None], 0.0 * precision[None]))
        lengths = {
            k: fisher_length(state, one.answer.linear - linear, one.answer.precision - precision)
            for k, one in replies.items()
            if one.answer is not None
        }
        sizes = {k: max(one.report.value) for k, one in replies.items() if np.isfinite(one.report.value).all()}
        start = abs(state.start_objective) if np.isfinite(state.start_objective) else np.inf
        far = _apart("linear", "standard deviations from the server", lengths, least)
        return _apart("value", "nats", sizes, start) | far

    def start(self) -> State:
        return self.team.start()

    def complete(self, state: State, replies: Sequence[SiteReply | None]) -> State | Failure:
        """Fill in the objective, without clients that were left out."""
        dropped = state.history[-1].dropped if state.history else ()
        asked = [one for k, one in enumerate(replies) if k not in dropped]
        found = [one.report.value for one in asked if one is not None]
        is_whole = len(found) == len(asked)
        reached = pooled_objective(self.team, state, found) if is_whole else float("nan")
        if not state.history:
            return replace(state, start_objective=reached)
        return complete(self.spec.method.knobs, state, reached, is_whole)

    def terminated(self, state: State, replies: Sequence[SiteReply | None]) -> Status | None:
        return ended(self.team, state, self.spec.limit)[0]

    def at_the_limit(self, state: State, replies: Sequence[SiteReply | None]) -> str:
        return ended(self.team, state, self.spec.limit)[1]

    def gather(self, state: State, replies: Sequence[SiteReply | None]) -> Gathered[State] | Failure:
        """Eq. 16 and Eq. 54; a site whose λ_k is no distribution is left out."""
        present = [k for k, one in enumerate(replies) if one is not None]
        good = {k: one.answer for k, one in enumerate(replies) if one is not None and one.answer is not None}
        linear = torch.cat([state.client_linear[:0], *(one.linear for one in good.values())])
        own = torch.cat([state.client_precision[:0], *(one.precision for one in good.values())])
        own = own if self.team.learns_precision else state.precision[None]
        statistics = {name: torch.cat([one.buffers[name] for one in good.values()]) for name in state.buffers if good}
        after = gathered(self.team, state, Replies(tuple(good), linear, own, statistics))
        if isinstance(after, Failure):
            return after
        dropped = [k for k in present if k not in good]
        if not all(bool(torch.isfinite(getattr(after, part)).all()) for part in TENSORS):
            # no site, and no reader of the checkpoint, would take it; one process ends on the objective there
            lost = complete(self.spec.method.knobs, recorded(self.team, state, after, present, ()), float("nan"), True)
            assert isinstance(lost, Failure)
            return lost
        return Gathered(recorded(self.team, state, after, present, dropped))

    def pack_state(self, state: State) -> tuple[dict[str, Any], dict[str, Array]]:
        arrays = {part: vector(getattr(state, part)) for part in TENSORS} | packed(state.buffers)
        return {"answers": len(state.client_linear)}, arrays

    def state_fields(self, header: Any, like: State) -> Mapping[str, Field]:
        count = header.get("answers")
        if type(count) is not int or not 1 <= count <= self.team.n_clients:
            raise refusal("answers", f"a count from 1 to {self.team.n_clients}", count)
        like = like.with_answers(count)
        return {part: _tensor(getattr(like, part)) for part in TENSORS} | self._statistics

    def state_made(self, header: Any, found: Mapping[str, Any], like: State) -> State:
        return replace(like, **{part: found[part] for part in TENSORS}, buffers=found.get("statistics", {}))

    def copy_of(self, state: State, k: int) -> tuple[int, dict[str, Array]]:
        return 0, NetworkAnswer(0, state.duals([k])).vectors


def _apart(name: str, unit: str, sizes: Mapping[int, float], least: float) -> dict[int, str]:
    """Return the sites whose size is `FAR` times that of each other one, and above `least` of a size."""
    found = {}
    for k, size in sizes.items():
        most = FAR * max([least, *(other for j, other in sizes.items() if j != k and np.isfinite(other))])
        if len(sizes) > 1 and not size <= most:
            found[k] = f"{name} must be at most {most:.3g} {unit}, as those of others, got {size:.3g}"
    return found


@dataclass(frozen=True, eq=False)
class NetworkData:
    """The rows of a site, and the network that they train.

    Parameters
    ----------
    rows : Rows, Dataset or DataLoader
        As the clients of `run`.
    model : Module
        With the layers of the server's; its own parameters are not used.
    device : str or device, default 'cpu'
    likelihood : Likelihood, optional
        The server's; default `Categorical()`.

    Raises
    ------
    ValueError
        When rows and model are not what they should be.

    Examples
    --------
    See `NetworkTask` for a whole run.

    >>> import torch
    >>> from bayesadmm_np.federation import Site
    >>> from bayesadmm_np.torch import MLP, NetworkData, Rows
    >>> site = Site("A", NetworkData(Rows(torch.zeros(3, 2), torch.tensor([0, 1, 1])), MLP((2, 2))))
    >>> site.hello().header["dim"], site.hello().header["rows"]
    (6, 3)
    """

    rows: Rows | Dataset[Any] | DataLoader[Any]
    model: nn.Module
    device: str | torch.device = "cpu"
    likelihood: Likelihood | None = None
    network: Network = field(init=False, repr=False)
    """The model as a function of a flat vector."""

    engine: ClassVar[str] = "network"

    def __post_init__(self) -> None:
        if not isinstance(self.rows, Rows | Dataset | DataLoader):
            raise ValueError(f"rows must be Rows(X, y), a Dataset or a DataLoader, got {type(self.rows).__name__}.")
        object.__setattr__(self, "network", Network(self.model, read_device(self.device), self.likelihood))

    @property
    def digest(self) -> str:
        return self._own.digest

    @property
    def _own(self) -> Rows | Stream:
        return rows_of(self.rows)

    @cached_property
    def mass(self) -> float:
        """Total weight of the rows, as the site will train with them."""
        if self._own.weights is None and self.network.likelihood.weights is None:
            return float(len(self._own))
        return float(fit(self.rows, "rows", self.network, self.network.start.device).mass)

    @property
    def most(self) -> int:
        return len(self.network.start)

    def introduction(self) -> dict[str, Any]:
        return {**introduction_of(self.network), "rows": len(self._own), "weight": self.mass}

    def basis(self, heard: Any, name: str) -> Basis:
        """Return what an answer rests on: a network has more parameters than rows."""
        return Basis(len(self._own))

    def join(self, spec: RunSpec, name: str, privacy: Any) -> NetworkSite:
        assert isinstance(spec, NetworkSpec)
        require_rules(NETWORK, spec, self, name)
        k = spec.sites.index(name)
        rows = fit(self.rows, f"site {name}", self.network, self.network.start.device)
        return NetworkSite(spec, spec.team(self.network, {k: rows}), k)


@dataclass(frozen=True)
class NetworkAnswer:
    """Dual η_k after the answer to the broadcast of a round; 0 before the first."""

    round: int
    dual: Duals

    @property
    def numbers(self) -> list[Any]:
        return [self.round]

    @property
    def vectors(self) -> dict[str, Array]:
        return {"linear": vector(self.dual.linear), "precision": vector(self.dual.precision)}


@dataclass(frozen=True)
class NetworkSite(_Engine, SiteEngine[NetworkAnswer]):
    """The engine at a site: a `Team` with the rows of this site alone."""

    numbers: ClassVar[Any] = tuple[int]

    index: int

    @property
    def begins_at_round_one(self) -> bool:  # type: ignore[override]
        return bool(self.spec.method.dual_step)

    def first(self, q_g: Broadcast) -> NetworkAnswer:
        return NetworkAnswer(0, self._start(q_g.mean))

    def report(self, served: Served, counted: NetworkAnswer) -> tuple[Report, dict[str, Any], dict[str, Array]]:
        value = losses(self.team, served.q_g, self.spec.seed, [self.index])[0]
        return Report(value), {"value": list(value)}, {}

    def answer(
        self, served: Served, counted: NetworkAnswer, report: Report, earlier: NetworkAnswer | None
    ) -> tuple[NetworkAnswer | None, bool, dict[str, Array]]:
        """Train, and move the dual; nothing is sent where λ_k is no distribution."""
        number, q_g = served.round, served.q_g
        replies = answer(self.team, q_g, counted.dual, [self.index], number, self.spec.seed)
        if not bool(is_usable(replies, q_g.buffers)):
            return None, False, {}
        statistics = {name: stack[0] for name, stack in replies.buffers.items()}
        arrays = {"linear": vector(replies.linear), **packed(statistics)}
        if self.team.learns_precision:
            arrays["precision"] = vector(replies.precision)
        return NetworkAnswer(number, moved(self.team.at(number), q_g, counted.dual, replies)), True, arrays

    def answer_made(self, numbers: Any, found: Mapping[str, Any]) -> NetworkAnswer:
        return NetworkAnswer(numbers[0], Duals(**found))

    @property
    def copy_fields(self) -> Mapping[str, Field]:
        like = self._start(self.team.network.start)
        return {name: _tensor(getattr(like, name)) for name in ("linear", "precision")}

    answer_fields = copy_fields

    def adopted(self, counted: int, found: Mapping[str, Any]) -> NetworkAnswer:
        return NetworkAnswer(counted, Duals(**found))

    def _start(self, mean: Tensor) -> Duals:
        """η_k at the start."""
        network = copy(self.team.network)
        network.start = mean
        return replace(self.team, network=network).start().duals([self.index])


def final_model(message: Message, model: nn.Module) -> nn.Module:
    """Return a copy of a model with the parameters m_g and the statistics of a final message.

    Parameters
    ----------
    message : Message
        Of kind "final"; its vector "precision" is s_g.
    model : Module
        With the layers of the run's.

    Raises
    ------
    MessageError
        When the message is not a final one, or of another model.

    Examples
    --------
    See `NetworkTask` for a whole run.
    """
    found, served = read_final(message, partial(NetworkServer.of, model=model))
    return found.team.network.module_at(served.q_g.mean, served.q_g.buffers)


def vector(tensor: Tensor) -> Array:
    """Return a tensor as a float64 vector."""
    return np.array(tensor.detach().cpu().double().reshape(-1).numpy())


DISTRIBUTION = Condition(
    "a distribution's: positive",
    lambda tensor, known: bool((tensor > 0).all()),
    lambda tensor: f"{float(tensor.min()):g}",
)


def _tensor(like: Tensor, *conditions: Condition) -> Field:
    """A tensor of this shape, finite also in this dtype."""

    def made(values: Array) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(like.shape)

    finite = Condition(
        f"finite in {like.dtype}",
        lambda tensor, known: bool(torch.isfinite(tensor).all()),
        lambda tensor: "larger numbers",
    )
    return Field(like.numel(), (finite, *conditions), made)


def packed(buffers: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return running statistics as one named vector; nothing where there are none."""
    return {"statistics": np.concatenate([vector(value) for value in buffers.values()])} if buffers else {}


def _unpacked(like: Mapping[str, Tensor]) -> Field:
    """Inverse of `packed`; a variance or a counter below zero is refused."""
    sizes = [value.numel() for value in like.values()]

    def made(values: Array) -> dict[str, Tensor]:
        pieces = torch.tensor(values).split(sizes)
        found = {key: piece.to(value.dtype) for (key, value), piece in zip(like.items(), pieces, strict=True)}
        for (key, value), piece in zip(found.items(), pieces, strict=True):
            # a float is rounded, as elsewhere; a counter that is no whole number of its dtype is none
            if not bool((torch.isfinite(value) if value.is_floating_point() else value.double() == piece).all()):
                raise refusal(f"statistics of {key}", f"numbers of {value.dtype}", f"{float(piece.abs().max()):g}")
            if key.rpartition(".")[2] in NOT_NEGATIVE and not bool((value >= 0).all()):
                raise refusal(f"statistics of {key}", ">= 0", f"{float(value.min()):g}")
        return {key: found[key].to(value.device).view(value.shape) for key, value in like.items()}

    return Field(sum(sizes), (), made)
