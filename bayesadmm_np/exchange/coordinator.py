"""The server: hellos make a run, replies make the next broadcast, and the run ends as it would in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from .._validation import Array
from ..clients.problem import ClientStatus
from ..clients.solver import Solver
from ..families.base import ExponentialFamily
from ..families.coordinates import Coordinates, Displacement, Natural
from ..families.gaussian import Gaussian
from ..families.precision import DensePrecision
from ..losses.base import Expected, GaussianExpected
from ..losses.expectations import Rule
from ..splitting.accelerated import Accelerated, Memory
from ..splitting.certificate import Certificate, pooled_distance, pooled_residual
from ..splitting.distance import Distance
from ..splitting.history import ClientRecord, Edges, RoundRecord
from ..splitting.loop import ALL_ROUNDS, at_the_limit, has_converged
from ..splitting.methods import Method
from ..splitting.round import UNKNOWN, advance, diverged, edges, rises_without_bound
from ..splitting.state import State
from ..splitting.status import Failure, Status
from ..splitting.team import pooled_objective
from .message import Message, MessageError, content_of
from .terms import INTERCEPT, MOST_ROWS, Terms, as_site_name, require_sum_of_factors
from .wire import Answered, Sent, Served, as_flag, as_integer, as_real, as_text, read_reply

__all__ = ["Coordinator", "Outcome"]

HELLO = ("site", "loss", "dim", "rows", "weight", "features", "classes")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `round` is the number of the final message; `certificate` is None where a site did not send sums at the last λ_g.
    """

    status: Status
    message: str
    round: int
    certificate: Certificate | None


@dataclass(frozen=True)
class _Open:
    """A round that was gathered and waits for the sites' reports at its λ_g."""

    sites: tuple[Natural, ...]
    naturals: tuple[Natural, ...]
    natural: Natural
    memory: tuple[Memory, ...]
    alpha: float
    clients: tuple[ClientRecord, ...]
    mixed: bool
    floats_down: int
    floats_up: int


