"""No cell of a table leaves its site in words: not in a refusal by any door, nor by the usual rules in a hello."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import DisclosureRules, GLMTable, GLMTask, MessageError, Site
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.folders import sent
from oracles.by_files import introduce, write_tables
from oracles.couriers import edited, started
from oracles.overrides import ALLOWED

USUAL = DisclosureRules()
WORD, NUMBER = "qzmedicalqz", 41.73651
N = 40


def table(seed=0, **columns):
    rng = np.random.default_rng(seed)
    age = rng.normal(60.0, 10.0, N)
    return {"died": np.arange(N) % 2, "age": age, "ward": np.where(np.arange(N) % 4, "a", "b"), **columns}


def with_cell(column, value):
    """A table whose column has one cell of another kind."""
    cells = np.asarray(table()[column]).astype(object)
    cells[7] = value
    return table(**{column: cells})


TABLES = {  # rows of the site, where those of its hello were `table()`
    "a word among numbers": with_cell("age", WORD),
    "a word among outcomes": with_cell("died", WORD),
    "a number among outcomes": with_cell("died", NUMBER),
    "a level that nobody named": with_cell("ward", WORD),
    "infinite": with_cell("age", np.inf),
    "a missing column": {name: cells for name, cells in table().items() if name != "age"},
}
FORMULAS = [
    "died ~ age + ward",
    "died ~ scale(age) + C(ward)",
    "died ~ bs(age, knots=(50, 60), lower_bound=-99, upper_bound=199)",
]


def texts(rows):
    """All cells of a table as they could be quoted, but those that are words of the formula's own levels."""
    cells = [cell for column in rows.values() for cell in np.asarray(column).tolist()]
    odd = {WORD, str(NUMBER)}
    return {text.encode() for text in {str(cell) for cell in cells} if len(text) > 5} | {one.encode() for one in odd}


def quoted(rows, said):
    return [text for text in texts(rows) if text in said]


def outgoing(answered):
    """Bytes of an answer over a network, its sentence too."""
    return (answered.message or b"") + repr(answered.said).encode() + answered.note.encode()


TASK = GLMTask(ba.Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), asks=True)


def requests(formula):
    """A run's first messages, and some that do not fit the rows."""
    server = started([Site(name, GLMTable(table(k), formula), rules=ALLOWED) for k, name in enumerate("ABC")], TASK)
    first = server.broadcast()
    yield first
    yield edited(first, {"spec.agreement.formula": f"{formula} + client:hiv"})
    yield edited(first, {"spec.features": ["age", WORD[:3]]})
    yield edited(first, {"number": 10**6})
    yield edited(first, {"name": "nothing"})


@pytest.mark.parametrize("is_private", [False, True], ids=["sums", "noise"])
@pytest.mark.parametrize("case", TABLES)
def test_a_refusal_over_a_network_quotes_no_cell(case, is_private, tmp_path, caplog):
    """Of all tables, formulas and messages that do not fit; the twin: the log of the site, which does quote them."""
    caplog.set_level(logging.DEBUG)
    rows, number, refused = TABLES[case], 0, 0
    noise = {"privacy": ba.GaussianMechanism(1.0, 2.0), "privacy_rounds": 5} if is_private else {}
    for formula in FORMULAS:
        for message in [None, *requests(formula)]:

            def load(spec, formula=formula):
                site = Site("A", GLMTable(rows, formula), rules=USUAL, **noise)
                return site, site.hello()

            number += 1
            (tmp_path / str(number)).mkdir()
            said = answer(Request("1", None if message is None else message.to_bytes()), tmp_path / str(number), load)
            refused += said.refused
            assert quoted(rows, outgoing(said)) == []
    assert refused >= 3
    if case == "a word among numbers":
        assert quoted(rows, caplog.text.encode()) != []


@pytest.mark.parametrize("rules", [USUAL, ALLOWED], ids=["usual rules", "no rules"])
def test_a_hello_names_no_text_of_few_rows(rules, tmp_path):
    """Two rows of a level of its own; of numbers no value is named whatever the rules."""
    rows = table(ward=np.where(np.arange(N) < 2, WORD, "a"))
    data = GLMTable(rows, "died ~ scale(age) + ward", minimum_count=rules.minimum_count)
    site = Site("A", data, rules=rules)
    try:
        said = sent(site, tmp_path, site.hello()).to_bytes()
    except MessageError:
        said = b""
    assert quoted(rows, said) == ([WORD.encode()] if rules is ALLOWED else [])


def test_a_report_shows_no_cell(call):
    """What `site init` wrote, what has left, and what the rules say of it; the twin is the table itself."""
    write_tables()
    introduce(call, "--target died --loss logistic --features age,dose --minimum-class-count 1 --budget 9")
    assert call("server run run east north west --no-progress")[0] == 0
    cells = {
        cell for cell in Path("east.csv").read_text().replace("\n", ",").split(",") if "." in cell and len(cell) > 4
    }
    assert len(cells) > 20
    for command in ("report east", "report east --json", "site rules east --minimum-rows 10"):
        _, out, told = call(command)
        assert [cell for cell in cells if cell in out + told] == []


def test_describe_shows_the_largest_value(call):
    """docs: table one is for whoever has the rows, and has their smallest and largest values; no rule looks at it."""
    write_tables()
    ages = [float(line.split(",")[0]) for line in Path("east.csv").read_text().split()[1:]]
    found = json.loads(call("describe east.csv --columns age --json")[1])
    assert max(ages) in json.loads(json.dumps(found["columns"]["age"]["all"]["quantiles"]))
