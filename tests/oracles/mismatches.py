"""Tables that do not match, by a seeded generator, and what may come of them: the pooled design, or a named refusal.

The truth is made first, a table in order with known levels. Each site's part is then written differently. *Harmless*
changes say the same (blanks, order, dtypes, another container); *harmful* ones do not (dates, another case, text among
numbers). The oracle knows both lists and formulaic's design of the truth, and nothing of how sites agree. After
harmless changes the designs must be the oracle's to the last bit; after a harmful one a refusal must name site and
column.
"""

from dataclasses import dataclass, field

import formulaic
import numpy as np
import pandas as pd
import polars as pl

from bayesadmm_np.design.levels import TableError

SITES = ("Basel", "Bern", "Chur", "Genf")
WARDS = ("medical", "surgical", "Intensive care", "état", "10", "9b")
FORMULAS = (
    "died ~ age + ward",
    "died ~ age*ward + flag",
    "died ~ ward + C(code) - 1",
    "died ~ age*flag + C(code)",
    "died ~ age + age:ward + C(code)",
    "died ~ log(age) + C(ward, Treatment('medical')) + flag",
    "died ~ C(code)*ward",
    "died ~ I(age**2) + poly(age, 2, raw=True):ward",
    "log(age) ~ ward + flag:C(code) + offset(age)",
    "died ~ 0 + C(ward, Sum) + age",
)
COLUMNS = ("died", "age", "ward", "code", "flag")


@dataclass
class Case:
    formula: str
    truth: pd.DataFrame  # rows of all sites, complete or not, with a column `site`
    tables: dict = field(default_factory=dict)
    harmful: set = field(default_factory=set)  # of (site, column)
    declared: dict = field(default_factory=dict)  # {site: order of wards}
    intercepts: bool = False
    ignore_case: bool = False
    reference: dict = field(default_factory=dict)
    texts: dict = field(default_factory=dict)  # {column: sites that write its numbers as text}
    words: dict = field(default_factory=dict)  # {column: sites with text that is no number}
    swapped: list = field(default_factory=list)  # (site, row) of a ward in another case


def used(case):
    return [name for name in COLUMNS if name in case.formula]


def make_case(seed):
    rng = np.random.default_rng([18, seed])
    formula = str(rng.choice(FORMULAS))
    sites = SITES[: rng.integers(1, 4)]
    site = np.repeat(sites, rng.integers(3, 16, len(sites)))
    n = len(site)
    wards = [str(ward) for ward in rng.permutation(WARDS)[: rng.integers(2, 6)]]
    codes = rng.permutation([1, 2, 3, 10])[: rng.integers(2, 5)]
    truth = pd.DataFrame(
        {
            "site": site,
            "died": rng.integers(0, 2, n),
            "age": rng.integers(18, 99, n) + rng.choice([0.0, 0.5], n),
            "ward": rng.choice(wards, n),
            "code": rng.choice(codes, n),
            "flag": rng.random(n) < 0.5,
        }
    )
    case = Case(formula, truth, intercepts=len(sites) > 1 and rng.random() < 0.3, ignore_case=rng.random() < 0.2)
    if rng.random() < 0.3:
        for name in COLUMNS[1:]:
            truth[name] = truth[name].astype(object).where(rng.random(n) > 0.08, None)
    complete = truth[used(case)].notna().all(axis=1)
    if "ward" in used(case) and "C(ward" not in formula and complete.any() and rng.random() < 0.3:
        case.reference = {"ward": str(rng.choice(truth.ward[complete]))}
    how = rng.choice(["none", "same", "any"], p=[0.6, 0.2, 0.2])
    order = [str(ward) for ward in rng.permutation(WARDS)]
    for name in sites:
        if how == "same":
            case.declared[name] = order
        elif how == "any" and rng.random() < 0.7:
            case.declared[name] = [str(ward) for ward in rng.permutation(WARDS)]
        case.tables[name] = write(case, name, rng)
    return case


# ----------------------------------------------------------------------------------------------------
# Changes
# ----------------------------------------------------------------------------------------------------


