"""Loaders of small image data sets, offline first."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from itertools import pairwise
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

CIFAR10_FILE = "cifar10_jpeg.npz"
CIFAR10_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR10 = Download(
    CIFAR10_ARCHIVE,
    f"https://www.cs.toronto.edu/~kriz/{CIFAR10_ARCHIVE}",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR10_PARTS = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR10_FOLDER = "cifar-10-batches-bin"
COLOUR = (3, 32, 32)
COLOUR_SIZES = (32, 16, 8)

SIDE = 28
SIZES = (28, 14, 7)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")

Arrays = dict[str, NDArray[Any]]


def load_digits() -> Dataset:
    r"""Load the 8 × 8 digits that come with scikit-learn.

    The pixels, integers in :math:`\{0, \dots, 16\}`, are divided by 16.

    Returns
    -------
    Dataset
        ``X`` of shape (1797, 64) with values in [0, 1], ``y`` in :math:`\{0, \dots, 9\}`, and no test set.

    Examples
    --------
    >>> digits = load_digits()
    >>> digits
    Dataset('digits', X=(1797, 64), X_test=None, n_classes=10)
    >>> float(digits.X.min()), float(digits.X.max())
    (0.0, 1.0)
    """
    with needed_by("load_digits needs scikit-learn, which is not installed", "demos"):
        from sklearn.datasets import load_digits as bundled
    X, y = bundled(return_X_y=True)
    return Dataset(
        X=np.asarray(X, dtype=np.float64) / 16.0,
        y=np.asarray(y, dtype=np.int64),
        X_test=None,
        y_test=None,
        n_classes=10,
        name="digits",
    )


def load_mnist(size: int = 28, train: int | None = None, *, data_dir: PathLike | None = None) -> Dataset:
    r"""Load MNIST, if need be at a lower resolution.

    The file ``mnist.npz`` of Keras is looked for in `data_dir`, in the directory that the environment variable
    ``BAYESADMM_DATA`` names, and in this library's own cache, to which the published one is downloaded otherwise.
    Images become :math:`s \times s` means of blocks of their bytes, divided by 255 and flattened row by row.

    Parameters
    ----------
    size : {28, 14, 7}
        The side :math:`s` of the images.
    train : int, optional
        Number of training rows to keep, the first of the file; all if None. The test set stays whole.
    data_dir : path-like, optional
        The directory to search first.

    Returns
    -------
    Dataset
        ``X`` of shape (train, size²) and ``X_test`` of shape (m, size²) with values in [0, 1], labels 0 to 9.

    Raises
    ------
    ValueError
        When `size` or `train` is not as above, or the file is damaged, or lacks an array of the expected shape or type.
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
    r"""Load Fashion-MNIST (Xiao, Rasul and Vollgraf 2017), if need be at a lower resolution.

    Arguments, errors and images are those of `load_mnist`; the file is ``fashion_mnist.npz``, or else the four that
    are published. Labels are 0 T-shirt, 1 trouser, 2 pullover, 3 dress, 4 coat, 5 sandal, 6 shirt, 7 sneaker, 8 bag,
    9 ankle boot.

    Parameters
    ----------
    size : int, default 28
    train : int, optional
    data_dir : path, optional

    Examples
    --------
    >>> load_fashion_mnist(size=14).X.shape  # doctest: +SKIP
    (60000, 196)
    """

    def published() -> Arrays:
        return {name: _read_idx(fetch(file, FASHION_FILE, data_dir)) for name, file in FASHION.items()}

    return _load("fashion-mnist", FASHION_FILE, published, size, train, data_dir)


