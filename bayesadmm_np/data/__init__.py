"""Data sets, looked for on this machine first, and ways of dividing their rows among clients.

Loaders return a `Dataset`, or a `FederatedDataset` where the data came in parts; the functions of
the module `partition` return one array of row numbers per client.
"""

from . import partition
from .dataset import Dataset, FederatedDataset
from .files import DataUnavailableError
from .images import load_digits, load_fashion_mnist, load_mnist
from .tables import load_credit_approval, load_heart_disease

__all__ = [
    "DataUnavailableError",
    "Dataset",
    "FederatedDataset",
    "load_credit_approval",
    "load_digits",
    "load_fashion_mnist",
    "load_heart_disease",
    "load_mnist",
    "partition",
]
