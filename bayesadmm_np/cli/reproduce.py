"""`bayesadmm reproduce`: the papers' figures, and whether their claims hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .._errors import ArgumentError
from ._options import NoProgress, option
from ._terminal import needs, require_writable, sentence, stop

FIGURES = ("3", "4", "5a", "5b", "5c", "heart", "credit")
DATASETS = ("digits", "mnist", "fashion")


def reproduce(
    *,
    only: Annotated[
        tuple[str, ...],
        option("Draw only this figure; repeat it for several. Default: 3, 4, 5a and 5b.", "FIGURE", choices=FIGURES),
    ] = (),
    dataset: Annotated[
        str,
        option(
            "Images of figures 5a, 5b and 5c. The digits come with scikit-learn; the others, fashion for 5c only, are "
            "read from the folder that BAYESADMM_DATA names, or downloaded, and take much longer.",
            choices=DATASETS,
        ),
    ] = "digits",
    out: Annotated[Path, option("Folder to write to; created if it does not exist.", "DIR")] = Path("figures"),
    force: Annotated[bool, option("Write every file, even if no number has changed.")] = False,
    no_progress: NoProgress = False,
) -> int:
    """Draw the paper's figures from runs of this library, and check what they claim.

      3   The two duality circuits, ADMM's and the Bayesian one, with what flows
          along each edge and by how much its equation is violated.
      4   A single outlier slows ADMM down, and not BayesADMM, with or without its
          uncertainty: distance of the decision boundary by round, and 20 draws.
      5a  Ridge regression: BayesADMM is exact after one round.
      5b  Multiclass logistic regression over five clients: distance from the
          pooled answer per round, for two families, and the same at the mean.

    Drawn only with --only, because it needs PyTorch (pip install -e ".[torch]"):
      5c  IVON-ADMM against IVON-PVI on a small neural network over ten clients,
          both tuned with the same budget.

    Drawn only with --only, from tables that do not come with the library (they are
    read from the folder named by BAYESADMM_DATA, or downloaded):
      heart   Four hospitals: federated coefficients with error bars are the
              pooled ones; scores, calibration, rounds and floats sent.
      credit  Ten clients: accuracies beside those of the FedLap paper.

    Every figure is written as SVG and PNG, every plotted number to results.json
    beside them (on demand: fig5c_deep.json, heart_disease.json, credit_approval.json).
    The summary gives each claim a mark and what was measured: ✓ it holds, ✗ it does not,
    ≠ paper it holds and the paper finds something else. The results files state their
    numbers' accuracy. A figure whose numbers are still the same to that accuracy is left
    as it is; otherwise the summary says which number has changed. Pictures are not
    compared: --force draws them anew.

    Examples of use:
      bayesadmm reproduce
      bayesadmm reproduce --only 4 --out somewhere
      bayesadmm reproduce --only 5a --only 5b --dataset mnist
      bayesadmm reproduce --only 5c --dataset fashion
      bayesadmm reproduce --only heart

    Exit codes: 0 all is well, 1 a claim does not hold or a file is missing or damaged,
    2 the command was not understood or an optional package is missing.
    """
    require_writable(out)
    with needs("demos"):
        from ..demos.reproduce import reproduce as draw
    try:
        return 0 if draw(only, dataset, out, not no_progress, force) else 1
    except (ImportError, ArgumentError):  # of scikit-learn, by the loader of the digits; of a data set
        raise
    except (OSError, ValueError) as error:
        stop(f"bayesadmm reproduce: {sentence(error) if isinstance(error, OSError) else error}", 1)
    except KeyboardInterrupt:
        stop(f"bayesadmm reproduce: interrupted; figures that were finished are in {out}.", 130)
