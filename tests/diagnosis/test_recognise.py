"""Recognition: every schedule of the catalog by its name, and where a stranger departs from the nearest."""

from itertools import pairwise

import pytest

from debubble import InputError, Op, Rates, Shape, build, from_rows
from debubble.core.memory import Release
from debubble.diagnosis.recognise import recognise
from debubble.schedules.catalog import GENERATED
from debubble.schedules.catalog import build as searched


@pytest.mark.parametrize("name", [name for name in GENERATED if name != "forward-only"])
def test_every_schedule_is_recognised_whatever_it_is_called(name):
    for shape in (Shape(4, 8), Shape(4, 8, 2)):
        try:
            schedule = build(name, shape)
        except InputError:
            continue
        rows = [list(schedule.row(rank)) for rank in range(4)]
        joined = None if schedule.joined is None else _split(schedule.joined, schedule.offsets)
        seen = from_rows(
            "seen", rows, schedule.placement, 8, slices=schedule.slices, joined=joined, route=schedule.route
        )
        found = recognise(seen)
        assert found.name is not None
        assert seen.same_order(build(found.name, Shape(4, 8, seen.stages // 4, seen.slices)))


def _split(flags, offsets):
    return [flags[a:b].tolist() for a, b in pairwise(offsets)]


def test_a_stranger_names_the_nearest_and_the_place():
    schedule = build("1f1b", Shape(2, 4))
    rows = [list(schedule.row(rank)) for rank in range(2)]
    rows[1][2], rows[1][4] = rows[1][4], rows[1][2]  # 1F2 before 1F1
    found = recognise(from_rows("odd", rows, [0, 1], 4))
    assert (found.name, found.nearest, str(found)) == (None, "1f1b", "no known schedule")
    assert found.departure == "rank 1 position 2: 1F2 where 1f1b has 1F1"


@pytest.mark.parametrize(
    ("shape", "cap", "same_as"), [(Shape(2, 4), "1p", "zb-h1"), (Shape(4, 8), "1.5p", None)], ids=["same", "other"]
)
def test_a_searched_order_keeps_the_name_that_was_asked_for_and_says_what_it_is_the_same_as(shape, cap, same_as):
    found = recognise(searched("zb-auto", shape, Rates(transfer=2e5), cap=cap, release=Release.W))
    assert (str(found), found.name) == ("zb-auto", same_as)


def test_uneven_chunks_are_no_known_schedule():
    rows = [[Op.parse("0F0"), Op.parse("2F0")], [Op.parse("1F0")]]
    assert recognise(from_rows("uneven", rows, [0, 1, 0], 1)).nearest is None
