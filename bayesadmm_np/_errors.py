"""Errors with fields: the layer that knows the reader's names makes the sentence, by `worded(error, argument=...)`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Words(NamedTuple):
    """Names that a layer of the library has for arguments, clients and switches of the layers below it.

    Attributes
    ----------
    argument : callable
        Function from the name of an argument to the reader's name for it.
    client : callable
        Function from the number of a client to the reader's name for it.
    switch : callable
        Function from the name of a switch to the advice to turn it on.
    setting : callable
        Function from the name of an argument and a value to how the reader writes it.
    missing : callable
        Function from words in a table to the advice to read them as missing values.
    """

    argument: Callable[[str], str] = str
    client: Callable[[int], str] = "client {}".format
    switch: Callable[[str], str] = "set {}=True".format
    setting: Callable[[str, object], str] = "{}={!r}".format
    missing: Callable[[Sequence[str]], str] = lambda words: "write NaN there"


PLAIN = Words()
"""The core's own words, which `str(error)` uses."""


def ended(sentence: str) -> str:
    """Return a sentence with its full stop; a question has its mark."""
    return sentence if sentence.endswith("?") else f"{sentence}."


@contextmanager
def needed_by(reader: str, extra: str) -> Iterator[None]:
    """Say who needs a package that cannot be imported inside the block, and which extra brings it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{reader}: pip install 'bayesadmm-np[{extra}]'.") from error


class Worded(ValueError):
    """An error whose sentence has the words of its reader."""

    @abstractmethod
    def worded(self, words: Words) -> str:
        """Return the sentence."""

    def __str__(self) -> str:
        return self.worded(PLAIN)


class ArgumentError(Worded):
    """An argument that cannot be used: "{argument} {expected}, got {got}; {advice}.".

    Parameters
    ----------
    argument : str
        Name in the signature that the caller used.
    expected : str
        Condition on the argument, beginning with "must".
    got : object
        Value of the argument, as it is to be shown; "" where the value says nothing.
    advice : str, default ""
        Advice, a sentence of its own.

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
    """A table that cannot be used: "site {site}: column {column} {fact}; {remedy}.".

    Parameters
    ----------
    fact : str
        What is wrong, a predicate of the column where there is one.
    remedy : str or callable, default ""
        What to do; a function says it in the reader's words.
    site, column : str, optional
        Names, where one of them is at fault.

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
    """What is wrong with one client: "client {client}: {reason}".

    Parameters
    ----------
    client : int
        Its number, from 0.
    reason : Exception

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
