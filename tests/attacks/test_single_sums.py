"""Attacks on rows from honest messages: under the usual rules of a site no row is recovered; without rules, all are.

The attacker is the server, or whoever reads its folder. What it computes is in oracles/attacks.py.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.design.bases import quadrature
from bayesadmm_np.families.coordinates import Natural
from bayesadmm_np.federation import (
    DisclosureError,
    DisclosureRules,
    GLMData,
    GLMTable,
    GLMTask,
    Message,
    MessageError,
    Site,
    glm_messages,
    step_site,
)
from bayesadmm_np.federation.folders import sent
from bayesadmm_np.federation.ledger import Ledger
from bayesadmm_np.federation.messages import inquiry_of
from bayesadmm_np.glm import questions, site_statistics
from bayesadmm_np.glm.questions import (
    DerivativesQuestion,
    DesignQuestion,
    OwnFitQuestion,
    StatisticsQuestion,
    SumsQuestion,
)
from bayesadmm_np.glm.separation import Question
from bayesadmm_np.splitting.guarded import Guarded
from oracles.attacks import (
    far_point,
    largest_value,
    recovered,
    row_of_a_single_one,
    rows_of_two_curvatures,
    two_values,
    wide_but_at,
)
from oracles.couriers import edited, started, until
from oracles.overrides import ALLOWED

USUAL = DisclosureRules()
OVER_BUDGET, AT_THE_POINT = ({"codes": codes, "columns": []} for codes in (["budget"], ["minimum_count", "point"]))
RULES = pytest.mark.parametrize("rules", [USUAL, ALLOWED], ids=["usual rules", "no rules"])
D = 14


def logistic(seed, n, d=D):
    rng = np.random.default_rng([seed, n])
    X = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
    return X, (rng.random(n) < 0.5).astype(float)


def likelihood(asks=True):
    return GLMTask(
        Guarded(ba.methods.Newton()),
        lambda d: ba.families.FullGaussian(np.zeros(d), 0.0),
        asks=asks,
    )


def run_of(data, task, rules=None, names="ABC"):
    """A run of sites with the same rows."""
    return started([Site(name, data, rules=rules) for name in names], task)


def answered(folder, site, message):
    """The site after its step, and the message that left its folder."""
    message.write(folder / "message.npz")
    site, path = step_site(folder, site, folder / "message.npz")
    return site, Message.read(path)


class Curious:
    """A server that asks one site what it likes; the site's folder keeps what left."""

    def __init__(self, tmp_path, rules, loss, features=()):
        self.folder, self.data = tmp_path, GLMData(loss, features)
        self.site = Site("A", self.data, rules=rules)
        self.server = run_of(self.data, likelihood())
        self.number = 0

    def ask(self, question):
        """Return the fields of an honest answer; None where the site refuses."""
        self.number += 1
        spec = self.server.spec
        self.site, said = answered(self.folder, self.site, inquiry_of(spec, self.number, *spec.pack_question(question)))
        self.refused = said.header["refused"]
        arrays = {name.removeprefix("a/"): value for name, value in said.arrays.items()}
        return None if self.refused else {**said.header["content"], **arrays}

    def hessians(self, points):
        """Return the curvatures that came."""
        answers = [self.ask(DerivativesQuestion(point)) for point in points]
        return [one["hessian"] for one in answers if one is not None]


def certified(server, **arrays):
    """The first broadcast, which asks for the sums of a certificate too; with other arrays it lies about q_g."""
    return edited(server.broadcast(), {"certify": True}, arrays)


def sums_of(server, said):
    """E_q[∇²ℓ] of a reply."""
    return server.spec.prior.natural.from_vector(said.arrays["sums"]).parts[1]


