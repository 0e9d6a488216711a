"""Registries of objects by name; an installed package adds to them through an entry point of `bayesadmm_np.plugins`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TypeVar, cast

PLUGINS = "bayesadmm_np.plugins"
"""Group of the entry points that `load_plugins` loads."""

T = TypeVar("T")
S = TypeVar("S")


class UnknownNameError(ValueError, KeyError):
    """No object has this name; the message gives the nearest name, and all of them."""

    __str__ = ValueError.__str__  # a KeyError shows its message in quotes


class Registry(Mapping[str, T]):
    """Objects by name, in the order of their registration.

    Parameters
    ----------
    what : str
        Name of one object in messages, such as "family".

    Examples
    --------
    >>> shapes = Registry("shape")
    >>> @shapes.register
    ... class Circle: ...
    >>> shapes.register(object(), name="blob") is shapes["blob"]
    True
    >>> list(shapes)
    ['Circle', 'blob']
    >>> shapes["circle"]
    Traceback (most recent call last):
    bayesadmm_np._registry.UnknownNameError: there is no shape 'circle'; did you mean 'Circle'? There are Circle, blob.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._things: dict[str, T] = {}

    def register(self, thing: S, name: str | None = None) -> S:
        """Add `thing` under `name`, by default its `__name__`, and return it: usable as a decorator.

        Raises
        ------
        ValueError
            When there is no name, or another object has it. The same object may be registered again.
        """
        name = getattr(thing, "__name__", None) if name is None else name
        if not isinstance(name, str) or not name:
            raise ValueError(f"a {self.what} needs a name: register(thing, name=...), got {thing!r}.")
        known: object = self._things.setdefault(name, cast(T, thing))
        if known is not thing:
            raise ValueError(f"there is a {self.what} {name!r} already: {known!r}.")
        return thing

    def name_of(self, thing: object) -> str | None:
        """Return the name under which this very object is registered; None when it is not."""
        return next((name for name, known in self._things.items() if known is thing), None)

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except (KeyError, TypeError):
            raise UnknownNameError(self._unknown(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return f"Registry({self.what!r}: {', '.join(self)})"

    def _unknown(self, name: object) -> str:
        near = nearest(name, self)
        meant = "" if near is None else f"; did you mean {near!r}?"
        listed = f"There are {', '.join(self)}." if self else "There are none."
        return f"there is no {self.what} {name!r}{meant or '.'} {listed}"


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, whatever its case; None when none is like it."""
    import difflib  # here: only an error needs it

    folded = {item.casefold(): item for item in reversed(list(known))}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1)
    return folded[near[0]] if near else None


@cache
def load_plugins() -> tuple[str, ...]:
    """Load every entry point of the group `bayesadmm_np.plugins`, once, and return the names of those that loaded.

    An entry point names a module, which registers what it has when it is imported, or a function, which is called.
    Packages that fail are named in one warning; the others are loaded.
    """
    from importlib.metadata import entry_points

    loaded, failed = [], []
    for point in sorted(entry_points(group=PLUGINS)):
        try:
            found = point.load()
            if callable(found):
                found()
        except Exception as error:  # whatever a stranger's module raises, the others are still wanted
            failed.append(f"{point.name} ({point.value}): {type(error).__name__}: {error}")
        else:
            loaded.append(point.name)
    if failed:
        warnings.warn(f"plugins that could not be loaded: {'; '.join(failed)}", RuntimeWarning, stacklevel=2)
    return tuple(loaded)
