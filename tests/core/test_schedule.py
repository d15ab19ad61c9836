"""Shapes and schedules: sizes are checked before memory is taken, and nouns stay as they were made."""

import numpy as np
import pytest

from debubble.core.errors import InputError
from debubble.core.schedule import Kind, Op, Shape, from_rows, loop_placement, v_placement


def test_every_size_below_one_is_named_at_once():
    with pytest.raises(InputError) as caught:
        Shape(ranks=0, microbatches=-1, chunks=0)
    assert [fault.value for fault in caught.value.faults] == ["ranks = 0", "microbatches = -1", "chunks = 0"]


def test_a_million_million_microbatches_are_refused_with_the_memory_they_would_need():
    with pytest.raises(InputError) as caught:
        Shape(ranks=4, microbatches=10**12)
    assert "GB of memory" in str(caught.value)
    assert "8,000,000,000,000 ops" in str(caught.value)


@pytest.mark.parametrize(("ranks", "turns"), [(64_000, "8,192,000,000 turns"), (1_000_000, "2,000,000,000,000 turns")])
def test_more_ranks_than_can_be_simulated_in_seconds_are_refused_with_the_turns_that_it_would_take(ranks, turns):
    with pytest.raises(InputError) as caught:
        Shape(ranks=ranks, microbatches=1)
    (fault,) = caught.value.faults
    assert turns in fault.rule
    assert fault.remedy == "stay at 16,384 ranks or fewer"


def test_the_largest_jobs_are_not_refused():
    assert Shape(ranks=1024, microbatches=8192).stages == 1024
    assert Shape(ranks=16_384, microbatches=1).stages == 16_384


def test_placements():
    assert loop_placement(2, 3).tolist() == [[0, 1, 0, 1, 0, 1]]
    assert v_placement(3).tolist() == [[0, 1, 2, 2, 1, 0]]


def test_a_schedule_cannot_be_changed():
    schedule = from_rows("one", [[Op(Kind.F, 0, 0), Op(Kind.B, 0, 0)]], [0], 1)
    with pytest.raises(ValueError, match="read-only"):
        schedule.kind[0] = 2
    with pytest.raises(AttributeError):
        schedule.name = "two"


def test_an_uneven_placement_counts_the_stages_of_each_rank():
    schedule = from_rows("uneven", [[], []], [0, 1, 0], 1)
    assert schedule.chunks_of().tolist() == [[2, 1]]
    assert schedule.stages == 3
    assert np.array_equal(schedule.offsets, [0, 0, 0])
