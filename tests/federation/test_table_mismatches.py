"""Tables that do not match (`oracles.mismatches`), by files: the pooled design, or a named refusal."""

import numpy as np
import pytest

pytest.importorskip("cyclopts", reason="the command line needs the extra `cli`")
pytest.importorskip("polars", reason="some tables are polars frames")

import pandas as pd

import bayesadmm_np as ba
from bayesadmm_np.cli._options import SiteConfig
from bayesadmm_np.cli._run_files import introduce, load_site
from bayesadmm_np.design.agreement import Design
from bayesadmm_np.federation import Coordinator, GLMTask
from bayesadmm_np.federation.messages import read_spec
from bayesadmm_np.splitting.guarded import Guarded
from bayesadmm_np.splitting.methods import Newton
from oracles.couriers import carried
from oracles.mismatches import harmonised, is_another_truth, make_case, require_pooled, used
from oracles.overrides import ALLOWED


def agreed(case, sites, hellos):
    """The agreement and each site's design, as the first broadcast makes it."""
    choices = {
        "reference": case.reference,
        "ignore_case": case.ignore_case,
        "site_intercepts": case.intercepts,
    }
    task = GLMTask(Guarded(Newton()), lambda d: ba.families.FullGaussian(np.zeros(d), 1.0), choices=choices)
    server = Coordinator.start([carried(hello) for hello in hellos], task)
    spec = read_spec(carried(server.broadcast()))
    return spec.agreement, {site.name: design_of(site, spec) for site in sites}


def design_of(site, spec):
    loss = site.data.join(spec, site.name, None).worker.loss
    said = site.data.described
    kept = np.arange(said.n_rows) < said.n_complete
    p = len(spec.agreement.names)
    return Design(loss.X[:, :p], spec.features[:p], loss.y, loss.offset, None, kept, {}, 0)


def by_files(case, folder):
    """Tables as CSV files; a file has neither declared levels nor dtypes."""
    case.declared = {}
    sites, hellos = [], []
    for name, table in case.tables.items():
        columns = {header: list(table[header]) for header in (table if isinstance(table, dict) else table.columns)}
        path = folder / f"{name}.csv"
        pd.DataFrame({header: pd.Series(cells, dtype=object) for header, cells in columns.items()}).to_csv(
            path, index=False
        )
        config = SiteConfig(data=path, name=name, loss="poisson", formula=case.formula, dropna=True, **vars(ALLOWED))
        introduce(folder / name, config)
        site, hello = load_site(folder / name, None)
        sites.append(site)
        hellos.append(hello)
    return agreed(case, sites, hellos)


def outcome(case, folder):
    """Whether files were refused, by site or column; a design other than the pooled one is an AssertionError."""
    folder.mkdir()
    try:
        agreement, designs = by_files(case, folder)
    except ValueError as error:
        if not any(name in str(error) for name in (*case.tables, *used(case))):
            raise AssertionError(f"refused without a name: {error}") from error
        return True
    require_pooled(case, harmonised(case), agreement, designs)
    return False


def test_files_give_the_pooled_design_or_refuse_by_name(tmp_path):
    cases = {seed: case for seed in range(40) if not is_another_truth(case := make_case(seed))}
    # in a file a column of codes is text at every site, of which "unknown" is a level like others
    cases = {seed: case for seed, case in cases.items() if "code" not in case.words}
    found = [outcome(case, tmp_path / f"{seed}") for seed, case in cases.items()]
    assert 3 < sum(found) < 28


def test_the_check_of_files_catches_rows_in_another_order(tmp_path):
    """Broken twin: a design whose target belongs to other rows."""

    def shuffled(case, folder):
        agreement, designs = by_files(case, folder)
        for made in designs.values():
            object.__setattr__(made, "matrix", made.matrix[::-1])
        require_pooled(case, harmonised(case), agreement, designs)

    caught = 0
    for seed in range(12):
        (tmp_path / f"{seed}").mkdir()
        try:
            shuffled(make_case(seed), tmp_path / f"{seed}")
        except AssertionError:
            caught += 1
        except ValueError:
            continue
    assert caught > 3
