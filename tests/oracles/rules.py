"""Plain Monte Carlo: the rule of an outside package, and the baseline that the library's rules are held against."""

from dataclasses import dataclass

import numpy as np

from bayesadmm_np.losses.expectations import PointRule


@dataclass(frozen=True)
class MonteCarlo(PointRule):
    """The same independent points for every row."""

    points: int = 256
    seed: int = 0

    def nodes(self, n_outputs):
        points = np.random.default_rng(self.seed).standard_normal((self.points, n_outputs))
        return points, np.full(self.points, 1.0 / self.points)
