"""Every published schedule is complete, in order, rightly placed and free of deadlock, for every shape it takes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from debubble import InputError, Shape, build, lower, violations
from debubble.core.schedule import Kind
from debubble.schedules.catalog import CATALOG
from evenly import run

# Chunks and slices that a schedule can have.
CUTS = {name: tuple((v, 1) for v in (1, 2, 3, 4)) for name in ("interleaved", "looped-bfs", "interleaved-zb")}
CUTS |= {"forward-only": CUTS["looped-bfs"], "hanayo": ((2, 1), (4, 1)), "seq1f1b": ((1, 1), (1, 2), (1, 3), (1, 4))}
MOST_RANKS, MOST_MICROBATCHES = 16, 40


def microbatches(p):
    """All up to three ranks; beyond, those around the sizes at which schedules change."""
    every = range(1, MOST_MICROBATCHES + 1)
    return every if p <= 3 else sorted({1, 2, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p - 1, 39, 40} & set(every))


def legal(shape, name):
    """The schedule, or None where the shape does not suit it."""
    try:
        return build(name, shape)
    except InputError:
        return None


def prove(schedule):
    assert violations(schedule, in_order=True) == []
    lower(schedule)


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOG)
def test_every_schedule_keeps_the_laws(name):
    proved = 0
    for p in range(1, MOST_RANKS + 1):
        for m in microbatches(p):
            for v, s in CUTS.get(name, ((CATALOG[name].chunks, 1),)):
                schedule = legal(Shape(p, m, v, s), name)
                if schedule is not None:
                    prove(schedule)
                    proved += 1
    assert proved > 30


@st.composite
def shapes(draw):
    name = draw(st.sampled_from(sorted(CATALOG)))
    p, m = draw(st.integers(1, MOST_RANKS)), draw(st.integers(1, MOST_MICROBATCHES))
    v, s = draw(st.sampled_from(CUTS.get(name, ((CATALOG[name].chunks, 1),))))
    group = draw(st.none() | st.integers(1, m)) if name == "interleaved" else None
    return name, Shape(p, m, v, s, group)


@given(shapes())
@settings(max_examples=150, deadline=None)
def test_random_shapes_keep_the_laws_too(drawn):
    name, shape = drawn
    schedule = legal(shape, name)
    assume(schedule is not None)
    prove(schedule)


@given(st.integers(1, 16), st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_a_group_of_interleaved_is_legal_by_megatrons_rule_and_by_no_other(p, m, group, v):
    rest = m % group
    allowed = p <= group <= m and (rest == 0 or rest >= p)
    schedule = legal(Shape(p, m, v, group=group), "interleaved")
    assert (schedule is not None) == allowed
    if schedule is not None:
        prove(schedule)


@given(st.integers(1, 16), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_larger_groups_hold_more_and_idle_no_longer(p, groups, v, factor):
    m = p * groups * factor
    small, large = (run(build("interleaved", Shape(p, m, v, group=g)), 1, 1, 1) for g in (p, p * groups))
    assert large.makespan == pytest.approx(small.makespan)
    assert large.peak.max() >= small.peak.max()


def test_backwards_that_take_slices_in_the_order_of_the_forwards_are_caught():
    schedule = build("seq1f1b", Shape(2, 2, slices=2))
    backward = schedule.kind == Kind.B
    ahead = replace(schedule, unit=np.where(backward, schedule.unit ^ 1, schedule.unit))
    found = [str(violation) for violation in violations(ahead, in_order=True)]
    assert "rank 1 position 2: 1B0.0 stands before 1B0.1, which it builds on" in found
    assert any("not first in, first out" in sentence for sentence in found)
