"""`bayesadmm play`: one HTML file with sliders for a run of two clients; it needs a browser and nothing else."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .._archive import replace_text
from ..families import (
    BlockDiagonalGaussian,
    DiagonalGaussian,
    ExponentialFamily,
    FixedPrecisionGaussian,
    FullGaussian,
    IsotropicGaussian,
)
from ..losses import Delta
from ..splitting import methods
from ..splitting.duals import AlongExpectation, AlongNatural
from ..splitting.method import Method
from ._options import option
from ._terminal import require_out

FILE = Path(__file__).parents[1] / "play" / "play.html"
FAMILIES: dict[str, type[ExponentialFamily]] = {
    "isotropic": IsotropicGaussian,
    "fixed": FixedPrecisionGaussian,
    "diagonal": DiagonalGaussian,
    "block": BlockDiagonalGaussian,
    "full": FullGaussian,
}
RULES = {None: None, Delta(1): "delta1", Delta(2): "delta2"}
KNOBS = {"rho": "rho", "gamma": "gamma", "learning_rate": "gamma"}
"""Parameters of methods that the page sets, by the slider that sets them."""
TABLE = re.compile(r'(?<=<script type="application/json" id="table">).*?(?=</script>)', flags=re.DOTALL)


def play(*, out: Annotated[Path | None, option("Write a copy of the page to this file; open nothing.")] = None) -> None:
    """Open a page with sliders for ρ, γ, family, method, the outlier and the label skew.

    Every change redraws the circuit, the decision boundary, the bells of prior,
    clients and server, the objective and the residuals. The page is one file that
    computes everything itself: no server, no network. A copy can be sent to a class.
    """
    if out is not None:
        require_out(out, [FILE])
        replace_text(out, page())
        print(out)
        return
    print(FILE.as_uri())
    webbrowser.open(FILE.as_uri())


def page(lessons: str = "") -> str:
    """Return the page with the methods that are registered now; `lessons` is where its links find them, if anywhere."""
    rows = [f'"{key}": {{\n{_lines(value)}\n}}' for key, value in table().items()]
    text = TABLE.sub(lambda _: "{\n" + ",\n".join(rows) + "\n}", FILE.read_text(encoding="utf-8"))
    return text.replace('data-lessons=""', f'data-lessons="{lessons}"')


def _lines(value: dict[str, Any]) -> str:
    return ",\n".join(f"  {json.dumps(key)}: {json.dumps(own, ensure_ascii=False)}" for key, own in value.items())


def table() -> dict[str, dict[str, Any]]:
    """Return the scalars of every method of the page, and for the others the reason why they are left out.

    A scalar is c ρᵃ γᵇ, as [c, a, b]. A method is left out where it is no row of scalars, or has one of another form.
    """
    rows: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, make in methods.TABLE.items():
        try:
            rows[name] = _row(make)
        except ValueError as error:
            left_out[name] = str(error)
    return {"methods": rows, "left_out": left_out}


def _row(make: Any) -> dict[str, Any]:
    knobs = [knob for knob in inspect.signature(make).parameters if knob in KNOBS]

    def at(rho: float, gamma: float) -> Any:
        values = {"rho": rho, "gamma": gamma}
        return make(**{knob: values[KNOBS[knob]] for knob in knobs})

    row = at(1.0, 1.0)
    if not isinstance(row, Method):
        raise ValueError("its step is not the mean of Eq. 54")
    if row.schedule is not None or row.expectation not in RULES:
        raise ValueError("it has a schedule, or a rule for expectations that the page does not compute")
    if type(row.dual_rule) not in (AlongNatural, AlongExpectation):
        raise ValueError("its dual moves by a rule of its own")
    own = inspect.getdoc(make) or ""
    return {
        "about": own.split("\n")[0].rstrip("."),
        "knobs": knobs,
        **{name: _monomial(at, name) for name in ("rho", "dual_step", "alpha")},
        "statistic_scale": getattr(row.dual_rule, "statistic_scale", None),
        **{name: getattr(row, name) for name in ("client", "prior_at", "client_share", "server_share", "max_rounds")},
        "expectation": RULES[row.expectation],
        "families": [key for key, kind in FAMILIES.items() if not row.families or issubclass(kind, row.families)],
    }


def _monomial(at: Any, name: str) -> list[float] | None:
    """Return [c, a, b] with c ρᵃ γᵇ for a scalar of a row; None where it is None."""
    places = [(1.0, 1.0), (0.3, 0.7), (2.0, 0.4), (5.0, 0.9)]
    values = [getattr(at(*place), name) for place in places]
    if values[0] is None:
        return None
    for a, b in itertools.product((0, 1), repeat=2):
        if np.allclose(values, [values[0] * rho**a * gamma**b for rho, gamma in places], rtol=1e-12, atol=0.0):
            return [values[0], a, b]
    raise ValueError(f"its {name} is no product of ρ and γ")
