"""Binary logistic regression, of single outcomes and of events over trials."""

from __future__ import annotations

from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_float_array, as_labels
from .base import LOSSES
from .linear_model import PointwiseLoss
from .pointwise import BernoulliLogit, BinomialLogit


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
