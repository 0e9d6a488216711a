"""Sums at several points are equations for the rows: a run of few rows gives all of them to an honest server.

The attacker knows that rows are (x, 1), and that the weights of a logistic curvature are functions of the rows. So
d(d+1)/2 + d numbers a point stand against n(d−1) unknown ones, and Levenberg and Marquardt's steps find these where
there are enough. Fewer numbers than unknown ones leave a whole surface of rows, which the budget sees to.
"""

import numpy as np
import pytest
from scipy.special import expit
from sympy import ZZ
from sympy.polys.matrices import DomainMatrix

import bayesadmm_np as ba
from bayesadmm_np.federation import DisclosureError, DisclosureRules, GLMData, GLMTask, Message, Site, step_site
from bayesadmm_np.federation.messages import inquiry_of
from bayesadmm_np.glm.questions import DerivativesQuestion
from bayesadmm_np.splitting.guarded import Guarded
from oracles.attacks import CurvesOfRows, recovered, rows_of_many_sums
from oracles.couriers import started
from oracles.overrides import ALLOWED

USUAL, LARGE = DisclosureRules(), DisclosureRules(budget=30.0)
RULES = pytest.mark.parametrize("rules", [ALLOWED, LARGE, USUAL], ids=["no rules", "a large budget", "usual rules"])
OPEN = {ALLOWED, LARGE}
"""Rules under which the attack succeeds."""


def losses(seed, n, d):
    """Three sites of the same size, normal columns and an intercept."""
    rng = np.random.default_rng([seed, n, d])
    theta = 1.05 * rng.normal(size=d) / np.sqrt(d)
    found = []
    for _ in range(3):
        X = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
        found.append(ba.losses.Logistic(X, (rng.random(n) < expit(X @ theta)).astype(float)))
    return found


def run_of(parts, rules, **asked):
    sites = [Site(name, GLMData(loss), rules=rules) for name, loss in zip("ABC", parts, strict=True)]
    return sites, started(sites, GLMTask(Guarded(ba.methods.Newton()), flat, **asked))


def flat(d):
    return ba.families.FullGaussian(np.zeros(d), 0.0)


def found(points, sums, n, starts, is_spread):
    """Rows as the attacker sees them; none where there are no two points."""
    if len(points) < 2:
        return np.zeros((0, 1))
    return rows_of_many_sums(CurvesOfRows(points, *zip(*sums, strict=True), is_spread), n, starts)


@RULES
@pytest.mark.parametrize(("n", "d"), [(10, 3), (13, 4), (19, 6)])
def test_ten_points_that_are_asked_for(n, d, rules, tmp_path):
    """Table of likelihood-ratio tests ask at as many: every row of the smallest sites that the rules admit."""
    parts = losses(0, n, d)
    (site, *_), server = run_of(parts, rules, asks=True)
    rng, points, sums = np.random.default_rng(1), [], []
    for number in range(1, 11):
        theta = rng.normal(size=d)
        inquiry_of(server.spec, number, *server.spec.pack_question(DerivativesQuestion(theta))).write(
            tmp_path / "m.npz"
        )
        site, path = step_site(tmp_path, site, tmp_path / "m.npz")
        said = Message.read(path)
        if said.header["refused"] is None:
            points.append(theta)
            sums.append((said.arrays["a/gradient"], said.arrays["a/hessian"]))
    seen = found(points, sums, n, 8 if rules in OPEN else 3, is_spread=True)
    assert recovered(parts[0].X, seen, to=1e-3) == (n if rules in OPEN else 0)
    assert (len(points) == 10) == (rules in OPEN)


def sums_in(said, asked, like):
    """The point, gradient and curvature of a message; None where it holds none."""
    if asked.kind == "inquiry":
        is_point = asked.header["name"] == "derivatives" and said.header["refused"] is None
        return (asked.arrays["q/theta"], said.arrays["a/gradient"], said.arrays["a/hessian"]) if is_point else None
    name, sign = ("sums", 1) if "sums" in said.arrays else ("site", -1)
    sent = like.from_vector(said.arrays[name])
    return (
        None
        if asked.header["ask"] == "own"
        else (asked.arrays["natural"][: len(like.linear)], sign * sent.linear, sent.parts[1])
    )