@RULES
@pytest.mark.parametrize("n", [1, 5, 14])
def test_the_rows_of_a_site_of_few_rows(n, rules, tmp_path):
    """An honest run of maximum likelihood with two other sites of many rows; the attacker has the replies."""
    X, y = logistic(0, n)
    losses = {"A": ba.losses.Logistic(X, y), "B": ba.losses.Logistic(*logistic(1, 200))}
    losses["C"] = ba.losses.Logistic(*logistic(2, 200))
    sites = {name: Site(name, GLMData(loss), rules=rules) for name, loss in losses.items()}
    for name in sites:
        (tmp_path / name).mkdir()
    server, replies = started(sites.values(), likelihood(asks=False)), []
    try:
        for _ in range(3):
            said = []
            for name in sites:
                sites[name], message = answered(tmp_path / name, sites[name], server.broadcast())
                said.append(message)
            replies.append(said[0])
            server = server.step(said)
    except DisclosureError as error:
        refused, seen = error, np.zeros((0, D))
    else:
        refused, like = None, server.spec.prior.natural
        curvatures = [like.from_vector(one.arrays["site"]).parts[1] for one in replies]
        seen = rows_of_two_curvatures(curvatures[0], curvatures[2])
    assert recovered(X, seen) == (n if rules is ALLOWED else 0)
    if rules is USUAL:
        assert (refused.site, refused.rule) == ("A", "minimum_rows" if n < 10 else "most_parameters")
        assert not (tmp_path / "A" / "reply-A-0001.npz").exists()
        assert all(one.refused for one in Ledger.read(tmp_path / "A").entries)


@RULES
def test_the_one_patient_of_a_level(rules, tmp_path):
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(60, 10, 40), np.arange(40) == 7, rng.normal(size=40)])
    y = X @ [0.1, 2.0, 1.0] + rng.normal(size=40)
    attacker = Curious(tmp_path, rules, ba.losses.LeastSquares(X, y), ("age", "ward[T.icu]", "dose"))
    try:
        # ridge: what the site adds to λ is XᵀX and Xᵀy
        server = run_of(attacker.data, GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(3), 1.0)))
        _, said = answered(tmp_path, Site("A", attacker.data, rules=rules), server.broadcast())
        prior = server.spec.prior.natural
        own = prior.from_vector(said.arrays["natural"]) - prior
        family = server.spec.prior.with_natural(own + prior)
        seen = row_of_a_single_one(family.precision - np.eye(3), own.linear, 1)
    except DisclosureError as error:
        refused, seen = error, np.zeros((0, 4))
    assert recovered(np.append(X[7], y[7]), seen) == (rules is ALLOWED)
    if rules is USUAL:
        assert (refused.rule, refused.column, refused.level) == ("minimum_count", "ward[T.icu]", "")
        assert attacker.ask(DesignQuestion()) is None


@RULES
def test_two_rows_are_their_mean_and_spread(rules, tmp_path):
    table = {"died": [0, 1], "age": [41.0, 67.0], "dose": [0.3, 1.9]}
    data = GLMTable(table, "died ~ scale(age) + dose")
    site, seen, refused = Site("A", data, rules=rules), np.zeros((0, 1)), None
    try:
        units = sent(site, tmp_path, site.hello()).header["table"]["described"]["moments"]["age"]
        seen = two_values(units["mean"], units["squares"])
    except DisclosureError as error:
        refused = error
    assert recovered(np.array([[41.0], [67.0]]), seen) == (2 if rules is ALLOWED else 0)
    if rules is USUAL:
        assert (refused.rule, refused.got, refused.limit) == ("minimum_rows", 2, 10)


@RULES
def test_few_values_are_their_recurrence(rules, tmp_path):
    """A recurrence of degree 3 tells a site's three values and the rows of each, of which one is alone."""
    table = {"died": np.arange(40) % 2, "stage": np.repeat([1.0, 2.0, 4.0], [19, 20, 1])}
    site, seen, refused = Site("A", GLMTable(table, "died ~ poly(stage, 3)"), rules=rules), np.zeros((0, 2)), None
    try:
        units = sent(site, tmp_path, site.hello()).header["table"]["described"]["moments"]["stage"]
        points, shares = quadrature(units["alpha"], units["beta"])
        seen = np.column_stack([points, 40 * shares])
    except DisclosureError as error:
        refused = error
    assert recovered(np.array([[4.0, 1.0]]), seen) == (rules is ALLOWED)
    if rules is USUAL:
        assert (refused.rule, refused.got, refused.limit) == ("minimum_count", 1, 3)


def ages(n=20):
    X, y = logistic(4, n, 2)
    return X, y, ba.losses.Logistic(X, y)


@RULES
@pytest.mark.parametrize("slope", [30.0, 300.0])
def test_the_largest_value_at_a_far_point(slope, rules, tmp_path):
    """One answer at a point beyond all rows, where the row with the largest age outweighs the rest."""
    X, _, loss = ages()
    attacker = Curious(tmp_path, rules, loss)
    seen = [[largest_value(one), 1.0] for one in attacker.hessians([far_point(4.0, slope)])]
    assert recovered(X[np.argmax(X[:, 0])], np.reshape(seen, (-1, 2)), to=1e-3) == (rules is ALLOWED)
    if rules is USUAL:
        assert attacker.refused == AT_THE_POINT


