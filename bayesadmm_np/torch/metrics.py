"""Scores of predictions: accuracy, log loss, calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .._validation import as_count


@dataclass(frozen=True)
class Scores:
    """Scores of predicted class probabilities; means over rows.

    Attributes
    ----------
    accuracy : float
    nll : float
        −mean log p(y), in nats.
    ece : float
        Expected calibration error: Σ_b (n_b/n)|accuracy_b − confidence_b| over equal bins of the confidence max p.
    brier : float
        mean Σ_c (p_c − 1[y = c])², between 0 and 2.
    """

    accuracy: float
    nll: float
    ece: float
    brier: float


@dataclass(frozen=True)
class RegressionScores:
    """Scores of predicted numbers; means over rows.

    Attributes
    ----------
    nll : float
        −mean log p(y), in nats; averaged over samples, that of the mixture.
    rmse : float
        √(mean (y − mean prediction)²), over rows and outputs.
    """

    nll: float
    rmse: float


@dataclass(frozen=True)
class LossScores:
    """Scores under a loss of one's own.

    Attributes
    ----------
    loss : float
        Mean over rows; over samples as well where these are averaged.
    """

    loss: float


AnyScores = Scores | RegressionScores | LossScores


def scores_of(plain: Mapping[str, float]) -> AnyScores:
    """Return scores from their numbers by name."""
    kind = LossScores if "loss" in plain else RegressionScores if "rmse" in plain else Scores
    return kind(**plain)


def score(log_probabilities: Tensor, y: Tensor, bins: int = 15) -> Scores:
    """Score predictions.

    Parameters
    ----------
    log_probabilities : Tensor, shape (n, C)
        log p, at most 0. Where the true class has probability 0, log p = −inf, the NLL is infinite.
    y : Tensor, shape (n,)
        Labels 0 … C − 1.
    bins : int, default 15
        Number of bins of the calibration error (Guo et al. 2017, Eq. 5).

    Raises
    ------
    ValueError
        When shapes do not fit, log p is NaN or above 0, or a label is outside 0 … C − 1.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import score
    >>> half = torch.full((4, 2), 0.5).log()
    >>> score(half, torch.tensor([0, 0, 0, 1])).accuracy
    0.75
    """
    bins = as_count(bins, "bins")
    if log_probabilities.ndim != 2 or log_probabilities.shape[:1] != y.shape or len(y) == 0:
        shapes = tuple(log_probabilities.shape), tuple(y.shape)
        raise ValueError(f"log_probabilities must be of shape (n, C) and y of shape (n,), got {shapes}.")
    log_p, classes = log_probabilities.detach(), log_probabilities.shape[1]
    if not bool((log_p <= 1e-5).all()):  # for rounding in single precision
        most = float(log_p.max())  # NaN if any of them is
        raise ValueError(f"log_probabilities must be <= 0, got {most:g}: logits need log_softmax, probabilities log.")
    if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= classes:
        got = f"{y.dtype} from {y.min().item():g} to {y.max().item():g}"
        raise ValueError(f"y must be integer labels 0 to {classes - 1}, got {got}.")
    return scored(log_p, y.long(), bins)


def scored(log_p: Tensor, y: Tensor, bins: int = 15) -> Scores:
    """Score the predictions of a run: NaN all where one is NaN, because the run itself says what failed."""
    log_p = log_p.double()
    if bool(log_p.isnan().any()):
        return Scores(*[float("nan")] * 4)
    p = log_p.exp()
    _, right, confidence = binned(p, y, bins)
    truth = torch.nn.functional.one_hot(y, p.shape[1])
    return Scores(
        accuracy=float(right.sum() / len(y)),
        nll=float(-log_p.gather(1, y[:, None]).mean()),
        ece=float((right - confidence).abs().sum() / len(y)),
        brier=float((p - truth).square().sum(dim=1).mean()),
    )


def binned(p: Tensor, y: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, right predictions and summed confidences of each bin, shape (bins,)."""
    confidence, predicted = p.max(dim=1)
    bin_of = (confidence * bins).ceil().long().sub(1).clamp(0, bins - 1)
    # a product, because a GPU adds to places in any order
    each = torch.stack([torch.ones_like(confidence), (predicted == y).double(), confidence], dim=1)
    rows, right, total = (torch.nn.functional.one_hot(bin_of, bins).T.double() @ each).unbind(dim=1)
    return rows, right, total
