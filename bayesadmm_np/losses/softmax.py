"""Multiclass logistic regression."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from .._validation import as_count, as_labels
from .base import LOSSES
from .linear_model import LinearModelLoss
from .pointwise import CategoricalLogit


@LOSSES.register
class Softmax(LinearModelLoss):
    """ℓ(θ) = Σ_i w_i [logsumexp(f_i) − f_{i,y_i}], f_i = Θ x_i + offset_i, with θ = vec of the rows of Θ (C × p).

    Every class has its own row of Θ; the prior makes the sum of the rows identifiable. Expectations use
    moment-matched quasi-Monte-Carlo points in the C predictors of a row (two classes: exact).

    Parameters
    ----------
    X : array_like, shape (n, p)
    y : array_like, shape (n,)
        Labels 0 … C − 1; a client need not have all of them.
    n_classes : int
        C; the dimension is d = C p.
    weights : array_like, shape (n,), optional
    offset : array_like, shape (n, C), optional

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape, or a label is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> loss = ba.losses.Softmax([[1.0, 2.0]], [2], n_classes=3)
    >>> loss.dim, round(loss.value(np.zeros(6)), 6)
    (6, 1.098612)
    """

    has_reference = False

    def __init__(self, X: ArrayLike, y: ArrayLike, n_classes: int, weights: Any = None, offset: Any = None) -> None:
        self.n_classes = as_count(n_classes, "n_classes", minimum=2 + self.has_reference)
        labels = as_labels(y, "y", self.n_classes).astype(float)
        super().__init__(X, labels, CategoricalLogit(self.n_classes, self.has_reference), weights, offset)


@LOSSES.register
class ReferenceSoftmax(Softmax):
    """`Softmax` with the predictor of class 0 held at zero, so that the rows alone identify the others.

    θ = vec of the rows of Θ of the classes 1 … C − 1, whose entries are log odds ratios against class 0. Expectations
    use moment-matched quasi-Monte-Carlo points in the C − 1 predictors of a row.

    Parameters
    ----------
    X, y
        As in `Softmax`.
    n_classes : int
        C ≥ 3 (two classes are `Logistic`); the dimension is d = (C − 1) p.
    weights : array_like, shape (n,), optional
    offset : array_like, shape (n, C − 1), optional

    Raises
    ------
    ValueError
        As `Softmax`.

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> loss = ba.losses.ReferenceSoftmax([[1.0, 2.0]], [2], n_classes=3)
    >>> loss.dim, round(loss.value(np.zeros(4)), 6)
    (4, 1.098612)
    """

    has_reference = True
