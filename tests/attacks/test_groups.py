"""Sums of groups at several ratios of standard deviations tell those of each size; a size of few rows is kept."""

import numpy as np
import pytest

from bayesadmm_np.federation import DisclosureRules
from bayesadmm_np.glm.mixed import ProfileQuestion
from bayesadmm_np.losses.random_intercept import GaussianRandomIntercept
from oracles.attacks import asked
from oracles.overrides import ALLOWED

RATIOS = (0.5, 1.0)


def site_of(sizes):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    X = np.column_stack([np.zeros((codes.size, 2)), rng.normal(size=codes.size), np.ones(codes.size)])
    loss = GaussianRandomIntercept(X, np.column_stack([rng.normal(size=codes.size), codes]), n_auxiliary=2)
    loss.kind_name = "mixed_linear"
    return loss


def recovered(answers, sizes):
    """Solve for Σ s sᵀ over the groups of each size, s the sums of their columns and target, and return the first."""
    slopes = [[-2.0 * ratio / (1.0 + ratio**2 * n) ** 2 for n in sizes] for ratio in RATIOS]
    first = np.linalg.solve(slopes, [one["first"].ravel() for one in answers])[0].reshape(3, 3)
    return first[1] / first[1, 1]  # a single row is (x, 1, y)


@pytest.mark.parametrize("part", ["root", "first", "second", "log_det", "n_groups", "n_rows"])
def test_a_group_of_a_size_of_its_own(part, tmp_path):
    """A row that is a group by itself among groups of five is recovered without rules, and in no part with them."""
    loss = site_of((1, *[5] * 12))
    answers = []
    for k, ratio in enumerate(RATIOS):
        (tmp_path / f"{k}").mkdir()
        found, refused = asked(tmp_path / f"{k}", ProfileQuestion(ratio), loss, ALLOWED)
        assert refused is None
        answers.append(found)
    assert part in answers[0]
    assert recovered(answers, (1, 5)) == pytest.approx(np.r_[loss.X[0, 2:], loss.y[0, 0]], abs=1e-9)
    found, refused = asked(tmp_path, ProfileQuestion(1.0), loss, DisclosureRules())
    assert found == {}
    assert "minimum_count" in refused["codes"]


def test_groups_of_one_size_are_answered(tmp_path):
    """The twin: the same rows less that group are sums of many, and the usual rules let them out."""
    found, refused = asked(tmp_path, ProfileQuestion(1.0), site_of([5] * 12), DisclosureRules())
    assert refused is None
    assert "first" in found
