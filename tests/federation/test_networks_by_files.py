"""Networks by files: the bits of `torch.run` with its clients one by one, rows with weights, and late answers."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="networks need the extra `torch`")

import bayesadmm_np as ba  # noqa: E402
from bayesadmm_np.federation import (  # noqa: E402
    Coordinator,
    MessageError,
    Site,
    load_server,
    start_server,
    step_server,
    step_site,
)
from bayesadmm_np.federation.dispatch import Plan, answer, serve  # noqa: E402
from bayesadmm_np.federation.dispatch.rounds import PROGRESS  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    IVONADMM,
    IVONPVI,
    MLP,
    AdamSteps,
    IVONSteps,
    NetworkData,
    NetworkTask,
    Rows,
    run,
)
from bayesadmm_np.torch.state import TENSORS  # noqa: E402
from oracles.couriers import carried  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.scripted import Clock, Scripted  # noqa: E402

M = ba.methods
IVON = IVONSteps(epochs=2, batch_size=8, lr=0.1, hess_init=0.1, beta2=0.9)
ADAM = AdamSteps(epochs=2, batch_size=8, lr=0.01)
ROWS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON),
    "IVON-PVI": (IVONPVI(0.3), IVON),
    "from the server": (
        IVONADMM(0.7, 0.3),
        replace(IVON, hess_start="server", ess=12.0, schedule="cosine", schedule_rounds=2),
    ),
    "FedLapCov": (M.FedLapCov(0.5), ADAM),
    "FedDyn": (M.FedDyn(1.0), ADAM),
    "FedAvg": (M.FedAvg(), ADAM),
}


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums are of one order."""


def problem(weighted=False):
    source = torch.Generator().manual_seed(0)
    clients = []
    for n in (20, 12, 7):
        X = torch.randn(n, 4, generator=source)
        y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
        weights = torch.randint(1, 4, (n,), generator=source).float() / 3.0 if weighted else None
        clients.append(Rows(X, y, weights))
    return clients


def network():
    torch.manual_seed(0)
    return MLP((4, 5, 3))


def sites_of(clients):
    return [Site(name, NetworkData(rows, network()), rules=ALLOWED) for name, rows in zip("abc", clients, strict=True)]


def by_files(folder, row, clients, **settings):
    """Every step is done twice, as if it had been interrupted, and every state is read from its file."""
    model, sites = network(), sites_of(clients)
    for name in ("server", *(site.name for site in sites)):
        (folder / name).mkdir(parents=True)
    server = Coordinator.start([carried(site.hello()) for site in sites], NetworkTask(row, model, 3.0, **settings))
    path = start_server(folder / "server", server)
    while path.name != "final.npz":
        replies = []
        for site in sites:
            once = step_site(folder / site.name, site, path)[1].read_bytes()
            replies.append(step_site(folder / site.name, site, path)[1])
            assert replies[-1].read_bytes() == once
        step_server(folder / "server", replies, model)
        _, path = step_server(folder / "server", replies, model)
    for site in sites:
        assert step_site(folder / site.name, site, path)[1] is None
    return load_server(folder / "server", model)


