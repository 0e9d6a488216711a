"""The method of a posterior where nobody chose one."""

from __future__ import annotations

from ..losses.tensors import tensor_size
from .accelerated import Accelerated
from .guarded import Guarded
from .methods import PVI, JointNewton, Method

__all__ = ["MOST_NUMBERS", "posterior_method"]

MOST_NUMBERS = 1 << 16
"""Numbers in a site's tensors up to which a posterior is fitted by joint Newton steps: 33 parameters, half a MiB."""


def posterior_method(has_tensors: bool, dim: int, is_diagonal: bool = False) -> Method | Accelerated:
    """Return the method that needs the fewest exchanges for a posterior, of messages that are not too large.

    Guarded joint Newton steps for a full covariance, where the losses have the expected derivatives and a reply holds
    at most `MOST_NUMBERS` of them; else accelerated PVI. Undamped it needs the fewest rounds with a full covariance,
    and may diverge with a diagonal one.

    Parameters
    ----------
    has_tensors : bool
        Whether all losses have `tensors`.
    dim : int
        d.
    is_diagonal : bool, default False
        Whether the covariance is diagonal.

    Examples
    --------
    >>> posterior_method(True, 14).name, posterior_method(True, 34).name
    ('guarded JointNewton', 'accelerated PVI')
    """
    if is_diagonal:
        return Accelerated(PVI(gamma=0.4))
    return Guarded(JointNewton()) if has_tensors and tensor_size(dim) <= MOST_NUMBERS else Accelerated(PVI())
