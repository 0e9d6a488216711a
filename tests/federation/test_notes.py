"""What others have written reaches the log as one bounded line, and one server is at work in a folder."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import GLMData, GLMTask, Site, lock
from bayesadmm_np.federation.dispatch import Plan, answer, serve
from bayesadmm_np.federation.dispatch.envelope import LONGEST_NOTE, Answer, Request, one_line
from bayesadmm_np.federation.refusals import Refusal
from oracles.couriers import started
from oracles.overrides import ALLOWED
from oracles.scripted import Clock, Scripted

HOSTILE = "\x1b]0;title\x07\x1b[2J\r\n\x00\u202e\ud800 and no end" + "x" * 10**6


def test_a_line_is_bounded_printable_and_can_be_encoded():
    for text in (HOSTILE, "", "λ_g: ≥ 0 – fine", "x" * LONGEST_NOTE, "x" * (LONGEST_NOTE + 1)):
        line = one_line(text)
        assert len(line) <= LONGEST_NOTE
        assert line.isprintable()
        assert line.encode().decode() == line
        assert line == text or text in (HOSTILE, "x" * (LONGEST_NOTE + 1))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_cannot_move_the_cursor_of_a_terminal_and_a_file_gets_the_data(
    is_terminal, tmp_path, bayesadmm, monkeypatch
):
    (tmp_path / "a.csv").write_text("site,y\n" + "a\x1b[2J,1\nb,2\n" * 20)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    code, out, _ = bayesadmm("describe", tmp_path / "a.csv")
    assert code == 0
    assert ("\x1b" in out) is not is_terminal


LOSS = ba.losses.LeastSquares([[1.0]], [1.0])


def plan_in(folder):
    return Plan(GLMTask(ba.methods.PVI(), ba.families.FullGaussian(np.zeros(1), 1.0)), folder / "server", sites=1)


def transport(folder, monkeypatch):
    """A site that does its work, and one that refuses with words of its own in the place of a column."""

    def fault(name, number, call):
        return call() if name == "A" else Answer(said=Refusal(("minimum_count",), (HOSTILE,)))

    return Scripted(Clock(monkeypatch), folder, {"A": LOSS, "B": LOSS}, lambda name, number: 0.0, fault)


def test_hostile_notes_are_told_as_one_line(tmp_path, monkeypatch):
    told = []
    server = serve(plan_in(tmp_path), transport(tmp_path, monkeypatch), "7", told.append)
    assert server.outcome.status is ba.Status.CONVERGED
    assert any(line.startswith("node 2: ") for line in told)
    assert all(len(line) <= LONGEST_NOTE and line.isprintable() for line in told)


def test_a_second_server_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    (tmp_path / "server").mkdir()
    with lock.locked(tmp_path / "server", "server"), pytest.raises(ValueError, match="is in use by another process"):
        serve(plan_in(tmp_path), transport(tmp_path, monkeypatch), "7", print)
    assert [path.name for path in (tmp_path / "server").iterdir()] == [".server.lock"]


def test_a_second_process_of_a_site_is_refused(tmp_path, monkeypatch):
    """Two at once would draw noise twice for one broadcast."""
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    site = Site("A", GLMData(LOSS), rules=ALLOWED)
    request = Request("7", started([site], plan_in(tmp_path).task).broadcast().to_bytes())
    with lock.locked(tmp_path, "site"):
        said = answer(request, tmp_path, lambda spec: (site, site.hello()))
    assert said.refused
    assert said.said.codes == ("busy",)
