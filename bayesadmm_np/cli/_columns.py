"""A site's description of its file, and the file as a table of raw columns: by a formula, or by a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ..design.agreement import Table
from ._design import named_kind
from ._formula import levels_of, list_formula, require_formula_alone
from ._options import RuleSettings, SiteConfig
from ._rows import choose_columns, read_frame, require_complete
from ._terminal import Refused, worded_for_options

if TYPE_CHECKING:
    from ..federation import DisclosureRules, GLMTable

MANY = 50
"""Levels of a column of text from which on it hardly is a factor."""
FEW = 10
"""Levels up to which it may be one, however few the rows are."""


@dataclass(frozen=True)
class TableRows:
    """The rows of a site as a table, which becomes a design when the sites have agreed."""

    config: SiteConfig
    data: GLMTable

    @classmethod
    def read(cls, config: SiteConfig) -> TableRows:
        """Read the file, and refuse what the other sites could not mend."""
        if not (config.target or config.formula):
            raise Refused("--target must name the column to be explained, or --formula say it.")
        if config.exposure is not None:
            with worded_for_options(config.name):
                named_kind(config.loss).require_log("exposure")
        formula, features, table = _by_formula(config) if config.formula else _by_list(config)
        from ..federation import GLMTable

        with worded_for_options(config.name):
            data = GLMTable(
                table,
                formula,
                config.loss,
                weights=config.weights,
                trials=config.trials,
                noise_variance=config.noise_variance,
                minimum_count=rules_of(config).minimum_count,
                is_list=config.formula is None,
                cluster=config.cluster,
            )
        _require_levels(table, [name for name in features if name not in config.categorical])
        missing = {name: one.missing for name, one in data.described.columns.items()}
        require_complete({config.name: missing}, config.dropna)
        return cls(replace(config, features=features), data)

    @property
    def site(self) -> Any:
        """The site, whatever the run: its design comes with the run's agreement."""
        from ..federation import Site

        privacy, rounds = mechanism_of(self.config)
        rules = rules_of(self.config)
        return Site(self.config.name, self.data, privacy, rounds, refuses=self.config.refuse, rules=rules)

    @property
    def told(self) -> dict[str, Any]:
        """Description of the rows that `site init` prints."""
        described = self.data.described
        return {
            "rows": described.n_complete,
            "missing_rows": described.n_rows - described.n_complete,
            "formula": self.data.formula,
            "levels": {name: list(one.levels) for name, one in described.columns.items() if one.levels},
        }


def rules_of(settings: RuleSettings) -> DisclosureRules:
    """Return the site's rules: the usual ones, and what its owner has said."""
    from ..federation import DisclosureRules

    given = {item.name: getattr(settings, item.name) for item in fields(RuleSettings)}
    return DisclosureRules(**{name: value for name, value in given.items() if value is not None})


def mechanism_of(config: SiteConfig) -> tuple[Any, int | None]:
    """Return the noise on a site's answers, and for how many of them it is granted."""
    from ..splitting import GaussianMechanism

    clip, noise, rounds = config.privacy_clip, config.privacy_noise, config.privacy_rounds
    if None in (clip, noise, rounds) and (clip, noise, rounds) != (None,) * 3:
        raise Refused("--privacy-clip, --privacy-noise and --privacy-rounds must be given together.")
    return (None if clip is None or noise is None else GaussianMechanism(clip, noise)), rounds


def _by_formula(config: SiteConfig) -> tuple[str, tuple[str, ...], Table]:
    from ..design.terms import parse, with_offset

    assert config.formula is not None
    require_formula_alone(config)
    if config.classes:
        raise Refused("--classes: sites with a formula agree on labels by name; leave --classes out.")
    if not config.intercept:
        raise Refused("--no-intercept: write '- 1' in the formula.")
    with worded_for_options():
        formula = with_offset(config.formula, config.offset, config.exposure)
        texts = [name for name, role in parse(formula).roles.items() if role == "factor"]
    return formula, (), Table.of(read_frame(config.data, config, texts))


def _by_list(config: SiteConfig) -> tuple[str, tuple[str, ...], Table]:
    table = Table.of(read_frame(config.data, config, config.categorical))
    chosen = choose_columns(table.names, config, config.data)
    if config.classes:
        table.columns[config.target] = _labels(table.columns[config.target], config)
    return list_formula(config, chosen, config.intercept), tuple(chosen), table


def _labels(column: Any, config: SiteConfig) -> Any:
    """Return a target whose classes are declared, in this order."""
    from pandas import Categorical

    from ..design.levels import is_missing, level_name
    from ..glm.kinds import read_kind

    words = ["" if gone else level_name(cell) for cell, gone in zip(column, is_missing(column), strict=True)]
    unknown = sorted(set(words) - {"", *config.classes})
    if read_kind(config.loss).outputs == "one" and len(config.classes) != 2:
        raise Refused(f"--classes: {config.loss} needs two classes, got {', '.join(config.classes)}.")
    if unknown:
        raise Refused(f"--classes: column {config.target!r} also holds {unknown[0]!r}.")
    return Categorical(words, categories=list(config.classes))


def _require_levels(table: Table, names: Sequence[str]) -> None:
    """Refuse text that hardly is a factor: a name for almost every row."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    for name in names:
        column = table.columns[name].dropna()
        if is_numeric_dtype(column) or is_bool_dtype(column):
            continue
        cells = column.astype(str)
        n_levels = cells.str.strip().nunique()
        if n_levels > MANY or n_levels > max(FEW, len(cells) // 2):
            raise Refused(
                f"column {name!r} holds {n_levels} different texts in {len(cells)} rows, which hello.npz would name; "
                f"leave it out with --drop {name}, or say that they are levels with --categorical {name}."
            )


def choices_of(settings: Any) -> dict[str, Any] | None:
    """Return what a server chooses for sites with tables, of settings; None where all is as by default."""
    switches = ("ignore_case", "drop_withheld", "site_intercepts", "reference_site", "as_written")
    given: dict[str, Any] = {
        "reference": levels_of(settings.reference),
        **{name: getattr(settings, name) for name in switches},
    }
    return {name: value for name, value in given.items() if value} or None
