"""Loaders of small image data sets, offline first."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import needed_by
from .._validation import as_count
from .dataset import Dataset
from .files import Download, PathLike, fetch, find

MNIST_FILE = "mnist.npz"
MNIST = Download(
    MNIST_FILE,
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
    "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
)

FASHION_FILE = "fashion_mnist.npz"
FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
FASHION = {
    array: Download(f"fashion-mnist/{name}", FASHION_URL + name, sha256)
    for array, name, sha256 in (
        ("x_train", "train-images-idx3-ubyte.gz", "08dc20ab1689590a0bcd66e874647b6ee8464e2d501b5a3f1f78831db19a3fdc"),
        ("y_train", "train-labels-idx1-ubyte.gz", "b0197879cbda89f3dc7b894f9fd52b858e68ea4182b6947c9d8c2b67e5f18dcc"),
        ("x_test", "t10k-images-idx3-ubyte.gz", "78dcbbfb5a27efaf1b6c1d616caca68560be8766c5bffcb2791df9273a534229"),
        ("y_test", "t10k-labels-idx1-ubyte.gz", "42bd18137a62d5998cdeae52bf3a0676ac6b706f5cf8439b47bb5b151ae3dccf"),
    )
}

SIDE = 28
SIZES = (28, 14, 7)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")

Arrays = dict[str, NDArray[Any]]


def load_digits() -> Dataset:
    """Load the 8 × 8 digits that come with scikit-learn, with pixels in [0, 1] and no test set.

    Examples
    --------
    >>> load_digits()
    Dataset('digits', X=(1797, 64), X_test=None, n_classes=10)
    """
    with needed_by("load_digits needs scikit-learn, which is not installed", "demos"):
        from sklearn.datasets import load_digits as bundled
    X, y = bundled(return_X_y=True)
    return Dataset(np.asarray(X, dtype=np.float64) / 16.0, np.asarray(y, dtype=np.int64), None, None, 10, "digits")


def load_mnist(size: int = 28, train: int | None = None, *, data_dir: PathLike | None = None) -> Dataset:
    """Load MNIST, if need be at a lower resolution.

    The file ``mnist.npz`` of Keras is searched in `data_dir`, in the directory ``BAYESADMM_DATA`` and in this library's
    cache, and downloaded if it is not there. Images become means of blocks, divided by 255.

    Parameters
    ----------
    size : {28, 14, 7}
        Side of the images.
    train : int, optional
        Number of training rows, the first of the file; default all. The test set stays whole.
    data_dir : path-like, optional

    Returns
    -------
    Dataset
        X of shape (train, size²) with values in [0, 1]; labels 0 to 9.

    Raises
    ------
    ValueError
        When an argument is not as above, or the file is damaged or of another layout.
    TypeError
        When `data_dir` is not a path.
    DataUnavailableError
        When the file is nowhere and cannot be downloaded, or the download has another SHA-256 sum.

    Examples
    --------
    >>> load_mnist(size=7, train=1000)  # doctest: +SKIP
    Dataset('mnist', X=(1000, 49), X_test=(10000, 49), n_classes=10)
    """
    return _load("mnist", MNIST_FILE, lambda: _read_keras(fetch(MNIST, MNIST_FILE, data_dir)), size, train, data_dir)


def load_fashion_mnist(size: int = 28, train: int | None = None, *, data_dir: PathLike | None = None) -> Dataset:
    """Load Fashion-MNIST (Xiao, Rasul and Vollgraf 2017) from ``fashion_mnist.npz`` or the four published files.

    Labels are 0 T-shirt, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag, 9 ankle boot.

    Parameters
    ----------
    size : {28, 14, 7}
    train : int, optional
    data_dir : path-like, optional
        These, images and errors are as in `load_mnist`.

    Examples
    --------
    >>> load_fashion_mnist(size=14).X.shape  # doctest: +SKIP
    (60000, 196)
    """

    def published() -> Arrays:
        return {name: _read_idx(fetch(file, FASHION_FILE, data_dir)) for name, file in FASHION.items()}

    return _load("fashion-mnist", FASHION_FILE, published, size, train, data_dir)


def _load(
    name: str, file: str, published: Callable[[], Arrays], size: int, train: int | None, data_dir: PathLike | None
) -> Dataset:
    """Read the user's file, or else the published data, and scale its images."""
    size = as_count(size, "size")
    if size not in SIZES:
        raise ValueError(f"size must be one of {SIZES}, got {size}.")
    train = None if train is None else as_count(train, "train")
    path = find(data_dir, file)
    arrays = published() if path is None else _read_keras(path)
    available = len(arrays["y_train"])
    if train is not None and train > available:
        raise ValueError(f"train must be at most {available}, the rows in {path or file}, got {train}.")
    return Dataset(
        X=_pool(arrays["x_train"][:train], size),
        y=arrays["y_train"][:train].astype(np.int64),
        X_test=_pool(arrays["x_test"], size),
        y_test=arrays["y_test"].astype(np.int64),
        n_classes=10,
        name=name,
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of the published layout: a header of big-endian integers, then bytes.

    The file's SHA-256 sum has been checked, so that the header can be trusted.
    """
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_keras(path: Path) -> Arrays:
    """Read and check the four arrays of the Keras layout, never a pickle."""
    try:
        # Opened here because np.load leaves a damaged archive open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            with archive:
                arrays = {name: archive[name] for name in ARRAYS if name in archive.files}
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a readable .npz archive of arrays: {error}") from error
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise ValueError(f"{path} must hold the arrays {ARRAYS}, and lacks {', '.join(missing)}")
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE) or len(x) == 0 or x.dtype != np.uint8:
            raise ValueError(f"x_{part} in {path} must be uint8 of shape (n, 28, 28), got {x.dtype} of {x.shape}")
        if y.shape != (len(x),) or y.dtype.kind not in "iu" or y.min() < 0 or y.max() > 9:
            raise ValueError(f"y_{part} in {path} must be {len(x)} integer labels from 0 to 9, got {y.dtype} {y.shape}")
    return arrays


def _pool(images: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Return the block means of bytes, scaled to [0, 1], one flattened image per row."""
    block = SIDE // size
    blocks = images.reshape(-1, size, block, size, block)
    pooled: NDArray[np.float64] = blocks.sum(axis=(-3, -1), dtype=np.float64) / (255.0 * block**2)
    return pooled.reshape(len(images), -1)
