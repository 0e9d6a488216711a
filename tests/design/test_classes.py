"""Classes of a target that sites code differently: said or refused, never a class more in silence."""

import itertools

import numpy as np
import pytest

from bayesadmm_np.design.formula import agree, describe_columns
from bayesadmm_np.design.levels import Numeral, TableError
from bayesadmm_np.estimators.formula_fit import make_designs

CODES = {
    "0/1": [0, 1],
    "1/2": [1, 2],
    "-1/1": [-1, 1],
    "no/yes": ["no", "yes"],
    "No/Yes": ["No", "Yes"],
    "blank": ["no ", "yes"],
    "unseen": ["no", "ye\u200bs"],
    "text 0/1": ["0", "1"],
    "0.0/1.0": [0.0, 1.0],
    "False/True": [False, True],
    "nein/ja": ["nein", "ja"],
    "alive/dead": ["alive", "dead"],
}


def classes_of(name, labels):
    """Return what an agreement says of the classes of a target."""
    tables = {site: {name: [*own], "x": [float(j) for j in range(len(own))]} for site, own in labels.items()}
    said = {site: describe_columns(table, f"{name} ~ x", classes=True) for site, table in tables.items()}
    lines = agree(said, f"{name} ~ x", classes=True).lines
    return [line for line in lines if ": levels " not in line and " has no row of " not in line]


def meanings(sites):
    """The meanings of each class as it is named, and the names of each meaning."""
    names, means = {}, {}
    for code in sites:
        for meaning, label in enumerate(CODES[code]):
            name = str(label) if isinstance(label, bool) or not isinstance(label, float) else f"{label:g}"
            names.setdefault(name, set()).add(meaning)
            means.setdefault(meaning, set()).add(name)
    return [*names.values(), *means.values()]


def test_every_pair_and_triple_of_codings_is_alike_or_said_or_refused():
    silent, refused = 0, []
    for sites in itertools.chain(itertools.product(CODES, repeat=2), itertools.product(CODES, repeat=3)):
        labels = {f"site {k}": CODES[code] for k, code in enumerate(sites)}
        try:
            lines = classes_of("died", labels)
        except TableError as error:
            refused.append((error.column, error.site))
            continue
        if not lines:
            silent += 1
            assert all(len(found) == 1 for found in meanings(sites)), sites
    assert {column for column, _ in refused} == {"died"}
    assert {site for _, site in refused} <= {"site 0", "site 1", "site 2"}
    # the twin: the rule is not that everything is refused
    assert silent > len(CODES)


def test_what_is_no_doubt_is_no_line():
    for labels in (
        {"a": [1, 2], "b": [2, 1]},
        {"a": [0, 1, 2], "b": [1, 2]},  # a site has three: no coding of two
        {"a": [0], "b": [1], "c": [2]},  # by label
        {"a": ["mild", "severe", "none"], "b": ["mild"]},
        {"a": [True, False], "b": [True]},
    ):
        assert classes_of("stage", labels) == []


def test_words_are_names_and_make_a_line():
    (line,) = classes_of("stage", {"a": ["mild", "severe"], "b": ["mild", "moderate"]})
    assert "no site has more than two of its 3 classes ('mild', 'moderate', 'severe')" in line
    (line,) = classes_of("stage", {"a": [0, 2], "b": [0, 1]})  # 0 and 2 are no code of two classes
    assert "3 classes" in line


def described(*wards, formula="died ~ ward"):
    return {
        f"site {k}": describe_columns({"died": np.arange(len(ward)) % 2, "ward": ward}, formula)
        for k, ward in enumerate(wards)
    }


@pytest.mark.parametrize(("one", "two"), [("Ward 1", "ward  1"), ("x", "\uff58"), ("01", "1"), ("1e0", "1")])
def test_likely_twins_are_refused_with_both_spellings(one, two):
    """Twin: the option that merges what differs in case or blanks, and no other."""
    tables = described([one, "z"], [two, "z"])
    with pytest.raises(TableError) as caught:
        agree(tables, "died ~ ward")
    assert all(repr(level) in caught.value.fact for level in (one, two))
    if two == "1":
        with pytest.raises(TableError, match="zeros"):
            agree(tables, "died ~ ward", ignore_case=True)
        return
    assert "ignore_case" in str(caught.value)
    assert len(agree(tables, "died ~ ward", ignore_case=True).columns["ward"].levels) == 2


