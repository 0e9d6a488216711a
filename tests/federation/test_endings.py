"""Final messages: whatever is refused leaves the site as it was, and the genuine one is taken in afterwards."""

import json

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMTask, Message, MessageError, final_result, step_site
from bayesadmm_np.federation.spec import run_of
from oracles.couriers import carried, introduce
from oracles.problems import prior, team

CLIENTS = team("logistic", sizes=(5, 8))


def run(**options):
    sites = introduce(CLIENTS)
    server = Coordinator.start([site.hello() for site in sites], GLMTask(ba.methods.PVI(), prior("full", 3), **options))
    while server.outcome is None:
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        server = server.step(replies)
    return sites, server.broadcast()


SITES, FINAL = run(tol=1e-3)
LIMITED_SITES, LIMITED = run(rounds=1)

BAD = {
    "status": ({"status": "NOSUCH"}, "status must be one of CONVERGED, ROUND_LIMIT, ROUNDED"),
    "status of no text": ({"status": ["CONVERGED"]}, "Expected `str`, got `array` - at `$.status`"),
    "stopped by a callback": ({"status": "STOPPED"}, "status must be one of CONVERGED"),
    "message": ({"message": 5}, "Expected `str`, got `int` - at `$.message`"),
    "no objective": ({"objective": []}, "objective must be"),
    "an objective too many": ({"objective": [*FINAL.header["objective"], 1.0]}, "objective must be"),
    "objective of text": (
        {"objective": ["1"] * len(FINAL.header["objective"])},
        "Expected `float`, got `str` - at `$.objective[0]`",
    ),
    "round beyond the last": ({"round": 10**9}, "round must be an integer from 2 to 102"),
    "another round": ({"round": FINAL.header["round"] + 1}, "objective must be"),
    "a certificate of edges": ({"certificate": {"edges": 1}}, "got `int` - at `$.certificate.edges`"),
    "converged without certificate": ({"certificate": None}, "certificate must be given where a run has converged"),
    "a certificate that fails": ({"certificate.pooled": 1.0}, "certificate.pooled must be at most tol"),
    "a negative residual": ({"certificate.pooled": -1.0}, "certificate.pooled must be >= 0"),
    "a residual of NaN": ({"certificate.pooled": float("nan")}, "certificate.pooled must be >= 0"),
    "another tol": ({"certificate.tol": 1.0}, "certificate.tol must be that of the run"),
    "a negative tol": ({"certificate.tol": -1.0}, "certificate.tol must be that of the run"),
    "a negative edge": ({"certificate.edges.gather": -1.0}, "edges.gather must be >= 0"),
    "a negative distance": ({"certificate.distance.sd_units": -1.0}, "distance must have bounds >= 0"),
    "bounds of seven": ({"certificate.distance.per_coefficient": [0.0] * 7}, "per_coefficient must be 3 numbers"),
    "a negative bound": ({"certificate.distance.per_coefficient": [0.0, -1.0, 0.0]}, "distance must have bounds >= 0"),
}


def edited(message, changes):
    header = json.loads(json.dumps(dict(message.header)))
    for path, value in changes.items():
        inner, (*outer, last) = header, path.split(".")
        for name in outer:
            inner = inner[name]
        inner[last] = value
    return carried(Message(message.kind, header, message.arrays))


@pytest.mark.parametrize("case", BAD)
def test_a_final_message_that_contradicts_itself_is_refused_by_whoever_reads_it(case):
    changes, words = BAD[case]
    for read in (final_result, SITES[0].step):
        read(FINAL)  # as it was, it is read
        with pytest.raises(MessageError) as refused:
            read(edited(FINAL, changes))
        assert words in str(refused.value)


def test_a_refused_final_message_leaves_the_sites_folder_as_it_was(tmp_path):
    state, good, bad = (tmp_path / name for name in ("state.npz", "final.npz", "bad.npz"))
    SITES[0].save().write(state)
    FINAL.write(good)
    before = state.read_bytes()
    for changes, _ in BAD.values():
        edited(FINAL, changes).write(bad)
        with pytest.raises(MessageError):
            step_site(tmp_path, introduce(CLIENTS)[0], bad)
        assert state.read_bytes() == before
    assert step_site(tmp_path, introduce(CLIENTS)[0], good)[1] is None


def test_a_run_at_its_limit_ends_with_what_it_knows():
    assert final_result(LIMITED).status is ba.Status.ROUND_LIMIT
    assert len(final_result(LIMITED).objective) == 2
    LIMITED_SITES[0].step(LIMITED)
    with pytest.raises(MessageError, match="round must be an integer from 2 to 3"):
        final_result(edited(LIMITED, {"round": 4}))
    with pytest.raises(MessageError, match=r"certificate.pooled must be at most tol"):
        final_result(edited(LIMITED, {"status": "CONVERGED"}))


@pytest.mark.parametrize("engine", [["glm"], {"glm": 1}, None, 1])
def test_an_engine_that_is_no_name_is_refused(engine):
    header = json.loads(json.dumps(dict(FINAL.header)))
    header["spec"]["engine"] = engine
    forged = Message("final", header, FINAL.arrays)
    forged = Message("final", {**header, "run": run_of(forged.header["spec"], forged.arrays)}, FINAL.arrays)
    for read in (final_result, introduce(CLIENTS)[0].step):
        with pytest.raises(MessageError, match="spec must be that of a run, with an engine of glm, network"):
            read(forged)


def test_what_is_not_converged_may_have_no_certificate():
    assert np.isfinite(final_result(edited(LIMITED, {"certificate": None})).objective).all()
