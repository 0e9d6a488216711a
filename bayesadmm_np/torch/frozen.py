"""An exact last layer: the core's regression on the features of a frozen network, whose rows stay at the clients."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .._archive import Archive, content_of
from .._errors import ArgumentError
from .._validation import Array, as_count, as_positive
from ..families import FullGaussian
from ..federation.glm_site import GLMData
from ..federation.glm_spec import GLMTask
from ..glm.kinds import Kind, read_kind
from ..losses.base import Loss
from ..splitting.certificate import Certificate
from ..splitting.distance import Distance
from ..splitting.guarded import Guarded
from ..splitting.loop import run
from ..splitting.newton import Newton
from ..splitting.result import Result as CoreResult
from ..splitting.status import Edges
from .likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from .loop import Result
from .network import Rows, digest
from .posterior import NetworkPosterior
from .stream import Stream

KIND = "last layer of a network"
METHOD = Guarded(Newton("prior"))
TOL = 1e-8
PASS = 1000
"""Rows at once through the body, and through the predictive."""
GRID = tuple(10.0 ** (4 - i / 2) for i in range(21))
"""Precisions that held-out rows choose among, from the stiffest."""
LOWEST, HIGHEST = 1e-8, 1e8
MOST_FITS = 40
SEARCHED = 1e-5
"""Tolerance of fits on the way to δ."""
SETTLED = 0.03
"""Step in log δ at which the search for the evidence's maximum ends."""

KINDS: dict[type[Likelihood], str] = {Categorical: "multinomial", Bernoulli: "logistic", Gaussian: "linear"}


