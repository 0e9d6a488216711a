"""The old place of `oracles.problems`, until everybody has moved."""

from oracles.problems import *  # noqa: F403
