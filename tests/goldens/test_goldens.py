"""Answers of today against those of the commit that the goldens were made of; select an area by `-k core`."""

import functools

import adaptor
import cases
import numpy as np
import pytest
import records

import bayesadmm_np as ba

pytestmark = pytest.mark.filterwarnings("default")


@functools.cache
def compared(area):
    """Return {case: what differs} of an area; a case that is new is no difference."""
    old, exact = records.load(area), records.bits_wanted()
    new = dict(cases.AREAS[area]())
    found = {}
    for case, record in old.items():
        if case not in new:
            found[case] = ["missing"]
            continue
        if new[case] is None:
            continue
        wrong = records.differences(record, new[case], functools.partial(tolerance, case), exact)
        if wrong:
            found[case] = wrong
    return found


def tolerance(case, key):
    """What sums in another order may change, as other BLAS builds do; relative to the largest entry.

    Rounding starts at 1e-16. The core's solvers stop at 1e-12 of a Fisher length, and four rounds multiply an error by
    less than ten each; a mix of rounds divides it by their differences. A network's 40 steps multiply it by less than
    a hundred. Commands stop at their --tol, 1e-8 where none is given, at most 1e-5 here.
    OpenBLAS's oldest kernels without AVX differ from those of AVX512 by 1e-14 (core), 1e-13 (accelerated), 2e-15
    (networks) and 3e-8 (commands).
    """
    if case in cases.CALLS:
        return 1e-5
    return 1e-8 if "accelerated" in case else 1e-10


def check(area):
    found = compared(area)
    lines = [f"{case}: {'; '.join(wrong)}" for case, wrong in found.items()]
    assert not found, f"{len(found)} cases differ:\n" + "\n".join(lines)


def test_core():
    check("core")


def test_torch():
    pytest.importorskip("torch")
    check("torch")


def test_cli():
    for needed in ("cyclopts", "matplotlib", "pandas", "sklearn"):
        pytest.importorskip(needed)
    check("cli")


def test_core_sees_a_millionth_of_rho():
    """The broken twin."""
    name = "BayesADMM, full, logistic"
    clients = adaptor.team("logistic", sizes=cases.SIZES)
    start = adaptor.prior("full", clients[0].dim)
    old = records.load("core")[name]

    def wrong(rho):
        new = cases.record_of(ba.methods.BayesADMM(rho), clients, start)
        return records.differences(old, new, functools.partial(tolerance, name))

    assert not wrong(1.0)
    assert any(line.startswith("servers") for line in wrong(1.0 + 1e-6))


def test_an_error_is_relative_and_sees_nan_and_shape():
    old = np.array([1e6, np.nan, np.inf])
    assert records.error(old, old) == 0.0
    assert records.error(old, [1e6 + 1, np.nan, np.inf]) == pytest.approx(1e-6)
    assert records.error(old, [1e6, 0.0, np.inf]) == np.inf
    assert records.error(old, [1e6, np.nan]) == np.inf
