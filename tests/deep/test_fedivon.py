"""FedIvon's two modes and FedLaplace on networks, against the algorithms written out; and IVON's lower bound."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
import bayesadmm_np as core  # noqa: E402
from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.families import DiagonalGaussian  # noqa: E402
from bayesadmm_np.federation import Site  # noqa: E402
from bayesadmm_np.losses import Delta, Logistic  # noqa: E402
from bayesadmm_np.splitting.status import Status  # noqa: E402
from bayesadmm_np.torch import AdamSteps, FedLaplace, IVONSteps, NetworkData, NetworkTask, run  # noqa: E402
from bayesadmm_np.torch.curvature import diagonal_ggn  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from bayesadmm_np.torch.randomness import Noise, client_seed  # noqa: E402
from oracles.couriers import started, until  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import DELTA, network, problem, states_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
fails = pytest.raises(AssertionError)
SOLVER = IVONSteps(epochs=2, batch_size=6, lr=0.1, hess_init=0.5, beta2=0.9, hess_start="server", ess=40.0)
START, SERVER = methods.FedIvon(prior="start"), methods.FedIvon()


def client_update(rows, m, h, delta, anchor, seed):
    """Algorithm 1 line by line, with a prior of the mean `anchor`; α is rescaled by the scalar h₀ + δ, or as here."""
    net, s = Network(network(), torch.device("cpu")), SOLVER
    noise, source, g = Noise([seed], m.device), torch.Generator().manual_seed(seed), torch.zeros_like(m)
    order = [torch.randperm(len(rows), generator=source) for _ in range(s.epochs)]
    batches = [batch for epoch in order for batch in epoch.split(s.batch_size)]
    rate = torch.as_tensor(s.lr * (s.hess_init + delta)).clamp(max=1.0)
    for t, batch in enumerate(batches, 1):
        drawn = torch.empty(1, len(m), dtype=m.dtype)
        noise.fill(drawn, t - 1)
        theta = m + drawn[0] / (s.ess * (h + delta)).sqrt()
        model = net.module_at(theta, {})
        loss = torch.nn.functional.cross_entropy(model(rows.X[batch]), rows.y[batch])
        grad = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(model.parameters()))])
        bent = grad * (theta - m) * s.ess * (h + delta)
        g = s.beta1 * g + (1 - s.beta1) * grad
        h = s.beta2 * h + (1 - s.beta2) * bent + 0.5 * (1 - s.beta2) ** 2 * (h - bent) ** 2 / (h + delta)
        m = m - rate * (g / (1 - s.beta1**t) + delta * (m - anchor)) / (h + delta)
    return m, s.ess * (h + delta)


def written_out(server_is_prior, rounds=3, by_hessian=False, beta=1.0):
    """Algorithm 2 with Eq. 7 at the server, or its own lines 9 to 12."""
    clients, m = problem(), Network(network(), torch.device("cpu")).start
    s, zero, found = torch.full_like(m, DELTA), torch.zeros_like(m), []
    rows = torch.tensor([float(len(c)) for c in clients], dtype=m.dtype)
    for number in range(1, rounds + 1):
        delta = (beta * s if server_is_prior else torch.full_like(m, DELTA)) / SOLVER.ess
        h = torch.full_like(m, SOLVER.hess_init) if number == 1 else s / SOLVER.ess - delta
        anchor = m if server_is_prior else zero
        own = [client_update(c, m, h, delta, anchor, client_seed(0, number, k)) for k, c in enumerate(clients)]
        s = sum(w * sk for w, (_, sk) in zip(rows / rows.sum(), own, strict=True))
        parts = [(mk, sk - DELTA if by_hessian else sk) for mk, sk in own]
        m = sum(w * part * mk for w, (mk, part) in zip(rows / rows.sum(), parts, strict=True))
        m = m / sum(w * part for w, (_, part) in zip(rows / rows.sum(), parts, strict=True))
        found.append((m, s))
    return found


def differs(states, expected):
    """Largest relative difference of means and precisions."""
    pairs = [
        pair for state, (m, s) in zip(states, expected, strict=True) for pair in ((state.mean, m), (state.precision, s))
    ]
    return max(float(((a - b).abs() / b.abs().max()).max()) for a, b in pairs)


@pytest.mark.parametrize("batched", [True, False])
def test_both_modes_are_the_algorithm_written_out(batched):
    """40 float64 steps a client keep 1e-9; the noise is float32 in both. Each mode is the other's broken twin."""
    for row, own in ((START, False), (SERVER, True)):
        states = states_of(row, 3, SOLVER, batched=batched)
        assert differs(states, written_out(own)) < 1e-9
        with fails:
            assert differs(states, written_out(not own)) < 1e-9


