import os

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("default", derandomize=True, max_examples=25, deadline=None)
settings.register_profile("wide", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)
