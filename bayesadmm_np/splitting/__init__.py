"""The loop, the table of methods, the safeguards, and the certificate."""

from . import methods
from .accelerated import Accelerated
from .certificate import Certificate
from .loop import run
from .privacy import GaussianMechanism
from .result import Result, RunError
from .status import ClientRecord, Edges, RoundRecord, Status

__all__ = [
    "Accelerated",
    "Certificate",
    "ClientRecord",
    "Edges",
    "GaussianMechanism",
    "Result",
    "RoundRecord",
    "RunError",
    "Status",
    "methods",
    "run",
]
