"""A step is a frozen object, its state is explicit: of the package's steps, of one from outside, and of broken ones."""

import dataclasses
import json
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np._validation import Array
from bayesadmm_np.clients import ClientStatus, Solver
from bayesadmm_np.families import Natural
from bayesadmm_np.families.coordinates import Displacement
from bayesadmm_np.splitting.average import Average, as_distribution, as_step, merged
from bayesadmm_np.splitting.messages import Broadcast
from bayesadmm_np.splitting.round import begin
from bayesadmm_np.splitting.status import Failure, Status
from bayesadmm_np.splitting.step import STEPS, Own
from bayesadmm_np.splitting.team import assemble
from bayesadmm_np.splitting.tree import MEMORIES, pack, sizes, unpack
from bayesadmm_np.splitting.wrapper import Wrapper
from bayesadmm_np.testing import PURE, READ, CheckError, check_step
from oracles.couriers import differences, drive
from oracles.extensions import Relaxed
from oracles.problems import EPS, prior, same_bits, team

M = ba.methods
PACKAGE = {
    "PVI": M.PVI(0.5),
    "own fits": Average(M.PVI(0.5), start="sites"),
    "Newton": M.Newton(),
    "JointNewton": M.JointNewton(),
    "curvature": M.JointNewton(tensors=False),
    "sketched": ba.Sketched(M.PVI(), "full"),
    "accelerated": ba.Accelerated(M.PVI(0.4)),
    "guarded Newton": ba.Guarded(M.Newton()),
    "guarded JointNewton": ba.Guarded(M.JointNewton()),
    "guarded PVI": ba.Guarded(M.PVI(0.5)),
    "guarded acceleration": ba.Guarded(ba.Accelerated(M.PVI(0.4))),
    "guarded sketches": ba.Guarded(ba.Sketched(M.PVI(), "full")),
}


# --- Steps of the package


def test_every_step_is_a_frozen_dataclass_known_by_its_name():
    assert {type(as_step(step)) for step in PACKAGE.values()} == set(STEPS.values())
    for name, kind in STEPS.items():
        assert kind.__name__ == name
        assert kind.__dataclass_params__.frozen
    for row in M.TABLE:
        step = as_step(M.TABLE[row]())
        assert step.name == row
        with pytest.raises(dataclasses.FrozenInstanceError):
            step.start = "prior"


@pytest.mark.parametrize("name", PACKAGE)
def test_every_step_keeps_its_promises(name):
    check_step(PACKAGE[name])


# --- Steps that break a promise


@dataclass(frozen=True)
class Listing(Wrapper):
    """A memory that is changed in place."""

    def init(self, server):
        return np.zeros(1)

    def step(self, server, state, replies):
        state.memory[0] += 1.0
        return super().step(server, state, replies)


class Unknown(NamedTuple):
    rounds: int


@dataclass(frozen=True)
class Unregistered(Wrapper):
    made: type = Unknown

    def init(self, server):
        return self.made([0])

    def step(self, server, state, replies):
        return super().step(server, state, replies)._replace(memory=self.made([state.round]))


CALLS = []


@dataclass(frozen=True)
class Impure(Wrapper):
    """A counter beside the state: λ_g depends on how often the step was called."""

    def step(self, server, state, replies):
        CALLS.append(state.round)
        found = super().step(server, state, replies)
        return found._replace(q_g=found.q_g.with_natural((1.0 + 1e-3 * len(CALLS)) * found.q_g.natural))


@dataclass(frozen=True)
class Shrunk(Wrapper):
    """A fixed point of its own, 1 % from the pooled solution."""

    def step(self, server, state, replies):
        found = super().step(server, state, replies)
        return found._replace(q_g=found.q_g.with_natural(0.99 * found.q_g.natural))


class Undecorated(Wrapper):
    """No dataclass of its own: a checkpoint would not know its momentum."""

    momentum: float = 0.0


