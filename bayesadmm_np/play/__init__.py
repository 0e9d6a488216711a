"""A small local page on which every knob of the loop is a slider: `bayesadmm play`.

`model.py` turns settings into numbers and sentences, `views.py` draws them, `page.py` connects both to the controls.
Only the last two need Bokeh.
"""

from __future__ import annotations

from importlib.util import find_spec

from .._errors import installing

__all__ = ["serve"]


def serve(port: int = 8765, open_browser: bool = True) -> None:
    """Serve the page on 127.0.0.1 until interrupted.

    Parameters
    ----------
    port : int, default 8765
        0 takes a free one.
    open_browser : bool, default True
        Whether to open the page in the default browser.

    Raises
    ------
    ImportError
        When Bokeh is not installed.
    OSError
        When the port is taken.

    Examples
    --------
    >>> from bayesadmm_np.play import serve
    >>> serve(port=8766, open_browser=False)  # doctest: +SKIP
    bayesadmm play: http://127.0.0.1:8766/ (Ctrl+C ends it)
    """
    if find_spec("bokeh") is None:
        raise ImportError(f"the interactive page needs Bokeh: {installing('play')}.")
    from .page import make_server

    try:
        server = make_server(port)
    except OSError as error:
        raise OSError(f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): choose another --port.") from error
    print(f"bayesadmm play: http://127.0.0.1:{server.port}/ (Ctrl+C ends it)", flush=True)
    if open_browser:
        server.io_loop.add_callback(server.show, "/")
    try:
        server.run_until_shutdown()
    except KeyboardInterrupt:
        server.stop()
