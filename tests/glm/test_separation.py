"""Separation is proven or refuted as linear programmes over all rows decide it, and no rule of thumb does as well."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.glm import separation
from bayesadmm_np.glm.diagnosis import (
    Separation,
    Undecided,
    search_separation,
    without_estimate,
)
from bayesadmm_np.glm.questions import QUESTIONS, pack, unpack
from bayesadmm_np.glm.separation import Answer, Question, answer, held
from bayesadmm_np.losses import LeastSquares, Logistic, Poisson, Softmax
from bayesadmm_np.losses.linear_model import row_factor
from bayesadmm_np.losses.pointwise import BernoulliLogit, CategoricalLogit, PoissonLog
from oracles.separable import (
    is_complete,
    is_moved,
    is_separated,
    moved_coefficients,
    random_problem,
    searched,
    walls_of,
)

ONES = np.ones(6)
ONE = np.ones(1)


def outputs_of(losses):
    return [f"c{c}" for c in range(losses[0].n_outputs)] if losses[0].n_outputs > 1 else [""]


def diagnose(losses):
    return searched(losses, [f"x{j}" for j in range(losses[0].n_features)], outputs=outputs_of(losses)).finding


def coefficient_names(losses):
    columns = [f"x{j}" for j in range(losses[0].n_features)]
    if losses[0].n_outputs == 1:
        return columns
    return [f"c{c}: {name}" for c in range(losses[0].n_outputs) for name in columns]


def disagreement(losses, found):
    """Compare a finding with the programmes: what is wrong with it, or None."""
    (walls, lengths), names = walls_of(losses), coefficient_names(losses)
    if not is_separated(walls):
        return None if found is None else f"{found} where a maximum exists"
    if not isinstance(found, Separation):
        return f"{found} for separated data"
    direction = lengths * [dict(found.direction).get(name, 0.0) for name in names]
    moved = walls @ direction
    if moved.min() < -1e-9 * np.linalg.norm(direction) or not moved.max() > 0.0:
        return "the direction is opposed, or moves nothing"
    if found.is_complete != is_complete(walls):
        return "complete and quasi-complete are mixed up"
    expected = tuple(names[j] for j in moved_coefficients(walls))
    # where columns are collinear some move without a separation
    if np.linalg.matrix_rank(walls) == walls.shape[1] and found.names != expected:
        return f"{found.names} have no estimate, and it is {expected}"
    columns = sorted({name.rpartition(": ")[2] for name in found.names})
    if found.columns == tuple(columns):
        return None
    chosen = [c * losses[0].n_features + int(name[1:]) for c in range(losses[0].n_outputs) for name in found.columns]
    if not found.is_complete or len(found.columns) != 1 or not is_separated(walls[:, chosen]):
        return f"{found.columns} are not the columns of {found.names}, nor one that separates"
    return None


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 3000), marks=pytest.mark.slow)], ids=["", "all"])
def test_findings_are_those_of_linear_programmes(seeds):
    wrong, separated = {}, 0
    for seed in seeds:
        losses = random_problem(np.random.default_rng(seed))
        found = diagnose(losses)
        separated += isinstance(found, Separation)
        if (reason := disagreement(losses, found)) is not None:
            wrong[seed] = reason
    assert not wrong
    assert 0.4 < separated / len(seeds) < 0.7  # both cases are tried


def rule_of_thumb(losses):
    """Say "separated" when a coefficient of 25 Newton steps is above 30: what software without a proof says."""
    total = ba.losses.Total(losses)
    theta = np.zeros(total.dim)
    for _ in range(25):
        theta = theta - np.linalg.pinv(total.hessian(theta)) @ total.gradient(theta)
        if np.abs(theta).max() > 30.0:
            return True
    return False


def test_a_rule_of_thumb_errs_both_ways():
    errors = set()
    for seed in range(100):
        losses = random_problem(np.random.default_rng(seed))
        if isinstance(losses[0], Logistic):
            errors.add((is_separated(walls_of(losses)[0]), rule_of_thumb(losses)))
    assert errors == {(False, False), (True, True), (False, True), (True, False)}


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        pytest.param("HALF", 1.5, id="a step above 1 taken as a proof"),
        pytest.param("STILL", 10.0, id="rows that oppose taken to stand still"),
        pytest.param("GAPS", 0, id="no direction tried"),
    ],
)
def test_broken_searches_are_found_out(monkeypatch, constant, value):
    monkeypatch.setattr(separation, constant, value)
    problems = (random_problem(np.random.default_rng(seed)) for seed in range(60))
    assert any(disagreement(losses, diagnose(losses)) for losses in problems)


@pytest.mark.parametrize(
    ("pointwise", "labels"),
    [
        (BernoulliLogit(), [0.0, 1.0]),
        (PoissonLog(), [0.0, 1.0, 7.0]),
        (CategoricalLogit(3), [0.0, 1.0, 2.0]),
        (CategoricalLogit(3, True), [0.0, 1.0, 2.0]),
    ],
    ids=["logistic", "poisson", "softmax", "multinomial"],
)
def test_walls_are_where_losses_grow(pointwise, labels, rng):
    y = np.array(labels)
    for _ in range(50):
        u = rng.integers(-2, 3, pointwise.n_outputs).astype(float)
        far = [
            pointwise.expected_derivatives(np.tile(t * u, (y.size, 1, 1)).squeeze(2 if u.size == 1 else ()), ONE, y)
            for t in (20.0, 40.0)
        ]
        grows = far[1].value - far[0].value > 1.0
        assert ((pointwise.walls(y) @ u >= 0.0).all(axis=1) != grows).all()


# ----------------------------------------------------------------------------------------------------
# Near the edge
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [0.0, 1e4])
@pytest.mark.parametrize("gap", [1e-1, 1e-4, 1e-7])
def test_a_gap_and_an_overlap_of_one_row_are_told_apart(gap, origin):
    for sign in (1.0, -1.0):
        x = origin + np.array([-2.0, -1.0, 0.0, sign * gap, 1.0, 2.0])
        found = searched([Logistic(np.column_stack([x, ONES]), [0, 0, 0, 1, 1, 1])], ["x", "one"]).finding
        assert (found is not None) == (sign > 0)


def with_ones(x, y, *args, make=Logistic, **options):
    return make(np.column_stack([x, np.ones(len(x))]), y, *args, **options)


UP, DOWN = (with_ones([1.0, 2.0], y) for y in ([0, 1], [1, 0]))
FAR, STEPS = [-1.0, 1.0, 5.0], np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
ALTERNATING = [0, 1, 0, 1, 0, 1]
WARD = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
CASES = {
    "rows of one value": ([with_ones([-2.0, -1.0, 0.0, 0.0, 1.0, 2.0], [0, 0, 0, 1, 1, 1])], {}, ("x", 1.0)),
    "no events in a category": ([with_ones(WARD, [2, 5, 1, 0, 0, 0], make=Poisson)], {}, ("x", -1.0)),
    "one class": ([with_ones([1.0, 2.0], [1, 1])], {}, ()),
    "two sites with one class each": ([with_ones([1.0, 2.0], [0, 0]), with_ones([3.0, 4.0], [1, 1])], {}, ("x",)),
    "one of two sites": ([UP], {}, ("x",)),
    "sites that are separated the other way round": ([UP, DOWN], {}, None),
    "a row of no weight": ([with_ones(FAR, [0, 1, 0], [1.0, 1.0, 0.0])], {}, ("x",)),
    "a row of hardly any weight": ([with_ones(FAR, [0, 1, 0], [1.0, 1.0, 1e-9])], {}, None),
    "a site without rows": ([with_ones(FAR, [0, 1, 0], np.zeros(3)), with_ones(FAR, [0, 1, 0])], {}, None),
    "offsets that overflow": ([with_ones(FAR, [0, 1, 0], offset=[1e300, -1e300, 800.0])], {}, None),
    "doubled columns, and zeros": (
        [Logistic(np.column_stack([STEPS, 2.0 * STEPS, 0.0 * STEPS, ONES]), ALTERNATING)],
        {},
        None,
    ),
    "zeros": ([Logistic(np.zeros((6, 1)), ALTERNATING)], {}, None),
    "a kind that has none": ([LeastSquares(np.eye(2), np.ones(2))], {}, None),
    "a prior": ([with_ones([-1.0, 1.0], [0, 1])], {"penalised": [0]}, None),
    "one class beside a prior": ([with_ones([-1.0, 1.0], [1, 1])], {"penalised": [0]}, ()),
    "one class and priors": ([with_ones([-1.0, 1.0], [1, 1])], {"penalised": [0, 1]}, None),
}
"""Losses, options, and the columns that separate, of quasi-complete ones with the direction; None without any."""


@pytest.mark.parametrize("case", CASES)
def test_separation_is_a_property_of_all_rows_together(case):
    losses, options, expected = CASES[case]
    p = losses[0].n_features
    names = ["x", *(f"z{j}" for j in range(p - 2)), "(intercept)"][-p:] if p > 1 else ["x"]
    found = searched(losses, names, intercepts=[p - 1], **options).finding
    if expected is None:
        assert found is None
    elif len(expected) == 2:
        assert found == Separation(("x",), (expected,), ("x",), is_complete=False)
        assert without_estimate([found]) == {"x"}
    else:
        assert (found.columns, found.is_complete) == (expected, True)


def test_one_row_a_site_and_more_columns_than_rows_are_separated():
    rng = np.random.default_rng(0)
    losses = [Logistic(rng.normal(size=(1, 5)), [k % 2]) for k in range(3)]
    assert searched(losses, "abcde").finding.is_complete


def test_what_rounding_hides_is_said_to_be_hidden(monkeypatch):
    monkeypatch.setattr(separation, "STEPS", 0)
    found = searched([Logistic(np.column_stack([[-1.0, 1.0], np.ones(2)]), [0, 1])], ["x", "one"]).finding
    assert found == Undecided(("x", "one"))
    assert without_estimate([found]) == {"x", "one"}


# ----------------------------------------------------------------------------------------------------
# Sites elsewhere, units, files
# ----------------------------------------------------------------------------------------------------


def test_a_maximum_is_proven_by_the_sums_of_two_exchanges():
    """The step from the second point is short; no site says how far a row of its own moves."""
    X = np.column_stack([np.random.default_rng(1).normal(size=(60, 2)), np.ones(60)])
    losses = [Logistic(X[k::2], (np.arange(30) % 2).astype(float)) for k in range(2)]
    found, exchanges = counted(losses)
    assert (found, exchanges) == (None, 2)


def overlapping(seed, n=60):
    """Rows whose own likelihood has a maximum."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, 2)), rng.integers(0, 2, n), np.ones(n)])
    return Logistic(X, (rng.random(n) < 0.5).astype(float))


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_a_site_with_a_maximum_says_nothing_of_a_direction(floor):
    """Whatever the direction, all of its rows are in the sums, and the words follow from the factor of the rows."""
    loss, rng = overlapping(3), np.random.default_rng(0)
    assert held(loss).all()
    frame, theta = np.eye(4), rng.normal(size=4)
    without = answer(loss, Question(frame, theta, np.zeros(4), 0.0))
    for direction in (*rng.normal(size=(20, 4)), *np.eye(4)):
        said = answer(loss, Question(frame, theta, direction, floor))
        for name in ("value", "gradient", "hessian", "stands"):
            np.testing.assert_array_equal(getattr(said, name), getattr(without, name))
        assert (said.moves, said.opposes) == (1, 1)
    # the twin that takes every row for loose answers by the direction, and sums the rows that stand
    told = [
        answer(loss, Question(frame, theta, np.r_[1.0, 0, 0, -at], 0.5), np.zeros((60, 1), dtype=bool))
        for at in (-1.0, 0.0, 1.0)
    ]
    assert len({(one.moves, one.opposes, one.value) for one in told}) == 3


