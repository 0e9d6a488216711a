"""Clients whose rows a Dataset makes: the numbers of `Rows`, seeded augmentation, what is refused."""

import random
import weakref
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.4", reason="the deep-learning path needs the extra `torch`")
from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from bayesadmm_np import methods  # noqa: E402
from bayesadmm_np.federation import Site  # noqa: E402
from bayesadmm_np.torch import (  # noqa: E402
    FedLapFunc,
    FrozenBody,
    NetworkData,
    NetworkTask,
    Rows,
    last_layer,
    merge,
    run,
)
from bayesadmm_np.torch.stream import Stream  # noqa: E402
from oracles.couriers import started, until  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402
from oracles.small_networks import ADAM, KINDS  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
nn = torch.nn


def rows():
    source = torch.Generator().manual_seed(0)
    X = torch.randn(60, 3, generator=source)
    return [Rows(X[a:b], (X[a:b, 0] > 0).long()) for a, b in ((0, 21), (21, 40), (40, 60))]


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))  # not plain: one path for all


class Jittered(Dataset):
    """Rows that are moved anew whenever they are asked for, by all three generators."""

    def __init__(self, given):
        self.given = given

    def __len__(self):
        return len(self.given)

    def __getitem__(self, i):
        moved = torch.rand(3) + float(np.random.rand()) + random.random()  # noqa: NPY002
        return self.given.X[i] + 0.1 * moved, int(self.given.y[i])


class Drifting(Jittered):
    """By a generator of its own, which nobody seeds."""

    own = torch.Generator().manual_seed(0)

    def __getitem__(self, i):
        return self.given.X[i] + torch.rand(3, generator=self.own), int(self.given.y[i])


class Forked(Jittered):
    """Draws from where a generator happens to be, and hides it."""

    def __getitem__(self, i):
        with torch.random.fork_rng(devices=[]):
            return self.given.X[i] + torch.rand(3), int(self.given.y[i])


def go(kind, clients, **options):
    method, solver = KINDS[kind]
    return run(method, clients, model(), **{"rounds": 3, "solver": solver} | options)


@pytest.mark.parametrize("kind", ["IVON-ADMM", "FedLapCov"])
def test_rows_that_are_made_when_asked_for_give_the_numbers_of_rows_that_are_held(kind):
    """To the bit, beside a client that holds its rows; the twin lacks a row."""
    a, b, c = rows()
    streams = [TensorDataset(a.X, a.y), b, DataLoader(TensorDataset(c.X, c.y), batch_size=5)]
    found, expected = go(kind, streams), go(kind, [a, b, c])
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.precision, expected.precision)
    assert found.objective.tolist() == expected.objective.tolist()
    assert replace(found.certificate(), drawn=False) == expected.certificate()
    assert not torch.equal(go(kind, [TensorDataset(a.X[:-1], a.y[:-1]), b, c]).mean, expected.mean)


def test_augmentation_is_a_function_of_the_seed(tmp_path):
    """Again, with workers, and after a stop: the same bits. The twins have another seed, and no augmentation."""
    clients = [Jittered(own) for own in rows()]
    states = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    expected = go("FedLapCov", clients)
    path = tmp_path / "run.npz"
    go("FedLapCov", clients, rounds=2, checkpoint=path)
    workers = [DataLoader(clients[0], batch_size=8, num_workers=2, shuffle=True), *clients[1:]]
    for found in (go("FedLapCov", clients), go("FedLapCov", workers), go("FedLapCov", clients, resume=path)):
        assert torch.equal(found.mean, expected.mean)
        assert found.objective.tolist() == expected.objective.tolist()
    assert not torch.equal(go("FedLapCov", clients, seed=1).mean, expected.mean)
    assert not torch.equal(go("FedLapCov", rows()).mean, expected.mean)
    assert "of one draw of each" in str(expected.certificate())
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002


