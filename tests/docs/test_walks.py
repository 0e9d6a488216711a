"""Walks through the library cross few rooms; `tests/oracles/walks.py` counts them."""

import pytest

pytest.importorskip("sklearn")

from oracles.walks import fit, is_design, measure, walk


def test_walks_cross_few_rooms():
    walks = measure()
    for name, (must, most) in {
        "X": ({"estimators", "design", "losses"}, 10),
        "a posterior": ({"estimators", "splitting", "clients", "families"}, 8),
        "a message": ({"federation", "_archive"}, 6),
    }.items():
        assert must <= walks[name].rooms, name
        assert len(walks[name].rooms) <= most, f"{name}: {walks[name]}"


def test_a_walk_of_nothing_is_empty():
    assert not walk(fit, lambda value: False).files
    assert walk(fit, is_design).changes
