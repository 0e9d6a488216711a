"""A fitted model as one file: what predictions, a summary and a certificate need, and no rows.

The file is an npz archive of float64 arrays and one JSON text, without pickle. It is read as if a stranger had sent it:
names, types, shapes and sizes are compared with what its own header promises before an array is made of them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expm1

from .._archive import replace_atomically
from .._validation import Array
from .._version import __version__
from ..families import DiagonalGaussian, FixedPrecisionGaussian, FullGaussian, IsotropicGaussian
from ..families.coordinates import Natural
from ..families.gaussian import Gaussian
from ..losses import Delta, Exact, LeastSquares, Logistic, Poisson, QuasiMonteCarlo, Rule, Softmax
from ..losses.base import Loss
from ..losses.logistic_normal import logistic_normal_moments
from ..losses.pointwise import CategoricalLogit
from ..splitting.certificate import pooled_distance, pooled_residual
from ..splitting.distance import Distance
from ..splitting.history import Edges
from .glm import carry_distance

__all__ = [
    "LOSSES",
    "Check",
    "Columns",
    "FittedModel",
    "ModelFileError",
    "Site",
    "load_model",
    "make_loss",
    "predict_mean",
    "predict_probabilities",
    "save_model",
    "word",
]

SCHEMA = 1
KIND = "bayesadmm model"
LOSSES = ("logistic", "softmax", "ridge", "poisson")
FAMILIES: dict[str, type[Gaussian]] = {
    "full": FullGaussian,
    "diagonal": DiagonalGaussian,
    "isotropic": IsotropicGaussian,
    "fixed": FixedPrecisionGaussian,
}
HEADER = "header"
MOST_HEADER = 1 << 24
"""Bytes of JSON: a file that declares more is not one of ours."""
MOST_POINTS = 1 << 16
"""Of a rule: more would be an attack on memory."""


class ModelFileError(ValueError):
    """A file is no model of this library, is damaged, or contradicts itself."""


@dataclass(frozen=True)
class Columns:
    """How the columns of a table become a design matrix.

    A categorical column becomes one 0/1 column for each level but the first; then every column is centred and scaled.

    Attributes
    ----------
    names : tuple of str
        Of the table, in order.
    levels : dict of str to tuple of str
        Of the categorical columns; the first is the reference.
    centre, scale : ndarray, shape (p,)
        Of the design columns; 0 and 1 where a column is left alone.
    """

    names: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    centre: Array
    scale: Array

    @property
    def design_names(self) -> tuple[str, ...]:
        """Names of the p design columns."""
        return design_names(self.names, self.levels)

    def design(self, table: Mapping[str, ArrayLike]) -> Array:
        """Return the design matrix (n, p); levels that were not seen in the fit are a ValueError."""
        return (encode(self.names, self.levels, table) - self.centre) / self.scale


def design_names(names: Sequence[str], levels: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the design columns' names: `column` or `column=level`."""
    pairs = ([f"{name}={level}" for level in levels[name][1:]] if name in levels else [name] for name in names)
    return tuple(label for labels in pairs for label in labels)


def encode(names: Sequence[str], levels: Mapping[str, Sequence[str]], table: Mapping[str, ArrayLike]) -> Array:
    """Return the design columns before centring and scaling, shape (n, p)."""
    columns: list[Array] = []
    for name in names:
        if name not in levels:
            columns.append(np.asarray(table[name], dtype=np.float64))
            continue
        values = np.asarray(table[name], dtype=object)
        unseen = sorted(set(values) - set(levels[name]))
        if unseen:
            raise ValueError(
                f"column {name!r} holds the level {unseen[0]!r}, which the fit did not see; it knows "
                f"{', '.join(levels[name])}."
            )
        columns += [(values == level).astype(np.float64) for level in levels[name][1:]]
    return np.column_stack(columns)


@dataclass(frozen=True)
class Site:
    """What a site contributed: its factor exp⟨η_k, T(θ)⟩ and its number of rows."""

    factor: Natural
    n_rows: int