@dataclass(frozen=True, eq=False)
class Coordinator:
    """The server of a run as an explicit state with a pure step: (server, replies) → server.

    A round needs one exchange. The reply to the broadcast of λ_g(t) holds E_{q_g(t)}[ℓ_k], which completes the record
    of round t, and λ_k of round t + 1. What one process decides after round t is decided here with the replies that
    follow: on convergence the λ_k that came along are left unused.

    Made by `start`, `step` and `restore`. Wall times are not recorded: the same messages make the same state.

    Parameters
    ----------
    terms : Terms
    rows : tuple of int
        Rows of each site.
    state : State
        After the last round whose record is complete.
    gathered : object or None
        The round that waits for its reports.
    counted : tuple of int
        Round of each site's last answer in the sum; 0 before the first.
    mixed : tuple or None
        The last round that acceleration mixed, and its weights.
    taken : tuple of str
        Digests of the replies of the last step, by which a repeated step is known.
    outcome : Outcome or None
        None while the run goes on.

    Examples
    --------
    See `Site` for a whole run.

    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.exchange import Coordinator, Site
    >>> site = Site("A", ba.losses.LeastSquares([[1.0]], [1.0]))
    >>> server = Coordinator.start([site.hello()], ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0))
    >>> server.broadcast().kind, server.number
    ('broadcast', 1)
    """

    terms: Terms
    rows: tuple[int, ...]
    state: State
    gathered: _Open | None
    counted: tuple[int, ...]
    mixed: tuple[int, tuple[float, ...]] | None
    taken: tuple[str, ...]
    outcome: Outcome | None

    @classmethod
    def start(
        cls,
        hellos: Sequence[Message],
        method: Method | Accelerated,
        prior: ExponentialFamily,
        *,
        expectation: Rule | None = None,
        solver: Solver | None = None,
        tol: float = 1e-6,
        rounds: int = 100,
        seed: int = 0,
        safeguard: bool = False,
        warm_start: bool = False,
        standardize: bool = False,
    ) -> Coordinator:
        """Make a run of the sites that said hello.

        Parameters
        ----------
        hellos : sequence of Message
            One a site; the sites' order is that of their names.
        method, prior, expectation, solver, tol, rounds, seed, safeguard, warm_start
            As in `bayesadmm_np.run`.
        standardize : bool, default False
            Let sites divide each column by its pooled standard deviation, and where the last column is an "intercept"
            first subtract its pooled mean; the hellos must hold the sums. A constant column is left as it is.

        Raises
        ------
        MessageError
            When a hello is damaged, or sites do not agree.
        ValueError
            When an argument is out of range.
        """
        read = read_hellos(hellos)
        require_alike(read)
        first = read[0]
        terms = Terms(
            method=method,
            prior=prior,
            sites=tuple(hello.header["site"] for hello in read),
            weights=tuple(hello.header["weight"] for hello in read),
            loss=first.header["loss"],
            features=tuple(first.header["features"]),
            classes=tuple(first.header["classes"]),
            expectation=expectation,
            solver=solver,
            tol=tol,
            rounds=rounds,
            seed=seed,
            safeguard=safeguard,
            warm_start=warm_start,
            **(_pooled_units(read) if standardize else {}),
        )
        dim = first.header["dim"]
        if prior.natural.linear.shape != (dim,):
            raise ValueError(f"prior must have the {dim} parameters of the sites, got {prior.natural.linear.size}.")
        rows = tuple(hello.header["rows"] for hello in read)
        begin = prior.start()
        q_g = begin.with_natural(begin.natural)
        sites = (begin.natural.zeros(),) * len(read)
        state = State(q_g, sites, (q_g.natural,) * len(read), (), float("nan"), ())
        return cls(terms, rows, state, None, (0,) * len(read), None, (), None)

    @property
    def number(self) -> int:
        """Round of the broadcast that waits for replies (of the final message: one more than the last)."""
        if self.outcome is not None:
            return self.outcome.round
        return self.state.round + (self.gathered is not None) + 1

    @cached_property
    def served(self) -> Served:
        """What the outstanding broadcast says."""
        natural = self.state.q_g.natural if self.gathered is None else self.gathered.natural
        solve = self.outcome is None and self.number <= self.terms.limit
        certify = self.outcome is None and (not solve or self._is_nearly_closed())
        return Served(self.number, natural, solve, certify, self.counted, self.mixed)

    @cached_property
    def sent(self) -> Sent:
        """The outstanding broadcast, for a `step` that takes it in when the server is further on."""
        return Sent(self.served, self.broadcast().digest)

    @property
    def unsettled(self) -> frozenset[str]:
        """Sites whose last counted answer is more than tol from what the outstanding broadcast asks, as far as known.

        They are those with λ_k − λ_g or η_k + ∇_μ E_{q_k}[ℓ_k] above tol; all of them before the first step.
        """
        if self.gathered is None:
            return frozenset(self.terms.sites)
        tol = self.terms.tol
        return frozenset(
            name
            for name, client in zip(self.terms.sites, self.gathered.clients, strict=True)
            if not max(client.broadcast, client.natural_gradient) <= tol
        )

    def broadcast(self) -> Message:
        """Return the message to the sites: λ_g, or when the run has ended the final one."""
        served = self.served
        spoken, arrays = self.terms.spoken()
        header: dict[str, Any] = {
            "run": self.terms.run,
            "round": served.round,
            "counted": list(served.counted),
            "mixed": None if served.mixed is None else [served.mixed[0], list(served.mixed[1])],
            "terms": spoken,
        }
        arrays["natural"] = served.natural.to_vector()
        if self.outcome is None:
            header |= {"solve": served.solve, "certify": served.certify}
            return Message("broadcast", header, arrays, f"broadcast {served.round}")
        header |= {
            "status": self.outcome.status.name,
            "message": self.outcome.message,
            "objective": [self.state.start_objective, *(record.objective for record in self.state.history)],
            "certificate": _spoken_certificate(self.outcome.certificate),
        }
        return Message("final", header, arrays, "final message")

    @np.errstate(over="ignore", invalid="ignore")  # the status says it
    def step(self, replies: Sequence[Message], earlier: Mapping[str, Sent] | None = None) -> Coordinator:
        """Take in the replies to the outstanding broadcast, of all sites or of those that came.

        A site without a reply keeps its η_k and λ_k in the sum. The objective of a round at which a site did not
        report is NaN, and convergence waits until all have. The same replies again change nothing.

        A reply to an `earlier` broadcast of version s moves its factor by Δη_k = γρ(λ_k − λ_g^{(s)}) all the same;
        what it says of objective and certificate, which are those of that λ_g, is left unused. η_k itself is never old:
        a broadcast from before the site's last counted answer is refused.

        Parameters
        ----------
        replies : sequence of Message
            At least one.
        earlier : mapping of str to Sent, optional
            By site, the broadcast that it answers where that is not the outstanding one. For rows whose server is the
            prior and the sum of the factors.

        Returns
        -------
        Coordinator

        Raises
        ------
        MessageError
            When a reply is damaged, or belongs to another run, round, site or broadcast.
        ValueError
            When there are no replies, the run has ended, or `earlier` is given for a row that cannot use it.
        """
        if earlier:
            require_sum_of_factors(self.terms.method)
        taken = digests_of(replies)
        if taken == self.taken:
            return self
        require_running(self.outcome)
        return replace(self._advanced(self._read(replies, earlier or {})), taken=taken)

    def save(self) -> Message:
        """Return the whole state as a message of kind "server"."""
        spoken, arrays = self.terms.spoken()
        state, waiting, outcome = self.state, self.gathered, self.outcome
        naturals = {"server": state.q_g.natural} | _named("state", state.sites, state.naturals, state.memory)
        header: dict[str, Any] = {
            "terms": spoken,
            "rows": list(self.rows),
            "counted": list(self.counted),
            "mixed": None if self.mixed is None else [self.mixed[0], list(self.mixed[1])],
            "taken": list(self.taken),
            "start_objective": state.start_objective,
            "history": [_plain_record(record) for record in state.history],
            "memory": len(state.memory),
            "waiting": None,
            "outcome": None,
        }
        if waiting is not None:
            naturals |= {"waiting": waiting.natural}
            naturals |= _named("waiting", waiting.sites, waiting.naturals, waiting.memory)
            header["waiting"] = {
                "memory": len(waiting.memory),
                "alpha": waiting.alpha,
                "clients": [_plain_client(client) for client in waiting.clients],
                "mixed": waiting.mixed,
                "floats_down": waiting.floats_down,
                "floats_up": waiting.floats_up,
            }
        if outcome is not None:
            certificate = _spoken_certificate(outcome.certificate)
            header["outcome"] = [outcome.status.name, outcome.message, outcome.round, certificate]
        arrays |= {name: natural.to_vector() for name, natural in naturals.items()}
        return Message("server", header, arrays)

    @classmethod
    def restore(cls, message: Message) -> Coordinator:
        """Return the server of a `save`.

        Raises
        ------
        MessageError
            When the file is not the state of a server.
        """
        if message.kind != "server":
            raise message.refusal("kind", "'server'", message.kind)
        with content_of(message, "the state of a server"):
            return cls._restored(message)

    @classmethod
    def _restored(cls, message: Message) -> Coordinator:
        terms, header = Terms.read(message), message.header
        like, n_sites = terms.prior.natural, len(terms.sites)
        waiting, outcome = header["waiting"], header["outcome"]
        sites, naturals, memory = _unnamed(message, like, "state", n_sites, header["memory"])
        history = tuple(RoundRecord.from_dict(plain) for plain in header["history"])
        q_g = terms.prior.start().with_natural(message.natural("server", like))
        gathered = None
        if waiting is not None:
            parts = _unnamed(message, like, "waiting", n_sites, waiting["memory"])
            gathered = _Open(
                sites=parts[0],
                naturals=parts[1],
                natural=message.natural("waiting", like),
                memory=parts[2],
                alpha=waiting["alpha"],
                clients=tuple(_client(plain) for plain in waiting["clients"]),
                mixed=waiting["mixed"],
                floats_down=waiting["floats_down"],
                floats_up=waiting["floats_up"],
            )
        if outcome is not None:
            status, text, number, certificate = outcome
            outcome = Outcome(Status[status], text, number, read_certificate(message, certificate))
        return cls(
            terms=terms,
            rows=tuple(header["rows"]),
            state=State(q_g, sites, naturals, memory, header["start_objective"], history),
            gathered=gathered,
            counted=tuple(header["counted"]),
            mixed=None if header["mixed"] is None else (header["mixed"][0], tuple(header["mixed"][1])),
            taken=tuple(header["taken"]),
            outcome=outcome,
        )

    # ------------------------------------------------------------------------------------------------
    # What a courier between server and sites asks beside the steps
    # ------------------------------------------------------------------------------------------------

    @property
    def reply_size(self) -> int:
        """Numbers that a reply holds at most."""
        like = self.terms.prior.natural
        return 2 * like.size + self.terms.certificate_like.size + like.linear.size

    def check(self, reply: Message, sent: Sent) -> None:
        """Raise MessageError unless the reply answers this broadcast, and holds what `step` can take in."""
        held = self.state if self.gathered is None else self.gathered
        site = held.sites[self.terms.sites.index(reply.header["site"])]
        read_reply(reply, self.terms, sent.served, sent.digest, site)

    def without_value(self, replies: Mapping[str, Message]) -> list[str]:
        """Return the sites whose E[ℓ_k] is no number; a site with privacy sends none."""
        values = {name: reply.header["value"] for name, reply in replies.items()}
        return [name for name, value in values.items() if value is not None and not np.isfinite(value)]

    def copy_of(self, name: str) -> Message:
        """Return η_k and λ_k as they are counted here, and the sites that acceleration mixes."""
        k = self.terms.sites.index(name)
        held = self.state if self.gathered is None else self.gathered
        arrays = {"natural": held.naturals[k].to_vector(), "site": held.sites[k].to_vector()}
        arrays |= {f"past{i}": item.sites[k].to_vector() for i, item in enumerate(held.memory)}
        header = {"run": self.terms.run, "site": name, "counted": self.counted[k], "past": len(held.memory)}
        return Message("copy", header, arrays, f"copy for {name}")

    def introduction(self, name: str) -> dict[str, Any]:
        """Return what the site said of itself when the run began."""
        terms, k = self.terms, self.terms.sites.index(name)
        return {
            "features": list(terms.features),
            "classes": list(terms.classes),
            "loss": terms.loss,
            "dim": terms.prior.natural.linear.size,
            "rows": self.rows[k],
            "weight": terms.weights[k],
        }

    def _read(self, replies: Sequence[Message], earlier: Mapping[str, Sent]) -> list[Answered | None]:
        current = self.sent
        sites = self.state.sites if self.gathered is None else self.gathered.sites
        found: list[Answered | None] = [None] * len(self.terms.sites)
        for k, message in by_site(replies, self.terms.sites).items():
            sent = earlier.get(self.terms.sites[k], current)
            if sent.served.counted[k] != self.counted[k]:  # Δη_k is from a factor that is no longer counted
                raise message.refusal(
                    "answers", f"a broadcast that counts round {self.counted[k]} of it", self.terms.sites[k]
                )
            answer = read_reply(message, self.terms, sent.served, sent.digest, sites[k])
            if sent.served.round < current.served.round:
                if not current.served.solve:
                    raise message.refusal("round", f"{current.served.round}: all rounds are done", sent.served.round)
                answer = replace(answer, value=None, at_server=None)
            found[k] = answer
        return found

    def _advanced(self, heard: list[Answered | None]) -> Coordinator:
        """The loop's decisions in the loop's order: complete round t, stop or not, gather round t + 1."""
        measured = self._measured(heard)
        if isinstance(measured, Failure):
            return self._ended(self.state, measured.status, measured.message, None)
        state = measured
        sums = [None if one is None else one.at_server for one in heard]
        at_server = None if any(one is None for one in sums) else [one for one in sums if one is not None]
        terms = self.terms
        if at_server is not None and has_converged(state, terms.prior, at_server, terms.tol):
            return self._ended(state, Status.CONVERGED, Status.CONVERGED.value, at_server)
        number = self.number
        if number > terms.limit:
            is_private = any(one is not None and one.value is None for one in heard)
            message = ALL_ROUNDS if is_private else at_the_limit(state, terms.row)
            return self._ended(state, Status.ROUND_LIMIT, message, at_server)
        replies = [None if one is None else one.reply for one in heard]
        ahead = advance(terms.server(), terms.memory, state, replies, terms.safeguard)
        if isinstance(ahead, Failure):
            return self._ended(state, ahead.status, ahead.message, at_server)
        after = ahead.state
        record = after.history[-1]
        following = _Open(
            sites=after.sites,
            naturals=after.naturals,
            natural=after.q_g.natural,
            memory=after.memory,
            alpha=record.alpha,
            clients=record.clients,
            mixed=record.mixed,
            floats_down=record.floats_down,
            floats_up=record.floats_up,
        )
        counted = tuple(old if one is None else one.round for old, one in zip(self.counted, heard, strict=True))
        mixed = (number, ahead.weights) if ahead.weights else self.mixed
        return replace(self, state=state, gathered=following, counted=counted, mixed=mixed)

    def _measured(self, heard: list[Answered | None]) -> State | Failure:
        """Complete the record of the round that waits, by what the sites report at its λ_g."""
        terms, waiting = self.terms, self.gathered
        values = [one.value for one in heard if one is not None and one.value is not None]
        whole = len(values) == len(heard)
        q_g = self.state.q_g if waiting is None else terms.prior.with_natural(waiting.natural)
        objective = pooled_objective(terms.prior, q_g, values) if whole else float("nan")
        if waiting is None:
            return replace(self.state, start_objective=objective)
        number = self.state.round + 1
        if whole and rises_without_bound(objective, self.state):
            return diverged(number, objective, terms.row.knobs)
        clients = tuple(
            record if one is None else replace(record, natural_gradient=one.edge)
            for record, one in zip(waiting.clients, heard, strict=True)
        )
        record = RoundRecord(
            round=number,
            objective=objective,
            alpha=waiting.alpha,
            edges=edges(terms.server(), q_g, waiting.sites, clients),
            clients=clients,
            mixed=waiting.mixed,
            floats_down=waiting.floats_down,
            floats_up=waiting.floats_up,
            seconds=0.0,
        )
        history = (*self.state.history, record)
        return State(q_g, waiting.sites, waiting.naturals, waiting.memory, self.state.start_objective, history)

    def _ended(
        self, state: State, status: Status, message: str, at_server: Sequence[Expected | GaussianExpected] | None
    ) -> Coordinator:
        certificate = None
        if at_server is not None and state.history:
            q_g, prior = state.q_g, self.terms.prior
            # a diagonal or block family sends its own part of the curvature only: too little for a bound
            dense = isinstance(q_g, Gaussian) and (not q_g.learns_precision or isinstance(q_g.factor, DensePrecision))
            distance = pooled_distance(prior, q_g, at_server) if dense else None
            pooled = pooled_residual(prior, q_g, at_server)
            certificate = Certificate(state.history[-1].edges, pooled, self.terms.tol, distance)
        return replace(self, state=state, gathered=None, outcome=Outcome(status, message, self.number + 1, certificate))

    def _is_nearly_closed(self) -> bool:
        """Whether the edges, as far as they are known, are below tol: then the sites are asked for their sums."""
        waiting, tol = self.gathered, self.terms.tol
        if waiting is None:
            return False
        q_g = self.terms.prior.with_natural(waiting.natural)
        known = edges(self.terms.server(), q_g, waiting.sites, waiting.clients)
        natural_gradients = [client.natural_gradient for client in waiting.clients]
        return max(known.broadcast, known.gather) <= tol and all(e <= tol or e == UNKNOWN for e in natural_gradients)


