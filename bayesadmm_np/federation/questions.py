"""Questions beside the rounds: before the first, and after the last. One is asked of all sites in one exchange.

A question is a name and arrays, an answer sums over a site's rows, or the reason why the site gives none:

    inquiry   server → sites   the spec, the name of the question, its fields and arrays
    answer    site → server    fields and arrays, or a refusal

A site keeps nothing of a question, and its answer depends on its rows and the question alone. The server keeps all
answers. What it does with them is a function `ask → result`, which is called again from the start with every answer
that comes, and stops at the first question that has none: so that it is written as if the sites were in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._archive import Archive as Message
from .._archive import content_of, read_as
from .spec import SPEC_VECTORS

__all__ = ["Asking", "Declined", "Outstanding", "Talk", "Waiting", "answer_of", "read_answer", "read_question"]

LONGEST_REASON = 300
"""Characters that a site says why it does not answer."""

AWAY = "it was away"


class Declined(Exception):
    """Sites that did not answer a question, with their reasons."""

    def __init__(self, name: str, reasons: Mapping[str, str]) -> None:
        self.name, self.reasons = name, reasons
        super().__init__("; ".join(f"site {site}: {reason}" for site, reason in reasons.items()))


@dataclass(frozen=True, eq=False)
class Outstanding:
    """A question that waits for answers."""

    spec: Any
    name: str
    number: int
    message: Message

    @property
    def answer_size(self) -> int:
        """Numbers of an answer, at most."""
        return int(self.spec.answer_size)


class Waiting(Exception):
    """The next question, which nobody has answered yet."""

    def __init__(self, question: Outstanding) -> None:
        self.question = question


@dataclass(frozen=True, eq=False)
class QuestionHeader:
    """The header of a question."""

    run: str
    number: int
    name: str
    spec: dict[str, Any]
    content: dict[str, Any]


@dataclass(frozen=True, eq=False)
class AnswerHeader:
    """The header of an answer."""

    run: str
    number: int
    name: str
    site: str
    answers: str
    refused: str
    content: dict[str, Any]

    def __post_init__(self) -> None:
        if len(self.refused) > LONGEST_REASON:
            raise ValueError(f"refused must be a reason of at most {LONGEST_REASON} characters")


@dataclass(frozen=True, eq=False)
class Talk:
    """All answers so far: a tuple a question, in it one a site, None where the site was away."""

    exchanges: tuple[tuple[Message | None, ...], ...] = ()

    def then(self, answers: Sequence[Message | None]) -> Talk:
        """Return the talk with the answers to another question."""
        return replace(self, exchanges=(*self.exchanges, tuple(answers)))

    def encode(self) -> tuple[list[list[int]], dict[str, NDArray[np.uint8]]]:
        """Return the answers as bytes, an array a question, and the length of each."""
        whole = [[b"" if one is None else one.to_bytes() for one in answers] for answers in self.exchanges]
        arrays = {f"talk{i}": np.frombuffer(b"".join(each), dtype=np.uint8) for i, each in enumerate(whole)}
        return [[len(one) for one in each] for each in whole], arrays

    @classmethod
    def read(cls, message: Message, lengths: Any, sites: Sequence[str]) -> Talk:
        """Inverse of `encode`."""
        exchanges = []
        for i, sizes in enumerate(read_as(list[list[int]], lengths, f"{message.source}: talk")):
            ends = np.cumsum(sizes).tolist()
            data = message.arrays[f"talk{i}"].tobytes()
            if len(sizes) != len(sites) or min(sizes) < 0 or ends[-1] != len(data):
                raise message.refusal("talk", f"the answers of {len(sites)} sites", sizes)
            pieces = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            exchanges.append(
                tuple(
                    Message.from_bytes(piece, f"answer of {site}") if piece else None
                    for piece, site in zip(pieces, sites, strict=True)
                )
            )
        return cls(tuple(exchanges))


@dataclass
class Asking:
    """Ask all sites, from a talk: past questions are answered at once, and the first new one is raised as `Waiting`.

    Attributes
    ----------
    talk : Talk
    spec : object
        Of the run, in whose units sites answer; it may change between questions.
    done : int
        Number of questions so far.
    floats : int
        Numbers sent by all parties so far.
    """

    talk: Talk
    spec: Any
    done: int = 0
    floats: int = 0

    def __call__(self, question: Any) -> list[Any]:
        """Return the answers of all sites, in order.

        Raises
        ------
        Declined
            When a site did not answer.
        """
        name, content, arrays = self.spec.pack_question(question)
        if self.done == len(self.talk.exchanges):
            spec, vectors = self.spec.encode()
            header = {"run": self.spec.run, "number": self.done + 1, "name": name, "spec": spec, "content": content}
            sent = {f"q/{key}": value for key, value in arrays.items()}
            message = Message("inquiry", header, vectors | sent, f"inquiry {self.done + 1}")
            raise Waiting(Outstanding(self.spec, name, self.done + 1, message))
        answers = self.talk.exchanges[self.done]
        self.done += 1
        reasons, found = {}, []
        for site, answer in zip(self.spec.sites, answers, strict=True):
            if answer is None:
                reasons[site] = AWAY
                continue
            self.floats += sum(array.size for array in (*arrays.values(), *answer.arrays.values()))
            if answer.header["name"] != name:  # of another version of this library
                raise answer.refusal("name", name, answer.header["name"])
            if answer.header["refused"]:
                reasons[site] = answer.header["refused"]
            else:
                found.append(self.spec.unpack_answer(answer, question))
        if reasons:
            raise Declined(name, reasons)
        return found


def read_question(message: Message) -> QuestionHeader:
    """Read what the questions of all engines have in common, after `require_run`."""
    header = read_as(QuestionHeader, message.header, message.source)
    arrays = {name for name in message.arrays if name.startswith("q/")}
    message.require("inquiry", message.header, arrays | (SPEC_VECTORS & set(message.arrays)))
    if header.number < 1:
        raise message.refusal("number", "an integer from 1", header.number)
    return header


def answer_of(
    question: Message, site: str, content: Mapping[str, Any], arrays: Mapping[str, Any], refused: str = ""
) -> Message:
    """Return the message of an answer; `refused` says why there is none."""
    own = {name: question.header[name] for name in ("run", "number", "name")}
    reason = " ".join(refused.split())[:LONGEST_REASON]
    header = {**own, "site": site, "answers": question.digest, "refused": reason, "content": content}
    return Message("answer", header, {f"a/{key}": value for key, value in arrays.items()}, f"answer of {site}")


def read_answer(message: Message, question: Outstanding, sites: Sequence[str]) -> int:
    """Check an answer to a question that is outstanding, whole, and return the number of its site."""
    message.require("answer", message.header, message.arrays)
    header = read_as(AnswerHeader, message.header, message.source)
    if header.site not in sites:
        raise message.refusal("site", f"one of {', '.join(sites)}", header.site)
    expected = {"run": question.spec.run, "number": question.number, "name": question.name}
    for name, value in {**expected, "answers": question.message.digest}.items():
        if getattr(header, name) != value:
            raise message.refusal(name, f"{value}, as in the question that is out", getattr(header, name))
    if not header.refused:
        with content_of(message, "an answer to this question"):
            question.spec.unpack_answer(message, question.spec.unpack_question(question.message, header.name))
    elif message.arrays or header.content:
        raise message.refusal("content", "empty where the answer is refused", sorted(message.arrays))
    return list(sites).index(header.site)
