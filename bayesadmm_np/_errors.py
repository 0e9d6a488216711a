"""Errors with fields: the layer that knows the reader's names makes the sentence, by `worded(error, argument=...)`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Words(NamedTuple):
    """Names that a layer of the library has for arguments, clients and switches of the layers below it."""

    argument: Callable[[str], str] = str  # the reader's name of an argument
    client: Callable[[int], str] = "client {}".format  # the reader's name of a client
    switch: Callable[[str], str] = "set {}=True".format  # the advice to turn a switch on
    setting: Callable[[str, object], str] = "{}={!r}".format  # how the reader writes an argument with a value
    missing: Callable[[Sequence[str]], str] = lambda words: "write NaN there"  # the advice to read words as missing


PLAIN = Words()
"""The core's own words, which `str(error)` uses."""


def ended(sentence: str) -> str:
    """Return a sentence with its full stop; a question has its mark."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def installing(extra: str) -> str:
    """Return the command that installs the packages of an extra; this package is on no index."""
    return f'pip install -e ".[{extra}]" in the clone of bayesadmm_np'


@contextmanager
def needed_by(reader: str, extra: str) -> Iterator[None]:
    """Say who needs a package that cannot be imported inside the block, and which extra brings it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{reader}: {installing(extra)}.") from error


class Worded(ValueError):
    """An error whose sentence has the words of its reader."""

    @abstractmethod
    def worded(self, words: Words) -> str:
        """Return the sentence."""

    def __str__(self) -> str:
        return self.worded(PLAIN)


class ArgumentError(Worded):
    """An argument that cannot be used: "{argument} {expected}, got {got}; {advice}.", where `expected` begins "must".

    Examples
    --------
    >>> error = ArgumentError("rho", "must be > 0", "-1.0")
    >>> print(error)
    rho must be > 0, got -1.0.
    >>> worded(error, argument=lambda name: f"--{name}")
    '--rho must be > 0, got -1.0.'
    """

    def __init__(self, argument: str, expected: str, got: object = "", advice: str = "") -> None:
        super().__init__(argument, expected, str(got), advice)
        self.argument, self.expected, self.got, self.advice = argument, expected, str(got), advice

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        got, advice = f", got {self.got}" if self.got else "", f"; {self.advice}" if self.advice else ""
        return ended(f"{words.argument(self.argument)} {self.expected}{got}{advice}")


class TableError(Worded):
    """A table that cannot be used: "site {site}: column {column} {fact}; {remedy}.", in the reader's words.

    Examples
    --------
    >>> print(TableError("holds dates", "write the year as a number", "Basel", "visit"))
    site 'Basel': column 'visit' holds dates; write the year as a number.
    """

    def __init__(
        self, fact: str, remedy: str | Callable[[Words], str] = "", site: str | None = None, column: str | None = None
    ) -> None:
        super().__init__(fact, remedy, site, column)
        self.fact, self.remedy, self.site, self.column = fact, remedy, site, column

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        where = f"site {self.site!r}: " if self.site is not None else ""
        what = f"column {self.column!r} " if self.column is not None else ""
        remedy = self.remedy if isinstance(self.remedy, str) else self.remedy(words)
        return ended(f"{where}{what}{self.fact}{f'; {remedy}' if remedy else ''}")


class ClientError(Worded):
    """A fault of one client, by its number: "client {client}: {reason}".

    Examples
    --------
    >>> error = ClientError(1, ArgumentError("y", "must hold counts >= 0", "-2"))
    >>> print(error)
    client 1: y must hold counts >= 0, got -2.
    >>> worded(error, client=["Basel", "Bern"].__getitem__)
    'Bern: y must hold counts >= 0, got -2.'
    """

    def __init__(self, client: int, reason: Exception) -> None:
        super().__init__(client, reason)
        self.client, self.reason = client, reason

    def worded(self, words: Words) -> str:
        """Return the sentence."""
        inner = self.reason.worded(words) if isinstance(self.reason, Worded) else str(self.reason)
        return f"{words.client(self.client)}: {inner}"


def worded(
    error: object,
    *,
    argument: Callable[[str], str] = PLAIN.argument,
    client: Callable[[int], str] = PLAIN.client,
    switch: Callable[[str], str] = PLAIN.switch,
    setting: Callable[[str, object], str] = PLAIN.setting,
    missing: Callable[[Sequence[str]], str] = PLAIN.missing,
) -> str:
    """Return the message of an error, or of its `failure`, with the caller's names; without fields as it is."""
    words = Words(argument, client, switch, setting, missing)
    found = getattr(error, "failure", error)
    return str(found.worded(words)) if hasattr(found, "worded") else str(error)