def read_hello(hello: Message) -> Message:
    """Check a site's introduction."""
    hello.require("hello", HELLO, {"sums", "squares"} & set(hello.arrays))
    header = hello.header
    try:
        as_site_name(header["site"])
    except ValueError as error:
        raise MessageError(f"{hello.source}: {error}") from error
    for field in ("features", "classes"):
        names = header[field]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise hello.refusal(field, "a list of names", names)
    if not isinstance(header["loss"], str):
        raise hello.refusal("loss", "the name of a loss", header["loss"])
    as_integer(hello, "dim", header["dim"], 1)
    as_integer(hello, "rows", header["rows"], 1, MOST_ROWS)
    if as_real(hello, "weight", header["weight"]) < 0:
        raise hello.refusal("weight", ">= 0", header["weight"])
    return hello


def read_hellos(hellos: Sequence[Message]) -> list[Message]:
    """Check the introductions of a run's sites, and return them in the order of their names."""
    read = sorted((read_hello(hello) for hello in hellos), key=lambda hello: str(hello.header["site"]))
    if not read:
        raise ValueError("hellos must hold at least one message, got none.")
    for one, other in pairwise(read):
        if one.header["site"] == other.header["site"]:
            raise other.refusal("site", f"a name of its own ({one.source} has the same)", other.header["site"])
    return read


