"""A fitted model as one file: what predictions, a summary and a certificate need, and no rows.

The file is an archive of kind "model". It is read as if a stranger had sent it: its header is typed, and every array
has the shape that the header says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .._archive import Archive, content_of, read_as, refusal
from .._fields import Field, read_fields, typed
from .._text import word
from .._validation import Array, as_positive
from ..design.agreement import Agreement
from ..families.gaussians import FAMILIES
from ..glm.diagnosis import Dependent, Finding, Separation, Undecided, as_dict, read_finding
from ..glm.kinds import Kind, read_kind
from ..glm.layout import Layout
from ..glm.prior import EVIDENCE
from ..glm.questions import LARGEST, NARROW, pack, pack_statistics, unpack_own_fit, unpack_statistics
from ..losses.expectations import RULES, Auto, Rule
from ..splitting.certificate import Certificate
from ..splitting.settings import decode, encode
from ..splitting.status import Status
from .fitted import GROUPS, FittedGLM, Site, arrays_of_members, members, model_of
from .summary import COVARIANCES

ALIKE: Mapping[str, tuple[str, ...]] = {
    "columns": ("target", "client", "offset", "exposure"),
    "criterion": ("inference", "penalty", "dependent", "noise_variance"),
    "totals": ("ratio_tests", "log_likelihood", "elbo"),
    "record": ("method", "message", "rounds", "floats", "version", "shown"),
}
"""Fields of a model's groups that are values of JSON, or dataclasses of these, in its header as they are."""


WAYS: Mapping[str, tuple[type[Finding], ...]] = {
    "flat": (Dependent,),
    "receding": (Separation, Undecided),
}
"""Directions of θ that a file has where one of these findings says so."""

MOST_POINTS = 1 << 16
"""Points of a rule, at most: more would be an attack on memory."""


@dataclass(frozen=True)
class SiteEntry:
    """A site in the header."""

    name: str
    n_rows: int
    n_missing: int = 0
    own: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.n_rows < 1 << 53 and 0 <= self.n_missing < 1 << 53):
            raise ValueError(f"n_rows must be from 1 and n_missing from 0, got {self.n_rows} and {self.n_missing}")


@dataclass(frozen=True)
class Header:
    """The header of a model file, beside the fields of `ALIKE`."""

    glm: str
    features: tuple[str, ...]
    classes: tuple[str | float, ...]
    outputs: int
    intercept: bool
    centred: bool
    family: str
    sites: tuple[SiteEntry, ...]
    rule: dict[str, Any]
    status: str
    recorded: int
    certificate: Certificate
    findings: tuple[dict[str, Any], ...]
    shift: float
    statistics: dict[str, Any] | None
    agreement: Agreement | None

    def __post_init__(self) -> None:
        for name, names in (("features", self.features), ("classes", self.classes), ("sites", self.site_names)):
            if len(set(names)) < len(names):
                raise ValueError(f"{name} must be different, got {list(names)}")
        if not self.sites or self.recorded < 0:
            raise ValueError("sites must be some, and recorded a count")
        as_positive(self.certificate.tol, "tol")
        if not np.isfinite(self.certificate.pooled) or np.isnan([*vars(self.certificate.edges).values()]).any():
            raise ValueError("certificate must have a pooled residual that is finite, and edges that are numbers")
        if not all(isinstance(label, str) or np.isfinite(label) for label in self.classes):
            raise ValueError(f"classes must be texts and finite numbers, got {list(self.classes)}")
        kind = self.kind
        expected = kind.n_outputs(len(self.classes), self.outputs)
        if kind.is_classifier != bool(self.classes) or not 1 <= self.outputs == expected or len(self.classes) == 1:
            raise ValueError(
                f"classes and outputs must be those of {kind}, got {list(self.classes)} and {self.outputs}"
            )
        bound = self.certificate.distance
        if bound is not None and bound.per_coefficient.shape != (self.dim,):
            raise ValueError(f"distance must have a bound for each of {self.dim} coefficients")
        if self.statistics is not None and (self.statistics.get("noise") == "none") is kind.has_noise:
            raise ValueError(f"statistics must have the noise variance that {kind} has, or none")
        if self.centred and not (self.intercept and self.family == "full"):
            raise ValueError("centred must be false without an intercept, and outside the full family")
        if not abs(self.shift) <= LARGEST or (self.shift and not self.centred):
            raise ValueError(f"shift must be at most {LARGEST:g}, and zero where nothing is centred, got {self.shift}")
        if self.agreement is not None:
            self.agreement.require_columns(len(self.features))
            if self.agreement.names != self.features[self.n_auxiliary :]:
                raise ValueError(f"features must be those of the agreement, got {list(self.features)}")
        if self.family not in FAMILIES or self.status not in Status.__members__:
            raise ValueError(f"family and status must be known ones, got {self.family!r} and {self.status!r}")

    @property
    def kind(self) -> Kind:
        """The row of the table."""
        return read_kind(self.glm)

    @property
    def n_auxiliary(self) -> int:
        """Number of parameters beside the coefficients."""
        return len(self.kind.auxiliaries(tuple(map(word, self.classes))))

    @property
    def dim(self) -> int:
        """Number of coefficients."""
        return self.outputs * (len(self.features) + self.intercept)

    @property
    def site_names(self) -> list[str]:
        """Names in order."""
        return [site.name for site in self.sites]


