"""`bayesadmm report`: what has left a site."""

from __future__ import annotations

from ._options import Json
from ._run_files import Folder
from ._terminal import Refused, print_json, text_table

__all__ = ["report"]


def report(folder: Folder, /, *, json: Json = False) -> None:
    """List everything that has left a site: when, how large, and under which rule.

    DIR is the folder of the site, from runs by files or on Flower. A message that was
    sent twice is listed once. docs/privacy.md explains what each kind of message
    discloses; docs/security.md explains the rules.

    Examples of use:
      bayesadmm report a
      bayesadmm report a --json
    """
    from dataclasses import asdict

    from ..federation.ledger import LEDGER, Ledger

    entries = Ledger.read(folder).entries
    if not entries:
        raise Refused(f"{folder} is no site that has sent something: there is no {LEDGER}.")
    if json:
        print_json({"sent": [asdict(one) for one in entries]})
        return
    left = [one for one in entries if not one.refused]
    print(
        f"{folder}: {len(left)} messages have left, {sum(one.bytes for one in left)} bytes with "
        f"{sum(one.numbers for one in left)} numbers; {len(entries) - len(left)} questions were not answered\n"
    )
    rules = list(dict.fromkeys(name for one in entries for name in one.allowed))
    rows = [
        (
            one.time,
            f"{one.kind} {one.number or ''}".rstrip(),
            one.name,
            one.run,
            one.bytes,
            one.numbers,
            "refused" if one.refused else " ".join(str(rules.index(name) + 1) for name in one.allowed),
        )
        for one in entries
    ]
    print(text_table(("UTC", "message", "question", "run", "bytes", "numbers", "allowed by"), rows, left=4))
    print("\nRules, with what came nearest to the limit:")
    for k, name in enumerate(rules, start=1):
        is_least = name.startswith("minimum")
        got, limit = (min if is_least else max)(one.allowed[name] for one in entries if name in one.allowed)
        print(f"  {k}  {name} {got:.3g} {'≥' if is_least else '≤'} {limit:.3g}")
    for reason in dict.fromkeys(one.refused for one in entries if one.refused):
        print(f"  refused: {reason}")
    overrides = {f"{name} {value}" for one in entries for name, value in one.overrides.items()}
    print(f"Overrides by the site's owner: {', '.join(sorted(overrides)) or 'none'}.")
