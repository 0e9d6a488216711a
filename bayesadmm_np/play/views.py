"""The four views; each draws one round of an `Outcome`."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models.annotations.geometry import Span
from bokeh.models.annotations.labels import Label
from bokeh.models.ranges import Range1d
from bokeh.models.sources import ColumnDataSource
from bokeh.models.tools import PointDrawTool
from bokeh.plotting import contour, figure

from .._validation import Array
from .model import TOL, Outcome
from .scene import BOX, Belief, boundary_segment, sign_certainty
from .style import CLIENTS, EDGES, GREY, INK, SERVER
from .words import EDGE_NAMES, number

Figure = Any
FLOOR = 1e-16
"""Residuals below this are rounding, and zero has no logarithm: both are drawn at this height."""
CERTAIN = 1.645
"""Between ±this many standard deviations the posterior is less than 95 % sure of the side."""


def _bare(name: str, **options: Any) -> Figure:
    fig = figure(name=name, sizing_mode="stretch_both", toolbar_location=None, min_border=6, **options)
    fig.outline_line_color = None
    fig.grid.grid_line_color = "#e6e6e2"
    return fig


class CircuitView:
    """The four corners and edges of the circuit, with the residual of each edge in one round."""

    # server above, clients below; dual coordinates on the left, expectation coordinates on the right
    CORNERS = (
        *(("λ_g", "server, dual", 1.7, 6.2), ("μ_g", "server, primal", 8.3, 6.2)),
        *(("η_k", "clients' sites", 1.7, 1.8), ("μ_k", "clients, primal", 8.3, 1.8)),
    )
    # start, end (x0, y0, x1, y1), and where the two lines of text stand, in the order of EDGE_NAMES
    ARROWS = ((8.3, 5.3, 8.3, 2.75), (7.0, 1.8, 3.1, 1.8), (1.7, 2.7, 1.7, 5.25), (3.0, 6.2, 6.9, 6.2))
    TEXTS = ((8.05, 3.55, "right"), (5.0, 2.05, "center"), (1.95, 3.55, "left"), (5.0, 6.45, "center"))
    # column, offset of its line in pixels, weight, colour, size
    LINES = (
        ("name", -36, "bold", INK, "13px"),
        ("value", -19, "bold", "colour", "15px"),
        ("equation", -2, "normal", GREY, "12px"),
    )
    EQUATIONS = ("μ_k = μ_g", "η_k = −∇E[ℓ_k]", "λ_g = η₀ + Σ η_k", "μ_g = ∇A(λ_g)")

    def __init__(self) -> None:
        self.figure = _bare("circuit", x_range=Range1d(start=0, end=10), y_range=Range1d(start=0.6, end=7.9), tools="")
        self.figure.axis.visible = False
        self.figure.grid.visible = False
        grounds = ["#f1f1ed", "#f1f1ed", "#ffffff", "#ffffff"]
        symbols, roles, x, y = map(list, zip(*self.CORNERS, strict=True))
        self.figure.rect(x, y, width=2.5, height=1.7, fill_color=grounds, line_color=INK, border_radius=10)
        self._write(x, np.array(y) + 0.12, symbols, "bottom", "19px")
        self._write(x, np.array(y) - 0.12, roles, "top", "11.5px", text_color=GREY)
        ends = dict(zip(("x0", "y0", "x1", "y1"), map(list, zip(*self.ARROWS, strict=True)), strict=True))
        angles = [np.pi, np.pi / 2, 0.0, -np.pi / 2]
        looks = {"angle": angles, "colour": list(EDGES), "width": [2.0] * 4, "dash": ["dashed"] * 4}
        self._arrows = ColumnDataSource({**ends, **looks})
        self.figure.segment(
            "x0", "y0", "x1", "y1", source=self._arrows, line_color="colour", line_width="width", line_dash="dash"
        )
        self.figure.scatter("x1", "y1", marker="triangle", size=14, angle="angle", color="colour", source=self._arrows)
        x, y, align = map(list, zip(*self.TEXTS, strict=True))
        lines = {"name": list(EDGE_NAMES), "value": [""] * 4, "equation": list(self.EQUATIONS)}
        self._texts = ColumnDataSource({"x": x, "y": y, "align": align, "colour": list(EDGES), **lines})
        for name, y_offset, style, colour, size in self.LINES:
            looks = {"text_font_style": style, "text_color": colour, "text_align": "align", "y_offset": y_offset}
            self._write("x", "y", name, "alphabetic", size, source=self._texts, **looks)
        self._centre = ColumnDataSource({"text": [""], "below": [""]})
        self._write(5.0, 4.15, "text", "bottom", "15px", source=self._centre, text_color=INK)
        self._write(5.0, 4.15, "below", "top", "12px", source=self._centre, text_color=GREY)

    def _write(self, x: Any, y: Any, text: Any, baseline: str, size: str, **looks: Any) -> None:
        looks = {"text_align": "center", **looks}
        self.figure.text(x, y, text, text_baseline=baseline, text_font_size=size, **looks)

    def show(self, outcome: Outcome, at: int) -> None:
        """Draw one round."""
        known = outcome.residuals[at - 1] if 0 < at <= len(outcome.residuals) else np.full(4, np.nan)
        closed = [bool(value <= TOL) for value in known]
        values = [
            f"{number(v)}{' ✓' if c else ''}" if np.isfinite(v) else "–" for v, c in zip(known, closed, strict=True)
        ]
        self._texts.data = {**self._texts.data, "value": values}
        self._arrows.data = {
            **self._arrows.data,
            "width": [4.0 if c else 2.0 for c in closed],
            "dash": ["solid" if c else "dashed" for c in closed],
            "colour": [e if np.isfinite(v) else "#b5b5b5" for e, v in zip(EDGES, known, strict=True)],
        }
        below = ""
        if at and outcome.frames:
            frame = outcome.frames[at]
            below = f"α = {number(frame.alpha)}{', mixed' if frame.mixed else ''}"
        self._centre.data = {"text": ["the start" if at == 0 else f"round {at}"], "below": [below]}


class BoundaryView:
    """Decision boundaries of the server and the clients, with their uncertainty."""

    RESOLUTION = (57, 43)

    def __init__(self) -> None:
        left, right, bottom, top = BOX
        self.figure = _bare(
            "boundary", x_range=Range1d(start=left, end=right), y_range=Range1d(start=bottom, end=top), tools=""
        )
        self.figure.axis.axis_line_color = None
        self.figure.axis.minor_tick_line_color = None
        self.figure.axis.major_tick_line_color = None
        self.figure.axis.major_label_text_color = GREY
        self._x, self._y = np.linspace(left, right, self.RESOLUTION[0]), np.linspace(bottom, top, self.RESOLUTION[1])
        flat = np.full((self._y.size, self._x.size), 10.0)
        bands = zip((*CLIENTS, SERVER), (0.10, 0.10, 0.13), ("dotted", "dotted", "solid"), strict=True)
        self._bands = [self._band(flat, *look) for look in bands]
        empty: list[list[float]] = [[]] * 4
        looks: Any = {
            "colour": [*CLIENTS, SERVER, GREY],
            "width": [2.5, 2.5, 4.0, 2.0],
            "dash": [*["solid"] * 3, "dashed"],
        }
        self._lines = ColumnDataSource({"x": empty, "y": empty, **looks})
        self.figure.multi_line("x", "y", source=self._lines, line_color="colour", line_width="width", line_dash="dash")
        self._points = ColumnDataSource({"x": [], "y": [], "colour": [], "marker": [], "fill": []})
        looks = {"marker": "marker", "size": 9, "fill_color": "fill", "line_color": "colour", "line_width": 1.6}
        self.figure.scatter("x", "y", source=self._points, **looks)
        self.outlier = ColumnDataSource({"x": [0.0], "y": [0.0]})
        star = self.figure.scatter(
            "x", "y", marker="star", size=24, fill_color=CLIENTS[0], line_color=INK, line_width=1.5, source=self.outlier
        )
        drag = PointDrawTool(renderers=[star], add=False, drag=True)
        self.figure.add_tools(drag)
        self.figure.toolbar.active_tap = drag

    def _band(self, flat: Array, colour: str, alpha: float, dash: str) -> Any:
        levels = [-CERTAIN, CERTAIN]
        line = {"line_color": colour, "line_alpha": 0.55, "line_dash": dash}
        return self.figure.contour(self._x, self._y, flat, levels=levels, fill_color=[colour], fill_alpha=alpha, **line)

    def show(self, outcome: Outcome, at: int) -> None:
        """Draw one round."""
        scene = outcome.scene
        colours = [CLIENTS[k] for k in scene.owners[:-1]]
        solid = scene.labels[:-1] == 1
        self._points.data = {
            "x": scene.points[:-1, 0],
            "y": scene.points[:-1, 1],
            "colour": colours,
            "marker": ["triangle" if is_one else "circle" for is_one in solid],
            "fill": [c if is_one else "#ffffff" for c, is_one in zip(colours, solid, strict=True)],
        }
        place = {"x": [float(scene.points[-1, 0])], "y": [float(scene.points[-1, 1])]}
        if dict(self.outlier.data) != place:
            self.outlier.data = place
        beliefs: list[Belief | None] = [None, None, None]
        if outcome.frames:
            frame = outcome.frames[at]
            beliefs = [*(frame.clients or (None, None)), frame.server]
        for band, belief in zip(self._bands, beliefs, strict=True):
            self._draw_band(band, belief)
        segments = [None if b is None else boundary_segment(b) for b in [*beliefs, outcome.pooled]]
        self._lines.data = {
            **self._lines.data,
            "x": [[] if s is None else list(s[:, 0]) for s in segments],
            "y": [[] if s is None else list(s[:, 1]) for s in segments],
        }

    def _draw_band(self, band: Any, belief: Belief | None) -> None:
        certainty = None if belief is None else sign_certainty(belief, self._x, self._y)
        drawable = certainty is not None and bool((abs(certainty) > CERTAIN).any())
        band.fill_renderer.visible = band.line_renderer.visible = drawable
        if drawable:
            band.set_data(contour.contour_data(self._x, self._y, certainty, levels=[-CERTAIN, CERTAIN]))


class _Curves:
    """Lines against the round on a logarithmic axis, with the chosen round and the failed one marked."""

    def __init__(self, name: str, colours: tuple[str, ...], dashes: tuple[str, ...]) -> None:
        self.figure = _bare(
            name, y_axis_type="log", x_range=Range1d(start=0, end=10), y_range=Range1d(start=1e-16, end=10.0), tools=""
        )
        self.figure.xaxis.axis_label = "round"
        self.figure.axis.axis_label_text_font_style = "normal"
        self.figure.axis.axis_line_color = GREY
        self.figure.yaxis.minor_tick_line_color = None
        self._chosen = Span(location=0, dimension="height", line_color=GREY, line_width=1.5)
        self._failed = Span(location=0, dimension="height", line_color="#D55E00", line_width=2, line_dash="dotted")
        self._caption = Label(
            x=0, y=12, y_units="screen", text="", text_color="#B34700", text_font_size="13px", x_offset=5
        )
        for annotation in (self._chosen, self._failed, self._caption):
            self.figure.add_layout(annotation)
        self._sources = []
        for colour, dash in zip(colours, dashes, strict=True):
            source = ColumnDataSource({"round": [], "value": []})
            self.figure.line("round", "value", source=source, line_color=colour, line_width=2.2, line_dash=dash)
            self.figure.scatter("round", "value", source=source, color=colour, size=5)
            self._sources.append(source)

    def draw(self, outcome: Outcome, at: int, columns: Array, first: int) -> None:
        """Draw columns of numbers, the first row being of round `first`."""
        rounds = first + np.arange(len(columns))
        drawn = np.maximum(np.abs(columns), FLOOR)
        for source, values in zip(self._sources, drawn.T, strict=True):
            source.data = {"round": rounds, "value": values}
        self.figure.x_range.end = max(5, outcome.settings.rounds) + 0.5
        self.figure.x_range.start = -0.5
        finite = drawn[np.isfinite(drawn)]
        if finite.size:
            self.figure.y_range.start = 0.3 * finite.min()
            self.figure.y_range.end = 4.0 * max(finite.max(), 10.0 * finite.min())
        self._chosen.location = at
        failed = outcome.failed_round
        self._failed.visible = self._caption.visible = failed is not None
        if failed is not None:
            self._failed.location = self._caption.x = failed
            self._caption.text = f"round {failed} failed"


class GapView(_Curves):
    """Objective minus the pooled optimum, per round."""

    def __init__(self) -> None:
        super().__init__("gap", (INK,), ("solid",))

    def show(self, outcome: Outcome, at: int) -> None:
        """Draw all rounds, and mark one."""
        self.draw(outcome, at, outcome.gap.reshape(-1, 1), first=0)


class ResidualView(_Curves):
    """The four edge residuals, per round."""

    def __init__(self) -> None:
        super().__init__("residuals", EDGES, ("solid", "dashed", "solid", "dotted"))
        self.figure.add_layout(Span(location=TOL, dimension="width", line_color=GREY, line_dash="dashed"))
        self.figure.add_layout(
            Label(x=6, x_units="screen", y=TOL, y_offset=3, text="closed below", text_color=GREY, text_font_size="12px")
        )

    def show(self, outcome: Outcome, at: int) -> None:
        """Draw all rounds, and mark one."""
        self.draw(outcome, at, outcome.residuals, first=1)
