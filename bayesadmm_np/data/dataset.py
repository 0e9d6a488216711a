"""Data sets, as the loaders return them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with class labels, and perhaps a test set.

    Parameters
    ----------
    X : ndarray of float64, shape (n, d)
    y : ndarray of int64, shape (n,)
        Labels 0, …, C − 1.
    X_test : ndarray of float64, shape (m, d), or None
    y_test : ndarray of int64, shape (m,), or None
    n_classes : int
        Number of classes C.
    name : str
    feature_names : tuple of str, default ()
        Names of the columns; empty for pixels.
    site : ndarray of str, shape (n,), optional
        Site of each row, where the rows of several sites were stacked.

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
    feature_names: tuple[str, ...] = ()
    site: NDArray[np.str_] | None = None

    def __repr__(self) -> str:
        test = None if self.X_test is None else self.X_test.shape
        return f"Dataset({self.name!r}, X={self.X.shape}, X_test={test}, n_classes={self.n_classes})"


@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Data that came in several parts, such as one table per hospital.

    Parameters
    ----------
    sites : tuple of Dataset
        Data sets named after their sites.
    name : str

    Raises
    ------
    ValueError
        When there is no site, or columns, classes or the presence of a test set differ between sites.

    Examples
    --------
    >>> import numpy as np
    >>> part = Dataset(np.ones((3, 2)), np.array([0, 1, 1]), None, None, 2, "Basel")
    >>> other = Dataset(np.zeros((1, 2)), np.array([1]), None, None, 2, "Zurich")
    >>> both = FederatedDataset((part, other), "toy")
    >>> both
    FederatedDataset('toy', sites={'Basel': 3, 'Zurich': 1})
    >>> both.pooled().site
    array(['Basel', 'Basel', 'Basel', 'Zurich'], dtype='<U6')
    """

    sites: tuple[Dataset, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.sites:
            raise ValueError("sites must have at least one Dataset, got none.")
        first = self.sites[0]
        for part in self.sites[1:]:
            if _layout(part) != _layout(first):
                raise ValueError(
                    "sites must agree in columns, names, classes and whether there is a test set; "
                    f"{part.name!r} differs from {first.name!r}."
                )

    def __repr__(self) -> str:
        return f"FederatedDataset({self.name!r}, sites={ {part.name: len(part.X) for part in self.sites} })"

    @property
    def site_names(self) -> tuple[str, ...]:
        """The names of the sites, in their order."""
        return tuple(part.name for part in self.sites)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns, the same at every site."""
        return self.sites[0].feature_names

    def pooled(self) -> Dataset:
        """Stack the rows of all sites as they are; `site` has the site of each."""
        first = self.sites[0]
        X_test = [part.X_test for part in self.sites if part.X_test is not None]
        y_test = [part.y_test for part in self.sites if part.y_test is not None]
        return Dataset(
            X=np.concatenate([part.X for part in self.sites]),
            y=np.concatenate([part.y for part in self.sites]),
            X_test=np.concatenate(X_test) if X_test else None,
            y_test=np.concatenate(y_test) if y_test else None,
            n_classes=first.n_classes,
            name=self.name,
            feature_names=first.feature_names,
            site=np.repeat(self.site_names, [len(part.X) for part in self.sites]),
        )


def _layout(part: Dataset) -> tuple[object, ...]:
    return part.X.shape[1:], part.feature_names, part.n_classes, part.X_test is None
