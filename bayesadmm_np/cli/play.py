"""`bayesadmm play`: the page with sliders."""

from __future__ import annotations

from typing import Annotated

from ._options import option, within
from ._terminal import stop


def play(
    *,
    port: Annotated[int, option("Port on 127.0.0.1; 0 takes any free port.", check=within(0, 65536))] = 8765,
    no_browser: Annotated[bool, option("Open no browser.")] = False,
) -> None:
    """Open a local page with sliders for ρ, γ, family, method, the outlier and the label skew.

    Every change redraws the circuit, the decision boundary, the objective and the
    residuals. The page is served on 127.0.0.1 only and needs no network. Stop it with Ctrl-C.
    Needs bokeh: pip install -e ".[play]" in the clone.
    """
    from ..play import serve

    try:
        serve(port, not no_browser)
    except OSError as error:
        stop(f"bayesadmm play: {error}", 1)
