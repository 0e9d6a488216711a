"""Colours (Okabe and Ito's, which colour-blind readers can tell apart), and the page around the plots."""

from __future__ import annotations

from .model import DELTA, Verdict
from .words import EDGE_NAMES

INK = "#1b1b1b"
GREY = "#767676"
SERVER = "#000000"
CLIENTS = ("#0072B2", "#D55E00")
EDGES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Broadcast, natural gradient, gather, dual map."""

VERDICTS = {
    Verdict.CONVERGED: ("✓", "#009E73", "#e3f4ee"),
    Verdict.OPEN: ("…", "#B07A00", "#fdf3dc"),
    Verdict.FAILED: ("✕", "#D55E00", "#fcebdf"),
    Verdict.INVALID: ("?", "#595959", "#ededed"),
}
"""Sign, edge and ground of the status message; the sign tells the same as the colour."""


def status_html(verdict: Verdict, message: str, notes: tuple[str, ...]) -> str:
    """The status message."""
    sign, edge, ground = VERDICTS[verdict]
    small = f'<div style="color:#4a4a4a;font-size:13px;margin-top:3px">{" ".join(notes)}</div>' if notes else ""
    return (
        f'<div role="status" data-verdict="{verdict.name}" style="display:flex;gap:12px;align-items:center;'
        f"min-height:84px;box-sizing:border-box;"
        f"background:{ground};border-left:6px solid {edge};border-radius:6px;padding:9px 14px;font-size:15px;"
        f'line-height:1.35;color:{INK}"><span style="color:{edge};font-weight:700;font-size:17px">{sign}</span>'
        f"<div><div>{message}</div>{small}</div></div>"
    )


def _swatch(colour: str, text: str, style: str = "solid") -> str:
    return f'<span class="key"><i style="border-top:3px {style} {colour}"></i>{text}</span>'


_BOUNDARY_KEYS = "".join(
    [
        _swatch(SERVER, "server"),
        _swatch(CLIENTS[0], "client 1"),
        _swatch(CLIENTS[1], "client 2"),
        _swatch(GREY, "pooled", "dashed"),
        '<span class="key">○ class 0 &nbsp;▲ class 1 &nbsp;★ outlier: drag it &nbsp;▒ less than 95 % sure</span>',
    ]
)
_EDGE_KEYS = "".join(
    _swatch(colour, name, style)
    for colour, name, style in zip(EDGES, EDGE_NAMES, ("solid", "dashed", "solid", "dotted"), strict=True)
)

TEMPLATE = (
    """
{% extends base %}
{% block preamble %}
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<style>
  html, body { background: #f5f5f2; height: auto; display: block; }
  body { font-family: system-ui, "Helvetica Neue", Arial, sans-serif; color: #1b1b1b; margin: 0; }
  header { padding: 12px 20px 8px; display: flex; gap: 6px 16px; align-items: baseline; flex-wrap: wrap; }
  h1 { font-size: 20px; margin: 0; }
  header p { margin: 0; color: #4a4a4a; font-size: 14px; }
  main { display: grid; grid-template-columns: 292px minmax(0, 1fr); gap: 12px; padding: 0 20px 16px; }
  .card { background: #fff; border: 1px solid #dcdcd6; border-radius: 8px; padding: 10px 12px; min-width: 0; }
  .top { display: grid; grid-template-columns: minmax(0, 1fr) 300px; gap: 12px; align-items: stretch; }
  .replay { display: flex; align-items: center; }
  .plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; margin-top: 12px; }
  .plots h2 { font-size: 14px; margin: 0 0 2px; display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: baseline; }
  .plot { height: max(285px, calc((100vh - 282px) / 2)); }
  .about { font-size: 12px; line-height: 1.4; color: #5a5a5a; margin: 10px 4px 2px; }
  .key { font-weight: 400; font-size: 12px; color: #3a3a3a; white-space: nowrap; }
  .key i { display: inline-block; width: 17px; height: 0; margin-right: 4px; vertical-align: 4px; }
  @media (max-width: 1000px) {
    main { grid-template-columns: minmax(0, 1fr); padding: 0 10px 16px; }
    header { padding: 10px 12px 8px; }
    .top { grid-template-columns: minmax(0, 1fr); }
    .plot { height: 300px; }
  }
  @media (max-width: 720px) {
    .plots { grid-template-columns: minmax(0, 1fr); }
  }
</style>
{% endblock %}
{% block contents %}
<header>
  <h1>ADMM and variational Bayes, one loop</h1>
  <p>Two clients and a server agree on a linear classifier without pooling rows. Turn a knob; every view is of the same
  run.</p>
</header>
<main>
  <aside class="card">{{ embed(roots.controls) }}
    <p class="about">24 points and an outlier of client 1; logistic loss; prior N(0, I/δ), δ = """
    + f"{DELTA:g}"
    + """. Point
    families evaluate the loss at the mean, all others integrate it exactly.</p></aside>
  <section class="results">
    <div class="top">{{ embed(roots.status) }}<div class="card replay">{{ embed(roots.replay) }}</div></div>
    <div class="plots">
      <div class="card"><h2>The duality circuit <span class="key">(Eq. 13): dashed = open, thick ✓ = closed</span></h2>
        <div class="plot">{{ embed(roots.circuit) }}</div></div>
      <div class="card"><h2>Decision boundaries """
    + _BOUNDARY_KEYS
    + """</h2><div class="plot">{{ embed(roots.boundary) }}</div></div>
      <div class="card"><h2>Objective above the pooled optimum</h2>
        <div class="plot">{{ embed(roots.gap) }}</div></div>
      <div class="card"><h2>Edge residuals """
    + _EDGE_KEYS
    + """</h2><div class="plot">{{ embed(roots.residuals) }}</div></div>
    </div>
  </section>
</main>
{% endblock %}
"""
)
"""Jinja template of the page; nothing in it is fetched from elsewhere."""
