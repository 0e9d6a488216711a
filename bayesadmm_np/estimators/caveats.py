"""Warnings of a fit that carry what was found."""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.exceptions import ConvergenceWarning

from ..glm.diagnosis import Finding

__all__ = ["SeparationWarning"]


class SeparationWarning(ConvergenceWarning):
    """A fit whose likelihood has no maximum: the coefficients that it names are where the run stopped, no estimates.

    Parameters
    ----------
    findings : sequence of Finding

    Attributes
    ----------
    findings : tuple of Finding

    Examples
    --------
    >>> from bayesadmm_np.estimators import SeparationWarning
    >>> from bayesadmm_np.glm.diagnosis import Undecided
    >>> SeparationWarning([Undecided(("age",))]).findings[0].names
    ('age',)
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(" ".join(map(str, self.findings)))
