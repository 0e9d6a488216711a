"""Sums of a cutpoint of its own rest on the rows of its two classes: a class of few rows is kept."""

from dataclasses import replace

import numpy as np
import pytest

from bayesadmm_np.federation import DisclosureRules
from bayesadmm_np.glm.questions import ApartQuestion
from bayesadmm_np.losses.ordinal import ProportionalOdds
from oracles.attacks import asked
from oracles.overrides import ALLOWED

THETA = np.array([-1.0, 0.5, 0.0, 0.0])


def site_of(counts):
    """Rows of three classes; a class of few rows is beside one of none, as where a site never saw that level."""
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(3), counts)
    X = np.column_stack([np.zeros((y.size, 2)), rng.normal(size=(y.size, 2))])
    loss = ProportionalOdds(X, y, n_auxiliary=2)
    loss.kind_name = "ordinal"
    return loss


@pytest.mark.parametrize("part", ["gradient", "hessian"])
def test_the_row_of_a_class_of_one(part, tmp_path):
    """θ is (cutpoints, coefficients of the first, of the second): those of the first are the row times a number."""
    loss, row = site_of((1, 0, 59)), site_of((1, 0, 59)).X[0, 2:]
    found, refused = asked(tmp_path, ApartQuestion(THETA), loss, ALLOWED)
    assert refused is None
    block = found["gradient"][2:4] if part == "gradient" else found["hessian"][0, 2:4]
    assert block[1] / block[0] == pytest.approx(row[1] / row[0], rel=1e-9)
    rules = replace(DisclosureRules(), minimum_class_count=0)  # the rule about classes would keep it too
    found, refused = asked(tmp_path, ApartQuestion(THETA), loss, rules)
    assert found == {}
    assert "point" in refused["codes"]


def test_classes_of_many_rows_are_answered(tmp_path):
    found, refused = asked(tmp_path, ApartQuestion(THETA), site_of((20, 15, 25)), DisclosureRules())
    assert refused is None
    assert found["gradient"].shape == (6,)