def test_a_mean_by_hessians_is_algorithm_2_as_printed():
    """Lines 9 to 12 weigh the clients' means by h_k alone. The twin is Eq. 7."""
    states = states_of(methods.FedIvon(prior="start", average="hessian"), 3, SOLVER)
    assert differs(states, written_out(False, by_hessian=True)) < 1e-9
    with fails:
        assert differs(states, written_out(False)) < 1e-9


def test_without_a_kl_clients_only_start_at_the_server():
    """β = 0: no prior, and s_k = λh_k, which stays positive. The twin is β = 1, whose first rounds begin alike."""
    states = states_of(methods.FedIvon(beta=0.0), 3, SOLVER)
    assert differs(states, written_out(True, beta=0.0)) < 1e-9
    assert all(bool((state.precision > 0).all()) for state in states)
    with fails:
        assert differs(states, written_out(True)) < 1e-9


def test_a_server_without_curvature_ends_the_run():
    """Algorithm 2 divides by Σ_k w_kh_k, which IVON does not keep positive; Eq. 7 divides by Σ_k w_ks_k > 0."""
    small = replace(SOLVER, hess_init=1e-3, beta2=0.5)
    found = run(methods.FedIvon(prior="start", average="hessian"), problem(), network(), DELTA, 3, solver=small)
    assert found.status is Status.NOT_A_DISTRIBUTION
    assert "average='precision'" in found.failure.knob
    assert found.failure.detail
    assert run(START, problem(), network(), DELTA, 3, solver=small).status is Status.ROUND_LIMIT


def test_the_servers_precision_grows_with_the_server_as_prior_alone():
    """Section 7.3's instability: s_k = s_g + λh_k. With prior="start" s_g stays that of one client.

    The means of s_g after 1 and 21 rounds were 13 and 36, and 13 and 4.
    """
    means = {
        row.prior_at: [float(state.precision.mean()) for state in states_of(row, 21, SOLVER)] for row in (START, SERVER)
    }
    assert means["server"][-1] > 2.0 * means["server"][0]
    assert means["each"][-1] < means["each"][0]


def test_a_run_goes_below_the_papers_bound():
    """The appendix says λδ <= s_k. Line 9 gives (h + δ)(1 − x + ½x²) with x = (1 − β₂)(h − ĥ)/(h + δ), at least half.

    So with a small h₀ some s_g lie below the prior's precision, all above zero.
    """
    state = states_of(START, 3, replace(SOLVER, hess_init=1e-3, beta2=0.5))[-1]
    assert bool((state.precision > 0).all())
    with fails:
        assert bool((state.precision >= DELTA).all())


# ----------------------------------------------------------------------------------------------------
# FedLaplace
# ----------------------------------------------------------------------------------------------------


