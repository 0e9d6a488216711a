"""Numbers of a broadcast that no rows can be fitted with are refused, never an error of the site's own."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, MessageError, Site
from bayesadmm_np.federation.spec import run_of
from oracles.couriers import carried, introduce
from oracles.problems import prior, team

SITE, OTHER = introduce(team("logistic", sizes=(5, 8)))
VALUES = (0.0, 1e300, -1e300, 1e308, -1e308, 5e-324, 1e-300, 1e154, 1e-160)


def broadcast(start):
    return Coordinator.start([SITE.hello(), OTHER.hello()], GLMTask(ba.methods.PVI(), start)).broadcast()


def told(message, arrays):
    """The message with other vectors and the run's id to them."""
    bad = Message(message.kind, message.header, {**message.arrays, **arrays})
    return carried(Message(message.kind, {**message.header, "run": run_of(bad.header["spec"], bad.arrays)}, bad.arrays))


@pytest.mark.parametrize("family", ["full", "diagonal"])
def test_extreme_numbers_are_answered_or_refused(family):
    """A prior of many numbers travels as a vector; an error that is no refusal ends the test."""
    made = {"full": ba.families.FullGaussian, "diagonal": ba.families.DiagonalGaussian}[family]
    message = broadcast(made(np.array([0.1, 0.2, 0.3]), 1.0))
    assert set(message.arrays) == {"natural", "prior"}
    SITE.step(message)
    refused = []
    for name, vector in message.arrays.items():
        for where in [*range(vector.size), slice(None)]:
            for value in VALUES:
                changed = vector.copy()
                changed[where] = value
                try:
                    SITE.step(told(message, {name: changed}))
                except MessageError as error:
                    refused.append(str(error))
    assert len(refused) > 20
    # a prior that two numbers say is sent as these, and no honest spec has it as a vector
    assert all(any(word in words for word in ("natural", "spec of a run", "run must be")) for words in refused)


class Mine(ba.losses.Logistic):
    """A user's own loss, which raises what it is told to."""

    error: type[Exception] = ValueError

    def expect(self, q, rule):
        raise self.error("of its own")


def test_a_mistake_of_the_sites_own_code_is_not_blamed_on_the_message():
    """The twin: arithmetic that fails may be due to the numbers of a message, and is refused as such."""
    site = Site("A", GLMData(Mine(np.eye(3), np.ones(3))))
    message = Coordinator.start([site.hello()], GLMTask(ba.methods.PVI(), prior("full", 3))).broadcast()
    for kind in (ZeroDivisionError, ValueError, np.linalg.LinAlgError):
        Mine.error = kind
        with pytest.raises(MessageError, match=r"a q_g .* can be fitted, and it is not: of its own"):
            site.step(message)
    Mine.error = IndexError
    with pytest.raises(IndexError, match="of its own"):
        site.step(message)


def test_a_prior_of_another_size_is_refused_with_both_sizes():
    hellos = [Message("hello", {**one.hello().header, "dim": 2, "features": ["x1", "x2"]}, {}) for one in (SITE, OTHER)]
    message = Coordinator.start(hellos, GLMTask(ba.methods.PVI(), prior("full", 2))).broadcast()
    header = {**message.header, "spec": {**message.header["spec"], "features": ["x1", "x2", "x3"]}}
    forged = Message("broadcast", header, message.arrays)
    forged = Message("broadcast", {**header, "run": run_of(forged.header["spec"], forged.arrays)}, message.arrays)
    with pytest.raises(MessageError, match="prior must be of the 3 parameters of this site's loss, got 2"):
        SITE.step(forged)
