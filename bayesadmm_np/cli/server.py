"""`bayesadmm server`: the server of a run by files."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal

from ._columns import choices_of
from ._networks import Function, begin_network, model_of
from ._options import Json, MethodSettings, Names, Spread, families, option
from ._run_files import CODES, EXAMPLE, Folder, begin, message_refusals, standing, tell
from ._terminal import Refused

__all__ = ["init", "network", "status", "step"]

HELP = f"""The server of a run by files: it sees posteriors and sums, no rows.

{EXAMPLE}
{CODES}"""
FOOT = CODES
REFUSALS = message_refusals
AUTO = MethodSettings()


def init(
    folder: Folder,
    hellos: Annotated[list[Path], option("Messages that introduce the sites, one a site.", name="HELLO")],
    /,
    *,
    method: Annotated[MethodSettings, Spread] = AUTO,
    inference: Annotated[
        Literal["auto", "likelihood", "posterior"],
        option(
            "Maximum likelihood, as glm has it, or the variational posterior. Default: likelihood, unless --method "
            "asks for another row."
        ),
    ] = "auto",
    family: Annotated[str, option("Family of the posterior.", choices=families())] = "full",
    prior_precision: Annotated[
        float | None,
        option("Prior precision of every coefficient. Default: 0, none, of a likelihood; 1 of a posterior."),
    ] = None,
    penalty: Annotated[
        Literal["firth"] | None, option("firth: Firth's penalty, for a likelihood without a maximum.", "firth")
    ] = None,
    tol: Annotated[float, option("Tolerance on the stationarity residual.")] = 1e-8,
    rounds: Annotated[int, option("Rounds, at most.")] = 100,
    safeguard: Annotated[bool, option("Keep every site's problem well posed.")] = False,
    reference: Annotated[
        Names, option("Reference levels of factors. Default: the first of each.", "COLUMN=LEVEL,…")
    ] = (),
    ignore_case: Annotated[bool, option("Levels that differ in case or blanks alone are one.")] = False,
    site_intercepts: Annotated[bool, option("An intercept for each site.")] = False,
    reference_site: Annotated[str | None, option("Site whose intercept is the model's.", "NAME")] = None,
    seed: Annotated[
        int | None, option("Part of the run's id. Default: drawn, so that no other run has this id.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a run of the sites that said hello, and write its first broadcast.

    By default the run ends at the maximum of the pooled likelihood, with model
    standard errors, as glm has them (auto: guarded Newton from the sites' own fits). With
    --inference posterior auto is the row of docs/methods.md with the fewest rounds.
    Any other method is a row of that table, with a prior.

    Sites with formulas or text agree here on levels by name, or are refused by site
    and column. Where knots of a spline are quantiles of all rows, question.npz is
    written first: each site steps it, and its new hello.npz comes here.

    Examples of use:
      bayesadmm server init run hello-A.npz hello-B.npz
      bayesadmm server init run hello-*.npz --inference posterior
      bayesadmm server init run hello-*.npz --method BayesADMM --rho 1 --safeguard
      bayesadmm server init run hello-*.npz --method PVI --gamma 0.4 --accelerate --family diagonal
    """
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    if penalty and (method.method != "auto" or prior_precision):
        raise Refused("--penalty: firth is for a fit by maximum likelihood: leave out --method and --prior-precision.")
    choices = choices_of(reference, ignore_case, site_intercepts, reference_site)
    options = {"tol": tol, "rounds": rounds, "safeguard": safeguard, "seed": seed, "choices": choices}
    tell(begin(folder, hellos, method, inference, family, prior_precision, {**options, "penalty": penalty}), json)


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
    partial: Annotated[bool, option("End the round without the sites whose replies have not come.")] = False,
    json: Json = False,
) -> int:
    """Take in replies; when all are there, write the next broadcast or the final message.

    Replies may come one by one: they are kept in DIR until all sites have answered
    the last broadcast, and the output says who is missing. With --partial the round
    ends without those: they keep their factors, convergence waits for them, and what
    they still send of this round is refused. Without replies, or with those of the
    last step again, the message that is out is written again.

    Examples of use:
      bayesadmm server step run reply-A-0001.npz reply-B-0001.npz
      bayesadmm server step run --partial
      bayesadmm server step run
    """
    from ..federation import missing_sites, step_server

    server, path = step_server(folder, replies, model_of(folder), partial=partial)
    return int(tell({"written": str(path), **standing(server, missing_sites(folder, server))}, json))


def status(folder: Folder, /, *, json: Json = False) -> int:
    """Say where a run stands; changes nothing.

    Examples of use:
      bayesadmm server status run
      bayesadmm server status run --json
    """
    from ..federation import load_server, missing_sites

    server = load_server(folder, model_of(folder))
    return int(tell(standing(server, missing_sites(folder, server)), json))
