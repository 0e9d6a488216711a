"""Losses of generalised linear models: logistic, binomial, Poisson and softmax regression."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_count, as_float_array, as_labels
from .base import LOSSES
from .linear_model import LinearModelLoss, PointwiseLoss
from .pointwise import BernoulliLogit, BinomialLogit, CategoricalLogit, PoissonLog


@LOSSES.register
class Logistic(PointwiseLoss):
    """ℓ(θ) = Σ_i w_i [log(1 + exp f_i) − y_i f_i], f_i = x_iᵀθ + offset_i, y_i ∈ {0, 1}; no constant dropped.

    Expectations under a Gaussian are exact for every variance (default rule).

    Parameters
    ----------
    X : array_like, shape (n, d)
        An intercept is a column of ones.
    y : array_like, shape (n,)
        Labels 0 and 1; one class alone is fine.
    weights, offset : array_like, shape (n,), optional

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape, or a label is not 0 or 1.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> loss = ba.losses.Logistic([[1.0], [-2.0]], [1, 0])
    >>> round(loss.value([0.0]), 6), loss.gradient([0.0])
    (1.386294, array([-1.5]))
    """

    pointwise = BernoulliLogit()

    @staticmethod
    def _read(y: ArrayLike) -> Array:
        return as_labels(y, "y", 2).astype(float)


@LOSSES.register
class Binomial(PointwiseLoss):
    """ℓ(θ) = Σ_i w_i [log(1 + exp f_i) − y_i f_i] for shares y_i of events among w_i trials; log C(w, wy) is dropped.

    Parameters
    ----------
    X : array_like, shape (n, d)
    y : array_like, shape (n,)
        Shares of events, from 0 to 1.
    weights, offset : array_like, shape (n,), optional
        The weights are the numbers of trials.

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape, or a share is not in [0, 1].

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.losses.Binomial([[1.0], [1.0]], [0.25, 0.5], [4, 2]).gradient([0.0])  # two events of six, where half are due
    array([1.])
    """

    pointwise = BinomialLogit()

    @staticmethod
    def _read(y: ArrayLike) -> Array:
        shares = as_float_array(y, "y", ndim=1)
        if ((shares < 0) | (shares > 1)).any():
            raise ArgumentError("y", "must hold shares from 0 to 1", f"{shares.min():g} to {shares.max():g}")
        return shares


@LOSSES.register
class Poisson(PointwiseLoss):
    """ℓ(θ) = Σ_i w_i [exp f_i − y_i f_i], f_i = x_iᵀθ + offset_i; the constant Σ w_i log y_i! is dropped.

    E_q is closed form: E exp f = exp(mean + variance/2).

    Parameters
    ----------
    X : array_like, shape (n, d)
    y : array_like, shape (n,)
        Counts, >= 0.
    weights, offset : array_like, shape (n,), optional
        An offset is the log of the exposure.

    Raises
    ------
    ValueError
        When an array is empty, not finite or of the wrong shape, or a count is negative.

    Examples
    --------
    >>> import bayesadmm_np as ba
    >>> ba.losses.Poisson([[1.0], [1.0]], [3, 5]).gradient([0.0])
    array([-6.])
    """

    pointwise = PoissonLog()

    @staticmethod
    def _read(y: ArrayLike) -> Array:
        counts = as_float_array(y, "y", ndim=1)
        if (counts < 0).any():
            raise ArgumentError("y", "must hold counts >= 0", f"{counts.min():g}")
        return counts


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
