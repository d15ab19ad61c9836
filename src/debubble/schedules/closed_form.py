"""Closed forms: formulas of the catalog, read as on paper, and what they come to, for one pipeline or arrays of them.

The formulas themselves stand with their schedules, each once, in the letters of ``entry.py``. They hold for even stages
and free transfers under the conditions of their entry. Elsewhere there is no closed form, and callers simulate, or take
the lower bound and say so.

Factors stand side by side, and ``div`` is division without its remainder: ``min(2p div 3 + 1, m)``.

    conditions  either, then , or ; and an either, any number of times: all of them are met
    either      comparison, then or and a comparison, any number of times
    comparison  sum, then < <= = >= or > and a sum, once or more, as in W <= F <= I
    sum         product, then + or - and a product, any number of times
    product     factor, then a factor, or / div or % and a factor, any number of times
    factor      number, letter, ( sum ), max( sum, .. ) or min( sum, .. )
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..core.costs import Rates
from ..core.errors import Fault, InputError
from ..core.schedule import Schedule, Shape
from .entry import Entry

Column = NDArray[np.float64]  # of any shape: a number is a column without an axis
Flags = NDArray[np.bool_]
_Value = TypeVar("_Value", Column, Flags)

_TOKEN = re.compile(r"\s*(F&B|\d+|[A-Za-z]+|[<>]=|[-+/%(),;<>=])")
_CHOICES: dict[str, Callable[[Column, Column], Column]] = {"max": np.maximum, "min": np.minimum}
_COMPARISONS = ("<", "<=", "=", ">=", ">")
_BEHIND_A_PRODUCT = ("+", "-", ")", ",", ";", "or", *_COMPARISONS)
COSTS = frozenset({"F", "I", "W", "B", "F&B"})  # letters that are times
SAME = 1e-9  # relative: costs that were divided and multiplied again are still equal


def evaluate(formula: str, letters: Mapping[str, Column]) -> Column:
    """The value of a formula.

    Raises:
        InputError: a character, letter or bracket that has no place in it.
    """
    return _read(formula, letters, _sum)


def holds(conditions: str, letters: Mapping[str, Column]) -> Flags:
    """Whether all conditions are met; an empty text asks for nothing.

    Raises:
        InputError: they cannot be read.
    """
    if not conditions:
        return np.asarray(np.True_)
    return np.asarray(_read(conditions, letters, _conditions))


def letters_of(text: str) -> set[str]:
    """The letters that a formula or condition names."""
    return {word for word in _tokens(text) if word[0].isalpha()} - {*_CHOICES, "div", "or"}


def _read(text: str, letters: Mapping[str, Column], rule: Callable[[_Tokens], _Value]) -> _Value:
    try:
        tokens = _Tokens(_tokens(text), letters)
        value = rule(tokens)
        if tokens.left:
            raise ValueError(tokens.left[-1])
    except (IndexError, KeyError, ValueError) as error:
        fault = Fault(f"formula = {text}", f"it cannot be read: {error}", "write it as in (p-1)(F+B)/v")
        raise InputError(fault) from error
    return value


def _tokens(text: str) -> list[str]:
    """What a text consists of, last first: the next one is popped."""
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text[at:])
        found.append(match[1])
        at = match.end()
    return found[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """What is left to read, and what letters mean."""

    left: list[str]
    letters: Mapping[str, Column]

    def next_is(self, *words: str) -> bool:
        return bool(self.left) and self.left[-1] in words

    def take(self) -> str:
        return self.left.pop()


def _conditions(tokens: _Tokens) -> Flags:
    met = _either(tokens)
    while tokens.next_is(",", ";"):
        tokens.take()
        met = met & _either(tokens)
    return met


def _either(tokens: _Tokens) -> Flags:
    met = _comparison(tokens)
    while tokens.next_is("or"):
        tokens.take()
        met = met | _comparison(tokens)
    return met


def _comparison(tokens: _Tokens) -> Flags:
    left = _sum(tokens)
    if not tokens.next_is(*_COMPARISONS):
        raise ValueError("a condition compares")
    met: Flags = np.asarray(np.True_)
    while tokens.next_is(*_COMPARISONS):
        sign = tokens.take()
        right = _sum(tokens)
        same = np.abs(left - right) <= SAME * np.maximum(np.abs(left), np.abs(right))
        if sign == "=":
            met = met & same
        elif sign == "<=":
            met = met & (same | (left < right))
        elif sign == ">=":
            met = met & (same | (left > right))
        elif sign == "<":
            met = met & ~same & (left < right)
        else:
            met = met & ~same & (left > right)
        left = right
    return met


def _sum(tokens: _Tokens) -> Column:
    total = _product(tokens)
    while tokens.next_is("+", "-"):
        sign = tokens.take()
        term = _product(tokens)
        if sign == "-":
            term = -term
        total = total + term
    return total


def _product(tokens: _Tokens) -> Column:
    product = _factor(tokens)
    while tokens.left and not tokens.next_is(*_BEHIND_A_PRODUCT):
        if tokens.next_is("/"):
            product = product / _divisor(tokens)
        elif tokens.next_is("div"):
            product = product // _divisor(tokens)
        elif tokens.next_is("%"):
            product = product % _divisor(tokens)
        else:
            product = product * _factor(tokens)
    return product


def _divisor(tokens: _Tokens) -> Column:
    tokens.take()
    divisor = _factor(tokens)
    if not np.all(divisor):
        raise ValueError("it divides by 0")
    return divisor


def _factor(tokens: _Tokens) -> Column:
    word = tokens.take()
    if word.isdecimal():
        return np.asarray(word, np.float64)
    if word == "(":
        inside = _bracketed(tokens)
        if len(inside) > 1:
            raise ValueError("a comma belongs to max and min")
        return inside[0]
    if word in _CHOICES and tokens.take() == "(":
        return reduce(_CHOICES[word], _bracketed(tokens))
    return tokens.letters[word]


def _bracketed(tokens: _Tokens) -> list[Column]:
    """The sums up to the closing bracket."""
    values = [_sum(tokens)]
    while tokens.next_is(","):
        tokens.take()
        values.append(_sum(tokens))
    if tokens.take() != ")":
        raise ValueError("a bracket is not closed")
    return values


# Bubbles whose work of a micro-batch cancels against the busy time, by what that work is cut into.
_FILL = re.compile(r"\(p-1\)(?P<work>\(F\+B\)|F)(/(?P<cut>[vs]))?")

# What no order of the same placement goes below, d being the hops to the farthest rank times the share of a chunk:
# fill (and drain) of the farthest rank; W last; one micro-batch from end to end. As ``core/bounds.py``, made even.
_LEAST = {
    "fused": "max(d(F+B), (p/s-m)(F+B), 0)",
    "split": "max(d F, d(F+I)+W/v-m W, p(F+I)+W/v-m(F+B), 0)",
    "forward": "max(d F, (p-m)F, 0)",
}


@dataclass(frozen=True, slots=True, eq=False)
class Even:
    """Pipelines of even stages and free transfers: numbers, or arrays of one length for many pipelines at once.

    Args:
        ranks: p.
        microbatches: m.
        chunks: v.
        slices: s.
        group: N; None for p.
        cap: micro-batches that a search may hold; None for p.
        forward: F of a micro-batch on a rank, in any unit; likewise ``input``, I, and ``weight``, W.
        pair: an overlapped F and B together; None for their sum.
    """

    ranks: ArrayLike
    microbatches: ArrayLike
    chunks: ArrayLike = 1
    slices: ArrayLike = 1
    group: ArrayLike | None = None
    cap: ArrayLike | None = None
    forward: ArrayLike = 1.0
    input: ArrayLike = 1.0
    weight: ArrayLike = 1.0
    pair: ArrayLike | None = None

    def letters(self) -> dict[str, Column]:
        """The value of each letter of the formulas but r."""
        stated = {
            "p": self.ranks,
            "m": self.microbatches,
            "v": self.chunks,
            "s": self.slices,
            "N": self.group,
            "cap": self.cap,
            "F": self.forward,
            "I": self.input,
            "W": self.weight,
            "F&B": self.pair,
        }
        letters = {letter: np.asarray(value, np.float64) for letter, value in stated.items() if value is not None}
        letters["B"] = letters["I"] + letters["W"]
        usual = {"N": letters["p"], "cap": letters["p"], "F&B": letters["F"] + letters["B"]}
        return usual | letters


def even(shape: Shape, rates: Rates) -> Even | None:
    """A shape at these rates as formulas see it; None where stages or micro-batches differ or a hop takes time."""
    scales = (rates.stage_scale, rates.microbatch_scale, rates.rank_scale)
    unequal = rates.pair_of_stage or any(factor != 1 for scale in scales for factor in scale)
    if rates.transfer or rates.occupy or rates.payload or unequal:
        return None
    forward, first, weight, _ = rates.by_kind()
    return Even(
        shape.ranks,
        shape.microbatches,
        shape.chunks,
        shape.slices,
        shape.group,
        forward=forward,
        input=first,
        weight=weight,
        pair=rates.pair,
    )


def sizes_of(schedule: Schedule) -> Even:
    """The sizes of an order, for formulas in which costs cancel."""
    chunks = max(1, schedule.stages // schedule.ranks)
    return Even(schedule.ranks, schedule.microbatches, chunks, schedule.slices)


def idle_times(entry: Entry, pipelines: Even) -> Column:
    """Time that every rank idles, in the unit of the costs, with a barrier at the end of the step.

    Where pairs save time, ranks with fewer of them idle less: then it is that of the idlest.

    Returns:
        of the shape of the numbers that went in; not a number where the entry has no exact formula or its conditions
        are not met. Whether the schedule exists for the shape is another question: see ``takes``.
    """
    letters = pipelines.letters()
    idle = np.full_like(letters["p"], math.nan)
    if not entry.bubble.startswith("<="):
        idle = np.where(holds(entry.bubble_holds, letters), evaluate(entry.bubble, letters), math.nan)
    return np.where(letters["p"] == 1, 0.0, idle)  # one rank never waits


def idle_time(entry: Entry, pipeline: Even) -> float | None:
    """``idle_times`` of one pipeline; None where no formula holds."""
    idle = float(idle_times(entry, pipeline))
    if math.isnan(idle):
        return None
    return idle


def bubble_slots(entry: Entry, pipeline: Even) -> float | None:
    """The bubble in times of a micro-batch on a rank, p-1 for 1F1B; None where no formula holds, or nothing is work.

    Pairs that run faster together make busy times differ between ranks: then there is no such number either.
    """
    idle, slot = idle_time(entry, pipeline), float(_slot(entry, pipeline.letters()))
    pairs = pipeline.pair is not None and "F&B" in letters_of(entry.bubble)
    if idle is None or not slot or pairs:
        return None
    return idle / slot


def bubble_ratio(entry: Entry, pipeline: Even) -> float | None:
    """Idle over busy time of a rank; None as ``bubble_slots``."""
    slots = bubble_slots(entry, pipeline)
    if slots is None:
        return None
    return slots / float(pipeline.letters()["m"])


def ratio_of_any_costs(entry: Entry, pipeline: Even) -> float | None:
    """``bubble_ratio`` where it is the same whatever F, I and W are, as (p-1)/m is; else None."""
    if not _parts(entry) or letters_of(entry.bubble_holds) & COSTS:
        return None
    return bubble_ratio(entry, pipeline)


def idle_share(entry: Entry, pipeline: Even) -> float | None:
    """Idle over ranks x window, 0 to 1; None as ``bubble_ratio``."""
    ratio = bubble_ratio(entry, pipeline)
    if ratio is None:
        return None
    return ratio / (1 + ratio)


def least_idle(entry: Entry, pipelines: Even, *, split: bool | None = None) -> Column:
    """Idle time of the worst rank that no order of this placement goes below, in the unit of the costs.

    Args:
        entry: whose placement.
        pipelines: pairs that run faster together are not taken into account.
        split: whether a backward may be split; None for whether this schedule splits it.
    """
    letters = pipelines.letters()
    hops = letters["p"] - 1
    if "two-way" in entry.placement:  # the rank in the middle is as far from both ends
        hops = np.maximum(letters["p"] // 2 - 1, 0)
    if not entry.trains:
        formula = _LEAST["forward"]
    elif split or (split is None and entry.splits):
        formula = _LEAST["split"]
    else:
        formula = _LEAST["fused"]
    return evaluate(formula, letters | {"d": hops / (letters["v"] * letters["s"])})


def least_ratio(entry: Entry, pipeline: Even, *, split: bool | None = None) -> float:
    """``least_idle`` of one pipeline over its busy time; 0 where nothing is any work."""
    letters = pipeline.letters()
    busy = float(letters["m"] * _slot(entry, letters))
    if not busy:
        return 0.0
    return float(least_idle(entry, pipeline, split=split)) / busy


def activations(entry: Entry, pipelines: Even, rank: ArrayLike = 0) -> Column:
    """Most micro-batches that a rank holds from F to W; of the fullest rank where the entry knows no more."""
    return evaluate(entry.activations, pipelines.letters() | {"r": np.asarray(rank, np.float64)})


def takes(entry: Entry, pipelines: Even) -> Flags:
    """Whether the schedule exists for a shape."""
    return holds(entry.needs, pipelines.letters())


def enough(slots: float, share: float) -> int:
    """The least m at which a bubble as long as ``slots`` micro-batches is no more than this share of the step.

    slots/(m + slots) <= share, so m >= slots (1 - share)/share: 27 for 1F1B on 4 ranks (3 slots) and a tenth.
    """
    exact = slots * (1 - share) / share
    return max(1, math.ceil(exact - SAME * max(exact, 1.0)))


def least_microbatches(entry: Entry, pipeline: Even, share: float) -> int | None:
    """The least number of micro-batches for which a formula holds and the idle share is ``share`` or less.

    Args:
        entry: the schedule.
        pipeline: one; its own number of micro-batches does not matter.
        share: above 0, below 1.

    Returns:
        None where no formula holds for its costs and ranks, whatever the number of micro-batches.
    """
    letters = pipeline.letters()
    slot = _slot(entry, letters)
    if entry.bubble.startswith("<=") or not slot:
        return None
    least = 1
    if letters["p"] > 1:
        least = enough(float(evaluate(entry.bubble, letters) / slot), share)
    # Conditions ask for a multiple of p (or N), or for 2p and a few: one of so many numbers meets them, or none does.
    ahead = 3 * int(max(letters["p"], letters["N"])) + 3
    tried = np.arange(least, least + ahead, dtype=np.float64)
    pipelines = replace(pipeline, microbatches=tried)
    known = np.broadcast_to(takes(entry, pipelines) & ~np.isnan(idle_times(entry, pipelines)), tried.shape)
    if not known.any():
        return None
    return int(tried[known.argmax()])


def _slot(entry: Entry, letters: Mapping[str, Column]) -> Column:
    """Work of one micro-batch on a rank."""
    if entry.trains:
        return letters["F"] + letters["B"]
    return letters["F"]


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What a formula says of one pipeline.

    Args:
        idle: time that every rank idles, in the unit of the costs.
        share_text: formula of the idle share.
        ratio_text: formula of the bubble ratio.
        half_at: least m at which the idle share is half as big; None where there is none to halve.
    """

    idle: float
    share_text: str
    ratio_text: str
    half_at: int | None


def closed_form(entry: Entry, pipeline: Even) -> ClosedForm | None:
    """The formula of a schedule and what it says of a pipeline; None where none holds."""
    idle = idle_time(entry, pipeline)
    if idle is None:
        return None
    share = idle_share(entry, pipeline)
    half = None
    if share:
        half = least_microbatches(entry, pipeline, share / 2)
    parts = _parts(entry)
    if pipeline.chunks == 1:
        parts = parts.removeprefix("v ")
    if not parts:
        return ClosedForm(idle, f"{entry.bubble} / makespan", f"{entry.bubble} / busy", half)
    if parts == "m":
        return ClosedForm(idle, "(p-1)/(m+p-1)", "(p-1)/m", half)
    return ClosedForm(idle, f"(p-1)/({parts}+p-1)", f"(p-1)/({parts})", half)


def _parts(entry: Entry) -> str:
    """Into how many parts a rank's work is cut, each as long as a step of fill and drain; empty where it is not."""
    match = _FILL.fullmatch(entry.bubble)
    if match is None or (match["work"] == "(F+B)") != entry.trains:  # F alone is not all the work where there is B
        return ""
    if match["cut"] is None:
        return "m"
    return f"{match['cut']} m"
