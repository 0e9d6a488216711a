"""`bayesadmm server`: the server of a run by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ._networks import Function, begin_network, model_of
from ._options import Json, MethodSettings, Names, Progress, Spread, option
from ._run_files import CODES, EXAMPLE, Folder, RunSettings, begin, carry, message_refusals, standing, tell

__all__ = ["copy", "init", "network", "run", "status", "step"]

HELP = f"""The server of a run by files: it sees posteriors and sums, no rows.

{EXAMPLE}
{CODES}"""
FOOT = CODES
REFUSALS = message_refusals
AUTO = MethodSettings()
DEFAULT = RunSettings()


def init(
    folder: Folder,
    hellos: Annotated[list[Path], option("Messages that introduce the sites, one a site.", name="HELLO")],
    /,
    *,
    method: Annotated[MethodSettings, Spread] = AUTO,
    settings: Annotated[RunSettings, Spread] = DEFAULT,
    json: Json = False,
) -> None:
    """Make a run of the sites that said hello, and write its first broadcast.

    By default the run ends at the maximum of the pooled likelihood, with model
    standard errors, as glm has them (auto: guarded Newton from the sites' own fits). With
    --inference posterior auto is the row of docs/methods.md with the fewest rounds.
    Any other method is a row of that table, with a prior.

    Sites agree here on levels by name, or are refused by site and column. Where knots
    of a spline are quantiles of all rows, grids.npz is written first: each site
    steps it, and its new hello.npz comes here.

    Examples of use:
      bayesadmm server init run hello-A.npz hello-B.npz
      bayesadmm server init run hello-*.npz --inference posterior
      bayesadmm server init run hello-*.npz --method BayesADMM --rho 1 --safeguard
      bayesadmm server init run hello-*.npz --method PVI --gamma 0.4 --accelerate --family diagonal
    """
    tell(begin(folder, hellos, method, settings), json)


def run(
    folder: Folder,
    sites: Annotated[list[Path], option("Folders of the sites, made by bayesadmm site init.", name="SITE")],
    /,
    *,
    method: Annotated[MethodSettings, Spread] = AUTO,
    settings: Annotated[RunSettings, Spread] = DEFAULT,
    progress: Progress = True,
    json: Json = False,
) -> int:
    """Do a whole run with sites whose folders are on this machine or a shared drive.

    The same messages as by init, step and carrying; an interrupted run goes on by the
    same command, with the settings that it began with.

    Examples of use:
      bayesadmm site init a --data a.csv --target died --name A --loss logistic
      bayesadmm site init b --data b.csv --target died --name B --loss logistic
      bayesadmm site init c --data c.csv --target died --name C --loss logistic
      bayesadmm server run trial a b c
    """
    return int(tell(standing(carry(folder, sites, method, settings, progress)), json))


def network(
    folder: Folder,
    function: Function,
    hellos: Annotated[list[Path], option("Messages that introduce the sites, one a site.", name="HELLO")],
    /,
    *,
    json: Json = False,
) -> None:
    """Make a run of a network for the sites that said hello, and write its first broadcast.

    FUNCTION of FILE.py takes no arguments and returns a NetworkTask of
    `bayesadmm_np.torch`: method, model, solver, rounds and seed. Steps and status are
    those of other runs. At the end, in Python, `bayesadmm_np.torch.final_model(message,
    model)` returns the trained model, with message =
    `bayesadmm_np.federation.Message.read("final.npz")`.

    Examples of use:
      bayesadmm server network run trial.py:task hello-A.npz hello-B.npz
    """
    server, path = begin_network(folder, hellos, function)
    tell({"written": str(path), **standing(server)}, json)


def step(
    folder: Folder,
    replies: Annotated[tuple[Path, ...], option("Replies of the sites.", name="REPLY")] = (),
    /,
    *,
    without: Annotated[Names, option("Sites without which the round ends; it is recorded.", "NAME,…")] = (),
    partial: Annotated[bool, option("End the round without all sites whose replies have not come.")] = False,
    json: Json = False,
) -> int:
    """Take in replies; when all are there, write the next broadcast or the final message.

    Replies may come one by one: they are kept in DIR until all sites have answered
    the last broadcast, and the output says who is missing. With --without NAME the
    round ends when all others have answered, with --partial at once: who is left out
    keeps its factor, convergence waits for it, and what it still sends of this round
    is refused. The run records it. Without replies, or with those of the last step
    again, the message that is out is written again.

    Examples of use:
      bayesadmm server step run reply-A-0001.npz reply-B-0001.npz
      bayesadmm server step run --without north
      bayesadmm server step run
    """
    from ..federation import step_server
    from ..federation.folders import arrivals

    server, path = step_server(folder, replies, model_of(folder), partial, without)
    came, _, refused = arrivals(folder, server)
    stands = standing(server, came, refused=refused)
    return int(tell({"written": str(path), **stands}, json))


def copy(
    folder: Folder, request: Annotated[Path, option("Request of `bayesadmm site lost`.")], /, *, json: Json = False
) -> None:
    """Write the server's copy of a site that has lost its state, for a request that the site has signed.

    Examples of use:
      bayesadmm server copy run lost-A-0005.npz         writes run/copy-A-0005.npz
    """
    from ..federation import give_copy

    tell({"written": str(give_copy(folder, request, model_of(folder)))}, json)


def status(folder: Folder, /, *, json: Json = False) -> int:
    """Say where a run stands; changes nothing.

    Examples of use:
      bayesadmm server status run
      bayesadmm server status run --json
    """
    from ..federation import load_server
    from ..federation.folders import arrivals

    server = load_server(folder, model_of(folder))
    return int(tell(standing(server, *arrivals(folder, server)), json))
