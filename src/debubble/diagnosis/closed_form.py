"""Closed forms: the bubble of an even pipeline as a formula of the catalog gives it, to hold the simulation against.

Formulas are written as on paper, factors side by side: ``(p-1)max(F, F+I-2W)``.

    sum      term, then + or - and a term, any number of times
    term     factor, then a factor, or / and a factor, any number of times
    factor   number, name, ( sum ), max( sum, sum ) or min( sum, sum )
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..core.errors import Fault, InputError

_TOKEN = re.compile(r"\s*(\d+|max|min|F&B|[A-Za-z]|[-+/(),])")
_CHOICES: dict[str, Callable[..., float]] = {"max": max, "min": min}

# Where a rank idles for (p-1) times the work of a micro-batch over how finely that is cut, by what it is cut into.
_CUTS = {"(p-1)(F+B)": "", "(p-1)F": "", "(p-1)(F+B)/v": "v", "(p-1)F/v": "v", "(p-1)(F+B)/s": "s"}


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A bubble in closed form.

    Args:
        idle: time that every rank idles, in the unit of the values.
        share_text: formula of the idle share.
        ratio_text: formula of the bubble ratio.
        half_at: least m at which the idle share is half as big; None where the formula does not say.
    """

    idle: float
    share_text: str
    ratio_text: str
    half_at: int | None


def closed_form(formula: str, values: Mapping[str, float]) -> ClosedForm | None:
    """What a formula of the catalog says; None where it says nothing, or only how much it is at most (``<= ..``).

    Args:
        formula: idle time of a rank.
        values: p, m, v, s, and the times F, I, W, B and F&B.

    Raises:
        InputError: the formula cannot be read.
    """
    if not formula or formula.startswith("<="):
        return None
    idle = evaluate(formula, values)
    if formula not in _CUTS:
        return ClosedForm(idle, f"{formula} / makespan", f"{formula} / busy", None)
    cut = _CUTS[formula]
    parts = f"{cut} m" if cut else "m"
    m, p, finer = values["m"], values["p"], values.get(cut, 1)
    half = int(2 * m) + math.ceil((p - 1) / finer)
    return ClosedForm(idle, f"(p-1)/({parts}+p-1)", f"(p-1)/({parts})" if cut else "(p-1)/m", half)


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula.

    Raises:
        InputError: a character, name or bracket that has no place in it.
    """
    try:
        tokens = _tokens(formula)
        value = _sum(tokens, values)
        if tokens:
            raise ValueError(tokens[-1])
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        fault = Fault(f"formula = {formula}", f"it cannot be read: {error}", "write it as in (p-1)(F+B)/v")
        raise InputError(fault) from error
    return value


def _tokens(formula: str) -> list[str]:
    """What the formula consists of, last first: the next one is popped."""
    found, at = [], 0
    while at < len(formula):
        match = _TOKEN.match(formula, at)
        if match is None:
            raise ValueError(formula[at:])
        found.append(match[1])
        at = match.end()
    return found[::-1]


def _sum(tokens: list[str], values: Mapping[str, float]) -> float:
    total = _term(tokens, values)
    while tokens and tokens[-1] in "+-":
        sign = 1 if tokens.pop() == "+" else -1
        total += sign * _term(tokens, values)
    return total


def _term(tokens: list[str], values: Mapping[str, float]) -> float:
    product = _factor(tokens, values)
    while tokens and tokens[-1] not in "+-),":
        if tokens[-1] == "/":
            tokens.pop()
            product /= _factor(tokens, values)
        else:
            product *= _factor(tokens, values)
    return product


def _factor(tokens: list[str], values: Mapping[str, float]) -> float:
    token = tokens.pop()
    if token.isdecimal():
        return float(token)
    if token not in ("(", *_CHOICES):
        return values[token]
    choose = _CHOICES.get(token)
    if choose:
        tokens.pop()
    options = [_sum(tokens, values)]
    while tokens.pop() == ",":
        options.append(_sum(tokens, values))
    return choose(*options) if choose else options[0]
