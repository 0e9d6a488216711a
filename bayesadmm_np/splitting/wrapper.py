"""A step around another one, such as a guard or an acceleration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .average import as_step
from .messages import Reply
from .method import Method
from .status import Failure
from .step import Gathered, Start, Step

if TYPE_CHECKING:
    from .server import Server
    from .state import State


@dataclass(frozen=True)
class Wrapper(Step):
    """A step around another one: all that a subclass does not define is that of the step inside.

    Parameters
    ----------
    method : Method or Step
        The wrapped method or step.
    """

    method: Method | Step

    @property
    def inner(self) -> Step:
        """The step inside."""
        return as_step(self.method)

    @property
    def row(self) -> Method:
        return self.inner.row

    def starting(self, start: Start) -> Step:
        return replace(self, method=self.inner.starting(start))

    def step(self, server: Server, state: State, replies: Sequence[Reply | None]) -> Gathered | Failure:
        return self.inner.step(server, state, replies)


def _of_inner(name: str, of_step: Any) -> Any:
    """Return a property or a method that forwards to the wrapped step."""
    if not callable(of_step):  # a property, or a constant of the class
        return property(lambda self: getattr(self.inner, name), doc=getattr(of_step, "__doc__", None))

    def asked(self: Wrapper, *values: Any) -> Any:
        return getattr(self.inner, name)(*values)

    asked.__doc__ = of_step.__doc__
    return asked


for _name, _own in vars(Step).items():
    if not (_name.startswith("_") or _name in vars(Wrapper)):
        setattr(Wrapper, _name, _of_inner(_name, _own))