def sums_of_a_run(parts, rules, tmp_path, **asked):
    """Sums of the first site by point of an honest run, and the refusal that ended the run, if one did."""
    sites, server = run_of(parts, rules, **asked)
    for name in "ABC":
        (tmp_path / name).mkdir()
    got, refused = {}, None
    while server.outcome is None and refused is None:
        said, asks = [], server.broadcast()
        asks.write(tmp_path / "m.npz")
        for k, name in enumerate("ABC"):
            try:
                sites[k], path = step_site(tmp_path / name, sites[k], tmp_path / "m.npz")
            except DisclosureError as error:
                refused = error
                break
            said.append(Message.read(path))
        if one := said and sums_in(said[0], asks, server.spec.prior.natural):
            got[tuple(one[0])] = one[1:]
        server = server if refused else server.step(said)
    return got, refused


@RULES
@pytest.mark.parametrize("asked", [{"asks": False}, {"asks": True, "tests": "lr"}], ids=["Newton", "tests of terms"])
def test_an_honest_run(asked, rules, tmp_path):
    """Newton's rounds with the sums of the certificate at four points, or fits without a term too, at a dozen."""
    parts = losses(3, 10, 3)
    got, refused = sums_of_a_run(parts, rules, tmp_path, **asked)
    seen = found(list(got), got.values(), 10, 40 if rules in OPEN else 3, is_spread=False)
    count = recovered(parts[0].X, seen, to=1e-3)
    assert count > 5 if rules in OPEN else count == 0
    if rules is USUAL:
        assert refused.rule == "budget"


AGES = np.arange(50, 62)


def ages_in(got, scale=2.0**44):
    """How many rows have each age: the short vector of a lattice, as sums with 50 bits know counts of four bits."""
    columns, sums = [], []
    for point, (_, hessian) in got.items():
        x = np.column_stack([AGES - 55.0, np.ones(len(AGES))])
        weight = expit(x @ point) * expit(-x @ point)
        for i, j in ((0, 0), (0, 1), (1, 1)):
            columns.append(weight * x[:, i] * x[:, j])
            sums.append(hessian[i, j])
    rounded = np.rint(scale * np.column_stack([columns, -np.array(sums)])).T
    lattice = np.column_stack([np.eye(len(AGES) + 1), rounded]).astype(object)
    reduced = DomainMatrix([[ZZ(int(x)) for x in row] for row in lattice], lattice.shape, ZZ).lll().to_Matrix()
    rows = [np.array(reduced.row(k), dtype=float).ravel() for k in range(reduced.rows)]
    known = [row * row[len(AGES)] for row in rows if abs(row[len(AGES)]) == 1]
    return min(known, key=np.linalg.norm)[: len(AGES)] if known else None


def test_whole_numbers_are_found_under_the_usual_rules_unless_there_is_noise(tmp_path):
    """The age of every row at a site of eighty, from Newton's rounds; noise of a thousandth of a row hides them."""
    rng, parts = np.random.default_rng(0), []
    for _ in range(3):
        age = rng.choice(AGES, 80)
        X = np.column_stack([age - 55.0, np.ones(80)])
        parts.append(ba.losses.Logistic(X, (rng.random(80) < expit(0.3 * X[:, 0] - 0.5)).astype(float)))
    got, refused = sums_of_a_run(parts, USUAL, tmp_path, asks=False)
    counts = np.bincount(parts[0].X[:, 0].astype(int) + 5, minlength=len(AGES))
    assert refused is None
    assert np.array_equal(ages_in(got), counts)
    noisy = {point: (g, h + 1e-3 * rng.normal() * np.ones((2, 2))) for point, (g, h) in got.items()}
    assert not np.array_equal(ages_in(noisy), counts)