def test_rows_that_are_held_are_those_that_no_direction_frees():
    """By a programme a wall: max a_jᵀd over all a_iᵀd >= 0, |d| <= 1, is 0 where it is held."""
    wrong = []
    for seed in range(15):
        loss = random_problem(np.random.default_rng(seed))[0]
        if (loss.weights > 0).any():
            walls, _ = walls_of([loss])
            is_wall = loss.pointwise.walls(loss.y[loss.weights > 0]).any(axis=2)
            free = [not is_held for is_held in held(loss)[is_wall]]
            wrong += [seed] * (free != [is_moved(walls, j) for j in range(len(walls))])
    assert not wrong


def test_directions_are_told_in_the_readers_units():
    x = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    scaled = np.column_stack([(x - 35.0) / 10.0, ONES])
    change = np.array([[0.1, 0.0], [-3.5, 1.0]])  # θ of x from θ of (x − 35)/10
    y = [0, 0, 0, 1, 1, 1]
    names = ["x", "(intercept)"]
    found = searched([Logistic(scaled, y)], names, intercepts=[1], change=change).finding
    way = dict(found.direction)
    margins = np.where(np.array(y) == 1, 1.0, -1.0) * (way["x"] * x + way["(intercept)"])
    assert margins.min() > 0.0
    assert found.names == ("x", "(intercept)")


