"""Models that clients keep: each row's client and server written out with autograd, and their broken twins."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from torch.nn.functional import cross_entropy, softplus  # noqa: E402

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.torch import AdamSteps, IVONSteps, run  # noqa: E402
from bayesadmm_np.torch.network import Network  # noqa: E402
from bayesadmm_np.torch.randomness import Noise, client_seed  # noqa: E402
from oracles.papers import personal  # noqa: E402
from oracles.refusals import assert_refused  # noqa: E402
from oracles.small_networks import network, problem  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
fails = pytest.raises(AssertionError)
NET = Network(network(), torch.device("cpu"))
CLIENTS = problem()
DELTA, HEAD = 100.0, 5 * 3 + 3
MOREAU = personal.MoreauSteps(epochs=2, batch_size=6, lr=0.02, outer_lr=0.03)
BAYES = personal.BayesSteps(epochs=2, batch_size=6, lr=0.05, outer_lr=0.002)
VEM = personal.VEMSteps(epochs=3, batch_size=6, lr=0.02, head_epochs=2, samples=2)
ROWS = {
    "pFedMe": (personal.PFedMe(), MOREAU),
    "pFedBayes": (personal.PFedBayes(), BAYES),
    "pFedVEM": (personal.PFedVEM(), VEM),
}


def batches(k, number, solver):
    seed = client_seed(0, number, k)
    source = torch.Generator().manual_seed(seed)
    order = [torch.randperm(len(CLIENTS[k]), generator=source) for _ in range(solver.epochs)]
    return [part for epoch in order for part in epoch.split(solver.batch_size)], Noise([seed], torch.device("cpu"))


def noise_of(noise, step, size):
    out = torch.empty(1, size, dtype=torch.float64)
    noise.fill(out, step)
    return out[0]


def loss(theta, k, batch):
    """The mean loss of a batch as a function that autograd sees through."""
    parameters = {n: p.view(s) for n, s, p in zip(NET.names, NET.shapes, theta.split(NET.sizes), strict=True)}
    return cross_entropy(
        torch.func.functional_call(NET.module, parameters, (CLIENTS[k].X[batch],)), CLIENTS[k].y[batch]
    )


def slopes(value, *at):
    return torch.autograd.grad(value, at)


def leaf(*xs):
    return tuple(x.detach().clone().requires_grad_() for x in xs)


def kl(m, s, m0, s0):
    """KL(N(m, s²)‖N(m₀, s₀²)), summed."""
    return (torch.log(s0 / s) + (s**2 + (m - m0) ** 2) / (2 * s0**2) - 0.5).sum()


def moreau_client(k, w, _, number):
    own = w.clone()
    for batch in batches(k, number, MOREAU)[0]:
        for _ in range(MOREAU.inner):
            (v,) = leaf(own)
            (g,) = slopes(loss(v, k, batch) + 0.5 * MOREAU.penalty * ((v - w) ** 2).sum(), v)
            own = own - MOREAU.lr * g
        w = w - MOREAU.outer_lr * MOREAU.penalty * (w - own)
    return (w, None), (own, None)


def bayes_client(k, m, r, number, z=BAYES.penalty):
    own = (m.clone(), r.clone())
    sent, (parts, noise) = (m, r), batches(k, number, BAYES)
    for t, batch in enumerate(parts):
        mu, raw = leaf(*own)
        theta = mu + softplus(raw) * noise_of(noise, t, len(m))
        value = loss(theta, k, batch) + z / len(CLIENTS[k]) * kl(mu, softplus(raw), sent[0], softplus(sent[1]))
        own = tuple(x - BAYES.lr * g for x, g in zip(own, slopes(value, mu, raw), strict=True))
        mu, raw = leaf(*sent)
        value = kl(own[0], softplus(own[1]), mu, softplus(raw))
        sent = tuple(x - BAYES.outer_lr * g for x, g in zip(sent, slopes(value, mu, raw), strict=True))
    return sent, own


def vem_client(k, m, _, number):
    inverse = torch.log(torch.expm1(torch.tensor(VEM.scale, dtype=torch.float64)))
    raw, w, mean = inverse.expand(HEAD).clone(), m[-HEAD:], m.clone()
    parts, noise = batches(k, number, VEM)
    speed, turn = [torch.zeros_like(mean), torch.zeros_like(raw)], len(parts) // VEM.epochs * VEM.head_epochs

    def confidence(mean, raw):
        return (softplus(raw) ** 2 + (mean[-HEAD:] - w) ** 2).mean().detach()

    for t, batch in enumerate(parts):
        if t == turn:
            speed = [torch.zeros_like(x) for x in speed]
        at, own = leaf(mean, raw)
        sigma, value = softplus(own), 0.0
        for sample in range(VEM.samples):
            drawn = torch.cat([at[:-HEAD], at[-HEAD:] + sigma * noise_of(noise, t * VEM.samples + sample, HEAD)])
            value = value + loss(drawn, k, batch) / VEM.samples
        if t < turn:
            value = value + kl(at[-HEAD:], sigma, w, confidence(mean, raw).sqrt()) / len(CLIENTS[k])
        g = list(slopes(value, at, own))
        is_head = torch.arange(len(mean)) >= len(mean) - HEAD
        g = [g[0] * (is_head == (t < turn)), g[1] * (t < turn)]
        speed = [VEM.momentum * old + new for old, new in zip(speed, g, strict=True)]
        mean, raw = mean - VEM.lr * speed[0], raw - VEM.lr * speed[1]
    return (mean, confidence(mean, raw)), (mean, raw)


def mean_of(x):
    return torch.stack(x).mean(dim=0)


def moreau_server(sent):
    return mean_of([w for w, _ in sent]), None


def bayes_server(sent):
    return tuple(mean_of(part) for part in zip(*sent, strict=True))


def vem_server(sent):
    rows = torch.tensor([float(len(rows)) for rows in CLIENTS], dtype=torch.float64)
    weights = torch.stack([1.0 / rho for _, rho in sent])
    means = torch.stack([m for m, _ in sent])
    base, head = rows @ means[:, :-HEAD] / rows.sum(), weights @ means[:, -HEAD:] / weights.sum()
    return torch.cat([base, head]), None


WRITTEN = {
    "pFedMe": (moreau_client, moreau_server),
    "pFedBayes": (bayes_client, bayes_server),
    "pFedVEM": (vem_client, vem_server),
}


def written_out(name, rounds=2, client=None):
    """m_g after some rounds, and what every client keeps after one more update."""
    own, server = WRITTEN[name]
    client = client or own
    raw = torch.log(torch.expm1(torch.full_like(NET.start, DELTA**-0.5)))
    state = NET.start, raw
    for number in range(1, rounds + 1):
        state = server([client(k, *state, number)[0] for k in range(len(CLIENTS))])
    return state, [client(k, *state, rounds + 1)[1] for k in range(len(CLIENTS))]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_rounds_and_personal_models_are_those_written_out(name, batched):
    """Some 30 float64 steps a client: 1e-9."""
    row, solver = ROWS[name]
    result = run(row, CLIENTS, network(), DELTA, 2, solver=solver, batched=batched)
    state, kept = written_out(name)

    def close(a, b):
        assert float((a - b).abs().max()) < 1e-9 * max(1.0, float(b.abs().max()))

    close(result.mean, state[0])
    for posterior, (mean, raw) in zip(result.personal(), kept, strict=True):
        close(posterior.mean, mean)
        if raw is not None:
            close(posterior.precision[-len(raw) :].rsqrt(), softplus(raw))
    if name == "pFedBayes":
        close(result.precision.rsqrt(), softplus(state[1]))
    with fails:  # the server's model is not what is kept
        close(result.personal()[0].mean, result.mean)


def test_twins_are_seen():
    """A client of pFedBayes without ζ, and a server of pFedVEM that takes the plain mean, give other numbers."""
    result = run(*(personal.PFedBayes(), CLIENTS, network(), DELTA, 2), solver=BAYES)
    twin = written_out("pFedBayes", client=lambda k, m, r, number: bayes_client(k, m, r, number, z=1.0))[0]
    assert float((result.mean - twin[0]).abs().max()) > 1e-7
    result = run(*(personal.PFedVEM(), CLIENTS, network(), DELTA, 1), solver=VEM)
    means = mean_of([vem_client(k, NET.start, None, 1)[0][0] for k in range(len(CLIENTS))])
    assert float((result.mean - means)[-HEAD:].abs().max()) > 1e-7
    assert float((result.mean - means)[:-HEAD].abs().max()) > 1e-7


def test_fine_tuning_is_the_rows_own_update():
    """FedAvg's personal models are the answers to the next round; FedIvon's those of prior="server" in both modes."""
    adam = AdamSteps(epochs=2, batch_size=6, lr=0.01)
    result = run(methods.FedAvg(), CLIENTS, network(), rounds=2, solver=adam)
    after = run(methods.FedAvg(), CLIENTS, network(), rounds=3, solver=adam)
    for k, posterior in enumerate(result.personal()):
        assert posterior.mean.numpy() == pytest.approx((after.state.client_linear[k]).numpy(), abs=1e-12)
    ivon = IVONSteps(epochs=2, batch_size=6, lr=0.1, hess_init=0.5, ess=40.0, hess_start="server")
    found = run(methods.FedIvon(prior="start"), CLIENTS, network(), rounds=1, solver=ivon)
    other = replace(found, _team=replace(found._team, method=methods.FedIvon()))
    own = found.personal()
    assert all(torch.equal(a.precision, b.precision) for a, b in zip(own, other.personal(), strict=True))
    assert own[0].sample(2).shape == (2, len(NET.start))


def test_refused():
    calls = [
        (lambda: run(personal.PFedMe(), CLIENTS, network(), solver=BAYES), "pFedMe"),
        (lambda: run(methods.FedAvg(), CLIENTS, network(), solver=MOREAU), "FedAvg"),
        (lambda: run(personal.PFedVEM(), CLIENTS, torch.nn.Linear(4, 3).double()), "pFedVEM"),
        (lambda: personal.MoreauSteps(outer_lr=0.1), "outer_lr"),
        (lambda: personal.VEMSteps(epochs=2, head_epochs=2), "head_epochs"),
        (lambda: personal.BayesSteps(penalty=0.0), "penalty"),
    ]
    assert_refused(calls)
