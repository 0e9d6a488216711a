"""Inquiries and answers: what is refused, with which words, and that the genuine ones are taken in afterwards."""

import numpy as np
import pytest

import bayesadmm_np as ba
from bayesadmm_np.federation import Coordinator, GLMData, GLMTask, Message, MessageError, Site, step_site
from bayesadmm_np.glm.questions import Respondent
from bayesadmm_np.losses import Logistic
from oracles.couriers import carried, edited, started
from oracles.couriers import until as played

COLUMNS = ("age", "dose", "intercept")


def losses():
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.normal(size=(50, 2)), np.ones(50)])
    y = (rng.random(50) < 1.0 / (1.0 + np.exp(-X @ [1.0, -1.0, 0.2]))).astype(float)
    return [Logistic(X[:20], y[:20]), Logistic(X[20:], y[20:])]


def begin(asks=True, **options):
    sites = [Site(name, GLMData(loss, COLUMNS), **options) for name, loss in zip("AB", losses(), strict=True)]
    row, prior = ba.Guarded(ba.methods.Newton()), ba.families.FullGaussian(np.zeros(3), 0.0)
    return started(sites, GLMTask(row, prior, tol=1e-8, asks=asks)), sites


def until(name):
    """Return the server when it asks this question, and the sites."""
    return played(*begin(), lambda server: server.question is not None and server.question.name == name)


BAD_INQUIRIES = {
    "name": ({"name": "rows_themselves"}, {}),
    "covariance": ({"name": "firth"}, {}),
    "weights": ({"content.weights": "secret"}, {}),
    "number": ({"number": 0}, {}),
    "theta": ({}, {"q/theta": np.array([np.nan, 0.0, 0.0])}),
    "bread": ({}, {"q/bread": np.eye(2)}),
    "arrays": ({}, {"q/rows": np.zeros(3)}),
    "run": ({"run": "0" * 16}, {}),
}
"""By the field that is wrong."""


def test_a_site_refuses_what_is_no_question_of_its_run():
    server, sites = until("statistics")
    for field, (header, arrays) in BAD_INQUIRIES.items():
        with pytest.raises(MessageError, match=field):
            sites[0].step(edited(server.broadcast(), header, arrays))
    assert sites[0].step(carried(server.broadcast()))[1].header["refused"] is None


BAD_ANSWERS = {
    "name": ({"name": "design"}, {}),
    "number": ({"number": 7}, {}),
    "site": ({"site": "C"}, {}),
    "answers": ({"answers": "0" * 64}, {}),
    "arrays": ({}, {"a/meats/HC4": np.eye(3)}),
    "refused": ({"refused": "no"}, {}),
    "codes": ({"refused": {"codes": ["age 61"], "columns": []}, "content": {}}, {}),
    "columns": ({"refused": {"codes": ["minimum_count"], "columns": ["age 61"]}, "content": {}}, None),
}


def bare(message, header):
    """An answer without arrays."""
    return Message(message.kind, {**message.header, **header}, {})


def test_a_server_refuses_what_is_no_answer():
    server, sites = until("statistics")
    good = [site.step(server.broadcast())[1] for site in sites]
    for words, (header, arrays) in BAD_ANSWERS.items():
        with pytest.raises(MessageError, match=words):
            server.step([edited(good[0], header, arrays) if arrays is not None else bare(good[0], header), good[1]])
    assert server.step([carried(one) for one in good]).question.name == "own_fit"


def test_one_answer_a_site_and_no_reply_of_a_round():
    server, sites = until("statistics")
    answer = sites[0].step(server.broadcast())[1]
    with pytest.raises(MessageError, match="one that has not replied yet"):
        server.step([answer, edited(answer, {"content.loss": 1.0})])
    first, others = begin()
    with pytest.raises(MessageError, match="kind must be 'answer'"):
        first.step([others[0].hello()])


def test_an_answer_is_kept_by_nobody_and_comes_again_the_same(tmp_path):
    server, sites = begin()
    server.broadcast().write(tmp_path / "inquiry.npz")
    for _ in range(2):
        site, path = step_site(tmp_path, sites[0], tmp_path / "inquiry.npz")
        assert site.kept is None
        assert path.name == "answer-A-0001.npz"
    assert sorted(one.name for one in tmp_path.glob("*.npz")) == ["answer-A-0001.npz", "inquiry.npz"]


def test_a_run_that_asks_nothing_has_no_inquiry_and_its_sites_answer_none():
    server, sites = begin(asks=False)
    assert server.broadcast().kind == "broadcast"
    asking, _ = begin()
    stranger = edited(asking.broadcast(), {"spec": server.broadcast().header["spec"], "run": server.spec.run})
    with pytest.raises(MessageError, match="in a run without questions"):
        sites[0].step(stranger)


@pytest.mark.parametrize("name", ["design", "statistics"])
def test_a_state_of_any_question_is_put_away_and_read_again(name):
    server, sites = until(name)
    again = Coordinator.restore(carried(server.save()))
    assert (again.question.name, again.asked, again.spec.run) == (name, server.asked, server.spec.run)
    assert again.broadcast().digest == server.broadcast().digest
    replies = [site.step(server.broadcast())[1] for site in sites]
    one, other = server.step(replies), again.step([carried(reply) for reply in replies])
    assert one.broadcast().digest == other.broadcast().digest
    assert other.step(replies) is other  # the same answers again change nothing


def test_a_talk_that_is_cut_is_refused():
    server, _ = until("statistics")
    state = server.save()
    for bad in (
        edited(state, {"talk": [[1, 2]]}),
        edited(state, {"talk": [[-1, 5]]}),
        edited(state, {}, {"talk0": state.arrays["talk0"][:-1]}),
    ):
        with pytest.raises(MessageError):
            Coordinator.restore(bad)
    Coordinator.restore(carried(state))


def test_a_site_with_privacy_says_so_in_place_of_an_answer():
    private = {"privacy": ba.GaussianMechanism(1.0, 2.0), "privacy_rounds": 5}
    server, _ = begin()
    _, sites = begin(**private)
    said = carried(sites[0].step(server.broadcast())[1])
    assert said.header["refused"] == {"codes": ["private"], "columns": []}
    assert not said.arrays


def test_without_the_sums_of_leverages_there_are_the_other_robust_ones(monkeypatch):
    """A site that refuses those of leverages is asked again without; of a site that is away nothing more is asked."""
    server, sites = until("statistics")
    respond = Respondent.answer

    def cautious(self, name, question):
        if name == "statistics" and "HC3" in question.robust:
            raise ValueError("no leverages")
        return respond(self, name, question)

    monkeypatch.setattr(Respondent, "answer", cautious)
    absent = server.step([sites[0].step(server.broadcast())[1]])
    absent = absent.step([site.step(absent.broadcast())[1] for site in sites])  # their own fits
    assert absent.outcome.table.statistics is None
    assert "site B" in absent.outcome.table.missing[0]
    while server.outcome is None:
        server = server.step([site.step(server.broadcast())[1] for site in sites])
    assert sorted(server.outcome.table.statistics.total.meats) == ["HC0", "cluster"]
    assert not server.outcome.table.missing