@dataclass(frozen=True)
class Check:
    """A certificate computed again.

    Attributes
    ----------
    pooled : float
        Length of wλ_g − η_0 + Σ_k ∇_μ E_{q_g}[ℓ_k], Fisher length per parameter.
    apart : dict of str to float
        Length of η_k + ∇_μ E_{q_g}[ℓ_k] by site: whose rows are not those of the fit.
    distance : Distance or None
        Bound on the distance to the pooled fit.
    """

    pooled: float
    apart: Mapping[str, float]
    distance: Distance | None


@dataclass(frozen=True)
class FittedModel:
    """A fitted generalised linear model with its posterior and its sites' factors.

    θ stacks the p design columns' coefficients and then, where there is one, the intercept; with C classes it stacks C
    such vectors.

    Attributes
    ----------
    loss : {"logistic", "softmax", "ridge", "poisson"}
    target, client : str
        Names of columns; `client` is None where each file was a site.
    columns : Columns
    classes : tuple of str or float
        In the order of the labels; empty for regressions.
    intercept : bool
    prior, posterior : Gaussian
    sites : dict of str to Site
    rule : Rule
        The expectation rule that the posterior is optimal under.
    noise_variance : float
        Of least squares; 1 for the others.
    method : str
    status, message : str
    tol : float
        Fisher length per parameter.
    rounds : int
        Of all runs together, where the evidence chose a number.
    objective : ndarray, shape (n,)
        After each round of the last run; a sum over rows.
    floats : int
        Numbers sent by all parties together in the last run.
    edges : Edges
        Residuals of the duality circuit after the last round.
    pooled : float
        Residual of the pooled stationarity condition, Fisher length per parameter.
    distance : str
        What the certificate said about the distance to the pooled fit; empty where there was no bound.
    target_centre, target_scale : float
        Of the measurements of a ridge regression, whose θ and noise variance are in units of `target_scale`.
    version : str
        Of the library that fitted it.
    """

    loss: str
    target: str
    client: str | None
    columns: Columns
    classes: tuple[str | float, ...]
    intercept: bool
    prior: Gaussian
    posterior: Gaussian
    sites: Mapping[str, Site]
    rule: Rule
    noise_variance: float
    method: str
    status: str
    message: str
    tol: float
    rounds: int
    objective: Array
    floats: int
    edges: Edges
    pooled: float
    distance: str = ""
    target_centre: float = 0.0
    target_scale: float = 1.0
    version: str = __version__

    @property
    def family(self) -> str:
        """The family's short name."""
        return next(name for name, kind in FAMILIES.items() if type(self.prior) is kind)

    @property
    def n_outputs(self) -> int:
        """Predictors a row, C."""
        return len(self.classes) if self.loss == "softmax" else 1

    @property
    def holds(self) -> bool:
        """Whether the pooled stationarity residual was below tol at the fit."""
        return self.pooled <= self.tol

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the entries of θ; with several classes `class: column`."""
        once = (*self.columns.design_names, *(["(intercept)"] if self.intercept else []))
        if self.n_outputs == 1:
            return once
        return tuple(f"{word(label)}: {name}" for label in self.classes for name in once)

    def design(self, table: Mapping[str, ArrayLike]) -> Array:
        """Return the design matrix with the intercept's column of ones."""
        return with_intercept(self.columns.design(table), self.intercept)

    def make_loss(self, table: Mapping[str, ArrayLike], target: ArrayLike, weights: Any = None) -> Loss:
        """Return the loss ℓ_k of rows; `target` holds labels 0 … C − 1, counts or measurements."""
        if self.loss == "ridge":
            target = (np.asarray(target) - self.target_centre) / self.target_scale
        return make_loss(self.loss, self.design(table), target, weights, len(self.classes), self.noise_variance)

    def probabilities(self, table: Mapping[str, ArrayLike]) -> Array:
        """Return class probabilities integrated over the posterior, shape (n, C)."""
        return predict_probabilities(self.posterior, self.design(table), self.n_outputs)

    def mean_and_sd(self, table: Mapping[str, ArrayLike]) -> tuple[Array, Array]:
        """Return mean and standard deviation of new observations, each (n,)."""
        mean, sd = predict_mean(self.loss, self.posterior, self.design(table), self.noise_variance)
        return self.target_centre + self.target_scale * mean, self.target_scale * sd

    def check(self, losses: Mapping[str, Loss]) -> Check:
        """Recompute the certificate from the losses of the sites' rows, which answer by sums at the posterior."""
        expected = {name: loss.expect(self.posterior, self.rule) for name, loss in losses.items()}
        apart = {
            name: self.posterior.fisher_norm(self.sites[name].factor + item.natural_gradient)
            for name, item in expected.items()
        }
        sums = list(expected.values())
        distance = pooled_distance(self.prior, self.posterior, sums)
        return Check(
            pooled_residual(self.prior, self.posterior, sums),
            apart,
            None if distance is None else self.in_both_units(distance),
        )

    def in_both_units(self, distance: Distance) -> Distance:
        """Return the larger of a bound on θ and what it says of θ in the columns' own units."""
        if not self.posterior.learns_precision:
            return distance
        change, _ = self.to_original_units()
        own = carry_distance(distance, change, change @ self.posterior.covariance_matrix @ change.T)
        return max(distance, own, key=lambda bound: bound.sd_units)

    def to_original_units(self) -> tuple[Array, Array]:
        """Return the matrix A and the vector b of θ in the columns' own units = Aθ + b: undoes centring and scaling."""
        p = len(self.columns.scale)
        block = np.diag(np.append(1.0 / self.columns.scale, [1.0] * self.intercept))
        if self.intercept:
            block[p, :p] = -self.columns.centre / self.columns.scale
        shift = np.zeros(len(block))
        if self.intercept:
            shift[p] = self.target_centre
        change = self.target_scale * np.kron(np.eye(self.n_outputs), block)
        return np.asarray(change, dtype=np.float64), np.tile(shift, self.n_outputs)


