"""The interface of an engine: all that differs between generalised linear models and networks in a run with sites.

The rest of a run is the same for both. `server.py` holds the server's part, and `site.py` the site's part:

    server   broadcast q_g of round t
    site     report its part of the objective at q_g; solve Eq. 15 around q_g, move the dual (Eq. 16), answer λ_k
    server   complete the record of round t with the reports; end the run, or gather (Eq. 54) round t + 1

An engine defines the state, q_g and an answer, and how they become vectors of a message. It is a frozen object, made
from a `RunSpec`. For each kind of message it has a table of fields: names, sizes, what the numbers must be, and what is
made of them. `messages` reads by these tables; no engine sees a message. Its two halves are at the two ends:
`spec.at_server(model)` makes a `ServerEngine`, and `SiteData.join` makes a `SiteEngine` from the rows of a site.

Fields of a reply of a generalised linear model, their content, and whether a sum over the sites would do instead:

    value                      E[ℓ_k] at q_g; without privacy           yes: objective
    natural, site              λ_k and η_k, or (−g_k, H_k)              yes with α = 1: λ_g, standard errors
    sums, errors, certificate  g_k and H_k at q_g, rounding, reach      yes, with √(Σ R_k²) for the largest reach R
    curvature                  H_k with all its entries, for a guard    yes: the step
    edge                       residual of the site's circuit           no: which site is not settled
    sketch                     a part of the curvature                  no: each site's is told to the others
    solved                     end of the site's solve                  no: which site failed

`gather` and `complete` use the replies; a protocol that sums over sites would change these two functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from .._archive import refusal
from .._fields import Field
from .._validation import Array
from ..splitting.certificate import Certificate
from ..splitting.messages import Ask
from ..splitting.result import Result
from ..splitting.status import Failure, Status
from .messages import Hello, ReplyHeader, Report, Served, SiteReply
from .questions import Talk
from .spec import RunSpec

S = TypeVar("S")
A = TypeVar("A", bound="Kept")


class Kept(Protocol):
    """An answer as a site keeps it."""

    @property
    def round(self) -> int: ...  # of the broadcast that was answered; 0 before the first
    @property
    def numbers(self) -> list[Any]: ...  # the round and the other single numbers, for the header
    @property
    def vectors(self) -> Mapping[str, Array]: ...


@dataclass(frozen=True)
class Gathered(Generic[S]):
    """The state after `gather`, and the weights of an accelerated mix; the last record waits for the sites' reports.

    `counts` is False where the answers were left unused, as by a guarded row.
    """

    state: S
    weights: tuple[float, ...] = ()
    counts: bool = True


class ServerEngine(Protocol[S]):
    """An engine at the server; what has a body is inherited by engines that do all their rounds."""

    record: ClassVar[Any]  # class of the record of a round, with `to_dict` and `from_dict`
    spec: Any

    # --- what is sent

    reply_header: ClassVar[type[ReplyHeader]]  # with `value` and `solved`

    @property
    def q_fields(self) -> Mapping[str, Field]: ...  # vectors of a broadcast
    def q_made(self, found: Mapping[str, Any]) -> Any: ...  # q_g from these
    @property
    def reply_size(self) -> int: ...  # numbers of a reply, at most
    @property
    def state_size(self) -> int: ...  # numbers of a state, at most
    def pack_q(self, state: S) -> dict[str, Array]: ...
    def q_of(self, state: S) -> Any: ...  # q_g as sites read it
    def reply_fields(self, header: Any, served: Served) -> Mapping[str, Field]: ...
    def reply_made(self, header: Any, found: Mapping[str, Any], served: Served, k: int, state: S) -> SiteReply:
        """Return the reply of site k from header and vectors; `state` holds its η_k so far."""

    # --- a round

    def start(self) -> S: ...  # before the first round; its objective is not known yet
    def used(self, state: S, replies: list[SiteReply | None]) -> list[SiteReply | None]:
        """Return what a round uses of the replies about a state: all of them, or what their sums would be."""
        return replies

    def complete(self, state: S, replies: Sequence[SiteReply | None]) -> S | Failure:
        """Fill in the record of the last round, or the objective at the start, from the sites' reports."""

    def terminated(self, state: S, replies: Sequence[SiteReply | None]) -> Status | None:
        """Return how the run ends before its last round; None where it goes on."""
        return None

    def at_the_limit(self, state: S, replies: Sequence[SiteReply | None]) -> str:
        """Return the message of a run that has done all its rounds."""
        return "all rounds done."

    def gather(self, state: S, replies: Sequence[SiteReply | None]) -> Gathered[S] | Failure:
        """Eq. 16 and Eq. 54: the next state from the answers; None is a site that was away."""

    def concluded(
        self, state: S, replies: Sequence[SiteReply | None], status: Status
    ) -> tuple[S, Sequence[SiteReply | None]]:
        """Return the state at which a run ends that has not failed, and what the sites said of it."""
        return state, replies

    def certificate(self, state: S, replies: Sequence[SiteReply | None]) -> Certificate | None:
        """Return the certificate at the state's q_g, where all sites sent their sums."""
        return None

    def is_nearly_closed(self, state: S) -> bool:
        """Return whether the known residuals are below tol; then all sites are asked for the certificate's sums."""
        return False

    def ask(self, state: S) -> Ask:
        """Return what sites do next; "sums" for the sums of the certificate in place of an answer."""
        return "solve"

    def strays(self, state: S, replies: Mapping[int, SiteReply]) -> dict[int, str]:
        """Return by number the sites whose replies stand alone against all others, and what they had to be."""
        return {}

    # --- beside the rounds

    def prepared(self, talk: Talk) -> tuple[Any, Result | None]:
        """Return the engine of the rounds, after questions to the sites, and the result of a fit that needs none."""
        return self, None

    def is_long(self, state: S) -> bool:
        """Return whether, after this round, sites are asked if the run has an end."""
        return False

    def watched(self, talk: Talk, state: S) -> tuple[Any, bool, Certificate | None]:
        """Ask the sites so; return the engine that knows the answer, whether the run ends here, and a certificate."""
        return self, False, None

    def table(self, talk: Talk, state: S, outcome: Any) -> Any:
        """Return what the sites are asked for after the last round."""
        return None

    # --- what is kept: a state without its history, as fields and vectors; `like` is a state of the run

    def pack_state(self, state: S) -> tuple[dict[str, Any], dict[str, Array]]: ...
    def state_fields(self, header: Any, like: S) -> Mapping[str, Field]: ...
    def state_made(self, header: Any, found: Mapping[str, Any], like: S) -> S: ...  # with the history of `like`
    def copy_of(self, state: S, k: int) -> tuple[int, dict[str, Array]]:
        """Return how many past duals of a site are kept, and what is known of the site as vectors."""