@RULES
def test_a_copy_that_nobody_asked_for_puts_the_cavity_at_a_far_point(rules, tmp_path):
    """q_g is the prior, and harmless: λ_k less the cavity is E[∇²ℓ_k] about a point beyond all rows but one."""
    X, _, loss = ages(30)
    task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(2), 0.01))
    server, site = run_of(GLMData(loss), task), Site("A", GLMData(loss), rules=rules)
    prior, wide = server.spec.prior.natural, 1e9 * np.eye(2)
    point = far_point(X[:, 0].max() - 0.002, 300.0)  # one of many that an attacker tries
    cavity = Natural(wide @ point, wide)
    lie = {"natural": prior.to_vector(), "site": (prior - cavity).to_vector()}
    header = {"run": server.spec.run, "site": "A", "counted": 1, "past": 0}
    known = site.adopt(server.spec, Message("copy", header, lie))
    lying = edited(server.broadcast(), {"round": 2, "counted": [1, 1, 1]}, {"natural": prior.to_vector()})
    after, said = known.step(lying)
    if rules is USUAL:
        with pytest.raises(DisclosureError) as raised:
            sent(after, tmp_path, said)
        assert (raised.value.rule, raised.value.column) == ("minimum_count", "the point that was asked for")
        return
    curvature = prior.from_vector(said.arrays["natural"]).parts[1] - wide
    seen = curvature[0, 1] / curvature[1, 1]
    assert recovered(X[np.argmax(X[:, 0])], [[seen, 1.0]], to=1e-2)


@RULES
def test_a_broadcast_at_a_far_point(rules, tmp_path):
    """The same by a lie about q_g in a round."""
    X, _, loss = ages()
    data, seen, refused = GLMData(loss), np.zeros((0, 2)), None
    server = run_of(data, likelihood(asks=False))
    lie = np.concatenate([far_point(4.0, 100.0), [1.0, 0.0, 1.0]])
    try:
        _, said = answered(tmp_path, Site("A", data, rules=rules), certified(server, natural=lie))
        seen = np.array([[largest_value(sums_of(server, said)), 1.0]])
    except DisclosureError as error:
        refused = error
    assert recovered(X[np.argmax(X[:, 0])], seen, to=1e-3) == (rules is ALLOWED)
    if rules is USUAL:
        assert (refused.rule, refused.column) == ("minimum_count", "the point that was asked for")


def age_83(n=60, d=8):
    rng = np.random.default_rng(0)
    age = 30.0 + rng.permutation(n)
    X = np.column_stack([age, rng.normal(size=(n, d - 2)), np.ones(n)])
    return X, int(np.flatnonzero(age == 83.0)[0]), rng


def asked_for_sums(tmp_path, rules, loss, prior):
    """Return E_q[∇²ℓ] of the prior in round 1 as a server asks for it, or the refusal."""
    data = GLMData(loss)
    server = run_of(data, GLMTask(ba.methods.PVI(), prior))
    try:
        _, said = answered(tmp_path, Site("A", data, rules=rules), certified(server))
    except DisclosureError as error:
        return None, error
    return sums_of(server, said), None


@RULES
def test_a_broadcast_that_is_wide_for_all_rows_but_one(rules, tmp_path):
    """At q_g's mean all rows weigh the same; its covariance makes those vanish that are not of age 83."""
    X, who, rng = age_83()
    loss = ba.losses.Logistic(X, (rng.random(len(X)) < 0.5).astype(float))
    target = np.r_[83.0, np.zeros(X.shape[1] - 2), 1.0]
    prior = ba.families.FullGaussian(np.zeros(X.shape[1]), wide_but_at(target, 1e4))
    found, refused = asked_for_sums(tmp_path, rules, loss, prior)
    seen = np.zeros((0, X.shape[1])) if found is None else [found[-1] / found[-1, -1]]
    assert recovered(X[who], seen, to=2e-2) == (rules is ALLOWED)
    if rules is USUAL:
        assert (refused.rule, refused.column) == ("minimum_count", "the point that was asked for")
        advised = {name.replace("-", "_"): int(value) for name, value in re.findall(r"--(\S+) (\d+)", refused.remedy)}
        assert asked_for_sums(tmp_path, DisclosureRules(**advised), loss, prior)[1] is None


