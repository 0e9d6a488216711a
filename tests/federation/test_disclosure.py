"""Rules of a site: each keeps back what it is about, names it, can be overridden, and what leaves is listed."""

import json
import re
from dataclasses import fields
from pathlib import Path

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
    refusals,
    step_site,
)
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.folders import sent
from bayesadmm_np.federation.ledger import LEDGER, Ledger
from bayesadmm_np.federation.refusals import Refusal
from bayesadmm_np.losses.base import effective_rows
from oracles.by_files import introduce, write_tables
from oracles.couriers import started
from oracles.overrides import roomy

USUAL = DisclosureRules()
START = ba.families.FullGaussian(np.zeros(3), 1.0)


def table(n=40, **columns):
    rng = np.random.default_rng(n)
    age = rng.normal(60.0, 10.0, n)
    return {"died": np.arange(n) % 2, "age": age, "ward": np.where(np.arange(n) % 4, "a", "b"), **columns}


def few(n, count):
    """A 1 in so many of n rows."""
    return (np.arange(n) < count).astype(float)


COUNT = {"minimum_count": 2}
SEXES = np.where((np.arange(40) % 3 == 0) & ((np.arange(40) % 4 > 0) | (np.arange(40) < 16)), "m", "f")
CASES = {  # table, formula, column and level that the refusal names, and an override that allows it: of the rule first
    "few rows": (table(9), "died ~ age", ("", ""), {"minimum_rows": 9, "most_parameters": 1.0}),
    "a class of two": (table(died=few(40, 2)), "died ~ age", ("died", "1"), {"minimum_class_count": 2}),
    "a level of two": (table(ward=np.where(few(40, 2), "icu", "a")), "died ~ ward", ("ward", "icu"), COUNT),
    "a level of two with brackets": (
        table(**{"ward [T.a]": np.where(few(40, 2), "i]cu[T.b", "a")}),
        "died ~ age + `ward [T.a]`",
        ("ward [T.a]", "i]cu[T.b"),
        COUNT,
    ),
    "two rows of two levels together": (table(sex=SEXES), "died ~ ward * sex", ("ward:sex", "b:m"), COUNT),
    "a number that is 0 but in two rows": (table(dose=7.3 * few(40, 2)), "died ~ age + dose", ("dose", ""), COUNT),
    "a cell of two factors": (table(sex=np.where(few(40, 1), "m", "f")), "died ~ age + C(ward):age", None, {}),
    "one row of two columns together": (
        table(ill=few(40, 5), old=few(40, 6)),
        "died ~ ill + old",
        ("a combination of columns", ""),
        {"minimum_count": 1},
    ),
    "many parameters": (
        table(12, a=np.arange(12.0) ** 2, b=np.sin(np.arange(12)), c=np.cos(np.arange(12) ** 2)),
        "died ~ age + a + b + c",
        ("", ""),
        {"most_parameters": 0.5},
    ),
    "a column that is not allowed": (table(), "died ~ age + ward", ("ward", ""), {"allow": ("died", "age", "ward")}),
}


def introduced(tmp_path, rows, formula, rules, n_sites=3):
    """What a site sends before it steps, and then; the others have the same rows."""
    site = Site("A", GLMTable(rows, formula, minimum_count=0), rules=rules)
    hello = sent(site, tmp_path, site.hello())
    others = [Site(name, site.data).hello() for name in "BCD"[: n_sites - 1]]
    task = GLMTask(ba.methods.PVI(), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0))
    Coordinator.start([hello, *others], task).broadcast().write(tmp_path / "broadcast.npz")
    return step_site(tmp_path, site, tmp_path / "broadcast.npz")


@pytest.mark.parametrize("case", CASES)
def test_each_rule_keeps_back_what_it_is_about(case, tmp_path):
    rows, formula, where, override = CASES[case]
    if where is not None:
        rule = next(iter(override))
        with pytest.raises(DisclosureError) as raised:
            introduced(tmp_path, rows, formula, roomy(**({"allow": ("died", "age")} if rule == "allow" else {})))
        error = raised.value
        assert (error.site, error.rule, error.column, error.level) == ("A", rule, *where)
        assert f"or set --{rule.replace('_', '-')}" in str(error)
        assert error.remedy in str(error)
        assert error.refusal({"died", "age"}).columns == tuple({where[0]} & {"died", "age"})
        assert error.refusal(()).columns == ()  # others read no name that the run does not have
        assert not list(tmp_path.glob("reply*"))
    rules = roomy(**override)
    introduced(tmp_path, rows, formula, rules)
    assert Ledger.read(tmp_path).entries[-1].kind == "reply"
    assert Ledger.read(tmp_path).entries[-1].overrides == json.loads(json.dumps({**override, "budget": 1000.0}))