class SiteEngine(Protocol[A]):
    """An engine at a site, with the rows; what has a body is inherited by engines without acceleration."""

    spec: Any
    index: int  # the number k of this site
    begins_at_round_one: bool = False
    """True where η_k at the start is made from the first q_g, so that who begins later needs the server's copy."""
    most_past: int = 0  # past duals that are kept
    past_field: Field | None = None  # the `to_vector()` of a past dual
    numbers: ClassVar[Any]  # type of the single numbers of an answer as it is kept

    @property
    def q_fields(self) -> Mapping[str, Field]: ...  # as at the server
    def q_made(self, found: Mapping[str, Any]) -> Any: ...
    def first(self, q_g: Any) -> A: ...  # the answer of round 0
    def settled(self, answer: A, past: tuple[Any, ...], served: Served) -> tuple[A, tuple[Any, ...]]:
        """Return an answer that has just been counted, with η_k as acceleration mixed it, and the past duals."""
        if served.mixed is not None:
            raise refusal("mixed", "null: rounds of this engine are not mixed", list(served.mixed))
        return answer, ()

    def report(self, served: Served, counted: A) -> tuple[Report, dict[str, Any], dict[str, Array]]:
        """Return what the site says of q_g, also as fields and vectors of the reply."""

    def answer(
        self, served: Served, counted: A, report: Report, earlier: A | None
    ) -> tuple[A | None, Any, dict[str, Array]]:
        """Solve Eq. 15, move the dual, and return what is kept, the reply's `solved`, and its vectors.

        None is kept where the answer is of no use. `earlier` is the answer of an earlier try at this round.
        """

    @property
    def answer_fields(self) -> Mapping[str, Field]: ...  # vectors of an answer as it is kept
    def answer_made(self, numbers: Any, found: Mapping[str, Any]) -> A: ...
    @property
    def copy_fields(self) -> Mapping[str, Field]: ...  # vectors of a server's copy, beside the past duals
    def adopted(self, counted: int, found: Mapping[str, Any]) -> A | None:
        """Return the answer of round `counted` of a server's copy; None where nothing is counted yet."""


class SiteData(Protocol):
    """The rows of a site. Only what the engine sends leaves the site."""

    @property
    def engine(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def introduction(self) -> dict[str, Any]: ...  # of a hello: loss, dim, rows, weight, features, classes
    def join(self, spec: RunSpec, name: str, privacy: Any) -> SiteEngine[Any]: ...  # or refuse the spec
    def basis(self, heard: Any, name: str) -> Any: ...  # the `disclosure.Basis` of the answer to what was heard


class Task(Protocol):
    """Task that a server sets to sites that have said hello: `GLMTask`, `NetworkTask`."""

    @property
    def method(self) -> Any: ...  # the row of the table, or a function that chooses it
    @property
    def model(self) -> Any: ...  # the network; None where there is none
    def spec(self, hellos: Sequence[Hello]) -> RunSpec: ...
    def again(self, spec: Any, rows: Sequence[int]) -> RunSpec: ...  # the same for the sites of a spec


NOT_THERE: dict[tuple[str, str], str] = {
    ("network", "acceleration"): "the loop of networks mixes no rounds; use the row without Accelerated",
    ("network", "privacy"): "the loop of networks has no clipped and noised answers",
    ("network", "personal models"): "a site sends what the server takes, and keeps a dual alone",
    ("network", "kept moments"): "a site keeps a dual alone: its solver starts anew in every round",
    ("network", "shared inputs"): "FedLap-Func shares inputs of the clients, and runs in one process only",
}
"""Reasons why an engine lacks a feature, by engine and feature."""


def require(engine: str, feature: str) -> None:
    """Raise a ValueError where an engine has no such feature."""
    reason = NOT_THERE.get((engine, feature))
    if reason is not None:
        raise ValueError(f"{feature}: {reason}.")