class Seldom(Jittered):
    """A third of the rows draw, each third from another generator, and never the first row."""

    def __getitem__(self, i):
        draws = (None, random.random, np.random.rand, lambda: float(torch.rand(1)))
        draw = draws[i % 9 // 2 if i % 9 in (2, 4, 6) else 0]
        return self.given.X[i] + (draw() if draw else 0.0), int(self.given.y[i])


class Many(Seldom):
    """Several rows at once."""

    def __getitems__(self, index):
        return [self[i] for i in index]


def test_rows_that_draw_seldom_are_a_function_of_their_seeds():
    """In whatever order generators are seen to draw: alone, after others, by workers, in a first batch."""
    stream = Stream.of(Seldom(rows()[0]))
    index = list(range(21))
    (whole,) = stream.batches([(index, (7, 3))])
    assert stream.drawn == {"torch", "numpy", "python"}
    for i in index:
        (alone,) = Stream.of(Many(rows()[0])).batches([([i], (7, 3))])
        assert torch.equal(alone.X[0], whole.X[i])
    assert not torch.equal(next(stream.batches([(index, (7, 4))])).X, whole.X)
    parts = [(index[a : a + 4], (7, 3)) for a in range(0, 21, 4)]
    for made in (Stream.of(Many(rows()[0])), Stream.of(DataLoader(Seldom(rows()[0]), num_workers=2))):
        assert torch.equal(torch.cat([batch.X for batch in made.batches(parts)]), whole.X)


def test_generators_are_left_as_they_were():
    """With the cached half of a pair of NumPy's normals; the twin draws itself."""

    def numbers():
        return float(torch.rand(1)), float(np.random.randn()), random.random()  # noqa: NPY002

    def seed():
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        np.random.randn()  # noqa: NPY002

    seed()
    expected = numbers()
    for client in (Seldom(rows()[0]), Jittered(rows()[0]), rows()[0]):
        seed()
        if isinstance(client, Dataset):
            list(Stream.of(client).batches([([1, 2, 3, 4, 5, 6], ()), ([2, 3], ())]))
        assert numbers() == expected
    seed()
    numbers()
    assert numbers() != expected


def test_rows_read_at_once_are_asked_for_at_once():
    asked = []

    class Table(TensorDataset):
        def __getitems__(self, index):
            asked.append(list(index))
            return [self[i] for i in index]

    own = rows()[0]
    assert torch.equal(next(Stream.of(Table(own.X, own.y)).batches([([3, 1], ())])).X, own.X[[3, 1]])
    assert asked == [[3, 1]]


def test_sites_with_datasets_are_the_clients_of_one_process():
    clients, (method, solver) = [Jittered(own) for own in rows()[:2]], KINDS["IVON-ADMM"]
    expected = run(method, clients, model(), rounds=2, solver=solver, batched=False)
    sites = [Site(name, NetworkData(own, model()), rules=ALLOWED) for name, own in zip("AB", clients, strict=True)]
    task = NetworkTask(method, model(), solver=solver, rounds=2)
    assert torch.equal(until(started(sites, task), sites)[0].state.mean, expected.mean)


def test_no_more_rows_are_held_than_are_worked_on():
    """Of 700 rows at most a chunk of 256, and the one that is made."""
    alive, most = [], 0

    class Counted(Dataset):
        def __len__(self):
            return 700

        def __getitem__(self, i):
            nonlocal alive, most
            row = torch.full((3,), i / 700)
            alive = [*(ref for ref in alive if ref() is not None), weakref.ref(row)]
            most = max(most, len(alive))
            return row, i % 2

    run(methods.FedAvg(), [Counted()], model(), rounds=1, solver=ADAM)
    assert 200 < most <= 257


def test_a_run_without_a_checkpoint_reads_no_row_for_its_digest():
    """Seven of 700: two to look at the Dataset, twice each, alone and together, and two for the model's outputs."""
    read = []

    class Noted(Dataset):
        def __len__(self):
            return 700

        def __getitem__(self, i):
            read.append(i)
            return torch.zeros(3), i % 2

    run(methods.FedAvg(), [Noted()], model(), rounds=0, objective_every=0)
    assert len(read) < 10


def without(pairs):
    """Leave out rows of the second class, where others remain."""
    return default_collate([pair for pair in pairs if not pair[1]] or pairs)


class Gappy(TensorDataset):
    def __getitems__(self, index):
        return [self[i] for i in index if not self[i][1]] or [self[i] for i in index]


class Sorted(TensorDataset):
    def __getitems__(self, index):
        return [self[i] for i in sorted(index)]


class Broken(TensorDataset):
    error = IndexError

    def __getitem__(self, i):
        if i == 3:
            raise self.error("no such file")
        return super().__getitem__(i)


class Stopping(Broken):
    error = StopIteration


OWN = rows()[0]
assert OWN.y[[0, 20]].tolist() == [0, 0]  # so that the two rows of the first look are there


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("client", "word"),
    [
        (DataLoader(TensorDataset(OWN.X, OWN.y), collate_fn=without), "rows that were asked for, got"),
        (Gappy(OWN.X, OWN.y), "rows that were asked for, got"),
        (Broken(OWN.X, OWN.y), "row 3 cannot be read: IndexError"),
        (Stopping(OWN.X, OWN.y), "row 3 cannot be read: StopIteration"),
        (Sorted(OWN.X, OWN.y), "keep the order"),
    ],
)
def test_a_batch_has_the_rows_that_were_asked_for(client, word, batched):
    """Fewer rows would be scored, or counted, in silence; class weights would belong to other rows."""
    with pytest.raises(ValueError, match=f"client 1: .*{word}"):
        run(methods.FedAvg(), [OWN, client], model(), rounds=1, solver=ADAM, batched=batched)
    if not isinstance(client, Sorted):
        for call in (
            lambda: run(methods.FedAvg(), [OWN], model(), rounds=1, solver=ADAM, evaluate=client),
            lambda: last_layer(FrozenBody(nn.Identity(), 2), [client], 1.0),
        ):
            with pytest.raises(ValueError, match=word):
                call()


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3), 0


PLAIN = TensorDataset(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))


def test_what_no_client_can_be_is_refused():
    cases = [
        (Endless(), "length"),
        (DataLoader(Endless()), "length"),
        (TensorDataset(torch.zeros(0, 3), torch.zeros(0)), "length"),
        (DataLoader(PLAIN, batch_size=3, drop_last=True), "every row once"),
        (DataLoader(PLAIN, sampler=WeightedRandomSampler([1.0] * 4, 4)), "every row once"),
        (TensorDataset(torch.zeros(4, 3)), "pairs"),
        (TensorDataset(torch.full((4, 3), float("nan")), torch.zeros(4).long()), "X"),
        (TensorDataset(torch.zeros(4, 3), torch.full((4,), 7)), "labels"),
        (TensorDataset(torch.zeros(4, 5), torch.zeros(4).long()), "inputs of shape"),
        (Drifting(rows()[0]), "generators"),
        (Forked(rows()[0]), "generators"),
        ([PLAIN], "Rows"),
    ]
    for client, word in cases:
        with pytest.raises(ValueError, match=f"client 0: .*{word}"):
            run(methods.FedAvg(), [client], model(), rounds=1, solver=ADAM)


def test_where_rows_are_needed_a_dataset_is_refused():
    for call in (
        lambda: run(FedLapFunc(), [PLAIN], model(), rounds=1),
        lambda: run(methods.FedAvg(), PLAIN, model(), rounds=1),
        lambda: merge([PLAIN]),
        lambda: NetworkData(PLAIN[0], model()),
    ):
        with pytest.raises(ValueError, match="Rows"):
            call()
