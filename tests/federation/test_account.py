"""One privacy account a site's folder: no run, label, transport or crash gives more than was granted."""

from dataclasses import replace

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np._archive import Archive, ArchiveError
from bayesadmm_np.federation import GLMData, GLMTask, MessageError, Site, step_site
from bayesadmm_np.federation.dispatch import answer
from bayesadmm_np.federation.dispatch.envelope import Request
from bayesadmm_np.federation.ledger import LEDGER, Entry, Ledger
from oracles.couriers import started
from oracles.overrides import ALLOWED
from oracles.problems import prior, team

LOSS, OTHER = team("logistic", sizes=(5, 8))
NOISE = ba.GaussianMechanism(clip=1.0, noise_multiplier=2.0)
GRANTED = 5


def private(noise=NOISE, granted=GRANTED):
    return Site("A", GLMData(LOSS), privacy=noise, privacy_rounds=granted, rules=ALLOWED)


def begin(rounds, seed=0):
    other = Site("B", GLMData(OTHER), rules=ALLOWED)
    task = GLMTask(ba.methods.PVI(gamma=1 / 2), prior("diagonal", 3), rounds=rounds, seed=seed, tol=1e-12)
    return started([private(), other], task), other


@pytest.fixture
def folder(tmp_path):
    """The site's, beside the first broadcast of a run of three rounds."""
    (tmp_path / "site").mkdir()
    begin(3)[0].broadcast().write(tmp_path / "broadcast.npz")
    return tmp_path / "site"


def noised(begun, answered):
    """What the site sends of its own in a run: `answered(message)` is its reply, or the codes of a refusal."""
    (server, other), sent = begun, []
    while server.outcome is None:
        reply = answered(server.broadcast())
        if isinstance(reply, tuple):
            return sent, reply
        if "natural" in reply.arrays:
            sent.append(reply.arrays["natural"])
        other, theirs = other.step(server.broadcast())
        server = server.step([reply, theirs])
    return sent, ""


def over_flower(folder, label, rounds, seed=0):
    """Let the site answer a whole run; return what it sent, up to its first refusal, and that."""

    def answered(broadcast):
        said = answer(Request(label, broadcast.to_bytes()), folder, lambda spec: (private(), private().hello()))
        return said.said.codes if said.refused else Archive.from_bytes(said.message)

    return noised(begin(rounds, seed), answered)


def by_files(folder, rounds):
    path = folder.with_name("broadcast.npz")

    def answered(broadcast):
        broadcast.write(path)
        return Archive.read(step_site(folder, private(), path)[1])

    return noised(begin(rounds), answered)[0]


def disclosed(folder):
    return sum(len(over_flower(folder, str(label), 1 + label % 3, seed=label)[0]) for label in range(12))


def noises(folder):
    return [one for one in Ledger.read(folder).entries if one.noise]


def test_new_labels_and_runs_share_one_account(tmp_path):
    assert disclosed(tmp_path) == GRANTED
    assert len(noises(tmp_path)) == GRANTED


def test_an_account_for_each_run_would_give_more(tmp_path, monkeypatch):
    """The broken twin: what the account was before."""
    monkeypatch.setattr(Ledger, "answers", lambda self, mechanism: 0.0)
    assert disclosed(tmp_path) > GRANTED


def test_a_run_that_could_need_more_than_is_left_is_refused_before_it_costs(tmp_path, caplog):
    assert len(over_flower(tmp_path, "one", 3)[0]) == 3
    assert over_flower(tmp_path, "two", 3) == ([], ("spent",))
    assert "must be at most 2, what is left of the 5 answers granted here for all runs, got 3." in caplog.text
    assert len(over_flower(tmp_path, "three", 2)[0]) == 2
    assert over_flower(tmp_path, "four", 1)[0] == []


