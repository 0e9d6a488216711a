"""Data sets that need no network, and ways of dividing their rows among clients.

Loaders (`load_digits`, `load_mnist`) return a `Dataset`; the functions of the module
`partition` return one array of row numbers per client.
"""

from bayesadmm_np.data import partition
from bayesadmm_np.data.loaders import Dataset, DataUnavailableError, load_digits, load_mnist

__all__ = ["DataUnavailableError", "Dataset", "load_digits", "load_mnist", "partition"]
