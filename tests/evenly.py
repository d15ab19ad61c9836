"""Schedules on even stages: what the tests of published numbers compare, and the formulas of the catalog as numbers."""

import re
from dataclasses import dataclass

import numpy as np

from debubble import Rates, Schedule, account, costs_of, lower, peak_activations, simulate

UNIT = 1_000_000  # a unit of the published tables, in nanoseconds


@dataclass(frozen=True, slots=True)
class Result:
    """Times in the units that went in; activations in micro-batches of a rank."""

    makespan: float
    span: float
    idle: np.ndarray
    peak: np.ndarray
    span_idle_share: float


def run(schedule: Schedule, forward, input, weight, transfer=0.0, pair=None) -> Result:  # noqa: A002
    """Simulate with times per micro-batch and rank."""
    rates = Rates(
        forward * UNIT,
        input=input * UNIT,
        weight=weight * UNIT,
        transfer=transfer * UNIT,
        pair=None if pair is None else pair * UNIT,
    )
    its = account(simulate(lower(schedule), costs_of(rates, schedule)))
    return Result(
        makespan=its.window / UNIT,
        span=int((its.window - its.warm_up - its.cool_down).max()) / UNIT,
        idle=(its.window - its.compute) / UNIT,
        peak=peak_activations(schedule),
        span_idle_share=its.span_idle_share,
    )


_TOKEN = re.compile(r"F&B|\d+|[A-Za-z]+|[<>=!]=|[-+*/%(),=<>]")
_FUNCTIONS = {"min": min, "max": max}
_WORDS = {"div": "//", "or": "or", "=": "=="}


def value(formula: str, **names: float) -> float:
    """What a formula of the catalog comes to: factors stand beside each other, as on paper."""
    python, before = [], ""
    for token in _TOKEN.findall(formula):
        starts = token == "(" or token[0].isalnum()
        ends = before == ")" or before[:1].isalnum()
        operator = token in _WORDS or before in _WORDS or before in _FUNCTIONS
        if starts and ends and not operator:
            python.append("*")
        python.append(_WORDS.get(token, "FB" if token == "F&B" else token))
        before = token
    return eval(" ".join(python), {"__builtins__": _FUNCTIONS}, names | {"FB": names.get("pair", 0)})


def holds(conditions: str, **names: float) -> bool:
    """Whether all conditions of a formula are met."""
    return all(value(condition, **names) for condition in conditions.split(", ") if condition)
