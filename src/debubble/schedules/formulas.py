"""Formulas of the catalog, read as they are written on paper, for numbers and for arrays alike.

Factors stand side by side, and ``div`` is division without its remainder: ``min(2p div 3 + 1, m)``.

    conditions  either, then , or ; and an either, any number of times: all of them are met
    either      comparison, then or and a comparison, any number of times
    comparison  sum, then < <= = >= or > and a sum, once or more, as in W <= F <= I
    sum         product, then + or - and a product, any number of times
    product     factor, then a factor, or / div or % and a factor, any number of times
    factor      number, letter, ( sum ), max( sum, .. ) or min( sum, .. )
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import Fault, InputError

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
