"""The command line: `bayesadmm reproduce`, `derive` and `play`. Needs extras; the library itself does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ._version import __version__

__all__ = ["main"]

MISSING = "bayesadmm: the command line needs packages that are not installed: pip install 'bayesadmm-np[demos]'"

REPRODUCE_HELP = """Draw the paper's figures from runs of this library, and check what they claim.

\b
  3   The two duality circuits, ADMM's and the Bayesian one, with what flows
      along each edge and by how much its equation is violated.
  4   A single outlier slows ADMM down, and not BayesADMM: the decision
      boundary of the server and of client 1, round by round.
  5a  Ridge regression: BayesADMM is exact after one round.
  5b  Multiclass logistic regression over five clients: distance from the
      pooled answer per round, for six methods and two families.

Every figure is written as SVG and PNG, every plotted number to results.json
beside them. The summary marks each claim with ✓ or ✗ and what was measured.

\b
Examples:
  bayesadmm reproduce
  bayesadmm reproduce --only 4 --out somewhere
  bayesadmm reproduce --only 5a --only 5b --dataset mnist

Exit codes: 0 all is well, 1 a claim does not hold or a file is missing,
2 the command was not understood or an optional package is missing.
"""

DERIVE_HELP = """Derive a family's whole method from its statistic and log-partition alone.

Prints μ = ∇A, its inverse, A*, KL, the Fisher matrix, the natural gradient, and the client, dual and server steps.

\b
Examples:
  bayesadmm derive gamma
  bayesadmm derive gaussian --latex

Families: gaussian-unit, gaussian-fixed, gaussian, gaussian-full, gamma, beta, dirichlet, poisson, bernoulli,
inverse-gaussian.
"""

PLAY_HELP = """Open a page on this machine where ρ, γ, family, method, the outlier and the label skew are sliders.

The circuit, the decision boundary, the objective and the residuals are drawn again at every change. The page is
served on 127.0.0.1 only and needs no network. Stop it with Ctrl-C. Needs: pip install 'bayesadmm-np[play]'.
"""

FIGURES = ("3", "4", "5a", "5b")
DATASETS = ("digits", "mnist")


def main() -> None:
    """Run the command line and exit."""
    try:
        import typer
    except ImportError:
        _stop(MISSING, 2)
    for stream in (sys.stdout, sys.stderr):
        # ✓ and ρ are not in every terminal's encoding
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    _application(typer)(prog_name="bayesadmm")


def _application(typer: Any) -> Any:
    app = typer.Typer(
        help="Federated ADMM and variational Bayes as one algorithm.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    def _show_version(wanted: bool) -> None:
        if wanted:
            print(f"bayesadmm_np {__version__}")
            raise typer.Exit(0)

    version_option = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version.", show_default=False
    )

    @app.callback()
    def _group(version: bool = version_option) -> None:
        pass

    only_option = typer.Option(
        None,
        "--only",
        metavar="|".join(FIGURES),
        help="Draw only this figure; repeat it for several. Default: all.",
        show_default=False,
    )
    dataset_option = typer.Option(
        "digits",
        "--dataset",
        metavar="|".join(DATASETS),
        help="Images of figures 5a and 5b: digits come with scikit-learn; mnist is read from the folder named by the "
        "environment variable BAYESADMM_DATA, or downloaded; 5b then takes very much longer. Default: digits.",
        show_default=False,
    )
    out_option = typer.Option(
        "figures",
        "--out",
        metavar="DIR",
        help="Folder to write to; made if it is not there. Default: figures.",
        show_default=False,
    )
    progress_option = typer.Option(
        True, "--progress/--no-progress", help="Show a progress bar. Default: yes.", show_default=False
    )

    @app.command("reproduce", help=REPRODUCE_HELP)
    def _reproduce(
        only: list[str] = only_option,
        dataset: str = dataset_option,
        out: Path = out_option,
        progress: bool = progress_option,
    ) -> None:
        for name in only or ():
            _choose(typer, "--only", name, FIGURES)
        _choose(typer, "--dataset", dataset, DATASETS)
        _writable(typer, out)
        try:
            from .demos.reproduce import reproduce
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("bayesadmm_np"):
                raise
            _stop(f"{MISSING} (no module named {error.name!r})", 2)
        try:
            good = reproduce(only or (), dataset, out, progress)
        except ImportError as error:  # of scikit-learn, by the loader of the digits
            _stop(f"bayesadmm reproduce: {error}", 2)
        except (OSError, ValueError) as error:
            _stop(f"bayesadmm reproduce: {error}", 1)
        except KeyboardInterrupt:
            _stop(f"bayesadmm reproduce: interrupted; figures that were finished are in {out}.", 130)
        raise typer.Exit(0 if good else 1)

    @app.command("derive", help=DERIVE_HELP)
    def _derive(
        family: str = typer.Argument(..., help="Name of a built-in family.", show_default=False),
        latex: bool = typer.Option(False, "--latex", help="Print LaTeX.", show_default=False),
    ) -> None:
        try:
            from .theory.derive import derive_text
        except ModuleNotFoundError as error:
            _stop(f"{MISSING} (no module named {error.name!r})", 2)
        try:
            print(derive_text(family, latex))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="FAMILY") from error

    @app.command("play", help=PLAY_HELP)
    def _play(
        port: int = typer.Option(8765, "--port", help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535),
        browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in a browser."),
    ) -> None:
        from .play import serve

        try:
            serve(port, browser)
        except (ImportError, OSError) as error:
            _stop(f"bayesadmm play: {error}", 2 if isinstance(error, ImportError) else 1)

    return app


def _choose(typer: Any, option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}.", param_hint=option)


def _writable(typer: Any, folder: Path) -> None:
    """Refuse a folder that cannot be written to before any time is spent."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise typer.BadParameter(f"{str(folder)!r} is not a folder that can be written to.", param_hint="--out")


def _stop(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(code)
