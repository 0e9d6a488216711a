"""Networks by files: the bits of `torch.run` with its clients one by one, and rows with weights."""

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


@pytest.mark.parametrize(("name", "weighted"), [*((name, name == "FedLapCov") for name in ROWS), ("IVON-ADMM", True)])
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
