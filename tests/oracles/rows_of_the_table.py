"""Rows of the table whose messages differ in what they hold, and the families that a row is defined for."""

import bayesadmm_np as ba
from oracles.problems import PRIORS, prior

M = ba.methods
ROWS = {
    "BayesADMM": M.BayesADMM(1.0),
    "ADMM": M.ADMM(2.0),
    "PreconditionedADMM": M.PreconditionedADMM(1.0),
    "BregmanADMM": M.BregmanADMM(2.0, 0.5),
    "AMA": M.AMA(2.0),
    "PVI": M.PVI(),
    "damped PVI": M.PVI(0.5),
    "FedLapCov": M.FedLapCov(),
    "FedAvg": M.FedAvg(),
    "FedDyn": M.FedDyn(2.0),
    "FedIvon": M.FedIvon(beta=0.5),
    "BCM": M.BCM(),
    "BLR": M.BLR(0.3),
    "Newton": M.Newton(),
    "guarded Newton": ba.Guarded(M.Newton(start="prior")),
    "accelerated PVI": ba.Accelerated(M.PVI(0.5), 3),
    "accelerated BayesADMM": ba.Accelerated(M.BayesADMM(1.0), 2),
    "PVI by rows": M.PVI("rows"),
    "accelerated FedLapCov by rows": ba.Accelerated(M.FedLapCov("rows"), 3),
}


def families_of(row):
    """Names of the Gaussian families that a row is defined for, the one with most parts first."""
    method = row.method if isinstance(row, ba.Accelerated) else row
    return [family for family in PRIORS if not method.families or isinstance(prior(family, 3), method.families)]