def write(case, site, rng):
    """A site's table, with its own ways to write things; `harmful` learns which of them cannot be undone."""
    part = case.truth[case.truth.site == site]
    columns = {name: list(part[name]) for name in COLUMNS}
    dtypes = {}
    for name in COLUMNS:
        write_column(case, site, name, columns, dtypes, rng)
    names = [str(name) for name in rng.permutation([*COLUMNS, "patient"])]
    columns["patient"] = [f"p{i}" for i in range(len(part))]
    headers = {name: f" {name} " if rng.random() < 0.05 else name for name in names}
    fault = rng.choice(["", "lacking", "case of header"], p=[0.98, 0.01, 0.01])
    if fault:
        name = str(rng.choice(used(case)))
        case.harmful.add((site, name))
        names = [other for other in names if other != name] if fault == "lacking" else names
        headers[name] = headers[name].upper()
    table = {headers[name]: columns[name] for name in names}
    if dtypes or rng.random() < 0.6:
        return pd.DataFrame({header: pd.Series(column, dtype=None) for header, column in table.items()}).astype(
            {headers[name]: dtype for name, dtype in dtypes.items() if name in names}
        )
    if rng.random() < 0.5 and not any(of_several_kinds(column) for column in table.values()):
        return pl.DataFrame(table, strict=False)
    return table


def of_several_kinds(column):
    return len({type(cell) for cell in column if cell is not None}) > 1


def write_column(case, site, name, columns, dtypes, rng):
    cells = columns[name]
    is_used = name in used(case)
    complete = (case.truth[case.truth.site == site][used(case)].notna().all(axis=1)).to_list()
    have = [i for i, ok in enumerate(complete) if ok and not pd.isna(cells[i])]

    def harm():
        if is_used and have:
            case.harmful.add((site, name))

    def word():
        if is_used and have:
            case.words.setdefault(name, set()).add(site)

    draw = rng.random()
    if draw < 0.012:
        how = rng.choice(["dates", "texts of dates", "infinite", "mixed"])
        harm()
        if how == "infinite" and name in ("age", "code"):
            cells[:] = [np.inf if i in have[:1] else cell for i, cell in enumerate(cells)]
        elif how == "mixed" and len(have) > 1:
            cells[:] = [("#1" if i == have[0] else 7.25) if cell is not None else None for i, cell in enumerate(cells)]
        elif how == "texts of dates":
            cells[:] = [None if cell is None else f"2024-03-{i % 28 + 1:02}" for i, cell in enumerate(cells)]
        else:
            cells[:] = [None if cell is None else pd.Timestamp(2024, 3, i % 28 + 1) for i, cell in enumerate(cells)]
    elif name == "ward":
        write_ward(case, site, cells, dtypes, have, is_used, rng)
    elif name == "flag":
        if draw < 0.15:  # in numbers: another column of 0 and 1
            cells[:] = [cell if cell is None else int(cell) for cell in cells]
        elif draw < 0.17:
            cells[:] = [cell if cell is None else "yes" if cell else "no" for cell in cells]
            word()
        elif draw < 0.3 and None in cells:
            dtypes[name] = "boolean"
    elif draw < 0.2:
        blank = rng.choice(["", " "])
        cells[:] = [cell if cell is None else f"{blank}{cell}{blank}" for cell in cells]
        case.texts.setdefault(name, set()).add(site)
    elif draw < 0.4:
        cells[:] = [cell if cell is None else float(cell) for cell in cells]
    elif draw < 0.42:
        cells[:] = [cell if cell is None else f"0{cell}" for cell in cells]
        word()
    elif draw < 0.44 and have:
        cells[have[0]] = "unknown"
        cells[:] = [cell if cell is None else str(cell) for cell in cells]
        word()
    elif draw < 0.5 and name == "code":
        dtypes[name] = "category"
        case.texts.setdefault(name, set()).add(site)  # as good as
    elif draw < 0.55 and name == "code" and None in cells:
        dtypes[name] = "Int64"
    if rng.random() < 0.2 and name not in dtypes:
        holes = {"ward": [None, "", "  ", np.nan], "flag": [None], "code": [None], "age": [None]}.get(name, [None])
        cells[:] = [holes[rng.integers(len(holes))] if cell is None else cell for cell in cells]