def word(label: str | float) -> str:
    """Write a class label as it stands in a table."""
    return label if isinstance(label, str) else f"{label:.12g}"


def with_intercept(design: Array, intercept: bool) -> Array:
    """Append the intercept's column of ones."""
    return np.column_stack([design, np.ones(len(design))]) if intercept else design


def make_loss(
    kind: str, design: Array, target: ArrayLike, weights: Any = None, n_classes: int = 0, noise_variance: float = 1.0
) -> Loss:
    """Return the loss of one site's rows, a sum over them."""
    if kind == "logistic":
        return Logistic(design, target, weights)
    if kind == "softmax":
        return Softmax(design, target, n_classes, weights)
    if kind == "poisson":
        return Poisson(design, target, weights)
    precision = np.full(len(design), 1.0 / noise_variance)
    return LeastSquares(design, target, precision if weights is None else precision * np.asarray(weights))


def _predictor(posterior: Gaussian, design: Array, n_outputs: int) -> tuple[Array, Array]:
    """Mean and (co)variance of each row's predictors; a point method knows no variance."""
    if n_outputs == 1:
        mean = design @ posterior.mean
        return mean, posterior.factor.row_variances(design) if posterior.learns_precision else np.zeros_like(mean)
    mean = design @ posterior.mean.reshape(n_outputs, -1).T
    if posterior.learns_precision:
        return mean, posterior.factor.class_covariances(design, n_outputs)
    return mean, np.zeros((len(mean), n_outputs, n_outputs))


def predict_probabilities(posterior: Gaussian, design: Array, n_outputs: int) -> Array:
    """Return E_q of the class probabilities, shape (n, C): exact for two classes, else quasi-Monte-Carlo."""
    mean, spread = _predictor(posterior, design, n_outputs)
    if n_outputs == 1:
        return np.column_stack([logistic_normal_moments(sign * mean, spread).sigmoid for sign in (-1.0, 1.0)])
    # the slope of the loss of label 0 is E p − (1, 0, …, 0)
    rows = QuasiMonteCarlo().moments(CategoricalLogit(n_outputs), mean, spread, np.zeros(len(mean)))
    return np.asarray(rows.slope + np.eye(n_outputs)[0])


