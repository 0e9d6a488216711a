"""Lines that a reader would get wrong are noticed by the tests that are named for them."""

import pytest

from oracles.mutants import MUTANTS, SURVIVORS, survives


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_no_other_mutant_survives(mutant):
    assert survives(mutant) is (mutant in SURVIVORS)