def write_ward(case, site, cells, dtypes, have, is_used, rng):
    if site in case.declared:
        dtypes["ward"] = pd.CategoricalDtype(case.declared[site])
        return
    if rng.random() < 0.4:
        blanks = ["", " ", "\t", "\u00a0"]
        cells[:] = [cell if cell is None else f"{rng.choice(blanks)}{cell}{rng.choice(blanks)}" for cell in cells]
    if rng.random() < 0.2:  # é in one letter or in two
        cells[:] = [cell if cell is None else cell.replace("é", "e\u0301") for cell in cells]
    if rng.random() < 0.03 and have:
        i = have[rng.integers(len(have))]
        other = cells[i].swapcase()
        if other == cells[i]:
            return
        cells[i] = other
        case.swapped.append((site, i))


# ----------------------------------------------------------------------------------------------------
# The oracle
# ----------------------------------------------------------------------------------------------------


def expected_order(case, truth):
    """All sites declare the same order of what they hold, or wards are sorted."""
    present = set(truth.ward)
    numbers = all(level.isdigit() for level in present)
    order = sorted(present, key=int) if numbers else sorted(present)
    held = {site: set(rows.ward) for site, rows in truth.groupby("site")}
    if set(case.declared) == set(held):
        lists = {site: [ward for ward in case.declared[site] if ward in held[site]] for site in held}
        longest = max((lists[site] for site in held), key=len)
        if set(longest) == present and all(
            found == [ward for ward in longest if ward in set(found)] for found in lists.values()
        ):
            order = longest
    first = case.reference.get("ward")
    return order if first is None else [first, *(ward for ward in order if ward != first)]


def inherent(case):
    """What must be refused in the truth itself: (site or None, column or None)."""
    names = used(case)
    complete = case.truth[names].notna().all(axis=1)
    faults = {(site, None) for site in case.tables if not complete[case.truth.site == site].any()}
    rows = case.truth[complete]
    factors = [name for name in ("ward", "code") if name in names]
    faults |= {(None, name) for name in factors if rows[name].nunique() < 2}
    for name in factors:
        held = {site: set(part[name]) for site, part in rows.groupby("site")}
        if max(map(len, held.values()), default=0) > 1:  # none of a site's levels is another's: a coding, or is it?
            others = {site: set().union(*(own for other, own in held.items() if other != site)) for site in held}
            faults |= {(site, name) for site, own in held.items() if len(held) > 1 and not own & others[site]}
    if "Treatment('medical')" in case.formula and "medical" not in set(rows.ward):
        faults.add((None, "ward"))
    if "ward" in names and "C(ward" not in case.formula:
        # a site where all wards look like numbers and no level is declared: its levels are not named
        wards = {site: set(held.ward) for site, held in rows.groupby("site")}
        of_words = {site for site, held in wards.items() if "10" not in held}
        # a site that declares a level 10 means a factor, unless another has words alone: is 10 then the code of one?
        faults |= {
            (site, "ward") for site, held in wards.items() if held == {"10"} and (of_words or site not in case.declared)
        }
    for name in ("died", "age"):
        # numbers written as text at every site: a factor or a number?
        bare = (name == "died" and case.formula.startswith("died")) or (
            name == "age" and not any(call in case.formula for call in ("log(age)", "I(age", "offset(age"))
        )
        if name in names and bare and case.texts.get(name, set()) >= set(case.tables):
            faults.add((None, name))
    return faults


def harm_of_case(case):
    """Wards that complete rows spell in two ways, with their sites, and the truth with both."""
    names = used(case)
    truth = case.truth.copy()
    truth["written"] = truth.ward
    for site, i in case.swapped:
        row = truth.index[truth.site == site][i]
        truth.loc[row, "written"] = truth.ward[row].swapcase()
    rows = truth[truth[names].notna().all(axis=1)]
    found = {}
    for ward, group in rows.groupby("ward") if "ward" in names else ():
        spellings = set(group.written)
        if len(spellings) > 1:
            found[ward] = set(group.site)
    return found, truth


