"""Final messages: whatever is refused leaves the site as it was, and the genuine one is taken in afterwards."""

import json

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMTask, Message, MessageError, final_result
from bayesadmm_np.federation.spec import run_of
from oracles.couriers import carried, exchanged, introduce
from oracles.problems import prior, team

CLIENTS = team("logistic", sizes=(5, 8))


def run(**options):
    sites = introduce(CLIENTS)
    server = Coordinator.start([site.hello() for site in sites], GLMTask(ba.methods.PVI(), prior("full", 3), **options))
    while server.outcome is None:
        server, sites = exchanged(server, sites)
    return sites, server.broadcast()


SITES, FINAL = run(tol=1e-3)
LIMITED_SITES, LIMITED = run(rounds=1)

BAD = [
    ("status", {"status": "NOSUCH"}),
    ("$.status", {"status": ["CONVERGED"]}),
    ("status", {"status": "STOPPED"}),  # by a callback, which no run between sites has
    ("$.message", {"message": 5}),
    ("objective", {"objective": []}),
    ("objective", {"objective": [*FINAL.header["objective"], 1.0]}),
    ("$.objective[0]", {"objective": ["1"] * len(FINAL.header["objective"])}),
    ("round", {"round": 10**9}),
    ("objective", {"round": FINAL.header["round"] + 1}),
    ("$.certificate.edges", {"certificate": {"edges": 1}}),
    ("certificate", {"certificate": None}),
    ("certificate.pooled", {"certificate.pooled": 1.0}),
    ("certificate.pooled", {"certificate.pooled": -1.0}),
    ("certificate.pooled", {"certificate.pooled": float("nan")}),
    ("certificate.tol", {"certificate.tol": 1.0}),
    ("edges.gather", {"certificate.edges.gather": -1.0}),
    ("distance", {"certificate.distance.sd_units": -1.0}),
    ("per_coefficient", {"certificate.distance.per_coefficient": [0.0] * 7}),
    ("distance", {"certificate.distance.per_coefficient": [0.0, -1.0, 0.0]}),
]
"""What a refusal names, and the change that it refuses."""


def edited(message, changes):
    header = json.loads(json.dumps(dict(message.header)))
    for path, value in changes.items():
        inner, (*outer, last) = header, path.split(".")
        for name in outer:
            inner = inner[name]
        inner[last] = value
    return carried(Message(message.kind, header, message.arrays))


def test_a_final_message_that_contradicts_itself_is_refused_by_whoever_reads_it():
    for read in (final_result, SITES[0].step):
        read(FINAL)  # as it was, it is read
        for named, changes in BAD:
            with pytest.raises(MessageError) as refused:
                read(edited(FINAL, changes))
            assert named in refused.value.reason, (named, changes)


def test_a_run_at_its_limit_ends_with_what_it_knows():
    assert final_result(LIMITED).status is ba.Status.ROUND_LIMIT
    assert len(final_result(LIMITED).objective) == 2
    LIMITED_SITES[0].step(LIMITED)
    with pytest.raises(MessageError, match="round must be an integer from 2 to 3"):
        final_result(edited(LIMITED, {"round": 4}))
    with pytest.raises(MessageError, match=r"certificate.pooled must be at most tol"):
        final_result(edited(LIMITED, {"status": "CONVERGED"}))


def test_an_engine_that_is_no_name_is_refused():
    header = json.loads(json.dumps(dict(FINAL.header)))
    header["spec"]["engine"] = ["glm"]
    forged = Message("final", header, FINAL.arrays)
    forged = Message("final", {**header, "run": run_of(forged.header["spec"], forged.arrays)}, FINAL.arrays)
    for read in (final_result, introduce(CLIENTS)[0].step):
        with pytest.raises(MessageError, match="spec must be that of a run, with an engine of glm, network"):
            read(forged)


def test_what_is_not_converged_may_have_no_certificate():
    assert np.isfinite(final_result(edited(LIMITED, {"certificate": None})).objective).all()
