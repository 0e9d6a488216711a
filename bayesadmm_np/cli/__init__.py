"""The command line `bayesadmm`: one module a command, loaded when it is called. Needs extras; the library does not."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from typing import Any

from .._errors import installing
from .._version import __version__
from ._terminal import Visible, missing_name, note, refusals, stop

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "describe": "Describe the columns before a fit: table one, and what looks odd.",
    "fit": "Fit a regression to rows at several sites.",
    "predict": "Predict new rows.",
    "summary": "Print the table of a model file.",
    "evaluate": "Measure discrimination and calibration of a model, by site.",
    "certify": "Check a model against its rows.",
    "compare": "Run every method, and compare each with the pooled answer.",
    "site": "Be a site in a fit by files; its rows never leave it.",
    "server": "Be the server of a fit by files; it never sees rows.",
    "flower": "Fit over a network, with sites on other machines (Flower).",
    "report": "List what has left a site.",
    "reproduce": "Draw the papers' figures and check their claims.",
    "derive": "Derive the method of a family symbolically.",
    "lessons": "Copy the lessons and their exercises.",
    "play": "Open a page with sliders for the settings.",
}
"""Commands and what they do. Each is a module of this package with a function of its name, whose docstring is the
help, or a group: a module whose `__all__` are its commands and `HELP` its help. A module may have a `FOOT`, which the
help of its commands ends with, and `REFUSALS` in place of `refusals`. Other modules begin with `_`."""

HELP = """Usage: bayesadmm COMMAND [ARGS]

Federated ADMM and variational Bayes as one algorithm.

Commands:
{commands}

Options:
  --help, -h  Show this help; after a command, show its help.
  --version   Print the version."""


def main() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        # ✓ and ρ are not in every terminal's encoding
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        # a file or a pipe gets the data as they are
        screen: Any = Visible(sys.stdout) if sys.stdout.isatty() else sys.stdout
        with contextlib.redirect_stdout(screen):
            code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # of head, or of a pager that was left: what is buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    raise SystemExit(code)


def _run(tokens: list[str]) -> int:
    if not tokens or tokens[0] in ("--help", "-h"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {key:<{width}}  {does}" for key, does in COMMANDS.items())
        print(HELP.format(commands=commands), file=sys.stdout if tokens else sys.stderr)
        return 0 if tokens else 2
    name = tokens[0]
    if name == "--version":
        print(f"bayesadmm_np {__version__}")
        return 0
    if name not in COMMANDS:
        stop(f"bayesadmm: {missing_name('there is no command', name, COMMANDS)}", 2)
    try:
        import cyclopts  # noqa: F401
    except ImportError:
        stop(f"bayesadmm: the command line needs packages that are not installed: {installing('cli')}.", 2)
    return _call(name, tokens)


def _call(name: str, tokens: list[str]) -> int:
    from cyclopts.exceptions import CycloptsError

    from ._options import refusal

    with refusals(name):
        _load_plugins()
        module = importlib.import_module(f".{name}", __name__)
        app = application(name, module)
    if not hasattr(module, name) and len(tokens) == 1:
        with contextlib.redirect_stdout(sys.stderr):  # no command of the group was named
            app.help_print(tokens)
        return 2
    if hasattr(module, name) and tokens[1:] in (["--help"], ["-h"]):
        app.help_print([name])  # the parser, which would get here too, reads all options first
        return 0
    words = " ".join(app.parse_commands(tokens)[0])
    with getattr(module, "REFUSALS", refusals)(words):
        try:
            command, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
        except CycloptsError as error:
            error.verbose = False
            stop(f"bayesadmm {words}: {refusal(error)}", 2)
        return int(command(*bound.args, **bound.kwargs) or 0)


def _load_plugins() -> None:
    """Let other packages register what they have: their methods, families and kinds are choices too."""
    from .._registry import load_plugins

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load_plugins()
    for warning in said:
        note(f"bayesadmm: {warning.message}")


def application(name: str, module: Any) -> Any:
    """Return the parser of one command or group."""
    from cyclopts import Parameter

    from ._help import Application, Plain, shown
    from ._options import fill_from_config, require_numbers

    app = Application(
        name="bayesadmm",
        help_format="plaintext",
        config=(fill_from_config, require_numbers),
        default_parameter=Parameter(negative_bool=(), negative_iterable=(), allow_repeating=True, show_default=shown),
        group_parameters="Options",
        version_flags=(),
    )
    if hasattr(module, name):
        group, names = app, [name]
    else:
        group, names = Application(name=name, help_formatter=Plain(module.HELP), version_flags=()), module.__all__
        app.command(group)
    for each in names:
        function = getattr(module, each)
        group.command(function, name=each, help_formatter=Plain(function.__doc__, getattr(module, "FOOT", "")))
    return app