@RULES
def test_a_broadcast_under_which_the_largest_row_outweighs(rules, tmp_path):
    """Poisson: E_q[ℓ''] grows as exp of half the predictor's variance, here .33² age² / 2."""
    X, _, rng = age_83()
    loss = ba.losses.Poisson(X, rng.poisson(2.0, len(X)).astype(float))
    prior = ba.families.FullGaussian(np.zeros(8), np.diag(np.r_[1 / 0.11, np.full(6, 1e6), 1.0]))
    found, _ = asked_for_sums(tmp_path, rules, loss, prior)
    seen = np.zeros((0, 8)) if found is None else [found[-1] / found[-1, -1]]
    assert recovered(X[np.argmax(X[:, 0])], seen, to=1e-2) == (rules is ALLOWED)


@pytest.mark.parametrize("sd", [0.1, 100.0])
def test_an_honest_prior_is_no_refusal(sd, tmp_path):
    """Standardised columns, m = 0, moderate and wide priors."""
    X, y = logistic(6, 60, 8)
    prior = ba.families.FullGaussian(np.zeros(8), 1 / sd**2)
    assert asked_for_sums(tmp_path, USUAL, ba.losses.Logistic(X, y), prior)[1] is None


# ----------------------------------------------------------------------------------------------------
# Questions of separation that a server writes by itself
# ----------------------------------------------------------------------------------------------------


def deaths(n=21):
    """Rows of one class: a direction that no row opposes is news, and the site compares its rows with it."""
    X, _, _ = ages(n)
    return X, ba.losses.Logistic(X, np.ones(n))


def way(at):
    """A direction that the rows with x > `at` follow, and the others oppose."""
    return Question(np.eye(2), np.zeros(2), np.array([1.0, -at]), 0.0)


def smallest_value(attacker, questions=60, sides=lambda found: found["opposes"]):
    """Bisect for the smallest x by whether some row opposes."""
    low, high = -8.0, 8.0
    for _ in range(questions):
        middle = (low + high) / 2
        found = attacker.ask(way(middle))
        if found is None:
            break
        low, high = (low, middle) if sides(found) else (middle, high)
    return (low + high) / 2


@pytest.mark.parametrize("rules", [USUAL, DisclosureRules(budget=30.0)], ids=["usual rules", "a large budget"])
def test_the_outermost_row_by_comparisons(rules, tmp_path):
    """An answer costs few numbers and halves the interval; the usual budget of few rows ends before."""
    X, loss = deaths()
    attacker = Curious(tmp_path, rules, loss)
    seen = smallest_value(attacker)
    assert recovered([X[:, 0].min(), 1.0], [[seen, 1.0]]) == (rules is not USUAL)
    if rules is USUAL:  # and another run on the same rows, in the same folder, goes on where this one ended
        assert attacker.refused == OVER_BUDGET
        again = Curious(tmp_path, rules, loss)
        again.server, again.number = run_of(again.data, likelihood(), rules), attacker.number
        assert again.ask(way(0.123)) is None
        assert again.refused == attacker.refused


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_a_site_with_a_maximum_of_its_own_tells_no_direction(floor, tmp_path):
    """Of both classes, mixed: whatever the server asks, one answer. Not even without rules a comparison is told."""
    X, _, loss = ages(60)
    attacker = Curious(tmp_path, ALLOWED, loss)
    questions = [replace(way(at), floor=floor) for at in np.linspace(-5, 5, 12)]
    answers = [attacker.ask(question) for question in questions]
    for answer in answers:
        for name, value in answer.items():
            np.testing.assert_array_equal(value, answers[0][name])
    assert recovered([X[:, 0].min(), 1.0], [[smallest_value(attacker, questions=25), 1.0]], to=1e-3) == 0
    # and its usual rules let it answer them all, as an honest search needs
    (tmp_path / "usual").mkdir()
    usual = Curious(tmp_path / "usual", DisclosureRules(budget=1e9), loss)
    assert all(usual.ask(question) is not None for question in questions)


def test_a_basis_is_no_wider_than_the_design(tmp_path):
    """Else a message of a megabyte asks for a Hessian of gigabytes."""
    attacker = Curious(tmp_path, USUAL, deaths()[1])
    with pytest.raises(MessageError, match="basis"):
        attacker.ask(Question(np.eye(2, 3), np.zeros(3), np.zeros(3), 0.0))