@dataclass(frozen=True, eq=False)
class FrozenBody:
    """A network without its last layer, frozen: a map from inputs to the features of a regression.

    The body is a copy in evaluation mode, whose parameters never change. Its features and a column of ones are the
    columns of the core's softmax, logistic or least-squares regression.

    Parameters
    ----------
    module : Module
        Map from a batch of inputs to features, shape (n, p).
    outputs : int
        Outputs of the last layer: C classes of `Categorical`, one logit of `Bernoulli`, the columns of y of `Gaussian`.
    likelihood : Likelihood, default Categorical()
        A `Gaussian` has its variance given.

    Raises
    ------
    ValueError
        When an argument is out of range, or there is no regression for the likelihood.

    Examples
    --------
    A site that is elsewhere has the features as a task of the core:

    >>> import torch
    >>> from bayesadmm_np.federation import Site
    >>> from bayesadmm_np.torch import FrozenBody, Rows
    >>> body = FrozenBody(torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh()), outputs=3)
    >>> site = Site("A", body.data(Rows(torch.zeros(3, 2), torch.tensor([0, 1, 2]))))
    >>> site.data.loss  # two contrasts of the three classes, of five features and the intercept
    ReferenceSoftmax(3 rows, 12 parameters)
    """

    module: nn.Module
    outputs: int
    likelihood: Likelihood = field(default_factory=Categorical)
    head: str | None = None  # name of the layer that was split off

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise ValueError(f"module must be a torch.nn.Module, got {type(self.module).__name__}.")
        if type(self.likelihood) not in KINDS:
            raise ValueError(
                f"likelihood must be Categorical(), Bernoulli() or Gaussian(...), got {self.likelihood!r}."
            )
        least = 2 if isinstance(self.likelihood, Categorical) else 1
        outputs = as_count(self.outputs, "outputs", minimum=least)
        if isinstance(self.likelihood, Bernoulli) and outputs != 1:
            raise ValueError(f"outputs must be 1 for Bernoulli(), got {outputs}.")
        object.__setattr__(self, "module", deepcopy(self.module).eval().requires_grad_(requires_grad=False))

    @classmethod
    def of(cls, network: nn.Module, example: Tensor, likelihood: Likelihood | None = None) -> FrozenBody:
        """Split the last layer off a network, an `nn.Linear` whose outputs are the network's.

        Parameters
        ----------
        network : Module
        example : Tensor, shape (n, ...)
            Some inputs.
        likelihood : Likelihood, optional
            Default `Categorical()`.

        Raises
        ------
        ValueError
            When the network's outputs are not those of a linear layer.
        """
        copy = deepcopy(network).eval()
        layers = {name: layer for name, layer in copy.named_modules() if isinstance(layer, nn.Linear)}
        made: dict[str, Any] = {}
        for name, layer in layers.items():
            layer.register_forward_hook(lambda _, inputs, out, name=name: made.__setitem__(name, out))
        with torch.no_grad():
            outputs = copy(_like(example, copy))
        head = next((name for name, out in made.items() if out is outputs), None)
        if head is None:
            raise ValueError(
                "network must end in an nn.Linear whose outputs are its own, and it does not: give its body as "
                "FrozenBody(body, outputs=...)."
            )
        for layer in layers.values():
            layer._forward_hooks.clear()
        outputs, above = layers[head].out_features, head.rpartition(".")
        if head:
            setattr(copy.get_submodule(above[0]), above[2], nn.Identity())
        return cls(copy if head else nn.Identity(), outputs, likelihood or Categorical(), head)

    @cached_property
    def kind(self) -> Kind:
        """The core's regression; its coefficients of C classes are C − 1 contrasts against the first."""
        return read_kind(KINDS[type(self.likelihood)]).of_classes(self.outputs)

    @property
    def is_categorical(self) -> bool:
        """Return whether a shift common to all outputs leaves the likelihood as it is."""
        return isinstance(self.likelihood, Categorical)

    @property
    def contrasts(self) -> int:
        """Outputs that the rows identify."""
        return self.outputs - self.is_categorical

    @cached_property
    def digest(self) -> str:
        """Digest of the body's parameters and buffers."""
        return digest(list(self.module.state_dict().values()))

    def prior(self, precision: float, dim: int) -> FullGaussian:
        """Return the prior N(0, 1/δ) of every weight and bias of the last layer, on the coefficients.

        That of the C − 1 contrasts of C classes has the precision δ(I − 11ᵀ/C) for each column, whichever class is the
        first.
        """
        delta, one = as_positive(precision, "prior_precision"), np.eye(self.contrasts)
        one -= 1.0 / self.outputs if self.is_categorical else 0.0
        return FullGaussian(np.zeros(dim), delta * np.kron(one, np.eye(dim // self.contrasts)))

    def task(self, prior_precision: float, **settings: Any) -> GLMTask:
        """Return the task of a server whose sites have `data`; settings are those of `GLMTask`."""
        return GLMTask(METHOD, partial(self.prior, prior_precision), **{"tol": TOL, **settings})

    def data(self, rows: Rows | Dataset[Any] | DataLoader[Any]) -> GLMData:
        """Return the features of a site's rows as data of `federation.Site`.

        The columns' names have the body's digest, so that a server refuses sites with different bodies.
        """
        loss = self.loss(rows)
        width = loss.dim // self.contrasts
        return GLMData(loss, (*(f"{self.digest}:{j + 1}" for j in range(width - 1)), "intercept"))

    def loss(self, rows: Rows | Dataset[Any] | DataLoader[Any], name: str = "rows") -> Loss:
        """Return the loss of a client's rows as a function of the last layer, a sum over rows.

        Raises
        ------
        ValueError
            When the body or the likelihood cannot take the rows, or a feature is not finite.
        """
        designs, targets, weights = [], [], []
        try:
            for X, y, w in _passes(rows):
                designs.append(self.design(X))
                targets.append(self.likelihood.read(y, self.outputs).cpu().numpy())
                weights.append(w.cpu().numpy().astype(np.float64))
        except (RuntimeError, ValueError, IndexError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            raise ValueError(f"{name}: {error}") from error
        X, y = np.concatenate(designs), np.concatenate(targets)
        wrong = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if wrong.size:
            raise ValueError(
                f"{name}: the body's features of {wrong.size} rows are not finite (the first is row {wrong[0]}); scale "
                "the inputs as in training, or leave these rows out."
            )
        y = y.astype(np.float64) if self.kind.has_noise else y
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        noise = self.likelihood.noise() or 1.0
        return self.kind.make_loss(X, y, np.concatenate(weights), None, self.contrasts, noise)

    @torch.no_grad()
    def design(self, X: Tensor) -> Array:
        """Return the features of rows, and a column of ones, in float64; shape (n, p + 1)."""
        made = torch.cat([self.module(_like(part, self.module)) for part in X.split(PASS)])
        if made.ndim != 2:
            raise ValueError(f"the body must return features of shape (n, p), got {tuple(made.shape)}.")
        return np.column_stack([made.double().cpu().numpy(), np.ones(len(made))])


@dataclass(frozen=True, eq=False)
class LastLayer:
    """Laplace posterior of a network's last layer at the mode of all clients' rows; `last_layer` makes it.

    Attributes
    ----------
    body : FrozenBody
    posterior : FullGaussian
        N(mode, curvature⁻¹) of the coefficients: output by output, the features' and then the intercept. Those of C
        classes are C − 1 contrasts against the first class. For least squares the posterior is exact.
    prior_precision : float
        δ.
    certificate : Certificate or None
        The core's: a bound on the distance from the pooled mode.
    exchanges : int
        Exchanges with all clients, of the search for δ too.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import MLP, Rows, last_layer
    >>> X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> rows, _ = Rows(X, (X[:, 0] > 0).long()), torch.manual_seed(0)
    >>> head = last_layer(MLP((2, 8, 2)), [rows], prior_precision=0.1)
    >>> head.certificate.holds, head.predict_proba(X[:3]).shape
    (True, torch.Size([3, 2]))
    """

    body: FrozenBody
    posterior: FullGaussian
    prior_precision: float
    certificate: Certificate | None = None
    exchanges: int = 0

    def __repr__(self) -> str:
        shape = f"{self.weight.shape[0]} outputs of {self.weight.shape[1] - 1} features"
        return f"LastLayer({shape}, prior_precision={self.prior_precision:.4g})"

    @property
    def floats(self) -> int:
        """Numbers that a site sends in one exchange: gradient and curvature."""
        return self.posterior.natural.size

    @property
    def weight(self) -> Array:
        """Mode of the layer's weights, and of its biases in the last column; shape (outputs, p + 1)."""
        found = self.posterior.mean.reshape(self.body.contrasts, -1)
        if self.body.is_categorical:  # the prior puts the mean over the classes at zero
            found = np.pad(found, ((1, 0), (0, 0)))
            found = found - found.mean(axis=0)
        return np.asarray(found)

    def model(self) -> nn.Module:
        """Return the network with this last layer, in evaluation mode."""
        module, weight = deepcopy(self.body.module), torch.from_numpy(self.weight)
        like = next(module.parameters(), torch.zeros(()))
        layer = nn.Linear(weight.shape[1] - 1, weight.shape[0]).to(like if like.is_floating_point() else weight)
        with torch.no_grad():
            layer.weight.copy_(weight[:, :-1])
            layer.bias.copy_(weight[:, -1])
        if not self.body.head:
            module = nn.Sequential(module, layer)
        else:
            above, _, name = self.body.head.rpartition(".")
            setattr(module.get_submodule(above), name, layer)
        return module.eval()

    def logits(self, X: Tensor) -> Tensor:
        """Return the outputs at the mode, in float64; shape (n, outputs)."""
        return torch.from_numpy(self.body.design(X) @ self.weight.T)

    def predict_proba(self, X: Tensor, samples: int | None = None) -> Tensor:
        """Return class probabilities, averaged over the posterior, in float64; shape (n, C).

        The average over a row's logits, which are Gaussian, is exact for two classes, and over quasi-Monte-Carlo points
        for more, the same at every call.

        Parameters
        ----------
        X : Tensor, shape (n, ...)
        samples : int, optional
            0 for the prediction at the mode.

        Raises
        ------
        ValueError
            When `samples` is another number, or observations are no classes.
        """
        return torch.from_numpy(self._probabilities(self.body.design(X), samples))

    def _probabilities(self, design: Array, samples: int | None = None) -> Array:
        if samples not in (None, 0):
            raise ArgumentError("samples", "must be 0, the mode, or None, the whole posterior", samples)
        if not self.body.kind.is_classifier:
            raise ValueError(f"predict_proba needs classes, got {self.body.likelihood!r}: see predict.")
        how = "plug-in" if samples == 0 else None
        return np.concatenate([self.body.kind.class_probabilities(*each, how) for each in self._moments(design)])

    def _moments(self, design: Array) -> Iterator[tuple[Array, Array]]:
        """Yield means and (co)variances of the predictors, some rows at a time."""
        k, factor = self.body.contrasts, self.posterior.factor
        for part in np.split(design, range(PASS, len(design), PASS)):
            mean = part @ self.posterior.mean.reshape(k, -1).T
            yield (mean[:, 0], factor.row_variances(part)) if k == 1 else (mean, factor.class_covariances(part, k))

    def predict(
        self, X: Tensor, samples: int | None = None, *, return_std: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the most probable classes, shape (n,), or mean outputs for numbers, shape (n, outputs) or (n,).

        Parameters
        ----------
        X, samples
            As in `predict_proba`.
        return_std : bool, default False
            Whether to return also the standard deviations of an observation: those of the output and of the noise.

        Raises
        ------
        ValueError
            When an argument is out of range, or deviations of classes are asked for.
        """
        if self.body.kind.is_classifier:
            if return_std:
                raise ValueError("return_std needs numbers, got classes: see predict_proba.")
            return self.predict_proba(X, samples).argmax(dim=1)
        mean, variance = self._numbers(self.body.design(X))
        return (mean, variance.sqrt()) if return_std else mean

    def _numbers(self, design: Array) -> tuple[Tensor, Tensor]:
        """Return means and variances of observations."""
        pairs = [(m, v if v.ndim == 1 else np.einsum("ncc->nc", v)) for m, v in self._moments(design)]
        mean, variance = (torch.from_numpy(np.concatenate(part)) for part in zip(*pairs, strict=True))
        return mean, variance + self.body.likelihood.noise()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior and the certificate to a file (arrays with JSON beside, no pickle), without the body."""
        own = {name: getattr(self.body, name) for name in ("digest", "outputs")}
        header = {**own, "likelihood": repr(self.body.likelihood), "exchanges": self.exchanges}
        header |= {"prior_precision": self.prior_precision}
        header |= {"certificate": None if self.certificate is None else self.certificate.plain}
        arrays = {"mean": self.posterior.mean, "precision": self.posterior.precision}
        Archive(KIND, header, arrays).write(path, limit=None)

    @classmethod
    def load(cls, path: str | os.PathLike[str], body: FrozenBody) -> LastLayer:
        """Read a file of `save`.

        Parameters
        ----------
        path : path
        body : FrozenBody
            The same body; `FrozenBody.of(network, example)` splits the last layer off a network.

        Raises
        ------
        ArchiveError
            When the file is damaged, or of another body.
        FileNotFoundError
            When there is no such file.
        """
        archive = Archive.read(path, limit=None)
        archive.require(KIND, {"mean", "precision"})
        with content_of(archive, "the last layer of a network"):
            header = archive.header
            own = {"digest": body.digest, "outputs": body.outputs, "likelihood": repr(body.likelihood)}
            for name, expected in own.items():
                if header[name] != expected:
                    raise archive.refusal(name, f"that of this body, {expected!r}", header[name])
            posterior = FullGaussian(archive.arrays["mean"], archive.arrays["precision"])
            certificate = header["certificate"] and _certificate(**header["certificate"])
            return cls(body, posterior, float(header["prior_precision"]), certificate, int(header["exchanges"]))


def _certificate(edges: Any, distance: Any, **numbers: Any) -> Certificate:
    bound = distance and Distance(**{**distance, "per_coefficient": np.array(distance["per_coefficient"])})
    return Certificate(Edges(**edges), **numbers, distance=bound)


def _like(X: Tensor, module: nn.Module) -> Tensor:
    """Return inputs where the module is, numbers in its type."""
    first = next((p for p in module.parameters() if p.is_floating_point()), None)
    if first is None:
        return X
    return X.to(first) if X.is_floating_point() else X.to(first.device)


def _passes(rows: object) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    if isinstance(rows, Rows):
        return rows.passes(PASS)
    if isinstance(rows, Dataset | DataLoader):
        return Stream.of(rows).passes(PASS)
    raise ValueError(f"expected Rows(X, y), a Dataset or a DataLoader, got {type(rows).__name__}.")


def last_layer(
    network: Result | NetworkPosterior | nn.Module | FrozenBody,
    clients: Sequence[Rows | Dataset[Any] | DataLoader[Any]],
    prior_precision: float | Literal["evidence"] = "evidence",
    *,
    validate: Rows | None = None,
    likelihood: Likelihood | None = None,
    tol: float = TOL,
) -> LastLayer:
    """Fit a network's last layer to all clients' rows exactly, with the rest of the network frozen.

    The core's regression on the body's features finds the mode of Σ_k ℓ_k(θ) + ½δ‖θ‖² over the weights and biases θ of
    the last layer, as on the pooled rows, by guarded Newton steps. Clients send gradients and curvatures. The posterior
    is Laplace's about the mode; a certificate bounds the mode's error.

    Parameters
    ----------
    network : Result, NetworkPosterior, Module or FrozenBody
        Its last layer, an `nn.Linear`, is replaced. Give a body without a last layer, or one for other outputs, as
        `FrozenBody(body, outputs)`.
    clients : sequence of Rows, Dataset or DataLoader
    prior_precision : float or "evidence", default "evidence"
        δ > 0, of the weights and biases in the layer's own units. "evidence" maximises the Laplace approximation of the
        log marginal likelihood of all clients' rows (MacKay 1992), which rests on sums that clients send anyway. The
        evidence is misled where the body was trained on the same rows and overfits: then give `validate`.
    validate : Rows, optional
        Rows that neither the body nor a client was trained on; they choose δ by the log loss of predictions.
    likelihood : Likelihood, optional
        Of a Module, default `Categorical()`; a result has its own.
    tol : float, default 1e-8
        Of the certificate: Fisher length per parameter.

    Raises
    ------
    ValueError
        When an argument is out of range, a client does not fit the body, or no client has rows of some class.
    RunError
        When Newton's method fails.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import FrozenBody, Rows, last_layer
    >>> X = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
    >>> body = FrozenBody(torch.nn.Tanh(), outputs=3)
    >>> head = last_layer(body, [Rows(X[:30], y[:30]), Rows(X[30:], y[30:])])
    >>> head.certificate.holds, head.prior_precision < 1.0, head.model()(X).shape
    (True, True, torch.Size([90, 3]))
    """
    if isinstance(clients, Rows | Dataset | DataLoader) or not isinstance(clients, Sequence) or not len(clients):
        raise ValueError("clients must be a sequence of at least one Rows or Dataset.")
    if isinstance(network, Result):
        network = network.posterior
    if isinstance(network, NetworkPosterior):
        network, likelihood = network.model(), likelihood or network.network.likelihood
    if not isinstance(network, FrozenBody):
        if not isinstance(network, nn.Module):
            raise ValueError(f"network must be a Result, NetworkPosterior or Module, got {type(network).__name__}.")
        network = FrozenBody.of(network, next(_passes(clients[0]))[0][:2], likelihood)
    losses = [network.loss(rows, f"client {k}") for k, rows in enumerate(clients)]
    for k, loss in enumerate(losses):
        if loss.dim != losses[0].dim:
            width, first = (each.dim // network.contrasts - 1 for each in (loss, losses[0]))
            raise ValueError(f"client {k}: the body must return client 0's {first} features, got {width}.")
    if network.kind.is_classifier:
        _require_classes(losses, network.outputs if network.is_categorical else 2)
    fit = _Fits(network, losses, tol)
    if validate is not None:
        if prior_precision != "evidence":
            raise ArgumentError("validate", "must be left out where prior_precision is given", "both")
        return fit.by_rows(validate)
    if prior_precision == "evidence":
        return fit.by_evidence()
    return fit.at(as_positive(prior_precision, "prior_precision"))[0]


def _require_classes(losses: Sequence[Any], classes: int) -> None:
    """Refuse classes that no client has, to whose weights the prior alone would speak."""
    counts = np.sum([np.bincount(one.y.astype(int), one.weights, classes) for one in losses], axis=0)
    if not counts.all():
        raise ValueError(
            f"clients must have rows of every class, and none has class {int(np.argmin(counts))}; number the classes "
            "from 0 without gaps, and give FrozenBody(body, outputs=...) where the network has other ones."
        )


class _Fits:
    """Fits at several δ, each from the clients' sums at the end of the last one."""

    def __init__(self, body: FrozenBody, losses: Sequence[Loss], tol: float) -> None:
        self.body, self.losses, self.tol = body, losses, tol
        self.sites: list[Any] | None = None
        self.exchanges = 0

    def at(self, delta: float, tol: float | None = None) -> tuple[LastLayer, CoreResult]:
        """Fit at δ; the run's last objective is −log of Laplace's evidence."""
        prior = self.body.prior(delta, self.losses[0].dim)
        found = run(METHOD, self.losses, prior, tol=tol or self.tol, sites=self.sites)
        self.sites = [-own.natural_gradient for own in found.at_server]
        self.exchanges += found.rounds + 1  # the last sums are those of the certificate
        return LastLayer(self.body, found.posterior, delta, found.certificate(), self.exchanges), found

    def by_evidence(self) -> LastLayer:
        """Maximise log p(y | δ) ≈ −ℓ(m) − ½mᵀP_0m + ½log det P_0 − ½log det S over u = log δ.

        MacKay's update δ = γ/‖θ‖² leaves out that S changes with m. The part that is missing in the slope, T, follows
        from the last two values of the evidence, and the update is then δ = (γ − 2T)/‖θ‖².
        """
        u, last, missing = 0.0, None, 0.0
        for _ in range(MOST_FITS):
            _, found = self.at(float(np.exp(u)), SEARCHED)
            q, prior = found.posterior, found.prior
            length = float(q.mean @ prior.factor.multiply(q.mean))  # δ‖θ‖²
            known = q.dim - q.factor.trace_solve(prior.factor.parts)  # γ
            value, slope = float(found.objective[-1]), 0.5 * (length - known)
            if last is not None:
                missing = (value - last[1]) / (u - last[0]) - 0.5 * (slope + last[2])
            target = max(known - 2.0 * missing, 1e-3 * known) / length
            step = float(np.clip(u + np.log(target), np.log(LOWEST), np.log(HIGHEST))) - u
            if abs(step) < SETTLED:
                return self.at(float(np.exp(u + step)))[0]
            last, u = (u, value, slope), u + step
        raise ValueError(f"the evidence has no maximum in {MOST_FITS} fits: give prior_precision a number.")

    def by_rows(self, rows: Rows) -> LastLayer:
        """Lower δ along `GRID` while the log loss of the predictions falls."""
        target: Any = self.body.loss(rows, "validate")
        best, lowest = GRID[0], np.inf
        for delta in GRID:
            loss = _log_loss(self.at(delta, SEARCHED)[0], target, self.body)
            if loss > lowest:
                break
            best, lowest = delta, loss
        return self.at(best)[0]


def _log_loss(head: LastLayer, loss: Loss, body: FrozenBody) -> float:
    """Return the weighted mean of −log p(y) of a loss's rows under the averaged predictions."""
    rows = loss.rows(np.zeros(loss.dim))
    if body.kind.is_classifier:
        y = rows.target.astype(int)
        each = -np.log(head._probabilities(rows.X)[np.arange(len(y)), y])
    else:
        mean, variance = (part.numpy() for part in head._numbers(rows.X))
        each = 0.5 * ((rows.target - mean) ** 2 / variance + np.log(variance)).reshape(len(mean), -1).sum(axis=1)
    return float(np.average(each, weights=rows.weights))
