"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the published binary versions, or for CIFAR-10 images as JPEG bytes.

`cifar10_jpeg.npz` holds `jpeg_train`, the bytes of all images one after the other (uint8); `offset_train`, n + 1
integers, so that image i has the bytes from offset[i] to offset[i + 1]; `y_train`, n labels; and the same for `test`.
JPEG loses a little, so that accuracies lie a little below those on the published images.
"""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadmm_np.data import Dataset
from bayesadmm_np.data.files import Download, fetch, find

JPEGS, ARCHIVE = "cifar10_jpeg.npz", "cifar-10-binary.tar.gz"
PUBLISHED = Download(
    ARCHIVE,
    f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
PARTS = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
FINE = "cifar-100-binary.tar.gz"
PUBLISHED_FINE = Download(FINE, f"https://www.cs.toronto.edu/~kriz/{FINE}", None)
FINE_PARTS = {"train": ["train.bin"], "test": ["test.bin"]}
SHAPE = (3, 32, 32)


def load_cifar10(data_dir: str | Path | None = None) -> Dataset:
    """Load the images as rows of 3072 numbers in [0, 1]: all of the red, then the green, then the blue.

    Labels are 0 aeroplane, 1 car, 2 bird, 3 cat, 4 deer, 5 dog, 6 frog, 7 horse, 8 ship, 9 lorry.
    """
    path = find(data_dir, JPEGS, ARCHIVE) or fetch(PUBLISHED, JPEGS, data_dir)
    return _dataset(_read_jpegs(path) if path.name == JPEGS else _read_binary(path), 10, "cifar-10")


def load_cifar100(data_dir: str | Path | None = None) -> Dataset:
    """Load the images as `load_cifar10` does, with their 100 fine labels."""
    path = find(data_dir, FINE) or fetch(PUBLISHED_FINE, FINE, data_dir)
    return _dataset(_read_binary(path, "cifar-100-binary", FINE_PARTS, labels=2), 100, "cifar-100")


def _dataset(arrays: list[tuple[NDArray[np.uint8], NDArray[Any]]], classes: int, name: str) -> Dataset:
    (X, y), (X_test, y_test) = ((images.reshape(len(y), -1) / 255.0, y.astype(np.int64)) for images, y in arrays)
    return Dataset(X, y, X_test, y_test, classes, name)


def _read_jpegs(path: Path) -> list[tuple[NDArray[np.uint8], NDArray[Any]]]:
    from PIL import Image

    found = []
    with np.load(path, allow_pickle=False) as stored:
        for part in PARTS:
            stream, offset = stored[f"jpeg_{part}"].tobytes(), stored[f"offset_{part}"]
            images = np.empty((len(offset) - 1, *SHAPE), np.uint8)
            for i, (begin, end) in enumerate(pairwise(offset)):
                with Image.open(io.BytesIO(stream[begin:end]), formats=["JPEG"]) as image:
                    images[i] = np.asarray(image).transpose(2, 0, 1)
            found.append((images, stored[f"y_{part}"]))
    return found


def _read_binary(
    path: Path, folder: str = "cifar-10-batches-bin", parts: dict[str, list[str]] = PARTS, labels: int = 1
) -> list[tuple[NDArray[np.uint8], NDArray[Any]]]:
    """Read records of `labels`, the last of which counts, and the bytes of red, green and blue, row by row.

    The pickled version is never read.
    """
    found = []
    with tarfile.open(path, "r:gz") as archive:
        for files in parts.values():
            members = [archive.extractfile(f"{folder}/{file}") for file in files]
            content = b"".join(member.read() for member in members if member is not None)
            records = np.frombuffer(content, np.uint8).reshape(-1, labels + int(np.prod(SHAPE)))
            found.append((records[:, labels:].reshape(-1, *SHAPE), records[:, labels - 1]))
    return found