def test_other_alphabets_are_levels():
    assert agree(described(["да", "нет"], ["нет", "да"]), "died ~ ward").columns["ward"].levels == ("да", "нет")


def test_a_mark_for_a_missing_value_is_no_level():
    """Twins: a word may be one, with a line; and a site whose levels are others."""
    for mark in ("?", "--", "n/a", "NULL"):
        tables = {f"site {k}": {"died": [0, 1], "ward": ward} for k, ward in enumerate((["x", mark], ["x", "z"]))}
        with pytest.raises(TableError, match="missing value") as caught:
            make_designs(tables, "died ~ ward")
        assert (caught.value.site, caught.value.column) == ("site 0", "ward")
    lines = agree(described(["x", "unknown"], ["x", "z"]), "died ~ ward").lines
    assert "ward: level 'unknown' may stand for a missing value" in lines
    assert not any("missing" in line for line in agree(described(["x", "y"], ["x", "z"]), "died ~ ward").lines)


def test_true_and_false_beside_other_levels_are_refused():
    """Twin: beside 0 and 1 truth values are these, of a number and of a factor."""
    for switches, others in itertools.product(([True, False], ["True", "False"]), ([1, 0], [1, 2], ["yes", "no"])):
        if (switches[0], others[1]) == (True, 0):
            made = agree(described(switches, others, formula="died ~ C(ward)"), "died ~ C(ward)").columns["ward"]
            assert (
                made.read(switches, [True, True], "ward").tolist() == made.read(others, [True, True], "ward").tolist()
            )
            continue
        with pytest.raises(TableError) as caught:
            agree(described(switches, others, formula="died ~ C(ward)"), "died ~ C(ward)")
        assert (caught.value.site, caught.value.column) == ("site 1", "ward")
    assert agree(described([True, False], [1, 0]), "died ~ ward").columns["ward"].kind == "number"


def test_a_target_in_c_names_classes():
    """C(died) of words is the target died. Twin: words at one site, numbers at another."""
    tables = {"a": {"died": ["no", "yes"], "age": [1.0, 2.0]}, "b": {"died": ["yes", "no"], "age": [1.0, 2.0]}}

    def agreed():
        said = {site: describe_columns(table, "C(died) ~ age", classes=True) for site, table in tables.items()}
        return agree(said, "C(died) ~ age", classes=True)

    assert agreed().classes == ("no", "yes")
    tables["b"]["died"] = [1, 0]
    with pytest.raises(
        TableError, match="site 'b': column 'died' holds '0', '1', none of which another site has: 'no', 'yes'"
    ):
        agreed()


def test_a_number_is_not_written_otherwise_by_its_decimals():
    """Cells of numbers, as a file has them. Twin: texts are texts."""
    wards = [[*map(Numeral, ward)] for ward in (["1.0", "2.0"], ["1", "2"])]
    agreement = agree(described(*wards, formula="died ~ C(ward)"), "died ~ C(ward)")
    assert agreement.lines == (
        "ward: '1.0' was read as '1', '2.0' was read as '2'",
        "ward: levels '1', '2'; reference '1'",
    )
    assert agreement.columns["ward"].read(["2.00", 1.0, "2", "02"], slice(None), "ward").tolist() == [1, 0, 1, -1]
    with pytest.raises(TableError, match=r"'1\.0'"):
        agree(described(["1.0", "2.0"], ["1", "2"], formula="died ~ C(ward)"), "died ~ C(ward)")


def test_text_is_text_within_a_site():
    """Codes of ICD-9: levels that differ in zeros are two, where a site has both. Twin: a number may be either."""
    texts = ["345.1", "345.10", "V58.6"]
    agreement = agree(described(texts, texts[1:], formula="died ~ C(ward)"), "died ~ C(ward)")
    assert agreement.columns["ward"].levels == tuple(texts)
    assert agreement.columns["ward"].read([*texts, "345.100"], slice(None), "ward").tolist() == [0, 1, 2, -1]
    with pytest.raises(TableError, match="differ in zeros"):
        agreement.columns["ward"].read([345.1], slice(None), "ward")
    with pytest.raises(TableError, match=r"'345.1'"):
        agree(described(texts, [345.1, 2.0], formula="died ~ C(ward)"), "died ~ C(ward)")
