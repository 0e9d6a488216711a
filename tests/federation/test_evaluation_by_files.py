"""An evaluation over sites whose rows stay: counts by files, their rules, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from bayesadmm_np.estimators.evaluation import site_counts
from bayesadmm_np.federation import Message
from oracles.by_files import ROWS, SITES, introduce, write_tables

FORMULA = "died~age+dose"


@pytest.fixture
def run(call):
    """Three sites that said hello by the usual rules, and a model of their rows."""
    rows = write_tables()
    introduce(call, f"--loss logistic --formula {FORMULA} --minimum-class-count 1 --budget 100")
    rows.to_csv("all.csv", index=False)
    assert call(f"fit all.csv --client site --loss logistic --formula {FORMULA} --out model.npz")[0] == 0
    return call


def counted(call, name, words=""):
    return call(f"site evaluate {name} model.npz {words} --json")


def test_counts_of_files_are_those_of_the_rows(run):
    for name in SITES:
        code, out, err = counted(run, name)
        assert code == 0, err
        assert json.loads(out)["rows"] == ROWS[name]
    files = " ".join(f"{name}/counts-{name}.npz" for name in SITES)
    code, out, err = run(f"evaluate model.npz {files} --json --figure f.svg")
    assert code == 0, err
    found = json.loads(out)
    right = json.loads(run("evaluate model.npz all.csv --client site --json")[1])
    assert list(found) == ["all", *SITES]
    for name, row in found.items():
        exact = right[name]
        assert (row["rows"], row["events"]) == (exact["rows"], exact["events"])
        assert abs(row["auc"]["estimate"] - exact["auc"]["estimate"]) <= row["auc_error"]
        assert exact["auc_error"] == 0.0
        assert row["auc"]["low"] <= exact["auc"]["estimate"] <= row["auc"]["high"]
        assert abs(row["brier"] - exact["brier"]) <= row["brier_error"]
        # a mean prediction is known to the bin's half, 0.005 in log-odds
        assert row["observed_to_expected"]["estimate"] == pytest.approx(exact["observed_to_expected"]["estimate"], 5e-3)
    assert Path("f.svg").stat().st_size > 1000
    code, out, _ = run("report east")
    assert code == 0
    assert "evaluation" in out
    assert "most_evaluations 1 ≤ 1" in out
    for name in SITES:  # what left holds no more than counts
        spans = Message.read(f"{name}/counts-{name}.npz").arrays["spans"]
        assert (spans == np.floor(spans)).all()
        assert (spans[:, 2:4].sum(axis=1) >= 10).all()


def test_a_site_says_its_counts_once_and_again_the_same(run):
    """A row's outcome is the difference of counts by two models, one with and one without it above a threshold."""
    assert counted(run, "east")[0] == 0
    first = Path("east/counts-east.npz").read_bytes()
    assert counted(run, "east")[0] == 0
    assert Path("east/counts-east.npz").read_bytes() == first
    assert len(json.loads(run("report east --json")[1])["sent"]) == 2  # hello and counts: the same bytes are one entry
    rows = Path("east.csv").read_text().splitlines()
    Path("fewer.csv").write_text("\n".join(rows[:-1]) + "\n")
    code, _, err = counted(run, "east", "--data fewer.csv")
    assert code == 3
    assert "--most-evaluations wants at most 1" in err
    assert Path("east/counts-east.npz").read_bytes() == first
    # the twin: with the rule lifted, the difference is the outcome of the last row
    assert run("site rules east --most-evaluations 2")[0] == 0
    assert counted(run, "east", "--data fewer.csv --out fewer.npz")[0] == 0
    totals = [Message.read(path).arrays["spans"].sum(axis=0)[2:4] for path in ("east/counts-east.npz", "fewer.npz")]
    assert list(totals[0] - totals[1]) == [float(",yes," in rows[-1]), float(",no," in rows[-1])]
    assert "most_evaluations 2" in run("report east")[1]


def test_no_sum_over_predictions_tells_an_outcome():
    """A model that is sure of one row and of no other: its Brier score, if sent, were that row's outcome."""
    p, y = np.full(20, 0.5), np.arange(20) % 2
    p[7] = 1.0 - 1e-9
    turned = y.copy()
    turned[7], turned[6] = y[6], y[7]  # the same number of events
    one, other = site_counts(p, y), site_counts(p, turned)
    assert one.coarse(10, 3).spans == other.coarse(10, 3).spans
    assert 20 * abs(one.brier_score - other.brier_score) > 0.9  # the twin: the exact sum


