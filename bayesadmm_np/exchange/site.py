"""A site: its rows stay here, and so does its dual; broadcasts come in, replies go out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._validation import Array, as_count, as_float_array
from ..clients.problem import ClientStatus
from ..families.base import ExponentialFamily
from ..families.coordinates import Natural
from ..losses.base import Expected, GaussianExpected, Loss
from ..splitting.accelerated import combine
from ..splitting.messages import Broadcast, Reply
from ..splitting.privacy import GaussianMechanism, fresh_normals
from ..splitting.state import digest
from ..splitting.worker import Worker, moved_site
from .ledger import Ledger, counted_by, require_state
from .message import Message, MessageError, content_of
from .terms import Terms, as_site_name
from .wire import as_integer, as_real, read_served

__all__ = ["Site", "SiteAnswer", "SiteState"]

COPY = ("run", "site", "counted", "past")


@dataclass(frozen=True)
class SiteAnswer:
    """What a site answered in a round.

    Attributes
    ----------
    round : int
        Of the broadcast that was answered; 0 before the first.
    natural : Natural
        λ_k.
    site : Natural
        η_k after the dual step.
    gap : Natural
        η_k + ∇_μ E_{q_k}[ℓ_k].
    edge : float
        Fisher length of `gap` per parameter.
    """

    round: int
    natural: Natural
    site: Natural
    gap: Natural
    edge: float

    @property
    def numbers(self) -> list[Any]:
        """Those that are kept."""
        return [self.round, self.edge]

    @property
    def vectors(self) -> dict[str, Array]:
        """Those that are kept."""
        return {part: getattr(self, part).to_vector() for part in ("natural", "site", "gap")}


@dataclass(frozen=True)
class SiteState:
    """What a site remembers between rounds.

    Attributes
    ----------
    terms : Terms
    ledger : Ledger of SiteAnswer
        The answer that is counted, with η_k as mixed by acceleration since, and the one that may be.
    past : tuple of Natural
        The η_k that acceleration mixes.
    """

    terms: Terms
    ledger: Ledger[SiteAnswer]
    past: tuple[Natural, ...]


@dataclass(frozen=True, eq=False)
class Site:
    """One site as an explicit state with a pure step: (site, broadcast) → (site, reply).

    Parameters
    ----------
    name : str
    loss : Loss
        ℓ_k, a sum over this site's rows.
    features : tuple of str, default ()
        Names of the columns of the design, in order; without any x1, x2, …
    classes : tuple of str, default ()
        What the labels 0, 1, … stand for.
    privacy : GaussianMechanism, optional
        Noise on every answer, fresh from the operating system. Nothing else in a reply depends on the rows then: no
        objective, no residual, no sums for a certificate.
    privacy_rounds : int, optional
        Answers that `privacy` is granted for; a run of more rounds is refused.
    kept : SiteState, optional
        What an earlier step left; made by `step` and by `restore`.

    Raises
    ------
    ValueError
        When the name cannot be part of a file's name, or one of `privacy` and `privacy_rounds` is given alone.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.exchange import Coordinator, Site
    >>> sites = [Site("A", ba.losses.LeastSquares([[1.0]], [1.0])), Site("B", ba.losses.LeastSquares([[2.0]], [2.0]))]
    >>> prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    >>> server = Coordinator.start([site.hello() for site in sites], ba.methods.PVI(), prior)
    >>> while server.outcome is None:
    ...     sites, replies = zip(*(site.step(server.broadcast()) for site in sites))
    ...     server = server.step(replies)
    >>> server.state.q_g
    FullGaussian(mean=[0.8333], precision=[[6.]])
    """

    name: str
    loss: Loss
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    privacy: GaussianMechanism | None = None
    privacy_rounds: int | None = None
    kept: SiteState | None = None

    def __post_init__(self) -> None:
        as_site_name(self.name)
        if not self.features:
            count = getattr(self.loss, "n_features", self.loss.dim)
            object.__setattr__(self, "features", tuple(f"x{j + 1}" for j in range(count)))
        if (self.privacy is None) != (self.privacy_rounds is None):
            raise ValueError("privacy and privacy_rounds must be given together.")
        if self.privacy_rounds is not None:
            as_count(self.privacy_rounds, "privacy_rounds")

    @property
    def factor(self) -> Natural | None:
        """η_k as the server counts it; None before the first broadcast."""
        return None if self.kept is None else self.kept.ledger.counted.site

    def hello(self, sums: ArrayLike | None = None, squares: ArrayLike | None = None) -> Message:
        """Return the message that a run is made from: names and counts, no rows.

        Parameters
        ----------
        sums, squares : array_like, shape (p,), optional
            Σ_i x_ij and Σ_i x_ij² over the rows of each column before standardisation, where the server is to
            find common units.

        Returns
        -------
        Message
        """
        header = {
            "site": self.name,
            "loss": self.loss.name,
            "dim": self.loss.dim,
            "rows": self.loss.n_rows,
            "weight": self.loss.total_weight,
            "features": list(self.features),
            "classes": list(self.classes),
        }
        given = {"sums": sums, "squares": squares}
        return Message(
            "hello", header, {name: as_float_array(v, name, ndim=1) for name, v in given.items() if v is not None}
        )

    @np.errstate(over="ignore", invalid="ignore")  # the reply says it
    def step(self, broadcast: Message) -> tuple[Site, Message | None]:
        """Answer a broadcast. The same broadcast again gives the same reply; a final message gives None.

        Parameters
        ----------
        broadcast : Message
            Of kind "broadcast" or "final".

        Returns
        -------
        site : Site
            To be kept for the next round.
        reply : Message or None

        Raises
        ------
        MessageError
            When the broadcast is not one that this site can answer; the site is unchanged.
        ValueError
            When the loss does not fit the run's family, rule or solver.
        """
        terms = Terms.read(broadcast)
        kept = self._joined(broadcast, terms)
        served = read_served(broadcast, terms)
        worker = terms.worker(self.loss, self.name, self.privacy)
        index = terms.sites.index(self.name)
        q_g = terms.prior.start().with_natural(served.natural)
        sent = kept.ledger.pending if served.round == kept.ledger.heard[0] else None
        kept = _settled(kept, broadcast, served.counted[index], served.mixed, q_g)
        if broadcast.kind == "final":
            return replace(self, kept=kept), None
        is_open = self.privacy is None
        at_server = worker.expect(q_g) if is_open else None
        header: dict[str, Any] = {
            "run": terms.run,
            "round": served.round,
            "site": self.name,
            "answers": broadcast.digest,
            "value": None if at_server is None else at_server.value,
            "edge": kept.ledger.counted.edge,
            "solved": None,
            "certificate": None,
        }
        arrays: dict[str, Array] = {}
        if served.certify and at_server is not None:
            header["certificate"] = _certificate(at_server, terms, arrays)
        if served.solve:
            kept, header["solved"] = self._solve(worker, kept, served.round, q_g, at_server, index, arrays, sent)
        return replace(self, kept=kept), Message("reply", header, arrays, f"reply of {self.name}")

    def save(self) -> Message:
        """Return the state as a message of kind "site", without rows.

        Raises
        ------
        ValueError
            When the site has not heard a broadcast yet: there is nothing to keep.
        """
        if self.kept is None:
            raise ValueError(f"site {self.name!r} has not heard a broadcast yet: there is nothing to keep.")
        kept = self.kept
        terms, arrays = kept.terms.spoken()
        ledger, answers = kept.ledger.spoken()
        arrays |= answers | {f"past{i}": site.to_vector() for i, site in enumerate(kept.past)}
        header = {
            "site": self.name,
            "data": digest(self.loss),
            "privacy": self._spoken_privacy,
            "terms": terms,
            "past": len(kept.past),
            **ledger,
        }
        return Message("site", header, arrays)

    def restore(self, message: Message) -> Site:
        """Return this site with the state of `save`.

        Raises
        ------
        MessageError
            When the file is not the state of this site with these rows.
        """
        require_state(message, self.name, digest(self.loss))
        with content_of(message, "the state of a site"):
            return self._restored(message)

    def _restored(self, message: Message) -> Site:
        if message.header["privacy"] != self._spoken_privacy:
            raise message.refusal("privacy", f"that of this site, {self._spoken_privacy}", message.header["privacy"])
        terms = Terms.read(message)
        like = terms.prior.natural

        def answer(name: str, numbers: list[Any]) -> SiteAnswer:
            number, edge = numbers
            natural, own, gap = (message.natural(f"{name}/{part}", like) for part in ("natural", "site", "gap"))
            number = as_integer(message, f"answers.{name}", number, 0)
            edge = as_real(message, f"answers.{name}", edge, finite=False)
            return SiteAnswer(number, natural, own, gap, edge)

        past = tuple(message.natural(f"past{i}", like) for i in range(message.header["past"]))
        return replace(self, kept=SiteState(terms, Ledger.read(message, answer), past))

    def adopt(self, terms: Terms, copy: Message) -> Site:
        """Return the site as the server knows it, from the server's copy of it.

        Its edge, which the server does not keep, is measured anew.

        Raises
        ------
        MessageError
            When the copy is of another run or site, or the site has privacy, whose spending the server does not know.
        """
        n_past = as_integer(copy, "past", copy.header.get("past"), 0, terms.memory + 1)
        past = [f"past{i}" for i in range(n_past)]
        counted = counted_by(copy, COPY, {"natural", "site", *past}, terms.run, self.name)
        if self.privacy is not None:
            raise MessageError(
                f"site {self.name}: what it has spent of its privacy is lost with its state: start a new run."
            )
        if counted == 0:  # no answer of this site is in the sum: the start of a run is what the server counts on
            return self
        like = terms.prior.natural
        natural, own = copy.natural("natural", like), copy.natural("site", like)
        worker = terms.worker(self.loss, self.name)
        posterior = terms.prior.start().with_natural(natural)
        gap = own + worker.expect(posterior).natural_gradient
        if terms.row.prior_at == "clients":
            weight = worker.share * terms.prior.prior_weight
            gap = gap + (weight * natural - worker.share * terms.prior.natural)
        answer = SiteAnswer(counted, natural, own, gap, posterior.fisher_norm(gap))
        earlier = tuple(copy.natural(item, like) for item in past)
        return replace(self, kept=SiteState(terms, Ledger(answer), earlier))

    @property
    def _spoken_privacy(self) -> list[float] | None:
        if self.privacy is None or self.privacy_rounds is None:
            return None
        return [self.privacy.clip, self.privacy.noise_multiplier, self.privacy_rounds]

    def _joined(self, broadcast: Message, terms: Terms) -> SiteState:
        """What is kept of this run, or the start of it where this is the first broadcast."""
        if self.name not in terms.sites:
            raise broadcast.refusal("sites", f"names with {self.name!r} among them", list(terms.sites))
        for field in ("features", "classes"):
            own, told = getattr(self, field), getattr(terms, field)
            if told != own:
                raise broadcast.refusal(field, f"those of this site, {list(own)}", list(told))
        if terms.loss != self.loss.name:
            raise broadcast.refusal("loss", f"that of this site, {self.loss.name}", terms.loss)
        weight = terms.weights[terms.sites.index(self.name)]
        # with privacy nothing but the noised answer depends on the rows
        if self.privacy is None and weight != self.loss.total_weight:
            raise broadcast.refusal("weights", f"{self.loss.total_weight:g} for the rows of this site", weight)
        if self.privacy is not None and self.privacy_rounds is not None:
            self.privacy.check(terms.row, terms.memory, terms.prior, len(terms.sites))
            rounds = max(terms.limit, broadcast.header["round"] if broadcast.header.get("solve") else 0)
            if rounds > self.privacy_rounds:
                raise broadcast.refusal("rounds", f"at most {self.privacy_rounds}, the privacy granted here", rounds)
        if self.kept is None:
            start = terms.prior.start()
            zero = start.natural.zeros()
            return SiteState(terms, Ledger(SiteAnswer(0, start.natural, zero, zero, float("inf"))), ())
        if terms.run != self.kept.terms.run:
            raise broadcast.refusal("run", f"{self.kept.terms.run}, which this site takes part in", terms.run)
        return self.kept

    def _solve(
        self,
        worker: Worker,
        kept: SiteState,
        number: int,
        q_g: ExponentialFamily,
        at_server: Expected | GaussianExpected | None,
        index: int,
        arrays: dict[str, Array],
        sent: SiteAnswer | None,
    ) -> tuple[SiteState, dict[str, Any]]:
        """Solve Eq. 15, put λ_k into `arrays`, and return what is kept and the scalars of the solve.

        `sent` is the answer of an earlier try at this round: noise that was drawn is sent again, never drawn twice.
        """
        terms, counted = kept.terms, kept.ledger.counted
        start = q_g.with_natural(counted.natural) if terms.warm_start else None
        message = Broadcast(number, q_g.natural)
        noise = None if self.privacy is None else fresh_normals(message.floats)
        site = counted.site
        try:
            at_server = worker.expect(q_g) if at_server is None else at_server
            solved = worker.step(message, q_g, site, at_server, start, terms.seed, index, noise)
        except (ArithmeticError, ValueError):
            if self.privacy is None:
                raise
            # a server could choose q_g so that some rows overflow: silence would tell of them
            assert noise is not None
            solved = _noise_alone(worker, self.privacy, q_g, site, noise)
        if self.privacy is not None and sent is not None:
            solved = replace(solved, natural=sent.natural, site=sent.site)
        assert solved.gap is not None
        # fixed numbers of steps can overflow without notice
        finite = all(part.is_finite() for part in (solved.natural, solved.site, solved.gap))
        status = solved.status if finite or not solved.status.is_usable else ClientStatus.NOT_FINITE
        scalars = {
            "status": status.name,
            "iterations": solved.iterations,
            "residual": solved.residual,
            "edge": solved.natural_gradient_edge,
            "well_posed": solved.well_posed,
        }
        if not status.is_usable:  # the run ends here: there is no answer to send or to keep
            return kept, scalars
        arrays["natural"] = solved.natural.to_vector()
        if terms.site_travels:
            arrays["site"] = solved.site.to_vector()
        answer = SiteAnswer(number, solved.natural, solved.site, solved.gap, solved.natural_gradient_edge)
        return replace(kept, ledger=replace(kept.ledger, pending=answer)), scalars


def _noise_alone(
    worker: Worker, privacy: GaussianMechanism, q_g: ExponentialFamily, site: Natural, noise: Array
) -> Reply:
    """The answer of a private site whose loss cannot be evaluated: an update of zero, noised like any other."""
    natural = privacy.noised(q_g, q_g.natural, noise)
    moved = site
    if worker.method.dual_step:
        moved = moved_site(worker.method, worker.share, worker.n_clients, site, natural, q_g.natural)
    return Reply(
        natural=natural,
        site=moved,
        iterations=0,
        status=ClientStatus.STEPS_DONE,
        residual=float("inf"),
        natural_gradient_edge=float("inf"),
        gap=site.zeros(),
        well_posed=worker.subproblem(q_g, site).is_well_posed,
        seconds=0.0,
    )


def _settled(
    kept: SiteState,
    broadcast: Message,
    counted: int,
    mixed: tuple[int, tuple[float, ...]] | None,
    q_g: ExponentialFamily,
) -> SiteState:
    """Learn whether the last answer was counted, and mix the site where an accelerated step was taken."""
    ledger, before = kept.ledger.settled(broadcast, counted), kept.ledger.counted
    answer = ledger.counted
    if answer is before:
        return replace(kept, ledger=ledger)
    past = (*kept.past, answer.site)[-(kept.terms.memory + 1) :] if kept.terms.memory else ()
    if mixed is not None and mixed[0] == counted:
        weights = np.array(mixed[1])
        if len(weights) > len(past):
            raise broadcast.refusal("mixed", f"at most {len(past)} weights, one a round kept", len(weights))
        site = combine(weights, past[len(past) - len(weights) :])
        edge = q_g.with_natural(answer.natural).fisher_norm(answer.gap + (site - answer.site))
        ledger = replace(ledger, counted=replace(answer, site=site, edge=edge))
    return replace(kept, ledger=ledger, past=past)


def _certificate(
    at_server: Expected | GaussianExpected, terms: Terms, arrays: dict[str, Array]
) -> dict[str, Any] | None:
    """Put g and H at q_g into `arrays`, with their rounding errors; None where they overflow.

    Of a family that is no Gaussian ∇_μ E_q[ℓ], of which no bound is made.
    """
    if not isinstance(at_server, GaussianExpected):
        gradient = at_server.natural_gradient
        if not gradient.is_finite():
            return None
        arrays |= {"sums": gradient.to_vector(), "errors": np.zeros(gradient.linear.size)}
        return {"reach": None, "curvature_error": 0.0, "at_mean": False}
    like = terms.certificate_like
    if len(like.shapes[1]) == 2 and len(like.shapes) == 2:
        curvature: tuple[Array, ...] = (at_server.curvature.dense(),)
    else:
        curvature = at_server.projected
    sums = Natural(at_server.gradient, *curvature)
    margins = at_server.margins
    if not (sums.is_finite() and np.isfinite(margins.gradient_error).all()):
        return None
    arrays |= {"sums": sums.to_vector(), "errors": margins.gradient_error}
    return {
        "reach": margins.reach,
        "curvature_error": margins.curvature_error,
        "at_mean": at_server.is_at_mean,
    }
