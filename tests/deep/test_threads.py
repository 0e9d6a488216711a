"""Clients in several threads: the numbers of one thread, the caller's settings untouched, failures as themselves."""

import signal
import threading
from dataclasses import replace
from time import monotonic, sleep

import pytest

import bayesadmm_np as ba

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from bayesadmm_np.torch import IVONADMM, MLP, AdamSteps, FedLapFunc, IVONSteps, run, steps  # noqa: E402
from bayesadmm_np.torch.dense import Dense  # noqa: E402
from bayesadmm_np.torch.steps import in_threads  # noqa: E402
from oracles.small_networks import problem  # noqa: E402

methods, nn = ba.methods, torch.nn
SIZES = (8, 17, 10, 23)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def stacks(monkeypatch):
    """Divide also small networks, and note into how many stacks."""
    seen = []

    def noted(tasks):
        seen.append(len(tasks))
        return in_threads(tasks)

    monkeypatch.setattr(steps, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(steps, "in_threads", noted)
    return seen


def with_gelu():
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))


def made(make):
    torch.manual_seed(1)
    return make().double()


IVON_SHORT = IVONSteps(epochs=3, batch_size=6, lr=0.1, hess_init=0.1, beta2=0.9)
TWO_SAMPLES = IVONSteps(epochs=2, batch_size=6, lr=0.1, samples=2, beta2=0.9, clip_radius=1.0)
ADAM_SHORT = AdamSteps(epochs=3, batch_size=6, lr=0.01)
ROWS = {
    "IVON-ADMM": (IVONADMM(0.7, 0.3), IVON_SHORT),
    "from the server": (IVONADMM(0.7, 0.3), replace(IVON_SHORT, hess_start="server", ess=30.0)),
    "two samples": (methods.BayesADMM(), TWO_SAMPLES),
    "FedDyn": (methods.FedDyn(0.5), ADAM_SHORT),
    "FedLapCov": (methods.FedLapCov(0.5), ADAM_SHORT),
    "FedLap-Func": (FedLapFunc(0.5, 0.2, server_steps=5), ADAM_SHORT),
}


# ----------------------------------------------------------------------------------------------------
# The same numbers
# ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "solver"), ROWS.values(), ids=ROWS.keys())
def test_threads_do_not_change_what_clients_do(method, solver, stacks):
    """Same noise, other order of summation: 2 rounds of some 12 float64 steps keep 1e-11; a repetition every bit."""

    def of(threads, **options):
        torch.set_num_threads(threads)
        model = made(lambda: MLP((4, 5, 3)))
        return run(method, problem(SIZES), model, rounds=2, solver=solver, participation=0.75, **options).state

    divided, again, one, alone, other = of(2), of(2), of(1), of(1, batched=False), of(2, seed=1)
    assert stacks == [2] * 4 + [1] * 4 + [2] * 2  # two rounds each
    for name in ("mean", "precision", "site_linear", "client_linear"):
        found = getattr(divided, name)
        assert torch.equal(found, getattr(again, name))
        for reference in (one, alone):
            assert (found - getattr(reference, name)).abs().max() < 1e-11 * (1 + found.abs().max())
    assert (divided.mean - other.mean).abs().max() > 1e-6  # the twin: other noise or batches


@pytest.mark.parametrize(
    ("make", "solver", "threads", "room", "expected"),
    [(lambda: MLP((4, 5, 3)), TWO_SAMPLES, 2, 1, [1] * 4), (with_gelu, IVON_SHORT, 1, 3, [2, 2])],
    ids=["two threads", "room for three, by autograd"],
)
def test_stacks_on_a_cpu_are_small(make, solver, threads, room, expected, stacks, monkeypatch):
    """With room for so many of 43 parameters; stacks are of equal size, and what clients do does not change."""
    torch.set_num_threads(threads)
    sizes, in_stack = [], steps.Work.in_stack

    def noted(work, group, halt):
        sizes.append(len(group))
        in_stack(work, group, halt)

    def go():
        return run(IVONADMM(0.7, 0.3), problem(SIZES), made(make), rounds=1, solver=solver).mean

    monkeypatch.setattr(steps.Work, "in_stack", noted)
    whole = go()
    assert sizes == ([2, 2] if stacks == [2] else [4])  # the twin: small networks have room
    sizes.clear()
    monkeypatch.setattr(steps, "STACK", room * 43)
    assert (go() - whole).abs().max() < 1e-11
    assert sizes == expected


