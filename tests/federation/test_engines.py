"""What both engines have and what they have not, and what a message cannot make a reader do before it knows the run."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    Coordinator,
    GLMData,
    GLMTask,
    Message,
    MessageError,
    SigningKey,
    Site,
    final_result,
)
from bayesadmm_np.federation import messages as messages_module
from bayesadmm_np.federation import site as site_module
from bayesadmm_np.federation.engine import NOT_THERE, require
from bayesadmm_np.federation.messages import read_spec
from bayesadmm_np.federation.spec import run_of
from oracles.couriers import carried, introduce
from oracles.problems import prior, team

M = ba.methods
CLIENTS = team("logistic", sizes=(5, 8))
START = prior("full", 3)
PAGE = Path(__file__).parents[2] / "docs" / "federation.md"


def begin(**options):
    sites = introduce(CLIENTS)
    return Coordinator.start([site.hello() for site in sites], GLMTask(M.PVI(), START, **options)), sites


# ----------------------------------------------------------------------------------------------------
# What is not there
# ----------------------------------------------------------------------------------------------------


def test_what_an_engine_has_not_is_refused_and_stands_in_the_docs():
    for engine, feature in NOT_THERE:
        with pytest.raises(ValueError, match=feature):
            require(engine, feature)
    page = PAGE.read_text(encoding="utf-8")
    assert [reason for reason in NOT_THERE.values() if reason not in page] == []
    require("glm", "acceleration")  # what is there is not refused


def test_a_reply_of_a_network_holds_what_the_page_lists():
    torch = pytest.importorskip("torch", minversion="2.4", reason="networks need the extra `torch`")
    from bayesadmm_np.torch import IVONADMM, MLP, NetworkData, NetworkTask, Rows

    site = Site("A", NetworkData(Rows(torch.zeros(3, 2), torch.tensor([0, 1, 1])), MLP((2, 2))))
    server = Coordinator.start([site.hello()], NetworkTask(IVONADMM(), MLP((2, 2)), rounds=1))
    reply = site.step(server.broadcast())[1]
    about = {"run", "round", "site", "answers"}
    assert {*reply.header, *reply.arrays} - about <= {"value", "linear", "precision", "statistics", "solved"}


# ----------------------------------------------------------------------------------------------------
# The run's id first, and sizes of the site's own
# ----------------------------------------------------------------------------------------------------


def large(broadcast, dim):
    """The same run, as its header has it, with a prior of so many parameters; the id is right."""
    header = json.loads(json.dumps(dict(broadcast.header)))
    header["spec"]["prior"]["shapes"] = [[dim], [dim, dim]]
    header["spec"]["prior"] |= {"mean": 0.0, "precision": 1.0}
    arrays = {name: values for name, values in broadcast.arrays.items() if name != "prior"}
    forged = Message("broadcast", header, arrays)
    return carried(Message("broadcast", {**header, "run": run_of(forged.header["spec"], forged.arrays)}, arrays))


def peak_of(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_message_cannot_make_a_site_take_more_memory_than_its_own_rows_need():
    server, sites = begin()
    forged = large(server.broadcast(), 4000)  # 128 MB of a precision, 2 kB of a message

    def refused():
        with pytest.raises(MessageError, match="shapes of the prior"):
            sites[0].step(forged)

    assert len(forged.to_bytes()) < 4096
    assert peak_of(refused) < 1 << 20
    # the twin: read without the site's bound, the prior is made
    assert peak_of(lambda: read_spec(large(server.broadcast(), 400))) > 400 * 400 * 8


def test_a_site_compares_the_run_before_it_reads_the_spec(monkeypatch):
    server, sites = begin()
    after, _ = sites[0].step(server.broadcast())
    other, _ = begin(tol=1e-3)
    read = []
    monkeypatch.setattr(site_module, "read_spec", lambda *arguments: read.append(1))
    with pytest.raises(MessageError, match=r"run must be .* which this site takes part in"):
        after.step(other.broadcast())
    forged = replace(server.broadcast(), header={**server.broadcast().header, "run": "0" * 16})
    with pytest.raises(MessageError, match="run must be the digest of its spec"):
        sites[0].step(forged)
    after.step(server.broadcast())  # a spec that is known is not read again
    assert not read


def test_a_run_whose_checkpoint_could_not_be_read_does_not_begin(monkeypatch):
    begin()
    monkeypatch.setattr(messages_module, "LIMIT", 700)
    words = r"dim must be small enough for a checkpoint of 700 bytes with 2 sites \(1008 for site s0\), got 3"
    with pytest.raises(MessageError, match=words):
        begin()


# ----------------------------------------------------------------------------------------------------
# Identity
# ----------------------------------------------------------------------------------------------------


def test_a_sites_identity_is_kept_with_the_run():
    site = Site("A", GLMData(CLIENTS[0]), key=SigningKey(bytes(32)))
    server = Coordinator.start([carried(site.hello())], GLMTask(M.PVI(), START))
    again = Coordinator.restore(carried(server.save()))
    assert again.introduction("A")["identity"] == site.key.identity
    assert begin()[0].introduction("s0")["identity"] is None


def test_a_result_of_the_other_engine_is_refused():
    torch = pytest.importorskip("torch", minversion="2.4", reason="networks need the extra `torch`")
    from bayesadmm_np.torch import IVONADMM, NetworkData, NetworkTask, Rows, final_model

    model = torch.nn.Linear(3, 2)
    network = Site("s0", NetworkData(Rows(torch.zeros(5, 3), torch.tensor([0, 1, 1, 0, 1])), model))
    deep = Coordinator.start([network.hello()], NetworkTask(IVONADMM(), model, rounds=1))
    core, sites = begin()
    with pytest.raises(MessageError, match="engine must be 'network', as this site has rows for, got glm"):
        network.step(core.broadcast())
    with pytest.raises(MessageError, match="engine must be 'glm', as this site has rows for, got network"):
        sites[0].step(deep.broadcast())
    with pytest.raises(MessageError, match="content must be the state of a server, and it is not: model must be"):
        Coordinator.restore(deep.save())
    with pytest.raises(MessageError, match="and it is not: model must not be given"):
        Coordinator.restore(core.save(), model)
    network, reply = network.step(deep.broadcast())
    deep = deep.step([reply])
    final = deep.step([network.step(deep.broadcast())[1]]).broadcast()
    with pytest.raises(MessageError, match="spec must be that of a run of losses of the core"):
        final_result(final)
    assert isinstance(final_model(final, model), torch.nn.Linear)
    assert np.isfinite(final.header["objective"]).all()
