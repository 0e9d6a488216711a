"""Binary logistic regression."""

from __future__ import annotations

from numpy.typing import ArrayLike

from .._validation import Array, as_labels
from .base import LOSSES
from .linear_model import PointwiseLoss
from .pointwise import BernoulliLogit


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