BROKEN = {
    "no dataclass": (Undecorated(M.PVI(0.5)), "a step is a frozen dataclass"),
    "mutable memory": (Listing(M.PVI(0.5)), PURE),
    "unregistered": (Unregistered(M.PVI(0.5)), READ),
    "a list": (Unregistered(M.PVI(0.5), list), READ),
    "integers": (Unregistered(M.PVI(0.5), np.array), READ),
    "impure": (Impure(M.PVI(0.5)), PURE),
    "another fixed point": (Shrunk(M.PVI(0.5)), "the pooled solution is a fixed point of damped PVI"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_is_named(name):
    step, identity = BROKEN[name]
    with pytest.raises(CheckError) as found:
        check_step(step, prior("full", 2))
    assert found.value.identity == identity


# --- A step and a rule from outside


class Moved(NamedTuple):
    by: Natural
    length: Array


@dataclass(frozen=True)
class Momentum(Wrapper):
    """λ_g moves on by a part of its last move; the length of all moves is kept beside."""

    momentum: float = 0.2

    def init(self, server):
        return Moved(server.prior.natural.zeros(), np.zeros(1))

    def step(self, server, state, replies):
        found = super().step(server, state, replies)
        if isinstance(found, Failure):
            return found
        natural = found.q_g.natural + self.momentum * state.memory.by
        q_g = as_distribution(self, server, state, natural)
        if isinstance(q_g, Failure):
            return q_g
        by = natural - state.q_g.natural
        return found._replace(q_g=q_g, memory=Moved(by, state.memory.length + q_g.fisher_norm(by)))


OUTSIDE = {
    "a step": Momentum(M.PVI(0.5)),
    "a rule": replace(M.BayesADMM(rho=2.0), dual_rule=Relaxed(1.1)),
    "both": Momentum(replace(M.BayesADMM(rho=2.0), dual_rule=Relaxed(1.1)), momentum=0.1),
}


@pytest.fixture
def registered(registries):
    STEPS.register(Momentum)
    MEMORIES.register(Moved)
    M.DUAL_RULES.register(Relaxed)


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_comes_from_outside_runs_resumes_and_travels_bit_for_bit(name, registered, tmp_path):
    method, clients, start = OUTSIDE[name], team("logistic", sizes=(5, 8)), prior("full", 3)
    check_step(method)
    assert ba.run(method, clients, start, tol=1e-8).certificate().pooled <= 1e-8
    whole = ba.run(method, clients, start, 6, tol=1e-300)
    ba.run(method, clients, start, 3, tol=1e-300, checkpoint=tmp_path / "state.npz")
    again = ba.run(method, clients, start, 6, tol=1e-300, resume=tmp_path / "state.npz")
    assert same_bits(again.posterior.natural, whole.posterior.natural)
    assert np.array_equal(again.objective, whole.objective)
    if whole.state.memory is not None:
        assert np.array_equal(again.state.memory.length, whole.state.memory.length)
        assert whole.state.memory.length > 0.0
        plain = ba.run(method.method, clients, start, 6, tol=1e-300)
        assert not same_bits(plain.posterior.natural, whole.posterior.natural)  # the step does something
        with pytest.raises(ValueError, match="its method is"):
            ba.run(replace(method, momentum=0.3), clients, start, 6, resume=tmp_path / "state.npz")
    assert not differences(whole, *drive(method, clients, start, rounds=6, tol=1e-300))


def test_what_is_not_registered_runs_here_and_is_sent_nowhere(registries, tmp_path):
    method, clients, start = OUTSIDE["a step"], team("logistic", sizes=(5, 8)), prior("full", 3)
    assert ba.run(method, clients, start, tol=1e-8).certificate().pooled <= 1e-8
    with pytest.raises(ValueError, match="Momentum"):
        drive(method, clients, start)
    with pytest.raises(ValueError, match="Moved"):
        ba.run(method, clients, start, 3, checkpoint=tmp_path / "state.npz")


@dataclass(frozen=True)
class Telling(Wrapper):
    """A step that tells clients a number of its own."""

    def context(self, state):
        return 1.5


@dataclass(frozen=True)
class Asking(Wrapper):
    """A step whose replies hold a field of its own."""

    def beside(self, worker, asked, solution):
        return {"slope": np.ones(3)}


@pytest.mark.parametrize("kind", [Telling, Asking])
def test_what_messages_would_lose_is_refused_between_sites(kind, registries):
    """Also inside a guard; the twin is a wrapper that adds nothing."""
    STEPS.register(kind)
    clients, start = team("logistic", sizes=(5, 8)), prior("full", 3)
    for method in (kind(M.PVI(0.5)), ba.Guarded(kind(M.PVI(0.5)))):
        assert ba.run(method, clients, start, 2, tol=1e-300).rounds == 2
        with pytest.raises(ValueError, match=kind.__name__):
            drive(method, clients, start)
    drive(ba.Guarded(ba.Accelerated(M.PVI(0.4))), clients, start, rounds=2)


# --- The state as a tree


@MEMORIES.register
class TreePair(NamedTuple):
    one: object
    other: object


NUMBERS = st.floats(allow_nan=True, width=64)
ARRAYS = st.lists(NUMBERS, max_size=6).flatmap(
    lambda values: st.sampled_from([(len(values),), (1, len(values)), (len(values), 1, 1)]).map(
        lambda shape: np.array(values, dtype=float).reshape(shape)
    )
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | NUMBERS | st.text(max_size=5) | ARRAYS
LEAVES |= st.sampled_from([*Status, *ClientStatus])
LEAVES |= st.builds(lambda v: Natural(np.array(v), np.diag(v)), st.lists(st.floats(-9, 9), min_size=1, max_size=3))
LEAVES |= st.builds(lambda v: Displacement(np.array(v)), st.lists(st.floats(-9, 9), max_size=3))
TREES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=4).map(tuple)
        | st.builds(TreePair, inside, inside)
        | st.builds(Failure, st.sampled_from([*Status]), st.integers(0, 9), st.none() | st.integers(0, 9))
    ),
    max_leaves=12,
)


