"""The ledger of a site's folder: one file for all that leaves, whole or refused; questions and refusals have limits."""

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import (
    DisclosureError,
    DisclosureRules,
    GLMData,
    GLMTask,
    Message,
    MessageError,
    Site,
    step_site,
)
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.ledger import LEDGER, REFUSALS, Ledger
from bayesadmm_np.federation.messages import inquiry_of
from bayesadmm_np.glm.questions import (
    QUESTIONS,
    DerivativesQuestion,
    DesignQuestion,
    OwnFitQuestion,
    RowsQuestion,
    StatisticsQuestion,
    SumsQuestion,
)
from bayesadmm_np.splitting.guarded import Guarded
from oracles.couriers import edited, started
from oracles.overrides import ALLOWED, roomy

USUAL = DisclosureRules()


def rows(n=60, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
    return X, (rng.random(n) < 0.5).astype(float)


def data(n=60, d=3, seed=0):
    return GLMData(ba.losses.Logistic(*rows(n, d, seed)))


def likelihood(asks=True, **settings):
    settings["asks"] = asks
    return GLMTask(Guarded(ba.methods.Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 0.0), **settings)


class Asker:
    """A server that asks one site what it likes, by a folder and by Flower's envelope in turn."""

    def __init__(self, folder, rules=USUAL, own=None, **settings):
        self.folder, self.own = folder, own or data()
        self.site = Site("A", self.own, rules=rules)
        self.spec = started([Site(name, self.own) for name in "ABC"], likelihood(**settings)).spec

    def ask(self, number, question):
        """Return the codes of a refusal; None where the site answers."""
        message = inquiry_of(self.spec, number, *self.spec.pack_question(question))
        if number % 2:
            said = answer(Request("run", message.to_bytes()), self.folder, lambda spec: (self.site, self.site.hello()))
            if said.message is None:
                raise MessageError(said.said.text)
            found = Message.from_bytes(said.message)
        else:
            message.write(self.folder / "message.npz")
            found = Message.read(step_site(self.folder, self.site, self.folder / "message.npz")[1])
        refused = found.header["refused"]
        return refused and tuple(refused["codes"])


# --- The file -------------------------------------------------------------------------------------------------


def filled(folder, rules=USUAL):
    asker = Asker(folder, rules)
    for number, question in enumerate((DesignQuestion(), SumsQuestion(np.zeros(3)), OwnFitQuestion(np.ones(3))), 1):
        assert asker.ask(number, question) is None
    return asker, folder / LEDGER


def test_files_and_flower_enter_into_one_file_once(tmp_path):
    asker, path = filled(tmp_path)
    whole = path.read_bytes()
    assert asker.ask(2, SumsQuestion(np.zeros(3))) is None
    assert path.read_bytes() == whole
    entries = Ledger.read(tmp_path).entries
    assert [one.name for one in entries] == ["design", "sums", "own_fit"]
    assert all(one.about == "x1, x2, x3" and one.cost > 0 and one.numbers > 0 for one in entries)
    assert len({one.design for one in entries}) == 1
    kept = [path, tmp_path / f"design-{entries[0].design}.npz"]
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in kept)
    key = json.loads(whole.splitlines()[0].split(b" ", 1)[1])["key"]
    assert len(bytes.fromhex(key)) == 32


def changed(lines, how, k):
    if how == "edited":
        body = lines[k].replace(b'"cost": 0.', b'"cost": 1.') if k else lines[k].replace(b"a", b"b", 1)
        assert body != lines[k]
        return [*lines[:k], body, *lines[k + 1 :]]
    if how == "taken out":
        return [*lines[:k], *lines[k + 1 :]]
    if how == "moved":
        return [*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]]
    return [*lines[:k], lines[k][: len(lines[k]) // 2] + b"\n", *lines[k + 1 :]]


@pytest.mark.parametrize("how", ["edited", "taken out", "moved", "cut"])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_line_that_is_not_as_it_was_written_stops_all(how, k, tmp_path):
    asker, path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(changed(lines, how, k)))
    with pytest.raises(MessageError) as raised:
        asker.ask(4, RowsQuestion())
    assert raised.value.source == os.fspath(path)
    assert not list(tmp_path.glob("answer-*-0004*"))


def test_the_last_line_is_chained_too(tmp_path):
    """A chain of digests of earlier lines alone would not see it; what is cut without its end was never sent."""
    asker, path = filled(tmp_path)
    whole = path.read_bytes()
    *lines, last = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, last.replace(b'"refused": ""', b'"refused": "x"')]))
    with pytest.raises(MessageError):
        Ledger.read(tmp_path)
    path.write_bytes(whole[:-20])
    assert len(Ledger.read(tmp_path).entries) == 2
    assert asker.ask(3, OwnFitQuestion(np.ones(3))) is None
    assert len(Ledger.read(tmp_path).entries) == 3


