"""A server that lies about what the sites agreed on: every field of a spec, by every door, against an honest site.

The honest run is of three hospitals, whose tables have a column `hiv` that no formula has. Site A has one patient of
the ward "icu", which it does not name.
"""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._archive import read_as
from bayesadmm_np.design.agreement import Agreement
from bayesadmm_np.design.levels import AgreedColumn
from bayesadmm_np.design.terms import parse
from bayesadmm_np.federation import (
    Coordinator,
    DisclosureError,
    DisclosureRules,
    GLMData,
    GLMTable,
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    Site,
    consent,
    step_site,
    tables,
)
from bayesadmm_np.federation.agreeing import features_of
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.glm_spec import GLMSpec
from bayesadmm_np.federation.ledger import Ledger
from bayesadmm_np.federation.messages import inquiry_of, read_spec
from bayesadmm_np.glm.kinds import read_kind
from bayesadmm_np.glm.questions import DesignQuestion
from oracles.couriers import edited
from oracles.overrides import ALLOWED

NAMES = ("A", "B", "C")
KEYS = {name: SigningKey(name.encode() * 32) for name in (*NAMES, "X")}
OWN = (
    "died ~ age + scale(dose) + center(bp) + bs(bmi, knots=[25], lower_bound=0, upper_bound=90) + ward + C(stage)"
    " + poly(dose, 2)"
)


def rows_of(name, n=60):
    rng = np.random.default_rng([17, ord(name)])
    yes, ward = ("Yes" if name == "A" else "yes", "no"), rng.choice([*"abc"], n).astype(object)
    ward[: {"A": 1, "B": 6, "C": 0}[name]] = "icu"
    return {
        "died": np.array(yes, dtype=object)[rng.integers(0, 2, n)],
        "age": rng.integers(30, 90, n).astype(float),
        "dose": rng.normal(2.0, 1.0, n),
        "bp": rng.normal(120.0, 9.0, n),
        "bmi": rng.uniform(18.0, 40.0, n),
        "ward": ward,
        "stage": rng.integers(1, 4, n),
        "w": rng.integers(1, 3, n).astype(float),
        "hiv": (rng.random(n) < 0.3).astype(float),
        "site": rng.choice(["a", "b"], n),
    }


def full(d):
    return ba.families.FullGaussian(np.zeros(d), 1.0)


def table_of(name, kind=GLMTable, formula=OWN):
    return kind(rows_of(name), formula, weights="w", minimum_count=3)


def site_of(name, data=None, rules=ALLOWED):
    return Site(name, table_of(name) if data is None else data, key=KEYS[name], rules=rules)


CHOICES = {"ignore_case": True, "drop_withheld": True, "site_intercepts": True}


def server_of(sites, asks=True, choices=CHOICES):
    task = GLMTask(ba.methods.PVI(), full, asks=asks, choices=choices)
    return Coordinator.start([site.hello() for site in sites], task)


@pytest.fixture(scope="module")
def honest():
    """The site that is attacked, and honest messages to it: a broadcast and a question."""
    sites = [site_of(name) for name in NAMES]
    broadcast = server_of(sites, asks=False).broadcast()
    spec = server_of(sites).spec
    inquiry = inquiry_of(spec, 1, *spec.pack_question(DesignQuestion()))
    assert sites[0].step(broadcast)[1].kind == "reply"
    assert sites[0].step(inquiry)[1].header["refused"] is None
    return sites[0], {"broadcast": broadcast, "inquiry": inquiry}


# ----------------------------------------------------------------------------------------------------
# Forgeries
# ----------------------------------------------------------------------------------------------------

NUMBER = {"kind": "number", "levels": [], "spellings": {}, "are_numbers": False}
SITES = {"kind": "factor", "levels": list(NAMES), "spellings": {}, "are_numbers": False}
HIV = {"hiv": NUMBER}
POLY = "poly(dose, 2)"
KNOTS = "bs(bmi, knots=[25], lower_bound=0, upper_bound=90)"
CODED = {"kind": "factor", "levels": ["0", "1"], "spellings": {}, "are_numbers": True}

