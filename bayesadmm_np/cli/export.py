"""`bayesadmm export`: the model file of a run by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ._options import option
from ._terminal import exit_code, note, require_out


def export(
    folder: Annotated[Path, option("Folder of bayesadmm server init.", name="DIR")],
    /,
    *,
    out: Annotated[Path, option("Model file to write.", "FILE.npz")],
    target: Annotated[str | None, option("Column that is predicted, where the sites did not say it.", "COLUMN")] = None,
    noise_variance: Annotated[
        float, option("Noise variance of linear regression, where the run has not asked its sites for it.")
    ] = 1.0,
) -> int:
    """Make a model file of a run by files that has ended.

    DIR is the server's folder. Sites that a program of yours made may not say what the
    target is called, nor a known noise variance: say it here, so that predict and
    certify know.

    Examples of use:
      bayesadmm export run --out model.npz
      bayesadmm summary model.npz

    Exit codes: 0 written, and the certificate holds; 1 written, and it does not;
    2 the command or the run were refused; 4 written, and the likelihood has no maximum.
    """
    from ..estimators.model_file import save_model
    from ._run_files import model_of_run

    require_out(out, folder.glob("reply-*.npz"), folder)
    model = model_of_run(folder, target, noise_variance)
    save_model(out, model)
    note(f"model written to {out}.")
    return exit_code(model)