def test_a_lost_or_foreign_design_stops_what_would_be_compared_with_it(tmp_path):
    filled(tmp_path)
    design = next(tmp_path.glob("design-*.npz"))
    body = design.read_bytes()
    for wrong in (None, body[:-1], body.replace(b"x1", b"x9")):
        design.unlink() if wrong is None else design.write_bytes(wrong)
        with pytest.raises(MessageError):
            Asker(tmp_path, USUAL, data(64, 3, 1), seed=4).ask(2, DesignQuestion())
    design.write_bytes(body)
    assert Asker(tmp_path, USUAL, data(64, 3, 1), seed=4).ask(2, DesignQuestion()) is None


# --- Numbers --------------------------------------------------------------------------------------------------


def test_every_number_of_a_reply_counts(tmp_path):
    """Value, edge, the solver's residual, reach and error, beside the arrays: those in the header are 6 here."""
    own = data()
    site = Site("A", own, rules=USUAL)
    server = started([Site(name, own) for name in "ABC"], likelihood(asks=False))
    broadcast = edited(server.broadcast(), {"certify": True}, {})
    broadcast.write(tmp_path / "b.npz")
    said = Message.read(step_site(tmp_path, site, tmp_path / "b.npz")[1])
    distinct = np.unique(np.concatenate([one.ravel() for one in said.arrays.values()])).size
    (entry,) = Ledger.read(tmp_path).entries
    plain = said.header
    assert {"value", "edge", "solved", "certificate"} <= set(plain)
    single = [plain["value"], plain["edge"], plain["solved"]["edge"], plain["solved"]["residual"]]
    single += [plain["certificate"]["reach"], plain["certificate"]["curvature_error"]]
    assert all(isinstance(one, float) for one in single)
    assert entry.numbers == distinct + len(single)
    assert entry.cost == entry.numbers / (60 * 2)


# --- Refusals -------------------------------------------------------------------------------------------------


def bisected(asker, tries=70):
    """How many refusals tell how far a point may be from the rows before the site falls silent: attack M."""
    low, high, found = 0.0, 400.0, []
    for number in range(1, tries + 1):
        middle = (low + high) / 2
        codes = asker.ask(number, DerivativesQuestion(np.array([middle, 0.0, 0.0])))
        if codes and "budget" in codes:
            break
        found.append(codes)
        low, high = (low, middle) if codes else (middle, high)
    return found


def test_a_folder_tells_some_twenty_bits_by_refusals(tmp_path):
    """A slope that is bisected by whether the site answers: without the cost of refusals 70 tell it to the last bit."""
    asker = Asker(tmp_path, DisclosureRules(budget=2.0))
    found = bisected(asker)
    assert 3 < sum(codes is not None for codes in found) <= REFUSALS
    assert len(found) < 70
    assert asker.ask(90, DesignQuestion()) == ("budget",)
    again = Asker(tmp_path, DisclosureRules(budget=2.0), seed=7)  # another run begins where this one ended
    assert again.ask(1, DerivativesQuestion(np.zeros(3))) == ("budget",)


def test_without_the_cost_of_refusals_seventy_tell_the_slope(tmp_path, monkeypatch):
    """The broken twin."""
    monkeypatch.setattr(Ledger, "refused", lambda self, entry, reason, budget: replace(entry, refused=reason))
    assert len(bisected(Asker(tmp_path, DisclosureRules(budget=1e9)))) == 70


FAR = np.array([1e9, 0.0, 0.0])
TELLING = {
    "a far point": [DerivativesQuestion(FAR), SumsQuestion(FAR * 2)],
    "an overflow": [SumsQuestion(np.full(3, 3000.0)), SumsQuestion(np.full(3, -4000.0))],
    "a bread": [
        StatisticsQuestion(np.zeros(3), np.zeros(3), np.eye(3) * size, ("HC3",), weights)
        for size, weights in ((1.0, "analytic"), (2.0, "frequency"))
    ],
}