FORMULAS = [
    (f"{OWN} + site + site:hiv", HIV, ()),
    (f"{OWN} + site:hiv", HIV, ()),
    (f"{OWN} + site + site:I(hiv > 0)", HIV, ()),
    (f"{OWN} + site + site:I(dose > 2)", {}, ()),
    (f"{OWN} + hiv + site", HIV, ()),
    (f"{OWN} + site + hiv", HIV, ()),
    (f"{OWN} + site*age", {}, ()),
    (f"{OWN} + site + site:ward", {}, ()),
    (f"{OWN} + age:dose + site", {}, ()),
    (f"{OWN} + I(age > 60) + site", {}, ()),
    (f"{OWN} + poly(age, 9, raw=True) + site", {}, ()),
    (f"{OWN} + offset(age) + site", {}, ()),
    (f"{OWN} + offset(log(hiv + 1)) + site", HIV, ()),
    (f"{OWN} - 1 + site", {}, ()),
    (f"{OWN} + site - 1", {}, ()),
    (f"{OWN} + `site`", {}, ()),
    (OWN.replace(" + ward", " + ward:age") + " + site", {}, ()),
    (OWN.replace("~ age", "~ I(age)") + " + site", {}, ()),
    (OWN.replace("~ age", "~ age + hiv") + " + site", HIV, ()),
    (OWN.replace(" + C(stage)", "") + " + site", {}, ("stage",)),
    (OWN.replace("C(stage)", "C(stage, Sum)") + " + site", {}, ()),
    (OWN.replace("died ~", "hiv ~") + " + site", {"hiv": CODED}, ("died",)),
    (OWN.replace("died ~ age", "age ~ died") + " + site", {}, ()),
]
"""Formulas, the columns that they need beside the honest ones, and those that they do not."""

COLUMNS = {
    "kind": [
        ("age", {"kind": "factor", "levels": ["50", "60"]}),
        ("ward", NUMBER),
    ],
    "levels": [
        ("ward", {"levels": ["a", "b", "icu"]}),
        ("ward", {"levels": ["a", "b"]}),
        ("ward", {"levels": ["A", "b", "c", "icu"]}),
        ("ward", {"levels": ["a", "b", "c", " icu"]}),
        ("ward", {"levels": ["a", "b", "c", ""]}),
        ("stage", {"levels": ["1", "2"]}),
        ("died", {"levels": ["no", "may be"], "spellings": {}}),
    ],
    "spellings": [
        ("ward", {"levels": ["a", "b", "c"], "spellings": {"icu": "a"}}),
        ("ward", {"levels": ["a", "c"], "spellings": {"b": "a"}}),
        ("ward", {"levels": ["a", "b", "c"], "spellings": {"icu": "c", "b": "a"}}),
        ("ward", {"spellings": {"a": "b"}}),
        ("ward", {"spellings": {"True": "a"}}),
        ("stage", {"levels": ["1", "2"], "spellings": {"3": "1"}, "are_numbers": False}),
        ("stage", {"spellings": {"4": "1"}}),
    ],
    "are_numbers": [
        ("ward", {"are_numbers": True}),
        ("age", {"are_numbers": True}),
    ],
}

LEARNED = [
    ("scale(dose)", {"center": float("nan"), "scale": 1.0}),
    ("scale(dose)", {"center": 2.0**53, "scale": 1.0}),  # rounds each dose to 0 or to 2, by whether it exceeds 1
    ("scale(dose)", {"center": 2.0, "scale": 5e-324}),
    ("scale(dose)", {"center": 2.0, "scale": 1e300}),
    ("scale(dose)", {"center": 2.0, "scale": float("inf")}),
    ("scale(dose)", {"center": 2.0, "scale": None}),
    ("center(bp)", {"center": 120.0, "scale": 3.0}),
    ("center(bp)", {"center": float("inf"), "scale": None}),
    ("center(bp)", {"center": -1e18, "scale": None}),
    (POLY, {"alpha": [2.0, 2.0], "beta": [60.0, 1.0, 1e300]}),
    (POLY, {"alpha": [2.0, 2.0], "beta": [60.0, 5e-324, 1.0]}),
    (POLY, {"alpha": [2.0, 2.0**80], "beta": [60.0, 1.0, 1.0]}),
    (KNOTS, {"knots": [24.0], "lower_bound": 0.0, "upper_bound": 90.0}),
    (KNOTS, {"knots": [25.0, 26.0], "lower_bound": 0.0, "upper_bound": 90.0}),
    (KNOTS, {"knots": [], "lower_bound": 0.0, "upper_bound": 90.0}),
    (KNOTS, {"knots": [25.0], "lower_bound": 20.0, "upper_bound": 90.0}),
    (KNOTS, {"knots": [25.0], "lower_bound": 0.0, "upper_bound": 30.0}),
]


