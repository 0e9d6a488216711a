"""The study behind Figure 4: its results follow from its draws, and the page of the figures has its numbers."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demos need the extra `demos`")
pytest.importorskip("sklearn", reason="the demos need the extra `demos`")

from bayesadmm_np.demos import fig4_outlier as figure

ROOT = Path(__file__).resolve().parents[2]
CLEAN = ("none", "right")  # settings without a wrong label


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("outlier")


@pytest.fixture(scope="module")
def content():
    return json.loads((ROOT / "benchmarks" / "results" / "outlier.json").read_text(encoding="utf-8"))


def drawn(row, seed):
    """One draw of a setting, out of its columns."""
    return {
        key: {k: v[seed] for k, v in value.items()} if isinstance(value, dict) else value[seed]
        for key, value in row.items()
        if key != "setting"
    }


@pytest.mark.parametrize(("name", "seed"), [("base", 0), ("far4", 1), ("turn90", 2), ("points14", 3), ("none", 4)])
def test_a_draw_is_that_of_the_results_file(study, content, name, seed):
    """Twin: the next draw is another one. No distance lies so near the criterion that rounding may decide."""
    found = study.measured(name, seed)
    assert found == drawn(content[name], seed)
    assert found != drawn(content[name], seed + 1)
    runs, _ = figure.compare(*study.draw(name, seed), study.ROUNDS)
    assert min(abs(value - 1.0) for near, *_ in runs.values() for value in near) > 1e-5


def test_every_setting_has_twenty_draws_and_says_what_differs(study, content):
    assert list(content) == list(study.SETTINGS)
    assert len(content) == 19
    for name, row in content.items():
        assert row["setting"] == study.SETTINGS[name][0]
        assert {len(counts) for counts in row["rounds"].values()} == {study.DRAWS} == {20}


def test_counting_pairs_and_medians(study):
    row = {"rounds": {"a": [1, 2, 3, None, None], "b": [1, 3, 2, None, 4]}}
    assert study.counts({"x": row}, a="a", b="b") == (2, 1, 2)
    assert study.median([1, None, None]) == "never"
    assert study.median([1, 2, 2, None]) == "2"


def test_what_the_study_found(study, content):
    """The statements of docs/figures.md that are no cell of its table."""
    assert max(max(row["rounds"][figure.METRIC]) for row in content.values()) == 3
    ended = [status for row in content.values() for status in row["small_rho"]]
    assert {status.split()[0] for status in ended} == {"ILL_POSED_CLIENT"}
    assert sum(status.endswith(" 1") for status in ended) == 362
    wrong = [row for name, row in content.items() if name not in CLEAN]
    assert sum(rank == 1 for row in wrong for rank in row["sd_rank"]) == 30
    assert sum(len(row["sd_rank"]) for row in wrong) == 340
    apart = [np.abs(np.subtract(row["share"], row["share_mean"])).max() for row in wrong]
    assert max(apart) < 0.03
