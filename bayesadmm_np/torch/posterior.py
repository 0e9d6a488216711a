"""Posterior of a run: the Gaussian over a network's parameters, its samples and predictions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .._archive import Archive, content_of
from .._validation import as_count
from .likelihoods import Likelihood, mean_of, most_probable
from .network import Network, Rows, as_tensor, placed
from .randomness import stream
from .state import read_tensor
from .stream import Stream
from .team import read_device

KIND = "posterior of a network"
Kind = Literal["variational", "laplace", "point"]
SAMPLES = 32
Inputs: TypeAlias = Tensor | Dataset[Any] | DataLoader[Any]


@dataclass(frozen=True, eq=False)
class NetworkPosterior:
    """Gaussian q = N(m, diag 1/s) over the parameters of a network; `Result.posterior` makes it.

    Attributes
    ----------
    mean : Tensor, shape (P,)
        m, in the order of the model's parameters.
    precision : Tensor, shape (P,) or (1,)
        s; one number where the method does not learn it.
    kind : {'variational', 'laplace', 'point'}
        Origin of s: fitted with m; the curvature at m (FedLap-Cov); or chosen, so that q is only the point m.

    Examples
    --------
    >>> import torch
    >>> from bayesadmm_np.torch import IVONADMM, MLP, Rows, run
    >>> X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> rows = Rows(X, (X[:, 0] > 0).long())
    >>> _ = torch.manual_seed(0)
    >>> posterior = run(IVONADMM(), [rows], MLP((2, 2)), rounds=2).posterior
    >>> posterior.predict_proba(X[:3], samples=100).shape, posterior.predict(X[:3]).dtype
    (torch.Size([3, 2]), torch.int64)
    """

    mean: Tensor
    precision: Tensor
    kind: Kind
    network: Network = field(repr=False)
    buffers: dict[str, Tensor] = field(repr=False)

    def __repr__(self) -> str:
        return f"NetworkPosterior({self.kind}, {self.mean.numel()} parameters)"

    def model(self) -> nn.Module:
        """Return a copy of the model with its parameters set to m and its statistics to the clients' mean."""
        return self.network.module_at(self.mean, self.buffers)

    def sample(self, n: int = 1, seed: int = 0) -> Tensor:
        """Draw parameters, flat, in the order of the model's; shape (n, P).

        Parameters
        ----------
        n : int, default 1
        seed : int, default 0

        Raises
        ------
        ValueError
            When the precision was not learned, or an argument is out of range.
        """
        source = stream(self.mean.device, "posterior", as_count(seed, "seed", minimum=0))
        return torch.stack([self.draw(source) for _ in range(as_count(n, "n"))])

    def draw(self, source: torch.Generator) -> Tensor:
        """Return the generator's next sample, shape (P,)."""
        if self.kind == "point":
            raise ValueError("samples need a method that learns a precision, such as IVONADMM; samples=0 is the mean.")
        noise = torch.empty_like(self.mean).normal_(generator=source)
        return noise.mul_(self.precision.rsqrt()).add_(self.mean)

    def predict_proba(self, X: Inputs, samples: int | None = None, *, seed: int = 0) -> Tensor:
        """Return class probabilities, averaged over samples of q, in float64; shape (n, C).

        A Laplace approximation puts a sample θ into the linearisation f(x, m) + J(x, m)(θ − m) (Immer et al. 2021),
        because samples in the network may predict at chance. Even so its samples made predictions worse than those at
        the mean wherever both were measured (docs/deep_methods.md), so that it predicts at the mean unless asked.

        Parameters
        ----------
        X : Tensor or array, shape (n, ...), or Dataset or DataLoader
            Inputs; of a Dataset those of its pairs (x, y), a thousand at a time.
        samples : int, optional
            0 for the prediction at m; default 32 where `kind` is 'variational', and 0 elsewhere.
        seed : int, default 0

        Raises
        ------
        ValueError
            When an argument is out of range, no precision was learned, or observations are no classes.
        """
        return mean_of(map(self.network.likelihood.probabilities, self._predicted(X, samples, seed)))

    def _predicted(self, X: Inputs, samples: int | None, seed: int) -> Iterator[Tensor]:
        """Return outputs at samples or at the mean; arguments as in `predict_proba`."""
        count = (SAMPLES if self.kind == "variational" else 0) if samples is None else samples
        as_count(seed, "seed", minimum=0)
        as_count(count, "samples", minimum=0)

        def predicted(X: Tensor) -> Iterator[Tensor]:
            self.network.tried(self.mean, X[:1], self.buffers, "X")
            if not count:
                return iter([self.network.predict(self.mean, X, self.buffers)])
            return self.outputs(X, count, stream(self.mean.device, "posterior", seed))

        if isinstance(X, Dataset | DataLoader):
            return by_pieces(Stream.of(X), lambda rows: predicted(self._moved(rows.X)))
        return predicted(self._moved(X))

    def outputs(self, X: Tensor, samples: int, source: torch.Generator) -> Iterator[Tensor]:
        """Yield the network's outputs at samples of a generator; `X` is where the network is."""
        for _ in range(samples):
            theta = self.draw(source)
            if self.kind == "laplace":
                yield self.network.predict_linear(self.mean, theta - self.mean, X, self.buffers)
            else:
                yield self.network.predict(theta, X, self.buffers)

    def predict(
        self, X: Inputs, samples: int | None = None, *, seed: int = 0, return_std: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the most probable classes, shape (n,), or mean outputs for numbers, shape (n, C) or (n,).

        Parameters
        ----------
        X, samples, seed
            As in `predict_proba`.
        return_std : bool, default False
            Whether to return also the standard deviations of an observation: samples, and with `Gaussian` the noise.
            With samples=0, the default of a Laplace approximation, the noise alone.

        Raises
        ------
        ValueError
            When an argument is out of range, no precision was learned, or deviations of classes are asked for.
        """
        likelihood = self.network.likelihood
        if likelihood.has_classes:
            if return_std:
                raise ValueError("return_std needs numbers, got classes: see predict_proba.")
            return most_probable(self.predict_proba(X, samples, seed=seed))
        each = torch.stack([f.double() for f in self._predicted(X, samples, seed)])
        variance = each.var(dim=0, correction=0) + likelihood.noise()
        mean, deviation = (x[:, 0] if x.shape[1] == 1 else x for x in (each.mean(dim=0), variance.sqrt()))
        return (mean, deviation) if return_std else mean

    def _moved(self, X: Tensor) -> Tensor:
        X = as_tensor(X, "X")
        if X.ndim < 2:
            raise ValueError(f"X must have shape (n, ...), got {tuple(X.shape)}.")
        return placed(X, self.mean)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write m, s and the statistics to a file (arrays with JSON beside, no pickle)."""
        arrays = {"mean": self.mean, "precision": self.precision}
        arrays |= {f"buffer/{name}": value for name, value in self.buffers.items()}
        header = {"kind": self.kind, "model": self.network.signature}
        Archive(KIND, header, {name: value.cpu().numpy() for name, value in arrays.items()}).write(path, limit=None)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        device: str | torch.device = "cpu",
        likelihood: Likelihood | None = None,
    ) -> NetworkPosterior:
        """Read a file of `save`; ArchiveError if it is damaged or of another model, FileNotFoundError without a file.

        `model` has the run's layers, and its parameters are not used; `likelihood` is the run's.
        """
        network, archive = Network(model, read_device(device), likelihood), Archive.read(path, limit=None)
        names = [f"buffer/{name}" for name in network.buffers]
        archive.require(KIND, {"mean", "precision", *names})
        with content_of(archive, "the posterior of a network"):
            kind, found = archive.header["kind"], archive.header["model"]
            if kind not in get_args(Kind):
                raise archive.refusal("kind", " or ".join(get_args(Kind)), kind)
            if found != network.signature:
                raise archive.refusal("model", f"the signature of this model, {network.signature}", found)
            mean = read_tensor(archive, "mean", network.start)
            precision = read_tensor(archive, "precision", network.start[:1] if kind == "point" else network.start)
            buffers = {name: read_tensor(archive, f"buffer/{name}", own) for name, own in network.buffers.items()}
        return cls(mean, precision, kind, network, buffers)


def by_pieces(rows: Rows | Stream, predicted: Callable[[Rows], Iterator[Tensor]]) -> Iterator[Tensor]:
    """Yield the outputs for all rows at each sample; `predicted` yields those of a piece, and starts its generator."""
    if isinstance(rows, Rows):
        return predicted(rows)
    return map(torch.cat, zip(*(list(predicted(piece)) for piece in rows.pieces()), strict=True))