def forgeries(message):
    """Yield (field, forged message): one field differs from the honest message, and what must fit it."""
    spec = message.header["spec"]
    agreed, p = spec["agreement"], len(spec["features"])

    def with_agreement(**changed):
        return edited(message, {"spec.agreement": {**agreed, **changed}})

    def with_column(name, changed):
        return with_agreement(columns={**agreed["columns"], name: {**agreed["columns"][name], **changed}})

    for formula, more, without in FORMULAS:
        columns = {**agreed["columns"], **more}
        learned = {call.text: agreed["learned"][call.text] for call in parse(formula).learned}
        columns = {name: one for name, one in columns.items() if name not in without}
        yield "formula", with_agreement(formula=formula, columns=columns, learned=learned)
    yield "formula", with_agreement(client=None)
    yield "formula", with_agreement(client="ward")
    for changed in (
        {"levels": ["A", "B", "X"]},
        {"levels": ["X", "A", "B", "C"]},
        {"levels": ["A", "C", "B"]},
        {"levels": ["A", "B", "C"], "spellings": {"X": "A"}},
        {"are_numbers": True},
    ):
        yield "client", with_column("site", changed)
    for field, each in COLUMNS.items():
        for name, changed in each:
            yield field, with_column(name, changed)
    for text, found in LEARNED:
        yield "learned", with_agreement(learned={**agreed["learned"], text: found})
    others = {name: one for name, one in agreed["columns"].items() if name != "w"}
    yield "weights", with_agreement(weights=None, columns=others)
    yield "weights", with_agreement(weights="hiv", columns={**others, **HIV})
    yield "lines", with_agreement(lines=["Basel lacks 3 rows"])
    keys = spec["keys"]
    for field, value in (
        ("sites", ["B", "C", "X"]),
        ("keys", [KEYS["X"].identity, *keys[1:]]),
        ("keys", [keys[1], keys[0], keys[2]]),
        ("keys", []),
        ("weights", [spec["weights"][0] + 1, *spec["weights"][1:]]),
        ("loss", "Logistic(invented=1)"),
        ("features", [spec["features"][1], spec["features"][0], *spec["features"][2:]]),
        ("features", ["hiv", *spec["features"][1:]]),
        ("classes", spec["classes"][::-1]),
        ("classes", ["0", "1"]),
        ("agreement", None),
        ("shift", 1.0),
    ):
        yield field, edited(message, {f"spec.{field}": value})
    yield "prior", edited(message, {"spec.prior": {**spec["prior"], "shapes": [[2 * p], [2 * p, 2 * p]]}})
    for number, last in ((1e17, 0.0), (1.0, 1.0), (float("nan"), 0.0)):
        centre = np.append(np.full(p - 1, number), last)
        yield "centre", edited(message, {"spec.asks": spec["asks"]}, {"centre": centre})
    if spec["asks"]:  # there is no offset
        yield "shift", edited(message, {"spec.shift": 1.0}, {"centre": np.zeros(p)})
    else:
        yield "centre", edited(message, {"spec.asks": False}, {"centre": np.zeros(p)})


RULED = {
    name
    for rules in (consent.MEMBERS, consent.GLM, consent.AGREEMENT, consent.COLUMN)
    for name, rule in rules.items()
    if callable(rule)
}
ON_READING = {"lines", "loss", "prior", "centre"}
"""Fields that a reader refuses before the site's own rule does, for some values; the error then has no name."""
DOORS = ("broadcast", "inquiry")


@pytest.mark.parametrize("door", DOORS)
def test_every_forged_field_is_refused(door, honest):
    site, messages = honest
    made = list(forgeries(messages[door]))
    # `columns` is the rule of what else a formula would need: a reader refuses columns that are not the formula's
    assert {field for field, _ in made} == (RULED | {"lines"}) - {"columns"}
    assert len(made) > 75
    cells = {str(cell) for name in ("age", "dose", "bmi", "bp") for cell in rows_of("A")[name]}
    for field, message in made:
        with pytest.raises(MessageError) as refused:
            site.step(message)
        assert refused.value.name == field or (field in ON_READING and not refused.value.name), (field, refused.value)
        assert not any(cell in str(refused.value).partition("got")[0] for cell in cells if len(cell) > 4)