def test_softmax_names_classes():
    x = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    X = np.column_stack([x, ONES])
    found = searched(
        [Softmax(X, [0, 1, 0, 1, 2, 0], 3)], ["x", "(intercept)"], outputs=["a", "b", "c"], intercepts=[1]
    ).finding
    # class c never occurs where x = 0: x of c rises against the others, and the intercept of c falls
    assert found.columns == ("x",)
    assert not found.is_complete
    assert dict(found.direction)["c: x"] > 0 > dict(found.direction)["c: (intercept)"]


def counted(losses):
    """A finding from questions and answers as messages hold them, and the exchanges that it took."""
    entry, asked = QUESTIONS["separation"], []
    known = [held(loss) for loss in losses]

    def ask(question):
        asked.append(question)
        sizes = {"c": losses[0].n_outputs, "p": losses[0].n_features, "r": question.basis.shape[1]}
        there = unpack(Question, *pack(question), entry.asked, sizes)
        answers = [pack(answer(loss, there, fixed)) for loss, fixed in zip(losses, known, strict=True)]
        return [unpack(Answer, plain, arrays, entry.said, sizes) for plain, arrays in answers]

    columns = [f"x{j}" for j in range(losses[0].n_features)]
    factors = [row_factor(loss.X[loss.weights > 0]) for loss in losses]
    return search_separation(ask, factors, columns, outputs=outputs_of(losses)).finding, len(asked)


