"""`bayesadmm site`: one site of a run by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ._options import Json, ModelFile, RuleSettings, SiteConfig, Spread, option
from ._results import Told, tell
from ._run_files import (
    CODES,
    EXAMPLE,
    Folder,
    answer,
    change_rules,
    introduce,
    load_site,
    message_refusals,
    with_example,
)

__all__ = ["evaluate", "init", "rules", "step"]

HELP = f"""Be a site in a run by files; its rows never leave it.

{EXAMPLE}
{CODES}"""
FOOT = CODES
REFUSALS = message_refusals
USUAL = RuleSettings()


@with_example
def init(
    folder: Folder,
    /,
    *,
    config: Annotated[SiteConfig, Spread],
    json: Json = False,
) -> None:
    """Introduce this site: read the rows, and write hello.npz for the server.

    The message holds names and counts, and no rows. This command makes the key of
    the site, DIR/key.hex, and signs the message with it. The key stays here, so
    nobody else can answer in the name of this site. A column must have the same unit
    at all sites. DIR stores the path of the rows; later steps read them again.

    docs/security.md explains what an answer discloses, and what noise achieves. The
    three options --privacy-... belong together; hello.npz itself has no noise.
    """
    tell(introduce(folder, config), json)


def step(
    folder: Folder,
    broadcast: Annotated[Path, option("Message from the server.")],
    /,
    *,
    out: Annotated[Path | None, option("File for the reply. Default: a file in DIR.", "FILE.npz")] = None,
    copy: Annotated[
        Path | None, option("The server's copy of the state of this site, if DIR has lost it.", "FILE.npz")
    ] = None,
    lost: Annotated[bool, option("Ask the server for its copy, in place of an answer.")] = False,
    json: Json = False,
) -> int:
    """Answer a broadcast, or read the final message.

    An interrupted step can be repeated: the same broadcast gives the same bytes.

    If state.npz is lost, damaged or old, --lost asks the server for its copy. The
    request is signed with the key in DIR, and only the owner of this key gets the copy.
    So keep a backup of DIR/key.hex. The rows must be the same as in the rounds before.

    Examples of use:
      bayesadmm site step a broadcast-0001.npz
      bayesadmm site step a broadcast-0002.npz --out /media/usb/reply-A.npz
      bayesadmm site step a final.npz
      bayesadmm site step a broadcast-0005.npz --lost   writes a/lost-A-0005.npz
      bayesadmm server step run lost-A-0005.npz         writes run/copy-A-0005.npz
      bayesadmm site step a broadcast-0005.npz --copy copy-A-0005.npz
    """
    if lost:
        from ..federation.folders import ask_copy

        return tell(Told(written=str(ask_copy(folder, load_site(folder, None)[0], broadcast))), json)
    return tell(answer(folder, broadcast, out, copy), json)


def rules(
    folder: Folder,
    /,
    *,
    rules: Annotated[RuleSettings, Spread] = USUAL,
    json: Json = False,
) -> None:
    """Change the rules of this site, before or during a run; the run goes on.

    Rules that you do not name keep their values. The next step follows the new rules.
    `bayesadmm report` lists every rule that differs from its default, with the
    messages that left under it. Before the run, --minimum-count also writes hello.npz
    again, because other levels may then be named.

    Examples of use:
      bayesadmm site rules a --minimum-sites 2 --most-parameters 0.5
      bayesadmm site rules a                            lists rules that differ from their defaults
    """
    tell(change_rules(folder, rules), json)


def evaluate(
    folder: Folder,
    model: ModelFile,
    /,
    *,
    data: Annotated[Path | None, option("CSV file of other rows. Default: those of this site.", "FILE.csv")] = None,
    out: Annotated[Path | None, option("File of the counts. Default: in DIR.", "FILE.npz")] = None,
    json: Json = False,
) -> None:
    """Count this site's outcomes by their predictions, for an evaluation over sites.

    For each span of the predicted probability, the file holds the number of rows of
    each class. A span has at least --minimum-rows rows, and of each class none or at
    least --minimum-class-count. The rows stay at the site. A site answers once, for
    one model and one set of rows (--most-evaluations), and `bayesadmm report` lists
    it.

    Examples of use:
      bayesadmm site evaluate a model.npz               writes a/counts-A.npz
      bayesadmm evaluate model.npz counts-A.npz counts-B.npz counts-C.npz
    """
    from .evaluate import count

    tell(count(folder, model, data, out), json)
