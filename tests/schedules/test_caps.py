"""Memory caps as people write them."""

import pytest

from debubble import InputError
from debubble.schedules.entry import caps_of


@pytest.mark.parametrize(
    ("cap", "caps"),
    [
        (6, (6.0,) * 4),
        (2.5, (2.5,) * 4),
        ("6", (6.0,) * 4),
        ("p", (4.0,) * 4),
        ("1p", (4.0,) * 4),
        ("1.5p", (6.0,) * 4),
        ("2,3, 3,2", (2.0, 3.0, 3.0, 2.0)),
        ("1p,2,2,1", (4.0, 2.0, 2.0, 1.0)),
        ([2, 3, 3, 2], (2.0, 3.0, 3.0, 2.0)),
    ],
)
def test_a_cap_is_a_number_a_multiple_of_p_or_one_for_each_rank(cap, caps):
    assert caps_of(cap, 4) == caps


@pytest.mark.parametrize("cap", [0, -1, "x", "", "pp", "nan", "inf", float("nan"), "1,,2,3"])
def test_what_is_no_cap_is_quoted(cap):
    with pytest.raises(InputError, match="above 0; give it as in 6, 1p or 4,6,6,4"):
        caps_of(cap, 4)


def test_a_list_of_the_wrong_length_and_a_bad_number_are_both_named():
    with pytest.raises(InputError) as error:
        caps_of("1,y", 4)
    assert len(error.value.faults) == 2
