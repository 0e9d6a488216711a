"""A site's answers: it counts what the server counts, whatever gets lost on the way, and its file stays as it was."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np._fields import Field
from bayesadmm_np.federation import GLMTask, Message, MessageError
from bayesadmm_np.federation.messages import Served
from bayesadmm_np.federation.site import Answers
from oracles.couriers import edited, exchanged, introduce, started
from oracles.problems import prior, team


@dataclass(frozen=True)
class Answer:
    round: int

    @property
    def numbers(self):
        return [self.round]

    @property
    def vectors(self):
        return {"own": np.array([float(self.round)])}


class Engine:
    numbers = tuple[int]
    answer_fields: ClassVar = {"own": Field(1)}

    @staticmethod
    def answer_made(numbers, found):
        assert numbers == (int(found["own"][0]),)
        return Answer(*numbers)


def broadcast(number, digest="one"):
    return Served(number, None, "solve", False, (), None, digest=digest)


def kept(answers):
    header, arrays = answers.encode()
    message = Message.from_bytes(Message("site", header, arrays).to_bytes())
    return Answers.read(message, Engine)


def play(steps, settled=Answers.settled):
    """Rounds in which the site is away, or its answer is lost, or arrives, and each broadcast may come twice.

    Returns whether site and server agree after every broadcast that was heard.
    """
    answers, counted, agree = Answers(Answer(0)), 0, True
    for number, (is_there, comes_twice, arrives) in enumerate(steps, start=1):
        for _ in range(is_there * (1 + comes_twice)):
            answers = settled(answers, broadcast(number), counted)
            agree &= (answers.counted.round, answers.pending) == (counted, None)
            answers = kept(replace(answers, pending=Answer(number)))
        counted = number if is_there and arrives else counted
    return agree


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_the_ledger_counts_what_the_server_counts(steps):
    assert play(steps)


def test_a_ledger_that_takes_every_answer_for_counted_would_be_seen():
    """The twin."""

    def hopeful(answers, served, counted):
        return Answers(answers.pending or answers.counted, None, (served.round, served.digest))

    steps = [(True, False, True), (True, False, False), (True, False, True)]
    assert play(steps)
    assert not play(steps, hopeful)


def test_what_does_not_follow_is_refused():
    answers = replace(Answers(Answer(0)).settled(broadcast(3), 0), pending=Answer(3))
    for served, counted, complaint in (
        (broadcast(2), 0, "round must be 3 or later: this site has answered that round, got 2"),
        (broadcast(3, "another"), 0, "digest must be that of the broadcast of round 3 answered before"),
        (
            broadcast(5),
            4,
            r"counted must be a round that this site remembers, \[0, 3\] \(was its state file lost",
        ),
    ):
        with pytest.raises(MessageError, match=complaint):
            answers.settled(served, counted)
    with pytest.raises(MessageError, match=r"remembers, \[3\] "):
        answers.settled(broadcast(5), 3).settled(broadcast(6), 5)


DAMAGED = [
    (r"heard\[0\]", {"heard": ["x", ""]}),
    ("heard", {"heard": [-3, ""]}),
    (r"heard\[1\]", {"heard": [1, 2]}),
    ("length 2", {"heard": [1]}),
    ("answers", {"answers": [1]}),
    ("answers must be that which is counted", {"answers": {"pending": [1, 1.0]}}),
    ("'other'", {"answers": {"counted": [0, 1.0], "other": [1, 1.0]}}),
    ("answers.counted", {"answers": {"counted": ["0", 1.0]}}),
    ("answers.counted", {"answers": {"counted": [0, None]}}),
]
"""What a refusal names, and what is put in the place of a field."""


def test_a_state_of_other_types_is_refused_when_it_is_read():
    sites = introduce(team("logistic", sizes=(5, 8)))
    server = started(sites, GLMTask(ba.methods.PVI(), prior("full", 3)))
    saved = sites[0].step(server.broadcast())[0].save()
    sites[0].restore(saved)  # as it was, it is read
    for field, changed in DAMAGED:
        with pytest.raises(MessageError, match=field):
            sites[0].restore(edited(saved, changed))


def test_a_sites_file_has_the_fields_that_it_always_had():
    """Those of files that sites have now: a run goes on with the next release."""
    sites = introduce(team("logistic", sizes=(5, 8)))
    server = started(sites, GLMTask(ba.Accelerated(ba.methods.PVI(0.5), 2), prior("full", 3)))
    _, sites = exchanged(*exchanged(server, sites))
    saved = sites[0].save()
    assert set(saved.header) == {"site", "server", "data", "privacy", "spec", "heard", "answers", "past", "ended"}
    assert saved.header["heard"][0] == 2
    assert {name: numbers[0] for name, numbers in saved.header["answers"].items()} == {"counted": 1, "pending": 2}
    parts = {f"{name}/{part}" for name in ("counted", "pending") for part in ("natural", "site", "gap")}
    assert set(saved.arrays) == {*parts, "prior", "past0"}
