"""Messages of networks: what is refused of them; test_messages.py has what all engines share."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.federation import Coordinator, GLMData, MessageError, Site, final_result  # noqa: E402
from bayesadmm_np.federation.messages import read_spec  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    MLP,
    FedLapFunc,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    final_model,
)
from bayesadmm_np.torch.federated import packed as packed_statistics  # noqa: E402
from bayesadmm_np.torch.methods import PersonalMethod  # noqa: E402
from bayesadmm_np.torch.team import Team  # noqa: E402
from oracles.couriers import carried, edited, started, until  # noqa: E402
from oracles.couriers import introduce as introduce_glm  # noqa: E402
from oracles.problems import prior, team  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402

IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
pytestmark = pytest.mark.usefixtures("one_thread")


def rows(n=20, weights=None):
    X = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return Rows(X, (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long(), weights)


def network():
    torch.manual_seed(0)
    return MLP((4, 5, 3))


def site_of(name="A", data=None, model=None):
    return Site(name, NetworkData(rows() if data is None else data, network() if model is None else model))


def task(row=None, model=None, **settings):
    return NetworkTask(row or IVONADMM(), model or network(), **{"solver": IVON, "rounds": 2, **settings})


def begun(model=None):
    site = site_of(model=model)
    return site, started([site], task(model=model))


def spoilt(reply, name, value):
    values = reply.arrays[name].copy()
    values[1] = value
    return edited(reply, {}, {name: values})


BAD = {
    "NaN": (lambda r: spoilt(r, "linear", np.nan), "linear must be finite, got nan at position 1"),
    "beyond float32": (lambda r: spoilt(r, "linear", 1e300), "linear must be finite in torch.float32"),
    "wrong shape": (lambda r: edited(r, {}, {"linear": r.arrays["linear"][:-1]}), "linear must be a vector of 43"),
    "a negative precision": (lambda r: spoilt(r, "precision", -1.0), "precision must be a distribution's: positive"),
    "a precision of zero": (lambda r: spoilt(r, "precision", 1e-60), "precision must be a distribution's: positive"),
    "one more vector": (lambda r: edited(r, {}, {"more": np.zeros(3)}), "arrays must be exactly"),
    "nothing solved": (lambda r: edited(r, {"solved": None}), "solved must be"),
    "solved is a number": (lambda r: edited(r, {"solved": 1}), "$.solved"),
    "one value": (lambda r: edited(r, {"value": [1.0]}), "value must be"),
    "a value that is text": (lambda r: edited(r, {"value": ["1", 2.0]}), "$.value[0]"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_replies_are_refused(case):
    spoil, complaint = BAD[case]
    site, server = begun()
    reply = site.step(server.broadcast())[1]
    assert server.read([reply])
    with pytest.raises(MessageError) as refused:
        server.read([spoil(reply)])
    assert complaint in str(refused.value)


def test_statistics_that_the_model_cannot_hold_are_refused():
    """They would be infinite in the next broadcast, which no site takes, and in the checkpoint, which nobody reads."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 3))
    site, server = begun(model)
    honest = site.step(server.broadcast())[1]

    def with_other(position, value):
        statistics = honest.arrays["statistics"].copy()
        statistics[position] = value
        return edited(honest, {}, {"statistics": statistics})

    for position, value, name in (
        (0, 1e300, "1.running_mean"),
        (-1, 1e300, "1.num_batches_tracked"),
        (-1, 0.5, "1.num_batches_tracked"),
        (-1, -1.0, "1.num_batches_tracked"),
        (2, -0.25, "1.running_var"),
    ):
        for take in (server.read, server.step):
            with pytest.raises(MessageError, match=f"statistics of {name} must be"):
                take([with_other(position, value)])
    for position, value in ((0, -0.25), (2, 3.0)):  # a mean may be below zero
        after = server.step([with_other(position, value)])
        assert packed_statistics(after.held.buffers)["statistics"][position] == value


def test_a_server_that_overflows_ends_the_run_as_diverged():
    """Finite answers can make a mean that is not: no site would take it, and no reader of the checkpoint."""
    site, server = begun()
    site, reply = site.step(server.broadcast())
    ended = server.step([edited(reply, {}, {"linear": np.full(43, 3e38), "precision": np.full(43, 1e-3)})])
    assert ended.outcome.status.name == "DIVERGED"
    assert Coordinator.restore(carried(ended.save()), network()).outcome == ended.outcome
    assert site.step(ended.broadcast())[1] is None


def test_a_site_holds_one_factor_however_many_sites_there_are(monkeypatch):
    """Its memory is not the server's, whose tensors have a row a site."""
    site = site_of()
    server = started([site, *(site_of(f"B{k}", rows(12)) for k in range(5))], task(rounds=1))
    made, honest = [], Team.start

    def noted(team):
        state = honest(team)
        fields = "site_linear", "site_precision", "client_linear", "client_precision"
        made.extend(getattr(state, name).untyped_storage().nbytes() for name in fields)
        return state

    monkeypatch.setattr(Team, "start", noted)
    after, reply = site.step(server.broadcast())
    copied = site.adopt(server.spec, server.copy_of("A"))
    assert site.restore(after.save()).save().digest == after.save().digest
    assert copied.step(server.broadcast())[1].digest == reply.digest
    assert 0 < max(made) <= server.state.mean.nbytes  # a start has a view a site
    Coordinator.restore(server.save(), network())  # the twin
    assert len(honest(server.engine.team).site_linear) == 6


