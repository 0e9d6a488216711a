"""Whoever sends a message of ten kilobytes, it costs its reader two seconds and 200 MB at most, and has no other end
than being taken or refused.

CI reads a seeded sample. `HOSTILE=100000 pytest -m slow tests/federation/test_bounds.py` reads so many, and measures.
"""

import os
import random
from collections import Counter
from itertools import chain

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._errors import ArgumentError
from bayesadmm_np.design import agreement as agreement_module
from bayesadmm_np.design.agreement import Agreement, needed_columns
from bayesadmm_np.design.formula import spline
from bayesadmm_np.design.levels import AgreedColumn
from bayesadmm_np.design.terms import parse
from bayesadmm_np.federation import Coordinator, GLMTask, MessageError, glm_spec
from bayesadmm_np.federation.messages import read_hello, read_spec
from oracles import bombs
from oracles.couriers import carried, edited, peak_of

MEMORY, SECONDS = 200 << 20, 2.0


def test_hostile_messages_are_taken_or_refused_in_little_memory():
    with bombs.room(MEMORY):
        found = list(bombs.hostile(450, 1))
    assert [(name, result) for name, _, result, *_ in found if not isinstance(result, str)] == []
    counts = Counter(result for _, _, result, *_ in found)
    assert counts["refused"] > 250
    assert counts["taken"] > 50  # what is taken has got through all checks


def test_hostile_messages_of_networks_are_taken_or_refused():
    pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
    counts = Counter()
    for name, data, result, *_ in bombs.hostile(100, 3, has_networks=True):
        assert isinstance(result, str), (name, result, data)
        counts[result] += 1
    assert counts["refused"] > 50
    message, door = bombs.doors(True)["network: server 3"]
    with pytest.raises(MessageError, match="prior_precision must be from 1e-37"):
        door(edited(message, {"spec.prior_precision": 1e308}))
    message, door = bombs.doors(True)["network: broadcast  to a new site"]
    for name, value in {"batch_size": 10**9, "epochs": 10**9}.items():
        with pytest.raises(MessageError, match=f"solver must have .*{name}"):
            door(edited(message, {f"spec.solver.{name}": value}))


def test_every_honest_message_is_taken():
    """Or the fields around a hostile one would be what is refused."""
    wrong = {name: bombs.received(door, message.to_bytes()) for name, (message, door) in bombs.doors().items()}
    assert {name: found for name, found in wrong.items() if found != "taken"} == {}


def test_a_door_that_allocates_what_a_message_says_is_found():
    """The twin of both measures: memory that is refused is no refusal, and memory that is taken is counted."""
    data = bombs.doors()["posterior: hello"][0].to_bytes()
    with bombs.room(1 << 24):  # a request larger than what earlier tests have left free in this process
        assert bombs.sys.platform != "linux" or isinstance(
            bombs.received(lambda message: bytearray(1 << 34), data), MemoryError
        )
    assert isinstance(bombs.received(lambda message: {}["x"], data), KeyError)
    assert isinstance(bombs.received(lambda message: np.linalg.inv(np.zeros((2, 2))), data), np.linalg.LinAlgError)


