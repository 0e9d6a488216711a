"""Generated data through an estimator, a formula and `bayesadmm fit`: kinds, offsets, weights, trials, dtypes."""

import json
import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables are frames")
sm = pytest.importorskip("statsmodels.api")
pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")

from bayesadmm_np.estimators import FederatedGLM  # noqa: E402

FAMILIES = {
    "trials": ("k", "logistic", sm.families.Binomial),
    "shares": ("share", "logistic", sm.families.Binomial),
    "poisson": ("falls", "poisson", sm.families.Poisson),
    "linear": ("length", "linear", sm.families.Gaussian),
    "logistic": ("died", "logistic", sm.families.Binomial),
}


def draw(rng):
    """Rows at three sites, in no order of rows or columns."""
    n = int(rng.integers(40, 100))
    table = pd.DataFrame({"x": rng.normal(size=n), "z": rng.integers(0, 3, n), "site": rng.choice(list("ABC"), n)})
    table["known"], table["days"] = 0.3 * rng.normal(size=n), rng.uniform(0.5, 30, n)
    table["n"], table["w"] = rng.integers(0, 12, n), rng.integers(0, 3, n)
    f = 0.5 * table["x"] - 0.3 * table["z"] + table["known"]
    p = 1 / (1 + np.exp(-f))
    table["k"], table["died"] = rng.binomial(table["n"], p), (rng.random(n) < p).astype(int)
    table["share"] = table["k"] / table["n"].clip(lower=1)
    table["falls"], table["length"] = rng.poisson(table["days"] * np.exp(f - 1)), f + rng.normal(size=n)
    return table[[*rng.permutation(table.columns)]].sample(frac=1.0, random_state=1)


def oracle(table, kind, used):
    target, _, family = FAMILIES[kind]
    is_of_trials = "trials" in used
    keep = table[used.get("trials", used.get("sample_weight", "days"))] > 0
    rows = table[keep]
    y = np.column_stack([rows["k"], rows["n"] - rows["k"]]) if is_of_trials else rows[target]
    offset = sum(
        (np.log(rows[name]) if argument == "exposure" else rows[name])
        for argument, name in used.items()
        if argument in ("offset", "exposure")
    )
    X = sm.add_constant(rows[["x", "z"]].astype(float), prepend=False)
    weights = rows["w"] if "sample_weight" in used else None
    return sm.GLM(y, X, family(), offset=offset if np.ndim(offset) else None, freq_weights=weights).fit(tol=1e-14)


@pytest.mark.parametrize("seed", range(10))
def test_every_door_has_the_numbers_of_statsmodels(bayesadmm, tmp_path, seed):
    """Each is within 1e-8 of its own standard error, and statsmodels' rounds end below that; 1e-6 is left to both."""
    rng, kind = np.random.default_rng(seed), [*FAMILIES][seed % 5]
    table, (target, loss, _) = draw(rng), FAMILIES[kind]
    used = {"offset": "known"} if rng.integers(2) else {}
    used |= {"exposure": "days"} if kind == "poisson" and seed > 4 else {}
    used |= {"trials": "n"} if kind in ("trials", "shares") else {"sample_weight": "w"} if rng.integers(2) else {}
    right = oracle(table, kind, used)
    dtype = "float64" if target in ("share", "length") else rng.choice(["float64", "int64", "Int64", "object"])
    columns = {"weights" if name == "sample_weight" else name: own for name, own in used.items()}
    found = []
    for model in (
        FederatedGLM(loss).fit(
            table[["x", "z"]],
            table[target].astype(dtype),
            table["site"],
            **{name: table[own] for name, own in used.items()},
        ),
        FederatedGLM.from_formula(f"{target} ~ x + z", table, "site", kind=loss, **columns),
    ):
        whole = model.fitted_.goodness()
        found.append([*model.summary().to_frame()["coef"], whole.deviance, whole.null_deviance])
    table.to_csv(tmp_path / "all.csv", index=False)
    options = [text for name, own in columns.items() for text in (f"--{name}", own)]
    which = ["--formula", f"{target}~x+z"] if seed % 2 else ["--target", target, "--features", "x,z"]
    whose = ["--client", "site", "--loss", loss, "--json", "--no-progress"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code, out, err = bayesadmm("fit", tmp_path / "all.csv", *whose, *which, *options)
    assert code == 0, err
    told = json.loads(out)
    goodness = [told["goodness"][name] for name in ("deviance", "null_deviance")]
    found.append([*(row["coef"] for row in told["coefficients"]), *goodness])
    expected = [*right.params, right.deviance, right.null_deviance]
    scale = [*right.bse, right.deviance, right.null_deviance]
    np.testing.assert_allclose(np.divide(found, scale), [np.divide(expected, scale)] * 3, rtol=0, atol=1e-6)
    # the broken twin: the fit without what was given
    if used and "trials" not in used:
        bare = oracle(table, kind, {})
        assert not np.allclose(bare.params / right.bse, right.params / right.bse, atol=1e-3)
