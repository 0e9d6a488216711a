"""Warnings of a fit that carry what was found, or say it in the words of a caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sklearn.exceptions import ConvergenceWarning

from .._errors import PLAIN, Words
from ..glm.diagnosis import Finding


class Caveat(ConvergenceWarning):
    """Caveat of a fit: findings about the data, and sentences; `worded` has the words of a caller."""

    def __init__(self, findings: Sequence[Finding], sentences: Sequence[Callable[[Words], str]] = ()) -> None:
        self.findings, self.sentences = tuple(findings), tuple(sentences)
        super().__init__(self.worded(PLAIN))

    def worded(self, words: Words) -> str:
        """Return the sentences in the words of a caller."""
        return " ".join([*(found.worded(words) for found in self.findings), *(say(words) for say in self.sentences)])


class SeparationWarning(Caveat):
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
        super().__init__(findings)
