"""Rounds over any transport: where each site is, what it is asked, and until when its answer counts."""

from .node import answer
from .plan import Plan
from .rounds import TooFewError, WithheldError, serve

__all__ = ["Plan", "TooFewError", "WithheldError", "answer", "serve"]
