"""`bayesadmm server`: the server of a run by files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ._options import Json, MethodSettings, Names, NoProgress, RunSettings, Spread, option
from ._results import Standing, Told, tell
from ._run_files import CODES, EXAMPLE, Folder, begin, carry, message_refusals, model_of_run, require_server
from ._terminal import require_out

__all__ = ["init", "run", "status", "step"]

HELP = f"""Be the server of a run by files; it sees posteriors and sums, but no rows.

{EXAMPLE}
{CODES}"""
FOOT = CODES
REFUSALS = message_refusals
AUTO = MethodSettings()
DEFAULT = RunSettings()


def init(
    folder: Folder,
    hellos: Annotated[list[Path], option("The hello messages, one from each site.", name="HELLO")],
    /,
    *,
    method: Annotated[MethodSettings, Spread] = AUTO,
    settings: Annotated[RunSettings, Spread] = DEFAULT,
    json: Json = False,
) -> None:
    """Begin a run with the sites that sent a hello, and write its first message.

    By default the run ends at the maximum of the pooled likelihood, with the standard
    errors of the model, as in R's glm. --method auto is then guarded Newton:
    Newton's method from the fits of the single sites, with steps that are shortened if
    the objective rises. With --inference posterior, auto is the
    method with the fewest rounds. docs/methods.md lists the other methods. There is no
    prior unless --prior-precision says so; methods that work at a point need one, and
    --penalize-intercept.

    This command also makes the sites agree on levels, by name; a column on which they
    cannot agree is refused.

    Examples of use:
      bayesadmm server init run hello-A.npz hello-B.npz
      bayesadmm server init run hello-*.npz --inference posterior
      bayesadmm server init run hello-*.npz --method BayesADMM --rho 1 --safeguard
      bayesadmm server init run hello-*.npz --method PVI --gamma 0.4 --accelerate --prior-precision 1
    """
    tell(begin(folder, hellos, method, settings), json)


def run(
    folder: Folder,
    sites: Annotated[list[Path], option("Folders of the sites, which bayesadmm site init made.", name="SITE")],
    /,
    *,
    method: Annotated[MethodSettings, Spread] = AUTO,
    settings: Annotated[RunSettings, Spread] = DEFAULT,
    no_progress: NoProgress = False,
    json: Json = False,
) -> int:
    """Do a whole run with sites whose folders are on this machine or a shared drive.

    The messages are the same as with `server init`, `site step` and `server step`.
    After an interruption the same command continues the run; other settings than the
    first ones are refused.

    Examples of use:
      bayesadmm site init a --data a.csv --target died --name A --loss logistic
      bayesadmm site init b --data b.csv --target died --name B --loss logistic
      bayesadmm site init c --data c.csv --target died --name C --loss logistic
      bayesadmm server run trial a b c
    """
    return tell(Standing.of(carry(folder, sites, method, settings, not no_progress)), json)


def step(
    folder: Folder,
    replies: Annotated[
        tuple[Path, ...], option("Replies of the sites, or a request of `site step --lost`.", name="REPLY")
    ] = (),
    /,
    *,
    without: Annotated[
        Names, option("End the round without these sites, when all others have answered; the run records it.", "NAME,…")
    ] = (),
    partial: Annotated[bool, option("End the round now, without the sites that have not answered.")] = False,
    json: Json = False,
) -> int:
    """Collect replies; when all have come, write the next broadcast or the final message.

    Replies may come one by one. DIR keeps them until all sites have answered the last
    broadcast, and the output names the missing sites. With --without NAME the round
    ends when all other sites have answered; with --partial it ends at once. A site
    that is left out keeps its last contribution, and its late reply is refused. The
    run cannot converge before that site answers again. Without new replies, the
    current message is written again. If a site has lost its state, its signed request
    makes the server write its copy.

    Examples of use:
      bayesadmm server step run reply-A-0001.npz reply-B-0001.npz
      bayesadmm server step run --without north
      bayesadmm server step run lost-A-0005.npz         writes run/copy-A-0005.npz
      bayesadmm server step run
    """
    from ..federation import Message, step_server
    from ..federation.folders import arrivals, give_copy

    require_server(folder)
    if len(replies) == 1 and Message.read(replies[0]).kind == "lost":
        return tell(Told(written=str(give_copy(folder, replies[0]))), json)
    server, path = step_server(folder, replies, partial=partial, without=without)
    came, _, refused = arrivals(folder, server)
    return tell(replace(Standing.of(server, came, refused=refused), written=str(path)), json)


def status(
    folder: Folder,
    /,
    *,
    out: Annotated[
        Path | None,
        option("Write the model of a run that has ended here, for summary and predict.", "FILE.npz"),
    ] = None,
    target: Annotated[str | None, option("With --out: name of the target, if the sites sent none.", "COLUMN")] = None,
    noise_variance: Annotated[
        float, option("With --out: noise variance of linear regression, if the run has not asked the sites for it.")
    ] = 1.0,
    json: Json = False,
) -> int:
    """Show the state of a run, and change nothing in its folder.

    Sites made by a program of your own may not send the name of the target, or a known
    noise variance. Give them beside --out, so that predict and certify know them.

    Examples of use:
      bayesadmm server status run
      bayesadmm server status run --json
      bayesadmm server status run --out model.npz
    """
    from ..estimators.model_file import save_model
    from ..federation import load_server
    from ..federation.folders import arrivals

    require_server(folder)
    server = load_server(folder)
    if out is not None:
        require_out(out, folder.glob("reply-*.npz"), folder)
        save_model(out, model_of_run(folder, target, noise_variance))
    return tell(
        replace(Standing.of(server, *arrivals(folder, server)), written=None if out is None else str(out)), json
    )
