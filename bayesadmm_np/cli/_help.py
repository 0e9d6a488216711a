"""Layout of `--help`: two columns that fit a plain terminal of 80 columns."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from cyclopts import App

LEFT = 26
"""Columns for an option and its value."""
VALUES = {"FLOAT": "NUMBER", "INT": "NUMBER"}


def shown(default: Any) -> str:
    """Return a default in words; none where there is nothing to say."""
    if default is None or default is False or default == ():
        return ""
    return "yes" if default is True else f"{default:g}" if isinstance(default, float) else str(default)


class Application(App):
    """A parser of one command line: its arguments are assembled once, and their help stands in their declarations."""

    _assembled: Any = None

    def assemble_argument_collection(self, *, default_parameter: Any = None, parse_docstring: bool = False) -> Any:
        """Return the arguments."""
        if self._assembled is None:
            self._assembled = super().assemble_argument_collection(default_parameter=default_parameter)
        return self._assembled


class Plain:
    """A formatter of help without boxes and colours: a docstring in its own lines, and a foot that a group shares."""

    def __init__(self, text: str | None, foot: str = "") -> None:
        self.text = f"{inspect.cleandoc(text or '')}\n\n{foot}".strip()

    def render_usage(self, console: Any, _: Any, usage: Any) -> None:
        """Print the line that says how the command is called."""
        print(f"Usage: {str(usage).strip()}")

    def render_description(self, console: Any, _: Any, description: Any) -> None:
        """Print what the command does."""
        print(f"\n{self.text}")

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        """Print arguments, options or commands."""
        if not panel.entries:
            return
        print(f"\n{panel.title}:")
        width = max(min(console.width, 100), 60)
        for entry in panel.entries:
            labels = [*([entry.positional_label] if entry.positional_label else []), *entry.positive_shorts]
            labels += [*entry.positive_names, *entry.negative_names]
            value = f" {VALUES.get(entry.metavar, entry.metavar)}" if entry.metavar and labels[0][0] == "-" else ""
            _print_row(", ".join(labels) + value, _described(entry), width)
        if panel.title != "Arguments":
            _print_row("--help, -h", "Show this help.", width)


def _described(entry: Any) -> str:
    text = str(getattr(entry.description, "primary_renderable", entry.description or ""))
    more = [f"One of: {', '.join(entry.choices)}."] if entry.choices else []
    if entry.default:
        more.append(f"[default: {entry.default}]")
    if entry.required:
        more.append("[required]")
    return " ".join([text, *more]).strip()


def _print_row(label: str, text: str, width: int) -> None:
    lines = textwrap.wrap(text, width - LEFT - 2, break_on_hyphens=False) or [""]
    if len(label) > LEFT - 2:
        print(f"  {label}")
    else:
        print(f"  {label:<{LEFT - 2}}  {lines.pop(0)}".rstrip())
    for line in lines:
        print(f"{'':{LEFT + 2}}{line}")