@RULES
def test_the_sums_of_a_subset_of_one(rules, tmp_path):
    """The question after a separation leaves out rows that a direction moves; all but the middle one here."""
    X, loss = deaths()
    middle = np.sort(X[:, 0])[10]
    attacker = Curious(tmp_path, rules, loss)
    direction = far_point(middle, 1.0)
    found = attacker.ask(Question(np.eye(2), np.zeros(2), direction, floor=1e-6))
    seen = np.zeros((0, 2)) if found is None else [found["hessian"][1] / found["hessian"][1, 1]]
    assert recovered([middle, 1.0], seen) == (rules is ALLOWED)


def test_two_subsets_that_differ_by_a_row(tmp_path):
    """Each of ten rows or eleven; their difference is one. The usual rules do not compare answers: docs say so."""
    X, loss = deaths()
    x = np.sort(X[:, 0])
    attacker = Curious(tmp_path, USUAL, loss)
    found = []
    for last in (9, 10):
        low, high = x[0] - 0.1, (x[last] + x[last + 1]) / 2
        found.append(attacker.ask(replace(way((low + high) / 2), floor=(high - low) / 2)))
    line = (found[1]["hessian"] - found[0]["hessian"])[1]
    assert recovered([x[10], 1.0], [line / line[1]]) == 1


@pytest.mark.parametrize("weights", ["frequency", "analytic"])
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_bread_that_one_row_alone_fills(is_checked, weights, tmp_path, monkeypatch):
    """HC3 divides by (1 − h)², and who asks chooses h: near 1 the row of the largest leverage is all there is.

    A bread that is no inverse of a Hessian with these rows in it is refused, whatever the rules; the twin takes any.
    """
    X, _, loss = ages()
    attacker = Curious(tmp_path, USUAL if is_checked else ALLOWED, loss)
    if not is_checked:
        monkeypatch.setattr(site_statistics, "require_bread", lambda rows, bread: None)
    middle = X[np.argmax((X**2).sum(axis=1))]
    bread = np.eye(2) * (1 - 1e-9) / (0.25 * middle @ middle)
    found = attacker.ask(StatisticsQuestion(np.zeros(2), np.zeros(2), bread, ("HC3",), weights))
    seen = np.zeros((0, 2)) if found is None else [found["meats/HC3"][1] / found["meats/HC3"][1, 1]]
    assert recovered(middle, seen) == (not is_checked)


@pytest.mark.parametrize("weights", ["frequency", "analytic"])
def test_an_honest_bread_is_taken(weights, tmp_path):
    """Of the site alone, and of it with nine others like it; one that is larger by a hundredth is not."""
    X, _, loss = ages(60)
    own = np.linalg.inv(0.25 * X.T @ X)
    for k, bread in enumerate((own, own / 10, own * 1.01)):
        (tmp_path / str(k)).mkdir()
        attacker = Curious(tmp_path / str(k), USUAL, loss)
        found = attacker.ask(StatisticsQuestion(np.zeros(2), np.zeros(2), bread, ("HC0", "HC2", "HC3"), weights))
        assert (found is None) == (k == 2)


@RULES
def test_the_one_patient_of_a_level_from_an_own_fit(rules, tmp_path):
    """Least squares alone: the information is XᵀX, whose line of the level is the row, and fits this row's y."""
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(60, 10, 40), np.arange(40) == 7, rng.normal(size=40), np.ones(40)])
    y = X @ [0.1, 2.0, 1.0, -1.0] + rng.normal(size=40)
    names = ("age", "ward[T.icu]", "dose", "intercept")
    attacker = Curious(tmp_path, rules, ba.losses.LeastSquares(X, y), names)
    found = attacker.ask(OwnFitQuestion(np.ones(4)))
    seen = np.zeros((0, 5))
    if found is not None:
        row = found["root"].T @ found["root"][:, 1]
        seen = np.append(row, row @ found["mean"])
    assert recovered(np.append(X[7], y[7]), seen) == (rules is ALLOWED)
    if rules is USUAL:
        assert attacker.refused["columns"] == ["ward[T.icu]"]


