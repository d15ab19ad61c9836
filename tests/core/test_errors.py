"""Bounds on what input asks for: said with the number, and counted as often as it is named."""

from debubble.core.errors import beyond, entries


def test_a_size_within_its_bound_is_no_fault():
    assert beyond("layers", 100, 100) == []


def test_a_size_beyond_is_said_with_its_bound():
    (fault,) = beyond("layers", 101, 100)
    assert str(fault) == "layers = 101: up to 100 are read; give 100 or less"


def test_thousands_of_digits_are_not_printed():
    (fault,) = beyond("layers", 10**60, 100)
    assert str(fault).startswith("layers = a number of 61 digits")


def test_lists_that_hold_one_list_count_it_each_time():
    level = ["x"] * 9
    for _ in range(8):
        level = [level] * 9
    assert entries({"a": [1, 2, {"b": 3}]}, 100) == 6
    assert entries(level, 1000) == 1001
