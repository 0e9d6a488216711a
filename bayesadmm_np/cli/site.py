"""`bayesadmm site`: one site of a run by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ._networks import Function, introduce_network
from ._options import Json, ModelFile, RuleSettings, SiteConfig, Spread, option
from ._run_files import (
    CODES,
    EXAMPLE,
    Folder,
    answer,
    change_rules,
    introduce,
    load_site,
    message_refusals,
    tell,
    with_example,
)

__all__ = ["evaluate", "init", "lost", "network", "rules", "step"]

HELP = f"""One site of a run by files: its rows never leave it.

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

    The message holds names and counts (with --standardize also the sum and the sum
    of squares of each column), no rows. It is signed with this site's key, which is
    made here, in DIR/key.hex, and never leaves: nobody else can answer in this
    site's name. Columns must be in the same units at all sites; --standardize, given
    at all of them, divides by pooled standard deviations. DIR remembers where the
    rows are; later steps read them again.

    What an answer discloses, and what noise on it buys, is in docs/privacy.md. The
    three options --privacy-... go together; hello.npz itself is not noised.
    """
    tell(introduce(folder, config), json)


def network(
    folder: Folder,
    function: Function,
    /,
    *,
    name: Annotated[str, option("This site's name, different from all others'.", "NAME")],
    rules: Annotated[RuleSettings, Spread] = USUAL,
    json: Json = False,
) -> None:
    """Introduce this site of a run of a network: write hello.npz for the server.

    FUNCTION of FILE.py takes no arguments and returns (Rows(X, y), model), with the
    Rows of `bayesadmm_np.torch`; it is called in every step. The model has the
    layers of the server's. The steps are those of other runs. At the end, in Python,
    `bayesadmm_np.torch.final_model(message, model)` returns the trained model, with
    message = `bayesadmm_np.federation.Message.read("final.npz")`.

    Examples of use:
      bayesadmm site network a hospital.py:rows_and_model --name A
    """
    tell(introduce_network(folder, name, function, rules), json)


def step(
    folder: Folder,
    broadcast: Annotated[Path, option("Message from the server.")],
    /,
    *,
    out: Annotated[Path | None, option("File of the reply. Default: in DIR.", "FILE.npz")] = None,
    copy: Annotated[Path | None, option("The server's copy of this site, where DIR has lost it.", "FILE.npz")] = None,
    json: Json = False,
) -> int:
    """Answer a broadcast, or take in the final message.

    An interrupted step can be repeated: the same broadcast gives the same bytes.

    Examples of use:
      bayesadmm site step a broadcast-0001.npz
      bayesadmm site step a broadcast-0002.npz --out /media/usb/reply-A.npz
      bayesadmm site step a final.npz
    """
    return int(tell(answer(folder, broadcast, out, copy), json))


def rules(
    folder: Folder,
    /,
    *,
    rules: Annotated[RuleSettings, Spread] = USUAL,
    json: Json = False,
) -> None:
    """Change what this site's rules allow, before a run or in it: nothing begins anew.

    Options that are not given stay as they were. The next step goes by the new rules,
    and `bayesadmm report` lists what is not as by default with the messages that left
    under it. Before the run --minimum-count also writes hello.npz again, which names
    other levels then.

    Examples of use:
      bayesadmm site rules a --minimum-sites 2 --most-parameters 0.5
      bayesadmm site rules a                            says what is not as by default
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

    The file holds rows of both classes by spans of the prediction, each with the rows
    of --minimum-rows and none or --minimum-class-count of each class. Rows stay. A
    site says this once, for one model and one set of rows (--most-evaluations), and
    `bayesadmm report` lists it.

    Examples of use:
      bayesadmm site evaluate a model.npz               writes a/counts-A.npz
      bayesadmm evaluate model.npz counts-A.npz counts-B.npz counts-C.npz
    """
    from .evaluate import count

    tell(count(folder, model, data, out), json)


def lost(
    folder: Folder,
    broadcast: Annotated[Path, option("Message that this site could not answer.")],
    /,
    *,
    json: Json = False,
) -> None:
    """Ask the server for its copy of this site, where state.npz is lost, damaged or old.

    The request is signed with the key in DIR: nobody else is given the copy, so keep a
    copy of DIR/key.hex. The rows must be those of the rounds before.

    Examples of use:
      bayesadmm site lost a broadcast-0005.npz          writes a/lost-A-0005.npz
      bayesadmm server copy run lost-A-0005.npz         writes run/copy-A-0005.npz
      bayesadmm site step a broadcast-0005.npz --copy copy-A-0005.npz
    """
    from ..federation import ask_copy

    tell({"written": str(ask_copy(folder, load_site(folder, None)[0], broadcast))}, json)