@RULES
def test_an_own_fit_that_rests_on_two_rows(rules, tmp_path):
    """Rows that two of them, next to each other, keep from being separated: the information is theirs alone."""
    x = np.concatenate([np.linspace(-3.0, -0.5, 20), [0.1, 0.101], np.linspace(0.7, 3.0, 20)])
    y = (x > 0).astype(float)
    y[20:22] = 1.0, 0.0
    attacker = Curious(tmp_path, rules, ba.losses.Logistic(np.column_stack([x, np.ones(42)]), y))
    found = attacker.ask(OwnFitQuestion(np.ones(2)))
    seen = np.zeros((0, 1)) if found is None else [[largest_value(found["root"].T @ found["root"])]]
    assert recovered(x[:, None], seen, to=1e-2) == (2 if rules is ALLOWED else 0)
    if rules is USUAL:
        assert attacker.refused == AT_THE_POINT


def test_a_bound_with_a_reach_that_is_rounded_up_holds(monkeypatch):
    """The distance to the pooled fit is below the bound, which is at least the one of the exact reach."""
    X, y = logistic(8, 90, 4)
    losses = [ba.losses.Logistic(X[k::3], y[k::3]) for k in range(3)]
    start = ba.families.FullGaussian(np.zeros(4), 1.0)
    best = ba.solve_pooled(losses, start, tol=1e-13).posterior
    bounds = []
    for _ in range(2):
        sites = [Site(name, GLMData(loss)) for name, loss in zip("ABC", losses, strict=True)]
        server = started(sites, GLMTask(ba.methods.PVI(1 / 3), start, rounds=18, tol=1e-12))
        server, _ = until(server, sites)
        bound = server.outcome.certificate.distance
        assert bound.rigorous
        assert np.sqrt(2.0 * best.mean_distance(server.state.q_g)) <= bound.mahalanobis
        bounds.append(bound.mahalanobis)
        monkeypatch.setattr(glm_messages, "up_to_a_power_of_two", lambda value: value)
    assert bounds[1] <= bounds[0] < 2 * bounds[1]


@pytest.mark.parametrize("is_rounded", [True, False])
def test_the_gradient_of_the_reach_of_certificates(is_rounded, monkeypatch):
    """Largest xᵀCx is linear in C where one row has it: differences are that row. Sites send powers of two instead.

    The broken twin sends the reach itself.
    """
    if not is_rounded:
        monkeypatch.setattr(glm_messages, "up_to_a_power_of_two", lambda value: value)
    X, y = logistic(7, 60, 4)
    data = GLMData(ba.losses.Logistic(X, y))
    server, reaches, step = run_of(data, likelihood(asks=False)), [], 1e-2
    for j in range(4):  # C = I, and with a covariance of a column and the ones
        wide = np.eye(4)
        wide[j - 1, 3] = wide[3, j - 1] = step / 2 if j else 0.0
        wide[3, 3] = 1.0
        lie = Natural(np.zeros(4), np.linalg.inv(wide)).to_vector()
        reaches.append(Site("A", data).step(certified(server, natural=lie))[1].header["certificate"]["reach"])
    squares = np.square(reaches)
    seen = np.append((squares[1:] - squares[0]) / step, 1.0)
    assert (np.log2(reaches) % 1 == 0).all() == is_rounded
    assert np.sqrt((X**2).sum(axis=1).max()) <= reaches[0] * (1 + 1e-9)
    assert recovered(X, seen) == (not is_rounded)


@pytest.mark.parametrize("is_rounded", [True, False])
def test_the_gradient_of_the_reach_of_a_question(is_rounded, monkeypatch, tmp_path):
    """A question may have any precision; the answer has a power of two, and the broken twin the reach itself."""
    if not is_rounded:
        monkeypatch.setattr(questions, "up_to_a_power_of_two", lambda value: value)
    X, y = logistic(7, 60, 4)
    reaches, step = [], 1e-2
    for j in range(4):  # C = I, and with a covariance of a column and the ones
        wide = np.eye(4)
        wide[j - 1, 3] = wide[3, j - 1] = step / 2 if j else 0.0
        wide[3, 3] = 1.0
        (tmp_path / str(j)).mkdir()
        attacker = Curious(tmp_path / str(j), ALLOWED, ba.losses.Logistic(X, y))
        reaches.append(float(attacker.ask(SumsQuestion(np.zeros(4), np.linalg.inv(wide)))["reach"]))
    seen = np.append((np.square(reaches[1:]) - np.square(reaches[0])) / step, 1.0)
    assert (np.log2(reaches) % 1 == 0).all() == is_rounded
    assert recovered(X, seen) == (not is_rounded)
