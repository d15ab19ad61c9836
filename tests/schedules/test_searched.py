"""zb-auto and zb-v-auto: drawings, laws for every shape, caps that are never exceeded, and what the catalog says."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debubble import InputError, Rates, Release, Shape, build, costs_of, lower, peak_activations, simulate, violations
from debubble.core.bounds import lower_bound
from debubble.core.schedule import loop_placement, v_placement
from debubble.schedules import zb_auto as placed
from debubble.schedules.catalog import CATALOG
from debubble.schedules.rows import linear, v_shaped
from debubble.schedules.zb_auto import task_of, zb_auto, zb_v_auto
from drawn import draw, written
from evenly import UNIT, holds, run, value

EVEN = Rates(UNIT, input=UNIT, weight=UNIT)
FIND = {"zb-auto": zb_auto, "zb-v-auto": zb_v_auto}


def found(name, p, m, speed=EVEN, **options):
    return FIND[name](Shape(p, m, CATALOG[name].chunks), speed, **options)


def prove(schedule):
    assert violations(schedule, in_order=True) == []
    lower(schedule)


@pytest.mark.parametrize(("name", "cap"), [("zb-auto", "2p"), ("zb-v-auto", "1p")])
def test_the_drawing_in_the_file_is_the_schedule(name, cap):
    assert draw(found(name, 3, 5, cap=cap), 2) == written(FIND[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FIND)
def test_every_shape_keeps_the_laws(name):
    for p in range(1, 17):
        for m in sorted({1, 2, 3, p, 2 * p - 1, 2 * p, 17, 40}):
            prove(found(name, p, m))


@st.composite
def speeds(draw_, stages):
    """Rates of an uneven pipeline; zero and long transfers among them."""
    forward, first, weight, transfer = (draw_(st.sampled_from([0, 1, 3, 10, 33])) * UNIT for _ in range(4))
    scale = st.lists(st.sampled_from([0.1, 1, 1, 2, 7]), min_size=stages, max_size=stages)
    uneven = tuple(draw_(scale)) if draw_(st.booleans()) else ()
    return Rates(forward, input=first, weight=weight, transfer=transfer, stage_scale=uneven)


@given(st.data(), st.integers(1, 9), st.integers(1, 20), st.sampled_from(list(Release)))
@settings(max_examples=200, deadline=None)
def test_zb_auto_is_legal_and_keeps_any_cap_of_at_least_1(data, p, m, release):
    caps = data.draw(st.lists(st.floats(1, 2.5 * p), min_size=p, max_size=p) | st.floats(1, 3 * p))
    schedule = zb_auto(Shape(p, m), data.draw(speeds(p)), cap=caps, release=release)
    prove(schedule)
    held = peak_activations(schedule, release)
    assert all(held <= caps)


@pytest.mark.slow
@given(st.data(), st.integers(1, 9), st.integers(1, 20), st.sampled_from(list(Release)))
@settings(max_examples=200, deadline=None)
def test_zb_v_auto_is_legal_and_keeps_any_cap_of_at_least_p(data, p, m, release):
    cap = data.draw(st.floats(p, 3 * p))
    schedule = zb_v_auto(Shape(p, m, 2), data.draw(speeds(2 * p)), cap=cap, release=release)
    prove(schedule)
    assert peak_activations(schedule, release).max() <= cap


@pytest.mark.slow
@given(st.integers(2, 8), st.integers(1, 20), st.floats(0.5, 8), st.sampled_from(list(Release)))
@settings(max_examples=60, deadline=None)
def test_the_least_cap_that_an_error_names_is_the_least(p, m, cap, release):
    try:
        found("zb-v-auto", p, m, cap=cap, release=release)
    except InputError as error:
        least = float(error.faults[0].remedy.split()[1])
        assert cap < least <= p
        assert peak_activations(found("zb-v-auto", p, m, cap=least, release=release), release).max() <= least
        with pytest.raises(InputError):
            found("zb-v-auto", p, m, cap=least - 0.5, release=release)


@pytest.mark.parametrize("name", FIND)
def test_idle_time_and_activations_are_what_the_catalog_says(name):
    entry, compared = CATALOG[name], 0
    for p in (1, 2, 3, 4, 8):
        for m in (1, 2, p, 2 * p, 24):
            for f, i, w in ((12, 12, 12), (12, 18, 6), (12, 12, 6), (12, 6, 12)):
                speed = Rates(f * UNIT, input=i * UNIT, weight=w * UNIT)
                schedule = found(name, p, m, speed)
                letters = {"p": p, "m": m, "F": f, "I": i, "W": w, "cap": p}
                assert peak_activations(schedule, Release.HALF).max() <= value(entry.activations, **letters)
                if holds(entry.bubble_holds, **letters):
                    idle = run(schedule, f, i, w).idle.max()
                    assert idle == pytest.approx(value(entry.bubble, **letters), abs=1e-4)
                    compared += 1
    assert compared >= 15


@given(st.data(), st.integers(1, 7), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_search_sees_its_ops_when_simulation_runs_them(data, p, m):
    """Op by op it keeps the same clock, hops included: else it would decide by times that never come."""
    line, v = loop_placement(p, 1), v_placement(p)
    for chunks, placement, made, search in ((1, line, linear, placed._search), (2, v, v_shaped, placed._search_on_a_v)):
        speed = data.draw(speeds(chunks * p))
        task = task_of(Shape(p, m, chunks), placement, speed, (2.0 * p,) * p, Release.HALF)
        ranks = search(task)
        schedule = made("searched", task.shape, ranks.order())
        timeline = simulate(lower(schedule), costs_of(speed, schedule))
        assert np.maximum.reduceat(timeline.end, schedule.offsets[:-1]).tolist() == ranks.now


@given(st.data(), st.integers(1, 6), st.integers(1, 14), st.sampled_from(list(Release)))
@settings(max_examples=60, deadline=None)
def test_settings_that_are_given_up_or_skipped_would_not_have_won(data, p, m, release):
    """All eight run to their ends, the first with the shortest span: what the search finds in less."""
    cap = data.draw(st.floats(1, 2.5 * p))
    task = task_of(Shape(p, m), loop_placement(p, 1), data.draw(speeds(p)), (cap,) * p, release)
    every = [placed._attempt(task, placed._Switches(*on))[0] for on in product((True, False), repeat=3)]
    assert placed._search(task).order() == min(every, key=lambda ranks: ranks.span()).order()


def test_zb_2p_is_never_worse_than_zb_h2_with_enough_micro_batches():
    for p in (2, 4, 8):
        for f, i, w in ((10, 10, 10), (10, 12, 6), (10, 10, 5), (10, 15, 8)):
            speed = Rates(f * UNIT, input=i * UNIT, weight=w * UNIT)
            auto = run(found("zb-auto", p, 2 * p, speed, cap="2p"), f, i, w)
            assert auto.makespan <= run(build("zb-h2", Shape(p, 2 * p)), f, i, w).makespan + 1e-6
            assert auto.makespan <= 2 * p * (f + i + w) + (p - 1) * max(f, f + i - 2 * w) + 1e-6


def test_more_memory_never_makes_zb_auto_slower_where_stages_are_even():
    spans = [run(found("zb-auto", 8, 16, cap=cap), 1, 1, 1).span for cap in range(1, 17)]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == 48  # ZB-2p: no idle time at all


@pytest.mark.parametrize(("cap", "span"), [(6, 1070), (4, 1670)])
def test_far_below_p_zb_auto_is_as_slow_as_published(cap, span):
    """Instances A and B of the known gaps, p = 8, m = 16: here a list scheduler does better."""
    assert run(found("zb-auto", 8, 16, cap=cap), 10, 10, 10).span == span


def test_an_uneven_pipeline_uses_what_it_is_told():
    """Costs differ by stage, and so do the orders: a slow last stage lets the others wait with their W."""
    slow = Rates(UNIT, input=UNIT, weight=UNIT, stage_scale=(1, 1, 1, 1.5))
    told, untold = found("zb-auto", 4, 8, slow), found("zb-auto", 4, 8)
    assert not told.same_order(untold)


@given(st.data(), st.integers(1, 6), st.integers(1, 12), st.sampled_from(sorted(FIND)))
@settings(max_examples=60, deadline=None)
def test_no_search_beats_the_lower_bound(data, p, m, name):
    speed = data.draw(speeds(p * CATALOG[name].chunks))
    schedule = found(name, p, m, speed)
    costs = costs_of(speed, schedule)
    assert simulate(lower(schedule), costs).makespan >= lower_bound(schedule, costs)


def test_costs_may_be_given_as_a_table_and_their_mean_over_micro_batches_counts():
    speed = Rates(UNIT, input=UNIT, weight=UNIT, microbatch_scale=(0.5, 1.5, 0.5, 1.5))
    table = costs_of(speed, found("zb-auto", 2, 4))
    assert table.durations.shape[2] == 4
    assert found("zb-auto", 2, 4, table).same_order(found("zb-auto", 2, 4))


@pytest.mark.parametrize(("name", "most"), [("zb-auto", "976"), ("zb-v-auto", "195")])
def test_what_would_take_minutes_is_refused(name, most):
    with pytest.raises(InputError, match=f"give {most} micro-batches or less"):
        found(name, 1024, 8192)
