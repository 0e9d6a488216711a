"""The reader of messages: what is refused, with which words, and that nothing is accepted in silence."""

import json
from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.design.terms import parse
from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTable,
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    Site,
    final_result,
)
from bayesadmm_np.federation import site as site_module
from bayesadmm_np.federation.engine import NOT_THERE, require
from bayesadmm_np.federation.glm_spec import GLMSpec
from bayesadmm_np.federation.messages import read_hello
from oracles.couriers import carried, edited, exchanged, introduce, peak_of, started, until
from oracles.problems import prior, team

M = ba.methods
CLIENTS = team("logistic", sizes=(5, 8))
START = prior("full", 3)


def begin(row=None, clients=CLIENTS, prior=START, **options):
    sites = introduce(clients)
    return started(sites, GLMTask(row or M.PVI(), prior, **options)), sites


SERVER, SITES = exchanged(*exchanged(*begin()))
"""A server that waits for replies to broadcast 3, and sites that can answer."""
BROADCAST = SERVER.broadcast()
REPLY = SITES[0].step(BROADCAST)[1]
CONVERGED, HEARD = until(*begin(tol=1e-3))
LIMITED = until(*begin(rounds=1))[0].broadcast()
KINDS = {
    "hello": SITES[0].hello(),
    "broadcast": BROADCAST,
    "reply": REPLY,
    "final": CONVERGED.broadcast(),
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
    ("status", FINAL, {"status": "NOSUCH"}, {}),
    ("$.status", FINAL, {"status": ["CONVERGED"]}, {}),
    ("status", FINAL, {"status": "STOPPED"}, {}),  # by a callback, which no run between sites has
    ("$.message", FINAL, {"message": 5}, {}),
    ("objective", FINAL, {"objective": []}, {}),
    ("objective", FINAL, {"objective": [*FINAL.header["objective"], 1.0]}, {}),
    ("$.objective[0]", FINAL, {"objective": ["1"] * len(FINAL.header["objective"])}, {}),
    ("round", FINAL, {"round": 10**9}, {}),
    ("objective", FINAL, {"round": FINAL.header["round"] + 1}, {}),
    ("$.certificate.edges", FINAL, {"certificate": {"edges": 1}}, {}),
    ("certificate", FINAL, {"certificate": None}, {}),
    ("certificate.pooled", FINAL, {"certificate.pooled": 1.0}, {}),
    ("certificate.pooled", FINAL, {"certificate.pooled": -1.0}, {}),
    ("certificate.pooled", FINAL, {"certificate.pooled": float("nan")}, {}),
    ("certificate.tol", FINAL, {"certificate.tol": 1.0}, {}),
    ("edges.gather", FINAL, {"certificate.edges.gather": -1.0}, {}),
    ("edges.gather", FINAL, {"certificate.edges.gather": float("nan")}, {}),
    ("edges.broadcast", FINAL, {"certificate.edges.broadcast": -1.0}, {}),
    ("objective", FINAL, {"objective": [*FINAL.header["objective"][:-1], float("nan")]}, {}),
    ("distance", FINAL, {"certificate.distance.sd_units": -1.0}, {}),
    ("per_coefficient", FINAL, {"certificate.distance.per_coefficient": [0.0] * 7}, {}),
    ("distance", FINAL, {"certificate.distance.per_coefficient": [0.0, -1.0, 0.0]}, {}),
    ("round must be an integer from 2 to 3", LIMITED, {"round": 4}, {}),
    ("certificate.pooled must be at most tol", LIMITED, {"status": "CONVERGED"}, {}),
    ("with an engine of glm, network", FINAL, {"spec.engine": ["glm"]}, {}),
    ("features must be", HELLO, {"features": ["a", "b", "a"]}, {}),
    ("classes must be", HELLO, {"classes": ["no", "no"]}, {}),
    ("weight must be", HELLO, {"weight": 0.0}, {}),
    ("weight must be", HELLO, {"weight": 1e308}, {}),
    ("Number out of range - at `$.weight`", HELLO, {"weight": 10**400}, {}),
    ("Number out of range - at `$.weight`", HELLO, {"weight": -(10**400)}, {}),
    ("Number out of range - at `$.value`", REPLY, {"value": 10**400}, {}),
]
"""What a refusal speaks of, a message, and what is changed in its header and its arrays."""


