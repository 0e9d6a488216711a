"""`bayesadmm export`: the model file of a run by files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ._options import option
from ._terminal import Refused, exit_code, note, require_out


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
    from .._validation import as_positive
    from ..estimators.model_file import save_model
    from ..federation import final_result, load_server
    from ._run_files import ended_model

    require_out(out, folder.glob("reply-*.npz"), folder)
    server = load_server(folder)
    if server.outcome is None:
        raise Refused(f"the run in {folder} has not ended: it waits for broadcast {server.number} to be answered.")
    agreed: Any = getattr(server.spec, "agreement", None)
    if target is None and agreed is None:
        raise Refused("--target must name the column that is predicted.")
    if None not in (target, agreed) and target != agreed.target:
        raise Refused(f"--target: the sites agreed on {agreed.target!r}, got {target!r}.")
    noise = as_positive(noise_variance, "--noise-variance")
    if server.outcome.certificate is None:
        raise Refused(f"the run in {folder} ended without the sums of all sites: {server.outcome.message}")
    model = ended_model(final_result(server.broadcast(), server), server, target or "y", noise)
    save_model(out, model)
    note(f"model written to {out}.")
    return exit_code(model)