def first_of_each(message):
    """One forgery a field."""
    return dict(reversed(list(forgeries(message))))


@pytest.mark.parametrize("door", DOORS)
def test_files_and_envelopes_refuse_the_same(door, honest, tmp_path):
    """Nothing is written into the folder, and the envelope has a code for a reason."""
    site, messages = honest
    for folder in ("files", "node"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "message.npz"
    for field, forged in first_of_each(messages[door]).items():
        forged.write(path)
        with pytest.raises(MessageError) as refused:
            step_site(tmp_path / "files", site, path)
        assert refused.value.name == field or field in ON_READING
        said = answer(Request("run", path.read_bytes()), tmp_path / "node", lambda spec: (site, site.hello()))
        assert said.said is not None
        assert not said.said.is_note
        kind = None if said.message is None else Message.from_bytes(said.message).kind
        assert kind in (None, "lost"), field  # a request for a copy depends on no row
    assert {one.name for folder in ("files", "node") for one in (tmp_path / folder).glob("*.npz")} == set()


def test_a_run_is_not_resumed_with_another_spec(honest):
    """A state that somebody else has put into the folder, and a copy that comes along with a spec."""
    site, messages = honest
    after, _ = site.step(messages["broadcast"])
    kept = after.save()
    assert site.restore(kept).kept.spec.run == after.kept.spec.run
    for field, forged in first_of_each(kept).items():
        with pytest.raises(MessageError) as refused:
            site.restore(forged)
        assert refused.value.name == field or field in ON_READING
        with pytest.raises(ValueError, match="must") as refused:
            site.adopt(read_spec(forged, site.data), Message("copy", {}, {}))
        assert refused.value.name == field or field in ON_READING
    for _, forged in first_of_each(messages["broadcast"]).items():  # of another run than that which it takes part in
        with pytest.raises(MessageError, match="run must be"):
            after.step(forged)


def test_rows_without_a_table_have_no_agreement_and_no_origin():
    rng = np.random.default_rng(0)
    loss = ba.losses.LeastSquares(rng.normal(size=(40, 2)), rng.normal(size=40))
    sites = [Site(name, GLMData(loss)) for name in NAMES]
    message = server_of(sites, choices=None).broadcast()
    assert sites[0].step(message)[1] is not None
    agreed = {"formula": "y ~ x", "columns": {"x": NUMBER, "y": NUMBER}}
    for field, forged in (
        ("agreement", edited(message, {"spec.agreement": agreed})),
        ("centre", edited(message, {"spec.seed": 1}, {"centre": np.zeros(2)})),
        ("shift", edited(message, {"spec.shift": 2.0})),
        ("features", edited(message, {"spec.features": ["hiv", "x2"]})),
        ("weights", edited(message, {"spec.weights": [39.0, 40.0, 40.0]})),
        ("keys", edited(message, {"spec.keys": [key.identity for key in list(KEYS.values())[:3]]})),
    ):
        with pytest.raises(MessageError) as refused:
            sites[0].step(forged)
        assert refused.value.name == field


def test_every_field_has_a_rule_or_a_reason():
    """A field that somebody adds has none, and this fails; the twin is a class with one field more."""
    known = {
        GLMSpec: {**consent.MEMBERS, **consent.GLM},
        Agreement: consent.AGREEMENT,
        AgreedColumn: consent.COLUMN,
    }
    for kind, rules in known.items():
        assert {one.name for one in fields(kind)} == set(rules)
        assert all(callable(rule) or len(rule) > 20 for rule in rules.values())
    pytest.importorskip("torch", reason="networks need the extra `torch`")
    from bayesadmm_np.torch.federated import NetworkSpec

    assert {one.name for one in fields(NetworkSpec)} == {*consent.MEMBERS, *consent.NETWORK}
    assert not set(consent.MEMBERS) & {*consent.NETWORK, *consent.GLM}


# ----------------------------------------------------------------------------------------------------
# Whatever is taken
# ----------------------------------------------------------------------------------------------------

WORDS = ["a", "b", "icu", "A", "yes", "Yes", "no", "1", "1.0", "3", "rare", "X", "", " a"]
SIZES = [0.0, 1.0, -1.0, 1e3, 1e-3, 1e8, 1e17, 1e-300, 1e300, 25.0, np.inf]
TERMS = ["hiv", "site:hiv", "I(age > 50)", "site:I(dose > 2)", "age:dose", "site:ward", "site"]


def changed(rng, agreed):
    """Change something at random in the plain values of an agreement."""
    how, columns, learned = rng.integers(9), list(agreed["columns"]), list(agreed["learned"])
    column = agreed["columns"][columns[rng.integers(len(columns))]]
    levels, terms = column["levels"], agreed["formula"].split(" + ")
    place = int(rng.integers(1, len(terms)))
    if how == 0:
        column["levels"] = [str(level) for level in rng.permutation(levels)]
    elif how == 1:
        levels.insert(int(rng.integers(len(levels) + 1)), str(rng.choice(WORDS)))
    elif how == 2 and levels:
        levels.pop(int(rng.integers(len(levels))))
    elif how == 3 and levels:
        column["spellings"][str(rng.choice(WORDS))] = str(rng.choice(levels))
    elif how == 4:
        column["are_numbers"] = not column["are_numbers"]
    elif how == 5:
        found = agreed["learned"][learned[rng.integers(len(learned))]]
        name, size = list(found)[rng.integers(len(found))], float(rng.choice(SIZES)) * float(rng.normal())
        found[name] = [size] if isinstance(found[name], list) else size
    elif how == 6:
        terms.insert(place, str(rng.choice(TERMS)))
    elif how == 7:
        terms[place] += ":site" if rng.random() < 0.5 else ":age"
    else:
        agreed["client"] = [None, "site", "ward"][rng.integers(3)]
    agreed["formula"] = " + ".join(terms)
    if "hiv" in agreed["formula"]:
        agreed["columns"]["hiv"] = NUMBER


def made_of(site, spec, agreed):
    """The design that a site makes of plain values; None where anybody refuses them."""
    try:
        told = with_agreement(spec, read_as(Agreement, agreed, "agreement"))
        return site.data.rows_of(replace(told, classes=spec.classes), site.name).loss.X
    except ValueError:
        return None


def outside(X, basis):
    """Largest part of a column outside of the span, relative to the column's length."""
    left, sizes, _ = np.linalg.svd(basis / np.maximum(np.linalg.norm(basis, axis=0), 1e-300), full_matrices=False)
    inside, lengths = left[:, sizes > 1e-10 * sizes[0]], np.linalg.norm(X, axis=0)
    X = X / np.where(lengths > 0, lengths, 1.0)
    return np.abs(X - inside @ (inside.T @ X)).max()


@pytest.mark.parametrize("is_checked", [True, False])
def test_what_a_site_takes_is_another_basis_of_its_own_columns(is_checked, monkeypatch):
    """Random changes of an agreement: taken or not, the same rows, and no column outside of the honest ones' span.

    A centre of 2²⁶ times the column costs it half of its digits, 2⁻²⁶; twin: what is not checked leaves the span.
    """
    if not is_checked:
        monkeypatch.setattr(tables, "require_agreed", lambda spec, own: spec.agreement)
    site, spec = site_of("A"), server_of([site_of(name) for name in NAMES]).spec
    honest, plain, taken = site.data.rows_of(spec, "A").loss.X, spec.encode()[0]["agreement"], []
    for seed in range(60):
        rng, agreed = np.random.default_rng([31, seed]), json.loads(json.dumps(plain))
        for _ in range(rng.integers(1, 3)):
            changed(rng, agreed)
        X = made_of(site, spec, agreed)
        if X is not None and agreed != plain:
            taken.append(X)
    assert {len(X) for X in taken} == {59}
    assert len(taken) > 8
    assert (max(outside(X, honest) for X in taken) < 1e-6) == is_checked


# ----------------------------------------------------------------------------------------------------
# What the lies would get
# ----------------------------------------------------------------------------------------------------


def believed(spec, own):
    """Broken twin: the check before this one, which skips terms whose first factor is the factor of the sites."""
    told, known = spec.agreement.parsed, parse(own.formula)
    terms = tuple(term for term in told.terms if term[0][0] != spec.agreement.client)
    assert spec.agreement.formula.startswith(own.formula)
    assert (terms, told.offsets, told.target) == (known.terms, known.offsets, known.target)
    return spec.agreement


def asked_for_sums(spec, site):
    """Sums of the columns at a site, by their names."""
    said = site.step(inquiry_of(spec, 1, *spec.pack_question(DesignQuestion())))[1]
    return dict(zip(spec.features, said.arrays["a/sums"], strict=True))


def with_agreement(spec, agreement):
    features = features_of(agreement, read_kind("logistic"), ("0", "1"))
    return replace(spec, agreement=agreement, features=features, prior=full(len(features)))


def plain_sites(formula="died ~ age"):
    return [Site(name, GLMTable(rows_of(name), formula, minimum_count=3), rules=ALLOWED) for name in NAMES]


@pytest.mark.parametrize("term", ["hiv", "I(age > 60)"])
def test_sums_of_a_column_that_was_never_offered(term, monkeypatch):
    """Two walls: the formula is the site's own, and a run has no column but those of the formula."""
    told = server_of(plain_sites(), choices={"ignore_case": True, "site_intercepts": True}).spec
    columns = {**told.agreement.columns, **({"hiv": AgreedColumn("number")} if term == "hiv" else {})}
    formula = f"{told.agreement.formula} + site:{term}"
    spec = with_agreement(told, replace(told.agreement, formula=formula, columns=columns))
    with pytest.raises(MessageError) as refused:
        asked_for_sums(spec, plain_sites()[1])
    assert refused.value.name == "formula"
    monkeypatch.setattr(tables, "require_agreed", believed)
    if term == "hiv":
        with pytest.raises(MessageError, match="'hiv' is not in the table"):
            asked_for_sums(spec, plain_sites()[1])
    else:
        assert asked_for_sums(spec, plain_sites()[1])[f"site[B]:{term}"] == (rows_of("B")["age"] > 60).sum()


def counts_without(site, spec, levels, spellings):
    """Sums of age at site A where the ward "icu" is a level, or is spelled otherwise."""
    told = spec.agreement
    ward = AgreedColumn("factor", levels, spellings)
    return asked_for_sums(with_agreement(spec, replace(told, columns={**told.columns, "ward": ward})), site)["age"]


LIES = [
    (("a", "b", "c"), {}),
    (("a", "b", "c"), {"icu": "a"}),
    (("icu", "a", "b", "c"), {}),
    (("a", "icu", "b", "c"), {}),
]
"""Levels and spellings of the ward, of which the first leaves the patient in "icu" out, and the others do not."""


def test_the_patient_of_a_level_that_the_site_does_not_name(monkeypatch):
    """The difference of two answers was his age. Whatever a server says, this site leaves him out, and nobody else.

    Twin: a site that takes the rows of all levels which the server says.
    """
    formula, choices = "died ~ age + ward", {"ignore_case": True, "drop_withheld": True}
    spec, site = server_of(plain_sites(formula), choices=choices).spec, lambda: plain_sites(formula)[0]
    age = rows_of("A")["age"]
    kept = []
    for levels, spellings in LIES:
        if spellings:
            with pytest.raises(MessageError) as refused:
                counts_without(site(), spec, levels, spellings)
            assert refused.value.name == "spellings"
        else:
            kept.append(counts_without(site(), spec, levels, spellings))
    assert kept == [age[1:].sum()] * 3
    monkeypatch.setattr(tables, "require_agreed", lambda spec, own: spec.agreement)
    monkeypatch.setitem(consent.GLM, "weights", "it was the weight in the hello")
    monkeypatch.setattr(tables, "are_named", lambda column, said: np.ones(len(column), dtype=bool))
    assert {counts_without(site(), spec, *lie) - kept[0] for lie in LIES[1:]} == {age[0]}


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_levels_that_are_not_named_are_in_nothing_that_a_site_says(seed):
    """A site with such rows says what it would say without them, but how many there are; the twin names the levels."""
    rng = np.random.default_rng([29, seed])
    table = {name: np.array(column, dtype=object) for name, column in rows_of("ABC"[seed % 3]).items()}
    rare = rng.permutation(60)[: rng.integers(1, 4)]
    table["ward"][rare], table["stage"][rare[:1]] = [f"rare {k % 2}" for k in range(len(rare))], 9
    table["age"][[j for j in range(9, 14) if j not in rare]] = None
    formula = "died ~ scale(age) + dose + ward + C(stage)"
    without = {name: np.delete(column, rare) for name, column in table.items()}
    whole, left = (GLMTable(one, formula, minimum_count=4) for one in (table, without))
    twin = GLMTable(table, formula)
    said, own, other = (one.introduction() for one in (whole, left, twin))
    for one in (said, own, other):
        one["table"]["described"]["n_rows"] = 0
        for column in one["table"]["described"]["columns"].values():
            column["withheld"] = 0
    assert whole.digest == left.digest != twin.digest
    assert said == own != other


def test_rows_that_a_mean_has_and_a_run_has_not_are_none_or_some():
    """Row of whom one value is missing: his age was the difference of the mean in the hello and the run's own."""
    table = {name: np.array(column, dtype=object) for name, column in rows_of("B").items()}
    rules = DisclosureRules(minimum_sites=0, budget=100.0)
    for missing in range(5):
        table["dose"][:missing] = None
        site = Site("B", GLMTable(table, "died ~ scale(age) + dose"), rules=rules)
        if missing in (1, 2):
            with pytest.raises(DisclosureError) as raised:
                site.cleared(site.hello(), Ledger())
            assert (raised.value.rule, raised.value.got) == ("minimum_count", missing)
            moments, made = site.data.described.moments["age"], site.data.introduction()["rows"]
            assert moments.count - made == missing
        else:
            site.cleared(site.hello(), Ledger())


def test_the_factor_of_the_sites_is_the_site_and_no_column_of_its_table():
    """A table may have a column of that name, which the formula has not; it is never read."""
    spec = server_of(plain_sites(), choices={"ignore_case": True, "site_intercepts": True}).spec
    found = asked_for_sums(spec, plain_sites()[1])
    assert (found["site[T.B]"], found["site[T.C]"]) == (60, 0)


# ----------------------------------------------------------------------------------------------------
# Whose run it is, and which columns
# ----------------------------------------------------------------------------------------------------


def stepped(folder, site, message):
    """What leaves by file."""
    folder.mkdir(exist_ok=True)
    message.write(folder / "message.npz")
    return Message.read(step_site(folder, site, folder / "message.npz")[1])


def messages_of(sites, choices):
    """A broadcast of a run of these sites, and a question."""
    spec = server_of(sites, choices=choices).spec
    inquiry = inquiry_of(spec, 1, *spec.pack_question(DesignQuestion()))
    return server_of(sites, asks=False, choices=choices).broadcast(), inquiry


def test_a_server_cannot_invent_sites_whose_keys_the_owner_knows(tmp_path):
    """Names and keys cost nothing: with the usual rules two invented sites count. With `peers` they do not."""
    data = {name: table_of(name, formula="died ~ age") for name in NAMES}
    usual = DisclosureRules()
    known = DisclosureRules(peers=tuple(KEYS[name].identity for name in "BC"))
    real = [site_of(name, data[name]) for name in NAMES]
    invented = [real[0], *(Site(name, data[name], key=SigningKey(bytes([k] * 32))) for k, name in enumerate("BC"))]
    for number, (sites, rules, refused) in enumerate(
        [(real, usual, False), (real, known, False), (invented, usual, False), (invented, known, True)]
    ):
        broadcast, inquiry = messages_of(sites, {"ignore_case": True})
        site, folder = site_of("A", data["A"], rules), tmp_path / f"{number}"
        said = stepped(folder, site, inquiry).header["refused"]
        if not refused:
            assert said is None
            assert stepped(folder, site, broadcast).kind == "reply"
            continue
        assert said["codes"] == ["minimum_sites"]
        with pytest.raises(DisclosureError) as raised:
            stepped(folder, site, broadcast)
        assert (raised.value.rule, raised.value.got) == ("minimum_sites", 1)
    with pytest.raises(ValueError, match="peers must be public keys"):
        DisclosureRules(peers=("ed25519:ab",))


def test_columns_that_are_allowed_are_asked_of_every_message(tmp_path):
    """The owner has changed the rule after the hello."""
    sites = [site_of(name, table_of(name, formula="died ~ age + dose")) for name in NAMES]
    site = replace(sites[0], rules=DisclosureRules(allow=("died", "age", "w")))
    broadcast, inquiry = messages_of(sites, {"ignore_case": True, "site_intercepts": True})
    refused = stepped(tmp_path / "a", site, inquiry).header["refused"]
    assert refused == {"codes": ["allow"], "columns": ["dose"]}
    with pytest.raises(DisclosureError) as raised:
        stepped(tmp_path / "a", site, broadcast)
    assert (raised.value.rule, raised.value.column) == ("allow", "dose")
    allowed = replace(site, rules=DisclosureRules(allow=("died", "age", "w", "dose")))
    assert stepped(tmp_path / "b", allowed, broadcast).kind == "reply"