def test_what_does_not_belong_is_refused_and_named():
    wrong = []
    for kind in (*KINDS.values(), LIMITED):
        use(kind)  # as it was, it is read
    for named, message, header, arrays in REFUSED:
        bad = edited(message, header, arrays)
        readers = [use]
        if message is FINAL:  # which sites refuse as well
            site = HEARD[0] if bad.header["run"] == CONVERGED.spec.run else introduce(CLIENTS)[0]
            readers.append(site.step)
        for read in readers:
            try:
                read(bad)
            except MessageError as error:
                wrong += [] if named in error.reason else [(named, error.reason)]
            else:
                wrong.append((named, message.kind, header, arrays))
    assert wrong == []


def test_a_run_at_its_limit_ends_with_what_it_knows():
    result = final_result(LIMITED)
    assert (result.status, len(result.objective)) == (ba.Status.ROUND_LIMIT, 2)
    # what is not converged may have no certificate
    assert np.isfinite(final_result(edited(LIMITED, {"certificate": None})).objective).all()


def test_a_conjugate_prior_that_is_none_is_refused():
    clients = [ba.losses.LinearInStatistics(ba.families.Natural(np.ones(2), -np.ones(2)))] * 2
    server, sites = begin(clients=clients, prior=ba.families.Gamma([1.0, 2.0], 1.0))
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
    with pytest.raises(MessageError, match=r"weights must be that of this site, 6\.0, got 5"):
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
    ("has ended", lambda: CONVERGED.step([REPLY])),
    ("prior", lambda: begin(prior=prior("full", 4))),
    ("prior", lambda: begin(prior=type("Mine", (ba.families.FullGaussian,), {})(np.zeros(3), 1.0))),
    ("Gaussian", lambda: exchanged(*begin(prior=ba.families.Gamma([1.0] * 3, 1.0)))),
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


# ----------------------------------------------------------------------------------------------------
# Bytes
# ----------------------------------------------------------------------------------------------------


def test_rounding_errors_below_zero_are_refused():
    """They would make the bound of a certificate smaller; the genuine reply is taken in."""
    server, sites = until(*begin(rounds=1), lambda server: server.served.certify)
    reply = sites[0].step(server.broadcast())[1]
    server.read([carried(reply)])
    for header, arrays in (
        ({}, {"errors": -reply.arrays["errors"]}),
        ({"certificate.curvature_error": -1e-9}, {}),
        ({"certificate.reach": -1.0}, {}),
    ):
        with pytest.raises(MessageError, match="must be >= 0"):
            server.read([edited(reply, header, arrays)])


# ----------------------------------------------------------------------------------------------------
# Hellos: refused before anything of their size is made
# ----------------------------------------------------------------------------------------------------


def of_size(dim, task, n_features=None):
    features = [f"f{j}" for j in range(n_features or dim)]
    return Coordinator.start([edited(KINDS["hello"], {"dim": dim, "features": features})], task)


def test_as_many_names_as_parameters():
    with pytest.raises(MessageError, match="dim must be"):
        of_size(3, GLMTask(M.PVI(), START), n_features=2)


def test_a_hello_of_many_parameters_is_refused_before_a_prior_is_made():
    dims = []

    def full(d):
        dims.append(d)
        return ba.families.FullGaussian(np.zeros(d), 1.0)

    def refused():
        with pytest.raises(MessageError, match=r"dim must be small enough for .* site s0\), got 30000"):
            of_size(30000, GLMTask(M.PVI(), full))

    assert peak_of(refused) < 1 << 26
    assert dims == [2]
    # the rounds that acceleration remembers count: eight of the largest that fits without
    with pytest.raises(MessageError, match="dim must be small enough"):
        of_size(6000, GLMTask(ba.Accelerated(M.PVI(0.5), 8), full))
    assert dims == [2, 2]
    # as many parameters of a diagonal family have room
    assert of_size(30000, GLMTask(M.PVI(), lambda d: ba.families.DiagonalGaussian(np.zeros(d), 1.0))).number == 1


def test_a_prior_that_cannot_be_made_of_two_parameters_is_asked_for_all():
    def three(d):
        if d != 3:
            raise IndexError("three parameters")
        return START

    assert begin(prior=three)[0].number == 1