def followed(remedy):
    """The rules that an error advises."""
    values = re.findall(r"--([a-z-]+) (\S+)", remedy)
    return {name.replace("-", "_"): float(value) if name.startswith("most") else int(value) for name, value in values}


def test_all_rules_that_rows_break_are_named_at_once_before_the_run_and_one_override_answers_them(tmp_path):
    """Five rows, a level of one, a class of two, a column that is 0 but in one row, 4 parameters: one refusal."""
    rows = table(5, died=few(5, 2), ward=np.where(few(5, 1), "icu", "a"), dose=7.3 * few(5, 1))
    with pytest.raises(DisclosureError) as raised:
        introduced(tmp_path, rows, "died ~ age + ward + dose", roomy())
    assert not Ledger.read(tmp_path).entries  # the hello did not leave
    advised = followed(raised.value.remedy)
    assert advised == {"minimum_rows": 5, "minimum_class_count": 2, "minimum_count": 1, "most_parameters": 0.8}
    introduced(tmp_path, rows, "died ~ age + ward + dose", roomy(**advised))
    assert Ledger.read(tmp_path).entries[-1].kind == "reply"


def test_no_rule_is_loosened_for_the_difference_of_two_runs():
    """The difference would be the rows; the twin is a level of the same count, which its owner may name."""
    places = "rows of an earlier run", "ward"
    advised = {place: followed(DisclosureError("A", "minimum_count", 1, 3, place).remedy) for place in places}
    assert advised == {"rows of an earlier run": {}, "ward": {"minimum_count": 1}}


@pytest.mark.parametrize("got", [0.4444, 0.3300001, 1 / 3, 5.0, 123.456])
def test_the_advised_value_of_a_most_is_not_below_what_was_found(got):
    advised = followed(DisclosureError("A", "most_parameters", got, 0.33).remedy)["most_parameters"]
    assert got <= advised <= 1.01 * got


@pytest.mark.parametrize(("n_sites", "least", "is_sent"), [(2, 3, False), (3, 3, True), (2, 2, True)])
def test_a_run_of_two_sites_is_not_answered(n_sites, least, is_sent, tmp_path):
    rules = roomy(minimum_sites=least)
    if is_sent:
        assert introduced(tmp_path, table(), "died ~ age", rules, n_sites)[1].exists()
        return
    with pytest.raises(DisclosureError, match="--minimum-sites wants at least 3 sites, got 2; invite more sites"):
        introduced(tmp_path, table(), "died ~ age", rules, n_sites)


def test_a_run_may_go_on_until_its_numbers_are_spent(tmp_path):
    """A message that is sent again counts once; one that is refused leaves state and list as they are."""
    X = np.column_stack([np.linspace(-1, 1, 12), np.ones(12)])
    data = GLMData(ba.losses.Logistic(X, np.arange(12) % 2))
    sites = [Site(name, data, rules=DisclosureRules(budget=3.0)) for name in "ABC"]
    task = GLMTask(ba.methods.PVI(0.1), ba.families.FullGaussian(np.zeros(2), 1.0), tol=1e-12)
    site, *others = sites

    def play(server, others):
        while True:
            broadcast = server.broadcast()
            broadcast.write(tmp_path / "broadcast.npz")
            for _ in range(2):
                path = step_site(tmp_path, site, tmp_path / "broadcast.npz")[1]
            others, replies = zip(*(one.step(broadcast) for one in others), strict=True)
            server = server.step([Message.read(path), *replies])

    with pytest.raises(DisclosureError) as raised:
        play(started(sites, task), others)
    log, state = Ledger.read(tmp_path).entries, (tmp_path / "state.npz").read_bytes()
    assert raised.value.rule == "budget"
    assert sum(one.numbers for one in log) <= 3.0 * 12 < sum(one.numbers for one in log) + log[-1].numbers
    assert len({one.digest for one in log}) == len(log) > 0
    with pytest.raises(DisclosureError):
        step_site(tmp_path, site, tmp_path / "broadcast.npz")
    assert (Ledger.read(tmp_path).entries, (tmp_path / "state.npz").read_bytes()) == (log, state)


def test_in_one_process_no_rule_applies():
    site = Site("A", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    assert site.rules == USUAL
    server = Coordinator.start([site.hello()], GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0)))
    assert site.step(server.broadcast())[1].kind == "reply"