def _require_alike(alike: Mapping[str, Any]) -> None:
    """Raise a ValueError where no model has these values of the fields of `ALIKE`."""
    as_positive(alike["noise_variance"], "noise_variance")
    if not all(0 <= alike[name] < 1 << 53 for name in ("rounds", "floats")):
        raise ValueError("rounds and floats must be counts")
    given = () if alike["stated"] is None else np.ravel(alike["stated"].precision)
    if not all(one == EVIDENCE or 0 <= float(one) < np.inf for one in given):
        raise ValueError(f"stated.precision must be finite and >= 0, got {alike['stated'].precision}")
    for name in ("log_likelihood", "elbo"):
        if alike[name] is not None and np.isnan(alike[name]):
            raise ValueError(f"{name} must be a number or null")
    if alike["shown"] not in COVARIANCES:
        raise ValueError(f"shown must be one of {', '.join(COVARIANCES)}, got {alike['shown']!r}")


def save_model(path: str | os.PathLike[str], model: FittedGLM) -> None:
    """Write a model atomically: a crash leaves the old file or the new one, never half of one.

    Parameters
    ----------
    path : path
    model : FittedGLM

    Raises
    ------
    ValueError
        When the model has no certificate, or a rule that no file can name.

    Examples
    --------
    >>> import tempfile
    >>> from bayesadmm_np.estimators import FederatedRidge, load_model, save_model
    >>> model = FederatedRidge(noise_variance=1.0).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/model.npz", model.fitted_)
    ...     load_model(f"{folder}/model.npz").title
    'linear regression of y, noise variance 1'
    """
    if isinstance(model.criterion.rule, Auto) or RULES.name_of(type(model.criterion.rule)) is None:
        raise ValueError(f"a model with the expectation rule {model.criterion.rule!r} cannot be written to a file.")
    if model.record.certificate is None:
        raise ValueError("a model without a certificate cannot be written to a file.")
    statistics, meats = pack_statistics(model.totals.statistics)
    own = [({}, {}) if site.own is None else pack(site.own) for site in model.sites.values()]
    header = Header(
        glm=str(model.kind),
        features=model.columns.names,
        classes=tuple(label if isinstance(label, str) else float(label) for label in model.columns.classes),
        outputs=model.layout.n_outputs,
        intercept=model.layout.has_intercept,
        centred=model.layout.centre is not None,
        family=model.family,
        sites=tuple(
            SiteEntry(str(name), site.n_rows, site.n_missing, plain or None)
            for (name, site), (plain, _) in zip(model.sites.items(), own, strict=True)
        ),
        rule=encode(model.criterion.rule),
        findings=tuple(map(as_dict, model.findings)),
        shift=model.layout.shift,
        status=model.record.status.name,
        recorded=len(model.record.objective),
        certificate=model.record.certificate,
        statistics=statistics,
        agreement=model.columns.agreement,
    )
    arrays = {
        **arrays_of_members(model),
        "objective": model.record.objective,
        **{f"site{k}": site.factor.to_vector() for k, site in enumerate(model.sites.values())},
    }
    if model.layout.centre is not None:
        arrays["centre"] = model.layout.centre
    arrays |= {f"statistics/{name}": meat for name, meat in meats.items()}
    arrays |= {name: ways for name in WAYS if (ways := getattr(model.unidentified, name)) is not None and ways.size}
    arrays |= {f"own{k}/{name}": array for k, (_, said) in enumerate(own) for name, array in said.items()}
    alike = {name: getattr(getattr(model, group), name) for group, names in ALIKE.items() for name in names}
    plain = asdict(header) | {"certificate": model.record.certificate.plain} | alike
    plain |= {
        "ratio_tests": [asdict(test) for test in model.totals.ratio_tests],
        "stated": model.stated and asdict(model.stated),
    }
    Archive("model", plain, arrays, os.fspath(path)).write(path)


