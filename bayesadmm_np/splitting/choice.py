"""The method of a posterior where nobody chose one."""

from __future__ import annotations

from collections.abc import Sequence

from ..families.base import ExponentialFamily
from ..families.diagonal import DiagonalGaussian
from ..families.full import FullGaussian
from ..families.gaussian import Gaussian
from ..losses.base import Loss
from ..losses.tensors import tensor_size
from .accelerated import Accelerated
from .guarded import Guarded
from .methods import PVI, JointNewton, Method
from .sketched import Sketched

MOST_NUMBERS = 1 << 16
"""Numbers beside λ_k up to which a client makes them: tensors of 33 parameters (of 42 where rows have two predictors,
of 45 with three and 48 with six), the correlations of 362; half a MiB."""


def recommended(prior: ExponentialFamily, clients: Sequence[Loss]) -> Method | Accelerated:
    """Return what docs/choosing.md recommends, in one process, for the posterior of these clients under this prior.

    Every row that it returns for convex losses has a guard, and cannot diverge (docs/guarantee.md).

    Parameters
    ----------
    prior : ExponentialFamily
        Its type is the family.
    clients : sequence of Loss

    Examples
    --------
    >>> import numpy as np
    >>> import bayesadmm_np as ba
    >>> clients = [ba.losses.Logistic(np.eye(3), np.array([0, 1, 1]))]
    >>> for family in (ba.families.FullGaussian, ba.families.DiagonalGaussian):
    ...     print(ba.methods.recommended(family(np.zeros(3), 1.0), clients).name)
    guarded JointNewton
    guarded PVI with Full sites
    """
    if not isinstance(prior, Gaussian):  # of a conjugate family one round of PVI is exact
        return PVI()
    return posterior_method(
        type(prior),
        prior.dim,
        has_tensors=all(loss.has_tensors for loss in clients),
        is_convex=all(loss.is_convex for loss in clients),
        n_outputs=max(loss.n_outputs for loss in clients),
    )


def posterior_method(
    family: type[Gaussian], dim: int, *, has_tensors: bool, is_convex: bool = True, n_outputs: int = 1
) -> Method | Accelerated:
    """Return the method that needs the fewest exchanges for a posterior of d parameters, of C predictors a row.

    For a full covariance joint Newton steps, where `has_tensors` and a client has at most `MOST_NUMBERS` of them; for a
    diagonal one PVI whose sites keep their correlations, up to as many; else accelerated PVI. All have a guard where
    the losses are convex. Between sites `has_tensors` is False whatever the losses: their rows follow from tensors.
    """
    is_full = issubclass(family, FullGaussian)
    accelerated = Accelerated(PVI(gamma=1.0 if is_full else 0.4))
    if not is_convex:
        return accelerated
    if is_full and has_tensors and tensor_size(dim, n_outputs) <= MOST_NUMBERS:
        return Guarded(JointNewton())
    if issubclass(family, DiagonalGaussian) and dim * (dim - 1) // 2 <= MOST_NUMBERS:
        return Guarded(Sketched(PVI(), "full"))
    return Guarded(accelerated)