def require_alike(hellos: Sequence[Message]) -> None:
    """Raise unless the sites have the same loss, columns and classes."""
    first = hellos[0]
    for other in hellos[1:]:
        for field in ("loss", "features", "classes", "dim"):
            if other.header[field] != first.header[field]:
                raise other.refusal(field, f"as in {first.source}, {first.header[field]!r}", other.header[field])


def digests_of(replies: Sequence[Message]) -> tuple[str, ...]:
    """Return what replies are known by, in whatever order they came; a ValueError where there are none."""
    if not replies:
        raise ValueError("replies must hold at least one message, got none.")
    return tuple(sorted(reply.digest for reply in replies))


def require_running(outcome: Outcome | None) -> None:
    """Raise a ValueError when the run has ended."""
    if outcome is not None:
        raise ValueError(f"the run has ended ({outcome.status.name}): there is no round for a reply.")


def by_site(replies: Sequence[Message], sites: Sequence[str]) -> dict[int, Message]:
    """Return the replies by the number of their site, each in the run and with one reply, in order."""
    found: dict[int, Message] = {}
    for message in replies:
        if message.kind != "reply":
            raise message.refusal("kind", "'reply'", message.kind)
        name = message.header.get("site")
        if name not in sites:
            raise message.refusal("site", f"one of {', '.join(sites)}", name)
        k = sites.index(name)
        if k in found:
            raise message.refusal("site", "one that has not replied yet", name)
        found[k] = message
    return dict(sorted(found.items()))


