"""A message is an archive of a kind that server and sites know."""

from .._archive import LIMIT, content_of
from .._archive import Archive as Message
from .._archive import ArchiveError as MessageError

__all__ = ["LIMIT", "Message", "MessageError", "content_of"]