def test_settings_that_are_no_plain_numbers_travel():
    site = site_of()
    server = started([site], task(prior_precision=2, rounds=np.int64(1), seed=np.int64(3)))
    assert server.step([site.step(carried(server.broadcast()))[1]]).number == 2


def test_sites_with_another_model_or_without_one_do_not_begin_a_run():
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    others = [site_of("B", model=one) for one in (MLP((4, 5, 3)).double(), flat)]
    glm = Site("C", GLMData(ba.losses.LeastSquares([[1.0]], [1.0])))
    calls = [(lambda other=other: started([site_of(), other], task()), "loss") for other in others]
    assert_refused([*calls, (lambda: started([glm], task()), "loss"), (lambda: started([], task()), "hellos")])


def test_wrong_arguments_are_named():
    def made(row, **settings):
        return lambda: started([site_of()], task(row, **settings))

    assert_refused(
        [
            (made(FedLapFunc()), "shared"),
            (made(PersonalMethod("own", 1.0, 0.0)), "personal"),
            (made(ba.Accelerated(ba.methods.PVI(0.5))), "acceleration:"),
            (made(ba.methods.BregmanADMM()), "method"),
            (made(ba.methods.FedAvg()), "FedAvg"),
            (made(IVONADMM(), temperature=0.0), "temperature"),
            (made(IVONADMM(), rounds=-1), "rounds"),
            (lambda: Site("A", NetworkData(rows().X, network())), "rows"),
            (lambda: Site("A", NetworkData(rows(), network()), ba.GaussianMechanism(1.0, 2.0), 3), "privacy:"),
            (lambda: Site("A", rows()), "data"),
            (lambda: Site("A", NetworkData(rows(), "mlp")), "model"),
            (lambda: Site("A", NetworkData(rows(), network(), "nonsense")), "device='nonsense'"),
        ]
    )


FORGED = {
    "method": {"type": "Popen"},
    "solver": {"type": "Popen"},
    "sites": ["B", "A"],
    "engine": "glm",
    "weights": [0.0],
    "keys": ["another's"],
    "network": 3,
    "dim": "43",
    "prior_precision": float("nan"),
    "temperature": None,
    "rounds": 1.5,
    "seed": -1,
    "likelihood": {"type": "Bernoulli"},  # the signature of the network is that of classes
}


def test_forged_terms_are_refused():
    site, server = begun()
    honest = server.broadcast()
    assert set(FORGED) == set(honest.header["spec"])
    assert read_spec(honest).run == server.spec.run
    for field, value in FORGED.items():
        with pytest.raises(MessageError, match="run must be"):
            site.step(edited(honest, {f"spec.{field}": value, "run": server.spec.run}))
        with pytest.raises(MessageError) as refused:
            site.step(edited(honest, {f"spec.{field}": value}))
        assert "run must be" not in str(refused.value), field


def test_a_site_refuses_broadcasts_of_others():
    site, server = begun()
    first = server.broadcast()
    after, reply = site.step(first)
    same, again = after.step(first)
    assert (again.digest, same.save().digest) == (reply.digest, after.save().digest)
    negative = replace(first, arrays={**first.arrays, "precision": -first.arrays["precision"]})
    assert_refused(
        [
            (lambda: site_of("B").step(first), "sites"),
            (lambda: site_of(data=rows(12)).step(first), "weights"),
            (lambda: site_of(data=rows(weights=torch.full((20,), 0.5))).step(first), "weights"),
            (lambda: site_of(model=MLP((4, 6, 3))).step(first), "network"),
            (lambda: site.step(negative), "precision"),
            (lambda: Coordinator.restore(server.save(), MLP((4, 6, 3))), "model"),
        ]
    )


def test_a_result_of_the_other_engine_is_refused():
    (site, deep), sites = begun(), introduce_glm(team("logistic", sizes=(5, 8)))
    sites[0] = replace(sites[0], name="A")
    core = started(sites, ba.federation.GLMTask(ba.methods.PVI(), prior("full", 3)))
    with pytest.raises(MessageError, match="engine must be 'network', as this site has rows for, got glm"):
        site.step(core.broadcast())
    with pytest.raises(MessageError, match="engine must be 'glm', as this site has rows for, got network"):
        sites[0].step(deep.broadcast())
    with pytest.raises(MessageError, match="content must be the state of a server, and it is not: model must be"):
        Coordinator.restore(deep.save())
    with pytest.raises(MessageError, match="and it is not: model must not be given"):
        Coordinator.restore(core.save(), network())
    final = until(deep, [site])[0].broadcast()
    with pytest.raises(MessageError, match="spec must be that of a run of losses of the core"):
        final_result(final)
    assert isinstance(final_model(final, network()), torch.nn.Module)
    assert np.isfinite(final.header["objective"]).all()
