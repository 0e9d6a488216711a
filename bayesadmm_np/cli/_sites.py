"""A site's own half: its file as a table, its rules and its noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..design.agreement import Table
from ..design.levels import MANY, SiteColumn, TableError, are_measured
from ._kinds import named_kind
from ._options import RuleSettings, SiteConfig
from ._rows import factors_of, read_frame, require_complete, stated_formula
from ._terminal import Refused, note

if TYPE_CHECKING:
    from ..federation import DisclosureRules


def read_site(config: SiteConfig) -> tuple[SiteConfig, Any]:
    """Read a site's file, and refuse what the other sites could not mend.

    Return the arguments with the columns that were chosen, and the site, whatever the run: its design comes with the
    run's agreement.
    """
    from ..federation import GLMTable, Site
    from ..splitting import GaussianMechanism

    if config.exposure is not None:
        named_kind(config.loss).require_log("exposure")
    table, rules = Table.of(read_frame(config.data, config, factors_of(config))), rules_of(config)
    formula, chosen = stated_formula(config, table.names, config.data, no_intercept=config.no_intercept)
    try:
        data = GLMTable(
            table,
            formula,
            config.loss,
            weights=config.weights,
            trials=config.trials,
            noise_variance=config.noise_variance,
            minimum_count=rules.minimum_count,
            is_list=config.formula is None,
            cluster=config.cluster,
        )
    except TableError as error:
        error.site = config.name if error.site is None else error.site
        raise
    missing = {name: one.missing for name, one in data.described.columns.items()}
    require_complete({config.name: missing}, config.no_dropna)
    clip, noise, rounds = config.privacy_clip, config.privacy_noise, config.privacy_rounds
    if None in (clip, noise, rounds) and (clip, noise, rounds) != (None,) * 3:
        raise Refused("--privacy-clip, --privacy-noise and --privacy-rounds must be given together.")
    privacy = None if clip is None or noise is None else GaussianMechanism(clip, noise)
    site = Site(config.name, data, privacy, rounds, refuses=config.refuse, rules=rules)
    return replace(config, features=chosen), site


def note_measured(columns: Mapping[str, SiteColumn]) -> None:
    """Note columns whose levels are many, and numbers for the most part."""
    for name, one in columns.items():
        levels = one.levels or ()
        if len(levels) > MANY and are_measured(levels):
            note(f"hello.npz names {len(levels)} levels of {name!r}, most of them numbers: are they values of rows?")


def rules_of(settings: RuleSettings) -> DisclosureRules:
    """Return the site's rules: the usual ones, and what its owner has said."""
    from ..federation import DisclosureRules

    given = {item.name: getattr(settings, item.name) for item in fields(RuleSettings)}
    return DisclosureRules(**{name: value for name, value in given.items() if value is not None})