def test_files_and_flower_share_one_account(folder):
    assert len(by_files(folder, 3)) == 3
    assert over_flower(folder, "one", 3)[1] == ("spent",)
    assert len(over_flower(folder, "two", 2)[0]) == 2
    (folder / "state.npz").unlink()
    with pytest.raises(ArchiveError, match="rounds to come must be at most 0, what is left of the 5"):
        by_files(folder, 1)


def test_a_state_that_was_put_back_is_charged_for_what_it_draws_again(folder):
    begin(1)[0].broadcast().write(folder.with_name("broadcast.npz"))
    seen = set()
    for _ in range(GRANTED):
        _, path = step_site(folder, private(), folder.with_name("broadcast.npz"))
        seen.add(Archive.read(path).arrays["natural"].tobytes())
        (folder / "state.npz").unlink()
    assert len(seen) == GRANTED
    with pytest.raises(ArchiveError, match="at most 0, what is left"):
        step_site(folder, private(), folder.with_name("broadcast.npz"))
    assert not (folder / "state.npz").exists()


@pytest.mark.parametrize("at", ["the ledger", "the reply"])
def test_a_step_that_stopped_sends_the_same_noise_and_is_charged_once(at, folder, monkeypatch):
    enter = Ledger.enter

    def stop(self, entry, design=None):
        if at == "the reply":
            enter(self, entry, design)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "enter", stop)
    with pytest.raises(KeyboardInterrupt):
        step_site(folder, private(), folder.with_name("broadcast.npz"))
    monkeypatch.undo()
    kept = Archive.read(folder / "state.npz").arrays["pending/natural"]
    for _ in range(2):
        _, path = step_site(folder, private(), folder.with_name("broadcast.npz"))
        assert np.array_equal(Archive.read(path).arrays["natural"], kept)
        assert len(noises(folder)) == 1


def test_other_noise_is_weighed(tmp_path):
    """Answers of multipliers z_i disclose as much as one of (Σ z_i⁻²)^{-1/2}; two of z = 1 are eight of z = 2."""
    loud = ba.GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    found = Ledger()
    for i in range(2):
        found = charged(found, i + 1, 2, loud, 2)
    assert found.answers(NOISE) == 8.0
    if pytest.importorskip("dp_accounting"):
        assert NOISE.epsilon(8, 1e-5) == pytest.approx(loud.epsilon(2, 1e-5), rel=1e-12)
    with pytest.raises(ArchiveError, match="at most 0"):
        charged(found, 1, 1, NOISE, 8)
    assert len(charged(found, 1, 1, NOISE, 9).entries) == 3


def charged(ledger, number, limit, mechanism, granted):
    """The ledger with another noised answer."""
    digest = f"{number} {mechanism}"
    entry = Entry(time="", kind="reply", run="r", number=number, name="", bytes=0, numbers=1, digest=digest)
    return replace(ledger, entries=(*ledger.entries, ledger.charged(entry, limit, mechanism, granted)))


def test_a_damaged_ledger_discloses_nothing(tmp_path, caplog):
    over_flower(tmp_path, "one", 1)
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes().replace(b'"noise": 2.0', b'"noise": 9.0'))
    assert over_flower(tmp_path, "two", 1) == ([], ("message",))
    assert "ledger.jsonl: line 2" in caplog.text


def test_a_site_without_privacy_is_not_charged(folder):
    step_site(folder, begin(2)[1], folder.with_name("broadcast.npz"))
    assert not noises(folder)


def test_the_grant_is_that_of_the_run_as_well():
    with pytest.raises(MessageError, match="rounds must be at most 5, the privacy granted here, got 6"):
        private().step(begin(6)[0].broadcast())


def test_noise_of_any_size_is_weighed_against_what_has_left(folder):
    # (1e200/2)² is no float: nothing of the smallest of disclosures is left
    by_files(folder, 1)
    ledger, huge = Ledger.read(folder), ba.GaussianMechanism(1.0, 1e200)
    assert ledger.answers(huge) == float("inf")
    with pytest.raises(ArchiveError, match="must be at most 0"):
        charged(ledger, 1, 1, huge, 3)