@pytest.mark.slow
def test_very_many_hostile_messages_cost_little():
    count = int(os.environ.get("HOSTILE", "5000"))
    for name, data, result, seconds, grown in chain(bombs.hostile(count, 2), bombs.hostile(count // 10, 4, True)):
        assert isinstance(result, str), (name, result, data)
        assert seconds < SECONDS, (name, seconds, data)
        assert grown < MEMORY, (name, grown, data)


# --- Priors ----------------------------------------------------------------------------------------------------

TO_A_TABLE, TO_ROWS = "intercepts: broadcast  to a new site", "posterior: broadcast  to a new site"
SHAPES = {
    "a precision that is a vector": ("FullGaussian", [[25_000], [25_000]]),
    "a matrix": ("FullGaussian", [[25_000], [25_000, 25_000]]),
    "a mean of another length": ("FullGaussian", [[25_000], [7, 7]]),
    "a precision of another length": ("FullGaussian", [[7], [25_000, 25_000]]),
    "a block that is a vector": ("BlockDiagonalGaussian", [[25_007], [7, 7], [25_000]]),
    "a long vector": ("DiagonalGaussian", [[1 << 26], [1 << 26]]),
    "no shape": ("FullGaussian", []),
    "no size": ("FullGaussian", [[], []]),
    "no whole number": ("FullGaussian", [[7.0], [7.0, 7.0]]),
}


def stated(message, family, shapes):
    """A broadcast whose spec says a prior in two numbers, with the right id."""
    plain = {"family": family, "shapes": shapes, "mean": 0.0, "precision": 1.0}
    return edited(message, {"spec.prior": plain}, {"prior": None})


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("to", [TO_A_TABLE, TO_ROWS])
def test_the_numbers_of_a_prior_are_counted_before_any_is_made(shapes, to):
    message, door = bombs.doors()[to]
    forged = stated(message, *SHAPES[shapes])
    assert len(forged.to_bytes()) < 4096

    def refused():
        with pytest.raises(MessageError, match="shapes of the prior"):
            door(forged)

    assert peak_of(refused) < 1 << 21


def test_a_reader_that_counts_nothing_makes_a_square_of_a_vector(monkeypatch):
    """The twin: of 300 numbers that a message states come 90 000."""
    forged = stated(bombs.doors()[TO_A_TABLE][0], "FullGaussian", [[300], [300]])
    with pytest.raises(MessageError, match="shapes of the prior"):
        read_spec(forged)
    monkeypatch.setattr(glm_spec, "prior_size", lambda family, shapes, most: 600)
    assert read_spec(forged).prior.factor.parts[0].shape == (300, 300)


# --- Hellos ----------------------------------------------------------------------------------------------------


def of_size(dim, n_features, prior, n_sites=1):
    hello, features = bombs.doors()["posterior: hello"][0], [f"f{j}" for j in range(n_features)]
    hellos = [edited(hello, {"dim": dim, "features": features, "site": f"s{k}"}) for k in range(n_sites)]
    row = ba.methods.ADMM() if prior is bombs.isotropic else ba.methods.PVI()
    return Coordinator.start(hellos, GLMTask(row, prior))


def test_the_parameters_of_a_hello_are_counted_before_any_is_made():
    """Outputs that nobody has named, 4096 a column, cost the message nothing."""
    for dim, n_features, prior in (
        (3 * 4096, 3, bombs.full),
        (1010, 10, bombs.full),
        (1000 * 600, 1000, bombs.isotropic),
        (1000 * 4096, 1000, bombs.diagonal),
    ):
        with pytest.raises(MessageError, match="dim must be that of a parameter of at most 501500 numbers"):
            of_size(dim, n_features, prior)
    assert of_size(1000, 10, bombs.full).spec.dim == 1000  # at the limit


@pytest.mark.parametrize(
    ("dim", "prior"), [(1000, bombs.full), (1200, bombs.full), (20_000, bombs.isotropic), (20_000, bombs.diagonal)]
)
def test_large_runs_begin_where_names_pay_for_them(dim, prior):
    message = carried(of_size(dim, dim, prior, 1 if dim == 1200 else 2).broadcast())
    assert read_spec(message).dim == dim


def test_levels_by_the_thousand_are_agreed():
    columns = {f"l{k}": 5 for k in range(2000)}
    path = "table.described.columns.ward.levels"
    hellos = [edited(bombs.tabled()[k].hello(), {path: columns}) for k in range(3)]
    server = Coordinator.start(hellos, GLMTask(ba.methods.PVI(), bombs.diagonal))
    assert len(server.spec.features) == 2 + 1999 + 1
    assert read_spec(carried(server.broadcast())).features == server.spec.features


# --- Formulas --------------------------------------------------------------------------------------------------

LARGE = {
    "powers": "poly(age, 64, raw=True):poly(dose, 64, raw=True)",
    "levels": "ward:C(age):C(dose)",
    "knots": f"bs(age, knots=({', '.join(map(str, range(1000)))}), lower_bound=-1, upper_bound=1000)",
    "many factors": ":".join(f"C(v{k})" for k in range(12)),  # one product, of which formulaic compares 4096 parts
}


def agreed(formula, n_levels):
    parsed = parse(formula)
    levels = {name: tuple(f"l{k}" for k in range(n_levels.get(name, 2))) for name in parsed.roles}
    columns = {
        name: AgreedColumn("factor", levels[name]) if role == "factor" or name in n_levels else AgreedColumn("number")
        for name, role in needed_columns(parsed.roles, None).items()
    }
    bounds = {"lower_bound": -1.0, "upper_bound": 1000.0}
    learned = {
        call.text: {"knots": [float(knot) for knot in call.options["knots"]], **bounds}
        if call.name == "bs"
        else {"center": 0.0, "scale": 1.0}
        for call in parsed.learned
    }
    return Agreement(formula, columns, learned)


@pytest.mark.parametrize("formula", LARGE)
def test_columns_are_counted_before_any_is_made(formula, monkeypatch):
    made = agreed(f"died ~ {LARGE[formula]}", {"ward": 3, "age": 30, "dose": 30} if formula == "levels" else {})
    monkeypatch.setattr(agreement_module, "_materialised", None)  # nothing is made
    with pytest.raises(ArgumentError) as error:
        made.require_columns(made.n_columns - 1 if made.n_columns < 1000 else 0)
    assert error.value.argument == "formula"


def test_a_hello_with_a_large_formula_is_refused_and_one_that_counts_factors_alone_makes_it(monkeypatch):
    """The twin: with the limit lifted the design of a few words is made."""
    formula = "died ~ poly(age, 40, raw=True):poly(dose, 40, raw=True)"
    hellos = []
    for k in range(3):
        hello = bombs.tabled()[k].hello()
        told = hello.header["table"]["described"]
        known = {name: told["columns"][name] for name in ("died", "age", "dose")}
        hellos.append(edited(hello, {"table.described": {**told, "formula": formula, "columns": known}}))
    task = GLMTask(ba.methods.ADMM(), bombs.isotropic)
    with pytest.raises(ArgumentError) as error:
        Coordinator.start(hellos, task)
    assert error.value.argument == "formula"
    monkeypatch.setattr(agreement_module, "MOST_COLUMNS", 2000)
    assert len(Coordinator.start([read_hello(hello) for hello in hellos], task).spec.features) == 1601


def drawn(rng, depth):
    """A formula of factors a, b, c, d, e with 4, 2, 3, 6 and 5 levels, and numbers x, y, z."""
    if depth == 0:
        name = rng.choice("abcdexyz")
        if name in "abcde":
            coding = rng.choice(["Sum", "Helmert", "Poly", "Diff", "Treatment"])
            return rng.choice([name, name]) if name in "ab" else rng.choice([f"C({name})", f"C({name}, {coding})"])
        bounds = f"lower_bound=0, upper_bound=3, degree={rng.randint(1, 3)}"
        numbers = [name, f"poly({name}, {rng.randint(1, 4)}, raw=True)", f"bs({name}, knots=(1, 2), {bounds})"]
        return rng.choice([*numbers, f"I({name} > 1)", f"log({name})", f"center({name})"])
    joined = rng.choice("+*:/-+").join(drawn(rng, depth - 1) for _ in range(rng.choice([1, 2, 2, 3])))
    return f"({joined})" if rng.random() < 0.6 else joined


def test_the_number_of_columns_is_that_of_the_design():
    rng, compared = random.Random(0), 0
    for _ in range(150):
        try:
            made = agreed(
                f"t ~ {rng.choice(['', '0 + ', '-1 + '])}{drawn(rng, rng.randint(0, 2))}",
                {"a": 4, "b": 2, "c": 3, "d": 6, "e": 5},
            )
            n_columns = len(made.names)
        except ArgumentError:
            continue  # two columns of one name
        compared += 1
        assert made.n_columns == n_columns, made.formula
    assert compared > 100


DEEP = {
    "minus signs": f"I({'-' * 150}age)",
    "names in backticks": f"I({' + '.join(f'I(`v{k}`)' for k in range(450))})",
    "digits": f"I(age + {'9' * 4000})",
    "infinity": "I(age + 1e999)",
    "a spline of high degree": "bs(age, knots=(1,), lower_bound=-1, upper_bound=2, degree=64)",
    "a bound of many digits": f"bs(age, knots=(1,), lower_bound=-1, upper_bound={'9' * 4000})",
}


@pytest.mark.parametrize("formula", DEEP)
def test_expressions_that_are_deep_or_have_large_constants_are_refused(formula):
    def read():
        spline(parse(f"died ~ {DEEP[formula]}").learned[0])

    with pytest.raises(ArgumentError) as error:
        read()
    assert error.value.argument == "formula"


# --- Work ------------------------------------------------------------------------------------------------------

SETTINGS = {
    "steps": ("solver", {"type": "VON", "steps": 10**12, "step_size": 1.0, "decay": 0.6, "samples": 1}),
    "samples": ("solver", {"type": "VON", "steps": 10, "step_size": 1.0, "decay": 0.6, "samples": 10**9}),
    "iterations": ("solver", {"type": "VariationalNewton", "tol": 1e-300, "max_iter": 10**12, "memory": 6}),
    "points": ("expectation", {"type": "QuasiMonteCarlo", "points": 10**9, "seed": 0}),
    "rounds": ("rounds", 10**30),
    "rank": ("method", None),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_server_cannot_set_a_site_to_work_for_hours(setting):
    name, value = SETTINGS[setting]
    message, door = bombs.doors()[TO_ROWS]
    changed = {f"spec.{name}": value}
    if setting == "rank":
        message, door = bombs.doors()["sketched LowRank: server 2"]
        changed = {"spec.method.method.sites": {"type": "LowRank", "rank": 10**9}}
    with pytest.raises(MessageError, match=f"{name} must"):
        door(edited(message, changed))


# --- Records that contradict themselves ------------------------------------------------------------------------

MODEL = {
    "certificate.pooled": -1.0,
    "certificate.edges.gather": float("nan"),
    "shift": 1e300,
    "rounds": 10**400,
    "floats": 1 << 60,
    "classes": [0.0, float("nan")],
    "statistics.total.loss": 5e-324,
    "statistics.total.weight": 1e300,
}


def test_a_reach_whose_square_is_no_number_is_taken_in():
    """The sum over sites of the squares is infinite then, and certifies nothing."""
    message, door = bombs.doors()["sums: reply 2"]
    with np.errstate(over="ignore"):
        door(edited(message, {"certificate.reach": 1e200}))


@pytest.mark.parametrize("field", MODEL)
def test_a_model_file_that_contradicts_itself_is_refused(field):
    message, door = bombs.doors()["logistic: model"]
    with pytest.raises(MessageError, match=field.split(".")[0]):
        door(edited(message, {field: MODEL[field]}))


@pytest.mark.parametrize(("name", "value"), [("own0/root", 1.0), ("own0/root", 1e308)])
def test_arrays_of_a_model_file_that_nobody_can_use_are_refused(name, value):
    message, door = bombs.doors()["logistic: model"]
    with pytest.raises(MessageError, match=name.split("/")[-1]):
        door(edited(message, {}, {name: np.full_like(message.arrays[name], value)}))


@pytest.mark.parametrize("name", ["accelerated: site 3", "accelerated: copy"])
def test_past_duals_are_counted_by_the_arrays_that_hold_them(name):
    """A false count, with a memory that would allow it, has cost 20 GB."""
    message, door = bombs.doors()[name]
    changed = {"spec.method.method.memory": 10**9} if "spec" in message.header else {}
    assert peak_of(lambda: refused(door, edited(message, {"past": 10**8, **changed}), "past must")) < 1 << 22


def test_the_outputs_of_a_model_file_are_those_of_its_posterior():
    message, door = bombs.doors()["linear: model"]
    assert (
        peak_of(
            lambda: refused(door, edited(message, {"outputs": 10**6, "certificate.distance": None}), "posterior must")
        )
        < 1 << 22
    )


def refused(door, message, words):
    with pytest.raises(MessageError, match=words):
        door(message)


def test_the_hellos_of_a_servers_state_are_those_of_its_sites():
    message, door = bombs.doors()["posterior: server 2"]
    for hellos in ([], message.header["hellos"][::-1], [{}] * 3):
        with pytest.raises(MessageError):
            door(edited(message, {"hellos": hellos}))