def _pooled_units(hellos: Sequence[Message]) -> dict[str, Array]:
    """Mean and standard deviation of each column over all sites, from n, Σx and Σx²."""
    n_columns = len(hellos[0].header["features"])
    for hello in hellos:
        if set(hello.arrays) != {"sums", "squares"}:
            raise hello.refusal("arrays", "sums and squares, by which columns are standardised", sorted(hello.arrays))
    rows = sum(hello.header["rows"] for hello in hellos)
    mean = np.add.reduce([hello.vector("sums", n_columns) for hello in hellos]) / rows
    square = np.add.reduce([hello.vector("squares", n_columns) for hello in hellos]) / rows
    variance = square - mean**2
    # below this a column is constant to rounding, as an intercept is
    constant = variance <= 1e-12 * square
    centred = ~constant & (hellos[0].header["features"][-1] == INTERCEPT)
    return {"centre": np.where(centred, mean, 0.0), "scale": np.where(constant, 1.0, np.sqrt(np.abs(variance)))}


def _named(
    name: str, sites: Sequence[Natural], naturals: Sequence[Natural], memory: Sequence[Memory]
) -> dict[str, Coordinates]:
    found: dict[str, Coordinates] = {f"{name}/site{k}": site for k, site in enumerate(sites)}
    found |= {f"{name}/natural{k}": natural for k, natural in enumerate(naturals)}
    for i, item in enumerate(memory):
        found[f"{name}/memory{i}/server"] = item.natural
        found |= {f"{name}/memory{i}/site{k}": site for k, site in enumerate(item.sites)}
        found |= {f"{name}/memory{i}/move{k}": move for k, move in enumerate(item.moves)}
    return found


