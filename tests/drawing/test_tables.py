"""Tables and durations for people."""

import pytest

from debubble.core.units import duration
from debubble.drawing.terminal import table


def test_columns_are_as_wide_as_their_widest_cell():
    assert table(["name", "n"], [["gpipe", "8"], ["v", "1,024"]]).splitlines() == [
        "name       n",
        "gpipe      8",
        "v      1,024",
    ]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ms"),
        (17, "17 ns"),
        (1500, "1.5 us"),
        (33_000_000, "33 ms"),
        (446_268, "446.3 us"),
        (4_512_345_678, "4.512 s"),
        (86_400_000_000_000, "86,400 s"),
        (-2_000_000, "-2 ms"),
    ],
)
def test_durations_have_the_unit_that_suits_them(nanoseconds, text):
    assert duration(nanoseconds) == text