def is_same(result, server):
    objective = [server.state.start_objective, *(record.objective for record in server.state.history)]
    return np.array_equal(result.objective, objective) and all(
        torch.equal(getattr(result.state, name), getattr(server.state, name)) for name in TENSORS
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_files_and_one_process_agree_bit_for_bit(name, weighted, tmp_path):
    row, solver = ROWS[name]
    settings = {"rounds": 2, "solver": solver, "seed": 4, "temperature": 0.7}
    result = run(row, problem(weighted), network(), 3.0, batched=False, **settings)
    server = by_files(tmp_path, row, problem(weighted), **settings)
    assert is_same(result, server)
    assert server.outcome.status is ba.Status.ROUND_LIMIT
    if name == "FedLapCov":  # the comparison can fail: other weights are another run
        assert not is_same(result, by_files(tmp_path / "other", row, problem(not weighted), **settings))


def test_a_site_with_other_weights_than_it_said_does_not_join():
    sites = sites_of(problem(weighted=True))
    server = Coordinator.start([site.hello() for site in sites], NetworkTask(IVONADMM(), network(), rounds=1))
    with pytest.raises(MessageError, match="weights must be that of this site, 20"):
        sites_of(problem())[0].step(server.broadcast())


# ----------------------------------------------------------------------------------------------------
# Late answers
# ----------------------------------------------------------------------------------------------------


def fold_late(row, solver):
    """Site a answers the first broadcast after b and c have answered two: the server before and after it."""
    sites = dict(zip("abc", sites_of(problem()), strict=True))
    hellos = [site.hello() for site in sites.values()]
    server = Coordinator.start(hellos, NetworkTask(row, network(), 3.0, solver=solver, rounds=9))
    base, first = server.served, server.broadcast()
    for _ in range(2):
        replies = []
        for name in "bc":
            sites[name], reply = sites[name].step(server.broadcast())
            replies.append(reply)
        server = server.step(replies)
    sites["a"], late = sites["a"].step(first)
    sites["b"], fresh = sites["b"].step(server.broadcast())
    return server, server.step([*server.read([late], base).values(), fresh]), late, base, sites["a"]


@pytest.mark.parametrize(
    ("row", "solver"), [(IVONPVI(0.3), IVON), (M.AMA(2.0), IVON), (M.FedLap(0.5), ADAM)], ids=["PVI", "AMA", "FedLap"]
)
def test_a_late_answer_moves_its_factor_from_the_q_that_it_answers(row, solver):
    before, after, late, base, site = fold_late(row, solver)
    served, held = base.q_g, before.held
    answered = torch.from_numpy(late.arrays["linear"]).float()
    expected = held.site_linear[0] + row.dual_step * (answered - served.precision * served.mean)
    # entries of the size 1 in float32, from sums of three terms
    assert torch.allclose(after.held.site_linear[0], expected, rtol=1e-5, atol=1e-6)
    twin = held.site_linear[0] + row.dual_step * (answered - held.precision * held.mean)
    assert not torch.allclose(twin, expected, rtol=1e-3, atol=1e-3)
    # the server is the prior and the sum of the factors
    total = after.held.site_linear.sum(dim=0)
    weight = after.engine.team.prior_weight
    assert torch.allclose(weight * after.held.precision * after.held.mean, total, rtol=1e-5, atol=1e-5)
    assert after.counted == (1, 3, 2)
    # the site finds the same factor when it hears that its answer was counted
    settled, _ = site.step(after.broadcast())
    assert torch.equal(settled.factor.linear[0], after.held.site_linear[0])


def test_rows_that_average_the_clients_take_no_late_answer():
    with pytest.raises(ValueError, match="max_staleness must be 0"):
        fold_late(IVONADMM(0.7, 0.3), IVON)


class Posts(Scripted):
    """Sites with networks whose answers take a scripted time."""

    def honest(self, name, request):
        (self.folder / name).mkdir(exist_ok=True)
        site = Site(name, NetworkData(self.losses[name], network()), rules=ALLOWED)
        return answer(request, self.folder / name, lambda spec: (site, site.hello()))


@pytest.mark.parametrize("staleness", [0, 3])
def test_a_slow_site_does_not_hold_up_asynchronous_rounds(staleness, monkeypatch, tmp_path):
    """Site a takes five times as long; with a bound of three versions the others go on without it."""
    clock = Clock(monkeypatch)
    clients = dict(zip("abc", problem(), strict=True))
    post = Posts(clock, tmp_path, clients, lambda name, number: 5.0 if name == "a" else 1.0)
    task = NetworkTask(IVONPVI(0.3), network(), 3.0, solver=IVON, rounds=6)
    plan = Plan(task, tmp_path / "server", 3, max_staleness=staleness, deadline=100.0, patience=1000.0)
    server = serve(plan, post, "7", print)
    lines = [json.loads(line) for line in (tmp_path / "server" / PROGRESS).read_text().splitlines()]
    late = [number - base for number, line in enumerate(lines, 1) for base in line.get("bases", {}).values()]
    assert server.outcome.status is ba.Status.ROUND_LIMIT
    assert max(late, default=0) == staleness
    assert (clock.now > 30.0) == (staleness == 0)  # six rounds of five
    assert np.isfinite(server.state.history[-1].objective)
    # the factors add up to the server, whatever the order in which they came
    total = server.state.site_linear.sum(dim=0)
    assert torch.allclose(server.state.precision * server.state.mean, total, rtol=1e-5, atol=1e-5)
