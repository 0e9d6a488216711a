"""The smallest site is one row: each part of each answer gives a number of that row, and none by the usual rules."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import DisclosureRules
from bayesadmm_np.glm.firth import FirthQuestion
from bayesadmm_np.glm.questions import (
    DerivativesQuestion,
    DesignQuestion,
    LeastSquaresQuestion,
    OwnFitQuestion,
    RowsQuestion,
    StatisticsQuestion,
    SumsQuestion,
)
from oracles.attacks import asked
from oracles.overrides import ALLOWED

X, WEIGHT = 1.37, 3.0
AT = np.array([0.8, 0.0])
EVENT = ba.losses.Logistic([[X, 1.0]], [1.0], weights=[WEIGHT])
SHIFTED = ba.losses.Logistic([[X, 1.0]], [1.0], offset=[0.31])
NORMAL = ba.losses.LeastSquares([[X, 1.0]], [1.0], weights=[WEIGHT])
TRIANGLE = LeastSquaresQuestion(has_intercept=True)
STATISTICS = StatisticsQuestion(AT, np.zeros(2), np.eye(2) * 0.01, ("HC0",))


def ratio(of):
    """Multiples of (x, 1): a line of a sum of outer products, a gradient, or the first line of a triangle."""
    return of[0] / of[1]


def lost(value):
    """A logistic row's loss w log(1 + e⁻ᶠ) at f = 0.8 x."""
    return -np.log(np.expm1(value / WEIGHT)) / AT[0]


PARTS = {  # question, loss, part of the answer: what the attacker makes of it, and what that is of the row
    ("design", "root"): (DesignQuestion(), EVENT, lambda root: ratio(root[0]), X),
    ("design", "sums"): (DesignQuestion(), EVENT, ratio, X),
    ("design", "target"): (DesignQuestion(), EVENT, np.argmax, 1),
    ("design", "weight"): (DesignQuestion(), EVENT, float, WEIGHT),
    ("design", "offset"): (DesignQuestion(), SHIFTED, float, 0.31),
    ("design", "n_rows"): (DesignQuestion(), EVENT, int, 1),
    ("least_squares", "shift"): (TRIANGLE, NORMAL, lambda shift: shift[0], X),
    ("least_squares", "root"): (TRIANGLE, NORMAL, lambda root: root[0, 0] ** 2, WEIGHT),
    ("least_squares", "total_weight"): (TRIANGLE, NORMAL, float, WEIGHT),
    ("least_squares", "log_weight"): (TRIANGLE, NORMAL, np.exp, WEIGHT),
    ("rows", "root"): (RowsQuestion(), EVENT, lambda root: ratio(root[0]), X),
    ("derivatives", "value"): (DerivativesQuestion(AT), EVENT, lost, X),
    ("derivatives", "gradient"): (DerivativesQuestion(AT), EVENT, ratio, X),
    ("derivatives", "hessian"): (DerivativesQuestion(AT), EVENT, lambda matrix: ratio(matrix[1]), X),
    ("sums", "value"): (SumsQuestion(AT), EVENT, lost, X),
    ("sums", "gradient"): (SumsQuestion(AT), EVENT, ratio, X),
    ("sums", "hessian"): (SumsQuestion(AT), EVENT, lambda matrix: ratio(matrix[1]), X),
    ("statistics", "weight"): (STATISTICS, EVENT, float, WEIGHT),
    ("statistics", "log_weight"): (STATISTICS, EVENT, np.exp, WEIGHT),
    ("statistics", "loss"): (STATISTICS, EVENT, lost, X),
    ("statistics", "pearson"): (STATISTICS, EVENT, lambda value: -np.log(value / WEIGHT) / AT[0], X),
    ("statistics", "meats/HC0"): (STATISTICS, EVENT, lambda matrix: ratio(matrix[1]), X),
    ("firth", "value"): (FirthQuestion(AT, np.eye(2)), EVENT, lost, X),
    ("firth", "gradient"): (FirthQuestion(AT, np.eye(2)), EVENT, ratio, X),
    ("firth", "hessian"): (FirthQuestion(AT, np.eye(2)), EVENT, lambda matrix: ratio(matrix[1]), X),
    ("firth", "pull"): (FirthQuestion(AT, np.eye(2)), EVENT, ratio, X),
    ("own_fit", "root"): (OwnFitQuestion(np.ones(2)), NORMAL, lambda root: ratio(root[0]), X),
    ("own_fit", "mean"): (OwnFitQuestion(np.ones(2)), NORMAL, lambda mean: np.dot(mean, [X, 1.0]), 1.0),
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: " ".join(part))
def test_each_part_of_each_answer(part, tmp_path):
    question, loss, seen, is_of_row = PARTS[part]
    (tmp_path / "none").mkdir()
    found, refused = asked(tmp_path / "none", question, loss, ALLOWED)
    assert refused is None
    assert seen(found[part[1]]) == pytest.approx(is_of_row, abs=1e-9)
    found, refused = asked(tmp_path, question, loss, DisclosureRules())
    assert found == {}
    assert "minimum_rows" in refused["codes"]