def test_rules_refuse_by_name(run):
    code, _, err = run("site evaluate west model.npz --json")
    assert code == 0, err
    Path("west/counts-west.npz").unlink()
    lines = Path("west.csv").read_text().splitlines()
    Path("few.csv").write_text("\n".join(lines[:8]) + "\n")
    code, _, err = counted(run, "west", "--data few.csv")
    assert code == 3
    assert "--minimum-rows wants at least 10 rows, got 7" in err
    assert not Path("west/counts-west.npz").exists()
    assert run("site rules east --minimum-class-count 30")[0] == 0
    code, _, err = counted(run, "east")
    assert (code, "--minimum-class-count wants none or at least 30 rows of each class" in err) == (3, True)
    assert run("site rules north --allow died,dose")[0] == 0
    code, _, err = counted(run, "north")
    assert (code, "--allow wants columns of its list alone of column 'age'" in err) == (3, True)


def test_a_column_that_the_site_has_not_named_is_not_read(run):
    assert run("fit all.csv --client site --loss logistic --formula died~age+pressure --out model.npz")[0] == 0
    code, _, err = counted(run, "east")
    assert (code, "of column 'pressure'" in err) == (3, True)


def test_models_and_sites_that_cannot_be_counted_are_refused(run):
    for kind, formula in (("poisson", "visits~dose"), ("softmax", "ward~dose")):
        assert run(f"fit all.csv --client site --loss {kind} --formula {formula} --out other.npz")[0] == 0
        code, _, err = run("site evaluate east other.npz")
        assert (code, "classes was expected" in err) == (2, True)
    plain = json.loads(Path("east/site.json").read_text())
    noise = {"privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_rounds": 3}
    Path("east/site.json").write_text(json.dumps({**plain, **noise}))
    code, _, err = counted(run, "east")
    assert (code, "noise" in err) == (2, True)


def test_files_that_are_damaged_of_another_model_or_of_one_site_twice_are_refused(run):
    for name in SITES:
        assert counted(run, name)[0] == 0
    east, north = "east/counts-east.npz", "north/counts-north.npz"
    code, _, err = run(f"evaluate model.npz {east} {north} {east}")
    assert (code, "site must be another than that of the files before, east, north" in err) == (2, True)
    assert run("fit all.csv --client site --loss logistic --formula died~age --out other.npz")[0] == 0
    code, _, err = run(f"evaluate other.npz {east}")
    assert (code, "of this model (it is of another)" in err) == (2, True)
    whole = Path(east).read_bytes()
    Path("cut.npz").write_bytes(whole[:-9])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    Path("flipped.npz").write_bytes(bytes(flipped))
    for path in ("cut.npz", "flipped.npz"):
        code, _, err = run(f"evaluate model.npz {path}")
        assert code == 2, err
        assert path in err
    code, _, err = run(f"evaluate model.npz {east} all.csv")
    assert code == 2, err


FORGED = [
    lambda spans: spans[:0],
    lambda spans: spans + 0.5,
    lambda spans: spans[::-1],
    lambda spans: np.vstack([spans, spans]),
    lambda spans: spans * [1, 1, 0, 0, 1],
    lambda spans: spans * [1, 1, -1, 1, 1],
    lambda spans: spans * [1, 1, 1e300, 1, 1],
    lambda spans: spans + np.array([0, 4000, 0, 0, 0]),
    lambda spans: spans + np.array([0, 0, 0, 0, 4000]),
    lambda spans: spans[:, :4],
]


def test_forged_counts_are_refused(run):
    assert counted(run, "east")[0] == 0
    message = Message.read("east/counts-east.npz")
    for number, change in enumerate(FORGED):
        forged = Message(message.kind, message.header, {"spans": change(message.arrays["spans"])})
        forged.write("forged.npz")
        code, _, err = run("evaluate model.npz forged.npz")
        assert (code, "spans" in err) == (2, True), number


def test_a_model_with_intercepts_of_sites_is_evaluated_at_each(run):
    fit = f"fit east.csv north.csv west.csv --site-intercepts --loss logistic --formula {FORMULA} --out model.npz"
    assert run(fit)[0] == 0
    for name in SITES:
        code, _, err = counted(run, name)
        assert code == 0, err
    files = " ".join(f"{name}/counts-{name}.npz" for name in SITES)
    found = json.loads(run(f"evaluate model.npz {files} --json")[1])
    for name in SITES:  # with an intercept of its own a site's predictions add up to its events: the score equation
        assert found[name]["observed_to_expected"]["estimate"] == pytest.approx(1.0, abs=5.1e-3)
