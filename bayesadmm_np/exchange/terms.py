"""What a run is: method, prior, rule, solver and sites, as plain values that every broadcast repeats."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._validation import Array, as_count, as_positive
from ..clients import VON, ClosedForm, GradientSteps, Solver, VariationalNewton
from ..families import (
    Beta,
    BlockDiagonalGaussian,
    DiagonalGaussian,
    Dirichlet,
    ExponentialFamily,
    FixedPrecisionGaussian,
    FullGaussian,
    Gamma,
    IsotropicGaussian,
)
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.expectations import Auto, Delta, Exact, GaussHermite, MonteCarlo, QuasiMonteCarlo, Rule
from ..splitting.accelerated import Accelerated
from ..splitting.duals import DUAL_RULES, AlongNatural, DualRule
from ..splitting.methods import Method
from ..splitting.privacy import GaussianMechanism
from ..splitting.schedules import SCHEDULES, Schedule
from ..splitting.server import Server
from ..splitting.team import hire, read_rule
from ..splitting.worker import Worker
from .message import Message, content_of

__all__ = ["MOST_ROWS", "Terms", "as_site_name", "require_sum_of_factors"]

INTERCEPT = "intercept"
"""Name of a column of ones; with such a column last, the others can be centred."""

MOST_ROWS = 1 << 53
"""Of a site: up to there a float64 holds every whole number."""

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")

SPOKEN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Method,
        *(Auto, Delta, Exact, GaussHermite, MonteCarlo, QuasiMonteCarlo),
        *(ClosedForm, GradientSteps, VariationalNewton, VON),
        *DUAL_RULES.values(),
        *SCHEDULES.values(),
    )
}
"""Settings that can be sent: frozen dataclasses of plain values. What is not here cannot be sent, nor made."""

CONJUGATE: dict[type, tuple[str, ...]] = {Beta: ("a", "b"), Dirichlet: ("concentration",), Gamma: ("shape", "rate")}
"""Families of losses that are linear in T(θ): the arguments that make a member, each a vector."""

FAMILIES: dict[str, Any] = {
    family.__name__: family
    for family in (
        BlockDiagonalGaussian,
        DiagonalGaussian,
        FixedPrecisionGaussian,
        FullGaussian,
        IsotropicGaussian,
        *CONJUGATE,
    )
}

FIELDS = (
    *("method", "memory", "prior", "expectation", "solver", "tol", "rounds", "seed", "safeguard", "warm_start"),
    *("sites", "weights", "loss", "features", "classes"),
)


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of a run: all that server and sites must agree on. The run's id is a digest of them.

    Parameters
    ----------
    method : Method or Accelerated
    prior : ExponentialFamily
        Its type is the family of the run.
    sites : tuple of str
        Names, sorted: sums over sites are taken in this order.
    weights : tuple of float
        N_k, the total weight of each site's rows.
    loss : str
        Name of the loss's class.
    features : tuple of str
        Columns of every site's design, in order.
    classes : tuple of str, default ()
        Labels that the numbers 0, 1, … stand for.
    expectation : Rule, optional
    solver : Solver, optional
    tol : float, default 1e-6
    rounds : int, default 100
    seed : int, default 0
    safeguard : bool, default False
    warm_start : bool, default False
    centre, scale : ndarray, shape (p,), optional
        What sites subtract from, and divide by, their columns.

    Raises
    ------
    ValueError
        When something is out of range, or cannot be sent.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> from bayesadmm_np.exchange import Terms
    >>> prior = ba.families.FullGaussian(np.zeros(2), 1.0)
    >>> terms = Terms(ba.methods.PVI(), prior, ("A", "B"), (10.0, 20.0), "Logistic", ("age", "dose"))
    >>> len(terms.run)
    16
    """

    method: Method | Accelerated
    prior: ExponentialFamily
    sites: tuple[str, ...]
    weights: tuple[float, ...]
    loss: str
    features: tuple[str, ...]
    classes: tuple[str, ...] = ()
    expectation: Rule | None = None
    solver: Solver | None = None
    tol: float = 1e-6
    rounds: int = 100
    seed: int = 0
    safeguard: bool = False
    warm_start: bool = False
    centre: Array | None = None
    scale: Array | None = None

    def __post_init__(self) -> None:
        Method.read(self.row)
        if type(self.prior).__name__ not in FAMILIES:
            raise ValueError(
                f"prior must be one of the families {', '.join(FAMILIES)} to be sent, got {type(self.prior).__name__}."
            )
        self.row.check(self.prior)
        read_rule(self.row, self.expectation)
        for name, value in (("method", self.row), ("expectation", self.expectation), ("solver", self.solver)):
            if value is not None and type(value).__name__ not in SPOKEN:
                raise ValueError(f"{name}={value!r} cannot be sent: it is none of {', '.join(SPOKEN)}.")
        # of the types that a site reads, or its digest of the same terms would be another
        object.__setattr__(self, "tol", as_positive(self.tol, "tol"))
        object.__setattr__(self, "rounds", as_count(self.rounds, "rounds"))
        object.__setattr__(self, "seed", as_count(self.seed, "seed", minimum=0))
        if not self.sites or list(self.sites) != sorted(set(self.sites)):
            raise ValueError(f"sites must be different names in order, at least one, got {list(self.sites)}.")
        for name in self.sites:
            as_site_name(name)
        if len(self.weights) != len(self.sites) or not all(0 <= weight < np.inf for weight in self.weights):
            raise ValueError(f"weights must hold one number >= 0 a site, {len(self.sites)}, got {list(self.weights)}.")
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        if (self.centre is None) != (self.scale is None):
            raise ValueError("centre and scale must be given together.")
        if self.scale is not None and not (self.scale > 0).all():
            raise ValueError(f"scale must be > 0, got {self.scale.min():g}.")

    @property
    def row(self) -> Method:
        """The row of the table."""
        return self.method.method if isinstance(self.method, Accelerated) else self.method

    @property
    def memory(self) -> int:
        """Rounds remembered by an accelerated method; 0 without."""
        return self.method.memory if isinstance(self.method, Accelerated) else 0

    @property
    def limit(self) -> int:
        """Rounds at most."""
        return self.rounds if self.row.max_rounds is None else min(self.rounds, self.row.max_rounds)

    @property
    def rule(self) -> Rule:
        """The rule before each loss resolves it."""
        return read_rule(self.row, self.expectation)

    @property
    def shares(self) -> tuple[float, ...]:
        """N_k/N."""
        total = sum(self.weights) or 1.0
        return tuple(weight / total for weight in self.weights)

    @property
    def site_travels(self) -> bool:
        """Whether a reply must hold η_k because the server cannot follow it from λ_k and λ_g to the last bit."""
        return self.row.client == "gradient" or (not self.row.dual_rule.reads_natural and self.row.dual_step != 0.0)

    @property
    def certificate_like(self) -> Natural:
        """Of the shapes that a site sends for the certificate: (g, H), H dense where it is not learned, or ∇_μ E."""
        if not isinstance(self.prior, Gaussian) or self.prior.learns_precision:
            return self.prior.natural
        return Natural(np.zeros(self.prior.dim), np.zeros((self.prior.dim, self.prior.dim)))

    @cached_property
    def run(self) -> str:
        """The run's id."""
        header, arrays = self.spoken()
        return Message("terms", header, arrays).digest[:16]

    def server(self) -> Server:
        """The server of this run."""
        return Server(self.row, self.prior, self.shares)

    def worker(self, loss: Loss, site: str, privacy: GaussianMechanism | None = None) -> Worker:
        """The client of this run; a ValueError says why loss, family, rule or solver do not fit."""
        share = self.shares[self.sites.index(site)]
        n_sites = len(self.sites)
        return hire(self.row, loss, self.prior, self.rule, self.solver, self.tol, share, n_sites, privacy)

    def spoken(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the terms as JSON values and vectors."""
        arrays = {name: value for name in ("centre", "scale") if (value := getattr(self, name)) is not None}
        prior, parts = _speak_prior(self.prior)
        if parts is not None:
            arrays["prior"] = parts.to_vector()
        header = {
            "method": speak(self.row),
            "memory": self.memory,
            "prior": prior,
            "expectation": speak(self.expectation),
            "solver": speak(self.solver),
            **{name: getattr(self, name) for name in ("tol", "rounds", "seed", "safeguard", "warm_start", "loss")},
            **{name: list(getattr(self, name)) for name in ("sites", "weights", "features", "classes")},
        }
        return header, arrays

    @classmethod
    def read(cls, message: Message) -> Terms:
        """Read the terms that a message repeats, checking every type and range.

        Raises
        ------
        MessageError
            When a field is missing, of another type, or out of range.
        """
        spoken = message.header.get("terms")
        if not isinstance(spoken, dict) or set(spoken) != set(FIELDS):
            raise message.refusal("terms", f"exactly the fields {sorted(FIELDS)}", spoken)
        hints = {**typing.get_type_hints(cls), "memory": int}
        with content_of(message, "the terms of a run"):
            row = hear(spoken["method"], Method)
            plain = {
                name: _typed(tuple(value) if isinstance(value, list) else value, hints[name], name)
                for name, value in spoken.items()
                if name not in ("method", "prior", "expectation", "solver")
            }
            memory = plain.pop("memory")
            units: dict[str, Any] = {}
            if {"centre", "scale"} & set(message.arrays):
                units = {name: message.vector(name, len(plain["features"])) for name in ("centre", "scale")}
            return cls(
                method=Accelerated(row, memory) if memory else row,
                prior=_hear_prior(message, spoken["prior"]),
                expectation=hear(spoken["expectation"], Rule),
                solver=hear(spoken["solver"], Solver),
                **units,
                **plain,
            )

    @staticmethod
    def vectors(message: Message) -> set[str]:
        """Return the names of the vectors in a message that belong to its terms."""
        return {"prior", "centre", "scale"} & set(message.arrays)


def require_sum_of_factors(method: Method | Accelerated) -> None:
    """Raise a ValueError unless an answer to an older λ_g can be folded in without those of the other sites.

    With α = 1 the server is λ_g = (η_0 + Σ_k η_k)/w (Eq. 54), and η_k ← η_k + γρ(λ_k − λ_g^{(s)}) is by the
    stationarity of Eq. 15 the mixture (1 − γ)η_k − γ∇_μ E_{q_k}[ℓ_k], whatever the version s. A row that also takes
    the mean of the λ_k would mix versions of the server; a mix of rounds (Anderson), and a method of one round, have
    no order of single sites.
    """
    if isinstance(method, Accelerated):
        name, reason = f"accelerated {method.method.name}", "it mixes whole rounds of all sites"
    elif method.alpha != 1.0 or method.prior_at != "server" or method.dual_step == 0.0:
        name, reason = method.name, "its server averages the λ_k of all sites, which would be of different versions"
    elif not isinstance(method.dual_rule, AlongNatural):
        name, reason = method.name, "its dual does not move along λ, where a factor is no mixture of natural gradients"
    elif method.max_rounds is not None:
        name, reason = method.name, f"it is a method of {method.max_rounds} round"
    else:
        return
    raise ValueError(
        f"max_staleness must be 0 (rounds) for {name}: {reason}; PVI, FedLap, FedLapCov and AMA, whose server is the "
        "prior and the sum of the sites' factors, can fold in one site at a time."
    )


def as_site_name(name: Any) -> str:
    """Check a site's name: it becomes part of a file's name."""
    if not (isinstance(name, str) and SITE_NAME.fullmatch(name)):
        raise ValueError(
            "site must be a name of at most 64 letters, digits, spaces, dots, dashes and underscores, which starts "
            f"with a letter or digit, got {name!r}."
        )
    return name


def speak(value: Any) -> Any:
    """A frozen dataclass of plain values as JSON."""
    if value is None:
        return None
    plain: dict[str, Any] = {"type": type(value).__name__}
    hints = typing.get_type_hints(type(value))
    for item in dataclasses.fields(value):
        entry = getattr(value, item.name)
        if hints[item.name] is float:
            entry = float(entry)
        if isinstance(entry, Rule | DualRule | Schedule):
            entry = speak(entry)
        elif item.name == "families":
            entry = [family.__name__ for family in entry]
        plain[item.name] = entry
    return plain


def hear(plain: Any, base: type) -> Any:
    """Inverse of `speak`; makes nothing but what `SPOKEN` lists."""
    if plain is None and base is not Method:
        return None
    kind = SPOKEN.get(str(plain["type"]))
    if kind is None or not issubclass(kind, base):
        raise ValueError(f"{base.__name__.lower()} is none that is known here: {plain['type']!r}")
    values = {name: value for name, value in plain.items() if name != "type"}
    hints = typing.get_type_hints(kind)
    names = {item.name for item in dataclasses.fields(kind)}
    if set(values) != names:
        raise ValueError(f"{kind.__name__} must have the fields {sorted(names)}, got {sorted(values)}")
    if kind is Method:
        values |= {
            name: hear(values[name], kind)
            for name, kind in (("expectation", Rule), ("dual_rule", DualRule), ("schedule", Schedule))
        }
        listed = _typed(values["families"], list, "families")
        values["families"] = tuple(FAMILIES[name] for name in listed)
    return kind(**{name: _typed(value, hints[name], name) for name, value in values.items()})


def _speak_prior(prior: ExponentialFamily) -> tuple[dict[str, Any], Natural | None]:
    """A prior as JSON values, and as vectors what these do not say."""
    name = type(prior).__name__
    if not isinstance(prior, Gaussian):
        # as it was made: from λ its parameters would come back with another last digit
        parts = Natural(*(getattr(prior, argument) for argument in CONJUGATE[type(prior)]))
        return {"family": name, "shapes": [list(part.shape) for part in parts.parts]}, parts
    parts = Natural(prior.mean, *prior.factor.parts)
    plain: dict[str, Any] = {"family": name, "shapes": [list(part.shape) for part in parts.parts]}
    mean, precision = float(prior.mean[0]), float(prior.factor.parts[0].flat[0])
    try:
        short = _family(name, [[mean] * prior.dim, precision], plain["shapes"])
    except ValueError:
        short = None
    # most priors are two numbers: sent as such, they do not make every broadcast twice as long
    if short is not None and _same(short, prior):
        return plain | {"mean": mean, "precision": precision}, None
    return plain, parts


@np.errstate(over="ignore", invalid="ignore")  # an infinite precision is refused as such
def _hear_prior(message: Message, plain: Any) -> ExponentialFamily:
    shapes = [tuple(shape) for shape in plain["shapes"]]
    if not all(_fits(shape, tuple[int, ...]) and len(shape) in (1, 2) and min(shape) > 0 for shape in shapes):
        raise ValueError(f"shapes of the prior are not shapes: {plain['shapes']!r}")
    sizes = [shape[0] * (shape[0] + 1) // 2 if len(shape) == 2 else shape[0] for shape in shapes]
    if any(len(shape) == 2 and shape[0] != shape[1] for shape in shapes) or sum(sizes) > MOST_NUMBERS:
        raise ValueError(f"shapes of the prior are not those of a precision: {plain['shapes']!r}")
    family = FAMILIES[plain["family"]]
    like = Natural(*(np.zeros(shape) for shape in shapes)) if "prior" in message.arrays else None
    if family in CONJUGATE:
        if like is None or len(shapes) != len(CONJUGATE[family]):
            raise ValueError(f"a prior of this family has the vectors {', '.join(CONJUGATE[family])}")
        member: ExponentialFamily = family(*message.natural("prior", like).parts)
        return member
    if like is None:
        mean, precision = (_typed(plain[name], float, name) for name in ("mean", "precision"))
        return _family(plain["family"], [[mean] * shapes[0][0], precision], shapes)
    return _family(plain["family"], list(message.natural("prior", like).parts), shapes)


MOST_NUMBERS = 1 << 26
"""Free numbers of a prior: half a GiB."""


def _family(name: str, arguments: list[Any], shapes: list[Any]) -> Gaussian:
    """Make a prior from a mean and its precision's parts, or from a mean and one number."""
    family = FAMILIES[name]
    mean, *precision = arguments
    if family is BlockDiagonalGaussian:
        scalar = np.ndim(precision[0]) == 0
        blocks = {"blocks": [shape[0] for shape in shapes[1:]]} if scalar else {}
        return BlockDiagonalGaussian(mean, precision[0] if scalar else precision, **blocks)
    if family is IsotropicGaussian:
        return IsotropicGaussian(mean, float(np.ravel(precision[0])[0]))
    made: Gaussian = family(mean, precision[0])
    return made


def _same(one: Gaussian, other: Gaussian) -> bool:
    parts = zip((one.mean, *one.factor.parts), (other.mean, *other.factor.parts), strict=True)
    return type(one.factor) is type(other.factor) and all(np.array_equal(a, b) for a, b in parts)


def _typed(value: Any, hint: Any, name: str) -> Any:
    if not _fits(value, hint):
        raise ValueError(f"{name} must be of the type {hint}, got {value!r}")
    return float(value) if hint is float else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value that JSON made is of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in arguments)
    if typing.get_origin(hint) is type:
        return isinstance(value, type)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
