"""Pictures in text: the drawing itself is the expected value."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.errors import InputError
from debubble.core.lower import lower
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.core.units import MILLISECOND
from debubble.drawing.terminal import grid, timeline_text
from debubble.schedules.catalog import build
from strategies import costs, schedules

ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def run(name: str, *shape: int, **rates):
    schedule = build(name, Shape(*shape))
    return simulate(lower(schedule), costs_of(Rates(**rates), schedule))


def rows(timeline, width=80, **options) -> list[str]:
    """The picture alone: without labels and percentages."""
    lines = timeline_text(timeline, width, **options).splitlines()
    return [line.split(" ", 3)[3].rsplit(" ", 1)[0].strip() for line in lines if line.startswith(" rank")]


def test_grid_of_1f1b_with_three_ranks_and_four_micro_batches():
    assert grid(run("1f1b", 3, 4), MILLISECOND) == [
        "012....aa3bb.cc.dd",
        ".01..aa2bb3cc.dd..",
        "..0aa1bb2cc3dd....",
    ]


def test_grid_tells_the_halves_of_a_split_backward_apart():
    assert grid(run("zb-h1", 2, 2), MILLISECOND) == [
        "01.aAbB",
        ".0a1bAB",
    ]


def test_grid_counts_on_in_digits_and_letters():
    assert grid(run("gpipe", 1, 12, backward=MILLISECOND), MILLISECOND) == ["012345678901abcdefghijkl"]


def test_grid_refuses_a_column_that_would_hide_an_edge():
    with pytest.raises(InputError, match="try 1000000"):
        grid(run("1f1b", 2, 2), 2 * MILLISECOND)


def test_boxes_take_whole_columns_and_carry_the_micro_batch():
    assert rows(run("1f1b", 2, 2), 48) == [
        "0██1██······0▒▒▒▒▒···1▒▒▒▒▒",
        "···0██0▒▒▒▒▒1██1▒▒▒▒▒······",
    ]


def test_without_utf8_boxes_are_letters():
    text = timeline_text(run("1f1b", 2, 2), 48, utf8=False)
    assert text.isascii()
    assert rows(run("1f1b", 2, 2), 48, utf8=False)[0] == "0FF1FF......0BBBBB...1BBBBB"


def test_a_box_too_narrow_for_its_number_has_none():
    picture = rows(run("1f1b", 1, 12), 60)[0]
    assert picture == "".join(f"█{'▒▒' if n > 9 else f'{n}▒'}" for n in range(12))


def test_narrow_boxes_become_exact_shares_in_which_a_slow_rank_stands_out():
    slow = run("1f1b", 8, 128, rank_scale=(1, 1, 1, 1, 1, 1.08, 1, 1))
    middle = [row[10:60] for row in rows(slow, 80)]
    assert [set(row) == {"█"} for row in middle] == [rank == 5 for rank in range(8)]


def test_a_gap_far_narrower_than_a_column_is_not_drawn_as_busy():
    # 200 micro-batches, a hop of a thousandth of F: each rank but the last idles a thousandth of every column
    picture = rows(run("1f1b", 2, 200, transfer=1000.0), 80)
    assert "█" not in picture[0][10:60]


def test_more_ranks_than_rows_share_them():
    lines = timeline_text(run("1f1b", 130, 2), 80).splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["0", "3"]
    assert len([line for line in lines if line.startswith(" rank")]) == 44
    assert "1 row = mean of 3 ranks" in lines[-1] + lines[-2]


@pytest.mark.parametrize("width", [40, 80, 133, 250])
def test_a_picture_is_never_wider_than_asked_for(width):
    for timeline in (run("1f1b", 4, 8), run("1f1b", 12, 64), run("zb-h1", 4, 7, transfer=12345)):
        assert max(map(len, timeline_text(timeline, width).splitlines()[:-2])) <= width


def test_colour_changes_nothing_but_the_colour():
    for timeline in (run("interleaved", 4, 8, 2), run("1f1b", 4, 64)):
        painted = timeline_text(timeline, 80, colour=True)
        assert ESCAPE.sub("", painted) == timeline_text(timeline, 80)
        assert painted != timeline_text(timeline, 80)


def test_a_timeline_of_no_length_is_drawn_as_idle():
    assert set(rows(run("1f1b", 2, 1, forward=0.0, backward=0.0))[0]) == {"·"}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), width=st.integers(40, 120))
def test_any_timeline_can_be_drawn_and_its_percentages_are_the_account(data, width):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    lines = [line for line in timeline_text(timeline, width).splitlines() if line.startswith(" rank")]
    spent = account(timeline)
    busy = spent.compute / max(spent.window, 1)
    assert [int(line.rsplit(" ", 1)[1].rstrip("%")) for line in lines] == [round(100 * share) for share in busy]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_grid_in_nanoseconds_has_as_many_busy_columns_as_the_account(data):
    schedule = data.draw(schedules(pairs=False))
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    if timeline.makespan < 5000:
        busy = [len(row) - row.count(".") for row in grid(timeline, 1)]
        assert busy == np.asarray(account(timeline).compute).tolist()
