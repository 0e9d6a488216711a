"""Refusals and notes of a site as they are sent: codes of fixed lists, and names of columns that all parties know.

The whole sentence, with cells and levels, stays at the site, in its log or on its terminal.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .._archive import refusal

RULES = {
    "minimum_rows": ("wants at least {} rows", "let another site take these rows in"),
    "minimum_count": ("wants none or at least {} rows", "merge the level with another, or leave the column out"),
    "minimum_class_count": (
        "wants none or at least {} rows of each class",
        "let another site take these rows in, or leave this site out",
    ),
    "most_parameters": ("wants at most {} parameters a row", "use fewer columns"),
    "minimum_sites": ("wants at least {} sites", "invite more sites (of those in --peers, if the site lists keys)"),
    "budget": (
        "wants at most {} numbers sent, in all runs, for each number in the rows: more would give the rows away",
        "use fewer columns, or a folder with more rows",
    ),
    "most_evaluations": ("wants at most {} evaluation of its rows", "use the counts that it has written"),
    "allow": ("wants columns of its list alone", "leave the column out"),
    "trusted_server": (
        "wants no network: a server can make a first layer whose gradients are rows",
        "join such runs only where you trust the server with the rows, by DisclosureRules(trusted_server=True)",
    ),
}
"""Rules of `disclosure.DisclosureRules` that keep an answer back: the limit, and what to do where it is broken."""
PLACES = {
    "point": "the point that was asked for",
    "combination": "a combination of columns",
    "earlier": "rows of an earlier run, from which these differ in too few",
}
"""Subjects of a rule that are no column."""
REASONS = {
    "closed": "it refuses this question",
    "private": "it sends only answers with noise",
    "no_sums": "its sums at this point do not exist, or overflow",
    "message": "the message does not fit this site, its rows or its state",
    "rows": "its rows or settings cannot be read, or are not those of the run",
    "state": "its state is lost, damaged or old",
    "spent": "the answers with noise that its owner granted are used up",
    "busy": "another process is using its folder",
    "failed": "it failed",
}
"""Other reasons for a refusal."""
NOTES = {
    "copied": "took the server's copy of its dual",
    "again": "answered this broadcast again",
    "uncounted": "its last answer was not counted",
    "no_distribution": "its training ended in no distribution, so its answer is left out",
}
"""Notes beside an answer."""
MOST_NAMED = 64


@dataclass(frozen=True)
class Refusal:
    """Reasons why a site does not answer: rules and their places, or one reason; or one note beside its answer.

    `columns` are those that the rules are about, by names of the run.
    """

    codes: tuple[str, ...]
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_one = len(self.codes) == 1 and self.codes[0] in (*REASONS, *NOTES)
        if not is_one and not (self.rules and set(self.codes) <= {*RULES, *PLACES}):
            raise ValueError(f"codes must be of the fixed list, rules of the site or one reason, got {len(self.codes)}")
        if len(self.columns) > (0 if is_one else MOST_NAMED):
            raise ValueError(f"columns must be at most {MOST_NAMED}, beside a rule, got {len(self.columns)}")

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that keep an answer back: asking again does not change them."""
        return tuple(code for code in self.codes if code in RULES)

    @property
    def is_note(self) -> bool:
        """Return whether the site did answer."""
        return self.codes[0] in NOTES

    @property
    def text(self) -> str:
        """The sentence for whoever reads the code."""
        if not self.rules:
            return (REASONS | NOTES)[self.codes[0]]
        options = ", ".join(f"--{rule.replace('_', '-')}" for rule in self.rules)
        about = [f"column {name!r}" for name in self.columns] + [PLACES[code] for code in self.codes if code in PLACES]
        which = f"rule{'s' * (len(self.rules) > 1)} {options}"
        return f"it sends nothing, because of its disclosure {which}" + f", about {', '.join(about)}" * bool(about)

    def require_known(self, names: Collection[str]) -> None:
        """Raise unless the columns are among those of the run."""
        if not set(self.columns) <= set(names):
            raise refusal("columns", "those of the run", "others")