@pytest.mark.parametrize("case", TELLING)
def test_a_refusal_that_tells_of_the_rows_costs_a_twentieth_once(case, tmp_path):
    X, y = rows()
    loss = ba.losses.Poisson(X, y) if case == "an overflow" else ba.losses.Logistic(X, y)
    asker = Asker(tmp_path, own=GLMData(loss))
    for number, question in enumerate(TELLING[case], 1):
        for _ in range(2):
            assert asker.ask(number, question)
        entries = Ledger.read(tmp_path).entries
        assert [one.cost for one in entries] == [USUAL.budget / REFUSALS] * number
    asker.site = replace(asker.site, refuses=("own_fit",))
    assert asker.ask(3, OwnFitQuestion(np.ones(3))) == ("closed",)  # depends on no row
    assert Ledger.read(tmp_path).entries[-1].cost == 0.0


LIES = {
    "a far point": [400.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0],
    "an overflow": [1e308] * 3 + [1.0, 0, 0, 1, 0, 1],
}


@pytest.mark.parametrize("case", LIES)
@pytest.mark.parametrize("door", ["files", "flower"])
def test_a_refused_round_is_entered_and_costs(case, door, tmp_path):
    """The state stays as it was; the twentieth refusal is the last that tells anything."""
    own = data()
    site = Site("A", own, rules=roomy())
    server = started(
        [Site(name, own) for name in "ABC"], GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(3), 1.0))
    )
    for k in range(REFUSALS + 2):
        lie = np.array(LIES[case]) * (1 + k / 100)
        broadcast = edited(server.broadcast(), {"certify": True}, {"natural": lie})
        if door == "files":
            broadcast.write(tmp_path / "b.npz")
            with pytest.raises(MessageError) as raised:
                step_site(tmp_path, site, tmp_path / "b.npz")
            is_over = getattr(raised.value, "rule", "") == "budget"
        else:
            said = answer(Request("run", broadcast.to_bytes()), tmp_path, lambda spec: (site, site.hello()))
            assert said.message is None
            is_over = said.said.codes == ("budget",)
        assert is_over == (k >= REFUSALS)
    entries = Ledger.read(tmp_path).entries
    assert len(entries) == REFUSALS
    assert {one.kind for one in entries} == {"refusal"}
    assert sum(one.cost for one in entries) == pytest.approx(roomy().budget)
    assert not list(tmp_path.glob("state.npz")) + list(tmp_path.glob("run-*.npz"))


# --- Questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "is_taken"), [(1, True), (7, True), (10**30, False), (10**6, False)])
def test_a_question_has_a_number_of_an_honest_run(number, is_taken, tmp_path):
    asker = Asker(tmp_path, ALLOWED)
    if is_taken:
        assert asker.ask(number, DesignQuestion()) is None
        return
    with pytest.raises(MessageError):
        asker.ask(number, DesignQuestion())


def test_numbers_rise_or_repeat(tmp_path):
    asker = Asker(tmp_path, ALLOWED)
    assert asker.ask(4, DesignQuestion()) is None
    for _ in range(2):
        assert asker.ask(6, SumsQuestion(np.zeros(3))) is None
    assert asker.ask(4, DesignQuestion()) is None
    for number, question in ((6, SumsQuestion(np.ones(3))), (4, SumsQuestion(np.zeros(3))), (2, RowsQuestion())):
        with pytest.raises(MessageError):
            asker.ask(number, question)
    assert len(Ledger.read(tmp_path).entries) == 2


OFTEN = {
    "design": lambda k: DesignQuestion(),
    "own_fit": lambda k: OwnFitQuestion(np.array([1.0, k % 2, 1.0])),
    "sums": lambda k: SumsQuestion(np.full(3, k / 100)),
    "statistics": lambda k: StatisticsQuestion(np.full(3, k / 100), np.zeros(3)),
    "rows": lambda k: RowsQuestion(),
}


@pytest.mark.parametrize("name", OFTEN)
def test_a_question_is_answered_as_often_as_an_honest_run_asks_it(name, tmp_path):
    asker, most = Asker(tmp_path, ALLOWED), QUESTIONS[name].limit(3)
    for k in range(most):
        assert asker.ask(k + 1, OFTEN[name](k)) is None
    with pytest.raises(MessageError):
        asker.ask(most + 1, OFTEN[name](most))
    assert asker.ask(most, OFTEN[name](most - 1)) is None  # the same again
    if name != "rows":
        assert asker.ask(most + 2, RowsQuestion()) is None
    # a run whose origin, prior or tolerance its own questions have moved is the same run
    asker.spec = replace(asker.spec, tol=asker.spec.tol / 2, centre=np.array([0.1, 0.1, 0.0]))
    with pytest.raises((MessageError, DisclosureError)):
        asker.ask(most + 4, OFTEN[name](most))
