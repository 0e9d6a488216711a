"""Cox and piecewise exponential regressions by every door: one model, and no time of an event in a message."""

import json
from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np.federation import Coordinator, GLMTable, Site  # noqa: E402
from oracles.doors import OTHERS, by_estimator, differing, plan  # noqa: E402
from oracles.overrides import ALLOWED  # noqa: E402

FITS = json.loads((Path(__file__).parents[1] / "oracles" / "menu_survival.json").read_text())
CASES = ("lung", "heart", "heart, breslow", "ovarian", "lung, weights", "lung, pieces", "veteran, pieces")
SITES = ("east", "north", "west")
FORMULA = "Surv(time,status==2)~age+sex+ph.ecog"


def tables(fit):
    """The rows of four sites at three: stratified fits are then others than R's, and pieces are R's."""
    whole = pd.DataFrame(fit["data"])
    codes = whole["site"].str[1:].astype(int).clip(lower=2) - 2
    return {name: whole[codes == k].drop(columns="site").reset_index(drop=True) for k, name in enumerate(SITES)}


@pytest.mark.parametrize("door", OTHERS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("name", CASES)
def test_every_door_has_one_model(call, name, door):
    fit = FITS[name]
    given = (call, tables(fit), fit["formula"].replace(" ", ""), fit["kind"], fit["weights"], "none")
    first = by_estimator(*given)
    assert first.holds
    assert differing(first, door(*given)) == set()
    if "cuts" in fit:
        assert np.abs((first.mean() - fit["coef"]) / fit["std_err"]).max() < 1e-6


@pytest.mark.parametrize("kind", ["cox", "piecewise_exponential(cuts=90:180)"])
def test_no_time_leaves_a_site(kind):
    """Times are 17 digits long, and no message has one: in JSON as text, or in an array as bytes."""
    rng = np.random.default_rng(3)
    data = tables(FITS["lung"])
    for table in data.values():
        table["time"] = table["time"] + rng.random(len(table))
    sites = [Site(name, GLMTable(one, FITS["lung"]["formula"], kind), rules=ALLOWED) for name, one in data.items()]
    sent = [site.hello() for site in sites]
    server = Coordinator.start(sent, plan("lr").task)
    while server.outcome is None:
        sites, replies = zip(*(site.step(server.broadcast()) for site in sites), strict=True)
        server, sent = server.step(replies), [*sent, *replies]
    raw = b"".join(one.to_bytes() for one in sent)
    assert len(raw) > 10_000
    for time in np.concatenate([table["time"].to_numpy() for table in data.values()]).tolist():
        assert repr(time).encode() not in raw
        assert np.float64(time).tobytes() not in raw


def test_the_command_predicts_relative_risks(call):
    """Without the standard deviation of an observation: a risk is none."""
    fit = FITS["lung"]
    first = by_estimator(call, tables(fit), fit["formula"], "cox", None, "none")
    for name, table in tables(fit).items():
        table.to_csv(f"{name}.csv", index=False)
    code, _, err = call(
        f"fit {' '.join(f'{name}.csv' for name in SITES)} --formula {FORMULA} --out m.npz --no-progress"
    )
    assert code == 0, err
    code, out, err = call("predict m.npz east.csv")
    assert code == 0, err
    header, *cells = out.split()
    assert header == "relative_risk"
    X = tables(fit)["east"][["age", "sex", "ph.ecog"]]
    np.testing.assert_allclose(np.array(cells, float), np.exp(X @ first.mean()), rtol=1e-12)