def test_few_exchanges_between_sites_find_the_same():
    taken = {True: [], False: []}
    for seed in range(40):
        losses = random_problem(np.random.default_rng(seed))
        found, exchanges = counted(losses)
        taken[found is None].append(exchanges)
        assert found == diagnose(losses)
    assert max(taken[True]) <= 17
    assert max(taken[False]) <= 60
    assert np.median(taken[True]) <= 3
    assert np.median(taken[False]) <= 8
    assert np.quantile(taken[False], 0.9) <= 15


def test_a_bound_on_the_distance_is_a_proof_that_there_is_a_maximum():
    """Newton's run with a flat prior: separated rows get no bound, others with independent columns converge to one."""
    wrong = []
    for seed in range(20):
        losses = random_problem(np.random.default_rng(seed))
        walls, _ = walls_of(losses)
        is_free, has_maximum = bool(np.linalg.matrix_rank(walls) == walls.shape[1]), not bool(is_separated(walls))
        prior = ba.families.FullGaussian(np.zeros(losses[0].dim), 0.0)
        try:
            bound = ba.run(ba.Guarded(ba.methods.Newton()), losses, prior, rounds=40).certificate().distance
        except ba.RunError:
            wrong += [seed] * (is_free and has_maximum)
        else:
            has_bound = bound is not None and bool(np.isfinite(bound.sd_units))
            wrong += [seed] * (has_bound != has_maximum if is_free else has_bound > has_maximum)
    assert not wrong
