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
    target: Annotated[str | None, option("Name of the target, if the sites did not send it.", "COLUMN")] = None,
    noise_variance: Annotated[
        float, option("Noise variance of linear regression, if the run has not asked the sites for it.")
    ] = 1.0,
) -> int:
    """Write the model file of a run by files that has ended.

    DIR is the folder of the server. Sites made by a program of your own may not send
    the name of the target, or a known noise variance. Give them here, so that predict
    and certify know them.

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
