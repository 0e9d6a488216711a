"""Two analyses of one site whose sums are subtracted: what differs by fewer rows than a level may have is refused.

The attacker keeps the first reply of two honest ridge regressions, which is XᵀX and Xᵀy, and subtracts. A pair is told
by what the two runs have: a table, a formula, and options. `apart` is by construction how many rows their sums differ
by, and the claim of each pair is: the attacker gets the sum of these rows and is refused under the usual rules if they
are 1 to `minimum_count` − 1; else nothing is refused.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    Coordinator,
    DisclosureError,
    DisclosureRules,
    GLMData,
    GLMTable,
    GLMTask,
    Message,
    Site,
    step_site,
)
from bayesadmm_np.federation.differencing import ROWS
from bayesadmm_np.federation.disclosure import EARLIER
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.folders import sent
from oracles.overrides import ALLOWED

USUAL = DisclosureRules()
N = 60


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "y": rng.normal(size=n),
        "z": rng.normal(size=n),
        "age": np.sort(rng.normal(60.0, 10.0, n)),
        "dose": rng.normal(size=n),
        "ward": np.array(["a", "b", "c", "a", "b"] * (n // 5), dtype=object),
        "w": np.ones(n),
    }


def but(rows, **columns):
    return {**rows, **columns}


def without(rows, places):
    return {name: np.delete(column, places) for name, column in rows.items()}


def with_cells(rows, name, places, value):
    column = np.array(rows[name], dtype=object if isinstance(value, str) else float)
    column[places] = value
    return {**rows, name: column}


@dataclass
class Run:
    """What one of the two analyses has."""

    rows: dict
    formula: str = "y ~ age + dose"
    weights: str | None = None
    choices: dict = field(default_factory=dict)


@dataclass
class Pair:
    """Two analyses, the columns whose sums are subtracted (first, second), and the rows that they differ by."""

    first: Run
    second: Run
    apart: int
    columns: tuple = (None, None)
    where: str = ""


def analysed(folder, run, rules, door):
    """XᵀX and Xᵀy of the site as its first reply has them, by names of columns, those of the target last."""
    folder.mkdir(exist_ok=True)
    (folder / "state.npz").unlink(missing_ok=True)  # another run in the same folder
    label = f"run{len(list(folder.glob('run*')))}"
    settings = {"kind": "linear", "noise_variance": 1.0, "weights": run.weights, "minimum_count": 3}
    site = Site("A", GLMTable(run.rows, run.formula, **settings), rules=rules)
    hello = sent(site, folder, site.hello())
    others = [Site(name, GLMTable(table(100, 9), run.formula, **settings)).hello() for name in "BC"]
    task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0), choices=run.choices)
    server = Coordinator.start([hello, *others], task)
    broadcast = server.broadcast()
    if door == "files":
        broadcast.write(folder / "broadcast.npz")
        said = Message.read(step_site(folder, site, folder / "broadcast.npz")[1])
    else:
        found = answer(Request(label, broadcast.to_bytes()), folder, lambda spec: (site, hello))
        if found.message is None:
            assert found.said.codes[:2] == ("minimum_count", "earlier")
            raise DisclosureError("A", "minimum_count", 0, 3, EARLIER)
        said = Message.from_bytes(found.message)
    prior = server.spec.prior.natural
    own = prior.from_vector(said.arrays["natural"]) - prior
    X = server.spec.prior.with_natural(own + prior).precision - np.eye(len(server.spec.features))
    names = [*server.spec.features]
    return {(a, b): X[i, j] for i, a in enumerate(names) for j, b in enumerate(names)} | {
        (a, "y"): own.linear[i] for i, a in enumerate(names)
    }


def subtracted(found, columns):
    """The sum over the rows that differ of what both runs have, its entry of the ones, the number of rows, last."""
    first, second = found
    shared = [b for a, b in first if a == "intercept" and ("intercept", b) in second and b != "intercept"]
    one, other = (column or "intercept" for column in columns)
    return np.array([first[one, b] - second[other, b] for b in (*shared, "intercept")]), shared


def both(tmp_path, pair, rules, door="files"):
    return [analysed(tmp_path / "A", run, rules, door) for run in (pair.first, pair.second)]


def dropped(k, where, shuffled):
    places = {"first": np.arange(k), "last": np.arange(N - k, N), "middle": 30 + np.arange(k)}[where]
    fewer = without(table(), places)
    if shuffled:
        order = np.random.default_rng(k).permutation(N - k)
        fewer = {name: column[order] for name, column in fewer.items()}
    return Pair(Run(table()), Run(fewer), k)


def missing(k):
    """A column of the second formula lacks k cells."""
    rows = with_cells(table(), "z", 30 + np.arange(k), np.nan)
    return Pair(Run(rows), Run(rows, "y ~ age + dose + z"), k)


def thresholds(k, turned):
    """Two dummies of one column, whose borders have k rows between them; the second may be the other way round."""
    age = table()["age"]
    low, high = (float(f"{age[20] - 1e-6:.6f}"), float(f"{age[20 + k] - 1e-6:.6f}"))
    sides = (f"I(age > {low})", f"I(age {'<=' if turned else '>'} {high})")
    first, second = (Run(table(), f"y ~ dose + {side}") for side in sides)
    return Pair(first, second, k, ("dummy", "turned dummy" if turned else "dummy"))


def levels(k):
    """k patients change their ward in the file."""
    who = np.flatnonzero(table()["ward"] == "b")[:k]
    first, second = (Run(rows, "y ~ dose + ward") for rows in (table(), with_cells(table(), "ward", who, "c")))
    return Pair(first, second, k, ("ward[T.b]", "ward[T.b]"))


def corrected(k):
    """Cells of a number are corrected in the file."""
    rows = with_cells(table(), "dose", 10 + np.arange(k), 7.5)
    return Pair(Run(table()), Run(rows), k, ("dose", "dose"))


def weights(k):
    """The second file gives k rows the weight 0."""
    rows = with_cells(table(), "w", 5 + np.arange(k), 0.0)
    return Pair(Run(table(), weights="w"), Run(rows, weights="w"), k)


def withheld(k):
    """Rows of a level that no site may name are left out of the second run, and the first has no such column."""
    rows = with_cells(table(), "ward", 12 + np.arange(k), "icu")
    return Pair(Run(rows), Run(rows, "y ~ age + dose + ward", choices={"drop_withheld": True}), k)


PAIRS = {}
for k in range(6):
    for where in ("first", "middle", "last"):
        PAIRS[f"{k} rows less, {where}"] = (partial(dropped, k, where, False), k)
    PAIRS[f"{k} rows less, in another order"] = (partial(dropped, k, "middle", True), k)
    PAIRS[f"{k} cells missing"] = (partial(missing, k), k)
    PAIRS[f"{k} rows between thresholds"] = (partial(thresholds, k, False), k)
    PAIRS[f"{k} rows between turned thresholds"] = (partial(thresholds, k, True), k)
    PAIRS[f"{k} rows of another level"] = (partial(levels, k), k)
    PAIRS[f"{k} cells corrected"] = (partial(corrected, k), k)
    PAIRS[f"{k} weights of zero"] = (partial(weights, k), k)
for k in (1, 2):
    PAIRS[f"{k} withheld rows"] = (partial(withheld, k), k)


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_of_runs_is_refused_exactly_where_it_tells_few_rows(name, tmp_path):
    make, k = PAIRS[name]
    pair = make()
    assert pair.apart == k
    door = "files" if k % 2 else "flower"
    if 1 <= k < USUAL.minimum_count:
        analysed(tmp_path / "A", pair.first, USUAL, door)
        with pytest.raises(DisclosureError) as raised:
            analysed(tmp_path / "A", pair.second, USUAL, door)
        assert raised.value.rule == "minimum_count"
        assert raised.value.column.endswith(EARLIER)
    else:
        both(tmp_path, pair, USUAL, door)


def chosen(found, pair):
    """The columns whose sums are subtracted."""
    names = []
    for one, column in zip(found, pair.columns, strict=True):
        dummies = [a for a, b in one if b == "intercept" and a.startswith("I(")]
        names.append(dummies[0] if column and "dummy" in column else column)
    return names


@pytest.mark.parametrize("name", [name for name, (_, k) in PAIRS.items() if 1 <= k <= 2])
def test_without_rules_the_rows_that_differ_are_the_difference(name, tmp_path):
    """The broken twin: rules off, and the number of rows and their sum come out, of one row its cells."""
    pair = PAIRS[name][0]()
    found = both(tmp_path, pair, ALLOWED)
    columns = chosen(found, pair)
    line, shared = subtracted(found, columns)
    if pair.columns[1] == "turned dummy":  # 1 − c, with the sums of the ones
        other = dict(found[1])
        for b in (*shared, "intercept"):
            other[columns[1], b] = other["intercept", b] - other[columns[1], b]
        line, shared = subtracted((found[0], other), columns)
    if name.endswith("corrected"):  # a cell's change times what else the row has
        change = 7.5 - table()["dose"][10 : 10 + pair.apart]
        assert line[-1] == pytest.approx(-change.sum(), rel=1e-9)
        assert line[shared.index("age")] == pytest.approx(-change @ table()["age"][10 : 10 + pair.apart], rel=1e-9)
        return
    assert line[-1] == pytest.approx(pair.apart, abs=1e-6)
    sums = table()["dose"]
    subsets = {
        "rows less": 30 if "middle" in name or "order" in name else 0 if "first" in name else N - pair.apart,
        "missing": 30,
        "thresholds": 20,
        "weights": 5,
        "withheld": 12,
    }
    start = next((start for word, start in subsets.items() if word in name), None)
    who = np.arange(pair.apart) + start if start is not None else np.flatnonzero(table()["ward"] == "b")[: pair.apart]
    assert line[shared.index("dose")] == pytest.approx(sums[who].sum(), abs=1e-6)


HONEST = {
    "another outcome": ("y ~ age + dose", "z ~ age + dose"),
    "other columns": ("y ~ age + ward", "y ~ dose"),
    "nested": ("y ~ age", "y ~ age + dose"),
    "nested, the other way": ("y ~ age + dose + ward", "y ~ age"),
    "an outcome that was a column": ("y ~ age + z", "z ~ age + y"),
    "an interaction": ("y ~ age + ward", "y ~ age * ward"),
    "a square": ("y ~ age", "y ~ age + I(age**2)"),
    "a logarithm": ("y ~ age", "y ~ log(age)"),
    "a weight": ("y ~ age", "y ~ age + w"),
    "nothing in common": ("y ~ age", "z ~ ward"),
    "the same": ("y ~ age + dose", "y ~ age + dose"),
}


@pytest.mark.parametrize("door", ["files", "flower"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_second_analyses_are_not_refused(name, door, tmp_path):
    rows = but(table(), w=np.random.default_rng(3).choice([1.0, 2.0, 3.0], N))
    for formula in HONEST[name]:
        analysed(tmp_path / "A", Run(rows, formula), USUAL, door)
    digests = {path.name for path in (tmp_path / "A").glob("design-*.npz")}
    assert digests


def test_other_patients_in_the_same_folder_are_not_refused(tmp_path):
    """A file of next year, of 59, 60 and 61 patients: none is in both, and the cells of numbers say so."""
    for n, seed in ((60, 0), (55, 4), (65, 5)):
        analysed(tmp_path / "A", Run(table(n, seed)), USUAL, "files")


def test_loss_by_loss_in_python(tmp_path):
    """Rows that are given as a loss: one row less is refused, three are not; by the target alone nothing is."""
    rng = np.random.default_rng(2)
    X, y = np.column_stack([rng.normal(size=(N, 2)), np.ones(N)]), rng.normal(size=N)

    def run(keep, names=("a", "b", "intercept")):
        data = GLMData(ba.losses.LeastSquares(X[keep], y[keep]), names)
        site = Site("A", data, rules=USUAL)
        (tmp_path / "state.npz").unlink(missing_ok=True)
        task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(3), 1.0))
        Coordinator.start([Site(name, data).hello() for name in "ABC"], task).broadcast().write(tmp_path / "b.npz")
        return step_site(tmp_path, site, tmp_path / "b.npz")[1]

    run(slice(0, N))
    with pytest.raises(DisclosureError) as raised:
        run(slice(1, N))
    assert (raised.value.got, raised.value.column) == (1, ROWS + EARLIER)
    assert run(slice(3, N)).exists()
    with pytest.raises(DisclosureError):
        run(slice(2, N))  # it differs from both


def test_a_hello_of_another_file_is_compared_with_the_first(tmp_path):
    """Counts by level, means and squares are told before any run: a file with one patient more says this patient."""
    for rows, is_sent in ((table(), True), (without(table(), [7]), False), (without(table(), [7, 8, 9]), True)):
        site = Site("A", GLMTable(rows, "y ~ scale(age) + ward", kind="linear"), rules=USUAL)
        if is_sent:
            sent(site, tmp_path, site.hello())
            continue
        with pytest.raises(DisclosureError) as raised:
            sent(site, tmp_path, site.hello())
        assert (raised.value.rule, raised.value.got, raised.value.column) == ("minimum_count", 1, ROWS + EARLIER)
