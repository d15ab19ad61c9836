"""Formulas of the catalog, read as they are written on paper."""

import numpy as np
import pytest

from debubble.core.errors import InputError
from debubble.schedules.catalog import CATALOG
from debubble.schedules.closed_form import evaluate, holds, letters_of

VALUES = {"p": 4, "m": 8, "v": 2, "s": 3, "F": 1.0, "I": 1.5, "W": 0.5, "B": 2.0, "F&B": 2.5}


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("(p-1)(F+B)", 9),
        ("(p-1)(F+B)/v", 4.5),
        ("(p-1)(F+I-W)", 6),
        ("(p-1)max(F, F+I-2W)", 4.5),
        ("(p/2-1)(F&B+F-2W)", 2.5),
        ("(p-1)(F&B+F-2W)/2", 3.75),
        ("min(p, m)", 4),
        ("m-p-1", 3),
        ("2p div 3 + 1", 3),
        ("m % s + 1", 3),
        ("min(p, m, v)", 2),
        ("max(1, m div s)", 2),
    ],
)
def test_values(formula, value):
    assert evaluate(formula, VALUES) == value


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "(p-1",
        "p)",
        "p+",
        "x",
        "p*m",
        "max(p",
        "max p",
        "max)p",
        "(p, m)",
        "max(p; m)",
        "__import__",
        "1/(p-4)",
        "1 % (p-4)",
    ],
)
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(InputError, match="it cannot be read"):
        evaluate(formula, VALUES)


@pytest.mark.parametrize(
    ("conditions", "met"),
    [
        ("", True),
        ("W <= F <= I", True),
        ("W <= F < F", False),
        ("I <= F", False),
        ("m % p = 0, v = 2", True),
        ("m % p = 0; v = 3", False),
        ("m % p > 0 or v = 2", True),
        ("m % p > 0 or v = 3", False),
        ("v = 3 or v = 2, m < p", False),
        ("m >= 2p", True),
        ("m > 2p", False),
        ("F&B >= B", True),
    ],
)
def test_conditions(conditions, met):
    assert holds(conditions, VALUES) == met


def test_costs_that_were_divided_and_multiplied_again_are_still_equal():
    assert holds("F = I", {"F": 0.3, "I": 0.1 * 3})
    assert not holds("F < I", {"F": 0.3, "I": 0.1 * 3})
    assert not holds("F = I", {"F": 0.3, "I": 0.3000001})


@pytest.mark.parametrize(
    "conditions", ["m", "m, v = 2", "m >= p or v", "m >=", "m = = p", "m >= p or", "m >= p,", "= p"]
)
def test_what_is_no_condition_is_refused(conditions):
    with pytest.raises(InputError, match="it cannot be read"):
        holds(conditions, VALUES)


def test_arrays_give_for_each_place_what_its_numbers_give():
    p, m = np.array([2.0, 4.0, 8.0]), np.array([3.0, 3.0, 16.0])
    letters = {"p": p, "m": m, "F": np.array([1.0, 2.0, 3.0])}
    assert evaluate("(p-1)F/min(p, m)", letters).tolist() == [0.5, 2.0, 21 / 8]
    assert holds("m >= p, m % 2 = 0", letters).tolist() == [False, False, True]


def test_the_letters_of_a_formula_are_its_names_without_its_words():
    assert letters_of("min(2p div 3 + 1, m)") == {"p", "m"}
    assert letters_of("F&B >= F or cap = p") == {"F&B", "F", "cap", "p"}


@pytest.mark.parametrize("entry", CATALOG.values(), ids=lambda e: e.name)
def test_everything_that_an_entry_says_can_be_read(entry):
    letters = VALUES | {"N": 4, "r": 1, "cap": 4}
    assert evaluate(entry.bubble.removeprefix("<="), letters) >= 0
    assert evaluate(entry.activations, letters) >= 0
    for conditions in (entry.needs, entry.bubble_holds):
        assert holds(conditions, letters) in (True, False)
