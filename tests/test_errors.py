"""Errors have fields, and whoever knows the names words them: no message is rewritten."""

import pickle

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._errors import ArgumentError, ClientError, Words, worded
from bayesadmm_np.splitting.status import Failure, Status


def option(name):
    return "--" + name.replace("_", "-")


SITES = ["Basel", "Bern"]


@pytest.mark.parametrize(
    ("call", "argument", "expected", "got"),
    [
        (lambda: ba.methods.BayesADMM(rho=-1.0), "rho", "must be > 0", "-1.0"),
        (lambda: ba.methods.PVI(gamma="row"), "gamma", "must be a number in (0, 1], or 'rows' for N_k/N", "'row'"),
        (lambda: ba.clients.VON(step_size=2.0), "step_size", "must lie in (0, 1]", "2.0"),
        (lambda: ba.families.Gamma(0.0, 1.0), "shape", "must be positive in every entry", "0"),
        (lambda: ba.losses.GaussHermite(1000), "points", "must be at most 350", "1000"),
        (lambda: ba.losses.Logistic([[1.0]], ["a"]), "y", "must hold integer labels 0 to 1", "strings"),
    ],
)
def test_an_argument_error_says_what_and_is_worded_once(call, argument, expected, got):
    with pytest.raises(ArgumentError) as caught:
        call()
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.argument, error.expected, error.got) == (argument, expected, got)
    assert str(error).startswith(f"{argument} {expected}, got {got}")
    assert worded(error, argument=option).startswith(f"{option(argument)} {expected}, got {got}")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_what_was_got_is_not_reworded():
    """Rewriting the message, as before, would have changed the second `tol` too."""
    error = ArgumentError("tol", "must be a number", "'tol must'")
    assert worded(error, argument=option) == "--tol must be a number, got 'tol must'."
    assert str(error).replace("tol", "--tol") != worded(error, argument=option)


def test_an_error_of_a_client_has_its_number():
    prior = ba.families.FullGaussian(np.zeros(2), 1.0)
    good, bad = ba.losses.Logistic(np.ones((2, 2)), [0, 1]), ba.losses.Logistic(np.ones((2, 3)), [0, 1])
    with pytest.raises(ClientError) as caught:
        ba.run(ba.methods.PVI(), [good, bad], prior)
    error = caught.value
    assert error.client == 1
    assert str(error) == f"client 1: {error.reason}"
    assert worded(error, client=SITES.__getitem__) == f"Bern: {error.reason}"
    with pytest.raises(ClientError, match=r"^client 0: expected a loss of bayesadmm_np\.losses, got str\.$"):
        ba.run(ba.methods.PVI(), ["x"], prior)
    inner = ClientError(0, ArgumentError("y", "must be finite", "nan"))
    assert worded(inner, argument=option, client=SITES.__getitem__) == "Basel: --y must be finite, got nan."
    assert str(pickle.loads(pickle.dumps(inner))) == str(inner)


def test_a_failed_run_says_which_client_round_and_knob():
    prior = ba.families.FullGaussian(np.zeros(1), 1.0)
    clients = [ba.losses.Poisson([[1.0]], [1.0]), ba.losses.Poisson([[1e200]], [1.0])]
    with pytest.raises(ba.RunError) as caught:
        ba.run(ba.methods.PVI(), clients, prior)
    failure = caught.value.failure
    assert failure is caught.value.result.failure
    assert (failure.round, failure.client) == (1, 1)
    assert failure.status is caught.value.result.status
    assert str(caught.value) == failure.message
    assert worded(caught.value, client=SITES.__getitem__) == failure.message.replace("client 1", "Bern", 1)
    kept = ba.run(ba.methods.PVI(), clients, prior, raise_on_failure=False)
    assert kept.failure == failure
    assert kept.message == failure.message
    assert ba.run(ba.methods.PVI(), clients[:1], prior, rounds=1).failure is None


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (Failure(Status.NOT_FINITE, 2, 0), f"Basel, round 2: {Status.NOT_FINITE.value}."),
        (
            Failure(Status.ILL_POSED_CLIENT, 1, 1, knob="raise rho", switch="safeguard"),
            f"Bern, round 1: {Status.ILL_POSED_CLIENT.value}; raise rho or add --safeguard.",
        ),
        (
            Failure(Status.DIVERGED, 9, detail="it reached 1e+09", knob="raise rho"),
            f"round 9: {Status.DIVERGED.value}; it reached 1e+09; raise rho.",
        ),
    ],
)
def test_a_failure_is_a_sentence_in_anybody_s_words(failure, text):
    assert failure.worded(Words(client=SITES.__getitem__, switch="add --{}".format)) == text


def test_an_error_without_fields_says_what_it_says():
    assert worded(RuntimeError("no fields"), argument=option) == "no fields"


def test_an_integer_longer_than_a_float_is_an_argument_like_any_other():
    with pytest.raises(ArgumentError, match="rho must be at most"):
        ba.methods.BayesADMM(rho=10**5000)


@pytest.mark.parametrize("name", ["checkpoint", "resume"])
def test_files_of_a_run_are_paths(name):
    clients = [ba.losses.LeastSquares([[1.0]], [1.0])]
    with pytest.raises(ArgumentError, match=f"{name} must be a path, got 3"):
        ba.run(ba.methods.PVI(), clients, ba.families.FullGaussian(np.zeros(1), 1.0), **{name: 3})