def pooled(case, truth):
    """formulaic's design of the truth's complete rows."""
    names = used(case)
    rows = truth[truth[names].notna().all(axis=1)].copy()
    rows["age"] = rows.age.astype(float)
    rows["flag"] = rows.flag.map(lambda cell: np.nan if cell is None else float(cell))
    rows["died"] = rows.died.map(lambda cell: np.nan if cell is None else float(cell))
    if "code" in names:
        codes = rows.code.map(lambda cell: str(int(cell)))
        rows["code"] = pd.Categorical(codes, categories=sorted(set(codes), key=int))
    if "ward" in names:
        rows["ward"] = pd.Categorical(rows.ward, categories=expected_order(case, rows))
    formula = case.formula.replace(" + offset(age)", "") + (" + site" if case.intercepts else "")
    rows["site"] = pd.Categorical(rows.site, categories=sorted(case.tables))
    made = formulaic.model_matrix(formula, rows)
    return rows, made


def check(case, over_sites):
    """Return whether the tables were refused; a silent difference is an AssertionError.

    `over_sites` is case → agreement and designs by site, which have the names, rows, target, offset and number of rows
    left out.
    """
    if is_another_truth(case):
        return None
    for name, sites in case.words.items():
        case.harmful |= {(site, name) for site in sites}
    spellings, truth = harm_of_case(case)
    if case.swapped:  # merged, by the spelling that most rows hold
        case.truth = truth = with_common_spelling(case, truth)
    inherent_faults = inherent(case)
    if case.ignore_case or not spellings:
        harmful = set(case.harmful)
    else:
        harmful = case.harmful | {(site, "ward") for sites in spellings.values() for site in sites}
    try:
        agreement, designs = over_sites(case)
    except TableError as error:
        named = [site for site in case.tables if repr(site) in str(error)]  # two, where they differ from one another
        blamed = {(None, error.column), *((site, name) for site in named for name in (error.column, None))}
        if blamed & (harmful | inherent_faults):
            return True
        raise AssertionError(f"refused without a fault: {error}") from error
    assert not harmful, f"not refused: {harmful}"
    assert not inherent_faults, f"not refused: {inherent_faults}"
    require_pooled(case, truth, agreement, designs)
    return False


def is_another_truth(case):
    """Whether all sites write a column of numbers as text, which is no mismatch."""
    return any(sites | case.texts.get(name, set()) >= set(case.tables) for name, sites in case.words.items())


def require_pooled(case, truth, agreement, designs):
    """Raise an AssertionError unless the designs are the rows of formulaic's design of the truth."""
    rows, made = pooled(case, truth)
    right = made.rhs.drop(columns="Intercept", errors="ignore")
    assert agreement.has_intercept == ("Intercept" in made.rhs)
    assert list(agreement.names) == list(right.columns)
    for site, found in designs.items():
        here = rows.site == site
        assert found.names == agreement.names
        whole = right[here].to_numpy(dtype=float)  # with NumPy 1.26 two of 44 entries are an ulp apart
        np.testing.assert_array_max_ulp(found.matrix, whole, maxulp=1)
        np.testing.assert_array_equal(found.y, made.lhs[here].iloc[:, -1].to_numpy(dtype=float))
        assert found.n_dropped == int((case.truth.site == site).sum() - here.sum())
        if "offset" in case.formula:
            np.testing.assert_array_equal(found.offset, rows.age[here])


def with_common_spelling(case, truth):
    names = used(case)
    complete = truth[names].notna().all(axis=1)
    merged = {}
    for ward, group in truth[complete].groupby("ward"):
        counts = group.written.value_counts()
        merged[ward] = min(counts.index, key=lambda level: (-counts[level], level))
    case.reference = {name: merged.get(level, level) for name, level in case.reference.items()}
    return truth.assign(ward=truth.ward.map(lambda ward: merged.get(ward, ward)))
