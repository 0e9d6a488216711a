"""Rounds with sites that answer when they can, over any transport: who is where, who is asked, and until when."""

from .envelope import Answer, Request
from .node import answer
from .plan import Plan
from .rounds import serve
from .run import TooFewError

__all__ = ["Answer", "Plan", "Request", "TooFewError", "answer", "serve"]