def predict_mean(kind: str, posterior: Gaussian, design: Array, noise_variance: float) -> tuple[Array, Array]:
    """Return mean and standard deviation of new observations of a least-squares or Poisson model."""
    mean, spread = _predictor(posterior, design, 1)
    if kind == "ridge":
        return np.asarray(mean), np.asarray(np.sqrt(spread + noise_variance))
    rate = np.asarray(np.exp(mean + 0.5 * spread))
    return rate, np.asarray(np.sqrt(rate + rate**2 * expm1(spread)))


# --- writing ---------------------------------------------------------------------------------------


def save_model(path: str | os.PathLike[str], model: FittedModel) -> None:
    """Write a model atomically: a crash leaves the old file or the new one, never half of one."""
    header = {
        "kind": KIND,
        "schema": SCHEMA,
        "version": model.version,
        "loss": model.loss,
        "target": model.target,
        "client": model.client,
        "features": list(model.columns.names),
        "levels": {name: list(levels) for name, levels in model.columns.levels.items()},
        "classes": list(model.classes),
        "intercept": model.intercept,
        "family": model.family,
        "sites": [{"name": name, "n_rows": site.n_rows} for name, site in model.sites.items()],
        "rule": _rule_to_dict(model.rule),
        "noise_variance": model.noise_variance,
        "method": model.method,
        "status": model.status,
        "message": model.message,
        "tol": model.tol,
        "rounds": model.rounds,
        "recorded": len(model.objective),
        "floats": model.floats,
        "edges": dataclasses.asdict(model.edges),
        "pooled": model.pooled,
        "distance": model.distance,
        "target_centre": model.target_centre,
        "target_scale": model.target_scale,
    }
    arrays = {
        "centre": model.columns.centre,
        "scale": model.columns.scale,
        "prior/mean": model.prior.mean,
        "prior/precision": _prior_precision(model.prior),
        "objective": model.objective,
        **_parts("posterior", model.posterior.natural),
    }
    for k, site in enumerate(model.sites.values()):
        arrays.update(_parts(f"site{k}", site.factor))
    text = np.frombuffer(json.dumps(header, ensure_ascii=False).encode(), dtype=np.uint8)
    replace_atomically(Path(path), lambda file: np.savez(file, **{HEADER: text, **arrays}))  # type: ignore[arg-type]


def _parts(name: str, natural: Natural) -> dict[str, Array]:
    return {f"{name}/part{j}": part for j, part in enumerate(natural.parts)}


def _prior_precision(prior: Gaussian) -> Array:
    return np.array(prior.prior_weight) if isinstance(prior, IsotropicGaussian) else prior.factor.parts[0]


def _rule_to_dict(rule: Rule) -> dict[str, Any]:
    if isinstance(rule, Delta):
        return {"name": "delta", "order": rule.order}
    if isinstance(rule, QuasiMonteCarlo):
        return {"name": "quasi-monte-carlo", "points": rule.points, "seed": rule.seed}
    if isinstance(rule, Exact):
        return {"name": "exact"}
    raise ValueError(f"a model with the expectation rule {rule!r} cannot be written to a file.")


def _rule_from_dict(plain: dict[str, Any], n_outputs: int) -> Rule:
    makers: dict[str, Any] = {"delta": Delta, "quasi-monte-carlo": QuasiMonteCarlo, "exact": Exact}
    rule: Rule = makers[plain.pop("name")](**plain)
    if isinstance(rule, QuasiMonteCarlo) and rule.points > MOST_POINTS:
        raise ValueError(f"points is {rule.points}.")
    return rule if n_outputs == 1 else rule.resolve(CategoricalLogit(n_outputs))


# --- reading ---------------------------------------------------------------------------------------


