"""A table of three hospitals, their own ways to write its rows, and formulaic's design of the pooled table."""

import formulaic
import numpy as np
import pandas as pd

from bayesadmm_np.glm.kinds import read_kind

SITES = ("Basel", "Bern", "Chur")
WARDS = ("10", "9", "ICU", "état")


def truth(seed=0, n=90):
    """The pooled table; the last site lacks a ward."""
    rng = np.random.default_rng([21, seed])
    site = np.repeat(SITES, n // 3)
    ward = np.where(site == "Chur", rng.choice(WARDS[1:3], n), rng.choice(WARDS, n))
    age = rng.integers(18, 99, n).astype(float)
    dose = rng.normal(size=n)
    days = rng.integers(1, 30, n).astype(float)
    score = 0.04 * (age - 60) + 0.5 * dose + (ward == "ICU")
    return pd.DataFrame(
        {
            "site": site,
            "died": (rng.random(n) < 1 / (1 + np.exp(-score))).astype(float),
            "stays": rng.poisson(np.exp(0.2 * dose) * days / 10).astype(float),
            "cost": score + rng.normal(size=n),
            "stage": rng.choice(["I", "II", "III"], n),
            "age": age,
            "dose": dose,
            "days": days,
            "ward": ward,
            "w": rng.integers(1, 4, n).astype(float),
        }
    )


def tables_of(whole, holes=True):
    """Each site's own writing of its rows, with incomplete rows in between."""
    tables = {}
    for k, (name, part) in enumerate(whole.groupby("site", sort=False)):
        rows = part.drop(columns="site").astype(object)
        if k == 0:
            rows["ward"] = [f" {ward} " for ward in rows.ward]
        if k == 1:
            rows["age"] = [f"{age:g}" for age in rows.age]
            rows = rows[sorted(rows)]
        if k == 2:
            rows = rows[sorted(rows, reverse=True)]
        if holes:
            lost = rows.iloc[:2].copy()
            lost["ward"] = None
            lost.loc[lost.index[1], "age"] = None
            rows = pd.concat([rows.iloc[:5], lost, rows.iloc[5:]], ignore_index=True)
        tables[name] = rows.reset_index(drop=True).infer_objects()
    return tables


def pooled_losses(whole, formula, kind, classes=(), weights=None, offset=None):
    """formulaic's design of the pooled table, by site, with the ones last."""
    kind = read_kind(kind)
    rows = whole.copy()
    rows["ward"] = pd.Categorical(rows.ward, categories=sorted(set(rows.ward)))
    made = formulaic.model_matrix(formula, rows)
    names = [name for name in made.rhs.columns if name != "Intercept"]
    y = rows[made.lhs.columns[0]] if not classes else rows[formula.split(" ~")[0]].map(list(classes).index)
    losses = {}
    for name in SITES:
        here = (rows.site == name).to_numpy()
        design = np.column_stack([made.rhs[names][here].to_numpy(float), np.ones(here.sum())])
        losses[name] = kind.make_loss(
            design,
            y[here].to_numpy(float),
            None if weights is None else rows[weights][here].to_numpy(float),
            None if offset is None else offset[here].to_numpy(float),
            kind.n_outputs(len(classes) or 2),
        )
    return (*names, "intercept"), losses