def test_the_rules_see_the_expectation_of_the_answer_and_make_none_again(tmp_path, monkeypatch):
    """A step by file takes as many expectations as one in the same process, where no rule applies."""
    made, expect = [], ba.losses.Logistic.expect
    monkeypatch.setattr(ba.losses.Logistic, "expect", lambda self, q, rule: made.append(q) or expect(self, q, rule))
    X = np.column_stack([np.linspace(-1, 1, 40), np.ones(40)])
    site = Site("A", GLMData(ba.losses.Logistic(X, np.arange(40) % 2)), rules=roomy(minimum_sites=1))
    task = GLMTask(ba.methods.PVI(0.5), ba.families.FullGaussian(np.zeros(2), 1.0))
    broadcast = Coordinator.start([site.hello()], task).broadcast()
    broadcast.write(tmp_path / "broadcast.npz")
    site.step(broadcast)
    alone = len(made)
    step_site(tmp_path, site, tmp_path / "broadcast.npz")
    assert len(made) - alone == alone > 0
    assert Ledger.read(tmp_path).entries[-1].allowed["minimum_count"]  # the points were looked at


@pytest.mark.parametrize(
    ("row", "precision", "counts"), [(ba.Guarded(ba.methods.Newton()), 0.0, 1), (ba.methods.PVI(), 1.0, 2)]
)
def test_rows_at_the_mean_are_counted_once_where_the_expectation_is_there(row, precision, counts):
    """Newton's sums are at the mean, and tell how many rows they rest on; those under q_g are another count."""
    X = np.random.default_rng(0).normal(size=(30, 2))
    losses = [ba.losses.Logistic(X[:15], X[:15, 0] > 0.3), ba.losses.Logistic(X[15:], X[15:, 0] > 0.1)]
    sites = [Site(name, GLMData(loss)) for name, loss in zip("AB", losses, strict=True)]
    start = ba.families.FullGaussian(np.zeros(2), precision)
    server = started(sites, GLMTask(row, start, tol=1e-9))
    for _ in range(2):
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        q_g, server = server.served.q_g, server.step(replies)
    found = sorted(sites[0].data.basis(sites[0].heard, "A").points)
    assert len(found) == counts
    own = losses[0].rows(q_g.mean).effective
    assert min(abs(count / own - 1.0) for count in found) < 1e-12


def test_over_a_network_the_server_reads_the_rule_and_no_number(tmp_path, caplog):
    site = Site("A", GLMTable(table(died=few(40, 2)), "died ~ age"), rules=roomy())
    said = answer(Request("run"), tmp_path, lambda spec: (site, site.hello()))
    assert said.refused
    assert said.message is None
    assert said.said == Refusal(("minimum_class_count",))
    assert "at least 3 rows of each class of column 'died' with '1', got 2" in caplog.text  # the owner's log
    assert not (tmp_path / LEDGER).exists()


@pytest.mark.parametrize(("weights", "count"), [(np.ones(7), 7.0), (np.array([1.0, 1e-9]), 1.0), (np.zeros(3), 0.0)])
def test_rows_on_which_a_sum_rests(weights, count):
    assert effective_rows(weights) == pytest.approx(count, abs=1e-8)


@pytest.mark.parametrize("wrong", [{"minimum_rows": -1}, {"budget": 0.0}, {"most_parameters": float("nan")}])
def test_limits_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DisclosureRules(**wrong)


def test_a_line_that_a_kill_cut_short_is_of_a_message_that_did_not_leave(tmp_path):
    introduced(tmp_path, table(), "died ~ age", roomy())
    whole, path = Ledger.read(tmp_path).entries, tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-20])
    assert Ledger.read(tmp_path).entries == whole[:-1]
    step_site(tmp_path, Site("A", GLMTable(table(), "died ~ age")), tmp_path / "broadcast.npz")
    assert [one.digest for one in Ledger.read(tmp_path).entries] == [one.digest for one in whole]


