"""The command line `bayesadmm`: one module a command, loaded when it is called. Needs extras; the library does not."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from .._version import __version__
from .shared import missing_name, refusals, stop

__all__ = ["COMMANDS", "main"]

MISSING = "bayesadmm: the command line needs packages that are not installed: pip install 'bayesadmm-np[cli]'"

COMMANDS = {
    "fit": "Fit a regression to rows at several sites.",
    "predict": "Predict new rows.",
    "summary": "Print the table of a model file.",
    "certify": "Check a model against its rows.",
    "compare": "Every method against the pooled answer.",
    "sweep": "Rounds for a grid of ρ and γ.",
    "experiment": "Networks over clients, from a file.",
    "site": "One site of a run by files: its rows never leave it.",
    "server": "The server of a run by files: it sees posteriors and sums, no rows.",
    "flower": "The same runs on Flower, with sites on other machines.",
    "export": "Make a model file of a run by files.",
    "reproduce": "Draw the papers' figures and check their claims.",
    "derive": "Derive a family's whole method with symbols.",
    "play": "Every knob as a slider, on a local page.",
}
"""Commands and what they do. Each is a module of this package with a function of its name, whose docstring is the
help, or a group: a module whose `__all__` are its commands and `HELP` its help."""

HELP = """Usage: bayesadmm COMMAND [ARGS]

Federated ADMM and variational Bayes as one algorithm.

Commands:
{commands}

Options:
  --help, -h  Say this, or after a command, what it does.
  --version   Print the version."""

OLD = {"fit": "model", "predict": "model", "summary": "model", "certify": "model"}
OLD |= {"site": "exchange", "server": "exchange", "flower": "flower"}


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        # ✓ and ρ are not in every terminal's encoding
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # of head, or of a pager that was left: what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    raise SystemExit(code)


def _run(tokens: list[str]) -> int:
    name = tokens[0] if tokens else "--help"
    if name in ("--help", "-h"):
        width = max(map(len, COMMANDS))
        print(HELP.format(commands="\n".join(f"  {key:<{width}}  {does}" for key, does in COMMANDS.items())))
        return 0
    if name == "--version":
        print(f"bayesadmm_np {__version__}")
        return 0
    if name not in COMMANDS:
        stop(f"bayesadmm: {missing_name('there is no command', name, COMMANDS)}", 2)
    try:
        import cyclopts  # noqa: F401
        import msgspec  # noqa: F401
    except ImportError:
        stop(MISSING, 2)
    return _old(OLD[name]) if name in OLD else _call(name, tokens)


def _call(name: str, tokens: list[str]) -> int:
    from cyclopts.exceptions import CycloptsError

    from ._options import refusal

    with refusals(name):
        app = _application(name)
    words = " ".join(app.parse_commands(tokens)[0])
    with refusals(words):
        try:
            command, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
        except CycloptsError as error:
            error.verbose = False
            stop(f"bayesadmm {words}: {refusal(error)}", 2)
        return int(command(*bound.args, **bound.kwargs) or 0)


def _application(name: str) -> Any:
    from cyclopts import App, Parameter

    from ._help import Plain, shown
    from ._options import fill_from_config

    app = App(
        name="bayesadmm",
        help_format="plaintext",
        config=fill_from_config,
        default_parameter=Parameter(negative_bool=(), negative_iterable=(), allow_repeating=True, show_default=shown),
        group_parameters="Options",
        version_flags=(),
    )
    module = importlib.import_module(f".{name}", __name__)
    if hasattr(module, name):
        commands = [name]
        group = app
    else:
        commands = module.__all__
        group = App(name=name, help_formatter=Plain(module.HELP), version_flags=())
        app.command(group)
    for each in commands:
        function = getattr(module, each)
        group.command(function, name=each, help_formatter=Plain(function.__doc__))
    return app


def _old(group: str) -> int:
    """Commands that are still to be moved."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def _group() -> None:
        pass

    importlib.import_module(f".{group}", __name__).add_commands(app)
    app(prog_name="bayesadmm")
    return 0