def _unnamed(
    message: Message, like: Natural, name: str, n_sites: int, n_memory: int
) -> tuple[tuple[Natural, ...], tuple[Natural, ...], tuple[Memory, ...]]:
    def column(prefix: str, count: int) -> tuple[Natural, ...]:
        return tuple(message.natural(f"{name}/{prefix}{k}", like) for k in range(count))

    memory = tuple(
        Memory(
            column(f"memory{i}/site", n_sites),
            message.natural(f"{name}/memory{i}/server", like),
            tuple(Displacement(*move.parts) for move in column(f"memory{i}/move", n_sites + 1)),
        )
        for i in range(n_memory)
    )
    return column("site", n_sites), column("natural", n_sites), memory


def _plain_record(record: RoundRecord) -> dict[str, Any]:
    """As `RoundRecord.to_dict`, whose deep copies take most of the time of a checkpoint after some hundred rounds."""
    return {**vars(record), "edges": vars(record.edges), "clients": [_plain_client(one) for one in record.clients]}


def _plain_client(client: ClientRecord) -> dict[str, Any]:
    return {**vars(client), "status": client.status.name}


def _client(plain: dict[str, Any]) -> ClientRecord:
    return ClientRecord(**{**plain, "status": ClientStatus[plain["status"]]})


def read_certificate(message: Message, plain: Any) -> Certificate | None:
    """Return a certificate from what a message says of it."""
    if plain is None:
        return None

    def reals(name: str, values: dict[Any, Any]) -> dict[Any, float]:
        return {key: as_real(message, f"{name}.{key}", value, finite=False) for key, value in values.items()}

    bound, distance = plain["distance"], None
    if bound is not None:
        if not isinstance(bound["per_coefficient"], list):
            raise message.refusal("per_coefficient", "a list of numbers", bound["per_coefficient"])
        each = reals("per_coefficient", dict(enumerate(bound["per_coefficient"])))
        distance = Distance(
            **reals("distance", {name: bound[name] for name in ("mahalanobis", "sd_units")}),
            per_coefficient=np.array(list(each.values())),
            rigorous=as_flag(message, "distance.rigorous", bound["rigorous"]),
            reason=as_text(message, "distance.reason", bound["reason"]),
        )
    scalars = reals("certificate", {name: plain[name] for name in ("pooled", "tol")})
    return Certificate(Edges(**reals("edges", plain["edges"])), **scalars, distance=distance)


def _spoken_certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    distance = certificate.distance
    bound = None if distance is None else {**asdict(distance), "per_coefficient": distance.per_coefficient.tolist()}
    return {"edges": asdict(certificate.edges), "pooled": certificate.pooled, "tol": certificate.tol, "distance": bound}
