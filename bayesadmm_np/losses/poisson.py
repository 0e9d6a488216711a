"""Poisson regression with log link."""

from __future__ import annotations

from numpy.typing import ArrayLike

from .._errors import ArgumentError
from .._validation import Array, as_float_array
from .base import LOSSES
from .linear_model import PointwiseLoss
from .pointwise import PoissonLog


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