def test_the_report_lists_all_that_left(call):
    """Messages, sizes and rules; the sizes are those of the files, and the overrides are recorded in the folder."""
    write_tables()
    introduce(call, "--target died --loss logistic --features age,dose --minimum-class-count 1 --budget 9")
    assert call("server run run east north west --no-progress")[0] == 0
    code, out, _ = call("report east")
    assert code == 0
    entries = json.loads(call("report east --json")[1])["sent"]
    files = [Path("east/hello.npz"), *sorted(Path("east").glob("*-east-*.npz"))]
    assert sorted(one["bytes"] for one in entries) == sorted(path.stat().st_size for path in files)
    assert f"{len(files)} messages have left, {sum(path.stat().st_size for path in files)} bytes" in out
    assert "Overrides by the site's owner: budget 9.0, minimum_class_count 1." in out
    for words in ("minimum_rows 40 ≥ 10", "minimum_sites 3 ≥ 3", "most_parameters 0.075 ≤ 0.33", "reply 2", "design"):
        assert words in out
    kept = json.loads(Path("east/site.json").read_text())
    assert (kept["minimum_class_count"], kept["budget"], kept["minimum_rows"]) == (1, 9.0, None)
    assert call("report run")[0] == 2


def test_an_override_is_given_in_a_run_that_has_begun(call):
    """The same folder, key and state: a refused step is repeated under the new rule, and the report lists it."""
    write_tables()
    introduce(call, "--target died --features age,dose --loss logistic --minimum-class-count 1 --budget 9")
    assert call("server run run east north west --no-progress --rounds 1")[0] == 1
    assert call("server init second east/hello.npz north/hello.npz")[0] == 0
    (Path("east") / "state.npz").unlink()
    before = json.loads(Path("east/site.json").read_text())
    code, out, _ = call("site step east second/inquiry-0001.npz")
    assert (code, "--minimum-sites" in out) == (0, True)  # a question is answered by a refusal
    key = Path("east/key.hex").read_text()
    code, out, _ = call("site rules east --minimum-sites 2")
    assert (code, "override   minimum_sites 2" in out) == (0, True)
    code, out, _ = call("site step east second/inquiry-0001.npz")
    assert (code, "refused" in out, Path("east/key.hex").read_text() == key) == (0, False, True)
    assert json.loads(Path("east/site.json").read_text()) == {**before, "minimum_sites": 2}
    assert "budget 9.0, minimum_class_count 1, minimum_sites 2." in call("report east")[1]


def test_a_folder_whose_run_has_ended_begins_another_with_its_ledger(call):
    """Without the final message the folder is taken; with it another file is compared with the first."""
    write_tables()
    init = "site init {} --data {} --name {} --target died --loss logistic --budget 100 --minimum-class-count 1"
    init += " --features "
    for name in ("east", "north", "west"):
        assert call(init.format(name, f"{name}.csv", name) + "age,dose")[0] == 0
    assert call("server run run east north west --no-progress")[0] == 0
    first = Ledger.read("east").entries
    rows = Path("east.csv").read_text().splitlines()
    Path("fewer.csv").write_text("\n".join(rows[:-1]) + "\n")
    state = Path("east/state.npz").read_bytes()
    code, _, err = call(init.format("east", "fewer.csv", "east") + "age,dose")
    assert (code, "--minimum-count" in err, "an earlier run" in err) == (3, True, True)
    assert Path("east/state.npz").read_bytes() == state
    for name in ("east", "north", "west"):
        assert call(init.format(name, f"{name}.csv", name) + "age")[0] == 0
    assert not Path("east/state.npz").exists()
    assert call("server run second east north west --no-progress")[0] == 0
    entries = Ledger.read("east").entries
    assert entries[: len(first)] == first
    assert {one.run for one in first} < {one.run for one in entries}
    assert call("report east")[1].count("died ~") == 2
    assert call(init.format("east", "fewer.csv", "east") + "age,dose --minimum-count 1")[0] == 0  # an override


CLUSTERED = np.where(few(40, 2), "k", np.where(np.arange(40) % 2, "l", "m"))


@pytest.mark.parametrize("door", ["files", "flower", "command"])
@pytest.mark.parametrize(("least", "is_sent"), [(3, False), (2, True)])
def test_a_cluster_of_few_rows_is_refused_before_the_run(door, least, is_sent, tmp_path, bayesadmm):
    """Robust standard errors by clusters sum the scores of each: of one row they are this row."""
    rows = table(team=CLUSTERED)
    site = Site("A", GLMTable(rows, "died ~ age", cluster="team"), rules=roomy(minimum_count=least))
    if door == "command":
        lines = [",".join(rows), *(",".join(map(str, row)) for row in zip(*rows.values(), strict=True))]
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
        options = ["--target", "died", "--features", "age", "--loss", "logistic", "--cluster", "team", "--name", "A"]
        options += ["--minimum-count", str(least), "--budget", "100"]
        code, _, err = bayesadmm("site", "init", tmp_path / "a", "--data", tmp_path / "a.csv", *options)
        assert (code == 0) == is_sent
        assert is_sent or ("--minimum-count" in err and "column 'team' with 'k', got 2" in err)
        return
    if door == "flower":
        said = answer(Request("run"), tmp_path, lambda spec: (site, site.hello()))
        assert (said.message is not None) == is_sent
        assert is_sent or said.said.codes == ("minimum_count",)
        return
    if is_sent:
        assert sent(site, tmp_path, site.hello()).kind == "hello"
        return
    with pytest.raises(DisclosureError) as raised:
        sent(site, tmp_path, site.hello())
    assert (raised.value.rule, raised.value.column, raised.value.level, raised.value.got) == (
        "minimum_count",
        "team",
        "k",
        2,
    )


