"""An exact last layer: the core's regression on the features of a frozen network, whose rows stay at the clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import DataLoader, Dataset

from .._archive import refusal
from .._errors import ArgumentError
from .._validation import Array, as_count, as_switch
from ..estimators.fitted import FittedGLM
from ..estimators.model_file import load_model, save_model
from ..estimators.on_features import METHOD, TOL, FeatureRegression, require_finite
from ..federation.columns import INTERCEPT
from ..federation.folders import FinalResult
from ..federation.glm_site import GLMData
from ..federation.glm_spec import GLMTask
from ..losses.base import Loss
from ..splitting.certificate import Certificate
from .likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, most_probable
from .loop import Result
from .network import AT_ONCE, Rows, as_tensor, digest, logits_of
from .posterior import Inputs, NetworkPosterior
from .stream import Stream, rows_of

Client: TypeAlias = Rows | Dataset[Any] | DataLoader[Any]
Net: TypeAlias = Result | NetworkPosterior | nn.Module
KINDS: dict[type[Likelihood], str] = {Categorical: "multinomial", Bernoulli: "logistic", Gaussian: "linear"}


@dataclass(frozen=True, eq=False)
class FrozenBody:
    """A frozen map from inputs to features; these, and a column of ones, are the columns of a regression.

    Parameters
    ----------
    module : Module
        Map from a batch of inputs to features, shape (n, p); a copy is kept in evaluation mode.
    outputs : int
        Outputs of the last layer: C classes of `Categorical`, one logit of `Bernoulli`, columns of y of `Gaussian`.
    likelihood : Likelihood, default Categorical()
    head : str, optional
        Place in the module where a last layer was, as `of` says it.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import FrozenBody, Rows
    >>> body = FrozenBody(torch.nn.Sequential(torch.nn.Linear(2, 5), torch.nn.Tanh()), outputs=3)
    >>> body.loss(Rows(torch.zeros(3, 2), torch.tensor([0, 1, 2])))  # 5 features and the intercept, 2 contrasts
    ReferenceSoftmax(3 rows, 12 parameters)
    """

    module: nn.Module
    outputs: int
    likelihood: Likelihood = field(default_factory=Categorical)
    head: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise ArgumentError("module", "must be a torch.nn.Module", type(self.module).__name__)
        if type(self.likelihood) not in KINDS:
            expected = "must be Categorical(), Bernoulli() or Gaussian(...)"
            raise ArgumentError("likelihood", expected, repr(self.likelihood))
        outputs = as_count(self.outputs, "outputs")
        if isinstance(self.likelihood, Categorical) and outputs == 1:
            raise ArgumentError("outputs", "must be at least 2", 1, "give likelihood=Bernoulli() or Gaussian(variance)")
        if isinstance(self.likelihood, Bernoulli) and outputs != 1:
            raise ArgumentError("outputs", "must be 1 for Bernoulli()", outputs)
        object.__setattr__(self, "module", deepcopy(self.module).train(mode=False).requires_grad_(requires_grad=False))

    @classmethod
    def of(cls, network: Net | FrozenBody, example: Tensor, likelihood: Likelihood | None = None) -> FrozenBody:
        """Split the last layer, an `nn.Linear`, off a network; `example` has some inputs, shape (n, ...).

        Raises
        ------
        ValueError
            When the network's outputs are not those of a linear layer, or not the same without and with the split.
        """
        q: Any = network.posterior if isinstance(network, Result) else network
        posterior = isinstance(q, NetworkPosterior)
        own = q.network.likelihood if posterior else q.likelihood if isinstance(q, FrozenBody) else likelihood
        if likelihood not in (None, own):
            raise ArgumentError("likelihood", f"must be that of the network, {own!r}, or left out", repr(likelihood))
        if isinstance(q, FrozenBody):
            return q
        q = q.model() if posterior else q
        if not isinstance(q, nn.Module):
            raise ArgumentError("network", "must be a Result, NetworkPosterior, Module or FrozenBody", repr(network))
        copy, made = deepcopy(q).train(mode=False), dict[nn.Module, Any]()
        with torch.no_grad(), register_module_forward_hook(lambda layer, _, out: made.update({layer: out})):
            found = logits_of(copy(_like(example, copy)))
        layers = {name: layer for name, layer in copy.named_modules() if isinstance(layer, nn.Linear)}
        head = next((name for name, layer in layers.items() if made.get(layer) is found), None)
        expected = "must return what an nn.Linear, used once and by one name, makes of features without chance"
        wrong = ArgumentError("network", expected, "another", "give its body as FrozenBody(body, outputs)")
        if head is None:
            raise wrong
        last = layers[head]
        body = cls(_placed(copy, head, nn.Identity()), last.out_features, own or Categorical(), head)
        with torch.no_grad():
            for _ in range(2):  # 1e-3 is far above the rounding of parallel sums
                x = logits_of(body.module(_like(example, body.module))).to(last.weight)
                if x.shape[-1] != last.in_features or not last(x).allclose(found, 1e-3, 1e-5, equal_nan=True):
                    raise wrong
        return body

    @cached_property
    def regression(self) -> FeatureRegression:
        """The core's regression on the features."""
        return FeatureRegression(KINDS[type(self.likelihood)], self.outputs, self.likelihood.noise() or 1.0)

    def task(self, prior_precision: float, **settings: Any) -> GLMTask:
        """Return the task of a server whose sites have `data`; other settings are those of `GLMTask`."""
        return GLMTask(METHOD, partial(self.regression.prior, prior_precision), **{"tol": TOL, **settings})

    def data(self, rows: Client) -> GLMData:
        """Return a site's rows as data of the core; the columns' names tell the server when sites' bodies differ."""
        return GLMData(loss := self.loss(rows), (*self.names(loss.dim), INTERCEPT))

    def received(self, found: FinalResult) -> LastLayer:
        """Return the last layer that a run between sites has found; ValueError if with another body or prior."""
        return LastLayer(self, self.regression.received(found, self.names(found.spec.dim)))

    def names(self, dim: int) -> tuple[str, ...]:
        """Return names of the features, with a digest of body and likelihood, where there are `dim` coefficients."""
        kept = dict([*self.module.named_parameters(remove_duplicate=False), *self.module.named_buffers()])
        own = digest(list(kept.values()), f"{self.module}, {list(kept)}, {self.outputs}, {self.likelihood}")
        return tuple(f"{own}_{j}" for j in range(1, dim // self.regression.contrasts))

    def loss(self, rows: Client, name: str = "rows") -> Loss:
        """Return the sum of the losses of rows as a function of the coefficients.

        Raises
        ------
        ValueError
            When body or likelihood cannot take the rows, or a feature is not finite, or another among fewer rows.
        """
        parts: list[tuple[Array, ...]] = []
        try:
            for X, y, w in rows_of(rows).passes(AT_ONCE):
                w = self.likelihood.weighed(w, y := self.likelihood.read(y, self.outputs))
                parts.append((self.design(X), *(each.detach().cpu().double().numpy() for each in (y, w))))
            pair = self.design(X[-2:])
        except torch.cuda.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            raise ValueError(f"{name}: {error}") from error
        design, target, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        loss = self.regression.loss(design, target, weights, name)
        largest = np.abs(parts[-1][0][:, :-1]).max(initial=0.0)  # a twentieth is far above rounding
        if pair.shape[1] != design.shape[1] or np.abs(pair - design[-len(pair) :]).max() > 0.05 * largest:
            raise ValueError(f"{name}: features of a row must not depend on other rows or on chance; mend the body.")
        return loss

    @torch.no_grad()
    def design(self, X: Tensor) -> Array:
        """Return the features of rows, and a column of ones, in float64; shape (n, p + 1)."""
        made = torch.cat([logits_of(self.module(part)) for part in _like(X, self.module).split(AT_ONCE)])
        if made.ndim != 2:
            raise ValueError(f"the body must return features of shape (n, p), got {tuple(made.shape)}.")
        return np.column_stack([made.cpu().double().numpy(), np.ones(len(made))])


@dataclass(frozen=True, eq=False, repr=False)
class LastLayer:
    """Laplace posterior of a network's last layer at the mode of all clients' rows; `last_layer` makes it.

    Attributes
    ----------
    body : FrozenBody
    fitted : FittedGLM
        The core's fitted model. Its `posterior` is N(mode, curvature⁻¹) of the coefficients, output by output and the
        intercept last; C classes have C − 1 contrasts against the first. `record.floats` are a site's in an exchange.
    """

    body: FrozenBody
    fitted: FittedGLM

    def __repr__(self) -> str:
        proof, (outputs, width) = self.fitted.record.certificate, self.weight.shape
        size = f"{width - 1} features, {outputs} outputs, prior_precision={self.prior_precision:.3g}"
        return f"LastLayer({self.body.likelihood!r}, {size}, {proof.verdict() if proof else 'no certificate'})"

    @property
    def prior_precision(self) -> float:
        """δ."""
        return float(self.fitted.stated.precision)  # type: ignore[union-attr, arg-type]

    @property
    def certificate(self) -> Certificate:
        """Bound on the distance from the mode of the pooled rows."""
        return self.fitted.record.certificate  # type: ignore[return-value]

    @property
    def exchanges(self) -> int:
        """Exchanges with all clients, those of a search for δ included."""
        return self.fitted.record.rounds

    @property
    def weight(self) -> Array:
        """Mode of the layer's weights, with the biases as last column; shape (outputs, p + 1)."""
        return self.body.regression.weights(self.fitted)

    def model(self) -> nn.Module:
        """Return a copy of the network with this last layer: the layer can be trained, the body stays frozen."""
        module, weight = deepcopy(self.body.module), torch.from_numpy(self.weight)
        layer = nn.Linear(weight.shape[1] - 1, len(weight)).to(_like(torch.zeros(()), module))
        layer.load_state_dict({"weight": weight[:, :-1], "bias": weight[:, -1]})
        return nn.Sequential(module, layer) if self.body.head is None else _placed(module, self.body.head, layer)

    def logits(self, X: Inputs) -> Tensor:
        """Return the outputs at the mode, in float64; shape (n, outputs)."""
        return self._each(X, lambda rows: (rows @ self.weight[:, :-1].T + self.weight[:, -1],))[0]

    def predict_proba(self, X: Inputs, *, average: bool = False) -> Tensor:
        """Return class probabilities in float64, shape (n, C): at the mode, or their averages over the posterior.

        Averages are over a row's logits, which are Gaussian: exact for two classes, and for more over 256
        quasi-Monte-Carlo points, the same at every call. They tell foreign inputs better than the mode does. Where the
        features separate the classes they are too cautious (docs/deep.md).

        Raises
        ------
        ValueError
            When observations are no classes.
        """
        if not self.fitted.kind.is_classifier:
            raise ValueError(f"predict_proba needs classes, got {self.body.likelihood!r}: see predict.")
        how = None if as_switch(average, "average") else "plug-in"
        return self._each(X, lambda rows: (self.fitted.probabilities(rows, how),))[0]

    def predict(self, X: Inputs, *, return_std: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return the most probable classes at the mode, shape (n,), or mean outputs, shape (n, outputs) or (n,).

        With `return_std` return also the standard deviations of an observation of numbers: those of output and noise.
        Inputs are tensors, arrays, or the x of a Dataset's pairs, in its order.
        """
        if not self.fitted.kind.is_classifier:
            mean, deviation = self._each(X, self.fitted.mean_and_sd)
            return (mean, deviation) if return_std else mean
        if return_std:
            raise ValueError("return_std needs numbers, got classes: see predict_proba.")
        return most_probable(self.predict_proba(X))

    def _each(self, X: Inputs, function: Callable[[Array], tuple[Array, ...]]) -> list[Tensor]:
        """Return the results of a function of features, which takes some rows at a time."""
        if not isinstance(X, Dataset | DataLoader) and not len(X := as_tensor(X, "X")):
            raise ArgumentError("X", "must have at least one row", "none")
        pieces = X.split(AT_ONCE) if isinstance(X, Tensor) else (rows.X for rows in Stream.of(X).pieces())
        designs = (require_finite(self.body.design(x), "X", k * AT_ONCE) for k, x in enumerate(pieces))
        parts = zip(*(function(design[:, :-1]) for design in designs), strict=True)
        return [torch.from_numpy(np.concatenate(part)) for part in parts]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to a model file of the core, without the body."""
        save_model(path, self.fitted)

    @classmethod
    def load(cls, path: str | os.PathLike[str], body: FrozenBody) -> LastLayer:
        """Read a file of `save`, whose layer was fitted on this body; ArchiveError if the file is another's."""
        if not isinstance(body, FrozenBody):
            raise ArgumentError("body", "must be the FrozenBody of the layer, head.body", type(body).__name__)
        fitted = load_model(path)
        if (known := fitted.columns.names) != (own := body.names(fitted.layout.dim)):
            expected = f"that of the file in layers, parameters, dtype, outputs and likelihood, with digest {known[:1]}"
            raise refusal("body", expected, own[:1], os.fspath(path))
        return cls(body, fitted)


def _placed(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Return a module with a layer in this place."""
    above, _, last = name.rpartition(".")
    if name:
        setattr(module.get_submodule(above), last, layer)
    return module if name else layer


def _like(X: Tensor, module: nn.Module) -> Tensor:
    """Return a copy of inputs where the module is, numbers and bytes in its type."""
    X, kept = as_tensor(X, "X"), [one for one in (*module.parameters(), *module.buffers()) if one.is_floating_point()]
    like = kept[0] if kept else X if X.is_floating_point() else X.new_empty(0, dtype=torch.float32)
    return X.to(like.device if X.dtype == torch.int64 else like, copy=True)  # a body may change its input


def last_layer(
    network: Net | FrozenBody,
    clients: Sequence[Client],
    prior_precision: float | Literal["evidence"] = "evidence",
    *,
    validate: Client | None = None,
    likelihood: Likelihood | None = None,
    tol: float = TOL,
) -> LastLayer:
    """Fit a network's last layer to the rows of all clients exactly, with the rest of the network frozen.

    The core's regression on the body's features finds the mode of Σ_k ℓ_k(θ) + ½δ‖θ‖² over weights and biases θ, the
    one of the pooled rows, by guarded Newton steps; clients send gradients and curvatures. The posterior is Laplace's.

    Parameters
    ----------
    network : Result, NetworkPosterior, Module or FrozenBody
        Its last layer, an `nn.Linear`, is replaced. A body alone is `FrozenBody(body, outputs)`.
    clients : sequence of Rows, Dataset or DataLoader
    prior_precision : float or "evidence", default "evidence"
        δ > 0 of weights and biases, in the layer's own units. "evidence" maximises Laplace's approximation of the log
        marginal likelihood of all clients' rows (MacKay 1992), from sums that clients send anyway. Where the body was
        trained on these rows and overfits, the evidence is misled: then give `validate`.
    validate : Rows, Dataset or DataLoader, optional
        Rows that nothing was trained on, which choose δ by the log loss of predictions at the mode.
    likelihood : Likelihood, optional
        That of a Module, default `Categorical()`; results and bodies have their own.
    tol : float, default 1e-8
        Tolerance of the certificate: Fisher length per parameter.

    Raises
    ------
    ValueError
        When an argument is out of range, a client does not fit the body, or no client has rows of some class.
    RunError
        When Newton's method fails, or ends with a residual above 1e-4. A warning names a smaller one above `tol`.

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
    if not isinstance(clients, Sequence) or not clients:
        raise ArgumentError("clients", "must be a sequence of at least one Rows or Dataset", repr(clients)[:60])
    if isinstance(prior_precision, str) and prior_precision != "evidence":
        raise ArgumentError("prior_precision", "must be a number > 0, or 'evidence'", repr(prior_precision))
    body = FrozenBody.of(network, rows_of(clients[0]).first(2), likelihood)
    losses = [body.loss(rows, f"client {k}") for k, rows in enumerate(clients)]
    held = None if validate is None else body.loss(validate, "validate")
    return LastLayer(body, body.regression.fit(losses, prior_precision, body.names(losses[0].dim), held, tol))
