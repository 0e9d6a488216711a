"""The reader of messages: what is refused, with which words, and that nothing is accepted in silence."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMData, GLMSpec, GLMTask, Message, MessageError, Site, final_result
from bayesadmm_np.federation.spec import run_of
from oracles.couriers import carried, exchanged, introduce
from oracles.problems import prior, team

M = ba.methods
CLIENTS = team("logistic", sizes=(5, 8))
START = prior("full", 3)


def begin(row=None, clients=CLIENTS, start=START, **options):
    sites = introduce(clients)
    return Coordinator.start([site.hello() for site in sites], GLMTask(row or M.PVI(), start, **options)), sites


SERVER, SITES = exchanged(*exchanged(*begin()))
"""A server that waits for replies to broadcast 3, and sites that can answer."""
BROADCAST = SERVER.broadcast()
REPLY = SITES[0].step(BROADCAST)[1]
ENDED, _ = exchanged(*exchanged(*begin(M.BCM())))
KINDS = {
    "hello": SITES[0].hello(),
    "broadcast": BROADCAST,
    "reply": REPLY,
    "final": ENDED.broadcast(),
    "site": SITES[0].save(),
    "server": SERVER.save(),
}


def site_for(broadcast):
    """The site of this run; for another run one that takes part in none, which looks at more than the run's id."""
    return SITES[0] if broadcast.header.get("run") == SERVER.spec.run else introduce(CLIENTS)[0]


