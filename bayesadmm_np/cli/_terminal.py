"""Parts that all commands share: exit codes, refusals in one line, suggestions, tables, JSON and files."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import numpy as np

from .._errors import installing
from .._registry import nearest
from .._text import aligned, visible

if TYPE_CHECKING:
    from .._errors import Words
    from ..estimators.fitted import FittedGLM

TERMINAL = 80
"""Columns of a plain terminal."""
SEPARATED = 4
"""Exit code of a fit whose likelihood has no maximum: 1 a run failed, 2 input refused, 3 a message refused."""


class Refused(ValueError):
    """The command or its input was not understood: one sentence, exit code 2."""


def exit_code(model: FittedGLM) -> int:
    """Return the exit code of a fit: 0 where its certificate holds, 1 where not, 4 where it has no maximum."""
    if not model.has_maximum:
        return SEPARATED
    return int(not (model.holds and model.record.status.name == "CONVERGED"))


def stop(message: str, code: int) -> NoReturn:
    """Print a message to standard error and exit."""
    note(message)
    raise SystemExit(code)


def note(message: str) -> None:
    """Say something that is no result: standard output is left to results."""
    print(visible(message), file=sys.stderr)


class Visible:
    """A terminal that is not sent what it would obey: much of what is printed comes from elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write text."""
        return self.stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


OPTIONS = {"max_rounds": "rounds", "fit_intercept": "no_intercept", "folder": "DIR", "y": "target", "kind": "loss"}
"""Arguments of estimators that are options of another name."""


def _spelled(name: str) -> str:
    own = OPTIONS.get(name, name)
    return f"--{own.replace('_', '-')}" if own.isidentifier() and own.islower() else own


def _quoted(value: str) -> str:
    """Return a value as every shell takes it."""
    return value if re.fullmatch(r"[\w.]+", value) else f'"{value}"'


def option_words() -> Words:
    """Return the names of a command's reader: options."""
    from .._errors import Words

    return Words(
        _spelled,
        switch=lambda name: f"add {_spelled(name)}",
        setting=lambda name, value: f"{_spelled(name)} {_quoted(str(value))}",
        missing=lambda words: f'say so by --na "{",".join(words)}"',
    )


def in_options(error: object) -> str:
    """Return a message, of an error or of a finding, with arguments spelled as the options that set them."""
    from .._errors import worded

    return error if isinstance(error, str) else worded(error, **option_words()._asdict())


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Turn what a user can cause into one line and an exit code: 1 the run failed, 2 the input was refused."""
    from ..splitting.result import RunError

    try:
        yield
    except RunError as error:
        stop(f"bayesadmm {command}: the run failed: {in_options(error)}", 1)
    except ModuleNotFoundError as error:
        stop(f"bayesadmm {command}: {_missing_package(error, 'cli')}", 2)
    except BrokenPipeError:  # of head, or of a pager that was left: `main` knows what to do
        raise
    except OSError as error:
        stop(f"bayesadmm {command}: {sentence(error)}", 2)
    except (ImportError, ValueError) as error:
        stop(f"bayesadmm {command}: {in_options(error)}", 2)
    except KeyboardInterrupt:
        stop(f"bayesadmm {command}: interrupted; nothing was written.", 130)


def sentence(error: OSError) -> str:
    """Return which file an error is about, if any, and what the system says of it."""
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{str(error).rstrip('.') if error.strerror is None else place + error.strerror.lower()}."


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Name the extra of a command whose import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing_package(error, extra) from error


def _missing_package(error: ModuleNotFoundError, extra: str) -> ImportError:
    if (error.name or "").startswith("bayesadmm_np"):
        raise error
    return ImportError(f"this command needs a package that is not installed, {error.name}: {installing(extra)}.")


def missing_name(what: str, name: str, known: Iterable[object], others: str = "") -> str:
    """Return a sentence about a name that is not there, with the nearest that is, or with all of them."""
    names = [str(item) for item in known]
    near = nearest(name, names)
    if near:
        return f"{what} {name!r}; did you mean {near!r}?"
    return f"{what} {name!r}; {others or 'there is ' + (', '.join(names) or 'none')}."


def require_writable(folder: Path, option: str = "--out") -> None:
    """Refuse, before any time is spent, a folder that cannot be written to, such as a link that leads nowhere."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise Refused(f"{option}: {str(folder)!r} is not a folder that can be written to; name another folder.")


OWN = re.compile(r"(state|hello|final|broadcast-\d+|design-\w+)\.npz|.*\.(jsonl?|part|hex)|\..*", re.IGNORECASE)
"""Names of what a site or a server keeps in its folder, there already or not."""


def require_out(out: Path, inputs: Iterable[Path] = (), folder: Path | None = None) -> None:
    """Refuse, before any time is spent, a file that cannot be written or that would replace what must stay.

    Must stay: devices and folders, the `inputs` that the command reads, and what a site or server keeps in `folder`.
    """
    # what is written replaces what is there, which a device such as /dev/stdout would not survive
    if (out.exists() and not out.is_file()) or not out.absolute().parent.is_dir():
        raise Refused(f"--out: {str(out)!r} is not a file in a folder that exists.")
    require_writable(out.absolute().parent)
    for path in inputs:
        if out.resolve() == path.resolve() or (out.exists() and path.exists() and out.samefile(path)):
            raise Refused(f"--out: {str(out)!r} is read by this command; it would be lost.")
    for place in (out.absolute(), out.resolve()):
        if folder is not None and place.parent.resolve() == folder.resolve() and OWN.fullmatch(place.name):
            raise Refused(f"--out: {str(out)!r} is the name of a file that {folder} keeps; it would be lost.")


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> str:
    """Return an aligned table; the first `left` columns are aligned to the left, the others to the right.

    A title of several words has its last one on a second line where that makes its column narrower, and a table that
    is wider than a terminal has its columns one space apart.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    content = [max((len(row[j]) for row in cells), default=0) for j in range(len(header))]
    split = [_split_title(title, width) for title, width in zip(header, content, strict=True)]
    heads = [list(line) for line in zip(*split, strict=True)]
    lines = [line for line in heads if any(line)] + cells
    widths = [max(len(line[j]) for line in lines) for j in range(len(header))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= TERMINAL else " "
    texts = aligned(lines, left, gap)
    texts.insert(len(lines) - len(cells), "-" * len(texts[0]))
    return "\n".join(text.rstrip() for text in texts)


def _split_title(title: str, width: int) -> tuple[str, str]:
    first, _, last = title.rpartition(" ")
    return (first, last) if first and len(title) > width else ("", title)


def show(found: Any, as_json: bool) -> None:
    """Print a result: its `to_dict` as one JSON object, or its text."""
    if as_json:
        print_json(found.to_dict())
    else:
        print(found)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    print(json.dumps(plain(value), allow_nan=False, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return what JSON can hold; what is no number in it (NaN, ∞) becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
