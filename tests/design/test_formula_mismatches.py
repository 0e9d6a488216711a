"""Tables that do not match (`oracles.mismatches`): sites have the pooled design, or a refusal names the fault."""

import json
from dataclasses import asdict, replace

import pytest

from bayesadmm_np._archive import read_as
from bayesadmm_np.design.agreement import Agreement, Table, design
from bayesadmm_np.design.formula import SiteColumns, agree, describe_columns, require_readable
from oracles.mismatches import check, make_case


def over_the_wire(kind, message):
    """What a file or Flower would bring."""
    return read_as(kind, json.loads(json.dumps(asdict(message))), "message")


def over_sites(case, make_design=design):
    """What the server and the sites do."""
    for site, table in case.tables.items():
        require_readable(table, case.formula, site=site)
    said = {
        site: over_the_wire(SiteColumns, describe_columns(table, case.formula)) for site, table in case.tables.items()
    }
    agreement = agree(
        said,
        case.formula,
        reference=case.reference,
        ignore_case=case.ignore_case,
        site_intercepts=case.intercepts,
    )
    agreement = over_the_wire(Agreement, agreement)
    return agreement, {site: make_design(table, agreement, site) for site, table in case.tables.items()}


def run(seeds):
    """Return how many cases were checked, and how many of them were refused."""
    found = [refused for refused in (check(make_case(seed), over_sites) for seed in seeds) if refused is not None]
    return len(found), sum(found)


def test_generated_mismatches_are_refused_by_name_or_give_the_pooled_design():
    checked, refused = run(range(120))
    assert checked > 105
    assert 18 < refused < 80  # the generator exercises both ends


def test_a_declared_number_beside_words_alone_is_refused():
    """Of 10 600 tables the one where a site declares the level 10, which it alone has, and another has words alone."""
    assert run([3879]) == (1, 1)


@pytest.mark.slow
def test_ten_thousand_mismatches():
    checked, refused = run(range(10_600))
    assert checked >= 10_000
    assert 2_000 < refused < 6_000


def in_its_own_order(table, agreement, site):
    """Broken twin: each site codes its factors in the order in which it meets the levels; the names are the same."""
    kept = design(table, agreement, site).kept
    own = {}
    for name, called in Table.of(table).own_names(agreement.columns).items():
        column = agreement.columns[name]
        if column.kind == "factor" and name != agreement.client:
            met = dict.fromkeys(column.levels[code] for code in column.read(table[called], kept, name))
            own[name] = replace(column, levels=(*met, *(level for level in column.levels if level not in met)))
    found = design(table, replace(agreement, columns={**agreement.columns, **own}), site)
    return replace(found, names=agreement.names)


def test_the_check_catches_levels_in_each_sites_own_order():
    caught = 0
    for seed in range(40):
        try:
            check(make_case(seed), lambda case: over_sites(case, in_its_own_order))
        except AssertionError:
            caught += 1
    assert caught > 10
