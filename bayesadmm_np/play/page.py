"""The page: controls on one side, views on the other, one run in between. Bokeh serves it."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Any

import numpy as np
from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.core.templates import get_env
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models.formatters import CustomJSTickFormatter
from bokeh.models.widgets.buttons import Button
from bokeh.models.widgets.inputs import Checkbox, Select
from bokeh.models.widgets.markups import Div
from bokeh.models.widgets.sliders import Slider
from bokeh.server.server import Server

from ..splitting.methods import TABLE
from .model import FAMILIES, Outcome, Settings, fits, knobs, simulate
from .scene import BOX
from .settings import EXAMPLES
from .style import TEMPLATE, status_html
from .views import BoundaryView, CircuitView, GapView, ResidualView

OWN = "your own settings"
"""Entry of the list of examples that stands for settings of the user's own."""
WHOLE_WIDTH = ".bk-clearfix { display: block; width: 100%; }"
ADDRESS = "127.0.0.1"
PAUSE_MS = 60
"""A drag sends many values; the run starts this long after the last of them."""
STEP_MS = 350
"""Milliseconds for which each round is shown when the rounds are played."""


class Page:
    """One open browser tab: its controls, its views, and the outcome that they show."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._pending: Any = None
        self.playing: Any = None
        self._quiet = False
        self._make_controls()
        self.views = (CircuitView(), BoundaryView(), GapView(), ResidualView())
        self.outcome: Outcome
        self._place()
        self._connect()
        self._set(next(iter(EXAMPLES.values())))

    def _make_controls(self) -> None:
        wide: Any = {"sizing_mode": "stretch_width", "margin": (3, 4, 3, 4)}
        left, right, bottom, top = BOX
        exponent = CustomJSTickFormatter(code="return Number(Math.pow(10, tick).toPrecision(2)).toString()")
        select, slider, checkbox = partial(Select, **wide), partial(Slider, **wide), partial(Checkbox, **wide)
        families = list[Any]((key, family.label) for key, family in FAMILIES.items())
        self.example = select(name="example", title="Example", options=list[Any]([OWN, *EXAMPLES]))
        self.family = select(name="family", title="Family", options=families)
        self.method = select(name="method", title="Method")
        pull: Any = {"start": -1.3, "end": 1.0, "step": 0.05, "value": 0.0, "format": exponent}
        self.rho = slider(name="rho", title="ρ, the pull to the server", **pull)
        self.gamma = slider(name="gamma", title="γ, the dual's damping", start=0.05, end=1.0, step=0.05, value=1.0)
        self.accelerated = checkbox(name="accelerated", label="accelerated (Anderson mixing)")
        self.safeguard = checkbox(name="safeguard", label="safeguard (raises the server's α)")
        self.rounds = slider(name="rounds", title="Rounds at most", start=1, end=40, step=1, value=20)
        mixed = "Label skew: 0 mixed, 1 one class each"
        self.skew = slider(name="skew", title=mixed, start=0, end=1, step=0.05, value=0)
        self.outlier_x = slider(name="outlier_x", title="Outlier, across", start=left, end=right, step=0.1, value=0)
        self.outlier_y = slider(name="outlier_y", title="Outlier, up", start=bottom, end=top, step=0.1, value=0)
        self.status = Div(name="status", sizing_mode="stretch_width", margin=0, stylesheets=[WHOLE_WIDTH])
        self.round = Slider(
            name="round", title="Look at round", start=0, end=1, step=1, value=0, sizing_mode="stretch_width", margin=0
        )
        self.play = Button(name="play", label="▶", width=46, margin=(4, 0, 0, 12))

    def _place(self) -> None:
        choices = [self.example, self.method, self.family, self.rho, self.gamma, self.accelerated, self.safeguard]
        scene = [self.rounds, self.skew, self.outlier_x, self.outlier_y]
        controls = column([*choices, *scene], name="controls", sizing_mode="stretch_width")
        replay = row([self.round, self.play], name="replay", sizing_mode="stretch_width")
        for root in (controls, self.status, replay, *(view.figure for view in self.views)):
            self._document.add_root(root)
        self._document.title = "bayesadmm play"
        self._document.template = get_env().from_string(TEMPLATE)

    def _connect(self) -> None:
        for slider in (self.rho, self.gamma, self.rounds, self.skew, self.outlier_x, self.outlier_y):
            slider.on_change("value", self._changed)
        for select in (self.family, self.method):
            select.on_change("value", self._changed)
        for checkbox in (self.accelerated, self.safeguard):
            checkbox.on_change("active", self._changed)
        self.example.on_change("value", self._example_chosen)
        self.views[1].outlier.on_change("data", self._outlier_dragged)
        self.round.on_change("value", self._round_chosen)
        self.play.on_click(self.play_or_stop)

    def read(self) -> Settings:
        """Read the settings from the controls."""
        return Settings(
            method=self.method.value,
            family=self.family.value,
            rho=float(f"{10.0**self.rho.value:.2g}"),
            gamma=round(float(self.gamma.value), 2),
            accelerated=self.accelerated.active,
            safeguard=self.safeguard.active,
            rounds=int(self.rounds.value),
            outlier=(float(self.outlier_x.value), float(self.outlier_y.value)),
            skew=float(self.skew.value),
        )

    def _set(self, settings: Settings) -> None:
        """Move the controls without a run for each of them, then run once."""
        self._quiet = True
        self.family.value = settings.family
        self.method.options = _method_options(settings.family)
        self.method.value = settings.method
        self.rho.value = round(float(np.log10(settings.rho)), 4)
        self.gamma.value = settings.gamma
        self.accelerated.active = settings.accelerated
        self.safeguard.active = settings.safeguard
        self.rounds.value = settings.rounds
        self.outlier_x.value, self.outlier_y.value = settings.outlier
        self.skew.value = settings.skew
        self._quiet = False
        self._run(follow=True)

    def _changed(self, attr: str, old: Any, new: Any) -> None:
        if self._quiet:
            return
        if self._pending is not None:
            self._document.remove_timeout_callback(self._pending)
        self._pending = self._document.add_timeout_callback(self.run_after_pause, PAUSE_MS)

    def run_after_pause(self) -> None:
        """Run with the sliders as they are, once they have rested."""
        self._pending = None
        self._run(follow=self.round.value >= self.outcome.rounds)

    def _example_chosen(self, attr: str, old: str, new: str) -> None:
        if not self._quiet and new != OWN:
            self._set(EXAMPLES[new])

    def _outlier_dragged(self, attr: str, old: Any, new: Any) -> None:
        if self._quiet or len(new["x"]) != 1:
            return
        left, right, bottom, top = BOX
        self.outlier_x.value = round(min(max(float(new["x"][0]), left), right), 1)
        self.outlier_y.value = round(min(max(float(new["y"][0]), bottom), top), 1)

    def _round_chosen(self, attr: str, old: int, new: int) -> None:
        if not self._quiet:
            self._draw()

    def play_or_stop(self) -> None:
        """Show round after round, or stop that."""
        if self.playing is not None:
            self._stop()
            return
        if self.round.value >= self.outcome.rounds:
            self.round.value = 0
        self.playing = self._document.add_periodic_callback(self.step, STEP_MS)
        self.play.label = "■"

    def step(self) -> None:
        """Show the next round."""
        if self.round.value >= self.outcome.rounds:
            self._stop()
        else:
            self.round.value += 1

    def _stop(self) -> None:
        if self.playing is not None:
            self._document.remove_periodic_callback(self.playing)
            self.playing = None
        self.play.label = "▶"

    def _run(self, follow: bool) -> None:
        """Run, and look at the last round when `follow`, else at the same round as before."""
        self._stop()
        settings = self.read()
        self.outcome = simulate(settings)
        has = knobs(settings.method)
        self.method.options = _method_options(settings.family)
        self.rho.disabled = "rho" not in has
        self.gamma.disabled = not {"gamma", "learning_rate"} & set(has)
        last = self.outcome.rounds
        self._quiet = True
        self.example.value = next((name for name, its in EXAMPLES.items() if its == settings), OWN)
        self.round.end = max(1, last)
        self.round.value = last if follow else min(self.round.value, last)
        self.round.disabled = self.play.disabled = last == 0
        self._quiet = False
        self._draw()

    def _draw(self) -> None:
        self._quiet = True  # the views move the outlier's star: that is no drag
        self.status.text = status_html(self.outcome.verdict, self.outcome.message, self.outcome.notes)
        for view in self.views:
            view.show(self.outcome, int(self.round.value))
        self._quiet = False


def _method_options(family: str) -> Any:
    """The rows of the table in two groups; those of the second are explained when they are chosen."""
    return {
        f"defined for {FAMILIES[family].label}": [name for name in TABLE if fits(name, family)],
        "needs another family": [name for name in TABLE if not fits(name, family)],
    }


def make_server(port: int) -> Server:
    """Return a Bokeh server of the page that listens on the loopback address only."""
    with socket.socket() as probe:  # here rather than in the server, which leaves its socket open when this fails
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((ADDRESS, port))
        port = probe.getsockname()[1]
    return Server(
        {"/": Application(FunctionHandler(_open_page))},
        address=ADDRESS,
        port=port,
        allow_websocket_origin=[f"{ADDRESS}:{port}", f"localhost:{port}"],
        ico_path="none",
    )


def _open_page(document: Document) -> None:
    Page(document)
