"""Natural splines, orthogonal polynomials and null models by every door: one model, and R's."""

import json

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from oracles.doors import OTHERS, by_estimator, differing  # noqa: E402
from oracles.menu import read  # noqa: E402
from oracles.overrides import OPTIONS  # noqa: E402

CASES = read("design")
SITES = ("east", "north", "west")
DOORS = ("beyond", "no_knot_but_given", "polynomial", "b_spline", "few", "missing", "null_logistic", "null_linear")
BY_DATA = {
    "no_knot_but_given": ("one_knot", "low ~ ns(age, knots=(), lower_bound=14, upper_bound=45)"),
    "polynomial": ("degrees", "low ~ poly(age, 3) + lwt"),
    "b_spline": ("degrees", "low ~ bs(age, knots=(20, 30), lower_bound=14, upper_bound=45)"),
}


def case_of(name):
    """Return a case of R, or its rows under another formula, at three sites."""
    known, formula = BY_DATA.get(name, (name, None))
    case = CASES[known]
    whole = pd.DataFrame(case["data"])
    if "low" in whole:  # numbers are levels at sites, and classes of numbers in one process
        whole["low"] = np.where(whole["low"] == 1, "yes", "no")
    codes = whole["site"].str[1:].astype(int).clip(lower=2) - 2
    tables = {name: whole[codes == k].drop(columns="site").reset_index(drop=True) for k, name in enumerate(SITES)}
    return case, tables, (formula or case["formula"]), formula is None


@pytest.mark.parametrize("door", OTHERS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("name", DOORS)
def test_every_door_has_one_model(call, name, door):
    case, tables, formula, is_r = case_of(name)
    given = (call, tables, formula.replace(" ", ""), case["kind"], None, "none")
    first = by_estimator(*given)
    assert first.holds
    assert differing(first, door(*given)) == set()
    if is_r:
        assert np.abs((first.mean()[[-1, *range(len(first.mean()) - 1)]] - case["coef"]) / case["std_err"]).max() < 1e-6


@pytest.mark.parametrize("name", ["beyond", "polynomial", "null_logistic", "null_linear"])
def test_the_commands_fit_and_predict(call, name):
    """A fit of files, a run by folders, and predictions of new rows, beyond the bounds too."""
    case, tables, formula, _ = case_of(name)
    paths = [f"{site}.csv" for site in tables]
    for path, table in zip(paths, tables.values(), strict=True):
        table.to_csv(path, index=False)
    formula, kind = formula.replace(" ", ""), case["kind"]
    code, _, err = call(f"fit {' '.join(paths)} --formula {formula} --loss {kind} --out fit.npz --no-progress")
    assert code == 0, err
    for site in tables:
        options = f"--data {site}.csv --name {site} --formula {formula} --loss {kind} {OPTIONS}"
        code, _, err = call(f"site init at-{site} {options}")
        assert code == 0, err
    code, _, err = call(f"server run run {' '.join(f'at-{site}' for site in tables)} --no-progress")
    assert code == 0, err
    assert call("server status run --out run.npz")[0] == 0
    tables["west"].drop(columns=case["formula"].split(" ~")[0]).assign(more=1).to_csv("new.csv", index=False)
    found = []
    for model in ("fit.npz", "run.npz"):
        for command in (f"summary {model}", f"certify {model} {' '.join(paths)}"):
            code, out, err = call(command)
            assert code == 0, (command, err)
        code, out, err = call(f"predict {model} new.csv --json")
        assert code == 0, err
        rows = json.loads(out)["predictions"]
        found.append([row.get("probability_yes", row.get("mean")) for row in rows])
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert len(found[0]) == len(tables["west"])