def load_model(path: str | os.PathLike[str]) -> FittedGLM:
    """Read a model and check it: names, types, shapes, finiteness and positive definiteness.

    Parameters
    ----------
    path : path

    Raises
    ------
    ArchiveError
        When the file is not a model, is damaged, of another schema, or contradicts itself.

    Examples
    --------
    >>> from bayesadmm_np.estimators import load_model
    >>> load_model("no-model.npz")
    Traceback (most recent call last):
    bayesadmm_np._archive.MissingFileError: no-model.npz: file must be readable: No such file or directory.
    """
    archive = Archive.read(path)
    archive.require("model")
    plain = dict(archive.header)
    alike: dict[str, Any] = {}
    for group, names in {**ALIKE, "model": ("stated",)}.items():
        same = {name: plain.pop(name) for name in names if name in plain}
        alike |= read_as(typed(GROUPS.get(group, FittedGLM), names), same, archive.source)
    header = read_as(Header, plain, archive.source)
    with content_of(archive, "a fitted model"):
        _require_alike(alike)
        return _build(archive.arrays, header, alike)


def _build(arrays: Mapping[str, Array], header: Header, alike: dict[str, Any]) -> FittedGLM:
    p, d = len(header.features), header.dim
    least = d + (d * (d + 1) // 2 if header.family == "full" else 0)
    if arrays.get("posterior", np.zeros(0)).size < least:  # before any of its size is made
        raise refusal("posterior", f"a vector of at least {least} numbers", arrays.get("posterior", np.zeros(0)).size)
    like = FAMILIES[header.family](np.zeros(d), 1.0).natural
    natural, findings = Field(like.size, (), like.from_vector), tuple(map(read_finding, header.findings))
    dims = {"full": "d d", "diagonal": "d", "isotropic": ""}
    either = "d d" if "prior/precision" in arrays and arrays["prior/precision"].ndim == 2 else "d"
    table = {
        "prior/mean": Field("d"),
        "prior/precision": Field(dims.get(header.family, either)),
        "posterior": natural,
        "objective": Field(header.recorded),
        **{f"site{k}": natural for k in range(len(header.sites))},
    }
    for name, is_there in {"centre": header.centred, "mean": "mean" in arrays}.items():
        table |= {name: Field("p" if name == "centre" else "d")} if is_there else {}
    ways = [name for name, kinds in WAYS.items() if any(isinstance(finding, kinds) for finding in findings)]
    table |= {name: Field(f"d {name}", (NARROW,)) for name in ways}
    parts = tuple(f"own{k}/" for k, site in enumerate(header.sites) if site.own is not None)
    parts += ("statistics/",) if header.statistics is not None else ()
    found = read_fields(table, {n: a for n, a in arrays.items() if not n.startswith(parts)}, "", {"p": p, "d": d})
    rule = decode(header.rule, Rule, "rule", "")
    if getattr(rule, "points", 0) > MOST_POINTS:
        raise refusal("points", f"at most {MOST_POINTS}", rule.points)
    prior = header.family, found["prior/mean"], found["prior/precision"]
    return model_of(
        **alike,
        **members(*prior, found["posterior"], found.get("mean")),
        kind=header.kind,
        names=header.features,
        n_auxiliary=header.n_auxiliary,
        agreement=header.agreement,
        layout=Layout(p, header.outputs, header.intercept, found.get("centre"), header.shift),
        classes=header.classes,
        sites={
            site.name: Site(
                found[f"site{k}"], site.n_rows, site.n_missing, unpack_own_fit(site.own, arrays, header, f"own{k}/")
            )
            for k, site in enumerate(header.sites)
        },
        rule=rule,
        findings=findings,
        **{name: found[name] for name in ways},
        status=Status[header.status],
        certificate=header.certificate,
        objective=found["objective"],
        statistics=unpack_statistics(header.statistics, arrays, d, "statistics/"),
    )
