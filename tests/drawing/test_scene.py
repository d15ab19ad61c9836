"""Scenes: boxes without overlap, and shares of columns that lose nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble.core.account import account
from debubble.core.costs import Rates, costs_of
from debubble.core.lower import lower
from debubble.core.schedule import KINDS, Kind, Shape
from debubble.core.simulate import simulate
from debubble.drawing.scene import chunk_of_stage, scene, shares
from debubble.schedules.catalog import build
from strategies import costs, schedules


def run(name: str, *shape: int, **rates):
    schedule = build(name, Shape(*shape))
    return simulate(lower(schedule), costs_of(Rates(**rates), schedule))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), columns=st.integers(1, 50))
def test_shares_of_all_columns_add_up_to_the_work_of_each_rank(data, columns):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    edges = np.array([column * timeline.makespan // columns for column in range(columns + 1)])
    filled = shares(scene(timeline), columns)
    assert filled.min(initial=0) >= 0
    assert filled.sum(axis=2).max(initial=0) <= 1 + 1e-12
    work = (filled.sum(axis=2) * np.diff(edges)).sum(axis=1)
    np.testing.assert_allclose(work, account(timeline).compute, atol=1e-3)


def test_shares_of_one_rank_that_runs_f_then_b():
    # F 1 ms then B 2 ms in four columns of .75 ms: F fills the first and a third of the second
    filled = shares(scene(run("1f1b", 1, 1)), 4)[0]
    np.testing.assert_allclose(filled[:, Kind.F], [1, 1 / 3, 0, 0], atol=1e-5)
    np.testing.assert_allclose(filled[:, Kind.B], [0, 2 / 3, 1, 1], atol=1e-5)
    assert filled.shape == (4, KINDS)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_boxes_of_a_rank_never_overlap_and_busy_is_the_account(data):
    schedule = data.draw(schedules())
    timeline = simulate(lower(schedule), data.draw(costs(schedule)))
    laid = scene(timeline)
    assert (laid.end >= laid.start).all()
    same_rank = np.diff(schedule.rank_of()) == 0
    assert (laid.start[1:] >= laid.end[:-1])[same_rank].all()
    spent = account(timeline)
    np.testing.assert_allclose(laid.busy(), spent.compute / max(spent.window, 1), atol=1e-9)


def test_the_arms_of_a_v_are_two_chunks():
    assert chunk_of_stage(build("zb-v", Shape(2, 2))).tolist() == [[0, 0, 1, 1]]
    assert chunk_of_stage(build("interleaved", Shape(2, 2, 3))).tolist() == [[0, 0, 1, 1, 2, 2]]