def use(message):
    """Read a message as the one whom it is for does."""
    return {
        "hello": lambda: Coordinator.start([message, SITES[1].hello()], GLMTask(M.PVI(), START)),
        "broadcast": lambda: site_for(message).step(message),
        "reply": lambda: SERVER.step([message]),
        "final": lambda: final_result(message),
        "site": lambda: introduce(CLIENTS)[0].restore(message),
        "server": lambda: Coordinator.restore(message),
    }[message.kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_back_as_they_were(kind):
    message = KINDS[kind]
    data = message.to_bytes()
    again = Message.from_bytes(data)
    assert again.to_bytes() == data
    assert again.header == json.loads(json.dumps(message.header))
    assert all(np.array_equal(again.arrays[name], values) for name, values in message.arrays.items())
    use(again)


# ----------------------------------------------------------------------------------------------------
# Fields, one at a time: the digest is right, the content is not
# ----------------------------------------------------------------------------------------------------


def edited(message, header=None, arrays=None):
    """Return the message with other content and a right digest, as a hostile sender would make it."""
    fields = json.loads(json.dumps(message.header))
    for path, value in (header or {}).items():
        inner, (*outer, last) = fields, path.split(".")
        for name in outer:
            inner = inner[name]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    vectors = {**message.arrays, **(arrays or {})}
    bad = Message(message.kind, fields, {k: v for k, v in vectors.items() if v is not None})
    touched = {*(header or {}), *(f"spec.{name}" for name in {"prior"} & set(arrays or {}))}
    forged = any(path.startswith("spec.") for path in touched) and "run" not in touched
    return carried(resigned(bad) if forged else bad)


def resigned(message):
    """Return the message with the id that its spec has."""
    return Message(
        message.kind, {**message.header, "run": run_of(message.header["spec"], message.arrays)}, message.arrays
    )


INDEFINITE = START.natural.to_vector() * np.array([1, 1, 1, -1, 1, 1, 1, 1, 1])
NAN = np.array([0, np.nan, *np.zeros(7)])

HELLO, FINAL, STATE, SERVED = KINDS["hello"], KINDS["final"], KINDS["site"], KINDS["server"]
NO_SUMS = {"certificate": {"reach": None, "curvature_error": 0.0, "at_mean": False}}
REFUSED = [
    ("run", REPLY, {"run": "0" * 16}, {}),
    ("round", REPLY, {"round": 2}, {}),
    ("site", REPLY, {"site": "s9"}, {}),
    ("answers", REPLY, {"answers": "0" * 64}, {}),
    ("natural must be finite", REPLY, {}, {"natural": NAN}),
    ("natural must be a vector of 9", REPLY, {}, {"natural": np.zeros(8)}),
    ("natural must be a distribution", REPLY, {}, {"natural": INDEFINITE}),
    ("natural", REPLY, {}, {"natural": None}),
    ("arrays must be exactly", REPLY, {}, {"rows": np.zeros(3)}),
    ("`note`", REPLY, {"note": "hi"}, {}),
    ("`value`", REPLY, {"value": ...}, {}),
    ("$.value", REPLY, {"value": "1.0"}, {}),
    ("solved.status", REPLY, {"solved.status": "DONE"}, {}),
    ("solved.status", REPLY, {"solved.status": "ABSENT"}, {}),
    ("solved.iterations", REPLY, {"solved.iterations": -1}, {}),
    ("solved", REPLY, {"solved": None}, {"natural": None}),
    ("certificate", REPLY, NO_SUMS, {"sums": np.zeros(9), "errors": np.zeros(3)}),  # that nobody asked for
    ("round", BROADCAST, {"round": 2**53}, {}),
    ("run", BROADCAST, {"spec.tol": 1e-3, "run": SERVER.spec.run}, {}),
    ("spec", BROADCAST, {"spec": ...}, {}),
    ("known here", BROADCAST, {"spec.method.type": "Popen"}, {}),
    ("known here", BROADCAST, {"spec.method.type": "VON"}, {}),  # a solver
    ("rho", BROADCAST, {"spec.method.rho": -1.0}, {}),
    ("$.rho", BROADCAST, {"spec.method.rho": "1"}, {}),
    ("$.prior_at", BROADCAST, {"spec.method.prior_at": "home"}, {}),
    ("shapes", BROADCAST, {"spec.prior.shapes": [[10**6], [10**6, 10**6]]}, {}),
    ("prior", BROADCAST, {"spec.prior.shapes": []}, {}),
    ("features", BROADCAST, {"spec.features": ["a", "b", "c"]}, {}),
    ("loss", BROADCAST, {"spec.loss": "Poisson"}, {}),
    ("sites", BROADCAST, {"spec.sites": ["a", "b"]}, {}),
    ("natural", BROADCAST, {}, {"natural": NAN}),
    ("counted must be an integer", BROADCAST, {"counted": [7, 7]}, {}),
    ("counted must be a round that this site remembers", BROADCAST, {"counted": [0, 0]}, {}),
    ("mixed", BROADCAST, {"mixed": [2, [1.0]]}, {}),
    ("round", BROADCAST, {"round": 1, "counted": [0, 0]}, {}),
    ("answered before", BROADCAST, {"round": 2, "counted": [1, 1]}, {}),
    ("site must be a name", HELLO, {"site": "../../etc"}, {}),
    ("site must be a name of its own", HELLO, {"site": "s1"}, {}),
    ("features", HELLO, {"features": ["a", "b", "c"]}, {}),
    ("rows", HELLO, {"rows": 0}, {}),
    ("identity", HELLO, {"identity": 1}, {}),
    ("identity", HELLO, {"identity": "x" * 201}, {}),
    ("file must be the state of site", STATE, {"site": "s1"}, {}),
    ("changed since", STATE, {"data": "0"}, {}),
    ("past", STATE, {"past": 3}, {}),
    ("state/state0", SERVED, {}, {"state/state0": None}),
    ("status", FINAL, {"status": "FINE"}, {}),
]
"""What a refusal speaks of, a message, and what is changed in its header and its arrays."""


def test_what_does_not_belong_is_refused_and_named():
    wrong = []
    for kind in KINDS.values():
        use(kind)  # as it was, it is read
    for named, message, header, arrays in REFUSED:
        try:
            use(edited(message, header, arrays))
        except MessageError as error:
            wrong += [] if named in error.reason else [(named, error.reason)]
        else:
            wrong.append((named, message.kind, header, arrays))
    assert wrong == []


def test_a_conjugate_prior_that_is_none_is_refused():
    clients = [ba.losses.LinearInStatistics(ba.families.Natural(np.ones(2), -np.ones(2)))] * 2
    server, sites = begin(clients=clients, start=ba.families.Gamma([1.0, 2.0], 1.0))
    message = server.broadcast()
    sites[0].step(message)  # as it was, it is read
    for header, arrays, words in (
        ({}, {"prior": np.array([1.0, -2.0, 1.0, 1.0])}, "shape must be"),
        ({}, {"prior": None}, "has the vectors shape, rate"),
        ({"spec.prior.shapes": [[4]]}, {}, "has the vectors shape, rate"),
        ({"spec.prior.shapes": [[2, 2], [1]]}, {}, "shape"),
    ):
        with pytest.raises(MessageError, match=words):
            sites[0].step(edited(message, header, arrays))


def test_wrong_kinds_are_refused():
    for kind, message in KINDS.items():
        if kind not in ("broadcast", "final"):
            with pytest.raises(MessageError):
                SITES[0].step(message)
        if kind != "reply":
            with pytest.raises(MessageError, match="kind must be 'reply'"):
                SERVER.step([message])
        if kind != "server":
            with pytest.raises(MessageError, match="kind must be 'server'"):
                Coordinator.restore(message)


@pytest.mark.parametrize(
    "change",
    [
        {"counted": [1]},
        {"counted": [99, 99]},
        {"counted": "ab"},
        {"history": []},
        {"watched": True},
        {"mixed": [1, "ab"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_forged_server_is_refused_when_it_is_read(change):
    """By a MessageError, and not at a later step; the twin without a change goes on."""
    Coordinator.restore(edited(KINDS["server"], {})).broadcast()
    with pytest.raises(MessageError):
        Coordinator.restore(edited(KINDS["server"], change))


def test_a_site_replies_once():
    with pytest.raises(MessageError, match="one that has not replied yet"):
        SERVER.step([REPLY, edited(REPLY, {"value": 1.0})])


def test_a_reply_is_read_once_and_by_the_server_that_takes_it_in(monkeypatch):
    server, sites = exchanged(*begin())
    messages = [site.step(server.broadcast())[1] for site in sites]
    read, count = type(server.engine).reply_made, []
    monkeypatch.setattr(type(server.engine), "reply_made", lambda *given: count.append(1) or read(*given))
    replies = [*server.read(messages).values()]
    after = server.step(replies)
    assert len(count) == 2
    monkeypatch.undo()
    assert after.save().to_bytes() == server.step(messages).save().to_bytes()
    assert after.step(messages) is after.step(replies) is after  # once more: they are in the sum
    for other in (after, begin()[0]):
        with pytest.raises(ValueError, match="replies must be read by this server in this round"):
            other.step(replies[:1])
    with pytest.raises(ValueError, match="once a site"):
        server.step([replies[0], messages[0]])


def test_rows_that_changed_are_noticed():
    other = team("logistic", seed=5, sizes=(5, 8))
    with pytest.raises(MessageError, match="rows of site 's0' must be those of the rounds before"):
        introduce(other)[0].restore(SITES[0].save())


def test_a_site_with_other_rows_than_it_said_does_not_join():
    other = team("logistic", seed=5, sizes=(6, 8))
    with pytest.raises(MessageError, match="weights must be 6 for the rows of this site, got 5"):
        introduce(other)[0].step(BROADCAST)


@pytest.mark.parametrize("is_private", [True, False])
def test_a_private_site_answers_though_its_rows_overflow(is_private):
    """A server chooses q_g so that x'm overflows for long rows only. Broken twin: without privacy it is told."""
    start = ba.families.FullGaussian([1e300], 1.0)
    privacy = {"privacy": ba.GaussianMechanism(1.0, 2.0), "privacy_rounds": 4} if is_private else {}
    replies = []
    for row in (1e-300, 1e10):
        site = Site("A", GLMData(ba.losses.Logistic([[row]], [1])), **privacy)
        server = Coordinator.start([site.hello()], GLMTask(M.PVI(), start, rounds=4))
        if row > 1.0 and not is_private:
            with pytest.raises(ValueError, match="must be finite"):
                site.step(server.broadcast())
            return
        replies.append(site.step(server.broadcast())[1])
    assert replies[0].header == replies[1].header
    assert set(replies[0].arrays) == set(replies[1].arrays) == {"natural"}


def spec_of(**changed):
    plain = {"sites": ("a",), "weights": (1.0,), "method": M.PVI(), "prior": START, "loss": "L", "features": ("x",)}
    return GLMSpec(**{**plain, **changed})


BAD_RUNS = [
    ("hellos", lambda: Coordinator.start([], GLMTask(M.PVI(), START))),
    ("replies", lambda: SERVER.step([])),
    ("has ended", lambda: ENDED.step([REPLY])),
    ("prior", lambda: begin(start=prior("full", 4))),
    ("prior", lambda: begin(start=type("Mine", (ba.families.FullGaussian,), {})(np.zeros(3), 1.0))),
    ("Gaussian", lambda: exchanged(*begin(start=ba.families.Gamma([1.0] * 3, 1.0)))),
    ("ADMM", lambda: begin(M.ADMM())),
    ("method", lambda: begin(M.PVI)),
    ("cannot be sent", lambda: begin(solver=type("Mine", (ba.clients.ClosedForm,), {})())),
    ("tol", lambda: begin(tol=0.0)),
    ("rounds", lambda: begin(rounds=-1)),
    ("seed", lambda: begin(seed=-1)),
    ("site", lambda: Site("a/b", GLMData(CLIENTS[0]))),
    ("nothing to keep", lambda: introduce(CLIENTS)[0].save()),
    ("sites", lambda: spec_of(sites=("b", "a"), weights=(1.0, 1.0))),
    ("weights", lambda: spec_of(weights=(-1.0,))),
]


def test_bad_runs_are_refused_and_named():
    for named, call in BAD_RUNS:
        with pytest.raises(ValueError, match=named):
            call()


def test_settings_that_are_no_plain_floats_and_integers_make_the_same_run_at_a_site():
    """The digest of 1 is not that of 1.0: the sites would refuse the run's every broadcast."""
    plain = {"tol": 1, "rounds": np.int64(4), "seed": np.int64(2), "solver": ba.clients.VariationalNewton(tol=1)}
    server, sites = begin(**plain)
    assert carried(server.broadcast()).header["run"] == server.spec.run
    assert sites[0].step(carried(server.broadcast()))[1] is not None


def test_integers_beyond_any_float_are_refused():
    for change in ({"weight": 10**400}, {"weight": -(10**400)}):
        with pytest.raises(MessageError, match=r"Number out of range - at `\$.weight`"):
            use(Message("hello", {**KINDS["hello"].header, **change}, {}))
    with pytest.raises(MessageError, match=r"Number out of range - at `\$.value`"):
        use(Message("reply", {**REPLY.header, "value": 10**400}, REPLY.arrays))


# ----------------------------------------------------------------------------------------------------
# Bytes
# ----------------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def paths(value, prefix=()):
    found = [prefix] if prefix else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*prefix, key))
    return found


@pytest.mark.parametrize("kind", ["broadcast", "final"])
@given(data=st.data())
@settings(max_examples=40)
def test_a_mutated_field_is_refused_or_is_a_value_of_its_kind(kind, data):
    """With a right digest: a sender who means harm. Nothing but refusals comes of it, whatever stands in a field."""
    message = KINDS[kind]
    header = json.loads(json.dumps(message.header))
    *outer, last = data.draw(st.sampled_from(paths(header)))
    inner = header
    for key in outer:
        inner = inner[key]
    inner[last] = data.draw(JSON)
    try:
        use(carried(Message(kind, header, message.arrays)))
    except MessageError:
        return
    # what was accepted has the type of what was there
    before, after = KINDS[kind].header, header
    for key in (*outer, last):
        before, after = before[key], after[key]
    same = type(after) is type(before) or {type(after), type(before)} <= {int, float, type(None), dict, str}
    assert same, (outer, last, after)


def test_rounding_errors_below_zero_are_refused():
    """They would make the bound of a certificate smaller; the genuine reply is taken in."""
    sites = introduce(CLIENTS)
    server = Coordinator.start([site.hello() for site in sites], GLMTask(ba.methods.PVI(), START, rounds=1))
    while not server.served.certify:
        server, sites = exchanged(server, sites)
    reply = sites[0].step(server.broadcast())[1]
    server.read([carried(reply)])
    for bad in (
        edited(reply, {}, {"errors": -reply.arrays["errors"]}),
        edited(reply, {"certificate.curvature_error": -1e-9}),
        edited(reply, {"certificate.reach": -1.0}),
    ):
        with pytest.raises(MessageError, match="must be >= 0"):
            server.read([bad])