def load_cifar10(size: int = 32, train: int | None = None, *, data_dir: PathLike | None = None) -> Dataset:
    r"""Load CIFAR-10 (Krizhevsky 2009), if need be at a lower resolution.

    As in `load_mnist` either of two files is looked for: ``cifar10_jpeg.npz``, images as JPEG bytes, and the published
    ``cifar-10-binary.tar.gz``, which is downloaded otherwise. A row is first all of the red, then the green, then the
    blue, each as :math:`s \times s` block means in [0, 1].

    Parameters
    ----------
    size : {32, 16, 8}
        The side :math:`s` of the images.
    train : int, optional
    data_dir : path-like, optional
        As in `load_mnist`.

    Returns
    -------
    Dataset
        ``X`` of shape (train, 3 size²) and ``X_test`` of shape (m, 3 size²) with values in [0, 1]; labels 0 aeroplane,
        1 car, 2 bird, 3 cat, 4 deer, 5 dog, 6 frog, 7 horse, 8 ship, 9 lorry.

    Raises
    ------
    ValueError, TypeError, DataUnavailableError
        As `load_mnist`.
    ImportError
        If the images are JPEG bytes, and Pillow is not installed.

    Notes
    -----
    The layout of ``cifar10_jpeg.npz``: ``jpeg_train``, the bytes of all images one after the other, of type uint8;
    ``offset_train``, n + 1 integers, so that image i has the bytes from ``offset[i]`` to ``offset[i + 1]``;
    ``y_train``, n labels; and the same for ``test``. JPEG loses a little, so that accuracies lie a little below those
    on the published images.

    Examples
    --------
    >>> load_cifar10(size=8).X.shape  # doctest: +SKIP
    (50000, 192)
    """
    size, train = _wanted(size, train, COLOUR_SIZES)
    path = find(data_dir, CIFAR10_FILE, CIFAR10_ARCHIVE) or fetch(CIFAR10, CIFAR10_FILE, data_dir)
    arrays = _read_jpegs(path, train) if path.name == CIFAR10_FILE else _read_binary(path)
    return _dataset("cifar-10", path, arrays, size, train)


def _load(
    name: str, file: str, published: Callable[[], Arrays], size: int, train: int | None, data_dir: PathLike | None
) -> Dataset:
    """Read the user's file, or else the published data, and scale its images."""
    size, train = _wanted(size, train, SIZES)
    path = find(data_dir, file)
    arrays = published() if path is None else _read_keras(path)
    return _dataset(name, path or file, arrays, size, train)


def _wanted(size: int, train: int | None, sizes: tuple[int, ...]) -> tuple[int, int | None]:
    """Check the arguments before anything is read."""
    size = as_count(size, "size")
    if size not in sizes:
        raise ValueError(f"size must be one of {sizes}, got {size}.")
    return size, None if train is None else as_count(train, "train")


def _dataset(name: str, where: PathLike, arrays: Arrays, size: int, train: int | None) -> Dataset:
    _check_train(train, len(arrays["y_train"]), where)
    return Dataset(
        X=_pool(arrays["x_train"][:train], size),
        y=arrays["y_train"][:train].astype(np.int64),
        X_test=_pool(arrays["x_test"], size),
        y_test=arrays["y_test"].astype(np.int64),
        n_classes=10,
        name=name,
    )


def _check_train(train: int | None, available: int, where: PathLike) -> None:
    if train is not None and train > available:
        raise ValueError(f"train must be at most {available}, the rows in {where}, got {train}.")


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a file of the published layout: a header of big-endian integers, then bytes.

    The file's SHA-256 sum has been checked, so that the header can be trusted.
    """
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_keras(path: Path) -> Arrays:
    """Read and check the four arrays of the Keras layout."""
    arrays = _read_archive(path, ARRAYS)
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim != 3 or x.shape[1:] != (SIDE, SIDE) or len(x) == 0:
            raise ValueError(f"x_{part} in {path} must have shape (n, 28, 28), got {x.shape}")
        if x.dtype != np.uint8:
            raise ValueError(f"x_{part} in {path} must have type uint8, got {x.dtype}")
        _check_labels(y, len(x), f"y_{part} in {path}")
    return arrays


def _read_archive(path: Path, names: tuple[str, ...]) -> Arrays:
    """Read arrays from a file of NumPy's, never a pickle."""
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
    return arrays


def _check_labels(y: NDArray[Any], rows: int, what: str) -> None:
    if y.shape != (rows,):
        raise ValueError(f"{what} must have shape ({rows},), got {y.shape}")
    if y.dtype.kind not in "iu":
        raise ValueError(f"{what} must have an integer type, got {y.dtype}")
    if y.min() < 0 or y.max() > 9:
        raise ValueError(f"{what} must have labels from 0 to 9, got {y.min()} to {y.max()}")