def load_model(path: str | os.PathLike[str]) -> FittedModel:
    """Read a model and check it: schema, names, types, shapes, finiteness and positive definiteness.

    Raises
    ------
    ModelFileError
        When the file is not a model, is damaged, of another schema, or contradicts itself.
    FileNotFoundError
        When there is no such file.
    """
    where = os.fspath(path)
    data = Path(path).read_bytes()
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            header = _read_header(archive, where)
            shapes = _expected_shapes(header)
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            if names != {HEADER, *shapes} or len(archive.namelist()) != len(names):
                odd = sorted(names ^ {HEADER, *shapes})
                raise ModelFileError(f"{where} is damaged: its arrays are not those of its header ({', '.join(odd)}).")
            arrays = {name: _read_array(archive, name, allowed) for name, allowed in shapes.items()}
        return _build(header, arrays)
    except ModelFileError:
        raise
    except zipfile.BadZipFile as error:
        raise ModelFileError(f"{where} is not a model file, or it is truncated or damaged.") from error
    except (KeyError, TypeError, ValueError, OverflowError, EOFError, RuntimeError, zlib.error) as error:
        raise ModelFileError(f"{where} is damaged: {error}") from error


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _are_classes(value: Any) -> bool:
    if not (isinstance(value, list) and all(_is_text(label) or _is_number(label) for label in value)):
        return False
    return len(set(value)) == len(value) > 1


def _are_sites(value: Any) -> bool:
    entries = isinstance(value, list) and all(
        isinstance(item, dict) and {"name", "n_rows"} == set(item) for item in value
    )
    return entries and _are_names([item["name"] for item in value]) and all(_is_count(item["n_rows"]) for item in value)


FIELDS: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: value == KIND,
    "schema": lambda value: value == SCHEMA,
    "version": _is_text,
    "loss": lambda value: value in LOSSES,
    "target": _is_text,
    "client": lambda value: value is None or _is_text(value),
    "features": _are_names,
    "levels": lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
    "classes": lambda value: value == [] or _are_classes(value),
    "intercept": lambda value: isinstance(value, bool),
    "family": lambda value: value in FAMILIES,
    "sites": _are_sites,
    "rule": lambda value: isinstance(value, dict),
    "noise_variance": _is_positive,
    "method": _is_text,
    "status": _is_text,
    "message": _is_text,
    "tol": _is_positive,
    "rounds": _is_count,
    "recorded": _is_count,
    "floats": _is_count,
    "edges": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "pooled": _is_number,
    "distance": _is_text,
    "target_centre": _is_number,
    "target_scale": _is_positive,
}
"""The header's keys, and what their values must look like."""


def _read_header(archive: zipfile.ZipFile, where: str) -> dict[str, Any]:
    if f"{HEADER}.npy" not in archive.namelist():
        raise ModelFileError(f"{where} is an archive of something else: it has no header of a model.")
    text = _member(archive, HEADER, MOST_HEADER, np.dtype(np.uint8)).tobytes()
    header = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise ModelFileError(f"{where} is an archive of something else: its header is not that of a model.")
    if header.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{where} has schema {header.get('schema')!r}, and this version reads {SCHEMA}; it was written by "
            f"bayesadmm_np {header.get('version')}."
        )
    if set(header) != set(FIELDS):
        odd = ", ".join(sorted(set(header) ^ set(FIELDS)))
        raise ModelFileError(f"{where} is damaged: its header has missing or unknown entries ({odd}).")
    for key, is_right in FIELDS.items():
        if not is_right(header[key]):
            raise ModelFileError(f"{where} is damaged: {key} is {str(header[key])[:60]!r}.")
    if (header["loss"] in ("logistic", "softmax")) != bool(header["classes"]):
        raise ModelFileError(f"{where} is damaged: classes do not fit the loss {header['loss']}.")
    return header


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"the header holds {text}")


