"""Likelihoods of an observation given a network's outputs f: ℓ = −log p(y | f), derivatives, predictions, scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from .._validation import as_positive
from .metrics import AnyScores, LossScores, RegressionScores, scored


class Likelihood(ABC):
    """The loss of a row as a function of the network's outputs; rows are independent.

    Shapes: outputs f (..., C), y as `read` returns it, (...,) or (..., C), weights (...,).
    """

    has_classes: ClassVar[bool] = False
    """True where an observation is a class, which has a probability."""
    weights: ClassVar[tuple[float, ...] | None] = None
    """Weights of classes, which are weights of rows."""

    def weighed(self, weights: Tensor, y: Tensor) -> Tensor:
        """Return weights of rows times those of their classes."""
        return weights if self.weights is None else weights * weights.new_tensor(self.weights)[y]

    @abstractmethod
    def read(self, y: Tensor, outputs: int) -> Tensor:
        """Return y of shape (n, ...) as the other methods take it; ValueError where that cannot be."""

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return ℓ of each row, shape (...,)."""

    def slope(self, outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return w ∂ℓ/∂f, shape (..., C); `outputs` may be overwritten."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            return torch.autograd.grad((weights * self.losses(leaf, y)).sum(), leaf)[0]

    @abstractmethod
    def roots(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return rows a with Σ aaᵀ = ∂²ℓ/∂f², shape (n, A, C)."""

    def drawn(self, outputs: Tensor, samples: int, source: torch.Generator | None) -> Tensor:
        """Return (∂ℓ/∂f)/√S at S observations drawn from p(y | f), shape (n, S, C): E[Σ aaᵀ] = ∂²ℓ/∂f²."""
        raise ValueError(f"curvature_samples needs a likelihood that can be drawn from, got {self!r}.")

    def score(self, outputs: Tensor, y: Tensor) -> AnyScores:
        """Score the prediction of one parameter vector; outputs of shape (n, C)."""
        return self.score_average([outputs], y)

    @abstractmethod
    def score_average(self, samples: Iterable[Tensor], y: Tensor) -> AnyScores:
        """Score the predictions averaged over samples of the parameters, each of shape (n, C)."""

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the classes' probabilities in float64, shape (n, number of classes)."""
        raise ValueError(f"predict_proba needs classes, got likelihood={self!r}; see predict(X, return_std=True).")

    def noise(self) -> float:
        """Return the variance of an observation about its mean f."""
        return 0.0

    def constant(self, y: Tensor, weights: Tensor, outputs: int) -> Tensor | None:
        """Return the outputs (C,) that cost least where all rows have the same, in float64; None if not known."""
        return None


@dataclass(frozen=True)
class _Classes(Likelihood):
    """Observations are class numbers. `losses` and their derivatives are those of a row of weight 1."""

    has_classes = True
    weights: tuple[float, ...] | None = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        if self.weights is not None:
            plain = np.asarray(self.weights, dtype=object).ravel()
            object.__setattr__(self, "weights", tuple(as_positive(weight, "weights") for weight in plain))

    def score_average(self, samples: Iterable[Tensor], y: Tensor) -> AnyScores:
        return scored(mean_of(map(self.probabilities, samples)).log(), y)

    def constant(self, y: Tensor, weights: Tensor, outputs: int) -> Tensor:
        logs = (weights.new_zeros(max(outputs, 2)).index_add(0, y, weights) + 1e-30).log()
        return logs if outputs > 1 else logs[1:] - logs[:1]

    def _labels(self, y: Tensor, classes: int) -> Tensor:
        if self.weights is not None and len(self.weights) != classes:
            raise ValueError(f"weights must be {classes} numbers, one a class, got {len(self.weights)}.")
        y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y.dtype != torch.int64 or y.ndim != 1:
            got = f"{y.dtype} of shape {tuple(y.shape)}"
            raise ValueError(f"y must be int64 labels of shape ({len(y)},), got {got}: see y.long() and y.argmax(1).")
        if int(y.min()) < 0:
            raise ValueError(f"y must have labels >= 0, got {int(y.min())}.")
        if int(y.max()) >= classes:
            cure = " One output needs Bernoulli()." if classes == 1 else ""
            raise ValueError(f"labels must be below the model's {classes} classes, got {int(y.max())}.{cure}")
        return y


@dataclass(frozen=True)
class Categorical(_Classes):
    """One of C classes: −log softmax(f)_y, the cross entropy. The default of `run`.

    Parameters
    ----------
    weights : sequence of C floats, optional
        c_j > 0 of each class: ℓ_i = −c_{y_i} log softmax(f_i)_{y_i}, summed, as torch's `CrossEntropyLoss(weight=c,
        reduction="sum")`. The weights are weights of rows (see `Rows`), which they multiply: a class of weight 2
        counts as if each of its rows were there twice, also in N_k. Scores count every row once. For an unchanged
        strength of the prior let the weights average 1 over the rows.

    Raises
    ------
    ValueError
        When a weight is not positive.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import Categorical
    >>> Categorical().losses(torch.zeros(1, 2), torch.tensor([1])).exp()
    tensor([2.])
    """

    def read(self, y: Tensor, outputs: int) -> Tensor:
        return self._labels(y, outputs)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -outputs.log_softmax(dim=-1).gather(-1, y[..., None])[..., 0]

    def slope(self, outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        one_hot = weights.new_zeros(outputs.shape).scatter_(-1, y[..., None], weights[..., None])
        return cross_entropy_slope(outputs, one_hot)

    def roots(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return C − 1 rows a with Σ aaᵀ = diag p − ppᵀ = S(I − ssᵀ)S, for s = √p and S = diag s.

        Householder's reflection that takes s to −e_C has the space beside s for its other columns, and S times the c-th
        of them is s_c(e_c − (p + s_Ce_C)/(1 + s_C)).
        """
        p = outputs.softmax(dim=1)
        s, last = p.sqrt(), torch.eye(p.shape[1]).to(p)[-1]
        common = (p + s * last) / (1.0 + s[:, -1:])
        return (s.diag_embed() - s[:, :, None] * common[:, None, :])[:, : max(p.shape[1] - 1, 1)]  # of one class 0

    def drawn(self, outputs: Tensor, samples: int, source: torch.Generator | None) -> Tensor:
        """Return (e_y − p)/√S for S labels y ~ p."""
        p = outputs.softmax(dim=1)
        labels = torch.multinomial(p, samples, replacement=True, generator=source)
        return (nn.functional.one_hot(labels, p.shape[1]) - p[:, None]) / samples**0.5

    def score(self, outputs: Tensor, y: Tensor) -> AnyScores:
        return scored(outputs.log_softmax(dim=1), y)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.double().softmax(dim=1)


@dataclass(frozen=True)
class Bernoulli(_Classes):
    """Class 1 or 0 by a single output, its logit: log(1 + eᶠ) − yf.

    Parameters
    ----------
    weights : (float, float), optional
        Weights c_0, c_1 > 0 of the classes, as in `Categorical`; (1, p) is torch's `pos_weight=p`.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import Bernoulli
    >>> Bernoulli().probabilities(torch.tensor([[0.0]]))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    def read(self, y: Tensor, outputs: int) -> Tensor:
        if outputs != 1:
            raise ValueError(f"Bernoulli() needs a model with one output, got {outputs}.")
        return self._labels(y, 2)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        logits = outputs[..., 0]
        return nn.functional.softplus(logits) - y * logits

    def slope(self, outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (outputs.sigmoid() - y[..., None]) * weights[..., None]

    def roots(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (0.5 * outputs - nn.functional.softplus(outputs)).exp()[:, None]  # √(p(1 − p))

    def drawn(self, outputs: Tensor, samples: int, source: torch.Generator | None) -> Tensor:
        p = outputs.sigmoid().expand(-1, samples)
        return ((torch.bernoulli(p, generator=source) - p) / samples**0.5)[:, :, None]

    def score(self, outputs: Tensor, y: Tensor) -> AnyScores:
        return scored(nn.functional.logsigmoid(torch.cat([-outputs, outputs], dim=1)), y)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return torch.cat([-outputs, outputs], dim=1).double().sigmoid()


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Regression: y_c = f_c + noise of one variance v, Σ_c ½(y_c − f_c)²/v + ½log 2πv.

    Parameters
    ----------
    variance : float, default 1.0
        v, in the square of y's units.

    Raises
    ------
    ValueError
        When the variance is not positive.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import Gaussian
    >>> Gaussian(variance=0.25).slope(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.ones(1))
    tensor([[4.]])
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "variance", as_positive(self.variance, "variance"))

    def read(self, y: Tensor, outputs: int) -> Tensor:
        if not y.is_floating_point() or not bool(torch.isfinite(y).all()):
            raise ValueError(f"y must be finite floating-point numbers, got {y.dtype}: see y.float() and y.isfinite().")
        table = y[:, None] if y.ndim == 1 else y
        if table.shape != (len(y), outputs):
            wanted = f"({len(y)}, {outputs})" if outputs > 1 else f"({len(y)},)"
            raise ValueError(f"y must have shape {wanted} for the model's outputs, got {tuple(y.shape)}.")
        return table

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        constant = 0.5 * outputs.shape[-1] * math.log(2.0 * math.pi * self.variance)
        return 0.5 / self.variance * (outputs - y).square().sum(dim=-1) + constant

    def slope(self, outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (outputs - y) * (weights / self.variance)[..., None]

    def roots(self, outputs: Tensor, y: Tensor) -> Tensor:
        return torch.eye(outputs.shape[1]).to(outputs).expand(len(outputs), -1, -1) / self.variance**0.5

    def drawn(self, outputs: Tensor, samples: int, source: torch.Generator | None) -> Tensor:
        noise = outputs.new_empty(len(outputs), samples, outputs.shape[1]).normal_(generator=source)
        return noise / (samples * self.variance) ** 0.5

    def constant(self, y: Tensor, weights: Tensor, outputs: int) -> Tensor:
        return weights @ y.double() / weights.sum()

    def score_average(self, samples: Iterable[Tensor], y: Tensor) -> AnyScores:
        each = torch.stack([sample.double() for sample in samples])
        logs = torch.logsumexp(-self.losses(each, y.double()), dim=0) - math.log(len(each))
        error = each.mean(dim=0) - y
        return RegressionScores(nll=float(-logs.mean()), rmse=float(error.square().mean().sqrt()))

    def noise(self) -> float:
        return self.variance


@dataclass(frozen=True)
class OwnLoss(Likelihood):
    """Loss of your own; exp(−ℓ) need not be a density.

    Derivatives come from autograd. FedLap-Cov's curvature is that of ℓ in the outputs, without its negative part.

    Parameters
    ----------
    function : callable
        function(outputs of shape (n, C), y of shape (n, ...)) → ℓ of each row, shape (n,), as torch's losses with
        `reduction="none"`. Runs and files identify it by its qualified name.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import OwnLoss
    >>> def pinball(outputs, y):
    ...     excess = y - outputs[:, 0]
    ...     return torch.maximum(0.9 * excess, -0.1 * excess)
    >>> OwnLoss(pinball).slope(torch.zeros(1, 1), torch.ones(1), torch.ones(1))
    tensor([[-0.9000]])
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function must be a callable of outputs and y, got {type(self.function).__name__}.")

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"OwnLoss({getattr(self.function, '__module__', '')}.{name})"

    def read(self, y: Tensor, outputs: int) -> Tensor:
        self.losses(torch.zeros(len(y[:2]), outputs, device=y.device), y[:2])
        return y

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        above = outputs.shape[:-1]
        found = self.function(outputs.flatten(0, -2), y.flatten(0, len(above) - 1))
        if not isinstance(found, Tensor) or found.shape != (above.numel(),):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{self!r} must return one loss a row, shape ({above.numel()},), got {shape}.")
        return found.view(above)

    def roots(self, outputs: Tensor, y: Tensor) -> Tensor:
        def one(f: Tensor, of: Tensor) -> Tensor:
            return self.losses(f[None], of[None])[0]

        values, vectors = torch.linalg.eigh(vmap(jacrev(jacrev(one)))(outputs, y))
        return (vectors * values.clamp(min=0.0).sqrt()[:, None]).mT

    def score_average(self, samples: Iterable[Tensor], y: Tensor) -> AnyScores:
        return LossScores(loss=float(mean_of(self.losses(sample, y).double().mean() for sample in samples)))


def cross_entropy_slope(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the derivatives of −Σ_c t_c log softmax_c, (Σ_c t_c) softmax − t; shape (..., C) as the logits."""
    return logits.softmax(dim=-1).mul_(targets.sum(dim=-1, keepdim=True)).sub_(targets)


def most_probable(p: Tensor) -> Tensor:
    """Return the class of the largest probability of each row; ValueError where one has no probabilities."""
    wrong = p.isnan().any(dim=1).nonzero()
    if len(wrong):
        fact = f"{len(wrong)} rows have NaN for probabilities, first row {int(wrong[0])}"
        raise ValueError(f"X: {fact}: scale the inputs.")
    return p.argmax(dim=1)


def mean_of(values: Iterable[Tensor]) -> Tensor:
    """Return the mean of tensors of one shape, which are not held at once."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for value in values:
        total, count = total.to(value.device) + value, count + 1
    return total / count
