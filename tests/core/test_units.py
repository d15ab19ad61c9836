"""Quantities as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debubble.core.errors import InputError
from debubble.core.units import Hops, count_bytes, counted, duration, nanoseconds, percent, read_hops


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20ms", 20e6), ("35us", 35e3), ("35µs", 35e3), ("1.5s", 1.5e9), ("7", 7e6), ("0", 0), (".5", 5e5),
        ("1e3us", 1e6), ("2 min", 120e9), (" 4 ns ", 4), ("3MS", 3e6),
    ],
)  # fmt: skip
def test_durations(text, value):
    assert nanoseconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("80GB", 80 * 10**9), ("16GiB", 16 * 2**30), ("1.5kB", 1500), ("512", 512), ("2MiB", 2**21), ("1TB", 10**12)],
)
def test_sizes(text, value):
    assert count_bytes(text) == value


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "nan", "inf", "1e999s", "1 2", "5parsec", "0x10", "1,5ms", "٣ms"])
def test_what_is_no_duration_is_refused_with_its_name(text):
    with pytest.raises(InputError, match="forward = "):
        nanoseconds(text, "forward")
    with pytest.raises(InputError, match="a size is a number"):
        count_bytes(text)


@given(st.text(max_size=12))
def test_any_text_is_a_finite_duration_or_an_input_error(text):
    try:
        value = nanoseconds(text)
    except InputError:
        return
    assert 0 <= value < float("inf")


def test_a_share_of_no_work_is_said_in_words():
    assert [percent(share) for share in (3 / 11, 0, float("inf"), float("nan"))] == [
        "27.3 %",
        "0.0 %",
        "none: no work",
        "none: no work",
    ]


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (0, "0 ms"), (1, "1 ns"), (999, "999 ns"), (1000, "1 us"), (17e3, "17 us"), (1e6, "1 ms"), (33e6, "33 ms"),
        (999_999, "1000 us"), (1e9, "1 s"), (1.5e9, "1.5 s"), (4_512_345_678, "4.512 s"), (-2e6, "-2 ms"),
    ],
)  # fmt: skip
def test_a_duration_is_shown_in_the_unit_that_suits_it(spent, text):
    assert duration(spent) == text


def test_a_number_goes_with_its_noun():
    assert [counted(n, noun) for n, noun in ((1, "rank"), (4, "rank"), (2, "micro-batch"), (1.5, "chunk"))] == [
        "1 rank",
        "4 ranks",
        "2 micro-batches",
        "1.5 chunks",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3ms", 3e6),
        ("1ms,6-7=30ms", Hops(1e6, ((6, 7, 30e6),))),
        ("6-7=30ms,0-1=2ms", Hops(0.0, ((6, 7, 30e6), (0, 1, 2e6)))),  # links that are not named are free
        ("1ms,2ms,3ms", Hops(boundaries=(1e6, 2e6, 3e6))),
    ],
)
def test_hops_are_one_value_one_for_each_boundary_or_those_of_named_links(text, value):
    assert read_hops(text, "transfer", nanoseconds) == value


@pytest.mark.parametrize(
    "text",
    ["3-3=1ms", "1ms,2ms,6-7=30ms", "6-7=1ms,7-6=2ms", "a-b=4", "6-7=x", "1ms,,2ms"],
)
def test_links_that_are_none_or_named_twice_are_refused(text):
    with pytest.raises(InputError, match="transfer"):
        read_hops(text, "transfer", nanoseconds)


def test_every_fault_of_a_list_of_links_is_told_at_once():
    with pytest.raises(InputError) as caught:
        read_hops("3-3=1ms,a-b=4,6-7=x", "transfer", nanoseconds)
    assert len(caught.value.faults) == 3


def test_another_value_for_a_link_takes_the_place_of_the_old_one_whichever_way_it_was_named():
    assert Hops(1.0, ((6, 7, 5.0), (0, 1, 2.0))).with_pair(7, 6, 9.0) == Hops(1.0, ((0, 1, 2.0), (7, 6, 9.0)))
    assert bool(Hops()) is False
    assert bool(Hops(0.0, ((0, 1, 2.0),))) is True
    assert bool(Hops(boundaries=(0.0, 0.0))) is False
    assert (str(Hops(1e6, ((6, 7, 30e6),))), str(Hops(0.0, ((6, 7, 30e6),)))) == ("1 ms, 6-7 30 ms", "6-7 30 ms")