@pytest.mark.parametrize(("least", "is_sent"), [(3, False), (2, True)])
def test_a_cluster_of_few_rows_of_a_loss(least, is_sent, tmp_path):
    X = np.column_stack([np.linspace(-1, 1, 40), np.ones(40)])
    data = GLMData(ba.losses.Logistic(X, np.arange(40) % 2), clusters=CLUSTERED.tolist())
    site = Site("A", data, rules=DisclosureRules(minimum_count=least))
    task = GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(2), 1.0))
    started([site, Site("B", data), Site("C", data)], task).broadcast().write(tmp_path / "b.npz")
    if is_sent:
        assert step_site(tmp_path, site, tmp_path / "b.npz")[1].exists()
        return
    with pytest.raises(DisclosureError) as raised:
        step_site(tmp_path, site, tmp_path / "b.npz")
    assert (raised.value.rule, raised.value.column, raised.value.level) == ("minimum_count", "clusters", "k")


@pytest.mark.parametrize("is_separated", [True, False])
def test_complete_separation_is_named_under_the_usual_rules(is_separated, tmp_path, bayesadmm):
    """Sums rest on ever fewer rows, and a round would be refused: sites are asked before. The twin's labels have noise.

    Deviance and AIC at the limit rest on the rows nearest to the border: rules keep them back, and the table says so.
    """
    rng = np.random.default_rng(1)
    for name in "abc":
        age, dose, noise = rng.standard_normal((3, 200))
        died = age + 0.3 * dose > 0.1 + (not is_separated) * noise
        rows = [f"{x:.3f},{z:.3f},{int(y)}" for x, z, y in zip(age, dose, died, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,dose,died", *rows]) + "\n")
        options = ["--data", tmp_path / f"{name}.csv", "--target", "died", "--name", name, "--loss", "logistic"]
        assert bayesadmm("site", "init", tmp_path / name, *options)[0] == 0
    run = ("server", "run", tmp_path / "run", *(tmp_path / name for name in "abc"), "--no-progress", "--json")
    code, out, _ = bayesadmm(*run)
    told = json.loads(out)
    assert code == (4 if is_separated else 0)
    assert any("Separation (complete) by age" in finding for finding in told["findings"]) is is_separated
    assert any("--minimum-count" in said for said in told["missing"]) is is_separated
    if is_separated:
        assert told["mean"] == told["standard_error"] == [None] * 3


def test_the_price_of_a_run_is_asked_before_the_first_hello_alone(tmp_path):
    """Who says hello again goes on with a run whose price is partly spent."""
    rng = np.random.default_rng(3)
    data = GLMData(ba.losses.Logistic(np.column_stack([rng.normal(size=(100, 2)), np.ones(100)]), np.arange(100) % 2))
    site = Site("A", data)
    hello = sent(site, tmp_path, site.hello())
    started([site, Site("B", data), Site("C", data)], GLMTask(ba.methods.PVI(), START)).broadcast().write(
        tmp_path / "b"
    )
    step_site(tmp_path, site, tmp_path / "b")
    assert sent(site, tmp_path, site.hello()).digest == hello.digest
    narrow = Site("A", data, rules=DisclosureRules(budget=0.5))
    (tmp_path / "new").mkdir()
    with pytest.raises(DisclosureError) as raised:
        sent(narrow, tmp_path / "new", narrow.hello())
    assert raised.value.rule == "budget"


def test_codes_of_refusals_are_the_rules_of_a_site():
    assert set(refusals.RULES) == {field.name for field in fields(DisclosureRules)} - {"peers"}
    for codes in ((), ("age 61",), ("busy", "budget"), ("point",), ("copied", "busy")):
        with pytest.raises(ValueError, match="codes"):
            Refusal(codes)
    with pytest.raises(ValueError, match="columns"):
        Refusal(("busy",), ("age",))