def test_fedlaplace_sends_the_curvature_under_the_runs_prior():
    """s_k = δ + diag GGN(m_k)/τ in every round, or on top of s_g; the server is Eq. 7."""
    tau, clients, net = 0.4, problem(), Network(network(), torch.device("cpu"))
    solver = AdamSteps(epochs=2, batch_size=6, lr=0.01)
    shares = torch.tensor([len(c) for c in clients], dtype=torch.float64)
    shares = shares / shares.sum()

    def check(row, base):
        first, second = states_of(row, 2, solver, temperature=tau)
        m = second.client_linear / second.client_precision
        bent = torch.stack([diagonal_ggn(net, theta, rows, {}) for theta, rows in zip(m, clients, strict=True)]) / tau
        assert second.client_precision.numpy() == pytest.approx((base(first) + bent).numpy(), rel=1e-9)
        assert second.precision.numpy() == pytest.approx((shares @ second.client_precision).numpy(), rel=1e-9)
        mixed = shares @ second.client_linear / second.precision
        assert second.mean.numpy() == pytest.approx(mixed.numpy(), rel=1e-9)

    check(FedLaplace(), lambda first: DELTA)
    check(replace(methods.FedIvon(), expectation=Delta(2)), lambda first: first.precision)
    with fails:
        check(FedLaplace(), lambda first: first.precision)


def test_refused():
    def call(method):
        return lambda: run(method, problem(), network(), solver=SOLVER, rounds=1)

    assert_refused([(call(methods.FedIvon(beta=0.5)), "ess"), (call(FedLaplace()), "FedLaplace")])
    none, rows = methods.FedIvon(beta=0.0), [Logistic(torch.eye(2).numpy(), [0, 1])]
    assert_refused(
        [
            (lambda: methods.FedIvon(beta=-1.0), "beta"),
            (lambda: methods.FedIvon(beta=False), "beta"),
            (lambda: methods.FedIvon(beta=True, prior="start"), "beta"),
            (lambda: methods.FedIvon(average="hessian"), "average"),
            (lambda: methods.FedIvon(prior="start", average="mean"), "average"),
            (lambda: run(none, problem(), network(), solver=replace(SOLVER, ess=None)), "ess"),
            (lambda: run(none, problem(), network(), solver=replace(SOLVER, hess_init=0.0)), "hess_init"),
            (lambda: core.run(none, rows, DiagonalGaussian([0, 0], 1.0)), "FedIvon"),
        ]
    )


def test_a_given_ess_is_beta_s_weight_where_beta_is_one():
    """With λ = N_k/β instead, β = 0.5 doubles every client's rows."""
    short, two = replace(SOLVER, ess=None), problem((23,))
    halved = states_of(methods.FedIvon(beta=0.5), 2, short, two)[-1]
    doubled = states_of(SERVER, 2, replace(SOLVER, ess=46.0), two)[-1]
    assert halved.mean.numpy() == pytest.approx(doubled.mean.numpy(), rel=1e-9)
    assert halved.precision.numpy() == pytest.approx(doubled.precision.numpy(), rel=1e-9)


def test_a_record_has_the_median_of_the_servers_precisions():
    states = states_of(SERVER, 3, SOLVER)
    assert [s.history[-1].precision_median for s in states] == [float(s.precision.median()) for s in states]
    assert states[0].history[-1].precision_median < states[-1].history[-1].precision_median


@pytest.mark.parametrize(
    ("method", "solver"),
    [
        (methods.FedIvon(beta=0.0), SOLVER),
        (methods.FedIvon(prior="start", average="hessian"), SOLVER),
        (FedLaplace(), AdamSteps(epochs=2, batch_size=6, lr=0.01)),
    ],
)
def test_sites_elsewhere_take_the_methods_of_networks_alone(method, solver):
    """Bit for bit as in one process, one client after the other."""
    sites = [Site(f"s{k}", NetworkData(rows, network()), rules=ALLOWED) for k, rows in enumerate(problem())]
    task = NetworkTask(method, network(), DELTA, solver=solver, rounds=2)
    state = until(started(sites, task), sites)[0].state
    expected = run(method, problem(), network(), DELTA, rounds=2, solver=solver, batched=False)
    assert torch.equal(state.mean, expected.mean)
    assert torch.equal(state.precision, expected.precision)