LONG = ["(a+b+c)**30", f"a**{'9' * 5000}", "(((a+b)**9+c)**9+b)**9", "a*b*c*d*e*f*g*h*i*j*k*l*m*n"]


def test_a_formula_of_too_many_products_is_refused_before_they_are_formed():
    """A hello may say any formula: of a few bytes some would take minutes."""
    assert len(parse("y ~ (a+b+c)**3").terms) == 8
    for predictors in LONG:
        with pytest.raises(ValueError, match="must stand for at most 2000 products of columns"):
            parse(f"y ~ {predictors}")


def test_a_formula_that_cannot_be_read_is_a_refusal_of_its_hello_alone():
    """Over a transport whatever else is raised would end the server; the twin is the hello as it was made."""
    hello = Site("A", GLMTable({"y": [0, 1, 1, 0], "a": [1.0, 2.0, 4.0, 3.0]}, "y ~ a")).hello()
    assert read_hello(hello).table is not None
    table = hello.header["table"]
    for formula in ("y ~ (", "y ~ (a + b)**90 * c**80", "y ~ open('x')", "y", "~", "y ~ \ud800"):
        told = {**hello.header, "table": {**table, "described": {**table["described"], "formula": formula}}}
        with pytest.raises(MessageError, match="formula"):
            read_hello(Message("hello", told, hello.arrays, "hello of A"))


# ----------------------------------------------------------------------------------------------------
# First broadcasts: numbers that no rows can be fitted with, and sizes that are not the site's own
# ----------------------------------------------------------------------------------------------------


class Mine(ba.losses.Logistic):
    """A user's own loss, which raises what it is told to."""

    error: type[Exception] = ValueError

    def expect(self, q, rule):
        raise self.error("of its own")


def test_a_mistake_of_the_sites_own_code_is_not_blamed_on_the_message():
    """The twin: arithmetic that fails may be due to the numbers of a message, and is refused as such."""
    site = Site("A", GLMData(Mine(np.eye(3), np.ones(3))))
    message = started([site], GLMTask(M.PVI(), START)).broadcast()
    for kind in (ZeroDivisionError, ValueError, np.linalg.LinAlgError):
        Mine.error = kind
        with pytest.raises(MessageError, match=r"a q_g .* can be fitted, and it is not: of its own"):
            site.step(message)
    Mine.error = IndexError
    with pytest.raises(IndexError, match="of its own"):
        site.step(message)


def test_a_prior_of_another_size_is_refused_with_both_sizes():
    message = of_size(2, GLMTask(M.PVI(), prior("full", 2))).broadcast()
    with pytest.raises(MessageError, match="prior must be that of this site, \\(3,\\), got \\(2,\\)"):
        introduce(CLIENTS)[0].step(edited(message, {"spec.features": ["x1", "x2", "x3"]}))


def test_a_site_compares_the_run_before_it_reads_the_spec(monkeypatch):
    server, sites = begin()
    after, _ = sites[0].step(server.broadcast())
    other, _ = begin(tol=1e-3)
    read = []
    monkeypatch.setattr(site_module, "read_spec", lambda *arguments: read.append(1))
    with pytest.raises(MessageError, match=r"run must be .* which this site takes part in"):
        after.step(other.broadcast())
    forged = replace(server.broadcast(), header={**server.broadcast().header, "run": "0" * 16})
    with pytest.raises(MessageError, match="run must be the digest of its spec"):
        sites[0].step(forged)
    after.step(server.broadcast())  # a spec that is known is not read again
    assert not read


def test_a_sites_identity_is_kept_with_the_run():
    site = Site("A", GLMData(CLIENTS[0]), key=SigningKey(bytes(32)))
    again = Coordinator.restore(carried(started([site], GLMTask(M.PVI(), START)).save()))
    assert again.introduction("A")["identity"] == site.key.identity
    assert begin()[0].introduction("s0")["identity"] is None


def test_what_an_engine_has_not_is_refused():
    for engine, feature in NOT_THERE:
        with pytest.raises(ValueError, match=feature):
            require(engine, feature)
    require("glm", "acceleration")  # what is there is not refused
