"""Files of counts of predictions, which sites send for an evaluation: no row and no prediction of one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .._archive import Archive, content_of
from .._fields import Field, read_fields
from .._text import word
from .evaluation import EDGES, Evaluation, SiteCounts, as_counts
from .fitted import FittedGLM

DIGITS = 16
MOST_ROWS = 1 << 40


@dataclass(frozen=True)
class Header:
    """The header: site, digest of the model, and the class that is counted as event."""

    site: str
    run: str
    event: str


def digest_of(model: FittedGLM) -> str:
    """Return a digest of what a model predicts by."""
    said = repr((model.title, model.classes, model.coefficient_names, model.inference)).encode()
    vectors = model.posterior.natural.to_vector(), model.columns.centre, model.columns.scale
    return hashlib.sha256(b"".join([said, *(vector.tobytes() for vector in vectors)])).hexdigest()[:DIGITS]


def pack_counts(site: str, model: FittedGLM, found: SiteCounts) -> Archive:
    """Return the file of coarse counts of the predictions of a model of two classes."""
    header = Header(site, digest_of(model), word(model.classes[1]))
    spans = np.array(found.spans, dtype=np.float64).reshape(-1, 5)
    return Archive("evaluation", asdict(header), {"spans": spans}, f"counts of {site}")


def read_counts(paths: Sequence[str | os.PathLike[str]], model: FittedGLM) -> Evaluation:
    """Read files of counts; an ArchiveError where one is damaged, of another model, or of a site twice."""
    found: dict[str, SiteCounts] = {}
    for path in paths:
        archive = Archive.read(path)
        header = archive.header_as("evaluation", Header)
        if header.run != digest_of(model):
            raise archive.refusal("run", f"{digest_of(model)}, of this model (it is of another)", header.run)
        if header.site in found:
            raise archive.refusal("site", f"another than that of the files before, {', '.join(found)}", header.site)
        found[header.site] = _counts(archive)
    return Evaluation(found, word(model.classes[1]))


def _counts(archive: Archive) -> SiteCounts:
    with content_of(archive, "counts"):
        spans = read_fields({"spans": Field("n 5")}, archive.arrays)["spans"]
    first, last, events, others, mean = spans.T
    is_right = (
        len(spans) > 0
        and (spans == np.floor(spans)).all()
        and ((spans >= 0) & (spans < MOST_ROWS)).all()
        and ((first <= mean) & (mean <= last)).all()
        and (first[1:] > last[:-1]).all()
        and last[-1] <= EDGES.size
        and (events + others > 0).all()
    )
    if not is_right:
        raise archive.refusal("spans", "rising bins, rows of two classes, and a bin between", spans[:1].tolist())
    return as_counts([tuple(map(int, span)) for span in spans])
