"""The figure: every op a box at its time, or exact shares; readable without colour, by machine and by ear."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import Shape
from debubble.core.simulate import simulate
from debubble.drawing.figure import MOST_BOXES, figure, svg
from debubble.schedules.catalog import build
from strategies import costs, schedules

SPACE = {"svg": "http://www.w3.org/2000/svg"}
PLOT = 848  # pixels between the margins


def run(name: str, *shape: int, **rates):
    schedule = build(name, Shape(*shape))
    return simulate(lower(schedule), costs_of(Rates(**rates), schedule))


def boxes(root) -> list[tuple[float, float, float, str]]:
    """Row, left edge and width in pixels, and tooltip of each op's box."""
    found = [rect for rect in root.findall("svg:rect", SPACE) if "box" in rect.get("class", "")]
    return [(*(float(r.get(a)) for a in ("y", "x", "width")), r.find("svg:title", SPACE).text) for r in found]


def test_1f1b_of_two_ranks_box_by_box():
    found = boxes(ElementTree.fromstring(svg(run("1f1b", 2, 1))))
    unit = PLOT / 6  # rank 0: F at 0, B from 4 to 6; rank 1: F at 1, B from 2 to 4
    assert [(round((x - 64) / unit, 3), round(wide / unit, 3)) for _, x, wide, _ in found] == [
        (0, 1),
        (4, 2),
        (1, 1),
        (2, 2),
    ]
    assert [text for *_, text in found][-1] == "1B0: 2 ms to 4 ms"


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_boxes_of_a_row_do_not_overlap_and_fill_what_the_rank_works(data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    found = boxes(ElementTree.fromstring(svg(timeline)))
    assert len(found) == len(schedule)
    spent = account(timeline)
    filled = np.zeros(schedule.ranks)
    rank = schedule.rank_of()
    for row, (_, _, wide, _) in enumerate(found):
        filled[rank[row]] += wide
    np.testing.assert_allclose(filled, PLOT * spent.compute / max(spent.window, 1), atol=0.01 * len(schedule))


def test_many_ops_become_outlines_whose_area_is_the_work():
    timeline = run("1f1b", 4, 300, rank_scale=(1, 1, 1.2, 1))
    assert len(timeline.program.schedule) > MOST_BOXES
    root = ElementTree.fromstring(svg(timeline))
    assert not boxes(root)
    areas = [area(path.get("d")) for path in root.findall("svg:path", SPACE) if path.get("class") in ("F", "B")]
    by_rank = np.array(areas).reshape(4, 2).sum(axis=1) / (PLOT * 20)  # a row is 20 pixels high
    np.testing.assert_allclose(by_rank, account(timeline).compute / timeline.makespan, atol=2e-3)


def area(path: str) -> float:
    """Area under a path of vertical and horizontal steps that returns to where it began."""
    assert path.startswith("M64 ")
    return -sum(float(height) * float(width) for height, width in re.findall(r"V([-\d.]+)h(-?\d+)", path))


def test_a_reader_and_a_listener_learn_what_it_shows():
    root = ElementTree.fromstring(svg(run("1f1b", 4, 8), "1f1b of the week"))
    assert root.get("role") == "img"
    assert root.find("svg:title", SPACE).text == "1f1b of the week"
    sentence = root.find("svg:desc", SPACE).text
    assert "4 ranks, 8 micro-batches, 33 ms" in sentence
    assert "72.7 %" in sentence


def test_kinds_are_told_apart_without_colour():
    text = svg(run("zb-v", 4, 8))
    assert {name for name in ("hI", "hW") if f"url(#{name})" in text} == {"hI", "hW"}


@pytest.mark.parametrize("title", ["<script>alert(1)</script>", "a & b", "\x00\x1b]0;x\x07", "\udcff"])
def test_a_hostile_title_stays_text(title):
    figure = svg(run("1f1b", 2, 2), title)
    assert "<script" not in figure
    ElementTree.fromstring(figure.encode())


def test_nothing_is_fetched():
    assert set(re.findall(r"https?://[^\"]+", svg(run("1f1b", 2, 2)))) == {"http://www.w3.org/2000/svg"}


def test_two_timelines_stand_below_each_other_on_one_time_axis():
    short, long = run("1f1b", 2, 1), run("1f1b", 2, 4)  # 6 ms and 15 ms
    root = ElementTree.fromstring(figure([("short", short), ("long", long)]))
    unit = PLOT / 15
    assert {round(wide / unit, 2) for _, _, wide, _ in boxes(root)} == {1, 2}
    panel = root.find("svg:g", SPACE)
    assert {round(wide / unit, 2) for _, _, wide, _ in boxes(panel)} == {1, 2}
    assert root.find("svg:title", SPACE).text == "short, long"
