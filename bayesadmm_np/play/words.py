"""Sentences that say how a run went."""

from __future__ import annotations

import inspect

import numpy as np

from .._validation import Array
from ..splitting import Edges, Status
from ..splitting.methods import TABLE, Method
from .settings import Settings

SYMBOLS = {"rho": "ρ", "gamma": "γ", "learning_rate": "γ"}
"""Parameters of methods that the page sets, and the symbols of their sliders."""
EDGE_NAMES = ("broadcast", "natural gradient", "gather", "dual map")
RUNAWAY = 1e3
"""A gap that ends this many times above its start counts as rising without bound."""


def number(value: float) -> str:
    """Two significant digits, with a power of ten where that is shorter."""
    if not np.isfinite(value):
        return "not finite"
    if value == 0.0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def sentence(error: Exception) -> str:
    """An exception's text as a sentence."""
    text = str(error).strip()
    return text[:1].upper() + text[1:]


def is_running_away(gap: Array) -> bool:
    """Return whether the objective ended far above where it started."""
    return bool(gap.size and not gap[-1] <= RUNAWAY * (1.0 + abs(gap[0])))


def is_worse_than_start(row: Method, gap: Array) -> bool:
    """Return whether a method that should reach the pooled answer ended further away from it than it began."""
    return row.dual_step > 0.0 and row.max_rounds is None and not gap[-1] <= gap[0]


def still_open(row: Method, rounds: int, edges: Edges, gap: Array, settings: Settings) -> str:
    """Say what is still open when the rounds ran out."""
    above = f"{number(abs(gap[-1]))} {'above' if gap[-1] >= 0 else 'below'} the pooled objective"
    if is_running_away(gap):
        return f"Diverging: after {rounds} rounds the objective is {above}. {_advice(settings)}"
    if row.max_rounds is not None and rounds >= row.max_rounds:
        return f"{row.name} stops after one round by definition; it ends {above}."
    if row.dual_step == 0.0:
        return (
            f"{row.name} has no dual: its clients need not agree, and it need not reach the pooled answer. "
            f"After {rounds} rounds it is {above}."
        )
    if is_worse_than_start(row, gap):
        return (
            f"Not converging: after {rounds} rounds the objective is {above}, further away than at the start "
            f"({number(gap[0])}). {_advice(settings)}"
        )
    values = (edges.broadcast, edges.natural_gradient, edges.gather, edges.dual_map)
    widest = int(np.argmax(values))
    return (
        f"Not closed yet after {rounds} round{'' if rounds == 1 else 's'}: the widest edge is {EDGE_NAMES[widest]} "
        f"({number(values[widest])}), and the server is {above}."
    )


def failure(
    status: Status, number_of_round: int, client: int | None, settings: Settings, row: Method, gap: Array
) -> str:
    """Say why the run failed in a round; the page draws the round before."""
    where = f"Round {number_of_round} failed"
    advice = _advice(settings, mixing=number_of_round > 1)
    if is_running_away(gap) or status is Status.DIVERGED:
        return f"{where}: the run diverges, the objective rises without bound. {advice}"
    if status is Status.ILL_POSED_CLIENT:
        return (
            f"{where}: client {client} has no best answer near the server, because its dual term outweighs the pull "
            f"ρ KL(q‖q_g). {_advice_ill_posed(settings, row)}"
        )
    if status is Status.NOT_A_DISTRIBUTION:
        return f"{where}: the server's precision is no longer positive, so it holds no distribution. {advice}"
    if status is Status.NOT_FINITE:
        return f"{where}: client {client}'s loss is not a finite number. Move the outlier closer."
    return f"{where}: client {client}'s solver stopped before its tolerance. {advice}"


def _advice(settings: Settings, mixing: bool = True) -> str:
    has = {SYMBOLS[name] for name in inspect.signature(TABLE[settings.method]).parameters if name in SYMBOLS}
    turns = []
    if "γ" in has:
        turns.append(f"lower γ (now {settings.gamma:g})")
    if "ρ" in has:
        turns.append(f"raise ρ (now {settings.rho:g})")
    if mixing and not settings.accelerated:
        turns.append("switch “accelerated” on")
    text = " or ".join(turns) or "choose another method"
    return f"{text[0].upper()}{text[1:]}."


def _advice_ill_posed(settings: Settings, row: Method) -> str:
    if row.rho < 1.0:
        if settings.safeguard or row.alpha is not None:
            return f"Raise ρ (now {row.rho:g}) to 1 or more: below that the safeguard cannot always help."
        return f"Raise ρ (now {row.rho:g}) to 1 or more, or try the safeguard."
    if not settings.safeguard and row.alpha is None:
        return "Switch the safeguard on, or raise ρ."
    return _advice(settings)
