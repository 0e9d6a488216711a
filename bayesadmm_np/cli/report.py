"""`bayesadmm report`: what has left a site."""

from __future__ import annotations

from ._options import Json
from ._run_files import Folder
from ._terminal import Refused, print_json, text_table

__all__ = ["report"]


def report(folder: Folder, /, *, json: Json = False) -> None:
    """List everything that has left a site: when, about what, how large, and under which rule.

    DIR is the folder of the site, from runs by files or on Flower. A message that was
    sent twice is listed once. Refusals are listed too: each that tells of the rows
    takes a twentieth of the budget. docs/security.md explains what each kind of
    message discloses, and the rules.

    Examples of use:
      bayesadmm report a
      bayesadmm report a --json
    """
    from dataclasses import asdict

    from ..federation import DisclosureRules
    from ..federation.ledger import LEDGER, Ledger

    ledger = Ledger.read(folder)
    entries = ledger.entries
    if not entries:
        raise Refused(f"{folder} is no site that has sent something: there is no {LEDGER}.")
    budget = float(entries[-1].overrides.get("budget", DisclosureRules().budget))
    if json:
        print_json({"sent": [asdict(one) for one in entries], "spent": ledger.spent(), "budget": budget})
        return
    left = [one for one in entries if not one.refused]
    rest = max(budget - ledger.spent(), 0.0)
    costly = sum(one.cost > 0 for one in entries if one.refused)
    print(
        f"{folder}: {len(left)} messages have left, {sum(one.bytes for one in left)} bytes with "
        f"{sum(one.numbers for one in left)} numbers; {len(entries) - len(left)} were refused, and {costly} of "
        f"these refusals disclose something about the rows.\nThe site has spent {ledger.spent():.3g} of its budget of "
        f"{budget:.3g}; {rest:.3g} is left.\n"
    )
    abouts = list(dict.fromkeys(one.about for one in entries if one.about))
    rules = list(dict.fromkeys(name for one in entries for name in one.allowed))
    rows = [
        (
            one.time,
            f"{one.kind} {one.number or ''}".rstrip(),
            one.name,
            one.run,
            chr(ord("A") + abouts.index(one.about) % 26) if one.about else "",
            one.bytes,
            one.numbers,
            f"{one.cost:.3g}",
            "refused" if one.refused else " ".join(str(rules.index(name) + 1) for name in one.allowed),
        )
        for one in entries
    ]
    heads = ("UTC", "message", "question", "run", "about", "bytes", "numbers", "cost", "under rules")
    print(text_table(heads, rows, left=5))
    for k, about in enumerate(abouts):
        print(f"  {chr(ord('A') + k % 26)}  {about}")
    print("\nNumbers of these rules stand under 'under rules'; each has the value nearest to its limit:")
    for k, name in enumerate(rules, start=1):
        is_least = name.startswith("minimum")
        got, limit = (min if is_least else max)(one.allowed[name] for one in entries if name in one.allowed)
        print(f"  {k}  {name} {got:.3g} {'≥' if is_least else '≤'} {limit:.3g}")
    for reason in dict.fromkeys(one.refused for one in entries if one.refused):
        print(f"  refused: {reason}")
    overrides = {f"{name} {value}" for one in entries for name, value in one.overrides.items()}
    print(f"Overrides by the site's owner: {', '.join(sorted(overrides)) or 'none'}.")