def _read_jpegs(path: Path, train: int | None) -> Arrays:
    """Read colour images that are kept as JPEG bytes; of the training rows no more than are wanted."""
    stored = _read_archive(path, tuple(f"{what}_{part}" for part in CIFAR10_PARTS for what in ("jpeg", "offset", "y")))
    arrays = {}
    for part in CIFAR10_PARTS:
        stream, offset, y = (stored[f"{what}_{part}"] for what in ("jpeg", "offset", "y"))
        if stream.ndim != 1 or stream.dtype != np.uint8:
            raise ValueError(
                f"jpeg_{part} in {path} must be bytes in a row, got {stream.dtype} of shape {stream.shape}"
            )
        if offset.ndim != 1 or offset.dtype.kind not in "iu" or len(offset) < 2:
            raise ValueError(f"offset_{part} in {path} must be n + 1 integers, got {offset.dtype} {offset.shape}")
        if offset[0] != 0 or offset[-1] != len(stream) or (offset[1:] <= offset[:-1]).any():
            raise ValueError(f"offset_{part} in {path} must rise from 0 to {len(stream)}, the length of jpeg_{part}")
        _check_labels(y, len(offset) - 1, f"y_{part} in {path}")
        if part == "train":
            _check_train(train, len(y), path)
            offset = offset[: None if train is None else train + 1]
        arrays[f"x_{part}"], arrays[f"y_{part}"] = _decode(stream.tobytes(), offset, f"jpeg_{part} in {path}"), y
    return arrays


def _decode(stream: bytes, offset: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Return JPEG images as bytes of shape (n, 3, 32, 32)."""
    with needed_by("load_cifar10 needs Pillow for JPEG images, which is not installed", "demos"):
        from PIL import Image
    images = np.empty((len(offset) - 1, *COLOUR), np.uint8)
    for i, (begin, end) in enumerate(pairwise(offset)):
        try:
            with Image.open(io.BytesIO(stream[begin:end]), formats=["JPEG"]) as image:
                if image.size != COLOUR[1:] or image.mode != "RGB":
                    raise ValueError(f"it is {image.size[0]} × {image.size[1]}, {image.mode}, not 32 × 32, RGB")
                images[i] = np.asarray(image).transpose(2, 0, 1)
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(f"image {i} of {what} is not readable: {error}") from error
    return images


def _read_binary(path: Path) -> Arrays:
    """Read the published binary version: records of a label and the bytes of red, green and blue, row by row."""
    arrays = {}
    length = 1 + int(np.prod(COLOUR))
    try:
        with tarfile.open(path, "r:gz") as archive:
            for part, files in CIFAR10_PARTS.items():
                content = b"".join(_member(archive, f"{CIFAR10_FOLDER}/{file}", length) for file in files)
                records = np.frombuffer(content, np.uint8).reshape(-1, length)
                arrays[f"x_{part}"], arrays[f"y_{part}"] = records[:, 1:].reshape(-1, *COLOUR), records[:, 0]
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path} is not the binary version of CIFAR-10: {error}") from error
    for part in CIFAR10_PARTS:
        _check_labels(arrays[f"y_{part}"], len(arrays[f"x_{part}"]), f"y_{part} in {path}")
    return arrays


def _member(archive: tarfile.TarFile, name: str, length: int) -> bytes:
    """Return a file of an archive, which must hold records of this length."""
    file = archive.extractfile(name)
    content = b"" if file is None else file.read()
    if not content or len(content) % length:
        raise ValueError(f"{name} must hold records of {length} bytes, got {len(content)} bytes")
    return content


def _pool(images: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Return the block means of bytes, scaled to [0, 1], one flattened image per row; colours come before pixels."""
    side = images.shape[-1]
    block = side // size
    blocks = images.reshape(*images.shape[:-2], size, block, size, block)
    pooled: NDArray[np.float64] = blocks.sum(axis=(-3, -1), dtype=np.float64)
    pooled /= 255.0 * block**2
    return pooled.reshape(len(images), -1)
