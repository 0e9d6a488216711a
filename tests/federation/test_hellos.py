"""What a hello cannot say: refused with the site and the column, and before anything of its size is made."""

import tracemalloc

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.design.terms import parse
from bayesadmm_np.federation import Coordinator, GLMData, GLMTable, GLMTask, Message, MessageError, Site
from bayesadmm_np.federation.messages import read_hello
from oracles.problems import prior

X = np.random.default_rng(0).standard_normal((6, 3))
SITE = Site("A", GLMData(ba.losses.Logistic(X, np.ones(6))))


def begin(header=None, start=None):
    hello = SITE.hello()
    hello = Message("hello", {**hello.header, **(header or {})}, hello.arrays)
    return Coordinator.start([hello], GLMTask(ba.methods.PVI(), start or prior("full", 3)))


NAMES = [
    ("features", {"features": ["a", "b", "a"]}),
    ("classes", {"classes": ["no", "no"]}),
    ("weight", {"weight": 0.0}),
    ("weight", {"weight": 1e308}),
    ("dim", {"features": ["a", "b"]}),
]


def test_names_and_weights_that_make_no_run_are_refused():
    begin()
    for named, header in NAMES:
        with pytest.raises(MessageError, match=f"{named} must be"):
            begin(header)


def test_a_hello_of_many_parameters_is_refused_before_a_prior_is_made():
    dims = []

    def start(d):
        dims.append(d)
        return ba.families.FullGaussian(np.zeros(d), 1.0)

    tracemalloc.start()
    hello = {"dim": 30000, "features": [f"f{j}" for j in range(30000)]}
    with pytest.raises(MessageError, match=r"dim must be small enough for .* site A\), got 30000"):
        begin(hello, start)
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()
    assert dims == [2]
    # the rounds that acceleration remembers count: eight of the largest that fits without
    task = GLMTask(ba.Accelerated(ba.methods.PVI(0.5), 8), start)
    hello = Message("hello", {**SITE.hello().header, "dim": 6000, "features": [f"f{j}" for j in range(6000)]}, {})
    with pytest.raises(MessageError, match="dim must be small enough"):
        Coordinator.start([hello], task)
    assert dims == [2, 2]


def test_a_prior_that_cannot_be_made_of_two_parameters_is_asked_for_all():
    def start(d):
        if d != 3:
            raise IndexError("three parameters")
        return prior("full", 3)

    assert begin(start=start).number == 1


def test_as_many_parameters_of_a_diagonal_family_have_room():
    hello = {"dim": 30000, "features": [f"f{j}" for j in range(30000)]}
    assert begin(hello, lambda d: ba.families.DiagonalGaussian(np.zeros(d), 1.0)).number == 1


LONG = ["(a+b+c)**30", f"a**{'9' * 5000}", "(((a+b)**9+c)**9+b)**9", "a*b*c*d*e*f*g*h*i*j*k*l*m*n"]


def test_a_formula_of_too_many_products_is_refused_before_they_are_formed():
    """A hello may say any formula: of a few bytes some would take minutes."""
    assert len(parse("y ~ (a+b+c)**3").terms) == 8
    for predictors in LONG:
        with pytest.raises(ValueError, match="must stand for at most 2000 products of columns"):
            parse(f"y ~ {predictors}")


def test_a_formula_that_cannot_be_read_is_a_refusal_of_its_hello_alone():
    """Over a transport whatever else is raised would end the server; the twin is the hello as it was made."""
    site = Site("A", GLMTable({"y": [0, 1, 1, 0], "a": [1.0, 2.0, 4.0, 3.0]}, "y ~ a"))
    hello = site.hello()
    assert read_hello(hello).table is not None
    table = hello.header["table"]
    for formula in ("y ~ (", "y ~ (a + b)**90 * c**80", "y ~ open('x')", "y", "~", "y ~ \ud800"):
        told = {**hello.header, "table": {**table, "described": {**table["described"], "formula": formula}}}
        with pytest.raises(MessageError, match="formula"):
            read_hello(Message("hello", told, hello.arrays, "hello of A"))
