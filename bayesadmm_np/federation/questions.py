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
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._archive import refusal
from .._fields import read_plain
from ..glm.fit import Declined, Refused, Unsettled
from ..glm.problem import Problem
from .messages import Answer, Message, answer_bytes, inquiry_of, read_answer_bytes

MOST_EXCHANGES = 1000
"""Exchanges of one question in a run: honest sites need some 40, or 10 a tested term; a lie could go on for ever."""

AWAY = "it was away"


@dataclass(frozen=True, eq=False)
class Outstanding:
    """A question that waits for answers."""

    spec: Any
    number: int
    question: Any

    @property
    def name(self) -> str:
        """Name of the question."""
        return str(self.spec.pack_question(self.question)[0])

    @cached_property
    def message(self) -> Message:
        """The inquiry."""
        return inquiry_of(self.spec, self.number, *self.spec.pack_question(self.question))

    @property
    def answer_size(self) -> int:
        """Numbers of an answer, at most."""
        return int(self.spec.answer_size)

    def made(self, answer: Answer, about: Mapping[str, Any] | None = None) -> Any:
        """Return what an answer says, which is checked with what is known about the site when it comes."""
        return self.spec.answer_made(self.question, answer.content, answer.arrays, about)


class Waiting(Exception):
    """The next question, which nobody has answered yet."""

    def __init__(self, question: Outstanding) -> None:
        self.question = question


@dataclass(frozen=True, eq=False)
class Talk:
    """All answers so far: a tuple a question, in it one a site, None where the site was away."""

    exchanges: tuple[tuple[Answer | None, ...], ...] = ()

    def then(self, answers: Sequence[Answer | None]) -> Talk:
        """Return the talk with the answers to another question."""
        return replace(self, exchanges=(*self.exchanges, tuple(answers)))

    def count(self, name: str) -> int:
        """Return how often a question was answered."""
        return sum(any(one is not None and one.name == name for one in answers) for answers in self.exchanges)

    def encode(self) -> tuple[list[list[int]], dict[str, NDArray[np.uint8]]]:
        """Return the answers as bytes, an array a question, and the length of each."""
        whole = [[b"" if one is None else answer_bytes(one) for one in answers] for answers in self.exchanges]
        arrays = {f"talk{i}": np.frombuffer(b"".join(each), dtype=np.uint8) for i, each in enumerate(whole)}
        return [[len(one) for one in each] for each in whole], arrays

    @classmethod
    def read(cls, lengths: Any, arrays: Mapping[str, NDArray[Any]], sites: Sequence[str]) -> Talk:
        """Inverse of `encode`."""
        exchanges = []
        for i, sizes in enumerate(read_plain(list[list[int]], lengths, "talk")):
            ends = np.cumsum(sizes).tolist()
            data = arrays[f"talk{i}"].tobytes()
            if len(sizes) != len(sites) or min(sizes) < 0 or ends[-1] != len(data):
                raise refusal("talk", f"the answers of {len(sites)} sites", sizes)
            pieces = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            each = zip(pieces, sites, strict=True)
            exchanges.append(tuple(read_answer_bytes(one, f"answer of {site}") if one else None for one, site in each))
        return cls(tuple(exchanges))


@dataclass
class Asking:
    """Ask all sites, from a talk: past questions are answered at once, and the first new one is raised as `Waiting`.

    `done` counts the questions so far, and `floats` the numbers that all parties sent.
    """

    talk: Talk
    spec: Any
    done: int = 0
    floats: int = 0

    def __call__(self, problem: Problem, question: Any) -> list[Any]:
        """Return the answers of all sites, in order, or raise `Declined`; `Refused` where no site was away."""
        out = Outstanding(self.spec.posed(problem), self.done + 1, question)
        if self.done == len(self.talk.exchanges):
            if self.talk.count(out.name) >= MOST_EXCHANGES:
                reason = f"it was asked {MOST_EXCHANGES} times; the answers of the sites do not fit together"
                raise Unsettled(out.name, f"the question {out.name!r} did not settle: {reason}.")
            raise Waiting(out)
        name, _, arrays = self.spec.pack_question(question)
        answers = self.talk.exchanges[self.done]
        self.done += 1
        reasons, found = {}, []
        for site, answer in zip(self.spec.sites, answers, strict=True):
            if answer is None:
                reasons[site] = AWAY
                continue
            self.floats += sum(array.size for array in (*arrays.values(), *answer.arrays.values()))
            if answer.name != name:  # of another version of this library
                raise refusal("name", name, answer.name, answer.source)
            if answer.refused:
                reasons[site] = answer.refused.text
            else:
                found.append(out.made(answer))
        if reasons:
            raise (Declined if None in answers else Refused)(name, reasons)
        return found
