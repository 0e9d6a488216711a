"""Loaders of small image data sets, offline first."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DataUnavailableError", "Dataset", "load_digits", "load_mnist"]

DATA_VARIABLE = "BAYESADMM_DATA"

MNIST_FILE = "mnist.npz"
MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
MNIST_SIDE = 28
MNIST_SIZES = (28, 14, 7)


class DataUnavailableError(OSError):
    """A data file is in none of the places searched, and could not be fetched."""


@dataclass(frozen=True, eq=False)
class Dataset:
    r"""Rows with class labels, and perhaps a test set.

    Parameters
    ----------
    X : ndarray of float64, shape (n, d)
        One row per example.
    y : ndarray of int64, shape (n,)
        Labels in :math:`\{0, \dots, C - 1\}`.
    X_test : ndarray of float64, shape (m, d), or None
        Rows of the test set, if there is one.
    y_test : ndarray of int64, shape (m,), or None
        Labels of the test set, if there is one.
    n_classes : int
        The number of classes, :math:`C`.
    name : str
        What the data are called.

    Examples
    --------
    >>> import numpy as np
    >>> Dataset(np.zeros((3, 2)), np.array([0, 1, 1]), None, None, 2, "toy")
    Dataset('toy', X=(3, 2), X_test=None, n_classes=2)
    """

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    X_test: NDArray[np.float64] | None
    y_test: NDArray[np.int64] | None
    n_classes: int
    name: str

    def __repr__(self) -> str:
        test = None if self.X_test is None else self.X_test.shape
        return f"Dataset({self.name!r}, X={self.X.shape}, X_test={test}, n_classes={self.n_classes})"


def load_digits() -> Dataset:
    r"""Load the 8 × 8 digits that come with scikit-learn.

    The pixels, integers in :math:`\{0, \dots, 16\}`, are divided by 16.

    Returns
    -------
    Dataset
        ``X`` of shape (1797, 64) with values in [0, 1], ``y`` in :math:`\{0, \dots, 9\}`, and
        no test set.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.

    Examples
    --------
    >>> digits = load_digits()
    >>> digits
    Dataset('digits', X=(1797, 64), X_test=None, n_classes=10)
    >>> float(digits.X.min()), float(digits.X.max())
    (0.0, 1.0)
    """
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError as error:
        raise ImportError(
            "load_digits needs scikit-learn, which is not installed: pip install 'bayesadmm-np[demos]'"
        ) from error
    X, y = bundled(return_X_y=True)
    return Dataset(
        X=np.asarray(X, dtype=np.float64) / 16.0,
        y=np.asarray(y, dtype=np.int64),
        X_test=None,
        y_test=None,
        n_classes=10,
        name="digits",
    )


def load_mnist(size: int = 28, train: int | None = None, *, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    r"""Load MNIST, if need be at a lower resolution.

    The file ``mnist.npz`` is looked for in `data_dir`, then in the directory named by the
    environment variable ``BAYESADMM_DATA``. Found there it is checked and read as it is, and
    never written to. Only when neither place has it is it downloaded, once, to this library's
    own cache, where its SHA-256 sum must be the known one.

    An image :math:`P` of 28 × 28 bytes becomes the :math:`s \times s` block means

    .. math::
        x_{ij} = \frac{1}{255\, b^2} \sum_{u=0}^{b-1} \sum_{v=0}^{b-1} P_{bi + u,\; bj + v},
        \qquad b = 28 / s,

    flattened row by row.

    Parameters
    ----------
    size : {28, 14, 7}
        The side :math:`s` of the images.
    train : int, optional
        Keep the first `train` training rows; all of them if None. The test set stays whole.
    data_dir : path-like, optional
        The directory to search first.

    Returns
    -------
    Dataset
        ``X`` of shape (train, size²) and ``X_test`` of shape (m, size²) with values in [0, 1],
        labels in :math:`\{0, \dots, 9\}`.

    Raises
    ------
    ValueError
        If `size` or `train` is not as above, or if the file found is damaged, or lacks an array
        of the expected name, shape or type.
    TypeError
        If `data_dir` is not a path.
    DataUnavailableError
        If the file is nowhere and cannot be downloaded, or if the downloaded one does not have
        the known SHA-256 sum. It is an `OSError`.

    Notes
    -----
    The layout is that of Keras: ``x_train`` of shape (n, 28, 28) and type uint8, ``y_train`` of
    shape (n,) with integers, and the same for ``x_test`` and ``y_test``. MNIST itself has
    60 000 training and 10 000 test images; a file of your own may have other numbers.

    Examples
    --------
    A file of one's own, here with three blank images:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> blank, labels = np.zeros((3, 28, 28), np.uint8), np.array([5, 0, 4])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(
    ...         Path(folder, "mnist.npz"),
    ...         x_train=blank,
    ...         y_train=labels,
    ...         x_test=blank,
    ...         y_test=labels,
    ...     )
    ...     mnist = load_mnist(size=7, train=2, data_dir=folder)
    >>> mnist
    Dataset('mnist', X=(2, 49), X_test=(3, 49), n_classes=10)
    """
    if not _is_integer(size) or size not in MNIST_SIZES:
        raise ValueError(f"size must be one of {MNIST_SIZES}, got {size!r}")
    if train is not None and (not _is_integer(train) or train < 1):
        raise ValueError(f"train must be None or an integer of at least 1, got {train!r}")
    if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
        raise TypeError(f"data_dir must be a path or None, got {type(data_dir).__name__}")

    path = _find(MNIST_FILE, data_dir)
    if path is None:
        path = _fetch(MNIST_FILE, MNIST_URL, MNIST_SHA256, data_dir)
    arrays = _read_mnist(path)
    available = len(arrays["x_train"])
    if train is not None and train > available:
        raise ValueError(f"train must be at most {available}, the rows in {path}, got {train}")
    return Dataset(
        X=_pool(arrays["x_train"][:train], size),
        y=arrays["y_train"][:train].astype(np.int64),
        X_test=_pool(arrays["x_test"], size),
        y_test=arrays["y_test"].astype(np.int64),
        n_classes=10,
        name="mnist",
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _places(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return the user's directories, in the order in which they are searched."""
    named = [data_dir, os.environ.get(DATA_VARIABLE) or None]
    return [Path(place).expanduser() for place in named if place is not None]