def _expected_shapes(header: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the shapes that each array may have, by name."""
    p = len(design_names(header["features"], header["levels"]))
    outputs = len(header["classes"]) if header["loss"] == "softmax" else 1
    d = outputs * (p + header["intercept"])
    parts = {"full": ((d,), (d, d)), "diagonal": ((d,), (d,)), "isotropic": ((d,),), "fixed": ((d,),)}[header["family"]]
    priors = {"full": ((d, d),), "diagonal": ((d,),), "isotropic": ((),), "fixed": ((d,), (d, d))}[header["family"]]
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "centre": ((p,),),
        "scale": ((p,),),
        "prior/mean": ((d,),),
        "prior/precision": priors,
        "objective": ((header["recorded"],),),
    }
    for name in ("posterior", *(f"site{k}" for k in range(len(header["sites"])))):
        shapes.update({f"{name}/part{j}": (shape,) for j, shape in enumerate(parts)})
    return shapes


def _read_array(archive: zipfile.ZipFile, name: str, shapes: tuple[tuple[int, ...], ...]) -> Array:
    limit = max(math.prod(shape) for shape in shapes)
    array = _member(archive, name, limit, np.dtype(np.float64))
    if array.shape not in shapes:
        raise ValueError(f"{name} has shape {array.shape}, expected {' or '.join(map(str, shapes))}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} is not finite.")
    return array


def _member(archive: zipfile.ZipFile, name: str, limit: int, dtype: np.dtype[Any]) -> Any:
    """Read one array of at most `limit` numbers; sizes are checked before anything is unpacked."""
    info = archive.getinfo(f"{name}.npy")
    if info.file_size > limit * dtype.itemsize + 4096:
        raise ValueError(f"{name} declares {info.file_size} bytes, which is too many.")
    file = BytesIO(archive.read(info))
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"{name} is an array of another format.")
    shape, fortran, found = np.lib.format.read_array_header_1_0(file)
    if found != dtype or (fortran and len(shape) > 1):
        raise ValueError(f"{name} holds {found}, expected {dtype}.")
    return np.frombuffer(file.read(), dtype).reshape(shape)


def _build(header: dict[str, Any], arrays: dict[str, Array]) -> FittedModel:
    def natural(name: str) -> Natural:
        parts = [arrays[f"{name}/part{j}"] for j in range(sum(key.startswith(f"{name}/part") for key in arrays))]
        if not all(part.ndim == 1 or np.array_equal(part, part.T) for part in parts):
            raise ValueError(f"{name} is not symmetric.")
        return Natural(*parts)

    if not (arrays["scale"] > 0).all():
        raise ValueError("scale is not positive.")
    if not set(header["levels"]) <= set(header["features"]):
        raise ValueError("levels name a column that is no feature.")
    precision = arrays["prior/precision"]
    family: Any = FAMILIES[header["family"]]
    prior: Gaussian = family(arrays["prior/mean"], precision if precision.ndim else float(precision))
    levels = {name: tuple(values) for name, values in header["levels"].items()}
    return FittedModel(
        loss=header["loss"],
        target=header["target"],
        client=header["client"],
        columns=Columns(tuple(header["features"]), levels, arrays["centre"], arrays["scale"]),
        classes=tuple(header["classes"]),
        intercept=header["intercept"],
        prior=prior,
        posterior=prior.with_natural(natural("posterior")),
        sites={entry["name"]: Site(natural(f"site{k}"), entry["n_rows"]) for k, entry in enumerate(header["sites"])},
        rule=_rule_from_dict(header["rule"], len(header["classes"]) if header["loss"] == "softmax" else 1),
        noise_variance=float(header["noise_variance"]),
        method=header["method"],
        status=header["status"],
        message=header["message"],
        tol=float(header["tol"]),
        rounds=header["rounds"],
        objective=arrays["objective"],
        floats=header["floats"],
        edges=Edges(**header["edges"]),
        pooled=float(header["pooled"]),
        distance=header["distance"],
        target_centre=float(header["target_centre"]),
        target_scale=float(header["target_scale"]),
        version=header["version"],
    )
