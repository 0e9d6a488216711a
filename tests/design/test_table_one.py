"""Table one over sites: its numbers against pandas, and what it notices."""

import itertools

import numpy as np
import pandas as pd
import pytest

from bayesadmm_np.design.table_one import read_dictionary
from bayesadmm_np.estimators import describe


def patients(n: int = 90, seed: int = 0) -> pd.DataFrame:
    """A table of three hospitals without a fault."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "hospital": np.repeat(["north", "south", "west"], n // 3),
            "age": rng.normal(60.0, 9.0, n),
            "chol": rng.normal(220.0, 40.0, n),
            "sex": rng.choice(["f", "m"], n),
            "smokes": rng.integers(0, 2, n),
        }
    )


def test_numbers_are_those_of_pandas():
    table = patients()
    table.loc[3, "age"] = np.nan
    found = describe(table, "hospital")
    for site, rows in [("all", table), *table.groupby("hospital")]:
        cell = found.columns["age"][site]
        assert (cell.n, cell.missing) == (rows.age.count(), rows.age.isna().sum())
        assert np.allclose([cell.mean, cell.sd], [rows.age.mean(), rows.age.std()], rtol=1e-13)
        assert np.allclose(cell.quantiles, rows.age.quantile([0, 0.25, 0.5, 0.75, 1]), rtol=1e-13)
        assert found.columns["sex"][site].levels == rows.sex.value_counts().to_dict()
        assert sum(found.columns["smokes"][site].levels.values()) == len(rows)
    assert found.sites == {"north": 30, "south": 30, "west": 30}
    assert not found.findings


def test_a_mapping_and_labels_give_the_same_as_a_frame():
    table = patients()
    data = table.drop(columns="hospital")
    for given in (data, dict(data)):
        assert describe(given, table.hospital.to_numpy()).to_dict() == describe(table, "hospital").to_dict()


def test_a_cholesterol_of_zero_is_noticed_and_a_level_of_zero_is_not():
    table = patients()
    table.loc[60:, "chol"] = 0.0
    (sentence,) = describe(table, "hospital").findings
    assert "chol is 0 in 30 of 90 rows (west 30)" in sentence
    table = patients()
    table.loc[7, "chol"] = 0.0
    assert "chol is 0 in 1 of 90 rows (north 1)" in describe(table, "hospital").findings[0]
    table["chol"] = np.random.default_rng(1).poisson(1.0, 90)  # zeros beside ones are counts
    assert not describe(table, "hospital").findings


def test_counts_have_gaps_in_their_tails_and_many_zeros():
    """None is a code for a missing value, of 60 columns of each sort; broken twins hold one."""
    for mean, seed in itertools.product((0.5, 2.0, 8.0), range(20)):
        rng = np.random.default_rng(seed)
        counts = {
            "plain": rng.poisson(mean, 200),
            "inflated": rng.poisson(min(mean, 6.0), 200) * (rng.random(200) < 0.6),
            "wide": rng.negative_binomial(1.0, 1.0 / (1.0 + mean), 200),
        }
        assert not describe({name: column.astype(float) for name, column in counts.items()}).findings
        coded = {name: np.where(np.arange(200) % 20 == 0, 99, column) for name, column in counts.items()}
        coded["negative"] = np.where(np.arange(200) % 20 == 0, -1, rng.poisson(9.0, 200))
        found = " ".join(describe(coded).findings)
        assert "negative is -1 in 10 of 200" in found
        for name, column in coded.items():
            # a code stands beside measurements, of ten different values
            assert (f"{name} is 99 in 10 of 200" in found) == (name != "negative" and np.unique(column).size > 10)


def test_another_unit_is_noticed():
    table = patients()
    table.loc[30:59, "chol"] /= 38.67  # mmol/l
    (sentence,) = describe(table, "hospital").findings
    assert sentence.startswith("chol has the median 5.")
    assert "at south" in sentence


def test_writing_alone_and_mixed_kinds_are_noticed():
    table = patients()
    table.loc[:10, "sex"] = table.loc[:10, "sex"].str.upper() + " "
    table["smokes"] = table.smokes.astype(object)
    table.loc[table.hospital == "west", "smokes"] = "yes"
    mixed, *rest = (s for s in describe(table, "hospital").findings if "smokes" in s)
    assert "text ('yes')" in mixed
    assert not rest
    assert any("'f', and 'F' at site 'north'" in sentence for sentence in describe(table, "hospital").findings)


def test_the_dictionary_is_held_against_each_site():
    table = patients()
    table.loc[5, "age"] = 190.0
    table.loc[31:40, "chol"] = np.nan
    rules = read_dictionary(
        {
            "age": {"min": 18, "max": 110},
            "chol": {"most_missing": 0.1},
            "sex": {"levels": ["f"]},
            "smokes": {"levels": [0, 1]},
            "weight": {},
        }
    )
    age, chol, *sex, weight = describe(table, "hospital", dictionary=rules).violations
    assert age == "age lies outside [18, 110] in 1 rows at north, from 190 to 190."
    assert chol == "chol is missing in 10 of 30 rows at south; allowed are 10 %."
    assert len(sex) == 3
    assert weight == "weight is in the dictionary and not in the data."
    assert not describe(patients(), "hospital", dictionary={"age": rules["age"]}).violations


def test_refusals_name_the_argument_or_the_column():
    for arguments in ({"client": "ward"}, {"columns": ["weight"]}, {"client": ["a"]}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            describe(patients(), **arguments)
    for plain in ({"age": {"least": 3}}, {"age": 3}, {"age": {"min": "old"}}):
        with pytest.raises(ValueError, match="age"):
            read_dictionary(plain)