def _find(name: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    for place in _places(data_dir):
        if (place / name).is_file():
            return place / name
    return None


def _fetch(name: str, url: str, sha256: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the file in this library's cache, downloaded if it is not there yet."""
    searched = ", ".join(map(str, _places(data_dir))) or "no directory (none was named)"
    remedy = f"Put {name} in a directory and name it in data_dir or in {DATA_VARIABLE}."
    try:
        import pooch
    except ImportError as error:
        raise DataUnavailableError(
            f"{name} was not found; searched: {searched}. {remedy} "
            "Or let it be downloaded, which needs pooch: pip install 'bayesadmm-np[demos]'"
        ) from error

    cache = Path(pooch.os_cache("bayesadmm-np"))
    path = cache / name
    # pooch would silently replace a cached file whose sum is wrong: look before it does.
    if path.exists():
        found = pooch.file_hash(str(path), alg="sha256")
        if found != sha256:
            raise DataUnavailableError(
                f"the cached file {path} has SHA-256 {found} where {sha256} was expected: "
                f"delete it to have it downloaded anew. {remedy}"
            )
        return path
    try:
        pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=name, path=cache)
    except (OSError, ValueError) as error:
        raise DataUnavailableError(
            f"{name} was not found and could not be downloaded from {url} ({error}); "
            f"searched: {searched}, and the cache {cache}. {remedy}"
        ) from error
    return path


def _read_mnist(path: Path) -> dict[str, NDArray[Any]]:
    """Read and check the four arrays of the Keras layout."""
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        # Opened here because np.load leaves a damaged archive open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            with archive:
                missing = [name for name in names if name not in archive.files]
                arrays = {name: archive[name] for name in names if name not in missing}
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz archive of arrays: {error}") from error
    if missing:
        raise ValueError(f"{path} must hold the arrays {names}, and lacks {', '.join(missing)}")

    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 3 or x.shape[1:] != (MNIST_SIDE, MNIST_SIDE) or len(x) == 0:
            raise ValueError(f"x_{part} in {path} must have shape (n, 28, 28), got {x.shape}")
        if x.dtype != np.uint8:
            raise ValueError(f"x_{part} in {path} must have type uint8, got {x.dtype}")
        if y.shape != (len(x),):
            raise ValueError(f"y_{part} in {path} must have shape ({len(x)},), got {y.shape}")
        if y.dtype.kind not in "iu":
            raise ValueError(f"y_{part} in {path} must have an integer type, got {y.dtype}")
        if y.min() < 0 or y.max() > 9:
            raise ValueError(f"y_{part} in {path} must have labels from 0 to 9, got {y.min()} to {y.max()}")
    return arrays


def _pool(images: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Return the block means of bytes, scaled to [0, 1], one flattened image per row."""
    block = MNIST_SIDE // size
    blocks = images.reshape(len(images), size, block, size, block)
    pooled: NDArray[np.float64] = blocks.sum(axis=(2, 4), dtype=np.float64)
    pooled /= 255.0 * block**2
    return pooled.reshape(len(images), size * size)