def same(one, other):
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
    if isinstance(one, Natural | Displacement):
        return type(one) is type(other) and all(map(np.array_equal, one.parts, other.parts))
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or one != one)


@given(TREES)
def test_a_tree_is_read_as_it_was_written(tree):
    """Through JSON and vectors, as a checkpoint and a message hold it."""
    arrays = {}
    plain = json.loads(json.dumps(pack(tree, arrays), allow_nan=False))
    assert sizes(plain) == {name: array.size for name, array in arrays.items()}
    assert all(array.ndim == 1 and array.dtype == np.float64 for array in arrays.values())
    assert same(tree, unpack(plain, arrays))


@pytest.mark.parametrize(
    "value", [{"a": 1}, {1}, [1.0], 1j, b"x", np.arange(3), np.ones(2, bool), np.bool_(True), Moved(1, 2)]
)
def test_a_state_of_other_things_is_not_written(value):
    with pytest.raises(ValueError, match="state of a step"):
        pack((1.0, (value,)), {})


ONE = {"type": "Failure", "fields": {}}


@pytest.mark.parametrize(
    "plain",
    [
        {"type": "Moved", "fields": {"by": None, "length": None}},
        {"type": "Path", "fields": {}},
        {"type": "Natural"},
        {"type": ["Natural"], "parts": []},
        {"type": "Status", "name": "FINE"},
        {"type": "Natural", "name": "parts"},
        ONE,
        {**ONE, "fields": {"status": None}},
        {"array": "state0", "shape": [4]},
        {"array": "state7", "shape": [3]},
        {"array": "state0"},
        {"float": "much"},
        {},
    ],
)
def test_what_is_no_tree_is_not_read(plain):
    with pytest.raises((LookupError, TypeError, ValueError)):
        unpack([1.0, plain], {"state0": np.zeros(3)})


# --- What rounding is to be blamed for, and what not


def server_and_state(family="full"):
    made = assemble(as_step(M.PVI()), team("logistic"), prior(family, 3), None, None, 1e-6)
    return made, begin(made)


@pytest.mark.parametrize(
    ("corner", "status"), [(0.9, Status.NOT_A_DISTRIBUTION), (1.0, Status.UNRESOLVED), (1.0 - EPS, Status.UNRESOLVED)]
)
def test_a_precision_is_singular_to_rounding_or_indefinite(corner, status):
    made, state = server_and_state()
    natural = Natural(np.zeros(3), np.array([[1.0, 1.0, 0.0], [1.0, corner, 0.0], [0.0, 0.0, 1.0]]))
    assert as_distribution(made.step, made.server, state, natural).status is status


@dataclass(frozen=True)
class Spy(Solver):
    """A solver that stays where it starts, and notes that point."""

    seen: list

    def solve(self, problem, start, rng, expected=None):
        self.seen.append((start, expected))
        return self.measured(problem, start, 1, ClientStatus.STEPS_DONE)


def answer_of(site, start, seen):
    made = assemble(as_step(M.PVI()), team("logistic"), prior("full", 3), None, Spy(seen), 1e-6)
    q, worker = made.prior.start(), made.workers[0]
    own = Own(q.natural, site)
    return q, worker.answer(Broadcast(1, q.natural), q, own, worker.expect(q), start, 0, 0)


def test_an_inexact_solve_has_an_edge_of_its_own_length():
    """η_k after the dual step is no natural gradient then; zero is for closed forms, where it is one."""
    q, reply = answer_of(prior("full", 3).natural.zeros(), None, [])
    assert reply.residual > 0.1
    assert reply.natural_gradient_edge == pytest.approx(q.fisher_norm(reply.gap), rel=1e-12)
    assert reply.natural_gradient_edge > 0.1
    exact = ba.run(M.PVI(), team("squares"), prior("full", 3), 1, tol=1e-300)
    assert [client.natural_gradient for client in exact.history[0].clients] == [0.0, 0.0]


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_a_warm_start_is_for_a_problem_that_is_well_posed(scale):
    """With η_k above λ_g the cavity is no distribution, and the last posterior says nothing of where a minimum is."""
    seen, warm = [], ba.families.FullGaussian(np.ones(3), 2.0)
    q, reply = answer_of(Natural(np.zeros(3), scale * np.eye(3)), warm, seen)
    assert reply.well_posed is (scale < 1.0)
    assert seen[0][0] is (warm if reply.well_posed else q)
    assert (seen[0][1] is None) is reply.well_posed


def test_a_failed_client_ends_the_round_whatever_the_step():
    made, state = server_and_state()
    _, reply = answer_of(state.sites[0], None, [])
    failed = merged(made.step, made.server, state, [reply._replace(status=ClientStatus.NOT_FINITE), None])
    assert (failed.status, failed.client, failed.round) == (Status.NOT_FINITE, 0, 1)