@pytest.mark.parametrize("kind", [AdamSteps, IVONSteps])
def test_solvers_of_ones_own_and_inference_mode_work_in_threads(kind, stacks):
    class Own(kind):
        pass

    row = methods.FedAvg() if kind is AdamSteps else IVONADMM(0.7, 0.3)
    options = {"lr": 0.1, "hess_init": 0.1, "beta2": 0.9} if kind is IVONSteps else {}
    plain = run(row, problem(SIZES), made(lambda: MLP((4, 5, 3))), rounds=1, solver=kind(3, 6, **options)).state
    with torch.inference_mode():
        own = run(row, problem(SIZES), made(lambda: MLP((4, 5, 3))), rounds=1, solver=Own(3, 6, **options)).state
    assert torch.equal(own.mean.clone(), plain.mean)


# ----------------------------------------------------------------------------------------------------
# What stays in one stack
# ----------------------------------------------------------------------------------------------------


class Counting(nn.Linear):
    """Anneals by a state of its own, which threads would share or lose."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / self.calls


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 3)), 2),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), 1),
        (lambda: Counting(4, 3), 1),
        (with_gelu, 1),
    ],
    ids=["plain", "dropout", "a state of its own", "another activation"],
)
def test_only_plain_networks_are_divided(make, expected, stacks):
    """Other modules may draw from a generator that threads share, or keep a state: their order would then decide."""
    first, second = (run(methods.FedAvg(), problem(SIZES), made(make), rounds=1, solver=ADAM_SHORT) for _ in range(2))
    assert stacks == [expected] * 2
    assert torch.equal(first.mean, second.mean)


# ----------------------------------------------------------------------------------------------------
# Threads and their settings
# ----------------------------------------------------------------------------------------------------


def numbers_of_new_threads():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found


@pytest.mark.parametrize(("total", "tasks", "each"), [(2, 2, 1), (4, 2, 2), (2, 3, 1)])
def test_intra_op_threads_are_divided_and_given_back(total, tasks, each):
    torch.set_num_threads(total)
    place = threading.Barrier(tasks)

    def task(halt):
        place.wait(timeout=30.0)
        return torch.get_num_threads(), threading.get_ident()

    found = in_threads([task] * tasks)
    assert [number for number, _ in found] == [each] * tasks
    assert len({thread for _, thread in found} | {threading.get_ident()}) == tasks + 1
    assert [torch.get_num_threads(), *numbers_of_new_threads()] == [total] * 2


class Broken(Exception):
    pass


def test_a_failure_reaches_the_caller_as_itself(stacks, monkeypatch):
    def fragile(*_):
        assert threading.current_thread() is not threading.main_thread()
        raise Broken("in the third layer")

    monkeypatch.setattr(Dense, "pull_back", fragile)
    with pytest.raises(Broken, match="in the third layer"):
        run(methods.FedAvg(), problem(SIZES), made(lambda: MLP((4, 5, 3))), rounds=1, solver=ADAM_SHORT)
    assert [torch.get_num_threads(), *numbers_of_new_threads()] == [2, 2]


def test_a_failure_ends_the_others():
    def failing(halt):
        raise Broken

    ended = []
    with pytest.raises(Broken):
        in_threads([lambda halt: ended.append(halt.wait(30.0)), failing])
    assert ended == [True]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX signals")
def test_an_interrupt_ends_a_round(stacks, monkeypatch):
    """Undisturbed, the round would sleep for 1000 steps of 0.1 seconds."""
    interrupted, whole = threading.Event(), Dense.pull_back

    def slow(*terms):
        main = threading.main_thread()
        if threading.current_thread() is not main:
            if not interrupted.is_set():
                interrupted.set()
                signal.pthread_kill(main.ident, signal.SIGINT)
            sleep(0.1)
        return whole(*terms)

    monkeypatch.setattr(Dense, "pull_back", slow)
    solver, model = AdamSteps(epochs=1000, batch_size=8), made(lambda: MLP((4, 5, 3)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    began = monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(methods.FedAvg(), problem((8, 8)), model, rounds=1, solver=solver)
    finally:
        signal.signal(signal.SIGINT, before)
    assert interrupted.is_set()
    assert monotonic() - began < 50.0
    assert torch.get_num_threads() == 2
